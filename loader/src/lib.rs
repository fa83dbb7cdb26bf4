//! A catalog name to seeded, sharded, prefetched, resumable batches.
//!
//! The order of the stream is specified in ORDER.md; [`permutation`], [`order`] and [`deal`] follow it.
//!
//! - A [`Dataset`] is a split with random access; its [`Loader`] streams batches of columns, shuffled and dealt to hosts.
//! - A [`MapDataset`] is a pipeline of random access: shuffle, slice, repeat, map, zip, concatenate, mix, cache, batch. The element of
//!   any position is a pure function of it.
//! - An [`IterDataset`] is a streaming one, over virtual streams: filter, flat_map, pack, window shuffle, mix, interleave, batch, rebatch.
//! - A [`Pipeline`] streams either: made ahead by threads, delivered in order, saved and restored anywhere, on any number of hosts.
//!
//! Tokens into rows of 8, best fit, saved in the middle and gone on with by two hosts:
//!
//! ```
//! use prep_loader::element::{Array, ElementSpec};
//! use prep_loader::transform::function;
//! use prep_loader::{BatchOptions, MapDataset, PackOptions, Packing, PipelineOptions};
//!
//! let mut spec = ElementSpec::new();
//! spec.set("tokens", prep_formats::value::DType::Int32, [None]);
//! let tokens = function("tokens", |mut element| {
//!     let length: i64 = element.array("value")?.item().unwrap_or(0) % 7 + 1;
//!     element.remove("value");
//!     element.set("tokens", Array::of(&vec![1i32; length as usize])?);
//!     Ok(element)
//! });
//! let pipeline = MapDataset::range(1_000)?
//!     .shuffle(42)?
//!     .repeat(None)?
//!     .map(tokens.spec(spec))?
//!     .to_iter()
//!     .pack(PackOptions::new(Packing::BestFit { bins: 4 }, [("tokens", 8)]))?;
//! let batched = |size| pipeline.clone().batch(BatchOptions::new(size));
//!
//! let mut stream = batched(12)?.load(PipelineOptions::new())?;
//! let batch = stream.next_element()?.unwrap();
//! assert_eq!(batch.array("tokens_segment_ids")?.shape(), [12, 8]);
//! let state = stream.state();
//! let wanted = stream.next_element()?.unwrap();
//!
//! // Row `k` of the next global batch is host `k mod 2`'s.
//! for host in 0..2 {
//!     let options = PipelineOptions::new().shard(host, 2).restore([state.clone()]);
//!     let own = batched(6)?.load(options)?.next_element()?.unwrap();
//!     for row in 0..6 {
//!         assert_eq!(own.array("tokens")?.row(row), wanted.array("tokens")?.row(2 * row + host as usize));
//!     }
//! }
//! # Ok::<(), prep_loader::Error>(())
//! ```

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
mod meter;
mod metrics;
mod open;
mod options;
pub mod order;
pub mod permutation;
mod pipeline;
mod plan;
mod recycle;
pub mod split;
mod stages;
mod state;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_damage;
#[cfg(test)]
mod tests_values;
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
pub use metrics::{Limit, LoadMetrics, PipelineMetrics, StageMetrics};
pub use open::{open, open_for_state};
pub use options::LoadOptions;
pub use order::{ORDER_VERSION, Order};
pub use pipeline::{Pipeline, PipelineOptions, PipelineState};
pub use plan::Plan;
pub use stages::batch::{BatchOptions, Custom, Stacking, stack_elements, unstack_element};
pub use stages::filter::Predicate;
pub use stages::mix::{Mixture, StopRule};
pub use stages::pack::{PackOptions, Packing};
pub use stages::source::Source;
pub use state::{STATE_FORMAT, State};
pub use tfds::is_tfds_folder;
