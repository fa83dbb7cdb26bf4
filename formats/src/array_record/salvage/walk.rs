//! Walks over the chunks of a file without its footer, and finds the next one after damage.

use crate::Result;
use crate::array_record::chunk::{Fault, Located};
use crate::array_record::layout::{
    BLOCK, BLOCK_HEADER, BlockHeader, CHUNK_HEADER, ChunkHeader, ChunkType, FIRST_CHUNK, is_chunk_boundary,
};
use crate::array_record::salvage::footer::Footer;
use crate::store::ReadAt;

/// Most bytes that a chunk header takes with the block headers before and in it.
const HEADER_SPAN: u64 = CHUNK_HEADER + 2 * BLOCK_HEADER;
/// Bytes asked at once of a source that is not mapped.
const READ_AHEAD: u64 = 1 << 20;
/// Bytes looked through at once for a chunk header.
const SEARCH_STEP: u64 = 1 << 18;

/// What lies at a place of the file. The steps of a walk tile the file.
#[derive(Debug)]
pub(super) enum Step {
    /// A chunk whose header is right and which ends inside the file. Its data were not looked at.
    Chunk {
        located: Located,
        /// Found by a search through damaged bytes: it fits its neighbours, but nothing else vouches for it.
        searched: bool,
    },
    /// Bytes in which no chunk can be found.
    Gap {
        begin: u64,
        end: u64,
        /// The header at `begin`, where that is right: its chunk does not end inside the file, or others lie in it.
        header: Option<ChunkHeader>,
        reason: String,
    },
}

/// What is found where a chunk header should be.
enum Head {
    Whole(Located),
    /// A right header of a chunk that is longer than what is there.
    Cut(ChunkHeader),
    Damaged(String),
}

/// The bytes of a source: borrowed where it is mapped, else read ahead.
#[derive(Debug)]
pub(super) struct Window<'s> {
    source: &'s dyn ReadAt,
    start: u64,
    bytes: Vec<u8>,
    gathered: Vec<u8>,
}

impl<'s> Window<'s> {
    pub(super) fn new(source: &'s dyn ReadAt) -> Self {
        Self {
            source,
            start: 0,
            bytes: Vec::new(),
            gathered: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.source.len()
    }

    /// The bytes from `from` to `to`, which is inside the file.
    pub(super) fn bytes(&mut self, from: u64, to: u64) -> Result<&[u8]> {
        if let Some(map) = self.source.as_slice() {
            return Ok(&map[from as usize..to as usize]);
        }
        if from < self.start || to > self.start + self.bytes.len() as u64 {
            let end = to.max(from.saturating_add(READ_AHEAD).min(self.source.len()));
            self.start = from;
            self.bytes.clear();
            self.bytes.resize((end - from) as usize, 0);
            if let Err(error) = self.source.read_at(from, &mut self.bytes) {
                self.bytes.clear();
                return Err(error);
            }
        }
        let start = (from - self.start) as usize;
        Ok(&self.bytes[start..start + (to - from) as usize])
    }

    /// The data of a chunk that lies inside the file, block headers left out.
    pub(super) fn data(&mut self, located: &Located) -> Result<&[u8], Fault> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let window = self.bytes(located.begin, located.end).map_err(Fault::Source)?;
        if located.contiguous(window).is_none() {
            let result = located.gather(window, &mut gathered);
            self.gathered = gathered;
            result?;
            return Ok(&self.gathered);
        }
        self.gathered = gathered;
        let window = self.bytes(located.begin, located.end).map_err(Fault::Source)?;
        located
            .contiguous(window)
            .ok_or_else(|| Fault::Damaged("its data are cut short".into()))
    }

    /// What the chunk at `begin` says of itself; it must end by `limit`.
    fn head(&mut self, begin: u64, limit: u64) -> Result<Head> {
        if !is_chunk_boundary(begin) {
            return Ok(Head::Damaged("no chunk can begin inside a block header".into()));
        }
        let to = begin.saturating_add(HEADER_SPAN).min(self.len());
        let window = self.bytes(begin, to)?;
        let skipped = if begin.is_multiple_of(BLOCK) {
            BLOCK_HEADER
        } else {
            0
        };
        if (window.len() as u64) < skipped + CHUNK_HEADER {
            return Ok(Head::Damaged("the file ends inside its chunk header".into()));
        }
        Ok(match Located::parse(window, begin, u64::MAX) {
            Ok(located) if located.end <= limit => Head::Whole(located),
            Ok(located) => Head::Cut(located.header),
            Err(Fault::Damaged(reason) | Fault::Unsupported(reason)) => Head::Damaged(reason),
            Err(Fault::Source(error)) => return Err(error),
        })
    }

    /// The chunk at `begin`, if its header is right and it lies inside the file.
    pub(super) fn chunk_at(&mut self, begin: u64) -> Result<Option<Located>> {
        if begin >= self.len() {
            return Ok(None);
        }
        let length = self.len();
        Ok(match self.head(begin, length)? {
            Head::Whole(located) => Some(located),
            _ => None,
        })
    }

    /// The block header at a block boundary, as the begin and the end of the chunk it interrupts, if it is right.
    fn block_header(&mut self, boundary: u64) -> Result<Option<(u64, u64)>> {
        if boundary.saturating_add(BLOCK_HEADER) > self.len() {
            return Ok(None);
        }
        let mut bytes = [0; BLOCK_HEADER as usize];
        bytes.copy_from_slice(self.bytes(boundary, boundary + BLOCK_HEADER)?);
        let Ok(header) = BlockHeader::from_bytes(&bytes) else {
            return Ok(None);
        };
        let begin = boundary.checked_sub(header.previous_chunk);
        let end = boundary.checked_add(header.next_chunk);
        Ok(match (begin, end) {
            (Some(begin), Some(end)) if end > boundary && is_chunk_boundary(begin) => Some((begin, end)),
            _ => None,
        })
    }
}

/// Goes from chunk to chunk; after damage to the next chunk that the footer, a block header or a search gives.
///
/// A search accepts a chunk only if the chunks from it on end exactly where a block header places the next one, so that a file kept as a
/// record in another is not taken for a part of it. The work of searching is bounded by a multiple of the file's length.
#[derive(Debug)]
pub(super) struct Walk<'s, 'f> {
    window: Window<'s>,
    footer: Option<&'f Footer>,
    position: u64,
    searched_until: u64,
    /// The first right block header at or behind the first of these is at the second; there it is the file's end: none.
    next_block: Option<(u64, u64)>,
    /// Bytes that may still be hashed in searches.
    budget: u64,
    /// Block boundaries in chunks gone over whose headers are not what they must be, until taken.
    bad_block_headers: Vec<u64>,
}

impl<'s, 'f> Walk<'s, 'f> {
    /// Starts at the begin of the file. A footer that is believed tells where chunks begin.
    pub(super) fn new(source: &'s dyn ReadAt, footer: Option<&'f Footer>) -> Self {
        Self {
            window: Window::new(source),
            footer,
            position: 0,
            searched_until: 0,
            next_block: None,
            budget: source.len().saturating_mul(16).saturating_add(1 << 20),
            bad_block_headers: Vec::new(),
        }
    }

    pub(super) fn window(&mut self) -> &mut Window<'s> {
        &mut self.window
    }

    /// Damaged block headers in the chunk that the last step gave.
    pub(super) fn take_bad_block_headers(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.bad_block_headers)
    }

    /// The next step; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Step>> {
        let (begin, length) = (self.position, self.window.len());
        if begin >= length {
            return Ok(None);
        }
        let (header, reason) = match self.window.head(begin, length)? {
            Head::Whole(located) => {
                if !self.is_contradicted(&located)? {
                    self.position = located.end;
                    let searched = begin < self.searched_until;
                    return Ok(Some(Step::Chunk { located, searched }));
                }
                let reason = "data hash and block headers say that parts of other chunks lie in it";
                (Some(located.header), reason.to_string())
            }
            Head::Cut(header) => {
                let reason = format!(
                    "its header claims {} bytes and {} records, which do not end before byte {length}, the end of the file",
                    header.data_size, header.num_records
                );
                (Some(header), reason)
            }
            Head::Damaged(reason) => (None, reason),
        };
        let end = self.resync(begin)?;
        self.position = end;
        Ok(Some(Step::Gap {
            begin,
            end,
            header,
            reason,
        }))
    }

    /// Whether block headers inside a chunk tell of others, and its data hash agrees with them: bytes are missing, or were put in.
    fn is_contradicted(&mut self, located: &Located) -> Result<bool> {
        self.bad_block_headers.clear();
        let mut others = false;
        let mut boundary = located.begin.next_multiple_of(BLOCK);
        while boundary < located.end {
            let found = self.window.block_header(boundary)?;
            if found != Some((located.begin, located.end)) {
                others |= found.is_some();
                self.bad_block_headers.push(boundary);
            }
            boundary += BLOCK;
        }
        if !others {
            return Ok(false);
        }
        match self.window.data(located) {
            Ok(data) => Ok(located.check(data).is_err()),
            Err(Fault::Source(error)) => Err(error),
            Err(_) => Ok(true),
        }
    }

    /// Where to go on after damage at `begin`.
    fn resync(&mut self, begin: u64) -> Result<u64> {
        let length = self.window.len();
        if let Some(footer) = self.footer {
            let mut after = begin;
            while let Some(next) = footer.next_offset(after) {
                if self.window.chunk_at(next)?.is_some() {
                    return Ok(next);
                }
                after = next;
            }
        }
        if begin == 0 && self.window.chunk_at(FIRST_CHUNK)?.is_some() {
            return Ok(FIRST_CHUNK);
        }
        if let Some((chunk_begin, chunk_end)) = self.next_block_header(begin)? {
            if chunk_begin <= begin {
                // One chunk, all of it damaged or cut.
                return Ok(chunk_end.min(length));
            }
            // The chunk there may be anything; what lies before it was not told of.
            return Ok(match self.search(begin + 1, chunk_begin, true)? {
                Some(found) => {
                    self.searched_until = chunk_begin;
                    found
                }
                None => chunk_begin,
            });
        }
        Ok(match self.search(begin + 1, length, false)? {
            Some(found) => {
                self.searched_until = length;
                found
            }
            None => length,
        })
    }

    /// The chunk that the first right block header from `begin` on tells of.
    fn next_block_header(&mut self, begin: u64) -> Result<Option<(u64, u64)>> {
        let length = self.window.len();
        let mut boundary = begin.next_multiple_of(BLOCK);
        if let Some((from, at)) = self.next_block
            && (from..=at).contains(&boundary)
        {
            boundary = at;
        }
        let from = boundary;
        while boundary < length {
            if let Some(found) = self.window.block_header(boundary)?
                && found.1 > begin
            {
                self.next_block = Some((from, boundary));
                return Ok(Some(found));
            }
            boundary += BLOCK;
        }
        self.next_block = Some((from, length));
        Ok(None)
    }

    /// The first chunk from `from` on whose chain of chunks ends at `to`; where that is not asked for, the first with right data.
    fn search(&mut self, from: u64, to: u64, chain: bool) -> Result<Option<u64>> {
        let mut at = from;
        while let Some(located) = self.next_header(at, to)? {
            if located.header.chunk_type == ChunkType::Signature && !located.begin.is_multiple_of(BLOCK) {
                // A file kept as a record: nothing behind it is ours for sure.
                return Ok(None);
            }
            let right = if chain {
                self.chain_ends_at(&located, to)?
            } else {
                self.budget = self.budget.saturating_sub(located.header.data_size);
                match self.window.data(&located) {
                    Ok(data) => located.check(data).is_ok(),
                    Err(Fault::Source(error)) => return Err(error),
                    Err(_) => false,
                }
            };
            if right {
                return Ok(Some(located.begin));
            }
            if self.budget == 0 {
                return Ok(None);
            }
            at = located.begin + 1;
        }
        Ok(None)
    }

    fn chain_ends_at(&mut self, first: &Located, to: u64) -> Result<bool> {
        let mut end = first.end;
        while end < to {
            self.budget = self.budget.saturating_sub(HEADER_SPAN);
            match self.window.head(end, to)? {
                Head::Whole(located) if self.budget > 0 => end = located.end,
                _ => return Ok(false),
            }
        }
        Ok(end == to)
    }

    /// The first right chunk header from `from` on whose chunk ends by `to`.
    fn next_header(&mut self, from: u64, to: u64) -> Result<Option<Located>> {
        let length = self.window.len();
        let mut at = from;
        while at < to {
            let step_end = at.saturating_add(SEARCH_STEP).min(to);
            let window = self
                .window
                .bytes(at, step_end.saturating_add(HEADER_SPAN).min(length))?;
            for begin in at..step_end {
                let bytes = &window[(begin - at) as usize..];
                if may_begin(bytes, begin)
                    && let Ok(located) = Located::parse(bytes, begin, to)
                {
                    return Ok(Some(located));
                }
            }
            at = step_end;
        }
        Ok(None)
    }
}

/// A look at the bytes of a possible chunk header that is much cheaper than its hash.
#[inline]
fn may_begin(bytes: &[u8], begin: u64) -> bool {
    if !is_chunk_boundary(begin) {
        return false;
    }
    let room = BLOCK - begin % BLOCK;
    if begin.is_multiple_of(BLOCK) || room < CHUNK_HEADER {
        // A block header interrupts: rare enough for the whole look.
        return true;
    }
    // The type is a letter that is known, and the data size is below 2^56.
    matches!(bytes.get(24), Some(b's' | b'm' | b'p' | b'r' | b't')) && bytes.get(15) == Some(&0)
}
