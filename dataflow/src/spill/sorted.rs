//! All records of one worker in order, in memory or on disk, and cursors into them.

use std::sync::Arc;

use bytes::Bytes;

use crate::Error;
use crate::record::{Key, Lying, Order, Record, take_record};
use crate::schedule::SplitTotals;
use crate::spill::arena::Finished;
use crate::spill::run::Unpacker;
use crate::spill::{Arena, Run};

/// Two records with one key: split, key, and the origins, the smaller first. Compares in this order, so that the least is the same
/// however the records were dealt to workers.
pub(crate) type Duplicate = (u32, Key, [u64; 2]);

/// Counts records as they pass in order, and notes the first pair with equal keys or says which of a pair to leave out.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) totals: Vec<SplitTotals>,
    pub(crate) duplicate: Option<Duplicate>,
    previous: Option<(u32, Key, u64)>,
    /// Its payload, where payloads count.
    previous_data: Vec<u8>,
    order: Order,
    keep_first: bool,
    size: fn(&[u8]) -> u64,
}

impl Watch {
    pub(crate) fn new(num_splits: u32, keep_first: bool, order: Order) -> Self {
        Self {
            totals: vec![SplitTotals::default(); num_splits as usize],
            duplicate: None,
            previous: None,
            previous_data: Vec::new(),
            order,
            keep_first,
            size: |data| data.len() as u64,
        }
    }

    /// Counts payloads with as many bytes as this says.
    pub(crate) fn counting(mut self, size: fn(&[u8]) -> u64) -> Self {
        self.size = size;
        self
    }

    /// Whether the record is to be kept.
    pub(crate) fn see(&mut self, record: Lying<'_>) -> bool {
        let Lying {
            split,
            key,
            origin,
            data,
        } = record;
        if let Some((previous_split, previous_key, previous_origin)) = self.previous
            && (previous_split, previous_key) == (split, key)
            && self.order.payloads(&self.previous_data, data).is_eq()
        {
            if self.keep_first {
                return false;
            }
            self.duplicate
                .get_or_insert((split, key, [previous_origin, origin]));
        }
        let totals = &mut self.totals[split as usize];
        totals.records += 1;
        totals.bytes += (self.size)(data);
        self.previous = Some((split, key, origin));
        if self.order.0.is_some() {
            self.previous_data.clear();
            self.previous_data.extend_from_slice(data);
        }
        true
    }
}

#[derive(Debug)]
enum Body {
    Memory(Finished),
    Disk(Run),
}

/// The records of one worker, ordered by split, key and origin.
#[derive(Debug)]
pub(crate) struct SortedRun {
    body: Body,
    pub(crate) totals: Vec<SplitTotals>,
    pub(crate) duplicate: Option<Duplicate>,
    /// Position of each split's first record.
    pub(crate) starts: Vec<u64>,
}

impl SortedRun {
    /// Sorts an arena where it is.
    pub(crate) fn in_memory(mut arena: Arena, mut watch: Watch) -> Self {
        arena.sort(watch.order);
        arena.retain(|record| watch.see(record));
        Self::new(Body::Memory(arena.finish()), watch)
    }

    /// Takes over a run whose records `watch` has seen.
    pub(crate) fn on_disk(run: Run, watch: Watch) -> Self {
        Self::new(Body::Disk(run), watch)
    }

    fn new(body: Body, watch: Watch) -> Self {
        let mut position = 0;
        let starts = watch
            .totals
            .iter()
            .map(|totals| (position, position += totals.records).0)
            .collect();
        Self {
            body,
            totals: watch.totals,
            duplicate: watch.duplicate,
            starts,
        }
    }

    /// Whether the records lie in memory that is already accounted for.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.body, Body::Memory(_))
    }
}

/// Reads on from any position of a sorted run. Holds one block of a run on disk.
#[derive(Debug)]
pub(crate) struct Cursor {
    run: Arc<SortedRun>,
    position: u64,
    block: usize,
    rest: Bytes,
    unpacker: Unpacker,
}

impl Cursor {
    pub(crate) fn new(run: Arc<SortedRun>) -> Self {
        Self {
            run,
            position: 0,
            block: usize::MAX,
            rest: Bytes::new(),
            unpacker: Unpacker::default(),
        }
    }

    /// The record at `position`, which must exist; best asked for in order.
    pub(crate) fn next(&mut self, position: u64) -> Result<Record, Error> {
        if let Body::Disk(_) = self.run.body
            && self.block != usize::MAX
            && self.position == position
            && let Some(record) = take_record(&mut self.rest)
        {
            self.position += 1;
            return Ok(record);
        }
        match self.read(position, 1)?.pop() {
            Some(record) => Ok(record),
            None => unreachable!("`read` gives as many records as it was asked for"),
        }
    }

    /// The `count` records from `position` on, all of which must exist. Going on from where the last call ended reads each block
    /// once; anywhere else starts with finding the block, in O(log blocks).
    pub(crate) fn read(&mut self, position: u64, count: u64) -> Result<Vec<Record>, Error> {
        let run = self.run.clone();
        let run = match &run.body {
            Body::Memory(arena) => {
                return Ok((position..position + count)
                    .map(|position| arena.get(position as usize))
                    .collect());
            }
            Body::Disk(run) => run,
        };
        let mut records = Vec::with_capacity(count.min(1 << 16) as usize);
        if count > 0 && (self.block == usize::MAX || self.position != position) {
            self.block = run.block_at(position);
            self.rest = run.read(self.block, &mut self.unpacker)?;
            for _ in run.first_of(self.block)..position {
                let _ = take_record(&mut self.rest);
            }
            self.position = position;
        }
        while (records.len() as u64) < count {
            match take_record(&mut self.rest) {
                Some(record) => {
                    records.push(record);
                    self.position += 1;
                }
                None => {
                    self.block += 1;
                    self.rest = run.read(self.block, &mut self.unpacker)?;
                }
            }
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::Job;
    use crate::spill::{Folder, RunWriter};
    use crate::{Cancel, Progress};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        /// A cursor reads the same from memory and from disk, from any position, whatever it read before.
        #[test]
        fn cursors_agree(
            lengths in prop::collection::vec(0usize..60, 1..60),
            reads in prop::collection::vec((any::<prop::sample::Index>(), 0u64..20), 1..12),
        ) {
            let home = tempfile::tempdir().unwrap();
            let account = Progress::new().account();
            let folder = Folder { path: home.path().into(), block_bytes: 150, compression: crate::SpillCompression::Always, pace: Default::default(), account: account.clone(), job: Job::new(Cancel::new()) };
            let mut arena = Arena::new(0, &account);
            let mut writer = RunWriter::create(&folder, 0).unwrap();
            let mut watch = Watch::new(3, false, Order::default());
            let records: Vec<Record> = lengths
                .iter()
                .enumerate()
                .map(|(index, length)| Record { split: index as u32 / 20, key: [index as u8 / 2; 16], origin: index as u64, data: vec![index as u8; *length].into() })
                .collect();
            for record in records.iter().rev() {
                arena.push(record);
            }
            for record in &records {
                writer.push(record.lying()).unwrap();
                watch.see(record.lying());
            }
            let memory = SortedRun::in_memory(arena, Watch::new(3, false, Order::default()));
            let disk = SortedRun::on_disk(writer.finish().unwrap(), watch);
            prop_assert_eq!(&memory.totals, &disk.totals);
            prop_assert_eq!(&memory.starts, &disk.starts);
            prop_assert_eq!(memory.duplicate, disk.duplicate);
            prop_assert_eq!(memory.duplicate.is_some(), records.len() > 1);
            let (mut memory, mut disk) = (Cursor::new(memory.into()), Cursor::new(disk.into()));
            for (start, count) in reads {
                let start = start.index(records.len());
                let end = records.len().min(start + count as usize);
                let expected = &records[start..end];
                let count = expected.len() as u64;
                prop_assert_eq!(&memory.read(start as u64, count).unwrap()[..], expected);
                prop_assert_eq!(&disk.read(start as u64, count).unwrap()[..], expected);
            }
        }
    }
}
