//! Features: the schema of examples, as TFDS's `features.json` describes it.
//!
//! All of TFDS's connectors are here. How each is stored in a `tf.train.Example`, as TFDS stores it:
//!
//! | feature | list |
//! |---|---|
//! | `Text`, string `Scalar` and `Tensor` | byte strings |
//! | `ClassLabel`, integers, `bool` | 64-bit integers; `uint64` by its bits |
//! | floats, `BBox` | 32-bit floats, `float64` too: what they cannot hold is rounded. [`Encoding::Bytes`] keeps it |
//! | `Tensor`, `Audio` with an [`Encoding`] | one byte string, the memory of the elements; with several varying dimensions the shape beside it |
//! | `Image`, `LabeledImage` | one byte string, an image file; `float32` pixels are the bytes of an RGBA PNG |
//! | `Audio` with `lazy_decode` | one byte string, a sound file |
//! | `Dict`, `Translation` | the lists of what is nested, names joined with `/` |
//! | `Sequence`, `Dataset`, `Video`, `TranslationVariableLanguages` | the values of all elements in one list; sequences in sequences with the row lengths of each inner level |
//! | `Optional`, missing | no list |
//!
//! Source: `core/features` and `core/example_serializer.py` of TFDS 4.9.

mod encode;
mod feature;
mod folder;
mod schema_json;
pub(crate) mod stored;

use serde_json::Value as Json;

use crate::value::DType;
use crate::{Error, Result};

pub use encode::ExampleEncoder;
pub use feature::{Encoding, Feature};
pub(crate) use feature::{Shape, shape_fits};
pub use folder::FILE_NAME;

/// A schema: named features, in sorted order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Features {
    features: Vec<(String, Feature)>,
    /// What `features.json` says beyond what features hold: descriptions, ranges of values, colour maps. Written back as it is, where
    /// the same features are.
    other: Json,
}

impl Features {
    /// A schema of these features; sorts them by name.
    ///
    /// # Errors
    /// A name that comes twice or would be stored as another one, and what TFDS refuses: an image that is not `[height, width, channels]`
    /// with 1 to 4 channels, label names that are empty, repeated, or not as many as there are classes, byte strings with an encoding.
    pub fn new(mut features: Vec<(String, Feature)>) -> Result<Self> {
        features.sort_by(|(a, _), (b, _)| a.cmp(b));
        feature::check_all(&features, "").map_err(|(path, reason)| {
            Error::Invalid(if reason == "declared twice" {
                format!("feature `{path}` is declared twice")
            } else {
                format!("feature `{path}`: {reason}")
            })
        })?;
        if let Some(name) = stored::collision(&features) {
            return Err(Error::Invalid(format!(
                "two features would be stored as `{name}`: rename one of them"
            )));
        }
        Ok(Self {
            features,
            other: Json::Null,
        })
    }

    /// Names and features, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Feature)> {
        self.features
            .iter()
            .map(|(name, feature)| (name.as_str(), feature))
    }

    /// How many features there are, nested ones not counted.
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

    /// The schema of some of the features: by name, or `a/b` for the feature `b` nested in `a`.
    ///
    /// # Errors
    /// A name that is not in the schema, or comes twice.
    pub fn select(&self, names: &[impl AsRef<str>]) -> Result<Self> {
        let mut selected: Vec<(String, Feature)> = Vec::new();
        for name in names {
            let name = name.as_ref();
            if self.get(name).is_some_and(|feature| {
                if selected.iter().any(|(other, _)| other == name) {
                    return false;
                }
                selected.push((name.to_string(), feature.clone()));
                true
            }) {
                continue;
            }
            if self.get(name).is_some() || !select_nested(&self.features, name, &mut selected) {
                let all: Vec<String> = self.iter().map(|(name, _)| format!("`{name}`")).collect();
                let reason = if self.get(name).is_some() {
                    "selected twice".to_string()
                } else {
                    format!("not in the schema, which has {}", all.join(", "))
                };
                return Err(Error::Invalid(format!("feature `{name}` is {reason}")));
            }
        }
        Self::new(selected)
    }

    /// The same features under other names: (old, new) of features that are not nested.
    ///
    /// # Errors
    /// An old name that is not in the schema, or comes twice; names that would be taken twice.
    pub fn rename(&self, names: &[(String, String)]) -> Result<Self> {
        let mut features = self.features.clone();
        for (index, (old, new)) in names.iter().enumerate() {
            let at = self
                .features
                .binary_search_by(|(name, _)| name.as_str().cmp(old.as_str()));
            let Some(at) = at
                .ok()
                .filter(|_| names[..index].iter().all(|(other, _)| other != old))
            else {
                let all: Vec<String> = self.iter().map(|(name, _)| format!("`{name}`")).collect();
                return Err(Error::Invalid(format!(
                    "feature `{old}` cannot be renamed: there are {}, each once",
                    all.join(", ")
                )));
            };
            features[at].0.clone_from(new);
        }
        Self::new(features)
    }

    /// The names of the lists that examples of this schema hold, in the order of the features: `a` for most, `a/b` for what is nested, and for
    /// sequences in sequences the row lengths beside the values. See the table above.
    pub fn stored_names(&self) -> Vec<String> {
        self.features
            .iter()
            .flat_map(|(name, feature)| stored::names([(name.as_str(), feature)]))
            .collect()
    }

    /// Makes an encoder with buffers of its own, for one thread.
    pub fn encoder(&self) -> ExampleEncoder {
        ExampleEncoder::new(self)
    }

    /// The features that may be missing and that TFDS cannot read for it, though it declares them: each with what is in its way.
    ///
    /// Source: `Tensor._default_value`, `get_serialized_info` and `decode_example` in TFDS 4.9.10, which stand a number of the feature's own type and
    /// shape in for what is missing.
    ///
    /// # Examples
    /// ```
    /// use prep_formats::features::{Feature, Features};
    /// use prep_formats::value::DType;
    ///
    /// let optional = |feature| Feature::Optional(Box::new(feature));
    /// let features = Features::new(vec![
    ///     ("fixed".into(), optional(Feature::tensor(vec![Some(2)], DType::Int64))),
    ///     ("varying".into(), optional(Feature::tensor(vec![None], DType::Int64))),
    /// ])?;
    /// let found = features.missing_beyond_tfds();
    /// assert_eq!(found, [("varying".to_string(), "a varying shape")]);
    /// # Ok::<(), prep_formats::Error>(())
    /// ```
    pub fn missing_beyond_tfds(&self) -> Vec<(String, &'static str)> {
        let reason = |feature: &Feature| match feature {
            Feature::Tensor { shape, .. } if shape.contains(&None) => Some("a varying shape"),
            Feature::Tensor { encoding, .. } if *encoding != Encoding::None => Some("an encoding"),
            feature if feature.dtype() == Some(DType::BFloat16) => Some("the type bfloat16"),
            _ => None,
        };
        let optional = self.leaves().into_iter().filter(|leaf| leaf.optional);
        optional
            .filter_map(|leaf| Some((leaf.name(), reason(&leaf.feature)?)))
            .collect()
    }

    pub(crate) fn leaves(&self) -> Vec<stored::Leaf> {
        stored::leaves(self.iter())
    }
}

/// Adds the feature `a/b` of nested features to those selected, inside an `a` of its own or one that is there.
fn select_nested(features: &[(String, Feature)], name: &str, selected: &mut Vec<(String, Feature)>) -> bool {
    features.iter().any(|(outer, feature)| {
        let Some(inner) = name
            .strip_prefix(outer.as_str())
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            return false;
        };
        let Feature::Dict(nested) = feature else {
            return false;
        };
        let at = match selected.iter().position(|(other, _)| other == outer) {
            Some(at) => at,
            None => {
                selected.push((outer.clone(), Feature::Dict(Vec::new())));
                selected.len() - 1
            }
        };
        let Feature::Dict(inside) = &mut selected[at].1 else {
            return false;
        };
        let found = match nested.iter().find(|(other, _)| other == inner) {
            Some((_, feature)) if inside.iter().all(|(other, _)| other != inner) => {
                inside.push((inner.to_string(), feature.clone()));
                true
            }
            Some(_) => false,
            None => select_nested(nested, inner, inside),
        };
        inside.sort_by(|(a, _), (b, _)| a.cmp(b));
        found
    })
}
