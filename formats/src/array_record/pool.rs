//! Threads that work on tasks, and give them back in the order in which they were handed in.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What a thread does to a task; made once for each thread.
pub(super) type Work<T> = Box<dyn FnMut(&mut T) -> Result<(), String> + Send>;

/// Why a task was not taken.
#[derive(Debug, PartialEq)]
pub(super) enum Refused<T> {
    /// No thread could be started; there are no tasks besides this one.
    NoThread(T),
    /// This is a child of the process that has the threads, and the tasks they were working on.
    Forked,
}

/// A number of threads that work on tasks of type `T`; results come in the order of the tasks.
///
/// A thread starts when there is a task and no idle thread, so little work starts few threads. Holds at most as many tasks as
/// [`is_full`](Self::is_full) allows. Dropped, it forgets the tasks that wait, and ends once those being worked on are done.
pub(super) struct Pool<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
    max_threads: usize,
    max_tasks: usize,
    make_work: Box<dyn Fn() -> Result<Work<T>, String> + Send + Sync>,
    /// Number of the next task handed in, and of the next given back.
    next_in: u64,
    next_out: u64,
    /// The process that has the threads: they do not survive a fork.
    process: u32,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// There is a task, or the end.
    wanted: Condvar,
    /// A task is done.
    done: Condvar,
}

struct State<T> {
    waiting: VecDeque<(u64, T)>,
    done: BTreeMap<u64, Result<T, String>>,
    idle: usize,
    closed: bool,
}

impl<T> Shared<T> {
    /// No code panics while it holds the lock, so a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("max_threads", &self.max_threads)
            .field("threads", &self.threads.len())
            .field("tasks", &self.num_tasks())
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Pool<T> {
    /// A pool of up to `max_threads` threads, and as many tasks that wait. Starts nothing yet.
    pub(super) fn new(
        max_threads: usize,
        make_work: impl Fn() -> Result<Work<T>, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    waiting: VecDeque::new(),
                    done: BTreeMap::new(),
                    idle: 0,
                    closed: false,
                }),
                wanted: Condvar::new(),
                done: Condvar::new(),
            }),
            threads: Vec::new(),
            max_threads,
            max_tasks: 2 * max_threads,
            make_work: Box::new(make_work),
            next_in: 0,
            next_out: 0,
            process: std::process::id(),
        }
    }

    /// Whether results have to be taken before another task is handed in.
    pub(super) fn is_full(&self) -> bool {
        self.num_tasks() >= self.max_tasks
    }

    /// Hands a task in.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the task where no thread could be started at all, and where the threads were lost by a fork.
    pub(super) fn submit(&mut self, task: T) -> Result<(), Refused<T>> {
        if self.process != std::process::id() {
            return Err(Refused::Forked);
        }
        let mut state = self.shared.lock();
        state.waiting.push_back((self.next_in, task));
        self.next_in += 1;
        let is_short = state.idle < state.waiting.len();
        drop(state);
        self.shared.wanted.notify_one();
        if is_short && self.threads.len() < self.max_threads {
            let started = (self.make_work)().and_then(|work| self.start(work));
            // With fewer threads than wanted it takes longer, no more.
            if started.is_err()
                && self.threads.is_empty()
                && let Some((_, task)) = self.shared.lock().waiting.pop_back()
            {
                self.next_in -= 1;
                return Err(Refused::NoThread(task));
            }
        }
        Ok(())
    }

    fn start(&mut self, work: Work<T>) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("prep-encode".into())
            .spawn(move || run(&shared, work))
            .map_err(|error| format!("no thread could be started: {error}"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// The oldest task, if it is done.
    pub(super) fn try_take(&mut self) -> Option<Result<T, String>> {
        let result = self.shared.lock().done.remove(&self.next_out)?;
        self.next_out += 1;
        Some(result)
    }

    /// Waits for the oldest task; `None` if there is none.
    pub(super) fn take(&mut self) -> Option<Result<T, String>> {
        if self.num_tasks() == 0 {
            return None;
        }
        if self.process != std::process::id() {
            return Some(Err(
                "the process was forked while chunks were being encoded".into()
            ));
        }
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = state.done.remove(&self.next_out) {
                self.next_out += 1;
                return Some(result);
            }
            state = self
                .shared
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Pool<T> {
    /// Tasks handed in and not given back.
    pub(super) fn num_tasks(&self) -> usize {
        (self.next_in - self.next_out) as usize
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The threads are the parent's, and so is the lock, which one of them may have held.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        let mut state = self.shared.lock();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.shared.wanted.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was caught and handed on where it was.
            let _ = thread.join();
        }
    }
}

fn run<T>(shared: &Shared<T>, mut work: Work<T>) {
    let mut state = shared.lock();
    loop {
        if state.closed {
            return;
        }
        let Some((number, mut task)) = state.waiting.pop_front() else {
            state.idle += 1;
            state = shared.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            continue;
        };
        drop(state);
        let result = match catch_unwind(AssertUnwindSafe(|| work(&mut task))) {
            Ok(Ok(())) => Ok(task),
            Ok(Err(reason)) => Err(reason),
            Err(panic) => Err(format!("a thread panicked: {}", text_of(&*panic))),
        };
        state = shared.lock();
        state.done.insert(number, result);
        shared.done.notify_one();
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Doubles even numbers, fails for 13 and panics for 15; counts the workers that are alive.
    fn doubling(max_threads: usize, alive: &Arc<AtomicUsize>) -> Pool<u64> {
        struct Alive(Arc<AtomicUsize>);
        impl Drop for Alive {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let alive = Arc::clone(alive);
        Pool::new(max_threads, move || {
            alive.fetch_add(1, Ordering::SeqCst);
            let guard = Alive(Arc::clone(&alive));
            Ok(Box::new(move |task: &mut u64| {
                let _ = &guard;
                match *task {
                    13 => return Err("an unlucky number".into()),
                    15 => panic!("an odd number"),
                    _ => {}
                }
                // Uneven work, so that later tasks are often done first.
                for _ in 0..(*task * 7919) % 50 {
                    std::thread::yield_now();
                }
                *task *= 2;
                Ok(())
            }))
        })
    }

    #[test]
    fn results_come_in_order_with_any_number_of_threads() {
        for max_threads in 1..=8 {
            let alive = Arc::default();
            let mut pool = doubling(max_threads, &alive);
            let mut results = Vec::new();
            for task in (0..1000).step_by(2) {
                while pool.is_full() {
                    results.push(pool.take().unwrap().unwrap());
                }
                pool.submit(task).unwrap();
                assert!(pool.num_tasks() <= 2 * max_threads);
                assert!(alive.load(Ordering::SeqCst) <= max_threads);
                results.extend(pool.try_take().map(Result::unwrap));
            }
            results.extend(std::iter::from_fn(|| pool.take()).map(Result::unwrap));
            assert_eq!(results, (0..1000).step_by(2).map(|n| 2 * n).collect::<Vec<_>>());
            drop(pool);
            assert_eq!(alive.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn errors_and_panics_come_in_their_place() {
        let alive = Arc::default();
        let mut pool = doubling(2, &alive);
        for task in [2, 13, 15, 4] {
            pool.submit(task).unwrap();
        }
        assert_eq!(pool.take(), Some(Ok(4)));
        assert_eq!(pool.take(), Some(Err("an unlucky number".into())));
        assert_eq!(pool.take(), Some(Err("a thread panicked: an odd number".into())));
        assert_eq!(pool.take(), Some(Ok(8)));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn a_dropped_pool_forgets_what_waits_and_ends_its_threads() {
        let alive = Arc::default();
        let mut pool = doubling(3, &alive);
        for task in 0..6 {
            pool.submit(2 * task).unwrap();
        }
        drop(pool);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_pool_that_can_start_no_thread_gives_the_task_back() {
        let mut pool: Pool<u64> = Pool::new(2, || Err("no memory".into()));
        for task in [1, 2] {
            assert_eq!(pool.submit(task), Err(Refused::NoThread(task)));
            assert_eq!(pool.num_tasks(), 0);
            assert_eq!(pool.take(), None);
        }
    }

    #[test]
    fn a_child_process_is_told_that_the_threads_stayed_behind() {
        let alive = Arc::default();
        let mut pool = doubling(2, &alive);
        pool.submit(2).unwrap();
        let process = std::mem::replace(&mut pool.process, 0);
        assert_eq!(pool.submit(4), Err(Refused::Forked));
        assert!(pool.take().unwrap().unwrap_err().contains("forked"));
        pool.process = process;
        assert_eq!(pool.take(), Some(Ok(4)));
    }
}
