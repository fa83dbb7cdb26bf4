//! Several elements to one, position by position.

use std::sync::Arc;

use super::{Facts, Item, MapStage, Text};
use crate::element::{Element, ElementSpec};
use crate::error::{Error, Result};

/// Puts the elements of the same position together; names must differ.
pub(crate) struct ZipStage {
    parents: Vec<Arc<dyn MapStage>>,
    facts: Facts,
}

impl ZipStage {
    pub(crate) fn new(parents: Vec<Arc<dyn MapStage>>) -> Result<Self> {
        let mut spec = ElementSpec::new();
        let mut length = u64::MAX;
        let (mut sparse, mut epochal, mut unknown) = (false, false, false);
        for parent in &parents {
            let facts = parent.facts();
            for field in facts.spec.iter() {
                if spec.get(&field.name).is_some() {
                    return Err(Error::Options(format!(
                        "two of the zipped datasets have a value `{}`: rename one of them",
                        field.name
                    )));
                }
                spec.push(field.clone());
            }
            length = length.min(facts.length);
            sparse |= facts.sparse;
            epochal |= facts.epochal;
            unknown |= facts.spec.is_unknown();
        }
        spec.set_unknown(unknown);
        if parents.is_empty() {
            return Err(Error::Options("`zip` of no datasets, wanted at least 1".into()));
        }
        Ok(Self {
            parents,
            facts: Facts {
                length,
                spec,
                sparse,
                epochal,
            },
        })
    }
}

impl MapStage for ZipStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let length = self.facts.length.max(1);
        let mut zipped: Vec<Item> = positions.iter().map(|_| Ok(Some(Element::new()))).collect();
        for parent in &self.parents {
            let own: Vec<u64> = positions
                .iter()
                .map(|position| (position / length) * parent.facts().length + position % length)
                .collect();
            let mut parts = Vec::with_capacity(own.len());
            parent.get_many(&own, &mut parts);
            for (whole, part) in zipped.iter_mut().zip(parts) {
                match (&mut *whole, part) {
                    (Ok(Some(whole)), Ok(Some(part))) => whole.append(part),
                    // The first error, and else a gap.
                    (Err(_), _) | (Ok(None), Ok(_)) => {}
                    (_, part) => *whole = part,
                }
            }
        }
        items.append(&mut zipped);
    }

    fn describe(&self, text: &mut Text) {
        for parent in &self.parents {
            text.branch(|text| parent.describe(text));
        }
        text.line(format!("zip parents={}", self.parents.len()));
    }
}
