//! One element to any number of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Clean, Cursor, Item, IterStage, Machine, Parent, Stream, Text, guarded, replay};
use crate::element::{Element, ElementSpec};
use crate::error::Result;

/// What an element becomes. A pure function of it, called by several threads at the same time.
pub(crate) type Expand = dyn Fn(Element) -> Result<Vec<Element>> + Send + Sync;

/// Gives the elements that each element becomes, one by one.
pub(crate) struct FlatMapStage {
    parent: Parent,
    name: Arc<str>,
    expand: Arc<Expand>,
    spec: ElementSpec,
}

impl FlatMapStage {
    pub(crate) fn new(parent: Parent, name: &str, spec: ElementSpec, expand: Arc<Expand>) -> Self {
        Self {
            parent,
            name: name.into(),
            expand,
            spec,
        }
    }
}

impl IterStage for FlatMapStage {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }

    fn is_endless(&self) -> bool {
        self.parent.is_endless()
    }

    fn open(&self, stream: Stream, mut cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        let parent = self.parent.open(stream.clone(), cursor.as_deref_mut())?;
        let (number, given) = match cursor {
            Some(cursor) => (cursor.next()?, cursor.next()?),
            None => (stream.first_number(), 0),
        };
        let mut machine = FlatMapMachine {
            clean: Clean::default(),
            parent,
            name: Arc::clone(&self.name),
            expand: Arc::clone(&self.expand),
            stream,
            number,
            ahead: VecDeque::new(),
        };
        machine.clean.mark(&*machine.parent);
        replay(&mut machine, given)?;
        Ok(Box::new(machine))
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        text.line(format!("flat_map {}", self.name.replace('\n', " ")));
    }
}

struct FlatMapMachine {
    parent: Box<dyn Machine>,
    name: Arc<str>,
    expand: Arc<Expand>,
    stream: Stream,
    /// Inputs before the one that `ahead` is made of.
    number: u64,
    ahead: VecDeque<Element>,
    clean: Clean,
}

impl Machine for FlatMapMachine {
    fn next(&mut self) -> Item {
        while self.ahead.is_empty() {
            self.clean.mark(&*self.parent);
            let Some(element) = self.parent.next()? else {
                return Ok(None);
            };
            let position = self.stream.position(self.number);
            let origin = element.origin().cloned();
            let mut made = guarded(&self.name, position, origin.as_ref(), || (self.expand)(element))?;
            for element in &mut made {
                if element.origin().is_none() {
                    element.set_origin(origin.clone());
                }
            }
            self.ahead.extend(made);
            if self.ahead.is_empty() {
                self.number += 1;
            }
        }
        let element = self.ahead.pop_front();
        self.clean.given += 1;
        if self.ahead.is_empty() {
            self.number += 1;
            self.clean.mark(&*self.parent);
        }
        Ok(element)
    }

    fn reach(&self) -> u64 {
        self.parent.reach()
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        self.clean.save(&[self.number], cursor);
    }
}
