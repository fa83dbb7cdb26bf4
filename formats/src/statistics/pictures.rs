//! Sizes of pictures, from the headers of their files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::statistics::lengths::Lengths;

/// Widths, heights, channels and formats of pictures.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Pictures {
    width: Lengths,
    height: Lengths,
    channels: BTreeMap<u8, u64>,
    formats: BTreeMap<String, u64>,
    /// Files whose header says nothing that is known here.
    unknown: u64,
}

impl Pictures {
    pub(super) fn add(&mut self, file: &[u8]) {
        let Some(header) = Header::of(file) else {
            self.unknown += 1;
            return;
        };
        self.width.add(header.width.into());
        self.height.add(header.height.into());
        *self.channels.entry(header.channels).or_default() += 1;
        match self.formats.get_mut(header.format) {
            Some(count) => *count += 1,
            None => {
                self.formats.insert(header.format.to_owned(), 1);
            }
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.width.merge(other.width);
        self.height.merge(other.height);
        for (channels, count) in other.channels {
            *self.channels.entry(channels).or_default() += count;
        }
        for (format, count) in other.formats {
            *self.formats.entry(format).or_default() += count;
        }
        self.unknown += other.unknown;
    }

    /// `width`, `height` as lengths are described, `channels` and `formats` as counts, and `unknown`.
    pub(super) fn describe(&self) -> Value {
        let channels = self
            .channels
            .iter()
            .map(|(channels, count)| (channels.to_string(), json!(count)));
        json!({
            "width": self.width.describe(),
            "height": self.height.describe(),
            "channels": Value::Object(channels.collect()),
            "formats": self.formats,
            "unknown": self.unknown,
        })
    }
}

/// What the header of a picture says. Colours of a palette count as 3 channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    format: &'static str,
    width: u32,
    height: u32,
    channels: u8,
}

impl Header {
    /// Reads the header of a PNG, JPEG, GIF, BMP or WebP file; `None` for anything else, and what is damaged.
    fn of(file: &[u8]) -> Option<Self> {
        match file {
            [0x89, b'P', b'N', b'G', ..] => Self::png(file),
            [0xff, 0xd8, ..] => Self::jpeg(file),
            [b'G', b'I', b'F', b'8', ..] => Some(Self {
                format: "gif",
                width: u16_le(file, 6)?.into(),
                height: u16_le(file, 8)?.into(),
                channels: 3,
            }),
            [b'B', b'M', ..] => Self::bmp(file),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Self::webp(file),
            _ => None,
        }
    }

    /// Source: Portable Network Graphics Specification, 11.2.2.
    fn png(file: &[u8]) -> Option<Self> {
        let side = |at: usize| Some(u32::from_be_bytes(file.get(at..at + 4)?.try_into().ok()?));
        if file.get(12..16)? != b"IHDR" {
            return None;
        }
        Some(Self {
            format: "png",
            width: side(16)?,
            height: side(20)?,
            channels: match file.get(25)? {
                0 => 1,
                2 | 3 => 3,
                4 => 2,
                6 => 4,
                _ => return None,
            },
        })
    }

    /// Source: ITU-T T.81, annex B: segments up to the frame header.
    fn jpeg(file: &[u8]) -> Option<Self> {
        let u16_be = |at: usize| Some(u16::from_be_bytes(file.get(at..at + 2)?.try_into().ok()?));
        let mut at = 2;
        loop {
            if *file.get(at)? != 0xff {
                return None;
            }
            let marker = *file.get(at + 1)?;
            match marker {
                // Fill bytes.
                0xff => at += 1,
                // Segments without a length.
                0x01 | 0xd0..=0xd8 => at += 2,
                // Frames, but for tables and what is reserved.
                0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                    return Some(Self {
                        format: "jpeg",
                        height: u16_be(at + 5)?.into(),
                        width: u16_be(at + 7)?.into(),
                        channels: *file.get(at + 9)?,
                    });
                }
                // The pictures themselves: there was no frame.
                0xd9 | 0xda => return None,
                _ => at += 2 + usize::from(u16_be(at + 2)?),
            }
        }
    }

    /// Source: BITMAPCOREHEADER and BITMAPINFOHEADER in Microsoft's documentation of Windows GDI.
    fn bmp(file: &[u8]) -> Option<Self> {
        let side =
            |at: usize| Some(i32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?).unsigned_abs());
        let (width, height, bits) = match side(14)? {
            12 => (
                u16_le(file, 18)?.into(),
                u16_le(file, 20)?.into(),
                u16_le(file, 24)?,
            ),
            40.. => (side(18)?, side(22)?, u16_le(file, 28)?),
            _ => return None,
        };
        Some(Self {
            format: "bmp",
            width,
            height,
            channels: if bits == 32 { 4 } else { 3 },
        })
    }

    /// Source: RFC 9649, "WebP Image Format", 2.5 to 2.7; RFC 6386, 9.1.
    fn webp(file: &[u8]) -> Option<Self> {
        let u24_le = |at: usize| Some(u32::from(u16_le(file, at)?) | u32::from(*file.get(at + 2)?) << 16);
        let (width, height, alpha) = match file.get(12..16)? {
            b"VP8 " if file.get(23..26)? == [0x9d, 0x01, 0x2a] => {
                let side = |at: usize| Some(u32::from(u16_le(file, at)? & 0x3fff));
                (side(26)?, side(28)?, false)
            }
            b"VP8L" if *file.get(20)? == 0x2f => {
                let bits = u32::from_le_bytes(file.get(21..25)?.try_into().ok()?);
                (
                    (bits & 0x3fff) + 1,
                    (bits >> 14 & 0x3fff) + 1,
                    bits >> 28 & 1 == 1,
                )
            }
            b"VP8X" => (u24_le(24)? + 1, u24_le(27)? + 1, file.get(20)? & 0x10 != 0),
            _ => return None,
        };
        Some(Self {
            format: "webp",
            width,
            height,
            channels: if alpha { 4 } else { 3 },
        })
    }
}

fn u16_le(file: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// The first bytes of files that Pillow 12 wrote: 5 pixels wide, 3 high.
    #[test]
    fn headers_of_files_are_read() {
        let jpeg = |rest: &[u8]| {
            [
                &b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"[..],
                rest,
            ]
            .concat()
        };
        let frame = b"\xff\xdb\0\x04\0\0\xff\xff\xc2\0\x11\x08\0\x03\0\x05\x03";
        let bmp = |bits: u8| {
            let mut file = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x05\0\0\0\xfd\xff\xff\xff\x01\0".to_vec();
            file.extend([bits, 0]);
            file
        };
        let webp = |rest: &[u8]| [&b"RIFF\x24\0\0\0WEBP"[..], rest].concat();
        let gif = b"GIF89a\x05\0\x03\0".to_vec();
        let png = |colour: u8| {
            [
                &b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x05\0\0\0\x03\x08"[..],
                &[colour, 0, 0, 0],
            ]
            .concat()
        };
        for (file, format, channels) in [
            (jpeg(frame), "jpeg", 3),
            (png(0), "png", 1),
            (png(3), "png", 3),
            (png(4), "png", 2),
            (png(6), "png", 4),
            (gif, "gif", 3),
            (bmp(24), "bmp", 3),
            (bmp(32), "bmp", 4),
            (webp(b"VP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x05\0\x03\0"), "webp", 3),
            (webp(b"VP8L\0\0\0\0\x2f\x04\x80\0\x10"), "webp", 4),
            (webp(b"VP8X\x0a\0\0\0\x10\0\0\0\x04\0\0\x02\0\0"), "webp", 4),
        ] {
            let wanted = Header {
                format,
                width: 5,
                height: 3,
                channels,
            };
            assert_eq!(Header::of(&file), Some(wanted));
            for length in 0..file.len() - 3 {
                Header::of(&file[..length]);
            }
        }
        for file in [&b""[..], b"RIFF", b"\xff\xd8\xff\xda\0\x02", b"\x89PNG", b"text"] {
            assert_eq!(Header::of(file), None);
        }
        let mut pictures = Pictures::default();
        pictures.add(&png(6));
        pictures.add(b"text");
        let described = pictures.describe();
        assert_eq!(
            (&described["channels"], &described["unknown"]),
            (&json!({"4": 1}), &json!(1))
        );
        assert_eq!(described["formats"], json!({"png": 1}));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(start in 0usize..6, rest in prop::collection::vec(any::<u8>(), 0..60)) {
            let starts: [&[u8]; 6] = [b"\x89PNG", b"\xff\xd8", b"GIF8", b"BM", b"RIFF\0\0\0\0WEBPVP8X", b""];
            Header::of(&[starts[start], &rest].concat());
        }
    }
}
