//! Chunks that are encoded apart from the file they go into: by any thread, in any order.

use std::fmt;
use std::ops::Range;

use crate::array_record::WriteOptions;
use crate::array_record::encoder::{ChunkEncoder, Records};
use crate::array_record::layout::{ChunkHeader, put_varint};
use crate::{Error, Position, Result};

/// Encodes blocks of records for [`Writer::write_encoded`](crate::array_record::Writer::write_encoded): a thread has one.
///
/// For callers that bring threads of their own, which read, check and encode many records at a time: one thread then has nothing to do but
/// to place what the others have made. The chunks are those that [`Writer::write`](crate::array_record::Writer::write) makes, as long as each
/// block but the last of a file holds whole groups.
///
/// # Examples
///
/// ```
/// use prep_formats::array_record::{BlockEncoder, EncodedBlock, WriteOptions, Writer};
///
/// let options = WriteOptions::uncompressed();
/// let (mut encoder, mut block) = (BlockEncoder::new(&options)?, EncodedBlock::default());
/// let buffer = b"one, two";
/// encoder.encode(buffer, &[0..3, 5..8], &mut block)?;
/// let mut writer = Writer::new(Vec::new(), options.clone())?;
/// writer.write_encoded(&block, buffer)?;
///
/// let mut other = Writer::new(Vec::new(), options)?;
/// other.write(b"one")?;
/// other.write(b"two")?;
/// assert_eq!(writer.finish()?, other.finish()?);
/// # Ok::<(), prep_formats::Error>(())
/// ```
pub struct BlockEncoder {
    encoder: ChunkEncoder,
    group_size: usize,
    sizes: Vec<u8>,
    values: Vec<u8>,
}

impl fmt::Debug for BlockEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockEncoder")
            .field("group_size", &self.group_size)
            .finish_non_exhaustive()
    }
}

/// The chunks of a block of records, ready to be placed. Kept for its buffers.
#[derive(Debug, Default)]
pub struct EncodedBlock {
    pub(super) pieces: Vec<Piece>,
    pub(super) data: Vec<u8>,
    pub(super) num_records: u64,
    /// Bytes of the buffer that it was made from: another one is refused.
    pub(super) buffer_bytes: usize,
}

/// One chunk: its data are bytes of [`EncodedBlock::data`] up to `data_end`, and then those of the caller's buffer in `rest`.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) header: ChunkHeader,
    pub(super) data_end: usize,
    pub(super) rest: Range<usize>,
}

impl EncodedBlock {
    /// Records in it.
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Bytes of memory held, the caller's buffer apart.
    pub fn memory(&self) -> usize {
        self.data.capacity() + self.pieces.capacity() * size_of::<Piece>()
    }
}

impl BlockEncoder {
    /// Sets up an encoder for these options.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a level or window that the codec's library refuses; parsed options have none.
    pub fn new(options: &WriteOptions) -> Result<Self> {
        let encoder = ChunkEncoder::new(options).map_err(|reason| Error::Unsupported {
            at: Position::default(),
            reason: format!("options `{options}`: {reason}"),
        })?;
        Ok(Self {
            encoder,
            group_size: options.group_size() as usize,
            sizes: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Encodes `records`, which are ranges of `buffer`, and puts the chunks into `block`, in place of what it held. Chunks of one uncompressed
    /// record are not copied: they are written from `buffer`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a range that is not in the buffer, and where the codec's library fails.
    pub fn encode(
        &mut self,
        buffer: &[u8],
        records: &[Range<usize>],
        block: &mut EncodedBlock,
    ) -> Result<()> {
        block.pieces.clear();
        block.data.clear();
        block.num_records = records.len() as u64;
        block.buffer_bytes = buffer.len();
        let failed = |reason: String| Error::Invalid(format!("could not compress a chunk: {reason}"));
        let record = |range: &Range<usize>| {
            buffer.get(range.clone()).ok_or_else(|| {
                let (start, end, length) = (range.start, range.end, buffer.len());
                Error::Invalid(format!(
                    "a record lies at {start}..{end} of a buffer of {length} bytes"
                ))
            })
        };
        let follow = self.encoder.values_follow();
        for group in records.chunks(self.group_size) {
            self.sizes.clear();
            let mut rest = 0..0;
            let values = if let [range] = group {
                let values = record(range)?;
                put_varint(&mut self.sizes, values.len() as u64);
                if follow {
                    rest = range.clone();
                }
                values
            } else {
                self.values.clear();
                for range in group {
                    let record = record(range)?;
                    put_varint(&mut self.sizes, record.len() as u64);
                    self.values.extend_from_slice(record);
                }
                &self.values[..]
            };
            let joined = Records {
                num_records: group.len() as u64,
                sizes: &self.sizes,
                values,
            };
            let header = self.encoder.encode(joined, &mut block.data).map_err(failed)?;
            if follow && group.len() > 1 {
                block.data.extend_from_slice(&self.values);
            }
            block.pieces.push(Piece {
                header,
                data_end: block.data.len(),
                rest,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::array_record::Writer;

    proptest! {
        /// Whatever the blocks, the file is the one that is written record by record.
        #[test]
        fn blocks_give_the_writers_file(
            lengths in prop::collection::vec(prop_oneof![0usize..50, 0usize..3000, Just(70_000)], 0..60),
            cuts in prop::collection::vec(1usize..20, 1..10),
            text in prop::sample::select(vec![
                "uncompressed", "zstd:1", "group_size:3,uncompressed", "group_size:4,snappy",
                "group_size:2,transpose:true,zstd:1", "uncompressed,pad_to_block_boundary:true",
            ]),
        ) {
            let options = WriteOptions::parse(text).unwrap();
            let records: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(i, length)| vec![i as u8; *length]).collect();
            let mut whole = Writer::new(Vec::new(), options.clone()).unwrap();
            records.iter().for_each(|record| whole.write(record).unwrap());
            let mut writer = Writer::new(Vec::new(), options.clone()).unwrap();
            let (mut encoder, mut block) = (BlockEncoder::new(&options).unwrap(), EncodedBlock::default());
            let (mut rest, mut cuts) = (&records[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let count = (cuts.next().unwrap() * options.group_size() as usize).min(rest.len());
                let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
                for record in &rest[..count] {
                    buffer.extend([9; 12]);
                    ranges.push(buffer.len()..buffer.len() + record.len());
                    buffer.extend(record);
                }
                encoder.encode(&buffer, &ranges, &mut block).unwrap();
                writer.write_encoded(&block, &buffer).unwrap();
                rest = &rest[count..];
            }
            prop_assert_eq!(writer.num_records(), records.len() as u64);
            prop_assert!(writer.finish().unwrap() == whole.finish().unwrap());
        }
    }

    #[test]
    fn what_was_written_before_comes_before_and_wrong_buffers_are_refused() {
        let options = WriteOptions::parse("group_size:2,zstd:1").unwrap();
        let (mut encoder, mut block) = (BlockEncoder::new(&options).unwrap(), EncodedBlock::default());
        encoder.encode(b"bc", &[0..1, 1..2], &mut block).unwrap();
        let mut writer = Writer::new(Vec::new(), options.clone()).unwrap();
        writer.write(b"a").unwrap();
        assert!(writer.write_encoded(&block, b"b").is_err());
        writer.write_encoded(&block, b"bc").unwrap();
        let file = writer.finish().unwrap();
        let source = crate::store::MemoryFile::new("x", file);
        let reader = crate::array_record::Reader::from_source(std::sync::Arc::new(source)).unwrap();
        let mut found = Vec::new();
        let visited = reader.for_each(0..3, &mut Default::default(), |_, record| {
            found.extend(record);
            Ok(())
        });
        visited.unwrap();
        assert_eq!((found, reader.num_chunks()), (b"abc".to_vec(), 2));
        assert!(encoder.encode(b"x", &[0..1, 1..3], &mut block).is_err());
    }
}
