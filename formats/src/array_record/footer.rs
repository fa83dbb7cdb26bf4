//! The footer and the postscript: where the chunks are.
//!
//! The footer is a simple chunk whose first record is a `RiegeliFooterMetadata`, followed by an `ArrayRecordFooter` for each chunk; the
//! postscript is one that holds the same `RiegeliPostscript` three times.
//!
//! Source: `cpp/layout.proto` in ArrayRecord.

use crate::array_record::layout::{put_varint, take_varint};

/// Marks a postscript. Source: `kMagic` in `cpp/layout.h`; a field of the postscript.
pub(super) const MAGIC: u64 = 0x7193_0e70_4fda_e05e;
/// The only version there is.
const VERSION: u64 = 1;
/// Times that the postscript is written in its chunk.
pub(super) const POSTSCRIPT_COPIES: usize = 3;
/// Most bytes that an entry of the footer takes: three fields of at most 11 bytes, and some for fields of the future.
pub(super) const MAX_ENTRY_BYTES: u64 = 64;
/// Most bytes taken for the metadata, whose option string is about 120 bytes.
pub(super) const MAX_METADATA_BYTES: u64 = 1 << 16;

/// One chunk of records, as the footer describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Entry {
    pub(super) chunk_offset: u64,
    pub(super) decoded_data_size: u64,
    pub(super) num_records: u64,
}

impl Entry {
    pub(super) fn put(self, bytes: &mut Vec<u8>) {
        for (tag, value) in [
            (0x08, self.chunk_offset),
            (0x10, self.decoded_data_size),
            (0x18, self.num_records),
        ] {
            bytes.push(tag);
            put_varint(bytes, value);
        }
    }

    /// `None` where the bytes are not an `ArrayRecordFooter`.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        // The order that every writer uses; anything else takes the general way.
        let mut rest = bytes;
        let mut field = |tag: u8| -> Option<u64> {
            let (&found, after_tag) = rest.split_first()?;
            rest = after_tag;
            if found == tag {
                take_varint(&mut rest)
            } else {
                None
            }
        };
        if let (Some(chunk_offset), Some(decoded_data_size), Some(num_records)) =
            (field(0x08), field(0x10), field(0x18))
            && rest.is_empty()
        {
            return Some(Self {
                chunk_offset,
                decoded_data_size,
                num_records,
            });
        }
        let mut entry = Self::default();
        for_each_field(bytes, |number, field| match (number, field) {
            (1, Field::Number(value)) => entry.chunk_offset = value,
            (2, Field::Number(value)) => entry.decoded_data_size = value,
            (3, Field::Number(value)) => entry.num_records = value,
            _ => {}
        })?;
        Some(entry)
    }
}

/// What the footer says about the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Metadata {
    pub(super) num_chunks: u64,
    pub(super) num_records: u64,
    /// As the writer recorded its options; empty in old files.
    pub(super) writer_options: String,
}

impl Metadata {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut inner = vec![0x08];
        put_varint(&mut inner, VERSION);
        inner.push(0x10);
        put_varint(&mut inner, self.num_chunks);
        inner.push(0x18);
        put_varint(&mut inner, self.num_records);
        inner.push(0x22);
        put_varint(&mut inner, self.writer_options.len() as u64);
        inner.extend_from_slice(self.writer_options.as_bytes());
        let mut bytes = vec![0x0a];
        put_varint(&mut bytes, inner.len() as u64);
        bytes.extend_from_slice(&inner);
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        const NOT_METADATA: &str =
            "the first record of the footer is not the metadata of an ArrayRecord file";
        let mut inner = None;
        for_each_field(bytes, |number, field| {
            if let (1, Field::Bytes(bytes)) = (number, field) {
                inner = Some(bytes);
            }
        })
        .ok_or(NOT_METADATA)?;
        let (mut metadata, mut version) = (Self::default(), None);
        for_each_field(inner.ok_or(NOT_METADATA)?, |number, field| {
            match (number, field) {
                (1, Field::Number(value)) => version = Some(value),
                (2, Field::Number(value)) => metadata.num_chunks = value,
                (3, Field::Number(value)) => metadata.num_records = value,
                (4, Field::Bytes(text)) => {
                    metadata.writer_options = String::from_utf8_lossy(text).into_owned()
                }
                _ => {}
            }
        })
        .ok_or(NOT_METADATA)?;
        match version {
            Some(VERSION) => Ok(metadata),
            Some(other) => Err(format!(
                "the footer has format version {other}, this program reads version {VERSION}"
            )),
            None => Err(format!("the footer has no format version, {VERSION} was wanted")),
        }
    }
}

/// One postscript of a file whose footer begins at `footer_offset`.
pub(super) fn postscript_to_bytes(footer_offset: u64) -> Vec<u8> {
    let mut bytes = vec![0x08];
    put_varint(&mut bytes, footer_offset);
    bytes.push(0x10);
    put_varint(&mut bytes, MAGIC);
    bytes
}

/// The footer's offset in a postscript.
pub(super) fn parse_postscript(bytes: &[u8]) -> Result<u64, String> {
    let (mut footer_offset, mut magic) = (None, None);
    for_each_field(bytes, |number, field| match (number, field) {
        (1, Field::Number(value)) => footer_offset = Some(value),
        (2, Field::Number(value)) => magic = Some(value),
        _ => {}
    })
    .ok_or("the postscript is not what an ArrayRecord file ends with")?;
    if magic != Some(MAGIC) {
        return Err(format!(
            "the postscript's magic number is {:#x}, wanted {MAGIC:#x}",
            magic.unwrap_or(0)
        ));
    }
    footer_offset.ok_or_else(|| "the postscript does not say where the footer is".to_string())
}

/// A protobuf field that matters here.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Walks over the fields of a protobuf message; `None` where it is malformed.
fn for_each_field<'a>(mut bytes: &'a [u8], mut visit: impl FnMut(u64, Field<'a>)) -> Option<()> {
    while !bytes.is_empty() {
        let tag = take_varint(&mut bytes)?;
        let number = tag >> 3;
        if number == 0 || number >= 1 << 29 {
            return None;
        }
        match tag & 7 {
            0 => visit(number, Field::Number(take_varint(&mut bytes)?)),
            1 => bytes = bytes.get(8..)?,
            2 => {
                let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
                visit(number, Field::Bytes(bytes.get(..length)?));
                bytes = &bytes[length..];
            }
            5 => bytes = bytes.get(4..)?,
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_and_metadata_round_trip(a: u64, b: u64, c: u64, text in ".{0,40}") {
            let entry = Entry { chunk_offset: a, decoded_data_size: b, num_records: c };
            let mut bytes = Vec::new();
            entry.put(&mut bytes);
            prop_assert!(bytes.len() as u64 <= MAX_ENTRY_BYTES);
            prop_assert_eq!(Entry::parse(&bytes), Some(entry));
            // In another order, with an unknown field.
            let mut reordered = vec![0x18];
            put_varint(&mut reordered, c);
            reordered.extend([0x22, 2, 9, 9, 0x08]);
            put_varint(&mut reordered, a);
            reordered.push(0x10);
            put_varint(&mut reordered, b);
            prop_assert_eq!(Entry::parse(&reordered), Some(entry));
            let metadata = Metadata { num_chunks: a, num_records: b, writer_options: text };
            prop_assert_eq!(Metadata::parse(&metadata.to_bytes()), Ok(metadata));
            prop_assert_eq!(parse_postscript(&postscript_to_bytes(a)), Ok(a));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = (Entry::parse(&bytes), parse_postscript(&bytes));
            if let Ok(metadata) = Metadata::parse(&bytes) {
                prop_assert!(metadata.writer_options.len() <= bytes.len() * 3);
            }
        }
    }

    #[test]
    fn versions_other_than_1_are_refused() {
        let bytes = Metadata::default().to_bytes();
        assert!(Metadata::parse(&bytes).is_ok());
        let mut other = bytes.clone();
        other[3] = 2;
        assert!(Metadata::parse(&other).unwrap_err().contains("version 2"));
        assert!(
            Metadata::parse(&[0x0a, 2, 0x10, 1])
                .unwrap_err()
                .contains("no format version")
        );
        assert!(Metadata::parse(b"text").is_err());
        assert!(
            parse_postscript(&[0x08, 64, 0x10, 5])
                .unwrap_err()
                .contains("magic")
        );
    }
}
