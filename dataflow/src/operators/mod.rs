//! The stages of a job, one file each.

mod broadcast;
mod collect;
mod combine;
mod discard;
mod exchange;
mod flatten;
mod group_sorted;
mod io_map;
mod map;
mod order;
mod rebalance;
mod records;
mod sink;
mod sort;
mod source;
mod split;
mod try_map;
mod write_shards;

pub use broadcast::Small;
pub use collect::Collected;
pub use combine::{SmallKey, SmallValue};
pub use exchange::Partition;
pub use group_sorted::Group;
pub use io_map::{Failure, IoOptions};
pub use sink::sink;
pub use sort::{Duplicates, SortOptions, Sorted};
pub use write_shards::{ShardSink, ShardWriter, Written};
