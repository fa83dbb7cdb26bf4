//! Bytes of a TFRecord file as a stream, decompressed where they are compressed.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use crate::tfrecord::Compression;
use crate::tfrecord::frame::{HEADER, detect};
use crate::tfrecord::inflate::{Inflater, Wrapper};
use crate::{Error, Position, Result};

/// Compressed bytes asked of the source at once.
const COMPRESSED_BYTES: usize = 256 << 10;
/// Largest window of a zstd frame, 128 MiB: what zstd's own decoder takes unasked. Source: `ZSTD_WINDOWLOG_LIMIT_DEFAULT` in zstd, `lib/zstd.h`.
const MAX_WINDOW_LOG: u32 = 27;

/// The uncompressed bytes of a file.
pub(super) struct Stream<R: Read> {
    input: Input<R>,
}

type Source<R> = Chain<Cursor<Vec<u8>>, R>;

enum Input<R: Read> {
    Plain(Source<R>),
    Gzip(Box<Inflater<BufReader<Source<R>>>>),
    Zlib(Box<Inflater<BufReader<Source<R>>>>),
    Zstd(Box<ZstdReader<BufReader<Source<R>>>>),
}

impl<R: Read> Stream<R> {
    /// Reads the first bytes and decides by them, or checks that they are not of another kind than the caller wants.
    pub(super) fn new(mut source: R, name: &str, wanted: Option<Compression>) -> Result<Self> {
        let mut head = vec![0; HEADER];
        let filled = read_fully(&mut source, &mut head).map_err(Error::io(name, "read"))?;
        head.truncate(filled);
        let found = detect(&head);
        let compression = wanted.or(found).unwrap_or(Compression::Plain);
        // A plain file that begins as nothing known has a damaged first record, which is for the reader to say.
        if found != Some(compression)
            && (found.is_some() || (compression != Compression::Plain && filled > 0))
        {
            let seen = match found {
                Some(found) => format!("as {}; leave the compression to be detected", found.name()),
                None => {
                    let bytes: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("with the bytes {bytes}")
                }
            };
            return Err(Error::Damaged {
                at: Position {
                    path: name.to_string(),
                    record: None,
                    offset: Some(0),
                },
                reason: format!("{} was expected, but it begins {seen}", compression.name()),
            });
        }
        let source = Cursor::new(head).chain(source);
        let buffered = |source| BufReader::with_capacity(COMPRESSED_BYTES, source);
        let input = match compression {
            Compression::Plain => Input::Plain(source),
            Compression::Gzip => Input::Gzip(Box::new(Inflater::new(buffered(source), Wrapper::Gzip))),
            Compression::Zlib => Input::Zlib(Box::new(Inflater::new(buffered(source), Wrapper::Zlib))),
            Compression::Zstd => {
                let decoder = ZstdReader::new(buffered(source)).map_err(Error::io(name, "decompress"))?;
                Input::Zstd(Box::new(decoder))
            }
        };
        Ok(Self { input })
    }

    pub(super) fn compression(&self) -> Compression {
        match self.input {
            Input::Plain(_) => Compression::Plain,
            Input::Gzip(_) => Compression::Gzip,
            Input::Zlib(_) => Compression::Zlib,
            Input::Zstd(_) => Compression::Zstd,
        }
    }

    /// Reads more bytes, `Ok(0)` at the end, where the compressed stream is known to be whole and nothing to follow it. Goes on after
    /// interruptions.
    ///
    /// An error of the compressed stream is damage at the place that `place` gives, one of the system is not.
    pub(super) fn read(&mut self, buffer: &mut [u8], place: impl FnOnce() -> Position) -> Result<usize> {
        let result = loop {
            let result = match &mut self.input {
                Input::Plain(source) => source.read(buffer),
                Input::Gzip(decoder) | Input::Zlib(decoder) => decoder.read(buffer),
                Input::Zstd(decoder) => decoder.read(buffer),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        result.map_err(|error| self.error(error, place()))
    }

    fn error(&self, error: io::Error, at: Position) -> Error {
        let of_stream = matches!(
            error.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        );
        if matches!(self.input, Input::Plain(_)) || !of_stream || error.raw_os_error().is_some() {
            return Error::io(&at.path, "read")(error);
        }
        let what = match error.kind() {
            io::ErrorKind::UnexpectedEof => "is cut short, or something follows it".to_string(),
            _ => format!("is damaged, or something follows it: {error}"),
        };
        Error::Damaged {
            reason: format!("the {} stream {what}", self.compression().word()),
            at,
        }
    }
}

/// Fills `buffer` as far as the source goes; interruptions and short reads are not its end.
fn read_fully(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Decompresses zstd frames, one after the other, to the end of the source.
struct ZstdReader<R> {
    source: R,
    context: DCtx<'static>,
    /// Inside a frame: the source may not end here.
    inside: bool,
    begun: bool,
}

impl<R: BufRead> ZstdReader<R> {
    fn new(source: R) -> io::Result<Self> {
        let mut context = DCtx::try_create()
            .ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, "no memory for zstd"))?;
        context
            .set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))
            .map_err(|code| io::Error::other(zstd_safe::get_error_name(code)))?;
        Ok(Self {
            source,
            context,
            inside: false,
            begun: false,
        })
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let input = self.source.fill_buf()?;
            let at_end = input.is_empty();
            if at_end && !self.inside && self.begun {
                return Ok(0);
            }
            let mut input = InBuffer::around(input);
            let mut output = OutBuffer::around(&mut *buffer);
            // At the end of the source as well: the decoder may still hold output.
            let result = self.context.decompress_stream(&mut output, &mut input);
            let (taken, given) = (input.pos(), output.pos());
            self.source.consume(taken);
            let hint = result.map_err(|code| {
                io::Error::new(io::ErrorKind::InvalidData, zstd_safe::get_error_name(code))
            })?;
            self.begun |= taken > 0;
            self.inside = hint != 0;
            if given > 0 {
                return Ok(given);
            }
            if at_end && self.inside {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compressed(bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![0; zstd_safe::compress_bound(bytes.len())];
        let length = zstd_safe::compress(&mut out[..], bytes, 3).unwrap();
        out.truncate(length);
        out
    }

    fn decompressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        ZstdReader::new(BufReader::with_capacity(5, bytes))?
            .read_to_end(&mut out)
            .map(|_| out)
    }

    #[test]
    fn zstd_frames_follow_each_other_and_end_whole() {
        let (one, two) = (b"one ".repeat(1000), b"two ".repeat(3000));
        let mut file = compressed(&one);
        let first = file.len();
        // A frame to be skipped, an empty frame, and another. Source: RFC 8878, section 3.1.2.
        file.extend(0x184d_2a53_u32.to_le_bytes());
        file.extend([3, 0, 0, 0, 9, 9, 9]);
        let skipped = file.len();
        file.extend(compressed(b""));
        let empty = file.len();
        file.extend(compressed(&two));
        assert_eq!(decompressed(&file).unwrap(), [&one[..], &two].concat());
        for cut in 0..file.len() {
            let whole = [first, skipped, empty].contains(&cut);
            assert_eq!(decompressed(&file[..cut]).is_ok(), whole, "cut at {cut}");
        }
        file.extend(b"more");
        assert!(decompressed(&file).is_err());
    }

    #[test]
    fn a_huge_window_is_refused() {
        // A frame header that asks for a window of 2^31 bytes. Source: RFC 8878, section 3.1.1.1.2.
        let error = decompressed(b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
