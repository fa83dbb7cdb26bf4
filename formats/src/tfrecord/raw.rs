//! Frames of a plain file in a caller's own buffer: for readers that cut a file into pieces and check them apart.

use crate::store::ReadAt;
use crate::tfrecord::frame::{
    CrcMismatch, HEADER, TRAILER, check_payload, claim_error, cut_error, length_error, length_of,
    payload_error,
};
use crate::{Error, Position, Result};

/// Bytes of a frame before its payload: length and checksum of the length.
pub const FRAME_HEADER: usize = HEADER;
/// Bytes of a frame behind its payload: its checksum.
pub const FRAME_TRAILER: usize = TRAILER;
/// Bytes asked of a source at once while searching.
const STEP_BYTES: usize = 512 << 10;
/// Payload bytes that a search may check in vain, besides four times the place it began at: some file could be made of promises only.
const VAIN_BYTES: u64 = 64 << 20;

/// What stands at the start of some bytes of a plain file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame {
    /// A whole frame: the payload has so many bytes, and begins behind [`FRAME_HEADER`] bytes. Its checksum is not looked at.
    Whole(usize),
    /// The frame goes on behind these bytes: so many are needed, as far as is known.
    Partial(u64),
    /// The length does not match its checksum.
    BadLength(FrameFault),
}

/// A checksum of a frame that does not match; [`at`](Self::at) makes an error of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameFault {
    crc: CrcMismatch,
    of_length: bool,
}

impl FrameFault {
    /// The error about the record at this place, in the words of [`Reader`](crate::tfrecord::Reader).
    pub fn at(self, at: Position) -> Error {
        if self.of_length {
            length_error(at, self.crc)
        } else {
            payload_error(at, self.crc)
        }
    }
}

/// Looks at the frame that begins with these bytes; its length is checked by its checksum.
#[inline]
pub fn frame_at(bytes: &[u8]) -> Frame {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Frame::Partial(HEADER as u64);
    };
    match length_of(header) {
        Err(crc) => Frame::BadLength(FrameFault { crc, of_length: true }),
        Ok(length) => {
            let whole = length.saturating_add((HEADER + TRAILER) as u64);
            if whole <= bytes.len() as u64 {
                Frame::Whole(length as usize)
            } else {
                Frame::Partial(whole)
            }
        }
    }
}

/// Compares a payload with the checksum behind it.
///
/// # Errors
///
/// Those that do not match.
#[inline]
pub fn check_frame(payload: &[u8], trailer: [u8; FRAME_TRAILER]) -> Result<(), FrameFault> {
    check_payload(payload, trailer).map_err(|crc| FrameFault {
        crc,
        of_length: false,
    })
}

/// The error for a frame that needs `needed` bytes where a file has `found` more: it is cut short, or the length is false.
pub fn cut_short(at: Position, needed: u64, found: u64) -> Error {
    let header = HEADER as u64;
    if found < header {
        return cut_error(at, found as usize, "length");
    }
    let length = needed.saturating_sub(header + TRAILER as u64);
    if length > found - header {
        claim_error(at, length, Some(found - header), u64::MAX)
    } else {
        cut_error(at, found as usize, "payload checksum")
    }
}

/// The first place from `from` on where a record stands for certain: where both of its checksums match. For going on behind a damaged length.
///
/// Costs a checksum of 8 bytes at some of the places, and reads as far as it goes. Holds 512 KiB.
///
/// # Errors
///
/// [`Error::Io`] of the source.
pub fn find_record(source: &dyn ReadAt, from: u64) -> Result<Option<u64>> {
    let end = source.len();
    let mut offset = from;
    let mut buffer = Vec::new();
    let mut vain = 0;
    while offset + ((HEADER + TRAILER) as u64) <= end {
        let count = (end - offset).min(STEP_BYTES as u64) as usize;
        buffer.resize(count, 0);
        source.read_at(offset, &mut buffer)?;
        let mut start = 0;
        while let Some(found) = super::salvage::next_header(&buffer[start..]) {
            let at = offset + (start + found) as u64;
            let header = buffer[start + found..].first_chunk::<HEADER>();
            let length = header
                .and_then(|header| length_of(header).ok())
                .unwrap_or(u64::MAX);
            let room = (end - at).saturating_sub((HEADER + TRAILER) as u64);
            if length <= room && vain + length <= VAIN_BYTES + 4 * at {
                if payload_matches(source, at + HEADER as u64, length)? {
                    return Ok(Some(at));
                }
                vain += length;
            }
            start += found + 1;
        }
        if offset + count as u64 == end {
            break;
        }
        // The last bytes may be the start of a header.
        offset += (count - (HEADER - 1)) as u64;
    }
    Ok(None)
}

/// Whether the payload at `offset` matches the checksum behind it.
fn payload_matches(source: &dyn ReadAt, mut offset: u64, length: u64) -> Result<bool> {
    let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let end = offset + length;
    let mut buffer = vec![0; length.min(STEP_BYTES as u64) as usize];
    while offset < end {
        let count = (end - offset).min(STEP_BYTES as u64) as usize;
        source.read_at(offset, &mut buffer[..count])?;
        crc.update(&buffer[..count]);
        offset += count as u64;
    }
    let mut trailer = [0; TRAILER];
    source.read_at(end, &mut trailer)?;
    let masked = (crc.finalize() as u32).rotate_right(15).wrapping_add(0xa282_ead8);
    Ok(masked == u32::from_le_bytes(trailer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryFile;
    use crate::tfrecord::{Compression, CrcPolicy, Scanner, Writer};

    fn file(lengths: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let mut writer = Writer::new(Vec::new(), Compression::Plain).unwrap();
        let mut starts = vec![0];
        for (index, length) in lengths.iter().enumerate() {
            writer.write(&vec![index as u8 + 1; *length]).unwrap();
            starts.push(starts[index] + length + 16);
        }
        (writer.finish().unwrap(), starts)
    }

    #[test]
    fn frames_are_told_from_their_parts() {
        let (bytes, starts) = file(&[5, 0, 300]);
        assert_eq!(frame_at(&bytes), Frame::Whole(5));
        assert_eq!(frame_at(&bytes[starts[1]..]), Frame::Whole(0));
        for cut in 0..starts[1] {
            let needed = if cut < 12 { 12 } else { 21 };
            assert_eq!(frame_at(&bytes[..cut]), Frame::Partial(needed));
        }
        assert!(matches!(frame_at(&bytes[1..]), Frame::BadLength(_)));
        assert!(check_frame(&bytes[12..17], bytes[17..21].try_into().unwrap()).is_ok());
        assert!(check_frame(&bytes[12..16], bytes[17..21].try_into().unwrap()).is_err());
    }

    #[test]
    fn errors_are_those_of_the_scanner() {
        let (bytes, _) = file(&[5, 30]);
        for cut in 22..bytes.len() {
            let mut scanner = Scanner::new(&bytes[..cut], "x", CrcPolicy::Check);
            scanner.next().unwrap();
            let wanted = scanner.next().unwrap_err().to_string();
            let Frame::Partial(needed) = frame_at(&bytes[21..cut]) else {
                panic!("whole")
            };
            let at = Position {
                path: "x".into(),
                record: Some(1),
                offset: Some(21),
            };
            let found = cut_short(at, needed, (cut - 21) as u64).to_string();
            // A length that is known to reach too far is told with both numbers.
            assert!(
                found == wanted || found.contains("30 bytes is claimed"),
                "{found}\n{wanted}"
            );
        }
    }

    #[test]
    fn the_next_record_is_found_behind_damage() {
        let (mut bytes, starts) = file(&[5, 600_000, 300, 7]);
        bytes[starts[1]] ^= 1;
        let source = MemoryFile::new("x", bytes.clone());
        assert_eq!(find_record(&source, 0).unwrap(), Some(0));
        for (from, wanted) in [(1, 2), (starts[1], 2), (starts[2], 2), (starts[2] + 1, 3)] {
            assert_eq!(
                find_record(&source, from as u64).unwrap(),
                Some(starts[wanted] as u64)
            );
        }
        assert_eq!(find_record(&source, starts[3] as u64 + 1).unwrap(), None);
        // A header at each place of the border between two reads.
        for shift in 0..30 {
            let border = STEP_BYTES - shift;
            let mut padded = vec![7; border];
            padded.extend(&bytes[starts[2]..]);
            let source = MemoryFile::new("x", padded);
            assert_eq!(find_record(&source, 0).unwrap(), Some(border as u64));
        }
        assert_eq!(find_record(&MemoryFile::new("x", vec![0; 5]), 0).unwrap(), None);
    }
}
