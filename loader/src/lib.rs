//! A catalog name to seeded, sharded, prefetched, resumable batches.

pub mod grain_shuffle;
