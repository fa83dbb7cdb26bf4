//! Files and object stores behind one interface: positioned blocking reads, atomic local writes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Result;

/// A place that holds bytes or a folder of them: a local path or an object URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location(String);

impl Location {
    /// Parses a path (`data/x`, `/data/x`, `file:///data/x`) or a URL (`s3://bucket/x`).
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self(text.to_string()))
    }
    /// A local path.
    pub fn from_path(path: impl AsRef<Path>) -> Self {
        Self(path.as_ref().to_string_lossy().into_owned())
    }
    /// The local path, or `None` for an object URL.
    pub fn as_path(&self) -> Option<PathBuf> {
        Some(PathBuf::from(&self.0))
    }
    /// This place with `relative` (parts separated by `/`) below it.
    pub fn join(&self, relative: &str) -> Self {
        Self(format!("{}/{relative}", self.0.trim_end_matches('/')))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A file or object of a fixed length that can be read at any offset, from many threads at once.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// The name for error messages.
    fn name(&self) -> &str;
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Fills `buffer` from `offset`; an error if the file ends before.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
    /// The whole file, where it is mapped or in memory: readers then borrow from it.
    fn as_slice(&self) -> Option<&[u8]> {
        None
    }
}

/// Opens a file for positioned reads; local files are mapped.
pub fn open(_location: &Location) -> Result<Arc<dyn ReadAt>> {
    todo!()
}
