//! The five row filters of PNG, both ways.
//!
//! `a` is the byte one pixel to the left, `b` the byte above, `c` the one above and to the left; outside the picture all are zero.

/// Row filters, by the number in the file.
pub(super) const SUB: u8 = 1;
pub(super) const UP: u8 = 2;
pub(super) const AVERAGE: u8 = 3;
pub(super) const PAETH: u8 = 4;

/// Of left, above and above left, the one that is nearest to left + above - above left.
#[inline(always)]
fn paeth(a: u8, b: u8, c: u8) -> u8 {
    let (a16, b16, c16) = (i16::from(a), i16::from(b), i16::from(c));
    let distance_a = (b16 - c16).abs();
    let distance_b = (a16 - c16).abs();
    let distance_c = (b16 - c16 + a16 - c16).abs();
    let near = if distance_b <= distance_c { b } else { c };
    if distance_a <= distance_b && distance_a <= distance_c {
        a
    } else {
        near
    }
}

/// Undoes a row's filter: `out` becomes the row, from its filtered bytes and the row above, which are all of one length.
pub(super) fn unfilter_row(filter: u8, pixel_bytes: usize, above: &[u8], row: &[u8], out: &mut [u8]) {
    match filter {
        UP => {
            for ((out, &byte), &b) in out.iter_mut().zip(row).zip(above) {
                *out = byte.wrapping_add(b);
            }
        }
        SUB | AVERAGE | PAETH => match pixel_bytes {
            1 => unfilter_pixels::<1>(filter, above, row, out),
            2 => unfilter_pixels::<2>(filter, above, row, out),
            3 => unfilter_pixels::<3>(filter, above, row, out),
            4 => unfilter_pixels::<4>(filter, above, row, out),
            6 => unfilter_pixels::<6>(filter, above, row, out),
            _ => unfilter_pixels::<8>(filter, above, row, out),
        },
        _ => out.copy_from_slice(row),
    }
}

/// The filters that look to the left, pixel by pixel.
#[inline]
fn unfilter_pixels<const N: usize>(filter: u8, above: &[u8], row: &[u8], out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<N>();
    let (row, _) = row.as_chunks::<N>();
    let (above, _) = above.as_chunks::<N>();
    let mut a = [0u8; N];
    match filter {
        SUB => {
            for (out, row) in out.iter_mut().zip(row) {
                for i in 0..N {
                    a[i] = a[i].wrapping_add(row[i]);
                }
                *out = a;
            }
        }
        AVERAGE => {
            for ((out, row), b) in out.iter_mut().zip(row).zip(above) {
                for i in 0..N {
                    let average = (u16::from(a[i]) + u16::from(b[i])) / 2;
                    a[i] = row[i].wrapping_add(average as u8);
                }
                *out = a;
            }
        }
        _ => {
            let mut c = [0u8; N];
            for ((out, row), b) in out.iter_mut().zip(row).zip(above) {
                for i in 0..N {
                    a[i] = row[i].wrapping_add(paeth(a[i], b[i], c[i]));
                }
                c = *b;
                *out = a;
            }
        }
    }
}

/// How far a filtered byte is from zero, around the circle.
#[inline(always)]
fn cost(byte: u8) -> u32 {
    u32::from(byte.cast_signed().unsigned_abs())
}

/// Filters a row in each way and keeps the one whose bytes are nearest to zero in sum; of equals, the first.
///
/// Appends the filter's number and the filtered bytes to `out`. `scratch` has room for four rows. The heuristic is the
/// one that the PNG specification recommends and libpng uses.
pub(super) fn filter_row(
    pixel_bytes: usize,
    above: &[u8],
    row: &[u8],
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let length = row.len();
    scratch.resize(4 * length, 0);
    let (sub, rest) = scratch.split_at_mut(length);
    let (up, rest) = rest.split_at_mut(length);
    let (average, paeths) = rest.split_at_mut(length);
    let head = pixel_bytes.min(length);

    // The first pixel has nothing to its left.
    let mut costs = [0u32; 5];
    for i in 0..head {
        let (x, b) = (row[i], above[i]);
        sub[i] = x;
        up[i] = x.wrapping_sub(b);
        average[i] = x.wrapping_sub(b / 2);
        paeths[i] = x.wrapping_sub(b);
    }
    let left = &row[..length - head];
    let above_left = &above[..length - head];
    {
        let rest = &row[head..];
        let up_left = sub[head..].iter_mut().zip(rest).zip(left);
        for ((out, &x), &a) in up_left {
            *out = x.wrapping_sub(a);
        }
        for ((out, &x), &b) in up[head..].iter_mut().zip(rest).zip(&above[head..]) {
            *out = x.wrapping_sub(b);
        }
        let both = rest.iter().zip(left).zip(&above[head..]);
        for (out, ((&x, &a), &b)) in average[head..].iter_mut().zip(both) {
            // The average of two bytes, rounded down, without a wider type.
            *out = x.wrapping_sub((a & b) + ((a ^ b) >> 1));
        }
        let all = rest.iter().zip(left).zip(above[head..].iter().zip(above_left));
        for (out, ((&x, &a), (&b, &c))) in paeths[head..].iter_mut().zip(all) {
            *out = x.wrapping_sub(paeth(a, b, c));
        }
    }
    for (total, bytes) in costs.iter_mut().zip([row, &*sub, &*up, &*average, &*paeths]) {
        *total = bytes.iter().map(|&byte| cost(byte)).sum();
    }
    let mut best = 0;
    for filter in 1..5 {
        if costs[filter] < costs[best] {
            best = filter;
        }
    }
    out.push(best as u8);
    out.extend_from_slice(match best {
        0 => row,
        1 => sub,
        2 => up,
        3 => average,
        _ => paeths,
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The specification's words, byte by byte.
    fn plain_unfilter(filter: u8, pixel_bytes: usize, above: &[u8], row: &[u8]) -> Vec<u8> {
        let mut out = vec![0u8; row.len()];
        for i in 0..row.len() {
            let a = if i < pixel_bytes { 0 } else { out[i - pixel_bytes] };
            let c = if i < pixel_bytes {
                0
            } else {
                above[i - pixel_bytes]
            };
            let b = above[i];
            let (a32, b32, c32) = (i32::from(a), i32::from(b), i32::from(c));
            let p = a32 + b32 - c32;
            let prediction = match filter {
                1 => a,
                2 => b,
                3 => ((a32 + b32) / 2) as u8,
                4 if (p - a32).abs() <= (p - b32).abs() && (p - a32).abs() <= (p - c32).abs() => a,
                4 if (p - b32).abs() <= (p - c32).abs() => b,
                4 => c,
                _ => 0,
            };
            out[i] = row[i].wrapping_add(prediction);
        }
        out
    }

    proptest! {
        #[test]
        fn filters_undo_as_specified(
            filter in 0u8..5,
            pixel_bytes in prop::sample::select(vec![1usize, 2, 3, 4, 6, 8]),
            pixels in prop::collection::vec(any::<(u8, u8)>(), 0..300),
        ) {
            let length = pixels.len() / pixel_bytes * pixel_bytes;
            let (above, row): (Vec<u8>, Vec<u8>) = pixels[..length].iter().copied().unzip();
            let mut out = vec![0; length];
            unfilter_row(filter, pixel_bytes, &above, &row, &mut out);
            prop_assert_eq!(out, plain_unfilter(filter, pixel_bytes, &above, &row));
        }

        #[test]
        fn the_cheapest_filter_is_chosen_and_can_be_undone(
            pixel_bytes in prop::sample::select(vec![1usize, 2, 3, 4, 6, 8]),
            pixels in prop::collection::vec(any::<(u8, u8)>(), 1..300),
        ) {
            let length = (pixels.len() / pixel_bytes).max(1) * pixel_bytes;
            let (above, row): (Vec<u8>, Vec<u8>) = pixels.iter().cycle().take(length).copied().unzip();
            let mut filtered = Vec::new();
            filter_row(pixel_bytes, &above, &row, &mut Vec::new(), &mut filtered);
            prop_assert_eq!(&plain_unfilter(filtered[0], pixel_bytes, &above, &filtered[1..]), &row);
            let total: u32 = filtered[1..].iter().map(|&byte| cost(byte)).sum();
            prop_assert!(total <= row.iter().map(|&byte| cost(byte)).sum());
        }
    }
}
