//! Sorted records as a source of their own, long keys, and collections that part and meet.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex};

use prep_dataflow::{
    Collected, Duplicates, Error, Options, Progress, Record, SortOptions, Weigh, origin, run,
};
use proptest::prelude::*;

use crate::support::{Memory, check, even, expected, mix, record};

/// A record whose key is the first 16 bytes of its text, and its payload the whole text.
fn text(number: u64, text: &str) -> Record {
    let mut key = [0; 16];
    let length = text.len().min(16);
    key[..length].copy_from_slice(&text.as_bytes()[..length]);
    Record {
        split: 0,
        key,
        origin: number,
        data: text.as_bytes().to_vec().into(),
    }
}

/// Texts with long common beginnings: their keys are equal, or zeros fill them up.
fn texts(count: u64) -> Vec<String> {
    (0..count)
        .map(|number| {
            let hash = mix(number);
            let common = &"prefix/of/many/paths/that/are/long"[..hash as usize % 34];
            format!("{common}{}", hash % (2 * count))
        })
        .collect()
}

fn sort_texts(
    texts: &[String],
    workers: usize,
    memory: usize,
    options: SortOptions,
) -> Result<(Vec<String>, Progress), Error> {
    let (sink, progress) = (Memory::default(), Progress::new());
    let shards = sink.shards.clone();
    let tasks: Vec<(u64, String)> = (0..).zip(texts.iter().cloned()).collect();
    let tasks: Vec<Vec<(u64, String)>> = tasks
        .chunks(texts.len().div_ceil(7).max(1))
        .map(<[_]>::to_vec)
        .collect();
    let running = Options::default()
        .workers(workers)
        .memory_bytes(memory)
        .progress(progress.clone());
    run(running, move |pipeline| {
        pipeline
            .source("Read", tasks.clone(), |lines| {
                Ok::<_, Error>(lines.into_iter().map(Ok::<_, Error>))
            })
            .map(|(number, line)| text(number, &line))
            .sort("Order", options.clone())
            .write_shards("Write", even(vec![3]), sink.clone())
            .collect(&Collected::new());
    })?;
    let shards = shards.lock().unwrap();
    let lines = shards
        .values()
        .flatten()
        .map(|data| String::from_utf8(data.to_vec()).unwrap());
    Ok((lines.collect(), progress))
}

/// Bug log, B27: string keys of mixed length keep their order at any size.
#[test]
fn long_keys_are_ordered_by_all_their_bytes_few_and_many() {
    for count in [10u64, 200_000] {
        let texts = texts(count);
        let mut expected = texts.clone();
        expected.sort();
        for workers in [1, 3] {
            for memory in [0, 64 << 20] {
                let options = SortOptions::new(1).duplicates(Duplicates::Keep).then_by(Ord::cmp);
                let (found, progress) = sort_texts(&texts, workers, memory, options).unwrap();
                assert_eq!(
                    found, expected,
                    "{count} texts, {workers} workers, {memory} bytes"
                );
                assert!(memory > 0 || count == 10 || progress.spilled_runs() > 1);
            }
        }
    }
}

#[test]
fn equal_keys_with_other_payloads_are_no_duplicates() {
    let texts: Vec<String> = (0..3000)
        .map(|number| format!("sixteen bytes long and then {}", number % 2999))
        .collect();
    let mut expected = texts.clone();
    expected.sort();
    expected.dedup();
    for workers in [1, 2] {
        for memory in [0, 64 << 20] {
            let options = SortOptions::new(1).then_by(Ord::cmp);
            match sort_texts(&texts, workers, memory, options.clone()) {
                Err(Error::DuplicateKey {
                    origins: [0, 2999], ..
                }) => {}
                other => panic!("{:?}", other.map(|(lines, _)| lines.len())),
            }
            let first = options.duplicates(Duplicates::KeepFirst);
            assert_eq!(sort_texts(&texts, workers, memory, first).unwrap().0, expected);
            assert!(matches!(
                sort_texts(&texts, workers, memory, SortOptions::new(1)),
                Err(Error::DuplicateKey { .. })
            ));
        }
    }
}

/// Sorts by `key`, lets what is left in again, and sorts that by origin.
fn twice(options: Options, sources: Vec<u64>, distinct: u64, sink: Memory) -> Result<(), Error> {
    run(options, move |pipeline| {
        pipeline
            .source(
                "Read",
                (0..).zip(sources.clone()).collect(),
                |(source, records)| {
                    Ok::<_, Error>(
                        (0..records).map(move |index| Ok::<_, Error>(record(source, index, 1, 300))),
                    )
                },
            )
            .map(move |mut record| {
                // Some payloads again and again.
                let content = mix(record.origin) % distinct;
                record.key = [0; 16];
                record.key[..8].copy_from_slice(&mix(content).to_be_bytes());
                record
            })
            .sort("Distinct", SortOptions::new(1).duplicates(Duplicates::KeepFirst))
            .records("Again")
            .map(|mut record| {
                record.key = [0; 16];
                record.key[8..].copy_from_slice(&record.origin.to_be_bytes());
                record
            })
            .sort("Back", SortOptions::new(1))
            .write_shards("Write", even(vec![4]), sink.clone())
            .collect(&Collected::new());
    })
    .map(drop)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Two sorts in a row: equal content is left once, in the order of the sources, whatever the workers, memory, and way of moving.
    #[test]
    fn a_sort_may_follow_a_sort(
        sources in prop::collection::vec(0u64..2500, 0..5),
        distinct in 1u64..4000,
        workers in prop::sample::select(vec![1usize, 2, 5]),
        memory in prop::sample::select(vec![0usize, 64 << 20]),
        serialise in any::<bool>(),
    ) {
        let mut first = std::collections::BTreeMap::new();
        for (source, records) in (0..).zip(&sources) {
            for index in 0..*records {
                let origin = origin(source, index);
                first.entry(mix(origin) % distinct).or_insert(origin);
            }
        }
        let mut origins: Vec<u64> = first.into_values().collect();
        origins.sort_unstable();
        let (sink, progress) = (Memory::default(), Progress::new());
        let options = Options::default().workers(workers).memory_bytes(memory).progress(progress.clone());
        let options = if serialise && workers > 1 { options.serialise() } else { options };
        twice(options, sources, distinct, sink.clone()).unwrap();
        let shards = sink.shards.lock().unwrap();
        let found: Vec<_> = shards.values().flatten().cloned().collect();
        let expected: Vec<_> =
            origins.iter().map(|origin| record((origin >> 40) as u32, origin & 0xff_ffff_ffff, 1, 300).data).collect();
        prop_assert!(found == expected, "{} and {} records", found.len(), expected.len());
        prop_assert_eq!(progress.stage("Again").unwrap().records, expected.len() as u64);
        prop_assert_eq!(progress.held_bytes(), 0);
    }
}

#[test]
fn two_sorts_stay_within_the_budget() {
    const BUDGET: usize = 16 << 20;
    for workers in [1, 2] {
        let (sink, progress) = (Memory::default(), Progress::new());
        let options = Options::default()
            .workers(workers)
            .memory_bytes(BUDGET)
            .progress(progress.clone());
        twice(options, vec![60_000, 90_000, 70_000], u64::MAX, sink.clone()).unwrap();
        assert_eq!(
            sink.shards.lock().unwrap().values().map(Vec::len).sum::<usize>(),
            220_000
        );
        assert!(progress.stage("Write").unwrap().bytes > 3 * BUDGET as u64 / 2);
        assert!(progress.spilled_runs() > 4);
        let peak = progress.peak_held_bytes();
        assert!(
            peak <= BUDGET as u64,
            "{workers} workers held {peak} of {BUDGET} bytes"
        );
    }
}

#[test]
fn replayed_records_are_in_order_on_each_worker_and_equal_keys_are_still_refused() {
    for workers in [1, 2, 5] {
        for (equal, memory) in [(false, 0), (false, 64 << 20), (true, 0), (true, 64 << 20)] {
            let seen: Arc<Mutex<Vec<Vec<Record>>>> = Arc::new(Mutex::new(vec![Vec::new(); workers]));
            let mine = seen.clone();
            let result = run(
                Options::default().workers(workers).memory_bytes(memory),
                move |pipeline| {
                    let (worker, seen) = (pipeline.worker_index(), mine.clone());
                    pipeline
                        .source("Read", vec![0, 1, 2], move |source| {
                            let same = if equal && source == 1 { 17 } else { u64::MAX };
                            Ok::<_, Error>((0..2000).map(move |index| {
                                let mut made = record(source, index, 2, 300);
                                if index == same {
                                    (made.key, made.split) =
                                        (record(0, 3, 2, 0).key, record(0, 3, 2, 0).split);
                                }
                                Ok::<_, Error>(made)
                            }))
                        })
                        .sort("Order", SortOptions::new(2))
                        .records("Again")
                        .inspect(move |record| seen.lock().unwrap()[worker].push(record.clone()))
                        .discard();
                },
            );
            if equal {
                match result {
                    Err(Error::DuplicateKey { origins, .. }) => {
                        assert_eq!(origins, [origin(0, 3), origin(1, 17)])
                    }
                    other => panic!("{other:?}"),
                }
                continue;
            }
            result.unwrap();
            let seen = seen.lock().unwrap();
            for split in 0..2 {
                let all: Vec<&Record> = seen
                    .iter()
                    .flatten()
                    .filter(|record| record.split == split)
                    .collect();
                let expected = &expected(&[2000, 2000, 2000], 2, 300)[split as usize];
                assert!(all.into_iter().eq(expected), "workers hold rising ranges");
            }
            assert!(
                seen.iter()
                    .all(|records| records.is_sorted_by_key(|record| (record.split, record.key)))
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Parts, copies and their union are what the same steps make of a list.
    #[test]
    fn collections_part_and_meet(
        tasks in prop::collection::vec(0u64..3000, 0..6),
        workers in prop::sample::select(vec![1usize, 2, 5]),
        serialise in any::<bool>(),
    ) {
        let options = Options::default().workers(workers).memory_bytes(0);
        let options = if serialise && workers > 1 { options.serialise() } else { options };
        let (place, more) = (Collected::new(), tasks.clone());
        let collected = place.clone();
        run(options, move |pipeline| {
            let read = |name: &str, add: u64| {
                pipeline.source(name, more.clone(), move |count| Ok::<_, Error>((0..count).map(move |index| Ok::<_, Error>(index + add))))
            };
            let [even, odd, third] = read("One", 0).rebalance().partition("Deal", |number| match number {
                number if number % 3 == 0 => 2,
                number => *number as usize % 2,
            });
            let (odd, again) = odd.tee();
            let again = again.map(|number| number + 1_000_000);
            let third = third.filter(|number| number % 2 == 0).flat_map(|number| [number; 2]);
            pipeline.flatten([even.rebalance(), odd, again, third, read("Two", 2_000_000)]).collect(&collected);
        })
        .unwrap();
        let mut expected = Vec::new();
        for number in tasks.iter().flat_map(|count| 0..*count) {
            expected.push(number + 2_000_000);
            match (number % 3, number % 2) {
                (0, 0) => expected.extend([number; 2]),
                (0, _) => {}
                (_, 0) => expected.push(number),
                _ => expected.extend([number, number + 1_000_000]),
            }
        }
        let mut found = place.take();
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn what_cannot_run_at_once_is_refused() {
    let error = run(Options::default().workers(2), |pipeline| {
        let (one, other) = pipeline
            .source("Read", vec![0, 1], |source| {
                Ok::<_, Error>((0..20_000).map(move |index| Ok::<_, Error>(record(source, index, 1, 300))))
            })
            .tee();
        let sorted = one.sort("Order", SortOptions::new(1)).records("Again");
        pipeline.flatten([sorted, other]).discard();
    })
    .unwrap_err();
    assert_eq!(error.to_string(), "stage `Flatten` failed");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("can't run at once"), "{cause}");

    // Two sorted branches may meet.
    let sink = Memory::default();
    let shards = sink.shards.clone();
    run(Options::default().workers(2).memory_bytes(0), move |pipeline| {
        let (one, other) = pipeline
            .source("Read", vec![0, 1], |source| {
                Ok::<_, Error>((0..5000).map(move |index| Ok::<_, Error>(record(source, index, 1, 300))))
            })
            .tee();
        let one = one.sort("One", SortOptions::new(1)).records("One again");
        let other = other.sort("Other", SortOptions::new(1)).records("Other again");
        pipeline
            .flatten([one, other])
            .sort(
                "All",
                SortOptions::new(1)
                    .duplicates(Duplicates::KeepFirst)
                    .then_by(|_, _| Ordering::Equal),
            )
            .write_shards("Write", even(vec![2]), sink.clone())
            .collect(&Collected::new());
    })
    .unwrap();
    check(&shards.lock().unwrap(), &expected(&[5000, 5000], 1, 300), &[2]);
}

#[test]
fn a_part_that_is_not_there_is_an_error() {
    let error = run(Options::default(), |pipeline| {
        let [one, other] = pipeline
            .source("Read", vec![()], |()| {
                Ok::<_, Error>((0..10u64).map(Ok::<_, Error>))
            })
            .partition("Deal", |number| *number as usize / 3);
        one.discard();
        other.discard();
    })
    .unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "part 2 was chosen, and there are parts 0 to 1");
    assert_eq!(7u64.weigh(), 8);
}
