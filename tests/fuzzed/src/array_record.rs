use std::sync::Arc;

use prep_formats::array_record::{Reader, Scratch, WriteOptions, Writer, testing, verify};
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
    let source = Arc::new(MemoryFile::new("fuzzed", file));
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
