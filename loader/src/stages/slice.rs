//! Parts of what there is: slice, shard, take and skip.

use std::sync::Arc;

use super::records::Records;
use super::{ENDLESS, Facts, Item, MapStage, Text};
use crate::error::{Error, Result};

/// Every `step`-th position of `start..stop` of an epoch.
pub(crate) struct SliceStage {
    parent: Arc<dyn MapStage>,
    start: u64,
    stop: u64,
    step: u64,
    facts: Facts,
}

impl SliceStage {
    /// `stop` is cut to the parent's length.
    pub(crate) fn new(parent: Arc<dyn MapStage>, start: u64, stop: u64, step: u64) -> Result<Self> {
        if step == 0 {
            return Err(Error::Options("a slice with step 0, wanted at least 1".into()));
        }
        let facts = parent.facts();
        let stop = stop.min(facts.length);
        let start = start.min(stop);
        let endless = facts.length >= ENDLESS && stop == facts.length;
        let length = if endless {
            ENDLESS
        } else {
            (stop - start).div_ceil(step)
        };
        let facts = Facts {
            length,
            ..facts.clone()
        };
        Ok(Self {
            parent,
            start,
            stop,
            step,
            facts,
        })
    }

    fn in_parent(&self, positions: &[u64]) -> Vec<u64> {
        let (own, parent) = (self.facts.length.max(1), self.parent.facts().length);
        let place = |position| (position / own) * parent + self.start + (position % own) * self.step;
        positions.iter().map(|&position| place(position)).collect()
    }
}

impl MapStage for SliceStage {
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
        let stop = match self.stop {
            ENDLESS.. => "end".to_string(),
            stop => stop.to_string(),
        };
        text.line(format!(
            "slice start={} stop={stop} step={}",
            self.start, self.step
        ));
    }
}
