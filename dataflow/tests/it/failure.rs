//! Wherever something goes wrong, the job ends with that as its error, and leaves no thread and no file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prep_dataflow::{
    BoxError, Cancel, Collected, Error, Options, Progress, Record, Shard, ShardSink, ShardWriter,
    SortOptions, SplitPlan, SplitTotals, run,
};

use crate::support::record;

/// Where the job is made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Build,
    OpenTask,
    Item,
    Map,
    TryMap,
    Plan,
    Complete,
    OpenShard,
    Write,
    Finish,
    Collect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Error,
    Panic,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the root cause")]
struct Cause(u32);

#[derive(Debug, Clone)]
struct Trouble {
    place: Place,
    how: How,
    /// Passes before it strikes.
    after: Arc<AtomicU64>,
}

impl Trouble {
    fn at(&self, place: Place) -> Result<(), Cause> {
        if self.place == place
            && self
                .after
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
                .is_err()
        {
            match self.how {
                How::Error => return Err(Cause(7)),
                How::Panic => panic!("the root panic"),
            }
        }
        Ok(())
    }
}

struct Sink(Trouble);

impl ShardSink for Sink {
    type Summary = u32;
    type Writer = Sink;

    fn open(&self, _: &Shard) -> Result<Sink, BoxError> {
        self.0.at(Place::OpenShard)?;
        Ok(Sink(self.0.clone()))
    }

    fn complete(&self, _: &Shard) -> Result<Option<u32>, BoxError> {
        Ok(self.0.at(Place::Complete).map(|()| None)?)
    }
}

impl ShardWriter for Sink {
    type Summary = u32;

    fn write(&mut self, _: &Record) -> Result<(), BoxError> {
        Ok(self.0.at(Place::Write)?)
    }

    fn finish(self) -> Result<u32, BoxError> {
        self.0.at(Place::Finish)?;
        Ok(0)
    }
}

/// Threads of this process whose name starts so. A name holds 15 bytes.
fn threads(prefix: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .map(|tasks| {
            tasks
                .flatten()
                .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
                .filter(|name| name.starts_with(prefix))
                .count()
        })
        .unwrap_or(0)
}

fn fails(place: Place, how: How, workers: usize, memory_bytes: usize) -> Error {
    let home = tempfile::tempdir().unwrap();
    // Where the failure is before the barrier, the source never ends: only the failure can end the job.
    let endless = matches!(place, Place::OpenTask | Place::Item | Place::Map | Place::TryMap);
    let after = match place {
        Place::Item | Place::Map | Place::TryMap | Place::Write => 2500,
        Place::OpenTask | Place::OpenShard | Place::Finish | Place::Complete => 1,
        Place::Build | Place::Plan | Place::Collect => 0,
    };
    let trouble = Trouble {
        place,
        how,
        after: Arc::new(after.into()),
    };
    let options = Options::default()
        .workers(workers)
        .memory_bytes(memory_bytes)
        .spill_folder(home.path());
    let progress = Progress::new();
    let error = run(options.progress(progress.clone()), move |pipeline| {
        let at = |place| {
            let trouble = trouble.clone();
            move || trouble.at(place)
        };
        let (open, item, map, try_map, plan, collect) = (
            at(Place::OpenTask),
            at(Place::Item),
            at(Place::Map),
            at(Place::TryMap),
            at(Place::Plan),
            at(Place::Collect),
        );
        if place == Place::Build {
            assert!(at(Place::Build)().is_ok(), "the root panic");
        }
        let tasks: Vec<u32> = (0..6).collect();
        pipeline
            .source("F Source", tasks, move |task| {
                open()?;
                let item = item.clone();
                let end = if endless && task > 3 { u64::MAX } else { 1000 };
                Ok::<_, Cause>((0..end).map(move |index| item().map(|()| (task, index))))
            })
            .map(move |item| {
                // An infallible stage can only panic.
                if let Err(cause) = map() {
                    panic!("the root panic {cause}");
                }
                item
            })
            .rebalance()
            .try_map("F Encode", move |(source, index)| {
                try_map().map(|()| record(source, index, 2, 400))
            })
            .sort("F Order", SortOptions::new(2))
            .write_shards(
                "F Write",
                move |totals: &[SplitTotals]| {
                    plan()?;
                    Ok::<_, Cause>(
                        totals
                            .iter()
                            .map(|split| SplitPlan::even(split.records, 5))
                            .collect(),
                    )
                },
                Sink(trouble.clone()),
            )
            .inspect(move |_| {
                if let Err(cause) = collect() {
                    panic!("the root panic {cause}");
                }
            })
            .collect(&Collected::new());
    })
    .expect_err("the job was made to fail");
    assert_eq!(
        progress.held_bytes(),
        0,
        "{place:?} {how:?}: all that was held is given back"
    );
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    error
}

fn root(error: &Error) -> &(dyn std::error::Error + 'static) {
    std::error::Error::source(error).expect("there is a cause")
}

#[test]
fn every_failure_comes_back_with_its_cause() {
    use Place::*;
    for (workers, memory) in [(1, 64 << 20), (2, 0), (3, 64 << 20)] {
        for place in [
            Build, OpenTask, Item, Map, TryMap, Plan, Complete, OpenShard, Write, Finish, Collect,
        ] {
            let stage = match place {
                Build => "worker",
                OpenTask | Item => "F Source",
                Map => "Map",
                TryMap => "F Encode",
                Plan | Complete | OpenShard | Write | Finish => "F Write",
                Collect => "Inspect",
            };
            match fails(place, How::Panic, workers, memory) {
                Error::Panic {
                    stage: found,
                    input,
                    message,
                } => {
                    assert_eq!(
                        input.is_some(),
                        matches!(place, OpenTask | Item),
                        "{place:?}: {input:?}"
                    );
                    assert!(message.contains("the root panic"), "{place:?}: {message}");
                    assert_eq!(found, stage, "{place:?}");
                }
                other => panic!("{place:?}: {other:?}"),
            }
            if matches!(place, Build | Map | Collect) {
                continue;
            }
            let error = fails(place, How::Error, workers, memory);
            assert_eq!(error.to_string(), format!("stage `{stage}` failed"), "{place:?}");
            assert_eq!(root(&error).downcast_ref::<Cause>(), Some(&Cause(7)), "{place:?}");
        }
    }
    assert_eq!(threads("prep F "), 0, "every thread has ended");
}

/// A job without an end, ended by `act` on its thousandth item.
fn endless(options: Options, mut act: impl FnMut() + Clone + Send + Sync + 'static) -> Error {
    let act = move || {
        let mut count = 0;
        let mut act = { &mut act }.clone();
        move || {
            count += 1;
            if count == 1000 {
                act();
            }
        }
    };
    run(options, move |pipeline| {
        let mut act = act.clone()();
        pipeline
            .source("E Source", vec![0u64, 1, 2], |_| {
                Ok::<_, Error>((0u64..).map(Ok::<_, Error>))
            })
            .rebalance()
            .inspect(move |_| act())
            .filter(|_| false)
            .collect(&Collected::<u64>::new());
    })
    .unwrap_err()
}

#[test]
fn a_cancelled_job_ends() {
    let cancel = Cancel::new();
    let options = Options::default().workers(2).cancel(cancel.clone());
    let error = endless(options, move || cancel.cancel());
    assert!(matches!(error, Error::Cancelled), "{error:?}");
    assert_eq!(threads("prep E "), 0);
}

#[test]
fn a_job_cancelled_beforehand_does_not_start_working() {
    let cancel = Cancel::new();
    cancel.cancel();
    let error = endless(Options::default().workers(2).cancel(cancel.clone()), || ());
    assert!(matches!(error, Error::Cancelled), "{error:?}");
    assert!(cancel.is_cancelled());
}

#[test]
fn a_job_that_is_stuck_is_given_up_and_its_closures_are_told() {
    let stall = Duration::from_millis(30);
    let error = run(Options::default().workers(2).stall(stall), |pipeline| {
        let stop = pipeline.stop_signal();
        pipeline
            .source("S Source", vec![()], move |()| {
                while !stop.is_stopped() {
                    std::thread::yield_now();
                }
                Ok::<_, Error>([] as [Result<u64, Error>; 0])
            })
            .collect(&Collected::new());
    })
    .unwrap_err();
    assert!(
        matches!(error, Error::Stalled(after) if after == stall),
        "{error:?}"
    );
}

#[test]
fn a_spill_folder_that_is_not_there_is_named_with_what_is_needed() {
    let home = tempfile::tempdir().unwrap();
    let missing = home.path().join("missing");
    let options = Options::default()
        .workers(2)
        .memory_bytes(0)
        .spill_folder(&missing);
    let sink = crate::support::Memory::default();
    let error = crate::support::write(options, &[9000], &[1], 400, SortOptions::new(1), &sink).unwrap_err();
    match &error {
        Error::SpillWrite {
            folder, needed_bytes, ..
        } => {
            assert_eq!(*folder, missing);
            assert!(*needed_bytes > 0);
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(sink.shards.lock().unwrap().is_empty());
}

#[test]
fn a_record_of_an_unknown_split_is_an_error() {
    let sink = crate::support::Memory::default();
    let error = run(Options::default(), move |pipeline| {
        pipeline
            .source("Read", vec![()], |()| Ok::<_, Error>([Ok::<_, Error>(0u64)]))
            .map(|index| Record {
                split: 3,
                ..record(0, index, 1, 10)
            })
            .sort("Order", SortOptions::new(3))
            .write_shards("Write", crate::support::even(vec![1; 3]), sink.clone())
            .collect(&Collected::new());
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "stage `Order`: a record has split 3, but there are 3 splits"
    );
}

#[test]
fn a_plan_that_does_not_fit_is_an_error_and_opens_nothing() {
    for (plan, reason) in [
        (
            vec![vec![0, 5, 9]],
            "it goes from 0 to 9, and the split from 0 to 10",
        ),
        (vec![], "there are plans for 0 splits, and 1 splits"),
        (vec![vec![0, 7, 3, 10]], "boundary 7 is followed by 3"),
        (vec![vec![]], "it has no shards, but the split has 10 records"),
    ] {
        let sink = crate::support::Memory::default();
        let shards = sink.shards.clone();
        let error = run(Options::default().workers(2), move |pipeline| {
            let plan = plan.clone();
            pipeline
                .source("Read", vec![()], |()| {
                    Ok::<_, Error>((0..10).map(Ok::<u64, Error>))
                })
                .map(|index| record(0, index, 1, 10))
                .sort("Order", SortOptions::new(1))
                .write_shards(
                    "Write",
                    move |_: &[SplitTotals]| {
                        let plan = plan.iter().cloned();
                        Ok::<_, Error>(plan.map(|boundaries| SplitPlan { boundaries }).collect())
                    },
                    sink.clone(),
                )
                .collect(&Collected::new());
        })
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("stage `Write`: the plan of split 0 is not usable: {reason}")
        );
        assert!(shards.lock().unwrap().is_empty());
    }
}
