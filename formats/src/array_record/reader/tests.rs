//! Every way of reading gives the same records; what is asked of sources is counted.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use proptest::prelude::*;

use super::*;
use crate::array_record::{StreamOptions, StreamReader, WriteOptions, Writer, testing};
use crate::store::{MemoryFile, Part};

/// A source that is not mapped, and counts what is asked of it.
#[derive(Debug)]
struct Counting {
    inner: MemoryFile,
    cost: u64,
    calls: AtomicUsize,
    parts: AtomicUsize,
    bytes: AtomicU64,
}

impl Counting {
    fn new(bytes: Vec<u8>, cost: u64) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryFile::new("counted", bytes),
            cost,
            calls: AtomicUsize::new(0),
            parts: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Calls, parts and bytes since the last time.
    fn take(&self) -> (usize, usize, u64) {
        (
            self.calls.swap(0, Relaxed),
            self.parts.swap(0, Relaxed),
            self.bytes.swap(0, Relaxed),
        )
    }
}

impl ReadAt for Counting {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.read_many(&mut [Part { offset, buffer }])
    }
    fn read_many(&self, parts: &mut [Part<'_>]) -> Result<()> {
        self.calls.fetch_add(1, Relaxed);
        for part in parts {
            self.parts.fetch_add(1, Relaxed);
            self.bytes.fetch_add(part.buffer.len() as u64, Relaxed);
            self.inner.read_at(part.offset, part.buffer)?;
        }
        Ok(())
    }
    fn request_cost(&self) -> u64 {
        self.cost
    }
}

fn file(options: &str, records: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap()
}

/// Records of 500 to 1,500 bytes.
fn texts(number: u32) -> Vec<Vec<u8>> {
    (0..number)
        .map(|i| {
            let length = 500 + (i.wrapping_mul(2_654_435_761) >> 16) as usize % 1000;
            (0..length).map(|k| (i as usize + k * k % 251) as u8).collect()
        })
        .collect()
}

fn readers(bytes: &[u8]) -> Vec<Reader> {
    let sources: [Arc<dyn ReadAt>; 3] = [
        Arc::new(MemoryFile::new("mapped", bytes.to_vec())),
        Counting::new(bytes.to_vec(), 0),
        Counting::new(bytes.to_vec(), 512 << 10),
    ];
    let lazily = sources
        .iter()
        .map(|source| Reader::from_source_lazy(source.clone()).unwrap());
    let at_once = sources
        .iter()
        .map(|source| Reader::from_source(source.clone()).unwrap());
    lazily.chain(at_once).collect()
}

const OPTIONS: [&str; 6] = [
    "uncompressed,group_size:1",
    "uncompressed,group_size:3",
    "zstd:1,group_size:1",
    "zstd:1,group_size:4",
    "snappy,group_size:2,pad_to_block_boundary:true",
    "brotli:1,group_size:5",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn every_way_gives_the_same_records(
        sizes in prop::collection::vec(prop_oneof![0usize..300, 60_000usize..70_000], 1..24),
        options in prop::sample::select(OPTIONS.to_vec()),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        cut in any::<(prop::sample::Index, prop::sample::Index)>(),
        num_threads in 0usize..5,
        batch_bytes in prop_oneof![1u64..200, 1000u64..500_000],
    ) {
        let records: Vec<Vec<u8>> = sizes
            .iter()
            .enumerate()
            .map(|(i, &size)| (0..size).map(|k| (i + k / 7) as u8).collect())
            .collect();
        let bytes = file(options, &records);
        let list: Vec<u64> = picks.iter().map(|pick| pick.index(records.len()) as u64).collect();
        let listed: Vec<&[u8]> = list.iter().map(|&i| &records[i as usize][..]).collect();
        let (a, b) = (cut.0.index(records.len() + 1), cut.1.index(records.len() + 1));
        let range = a.min(b) as u64..a.max(b) as u64;
        let ranged: Vec<&[u8]> = records[a.min(b)..a.max(b)].iter().map(|record| &record[..]).collect();
        let (mut batch, mut scratch) = (RecordBatch::default(), Scratch::default());
        for reader in readers(&bytes) {
            for _ in 0..2 {
                reader.read(&list, &mut batch, &mut scratch).unwrap();
                prop_assert_eq!(&batch.iter().collect::<Vec<_>>(), &listed);
                reader.read_parallel(&list, &mut batch, num_threads).unwrap();
                prop_assert_eq!(&batch.iter().collect::<Vec<_>>(), &listed);
                for (i, &index) in list.iter().enumerate() {
                    prop_assert_eq!(reader.record(index, &mut scratch).unwrap(), listed[i]);
                }
                reader.read_range(range.clone(), &mut batch, &mut scratch).unwrap();
                prop_assert_eq!(&batch.iter().collect::<Vec<_>>(), &ranged);
                let mut found = Vec::new();
                let options = ScanOptions::default()
                    .range(range.clone())
                    .num_threads(num_threads)
                    .batch_bytes(batch_bytes);
                reader
                    .scan(options)
                    .unwrap()
                    .for_each(|index, record| {
                        assert_eq!(index, range.start + found.len() as u64);
                        found.push(record.to_vec());
                        Ok(())
                    })
                    .unwrap();
                prop_assert_eq!(&found, &ranged);
                reader.drop_index();
                prop_assert_eq!(reader.index_memory(), 0);
            }
        }
    }
}

#[test]
fn indices_out_of_range_are_refused_before_anything_is_read() {
    let source = Counting::new(file("uncompressed", &texts(10)), 0);
    let reader = Reader::from_source(source.clone()).unwrap();
    source.take();
    let (mut batch, mut scratch) = (RecordBatch::default(), Scratch::default());
    batch.push(b"old");
    let backwards = std::ops::Range { start: 3, end: 2 };
    for result in [
        reader.read(&[0, 10, 1], &mut batch, &mut scratch),
        reader.read_parallel(&[u64::MAX], &mut batch, 2),
        reader.read_range(9..11, &mut batch, &mut scratch),
        reader.read_range(backwards, &mut batch, &mut scratch),
        reader.scan(ScanOptions::default().range(0..11)).map(|_| ()),
    ] {
        assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
        assert!(batch.is_empty());
    }
    assert_eq!(source.take(), (0, 0, 0));
    reader.read(&[], &mut batch, &mut scratch).unwrap();
    reader.read_range(4..4, &mut batch, &mut scratch).unwrap();
    assert!(batch.is_empty() && batch.get(0).is_none());
    let empty = Reader::from_source(Arc::new(MemoryFile::new("empty", file("zstd", &[])))).unwrap();
    assert!(
        empty
            .scan(ScanOptions::default().num_threads(3))
            .unwrap()
            .next_batch()
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_damaged_chunk_is_named_by_every_way_of_reading() {
    let records = texts(40);
    for options in ["uncompressed,group_size:1", "zstd:1,group_size:4"] {
        let mut bytes = file(options, &records);
        let whole = Reader::from_source(Arc::new(MemoryFile::new("whole", bytes.clone()))).unwrap();
        let chunk = whole.chunk_of(21).unwrap();
        let lost = whole.chunk_records(chunk).unwrap();
        bytes[whole.chunk_offset(chunk).unwrap() as usize + 90] ^= 1;
        let (mut batch, mut scratch) = (RecordBatch::default(), Scratch::default());
        for reader in readers(&bytes) {
            let all: Vec<u64> = (0..40).rev().collect();
            let mut errors = vec![
                reader.read(&all, &mut batch, &mut scratch).unwrap_err(),
                reader.read_parallel(&all, &mut batch, 3).unwrap_err(),
                reader.read_range(0..40, &mut batch, &mut scratch).unwrap_err(),
            ];
            assert!(batch.is_empty());
            for num_threads in [0, 1, 4] {
                let options = ScanOptions::default().num_threads(num_threads).batch_bytes(1);
                let mut scan = reader.scan(options).unwrap();
                let mut next = 0;
                loop {
                    match scan.next_batch() {
                        Ok(Some((first, batch))) => {
                            assert_eq!(first, next);
                            next += batch.len() as u64;
                        }
                        Ok(None) => panic!("the damage was not seen"),
                        Err(error) => break errors.push(error),
                    }
                }
                assert_eq!(next, lost.start);
                assert!(scan.next_batch().unwrap().is_none());
            }
            for error in errors {
                let place = format!(", record {}, byte ", lost.start);
                assert!(matches!(error, Error::Damaged { .. }), "{error}");
                assert!(error.to_string().contains(&place), "{error}");
            }
            let others: Vec<u64> = (0..40).filter(|index| !lost.contains(index)).collect();
            reader.read(&others, &mut batch, &mut scratch).unwrap();
            for (i, &index) in others.iter().enumerate() {
                assert_eq!(&batch[i], records[index as usize]);
            }
        }
    }
}

#[test]
fn a_scan_that_is_dropped_stops_its_threads() {
    let bytes = file("zstd:1", &texts(500));
    let reader = Reader::from_source(Arc::new(MemoryFile::new("x", bytes))).unwrap();
    let options = ScanOptions::default().num_threads(3).batch_bytes(1000);
    let mut scan = reader.scan(options).unwrap();
    assert!(scan.next_batch().unwrap().is_some());
    drop(scan);
    // The threads' readers are gone with them.
    assert_eq!(Arc::strong_count(&reader.inner), 1);
}

#[test]
fn opening_lazily_reads_little_of_a_large_footer() {
    let records: Vec<Vec<u8>> = vec![vec![1]; 30_000];
    let source = Counting::new(file("uncompressed,group_size:1", &records), 0);
    let reader = Reader::from_source_lazy(source.clone()).unwrap();
    assert_eq!((reader.num_records(), reader.num_chunks()), (30_000, 30_000));
    assert!(reader.writer_options().contains("uncompressed"));
    let (calls, _, bytes) = source.take();
    assert!(calls <= 3 && bytes < 1500, "{calls} calls, {bytes} bytes");
    assert_eq!(reader.index_memory(), 0);
    reader.record(29_999, &mut Scratch::default()).unwrap();
    assert!((1..90_000).contains(&reader.index_memory()));

    let small = Counting::new(file("uncompressed", &texts(100)), 0);
    Reader::from_source_lazy(small.clone()).unwrap();
    let (calls, _, bytes) = small.take();
    assert!(calls == 2 && bytes < 1300, "{calls} calls, {bytes} bytes");
    // Where a request is dear, the footer comes whole.
    let remote = Counting::new(file("zstd", &texts(100)), 512 << 10);
    let reader = Reader::from_source_lazy(remote.clone()).unwrap();
    remote.take();
    reader.record(5, &mut Scratch::default()).unwrap();
    assert_eq!(remote.take().0, 1);
}

#[test]
fn near_chunks_of_an_unmapped_source_come_together() {
    let records = texts(2000);
    let source = Counting::new(file("uncompressed,group_size:1", &records), 16 << 10);
    let reader = Reader::from_source(source.clone()).unwrap();
    source.take();
    let (mut batch, mut scratch) = (RecordBatch::default(), Scratch::default());
    // Neighbours, two far places, and one of them twice: three requests in one call.
    let list = [1500, 3, 1, 2, 700, 5, 3, 1501];
    reader.read(&list, &mut batch, &mut scratch).unwrap();
    for (i, &index) in list.iter().enumerate() {
        assert_eq!(&batch[i], records[index as usize]);
    }
    let (calls, parts, _) = source.take();
    assert_eq!((calls, parts), (1, 3));
    reader.read_range(0..2000, &mut batch, &mut scratch).unwrap();
    assert_eq!(batch.iter().collect::<Vec<_>>(), records);
    assert_eq!(source.take().0, 1);
}

#[test]
fn a_footer_damaged_behind_its_metadata_shows_with_the_index() {
    let bytes = file("uncompressed,group_size:1", &texts(50));
    let whole = Reader::from_source(Arc::new(MemoryFile::new("x", bytes.clone()))).unwrap();
    let footer = whole.footer_offset() as usize;
    for byte in footer..footer + 400 {
        let mut flipped = bytes.clone();
        flipped[byte] ^= 1;
        let source = Arc::new(MemoryFile::new("x", flipped));
        let error = Reader::from_source(source.clone()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        let Ok(lazy) = Reader::from_source_lazy(source) else {
            continue;
        };
        assert!(lazy.num_records() <= lazy.footer_offset());
        for result in [
            lazy.load_index(),
            lazy.record(0, &mut Scratch::default()).map(|_| ()),
            lazy.read(&[1], &mut RecordBatch::default(), &mut Scratch::default()),
            lazy.scan(ScanOptions::default()).map(|_| ()),
            lazy.chunk_info(0, &mut Scratch::default()).map(|_| ()),
        ] {
            assert!(matches!(result, Err(Error::Damaged { .. })), "{byte}: {result:?}");
        }
    }
}

#[test]
fn metadata_that_lie_are_refused_with_right_hashes() {
    let bytes = file("uncompressed,group_size:1", &texts(20));
    let reader = Reader::from_source(Arc::new(MemoryFile::new("x", bytes.clone()))).unwrap();
    let footer = reader.footer_offset() as usize;
    let mut opened = 0;
    for byte in footer + 8..footer + 160 {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[byte] = value;
            testing::fix_hashes(&mut changed);
            let source: Arc<dyn ReadAt> = Arc::new(MemoryFile::new("x", changed));
            let eager = Reader::from_source(source.clone()).map(|reader| reader.num_records());
            let lazy = Reader::from_source_lazy(source);
            // What both accept they understand alike; and what the lazy one accepts more is refused with the index.
            match (&eager, &lazy) {
                (Ok(number), Ok(lazy)) => assert_eq!(*number, lazy.num_records()),
                (Err(_), Ok(lazy)) => assert!(lazy.load_index().is_err()),
                (Err(_), Err(_)) => {}
                (Ok(_), Err(error)) => panic!("{byte}: only refused lazily: {error}"),
            }
            opened += usize::from(eager.is_ok());
        }
    }
    assert!(opened > 20, "{opened}");
}

#[test]
fn threads_read_while_the_index_is_dropped() {
    let records = texts(300);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.array_record");
    std::fs::write(&path, file("zstd:1,group_size:2", &records)).unwrap();
    let reader = Reader::open_lazy(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (reader, records) = (&reader, &records);
            scope.spawn(move || {
                let mut scratch = Scratch::default();
                for i in 0..600 {
                    let index = (i * 7 + thread * 31) % 300;
                    let record = reader.record(index, &mut scratch).unwrap();
                    assert_eq!(record, records[index as usize]);
                    reader.prefetch(index);
                    if i % 50 == thread {
                        reader.drop_index();
                    }
                }
            });
        }
    });
}

/// Builds a file from whole chunks of other files, as a writer does that closes chunks when it likes.
fn uneven(groups: &[&[Vec<u8>]]) -> Vec<u8> {
    use crate::array_record::footer::{Entry, Metadata, postscript_to_bytes};
    use crate::array_record::layout::{BLOCK, ChunkHeader, FIRST_CHUNK, hash, put_varint};
    let signature = file("uncompressed", &[])[..FIRST_CHUNK as usize].to_vec();
    let mut bytes = signature;
    let put = |bytes: &mut Vec<u8>, kind: ChunkType, records: &[Vec<u8>]| {
        let (mut sizes, mut data) = (Vec::new(), vec![0]);
        for record in records {
            put_varint(&mut sizes, record.len() as u64);
        }
        put_varint(&mut data, sizes.len() as u64);
        data.extend(&sizes);
        data.extend(records.concat());
        let begin = bytes.len() as u64;
        let header = ChunkHeader {
            data_size: data.len() as u64,
            data_hash: hash(&data),
            chunk_type: kind,
            num_records: records.len() as u64,
            decoded_data_size: records.iter().map(|record| record.len() as u64).sum(),
        };
        bytes.extend(header.to_bytes());
        bytes.extend(data);
        assert!((bytes.len() as u64) < BLOCK);
        begin
    };
    let mut entries = Vec::new();
    let mut num_records = 0;
    for (i, group) in groups.iter().enumerate() {
        if i % 2 == 1 {
            // Chunks that are not of records may lie between.
            put(&mut bytes, ChunkType::Padding, &[]);
        }
        let entry = Entry {
            chunk_offset: put(&mut bytes, ChunkType::Simple, group),
            decoded_data_size: group.concat().len() as u64,
            num_records: group.len() as u64,
        };
        let mut encoded = Vec::new();
        entry.put(&mut encoded);
        entries.push(encoded);
        num_records += entry.num_records;
    }
    let metadata = Metadata {
        num_chunks: groups.len() as u64,
        num_records,
        writer_options: String::new(),
    };
    entries.insert(0, metadata.to_bytes());
    let footer = put(&mut bytes, ChunkType::Simple, &entries);
    let end = BLOCK as usize;
    let rest = end - bytes.len();
    let padding = ChunkHeader {
        data_size: rest as u64 - 40,
        data_hash: hash(&vec![0; rest - 40]),
        chunk_type: ChunkType::Padding,
        num_records: 0,
        decoded_data_size: 0,
    };
    bytes.extend(padding.to_bytes());
    bytes.resize(end, 0);
    // The last block is that of any file, but for the footer's place.
    let mut last = file("uncompressed", &[])[end..].to_vec();
    let old = postscript_to_bytes(FIRST_CHUNK);
    let new = postscript_to_bytes(footer);
    assert_eq!(old.len() + 1, new.len());
    let mut chunk = Vec::new();
    put(&mut chunk, ChunkType::Simple, &[new.clone(), new.clone(), new]);
    let rest = last.len() - 24 - chunk.len();
    last.truncate(24);
    last.extend(chunk);
    let padding = ChunkHeader {
        data_size: rest as u64 - 40,
        data_hash: hash(&vec![0; rest - 40]),
        ..padding
    };
    last.extend(padding.to_bytes());
    last.resize(end, 0);
    bytes.extend(last);
    bytes
}

#[test]
fn chunks_of_any_number_of_records_are_found() {
    let records: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; usize::from(i)]).collect();
    for cuts in [
        vec![1, 4, 4, 3, 20, 8],
        vec![5, 5, 5, 25],
        vec![40],
        vec![8, 1, 8, 1, 22],
    ] {
        let mut groups = Vec::new();
        let mut start = 0;
        for cut in &cuts {
            groups.push(&records[start..start + cut]);
            start += cut;
        }
        let bytes = uneven(&groups);
        for reader in readers(&bytes) {
            assert_eq!(reader.num_records(), 40);
            assert_eq!(reader.writer_options(), "");
            let (mut batch, mut scratch) = (RecordBatch::default(), Scratch::default());
            let list: Vec<u64> = (0..80).map(|i| i * 27 % 40).collect();
            reader.read(&list, &mut batch, &mut scratch).unwrap();
            for (i, &index) in list.iter().enumerate() {
                assert_eq!(&batch[i], records[index as usize]);
            }
            let mut first = 0;
            for (chunk, cut) in cuts.iter().enumerate() {
                let end = first + *cut as u64;
                assert_eq!(reader.chunk_records(chunk as u64).unwrap(), first..end);
                first = end;
            }
        }
        let (options, mut count) = (StreamOptions::default().need_footer(false), 0);
        let mut stream = StreamReader::new(&bytes[..], "x", options);
        while let Ok(Some(record)) = stream.next() {
            assert_eq!(record, records[count]);
            count += 1;
        }
        assert_eq!(count, 40);
    }
}
