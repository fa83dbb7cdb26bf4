//! What goes wrong when bytes are read or written, and where.

use std::fmt;
use std::io;

/// The result of a fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A place in a file. Prints as `train-00003.tfrecord, record 512, byte 1048576`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Position {
    /// Path or object URL, as the caller wrote it; empty for bytes in memory.
    pub path: String,
    /// Record index in this file, 0-based, where it is known.
    pub record: Option<u64>,
    /// Bytes from the start of the file, where they are known.
    pub offset: Option<u64>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.path.is_empty() {
            "bytes in memory"
        } else {
            &self.path
        })?;
        if let Some(record) = self.record {
            write!(f, ", record {record}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", byte {offset}")?;
        }
        Ok(())
    }
}

/// What went wrong, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system or a store refused.
    #[error("{path}: could not {action}")]
    Io {
        /// Path or URL acted on.
        path: String,
        /// A verb: `open`, `read`, `write`.
        action: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The bytes are not what the format or a checksum says: the file is damaged, cut, or of another kind.
    #[error("{at}: {reason}")]
    Damaged {
        /// Where.
        at: Position,
        /// What was found and what was wanted.
        reason: String,
    },
    /// The bytes may be right, but this version cannot read or write them.
    #[error("{at}: {reason}")]
    Unsupported {
        /// Where.
        at: Position,
        /// What is not supported, and what would be.
        reason: String,
    },
    /// An argument, an option or a value given by the caller is wrong.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Whether bytes are not what they should be: reading them from elsewhere may help.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// Bytes that are not what they should be, at a place that the caller adds with [`Error::with_position`].
    pub(crate) fn damaged(reason: impl Into<String>) -> Self {
        Self::Damaged {
            at: Position::default(),
            reason: reason.into(),
        }
    }

    /// Something this version cannot read or write, at a place that the caller adds with [`Error::with_position`].
    pub(crate) fn unsupported(reason: impl Into<String>) -> Self {
        Self::Unsupported {
            at: Position::default(),
            reason: reason.into(),
        }
    }

    /// Says where: fills the position of an error about bytes in memory. Errors that know a path keep their own.
    #[must_use]
    pub fn with_position(self, place: &Position) -> Self {
        match self {
            Self::Damaged { at, reason } if at.path.is_empty() => Self::Damaged {
                at: place.clone(),
                reason,
            },
            Self::Unsupported { at, reason } if at.path.is_empty() => Self::Unsupported {
                at: place.clone(),
                reason,
            },
            other => other,
        }
    }

    /// Makes an [`Error::Io`] of a system error: `.map_err(Error::io(path, "open"))`.
    pub fn io(path: impl AsRef<std::path::Path>, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.as_ref().to_string_lossy().into_owned(),
            action,
            source,
        }
    }
}
