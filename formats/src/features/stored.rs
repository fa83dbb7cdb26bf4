//! Which lists of an example a schema is stored in.
//!
//! | feature | lists |
//! |---|---|
//! | `a`, or `b` nested in `a` | `a`, `a/b` |
//! | inside one sequence | the same: the elements' values one after another |
//! | inside `n` sequences, `n` from 2 | `a/ragged_flat_values`, and `a/ragged_row_lengths_0` to `_(n - 2)`: the lengths of the sequences of each level but the outermost, which has as many as `_0` has numbers |
//! | encoded tensor with more than one varying dimension | `a/shape` and `a/value`, each as above |
//! | optional, and missing | none |
//!
//! Source: `core/example_serializer.py` and `Tensor.get_serialized_info` in TFDS 4.9.

use crate::features::feature::{Encoding, Feature};

/// One feature that is not made of others, with what it is nested in.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    /// Names from the outermost in.
    pub(crate) path: Vec<String>,
    /// None of `Optional`, `Video`, `Sequence`, `Dataset`, `Dict`, `Translation`, `TranslationVariableLanguages`.
    pub(crate) feature: Feature,
    /// Whether examples may lack it.
    pub(crate) optional: bool,
    /// Lengths of the sequences around it, the outermost first.
    pub(crate) levels: Vec<Option<u64>>,
}

/// The names that the values of a leaf are stored under.
#[derive(Debug, Clone)]
pub(crate) struct StoredNames {
    /// The values.
    pub(crate) values: String,
    /// The row lengths of each level of sequences but the outermost.
    pub(crate) lengths: Vec<String>,
}

impl Leaf {
    /// The name of the column: names joined with `/`.
    pub(crate) fn name(&self) -> String {
        self.path.join("/")
    }

    /// Whether the shape of each value is stored beside it.
    pub(crate) fn has_shape(&self) -> bool {
        match &self.feature {
            Feature::Tensor { shape, encoding, .. } | Feature::Audio { shape, encoding, .. } => {
                *encoding != Encoding::None && shape.iter().filter(|size| size.is_none()).count() > 1
            }
            _ => false,
        }
    }

    /// Where the values are stored.
    pub(crate) fn values(&self) -> StoredNames {
        let name = self.name();
        self.ragged(if self.has_shape() {
            format!("{name}/value")
        } else {
            name
        })
    }

    /// Where the shapes are stored, if they are.
    pub(crate) fn shapes(&self) -> Option<StoredNames> {
        self.has_shape()
            .then(|| self.ragged(format!("{}/shape", self.name())))
    }

    fn ragged(&self, name: String) -> StoredNames {
        if self.levels.len() < 2 {
            return StoredNames {
                values: name,
                lengths: Vec::new(),
            };
        }
        StoredNames {
            values: format!("{name}/ragged_flat_values"),
            lengths: (0..self.levels.len() - 1)
                .map(|level| format!("{name}/ragged_row_lengths_{level}"))
                .collect(),
        }
    }
}

/// The leaves of a schema, sorted by their names.
pub(crate) fn leaves<'a>(features: impl IntoIterator<Item = (&'a str, &'a Feature)>) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for (name, feature) in features {
        collect(feature, &mut vec![name.to_string()], &mut Vec::new(), &mut leaves);
    }
    leaves.sort_by_cached_key(Leaf::name);
    leaves
}

fn collect(feature: &Feature, path: &mut Vec<String>, levels: &mut Vec<Option<u64>>, leaves: &mut Vec<Leaf>) {
    let mut nested = |name: &str, feature: &Feature, levels: &mut Vec<Option<u64>>| {
        path.push(name.to_string());
        collect(feature, path, levels, leaves);
        path.pop();
    };
    match feature {
        Feature::Dict(features) => {
            for (name, feature) in features {
                nested(name, feature, levels);
            }
        }
        Feature::Translation { languages } => {
            for language in languages {
                nested(language, &Feature::Text, levels);
            }
        }
        Feature::TranslationVariableLanguages { .. } => {
            levels.push(None);
            nested("language", &Feature::Text, levels);
            nested("translation", &Feature::Text, levels);
            levels.pop();
        }
        Feature::Sequence { feature, length } | Feature::Dataset { feature, length } => {
            levels.push(*length);
            collect(feature, path, levels, leaves);
            levels.pop();
        }
        Feature::Video { .. } => {
            let (length, frame) = frames(feature);
            levels.push(length);
            collect(&frame, path, levels, leaves);
            levels.pop();
        }
        Feature::Optional(inner) => leaves.push(Leaf {
            path: path.clone(),
            feature: (**inner).clone(),
            // A sequence has no place for an element that is missing.
            optional: levels.is_empty(),
            levels: levels.clone(),
        }),
        leaf => leaves.push(Leaf {
            path: path.clone(),
            feature: leaf.clone(),
            optional: false,
            levels: levels.clone(),
        }),
    }
}

/// A video's number of frames, and a frame as an image.
pub(crate) fn frames(video: &Feature) -> (Option<u64>, Feature) {
    match video {
        Feature::Video {
            shape,
            dtype,
            encoding_format,
        } => {
            let (length, frame) = match shape.split_first() {
                Some((length, frame)) => (*length, frame.to_vec()),
                None => (None, Vec::new()),
            };
            let frame = Feature::Image {
                shape: frame,
                dtype: *dtype,
                encoding_format: encoding_format.clone(),
            };
            (length, frame)
        }
        other => (None, other.clone()),
    }
}

/// The names of all lists that features are stored in.
pub(crate) fn names<'a>(features: impl IntoIterator<Item = (&'a str, &'a Feature)>) -> Vec<String> {
    let mut names = Vec::new();
    for leaf in leaves(features) {
        for stored in std::iter::once(leaf.values()).chain(leaf.shapes()) {
            names.push(stored.values);
            names.extend(stored.lengths);
        }
    }
    names
}

/// Two things of a schema that would be stored under one name.
pub(crate) fn collision(features: &[(String, Feature)]) -> Option<String> {
    // Without nesting there is none: names differ.
    let mut names = names(features.iter().map(|(name, feature)| (name.as_str(), feature)));
    // Nested features of no features are nowhere, and take no name.
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1])?;
    Some(twice[0].clone())
}

/// The name of a label file. Source: `get_names_filepath` and `convert_feature_name_to_filename` in TFDS.
pub(super) fn label_file(parent: Option<&str>, name: &str) -> String {
    let name = name.replace('/', ".");
    match parent {
        None => name,
        Some(parent) => format!("{}-{name}", parent.replace('/', "-")),
    }
}
