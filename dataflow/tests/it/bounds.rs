//! What a job holds follows its budget, not its data.

use prep_dataflow::{
    BoxError, Collected, Error, Options, Progress, Record, Shard, ShardSink, ShardWriter, SortOptions,
    SplitPlan, run,
};

use crate::support::{Memory, mix, record};

/// Work that takes far longer than moving a record.
fn slow(seed: u64) -> u64 {
    (0..2000).fold(seed, |hash, _| mix(hash))
}

#[test]
fn a_fast_source_waits_for_a_slow_stage() {
    const BUDGET: usize = 4 << 20;
    for workers in [1, 2, 4] {
        let (progress, place) = (Progress::new(), Collected::new());
        let collected = place.clone();
        let options = Options::default()
            .workers(workers)
            .memory_bytes(BUDGET)
            .progress(progress.clone());
        run(options, move |pipeline| {
            pipeline
                .source("Read", vec![0, 1], |task| {
                    Ok::<_, Error>(
                        (0..10_000).map(move |index| Ok::<_, Error>(vec![task as u8; 1000 + index % 9])),
                    )
                })
                .rebalance()
                .try_map("Slow", |data: Vec<u8>| Ok::<_, Error>(slow(data.len() as u64)))
                .collect(&collected);
        })
        .unwrap();
        assert_eq!(place.take().len(), 20_000);
        let peak = progress.peak_held_bytes();
        assert!(
            peak > 0 && peak <= BUDGET.max(workers << 20) as u64,
            "{workers} workers held {peak} of {BUDGET} bytes"
        );
        assert_eq!(progress.held_bytes(), 0);
    }
}

/// Writes slowly and counts.
struct Slow;

struct SlowWriter(u64);

impl ShardSink for Slow {
    type Summary = u64;
    type Writer = SlowWriter;

    fn open(&self, _: &Shard) -> Result<SlowWriter, BoxError> {
        Ok(SlowWriter(0))
    }
}

impl ShardWriter for SlowWriter {
    type Summary = u64;

    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        assert!(slow(record.origin) != 0);
        self.0 += 1;
        Ok(())
    }

    fn finish(self) -> Result<u64, BoxError> {
        Ok(self.0)
    }
}

#[test]
fn many_times_the_budget_flows_through_a_sort_into_slow_writers() {
    const BUDGET: usize = 4 << 20;
    for workers in [1, 3] {
        let (progress, place) = (Progress::new(), Collected::new());
        let collected = place.clone();
        let options = Options::default()
            .workers(workers)
            .memory_bytes(BUDGET)
            .progress(progress.clone());
        run(options, move |pipeline| {
            pipeline
                .source("Read", vec![0, 1, 2], |task| {
                    Ok::<_, Error>((0..8_000).map(move |index| Ok::<_, Error>(record(task, index, 1, 2000))))
                })
                .sort("Order", SortOptions::new(1))
                .write_shards(
                    "Write",
                    |totals| Ok::<_, Error>(vec![SplitPlan::even(totals[0].records, 5)]),
                    Slow,
                )
                .collect(&collected);
        })
        .unwrap();
        assert_eq!(
            place.take().iter().map(|written| written.summary).sum::<u64>(),
            24_000
        );
        let (bytes, peak) = (progress.stage("Write").unwrap().bytes, progress.peak_held_bytes());
        assert!(bytes > 5 * BUDGET as u64);
        assert!(progress.spilled_runs() as usize > 5 * workers);
        assert!(
            peak <= BUDGET as u64,
            "{workers} workers held {peak} of {BUDGET} bytes"
        );
    }
}

/// Bug log, B18: nearly all records belong to one of four workers, whose writer is far slower than the source.
#[test]
fn a_burst_for_one_worker_waits_for_its_slow_writer() {
    const BUDGET: usize = 8 << 20;
    let (progress, place) = (Progress::new(), Collected::new());
    let collected = place.clone();
    let options = Options::default()
        .workers(4)
        .memory_bytes(BUDGET)
        .progress(progress.clone());
    run(options, move |pipeline| {
        pipeline
            .source("Read", (0..8).collect(), |task| {
                Ok::<_, Error>((0..2_500).map(move |index| Ok::<_, Error>(record(task, index, 1, 2000))))
            })
            .map(|mut record| {
                // The last worker's range begins at 0xc0.
                record.key[0] = if record.origin % 50 == 0 {
                    record.key[0]
                } else {
                    0xff
                };
                record
            })
            .exchange_by_key(Default::default())
            .inspect(|record| assert!(slow(record.origin) != 0))
            .sort("Order", SortOptions::new(1))
            .write_shards("Write", crate::support::even(vec![3]), Slow)
            .collect(&collected);
    })
    .unwrap();
    assert_eq!(
        place.take().iter().map(|written| written.summary).sum::<u64>(),
        20_000
    );
    let peak = progress.peak_held_bytes();
    assert!(progress.stage("Write").unwrap().bytes > 2 * BUDGET as u64);
    assert!(peak > 0 && peak <= BUDGET as u64, "held {peak} of {BUDGET} bytes");
    assert_eq!(progress.held_bytes(), 0);
}

#[test]
fn a_record_larger_than_every_window_passes() {
    for workers in [1, 2] {
        let sink = Memory::default();
        let (shards, progress) = (sink.shards.clone(), Progress::new());
        let options = Options::default()
            .workers(workers)
            .memory_bytes(2 << 20)
            .progress(progress.clone());
        run(options, move |pipeline| {
            pipeline
                .source("Read", vec![()], |()| {
                    Ok::<_, Error>((0..3000).map(|index| {
                        let mut record = record(0, index, 1, 100);
                        if index % 1000 == 500 {
                            record.data = vec![index as u8; 20 << 20].into();
                        }
                        Ok::<_, Error>(record)
                    }))
                })
                .rebalance()
                .try_map("Pass", Ok::<_, Error>)
                .sort("Order", SortOptions::new(1))
                .write_shards("Write", crate::support::even(vec![2]), sink.clone())
                .collect(&Collected::new());
        })
        .unwrap();
        let shards = shards.lock().unwrap();
        assert_eq!(shards.values().map(Vec::len).sum::<usize>(), 3000);
        let long: Vec<usize> = shards
            .values()
            .flatten()
            .map(|data| data.len())
            .filter(|length| *length > 100)
            .collect();
        assert_eq!(long, [20 << 20; 3]);
        assert!(progress.spilled_runs() > 1);
    }
}
