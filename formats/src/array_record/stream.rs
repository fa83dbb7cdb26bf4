//! Reads ArrayRecord files front to back, from anything that gives bytes, without the footer.

use std::fmt;
use std::io::{self, Read};

use crate::array_record::chunk::{Decoded, Fault, Values};
use crate::array_record::footer::{Entry, Metadata, parse_postscript};
use crate::array_record::layout::{
    BLOCK, BLOCK_HEADER, BlockHeader, CHUNK_HEADER, ChunkHeader, ChunkType, hash, is_chunk_boundary,
};
use crate::{Error, Position, Result};

/// Bytes asked of the source at once: a block.
const PIECE: usize = BLOCK as usize;

/// How [`StreamReader`] reads.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StreamOptions {
    need_footer: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { need_footer: true }
    }
}

impl StreamOptions {
    /// Whether a stream that ends without footer and postscript is an error after its last record. Default `true`; `false` reads what a writer that was
    /// killed has left, and plain Riegeli files of records.
    #[must_use]
    pub fn need_footer(mut self, need_footer: bool) -> Self {
        self.need_footer = need_footer;
        self
    }
}

/// Reads records of an ArrayRecord file in order from a stream: a pipe, a download, a file whose end is missing.
///
/// All hashes are checked, those of block headers too, and at the end that footer and postscript describe what was read. Holds one chunk: memory
/// grows as its bytes arrive, never by what its header claims. O(bytes).
///
/// # Examples
///
/// ```
/// use prep_formats::array_record::{StreamOptions, StreamReader, WriteOptions, Writer};
///
/// let mut writer = Writer::new(Vec::new(), WriteOptions::parse("zstd,group_size:2")?)?;
/// for record in ["a", "b", "c"] {
///     writer.write(record.as_bytes())?;
/// }
/// let file = writer.finish()?;
/// let mut reader = StreamReader::new(&file[..], "example", StreamOptions::default());
/// let mut records = Vec::new();
/// while let Some(record) = reader.next()? {
///     records.push(record.to_vec());
/// }
/// assert_eq!(records, [b"a", b"b", b"c"]);
/// # Ok::<(), prep_formats::Error>(())
/// ```
pub struct StreamReader<R> {
    bytes: Bytes<R>,
    name: String,
    options: StreamOptions,
    data: Vec<u8>,
    decoded: Decoded,
    values: Option<Values>,
    /// Records of the chunk at hand, and how many of them were given.
    chunk_records: usize,
    given: usize,
    /// Records of the chunks before.
    num_records: u64,
    num_chunks: u64,
    /// A hash over the entries that the footer must have.
    entries: u64,
    /// What the footer said, and where it began.
    footer: Option<(u64, Metadata)>,
    at_end: bool,
}

impl<R> fmt::Debug for StreamReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader")
            .field("name", &self.name)
            .field("record_index", &self.record_index())
            .field("position", &self.bytes.position)
            .finish_non_exhaustive()
    }
}

impl<R> StreamReader<R> {
    /// Index of the next record.
    pub fn record_index(&self) -> u64 {
        self.num_records + self.given as u64
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.bytes.position
    }

    /// The options that the file was written with, once the footer was read, which is after the last record.
    pub fn writer_options(&self) -> Option<&str> {
        self.footer
            .as_ref()
            .map(|(_, metadata)| metadata.writer_options.as_str())
    }
}

impl<R: Read> StreamReader<R> {
    /// Starts at the first byte of a file; `name` is for error messages. Reads nothing yet.
    pub fn new(source: R, name: impl Into<String>, options: StreamOptions) -> Self {
        Self {
            bytes: Bytes::new(source),
            name: name.into(),
            options,
            data: Vec::new(),
            decoded: Decoded::default(),
            values: None,
            chunk_records: 0,
            given: 0,
            num_records: 0,
            num_chunks: 0,
            entries: 0,
            footer: None,
            at_end: false,
        }
    }

    /// The next record, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the source; [`Error::Damaged`] where bytes are damaged, cut short or of another kind, and where the end does not
    /// describe what was read. Records before were right. Nothing comes after an error: `None`.
    #[expect(
        clippy::should_implement_trait,
        reason = "records are borrowed from the reader"
    )]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        while self.given == self.chunk_records {
            if self.at_end {
                return Ok(None);
            }
            self.num_records += self.chunk_records as u64;
            (self.chunk_records, self.given) = (0, 0);
            let begin = self.bytes.position;
            if let Err(fault) = self.next_chunk() {
                self.at_end = true;
                let at = Position {
                    path: self.name.clone(),
                    record: Some(self.num_records),
                    offset: Some(begin),
                };
                return Err(match fault.at(at, format_args!("chunk {}", self.num_chunks)) {
                    Error::Io { action, source, .. } => Error::Io {
                        path: self.name.clone(),
                        action,
                        source,
                    },
                    other => other,
                });
            }
        }
        self.given += 1;
        let range = self.decoded.range(self.given - 1);
        Ok(Some(match self.values {
            Some(Values::InData(start)) => &self.data[start + range.start..start + range.end],
            _ => &self.decoded.values[range],
        }))
    }

    /// Reads a chunk of any type; one of records is then at hand.
    fn next_chunk(&mut self) -> Result<(), Fault> {
        let begin = self.bytes.position;
        if !self.bytes.begin_chunk()? {
            self.at_end = true;
            if begin == 0 {
                return damaged("the stream is empty, not an ArrayRecord file");
            }
            if self.options.need_footer {
                return damaged(format!(
                    "the file ends here without footer and postscript, after {} records: it is cut short or was not finished",
                    self.num_records
                ));
            }
            return Ok(());
        }
        let header = self.bytes.header(begin)?;
        if begin == 0 && header.chunk_type != ChunkType::Signature {
            return damaged("the file does not begin with a signature: it is not an ArrayRecord file");
        }
        let Some(end) = header.end(begin) else {
            return damaged(format!(
                "its header claims {} bytes and {} records, which no file can hold",
                header.data_size, header.num_records
            ));
        };
        self.bytes.chunk = Some((begin, end));
        self.bytes.read(header.data_size, &mut self.data)?;
        let computed = hash(&self.data);
        if computed != header.data_hash {
            return damaged(format!(
                "data hash is {computed:#018x}, stored {:#018x}",
                header.data_hash
            ));
        }
        // Chunks of many records and few bytes are followed by zeros.
        self.bytes.skip_to(end)?;
        match header.chunk_type {
            ChunkType::Simple | ChunkType::Transposed => self.records(begin, &header),
            ChunkType::Signature if begin == 0 => Ok(()),
            ChunkType::Padding | ChunkType::Metadata => Ok(()),
            other => damaged(format!("a {} chunk was not expected here", other.name())),
        }
    }

    fn records(&mut self, begin: u64, header: &ChunkHeader) -> Result<(), Fault> {
        let values = self.decoded.decode(header, &self.data, u64::MAX)?;
        if let Some((footer_offset, _)) = &self.footer {
            let last_block = begin.is_multiple_of(BLOCK);
            let joined = self.decoded.joined(values, &self.data);
            let found = match self.decoded.ends.is_empty() {
                true => Err("it is empty".to_string()),
                false => parse_postscript(&joined[self.decoded.range(0)]),
            };
            return match found {
                Ok(offset) if offset == *footer_offset && last_block => self.finish(),
                Ok(offset) => damaged(format!(
                    "the postscript puts the footer at byte {offset}, it was at {footer_offset}"
                )),
                Err(reason) => damaged(format!("the postscript was expected here: {reason}")),
            };
        }
        if header.num_records == self.num_chunks + 1
            && let Some(metadata) = self.footer_metadata(values)
        {
            self.footer = Some((begin, metadata));
            return Ok(());
        }
        self.entries = next_hash(self.entries, begin, header.num_records);
        self.num_chunks += 1;
        self.values = Some(values);
        self.chunk_records = self.decoded.ends.len();
        Ok(())
    }

    /// What the chunk at hand says as a footer, if it is the one of all that was read: the same number of records, the same chunks at the same
    /// places. Records that look like that by chance do not exist.
    fn footer_metadata(&self, values: Values) -> Option<Metadata> {
        let joined = self.decoded.joined(values, &self.data);
        let metadata = Metadata::parse(&joined[self.decoded.range(0)]).ok()?;
        if metadata.num_records != self.num_records || metadata.num_chunks != self.num_chunks {
            return None;
        }
        let mut entries = 0;
        for chunk in 0..self.num_chunks {
            let entry = Entry::parse(&joined[self.decoded.range(chunk as usize + 1)])?;
            entries = next_hash(entries, entry.chunk_offset, entry.num_records);
        }
        (entries == self.entries).then_some(metadata)
    }

    /// Checks that nothing but the rest of the last block follows the postscript.
    fn finish(&mut self) -> Result<(), Fault> {
        self.at_end = true;
        let begin = self.bytes.position;
        let end = begin.next_multiple_of(BLOCK);
        if begin < end {
            if !is_chunk_boundary(begin) || !self.bytes.begin_chunk()? {
                return damaged("the file ends before the padding of its last block");
            }
            let header = self.bytes.header(begin)?;
            if header.chunk_type != ChunkType::Padding || header.end(begin) != Some(end) {
                return damaged("padding to the end of the block was expected behind the postscript");
            }
            self.bytes.chunk = Some((begin, end));
            self.bytes.read(header.data_size, &mut self.data)?;
            if hash(&self.data) != header.data_hash {
                return damaged("the data hash of the padding behind the postscript is wrong");
            }
            self.data.clear();
        }
        match self.bytes.peek()? {
            true => damaged("there are bytes behind the postscript's block"),
            false => Ok(()),
        }
    }
}

fn damaged<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(reason.into()))
}

/// Adds a chunk to a hash over chunks.
fn next_hash(before: u64, offset: u64, num_records: u64) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&before.to_le_bytes());
    bytes[8..16].copy_from_slice(&offset.to_le_bytes());
    bytes[16..].copy_from_slice(&num_records.to_le_bytes());
    hash(&bytes)
}

/// The bytes of a file without its block headers, which are checked on the way.
struct Bytes<R> {
    source: R,
    /// What was read and not used, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes of the file that were used.
    position: u64,
    /// Begin and end of the chunk that is read, for the block headers in it.
    chunk: Option<(u64, u64)>,
    /// Block headers met before the chunk's end was known.
    pending: Vec<(u64, BlockHeader)>,
}

impl<R: Read> Bytes<R> {
    fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            start: 0,
            position: 0,
            chunk: None,
            pending: Vec::new(),
        }
    }

    /// Whether there is another byte.
    fn peek(&mut self) -> Result<bool, Fault> {
        if self.start < self.buffer.len() {
            return Ok(true);
        }
        self.buffer.resize(PIECE, 0);
        self.start = 0;
        loop {
            match self.source.read(&mut self.buffer) {
                Ok(length) => {
                    self.buffer.truncate(length);
                    return Ok(length > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.buffer.clear();
                    return Err(Fault::Source(Error::Io {
                        path: String::new(),
                        action: "read",
                        source: error,
                    }));
                }
            }
        }
    }

    /// Appends up to `size` bytes as they come, at least one.
    fn take(&mut self, size: u64, output: &mut Vec<u8>) -> Result<usize, Fault> {
        if !self.peek()? {
            return damaged(format!(
                "the file ends at byte {} in the middle of it",
                self.position
            ));
        }
        let length = (self.buffer.len() - self.start).min(usize::try_from(size).unwrap_or(usize::MAX));
        output
            .try_reserve(length)
            .map_err(|error| Fault::Damaged(error.to_string()))?;
        output.extend_from_slice(&self.buffer[self.start..self.start + length]);
        self.start += length;
        self.position += length as u64;
        Ok(length)
    }

    /// Starts a chunk; `false` where the file ends.
    fn begin_chunk(&mut self) -> Result<bool, Fault> {
        self.chunk = None;
        self.pending.clear();
        self.peek()
    }

    fn header(&mut self, begin: u64) -> Result<ChunkHeader, Fault> {
        let mut bytes = Vec::with_capacity(CHUNK_HEADER as usize);
        self.read(CHUNK_HEADER, &mut bytes)?;
        let bytes: &[u8; CHUNK_HEADER as usize] = bytes
            .as_slice()
            .try_into()
            .map_err(|_| Fault::Damaged("its header is cut short".into()))?;
        let header = ChunkHeader::from_bytes(bytes).map_err(|hash| {
            Fault::Damaged(format!(
                "header hash is {:#018x}, stored {:#018x}",
                hash.computed, hash.stored
            ))
        })?;
        if let Some(end) = header.end(begin) {
            for (boundary, found) in std::mem::take(&mut self.pending) {
                check_block_header(boundary, found, begin, end)?;
            }
        }
        Ok(header)
    }

    /// Replaces `output` by the next `size` bytes, block headers left out.
    fn read(&mut self, size: u64, output: &mut Vec<u8>) -> Result<(), Fault> {
        output.clear();
        while (output.len() as u64) < size {
            if self.position.is_multiple_of(BLOCK) {
                self.block_header()?;
            }
            let left = size - output.len() as u64;
            self.take(left.min(BLOCK - self.position % BLOCK), output)?;
        }
        Ok(())
    }

    /// Goes on to a position; the bytes between are zeros of a chunk of many records.
    fn skip_to(&mut self, end: u64) -> Result<(), Fault> {
        let mut zeros = Vec::new();
        while self.position < end {
            if self.position.is_multiple_of(BLOCK) {
                self.block_header()?;
                continue;
            }
            zeros.clear();
            let step = (end - self.position).min(BLOCK - self.position % BLOCK);
            self.take(step, &mut zeros)?;
        }
        Ok(())
    }

    fn block_header(&mut self) -> Result<(), Fault> {
        let boundary = self.position;
        let mut bytes = Vec::with_capacity(BLOCK_HEADER as usize);
        while bytes.len() < BLOCK_HEADER as usize {
            self.take(BLOCK_HEADER - bytes.len() as u64, &mut bytes)?;
        }
        let bytes: &[u8; BLOCK_HEADER as usize] = bytes
            .as_slice()
            .try_into()
            .map_err(|_| Fault::Damaged("a block header is cut short".into()))?;
        let found = BlockHeader::from_bytes(bytes).map_err(|hash| {
            Fault::Damaged(format!(
                "the block header at byte {boundary} has the hash {:#018x}, stored {:#018x}",
                hash.computed, hash.stored
            ))
        })?;
        match self.chunk {
            Some((begin, end)) => check_block_header(boundary, found, begin, end),
            None => {
                self.pending.push((boundary, found));
                Ok(())
            }
        }
    }
}

fn check_block_header(boundary: u64, found: BlockHeader, begin: u64, end: u64) -> Result<(), Fault> {
    let wanted = BlockHeader {
        previous_chunk: boundary - begin,
        next_chunk: end - boundary,
    };
    if found != wanted {
        return damaged(format!(
            "the block header at byte {boundary} places the chunk from {} bytes before to {} behind, which are {} and {}",
            found.previous_chunk, found.next_chunk, wanted.previous_chunk, wanted.next_chunk
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array_record::{WriteOptions, Writer};
    use proptest::prelude::*;

    fn file(options: &str, records: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
        for record in records {
            writer.write(record).unwrap();
        }
        writer.finish().unwrap()
    }

    /// Gives bytes a few at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    /// All records, and the error that ended them.
    fn read_all(source: impl Read, options: StreamOptions) -> (Vec<Vec<u8>>, Option<Error>) {
        let mut reader = StreamReader::new(source, "stream", options);
        let mut records = Vec::new();
        loop {
            assert_eq!(reader.record_index(), records.len() as u64);
            match reader.next() {
                Ok(Some(record)) => records.push(record.to_vec()),
                Ok(None) => return (records, None),
                Err(error) => {
                    assert!(matches!(reader.next(), Ok(None)), "nothing comes after an error");
                    return (records, Some(error));
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn streams_give_what_was_written(
            sizes in prop::collection::vec(prop_oneof![0usize..200, Just(65_400), Just(65_536), 100_000usize..150_000], 0..9),
            options in prop::sample::select(vec!["uncompressed", "group_size:3,zstd", "group_size:2,uncompressed,pad_to_block_boundary:true", "group_size:4,snappy"]),
            step in prop_oneof![Just(1usize << 20), 1usize..5000],
        ) {
            let records: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, &size)| vec![i as u8; size]).collect();
            let bytes = file(options, &records);
            let (found, error) = read_all(Trickle(&bytes, step), StreamOptions::default());
            prop_assert!(error.is_none(), "{:?}", error);
            prop_assert_eq!(found, records);
        }
    }

    #[test]
    fn every_cut_gives_the_records_before_it_and_an_error() {
        let records: Vec<Vec<u8>> = (0..9u8).map(|i| vec![i; 20 + usize::from(i)]).collect();
        let bytes = file("uncompressed,group_size:2", &records);
        let end = bytes.len() - 65_536;
        for cut in (0..700).chain(end - 40..end + 300).chain([bytes.len() - 1]) {
            let (found, error) = read_all(&bytes[..cut], StreamOptions::default());
            let error = error.expect("a cut is an error");
            assert!(matches!(error, Error::Damaged { .. }), "{cut}: {error}");
            assert!(error.to_string().starts_with("stream, record "), "{error}");
            assert_eq!(found, records[..found.len()]);
            assert!(cut < 700 || found.len() == records.len(), "{cut}");
        }
        let (found, error) = read_all(&[&bytes[..], b"x"].concat()[..], StreamOptions::default());
        assert_eq!(found, records);
        assert!(error.unwrap().to_string().contains("behind the postscript"));
    }

    #[test]
    fn files_without_an_end_are_read_where_that_is_allowed() {
        let records: Vec<Vec<u8>> = (0..9u8).map(|i| vec![i; 1000]).collect();
        let bytes = file("uncompressed", &records);
        let source = std::sync::Arc::new(crate::store::MemoryFile::new("x", bytes.clone()));
        let reader = crate::array_record::Reader::from_source(source).unwrap();
        let cut = reader.chunk_offset(5).unwrap() as usize;
        let relaxed = StreamOptions::default().need_footer(false);
        let (found, error) = read_all(&bytes[..cut], relaxed.clone());
        assert!(error.is_none(), "{error:?}");
        assert_eq!(found, records[..5]);
        let (found, error) = read_all(&bytes[..cut + 10], relaxed.clone());
        assert_eq!(found, records[..5]);
        assert!(error.unwrap().to_string().contains("in the middle"));
        let (_, error) = read_all(&[][..], relaxed);
        assert!(error.unwrap().to_string().contains("empty"));
    }

    #[test]
    fn every_flipped_bit_is_an_error() {
        let records: Vec<Vec<u8>> = (0..5u8).map(|i| vec![i; 30]).collect();
        let bytes = file("uncompressed,group_size:2", &records);
        let postscript = bytes.len() - 65_536;
        for byte in (0..600)
            .chain(postscript..postscript + 200)
            .chain([60_000, 130_000])
        {
            let mut flipped = bytes.clone();
            flipped[byte] ^= 1 << (byte % 8);
            let (found, error) = read_all(&flipped[..], StreamOptions::default());
            assert!(matches!(error, Some(Error::Damaged { .. })), "{byte}: {error:?}");
            assert_eq!(found, records[..found.len()]);
        }
    }

    #[test]
    fn what_a_header_claims_is_not_allocated() {
        let mut bytes = file("uncompressed", &[])[..64].to_vec();
        let header = ChunkHeader {
            data_size: 1 << 50,
            data_hash: 0,
            chunk_type: ChunkType::Simple,
            num_records: 1,
            decoded_data_size: 1 << 50,
        };
        bytes.extend(header.to_bytes());
        bytes.extend([7; 1000]);
        let mut reader = StreamReader::new(&bytes[..], "stream", StreamOptions::default());
        let error = reader.next().unwrap_err();
        assert!(error.to_string().contains("in the middle"), "{error}");
        assert!(reader.data.capacity() < 1 << 20);
    }

    #[test]
    fn the_sources_error_is_kept() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::new(io::ErrorKind::ConnectionReset, "gone"))
            }
        }
        let (records, error) = read_all(Broken, StreamOptions::default());
        assert!(records.is_empty());
        let Some(Error::Io { path, source, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(
            (path.as_str(), source.kind()),
            ("stream", io::ErrorKind::ConnectionReset)
        );
    }
}
