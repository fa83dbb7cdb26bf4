//! Where each record of a plain TFRecord file lies: made by one scan, compact, and stored as a small file if wanted.

use std::io::Write;
use std::path::Path;

use crate::store::{AtomicFile, Existing, Location, ReadAt, read_file};
use crate::tfrecord::Compression;
use crate::tfrecord::frame::{HEADER, TRAILER, claim_error, cut_error, detect, length_error, length_of};
use crate::{Error, Position, Result};

/// Records that share an entry of the index.
const BLOCK: u64 = 64;
/// Bytes around a payload.
const FRAME: u64 = (HEADER + TRAILER) as u64;
/// Bytes asked of a source at once where records are small.
const STEP_BYTES: usize = 256 << 10;
/// Bytes asked of a source where records are large: a header, and those of a few small ones.
const PROBE_BYTES: usize = 4 << 10;
/// What a stored index begins with; the last byte is its version.
const MAGIC: [u8; 8] = *b"PREPTFI\x01";

/// Where the records of a plain TFRecord file lie.
///
/// TFRecord has no index of its own: this one is made by going over the lengths of all records ([`Index::scan`]), 12 bytes read for each, or
/// loaded from a file that an earlier scan was stored in ([`Index::load`]).
///
/// Lengths are kept per 64 records as the smallest and what each is longer, in as many bits as the longest needs: 1.75 bytes a record for
/// records of 1 kB that vary by half, 0.5 for records of one size, so 0.5 to 2 GB at 10^9 records. A lookup adds up to 63 of them:
/// about 60 ns.
///
/// # Examples
///
/// ```
/// use prep_formats::store::MemoryFile;
/// use prep_formats::tfrecord::{Compression, Index, Writer};
///
/// let mut writer = Writer::new(Vec::new(), Compression::Plain)?;
/// writer.write(b"one")?;
/// writer.write(b"three")?;
/// let index = Index::scan(&MemoryFile::new("example", writer.finish()?))?;
/// assert_eq!(index.num_records(), 2);
/// assert_eq!(index.record(1), Some((19, 5)));
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    num_records: u64,
    /// Length of the file that the records fill.
    file_bytes: u64,
    blocks: Vec<Block>,
    bits: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    /// Where its first record begins.
    offset: u64,
    /// Length of its shortest payload.
    shortest: u64,
    /// First bit of what the others are longer.
    bit: u64,
    /// Bits of each.
    width: u32,
}

/// Makes an [`Index`] of a file whose records are read for another reason: from their lengths, in file order.
///
/// # Examples
///
/// ```
/// use prep_formats::tfrecord::IndexBuilder;
///
/// let mut builder = IndexBuilder::default();
/// builder.push(3);
/// builder.push(5);
/// assert_eq!(builder.finish().record(1), Some((19, 5)));
/// ```
#[derive(Debug, Default)]
pub struct IndexBuilder {
    index: Index,
    pending: Vec<u64>,
    num_bits: u64,
}

impl IndexBuilder {
    /// Takes the length of the next payload, in bytes.
    pub fn push(&mut self, length: u64) {
        self.pending.push(length);
        self.index.num_records += 1;
        if self.pending.len() as u64 == BLOCK {
            self.pack();
        }
    }

    fn pack(&mut self) {
        let (Some(&shortest), Some(&longest)) = (self.pending.iter().min(), self.pending.iter().max()) else {
            return;
        };
        let width = u64::BITS - (longest - shortest).leading_zeros();
        let index = &mut self.index;
        index.blocks.push(Block {
            offset: index.file_bytes,
            shortest,
            bit: self.num_bits,
            width,
        });
        let first_bit = self.num_bits;
        self.num_bits += u64::from(width) * self.pending.len() as u64;
        index.bits.resize(words_for(self.num_bits), 0);
        for (i, &length) in self.pending.iter().enumerate() {
            let at = first_bit + i as u64 * u64::from(width);
            let shifted = u128::from(length - shortest) << (at % 64);
            index.bits[at as usize / 64] |= shifted as u64;
            index.bits[at as usize / 64 + 1] |= (shifted >> 64) as u64;
            index.file_bytes += length + FRAME;
        }
        self.pending.clear();
    }

    /// The index of all records.
    pub fn finish(mut self) -> Index {
        self.pack();
        self.index.blocks.shrink_to_fit();
        self.index.bits.shrink_to_fit();
        self.index
    }
}

/// One word more than the bits fill, so that two can always be read.
fn words_for(num_bits: u64) -> usize {
    if num_bits == 0 {
        2
    } else {
        num_bits as usize / 64 + 2
    }
}

impl Index {
    /// Goes over a plain file and notes where its records lie. Lengths are checked by their checksums, payloads are not read.
    ///
    /// Of a mapped file one page is touched for each record; of others, small records are read through and large ones jumped over.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] naming record and offset where a length is damaged or the file cut short: [`Index::scan_until_damage`] gives what
    /// comes before. [`Error::Unsupported`] for a compressed file, which has no place to jump to. [`Error::Io`] of the source.
    pub fn scan(source: &dyn ReadAt) -> Result<Self> {
        match Self::scan_until_damage(source)? {
            (index, None) => Ok(index),
            (_, Some(damage)) => Err(damage),
        }
    }

    /// Like [`Index::scan`], but damage is the end: the index of the records before it, and what it was.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a compressed file, [`Error::Io`] of the source.
    pub fn scan_until_damage(source: &dyn ReadAt) -> Result<(Self, Option<Error>)> {
        let mut headers = Headers::new(source);
        if let Some(kind) = detect(headers.at(0, HEADER)?)
            && kind != Compression::Plain
        {
            return Err(Error::Unsupported {
                at: Position {
                    path: source.name().to_string(),
                    record: None,
                    offset: Some(0),
                },
                reason: format!(
                    "records of {} cannot be read by index: read it in order, or write it anew uncompressed",
                    kind.name()
                ),
            });
        }
        let (mut builder, mut offset) = (IndexBuilder::default(), 0);
        let damage = loop {
            if offset == source.len() {
                break None;
            }
            let at = || Position {
                path: source.name().to_string(),
                record: Some(builder.index.num_records),
                offset: Some(offset),
            };
            let bytes = headers.at(offset, HEADER)?;
            let Some(header) = bytes.first_chunk::<HEADER>() else {
                break Some(cut_error(at(), bytes.len(), "length"));
            };
            let length = match length_of(header) {
                Ok(length) => length,
                Err(crc) => break Some(length_error(at(), crc)),
            };
            let available = source.len() - offset - HEADER as u64;
            if length
                .checked_add(TRAILER as u64)
                .is_none_or(|length| length > available)
            {
                break Some(if length > available {
                    claim_error(at(), length, Some(available), u64::MAX)
                } else {
                    cut_error(at(), (available as usize) + HEADER, "payload checksum")
                });
            }
            builder.push(length);
            offset += length + FRAME;
        };
        Ok((builder.finish(), damage))
    }

    /// How many records there are.
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Length of the indexed part of the file: where the last record ends.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>() + self.bits.capacity() * 8
    }

    /// Where a record's frame begins, and how long its payload is; `None` past the last.
    #[inline]
    pub fn record(&self, index: u64) -> Option<(u64, u64)> {
        if index >= self.num_records {
            return None;
        }
        let block = self.blocks[(index / BLOCK) as usize];
        let before = index % BLOCK;
        let mut longer = 0;
        let mut at = block.bit;
        for _ in 0..before {
            longer += self.bits_at(at, block.width);
            at += u64::from(block.width);
        }
        let offset = block.offset + before * (block.shortest + FRAME) + longer;
        Some((offset, block.shortest + self.bits_at(at, block.width)))
    }

    #[inline]
    fn bits_at(&self, at: u64, width: u32) -> u64 {
        let words = &self.bits[at as usize / 64..at as usize / 64 + 2];
        let joined = u128::from(words[0]) | (u128::from(words[1]) << 64);
        ((joined >> (at % 64)) & ((1u128 << width) - 1)) as u64
    }

    /// The index as bytes, all little-endian: magic and version (8), records, bytes of the TFRecord file, number of blocks, number of words
    /// (8 each); per block shortest payload and width (8, 1); the words (8 each); CRC-32C of it all (4).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(44 + 9 * self.blocks.len() + 8 * self.bits.len());
        out.extend(MAGIC);
        for number in [
            self.num_records,
            self.file_bytes,
            self.blocks.len() as u64,
            self.bits.len() as u64,
        ] {
            out.extend(number.to_le_bytes());
        }
        for block in &self.blocks {
            out.extend(block.shortest.to_le_bytes());
            out.push(block.width as u8);
        }
        out.extend(self.bits.iter().flat_map(|word| word.to_le_bytes()));
        out.extend(crc_fast::crc32_iscsi(&out).to_le_bytes());
        out
    }

    /// The index of what [`Index::to_bytes`] gave. Costs a pass over all lengths: whatever the bytes, lookups in the index stay within
    /// [`Index::file_bytes`].
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] without a position for bytes that are not a whole index.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let damaged = |reason: &str| {
            Error::damaged(format!(
                "this is not a whole TFRecord index: {reason}; scan the file anew"
            ))
        };
        let Some((body, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(damaged("it is too short"));
        };
        let Some(rest) = body.strip_prefix(&MAGIC) else {
            return Err(damaged("it begins otherwise"));
        };
        if crc_fast::crc32_iscsi(body).to_le_bytes()[..] != crc[..] {
            return Err(damaged("its checksum does not match"));
        }
        let Some((numbers, rest)) = rest.split_at_checked(32) else {
            return Err(damaged("it is too short"));
        };
        let (numbers, _) = numbers.as_chunks::<8>();
        let [num_records, file_bytes, num_blocks, num_words] =
            [0, 1, 2, 3].map(|i| u64::from_le_bytes(numbers[i]));
        // The bytes at hand bound both numbers.
        let size = num_blocks.checked_mul(9).zip(num_words.checked_mul(8));
        let size = size.and_then(|(blocks, words)| blocks.checked_add(words));
        if size != Some(rest.len() as u64) || num_blocks != num_records.div_ceil(BLOCK) {
            return Err(damaged("its parts do not add up"));
        }
        let (blocks, words) = rest.split_at(9 * num_blocks as usize);
        let words = words.as_chunks::<8>().0;
        let mut index = Self {
            num_records,
            file_bytes,
            blocks: Vec::with_capacity(num_blocks as usize),
            bits: words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
        };
        let (mut offset, mut bit) = (Some(0u64), 0u64);
        for (i, block) in blocks.as_chunks::<9>().0.iter().enumerate() {
            let [shortest @ .., width] = *block;
            let (shortest, width) = (u64::from_le_bytes(shortest), u32::from(width));
            let in_block = (num_records - i as u64 * BLOCK).min(BLOCK);
            let end = bit + in_block * u64::from(width);
            if width > 64 || words_for(end) > index.bits.len() {
                return Err(damaged("a block lies beyond its end"));
            }
            index.blocks.push(Block {
                offset: offset.unwrap_or(0),
                shortest,
                bit,
                width,
            });
            for record in 0..in_block {
                let longer = index.bits_at(bit + record * u64::from(width), width);
                offset = offset.and_then(|offset| {
                    offset
                        .checked_add(FRAME)?
                        .checked_add(shortest)?
                        .checked_add(longer)
                });
            }
            bit = end;
        }
        if offset != Some(file_bytes) {
            return Err(damaged("its records do not fill the file"));
        }
        Ok(index)
    }

    /// Stores the index: it appears whole or not at all. It is written beside `path` first, under that name with `.part` behind it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the file cannot be written.
    pub fn store(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut staging = path.as_os_str().to_owned();
        staging.push(".part");
        let mut file = AtomicFile::create(staging)?;
        file.write_all(&self.to_bytes())
            .map_err(Error::io(path, "write"))?;
        file.commit(path, Existing::Replace)
    }

    /// Loads a stored index of `source`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the file cannot be read; [`Error::Damaged`] for one that is not a whole index, or is of a file of another length.
    pub fn load(path: impl AsRef<Path>, source: &dyn ReadAt) -> Result<Self> {
        Self::load_from(&Location::from_path(path), source)
    }

    /// The same for an index that may lie in an object store.
    ///
    /// # Errors
    ///
    /// As [`Index::load`].
    pub fn load_from(at: &Location, source: &dyn ReadAt) -> Result<Self> {
        let place = Position {
            path: at.to_string(),
            record: None,
            offset: None,
        };
        let bytes = read_file(at)?.ok_or_else(|| Error::Io {
            path: at.to_string(),
            action: "read",
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let index = Self::from_bytes(&bytes).map_err(|error| error.with_position(&place))?;
        if index.file_bytes != source.len() {
            return Err(Error::Damaged {
                at: place,
                reason: format!(
                    "this is the index of a file of {} bytes, `{}` has {}: scan it anew",
                    index.file_bytes,
                    source.name(),
                    source.len()
                ),
            });
        }
        Ok(index)
    }
}

/// Reads the few bytes that a scan looks at, many at once where records are small.
struct Headers<'a> {
    source: &'a dyn ReadAt,
    buffer: Vec<u8>,
    start: u64,
}

impl<'a> Headers<'a> {
    fn new(source: &'a dyn ReadAt) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// The bytes from `offset` on: at least `wanted`, unless the file ends before.
    fn at(&mut self, offset: u64, wanted: usize) -> Result<&[u8]> {
        if let Some(bytes) = self.source.as_slice() {
            return Ok(bytes.get(offset as usize..).unwrap_or(&[]));
        }
        let left = usize::try_from(self.source.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let known = |this: &Self| (this.start + this.buffer.len() as u64).saturating_sub(offset) as usize;
        if offset < self.start || known(self) < wanted.min(left) {
            // Far from what was read last, records are large: reading through them would be waste.
            let jumped = offset.saturating_sub(self.start + self.buffer.len() as u64) > STEP_BYTES as u64;
            let length = if jumped { PROBE_BYTES } else { STEP_BYTES }.min(left);
            self.buffer.resize(length, 0);
            self.source.read_at(offset, &mut self.buffer)?;
            self.start = offset;
        }
        Ok(&self.buffer[(offset - self.start) as usize..])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::{MemoryFile, PositionedFile};
    use crate::tfrecord::Writer;

    fn of(lengths: &[u64]) -> Index {
        let mut builder = IndexBuilder::default();
        lengths.iter().for_each(|&length| builder.push(length));
        builder.finish()
    }

    fn file(lengths: &[usize]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), Compression::Plain).unwrap();
        for &length in lengths {
            writer.write(&vec![7; length]).unwrap();
        }
        writer.finish().unwrap()
    }

    proptest! {
        #[test]
        fn records_come_back_and_bytes_too(
            lengths in prop::collection::vec(prop_oneof![Just(0u64), 0u64..3000, 0u64..200_000_000_000], 0..300),
            flip in any::<prop::sample::Index>(),
        ) {
            let index = of(&lengths);
            let mut offset = 0;
            for (i, &length) in lengths.iter().enumerate() {
                prop_assert_eq!(index.record(i as u64), Some((offset, length)));
                offset += 16 + length;
            }
            prop_assert_eq!((index.num_records(), index.file_bytes()), (lengths.len() as u64, offset));
            prop_assert_eq!(index.record(index.num_records()), None);
            let bytes = index.to_bytes();
            prop_assert_eq!(&Index::from_bytes(&bytes).unwrap(), &index);
            let at = flip.index(bytes.len());
            prop_assert!(Index::from_bytes(&bytes[..at]).is_err());
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            prop_assert!(Index::from_bytes(&flipped).is_err());
            // With a checksum that is right: refused, or within the file.
            let end = bytes.len() - 4;
            if at < end {
                let crc = crc_fast::crc32_iscsi(&flipped[..end]);
                flipped[end..].copy_from_slice(&crc.to_le_bytes());
                if let Ok(index) = Index::from_bytes(&flipped) {
                    for (offset, length) in (0..index.num_records()).filter_map(|i| index.record(i)) {
                        prop_assert!(offset + length + FRAME <= index.file_bytes());
                    }
                }
            }
        }

        #[test]
        fn scans_of_mapped_and_other_files_agree(lengths in prop::collection::vec(prop_oneof![0usize..50, 0usize..700_000], 0..8)) {
            let bytes = file(&lengths);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x");
            std::fs::write(&path, &bytes).unwrap();
            let index = Index::scan(&PositionedFile::open(&path).unwrap()).unwrap();
            prop_assert_eq!(&index, &Index::scan(&MemoryFile::new("x", bytes)).unwrap());
            let lengths: Vec<u64> = lengths.iter().map(|&length| length as u64).collect();
            prop_assert_eq!(&index, &of(&lengths));
        }
    }

    #[test]
    fn damage_ends_a_scan_and_is_named() {
        let bytes = file(&[3, 40, 5]);
        let starts = [0, 19, 75, 96];
        for cut in 0..=bytes.len() {
            let source = MemoryFile::new("x.tfrecord", bytes[..cut].to_vec());
            let (index, damage) = Index::scan_until_damage(&source).unwrap();
            let whole = starts.iter().rposition(|&start| start <= cut).unwrap();
            assert_eq!(index.num_records(), whole as u64);
            assert_eq!(damage.is_none(), starts.contains(&cut), "cut at {cut}");
            if let Some(damage) = damage {
                let place = format!("x.tfrecord, record {whole}, byte {}: ", starts[whole]);
                assert!(damage.to_string().starts_with(&place), "{damage}");
                assert!(damage.to_string().contains("cut short"), "{damage}");
                assert_eq!(Index::scan(&source).unwrap_err().to_string(), damage.to_string());
            }
        }
        let mut flipped = bytes.clone();
        flipped[20] ^= 4;
        let error = Index::scan(&MemoryFile::new("x", flipped))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("x, record 1, byte 19: length checksum"),
            "{error}"
        );
        for compression in [Compression::Gzip, Compression::Zlib, Compression::Zstd] {
            let writer = Writer::new(Vec::new(), compression).unwrap();
            let source = MemoryFile::new("x", writer.finish().unwrap());
            let error = Index::scan(&source).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
    }

    #[test]
    fn a_record_of_1_kb_takes_under_2_bytes() {
        let mut state = 1u64;
        let lengths: Vec<u64> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            500 + (state >> 33) % 1000
        })
        .take(100_000)
        .collect();
        let index = of(&lengths);
        assert!(index.memory() < 190_000, "{} bytes", index.memory());
        assert!(of(&[1000; 100_000]).memory() < 51_000);
        // Beyond 4 GiB, and at both ends of 2^33.
        let index = of(&[1 << 32, 5, 1 << 33, 6]);
        assert_eq!(index.record(1), Some(((1 << 32) + 16, 5)));
        assert_eq!(index.record(3), Some((3 * (1 << 32) + 53, 6)));
    }

    #[test]
    fn a_stored_index_serves_only_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.index");
        let source = MemoryFile::new("x", file(&[1, 2, 3]));
        let index = Index::scan(&source).unwrap();
        index.store(&path).unwrap();
        assert_eq!(Index::load(&path, &source).unwrap(), index);
        let error = Index::load(&path, &MemoryFile::new("y", file(&[1, 2])))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("x.index: this is the index of a file of 54 bytes, `y` has 35"),
            "{error}"
        );
        std::fs::write(&path, b"no").unwrap();
        assert!(
            Index::load(&path, &source)
                .unwrap_err()
                .to_string()
                .contains("x.index: this is not a whole")
        );
    }
}
