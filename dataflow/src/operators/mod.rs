//! The stages of a job, one file each.

mod collect;
mod exchange;
mod map;
mod rebalance;
mod sort;
mod source;
mod try_map;
mod write_shards;

pub use collect::Collected;
pub use exchange::Partition;
pub use sort::{Duplicates, SortOptions, Sorted};
pub use write_shards::{ShardSink, ShardWriter, Written};
