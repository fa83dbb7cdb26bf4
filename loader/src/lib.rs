//! A catalog name to seeded, sharded, prefetched, resumable batches.
//!
//! The order of the stream is specified in ORDER.md; [`permutation`], [`order`] and [`deal`] follow it.

mod batch;
mod damage;
mod dataset;
pub mod deal;
pub mod element;
mod engine;
mod error;
pub mod grain_shuffle;
mod iter_dataset;
mod loader;
mod map_dataset;
mod metrics;
mod open;
mod options;
pub mod order;
pub mod permutation;
mod pipeline;
mod plan;
pub mod split;
mod stages;
mod state;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_damage;
mod tfds;
pub mod transform;
pub mod transforms;

pub use batch::PooledBatch;
pub use damage::{DamagedRecord, OnDamage};
pub use dataset::Dataset;
pub use error::{Conflict, Error, Result};
pub use iter_dataset::{DEFAULT_STREAMS, IterDataset};
pub use loader::Loader;
pub use map_dataset::MapDataset;
pub use metrics::{Limit, LoadMetrics};
pub use open::{open, open_for_state};
pub use options::LoadOptions;
pub use order::{ORDER_VERSION, Order};
pub use pipeline::{Pipeline, PipelineOptions, PipelineState};
pub use plan::Plan;
pub use stages::batch::{BatchOptions, Custom, Stacking};
pub use stages::mix::{Mixture, StopRule};
pub use stages::pack::{PackOptions, Packing};
pub use stages::source::Source;
pub use state::{STATE_FORMAT, State};
pub use tfds::is_tfds_folder;
