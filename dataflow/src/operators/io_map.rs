//! Work that waits: requests, reads, other programs, on threads beside the worker.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::{Capability, Operator};
use timely::scheduling::SyncActivator;

use crate::container::Batch;
use crate::counter::Counter;
use crate::job::{Job, lock};
use crate::operators::source::BATCH_ITEMS;
use crate::pipeline::{Collection, Epoch};
use crate::progress::Held;
use crate::record::Weigh;
use crate::{BoxError, Error};

/// How a closure of [`io_map`](Collection::io_map) failed.
#[derive(Debug)]
pub enum Failure {
    /// It may work the next time: a lost connection, a busy server.
    Transient(BoxError),
    /// It won't work any time: a missing file, a wrong answer.
    Permanent(BoxError),
}

impl Failure {
    /// A failure that may pass.
    pub fn transient(error: impl Into<BoxError>) -> Self {
        Self::Transient(error.into())
    }

    /// A failure that stays.
    pub fn permanent(error: impl Into<BoxError>) -> Self {
        Self::Permanent(error.into())
    }
}

/// Options of [`io_map`](Collection::io_map).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IoOptions {
    threads: usize,
    ordered: bool,
    attempts: u32,
    wait: Duration,
    longest_wait: Duration,
}

impl Default for IoOptions {
    fn default() -> Self {
        Self {
            threads: 8,
            ordered: true,
            attempts: 6,
            wait: Duration::from_millis(200),
            longest_wait: Duration::from_secs(10),
        }
    }
}

impl IoOptions {
    /// Threads for each worker, at least one: as many items are worked on at a time. Default 8, which hides the time of a request to a store
    /// where a request takes some tens of milliseconds.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Whether results come in the order of the items. A slow item then holds back those behind it: up to four times as many as
    /// there are threads. Default: yes.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }

    /// How often an item is tried while it fails with [`Failure::Transient`], at least once. Default 6, which with the default waits takes
    /// some six seconds.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// How long to wait before the second attempt; each further wait is twice as long, up to `longest`. Default 0.2 s and 10 s.
    pub fn wait(mut self, first: Duration, longest: Duration) -> Self {
        (self.wait, self.longest_wait) = (first, longest.max(first));
        self
    }
}

/// An error that stayed after several attempts.
#[derive(Debug, thiserror::Error)]
#[error("gave up after {attempts} attempts")]
struct GaveUp {
    attempts: u32,
    #[source]
    source: BoxError,
}

impl<'scope, T: Send + 'static> Collection<'scope, T> {
    /// Turns each item into another with a closure that may block, on threads beside the worker.
    ///
    /// A [`Failure::Transient`] is tried again after a wait (and counted, as `NAME: retries`, in [`Report::counters`](crate::Report::counters)); what
    /// stays, or is [`Failure::Permanent`], ends the job. A closure that blocks for long should look at
    /// [`Pipeline::stop_signal`](crate::Pipeline::stop_signal).
    ///
    /// Nothing moves between workers. Items wait within the sources' windows. An item is only begun while the results that wait for their turn
    /// hold less than an epoch's bytes (a 64th of the worker's budget), or none do. An item costs 2 us for the way to the thread and
    /// back: for work on small items that doesn't wait, [`try_map`](Collection::try_map) is cheaper.
    pub fn io_map<U>(
        self,
        name: &str,
        options: IoOptions,
        each: impl Fn(&T) -> Result<U, Failure> + Send + Sync + 'static,
    ) -> Collection<'scope, U>
    where
        U: Weigh + Send + 'static,
    {
        let graph = self.pipeline.0.clone();
        let (job, account, shares) = (
            graph.job.clone(),
            graph.progress().account(),
            graph.shares.clone(),
        );
        let (stage, counters): (Arc<str>, _) = (name.into(), graph.progress().counters(name));
        let retries = self.pipeline.counter(&format!("{name}: retries"));
        let scope = graph.scope;
        let each = Arc::new(each);
        let stream =
            self.stream
                .unary::<CapacityContainerBuilder<Batch<U>>, _, _, _>(Local, name, move |_, info| {
                    let wake = scope.worker().sync_activator_for(info.address.to_vec());
                    let mut pool: Option<Pool<T>> = None;
                    let (outbox, inbox) = mpsc::channel();
                    let mut waiting: VecDeque<(Origin, std::vec::IntoIter<T>)> = VecDeque::new();
                    // Items that are begun, in order; those of the front that are done leave.
                    let mut ring: VecDeque<Slot<U>> = VecDeque::new();
                    let (mut base, mut working, mut done_bytes) = (0u64, 0, 0);
                    move |input, output| {
                        input.for_each(|capability, batch| {
                            if let Some(capability) = capability.retain_least(0) {
                                let Batch { items, held } = std::mem::take(batch);
                                let origin = Rc::new(RefCell::new(Some((capability, held))));
                                waiting.push_back((origin, items.into_iter()));
                            }
                        });
                        while let Ok((number, result, bytes)) = inbox.try_recv() {
                            let slot: &mut Slot<U> = &mut ring[(number - base) as usize];
                            slot.result = Some((result, account.hold(bytes), bytes));
                            working -= 1;
                            done_bytes += bytes;
                        }
                        if job.stopped() {
                            return;
                        }
                        let mut ready: Vec<Slot<U>> = Vec::new();
                        if options.ordered {
                            while ring.front().is_some_and(|slot| slot.result.is_some()) {
                                ready.extend(ring.pop_front());
                                base += 1;
                            }
                        } else {
                            for slot in &mut ring {
                                if slot.result.is_some() {
                                    ready.push(slot.take());
                                }
                            }
                            while ring.front().is_some_and(|slot| slot.origin.is_none()) {
                                ring.pop_front();
                                base += 1;
                            }
                        }
                        let mut ready = ready.into_iter().peekable();
                        while let Some(first) = ready.next() {
                            let Some(origin) = first.origin else {
                                continue;
                            };
                            let mut batch = Batch {
                                items: Vec::new(),
                                held: account.hold(0),
                            };
                            let mut put = |result: Option<(U, Held, usize)>| {
                                if let Some((item, held, bytes)) = result {
                                    batch.held.grow(bytes);
                                    drop(held);
                                    batch.items.push(item);
                                    counters.add(1, bytes as u64);
                                    done_bytes -= bytes;
                                }
                                batch.items.len() < BATCH_ITEMS
                            };
                            let mut room = put(first.result);
                            while room
                                && let Some(next) = ready.next_if(|next| {
                                    next.origin
                                        .as_ref()
                                        .is_some_and(|other| Rc::ptr_eq(&origin, other))
                                })
                            {
                                room = put(next.result);
                            }
                            if let Some((capability, _)) = &*origin.borrow() {
                                output.session(capability).give_container(&mut batch);
                            }
                            job.tick();
                        }
                        while working < options.threads
                            && ring.len() < 4 * options.threads
                            && (done_bytes < shares.get().epoch_bytes || working == 0)
                        {
                            let Some((origin, items)) = waiting.front_mut() else {
                                break;
                            };
                            let Some(item) = items.next() else {
                                waiting.pop_front();
                                continue;
                            };
                            let number = base + ring.len() as u64;
                            ring.push_back(Slot {
                                origin: Some(origin.clone()),
                                result: None,
                            });
                            working += 1;
                            let pool = pool.get_or_insert_with(|| {
                                let pool = Pool::default();
                                for _ in 0..options.threads {
                                    let thread = Thread {
                                        job: job.clone(),
                                        stage: stage.clone(),
                                        options: options.clone(),
                                        retries: retries.clone(),
                                        queue: pool.0.clone(),
                                        outbox: outbox.clone(),
                                        wake: wake.clone(),
                                    };
                                    let each = each.clone();
                                    job.spawn(&stage, move || thread.work(&*each));
                                }
                                pool
                            });
                            pool.give(number, item);
                        }
                    }
                });
        Collection {
            pipeline: self.pipeline,
            stream,
            flow: self.flow,
        }
    }
}

/// The batch that an item came in: its epoch isn't done, and its bytes are held, until the last of its items has left.
type Origin = Rc<RefCell<Option<(Capability<Epoch>, Held)>>>;

struct Slot<U> {
    /// None: it has left.
    origin: Option<Origin>,
    result: Option<(U, Held, usize)>,
}

impl<U> Slot<U> {
    fn take(&mut self) -> Self {
        Self {
            origin: self.origin.take(),
            result: self.result.take(),
        }
    }
}

struct Queue<T> {
    state: Mutex<(VecDeque<(u64, T)>, bool)>,
    more: Condvar,
}

/// The operator's end of the threads' queue; they end when it is dropped.
struct Pool<T>(Arc<Queue<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Arc::new(Queue {
            state: Mutex::new((VecDeque::new(), false)),
            more: Condvar::new(),
        }))
    }
}

impl<T> Pool<T> {
    fn give(&self, number: u64, item: T) {
        lock(&self.0.state).0.push_back((number, item));
        self.0.more.notify_one();
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        lock(&self.0.state).1 = true;
        self.0.more.notify_all();
    }
}

struct Thread<T, U> {
    job: Arc<Job>,
    stage: Arc<str>,
    options: IoOptions,
    retries: Counter,
    queue: Arc<Queue<T>>,
    outbox: Sender<(u64, U, usize)>,
    wake: SyncActivator,
}

impl<T, U: Weigh> Thread<T, U> {
    fn next(&self) -> Option<(u64, T)> {
        let mut state = lock(&self.queue.state);
        loop {
            if state.1 {
                return None;
            }
            if let Some(item) = state.0.pop_front() {
                return Some(item);
            }
            state = self
                .queue
                .more
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, each: &impl Fn(&T) -> Result<U, Failure>) -> Result<(), Error> {
        while let Some((number, item)) = self.next() {
            let Some(result) = self.attempt(&item, each)? else {
                break;
            };
            let bytes = result.weigh();
            // The operator may have gone; then there is nobody to tell.
            let _ = self.outbox.send((number, result, bytes));
            let _ = self.wake.activate();
        }
        Ok(())
    }

    /// None: the job has ended.
    fn attempt(&self, item: &T, each: &impl Fn(&T) -> Result<U, Failure>) -> Result<Option<U>, Error> {
        let mut wait = self.options.wait;
        for attempt in 1.. {
            match each(item) {
                Ok(result) => return Ok(Some(result)),
                Err(Failure::Permanent(error)) => return Err(Error::stage(&self.stage, error)),
                Err(Failure::Transient(source)) if attempt >= self.options.attempts => {
                    let attempts = attempt;
                    return Err(Error::stage(&self.stage, GaveUp { attempts, source }));
                }
                Err(Failure::Transient(error)) => {
                    tracing::debug!(stage = &*self.stage, attempt, %error, "trying again");
                    self.retries.increment();
                    let until = Instant::now() + wait;
                    while let Some(left) = until.checked_duration_since(Instant::now()) {
                        if self.job.stopped() {
                            return Ok(None);
                        }
                        std::thread::sleep(left.min(Duration::from_millis(20)));
                    }
                    wait = (wait * 2).min(self.options.longest_wait);
                }
            }
        }
        Ok(None)
    }
}
