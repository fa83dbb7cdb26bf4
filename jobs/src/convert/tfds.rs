//! A TFDS folder as input: all splits at once, and the files beside the shards.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prep_formats::dataset_info::DatasetInfo;

use crate::convert::inputs::{self, InputFile};
use crate::convert::plan::Split;
use crate::convert::shard::ShardSummary;
use crate::convert::write_synced;
use crate::error::Hinted;

/// Name of the file that describes a version.
const INFO_FILE: &str = "dataset_info.json";

/// A dataset version as TFDS lays it out.
#[derive(Debug)]
pub(crate) struct TfdsFolder {
    pub(crate) folder: PathBuf,
    pub(crate) info: DatasetInfo,
    /// Records of each input, as the folder says.
    pub(crate) lengths: Vec<u64>,
}

impl TfdsFolder {
    /// Reads what describes a folder, and finds its shards.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Vec<InputFile>, Vec<Split>)> {
        let path = folder.join(INFO_FILE);
        let shown = path.display();
        let text = std::fs::read_to_string(&path).with_context(|| format!("could not read {shown}"))?;
        let info = DatasetInfo::from_json(&text).with_context(|| format!("could not read {shown}"))?;
        // Before there was a choice, it was TFRecord.
        let format = if info.file_format.is_empty() {
            "tfrecord"
        } else {
            &info.file_format
        };
        if !["tfrecord", "array_record"].contains(&format) {
            return Err(Hinted::new(
                format!("{shown} says that the files are `{format}`"),
                "TFDS folders of `tfrecord` and `array_record` files can be converted",
            )
            .into());
        }
        if info.splits.is_empty() {
            bail!("{shown} has no splits");
        }
        let (mut files, mut splits, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for split in &info.splits {
            let first = files.len();
            for (number, length) in split.shard_lengths.iter().enumerate() {
                let name = split.shard_name(&info.name, format, number);
                if name.contains(['/', '\\']) || name == ".." {
                    bail!("{shown}: `{name}` is not the name of a file");
                }
                let found: OsString = folder.join(&name).into();
                let file = inputs::local(Path::new(&found)).with_context(|| {
                    format!(
                        "{shown} names a shard of split `{}` that is not there",
                        split.name
                    )
                })?;
                files.push(file);
                lengths.push(*length);
            }
            splits.push(Split::tfds(
                &split.name,
                first..files.len(),
                &info.name,
                &split.filepath_template,
            ));
        }
        let found = Self {
            folder: folder.to_owned(),
            info,
            lengths,
        };
        Ok((found, files, splits))
    }

    /// Checks that the inputs had as many records as the folder says.
    pub(crate) fn check(&self, inputs: &[InputFile], records: &[(u64, u64)]) -> Result<()> {
        for ((file, wanted), (records, skipped)) in inputs.iter().zip(&self.lengths).zip(records) {
            if records + skipped != *wanted && *skipped == 0 {
                return Err(Hinted::new(
                    format!("{} has {records} records, {INFO_FILE} says {wanted}", file.shown),
                    "the folder is damaged or incomplete: get it again, or convert its files by a pattern",
                )
                .into());
            }
        }
        Ok(())
    }

    /// Writes what lies beside the shards. `is_same` where the records are the same as before.
    pub(crate) fn write(&self, out: &Path, summaries: &[ShardSummary], is_same: bool) -> Result<()> {
        let mut info = self.info.clone();
        info.file_format = "array_record".to_owned();
        for (index, split) in info.splits.iter_mut().enumerate() {
            let shards = || summaries.iter().filter(|summary| summary.split == index);
            split.shard_lengths = shards().map(|summary| summary.records).collect();
            if !is_same {
                split.num_bytes = shards().map(|summary| summary.payload_bytes).sum();
            }
        }
        for entry in std::fs::read_dir(&self.folder)
            .with_context(|| format!("could not list {}", self.folder.display()))?
        {
            let entry = entry.with_context(|| format!("could not list {}", self.folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_text = name.ends_with(".json") || name.ends_with(".txt");
            let is_ours = name == INFO_FILE || name.starts_with("prep_");
            if !is_text || is_ours || !entry.path().is_file() {
                continue;
            }
            let path = entry.path();
            let bytes = std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
            write_synced(&out.join(&name), &bytes)?;
        }
        write_synced(&out.join(INFO_FILE), info.to_json().as_bytes())
    }
}
