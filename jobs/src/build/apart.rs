//! Sources lie apart from what the program writes: or a folder of sources that has the catalog or its data in it would be read with them, and another time
//! with the version that was made of it.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::builder::{SourcePlace, SourceSpec};
use crate::convert::canonical;
use crate::error::Hinted;
use crate::recipe::rows::{Files, files_of};

/// Refuses sources in what the program writes, `written`, unless they were asked for in there: of `sources`, which the folders and patterns `asked` and
/// `--from` stand for.
///
/// # Errors
/// There is such a source.
pub(crate) fn check(
    asked: &[SourceSpec],
    from: &[String],
    sources: &[SourceSpec],
    written: &[PathBuf],
) -> Result<()> {
    let roots = asked.iter().filter_map(|source| match files_of(&source.place) {
        Ok(Some(Files::Folder(root, _))) => Some(root),
        _ => None,
    });
    let from = from
        .iter()
        .filter(|place| !place.contains("://"))
        .map(PathBuf::from);
    let written: Vec<PathBuf> = written.iter().map(|path| canonical(path)).collect();
    for root in roots.chain(from) {
        let real = canonical(&root);
        for path in &written {
            // As it is seen from the root; where that lies deeper, it was asked for.
            let Ok(relative) = path.strip_prefix(&real) else {
                continue;
            };
            let inside = match relative.as_os_str().is_empty() {
                true => root.clone(),
                false => root.join(relative),
            };
            if let Some(source) = sources.iter().find_map(|source| file_in(source, &inside)) {
                return Err(Hinted::new(
                    format!(
                        "the source {} lies in {}, where the program writes, and {} has that in it",
                        source.display(),
                        path.display(),
                        real.display()
                    ),
                    "files of the catalog and of datasets are no sources: give the sources a folder of their own, or a narrower pattern; or keep the \
                     catalog elsewhere, with `--catalog` and `--data-dir`",
                )
                .into());
            }
        }
    }
    Ok(())
}

/// A file of a source that lies in a folder, or is that file.
fn file_in(source: &SourceSpec, folder: &Path) -> Option<PathBuf> {
    let SourcePlace::Found(path, files) = &source.place else {
        return None;
    };
    match files {
        None => path.starts_with(folder).then(|| path.clone()),
        Some(files) => files
            .iter()
            .map(|file| path.join(file))
            .find(|file| file.starts_with(folder)),
    }
}
