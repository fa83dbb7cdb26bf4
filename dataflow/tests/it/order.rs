//! The bytes depend on the records alone.

use prep_dataflow::{Collected, Duplicates, Error, Options, Progress, SortOptions, SplitPlan, origin, run};
use proptest::prelude::*;

use crate::support::{Memory, check, expected, mix, record, write};

#[test]
fn workers_and_memory_do_not_change_a_byte() {
    let (sources, shards, longest) = ([4000, 1, 0, 9000, 2500], [7, 1, 3], 600);
    let expected = expected(&sources, 3, longest);
    for workers in [1, 2, 3, 5] {
        for (memory, runs) in [(256 << 20, 0..1), (6 << 20, 1..40), (0, 1..500)] {
            let (sink, progress) = (Memory::default(), Progress::new());
            let options = Options::default()
                .workers(workers)
                .memory_bytes(memory)
                .progress(progress.clone());
            let written = write(options, &sources, &shards, longest, SortOptions::new(3), &sink).unwrap();
            check(&sink.shards.lock().unwrap(), &expected, &shards);
            assert_eq!(written.len(), 11);
            let sizes: Vec<u64> = sink
                .shards
                .lock()
                .unwrap()
                .values()
                .map(|shard| shard.iter().map(|data| data.len() as u64).sum())
                .collect();
            assert_eq!(
                written.iter().map(|written| written.summary).collect::<Vec<_>>(),
                sizes
            );
            assert!(
                runs.contains(&progress.spilled_runs()),
                "{workers} workers, {memory}: {}",
                progress.spilled_runs()
            );
            assert_eq!(progress.held_bytes(), 0, "all that was held is given back");
            for stage in ["Read", "Make", "Order", "Write"] {
                assert_eq!(progress.stage(stage).unwrap().records, 15501, "{stage}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A job does what sorting everything in memory does: any sources, splits (empty ones too), shards (more than records too), workers
    /// and memory; and what is already complete isn't written, nor moved.
    #[test]
    fn a_job_equals_a_plain_sort(
        sources in prop::collection::vec(0u64..400, 0..5),
        shards in prop::collection::vec(1u32..9, 1..4),
        longest in 0usize..3000,
        workers in 1usize..6,
        memory in prop::sample::select(vec![0usize, 16 << 20]),
        complete in prop::collection::btree_map((0u32..4, 0u32..9), any::<u64>(), 0..6),
    ) {
        let num_splits = shards.len() as u32;
        let expected = expected(&sources, num_splits, longest);
        let progress = Progress::new();
        let options = Options::default().workers(workers).memory_bytes(memory).progress(progress.clone());
        let sink = Memory { complete: complete.clone().into(), ..Memory::default() };
        let written = write(options, &sources, &shards, longest, SortOptions::new(num_splits), &sink).unwrap();
        let found = sink.shards.lock().unwrap();
        let mut of_shards = Vec::new();
        let mut moved = 0;
        for (split, (records, count)) in expected.iter().zip(&shards).enumerate() {
            let plan = SplitPlan::even(records.len() as u64, *count);
            for (index, pair) in plan.boundaries.windows(2).enumerate() {
                let place = (split as u32, index as u32);
                let records = &records[pair[0] as usize..pair[1] as usize];
                let bytes = records.iter().map(|record| record.data.len() as u64).sum::<u64>();
                of_shards.push((place, complete.contains_key(&place), complete.get(&place).copied().unwrap_or(bytes)));
                if complete.contains_key(&place) {
                    prop_assert!(!found.contains_key(&place));
                } else {
                    moved += records.len() as u64;
                    prop_assert!(found[&place].iter().eq(records.iter().map(|record| &record.data)));
                }
            }
        }
        let of_written: Vec<_> =
            written.iter().map(|written| ((written.shard.split, written.shard.index), written.found, written.summary)).collect();
        prop_assert_eq!(of_written, of_shards);
        prop_assert_eq!(progress.stage("Write").unwrap().records, moved);
        prop_assert_eq!(progress.held_bytes(), 0);
    }
}

#[test]
fn no_tasks_no_records_and_few_records_make_all_their_shards() {
    for sources in [&[][..], &[0], &[0, 0, 0], &[1], &[2, 1]] {
        for workers in [1, 2, 4] {
            let sink = Memory::default();
            let written = write(
                Options::default().workers(workers),
                sources,
                &[1, 7],
                10,
                SortOptions::new(2),
                &sink,
            );
            assert_eq!(written.unwrap().len(), 8);
            check(&sink.shards.lock().unwrap(), &expected(sources, 2, 10), &[1, 7]);
        }
    }
}

/// A job whose records have the keys `key(index)`.
fn with_keys(
    options: Options,
    duplicates: Duplicates,
    key: fn(u64) -> u64,
    sink: &Memory,
) -> Result<(), Error> {
    let sink = sink.clone();
    run(options, move |pipeline| {
        pipeline
            .source("Read", vec![0, 1, 2, 3], |task| {
                Ok::<_, Error>((0..500u64).map(move |index| Ok::<_, Error>((task, index))))
            })
            .rebalance()
            .map(move |(task, index)| {
                let number = u64::from(task) * 500 + index;
                let mut record = record(task, index, 1, 0);
                record.key[..8].copy_from_slice(&mix(key(number)).to_be_bytes());
                record.key[8..].fill(0);
                record.data = number.to_be_bytes().repeat(40).into();
                record
            })
            .sort("Order", SortOptions::new(1).duplicates(duplicates))
            .write_shards("Write", crate::support::even(vec![1]), sink.clone())
            .collect(&Collected::new());
    })
    .map(drop)
}

#[test]
fn equal_keys_are_refused_naming_both_origins_whatever_the_workers() {
    // Pairs (17, 903), (18, 1903); the first pair in the order of keys is reported.
    let key = |number| match number {
        903 => 17,
        1903 => 18,
        number => number,
    };
    let first = [17, 18].into_iter().min_by_key(|number| mix(*number)).unwrap();
    let origins = if first == 17 {
        [origin(0, 17), origin(1, 403)]
    } else {
        [origin(0, 18), origin(3, 403)]
    };
    for workers in [1, 2, 4] {
        for memory in [0, 64 << 20] {
            let sink = Memory::default();
            let options = Options::default().workers(workers).memory_bytes(memory);
            match with_keys(options, Duplicates::Refuse, key, &sink) {
                Err(Error::DuplicateKey {
                    split: 0,
                    origins: found,
                    key: found_key,
                    ..
                }) => {
                    assert_eq!(found, origins);
                    assert_eq!(found_key[..8], mix(first).to_be_bytes());
                }
                other => panic!("{other:?}"),
            }
            assert!(sink.shards.lock().unwrap().is_empty(), "no shard was opened");
        }
    }
}

#[test]
fn equal_keys_are_kept_in_the_order_of_origins() {
    let mut numbers: Vec<u64> = (0..2000).collect();
    numbers.sort_by_key(|number| (mix(number / 100), *number));
    for workers in [1, 3] {
        for memory in [0, 64 << 20] {
            let sink = Memory::default();
            let options = Options::default().workers(workers).memory_bytes(memory);
            with_keys(options, Duplicates::Keep, |number| number / 100, &sink).unwrap();
            let shards = sink.shards.lock().unwrap();
            let found: Vec<u64> = shards[&(0, 0)]
                .iter()
                .map(|data| u64::from_be_bytes(data[..8].try_into().unwrap()))
                .collect();
            assert_eq!(found, numbers);
        }
    }
}

#[test]
fn items_of_one_key_meet_on_one_worker() {
    for workers in [1, 2, 5] {
        let place = Collected::new();
        let collected = place.clone();
        run(Options::default().workers(workers), move |pipeline| {
            let worker = pipeline.worker_index() as u64;
            pipeline
                .source("Read", vec![0u64, 1, 2], |task| {
                    Ok::<_, Error>((0..1000).map(move |index| Ok::<_, Error>(task * 7 + index)))
                })
                .flat_map(|number| [number, number])
                .filter(|number| number % 3 != 0)
                .exchange(|number| number % 11)
                .map(move |number| (number % 11, worker))
                .collect(&collected);
        })
        .unwrap();
        let mut items = place.take();
        let expected = (0..3u64)
            .flat_map(|task| (0..1000).map(move |index| task * 7 + index))
            .filter(|n| n % 3 != 0)
            .count();
        assert_eq!(items.len(), 2 * expected);
        items.sort_unstable();
        items.dedup();
        assert_eq!(items.len(), 11, "each key has one worker: {items:?}");
    }
}

#[test]
fn of_equal_keys_the_first_is_kept() {
    let mut first: Vec<u64> = (0..20).map(|key| key * 100).collect();
    first.sort_by_key(|number| mix(number / 100));
    for workers in [1, 3] {
        for memory in [0, 64 << 20] {
            let sink = Memory::default();
            let options = Options::default().workers(workers).memory_bytes(memory);
            with_keys(options, Duplicates::KeepFirst, |number| number / 100, &sink).unwrap();
            let shards = sink.shards.lock().unwrap();
            let found: Vec<u64> = shards[&(0, 0)]
                .iter()
                .map(|data| u64::from_be_bytes(data[..8].try_into().unwrap()))
                .collect();
            assert_eq!(found, first);
        }
    }
}

#[test]
fn what_is_serialised_between_workers_arrives_the_same() {
    let (sources, shards) = ([3000, 10, 2000], [3, 2]);
    let expected = expected(&sources, 2, 500);
    for workers in [2, 3] {
        for memory in [0, 64 << 20] {
            let sink = Memory::default();
            let options = Options::default()
                .workers(workers)
                .memory_bytes(memory)
                .serialise();
            let written = write(options, &sources, &shards, 500, SortOptions::new(2), &sink).unwrap();
            assert_eq!(written.len(), 5);
            check(&sink.shards.lock().unwrap(), &expected, &shards);
        }
    }
}
