//! Where bytes lie in a Riegeli file: blocks, chunks, hashes, varints. No I/O.
//!
//! A file is a row of 64 KiB blocks; each begins with a block header that interrupts whatever is being written there. Chunks
//! follow each other, the first of them the file signature:
//!
//! ```text
//! block header, 24 bytes: hash of the rest | bytes from the chunk's begin to here | bytes from here to the chunk's end
//! chunk header, 40 bytes: hash of the rest | data size | data hash | type (1), number of records (7) | decoded data size
//! ```
//!
//! All numbers are `u64`, little-endian; hashes are HighwayHash-64.
//!
//! Source: Riegeli, `doc/riegeli_records_file_format.md`, `riegeli/chunk_encoding/chunk.h`, `riegeli/records/block.h`.

use highway::{HighwayHash, HighwayHasher, Key};

use crate::array_record::pair::hash_pair;

/// Bytes in a block. Source: `kBlockSize` in `riegeli/records/block.h`.
pub(super) const BLOCK: u64 = 1 << 16;
/// Bytes of a block header.
pub(super) const BLOCK_HEADER: u64 = 24;
/// Bytes in a block that are not its header.
const USABLE_BLOCK: u64 = BLOCK - BLOCK_HEADER;
/// Bytes of a chunk header.
pub(super) const CHUNK_HEADER: u64 = 40;
/// Where the first chunk after the file signature begins.
pub(super) const FIRST_CHUNK: u64 = BLOCK_HEADER + CHUNK_HEADER;
/// Most records that a chunk can hold: their number is stored in 7 bytes.
pub(super) const MAX_CHUNK_RECORDS: u64 = (1 << 56) - 1;

/// The hash of Riegeli files. Source: `kHashKey` in `riegeli/chunk_encoding/hash.cc`: the text
/// `Riegeli/records` and a newline, twice.
const HASH_KEY: Key = {
    const TEXT: &[u8; 32] = b"Riegeli/records\nRiegeli/records\n";
    const fn word(index: usize) -> u64 {
        let mut bytes = [0; 8];
        let mut i = 0;
        while i < 8 {
            bytes[i] = TEXT[index * 8 + i];
            i += 1;
        }
        u64::from_le_bytes(bytes)
    }
    Key([word(0), word(1), word(2), word(3)])
};

/// HighwayHash-64 of `bytes` under Riegeli's key.
#[inline]
pub(super) fn hash(bytes: &[u8]) -> u64 {
    HighwayHasher::new(HASH_KEY).hash64(bytes)
}

/// [`hash_two`], and the HighwayHash-128 of the second piece alone under another key.
pub(super) fn hash_two_and_second(first: &[u8], second: &[u8], second_key: [u64; 4]) -> (u64, [u64; 2]) {
    hash_pair(HASH_KEY, first, Key(second_key), second)
}

/// HighwayHash-64 of two pieces as if they were one.
pub(super) fn hash_two(first: &[u8], second: &[u8]) -> u64 {
    let mut hasher = HighwayHasher::new(HASH_KEY);
    hasher.append(first);
    hasher.append(second);
    hasher.finalize64()
}

/// Reads a little-endian `u64` at `at` of a slice that is long enough.
#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// What a chunk is. Source: `ChunkType` in `riegeli/chunk_encoding/constants.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChunkType {
    /// `s`: the first 64 bytes of a file.
    Signature,
    /// `m`: metadata of the file.
    Metadata,
    /// `p`: bytes without a meaning.
    Padding,
    /// `r`: records, one after the other.
    Simple,
    /// `t`: records taken apart by field.
    Transposed,
    /// Another letter.
    Unknown(u8),
}

impl ChunkType {
    pub(super) fn from_byte(byte: u8) -> Self {
        match byte {
            b's' => Self::Signature,
            b'm' => Self::Metadata,
            b'p' => Self::Padding,
            b'r' => Self::Simple,
            b't' => Self::Transposed,
            other => Self::Unknown(other),
        }
    }

    pub(super) fn to_byte(self) -> u8 {
        match self {
            Self::Signature => b's',
            Self::Metadata => b'm',
            Self::Padding => b'p',
            Self::Simple => b'r',
            Self::Transposed => b't',
            Self::Unknown(byte) => byte,
        }
    }

    /// A word for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signature => "signature",
            Self::Metadata => "metadata",
            Self::Padding => "padding",
            Self::Simple => "simple",
            Self::Transposed => "transposed",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// A chunk header without its own hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    pub(super) data_size: u64,
    pub(super) data_hash: u64,
    pub(super) chunk_type: ChunkType,
    pub(super) num_records: u64,
    pub(super) decoded_data_size: u64,
}

impl ChunkHeader {
    pub(super) fn to_bytes(self) -> [u8; CHUNK_HEADER as usize] {
        let mut bytes = [0; CHUNK_HEADER as usize];
        bytes[8..16].copy_from_slice(&self.data_size.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.data_hash.to_le_bytes());
        let type_and_records = u64::from(self.chunk_type.to_byte()) | (self.num_records << 8);
        bytes[24..32].copy_from_slice(&type_and_records.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.decoded_data_size.to_le_bytes());
        let hash = hash(&bytes[8..]);
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        bytes
    }

    /// Reads a header and checks its hash; the stored and the computed hash if they differ.
    #[inline]
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, HashMismatch> {
        let (stored, computed) = (word(bytes, 0), hash(&bytes[8..CHUNK_HEADER as usize]));
        if stored != computed {
            return Err(HashMismatch { stored, computed });
        }
        let type_and_records = word(bytes, 24);
        Ok(Self {
            data_size: word(bytes, 8),
            data_hash: word(bytes, 16),
            chunk_type: ChunkType::from_byte(type_and_records as u8),
            num_records: type_and_records >> 8,
            decoded_data_size: word(bytes, 32),
        })
    }

    /// Where the chunk ends whose header begins at `begin`: after its data, but not before `begin + num_records`, so that
    /// positions between tell records apart. `None` where that is beyond what a file can hold.
    ///
    /// Source: `ChunkEnd` in `riegeli/records/block.cc`.
    pub(super) fn end(&self, begin: u64) -> Option<u64> {
        let after_data = after(begin, CHUNK_HEADER.checked_add(self.data_size)?)?;
        let after_records = round_up_to_boundary(begin.checked_add(self.num_records)?)?;
        Some(after_data.max(after_records))
    }
}

/// Two hashes that should be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HashMismatch {
    pub(super) stored: u64,
    pub(super) computed: u64,
}

/// A block header without its own hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHeader {
    /// Bytes from the begin of the chunk that is interrupted to the begin of the block.
    pub(super) previous_chunk: u64,
    /// Bytes from the begin of the block to the end of the chunk that is interrupted.
    pub(super) next_chunk: u64,
}

impl BlockHeader {
    pub(super) fn to_bytes(self) -> [u8; BLOCK_HEADER as usize] {
        let mut bytes = [0; BLOCK_HEADER as usize];
        bytes[8..16].copy_from_slice(&self.previous_chunk.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.next_chunk.to_le_bytes());
        let hash = hash(&bytes[8..]);
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; BLOCK_HEADER as usize]) -> Result<Self, HashMismatch> {
        let (stored, computed) = (word(bytes, 0), hash(&bytes[8..]));
        if stored != computed {
            return Err(HashMismatch { stored, computed });
        }
        Ok(Self {
            previous_chunk: word(bytes, 8),
            next_chunk: word(bytes, 16),
        })
    }
}

/// Bytes from `position` to the next block boundary; 0 on one.
pub(super) fn remaining_in_block(position: u64) -> u64 {
    position.wrapping_neg() % BLOCK
}

/// The position after `size` bytes written from `begin`, block headers included. A header at the very end is not.
///
/// Source: `AddWithOverhead` in `riegeli/records/block.cc`.
#[inline]
pub(super) fn after(begin: u64, size: u64) -> Option<u64> {
    let before = begin.wrapping_add(USABLE_BLOCK - 1) % BLOCK;
    let headers = size.checked_add(before)? / USABLE_BLOCK;
    begin
        .checked_add(size)?
        .checked_add(headers.checked_mul(BLOCK_HEADER)?)
}

/// The first position from `position` on where a chunk may begin: not inside or right after a block header.
pub(super) fn round_up_to_boundary(position: u64) -> Option<u64> {
    position.checked_add(remaining_in_block(position).saturating_sub(USABLE_BLOCK - 1))
}

/// Whether a chunk may begin at `position`.
pub(super) fn is_chunk_boundary(position: u64) -> bool {
    remaining_in_block(position) < USABLE_BLOCK
}

/// Appends a varint: 7 bits a byte, lowest first.
pub(super) fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes a varint from the front of `bytes`; `None` where it is cut or does not fit 64 bits.
#[inline]
pub(super) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(u64::from(first));
    }
    let mut value = u64::from(first & 0x7f);
    for (i, &byte) in rest.iter().enumerate().take(9) {
        let shift = 7 * (i as u32 + 1);
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            *bytes = &rest[i + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first 64 bytes of every Riegeli file, as Google's writer makes them.
    const SIGNATURE: &str = "83af70d10d884a3f0000000000000000400000000000000091ba\
                             c23c9287e1a90000000000000000e19f13c0e9b1c3727300000000000000\
                             0000000000000000";

    #[test]
    fn the_signature_has_googles_bytes() {
        let mut bytes = BlockHeader {
            previous_chunk: 0,
            next_chunk: FIRST_CHUNK,
        }
        .to_bytes()
        .to_vec();
        let header = ChunkHeader {
            data_size: 0,
            data_hash: hash(&[]),
            chunk_type: ChunkType::Signature,
            num_records: 0,
            decoded_data_size: 0,
        };
        bytes.extend(header.to_bytes());
        assert_eq!(hex::encode(&bytes), SIGNATURE);
        assert_eq!(ChunkHeader::from_bytes(&bytes[24..]), Ok(header));
        assert_eq!(header.end(0), Some(FIRST_CHUNK));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_seen() {
        let header = ChunkHeader {
            data_size: 70_000,
            data_hash: 5,
            chunk_type: ChunkType::Simple,
            num_records: 3,
            decoded_data_size: 99,
        };
        for bit in 0..CHUNK_HEADER as usize * 8 {
            let mut bytes = header.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkHeader::from_bytes(&bytes).is_err());
        }
    }

    /// Counts positions one byte at a time, as a writer moves.
    fn after_by_counting(begin: u64, size: u64) -> u64 {
        let mut position = begin;
        for _ in 0..size {
            if position.is_multiple_of(BLOCK) {
                position += BLOCK_HEADER;
            }
            position += 1;
        }
        position
    }

    proptest! {
        #[test]
        fn after_counts_block_headers(
            begin in prop_oneof![Just(0u64), 25u64..200, 65_530u64..65_537, 65_561u64..65_600, 131_000u64..131_073],
            size in prop_oneof![0u64..50, 65_400u64..65_600, 131_000u64..131_200],
        ) {
            prop_assert_eq!(after(begin, size), Some(after_by_counting(begin, size)));
        }

        #[test]
        fn varints_round_trip(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let mut rest = &bytes[..];
            prop_assert_eq!(take_varint(&mut rest), Some(value));
            prop_assert!(rest.is_empty());
            for cut in 0..bytes.len() {
                prop_assert_eq!(take_varint(&mut &bytes[..cut]), None);
            }
        }

        #[test]
        fn sizes_near_the_end_of_numbers_do_not_overflow(begin: u64, size: u64) {
            let header = ChunkHeader {
                data_size: size,
                data_hash: 0,
                chunk_type: ChunkType::Simple,
                num_records: size >> 8,
                decoded_data_size: 0,
            };
            if let Some(end) = header.end(begin) {
                prop_assert!(end > begin);
            }
        }
    }

    #[test]
    fn chunk_boundaries_avoid_block_headers() {
        for (position, rounded) in [
            (0, 0),
            (1, 25),
            (24, 25),
            (25, 25),
            (64, 64),
            (65_536, 65_536),
            (65_560, 65_561),
        ] {
            assert_eq!(round_up_to_boundary(position), Some(rounded));
            assert_eq!(is_chunk_boundary(position), position == rounded);
        }
        assert_eq!(round_up_to_boundary(u64::MAX), Some(u64::MAX));
        assert_eq!(take_varint(&mut &[0xff; 11][..]), None);
        assert_eq!(
            take_varint(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2][..]),
            None
        );
    }
}
