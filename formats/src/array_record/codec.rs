//! Compresses and decompresses the parts of a chunk.

use std::fmt;
use std::io::Cursor;

use brotlic::decode::{BrotliDecoderOptions, DecoderInfo};
use brotlic::encode::{BrotliEncoderOptions, BrotliOperation};
use brotlic::{LargeWindowSize, Quality};

use crate::array_record::Compression;

/// A codec, by the letter that a chunk's data begin with. Source: `CompressionType` in `riegeli/chunk_encoding/constants.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Uncompressed,
    Zstd,
    Brotli,
    Snappy,
}

impl Codec {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Uncompressed),
            b'z' => Some(Self::Zstd),
            b'b' => Some(Self::Brotli),
            b's' => Some(Self::Snappy),
            _ => None,
        }
    }

    pub(super) fn to_byte(self) -> u8 {
        match self {
            Self::Uncompressed => 0,
            Self::Zstd => b'z',
            Self::Brotli => b'b',
            Self::Snappy => b's',
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uncompressed => "uncompressed",
            Self::Zstd => "zstd",
            Self::Brotli => "brotli",
            Self::Snappy => "snappy",
        }
    }
}

/// Contexts of the codecs, kept from chunk to chunk: a new one of zstd for each 1 kB record costs five times the decoding.
/// Brotli has none to keep, its decoder cannot be reset.
#[derive(Default)]
pub(super) struct Decompressor {
    zstd: Option<zstd_safe::DCtx<'static>>,
    snappy: snap::raw::Decoder,
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

impl Decompressor {
    /// Decompresses all of `compressed` into `output`, whose contents are replaced; it must come out `size` bytes long. Gives the
    /// reason where the bytes are damaged; `output` is empty then.
    ///
    /// `size` is what the file claims. It is checked against what so many compressed bytes can give before memory is asked for,
    /// and never exceeded. Brotli has no such bound, so there memory grows as bytes come out.
    pub(super) fn decompress(
        &mut self,
        codec: Codec,
        compressed: &[u8],
        size: u64,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        let max_ratio = match codec {
            Codec::Uncompressed => 1,
            // Source: RFC 8878, a block gives up to 128 KiB and takes at least 4 bytes.
            Codec::Zstd => 1 << 15,
            // Source: `format_description.txt` of snappy, a copy gives up to 64 bytes and takes at least 3, or 11 and 2.
            Codec::Snappy => 22,
            Codec::Brotli => u64::MAX,
        };
        let result = if size > (compressed.len() as u64).saturating_mul(max_ratio) {
            Err(format!(
                "{size} bytes are claimed to come out of {}, more than {} can hold",
                compressed.len(),
                codec.name()
            ))
        } else {
            usize::try_from(size)
                .map_err(|error| error.to_string())
                .and_then(|size| match codec {
                    Codec::Uncompressed => copy(compressed, size, output),
                    Codec::Zstd => self.unzstd(compressed, size, output),
                    Codec::Snappy => self.unsnappy(compressed, size, output),
                    Codec::Brotli => unbrotli(compressed, size, output),
                })
        };
        if result.is_err() {
            output.clear();
        }
        result
    }

    fn unzstd(&mut self, compressed: &[u8], size: usize, output: &mut Vec<u8>) -> Result<(), String> {
        if let Some(bytes) = tiny_frame(compressed) {
            return copy(bytes, size, output);
        }
        output.clear();
        output
            .try_reserve_exact(size)
            .map_err(|error| error.to_string())?;
        let context = match &mut self.zstd {
            Some(context) => context,
            none => none.insert(zstd_safe::DCtx::try_create().ok_or("no memory for zstd")?),
        };
        // What comes out beyond `size` still fits the vector, or is refused.
        context.decompress(output, compressed).map_err(|code| {
            format!(
                "zstd cannot give the {size} bytes claimed: {}",
                zstd_safe::get_error_name(code)
            )
        })?;
        if output.len() != size {
            return Err(format!("zstd gives {} bytes, {size} are claimed", output.len()));
        }
        Ok(())
    }

    fn unsnappy(&mut self, compressed: &[u8], size: usize, output: &mut Vec<u8>) -> Result<(), String> {
        // A raw block, which begins with its own length: the claim must be the same.
        let own = snap::raw::decompress_len(compressed).map_err(|error| format!("snappy: {error}"))?;
        if own != size {
            return Err(format!("snappy gives {own} bytes, {size} are claimed"));
        }
        resize(output, size)?;
        if size == 0 && compressed.len() > 1 {
            return Err(format!(
                "snappy gives 0 bytes and leaves {} over",
                compressed.len() - 1
            ));
        }
        self.snappy
            .decompress(compressed, output)
            .map(|_| ())
            .map_err(|error| format!("snappy cannot give the {size} bytes claimed: {error}"))
    }
}

/// Sets the length; zeros only what is new, so that a buffer in steady use is not written twice.
fn resize(output: &mut Vec<u8>, size: usize) -> Result<(), String> {
    output
        .try_reserve(size.saturating_sub(output.len()))
        .map_err(|error| error.to_string())?;
    output.resize(size, 0);
    Ok(())
}

fn copy(bytes: &[u8], size: usize, output: &mut Vec<u8>) -> Result<(), String> {
    if size != bytes.len() {
        return Err(format!("{} bytes found, {size} wanted", bytes.len()));
    }
    output.clear();
    output
        .try_reserve_exact(size)
        .map_err(|error| error.to_string())?;
    output.extend_from_slice(bytes);
    Ok(())
}

/// Bytes of brotli's output that are believed at once, beyond those that text compresses to.
const BROTLI_STEP: usize = 1 << 16;

fn unbrotli(compressed: &[u8], size: usize, output: &mut Vec<u8>) -> Result<(), String> {
    // Source: `BrotliReader` in `riegeli/brotli/brotli_reader.cc` takes large windows as well.
    let mut decoder = BrotliDecoderOptions::new()
        .large_window_size(true)
        .build()
        .map_err(|error| format!("brotli: {error}"))?;
    let mut believed = size.min(BROTLI_STEP.max(compressed.len().saturating_mul(16)));
    resize(output, believed)?;
    let (mut rest, mut filled) = (compressed, 0);
    loop {
        let step = decoder
            .decompress(rest, &mut output[filled..])
            .map_err(|error| format!("brotli cannot give the {size} bytes claimed: {error}"))?;
        rest = &rest[step.bytes_read..];
        filled += step.bytes_written;
        match step.info {
            DecoderInfo::Finished if filled == size && rest.is_empty() => {
                output.truncate(size);
                return Ok(());
            }
            DecoderInfo::Finished => {
                return Err(format!(
                    "brotli gives {filled} bytes and leaves {} over, {size} are claimed",
                    rest.len()
                ));
            }
            DecoderInfo::NeedsMoreInput => {
                return Err(format!("brotli ends after {filled} bytes, {size} are claimed"));
            }
            DecoderInfo::NeedsMoreOutput if believed == size => {
                return Err(format!("brotli gives more than the {size} bytes claimed"));
            }
            DecoderInfo::NeedsMoreOutput => {
                believed = size.min(believed.saturating_mul(2));
                resize(output, believed)?;
            }
        }
    }
}

/// What turns bytes into compressed bytes.
enum Encoder {
    Uncompressed,
    Zstd(zstd_safe::CCtx<'static>),
    /// Level and window; each piece needs an encoder of its own, brotli's cannot be reset.
    Brotli(Quality, LargeWindowSize),
    Snappy(Box<snap::raw::Encoder>),
}

/// The codec of a writer, its context kept from chunk to chunk.
pub(super) struct Compressor {
    encoder: Encoder,
    frame: Vec<u8>,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor")
            .field("codec", &self.codec())
            .finish_non_exhaustive()
    }
}

impl Compressor {
    /// Sets a codec up. Gives the reason where a codec refuses its level or window, which parsed options never do.
    pub(super) fn new(compression: Compression, window_log: Option<u8>) -> Result<Self, String> {
        let encoder = match compression {
            Compression::Uncompressed => Encoder::Uncompressed,
            Compression::Zstd(level) => {
                let mut context = zstd_safe::CCtx::try_create().ok_or("no memory for zstd")?;
                let name = |code| zstd_safe::get_error_name(code).to_string();
                context
                    .set_parameter(zstd_safe::CParameter::CompressionLevel(level))
                    .map_err(name)?;
                if let Some(window_log) = window_log {
                    context
                        .set_parameter(zstd_safe::CParameter::WindowLog(u32::from(window_log)))
                        .map_err(name)?;
                }
                Encoder::Zstd(context)
            }
            Compression::Brotli(level) => {
                let refused = |error| format!("brotli level {level}, window {window_log:?}: {error}");
                let quality = u8::try_from(level).map_err(|error| error.to_string())?;
                Encoder::Brotli(
                    Quality::new(quality).map_err(refused)?,
                    // Source: `BROTLI_DEFAULT_WINDOW` in brotli's `encode.h`, the default of Riegeli's `brotli_writer.h`.
                    LargeWindowSize::new(window_log.unwrap_or(22)).map_err(refused)?,
                )
            }
            Compression::Snappy => Encoder::Snappy(Box::new(snap::raw::Encoder::new())),
        };
        Ok(Self {
            encoder,
            frame: Vec::new(),
        })
    }

    pub(super) fn codec(&self) -> Codec {
        match self.encoder {
            Encoder::Uncompressed => Codec::Uncompressed,
            Encoder::Zstd(_) => Codec::Zstd,
            Encoder::Brotli(..) => Codec::Brotli,
            Encoder::Snappy(_) => Codec::Snappy,
        }
    }

    /// Appends `bytes` compressed to `output`. Always one call with the size known: the bytes then depend on the input, the
    /// options and the version of the codec only.
    pub(super) fn compress(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
        match &mut self.encoder {
            Encoder::Uncompressed => output.extend_from_slice(bytes),
            Encoder::Zstd(_) if (1..=ZSTD_TINY).contains(&bytes.len()) => put_tiny_frame(bytes, output),
            Encoder::Zstd(context) => {
                output
                    .try_reserve(zstd_safe::compress_bound(bytes.len()))
                    .map_err(|error| error.to_string())?;
                let end = output.len() as u64;
                let mut rest = Cursor::new(output);
                rest.set_position(end);
                context
                    .compress2(&mut rest, bytes)
                    .map_err(|code| zstd_safe::get_error_name(code).to_string())?;
            }
            Encoder::Brotli(quality, window) => {
                let mut encoder = BrotliEncoderOptions::new()
                    .quality(*quality)
                    .large_window_size(*window)
                    .size_hint(u32::try_from(bytes.len()).unwrap_or(u32::MAX))
                    .build()
                    .map_err(|error| format!("brotli: {error}"))?;
                // As many as incompressible bytes take; the loop goes round again should that be too few.
                resize(&mut self.frame, bytes.len() + bytes.len() / 1024 + 64)?;
                let mut rest = bytes;
                while !encoder.is_finished() {
                    let step = encoder
                        .compress(rest, &mut self.frame, BrotliOperation::Finish)
                        .map_err(|error| format!("brotli: {error}"))?;
                    rest = &rest[step.bytes_read..];
                    output.extend_from_slice(&self.frame[..step.bytes_written]);
                }
            }
            Encoder::Snappy(encoder) => {
                let bound = match snap::raw::max_compress_len(bytes.len()) {
                    0 => {
                        return Err(format!(
                            "{} bytes are more than snappy takes; use a smaller `group_size`, or `zstd`",
                            bytes.len()
                        ));
                    }
                    bound => bound,
                };
                resize(&mut self.frame, bound)?;
                let length = encoder
                    .compress(bytes, &mut self.frame)
                    .map_err(|error| format!("snappy: {error}"))?;
                output.extend_from_slice(&self.frame[..length]);
            }
        }
        Ok(())
    }
}

/// Most bytes that zstd never tries to compress. Source: the check of the size against `MIN_CBLOCK_SIZE` in `ZSTD_buildSeqStore`, zstd 1.5.7.
const ZSTD_TINY: usize = 6;

/// Appends the frame that zstd makes of up to 6 bytes whatever the level: the bytes as they are in one last block. For the sizes of a
/// chunk of one record it stands in for a call, which takes as long as a twelfth of a record of 1 kB.
///
/// Source: RFC 8878, sections 3.1.1 and 3.1.1.2: magic number, single segment with a size of one byte, raw block.
fn put_tiny_frame(bytes: &[u8], output: &mut Vec<u8>) {
    let length = bytes.len() as u8;
    output.extend_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 0x20, length, length << 3 | 1, 0, 0]);
    output.extend_from_slice(bytes);
}

/// The bytes in a frame like those of [`put_tiny_frame`]; a call of zstd for the sizes of a chunk of one record takes longer than hashing it.
#[inline]
fn tiny_frame(frame: &[u8]) -> Option<&[u8]> {
    let (&[0x28, 0xb5, 0x2f, 0xfd, 0x20, length, block, 0, 0], bytes) = frame.split_first_chunk::<9>()?
    else {
        return None;
    };
    let is_raw = usize::from(length) == bytes.len() && bytes.len() <= 31 && block == length << 3 | 1;
    is_raw.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [(Compression, Option<u8>); 12] = [
        (Compression::Uncompressed, None),
        (Compression::Zstd(3), Some(20)),
        (Compression::Zstd(-5), Some(10)),
        (Compression::Zstd(19), Some(31)),
        (Compression::Brotli(0), None),
        (Compression::Brotli(1), Some(10)),
        (Compression::Brotli(6), None),
        (Compression::Brotli(5), Some(24)),
        (Compression::Brotli(6), Some(25)),
        (Compression::Brotli(2), Some(30)),
        (Compression::Brotli(11), Some(10)),
        (Compression::Snappy, None),
    ];

    #[test]
    fn tiny_frames_are_those_of_zstd() {
        for level in [-131_072, -5, 1, 2, 3, 5, 9, 13, 17, 19, 22] {
            for window_log in [10, 20, 31] {
                let mut compressor = compressor((Compression::Zstd(level), Some(window_log)));
                for length in 1..=ZSTD_TINY {
                    for bytes in [vec![7; length], (0..length as u8).collect()] {
                        let mut tiny = Vec::new();
                        compressor.compress(&bytes, &mut tiny).unwrap();
                        let Encoder::Zstd(context) = &mut compressor.encoder else {
                            unreachable!("the codec is zstd")
                        };
                        let mut frame = Vec::with_capacity(100);
                        context.compress2(&mut frame, &bytes).unwrap();
                        assert_eq!(tiny, frame, "{length} bytes at level {level}");
                        assert_eq!(tiny_frame(&frame), Some(&bytes[..]));
                        assert_eq!(tiny_frame(&frame[..frame.len() - 1]), None);
                        assert_eq!(tiny_frame(&[&frame[..], &[0]].concat()), None);
                    }
                }
            }
        }
    }

    fn compressor((compression, window_log): (Compression, Option<u8>)) -> Compressor {
        Compressor::new(compression, window_log).unwrap()
    }

    fn compressed(kind: (Compression, Option<u8>), bytes: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        compressor(kind).compress(bytes, &mut output).unwrap();
        output
    }

    #[test]
    fn ones_come_out_of_a_dirty_buffer() {
        let mut decompressor = Decompressor::default();
        let mut output = vec![7; 5000];
        for kind in ALL {
            let mut compressor = compressor(kind);
            for length in [0, 1, 100, 300_000, 4000, 100_000, 0] {
                let bytes = vec![1; length];
                let mut frame = Vec::new();
                compressor.compress(&bytes, &mut frame).unwrap();
                decompressor
                    .decompress(compressor.codec(), &frame, length as u64, &mut output)
                    .unwrap();
                assert_eq!(output, bytes, "{kind:?}");
            }
        }
    }

    #[test]
    fn claims_that_cannot_be_are_refused_without_memory() {
        let mut decompressor = Decompressor::default();
        for kind in ALL {
            let frame = compressed(kind, &[0; 1000]);
            for claim in [0, 999, 1001, 100_000, 1 << 40, 1 << 62, u64::MAX] {
                let mut output = Vec::new();
                let result = decompressor.decompress(compressor(kind).codec(), &frame, claim, &mut output);
                assert!(result.is_err(), "{kind:?} {claim}");
                assert!(
                    output.is_empty() && output.capacity() < 1 << 20,
                    "{kind:?} {claim}"
                );
            }
        }
    }

    #[test]
    fn memory_grows_with_what_truly_comes_out_of_brotli() {
        let kind = (Compression::Brotli(9), None);
        let (frame, mut output) = (compressed(kind, &vec![0; 3_000_000]), Vec::new());
        assert!(frame.len() < 100);
        let mut decompressor = Decompressor::default();
        for claim in [1 << 40, 2_999_999, 3_000_001] {
            decompressor
                .decompress(Codec::Brotli, &frame, claim, &mut output)
                .unwrap_err();
            assert!(output.capacity() <= 8_000_000, "{}", output.capacity());
        }
        decompressor
            .decompress(Codec::Brotli, &frame, 3_000_000, &mut output)
            .unwrap();
        assert!(output.len() == 3_000_000 && output.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn cut_longer_and_empty_frames_are_errors() {
        let text: Vec<u8> = (0..200u8).flat_map(|i| [i % 7, i % 11, i]).collect();
        let mut decompressor = Decompressor::default();
        let mut output = Vec::new();
        for kind in ALL {
            let codec = compressor(kind).codec();
            for bytes in [&text[..], &[]] {
                let mut frame = compressed(kind, bytes);
                for cut in 0..frame.len() {
                    let result =
                        decompressor.decompress(codec, &frame[..cut], bytes.len() as u64, &mut output);
                    // Zstd takes nothing at all for nothing, as Riegeli's reader of it does.
                    let nothing = cut == 0 && bytes.is_empty() && codec == Codec::Zstd;
                    assert!(result.is_err() || nothing, "{kind:?} {cut}");
                    assert!(output.is_empty());
                }
                frame.push(0);
                decompressor
                    .decompress(codec, &frame, bytes.len() as u64, &mut output)
                    .unwrap_err();
            }
        }
    }

    #[test]
    fn a_frame_depends_on_the_input_only() {
        for kind in ALL {
            let mut compressor = compressor(kind);
            for text in ["a", "b", "abcabcabcabcabcabc", "", "b"] {
                let mut output = Vec::new();
                compressor.compress(text.as_bytes(), &mut output).unwrap();
                assert_eq!(output, compressed(kind, text.as_bytes()));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn bytes_come_back(kind in 0..ALL.len(), word in prop::collection::vec(any::<u8>(), 0..300), repeats in 0usize..40) {
            let bytes = word.repeat(repeats);
            let frame = compressed(ALL[kind], &bytes);
            let mut output = Vec::new();
            let codec = compressor(ALL[kind]).codec();
            prop_assert_eq!(Decompressor::default().decompress(codec, &frame, bytes.len() as u64, &mut output), Ok(()));
            prop_assert_eq!(output, bytes);
        }

        #[test]
        fn any_bytes_give_what_was_claimed_or_an_error(
            codec in prop::sample::select(vec![Codec::Zstd, Codec::Brotli, Codec::Snappy]),
            frame in prop::collection::vec(any::<u8>(), 0..100),
            claim in 0u64..2000,
        ) {
            let mut output = Vec::new();
            match Decompressor::default().decompress(codec, &frame, claim, &mut output) {
                Ok(()) => prop_assert_eq!(output.len() as u64, claim),
                Err(reason) => prop_assert!(!reason.is_empty() && output.is_empty()),
            }
        }
    }
}
