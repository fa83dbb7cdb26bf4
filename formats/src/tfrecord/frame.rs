//! The frame around a record, its checksums, and what compresses a file. No I/O.

use crate::{Error, Position};

/// Bytes before a payload.
pub(super) const HEADER: usize = 12;
/// Bytes behind a payload.
pub(super) const TRAILER: usize = 4;

/// How a TFRecord file is compressed, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    Plain,
    /// gzip, of one or more members.
    Gzip,
    /// A zlib stream.
    Zlib,
    /// zstd, of one or more frames. TensorFlow does not read it.
    Zstd,
}

impl Compression {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "a plain TFRecord file",
            Self::Gzip => "a gzip file",
            Self::Zlib => "a zlib file",
            Self::Zstd => "a zstd file",
        }
    }

    /// One word: `plain`, `gzip`, `zlib`, `zstd`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }
}

/// What is done about checksums of payloads. Those of lengths are always checked: a wrong length loses the rest of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CrcPolicy {
    /// A record whose checksum differs is an error.
    #[default]
    Check,
    /// Payload checksums are not computed: for files checked before.
    Skip,
}

/// Tells from the first 12 bytes (or fewer, if the file is shorter) how a file is compressed; `None` for an empty file, and for one that is none of
/// the kinds known.
pub fn detect(head: &[u8]) -> Option<Compression> {
    // A right checksum decides: the length bytes of a plain file may look like the start of another.
    if let Some(header) = head.first_chunk::<HEADER>()
        && length_of(header).is_ok()
    {
        return Some(Compression::Plain);
    }
    match *head {
        // Source: RFC 1952, section 2.3.1.
        [0x1f, 0x8b, 8, ..] => Some(Compression::Gzip),
        // Source: RFC 1950, section 2.2: deflate, and a check that makes the two bytes a multiple of 31.
        [first @ 0x08..=0x78, second, ..]
            if first & 0x0f == 8 && u16::from_be_bytes([first, second]).is_multiple_of(31) =>
        {
            Some(Compression::Zlib)
        }
        // Source: RFC 8878, sections 3.1.1 and 3.1.2: a frame, or one to be skipped.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
        _ => None,
    }
}

/// CRC-32C, rotated and shifted so that checksums of checksums differ. Source: `Mask` in `core/lib/hash/crc32c.h`.
#[inline]
pub(super) fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = crc_fast::crc32_iscsi(bytes);
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The frame's first 12 bytes for a payload of `length` bytes.
#[inline]
pub(super) fn header_of(length: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&length.to_le_bytes());
    let crc = masked_crc(&header[..8]);
    header[8..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Two checksums that should be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CrcMismatch {
    stored: u32,
    computed: u32,
}

/// The payload's length, its checksum checked.
#[inline]
pub(super) fn length_of(header: &[u8; HEADER]) -> Result<u64, CrcMismatch> {
    let (length, crc) = header.split_at(8);
    let stored = crc.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let computed = masked_crc(length);
    if stored != computed {
        return Err(CrcMismatch { stored, computed });
    }
    Ok(length.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

/// Compares the checksum of a payload.
#[inline]
pub(super) fn check_payload(payload: &[u8], trailer: [u8; TRAILER]) -> Result<(), CrcMismatch> {
    let (stored, computed) = (u32::from_le_bytes(trailer), masked_crc(payload));
    if stored != computed {
        return Err(CrcMismatch { stored, computed });
    }
    Ok(())
}

pub(super) fn length_error(at: Position, crc: CrcMismatch) -> Error {
    let mut reason = format!(
        "length checksum is {:#010x}, stored {:#010x}: this is damaged, or not a TFRecord file",
        crc.computed, crc.stored
    );
    if at.record != Some(0) {
        reason += "; the records behind it cannot be found";
    }
    Error::Damaged { at, reason }
}

impl CrcMismatch {
    /// The reason of an error about a payload.
    pub(super) fn payload_reason(self) -> String {
        format!(
            "payload checksum is {:#010x}, stored {:#010x}: the record is damaged",
            self.computed, self.stored
        )
    }
}

pub(super) fn payload_error(at: Position, crc: CrcMismatch) -> Error {
    Error::Damaged {
        at,
        reason: crc.payload_reason(),
    }
}

/// A payload's length that cannot be, although its checksum is right.
pub(super) fn claim_error(at: Position, length: u64, available: Option<u64>, limit: u64) -> Error {
    let reason = match available {
        Some(available) if length > available => format!(
            "the file is cut short, or the length is false: a payload of {length} bytes is claimed, {available} bytes follow"
        ),
        _ => format!(
            "a payload of {length} bytes is claimed, over the limit of {limit} bytes: this is damaged, or read with a higher `max_record_bytes`"
        ),
    };
    Error::Damaged { at, reason }
}

pub(super) fn cut_error(at: Position, found: usize, part: &str) -> Error {
    Error::Damaged {
        at,
        reason: format!("the file is cut short: it ends {found} bytes into the record, in its {part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_tensorflows() {
        // Source: the frame of the empty record, as TensorFlow writes it.
        assert_eq!(hex::encode(header_of(0)), "000000000000000029039807");
    }

    #[test]
    fn kinds_are_told_by_the_first_bytes() {
        assert_eq!(detect(&header_of(5)), Some(Compression::Plain));
        // A length whose bytes are gzip's magic number.
        assert_eq!(detect(&header_of(0x08_8b1f)), Some(Compression::Plain));
        assert_eq!(
            detect(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 9, 9]),
            Some(Compression::Gzip)
        );
        for level in [0x01, 0x5e, 0x9c, 0xda] {
            assert_eq!(detect(&[0x78, level, 0, 0]), Some(Compression::Zlib));
        }
        for head in [&b"\x28\xb5\x2f\xfd\0"[..], b"\x5f\x2a\x4d\x18"] {
            assert_eq!(detect(head), Some(Compression::Zstd));
        }
        for head in [&b""[..], b"\x1f", b"hello, world", &[0; 12]] {
            assert_eq!(detect(head), None);
        }
    }
}
