//! Streams records out of a TFRecord file, plain or compressed.

use std::fmt;
use std::io::{self, BufReader, Chain, Cursor, Read};

use crate::tfrecord::frame::{
    HEADER, TRAILER, check_payload, cut_error, detect, length_error, length_of, payload_error,
};
use crate::tfrecord::{Compression, CrcPolicy};
use crate::{Error, Position, Result};

/// Bytes asked of the source at once. Between 256 KiB and 1 MiB the speed is the same.
const BUFFER_BYTES: usize = 512 << 10;

/// How a TFRecord file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReadOptions {
    compression: Option<Compression>,
    crc: CrcPolicy,
}

impl ReadOptions {
    /// Insists on a compression; by default it is told by the first bytes.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// What is done about payload checksums; by default they are checked.
    #[must_use]
    pub fn crc(mut self, policy: CrcPolicy) -> Self {
        self.crc = policy;
        self
    }
}

/// Reads TFRecord files, one framed record at a time.
///
/// Holds a buffer of 512 KiB, or as large as the largest record that was really there: a length is a claim, and memory follows the
/// bytes that arrive. A short read is not the end of the file.
pub struct Reader<R: Read> {
    name: String,
    input: Input<R>,
    options: ReadOptions,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Of the frame at `start`, in the uncompressed file.
    position: u64,
    record: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The source has no more bytes.
    SourceEnded,
    /// Nothing more comes: the end, or an error that loses the rest.
    Done,
}

type Source<R> = Chain<Cursor<Vec<u8>>, R>;

enum Input<R: Read> {
    Plain(Source<R>),
    Gzip(Box<flate2::bufread::MultiGzDecoder<BufReader<Source<R>>>>),
    Zlib(Box<flate2::bufread::ZlibDecoder<BufReader<Source<R>>>>),
}

impl<R: Read> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("name", &self.name)
            .field("options", &self.options)
            .field("record", &self.record)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl<R: Read> Reader<R> {
    /// Starts to read; `name` is for messages. The source needs no buffer of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the source; [`Error::Damaged`] where the options insist on a compression, and the file begins as another kind.
    pub fn new(mut source: R, name: impl Into<String>, options: ReadOptions) -> Result<Self> {
        let name = name.into();
        let mut head = vec![0; HEADER];
        let mut filled = 0;
        while filled < HEADER {
            match source.read(&mut head[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(&name, "read")(error)),
            }
        }
        head.truncate(filled);
        let found = detect(&head);
        let compression = options.compression.or(found).unwrap_or(Compression::Plain);
        if let Some(found) = found
            && found != compression
        {
            return Err(Error::Damaged {
                at: Position {
                    path: name,
                    record: None,
                    offset: Some(0),
                },
                reason: format!(
                    "{} was expected, but it begins as {}; leave the compression to be detected",
                    compression.name(),
                    found.name()
                ),
            });
        }
        let source = Cursor::new(head).chain(source);
        let buffered = |source| BufReader::with_capacity(256 << 10, source);
        let input = match compression {
            Compression::Plain => Input::Plain(source),
            Compression::Gzip => {
                Input::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(buffered(source))))
            }
            Compression::Zlib => Input::Zlib(Box::new(flate2::bufread::ZlibDecoder::new(buffered(source)))),
        };
        Ok(Self {
            name,
            // A file of zero bytes has no records; an empty gzip file is not one.
            state: if filled == 0 && compression == Compression::Plain {
                State::SourceEnded
            } else {
                State::Reading
            },
            input,
            options,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            position: 0,
            record: 0,
        })
    }

    /// How the file is compressed, as told by its first bytes or by the options.
    pub fn compression(&self) -> Compression {
        match self.input {
            Input::Plain(_) => Compression::Plain,
            Input::Gzip(_) => Compression::Gzip,
            Input::Zlib(_) => Compression::Zlib,
        }
    }

    /// Index of the record that the next call reads.
    pub fn record_index(&self) -> u64 {
        self.record
    }

    /// Where the record begins that the next call reads, in the uncompressed file.
    pub fn offset(&self) -> u64 {
        self.position
    }

    /// Whether there is anything left to ask for. After an error, true says that only that record was lost: its length is right, its payload
    /// is not, and the next call goes on behind it.
    pub fn can_continue(&self) -> bool {
        self.state != State::Done
    }

    /// The next record, `None` at the end. The slice is good until the next call.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] naming record and offset: a wrong checksum, a file cut inside a record, a broken compressed stream. [`Error::Io`] of
    /// the source. Ask [`can_continue`](Self::can_continue) whether records follow; if not, further calls give `None`.
    #[expect(
        clippy::should_implement_trait,
        reason = "it lends its buffer, which an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.state == State::Done {
            return Ok(None);
        }
        let result = self.frame();
        if !matches!(result, Ok(Some(_))) {
            self.state = State::Done;
        }
        let Some(length) = result? else {
            return Ok(None);
        };
        let (record, offset) = (self.record, self.position);
        let payload = self.start + HEADER..self.start + HEADER + length;
        let mut trailer = [0; TRAILER];
        trailer.copy_from_slice(&self.buffer[payload.end..payload.end + TRAILER]);
        let frame = HEADER + length + TRAILER;
        self.start += frame;
        self.position += frame as u64;
        self.record += 1;
        let payload = &self.buffer[payload];
        if self.options.crc == CrcPolicy::Check {
            check_payload(payload, trailer).map_err(|crc| {
                let path = self.name.clone();
                payload_error(
                    Position {
                        path,
                        record: Some(record),
                        offset: Some(offset),
                    },
                    crc,
                )
            })?;
        }
        Ok(Some(payload))
    }

    /// Brings a whole frame into the buffer; its payload's length.
    fn frame(&mut self) -> Result<Option<usize>> {
        if !self.fill(HEADER)? {
            return match self.end - self.start {
                0 => Ok(None),
                found => Err(cut_error(self.place(), found, "length")),
            };
        }
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.buffer[self.start..self.start + HEADER]);
        let length = length_of(&header).map_err(|crc| length_error(self.place(), crc))?;
        let length = usize::try_from(length).ok();
        let frame = length.and_then(|length| length.checked_add(HEADER + TRAILER));
        let (Some(length), Some(frame)) = (length, frame) else {
            return Err(Error::Damaged {
                at: self.place(),
                reason: format!(
                    "a payload of {} bytes is claimed, more than there can be",
                    u64::from_le_bytes(header.first_chunk().copied().unwrap_or_default(),)
                ),
            });
        };
        if !self.fill(frame)? {
            let found = self.end - self.start;
            let part = if found < HEADER + length {
                "payload"
            } else {
                "payload checksum"
            };
            return Err(cut_error(self.place(), found, part));
        }
        Ok(Some(length))
    }

    fn place(&self) -> Position {
        Position {
            path: self.name.clone(),
            record: Some(self.record),
            offset: Some(self.position),
        }
    }

    /// Makes at least `wanted` bytes available from `start` on; false where the file ends before.
    fn fill(&mut self, wanted: usize) -> Result<bool> {
        while self.end - self.start < wanted {
            if self.state != State::Reading {
                return Ok(false);
            }
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            if self.end == self.buffer.len() {
                // All bytes claimed so far have arrived: at most double.
                let size = (self.buffer.len() * 2).clamp(BUFFER_BYTES, BUFFER_BYTES.max(wanted));
                let more = size - self.buffer.len();
                self.buffer.try_reserve_exact(more).map_err(|error| {
                    Error::io(&self.name, "hold a record of")(io::Error::new(
                        io::ErrorKind::OutOfMemory,
                        error,
                    ))
                })?;
                self.buffer.resize(size, 0);
            }
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.state = State::SourceEnded;
                    self.check_end()?;
                }
                Ok(n) => self.end += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.read_error(error)),
            }
        }
        Ok(true)
    }

    /// After a zlib stream nothing may follow; gzip's decoder sees to that itself.
    fn check_end(&mut self) -> Result<()> {
        if let Input::Zlib(decoder) = &mut self.input {
            let mut byte = [0];
            let more = loop {
                match decoder.get_mut().read(&mut byte) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            if more.map_err(Error::io(&self.name, "read"))? > 0 {
                return Err(Error::Damaged {
                    at: self.place(),
                    reason: "bytes follow the end of the zlib stream".into(),
                });
            }
        }
        Ok(())
    }

    /// An error of the compressed stream is damage, one of the system is not.
    fn read_error(&self, error: io::Error) -> Error {
        let of_stream = matches!(
            error.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        );
        if matches!(self.input, Input::Plain(_)) || !of_stream || error.raw_os_error().is_some() {
            return Error::io(&self.name, "read")(error);
        }
        let what = match error.kind() {
            io::ErrorKind::UnexpectedEof => "is cut short, or something follows it".to_string(),
            _ => format!("is damaged, or something follows it: {error}"),
        };
        Error::Damaged {
            at: self.place(),
            reason: format!("the compressed stream {what}"),
        }
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(source) => source.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zlib(decoder) => decoder.read(buffer),
        }
    }
}
