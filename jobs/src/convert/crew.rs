//! The threads of a conversion: one drives a shard, and those that have no shard help others with theirs.
//!
//! A driver reads blocks of records in order and places them in its shard in order. What lies between, checking, changing and encoding a
//! block, is done by whoever is free: as long as there are as many drivers as workers, by the driver itself, so that a block never leaves
//! its core; with fewer, by helpers too. So one large shard among small ones keeps all workers busy, and never more threads work than
//! there are workers. No output depends on who did what: a block's chunks depend on its records only, and blocks are placed in order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use prep_catalog::fingerprint::SequenceHash;
use prep_formats::array_record::{BlockEncoder, EncodedBlock, RecordBatch, Scratch, WriteOptions};

use crate::convert::read::Block;
use crate::convert::transform::{Scribe, Transform};

/// What is done to each block.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) options: WriteOptions,
    pub(crate) transform: Option<Arc<Transform>>,
    /// Names of the inputs, for messages.
    pub(crate) names: Vec<String>,
    /// Whether the records are hashed for a content fingerprint.
    pub(crate) fingerprint: bool,
}

/// A block that is ready to be placed.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) block: Block,
    pub(crate) encoded: EncodedBlock,
    pub(crate) payload_bytes: u64,
    pub(crate) hash: SequenceHash,
}

/// What a thread needs to work on blocks.
struct Hand {
    work: Arc<Work>,
    encoder: BlockEncoder,
    batch: RecordBatch,
    scratch: Scratch,
    scribe: Option<Scribe>,
}

impl Hand {
    fn new(work: &Arc<Work>) -> Result<Self> {
        Ok(Self {
            encoder: BlockEncoder::new(&work.options)?,
            batch: RecordBatch::default(),
            scratch: Scratch::default(),
            scribe: work.transform.as_ref().map(|transform| transform.scribe()),
            work: Arc::clone(work),
        })
    }

    /// Checks, changes and encodes a block.
    fn finish(&mut self, done: &mut Done) -> Result<()> {
        crate::fault::pass("convert");
        let block = &mut done.block;
        block.complete(&self.work.names[block.input], &mut self.batch, &mut self.scratch)?;
        if let (Some(transform), Some(scribe)) = (&self.work.transform, &mut self.scribe) {
            transform.apply_to_block(scribe, block, &self.work.names[block.input])?;
        }
        done.payload_bytes = block.payload_bytes();
        if self.work.fingerprint {
            done.hash = SequenceHash::of(block.records.iter().map(|range| &block.buffer[range.clone()]));
        }
        self.encoder
            .encode(&block.buffer, &block.records, &mut done.encoded)?;
        Ok(())
    }
}

/// A block's place in the window of its driver.
struct Slot(Mutex<State>);

enum State {
    Waiting(Done),
    /// Somebody works on it.
    Taken,
    Finished(Result<Done>),
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block, if nobody has begun with it.
    fn take_waiting(&self) -> Option<Done> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Waiting(done) => Some(done),
            other => {
                *state = other;
                None
            }
        }
    }

    fn take_finished(&self) -> Option<Result<Done>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Finished(result) => Some(result),
            other => {
                *state = other;
                None
            }
        }
    }
}

/// All threads of one process.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    work: Arc<Work>,
    workers: usize,
    state: Mutex<Duty>,
    /// A block waits, a block is finished, a driver has come or gone, or the end.
    changed: Condvar,
}

#[derive(Default)]
struct Duty {
    waiting: VecDeque<Arc<Slot>>,
    drivers: usize,
    helping: usize,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Duty> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn help(&self) {
        let mut hand: Option<Hand> = None;
        let mut duty = self.lock();
        loop {
            if duty.closed {
                return;
            }
            let may = duty.drivers + duty.helping < self.workers;
            let next = may.then(|| duty.waiting.pop_front()).flatten();
            let Some(slot) = next else {
                duty = self.changed.wait(duty).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(done) = slot.take_waiting() else {
                continue;
            };
            duty.helping += 1;
            drop(duty);
            let result = guarded(&mut hand, &self.work, done);
            *slot.lock() = State::Finished(result);
            duty = self.lock();
            duty.helping -= 1;
            self.changed.notify_all();
        }
    }
}

/// Works on a block; a panic is an error of the block.
fn guarded(hand: &mut Option<Hand>, work: &Arc<Work>, mut done: Done) -> Result<Done> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let hand = match hand {
            Some(hand) => hand,
            None => hand.insert(Hand::new(work)?),
        };
        hand.finish(&mut done)
    }));
    match result {
        Ok(result) => result.map(|()| done),
        Err(_) => Err(anyhow!(
            "a thread that encodes records panicked; the message is above"
        )),
    }
}

impl Crew {
    /// Threads for `workers` in all.
    pub(crate) fn new(work: Work, workers: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            work: Arc::new(work),
            workers,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut helpers = Vec::new();
        for _ in 1..workers {
            let shared = Arc::clone(&shared);
            let helper = std::thread::Builder::new()
                .name("encode".to_owned())
                .spawn(move || shared.help())
                .context("could not start a thread")?;
            helpers.push(helper);
        }
        Ok(Self { shared, helpers })
    }

    /// A driver on this thread.
    pub(crate) fn driver(&self) -> Result<Driver> {
        let hand = Hand::new(&self.shared.work)?;
        self.shared.lock().drivers += 1;
        Ok(Driver {
            shared: Arc::clone(&self.shared),
            hand,
            window: VecDeque::new(),
            spare: Vec::new(),
        })
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        for helper in self.helpers.drain(..) {
            // A panic was caught and handed on where it was.
            let _ = helper.join();
        }
    }
}

/// A thread that reads and places blocks.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    hand: Hand,
    /// Blocks handed in and not given back, the oldest first.
    window: VecDeque<Arc<Slot>>,
    spare: Vec<Done>,
}

impl Driver {
    /// An empty block, with the buffers of one that was placed.
    pub(crate) fn blank(&mut self) -> Done {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes the buffers of a block that was placed.
    pub(crate) fn recycle(&mut self, done: Done) {
        self.spare.push(done);
    }

    /// Hands a block in.
    pub(crate) fn submit(&mut self, done: Done) {
        let slot = Arc::new(Slot(Mutex::new(State::Waiting(done))));
        self.window.push_back(Arc::clone(&slot));
        let mut duty = self.shared.lock();
        if duty.drivers < self.shared.workers {
            duty.waiting.push_back(slot);
            drop(duty);
            self.shared.changed.notify_one();
        }
    }

    /// Whether the oldest block has to be taken before another is handed in. All drivers together have at most two blocks a worker.
    pub(crate) fn is_full(&self) -> bool {
        let duty = self.shared.lock();
        let idle = self.shared.workers.saturating_sub(duty.drivers);
        self.window.len() > (2 * idle).div_ceil(duty.drivers.max(1))
    }

    /// The oldest block, finished: by this thread if nobody has begun with it. `None` where there is none.
    pub(crate) fn next(&mut self) -> Option<Result<Done>> {
        let slot = self.window.pop_front()?;
        if let Some(mut done) = slot.take_waiting() {
            return Some(self.hand.finish(&mut done).map(|()| done));
        }
        loop {
            if let Some(result) = slot.take_finished() {
                return Some(result);
            }
            // While another thread works on it, there may be more to do.
            let other = self
                .window
                .iter()
                .find_map(|slot| Some((Arc::clone(slot), slot.take_waiting()?)));
            if let Some((slot, mut done)) = other {
                let result = self.hand.finish(&mut done).map(|()| done);
                *slot.lock() = State::Finished(result);
                continue;
            }
            let duty = self.shared.lock();
            // A helper says that a block is finished only after it is; so this cannot be missed.
            if matches!(*slot.lock(), State::Taken) {
                drop(
                    self.shared
                        .changed
                        .wait(duty)
                        .unwrap_or_else(PoisonError::into_inner),
                );
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for slot in self.window.drain(..) {
            let _ = slot.take_waiting();
        }
        self.shared.lock().drivers -= 1;
        self.shared.changed.notify_all();
    }
}
