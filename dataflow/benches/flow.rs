//! How much the engine adds to the work that a job does: `cargo bench -p prep-dataflow`.
//!
//! The job is a build of 60,000 small images: one source thread that takes 8 us a record (an archive being decompressed), 13 us in the encode
//! step, records of 2.2 KB, a sort and one shard. On two cores the least wall time is half the CPU time. The work is calibrated in
//! rounds of a hash, not in time, so other programs on the machine disturb the wall time only.
//!
//! `cargo bench -p prep-dataflow -- idle` runs it without the work, which leaves the engine and the copying of payloads;
//! `cargo bench -p prep-dataflow -- text` sends a million records of 1 KB of text, slices of their source's blocks, through a sort in memory and
//! through one that spills, and prints the CPU time a record takes in the engine (2 workers against 1 says how it scales);
//! `cargo bench -p prep-dataflow -- spill` sends 2 GB through a budget of 64 MiB instead, and prints the peak of resident memory.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::Instant;

use bytes::Bytes;
use prep_dataflow::{
    BoxError, Collected, Error, Options, Progress, Record, Shard, ShardSink, ShardWriter, SortOptions,
    SplitPlan, origin, run,
};

struct Count;

struct Counting(u64, u64);

impl ShardSink for Count {
    type Summary = u64;
    type Writer = Counting;

    fn open(&self, _: &Shard) -> Result<Counting, BoxError> {
        Ok(Counting(0, 0))
    }
}

impl ShardWriter for Counting {
    type Summary = u64;

    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        self.0 += 1;
        self.1 += record.data.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<u64, BoxError> {
        assert!(self.1 > 0);
        Ok(self.0)
    }
}

fn mix(mut number: u64) -> u64 {
    number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn work(seed: u64, rounds: u64) -> u64 {
    (0..rounds).fold(seed, |hash, _| mix(hash))
}

/// Rounds of `work` that take a microsecond.
fn rounds_per_us() -> u64 {
    let best = (0..20).map(|seed| {
        let start = Instant::now();
        std::hint::black_box(work(seed, 100_000));
        start.elapsed().as_nanos() as u64
    });
    100_000 * 1000 / best.min().unwrap_or(1).max(1)
}

/// CPU seconds of this process so far, user and system.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks: f64 = fields
        .get(11..13)
        .into_iter()
        .flatten()
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}

fn peak_resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}

struct Job {
    workers: usize,
    memory_bytes: usize,
    records: u64,
    record_bytes: usize,
    source_rounds: u64,
    encode_rounds: u64,
}

impl Job {
    /// Wall and CPU seconds.
    fn run(&self) -> (f64, f64, Progress) {
        let Self {
            records,
            record_bytes,
            source_rounds,
            encode_rounds,
            ..
        } = *self;
        let place = Collected::new();
        let collected = place.clone();
        let options = Options::default()
            .workers(self.workers)
            .memory_bytes(self.memory_bytes);
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let report = run(options, move |pipeline| {
            pipeline
                .source("Parse", vec![()], move |()| {
                    let mut block = Bytes::new();
                    Ok::<_, Error>((0..records).map(move |index| {
                        if block.len() < 3073 {
                            block = vec![index as u8; 3073 * 300].into();
                        }
                        std::hint::black_box(work(index, source_rounds));
                        Ok::<_, Error>((index, block.split_to(3073)))
                    }))
                })
                .rebalance()
                .try_map("Encode", move |(index, image)| {
                    std::hint::black_box(work(index, encode_rounds));
                    let mut key = [0; 16];
                    key[..8].copy_from_slice(&mix(index).to_be_bytes());
                    let data = image[..record_bytes].to_vec();
                    Ok::<_, Error>(Record {
                        split: 0,
                        key,
                        origin: origin(0, index),
                        data: data.into(),
                    })
                })
                .sort("Order", SortOptions::new(1))
                .write_shards(
                    "Write",
                    |totals| Ok::<_, Error>(vec![SplitPlan::even(totals[0].records, 1)]),
                    Count,
                )
                .collect(&collected);
        });
        let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let progress = report.expect("the job succeeds").progress;
        assert_eq!(
            place.take().iter().map(|written| written.summary).sum::<u64>(),
            records
        );
        (wall, cpu, progress)
    }
}

/// Words in a row, as a record's payload might be.
fn text(bytes: usize) -> Bytes {
    let words: Vec<String> = (0..3000u64)
        .map(|word| {
            let hash = mix(word);
            (0..2 + hash % 8)
                .map(|letter| (b'a' + (mix(hash ^ letter) % 26) as u8) as char)
                .collect()
        })
        .collect();
    let mut text = String::new();
    for turn in 0.. {
        if text.len() >= bytes {
            break;
        }
        // Common words are more common.
        let one = mix(turn) % 3000;
        text.push_str(&words[(one * (mix(turn ^ 77) % 3000) / 3000) as usize]);
        text.push(' ');
    }
    text.truncate(bytes);
    text.into()
}

/// Read, exchange, sort and write 1 KB records. Wall and CPU seconds.
fn run_text(block: &Bytes, records: u64, workers: usize, memory_bytes: usize) -> (f64, f64, Progress) {
    const TASKS: u64 = 20;
    let place = Collected::new();
    let (collected, block) = (place.clone(), block.clone());
    let options = Options::default().workers(workers).memory_bytes(memory_bytes);
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let report = run(options, move |pipeline| {
        let block = block.clone();
        pipeline
            .source("Read", (0..TASKS).collect(), move |task| {
                let block = block.clone();
                Ok::<_, Error>((0..records / TASKS).map(move |index| {
                    let origin = origin(task as u32, index);
                    let start = mix(origin) as usize % (block.len() - 1100);
                    let mut key = [0; 16];
                    key[..8].copy_from_slice(&mix(origin).to_be_bytes());
                    key[8..].copy_from_slice(&origin.to_be_bytes());
                    Ok::<_, Error>(Record {
                        split: 0,
                        key,
                        origin,
                        data: block.slice(start..start + 950 + (origin % 100) as usize),
                    })
                }))
            })
            .sort("Order", SortOptions::new(1))
            .write_shards(
                "Write",
                |totals| Ok::<_, Error>(vec![SplitPlan::even(totals[0].records, 8)]),
                Count,
            )
            .collect(&collected);
    });
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let written: u64 = place.take().iter().map(|written| written.summary).sum();
    assert_eq!(written, records);
    (wall, cpu, report.expect("the job succeeds").progress)
}

fn main() {
    if std::env::args().any(|argument| argument == "text") {
        let (block, records) = (text(8 << 20), 1_000_000);
        for round in 0..3 {
            for (memory, name) in [(8 << 30, "in memory"), (128 << 20, "spilled")] {
                let mut alone = 0.0;
                for workers in [1, 2] {
                    let (wall, cpu, progress) = run_text(&block, records, workers, memory);
                    alone = if workers == 1 { wall } else { alone };
                    println!(
                        "round {round}, {name}, {workers} workers: wall {wall:.3} s ({:.2} of one worker's), {:.2} us of CPU a record, \
                         {} MB spilled in {} runs, peak held {} MB",
                        wall / alone,
                        cpu * 1e6 / records as f64,
                        progress.spilled_bytes() / 1_000_000,
                        progress.spilled_runs(),
                        progress.peak_held_bytes() / 1_000_000,
                    );
                }
            }
        }
        return;
    }
    if std::env::args().any(|argument| argument == "spill") {
        let job = Job {
            workers: 2,
            memory_bytes: 64 << 20,
            records: 1_000_000,
            record_bytes: 2000,
            source_rounds: 0,
            encode_rounds: 0,
        };
        let (wall, cpu, progress) = job.run();
        println!(
            "spill: 2 GB through 64 MiB in {wall:.2} s, {cpu:.2} s of CPU, {} runs, {} MB spilled, peak held {} MB, peak resident {} MB",
            progress.spilled_runs(),
            progress.spilled_bytes() / 1_000_000,
            progress.peak_held_bytes() / 1_000_000,
            peak_resident_mb(),
        );
        return;
    }
    let per_us = rounds_per_us();
    let records = 60_000;
    let mut job = Job {
        workers: 2,
        memory_bytes: 1 << 30,
        records,
        record_bytes: 2200,
        source_rounds: 8 * per_us,
        encode_rounds: 13 * per_us,
    };
    let rounds = if std::env::args().any(|argument| argument == "idle") {
        0
    } else {
        5
    };
    for round in 0..rounds {
        // What the work itself takes on one thread, without the engine.
        let cpu = cpu_seconds();
        for index in 0..records {
            std::hint::black_box(work(index, job.source_rounds));
            std::hint::black_box(work(index, job.encode_rounds));
        }
        let floor = cpu_seconds() - cpu;
        for workers in [1, 2] {
            job.workers = workers;
            let (wall, cpu, _) = job.run();
            println!(
                "round {round}, {workers} workers: wall {wall:.3} s, CPU {cpu:.2} s (work alone {floor:.2}), wall / (CPU / 2) = {:.2}, \
                 engine {:.2} us a record",
                wall / (cpu / 2.0),
                (cpu - floor) * 1e6 / records as f64,
            );
        }
    }
    (job.source_rounds, job.encode_rounds) = (0, 0);
    let (wall, cpu, _) = job.run();
    println!(
        "no work: wall {wall:.3} s, CPU {cpu:.2} s, {:.2} us of CPU a record",
        cpu * 1e6 / records as f64
    );
}
