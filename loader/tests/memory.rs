//! Memory while a stream runs for long. A program of its own, since it looks at the memory of its process.

use prep_formats::store::Location;
use prep_loader::{BatchOptions, Dataset, LoadOptions, MapDataset, PipelineOptions};

mod common;

/// Memory that this process has resident, in KiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4
}

/// Runs a stream for long, and then for three times as long: it holds no more.
fn holds_steady(what: &str, mut step: impl FnMut()) {
    let batches = 20_000;
    (0..batches).for_each(|_| step());
    let before = resident();
    (0..3 * batches).for_each(|_| step());
    let more = resident().saturating_sub(before);
    assert!(
        more < 4 << 10,
        "{what}: {more} KiB more after {} batches more",
        3 * batches
    );
}

#[test]
fn b54_memory_stays_where_it_is_over_many_batches() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("many/1.0.0");
    common::linked_shards(&folder, 50, 400);
    let dataset = Dataset::open_tfds(&Location::from_path(&folder), "train").unwrap();
    let mut loader = dataset.load(LoadOptions::new(2).seed(1).num_threads(1)).unwrap();
    holds_steady("loader", || drop(loader.next_batch().unwrap().unwrap()));
    let shuffled = MapDataset::source(dataset)
        .unwrap()
        .shuffle(1)
        .unwrap()
        .repeat(None)
        .unwrap();
    let streamed = shuffled.to_iter_over(4).unwrap().filter("all", |_| Ok(true));
    let batched = streamed
        .window_shuffle(64, 1)
        .unwrap()
        .batch(BatchOptions::new(2))
        .unwrap();
    let mut pipeline = batched.load(PipelineOptions::new().num_threads(1)).unwrap();
    holds_steady("pipeline", || drop(pipeline.next_element().unwrap().unwrap()));
}
