//! Lists of integers to elements of the declared type.
//!
//! Varints of one and two bytes are what nearly all values are: `uint8` has a way of its own for them.

use crate::example::varint::{count_packed, decode_packed};
use crate::example::wire;
use crate::value::DType;
use crate::{Error, Result};

/// Appends the integers of an `Int64List` as elements of `dtype`, checking that they fit.
#[inline]
pub(super) fn append(list: &[u8], dtype: DType, out: &mut Vec<u8>) -> Result<()> {
    match dtype.num_bytes() {
        1 => append_sized::<1>(list, dtype, out),
        2 => append_sized::<2>(list, dtype, out),
        4 => append_sized::<4>(list, dtype, out),
        _ => append_sized::<8>(list, dtype, out),
    }
}

#[inline]
fn append_sized<const N: usize>(list: &[u8], dtype: DType, out: &mut Vec<u8>) -> Result<()> {
    match *list {
        [] => return Ok(()),
        // A single value of 0 to 127, which fits into any type but a truth value.
        [0x0a, 1, value] if value < 0x80 && (dtype != DType::Bool || value < 2) => {
            out.extend_from_slice(&u64::from(value).to_le_bytes()[..N]);
            return Ok(());
        }
        _ => {}
    }
    if let Some(packed) = packed_only(list) {
        if dtype == DType::UInt8 && append_bytes(packed, out) {
            return Ok(());
        }
        return append_packed::<N>(packed, dtype, out);
    }
    let mut outside = None;
    let (least, greatest) = dtype.stored_range();
    wire::each_int64(list, |value| {
        if value < least || value > greatest {
            outside = Some(value);
        }
        out.extend_from_slice(&value.to_le_bytes()[..N]);
    })?;
    match outside {
        None => Ok(()),
        Some(value) => Err(does_not_fit(value, dtype)),
    }
}

/// The contents of a list of one field, as all writers make those of numbers.
#[inline]
pub(super) fn packed_only(list: &[u8]) -> Option<&[u8]> {
    let (length, packed) = match list {
        [0x0a, length, packed @ ..] if *length < 0x80 => (usize::from(*length), packed),
        [0x0a, low, high, packed @ ..] if *high < 0x80 => {
            (usize::from(*low & 0x7f) | usize::from(*high) << 7, packed)
        }
        [0x0a, rest @ ..] => {
            let (length, header) = wire::long_varint(rest).ok()?;
            (usize::try_from(length).ok()?, rest.get(header..)?)
        }
        _ => return None,
    };
    (packed.len() == length).then_some(packed)
}

#[cold]
fn does_not_fit(value: i64, dtype: DType) -> Error {
    let (least, greatest) = dtype.stored_range();
    Error::damaged(format!(
        "{value} does not fit into {dtype}, which holds {least} to {greatest}"
    ))
}

/// Appends packed varints of 0 to 255; `false`, and nothing appended, if there are others.
///
/// From 128 on such a varint is the value itself, whose upper bit says that it goes on, and a 1: so the values are the bytes without those
/// that follow one from 128 on.
fn append_bytes(packed: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.resize(start + packed.len(), 0);
    let values = &mut out[start..];
    let mut count = 0;
    let mut before = 0u8;
    let mut wrong = 0u8;
    for &byte in packed {
        let is_second = before >> 7;
        wrong |= is_second & u8::from(byte != 1);
        // Never beyond the end: there are no more values than bytes.
        values[count] = byte;
        count += usize::from(1 - is_second);
        before = byte;
    }
    if wrong != 0 || before >= 0x80 {
        out.truncate(start);
        return false;
    }
    out.truncate(start + count);
    true
}

/// Appends any packed varints.
fn append_packed<const N: usize>(packed: &[u8], dtype: DType, out: &mut Vec<u8>) -> Result<()> {
    let (least, greatest) = dtype.stored_range();
    let start = out.len();
    out.resize(start + count_packed(packed)? * N, 0);
    let values = out[start..].as_chunks_mut::<N>().0;
    let mut outside = false;
    decode_packed(packed, values, |bits| {
        let value = bits.cast_signed();
        outside |= value < least || value > greatest;
        narrow(bits)
    });
    if !outside {
        return Ok(());
    }
    // Once more, to say which.
    let mut rest = packed;
    while let Ok((bits, length)) = wire::long_varint(rest) {
        let value = bits.cast_signed();
        if value < least || value > greatest {
            return Err(does_not_fit(value, dtype));
        }
        rest = &rest[length..];
    }
    Err(does_not_fit(0, dtype))
}

/// The lower `N` bytes.
#[inline(always)]
fn narrow<const N: usize>(bits: u64) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&bits.to_le_bytes()[..N]);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(values: &[i64]) -> Vec<u8> {
        let mut packed = Vec::new();
        for &value in values {
            wire::put_varint(value.cast_unsigned(), &mut packed);
        }
        let mut list = Vec::new();
        wire::put_packed_header(packed.len(), &mut list);
        list.extend(packed);
        list
    }

    /// One value at a time.
    fn slowly(list: &[u8], dtype: DType) -> Option<Vec<u8>> {
        let (least, greatest) = dtype.stored_range();
        let mut out = Vec::new();
        let mut fits = true;
        wire::each_int64(list, |value| {
            fits &= (least..=greatest).contains(&value);
            out.extend_from_slice(&value.to_le_bytes()[..dtype.num_bytes()]);
        })
        .ok()?;
        fits.then_some(out)
    }

    const DTYPES: [DType; 9] = [
        DType::Bool,
        DType::UInt8,
        DType::Int8,
        DType::UInt16,
        DType::Int16,
        DType::UInt32,
        DType::Int32,
        DType::UInt64,
        DType::Int64,
    ];

    proptest! {
        #[test]
        fn values_are_those_of_the_slow_way(values in prop::collection::vec((any::<i64>(), 0u32..64), 0..60), small in any::<bool>()) {
            let values: Vec<i64> = values
                .into_iter()
                .map(|(value, shift)| if small { value & 0xff } else { value >> shift })
                .collect();
            let list = list(&values);
            for dtype in DTYPES {
                let mut out = vec![7];
                let result = append(&list, dtype, &mut out);
                match slowly(&list, dtype) {
                    Some(wanted) => {
                        prop_assert!(result.is_ok());
                        prop_assert_eq!(&out[1..], &wanted[..]);
                    }
                    None => prop_assert!(result.is_err()),
                }
            }
        }

        #[test]
        fn any_bytes_read_as_the_slow_way(bytes in prop::collection::vec(any::<u8>(), 0..40), packed in any::<bool>()) {
            let mut list = Vec::new();
            if packed {
                wire::put_packed_header(bytes.len(), &mut list);
            }
            list.extend(bytes);
            for dtype in DTYPES {
                let mut out = Vec::new();
                let result = append(&list, dtype, &mut out);
                prop_assert_eq!(result.is_ok().then_some(out), slowly(&list, dtype), "{}", dtype);
            }
        }
    }

    #[test]
    fn values_that_do_not_fit_are_named() {
        let mut out = Vec::new();
        let error = append(&list(&[5, 256, 300]), DType::UInt8, &mut out)
            .unwrap_err()
            .to_string();
        assert!(error.contains("256 does not fit into uint8"), "{error}");
        let error = append(&list(&[2]), DType::Bool, &mut out)
            .unwrap_err()
            .to_string();
        assert!(error.contains("2 does not fit into bool"), "{error}");
        // Longer than need be, yet the same value.
        let long = [0x0a, 5, 0x85, 0x80, 0x00, 200, 1];
        out.clear();
        append(&long, DType::UInt8, &mut out).unwrap();
        assert_eq!(out, [5, 200]);
    }
}
