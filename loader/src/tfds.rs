//! Folders that TFDS wrote: a version's files without a manifest of ours.
//!
//! Source: `core/dataset_info.py`, `core/splits.py` and `ShardedFileTemplate` in `core/naming.py` of TFDS 4.9.

use std::path::Path;

use prep_catalog::manifest::{MANIFEST_FORMAT, Manifest, ShardManifest, SplitManifest};
use prep_formats::dataset_info::DatasetInfo;
use prep_formats::features::Features;
use prep_formats::store::Location;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The files that make a folder one of TFDS's.
pub(crate) const TFDS_FILES: [&str; 2] = ["dataset_info.json", "features.json"];

/// How the records of a TFDS folder are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardFormat {
    ArrayRecord,
    TfRecord,
}

/// Describes the folder as a manifest would. Looks at the size of each shard, and reads none.
///
/// Its hashes are those of the description (features, splits, names, lengths and sizes of shards), since nobody recorded those of the records.
pub(crate) fn describe(folder: &Location) -> Result<(Manifest, Features, ShardFormat)> {
    let path = folder
        .as_path()
        .ok_or_else(|| Error::Options(format!("{folder}: only local datasets can be opened yet")))?;
    let info_path = path.join(TFDS_FILES[0]);
    let text = std::fs::read_to_string(&info_path).map_err(prep_formats::Error::io(&info_path, "read"))?;
    let place = prep_formats::Position {
        path: info_path.display().to_string(),
        ..prep_formats::Position::default()
    };
    let info = DatasetInfo::from_json(&text).map_err(|error| error.with_position(&place))?;
    let features = Features::read_folder(&path)?;
    let format = match info.file_format.as_str() {
        "array_record" => ShardFormat::ArrayRecord,
        // Datasets of before there was a choice.
        "tfrecord" | "" => ShardFormat::TfRecord,
        other => {
            return Err(Error::Options(format!(
                "{folder}: its shards are `{other}` files; `array_record` and `tfrecord` can be read"
            )));
        }
    };
    let mut splits = Vec::with_capacity(info.splits.len());
    for split in &info.splits {
        let count = split.shard_lengths.len();
        let mut shards = Vec::with_capacity(count);
        for (number, &records) in split.shard_lengths.iter().enumerate() {
            let name = split.shard_name(&info.name, format.name(), number);
            let file = path.join(&name);
            let metadata = std::fs::metadata(&file).map_err(prep_formats::Error::io(&file, "open"))?;
            shards.push(ShardManifest {
                path: name,
                records,
                bytes: metadata.len(),
                sha256: String::new(),
                sequence_hash: String::new(),
                min_key: None,
                max_key: None,
            });
        }
        splits.push(SplitManifest {
            name: split.name.clone(),
            records: split.shard_lengths.iter().sum(),
            bytes: split.num_bytes,
            options: String::new(),
            skipped: 0,
            shards,
        });
    }
    let mut manifest = Manifest {
        format: MANIFEST_FORMAT,
        name: info.name,
        config: info.config_name,
        version: info.version,
        fingerprint: String::new(),
        recipe_sha256: String::new(),
        layout: "tfds".into(),
        sources: Vec::new(),
        splits,
    };
    let mut hash = Sha256::new();
    hash.update(features.canonical_json());
    hash.update(manifest.to_json());
    manifest.fingerprint = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((manifest, features, format))
}

impl ShardFormat {
    fn name(self) -> &'static str {
        match self {
            Self::ArrayRecord => "array_record",
            Self::TfRecord => "tfrecord",
        }
    }
}

/// Whether a folder is one of TFDS's, with or without a manifest of ours.
pub fn is_tfds_folder(folder: &Path) -> bool {
    TFDS_FILES.iter().all(|name| folder.join(name).is_file())
}
