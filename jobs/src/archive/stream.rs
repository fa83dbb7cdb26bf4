//! A source file as a stream of bytes, unpacked where it is gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use anyhow::{Context, Result};
use flate2::bufread::MultiGzDecoder;

use crate::error::Cancelled;
use crate::monitor::{Meter, Monitor};

/// Bytes read from a file at a time: beyond 256 KiB unpacking gets no faster.
const BUFFER_BYTES: usize = 512 << 10;

/// A source file as a stream of bytes, unpacked where it is gzip. Errors name the source.
#[derive(Debug)]
pub struct Stream {
    name: String,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Plain(BufReader<Counted>),
    Gzip(Box<MultiGzDecoder<BufReader<Counted>>>),
}

/// A file whose reading counts as progress, and ends when the job is stopped.
#[derive(Debug)]
struct Counted {
    file: File,
    meter: Option<Arc<Meter>>,
    monitor: Arc<Monitor>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.monitor.check().map_err(io::Error::other)?;
        let count = self.file.read(buffer)?;
        if let Some(meter) = &self.meter {
            meter.add(count as u64);
        }
        Ok(count)
    }
}

impl Stream {
    pub(crate) fn new(
        name: &str,
        file: File,
        meter: Option<Arc<Meter>>,
        monitor: Arc<Monitor>,
    ) -> Result<Self> {
        let counted = Counted { file, meter, monitor };
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, counted);
        let start = reader
            .fill_buf()
            .with_context(|| format!("could not read {name}"))?;
        let inner = if start.starts_with(&[0x1f, 0x8b]) {
            Inner::Gzip(Box::new(MultiGzDecoder::new(reader)))
        } else {
            Inner::Plain(reader)
        };
        Ok(Self {
            name: name.to_owned(),
            inner,
        })
    }

    /// The source's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads on to the end, so that the checks of the container (gzip's length and CRC) are made.
    ///
    /// # Errors
    /// The stream is damaged or cut short.
    pub fn drain(&mut self) -> io::Result<u64> {
        io::copy(self, &mut io::sink())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = match &mut self.inner {
            Inner::Plain(reader) => reader.read(buffer),
            Inner::Gzip(reader) => reader.read(buffer),
        };
        result.map_err(|error| {
            if error.get_ref().is_some_and(|inner| inner.is::<Cancelled>()) {
                return error;
            }
            let kind = error.kind();
            let text = match (kind, &self.inner) {
                (io::ErrorKind::UnexpectedEof, Inner::Gzip(_)) => {
                    format!("{}: the gzip data are cut short", self.name)
                }
                (_, Inner::Gzip(_)) => format!("{}: the gzip data are damaged: {error}", self.name),
                (_, Inner::Plain(_)) => format!("{}: could not read: {error}", self.name),
            };
            io::Error::new(kind, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;

    fn open(bytes: &[u8]) -> Result<Stream> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        Stream::new("data.gz", file, None, Monitor::new())
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_members_are_unpacked_one_after_the_other() {
        let both = [gzip(b"one "), gzip(b"two")].concat();
        let mut text = String::new();
        open(&both).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two");
    }

    #[test]
    fn other_bytes_come_as_they_are() {
        for bytes in [&b""[..], b"\x1f", b"plain"] {
            let mut found = Vec::new();
            open(bytes).unwrap().read_to_end(&mut found).unwrap();
            assert_eq!(found, bytes);
        }
    }

    #[test]
    fn a_cut_at_any_byte_is_an_error_that_names_the_file() {
        let whole = gzip(&[7; 1000]);
        for length in 2..whole.len() {
            let error = open(&whole[..length]).unwrap().drain().unwrap_err();
            assert!(
                error.to_string().starts_with("data.gz: the gzip data are"),
                "{length}: {error}"
            );
        }
    }

    #[test]
    fn a_flipped_bit_in_data_or_trailer_is_an_error() {
        let whole = gzip(b"some text, some text");
        for at in 10..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(open(&damaged).unwrap().drain().is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_stopped_job_reads_no_more() {
        let monitor = Monitor::new();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0; 3 * BUFFER_BYTES]).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        let mut stream = Stream::new("data", file, None, Arc::clone(&monitor)).unwrap();
        monitor.cancel();
        let error = stream.drain().unwrap_err();
        assert!(error.get_ref().unwrap().is::<Cancelled>());
    }
}
