//! Shuffles a stream in windows: ORDER.md, section 13.

use std::collections::VecDeque;

use super::{Clean, Cursor, Item, IterStage, Machine, Parent, Stream, Text, replay};
use crate::element::{Element, ElementSpec};
use crate::error::{Error, Result};
use crate::permutation::Permutation;

/// Collects windows of consecutive elements and gives each in another order. A window of `window` elements over all streams is one of
/// `ceil(window / V)` in each.
pub(crate) struct WindowShuffleStage {
    parent: Parent,
    window: u64,
    seed: u64,
}

impl WindowShuffleStage {
    pub(crate) fn new(parent: Parent, window: u64, seed: u64) -> Result<Self> {
        if window == 0 {
            return Err(Error::Options("a window of 0 elements, wanted at least 1".into()));
        }
        Ok(Self { parent, window, seed })
    }
}

impl IterStage for WindowShuffleStage {
    fn spec(&self) -> &ElementSpec {
        self.parent.spec()
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
        let mut machine = WindowMachine {
            parent,
            window: self.window.div_ceil(stream.count),
            seed: self.seed,
            stream,
            number,
            ahead: VecDeque::new(),
            clean: Clean::default(),
        };
        machine.clean.mark(&*machine.parent);
        replay(&mut machine, given)?;
        Ok(Box::new(machine))
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        text.line(format!(
            "window_shuffle window={} seed={}",
            self.window, self.seed
        ));
    }
}

struct WindowMachine {
    parent: Box<dyn Machine>,
    /// Elements of a window of this stream.
    window: u64,
    seed: u64,
    stream: Stream,
    /// Windows before the one that is given.
    number: u64,
    ahead: VecDeque<Element>,
    clean: Clean,
}

impl WindowMachine {
    /// Collects a window.
    fn fill(&mut self) -> Result<()> {
        self.clean.mark(&*self.parent);
        let mut window = Vec::new();
        while (window.len() as u64) < self.window {
            match self.parent.next()? {
                Some(element) => window.push(Some(element)),
                None => break,
            }
        }
        let key = self.stream.position(self.number);
        let permutation = Permutation::windowed(self.seed, key, window.len() as u64);
        self.ahead
            .extend((0..window.len()).filter_map(|at| window[permutation.apply(at as u64) as usize].take()));
        Ok(())
    }
}

impl Machine for WindowMachine {
    fn next(&mut self) -> Item {
        if self.ahead.is_empty() {
            self.fill()?;
        }
        let Some(element) = self.ahead.pop_front() else {
            return Ok(None);
        };
        self.clean.given += 1;
        if self.ahead.is_empty() {
            self.number += 1;
            self.clean.mark(&*self.parent);
        }
        Ok(Some(element))
    }

    fn reach(&self) -> u64 {
        self.parent.reach()
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        self.clean.save(&[self.number], cursor);
    }
}
