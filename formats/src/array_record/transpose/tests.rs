//! Chunks put together by hand, chunks of Google's writer, and both with changed bytes under right hashes.

use std::io::Read;
use std::sync::Arc;

use proptest::prelude::*;

use crate::array_record::chunk::{Decoded, Fault, Located, Values};
use crate::array_record::codec::Compressor;
use crate::array_record::layout::{ChunkHeader, ChunkType, put_varint};
use crate::array_record::transpose::message_id::{NO_OP, NON_PROTO, START_OF_MESSAGE, START_OF_SUBMESSAGE};
use crate::array_record::{Compression, Reader};
use crate::store::MemoryFile;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/array_record");

fn header_of(data: &[u8], num_records: u64, decoded_data_size: u64) -> ChunkHeader {
    ChunkHeader {
        data_size: data.len() as u64,
        data_hash: 0,
        chunk_type: ChunkType::Transposed,
        num_records,
        decoded_data_size,
    }
}

fn decode_into(decoded: &mut Decoded, header: &ChunkHeader, data: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    match decoded.decode(header, data, u64::MAX) {
        Ok(place) => {
            assert_eq!(place, Values::Decompressed);
            assert_eq!(decoded.ends.len() as u64, header.num_records);
            let records: Vec<Vec<u8>> = (0..decoded.ends.len())
                .map(|record| decoded.values[decoded.range(record)].to_vec())
                .collect();
            let total: usize = records.iter().map(Vec::len).sum();
            assert_eq!(total as u64, header.decoded_data_size);
            Ok(records)
        }
        Err(Fault::Damaged(reason) | Fault::Unsupported(reason)) => Err(reason),
        Err(Fault::Source(error)) => panic!("decoding reads no source: {error}"),
    }
}

fn decode(data: &[u8], num_records: u64, decoded_data_size: u64) -> Result<Vec<Vec<u8>>, String> {
    decode_into(
        &mut Decoded::default(),
        &header_of(data, num_records, decoded_data_size),
        data,
    )
}

/// A chunk put together by hand.
#[derive(Debug, Clone, Default)]
struct Chunk {
    /// Tag, next node, whether to go there without a transition.
    nodes: Vec<(u32, u32, bool)>,
    subtypes: Vec<u8>,
    /// The buffers of the nodes that read one.
    buffer_numbers: Vec<u32>,
    buffers: Vec<Vec<u8>>,
    first_node: u32,
    transitions: Vec<u8>,
}

impl Chunk {
    /// Nodes that follow each other; after the last comes the first, with a transition.
    fn in_a_row(tags: &[u32]) -> Self {
        let count = tags.len() as u32;
        Self {
            nodes: tags
                .iter()
                .zip(1..)
                .map(|(tag, next)| (*tag, next % count, next < count))
                .collect(),
            ..Self::default()
        }
    }

    fn header(&self, bucket_sizes: &[usize]) -> Vec<u8> {
        let mut header = Vec::new();
        put_varint(&mut header, bucket_sizes.len() as u64);
        put_varint(&mut header, self.buffers.len() as u64);
        for size in bucket_sizes {
            put_varint(&mut header, *size as u64);
        }
        for buffer in &self.buffers {
            put_varint(&mut header, buffer.len() as u64);
        }
        put_varint(&mut header, self.nodes.len() as u64);
        for (tag, _, _) in &self.nodes {
            put_varint(&mut header, u64::from(*tag));
        }
        for (_, next, is_implicit) in &self.nodes {
            let add = if *is_implicit { self.nodes.len() as u64 } else { 0 };
            put_varint(&mut header, u64::from(*next) + add);
        }
        header.extend(&self.subtypes);
        for number in &self.buffer_numbers {
            put_varint(&mut header, u64::from(*number));
        }
        put_varint(&mut header, u64::from(self.first_node));
        header
    }

    /// Uncompressed, all buffers in one bucket.
    fn data(&self) -> Vec<u8> {
        let bucket = self.buffers.concat();
        let sizes: &[usize] = if self.buffers.is_empty() {
            &[]
        } else {
            &[bucket.len()]
        };
        assemble(0, &self.header(sizes), &[bucket, self.transitions.clone()])
    }

    /// Under zstd, each buffer in its own bucket.
    fn zstd_data(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = self.buffers.iter().map(|buffer| zstd(buffer)).collect();
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        parts.push(zstd(&self.transitions));
        assemble(b'z', &zstd(&self.header(&sizes)), &parts)
    }
}

fn assemble(codec: u8, header: &[u8], parts: &[Vec<u8>]) -> Vec<u8> {
    let mut data = vec![codec];
    put_varint(&mut data, header.len() as u64);
    data.extend(header);
    data.extend(parts.concat());
    data
}

/// A part under zstd, its size before it.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd_claiming(bytes, bytes.len() as u64)
}

fn zstd_claiming(bytes: &[u8], claim: u64) -> Vec<u8> {
    let mut output = Vec::new();
    put_varint(&mut output, claim);
    let mut compressor = Compressor::new(Compression::Zstd(3), None).unwrap();
    compressor.compress(bytes, &mut output).unwrap();
    output
}

/// A record with every kind of field, and the chunk of it.
fn every_kind() -> (Chunk, Vec<u8>) {
    let tag = |field: u32, wire_type: u32| field << 3 | wire_type;
    let mut chunk = Chunk::in_a_row(&[
        tag(7, 6),
        tag(1, 0),
        START_OF_SUBMESSAGE,
        tag(6, 4),
        tag(6, 3),
        tag(5, 2),
        tag(4, 1),
        tag(3, 5),
        tag(2, 0),
        tag(200, 0),
        tag(1, 0),
        START_OF_MESSAGE,
    ]);
    chunk.subtypes = vec![10 + 2, 9, 1, 10 + 1];
    chunk.buffer_numbers = vec![0, 1, 2, 3, 4];
    chunk.buffers = vec![
        b"\x03abc".to_vec(),
        b"8 bytes!".to_vec(),
        b"four".to_vec(),
        b"\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x01".to_vec(),
        b"\x2c\x02".to_vec(),
    ];
    let record = [
        &b"\x08\x01"[..],
        b"\xc0\x0c\xac\x02",
        b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x1dfour",
        b"\x218 bytes!",
        b"\x2a\x03abc",
        b"\x33\x34",
        b"\x3a\x02\x08\x02",
    ]
    .concat();
    (chunk, record)
}

/// The chunk of several records that are like `every_kind`.
fn repeated(count: usize) -> (Chunk, Vec<Vec<u8>>) {
    let (mut chunk, record) = every_kind();
    for buffer in &mut chunk.buffers {
        *buffer = buffer.repeat(count);
    }
    chunk.transitions = vec![0; count - 1];
    (chunk, vec![record; count])
}

#[test]
fn every_kind_of_field_is_joined() {
    for count in [1, 2, 50] {
        let (chunk, records) = repeated(count);
        let size = records.concat().len() as u64;
        assert_eq!(decode(&chunk.data(), count as u64, size).unwrap(), records);
        assert_eq!(decode(&chunk.zstd_data(), count as u64, size).unwrap(), records);
    }
}

#[test]
fn transitions_repeat_and_jump() {
    let chunk = Chunk {
        nodes: vec![
            (8, 1, true),
            (START_OF_MESSAGE, 0, false),
            (8, 3, true),
            (START_OF_MESSAGE, 0, false),
            (NO_OP, 2, false),
        ],
        subtypes: vec![10, 11],
        // From the end: the first kind of record once, by the first node; four times, by one transition; the second kind; through the node
        // without effect to the second kind again.
        transitions: vec![3, 2 << 2, 4 << 2, 0],
        ..Chunk::default()
    };
    let (zero, one) = (vec![8, 0], vec![8, 1]);
    let mut wanted = vec![one; 2];
    wanted.extend(vec![zero; 5]);
    assert_eq!(decode(&chunk.data(), 7, 14).unwrap(), wanted);
    assert_eq!(decode(&chunk.zstd_data(), 7, 14).unwrap(), wanted);
}

#[test]
fn records_that_are_no_messages_have_their_lengths_in_the_last_buffer() {
    let mut chunk = Chunk::in_a_row(&[NON_PROTO]);
    chunk.buffer_numbers = vec![0];
    chunk.buffers = vec![b"thirdsecondfirst".to_vec(), vec![5, 6, 0, 5]];
    chunk.transitions = vec![0, 0, 0];
    let wanted = ["first", "", "second", "third"].map(|text| text.as_bytes().to_vec());
    assert_eq!(decode(&chunk.data(), 4, 16).unwrap(), wanted);
    assert_eq!(decode(&chunk.zstd_data(), 4, 16).unwrap(), wanted);
}

#[test]
fn many_bytes_come_out_of_few() {
    // 100 fields without a value in a buffer, 4,001 times: far more than anybody would guess.
    let mut tags = vec![2000 << 3; 100];
    tags.push(START_OF_MESSAGE);
    let mut chunk = Chunk::in_a_row(&tags);
    chunk.subtypes = vec![10 + 127; 100];
    chunk.transitions = vec![3; 1000];
    let record = b"\x80\x7d\x7f".repeat(100);
    let records = decode(&chunk.zstd_data(), 4001, 4001 * 300).unwrap();
    assert_eq!(records.len(), 4001);
    assert!(records.iter().all(|found| *found == record));
}

#[test]
fn what_cannot_be_is_refused() {
    type Change = dyn Fn(&mut Chunk);
    let (good, record) = every_kind();
    let size = record.len() as u64;
    let check = |what: &str, wanted: &str, change: &Change, num_records: u64, size: u64| {
        let mut chunk = good.clone();
        change(&mut chunk);
        for data in [chunk.data(), chunk.zstd_data()] {
            let error = decode(&data, num_records, size).expect_err(what);
            assert!(error.contains(wanted), "{what}: {error}");
        }
    };
    check("fewer records", "more records than the 0", &|_| {}, 0, size);
    check(
        "more records",
        "there are 1 records, the header says 2",
        &|_| {},
        2,
        size,
    );
    check("fewer bytes", "more than the", &|_| {}, 1, size - 1);
    check("more bytes", "the records take", &|_| {}, 1, size + 1);
    check(
        "bytes before the first record",
        "the records take",
        &|chunk| {
            // After the record's begin once more to the field before it.
            chunk.nodes[11].1 = 10;
            chunk.nodes[10].2 = false;
            chunk.transitions = vec![0, 0];
        },
        1,
        size + 2,
    );
    let changes: [(&str, &str, &Change); 16] = [
        ("short buffer", "buffer 1 ends", &|c| {
            c.buffers[1].pop();
        }),
        ("string beyond its buffer", "buffer 0 ends", &|c| {
            c.buffers[0][0] = 4;
        }),
        ("empty string buffer", "buffer 0 ends", &|c| c.buffers[0].clear()),
        ("buffer number", "reads buffer 5 of 5", &|c| {
            c.buffer_numbers[2] = 5;
        }),
        ("no buffers", "reads buffer", &|c| c.buffers.clear()),
        ("next node", "node 3 goes on to node", &|c| c.nodes[3].1 = 99),
        ("first node", "node 12 of 12 is to be the first", &|c| {
            c.first_node = 12;
        }),
        ("far transition", "leads to node", &|c| c.transitions = vec![0xff]),
        ("tag of the root", "has the tag 4", &|c| c.nodes[3].0 = 4),
        ("wire type 7", "wire type 7", &|c| c.nodes[3].0 = 8 | 7),
        ("subtype", "unknown subtype 138", &|c| c.subtypes[1] = 138),
        ("subtypes missing", "header of the chunk", &|c| c.subtypes.clear()),
        ("header too long", "too many", &|c| c.buffer_numbers.push(0)),
        ("implicit loop", "for ever", &|c| c.nodes[11].2 = true),
        ("submessage without an end", "does not end", &|c| {
            c.nodes[0].0 = NO_OP;
        }),
        ("submessage without a begin", "inside a submessage", &|c| {
            c.nodes[2].0 = NO_OP;
        }),
    ];
    for (what, wanted, change) in changes {
        check(what, wanted, change, 1, size);
    }
}

#[test]
fn machines_that_do_nothing_come_to_an_end() {
    // Submessages in each other, without a begin.
    let mut chunk = Chunk::in_a_row(&[8 | 6]);
    chunk.transitions = vec![3; 20_000];
    let error = decode(&chunk.data(), 1, 1 << 20).unwrap_err();
    assert!(error.contains("lie in each other"), "{error}");
    let error = decode(&chunk.data(), 1, 1 << 50).unwrap_err();
    assert!(error.contains("can be right"), "{error}");
    // A long way without effect, again and again.
    let mut tags = vec![NO_OP; 10_000];
    tags.push(START_OF_MESSAGE);
    let mut chunk = Chunk::in_a_row(&tags);
    chunk.transitions = vec![3; 10_000];
    let error = decode(&chunk.data(), 40_001, 0).unwrap_err();
    assert!(error.contains("do not lead to a field"), "{error}");
}

#[test]
fn claims_and_bombs_take_no_memory() {
    let (chunk, record) = every_kind();
    let size = record.len() as u64;
    let bomb = vec![0; 100 << 20];
    let bombed_bucket = {
        let mut chunk = Chunk::in_a_row(&[8 | 2, START_OF_MESSAGE]);
        chunk.buffer_numbers = vec![0];
        let bucket = zstd(&bomb);
        chunk.buffers = vec![bomb.clone()];
        assemble(b'z', &zstd(&chunk.header(&[bucket.len()])), &[bucket, zstd(&[])])
    };
    let header = chunk.header(&[]);
    let small_header = zstd(&Chunk::in_a_row(&[START_OF_MESSAGE]).header(&[]));
    for data in [
        assemble(b'z', &zstd(&bomb), &[]),
        assemble(b'z', &zstd_claiming(&bomb, 100), &[]),
        assemble(b'z', &zstd_claiming(&header, 1 << 50), &[]),
        assemble(b'z', &zstd(&header), &[zstd(&bomb)]),
        assemble(b'z', &small_header, &[zstd(&bomb)]),
        assemble(b'z', &small_header, &[zstd_claiming(&bomb, 5)]),
        bombed_bucket,
        // So many buckets, buffers, nodes are claimed.
        assemble(0, b"\xff\xff\xff\xff\x0f\x01\x00", &[]),
        assemble(0, b"\x01\xff\xff\xff\xff\x0f\x00", &[]),
        assemble(0, b"\x00\x00\xff\xff\xff\xff\x0f\x00", &[]),
        // A header and a bucket that are longer than the chunk.
        b"\x00\xff\xff\xff\xff\x0f\x01\x00".to_vec(),
        assemble(0, b"\x01\x00\xff\xff\xff\xff\xff\x0f\x00", &[]),
    ] {
        let mut decoded = Decoded::default();
        decode_into(&mut decoded, &header_of(&data, 1, size), &data).unwrap_err();
        assert!(decoded.memory() < 4 << 20, "{} bytes", decoded.memory());
    }
    // The size of the records is claimed: they are written as they come.
    let data = chunk.data();
    for claim in [60 << 20, 1 << 40, u64::MAX] {
        let mut decoded = Decoded::default();
        decode_into(&mut decoded, &header_of(&data, 1, claim), &data).unwrap_err();
        assert!(decoded.memory() < 1 << 20, "{} bytes", decoded.memory());
    }
    decode(&data, u64::MAX >> 8, size).unwrap_err();
}

#[test]
fn a_cut_chunk_is_an_error_at_every_byte() {
    let (chunk, records) = repeated(5);
    let size = records.concat().len() as u64;
    for data in [chunk.data(), chunk.zstd_data()] {
        for cut in 0..data.len() {
            decode(&data[..cut], 5, size).unwrap_err();
        }
    }
}

/// The transposed chunks of a file by Google's writer.
fn chunks_of(name: &str) -> Vec<(ChunkHeader, Vec<u8>)> {
    let mut bytes = Vec::new();
    let stored = std::fs::File::open(format!("{FOLDER}/{name}.array_record.gz")).unwrap();
    flate2::read::GzDecoder::new(stored)
        .read_to_end(&mut bytes)
        .unwrap();
    let reader = Reader::from_source(Arc::new(MemoryFile::new(name, bytes.clone()))).unwrap();
    (0..reader.num_chunks())
        .map(|chunk| {
            let begin = reader.chunk_offset(chunk).unwrap();
            let window = &bytes[begin as usize..];
            let located = Located::parse(window, begin, bytes.len() as u64).unwrap();
            assert_eq!(located.header.chunk_type, ChunkType::Transposed);
            let mut data = Vec::new();
            located.gather(window, &mut data).unwrap();
            (located.header, data)
        })
        .collect()
}

#[test]
fn buffers_kept_from_chunk_to_chunk_change_nothing() {
    let mut kept = Decoded::default();
    for name in [
        "t_wire_uncompressed_g65536",
        "t_wire_zstd_g2",
        "t_wide_brotli_g256_b32",
        "t_raw_snappy_g1",
        "t_raw_zstd_g7",
        "t_empty_records_g256",
        "t_example_uncompressed_g1",
    ] {
        for (header, data) in chunks_of(name) {
            let fresh = decode_into(&mut Decoded::default(), &header, &data).unwrap();
            assert_eq!(decode_into(&mut kept, &header, &data).unwrap(), fresh, "{name}");
            // A failure leaves nothing behind.
            decode_into(&mut kept, &header, &data[..data.len() / 2]).unwrap_err();
        }
    }
}

/// Numbers that are the same each time: xorshift64*.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    /// Changes some bytes of a chunk, most of them near its begin, where its header is.
    fn change(&mut self, data: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) {
            if data.is_empty() {
                return;
            }
            let end = if self.below(3) == 0 {
                data.len()
            } else {
                data.len().min(100)
            };
            let at = self.below(end);
            match self.below(6) {
                0 => data[at] ^= 1 << self.below(8),
                1 => data[at] = self.next() as u8,
                2 => data[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                3 => data.insert(at, self.next() as u8),
                4 => {
                    data.remove(at);
                }
                _ => {
                    let other = self.below(end);
                    data.swap(at, other);
                }
            }
        }
    }
}

/// Chunks with changed bytes under right hashes are refused or give something of the right size, never a panic or much memory.
#[test]
fn changed_chunks_are_refused_or_give_something() {
    let mut chunks: Vec<(ChunkHeader, Vec<u8>)> = [
        "t_wire_zstd_g2",
        "t_example_uncompressed_g1",
        "t_example_zstd3_g7",
        "t_example_brotli3_g1",
        "t_raw_snappy_g1",
        "t_raw_uncompressed_g256_b100",
        "t_wire_uncompressed_g65536",
        "one_empty_record_transpose",
    ]
    .into_iter()
    .flat_map(|name| chunks_of(name).into_iter().take(3))
    .collect();
    for count in [1, 5] {
        let (chunk, records) = repeated(count);
        for data in [chunk.data(), chunk.zstd_data()] {
            let size = records.concat().len() as u64;
            chunks.push((header_of(&data, count as u64, size), data));
        }
    }
    let mut numbers = Numbers(20_261_129);
    let (mut right, mut wrong) = (0, 0);
    for (header, data) in &chunks {
        // Large ones take longer, and have fewer bytes that matter.
        let times = if data.len() > 4096 { 150 } else { 1500 };
        let mut decoded = Decoded::default();
        for _ in 0..times {
            let mut changed = data.clone();
            numbers.change(&mut changed);
            let mut header = *header;
            match numbers.below(12) {
                0 => header.decoded_data_size = numbers.next() >> numbers.below(64),
                1 => header.num_records = numbers.next() >> (8 + numbers.below(56)),
                _ => {}
            }
            match decode_into(&mut decoded, &header, &changed) {
                Ok(_) => right += 1,
                Err(_) => wrong += 1,
            }
            assert!(decoded.memory() < 16 << 20, "{} bytes", decoded.memory());
        }
    }
    assert!(right > 100 && wrong > 1000, "{right} right, {wrong} wrong");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_decoded_or_refused(
        codec in prop_oneof![Just(0u8), Just(b'z'), Just(b'b'), Just(b's'), any::<u8>()],
        header in prop::collection::vec(prop_oneof![0u8..20, any::<u8>()], 0..40),
        rest in prop::collection::vec(any::<u8>(), 0..60),
        num_records in 0u64..10,
        size in prop_oneof![0u64..100, any::<u64>()],
    ) {
        let data = assemble(codec, &header, &[rest]);
        let mut decoded = Decoded::default();
        // Right by chance or not: what comes out is checked in there.
        let _ = decode_into(&mut decoded, &header_of(&data, num_records, size), &data);
        prop_assert!(decoded.memory() < 8 << 20);
    }

    /// Messages of fields without nesting, taken apart by the simplest of writers, come back.
    #[test]
    fn fields_of_a_simple_writer_come_back(
        records in prop::collection::vec(
            prop::collection::vec((0u32..6, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
            1..20,
        ),
    ) {
        let tag = |field: u32| (field + 1) << 3 | 2;
        // One node for each field, then one for the begin; every step is a transition from 0.
        let mut chunk = Chunk {
            nodes: (0..6).map(|field| (tag(field), 0, false)).collect(),
            buffer_numbers: (0..6).collect(),
            buffers: vec![Vec::new(); 6],
            ..Chunk::default()
        };
        chunk.nodes.push((START_OF_MESSAGE, 0, false));
        let mut walk = Vec::new();
        for record in records.iter().rev() {
            for (field, value) in record.iter().rev() {
                chunk.buffers[*field as usize].push(value.len() as u8);
                chunk.buffers[*field as usize].extend(value);
                walk.push(*field);
            }
            walk.push(6);
        }
        chunk.first_node = walk[0];
        chunk.transitions = walk[1..].iter().map(|node| (*node as u8) << 2).collect();
        let joined: Vec<Vec<u8>> = records
            .iter()
            .map(|record| {
                let mut bytes = Vec::new();
                for (field, value) in record {
                    bytes.push(tag(*field) as u8);
                    bytes.push(value.len() as u8);
                    bytes.extend(value);
                }
                bytes
            })
            .collect();
        let (count, size) = (joined.len() as u64, joined.concat().len() as u64);
        prop_assert_eq!(decode(&chunk.data(), count, size).unwrap(), joined.clone());
        prop_assert_eq!(decode(&chunk.zstd_data(), count, size).unwrap(), joined);
    }
}
