//! The footer of a damaged file, wherever it lies.

use crate::Result;
use crate::array_record::chunk::{Decoded, Fault, Located, Values};
use crate::array_record::footer::{Entry, MAX_ENTRY_BYTES, MAX_METADATA_BYTES, Metadata, parse_postscript};
use crate::array_record::layout::{BLOCK, CHUNK_HEADER, ChunkType, FIRST_CHUNK};
use crate::array_record::salvage::walk::{Step, Walk, Window};
use crate::store::ReadAt;

/// Chunks of records at the end of a file among which the footer is looked for: it, the postscript, and one that was put behind.
const LAST_CHUNKS: usize = 3;

/// A footer that agrees with itself. Holds its entries as they are stored, about 10 bytes a chunk, and 8 more for their places.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) offset: u64,
    pub(super) metadata: Metadata,
    values: Vec<u8>,
    /// Where the metadata and each entry end in `values`.
    ends: Vec<usize>,
}

impl Footer {
    /// Finds the footer: by the postscript, or among the last chunks of the file.
    pub(super) fn find(source: &dyn ReadAt) -> Result<(Option<Self>, Option<u64>)> {
        let mut window = Window::new(source);
        let told = postscript(&mut window)?;
        if let Some(offset) = told
            && let Some(located) = window.chunk_at(offset)?
            && let Some(footer) = Self::read(&mut window, &located)?
        {
            return Ok((Some(footer), told));
        }
        let mut last: Vec<Located> = Vec::with_capacity(LAST_CHUNKS + 1);
        let mut walk = Walk::new(source, None);
        while let Some(step) = walk.next()? {
            if let Step::Chunk { located, .. } = step
                && located.header.chunk_type == ChunkType::Simple
            {
                last.push(located);
                if last.len() > LAST_CHUNKS {
                    last.remove(0);
                }
            }
        }
        for located in last.iter().rev() {
            if let Some(footer) = Self::read(&mut window, located)? {
                return Ok((Some(footer), told));
            }
        }
        Ok((None, told))
    }

    /// Reads the chunk as a footer; `None` where it is not one, or says what cannot be.
    pub(super) fn read(window: &mut Window<'_>, located: &Located) -> Result<Option<Self>> {
        if located.header.chunk_type != ChunkType::Simple {
            return Ok(None);
        }
        let data = match window.data(located) {
            Ok(data) if located.check(data).is_ok() => data,
            Err(Fault::Source(error)) => return Err(error),
            _ => return Ok(None),
        };
        let mut decoded = Decoded::default();
        let Ok(values) = decoded.decode(&located.header, data, max_values(located)) else {
            return Ok(None);
        };
        let values = match values {
            Values::InData(start) => data[start..].to_vec(),
            Values::Decompressed => std::mem::take(&mut decoded.values),
        };
        Ok(Self::from_records(located.begin, values, decoded.ends))
    }

    /// The footer at `offset` whose joined records are these.
    pub(super) fn from_records(offset: u64, values: Vec<u8>, ends: Vec<usize>) -> Option<Self> {
        let metadata = Metadata::parse(values.get(..*ends.first()?)?).ok()?;
        let footer = Self {
            offset,
            metadata,
            values,
            ends,
        };
        if footer.num_entries() as u64 != footer.metadata.num_chunks {
            return None;
        }
        let (mut next, mut records) = (FIRST_CHUNK, 0u64);
        for index in 0..footer.num_entries() {
            let entry = Entry::parse(footer.entry_bytes(index))?;
            if entry.num_records == 0 || entry.chunk_offset < next {
                return None;
            }
            next = entry
                .chunk_offset
                .checked_add(entry.num_records.max(CHUNK_HEADER))?;
            records = records.checked_add(entry.num_records)?;
        }
        (next <= offset && records == footer.metadata.num_records).then_some(footer)
    }

    pub(super) fn num_entries(&self) -> usize {
        self.ends.len() - 1
    }

    fn entry_bytes(&self, index: usize) -> &[u8] {
        &self.values[self.ends[index]..self.ends[index + 1]]
    }

    /// The entry of a chunk that exists.
    pub(super) fn entry(&self, index: usize) -> Entry {
        // Parsed before, when the footer was taken.
        Entry::parse(self.entry_bytes(index)).unwrap_or_default()
    }

    /// Where the first chunk behind `position` begins; after the last of them, the footer itself. O(log chunks).
    pub(super) fn next_offset(&self, position: u64) -> Option<u64> {
        let (mut low, mut high) = (0, self.num_entries());
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle).chunk_offset > position {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        if low < self.num_entries() {
            Some(self.entry(low).chunk_offset)
        } else {
            (self.offset > position).then_some(self.offset)
        }
    }

    /// Whether the chunks that surely are there are those that it lists; where bytes are damaged, anything may have been.
    pub(super) fn agrees(&self, source: &dyn ReadAt) -> Result<bool> {
        let mut walk = Walk::new(source, None);
        let mut decoded = Decoded::default();
        let mut index = 0;
        while let Some(step) = walk.next()? {
            let (begin, end, certain) = match &step {
                Step::Chunk { located, searched } => (located.begin, located.end, !searched),
                Step::Gap { begin, end, .. } => (*begin, *end, false),
            };
            if begin >= self.offset {
                break;
            }
            let first = index;
            while index < self.num_entries() && self.entry(index).chunk_offset < end {
                index += 1;
            }
            let Step::Chunk { located, .. } = step else {
                continue;
            };
            if !certain {
                continue;
            }
            let header = located.header;
            let right = match (index - first, header.chunk_type) {
                (0, ChunkType::Simple | ChunkType::Transposed) => header.num_records == 0,
                (0, _) => true,
                (1, ChunkType::Simple | ChunkType::Transposed | ChunkType::Unknown(_)) => {
                    let entry = self.entry(first);
                    // Where they tell different numbers, the one that can be read is right.
                    entry.chunk_offset == begin
                        && (entry.num_records == header.num_records
                            || !can_be_read(walk.window(), &located, &mut decoded)?)
                }
                _ => false,
            };
            if !right {
                return Ok(false);
            }
        }
        Ok(index == self.num_entries())
    }
}

/// Whether the chunk's data are right and hold as many records as its header says.
fn can_be_read(window: &mut Window<'_>, located: &Located, decoded: &mut Decoded) -> Result<bool> {
    match window.data(located) {
        Ok(data) => {
            Ok(located.check(data).is_ok() && decoded.decode(&located.header, data, u64::MAX).is_ok())
        }
        Err(Fault::Source(error)) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Entries are small: a chunk that claims more is no footer.
fn max_values(located: &Located) -> u64 {
    let entries = located.header.num_records.saturating_mul(MAX_ENTRY_BYTES);
    entries.saturating_add(MAX_METADATA_BYTES)
}

/// Where the postscript at the end of the file puts the footer.
fn postscript(window: &mut Window<'_>) -> Result<Option<u64>> {
    let length = window.len();
    if !length.is_multiple_of(BLOCK) || length < 2 * BLOCK {
        return Ok(None);
    }
    let Some(located) = window.chunk_at(length - BLOCK)? else {
        return Ok(None);
    };
    let data = match window.data(&located) {
        Ok(data) if located.check(data).is_ok() => data,
        Err(Fault::Source(error)) => return Err(error),
        _ => return Ok(None),
    };
    let mut decoded = Decoded::default();
    let Ok(values) = decoded.decode(&located.header, data, BLOCK) else {
        return Ok(None);
    };
    let values = match values {
        Values::InData(start) => &data[start..],
        Values::Decompressed => &decoded.values,
    };
    if decoded.ends.is_empty() {
        return Ok(None);
    }
    let offset = parse_postscript(&values[decoded.range(0)]).ok();
    Ok(offset.filter(|offset| (FIRST_CHUNK..length - BLOCK).contains(offset)))
}
