//! Takes records apart into the columns of a transposed chunk.
//!
//! Source: Riegeli, `riegeli/chunk_encoding/transpose_encoder.cc`.

use std::collections::HashMap;

use super::fold::FoldState;
use super::plan::{NONE, Plan};
use super::{INLINE_SUBTYPE, message_id, wire_type};
use crate::array_record::codec::{Codec, Compressor};
use crate::array_record::layout::put_varint;

/// The largest varint that is stored as a subtype, not in a column. Source: `kMaxVarintInline` in `transpose_encoder.cc`.
const MAX_INLINE: u8 = 3;
/// Submessages nested deeper are columns of bytes. Source: `kMaxRecursionDepth`, there.
const MAX_DEPTH: usize = 100;
/// In memory: the message that fields of a record belong to. Source: `MessageId::kRoot` in `transpose_internal.h`.
const ROOT: u32 = 4;
/// The message of the first path; each further path is the next. Source: there.
const FIRST_MESSAGE: u32 = ROOT + 1;
/// Subtypes of a field with a length, in memory only. Source: `Subtype`, there.
const STRING: u8 = 0;
const SUBMESSAGE_START: u8 = 1;
const SUBMESSAGE_END: u8 = 2;
/// The largest column whose memory is kept for the next chunk.
const SPARE_BYTES: usize = 1 << 20;
/// Subtypes of a path: lengths of varints, small varints.
const SUBTYPES: usize = INLINE_SUBTYPE as usize + MAX_INLINE as usize + 1;

/// What columns hold; similar ones lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Varint,
    Fixed32,
    Fixed64,
    /// Lengths and bytes.
    String,
    /// Records that are no messages.
    NonProto,
}

/// A field in its context: all fields with the same tags above them.
#[derive(Debug)]
struct Path {
    parent: u32,
    tag: u32,
    column: u32,
    /// By subtype, the number of its tag.
    tags: [u32; SUBTYPES],
}

#[derive(Debug)]
struct Column {
    path: u32,
    kind: Kind,
    bytes: Backward,
}

/// Encodes transposed chunks. Kept from chunk to chunk for its buffers; the bytes depend on the records and options only.
#[derive(Debug)]
pub(in crate::array_record) struct TransposeEncoder {
    bucket_size: u64,
    map: HashMap<(u32, u32), u32, FoldState>,
    paths: Vec<Path>,
    columns: Vec<Column>,
    /// Path and subtype of each tag.
    tags: Vec<(u32, u8)>,
    walk: Vec<u32>,
    /// Messages around the groups that are open.
    groups: Vec<u32>,
    lengths: Backward,
    spare: Vec<Backward>,
    bucket: Vec<u8>,
    header: Vec<u8>,
    body: Vec<u8>,
}

impl TransposeEncoder {
    /// Sets up an encoder that joins columns up to about `bucket_size` bytes before they are compressed.
    pub(in crate::array_record) fn new(bucket_size: u64) -> Self {
        Self {
            bucket_size,
            map: HashMap::default(),
            paths: Vec::new(),
            columns: Vec::new(),
            tags: Vec::new(),
            walk: Vec::new(),
            groups: Vec::new(),
            lengths: Backward::default(),
            spare: Vec::new(),
            bucket: Vec::new(),
            header: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Appends the data of a chunk of these records. Time is linear in their bytes, times the depth of submessages; holds about two
    /// copies of the records and 8 bytes a field.
    ///
    /// Gives the reason where the codec fails or the fields of one chunk are more than 2^30.
    pub(in crate::array_record) fn encode<'r>(
        &mut self,
        records: impl Iterator<Item = &'r [u8]>,
        compressor: &mut Compressor,
        data: &mut Vec<u8>,
    ) -> Result<(), String> {
        self.reset();
        for record in records {
            self.add(record);
        }
        let plan = Plan::new(&self.walk, self.tags.len())?;
        let (mut header, mut body) = (std::mem::take(&mut self.header), std::mem::take(&mut self.body));
        let ranks = self.put_columns(compressor, &mut header, &mut body)?;
        self.put_nodes(&plan, &ranks, &mut header);
        put_compressed(compressor, &plan.transitions, &mut body)?;

        data.push(compressor.codec().to_byte());
        self.bucket.clear();
        put_compressed(compressor, &header, &mut self.bucket)?;
        put_varint(data, self.bucket.len() as u64);
        data.extend_from_slice(&self.bucket);
        data.extend_from_slice(&body);
        (self.header, self.body) = (header, body);
        Ok(())
    }

    fn reset(&mut self) {
        self.map.clear();
        self.paths.clear();
        self.tags.clear();
        self.walk.clear();
        self.groups.clear();
        self.lengths.clear();
        self.header.clear();
        self.body.clear();
        let columns = self.columns.drain(..).map(|column| column.bytes);
        self.spare
            .extend(columns.filter(|column| column.bytes.len() <= SPARE_BYTES));
    }

    fn add(&mut self, record: &[u8]) {
        if is_message(record) {
            let path = self.path(message_id::START_OF_MESSAGE, 0);
            self.step(path, 0);
            self.add_message(record, ROOT, 0);
        } else {
            let path = self.path(message_id::NON_PROTO, 0);
            self.step(path, 0);
            self.column(path, Kind::NonProto).prepend(record);
            let mut length = Vec::with_capacity(10);
            put_varint(&mut length, record.len() as u64);
            self.lengths.prepend(&length);
        }
    }

    /// Takes a message apart for which [`is_message`] is true.
    fn add_message(&mut self, mut bytes: &[u8], mut parent: u32, mut depth: usize) {
        while let Some((tag, value)) = take_field(&mut bytes) {
            let path = self.path(parent, tag);
            match tag & 7 {
                wire_type::VARINT => {
                    if value[0] <= MAX_INLINE {
                        self.step(path, INLINE_SUBTYPE + value[0]);
                    } else {
                        self.step(path, value.len() as u8 - 1);
                        let mut low = [0; 10];
                        let low = &mut low[..value.len()];
                        for (low, byte) in low.iter_mut().zip(value) {
                            *low = byte & 0x7f;
                        }
                        self.column(path, Kind::Varint).prepend(low);
                    }
                }
                wire_type::FIXED32 => {
                    self.step(path, 0);
                    self.column(path, Kind::Fixed32).prepend(value);
                }
                wire_type::FIXED64 => {
                    self.step(path, 0);
                    self.column(path, Kind::Fixed64).prepend(value);
                }
                wire_type::LENGTH_DELIMITED => {
                    let mut inner = value;
                    let _ = take_varint32(&mut inner);
                    // Empty ones are strings: one step instead of two.
                    if depth < MAX_DEPTH && !inner.is_empty() && is_message(inner) {
                        self.step(path, SUBMESSAGE_START);
                        let end = self.tag(path, SUBMESSAGE_END);
                        self.add_message(inner, FIRST_MESSAGE + path, depth + 1);
                        self.walk.push(end);
                    } else {
                        self.step(path, STRING);
                        self.column(path, Kind::String).prepend(value);
                    }
                }
                wire_type::START_GROUP => {
                    self.step(path, 0);
                    self.groups.push(parent);
                    depth += 1;
                    parent = FIRST_MESSAGE + path;
                }
                // The end of a group: its path lies within the group, which is as good as any.
                _ => {
                    self.step(path, 0);
                    parent = self.groups.pop().unwrap_or(ROOT);
                    depth = depth.saturating_sub(1);
                }
            }
        }
    }

    fn path(&mut self, parent: u32, tag: u32) -> u32 {
        let next = self.paths.len() as u32;
        let path = *self.map.entry((parent, tag)).or_insert(next);
        if path == next {
            self.paths.push(Path {
                parent,
                tag,
                column: NONE,
                tags: [NONE; SUBTYPES],
            });
        }
        path
    }

    fn tag(&mut self, path: u32, subtype: u8) -> u32 {
        let tag = &mut self.paths[path as usize].tags[usize::from(subtype)];
        if *tag == NONE {
            *tag = self.tags.len() as u32;
            self.tags.push((path, subtype));
        }
        *tag
    }

    fn step(&mut self, path: u32, subtype: u8) {
        let tag = self.tag(path, subtype);
        self.walk.push(tag);
    }

    fn column(&mut self, path: u32, kind: Kind) -> &mut Backward {
        let column = &mut self.paths[path as usize].column;
        if *column == NONE {
            *column = self.columns.len() as u32;
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            self.columns.push(Column { path, kind, bytes });
        }
        &mut self.columns[*column as usize].bytes
    }

    /// Appends the columns in buckets to `body`, their number and sizes to `header`. Gives each column's place.
    fn put_columns(
        &mut self,
        compressor: &mut Compressor,
        header: &mut Vec<u8>,
        body: &mut Vec<u8>,
    ) -> Result<Vec<u32>, String> {
        let mut order: Vec<usize> = (0..self.columns.len()).collect();
        order.sort_unstable_by_key(|column| {
            let Column { path, kind, bytes } = &self.columns[*column];
            let path = &self.paths[*path as usize];
            (*kind, bytes.len(), path.parent, path.tag)
        });
        let mut bucket_sizes = Vec::new();
        let mut put = |bytes: &[u8], compressor: &mut Compressor| {
            let before = body.len();
            put_compressed(compressor, bytes, body)?;
            bucket_sizes.push(body.len() - before);
            Ok::<(), String>(())
        };
        let bucket_size = match compressor.codec() {
            Codec::Uncompressed => u64::MAX,
            _ => self.bucket_size,
        };
        for of_a_kind in order.chunk_by(|a, b| self.columns[*a].kind == self.columns[*b].kind) {
            let sizes: Vec<u64> = of_a_kind
                .iter()
                .map(|column| self.columns[*column].bytes.len() as u64)
                .collect();
            for bucket in buckets(&sizes, bucket_size) {
                self.bucket.clear();
                for column in &of_a_kind[bucket] {
                    self.bucket
                        .extend_from_slice(self.columns[*column].bytes.as_slice());
                }
                put(&self.bucket, compressor)?;
            }
        }
        let lengths = self.lengths.as_slice();
        if !lengths.is_empty() {
            put(lengths, compressor)?;
        }

        put_varint(header, bucket_sizes.len() as u64);
        put_varint(header, (order.len() + usize::from(!lengths.is_empty())) as u64);
        for size in bucket_sizes {
            put_varint(header, size as u64);
        }
        for column in &order {
            put_varint(header, self.columns[*column].bytes.len() as u64);
        }
        if !lengths.is_empty() {
            put_varint(header, lengths.len() as u64);
        }
        let mut ranks = vec![0; order.len()];
        for (rank, column) in order.into_iter().enumerate() {
            ranks[column] = rank as u32;
        }
        Ok(ranks)
    }

    /// Appends the state machine to `header`.
    fn put_nodes(&self, plan: &Plan, ranks: &[u32], header: &mut Vec<u8>) {
        put_varint(header, plan.nodes.len() as u64);
        let (mut subtypes, mut buffers) = (Vec::new(), Vec::new());
        for node in &plan.nodes {
            let Some(&(path, subtype)) = self.tags.get(node.tag as usize) else {
                put_varint(header, u64::from(message_id::NO_OP));
                continue;
            };
            let path = &self.paths[path as usize];
            let (stored, has_column) = match (path.tag, path.tag & 7) {
                (0, _) => (path.parent, path.parent == message_id::NON_PROTO),
                (_, wire_type::LENGTH_DELIMITED) if subtype == SUBMESSAGE_START => {
                    (message_id::START_OF_SUBMESSAGE, false)
                }
                (tag, wire_type::LENGTH_DELIMITED) if subtype == SUBMESSAGE_END => (
                    tag - wire_type::LENGTH_DELIMITED + wire_type::SUBMESSAGE_END,
                    false,
                ),
                (tag, wire_type::VARINT) => {
                    subtypes.push(subtype);
                    (tag, subtype < INLINE_SUBTYPE)
                }
                (tag, wire_type::START_GROUP | wire_type::END_GROUP) => (tag, false),
                (tag, _) => (tag, true),
            };
            put_varint(header, u64::from(stored));
            if has_column {
                buffers.push(ranks[path.column as usize]);
            }
        }
        for node in &plan.nodes {
            put_varint(header, u64::from(node.next));
        }
        header.extend_from_slice(&subtypes);
        for buffer in buffers {
            put_varint(header, u64::from(buffer));
        }
        put_varint(header, u64::from(plan.first));
    }
}

/// Appends bytes compressed, behind their length unless they stay as they are.
fn put_compressed(compressor: &mut Compressor, bytes: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
    if compressor.codec() != Codec::Uncompressed {
        put_varint(output, bytes.len() as u64);
    }
    compressor.compress(bytes, output)
}

/// Cuts columns, in order, into buckets of about `bucket_size` bytes; from the largest columns on.
fn buckets(sizes: &[u64], bucket_size: u64) -> Vec<std::ops::Range<usize>> {
    let mut buckets = Vec::new();
    let mut remaining: u64 = sizes.iter().sum();
    let (mut end, mut current) = (sizes.len(), 0u64);
    for (index, &size) in sizes.iter().enumerate().rev() {
        if current > 0 && current.saturating_add(size / 2) >= bucket_size {
            buckets.push(index + 1..end);
            (end, current) = (index + 1, 0);
        }
        current += size;
        remaining -= size;
        if remaining <= bucket_size / 2 {
            break;
        }
    }
    if end > 0 {
        buckets.push(0..end);
    }
    buckets.reverse();
    buckets
}

/// Takes a varint in its only canonical form, the shortest.
fn take_canonical<'b>(bytes: &mut &'b [u8]) -> Option<(u64, &'b [u8])> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            if (i > 0 && byte == 0) || (i == 9 && byte > 1) {
                return None;
            }
            let (varint, rest) = bytes.split_at(i + 1);
            *bytes = rest;
            return Some((value, varint));
        }
    }
    None
}

fn take_varint32(bytes: &mut &[u8]) -> Option<u32> {
    u32::try_from(take_canonical(bytes)?.0).ok()
}

/// Takes a field: its tag, and all bytes behind it; a length belongs to the latter. `None` at the end, and where the bytes are no field that
/// can be put together again.
#[inline]
fn take_field<'b>(bytes: &mut &'b [u8]) -> Option<(u32, &'b [u8])> {
    let tag = take_varint32(bytes)?;
    if tag >> 3 == 0 {
        return None;
    }
    let size = match tag & 7 {
        wire_type::VARINT => return Some((tag, take_canonical(bytes)?.1)),
        wire_type::FIXED32 => 4,
        wire_type::FIXED64 => 8,
        wire_type::LENGTH_DELIMITED => {
            let mut rest = *bytes;
            let length = take_varint32(&mut rest)?;
            (bytes.len() - rest.len()).checked_add(length as usize)?
        }
        wire_type::START_GROUP | wire_type::END_GROUP => 0,
        _ => return None,
    };
    let (value, rest) = bytes.split_at_checked(size)?;
    *bytes = rest;
    Some((tag, value))
}

/// Whether bytes are a message that comes out the same after it was taken apart: canonical varints, groups closed.
fn is_message(mut bytes: &[u8]) -> bool {
    let mut groups = Vec::new();
    while !bytes.is_empty() {
        let Some((tag, _)) = take_field(&mut bytes) else {
            return false;
        };
        match tag & 7 {
            wire_type::START_GROUP => groups.push(tag >> 3),
            wire_type::END_GROUP if groups.pop() != Some(tag >> 3) => return false,
            _ => {}
        }
    }
    groups.is_empty()
}

/// Bytes that grow at their front.
#[derive(Debug, Default)]
struct Backward {
    bytes: Vec<u8>,
    start: usize,
}

impl Backward {
    fn prepend(&mut self, piece: &[u8]) {
        if self.start < piece.len() {
            self.grow(piece.len());
        }
        let start = self.start - piece.len();
        self.bytes[start..self.start].copy_from_slice(piece);
        self.start = start;
    }

    #[cold]
    fn grow(&mut self, room: usize) {
        let old = self.bytes.len();
        let size = (old * 2).max(self.len() + room).max(64);
        self.bytes.resize(size, 0);
        let start = self.start + size - old;
        self.bytes.copy_within(self.start..old, start);
        self.start = start;
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn clear(&mut self) {
        self.start = self.bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::array_record::{Reader, Scratch, WriteOptions, Writer, verify};
    use crate::store::MemoryFile;

    /// Writes records and reads them back; gives the file.
    fn round_trip(options: &str, records: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
        for record in records {
            writer.write(record).unwrap();
        }
        let file = writer.finish().unwrap();
        let source = Arc::new(MemoryFile::new("transposed", file.clone()));
        assert!(verify(source.clone()).unwrap().is_ok());
        let reader = Reader::from_source(source).unwrap();
        let mut read = Vec::new();
        let all = 0..reader.num_records();
        let visited = reader.for_each(all, &mut Scratch::default(), |_, record| {
            read.push(record.to_vec());
            Ok(())
        });
        visited.unwrap();
        assert!(read == records, "{options}: other records");
        file
    }

    fn varint(value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, value);
        bytes
    }

    fn delimited(field: u32, value: &[u8]) -> Vec<u8> {
        [
            varint(u64::from(field << 3 | 2)),
            varint(value.len() as u64),
            value.to_vec(),
        ]
        .concat()
    }

    fn group(field: u32, value: &[u8]) -> Vec<u8> {
        let (start, end) = (
            varint(u64::from(field << 3 | 3)),
            varint(u64::from(field << 3 | 4)),
        );
        [start, value.to_vec(), end].concat()
    }

    /// Fields of every wire type, nested.
    fn message() -> impl Strategy<Value = Vec<u8>> {
        let number = prop_oneof![1u32..4, 14u32..18, Just((1 << 29) - 1)];
        let value = prop_oneof![0u64..5, 120u64..140, any::<u64>(), Just(u64::MAX)];
        let leaf = prop_oneof![
            (number.clone(), value).prop_map(|(n, v)| [varint(u64::from(n << 3)), varint(v)].concat()),
            (number.clone(), any::<[u8; 8]>())
                .prop_map(|(n, v)| [varint(u64::from(n << 3 | 1)), v.to_vec()].concat()),
            (number.clone(), any::<[u8; 4]>())
                .prop_map(|(n, v)| [varint(u64::from(n << 3 | 5)), v.to_vec()].concat()),
            (number.clone(), prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(n, v)| delimited(n, &v)),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            (number.clone(), prop::collection::vec(inner, 0..6), 0..3).prop_map(|(n, parts, how)| match how {
                0 => delimited(n, &parts.concat()),
                1 => group(n, &parts.concat()),
                _ => parts.concat(),
            })
        })
    }

    const OPTIONS: [&str; 6] = [
        "uncompressed,group_size:1",
        "uncompressed,group_size:300",
        "zstd:1,group_size:20,transpose_bucket_size:1",
        "brotli:1,group_size:300,transpose_bucket_size:100",
        "snappy,group_size:7,transpose_bucket_size:1M",
        "snappy,group_size:300,pad_to_block_boundary:true,max_parallelism:2",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn messages_and_other_bytes_come_back(
            options in 0..OPTIONS.len(),
            mut records in prop::collection::vec(
                prop_oneof![message(), message(), prop::collection::vec(any::<u8>(), 0..30)],
                0..30,
            ),
            repeat in 1usize..12,
            cut in any::<prop::sample::Index>(),
        ) {
            // Cut short, one of them is no message any more.
            if let Some(record) = records.first_mut().filter(|record| !record.is_empty()) {
                record.truncate(cut.index(record.len()));
            }
            // Again and again, so that steps become frequent.
            let records: Vec<_> = std::iter::repeat_n(records, repeat).flatten().collect();
            round_trip(&format!("transpose,{}", OPTIONS[options]), &records);
        }

        #[test]
        fn many_different_steps_come_back(
            numbers in prop::collection::vec((0u32..400, 0u32..400), 1..40),
            repeats in prop::collection::vec(1usize..15, 40),
            codec in prop::sample::select(vec!["uncompressed", "snappy"]),
        ) {
            // Runs of fields, some often and some once: private and public lists of more than one block.
            let records: Vec<Vec<u8>> = numbers
                .iter()
                .zip(repeats)
                .flat_map(|((from, to), repeat)| {
                    let run = |range: std::ops::Range<u32>| {
                        range.flat_map(|n| [varint(u64::from((n + 1) << 3)), varint(u64::from(n % 7))].concat()).collect()
                    };
                    let record: Vec<u8> = run(*from.min(to)..*from.max(to));
                    let mut both = vec![record; repeat];
                    both.push(run(*from..*from + 2));
                    both
                })
                .collect();
            round_trip(&format!("transpose,{codec},group_size:1000"), &records);
        }
    }

    #[test]
    fn a_list_of_thousands_of_successors_is_reached() {
        // Field 1 comes before each of 9,000 others, some often enough for its own list.
        let mut records = Vec::new();
        for n in 2..9_000u32 {
            for _ in 0..if n % 2 == 0 { 11 } else { 1 } {
                records.push(
                    [
                        varint(8),
                        varint(1),
                        varint(u64::from(n << 3)),
                        varint(u64::from(n)),
                    ]
                    .concat(),
                );
            }
        }
        round_trip("transpose,uncompressed,group_size:65536", &records);
        records.reverse();
        records.truncate(20_000);
        round_trip("transpose,snappy,group_size:65536", &records);
    }

    #[test]
    fn deep_nesting_comes_back() {
        for depth in [1, 99, 100, 101, 102, 500] {
            let (mut messages, mut groups) = (vec![8, 200, 1], vec![8, 1]);
            for level in 0..depth {
                messages = delimited(1 + level % 2, &messages);
                groups = group(1 + level % 2, &groups);
            }
            let both = [messages.clone(), groups.clone(), delimited(3, &groups)].concat();
            round_trip(
                "transpose,uncompressed,group_size:3",
                &[messages, groups, both, vec![], vec![7]],
            );
        }
    }

    #[test]
    fn what_cannot_be_put_together_again_is_no_message() {
        assert!(is_message(b""));
        assert!(is_message(&[8, 1, 0x13, 0x14, 0x1a, 2, 1, 1]));
        for bytes in [
            &[8][..],                                             // no value
            &[0x88, 0, 1],                                        // a longer tag than needed
            &[8, 0x81, 0],                                        // a longer value
            &[0x12, 0x80, 0],                                     // a longer length
            &[0x12, 2, 0],                                        // cut short
            &[0, 1],                                              // field 0
            &[0x0e, 1],                                           // wire type 6
            &[0x0f, 1],                                           // wire type 7
            &[0x13],                                              // a group without an end
            &[0x14],                                              // an end without a group
            &[0x13, 0x1c],                                        // of another group
            &[0x0d, 1, 2, 3],                                     // 3 bytes of 4
            &[0x09, 1, 2, 3],                                     // of 8
            &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], // more than 64 bits
            &[0xf8, 0xff, 0xff, 0xff, 0x1f, 1],                   // a tag of more than 32 bits
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0x1f],                // a length of more than 32 bits
        ] {
            assert!(!is_message(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn buckets_are_cut_from_the_largest_column_on() {
        let cut = |sizes: &[u64], bucket_size| -> Vec<(usize, usize)> {
            let buckets = buckets(sizes, bucket_size).into_iter();
            buckets.map(|bucket| (bucket.start, bucket.end)).collect()
        };
        assert_eq!(cut(&[], 256), []);
        assert_eq!(cut(&[5], 1), [(0, 1)]);
        assert_eq!(cut(&[1, 2, 3, 4], u64::MAX), [(0, 4)]);
        assert_eq!(cut(&[1, 2, 3, 4], 1), [(0, 1), (1, 2), (2, 3), (3, 4)]);
        assert_eq!(cut(&[10, 10, 100, 300], 256), [(0, 4)]);
        assert_eq!(cut(&[10, 10, 200, 300], 256), [(0, 3), (3, 4)]);
        assert_eq!(cut(&[200, 200, 200], 256), [(0, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn a_file_does_not_depend_on_what_was_written_before_or_on_threads() {
        let records: Vec<Vec<u8>> = (0..3000u64)
            .map(|i| {
                [
                    varint(8),
                    varint(i % 50),
                    delimited(2, &[i as u8; 90]),
                    vec![0x1d, 1, 2, 3, i as u8],
                ]
                .concat()
            })
            .collect();
        for codec in ["uncompressed", "zstd:3", "brotli:2", "snappy"] {
            let options = format!("transpose,group_size:100,{codec}");
            let one = round_trip(&format!("{options},max_parallelism:1"), &records);
            let four = round_trip(&format!("{options},max_parallelism:4"), &records);
            assert!(one == four, "{codec}");
        }
    }
}
