//! Faults that users of other readers reported, each with the right answer.

use std::io::{self, Read};
use std::path::PathBuf;

use crate::tfrecord::frame::header_of;
use crate::tfrecord::{Compression, CrcPolicy, ReadOptions, Reader, Scanner, Writer};
use crate::{Error, Position};

fn records(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|i| vec![i; 20 + usize::from(i) % 9]).collect()
}

fn write(records: &[Vec<u8>], compression: Compression) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), compression).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    writer.finish().unwrap()
}

/// Where each frame begins, and the end.
fn starts(records: &[Vec<u8>]) -> Vec<usize> {
    let mut starts = vec![0];
    for record in records {
        starts.push(starts[starts.len() - 1] + record.len() + 16);
    }
    starts
}

/// Gives `step` bytes a call, and is interrupted before each third.
struct Trickle<'a> {
    bytes: &'a [u8],
    step: usize,
    calls: usize,
}

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let length = self.step.min(buffer.len()).min(self.bytes.len());
        buffer[..length].copy_from_slice(&self.bytes[..length]);
        self.bytes = &self.bytes[length..];
        Ok(length)
    }
}

/// The records up to the end or the first error.
fn read(source: impl Read, options: ReadOptions) -> (Vec<Vec<u8>>, Option<Error>) {
    let mut found = Vec::new();
    let mut reader = match Reader::new(source, "x.tfrecord", options) {
        Ok(reader) => reader,
        Err(error) => return (found, Some(error)),
    };
    loop {
        match reader.next() {
            Ok(Some(record)) => found.push(record.to_vec()),
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

/// jerry73204/rust-tfrecord#3: a short read inside a length was taken for the end of the file.
#[test]
fn few_bytes_a_call_are_not_the_end() {
    let records = records(50);
    let starts = starts(&records);
    for compression in [
        Compression::Plain,
        Compression::Gzip,
        Compression::Zlib,
        Compression::Zstd,
    ] {
        let bytes = write(&records, compression);
        for step in 1..=7 {
            let trickle = Trickle {
                bytes: &bytes,
                step,
                calls: 0,
            };
            let (found, error) = read(trickle, ReadOptions::default());
            assert_eq!(
                (found, error.map(|error| error.to_string())),
                (records.clone(), None),
                "{compression:?} {step}"
            );
        }
    }
    // Cut inside each length field, between records, and behind each length.
    let bytes = write(&records, Compression::Plain);
    for (index, &start) in starts[..50].iter().enumerate() {
        for inside in 0..=12 {
            let bytes = &bytes[..start + inside];
            let trickle = Trickle {
                bytes,
                step: 1 + inside % 7,
                calls: 0,
            };
            let (found, error) = read(trickle, ReadOptions::default());
            assert_eq!(found, records[..index]);
            let text = error.map(|error| error.to_string());
            match inside {
                0 => assert_eq!(text, None),
                _ => {
                    let part = if inside < 12 { "length" } else { "payload" };
                    let wanted = format!(
                        "x.tfrecord, record {index}, byte {start}: the file is cut short: it ends {inside} bytes into the record, in its {part}"
                    );
                    assert_eq!(text, Some(wanted));
                }
            }
        }
    }
}

/// tensorflow/tensorflow#26991: one bad record ends a long run, and there is no choice to skip it.
#[test]
fn one_bad_record_can_be_skipped() {
    let records = records(100);
    let start = starts(&records)[57];
    let mut bytes = write(&records, Compression::Plain);
    // Its stored checksum.
    bytes[start + 12 + records[57].len()] ^= 0x80;
    let (found, error) = read(&bytes[..], ReadOptions::default());
    assert_eq!(found, records[..57]);
    let error = error.unwrap().to_string();
    assert!(
        error.starts_with(&format!(
            "x.tfrecord, record 57, byte {start}: payload checksum is "
        )),
        "{error}"
    );

    let mut reader = Reader::new(&bytes[..], "x.tfrecord", ReadOptions::default()).unwrap();
    let mut scanner = Scanner::new(&bytes, "x.tfrecord", CrcPolicy::Check);
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    loop {
        let index = reader.record_index();
        assert_eq!(
            (index, reader.offset()),
            (scanner.record_index(), scanner.offset())
        );
        let next = reader.next();
        match (&next, scanner.next()) {
            (Ok(one), Ok(other)) => assert_eq!(*one, other),
            (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
            other => panic!("{other:?}"),
        }
        match next {
            Ok(Some(record)) => found.push(record.to_vec()),
            Ok(None) => break,
            Err(_) => {
                assert!(reader.can_continue() && scanner.can_continue());
                skipped.push(index);
            }
        }
    }
    assert_eq!(skipped, [57]);
    assert_eq!(found, [&records[..57], &records[58..]].concat());
    // A payload that is not looked at is as it lies in the file.
    let (found, error) = read(&bytes[..], ReadOptions::default().crc(CrcPolicy::Skip));
    assert!(error.is_none());
    assert_eq!(found, records);
}

/// tensorflow/tensorflow#20835: over a list of many files, the message gives an offset and no file.
#[test]
fn of_many_files_the_damaged_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let records = records(8);
    let paths: Vec<PathBuf> = (0..20)
        .map(|i| folder.path().join(format!("part-{i:05}-of-00020.tfrecord")))
        .collect();
    for (i, path) in paths.iter().enumerate() {
        let mut bytes = write(&records, Compression::Plain);
        if i == 13 {
            bytes[starts(&records)[5] + 14] ^= 1;
        }
        std::fs::write(path, bytes).unwrap();
    }
    let (mut num_records, mut errors) = (0, Vec::new());
    for path in &paths {
        let mut reader = Reader::open(path, ReadOptions::default()).unwrap();
        loop {
            match reader.next() {
                Ok(Some(_)) => num_records += 1,
                Ok(None) => break,
                Err(error) => errors.push(error),
            }
        }
    }
    assert_eq!(num_records, 20 * 8 - 1);
    let [Error::Damaged { at, .. }] = &errors[..] else {
        panic!("{errors:?}");
    };
    let wanted = Position {
        path: paths[13].to_string_lossy().into_owned(),
        record: Some(5),
        offset: Some(starts(&records)[5] as u64),
    };
    assert_eq!(*at, wanted);
    let missing = Reader::open(
        folder.path().join("part-00020-of-00020.tfrecord"),
        ReadOptions::default(),
    );
    let error = missing.unwrap_err().to_string();
    assert!(
        error.contains("part-00020-of-00020.tfrecord: could not open"),
        "{error}"
    );
}

/// tensorflow/tensorflow#6164: a compressed file stops part-way without an error.
#[test]
fn a_cut_compressed_file_is_never_a_short_success() {
    let records = records(60);
    for compression in [Compression::Gzip, Compression::Zlib, Compression::Zstd] {
        let bytes = write(&records, compression);
        for cut in 1..bytes.len() {
            let options = ReadOptions::default().compression(compression);
            let (found, error) = read(&bytes[..cut], options);
            assert_eq!(found, records[..found.len()]);
            let error = error.unwrap_or_else(|| panic!("{compression:?} cut at {cut} was read"));
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
        }
        let (found, error) = read(&bytes[..bytes.len() - 30], ReadOptions::default());
        let error = error.unwrap().to_string();
        assert!(
            error.contains("x.tfrecord, record ") && error.contains(" cut short"),
            "{error}"
        );
        assert!(found.len() < 60);
    }
    // Two members, cut between two records, and in the middle of one.
    let plain = write(&records, Compression::Plain);
    for at in [starts(&records)[30], 1000] {
        let members = [&plain[..at], &plain[at..]].map(|part| {
            use std::io::Write;
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(part).unwrap();
            encoder.finish().unwrap()
        });
        let (found, error) = read(&members.concat()[..], ReadOptions::default());
        assert!(error.is_none(), "{error:?}");
        assert_eq!(found, records);
        // What follows the last member is no member.
        let (found, error) = read(
            &[&members.concat()[..], b"trailing"].concat()[..],
            ReadOptions::default(),
        );
        assert_eq!(found, records);
        assert!(error.unwrap().to_string().contains("something follows it"));
    }
}

/// shahrukhqasim/TIES-2.0#14: the wrong compression was assumed, and the message explained nothing.
#[test]
fn names_do_not_decide_how_a_file_is_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let records = records(5);
    let kinds = [
        (Compression::Plain, "a plain TFRecord file"),
        (Compression::Gzip, "a gzip file"),
        (Compression::Zlib, "a zlib file"),
        (Compression::Zstd, "a zstd file"),
    ];
    for (written, seen) in kinds {
        for name in ["x.tfrecord", "x.tfrecord.gz"] {
            let path = folder.path().join(name);
            std::fs::write(&path, write(&records, written)).unwrap();
            let mut reader = Reader::open(&path, ReadOptions::default()).unwrap();
            assert_eq!(reader.compression(), written);
            for record in &records {
                assert_eq!(reader.next().unwrap(), Some(&record[..]));
            }
            assert_eq!(reader.next().unwrap(), None);
            for (told, expected) in kinds {
                let options = ReadOptions::default().compression(told);
                let result = Reader::open(&path, options);
                if told == written {
                    assert!(result.is_ok());
                    continue;
                }
                let error = result.unwrap_err().to_string();
                let wanted = format!("{name}, byte 0: {expected} was expected, but it begins as {seen}");
                assert!(error.contains(&wanted), "{error}");
            }
        }
    }
    // What begins as nothing known is named by its first bytes.
    let options = ReadOptions::default().compression(Compression::Gzip);
    let error = Reader::new(&b"<html>not found"[..], "x", options)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a gzip file was expected, but it begins with the bytes 3c68746d6c"),
        "{error}"
    );
}

/// NVIDIA/DALI#6405: a length beyond the buffer led to reading past its end.
#[test]
fn a_length_beyond_the_end_is_an_error_at_once() {
    let mut bytes = header_of(1 << 40).to_vec();
    bytes.resize(200, 7);
    let options = ReadOptions::default().max_record_bytes(u64::MAX);
    for crc in [CrcPolicy::Check, CrcPolicy::Skip] {
        let (found, error) = read(&bytes[..], options.crc(crc));
        assert!(found.is_empty());
        let error = error.unwrap().to_string();
        assert!(
            error.contains("record 0, byte 0: the file is cut short"),
            "{error}"
        );
        assert!(Scanner::new(&bytes, "x", crc).next().is_err());
        let (found, error) = read(&bytes[..9], options.crc(crc));
        assert!(found.is_empty());
        let error = error.unwrap().to_string();
        assert!(
            error.contains("it ends 9 bytes into the record, in its length"),
            "{error}"
        );
        assert!(Scanner::new(&bytes[..9], "x", crc).next().is_err());
    }
    for length in [u64::MAX, u64::MAX - 15, u64::MAX - 16, 1 << 63, 1 << 32] {
        let bytes = header_of(length);
        assert!(read(&bytes[..], options).1.is_some());
        assert!(Scanner::new(&bytes, "x", CrcPolicy::Skip).next().is_err());
    }
}
