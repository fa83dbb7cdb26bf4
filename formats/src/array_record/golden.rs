//! Tests against files made by Google's `array_record`; `tests/golden/array_record/README.md` says how.

use std::io::Read;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::array_record::{Compression, Reader, Scratch, WriteOptions, Writer, verify};
use crate::store::{MappedFile, MemoryFile, PositionedFile};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/array_record");

fn manifest() -> Value {
    let text = std::fs::read(format!("{FOLDER}/manifest.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn bytes_of(file: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let stored = std::fs::File::open(format!("{FOLDER}/{file}.gz")).unwrap();
    flate2::read::GzDecoder::new(stored)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

fn reader_of(name: &str, bytes: Vec<u8>) -> crate::Result<Reader> {
    Reader::from_source(Arc::new(MemoryFile::new(name, bytes)))
}

fn records_of(reader: &Reader) -> crate::Result<Vec<Vec<u8>>> {
    let mut records = Vec::new();
    reader.for_each(
        0..reader.num_records(),
        &mut Scratch::default(),
        |index, record| {
            assert_eq!(index, records.len() as u64);
            records.push(record.to_vec());
            Ok(())
        },
    )?;
    Ok(records)
}

fn digest(records: &[Vec<u8>]) -> String {
    let mut hasher = Sha256::new();
    for record in records {
        hasher.update((record.len() as u64).to_le_bytes());
        hasher.update(record);
    }
    hex::encode(hasher.finalize())
}

#[test]
fn files_of_googles_writer_read_equal_in_order_and_at_random() {
    let manifest = manifest();
    let mut count = 0;
    for file in manifest["files"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        let reader = reader_of(name, bytes_of(name)).unwrap();
        let records = records_of(&reader).unwrap();
        assert_eq!(digest(&records), file["sha256_of_len_prefixed"], "{name}");
        assert_eq!(
            reader.num_records(),
            file["num_records"].as_u64().unwrap(),
            "{name}"
        );
        assert_eq!(
            reader.writer_options(),
            file["reader_writer_options_string"],
            "{name}"
        );
        if let Some(num_chunks) = file["num_chunks"].as_u64() {
            assert_eq!(reader.num_chunks(), num_chunks, "{name}");
            assert_eq!(
                reader.footer_offset(),
                file["footer_offset"].as_u64().unwrap(),
                "{name}"
            );
        }
        let mut scratch = Scratch::default();
        for i in (0..records.len()).rev() {
            assert_eq!(
                reader.record(i as u64, &mut scratch).unwrap(),
                records[i],
                "{name} {i}"
            );
        }
        count += 1;
    }
    assert!(count > 40, "only {count} files");
}

#[test]
fn lists_scans_and_streams_of_googles_files_give_the_same() {
    use crate::array_record::{RecordBatch, ScanOptions, StreamOptions, StreamReader};
    let manifest = manifest();
    let (mut batch, mut scratch) = (RecordBatch::default(), Scratch::default());
    for file in manifest["files"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        let bytes = bytes_of(name);
        let reader = reader_of(name, bytes.clone()).unwrap();
        let records = records_of(&reader).unwrap();
        let backwards: Vec<u64> = (0..reader.num_records()).rev().collect();
        reader.read(&backwards, &mut batch, &mut scratch).unwrap();
        assert!(batch.iter().eq(records.iter().rev()), "{name}");
        reader.read_parallel(&backwards, &mut batch, 2).unwrap();
        assert!(batch.iter().eq(records.iter().rev()), "{name}");
        let mut next = 0;
        let scan = reader.scan(ScanOptions::default().num_threads(2).batch_bytes(5000));
        scan.unwrap()
            .for_each(|index, record| {
                assert_eq!(record, records[index as usize], "{name}");
                next += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(next, records.len());
        let mut stream = StreamReader::new(&bytes[..], name, StreamOptions::default());
        let mut count = 0;
        while let Some(record) = stream.next().unwrap() {
            assert_eq!(record, records[count], "{name}");
            count += 1;
        }
        assert_eq!(count, records.len(), "{name}");
        assert_eq!(stream.writer_options(), Some(reader.writer_options()), "{name}");
    }
}

#[test]
fn mapped_positioned_and_memory_sources_read_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "straddle_repeated.array_record",
        "m_zstd3_g7.array_record",
        "m_uncompressed_g256.array_record",
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes_of(name)).unwrap();
        let in_memory = records_of(&reader_of(name, bytes_of(name)).unwrap()).unwrap();
        let mapped = Reader::from_source(Arc::new(MappedFile::open(&path).unwrap())).unwrap();
        let positioned = Reader::from_source(Arc::new(PositionedFile::open(&path).unwrap())).unwrap();
        assert_eq!(records_of(&mapped).unwrap(), in_memory);
        assert_eq!(records_of(&positioned).unwrap(), in_memory);
        // One scratch for several readers never mixes their chunks up.
        let mut scratch = Scratch::default();
        let other = reader_of("other", bytes_of("m_zstd3_g1.array_record")).unwrap();
        for (i, record) in in_memory.iter().enumerate() {
            assert_eq!(mapped.record(i as u64, &mut scratch).unwrap(), record);
            other.record(0, &mut scratch).unwrap();
            assert_eq!(positioned.record(i as u64, &mut scratch).unwrap(), record);
            mapped.prefetch(i as u64);
        }
        positioned.prefetch(0);
        mapped.prefetch(u64::MAX);
    }
}

#[test]
fn our_writer_gives_googles_bytes_for_uncompressed_files() {
    let manifest = manifest();
    let mut same = 0;
    for file in manifest["files"].as_array().unwrap() {
        let (name, options) = (
            file["file"].as_str().unwrap(),
            file["writer_options"].as_str().unwrap(),
        );
        let bytes = bytes_of(name);
        let records = records_of(&reader_of(name, bytes.clone()).unwrap()).unwrap();
        let options = WriteOptions::parse(options).unwrap();
        let mut writer = Writer::new(Vec::new(), options.clone()).unwrap();
        for record in &records {
            writer.write(record).unwrap();
        }
        let ours = writer.finish().unwrap();
        if options.compression() == Compression::Uncompressed {
            assert!(ours == bytes, "{name} differs from Google's");
            same += 1;
        }
        // Compressed bytes depend on the codec's version; what they hold does not.
        assert_eq!(
            records_of(&reader_of(name, ours).unwrap()).unwrap(),
            records,
            "{name}"
        );
    }
    assert!(same >= 15, "only {same} files");
}

#[test]
fn option_strings_are_taken_and_recorded_as_google_does() {
    for case in manifest()["option_strings"].as_array().unwrap() {
        let text = case["options"].as_str().unwrap();
        let parsed = WriteOptions::parse(text);
        assert_eq!(parsed.is_ok(), case["ok"], "{text}: {parsed:?}");
        if let Ok(options) = parsed {
            assert_eq!(options.to_string(), case["as_recorded"], "{text}");
        }
    }
}

#[test]
fn damaged_files_come_out_as_they_should() {
    for file in manifest()["bad"].as_array().unwrap() {
        let (name, expect) = (file["file"].as_str().unwrap(), &file["expect"]);
        let bytes = bytes_of(name);
        let open = expect["open"].as_str().unwrap();
        let verified = verify(Arc::new(MemoryFile::new(name, bytes.clone()))).unwrap();
        let reader = match reader_of(name, bytes) {
            Err(error) => {
                assert_ne!(open, "ok", "{error}");
                assert!(
                    matches!(error, Error::Damaged { .. } | Error::Unsupported { .. }),
                    "{error}"
                );
                assert!(error.to_string().starts_with(name), "{error}");
                assert_eq!(verified.num_records, None);
                assert!(!verified.is_ok());
                continue;
            }
            Ok(reader) => reader,
        };
        assert_ne!(open, "error", "{name}");
        assert_eq!(
            Some(reader.num_records()),
            expect["num_records"].as_u64(),
            "{name}"
        );
        let damaged: Vec<u64> = serde_json::from_value(expect["damaged"].clone()).unwrap();
        let mut scratch = Scratch::default();
        let mut lost = Vec::new();
        for index in 0..reader.num_records() {
            match reader.record(index, &mut scratch) {
                // Where hashes are right, transposed fields may join to other records.
                Ok(_) if damaged.contains(&index) && name.contains("transpose_fuzz") => {}
                Ok(record) => {
                    assert!(!damaged.contains(&index), "{name} {index}");
                    let digest = hex::encode(Sha256::digest(record));
                    assert_eq!(digest, file["records"][index as usize], "{name} {index}");
                }
                Err(error) => {
                    assert!(damaged.contains(&index), "{error}");
                    assert!(
                        error
                            .to_string()
                            .starts_with(&format!("{name}, record {index}, byte ")),
                        "{error}"
                    );
                    lost.push(index);
                }
            }
        }
        let listed: Vec<u64> = verified
            .damaged
            .iter()
            .flat_map(|damage| damage.records.clone())
            .collect();
        assert_eq!(listed, lost, "{name}");
    }
}

/// A small file of a few chunks for tests that damage it everywhere.
fn small_file(options: &str) -> (Vec<u8>, Vec<Vec<u8>>) {
    let records: Vec<Vec<u8>> = (0..7u8).map(|i| vec![i; usize::from(i) * 3]).collect();
    let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
    for record in &records {
        writer.write(record).unwrap();
    }
    (writer.finish().unwrap(), records)
}

#[test]
fn every_cut_is_an_error_and_no_flip_gives_other_records() {
    for options in [
        "uncompressed",
        "zstd,group_size:3",
        "brotli,group_size:3",
        "snappy,group_size:2",
    ] {
        let (bytes, records) = small_file(options);
        // Cut in the data and the footer, around each block boundary, and at the end.
        for cut in (0..600).chain(65_500..65_900).chain(131_000..131_072) {
            let error = reader_of("cut", bytes[..cut].to_vec()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
        }
        let used = reader_of("whole", bytes.clone()).unwrap().footer_offset() as usize + 200;
        for byte in (0..used).chain(65_536..65_720) {
            let mut flipped = bytes.clone();
            flipped[byte] ^= 1 << (byte % 8);
            let verified = verify(Arc::new(MemoryFile::new("flipped", flipped.clone()))).unwrap();
            assert!(!verified.is_ok(), "{options}: flip at {byte} not seen");
            let Ok(reader) = reader_of("flipped", flipped) else {
                continue;
            };
            let mut scratch = Scratch::default();
            let mut lost = 0;
            for (i, record) in records.iter().enumerate() {
                match reader.record(i as u64, &mut scratch) {
                    Ok(read) => assert_eq!(read, record),
                    Err(error) => {
                        assert!(matches!(error, Error::Damaged { .. }), "{error}");
                        lost += 1;
                    }
                }
            }
            let listed: u64 = verified
                .damaged
                .iter()
                .map(|d| d.records.end - d.records.start)
                .sum();
            assert_eq!(listed, lost);
            assert!(lost <= 3, "one chunk at most is lost");
        }
    }
}

#[test]
fn block_headers_padding_and_signature_are_verified_but_not_needed() {
    let bytes = bytes_of("straddle_repeated.array_record");
    let records = records_of(&reader_of("whole", bytes.clone()).unwrap()).unwrap();
    assert!(
        verify(Arc::new(MemoryFile::new("whole", bytes.clone())))
            .unwrap()
            .is_ok()
    );
    for byte in [3, 30, 65_536, 65_536 * 2 + 20, bytes.len() - 5] {
        let mut flipped = bytes.clone();
        flipped[byte] ^= 1;
        let verified = verify(Arc::new(MemoryFile::new("flipped", flipped.clone()))).unwrap();
        assert_eq!(verified.damaged.len(), 1, "byte {byte}: {verified:?}");
        assert!(verified.damaged[0].records.is_empty());
        if byte < bytes.len() - 65_536 {
            assert_eq!(
                records_of(&reader_of("flipped", flipped).unwrap()).unwrap(),
                records
            );
        }
    }
}

#[test]
fn wrong_arguments_are_named() {
    let (bytes, _) = small_file("uncompressed");
    let reader = reader_of("small", bytes).unwrap();
    let mut scratch = Scratch::default();
    for result in [
        reader.record(7, &mut scratch).map(|_| ()),
        reader.record(u64::MAX, &mut Scratch::default()).map(|_| ()),
        reader.chunk_of(7).map(|_| ()),
        reader.chunk_info(7, &mut Scratch::default()).map(|_| ()),
        reader.for_each(3..8, &mut Scratch::default(), |_, _| Ok(())),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(text) if text.contains("`small`")),
            "{error}"
        );
    }
}
