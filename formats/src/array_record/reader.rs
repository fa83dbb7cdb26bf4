//! Reads ArrayRecord files by record index.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::array_record::ChunkType;
use crate::array_record::chunk::{Decoded, Fault, Located, Values, fetch, single_record};
use crate::array_record::codec::Codec;
use crate::array_record::footer::{Entry, MAX_ENTRY_BYTES, MAX_METADATA_BYTES, Metadata, parse_postscript};
use crate::array_record::index::{ChunkIndex, IndexBuilder};
use crate::array_record::layout::{BLOCK, CHUNK_HEADER, FIRST_CHUNK, is_chunk_boundary};
use crate::store::{Location, ReadAt, open};
use crate::{Error, Position, Result};

/// Cache lines that [`Reader::prefetch`] asks for: a record of 1 kB with its headers, and the start of a larger one, whose rest the
/// processor then fetches by itself.
const PREFETCH_LINES: u64 = 20;

/// Buffers that a reading thread keeps from one record to the next, and the chunk it read last.
///
/// Holds one chunk decoded and one as stored. Neighbours in a chunk of many records are decoded once.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The file's bytes of the chunk, where it is not mapped.
    raw: Vec<u8>,
    /// The chunk's data, where a block header interrupts them.
    gathered: Vec<u8>,
    decoded: Decoded,
    cached: Option<Cached>,
}

/// Which chunk a scratch holds.
#[derive(Debug, Clone, Copy)]
struct Cached {
    reader: u64,
    chunk: u64,
    records: Records,
}

/// Where the joined records of the chunk begin.
#[derive(Debug, Clone, Copy)]
enum Records {
    /// In the mapped file.
    Mapped(usize),
    /// In `Scratch::raw`.
    Raw(usize),
    /// In `Scratch::gathered`.
    Gathered(usize),
    /// In `Decoded::values`.
    Decompressed,
}

impl Scratch {
    #[inline]
    fn record<'a>(&'a self, records: Records, map: &'a [u8], record: usize) -> &'a [u8] {
        let range = self.decoded.range(record);
        let (bytes, start) = match records {
            Records::Mapped(start) => (map, start),
            Records::Raw(start) => (&self.raw[..], start),
            Records::Gathered(start) => (&self.gathered[..], start),
            Records::Decompressed => (&self.decoded.values[..], 0),
        };
        &bytes[start + range.start..start + range.end]
    }
}

/// A chunk of records as its header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkInfo {
    /// Bytes from the start of the file to the start of the chunk.
    pub offset: u64,
    /// The records in it.
    pub records: Range<u64>,
    /// How the records are laid out.
    pub chunk_type: ChunkType,
    /// `uncompressed`, `zstd`, `brotli`, `snappy`, or `unknown`.
    pub codec: &'static str,
    /// Bytes as stored, without headers.
    pub data_size: u64,
    /// Bytes of the records.
    pub decoded_data_size: u64,
}

/// Reads records of an ArrayRecord file by index; cheap to share between threads.
///
/// Opening reads the footer and checks it against the file's length and itself; it holds about 2.5 bytes per chunk from then on. Each record
/// read has the hashes of its chunk checked. The file signature and block headers are not needed for that, and not looked at.
#[derive(Clone)]
pub struct Reader {
    inner: Arc<Inner>,
}

struct Inner {
    /// Tells the readers of a process apart, for `Scratch`.
    id: u64,
    source: Arc<dyn ReadAt>,
    index: ChunkIndex,
    writer_options: String,
    footer_offset: u64,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("source", &self.inner.source)
            .field("num_records", &self.num_records())
            .field("num_chunks", &self.num_chunks())
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a local file, mapped.
    ///
    /// # Errors
    ///
    /// As [`from_source`](Self::from_source), and [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_source(open(&Location::from_path(path))?)
    }

    /// Opens any source.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] where postscript or footer are absent, damaged, or say what cannot be: the file is cut short, was never
    /// finished, or is of another kind. [`Error::Unsupported`] where the footer is compressed with a codec that is not.
    pub fn from_source(source: Arc<dyn ReadAt>) -> Result<Self> {
        let mut scratch = Scratch::default();
        let footer_offset = read_postscript(&*source, &mut scratch)?;
        let (index, writer_options) = read_footer(&*source, footer_offset, &mut scratch)?;
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            inner: Arc::new(Inner {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                source,
                index,
                writer_options,
                footer_offset,
            }),
        })
    }

    /// The file's name for messages.
    pub fn name(&self) -> &str {
        self.inner.source.name()
    }

    /// Number of records.
    pub fn num_records(&self) -> u64 {
        self.inner.index.num_records()
    }

    /// Number of chunks of records.
    pub fn num_chunks(&self) -> u64 {
        self.inner.index.num_chunks()
    }

    /// The options that the file was written with, as its writer recorded them; empty in old files.
    pub fn writer_options(&self) -> &str {
        &self.inner.writer_options
    }

    /// Where the footer begins, which is where the chunks of records end.
    pub fn footer_offset(&self) -> u64 {
        self.inner.footer_offset
    }

    /// Bytes of memory that the index takes.
    pub fn index_memory(&self) -> usize {
        self.inner.index.memory()
    }

    /// The chunk that holds a record that exists.
    pub fn chunk_of(&self, record: u64) -> Result<u64> {
        self.check_index(record)?;
        Ok(self.inner.index.chunk_of(record).0)
    }

    /// The records of a chunk that exists, whether it can be read or not.
    pub fn chunk_records(&self, chunk: u64) -> Result<Range<u64>> {
        self.check_chunk(chunk)?;
        let index = &self.inner.index;
        Ok(index.first_record(chunk)..index.first_record(chunk + 1))
    }

    /// Where a chunk that exists begins.
    pub fn chunk_offset(&self, chunk: u64) -> Result<u64> {
        self.check_chunk(chunk)?;
        Ok(self.inner.index.offset(chunk))
    }

    /// What the header of a chunk says, its hash checked; the data are not looked at but for the codec.
    pub fn chunk_info(&self, chunk: u64, scratch: &mut Scratch) -> Result<ChunkInfo> {
        let records = self.chunk_records(chunk)?;
        scratch.cached = None;
        let inner = &*self.inner;
        let (begin, limit) = (inner.index.offset(chunk), self.limit(chunk));
        let window = inner
            .window(begin, limit, &mut scratch.raw)
            .map_err(|fault| self.error(chunk, records.start, fault))?;
        let located =
            Located::parse(window, begin, limit).map_err(|fault| self.error(chunk, records.start, fault))?;
        located
            .gather(window, &mut scratch.gathered)
            .map_err(|fault| self.error(chunk, records.start, fault))?;
        let codec = scratch.gathered.first().and_then(|byte| Codec::from_byte(*byte));
        Ok(ChunkInfo {
            offset: begin,
            records,
            chunk_type: located.header.chunk_type,
            codec: codec.map_or("unknown", Codec::name),
            data_size: located.header.data_size,
            decoded_data_size: located.header.decoded_data_size,
        })
    }

    /// One record, hashes checked: borrowed from the file where it is mapped and uncompressed, else from `scratch`. O(1).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an index that is too large; [`Error::Damaged`] naming record, chunk and offset where the chunk is
    /// damaged; [`Error::Unsupported`] for unknown compressions. Other records stay readable.
    #[inline]
    pub fn record<'a>(&'a self, index: u64, scratch: &'a mut Scratch) -> Result<&'a [u8]> {
        self.check_index(index)?;
        let inner = &*self.inner;
        let (chunk, record) = inner.index.chunk_of(index);
        let is_cached = |cached: &Cached| cached.chunk == chunk && cached.reader == inner.id;
        let map = inner.source.as_slice().unwrap_or(&[]);
        if let Some(cached) = scratch.cached.filter(is_cached) {
            return Ok(scratch.record(cached.records, map, record as usize));
        }
        let records = match inner.load(chunk, scratch) {
            Ok(Loaded::Single(record)) => return Ok(record),
            Ok(Loaded::Cached(records)) => records,
            Err(fault) => return Err(self.error(chunk, index, fault)),
        };
        Ok(scratch.record(records, map, record as usize))
    }

    /// Calls `visit(index, record)` for a range, in order, reading each chunk once. Stops at the first error.
    pub fn for_each(
        &self,
        range: Range<u64>,
        scratch: &mut Scratch,
        mut visit: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if range.start > range.end || range.end > self.num_records() {
            return Err(Error::Invalid(format!(
                "records {}..{} were asked of `{}`, which has {}",
                range.start,
                range.end,
                self.name(),
                self.num_records()
            )));
        }
        let mut index = range.start;
        while index < range.end {
            visit(index, self.record(index, scratch)?)?;
            index += 1;
        }
        Ok(())
    }

    /// Tells the processor that a record is read soon: worth it some 4 to 16 records ahead, in a mapped file. Costs some nanoseconds, reads
    /// nothing by itself, and ignores an index that is too large.
    #[inline]
    pub fn prefetch(&self, index: u64) {
        if index >= self.num_records() {
            return;
        }
        let inner = &*self.inner;
        let Some(map) = inner.source.as_slice() else {
            return;
        };
        let chunk = inner.index.chunk_of(index).0;
        let begin = inner.index.offset(chunk);
        let end = self.limit(chunk).min(begin + PREFETCH_LINES * 64);
        let Some(bytes) = map.get(begin as usize..end as usize) else {
            return;
        };
        for line in bytes.chunks(64) {
            prefetch_line(line);
        }
    }

    fn check_index(&self, record: u64) -> Result<()> {
        if record < self.num_records() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "record {record} was asked of `{}`, which has {} (the first is 0)",
            self.name(),
            self.num_records()
        )))
    }

    fn check_chunk(&self, chunk: u64) -> Result<()> {
        if chunk < self.num_chunks() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "chunk {chunk} was asked of `{}`, which has {} (the first is 0)",
            self.name(),
            self.num_chunks()
        )))
    }

    /// Where a chunk has to end.
    pub(super) fn limit(&self, chunk: u64) -> u64 {
        self.inner.limit(chunk)
    }

    #[cold]
    fn error(&self, chunk: u64, record: u64, fault: Fault) -> Error {
        let index = &self.inner.index;
        let (first, end) = (index.first_record(chunk), index.first_record(chunk + 1));
        let at = position(&*self.inner.source, Some(record), index.offset(chunk));
        fault.at(at, format_args!("chunk {chunk} with records {first}..{end}"))
    }
}

/// A chunk brought in.
enum Loaded<'a> {
    /// The only record of it, borrowed from the mapped file; the scratch is as before.
    Single(&'a [u8]),
    /// All of it, in the scratch.
    Cached(Records),
}

impl Inner {
    fn limit(&self, chunk: u64) -> u64 {
        if chunk + 1 < self.index.num_chunks() {
            self.index.offset(chunk + 1)
        } else {
            self.footer_offset
        }
    }

    /// The bytes of the file from `begin`, mapped or read into `raw`.
    #[inline]
    fn window<'a>(&'a self, begin: u64, limit: u64, raw: &'a mut Vec<u8>) -> Result<&'a [u8], Fault> {
        window(&*self.source, begin, limit, raw)
    }

    #[inline]
    fn load<'a>(&'a self, chunk: u64, scratch: &mut Scratch) -> Result<Loaded<'a>, Fault> {
        let (begin, limit) = (self.index.offset(chunk), self.limit(chunk));
        if let Some(map) = self.source.as_slice() {
            let window = &map[begin as usize..limit as usize];
            let located = Located::parse(window, begin, limit)?;
            if let Some(data) = located.contiguous(window) {
                located.check(data)?;
                if let Some(record) = single_record(&located.header, data) {
                    self.check_count(chunk, &located)?;
                    return Ok(Loaded::Single(record));
                }
            }
        }
        self.load_into(chunk, begin, limit, scratch).map(Loaded::Cached)
    }

    /// Reads and decodes a chunk of any kind into the scratch.
    fn load_into(&self, chunk: u64, begin: u64, limit: u64, scratch: &mut Scratch) -> Result<Records, Fault> {
        scratch.cached = None;
        let is_mapped = self.source.as_slice().is_some();
        let window = window(&*self.source, begin, limit, &mut scratch.raw)?;
        let located = Located::parse(window, begin, limit)?;
        self.check_count(chunk, &located)?;
        let (data, place): (&[u8], fn(usize) -> Records) = match located.contiguous(window) {
            Some(data) if is_mapped => (data, Records::Mapped),
            Some(data) => (data, Records::Raw),
            None => {
                located.gather(window, &mut scratch.gathered)?;
                (&scratch.gathered, Records::Gathered)
            }
        };
        located.check(data)?;
        let values = scratch.decoded.decode(&located.header, data, u64::MAX)?;
        let records = match values {
            Values::Decompressed => Records::Decompressed,
            Values::InData(start) => {
                let before = match place(0) {
                    Records::Mapped(_) => begin as usize + (data.as_ptr().addr() - window.as_ptr().addr()),
                    Records::Raw(_) => data.as_ptr().addr() - window.as_ptr().addr(),
                    _ => 0,
                };
                place(before + start)
            }
        };
        scratch.cached = Some(Cached {
            reader: self.id,
            chunk,
            records,
        });
        Ok(records)
    }

    #[inline]
    fn check_count(&self, chunk: u64, located: &Located) -> Result<(), Fault> {
        let wanted = self.index.first_record(chunk + 1) - self.index.first_record(chunk);
        if located.header.num_records != wanted {
            return Err(Fault::Damaged(format!(
                "it holds {} records, the footer says {wanted}",
                located.header.num_records
            )));
        }
        Ok(())
    }
}

/// The bytes of the file from `begin` to `limit`, mapped; or the chunk at `begin`, read into `raw`.
#[inline]
pub(super) fn window<'a>(
    source: &'a dyn ReadAt,
    begin: u64,
    limit: u64,
    raw: &'a mut Vec<u8>,
) -> Result<&'a [u8], Fault> {
    match source.as_slice() {
        Some(map) => Ok(&map[begin as usize..limit as usize]),
        None => {
            fetch(source, begin, limit, raw)?;
            Ok(raw)
        }
    }
}

fn position(source: &dyn ReadAt, record: Option<u64>, offset: u64) -> Position {
    Position {
        path: source.name().to_string(),
        record,
        offset: Some(offset),
    }
}

/// Reads and decodes a chunk that is not of the index, into `scratch.decoded`; gives its header's place and the data.
fn read_chunk<'a>(
    source: &'a dyn ReadAt,
    begin: u64,
    limit: u64,
    scratch: &'a mut Scratch,
    max_values: impl Fn(&Located) -> u64,
) -> Result<(&'a [u8], &'a Decoded), Fault> {
    scratch.cached = None;
    let window = window(source, begin, limit, &mut scratch.raw)?;
    let located = Located::parse(window, begin, limit)?;
    let data = match located.contiguous(window) {
        Some(data) => data,
        None => {
            located.gather(window, &mut scratch.gathered)?;
            &scratch.gathered
        }
    };
    located.check(data)?;
    let values = scratch
        .decoded
        .decode(&located.header, data, max_values(&located))?;
    let values = match values {
        Values::InData(start) => &data[start..],
        Values::Decompressed => &scratch.decoded.values,
    };
    Ok((values, &scratch.decoded))
}

/// Reads where the footer begins from the last block.
fn read_postscript(source: &dyn ReadAt, scratch: &mut Scratch) -> Result<u64> {
    let length = source.len();
    let begin = length.saturating_sub(BLOCK);
    let fail = |reason: String| Error::Damaged {
        at: position(source, None, begin),
        reason,
    };
    if !length.is_multiple_of(BLOCK) || length < 2 * BLOCK {
        return Err(fail(format!(
            "{}: the file has {length} bytes, wanted a multiple of {BLOCK} from {} on",
            guess(source, scratch),
            2 * BLOCK
        )));
    }
    let (values, decoded) = match read_chunk(source, begin, length, scratch, |_| BLOCK) {
        Ok(found) => found,
        Err(Fault::Source(error)) => return Err(error),
        Err(Fault::Damaged(reason) | Fault::Unsupported(reason)) => {
            return Err(fail(format!(
                "{}: no postscript in the last {BLOCK} bytes: {reason}",
                guess(source, scratch)
            )));
        }
    };
    if decoded.ends.is_empty() {
        return Err(fail("the postscript is empty".into()));
    }
    let footer_offset = parse_postscript(&values[decoded.range(0)]).map_err(fail)?;
    if footer_offset < FIRST_CHUNK || footer_offset >= begin || !is_chunk_boundary(footer_offset) {
        return Err(fail(format!(
            "the postscript puts the footer at byte {footer_offset}, which cannot be in a file of {length} bytes"
        )));
    }
    Ok(footer_offset)
}

/// What the file seems to be, from its first bytes.
fn guess(source: &dyn ReadAt, scratch: &mut Scratch) -> &'static str {
    scratch.raw.clear();
    scratch.raw.resize(source.len().min(8) as usize, 0);
    if source.read_at(0, &mut scratch.raw).is_err() || scratch.raw.is_empty() {
        return "the file is empty, not an ArrayRecord file";
    }
    if scratch.raw == super::SIGNATURE {
        "the file begins as an ArrayRecord file, but is cut short, or was not finished, or has something behind its end"
    } else if scratch.raw.starts_with(&[0x1f, 0x8b]) {
        "not an ArrayRecord file, but gzip"
    } else {
        "not an ArrayRecord file, or its ends are damaged"
    }
}

/// Reads the footer and builds the index; everything it says is checked against the file first.
fn read_footer(
    source: &dyn ReadAt,
    footer_offset: u64,
    scratch: &mut Scratch,
) -> Result<(ChunkIndex, String)> {
    let at = || position(source, None, footer_offset);
    let fail = |reason: String| Error::Damaged { at: at(), reason };
    let limit = source.len() - BLOCK;
    // Entries are small: a footer that claims more is not one.
    let max_values = |located: &Located| {
        let entries = located.header.num_records.saturating_mul(MAX_ENTRY_BYTES);
        entries.saturating_add(MAX_METADATA_BYTES)
    };
    let (values, decoded) = read_chunk(source, footer_offset, limit, scratch, max_values)
        .map_err(|fault| fault.at(at(), "the footer"))?;
    if decoded.ends.is_empty() {
        return Err(fail("the footer is empty".into()));
    }
    let metadata = Metadata::parse(&values[decoded.range(0)]).map_err(fail)?;
    let num_entries = decoded.ends.len() as u64 - 1;
    if num_entries != metadata.num_chunks {
        return Err(fail(format!(
            "the footer has entries for {num_entries} chunks, its metadata say {}",
            metadata.num_chunks
        )));
    }
    let mut builder = IndexBuilder::default();
    let (mut next, mut num_records) = (FIRST_CHUNK, 0u64);
    for chunk in 0..num_entries {
        let entry = Entry::parse(&values[decoded.range(chunk as usize + 1)])
            .ok_or_else(|| fail(format!("the footer's entry for chunk {chunk} is malformed")))?;
        // A chunk takes a header, and a byte for each record.
        let size = entry.num_records.max(CHUNK_HEADER);
        let end = entry
            .chunk_offset
            .checked_add(size)
            .filter(|end| *end <= footer_offset);
        let (true, true, Some(end)) = (entry.num_records > 0, entry.chunk_offset >= next, end) else {
            return Err(fail(format!(
                "the footer says that chunk {chunk} with {} records begins at byte {}, which cannot be: the one before ends at {next} or later, \
                 the footer begins at {footer_offset}",
                entry.num_records, entry.chunk_offset
            )));
        };
        builder.push(entry.chunk_offset, entry.num_records);
        num_records += entry.num_records;
        next = end;
    }
    if num_records != metadata.num_records {
        return Err(fail(format!(
            "the footer's chunks hold {num_records} records, its metadata say {}",
            metadata.num_records
        )));
    }
    Ok((builder.finish(), metadata.writer_options))
}

/// Asks for the cache line where `bytes` begin.
#[inline]
fn prefetch_line(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; this one is inside a live slice. The safe twin is doing nothing (other
    // processors do), and no result depends on it. Measured: see `benches/records.rs`, random reads with and without.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
