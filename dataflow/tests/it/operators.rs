//! Each operator does what the same step does to a list, whatever the workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prep_dataflow::{
    BoxError, Collected, Duplicates, Error, Failure, IoOptions, Options, Pipeline, Progress, Report,
    SortOptions, origin, run, working_on,
};
use proptest::prelude::*;

use crate::support::{Memory, even, mix, record};

/// Ways to run a job that must not change what it yields.
fn ways() -> impl Strategy<Value = Options> {
    (prop::sample::select(vec![1usize, 2, 5]), any::<bool>()).prop_map(|(workers, serialise)| {
        let options = Options::default().workers(workers).memory_bytes(8 << 20);
        if serialise && workers > 1 {
            options.serialise()
        } else {
            options
        }
    })
}

/// The numbers of each task, hashed so that some come up again.
fn numbers(tasks: &[u64], distinct: u64) -> Vec<u64> {
    tasks
        .iter()
        .enumerate()
        .flat_map(|(task, count)| (0..*count).map(move |index| number(task as u64, index, distinct)))
        .collect()
}

fn number(task: u64, index: u64, distinct: u64) -> u64 {
    mix(task << 32 | index) % distinct
}

fn read<'scope>(
    pipeline: &Pipeline<'scope>,
    name: &str,
    tasks: &[u64],
    distinct: u64,
) -> prep_dataflow::Collection<'scope, u64> {
    let tasks: Vec<(u64, u64)> = (0..).zip(tasks.iter().copied()).collect();
    pipeline
        .source(name, tasks, move |(task, count)| {
            Ok::<_, Error>((0..count).map(move |index| Ok::<_, Error>(number(task, index, distinct))))
        })
        .rebalance()
}

fn sorted<T: Ord>(place: &Collected<T>) -> Vec<T> {
    let mut items = place.take();
    items.sort_unstable();
    items
}

fn root(error: &Error) -> String {
    std::error::Error::source(error)
        .expect("there is a cause")
        .to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn small_keyed_data_are_counted_combined_and_grouped(
        tasks in prop::collection::vec(0u64..4000, 0..5), distinct in 1u64..600, options in ways(),
    ) {
        let (counts, sums, groups) = (Collected::new(), Collected::new(), Collected::new());
        let places = (counts.clone(), sums.clone(), groups.clone());
        let more = tasks.clone();
        let progress = Progress::new();
        run(options.progress(progress.clone()), move |pipeline| {
            let (one, other) = read(pipeline, "Read", &more, distinct).tee();
            let (other, third) = other.tee();
            one.count("Count").collect(&places.0);
            other
                .map(|number| (format!("key {}", number % 17), (number, 1u64)))
                .combine_small("Combine", |to, from| *to = (to.0.max(from.0), to.1 + from.1))
                .collect(&places.1);
            third.map(|number| (number % 17, number)).group_small("Group").collect(&places.2);
        })
        .unwrap();
        let (mut all, mut keyed, mut grouped) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for number in numbers(&tasks, distinct) {
            *all.entry(number).or_insert(0u64) += 1;
            let sum = keyed.entry(format!("key {}", number % 17)).or_insert((0, 0));
            *sum = (number.max(sum.0), sum.1 + 1);
            grouped.entry(number % 17).or_insert_with(Vec::new).push(number);
        }
        grouped.values_mut().for_each(|values| values.sort_unstable());
        prop_assert_eq!(sorted(&counts), all.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(sorted(&sums), keyed.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(sorted(&groups), grouped.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(progress.held_bytes(), 0);
    }

    /// What is counted of one source is looked up for each item of another.
    #[test]
    fn every_worker_has_all_of_a_small_collection(
        small in prop::collection::vec(0u64..1500, 0..4), tasks in prop::collection::vec(0u64..3000, 0..4), options in ways(),
    ) {
        let place = Collected::new();
        let (collected, sides, mains) = (place.clone(), small.clone(), tasks.clone());
        run(options, move |pipeline| {
            let counts = read(pipeline, "Small", &sides, 100).count("Count").broadcast_small("All");
            read(pipeline, "Read", &mains, 200)
                .with_small("Look up", &counts, |number, counts| {
                    let found = counts.binary_search_by_key(&number, |(number, _)| *number);
                    Ok::<_, Error>(found.ok().map(|index| (number, counts[index].1)))
                })
                .collect(&collected);
        })
        .unwrap();
        let mut counts = BTreeMap::new();
        numbers(&small, 100).into_iter().for_each(|number| *counts.entry(number).or_insert(0u64) += 1);
        let mut expected: Vec<(u64, u64)> =
            numbers(&tasks, 200).into_iter().filter_map(|number| Some((number, *counts.get(&number)?))).collect();
        expected.sort_unstable();
        prop_assert_eq!(sorted(&place), expected);
    }

    /// Results of work that waits come in order where that is asked for, and every item once in any case; transient errors are counted.
    #[test]
    fn work_that_waits_loses_nothing(
        tasks in prop::collection::vec(0u64..600, 0..4), threads in 1usize..7, ordered in any::<bool>(), options in ways(),
    ) {
        let (place, more) = (Collected::new(), tasks.clone());
        let seen: Arc<Mutex<BTreeMap<usize, Vec<u64>>>> = Arc::default();
        let (collected, orders) = (place.clone(), seen.clone());
        let io = IoOptions::default().threads(threads).ordered(ordered).wait(Duration::ZERO, Duration::ZERO);
        let failed = Arc::new(Mutex::new(BTreeSet::new()));
        let Report { counters, progress, .. } = run(options, move |pipeline| {
            let (worker, before, after) = (pipeline.worker_index(), orders.clone(), orders.clone());
            let (asked, failed) = (pipeline.counter("asked"), failed.clone());
            read(pipeline, "Read", &more, u64::MAX)
                .inspect(move |number| before.lock().unwrap().entry(2 * worker).or_default().push(*number))
                .io_map("Ask", io.clone(), move |number| {
                    asked.increment();
                    if number % 10 == 3 && failed.lock().unwrap().insert(*number) {
                        return Err(Failure::transient("busy"));
                    }
                    Ok(number.wrapping_add(1))
                })
                .inspect(move |number| after.lock().unwrap().entry(2 * worker + 1).or_default().push(number.wrapping_sub(1)))
                .collect(&collected);
        })
        .unwrap();
        let mut expected = numbers(&tasks, u64::MAX);
        let again = expected.iter().filter(|number| *number % 10 == 3).count() as u64;
        prop_assert_eq!(counters["Ask: retries"], again);
        prop_assert_eq!(counters["asked"], expected.len() as u64 + again);
        expected.iter_mut().for_each(|number| *number = number.wrapping_add(1));
        expected.sort_unstable();
        prop_assert_eq!(sorted(&place), expected);
        if ordered {
            let seen = seen.lock().unwrap();
            for (place, numbers) in seen.iter().filter(|(place, _)| *place % 2 == 0) {
                prop_assert_eq!(Some(numbers), seen.get(&(place + 1)));
            }
        }
        prop_assert_eq!(progress.held_bytes(), 0);
    }

    /// Groups of any size come whole, each once, in order, also where a closure doesn't look at all of them.
    #[test]
    fn large_groups_come_one_at_a_time(
        sources in prop::collection::vec(0u64..2500, 0..4), distinct in 1u64..300, memory in prop::sample::select(vec![0usize, 64 << 20]),
        options in ways(),
    ) {
        let (place, more) = (Collected::new(), sources.clone());
        let collected = place.clone();
        let progress = Progress::new();
        run(options.memory_bytes(memory).progress(progress.clone()), move |pipeline| {
            pipeline
                .source("Read", (0..).zip(more.clone()).collect(), move |(source, count)| {
                    Ok::<_, Error>((0..count).map(move |index| Ok::<_, Error>(record(source, index, 2, 200))))
                })
                .map(move |mut record| {
                    record.key = [0; 16];
                    record.key[..8].copy_from_slice(&mix(mix(record.origin) % distinct).to_be_bytes());
                    record
                })
                .sort("Order", SortOptions::new(2).duplicates(Duplicates::Keep))
                .group_sorted("Group", |group| {
                    let first = group.first().clone();
                    let most = if first.key[0] % 2 == 0 { 3 } else { usize::MAX };
                    let origins: Vec<u64> = group.take(most).map(|record| record.origin).collect();
                    Ok::<_, Error>([(first.split, first.key, origins)])
                })
                .collect(&collected);
        })
        .unwrap();
        let mut expected = BTreeMap::new();
        for (source, count) in (0..).zip(&sources) {
            for index in 0..*count {
                let made = record(source, index, 2, 200);
                let mut key = [0; 16];
                key[..8].copy_from_slice(&mix(mix(made.origin) % distinct).to_be_bytes());
                expected.entry((made.split, key)).or_insert_with(Vec::new).push(made.origin);
            }
        }
        let expected: Vec<_> = expected
            .into_iter()
            .map(|((split, key), mut origins)| {
                origins.sort_unstable();
                origins.truncate(if key[0] % 2 == 0 { 3 } else { usize::MAX });
                (split, key, origins)
            })
            .collect();
        prop_assert_eq!(sorted(&place), expected);
        prop_assert_eq!(progress.held_bytes(), 0);
    }

    /// Resharding keeps the order of the sources, and leaving out repeated content the first of each.
    #[test]
    fn records_keep_the_order_of_their_sources(
        sources in prop::collection::vec(0u64..800, 0..7), distinct in 1u64..3000, options in ways(),
    ) {
        let (all, first) = (Memory::default(), Memory::default());
        let (whole, once, more) = (all.clone(), first.clone(), sources.clone());
        run(options, move |pipeline| {
            let (one, other) = pipeline
                .source("Read", (0..).zip(more.clone()).collect(), |(source, count)| {
                    Ok::<_, Error>((0..count).map(move |index| Ok::<_, Error>(record(source, index, 1, 60))))
                })
                .tee();
            let sources = more.len() as u32;
            one.reshard("Reshard", 1, sources).write_shards("Write", even(vec![3]), whole.clone()).collect(&Collected::new());
            other
                .map(move |mut record| {
                    record.key = u128::from(mix(record.origin) % distinct).to_be_bytes();
                    record
                })
                .dedup_by_key("Dedup", 1)
                .records("Left")
                .reshard("Reorder", 1, sources)
                .write_shards("Write once", even(vec![2]), once.clone())
                .collect(&Collected::new());
        })
        .unwrap();
        let mut records = Vec::new();
        let (mut left, mut seen) = (Vec::new(), BTreeSet::new());
        for (source, count) in (0..).zip(&sources) {
            for index in 0..*count {
                let made = record(source, index, 1, 60);
                if seen.insert(mix(made.origin) % distinct) {
                    left.push(made.data.clone());
                }
                records.push(made.data);
            }
        }
        let flat = |memory: &Memory| memory.shards.lock().unwrap().values().flatten().cloned().collect::<Vec<_>>();
        prop_assert!(flat(&all) == records);
        prop_assert!(flat(&first) == left);
    }
}

#[test]
fn what_is_not_small_is_an_error_that_says_so() {
    for which in 0..3 {
        for workers in [1, 3] {
            let error = run(
                Options::default().workers(workers).memory_bytes(0),
                move |pipeline| {
                    let items = read(pipeline, "Read", &[20_000, 20_000], u64::MAX);
                    match which {
                        0 => items.count("Table").discard(),
                        1 => items
                            .map(|number| (number % 2, number))
                            .group_small("Table")
                            .discard(),
                        _ => {
                            let small = items.broadcast_small("Table");
                            read(pipeline, "Other", &[10], 10)
                                .with_small("Look", &small, |number, _| Ok::<_, Error>([number]))
                                .discard();
                        }
                    }
                },
            )
            .unwrap_err();
            match &error {
                Error::TooLarge {
                    stage,
                    entries,
                    bytes,
                    limit,
                } => {
                    assert_eq!((stage.as_str(), *limit), ("Table", (1 << 20) / 8));
                    assert!(*entries > 0 && bytes > limit);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_small_collection_of_the_same_source_is_refused() {
    let error = run(Options::default().workers(2), |pipeline| {
        let (one, other) = read(pipeline, "Read", &[100_000], 50).tee();
        let small = one
            .count("Count")
            .map(|(number, _)| number)
            .broadcast_small("All");
        // The counts are another flow, and the items wait for it: but it waits for theirs.
        other
            .with_small("Look", &small, |number, _| Ok::<_, Error>([number]))
            .discard();
    })
    .unwrap_err();
    assert!(root(&error).contains("a source of their own"), "{error:?}");
}

#[test]
fn errors_that_stay_end_the_job_with_their_cause() {
    for permanent in [false, true] {
        for workers in [1, 2] {
            let tries = Arc::new(AtomicU64::new(0));
            let tried = tries.clone();
            let error = run(Options::default().workers(workers), move |pipeline| {
                let tried = tried.clone();
                let io = IoOptions::default()
                    .attempts(4)
                    .wait(Duration::ZERO, Duration::ZERO);
                read(pipeline, "Read", &[500], 1 << 40)
                    .io_map("Ask", io, move |item| {
                        if *item != number(0, 77, 1 << 40) {
                            return Ok(*item);
                        }
                        tried.fetch_add(1, Relaxed);
                        Err(if permanent {
                            Failure::permanent("no such thing")
                        } else {
                            Failure::transient("busy")
                        })
                    })
                    .discard();
            })
            .unwrap_err();
            assert_eq!(error.to_string(), "stage `Ask` failed");
            let expected = if permanent {
                ("no such thing", 1)
            } else {
                ("gave up after 4 attempts", 4)
            };
            assert_eq!((root(&error).as_str(), tries.load(Relaxed)), expected);
        }
    }
}

/// Bug log, B16: transient errors of reading are retried and counted; a panic names its input.
#[test]
fn many_inputs_with_faults_are_read_or_named() {
    fn job(bad: Option<u64>) -> Result<(Report, Vec<u64>), Error> {
        let place = Collected::new();
        let collected = place.clone();
        let report = run(
            Options::default().workers(4).memory_bytes(8 << 20),
            move |pipeline| {
                let failed = Arc::new(Mutex::new(BTreeSet::new()));
                let io = IoOptions::default()
                    .threads(2)
                    .wait(Duration::ZERO, Duration::ZERO);
                pipeline
                    .source("List", (0..10_000u64).collect(), |input| {
                        Ok::<_, Error>([Ok::<_, Error>(input)])
                    })
                    .rebalance()
                    .io_map("Read", io, move |input| {
                        working_on(&format!("input-{input}"));
                        assert_ne!(Some(*input), bad, "a bug");
                        if input % 100 == 7 && failed.lock().unwrap().insert(*input) {
                            return Err(Failure::transient("connection reset"));
                        }
                        Ok(*input)
                    })
                    .collect(&collected);
            },
        )?;
        Ok((report, sorted(&place)))
    }
    let (report, inputs) = job(None).unwrap();
    assert_eq!(inputs, (0..10_000).collect::<Vec<_>>());
    // Each worker has a set of its own, and each input one worker.
    assert_eq!(report.counters["Read: retries"], 100);
    match job(Some(6011)) {
        Err(Error::Panic {
            stage,
            input,
            message,
        }) => {
            assert_eq!((stage.as_str(), input.as_deref()), ("Read", Some("input-6011")));
            assert!(message.contains("a bug"), "{message}");
        }
        other => panic!("{:?}", other.map(drop)),
    }
}

/// Bug log, B23: thousands of tiny tasks, more workers than cores, and more workers than tasks.
#[test]
fn tiny_tasks_and_idle_workers_come_to_an_end() {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    for (workers, tasks) in [(4 * cores, 3000u64), (5, 3), (7, 0), (3, 1)] {
        let (place, sink) = (Collected::new(), Memory::default());
        let (collected, written) = (place.clone(), sink.clone());
        run(
            Options::default().workers(workers).memory_bytes(0),
            move |pipeline| {
                let (one, other) = pipeline
                    .source("Read", (0..tasks).collect(), |task| {
                        Ok::<_, Error>(
                            (0..task % 4).map(move |index| Ok::<_, Error>(record(task as u32, index, 1, 20))),
                        )
                    })
                    .tee();
                one.map(|record| record.origin).collect(&collected);
                other
                    .sort("Order", SortOptions::new(1))
                    .write_shards("Write", even(vec![2]), written.clone())
                    .collect(&Collected::new());
            },
        )
        .unwrap();
        let expected: Vec<u64> = (0..tasks)
            .flat_map(|task| (0..task % 4).map(move |index| origin(task as u32, index)))
            .collect();
        assert_eq!(sorted(&place), expected);
        assert_eq!(
            sink.shards.lock().unwrap().values().map(Vec::len).sum::<usize>(),
            expected.len()
        );
    }
}

/// While one worker's thread is in a long task, the others read the rest.
#[test]
fn a_long_task_keeps_nobody_from_the_others() {
    let place = Collected::new();
    let collected = place.clone();
    run(Options::default().workers(2), move |pipeline| {
        let (read, left) = (pipeline.counter("read"), pipeline.stop_signal());
        let all = read.clone();
        pipeline
            .source("Read", (0..100u64).collect(), move |task| {
                // The first task waits for all others: with tasks dealt beforehand it would wait for ever.
                while task == 0 && all.sum() < 99 && !left.is_stopped() {
                    std::thread::yield_now();
                }
                read.increment();
                Ok::<_, BoxError>([Ok::<_, BoxError>(task)])
            })
            .collect(&collected);
    })
    .unwrap();
    assert_eq!(sorted(&place), (0..100).collect::<Vec<_>>());
}
