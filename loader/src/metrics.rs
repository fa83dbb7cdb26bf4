//! Where the time of a stream goes.
//!
//! ```text
//! wait for room -> read (records from files or stores) -> decode (records into batches)  -> ready -> consumer
//! `room_wait`      `read`                                 `decode`                                   `consumer_wait`
//! ```
//!
//! The times of threads are sums over all threads. Reading and decoding alternate for each record of a local shard: they are told apart only where
//! [`LoadOptions::profile`](crate::LoadOptions::profile) is set, which costs two looks at the clock a record (about 50 ns). Without it all is `decode`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prep_formats::store::CacheCounts;

/// What a loader has done so far, over all its threads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct LoadMetrics {
    /// Since the first batch was asked for.
    pub elapsed: Duration,
    /// Loading threads.
    pub threads: usize,
    /// Batches that may be made ahead.
    pub prefetch: usize,
    /// Batches delivered.
    pub batches: u64,
    /// Rows delivered.
    pub rows: u64,
    /// Bytes of the delivered batches, decoded.
    pub bytes: u64,
    /// Records left out as damaged.
    pub damaged: u64,
    /// Threads' time in reading records: files mapped or asked of stores, checksums, decompression.
    pub read: Duration,
    /// Threads' time in decoding records into batches.
    pub decode: Duration,
    /// Threads' time in waiting until a batch was taken, so that another may be made.
    pub room_wait: Duration,
    /// The consumer's time in waiting for a batch.
    pub consumer_wait: Duration,
    /// Batches that were ready, on average, when the consumer asked for one.
    pub ready_batches: f64,
    /// Bytes that came from the disk cache and from stores, where the dataset has a cache.
    pub cache: Option<CacheCounts>,
    /// Requests to stores that were tried again, in this process.
    pub retries: u64,
}

/// The part of a pipeline that limits it, and what would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Nothing was delivered.
    Nothing,
    /// The consumer: batches are ready when it asks.
    Consumer,
    /// Reading records.
    Read,
    /// Decoding records.
    Decode,
}

impl LoadMetrics {
    /// Which stage limits: the consumer where it waits for less than a twentieth of the time, else that in which the threads spend more.
    pub fn limit(&self) -> Limit {
        if self.batches == 0 {
            Limit::Nothing
        } else if consumer_limits(self.consumer_wait, self.elapsed) {
            Limit::Consumer
        } else if self.read > self.decode {
            Limit::Read
        } else {
            Limit::Decode
        }
    }

    /// What to change so that it goes faster, for a machine with so many cores.
    pub fn advice(&self, cores: usize) -> String {
        let busy = self.read + self.decode;
        let from_store = self.cache.is_none_or(CacheCounts::is_cold);
        match self.limit() {
            Limit::Nothing => NOTHING.into(),
            Limit::Consumer => CONSUMER.into(),
            limit => more_threads("`--threads", self.threads, cores, busy, self.elapsed).unwrap_or_else(|| {
                match limit {
                    Limit::Read if from_store => "most time goes into reading: where shards lie in a store, more `--threads` keep more requests in flight, `--cache` keeps what was read for later epochs, and `--order window:N` reads near records together",
                    Limit::Read => "most time goes into reading: a faster disk, shards that are `uncompressed`, or more memory for the page cache",
                    _ => "all cores decode: select fewer columns, store smaller pictures, or give it more cores",
                }
                .into()
            }),
        }
    }
}

const NOTHING: &str = "nothing was loaded";
const CONSUMER: &str =
    "batches are ready when they are asked for: the consumer limits, loading faster would not help";

/// Whether the consumer limits: it waits for less than a twentieth of the time.
fn consumer_limits(wait: Duration, elapsed: Duration) -> bool {
    wait.as_secs_f64() < 0.05 * elapsed.as_secs_f64()
}

/// The advice to use more threads, where there are fewer than cores. `option` sets their number, as the caller writes it: it goes on with the number and
/// a closing backtick.
fn more_threads(
    option: &str,
    threads: usize,
    cores: usize,
    busy: Duration,
    elapsed: Duration,
) -> Option<String> {
    let whole = threads.max(1) as f64 * elapsed.as_secs_f64().max(1e-9);
    if threads == 0 {
        return Some(format!(
            "all is done in the consumer's thread: use {option} 1` or more"
        ));
    }
    (threads < cores).then(|| {
        format!(
            "threads are busy for {:.0} % of the time: use {option} {cores}`, this machine has {cores} cores",
            100.0 * (busy.as_secs_f64() / whole).min(1.0)
        )
    })
}

/// What a pipeline has done so far, over all its threads.
///
/// ```text
/// stages, each called by the one after it -> (streams: outputs wait to be merged) -> batch -> ready -> consumer
/// `busy` of each                                                                               `consumer_wait`
/// ```
///
/// Elements are counted one by one. Times and bytes of stages are measured in the first tasks of the threads, and then in one of 16, which stands for
/// the others: after some hundred tasks they are right to some percent.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct PipelineMetrics {
    /// Since the first element was asked for.
    pub elapsed: Duration,
    /// Threads at work.
    pub threads: usize,
    /// Elements, or batches, that may be made ahead.
    pub prefetch: usize,
    /// Elements, or batches, delivered.
    pub steps: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Records left out as damaged.
    pub damaged: u64,
    /// Threads' time in waiting for something to do: mostly until an element was taken, so that another may be made.
    pub room_wait: Duration,
    /// The consumer's time in waiting for an element.
    pub consumer_wait: Duration,
    /// Elements, or batches, that were ready, on average, when the consumer asked for one.
    pub ready_steps: f64,
    /// Outputs of virtual streams that waited to be merged, on average.
    pub merging: Option<f64>,
    /// The stages in the order of the pipeline's text. One that is used in several places has one row.
    pub stages: Vec<StageMetrics>,
    /// Bytes that came from the disk caches and from stores, where a dataset has a cache.
    pub cache: Option<CacheCounts>,
    /// Requests to stores that were tried again, in this process.
    pub retries: u64,
}

/// What a stage of a pipeline has done so far.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct StageMetrics {
    /// Its line in the pipeline's text. A plain loader, which makes batches without stages, has `read` and `decode`.
    pub name: String,
    /// Threads' time in it.
    pub busy: Duration,
    /// Threads' time in the stages that it called, in waiting for its input.
    pub wait: Duration,
    /// Of `busy`, the time in which records were asked of stores.
    pub read: Duration,
    /// Elements that it gave.
    pub elements: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Elements that a `cache` had.
    pub cache_hits: u64,
    /// Elements that it had not.
    pub cache_misses: u64,
}

impl PipelineMetrics {
    /// With what a plain loader counts itself.
    pub(crate) fn of_loader(self, loader: &LoadMetrics) -> Self {
        let stage = |name: &str, busy: Duration, read: Duration| StageMetrics {
            name: name.into(),
            busy,
            read,
            elements: loader.rows,
            bytes: loader.bytes,
            ..StageMetrics::default()
        };
        Self {
            room_wait: loader.room_wait,
            ready_steps: loader.ready_batches,
            stages: vec![
                stage("read", loader.read, loader.read),
                stage("decode", loader.decode, Duration::ZERO),
            ],
            ..self
        }
    }

    /// The stage that limits: that in which the threads spend most. `None`: the consumer does, which waits for less than a twentieth of the time, or
    /// nothing was delivered.
    pub fn limit(&self) -> Option<&StageMetrics> {
        if self.steps == 0 || consumer_limits(self.consumer_wait, self.elapsed) {
            return None;
        }
        self.stages.iter().max_by_key(|stage| stage.busy)
    }

    /// What to change so that it goes faster, for a machine with so many cores.
    pub fn advice(&self, cores: usize) -> String {
        let Some(stage) = self.limit() else {
            return if self.steps == 0 { NOTHING } else { CONSUMER }.into();
        };
        let busy = self.stages.iter().map(|stage| stage.busy).sum();
        if let Some(advice) = more_threads("`num_threads", self.threads, cores, busy, self.elapsed) {
            return advice;
        }
        let name = &stage.name;
        if 2 * stage.read > stage.busy {
            return match self.cache.is_none_or(CacheCounts::is_cold) {
                true => format!(
                    "most time goes into reading in `{name}`: more `num_threads` keep more requests in flight, and `Dataset::with_cache` keeps what was read for later epochs"
                ),
                false => format!(
                    "most time goes into reading in `{name}`: a faster disk for the cache, or shards that are `uncompressed`"
                ),
            };
        }
        match name.starts_with("source ") {
            true => format!(
                "most time goes into `{name}`: select fewer columns, put `cache` behind it if its elements fit into memory, or give it more cores"
            ),
            false => format!(
                "all cores are at work, most in `{name}`: make it cheaper, put `cache` behind it if it gives the same in each epoch, or give it more cores"
            ),
        }
    }
}

impl fmt::Display for PipelineMetrics {
    /// A line a stage, and the advice for this machine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} threads, {} ahead: {} steps in {:.3} s, wait for room {:.3} s; the consumer waited {:.3} s and found {:.1} ready",
            self.threads,
            self.prefetch,
            self.steps,
            self.elapsed.as_secs_f64(),
            self.room_wait.as_secs_f64(),
            self.consumer_wait.as_secs_f64(),
            self.ready_steps
        )?;
        for stage in &self.stages {
            write!(
                f,
                "{}: busy {:.3} s, wait {:.3} s, {} elements, {} bytes",
                stage.name,
                stage.busy.as_secs_f64(),
                stage.wait.as_secs_f64(),
                stage.elements,
                stage.bytes
            )?;
            if stage.cache_hits + stage.cache_misses > 0 {
                write!(f, ", {} hits, {} misses", stage.cache_hits, stage.cache_misses)?;
            }
            writeln!(f)?;
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let limit = self.limit().map_or("consumer", |stage| &stage.name);
        write!(f, "limit: {limit}; {}", self.advice(cores))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Consumer => "consumer",
            Self::Read => "read",
            Self::Decode => "decode",
        })
    }
}

/// Counts of threads at work; times in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) read: AtomicU64,
    pub(crate) decode: AtomicU64,
    pub(crate) room_wait: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, time: Duration) {
        counter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(counter: &AtomicU64) -> Duration {
        Duration::from_nanos(counter.load(Ordering::Relaxed))
    }
}

/// What the consumer's side has counted.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    pub(crate) began: Option<Instant>,
    pub(crate) batches: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) damaged: u64,
    pub(crate) wait: Duration,
    /// Batches that were ready, summed over all asks.
    pub(crate) ready: u64,
}

/// Time spent reading, in one batch by one thread.
#[derive(Debug, Default)]
pub(crate) struct ReadTimer {
    is_on: bool,
    pub(crate) read: Duration,
}

impl ReadTimer {
    pub(crate) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            read: Duration::ZERO,
        }
    }

    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        self.is_on.then(Instant::now)
    }

    #[inline]
    pub(crate) fn stop(&mut self, began: Option<Instant>) {
        if let Some(began) = began {
            self.read += began.elapsed();
        }
    }

    /// A piece of work that is timed always, since it is much longer than a look at the clock.
    pub(crate) fn whole<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.read += began.elapsed();
        result
    }
}
