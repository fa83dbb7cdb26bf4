//! Features: the schema of examples, as TFDS's `features.json` describes it.
//!
//! How each is stored in a `tf.train.Example`, as TFDS stores it:
//!
//! | feature | list |
//! |---|---|
//! | `Text`, string `Scalar` and `Tensor` | byte strings |
//! | `ClassLabel`, integers, `bool` | 64-bit integers; `uint64` by its bits |
//! | floats | 32-bit floats, `float64` too: what they cannot hold is rounded |
//! | `Image` | one byte string, an image file; `float32` pixels are the bytes of an RGBA PNG |
//!
//! Source: `core/features` and `core/example_serializer.py` of TFDS 4.9.

mod encode;
mod folder;

use std::collections::HashSet;
use std::fmt;

use crate::value::DType;
use crate::{Error, Result};

pub use encode::ExampleEncoder;

/// The description of one feature. Field names follow TFDS's connectors.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Feature {
    /// A dense array; `None` is a dimension that varies from example to example.
    Tensor {
        /// Dimensions.
        shape: Vec<Option<u64>>,
        /// Element type.
        dtype: DType,
    },
    /// A single number or byte string.
    Scalar {
        /// Element type.
        dtype: DType,
    },
    /// UTF-8 text.
    Text,
    /// A class by number, with names where they are known.
    ClassLabel {
        /// How many classes.
        num_classes: u64,
        /// Names by number; empty where there are none.
        names: Vec<String>,
    },
    /// A picture, stored encoded.
    Image {
        /// `[height, width, channels]`; `None` where it varies.
        shape: Vec<Option<u64>>,
        /// `uint8`, `uint16` or `float32`.
        dtype: DType,
        /// `png` or `jpeg`; `None`: PNG when pixels are given, else as given.
        encoding_format: Option<String>,
    },
}

/// A schema: named features, in sorted order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Features {
    features: Vec<(String, Feature)>,
}

impl Features {
    /// A schema of these features; sorts them by name.
    ///
    /// # Errors
    /// A name that comes twice, and what TFDS refuses: an image that is not `[height, width, channels]` with 1 to 4 channels,
    /// label names that are empty, repeated, or not as many as there are classes.
    pub fn new(mut features: Vec<(String, Feature)>) -> Result<Self> {
        features.sort_by(|(a, _), (b, _)| a.cmp(b));
        if let Some(pair) = features.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::Invalid(format!(
                "feature `{}` is declared twice",
                pair[0].0
            )));
        }
        for (name, feature) in &features {
            feature
                .check()
                .map_err(|reason| Error::Invalid(format!("feature `{name}`: {reason}")))?;
        }
        Ok(Self { features })
    }

    /// Names and features, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Feature)> {
        self.features
            .iter()
            .map(|(name, feature)| (name.as_str(), feature))
    }

    /// How many features there are.
    pub fn len(&self) -> usize {
        self.features.len()
    }

    /// Whether there are no features.
    pub fn is_empty(&self) -> bool {
        self.features.is_empty()
    }

    /// The feature of that name.
    pub fn get(&self, name: &str) -> Option<&Feature> {
        let index = self
            .features
            .binary_search_by(|(other, _)| other.as_str().cmp(name));
        Some(&self.features[index.ok()?].1)
    }

    /// Makes an encoder with buffers of its own, for one thread.
    pub fn encoder(&self) -> ExampleEncoder {
        ExampleEncoder::new(self)
    }
}

impl Feature {
    /// The element type of the decoded value.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Tensor { dtype, .. } | Self::Scalar { dtype } | Self::Image { dtype, .. } => *dtype,
            Self::Text => DType::String,
            Self::ClassLabel { .. } => DType::Int64,
        }
    }

    /// The shape of the decoded value; `None` where it varies from example to example.
    pub fn shape(&self) -> &[Option<u64>] {
        match self {
            Self::Tensor { shape, .. } | Self::Image { shape, .. } => shape,
            Self::Scalar { .. } | Self::Text | Self::ClassLabel { .. } => &[],
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Image {
                shape,
                dtype,
                encoding_format,
            } => {
                let jpeg = match encoding_format.as_deref() {
                    None | Some("png") => false,
                    Some("jpeg") => true,
                    Some(other) => {
                        return Err(format!("encoding format is `{other}`, wanted `png` or `jpeg`"));
                    }
                };
                let channels = match shape[..] {
                    [_, _, channels] => channels,
                    _ => {
                        return Err(format!(
                            "image of shape {}, wanted [height, width, channels]",
                            Shape(shape)
                        ));
                    }
                };
                let allowed = match (dtype, jpeg) {
                    (DType::UInt8, true) => channels.is_none_or(|n| n == 1 || n == 3),
                    (DType::UInt8 | DType::UInt16, false) => channels.is_none_or(|n| (1..=4).contains(&n)),
                    (DType::Float32, false) => channels == Some(1),
                    _ => false,
                };
                if !allowed {
                    return Err(format!(
                        "image of {dtype} {}{}: PNG takes 1 to 4 channels of uint8 or uint16 or one of float32, JPEG 1 or 3 of uint8",
                        Shape(shape),
                        if jpeg { " as JPEG" } else { "" }
                    ));
                }
                Ok(())
            }
            Self::ClassLabel { num_classes, names } => {
                if !names.is_empty() && names.len() as u64 != *num_classes {
                    return Err(format!("{} names for {num_classes} classes", names.len()));
                }
                if i64::try_from(*num_classes).is_err() {
                    return Err(format!("{num_classes} classes are too many"));
                }
                let mut seen = HashSet::new();
                for (number, name) in names.iter().enumerate() {
                    if name.trim().is_empty() || name.contains('\n') || name.trim() != name {
                        return Err(format!(
                            "label {number} is named {name:?}: names are kept one a line, without spaces around them"
                        ));
                    }
                    if !seen.insert(name) {
                        return Err(format!("label name `{name}` comes twice"));
                    }
                }
                Ok(())
            }
            Self::Tensor { .. } | Self::Scalar { .. } | Self::Text => Ok(()),
        }
    }
}

/// Prints a shape as `[None, 32, 3]`.
pub(crate) struct Shape<'a>(pub(crate) &'a [Option<u64>]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (number, dimension) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(", ")?;
            }
            match dimension {
                Some(size) => write!(f, "{size}")?,
                None => f.write_str("None")?,
            }
        }
        f.write_str("]")
    }
}

/// Whether a shape is one of those that a schema allows.
pub(crate) fn shape_fits(shape: &[usize], wanted: &[Option<u64>]) -> bool {
    shape.len() == wanted.len()
        && shape
            .iter()
            .zip(wanted)
            .all(|(&size, wanted)| wanted.is_none_or(|wanted| wanted == size as u64))
}
