//! Which files of a folder the program has put there. All else in it is the user's, and stays.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use prep_catalog::manifest::{MANIFEST_FILE, Manifest, ShardManifest};
use prep_formats::{dataset_info, features};

use crate::error::Hinted;
use crate::{convert, export, resources};

/// Names that an error has.
const MOST_NAMED: usize = 3;

/// Whether a file of this name says what an output is.
pub(crate) fn describes(name: &str) -> bool {
    let names = [
        features::FILE_NAME,
        dataset_info::FILE_NAME,
        convert::MANIFEST_FILE,
        export::MANIFEST_FILE,
        MANIFEST_FILE,
    ];
    names.contains(&name) || (name.ends_with(".labels.txt") && !name.contains('/'))
}

/// The output that a file would lie in: the nearest folder above it that has a mark.
pub(crate) fn output_around(path: &Path) -> Option<PathBuf> {
    let marks = [MANIFEST_FILE, convert::MANIFEST_FILE, export::MANIFEST_FILE];
    let path = convert::canonical(path);
    let mut above = path.ancestors().skip(1);
    let output = above.find(|folder| marks.iter().any(|mark| folder.join(mark).is_file()))?;
    Some(output.to_owned())
}

/// The files of a version's folder that its manifest lists.
pub(crate) fn listed(manifest: &Manifest) -> HashSet<String> {
    // Of files in place only the indices are in the folder.
    let of_shard = |shard: &ShardManifest| match (&shard.index, manifest.in_place) {
        (index, true) => index.as_ref().map(|index| index.path.clone()),
        (_, false) => Some(shard.path.clone()),
    };
    let shards = manifest.splits.iter().flat_map(|split| &split.shards);
    let files = manifest.files.iter().map(|file| file.path.clone());
    shards.filter_map(of_shard).chain(files).collect()
}

/// Refuses to replace a folder that has other files than these and those that describe an output.
///
/// # Errors
/// There are others, of which it names some.
pub(crate) fn refuse_others<'a>(
    folder: &dyn Display,
    names: impl Iterator<Item = &'a str>,
    listed: &HashSet<String>,
) -> Result<()> {
    let mut others: Vec<&str> = names
        .filter(|name| !listed.contains(*name) && !describes(name))
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    others.sort_unstable();
    Err(Hinted::new(
        format!(
            "{folder} is not replaced: it has {}, which is not among the files that prep has listed there",
            some(&others)
        ),
        "move what is yours out of it, or give another place",
    )
    .into())
}

/// The same of a folder on this machine; and one that something is mounted in, which could neither be moved nor removed. One that is not there has nothing.
///
/// # Errors
/// As [`refuse_others`]; the folder cannot be listed.
pub(crate) fn refuse_others_in(folder: &Path, listed: &HashSet<String>) -> Result<()> {
    let shown = folder.display();
    if !folder.is_dir() {
        return Ok(());
    }
    let mut names = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        let listing = || format!("could not list {}", inner.display());
        for entry in std::fs::read_dir(&inner).with_context(listing)? {
            let entry = entry.with_context(listing)?;
            let path = entry.path();
            if resources::is_mount_point(&path) {
                return Err(Hinted::new(
                    format!(
                        "{shown} is not replaced: something is mounted at {}",
                        path.display()
                    ),
                    "unmount it, or give another place: an output is put in place as a whole",
                )
                .into());
            }
            match entry.file_type().with_context(listing)?.is_dir() {
                true => folders.push(path),
                // Links too, wherever they lead.
                false => names.push(
                    path.strip_prefix(folder)
                        .unwrap_or(&path)
                        .to_string_lossy()
                        .into_owned(),
                ),
            }
        }
    }
    refuse_others(&shown, names.iter().map(String::as_str), listed)
}

/// Some of these names, quoted.
pub(crate) fn some(names: &[&str]) -> String {
    let named: Vec<String> = names
        .iter()
        .take(MOST_NAMED)
        .map(|name| format!("`{name}`"))
        .collect();
    let more = match names.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_files_of_the_users_is_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("out");
        let listed = HashSet::from(["a.array_record".to_owned(), "data/b.parquet".to_owned()]);
        refuse_others_in(&folder, &listed).unwrap();
        std::fs::create_dir_all(folder.join("data")).unwrap();
        for name in [
            "a.array_record",
            "data/b.parquet",
            "features.json",
            "label.labels.txt",
            export::MANIFEST_FILE,
        ] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        refuse_others_in(&folder, &listed).unwrap();
        for name in ["notes.txt", "data/c.parquet", "data/features.json", ".x"] {
            std::fs::write(folder.join(name), name).unwrap();
            let error = refuse_others_in(&folder, &listed).unwrap_err().to_string();
            assert!(
                error.contains(&format!("it has `{name}`, which is not among")),
                "{error}"
            );
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("/nowhere", folder.join("link")).unwrap();
        assert!(refuse_others_in(&folder, &listed).is_err());
    }
}
