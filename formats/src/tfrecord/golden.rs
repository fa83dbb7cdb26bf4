//! Tests against files made by TensorFlow; `tests/golden/tfrecord/README.md` says how.

use std::io::{self, Read, Write};

use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::tfrecord::{Compression, CrcPolicy, ReadOptions, Reader, Scanner, WriteOptions, Writer};
use crate::{Error, Result};

const ALL: [Compression; 4] = [
    Compression::Plain,
    Compression::Gzip,
    Compression::Zlib,
    Compression::Zstd,
];
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tfrecord");

/// Gives 1 to 7 bytes a call, and is interrupted now and then.
struct Slow<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.step = self.step % 7 + 1;
        if self.step == 4 {
            self.step += 1;
            return Err(io::ErrorKind::Interrupted.into());
        }
        let length = self.step.min(self.bytes.len()).min(buffer.len());
        buffer[..length].copy_from_slice(&self.bytes[..length]);
        self.bytes = &self.bytes[length..];
        Ok(length)
    }
}

/// Reads to the end, going on where that is possible: the records by position, and the first error.
fn read_all(source: impl Read, options: ReadOptions) -> (Vec<(u64, Vec<u8>)>, Option<Error>) {
    let (mut records, mut first_error) = (Vec::new(), None);
    let mut reader = match Reader::new(source, "file", options) {
        Ok(reader) => reader,
        Err(error) => return (records, Some(error)),
    };
    loop {
        let index = reader.record_index();
        match reader.next() {
            Ok(Some(record)) => records.push((index, record.to_vec())),
            Ok(None) => return (records, first_error),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
}

#[test]
fn files_of_tensorflow_come_out_as_they_should() {
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(format!("{FOLDER}/manifest.json")).unwrap()).unwrap();
    for file in manifest.as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        let bytes = std::fs::read(format!("{FOLDER}/{name}")).unwrap();
        let options = ReadOptions::default().compression(match file["compression"].as_str().unwrap() {
            "" => Compression::Plain,
            "GZIP" => Compression::Gzip,
            _ => Compression::Zlib,
        });
        let slow = Slow {
            bytes: &bytes,
            step: 0,
        };
        let (records, error) = read_all(slow, options);
        let again = read_all(&bytes[..], options);
        assert_eq!(
            (&records, error.as_ref().map(ToString::to_string)),
            (&again.0, again.1.map(|e| e.to_string()))
        );
        for (index, record) in &records {
            assert_eq!(
                hex::encode(Sha256::digest(record)),
                file["records"][*index as usize],
                "{name} {index}"
            );
        }
        let expect = &file["expect"];
        if expect["result"] == "ok" {
            assert!(error.is_none(), "{name}: {error:?}");
            assert_eq!(
                records.len() as u64,
                file["num_records"].as_u64().unwrap(),
                "{name}"
            );
            continue;
        }
        assert!(matches!(error, Some(Error::Damaged { .. })), "{name}: {error:?}");
        if let Some(good) = expect["good_before_damage"].as_u64() {
            assert_eq!(records.len() as u64, good, "{name}");
        }
        if let Some(readable) = expect["readable_when_skipping"].as_array() {
            let indices: Vec<Value> = records.iter().map(|(index, _)| (*index).into()).collect();
            assert_eq!(&indices, readable, "{name}");
        }
    }
}

#[test]
fn a_wrong_compression_says_what_was_expected_and_what_was_seen() {
    let mut gzip = Writer::new(Vec::new(), Compression::Gzip).unwrap();
    gzip.write(b"x").unwrap();
    let gzip = gzip.finish().unwrap();
    let options = ReadOptions::default().compression(Compression::Plain);
    let error = Reader::new(&gzip[..], "a.tfrecord", options)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a plain TFRecord file was expected") && error.contains("begins as a gzip file"),
        "{error}"
    );
    // Left alone, it is detected.
    assert_eq!(read_all(&gzip[..], ReadOptions::default()).0.len(), 1);
}

fn write_all(records: &[Vec<u8>], compression: Compression) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), compression).unwrap();
    for record in records {
        writer.write(record).unwrap();
    }
    assert_eq!(writer.num_records(), records.len() as u64);
    writer.finish().unwrap()
}

fn scan_all(bytes: &[u8], crc: CrcPolicy) -> Result<Vec<&[u8]>> {
    let mut scanner = Scanner::new(bytes, "file", crc);
    let mut records = Vec::new();
    while let Some(record) = scanner.next()? {
        records.push(record);
    }
    Ok(records)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_written_is_read(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20)) {
        for compression in ALL {
            let bytes = write_all(&records, compression);
            let (read, error) = read_all(Slow { bytes: &bytes, step: 3 }, ReadOptions::default());
            prop_assert!(error.is_none());
            let read: Vec<Vec<u8>> = read.into_iter().map(|(_, record)| record).collect();
            prop_assert_eq!(&read, &records);
        }
        let plain = write_all(&records, Compression::Plain);
        prop_assert_eq!(scan_all(&plain, CrcPolicy::Check).unwrap(), records);
    }

    #[test]
    fn any_bytes_end_in_records_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (records, _) = read_all(&bytes[..], ReadOptions::default());
        prop_assert!(records.iter().map(|(_, record)| record.len()).sum::<usize>() <= bytes.len() * 2000);
        let _ = scan_all(&bytes, CrcPolicy::Skip);
    }
}

#[test]
fn every_cut_and_flip_of_a_plain_file_is_seen() {
    let records: Vec<Vec<u8>> = (0..4u8).map(|i| vec![i; usize::from(i) * 5]).collect();
    let bytes = write_all(&records, Compression::Plain);
    let boundaries: Vec<usize> = (0..=4)
        .scan(0, |end, i| {
            let start = *end;
            *end += 16 + i * 5;
            Some(start)
        })
        .collect();
    for cut in 0..bytes.len() {
        let (read, error) = read_all(&bytes[..cut], ReadOptions::default());
        assert_eq!(error.is_none(), boundaries.contains(&cut), "cut at {cut}");
        assert_eq!(
            scan_all(&bytes[..cut], CrcPolicy::Check).is_ok(),
            boundaries.contains(&cut)
        );
        for (index, record) in read {
            assert_eq!(record, records[index as usize]);
        }
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let (read, error) = read_all(&flipped[..], ReadOptions::default());
        let Some(Error::Damaged { at, .. }) = error else {
            panic!("bit {bit}: {error:?}");
        };
        let record = boundaries.iter().rposition(|&start| start <= bit / 8).unwrap();
        assert!(
            at.record.is_none() || at.record == Some(record as u64),
            "bit {bit}: {at}"
        );
        for (index, record) in read {
            assert_eq!(record, records[index as usize]);
        }
        assert!(scan_all(&flipped, CrcPolicy::Check).is_err());
    }
}

#[test]
fn a_claimed_length_is_not_allocated() {
    // 2^40 bytes with a right checksum, in a file of a few.
    let mut bytes = super::frame::header_of(1 << 40).to_vec();
    bytes.extend([7; 188]);
    let options = ReadOptions::default();
    for (options, reason) in [
        (
            options,
            "1099511627776 bytes is claimed, over the limit of 2147483648 bytes",
        ),
        (
            options.max_record_bytes(u64::MAX),
            "the file is cut short: it ends 200 bytes into the record",
        ),
    ] {
        let mut reader = Reader::new(&bytes[..], "file", options).unwrap();
        let error = reader.next().unwrap_err().to_string();
        assert!(
            error.contains("file, record 0, byte 0: ") && error.contains(reason),
            "{error}"
        );
        assert!(!reader.can_continue());
        assert!(reader.next().unwrap().is_none());
    }
    // By path, the end is known beforehand.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tfrecord");
    std::fs::write(&path, &bytes).unwrap();
    let mut reader = Reader::open(&path, options.max_record_bytes(u64::MAX)).unwrap();
    let error = reader.next().unwrap_err().to_string();
    assert!(
        error.contains("x.tfrecord, record 0, byte 0: ") && error.contains("claimed, 188 bytes follow"),
        "{error}"
    );
    let bytes = super::frame::header_of(u64::MAX);
    assert!(read_all(&bytes[..], ReadOptions::default()).1.is_some());
}

#[test]
fn large_records_and_skipped_checks_work() {
    let records = vec![vec![1; 3_000_000], vec![], vec![2; 700_000]];
    let mut bytes = write_all(&records, Compression::Plain);
    bytes[1_000_000] ^= 1;
    let (read, error) = read_all(&bytes[..], ReadOptions::default());
    assert_eq!(read.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2]);
    assert!(error.unwrap().to_string().contains("payload checksum"));
    let (read, error) = read_all(&bytes[..], ReadOptions::default().crc(CrcPolicy::Skip));
    assert!(error.is_none());
    assert_eq!(read.len(), 3);
}

#[test]
fn a_failing_sink_fails_every_call_from_then_on() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for compression in ALL {
        let mut writer = Writer::new(Full, compression).unwrap();
        // Incompressible, so that it passes every buffer.
        let mut state = 1u64;
        let record: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(1_000_000)
        .collect();
        let error = writer.write(&record).unwrap_err();
        assert!(
            matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull),
            "{error}"
        );
        assert!(writer.write(b"x").is_err());
        assert!(writer.finish().is_err());
    }
    for (compression, level) in [
        (Compression::Plain, 1),
        (Compression::Zlib, 10),
        (Compression::Gzip, -1),
        (Compression::Zstd, 23),
    ] {
        let options = WriteOptions::default().compression(compression).level(level);
        let error = Writer::with_options(Vec::new(), options).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(text) if text.contains("out of range")),
            "{error}"
        );
    }
}
