//! From coefficients to samples: the inverse cosine transform, whole and to a half, a quarter and an eighth.
//!
//! All of them give the samples of libjpeg's accurate integer transforms, so of Pillow's and OpenCV's pictures.
//! Source of the arithmetic: Loeffler, Ligtenberg and Moschytz (1989), with libjpeg's 13-bit constants, its rounding between
//! the passes (2 bits kept), and, for fewer samples, its way of leaving coefficients out (`jidctint.c`, `jidctred.c`).
//! Intermediate values are cut to 16 bits as its vector code does; a sane file does not reach them.

/// The coefficients of a block in natural order, row by row.
pub(super) type Block = [i16; 64];

/// Multiplies by a quantisation table, wrapping.
#[inline(always)]
fn dequantise(block: &Block, quant: &Block, at: usize) -> i32 {
    i32::from(block[at].wrapping_mul(quant[at]))
}

#[inline(always)]
fn descale(value: i32, shift: u32) -> i32 {
    value.wrapping_add(1 << (shift - 1)) >> shift
}

#[inline(always)]
fn to_sample(value: i32) -> u8 {
    (value + 128).clamp(0, 255) as u8
}

#[inline(always)]
fn to_16_bits(value: i32) -> i32 {
    value.clamp(i32::from(i16::MIN), i32::from(i16::MAX))
}

/// A sum as 16-bit registers hold it.
#[inline(always)]
fn sum(a: i32, b: i32) -> i32 {
    i32::from((a as i16).wrapping_add(b as i16))
}

/// The sum of two products, as one instruction makes it.
#[inline(always)]
fn pair(a: i32, by_a: i32, b: i32, by_b: i32) -> i32 {
    a.wrapping_mul(by_a).wrapping_add(b.wrapping_mul(by_b))
}

/// Eight samples of eight coefficients, before they are scaled down.
#[inline(always)]
fn eight(input: [i32; 8]) -> [i32; 8] {
    let [i0, i1, i2, i3, i4, i5, i6, i7] = input;
    let (even2, even3) = (pair(i2, 4433, i6, 4433 - 15137), pair(i2, 4433 + 6270, i6, 4433));
    let (even0, even1) = (sum(i0, i4) << 13, sum(i0, -i4) << 13);
    let (t0, t3) = (even0.wrapping_add(even3), even0.wrapping_sub(even3));
    let (t1, t2) = (even1.wrapping_add(even2), even1.wrapping_sub(even2));
    let (z3, z4) = (sum(i7, i3), sum(i5, i1));
    let (z3, z4) = (pair(z3, 9633 - 16069, z4, 9633), pair(z3, 9633, z4, 9633 - 3196));
    let odd0 = pair(i7, 2446 - 7373, i1, -7373).wrapping_add(z3);
    let odd3 = pair(i7, -7373, i1, 12299 - 7373).wrapping_add(z4);
    let odd1 = pair(i5, 16819 - 20995, i3, -20995).wrapping_add(z4);
    let odd2 = pair(i5, -20995, i3, 25172 - 20995).wrapping_add(z3);
    [
        t0.wrapping_add(odd3),
        t1.wrapping_add(odd2),
        t2.wrapping_add(odd1),
        t3.wrapping_add(odd0),
        t3.wrapping_sub(odd0),
        t2.wrapping_sub(odd1),
        t1.wrapping_sub(odd2),
        t0.wrapping_sub(odd3),
    ]
}

/// Four samples of eight coefficients, the fifth of which plays no part.
#[inline(always)]
fn four(input: [i32; 8]) -> [i32; 4] {
    let [i0, i1, i2, i3, _, i5, i6, i7] = input;
    let even = i0 << 14;
    let t2 = pair(i2, 15137, i6, -6270);
    let odd0 = pair(i7, -1730, i5, 11893).wrapping_add(pair(i3, -17799, i1, 8697));
    let odd2 = pair(i7, -4176, i5, -4926).wrapping_add(pair(i3, 7373, i1, 20995));
    let (t10, t12) = (even.wrapping_add(t2), even.wrapping_sub(t2));
    [
        t10.wrapping_add(odd2),
        t12.wrapping_add(odd0),
        t12.wrapping_sub(odd0),
        t10.wrapping_sub(odd2),
    ]
}

/// Two samples of the first and the odd ones of eight coefficients.
#[inline(always)]
fn two(input: [i32; 8]) -> [i32; 2] {
    let [i0, i1, _, i3, _, i5, _, i7] = input;
    let odd = pair(i7, -5906, i5, 6967).wrapping_add(pair(i3, -10426, i1, 29692));
    let even = i0 << 15;
    [even.wrapping_add(odd), even.wrapping_sub(odd)]
}

/// Runs a transform over columns, then rows, and writes `N` rows of `N` samples that lie `stride` apart.
#[inline(always)]
fn both_ways<const N: usize>(
    one_way: impl Fn([i32; 8]) -> [i32; N],
    extra_bits: u32,
    block: &Block,
    quant: &Block,
    out: &mut [u8],
    stride: usize,
) {
    let columns: [[i32; N]; 8] = std::array::from_fn(|column| {
        let samples = one_way(std::array::from_fn(|row| {
            dequantise(block, quant, row * 8 + column)
        }));
        samples.map(|value| to_16_bits(descale(value, 13 - 2 + extra_bits)))
    });
    for row in 0..N {
        let samples = one_way(columns.map(|column| column[row]))
            .map(|value| to_sample(to_16_bits(descale(value, 13 + 2 + 3 + extra_bits))));
        out[row * stride..][..N].copy_from_slice(&samples);
    }
}

/// The sample of all of a block without AC coefficients.
#[inline(always)]
fn flat(block: &Block, quant: &Block) -> u8 {
    to_sample(descale(dequantise(block, quant, 0), 3))
}

/// Transforms the blocks that lie side by side in a picture, `size` (8, 4, 2 or 1) rows of `size` samples each, into `out`,
/// whose rows lie `stride` apart. `flats` says of each block whether it has no AC coefficients.
pub(super) fn row_of_blocks(
    size: usize,
    blocks: &[Block],
    flats: &[bool],
    quant: &Block,
    out: &mut [u8],
    stride: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if size >= 4 && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { avx2::row_of_blocks(size, blocks, flats, quant, out, stride) };
        return;
    }
    for (at, (block, &is_flat)) in blocks.iter().zip(flats).enumerate() {
        one_block(size, block, is_flat, quant, &mut out[at * size..], stride);
    }
}

/// Transforms one block.
#[inline(always)]
fn one_block(size: usize, block: &Block, is_flat: bool, quant: &Block, out: &mut [u8], stride: usize) {
    if is_flat {
        let sample = flat(block, quant);
        for row in 0..size {
            out[row * stride..][..size].fill(sample);
        }
        return;
    }
    match size {
        8 => both_ways(eight, 0, block, quant, out, stride),
        4 => both_ways(four, 1, block, quant, out, stride),
        2 => both_ways(two, 2, block, quant, out, stride),
        _ => out[0] = flat(block, quant),
    }
}

/// Two blocks at once, one in each half of AVX2's registers.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Block, one_block};

    #[target_feature(enable = "avx2")]
    pub(super) fn row_of_blocks(
        size: usize,
        blocks: &[Block],
        flats: &[bool],
        quant: &Block,
        out: &mut [u8],
        stride: usize,
    ) {
        let (pairs, last) = blocks.as_chunks::<2>();
        for (at, blocks) in pairs.iter().enumerate() {
            let out = &mut out[at * 2 * size..];
            if flats[at * 2] && flats[at * 2 + 1] {
                one_block(size, &blocks[0], true, quant, out, stride);
                one_block(size, &blocks[1], true, quant, &mut out[size..], stride);
            } else if size == 8 {
                eight_by_eight(blocks, quant, out, stride);
            } else {
                four_by_four(blocks, quant, out, stride);
            }
        }
        if let [last] = last {
            let at = blocks.len() - 1;
            one_block(size, last, flats[at], quant, &mut out[at * size..], stride);
        }
    }

    /// Row `row` of two blocks, multiplied by the quantisation table.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(blocks: &[Block; 2], quant: &Block, row: usize) -> __m256i {
        let rows: [&[i16; 8]; 3] = [&blocks[0], &blocks[1], quant].map(|block| {
            block.as_chunks().0[row..]
                .first_chunk::<1>()
                .map_or(&[0; 8], |row| &row[0])
        });
        // SAFETY: each points to eight values of 16 bits; the loads need no alignment.
        let [a, b, quant] = unsafe { rows.map(|row| _mm_loadu_si128(row.as_ptr().cast())) };
        _mm256_mullo_epi16(_mm256_set_m128i(b, a), _mm256_broadcastsi128_si256(quant))
    }

    /// Constants for `_mm256_madd_epi16` over interleaved values.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn by(a: i32, b: i32) -> __m256i {
        _mm256_set1_epi32(b << 16 | a & 0xffff)
    }

    /// Both halves of values of 32 bits for eight lanes of 16.
    #[derive(Clone, Copy)]
    struct Wide(__m256i, __m256i);

    impl Wide {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn plus(self, other: Self) -> Self {
            Self(
                _mm256_add_epi32(self.0, other.0),
                _mm256_add_epi32(self.1, other.1),
            )
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        fn minus(self, other: Self) -> Self {
            Self(
                _mm256_sub_epi32(self.0, other.0),
                _mm256_sub_epi32(self.1, other.1),
            )
        }

        /// Rounded, shifted to the right, and cut to 16 bits.
        #[inline]
        #[target_feature(enable = "avx2")]
        fn descale<const SHIFT: i32>(self) -> __m256i {
            let half = _mm256_set1_epi32(1 << (SHIFT - 1));
            _mm256_packs_epi32(
                _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(self.0, half)),
                _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(self.1, half)),
            )
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn pair(a: __m256i, by_a: i32, b: __m256i, by_b: i32) -> Wide {
        let by = by(by_a, by_b);
        Wide(
            _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), by),
            _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), by),
        )
    }

    /// Widened and shifted to the left by `16 - RIGHT` bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn widen<const RIGHT: i32>(a: __m256i) -> Wide {
        let zero = _mm256_setzero_si256();
        Wide(
            _mm256_srai_epi32::<RIGHT>(_mm256_unpacklo_epi16(zero, a)),
            _mm256_srai_epi32::<RIGHT>(_mm256_unpackhi_epi16(zero, a)),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn eight<const SHIFT: i32>(input: [__m256i; 8]) -> [__m256i; 8] {
        let [i0, i1, i2, i3, i4, i5, i6, i7] = input;
        let (even2, even3) = (pair(i2, 4433, i6, 4433 - 15137), pair(i2, 4433 + 6270, i6, 4433));
        let even0 = widen::<3>(_mm256_add_epi16(i0, i4));
        let even1 = widen::<3>(_mm256_sub_epi16(i0, i4));
        let (t0, t3) = (even0.plus(even3), even0.minus(even3));
        let (t1, t2) = (even1.plus(even2), even1.minus(even2));
        let (z3, z4) = (_mm256_add_epi16(i7, i3), _mm256_add_epi16(i5, i1));
        let (z3, z4) = (pair(z3, 9633 - 16069, z4, 9633), pair(z3, 9633, z4, 9633 - 3196));
        let odd0 = pair(i7, 2446 - 7373, i1, -7373).plus(z3);
        let odd3 = pair(i7, -7373, i1, 12299 - 7373).plus(z4);
        let odd1 = pair(i5, 16819 - 20995, i3, -20995).plus(z4);
        let odd2 = pair(i5, -20995, i3, 25172 - 20995).plus(z3);
        [
            t0.plus(odd3).descale::<SHIFT>(),
            t1.plus(odd2).descale::<SHIFT>(),
            t2.plus(odd1).descale::<SHIFT>(),
            t3.plus(odd0).descale::<SHIFT>(),
            t3.minus(odd0).descale::<SHIFT>(),
            t2.minus(odd1).descale::<SHIFT>(),
            t1.minus(odd2).descale::<SHIFT>(),
            t0.minus(odd3).descale::<SHIFT>(),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn four<const SHIFT: i32>(input: [__m256i; 8]) -> [__m256i; 4] {
        let [i0, i1, i2, i3, _, i5, i6, i7] = input;
        let even = widen::<2>(i0);
        let t2 = pair(i2, 15137, i6, -6270);
        let odd0 = pair(i7, -1730, i5, 11893).plus(pair(i3, -17799, i1, 8697));
        let odd2 = pair(i7, -4176, i5, -4926).plus(pair(i3, 7373, i1, 20995));
        let (t10, t12) = (even.plus(t2), even.minus(t2));
        [
            t10.plus(odd2).descale::<SHIFT>(),
            t12.plus(odd0).descale::<SHIFT>(),
            t12.minus(odd0).descale::<SHIFT>(),
            t10.minus(odd2).descale::<SHIFT>(),
        ]
    }

    /// Rows to columns, in each half of the registers.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
        let [r0, r1, r2, r3, r4, r5, r6, r7] = rows;
        let (a0, a1) = (_mm256_unpacklo_epi16(r0, r1), _mm256_unpackhi_epi16(r0, r1));
        let (a2, a3) = (_mm256_unpacklo_epi16(r2, r3), _mm256_unpackhi_epi16(r2, r3));
        let (a4, a5) = (_mm256_unpacklo_epi16(r4, r5), _mm256_unpackhi_epi16(r4, r5));
        let (a6, a7) = (_mm256_unpacklo_epi16(r6, r7), _mm256_unpackhi_epi16(r6, r7));
        let (b0, b1) = (_mm256_unpacklo_epi32(a0, a2), _mm256_unpackhi_epi32(a0, a2));
        let (b2, b3) = (_mm256_unpacklo_epi32(a1, a3), _mm256_unpackhi_epi32(a1, a3));
        let (b4, b5) = (_mm256_unpacklo_epi32(a4, a6), _mm256_unpackhi_epi32(a4, a6));
        let (b6, b7) = (_mm256_unpacklo_epi32(a5, a7), _mm256_unpackhi_epi32(a5, a7));
        [
            _mm256_unpacklo_epi64(b0, b4),
            _mm256_unpackhi_epi64(b0, b4),
            _mm256_unpacklo_epi64(b1, b5),
            _mm256_unpackhi_epi64(b1, b5),
            _mm256_unpacklo_epi64(b2, b6),
            _mm256_unpackhi_epi64(b2, b6),
            _mm256_unpacklo_epi64(b3, b7),
            _mm256_unpackhi_epi64(b3, b7),
        ]
    }

    /// Two rows of samples a register, cut to 8 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn to_samples(a: __m256i, b: __m256i) -> [[u64; 2]; 2] {
        let samples = _mm256_xor_si256(_mm256_packs_epi16(a, b), _mm256_set1_epi8(-128));
        let [a0, b0, a1, b1] = [
            _mm256_extract_epi64::<0>(samples),
            _mm256_extract_epi64::<1>(samples),
            _mm256_extract_epi64::<2>(samples),
            _mm256_extract_epi64::<3>(samples),
        ]
        .map(|bytes| bytes as u64);
        [[a0, a1], [b0, b1]]
    }

    #[target_feature(enable = "avx2")]
    fn eight_by_eight(blocks: &[Block; 2], quant: &Block, out: &mut [u8], stride: usize) {
        let mut rows = [_mm256_setzero_si256(); 8];
        for (at, row) in rows.iter_mut().enumerate() {
            *row = load(blocks, quant, at);
        }
        let rows = transpose(eight::<11>(rows));
        let rows = transpose(eight::<18>(rows));
        for (at, pair) in rows.as_chunks::<2>().0.iter().enumerate() {
            for (odd, row) in to_samples(pair[0], pair[1]).into_iter().enumerate() {
                let out = &mut out[(at * 2 + odd) * stride..][..16];
                out[..8].copy_from_slice(&row[0].to_le_bytes());
                out[8..].copy_from_slice(&row[1].to_le_bytes());
            }
        }
    }

    #[target_feature(enable = "avx2")]
    fn four_by_four(blocks: &[Block; 2], quant: &Block, out: &mut [u8], stride: usize) {
        let zero = _mm256_setzero_si256();
        let mut rows = [zero; 8];
        for (at, row) in rows.iter_mut().enumerate() {
            *row = load(blocks, quant, at);
        }
        let [a, b, c, d] = four::<12>(rows);
        let columns = transpose([a, b, c, d, zero, zero, zero, zero]);
        let [a, b, c, d] = four::<19>(columns);
        // Each register is a column of four samples now; as bytes, a 4 by 4 square is turned within 128 bits.
        let (ab, cd) = (_mm256_unpacklo_epi16(a, b), _mm256_unpacklo_epi16(c, d));
        let (first, second) = (_mm256_unpacklo_epi32(ab, cd), _mm256_unpackhi_epi32(ab, cd));
        for (half, row) in to_samples(first, second).into_iter().enumerate() {
            // Two rows of four samples of each block.
            for odd in 0..2 {
                let out = &mut out[(half * 2 + odd) * stride..][..8];
                let [left, right] = row.map(|bytes| (bytes >> (odd * 32)) as u32);
                out[..4].copy_from_slice(&left.to_le_bytes());
                out[4..].copy_from_slice(&right.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Two blocks at once, and one of them alone, have the samples of the plain form, whatever the coefficients.
        #[test]
        fn both_forms_agree(
            coefficients in prop::collection::vec(prop_oneof![3 => Just(0i16), 2 => -100i16..100, 1 => any::<i16>()], 192),
            quant in prop::collection::vec(prop_oneof![1i16..64, any::<i16>()], 64),
            size in prop::sample::select(&[1usize, 2, 4, 8][..]),
        ) {
            let blocks = coefficients.as_chunks::<64>().0;
            let quant: &Block = quant.first_chunk().unwrap();
            let (mut out, mut wanted) = (vec![0; 24 * 8], vec![0; 24 * 8]);
            row_of_blocks(size, blocks, &[false; 3], quant, &mut out, 24);
            for (at, block) in blocks.iter().enumerate() {
                one_block(size, block, false, quant, &mut wanted[at * size..], 24);
            }
            prop_assert_eq!(out, wanted);
        }

        /// Blocks of one value take the short way to the same samples.
        #[test]
        fn flat_blocks_are_ordinary_blocks(value in -1100i16..1100, factor in 1i16..20, size in prop::sample::select(&[1usize, 2, 4, 8][..])) {
            let mut blocks = [[0; 64]; 2];
            blocks[0][0] = value;
            blocks[1][0] = -value;
            let (mut short, mut long) = (vec![0; 16 * 8], vec![0; 16 * 8]);
            row_of_blocks(size, &blocks, &[true; 2], &[factor; 64], &mut short, 16);
            row_of_blocks(size, &blocks, &[false; 2], &[factor; 64], &mut long, 16);
            prop_assert_eq!(short, long);
        }
    }
}
