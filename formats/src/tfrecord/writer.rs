//! Writes TFRecord files, plain and gzip.

use std::fmt;
use std::io::{self, BufWriter, Write};

use flate2::write::GzEncoder;

use crate::tfrecord::Compression;
use crate::tfrecord::frame::{header_of, masked_crc};
use crate::{Error, Position, Result};

/// Writes TFRecord files, one framed record at a time. Holds a buffer of 256 KiB.
///
/// The bytes depend on the records only: a gzip header carries no time and no name.
pub struct Writer<W: Write> {
    output: Output<W>,
    num_records: u64,
    failed: bool,
}

enum Output<W: Write> {
    Plain(BufWriter<W>),
    Gzip(Box<GzEncoder<BufWriter<W>>>),
}

impl<W: Write> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("num_records", &self.num_records)
            .finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Starts a file. gzip is at level 6, TensorFlow's default.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for zlib, which is only read.
    pub fn new(sink: W, compression: Compression) -> Result<Self> {
        let sink = BufWriter::with_capacity(256 << 10, sink);
        let output = match compression {
            Compression::Plain => Output::Plain(sink),
            Compression::Gzip => Output::Gzip(Box::new(GzEncoder::new(sink, flate2::Compression::new(6)))),
            Compression::Zlib => {
                return Err(Error::Unsupported {
                    at: Position::default(),
                    reason: "TFRecord files are written plain or with gzip, not with zlib".into(),
                });
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
        let result = if self.failed {
            Err(io::Error::other(
                "an earlier write failed, the file is incomplete",
            ))
        } else {
            match &mut self.output {
                Output::Plain(sink) => put(sink, &[&header, record, &trailer]),
                Output::Gzip(sink) => put(sink, &[&header, record, &trailer]),
            }
        };
        self.failed |= result.is_err();
        self.num_records += 1;
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
            return Err(sink_error(io::Error::other(
                "an earlier write failed, the file is incomplete",
            )));
        }
        let buffered = match self.output {
            Output::Plain(sink) => sink,
            Output::Gzip(encoder) => encoder.finish().map_err(sink_error)?,
        };
        let mut sink = buffered
            .into_inner()
            .map_err(|error| sink_error(error.into_error()))?;
        sink.flush().map_err(sink_error)?;
        Ok(sink)
    }
}

fn put(sink: &mut impl Write, pieces: &[&[u8]]) -> io::Result<()> {
    pieces.iter().try_for_each(|piece| sink.write_all(piece))
}

fn sink_error(source: io::Error) -> Error {
    Error::Io {
        path: "TFRecord file".into(),
        action: "write",
        source,
    }
}
