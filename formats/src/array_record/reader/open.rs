//! Reads the postscript and the footer: in part when a file is opened, whole when the index is built.

use crate::array_record::SIGNATURE;
use crate::array_record::chunk::{Decoded, Fault, Located};
use crate::array_record::footer::{Entry, MAX_ENTRY_BYTES, MAX_METADATA_BYTES, Metadata, parse_postscript};
use crate::array_record::index::{ChunkIndex, IndexBuilder};
use crate::array_record::layout::{
    BLOCK, CHUNK_HEADER, ChunkType, FIRST_CHUNK, is_chunk_boundary, take_varint,
};
use crate::array_record::reader::{Scratch, position, window};
use crate::store::ReadAt;
use crate::{Error, Result};

/// A request that costs as much as this many bytes is worth the whole footer.
const COSTLY_REQUEST: u64 = 256 << 10;
/// Bytes read of the postscript: headers of 64, and the 3 records of at most 22 bytes that every writer puts there.
const POSTSCRIPT_HEAD: u64 = 192;
/// Bytes read from where the footer begins: enough for the metadata of files of up to some 700 chunks; of larger ones they are read apart.
const FOOTER_HEAD: u64 = 1024;

/// What opening a file tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) footer_offset: u64,
    pub(super) num_chunks: u64,
    pub(super) num_records: u64,
    pub(super) writer_options: String,
}

impl Summary {
    fn new(footer_offset: u64, metadata: Metadata) -> Self {
        Self {
            footer_offset,
            num_chunks: metadata.num_chunks,
            num_records: metadata.num_records,
            writer_options: metadata.writer_options,
        }
    }
}

/// Reads the postscript and the metadata of the file, with as few bytes as that takes; gives the index too where the whole footer was needed.
pub(super) fn read_summary(source: &dyn ReadAt) -> Result<(Summary, Option<ChunkIndex>)> {
    let footer_offset = read_postscript(source)?;
    let (index, metadata) = match peek_metadata(source, footer_offset) {
        Ok(Some(metadata)) => (None, metadata),
        Ok(None) => {
            let (index, metadata) = read_footer(source, footer_offset)?;
            (Some(index), metadata)
        }
        Err(fault) => return Err(fault.at(position(source, None, footer_offset), "the footer")),
    };
    Ok((Summary::new(footer_offset, metadata), index))
}

/// Reads the footer and builds the index; everything it says is checked against the file first.
pub(super) fn read_index(source: &dyn ReadAt, summary: &Summary) -> Result<ChunkIndex> {
    let (index, metadata) = read_footer(source, summary.footer_offset)?;
    let found = Summary::new(summary.footer_offset, metadata);
    if found != *summary {
        return Err(Error::Damaged {
            at: position(source, None, summary.footer_offset),
            reason: format!(
                "the footer now speaks of {} records, when the file was opened of {}: it was changed since",
                found.num_records, summary.num_records
            ),
        });
    }
    Ok(index)
}

/// Reads and decodes a chunk that is not of the index; gives its records, joined, and where they are.
fn read_chunk<'a>(
    source: &'a dyn ReadAt,
    begin: u64,
    limit: u64,
    scratch: &'a mut Scratch,
    max_values: impl Fn(&Located) -> u64,
) -> Result<(&'a [u8], &'a Decoded), Fault> {
    scratch.cached = None;
    let window = window(source, begin, limit, &mut scratch.raw)?;
    let located = Located::parse(window, begin, limit)?;
    let data = match located.contiguous(window) {
        Some(data) => data,
        None => {
            located.gather(window, &mut scratch.gathered)?;
            &scratch.gathered
        }
    };
    located.check(data)?;
    let values = scratch
        .decoded
        .decode(&located.header, data, max_values(&located))?;
    Ok((scratch.decoded.joined(values, data), &scratch.decoded))
}

/// Reads where the footer begins from the last block.
fn read_postscript(source: &dyn ReadAt) -> Result<u64> {
    let length = source.len();
    let begin = length.saturating_sub(BLOCK);
    let fail = |reason: String| Error::Damaged {
        at: position(source, None, begin),
        reason,
    };
    if !length.is_multiple_of(BLOCK) || length < 2 * BLOCK {
        return Err(fail(format!(
            "{}: the file has {length} bytes, wanted a multiple of {BLOCK} from {} on",
            guess(source),
            2 * BLOCK
        )));
    }
    let mut head = [0; POSTSCRIPT_HEAD as usize];
    source.read_at(begin, &mut head)?;
    let mut scratch = Scratch::default();
    let peeked = Located::parse(&head, begin, length)
        .ok()
        .and_then(|located| Some((located, located.contiguous(&head)?)))
        .filter(|(located, data)| located.check(data).is_ok());
    let decoded = match peeked {
        Some((located, data)) => scratch
            .decoded
            .decode(&located.header, data, BLOCK)
            .map(|values| (scratch.decoded.joined(values, data), &scratch.decoded)),
        None => read_chunk(source, begin, length, &mut scratch, |_| BLOCK),
    };
    let (values, decoded) = match decoded {
        Ok(found) => found,
        Err(Fault::Source(error)) => return Err(error),
        Err(Fault::Damaged(reason) | Fault::Unsupported(reason)) => {
            return Err(fail(format!(
                "{}: no postscript in the last {BLOCK} bytes: {reason}",
                guess(source)
            )));
        }
    };
    if decoded.ends.is_empty() {
        return Err(fail("the postscript is empty".into()));
    }
    let footer_offset = parse_postscript(&values[decoded.range(0)]).map_err(fail)?;
    if footer_offset < FIRST_CHUNK || footer_offset >= begin || !is_chunk_boundary(footer_offset) {
        return Err(fail(format!(
            "the postscript puts the footer at byte {footer_offset}, which cannot be in a file of {length} bytes"
        )));
    }
    Ok(footer_offset)
}

/// What the file seems to be, from its first bytes.
fn guess(source: &dyn ReadAt) -> &'static str {
    let mut head = [0; 8];
    let head = &mut head[..source.len().min(8) as usize];
    if source.read_at(0, head).is_err() || head.is_empty() {
        return "the file is empty, not an ArrayRecord file";
    }
    if *head == SIGNATURE {
        "the file begins as an ArrayRecord file, but is cut short, or was not finished, or has something behind its end"
    } else if head.starts_with(&[0x1f, 0x8b]) {
        "not an ArrayRecord file, but gzip"
    } else {
        "not an ArrayRecord file, or its ends are damaged"
    }
}

/// The first record of the footer, without reading the rest, whose hash is therefore not checked; that of the chunk header is. `None` where
/// the footer has to be read whole: it is compressed, or not as every writer leaves it.
fn peek_metadata(source: &dyn ReadAt, footer_offset: u64) -> Result<Option<Metadata>, Fault> {
    let limit = source.len() - BLOCK;
    if source.request_cost() >= COSTLY_REQUEST {
        return Ok(None);
    }
    let mut head = [0; FOOTER_HEAD as usize];
    let head = &mut head[..FOOTER_HEAD.min(limit - footer_offset) as usize];
    source.read_at(footer_offset, head).map_err(Fault::Source)?;
    let located = Located::parse(head, footer_offset, limit)?;
    let header = located.header;
    let mut start = [0; 32];
    let start = &mut start[..header.data_size.min(32) as usize];
    let read = |begin: u64, output: &mut [u8]| match located.peek(head, begin, output.len()) {
        Some(bytes) => {
            output.copy_from_slice(bytes);
            Ok(())
        }
        None => located.read_part(source, begin, output),
    };
    read(0, start)?;
    let parse = |mut rest: &[u8]| {
        let codec = rest.split_off_first()?;
        let sizes_length = take_varint(&mut rest)?;
        let before = rest.len();
        let size = take_varint(&mut rest)?;
        let sizes_begin = (start.len() - before) as u64;
        let begin = sizes_begin.checked_add(sizes_length)?;
        let end = begin.checked_add(size)?;
        let is_usual = *codec == 0
            && header.chunk_type == ChunkType::Simple
            && size <= MAX_METADATA_BYTES
            && end <= header.data_size;
        is_usual.then_some((begin, size))
    };
    let Some((begin, size)) = parse(start) else {
        return Ok(None);
    };
    let mut record = vec![0; size as usize];
    read(begin, &mut record)?;
    let metadata = Metadata::parse(&record).map_err(Fault::Damaged)?;
    check_metadata(&metadata, header.num_records.saturating_sub(1), footer_offset).map_err(Fault::Damaged)?;
    Ok(Some(metadata))
}

/// Whether the metadata can be those of a footer with so many entries.
fn check_metadata(metadata: &Metadata, num_entries: u64, footer_offset: u64) -> Result<(), String> {
    if num_entries != metadata.num_chunks {
        return Err(format!(
            "it has entries for {num_entries} chunks, its metadata say {}",
            metadata.num_chunks
        ));
    }
    let can_be = metadata.num_records >= num_entries
        && (num_entries > 0 || metadata.num_records == 0)
        && num_entries <= footer_offset / CHUNK_HEADER
        && metadata.num_records <= footer_offset;
    if !can_be {
        return Err(format!(
            "its metadata say {} records in {num_entries} chunks, which {footer_offset} bytes cannot hold",
            metadata.num_records
        ));
    }
    Ok(())
}

fn read_footer(source: &dyn ReadAt, footer_offset: u64) -> Result<(ChunkIndex, Metadata)> {
    let at = || position(source, None, footer_offset);
    let fail = |reason: String| Error::Damaged { at: at(), reason };
    let limit = source.len() - BLOCK;
    // Entries are small: a footer that claims more is not one.
    let max_values = |located: &Located| {
        let entries = located.header.num_records.saturating_mul(MAX_ENTRY_BYTES);
        entries.saturating_add(MAX_METADATA_BYTES)
    };
    let mut scratch = Scratch::default();
    let (values, decoded) = read_chunk(source, footer_offset, limit, &mut scratch, max_values)
        .map_err(|fault| fault.at(at(), "the footer"))?;
    if decoded.ends.is_empty() {
        return Err(fail("the footer is empty".into()));
    }
    let metadata = Metadata::parse(&values[decoded.range(0)]).map_err(fail)?;
    let num_entries = decoded.ends.len() as u64 - 1;
    check_metadata(&metadata, num_entries, footer_offset)
        .map_err(|reason| fail(format!("the footer: {reason}")))?;
    let mut builder = IndexBuilder::default();
    let (mut next, mut num_records) = (FIRST_CHUNK, 0u64);
    for chunk in 0..num_entries {
        let entry = Entry::parse(&values[decoded.range(chunk as usize + 1)])
            .ok_or_else(|| fail(format!("the footer's entry for chunk {chunk} is malformed")))?;
        // A chunk takes a header, and is never shorter than its number of records.
        let size = entry.num_records.max(CHUNK_HEADER);
        let end = entry
            .chunk_offset
            .checked_add(size)
            .filter(|end| *end <= footer_offset);
        let (true, true, Some(end)) = (entry.num_records > 0, entry.chunk_offset >= next, end) else {
            return Err(fail(format!(
                "the footer says that chunk {chunk} with {} records begins at byte {}, which cannot be: the one before ends at {next} or later, \
                 the footer begins at {footer_offset}",
                entry.num_records, entry.chunk_offset
            )));
        };
        builder.push(entry.chunk_offset, entry.num_records);
        num_records += entry.num_records;
        next = end;
    }
    if num_records != metadata.num_records {
        return Err(fail(format!(
            "the footer's chunks hold {num_records} records, its metadata say {}",
            metadata.num_records
        )));
    }
    Ok((builder.finish(footer_offset), metadata))
}
