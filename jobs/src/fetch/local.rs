//! Local sources: files, and folders of files.
//!
//! A folder's size is that of all its files. Its SHA-256 is over each of them in the order of their paths: length of the path (8 bytes,
//! little-endian), path, length of the file, contents.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::archive::folder_files;
use crate::builder::FileSet;

/// Calls `visit` with each file of a folder that counts, by its path from there: all of them in the order of their paths, or these.
///
/// # Errors
/// The folder cannot be read, or `visit` fails.
pub(crate) fn each_of(
    folder: &Path,
    files: Option<&FileSet>,
    mut visit: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    match files {
        Some(files) => files.iter().try_for_each(visit),
        None => folder_files(folder)?.iter().try_for_each(|file| visit(file)),
    }
}

/// Bytes of a file, or of all files of a folder. Of a folder it costs a look at each file.
///
/// # Errors
/// It cannot be read.
pub(crate) fn size_of(path: &Path, files: Option<&FileSet>) -> Result<u64> {
    let shown = || format!("could not read {}", path.display());
    let metadata = std::fs::metadata(path).with_context(shown)?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    let mut bytes = 0;
    each_of(path, files, |file| {
        let path = path.join(file);
        let metadata =
            std::fs::metadata(&path).with_context(|| format!("could not read {}", path.display()))?;
        bytes += metadata.len();
        Ok(())
    })?;
    Ok(bytes)
}

/// What changes when a source is written to, without a look at its bytes: path, size, time, inode.
///
/// # Errors
/// It cannot be read.
pub(crate) fn stamp_of(path: &Path, files: Option<&FileSet>) -> Result<String> {
    let stamp = |path: &Path| -> Result<(std::fs::Metadata, String)> {
        let metadata =
            std::fs::metadata(path).with_context(|| format!("could not read {}", path.display()))?;
        let text = format!(
            "{} bytes, {}.{:09}, inode {}",
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ino()
        );
        Ok((metadata, text))
    };
    let (metadata, text) = stamp(path)?;
    if !metadata.is_dir() {
        return Ok(format!("{}, {text}", path.display()));
    }
    let mut hasher = Sha256::new();
    let mut count = 0;
    each_of(path, files, |file| {
        hasher.update(format!("{file}, {}\n", stamp(&path.join(file))?.1));
        count += 1;
        Ok(())
    })?;
    let hash = hex::encode(hasher.finalize());
    Ok(format!("{}, {count} files, {hash}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::fetch::hash_file;
    use crate::monitor::Monitor;

    #[test]
    fn a_folder_is_told_apart_by_names_and_contents() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let put = |path: &str, text: &str| std::fs::write(root.join(path), text).unwrap();
        put("a/b/c", "three");
        put("z", "1");
        let monitor = Monitor::new();
        let hash = || hash_file(&root, None, &monitor).unwrap();
        let (first, stamp) = (hash(), stamp_of(&root, None).unwrap());
        assert_eq!((first.bytes, size_of(&root, None).unwrap()), (6, 6));
        put("z", "2");
        assert_ne!(hash().sha256, first.sha256);
        assert_ne!(stamp_of(&root, None).unwrap(), stamp);
        put("z", "1");
        assert_eq!(hash(), first);
        std::fs::rename(root.join("z"), root.join("y")).unwrap();
        assert_ne!(hash().sha256, first.sha256);
        assert!(size_of(&folder.path().join("none"), None).is_err());
    }
}
