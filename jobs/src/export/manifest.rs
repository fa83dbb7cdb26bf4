//! `prep_export.json`: what a folder was exported from, so that the same request again can be told from another.

use std::collections::HashSet;

use anyhow::Result;
use prep_catalog::Resolved;
use prep_formats::store::{self, Location};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// File name in the folder; it is written last.
pub(crate) const MANIFEST_FILE: &str = "prep_export.json";
/// The format written, and the only one taken for "up to date".
pub(crate) const FORMAT: u32 = 1;

/// What was made, and from what: no time, path or number of workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exported {
    pub(crate) format: u32,
    /// What was asked for.
    pub(crate) request: Json,
    pub(crate) dataset: Origin,
    /// In the order of their splits.
    pub(crate) files: Vec<ExportedFile>,
}

/// The version that was exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) name: String,
    pub(crate) config: Option<String>,
    pub(crate) version: String,
    pub(crate) fingerprint: String,
    pub(crate) manifest_sha256: String,
}

/// A file of records.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExportedFile {
    pub(crate) split: String,
    /// With `/` between its parts, relative to the folder.
    pub(crate) path: String,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

impl Origin {
    pub(crate) fn of(found: &Resolved) -> Self {
        Self {
            name: found.name.clone(),
            config: found.config.clone(),
            version: found.version.clone(),
            fingerprint: found.manifest.fingerprint.clone(),
            manifest_sha256: found.manifest.sha256(),
        }
    }
}

/// The files of an export's folder.
pub(crate) fn listed(folder: &Location) -> Result<HashSet<String>> {
    let text = store::read_file(&folder.join(MANIFEST_FILE))?;
    let found = text.and_then(|text| Exported::from_json(&text)).into_iter();
    Ok(found
        .flat_map(|found| found.files)
        .map(|file| file.path)
        .collect())
}

impl Exported {
    /// Parses the file; `None` of one that this version does not understand.
    pub(crate) fn from_json(text: &[u8]) -> Option<Self> {
        let found: Self = serde_json::from_slice(text).ok()?;
        (found.format == FORMAT).then_some(found)
    }

    /// The text of the file.
    ///
    /// # Panics
    /// Never: it is texts and numbers.
    pub(crate) fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("an export is texts and whole numbers");
        text.push('\n');
        text
    }
}
