use std::io::{self, Read};

use std::sync::Arc;

use prep_formats::store::MemoryFile;
use prep_formats::tfrecord::{
    Compression, CrcPolicy, Index, IndexedReader, ReadOptions, Reader, SalvageOptions, Scanner, Writer,
    salvage,
};

/// Gives a few bytes a call, as a pipe may.
struct Trickle<'a> {
    rest: &'a [u8],
    step: usize,
}

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let step = self.step.min(buffer.len()).min(self.rest.len());
        buffer[..step].copy_from_slice(&self.rest[..step]);
        self.rest = &self.rest[step..];
        Ok(step)
    }
}

/// What a reader gives: a record, or `None` for a bad one.
type Records = Vec<Option<Vec<u8>>>;

/// Unpacked bytes asked for at most, so that a bomb costs the fuzzer no time.
const MOST: usize = 4 << 20;

fn read<R: Read>(source: R, options: ReadOptions) -> (Records, Option<Compression>) {
    let Ok(mut reader) = Reader::new(source, "fuzzed", options) else {
        return (Vec::new(), None);
    };
    let (mut records, mut bytes) = (Records::new(), 0);
    // After an error that loses the rest, readers give the end.
    while let Some(record) = reader.next().map(|record| record.map(<[u8]>::to_vec)).transpose() {
        let record = record.ok();
        bytes += record.as_ref().map_or(0, Vec::len) + 16;
        records.push(record);
        if bytes > MOST {
            break;
        }
    }
    (records, Some(reader.compression()))
}

/// The first byte: bit 0 skips the checksums of payloads, the rest is the bytes a call.
pub(crate) fn tfrecord(bytes: &[u8]) {
    let Some((&flags, file)) = bytes.split_first() else {
        return;
    };
    let crc = if flags & 1 == 1 {
        CrcPolicy::Skip
    } else {
        CrcPolicy::Check
    };
    let options = ReadOptions::default().crc(crc);
    let (records, compression) = read(file, options);
    let step = usize::from(flags >> 1) + 1;
    let trickled = read(Trickle { rest: file, step }, options);
    assert_eq!(compression, trickled.1);
    if compression == Some(Compression::Plain) {
        assert_eq!(records, trickled.0);
    } else {
        // How far a damaged stream unpacks may differ, what comes out may not.
        let common = records.len().min(trickled.0.len()).saturating_sub(1);
        assert_eq!(records[..common], trickled.0[..common]);
    }

    if compression == Some(Compression::Plain) {
        let mut scanner = Scanner::new(file, "fuzzed", crc);
        let mut scanned = Records::new();
        while let Some(record) = scanner.next().transpose() {
            scanned.push(record.ok().map(<[u8]>::to_vec));
        }
        assert_eq!(records, scanned, "reader and scanner differ");
        indexed(file, crc, &records);
    }
    if crc == CrcPolicy::Check && compression == Some(Compression::Plain) {
        salvaged(file, &records);
    }
    let _ = Index::from_bytes(file);
    let good: Vec<&Vec<u8>> = records.iter().flatten().collect();
    for compression in [Compression::Plain, Compression::Zlib] {
        let mut writer = Writer::new(Vec::new(), compression).expect("memory");
        for record in &good {
            writer.write(record).expect("memory");
        }
        let written = writer.finish().expect("memory");
        let again = read(&written[..], ReadOptions::default()).0;
        assert!(again.iter().flatten().eq(good.iter().copied()), "{compression:?}");
    }
}

/// By its index, a file gives the same records.
fn indexed(file: &[u8], crc: CrcPolicy, records: &Records) {
    let source = Arc::new(MemoryFile::new("fuzzed", file.to_vec()));
    let Ok(reader) = IndexedReader::new(source) else {
        return;
    };
    let reader = reader.crc(crc);
    assert_eq!(reader.num_records(), records.len() as u64);
    let mut scratch = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let found = reader.record(index as u64, &mut scratch).ok();
        assert_eq!(found, record.as_deref(), "record {index}");
    }
    let stored = reader.index().to_bytes();
    let loaded = Index::from_bytes(&stored).expect("our own index");
    assert_eq!(loaded.to_bytes(), stored);
}

/// What is salvaged reads back, starts with the records before the damage, and is all there is of a whole file.
fn salvaged(file: &[u8], records: &Records) {
    let source = MemoryFile::new("fuzzed", file.to_vec());
    let mut writer = Writer::new(Vec::new(), Compression::Plain).expect("memory");
    let found = salvage(&source, &mut writer, SalvageOptions::default()).expect("memory");
    let written = writer.finish().expect("memory");
    let again = read(&written[..], ReadOptions::default()).0;
    assert_eq!(again.len() as u64, found.num_records);
    let before_damage = records.iter().take_while(|record| record.is_some()).count();
    assert!(again.len() >= before_damage, "salvage gives less than a reader");
    assert_eq!(again[..before_damage], records[..before_damage]);
    assert_eq!(found.is_whole(), records.iter().all(Option::is_some));
}
