//! Reads records of a plain TFRecord file by index.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::array_record::{RecordBatch, prefetch_start};
use crate::store::{Location, Part, ReadAt, open};
use crate::tfrecord::frame::{HEADER, TRAILER, check_payload, length_error, length_of, payload_error};
use crate::tfrecord::{CrcPolicy, Index};
use crate::{Error, Position, Result};

/// Bytes between two wanted records that are read rather than jumped over, where a request costs less.
const GAP_BYTES: u64 = 16 << 10;
/// Bytes of one read that serves several records.
const READ_BYTES: u64 = 4 << 20;
/// Bytes of reads that are asked for together.
const FETCH_BYTES: u64 = 32 << 20;

/// Reads records of a plain TFRecord file by index, from many threads at once.
///
/// Every record is checked as it is read: its length against the index and its checksum, its payload against its checksum.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use prep_formats::store::MemoryFile;
/// use prep_formats::tfrecord::{Compression, IndexedReader, Writer};
///
/// let mut writer = Writer::new(Vec::new(), Compression::Plain)?;
/// for record in ["one", "two", "three"] {
///     writer.write(record.as_bytes())?;
/// }
/// let reader = IndexedReader::new(Arc::new(MemoryFile::new("example", writer.finish()?)))?;
/// assert_eq!(reader.num_records(), 3);
/// assert_eq!(reader.record(2, &mut Vec::new())?, b"three");
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct IndexedReader {
    source: Arc<dyn ReadAt>,
    index: Arc<Index>,
    crc: CrcPolicy,
}

impl IndexedReader {
    /// Opens a local file and scans it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where it cannot be opened, and as [`Index::scan`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::new(open(&Location::from_path(path.as_ref()))?)
    }

    /// Scans a source.
    ///
    /// # Errors
    ///
    /// As [`Index::scan`].
    pub fn new(source: Arc<dyn ReadAt>) -> Result<Self> {
        let index = Index::scan(&*source)?;
        Ok(Self::with_index(source, Arc::new(index)))
    }

    /// Reads a source whose index was made before. An index of another file gives errors, not other records.
    pub fn with_index(source: Arc<dyn ReadAt>, index: Arc<Index>) -> Self {
        Self {
            source,
            index,
            crc: CrcPolicy::Check,
        }
    }

    /// What is done about payload checksums; by default they are checked.
    #[must_use]
    pub fn crc(mut self, policy: CrcPolicy) -> Self {
        self.crc = policy;
        self
    }

    /// What it reads from.
    pub fn source(&self) -> &Arc<dyn ReadAt> {
        &self.source
    }

    /// How many records there are.
    pub fn num_records(&self) -> u64 {
        self.index.num_records()
    }

    /// Where the records lie.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// A record. Of a file that is mapped or in memory it is borrowed without a copy, else read into `scratch`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an index out of range; [`Error::Damaged`] naming record and offset; [`Error::Io`] of the source.
    #[inline]
    pub fn record<'a>(&'a self, index: u64, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let (offset, length) = self.locate(index)?;
        let frame_bytes = length as usize + HEADER + TRAILER;
        let frame = match self.source.as_slice() {
            Some(bytes) => usize::try_from(offset)
                .ok()
                .and_then(|offset| bytes.get(offset..)?.get(..frame_bytes))
                .ok_or_else(|| self.shorter(index, offset))?,
            None => {
                // An index says no more than its file has: it came from a scan, or was compared with the length.
                if offset + frame_bytes as u64 > self.source.len() {
                    return Err(self.shorter(index, offset));
                }
                scratch.resize(frame_bytes, 0);
                self.source.read_at(offset, scratch)?;
                &scratch[..]
            }
        };
        self.checked(index, offset, length, frame)
    }

    /// Tells the processor that a record is read soon: worth it some 4 to 16 records ahead, in a mapped file. Reads nothing by itself, and ignores
    /// an index that is too large.
    #[inline]
    pub fn prefetch(&self, index: u64) {
        if let Some(map) = self.source.as_slice()
            && let Some((offset, length)) = self.index.record(index)
            && let Some(bytes) = map.get(offset as usize..(offset + length) as usize)
        {
            prefetch_start(bytes);
        }
    }

    /// Reads the records of a list into `batch`, in the list's order, replacing what it held. Records may be asked for in any order and more than
    /// once; those that lie near each other are read at once, and requests of an object store are in flight together.
    ///
    /// # Errors
    ///
    /// As [`IndexedReader::record`]; `batch` is empty then.
    pub fn read(&self, indices: &[u64], batch: &mut RecordBatch) -> Result<()> {
        batch.clear();
        let mut order = vec![0; indices.len()];
        let read = self.for_each(indices, |place, record| {
            order[place] = batch.len();
            batch.push(record);
            Ok(())
        });
        match read {
            Ok(()) => batch.arrange(&order),
            Err(_) => batch.clear(),
        }
        read
    }

    /// Calls `each` with the place in `indices` and the bytes of every record asked for, in the order of the file, each as often as it is asked
    /// for. Records that lie near each other are read at once, up to 4 MiB; holds 32 MiB of such reads, which an object store is asked for together, or
    /// one record that is larger.
    ///
    /// # Errors
    ///
    /// As [`IndexedReader::record`], and those of `each`, which end it.
    pub fn for_each(&self, indices: &[u64], mut each: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut order: Vec<usize> = (0..indices.len()).collect();
        order.sort_by_key(|&place| indices[place]);
        let mut scratch = Vec::new();
        if self.source.as_slice().is_some() {
            return order
                .iter()
                .try_for_each(|&place| each(place, self.record(indices[place], &mut scratch)?));
        }
        let mut runs = Vec::new();
        let mut rest = &order[..];
        while !rest.is_empty() {
            let count = self.plan(indices, rest, &mut runs)?;
            let (now, later) = rest.split_at(count);
            let bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
            scratch.resize(bytes as usize, 0);
            let mut buffer = &mut scratch[..];
            let mut parts = Vec::with_capacity(runs.len());
            for run in &runs {
                let (first, behind) = buffer.split_at_mut((run.end - run.start) as usize);
                parts.push(Part {
                    offset: run.start,
                    buffer: first,
                });
                buffer = behind;
            }
            self.source.read_many(&mut parts)?;
            let (mut run, mut start) = (0, 0);
            for &place in now {
                let (offset, length) = self.locate(indices[place])?;
                while offset >= runs[run].end {
                    start += runs[run].end - runs[run].start;
                    run += 1;
                }
                let at = (start + offset - runs[run].start) as usize;
                let frame = &scratch[at..at + length as usize + HEADER + TRAILER];
                each(place, self.checked(indices[place], offset, length, frame)?)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Which bytes are read next, for the first so many of the records at these places, sorted: at least one.
    fn plan(&self, indices: &[u64], places: &[usize], runs: &mut Vec<Range<u64>>) -> Result<usize> {
        let gap = GAP_BYTES.max(self.source.request_cost());
        runs.clear();
        let mut bytes = 0;
        for (count, &place) in places.iter().enumerate() {
            let (offset, length) = self.locate(indices[place])?;
            let end = offset + length + (HEADER + TRAILER) as u64;
            if end > self.source.len() {
                return Err(self.shorter(indices[place], offset));
            }
            let (joins, more) = match runs.last() {
                Some(run) if offset <= run.end + gap && end - run.start <= READ_BYTES => {
                    (true, end.saturating_sub(run.end))
                }
                // One that is asked for again.
                Some(run) if end <= run.end => (true, 0),
                _ => (false, end - offset),
            };
            if count > 0 && bytes + more > FETCH_BYTES {
                return Ok(count);
            }
            bytes += more;
            match runs.last_mut() {
                Some(run) if joins => run.end = run.end.max(end),
                _ => runs.push(offset..end),
            }
        }
        Ok(places.len())
    }

    #[inline]
    fn locate(&self, index: u64) -> Result<(u64, u64)> {
        self.index.record(index).ok_or_else(|| {
            Error::Invalid(format!(
                "record {index} is out of range: `{}` has {} records",
                self.source.name(),
                self.num_records()
            ))
        })
    }

    /// The payload of a frame.
    #[inline]
    fn checked<'a>(&self, index: u64, offset: u64, length: u64, frame: &'a [u8]) -> Result<&'a [u8]> {
        let at = || self.place(index, offset);
        let Some((header, rest)) = frame.split_first_chunk::<HEADER>() else {
            return Err(self.shorter(index, offset));
        };
        let Some((payload, trailer)) = rest.split_last_chunk::<TRAILER>() else {
            return Err(self.shorter(index, offset));
        };
        let found = length_of(header).map_err(|crc| length_error(at(), crc))?;
        if found != length {
            return Err(Error::Damaged {
                at: at(),
                reason: format!("the record has {found} bytes, its index says {length}: scan the file anew"),
            });
        }
        if self.crc == CrcPolicy::Check {
            check_payload(payload, *trailer).map_err(|crc| payload_error(at(), crc))?;
        }
        Ok(payload)
    }

    fn place(&self, index: u64, offset: u64) -> Position {
        Position {
            path: self.source.name().to_string(),
            record: Some(index),
            offset: Some(offset),
        }
    }

    #[cold]
    fn shorter(&self, index: u64, offset: u64) -> Error {
        Error::Damaged {
            at: self.place(index, offset),
            reason: format!(
                "the file ends at byte {}, before this record does: it is cut short, or its index is another's",
                self.source.len()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryFile, PositionedFile};
    use crate::tfrecord::{Compression, Writer};

    fn records() -> Vec<Vec<u8>> {
        (0..300usize).map(|i| vec![i as u8; i * i % 977]).collect()
    }

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), Compression::Plain).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap()
    }

    #[test]
    fn records_come_by_index_and_in_lists() {
        let records = records();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tfrecord");
        std::fs::write(&path, file(&records)).unwrap();
        let positioned = IndexedReader::new(Arc::new(PositionedFile::open(&path).unwrap())).unwrap();
        for reader in [IndexedReader::open(&path).unwrap(), positioned] {
            assert_eq!(reader.num_records(), 300);
            let mut scratch = Vec::new();
            for index in (0..300).rev().step_by(7) {
                assert_eq!(
                    reader.record(index, &mut scratch).unwrap(),
                    records[index as usize]
                );
            }
            let wanted = [299, 0, 5, 6, 7, 5, 150];
            let mut found = vec![None; wanted.len()];
            let visited = reader.for_each(&wanted, |place, record| {
                found[place] = Some(record.to_vec());
                Ok(())
            });
            visited.unwrap();
            for (place, index) in wanted.into_iter().enumerate() {
                assert_eq!(found[place].as_ref(), Some(&records[index as usize]));
            }
            let mut batch = RecordBatch::default();
            reader.read(&wanted, &mut batch).unwrap();
            let read: Vec<&[u8]> = batch.iter().collect();
            assert!(
                read.iter()
                    .zip(wanted)
                    .all(|(record, index)| *record == records[index as usize])
            );
            assert!(reader.read(&[1, 300], &mut batch).is_err() && batch.is_empty());
            reader.prefetch(0);
            reader.prefetch(300);
            let error = reader.record(300, &mut scratch).unwrap_err().to_string();
            assert!(
                error.contains("record 300 is out of range") && error.contains("300 records"),
                "{error}"
            );
            assert!(reader.for_each(&[3, 300], |_, _| Ok(())).is_err());
            let refused = reader.for_each(&[3], |_, _| Err(Error::Invalid("no".into())));
            assert_eq!(refused.unwrap_err().to_string(), "no");
        }
    }

    /// A source that takes long to answer, and counts requests.
    #[derive(Debug)]
    struct Far(MemoryFile, std::sync::Mutex<Vec<usize>>);

    impl ReadAt for Far {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            self.0.read_at(offset, buffer)
        }
        fn read_many(&self, parts: &mut [Part<'_>]) -> Result<()> {
            self.1.lock().unwrap().push(parts.len());
            parts
                .iter_mut()
                .try_for_each(|part| self.read_at(part.offset, part.buffer))
        }
        fn request_cost(&self) -> u64 {
            100_000
        }
    }

    #[test]
    fn requests_are_merged_and_in_flight_together() {
        let records: Vec<Vec<u8>> = (0..100usize).map(|i| vec![i as u8; 60_000]).collect();
        let far = Arc::new(Far(MemoryFile::new("x", file(&records)), Default::default()));
        let index = Index::scan(&far.0).unwrap();
        let reader = IndexedReader::with_index(Arc::<Far>::clone(&far), Arc::new(index));
        let mut batch = RecordBatch::default();
        // 0 to 2 in one request, over a gap of one record; 90 and 50 apart.
        reader.read(&[90, 2, 0, 50, 2], &mut batch).unwrap();
        assert_eq!(*far.1.lock().unwrap(), [3]);
        let found: Vec<u8> = batch.iter().map(|record| record[59_999]).collect();
        assert_eq!(found, [90, 2, 0, 50, 2]);
        // All of it: 6 MB in requests of 4 MiB at most.
        far.1.lock().unwrap().clear();
        let all: Vec<u64> = (0..100).rev().collect();
        reader.read(&all, &mut batch).unwrap();
        assert_eq!(*far.1.lock().unwrap(), [2]);
        assert!(
            batch
                .iter()
                .zip(all)
                .all(|(record, index)| record[0] == index as u8)
        );
    }

    #[test]
    fn damage_is_of_one_record_and_a_foreign_index_is_seen() {
        let records = records();
        let bytes = file(&records);
        let good = IndexedReader::new(Arc::new(MemoryFile::new("x", bytes.clone()))).unwrap();
        let (offset, _) = good.index().record(100).unwrap();
        let mut damaged = bytes.clone();
        damaged[offset as usize + HEADER + 3] ^= 1;
        let reader = IndexedReader::new(Arc::new(MemoryFile::new("x", damaged))).unwrap();
        let mut scratch = Vec::new();
        let error = reader.record(100, &mut scratch).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("x, record 100, byte {offset}: payload checksum")),
            "{error}"
        );
        assert_eq!(reader.record(101, &mut scratch).unwrap(), records[101]);
        assert!(
            reader
                .clone()
                .crc(CrcPolicy::Skip)
                .record(100, &mut scratch)
                .is_ok()
        );

        let other = file(&records[1..]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        std::fs::write(&path, &other).unwrap();
        let sources: [Arc<dyn ReadAt>; 2] = [
            Arc::new(MemoryFile::new("other", other)),
            Arc::new(PositionedFile::open(&path).unwrap()),
        ];
        for source in sources {
            let reader = IndexedReader::with_index(source, good.index().clone());
            for index in 0..300 {
                match reader.record(index, &mut scratch) {
                    Ok(record) => assert_eq!(record.len(), records[index as usize].len()),
                    Err(error) => assert!(matches!(error, Error::Damaged { .. }), "{error}"),
                }
            }
            assert!(reader.record(299, &mut scratch).is_err());
            assert!(reader.for_each(&[0, 299], |_, _| Ok(())).is_err());
        }
    }
}
