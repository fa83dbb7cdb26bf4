//! Records side by side in a few large blocks, and an index that is sorted in their place.

use std::sync::Arc;

use bytes::Bytes;

use crate::progress::{Account, Held};
use crate::record::{Key, Order, Record};

/// One record of an arena, 40 bytes. Compares as records are ordered: by split, key, origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) split: u32,
    pub(crate) key: Key,
    pub(crate) origin: u64,
    pub(crate) length: u32,
    block: u32,
    offset: u32,
}

impl Entry {
    fn data<'a>(&self, blocks: &'a [Bytes]) -> &'a [u8] {
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
    blocks: Vec<Bytes>,
    current: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
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
            bytes: 0,
            held: account.hold(0),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Memory taken, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Payload bytes, which is what a run on disk takes at least.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.length)).sum()
    }

    pub(crate) fn push(&mut self, record: &Record) {
        let length = record.data.len();
        let mut grown = size_of::<Entry>();
        if self.current.capacity() - self.current.len() < length {
            self.freeze();
            self.current = Vec::with_capacity(self.block_bytes.max(length));
            grown += self.current.capacity();
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
        self.bytes += grown;
        self.held.grow(grown);
    }

    fn freeze(&mut self) {
        if self.current.capacity() > 0 {
            self.blocks.push(std::mem::take(&mut self.current).into());
        }
    }

    /// Orders the index. No payload moves.
    pub(crate) fn sort(&mut self, order: Order) {
        self.freeze();
        if order.0.is_none() {
            self.entries.sort_unstable();
            return;
        }
        let blocks = &self.blocks;
        self.entries.sort_unstable_by(|one, other| {
            (one.split, one.key)
                .cmp(&(other.split, other.key))
                .then_with(|| order.payloads(one.data(blocks), other.data(blocks)))
                .then_with(|| one.cmp(other))
        });
    }

    /// Keeps of the sorted index what `keep` says.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Entry, &[u8]) -> bool) {
        let blocks = &self.blocks;
        self.entries.retain(|entry| keep(entry, entry.data(blocks)));
    }

    /// The record at a position of the sorted index; it shares the arena's memory.
    pub(crate) fn get(&self, position: usize) -> Record {
        let entry = &self.entries[position];
        let start = entry.offset as usize;
        // Empty records at the very end may name a block that was never begun.
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
            arena.sort(Order::default());
            let mut expected: Vec<Record> = (0..150).map(record).collect();
            expected.sort_by_key(|record| (record.key, record.origin));
            for (position, record) in expected.iter().enumerate() {
                assert!(arena.get(position) == *record, "position {position}");
            }
        }
    }
}
