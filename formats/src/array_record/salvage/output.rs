//! Writes a file of chunks that are encoded already.

use std::io::Write;

use crate::array_record::WriteOptions;
use crate::array_record::blocks::BlockWriter;
use crate::array_record::encoder::{ChunkEncoder, Records};
use crate::array_record::footer::{Metadata, POSTSCRIPT_COPIES, postscript_to_bytes};
use crate::array_record::layout::{ChunkHeader, put_varint};
use crate::{Error, Result};

/// Places chunks as they are, and adds signature, footer and postscript. Holds the footer's entries: 10 to 14 bytes a chunk.
pub(super) struct Output<W> {
    file: BlockWriter<W>,
}

impl<W: Write> Output<W> {
    /// Starts a file.
    pub(super) fn new(sink: W) -> Result<Self> {
        Ok(Self {
            file: BlockWriter::new(sink)?,
        })
    }

    pub(super) fn num_chunks(&self) -> u64 {
        self.file.index.num_chunks
    }

    pub(super) fn num_records(&self) -> u64 {
        self.file.index.num_records
    }

    /// Appends a chunk of records.
    pub(super) fn records(&mut self, header: ChunkHeader, data: &[u8], pad: bool) -> Result<()> {
        self.file.put_records(header, data, &[])?;
        if pad {
            self.file.pad_to_block_boundary()?;
        }
        Ok(())
    }

    /// Appends a chunk without records: the file's metadata.
    pub(super) fn other(&mut self, header: ChunkHeader, data: &[u8]) -> Result<()> {
        self.file.put_chunk(header, data, &[])
    }

    /// Writes footer and postscript; `writer_options` is what the footer records.
    pub(super) fn finish(mut self, writer_options: String) -> Result<W> {
        let footer_offset = self.file.position();
        // As the writer of the file compresses its footer, which is never transposed.
        let simple = writer_options.replace("transpose:true", "transpose:false");
        let encoder = WriteOptions::parse(&simple)
            .ok()
            .and_then(|options| ChunkEncoder::new(&options).ok())
            .map_or_else(uncompressed, Ok)?;
        let index = std::mem::take(&mut self.file.index);
        let metadata = Metadata {
            num_chunks: index.num_chunks,
            num_records: index.num_records,
            writer_options,
        }
        .to_bytes();
        let (mut sizes, mut values) = (Vec::new(), metadata);
        put_varint(&mut sizes, values.len() as u64);
        sizes.extend_from_slice(&index.entry_sizes);
        values.extend_from_slice(&index.entries);
        self.put(encoder, index.num_chunks + 1, &sizes, &values)?;
        let postscript = postscript_to_bytes(footer_offset);
        let mut size = Vec::new();
        put_varint(&mut size, postscript.len() as u64);
        let (sizes, values) = (
            size.repeat(POSTSCRIPT_COPIES),
            postscript.repeat(POSTSCRIPT_COPIES),
        );
        self.put(uncompressed()?, POSTSCRIPT_COPIES as u64, &sizes, &values)?;
        self.file.flush()?;
        Ok(self.file.sink)
    }

    /// Appends a chunk that the footer does not list, and padding behind it.
    fn put(
        &mut self,
        mut encoder: ChunkEncoder,
        num_records: u64,
        sizes: &[u8],
        values: &[u8],
    ) -> Result<()> {
        let records = Records {
            num_records,
            sizes,
            values,
        };
        let mut data = Vec::new();
        let header = encoder.encode(records, &mut data).map_err(Error::Invalid)?;
        let rest = if encoder.values_follow() { values } else { &[] };
        self.file.put_chunk(header, &data, rest)?;
        self.file.pad_to_block_boundary()
    }
}

fn uncompressed() -> Result<ChunkEncoder> {
    ChunkEncoder::new(&WriteOptions::uncompressed()).map_err(Error::Invalid)
}
