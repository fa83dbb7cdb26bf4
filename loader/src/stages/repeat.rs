//! Epochs one after the other.

use std::borrow::Cow;
use std::sync::Arc;

use super::records::Records;
use super::{ENDLESS, Facts, Item, MapStage, Text};
use crate::error::{Error, Result};

/// Repeats what there is, each time in another order, or always in that of the first epoch.
pub(crate) struct RepeatStage {
    parent: Arc<dyn MapStage>,
    reseed_each_epoch: bool,
    facts: Facts,
}

impl RepeatStage {
    pub(crate) fn new(
        parent: Arc<dyn MapStage>,
        num_epochs: Option<u64>,
        reseed_each_epoch: bool,
    ) -> Result<Self> {
        let facts = parent.facts();
        if num_epochs == Some(0) {
            return Err(Error::Options("0 epochs, wanted at least 1".into()));
        }
        let length = match num_epochs {
            _ if facts.length == 0 => 0,
            None => ENDLESS,
            Some(epochs) => facts
                .length
                .checked_mul(epochs)
                .filter(|&length| length < ENDLESS)
                .ok_or_else(|| {
                    Error::Options(format!(
                        "{epochs} epochs of {} positions are more than 2^63",
                        facts.length
                    ))
                })?,
        };
        let facts = Facts {
            length,
            epochal: facts.epochal && reseed_each_epoch,
            ..facts.clone()
        };
        Ok(Self {
            parent,
            reseed_each_epoch,
            facts,
        })
    }

    fn in_parent<'a>(&self, positions: &'a [u64]) -> Cow<'a, [u64]> {
        if self.reseed_each_epoch {
            return positions.into();
        }
        let length = self.parent.facts().length.max(1);
        positions.iter().map(|position| position % length).collect()
    }
}

impl MapStage for RepeatStage {
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
        // How often is not said: a state fits more epochs too.
        text.line(format!("repeat reseed_each_epoch={}", self.reseed_each_epoch));
    }
}
