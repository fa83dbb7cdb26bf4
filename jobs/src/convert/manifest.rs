//! `prep_convert.json`: what a folder of shards was made from, so that the same request again can be told from another.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result};
use prep_catalog::manifest::Manifest;
use prep_formats::store::{self, Location};
use serde::{Deserialize, Serialize};

use crate::convert::write_synced;
use crate::place::ours;

/// File name in the output's folder.
pub(crate) const MANIFEST_FILE: &str = "prep_convert.json";
/// The format written, and the only one taken for "up to date".
pub(crate) const FORMAT: u32 = 1;

/// What was made, and from what. A function of inputs and options only: no time, path or number of workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Converted {
    pub(crate) format: u32,
    /// What was asked for.
    pub(crate) request: serde_json::Value,
    pub(crate) inputs: Vec<ConvertedInput>,
    pub(crate) records: u64,
    /// Records left out by the filter, and as repeated.
    pub(crate) filtered: u64,
    pub(crate) duplicates: u64,
    pub(crate) shards: Vec<ConvertedShard>,
    /// Files of a TFDS folder that came over beside the shards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<String>,
}

/// An input as it was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConvertedInput {
    /// Its file name, without folders.
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) bytes: u64,
    /// Bytes from its start that were read, and their CRC-64/NVME, hex: all of them, unless a limit left out the end.
    pub(crate) read: u64,
    pub(crate) crc64: String,
    pub(crate) records: u64,
    /// Damaged records left out.
    pub(crate) skipped: u64,
}

/// A shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConvertedShard {
    pub(crate) path: String,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// CRC-64/NVME of the file, hex.
    pub(crate) crc64: String,
}

/// The files of a conversion's folder, as it lists them, and as the manifest of the version does that it is in a catalog.
pub(crate) fn listed(folder: &Location) -> Result<HashSet<String>> {
    let mut files = HashSet::new();
    let text = store::read_file(&folder.join(MANIFEST_FILE))?;
    if let Some(found) = text.and_then(|text| Converted::from_json(&text)) {
        files.extend(found.shards.into_iter().map(|shard| shard.path));
        files.extend(found.files);
    }
    if let Ok(manifest) = Manifest::read(folder) {
        files.extend(ours::listed(&manifest));
    }
    Ok(files)
}

impl Converted {
    /// Damaged records left out, of all inputs.
    pub(crate) fn skipped(&self) -> u64 {
        self.inputs.iter().map(|input| input.skipped).sum()
    }

    /// Parses the file; `None` of one that this version does not understand.
    pub(crate) fn from_json(text: &[u8]) -> Option<Self> {
        let found: Self = serde_json::from_slice(text).ok()?;
        (found.format == FORMAT).then_some(found)
    }

    /// Writes it into a folder, durably.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self).context("could not write the manifest")?;
        text.push('\n');
        write_synced(&folder.join(MANIFEST_FILE), text.as_bytes())
    }
}
