//! The stages of a job, one file each.

mod collect;
mod discard;
mod exchange;
mod flatten;
mod map;
mod rebalance;
mod records;
mod sort;
mod source;
mod split;
mod try_map;
mod write_shards;

pub use collect::Collected;
pub use exchange::Partition;
pub use sort::{Duplicates, SortOptions, Sorted};
pub use write_shards::{ShardSink, ShardWriter, Written};
