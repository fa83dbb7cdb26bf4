//! Compresses and decompresses the parts of a chunk.

use std::fmt;

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

/// Why bytes could not be decompressed.
#[derive(Debug)]
pub(super) enum DecodeError {
    /// The bytes are wrong.
    Damaged(String),
    /// This version lacks the codec.
    Unsupported(String),
}

impl From<String> for DecodeError {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

/// Contexts of the codecs, kept from chunk to chunk: a new one for each 1 kB record costs five times the decoding.
#[derive(Default)]
pub(super) struct Decompressor {
    zstd: Option<zstd_safe::DCtx<'static>>,
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

impl Decompressor {
    /// Decompresses all of `compressed` into `output`, which is emptied first and must come out `size` bytes long.
    ///
    /// `size` is what the file claims. It is checked against what so many compressed bytes can give before memory is asked for,
    /// and never exceeded.
    pub(super) fn decompress(
        &mut self,
        codec: Codec,
        compressed: &[u8],
        size: u64,
        output: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        output.clear();
        let max_ratio = match codec {
            Codec::Uncompressed => {
                if size != compressed.len() as u64 {
                    return Err(format!("{} bytes found, {size} wanted", compressed.len()).into());
                }
                output
                    .try_reserve_exact(compressed.len())
                    .map_err(|error| error.to_string())?;
                output.extend_from_slice(compressed);
                return Ok(());
            }
            // Source: RFC 8878, a block gives up to 128 KiB and takes at least 4 bytes.
            Codec::Zstd => 1 << 15,
            codec => {
                return Err(DecodeError::Unsupported(format!(
                    "the chunk is compressed with {}, which this version cannot read; it reads zstd and uncompressed chunks",
                    codec.name()
                )));
            }
        };
        if size > (compressed.len() as u64).saturating_mul(max_ratio) {
            return Err(format!(
                "{size} bytes are claimed to come out of {}, more than {} can hold",
                compressed.len(),
                codec.name()
            )
            .into());
        }
        let size = usize::try_from(size).map_err(|error| error.to_string())?;
        output
            .try_reserve_exact(size)
            .map_err(|error| error.to_string())?;
        let context = match &mut self.zstd {
            Some(context) => context,
            none => {
                none.insert(zstd_safe::DCtx::try_create().ok_or_else(|| "no memory for zstd".to_string())?)
            }
        };
        // What comes out beyond `size` still fits the vector, or is refused.
        context.decompress(output, compressed).map_err(|code| {
            format!(
                "zstd cannot give the {size} bytes claimed: {}",
                zstd_safe::get_error_name(code)
            )
        })?;
        if output.len() != size {
            return Err(format!("zstd gives {} bytes, {size} are claimed", output.len()).into());
        }
        Ok(())
    }
}

/// The codec of a writer, its context kept from chunk to chunk.
pub(super) struct Compressor {
    codec: Codec,
    zstd: Option<zstd_safe::CCtx<'static>>,
    frame: Vec<u8>,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor")
            .field("codec", &self.codec)
            .finish_non_exhaustive()
    }
}

impl Compressor {
    /// Sets a codec up; the reason if this version cannot write it.
    pub(super) fn new(compression: Compression, window_log: Option<u8>) -> Result<Self, String> {
        let (codec, zstd) = match compression {
            Compression::Uncompressed => (Codec::Uncompressed, None),
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
                (Codec::Zstd, Some(context))
            }
            other => {
                return Err(format!(
                    "this version writes `uncompressed` and `zstd` files, not {other:?}"
                ));
            }
        };
        Ok(Self {
            codec,
            zstd,
            frame: Vec::new(),
        })
    }

    pub(super) fn codec(&self) -> Codec {
        self.codec
    }

    /// Appends `bytes` compressed to `output`. Always one call with the size known: the bytes then depend on the input, the
    /// options and the version of the codec only.
    pub(super) fn compress(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
        let Some(context) = &mut self.zstd else {
            output.extend_from_slice(bytes);
            return Ok(());
        };
        self.frame.clear();
        self.frame
            .try_reserve(zstd_safe::compress_bound(bytes.len()))
            .map_err(|error| error.to_string())?;
        context
            .compress2(&mut self.frame, bytes)
            .map_err(|code| zstd_safe::get_error_name(code).to_string())?;
        output.extend_from_slice(&self.frame);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        let mut compressor = Compressor::new(Compression::Zstd(3), Some(20)).unwrap();
        compressor.compress(bytes, &mut output).unwrap();
        output
    }

    #[test]
    fn ones_come_out_of_a_dirty_buffer() {
        let mut decompressor = Decompressor::default();
        let mut output = vec![7; 5000];
        for length in [0, 1, 100, 4000, 100_000] {
            let bytes = vec![1; length];
            decompressor
                .decompress(Codec::Zstd, &zstd(&bytes), length as u64, &mut output)
                .unwrap();
            assert_eq!(output, bytes);
        }
    }

    #[test]
    fn claims_that_cannot_be_are_refused_without_memory() {
        let compressed = zstd(&[0; 1000]);
        let mut decompressor = Decompressor::default();
        for claim in [0, 999, 1001, 1 << 40, u64::MAX] {
            let mut output = Vec::new();
            let result = decompressor.decompress(Codec::Zstd, &compressed, claim, &mut output);
            assert!(matches!(result, Err(DecodeError::Damaged(_))), "{claim}");
            assert!(output.capacity() < 10_000);
        }
    }

    #[test]
    fn a_frame_depends_on_the_input_only() {
        let mut compressor = Compressor::new(Compression::Zstd(3), Some(20)).unwrap();
        for text in ["a", "b", "abcabcabcabcabcabc", "", "b"] {
            let mut output = Vec::new();
            compressor.compress(text.as_bytes(), &mut output).unwrap();
            assert_eq!(output, zstd(text.as_bytes()));
        }
    }
}
