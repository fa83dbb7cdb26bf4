//! Counters that a command line can poll while a job runs, and the account of the memory that it holds.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// A shared view of a running job. Clones see the same job; polling takes a short lock and never waits for a worker.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    stages: Mutex<Vec<Arc<Counters>>>,
    held: Arc<Account>,
}

/// What has passed through one stage so far, over all workers of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageProgress {
    /// The stage's name.
    pub name: String,
    /// Items that left the stage (for a writing stage: records written).
    pub records: u64,
    /// Their weight in bytes.
    pub bytes: u64,
}

impl Progress {
    /// A view that isn't of any job yet; give a clone to [`Options::progress`](crate::Options::progress).
    pub fn new() -> Self {
        Self::default()
    }

    /// Every stage in the order in which the job was built.
    pub fn stages(&self) -> Vec<StageProgress> {
        let stages = self.0.stages.lock().unwrap_or_else(PoisonError::into_inner);
        stages
            .iter()
            .map(|counters| StageProgress {
                name: counters.name.clone(),
                records: counters.records.load(Relaxed),
                bytes: counters.bytes.load(Relaxed),
            })
            .collect()
    }

    /// One stage by its name.
    pub fn stage(&self, name: &str) -> Option<StageProgress> {
        self.stages().into_iter().find(|stage| stage.name == name)
    }

    /// Bytes that the job accounts for right now: queues, records between stages, sort arenas and read buffers.
    pub fn held_bytes(&self) -> u64 {
        self.0.held.now.load(Relaxed).max(0).unsigned_abs()
    }

    /// The most that was ever accounted for at one time.
    pub fn peak_held_bytes(&self) -> u64 {
        self.0.held.peak.load(Relaxed).max(0).unsigned_abs()
    }

    /// Bytes written to spill files, counting each pass.
    pub fn spilled_bytes(&self) -> u64 {
        self.0.held.spilled.load(Relaxed)
    }

    /// Sorted runs put on disk, counting those that a merge made.
    pub fn spilled_runs(&self) -> u64 {
        self.0.held.runs.load(Relaxed)
    }

    pub(crate) fn account(&self) -> Arc<Account> {
        self.0.held.clone()
    }

    /// The counters of a stage; the workers of a process share them.
    pub(crate) fn counters(&self, name: &str) -> Arc<Counters> {
        let mut stages = self.0.stages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = stages.iter().find(|counters| counters.name == name) {
            return found.clone();
        }
        let counters = Arc::new(Counters {
            name: name.to_owned(),
            ..Counters::default()
        });
        stages.push(counters.clone());
        counters
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    name: String,
    records: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn add(&self, records: u64, bytes: u64) {
        self.records.fetch_add(records, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

/// The bytes that a job holds.
#[derive(Debug, Default)]
pub(crate) struct Account {
    now: AtomicI64,
    peak: AtomicI64,
    spilled: AtomicU64,
    runs: AtomicU64,
}

impl Account {
    /// Accounts for `bytes` until the result is dropped.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        let mut held = Held {
            account: Some(self.clone()),
            bytes: 0,
        };
        held.grow(bytes);
        held
    }

    pub(crate) fn spilled(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn run_written(&self) {
        self.runs.fetch_add(1, Relaxed);
    }
}

/// Bytes accounted for while this lives. The default holds nothing.
#[derive(Debug, Default)]
pub(crate) struct Held {
    account: Option<Arc<Account>>,
    bytes: usize,
}

impl Held {
    pub(crate) fn grow(&mut self, bytes: usize) {
        if let Some(account) = &self.account {
            self.bytes += bytes;
            let now = account.now.fetch_add(bytes as i64, Relaxed) + bytes as i64;
            account.peak.fetch_max(now, Relaxed);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.now.fetch_sub(self.bytes as i64, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_given_back_and_the_peak_stays() {
        let progress = Progress::new();
        let mut one = progress.account().hold(10);
        one.grow(5);
        let two = progress.account().hold(7);
        assert_eq!((progress.held_bytes(), progress.peak_held_bytes()), (22, 22));
        drop(one);
        drop(two);
        assert_eq!((progress.held_bytes(), progress.peak_held_bytes()), (0, 22));
    }

    #[test]
    fn stages_keep_their_order_and_share_counters_by_name() {
        let progress = Progress::new();
        progress.counters("b").add(1, 10);
        progress.counters("a").add(2, 20);
        progress.counters("b").add(3, 30);
        let stages = progress.stages();
        assert_eq!(
            stages.iter().map(|stage| stage.name.as_str()).collect::<Vec<_>>(),
            ["b", "a"]
        );
        assert_eq!(
            progress.stage("b"),
            Some(StageProgress {
                name: "b".into(),
                records: 4,
                bytes: 40
            })
        );
        assert_eq!(progress.stage("c"), None);
    }
}
