//! A catalog name to seeded, sharded, prefetched, resumable batches.
//!
//! The order of the stream is specified in ORDER.md; [`permutation`], [`order`] and [`deal`] follow it.

mod batch;
mod damage;
mod dataset;
pub mod deal;
pub mod element;
mod error;
pub mod grain_shuffle;
mod loader;
mod metrics;
mod open;
mod options;
pub mod order;
pub mod permutation;
mod plan;
pub mod split;
mod state;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_damage;
mod tfds;
pub mod transform;

pub use batch::PooledBatch;
pub use damage::{DamagedRecord, OnDamage};
pub use dataset::Dataset;
pub use error::{Conflict, Error, Result};
pub use loader::Loader;
pub use metrics::{Limit, LoadMetrics};
pub use open::{open, open_for_state};
pub use options::LoadOptions;
pub use order::{ORDER_VERSION, Order};
pub use plan::Plan;
pub use state::{STATE_FORMAT, State};
pub use tfds::is_tfds_folder;
