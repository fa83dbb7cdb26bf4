//! Packed varints, many at a time.
//!
//! A varint ends where a byte has no upper bit, so the next one begins at a place that depends on all bytes before: a loop that goes from one
//! to the next waits for each. Here the bytes are cut into [`LANES`] parts at ends of varints, and the parts are decoded side by side, one
//! varint of each in turn, so that the waits overlap. How many values come before each part is counted beforehand, which costs a tenth.
//!
//! Processors with AVX-512 (and its VBMI2) do [`avx512::GROUP`] varints of up to four bytes at a time, in a quarter of the time.

use crate::example::wire::long_varint;
use crate::{Error, Result};

/// Upper bits of 8 bytes.
const CONTINUES: u64 = 0x8080_8080_8080_8080;
/// Parts decoded side by side. Measured: 2 and 8 are slower.
const LANES: usize = 4;
/// Bytes below which cutting costs more than it gives.
const FEW_BYTES: usize = 64;

/// Counts the varints, and checks that each has 10 bytes or fewer and the last one is whole.
pub(crate) fn count_packed(packed: &[u8]) -> Result<usize> {
    if packed.last().is_some_and(|byte| *byte >= 0x80) {
        return Err(Error::damaged("a varint is cut short"));
    }
    let (words, rest) = packed.as_chunks::<8>();
    let (mut count, mut full) = (0, 0);
    // So many words that the ends counted in each of 8 bytes, and their sum, stay below 256.
    for words in words.chunks(31) {
        let mut ends = 0;
        for word in words {
            let word = u64::from_le_bytes(*word);
            ends += (!word & CONTINUES) >> 7;
            // Ten bytes that go on fill one half of a word at least, wherever they begin; those of usual values fill none.
            let pairs = word & (word >> 8);
            full |= pairs & (pairs >> 16);
        }
        count += (ends.wrapping_mul(0x0101_0101_0101_0101) >> 56) as usize;
    }
    if full & 0x0000_0080_0000_0080 != 0 {
        check_lengths(packed)?;
    }
    Ok(count + rest.iter().filter(|byte| **byte < 0x80).count())
}

#[cold]
fn check_lengths(packed: &[u8]) -> Result<()> {
    match packed
        .split(|byte| *byte < 0x80)
        .all(|continued| continued.len() < 10)
    {
        true => Ok(()),
        false => Err(Error::damaged("a varint is longer than 10 bytes")),
    }
}

/// The varint at the start of 8 bytes, and its length; 0 where it does not end in them.
#[inline(always)]
fn decode_word(word: u64) -> (u64, usize) {
    let ends = !word & CONTINUES;
    // All bits up to and with the lowest end; then groups of seven moved together.
    let bits = word & (ends ^ ends.wrapping_sub(1));
    let bits = (bits & 0x007f_007f_007f_007f) | ((bits & 0x7f00_7f00_7f00_7f00) >> 1);
    let bits = (bits & 0x0000_3fff_0000_3fff) | ((bits & 0x3fff_0000_3fff_0000) >> 2);
    let bits = (bits & 0x0000_0000_0fff_ffff) | ((bits & 0x0fff_ffff_0000_0000) >> 4);
    // 64 trailing zeros where there is no end.
    let length = (ends.trailing_zeros() as usize + 8) / 8;
    (bits, if length > 8 { 0 } else { length })
}

/// The varint at the start of bytes that hold one, and its length.
#[inline(always)]
fn decode_one(bytes: &[u8]) -> (u64, usize) {
    if let Some(word) = bytes.first_chunk::<8>()
        && let (bits, length @ 1..) = decode_word(u64::from_le_bytes(*word))
    {
        return (bits, length);
    }
    // Checked when they were counted.
    long_varint(bytes).unwrap_or((0, bytes.len()))
}

/// Decodes all varints into `values`, of which there have to be as many as [`count_packed`] found.
#[inline]
pub(crate) fn decode_packed<T>(packed: &[u8], values: &mut [T], mut convert: impl FnMut(u64) -> T) {
    if values.len() == packed.len() {
        // All of one byte.
        for (value, byte) in values.iter_mut().zip(packed) {
            *value = convert(u64::from(*byte));
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    let (packed, values) = if avx512::is_there() {
        // SAFETY: the processor has what the function needs.
        let (bytes, count) = unsafe { avx512::decode(packed, values, &mut convert) };
        (&packed[bytes..], &mut values[count..])
    } else {
        (packed, values)
    };
    if packed.len() < FEW_BYTES {
        return decode_run(packed, values, &mut convert);
    }
    // Bytes and values of each lane, and the bytes of all that follow the lane, so that 8 can be loaded at its end.
    let mut lanes: [(&[u8], &mut [T]); LANES] = Default::default();
    let (mut bytes, mut left) = (packed, values);
    for (lane, parts) in lanes.iter_mut().zip((1..=LANES).rev()) {
        let cut = bytes.len() / parts;
        // Up to and with the next end.
        let end = bytes[cut..].iter().position(|byte| *byte < 0x80);
        let end = if parts == 1 {
            bytes.len()
        } else {
            end.map_or(bytes.len(), |end| cut + end + 1)
        };
        let count = if parts == 1 {
            left.len()
        } else {
            count_packed(&bytes[..end]).map_or(0, |count| count.min(left.len()))
        };
        let (mine, others) = std::mem::take(&mut left).split_at_mut(count);
        *lane = (bytes, mine);
        (bytes, left) = (&bytes[end..], others);
    }
    let together = lanes.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
    let [(a, a_values), (b, b_values), (c, c_values), (d, d_values)] = lanes;
    let (mut a, mut b, mut c, mut d) = (a, b, c, d);
    let (a_now, a_values) = a_values.split_at_mut(together);
    let (b_now, b_values) = b_values.split_at_mut(together);
    let (c_now, c_values) = c_values.split_at_mut(together);
    let (d_now, d_values) = d_values.split_at_mut(together);
    let mut step = |bytes: &mut &[u8], value: &mut T| {
        let (bits, length) = decode_one(bytes);
        *bytes = bytes.get(length..).unwrap_or_default();
        *value = convert(bits);
    };
    let first = a_now.iter_mut().zip(b_now);
    let second = c_now.iter_mut().zip(d_now);
    for ((a_value, b_value), (c_value, d_value)) in first.zip(second) {
        step(&mut a, a_value);
        step(&mut b, b_value);
        step(&mut c, c_value);
        step(&mut d, d_value);
    }
    for (bytes, values) in [(a, a_values), (b, b_values), (c, c_values), (d, d_values)] {
        decode_run(bytes, values, &mut convert);
    }
}

/// Decodes varints one after the other.
fn decode_run<T>(mut bytes: &[u8], values: &mut [T], convert: &mut impl FnMut(u64) -> T) {
    for value in values {
        let (bits, length) = decode_one(bytes);
        bytes = bytes.get(length..).unwrap_or_default();
        *value = convert(bits);
    }
}

/// Sixteen varints at a time: the places of their last bytes are put together, the bytes of each are moved into a lane of 32 bits, and the
/// lanes' groups of seven bits are joined by multiplying and adding.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    /// Varints done together.
    pub(super) const GROUP: usize = 16;
    /// Numbers of bytes.
    const PLACES: [u8; 64] = {
        let mut places = [0; 64];
        let mut at = 0;
        while at < 64 {
            places[at] = at as u8;
            at += 1;
        }
        places
    };
    /// The lane of 32 bits that each byte lies in.
    const LANES: [u8; 64] = {
        let mut lanes = [0; 64];
        let mut at = 0;
        while at < 64 {
            lanes[at] = (at / 4) as u8;
            at += 1;
        }
        lanes
    };

    /// Whether the processor has what [`decode`] needs.
    pub(super) fn is_there() -> bool {
        std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512vbmi")
            && std::arch::is_x86_feature_detected!("avx512vbmi2")
            && std::arch::is_x86_feature_detected!("bmi2")
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: 64 bytes are there; the load needs no alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    /// Decodes groups of varints up to one that has a longer varint than four bytes, or is not whole: how many bytes and values that were.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi1,bmi2")]
    pub(super) fn decode<T>(
        packed: &[u8],
        values: &mut [T],
        convert: &mut impl FnMut(u64) -> T,
    ) -> (usize, usize) {
        let (places, lanes) = (load(&PLACES), load(&LANES));
        let in_lane = _mm512_set1_epi32(0x0302_0100);
        let (mut at, mut count) = (0, 0);
        for group in values.as_chunks_mut::<GROUP>().0 {
            let rest = &packed[at..];
            let (bytes, there) = match rest.first_chunk::<64>() {
                Some(bytes) => (load(bytes), u64::MAX),
                None => {
                    let there = (1 << rest.len()) - 1;
                    // SAFETY: as many bytes are read as there are.
                    (
                        unsafe { _mm512_maskz_loadu_epi8(there, rest.as_ptr().cast()) },
                        there,
                    )
                }
            };
            let goes_on = _mm512_movepi8_mask(bytes);
            let ends = !goes_on & there;
            // The last byte of the last varint as a bit; 0 where there are fewer.
            let last = _pdep_u64(1 << (GROUP - 1), ends);
            let pairs = goes_on & (goes_on >> 1);
            if last == 0 || pairs & (pairs >> 2) & (last - 1) != 0 {
                break;
            }
            // The places of the last bytes, and of the first ones: after the last one before.
            let last_bytes = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(ends, places));
            let first_bytes = _mm_slli_si128::<1>(_mm_add_epi8(last_bytes, _mm_set1_epi8(1)));
            let spread = |bytes: __m128i| _mm512_permutexvar_epi8(lanes, _mm512_castsi128_si512(bytes));
            let own = _mm512_cmple_epu8_mask(in_lane, spread(_mm_sub_epi8(last_bytes, first_bytes)));
            let from = _mm512_add_epi8(spread(first_bytes), in_lane);
            let bytes = _mm512_maskz_permutexvar_epi8(own, from, bytes);
            let bits = _mm512_and_si512(bytes, _mm512_set1_epi8(0x7f));
            // Two groups of seven bits to fourteen, and two of those to 28.
            let bits = _mm512_maddubs_epi16(_mm512_set1_epi16(i16::MIN + 1), bits);
            let bits = _mm512_madd_epi16(bits, _mm512_set1_epi32(1 << 30 | 1));
            let mut decoded = [0u32; GROUP];
            // SAFETY: 64 bytes are there; the store needs no alignment.
            unsafe { _mm512_storeu_si512(decoded.as_mut_ptr().cast(), bits) };
            for (value, bits) in group.iter_mut().zip(decoded) {
                *value = convert(u64::from(bits));
            }
            at += last.trailing_zeros() as usize + 1;
            count += GROUP;
        }
        (at, count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::example::wire::put_varint;

    /// One by one, as the format says it.
    fn slowly(mut packed: &[u8]) -> Result<Vec<u64>> {
        let mut values = Vec::new();
        while !packed.is_empty() {
            let (value, length) = long_varint(packed)?;
            values.push(value);
            packed = &packed[length..];
        }
        Ok(values)
    }

    fn quickly(packed: &[u8]) -> Result<Vec<u64>> {
        let mut values = vec![1; count_packed(packed)?];
        decode_packed(packed, &mut values, |bits| bits);
        Ok(values)
    }

    proptest! {
        #[test]
        fn values_come_back(values in prop::collection::vec((any::<u64>(), prop_oneof![50u32..64, 0u32..64]), 0..300)) {
            let values: Vec<u64> = values.into_iter().map(|(value, shift)| value >> shift).collect();
            let mut packed = Vec::new();
            values.iter().for_each(|&value| put_varint(value, &mut packed));
            prop_assert_eq!(quickly(&packed).unwrap(), values);
        }

        #[test]
        fn any_bytes_are_read_or_refused_as_one_by_one(
            packed in prop::collection::vec(prop_oneof![any::<u8>(), Just(0x80), Just(0), Just(0xff)], 0..200),
        ) {
            prop_assert_eq!(quickly(&packed).ok(), slowly(&packed).ok());
        }
    }

    #[test]
    fn long_varints_at_every_place_in_a_word() {
        for length in 1..=12 {
            for before in 0..20 {
                for after in [0, 1, 7, 8, 70] {
                    let mut packed = vec![5; before];
                    packed.extend(std::iter::repeat_n(0xff, length - 1));
                    packed.push(1);
                    packed.extend(std::iter::repeat_n(7, after));
                    assert_eq!(
                        quickly(&packed).ok(),
                        slowly(&packed).ok(),
                        "{length} {before} {after}"
                    );
                    assert_eq!(quickly(&packed).is_ok(), length <= 10);
                    packed.push(0x80);
                    assert!(
                        quickly(&packed)
                            .unwrap_err()
                            .to_string()
                            .contains("a varint is cut short")
                    );
                }
            }
        }
    }
}
