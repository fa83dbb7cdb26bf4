//! Pictures made smaller, or written anew, on their way into a dataset.

use anyhow::{Result, bail};
use prep_formats::value::{DType, Value};

use crate::readers::recode::{Pixels, decode, encode_jpeg, is_grey};

/// What becomes of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PictureRule {
    /// Height and width that it is brought to, whatever its shape was.
    pub(crate) size: Option<(u32, u32)>,
    /// Written as JPEG of this quality; else as PNG.
    pub(crate) jpeg: Option<u8>,
    /// 1 or 3.
    pub(crate) channels: usize,
}

impl PictureRule {
    /// The picture as it is to be stored. A function of its bytes, the same on every machine.
    pub(crate) fn apply(&self, value: Value) -> Result<Value> {
        let (width, height, pixels) = match value {
            Value::Bytes(file) => {
                let (width, height, colour, pixels): Pixels = decode(&file)?;
                let found = if is_grey(colour) { 1 } else { 3 };
                (width, height, with_channels(pixels, found, self.channels))
            }
            Value::Tensor {
                dtype: DType::UInt8,
                shape,
                data,
            } => match shape[..] {
                [height, width, found @ (1 | 3)] if data.len() == height * width * found => {
                    (width, height, with_channels(data.to_vec(), found, self.channels))
                }
                _ => bail!("pixels of shape {shape:?}; wanted height, width and 1 or 3 channels"),
            },
            _ => bail!("only pictures of 8 bits can be written anew"),
        };
        if width == 0 || height == 0 {
            bail!("the picture has no pixels");
        }
        let (new_height, new_width) = match self.size {
            Some((height, width)) => (height as usize, width as usize),
            None => (height, width),
        };
        let pixels = resize(&pixels, (height, width), (new_height, new_width), self.channels);
        Ok(match self.jpeg {
            Some(quality) => {
                Value::Bytes(encode_jpeg(&pixels, new_width, new_height, self.channels == 1, quality)?.into())
            }
            None => Value::Tensor {
                dtype: DType::UInt8,
                shape: vec![new_height, new_width, self.channels],
                data: pixels.into(),
            },
        })
    }
}

fn with_channels(pixels: Vec<u8>, found: usize, wanted: usize) -> Vec<u8> {
    match (found, wanted) {
        (1, 3) => pixels.iter().flat_map(|grey| [*grey; 3]).collect(),
        // The weights of ITU-R BT.601, as JPEG has them.
        (3, 1) => pixels
            .chunks_exact(3)
            .map(|rgb| {
                let sum = 299 * u32::from(rgb[0]) + 587 * u32::from(rgb[1]) + 114 * u32::from(rgb[2]);
                ((sum + 500) / 1000) as u8
            })
            .collect(),
        _ => pixels,
    }
}

/// For each new position where the old ones begin that count, and how much each does.
fn weights(old: usize, new: usize) -> Vec<(usize, Vec<f32>)> {
    let scale = old as f64 / new as f64;
    // Of a smaller picture each pixel is made of all that it stands for.
    let reach = scale.max(1.0);
    let weights_of = |position: usize| {
        let centre = (position as f64 + 0.5) * scale;
        let first = (centre - reach).floor().max(0.0) as usize;
        let last = ((centre + reach).ceil() as usize).min(old);
        let weight = |at: usize| (1.0 - ((at as f64 + 0.5 - centre) / reach).abs()).max(0.0);
        let raw: Vec<f64> = (first..last).map(weight).collect();
        let sum: f64 = raw.iter().sum();
        (first, raw.iter().map(|weight| (weight / sum) as f32).collect())
    };
    (0..new).map(weights_of).collect()
}

/// Brings pixels to another size, by a triangle filter that covers what it leaves out.
fn resize(pixels: &[u8], old: (usize, usize), new: (usize, usize), channels: usize) -> Vec<u8> {
    if old == new {
        return pixels.to_vec();
    }
    let ((height, width), (new_height, new_width)) = (old, new);
    let mut rows = vec![0f32; height * new_width * channels];
    for (x, (first, weights)) in weights(width, new_width).iter().enumerate() {
        for y in 0..height {
            for channel in 0..channels {
                let mut sum = 0.0;
                for (index, weight) in weights.iter().enumerate() {
                    sum += weight * f32::from(pixels[(y * width + first + index) * channels + channel]);
                }
                rows[(y * new_width + x) * channels + channel] = sum;
            }
        }
    }
    let line = new_width * channels;
    let mut out = Vec::with_capacity(new_height * line);
    for (first, weights) in &weights(height, new_height) {
        for at in 0..line {
            let mut sum = 0.0;
            for (index, weight) in weights.iter().enumerate() {
                sum += weight * rows[(first + index) * line + at];
            }
            out.push(sum.round().clamp(0.0, 255.0) as u8);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_and_flat_pictures_stay_flat() {
        for new in [(1, 1), (3, 5), (8, 8), (20, 30)] {
            let out = resize(&[77; 8 * 8 * 3], (8, 8), new, 3);
            assert_eq!(out, vec![77; new.0 * new.1 * 3]);
        }
        // Half the size is about the mean of each four.
        let checks: Vec<u8> = (0..64)
            .map(|at| if (at / 8 + at % 8) % 2 == 0 { 0 } else { 200 })
            .collect();
        let out = resize(&checks, (8, 8), (4, 4), 1);
        assert!(out.iter().all(|value| (90..=110).contains(value)), "{out:?}");
    }

    #[test]
    fn pictures_are_written_anew() {
        let pixels = Value::Tensor {
            dtype: DType::UInt8,
            shape: vec![6, 4, 3],
            data: vec![100; 72].into(),
        };
        let rule = |jpeg, channels| PictureRule {
            size: Some((3, 2)),
            jpeg,
            channels,
        };
        let Value::Bytes(file) = rule(Some(90), 3).apply(pixels.clone()).unwrap() else {
            panic!()
        };
        assert!(file.starts_with(b"\xff\xd8\xff"));
        let Value::Tensor { shape, data, .. } = rule(None, 1).apply(Value::Bytes(file)).unwrap() else {
            panic!()
        };
        assert_eq!(shape, [3, 2, 1]);
        assert!(data.iter().all(|value| value.abs_diff(100) < 3), "{data:?}");
        assert!(rule(None, 3).apply(Value::Bytes("no picture".into())).is_err());
    }
}
