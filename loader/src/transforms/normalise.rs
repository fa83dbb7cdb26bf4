//! Samples to numbers around 0.

use prep_formats::value::DType;

use super::image::{Image, check_type, spec_of};
use crate::element::{Array, Element, ElementSpec};
use crate::error::{Error, Result};
use crate::transform::{Generator, Transform};

/// The order of a picture's dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// `[height, width, channels]`, as JAX and TensorFlow want it.
    #[default]
    ChannelsLast,
    /// `[channels, height, width]`, as PyTorch wants it.
    ChannelsFirst,
}

/// Makes a picture `float32`: `(x / divisor - mean) / std`, each step in `f32`, as torchvision's `ToTensor` and `Normalize` do.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalize {
    /// Name of the picture, `[height, width, channels]`, `uint8`, `uint16` or `float32`.
    pub feature: String,
    /// What a sample is divided by first: 255 to bring bytes to 0..1, 1 to leave it.
    pub divisor: f32,
    /// Subtracted next: one for all channels, or one each.
    pub mean: Vec<f32>,
    /// Divides what is left: one for all channels, or one each. Not 0.
    pub std: Vec<f32>,
    /// The order of the result's dimensions.
    pub layout: Layout,
}

const TYPES: &[DType] = &[DType::UInt8, DType::UInt16, DType::Float32];

impl Normalize {
    /// ImageNet's means and deviations, of bytes.
    pub fn imagenet(feature: impl Into<String>) -> Self {
        Self {
            feature: feature.into(),
            divisor: 255.0,
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
            layout: Layout::ChannelsLast,
        }
    }

    fn check_channels(&self, channels: Option<u64>) -> Result<()> {
        let fits = |values: &[f32]| {
            !values.is_empty()
                && (values.len() == 1 || channels.is_none_or(|channels| channels == values.len() as u64))
        };
        if !fits(&self.mean) || !fits(&self.std) {
            return Err(Error::Element(format!(
                "`{}` has {} channels, {} means and {} deviations: wanted one of each, or as many as channels",
                self.feature,
                channels.map_or("unknown".to_string(), |channels| channels.to_string()),
                self.mean.len(),
                self.std.len()
            )));
        }
        let is_zero = |value: &f32| *value == 0.0 || !value.is_finite();
        if is_zero(&self.divisor) || self.std.iter().any(is_zero) {
            return Err(Error::Element(format!(
                "a divisor of {} and deviations of {:?}: wanted finite numbers other than 0",
                self.divisor, self.std
            )));
        }
        Ok(())
    }
}

impl Transform for Normalize {
    fn name(&self) -> String {
        "normalize".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, divisor={:?}, mean={:?}, std={:?}, layout={:?}",
            self.feature, self.divisor, self.mean, self.std, self.layout
        )
    }

    fn check(&self) -> Result<()> {
        self.check_channels(None)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let (dtype, [height, width, channels]) = spec_of(input, &self.feature)?;
        check_type(&self.feature, dtype, TYPES)?;
        self.check_channels(channels)?;
        let mut spec = input.clone();
        let shape = match self.layout {
            Layout::ChannelsLast => [height, width, channels],
            Layout::ChannelsFirst => [channels, height, width],
        };
        spec.set(&self.feature, DType::Float32, shape);
        Ok(spec)
    }

    fn apply(&self, mut element: Element, _: &mut Generator) -> Result<Element> {
        let image = Image::of(&element, &self.feature)?;
        check_type(&self.feature, image.dtype, TYPES)?;
        let channels = image.channels;
        self.check_channels(Some(channels as u64))?;
        let pixels = image.height * image.width;
        let of_channel = |values: &[f32], channel: usize| values[channel % values.len()];
        let mut out = vec![0u8; pixels * channels * 4];
        let (values, _) = out.as_chunks_mut::<4>();
        for channel in 0..channels {
            let (mean, std) = (of_channel(&self.mean, channel), of_channel(&self.std, channel));
            let normal = |sample: f32| (sample / self.divisor - mean) / std;
            // Where the channel's values lie.
            let (first, step) = match self.layout {
                Layout::ChannelsLast => (channel, channels),
                Layout::ChannelsFirst => (channel * pixels, 1),
            };
            let places = values.iter_mut().skip(first).step_by(step).take(pixels);
            match image.dtype {
                DType::UInt8 => {
                    let table: [[u8; 4]; 256] =
                        std::array::from_fn(|sample| normal(sample as f32).to_le_bytes());
                    for (value, pixel) in places.zip(image.data.chunks_exact(channels)) {
                        *value = table[usize::from(pixel[channel])];
                    }
                }
                DType::UInt16 => {
                    let samples = image
                        .data
                        .as_chunks::<2>()
                        .0
                        .iter()
                        .skip(channel)
                        .step_by(channels);
                    for (value, sample) in places.zip(samples) {
                        *value = normal(f32::from(u16::from_le_bytes(*sample))).to_le_bytes();
                    }
                }
                _ => {
                    let samples = image
                        .data
                        .as_chunks::<4>()
                        .0
                        .iter()
                        .skip(channel)
                        .step_by(channels);
                    for (value, sample) in places.zip(samples) {
                        *value = normal(f32::from_le_bytes(*sample)).to_le_bytes();
                    }
                }
            }
        }
        let shape = match self.layout {
            Layout::ChannelsLast => [image.height, image.width, channels],
            Layout::ChannelsFirst => [channels, image.height, image.width],
        };
        element.set(&*self.feature, Array::new(DType::Float32, shape, out)?);
        Ok(element)
    }
}
