//! What writers of ArrayRecord files do to the process they run in, seen from outside: memory, an early end, a fork.
//!
//! Each case runs in a process of its own: this test binary again, told by an environment variable what to do.
#![cfg(target_os = "linux")]

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output};

use prep_formats::array_record::{Reader, Scratch, WriteOptions, Writer};
use prep_formats::store::{Existing, Location, unfinished};

const TASK: &str = "PREP_TEST_WRITER_TASK";

/// Runs `task` in a process of its own, with `arguments` for it.
fn run(task: &str, arguments: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(TASK, format!("{task} {arguments}"))
        .output()
        .unwrap()
}

/// Not a test by itself: what the other tests run in a process of its own.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (task, arguments) = task.split_once(' ').unwrap();
    match task {
        "memory" => {
            let (options, sizes) = arguments.split_once(' ').unwrap();
            let (record, total) = sizes.split_once(' ').unwrap();
            let peak = peak_of_writing(options, record.parse().unwrap(), total.parse().unwrap());
            #[expect(clippy::print_stdout, reason = "read by the test that started this process")]
            {
                println!("peak KiB: {peak}");
            }
        }
        "unclosed" => {
            let location = Location::from_path(arguments);
            let mut writer = Writer::create(&location, WriteOptions::default(), Existing::Keep).unwrap();
            for i in 0..1000u32 {
                writer.write(&i.to_le_bytes().repeat(250)).unwrap();
            }
            // As if it were killed: nothing is dropped.
            std::process::exit(7);
        }
        "panic" => {
            let location = Location::from_path(arguments);
            let mut writer = Writer::create(&location, WriteOptions::default(), Existing::Keep).unwrap();
            for i in 0..1000u32 {
                writer.write(&i.to_le_bytes().repeat(250)).unwrap();
            }
            panic!("a test asked for it");
        }
        other => panic!("no such task: {other}"),
    }
}

/// A sink that counts.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes records of `record_bytes`, `total_bytes` in all; the most memory that this process had resident, in KiB.
fn peak_of_writing(options: &str, record_bytes: usize, total_bytes: usize) -> u64 {
    let options = WriteOptions::parse(options).unwrap();
    let mut writer = Writer::new(Count(0), options).unwrap();
    let mut record: Vec<u8> = (0..record_bytes).map(|i| (i * 31 % 251) as u8).collect();
    for i in 0..total_bytes / record_bytes {
        record[i % record_bytes] = i as u8;
        writer.write(&record).unwrap();
    }
    assert!(writer.finish().unwrap().0 > 0);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn peak_mib(options: &str, record_bytes: usize, total_bytes: usize) -> u64 {
    let output = run("memory", &format!("{options} {record_bytes} {total_bytes}"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let (_, rest) = text.split_once("peak KiB: ").unwrap();
    rest.lines().next().unwrap().trim().parse::<u64>().unwrap() >> 10
}

/// Memory does not grow with the file: 160 MiB of records, with room for the program, the threads' codecs and the batches.
#[test]
fn a_shard_is_not_kept_in_memory() {
    for options in [
        "uncompressed,max_parallelism:1",
        "uncompressed,max_parallelism:4",
        "zstd:1,max_parallelism:1",
        "zstd:1,max_parallelism:4",
        "zstd:1",
        "zstd:1,group_size:64,max_parallelism:2",
    ] {
        let peak = peak_mib(options, 10_000, 160 << 20);
        assert!(peak < 64, "{options} took {peak} MiB");
    }
    // Batches are what is held: (2 threads + as many waiting + 1 gathered) of 8 MiB, before and after compression.
    let peak = peak_mib("zstd:1,group_size:8,max_parallelism:2", 1 << 20, 200 << 20);
    assert!(peak < 2 * 5 * 8 + 40, "{peak} MiB");
}

/// The whole of it: 3 GiB, as issue 775 of `mosaicml/streaming` asks.
#[test]
#[ignore = "a minute of work: for soak runs"]
fn a_shard_of_3_gib_takes_less_than_512_mib() {
    for (options, record) in [
        ("uncompressed", 1000),
        ("zstd:1", 1000),
        ("zstd:1,group_size:16", 100_000),
    ] {
        let peak = peak_mib(options, record, 3 << 30);
        assert!(peak < 512, "{options} took {peak} MiB");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_writer_left_unclosed_shows_nothing_and_the_next_one_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.array_record");
    let location = Location::from_path(&path);

    let output = run("unclosed", path.to_str().unwrap());
    assert_eq!(output.status.code(), Some(7));
    assert!(!path.exists());
    let left = unfinished(&path).unwrap();
    assert_eq!(left.len(), 1);
    assert!(Reader::open(&left[0]).is_err());

    // A writer that panics cleans up.
    let output = run("panic", path.to_str().unwrap());
    assert!(!output.status.success());
    assert_eq!(unfinished(&path).unwrap(), left);
    assert_eq!(names(folder.path()).len(), 1);

    let mut writer = Writer::create(&location, WriteOptions::default(), Existing::Keep).unwrap();
    assert_eq!(writer.sink().unfinished(), left);
    writer.write(b"record").unwrap();
    writer.publish().unwrap();
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.record(0, &mut Scratch::default()).unwrap(), b"record");
    std::fs::remove_file(&left[0]).unwrap();
    assert_eq!(names(folder.path()), ["x.array_record"]);
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.array_record");
    std::fs::write(&path, "there").unwrap();
    let location = Location::from_path(&path);
    let error = Writer::create(&location, WriteOptions::default(), Existing::Keep).unwrap_err();
    assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
    if let Ok(full) = std::fs::File::options().write(true).open("/dev/full") {
        let mut writer = Writer::new(full, WriteOptions::uncompressed())
            .unwrap()
            .with_name("train-00003");
        let mut result = Ok(());
        for _ in 0..1000 {
            result = result.and_then(|()| writer.write(&[0; 1000]));
        }
        assert_eq!(result.unwrap_err().to_string(), "train-00003: could not write");
        assert!(writer.finish().is_err());
    }
}
