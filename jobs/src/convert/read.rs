//! Reads the records of an input in blocks of about a megabyte, from any record on.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, bail};
use prep_formats::array_record::{Reader as ArrayReader, RecordBatch, Scratch};
use prep_formats::store::ReadAt;
use prep_formats::tfrecord::{
    self, FRAME_HEADER, FRAME_TRAILER, Frame, ReadOptions, check_frame, cut_short, find_record, frame_at,
};
use prep_formats::{Error, Position};

use crate::convert::inputs::{InputFile, Kind};
use crate::convert::ledger::Ledger;

/// The checksum of what was read and written: tens of GB/s, where SHA-256 makes 1.4.
pub(crate) const CRC: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc64Nvme;
/// Most records of a block, so that tiny ones do not make long lists.
const MOST_RECORDS: usize = 16 << 10;

/// The largest frame that is read: examples cannot be larger than 2 GiB.
const MOST_BYTES: u64 = (2 << 30) + 16;

/// Consecutive records of one input.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Their bytes, and others between them.
    pub(crate) buffer: Vec<u8>,
    /// Where each lies in the buffer.
    pub(crate) records: Vec<Range<usize>>,
    pub(crate) input: usize,
    /// Index in the input of the first record.
    pub(crate) first: u64,
    /// Place in the input of the buffer's first byte; of plain TFRecord files.
    pub(crate) offset: u64,
    /// Whether checksums still have to be compared.
    pub(crate) unchecked: bool,
    /// Records of an ArrayRecord file that are still to be read, by whoever encodes them.
    pub(crate) pending: Option<(ArrayReader, Range<u64>)>,
}

impl Block {
    /// Number of records, read or not.
    pub(crate) fn len(&self) -> u64 {
        match &self.pending {
            Some((_, range)) => range.end - range.start,
            None => self.records.len() as u64,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Empties it for reuse; the buffer keeps its bytes.
    fn reset(&mut self, input: usize, first: u64, offset: u64) {
        self.records.clear();
        (self.input, self.first, self.offset) = (input, first, offset);
        self.unchecked = false;
        self.pending = None;
    }

    /// Reads what is pending and compares checksums; after this all records are there and right.
    pub(crate) fn complete(
        &mut self,
        name: &str,
        batch: &mut RecordBatch,
        scratch: &mut Scratch,
    ) -> Result<()> {
        if let Some((reader, range)) = self.pending.take() {
            reader.read_range(range, batch, scratch)?;
            self.buffer.clear();
            self.records.clear();
            for record in batch.iter() {
                let start = self.buffer.len();
                self.buffer.extend_from_slice(record);
                self.records.push(start..self.buffer.len());
            }
        }
        if self.unchecked {
            for (index, range) in self.records.iter().enumerate() {
                if let Err(fault) = checked(&self.buffer, range) {
                    return Err(fault
                        .at(Position {
                            path: name.to_owned(),
                            record: Some(self.first + index as u64),
                            offset: Some(self.offset + (range.start - FRAME_HEADER) as u64),
                        })
                        .into());
                }
            }
            self.unchecked = false;
        }
        Ok(())
    }

    /// Bytes of all records.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.records
            .iter()
            .map(|range| (range.end - range.start) as u64)
            .sum()
    }
}

#[inline]
fn checked(buffer: &[u8], range: &Range<usize>) -> Result<(), tfrecord::FrameFault> {
    let trailer = buffer[range.end..].first_chunk::<FRAME_TRAILER>();
    check_frame(&buffer[range.clone()], trailer.copied().unwrap_or_default())
}

/// Where reading begins: so many good records lie before `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Mark {
    /// Good records before it.
    pub(crate) records: u64,
    /// Records before it, damaged ones included: for messages.
    pub(crate) index: u64,
    /// A byte of a plain file, a record of an ArrayRecord file; 0 in a compressed one.
    pub(crate) at: u64,
}

/// How blocks are made.
#[derive(Debug, Clone)]
pub(crate) struct ReadPlan {
    /// Bytes of a block, about.
    pub(crate) block_bytes: usize,
    /// Whether checksums are compared by the reader, so that a damaged record is left out before it is counted; else by who gets the block.
    pub(crate) check: bool,
    /// Whether damaged records were told and counted before.
    pub(crate) counted: bool,
    /// Whether a checksum over all bytes read is kept (of plain files).
    pub(crate) sum: bool,
}

/// Reads an input from a mark on.
pub(crate) struct BlockReader {
    name: String,
    input: usize,
    plan: ReadPlan,
    ledger: Arc<Ledger>,
    body: Body,
    /// Index of the next record, damaged ones included.
    index: u64,
    /// Good records given.
    given: u64,
    crc: crc_fast::Digest,
    start: u64,
}

enum Body {
    Nothing,
    Plain {
        source: Arc<dyn ReadAt>,
        offset: u64,
    },
    Stream {
        reader: Box<tfrecord::Reader<Sequential>>,
        /// A record that did not fit into the last block.
        ahead: Option<Vec<u8>>,
    },
    Array {
        reader: ArrayReader,
        next: u64,
        scratch: Box<Scratch>,
    },
}

/// Reads a source from its start to its end.
pub(crate) struct Sequential {
    source: Arc<dyn ReadAt>,
    offset: u64,
    /// Asked of the source at once: stores take as long for one byte as for a megabyte.
    ahead: Vec<u8>,
    taken: usize,
}

impl Sequential {
    fn new(source: Arc<dyn ReadAt>) -> Self {
        Self {
            source,
            offset: 0,
            ahead: Vec::new(),
            taken: 0,
        }
    }
}

/// A source as a stream.
pub(crate) fn sequential(source: Arc<dyn ReadAt>) -> Sequential {
    Sequential::new(source)
}

impl std::io::Read for Sequential {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.source.len().saturating_sub(self.offset);
        if self.taken == self.ahead.len() && self.source.request_cost() <= buffer.len() as u64 {
            let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.source.read_at(self.offset, &mut buffer[..count]);
            read.map_err(std::io::Error::other)?;
            self.offset += count as u64;
            return Ok(count);
        }
        if self.taken == self.ahead.len() {
            let count = left.min(4 * self.source.request_cost()) as usize;
            self.ahead.resize(count, 0);
            let read = self.source.read_at(self.offset, &mut self.ahead);
            read.map_err(std::io::Error::other)?;
            self.offset += count as u64;
            self.taken = 0;
        }
        let count = buffer.len().min(self.ahead.len() - self.taken);
        buffer[..count].copy_from_slice(&self.ahead[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

impl BlockReader {
    /// Opens an input at a mark.
    pub(crate) fn open(
        file: &InputFile,
        input: usize,
        from: Mark,
        plan: ReadPlan,
        ledger: &Arc<Ledger>,
    ) -> Result<Self> {
        let body = match file.kind {
            Kind::Empty => Body::Nothing,
            Kind::Plain => Body::Plain {
                source: file.open()?,
                offset: from.at,
            },
            Kind::Gzip | Kind::Zlib | Kind::Zstd => {
                let source = Sequential::new(file.open()?);
                let reader = tfrecord::Reader::new(source, &file.shown, ReadOptions::default())?;
                Body::Stream {
                    reader: Box::new(reader),
                    ahead: None,
                }
            }
            Kind::ArrayRecord => Body::Array {
                reader: ArrayReader::from_source(file.open()?)?,
                next: from.at,
                scratch: Box::default(),
            },
        };
        Ok(Self {
            name: file.shown.clone(),
            input,
            plan,
            ledger: Arc::clone(ledger),
            body,
            index: from.index,
            given: 0,
            crc: crc_fast::Digest::new(CRC),
            start: from.at,
        })
    }

    /// Where the next record begins.
    pub(crate) fn mark(&self, records_before: u64) -> Mark {
        Mark {
            records: records_before + self.given,
            index: self.index,
            at: match &self.body {
                Body::Nothing | Body::Stream { .. } => 0,
                Body::Plain { offset, .. } => *offset,
                Body::Array { next, .. } => *next,
            },
        }
    }

    /// The bytes read so far and their checksum, where one is kept.
    pub(crate) fn sum(&self) -> Option<(Range<u64>, u64)> {
        match &self.body {
            Body::Plain { offset, .. } if self.plan.sum => Some((self.start..*offset, self.crc.finalize())),
            _ => None,
        }
    }

    /// Reads up to `most` good records into a block; false at the end of the input. A block may be empty before the end.
    pub(crate) fn next(&mut self, most: u64, block: &mut Block) -> Result<bool> {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(MOST_RECORDS);
        let more = match &self.body {
            Body::Nothing => Ok(false),
            Body::Plain { .. } => self.next_plain(most, block),
            Body::Stream { .. } => self.next_of_stream(most, block),
            Body::Array { .. } => self.next_of_array(most, block),
        }?;
        self.given += block.len();
        Ok(more)
    }

    fn place(&self, offset: Option<u64>) -> Position {
        Position {
            path: self.name.clone(),
            record: Some(self.index),
            offset,
        }
    }

    /// Notes a damaged record; an error where the job is to stop.
    fn lose(&self, error: Error) -> Result<()> {
        if self.plan.counted && !self.ledger.stops() {
            return Ok(());
        }
        self.ledger.fault(self.input, error.into())
    }

    fn next_plain(&mut self, most: usize, block: &mut Block) -> Result<bool> {
        let Body::Plain { source, offset } = &mut self.body else {
            return Ok(false);
        };
        let (source, begin) = (Arc::clone(source), *offset);
        block.reset(self.input, self.index, begin);
        let length = source.len();
        if begin >= length {
            return Ok(false);
        }
        let cost = usize::try_from(source.request_cost()).unwrap_or(usize::MAX);
        let mut wanted = self.plan.block_bytes.max(cost.min(8 << 20)) as u64;
        wanted = wanted.min(length - begin);
        let mut filled = 0;
        let mut end = 0;
        let buffer = &mut block.buffer;
        let mut damage = None;
        loop {
            if (filled as u64) < wanted {
                let size = usize::try_from(wanted)?;
                if buffer.len() < size {
                    // The file is known to have as many bytes.
                    buffer.try_reserve_exact(size - buffer.len())?;
                    buffer.resize(size, 0);
                }
                read_wide(&*source, begin + filled as u64, &mut buffer[filled..size])?;
                filled = size;
            }
            let mut needed = 0;
            while block.records.len() < most && end < filled {
                match frame_at(&buffer[end..filled]) {
                    Frame::Whole(payload) => {
                        let start = end + FRAME_HEADER;
                        let range = start..start + payload;
                        end = range.end + FRAME_TRAILER;
                        block.records.push(range);
                    }
                    Frame::Partial(bytes) => {
                        needed = bytes;
                        break;
                    }
                    Frame::BadLength(fault) => {
                        damage = Some(fault);
                        break;
                    }
                    _ => bail!("an unknown kind of frame"),
                }
            }
            if damage.is_some() || block.records.len() == most || needed == 0 {
                break;
            }
            let here = begin + end as u64;
            if needed > MOST_BYTES && needed <= length - here && end == 0 {
                return Err(Error::Damaged {
                    at: self.place(Some(here)),
                    reason: format!(
                        "a record of {needed} bytes is claimed, over the limit of {MOST_BYTES} bytes"
                    ),
                }
                .into());
            }
            if needed > length - here {
                if end > 0 {
                    break;
                }
                // The last record is cut short. What is left counts as one record.
                let error = cut_short(self.place(Some(here)), needed, length - here);
                return self.damaged_at(&source, here, error, block);
            }
            if !block.records.is_empty() {
                break;
            }
            // Of a record that is longer than a block, the header may be all that is there.
            wanted = needed;
        }
        if end == 0
            && let Some(fault) = damage
        {
            let error = fault.at(self.place(Some(begin)));
            return self.damaged_at(&source, begin, error, block);
        }
        if self.plan.sum {
            self.crc.update(&block.buffer[..end]);
        }
        if let Body::Plain { offset, .. } = &mut self.body {
            *offset = begin + end as u64;
        }
        let count = block.records.len() as u64;
        if self.plan.check {
            let mut index = self.index;
            let mut faults = Vec::new();
            let buffer = &block.buffer;
            block.records.retain(|range| {
                let result = checked(buffer, range);
                if let Err(fault) = result {
                    faults.push((index, begin + (range.start - FRAME_HEADER) as u64, fault));
                }
                index += 1;
                result.is_ok()
            });
            for (record, offset, fault) in faults {
                let at = Position {
                    path: self.name.clone(),
                    record: Some(record),
                    offset: Some(offset),
                };
                self.lose(fault.at(at))?;
            }
        } else {
            block.unchecked = true;
        }
        self.index += count;
        Ok(true)
    }

    /// Goes on behind a place where no record can be read: at the next one whose checksums match, or at the end of the file.
    fn damaged_at(
        &mut self,
        source: &Arc<dyn ReadAt>,
        at: u64,
        error: Error,
        block: &mut Block,
    ) -> Result<bool> {
        block.reset(self.input, self.index, at);
        if self.ledger.stops() {
            return Err(error.into());
        }
        let next = find_record(&**source, at + 1)?;
        if next.is_none() && at == 0 {
            // Not one record in it: this is no TFRecord file, rather than one with damage; unless the length of the first one is right.
            let mut head = [0; 12];
            let count = source.len().min(12) as usize;
            source.read_at(0, &mut head[..count])?;
            if tfrecord::detect(&head[..count]) != Some(tfrecord::Compression::Plain) {
                return Err(error.into());
            }
        }
        self.lose(error)?;
        let next = next.unwrap_or(source.len());
        if self.plan.sum {
            let mut offset = at;
            let mut buffer = vec![0; (next - at).min(1 << 20) as usize];
            while offset < next {
                let count = (next - offset).min(1 << 20) as usize;
                source.read_at(offset, &mut buffer[..count])?;
                self.crc.update(&buffer[..count]);
                offset += count as u64;
            }
        }
        self.index += 1;
        if let Body::Plain { offset, .. } = &mut self.body {
            *offset = next;
        }
        Ok(true)
    }

    fn next_of_stream(&mut self, most: usize, block: &mut Block) -> Result<bool> {
        let (name, ledger, counted, input) = (&self.name, &self.ledger, self.plan.counted, self.input);
        let Body::Stream { reader, ahead } = &mut self.body else {
            return Ok(false);
        };
        block.reset(input, self.index, 0);
        block.buffer.clear();
        let push = |block: &mut Block, record: &[u8]| {
            let start = block.buffer.len();
            block.buffer.extend_from_slice(record);
            block.records.push(start..block.buffer.len());
        };
        if let Some(record) = ahead.take() {
            push(block, &record);
            self.index += 1;
        }
        while block.records.len() < most {
            let index = reader.record_index();
            match reader.next() {
                Ok(Some(record)) => {
                    if !block.records.is_empty() && block.buffer.len() + record.len() > self.plan.block_bytes
                    {
                        *ahead = Some(record.to_vec());
                        return Ok(true);
                    }
                    push(block, record);
                    self.index += 1;
                }
                Ok(None) => return Ok(!block.is_empty()),
                Err(error @ Error::Io { .. }) => return Err(error.into()),
                Err(error) => {
                    if ledger.stops() || index == 0 && !reader.can_continue() {
                        return Err(
                            anyhow::Error::new(error).context(format!("could not read {name} to its end"))
                        );
                    }
                    if !counted {
                        ledger.fault(input, error.into())?;
                    }
                    // Behind a broken stream nothing can be found: the file ends there.
                    self.index += 1;
                    if !reader.can_continue() {
                        return Ok(!block.is_empty());
                    }
                }
            }
        }
        Ok(true)
    }

    fn next_of_array(&mut self, most: usize, block: &mut Block) -> Result<bool> {
        let check = self.plan.check;
        let block_bytes = self.plan.block_bytes as u64;
        let Body::Array {
            reader,
            next,
            scratch,
        } = &mut self.body
        else {
            return Ok(false);
        };
        let first = *next;
        block.reset(self.input, self.index, 0);
        if first >= reader.num_records() {
            return Ok(false);
        }
        let last = first.saturating_add(most as u64).min(reader.num_records());
        let end = block_end(reader, first, last, block_bytes)?;
        *next = end;
        self.index = end;
        if !check {
            block.pending = Some((reader.clone(), first..end));
            return Ok(true);
        }
        block.buffer.clear();
        let mut lost = Vec::new();
        for record in first..end {
            match reader.record(record, scratch) {
                Ok(bytes) => {
                    let start = block.buffer.len();
                    block.buffer.extend_from_slice(bytes);
                    block.records.push(start..block.buffer.len());
                }
                Err(error @ Error::Damaged { .. }) => lost.push(error),
                Err(error) => return Err(error.into()),
            }
        }
        for error in lost {
            self.lose(error)?;
        }
        Ok(true)
    }
}

/// Where to end a block that begins with record `first`, so that it has about `bytes` of the file and whole chunks, and `last` at the latest.
fn block_end(reader: &ArrayReader, first: u64, last: u64, bytes: u64) -> Result<u64> {
    let chunk = reader.chunk_of(first)?;
    let begin = reader.chunk_offset(chunk)?;
    let end_of = |chunk: u64| -> Result<u64> {
        Ok(if chunk + 1 < reader.num_chunks() {
            reader.chunk_offset(chunk + 1)?
        } else {
            reader.footer_offset()
        })
    };
    // The last chunk that ends within so many bytes; at least this one.
    let (mut low, mut high) = (chunk + 1, reader.chunk_of(last - 1)? + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if end_of(middle)? <= begin + bytes {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(reader.chunk_records(low - 1)?.end.min(last))
}

/// Reads a range, by requests of a megabyte in flight together where a request takes long.
fn read_wide(source: &dyn ReadAt, offset: u64, buffer: &mut [u8]) -> prep_formats::Result<()> {
    if source.request_cost() < (64 << 10) || buffer.len() <= (1 << 20) {
        return source.read_at(offset, buffer);
    }
    let mut parts: Vec<_> = buffer
        .chunks_mut(1 << 20)
        .enumerate()
        .map(|(index, buffer)| prep_formats::store::Part {
            offset: offset + ((index as u64) << 20),
            buffer,
        })
        .collect();
    source.read_many(&mut parts)
}
