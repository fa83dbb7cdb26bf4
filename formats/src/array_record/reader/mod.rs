//! Reads ArrayRecord files: by record index here, lists in [`list`], whole files in [`scan`]; [`open`] reads the footer.

mod list;
mod open;
mod scan;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;

use crate::array_record::ChunkType;
use crate::array_record::chunk::{Decoded, Fault, Located, Values, fetch, single_record};
use crate::array_record::codec::Codec;
use crate::array_record::index::{ChunkIndex, Place};
use crate::store::{self, Location, MappedFile, ReadAt};
use crate::{Error, Position, Result};

pub use list::RecordBatch;
pub use scan::{Scan, ScanOptions};

/// Cache lines that [`Reader::prefetch`] asks for: a record of 1 kB with its headers, and the start of a larger one, whose rest the
/// processor then fetches by itself.
const PREFETCH_LINES: usize = 20;

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
    /// Records of a list, sorted, with their places in it.
    order: Vec<(u64, u32)>,
}

/// Which chunk a scratch holds.
#[derive(Debug, Clone, Copy)]
struct Cached {
    reader: u64,
    /// The records of the chunk.
    first: u64,
    end: u64,
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
/// | to read | use | holds |
/// |---|---|---|
/// | one record | [`record`](Self::record) | one chunk |
/// | records of a list | [`read`](Self::read), [`read_parallel`](Self::read_parallel) | them, and up to 32 MiB of an unmapped file |
/// | neighbours | [`read_range`](Self::read_range), [`for_each`](Self::for_each) | them; a chunk |
/// | the whole file by threads, in order | [`scan`](Self::scan) | a few batches |
/// | from a pipe, or without a footer | [`StreamReader`](crate::array_record::StreamReader) | one chunk |
///
/// The index of chunks takes about 2 bytes a chunk from the first read on (measured: 1.9 for 10^7 records of 1 kB in chunks of one, so 19 MB; 2 GB at
/// 10^9) until [`drop_index`](Self::drop_index). Each record read has the hashes of its chunk checked. The file signature and block headers
/// are not needed for that, and not looked at.
#[derive(Clone)]
pub struct Reader {
    inner: Arc<Inner>,
}

struct Inner {
    /// Tells the readers of a process apart, for `Scratch`.
    id: u64,
    source: Arc<dyn ReadAt>,
    summary: open::Summary,
    index: ArcSwapOption<ChunkIndex>,
    /// Held by the thread that builds the index.
    building: Mutex<()>,
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
    /// Opens a local file, mapped. O(chunks): some 10 ns each.
    ///
    /// # Errors
    ///
    /// As [`from_source`](Self::from_source), and [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_source(store::open(&Location::from_path(path))?)
    }

    /// Opens any source, and checks the whole footer.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] where postscript or footer are absent, damaged, or say what cannot be: the file is cut short, was never
    /// finished, or is of another kind. [`Error::Unsupported`] where the footer is compressed with a codec that is not.
    pub fn from_source(source: Arc<dyn ReadAt>) -> Result<Self> {
        let reader = Self::from_source_lazy(source)?;
        reader.load_index()?;
        Ok(reader)
    }

    /// Opens a local file without its index, in the time of four system calls (some 3 us) whatever its size; it is mapped when records are first
    /// read. See [`from_source_lazy`](Self::from_source_lazy).
    ///
    /// # Errors
    ///
    /// As [`from_source_lazy`](Self::from_source_lazy), and [`Error::Io`].
    pub fn open_lazy(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_source_lazy(Arc::new(MappedFile::open_lazy(path)?))
    }

    /// Opens a source by its postscript and the first record of its footer. O(1), but for sources that take long to answer (object stores):
    /// there the last bytes are fetched anyway, and the whole footer is read.
    ///
    /// The footer's hash is over all of it, so it is checked with the index, which the first read builds: until then
    /// [`num_records`](Self::num_records) and [`num_chunks`](Self::num_chunks) are what the file claims, in bounds but unproven, and a damaged
    /// footer shows as the error of the first read, or of [`load_index`](Self::load_index).
    ///
    /// # Errors
    ///
    /// As [`from_source`](Self::from_source), for what was looked at.
    pub fn from_source_lazy(source: Arc<dyn ReadAt>) -> Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let (summary, index) = open::read_summary(&*source)?;
        let reader = Self {
            inner: Arc::new(Inner {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                source,
                summary,
                index: ArcSwapOption::new(index.map(Arc::new)),
                building: Mutex::new(()),
            }),
        };
        reader.inner.source.settle();
        Ok(reader)
    }

    /// Builds the index of chunks if it is not there, checking all of the footer. O(chunks): some 10 ns each; reads need not ask for it.
    ///
    /// # Errors
    ///
    /// As [`from_source`](Self::from_source).
    pub fn load_index(&self) -> Result<()> {
        self.inner.index().map(|_| ())
    }

    /// Gives the memory of the index back. The next read builds it again; reads that are under way keep the old one until they end.
    pub fn drop_index(&self) {
        self.inner.index.store(None);
    }

    /// The file's name for messages.
    pub fn name(&self) -> &str {
        self.inner.source.name()
    }

    /// What it reads from.
    pub fn source(&self) -> &Arc<dyn ReadAt> {
        &self.inner.source
    }

    /// Number of records.
    pub fn num_records(&self) -> u64 {
        self.inner.summary.num_records
    }

    /// Number of chunks of records.
    pub fn num_chunks(&self) -> u64 {
        self.inner.summary.num_chunks
    }

    /// The options that the file was written with, as its writer recorded them; empty in old files.
    pub fn writer_options(&self) -> &str {
        &self.inner.summary.writer_options
    }

    /// Where the footer begins, which is where the chunks of records end.
    pub fn footer_offset(&self) -> u64 {
        self.inner.summary.footer_offset
    }

    /// Bytes of memory that the index takes now: 0 where it is not there.
    pub fn index_memory(&self) -> usize {
        self.inner.index.load().as_ref().map_or(0, |index| index.memory())
    }

    /// The chunk that holds a record that exists.
    pub fn chunk_of(&self, record: u64) -> Result<u64> {
        self.check_index(record)?;
        Ok(self.inner.index()?.chunk_of(record))
    }

    /// The records of a chunk that exists, whether it can be read or not.
    pub fn chunk_records(&self, chunk: u64) -> Result<Range<u64>> {
        let place = self.place(chunk)?;
        Ok(place.first..place.end)
    }

    /// Where a chunk that exists begins.
    pub fn chunk_offset(&self, chunk: u64) -> Result<u64> {
        Ok(self.place(chunk)?.begin)
    }

    /// What the header of a chunk says, its hash checked; the data are not looked at but for the codec.
    pub fn chunk_info(&self, chunk: u64, scratch: &mut Scratch) -> Result<ChunkInfo> {
        let place = self.place(chunk)?;
        scratch.cached = None;
        let fail = |fault| self.error(place, place.first, fault);
        let window = window(&*self.inner.source, place.begin, place.limit, &mut scratch.raw).map_err(fail)?;
        let located = Located::parse(window, place.begin, place.limit).map_err(fail)?;
        located.gather(window, &mut scratch.gathered).map_err(fail)?;
        let codec = scratch.gathered.first().and_then(|byte| Codec::from_byte(*byte));
        Ok(ChunkInfo {
            offset: place.begin,
            records: place.first..place.end,
            chunk_type: located.header.chunk_type,
            codec: codec.map_or("unknown", Codec::name),
            data_size: located.header.data_size,
            decoded_data_size: located.header.decoded_data_size,
        })
    }

    /// One record, hashes checked: borrowed from the file where it is mapped and uncompressed, else from `scratch`. O(1), or O(log chunks) where
    /// chunks hold different numbers of records; decodes the record's chunk, unless `scratch` holds it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an index that is too large; [`Error::Damaged`] naming record, chunk and offset where the chunk is
    /// damaged; [`Error::Unsupported`] for unknown compressions. Other records stay readable.
    #[inline]
    pub fn record<'a>(&'a self, index: u64, scratch: &'a mut Scratch) -> Result<&'a [u8]> {
        let inner = &*self.inner;
        let is_cached =
            |cached: &Cached| cached.reader == inner.id && cached.first <= index && index < cached.end;
        if let Some(cached) = scratch.cached.filter(is_cached) {
            let map = inner.source.as_slice().unwrap_or(&[]);
            return Ok(scratch.record(cached.records, map, (index - cached.first) as usize));
        }
        self.check_index(index)?;
        let chunks = inner.index()?;
        let place = chunks.place(chunks.chunk_of(index));
        drop(chunks);
        self.record_of(place, index, scratch)
    }

    /// A record of a chunk that the scratch does not hold.
    #[inline]
    fn record_of<'a>(&'a self, place: Place, index: u64, scratch: &'a mut Scratch) -> Result<&'a [u8]> {
        let records = match self.inner.load(place, scratch) {
            Ok(Loaded::Single(record)) => return Ok(record),
            Ok(Loaded::Cached(records)) => records,
            Err(fault) => return Err(self.error(place, index, fault)),
        };
        let map = self.inner.source.as_slice().unwrap_or(&[]);
        Ok(scratch.record(records, map, (index - place.first) as usize))
    }

    /// Calls `visit(index, record)` for a range, in order, reading each chunk once, near ones of an unmapped source together. Stops at the
    /// first error.
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record), and those of `visit`.
    pub fn for_each(
        &self,
        range: Range<u64>,
        scratch: &mut Scratch,
        mut visit: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.check_range(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        if self.inner.source.as_slice().is_none() {
            return self.visit_sorted(range, scratch, &mut visit);
        }
        let chunks = self.inner.index()?;
        let mut index = range.start;
        let mut chunk = chunks.chunk_of(index);
        while index < range.end {
            let place = chunks.place(chunk);
            let end = place.end.min(range.end);
            if place.num_records() == 1 {
                visit(index, self.record_of(place, index, scratch)?)?;
                index += 1;
            }
            while index < end {
                visit(index, self.record(index, scratch)?)?;
                index += 1;
            }
            chunk += 1;
        }
        Ok(())
    }

    /// Tells the processor that a record is read soon: worth it some 4 to 16 records ahead, in a mapped file. Costs some nanoseconds, reads
    /// nothing by itself, and ignores an index that is too large.
    #[inline]
    pub fn prefetch(&self, index: u64) {
        if let Some(chunks) = &*self.inner.index.load()
            && index < chunks.num_records()
        {
            self.prefetch_chunk(chunks, chunks.chunk_of(index));
        }
    }

    #[inline]
    fn prefetch_chunk(&self, chunks: &ChunkIndex, chunk: u64) {
        let Some(map) = self.inner.source.as_slice() else {
            return;
        };
        let (begin, end) = (chunks.offset(chunk), chunks.offset(chunk + 1));
        if let Some(bytes) = map.get(begin as usize..end as usize) {
            prefetch_start(bytes);
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

    fn check_range(&self, range: &Range<u64>) -> Result<()> {
        if range.start <= range.end && range.end <= self.num_records() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "records {}..{} were asked of `{}`, which has {}",
            range.start,
            range.end,
            self.name(),
            self.num_records()
        )))
    }

    /// Where a chunk lies, if there is one of that number.
    fn place(&self, chunk: u64) -> Result<Place> {
        let chunks = self.inner.index()?;
        if chunk < chunks.num_chunks() {
            return Ok(chunks.place(chunk));
        }
        Err(Error::Invalid(format!(
            "chunk {chunk} was asked of `{}`, which has {} (the first is 0)",
            self.name(),
            self.num_chunks()
        )))
    }

    /// Where a chunk that exists has to end.
    pub(super) fn limit(&self, chunk: u64) -> Result<u64> {
        Ok(self.place(chunk)?.limit)
    }

    #[cold]
    fn error(&self, place: Place, record: u64, fault: Fault) -> Error {
        let at = position(&*self.inner.source, Some(record), place.begin);
        fault.at(
            at,
            format_args!(
                "chunk {} with records {}..{}",
                place.chunk, place.first, place.end
            ),
        )
    }
}

/// The index while it is used; a guard of `arc-swap`, which costs no count that threads share.
struct Index(arc_swap::Guard<Option<Arc<ChunkIndex>>>);

impl Index {
    #[inline]
    fn of(guard: arc_swap::Guard<Option<Arc<ChunkIndex>>>) -> Option<Self> {
        guard.is_some().then_some(Self(guard))
    }
}

impl std::ops::Deref for Index {
    type Target = ChunkIndex;
    #[inline]
    fn deref(&self) -> &ChunkIndex {
        self.0.as_ref().expect("an `Index` is made of one that is there")
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
    /// The index, built now if it is not there.
    #[inline]
    fn index(&self) -> Result<Index> {
        match Index::of(self.index.load()) {
            Some(index) => Ok(index),
            None => self.build_index(),
        }
    }

    #[cold]
    fn build_index(&self) -> Result<Index> {
        let _building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        if let Some(index) = Index::of(self.index.load()) {
            return Ok(index);
        }
        let index = Arc::new(open::read_index(&*self.source, &self.summary)?);
        self.index.store(Some(Arc::clone(&index)));
        Ok(Index(arc_swap::Guard::from_inner(Some(index))))
    }

    #[inline]
    fn load<'a>(&'a self, place: Place, scratch: &mut Scratch) -> Result<Loaded<'a>, Fault> {
        if let Some(map) = self.source.as_slice() {
            let window = mapped(map, place.begin, place.limit)?;
            let located = Located::parse(window, place.begin, place.limit)?;
            if let Some(data) = located.contiguous(window) {
                located.check(data)?;
                if let Some(record) = single_record(&located.header, data) {
                    check_count(place, &located)?;
                    return Ok(Loaded::Single(record));
                }
            }
        }
        self.load_into(place, scratch).map(Loaded::Cached)
    }

    /// Reads and decodes a chunk of any kind into the scratch.
    fn load_into(&self, place: Place, scratch: &mut Scratch) -> Result<Records, Fault> {
        scratch.cached = None;
        let is_mapped = self.source.as_slice().is_some();
        let window = window(&*self.source, place.begin, place.limit, &mut scratch.raw)?;
        let located = Located::parse(window, place.begin, place.limit)?;
        check_count(place, &located)?;
        let (data, kind): (&[u8], fn(usize) -> Records) = match located.contiguous(window) {
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
                let in_window = || data.as_ptr().addr() - window.as_ptr().addr();
                let before = match kind(0) {
                    Records::Mapped(_) => place.begin as usize + in_window(),
                    Records::Raw(_) => in_window(),
                    _ => 0,
                };
                kind(before + start)
            }
        };
        scratch.cached = Some(Cached {
            reader: self.id,
            first: place.first,
            end: place.end,
            records,
        });
        Ok(records)
    }
}

/// Checks and decodes the chunk at the begin of `window`; gives its records, joined.
fn decode_window<'w>(
    place: Place,
    window: &'w [u8],
    gathered: &'w mut Vec<u8>,
    decoded: &'w mut Decoded,
) -> Result<(&'w [u8], &'w Decoded), Fault> {
    let located = Located::parse(window, place.begin, place.limit)?;
    check_count(place, &located)?;
    let data = match located.contiguous(window) {
        Some(data) => data,
        None => {
            located.gather(window, gathered)?;
            &gathered[..]
        }
    };
    located.check(data)?;
    let values = decoded.decode(&located.header, data, u64::MAX)?;
    let decoded = &*decoded;
    Ok((decoded.joined(values, data), decoded))
}

#[inline]
fn check_count(place: Place, located: &Located) -> Result<(), Fault> {
    if located.header.num_records != place.num_records() {
        return Err(Fault::Damaged(format!(
            "it holds {} records, the footer says {}",
            located.header.num_records,
            place.num_records()
        )));
    }
    Ok(())
}

/// A part of a map. It is always inside; a file that is changed while it is open must not be a panic.
#[inline]
fn mapped(map: &[u8], begin: u64, limit: u64) -> Result<&[u8], Fault> {
    map.get(begin as usize..limit as usize)
        .ok_or_else(|| Fault::Damaged("the file is shorter than it was when it was opened".into()))
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
        Some(map) => mapped(map, begin, limit),
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

/// Tells the processor that a record in memory is read soon, by the lines that it begins with.
#[inline]
pub(crate) fn prefetch_start(bytes: &[u8]) {
    for line in bytes.chunks(64).take(PREFETCH_LINES) {
        prefetch_line(line);
    }
}

/// Asks for the cache line where `bytes` begin.
#[inline]
fn prefetch_line(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; this one is inside a live slice. The safe twin is doing nothing (other
    // processors do), and no result depends on it. Measured: see `benches/reading.rs`, random reads one by one and in batches.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
