//! Records side by side in a few large blocks, and an index that is sorted in their place.

use std::sync::Arc;

use bytes::Bytes;

use crate::progress::{Account, Held};
use crate::record::{Key, Lying, Order, Record, number};

/// One record of an arena, 40 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    key: Key,
    origin: u64,
    split: u32,
    length: u32,
    block: u32,
    offset: u32,
}

impl Entry {
    fn data<'a>(&self, blocks: &'a [Vec<u8>]) -> &'a [u8] {
        let start = self.offset as usize;
        // Empty records at the very end may name a block that was never begun.
        blocks
            .get(self.block as usize)
            .map_or(&[], |block| &block[start..start + self.length as usize])
    }
}

/// Copies records out of the buffers in which they came, so that a few of them don't keep all of these alive.
#[derive(Debug)]
pub(crate) struct Arena {
    block_bytes: usize,
    blocks: Vec<Vec<u8>>,
    current: Vec<u8>,
    entries: Vec<Entry>,
    /// Blocks of an earlier filling, empty: their memory is there and need not be asked for again.
    spare: Vec<Vec<u8>>,
    bytes: usize,
    held: Held,
}

impl Arena {
    /// An arena that is meant to grow to `budget_bytes`, which bounds the size of its blocks.
    pub(crate) fn new(budget_bytes: usize, account: &Arc<Account>) -> Self {
        Self {
            block_bytes: (budget_bytes / 16).clamp(16 << 10, 1 << 20),
            blocks: Vec::new(),
            current: Vec::new(),
            entries: Vec::new(),
            spare: Vec::new(),
            bytes: 0,
            held: account.hold(0),
        }
    }

    /// Empties the arena and keeps its memory, but for blocks that were made for a single long record.
    pub(crate) fn recycle(mut self, account: &Arc<Account>) -> Self {
        self.freeze();
        let Self {
            block_bytes,
            blocks,
            mut spare,
            mut entries,
            ..
        } = self;
        spare.extend(blocks.into_iter().filter(|block| block.capacity() == block_bytes));
        spare.iter_mut().for_each(Vec::clear);
        entries.clear();
        Self {
            block_bytes,
            blocks: Vec::new(),
            current: Vec::new(),
            entries,
            held: account.hold(spare.len() * block_bytes),
            spare,
            bytes: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory taken, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Payload bytes, which is what a run on disk takes at least where it doesn't shrink.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.length)).sum()
    }

    pub(crate) fn push(&mut self, record: &Record) {
        let length = record.data.len();
        self.bytes += size_of::<Entry>();
        self.held.grow(size_of::<Entry>());
        if self.current.capacity() - self.current.len() < length {
            self.freeze();
            let spare = if length <= self.block_bytes {
                self.spare.pop()
            } else {
                None
            };
            self.current = match spare {
                Some(block) => block,
                None => {
                    let block = Vec::with_capacity(self.block_bytes.max(length));
                    self.held.grow(block.capacity());
                    block
                }
            };
            self.bytes += self.current.capacity();
        }
        self.entries.push(Entry {
            split: record.split,
            key: record.key,
            origin: record.origin,
            length: length as u32,
            block: self.blocks.len() as u32,
            offset: self.current.len() as u32,
        });
        self.current.extend_from_slice(&record.data);
    }

    fn freeze(&mut self) {
        if self.current.capacity() > 0 {
            self.blocks.push(std::mem::take(&mut self.current));
        }
    }

    /// Orders the index. No payload moves.
    pub(crate) fn sort(&mut self, order: Order) {
        self.freeze();
        let blocks = &self.blocks;
        let place = |entry: &Entry| (entry.origin, entry.length, entry.block, entry.offset);
        if order.0.is_none() {
            self.entries.sort_unstable_by(|one, other| {
                one.split
                    .cmp(&other.split)
                    .then_with(|| number(&one.key).cmp(&number(&other.key)))
                    .then_with(|| place(one).cmp(&place(other)))
            });
        } else {
            self.entries.sort_unstable_by(|one, other| {
                one.split
                    .cmp(&other.split)
                    .then_with(|| number(&one.key).cmp(&number(&other.key)))
                    .then_with(|| order.payloads(one.data(blocks), other.data(blocks)))
                    .then_with(|| place(one).cmp(&place(other)))
            });
        }
    }

    /// Keeps of the sorted index what `keep` says.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(Lying<'_>) -> bool) {
        let blocks = &self.blocks;
        self.entries.retain(|entry| keep(lying(entry, blocks)));
    }

    /// The record at a position of the sorted index.
    pub(crate) fn get(&self, position: usize) -> Lying<'_> {
        lying(&self.entries[position], &self.blocks)
    }

    /// Ends the filling: the records can be shared from now on.
    pub(crate) fn finish(mut self) -> Finished {
        self.freeze();
        // What was kept for a next filling isn't needed; it stays accounted for, which is on the safe side.
        drop(self.spare);
        Finished {
            blocks: self.blocks.into_iter().map(Bytes::from).collect(),
            entries: self.entries,
            _held: self.held,
        }
    }
}

fn lying<'a>(entry: &Entry, blocks: &'a [Vec<u8>]) -> Lying<'a> {
    Lying {
        split: entry.split,
        key: entry.key,
        origin: entry.origin,
        data: entry.data(blocks),
    }
}

/// A sorted arena whose records are shared.
#[derive(Debug)]
pub(crate) struct Finished {
    blocks: Vec<Bytes>,
    entries: Vec<Entry>,
    _held: Held,
}

impl Finished {
    /// The record at a position; it shares the arena's memory.
    pub(crate) fn get(&self, position: usize) -> Record {
        let entry = &self.entries[position];
        let start = entry.offset as usize;
        let data = match self.blocks.get(entry.block as usize) {
            Some(block) => block.slice(start..start + entry.length as usize),
            None => Bytes::new(),
        };
        Record {
            split: entry.split,
            key: entry.key,
            origin: entry.origin,
            data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;

    #[test]
    fn records_of_every_size_come_back_sorted() {
        for budget in [0, 256 << 20] {
            let progress = Progress::new();
            let mut arena = Arena::new(budget, &progress.account());
            let record = |number: u64| {
                // A few are longer than any block.
                let length = if number % 50 == 7 {
                    (5 << 20) + number
                } else {
                    number * 997 % 30_000
                };
                let key = (u128::from(number) * 7919 % 150).to_be_bytes();
                Record {
                    split: 0,
                    key,
                    origin: number,
                    data: vec![number as u8; length as usize].into(),
                }
            };
            for number in 0..150 {
                arena.push(&record(number));
            }
            assert!(
                progress.held_bytes() as usize == arena.bytes() && arena.bytes() as u64 > arena.data_bytes()
            );
            let held = progress.held_bytes();
            arena.sort(Order::default());
            let mut expected: Vec<Record> = (0..150).map(record).collect();
            expected.sort_by_key(|record| (record.key, record.origin));
            for (position, record) in expected.iter().enumerate() {
                assert!(arena.get(position) == record.lying(), "position {position}");
            }
            // The same again in the same memory, long records aside.
            let mut arena = arena.recycle(&progress.account());
            assert!(arena.is_empty() && arena.bytes() == 0 && progress.held_bytes() < held);
            for number in 0..150 {
                arena.push(&record(number));
            }
            assert!(progress.held_bytes() <= held);
            arena.sort(Order::default());
            assert!(
                expected
                    .iter()
                    .enumerate()
                    .all(|(position, record)| arena.get(position) == record.lying())
            );
            let arena = arena.finish();
            assert!(
                expected
                    .iter()
                    .enumerate()
                    .all(|(position, record)| arena.get(position) == *record)
            );
            drop(arena);
            assert_eq!(progress.held_bytes(), 0);
        }
    }
}
