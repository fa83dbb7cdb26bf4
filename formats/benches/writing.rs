//! What writing an ArrayRecord file costs, beside the floors: a copy, the hash, the codec with its context kept.
//!
//! `cargo bench -p prep-formats --bench writing [FILTER]` prints nanoseconds of CPU a record (all threads), best of five passes. Sinks: `null`
//! forgets the bytes, so the format's own work is seen; `file` is a file in the page cache, not synced.
#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Seek, Write};
use std::time::Instant;

use highway::{HighwayHash, HighwayHasher, Key};
use prep_formats::array_record::{WriteOptions, Writer};

mod support;

use support::{cpu_time, next, texts};

/// Bytes that do not compress, as JPEG files, of 90 to 110 kB.
fn pictures() -> Vec<Vec<u8>> {
    let mut state = 7;
    (0..1000)
        .map(|_| {
            let length = 90_000 + next(&mut state) as usize % 20_000;
            (0..length).map(|_| next(&mut state) as u8).collect()
        })
        .collect()
}

/// Runs `pass` five times and prints the best; it gives a number that must be the same each time.
fn measure(name: &str, filter: &str, num_records: usize, mut pass: impl FnMut() -> u64) {
    if !name.contains(filter) {
        return;
    }
    let (mut cpu, mut wall, mut answer) = (f64::MAX, f64::MAX, None);
    for _ in 0..5 {
        let (start, cpu_start) = (Instant::now(), cpu_time());
        let found = pass();
        cpu = cpu.min((cpu_time() - cpu_start) as f64);
        wall = wall.min(start.elapsed().as_nanos() as f64);
        assert_eq!(*answer.get_or_insert(found), found, "{name} gave something else");
    }
    let each = |time: f64| time / num_records as f64;
    println!("{name:<52} {:>8.0} ns CPU {:>8.0} ns wall", each(cpu), each(wall));
}

/// Forgets, and counts.
struct Null(u64);

impl Write for Null {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let filter = filter.as_deref().unwrap_or("");
    for (kind, records) in [("1 kB", texts(100_000)), ("100 kB", pictures())] {
        let count = records.len();
        let bytes: usize = records.iter().map(Vec::len).sum();
        println!("{kind}: {count} records, mean {} bytes", bytes / count);
        let floor = |name: &str| format!("{kind} floor: {name}");

        measure(&floor("memcpy"), filter, count, || {
            let mut target = vec![0; 256 << 10];
            for record in &records {
                target[..record.len()].copy_from_slice(record);
                black_box(&target);
            }
            bytes as u64
        });
        measure(&floor("hash of data and of a header"), filter, count, || {
            let key = Key([1, 2, 3, 4]);
            records.iter().fold(0, |sum, record| {
                let data = HighwayHasher::new(key).hash64(record);
                sum ^ data ^ HighwayHasher::new(key).hash64(black_box(&[7; 32]))
            })
        });
        for level in [1, 3] {
            let mut context = zstd_safe::CCtx::create();
            let level_set = context.set_parameter(zstd_safe::CParameter::CompressionLevel(level));
            level_set.expect("a level");
            let window = context.set_parameter(zstd_safe::CParameter::WindowLog(20));
            window.expect("a window");
            let mut target = Vec::with_capacity(zstd_safe::compress_bound(256 << 10));
            measure(
                &floor(&format!("zstd:{level}, context kept")),
                filter,
                count,
                || {
                    let mut sum = 0;
                    for record in &records {
                        target.clear();
                        sum += context.compress2(&mut target, record).expect("compressed") as u64;
                    }
                    sum
                },
            );
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut file = File::create(folder.path().join("x")).expect("a file");
        measure(&floor("write 256 KiB at a time, file"), filter, count, || {
            file.rewind().expect("a file");
            file.set_len(0).expect("a file");
            let buffer = vec![7; 256 << 10];
            for _ in 0..bytes / buffer.len() {
                file.write_all(&buffer).expect("written");
            }
            bytes as u64
        });

        for text in [
            "uncompressed",
            "uncompressed,group_size:256",
            "zstd:1",
            "zstd:3",
            "zstd:3,group_size:256",
        ] {
            for threads in ["1", "2"] {
                let options = format!("{text},max_parallelism:{threads}");
                let options = WriteOptions::parse(&options).expect("options");
                let name = |sink: &str| format!("{kind} {text}, threads {threads}, {sink}");
                measure(&name("null"), filter, count, || {
                    let mut writer = Writer::new(Null(0), options.clone()).expect("a writer");
                    for record in &records {
                        writer.write(record).expect("written");
                    }
                    writer.finish().expect("finished").0
                });
                measure(&name("file"), filter, count, || {
                    let file = File::create(folder.path().join("x")).expect("a file");
                    let mut writer = Writer::new(file, options.clone()).expect("a writer");
                    for record in &records {
                        writer.write(record).expect("written");
                    }
                    let file = writer.finish().expect("finished");
                    file.metadata().expect("a file").len()
                });
            }
        }
    }
}
