//! Patterns of paths that the shell did not expand: `*`, `?`, `[a-z]`, and `**` for folders at any depth.
//!
//! The `glob` crate matches names, but looks for them only where all names are UTF-8: it panics where one is not.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

/// How names match: a dot at the start has to be written.
const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Why a pattern could not be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatternError {
    /// It is no pattern.
    #[error("{0}")]
    Malformed(&'static str),
    /// A folder on the way could not be read.
    #[error("could not list {}", .0.display())]
    Unreadable(PathBuf, #[source] std::io::Error),
}

/// Whether a text has what makes it a pattern.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// The paths that a pattern matches, files and folders, sorted; none where there are none. A name that is not UTF-8 matches by what is shown for it.
/// `**` follows no links.
///
/// # Errors
/// A malformed pattern, or a folder that cannot be read.
pub(crate) fn matches(pattern: &str) -> Result<Vec<PathBuf>, PatternError> {
    Pattern::new(pattern).map_err(|error| PatternError::Malformed(error.msg))?;
    let mut found = vec![PathBuf::from(if pattern.starts_with('/') { "/" } else { "" })];
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        let mut next = Vec::new();
        for folder in found {
            if *part == "**" {
                descend(folder, is_last, &mut next)?;
            } else if is_pattern(part) {
                let pattern = Pattern::new(part).map_err(|error| PatternError::Malformed(error.msg))?;
                for entry in list(&folder)? {
                    let name = entry.file_name();
                    if pattern.matches_with(&name.to_string_lossy(), OPTIONS) {
                        next.push(folder.join(name));
                    }
                }
            } else {
                next.push(folder.join(part));
            }
        }
        if !is_last {
            next.retain(|path| path.is_dir());
        }
        found = next;
    }
    found.retain(|path| std::fs::symlink_metadata(path).is_ok());
    found.sort();
    // `**/**` comes to the same place in more than one way.
    found.dedup();
    Ok(found)
}

/// A folder and all folders below it, hidden ones left out; with `files`, what is in them too.
fn descend(folder: PathBuf, files: bool, found: &mut Vec<PathBuf>) -> Result<(), PatternError> {
    let mut waiting = vec![folder];
    while let Some(folder) = waiting.pop() {
        for entry in list(&folder)? {
            let name = entry.file_name();
            if name.to_string_lossy().starts_with('.') {
                continue;
            }
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder {
                waiting.push(folder.join(name));
            } else if files {
                found.push(folder.join(name));
            }
        }
        found.push(folder);
    }
    Ok(())
}

/// The entries of a folder; none of what is gone or no folder.
fn list(folder: &Path) -> Result<Vec<std::fs::DirEntry>, PatternError> {
    let place = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    match std::fs::read_dir(place).and_then(Iterator::collect) {
        Ok(entries) => Ok(entries),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(PatternError::Unreadable(place.to_owned(), error)),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn names_match_as_in_a_shell_also_where_they_are_not_text() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        std::fs::create_dir_all(base.join("sub/deep")).unwrap();
        std::fs::create_dir(base.join(".hidden")).unwrap();
        let odd = OsStr::from_bytes(b"odd\xff.x");
        for name in [
            "b.x",
            "a.x",
            "a.y",
            "sub/c.x",
            "sub/deep/d.x",
            ".hidden/e.x",
            ".f.x",
        ] {
            std::fs::write(base.join(name), "").unwrap();
        }
        std::fs::write(base.join(odd), "").unwrap();
        std::os::unix::fs::symlink("sub", base.join("link")).unwrap();
        let shown = base.to_str().unwrap();
        let found = |pattern: &str| -> Vec<PathBuf> {
            let paths = matches(&format!("{shown}/{pattern}")).unwrap();
            let relative = |path: PathBuf| path.strip_prefix(base).unwrap().to_owned();
            paths.into_iter().map(relative).collect()
        };
        let paths = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(PathBuf::from).collect() };
        let mut flat = paths(&["a.x", "b.x"]);
        flat.push(odd.into());
        assert_eq!(found("*.x"), flat);
        assert_eq!(found("a.?"), paths(&["a.x", "a.y"]));
        assert_eq!(found("[ab].x"), paths(&["a.x", "b.x"]));
        assert_eq!(found(".*.x"), paths(&[".f.x"]));
        assert_eq!(found("*/c.x"), paths(&["link/c.x", "sub/c.x"]));
        assert_eq!(found("**/d.x"), paths(&["sub/deep/d.x"]));
        assert_eq!(
            found("sub/**"),
            paths(&["sub", "sub/c.x", "sub/deep", "sub/deep/d.x"])
        );
        assert_eq!(found("**/**/d.x"), paths(&["sub/deep/d.x"]));
        assert!(found("a.x/*").is_empty() && found("gone/*").is_empty() && found("*.z").is_empty());
        assert!(matches!(matches("a["), Err(PatternError::Malformed(_))));
        // From where one is, and without a needless `./` before it.
        assert_eq!(matches("Cargo.tom?").unwrap(), paths(&["Cargo.toml"]));
        assert_eq!(matches("./Cargo.tom?").unwrap(), paths(&["./Cargo.toml"]));
    }
}
