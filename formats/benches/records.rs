//! What a record costs: ArrayRecord and TFRecord, random and in order, reading and writing.
//!
//! `cargo bench -p prep-formats --bench records` prints nanoseconds a record, best of five passes over a warm file, one thread. Every pass
//! checks the bytes it got.
#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::hint::black_box;
use std::time::Instant;

use prep_formats::array_record::{Reader, Scratch, WriteOptions, Writer};
use prep_formats::tfrecord::{self, Compression, CrcPolicy, ReadOptions, Scanner};

const NUM_RECORDS: usize = 200_000;
const AHEAD: usize = 8;

/// A generator that is the same everywhere.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Texts of 500 to 1,500 bytes of words of two to nine letters.
fn records() -> Vec<Vec<u8>> {
    let mut state = 42;
    let words: Vec<Vec<u8>> = (0..2000)
        .map(|_| {
            (0..2 + next(&mut state) % 8)
                .map(|_| b'a' + (next(&mut state) % 26) as u8)
                .collect()
        })
        .collect();
    (0..NUM_RECORDS)
        .map(|_| {
            let length = 500 + next(&mut state) as usize % 1000;
            let mut record = Vec::with_capacity(length + 10);
            while record.len() < length {
                // Frequent words are frequent.
                let rank = (next(&mut state) % 2000 * (next(&mut state) % 2000) / 2000) as usize;
                record.extend_from_slice(&words[rank]);
                record.push(b' ');
            }
            record
        })
        .collect()
}

/// Runs `pass` five times and prints the best; it gives the sum of all record lengths.
fn measure(name: &str, expected: u64, mut pass: impl FnMut() -> u64) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let found = pass();
        best = best.min(start.elapsed().as_secs_f64());
        assert_eq!(found, expected, "{name} gave other records");
    }
    println!("{name:<48} {:>8.0} ns a record", best * 1e9 / NUM_RECORDS as f64);
}

/// A checksum of a record that costs next to nothing and depends on both of its ends.
fn sum(record: &[u8]) -> u64 {
    record.len() as u64 + u64::from(record[0]) + u64::from(record[record.len() - 1])
}

fn main() {
    let records = records();
    let expected: u64 = records.iter().map(|record| sum(record)).sum();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut order: Vec<u64> = (0..NUM_RECORDS as u64).collect();
    let mut state = 7;
    for i in (1..order.len()).rev() {
        order.swap(i, (next(&mut state) % (i as u64 + 1)) as usize);
    }
    println!(
        "{NUM_RECORDS} records, mean {} bytes",
        records.iter().map(Vec::len).sum::<usize>() / NUM_RECORDS
    );

    for text in [
        "uncompressed",
        "uncompressed,group_size:256",
        "zstd:3",
        "zstd:3,group_size:256",
    ] {
        let options = WriteOptions::parse(text).expect("options");
        let path = folder.path().join("x.array_record");
        measure(&format!("array_record {text}: write"), expected, || {
            let file = std::fs::File::create(&path).expect("a file");
            let mut writer = Writer::new(file, options.clone()).expect("a writer");
            for record in &records {
                writer.write(record).expect("written");
            }
            writer.finish().expect("finished");
            expected
        });
        let reader = Reader::open(&path).expect("a reader");
        let mut scratch = Scratch::default();
        measure(&format!("array_record {text}: in order"), expected, || {
            let mut total = 0;
            let all = 0..reader.num_records();
            let visited = reader.for_each(all, &mut scratch, |_, record| {
                total += sum(record);
                Ok(())
            });
            visited.expect("read");
            total
        });
        if options.group_size() > 1 {
            continue;
        }
        for prefetch in [false, true] {
            let how = if prefetch { ", prefetched" } else { "" };
            measure(&format!("array_record {text}: random{how}"), expected, || {
                let mut total = 0;
                for (i, &index) in order.iter().enumerate() {
                    if prefetch && let Some(&ahead) = order.get(i + AHEAD) {
                        reader.prefetch(ahead);
                    }
                    total += sum(reader.record(index, &mut scratch).expect("read"));
                }
                total
            });
        }
        println!(
            "  index: {:.2} bytes a chunk",
            reader.index_memory() as f64 / reader.num_chunks() as f64
        );
        measure(&format!("array_record {text}: open alone"), 0, || {
            black_box(Reader::open(&path).expect("a reader").num_records()) - NUM_RECORDS as u64
        });
    }

    for compression in [Compression::Plain, Compression::Gzip] {
        let path = folder.path().join("x.tfrecord");
        measure(&format!("tfrecord {compression:?}: write"), expected, || {
            let file = std::fs::File::create(&path).expect("a file");
            let mut writer = tfrecord::Writer::new(file, compression).expect("a writer");
            for record in &records {
                writer.write(record).expect("written");
            }
            writer.finish().expect("finished");
            expected
        });
        measure(&format!("tfrecord {compression:?}: stream"), expected, || {
            let file = std::fs::File::open(&path).expect("a file");
            let mut reader = tfrecord::Reader::new(file, "x", ReadOptions::default()).expect("a reader");
            let mut total = 0;
            while let Some(record) = reader.next().expect("read") {
                total += sum(record);
            }
            total
        });
        if compression == Compression::Plain {
            let bytes = std::fs::read(&path).expect("a file");
            measure("tfrecord Plain: scan in memory", expected, || {
                let mut scanner = Scanner::new(&bytes, "x", CrcPolicy::Check);
                let mut total = 0;
                while let Some(record) = scanner.next().expect("read") {
                    total += sum(record);
                }
                total
            });
        }
    }
}
