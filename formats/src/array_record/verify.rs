//! Looks at every byte of an ArrayRecord file, goes on past damage, and says which records are lost.

use std::ops::Range;
use std::sync::Arc;

use crate::array_record::Reader;
use crate::array_record::chunk::{Decoded, Fault, Located};
use crate::array_record::layout::{BLOCK, BLOCK_HEADER, BlockHeader, CHUNK_HEADER, ChunkType, FIRST_CHUNK};
use crate::array_record::reader::window;
use crate::store::ReadAt;
use crate::{Error, Result};

/// One damaged place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The records lost by it. Empty where no record is: a block header, padding, the signature; and where nobody can tell: the footer.
    pub records: Range<u64>,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// What was found and what was wanted.
    pub reason: String,
}

/// What [`verify`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// Records in the file, good and damaged; `None` where the footer cannot be read.
    pub num_records: Option<u64>,
    /// Bytes of the good records.
    pub record_bytes: u64,
    /// Every damaged place, in file order where the footer can be read.
    pub damaged: Vec<Damage>,
}

impl Verification {
    /// Whether the whole file is as its writer left it.
    pub fn is_ok(&self) -> bool {
        self.damaged.is_empty()
    }
}

/// How closely [`verify_with`] looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VerifyOptions {
    quick: bool,
}

impl VerifyOptions {
    /// Looks at the footer, and at the headers of chunks and blocks only, not at the data: finds files that are cut, mixed up, or have bytes
    /// missing, without reading them whole. By default everything is looked at.
    #[must_use]
    pub fn quick(mut self, quick: bool) -> Self {
        self.quick = quick;
        self
    }
}

/// Checks all hashes, decodes all records, and compares all block headers and padding with what they must be.
///
/// Reads the file once, holds one chunk. A chunk that this version cannot decode is listed as well, with the reason: nobody
/// looked inside.
///
/// # Errors
///
/// [`Error::Io`] only: damage is the answer, not an error.
pub fn verify(source: Arc<dyn ReadAt>) -> Result<Verification> {
    verify_with(source, VerifyOptions::default(), |_| {})
}

/// [`verify`], as closely as `options` say. `progress` is called with the offset reached, once a chunk.
///
/// # Errors
///
/// As [`verify`].
pub fn verify_with(
    source: Arc<dyn ReadAt>,
    options: VerifyOptions,
    mut progress: impl FnMut(u64),
) -> Result<Verification> {
    let mut found = Verification {
        num_records: None,
        record_bytes: 0,
        damaged: Vec::new(),
    };
    let mut walk = Walk {
        source: &*source,
        quick: options.quick,
        raw: Vec::new(),
        gathered: Vec::new(),
        decoded: Decoded::default(),
    };
    let mut note = |records: Range<u64>, offset: u64, fault: Fault| match fault {
        Fault::Source(error @ Error::Io { .. }) => Err(error),
        Fault::Source(other) => {
            found.damaged.push(damage(records, offset, other.to_string()));
            Ok(())
        }
        Fault::Damaged(reason) | Fault::Unsupported(reason) => {
            found.damaged.push(damage(records, offset, reason));
            Ok(())
        }
    };
    if let Err(fault) = walk.signature() {
        note(0..0, 0, fault)?;
    }
    let reader = match Reader::from_source(Arc::clone(&source)) {
        Ok(reader) => reader,
        Err(error @ Error::Io { .. }) => return Err(error),
        Err(Error::Damaged { at, reason } | Error::Unsupported { at, reason }) => {
            found.damaged.push(damage(0..0, at.offset.unwrap_or(0), reason));
            return Ok(found);
        }
        Err(other) => {
            found.damaged.push(damage(0..0, 0, other.to_string()));
            return Ok(found);
        }
    };

    let mut record_bytes = 0;
    let first = if reader.num_chunks() > 0 {
        reader.chunk_offset(0)?
    } else {
        reader.footer_offset()
    };
    walk.between(FIRST_CHUNK, first, 0, &mut note)?;
    for chunk in 0..reader.num_chunks() {
        let records = reader.chunk_records(chunk)?;
        let (begin, limit) = (reader.chunk_offset(chunk)?, reader.limit(chunk)?);
        let after = records.end;
        progress(begin);
        let what = format!("chunk {chunk} with records {}..{}", records.start, records.end);
        match walk.records(begin, limit, records.end - records.start) {
            Ok((end, bytes)) => {
                record_bytes += bytes;
                walk.block_headers(begin, end, after, &mut note)?;
                walk.between(end, limit, after, &mut note)?;
            }
            Err((end, fault)) => {
                note(records, begin, in_chunk(fault, &what))?;
                if let Some(end) = end {
                    walk.block_headers(begin, end, after, &mut note)?;
                    walk.between(end, limit, after, &mut note)?;
                }
            }
        }
    }
    // The footer and the postscript were decoded by opening; what lies between and behind was not looked at.
    let (mut position, end) = (reader.footer_offset(), source.len());
    while position < end {
        let limit = if position < end - BLOCK { end - BLOCK } else { end };
        match walk.chunk(position, limit) {
            Ok(located) => {
                walk.block_headers(position, located.end, reader.num_records(), &mut note)?;
                position = located.end;
            }
            Err(fault) => {
                note(
                    reader.num_records()..reader.num_records(),
                    position,
                    in_chunk(fault, "padding"),
                )?;
                position = limit;
            }
        }
    }
    progress(end);
    found.num_records = Some(reader.num_records());
    found.record_bytes = record_bytes;
    Ok(found)
}

fn damage(records: Range<u64>, offset: u64, reason: String) -> Damage {
    Damage {
        records,
        offset,
        reason,
    }
}

fn count_fault(found: u64, wanted: u64) -> Fault {
    Fault::Damaged(format!("it holds {found} records, the footer says {wanted}"))
}

fn in_chunk(fault: Fault, what: &str) -> Fault {
    match fault {
        Fault::Damaged(reason) => Fault::Damaged(format!("{what}: {reason}")),
        Fault::Unsupported(reason) => Fault::Unsupported(format!("{what}: {reason}")),
        source => source,
    }
}

/// Takes a fault at a place: records lost, offset.
trait Note: FnMut(Range<u64>, u64, Fault) -> Result<()> {}
impl<F: FnMut(Range<u64>, u64, Fault) -> Result<()>> Note for F {}

struct Walk<'s> {
    source: &'s dyn ReadAt,
    quick: bool,
    raw: Vec<u8>,
    gathered: Vec<u8>,
    decoded: Decoded,
}

impl Walk<'_> {
    fn signature(&mut self) -> Result<(), Fault> {
        if self.source.len() < FIRST_CHUNK {
            return Err(Fault::Damaged(format!(
                "the file has {} bytes, too few for the signature that it begins with",
                self.source.len()
            )));
        }
        let located = self
            .chunk(0, FIRST_CHUNK)
            .map_err(|fault| in_chunk(fault, "the file signature"))?;
        if located.header.chunk_type != ChunkType::Signature {
            return Err(Fault::Damaged("the file does not begin with a signature".into()));
        }
        self.block_header(0, 0, FIRST_CHUNK)
            .map_err(|fault| in_chunk(fault, "the file signature"))
    }

    /// The header of a chunk, without its data.
    fn header(&mut self, begin: u64, limit: u64) -> Result<Located, Fault> {
        if self.source.as_slice().is_some() {
            let window = window(self.source, begin, limit, &mut self.raw)?;
            return Located::parse(window, begin, limit);
        }
        let size = (CHUNK_HEADER + 2 * BLOCK_HEADER).min(limit.saturating_sub(begin));
        self.raw.resize(size as usize, 0);
        self.source.read_at(begin, &mut self.raw).map_err(Fault::Source)?;
        Located::parse(&self.raw, begin, limit)
    }

    /// Finds a chunk and checks both of its hashes; a quick walk those of its header only.
    fn chunk(&mut self, begin: u64, limit: u64) -> Result<Located, Fault> {
        if self.quick {
            return self.header(begin, limit);
        }
        let window = window(self.source, begin, limit, &mut self.raw)?;
        let located = Located::parse(window, begin, limit)?;
        match located.contiguous(window) {
            Some(data) => located.check(data)?,
            None => {
                located.gather(window, &mut self.gathered)?;
                located.check(&self.gathered)?;
            }
        }
        Ok(located)
    }

    /// Checks a chunk of records: where it ends, and the bytes of its records. With a fault: where it ends, if its header is right.
    fn records(
        &mut self,
        begin: u64,
        limit: u64,
        num_records: u64,
    ) -> Result<(u64, u64), (Option<u64>, Fault)> {
        if self.quick {
            let located = self.header(begin, limit).map_err(|fault| (None, fault))?;
            let (header, end) = (located.header, located.end);
            let fault = match header.chunk_type {
                ChunkType::Simple | ChunkType::Transposed if header.num_records == num_records => {
                    return Ok((end, header.decoded_data_size));
                }
                ChunkType::Simple | ChunkType::Transposed => count_fault(header.num_records, num_records),
                other => Fault::Damaged(format!(
                    "its type is {}, a chunk of records was wanted",
                    other.name()
                )),
            };
            return Err((Some(end), fault));
        }
        let window = window(self.source, begin, limit, &mut self.raw).map_err(|fault| (None, fault))?;
        let located = Located::parse(window, begin, limit).map_err(|fault| (None, fault))?;
        let header = located.header;
        let mut check = || {
            let data = match located.contiguous(window) {
                Some(data) => data,
                None => {
                    located.gather(window, &mut self.gathered)?;
                    &self.gathered
                }
            };
            located.check(data)?;
            if header.num_records != num_records {
                return Err(count_fault(header.num_records, num_records));
            }
            self.decoded.decode(&header, data, u64::MAX).map(|_| ())
        };
        match check() {
            Ok(()) => Ok((located.end, header.decoded_data_size)),
            Err(fault) => Err((Some(located.end), fault)),
        }
    }

    /// Checks what lies between two chunks of records: padding and metadata, and nothing else.
    fn between(&mut self, mut position: u64, limit: u64, record: u64, note: &mut impl Note) -> Result<()> {
        while position < limit {
            let chunk = self
                .chunk(position, limit)
                .and_then(|located| match located.header.chunk_type {
                    ChunkType::Padding | ChunkType::Metadata => Ok(located),
                    other => Err(Fault::Damaged(format!(
                        "a {} chunk that the footer does not know lies here",
                        other.name()
                    ))),
                });
            match chunk {
                Ok(located) => {
                    self.block_headers(position, located.end, record, note)?;
                    position = located.end;
                }
                Err(fault) => {
                    note(record..record, position, in_chunk(fault, "between chunks"))?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Checks the block headers that interrupt the chunk from `begin` to `end`.
    fn block_headers(&mut self, begin: u64, end: u64, record: u64, note: &mut impl Note) -> Result<()> {
        let mut boundary = begin.next_multiple_of(BLOCK);
        while boundary < end {
            if let Err(fault) = self.block_header(boundary, begin, end) {
                note(record..record, boundary, in_chunk(fault, "block header"))?;
            }
            boundary += BLOCK;
        }
        Ok(())
    }

    fn block_header(&self, boundary: u64, begin: u64, end: u64) -> Result<(), Fault> {
        let mut bytes = [0; BLOCK_HEADER as usize];
        self.source.read_at(boundary, &mut bytes).map_err(Fault::Source)?;
        let header = BlockHeader::from_bytes(&bytes).map_err(|hash| {
            Fault::Damaged(format!(
                "hash is {:#018x}, stored {:#018x}",
                hash.computed, hash.stored
            ))
        })?;
        let wanted = BlockHeader {
            previous_chunk: boundary - begin,
            next_chunk: end - boundary,
        };
        if header != wanted {
            return Err(Fault::Damaged(format!(
                "it places the chunk from {} bytes before to {} behind, which are {} and {}",
                header.previous_chunk, header.next_chunk, wanted.previous_chunk, wanted.next_chunk
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array_record::{WriteOptions, Writer};
    use crate::store::MemoryFile;

    fn file(options: &str) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
        for i in 0..12u8 {
            writer.write(&vec![i; 30_000 * usize::from(i % 3) + 9]).unwrap();
        }
        writer.finish().unwrap()
    }

    fn look(bytes: Vec<u8>, quick: bool) -> Verification {
        let source = Arc::new(MemoryFile::new("x", bytes));
        let mut reached = 0;
        let found = verify_with(source, VerifyOptions::default().quick(quick), |offset| {
            assert!(offset >= reached);
            reached = offset;
        });
        found.unwrap()
    }

    #[test]
    fn a_quick_look_sees_headers_and_not_data() {
        let whole = file("uncompressed,group_size:2");
        for quick in [false, true] {
            let found = look(whole.clone(), quick);
            assert!(found.is_ok(), "{found:?}");
            assert_eq!((found.num_records, found.record_bytes), (Some(12), 360_108));
        }
        let reader = Reader::from_source(Arc::new(MemoryFile::new("x", whole.clone()))).unwrap();
        let chunk = reader.chunk_offset(3).unwrap() as usize;
        let cases = [
            ("a chunk header", chunk + 10, true),
            ("a chunk's data", chunk + 60, false),
            ("a block header", 65_536 + 9, true),
            ("the signature", 3, true),
            ("the padding at the end", whole.len() - 1, false),
        ];
        for (what, at, quick_sees) in cases {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(!look(bytes.clone(), false).is_ok(), "{what}");
            let found = look(bytes, true);
            assert_eq!(!found.is_ok(), quick_sees, "{what}: {found:?}");
        }
    }

    #[test]
    fn every_flipped_byte_of_a_file_is_seen() {
        let mut writer =
            Writer::new(Vec::new(), WriteOptions::parse("zstd:3,group_size:3").unwrap()).unwrap();
        for i in 0..10u8 {
            writer.write(&vec![i; usize::from(i) * 7]).unwrap();
        }
        let whole = writer.finish().unwrap();
        for at in
            (0..whole.len()).filter(|&at| at < 900 || at.is_multiple_of(1531) || at.abs_diff(1 << 16) < 200)
        {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            assert!(!look(bytes, false).is_ok(), "byte {at}");
        }
    }

    #[test]
    fn a_source_that_is_not_mapped_gives_the_same() {
        let mut bytes = file("uncompressed");
        bytes[100_000] ^= 1;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, &bytes).unwrap();
        for quick in [false, true] {
            let source = Arc::new(crate::store::PositionedFile::open(&path).unwrap());
            let found = verify_with(source, VerifyOptions::default().quick(quick), |_| {}).unwrap();
            assert_eq!(found, look(bytes.clone(), quick));
            assert_eq!(found.is_ok(), quick);
        }
    }
}
