//! Colours changed at random, as torchvision changes those of Pillow pictures.

use prep_formats::value::DType;

use super::image::{Image, check_type, spec_of};
use crate::element::{Element, ElementSpec};
use crate::error::{Error, Result};
use crate::transform::{Generator, Transform};

/// Changes brightness, contrast, saturation and hue at random, in a random order: torchvision's `ColorJitter` on Pillow pictures.
///
/// Draws: the order, by three numbers `below(4)`, `below(3)`, `below(2)`, each of which takes one of the changes that are left (in the order of
/// the fields); then for each of brightness, contrast, saturation whose field is above 0 a factor, `uniform(max(0, 1 - field), 1 + field)`;
/// then, if its field is above 0, for hue a shift, `uniform(-hue, hue)` of the whole circle.
///
/// Rounding follows Pillow (`ImageEnhance`, and its HSV of 8 bits), so the values are equal where the factors are.
#[derive(Debug, Clone, PartialEq)]
pub struct ColorJitter {
    /// Name of the picture, `uint8[height, width, 3]`.
    pub feature: String,
    /// How much brightness changes: 0.4 for factors from 0.6 to 1.4.
    pub brightness: f64,
    /// How much the distance of a pixel to the picture's mean brightness changes.
    pub contrast: f64,
    /// How much the distance of a pixel to its grey changes.
    pub saturation: f64,
    /// How far colours move around the circle of hues: at most 0.5.
    pub hue: f64,
}

/// One change of a picture's colours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    /// In 255ths of the circle, added without carry.
    Hue(u8),
}

/// `from + factor * (to - from)` as Pillow's `Image.blend` rounds.
#[inline(always)]
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let value = f32::from(from) + factor * (f32::from(to) - f32::from(from));
    // Rust cuts to 0..=255 and drops the fraction, as Pillow does.
    value as u8
}

/// Pillow's `L` of a colour. Source: ITU-R 601-2, in 65,536ths, rounded.
#[inline(always)]
fn grey([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000) >> 16) as u8
}

/// Hue, saturation and value in 8 bits. Source: `rgb2hsv_row` in Pillow's `Convert.c`, which mixes `float` and `double`.
fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (most, least) = (r.max(g).max(b), r.min(g).min(b));
    if most == least {
        return [0, 0, most];
    }
    let range = f32::from(most) - f32::from(least);
    let saturation = range / f32::from(most);
    let [rc, gc, bc] = [r, g, b].map(|value| (f32::from(most) - f32::from(value)) / range);
    let hue = if r == most {
        bc - gc
    } else if g == most {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    let hue = ((f64::from(hue) / 6.0 + 1.0) % 1.0) as f32;
    [
        (f64::from(hue) * 255.0) as u8,
        (f64::from(saturation) * 255.0) as u8,
        most,
    ]
}

/// Back. Source: `hsv2rgb_row`, ibid.
fn to_rgb([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let position = f64::from(h) * 6.0 / 255.0;
    let sector = position.floor();
    let rest = f64::from((position - sector) as f32);
    let (saturation, value) = (f64::from(f32::from(s) / 255.0), f64::from(v));
    let p = (value * (1.0 - saturation)).round() as u8;
    let q = (value * (1.0 - saturation * rest)).round() as u8;
    let t = (value * (1.0 - saturation * (1.0 - rest))).round() as u8;
    match sector as u32 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

impl Change {
    /// Changes pixels in place.
    pub(crate) fn apply(self, pixels: &mut [[u8; 3]]) {
        match self {
            Self::Brightness(factor) => {
                let table: [u8; 256] = std::array::from_fn(|value| blend(0, value as u8, factor));
                for value in pixels.as_flattened_mut() {
                    *value = table[usize::from(*value)];
                }
            }
            Self::Contrast(factor) => {
                let sum: u64 = pixels.iter().map(|&pixel| u64::from(grey(pixel))).sum();
                let mean = (sum as f64 / pixels.len().max(1) as f64 + 0.5) as u8;
                let table: [u8; 256] = std::array::from_fn(|value| blend(mean, value as u8, factor));
                for value in pixels.as_flattened_mut() {
                    *value = table[usize::from(*value)];
                }
            }
            Self::Saturation(factor) => {
                for pixel in pixels {
                    let grey = grey(*pixel);
                    *pixel = pixel.map(|value| blend(grey, value, factor));
                }
            }
            Self::Hue(shift) => {
                for pixel in pixels {
                    let [h, s, v] = to_hsv(*pixel);
                    *pixel = to_rgb([h.wrapping_add(shift), s, v]);
                }
            }
        }
    }
}

impl ColorJitter {
    /// The changes, in their order.
    fn draw(&self, generator: &mut Generator) -> Vec<Change> {
        let mut left = vec![0, 1, 2, 3];
        let mut order = Vec::with_capacity(4);
        while left.len() > 1 {
            order.push(left.remove(generator.below(left.len() as u64) as usize));
        }
        order.append(&mut left);
        let mut factor =
            |field: f64| (field > 0.0).then(|| generator.uniform((1.0 - field).max(0.0), 1.0 + field) as f32);
        let brightness = factor(self.brightness).map(Change::Brightness);
        let contrast = factor(self.contrast).map(Change::Contrast);
        let saturation = factor(self.saturation).map(Change::Saturation);
        let hue = (self.hue > 0.0).then(|| hue_shift(generator.uniform(-self.hue, self.hue)));
        let changes = [brightness, contrast, saturation, hue.map(Change::Hue)];
        order
            .into_iter()
            .filter_map(|which: usize| changes[which])
            .collect()
    }
}

/// A part of the circle in 255ths, towards zero, as torchvision adds it to Pillow's hue.
pub(crate) fn hue_shift(part: f64) -> u8 {
    (part * 255.0) as i32 as u8
}

impl Transform for ColorJitter {
    fn name(&self) -> String {
        "color_jitter".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, brightness={:?}, contrast={:?}, saturation={:?}, hue={:?}",
            self.feature, self.brightness, self.contrast, self.saturation, self.hue
        )
    }

    fn is_random(&self) -> bool {
        true
    }

    fn check(&self) -> Result<()> {
        let sane = [self.brightness, self.contrast, self.saturation]
            .iter()
            .all(|field| (0.0..=1000.0).contains(field));
        if sane && (0.0..=0.5).contains(&self.hue) {
            return Ok(());
        }
        Err(Error::Element(format!(
            "wanted brightness, contrast and saturation of 0 to 1000, and a hue of 0 to 0.5; found {}",
            self.parameters()
        )))
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let (dtype, [_, _, channels]) = spec_of(input, &self.feature)?;
        check_type(&self.feature, dtype, &[DType::UInt8])?;
        match channels {
            Some(3) | None => Ok(input.clone()),
            Some(channels) => Err(wrong_channels(&self.feature, channels)),
        }
    }

    fn apply(&self, element: Element, generator: &mut Generator) -> Result<Element> {
        let image = Image::of(&element, &self.feature)?;
        check_type(&self.feature, image.dtype, &[DType::UInt8])?;
        if image.channels != 3 {
            return Err(wrong_channels(&self.feature, image.channels as u64));
        }
        let mut data = image.data.to_vec();
        for change in self.draw(generator) {
            change.apply(data.as_chunks_mut::<3>().0);
        }
        image
            .with(image.height, image.width, data)
            .put(element, &self.feature)
    }
}

fn wrong_channels(feature: &str, channels: u64) -> Error {
    Error::Element(format!(
        "`{feature}` has {channels} channels, wanted 3: colours of grey pictures cannot change"
    ))
}
