//! Finds a chunk in a source, checks its hashes, decodes its records.

use crate::array_record::codec::{Codec, Decompressor};
use crate::array_record::layout::{
    BLOCK, BLOCK_HEADER, CHUNK_HEADER, ChunkHeader, ChunkType, hash, take_varint,
};
use crate::array_record::transpose::TransposeDecoder;
use crate::store::ReadAt;
use crate::{Error, Position};

/// A window up to this size is read from an unmapped source at once; of a larger one first the header.
pub(super) const SMALL_WINDOW: u64 = 1 << 20;
/// Most bytes that a varint takes.
const MAX_VARINT_BYTES: u64 = 10;

/// What is wrong with a chunk; its place is added by the caller.
#[derive(Debug)]
pub(super) enum Fault {
    Damaged(String),
    Unsupported(String),
    Source(Error),
}

impl Fault {
    pub(super) fn at(self, at: Position, what: impl std::fmt::Display) -> Error {
        match self {
            Self::Damaged(reason) => Error::Damaged {
                at,
                reason: format!("{what}: {reason}"),
            },
            Self::Unsupported(reason) => Error::Unsupported {
                at,
                reason: format!("{what}: {reason}"),
            },
            Self::Source(error) => error,
        }
    }
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

fn damaged<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(reason.into()))
}

/// The codec that the data of a chunk begin with, and the rest of them.
pub(super) fn take_codec(data: &[u8]) -> Result<(Codec, &[u8]), Fault> {
    let Some((&byte, rest)) = data.split_first() else {
        return damaged("the chunk is empty, a compression type was wanted");
    };
    let codec = Codec::from_byte(byte).ok_or_else(|| {
        Fault::Unsupported(format!(
            "the chunk has the unknown compression `{}`",
            char::from(byte).escape_default()
        ))
    })?;
    Ok((codec, rest))
}

/// A chunk whose header is right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Located {
    pub(super) header: ChunkHeader,
    pub(super) begin: u64,
    /// Where the next chunk may begin.
    pub(super) end: u64,
    /// Where the data begin, behind a block header if there is one.
    data_begin: u64,
}

impl Located {
    /// Reads the header of the chunk at `begin` from `window`, the file's bytes from `begin` on. The chunk must end by `limit`.
    #[inline]
    pub(super) fn parse(window: &[u8], begin: u64, limit: u64) -> Result<Self, Fault> {
        let skip = if begin.is_multiple_of(BLOCK) {
            BLOCK_HEADER as usize
        } else {
            0
        };
        let room = (BLOCK - (begin + skip as u64) % BLOCK) as usize;
        let size = CHUNK_HEADER as usize;
        let mut split = [0; CHUNK_HEADER as usize];
        let bytes = if room >= size {
            window.get(skip..skip + size)
        } else {
            // A block header interrupts the chunk header.
            let second = skip + room + BLOCK_HEADER as usize;
            window.get(second..second + size - room).map(|tail| {
                split[..room].copy_from_slice(&window[skip..skip + room]);
                split[room..].copy_from_slice(tail);
                &split[..]
            })
        };
        let Some(bytes) = bytes else {
            return damaged(format!(
                "its header does not end before byte {limit}, where the next part begins"
            ));
        };
        let header = ChunkHeader::from_bytes(bytes).map_err(|hash| {
            Fault::Damaged(format!(
                "header hash is {:#018x}, stored {:#018x}",
                hash.computed, hash.stored
            ))
        })?;
        let end = header.end(begin).filter(|end| *end <= limit);
        let Some(end) = end else {
            return damaged(format!(
                "its header claims {} bytes and {} records, which do not end before byte {limit}, where the next part begins",
                header.data_size, header.num_records
            ));
        };
        let header_end = begin + (skip + size) as u64 + if room < size { BLOCK_HEADER } else { 0 };
        let interrupted = header_end.is_multiple_of(BLOCK) && header.data_size > 0;
        Ok(Self {
            header,
            begin,
            end,
            data_begin: header_end + if interrupted { BLOCK_HEADER } else { 0 },
        })
    }

    /// The data where no block header interrupts them, from the same window.
    #[inline]
    pub(super) fn contiguous<'w>(&self, window: &'w [u8]) -> Option<&'w [u8]> {
        if self.data_begin % BLOCK + self.header.data_size > BLOCK {
            return None;
        }
        let start = (self.data_begin - self.begin) as usize;
        window.get(start..start + self.header.data_size as usize)
    }

    /// Where a byte of the data lies in the file, block headers counted.
    fn position_of(&self, byte: u64) -> u64 {
        let in_first = BLOCK - self.data_begin % BLOCK;
        if byte < in_first {
            return self.data_begin + byte;
        }
        let (blocks, within) = (
            (byte - in_first) / (BLOCK - BLOCK_HEADER),
            (byte - in_first) % (BLOCK - BLOCK_HEADER),
        );
        self.data_begin + in_first + blocks * BLOCK + BLOCK_HEADER + within
    }

    /// A part of the data where it lies in one piece in `window`, which may end before the chunk does.
    pub(super) fn peek<'w>(&self, window: &'w [u8], begin: u64, length: usize) -> Option<&'w [u8]> {
        let start = self.position_of(begin);
        if start % BLOCK + length as u64 > BLOCK {
            return None;
        }
        let start = (start - self.begin) as usize;
        window.get(start..start.checked_add(length)?)
    }

    /// Reads a part of the data, which must be inside, from a source; their hash is not looked at.
    pub(super) fn read_part(&self, source: &dyn ReadAt, begin: u64, output: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < output.len() {
            let position = self.position_of(begin + done as u64);
            let step = (output.len() - done).min((BLOCK - position % BLOCK) as usize);
            source
                .read_at(position, &mut output[done..done + step])
                .map_err(Fault::Source)?;
            done += step;
        }
        Ok(())
    }

    /// Copies the data out of the same window, leaving block headers out.
    pub(super) fn gather(&self, window: &[u8], output: &mut Vec<u8>) -> Result<(), Fault> {
        output.clear();
        let size = self.header.data_size as usize;
        output
            .try_reserve_exact(size)
            .map_err(|error| Fault::Damaged(error.to_string()))?;
        let mut position = self.data_begin;
        while output.len() < size {
            if position.is_multiple_of(BLOCK) {
                position += BLOCK_HEADER;
            }
            let step = (size - output.len()).min((BLOCK - position % BLOCK) as usize);
            let start = (position - self.begin) as usize;
            let Some(piece) = window.get(start..start + step) else {
                return damaged("its data are cut short");
            };
            output.extend_from_slice(piece);
            position += step as u64;
        }
        Ok(())
    }

    /// Compares the hash of the data with the header's.
    #[inline]
    pub(super) fn check(&self, data: &[u8]) -> Result<(), Fault> {
        let computed = hash(data);
        if computed != self.header.data_hash {
            return damaged(format!(
                "data hash is {computed:#018x}, stored {:#018x}",
                self.header.data_hash
            ));
        }
        Ok(())
    }
}

/// Reads the file's bytes from `begin` to the end of the chunk there into `raw`, from a source that is not mapped.
pub(super) fn fetch(source: &dyn ReadAt, begin: u64, limit: u64, raw: &mut Vec<u8>) -> Result<(), Fault> {
    let size = limit.min(source.len()).saturating_sub(begin);
    if size <= SMALL_WINDOW {
        return read(source, begin, size, raw);
    }
    read(source, begin, CHUNK_HEADER + 2 * BLOCK_HEADER, raw)?;
    let end = Located::parse(raw, begin, limit)?.end;
    read(source, begin, end - begin, raw)
}

fn read(source: &dyn ReadAt, begin: u64, length: u64, raw: &mut Vec<u8>) -> Result<(), Fault> {
    raw.clear();
    raw.try_reserve(length as usize)
        .map_err(|error| Fault::Damaged(error.to_string()))?;
    raw.resize(length as usize, 0);
    source.read_at(begin, raw).map_err(Fault::Source)
}

/// Where the records of a decoded chunk are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// In the chunk's data, from this byte on.
    InData(usize),
    /// In [`Decoded::values`].
    Decompressed,
}

/// The records of one chunk: buffers reused from chunk to chunk.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    decompressor: Decompressor,
    transposed: TransposeDecoder,
    sizes: Vec<u8>,
    /// Decompressed records, joined, at its begin.
    pub(super) values: Vec<u8>,
    /// Where each record ends in the joined records.
    pub(super) ends: Vec<usize>,
}

impl Decoded {
    /// The place of a record in the joined records.
    #[inline]
    pub(super) fn range(&self, record: usize) -> std::ops::Range<usize> {
        let start = if record == 0 { 0 } else { self.ends[record - 1] };
        start..self.ends[record]
    }

    /// The joined records of a chunk just decoded from `data`.
    pub(super) fn joined<'a>(&'a self, values: Values, data: &'a [u8]) -> &'a [u8] {
        match values {
            Values::InData(start) => &data[start..],
            Values::Decompressed => &self.values,
        }
    }

    /// Decodes a chunk whose data hash is right. `max_values` bounds the memory for the records.
    pub(super) fn decode(
        &mut self,
        header: &ChunkHeader,
        data: &[u8],
        max_values: u64,
    ) -> Result<Values, Fault> {
        self.ends.clear();
        match header.chunk_type {
            ChunkType::Simple => {}
            ChunkType::Transposed => return self.decode_transposed(header, data, max_values),
            other => {
                return damaged(format!(
                    "the chunk has type `{}` ({}), a chunk of records was wanted",
                    char::from(other.to_byte()).escape_default(),
                    other.name()
                ));
            }
        }
        let (codec, mut rest) = take_codec(data)?;
        let sizes =
            take_varint(&mut rest).and_then(|length| rest.split_at_checked(usize::try_from(length).ok()?));
        let Some((mut sizes, mut values)) = sizes else {
            return damaged("the record sizes do not fit the chunk");
        };
        check_size(header, max_values)?;
        let place = if codec == Codec::Uncompressed {
            Values::InData(data.len() - values.len())
        } else {
            let Some(claimed) = take_varint(&mut sizes) else {
                return damaged("the record sizes are cut short");
            };
            if claimed > header.num_records.saturating_mul(MAX_VARINT_BYTES) {
                return damaged(format!(
                    "sizes of {} records are claimed to take {claimed} bytes",
                    header.num_records
                ));
            }
            self.decompressor
                .decompress(codec, sizes, claimed, &mut self.sizes)?;
            sizes = &self.sizes;
            let Some(claimed) = take_varint(&mut values) else {
                return damaged("the records are cut short");
            };
            if claimed != header.decoded_data_size {
                return damaged(format!(
                    "the records take {claimed} bytes, the header says {}",
                    header.decoded_data_size
                ));
            }
            self.decompressor
                .decompress(codec, values, claimed, &mut self.values)?;
            values = &self.values;
            Values::Decompressed
        };
        if header.decoded_data_size != values.len() as u64 {
            return damaged(format!(
                "the records take {} bytes, the header says {}",
                values.len(),
                header.decoded_data_size
            ));
        }
        if header.num_records > sizes.len() as u64 {
            return damaged(format!(
                "{} bytes of sizes are too few for {} records",
                sizes.len(),
                header.num_records
            ));
        }
        self.ends
            .try_reserve(header.num_records as usize)
            .map_err(|error| Fault::Damaged(error.to_string()))?;
        let mut end = 0usize;
        for _ in 0..header.num_records {
            let size = take_varint(&mut sizes).and_then(|size| usize::try_from(size).ok());
            match size
                .and_then(|size| end.checked_add(size))
                .filter(|end| *end <= values.len())
            {
                Some(next) => end = next,
                None => {
                    let record = self.ends.len();
                    self.ends.clear();
                    return damaged(format!(
                        "record {record} of the chunk does not fit its {} bytes of records",
                        values.len()
                    ));
                }
            }
            self.ends.push(end);
        }
        if end != values.len() || !sizes.is_empty() {
            self.ends.clear();
            return damaged(format!(
                "the sizes of the records add up to {end} bytes, the records take {}",
                values.len()
            ));
        }
        Ok(place)
    }

    /// Bytes of memory held.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.transposed.memory()
            + self.sizes.capacity()
            + self.values.capacity()
            + self.ends.capacity() * size_of::<usize>()
    }

    fn decode_transposed(
        &mut self,
        header: &ChunkHeader,
        data: &[u8],
        max_values: u64,
    ) -> Result<Values, Fault> {
        check_size(header, max_values)?;
        let result = self.transposed.decode(
            &mut self.decompressor,
            header,
            data,
            &mut self.values,
            &mut self.ends,
        );
        if result.is_err() {
            self.ends.clear();
        }
        result.map(|()| Values::Decompressed)
    }
}

fn check_size(header: &ChunkHeader, max_values: u64) -> Result<(), Fault> {
    if header.decoded_data_size > max_values {
        return damaged(format!(
            "{} decoded bytes are claimed, at most {max_values} can be right",
            header.decoded_data_size
        ));
    }
    Ok(())
}

/// The one record of an uncompressed chunk of one, straight from its data; `None` for any other or a malformed chunk, which
/// [`Decoded::decode`] then looks at.
#[inline]
pub(super) fn single_record<'d>(header: &ChunkHeader, data: &'d [u8]) -> Option<&'d [u8]> {
    let (&codec, mut rest) = data.split_first()?;
    if codec != Codec::Uncompressed.to_byte()
        || header.chunk_type != ChunkType::Simple
        || header.num_records != 1
    {
        return None;
    }
    let sizes_length = take_varint(&mut rest)?;
    let before = rest.len();
    let size = take_varint(&mut rest)?;
    let right = (before - rest.len()) as u64 == sizes_length
        && size == rest.len() as u64
        && size == header.decoded_data_size;
    right.then_some(rest)
}
