//! Walks over the records of a TFRecord file in memory, without copies.

use crate::tfrecord::CrcPolicy;
use crate::tfrecord::frame::{
    HEADER, TRAILER, check_payload, cut_error, length_error, length_of, payload_error,
};
use crate::{Position, Result};

/// Walks over the records of a plain TFRecord file that lies in memory or is mapped.
///
/// # Examples
///
/// ```
/// use prep_formats::tfrecord::{Compression, CrcPolicy, Scanner, Writer};
///
/// let mut writer = Writer::new(Vec::new(), Compression::Plain)?;
/// writer.write(b"one")?;
/// let bytes = writer.finish()?;
/// let mut scanner = Scanner::new(&bytes, "example", CrcPolicy::Check);
/// assert_eq!(scanner.next()?, Some(&b"one"[..]));
/// assert_eq!(scanner.next()?, None);
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    name: &'a str,
    crc: CrcPolicy,
    offset: usize,
    record: u64,
    done: bool,
}

impl<'a> Scanner<'a> {
    /// Starts at the first record; `name` is for messages.
    pub fn new(bytes: &'a [u8], name: &'a str, crc: CrcPolicy) -> Self {
        Self {
            bytes,
            name,
            crc,
            offset: 0,
            record: 0,
            done: false,
        }
    }

    /// Index of the record that the next call gives.
    pub fn record_index(&self) -> u64 {
        self.record
    }

    /// Where the record begins that the next call gives.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Whether records may follow; after an error, whether it was only that record.
    pub fn can_continue(&self) -> bool {
        !self.done
    }

    /// The next record, `None` at the end.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Damaged`], as [`super::Reader::next`].
    #[expect(
        clippy::should_implement_trait,
        reason = "the same shape as the streaming reader's"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<&'a [u8]>> {
        let rest = &self.bytes[self.offset..];
        if rest.is_empty() || self.done {
            self.done = true;
            return Ok(None);
        }
        let at = || Position {
            path: self.name.to_string(),
            record: Some(self.record),
            offset: Some(self.offset as u64),
        };
        let result = match rest.first_chunk::<HEADER>() {
            None => Err(cut_error(at(), rest.len(), "length")),
            Some(header) => length_of(header).map_err(|crc| length_error(at(), crc)),
        };
        let framed = result.and_then(|length| {
            let body = &rest[HEADER..];
            let split = usize::try_from(length)
                .ok()
                .and_then(|length| body.split_at_checked(length));
            match split.and_then(|(payload, rest)| Some((payload, *rest.first_chunk::<TRAILER>()?))) {
                Some(framed) => Ok(framed),
                None => {
                    let part = if split.is_none() {
                        "payload"
                    } else {
                        "payload checksum"
                    };
                    Err(cut_error(at(), rest.len(), part))
                }
            }
        });
        let (payload, trailer) = match framed {
            Ok(framed) => framed,
            Err(error) => {
                self.done = true;
                return Err(error);
            }
        };
        let checked = match self.crc {
            CrcPolicy::Check => check_payload(payload, trailer).map_err(|crc| payload_error(at(), crc)),
            CrcPolicy::Skip => Ok(()),
        };
        self.offset += HEADER + payload.len() + TRAILER;
        self.record += 1;
        checked.map(|()| Some(payload))
    }
}
