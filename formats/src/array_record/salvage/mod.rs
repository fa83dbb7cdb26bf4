//! Rebuilds a readable file from a damaged one, and says exactly what is lost.
//!
//! The footer is not needed: chunks are found one behind the other, and after damage by the footer's entries where those can be believed, else
//! by the next right block header, else by looking at each byte for a chunk header. Whatever has right hashes and decodes is kept, and is
//! copied as it is, not compressed again.
//!
//! Source: Riegeli's `doc/riegeli_records_file_format.md`, on finding chunks by block headers.

mod footer;
mod output;
#[cfg(test)]
mod tests;
mod walk;

use std::io::Write;
use std::ops::Range;

use crate::array_record::WriteOptions;
use crate::array_record::chunk::{Decoded, Fault, Located, Values};
use crate::array_record::codec::Codec;
use crate::array_record::footer::parse_postscript;
use crate::array_record::layout::{
    BLOCK, BLOCK_HEADER, CHUNK_HEADER, ChunkHeader, ChunkType, FIRST_CHUNK, take_varint,
};
use crate::store::ReadAt;
use crate::{Error, Position, Result};

use footer::Footer;
use output::Output;
use walk::{Step, Walk};

/// Records saved, one behind the other in the damaged file and in the new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Their positions in the damaged file; `None` behind a loss whose number of records nobody can tell.
    pub records: Option<Range<u64>>,
    /// Their positions in the new file.
    pub new_records: Range<u64>,
    /// Where their chunks lie in the damaged file.
    pub bytes: Range<u64>,
}

/// A place where records are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Their positions, where they are known.
    pub records: Option<Range<u64>>,
    /// How many they are, where that is known; it may be without their positions.
    pub num_records: Option<u64>,
    /// The damaged bytes. Empty where the file ends without a footer.
    pub bytes: Range<u64>,
    /// What was found.
    pub reason: String,
}

/// A damaged place that costs no record: the signature, padding, the footer, bytes behind the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Harmless {
    /// The bytes.
    pub bytes: Range<u64>,
    /// What was found.
    pub reason: String,
}

/// What [`salvage`] found. Holds an entry for each damaged place and for each run of chunks between two.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Salvage {
    /// Records saved.
    pub num_records: u64,
    /// Chunks saved.
    pub num_chunks: u64,
    /// Bytes of the records saved.
    pub record_bytes: u64,
    /// Records in the file before it was damaged, where a footer tells.
    pub total_records: Option<u64>,
    /// The records saved. Together with the records lost they are all, where [`total_records`](Self::total_records) is known.
    pub kept: Vec<Kept>,
    /// Where records are lost, in file order.
    pub lost: Vec<Lost>,
    /// Damage that costs no record, in file order.
    pub harmless: Vec<Harmless>,
    /// The options that the new file records.
    pub writer_options: String,
}

impl Salvage {
    /// Whether every record was saved, and it is known that there were no more.
    pub fn is_complete(&self) -> bool {
        self.lost.is_empty()
    }

    /// How many records are known to be lost; there may be more where [`Lost::num_records`] is `None`.
    pub fn num_lost(&self) -> u64 {
        self.lost.iter().filter_map(|lost| lost.num_records).sum()
    }
}

/// Writes all records of `source` that can be read to `sink`, as a new ArrayRecord file, and says which those are.
///
/// Reads the file twice, three times where the footer has to be looked for; the first times its chunk headers only. Holds one chunk, the
/// footer, and about 12 bytes per chunk for the new footer. The same bytes always give the same file. A whole file comes out with the
/// same chunks. `progress` is called with the offset reached. Give [`std::io::sink`] to learn what would be saved.
///
/// The new file records the options of the old one; where its footer is lost, the group size and the codec that its chunks show.
///
/// # Errors
///
/// [`Error::Io`] of the source or the sink; [`Error::Damaged`] where not one chunk can be found. Damage is the answer, not an error.
pub fn salvage<W: Write>(
    source: &dyn ReadAt,
    sink: W,
    mut progress: impl FnMut(u64),
) -> Result<(W, Salvage)> {
    let (found, told) = Footer::find(source)?;
    let is_believed = match &found {
        Some(footer) => footer.agrees(source)?,
        None => false,
    };
    let believed = found.as_ref().filter(|_| is_believed);
    let mut walk = Walk::new(source, believed);
    let mut rescue = Rescue {
        output: Output::new(sink)?,
        believed,
        footer_offset: found.as_ref().map(|footer| footer.offset).or(told),
        told,
        is_malformed: found.is_none(),
        entry: 0,
        record: Some(0),
        part: Part::Records,
        chunks_seen: 0,
        gaps_seen: false,
        maybe_footer: None,
        shape: Shape::default(),
        pad: found
            .as_ref()
            .and_then(|footer| WriteOptions::parse(&footer.metadata.writer_options).ok())
            .is_some_and(|options| options.pad_to_block_boundary()),
        decoded: Decoded::default(),
        found: Salvage::default(),
    };
    if found.is_some() && !is_believed {
        let offset = rescue.footer_offset.unwrap_or(0);
        rescue.harmless(
            offset..offset,
            "the footer does not list the chunks that are there: it is not used".into(),
        );
    }
    let mut chunks = 0u64;
    while let Some(step) = walk.next()? {
        match step {
            Step::Chunk { located, .. } => {
                chunks += 1;
                for boundary in walk.take_bad_block_headers() {
                    let bytes = boundary..boundary + BLOCK_HEADER;
                    rescue.harmless(
                        bytes,
                        "block header: its hash is wrong, or it tells of another chunk".into(),
                    );
                }
                rescue.chunk(&mut walk, &located)?;
                progress(located.end);
            }
            Step::Gap {
                begin,
                end,
                header,
                reason,
            } => {
                rescue.gap(&mut walk, begin..end, header, reason)?;
                progress(end);
            }
        }
    }
    if chunks == 0 {
        return Err(Error::Damaged {
            at: Position {
                path: source.name().to_string(),
                record: None,
                offset: Some(0),
            },
            reason: "no chunk of an ArrayRecord file is in it: there is nothing to salvage".into(),
        });
    }
    rescue.finish(
        source.len(),
        found
            .as_ref()
            .map(|footer| footer.metadata.writer_options.clone()),
    )
}

/// Which part of the file the walk is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Chunks of records.
    Records,
    /// Behind the footer: padding, then the postscript.
    Footer,
    /// Behind the postscript.
    End,
}

/// What the chunks look like, for a file whose options are lost.
#[derive(Debug, Default)]
struct Shape {
    group_size: u64,
    codec: Option<Codec>,
    transposed: bool,
    later_chunks: u64,
    later_chunks_on_boundaries: u64,
}

impl Shape {
    fn add(&mut self, located: &Located, data: &[u8]) {
        if self.group_size == 0 {
            self.codec = data.first().and_then(|byte| Codec::from_byte(*byte));
            self.transposed = located.header.chunk_type == ChunkType::Transposed;
        } else {
            self.later_chunks += 1;
            self.later_chunks_on_boundaries += u64::from(located.begin.is_multiple_of(BLOCK));
        }
        self.group_size = self.group_size.max(located.header.num_records);
    }

    fn options(&self) -> String {
        let mut text = format!(
            "group_size:{},{}",
            self.group_size.clamp(1, i32::MAX as u64),
            self.codec.unwrap_or(Codec::Uncompressed).name()
        );
        if self.transposed {
            text += ",transpose";
        }
        if self.later_chunks > 0 && self.later_chunks == self.later_chunks_on_boundaries {
            text += ",pad_to_block_boundary";
        }
        WriteOptions::parse(&text).map_or(text, |options| options.to_string())
    }
}

/// A salvage under way.
struct Rescue<'f, W> {
    output: Output<W>,
    believed: Option<&'f Footer>,
    /// Where a footer or the postscript put the footer.
    footer_offset: Option<u64>,
    /// Where the postscript at the end of the file puts the footer.
    told: Option<u64>,
    /// The chunk at that place is no footer that agrees with itself.
    is_malformed: bool,
    /// The next entry of the believed footer.
    entry: usize,
    /// Position of the next record, where it is known.
    record: Option<u64>,
    part: Part,
    /// Chunks of records before here, damaged ones with right headers as well.
    chunks_seen: u64,
    gaps_seen: bool,
    /// The lost chunk, by its place in `lost` and its number of records, that may have been the footer.
    maybe_footer: Option<(usize, u64)>,
    shape: Shape,
    pad: bool,
    decoded: Decoded,
    found: Salvage,
}

/// What a chunk of records turned out to be.
enum Content {
    Records(u64),
    Footer,
    Postscript,
}

impl<W: Write> Rescue<'_, W> {
    fn harmless(&mut self, bytes: Range<u64>, reason: String) {
        self.found.harmless.push(Harmless { bytes, reason });
    }

    fn lose(&mut self, bytes: Range<u64>, num_records: Option<u64>, reason: String) {
        let records = match (self.record, num_records) {
            (Some(start), Some(count)) => start.checked_add(count).map(|end| start..end),
            _ => None,
        };
        self.record = records.as_ref().map(|records| records.end);
        self.found.lost.push(Lost {
            records,
            num_records,
            bytes,
            reason,
        });
    }

    /// The records that the believed footer places before `end`, taken from its list.
    fn take_entries(&mut self, footer: &Footer, end: u64) -> u64 {
        let mut records = 0;
        while self.entry < footer.num_entries() {
            let entry = footer.entry(self.entry);
            if entry.chunk_offset >= end {
                break;
            }
            records += entry.num_records;
            self.entry += 1;
        }
        records
    }

    fn chunk(&mut self, walk: &mut Walk<'_, '_>, located: &Located) -> Result<()> {
        let header = located.header;
        let bytes = located.begin..located.end;
        match header.chunk_type {
            ChunkType::Signature | ChunkType::Padding | ChunkType::Metadata => {
                if header.chunk_type == ChunkType::Signature && located.begin > 0 {
                    self.part = Part::Records;
                }
                let what = header.chunk_type.name();
                match walk.window().data(located) {
                    Ok(data) => match located.check(data) {
                        Ok(()) if header.chunk_type == ChunkType::Metadata => {
                            self.output.other(header, data)?;
                        }
                        Ok(()) => {}
                        Err(fault) => self.harmless(bytes, format!("{what}: {}", text(fault)?)),
                    },
                    Err(fault) => self.harmless(bytes, format!("{what}: {}", text(fault)?)),
                }
                Ok(())
            }
            _ => self.records(walk, located),
        }
    }

    fn records(&mut self, walk: &mut Walk<'_, '_>, located: &Located) -> Result<()> {
        let header = located.header;
        let bytes = located.begin..located.end;
        let is_footer = self.footer_offset == Some(located.begin);
        let content = match walk.window().data(located) {
            Ok(data) => match located.check(data) {
                Ok(()) if is_footer => Ok(Content::Footer),
                Ok(()) if self.part == Part::Footer => Ok(Content::Postscript),
                Ok(()) => content(&mut self.decoded, located, data)
                    .map(|content| (content, data))
                    .map(|(content, data)| {
                        if matches!(content, Content::Records(_)) {
                            self.shape.add(located, data);
                        }
                        content
                    }),
                Err(fault) => Err(fault),
            },
            Err(fault) => Err(fault),
        };
        match content {
            Ok(Content::Footer) => {
                self.part = Part::Footer;
                if self.is_malformed {
                    self.harmless(
                        bytes,
                        "the footer: its hash is right, but it says what cannot be".into(),
                    );
                }
            }
            Ok(Content::Postscript) => {
                if self.told.is_none() {
                    let reason = "the postscript: it is not at the end of the file, or does not say where the footer is";
                    self.harmless(bytes, reason.into());
                }
                if let Some((lost, _)) = self.maybe_footer.take() {
                    let footer = self.found.lost.remove(lost);
                    self.harmless(footer.bytes, format!("the footer: {}", footer.reason));
                }
                self.part = Part::End;
            }
            Ok(Content::Records(_)) if header.num_records == 0 => {}
            Ok(Content::Records(record_bytes)) => {
                self.part = Part::Records;
                self.was_records();
                self.chunks_seen += 1;
                if let Some(footer) = self.believed {
                    self.take_entries(footer, located.end);
                }
                let pad = self.pad;
                let data = walk.window().data(located).map_err(source_error)?;
                let start = self.output.num_records();
                self.output.records(header, data, pad)?;
                self.found.record_bytes += record_bytes;
                self.keep(bytes, start..self.output.num_records());
            }
            Err(fault) => {
                let reason = text(fault)?;
                if is_footer {
                    self.part = Part::Footer;
                    self.harmless(bytes, format!("the footer: {reason}"));
                } else if self.part == Part::Footer {
                    self.part = Part::End;
                    self.harmless(bytes, format!("the postscript: {reason}"));
                } else {
                    self.lose_chunk(bytes, &header, None, reason);
                }
            }
        }
        Ok(())
    }

    /// A chunk of records whose header is right is lost, or it was the footer.
    fn lose_chunk(
        &mut self,
        bytes: Range<u64>,
        header: &ChunkHeader,
        is_footer: Option<bool>,
        reason: String,
    ) {
        self.was_records();
        if let Some(footer) = self.believed {
            let records = self.take_entries(footer, bytes.end);
            self.chunks_seen += 1;
            return self.lose(bytes, Some(records), reason);
        }
        let may_be_footer = !self.gaps_seen && can_be_footer(header, self.chunks_seen);
        self.chunks_seen += 1;
        if may_be_footer && is_footer != Some(false) {
            let reason = format!(
                "a chunk of {} records, or the footer of the file: {reason}",
                header.num_records
            );
            self.maybe_footer = Some((self.found.lost.len(), header.num_records));
            self.lose(bytes, None, reason);
        } else {
            let reason = format!("a chunk of {} records: {reason}", header.num_records);
            self.lose(bytes, Some(header.num_records), reason);
        }
    }

    /// Records follow: what may have been the footer was not.
    fn was_records(&mut self) {
        if let Some((lost, count)) = self.maybe_footer.take()
            && let Some(lost) = self.found.lost.get_mut(lost)
        {
            let start = self
                .found
                .kept
                .last()
                .map_or(Some(0), |kept| kept.records.as_ref().map(|records| records.end));
            lost.num_records = Some(count);
            lost.records = start.and_then(|start| Some(start..start.checked_add(count)?));
            self.record = lost.records.as_ref().map(|records| records.end);
        }
    }

    fn keep(&mut self, bytes: Range<u64>, new_records: Range<u64>) {
        let count = new_records.end - new_records.start;
        let records = self.record.map(|start| start..start + count);
        self.record = records.as_ref().map(|records| records.end);
        if let Some(last) = self.found.kept.last_mut() {
            let follows = match (&last.records, &records) {
                (Some(last), Some(next)) => last.end == next.start,
                (None, None) => self
                    .found
                    .lost
                    .last()
                    .is_none_or(|lost| lost.bytes.end <= last.bytes.start),
                _ => false,
            };
            if follows {
                last.records = last
                    .records
                    .take()
                    .zip(records)
                    .map(|(last, next)| last.start..next.end);
                last.new_records.end = new_records.end;
                last.bytes.end = bytes.end;
                return;
            }
        }
        self.found.kept.push(Kept {
            records,
            new_records,
            bytes,
        });
    }

    fn gap(
        &mut self,
        walk: &mut Walk<'_, '_>,
        bytes: Range<u64>,
        header: Option<ChunkHeader>,
        reason: String,
    ) -> Result<()> {
        if let Some(footer) = self.believed
            && bytes.start < footer.offset
        {
            match self.take_entries(footer, bytes.end) {
                0 => self.harmless(bytes, reason),
                records => self.lose(bytes, Some(records), reason),
            }
            return Ok(());
        }
        match self.part {
            _ if self.footer_offset == Some(bytes.start) => {
                self.part = Part::Footer;
                self.harmless(bytes, format!("the footer: {reason}"));
            }
            Part::Footer => {
                self.part = Part::End;
                self.harmless(bytes, format!("the postscript: {reason}"));
            }
            Part::End => self.harmless(bytes, format!("behind the end: {reason}")),
            Part::Records if bytes.start == 0 && bytes.end <= FIRST_CHUNK => {
                self.harmless(bytes, format!("the file signature: {reason}"));
            }
            Part::Records => {
                // Only at the end of the file the header's chunk is the only one in the bytes.
                let header = header.filter(|_| bytes.end == walk.window().len());
                match header {
                    Some(header)
                        if matches!(header.chunk_type, ChunkType::Simple | ChunkType::Transposed) =>
                    {
                        let is_footer = begins_as_footer(walk, bytes.clone(), &header)?;
                        if is_footer == Some(true)
                            && !self.gaps_seen
                            && can_be_footer(&header, self.chunks_seen)
                        {
                            self.part = Part::Footer;
                            self.harmless(bytes, format!("the footer: {reason}"));
                        } else {
                            self.lose_chunk(bytes, &header, is_footer, reason);
                        }
                    }
                    Some(header) if matches!(header.chunk_type, ChunkType::Padding) => {
                        self.harmless(bytes, format!("padding: {reason}"));
                    }
                    _ => {
                        self.gaps_seen = true;
                        self.maybe_footer = None;
                        if self.footer_offset.is_some_and(|offset| bytes.contains(&offset)) {
                            self.part = Part::Footer;
                        }
                        self.lose(bytes, None, reason);
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, length: u64, writer_options: Option<String>) -> Result<(W, Salvage)> {
        if let Some(footer) = self.believed {
            self.found.total_records = Some(footer.metadata.num_records);
        } else if self.part == Part::Records
            && self.footer_offset.is_none()
            && self.found.lost.last().is_none_or(|lost| lost.bytes.end < length)
        {
            let reason = "the file ends without a footer: it was cut here, or never finished, and what followed is not known";
            self.lose(length..length, None, reason.into());
        }
        let writer_options = writer_options.unwrap_or_else(|| self.shape.options());
        self.found.num_records = self.output.num_records();
        self.found.num_chunks = self.output.num_chunks();
        self.found.writer_options.clone_from(&writer_options);
        let sink = self.output.finish(writer_options)?;
        Ok((sink, self.found))
    }
}

/// What a chunk with a right data hash holds.
fn content(decoded: &mut Decoded, located: &Located, data: &[u8]) -> Result<Content, Fault> {
    let header = &located.header;
    match decoded.decode(header, data, u64::MAX) {
        Ok(values) => {
            let values = match values {
                Values::InData(start) => &data[start..],
                Values::Decompressed => &decoded.values,
            };
            if header.chunk_type == ChunkType::Simple && !decoded.ends.is_empty() {
                let is_postscript = decoded.ends.len() == crate::array_record::footer::POSTSCRIPT_COPIES
                    && (0..decoded.ends.len())
                        .all(|record| parse_postscript(&values[decoded.range(record)]).is_ok());
                if is_postscript {
                    return Ok(Content::Postscript);
                }
                // The tag of the metadata comes first, so that hardly any chunk is looked at closer.
                if values.first() == Some(&0x0a)
                    && Footer::from_records(located.begin, values.to_vec(), decoded.ends.clone()).is_some()
                {
                    return Ok(Content::Footer);
                }
            }
            Ok(Content::Records(header.decoded_data_size))
        }
        // Its hash is right: it is copied, for a reader that can.
        Err(Fault::Unsupported(_))
            if matches!(header.chunk_type, ChunkType::Simple | ChunkType::Transposed)
                && data.first().is_some_and(|byte| Codec::from_byte(*byte).is_some()) =>
        {
            Ok(Content::Records(header.decoded_data_size))
        }
        Err(fault) => Err(fault),
    }
}

/// Whether a footer for so many chunks can have this header.
fn can_be_footer(header: &ChunkHeader, num_chunks: u64) -> bool {
    let entries = num_chunks.saturating_mul(6);
    header.chunk_type == ChunkType::Simple
        && header.num_records == num_chunks + 1
        && header.decoded_data_size >= 8 + entries
        && header.decoded_data_size <= (1 << 16) + num_chunks.saturating_mul(64)
}

/// Whether a chunk that is cut begins as a footer does, where enough of it is there and not compressed.
fn begins_as_footer(
    walk: &mut Walk<'_, '_>,
    bytes: Range<u64>,
    header: &ChunkHeader,
) -> Result<Option<bool>> {
    const LOOK: u64 = 4096;
    // Only where no block header interrupts what is looked at.
    let skipped = if bytes.start.is_multiple_of(BLOCK) {
        BLOCK_HEADER
    } else {
        0
    };
    let start = bytes.start + skipped + CHUNK_HEADER;
    let end = bytes.end.min(start + LOOK);
    if start >= end || start % BLOCK + (end - start) > BLOCK || start / BLOCK != bytes.start / BLOCK {
        return Ok(None);
    }
    let data = walk.window().bytes(start, end)?;
    let Some((0, mut rest)) = data.split_first() else {
        return Ok(None);
    };
    let values = take_varint(&mut rest).and_then(|sizes| rest.get(usize::try_from(sizes).ok()?..));
    let Some(values) = values.filter(|values| values.len() >= 6) else {
        return Ok(None);
    };
    // The metadata, a message: its version 1, then the number of chunks.
    let mut inner = &values[1..];
    let length = take_varint(&mut inner);
    let starts = values[0] == 0x0a && length.is_some() && inner.starts_with(&[0x08, 1, 0x10]);
    let mut count = inner.get(3..).unwrap_or_default();
    Ok(match take_varint(&mut count) {
        Some(chunks) => Some(starts && chunks + 1 == header.num_records),
        None if starts => None,
        None => Some(false),
    })
}

/// The reason of a fault; errors of the source stay errors.
fn text(fault: Fault) -> Result<String> {
    match fault {
        Fault::Damaged(reason) | Fault::Unsupported(reason) => Ok(reason),
        Fault::Source(error) => Err(error),
    }
}

fn source_error(fault: Fault) -> Error {
    match fault {
        Fault::Source(error) => error,
        Fault::Damaged(reason) | Fault::Unsupported(reason) => Error::damaged(reason),
    }
}
