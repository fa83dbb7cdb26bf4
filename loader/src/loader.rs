//! The stream of batches: threads decode ahead, the consumer gets them in order.
//!
//! ```text
//! plan -> claim a step -> read and decode into pooled buffers -> slot of the step -> consumer, in order -> back to the pool
//!         (one lock)      (each thread a whole batch)             (bounded by batches and bytes)
//! ```
//!
//! Threads start with the first batch that is asked for and end when the loader is dropped, the stream is over, or a batch failed.
//! After a fork the child starts its own, from where the consumer stands.

use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use prep_formats::columns::{ColumnSpec, Images};

use crate::batch::{Buffers, Pool, PooledBatch, batch_bytes};
use crate::damage::OnDamage;
use crate::dataset::{Dataset, ReadContext};
use crate::deal::Step;
use crate::engine::{Claim, Done, Engine, Limits, Work, panic_message};
use crate::error::{Error, Result};
use crate::metrics::{Counters, Delivered, LoadMetrics};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::state::State;

/// Rows that a batch has room for before any is decoded; more grows as rows come.
const MAX_ROOM: u64 = 4_096;
/// Threads above this are refused: a slip of the keyboard.
pub(crate) const MAX_THREADS: usize = 4_096;

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
    engine: Option<Engine<LoadWork>>,
    failed: bool,
    on_damage: OnDamage,
    delivered: Delivered,
}

/// How a batch is made.
struct Recipe {
    columns: Option<Vec<String>>,
    images: Images,
    skips: bool,
    profile: bool,
    pool: Arc<Pool>,
    counters: Counters,
    /// A test's wish: the batch that begins here panics.
    #[cfg(test)]
    panic_at: Option<u64>,
}

/// Makes the batches of a plan.
struct LoadWork {
    dataset: Dataset,
    /// For the indices of steps, wherever it stands.
    plan: Plan,
    recipe: Arc<Recipe>,
}

/// What a thread keeps.
#[derive(Default)]
struct Local {
    context: Option<ReadContext>,
    plan: Option<Plan>,
}

impl Work for LoadWork {
    type Cursor = Plan;
    type Task = Step;
    type Item = PooledBatch;
    type Side = Infallible;
    type Local = Local;

    fn claim(&self, plan: &mut Plan, room: bool) -> Claim<Step> {
        if !room {
            return Claim::Wait;
        }
        plan.next_step().map_or(Claim::End, Claim::Item)
    }

    fn run(&self, step: Step, local: &mut Local, stop: &Arc<AtomicBool>) -> Option<Done<Self>> {
        let plan = local.plan.get_or_insert_with(|| self.plan.clone());
        let made = guarded(&step, || {
            self.recipe
                .make(&self.dataset, plan, &step, &mut local.context, stop)
        });
        made.transpose().map(Done::Item)
    }

    fn absorb(&self, _: &mut Plan, side: Infallible) {
        match side {}
    }

    fn waited(&self, time: Duration) {
        Counters::add(&self.recipe.counters.room_wait, time);
    }

    fn bytes(&self, batch: &PooledBatch) -> u64 {
        batch_bytes(batch)
    }
}

impl Dataset {
    /// Opens a stream of batches. Threads start with the first batch asked for.
    ///
    /// # Errors
    /// As [`plan`](Self::plan); columns that are not there.
    pub fn load(&self, options: LoadOptions) -> Result<Loader> {
        let plan = self.plan(&options)?;
        let images = options.decode_images.into();
        self.load_planned(plan, options, images)
    }

    /// Opens the stream of a plan.
    pub(crate) fn load_planned(&self, plan: Plan, options: LoadOptions, images: Images) -> Result<Loader> {
        let num_threads = options
            .num_threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if num_threads > MAX_THREADS {
            return Err(Error::Options(format!(
                "{num_threads} threads are too many: at most {MAX_THREADS}"
            )));
        }
        let prefetch = options.prefetch.unwrap_or(2 * num_threads).max(1);
        let context = self.read_context(options.columns.as_deref(), images)?;
        Ok(Loader {
            dataset: self.clone(),
            plan,
            specs: context.specs().to_vec(),
            recipe: Arc::new(Recipe {
                columns: options.columns,
                images,
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
        let result = match self.start() {
            Ok(engine) => {
                let ready = engine.num_ready();
                let result = engine.take();
                self.delivered.ready += ready;
                result
            }
            Err(error) => Err(error),
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
        self.on_damage.check(skipped, batch.damaged().last())?;
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
        let began = Instant::now();
        self.delivered.began.get_or_insert(began);
        let is_ready = self.start()?.wait(timeout);
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

    /// Threads that load.
    pub(crate) fn num_threads(&self) -> usize {
        self.num_threads
    }

    /// Goes on from a position.
    pub(crate) fn go_to(&mut self, position: u64) {
        self.stop();
        self.plan.set_position(position);
    }

    /// Stops the threads and lets go of batches made ahead. The stream can be gone on with: they start anew.
    pub fn stop(&mut self) {
        self.engine = None;
    }

    /// The engine, started where there is none of this process.
    fn start(&mut self) -> Result<&mut Engine<LoadWork>> {
        if self.engine.as_ref().is_some_and(|engine| !engine.is_ours()) {
            // A child of a fork: the threads are the parent's, and a lock may be held by one that is not here. Leave all that alone.
            self.engine = None;
            let limit = self.prefetch.saturating_add(self.num_threads + 2);
            self.recipe = Arc::new(Recipe {
                columns: self.recipe.columns.clone(),
                images: self.recipe.images,
                skips: self.recipe.skips,
                profile: self.recipe.profile,
                pool: Arc::new(Pool::new(limit)),
                counters: Counters::default(),
                #[cfg(test)]
                panic_at: self.recipe.panic_at,
            });
        }
        let engine = match self.engine.take() {
            Some(engine) => engine,
            None => {
                let work = LoadWork {
                    dataset: self.dataset.clone(),
                    plan: self.plan.clone(),
                    recipe: Arc::clone(&self.recipe),
                };
                let limits = Limits {
                    prefetch: self.prefetch,
                    prefetch_bytes: self.prefetch_bytes,
                };
                let mut engine = Engine::new(work, self.plan.clone(), limits);
                // More threads than batches to come would only wait.
                let useful = self.plan.remaining().map_or(self.num_threads, |steps| {
                    usize::try_from(steps)
                        .map_or(self.num_threads, |steps| steps.max(1).min(self.num_threads))
                });
                for _ in 0..useful {
                    engine.start_thread()?;
                }
                engine
            }
        };
        Ok(self.engine.insert(engine))
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
                .read_context(self.columns.as_deref(), self.images)?
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

#[cfg(test)]
impl Loader {
    /// Makes the batch that begins at a position panic.
    pub(crate) fn panic_at(&mut self, position: u64) {
        self.recipe = Arc::new(Recipe {
            columns: self.recipe.columns.clone(),
            images: self.recipe.images,
            skips: self.recipe.skips,
            profile: self.recipe.profile,
            pool: Arc::clone(&self.recipe.pool),
            counters: Counters::default(),
            panic_at: Some(position),
        });
    }

    /// What the threads share, while they run.
    pub(crate) fn shared_by(&self) -> Option<std::sync::Weak<impl Sized + use<>>> {
        self.engine.as_ref().map(|engine| Arc::downgrade(engine.shared()))
    }

    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.recipe.pool)
    }

    /// Batches made or being made ahead of the consumer.
    pub(crate) fn made_ahead(&self) -> usize {
        self.engine.as_ref().map_or(0, Engine::made_ahead)
    }
}
