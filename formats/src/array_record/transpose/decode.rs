//! Runs the state machine of a transposed chunk: joins the fields of records again, from the last to the first.

use crate::array_record::chunk::{Fault, take_codec};
use crate::array_record::codec::Decompressor;
use crate::array_record::layout::{ChunkHeader, take_varint};
use crate::array_record::transpose::machine::{Machine, Node, Op, max_header_bytes, part};

/// Most submessages open at a time. Google's writer opens 100 (`kMaxRecursionDepth` in `transpose_encoder.cc`) and keeps deeper ones whole.
const MAX_DEPTH: usize = 1 << 16;
/// Records up to this size are believed to come out of any chunk.
const FREE_RECORD_BYTES: u64 = 64 << 20;
/// Beyond that, so many bytes of records may come out of a byte of the chunk or a record: a message of 64 KiB without a value in a buffer,
/// repeated, gives this.
const MAX_RATIO: u64 = 1 << 16;
/// Most transitions for a byte of records or a record. Google's writer needs one, and some more to reach far nodes.
const MAX_TRANSITIONS: u64 = 16;
/// Most nodes without effect for a transition.
const MAX_NO_OPS: u64 = 64;
/// Bytes that a field without a string may take, rounded up, and that may be overwritten before it.
const FIELD: usize = 32;
/// Most bytes that the length of a record takes.
const MAX_VARINT_BYTES: u64 = 10;

/// Decodes transposed chunks; buffers reused from chunk to chunk.
#[derive(Debug, Default)]
pub(in crate::array_record) struct TransposeDecoder {
    machine: Machine,
    header: Vec<u8>,
    /// Decompressed buckets, joined.
    buckets: Vec<u8>,
    transitions: Vec<u8>,
    open: Vec<Open>,
}

/// A submessage of which the end was met.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Bytes written when it was.
    written: usize,
    node: u32,
}

#[cold]
fn damaged<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(reason.into()))
}

impl TransposeDecoder {
    /// Decodes a chunk whose data hash is right: the first `decoded_data_size` bytes of `values` become the joined records, `ends` where each
    /// of them ends. After an error neither means anything.
    ///
    /// Memory: what is decompressed, 10 times the header, and the records as far as they really come; nothing that is only claimed.
    /// Time is linear in these.
    pub(in crate::array_record) fn decode(
        &mut self,
        decompressor: &mut Decompressor,
        chunk: &ChunkHeader,
        data: &[u8],
        values: &mut Vec<u8>,
        ends: &mut Vec<usize>,
    ) -> Result<(), Fault> {
        let (size, num_records) = (chunk.decoded_data_size, chunk.num_records);
        let sources = (data.len() as u64).saturating_add(num_records);
        let max_size = FREE_RECORD_BYTES.saturating_add(sources.saturating_mul(MAX_RATIO));
        let Some(size) = usize::try_from(size).ok().filter(|_| size <= max_size) else {
            return damaged(format!(
                "{size} decoded bytes are claimed, at most {max_size} can be right"
            ));
        };
        let (codec, mut rest) = take_codec(data)?;
        let header =
            take_varint(&mut rest).and_then(|length| rest.split_at_checked(usize::try_from(length).ok()?));
        let Some((stored_header, rest)) = header else {
            return damaged("the header of transposed records does not fit the chunk");
        };
        let header = part(
            decompressor,
            codec,
            stored_header,
            max_header_bytes(stored_header.len()),
            "header",
            &mut self.header,
        )?;
        let events = (size as u64).saturating_add(num_records);
        // Every byte of a buffer goes into the records, but for the lengths of records.
        let max_bytes = (size as u64).saturating_add(num_records.saturating_mul(MAX_VARINT_BYTES));
        let buckets = self.machine.read(
            decompressor,
            codec,
            header.unwrap_or(&self.header),
            rest,
            max_bytes,
            &mut self.buckets,
        )?;
        let max_transitions = events.saturating_add(64).saturating_mul(MAX_TRANSITIONS);
        let transitions = part(
            decompressor,
            codec,
            buckets.rest,
            max_transitions,
            "list of transitions",
            &mut self.transitions,
        )?;
        ends.clear();
        self.open.clear();
        let mut run = Run {
            machine: &mut self.machine,
            source: buckets.in_data.unwrap_or(&self.buckets),
            transitions: transitions.unwrap_or(&self.transitions),
            open: &mut self.open,
            output: Output::new(values, size),
            ends,
            num_records,
        };
        run.output.expect(run.likely_size());
        run.run()?;
        run.finish()
    }

    /// Bytes of memory held.
    #[cfg(test)]
    pub(in crate::array_record) fn memory(&self) -> usize {
        self.machine.memory()
            + self.header.capacity()
            + self.buckets.capacity()
            + self.transitions.capacity()
            + self.open.capacity() * size_of::<Open>()
    }
}

/// Records written from the end of a window that grows at its front, up to `size` bytes.
#[derive(Debug)]
struct Output<'v> {
    bytes: &'v mut Vec<u8>,
    /// The window is the first so many bytes.
    end: usize,
    /// The bytes from here to `end` are written.
    at: usize,
    /// What the window may grow to, which is what it has to hold in the end.
    size: usize,
}

impl<'v> Output<'v> {
    fn new(bytes: &'v mut Vec<u8>, size: usize) -> Self {
        Self {
            bytes,
            end: 0,
            at: 0,
            size,
        }
    }

    #[inline]
    fn written(&self) -> usize {
        self.end - self.at
    }

    /// Makes the empty window as large as the records seem to become; memory that is there anyway is used.
    fn expect(&mut self, likely: usize) {
        let end = self.size.min(likely.max(self.bytes.len()));
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.end = end;
        self.at = end;
    }

    /// Makes room for `wanted` bytes, and for a field more if the size allows it.
    #[cold]
    fn grow(&mut self, wanted: usize) -> Result<(), Fault> {
        let written = self.written();
        if wanted > self.size - written {
            return damaged(format!(
                "the fields take more than the {} bytes that the header says",
                self.size
            ));
        }
        let end = (self.end * 2)
            .max(written + wanted.saturating_add(FIELD))
            .min(self.size);
        if self.bytes.len() < end {
            self.bytes
                .try_reserve_exact(end - self.bytes.len())
                .map_err(|error| Fault::Damaged(error.to_string()))?;
            self.bytes.resize(end, 0);
        }
        self.bytes.copy_within(self.at..self.end, end - written);
        self.at = end - written;
        self.end = end;
        Ok(())
    }

    /// Writes bytes wherever the window stands.
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.at < bytes.len() {
            self.grow(bytes.len())?;
        }
        let start = self.at - bytes.len();
        self.bytes[start..self.at].copy_from_slice(bytes);
        self.at = start;
        Ok(())
    }

    /// Stores 8 bytes of which the last `count` are meant; there must be room for all of them.
    #[inline(always)]
    fn put_word(&mut self, word: [u8; 8], count: u8) {
        self.bytes[self.at - 8..self.at].copy_from_slice(&word);
        self.at -= usize::from(count);
    }
}

/// Eight bytes from `at` on; zeros beyond the end.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|bytes| bytes.first_chunk()) {
        Some(word) => u64::from_le_bytes(*word),
        None => last_word(bytes, at),
    }
}

#[cold]
fn last_word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let rest = bytes.get(at..).unwrap_or(&[]);
    let count = rest.len().min(8);
    word[..count].copy_from_slice(&rest[..count]);
    u64::from_le_bytes(word)
}

/// One run of the machine.
struct Run<'r> {
    machine: &'r mut Machine,
    /// What the buffers are parts of.
    source: &'r [u8],
    transitions: &'r [u8],
    open: &'r mut Vec<Open>,
    output: Output<'r>,
    /// Bytes written when a record was finished; from the last record to the first.
    ends: &'r mut Vec<usize>,
    num_records: u64,
}

impl Run<'_> {
    /// A guess at the size of the records that is rarely too small, and bounded by what was decompressed.
    fn likely_size(&self) -> usize {
        let buffers = self.machine.buffers.last().map_or(0, |buffer| buffer.end);
        let nodes = self.machine.nodes.len();
        buffers
            .saturating_add(self.transitions.len().saturating_mul(16))
            .saturating_add(nodes.saturating_mul(16))
            .saturating_add(4096)
    }

    fn run(&mut self) -> Result<(), Fault> {
        let mut transitions = self.transitions.iter();
        let mut no_ops = (self.transitions.len() as u64 + 1) * MAX_NO_OPS + self.machine.nodes.len() as u64;
        let mut index = self.machine.first_node as usize;
        let mut repeats = 0u8;
        loop {
            let Some(node) = self.machine.nodes.get(index) else {
                return damaged(format!(
                    "a transition leads to node {index} of {}",
                    self.machine.nodes.len()
                ));
            };
            let node = *node;
            match node.op {
                Op::Tag => {
                    if self.has_room()? {
                        self.output.put_word(node.tag, node.tag_size);
                    } else {
                        self.put_tag(&node)?;
                    }
                }
                Op::Varint => {
                    let at = self.take(&node, usize::from(node.value_size))?;
                    self.put_value(&node, at, 0x0080_8080_8080_8080)?;
                }
                Op::Fixed => {
                    let at = self.take(&node, usize::from(node.value_size))?;
                    self.put_value(&node, at, 0)?;
                }
                Op::Bytes => self.put_bytes(&node)?,
                Op::LongVarint => self.put_long_varint(&node)?,
                Op::SubmessageEnd => {
                    if self.open.len() >= MAX_DEPTH {
                        return damaged(format!("more than {MAX_DEPTH} submessages lie in each other"));
                    }
                    self.open.push(Open {
                        written: self.output.written(),
                        node: index as u32,
                    });
                }
                Op::SubmessageStart => self.close_submessage()?,
                Op::MessageStart => self.finish_record()?,
                Op::NonProto => self.put_non_proto(&node)?,
                Op::Nothing => {
                    no_ops -= 1;
                    if no_ops == 0 {
                        return damaged("the nodes do not lead to a field");
                    }
                }
            }
            index = node.next as usize;
            if node.is_implicit {
                continue;
            }
            if repeats > 0 {
                repeats -= 1;
                continue;
            }
            let Some(&transition) = transitions.next() else {
                return Ok(());
            };
            index += usize::from(transition >> 2);
            repeats = transition & 3;
        }
    }

    /// Whether a field can be written in whole words. If not, the window is at its size, and exact writes have to tell.
    #[inline(always)]
    fn has_room(&mut self) -> Result<bool, Fault> {
        if self.output.at >= FIELD {
            return Ok(true);
        }
        self.make_room()
    }

    #[cold]
    fn make_room(&mut self) -> Result<bool, Fault> {
        if self.output.end < self.output.size {
            self.output.grow(0)?;
        }
        Ok(self.output.at >= FIELD)
    }

    /// Takes `count` bytes of the node's buffer: where they begin in the source.
    #[inline(always)]
    fn take(&mut self, node: &Node, count: usize) -> Result<usize, Fault> {
        let buffer = &mut self.machine.buffers[node.buffer as usize];
        let at = buffer.start;
        if count > buffer.end - at {
            return Self::exhausted(node.buffer);
        }
        buffer.start = at + count;
        Ok(at)
    }

    #[cold]
    fn exhausted<T>(buffer: u32) -> Result<T, Fault> {
        damaged(format!(
            "buffer {buffer} ends before the last value that is read from it"
        ))
    }

    fn put_tag(&mut self, node: &Node) -> Result<(), Fault> {
        self.output.put(&node.tag[8 - usize::from(node.tag_size)..])
    }

    /// Writes a tag and a value of at most 8 bytes from the source, with the bits of `mask` set in all bytes of it.
    #[inline(always)]
    fn put_value(&mut self, node: &Node, at: usize, mask: u64) -> Result<(), Fault> {
        let unused = 64 - 8 * u32::from(node.value_size);
        let value = ((word(self.source, at) << unused) | mask).to_le_bytes();
        if self.has_room()? {
            self.output.put_word(value, node.value_size);
            self.output.put_word(node.tag, node.tag_size);
            return Ok(());
        }
        self.output.put(&value[8 - usize::from(node.value_size)..])?;
        self.put_tag(node)
    }

    fn put_long_varint(&mut self, node: &Node) -> Result<(), Fault> {
        let size = usize::from(node.value_size);
        let at = self.take(node, size)?;
        let mut value = [0; 10];
        value[..size].copy_from_slice(&self.source[at..at + size]);
        for byte in &mut value[..size - 1] {
            *byte |= 0x80;
        }
        self.output.put(&value[..size])?;
        self.put_tag(node)
    }

    /// Writes a string: its length and its bytes stand in the buffer as they stand in the record.
    #[inline]
    fn put_bytes(&mut self, node: &Node) -> Result<(), Fault> {
        let buffer = &mut self.machine.buffers[node.buffer as usize];
        let bytes = &self.source[buffer.clone()];
        let mut rest = bytes;
        let total = take_varint(&mut rest).and_then(|length| {
            let length = usize::try_from(length).ok()?;
            (length <= rest.len()).then_some(bytes.len() - rest.len() + length)
        });
        let Some(total) = total else {
            return Self::exhausted(node.buffer);
        };
        let (start, end) = (buffer.start, buffer.start + total);
        buffer.start = end;
        let output = &mut self.output;
        if output.at >= total.saturating_add(FIELD) {
            // Short ones are copied with what stands before them, which is then overwritten: one copy of a known size.
            if total <= 16 && end >= 16 {
                let at = output.at;
                output.bytes[at - 16..at].copy_from_slice(&self.source[end - 16..end]);
            } else {
                let at = output.at;
                output.bytes[at - total..at].copy_from_slice(&self.source[start..end]);
            }
            output.at -= total;
            output.put_word(node.tag, node.tag_size);
            return Ok(());
        }
        output.put(&self.source[start..end])?;
        self.put_tag(node)
    }

    fn close_submessage(&mut self) -> Result<(), Fault> {
        let Some(open) = self.open.pop() else {
            return damaged("a submessage begins that does not end");
        };
        let length = self.output.written() - open.written;
        if length > u32::MAX as usize {
            return damaged(format!(
                "a submessage takes {length} bytes, more than a message can hold"
            ));
        }
        let node = self.machine.nodes[open.node as usize];
        // From the last byte of the varint to the first.
        let mut bytes = [0; 8];
        let mut size = 0;
        let mut left = length;
        loop {
            bytes[size] = left as u8 | 0x80;
            size += 1;
            left >>= 7;
            if left == 0 {
                break;
            }
        }
        bytes[size - 1] &= 0x7f;
        if self.has_room()? {
            let word = u64::from_le_bytes(bytes) << (64 - 8 * size);
            self.output.put_word(word.to_le_bytes(), size as u8);
            self.output.put_word(node.tag, node.tag_size);
            return Ok(());
        }
        self.output.put(&bytes[..size])?;
        self.put_tag(&node)
    }

    fn put_non_proto(&mut self, node: &Node) -> Result<(), Fault> {
        let lengths = self.machine.buffers.len() - 1;
        let buffer = &mut self.machine.buffers[lengths];
        let mut rest = &self.source[buffer.clone()];
        let length = take_varint(&mut rest).and_then(|length| usize::try_from(length).ok());
        buffer.start = buffer.end - rest.len();
        let Some(length) = length else {
            return Self::exhausted(lengths as u32);
        };
        let at = self.take(node, length)?;
        self.output.put(&self.source[at..at + length])?;
        self.finish_record()
    }

    fn finish_record(&mut self) -> Result<(), Fault> {
        if !self.open.is_empty() {
            return damaged("a record begins inside a submessage");
        }
        if self.ends.len() as u64 == self.num_records {
            return damaged(format!(
                "there are more records than the {} that the header says",
                self.num_records
            ));
        }
        self.ends.push(self.output.written());
        Ok(())
    }

    /// Checks that everything came out, and turns bytes written from the end into ends from the begin.
    fn finish(self) -> Result<(), Fault> {
        let (size, written) = (self.output.size, self.output.written());
        if !self.open.is_empty() {
            return damaged("a submessage ends that does not begin");
        }
        if self.ends.len() as u64 != self.num_records {
            return damaged(format!(
                "there are {} records, the header says {}",
                self.ends.len(),
                self.num_records
            ));
        }
        if written != size || self.ends.last().is_some_and(|end| *end != size) {
            return damaged(format!(
                "the records take {written} bytes, the header says {size}"
            ));
        }
        // A record ends where the next one begins, the last one at the end.
        self.ends.pop();
        self.ends.reverse();
        for end in self.ends.iter_mut() {
            *end = size - *end;
        }
        if self.num_records > 0 {
            self.ends.push(size);
        }
        Ok(())
    }
}
