//! Writes a file of chunks that are encoded already.

use std::io::{self, Write};

use crate::array_record::codec::Compressor;
use crate::array_record::encoder::{ChunkEncoder, EncodedChunk};
use crate::array_record::footer::{Entry, Metadata, POSTSCRIPT_COPIES, postscript_to_bytes};
use crate::array_record::layout::{
    BLOCK, BLOCK_HEADER, BlockHeader, CHUNK_HEADER, ChunkHeader, ChunkType, hash, put_varint,
    remaining_in_block,
};
use crate::array_record::salvage::walk::empty_hash;
use crate::array_record::{Compression, WriteOptions};
use crate::{Error, Result};

/// Places chunks as they are, and adds signature, footer and postscript. Holds the footer's entries: 10 to 14 bytes a chunk.
#[derive(Debug)]
pub(super) struct Output<W> {
    sink: W,
    position: u64,
    pub(super) num_chunks: u64,
    pub(super) num_records: u64,
    entries: Vec<u8>,
    entry_sizes: Vec<u8>,
}

impl<W: Write> Output<W> {
    /// Starts a file. The sink should be buffered.
    pub(super) fn new(sink: W) -> Result<Self> {
        let mut output = Self {
            sink,
            position: 0,
            num_chunks: 0,
            num_records: 0,
            entries: Vec::new(),
            entry_sizes: Vec::new(),
        };
        let signature = ChunkHeader {
            data_size: 0,
            data_hash: empty_hash(),
            chunk_type: ChunkType::Signature,
            num_records: 0,
            decoded_data_size: 0,
        };
        output.put_chunk(&signature, &[], &[])?;
        Ok(output)
    }

    /// Appends a chunk of records.
    pub(super) fn records(&mut self, header: &ChunkHeader, data: &[u8], pad: bool) -> Result<()> {
        let entry = Entry {
            chunk_offset: self.position,
            decoded_data_size: header.decoded_data_size,
            num_records: header.num_records,
        };
        self.put_chunk(header, data, &[])?;
        let before = self.entries.len();
        entry.put(&mut self.entries);
        put_varint(&mut self.entry_sizes, (self.entries.len() - before) as u64);
        self.num_chunks += 1;
        self.num_records += header.num_records;
        if pad {
            self.pad_to_block_boundary()?;
        }
        Ok(())
    }

    /// Appends a chunk without records: the file's metadata.
    pub(super) fn other(&mut self, header: &ChunkHeader, data: &[u8]) -> Result<()> {
        self.put_chunk(header, data, &[])
    }

    /// Writes footer and postscript; `writer_options` is what the footer records.
    pub(super) fn finish(mut self, writer_options: String) -> Result<W> {
        let footer_offset = self.position;
        let metadata = Metadata {
            num_chunks: self.num_chunks,
            num_records: self.num_records,
            writer_options,
        };
        // As the writer of the file would compress it.
        let options = WriteOptions::parse(&metadata.writer_options).ok();
        let compressor = options
            .and_then(|options| Compressor::new(options.compression(), options.window_log()).ok())
            .map_or_else(uncompressed, Ok)?;
        let mut encoder = ChunkEncoder::new(compressor);
        encoder.add(&metadata.to_bytes());
        encoder.add_joined(self.num_chunks, &self.entry_sizes, &self.entries);
        self.put_encoded(&mut encoder)?;
        self.pad_to_block_boundary()?;
        let mut encoder = ChunkEncoder::new(uncompressed()?);
        for _ in 0..POSTSCRIPT_COPIES {
            encoder.add(&postscript_to_bytes(footer_offset));
        }
        self.put_encoded(&mut encoder)?;
        self.pad_to_block_boundary()?;
        self.sink.flush().map_err(sink_error)?;
        Ok(self.sink)
    }

    fn put_encoded(&mut self, encoder: &mut ChunkEncoder) -> Result<()> {
        let mut chunk = EncodedChunk::default();
        let header = encoder.encode(&mut chunk).map_err(Error::Invalid)?;
        self.put_chunk(&header, &chunk.prefix, &chunk.values)
    }

    fn put_chunk(&mut self, header: &ChunkHeader, prefix: &[u8], values: &[u8]) -> Result<()> {
        let begin = self.position;
        let end = header
            .end(begin)
            .ok_or_else(|| Error::Invalid("the file would be larger than 2^64 bytes".into()))?;
        for bytes in [&header.to_bytes()[..], prefix, values] {
            self.put(begin, end, bytes)?;
        }
        // Chunks of many tiny records are longer than their data.
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.position < end {
            let header = if self.position.is_multiple_of(BLOCK) {
                BLOCK_HEADER
            } else {
                0
            };
            let room = (end - self.position).min(BLOCK - self.position % BLOCK);
            let zeros = room.saturating_sub(header).min(ZEROS.len() as u64);
            self.put(begin, end, &ZEROS[..zeros as usize])?;
        }
        Ok(())
    }

    /// Writes bytes of the chunk that reaches from `begin` to `end`, interrupted by block headers.
    fn put(&mut self, begin: u64, end: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.position.is_multiple_of(BLOCK) {
                let header = BlockHeader {
                    previous_chunk: self.position - begin,
                    next_chunk: end - self.position,
                };
                self.sink.write_all(&header.to_bytes()).map_err(sink_error)?;
                self.position += BLOCK_HEADER;
            }
            let room = (BLOCK - self.position % BLOCK) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.sink.write_all(now).map_err(sink_error)?;
            self.position += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Source: `PadToBlockBoundary` in `riegeli/records/chunk_writer.cc`.
    fn pad_to_block_boundary(&mut self) -> Result<()> {
        let mut length = remaining_in_block(self.position);
        if length == 0 {
            return Ok(());
        }
        if length < CHUNK_HEADER {
            length += BLOCK - BLOCK_HEADER;
        }
        let zeros = vec![0; (length - CHUNK_HEADER) as usize];
        let header = ChunkHeader {
            data_size: zeros.len() as u64,
            data_hash: hash(&zeros),
            chunk_type: ChunkType::Padding,
            num_records: 0,
            decoded_data_size: 0,
        };
        self.put_chunk(&header, &zeros, &[])
    }
}

fn uncompressed() -> Result<Compressor> {
    Compressor::new(Compression::Uncompressed, None).map_err(Error::Invalid)
}

fn sink_error(source: io::Error) -> Error {
    Error::Io {
        path: "ArrayRecord file".to_string(),
        action: "write",
        source,
    }
}
