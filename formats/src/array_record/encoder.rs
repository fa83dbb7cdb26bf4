//! Turns records into an encoded chunk; knows nothing of files.

use crate::array_record::codec::Compressor;
use crate::array_record::layout::{ChunkHeader, ChunkType, hash_two, put_varint};

/// A chunk ready to be placed: the header, and the data in two pieces, so that large records are not copied once more.
#[derive(Debug, Default)]
pub(super) struct EncodedChunk {
    pub(super) header: Option<ChunkHeader>,
    pub(super) prefix: Vec<u8>,
    pub(super) values: Vec<u8>,
}

/// Collects records and encodes them as one simple chunk.
///
/// ```text
/// compression (1) | bytes of the compressed sizes (varint) | sizes, a varint each | records
/// ```
///
/// Sizes and records are compressed apart; each of the two then begins with its size before compression.
///
/// Source: `SimpleEncoder` in `riegeli/chunk_encoding/simple_encoder.cc`.
#[derive(Debug)]
pub(super) struct ChunkEncoder {
    compressor: Compressor,
    num_records: u64,
    sizes: Vec<u8>,
    values: Vec<u8>,
    packed_sizes: Vec<u8>,
}

impl ChunkEncoder {
    pub(super) fn new(compressor: Compressor) -> Self {
        Self {
            compressor,
            num_records: 0,
            sizes: Vec::new(),
            values: Vec::new(),
            packed_sizes: Vec::new(),
        }
    }

    /// Records collected since the last chunk.
    pub(super) fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Bytes held.
    pub(super) fn add(&mut self, record: &[u8]) {
        put_varint(&mut self.sizes, record.len() as u64);
        self.values.extend_from_slice(record);
        self.num_records += 1;
    }

    /// Adds many records whose varint sizes and bytes are joined already.
    pub(super) fn add_joined(&mut self, num_records: u64, sizes: &[u8], values: &[u8]) {
        self.sizes.extend_from_slice(sizes);
        self.values.extend_from_slice(values);
        self.num_records += num_records;
    }

    /// Encodes what was collected into `chunk`, whose buffers are reused, and starts the next chunk. Gives the decoded size.
    pub(super) fn encode(&mut self, chunk: &mut EncodedChunk) -> Result<ChunkHeader, String> {
        let decoded_data_size = self.values.len() as u64;
        let codec = self.compressor.codec();
        chunk.prefix.clear();
        chunk.prefix.push(codec.to_byte());
        if codec == crate::array_record::codec::Codec::Uncompressed {
            put_varint(&mut chunk.prefix, self.sizes.len() as u64);
            chunk.prefix.extend_from_slice(&self.sizes);
            std::mem::swap(&mut chunk.values, &mut self.values);
        } else {
            self.packed_sizes.clear();
            put_varint(&mut self.packed_sizes, self.sizes.len() as u64);
            self.compressor.compress(&self.sizes, &mut self.packed_sizes)?;
            put_varint(&mut chunk.prefix, self.packed_sizes.len() as u64);
            chunk.prefix.extend_from_slice(&self.packed_sizes);
            put_varint(&mut chunk.prefix, decoded_data_size);
            chunk.values.clear();
            self.compressor.compress(&self.values, &mut chunk.values)?;
        }
        let header = ChunkHeader {
            data_size: (chunk.prefix.len() + chunk.values.len()) as u64,
            data_hash: hash_two(&chunk.prefix, &chunk.values),
            chunk_type: ChunkType::Simple,
            num_records: self.num_records,
            decoded_data_size,
        };
        chunk.header = Some(header);
        self.sizes.clear();
        self.values.clear();
        self.num_records = 0;
        Ok(header)
    }
}
