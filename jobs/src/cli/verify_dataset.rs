//! `prep verify` of a dataset: from its name to its folder.

use std::path::PathBuf;

use crate::cli::from_catalog;
use crate::cli::output::Hinted;

/// The folder of the dataset `name` in a catalog, for [`super::verify`] to look through with the manifest in it; called for a target that is no
/// path.
pub(crate) fn folder_of(name: &str, catalog: Option<&str>) -> anyhow::Result<PathBuf> {
    if name.starts_with(['.', '/']) {
        let hint = "give the path of a record file, of a folder of them, or a dataset's name";
        return Err(Hinted::new(format!("`{name}` is neither a file nor a folder"), hint).into());
    }
    let resolved = from_catalog::resolve(catalog, name)?;
    resolved.folder.as_path().ok_or_else(|| {
        let message = format!(
            "`{name}` lies at `{}`, and only local datasets can be verified",
            resolved.folder
        );
        Hinted::new(message, "copy the folder to this machine and verify it there").into()
    })
}
