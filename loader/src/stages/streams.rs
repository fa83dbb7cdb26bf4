//! From random access to virtual streams: ORDER.md, section 10.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Cursor, ENDLESS, Item, IterStage, Machine, MapStage, Stream, Text};
use crate::element::{Element, ElementSpec};
use crate::error::{Error, Result};
use crate::meter;

/// Elements that a stream reads together at most.
const MAX_CHUNK: u64 = 32;
/// Bytes of the elements that a stream reads together: with the default number of streams, 12 MiB.
const CHUNK_BYTES: u64 = 256 << 10;

/// Deals the positions of a random-access stage to streams: stream `v` of `V` gets those with `p mod V = v`.
pub(crate) struct StreamsStage {
    parent: Arc<dyn MapStage>,
}

impl StreamsStage {
    pub(crate) fn new(parent: Arc<dyn MapStage>) -> Self {
        Self { parent }
    }
}

impl IterStage for StreamsStage {
    fn spec(&self) -> &ElementSpec {
        &self.parent.facts().spec
    }

    fn is_endless(&self) -> bool {
        self.parent.facts().length >= ENDLESS
    }

    fn length(&self, stream: &Stream) -> Option<u64> {
        let facts = self.parent.facts();
        let own = match facts.length {
            ENDLESS.. => ENDLESS,
            length => length.saturating_sub(stream.number).div_ceil(stream.count),
        };
        (!facts.sparse).then_some(own)
    }

    fn at(&self, stream: &Stream, given: u64, cursor: &mut Vec<u64>) -> Option<u64> {
        let facts = self.parent.facts();
        if facts.sparse {
            return None;
        }
        let offset = stream.position(given);
        cursor.push(offset);
        Some(stream.round * facts.length + offset)
    }

    fn open(&self, stream: Stream, cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        let length = self.parent.facts().length;
        let offset = match cursor {
            Some(cursor) => cursor.next()?,
            None => stream.number,
        };
        let start = stream.round.checked_mul(length).filter(|&start| start <= ENDLESS);
        let start =
            start.ok_or_else(|| Error::Options("a source was begun anew beyond position 2^63".into()))?;
        Ok(Box::new(StreamsMachine {
            parent: Arc::clone(&self.parent),
            count: stream.count,
            stop: stream.stop,
            start,
            end: length.min(ENDLESS - start),
            offset,
            ahead: VecDeque::new(),
            chunk: 1,
        }))
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        text.line("to_iter");
    }
}

struct StreamsMachine {
    parent: Arc<dyn MapStage>,
    count: u64,
    stop: Arc<AtomicBool>,
    /// Position of offset 0.
    start: u64,
    /// The offset after the last.
    end: u64,
    /// Offset of the first element that is ahead.
    offset: u64,
    ahead: VecDeque<Item>,
    chunk: u64,
}

impl StreamsMachine {
    fn read(&mut self) -> bool {
        let left = self.end.saturating_sub(self.offset).div_ceil(self.count);
        let positions: Vec<u64> = (0..self.chunk.min(left))
            .map(|number| self.start + self.offset + number * self.count)
            .collect();
        if positions.is_empty() {
            return false;
        }
        let mut items = Vec::with_capacity(positions.len());
        self.parent.get_many(&positions, &mut items);
        let bytes: u64 = items
            .iter()
            .flatten()
            .flatten()
            .map(Element::num_bytes)
            .sum::<u64>()
            / items.len() as u64;
        let fitting = CHUNK_BYTES / bytes.max(1);
        self.chunk = (2 * self.chunk).min(fitting).clamp(1, MAX_CHUNK);
        self.ahead.extend(items);
        true
    }
}

impl Machine for StreamsMachine {
    fn next(&mut self) -> Item {
        loop {
            let Some(item) = self.ahead.pop_front() else {
                // A stage may look for an element without end.
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Error::User("the stream was stopped".into()));
                }
                if self.read() {
                    continue;
                }
                return Ok(None);
            };
            self.offset += self.count;
            match item {
                Ok(None) => {}
                Ok(element) => return Ok(element),
                Err(error) => meter::leave_out(error)?,
            }
        }
    }

    fn reach(&self) -> u64 {
        self.start + self.offset
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        cursor.push(self.offset);
    }
}
