//! Fixtures, fakes and comparisons for tests. Depends on no `prep` crate.
//!
//! - [`fixtures`]: where the small source archives lie, and what TFDS makes of them;
//! - [`archive`]: archives and gzip files made or changed for a test;
//! - [`folder`]: digests of all files of a folder, and a comparison that says what differs;
//! - [`server`]: an HTTP server that misbehaves as told;
//! - [`command`]: runs the `prep` command in a home of its own;
//! - [`process`]: several of these side by side, as in a cluster;
//! - [`noise`]: numbers and bytes without a pattern;
//! - [`network`]: hosts with addresses of their own, and cables that can be cut;
//! - [`disk`]: a small file system, which can be full.

pub mod archive;
pub mod command;
pub mod disk;
pub mod fixtures;
pub mod folder;
pub mod network;
pub mod noise;
pub mod process;
pub mod server;

pub use command::{Prep, Run};
pub use disk::SmallDisk;
pub use fixtures::{Golden, golden_path, png, source_folder};
pub use folder::{assert_same_folder, folder_digest};
pub use noise::Noise;
pub use tempfile::TempDir;

/// Makes a temporary folder that goes away when dropped.
///
/// # Panics
/// If the system's temporary folder is not writable.
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("prep-test-")
        .tempdir()
        .expect("the temporary folder is writable")
}
