//! A catalog name to seeded, sharded, prefetched, resumable batches.
//!
//! The order of the stream is specified in ORDER.md; [`permutation`], [`order`] and [`deal`] follow it.

pub mod deal;
mod error;
pub mod grain_shuffle;
pub mod order;
pub mod permutation;
pub mod split;
mod state;

pub use error::{Conflict, Error, Result};
pub use order::{ORDER_VERSION, Order};
pub use state::{STATE_FORMAT, State};
