//! PNG images: encoder and decoder for small pictures.
//!
//! Datasets hold very many small PNG files, so what counts is the cost of each file: compressor, decompressor and
//! buffers are kept from one to the next, and pixels are decoded straight into the caller's batch. [`Encoder`] writes 8
//! and 16 bits, one to four channels; [`Decoder`] reads the same itself, and every other kind of PNG (palettes,
//! interlacing, 1, 2 and 4 bits, transparent colours) through the `png` crate.
//!
//! ```text
//! 89 'PNG' 0d 0a 1a 0a, then chunks: length (4 bytes, big-endian), type (4), data, CRC-32 of type and data (4)
//! IHDR: width (4), height (4), bits, colour type, 0, 0, interlacing     IDAT: zlib stream of filtered rows     IEND
//! ```
//!
//! Source: Portable Network Graphics Specification, third edition (W3C).

mod decode;
mod encode;
mod filter;

pub use decode::Decoder;
pub use encode::Encoder;

use crate::{Error, Result};

/// The first bytes of each PNG file.
pub(crate) const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Size and kind of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
    pub channels: u8,
    /// Bits of a channel: 8 or 16.
    pub bits: u8,
}

impl Info {
    /// Bytes of the pixels in memory, row by row without gaps; `None` if that is more than memory can address.
    pub fn num_bytes(&self) -> Option<usize> {
        let row = u64::from(self.width) * u64::from(self.channels) * u64::from(self.bits / 8);
        let bytes = row.checked_mul(u64::from(self.height))?;
        usize::try_from(bytes)
            .ok()
            .filter(|&bytes| bytes <= isize::MAX as usize)
    }
}

/// More than deflate can expand its input. Source: the maximum of 1032:1 in zlib's technical details.
const MOST_EXPANSION: usize = 1032;

/// Whether a file of `file_bytes` can hold pixels of `num_bytes` at all: up to 8 pixels a byte become up to 8 bytes each.
pub(crate) fn is_plausible(num_bytes: usize, file_bytes: usize) -> bool {
    num_bytes / 64 / MOST_EXPANSION <= file_bytes
}

/// The fields of IHDR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    width: u32,
    height: u32,
    bits: u8,
    colour: u8,
    interlaced: bool,
}

/// Bytes before the data of the first chunk, and the whole of signature and IHDR.
const HEADER_BYTES: usize = 8 + 8 + 13 + 4;

impl Header {
    /// Reads signature and IHDR, and checks all but the CRC.
    fn parse(file: &[u8]) -> Result<Self> {
        if file.get(..8) != Some(&SIGNATURE) {
            return Err(Error::damaged(format!(
                "not a PNG file: it begins with `{}`",
                file[..file.len().min(8)].escape_ascii()
            )));
        }
        let Some(header) = file.get(8..HEADER_BYTES) else {
            return Err(Error::damaged(format!(
                "PNG file is cut short after {} bytes",
                file.len()
            )));
        };
        if header[..8] != *b"\0\0\0\x0dIHDR" {
            return Err(Error::damaged("PNG file does not begin with a header"));
        }
        let word =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let parsed = Self {
            width: word(8),
            height: word(12),
            bits: header[16],
            colour: header[17],
            interlaced: header[20] == 1,
        };
        let sizes = 1..=i32::MAX.unsigned_abs();
        if !sizes.contains(&parsed.width) || !sizes.contains(&parsed.height) {
            return Err(Error::damaged(format!(
                "PNG of {} x {} pixels, wanted 1 to 2147483647",
                parsed.width, parsed.height
            )));
        }
        let allowed: &[u8] = match parsed.colour {
            0 => &[1, 2, 4, 8, 16],
            3 => &[1, 2, 4, 8],
            2 | 4 | 6 => &[8, 16],
            _ => &[],
        };
        if !allowed.contains(&parsed.bits) || header[18] != 0 || header[19] != 0 || header[20] > 1 {
            return Err(Error::damaged(format!(
                "PNG of colour type {} with {} bits, compression {}, filter {}, interlacing {}: there is no such thing",
                parsed.colour, parsed.bits, header[18], header[19], header[20]
            )));
        }
        Ok(parsed)
    }

    /// Channels in the file, a palette's index as one.
    fn channels(&self) -> u8 {
        match self.colour {
            2 => 3,
            4 => 2,
            6 => 4,
            _ => 1,
        }
    }
}

/// Reads the size of a PNG file from its header, without checking what follows. A palette counts as RGB, depths below 8 bits as 8.
///
/// # Errors
/// Bytes that do not begin as a PNG file.
pub fn info(file: &[u8]) -> Result<Info> {
    let header = Header::parse(file)?;
    Ok(Info {
        width: header.width,
        height: header.height,
        channels: if header.colour == 3 { 3 } else { header.channels() },
        bits: if header.bits == 16 { 16 } else { 8 },
    })
}
