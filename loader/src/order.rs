//! From sample positions to indices: the three orders of ORDER.md, sections 1 to 4.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::grain_shuffle::GrainShuffle;
use crate::permutation::{MAX_LENGTH, Permutation};

/// The version of ORDER.md that this crate follows; states carry it.
pub const ORDER_VERSION: u32 = 1;

/// How the records of an epoch follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// A keyed permutation, another one each epoch.
    #[default]
    Prep,
    /// As `grain.MapDataset.shuffle(seed).repeat()`, bit for bit.
    Grain,
    /// As stored: no shuffle.
    Source,
}

impl Order {
    /// The name in options and states.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prep => "prep",
            Self::Grain => "grain",
            Self::Source => "source",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "prep" => Ok(Self::Prep),
            "grain" => Ok(Self::Grain),
            "source" => Ok(Self::Source),
            _ => Err(Error::Options(format!(
                "order is `{text}`, wanted `prep`, `grain` or `source`"
            ))),
        }
    }
}

/// The endless stream of indices of a dataset: a pure function of order, seed and length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    order: Order,
    seed: u64,
    length: u64,
}

impl Sequence {
    /// The stream of `length` records.
    ///
    /// # Errors
    /// More than 2^63 records; under [`Order::Grain`] a length or seed that is not below 2^32.
    pub fn new(order: Order, seed: u64, length: u64) -> Result<Self> {
        if length > MAX_LENGTH {
            return Err(Error::Options(format!(
                "the split has {length} records, and at most 2^63 can be ordered"
            )));
        }
        if order == Order::Grain {
            for (what, value) in [("seed", seed), ("number of records", length)] {
                if value >= 1 << 32 {
                    return Err(Error::Options(format!(
                        "order `grain` takes a {what} below 4294967296 (2^32), not {value}; use order `prep`"
                    )));
                }
            }
        }
        Ok(Self { order, seed, length })
    }

    /// Number of records of an epoch.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The order of one epoch: made in under a microsecond, O(1) memory.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        let shuffle = match self.order {
            _ if self.length == 0 => Shuffle::Source,
            Order::Source => Shuffle::Source,
            Order::Prep => Shuffle::Prep(Box::new(Permutation::new(self.seed, epoch, self.length))),
            Order::Grain => match GrainShuffle::new(self.length, self.seed, epoch) {
                Some(shuffle) => Shuffle::Grain(shuffle),
                None => unreachable!("length and seed were checked when the sequence was made"),
            },
        };
        EpochOrder {
            epoch,
            length: self.length,
            shuffle,
        }
    }

    /// Whether each record comes once an epoch; not so for a few lengths under [`Order::Grain`], where Grain has a fault.
    pub fn is_permutation(&self) -> bool {
        match self.epoch(0).shuffle {
            Shuffle::Grain(shuffle) => shuffle.is_permutation(),
            _ => true,
        }
    }

    /// Appends the indices of a run of positions to `indices`. `cache` keeps the last epoch's order from call to call.
    pub fn indices(
        &self,
        positions: std::ops::Range<u64>,
        cache: &mut Option<EpochOrder>,
        indices: &mut Vec<u64>,
    ) {
        for position in positions {
            let epoch = position / self.length;
            if cache.as_ref().is_none_or(|order| order.epoch != epoch) {
                *cache = Some(self.epoch(epoch));
            }
            if let Some(order) = cache {
                indices.push(order.index(position % self.length));
            }
        }
    }
}

/// The order of one epoch.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    epoch: u64,
    length: u64,
    shuffle: Shuffle,
}

#[derive(Debug, Clone)]
enum Shuffle {
    Source,
    Prep(Box<Permutation>),
    Grain(GrainShuffle),
}

impl EpochOrder {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The index at an offset of the epoch.
    ///
    /// # Panics
    /// If `offset` is not below the number of records: a caller's bug.
    pub fn index(&self, offset: u64) -> u64 {
        assert!(
            offset < self.length,
            "offset {offset} is beyond the {} records of an epoch",
            self.length
        );
        match &self.shuffle {
            Shuffle::Source => offset,
            Shuffle::Prep(permutation) => permutation.apply(offset),
            Shuffle::Grain(shuffle) => shuffle.apply(offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_counts_and_prep_permutes() {
        let source = Sequence::new(Order::Source, 9, 4).unwrap();
        let mut indices = Vec::new();
        source.indices(2..9, &mut None, &mut indices);
        assert_eq!(indices, [2, 3, 0, 1, 2, 3, 0]);
        let prep = Sequence::new(Order::Prep, 42, 10).unwrap();
        let mut indices = Vec::new();
        prep.indices(0..20, &mut None, &mut indices);
        assert_eq!(indices[..10], [3, 4, 7, 0, 6, 2, 8, 5, 1, 9]);
        assert_eq!(indices[10..], [5, 0, 8, 4, 6, 2, 7, 3, 1, 9]);
    }

    #[test]
    fn grain_is_what_grain_gives() {
        // `grain.MapDataset.range(3).shuffle(1).repeat()` of Grain 0.2.18 (golden/grain/map_dataset.json).
        let grain = Sequence::new(Order::Grain, 1, 3).unwrap();
        let mut indices = Vec::new();
        grain.indices(0..6, &mut None, &mut indices);
        assert_eq!(indices, [1, 2, 0, 0, 2, 1]);
        assert!(!Sequence::new(Order::Grain, 1, 65_537).unwrap().is_permutation());
    }

    #[test]
    fn grain_refuses_what_grain_cannot() {
        let error = Sequence::new(Order::Grain, 1 << 32, 10).unwrap_err();
        assert!(error.to_string().contains("seed below 4294967296"), "{error}");
        let error = Sequence::new(Order::Grain, 0, 1 << 32).unwrap_err();
        assert!(error.to_string().contains("number of records"), "{error}");
        assert!(Sequence::new(Order::Prep, 0, MAX_LENGTH + 1).is_err());
        assert!("random".parse::<Order>().is_err());
    }
}
