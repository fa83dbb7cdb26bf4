//! Pictures of another size: weighted sums of rows, then of columns.
//!
//! Every method is a [`Window`] for each row and each column of the result: which pixels of the source count, and how much. `u8` pictures
//! are summed in integers: weights of 14 bits, 6 bits kept between rows and columns, so a result is within 1 of the exact one;
//! others in `f32`.

use super::image::Rect;
use crate::error::Result;
use crate::recycle::{filled, reserved};

/// How pixels are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// The pixel at the centre.
    Nearest,
    /// A triangle as wide as a pixel of the larger of both pictures (Pillow).
    TriangleWide,
    /// The two nearest pixels (OpenCV).
    Triangle,
    /// Four pixels, a = -0.5, wider where the picture shrinks (Pillow).
    CubicWide,
    /// Four pixels, a = -0.75 (OpenCV).
    Cubic,
    /// By how much of each pixel the result's pixel covers.
    Area,
}

/// The part of a picture that is resized, in fractions of pixels along one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Pixels that there are.
    pub(crate) pixels: usize,
    /// Where the part begins.
    pub(crate) from: f64,
    /// How long it is.
    pub(crate) length: f64,
}

impl Span {
    pub(crate) fn whole(pixels: usize) -> Self {
        Self {
            pixels,
            from: 0.0,
            length: pixels as f64,
        }
    }
}

/// Source pixels and weights for each pixel of one side of the result.
pub(crate) struct Windows {
    starts: Vec<usize>,
    /// Weights of a pixel: an even number, the last of which may reach past the source with a weight of 0.
    taps: usize,
    weights: Vec<f32>,
    /// Whether what overshoots is cut after the first of both directions, which is then that of the columns.
    cuts_between: bool,
}

fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}

impl Windows {
    /// Plans one side.
    pub(crate) fn new(filter: Filter, source: Span, target: usize, is_mirrored: bool) -> Self {
        let scale = source.length / target as f64;
        let wide = scale.max(1.0);
        let support = match filter {
            Filter::Nearest => 0.5,
            Filter::TriangleWide => wide,
            Filter::Triangle => 1.0,
            Filter::CubicWide => 2.0 * wide,
            Filter::Cubic => 2.0,
            Filter::Area => scale / 2.0,
        };
        let most = (support.ceil() as usize * 2 + 1).min(source.pixels);
        let last = source.pixels as isize - 1;
        let mut starts = Vec::with_capacity(target);
        // Weights that count, of one pixel after the other, and how many each has.
        let (mut kept, mut lengths) = (Vec::with_capacity(target * most), Vec::with_capacity(target));
        let mut raw: Vec<f64> = vec![0.0; most];
        for at in 0..target {
            let at_source = if is_mirrored { target - 1 - at } else { at };
            let centre = source.from + (at_source as f64 + 0.5) * scale;
            raw.fill(0.0);
            // The pixels whose centres lie within the support, or, for areas, that the result's pixel touches.
            let (first, end) = match filter {
                Filter::Nearest => (centre.floor() as isize, centre.floor() as isize + 1),
                Filter::Area => (
                    (centre - support).floor() as isize,
                    (centre + support).ceil() as isize,
                ),
                _ => (
                    (centre - support + 0.5).floor() as isize,
                    (centre + support + 0.5).floor() as isize,
                ),
            };
            // Pillow leaves out what lies outside the picture; OpenCV repeats the pixel at the edge.
            let repeats = matches!(filter, Filter::Triangle | Filter::Cubic | Filter::Nearest);
            let inside = |pixel: isize| pixel.clamp(0, last);
            let start = inside(first).min((last + 1 - most as isize).max(0)) as usize;
            for pixel in first..end {
                if pixel != inside(pixel) && !repeats {
                    continue;
                }
                let distance = pixel as f64 + 0.5 - centre;
                let weight = match filter {
                    Filter::Nearest => 1.0,
                    Filter::TriangleWide => (1.0 - distance.abs() / wide).max(0.0),
                    Filter::Triangle => (1.0 - distance.abs()).max(0.0),
                    Filter::CubicWide => cubic(distance / wide, -0.5),
                    Filter::Cubic => cubic(distance, -0.75),
                    Filter::Area => {
                        let left = (pixel as f64).max(centre - support);
                        ((pixel + 1) as f64).min(centre + support) - left
                    }
                };
                if let Some(sum) = raw.get_mut(inside(pixel) as usize - start) {
                    *sum += weight;
                }
            }
            let sum: f64 = raw.iter().sum();
            let first = raw.iter().position(|&weight| weight != 0.0).unwrap_or(0);
            let end = raw
                .iter()
                .rposition(|&weight| weight != 0.0)
                .map_or(1, |last| last + 1);
            kept.extend(raw[first..end].iter().map(|weight| (weight / sum) as f32));
            lengths.push(end - first);
            starts.push(start + first);
        }
        let taps = lengths
            .iter()
            .max()
            .map_or(2, |most: &usize| most.next_multiple_of(2));
        let mut weights = vec![0.0; target * taps];
        let mut rest = &kept[..];
        for (weights, length) in weights.chunks_exact_mut(taps).zip(lengths) {
            let (own, after) = rest.split_at(length);
            weights[..length].copy_from_slice(own);
            rest = after;
        }
        Self {
            starts,
            taps,
            weights,
            cuts_between: filter == Filter::CubicWide,
        }
    }

    /// The rows of `row_bytes` each, and their weights, of which row `at` of the result is made.
    fn lines<'a>(
        &self,
        at: usize,
        weights: &[i16],
        data: &'a [u8],
        row_bytes: usize,
        lines: &mut Vec<(&'a [u8], i16)>,
    ) {
        let last = data.len() / row_bytes - 1;
        let weights = &weights[at * self.taps..][..self.taps];
        lines.clear();
        for (tap, &weight) in weights.iter().enumerate() {
            let y = (self.starts[at] + tap).min(last);
            lines.push((&data[y * row_bytes..][..row_bytes], weight));
        }
    }

    /// The weights of a pixel in 16,384ths, whose sum is 1 to the last bit: a plain surface stays as it is.
    fn whole_weights(&self) -> Vec<i16> {
        let mut all = Vec::with_capacity(self.weights.len());
        for weights in self.weights.chunks_exact(self.taps) {
            let from = all.len();
            all.extend(weights.iter().map(|weight| (weight * ONE as f32).round() as i16));
            let missing = ONE - all[from..].iter().map(|&weight| i32::from(weight)).sum::<i32>();
            if let Some(largest) = all[from..].iter_mut().max_by_key(|weight| **weight) {
                *largest = (i32::from(*largest) + missing) as i16;
            }
        }
        all
    }
}

/// 1 as a weight.
const ONE: i32 = 1 << 14;

/// Bits that are dropped after the sums of rows, which leaves 6, and after those of columns.
const ROW_SHIFT: i32 = 8;
const COLUMN_SHIFT: i32 = 20;

/// The buffers of [`bytes`]: one per thread.
#[derive(Default)]
pub(crate) struct Scratch {
    row: Vec<i16>,
}

/// A picture of `u8` whose rows lie `stride` bytes apart.
#[derive(Clone, Copy)]
pub(crate) struct Pixels<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) width: usize,
    pub(crate) channels: usize,
}

/// Resizes a picture of `u8`: `down` plans its rows, `across` its columns.
pub(crate) fn bytes(
    source: Pixels<'_>,
    down: &Windows,
    across: &Windows,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<()> {
    let row_bytes = source.width * source.channels;
    let rows = source.data.len() / row_bytes;
    let (down_weights, across_weights) = (down.whole_weights(), across.whole_weights());
    // The columns that count at all; the vector code reads up to 16 bytes past a pixel.
    scratch.row.clear();
    scratch
        .row
        .resize(row_bytes + across.taps * source.channels + 16, 0);
    let target = across.starts.len() * source.channels;
    if down.cuts_between {
        // Columns first, cut to bytes, as Pillow does it.
        let mut middle = filled(&[0], &[rows, target])?;
        for (line, out) in source
            .data
            .chunks_exact(row_bytes)
            .zip(middle.chunks_exact_mut(target))
        {
            add_rows(&[(line, ONE as i16), (line, 0)], &mut scratch.row[..row_bytes]);
            add_columns(&scratch.row, source.channels, across, &across_weights, out);
        }
        scratch.row.resize(target, 0);
        let mut lines = Vec::with_capacity(down.taps);
        for (at, out) in out.chunks_exact_mut(target).enumerate() {
            down.lines(at, &down_weights, &middle, target, &mut lines);
            add_rows(&lines, &mut scratch.row[..target]);
            for (out, &sum) in out.iter_mut().zip(&scratch.row) {
                *out = ((i32::from(sum) + 32) >> 6).clamp(0, 255) as u8;
            }
        }
        return Ok(());
    }
    let mut lines = Vec::with_capacity(down.taps);
    for (at, out) in out.chunks_exact_mut(target).enumerate() {
        down.lines(at, &down_weights, source.data, row_bytes, &mut lines);
        add_rows(&lines, &mut scratch.row[..row_bytes]);
        add_columns(&scratch.row, source.channels, across, &across_weights, out);
    }
    Ok(())
}

/// Sums of an even number of rows, each with its weight: with 6 bits more than the samples.
fn add_rows(lines: &[(&[u8], i16)], out: &mut [i16]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { avx2::add_rows(lines, out) };
        return;
    }
    add_rows_from(0, lines, out);
}

/// The plain form, from sample `first` on.
#[inline(always)]
fn add_rows_from(first: usize, lines: &[(&[u8], i16)], out: &mut [i16]) {
    for (at, out) in out.iter_mut().enumerate().skip(first) {
        let sums = lines
            .iter()
            .map(|&(line, weight)| i32::from(line[at]) * i32::from(weight));
        *out = cut_to_16_bits(sums.sum::<i32>() >> ROW_SHIFT);
    }
}

fn cut_to_16_bits(value: i32) -> i16 {
    value.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

/// Sums of columns: one row of the result. `row` is longer than the source's row, by zeros.
fn add_columns(row: &[i16], channels: usize, windows: &Windows, weights: &[i16], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if matches!(channels, 3 | 4) && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe {
            match channels {
                3 => avx2::add_columns::<3>(row, windows, weights, out),
                _ => avx2::add_columns::<4>(row, windows, weights, out),
            }
        }
        return;
    }
    let pixels = out
        .chunks_exact_mut(channels)
        .zip(&windows.starts)
        .zip(weights.chunks_exact(windows.taps));
    for ((pixel, &start), weights) in pixels {
        for (channel, out) in pixel.iter_mut().enumerate() {
            let samples = row[start * channels + channel..].iter().step_by(channels);
            let sum: i32 = samples
                .zip(weights)
                .map(|(&sample, &weight)| i32::from(sample) * i32::from(weight))
                .sum();
            *out = ((sum + (1 << (COLUMN_SHIFT - 1))) >> COLUMN_SHIFT).clamp(0, 255) as u8;
        }
    }
}

/// Resizes a picture of numbers that are handed over as `f32`, `channels` a pixel, row by row.
pub(crate) fn floats(
    source: &[f32],
    width: usize,
    channels: usize,
    down: &Windows,
    across: &Windows,
) -> Result<Vec<f32>> {
    let row = width * channels;
    let rows = source.len() / row;
    let mut out = reserved(&[down.starts.len(), across.starts.len(), channels])?;
    let mut sums = vec![0f32; row];
    for (&start, weights) in down.starts.iter().zip(down.weights.chunks_exact(down.taps)) {
        sums.fill(0.0);
        for (tap, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
            let line = &source[(start + tap).min(rows - 1) * row..][..row];
            for (sum, &sample) in sums.iter_mut().zip(line) {
                *sum += weight * sample;
            }
        }
        for (&start, weights) in across.starts.iter().zip(across.weights.chunks_exact(across.taps)) {
            for channel in 0..channels {
                let samples = sums[start * channels + channel..].iter().step_by(channels);
                out.push(
                    samples
                        .zip(weights)
                        .map(|(&sample, &weight)| sample * weight)
                        .sum(),
                );
            }
        }
    }
    Ok(out)
}

/// The nearest pixels of `pixel` bytes each, of any numbers.
pub(crate) fn nearest(
    source: &[u8],
    width: usize,
    pixel: usize,
    down: &Windows,
    across: &Windows,
) -> Result<Vec<u8>> {
    let mut out = reserved(&[down.starts.len(), across.starts.len(), pixel])?;
    let place = |windows: &Windows, at: usize| {
        let weights = &windows.weights[at * windows.taps..][..windows.taps];
        windows.starts[at] + weights.iter().position(|&weight| weight != 0.0).unwrap_or(0)
    };
    for y in 0..down.starts.len() {
        let line = &source[place(down, y) * width * pixel..][..width * pixel];
        for x in 0..across.starts.len() {
            out.extend_from_slice(&line[place(across, x) * pixel..][..pixel]);
        }
    }
    Ok(out)
}

/// The whole pixels of a part given in fractions, and the spans of the part in them.
pub(crate) fn enclosing(part: [(f64, f64); 2], height: usize, width: usize) -> (Rect, [Span; 2]) {
    let side = |(from, length): (f64, f64), all: usize| {
        let first = (from.floor() as usize).min(all - 1);
        let end = ((from + length).ceil() as usize).clamp(first + 1, all);
        let span = Span {
            pixels: end - first,
            from: from - first as f64,
            length,
        };
        (first, span)
    };
    let ((y, down), (x, across)) = (side(part[0], height), side(part[1], width));
    let rect = Rect {
        y,
        x,
        height: down.pixels,
        width: across.pixels,
    };
    (rect, [down, across])
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{COLUMN_SHIFT, ROW_SHIFT, Windows, add_rows_from};

    /// Two weights for `_mm256_madd_epi16`.
    #[inline(always)]
    fn pair(first: i16, second: i16) -> i32 {
        i32::from(second) << 16 | i32::from(first) & 0xffff
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn add_rows(lines: &[(&[u8], i16)], out: &mut [i16]) {
        let (groups, _) = out.as_chunks_mut::<16>();
        let done = groups.len() * 16;
        let zero = _mm256_setzero_si256();
        for (at, out) in groups.iter_mut().enumerate() {
            let (mut low, mut high) = (zero, zero);
            for [(first, by_first), (second, by_second)] in lines.as_chunks::<2>().0 {
                let load = |line: &[u8]| {
                    let bytes = &line[at * 16..][..16];
                    // SAFETY: 16 bytes are there; the load needs no alignment.
                    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
                };
                let (a, b) = (
                    _mm256_cvtepu8_epi16(load(first)),
                    _mm256_cvtepu8_epi16(load(second)),
                );
                let weights = _mm256_set1_epi32(pair(*by_first, *by_second));
                low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weights));
                high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weights));
            }
            let sums = _mm256_packs_epi32(
                _mm256_srai_epi32::<ROW_SHIFT>(low),
                _mm256_srai_epi32::<ROW_SHIFT>(high),
            );
            // SAFETY: 16 values of 16 bits are there; the store needs no alignment.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sums) };
        }
        add_rows_from(done, lines, out);
    }

    /// Of eight samples: those of the first two pixels, channel by channel.
    const THREE: [i8; 16] = [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1];
    const FOUR: [i8; 16] = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];

    #[target_feature(enable = "avx2")]
    pub(super) fn add_columns<const CHANNELS: usize>(
        row: &[i16],
        windows: &Windows,
        weights: &[i16],
        out: &mut [u8],
    ) {
        let order = if CHANNELS == 3 { &THREE } else { &FOUR };
        // SAFETY: 16 bytes are there; the load needs no alignment.
        let order = unsafe { _mm_loadu_si128(order.as_ptr().cast()) };
        let half = _mm_set1_epi32(1 << (COLUMN_SHIFT - 1));
        let pixels = out.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(&windows.starts);
        for ((out, &start), weights) in pixels.zip(weights.chunks_exact(windows.taps)) {
            let mut sums = half;
            for (tap, &[first, second]) in weights.as_chunks::<2>().0.iter().enumerate() {
                let samples: &[i16] = &row[(start + tap * 2) * CHANNELS..][..8];
                // SAFETY: eight samples are there; the load needs no alignment.
                let samples = unsafe { _mm_loadu_si128(samples.as_ptr().cast()) };
                let pairs = _mm_shuffle_epi8(samples, order);
                sums = _mm_add_epi32(sums, _mm_madd_epi16(pairs, _mm_set1_epi32(pair(first, second))));
            }
            let sums = _mm_srai_epi32::<COLUMN_SHIFT>(sums);
            let samples = _mm_packus_epi16(_mm_packs_epi32(sums, sums), sums);
            let samples = _mm_cvtsi128_si32(samples).to_le_bytes();
            *out = std::array::from_fn(|channel| samples[channel]);
        }
    }
}
