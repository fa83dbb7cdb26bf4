//! The stream of a pipeline: made ahead by threads, delivered in order, dealt to hosts, resumable anywhere.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::damage::DamagedRecord;
use crate::deal::Dealing;
use crate::element::{Element, ElementSpec};
use crate::engine::{Engine, Limits, Work};
use crate::error::{Error, Result};
use crate::iter_dataset::IterDataset;
use crate::loader::{Loader, MAX_THREADS};
use crate::map_dataset::MapDataset;
use crate::meter::{self, Meter};
use crate::metrics::{Delivered, PipelineMetrics};
use crate::stages::batch::{self, BatchOptions, Batcher};
use crate::stages::map::Mapping;
use crate::stages::{ENDLESS, Text};

mod merge;
mod options;
mod plain;
mod random;
mod state;
mod streaming;
#[cfg(test)]
mod tests;

pub use options::PipelineOptions;
pub use state::PipelineState;

use random::{RandomWork, Steps};
use state::LaneStand;
use streaming::{Counts, StreamsWork};

/// A consumer that has waited so long for so many elements gets one more thread, where their number is left open.
const LONG_WAIT: Duration = Duration::from_millis(1);
const WAITS_A_THREAD: u32 = 3;

/// A stream of elements, or of batches, of a pipeline.
///
/// They are the same for any number of threads; ORDER.md says which. At an error the stream stands before the element, or batch, that failed:
/// the next call of [`next_element`](Self::next_element) tries it again, the iterator ends. Dropping it stops the threads within an
/// element's work.
pub struct Pipeline {
    work: Running,
    stages: Vec<String>,
    spec: ElementSpec,
    /// Where the consumer stands.
    position: u64,
    lanes: BTreeMap<u64, LaneStand>,
    limits: Limits,
    /// Threads at the start, and at most.
    threads: (usize, usize),
    waits: u32,
    failed: bool,
    /// What a task has given that was not delivered.
    ahead: VecDeque<Result<Made>>,
    meter: Arc<Meter>,
    delivered: Delivered,
    /// Records left out since the element before the last one.
    damaged: Vec<DamagedRecord>,
}

/// What makes the elements.
enum Running {
    Plain(Box<Loader>),
    Random(RandomWork, Option<Engine<RandomWork>>),
    Streams(StreamsWork, Option<Engine<StreamsWork>>),
}

/// What a consumer gets, and where it stands then.
pub(crate) struct Made {
    /// None where a step has nothing for this host.
    pub(crate) element: Option<Element>,
    pub(crate) position: u64,
    pub(crate) lanes: Vec<(u64, LaneStand)>,
    /// Records left out on the way to it.
    pub(crate) damaged: Vec<DamagedRecord>,
}

impl Made {
    fn bytes(&self) -> u64 {
        self.element.as_ref().map_or(0, Element::num_bytes)
    }
}

/// How rows become a batch.
#[derive(Clone)]
pub(crate) struct Batching {
    batcher: Batcher,
    /// Its number among the stages that are measured.
    number: u64,
    /// Applied to whole batches, with their numbers.
    maps: Vec<(u64, Mapping)>,
    /// Of a batch before them.
    spec: ElementSpec,
}

impl Batching {
    fn new(options: &BatchOptions, maps: &[Mapping], rows: &ElementSpec) -> Self {
        Self {
            batcher: Batcher::new(options.clone()),
            number: meter::next_number(),
            maps: maps
                .iter()
                .map(|mapping| (meter::next_number(), mapping.clone()))
                .collect(),
            spec: options.spec(rows),
        }
    }

    fn make(&self, rows: Vec<Element>, position: u64) -> Result<Element> {
        let stacked = || match rows.is_empty() {
            true => Ok(batch::empty(&self.spec)),
            false => self.batcher.make(rows, position),
        };
        let batch = meter::measured(self.number, "batch", stacked, |batch| Some(batch))?;
        self.maps.iter().try_fold(batch, |batch, (number, mapping)| {
            let mapped = || mapping.apply(position, batch);
            meter::measured(*number, "map", mapped, |batch| Some(batch))
        })
    }

    fn describe(&self, text: &mut Text) {
        self.batcher.options.describe_dealt(text);
        text.stage_of_line(self.number);
        for (number, mapping) in &self.maps {
            mapping.describe(text);
            text.stage_of_line(*number);
        }
    }
}

impl Pipeline {
    pub(crate) fn random_access(dataset: &MapDataset, options: PipelineOptions) -> Result<Self> {
        let mut text = Text::default();
        let (rows, batching, dealing) = match dataset.dealt() {
            Some(dealt) => {
                let rows = dealt.rows.stage();
                let facts = rows.facts();
                let batching = Batching::new(&dealt.options, &dealt.maps, &facts.spec);
                rows.describe(&mut text);
                batching.describe(&mut text);
                if dealt.repeats {
                    text.line("repeat reseed_each_epoch=true");
                }
                let dealing = Dealing {
                    records: facts.length,
                    batch_size: dealt.options.size,
                    shard_index: options.shard_index,
                    shard_count: options.shard_count,
                    drop_remainder: dealt.options.drop_remainder,
                    num_epochs: dealt.num_epochs,
                };
                (rows, Some(batching), dealing)
            }
            None => {
                let rows = dataset.stage();
                rows.describe(&mut text);
                let dealing = Dealing {
                    records: rows.facts().length,
                    batch_size: 1,
                    shard_index: options.shard_index,
                    shard_count: options.shard_count,
                    drop_remainder: false,
                    num_epochs: Some(1),
                };
                (rows, None, dealing)
            }
        };
        dealing.check()?;
        let meter = Arc::new(Meter::new(&text, options.on_damage));
        let stages = text.into_lines();
        let (position, _) = restored(&options, &stages)?;
        let plain = match dataset.dealt() {
            Some(dealt) => plain::loader(dealt, &options, position)?,
            None => None,
        };
        let is_batched = batching.is_some();
        let work = match plain {
            Some(loader) => Running::Plain(Box::new(loader)),
            None => Running::Random(
                RandomWork {
                    rows: Arc::clone(rows),
                    dealing,
                    batching,
                    meter: Arc::clone(&meter),
                    // One by one where their number is asked for, or what was left out belongs to each.
                    steps: Arc::new(Steps::new(
                        is_batched || options.prefetch.is_some() || options.on_damage.skips(),
                    )),
                },
                None,
            ),
        };
        Self::new(
            work,
            stages,
            dataset.element_spec().clone(),
            position,
            BTreeMap::new(),
            meter,
            &options,
        )
    }

    pub(crate) fn streaming(dataset: &IterDataset, options: PipelineOptions) -> Result<Self> {
        let mut text = Text::default();
        let (rows, batching, size, drop_remainder) = match dataset.dealt() {
            Some(dealt) => {
                let batching = Batching::new(&dealt.options, &dealt.maps, dealt.rows.spec());
                let (size, drop_remainder) = (dealt.options.size, dealt.options.drop_remainder);
                (&dealt.rows, Some(batching), size, drop_remainder)
            }
            None => (dataset.stage(), None, 1, false),
        };
        rows.describe(&mut text);
        text.line(format!("streams count={}", dataset.streams()));
        if let Some(batching) = &batching {
            batching.describe(&mut text);
        }
        // Of a share that is dealt only the numbers are checked.
        let dealing = Dealing {
            records: ENDLESS,
            batch_size: size,
            shard_index: options.shard_index,
            shard_count: options.shard_count,
            drop_remainder,
            num_epochs: Some(1),
        };
        dealing.check()?;
        let meter = Arc::new(Meter::new(&text, options.on_damage));
        let stages = text.into_lines();
        let (position, mut lanes) = restored(&options, &stages)?;
        let threads = threads(&options)?;
        let mut work = StreamsWork {
            stage: Arc::clone(rows),
            streams: dataset.streams(),
            shard_index: options.shard_index,
            shard_count: options.shard_count,
            batch_size: size,
            drop_remainder,
            batching,
            counts: None,
            prefetch: limits(&options, threads.1).prefetch as u64,
            prefetch_bytes: options.prefetch_bytes,
            meter: Arc::clone(&meter),
        };
        let lengths = work.lengths().filter(|_| !rows.is_endless());
        let counts = match options.counts.as_ref().or(lengths.as_ref()) {
            _ if rows.is_endless() => None,
            Some(counts) => Some(Counts::given(counts, work.streams)?),
            None if options.shard_count > 1 => Some(work.count(threads.1.max(1))?),
            None => None,
        };
        let is_counted = counts.is_some();
        work.counts = counts.map(Arc::new);
        // Where places follow from the position no state has to tell them.
        let is_filled = position > 0 && work.fill(position, &mut lanes).is_some();
        if !is_counted && !is_filled {
            if !work.streams.is_multiple_of(work.shard_count) {
                tracing::warn!(
                    "{} hosts do not divide {} virtual streams: streams are run by several hosts, each of which throws away what it does not need",
                    work.shard_count,
                    work.streams
                );
            }
            // What other hosts have taken of a stream cannot be known without them.
            let given = |stream: u64| (position + work.streams - 1 - stream) / work.streams;
            let missing = (0..work.streams)
                .find(|&stream| work.runs(stream) && given(stream) > 0 && !lanes.contains_key(&stream));
            if let Some(stream) = missing {
                return Err(Error::State(format!(
                    "it says nothing of virtual stream {stream}, of which host {} of {} needs to know where it stands: restore with the states that all hosts saved at this step, {} of which are given",
                    work.shard_index,
                    work.shard_count,
                    options.restore.len()
                )));
            }
        }
        let work = Running::Streams(work, None);
        Self::new(
            work,
            stages,
            dataset.element_spec().clone(),
            position,
            lanes,
            meter,
            &options,
        )
    }

    fn new(
        work: Running,
        stages: Vec<String>,
        spec: ElementSpec,
        position: u64,
        lanes: BTreeMap<u64, LaneStand>,
        meter: Arc<Meter>,
        options: &PipelineOptions,
    ) -> Result<Self> {
        let threads = threads(options)?;
        Ok(Self {
            work,
            stages,
            spec,
            position,
            lanes,
            limits: limits(options, threads.1),
            threads,
            waits: 0,
            failed: false,
            ahead: VecDeque::new(),
            meter,
            delivered: Delivered::default(),
            damaged: Vec::new(),
        })
    }

    /// The next element of this host, or the next batch; a batch may have no rows where a short global batch has none for it. `None`: the
    /// stream has ended.
    ///
    /// Blocks until it is made. May be called again after an error: it tries the same one again.
    ///
    /// # Errors
    /// What a stage says, with its name, the position and the record; at its place, after all elements before it.
    pub fn next_element(&mut self) -> Result<Option<Element>> {
        self.damaged.clear();
        let began = Instant::now();
        self.delivered.began.get_or_insert(began);
        let result = loop {
            match self.next_made().and_then(|made| self.count(made)) {
                Ok(Some(made)) => {
                    self.position = made.position;
                    self.lanes.extend(made.lanes);
                    self.damaged.extend(made.damaged);
                    if made.element.is_some() {
                        break Ok(made.element);
                    }
                }
                Ok(None) => break Ok(None),
                Err(error) => {
                    // The threads have stopped after what failed; new ones begin with it.
                    self.stop();
                    break Err(error);
                }
            }
        };
        self.delivered.wait += began.elapsed();
        result
    }

    /// Counts what is to be delivered.
    fn count(&mut self, made: Option<Made>) -> Result<Option<Made>> {
        let Some(made) = made else {
            return Ok(None);
        };
        let skipped = self.delivered.damaged + made.damaged.len() as u64;
        self.meter.on_damage().check(skipped, made.damaged.last())?;
        self.delivered.damaged = skipped;
        self.delivered.batches += u64::from(made.element.is_some());
        self.delivered.bytes += made.bytes();
        Ok(Some(made))
    }

    /// The records that were left out as damaged between the element before and the one that [`next_element`](Self::next_element) gave last, or the
    /// end. Each is named once, also over restored states, by the host that is given what comes after it.
    pub fn damaged(&self) -> &[DamagedRecord] {
        &self.damaged
    }

    /// What was done so far, and where the time went, stage by stage. Any time, O(stages).
    pub fn metrics(&self) -> PipelineMetrics {
        let (delivered, limits) = (&self.delivered, self.limits);
        let mut metrics = PipelineMetrics {
            elapsed: delivered.began.map_or(Duration::ZERO, |began| began.elapsed()),
            threads: self.num_threads(),
            prefetch: limits.prefetch,
            steps: delivered.batches,
            bytes: delivered.bytes,
            damaged: delivered.damaged,
            room_wait: self.meter.room_wait(),
            consumer_wait: delivered.wait,
            ready_steps: delivered.ready as f64 / delivered.batches.max(1) as f64,
            merging: self.meter.mean_merging(),
            stages: self.meter.stages(),
            cache: self.meter.caches(),
            retries: prep_formats::store::retries(),
        };
        if let Running::Plain(loader) = &self.work {
            metrics = metrics.of_loader(&loader.metrics());
        }
        metrics
    }

    fn next_made(&mut self) -> Result<Option<Made>> {
        let (limits, threads, position, lanes) = (self.limits, self.threads, self.position, &self.lanes);
        match &mut self.work {
            Running::Plain(loader) => {
                let Some(batch) = loader.next_batch()? else {
                    return Ok(None);
                };
                Ok(Some(Made {
                    position: batch.step().global.end,
                    lanes: Vec::new(),
                    damaged: batch.damaged().to_vec(),
                    element: Some(plain::element(batch, loader.element_spec())?),
                }))
            }
            Running::Random(work, engine) => {
                if self.ahead.is_empty() {
                    let engine = start(work, engine, limits, threads.0, || position)?;
                    self.delivered.ready += engine.num_ready();
                    let made = take(engine, threads.1, &mut self.waits)?;
                    self.ahead.extend(made.unwrap_or_default());
                }
                self.ahead.pop_front().transpose()
            }
            Running::Streams(work, engine) => {
                let engine = start(work, engine, limits, threads.0, || work.gather(position, lanes))?;
                self.delivered.ready += engine.num_ready();
                take(engine, threads.1, &mut self.waits)
            }
        }
    }

    /// Waits until [`next_element`](Self::next_element) would not block, at most for `timeout`; tells whether it would not. For callers that
    /// have to look at something else from time to time, such as Python's signals.
    ///
    /// # Errors
    /// Threads that cannot be started.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let (limits, threads, position, lanes) = (self.limits, self.threads, self.position, &self.lanes);
        if !self.ahead.is_empty() {
            return Ok(true);
        }
        match &mut self.work {
            Running::Plain(loader) => loader.wait(timeout),
            Running::Random(work, engine) => {
                let engine = start(work, engine, limits, threads.0, || position)?;
                Ok(engine.wait(timeout))
            }
            Running::Streams(work, engine) => {
                let engine = start(work, engine, limits, threads.0, || work.gather(position, lanes))?;
                Ok(engine.wait(timeout))
            }
        }
    }

    /// Where the consumer stands: after the last element that it was given, whatever has been made ahead. Any time.
    pub fn state(&self) -> PipelineState {
        let lanes = match &self.work {
            // All streams of this host, also those that have given nothing.
            Running::Streams(work, _) => (0..work.streams)
                .filter(|&stream| work.runs(stream) || self.lanes.contains_key(&stream))
                .map(|stream| (stream, self.lanes.get(&stream).cloned().unwrap_or_default()))
                .collect(),
            _ => BTreeMap::new(),
        };
        PipelineState::new(&self.stages, self.position, lanes)
    }

    /// Samples of the global stream that were handed out, over all hosts.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Goes past some steps. O(1) in random access, and O(streams) on streams that give an element for each position: `to_iter` of what has no gaps, `map`
    /// and `batch`. Other streams are read and thrown away, since how far a step goes is in the data (`filter`, `flat_map`, `pack`), or depends on
    /// what several sources have left (`mix`, `interleave`, a window); and so are all where damaged records are left out.
    ///
    /// # Errors
    /// As [`next_element`](Self::next_element), where it reads.
    pub fn skip_steps(&mut self, steps: u64) -> Result<()> {
        let dealing = match &self.work {
            Running::Plain(loader) => *loader.plan().dealing(),
            Running::Random(work, _) => work.dealing,
            Running::Streams(work, _) => {
                if let Some((position, lanes)) = work.skip(self.position, steps) {
                    self.stop();
                    (self.position, self.lanes) = (position, lanes);
                    return Ok(());
                }
                for _ in 0..steps {
                    if self.next_element()?.is_none() {
                        break;
                    }
                }
                return Ok(());
            }
        };
        self.stop();
        self.position = dealing.skip(self.position, steps);
        if let Running::Plain(loader) = &mut self.work {
            loader.go_to(self.position);
        }
        Ok(())
    }

    /// What an element, or batch, looks like.
    pub fn element_spec(&self) -> &ElementSpec {
        &self.spec
    }

    /// The pipeline's text: a line a stage. States are compared by it.
    pub fn stages(&self) -> &[String] {
        &self.stages
    }

    /// Steps that are still to come, where that is known: not of streams.
    pub fn remaining_steps(&self) -> Option<u64> {
        match &self.work {
            Running::Plain(loader) => loader.plan().remaining(),
            Running::Random(work, _) if work.dealing.records < ENDLESS => {
                work.dealing.steps_from(self.position)
            }
            _ => None,
        }
    }

    /// How many outputs each virtual stream has, where the pipeline has counted them: to be given to
    /// [`PipelineOptions::counts`] another time.
    pub fn counts(&self) -> Option<&[u64]> {
        match &self.work {
            Running::Streams(work, _) => work.counts.as_ref().map(|counts| &*counts.ends),
            _ => None,
        }
    }

    /// Threads at work.
    pub fn num_threads(&self) -> usize {
        match &self.work {
            Running::Plain(loader) => loader.num_threads(),
            Running::Random(_, engine) => engine.as_ref().map_or(0, Engine::num_threads),
            Running::Streams(_, engine) => engine.as_ref().map_or(0, Engine::num_threads),
        }
    }

    /// Stops the threads and lets go of what was made ahead. The stream can be gone on with: they start anew.
    pub fn stop(&mut self) {
        self.ahead.clear();
        match &mut self.work {
            Running::Plain(loader) => loader.stop(),
            Running::Random(_, engine) => *engine = None,
            Running::Streams(_, engine) => *engine = None,
        }
    }
}

/// How many threads a pipeline starts with, and has at most.
fn threads(options: &PipelineOptions) -> Result<(usize, usize)> {
    match options.num_threads {
        Some(threads) if threads > MAX_THREADS => Err(Error::Options(format!(
            "{threads} threads are too many: at most {MAX_THREADS}"
        ))),
        Some(threads) => Ok((threads, threads)),
        None => Ok((1, std::thread::available_parallelism().map_or(1, usize::from))),
    }
}

fn limits(options: &PipelineOptions, threads: usize) -> Limits {
    Limits {
        prefetch: options.prefetch.unwrap_or(2 * threads).max(1),
        prefetch_bytes: options.prefetch_bytes,
    }
}

/// Position and streams of the states to restore.
fn restored(options: &PipelineOptions, stages: &[String]) -> Result<(u64, BTreeMap<u64, LaneStand>)> {
    match PipelineState::merged(&options.restore)? {
        Some(state) => {
            state.check_same_pipeline(stages)?;
            Ok((state.position, state.streams))
        }
        None => Ok((0, BTreeMap::new())),
    }
}

/// The engine, started where there is none of this process.
fn start<'a, W: Work + Clone>(
    work: &W,
    engine: &'a mut Option<Engine<W>>,
    limits: Limits,
    threads: usize,
    cursor: impl FnOnce() -> W::Cursor,
) -> Result<&'a mut Engine<W>> {
    // In a child of a fork the threads are the parent's.
    let own = match engine.take().filter(Engine::is_ours) {
        Some(own) => own,
        None => {
            let mut own = Engine::new(work.clone(), cursor(), limits);
            for _ in 0..threads {
                own.start_thread()?;
            }
            own
        }
    };
    Ok(engine.insert(own))
}

/// The next item. Of an engine with fewer threads than it may have, one more is started where the consumer waits.
fn take<W: Work>(engine: &mut Engine<W>, most_threads: usize, waits: &mut u32) -> Result<Option<W::Item>> {
    let running = engine.num_threads();
    if running == 0 || running >= most_threads || engine.is_ready() {
        return engine.take();
    }
    let begin = Instant::now();
    let taken = engine.take();
    if begin.elapsed() >= LONG_WAIT {
        *waits += 1;
        if waits.is_multiple_of(WAITS_A_THREAD) {
            engine.start_thread()?;
        }
    }
    taken
}

impl Iterator for Pipeline {
    type Item = Result<Element>;

    /// As [`next_element`](Pipeline::next_element), but it ends after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let item = self.next_element().transpose();
        self.failed = matches!(item, Some(Err(_)));
        item
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("stages", &self.stages)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
