//! Eight or sixteen streams, each in a lane of 32 bits of AVX-512's vectors, which can rotate and take any function of three bits.

use crate::sha256::{BLOCK, ROUND_WORDS};

/// Whether the processor has what this takes.
pub(super) fn are_there() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// `a ^ b ^ c`, `a ? b : c` and the majority, as tables of three bits.
const XOR: i32 = 0x96;
const CHOICE: i32 = 0xca;
const MAJORITY: i32 = 0xe8;

/// A round, and the word that is wanted sixteen rounds later.
macro_rules! round {
    ($words:ident, $constants:ident, $i:literal, $more:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        let sum = logic::<XOR>(rotate::<6>($e), rotate::<11>($e), rotate::<25>($e));
        let choice = logic::<CHOICE>($e, $f, $g);
        let word = add($words[$i], broadcast($constants[$i].cast_signed()));
        let first = add(add($h, word), add(sum, choice));
        let sum = logic::<XOR>(rotate::<2>($a), rotate::<13>($a), rotate::<22>($a));
        let second = add(sum, logic::<MAJORITY>($a, $b, $c));
        if $more {
            let (low, high) = ($words[($i + 1) % 16], $words[($i + 14) % 16]);
            let low = logic::<XOR>(rotate::<7>(low), rotate::<18>(low), shift::<3>(low));
            let high = logic::<XOR>(rotate::<17>(high), rotate::<19>(high), shift::<10>(high));
            $words[$i] = add(add($words[$i], low), add($words[($i + 9) % 16], high));
        }
        ($h, $g, $f, $e) = ($g, $f, $e, add($d, first));
        ($d, $c, $b, $a) = ($c, $b, $a, add(first, second));
    };
}

/// The function that takes blocks, of a module with the vectors' operations.
macro_rules! kernel {
    ($lanes:literal, $features:literal) => {
        /// Takes blocks of so many streams, as many of each. The state is by word, then by lane.
        ///
        /// # Panics
        /// Without [what this takes](super::are_there), or where the streams have different numbers of blocks.
        pub(in crate::sha256) fn compress(state: &mut [[u32; $lanes]; 8], blocks: &[&[[u8; BLOCK]]; $lanes]) {
            assert!(super::are_there(), "the processor has no AVX-512");
            let count = blocks[0].len();
            assert!(blocks.iter().all(|blocks| blocks.len() == count));
            // SAFETY: the processor has the features, as checked above; beyond that the function is safe code.
            unsafe { compress_with_avx512(state, blocks, count) }
        }

        #[target_feature(enable = $features)]
        fn compress_with_avx512(
            state: &mut [[u32; $lanes]; 8],
            blocks: &[&[[u8; BLOCK]]; $lanes],
            count: usize,
        ) {
            let mut vectors = [broadcast(0); 8];
            for (vector, words) in vectors.iter_mut().zip(&*state) {
                *vector = load(words);
            }
            for block in 0..count {
                let mut words = block_words(blocks, block);
                let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = vectors;
                for (quarter, constants) in ROUND_WORDS.as_chunks::<16>().0.iter().enumerate() {
                    let more = quarter < 3;
                    round!(words, constants, 0, more, a b c d e f g h);
                    round!(words, constants, 1, more, a b c d e f g h);
                    round!(words, constants, 2, more, a b c d e f g h);
                    round!(words, constants, 3, more, a b c d e f g h);
                    round!(words, constants, 4, more, a b c d e f g h);
                    round!(words, constants, 5, more, a b c d e f g h);
                    round!(words, constants, 6, more, a b c d e f g h);
                    round!(words, constants, 7, more, a b c d e f g h);
                    round!(words, constants, 8, more, a b c d e f g h);
                    round!(words, constants, 9, more, a b c d e f g h);
                    round!(words, constants, 10, more, a b c d e f g h);
                    round!(words, constants, 11, more, a b c d e f g h);
                    round!(words, constants, 12, more, a b c d e f g h);
                    round!(words, constants, 13, more, a b c d e f g h);
                    round!(words, constants, 14, more, a b c d e f g h);
                    round!(words, constants, 15, more, a b c d e f g h);
                }
                for (vector, word) in vectors.iter_mut().zip([a, b, c, d, e, f, g, h]) {
                    *vector = add(*vector, word);
                }
            }
            for (words, vector) in state.iter_mut().zip(vectors) {
                store(words, vector);
            }
        }
    };
}

pub(super) mod sixteen {
    use std::arch::x86_64::{
        __m512i, _mm_set_epi64x, _mm512_add_epi32 as add, _mm512_broadcast_i32x4, _mm512_loadu_si512,
        _mm512_ror_epi32 as rotate, _mm512_set1_epi32 as broadcast, _mm512_shuffle_epi8,
        _mm512_shuffle_i32x4, _mm512_srli_epi32, _mm512_storeu_si512, _mm512_ternarylogic_epi32 as logic,
        _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };

    use super::{BLOCK, CHOICE, MAJORITY, ROUND_WORDS, XOR};

    kernel!(16, "avx512f,avx512bw,avx512vl");

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn shift<const BITS: u32>(vector: __m512i) -> __m512i {
        _mm512_srli_epi32::<BITS>(vector)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn load(words: &[u32; 16]) -> __m512i {
        // SAFETY: the array has the 64 bytes that are read, which need no alignment.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn store(words: &mut [u32; 16], vector: __m512i) {
        // SAFETY: the array has the 64 bytes that are written, which need no alignment.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), vector) }
    }

    /// The words of a block of each stream, by word, then by lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn block_words(blocks: &[&[[u8; BLOCK]]; 16], block: usize) -> [__m512i; 16] {
        let swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
        let mut rows = [broadcast(0); 16];
        for (row, blocks) in rows.iter_mut().zip(blocks) {
            let bytes = &blocks[block];
            // SAFETY: the array has the 64 bytes that are read, which need no alignment.
            *row = _mm512_shuffle_epi8(unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }, swap);
        }
        // Within each quarter of the vectors: pairs of rows, then fours of them.
        let mut pairs = rows;
        for i in 0..8 {
            pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        let mut fours = rows;
        for i in 0..4 {
            fours[4 * i] = _mm512_unpacklo_epi64(pairs[4 * i], pairs[4 * i + 2]);
            fours[4 * i + 1] = _mm512_unpackhi_epi64(pairs[4 * i], pairs[4 * i + 2]);
            fours[4 * i + 2] = _mm512_unpacklo_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
            fours[4 * i + 3] = _mm512_unpackhi_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
        }
        // Quarter `q` of vector `4 * i + c` has word `4 * q + c` of rows `4 * i` to `4 * i + 3`.
        let mut words = rows;
        for c in 0..4 {
            let even_low = _mm512_shuffle_i32x4::<0x88>(fours[c], fours[4 + c]);
            let odd_low = _mm512_shuffle_i32x4::<0xdd>(fours[c], fours[4 + c]);
            let even_high = _mm512_shuffle_i32x4::<0x88>(fours[8 + c], fours[12 + c]);
            let odd_high = _mm512_shuffle_i32x4::<0xdd>(fours[8 + c], fours[12 + c]);
            words[c] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
            words[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
            words[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
            words[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
        }
        words
    }
}

pub(super) mod eight {
    use std::arch::x86_64::{
        __m256i, _mm_set_epi64x, _mm256_add_epi32 as add, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
        _mm256_permute2x128_si256, _mm256_ror_epi32 as rotate, _mm256_set1_epi32 as broadcast,
        _mm256_shuffle_epi8, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_ternarylogic_epi32 as logic,
        _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
    };

    use super::{BLOCK, CHOICE, MAJORITY, ROUND_WORDS, XOR};

    kernel!(8, "avx2,avx512f,avx512bw,avx512vl");

    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
    fn shift<const BITS: i32>(vector: __m256i) -> __m256i {
        _mm256_srli_epi32::<BITS>(vector)
    }

    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
    fn load(words: &[u32; 8]) -> __m256i {
        // SAFETY: the array has the 32 bytes that are read, which need no alignment.
        unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
    fn store(words: &mut [u32; 8], vector: __m256i) {
        // SAFETY: the array has the 32 bytes that are written, which need no alignment.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), vector) }
    }

    /// The words of a block of each stream, by word, then by lane.
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
    fn block_words(blocks: &[&[[u8; BLOCK]]; 8], block: usize) -> [__m256i; 16] {
        let swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
        let mut words = [broadcast(0); 16];
        for half in 0..2 {
            let mut rows = [broadcast(0); 8];
            for (row, blocks) in rows.iter_mut().zip(blocks) {
                let bytes = &blocks[block].as_chunks::<32>().0[half];
                // SAFETY: the array has the 32 bytes that are read, which need no alignment.
                *row = _mm256_shuffle_epi8(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }, swap);
            }
            // Within each half of the vectors: pairs of rows, then fours of them.
            let mut pairs = rows;
            for i in 0..4 {
                pairs[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
            }
            let mut fours = rows;
            for i in 0..2 {
                fours[4 * i] = _mm256_unpacklo_epi64(pairs[4 * i], pairs[4 * i + 2]);
                fours[4 * i + 1] = _mm256_unpackhi_epi64(pairs[4 * i], pairs[4 * i + 2]);
                fours[4 * i + 2] = _mm256_unpacklo_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
                fours[4 * i + 3] = _mm256_unpackhi_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
            }
            for c in 0..4 {
                words[8 * half + c] = _mm256_permute2x128_si256::<0x20>(fours[c], fours[4 + c]);
                words[8 * half + 4 + c] = _mm256_permute2x128_si256::<0x31>(fours[c], fours[4 + c]);
            }
        }
        words
    }
}
