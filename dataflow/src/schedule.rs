//! Who writes which shard, and who sends what to it when.
//!
//! After a sort, worker `k` holds one contiguous range of positions of each split. Shards are cut from positions, and dealt to workers in
//! contiguous blocks, so a shard's *segments* come from a few neighbouring workers, one after the other. Each writer's segments, in the order
//! in which it writes them, are cut into batches that are numbered 0, 1, 2, ..: batch `e` travels in epoch `e`. Each worker sends
//! its batches in the order of their epochs, whoever they are for, and no batch leaves while one that is 8 epochs older hasn't been
//! written. Hence
//!
//! * a writer holds at most 8 batches that it can't write yet, each about [`Shares::replay_bytes`] long,
//! * and the oldest batch that isn't written can always be sent: its sender has nothing older to send before, and its writer has
//!   written all that comes before. So there is no deadlock, with any numbers of shards, workers, and records.
//!
//! The schedule costs one segment (56 bytes) for each shard and each border between workers, whatever the number of records.
//!
//! [`Shares::replay_bytes`]: crate::options::Shares

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use crate::record::RECORD_OVERHEAD_BYTES;

/// How much a split holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitTotals {
    /// Records.
    pub records: u64,
    /// Bytes of their payloads, as [`SortOptions::size`](crate::SortOptions::size) counts them.
    pub bytes: u64,
}

/// Where a split is cut into shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitPlan {
    /// Shard `s` takes positions `boundaries[s]..boundaries[s + 1]`: rising from 0 to the number of records. At least two numbers,
    /// or none where the split has no shards (and no records).
    pub boundaries: Vec<u64>,
}

impl SplitPlan {
    /// Cuts `records` into `num_shards` that differ by at most one record.
    pub fn even(records: u64, num_shards: u32) -> Self {
        let cut = |shard| (u128::from(records) * u128::from(shard) / u128::from(num_shards.max(1))) as u64;
        Self {
            boundaries: (0..=num_shards.max(1)).map(cut).collect(),
        }
    }

    /// Says what is wrong with the plan for a split of `records`.
    pub(crate) fn check(&self, records: u64) -> Result<(), String> {
        match self.boundaries[..] {
            [] if records == 0 => return Ok(()),
            [] => return Err(format!("it has no shards, but the split has {records} records")),
            [_] => return Err("it has one boundary, and a shard needs two".into()),
            [first, .., last] if first != 0 || last != records => {
                return Err(format!(
                    "it goes from {first} to {last}, and the split from 0 to {records}"
                ));
            }
            _ => {}
        }
        match self.boundaries.windows(2).find(|pair| pair[0] > pair[1]) {
            Some(pair) => Err(format!("boundary {} is followed by {}", pair[0], pair[1])),
            None => Ok(()),
        }
    }
}

/// A shard that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard {
    /// Ordinal of the split.
    pub split: u32,
    /// The shard in its split, from 0.
    pub index: u32,
    /// Shards of the split.
    pub num_shards: u32,
    /// Position in the split of the first record.
    pub start: u64,
    /// Records that the shard takes.
    pub records: u64,
}

/// All shards of a plan, by split and index.
pub(crate) fn shards(boundaries: &[Vec<u64>]) -> Vec<Shard> {
    let mut shards = Vec::new();
    for (split, boundaries) in boundaries.iter().enumerate() {
        let num_shards = boundaries.len().saturating_sub(1) as u32;
        for (index, pair) in boundaries.windows(2).enumerate() {
            let (start, records) = (pair[0], pair[1] - pair[0]);
            shards.push(Shard {
                split: split as u32,
                index: index as u32,
                num_shards,
                start,
                records,
            });
        }
    }
    shards
}

/// What worker 0 decides and tells all workers, from which each works out the same schedule.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Decision {
    /// What each worker holds of each split.
    pub(crate) totals: Vec<Vec<SplitTotals>>,
    /// The plan of each split.
    pub(crate) boundaries: Vec<Vec<u64>>,
    /// Which shards need not be written.
    pub(crate) complete: Vec<bool>,
}

/// Consecutive records that one worker sends to one writer for one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The worker that writes them.
    pub(crate) writer: usize,
    /// Index of the shard over all splits.
    pub(crate) shard: usize,
    pub(crate) split: u32,
    /// Position among the sender's records of the split.
    pub(crate) start: u64,
    pub(crate) records: u64,
    /// Records in each batch but the last.
    pub(crate) batch_records: u64,
    /// Epoch of the first batch.
    pub(crate) epoch: u64,
}

/// One worker's part of the schedule.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// What it sends, by writer, each in the order of epochs.
    pub(crate) sends: Vec<Vec<Segment>>,
    /// The shards that it writes, in order, with their index over all splits.
    pub(crate) writes: Vec<(usize, Shard)>,
}

impl Schedule {
    pub(crate) fn new(decision: &Decision, worker: usize, batch_bytes: usize) -> Self {
        let num_workers = decision.totals.len();
        let shards = shards(&decision.boundaries);
        let writers = deal(decision, &shards, num_workers);
        let mut schedule = Self {
            sends: vec![Vec::new(); num_workers],
            writes: Vec::new(),
        };
        let mut epochs = vec![0; num_workers];
        for ((index, shard), writer) in shards.iter().enumerate().zip(writers) {
            if decision.complete[index] {
                continue;
            }
            if writer == worker {
                schedule.writes.push((index, *shard));
            }
            // The first position that the next worker holds.
            let mut held = 0;
            for (sender, totals) in decision.totals.iter().enumerate() {
                let SplitTotals { records, bytes } = totals[shard.split as usize];
                let start = shard.start.max(held);
                let end = (shard.start + shard.records).min(held + records);
                if start < end {
                    let record_bytes = bytes / records + RECORD_OVERHEAD_BYTES as u64;
                    let batch_records = (batch_bytes as u64 / record_bytes).max(1);
                    if sender == worker {
                        schedule.sends[writer].push(Segment {
                            writer,
                            shard: index,
                            split: shard.split,
                            start: start - held,
                            records: end - start,
                            batch_records,
                            epoch: epochs[writer],
                        });
                    }
                    epochs[writer] += (end - start).div_ceil(batch_records);
                }
                held += records;
            }
        }
        schedule
    }

    /// The batches that this worker sends, in the order of their epochs.
    pub(crate) fn batches(&self) -> Batches<'_> {
        let mut batches = Batches {
            sends: &self.sends,
            next: BinaryHeap::new(),
        };
        for (writer, segments) in self.sends.iter().enumerate() {
            if let Some(first) = segments.first() {
                batches.next.push(Reverse((first.epoch, writer, 0, 0)));
            }
        }
        batches
    }
}

/// Deals shards to writers in contiguous blocks of about equal work.
fn deal(decision: &Decision, shards: &[Shard], num_workers: usize) -> Vec<usize> {
    let num_splits = decision.boundaries.len();
    let mean = |split: usize| {
        let (records, bytes) = decision
            .totals
            .iter()
            .map(|totals| totals[split])
            .fold((0, 0), |sum: (u64, u64), totals| {
                (sum.0 + totals.records, sum.1 + totals.bytes)
            });
        bytes.checked_div(records).unwrap_or(0) + RECORD_OVERHEAD_BYTES as u64
    };
    let means: Vec<u64> = (0..num_splits).map(mean).collect();
    let weights: Vec<u128> = shards
        .iter()
        .zip(&decision.complete)
        // Opening and finishing a file is worth something too.
        .map(|(shard, complete)| {
            if *complete {
                0
            } else {
                4096 + u128::from(shard.records) * u128::from(means[shard.split as usize])
            }
        })
        .collect();
    let total = weights.iter().sum::<u128>().max(1);
    let mut before = 0;
    weights
        .into_iter()
        .map(|weight| {
            // The worker in whose equal share of all work the middle of the shard falls.
            let middle = before + weight / 2;
            before += weight;
            ((middle * num_workers as u128 / total) as usize).min(num_workers - 1)
        })
        .collect()
}

/// Iterates over a worker's batches.
pub(crate) struct Batches<'a> {
    sends: &'a [Vec<Segment>],
    /// Epoch, writer, segment of the writer, records of the segment that are already sent.
    next: BinaryHeap<Reverse<(u64, usize, usize, u64)>>,
}

/// Records of a segment that travel together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Send<'a> {
    pub(crate) epoch: u64,
    pub(crate) segment: &'a Segment,
    /// Position among the sender's records of the split.
    pub(crate) start: u64,
    pub(crate) records: u64,
}

impl Batches<'_> {
    /// Epoch of the batch that `next` will give.
    pub(crate) fn next_epoch(&self) -> Option<u64> {
        self.next.peek().map(|Reverse((epoch, ..))| *epoch)
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Send<'a>;

    fn next(&mut self) -> Option<Send<'a>> {
        let Reverse((epoch, writer, index, sent)) = self.next.pop()?;
        let segment = &self.sends[writer][index];
        let records = segment.batch_records.min(segment.records - sent);
        if sent + records < segment.records {
            self.next
                .push(Reverse((epoch + 1, writer, index, sent + records)));
        } else if let Some(following) = self.sends[writer].get(index + 1) {
            self.next.push(Reverse((following.epoch, writer, index + 1, 0)));
        }
        Some(Send {
            epoch,
            segment,
            start: segment.start + sent,
            records,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn decision() -> impl Strategy<Value = Decision> {
        (1usize..5, 1usize..4)
            .prop_flat_map(|(workers, splits)| {
                let totals =
                    prop::collection::vec(prop::collection::vec((0u64..60, 0u64..300), splits), workers);
                let cuts =
                    prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..9), splits);
                (totals, cuts, prop::collection::vec(prop::bool::weighted(0.2), 60))
            })
            .prop_map(|(totals, cuts, complete)| {
                let totals: Vec<Vec<SplitTotals>> = totals
                    .into_iter()
                    .map(|splits| {
                        splits
                            .into_iter()
                            .map(|(records, size)| SplitTotals {
                                records,
                                bytes: records * size,
                            })
                            .collect()
                    })
                    .collect();
                let boundaries: Vec<Vec<u64>> = cuts
                    .into_iter()
                    .enumerate()
                    .map(|(split, cuts)| {
                        let records: u64 = totals.iter().map(|splits| splits[split].records).sum();
                        let mut cuts: Vec<u64> = cuts
                            .into_iter()
                            .map(|cut| cut.index(records as usize + 1) as u64)
                            .collect();
                        cuts.extend([0, records]);
                        cuts.sort_unstable();
                        cuts
                    })
                    .collect();
                let complete = complete[..shards(&boundaries).len()].to_vec();
                Decision {
                    totals,
                    boundaries,
                    complete,
                }
            })
    }

    proptest! {
        /// Every record reaches its shard's writer once, in order, in epochs without gaps, and senders keep the order of epochs.
        #[test]
        fn a_schedule_covers_every_record_in_order(decision in decision(), batch_bytes in 1usize..2000) {
            let num_workers = decision.totals.len();
            let schedules: Vec<Schedule> = (0..num_workers).map(|worker| Schedule::new(&decision, worker, batch_bytes)).collect();
            let mut arrived: Vec<BTreeMap<u64, (usize, u64, u64)>> = vec![BTreeMap::new(); num_workers];
            for (sender, schedule) in schedules.iter().enumerate() {
                let mut batches = schedule.batches();
                let mut last = 0;
                while let Some(expected) = batches.next_epoch() {
                    let batch = batches.next().unwrap();
                    prop_assert_eq!(batch.epoch, expected);
                    prop_assert!(batch.epoch >= last && batch.records > 0);
                    last = batch.epoch;
                    let before: u64 = decision.totals[..sender].iter().map(|splits| splits[batch.segment.split as usize].records).sum();
                    let clash = arrived[batch.segment.writer].insert(batch.epoch, (batch.segment.shard, before + batch.start, batch.records));
                    prop_assert_eq!(clash, None, "two batches of one epoch for one writer");
                }
            }
            let all = shards(&decision.boundaries);
            let mut written = Vec::new();
            for (schedule, arrived) in schedules.iter().zip(&arrived) {
                prop_assert!(arrived.keys().copied().eq(0..arrived.len() as u64), "epochs have gaps");
                let mut batches = arrived.values();
                for (index, shard) in &schedule.writes {
                    written.push(*index);
                    let mut position = shard.start;
                    while position < shard.start + shard.records {
                        let (of, start, records) = *batches.next().unwrap();
                        prop_assert_eq!((of, start), (*index, position));
                        position += records;
                    }
                    prop_assert_eq!(position, shard.start + shard.records);
                }
                prop_assert_eq!(batches.next(), None);
            }
            let expected: Vec<usize> = (0..all.len()).filter(|index| !decision.complete[*index]).collect();
            prop_assert_eq!(written, expected, "writers own contiguous blocks of shards");
        }
    }

    #[test]
    fn plans_that_do_not_fit_say_why() {
        let check = |boundaries: &[u64], records| {
            SplitPlan {
                boundaries: boundaries.to_vec(),
            }
            .check(records)
        };
        assert_eq!(check(&[], 0), Ok(()));
        assert_eq!(check(&[0, 0, 3, 3, 7], 7), Ok(()));
        assert!(check(&[], 1).unwrap_err().contains("no shards"));
        assert!(check(&[0], 0).unwrap_err().contains("one boundary"));
        assert!(check(&[0, 6], 7).unwrap_err().contains("from 0 to 6"));
        assert!(check(&[1, 7], 7).unwrap_err().contains("from 1 to 7"));
        assert!(
            check(&[0, 5, 4, 7], 7)
                .unwrap_err()
                .contains("5 is followed by 4")
        );
        assert_eq!(SplitPlan::even(7, 3).boundaries, [0, 2, 4, 7]);
        assert_eq!(SplitPlan::even(0, 2).boundaries, [0, 0, 0]);
    }
}
