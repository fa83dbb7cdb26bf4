//! `dataset_info.json`: what TFDS writes about a dataset version.

use crate::Result;

/// The contents of `dataset_info.json`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DatasetInfo {
    /// Dataset name.
    pub name: String,
    /// Config name, where there is one.
    pub config_name: Option<String>,
    /// Version, `major.minor.patch`.
    pub version: String,
    /// What it is.
    pub description: String,
    /// How to cite it.
    pub citation: String,
    /// Home pages.
    pub urls: Vec<String>,
    /// Python module of the TFDS builder, for built-ins.
    pub module_name: Option<String>,
    /// Bytes of all sources.
    pub download_size: u64,
    /// `array_record` or `tfrecord`.
    pub file_format: String,
    /// Feature names of (input, target), where there are such.
    pub supervised_keys: Option<(String, String)>,
    /// Splits, in the builder's order.
    pub splits: Vec<SplitInfo>,
}

/// One split in `dataset_info.json`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SplitInfo {
    /// Split name.
    pub name: String,
    /// Records of each shard.
    pub shard_lengths: Vec<u64>,
    /// Bytes of all records (payload only).
    pub num_bytes: u64,
    /// File name pattern, `{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}`.
    pub filepath_template: String,
}

impl DatasetInfo {
    /// Parses the JSON text.
    pub fn from_json(_text: &str) -> Result<Self> {
        todo!()
    }
    /// The JSON text, byte for byte as TFDS 4.9 writes it.
    pub fn to_json(&self) -> String {
        todo!()
    }
}
