use std::sync::Arc;

use prep_formats::array_record::{
    Reader, RecordBatch, ScanOptions, Scratch, StreamOptions, StreamReader, WriteOptions, Writer, salvage,
    testing, verify,
};
use prep_formats::store::MemoryFile;

use crate::unpack;

/// Records read one by one; the rest is for `verify`.
const MOST_RECORDS: u64 = 3000;

/// The first byte: 1 puts right hashes over the file. The rest is the file with its zeros packed.
pub(crate) fn array_record(bytes: &[u8]) {
    let Some((&flags, packed)) = bytes.split_first() else {
        return;
    };
    let mut file = unpack(packed);
    if flags & 1 == 1 {
        testing::fix_hashes(&mut file);
    }
    let source = Arc::new(MemoryFile::new("fuzzed", file.clone()));
    salvaged(&source, &file);
    let verification = verify(source.clone()).expect("memory can be read");
    let Ok(reader) = Reader::from_source(source) else {
        assert!(!verification.is_ok(), "verify takes what the reader refuses");
        return;
    };
    if let Ok(options) = WriteOptions::parse(reader.writer_options()) {
        let text = options.to_string();
        let again = WriteOptions::parse(&text).expect("our own options string");
        assert_eq!(again.to_string(), text);
    }
    let mut scratch = Scratch::default();
    let mut fresh = Scratch::default();
    let mut readable = 0;
    for index in 0..reader.num_records().min(MOST_RECORDS) {
        let lost = verification
            .damaged
            .iter()
            .any(|damage| damage.records.contains(&index));
        match reader.record(index, &mut scratch) {
            Ok(record) => {
                assert!(!lost, "verify calls record {index} lost");
                // A context that has seen other chunks must not change a record.
                if index % 16 == 0 {
                    let again = reader.record(index, &mut fresh).map(<[u8]>::to_vec);
                    assert_eq!(again.ok().as_deref(), Some(record));
                }
                readable += 1;
            }
            Err(_) => assert!(lost, "verify does not know that record {index} is lost"),
        }
    }
    let chunks = reader.num_chunks().min(MOST_RECORDS);
    for chunk in 0..chunks {
        let _ = reader.chunk_info(chunk, &mut scratch);
    }
    if readable == reader.num_records() && verification.is_ok() {
        rewritten(&reader, &mut scratch);
        streamed(&reader, &file, &mut scratch);
    }
}

/// What is salvaged is a whole file with as many records as the report says.
fn salvaged(source: &MemoryFile, file: &[u8]) {
    let Ok((written, report)) = salvage(source, Vec::new(), |offset| assert!(offset <= file.len() as u64))
    else {
        return;
    };
    let written = Arc::new(MemoryFile::new("salvaged", written));
    let verification = verify(written.clone()).expect("memory can be read");
    assert!(
        verification.is_ok(),
        "salvaged, yet damaged: {:?}",
        verification.damaged.first()
    );
    let reader = Reader::from_source(written).expect("verified");
    assert_eq!(reader.num_records(), report.num_records);
}

/// Front to back, all at once and a list at a time, the records are the same as one by one.
fn streamed(reader: &Reader, file: &[u8], scratch: &mut Scratch) {
    let count = reader.num_records().min(MOST_RECORDS);
    let mut list: Vec<u64> = (0..count).rev().step_by(3).collect();
    list.extend(list.first().copied());
    let (mut listed, mut parallel) = (RecordBatch::default(), RecordBatch::default());
    reader.read(&list, &mut listed, scratch).expect("verified");
    reader.read_parallel(&list, &mut parallel, 2).expect("verified");
    for (place, &index) in list.iter().enumerate() {
        let record = reader.record(index, scratch).expect("verified");
        assert_eq!(listed.get(place), Some(record));
        assert_eq!(parallel.get(place), Some(record));
    }
    let mut scanned = 0;
    let mut scan = reader
        .scan(ScanOptions::default().batch_bytes(1000))
        .expect("verified");
    while let Some((first, batch)) = scan.next_batch().expect("verified") {
        assert_eq!(first, scanned);
        for record in batch.iter() {
            assert_eq!(reader.record(scanned, scratch).expect("verified"), record);
            scanned += 1;
        }
    }
    assert_eq!(scanned, reader.num_records());
    // A stream also minds what a reader by index need not look at, so it may refuse the end of a file; what it gives is right.
    let mut stream = StreamReader::new(file, "fuzzed", StreamOptions::default());
    let mut index = 0;
    while let Ok(Some(record)) = stream.next() {
        if index < reader.num_records() {
            assert_eq!(reader.record(index, scratch).expect("verified"), record);
        }
        index += 1;
    }
}

/// Written again, the records are the same.
fn rewritten(reader: &Reader, scratch: &mut Scratch) {
    let mut writer = Writer::new(Vec::new(), WriteOptions::uncompressed()).expect("options that exist");
    let mut records = Vec::new();
    let copied = reader.for_each(0..reader.num_records(), scratch, |_, record| {
        records.push(record.to_vec());
        writer.write(record)
    });
    copied.expect("every record was just read");
    let file = writer.finish().expect("memory takes all");
    let again = Reader::from_source(Arc::new(MemoryFile::new("rewritten", file))).expect("our own file");
    assert_eq!(again.num_records(), records.len() as u64);
    for (index, record) in records.iter().enumerate() {
        assert_eq!(again.record(index as u64, scratch).expect("our own file"), record);
    }
}
