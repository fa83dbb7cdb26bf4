//! Sorts with names of their own: leaving out what is there already, and keeping the order of the sources.

use crate::operators::{Duplicates, Partition, SortOptions, Sorted};
use crate::pipeline::Collection;
use crate::record::{Key, Record};

impl<'scope> Collection<'scope, Record> {
    /// Keeps of all records of a split that have one key the one with the smallest origin, whatever the workers and the timing: where the key
    /// is a hash of the content, this leaves out repeated content. A [`sort`](Self::sort), with all that this costs, into `num_splits` splits.
    pub fn dedup_by_key(self, name: &str, num_splits: u32) -> Sorted<'scope> {
        self.sort(
            name,
            SortOptions::new(num_splits).duplicates(Duplicates::KeepFirst),
        )
    }

    /// Puts records into the order of their origins, that is of their sources, which has to be below `num_sources`, and in these of their
    /// indices: for other shards of the same records in the same order. Replaces the keys. A [`sort`](Self::sort) into `num_splits` splits, in
    /// which each worker takes an equal number of sources: one source alone keeps the arena of only one worker busy.
    pub fn reshard(self, name: &str, num_splits: u32, num_sources: u32) -> Sorted<'scope> {
        let workers = self.pipeline.num_workers() as u64;
        let bound = |worker: u64| {
            let source = (worker * u64::from(num_sources)).div_ceil(workers);
            key(crate::origin(source.min(0xff_ffff) as u32, 0))
        };
        let bounds: Vec<Key> = (1..workers).map(bound).collect();
        let options = SortOptions::new(num_splits).partition(Partition::Bounds(bounds.into()));
        self.map(|mut record| {
            record.key = key(record.origin);
            record
        })
        .sort(name, options)
    }
}

/// A key that orders as origins do.
fn key(origin: u64) -> Key {
    (u128::from(origin) << 64).to_be_bytes()
}
