//! The shuffle of random access: another permutation each epoch. Over windows, where records that are near each other are to be read near
//! each other: ORDER.md, sections 2, 4 and 13.

use std::cell::RefCell;
use std::sync::Arc;

use super::records::Records;
use super::{ENDLESS, Facts, Item, MapStage, Text};
use crate::error::{Error, Result};
use crate::order::{EpochOrder, Order, Sequence};
use crate::permutation::Permutation;

/// Shuffles all positions of an epoch.
pub(crate) struct ShuffleStage {
    parent: Arc<dyn MapStage>,
    order: Order,
    seed: u64,
    sequence: Sequence,
    facts: Facts,
}

impl ShuffleStage {
    pub(crate) fn new(parent: Arc<dyn MapStage>, order: Order, seed: u64) -> Result<Self> {
        let facts = finite(&*parent)?;
        Ok(Self {
            sequence: Sequence::new(order, seed, facts.length)?,
            parent,
            order,
            seed,
            facts,
        })
    }

    fn in_parent(&self, positions: &[u64]) -> Vec<u64> {
        thread_local! {
            /// The order of the last epoch, and whose it is.
            static LAST: RefCell<Option<(Sequence, EpochOrder)>> = const { RefCell::new(None) };
        }
        let length = self.facts.length.max(1);
        LAST.with_borrow_mut(|last| {
            positions
                .iter()
                .map(|&position| {
                    let epoch = position / length;
                    let order = match last {
                        Some((sequence, order)) if *sequence == self.sequence && order.epoch() == epoch => {
                            order
                        }
                        _ => &mut last.insert((self.sequence.clone(), self.sequence.epoch(epoch))).1,
                    };
                    epoch * length + order.index(position % length)
                })
                .collect()
        })
    }
}

/// The facts of a shuffle of a stage that has an end.
fn finite(parent: &dyn MapStage) -> Result<Facts> {
    if parent.facts().length >= ENDLESS {
        return Err(Error::Options(
            "a stream without end cannot be shuffled as a whole: shuffle before `repeat`".into(),
        ));
    }
    Ok(Facts {
        epochal: true,
        ..parent.facts().clone()
    })
}

impl MapStage for ShuffleStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        self.parent.get_many(&self.in_parent(positions), items);
    }

    fn get_records(&self, positions: &[u64], used: Option<Records>) -> Option<Records> {
        self.parent.get_records(&self.in_parent(positions), used)
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        text.line(format!("shuffle order={} seed={}", self.order, self.seed));
    }
}

/// Shuffles windows of consecutive positions, and the positions inside each.
pub(crate) struct WindowedShuffleStage {
    parent: Arc<dyn MapStage>,
    windows: Windows,
    facts: Facts,
}

impl WindowedShuffleStage {
    pub(crate) fn new(parent: Arc<dyn MapStage>, window: u64, seed: u64) -> Result<Self> {
        let facts = finite(&*parent)?;
        if window == 0 {
            return Err(Error::Options(
                "a window of 0 positions, wanted at least 1".into(),
            ));
        }
        Ok(Self {
            windows: Windows {
                length: facts.length,
                window,
                seed,
            },
            parent,
            facts,
        })
    }

    fn in_parent(&self, positions: &[u64]) -> Vec<u64> {
        let length = self.facts.length.max(1);
        let full = length / self.windows.window;
        let mut outer: Option<(u64, Permutation)> = None;
        let mut inner = None;
        positions
            .iter()
            .map(|&position| {
                let epoch = position / length;
                let outer = match &outer {
                    Some((own, outer)) if *own == epoch => outer,
                    _ => {
                        &outer
                            .insert((epoch, Permutation::new(self.windows.seed, epoch, full)))
                            .1
                    }
                };
                epoch * length + self.windows.index(epoch, position % length, outer, &mut inner)
            })
            .collect()
    }
}

/// A shuffle on two levels: a pure function of the position.
#[derive(Debug, Clone, Copy)]
struct Windows {
    length: u64,
    window: u64,
    seed: u64,
}

impl Windows {
    /// The offset in the parent's epoch. `cache` keeps the last window's permutation, with its number.
    fn index(
        &self,
        epoch: u64,
        offset: u64,
        outer: &Permutation,
        cache: &mut Option<(u64, Permutation)>,
    ) -> u64 {
        // Full windows first, in their order; the records that are left over, fewer than a window, are the last one.
        let full = self.length / self.window;
        let number = offset / self.window;
        let window = if number < full {
            outer.apply(number)
        } else {
            number
        };
        let start = window * self.window;
        let size = self.window.min(self.length - start);
        let key = epoch * (full + 1) + window;
        let inner = match cache {
            Some((own, inner)) if *own == key => inner,
            _ => &mut cache.insert((key, Permutation::windowed(self.seed, key, size))).1,
        };
        start + inner.apply(offset % self.window)
    }
}

impl MapStage for WindowedShuffleStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        self.parent.get_many(&self.in_parent(positions), items);
    }

    fn get_records(&self, positions: &[u64], used: Option<Records>) -> Option<Records> {
        self.parent.get_records(&self.in_parent(positions), used)
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        text.line(format!(
            "window_shuffle window={} seed={}",
            self.windows.window, self.windows.seed
        ));
    }
}
