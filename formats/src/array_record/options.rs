//! How records are grouped and compressed: Google's option strings.
//!
//! Source: `ArrayRecordWriterBase::Options::FromString` in ArrayRecord, `cpp/array_record_writer.cc`, and its answers for about fifty
//! strings.

use std::fmt;

use crate::{Error, Result};

/// How the bytes of a chunk are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// As they are.
    Uncompressed,
    /// Zstandard at a level from -131072 to 22.
    Zstd(i32),
    /// Brotli at a level from 0 to 11.
    Brotli(i32),
    /// Snappy.
    Snappy,
}

/// How records are grouped and compressed; parsed from and shown as Google's option string.
///
/// # Examples
///
/// ```
/// use prep_formats::array_record::WriteOptions;
///
/// let options = WriteOptions::parse("group_size:1,zstd:3")?;
/// assert_eq!(
///     options.to_string(),
///     "group_size:1,transpose:false,pad_to_block_boundary:false,zstd:3,window_log:20,max_parallelism:1"
/// );
/// assert!(WriteOptions::parse("zstd:23").is_err());
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    group_size: u32,
    transpose: bool,
    transpose_bucket_size: Option<u64>,
    compression: Compression,
    window_log: Option<u8>,
    pad_to_block_boundary: bool,
    max_parallelism: Option<u32>,
    saturation_delay_ms: Option<u32>,
}

impl Default for WriteOptions {
    /// Google's defaults: one record a chunk, zstd at level 3.
    fn default() -> Self {
        Self {
            group_size: 1,
            transpose: false,
            transpose_bucket_size: None,
            compression: Compression::Zstd(3),
            window_log: None,
            pad_to_block_boundary: false,
            max_parallelism: None,
            saturation_delay_ms: None,
        }
    }
}

/// The names Google's parser knows, in the order of its messages.
const NAMES: [&str; 12] = [
    "default",
    "group_size",
    "max_parallelism",
    "saturation_delay_ms",
    "transpose",
    "transpose_bucket_size",
    "uncompressed",
    "brotli",
    "zstd",
    "snappy",
    "window_log",
    "pad_to_block_boundary",
];

impl WriteOptions {
    /// One record a chunk, no compression.
    pub fn uncompressed() -> Self {
        Self {
            compression: Compression::Uncompressed,
            ..Self::default()
        }
    }

    /// Parses an option string such as `group_size:1,zstd:3`, `uncompressed`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for what Google's parser refuses: unknown and repeated names, values out of range, two
    /// compressions, a window where the compression has none.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |reason: String| Error::Invalid(format!("options `{text}`: {reason}"));
        let mut options = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        let mut compression_name: Option<&str> = None;
        for part in text.split(',') {
            if part.is_empty() {
                continue;
            }
            let (name, value) = part.split_once(':').unwrap_or((part, ""));
            let Some(&name) = NAMES.iter().find(|known| **known == name) else {
                return Err(invalid(format!(
                    "unknown option `{name}`; known are {}",
                    NAMES.map(|name| format!("`{name}`")).join(", ")
                )));
            };
            if seen.contains(&name) {
                return Err(invalid(format!("`{name}` is there twice")));
            }
            if name == "default" && !seen.is_empty() {
                return Err(invalid("`default` comes first or not at all".into()));
            }
            seen.push(name);
            let number = |min: i64, max: i64| {
                let found = trim(value)
                    .parse::<i64>()
                    .ok()
                    .filter(|n| (min..=max).contains(n));
                found.ok_or_else(|| {
                    invalid(format!(
                        "`{name}` is `{value}`, wanted a whole number from {min} to {max}"
                    ))
                })
            };
            let bare = || match value {
                "" => Ok(()),
                _ => Err(invalid(format!("`{name}` takes no value, found `{value}`"))),
            };
            match name {
                // Whatever its value, in Google's parser as well.
                "default" => {}
                "group_size" => options.group_size = number(1, i64::from(i32::MAX))? as u32,
                "max_parallelism" if value == "auto" => options.max_parallelism = None,
                "max_parallelism" => options.max_parallelism = Some(number(1, i64::from(i32::MAX))? as u32),
                "saturation_delay_ms" => {
                    options.saturation_delay_ms = Some(number(1, i64::from(i32::MAX))? as u32);
                }
                "transpose" => {
                    options.transpose = match value {
                        "" | "true" => true,
                        "false" => false,
                        _ => {
                            return Err(invalid(format!(
                                "`transpose` is `{value}`, wanted `true` or `false`"
                            )));
                        }
                    };
                }
                "transpose_bucket_size" if value == "auto" => options.transpose_bucket_size = None,
                "transpose_bucket_size" => {
                    options.transpose_bucket_size = Some(parse_bytes(value).ok_or_else(|| {
                        invalid(format!(
                            "`transpose_bucket_size` is `{value}`, wanted `auto` or a size from 1 such as `256`, `1.5k`, `1M`"
                        ))
                    })?);
                }
                "window_log" if value == "auto" => options.window_log = None,
                "window_log" => options.window_log = Some(number(10, 31)? as u8),
                // A bare name sets nothing, in Google's parser as well.
                "pad_to_block_boundary" => {
                    options.pad_to_block_boundary = match value {
                        "true" => true,
                        "" | "false" => false,
                        _ => {
                            return Err(invalid(format!(
                                "`pad_to_block_boundary` is `{value}`, wanted `true` or `false`"
                            )));
                        }
                    };
                }
                compression => {
                    if let Some(other) = compression_name {
                        return Err(invalid(format!(
                            "`{compression}` and `{other}` exclude each other"
                        )));
                    }
                    compression_name = Some(compression);
                    options.compression = match compression {
                        "zstd" if value.is_empty() => Compression::Zstd(3),
                        "zstd" => Compression::Zstd(number(-131_072, 22)? as i32),
                        "brotli" if value.is_empty() => Compression::Brotli(6),
                        "brotli" => Compression::Brotli(number(0, 11)? as i32),
                        "snappy" if value.is_empty() => Compression::Snappy,
                        "snappy" => number(1, 2).map(|_| Compression::Snappy)?,
                        _ => {
                            bare()?;
                            Compression::Uncompressed
                        }
                    };
                }
            }
        }
        match (options.compression, options.window_log) {
            (Compression::Brotli(_), Some(window_log)) if window_log > 30 => Err(invalid(format!(
                "`window_log` is `{window_log}`, wanted a whole number from 10 to 30"
            ))),
            (Compression::Uncompressed | Compression::Snappy, _) if seen.contains(&"window_log") => Err(
                invalid("`window_log` is for `zstd` and `brotli`; leave it out".into()),
            ),
            _ => Ok(options),
        }
    }

    /// Records in a chunk; the last chunk may have fewer.
    pub fn group_size(&self) -> u32 {
        self.group_size
    }

    /// Whether chunks are transposed.
    pub fn transpose(&self) -> bool {
        self.transpose
    }

    /// Bytes of like fields that a transposed chunk compresses together, about. Small ones make reading few fields cheap.
    pub fn transpose_bucket_size(&self) -> u64 {
        // Source: the default of `transpose_bucket_size` in `cpp/array_record_writer.h`.
        self.transpose_bucket_size.unwrap_or(256)
    }

    /// How chunks are compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Whether each chunk begins at a block boundary, at the price of up to 64 KiB a chunk.
    pub fn pad_to_block_boundary(&self) -> bool {
        self.pad_to_block_boundary
    }

    /// Most threads that encode chunks; `None` for `auto`.
    pub fn max_parallelism(&self) -> Option<u32> {
        self.max_parallelism
    }

    /// Sets the most threads that encode chunks: 1 for the caller's alone, `None` for `auto`, the default. Does not change the bytes
    /// of a file.
    #[must_use]
    pub fn with_max_parallelism(mut self, max_parallelism: Option<u32>) -> Self {
        self.max_parallelism = max_parallelism.map(|most| most.max(1));
        self
    }

    /// Base-2 logarithm of the farthest distance that the codec looks back.
    pub(super) fn window_log(&self) -> Option<u8> {
        match self.compression {
            // Source: ArrayRecord sets 20 for zstd unless told otherwise, as its footers show.
            Compression::Zstd(_) => Some(self.window_log.unwrap_or(20)),
            Compression::Brotli(_) => self.window_log,
            _ => None,
        }
    }
}

/// As Google's writer records them in the footer of a file.
impl fmt::Display for WriteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "group_size:{},transpose:{},pad_to_block_boundary:{},",
            self.group_size, self.transpose, self.pad_to_block_boundary
        )?;
        if self.transpose {
            write!(f, "transpose_bucket_size:{},", self.transpose_bucket_size())?;
        }
        match self.compression {
            Compression::Uncompressed => f.write_str("uncompressed")?,
            Compression::Zstd(level) => write!(f, "zstd:{level}")?,
            Compression::Brotli(level) => write!(f, "brotli:{level}")?,
            Compression::Snappy => f.write_str("snappy")?,
        }
        if let Some(window_log) = self.window_log() {
            write!(f, ",window_log:{window_log}")?;
        }
        // Bytes are the same whatever the parallelism, and so is what is said about it.
        f.write_str(",max_parallelism:1")
    }
}

/// Without the white space of ASCII at both ends, as Google's parser takes numbers; names and words it takes as they are.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b')
}

/// A size of at least 1: a real number and a suffix of `BkKMGTPE`, powers of 1024. What is too large is as large as can be.
fn parse_bytes(text: &str) -> Option<u64> {
    let (number, factor) = match text.char_indices().last()? {
        (at, suffix) if suffix.is_ascii_alphabetic() => {
            let factor = match suffix {
                'B' => 1,
                'k' | 'K' => 1 << 10,
                'M' => 1 << 20,
                'G' => 1 << 30,
                'T' => 1 << 40,
                'P' => 1 << 50,
                'E' => 1u64 << 60,
                // `inf`, perhaps.
                _ => 0,
            };
            if factor == 0 {
                (text, 1)
            } else {
                (&text[..at], factor)
            }
        }
        _ => (text, 1),
    };
    let number = trim(number);
    if let Ok(whole) = number.parse::<u64>() {
        return Some(whole.saturating_mul(factor)).filter(|bytes| *bytes > 0);
    }
    let bytes = (number.parse::<f64>().ok()? * factor as f64).round();
    // Conversion stops at the largest number.
    (bytes >= 1.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: &str =
        "group_size:1,transpose:false,pad_to_block_boundary:false,zstd:3,window_log:20,max_parallelism:1";

    #[test]
    fn strings_are_recorded_as_google_records_them() {
        let cases = [
            ("", DEFAULT),
            (",", DEFAULT),
            ("group_size:1 ", DEFAULT),
            ("group_size:1,,zstd", DEFAULT),
            ("default,zstd:3", DEFAULT),
            ("pad_to_block_boundary", DEFAULT),
            ("pad_to_block_boundary:", DEFAULT),
            ("transpose_bucket_size:1.5k", DEFAULT),
            ("max_parallelism:auto", DEFAULT),
            (",default:1,group_size: 1", DEFAULT),
            ("zstd:+3 ", DEFAULT),
            (
                "transpose:,transpose_bucket_size:1e3k",
                "group_size:1,transpose:true,pad_to_block_boundary:false,transpose_bucket_size:1024000,zstd:3,window_log:20,max_parallelism:1",
            ),
            (
                "transpose:true,transpose_bucket_size:16E,snappy",
                "group_size:1,transpose:true,pad_to_block_boundary:false,transpose_bucket_size:18446744073709551615,snappy,max_parallelism:1",
            ),
            ("saturation_delay_ms:5", DEFAULT),
            (
                "snappy:1",
                "group_size:1,transpose:false,pad_to_block_boundary:false,snappy,max_parallelism:1",
            ),
            (
                "uncompressed,group_size:256",
                "group_size:256,transpose:false,pad_to_block_boundary:false,uncompressed,max_parallelism:1",
            ),
            (
                "group_size:256,transpose:true,transpose_bucket_size:1M,brotli",
                "group_size:256,transpose:true,pad_to_block_boundary:false,transpose_bucket_size:1048576,brotli:6,max_parallelism:1",
            ),
            (
                "zstd:-5,group_size:2,window_log:27,pad_to_block_boundary:true",
                "group_size:2,transpose:false,pad_to_block_boundary:true,zstd:-5,window_log:27,max_parallelism:1",
            ),
        ];
        for (text, recorded) in cases {
            let options = WriteOptions::parse(text).unwrap();
            assert_eq!(options.to_string(), recorded, "{text}");
            assert_eq!(WriteOptions::parse(recorded).unwrap().to_string(), recorded);
        }
    }

    #[test]
    fn what_google_refuses_is_refused() {
        for text in [
            "zstd:23",
            "zstd:-131073",
            "brotli:12",
            "uncompressed,window_log:20",
            "snappy,window_log:20",
            "group_size:0",
            "group_size:-1",
            "group_size:2147483648",
            "zstd:3,window_log:9",
            "zstd:3,window_log:32",
            "brotli:3,window_log:31",
            "transpose:maybe",
            "gzip",
            "zstd:3,brotli:6",
            "group_size:1,group_size:2",
            "max_parallelism:0",
            "transpose_bucket_size:0",
            "transpose_bucket_size:-1",
            "transpose_bucket_size:1x",
            "transpose_bucket_size:k",
            "transpose_bucket_size:0.4",
            "transpose_bucket_size:nan",
            "zstd,default",
            " group_size:1",
            "group_size :1",
            "transpose: true",
            "max_parallelism:auto ",
            "uncompressed: ",
            "uncompressed,window_log:auto",
            "window_log:auto,snappy",
            ":",
            " ",
            ", ,zstd",
            "zstd:3\u{a0}",
            "uncompressed:1",
            "snappy:3",
            "saturation_delay_ms:0",
        ] {
            let error = WriteOptions::parse(text).unwrap_err();
            assert!(
                error.to_string().starts_with(&format!("options `{text}`: ")),
                "{error}"
            );
        }
    }
}
