//! The folder that a conversion or an export makes: what is in its place before, and what may be replaced.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prep_formats::store;

use crate::convert::canonical;
use crate::error::Hinted;
use crate::resources;

/// Files that tell that this program made the folder they lie in.
const MARKS: [&str; 3] = [
    crate::convert::MANIFEST_FILE,
    prep_catalog::MANIFEST_FILE,
    crate::export::MANIFEST_FILE,
];

/// What is in the place of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// No folder, or an empty one.
    Nothing,
    /// A folder that this program made.
    Ours,
    /// Something else, in words. It is never replaced.
    Foreign(String),
}

/// Looks at a local folder.
///
/// # Errors
/// A folder that cannot be listed.
pub(crate) fn look(folder: &Path) -> Result<Found> {
    const MOST_NAMED: usize = 3;
    let shown = folder.display();
    match std::fs::symlink_metadata(folder) {
        Ok(there) if !there.is_dir() => {
            return Ok(Found::Foreign(format!(
                "the output {shown} is there already, and is not a folder"
            )));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(anyhow::Error::new(error).context(format!("could not look at {shown}"))),
    }
    let listing = || format!("could not list {shown}");
    let names = std::fs::read_dir(folder)
        .with_context(listing)?
        .map(|entry| Ok(entry.with_context(listing)?.file_name()))
        .collect::<Result<Vec<_>>>()?;
    if names.is_empty() {
        return Ok(Found::Nothing);
    }
    if MARKS.iter().any(|mark| names.iter().any(|name| name == mark)) {
        return Ok(Found::Ours);
    }
    let mut names: Vec<String> = names
        .iter()
        .map(|name| format!("`{}`", name.to_string_lossy()))
        .collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(MOST_NAMED);
    names.truncate(MOST_NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    Ok(Found::Foreign(format!(
        "{shown} is there already, and was not made by prep: it has {}{more}",
        names.join(", ")
    )))
}

/// The error about what is not ours to replace.
pub(crate) fn foreign(reason: &str) -> anyhow::Error {
    Hinted::new(
        reason,
        "`--overwrite` replaces only what prep has made: give another output, or remove this one yourself",
    )
    .into()
}

/// The path of an output folder, without links.
///
/// # Errors
/// A text that names no local folder of its own.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    let text = path.to_string_lossy();
    if text.is_empty() {
        bail!("the output is an empty text; give a folder");
    }
    let location = store::Location::parse(&text).unwrap_or_else(|_| store::Location::from_path(path));
    if location.as_path().is_none() {
        return Err(Hinted::new(
            format!("the output `{text}` is not a local folder"),
            "this version writes to local folders only: convert to one, and copy it",
        )
        .into());
    }
    let path = if text.starts_with("file://") {
        location.as_path().unwrap_or_else(|| path.to_owned())
    } else {
        path.to_owned()
    };
    let found = canonical(&path);
    if found.file_name().is_none() {
        bail!(
            "the output {} cannot be replaced: give a folder of its own",
            path.display()
        );
    }
    Ok(found)
}

/// A folder that something is mounted on, as a volume of a container is, cannot be put in place by a rename: told before the work is done. `inside` is
/// a name that could be given in it.
///
/// # Errors
/// The folder is such a one.
pub(crate) fn refuse_mount_point(folder: &Path, inside: &str) -> Result<()> {
    if resources::is_mount_point(folder) {
        return Err(Hinted::new(
            format!("the output {} is a mount point", folder.display()),
            format!(
                "the output is put in place as a whole, which takes a folder of its own: give `{}`, for instance",
                folder.join(inside).display()
            ),
        )
        .into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_ours_by_its_marks_and_others_are_named() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("out");
        assert_eq!(look(&folder).unwrap(), Found::Nothing);
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(look(&folder).unwrap(), Found::Nothing);
        for name in ["d", "b", "a", "c.txt"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let Found::Foreign(reason) = look(&folder).unwrap() else {
            panic!("four files are not ours")
        };
        assert!(
            reason.ends_with("it has `a`, `b`, `c.txt` and 1 more"),
            "{reason}"
        );
        for mark in MARKS {
            std::fs::write(folder.join(mark), "{}").unwrap();
            assert_eq!(look(&folder).unwrap(), Found::Ours);
            std::fs::remove_file(folder.join(mark)).unwrap();
        }
        let Found::Foreign(reason) = look(&folder.join("a")).unwrap() else {
            panic!("a file is no folder")
        };
        assert!(reason.ends_with("is not a folder"), "{reason}");
    }
}
