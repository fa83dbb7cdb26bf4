//! The names and descriptions of a TFDS folder.

use anyhow::{Context, Result};
use prep_catalog::Resolved;
use prep_formats::dataset_info::{DatasetInfo, FILEPATH_TEMPLATE, SplitInfo};
use prep_formats::store;

use crate::export::FileFormat;

/// Name of the file that describes a version.
pub(crate) const INFO_FILE: &str = "dataset_info.json";

/// A split as it was written.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    pub(crate) name: &'a str,
    /// Records of each shard.
    pub(crate) lengths: Vec<u64>,
    /// Bytes of all records.
    pub(crate) bytes: u64,
}

/// What TFDS calls a shard.
pub(crate) fn file_name(
    dataset: &str,
    split: &str,
    format: FileFormat,
    number: usize,
    count: usize,
) -> String {
    let split = SplitInfo {
        name: split.to_owned(),
        shard_lengths: vec![0; count],
        filepath_template: FILEPATH_TEMPLATE.to_owned(),
        ..SplitInfo::default()
    };
    split.shard_name(dataset, format.name(), number)
}

/// The description of an export: that of the version, with the splits as they are now.
pub(crate) fn info(found: &Resolved, format: FileFormat, splits: &[Written<'_>]) -> Result<DatasetInfo> {
    let at = found.folder.join(INFO_FILE);
    let mut info = match store::read_file(&at)? {
        Some(bytes) => {
            let text = std::str::from_utf8(&bytes).with_context(|| format!("{at} is not UTF-8"))?;
            DatasetInfo::from_json(text).with_context(|| format!("could not read {at}"))?
        }
        None => DatasetInfo::default(),
    };
    info.name.clone_from(&found.name);
    info.config_name.clone_from(&found.config);
    info.version.clone_from(&found.version);
    format.name().clone_into(&mut info.file_format);
    let described = std::mem::take(&mut info.splits);
    info.splits = splits
        .iter()
        .map(|split| {
            let there = described.iter().find(|there| there.name == split.name);
            SplitInfo {
                name: split.name.to_owned(),
                shard_lengths: split.lengths.clone(),
                num_bytes: split.bytes,
                filepath_template: FILEPATH_TEMPLATE.to_owned(),
                other: there.map(|there| there.other.clone()).unwrap_or_default(),
            }
        })
        .collect();
    Ok(info)
}
