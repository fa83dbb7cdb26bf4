//! Streams records out of a TFRecord file, plain or compressed.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::tfrecord::frame::{
    HEADER, TRAILER, check_payload, claim_error, cut_error, length_error, length_of, payload_error,
};
use crate::tfrecord::stream::Stream;
use crate::tfrecord::{Compression, CrcPolicy};
use crate::{Error, Position, Result};

/// Bytes asked of the source at once. Between 256 KiB and 1 MiB the speed is the same.
const BUFFER_BYTES: usize = 512 << 10;

/// How a TFRecord file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    compression: Option<Compression>,
    crc: CrcPolicy,
    max_record_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            compression: None,
            crc: CrcPolicy::Check,
            max_record_bytes: 2 << 30,
        }
    }
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

    /// The largest payload that is believed; by default 2 GiB, which is as large as an example may be. Bounds what a damaged or hostile
    /// length can make a reader hold of a file that goes on.
    #[must_use]
    pub fn max_record_bytes(mut self, bytes: u64) -> Self {
        self.max_record_bytes = bytes;
        self
    }
}

/// Reads TFRecord files, one framed record at a time.
///
/// Holds a buffer of 512 KiB, or as large as the largest record that was really there: a length is a claim, and memory follows the
/// bytes that arrive. A short read is not the end of the file.
pub struct Reader<R: Read> {
    name: String,
    stream: Stream<R>,
    options: ReadOptions,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Of the frame at `start`, in the uncompressed file.
    position: u64,
    record: u64,
    state: State,
    /// Length of the uncompressed file, where it is known.
    length: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The source has no more bytes.
    SourceEnded,
    /// Nothing more comes: the end, or an error that loses the rest.
    Done,
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

impl Reader<File> {
    /// Opens a local file; its path is the name in messages.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where it cannot be opened, else as [`Reader::new`].
    pub fn open(path: impl AsRef<Path>, options: ReadOptions) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let metadata = file.metadata().map_err(Error::io(path, "open"))?;
        let mut reader = Self::new(file, path.to_string_lossy(), options)?;
        // Some file systems give files of unknown length as empty.
        if metadata.is_file() && metadata.len() > 0 && reader.compression() == Compression::Plain {
            reader.length = Some(metadata.len());
        }
        Ok(reader)
    }
}

impl<R: Read> Reader<R> {
    /// Starts to read; `name` is for messages. The source needs no buffer of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the source; [`Error::Damaged`] where the options insist on a compression, and the file begins as another kind.
    pub fn new(source: R, name: impl Into<String>, options: ReadOptions) -> Result<Self> {
        let name = name.into();
        let stream = Stream::new(source, &name, options.compression)?;
        Ok(Self {
            name,
            state: State::Reading,
            stream,
            options,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            position: 0,
            record: 0,
            length: None,
        })
    }

    /// How the file is compressed, as told by its first bytes or by the options.
    pub fn compression(&self) -> Compression {
        self.stream.compression()
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
        // Where the file ends is known of plain files that were opened by path: then nothing is read on a false promise.
        let available = self
            .length
            .map(|end| end.saturating_sub(self.position + HEADER as u64));
        if length > self.options.max_record_bytes || available.is_some_and(|available| length > available) {
            let claim = claim_error(self.place(), length, available, self.options.max_record_bytes);
            return Err(claim);
        }
        let length = usize::try_from(length).ok();
        let frame = length.and_then(|length| length.checked_add(HEADER + TRAILER));
        let (Some(length), Some(frame)) = (length, frame) else {
            return Err(claim_error(self.place(), u64::MAX, None, usize::MAX as u64));
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
            let (name, record, position) = (&self.name, self.record, self.position);
            let place = || Position {
                path: name.clone(),
                record: Some(record),
                offset: Some(position),
            };
            match self.stream.read(&mut self.buffer[self.end..], place)? {
                0 => self.state = State::SourceEnded,
                n => self.end += n,
            }
        }
        Ok(true)
    }
}
