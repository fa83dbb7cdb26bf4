//! Dataset builders, conversion jobs and the `prep` command line.
//!
//! A [`Builder`](builder::Builder) says what a dataset is and how its sources become examples; a [`Recipe`](recipe::Recipe)
//! is one in TOML. [`build()`] fetches the sources, runs the job graph and registers the result in the catalog; the command
//! line is a thin layer over it.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`recipe`] | TOML to a checked recipe; the built-in ones |
//! | [`builder`], [`readers`] | the trait, and what recipes use of it |
//! | [`examples`] | datasets whose examples come from code |
//! | [`fetch`], [`archive`] | sources onto this machine; archives as streams |
//! | [`build`](mod@build) | staging, the job graph, publishing |
//! | [`in_place`] | record files that stay where they are |
//! | [`revise`] | the next version of a dataset: `append`, `update` |
//! | [`convert`](mod@convert) | record files to ArrayRecord shards |
//! | [`export`](mod@export) | dataset versions as TFDS folders and Parquet files |
//! | [`cluster`], [`team`] | several processes that do one job |
//! | [`tfds`] | order and shards as TFDS |
//! | [`changes`] | tags, and versions that go |
//! | [`describe`] | datasets and builds as JSON |
//! | [`diff`] | what differs between two versions |
//! | [`gc`] | what no version needs any more |
//! | [`explain`] | what a job would do, drawn |
//! | [`monitor`], [`resources`] | watching and stopping a job; memory, cores, disks |
//! | [`cli`] | the command |
#![allow(
    clippy::print_stdout,
    reason = "standard output is the data channel of the command"
)]
// `cli::output::say` instead: a closed standard error is no reason to panic.
#![warn(clippy::print_stderr)]

pub mod archive;
pub mod build;
pub mod builder;
pub mod changes;
pub mod cli;
pub mod cluster;
pub mod convert;
pub mod describe;
pub mod diff;
pub mod error;
pub mod examples;
pub mod explain;
pub mod export;
mod fault;
pub mod fetch;
pub mod gc;
pub mod in_place;
mod infer;
mod journal;
pub mod monitor;
mod patterns;
mod place;
pub mod readers;
pub mod recipe;
pub mod resources;
pub mod revise;
mod sha256;
pub mod team;
pub mod tfds;

pub use build::{BuildOutcome, BuildRequest, OnError, build, shard_file_name};
pub use cli::verify_version;
pub use in_place::register_in_place;
