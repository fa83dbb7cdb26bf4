//! From a catalog name to an opened split.

use prep_catalog::Catalog;
use prep_catalog::name::{DatasetName, Selector};

use crate::dataset::Dataset;
use crate::error::Result;
use crate::state::State;

/// Opens a split of a dataset by name: `name`, `name/config`, `name:version`, `name@tag`; split strings as TFDS reads them.
///
/// Reads the catalog's log, the manifest and the features, and no shard.
///
/// # Errors
/// A name that the catalog does not know (with near ones), a split string that does not fit, a folder that is not as the catalog says.
pub fn open(catalog: &Catalog, name: &str, split: &str) -> Result<Dataset> {
    open_name(catalog, &DatasetName::parse(name)?, split)
}

/// Opens what a state was taken on, where that is left open: without a version in the name it is the state's, without a split
/// too. What is given is taken as it is, and compared with the state when the stream is opened.
///
/// # Errors
/// As [`open`]; the state's version is no longer there.
pub fn open_for_state(catalog: &Catalog, name: &str, split: Option<&str>, state: &State) -> Result<Dataset> {
    let mut name = DatasetName::parse(name)?;
    if name.selector == Selector::Latest && name.name == state.dataset && name.config == state.config {
        name = name.with_selector(Selector::Version(state.version.clone()));
    }
    open_name(catalog, &name, split.unwrap_or(&state.split))
}

fn open_name(catalog: &Catalog, name: &DatasetName, split: &str) -> Result<Dataset> {
    let found = catalog.resolve(name)?;
    Dataset::resolved(found, split)
}
