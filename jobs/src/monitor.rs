//! Watching and stopping a job from another thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Cancelled;

/// A handle on a running job: its stages, its notes, and a switch to stop it. Share it by [`Arc`].
#[derive(Debug, Default)]
pub struct Monitor {
    cancelled: Arc<AtomicBool>,
    meters: Mutex<Vec<Arc<Meter>>>,
    notes: Mutex<Vec<Note>>,
}

/// What a meter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Examples.
    Examples,
}

impl Unit {
    /// `bytes` or `examples`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Examples => "examples",
        }
    }
}

/// How far one stage is. Counting is one atomic addition.
#[derive(Debug)]
pub struct Meter {
    name: String,
    unit: Unit,
    total: AtomicU64,
    done: AtomicU64,
    started: Instant,
    /// Nanoseconds after the start; 0 while it runs.
    finished: AtomicU64,
}

impl Meter {
    /// Adds to what is done.
    pub fn add(&self, amount: u64) {
        self.done.fetch_add(amount, Ordering::Relaxed);
    }

    /// Sets what is done.
    pub fn set(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    /// Sets how much there is in all.
    pub fn set_total(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// Ends the stage.
    pub fn finish(&self) {
        let nanoseconds = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let _ = self
            .finished
            .compare_exchange(0, nanoseconds.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How far it is now.
    pub fn snapshot(&self) -> Stage {
        let finished = self.finished.load(Ordering::Relaxed);
        let total = self.total.load(Ordering::Relaxed);
        Stage {
            name: self.name.clone(),
            unit: self.unit,
            done: self.done.load(Ordering::Relaxed),
            total: (total > 0).then_some(total),
            elapsed: match finished {
                0 => self.started.elapsed(),
                nanoseconds => Duration::from_nanos(nanoseconds),
            },
            finished: finished > 0,
        }
    }
}

/// How far a stage was at some moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// What it does: `fetch cifar-10-binary.tar.gz`.
    pub name: String,
    /// What is counted.
    pub unit: Unit,
    /// How much is done.
    pub done: u64,
    /// How much there is, where it is known.
    pub total: Option<u64>,
    /// Time since it began, or that it took.
    pub elapsed: Duration,
    /// Whether it is over.
    pub finished: bool,
}

/// Something a user may want to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether it needs attention.
    pub warning: bool,
    /// One line.
    pub text: String,
}

impl Monitor {
    /// A handle for one job.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Asks the job to stop. It ends with [`Cancelled`], and leaves its staging for the next run.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    /// The switch itself, for a signal handler: stored `true`, it is [`cancel`](Self::cancel).
    pub fn switch(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Whether the job was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// An error if the job was asked to stop.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub fn check(&self) -> Result<(), Cancelled> {
        if self.is_cancelled() {
            Err(Cancelled)
        } else {
            Ok(())
        }
    }

    /// Begins a stage.
    pub fn stage(&self, name: impl Into<String>, unit: Unit, total: Option<u64>) -> Arc<Meter> {
        let meter = Arc::new(Meter {
            name: name.into(),
            unit,
            total: AtomicU64::new(total.unwrap_or(0)),
            done: AtomicU64::new(0),
            started: Instant::now(),
            finished: AtomicU64::new(0),
        });
        self.meters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&meter));
        meter
    }

    /// All stages so far, in the order in which they began.
    pub fn stages(&self) -> Vec<Stage> {
        let meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        meters.iter().map(|meter| meter.snapshot()).collect()
    }

    /// Says something in passing.
    pub fn note(&self, text: impl Into<String>) {
        self.push(false, text.into());
    }

    /// Says something that needs attention.
    pub fn warn(&self, text: impl Into<String>) {
        self.push(true, text.into());
    }

    fn push(&self, warning: bool, text: String) {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Note { warning, text });
    }

    /// The notes since the last call.
    pub fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_show_what_is_done() {
        let monitor = Monitor::new();
        let meter = monitor.stage("read", Unit::Bytes, Some(10));
        meter.add(4);
        let stage = monitor.stages().remove(0);
        assert_eq!((stage.done, stage.total, stage.finished), (4, Some(10), false));
        meter.finish();
        let first = monitor.stages().remove(0);
        assert!(first.finished);
        assert_eq!(monitor.stages().remove(0).elapsed, first.elapsed);
    }

    #[test]
    fn a_cancelled_job_is_told_so() {
        let monitor = Monitor::new();
        assert_eq!(monitor.check(), Ok(()));
        monitor.cancel();
        assert_eq!(monitor.check(), Err(Cancelled));
    }

    #[test]
    fn notes_are_given_once() {
        let monitor = Monitor::new();
        monitor.note("one");
        monitor.warn("two");
        assert_eq!(monitor.take_notes().len(), 2);
        assert!(monitor.take_notes().is_empty());
    }
}
