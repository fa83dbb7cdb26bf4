//! Writes TFRecord files: plain, gzip, zlib and zstd.

use std::fmt;
use std::io::{self, BufWriter, Write};

use flate2::write::{GzEncoder, ZlibEncoder};
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, zstd_sys::ZSTD_EndDirective};

use crate::tfrecord::Compression;
use crate::tfrecord::frame::{header_of, masked_crc};
use crate::{Error, Result};

/// Bytes gathered before they go to the sink.
const BUFFER_BYTES: usize = 256 << 10;

/// How a TFRecord file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    compression: Compression,
    level: Option<i32>,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            compression: Compression::Plain,
            level: None,
        }
    }
}

impl WriteOptions {
    /// How the file is compressed; by default not at all.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// How hard: 0 to 9 for gzip and zlib, by default 6 as TensorFlow does; for zstd the levels of its library, by default 3.
    #[must_use]
    pub fn level(mut self, level: i32) -> Self {
        self.level = Some(level);
        self
    }
}

/// Writes TFRecord files, one framed record at a time. Holds a buffer of 256 KiB, and what the compression needs.
///
/// The bytes depend on the records and options only: a gzip header carries no time and no name.
pub struct Writer<W: Write> {
    output: Output<W>,
    num_records: u64,
    failed: bool,
}

enum Output<W: Write> {
    Plain(BufWriter<W>),
    Gzip(Box<GzEncoder<BufWriter<W>>>),
    Zlib(Box<ZlibEncoder<BufWriter<W>>>),
    Zstd(Box<ZstdWriter<W>>),
}

impl<W: Write> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("num_records", &self.num_records)
            .finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Starts a file with the usual level of that compression.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where there is no memory for the compressor.
    pub fn new(sink: W, compression: Compression) -> Result<Self> {
        Self::with_options(sink, WriteOptions::default().compression(compression))
    }

    /// Starts a file.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a level that the compression does not have; [`Error::Io`] where there is no memory for the compressor.
    pub fn with_options(sink: W, options: WriteOptions) -> Result<Self> {
        let levels = match options.compression {
            Compression::Plain => 0..=0,
            Compression::Gzip | Compression::Zlib => 0..=9,
            Compression::Zstd => zstd_safe::min_c_level()..=zstd_safe::max_c_level(),
        };
        if let Some(level) = options.level
            && !levels.contains(&level)
        {
            return Err(Error::Invalid(format!(
                "level {level} is out of range: {} files have levels {} to {}",
                options.compression.word(),
                levels.start(),
                levels.end()
            )));
        }
        let deflate = flate2::Compression::new(options.level.unwrap_or(6).unsigned_abs());
        let buffered = |sink| BufWriter::with_capacity(BUFFER_BYTES, sink);
        let output = match options.compression {
            Compression::Plain => Output::Plain(buffered(sink)),
            Compression::Gzip => Output::Gzip(Box::new(GzEncoder::new(buffered(sink), deflate))),
            Compression::Zlib => Output::Zlib(Box::new(ZlibEncoder::new(buffered(sink), deflate))),
            Compression::Zstd => {
                let level = options.level.unwrap_or(3);
                let writer = ZstdWriter::new(sink, level).map_err(Error::io("TFRecord file", "compress"))?;
                Output::Zstd(Box::new(writer))
            }
        };
        Ok(Self {
            output,
            num_records: 0,
            failed: false,
        })
    }

    /// Appends a record.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the sink; every later call fails then.
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        let header = header_of(record.len() as u64);
        let trailer = masked_crc(record).to_le_bytes();
        let pieces = [&header[..], record, &trailer];
        let result = if self.failed {
            Err(earlier())
        } else {
            match &mut self.output {
                Output::Plain(sink) => put(sink, pieces),
                Output::Gzip(sink) => put(sink, pieces),
                Output::Zlib(sink) => put(sink, pieces),
                Output::Zstd(sink) => pieces
                    .iter()
                    .try_for_each(|piece| sink.put(piece, ZSTD_EndDirective::ZSTD_e_continue)),
            }
        };
        self.failed |= result.is_err();
        self.num_records += u64::from(result.is_ok());
        result.map_err(sink_error)
    }

    /// Records written so far.
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Writes what is buffered and the end of the compressed stream, and gives the sink back.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the sink, of this or an earlier call.
    pub fn finish(self) -> Result<W> {
        if self.failed {
            return Err(sink_error(earlier()));
        }
        let mut sink = match self.output {
            Output::Plain(sink) => unbuffered(sink),
            Output::Gzip(encoder) => encoder.finish().and_then(unbuffered),
            Output::Zlib(encoder) => encoder.finish().and_then(unbuffered),
            Output::Zstd(encoder) => encoder.finish(),
        }
        .map_err(sink_error)?;
        sink.flush().map_err(sink_error)?;
        Ok(sink)
    }
}

fn put(sink: &mut impl Write, pieces: [&[u8]; 3]) -> io::Result<()> {
    pieces.iter().try_for_each(|piece| sink.write_all(piece))
}

fn unbuffered<W: Write>(sink: BufWriter<W>) -> io::Result<W> {
    sink.into_inner().map_err(io::IntoInnerError::into_error)
}

fn earlier() -> io::Error {
    io::Error::other("an earlier write failed, the file is incomplete")
}

fn sink_error(source: io::Error) -> Error {
    Error::Io {
        path: "TFRecord file".into(),
        action: "write",
        source,
    }
}

/// Compresses into one zstd frame with a checksum of its contents.
struct ZstdWriter<W> {
    sink: W,
    context: CCtx<'static>,
    buffer: Vec<u8>,
    filled: usize,
}

impl<W: Write> ZstdWriter<W> {
    fn new(sink: W, level: i32) -> io::Result<Self> {
        let mut context = CCtx::try_create()
            .ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, "no memory for zstd"))?;
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::ChecksumFlag(true),
        ] {
            context.set_parameter(parameter).map_err(zstd_error)?;
        }
        Ok(Self {
            sink,
            context,
            buffer: vec![0; BUFFER_BYTES],
            filled: 0,
        })
    }

    /// Compresses all of `bytes`, and with the directive to end the frame, until it has ended.
    fn put(&mut self, bytes: &[u8], directive: ZSTD_EndDirective) -> io::Result<()> {
        let mut input = InBuffer::around(bytes);
        let to_end = matches!(directive, ZSTD_EndDirective::ZSTD_e_end);
        loop {
            let mut output = OutBuffer::around_pos(&mut self.buffer[..], self.filled);
            let left = self.context.compress_stream2(&mut output, &mut input, directive);
            self.filled = output.pos();
            let left = left.map_err(zstd_error)?;
            if self.filled == self.buffer.len() || (to_end && left == 0) {
                self.sink.write_all(&self.buffer[..self.filled])?;
                self.filled = 0;
            }
            if input.pos() == bytes.len() && (!to_end || left == 0) {
                return Ok(());
            }
        }
    }

    fn finish(mut self) -> io::Result<W> {
        self.put(&[], ZSTD_EndDirective::ZSTD_e_end)?;
        Ok(self.sink)
    }
}

fn zstd_error(code: zstd_safe::ErrorCode) -> io::Error {
    io::Error::other(zstd_safe::get_error_name(code))
}
