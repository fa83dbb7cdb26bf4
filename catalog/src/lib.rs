//! A dataset registry on an object store: a log of atomic commits, versions and manifests.
//!
//! There is no server. A [`Catalog`] is objects in a store, one log for each dataset, and a commit is one put-if-absent of the next
//! number in it; see [`catalog`] for the layout and the costs. [`DatasetName`] is what users write, [`Catalog::resolve`] turns it
//! into a [`Resolved`]: a folder, and a [`Manifest`] whose hash the log vouches for. `CATALOG.md` beside this crate is for those who use a catalog in a
//! team: stores, tags, `gc`, and how versions share shards.
//!
//! ```
//! use prep_catalog::{Catalog, DatasetName};
//! use prep_formats::store::Location;
//!
//! let catalog = Catalog::open(&Location::parse("no/such/folder")?)?;
//! let error = catalog.resolve(&DatasetName::parse("cifar10")?).unwrap_err();
//! assert_eq!(error.to_string(), "no dataset `cifar10` in catalog `no/such/folder`");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod catalog;
pub mod entry;
mod error;
pub mod fingerprint;
mod home;
pub mod manifest;
pub mod name;
mod spell;
pub mod state;
mod store;

pub use catalog::{Build, Catalog, Committed, Listed, Listing, Resolved};
pub use entry::{Change, Entry, SplitSummary, VersionRecord};
pub use error::{Error, Result};
pub use home::{catalog_location, default_catalog, home_folder};
pub use manifest::{
    FileManifest, MANIFEST_FILE, Manifest, ShardManifest, SourceManifest, SplitManifest, shard_location,
};
pub use name::{DatasetName, Selector, Version};
pub use spell::near;
pub use state::{Garbage, State, VersionState};
pub use store::{PROBE, Take, probes, put_if_absent, try_store};
