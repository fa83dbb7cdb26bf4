//! `prep verify` of the files that describe a version, of which the manifest has no hash: TFDS fixes their bytes, and other programs may write them anew.

use prep_catalog::manifest::Manifest;
use prep_formats::dataset_info::{self, DatasetInfo};
use prep_formats::features::{self, Features};
use prep_formats::store::Location;
use prep_formats::{Error, Result};

use crate::cli::verify::is_absent;

/// A file that describes a version.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Description {
    /// The features, with the lists of labels beside them: they are part of the fingerprint.
    Features,
    /// What TFDS says of a version: its splits and how long their shards are.
    Info,
}

impl Description {
    pub(crate) const ALL: [Self; 2] = [Self::Features, Self::Info];

    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Features => features::FILE_NAME,
            Self::Info => dataset_info::FILE_NAME,
        }
    }

    /// How the file differs from what the manifest says; `None` where it does not. What neither records nor manifest depend on, as a description, is free.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn fault(self, at: &Location, manifest: &Manifest) -> Result<Option<String>> {
        let Some(folder) = at.parent() else {
            return Ok(None);
        };
        let found = match self {
            Self::Features => Features::read_location(&folder).map(|found| features_fault(&found, manifest)),
            Self::Info => DatasetInfo::read_location(&folder).map(|found| info_fault(&found, manifest)),
        };
        match found {
            Ok(fault) => Ok(fault),
            Err(error) if is_absent(&error) => Ok(Some("the file is absent".to_owned())),
            Err(error @ (Error::Damaged { .. } | Error::Unsupported { .. } | Error::Invalid(_))) => {
                Ok(Some(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

fn features_fault(found: &Features, manifest: &Manifest) -> Option<String> {
    let fingerprint = manifest.fingerprint_with(&found.canonical_json());
    if fingerprint.as_ref() == Some(&manifest.fingerprint) {
        return None;
    }
    let names: Vec<String> = found
        .to_files()
        .into_iter()
        .skip(1)
        .map(|(name, _)| name)
        .collect();
    let beside = match names.is_empty() {
        true => String::new(),
        false => format!(" (with {})", names.join(", ")),
    };
    Some(format!(
        "the features{beside} and the records have the fingerprint {}, the manifest says {}: these are other features than those of the records",
        fingerprint
            .as_deref()
            .unwrap_or("of nothing, as the hash of a shard is malformed"),
        manifest.fingerprint
    ))
}

fn info_fault(found: &DatasetInfo, manifest: &Manifest) -> Option<String> {
    let differs = |what: &str, there: &dyn std::fmt::Display, wanted: &dyn std::fmt::Display| {
        Some(format!("{what} is {there}, the manifest says {wanted}"))
    };
    if found.version != manifest.version {
        return differs("the version", &found.version, &manifest.version);
    }
    let names = |names: Vec<&str>| names.join(", ");
    let there: Vec<&str> = found.splits.iter().map(|split| split.name.as_str()).collect();
    let wanted: Vec<&str> = manifest.splits.iter().map(|split| split.name.as_str()).collect();
    if there != wanted {
        return differs("the list of splits", &names(there), &names(wanted));
    }
    for (there, wanted) in found.splits.iter().zip(&manifest.splits) {
        let what = |what: &str| format!("of the split `{}`, {what}", wanted.name);
        if there.shard_lengths.len() != wanted.shards.len() {
            let what = what("the number of shards");
            return differs(&what, &there.shard_lengths.len(), &wanted.shards.len());
        }
        for (number, (records, shard)) in there.shard_lengths.iter().zip(&wanted.shards).enumerate() {
            if *records != shard.records {
                return differs(
                    &what(&format!("the length of shard {number}")),
                    records,
                    &shard.records,
                );
            }
        }
    }
    None
}
