//! A job that reads numbered records, sorts them and keeps the shards in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use prep_dataflow::{
    BoxError, Collected, Error, Options, Record, Shard, ShardSink, ShardWriter, SortOptions, SplitPlan,
    SplitTotals, Written, origin, run,
};

/// A mix of 64 bits (the finaliser of SplitMix64), for keys that look like hashes.
pub(crate) fn mix(mut number: u64) -> u64 {
    number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Record `index` of source `source`: its split, key and content depend on these alone.
pub(crate) fn record(source: u32, index: u64, num_splits: u32, longest: usize) -> Record {
    let origin = origin(source, index);
    let hash = mix(origin);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&hash.to_be_bytes());
    key[8..].copy_from_slice(&mix(hash).to_be_bytes());
    let length = mix(hash ^ 1) as usize % (longest + 1);
    let data: Vec<u8> = (0..length as u64).map(|i| (hash >> (i % 57)) as u8).collect();
    Record {
        split: (mix(hash ^ 2) % u64::from(num_splits)) as u32,
        key,
        origin,
        data: data.into(),
    }
}

/// All records that `sources` have (their numbers of records), in the order in which a job should write them.
pub(crate) fn expected(sources: &[u64], num_splits: u32, longest: usize) -> Vec<Vec<Record>> {
    let mut splits = vec![Vec::new(); num_splits as usize];
    for (source, records) in sources.iter().enumerate() {
        for index in 0..*records {
            let record = record(source as u32, index, num_splits, longest);
            splits[record.split as usize].push(record);
        }
    }
    for split in &mut splits {
        split.sort_by_key(|record: &Record| (record.key, record.origin));
    }
    splits
}

/// Shards by split and index.
pub(crate) type Shards = BTreeMap<(u32, u32), Vec<Bytes>>;

/// Keeps finished shards in memory.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    pub(crate) shards: Arc<Mutex<Shards>>,
    pub(crate) complete: Arc<BTreeMap<(u32, u32), u64>>,
}

pub(crate) struct MemoryWriter {
    sink: Memory,
    shard: Shard,
    records: Vec<Bytes>,
}

impl ShardSink for Memory {
    type Summary = u64;
    type Writer = MemoryWriter;

    fn open(&self, shard: &Shard) -> Result<MemoryWriter, BoxError> {
        Ok(MemoryWriter {
            sink: self.clone(),
            shard: *shard,
            records: Vec::new(),
        })
    }

    fn complete(&self, shard: &Shard) -> Result<Option<u64>, BoxError> {
        Ok(self.complete.get(&(shard.split, shard.index)).copied())
    }
}

impl ShardWriter for MemoryWriter {
    type Summary = u64;

    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        assert_eq!(record.split, self.shard.split);
        self.records.push(Bytes::copy_from_slice(&record.data));
        Ok(())
    }

    fn finish(self) -> Result<u64, BoxError> {
        assert_eq!(self.records.len() as u64, self.shard.records);
        let bytes = self.records.iter().map(|data| data.len() as u64).sum();
        let old = self
            .sink
            .shards
            .lock()
            .unwrap()
            .insert((self.shard.split, self.shard.index), self.records);
        assert!(old.is_none(), "a shard is written once");
        Ok(bytes)
    }
}

/// Cuts each split into as many shards as it says, evenly.
pub(crate) fn even(shards: Vec<u32>) -> impl Fn(&[SplitTotals]) -> Result<Vec<SplitPlan>, Error> + Clone {
    move |totals| {
        assert_eq!(totals.len(), shards.len());
        Ok(totals
            .iter()
            .zip(&shards)
            .map(|(split, shards)| SplitPlan::even(split.records, *shards))
            .collect())
    }
}

/// Runs the job and gives what was yielded, in order.
pub(crate) fn write(
    options: Options,
    sources: &[u64],
    shards: &[u32],
    longest: usize,
    sort: SortOptions,
    sink: &Memory,
) -> Result<Vec<Written<u64>>, Error> {
    let place = Collected::new();
    let (sources, shards, sink, collected) = (sources.to_vec(), shards.to_vec(), sink.clone(), place.clone());
    run(options, move |pipeline| {
        let num_splits = shards.len() as u32;
        let tasks: Vec<(u32, u64)> = sources
            .iter()
            .copied()
            .enumerate()
            .map(|(i, n)| (i as u32, n))
            .collect();
        pipeline
            .source("Read", tasks, |(source, records)| {
                Ok::<_, Error>((0..records).map(move |index| Ok::<_, Error>((source, index))))
            })
            .rebalance()
            .try_map("Make", move |(source, index)| {
                Ok::<_, Error>(record(source, index, num_splits, longest))
            })
            .sort("Order", sort.clone())
            .write_shards("Write", even(shards.clone()), sink.clone())
            .collect(&collected);
    })?;
    let mut written = place.take();
    written.sort_by_key(|written| written.shard);
    Ok(written)
}

/// Checks that shards hold the expected records, and every shard is there.
pub(crate) fn check(shards: &Shards, expected: &[Vec<Record>], counts: &[u32]) {
    for (split, (records, count)) in expected.iter().zip(counts).enumerate() {
        let mut found = Vec::new();
        for index in 0..*count {
            let shard = &shards[&(split as u32, index)];
            let share = records.len() / *count as usize;
            assert!(
                shard.len() == share || shard.len() == share + 1,
                "shards are even"
            );
            found.extend(shard.iter().cloned());
        }
        assert_eq!(found.len(), records.len());
        for (position, (found, record)) in found.iter().zip(records).enumerate() {
            assert!(*found == record.data, "split {split}, position {position}");
        }
    }
    assert_eq!(shards.len(), counts.iter().sum::<u32>() as usize);
}
