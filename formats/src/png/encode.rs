//! Pixels to PNG files.

use std::fmt;

use libdeflater::{CompressionLvl, Compressor};

use super::{Info, SIGNATURE, filter};
use crate::{Error, Result};

/// Encodes pictures as PNG. Keeps its compressors and buffers: one per thread.
///
/// The bytes depend on the pixels only. Rows are filtered as libpng does by default, then packed by libdeflate.
///
/// # Examples
/// ```
/// use prep_formats::png::{Decoder, Encoder, Info};
///
/// let info = Info { width: 2, height: 1, channels: 3, bits: 8 };
/// let mut file = Vec::new();
/// Encoder::new().encode(&info, &[255, 0, 0, 0, 0, 255], &mut file)?;
/// let mut pixels = [0; 6];
/// Decoder::new().decode(&file, &info, &mut pixels)?;
/// assert_eq!(pixels, [255, 0, 0, 0, 0, 255]);
/// # Ok::<(), prep_formats::Error>(())
/// ```
pub struct Encoder {
    /// libdeflate 1: the best for noisy pictures, whose matches cost more than literals.
    fast: Compressor,
    /// libdeflate 6, which finds more where there is something to find. 9 takes half as long again to twice as long for 0.2 % on (Fashion-)MNIST.
    thorough: Compressor,
    rows: Vec<u8>,
    scratch: Vec<u8>,
    samples: Vec<u8>,
    zeros: Vec<u8>,
    other: Vec<u8>,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

fn compressor(level: i32) -> Compressor {
    Compressor::new(CompressionLvl::new(level).expect("libdeflate has levels 0 to 12"))
}

/// Where a picture counts as flat, and is packed once more with more effort: fewer compressed than filtered bytes times this
/// (in 256ths). Measured: the second try saves nothing on noisy CIFAR-like pictures (548 bytes of 131 MB at 166 in place of 0, for a
/// sixth of the time), and 2.2 % on Fashion-MNIST (31,448,078 bytes at 0, 30,992,513 at 140, 30,752,445 at 166).
const FLAT: usize = 140;

impl Encoder {
    /// An encoder without any buffers yet.
    pub fn new() -> Self {
        Self {
            fast: compressor(1),
            thorough: compressor(6),
            rows: Vec::new(),
            scratch: Vec::new(),
            samples: Vec::new(),
            zeros: Vec::new(),
            other: Vec::new(),
        }
    }

    /// Looks whether these pixels can be written.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn check(info: &Info, pixels: &[u8]) -> Result<()> {
        let sizes = 1..=i32::MAX.unsigned_abs();
        if !sizes.contains(&info.width)
            || !sizes.contains(&info.height)
            || !(1..=4).contains(&info.channels)
            || !matches!(info.bits, 8 | 16)
        {
            return Err(Error::Invalid(format!(
                "cannot write a PNG of {} x {} pixels, {} channels, {} bits; wanted at least one pixel, 1 to 4 channels, 8 or 16 bits",
                info.width, info.height, info.channels, info.bits
            )));
        }
        if info.num_bytes() != Some(pixels.len()) {
            return Err(Error::Invalid(format!(
                "{} bytes of pixels for a picture of {} x {}, {} channels, {} bits",
                pixels.len(),
                info.width,
                info.height,
                info.channels,
                info.bits
            )));
        }
        Ok(())
    }

    /// Appends the PNG file of `pixels` to `out`: rows without gaps, channels in turn, 16-bit samples little-endian.
    ///
    /// # Errors
    /// A picture without pixels or larger than PNG allows, other than 1 to 4 channels or 8 and 16 bits, or a wrong number of bytes.
    pub fn encode(&mut self, info: &Info, pixels: &[u8], out: &mut Vec<u8>) -> Result<()> {
        Self::check(info, pixels)?;
        let pixel_bytes = usize::from(info.channels) * usize::from(info.bits / 8);
        let row_bytes = info.width as usize * pixel_bytes;
        let samples: &[u8] = if info.bits == 16 {
            self.samples.clear();
            let (pairs, _) = pixels.as_chunks::<2>();
            self.samples
                .extend(pairs.iter().flat_map(|pair| [pair[1], pair[0]]));
            &self.samples
        } else {
            pixels
        };

        self.rows.clear();
        self.rows.reserve(pixels.len() + info.height as usize);
        self.scratch.clear();
        self.zeros.clear();
        self.zeros.resize(row_bytes, 0);
        let mut above: &[u8] = &self.zeros;
        for row in samples.chunks_exact(row_bytes) {
            filter::filter_row(pixel_bytes, above, row, &mut self.scratch, &mut self.rows);
            above = row;
        }

        out.extend_from_slice(&SIGNATURE);
        put_chunk(out, *b"IHDR", |out| {
            out.extend_from_slice(&info.width.to_be_bytes());
            out.extend_from_slice(&info.height.to_be_bytes());
            let colour = [0, 4, 2, 6][usize::from(info.channels) - 1];
            out.extend_from_slice(&[info.bits, colour, 0, 0, 0]);
        });
        put_chunk(out, *b"IDAT", |out| {
            let start = out.len();
            pack(&mut self.fast, &self.rows, out);
            if (out.len() - start) * 256 < self.rows.len() * FLAT {
                self.other.clear();
                pack(&mut self.thorough, &self.rows, &mut self.other);
                if self.other.len() < out.len() - start {
                    out.truncate(start);
                    out.extend_from_slice(&self.other);
                }
            }
        });
        put_chunk(out, *b"IEND", |_| {});
        Ok(())
    }
}

/// Appends the zlib stream of `rows`.
fn pack(compressor: &mut Compressor, rows: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let bound = compressor.zlib_compress_bound(rows.len());
    out.resize(start + bound, 0);
    let length = compressor
        .zlib_compress(rows, &mut out[start..])
        .expect("the bound that libdeflate gave suffices");
    out.truncate(start + length);
}

fn put_chunk(out: &mut Vec<u8>, kind: [u8; 4], data: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&kind);
    data(out);
    let length = (out.len() - start - 8) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    let crc = libdeflater::crc32(&out[start + 4..]);
    out.extend_from_slice(&crc.to_be_bytes());
}
