//! From random access to virtual streams: ORDER.md, section 10.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::records::{Given, Records};
use super::{Cursor, ENDLESS, Item, IterStage, Machine, MapStage, Stream, Text, check_left_out};
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
            records: None,
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
    /// Records that were read, and the first of them that is ahead, before those of `ahead`.
    records: Option<(Arc<Records>, usize)>,
    chunk: u64,
}

impl StreamsMachine {
    /// Reads elements ahead, as records where `as_records` is set and they are. `false`: the end.
    fn read(&mut self, as_records: bool) -> bool {
        let left = self.end.saturating_sub(self.offset).div_ceil(self.count);
        let positions: Vec<u64> = (0..self.chunk.min(left))
            .map(|number| self.start + self.offset + number * self.count)
            .collect();
        if positions.is_empty() {
            return false;
        }
        // Whoever was given the last record has mostly done with it.
        let used = self.records.take().and_then(|(used, _)| Arc::into_inner(used));
        let records = match as_records {
            true => self.parent.get_records(&positions, used),
            false => None,
        };
        let bytes = match records {
            Some(records) => {
                let bytes = records.bytes_each();
                self.records = Some((Arc::new(records), 0));
                bytes
            }
            None => {
                let mut items = Vec::with_capacity(positions.len());
                self.parent.get_many(&positions, &mut items);
                let bytes: u64 = items.iter().flatten().flatten().map(Element::num_bytes).sum();
                self.ahead.extend(items);
                bytes / positions.len() as u64
            }
        };
        let fitting = CHUNK_BYTES / bytes.max(1);
        self.chunk = (2 * self.chunk).min(fitting).clamp(1, MAX_CHUNK);
        true
    }

    /// The next record that was read.
    fn next_record(&mut self) -> Option<Given> {
        let (records, next) = self.records.as_mut()?;
        let row = *next;
        if row == records.len() {
            return None;
        }
        *next += 1;
        self.offset += self.count;
        Some(Given::Record {
            records: Arc::clone(records),
            row,
        })
    }

    fn give(&mut self, as_records: bool) -> Result<Option<Given>> {
        let mut left_out = 0;
        loop {
            if let Some(record) = self.next_record() {
                return Ok(Some(record));
            }
            let Some(item) = self.ahead.pop_front() else {
                // A stage may look for an element without end.
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Error::User("the stream was stopped".into()));
                }
                if self.read(as_records) {
                    continue;
                }
                return Ok(None);
            };
            self.offset += self.count;
            match item {
                Ok(None) => {
                    left_out += 1;
                    check_left_out(left_out)?;
                }
                Ok(element) => return Ok(element.map(Given::Element)),
                Err(error) => meter::leave_out(error)?,
            }
        }
    }
}

impl Machine for StreamsMachine {
    fn next(&mut self) -> Item {
        self.give(false)?.map(Given::into_element).transpose()
    }

    fn next_given(&mut self) -> Result<Option<Given>> {
        self.give(true)
    }

    fn reach(&self) -> u64 {
        self.start + self.offset
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        cursor.push(self.offset);
    }
}
