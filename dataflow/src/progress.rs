//! Counters that a command line can poll while a job runs, and the account of the memory that it holds.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How often a thread's time is taken while it works.
const CLOCK_EVERY_MS: u64 = 50;

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
    /// How long the stage has worked, over all workers: the time of its operators, and the processor time of the threads
    /// beside them.
    pub busy: Duration,
    /// The same for each worker of this process that takes part in the stage.
    pub workers: Vec<WorkerProgress>,
}

/// What has passed through one stage on one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerProgress {
    /// The worker, from 0 over all processes.
    pub worker: usize,
    /// Items that left the stage there.
    pub records: u64,
    /// Their weight in bytes.
    pub bytes: u64,
    /// How long it has worked on them.
    pub busy: Duration,
}

impl Progress {
    /// A view that isn't of any job yet; give a clone to [`Options::progress`](crate::Options::progress).
    pub fn new() -> Self {
        Self::default()
    }

    /// Every stage in the order in which the job was built.
    pub fn stages(&self) -> Vec<StageProgress> {
        let counters = self.0.stages.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stages: Vec<StageProgress> = Vec::new();
        for counters in counters.iter() {
            let worker = WorkerProgress {
                worker: counters.worker,
                records: counters.records.load(Relaxed),
                bytes: counters.bytes.load(Relaxed),
                busy: Duration::from_nanos(counters.busy_ns.load(Relaxed)),
            };
            let index = stages.iter().position(|stage| stage.name == counters.name);
            let index = index.unwrap_or_else(|| {
                stages.push(StageProgress {
                    name: counters.name.clone(),
                    records: 0,
                    bytes: 0,
                    busy: Duration::ZERO,
                    workers: Vec::new(),
                });
                stages.len() - 1
            });
            let stage = &mut stages[index];
            stage.records += worker.records;
            stage.bytes += worker.bytes;
            stage.busy += worker.busy;
            stage.workers.push(worker);
        }
        for stage in &mut stages {
            stage.workers.sort_unstable_by_key(|worker| worker.worker);
        }
        stages
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

    /// The counters of a stage on the worker of this thread.
    pub(crate) fn counters(&self, name: &str) -> Arc<Counters> {
        if let Some(found) = self.find(name) {
            return found;
        }
        let counters = Arc::new(Counters {
            name: name.to_owned(),
            worker: worker(),
            ..Counters::default()
        });
        let mut stages = self.0.stages.lock().unwrap_or_else(PoisonError::into_inner);
        stages.push(counters.clone());
        counters
    }

    /// The same, where there are some already.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Counters>> {
        let stages = self.0.stages.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = worker();
        let found = stages
            .iter()
            .find(|counters| counters.worker == worker && counters.name == name);
        found.cloned()
    }
}

thread_local! {
    /// The worker for which this thread works.
    static WORKER: Cell<usize> = const { Cell::new(0) };
    static CLOCK: RefCell<Option<ThreadClock>> = const { RefCell::new(None) };
}

/// Says for which worker this thread works from now on.
pub(crate) fn on_worker(worker: usize) {
    WORKER.set(worker);
}

/// The worker for which this thread works.
pub(crate) fn worker() -> usize {
    WORKER.get()
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    name: String,
    worker: usize,
    records: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn add(&self, records: u64, bytes: u64) {
        self.records.fetch_add(records, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn busy(&self, time: Duration) {
        self.busy_ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }
}

/// Adds the processor time of a thread beside an operator to its stage: now and then, and when the thread ends.
#[derive(Debug)]
pub(crate) struct ThreadClock {
    counters: Arc<Counters>,
    counted: Duration,
    looked_ms: u64,
}

/// Stops a thread's clock when dropped.
#[derive(Debug)]
pub(crate) struct ClockGuard;

impl Drop for ClockGuard {
    fn drop(&mut self) {
        if let Some(mut clock) = CLOCK.take() {
            clock.count();
        }
    }
}

impl ThreadClock {
    /// Starts the clock of this thread.
    pub(crate) fn start(counters: Arc<Counters>) -> ClockGuard {
        CLOCK.set(Some(Self {
            counters,
            counted: thread_time(),
            looked_ms: 0,
        }));
        ClockGuard
    }

    /// Looks at the clock, where this thread has one and it was not looked at just now.
    pub(crate) fn tick(now_ms: u64) {
        CLOCK.with_borrow_mut(|clock| {
            if let Some(clock) = clock
                && now_ms >= clock.looked_ms + CLOCK_EVERY_MS
            {
                clock.looked_ms = now_ms;
                clock.count();
            }
        });
    }

    fn count(&mut self) {
        let now = thread_time();
        self.counters.busy(now.saturating_sub(self.counted));
        self.counted = now;
    }
}

/// The processor time that this thread has taken.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
        let stage = progress.stage("b").unwrap();
        assert_eq!((stage.records, stage.bytes, stage.workers.len()), (4, 40, 1));
        assert_eq!(progress.stage("c"), None);
    }

    #[test]
    fn each_worker_is_counted_on_its_own() {
        let progress = Progress::new();
        for worker in [1usize, 0] {
            let progress = progress.clone();
            let count = move || {
                on_worker(worker);
                let counters = progress.counters("read");
                counters.add(1 + worker as u64, 10);
                let clock = ThreadClock::start(counters);
                let mut sum = 0u64;
                while thread_time() < Duration::from_millis(2) {
                    sum = std::hint::black_box(sum + 1);
                }
                drop(clock);
            };
            std::thread::spawn(count).join().unwrap();
        }
        let stage = progress.stage("read").unwrap();
        assert_eq!((stage.records, stage.bytes), (3, 20));
        let records: Vec<(usize, u64)> = stage
            .workers
            .iter()
            .map(|worker| (worker.worker, worker.records))
            .collect();
        assert_eq!(records, [(0, 1), (1, 2)]);
        assert!(stage.busy >= Duration::from_millis(3), "{:?}", stage.busy);
    }
}
