//! The header of a transposed chunk: its buffers, and the state machine made ready to run.

use std::ops::Range;

use crate::array_record::chunk::Fault;
use crate::array_record::codec::{Codec, Decompressor};
use crate::array_record::layout::take_varint;
use crate::array_record::transpose::{INLINE_SUBTYPE, MAX_INLINE, MIN_TAG, message_id, wire_type};

/// Decompressed headers up to this size are believed.
const FREE_HEADER_BYTES: u64 = 1 << 20;
/// Beyond that, a header may come out of so many times fewer bytes. Node numbers and sizes hardly compress; chosen ten times what Google's
/// writer was seen to give.
const MAX_HEADER_RATIO: u64 = 64;

/// What a node does. Everything is written from the end to the begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// A stop on the way to a far node.
    Nothing,
    /// Writes the tag: of a group, or with the value of a short varint behind it.
    Tag,
    /// Writes `value_size` bytes of the buffer as a varint of at most 8 bytes, and the tag.
    Varint,
    /// As `Varint`, with 9 or 10 bytes.
    LongVarint,
    /// Writes `value_size` bytes of the buffer, 4 or 8, and the tag.
    Fixed,
    /// Writes a length and so many bytes of the buffer, and the tag.
    Bytes,
    /// Opens a submessage at its end.
    SubmessageEnd,
    /// Closes it: writes its length and its tag.
    SubmessageStart,
    /// Ends a record at its begin.
    MessageStart,
    /// Writes a record that is no message, and ends it.
    NonProto,
}

/// A node of the state machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// The tag as a varint, and the value of a short varint behind it: the last `tag_size` bytes.
    pub(super) tag: [u8; 8],
    /// Where the value comes from; 0 where the node reads none.
    pub(super) buffer: u32,
    /// Where to go from here, before a transition's offset is added.
    pub(super) next: u32,
    pub(super) op: Op,
    pub(super) tag_size: u8,
    pub(super) value_size: u8,
    /// Whether to go on to `next` without asking the transitions.
    pub(super) is_implicit: bool,
}

impl Node {
    fn new(op: Op) -> Self {
        Self {
            tag: [0; 8],
            buffer: 0,
            next: 0,
            op,
            tag_size: 0,
            value_size: 0,
            is_implicit: false,
        }
    }

    /// A node for the field `tag`, with one more byte in the tag if `inline` is given.
    fn field(op: Op, mut tag: u32, inline: Option<u8>, value_size: u8) -> Self {
        let mut node = Self::new(op);
        let mut bytes = [0; 6];
        let mut size = 0;
        while tag >= 0x80 {
            bytes[size] = tag as u8 | 0x80;
            tag >>= 7;
            size += 1;
        }
        bytes[size] = tag as u8;
        size += 1;
        if let Some(value) = inline {
            bytes[size] = value;
            size += 1;
        }
        node.tag[8 - size..].copy_from_slice(&bytes[..size]);
        node.tag_size = size as u8;
        node.value_size = value_size;
        node
    }
}

/// What a chunk's header describes; vectors reused from chunk to chunk.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) nodes: Vec<Node>,
    pub(super) first_node: u32,
    /// The part of each buffer that is not read yet, in the joined buckets.
    pub(super) buffers: Vec<Range<usize>>,
    /// Whether a node writes records that are no messages, so that the last buffer has their lengths.
    pub(super) has_non_proto: bool,
    bucket_ends: Vec<usize>,
    bucket: Vec<u8>,
    marks: Vec<u32>,
}

/// Where the joined buckets are, and what follows them in the chunk.
#[derive(Debug)]
pub(super) struct Buckets<'d> {
    /// `None` where they were decompressed into `joined`.
    pub(super) in_data: Option<&'d [u8]>,
    pub(super) rest: &'d [u8],
}

/// A compressed part of a chunk: its bytes, or `None` where they were decompressed into `output`.
///
/// `max` is the size up to which the claim is believed.
pub(super) fn part<'d>(
    decompressor: &mut Decompressor,
    codec: Codec,
    mut bytes: &'d [u8],
    max: u64,
    what: &str,
    output: &mut Vec<u8>,
) -> Result<Option<&'d [u8]>, Fault> {
    if codec == Codec::Uncompressed {
        return Ok(Some(bytes));
    }
    let Some(claimed) = take_varint(&mut bytes) else {
        return Err(Fault::Damaged(format!("the {what} has no decompressed size")));
    };
    if claimed > max {
        return Err(Fault::Damaged(format!(
            "the {what} claims {claimed} decompressed bytes, at most {max} can be right"
        )));
    }
    decompressor.decompress(codec, bytes, claimed, output)?;
    Ok(None)
}

/// Largest size of a header that came out of `compressed` bytes.
pub(super) fn max_header_bytes(compressed: usize) -> u64 {
    FREE_HEADER_BYTES.saturating_add((compressed as u64).saturating_mul(MAX_HEADER_RATIO))
}

#[cold]
fn cut<T>(what: &str) -> Result<T, Fault> {
    Err(Fault::Damaged(format!(
        "the header of the chunk is cut short in {what}"
    )))
}

fn damaged<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(reason.into()))
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take_varint(bytes).and_then(|value| u32::try_from(value).ok())
}

impl Machine {
    /// Reads a header, and the buckets from the front of `data`, which follow it in the chunk. Buckets are decompressed into `joined`.
    ///
    /// `max_bytes` bounds what all buckets hold. Takes time and memory in proportion to header and buckets.
    pub(super) fn read<'d>(
        &mut self,
        decompressor: &mut Decompressor,
        codec: Codec,
        mut header: &[u8],
        data: &'d [u8],
        max_bytes: u64,
        joined: &mut Vec<u8>,
    ) -> Result<Buckets<'d>, Fault> {
        let buckets = self.read_buckets(decompressor, codec, &mut header, data, max_bytes, joined)?;
        self.read_nodes(&mut header)?;
        self.check_implicit_loops()?;
        Ok(buckets)
    }

    /// Bytes of memory held.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.buffers.capacity() * size_of::<Range<usize>>()
            + self.bucket_ends.capacity() * size_of::<usize>()
            + self.bucket.capacity()
            + self.marks.capacity() * size_of::<u32>()
    }

    fn read_buckets<'d>(
        &mut self,
        decompressor: &mut Decompressor,
        codec: Codec,
        header: &mut &[u8],
        data: &'d [u8],
        max_bytes: u64,
        joined: &mut Vec<u8>,
    ) -> Result<Buckets<'d>, Fault> {
        self.buffers.clear();
        self.bucket_ends.clear();
        joined.clear();
        let (Some(num_buckets), Some(num_buffers)) = (take_u32(header), take_u32(header)) else {
            return cut("the numbers of buckets and buffers");
        };
        // Each takes a byte of the header at least.
        if u64::from(num_buckets) + u64::from(num_buffers) > header.len() as u64 {
            return damaged(format!(
                "{num_buckets} buckets and {num_buffers} buffers are claimed by a header with {} bytes left",
                header.len()
            ));
        }
        if num_buckets == 0 && num_buffers > 0 {
            return damaged(format!("there is no bucket for {num_buffers} buffers"));
        }
        let mut rest = data;
        let mut end = 0usize;
        for bucket in 0..num_buckets {
            let Some(length) = take_varint(header) else {
                return cut("the sizes of buckets");
            };
            let stored = usize::try_from(length)
                .ok()
                .and_then(|length| rest.split_at_checked(length));
            let Some((stored, after)) = stored else {
                return damaged(format!(
                    "bucket {bucket} claims {length} bytes, the chunk has {} left",
                    rest.len()
                ));
            };
            rest = after;
            let left = max_bytes.saturating_sub(end as u64);
            // One bucket is the usual case, and then needs no copy.
            let output = if num_buckets == 1 {
                &mut *joined
            } else {
                &mut self.bucket
            };
            end += match part(decompressor, codec, stored, left, "bucket", output)? {
                Some(stored) => stored.len(),
                None if num_buckets == 1 => joined.len(),
                None => {
                    joined
                        .try_reserve(self.bucket.len())
                        .map_err(|error| Fault::Damaged(error.to_string()))?;
                    joined.extend_from_slice(&self.bucket);
                    self.bucket.len()
                }
            };
            self.bucket_ends.push(end);
        }
        if end as u64 > max_bytes {
            return damaged(format!(
                "the buckets hold {end} bytes, at most {max_bytes} can go into the records"
            ));
        }
        let mut start = 0usize;
        let mut bucket = 0;
        for buffer in 0..num_buffers {
            let Some(length) = take_varint(header) else {
                return cut("the sizes of buffers");
            };
            let room = self.bucket_ends[bucket] - start;
            if length > room as u64 {
                return damaged(format!(
                    "buffer {buffer} claims {length} bytes, its bucket has {room} left"
                ));
            }
            let end = start + length as usize;
            self.buffers.push(start..end);
            start = end;
            // A buffer begins in the first bucket that is not used up.
            while start == self.bucket_ends[bucket] && bucket + 1 < self.bucket_ends.len() {
                bucket += 1;
            }
        }
        if start != end {
            return damaged(format!("the buffers take {start} bytes, the buckets hold {end}"));
        }
        Ok(Buckets {
            in_data: (codec == Codec::Uncompressed).then_some(data),
            rest,
        })
    }

    fn read_nodes(&mut self, header: &mut &[u8]) -> Result<(), Fault> {
        self.nodes.clear();
        self.has_non_proto = false;
        let Some(num_nodes) = take_u32(header) else {
            return cut("the number of nodes");
        };
        // Each takes two bytes of the header at least.
        if u64::from(num_nodes) * 2 > header.len() as u64 {
            return damaged(format!(
                "{num_nodes} nodes are claimed by a header with {} bytes left",
                header.len()
            ));
        }
        // The four lists lie one after the other, and are read side by side.
        let mut tags = *header;
        let mut num_subtypes = 0usize;
        for _ in 0..num_nodes {
            let Some(tag) = take_u32(header) else {
                return cut("the tags");
            };
            num_subtypes += usize::from(tag >= MIN_TAG && tag & 7 == wire_type::VARINT);
        }
        let mut next_nodes = *header;
        for _ in 0..num_nodes {
            if take_u32(header).is_none() {
                return cut("the next nodes");
            }
        }
        let Some((subtypes, after)) = header.split_at_checked(num_subtypes) else {
            return cut("the subtypes");
        };
        *header = after;
        let mut subtypes = subtypes.iter().copied();
        self.nodes
            .try_reserve(num_nodes as usize)
            .map_err(|error| Fault::Damaged(error.to_string()))?;
        for index in 0..num_nodes {
            let (Some(tag), Some(next)) = (take_u32(&mut tags), take_u32(&mut next_nodes)) else {
                return cut("the tags");
            };
            let mut node = self.node(index, tag, &mut subtypes, header)?;
            node.is_implicit = next >= num_nodes;
            node.next = if node.is_implicit { next - num_nodes } else { next };
            if node.next >= num_nodes {
                return damaged(format!("node {index} goes on to node {next} of {num_nodes}"));
            }
            self.nodes.push(node);
        }
        let Some(first_node) = take_u32(header) else {
            return cut("the first node");
        };
        if first_node >= num_nodes {
            return damaged(format!("node {first_node} of {num_nodes} is to be the first"));
        }
        if !header.is_empty() {
            return damaged(format!(
                "the header of the chunk has {} bytes too many",
                header.len()
            ));
        }
        self.first_node = first_node;
        Ok(())
    }

    /// Makes a node of its tag, its subtype, and its buffer, which is taken from `header`.
    fn node(
        &mut self,
        index: u32,
        tag: u32,
        subtypes: &mut impl Iterator<Item = u8>,
        header: &mut &[u8],
    ) -> Result<Node, Fault> {
        let num_buffers = self.buffers.len();
        let mut buffer = |mut node: Node| {
            let Some(buffer) = take_u32(header) else {
                return cut("the numbers of buffers");
            };
            if buffer as usize >= num_buffers {
                return damaged(format!("node {index} reads buffer {buffer} of {num_buffers}"));
            }
            node.buffer = buffer;
            Ok(node)
        };
        let op = match tag {
            message_id::NO_OP => Op::Nothing,
            message_id::NON_PROTO => {
                self.has_non_proto = true;
                return buffer(Node::new(Op::NonProto));
            }
            message_id::START_OF_SUBMESSAGE => Op::SubmessageStart,
            message_id::START_OF_MESSAGE => Op::MessageStart,
            _ if tag < MIN_TAG => return damaged(format!("node {index} has the tag {tag}")),
            _ => {
                return match tag & 7 {
                    wire_type::VARINT => {
                        let Some(subtype) = subtypes.next() else {
                            return cut("the subtypes");
                        };
                        match subtype {
                            0..8 => buffer(Node::field(Op::Varint, tag, None, subtype + 1)),
                            8..INLINE_SUBTYPE => buffer(Node::field(Op::LongVarint, tag, None, subtype + 1)),
                            _ if subtype - INLINE_SUBTYPE <= MAX_INLINE => {
                                Ok(Node::field(Op::Tag, tag, Some(subtype - INLINE_SUBTYPE), 0))
                            }
                            _ => damaged(format!("node {index} has the unknown subtype {subtype}")),
                        }
                    }
                    wire_type::FIXED32 => buffer(Node::field(Op::Fixed, tag, None, 4)),
                    wire_type::FIXED64 => buffer(Node::field(Op::Fixed, tag, None, 8)),
                    wire_type::LENGTH_DELIMITED => buffer(Node::field(Op::Bytes, tag, None, 0)),
                    wire_type::START_GROUP | wire_type::END_GROUP => Ok(Node::field(Op::Tag, tag, None, 0)),
                    wire_type::SUBMESSAGE_END => {
                        let tag = tag - wire_type::SUBMESSAGE_END + wire_type::LENGTH_DELIMITED;
                        Ok(Node::field(Op::SubmessageEnd, tag, None, 0))
                    }
                    other => damaged(format!("node {index} has the wire type {other}")),
                };
            }
        };
        Ok(Node::new(op))
    }

    /// Refuses nodes that go on to each other for ever without asking the transitions. Linear in the number of nodes.
    fn check_implicit_loops(&mut self) -> Result<(), Fault> {
        self.marks.clear();
        self.marks.resize(self.nodes.len(), 0);
        for start in 0..self.nodes.len() {
            let mark = start as u32 + 1;
            let mut index = start;
            while self.marks[index] == 0 {
                self.marks[index] = mark;
                if !self.nodes[index].is_implicit {
                    break;
                }
                index = self.nodes[index].next as usize;
                if self.marks[index] == mark {
                    return damaged(format!("node {index} goes on to itself for ever"));
                }
            }
        }
        Ok(())
    }
}
