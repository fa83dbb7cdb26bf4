//! Records of lists and ranges, into a buffer of the caller's.

use std::fmt;
use std::ops::{Index, Range};

use crate::Result;
use crate::array_record::Reader;
use crate::array_record::chunk::{Fault, SMALL_WINDOW};
use crate::array_record::index::{ChunkIndex, Place};
use crate::array_record::reader::{Scratch, decode_window};
use crate::store::Part;

/// Records that the processor is told of ahead. 4 to 16 measured the same.
const AHEAD: usize = 8;
/// Bytes of an unmapped file that are asked for together; larger chunks come alone.
const FETCH_BYTES: u64 = 32 << 20;
/// Longest run of bytes of one request, so that several are in flight.
const RUN_BYTES: u64 = 4 << 20;

/// Records one after the other in one buffer, which is reused from one read to the next.
///
/// # Examples
///
/// ```
/// use prep_formats::array_record::RecordBatch;
///
/// let mut batch = RecordBatch::default();
/// batch.push(b"one");
/// batch.push(b"");
/// assert_eq!(batch.iter().collect::<Vec<_>>(), [&b"one"[..], b""]);
/// assert_eq!(&batch[0], b"one");
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RecordBatch {
    bytes: Vec<u8>,
    /// Where each record lies in the bytes.
    ranges: Vec<Range<usize>>,
}

impl fmt::Debug for RecordBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordBatch")
            .field("len", &self.len())
            .field("num_bytes", &self.num_bytes())
            .finish()
    }
}

impl RecordBatch {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of the records. One that was asked for twice may count once.
    pub fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// A record, if there is one of that number.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        Some(&self.bytes[self.ranges.get(index)?.clone()])
    }

    /// The records, in the order asked for.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + DoubleEndedIterator {
        self.ranges.iter().map(|range| &self.bytes[range.clone()])
    }

    /// Removes all records, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }

    /// Appends a record.
    #[inline]
    pub fn push(&mut self, record: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(record);
        self.ranges.push(start..self.bytes.len());
    }

    /// Puts the records into another order: `order` has the present position of each.
    pub(crate) fn arrange(&mut self, order: &[usize]) {
        self.ranges = order.iter().map(|&at| self.ranges[at].clone()).collect();
    }

    /// Whether it holds memory worth keeping.
    pub(super) fn is_used(&self) -> bool {
        self.bytes.capacity() > 0
    }

    /// Appends a record that was appended already.
    fn repeat_last(&mut self) {
        if let Some(last) = self.ranges.last() {
            self.ranges.push(last.clone());
        }
    }
}

/// The record of a number.
///
/// # Panics
///
/// Where there is none.
impl Index<usize> for RecordBatch {
    type Output = [u8];
    fn index(&self, index: usize) -> &[u8] {
        &self.bytes[self.ranges[index].clone()]
    }
}

impl Reader {
    /// Reads the records of a list into `batch`, in the list's order, replacing what it held. Records may be asked for in any order and
    /// more than once; each chunk is read and decoded once.
    ///
    /// O(n log n) in the length of the list (O(n) where each chunk holds one record of a mapped file, or the list is sorted). Of an unmapped
    /// source chunks that lie near each other come in one request, and requests of an object store are in flight together.
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record), for the first record in file order that cannot be read; one out of range before anything is read. `batch` is empty then.
    ///
    /// # Examples
    ///
    /// ```
    /// use prep_formats::array_record::{Reader, RecordBatch, Scratch, WriteOptions, Writer};
    /// use prep_formats::store::MemoryFile;
    /// use std::sync::Arc;
    ///
    /// let mut writer = Writer::new(Vec::new(), WriteOptions::default())?;
    /// for record in ["a", "b", "c"] {
    ///     writer.write(record.as_bytes())?;
    /// }
    /// let reader = Reader::from_source(Arc::new(MemoryFile::new("example", writer.finish()?)))?;
    /// let (mut batch, mut scratch) = (RecordBatch::default(), Scratch::default());
    /// reader.read(&[2, 0, 2], &mut batch, &mut scratch)?;
    /// assert_eq!(batch.iter().collect::<Vec<_>>(), [b"c", b"a", b"c"]);
    /// # Ok::<(), prep_formats::Error>(())
    /// ```
    pub fn read(&self, indices: &[u64], batch: &mut RecordBatch, scratch: &mut Scratch) -> Result<()> {
        batch.clear();
        let result = self.read_rows(indices, batch, scratch);
        if result.is_err() {
            batch.clear();
        }
        result
    }

    fn read_rows(&self, indices: &[u64], batch: &mut RecordBatch, scratch: &mut Scratch) -> Result<()> {
        for &index in indices {
            self.check_index(index)?;
        }
        if indices.is_empty() {
            return Ok(());
        }
        let chunks = self.inner.index()?;
        batch.ranges.reserve(indices.len());
        if chunks.is_one_each() && self.inner.source.as_slice().is_some() {
            for (row, &index) in indices.iter().enumerate() {
                if let Some(&ahead) = indices.get(row + AHEAD) {
                    self.prefetch_chunk(&chunks, ahead);
                }
                batch.push(self.record_of(chunks.place(index), index, scratch)?);
            }
            return Ok(());
        }
        if indices.is_sorted() {
            return self.read_sorted(&chunks, indices.iter().copied(), batch, scratch);
        }
        let mut order = std::mem::take(&mut scratch.order);
        order.clear();
        order.extend(indices.iter().copied().zip(0..));
        order.sort_unstable();
        let result = self.read_sorted(&chunks, order.iter().map(|(index, _)| *index), batch, scratch);
        if result.is_ok() {
            batch.ranges = unsort(&batch.ranges, &order);
        }
        scratch.order = order;
        result
    }

    /// Reads the records of a range into `batch`, replacing what it held. O(bytes); memory for all of them.
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record), for the first record that cannot be read; `batch` is empty then.
    pub fn read_range(
        &self,
        range: Range<u64>,
        batch: &mut RecordBatch,
        scratch: &mut Scratch,
    ) -> Result<()> {
        batch.clear();
        let result = self.for_each(range, scratch, |_, record| {
            batch.push(record);
            Ok(())
        });
        if result.is_err() {
            batch.clear();
        }
        result
    }

    /// Reads as [`read`](Self::read) does, with `num_threads` threads that decode and check; the result is the same. Worth it from some 100
    /// records of 1 kB that are compressed: starting a thread costs 20 to 50 us. Needs memory for the records twice while it joins them.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_parallel(&self, indices: &[u64], batch: &mut RecordBatch, num_threads: usize) -> Result<()> {
        batch.clear();
        for &index in indices {
            self.check_index(index)?;
        }
        if indices.is_empty() {
            return Ok(());
        }
        let chunks = self.inner.index()?;
        let mut order: Vec<(u64, u32)> = indices.iter().copied().zip(0..).collect();
        order.sort_unstable();
        // Runs of equal length, moved to where a chunk begins.
        let length = order.len().div_ceil(num_threads.max(1));
        let mut runs = Vec::new();
        let mut start = 0;
        while start < order.len() {
            let mut end = (start + length).min(order.len());
            let chunk_end = chunks.place(chunks.chunk_of(order[end - 1].0)).end;
            end += order[end..].partition_point(|(index, _)| *index < chunk_end);
            runs.push(start..end);
            start = end;
        }
        let read_run = |run: Range<usize>| {
            let mut part = RecordBatch::default();
            let records = order[run].iter().map(|(index, _)| *index);
            self.read_sorted(&chunks, records, &mut part, &mut Scratch::default())
                .map(|()| part)
        };
        let parts: Vec<Result<RecordBatch>> = std::thread::scope(|scope| {
            let mut runs = runs.into_iter();
            let first = runs.next();
            let threads: Vec<_> = runs.map(|run| scope.spawn(|| read_run(run))).collect();
            let mut parts: Vec<_> = first.into_iter().map(read_run).collect();
            for thread in threads {
                match thread.join() {
                    Ok(part) => parts.push(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            parts
        });
        let mut ranges = Vec::with_capacity(order.len());
        let mut bytes = std::mem::take(&mut batch.bytes);
        for part in parts {
            let part = part?;
            let start = bytes.len();
            bytes.extend_from_slice(&part.bytes);
            ranges.extend(
                part.ranges
                    .into_iter()
                    .map(|range| start + range.start..start + range.end),
            );
        }
        batch.bytes = bytes;
        batch.ranges = unsort(&ranges, &order);
        Ok(())
    }

    /// Appends records whose indices are in range and do not fall.
    fn read_sorted(
        &self,
        chunks: &ChunkIndex,
        records: impl Iterator<Item = u64> + Clone,
        batch: &mut RecordBatch,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut last = None;
        let mut push = |index, record: &[u8]| {
            if last == Some(index) {
                batch.repeat_last();
            } else {
                batch.push(record);
            }
            last = Some(index);
            Ok(())
        };
        if self.inner.source.as_slice().is_none() {
            return self.visit_records(chunks, records, scratch, &mut push);
        }
        let mut ahead = records.clone().skip(AHEAD);
        for index in records {
            if let Some(ahead) = ahead.next() {
                self.prefetch_chunk(chunks, chunks.chunk_of(ahead));
            }
            push(index, self.record(index, scratch)?)?;
        }
        Ok(())
    }

    /// Calls `visit` for a range of records of an unmapped source that exist, in order.
    pub(super) fn visit_sorted(
        &self,
        range: Range<u64>,
        scratch: &mut Scratch,
        visit: &mut impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let chunks = self.inner.index()?;
        self.visit_records(&chunks, range, scratch, visit)
    }

    /// Calls `visit` for records of an unmapped source that exist and whose indices do not fall. Brings in up to 32 MiB of chunks at a time.
    fn visit_records(
        &self,
        chunks: &ChunkIndex,
        records: impl Iterator<Item = u64>,
        scratch: &mut Scratch,
        visit: &mut impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut records = records.peekable();
        // A chunk that is there already, or that is large, comes as a single record does.
        let mut fetch = Fetch::default();
        let mut wanted: Vec<u64> = Vec::new();
        while let Some(&next) = records.peek() {
            fetch.clear();
            wanted.clear();
            let place = chunks.place(chunks.chunk_of(next));
            let is_cached = scratch
                .cached
                .is_some_and(|cached| cached.reader == self.inner.id && cached.first == place.first);
            if is_cached || place.limit - place.begin > SMALL_WINDOW {
                while let Some(index) = records.next_if(|index| *index < place.end) {
                    visit(index, self.record(index, scratch)?)?;
                }
                continue;
            }
            // What is wanted of the chunks that are fetched together.
            let mut last = None;
            while let Some(&index) = records.peek() {
                let chunk = chunks.chunk_of(index);
                if last != Some(chunk) {
                    let place = chunks.place(chunk);
                    if !fetch.takes(place) {
                        break;
                    }
                    fetch.add(place, self.inner.source.request_cost());
                    last = Some(chunk);
                }
                wanted.push(index);
                records.next();
            }
            self.run(&mut fetch, &wanted, scratch, visit)?;
        }
        Ok(())
    }

    /// Fetches and decodes chunks, and hands out what is wanted of them.
    fn run(
        &self,
        fetch: &mut Fetch,
        wanted: &[u64],
        scratch: &mut Scratch,
        visit: &mut impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        scratch.cached = None;
        fetch.read(|parts| self.inner.source.read_many(parts))?;
        let mut wanted = wanted.iter().copied().peekable();
        for (place, window) in fetch.chunks() {
            let decoded = decode_window(place, window, &mut scratch.gathered, &mut scratch.decoded);
            let (values, decoded) = decoded.map_err(|fault: Fault| {
                self.error(place, wanted.peek().copied().unwrap_or(place.first), fault)
            })?;
            while let Some(index) = wanted.next_if(|index| *index < place.end) {
                visit(index, &values[decoded.range((index - place.first) as usize)])?;
            }
        }
        Ok(())
    }
}

/// Puts the ranges of sorted records where the list had them.
fn unsort(sorted: &[Range<usize>], order: &[(u64, u32)]) -> Vec<Range<usize>> {
    let mut ranges = vec![0..0; sorted.len()];
    for (range, &(_, row)) in sorted.iter().zip(order) {
        ranges[row as usize] = range.clone();
    }
    ranges
}

/// Chunks that are read together, in file order.
#[derive(Debug, Default)]
struct Fetch {
    /// Each chunk, and where its bytes begin in the buffer.
    places: Vec<(Place, usize)>,
    /// Runs of bytes of the file, one behind the other in the buffer.
    runs: Vec<Range<u64>>,
    buffer: Vec<u8>,
    length: u64,
}

impl Fetch {
    fn clear(&mut self) {
        self.places.clear();
        self.runs.clear();
        self.length = 0;
    }

    /// Whether a chunk may come with those that are here.
    fn takes(&self, place: Place) -> bool {
        let size = place.limit - place.begin;
        size <= SMALL_WINDOW && (self.places.is_empty() || self.length + size <= FETCH_BYTES)
    }

    /// Adds a chunk behind those that are here. One that is no farther from the last than `gap` bytes comes in the same run.
    fn add(&mut self, place: Place, gap: u64) {
        let start = match self.runs.last_mut() {
            Some(run)
                if place.begin - run.end <= gap
                    && place.limit - run.start <= RUN_BYTES
                    && self.length + (place.limit - run.end) <= FETCH_BYTES + RUN_BYTES =>
            {
                let start = self.length + (place.begin - run.end);
                self.length += place.limit - run.end;
                run.end = place.limit;
                start
            }
            _ => {
                self.runs.push(place.begin..place.limit);
                let start = self.length;
                self.length += place.limit - place.begin;
                start
            }
        };
        self.places.push((place, start as usize));
    }

    fn read(&mut self, read_many: impl FnOnce(&mut [Part<'_>]) -> Result<()>) -> Result<()> {
        // Zeroed once: a buffer in use is not written twice.
        if self.buffer.len() < self.length as usize {
            self.buffer.resize(self.length as usize, 0);
        }
        let mut rest = &mut self.buffer[..self.length as usize];
        let mut parts = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            let (buffer, behind) = rest.split_at_mut((run.end - run.start) as usize);
            parts.push(Part {
                offset: run.start,
                buffer,
            });
            rest = behind;
        }
        read_many(&mut parts)
    }

    fn chunks(&self) -> impl Iterator<Item = (Place, &[u8])> {
        self.places.iter().map(|&(place, start)| {
            let size = (place.limit - place.begin) as usize;
            (place, &self.buffer[start..start + size])
        })
    }
}
