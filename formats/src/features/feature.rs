//! The kinds of features, as TFDS's connectors have them.

use std::collections::HashSet;
use std::fmt;

use crate::value::{Class, DType};

/// The description of one feature. Field names follow TFDS's connectors.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Feature {
    /// A dense array; `None` is a dimension that varies from example to example.
    Tensor {
        /// Dimensions. More than one that varies needs an encoding, since only then the shape is stored.
        shape: Vec<Option<u64>>,
        /// Element type.
        dtype: DType,
        /// How the elements are stored.
        encoding: Encoding,
    },
    /// A single number or byte string.
    Scalar {
        /// Element type.
        dtype: DType,
    },
    /// A `Tensor` or `Scalar` that an example may lack.
    Optional(Box<Feature>),
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
        /// `[height, width, channels]`; `None` where it varies. `[frames, height, width, channels]` for an animated GIF.
        shape: Vec<Option<u64>>,
        /// `uint8`, `uint16` or `float32`.
        dtype: DType,
        /// `png` or `jpeg`; `None`: PNG when pixels are given, else as given.
        encoding_format: Option<String>,
    },
    /// A picture of one channel whose pixels are class numbers.
    LabeledImage {
        /// `[height, width, 1]`; `None` where it varies.
        shape: Vec<Option<u64>>,
        /// `uint8` or `uint16`.
        dtype: DType,
        /// `png`, or `None` for the same.
        encoding_format: Option<String>,
        /// How many classes, 0 where that is not known.
        num_classes: u64,
        /// Names by number; empty where there are none.
        names: Vec<String>,
    },
    /// A sequence of pictures of one size.
    Video {
        /// `[frames, height, width, channels]`; `None` where it varies.
        shape: Vec<Option<u64>>,
        /// `uint8` or `uint16`.
        dtype: DType,
        /// As that of `Image`.
        encoding_format: Option<String>,
    },
    /// Samples of sound.
    Audio {
        /// `[samples]` or `[samples, channels]`; `None` where it varies.
        shape: Vec<Option<u64>>,
        /// Element type.
        dtype: DType,
        /// Format of the files it is made from, `wav` for example.
        file_format: Option<String>,
        /// Samples a second.
        sample_rate: Option<u64>,
        /// How the samples are stored.
        encoding: Encoding,
        /// The file is stored in place of its samples, and is what is decoded: one byte string.
        lazy_decode: bool,
    },
    /// A box as `float32[4]`: in the order `ymin`, `xmin`, `ymax`, `xmax`, whatever the format says.
    BBox {
        /// `XYXY`, `YXYX`, `XYWH`, `REL_XYXY` or `REL_YXYX`; with `REL_` coordinates are 0 to 1. `None`: not said, and not checked.
        format: Option<String>,
    },
    /// Any number of values of one feature; of nested features, one sequence of each.
    Sequence {
        /// The feature of an element.
        feature: Box<Feature>,
        /// How many elements, where that is the same in all examples.
        length: Option<u64>,
    },
    /// A dataset inside each example. Stored, encoded and decoded as a sequence.
    Dataset {
        /// The feature of an element.
        feature: Box<Feature>,
        /// How many elements, where that is the same in all examples.
        length: Option<u64>,
    },
    /// Nested features, sorted by name.
    Dict(Vec<(String, Feature)>),
    /// One text in each of these languages.
    Translation {
        /// Language codes, sorted.
        languages: Vec<String>,
    },
    /// Any number of texts in any of these languages: sequences `language` and `translation`, sorted.
    TranslationVariableLanguages {
        /// Language codes, sorted; empty where they are not known.
        languages: Vec<String>,
    },
}

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Encoding {
    /// As a list of 64-bit integers or 32-bit floats.
    #[default]
    None,
    /// As one byte string: the elements in memory, little-endian, C order. Keeps `float64` whole.
    Bytes,
    /// As [`Encoding::Bytes`], compressed as a zlib stream.
    Zlib,
}

impl Encoding {
    /// The name in `features.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bytes => "bytes",
            Self::Zlib => "zlib",
        }
    }

    /// The encoding of that name, in any case; an empty name is [`Encoding::None`].
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "" | "none" => Some(Self::None),
            "bytes" => Some(Self::Bytes),
            "zlib" => Some(Self::Zlib),
            _ => None,
        }
    }
}

/// Formats of boxes. Source: `BBoxFormat` in `core/features/bounding_boxes_utils.py` of TFDS.
const BOX_FORMATS: [&str; 5] = ["XYXY", "YXYX", "XYWH", "REL_XYXY", "REL_YXYX"];

impl Feature {
    /// A tensor that is stored as a list.
    pub fn tensor(shape: impl Into<Vec<Option<u64>>>, dtype: DType) -> Self {
        Self::Tensor {
            shape: shape.into(),
            dtype,
            encoding: Encoding::None,
        }
    }

    /// A sequence of any length.
    pub fn sequence(feature: Self) -> Self {
        Self::Sequence {
            feature: Box::new(feature),
            length: None,
        }
    }

    /// Nested features; sorts them by name.
    pub fn dict<N: Into<String>>(features: impl IntoIterator<Item = (N, Self)>) -> Self {
        let mut features: Vec<_> = features
            .into_iter()
            .map(|(name, feature)| (name.into(), feature))
            .collect();
        features.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self::Dict(features)
    }

    /// TFDS's name of the connector.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Tensor { .. } => "Tensor",
            Self::Scalar { .. } => "Scalar",
            Self::Optional(inner) => inner.class(),
            Self::Text => "Text",
            Self::ClassLabel { .. } => "ClassLabel",
            Self::Image { .. } => "Image",
            Self::LabeledImage { .. } => "LabeledImage",
            Self::Video { .. } => "Video",
            Self::Audio { .. } => "Audio",
            Self::BBox { .. } => "BBoxFeature",
            Self::Sequence { .. } => "Sequence",
            Self::Dataset { .. } => "Dataset",
            Self::Dict(_) => "FeaturesDict",
            Self::Translation { .. } => "Translation",
            Self::TranslationVariableLanguages { .. } => "TranslationVariableLanguages",
        }
    }

    /// The element type of the decoded value; `None` for nested features, which have several.
    pub fn dtype(&self) -> Option<DType> {
        match self {
            Self::Tensor { dtype, .. }
            | Self::Scalar { dtype }
            | Self::Image { dtype, .. }
            | Self::LabeledImage { dtype, .. }
            | Self::Video { dtype, .. }
            | Self::Audio { dtype, .. } => Some(*dtype),
            Self::Optional(feature) | Self::Sequence { feature, .. } | Self::Dataset { feature, .. } => {
                feature.dtype()
            }
            Self::Text => Some(DType::String),
            Self::ClassLabel { .. } => Some(DType::Int64),
            Self::BBox { .. } => Some(DType::Float32),
            Self::Dict(_) | Self::Translation { .. } | Self::TranslationVariableLanguages { .. } => None,
        }
    }

    /// The shape of the decoded value, a sequence's length in front; `None` inside it where that varies from example to example,
    /// `None` as a whole for nested features.
    pub fn shape(&self) -> Option<Vec<Option<u64>>> {
        match self {
            Self::Tensor { shape, .. }
            | Self::Image { shape, .. }
            | Self::LabeledImage { shape, .. }
            | Self::Video { shape, .. }
            | Self::Audio { shape, .. } => Some(shape.clone()),
            Self::Scalar { .. } | Self::Text | Self::ClassLabel { .. } => Some(Vec::new()),
            Self::BBox { .. } => Some(vec![Some(4)]),
            Self::Optional(feature) => feature.shape(),
            Self::Sequence { feature, length } | Self::Dataset { feature, length } => {
                let mut shape = feature.shape()?;
                shape.insert(0, *length);
                Some(shape)
            }
            Self::Dict(_) | Self::Translation { .. } | Self::TranslationVariableLanguages { .. } => None,
        }
    }

    /// What is wrong with a feature, in words; `path` is its name among those it is nested in.
    pub(super) fn check(&self, path: &str) -> Result<(), (String, String)> {
        let at = |result: Result<(), String>| result.map_err(|reason| (path.to_string(), reason));
        match self {
            Self::Image {
                shape,
                dtype,
                encoding_format,
            } => at(check_image(shape, *dtype, encoding_format.as_deref())),
            Self::LabeledImage {
                shape,
                dtype,
                encoding_format,
                num_classes,
                names,
            } => at(check_image(shape, *dtype, encoding_format.as_deref())
                .and_then(|()| match (shape.last(), dtype.class()) {
                    (Some(Some(1)), Class::Integer) if encoding_format.as_deref() != Some("jpeg") => Ok(()),
                    _ => Err(format!(
                        "labeled image of {dtype} {}, wanted one channel of uint8 or uint16, as PNG",
                        Shape(shape)
                    )),
                })
                .and_then(|()| check_names(*num_classes, names))),
            Self::Video {
                shape,
                dtype,
                encoding_format,
            } => at(match shape.split_first() {
                Some((_, frame)) if frame.len() == 3 => {
                    check_image(frame, *dtype, encoding_format.as_deref())
                }
                _ => Err(format!(
                    "video of shape {}, wanted [frames, height, width, channels]",
                    Shape(shape)
                )),
            }),
            Self::ClassLabel { num_classes, names } => at(check_names(*num_classes, names)),
            Self::Tensor {
                shape,
                dtype,
                encoding,
            } => at(check_encoding(shape, *dtype, *encoding)),
            Self::Audio {
                shape,
                dtype,
                encoding,
                lazy_decode,
                ..
            } => {
                if shape.len() > 2 || shape.is_empty() {
                    return at(Err(format!(
                        "audio of shape {}, wanted [samples] or [samples, channels]",
                        Shape(shape)
                    )));
                }
                if *lazy_decode && *encoding != Encoding::None {
                    return at(Err(format!(
                        "audio that is kept as a file has encoding `{}`, wanted `none`",
                        encoding.name()
                    )));
                }
                at(check_encoding(shape, *dtype, *encoding))
            }
            Self::BBox { format: Some(format) } if !BOX_FORMATS.contains(&format.as_str()) => {
                at(Err(format!(
                    "box format is `{format}`, wanted one of {}",
                    BOX_FORMATS.join(", ")
                )))
            }
            Self::Optional(feature) => match **feature {
                Self::Tensor { .. } | Self::Scalar { .. } => feature.check(path),
                Self::Text => at(Err(
                    "TFDS does not record that a text is optional; declare an optional scalar of strings"
                        .into(),
                )),
                _ => at(Err(format!(
                    "an optional {}, but only tensors and scalars can be missing; a sequence can be empty",
                    feature.class()
                ))),
            },
            Self::Sequence { feature, length } | Self::Dataset { feature, length } => {
                if length.is_some_and(|length| i64::try_from(length).is_err()) {
                    return at(Err("a sequence of more than 2^63 elements".into()));
                }
                feature.check(path)
            }
            Self::Dict(features) => check_all(features, path),
            Self::Translation { languages } | Self::TranslationVariableLanguages { languages } => {
                at(match languages.windows(2).find(|pair| pair[0] >= pair[1]) {
                    None => Ok(()),
                    Some(pair) => Err(format!(
                        "languages `{}` and `{}` are not in sorted order, each once",
                        pair[0], pair[1]
                    )),
                })
            }
            Self::Scalar { .. } | Self::Text | Self::BBox { .. } => Ok(()),
        }
    }
}

/// Checks features side by side; they have to be sorted.
pub(super) fn check_all(features: &[(String, Feature)], path: &str) -> Result<(), (String, String)> {
    for pair in features.windows(2) {
        if pair[0].0 >= pair[1].0 {
            let path = join(path, &pair[1].0);
            let reason = if pair[0].0 == pair[1].0 {
                "declared twice"
            } else {
                "not in sorted order"
            };
            return Err((path, reason.to_string()));
        }
    }
    features
        .iter()
        .try_for_each(|(name, feature)| feature.check(&join(path, name)))
}

/// The name of a nested feature.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_string()
    } else {
        format!("{path}/{name}")
    }
}

fn check_image(shape: &[Option<u64>], dtype: DType, format: Option<&str>) -> Result<(), String> {
    let jpeg = match format {
        None | Some("png") => false,
        Some("jpeg") => true,
        Some(other) => {
            return Err(format!("encoding format is `{other}`, wanted `png` or `jpeg`"));
        }
    };
    let channels = match shape[..] {
        [_, _, channels] => channels,
        // A GIF has frames.
        [_, _, _, Some(3)] if format.is_none() && dtype == DType::UInt8 => return Ok(()),
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

fn check_names(num_classes: u64, names: &[String]) -> Result<(), String> {
    if !names.is_empty() && names.len() as u64 != num_classes {
        return Err(format!("{} names for {num_classes} classes", names.len()));
    }
    if i64::try_from(num_classes).is_err() {
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

fn check_encoding(shape: &[Option<u64>], dtype: DType, encoding: Encoding) -> Result<(), String> {
    if dtype == DType::String && encoding != Encoding::None {
        return Err(format!(
            "byte strings {} with encoding `{}`, which is for numbers",
            Shape(shape),
            encoding.name()
        ));
    }
    Ok(())
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
