//! A TFDS folder as input: all splits at once, and the files beside the shards.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prep_formats::dataset_info::DatasetInfo;
use prep_formats::features::Features;
use prep_formats::store::Location;

use crate::convert::inputs::{self, InputFile};
use crate::convert::plan::Split;
use crate::convert::shard::ShardSummary;
use crate::convert::write_synced;
use crate::error::Hinted;

/// Name of the file that describes a version.
const INFO_FILE: &str = "dataset_info.json";
/// Name of the file that holds its schema.
const SCHEMA_FILE: &str = "features.json";
/// How the files of label names end.
const LABELS_ENDING: &str = ".labels.txt";

/// A dataset version as TFDS lays it out.
#[derive(Debug)]
pub(crate) struct TfdsFolder {
    pub(crate) folder: PathBuf,
    pub(crate) info: DatasetInfo,
    /// Records of each input, as the folder says.
    pub(crate) lengths: Vec<u64>,
    /// The schema of what is written, where features are chosen or renamed.
    pub(crate) chosen: Option<Chosen>,
}

/// What `--select` and `--rename` make of a schema, and of the lists that its examples hold.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) features: Features,
    pub(crate) select: Option<Vec<String>>,
    pub(crate) rename: Vec<(String, String)>,
}

impl Chosen {
    /// Chooses and renames features of a schema, with all that is stored of each.
    fn new(all: &Features, select: Option<&[String]>, rename: &[(String, String)]) -> Result<Self> {
        let some = match select {
            Some(names) => all.select(names).context("`--select` names what is not there")?,
            None => all.clone(),
        };
        let features = some.rename(rename).context("`--rename` cannot be followed")?;
        let mut lists = Vec::new();
        for (old, new) in rename {
            let before = some.select(&[old])?;
            let after = before.rename(&[(old.clone(), new.clone())])?;
            // The same features give the same lists in the same order.
            lists.extend(before.stored_names().into_iter().zip(after.stored_names()));
        }
        Ok(Self {
            features,
            select: select.map(|_| some.stored_names()),
            rename: lists,
        })
    }
}

impl TfdsFolder {
    /// Reads what describes a folder, and finds its shards. `select` and `rename` are features of its schema.
    pub(crate) fn open(
        folder: &Path,
        select: Option<&[String]>,
        rename: &[(String, String)],
    ) -> Result<(Self, Vec<InputFile>, Vec<Split>)> {
        let path = folder.join(INFO_FILE);
        let shown = path.display();
        let info = DatasetInfo::read_location(&Location::from_path(folder))?;
        let format = info.shard_format();
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
        let schema = folder.join(SCHEMA_FILE);
        let features = schema.exists().then(|| Features::read_folder(folder)).transpose();
        let chosen = if select.is_some() || !rename.is_empty() {
            let features = features?.with_context(|| {
                format!(
                    "features are chosen and renamed by the schema, and there is no {}",
                    schema.display()
                )
            })?;
            Some(Chosen::new(&features, select, rename)?)
        } else {
            // A class that is unknown here goes through as it is.
            if let Err(error @ prep_formats::Error::Damaged { .. }) = features {
                return Err(error.into());
            }
            None
        };
        let (mut files, mut splits, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let names = info
            .shard_names()
            .with_context(|| format!("could not read {shown}"))?;
        for (split, names) in info.splits.iter().zip(names) {
            let first = files.len();
            for (name, length) in names.iter().zip(&split.shard_lengths) {
                let found: OsString = folder.join(name).into();
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
            chosen,
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

    /// Writes what lies beside the shards, and gives the names of files that came over as they were. `is_same` where the records are the same as before.
    pub(crate) fn write(&self, out: &Path, summaries: &[ShardSummary], is_same: bool) -> Result<Vec<String>> {
        let mut copied = Vec::new();
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
            let is_schema = name == SCHEMA_FILE || name.ends_with(LABELS_ENDING);
            if !is_text || is_ours || is_schema && self.chosen.is_some() || !entry.path().is_file() {
                continue;
            }
            let path = entry.path();
            let bytes = std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
            write_synced(&out.join(&name), &bytes)?;
            copied.push(name);
        }
        copied.sort_unstable();
        if let Some(chosen) = &self.chosen {
            for (name, text) in chosen.features.to_files() {
                write_synced(&out.join(name), text.as_bytes())?;
            }
            let renamed = |name: String| {
                let new = chosen.rename.iter().find(|(old, _)| *old == name);
                let name = new.map_or(name, |(_, new)| new.clone());
                chosen.features.get(&name).is_some().then_some(name)
            };
            info.supervised_keys = info
                .supervised_keys
                .and_then(|(input, target)| Some((renamed(input)?, renamed(target)?)));
        }
        write_synced(&out.join(INFO_FILE), info.to_json().as_bytes())?;
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_stored_of_a_feature_goes_with_it() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/features/kitchen_sink");
        let all = Features::read_folder(&golden).unwrap();
        let names = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        // Each feature with its lists makes up the whole schema.
        let stored = all.stored_names();
        let each = all.iter().flat_map(|(name, _)| {
            Chosen::new(&all, Some(&names(name)), &[])
                .unwrap()
                .select
                .unwrap()
        });
        assert_eq!(each.collect::<Vec<_>>(), stored);
        let (name, _) = all
            .iter()
            .find(|(name, _)| {
                stored
                    .iter()
                    .any(|stored| stored.starts_with(&format!("{name}/")))
            })
            .unwrap();
        let rename = [(name.to_owned(), "other".to_owned())];
        let chosen = Chosen::new(&all, Some(&names(name)), &rename).unwrap();
        assert!(chosen.rename.len() > 1, "{:?}", chosen.rename);
        for (old, new) in &chosen.rename {
            assert_eq!(old.strip_prefix(name), new.strip_prefix("other"));
        }
        assert!(chosen.features.get("other").is_some() && chosen.features.len() == 1);
        let nested = [(format!("{name}/x"), "other".to_owned())];
        assert!(Chosen::new(&all, None, &nested).is_err());
    }
}
