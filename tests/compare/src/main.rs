//! TFRecord files beside the `tfrecord` crate: nanoseconds a record of 500 to 1,500 bytes, one thread, warm, best of five passes.
//!
//! `cargo run --release --manifest-path tests/compare/Cargo.toml`. Every pass checks what it read.

use std::error::Error;
use std::fs::File;
use std::time::Instant;

use prep_formats::tfrecord::{Compression, CrcPolicy, IndexedReader, ReadOptions, Reader, Scanner, Writer};
use tfrecord::{BytesIter, BytesWriter, RecordReaderConfig};

const NUM_RECORDS: usize = 100_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A generator that is the same everywhere.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn measure(name: &str, wanted: usize, mut pass: impl FnMut() -> Outcome<usize>) -> Outcome<()> {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let found = pass()?;
        best = best.min(start.elapsed().as_secs_f64());
        if found != wanted {
            return Err(format!("{name}: {found} bytes came back, {wanted} were wanted").into());
        }
    }
    println!("{name:<40} {:>7.0} ns a record", best * 1e9 / NUM_RECORDS as f64);
    Ok(())
}

fn main() -> Outcome<()> {
    let mut state = 42;
    let records: Vec<Vec<u8>> = (0..NUM_RECORDS)
        .map(|_| {
            let length = 500 + next(&mut state) % 1000;
            (0..length.div_ceil(8))
                .flat_map(|_| next(&mut state).to_le_bytes())
                .collect()
        })
        .collect();
    let total = records.iter().map(Vec::len).sum();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("x.tfrecord");
    measure("write: tfrecord", total, || {
        let mut writer: BytesWriter<_> = BytesWriter::create(&path)?;
        for record in &records {
            // It takes its records by value.
            writer.send(record.clone())?;
        }
        writer.flush()?;
        Ok(total)
    })?;
    measure("write: prep", total, || {
        let mut writer = Writer::new(File::create(&path)?, Compression::Plain)?;
        for record in &records {
            writer.write(record)?;
        }
        writer.finish()?;
        Ok(total)
    })?;
    for check in [true, false] {
        let how = if check { "checked" } else { "unchecked" };
        let crc = if check { CrcPolicy::Check } else { CrcPolicy::Skip };
        measure(&format!("read, {how}: tfrecord"), total, || {
            let config = RecordReaderConfig {
                check_integrity: check,
            };
            let mut found = 0;
            for record in BytesIter::open(&path, config)? {
                found += record?.len();
            }
            Ok(found)
        })?;
        measure(&format!("read, {how}: prep"), total, || {
            let mut reader = Reader::open(&path, ReadOptions::default().crc(crc))?;
            let mut found = 0;
            while let Some(record) = reader.next()? {
                found += record.len();
            }
            Ok(found)
        })?;
        let bytes = std::fs::read(&path)?;
        measure(&format!("scan in memory, {how}: prep"), total, || {
            let mut scanner = Scanner::new(&bytes, "x", crc);
            let mut found = 0;
            while let Some(record) = scanner.next()? {
                found += record.len();
            }
            Ok(found)
        })?;
    }
    measure("scan for an index: prep", NUM_RECORDS, || {
        Ok(IndexedReader::open(&path)?.num_records() as usize)
    })?;
    let reader = IndexedReader::open(&path)?;
    println!(
        "index: {:.2} bytes a record",
        reader.index().memory() as f64 / NUM_RECORDS as f64
    );
    let order: Vec<u64> = (0..NUM_RECORDS)
        .map(|_| next(&mut state) % NUM_RECORDS as u64)
        .collect();
    let wanted = order.iter().map(|&index| records[index as usize].len()).sum();
    measure("at random by index: prep", wanted, || {
        let (mut found, mut scratch) = (0, Vec::new());
        for &index in &order {
            found += reader.record(index, &mut scratch)?.len();
        }
        Ok(found)
    })
}
