//! What a stream of batches is asked for.

use crate::damage::OnDamage;
use crate::order::Order;
use crate::state::State;

/// How a dataset is streamed: chained setters, checked when the stream is opened.
///
/// # Examples
/// ```
/// use prep_loader::LoadOptions;
///
/// let options = LoadOptions::new(256).seed(42).shard(0, 8).drop_remainder(true);
/// assert_eq!(options.batch_size, 256);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Rows of a batch on one host.
    pub batch_size: u64,
    /// Shuffle seed; `None`: the restored state's, else 0.
    pub seed: Option<u64>,
    /// Order of records; `None`: the restored state's, else `prep`.
    pub order: Option<Order>,
    /// Epochs, counted from the start of the stream; `None`: endless.
    pub num_epochs: Option<u64>,
    /// Leaves out a last global batch that is not full.
    pub drop_remainder: bool,
    /// Which host this is, 0-based.
    pub shard_index: u64,
    /// Number of hosts.
    pub shard_count: u64,
    /// Loading threads; 0: in the caller's; `None`: one per core.
    pub num_threads: Option<usize>,
    /// Batches made ahead; `None`: two a thread.
    pub prefetch: Option<usize>,
    /// Bytes of batches made ahead: a limit beside `prefetch`.
    pub prefetch_bytes: u64,
    /// Decodes images to pixels; else they are delivered as encoded bytes.
    pub decode_images: bool,
    /// Which features, by name; `None`: all.
    pub columns: Option<Vec<String>>,
    /// What to do about records that cannot be read.
    pub on_damage: OnDamage,
    /// Tells reading and decoding apart in [`LoadMetrics`](crate::LoadMetrics), at a small cost.
    pub profile: bool,
    /// Goes on from a saved state.
    pub restore: Option<State>,
}

impl Default for LoadOptions {
    /// Batches of 128, endless, one host, as many threads as cores.
    fn default() -> Self {
        Self {
            batch_size: 128,
            seed: None,
            order: None,
            num_epochs: None,
            drop_remainder: false,
            shard_index: 0,
            shard_count: 1,
            num_threads: None,
            prefetch: None,
            prefetch_bytes: 256 << 20,
            decode_images: true,
            columns: None,
            on_damage: OnDamage::Fail,
            profile: false,
            restore: None,
        }
    }
}

impl LoadOptions {
    /// The defaults with a batch size, in rows per host.
    pub fn new(batch_size: u64) -> Self {
        Self {
            batch_size,
            ..Self::default()
        }
    }
    /// Sets the shuffle seed. Left out, it is the restored state's, or 0: never a random one, so that hosts agree.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
    /// Sets the order. Left out, it is the restored state's, or [`Order::Prep`].
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }
    /// Ends the stream after so many epochs, counted from its start also after a restore. Default: endless, as training loops count steps.
    #[must_use]
    pub fn num_epochs(mut self, num_epochs: impl Into<Option<u64>>) -> Self {
        self.num_epochs = num_epochs.into();
        self
    }
    /// Leaves out the last global batch of an epoch where it is not full. Default false: each record is seen.
    #[must_use]
    pub fn drop_remainder(mut self, drop_remainder: bool) -> Self {
        self.drop_remainder = drop_remainder;
        self
    }
    /// Reads the share of host `shard_index` of `shard_count`. Default 0 of 1.
    #[must_use]
    pub fn shard(mut self, shard_index: u64, shard_count: u64) -> Self {
        self.shard_index = shard_index;
        self.shard_count = shard_count;
        self
    }
    /// Sets the number of loading threads; 0 decodes in the caller's thread. Default: one per core.
    #[must_use]
    pub fn num_threads(mut self, num_threads: impl Into<Option<usize>>) -> Self {
        self.num_threads = num_threads.into();
        self
    }
    /// Sets how many batches are made ahead of need, at least 1. Default: two a thread.
    #[must_use]
    pub fn prefetch(mut self, batches: impl Into<Option<usize>>) -> Self {
        self.prefetch = batches.into();
        self
    }
    /// Limits the bytes of batches made ahead; one is always made. Default 256 MiB.
    #[must_use]
    pub fn prefetch_bytes(mut self, bytes: u64) -> Self {
        self.prefetch_bytes = bytes;
        self
    }
    /// Whether images are decoded to pixels (default) or delivered as encoded bytes. Does not change the stream: states fit both.
    #[must_use]
    pub fn decode_images(mut self, decode_images: bool) -> Self {
        self.decode_images = decode_images;
        self
    }
    /// Delivers these features only. Does not change the stream.
    #[must_use]
    pub fn columns<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.columns = Some(columns.into_iter().map(Into::into).collect());
        self
    }
    /// Sets what is done about a record that cannot be read. Default: the stream fails there. Does not change the stream of the others.
    #[must_use]
    pub fn on_damage(mut self, on_damage: OnDamage) -> Self {
        self.on_damage = on_damage;
        self
    }
    /// Whether reading and decoding are timed apart, record by record. Default false.
    #[must_use]
    pub fn profile(mut self, profile: bool) -> Self {
        self.profile = profile;
        self
    }
    /// Goes on where a state was taken; seed and order come from it unless they are set.
    #[must_use]
    pub fn restore(mut self, state: State) -> Self {
        self.restore = Some(state);
        self
    }
}
