//! Rows of samples: brought to the picture's size, and to RGB.
//!
//! Both give libjpeg's values. Source of the arithmetic: `jdsample.c` (triangle filters of its "fancy" upsampling) and `jdcolor.c`.

/// Upsamples a row to twice its width. `line` holds the samples wanted, and one before and after them; `out` twice as many as
/// wanted. A sample becomes two: three quarters of its own and a quarter of the nearer neighbour's.
pub(super) fn double(line: &[u8], out: &mut [u8]) {
    let (left, centre, right) = neighbours(line);
    for (((out, &left), &centre), &right) in out
        .as_chunks_mut::<2>()
        .0
        .iter_mut()
        .zip(left)
        .zip(centre)
        .zip(right)
    {
        let [left, centre, right] = [left, centre, right].map(u16::from);
        *out = [
            ((3 * centre + left + 1) >> 2) as u8,
            ((3 * centre + right + 2) >> 2) as u8,
        ];
    }
}

/// As [`double`], of sums of three times a row and one time another: in both directions at once.
pub(super) fn double_sums(sums: &[u16], out: &mut [u8]) {
    let (left, centre, right) = neighbours(sums);
    for (((out, &left), &centre), &right) in out
        .as_chunks_mut::<2>()
        .0
        .iter_mut()
        .zip(left)
        .zip(centre)
        .zip(right)
    {
        *out = [
            ((3 * centre + left + 8) >> 4) as u8,
            ((3 * centre + right + 7) >> 4) as u8,
        ];
    }
}

/// All values but the last two, but the first and the last, but the first two.
fn neighbours<T>(values: &[T]) -> (&[T], &[T], &[T]) {
    let wanted = values.len() - 2;
    (&values[..wanted], &values[1..=wanted], &values[2..])
}

/// Three times a row and one time another.
pub(super) fn weigh(near: &[u8], far: &[u8], out: &mut [u16]) {
    for ((out, &near), &far) in out.iter_mut().zip(near).zip(far) {
        *out = 3 * u16::from(near) + u16::from(far);
    }
}

/// Sums of [`weigh`] to samples of a row: `bias` is 1 for the upper row of two, 2 for the lower.
pub(super) fn quarter(sums: &[u16], bias: u16, out: &mut [u8]) {
    for (out, &sum) in out.iter_mut().zip(sums) {
        *out = ((sum + bias) >> 2) as u8;
    }
}

/// Repeats each sample.
pub(super) fn repeat(line: &[u8], times: usize, out: &mut [u8]) {
    for (out, &sample) in out.chunks_exact_mut(times).zip(line) {
        out.fill(sample);
    }
}

/// Red, green and blue of brightness and two differences.
#[inline(always)]
fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    // 1.402, 0.344136, 0.714136 and 1.772 in 65,536ths.
    [
        y + ((91_881 * cr + 32_768) >> 16),
        y + ((-22_554 * cb - 46_802 * cr + 32_768) >> 16),
        y + ((116_130 * cb + 32_768) >> 16),
    ]
    .map(|value| value.clamp(0, 255) as u8)
}

/// YCbCr to RGB.
pub(super) fn ycc_to_rgb(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        done = unsafe { avx2::ycc_to_rgb(y, cb, cr, out) };
    }
    let pixels = out.as_chunks_mut::<3>().0.iter_mut().zip(y).zip(cb).zip(cr);
    for (((out, &y), &cb), &cr) in pixels.skip(done) {
        *out = rgb(y, cb, cr);
    }
}

/// RGB in three rows to one.
pub(super) fn interleave(red: &[u8], green: &[u8], blue: &[u8], out: &mut [u8]) {
    for (((out, &red), &green), &blue) in out
        .as_chunks_mut::<3>()
        .0
        .iter_mut()
        .zip(red)
        .zip(green)
        .zip(blue)
    {
        *out = [red, green, blue];
    }
}

/// CMYK as Adobe stores it, inverted, to RGB as Pillow makes it; `is_ycck`: the first three are YCbCr of the inverse.
pub(super) fn cmyk_to_rgb(rows: [&[u8]; 4], is_ycck: bool, out: &mut [u8]) {
    let [a, b, c, k] = rows;
    for ((((out, &a), &b), &c), &k) in out.as_chunks_mut::<3>().0.iter_mut().zip(a).zip(b).zip(c).zip(k) {
        let inverted = if is_ycck {
            rgb(a, b, c).map(|value| 255 - value)
        } else {
            [a, b, c]
        };
        *out = inverted.map(|value| {
            let ink = 255 - u32::from(value);
            // ink * k / 255, rounded.
            let product = ink * u32::from(k) + 128;
            (u32::from(k) - (((product >> 8) + product) >> 8)) as u8
        });
    }
}

/// Repeats grey as red, green and blue.
pub(super) fn grey_to_rgb(grey: &[u8], out: &mut [u8]) {
    for (out, &grey) in out.as_chunks_mut::<3>().0.iter_mut().zip(grey) {
        *out = [grey; 3];
    }
}

/// Sixteen pixels at a time.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Eight bytes of three registers each go to every third byte: which byte of a register goes where, 0x80 for none.
    const fn spread(colour: usize, third: usize) -> [u8; 16] {
        let mut bytes = [0x80; 16];
        let mut at = 0;
        while at < 16 {
            let place = third * 16 + at;
            if place % 3 == colour {
                bytes[at] = (place / 3) as u8;
            }
            at += 1;
        }
        bytes
    }

    const SPREAD: [[[u8; 16]; 3]; 3] = [
        [spread(0, 0), spread(1, 0), spread(2, 0)],
        [spread(0, 1), spread(1, 1), spread(2, 1)],
        [spread(0, 2), spread(1, 2), spread(2, 2)],
    ];

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: 16 bytes are there; the load needs no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    /// 16-bit values to bytes, cut to 0..=255.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn narrow(values: __m256i) -> __m128i {
        _mm_packus_epi16(
            _mm256_castsi256_si128(values),
            _mm256_extracti128_si256::<1>(values),
        )
    }

    /// `(values * factor + 32768) >> 16` for a factor of 16 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn scale(values: __m256i, factor: i16) -> __m256i {
        let twice = _mm256_mulhi_epi16(_mm256_add_epi16(values, values), _mm256_set1_epi16(factor));
        _mm256_srai_epi16::<1>(_mm256_add_epi16(twice, _mm256_set1_epi16(1)))
    }

    /// Converts whole groups of 16 pixels and says how many pixels those are.
    #[target_feature(enable = "avx2")]
    pub(super) fn ycc_to_rgb(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) -> usize {
        let groups = y
            .as_chunks::<16>()
            .0
            .iter()
            .zip(cb.as_chunks::<16>().0)
            .zip(cr.as_chunks::<16>().0);
        let mut done = 0;
        for (out, ((y, cb), cr)) in out.as_chunks_mut::<48>().0.iter_mut().zip(groups) {
            let y = _mm256_cvtepu8_epi16(load(y));
            let middle = _mm256_set1_epi16(128);
            let cb = _mm256_sub_epi16(_mm256_cvtepu8_epi16(load(cb)), middle);
            let cr = _mm256_sub_epi16(_mm256_cvtepu8_epi16(load(cr)), middle);
            // 1.402 is 1 and 26,345 / 65,536; 1.772 is 2 less 14,942 / 65,536.
            let red = _mm256_add_epi16(_mm256_add_epi16(y, cr), scale(cr, 26_345));
            let blue = _mm256_add_epi16(_mm256_add_epi16(y, _mm256_add_epi16(cb, cb)), scale(cb, -14_942));
            // -0.714136 is -1 and 18,734 / 65,536.
            let factors = _mm256_set1_epi32(18_734 << 16 | (-22_554 & 0xffff));
            let half = _mm256_set1_epi32(32_768);
            let [low, high] = [_mm256_unpacklo_epi16(cb, cr), _mm256_unpackhi_epi16(cb, cr)].map(|pairs| {
                _mm256_srai_epi32::<16>(_mm256_add_epi32(_mm256_madd_epi16(pairs, factors), half))
            });
            let green = _mm256_add_epi16(_mm256_sub_epi16(y, cr), _mm256_packs_epi32(low, high));
            let colours = [narrow(red), narrow(green), narrow(blue)];
            for (out, spread) in out.as_chunks_mut::<16>().0.iter_mut().zip(&SPREAD) {
                let [red, green, blue] = [0, 1, 2].map(|at| _mm_shuffle_epi8(colours[at], load(&spread[at])));
                let bytes = _mm_or_si128(_mm_or_si128(red, green), blue);
                // SAFETY: 16 bytes are there; the store needs no alignment.
                unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) };
            }
            done += 16;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector form gives what the plain one does, for every colour.
    #[test]
    fn all_colours_convert_alike() {
        let all: Vec<u8> = (0..=255).collect();
        let mut out = vec![0; 256 * 3];
        for y in (0..=255).step_by(15) {
            for cb in 0..=255 {
                ycc_to_rgb(&[y; 256], &[cb; 256], &all, &mut out);
                for (pixel, &cr) in out.as_chunks::<3>().0.iter().zip(&all) {
                    assert_eq!(*pixel, rgb(y, cb, cr), "{y} {cb} {cr}");
                }
            }
        }
    }
}
