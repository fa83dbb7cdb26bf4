//! Bytes, records and examples: the file formats of machine-learning data.
//!
//! Decoders are fed bytes and do no I/O; thin readers around them use [`store`].

pub mod array_record;
pub mod cifar;
pub mod columns;
pub mod dataset_info;
mod error;
pub mod example;
pub mod features;
pub mod idx;
pub mod jpeg;
mod json;
pub mod png;
pub mod statistics;
pub mod store;
pub mod tfrecord;
pub mod tiff;
pub mod value;
pub mod webdataset;

pub use error::{Error, Position, Result};
