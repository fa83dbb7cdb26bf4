//! Some streams at a time, in turn.

use std::sync::Arc;

use super::mix::common_spec;
use super::{Cursor, Item, IterStage, Machine, Parent, Stream, Text};
use crate::element::ElementSpec;
use crate::error::{Error, Result};

/// Gives one element of each of `cycle_length` datasets in turn; where one ends, the next one that was not begun takes its place.
pub(crate) struct InterleaveStage {
    parents: Arc<[Parent]>,
    cycle_length: usize,
    spec: ElementSpec,
}

impl InterleaveStage {
    pub(crate) fn new(parents: Vec<Parent>, cycle_length: usize) -> Result<Self> {
        if cycle_length == 0 {
            return Err(Error::Options("a cycle of 0 datasets, wanted at least 1".into()));
        }
        Ok(Self {
            spec: common_spec(&parents, "interleave")?,
            parents: parents.into(),
            cycle_length,
        })
    }
}

impl IterStage for InterleaveStage {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }

    fn is_endless(&self) -> bool {
        self.parents.iter().any(|parent| parent.is_endless())
    }

    fn open(&self, stream: Stream, cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        let slots = self.cycle_length.min(self.parents.len());
        let mut machine = InterleaveMachine {
            parents: Arc::clone(&self.parents),
            stream: stream.clone(),
            slots: (0..slots).map(|_| None).collect(),
            turn: 0,
            begun: 0,
        };
        if let Some(cursor) = cursor {
            machine.turn = number(cursor, slots)?;
            machine.begun = number(cursor, self.parents.len() + 1)?;
            for slot in &mut machine.slots {
                // One more than the number of the dataset; 0: the slot is empty.
                if let Some(parent) = number(cursor, self.parents.len() + 1)?.checked_sub(1) {
                    *slot = Some((parent, self.parents[parent].open(stream.clone(), Some(cursor))?));
                }
            }
        }
        Ok(Box::new(machine))
    }

    fn describe(&self, text: &mut Text) {
        for parent in &*self.parents {
            text.branch(|text| parent.describe(text));
        }
        text.line(format!(
            "interleave parents={} cycle_length={}",
            self.parents.len(),
            self.cycle_length
        ));
    }
}

/// A saved number below a limit.
fn number(cursor: &mut Cursor<'_>, limit: usize) -> Result<usize> {
    let number = cursor.next()?;
    usize::try_from(number)
        .ok()
        .filter(|&number| number < limit)
        .ok_or_else(|| Error::State(format!("a stream has {number}, wanted a number below {limit}")))
}

struct InterleaveMachine {
    parents: Arc<[Parent]>,
    stream: Stream,
    slots: Vec<Option<(usize, Box<dyn Machine>)>>,
    /// Whose turn it is.
    turn: usize,
    /// Datasets that were begun.
    begun: usize,
}

impl Machine for InterleaveMachine {
    fn next(&mut self) -> Item {
        let mut empty = 0;
        while empty < self.slots.len() {
            let slot = &mut self.slots[self.turn];
            if slot.is_none() && self.begun < self.parents.len() {
                *slot = Some((
                    self.begun,
                    self.parents[self.begun].open(self.stream.clone(), None)?,
                ));
                self.begun += 1;
            }
            let element = match slot {
                Some((_, machine)) => machine.next()?,
                None => {
                    empty += 1;
                    self.turn = (self.turn + 1) % self.slots.len();
                    continue;
                }
            };
            if element.is_some() {
                self.turn = (self.turn + 1) % self.slots.len();
                return Ok(element);
            }
            // Its place is taken in this very turn.
            *slot = None;
        }
        Ok(None)
    }

    fn reach(&self) -> u64 {
        let machines = self.slots.iter().flatten();
        machines.map(|(_, machine)| machine.reach()).max().unwrap_or(0)
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        cursor.extend([self.turn as u64, self.begun as u64]);
        for slot in &self.slots {
            match slot {
                Some((parent, machine)) => {
                    cursor.push(*parent as u64 + 1);
                    machine.save(cursor);
                }
                None => cursor.push(0),
            }
        }
    }
}
