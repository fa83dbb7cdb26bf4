//! PNG files to pixels.

use std::fmt;
use std::io::Cursor;

use libdeflater::{DecompressionError, Decompressor};

use super::{HEADER_BYTES, Header, Info, MOST_EXPANSION, filter, is_plausible};
use crate::{Error, Result};

/// Decodes PNG files. Keeps its decompressor and buffers: one per thread.
///
/// Every chunk's CRC and the pixels' Adler-32 are checked. Where the file's channels and bits are not those asked for, they are
/// converted as TensorFlow's `decode_png(channels=n)` does: grey is repeated, alpha is dropped or made opaque, 16 bits are cut
/// to the upper 8, 8 bits stretched to 16 by repeating. Colour to grey is refused. 16-bit samples come little-endian.
pub struct Decoder {
    inflate: Decompressor,
    /// The compressed data, where more than one chunk holds them.
    joined: Vec<u8>,
    /// Filtered rows, each after the number of its filter.
    rows: Vec<u8>,
    /// Samples as the file has them, where they are then converted.
    samples: Vec<u8>,
    zeros: Vec<u8>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder without any buffers yet.
    pub fn new() -> Self {
        Self {
            inflate: Decompressor::new(),
            joined: Vec::new(),
            rows: Vec::new(),
            samples: Vec::new(),
            zeros: Vec::new(),
        }
    }

    /// Decodes a picture whose size is known into `out`, which has `wanted.num_bytes()` bytes.
    ///
    /// # Errors
    /// Damage, another size than wanted, channels that cannot be converted. What `out` then holds is unspecified.
    pub fn decode(&mut self, file: &[u8], wanted: &Info, out: &mut [u8]) -> Result<()> {
        let header = Header::parse(file)?;
        if (header.width, header.height) != (wanted.width, wanted.height) {
            return Err(Error::damaged(format!(
                "PNG of {} x {} pixels, wanted {} x {} (width x height)",
                header.width, header.height, wanted.width, wanted.height
            )));
        }
        if wanted.num_bytes() != Some(out.len()) {
            return Err(Error::Invalid(format!(
                "{} bytes for the pixels of {wanted:?}",
                out.len()
            )));
        }
        let direct = has_layout(&header, wanted);
        let contents = Contents::parse(file, &header, &mut self.joined)?;
        if contents.transparent || header.interlaced || header.colour == 3 || header.bits < 8 {
            return self.decode_rare(file, wanted, out);
        }
        let compressed = contents.compressed(&self.joined);
        inflate_rows(&mut self.inflate, &header, compressed, &mut self.rows)?;
        if direct {
            unfilter(&header, &self.rows, &mut self.zeros, out)?;
            if header.bits == 16 {
                swap_pairs(out);
            }
            return Ok(());
        }
        let length = self.rows.len() - header.height as usize;
        self.samples.resize(length, 0);
        unfilter(&header, &self.rows, &mut self.zeros, &mut self.samples)?;
        convert(&self.samples, header.channels(), header.bits, wanted, out)
    }

    /// Decodes a picture of any size: appends its pixels to `out` and says how large it is. `channels: None` takes the file's.
    ///
    /// # Errors
    /// As [`Decoder::decode`]; `out` is then as it was before.
    pub fn decode_append(
        &mut self,
        file: &[u8],
        channels: Option<u8>,
        bits: u8,
        out: &mut Vec<u8>,
    ) -> Result<Info> {
        let stored = super::info(file)?;
        let wanted = Info {
            channels: channels.unwrap_or(stored.channels),
            bits,
            ..stored
        };
        let length = wanted
            .num_bytes()
            .filter(|&length| is_plausible(length, file.len()))
            .ok_or_else(|| too_short(&stored, file.len()))?;
        let start = out.len();
        out.resize(start + length, 0);
        let result = self.decode(file, &wanted, &mut out[start..]);
        if result.is_err() {
            out.truncate(start);
        }
        result.map(|()| wanted)
    }

    /// Palettes, interlacing, few bits, transparent colours: by the `png` crate.
    #[cold]
    fn decode_rare(&mut self, file: &[u8], wanted: &Info, out: &mut [u8]) -> Result<()> {
        let failed = |error: png::DecodingError| Error::damaged(format!("PNG could not be decoded: {error}"));
        let limits = png::Limits {
            bytes: file.len().saturating_mul(64 * MOST_EXPANSION),
        };
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
        decoder.set_transformations(png::Transformations::EXPAND);
        let mut reader = decoder.read_info().map_err(failed)?;
        let length = reader
            .output_buffer_size()
            .filter(|&length| is_plausible(length, file.len()))
            .ok_or_else(|| Error::damaged("PNG is too small for its size in pixels"))?;
        self.samples.clear();
        self.samples.resize(length, 0);
        let frame = reader.next_frame(&mut self.samples).map_err(failed)?;
        reader.finish().map_err(failed)?;
        let channels = frame.color_type.samples() as u8;
        let bits = if frame.bit_depth == png::BitDepth::Sixteen {
            16
        } else {
            8
        };
        convert(&self.samples[..frame.buffer_size()], channels, bits, wanted, out)
    }
}

/// Inflates into `rows`, which then holds exactly the bytes that the header promises.
fn inflate_rows(
    inflate: &mut Decompressor,
    header: &Header,
    compressed: &[u8],
    rows: &mut Vec<u8>,
) -> Result<()> {
    let row = header.width as usize * usize::from(header.channels()) * usize::from(header.bits / 8);
    let length = row
        .checked_add(1)
        .and_then(|row| row.checked_mul(header.height as usize))
        .filter(|length| length / MOST_EXPANSION <= compressed.len());
    let Some(length) = length else {
        return Err(Error::damaged(format!(
            "PNG of {} x {} pixels in {} compressed bytes: they cannot hold so many",
            header.width,
            header.height,
            compressed.len()
        )));
    };
    rows.resize(length, 0);
    match inflate.zlib_decompress(compressed, rows) {
        Ok(found) if found == length => Ok(()),
        Ok(found) => Err(Error::damaged(format!(
            "PNG holds {found} bytes of rows, wanted {length}"
        ))),
        Err(DecompressionError::InsufficientSpace) => Err(Error::damaged(format!(
            "PNG holds more than the {length} bytes of rows that its header promises"
        ))),
        Err(DecompressionError::BadData) => Err(Error::damaged(
            "PNG's compressed pixels are damaged (bad code or Adler-32)",
        )),
    }
}

fn too_short(stored: &Info, length: usize) -> Error {
    Error::damaged(format!(
        "PNG of {} x {} pixels in a file of {length} bytes: it cannot hold so many",
        stored.width, stored.height
    ))
}

fn has_layout(header: &Header, wanted: &Info) -> bool {
    header.channels() == wanted.channels && header.bits == wanted.bits
}

/// Where the compressed pixels lie in a file whose chunks have all been checked.
struct Contents<'a> {
    data: &'a [u8],
    in_parts: bool,
    transparent: bool,
}

impl<'a> Contents<'a> {
    /// Walks over the chunks and checks their CRCs; data in more than one chunk are joined in `joined`.
    fn parse(file: &'a [u8], header: &Header, joined: &mut Vec<u8>) -> Result<Self> {
        let mut contents = Self {
            data: &[],
            in_parts: false,
            transparent: false,
        };
        joined.clear();
        let mut position = 8;
        let mut chunks = 0;
        loop {
            let cut = || Error::damaged(format!("PNG file is cut short after {} bytes", file.len()));
            let rest = &file[position..];
            let (head, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
            let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let kind = [head[4], head[5], head[6], head[7]];
            let Some(data) = rest.get(..length) else {
                return Err(Error::damaged(format!(
                    "PNG chunk `{}` of {length} bytes at byte {position}, but only {} follow",
                    kind.escape_ascii(),
                    rest.len()
                )));
            };
            let stored = rest[length..].first_chunk::<4>().ok_or_else(cut)?;
            let stored = u32::from_be_bytes(*stored);
            let computed = libdeflater::crc32(&file[position + 4..position + 8 + length]);
            if stored != computed {
                return Err(Error::damaged(format!(
                    "PNG chunk `{}` at byte {position}: CRC is {computed:#010x}, stored {stored:#010x}",
                    kind.escape_ascii()
                )));
            }
            match &kind {
                b"IEND" => break,
                b"IDAT" if chunks == 0 => {
                    contents.data = data;
                    chunks = 1;
                }
                b"IDAT" => {
                    if chunks == 1 {
                        joined.extend_from_slice(contents.data);
                    }
                    joined.extend_from_slice(data);
                    chunks += 1;
                }
                b"tRNS" => contents.transparent = matches!(header.colour, 0 | 2),
                b"IHDR" if position == 8 => debug_assert_eq!(length, HEADER_BYTES - 20),
                // Source: PNG, third edition, "PLTE Palette". The library behind `decode_rare` panics on such a palette.
                b"PLTE" if !(1..=256).contains(&(length / 3)) || !length.is_multiple_of(3) => {
                    return Err(Error::damaged(format!(
                        "PNG palette at byte {position} has {length} bytes, wanted 3 for each of 1 to 256 colours"
                    )));
                }
                b"PLTE" => {}
                // An upper-case first letter: whoever does not know the chunk cannot show the picture.
                _ if kind[0] & 0x20 == 0 => {
                    return Err(Error::damaged(format!(
                        "PNG chunk `{}` at byte {position} is not known, or in the wrong place",
                        kind.escape_ascii()
                    )));
                }
                _ => {}
            }
            position += 8 + length + 4;
        }
        if chunks == 0 {
            return Err(Error::damaged("PNG file has no pixels"));
        }
        contents.in_parts = chunks > 1;
        Ok(contents)
    }

    fn compressed<'b>(&self, joined: &'b [u8]) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.in_parts { joined } else { self.data }
    }
}

/// Undoes the filters of `rows` into `out`.
fn unfilter(header: &Header, rows: &[u8], zeros: &mut Vec<u8>, out: &mut [u8]) -> Result<()> {
    let pixel_bytes = usize::from(header.channels()) * usize::from(header.bits / 8);
    let row_bytes = header.width as usize * pixel_bytes;
    zeros.clear();
    zeros.resize(row_bytes, 0);
    let mut above: &[u8] = zeros;
    let rows = rows.chunks_exact(row_bytes + 1);
    for (number, (row, out)) in rows.zip(out.chunks_exact_mut(row_bytes)).enumerate() {
        let (&filter, row) = row.split_first().expect("rows have a filter byte");
        if filter > filter::PAETH {
            return Err(Error::damaged(format!(
                "PNG row {number} has filter {filter}, wanted 0 to 4"
            )));
        }
        filter::unfilter_row(filter, pixel_bytes, above, row, out);
        above = out;
    }
    Ok(())
}

fn swap_pairs(samples: &mut [u8]) {
    let (pairs, _) = samples.as_chunks_mut::<2>();
    for pair in pairs {
        *pair = [pair[1], pair[0]];
    }
}

/// Changes channels and bits; samples of 16 bits are big-endian in `samples` and little-endian in `out`.
fn convert(samples: &[u8], channels: u8, bits: u8, wanted: &Info, out: &mut [u8]) -> Result<()> {
    let (from, to) = (usize::from(channels), usize::from(wanted.channels));
    // For each channel wanted: the one it comes from, or none for an opaque alpha.
    let map: [Option<usize>; 4] = match (from, to) {
        (1, 1) | (2, 1) => [Some(0), None, None, None],
        (1, 2) => [Some(0), None, None, None],
        (2, 2) => [Some(0), Some(1), None, None],
        (1 | 2, 3) => [Some(0), Some(0), Some(0), None],
        (1, 4) => [Some(0), Some(0), Some(0), None],
        (2, 4) => [Some(0), Some(0), Some(0), Some(1)],
        (3 | 4, 3) | (3, 4) => [Some(0), Some(1), Some(2), None],
        (4, 4) => [Some(0), Some(1), Some(2), Some(3)],
        _ => {
            return Err(Error::unsupported(format!(
                "a PNG of {from} channels where {to} are wanted: colours are not turned to grey; declare `[height, width, {from}]`"
            )));
        }
    };
    let pixels = samples.len() / from / usize::from(bits / 8);
    if wanted.num_bytes() != Some(out.len()) || out.len() != pixels * to * usize::from(wanted.bits / 8) {
        return Err(Error::damaged(format!(
            "PNG has {pixels} pixels, wanted {} x {}",
            wanted.width, wanted.height
        )));
    }
    let sample = |pixel: usize, channel: Option<usize>| match channel {
        None => [0xff, 0xff],
        Some(channel) if bits == 16 => {
            let at = 2 * (pixel * from + channel);
            [samples[at], samples[at + 1]]
        }
        Some(channel) => [samples[pixel * from + channel]; 2],
    };
    for pixel in 0..pixels {
        for (channel, &source) in map.iter().take(to).enumerate() {
            let [high, low] = sample(pixel, source);
            let at = pixel * to + channel;
            if wanted.bits == 16 {
                out[2 * at] = low;
                out[2 * at + 1] = high;
            } else {
                out[at] = high;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Encoder;
    use super::*;

    #[test]
    fn a_palette_of_a_wrong_size_is_refused() {
        let chunk = |kind: &[u8; 4], data: &[u8]| {
            let mut bytes = (data.len() as u32).to_be_bytes().to_vec();
            bytes.extend_from_slice(kind);
            bytes.extend_from_slice(data);
            bytes.extend_from_slice(&libdeflater::crc32(&bytes[4..]).to_be_bytes());
            bytes
        };
        let file = |palette: &[u8]| {
            let mut zlib = vec![0; 64];
            let mut compressor = libdeflater::Compressor::new(libdeflater::CompressionLvl::fastest());
            let length = compressor.zlib_compress(&[0, 1, 0, 1], &mut zlib).unwrap();
            let header = [0, 0, 0, 1, 0, 0, 0, 2, 8, 3, 0, 0, 0];
            let chunks = [
                chunk(b"IHDR", &header),
                chunk(b"PLTE", palette),
                chunk(b"IDAT", &zlib[..length]),
                chunk(b"IEND", &[]),
            ];
            [&super::super::SIGNATURE[..], &chunks.concat()].concat()
        };
        let mut pixels = Vec::new();
        let palette = [1, 2, 3, 4, 5, 6];
        Decoder::new()
            .decode_append(&file(&palette), Some(3), 8, &mut pixels)
            .unwrap();
        assert_eq!(pixels, [4, 5, 6, 4, 5, 6]);
        for length in [0, 1, 2, 4, 5, 769, 771] {
            let result = Decoder::new().decode_append(&file(&vec![9; length]), Some(3), 8, &mut pixels);
            let message = result.unwrap_err().to_string();
            assert!(message.contains("palette"), "{length}: {message}");
        }
    }

    /// Pixels of a kind: 0 noise, 1 flat with few values, 2 a gradient.
    fn pixels(info: &Info, kind: u8, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..info.num_bytes().unwrap())
            .map(|index| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let noise = (state >> 56) as u8;
                match kind {
                    0 => noise,
                    1 => (noise > 240) as u8 * noise,
                    _ => (index / 7) as u8 ^ (noise & 3),
                }
            })
            .collect()
    }

    fn infos() -> impl Strategy<Value = Info> {
        (1u32..40, 1u32..40, 1u8..5, prop::sample::select(vec![8u8, 16])).prop_map(
            |(width, height, channels, bits)| Info {
                width,
                height,
                channels,
                bits,
            },
        )
    }

    /// What the `png` crate makes of a file, 16 bits turned to little-endian.
    fn by_the_crate(file: &[u8]) -> Option<Vec<u8>> {
        let mut reader = png::Decoder::new(Cursor::new(file)).read_info().ok()?;
        let mut pixels = vec![0; reader.output_buffer_size()?];
        let frame = reader.next_frame(&mut pixels).ok()?;
        pixels.truncate(frame.buffer_size());
        if frame.bit_depth == png::BitDepth::Sixteen {
            swap_pairs(&mut pixels);
        }
        Some(pixels)
    }

    /// A file that the `png` crate wrote.
    fn from_the_crate(info: &Info, pixels: &[u8], filter: png::Filter) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, info.width, info.height);
        encoder.set_color(match info.channels {
            1 => png::ColorType::Grayscale,
            2 => png::ColorType::GrayscaleAlpha,
            3 => png::ColorType::Rgb,
            _ => png::ColorType::Rgba,
        });
        encoder.set_depth(if info.bits == 16 {
            png::BitDepth::Sixteen
        } else {
            png::BitDepth::Eight
        });
        encoder.set_filter(filter);
        let mut samples = pixels.to_vec();
        if info.bits == 16 {
            swap_pairs(&mut samples);
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&samples).unwrap();
        writer.finish().unwrap();
        file
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn what_is_encoded_comes_back(info in infos(), kind in 0u8..3, seed: u64) {
            let pixels = pixels(&info, kind, seed);
            let mut file = Vec::new();
            let mut encoder = Encoder::new();
            encoder.encode(&info, &pixels, &mut file).unwrap();
            prop_assert_eq!(super::super::info(&file).unwrap(), info);
            let others = by_the_crate(&file);
            prop_assert_eq!(others.as_ref(), Some(&pixels));
            let mut out = vec![7; pixels.len()];
            let mut decoder = Decoder::new();
            decoder.decode(&file, &info, &mut out).unwrap();
            prop_assert_eq!(&out, &pixels);
            // Buffers that have been used change nothing.
            let mut again = Vec::new();
            encoder.encode(&info, &pixels, &mut again).unwrap();
            prop_assert_eq!(&again, &file);
            let mut appended = vec![1, 2];
            prop_assert_eq!(decoder.decode_append(&file, None, info.bits, &mut appended).unwrap(), info);
            prop_assert_eq!(&appended[2..], &pixels[..]);
        }

        #[test]
        fn files_of_the_png_crate_are_read(info in infos(), kind in 0u8..3, seed: u64, filter in 0usize..6) {
            let pixels = pixels(&info, kind, seed);
            let filter = [
                png::Filter::NoFilter, png::Filter::Sub, png::Filter::Up, png::Filter::Avg, png::Filter::Paeth, png::Filter::Adaptive,
            ][filter];
            let file = from_the_crate(&info, &pixels, filter);
            let mut out = vec![7; pixels.len()];
            Decoder::new().decode(&file, &info, &mut out).unwrap();
            prop_assert_eq!(out, pixels);
        }

        #[test]
        fn channels_and_bits_are_converted(info in infos(), wanted_channels in 1u8..5, wanted_bits in prop::sample::select(vec![8u8, 16]), seed: u64) {
            let pixels = pixels(&info, 0, seed);
            let mut file = Vec::new();
            Encoder::new().encode(&info, &pixels, &mut file).unwrap();
            let mut out = Vec::new();
            let result = Decoder::new().decode_append(&file, Some(wanted_channels), wanted_bits, &mut out);
            if info.channels > 2 && wanted_channels < 3 {
                prop_assert!(result.is_err());
                prop_assert!(out.is_empty());
                return Ok(());
            }
            result.unwrap();
            let colours = |channels: u8| if channels < 3 { 1 } else { 3 };
            let alpha = |channels: u8| channels.is_multiple_of(2);
            let value = |bytes: &[u8], bits: u8, index: usize| match bits {
                16 => u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]),
                _ => u16::from(bytes[index]) * 257,
            };
            let cut = |value: u16| if wanted_bits == 8 { (value >> 8) * 257 } else { value };
            let (from, to) = (usize::from(info.channels), usize::from(wanted_channels));
            for pixel in 0..(info.width * info.height) as usize {
                for channel in 0..to {
                    let is_alpha = alpha(wanted_channels) && channel == to - 1;
                    let wanted = match (is_alpha, alpha(info.channels)) {
                        (true, true) => value(&pixels, info.bits, pixel * from + from - 1),
                        (true, false) => u16::MAX,
                        _ => value(&pixels, info.bits, pixel * from + if colours(info.channels) == 1 { 0 } else { channel }),
                    };
                    prop_assert_eq!(value(&out, wanted_bits, pixel * to + channel), cut(wanted));
                }
            }
        }

        #[test]
        fn any_bytes_after_a_header_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut file = super::super::SIGNATURE.to_vec();
            file.extend_from_slice(&bytes);
            prop_assert!(Decoder::new().decode_append(&file, Some(3), 8, &mut Vec::new()).is_err());
        }
    }

    fn sample(kind: u8) -> (Info, Vec<u8>, Vec<u8>) {
        let info = Info {
            width: 9,
            height: 7,
            channels: 3,
            bits: 8,
        };
        let pixels = pixels(&info, kind, 5);
        let mut file = Vec::new();
        Encoder::new().encode(&info, &pixels, &mut file).unwrap();
        (info, pixels, file)
    }

    #[test]
    fn cut_files_and_flipped_bits_are_errors() {
        for kind in 0..3 {
            let (info, pixels, file) = sample(kind);
            let mut decoder = Decoder::new();
            let mut out = vec![0; pixels.len()];
            for length in 0..file.len() {
                assert!(
                    decoder.decode(&file[..length], &info, &mut out).is_err(),
                    "{length}"
                );
            }
            for bit in 0..8 * file.len() {
                let mut flipped = file.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(decoder.decode(&flipped, &info, &mut out).is_err(), "bit {bit}");
            }
            decoder.decode(&file, &info, &mut out).unwrap();
            assert_eq!(out, pixels);
        }
    }

    /// Replaces or adds chunks, with right CRCs.
    fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
        let mut bytes = (data.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(kind);
        bytes.extend_from_slice(data);
        let crc = libdeflater::crc32(&bytes[4..]);
        bytes.extend_from_slice(&crc.to_be_bytes());
        bytes
    }

    fn header(width: u32, height: u32, rest: [u8; 5]) -> Vec<u8> {
        let mut data = width.to_be_bytes().to_vec();
        data.extend_from_slice(&height.to_be_bytes());
        data.extend_from_slice(&rest);
        let mut file = super::super::SIGNATURE.to_vec();
        file.extend(chunk(b"IHDR", &data));
        file
    }

    #[test]
    fn data_in_many_chunks_are_joined() {
        let (info, pixels, file) = sample(0);
        let data = &file[HEADER_BYTES + 8..file.len() - 16];
        let mut split = file[..HEADER_BYTES].to_vec();
        split.extend(chunk(b"tEXt", b"Comment\0none"));
        for part in data.chunks(5) {
            split.extend(chunk(b"IDAT", part));
        }
        split.extend(chunk(b"IEND", b""));
        let mut out = vec![0; pixels.len()];
        Decoder::new().decode(&split, &info, &mut out).unwrap();
        assert_eq!(out, pixels);
    }

    #[test]
    fn sizes_are_not_believed() {
        let compressed = &sample(0).2[HEADER_BYTES..];
        for (width, height) in [
            (i32::MAX as u32, i32::MAX as u32),
            (1 << 20, 1 << 20),
            (0, 1),
            (u32::MAX, 1),
        ] {
            let mut file = header(width, height, [8, 2, 0, 0, 0]);
            file.extend_from_slice(compressed);
            let error = Decoder::new()
                .decode_append(&file, Some(3), 8, &mut Vec::new())
                .unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
        }
    }

    #[test]
    fn bad_filters_unknown_critical_chunks_and_missing_data_are_errors() {
        let mut encoder = libdeflater::Compressor::default();
        let mut packed = vec![0; 100];
        let length = encoder.zlib_compress(&[5, 1, 2, 3], &mut packed).unwrap();
        let mut file = header(1, 1, [8, 2, 0, 0, 0]);
        file.extend(chunk(b"IDAT", &packed[..length]));
        file.extend(chunk(b"IEND", b""));
        let decode = |file: &[u8]| {
            Decoder::new()
                .decode_append(file, Some(3), 8, &mut Vec::new())
                .unwrap_err()
                .to_string()
        };
        assert!(decode(&file).contains("filter 5"));
        let mut file = header(1, 1, [8, 2, 0, 0, 0]);
        file.extend(chunk(b"IEND", b""));
        assert!(decode(&file).contains("no pixels"));
        let mut file = header(1, 1, [8, 2, 0, 0, 0]);
        file.extend(chunk(b"ABCD", b""));
        assert!(decode(&file).contains("`ABCD`"));
        assert!(decode(&header(1, 1, [8, 5, 0, 0, 0])).contains("colour type 5"));
        assert!(decode(b"\xff\xd8\xff\xe0 this is a JPEG").contains("not a PNG"));
    }

    #[test]
    fn palettes_few_bits_and_transparency_are_read_by_the_crate() {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 4, 2);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Two);
        encoder.set_palette(vec![10, 20, 30, 40, 50, 60, 70, 80, 90]);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[0b00_01_10_00, 0b10_10_01_00]).unwrap();
        writer.finish().unwrap();
        let info = super::super::info(&file).unwrap();
        assert_eq!((info.channels, info.bits), (3, 8));
        let mut out = Vec::new();
        Decoder::new().decode_append(&file, None, 8, &mut out).unwrap();
        let colours = [[10, 20, 30], [40, 50, 60], [70, 80, 90]];
        assert_eq!(out, [0, 1, 2, 0, 2, 2, 1, 0].map(|i: usize| colours[i]).concat());

        // Grey with a transparent value: with four channels the alpha shows it.
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 2, 1);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_trns(vec![0u8, 9]);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[9, 8]).unwrap();
        writer.finish().unwrap();
        let mut out = Vec::new();
        Decoder::new().decode_append(&file, Some(4), 8, &mut out).unwrap();
        assert_eq!(out, [9, 9, 9, 0, 8, 8, 8, 255]);
    }

    #[test]
    fn wrong_sizes_are_named() {
        let (info, pixels, file) = sample(0);
        let wanted = Info { width: 10, ..info };
        let mut out = vec![0; wanted.num_bytes().unwrap()];
        let error = Decoder::new()
            .decode(&file, &wanted, &mut out)
            .unwrap_err()
            .to_string();
        assert!(error.contains("9 x 7 pixels, wanted 10 x 7"), "{error}");
        let mut file = Vec::new();
        let error = Encoder::new()
            .encode(&wanted, &pixels, &mut file)
            .unwrap_err()
            .to_string();
        assert!(error.contains("189 bytes") && file.is_empty(), "{error}");
        let error = Encoder::new().encode(&Info { height: 0, ..info }, &[], &mut file);
        assert!(error.is_err());
    }
}
