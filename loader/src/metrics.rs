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
        } else if self.consumer_wait.as_secs_f64() < 0.05 * self.elapsed.as_secs_f64() {
            Limit::Consumer
        } else if self.read > self.decode {
            Limit::Read
        } else {
            Limit::Decode
        }
    }

    /// What to change so that it goes faster, for a machine with so many cores.
    pub fn advice(&self, cores: usize) -> String {
        let threads = self.threads.max(1) as f64;
        let busy = (self.read + self.decode).as_secs_f64() / (threads * self.elapsed.as_secs_f64().max(1e-9));
        let waits_for_store = self.limit() == Limit::Read
            && self
                .cache
                .is_none_or(|cache| cache.fetched_bytes > cache.cached_bytes);
        match self.limit() {
            Limit::Nothing => "nothing was loaded".into(),
            Limit::Consumer => "batches are ready when they are asked for: the consumer limits, loading faster would not help".into(),
            _ if self.threads == 0 => "all is done in the consumer's thread: use `--threads 1` or more".into(),
            _ if self.threads < cores => format!(
                "threads are busy for {:.0} % of the time: use `--threads {cores}`, this machine has {cores} cores",
                100.0 * busy
            ),
            Limit::Read if waits_for_store => "most time goes into reading: where shards lie in a store, more `--threads` keep more requests in flight, and `--cache` keeps what was read for later epochs".into(),
            Limit::Read => "most time goes into reading: a faster disk, shards that are `uncompressed`, or more memory for the page cache".into(),
            Limit::Decode => "all cores decode: select fewer columns, store smaller pictures, or give it more cores".into(),
        }
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
