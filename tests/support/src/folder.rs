//! Digests of all files of a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Size in bytes and SHA-256 (hex) of every file below `folder`, by path relative to it with `/` between the parts.
/// Empty folders are listed with a final `/`.
///
/// # Panics
/// If something below the folder cannot be read.
pub fn folder_digest(folder: impl AsRef<Path>) -> BTreeMap<String, (u64, String)> {
    let mut digests = BTreeMap::new();
    visit(folder.as_ref(), "", &mut digests);
    digests
}

fn visit(folder: &Path, prefix: &str, digests: &mut BTreeMap<String, (u64, String)>) {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("folder `{}`: {error}", folder.display()));
    let mut is_empty = true;
    for entry in entries {
        is_empty = false;
        let entry = entry.expect("entries of a folder are readable");
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().expect("a file has a type").is_dir() {
            visit(&entry.path(), &format!("{name}/"), digests);
        } else {
            let data = fs::read(entry.path()).unwrap_or_else(|error| panic!("file `{name}`: {error}"));
            digests.insert(name, (data.len() as u64, hex::encode(Sha256::digest(&data))));
        }
    }
    if is_empty && !prefix.is_empty() {
        digests.insert(prefix.to_owned(), (0, String::new()));
    }
}

/// Asserts that two folders hold the same files with the same bytes.
///
/// # Panics
/// If they do not; the message lists each file that is on one side only, or differs.
#[track_caller]
pub fn assert_same_folder(left: impl AsRef<Path>, right: impl AsRef<Path>) {
    let (left, right) = (left.as_ref(), right.as_ref());
    let differences = differences(&folder_digest(left), &folder_digest(right));
    assert!(
        differences.is_empty(),
        "`{}` and `{}` differ:\n{}",
        left.display(),
        right.display(),
        differences.join("\n")
    );
}

fn differences(
    left: &BTreeMap<String, (u64, String)>,
    right: &BTreeMap<String, (u64, String)>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, (bytes, sha256)) in left {
        match right.get(name) {
            None => lines.push(format!("only left: {name} ({bytes} bytes)")),
            Some((other_bytes, other)) if other != sha256 => {
                lines.push(format!("differs: {name} ({bytes} and {other_bytes} bytes)"));
            }
            Some(_) => {}
        }
    }
    let only_right = right.iter().filter(|(name, _)| !left.contains_key(*name));
    lines.extend(only_right.map(|(name, (bytes, _))| format!("only right: {name} ({bytes} bytes)")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_differs() {
        let (left, right) = (crate::temp_dir(), crate::temp_dir());
        for side in [&left, &right] {
            fs::create_dir(side.path().join("a")).unwrap();
            fs::write(side.path().join("a/same"), b"same").unwrap();
        }
        assert_same_folder(left.path(), right.path());
        fs::write(left.path().join("a/same"), b"other").unwrap();
        fs::write(right.path().join("new"), b"").unwrap();
        fs::create_dir(left.path().join("empty")).unwrap();
        let found = differences(&folder_digest(left.path()), &folder_digest(right.path()));
        assert_eq!(
            found,
            [
                "differs: a/same (5 and 4 bytes)",
                "only left: empty/ (0 bytes)",
                "only right: new (0 bytes)"
            ]
        );
    }
}
