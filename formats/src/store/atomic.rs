//! Local writes that appear whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::{Error, Result};

/// What a commit does where something lies already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Leaves it and fails with [`io::ErrorKind::AlreadyExists`].
    Keep,
    /// Takes its place in one step.
    Replace,
}

/// A file written at a staging path, that gets its final name only when it is whole and durable.
///
/// Dropped without [`commit`](Self::commit), the staging file is removed; a killed process leaves it, at the staging path
/// only. Writes are not buffered.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    staging: PathBuf,
    committed: bool,
}

impl AtomicFile {
    /// Creates the file at `staging`, emptied if it exists. Its folder must exist, on the file system of the final path.
    pub fn create(staging: impl Into<PathBuf>) -> Result<Self> {
        let staging = staging.into();
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&staging)
            .map_err(Error::io(&staging, "create"))?;
        Ok(Self {
            file,
            staging,
            committed: false,
        })
    }

    /// Creates the file at `staging`, which must not exist, and locks it for as long as it is being written, where the file system has locks.
    pub(super) fn create_new(staging: PathBuf) -> Result<Self> {
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&staging)
            .map_err(Error::io(&staging, "create"))?;
        // The lock tells files that are being written from those that a killed process has left. Without it nothing is lost.
        let _ = file.try_lock();
        Ok(Self {
            file,
            staging,
            committed: false,
        })
    }

    /// Where the bytes are until they are committed.
    pub fn staging_path(&self) -> &Path {
        &self.staging
    }

    /// Makes the bytes durable, and gives them the name `final_path`, durably too: returns after the folder is on disk.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with the system's error kind as its source; the staging file is removed then.
    pub fn commit(mut self, final_path: impl AsRef<Path>, existing: Existing) -> Result<()> {
        let final_path = final_path.as_ref();
        self.file.sync_all().map_err(Error::io(&self.staging, "sync"))?;
        match existing {
            Existing::Replace => {
                fs::rename(&self.staging, final_path).map_err(Error::io(final_path, "rename to"))?;
            }
            Existing::Keep => rename_without_replacing(&self.staging, final_path)?,
        }
        self.committed = true;
        sync_folder(parent(final_path))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(&self.staging);
        }
    }
}

/// Makes the names in a folder durable: files created, renamed or removed in it stay so after a crash.
pub fn sync_folder(folder: impl AsRef<Path>) -> Result<()> {
    let folder = folder.as_ref();
    let handle = File::open(folder).map_err(Error::io(folder, "open"))?;
    match handle.sync_all() {
        // Some network file systems cannot sync a folder; they order names themselves.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other.map_err(Error::io(folder, "sync")),
    }
}

/// Renames a file or folder to a name that is not taken, in one step.
///
/// Where the file system lacks that operation (some network ones), a file is linked and unlinked, which is as safe; a folder
/// is renamed after a look, which leaves a moment in which an *empty* folder created by another process would be replaced.
///
/// # Errors
///
/// [`io::ErrorKind::AlreadyExists`] where `to` is taken.
pub fn rename_without_replacing(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(()),
        Err(error) if is_missing_operation(error) => {}
        Err(error) => return Err(Error::io(to, "rename to")(error.into())),
    }
    if from.is_dir() {
        if fs::symlink_metadata(to).is_ok() {
            return Err(Error::io(to, "rename to")(io::ErrorKind::AlreadyExists.into()));
        }
        return fs::rename(from, to).map_err(Error::io(to, "rename to"));
    }
    fs::hard_link(from, to).map_err(Error::io(to, "link"))?;
    fs::remove_file(from).map_err(Error::io(from, "remove"))
}

/// Exchanges two files or folders in one step: readers see the old or the new, never neither.
///
/// Where the file system lacks the operation, three renames do it, by way of `a` with `.exchange` appended. A crash between them
/// leaves `b` absent with its old content at `a.exchange` or its new one at `a`; nothing is lost, but a reader may miss it for a moment.
pub fn rename_exchange(a: impl AsRef<Path>, b: impl AsRef<Path>) -> Result<()> {
    let (a, b) = (a.as_ref(), b.as_ref());
    match rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(error) if is_missing_operation(error) => exchange_by_three_renames(a, b),
        Err(error) => Err(Error::io(b, "exchange")(error.into())),
    }
}

fn exchange_by_three_renames(a: &Path, b: &Path) -> Result<()> {
    let mut aside = a.as_os_str().to_owned();
    aside.push(".exchange");
    let aside = PathBuf::from(aside);
    fs::rename(b, &aside).map_err(Error::io(b, "rename"))?;
    if let Err(error) = fs::rename(a, b) {
        // Back to how it was, so that a failure changes nothing.
        let _ = fs::rename(&aside, b);
        return Err(Error::io(b, "rename to")(error));
    }
    fs::rename(&aside, a).map_err(Error::io(a, "rename to"))
}

/// Puts a finished folder in its place, durably: the files' own bytes must be synced already.
///
/// Under [`Existing::Keep`] a taken target is an error. Under [`Existing::Replace`] a target that exists is exchanged with the new
/// folder in one step, and `Some(staging)` says where the old one lies now, for the caller to keep or remove.
pub fn publish_folder(
    staging: impl AsRef<Path>,
    target: impl AsRef<Path>,
    existing: Existing,
) -> Result<Option<PathBuf>> {
    let (staging, target) = (staging.as_ref(), target.as_ref());
    sync_folder(staging)?;
    let old = match rename_without_replacing(staging, target) {
        Ok(()) => None,
        Err(Error::Io { source, .. })
            if existing == Existing::Replace && source.kind() == io::ErrorKind::AlreadyExists =>
        {
            rename_exchange(staging, target)?;
            Some(staging.to_path_buf())
        }
        Err(error) => return Err(error),
    };
    sync_folder(parent(target))?;
    if parent(staging) != parent(target) {
        sync_folder(parent(staging))?;
    }
    Ok(old)
}

/// The folder that holds `path`; the current one for a bare name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) => Path::new("."),
        None => path,
    }
}

fn is_missing_operation(error: Errno) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP].contains(&error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(error: &Error) -> io::ErrorKind {
        match error {
            Error::Io { source, .. } => source.kind(),
            other => panic!("not an I/O error: {other}"),
        }
    }

    #[test]
    fn a_file_appears_only_when_committed() {
        let folder = tempfile::tempdir().unwrap();
        let (staging, target) = (folder.path().join("x.tmp"), folder.path().join("x"));
        let mut file = AtomicFile::create(&staging).unwrap();
        file.write_all(b"new").unwrap();
        assert!(staging.exists() && !target.exists());
        file.commit(&target, Existing::Keep).unwrap();
        assert!(!staging.exists());
        assert_eq!(fs::read(&target).unwrap(), b"new");

        let mut file = AtomicFile::create(&staging).unwrap();
        file.write_all(b"newer").unwrap();
        let error = file.commit(&target, Existing::Keep).unwrap_err();
        assert_eq!(kind(&error), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert!(!staging.exists());

        let mut file = AtomicFile::create(&staging).unwrap();
        file.write_all(b"newer").unwrap();
        file.commit(&target, Existing::Replace).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"newer");

        drop(AtomicFile::create(&staging).unwrap());
        assert!(!staging.exists());
    }

    #[test]
    fn system_errors_keep_their_kind() {
        let folder = tempfile::tempdir().unwrap();
        let error = AtomicFile::create(folder.path().join("absent/x")).unwrap_err();
        assert_eq!(kind(&error), io::ErrorKind::NotFound);
        if let Ok(mut full) = File::options().write(true).open("/dev/full") {
            let error = Error::io("/dev/full", "write")(full.write_all(b"x").unwrap_err());
            assert_eq!(kind(&error), io::ErrorKind::StorageFull);
        }
    }

    #[test]
    fn exchange_swaps_contents_both_ways() {
        type Exchange = fn(&Path, &Path) -> Result<()>;
        let exchanges: [Exchange; 2] = [|a, b| rename_exchange(a, b), exchange_by_three_renames];
        for exchange in exchanges {
            let folder = tempfile::tempdir().unwrap();
            let (a, b) = (folder.path().join("a"), folder.path().join("b"));
            for (path, text) in [(&a, "1"), (&b, "2")] {
                fs::create_dir(path).unwrap();
                fs::write(path.join("f"), text).unwrap();
            }
            exchange(&a, &b).unwrap();
            assert_eq!(fs::read_to_string(a.join("f")).unwrap(), "2");
            assert_eq!(fs::read_to_string(b.join("f")).unwrap(), "1");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
            // A failed exchange changes nothing.
            assert!(exchange(&folder.path().join("absent"), &b).is_err());
            assert_eq!(fs::read_to_string(b.join("f")).unwrap(), "1");
        }
    }

    #[test]
    fn a_folder_is_published_once_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (staging, target) = (folder.path().join("staging"), folder.path().join("1.0.0"));
        let stage = |text: &str| {
            fs::create_dir(&staging).unwrap();
            fs::write(staging.join("f"), text).unwrap();
        };
        stage("1");
        assert_eq!(publish_folder(&staging, &target, Existing::Keep).unwrap(), None);
        stage("2");
        let error = publish_folder(&staging, &target, Existing::Keep).unwrap_err();
        assert_eq!(kind(&error), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "1");
        let old = publish_folder(&staging, &target, Existing::Replace).unwrap();
        assert_eq!(old.as_deref(), Some(staging.as_path()));
        assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "2");
        assert_eq!(fs::read_to_string(staging.join("f")).unwrap(), "1");
    }
}
