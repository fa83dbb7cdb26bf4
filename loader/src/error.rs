//! What goes wrong when a dataset is opened or its stream is read.

use std::fmt;

use crate::element::Origin;

/// The result of a fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is wrong, or options do not go together.
    #[error("{0}")]
    Options(String),
    /// A split string cannot be read, or does not fit the dataset.
    #[error("could not use split `{split}`: {reason}")]
    Split {
        /// The split string as given.
        split: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A saved state cannot be read.
    #[error("could not read the state: {0}")]
    State(String),
    /// A saved state is of another stream than the one it is restored to.
    #[error("the state does not fit: {0}")]
    Conflict(Box<Conflict>),
    /// An index beyond the opened dataset.
    #[error("index {index} is out of range: the split has {length} records")]
    OutOfRange {
        /// Index asked for.
        index: u64,
        /// Records of the opened dataset.
        length: u64,
    },
    /// The files of a dataset are not those that the catalog describes.
    #[error("{path}: {reason}")]
    Changed {
        /// File or folder.
        path: String,
        /// What was found and wanted.
        reason: String,
    },
    /// A record cannot be read or decoded.
    #[error("could not load record {record} of `{path}` (global index {global_index})")]
    Record {
        /// Shard file.
        path: String,
        /// Record in the shard, 0-based.
        record: u64,
        /// Record in its split, 0-based.
        global_index: u64,
        /// The cause.
        #[source]
        source: Box<prep_formats::Error>,
    },
    /// More damaged records than were to be left out.
    #[error("{skipped} damaged records were left out, at most {limit} were to be; the last: {last}")]
    TooManyDamaged {
        /// Records left out so far.
        skipped: u64,
        /// How many may be.
        limit: u64,
        /// The last one.
        last: String,
    },
    /// A file cannot be opened or read.
    #[error(transparent)]
    Format(#[from] prep_formats::Error),
    /// The catalog does not have it, or cannot be read.
    #[error(transparent)]
    Catalog(#[from] prep_catalog::Error),
    /// An element, or its spec, is not what a stage can work on.
    #[error("{0}")]
    Element(String),
    /// A function of the caller's failed.
    #[error(transparent)]
    User(#[from] Box<dyn std::error::Error + Send + Sync>),
    /// A stage failed at an element.
    #[error("stage `{stage}` failed at sample position {position}{}", Of(origin.as_deref()))]
    Stage {
        /// Name of the stage.
        stage: String,
        /// Sample position in the stage's input.
        position: u64,
        /// The record that the element was made of, or the first of them.
        origin: Option<String>,
        /// The cause.
        #[source]
        source: Box<Error>,
    },
    /// A loading thread panicked: a bug of this program, named by its message.
    #[error("a loading thread panicked in the batch at sample position {position}: {message}")]
    Panic {
        /// First sample position of the batch.
        position: u64,
        /// The panic's message.
        message: String,
    },
    /// A loading thread could not be started.
    #[error("could not start a loading thread")]
    Thread(#[source] std::io::Error),
}

/// Prints the record of an element, where it is known.
struct Of<'a>(Option<&'a str>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |origin| write!(f, ", {origin}"))
    }
}

/// A field in which a state and the stream it is restored to differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Which field.
    pub field: &'static str,
    /// Its value in the state.
    pub state: String,
    /// Its value here.
    pub here: String,
    /// What to do.
    pub advice: &'static str,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            state,
            here,
            advice,
        } = self;
        write!(f, "its {field} is `{state}`, here it is `{here}`; {advice}")
    }
}

impl Error {
    /// What to do about it, where there is something to say beyond the message.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Catalog(error) => error.hint(),
            Self::TooManyDamaged { .. } => {
                Some("`prep verify` lists what is damaged; build the version again, or allow more".into())
            }
            _ => None,
        }
    }

    /// The same, with the stage and the element at which it came up.
    pub(crate) fn at_stage(self, stage: &str, position: u64, origin: Option<&Origin>) -> Self {
        Self::Stage {
            stage: stage.to_string(),
            position,
            origin: origin.map(Origin::to_string),
            source: Box::new(self),
        }
    }

    /// The message, and those of its causes.
    pub(crate) fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(found) = cause {
            text.push_str(": ");
            text.push_str(&found.to_string());
            cause = found.source();
        }
        text
    }

    /// Whether the caller's options are at fault, and not files or data.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Options(_) | Self::Split { .. } | Self::OutOfRange { .. }
        )
    }
}
