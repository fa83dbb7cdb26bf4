//! Local sources: files, and folders of files.
//!
//! A folder's size is that of all its files. Its SHA-256 is over each of them in the order of their paths: length of the path (8 bytes,
//! little-endian), path, length of the file, contents.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::archive::folder_files;

/// Bytes of a file, or of all files of a folder. Of a folder it costs a look at each file.
///
/// # Errors
/// It cannot be read.
pub(crate) fn size_of(path: &Path) -> Result<u64> {
    let shown = || format!("could not read {}", path.display());
    let metadata = std::fs::metadata(path).with_context(shown)?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    let mut bytes = 0;
    for file in folder_files(path)? {
        bytes += std::fs::metadata(path.join(file)).with_context(shown)?.len();
    }
    Ok(bytes)
}

/// What changes when a source is written to, without a look at its bytes: path, size, time, inode.
///
/// # Errors
/// It cannot be read.
pub(crate) fn stamp_of(path: &Path) -> Result<String> {
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
    let files = folder_files(path)?;
    for file in &files {
        hasher.update(format!("{file}, {}\n", stamp(&path.join(file))?.1));
    }
    let hash = hex::encode(hasher.finalize());
    Ok(format!("{}, {} files, {hash}", path.display(), files.len()))
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
        let hash = || hash_file(&root, &monitor).unwrap();
        let (first, stamp) = (hash(), stamp_of(&root).unwrap());
        assert_eq!((first.bytes, size_of(&root).unwrap()), (6, 6));
        put("z", "2");
        assert_ne!(hash().sha256, first.sha256);
        assert_ne!(stamp_of(&root).unwrap(), stamp);
        put("z", "1");
        assert_eq!(hash(), first);
        std::fs::rename(root.join("z"), root.join("y")).unwrap();
        assert_ne!(hash().sha256, first.sha256);
        assert!(size_of(&folder.path().join("none")).is_err());
    }
}
