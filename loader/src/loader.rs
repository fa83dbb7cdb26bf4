//! The stream of batches: threads decode ahead, the consumer gets them in order.
//!
//! ```text
//! plan -> claim a step -> read and decode into pooled buffers -> slot of the step -> consumer, in order -> back to the pool
//!         (one lock)      (each thread a whole batch)             (bounded by batches and bytes)
//! ```
//!
//! Threads start with the first batch that is asked for and end when the loader is dropped, the stream is over, or a batch failed.
//! After a fork the child starts its own, from where the consumer stands.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prep_formats::columns::ColumnSpec;

use crate::batch::{Buffers, Pool, PooledBatch, batch_bytes};
use crate::damage::OnDamage;
use crate::dataset::{Dataset, ReadContext};
use crate::deal::Step;
use crate::error::{Error, Result};
use crate::metrics::{Counters, Delivered, LoadMetrics};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::state::State;

/// Rows that a batch has room for before any is decoded; more grows as rows come.
const MAX_ROOM: u64 = 4_096;
/// Threads above this are refused: a slip of the keyboard.
const MAX_THREADS: usize = 4_096;

/// A stream of batches: decoded ahead by threads, delivered in order, resumable anywhere.
///
/// The batches are the same for any number of threads. At an error the stream stands before the batch that failed: the next call of
/// [`next_batch`](Self::next_batch) tries it again, the iterator ends. Dropping it stops the threads within a row's work.
///
/// Holds up to `prefetch` batches made ahead, one being made by each thread, and as many buffers at rest.
pub struct Loader {
    dataset: Dataset,
    /// Stands where the consumer stands.
    plan: Plan,
    recipe: Arc<Recipe>,
    num_threads: usize,
    prefetch: usize,
    prefetch_bytes: u64,
    specs: Vec<ColumnSpec>,
    engine: Option<Engine>,
    /// For loading in the caller's thread.
    context: Option<ReadContext>,
    failed: bool,
    on_damage: OnDamage,
    delivered: Delivered,
}

/// How a batch is made.
struct Recipe {
    columns: Option<Vec<String>>,
    decode_images: bool,
    skips: bool,
    profile: bool,
    pool: Arc<Pool>,
    counters: Counters,
    /// A test's wish: the batch that begins here panics.
    #[cfg(test)]
    panic_at: Option<u64>,
}

/// Threads at work on a stream.
struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    process: u32,
}

struct Shared {
    queue: Mutex<Queue>,
    /// For threads: there may be a step to claim, or the end.
    work: Condvar,
    /// For the consumer: a batch may be ready, or the end.
    ready: Condvar,
    stop: AtomicBool,
}

struct Queue {
    /// Stands where the next claim begins.
    plan: Plan,
    /// One slot a step that was claimed and not delivered, in order.
    slots: VecDeque<Option<Result<PooledBatch>>>,
    /// Steps delivered: the number of the first slot.
    delivered: u64,
    /// No more steps are claimed: the stream is over, or a batch failed.
    closed: bool,
    /// Bytes of batches in slots.
    bytes: u64,
    /// Bytes of the batch that was made last.
    batch_bytes: u64,
    prefetch: usize,
    prefetch_bytes: u64,
}

impl Dataset {
    /// Opens a stream of batches. Threads start with the first batch asked for.
    ///
    /// # Errors
    /// As [`plan`](Self::plan); columns that are not there.
    pub fn load(&self, options: LoadOptions) -> Result<Loader> {
        let plan = self.plan(&options)?;
        let num_threads = options
            .num_threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if num_threads > MAX_THREADS {
            return Err(Error::Options(format!(
                "{num_threads} threads are too many: at most {MAX_THREADS}"
            )));
        }
        let prefetch = options.prefetch.unwrap_or(2 * num_threads).max(1);
        let context = self.read_context(options.columns.as_deref(), options.decode_images)?;
        Ok(Loader {
            dataset: self.clone(),
            plan,
            specs: context.specs().to_vec(),
            recipe: Arc::new(Recipe {
                columns: options.columns,
                decode_images: options.decode_images,
                skips: options.on_damage.skips(),
                profile: options.profile,
                pool: Arc::new(Pool::new(prefetch.saturating_add(num_threads + 2))),
                counters: Counters::default(),
                #[cfg(test)]
                panic_at: None,
            }),
            num_threads,
            prefetch,
            prefetch_bytes: options.prefetch_bytes,
            engine: None,
            context: Some(context.with(options.on_damage.skips(), options.profile)),
            failed: false,
            on_damage: options.on_damage,
            delivered: Delivered::default(),
        })
    }
}

impl Loader {
    /// The next batch of this host; it may have no rows where a short global batch has none for it. `None`: the stream has ended.
    ///
    /// Blocks until the batch is made. May be called again after an error: it tries the same batch again.
    ///
    /// # Errors
    /// A record that cannot be read or decoded, a shard that has changed, a panic of a thread: at the batch in which it happened, after
    /// all batches before it.
    pub fn next_batch(&mut self) -> Result<Option<PooledBatch>> {
        let began = Instant::now();
        self.delivered.began.get_or_insert(began);
        let result = if self.num_threads == 0 {
            self.make_here()
        } else {
            self.start().and_then(|()| match &self.engine {
                Some(engine) => {
                    self.delivered.ready += engine.shared.num_ready();
                    engine.shared.take()
                }
                None => Ok(None),
            })
        };
        self.delivered.wait += began.elapsed();
        let result = result.and_then(|batch| self.count(batch));
        match &result {
            Ok(Some(batch)) => self.plan.set_position(batch.step().global.end),
            Ok(None) => {}
            // The threads have stopped after the failed batch; new ones begin with it.
            Err(_) => self.stop(),
        }
        result
    }

    /// Counts a batch that is to be delivered.
    fn count(&mut self, batch: Option<PooledBatch>) -> Result<Option<PooledBatch>> {
        let Some(batch) = batch else {
            return Ok(None);
        };
        let skipped = self.delivered.damaged + batch.damaged().len() as u64;
        if let (OnDamage::Skip { limit: Some(limit) }, Some(last)) = (self.on_damage, batch.damaged().last())
            && skipped > limit
        {
            return Err(Error::TooManyDamaged {
                skipped,
                limit,
                last: last.to_string(),
            });
        }
        self.delivered.damaged = skipped;
        self.delivered.batches += 1;
        self.delivered.rows += batch.rows as u64;
        self.delivered.bytes += batch.num_bytes();
        Ok(Some(batch))
    }

    /// What was done so far, and where the time went. Any time, O(1).
    pub fn metrics(&self) -> LoadMetrics {
        let (delivered, counters) = (&self.delivered, &self.recipe.counters);
        LoadMetrics {
            elapsed: delivered.began.map_or(Duration::ZERO, |began| began.elapsed()),
            threads: self.num_threads,
            prefetch: self.prefetch,
            batches: delivered.batches,
            rows: delivered.rows,
            bytes: delivered.bytes,
            damaged: delivered.damaged,
            read: Counters::get(&counters.read),
            decode: Counters::get(&counters.decode),
            room_wait: Counters::get(&counters.room_wait),
            consumer_wait: delivered.wait,
            ready_batches: delivered.ready as f64 / delivered.batches.max(1) as f64,
            cache: self.dataset.cache().map(prep_formats::store::Cache::counts),
            retries: prep_formats::store::retries(),
        }
    }

    /// Waits until [`next_batch`](Self::next_batch) would not block, at most for `timeout`; tells whether it would not. For
    /// callers that have to look at something else from time to time, such as Python's signals.
    ///
    /// # Errors
    /// Threads that cannot be started.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        if self.num_threads == 0 {
            return Ok(true);
        }
        self.start()?;
        let began = Instant::now();
        self.delivered.began.get_or_insert(began);
        let is_ready = self
            .engine
            .as_ref()
            .is_none_or(|engine| engine.shared.wait(timeout));
        self.delivered.wait += began.elapsed();
        Ok(is_ready)
    }

    /// Where the consumer stands: after the last batch that it was given, whatever has been made ahead. Any time, O(1).
    pub fn state(&self) -> State {
        self.plan.state()
    }

    /// The plan of the stream, standing where the consumer stands.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Batches in all, from where the loader was opened: what it yields. `None`: it is endless.
    pub fn num_batches(&self) -> Option<u64> {
        self.plan.num_batches()
    }

    /// Batches of a whole epoch, the same on all hosts.
    pub fn steps_per_epoch(&self) -> u64 {
        self.plan.steps_per_epoch()
    }

    /// Name, dtype and shape of one row of each column; a batch has one more dimension in front, [`batch_size`](Self::batch_size) where
    /// `drop_remainder` is set, else up to that.
    pub fn element_spec(&self) -> &[ColumnSpec] {
        &self.specs
    }

    /// Rows of a full batch.
    pub fn batch_size(&self) -> u64 {
        self.plan.dealing().batch_size
    }

    /// Stops the threads and lets go of batches made ahead. The stream can be gone on with: they start anew.
    pub fn stop(&mut self) {
        self.engine = None;
    }

    fn make_here(&mut self) -> Result<Option<PooledBatch>> {
        let before = self.plan.sample_position();
        let Some(step) = self.plan.next_step() else {
            return Ok(None);
        };
        // The position moves when the batch is handed over.
        self.plan.set_position(before);
        let Self {
            dataset,
            plan,
            recipe,
            context,
            ..
        } = self;
        let never = AtomicBool::new(false);
        guarded(&step, || recipe.make(dataset, plan, &step, context, &never))
    }

    fn start(&mut self) -> Result<()> {
        let process = std::process::id();
        if let Some(engine) = &self.engine {
            if engine.process == process {
                return Ok(());
            }
            // A child of a fork: the threads are the parent's, and a lock may be held by one that is not here. Leave all that alone.
            std::mem::forget(self.engine.take());
            let limit = self.prefetch.saturating_add(self.num_threads + 2);
            self.recipe = Arc::new(Recipe {
                columns: self.recipe.columns.clone(),
                decode_images: self.recipe.decode_images,
                skips: self.recipe.skips,
                profile: self.recipe.profile,
                pool: Arc::new(Pool::new(limit)),
                counters: Counters::default(),
                #[cfg(test)]
                panic_at: self.recipe.panic_at,
            });
        }
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                plan: self.plan.clone(),
                slots: VecDeque::new(),
                delivered: 0,
                closed: false,
                bytes: 0,
                batch_bytes: 0,
                prefetch: self.prefetch,
                prefetch_bytes: self.prefetch_bytes,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let mut engine = Engine {
            shared: Arc::clone(&shared),
            threads: Vec::with_capacity(self.num_threads),
            process,
        };
        // More threads than batches to come would only wait.
        let useful = self.plan.remaining().map_or(self.num_threads, |steps| {
            usize::try_from(steps).map_or(self.num_threads, |steps| steps.clamp(1, self.num_threads))
        });
        for number in 0..useful {
            let (shared, dataset, recipe) = (
                Arc::clone(&shared),
                self.dataset.clone(),
                Arc::clone(&self.recipe),
            );
            let thread = std::thread::Builder::new()
                .name(format!("prep-load-{number}"))
                .spawn(move || shared.work(&dataset, &recipe))
                .map_err(Error::Thread)?;
            engine.threads.push(thread);
        }
        self.engine = Some(engine);
        Ok(())
    }
}

impl Iterator for Loader {
    type Item = Result<PooledBatch>;

    /// As [`next_batch`](Loader::next_batch), but it ends after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let item = self.next_batch().transpose();
        self.failed = matches!(item, Some(Err(_)));
        item
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("dataset", &self.dataset)
            .field("sample_position", &self.plan.sample_position())
            .field("num_threads", &self.num_threads)
            .finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child of a fork: there are no threads to stop, and one of the parent's may hold the lock for ever. Nor are the batches
            // dropped, whose pool has a lock too.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        // With the lock held, so that no thread is between its look at the flag and its sleep.
        drop(self.shared.lock());
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic outside a batch has nothing to be delivered to; batches catch their own.
            let _ = thread.join();
        }
    }
}

impl Recipe {
    /// Makes the batch of a step. `None`: `stop` was set.
    fn make(
        &self,
        dataset: &Dataset,
        plan: &mut Plan,
        step: &Step,
        context: &mut Option<ReadContext>,
        stop: &AtomicBool,
    ) -> Result<Option<PooledBatch>> {
        // Taken out, so that a panic leaves none behind in the middle of something.
        let mut own = match context.take() {
            Some(own) => own,
            None => dataset
                .read_context(self.columns.as_deref(), self.decode_images)?
                .with(self.skips, self.profile),
        };
        let began = Instant::now();
        let mut buffers = match self.pool.take() {
            Some(mut buffers) => {
                own.clear(&mut buffers.batch);
                buffers.indices.clear();
                buffers
            }
            None => Buffers {
                batch: own.new_batch((step.rows.end - step.rows.start).min(MAX_ROOM) as usize),
                indices: Vec::new(),
                damaged: Vec::new(),
            },
        };
        #[cfg(test)]
        assert_ne!(self.panic_at, Some(step.global.start), "asked for by a test");
        plan.indices(step, &mut buffers.indices);
        let whole = dataset.read_rows(&buffers.indices, &mut own, &mut buffers.batch, stop);
        buffers.indices.clear();
        buffers.indices.extend(own.global_indices());
        buffers.damaged = own.take_damaged();
        let read = own.take_read_time();
        Counters::add(&self.counters.read, read);
        Counters::add(&self.counters.decode, began.elapsed().saturating_sub(read));
        *context = Some(own);
        let batch = PooledBatch::new(buffers, Arc::clone(&self.pool), step.clone());
        Ok(whole?.then_some(batch))
    }
}

/// Turns a panic into an error at its place.
fn guarded<T>(step: &Step, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(Error::Panic {
            position: step.global.start,
            message: panic_message(&*panic),
        })
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it has no message".to_string())
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does.
    fn work(&self, dataset: &Dataset, recipe: &Recipe) {
        let mut context = None;
        let mut plan = None;
        while let Some((number, step)) = self.claim(&mut plan, &recipe.counters) {
            let Some(plan) = &mut plan else {
                return;
            };
            let made = guarded(&step, || {
                recipe.make(dataset, plan, &step, &mut context, &self.stop)
            });
            let item = match made.transpose() {
                Some(item) => item,
                // Stopped.
                None => return,
            };
            self.put(number, item);
        }
    }

    /// The next step to make, when there is room for it. `None`: there is nothing more to do. Gives a thread its own plan, for indices.
    fn claim(&self, plan: &mut Option<Plan>, counters: &Counters) -> Option<(u64, Step)> {
        let mut queue = self.lock();
        loop {
            if queue.closed || self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if queue.has_room() {
                let Some(step) = queue.plan.next_step() else {
                    queue.closed = true;
                    drop(queue);
                    self.ready.notify_all();
                    self.work.notify_all();
                    return None;
                };
                if plan.is_none() {
                    *plan = Some(queue.plan.clone());
                }
                let number = queue.delivered + queue.slots.len() as u64;
                queue.slots.push_back(None);
                return Some((number, step));
            }
            let began = Instant::now();
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            Counters::add(&counters.room_wait, began.elapsed());
        }
    }

    fn put(&self, number: u64, item: Result<PooledBatch>) {
        let mut queue = self.lock();
        match &item {
            Ok(batch) => {
                let bytes = batch_bytes(batch);
                queue.bytes += bytes;
                queue.batch_bytes = bytes;
            }
            // Nothing after it is delivered.
            Err(_) => queue.closed = true,
        }
        let slot = (number - queue.delivered) as usize;
        queue.slots[slot] = Some(item);
        drop(queue);
        self.ready.notify_all();
    }

    /// Whether the consumer has something to take, be it the end.
    fn is_ready(queue: &Queue) -> bool {
        match queue.slots.front() {
            Some(slot) => slot.is_some(),
            None => queue.closed,
        }
    }

    /// Batches that the consumer may take without waiting.
    fn num_ready(&self) -> u64 {
        self.lock().slots.iter().take_while(|slot| slot.is_some()).count() as u64
    }

    fn take(&self) -> Result<Option<PooledBatch>> {
        let mut queue = self.lock();
        while !Self::is_ready(&queue) {
            queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(Some(item)) = queue.slots.pop_front() else {
            return Ok(None);
        };
        queue.delivered += 1;
        if let Ok(batch) = &item {
            queue.bytes -= batch_bytes(batch);
        }
        drop(queue);
        self.work.notify_all();
        item.map(Some)
    }

    fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut queue = self.lock();
        while !Self::is_ready(&queue) {
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

impl Queue {
    /// Whether one more batch may be made ahead. Those being made count as the last one did.
    fn has_room(&self) -> bool {
        let making = self.slots.iter().filter(|slot| slot.is_none()).count() as u64;
        let bytes = self.bytes + making * self.batch_bytes;
        self.slots.is_empty() || (self.slots.len() < self.prefetch && bytes < self.prefetch_bytes)
    }
}

#[cfg(test)]
impl Loader {
    /// Makes the batch that begins at a position panic.
    pub(crate) fn panic_at(&mut self, position: u64) {
        self.recipe = Arc::new(Recipe {
            columns: self.recipe.columns.clone(),
            decode_images: self.recipe.decode_images,
            skips: self.recipe.skips,
            profile: self.recipe.profile,
            pool: Arc::clone(&self.recipe.pool),
            counters: Counters::default(),
            panic_at: Some(position),
        });
    }

    /// What the threads share, while they run.
    pub(crate) fn shared_by(&self) -> Option<std::sync::Weak<impl Sized + use<>>> {
        self.engine.as_ref().map(|engine| Arc::downgrade(&engine.shared))
    }

    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.recipe.pool)
    }

    /// Batches made or being made ahead of the consumer.
    pub(crate) fn made_ahead(&self) -> usize {
        self.engine
            .as_ref()
            .map_or(0, |engine| engine.shared.lock().slots.len())
    }
}
