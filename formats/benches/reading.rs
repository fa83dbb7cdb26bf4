//! What reading a record of an ArrayRecord file costs, with the floors: copying, hashing and decompressing the same bytes.
//!
//! `cargo bench -p prep-formats --bench reading` prints nanoseconds of CPU a record, best of five passes over warm files, one thread. Every
//! pass checks what it got.
#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::hint::black_box;

use highway::{HighwayHash, HighwayHasher, Key};
use prep_formats::array_record::{Reader, RecordBatch, ScanOptions, Scratch, WriteOptions, Writer};

mod support;

use support::{cpu_time, next, texts};

const NUM_RECORDS: usize = 200_000;
const BATCH: usize = 256;
const NUM_SHARDS: usize = 1000;

/// Runs `pass` five times and prints the best.
fn measure(name: &str, items: usize, expected: u64, mut pass: impl FnMut() -> u64) {
    let mut best = u64::MAX;
    for _ in 0..5 {
        let start = cpu_time();
        let found = pass();
        best = best.min(cpu_time() - start);
        assert_eq!(found, expected, "{name} gave something else");
    }
    println!("{name:<56} {:>8.0} ns", best as f64 / items as f64);
}

/// A checksum of a record that costs next to nothing and depends on both of its ends.
fn sum(record: &[u8]) -> u64 {
    record.len() as u64 + u64::from(record[0]) + u64::from(record[record.len() - 1])
}

fn main() {
    let records = texts(NUM_RECORDS);
    let expected: u64 = records.iter().map(|record| sum(record)).sum();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut order: Vec<u64> = (0..NUM_RECORDS as u64).collect();
    let mut state = 7;
    for i in (1..order.len()).rev() {
        order.swap(i, (next(&mut state) % (i as u64 + 1)) as usize);
    }

    let mut buffer = Vec::new();
    measure("floor: copy, random order", NUM_RECORDS, expected, || {
        let mut total = 0;
        for batch in order.chunks(BATCH) {
            buffer.clear();
            for &index in batch {
                let record = &records[index as usize];
                buffer.extend_from_slice(record);
                total += sum(record);
            }
            black_box(&buffer);
        }
        total
    });
    measure("floor: hash, in order", NUM_RECORDS, expected, || {
        let mut total = 0;
        for record in &records {
            black_box(HighwayHasher::new(Key([1, 2, 3, 4])).hash64(record));
            total += sum(record);
        }
        total
    });
    let mut codec = zstd_safe::CCtx::create();
    let mut frames = Vec::new();
    for record in &records {
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(record.len()));
        codec.compress(&mut frame, record, 3).expect("compressed");
        frame.shrink_to_fit();
        frames.push(frame);
    }
    let mut context = zstd_safe::DCtx::create();
    let mut output = Vec::with_capacity(4096);
    for (name, shuffled) in [("in order", false), ("random order", true)] {
        measure(
            &format!("floor: zstd alone, {name}"),
            NUM_RECORDS,
            expected,
            || {
                let mut total = 0;
                for (i, &index) in order.iter().enumerate() {
                    let frame = &frames[if shuffled { index as usize } else { i }];
                    context.decompress(&mut output, frame).expect("decompressed");
                    total += sum(&output);
                }
                total
            },
        );
    }
    let groups: Vec<Vec<u8>> = records.chunks(256).map(|group| group.concat()).collect();
    let group_frames: Vec<Vec<u8>> = groups
        .iter()
        .map(|group| {
            let mut frame = Vec::with_capacity(zstd_safe::compress_bound(group.len()));
            codec.compress(&mut frame, group, 3).expect("compressed");
            frame
        })
        .collect();
    let mut group = Vec::with_capacity(512 << 10);
    let bytes: usize = groups.iter().map(Vec::len).sum();
    measure(
        "floor: zstd alone, 256 records a frame",
        NUM_RECORDS,
        bytes as u64,
        || {
            let mut total = 0;
            for frame in &group_frames {
                total += context.decompress(&mut group, frame).expect("decompressed") as u64;
            }
            total
        },
    );
    drop((frames, groups, group_frames));

    for text in [
        "uncompressed,group_size:1",
        "uncompressed,group_size:256",
        "zstd:3,group_size:1",
        "zstd:3,group_size:256",
    ] {
        let options = WriteOptions::parse(text).expect("options");
        let path = folder.path().join("x.array_record");
        let file = std::fs::File::create(&path).expect("a file");
        let mut writer = Writer::new(file, options.clone()).expect("a writer");
        for record in &records {
            writer.write(record).expect("written");
        }
        writer.finish().expect("finished");
        let reader = Reader::open(&path).expect("a reader");
        let (mut scratch, mut batch) = (Scratch::default(), RecordBatch::default());
        measure(&format!("{text}: for_each"), NUM_RECORDS, expected, || {
            let mut total = 0;
            let all = 0..reader.num_records();
            let visited = reader.for_each(all, &mut scratch, |_, record| {
                total += sum(record);
                Ok(())
            });
            visited.expect("read");
            total
        });
        measure(
            &format!("{text}: read_range of 4,096"),
            NUM_RECORDS,
            expected,
            || {
                let mut total = 0;
                let mut start = 0;
                while start < NUM_RECORDS as u64 {
                    let end = (start + 4096).min(NUM_RECORDS as u64);
                    reader
                        .read_range(start..end, &mut batch, &mut scratch)
                        .expect("read");
                    total += batch.iter().map(sum).sum::<u64>();
                    start = end;
                }
                total
            },
        );
        measure(&format!("{text}: scan, 1 thread"), NUM_RECORDS, expected, || {
            let mut total = 0;
            let scan = reader
                .scan(ScanOptions::default().num_threads(1))
                .expect("a scan");
            let visited = scan.for_each(|_, record| {
                total += sum(record);
                Ok(())
            });
            visited.expect("read");
            total
        });
        if options.group_size() > 1 {
            continue;
        }
        measure(
            &format!("{text}: random, one a call"),
            NUM_RECORDS,
            expected,
            || {
                let mut total = 0;
                for &index in &order {
                    total += sum(reader.record(index, &mut scratch).expect("read"));
                }
                total
            },
        );
        measure(
            &format!("{text}: random, batches of 256"),
            NUM_RECORDS,
            expected,
            || {
                let mut total = 0;
                for indices in order.chunks(BATCH) {
                    reader.read(indices, &mut batch, &mut scratch).expect("read");
                    total += batch.iter().map(sum).sum::<u64>();
                }
                total
            },
        );
        println!(
            "  index: {:.2} bytes a record",
            reader.index_memory() as f64 / NUM_RECORDS as f64
        );

        let paths: Vec<_> = (0..NUM_SHARDS)
            .map(|shard| folder.path().join(format!("shard-{shard}")))
            .collect();
        for (path, records) in paths.iter().zip(records.chunks(NUM_RECORDS / NUM_SHARDS)) {
            let file = std::fs::File::create(path).expect("a file");
            let mut writer = Writer::new(file, options.clone()).expect("a writer");
            for record in records {
                writer.write(record).expect("written");
            }
            writer.finish().expect("finished");
        }
        for lazily in [true, false] {
            let how = if lazily { "open_lazy" } else { "open" };
            measure(
                &format!("{text}: {how}, a shard of 200 records"),
                NUM_SHARDS,
                NUM_RECORDS as u64,
                || {
                    let open = |path| match lazily {
                        true => Reader::open_lazy(path),
                        false => Reader::open(path),
                    };
                    let readers: Vec<Reader> =
                        paths.iter().map(|path| open(path).expect("a reader")).collect();
                    readers.iter().map(Reader::num_records).sum()
                },
            );
        }
    }
}
