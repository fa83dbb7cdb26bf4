//! ArrayRecord files: Riegeli chunks of records with an index in the footer.

use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::Result;
use crate::store::ReadAt;

/// How records are grouped and compressed; parsed from and shown as Google's option string.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {}
impl WriteOptions {
    /// Parses an option string such as `group_size:1,zstd:3`, `uncompressed`.
    pub fn parse(_text: &str) -> Result<Self> {
        todo!()
    }
}
impl fmt::Display for WriteOptions {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

/// Writes records to an ArrayRecord file.
#[derive(Debug)]
pub struct Writer<W> {
    _sink: W,
}
impl<W: Write> Writer<W> {
    /// Starts a file: writes the signature block.
    pub fn new(_sink: W, _options: WriteOptions) -> Result<Self> {
        todo!()
    }
    /// Appends a record.
    pub fn write(&mut self, _record: &[u8]) -> Result<()> {
        todo!()
    }
    /// Bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        todo!()
    }
    /// Writes footer and postscript, and gives the sink back. A writer dropped before leaves a file that no reader opens.
    pub fn finish(self) -> Result<W> {
        todo!()
    }
}

/// Buffers that a reading thread keeps from one record to the next.
#[derive(Debug, Default)]
pub struct Scratch {}

/// Reads records of an ArrayRecord file by index; cheap to share between threads.
#[derive(Debug, Clone)]
pub struct Reader {}
impl Reader {
    /// Opens a local file.
    pub fn open(_path: impl AsRef<Path>) -> Result<Self> {
        todo!()
    }
    /// Opens any source.
    pub fn from_source(_source: Arc<dyn ReadAt>) -> Result<Self> {
        todo!()
    }
    /// Number of records.
    pub fn num_records(&self) -> u64 {
        todo!()
    }
    /// One record, hashes checked: borrowed from the file where it is mapped and uncompressed, else from `scratch`. O(1).
    pub fn record<'a>(&'a self, _index: u64, _scratch: &'a mut Scratch) -> Result<&'a [u8]> {
        todo!()
    }
    /// Calls `visit(index, record)` for a range, in order, reading each chunk once.
    pub fn for_each(
        &self,
        _range: Range<u64>,
        _scratch: &mut Scratch,
        _visit: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        todo!()
    }
    /// Tells the system that these records are read soon.
    pub fn prefetch(&self, _index: u64) {}
}
