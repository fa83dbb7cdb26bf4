//! Takes what can be read out of a damaged TFRecord file.

use std::io::{self, Read, Write};
use std::ops::Range;

use crate::store::ReadAt;
use crate::tfrecord::frame::{HEADER, TRAILER, check_payload, length_of, masked_crc};
use crate::tfrecord::stream::Stream;
use crate::tfrecord::{Compression, Writer};
use crate::{Error, Position, Result};

/// Bytes asked of a source at once.
const STEP_BYTES: usize = 512 << 10;
/// Gaps that are listed one by one; what lies beyond is counted.
const MAX_LISTED: usize = 10_000;
/// Payload bytes that searches may check in vain, besides four times what was read: some file could be made of promises only.
const VAIN_BYTES: u64 = 64 << 20;

/// How a damaged file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageOptions {
    compression: Option<Compression>,
    max_record_bytes: u64,
    search: bool,
}

impl Default for SalvageOptions {
    fn default() -> Self {
        Self {
            compression: None,
            max_record_bytes: 256 << 20,
            search: true,
        }
    }
}

impl SalvageOptions {
    /// Insists on a compression; by default it is told by the first bytes.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// The largest payload that is believed of a file that is not mapped or in memory; by default 256 MiB, which is what may be held.
    #[must_use]
    pub fn max_record_bytes(mut self, bytes: u64) -> Self {
        self.max_record_bytes = bytes;
        self
    }

    /// Whether records are searched for behind a damaged length; by default they are. Without, everything behind it is lost.
    #[must_use]
    pub fn search(mut self, search: bool) -> Self {
        self.search = search;
        self
    }
}

/// What came out of a damaged file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Salvaged {
    /// Records written to the new file.
    pub num_records: u64,
    /// Those of them whose length was damaged, but is certain: exactly one bit was wrong, or the checksum of the length was, and the payload's
    /// checksum confirms it.
    pub num_repaired: u64,
    /// The gaps, in the order of the file: the first 10,000.
    pub lost: Vec<Lost>,
    /// How many gaps there are.
    pub num_gaps: u64,
    /// Bytes in all gaps, frames included; of the uncompressed file.
    pub lost_bytes: u64,
}

/// A gap: bytes of the old file that gave no record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Records of the new file that come before the gap.
    pub before: u64,
    /// Index that the first lost record had in the old file, where that can be known: no gap of an unknown number lies before it.
    pub first_record: Option<u64>,
    /// How many records are lost, where that can be known: the lengths were right, only payloads are not.
    pub num_records: Option<u64>,
    /// Bytes of the old file; of a compressed one the uncompressed bytes. Empty where a compressed stream breaks off between two records.
    pub bytes: Range<u64>,
    /// What is wrong with them.
    pub reason: String,
}

impl Salvaged {
    /// Whether nothing was lost or repaired.
    pub fn is_whole(&self) -> bool {
        self.num_gaps == 0 && self.num_repaired == 0
    }
}

/// Writes every readable record of a TFRecord file to `writer`, which the caller finishes, and says what was lost.
///
/// A record whose payload fails its checksum is left out; its length leads to the next. Behind a damaged length, the length is repaired where
/// exactly one bit is wrong and the payload's checksum confirms it; else the next place is searched where a length and a payload both match
/// their checksums. If a lost record's payload contains framed records, those are found in its place: the gap says where to look. A
/// compressed stream is read as far as it goes.
///
/// Costs one pass over the file, and a checksum of 8 bytes at some of the bytes of gaps. Holds the largest record, of a mapped file nothing.
///
/// # Errors
///
/// [`Error::Io`] of source or sink; [`Error::Damaged`] where the options insist on a compression and the file begins as another kind.
///
/// # Examples
///
/// ```
/// use prep_formats::store::MemoryFile;
/// use prep_formats::tfrecord::{Compression, SalvageOptions, Writer, salvage};
///
/// let mut writer = Writer::new(Vec::new(), Compression::Plain)?;
/// for record in ["one", "two", "three"] {
///     writer.write(record.as_bytes())?;
/// }
/// let mut bytes = writer.finish()?;
/// bytes[19 + 12] ^= 1; // in the payload of the second record
///
/// let mut writer = Writer::new(Vec::new(), Compression::Plain)?;
/// let salvaged = salvage(&MemoryFile::new("damaged", bytes), &mut writer, SalvageOptions::default())?;
/// assert_eq!(salvaged.num_records, 2);
/// assert_eq!((salvaged.lost[0].first_record, salvaged.lost[0].num_records), (Some(1), Some(1)));
/// assert_eq!(salvaged.lost[0].bytes, 19..38);
/// # Ok::<(), prep_formats::Error>(())
/// ```
pub fn salvage<W: Write>(
    source: &dyn ReadAt,
    writer: &mut Writer<W>,
    options: SalvageOptions,
) -> Result<Salvaged> {
    let mut stream = Stream::new(
        Sequential { source, offset: 0 },
        source.name(),
        options.compression,
    )?;
    let plain = stream.compression() == Compression::Plain;
    let window = match source.as_slice() {
        Some(bytes) if plain => Window::Slice(bytes),
        _ => {
            // A plain file's bytes are counted beforehand; the detection has read some of them, but the stream gives them again.
            let length = plain.then(|| source.len());
            Window::Stream {
                name: source.name(),
                read: Box::new(move |buffer, place| stream.read(buffer, place)),
                buffer: Vec::new(),
                start: 0,
                length,
                broken: None,
                ended: false,
                limit: options.max_record_bytes,
            }
        }
    };
    let mut salvager = Salvager {
        window,
        writer,
        options,
        found: Salvaged::default(),
        position: 0,
        record: Some(0),
        vain: 0,
    };
    salvager.run()?;
    Ok(salvager.found)
}

/// Reads a source from its start to its end.
struct Sequential<'a> {
    source: &'a dyn ReadAt,
    offset: u64,
}

impl Read for Sequential<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len().saturating_sub(self.offset);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.source
            .read_at(self.offset, &mut buffer[..length])
            .map_err(io::Error::other)?;
        self.offset += length as u64;
        Ok(length)
    }
}

type ReadMore<'a> = Box<dyn FnMut(&mut [u8], &dyn Fn() -> Position) -> Result<usize> + 'a>;

/// The bytes of a file from some place on.
enum Window<'a> {
    /// All of it.
    Slice(&'a [u8]),
    /// What was read and not yet released.
    Stream {
        name: &'a str,
        read: ReadMore<'a>,
        buffer: Vec<u8>,
        /// Place in the file where the buffer begins.
        start: u64,
        length: Option<u64>,
        /// Why the compressed stream ended early.
        broken: Option<String>,
        ended: bool,
        limit: u64,
    },
}

impl Window<'_> {
    /// The bytes from `offset` on: at least `wanted` of them, unless the file ends before.
    fn at(&mut self, offset: u64, wanted: usize) -> Result<&[u8]> {
        match self {
            Self::Slice(bytes) => Ok(bytes.get(offset as usize..).unwrap_or(&[])),
            Self::Stream {
                name,
                read,
                buffer,
                start,
                broken,
                ended,
                ..
            } => {
                let skip = (offset - *start) as usize;
                while !*ended && buffer.len() < skip.saturating_add(wanted) {
                    let filled = buffer.len();
                    // Memory follows the bytes that arrive.
                    buffer.resize(filled + STEP_BYTES, 0);
                    let end = *start + filled as u64;
                    let place = || Position {
                        path: name.to_string(),
                        record: None,
                        offset: Some(end),
                    };
                    let result = read(&mut buffer[filled..], &place);
                    buffer.truncate(filled + *result.as_ref().unwrap_or(&0));
                    match result {
                        Ok(0) => *ended = true,
                        Ok(_) => {}
                        Err(Error::Damaged { reason, .. }) => {
                            *broken = Some(reason);
                            *ended = true;
                        }
                        Err(other) => return Err(other),
                    }
                }
                Ok(buffer.get(skip..).unwrap_or(&[]))
            }
        }
    }

    /// Forgets the bytes before `offset`.
    fn release(&mut self, offset: u64) {
        if let Self::Stream { buffer, start, .. } = self
            && (offset - *start) as usize >= STEP_BYTES.min(buffer.len())
        {
            let known = ((offset - *start) as usize).min(buffer.len());
            buffer.drain(..known);
            *start += known as u64;
        }
    }

    /// Whether a payload of `length` bytes behind the header at `offset` can be.
    fn can_hold(&self, offset: u64, length: u64) -> bool {
        let frame = length.checked_add((HEADER + TRAILER) as u64);
        match (self, frame) {
            (_, None) => false,
            (Self::Slice(bytes), Some(frame)) => frame <= (bytes.len() as u64).saturating_sub(offset),
            (
                Self::Stream {
                    length: end, limit, ..
                },
                Some(frame),
            ) => length <= *limit && end.is_none_or(|end| frame <= end.saturating_sub(offset)),
        }
    }
}

struct Salvager<'a, 'w, W: Write> {
    window: Window<'a>,
    writer: &'w mut Writer<W>,
    options: SalvageOptions,
    found: Salvaged,
    /// Everything before is decided.
    position: u64,
    /// Index in the old file of the record at `position`.
    record: Option<u64>,
    /// Payload bytes checked in vain while searching.
    vain: u64,
}

/// What became of a payload.
#[derive(PartialEq, Eq)]
enum Payload {
    Good,
    Bad(String),
    /// The file ends before it does.
    Cut(String),
}

/// What stands at a place.
enum Frame {
    /// A record with a payload of so many bytes.
    Good(u64),
    /// The length is right, the payload is not.
    BadPayload(u64, String),
    /// The length is wrong, but so many bytes is what it was.
    Repaired(u64),
    /// No record that could be followed.
    Broken(String),
    End,
}

impl<W: Write> Salvager<'_, '_, W> {
    fn run(&mut self) -> Result<()> {
        loop {
            self.window.release(self.position);
            match self.frame()? {
                Frame::End => return self.end(),
                Frame::Good(length) => self.take(length)?,
                Frame::Repaired(length) => {
                    self.take(length)?;
                    self.found.num_repaired += 1;
                }
                Frame::BadPayload(length, reason) => {
                    let end = self.position + HEADER as u64 + length + TRAILER as u64;
                    if self.follows(end)? {
                        self.lose(end, Some(1), reason);
                    } else {
                        // Neither is what the length leads to: it may be false, checksum and all.
                        self.search(reason)?;
                    }
                }
                Frame::Broken(reason) => self.search(reason)?,
            }
        }
    }

    /// The header at `offset`: the length that stands there, and whether it matches its checksum. `None` where the file ends before.
    fn header(&mut self, offset: u64) -> Result<Option<(u64, bool)>> {
        let header = self.window.at(offset, HEADER)?.first_chunk::<HEADER>();
        Ok(header.map(|header| {
            let length = header.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            (length, length_of(header).is_ok())
        }))
    }

    /// Whether the payload of a frame that can be matches its checksum.
    fn payload(&mut self, offset: u64, length: u64) -> Result<Payload> {
        let length = length as usize;
        let frame = self.window.at(offset, HEADER + length + TRAILER)?;
        let Some((payload, trailer)) = frame
            .get(HEADER..)
            .and_then(|rest| rest.split_at_checked(length))
            .and_then(|(payload, rest)| Some((payload, *rest.first_chunk::<TRAILER>()?)))
        else {
            let found = frame.len();
            return Ok(Payload::Cut(format!(
                "the file is cut short: it ends {found} bytes into a record of {} bytes",
                HEADER + length + TRAILER
            )));
        };
        Ok(match check_payload(payload, trailer) {
            Ok(()) => Payload::Good,
            Err(crc) => Payload::Bad(crc.payload_reason()),
        })
    }

    /// Whether a record can begin at `offset`, or the file ends there.
    fn follows(&mut self, offset: u64) -> Result<bool> {
        match self.header(offset)? {
            Some((length, right)) => Ok(right && self.window.can_hold(offset, length)),
            None => Ok(self.window.at(offset, 1)?.is_empty()),
        }
    }

    fn frame(&mut self) -> Result<Frame> {
        let position = self.position;
        let Some((length, right)) = self.header(position)? else {
            return Ok(match self.window.at(position, 1)?.len() {
                0 => Frame::End,
                found => Frame::Broken(format!(
                    "the file is cut short: {found} bytes are left, a record has 16 or more"
                )),
            });
        };
        if right {
            if !self.window.can_hold(position, length) {
                return Ok(Frame::Broken(format!(
                    "a payload of {length} bytes is claimed, more than there can be"
                )));
            }
            return Ok(match self.payload(position, length)? {
                Payload::Good => Frame::Good(length),
                Payload::Bad(reason) => Frame::BadPayload(length, reason),
                Payload::Cut(reason) => Frame::Broken(reason),
            });
        }
        // One bit is wrong in the length, or anything in its checksum: lengths that could have been.
        let stored = self.stored(position)?;
        let flipped = (0..u64::BITS)
            .map(|bit| length ^ (1 << bit))
            .find(|length| masked_crc(&length.to_le_bytes()) == stored);
        for candidate in [Some(length), flipped].into_iter().flatten() {
            if self.window.can_hold(position, candidate)
                && self.payload(position, candidate)? == Payload::Good
            {
                return Ok(Frame::Repaired(candidate));
            }
        }
        Ok(Frame::Broken("the length does not match its checksum".into()))
    }

    fn stored(&mut self, offset: u64) -> Result<u32> {
        let header = self.window.at(offset, HEADER)?;
        let crc = header.get(8..).and_then(|bytes| bytes.first_chunk());
        Ok(crc.map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }

    /// Writes the record at the position.
    fn take(&mut self, length: u64) -> Result<()> {
        let length = length as usize;
        let frame = self.window.at(self.position, HEADER + length + TRAILER)?;
        self.writer.write(&frame[HEADER..HEADER + length])?;
        self.found.num_records += 1;
        self.position += (HEADER + length + TRAILER) as u64;
        self.record = self.record.map(|record| record + 1);
        Ok(())
    }

    /// Goes to the next place where a record stands for certain, or to the end.
    fn search(&mut self, reason: String) -> Result<()> {
        let mut offset = self.position + 1;
        while self.options.search {
            let bytes = self.window.at(offset, STEP_BYTES)?;
            let whole = bytes.len() >= STEP_BYTES;
            let Some(candidate) = next_header(bytes) else {
                // The last bytes looked at may be the start of a header.
                offset += bytes.len().saturating_sub(HEADER - 1) as u64;
                if whole {
                    // What is passed is lost whatever comes: only a reader that goes back would need it.
                    self.window.release(offset);
                    continue;
                }
                break;
            };
            offset += candidate as u64;
            self.window.release(offset);
            let length = self.header(offset)?.map_or(0, |(length, _)| length);
            let budget = VAIN_BYTES + 4 * offset;
            if self.window.can_hold(offset, length) && self.vain + length <= budget {
                if self.payload(offset, length)? == Payload::Good {
                    self.lose(offset, None, reason);
                    return Ok(());
                }
                self.vain += length;
            }
            offset += 1;
        }
        let end = self.end_of_file(offset)?;
        self.lose(end, None, reason);
        Ok(())
    }

    /// Where the file ends, not before `offset`.
    fn end_of_file(&mut self, mut offset: u64) -> Result<u64> {
        loop {
            let found = self.window.at(offset, STEP_BYTES)?.len();
            offset += found as u64;
            self.window.release(offset);
            if found < STEP_BYTES {
                return Ok(offset);
            }
        }
    }

    fn lose(&mut self, end: u64, num_records: Option<u64>, mut reason: String) {
        let bytes = self.position..end;
        // A record that breaks off with its compressed stream is one gap with two reasons.
        if let Window::Stream {
            broken,
            buffer,
            start,
            ..
        } = &mut self.window
            && end >= *start + buffer.len() as u64
            && let Some(broken) = broken.take()
        {
            reason = format!("{broken}; {reason}");
        }
        self.found.num_gaps += 1;
        self.found.lost_bytes += end - self.position;
        if self.found.lost.len() < MAX_LISTED {
            self.found.lost.push(Lost {
                before: self.found.num_records,
                first_record: self.record,
                num_records,
                bytes,
                reason,
            });
        }
        self.record = self.record.zip(num_records).map(|(record, lost)| record + lost);
        self.position = end;
    }

    /// A compressed stream that breaks off is a gap of its own: what would have followed is lost.
    fn end(&mut self) -> Result<()> {
        if let Window::Stream { broken, .. } = &mut self.window
            && let Some(reason) = broken.take()
        {
            self.lose(self.position, None, reason);
        }
        Ok(())
    }
}

/// Where the next header stands whose length matches its checksum and is not absurd.
pub(super) fn next_header(bytes: &[u8]) -> Option<usize> {
    let mut starts = bytes.windows(HEADER);
    starts.position(|window| {
        // No payload has 2^48 bytes: nearly every place is dismissed by this.
        window[6] == 0
            && window[7] == 0
            && window
                .first_chunk()
                .is_some_and(|header| length_of(header).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::MemoryFile;
    use crate::tfrecord::frame::header_of;
    use crate::tfrecord::{CrcPolicy, Scanner};

    fn write(records: &[Vec<u8>], compression: Compression) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), compression).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap()
    }

    /// A source that is neither mapped nor in memory.
    #[derive(Debug)]
    struct Remote(MemoryFile);

    impl ReadAt for Remote {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            self.0.read_at(offset, buffer)
        }
    }

    fn salvage_bytes(bytes: &[u8]) -> (Vec<Vec<u8>>, Salvaged) {
        let run = |source: &dyn ReadAt| {
            let mut writer = Writer::new(Vec::new(), Compression::Plain).unwrap();
            let salvaged = salvage(source, &mut writer, SalvageOptions::default()).unwrap();
            (writer.finish().unwrap(), salvaged)
        };
        let memory = MemoryFile::new("file", bytes.to_vec());
        let (file, salvaged) = run(&memory);
        assert_eq!(run(&Remote(memory)), (file.clone(), salvaged.clone()));
        let mut scanner = Scanner::new(&file, "new", CrcPolicy::Check);
        let mut records = Vec::new();
        while let Some(record) = scanner.next().unwrap() {
            records.push(record.to_vec());
        }
        assert_eq!(records.len() as u64, salvaged.num_records);
        assert_eq!(
            salvaged
                .lost
                .iter()
                .map(|lost| lost.bytes.end - lost.bytes.start)
                .sum::<u64>(),
            salvaged.lost_bytes
        );
        (records, salvaged)
    }

    fn records() -> Vec<Vec<u8>> {
        (0..6u8).map(|i| vec![i + 1; 10 + 7 * usize::from(i)]).collect()
    }

    #[test]
    fn one_flipped_bit_loses_at_most_its_record() {
        let records = records();
        let bytes = write(&records, Compression::Plain);
        let starts: Vec<usize> = records
            .iter()
            .scan(0, |end, record| {
                let start = *end;
                *end += 16 + record.len();
                Some(start)
            })
            .collect();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (found, salvaged) = salvage_bytes(&flipped);
            let record = starts.iter().rposition(|&start| start <= bit / 8).unwrap();
            let in_header = bit / 8 < starts[record] + HEADER;
            if in_header {
                // The first header tells what the file is; damaged, it is still taken for a plain one.
                assert_eq!(found, records, "bit {bit}");
                assert_eq!((salvaged.num_repaired, salvaged.num_gaps), (1, 0));
                assert!(!salvaged.is_whole());
                continue;
            }
            let mut wanted = records.clone();
            wanted.remove(record);
            assert_eq!(found, wanted, "bit {bit}");
            let [lost] = &salvaged.lost[..] else {
                panic!("{salvaged:?}")
            };
            assert_eq!(
                (lost.first_record, lost.num_records, lost.before),
                (Some(record as u64), Some(1), record as u64)
            );
            let end = starts[record] + 16 + records[record].len();
            assert_eq!(lost.bytes, starts[record] as u64..end as u64);
            assert!(lost.reason.contains("payload checksum"), "{}", lost.reason);
        }
    }

    #[test]
    fn destroyed_headers_are_passed_by_a_search() {
        let records = records();
        let bytes = write(&records, Compression::Plain);
        let second = 16 + records[0].len();
        let third = second + 16 + records[1].len();
        let mut damaged = bytes.clone();
        damaged[second..second + HEADER].fill(0xaa);
        let (found, salvaged) = salvage_bytes(&damaged);
        assert_eq!(found, [&records[..1], &records[2..]].concat());
        let [lost] = &salvaged.lost[..] else {
            panic!("{salvaged:?}")
        };
        assert_eq!(lost.bytes, second as u64..third as u64);
        assert_eq!((lost.first_record, lost.num_records), (Some(1), None));
        // A length that is false with a right checksum: it leads into the payload of another record, or beyond the end.
        for length in [3, 40, 1 << 40, 1 << 63, u64::MAX] {
            let mut damaged = bytes.clone();
            damaged[second..second + HEADER].copy_from_slice(&header_of(length));
            let (found, salvaged) = salvage_bytes(&damaged);
            assert_eq!(found, [&records[..1], &records[2..]].concat(), "{length}");
            assert_eq!(salvaged.lost[0].bytes, second as u64..third as u64);
        }
        // Told not to search, the rest is lost.
        let mut writer = Writer::new(Vec::new(), Compression::Plain).unwrap();
        let source = MemoryFile::new("file", damaged.clone());
        let salvaged = salvage(&source, &mut writer, SalvageOptions::default().search(false)).unwrap();
        assert_eq!(salvaged.num_records, 1);
        assert_eq!(salvaged.lost[0].bytes, second as u64..bytes.len() as u64);
    }

    #[test]
    fn cuts_and_what_follows_are_gaps() {
        let records = records();
        let bytes = write(&records, Compression::Plain);
        for cut in 0..bytes.len() {
            let (found, salvaged) = salvage_bytes(&bytes[..cut]);
            assert_eq!(found, records[..found.len()]);
            let kept: usize = found.iter().map(|record| record.len() + 16).sum();
            assert_eq!(salvaged.lost_bytes, (cut - kept) as u64, "cut at {cut}");
            assert_eq!(salvaged.num_gaps, u64::from(kept < cut));
        }
        for tail in [
            vec![0; 64],
            vec![0xff; 3],
            b"some text behind it all, of some length".to_vec(),
        ] {
            let (found, salvaged) = salvage_bytes(&[&bytes[..], &tail].concat());
            assert_eq!(found, records);
            assert_eq!(
                salvaged.lost[0].bytes,
                bytes.len() as u64..(bytes.len() + tail.len()) as u64
            );
        }
        assert!(salvage_bytes(&bytes).1.is_whole());
        assert!(salvage_bytes(&[]).1.is_whole());
    }

    #[test]
    fn compressed_files_give_what_can_be_decompressed() {
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let records: Vec<Vec<u8>> = (0..40).map(|_| (0..997).map(|_| noise()).collect()).collect();
        for compression in [Compression::Gzip, Compression::Zlib] {
            let bytes = write(&records, compression);
            assert!(salvage_bytes(&bytes).1.is_whole());
            let (found, salvaged) = salvage_bytes(&bytes[..bytes.len() / 2]);
            assert!(found.len() > 10 && found.len() < 22, "{}", found.len());
            assert_eq!(found, records[..found.len()]);
            let last = salvaged.lost.last().unwrap();
            assert!(last.reason.contains("is cut short"), "{}", last.reason);
            assert_eq!((salvaged.num_gaps, last.num_records), (1, None));
        }
        let (found, salvaged) = salvage_bytes(&write(&records, Compression::Zstd));
        assert!(salvaged.is_whole());
        assert_eq!(found, records);
    }

    #[test]
    fn promises_do_not_cost_more_than_the_file() {
        // Every 16 bytes a right header that claims half of the file, and no payload that is right: 15 GB to check, were there no limit.
        let header = header_of(500_000);
        let bytes = [&header[..], &[7; 4]].concat().repeat(60_000);
        let (found, salvaged) = salvage_bytes(&bytes);
        assert!(found.is_empty());
        assert_eq!(salvaged.lost_bytes, bytes.len() as u64);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_record_far_from_damage_comes_back(
            sizes in prop::collection::vec(0usize..200, 1..30),
            damage in prop::collection::vec((any::<prop::sample::Index>(), 1usize..40, any::<u8>()), 0..4),
        ) {
            let records: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, &size)| vec![i as u8 + 1; size]).collect();
            let bytes = write(&records, Compression::Plain);
            let mut damaged = bytes.clone();
            for (at, length, value) in damage {
                let at = at.index(bytes.len());
                let end = (at + length).min(bytes.len());
                damaged[at..end].fill(value);
            }
            let mut start = 0;
            let whole: Vec<&Vec<u8>> = records.iter().filter(|record| {
                let range = start..start + 16 + record.len();
                start = range.end;
                bytes[range.clone()] == damaged[range]
            }).collect();
            let (found, _) = salvage_bytes(&damaged);
            // All whole ones in their order; besides them repaired ones.
            let mut rest = found.iter();
            for record in whole {
                prop_assert!(rest.any(|other| other == record));
            }
            prop_assert!(found.iter().all(|record| records.contains(record)));
        }

        #[test]
        fn any_bytes_are_gone_through(bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300)) {
            let (_, salvaged) = salvage_bytes(&bytes);
            prop_assert!(salvaged.lost_bytes <= 3000 * bytes.len() as u64);
        }
    }
}
