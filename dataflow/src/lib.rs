#![doc = include_str!("../README.md")]

mod container;
mod counter;
mod error;
mod flow;
mod items;
mod job;
mod net;
mod operators;
mod options;
mod pipeline;
mod progress;
mod queue;
mod record;
mod schedule;
mod schedule_log;
mod spill;
pub mod trace;

pub use crate::counter::Counter;
pub use crate::error::{BoxError, Error};
pub use crate::job::{Cancel, StopSignal, working_on};
pub use crate::net::{Cluster, ClusterSpec};
pub use crate::operators::{
    Collected, Duplicates, Failure, Group, IoOptions, Partition, ShardSink, ShardWriter, Small, SmallKey,
    SmallValue, SortOptions, Sorted, Written, sink,
};
pub use crate::options::Options;
pub use crate::pipeline::{Collection, Pipeline, Report, run};
pub use crate::progress::{Progress, StageProgress, WorkerProgress};
pub use crate::record::{Key, Record, Weigh, origin, split_origin};
pub use crate::schedule::{Shard, SplitPlan, SplitTotals};
pub use crate::spill::SpillCompression;
