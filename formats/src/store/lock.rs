//! Locks between processes, by files.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// An exclusive lock on a file, held until it is dropped or the process ends, however it ends.
///
/// Advisory: it keeps out those who take the same lock. The file is left in place, since removing it would let two
/// processes hold "the" lock on two files of one name.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
    path: PathBuf,
}

impl FileLock {
    /// Takes the lock if nobody has it; `None` if somebody has.
    pub fn try_acquire(path: impl AsRef<Path>) -> Result<Option<Self>> {
        let path = path.as_ref();
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self::held(file, path))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Error::io(path, "lock")(error)),
        }
    }

    /// Takes the lock, and waits for it as long as it takes. `on_wait` is called once, before the first wait.
    pub fn acquire(path: impl AsRef<Path>, on_wait: impl FnOnce()) -> Result<Self> {
        let path = path.as_ref();
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => return Ok(Self::held(file, path)),
            Err(TryLockError::WouldBlock) => on_wait(),
            Err(TryLockError::Error(error)) => return Err(Error::io(path, "lock")(error)),
        }
        file.lock().map_err(Error::io(path, "lock"))?;
        Ok(Self::held(file, path))
    }

    /// The file locked.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn held(file: File, path: &Path) -> Self {
        Self {
            _file: file,
            path: path.to_path_buf(),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(Error::io(path, "open"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn one_holder_at_a_time_and_waiting_ends_when_it_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = FileLock::try_acquire(&path).unwrap().unwrap();
        assert_eq!(first.path(), path);
        assert!(FileLock::try_acquire(&path).unwrap().is_none());
        let (sender, receiver) = mpsc::channel();
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || FileLock::acquire(path, || sender.send(()).unwrap()).unwrap()
        });
        receiver.recv().unwrap();
        drop(first);
        let second = waiter.join().unwrap();
        assert!(FileLock::try_acquire(&path).unwrap().is_none());
        drop(second);
        assert!(FileLock::try_acquire(&path).unwrap().is_some());
    }
}
