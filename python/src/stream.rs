//! The stream of a pipeline's elements.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use prep_loader::{Pipeline, PipelineMetrics};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::boundary::{OfProcess, TICK, guarded, outside, wait};
use crate::error::Kind;
use crate::loader::{set_seconds, set_store};
use crate::values::{Shared, object, sweep};

/// Elements in order. The lock is held while an element is waited for, without the interpreter lock.
#[pyclass(frozen, module = "prep._core")]
#[derive(Debug)]
pub(crate) struct Stream {
    /// None once it was closed, or dropped.
    pipeline: OfProcess<Mutex<Option<Pipeline>>>,
    /// The thread that has the lock: it may be in a function of Python's, or in a signal handler.
    holder: AtomicUsize,
    /// Says when the threads have ended that are being stopped.
    closing: Mutex<Option<Arc<Ending>>>,
}

/// Disconnected once the threads have ended.
type Ending = Mutex<Receiver<()>>;

/// Stops a pipeline's threads, on another.
fn ending(pipeline: Pipeline) -> PyResult<Ending> {
    let (sender, receiver) = channel();
    let started = thread::Builder::new().name("prep-close".into()).spawn(move || {
        drop(pipeline);
        drop(sender);
    });
    started.map_err(|error| Kind::Storage.error(format!("could not start a thread: {error}")))?;
    Ok(Mutex::new(receiver))
}

/// A number that no other thread has meanwhile; none is 0.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

fn ended(done: &Ending, limit: Duration) -> bool {
    let done = done.lock().unwrap_or_else(PoisonError::into_inner);
    done.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
}

impl Stream {
    pub(crate) fn new(pipeline: Pipeline) -> Self {
        Self {
            pipeline: OfProcess::new(Mutex::new(Some(pipeline))),
            holder: AtomicUsize::new(0),
            closing: Mutex::new(None),
        }
    }

    fn own(&self) -> PyResult<&Mutex<Option<Pipeline>>> {
        let own = self.pipeline.get();
        own.ok_or_else(|| Kind::Internal.error("a stream of another process was used"))
    }

    /// That this thread does not have the lock already.
    fn check_free(&self) -> PyResult<()> {
        match self.holder.load(Ordering::Relaxed) == this_thread() {
            true => Err(Kind::State.error(
                "the stream is in the middle of an element in this thread: functions of its pipeline cannot use it, and signal handlers had \
                 better note what is wanted, to be done between two elements",
            )),
            false => Ok(()),
        }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Option<Pipeline>> {
        self.check_free()?;
        match self.pipeline.get() {
            Some(own) => outside(py, || {
                Ok::<_, PyErr>(own.lock().unwrap_or_else(PoisonError::into_inner).take())
            }),
            None => Ok(None),
        }
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Pipeline) -> prep_loader::Result<T> + Send,
    ) -> PyResult<T> {
        /// Lets go also where a panic passes.
        struct Hold<'a>(&'a AtomicUsize);
        impl Drop for Hold<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Relaxed);
            }
        }
        let own = self.own()?;
        self.check_free()?;
        let done = outside(py, || {
            let mut pipeline = own.lock().unwrap_or_else(PoisonError::into_inner);
            self.holder.store(this_thread(), Ordering::Relaxed);
            let _hold = Hold(&self.holder);
            pipeline.as_mut().map(work).transpose()
        })?;
        done.ok_or_else(|| Kind::Closed.error("the stream is closed"))
    }
}

#[pymethods]
impl Stream {
    /// The next element in a tuple; `None` at the end.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        guarded(|| {
            loop {
                let next = self.with(py, |pipeline| match pipeline.wait(TICK)? {
                    true => pipeline.next_element().map(Some),
                    false => Ok(None),
                })?;
                sweep(py);
                match next {
                    Some(Some(element)) => return Ok(Some((object(py, element, Shared::Copied)?,))),
                    Some(None) => return Ok(None),
                    None => py.check_signals()?,
                }
            }
        })
    }

    /// Where the consumer stands, as JSON. Also in the child of a fork.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        guarded(|| {
            if self.pipeline.get().is_some() {
                return self.with(py, |pipeline| Ok(pipeline.state().to_json()));
            }
            // The fork's copy: only the consumer changes what a state is made of, and it holds the lock meanwhile.
            match self.pipeline.inherited().try_lock() {
                Ok(pipeline) => match &*pipeline {
                    Some(pipeline) => Ok(pipeline.state().to_json()),
                    None => Err(Kind::Closed.error("the stream is closed")),
                },
                Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => Err(Kind::State.error(
                    "the program forked while another thread was in the middle of an element: save the state before, and restore it in the child",
                )),
            }
        })
    }

    /// Goes past some elements, or batches.
    fn skip(&self, py: Python<'_>, steps: u64) -> PyResult<()> {
        guarded(|| self.with(py, |pipeline| pipeline.skip_steps(steps)))
    }

    /// Steps that are still to come, where that is known.
    fn remaining(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        guarded(|| self.with(py, |pipeline| Ok(pipeline.remaining_steps())))
    }

    /// What was done so far, and where the time went, stage by stage.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let metrics = self.with(py, |pipeline| Ok(pipeline.metrics()))?;
            metrics_dict(py, &metrics)
        })
    }

    /// Where the records lie that were left out before the last element.
    fn damaged(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        guarded(|| {
            self.with(py, |pipeline| {
                Ok(pipeline.damaged().iter().map(ToString::to_string).collect())
            })
        })
    }

    /// How many outputs each virtual stream has, where that was counted.
    fn counts(&self, py: Python<'_>) -> PyResult<Option<Vec<u64>>> {
        guarded(|| self.with(py, |pipeline| Ok(pipeline.counts().map(<[u64]>::to_vec))))
    }

    #[getter]
    fn num_threads(&self, py: Python<'_>) -> PyResult<usize> {
        guarded(|| self.with(py, |pipeline| Ok(pipeline.num_threads())))
    }

    /// Starts the threads.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        guarded(|| self.with(py, |pipeline| pipeline.wait(Duration::ZERO).map(drop)))
    }

    /// Stops the threads. Those that are in a function of Python's are waited for, without the interpreter lock.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        guarded(|| {
            let Some(pipeline) = self.take(py)? else {
                return Ok(());
            };
            let done = ending(pipeline)?;
            wait(py, |tick| Ok::<_, PyErr>(ended(&done, tick).then_some(())))?;
            sweep(py);
            Ok(())
        })
    }

    /// The same, but waits for a number of seconds only; tells whether they have ended.
    fn close_within(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        guarded(|| {
            let closing = || self.closing.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(pipeline) = self.take(py)? {
                let done = Arc::new(ending(pipeline)?);
                *closing() = Some(done);
            }
            let limit = Duration::try_from_secs_f64(seconds).unwrap_or(TICK);
            let done = closing().clone();
            match done {
                Some(done) => outside(py, || Ok::<_, PyErr>(ended(&done, limit))),
                None => Ok(true),
            }
        })
    }
}

fn metrics_dict<'py>(py: Python<'py>, metrics: &PipelineMetrics) -> PyResult<Bound<'py, PyDict>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let dict = PyDict::new(py);
    dict.set_item("threads", metrics.threads)?;
    dict.set_item("prefetch", metrics.prefetch)?;
    dict.set_item("steps", metrics.steps)?;
    dict.set_item("bytes", metrics.bytes)?;
    dict.set_item("skipped", metrics.damaged)?;
    set_seconds(
        &dict,
        [
            ("elapsed_seconds", metrics.elapsed),
            ("room_wait_seconds", metrics.room_wait),
            ("consumer_wait_seconds", metrics.consumer_wait),
        ],
    )?;
    dict.set_item("ready_steps", metrics.ready_steps)?;
    dict.set_item("merging", metrics.merging)?;
    set_store(&dict, metrics.cache, metrics.retries)?;
    let stages = PyList::empty(py);
    for stage in &metrics.stages {
        let row = PyDict::new(py);
        row.set_item("stage", &stage.name)?;
        set_seconds(
            &row,
            [
                ("busy_seconds", stage.busy),
                ("wait_seconds", stage.wait),
                ("read_seconds", stage.read),
            ],
        )?;
        row.set_item("elements", stage.elements)?;
        row.set_item("bytes", stage.bytes)?;
        row.set_item("cache_hits", stage.cache_hits)?;
        row.set_item("cache_misses", stage.cache_misses)?;
        stages.append(row)?;
    }
    dict.set_item("stages", stages)?;
    dict.set_item("limit", metrics.limit().map_or("consumer", |stage| &stage.name))?;
    dict.set_item("advice", metrics.advice(cores))?;
    Ok(dict)
}

impl Drop for Stream {
    /// Its threads may wait for the interpreter lock, which who drops this holds.
    fn drop(&mut self) {
        let Some(own) = self.pipeline.get() else {
            return;
        };
        let pipeline = own.lock().unwrap_or_else(PoisonError::into_inner).take();
        Python::try_attach(|py| {
            py.detach(move || drop(pipeline));
            sweep(py);
        });
    }
}
