//! One after the other.

use std::sync::Arc;

use super::{ENDLESS, Facts, Item, MapStage, Text};
use crate::error::{Error, Result};

/// All positions of an epoch of each parent in turn.
pub(crate) struct ConcatenateStage {
    parents: Vec<Arc<dyn MapStage>>,
    /// First position of each parent.
    starts: Vec<u64>,
    facts: Facts,
}

impl ConcatenateStage {
    pub(crate) fn new(parents: Vec<Arc<dyn MapStage>>) -> Result<Self> {
        let mut facts = same_spec(&parents, "concatenate")?;
        let mut starts = Vec::with_capacity(parents.len());
        let mut length = 0u64;
        for parent in &parents {
            starts.push(length);
            length = length
                .checked_add(parent.facts().length)
                .filter(|&length| length < ENDLESS)
                .ok_or_else(|| {
                    Error::Options(
                        "datasets without end, or of more than 2^63 positions, cannot be concatenated".into(),
                    )
                })?;
        }
        facts.length = length;
        Ok(Self {
            parents,
            starts,
            facts,
        })
    }
}

/// What several parents with the same names and types have in common; shapes that differ vary. Their lengths are left to the caller.
pub(crate) fn same_spec(parents: &[Arc<dyn MapStage>], stage: &str) -> Result<Facts> {
    let Some(first) = parents.first() else {
        return Err(Error::Options(format!(
            "`{stage}` of no datasets, wanted at least 1"
        )));
    };
    let mut facts = first.facts().clone();
    for parent in &parents[1..] {
        let other = parent.facts();
        facts.spec = facts.spec.common(&other.spec).ok_or_else(|| {
            Error::Options(format!(
                "`{stage}` wants elements with the same names and dtypes: one has ({}), another ({})",
                facts.spec, other.spec
            ))
        })?;
        facts.sparse |= other.sparse;
        facts.epochal |= other.epochal;
    }
    Ok(facts)
}

/// Gets positions of several parents: `place` tells the parent and the position in it.
pub(crate) fn get_from(
    parents: &[Arc<dyn MapStage>],
    positions: &[u64],
    items: &mut Vec<Item>,
    mut place: impl FnMut(u64) -> (usize, u64),
) {
    let mut own = vec![Vec::new(); parents.len()];
    let numbers: Vec<usize> = positions
        .iter()
        .map(|&position| {
            let (parent, position) = place(position);
            own[parent].push(position);
            parent
        })
        .collect();
    let mut got: Vec<std::vec::IntoIter<Item>> = parents
        .iter()
        .zip(&own)
        .map(|(parent, positions)| {
            let mut items = Vec::with_capacity(positions.len());
            if !positions.is_empty() {
                parent.get_many(positions, &mut items);
            }
            items.into_iter()
        })
        .collect();
    items.extend(
        numbers
            .into_iter()
            .map(|parent| got[parent].next().unwrap_or(Ok(None))),
    );
}

impl MapStage for ConcatenateStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let length = self.facts.length.max(1);
        get_from(&self.parents, positions, items, |position| {
            let (epoch, offset) = (position / length, position % length);
            let parent = self.starts.partition_point(|&start| start <= offset) - 1;
            let within = offset - self.starts[parent];
            (parent, epoch * self.parents[parent].facts().length + within)
        });
    }

    fn describe(&self, text: &mut Text) {
        for parent in &self.parents {
            text.branch(|text| parent.describe(text));
        }
        text.line(format!("concatenate parents={}", self.parents.len()));
    }
}
