//! A dataset of 10^9 records in 10^4 shards, all of them links to one file: what is held follows what is read, and any position is reached at once.
//!
//! A program of its own, since it looks at the memory of its process.

use std::fs;

use prep_formats::columns::ColumnData;
use prep_formats::store::Location;
use prep_loader::{Dataset, LoadOptions, State};

mod common;

const SHARDS: u64 = 10_000;
const PER_SHARD: u64 = 100_000;

/// The most memory that this process had resident, in MiB.
fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() / 1024
}

#[test]
fn a_billion_records_are_shuffled_and_sought_within_200_mb() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("many/1.0.0");
    common::linked_shards(&folder, SHARDS, PER_SHARD);
    let open = || {
        Dataset::open_tfds(&Location::from_path(&folder), "train")
            .unwrap()
            .with_max_mapped_bytes(32 << 20)
    };
    let dataset = open();
    assert_eq!(dataset.len(), SHARDS * PER_SHARD);
    let options = || LoadOptions::new(16).seed(3).num_threads(2);
    let mut loader = dataset.load(options()).unwrap();
    let first = loader.next_batch().unwrap().unwrap();
    let half = dataset.len() / 2;
    assert!(first.global_indices().iter().any(|index| *index > half));
    // As if half of epoch seven were done: the state says so, and nothing is read to get there.
    let state = State {
        sample_position: 7 * dataset.len() + half,
        ..loader.state()
    };
    drop(loader);
    let mut loader = open().load(options().restore(state.clone())).unwrap();
    for number in 0..50 {
        let batch = loader.next_batch().unwrap().unwrap();
        assert_eq!(batch.epoch(), 7);
        assert_eq!(batch.step().global.start, state.sample_position + 16 * number);
        let ColumnData::Fixed(data) = &batch.columns[0] else {
            panic!("numbers are fixed")
        };
        for (value, index) in data.chunks_exact(8).zip(batch.global_indices()) {
            assert_eq!(u64::from_le_bytes(value.try_into().unwrap()), index % PER_SHARD);
        }
    }
    let peak = peak_mib();
    assert!(peak < 200, "{peak} MiB");
}
