//! Writes ArrayRecord files.

use std::fmt;
use std::io::{self, Write};

use crate::array_record::WriteOptions;
use crate::array_record::codec::Compressor;
use crate::array_record::encoder::{ChunkEncoder, EncodedChunk};
use crate::array_record::footer::{Entry, Metadata, POSTSCRIPT_COPIES, postscript_to_bytes};
use crate::array_record::layout::{
    BLOCK, BLOCK_HEADER, BlockHeader, CHUNK_HEADER, ChunkHeader, ChunkType, MAX_CHUNK_RECORDS, hash,
    put_varint, remaining_in_block,
};
use crate::{Error, Position, Result};

/// Bytes gathered before they go to the sink; a larger piece goes there directly.
const BUFFER_BYTES: usize = 256 << 10;

/// Writes records to an ArrayRecord file.
///
/// Uncompressed files are byte for byte those of Google's writer with the same options and records. Holds one group of records, a buffer
/// of 256 KiB, and 10 to 14 bytes per chunk written for the footer. Blocks on the sink; starts no threads.
pub struct Writer<W> {
    file: BlockWriter<W>,
    options: WriteOptions,
    encoder: ChunkEncoder,
    chunk: EncodedChunk,
    num_chunks: u64,
    num_records: u64,
    /// Entries of the footer, joined, and their sizes as varints.
    entries: Vec<u8>,
    entry_sizes: Vec<u8>,
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("options", &self.options)
            .field("num_records", &self.num_records)
            .field("bytes_written", &self.file.position)
            .finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Starts a file: writes the signature block.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for `transpose`, which this version does not write.
    pub fn new(sink: W, options: WriteOptions) -> Result<Self> {
        let unsupported = |reason: String| Error::Unsupported {
            at: Position::default(),
            reason: format!("options `{options}`: {reason}"),
        };
        if options.transpose() {
            return Err(unsupported("this version writes no transposed chunks".into()));
        }
        let compressor = Compressor::new(options.compression(), options.window_log()).map_err(unsupported)?;
        let mut writer = Self {
            file: BlockWriter {
                sink,
                buffer: Vec::with_capacity(BUFFER_BYTES),
                position: 0,
                failed: false,
            },
            encoder: ChunkEncoder::new(compressor),
            chunk: EncodedChunk::default(),
            options,
            num_chunks: 0,
            num_records: 0,
            entries: Vec::new(),
            entry_sizes: Vec::new(),
        };
        let signature = ChunkHeader {
            data_size: 0,
            data_hash: hash(&[]),
            chunk_type: ChunkType::Signature,
            num_records: 0,
            decoded_data_size: 0,
        };
        writer.file.put_chunk(signature, &[], &[])?;
        Ok(writer)
    }

    /// Appends a record.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the sink. Part of a chunk may be written then, so every later call fails.
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        self.file.check()?;
        self.encoder.add(record);
        self.num_records += 1;
        if self.encoder.num_records() == u64::from(self.options.group_size()) {
            self.put_group()?;
        }
        Ok(())
    }

    /// Records written so far.
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Bytes of the file so far, without the group that is still open and without the footer.
    pub fn bytes_written(&self) -> u64 {
        self.file.position
    }

    /// Writes footer and postscript, and gives the sink back. A writer dropped before leaves a file that no reader opens.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the sink, of this or an earlier call.
    pub fn finish(mut self) -> Result<W> {
        self.file.check()?;
        if self.encoder.num_records() > 0 {
            self.put_group()?;
        }
        let metadata = Metadata {
            num_chunks: self.num_chunks,
            num_records: self.num_records,
            writer_options: self.options.to_string(),
        };
        let footer_offset = self.file.position;
        self.encoder.add(&metadata.to_bytes());
        self.encoder
            .add_joined(self.num_chunks, &self.entry_sizes, &self.entries);
        self.put_chunk()?;
        self.file.pad_to_block_boundary()?;

        let uncompressed = Compressor::new(crate::array_record::Compression::Uncompressed, None);
        self.encoder = ChunkEncoder::new(uncompressed.map_err(Error::Invalid)?);
        for _ in 0..POSTSCRIPT_COPIES {
            self.encoder.add(&postscript_to_bytes(footer_offset));
        }
        self.put_chunk()?;
        self.file.pad_to_block_boundary()?;
        self.file.flush_buffer()?;
        self.file.sink.flush().map_err(sink_error)?;
        Ok(self.file.sink)
    }

    /// Writes the open group and notes it for the footer.
    fn put_group(&mut self) -> Result<()> {
        let chunk_offset = self.file.position;
        let header = self.put_chunk()?;
        let entry = Entry {
            chunk_offset,
            decoded_data_size: header.decoded_data_size,
            num_records: header.num_records,
        };
        let before = self.entries.len();
        entry.put(&mut self.entries);
        put_varint(&mut self.entry_sizes, (self.entries.len() - before) as u64);
        self.num_chunks += 1;
        if self.options.pad_to_block_boundary() {
            self.file.pad_to_block_boundary()?;
        }
        Ok(())
    }

    fn put_chunk(&mut self) -> Result<ChunkHeader> {
        debug_assert!(self.encoder.num_records() <= MAX_CHUNK_RECORDS);
        let header = self.encoder.encode(&mut self.chunk).map_err(|reason| {
            self.file.failed = true;
            Error::Invalid(format!("could not compress a chunk: {reason}"))
        })?;
        self.file
            .put_chunk(header, &self.chunk.prefix, &self.chunk.values)?;
        Ok(header)
    }
}

/// Places chunks in a file: block headers and padding.
struct BlockWriter<W> {
    sink: W,
    buffer: Vec<u8>,
    position: u64,
    failed: bool,
}

impl<W: Write> BlockWriter<W> {
    fn check(&self) -> Result<()> {
        if self.failed {
            return Err(sink_error(io::Error::other(
                "an earlier write failed, the file is incomplete",
            )));
        }
        Ok(())
    }

    /// Writes a chunk whose data come in two pieces.
    fn put_chunk(&mut self, header: ChunkHeader, prefix: &[u8], values: &[u8]) -> Result<()> {
        self.check()?;
        let begin = self.position;
        let end = header
            .end(begin)
            .ok_or_else(|| Error::Invalid("the file would be larger than 2^64 bytes".into()))?;
        self.put(begin, end, &header.to_bytes())?;
        self.put(begin, end, prefix)?;
        self.put(begin, end, values)?;
        // Chunks of many tiny records are longer than their data.
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.position < end {
            let step = (end - self.position)
                .min(BLOCK - self.position % BLOCK)
                .min(ZEROS.len() as u64);
            // A block header that the next `put` writes counts as well.
            let header = if self.position.is_multiple_of(BLOCK) {
                BLOCK_HEADER
            } else {
                0
            };
            self.put(begin, end, &ZEROS[..step.saturating_sub(header) as usize])?;
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
                self.emit(&header.to_bytes())?;
            }
            let room = (BLOCK - self.position % BLOCK) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.emit(now)?;
            bytes = later;
        }
        Ok(())
    }

    fn emit(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush_buffer()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            let result = self.sink.write_all(bytes);
            self.failed |= result.is_err();
            result.map_err(sink_error)?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn flush_buffer(&mut self) -> Result<()> {
        let result = self.sink.write_all(&self.buffer);
        self.failed |= result.is_err();
        self.buffer.clear();
        result.map_err(sink_error)
    }

    /// Writes a padding chunk up to the next block boundary; one more block where the rest is too small for a chunk header.
    ///
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
        self.put_chunk(header, &zeros, &[])
    }
}

fn sink_error(source: io::Error) -> Error {
    Error::Io {
        path: "ArrayRecord file".to_string(),
        action: "write",
        source,
    }
}
