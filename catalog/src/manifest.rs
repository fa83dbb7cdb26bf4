//! The immutable description of a dataset version: what lies in its folder, and what it was made from.

use serde::{Deserialize, Serialize};

/// File name of the manifest inside a version's folder.
pub const MANIFEST_FILE: &str = "prep_manifest.json";

/// A dataset version's immutable description. A pure function of recipe, source bytes and output options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format: 1.
    pub format: u32,
    /// Dataset.
    pub name: String,
    /// Config; `null` without one.
    pub config: Option<String>,
    /// Version, `major.minor.patch`.
    pub version: String,
    /// Content fingerprint, hex: features and the ordered hashes of records.
    pub fingerprint: String,
    /// SHA-256 of what decides the output: canonical recipe and output options.
    pub recipe_sha256: String,
    /// `tfds` or `by-source`.
    pub layout: String,
    /// Sources, in the recipe's order.
    pub sources: Vec<SourceManifest>,
    /// Splits, in the builder's order.
    pub splits: Vec<SplitManifest>,
}

/// A source file that went into a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceManifest {
    /// File name in the recipe.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, hex.
    pub sha256: String,
}

/// A split's shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitManifest {
    /// Split name.
    pub name: String,
    /// Number of records.
    pub records: u64,
    /// Bytes of all records (payload only).
    pub bytes: u64,
    /// ArrayRecord options of the shards.
    pub options: String,
    /// Records left out under `--on-error skip`.
    pub skipped: u64,
    /// Shards in order.
    pub shards: Vec<ShardManifest>,
}

/// One shard file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardManifest {
    /// Path relative to the version's folder.
    pub path: String,
    /// Number of records.
    pub records: u64,
    /// File size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// Smallest sort key, hex; `null` for an empty shard.
    pub min_key: Option<String>,
    /// Largest sort key, hex.
    pub max_key: Option<String>,
}
