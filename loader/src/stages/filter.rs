//! Leaves elements out.

use std::sync::Arc;

use super::{
    Cursor, Facts, Item, IterStage, Machine, MapStage, Parent, Stream, Text, caught, caught_many,
    check_left_out, guarded,
};
use crate::element::{Element, ElementSpec};
use crate::error::Result;

/// Whether elements are kept. A pure function of each, called by several threads at the same time.
pub trait Predicate: Send + Sync {
    /// Whether an element is kept.
    ///
    /// # Errors
    /// As those of a [`Transform`](crate::transform::Transform).
    fn keeps(&self, element: &Element) -> Result<bool>;

    /// The same of several elements: for work that costs less by the dozen. One result for each.
    fn keeps_many(&self, elements: &[&Element]) -> Vec<Result<bool>> {
        elements
            .iter()
            .map(|element| caught(|| self.keeps(element)))
            .collect()
    }
}

impl<F: Fn(&Element) -> Result<bool> + Send + Sync> Predicate for F {
    fn keeps(&self, element: &Element) -> Result<bool> {
        self(element)
    }
}

/// A filter as both kinds of stage have it.
#[derive(Clone)]
pub(crate) struct Filter {
    name: Arc<str>,
    keep: Arc<dyn Predicate>,
}

impl Filter {
    pub(crate) fn new(name: &str, keep: Arc<dyn Predicate>) -> Self {
        Self {
            name: name.into(),
            keep,
        }
    }

    fn keeps(&self, position: u64, element: &Element) -> Result<bool> {
        guarded(&self.name, position, element.origin(), || {
            self.keep.keeps(element)
        })
    }

    fn describe(&self, text: &mut Text) {
        text.line(format!("filter {}", self.name.replace('\n', " ")));
    }
}

/// Random access: what is left out leaves a gap.
pub(crate) struct FilterMapStage {
    parent: Arc<dyn MapStage>,
    filter: Filter,
    facts: Facts,
}

impl FilterMapStage {
    pub(crate) fn new(parent: Arc<dyn MapStage>, filter: Filter) -> Self {
        let facts = Facts {
            sparse: true,
            ..parent.facts().clone()
        };
        Self {
            parent,
            filter,
            facts,
        }
    }
}

impl MapStage for FilterMapStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let start = items.len();
        self.parent.get_many(positions, items);
        let elements: Vec<&Element> = items[start..].iter().flatten().flatten().collect();
        let kept = caught_many(elements.len(), || self.filter.keep.keeps_many(&elements));
        let mut kept = kept.into_iter();
        for (item, &position) in items[start..].iter_mut().zip(positions) {
            if let Ok(Some(element)) = item {
                match kept.next().unwrap_or(Ok(true)) {
                    Ok(true) => {}
                    Ok(false) => *item = Ok(None),
                    Err(error) => *item = Err(error.at_stage(&self.filter.name, position, element.origin())),
                }
            }
        }
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        self.filter.describe(text);
    }
}

/// Streaming: what is left out leaves none.
pub(crate) struct FilterIterStage {
    parent: Parent,
    filter: Filter,
}

impl FilterIterStage {
    pub(crate) fn new(parent: Parent, filter: Filter) -> Self {
        Self { parent, filter }
    }
}

impl IterStage for FilterIterStage {
    fn spec(&self) -> &ElementSpec {
        self.parent.spec()
    }

    fn is_endless(&self) -> bool {
        self.parent.is_endless()
    }

    fn open(&self, stream: Stream, mut cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        let parent = self.parent.open(stream.clone(), cursor.as_deref_mut())?;
        let number = stream.next_number(cursor)?;
        Ok(Box::new(FilterMachine {
            parent,
            filter: self.filter.clone(),
            stream,
            number,
        }))
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        self.filter.describe(text);
    }
}

struct FilterMachine {
    parent: Box<dyn Machine>,
    filter: Filter,
    stream: Stream,
    number: u64,
}

impl Machine for FilterMachine {
    fn next(&mut self) -> Item {
        let mut left_out = 0;
        while let Some(element) = self.parent.next()? {
            let position = self.stream.position(self.number);
            self.number += 1;
            if self.filter.keeps(position, &element)? {
                return Ok(Some(element));
            }
            left_out += 1;
            check_left_out(left_out)?;
        }
        Ok(None)
    }

    fn reach(&self) -> u64 {
        self.parent.reach()
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        self.parent.save(cursor);
        cursor.push(self.number);
    }
}
