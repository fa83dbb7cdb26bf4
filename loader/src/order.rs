//! From sample positions to indices: the orders of ORDER.md, sections 1 to 4 and 13.

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
    /// Windows of so many records that follow one another, at least 1, in the order `prep`, and the records of each window likewise: for data of which
    /// near records are read together, as those of an object store. `window:N` in options and states.
    Window(u64),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prep => f.write_str("prep"),
            Self::Grain => f.write_str("grain"),
            Self::Source => f.write_str("source"),
            Self::Window(window) => write!(f, "window:{window}"),
        }
    }
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let window = text.strip_prefix("window:").map(str::parse);
        match (text, window) {
            ("prep", _) => Ok(Self::Prep),
            ("grain", _) => Ok(Self::Grain),
            ("source", _) => Ok(Self::Source),
            (_, Some(Ok(window))) if window > 0 => Ok(Self::Window(window)),
            _ => Err(Error::Options(format!(
                "order is `{text}`, wanted `prep`, `grain`, `source` or `window:N`, with N of 1 or more"
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
        if order == Order::Window(0) {
            return Err(Error::Options(
                "a window of 0 positions, wanted at least 1".into(),
            ));
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
            Order::Window(window) => {
                Shuffle::Window(Box::new(Windows::new(self.seed, epoch, self.length, window)))
            }
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
    Window(Box<Windows>),
}

/// A shuffle on two levels.
#[derive(Debug, Clone)]
struct Windows {
    seed: u64,
    epoch: u64,
    length: u64,
    window: u64,
    /// The order of full windows.
    outer: Permutation,
    /// The last window that was looked into.
    inner: Option<(u64, Permutation)>,
}

impl Windows {
    fn new(seed: u64, epoch: u64, length: u64, window: u64) -> Self {
        Self {
            outer: Permutation::new(seed, epoch, length / window),
            inner: None,
            seed,
            epoch,
            length,
            window,
        }
    }

    fn index(&mut self, offset: u64) -> u64 {
        // Full windows first, in their order; the records that are left over, fewer than a window, are the last one.
        let full = self.length / self.window;
        let place = offset / self.window;
        let window = if place < full {
            self.outer.apply(place)
        } else {
            place
        };
        let start = window * self.window;
        let inner = match &self.inner {
            Some((own, inner)) if *own == window => inner,
            _ => {
                let key = self.epoch * (full + 1) + window;
                let size = self.window.min(self.length - start);
                &self
                    .inner
                    .insert((window, Permutation::windowed(self.seed, key, size)))
                    .1
            }
        };
        start + inner.apply(offset % self.window)
    }
}

impl EpochOrder {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The index at an offset of the epoch.
    ///
    /// # Panics
    /// If `offset` is not below the number of records: a caller's bug.
    pub fn index(&mut self, offset: u64) -> u64 {
        assert!(
            offset < self.length,
            "offset {offset} is beyond the {} records of an epoch",
            self.length
        );
        match &mut self.shuffle {
            Shuffle::Source => offset,
            Shuffle::Prep(permutation) => permutation.apply(offset),
            Shuffle::Grain(shuffle) => shuffle.apply(offset),
            Shuffle::Window(windows) => windows.index(offset),
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
        for wrong in ["random", "window", "window:", "window:0", "window:-1", "prep:3"] {
            assert!(wrong.parse::<Order>().is_err(), "{wrong}");
        }
        assert!(Sequence::new(Order::Window(0), 0, 5).is_err());
    }

    #[test]
    fn names_come_back() {
        for name in [
            "prep",
            "grain",
            "source",
            "window:1",
            "window:18446744073709551615",
        ] {
            assert_eq!(name.parse::<Order>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn windows_are_read_one_after_the_other() {
        let windowed = Sequence::new(Order::Window(10), 7, 95).unwrap();
        let mut indices = Vec::new();
        windowed.indices(0..190, &mut None, &mut indices);
        let (first, second) = indices.split_at(95);
        assert_ne!(first, second);
        for epoch in [first, second] {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..95).collect::<Vec<_>>());
            assert!(
                epoch
                    .chunks(10)
                    .all(|window| window.iter().all(|index| index / 10 == window[0] / 10))
            );
            assert!(!epoch.is_sorted());
        }
    }
}
