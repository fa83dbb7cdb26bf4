//! Two streams with the processor's SHA instructions, whose steps go between each other.

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_extract_epi32, _mm_loadu_si128, _mm_set_epi32,
    _mm_set_epi64x, _mm_setzero_si128, _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32,
    _mm_shuffle_epi8, _mm_shuffle_epi32,
};

use crate::sha256::{BLOCK, ROUND_WORDS};

/// Whether the processor has what this takes.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1")
}

/// Takes the blocks of two streams, as many of each.
///
/// # Panics
/// Without [what this takes](is_there).
pub(super) fn compress(states: [&mut [u32; 8]; 2], blocks: [&[[u8; BLOCK]]; 2]) {
    assert!(is_there(), "the processor has no SHA instructions");
    // SAFETY: the processor has the features, as the line above checks; beyond that the function is safe code.
    unsafe { compress_with_sha(states, blocks) }
}

#[target_feature(enable = "sha,sse4.1")]
fn compress_with_sha(states: [&mut [u32; 8]; 2], blocks: [&[[u8; BLOCK]]; 2]) {
    let mut vectors = [load(states[0]), load(states[1])];
    for (a, b) in blocks[0].iter().zip(blocks[1]) {
        let before = vectors;
        let mut words = [block_words(a), block_words(b)];
        for quarter in 0..4 {
            four_rounds::<0>(&mut vectors, &mut words, quarter);
            four_rounds::<1>(&mut vectors, &mut words, quarter);
            four_rounds::<2>(&mut vectors, &mut words, quarter);
            four_rounds::<3>(&mut vectors, &mut words, quarter);
        }
        for (state, before) in vectors.iter_mut().zip(before) {
            state[0] = _mm_add_epi32(state[0], before[0]);
            state[1] = _mm_add_epi32(state[1], before[1]);
        }
    }
    for (state, vectors) in states.into_iter().zip(vectors) {
        *state = store(vectors);
    }
}

/// Four rounds of both streams, of words `4 * I` to `4 * I + 3` of sixteen, and the words that come sixteen rounds later.
#[inline]
#[target_feature(enable = "sha,sse4.1")]
fn four_rounds<const I: usize>(
    states: &mut [[__m128i; 2]; 2],
    words: &mut [[__m128i; 4]; 2],
    quarter: usize,
) {
    let at = 16 * quarter + 4 * I;
    let constants = vector([0, 1, 2, 3].map(|i| ROUND_WORDS[at + i]));
    for ([abef, cdgh], words) in states.iter_mut().zip(words) {
        let sum = _mm_add_epi32(words[I], constants);
        *cdgh = _mm_sha256rnds2_epu32(*cdgh, *abef, sum);
        *abef = _mm_sha256rnds2_epu32(*abef, *cdgh, _mm_shuffle_epi32::<0x0e>(sum));
        if quarter < 3 {
            let (next, last) = (words[(I + 1) % 4], words[(I + 3) % 4]);
            let part = _mm_sha256msg1_epu32(words[I], next);
            let seven_before = _mm_alignr_epi8::<4>(last, words[(I + 2) % 4]);
            words[I] = _mm_sha256msg2_epu32(_mm_add_epi32(part, seven_before), last);
        }
    }
}

#[inline]
#[target_feature(enable = "sha,sse4.1")]
fn vector(words: [u32; 4]) -> __m128i {
    let [a, b, c, d] = words.map(u32::cast_signed);
    _mm_set_epi32(d, c, b, a)
}

/// The sixteen words of a block, most significant byte first.
#[inline]
#[target_feature(enable = "sha,sse4.1")]
fn block_words(block: &[u8; BLOCK]) -> [__m128i; 4] {
    let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    let mut words = [_mm_setzero_si128(); 4];
    for (words, bytes) in words.iter_mut().zip(block.as_chunks::<16>().0) {
        // SAFETY: the array has the 16 bytes that are read, which need no alignment.
        *words = _mm_shuffle_epi8(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }, swap);
    }
    words
}

/// The state as the instructions have it: from the highest word on `abef` and `cdgh`.
#[inline]
#[target_feature(enable = "sha,sse4.1")]
fn load(state: &[u32; 8]) -> [__m128i; 2] {
    let [a, b, c, d, e, f, g, h] = *state;
    [vector([f, e, b, a]), vector([h, g, d, c])]
}

#[inline]
#[target_feature(enable = "sha,sse4.1")]
fn store([abef, cdgh]: [__m128i; 2]) -> [u32; 8] {
    [
        _mm_extract_epi32::<3>(abef),
        _mm_extract_epi32::<2>(abef),
        _mm_extract_epi32::<3>(cdgh),
        _mm_extract_epi32::<2>(cdgh),
        _mm_extract_epi32::<1>(abef),
        _mm_extract_epi32::<0>(abef),
        _mm_extract_epi32::<1>(cdgh),
        _mm_extract_epi32::<0>(cdgh),
    ]
    .map(i32::cast_unsigned)
}
