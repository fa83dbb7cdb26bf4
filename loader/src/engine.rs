//! Threads that work ahead of a consumer, which gets the results in order.
//!
//! ```text
//! cursor -> claim a task -> run it -> slot of the task -> consumer, in order
//! (one lock)                (no lock)  (bounded by items and bytes)
//! ```
//!
//! Threads start when they are asked for and end when the engine is dropped, the work is over, or a task failed. A child of a fork has none
//! of them: [`Engine::is_ours`] tells, and its owner starts another.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// What threads do, in which order.
pub(crate) trait Work: Send + Sync + 'static {
    /// Where the next claim begins; under the engine's lock.
    type Cursor: Send + 'static;
    /// One piece of work.
    type Task: Send;
    /// What the consumer gets.
    type Item: Send + 'static;
    /// What a task gives that is not for the consumer.
    type Side: Send;
    /// What a thread keeps from task to task.
    type Local: Default + Send + 'static;

    /// The next task. `room`: whether one more item may be made ahead.
    fn claim(&self, cursor: &mut Self::Cursor, room: bool) -> Claim<Self::Task>;

    /// Does it. `None`: `stop` was set.
    fn run(&self, task: Self::Task, local: &mut Self::Local, stop: &Arc<AtomicBool>) -> Option<Done<Self>>;

    /// Takes what a task on the side gave.
    fn absorb(&self, cursor: &mut Self::Cursor, side: Self::Side);

    /// A thread has waited so long for something to do.
    fn waited(&self, _: Duration) {}

    /// What the panic of a task is told as.
    fn panicked(&self, message: String) -> Error {
        Error::User(format!("a loading thread panicked: {message}").into())
    }

    /// Memory of an item, in bytes.
    fn bytes(&self, item: &Self::Item) -> u64;
}

/// What there is to do.
pub(crate) enum Claim<T> {
    /// Makes the consumer's next item.
    Item(T),
    /// Makes something that later tasks need.
    Side(T),
    /// Nothing until something else is done.
    Wait,
    /// Nothing more.
    End,
}

/// What a task gave.
pub(crate) enum Done<W: Work + ?Sized> {
    /// To a claim of an item.
    Item(Result<W::Item>),
    /// To a claim on the side.
    Side(W::Side),
}

/// How far ahead threads work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Items made ahead.
    pub(crate) prefetch: usize,
    /// Bytes of them; one is always made.
    pub(crate) prefetch_bytes: u64,
}

/// Threads at work.
pub(crate) struct Engine<W: Work> {
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
    process: u32,
    /// For work in the consumer's thread.
    local: W::Local,
}

/// What the threads and the consumer share.
pub(crate) struct Shared<W: Work> {
    work: W,
    queue: Mutex<Queue<W>>,
    /// For threads: there may be something to claim, or the end.
    claims: Condvar,
    /// For the consumer: an item may be ready, or the end.
    ready: Condvar,
    stop: Arc<AtomicBool>,
}

struct Queue<W: Work> {
    cursor: W::Cursor,
    /// One slot an item that was claimed and not delivered, in order.
    slots: VecDeque<Option<Result<W::Item>>>,
    /// Items delivered: the number of the first slot.
    delivered: u64,
    /// Nothing more is claimed: the work is over, or a task failed.
    closed: bool,
    /// Bytes of items in slots.
    bytes: u64,
    /// Bytes of the item that was made last.
    last_bytes: u64,
    limits: Limits,
}

impl<W: Work> Engine<W> {
    /// An engine without threads: the consumer does the work when it asks.
    pub(crate) fn new(work: W, cursor: W::Cursor, limits: Limits) -> Self {
        Self {
            shared: Arc::new(Shared {
                work,
                queue: Mutex::new(Queue {
                    cursor,
                    slots: VecDeque::new(),
                    delivered: 0,
                    closed: false,
                    bytes: 0,
                    last_bytes: 0,
                    limits,
                }),
                claims: Condvar::new(),
                ready: Condvar::new(),
                stop: Arc::default(),
            }),
            threads: Vec::new(),
            process: std::process::id(),
            local: W::Local::default(),
        }
    }

    /// Whether this process made it. A child of a fork leaves it alone.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Number of threads.
    pub(crate) fn num_threads(&self) -> usize {
        self.threads.len()
    }

    /// Starts one more thread.
    pub(crate) fn start_thread(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name(format!("prep-load-{}", self.threads.len()))
            .spawn(move || {
                let mut local = W::Local::default();
                while shared.work_once(&mut local, true) {}
            })
            .map_err(Error::Thread)?;
        self.threads.push(thread);
        Ok(())
    }

    /// The next item, after its turn. `None`: the work is over.
    pub(crate) fn take(&mut self) -> Result<Option<W::Item>> {
        if self.threads.is_empty() {
            while !is_ready(&self.shared.lock()) {
                self.shared.work_once(&mut self.local, false);
            }
        }
        self.shared.take()
    }

    /// Waits until an item or the end is there, at most for `timeout`; tells whether it is. Without threads it is at once.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        self.threads.is_empty() || self.shared.wait(timeout)
    }

    /// Items that the consumer may take without waiting.
    pub(crate) fn num_ready(&self) -> u64 {
        let queue = self.shared.lock();
        queue.slots.iter().take_while(|slot| slot.is_some()).count() as u64
    }

    /// Whether [`take`](Self::take) would not block.
    pub(crate) fn is_ready(&self) -> bool {
        is_ready(&self.shared.lock())
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared<W>> {
        &self.shared
    }

    /// Items made or being made ahead of the consumer.
    #[cfg(test)]
    pub(crate) fn made_ahead(&self) -> usize {
        self.shared.lock().slots.len()
    }
}

impl<W: Work> Drop for Engine<W> {
    fn drop(&mut self) {
        if !self.is_ours() {
            // A child of a fork: there are no threads to stop, and one of the parent's may hold a lock for ever. Nor are items dropped, whose
            // pool may have a lock too.
            std::mem::forget(Arc::clone(&self.shared));
            std::mem::forget(std::mem::take(&mut self.local));
            return;
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        // With the lock held, so that no thread is between its look at the flag and its sleep.
        drop(self.shared.lock());
        self.shared.claims.notify_all();
        for thread in self.threads.drain(..) {
            // A panic outside a task has nothing to be delivered to; tasks catch their own.
            let _ = thread.join();
        }
    }
}

impl<W: Work> Shared<W> {
    fn lock(&self) -> MutexGuard<'_, Queue<W>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a task and does it. `false`: there is nothing more to do, or nothing now and `may_sleep` is not set.
    fn work_once(&self, local: &mut W::Local, may_sleep: bool) -> bool {
        let Some((slot, task)) = self.claim(may_sleep) else {
            return false;
        };
        let done = catch_unwind(AssertUnwindSafe(|| self.work.run(task, local, &self.stop)));
        let done = match done {
            Ok(done) => done,
            Err(panic) => {
                // What the thread kept may be in the middle of something.
                *local = W::Local::default();
                Some(Done::Item(Err(self.work.panicked(panic_message(&*panic)))))
            }
        };
        match (done, slot) {
            // Stopped.
            (None, _) => return false,
            (Some(Done::Item(item)), Some(number)) => self.put(number, item),
            (Some(Done::Side(side)), _) => {
                let mut queue = self.lock();
                self.work.absorb(&mut queue.cursor, side);
                drop(queue);
                self.claims.notify_all();
            }
            // A task on the side that panicked: told in the place of the next item.
            (Some(Done::Item(item)), None) => {
                let mut queue = self.lock();
                queue.closed = true;
                queue.slots.push_back(Some(item));
                drop(queue);
                self.ready.notify_all();
                self.claims.notify_all();
            }
        }
        true
    }

    /// The next task, and the number of its slot where it has one.
    fn claim(&self, may_sleep: bool) -> Option<(Option<u64>, W::Task)> {
        let mut queue = self.lock();
        loop {
            if queue.closed || self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let room = queue.has_room();
            match self.work.claim(&mut queue.cursor, room) {
                Claim::Item(task) => {
                    let number = queue.delivered + queue.slots.len() as u64;
                    queue.slots.push_back(None);
                    return Some((Some(number), task));
                }
                Claim::Side(task) => return Some((None, task)),
                Claim::End => {
                    queue.closed = true;
                    drop(queue);
                    self.ready.notify_all();
                    self.claims.notify_all();
                    return None;
                }
                Claim::Wait if !may_sleep => return None,
                Claim::Wait => {
                    let began = Instant::now();
                    queue = self.claims.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    self.work.waited(began.elapsed());
                }
            }
        }
    }

    fn put(&self, number: u64, item: Result<W::Item>) {
        let mut queue = self.lock();
        match &item {
            Ok(item) => {
                let bytes = self.work.bytes(item);
                queue.bytes += bytes;
                queue.last_bytes = bytes;
            }
            // Nothing after it is delivered.
            Err(_) => queue.closed = true,
        }
        let failed = queue.closed;
        let slot = (number - queue.delivered) as usize;
        queue.slots[slot] = Some(item);
        drop(queue);
        self.ready.notify_all();
        if failed {
            self.claims.notify_all();
        }
    }

    fn take(&self) -> Result<Option<W::Item>> {
        let mut queue = self.lock();
        while !is_ready(&queue) {
            queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(Some(item)) = queue.slots.pop_front() else {
            return Ok(None);
        };
        queue.delivered += 1;
        if let Ok(item) = &item {
            queue.bytes -= self.work.bytes(item);
        }
        drop(queue);
        self.claims.notify_all();
        item.map(Some)
    }

    fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut queue = self.lock();
        while !is_ready(&queue) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.ready.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Whether the consumer has something to take, be it the end.
fn is_ready<W: Work>(queue: &Queue<W>) -> bool {
    match queue.slots.front() {
        Some(slot) => slot.is_some(),
        None => queue.closed,
    }
}

impl<W: Work> Queue<W> {
    /// Whether one more item may be made ahead. Those being made count as the last one did.
    fn has_room(&self) -> bool {
        let making = self.slots.iter().filter(|slot| slot.is_none()).count() as u64;
        let bytes = self.bytes + making * self.last_bytes;
        self.slots.is_empty()
            || (self.slots.len() < self.limits.prefetch && bytes < self.limits.prefetch_bytes)
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it has no message".to_string())
}
