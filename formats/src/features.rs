//! Features: the schema of examples, as TFDS's `features.json` describes it.

use std::path::Path;

use crate::Result;
use crate::value::{DType, Value};

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
    /// A schema of these features; sorts them by name. An error if a name comes twice.
    pub fn new(_features: Vec<(String, Feature)>) -> Result<Self> {
        todo!()
    }
    /// Names and features, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Feature)> {
        self.features
            .iter()
            .map(|(name, feature)| (name.as_str(), feature))
    }
    /// Reads the schema of a TFDS folder: `features.json` and `*.labels.txt`.
    pub fn read_folder(_folder: &Path) -> Result<Self> {
        todo!()
    }
    /// The files of a TFDS folder that describe this schema: (`features.json`, text), (`label.labels.txt`, text) and so on.
    pub fn to_files(&self) -> Vec<(String, String)> {
        todo!()
    }
    /// A canonical one-line JSON of the schema, label names included: what fingerprints are made over.
    pub fn canonical_json(&self) -> String {
        todo!()
    }
    /// Makes an encoder with buffers of its own, for one thread.
    pub fn encoder(&self) -> ExampleEncoder {
        todo!()
    }
}

/// Encodes typed values as `tf.train.Example` bytes under a schema, features in sorted order.
#[derive(Debug)]
pub struct ExampleEncoder {}
impl ExampleEncoder {
    /// Appends the encoded example to `out`. `values` may come in any order, each feature once.
    ///
    /// # Errors
    /// A missing or unknown feature, a wrong type or shape, a label out of range: named with feature, found and wanted.
    pub fn encode(&mut self, _values: &[(&str, Value)], _out: &mut Vec<u8>) -> Result<()> {
        todo!()
    }
}
