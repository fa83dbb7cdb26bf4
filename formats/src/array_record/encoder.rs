//! Turns records into an encoded chunk; knows nothing of files.

use crate::array_record::WriteOptions;
use crate::array_record::codec::{Codec, Compressor};
use crate::array_record::layout::{ChunkHeader, ChunkType, hash, hash_two, put_varint, take_varint};
use crate::array_record::transpose::TransposeEncoder;

/// The records of one chunk, joined.
#[derive(Debug, Clone, Copy)]
pub(super) struct Records<'a> {
    pub(super) num_records: u64,
    /// The size of each, a varint.
    pub(super) sizes: &'a [u8],
    /// Their bytes.
    pub(super) values: &'a [u8],
}

impl<'a> Records<'a> {
    /// One record; `size` is where its size goes.
    pub(super) fn one(record: &'a [u8], size: &'a mut Vec<u8>) -> Self {
        size.clear();
        put_varint(size, record.len() as u64);
        Self {
            num_records: 1,
            sizes: size,
            values: record,
        }
    }

    /// The records one by one. Stops early where `sizes` do not fit `values`, which the writer never makes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (mut sizes, mut values) = (self.sizes, self.values);
        std::iter::from_fn(move || {
            let size = usize::try_from(take_varint(&mut sizes)?).ok()?;
            let (record, rest) = values.split_at_checked(size)?;
            values = rest;
            Some(record)
        })
    }
}

/// Encodes chunks, one after the other; kept for its codec's context and buffers. Each thread of a writer has one.
///
/// A simple chunk:
///
/// ```text
/// compression (1) | bytes of the compressed sizes (varint) | sizes, a varint each | records
/// ```
///
/// Sizes and records are compressed apart; each of the two then begins with its size before compression. Transposed chunks are
/// [`TransposeEncoder`]'s.
///
/// Source: `SimpleEncoder` in `riegeli/chunk_encoding/simple_encoder.cc`.
#[derive(Debug)]
pub(super) struct ChunkEncoder {
    compressor: Compressor,
    transposer: Option<TransposeEncoder>,
    packed_sizes: Vec<u8>,
    /// Makes encoding panic or fail for records that say so.
    #[cfg(test)]
    pub(super) faults: bool,
}

impl ChunkEncoder {
    /// Sets up an encoder for these options; the reason if their codec refuses them.
    pub(super) fn new(options: &WriteOptions) -> Result<Self, String> {
        let compressor = Compressor::new(options.compression(), options.window_log())?;
        let transposer = options
            .transpose()
            .then(|| TransposeEncoder::new(options.transpose_bucket_size()));
        Ok(Self {
            compressor,
            transposer,
            packed_sizes: Vec::new(),
            #[cfg(test)]
            faults: false,
        })
    }

    /// Whether the records themselves are the end of a chunk's data: [`encode`](Self::encode) then leaves them out, and they are
    /// written from where they are.
    pub(super) fn values_follow(&self) -> bool {
        self.compressor.codec() == Codec::Uncompressed && self.transposer.is_none()
    }

    /// Encodes simple chunks from now on, as the footer is one always.
    pub(super) fn stop_transposing(&mut self) {
        self.transposer = None;
    }

    /// Encodes `records` as one chunk, and appends its data to `data`: all of them, or what comes before the records. The bytes depend
    /// on the options and the records only, not on what was encoded before.
    pub(super) fn encode(&mut self, records: Records<'_>, data: &mut Vec<u8>) -> Result<ChunkHeader, String> {
        #[cfg(test)]
        if self.faults {
            match records.values {
                b"panic" => panic!("a test asked for it"),
                b"fail" => return Err("a test asked for it".into()),
                _ => {}
            }
        }
        let start = data.len();
        if let Some(transposer) = &mut self.transposer {
            transposer.encode(records.iter(), &mut self.compressor, data)?;
            return Ok(ChunkHeader {
                data_size: (data.len() - start) as u64,
                data_hash: hash(&data[start..]),
                chunk_type: ChunkType::Transposed,
                num_records: records.num_records,
                decoded_data_size: records.values.len() as u64,
            });
        }
        if self.values_follow() {
            return Ok(self.encode_before(records, data, |before| hash_two(before, records.values)));
        }
        data.push(self.compressor.codec().to_byte());
        let packed_sizes = &mut self.packed_sizes;
        packed_sizes.clear();
        put_varint(packed_sizes, records.sizes.len() as u64);
        self.compressor.compress(records.sizes, packed_sizes)?;
        put_varint(data, packed_sizes.len() as u64);
        data.extend_from_slice(packed_sizes);
        put_varint(data, records.values.len() as u64);
        self.compressor.compress(records.values, data)?;
        Ok(ChunkHeader {
            data_size: (data.len() - start) as u64,
            data_hash: hash(&data[start..]),
            chunk_type: ChunkType::Simple,
            num_records: records.num_records,
            decoded_data_size: records.values.len() as u64,
        })
    }

    /// [`encode`](Self::encode) where records [follow](Self::values_follow): appends what comes before them. `hash` is given that, and gives the
    /// hash of it and the records.
    pub(super) fn encode_before(
        &self,
        records: Records<'_>,
        data: &mut Vec<u8>,
        hash: impl FnOnce(&[u8]) -> u64,
    ) -> ChunkHeader {
        let start = data.len();
        data.push(self.compressor.codec().to_byte());
        put_varint(data, records.sizes.len() as u64);
        data.extend_from_slice(records.sizes);
        ChunkHeader {
            data_size: (data.len() - start + records.values.len()) as u64,
            data_hash: hash(&data[start..]),
            chunk_type: ChunkType::Simple,
            num_records: records.num_records,
            decoded_data_size: records.values.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_apart_as_they_were_joined() {
        let records = [&b"one"[..], b"", &[7; 300], b"x"];
        let (mut sizes, mut values) = (Vec::new(), Vec::new());
        for record in records {
            put_varint(&mut sizes, record.len() as u64);
            values.extend_from_slice(record);
        }
        let joined = Records {
            num_records: 4,
            sizes: &sizes,
            values: &values,
        };
        assert_eq!(joined.iter().collect::<Vec<_>>(), records);
        // Sizes that claim too much end it.
        let cut = Records {
            values: &values[..100],
            ..joined
        };
        assert_eq!(cut.iter().count(), 2);
    }

    #[test]
    fn a_chunk_depends_on_its_records_only() {
        for text in ["uncompressed", "zstd:3", "zstd:-5,group_size:2"] {
            let options = WriteOptions::parse(text).unwrap();
            let mut kept = ChunkEncoder::new(&options).unwrap();
            let mut data = Vec::new();
            for length in [100_000, 0, 3, 5000, 1] {
                let values: Vec<u8> = (0..length).map(|i: u32| (i % 7) as u8).collect();
                let mut sizes = Vec::new();
                put_varint(&mut sizes, u64::from(length));
                let records = Records {
                    num_records: 1,
                    sizes: &sizes,
                    values: &values,
                };
                let start = data.len();
                let header = kept.encode(records, &mut data).unwrap();
                let mut fresh = Vec::new();
                let mut encoder = ChunkEncoder::new(&options).unwrap();
                assert_eq!(encoder.encode(records, &mut fresh).unwrap(), header);
                assert_eq!(fresh, &data[start..]);
                let follow = if kept.values_follow() { values.len() } else { 0 };
                assert_eq!(header.data_size, (fresh.len() + follow) as u64);
            }
        }
    }
}
