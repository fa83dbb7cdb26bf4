//! `prep verify` of a dataset: from its name to its folder.

use std::path::PathBuf;

use crate::cli::output::Hinted;

/// The folder of the dataset `name` in a catalog, for [`super::verify`] to look through with the manifest in it; called for a target that is no
/// path.
pub(crate) fn folder_of(name: &str, _catalog: Option<&str>) -> anyhow::Result<PathBuf> {
    Err(Hinted {
        message: format!("`{name}` is neither a file nor a folder"),
        hint: "give the path of a record file, or of a folder of them".into(),
    }
    .into())
}
