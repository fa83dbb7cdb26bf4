//! What is done about records that cannot be read.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// What a stream does about a record that cannot be read or decoded.
///
/// A record of an object store is asked for once more before it counts as damaged. A shard that cannot be opened, or a store that cannot be reached, is
/// an error whatever is said here.
///
/// # Examples
/// ```
/// use prep_loader::OnDamage;
///
/// assert_eq!("skip:10".parse::<OnDamage>()?, OnDamage::Skip { limit: Some(10) });
/// assert!("ignore".parse::<OnDamage>().is_err());
/// # Ok::<(), prep_loader::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDamage {
    /// The stream fails at its batch.
    #[default]
    Fail,
    /// It is left out of its batch, which has a row less, and is named in [`PooledBatch::damaged`](crate::PooledBatch::damaged) or
    /// [`Pipeline::damaged`](crate::Pipeline::damaged). The positions of all other samples stay as they are; on virtual streams it is missing as
    /// what a filter leaves out.
    Skip {
        /// More than so many, counted over what this loader or pipeline has delivered, are an error. `None`: any number.
        limit: Option<u64>,
    },
}

impl OnDamage {
    /// Whether damaged records are left out.
    pub fn skips(self) -> bool {
        self != Self::Fail
    }

    /// Whether so many records may be left out; `last` is one of them.
    pub(crate) fn check(self, skipped: u64, last: Option<&DamagedRecord>) -> Result<()> {
        match (self, last) {
            (Self::Skip { limit: Some(limit) }, Some(last)) if skipped > limit => {
                Err(Error::TooManyDamaged {
                    skipped,
                    limit,
                    last: last.to_string(),
                })
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for OnDamage {
    type Err = Error;

    /// Parses `fail`, `skip` or `skip:MAX`.
    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| text.parse().ok();
        match text.split_once(':') {
            None if text == "fail" => Ok(Self::Fail),
            None if text == "skip" => Ok(Self::Skip { limit: None }),
            Some(("skip", most)) if number(most).is_some() => Ok(Self::Skip { limit: number(most) }),
            _ => Err(Error::Options(format!(
                "`{text}` is no way to treat damaged records: wanted `fail`, `skip` or `skip:MAX`"
            ))),
        }
    }
}

impl fmt::Display for OnDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail => f.write_str("fail"),
            Self::Skip { limit: None } => f.write_str("skip"),
            Self::Skip { limit: Some(limit) } => write!(f, "skip:{limit}"),
        }
    }
}

/// A record that was left out of its batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRecord {
    /// Its position in its split.
    pub global_index: u64,
    /// Shard, record and what is wrong.
    pub reason: String,
}

impl DamagedRecord {
    /// What an error says of a record. `None`: it is about something else than damage.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Record {
                global_index, source, ..
            } if source.is_damaged() => Some(Self {
                global_index: *global_index,
                reason: error.with_causes(),
            }),
            _ => None,
        }
    }
}

impl fmt::Display for DamagedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
