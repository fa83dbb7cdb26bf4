//! A catalog name to seeded, sharded, prefetched, resumable batches.
