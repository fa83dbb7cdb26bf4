//! The shuffle of random access: another permutation each epoch. Over windows, where records that are near each other are to be read near
//! each other: ORDER.md, sections 2, 4 and 13.

use std::cell::RefCell;
use std::sync::Arc;

use super::records::Records;
use super::{ENDLESS, Facts, Item, MapStage, Text};
use crate::error::{Error, Result};
use crate::order::{EpochOrder, Order, Sequence};

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
        if parent.facts().length >= ENDLESS {
            return Err(Error::Options(
                "a stream without end cannot be shuffled as a whole: shuffle before `repeat`".into(),
            ));
        }
        let facts = Facts {
            epochal: true,
            ..parent.facts().clone()
        };
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
        text.line(match self.order {
            Order::Window(window) => format!("window_shuffle window={window} seed={}", self.seed),
            order => format!("shuffle order={order} seed={}", self.seed),
        });
    }
}
