//! Protocol Buffers on the wire: varints, fields, and the nesting of `tf.train.Example`.

use crate::example::varint::{count_packed, decode_packed};
use crate::{Error, Result};

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64,
    /// Wire type 2.
    Bytes(&'a [u8]),
    /// Wire type 5.
    Fixed32([u8; 4]),
    /// Wire types 3 and 4, which nothing in an example uses.
    Group,
}

/// Groups inside groups that are skipped before the bytes are refused. Source: Protocol Buffers' default depth limit.
const MAX_DEPTH: u32 = 100;

/// Walks over the fields of a message.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field's number and contents, `None` at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Field<'a>)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.tag()?;
        match tag & 7 {
            2 => Ok(Some((tag >> 3, Field::Bytes(self.bytes()?)))),
            _ => self.rare(tag).map(Some),
        }
    }

    #[inline]
    fn tag(&mut self) -> Result<u32> {
        let tag = self.short_varint()?;
        match u32::try_from(tag) {
            Ok(tag) if tag >= 8 => Ok(tag),
            _ => Err(Error::damaged(format!(
                "field tag is {tag}, wanted a field number of 1 to 536870911"
            ))),
        }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => {
                let (value, length) = long_varint(self.rest)?;
                self.rest = &self.rest[length..];
                Ok(value)
            }
        }
    }

    /// The varint of a tag or a length, which may have 5 bytes, needed or not. Source: `protobuf` 7.36.2 (upb) refuses more.
    #[inline]
    fn short_varint(&mut self) -> Result<u64> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => {
                let (value, length) = long_varint(self.rest)?;
                if length > 5 {
                    return Err(Error::damaged(format!(
                        "the varint of a tag or a length has {length} bytes, wanted 5 or fewer"
                    )));
                }
                self.rest = &self.rest[length..];
                Ok(value)
            }
        }
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.short_varint()?;
        match usize::try_from(length) {
            Ok(length) if length <= self.rest.len() => {
                let (bytes, rest) = self.rest.split_at(length);
                self.rest = rest;
                Ok(bytes)
            }
            _ => Err(Error::damaged(format!(
                "a field of {length} bytes, but only {} follow",
                self.rest.len()
            ))),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.rest.split_first_chunk::<N>() {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(*bytes)
            }
            None => Err(Error::damaged(format!(
                "a field of {N} bytes, but only {} follow",
                self.rest.len()
            ))),
        }
    }

    #[cold]
    fn rare(&mut self, tag: u32) -> Result<(u32, Field<'a>)> {
        let number = tag >> 3;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take::<8>().map(|_| Field::Fixed64)?,
            5 => Field::Fixed32(self.take()?),
            3 => {
                self.skip_group(number)?;
                Field::Group
            }
            wire_type => {
                return Err(Error::damaged(format!(
                    "field {number} has wire type {wire_type}, wanted 0, 1, 2, 3 or 5"
                )));
            }
        };
        Ok((number, field))
    }

    /// Skips to the end of the group that began with `number`, groups inside it included.
    fn skip_group(&mut self, number: u32) -> Result<()> {
        let mut open = vec![number];
        while let Some(&innermost) = open.last() {
            if self.rest.is_empty() {
                return Err(Error::damaged(format!("group {innermost} has no end")));
            }
            // Inside a skipped group Protocol Buffers (upb) take field number 0 as well.
            let tag = self.short_varint()?;
            let tag = u32::try_from(tag)
                .map_err(|_| Error::damaged(format!("field tag is {tag} inside group {innermost}")))?;
            match tag & 7 {
                0 => drop(self.varint()?),
                1 => drop(self.take::<8>()?),
                2 => drop(self.bytes()?),
                3 if open.len() < MAX_DEPTH as usize => open.push(tag >> 3),
                4 if tag >> 3 == innermost => drop(open.pop()),
                5 => drop(self.take::<4>()?),
                wire_type => {
                    return Err(Error::damaged(format!(
                        "field {} of wire type {wire_type} inside group {innermost}",
                        tag >> 3
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Reads a varint of up to ten bytes: value and length. Bits beyond the 64th are dropped, as Protocol Buffers do.
#[inline(never)]
pub(crate) fn long_varint(bytes: &[u8]) -> Result<(u64, usize)> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Ok((value, index + 1));
        }
    }
    Err(Error::damaged(if bytes.len() < 10 {
        "a varint is cut short"
    } else {
        "a varint is longer than 10 bytes"
    }))
}

/// Appends `value` as a varint.
#[inline]
pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Length of `value` as a varint: 1 to 10.
#[inline]
pub(crate) fn varint_length(value: u64) -> usize {
    // One byte for each 7 bits begun, and one for zero.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// The kind of a feature's list, by its field number in `Feature`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bytes = 1,
    Float = 2,
    Int64 = 3,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "byte strings",
            Self::Float => "floats",
            Self::Int64 => "integers",
        }
    }
}

/// The lists of one feature: nearly always one message, but parts of a list may come one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts<'a> {
    pub(crate) first: &'a [u8],
    pub(crate) rest: Vec<&'a [u8]>,
}

impl<'a> Parts<'a> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a, '_> {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }
}

/// Goes over the entries of an example in the order of the bytes, names that come again included.
#[derive(Debug, Clone)]
pub(crate) struct Entries<'a> {
    example: Fields<'a>,
    features: Fields<'a>,
}

/// A name, and the lists of its kind, if it has one.
pub(crate) type Entry<'a> = (&'a [u8], Option<(Kind, Parts<'a>)>);

impl<'a> Entries<'a> {
    pub(crate) fn new(record: &'a [u8]) -> Self {
        Self {
            example: Fields::new(record),
            features: Fields::new(&[]),
        }
    }

    /// The entries of one `Features` message.
    pub(crate) fn of_features(features: &'a [u8]) -> Self {
        Self {
            example: Fields::new(&[]),
            features: Fields::new(features),
        }
    }

    /// The next entry, `None` at the end. Names are not checked to be UTF-8, nor lists to be well-formed.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'a>>> {
        loop {
            match self.features.next()? {
                Some((1, Field::Bytes(entry))) => match parse_entry(entry)? {
                    Some(entry) => return Ok(Some(entry)),
                    None => continue,
                },
                Some(_) => continue,
                None => {}
            }
            match self.example.next()? {
                Some((1, Field::Bytes(features))) => self.features = Fields::new(features),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

/// A map entry; `None` if it has fields other than name and value, which Google's Protocol Buffers keep as an unknown
/// field of `Features` as a whole. Source: `protobuf` 7.36.2 (upb) on `unknown_fields.example` of the golden files.
#[inline]
fn parse_entry(entry: &[u8]) -> Result<Option<Entry<'_>>> {
    let mut name: Option<&[u8]> = None;
    let mut value = None;
    let mut known = true;
    let mut fields = Fields::new(entry);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(bytes)) => {
                if let Some(before) = name.replace(bytes) {
                    utf8(before)?;
                }
            }
            (2, Field::Bytes(feature)) => merge_feature(feature, &mut value)?,
            _ => known = false,
        }
    }
    let name = name.unwrap_or_default();
    if !known {
        utf8(name)?;
        check_dropped(&value)?;
        return Ok(None);
    }
    Ok(Some((name, value)))
}

/// A name, which has to be text.
pub(crate) fn utf8(name: &[u8]) -> Result<&str> {
    std::str::from_utf8(name)
        .map_err(|_| Error::damaged(format!("feature name `{}` is not UTF-8", name.escape_ascii())))
}

/// Checks a feature that does not count: Protocol Buffers refuse it all the same if it is malformed.
#[cold]
pub(crate) fn check_dropped(value: &Option<(Kind, Parts<'_>)>) -> Result<()> {
    let Some((kind, parts)) = value else {
        return Ok(());
    };
    parts.iter().try_for_each(|list| match kind {
        Kind::Bytes => each_bytes(list, |_| {}),
        Kind::Float => each_float_run(list, |_| {}),
        Kind::Int64 => count_int64(list).map(drop),
    })
}

/// Adds a `Feature` message: the same kind goes on the list, another one replaces it.
#[inline]
pub(crate) fn merge_feature<'a>(feature: &'a [u8], value: &mut Option<(Kind, Parts<'a>)>) -> Result<()> {
    let mut fields = Fields::new(feature);
    while let Some(field) = fields.next()? {
        let (kind, list) = match field {
            (1, Field::Bytes(list)) => (Kind::Bytes, list),
            (2, Field::Bytes(list)) => (Kind::Float, list),
            (3, Field::Bytes(list)) => (Kind::Int64, list),
            _ => continue,
        };
        match value {
            Some((before, parts)) if *before == kind => parts.rest.push(list),
            _ => {
                if value.is_some() {
                    check_dropped(value)?;
                }
                *value = Some((
                    kind,
                    Parts {
                        first: list,
                        rest: Vec::new(),
                    },
                ));
            }
        }
    }
    Ok(())
}

/// Calls `each` with every byte string of a `BytesList`.
#[inline]
pub(crate) fn each_bytes<'a>(list: &'a [u8], mut each: impl FnMut(&'a [u8])) -> Result<()> {
    let mut fields = Fields::new(list);
    while let Some(field) = fields.next()? {
        if let (1, Field::Bytes(bytes)) = field {
            each(bytes);
        }
    }
    Ok(())
}

/// Calls `each` with every run of packed floats of a `FloatList`, 4 bytes each, little-endian.
#[inline]
pub(crate) fn each_float_run(list: &[u8], mut each: impl FnMut(&[[u8; 4]])) -> Result<()> {
    let mut fields = Fields::new(list);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(packed)) => {
                let (floats, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(Error::damaged(format!(
                        "packed floats have {} bytes, wanted a multiple of 4",
                        packed.len()
                    )));
                }
                each(floats);
            }
            (1, Field::Fixed32(float)) => each(&[float]),
            _ => {}
        }
    }
    Ok(())
}

/// Calls `each` with every value of an `Int64List`: for the few of small lists, [`append_int64`] is for many.
#[inline]
pub(crate) fn each_int64(list: &[u8], mut each: impl FnMut(i64)) -> Result<()> {
    let mut fields = Fields::new(list);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(packed)) => {
                let mut rest = packed;
                while !rest.is_empty() {
                    let (value, length) = match *rest {
                        [byte, ..] if byte < 0x80 => (u64::from(byte), 1),
                        _ => long_varint(rest)?,
                    };
                    each(value.cast_signed());
                    rest = &rest[length..];
                }
            }
            (1, Field::Varint(value)) => each(value.cast_signed()),
            _ => {}
        }
    }
    Ok(())
}

/// How many values an `Int64List` has; checks it.
#[inline]
pub(crate) fn count_int64(list: &[u8]) -> Result<usize> {
    let mut count = 0;
    let mut fields = Fields::new(list);
    while let Some(field) = fields.next()? {
        count += match field {
            (1, Field::Bytes(packed)) => count_packed(packed)?,
            (1, Field::Varint(_)) => 1,
            _ => 0,
        };
    }
    Ok(count)
}

/// Appends the values of an `Int64List`, of which there are `count` by [`count_int64`].
#[inline]
pub(crate) fn append_counted_int64(list: &[u8], count: usize, values: &mut Vec<i64>) -> Result<()> {
    // One packed field, as all writers make it: it need not be counted again.
    let mut fields = Fields::new(list);
    if let Some((1, Field::Bytes(packed))) = fields.next()?
        && fields.rest.is_empty()
    {
        let start = values.len();
        values.resize(start + count, 0);
        decode_packed(packed, &mut values[start..], u64::cast_signed);
        return Ok(());
    }
    append_int64(list, values)
}

/// Appends the values of an `Int64List`.
#[inline]
pub(crate) fn append_int64(list: &[u8], values: &mut Vec<i64>) -> Result<()> {
    let mut fields = Fields::new(list);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(packed)) => {
                let start = values.len();
                values.resize(start + count_packed(packed)?, 0);
                decode_packed(packed, &mut values[start..], u64::cast_signed);
            }
            (1, Field::Varint(value)) => values.push(value.cast_signed()),
            _ => {}
        }
    }
    Ok(())
}

/// Appends one map entry of `Features`: tag, length, name, and a feature of `kind` whose list message is
/// `list_length` bytes long and appended by `list`.
pub(crate) fn put_entry(
    name: &str,
    kind: Option<Kind>,
    list_length: usize,
    out: &mut Vec<u8>,
    list: impl FnOnce(&mut Vec<u8>),
) {
    let feature_length = feature_length(kind, list_length);
    put_entry_header(name, feature_length, out);
    put_feature(kind, list_length, out, list);
}

/// Appends a map entry up to its value, a message of `length` bytes.
pub(crate) fn put_entry_header(name: &str, length: usize, out: &mut Vec<u8>) {
    let name_length = 1 + varint_length(name.len() as u64) + name.len();
    let entry_length = name_length + 1 + varint_length(length as u64) + length;
    out.push(0x0a);
    put_varint(entry_length as u64, out);
    out.push(0x0a);
    put_varint(name.len() as u64, out);
    out.extend_from_slice(name.as_bytes());
    out.push(0x12);
    put_varint(length as u64, out);
}

/// Length of a `Feature` message.
pub(crate) fn feature_length(kind: Option<Kind>, list_length: usize) -> usize {
    match kind {
        Some(_) => 1 + varint_length(list_length as u64) + list_length,
        None => 0,
    }
}

/// Appends a `Feature` message, without tag and length.
pub(crate) fn put_feature(
    kind: Option<Kind>,
    list_length: usize,
    out: &mut Vec<u8>,
    list: impl FnOnce(&mut Vec<u8>),
) {
    if let Some(kind) = kind {
        out.push((kind as u8) << 3 | 2);
        put_varint(list_length as u64, out);
        let before = out.len();
        list(out);
        debug_assert_eq!(out.len() - before, list_length, "list length was announced");
    }
}

/// Puts the tag and length of the `Features` message before what was appended since `start`.
pub(crate) fn close_example(start: usize, out: &mut Vec<u8>) {
    close_message(0x0a, start, out);
}

/// Puts a tag and the length of what was appended since `start` before it.
pub(crate) fn close_message(tag: u8, start: usize, out: &mut Vec<u8>) {
    let body = out.len() - start;
    let mut header = [0u8; 11];
    header[0] = tag;
    let mut length = 1;
    let mut value = body;
    while value >= 0x80 {
        header[length] = value as u8 | 0x80;
        value >>= 7;
        length += 1;
    }
    header[length] = value as u8;
    length += 1;
    out.resize(out.len() + length, 0);
    out.copy_within(start..start + body, start + length);
    out[start..start + length].copy_from_slice(&header[..length]);
}

/// Length of a list message of byte strings.
pub(crate) fn bytes_list_length<'a>(values: impl Iterator<Item = &'a [u8]>) -> usize {
    values
        .map(|value| 1 + varint_length(value.len() as u64) + value.len())
        .sum()
}

/// Length of a message with one packed field of `length` bytes; an empty list has no field.
pub(crate) fn packed_length(length: usize) -> usize {
    match length {
        0 => 0,
        length => 1 + varint_length(length as u64) + length,
    }
}

/// Appends tag and length of a packed field, unless it is empty.
pub(crate) fn put_packed_header(length: usize, out: &mut Vec<u8>) {
    if length > 0 {
        out.push(0x0a);
        put_varint(length as u64, out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(values: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &value in values {
            put_varint(value, &mut bytes);
        }
        bytes
    }

    proptest! {
        #[test]
        fn lists_of_integers_read_as_one_by_one(list in prop::collection::vec(prop_oneof![any::<u8>(), Just(0x0a), Just(8), Just(3)], 0..64)) {
            let mut slow = Vec::new();
            let result = each_int64(&list, |value| slow.push(value));
            let mut fast = Vec::new();
            let appended = append_int64(&list, &mut fast);
            prop_assert_eq!(result.is_err(), appended.is_err());
            prop_assert_eq!(count_int64(&list).ok(), appended.is_ok().then_some(fast.len()));
            if result.is_ok() {
                prop_assert_eq!(fast, slow);
            }
        }

        #[test]
        fn any_bytes_are_walked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut fields = Fields::new(&bytes);
            let mut seen = 0;
            while let Ok(Some(_)) = fields.next() {
                seen += 1;
            }
            prop_assert!(seen <= bytes.len());
        }
    }

    #[test]
    fn groups_are_skipped_with_what_is_inside() {
        // Group 2 { varint 1: 5, group 3 {} , bytes 4: "x" }, then varint 1: 7.
        let bytes = [0x13, 0x08, 5, 0x1b, 0x1c, 0x22, 1, b'x', 0x14, 0x08, 7];
        let mut fields = Fields::new(&bytes);
        assert_eq!(fields.next().unwrap(), Some((2, Field::Group)));
        assert_eq!(fields.next().unwrap(), Some((1, Field::Varint(7))));
        assert_eq!(fields.next().unwrap(), None);
        for cut in 1..9 {
            assert!(Fields::new(&bytes[..cut]).next().is_err(), "cut at {cut}");
        }
        let deep = vec![0x13; 100_000];
        assert!(Fields::new(&deep).next().is_err());
    }

    #[test]
    fn what_protocol_buffers_refuse_is_refused() {
        // Tags and lengths of up to 5 bytes; names in entries that do not count; lists that were replaced.
        let good: [&[u8]; 3] = [
            b"\x8a\x80\x80\x80\x00\x80\x80\x80\x80\x00",
            b"\x13\x00\x07\x14",
            b"\x0a\x09\x0a\x07\x0a\x01k\x20\x00\x12\x00",
        ];
        let bad: [&[u8]; 6] = [
            b"\x8a\x80\x80\x80\x80\x00\x00",
            b"\x0a\x80\x80\x80\x80\x80\x00",
            b"\x00\x07",
            b"\x0a\x07\x0a\x05\x0a\x01\xff\x20\x00",
            b"\x0a\x0a\x0a\x08\x0a\x01\xff\x0a\x01k\x12\x00",
            b"\x0a\x10\x0a\x0e\x0a\x01k\x12\x09\x1a\x03\x0a\x01\xff\x12\x02\x0a\x00",
        ];
        let walk = |record| {
            let mut entries = Entries::new(record);
            while entries.next()?.is_some() {}
            Ok::<_, Error>(())
        };
        for (i, record) in good.iter().enumerate() {
            walk(record).unwrap_or_else(|error| panic!("{i}: {error}"));
        }
        for (i, record) in bad.iter().enumerate() {
            assert!(walk(record).is_err(), "{i}");
        }
    }

    #[test]
    fn varint_lengths_at_each_boundary() {
        for bits in 0..64 {
            let value = 1u64 << bits;
            assert_eq!(varint_length(value), packed(&[value]).len(), "1 << {bits}");
            assert_eq!(varint_length(value - 1), packed(&[value - 1]).len());
        }
        assert_eq!(varint_length(u64::MAX), 10);
    }
}
