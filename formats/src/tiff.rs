//! TIFF files as satellite pictures use them: one picture of any number of bands, 8 or 16 bits each, unsigned.
//!
//! | bytes | field | encoding |
//! |---|---|---|
//! | 0..2 | byte order of all that follows | `II` little-endian, `MM` big-endian |
//! | 2..4 | 42 | `u16` |
//! | 4..8 | where the first directory is | `u32` |
//!
//! A directory is a count (`u16`), entries of 12 bytes (tag `u16`, type `u16`, count `u32`, value or where it is), and where the next one
//! is. Strips, uncompressed or packed by LZW, Deflate or PackBits, with or without the differences of neighbours; pixel by pixel or plane
//! by plane. Tiles, floats and more pictures than the first are not read.
//!
//! Source: TIFF Revision 6.0 (Adobe, 1992), and its Technical Note 2 for Deflate.

use std::io::Read;

use crate::{Error, Result};

/// Largest picture that is believed, in samples.
const MOST_SAMPLES: u64 = 64 << 20;

/// A decoded picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    /// Samples a pixel: bands.
    pub samples: u32,
    /// Bits a sample in the file: 8 or 16.
    pub bits: u16,
    data: Vec<u16>,
}

impl Image {
    /// The samples: rows, in them columns, in them bands.
    pub fn values(&self) -> impl ExactSizeIterator<Item = u16> {
        self.data.iter().copied()
    }
}

/// Decodes the first picture of a file. Holds the picture once more than it gives.
///
/// # Errors
/// A file that is damaged or cut short, or of a kind that is not read.
pub fn decode(file: &[u8]) -> Result<Image> {
    let directory = Directory::read(file)?;
    directory.decode()
}

fn damaged(reason: impl Into<String>) -> Error {
    Error::damaged(format!("TIFF: {}", reason.into()))
}

fn unsupported(reason: impl Into<String>) -> Error {
    Error::unsupported(format!("TIFF: {}", reason.into()))
}

/// Tags. Source: TIFF Revision 6.0, appendix A.
mod tag {
    pub(super) const WIDTH: u16 = 256;
    pub(super) const HEIGHT: u16 = 257;
    pub(super) const BITS: u16 = 258;
    pub(super) const COMPRESSION: u16 = 259;
    pub(super) const OFFSETS: u16 = 273;
    pub(super) const SAMPLES: u16 = 277;
    pub(super) const ROWS_PER_STRIP: u16 = 278;
    pub(super) const COUNTS: u16 = 279;
    pub(super) const PLANES: u16 = 284;
    pub(super) const PREDICTOR: u16 = 317;
    pub(super) const TILE_OFFSETS: u16 = 324;
    pub(super) const SAMPLE_FORMAT: u16 = 339;
}

#[derive(Debug, Clone, Copy)]
struct Bytes<'a> {
    file: &'a [u8],
    little: bool,
}

impl<'a> Bytes<'a> {
    fn part(&self, at: u64, length: u64) -> Result<&'a [u8]> {
        let end = at
            .checked_add(length)
            .filter(|end| *end <= self.file.len() as u64);
        let end = end.ok_or_else(|| {
            damaged(format!(
                "{length} bytes at byte {at} are outside of the file, which has {}",
                self.file.len()
            ))
        })?;
        Ok(&self.file[at as usize..end as usize])
    }

    fn u16(&self, at: u64) -> Result<u16> {
        let bytes = self.part(at, 2)?;
        let bytes = [bytes[0], bytes[1]];
        Ok(if self.little {
            u16::from_le_bytes(bytes)
        } else {
            u16::from_be_bytes(bytes)
        })
    }

    fn u32(&self, at: u64) -> Result<u32> {
        let bytes = self.part(at, 4)?;
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        Ok(if self.little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        })
    }
}

struct Directory<'a> {
    bytes: Bytes<'a>,
    /// Where each entry begins, by tag.
    entries: Vec<(u16, u64)>,
}

impl<'a> Directory<'a> {
    fn read(file: &'a [u8]) -> Result<Self> {
        let little = match file.first_chunk::<4>() {
            Some(b"II\x2a\0") => true,
            Some(b"MM\0\x2a") => false,
            Some(b"II\x2b\0" | b"MM\0\x2b") => return Err(unsupported("BigTIFF is not read")),
            _ => return Err(damaged("the file does not begin as a TIFF")),
        };
        let bytes = Bytes { file, little };
        let at = u64::from(bytes.u32(4)?);
        let count = u64::from(bytes.u16(at)?);
        let entries = (0..count)
            .map(|index| {
                let entry = at + 2 + 12 * index;
                Ok((bytes.u16(entry)?, entry))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { bytes, entries })
    }

    /// All values of an entry, of which there have to be at most `most`.
    fn values(&self, tag: u16, most: u64) -> Result<Option<Vec<u32>>> {
        let Some((_, entry)) = self.entries.iter().find(|(other, _)| *other == tag) else {
            return Ok(None);
        };
        let kind = self.bytes.u16(entry + 2)?;
        let count = u64::from(self.bytes.u32(entry + 4)?);
        let size = match kind {
            1 => 1,
            3 => 2,
            4 => 4,
            _ => return Err(damaged(format!("the values of tag {tag} are of type {kind}"))),
        };
        if count > most {
            return Err(damaged(format!(
                "tag {tag} has {count} values, and at most {most} make sense"
            )));
        }
        let at = if size * count <= 4 {
            entry + 8
        } else {
            u64::from(self.bytes.u32(entry + 8)?)
        };
        self.bytes.part(at, size * count)?;
        (0..count)
            .map(|index| {
                let at = at + size * index;
                Ok(match size {
                    1 => u32::from(self.bytes.part(at, 1)?[0]),
                    2 => u32::from(self.bytes.u16(at)?),
                    _ => self.bytes.u32(at)?,
                })
            })
            .collect::<Result<Vec<_>>>()
            .map(Some)
    }

    fn one(&self, tag: u16) -> Result<Option<u32>> {
        Ok(self.values(tag, 1)?.and_then(|values| values.first().copied()))
    }

    fn decode(&self) -> Result<Image> {
        let needed = |tag: u16, what: &str| {
            self.one(tag)?
                .ok_or_else(|| damaged(format!("the {what} is missing")))
        };
        let (width, height) = (needed(tag::WIDTH, "width")?, needed(tag::HEIGHT, "height")?);
        let samples = self.one(tag::SAMPLES)?.unwrap_or(1);
        let total = u64::from(width) * u64::from(height);
        let total = total
            .checked_mul(u64::from(samples))
            .filter(|total| *total <= MOST_SAMPLES);
        let Some(total) = total.filter(|total| *total > 0) else {
            return Err(damaged(format!("a picture of {height} by {width} by {samples}")));
        };
        if self.entries.iter().any(|(other, _)| *other == tag::TILE_OFFSETS) {
            return Err(unsupported("tiles are not read, only strips"));
        }
        let bits = self
            .values(tag::BITS, u64::from(samples))?
            .unwrap_or_else(|| vec![1]);
        let bits = match bits.as_slice() {
            [first @ (8 | 16), rest @ ..] if rest.iter().all(|other| other == first) => *first as u16,
            other => {
                return Err(unsupported(format!(
                    "samples of {other:?} bits; 8 and 16 are read"
                )));
            }
        };
        let formats = self
            .values(tag::SAMPLE_FORMAT, u64::from(samples))?
            .unwrap_or_default();
        if formats.iter().any(|format| *format != 1) {
            return Err(unsupported("samples that are not unsigned integers"));
        }
        let planar = match self.one(tag::PLANES)?.unwrap_or(1) {
            1 => false,
            2 => true,
            other => return Err(damaged(format!("planes are arranged in way {other}"))),
        };
        let predictor = match self.one(tag::PREDICTOR)?.unwrap_or(1) {
            1 => false,
            2 => true,
            other => return Err(unsupported(format!("predictor {other}"))),
        };
        let rows = self.one(tag::ROWS_PER_STRIP)?.unwrap_or(height).clamp(1, height);
        let strips_a_plane = u64::from(height.div_ceil(rows));
        let planes = if planar { samples } else { 1 };
        let strips = strips_a_plane * u64::from(planes);
        let offsets = self.values(tag::OFFSETS, strips)?.unwrap_or_default();
        let counts = self.values(tag::COUNTS, strips)?.unwrap_or_default();
        if offsets.len() as u64 != strips || counts.len() as u64 != strips {
            return Err(damaged(format!(
                "{strips} strips make the picture, and {} are told",
                offsets.len().min(counts.len())
            )));
        }
        let compression = self.one(tag::COMPRESSION)?.unwrap_or(1);
        let row_samples = u64::from(width) * if planar { 1 } else { u64::from(samples) };
        let step = if planar { 1 } else { samples as usize };

        let mut data = vec![0u16; 0];
        let mut planes_data: Vec<u16> = Vec::new();
        let bytes_a_sample = u64::from(bits / 8);
        for (strip, (offset, count)) in offsets.iter().zip(&counts).enumerate() {
            let first_row = (strip as u64 % strips_a_plane) * u64::from(rows);
            let strip_rows = u64::from(rows).min(u64::from(height) - first_row);
            let size = strip_rows * row_samples * bytes_a_sample;
            let packed = self.bytes.part(u64::from(*offset), u64::from(*count))?;
            let unpacked = unpack(compression, packed, size as usize)?;
            if (unpacked.len() as u64) < size {
                return Err(damaged(format!(
                    "strip {strip} has {} bytes, and {size} are needed",
                    unpacked.len()
                )));
            }
            let out = if planar { &mut planes_data } else { &mut data };
            let start = out.len();
            let little = self.bytes.little;
            let unpacked = &unpacked[..size as usize];
            match bits {
                8 => out.extend(unpacked.iter().map(|byte| u16::from(*byte))),
                _ => out.extend(unpacked.as_chunks::<2>().0.iter().map(|bytes| {
                    if little {
                        u16::from_le_bytes(*bytes)
                    } else {
                        u16::from_be_bytes(*bytes)
                    }
                })),
            }
            if predictor {
                let mask = if bits == 8 { 0xff } else { 0xffff };
                for row in out[start..].chunks_exact_mut(row_samples as usize) {
                    for index in step..row.len() {
                        row[index] = row[index].wrapping_add(row[index - step]) & mask;
                    }
                }
            }
        }
        if planar {
            let plane = width as usize * height as usize;
            data = (0..plane)
                .flat_map(|pixel| (0..samples as usize).map(move |band| (band, pixel)))
                .map(|(band, pixel)| planes_data[band * plane + pixel])
                .collect();
        }
        debug_assert_eq!(data.len() as u64, total);
        Ok(Image {
            height,
            width,
            samples,
            bits,
            data,
        })
    }
}

/// Unpacks a strip, of which `wanted` bytes are needed; gives at most a few more.
fn unpack(compression: u32, packed: &[u8], wanted: usize) -> Result<Vec<u8>> {
    match compression {
        1 => Ok(packed[..packed.len().min(wanted)].to_vec()),
        5 => lzw(packed, wanted),
        8 | 32946 => {
            let mut unpacked = Vec::new();
            flate2::read::ZlibDecoder::new(packed)
                .take(wanted as u64)
                .read_to_end(&mut unpacked)
                .map_err(|error| damaged(format!("a strip cannot be unpacked: {error}")))?;
            Ok(unpacked)
        }
        32773 => Ok(pack_bits(packed, wanted)),
        other => Err(unsupported(format!(
            "compression {other}; none, LZW, Deflate and PackBits are read"
        ))),
    }
}

/// Source: TIFF Revision 6.0, section 9.
fn pack_bits(mut packed: &[u8], wanted: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((&count, rest)) = packed.split_first()
        && out.len() < wanted
    {
        packed = rest;
        match count.cast_signed() {
            -128 => {}
            count @ 0.. => {
                let length = (count as usize + 1).min(packed.len());
                out.extend_from_slice(&packed[..length]);
                packed = &packed[length..];
            }
            count => {
                let Some((&value, rest)) = packed.split_first() else {
                    break;
                };
                packed = rest;
                out.resize(out.len() + (1 - isize::from(count)) as usize, value);
            }
        }
    }
    out
}

/// Codes of 9 to 12 bits, the highest bit first; a code grows one entry before it would have to.
///
/// Source: TIFF Revision 6.0, section 13.
fn lzw(packed: &[u8], wanted: usize) -> Result<Vec<u8>> {
    const CLEAR: u32 = 256;
    const END: u32 = 257;
    let mut out: Vec<u8> = Vec::new();
    // An entry is a run of what was put out: where it begins, and its length.
    let mut table: Vec<(usize, usize)> = Vec::new();
    let (mut bits, mut held, mut width) = (0u32, 0u32, 9u32);
    let mut last: Option<(usize, usize)> = None;
    for &byte in packed {
        bits = bits << 8 | u32::from(byte);
        held += 8;
        if held < width {
            continue;
        }
        held -= width;
        let code = bits >> held & ((1 << width) - 1);
        bits &= (1 << held) - 1;
        match code {
            CLEAR => {
                table.clear();
                width = 9;
                last = None;
                continue;
            }
            END => break,
            _ => {}
        }
        let start = out.len();
        let entry = (code > END).then(|| (code - END - 1) as usize);
        match (entry, last) {
            (None, _) => out.push(code as u8),
            (Some(index), _) if index < table.len() => {
                let (from, length) = table[index];
                out.extend_from_within(from..from + length);
            }
            // The entry that is being made: what was last, and its own beginning.
            (Some(index), Some((from, length))) if index == table.len() => {
                out.extend_from_within(from..from + length);
                out.push(out[start]);
            }
            _ => return Err(damaged(format!("LZW code {code} before it was made"))),
        }
        if let Some((from, length)) = last
            && table.len() < 4096 - 258
        {
            // What was last, and the beginning of this one, which follows it.
            table.push((from, length + 1));
        }
        last = Some((start, out.len() - start));
        width = match table.len() + 258 + 1 {
            ..512 => 9,
            512..1024 => 10,
            1024..2048 => 11,
            _ => 12,
        };
        if out.len() >= wanted {
            break;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TIFF of these entries (tag, type, values), in a byte order, with strips behind the directory.
    fn file(little: bool, entries: &[(u16, u16, Vec<u32>)], strips: &[Vec<u8>]) -> Vec<u8> {
        let u16 = |n: u16| if little { n.to_le_bytes() } else { n.to_be_bytes() };
        let u32 = |n: u32| if little { n.to_le_bytes() } else { n.to_be_bytes() };
        let mut entries = entries.to_vec();
        entries.push((tag::OFFSETS, 4, vec![0; strips.len()]));
        entries.push((
            tag::COUNTS,
            4,
            strips.iter().map(|strip| strip.len() as u32).collect(),
        ));
        let values_at = 8 + 2 + 12 * entries.len() as u32 + 4;
        let bytes = |kind: u16, values: &[u32]| -> Vec<u8> {
            values
                .iter()
                .flat_map(|n| {
                    if kind == 3 {
                        u16(*n as u16).to_vec()
                    } else {
                        u32(*n).to_vec()
                    }
                })
                .collect()
        };
        let long: u32 = entries
            .iter()
            .map(|(_, kind, values)| bytes(*kind, values).len() as u32)
            .filter(|length| *length > 4)
            .sum();
        let mut at = values_at + long;
        let offsets = entries.len() - 2;
        for (offset, strip) in entries[offsets].2.iter_mut().zip(strips) {
            *offset = at;
            at += strip.len() as u32;
        }
        let mut out = if little {
            b"II\x2a\0".to_vec()
        } else {
            b"MM\0\x2a".to_vec()
        };
        out.extend(u32(8));
        out.extend(u16(entries.len() as u16));
        let mut behind = Vec::new();
        for (tag, kind, values) in &entries {
            out.extend(u16(*tag));
            out.extend(u16(*kind));
            out.extend(u32(values.len() as u32));
            let mut value = bytes(*kind, values);
            if value.len() > 4 {
                out.extend(u32(values_at + behind.len() as u32));
                behind.extend(value);
            } else {
                value.resize(4, 0);
                out.extend(value);
            }
        }
        out.extend(u32(0));
        out.extend(behind);
        for strip in strips {
            out.extend_from_slice(strip);
        }
        out
    }

    fn sizes(height: u32, width: u32, samples: u32, bits: u32) -> Vec<(u16, u16, Vec<u32>)> {
        vec![
            (tag::WIDTH, 3, vec![width]),
            (tag::HEIGHT, 4, vec![height]),
            (tag::BITS, 3, vec![bits; samples as usize]),
            (tag::SAMPLES, 3, vec![samples]),
        ]
    }

    fn values(file: &[u8]) -> Vec<u16> {
        decode(file).unwrap().values().collect()
    }

    /// Codes of 9 bits, the highest bit first.
    fn nine_bits(codes: &[u32]) -> Vec<u8> {
        let text: String = codes.iter().map(|code| format!("{code:09b}")).collect();
        let mut bits: Vec<u8> = text.bytes().map(|bit| bit - b'0').collect();
        bits.resize(bits.len().next_multiple_of(8), 0);
        bits.chunks(8)
            .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | bit))
            .collect()
    }

    #[test]
    fn bands_lie_beside_each_other_or_in_planes() {
        let wanted: Vec<u16> = (0..12).map(|n| n * 1000).collect();
        for little in [true, false] {
            let bytes = |values: &[u16]| -> Vec<u8> {
                values
                    .iter()
                    .flat_map(|n| if little { n.to_le_bytes() } else { n.to_be_bytes() })
                    .collect()
            };
            let mut entries = sizes(2, 2, 3, 16);
            assert_eq!(values(&file(little, &entries, &[bytes(&wanted)])), wanted);
            entries.push((tag::ROWS_PER_STRIP, 3, vec![1]));
            let strips = [bytes(&wanted[..6]), bytes(&wanted[6..])];
            assert_eq!(values(&file(little, &entries, &strips)), wanted);
            entries.pop();
            entries.push((tag::PLANES, 3, vec![2]));
            let plane =
                |band: usize| bytes(&wanted.iter().copied().skip(band).step_by(3).collect::<Vec<_>>());
            let image = decode(&file(little, &entries, &[plane(0), plane(1), plane(2)])).unwrap();
            assert_eq!(
                (image.height, image.width, image.samples, image.bits),
                (2, 2, 3, 16)
            );
            assert_eq!(image.values().collect::<Vec<_>>(), wanted);
        }
    }

    #[test]
    fn packed_strips_are_unpacked() {
        let with = |compression: u32, strip: Vec<u8>| {
            let mut entries = sizes(1, 8, 1, 8);
            entries.push((tag::COMPRESSION, 3, vec![compression]));
            values(&file(true, &entries, &[strip]))
        };
        assert_eq!(
            with(32773, vec![0xfe, 7, 0x80, 4, 1, 2, 3, 4, 5]),
            [7, 7, 7, 1, 2, 3, 4, 5]
        );
        // 258 is `7 7`; 259, used while it is made, is `7 7 7`.
        let codes = [256, 7, 258, 259, 9, 8, 257];
        assert_eq!(with(5, nine_bits(&codes)), [7, 7, 7, 7, 7, 7, 9, 8]);
        use std::io::Write;
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(with(8, encoder.finish().unwrap()), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn differences_are_summed_within_a_row_and_band() {
        let mut entries = sizes(2, 2, 2, 8);
        entries.push((tag::PREDICTOR, 3, vec![2]));
        let strip = vec![10, 20, 1, 255, 5, 5, 250, 1];
        assert_eq!(
            values(&file(true, &entries, &[strip])),
            [10, 20, 11, 19, 5, 5, 255, 6]
        );
    }

    #[test]
    fn other_kinds_are_refused_in_words() {
        let strip = vec![0; 64];
        let with = |tag: u16, value: u32| {
            let mut entries = sizes(1, 2, 1, 16);
            entries.push((tag, 3, vec![value]));
            decode(&file(true, &entries, std::slice::from_ref(&strip)))
                .unwrap_err()
                .to_string()
        };
        assert!(with(tag::COMPRESSION, 7).contains("compression 7"));
        assert!(with(tag::SAMPLE_FORMAT, 3).contains("unsigned"));
        assert!(with(tag::PREDICTOR, 3).contains("predictor 3"));
        assert!(with(tag::TILE_OFFSETS, 8).contains("tiles"));
        assert!(
            decode(&file(true, &sizes(1, 2, 1, 32), std::slice::from_ref(&strip)))
                .unwrap_err()
                .to_string()
                .contains("32")
        );
        assert!(decode(b"II\x2b\0").unwrap_err().to_string().contains("BigTIFF"));
        assert!(
            decode(b"JFIF")
                .unwrap_err()
                .to_string()
                .contains("does not begin")
        );
        // A claim that is not believed.
        let error = decode(&file(true, &sizes(u32::MAX, 60_000, 13, 16), &[strip])).unwrap_err();
        assert!(error.to_string().contains("a picture of"), "{error}");
    }

    #[test]
    fn cuts_and_flips_are_errors_or_other_pixels() {
        let mut entries = sizes(4, 4, 3, 8);
        entries.push((tag::COMPRESSION, 3, vec![5]));
        let strip = nine_bits(&[256, 7, 258, 259, 9, 8, 260, 261, 262, 263, 264, 265, 266, 257]);
        let whole = file(false, &entries, &[strip]);
        let _ = decode(&whole);
        for length in 0..whole.len() {
            let _ = decode(&whole[..length]);
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let _ = decode(&damaged);
            }
        }
    }
}
