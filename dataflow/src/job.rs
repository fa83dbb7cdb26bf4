//! The state that the threads of one job share: its first error, its threads, and whether it should go on.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::Error;
use crate::counter::Sums;
use crate::progress::{Progress, ThreadClock, on_worker, worker};
use crate::trace::{self, Trace};

/// Ends a job from another thread, for instance when the user presses Ctrl-C. Clones end the same job.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A handle that isn't cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the job to end; `run` returns [`Error::Cancelled`] within a fraction of a second, unless a closure is blocked.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called. A closure that blocks for long should look.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Tells a closure that blocks for long (a download, a wait) that its job has ended, for whatever reason, so that it can give up. Get
/// it from [`Pipeline::stop_signal`](crate::Pipeline::stop_signal).
#[derive(Debug, Clone)]
pub struct StopSignal(pub(crate) Arc<Job>);

impl StopSignal {
    /// Whether the job has failed or was cancelled.
    pub fn is_stopped(&self) -> bool {
        self.0.stopped()
    }
}

/// Shared by all threads of a job.
#[derive(Debug)]
pub(crate) struct Job {
    error: Mutex<Option<Error>>,
    stopped: AtomicBool,
    cancel: Cancel,
    started: Instant,
    moved_ms: AtomicU64,
    /// The same for what moved in other processes.
    moved_elsewhere_ms: AtomicU64,
    workers: Mutex<Vec<Thread>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Who watches the job.
    watch: OnceLock<(Progress, Option<Trace>)>,
    /// One for each source of the graph.
    turns: Mutex<Vec<Turns>>,
    /// What the job counts beside its data.
    pub(crate) sums: Sums,
    on_fail: Mutex<Option<OnFail>>,
}

/// What is told of the job's first error.
struct OnFail(Arc<dyn Fn(&Error) + Send + Sync>);

impl std::fmt::Debug for OnFail {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("OnFail")
    }
}

/// Whose turn it is among the tasks of a source: the threads of a process share it, so that each task has one of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<AtomicUsize>);

impl Turns {
    /// The next task, from 0; more than there are, in the end.
    pub(crate) fn next(&self) -> usize {
        self.0.fetch_add(1, Relaxed)
    }
}

thread_local! {
    /// The stage that runs on this thread, for the message of a panic.
    static STAGE: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    /// What it works on.
    static INPUT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Says what the calling closure works on from now on (a file, a record), so that the job's error names it should the closure
/// panic: [`Error::Panic`]'s `input`. Without it, that is the number of the task in a source, and nothing in other stages.
///
/// Costs a copy of the text. It is forgotten when another stage runs on the thread.
pub fn working_on(input: &str) {
    INPUT.with_borrow_mut(|current| {
        current.clear();
        current.push_str(input);
    });
}

/// Says which stage runs on this thread from now on.
pub(crate) fn enter(stage: &Arc<str>) {
    STAGE.with_borrow_mut(|current| {
        if !current
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, stage))
        {
            *current = Some(stage.clone());
            working_on("");
        }
    });
}

impl Job {
    pub(crate) fn new(cancel: Cancel) -> Arc<Self> {
        Arc::new(Self {
            error: Mutex::default(),
            stopped: AtomicBool::new(false),
            cancel,
            started: Instant::now(),
            moved_ms: AtomicU64::new(0),
            moved_elsewhere_ms: AtomicU64::new(0),
            on_fail: Mutex::default(),
            workers: Mutex::default(),
            threads: Mutex::default(),
            turns: Mutex::default(),
            watch: OnceLock::new(),
            sums: Sums::default(),
        })
    }

    /// Ends the job. The first error is the one that counts: later ones are its consequences.
    pub(crate) fn fail(&self, error: Error) {
        {
            let mut first = lock(&self.error);
            if first.is_none() {
                self.stopped.store(true, Relaxed);
                let on_fail = lock(&self.on_fail).as_ref().map(|on_fail| on_fail.0.clone());
                if let Some(tell) = on_fail {
                    tell(&error);
                }
                *first = Some(error);
            }
        }
        for worker in lock(&self.workers).iter() {
            worker.unpark();
        }
    }

    /// Has `tell` called with the job's first error; at once, if there is one.
    pub(crate) fn on_fail(&self, tell: impl Fn(&Error) + Send + Sync + 'static) {
        let tell = Arc::new(tell);
        *lock(&self.on_fail) = Some(OnFail(tell.clone()));
        if let Some(error) = &*lock(&self.error) {
            tell(error);
        }
    }

    /// Nobody is to be told any more.
    pub(crate) fn forget_on_fail(&self) {
        lock(&self.on_fail).take();
    }

    /// Whether the job has failed already.
    pub(crate) fn stopped_quietly(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Whether threads should give up; also turns a cancellation into the job's error.
    pub(crate) fn stopped(&self) -> bool {
        if self.cancel.is_cancelled() && !self.stopped.load(Relaxed) {
            self.fail(Error::Cancelled);
        }
        self.stopped.load(Relaxed)
    }

    /// Says who watches the job; before it starts.
    pub(crate) fn watch(&self, progress: Progress, trace: Option<Trace>) {
        let _ = self.watch.set((progress, trace));
    }

    /// Notes that something moved.
    pub(crate) fn tick(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.moved_ms.store(now, Relaxed);
        ThreadClock::tick(now);
    }

    /// Notes that something moved in another process.
    pub(crate) fn tick_elsewhere(&self) {
        self.moved_elsewhere_ms
            .store(self.started.elapsed().as_millis() as u64, Relaxed);
    }

    /// When something last moved in this process, in milliseconds after the start.
    pub(crate) fn moved(&self) -> u64 {
        self.moved_ms.load(Relaxed)
    }

    pub(crate) fn fail_if_stalled(&self, after: Duration) {
        let moved = self.moved().max(self.moved_elsewhere_ms.load(Relaxed));
        let moved = Duration::from_millis(moved);
        if self.started.elapsed().saturating_sub(moved) > after {
            self.fail(Error::Stalled(after));
        }
    }

    /// The turns of the graph's source `index`, for all workers of the process.
    pub(crate) fn turns(&self, index: usize) -> Turns {
        let mut turns = lock(&self.turns);
        if turns.len() <= index {
            turns.resize_with(index + 1, Turns::default);
        }
        turns[index].clone()
    }

    pub(crate) fn register_worker(&self) {
        lock(&self.workers).push(std::thread::current());
    }

    /// Runs `body`; an error or a panic ends the job.
    pub(crate) fn guard(&self, stage: &str, body: impl FnOnce() -> Result<(), Error>) {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(error),
            Err(panic) => {
                let stage = STAGE
                    .with_borrow_mut(Option::take)
                    .map_or(stage.to_owned(), |stage| stage.to_string());
                let input = INPUT.take();
                self.fail(Error::Panic {
                    stage,
                    input: (!input.is_empty()).then_some(input),
                    message: message(&*panic),
                });
            }
        }
    }

    /// Starts a thread that belongs to the job: [`join`](Self::join) waits for it.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        stage: &Arc<str>,
        body: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) {
        let (job, stage_name, worker) = (self.clone(), stage.clone(), worker());
        // The system cuts names of threads at 15 bytes.
        let started = std::thread::Builder::new()
            .name(format!("prep {stage}"))
            .spawn(move || {
                enter(&stage_name);
                on_worker(worker);
                let mut clock = None;
                let mut span = trace::Span::default();
                if let Some((progress, trace)) = job.watch.get() {
                    clock = Some(ThreadClock::start(progress.counters(&stage_name)));
                    if let Some(trace) = trace {
                        trace.enter();
                        span = trace.span("thread", stage_name.to_string());
                    }
                }
                job.guard(&stage_name, body);
                drop((span, clock));
            });
        match started {
            Ok(handle) => lock(&self.threads).push(handle),
            Err(error) => self.fail(Error::Start(format!("a thread for stage `{stage}`: {error}"))),
        }
    }

    /// Waits for the job's threads, once the workers are gone and with them the ends of the queues.
    pub(crate) fn join(&self) {
        loop {
            let handles = std::mem::take(&mut *lock(&self.threads));
            if handles.is_empty() {
                return;
            }
            for handle in handles {
                // A panic was already caught and noted by `guard`.
                let _ = handle.join();
            }
        }
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        lock(&self.error).take()
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic")
        .to_owned()
}

/// A lock whose data stay usable after a panic: what they guard here is replaced whole, never half.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
