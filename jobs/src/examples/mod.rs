//! Datasets whose examples come from code: from an iterator, or from a function that is called for each source.
//!
//! ```text
//! code -> cells -> a file of examples -> read -> encode -> sort by (split, key) -> shards -> verify -> publish -> commit
//!                  checked, one each     \_______________________ a build as any other ______________________________/
//!                  split or source
//! ```
//!
//! An [`ExampleWriter`] takes rows of [`Cell`]s, compares them with the [`Schema`] at once, and keeps them in a file. An [`ExampleBuilder`] is the
//! [`Builder`](crate::builder::Builder) that reads such files: of an iterator those that are there ([`ExampleBuilder::of_files`]), or, where code
//! is called for sources, those that a [`Producer`] makes of them ([`ExampleBuilder::of_sources`]). These lie in the staging folder, so that a
//! source whose examples are whole is not asked for them again by the run after a kill.
//!
//! ```
//! use prep_jobs::examples::{Cell, ExampleBuilder, ExampleSpec, ExampleWriter, Scratch};
//! use prep_jobs::BuildRequest;
//! use std::sync::Arc;
//!
//! let catalog = tempfile::tempdir()?;
//! let place = catalog.path().to_str();
//! let set = ExampleSpec::named("numbers", "1.0.0").split("train").check()?;
//! let scratch = Scratch::open(&set, place, None)?;
//! let mut writer = ExampleWriter::unnamed(&scratch, "train", &set)?;
//! for number in 0..100 {
//!     writer.add(vec![("number".to_owned(), Cell::Int(number))])?;
//! }
//! let builder = ExampleBuilder::of_files(set, vec![writer.finish()?])?;
//! let mut request = BuildRequest::new(Arc::new(builder));
//! request.catalog = place.map(str::to_owned);
//! assert_eq!(prep_jobs::build(request)?.splits[0].examples, 100);
//! # anyhow::Ok(())
//! ```

mod builder;
mod file;
mod schema;
mod spec;

pub use builder::{ExampleBuilder, Producer, Task};
pub use file::{ExampleFile, ExampleWriter, Scratch};
pub use schema::Schema;
pub use spec::{ExampleSet, ExampleSpec};

pub use crate::readers::rows::cell::{Cell, Row};

/// Something that the caller gave and that cannot be right.
fn invalid(reason: impl Into<String>) -> anyhow::Error {
    prep_formats::Error::Invalid(reason.into()).into()
}
