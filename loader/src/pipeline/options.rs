//! How a pipeline is streamed.

use crate::damage::OnDamage;
use crate::pipeline::PipelineState;

/// How a pipeline is streamed: chained setters, checked when the stream is opened. None of these changes the stream, but for the share of a
/// host and damaged records that are left out.
///
/// # Examples
/// ```
/// use prep_loader::{MapDataset, PipelineOptions};
///
/// let pipeline = MapDataset::range(10)?;
/// let mut first = pipeline.load(PipelineOptions::new().num_threads(2))?;
/// first.by_ref().take(4).for_each(drop);
/// let rest = pipeline.load(PipelineOptions::new().restore([first.state()]))?;
/// assert_eq!(rest.count(), 6);
/// # Ok::<(), prep_loader::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PipelineOptions {
    /// Which host this is, 0-based.
    pub shard_index: u64,
    /// Number of hosts.
    pub shard_count: u64,
    /// Threads; 0: in the caller's; `None`: as many as are needed, up to one per core.
    pub num_threads: Option<usize>,
    /// Elements, or batches, made ahead; `None`: two a thread.
    pub prefetch: Option<usize>,
    /// Bytes made ahead: a limit beside `prefetch`.
    pub prefetch_bytes: u64,
    /// Goes on from saved states.
    pub restore: Vec<PipelineState>,
    /// How many outputs each virtual stream has.
    pub counts: Option<Vec<u64>>,
    /// What to do about records that cannot be read.
    pub on_damage: OnDamage,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl PipelineOptions {
    /// One host, threads as they are needed, up to 256 MiB made ahead.
    pub fn new() -> Self {
        Self {
            shard_index: 0,
            shard_count: 1,
            num_threads: None,
            prefetch: None,
            prefetch_bytes: 256 << 20,
            restore: Vec::new(),
            counts: None,
            on_damage: OnDamage::Fail,
        }
    }

    /// Reads the share of host `shard_index` of `shard_count`. Default 0 of 1.
    #[must_use]
    pub fn shard(mut self, shard_index: u64, shard_count: u64) -> Self {
        self.shard_index = shard_index;
        self.shard_count = shard_count;
        self
    }

    /// Sets the number of threads; 0 works in the caller's. Default: one, and another each time that the consumer has had to wait for some
    /// elements, up to one per core.
    #[must_use]
    pub fn num_threads(mut self, num_threads: impl Into<Option<usize>>) -> Self {
        self.num_threads = num_threads.into();
        self
    }

    /// Sets how many elements, or batches, are made ahead of need, at least 1. Default: two a thread.
    #[must_use]
    pub fn prefetch(mut self, elements: impl Into<Option<usize>>) -> Self {
        self.prefetch = elements.into();
        self
    }

    /// Limits the bytes made ahead; one element is always made. Default 256 MiB. What stages hold (windows, open rows) comes on top.
    #[must_use]
    pub fn prefetch_bytes(mut self, bytes: u64) -> Self {
        self.prefetch_bytes = bytes;
        self
    }

    /// Goes on where states were saved: one is enough in random access and for the same number of hosts; else those of all hosts.
    #[must_use]
    pub fn restore(mut self, states: impl IntoIterator<Item = PipelineState>) -> Self {
        self.restore = states.into_iter().collect();
        self
    }

    /// Says how many outputs each virtual stream has, as [`Pipeline::counts`](crate::Pipeline::counts) gives it: a pipeline with an end that is
    /// dealt to several hosts counts them otherwise when it is opened.
    #[must_use]
    pub fn counts(mut self, counts: impl Into<Option<Vec<u64>>>) -> Self {
        self.counts = counts.into();
        self
    }

    /// Sets what to do about records that cannot be read, a store having been asked twice: to fail, or to leave them out and name them in
    /// [`Pipeline::damaged`](crate::Pipeline::damaged). In random access the element has no place in the stream, or the batch a row less, also one with
    /// `drop_remainder`; on virtual streams it is missing as what a filter leaves out. Default: to fail.
    #[must_use]
    pub fn on_damage(mut self, on_damage: OnDamage) -> Self {
        self.on_damage = on_damage;
        self
    }
}
