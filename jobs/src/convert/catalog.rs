//! Registers an output in a catalog: what describes it there, with features from a TFDS folder or from the records themselves.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use prep_catalog::manifest::{Manifest, ShardManifest, SourceManifest, SplitManifest};
use prep_catalog::{Build, Catalog, DatasetName};
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::dataset_info::{DatasetInfo, SplitInfo};
use prep_formats::example::{ExampleView, FeatureView};
use prep_formats::features::{Encoding, Feature, Features};
use prep_formats::store::{Location, PositionedFile};
use prep_formats::value::DType;
use sha2::{Digest, Sha256};

use crate::build::info::fingerprint;
use crate::convert::inputs::InputFile;
use crate::convert::plan::in_parallel;
use crate::convert::shard::ShardSummary;
use crate::convert::tfds::TfdsFolder;
use crate::convert::write_synced;
use crate::error::Hinted;
use crate::monitor::Monitor;

/// The version of a conversion that is no TFDS folder.
const VERSION: &str = "1.0.0";
/// Its only split.
const SPLIT: &str = "train";

/// A catalog, and what the output is called in it.
#[derive(Debug)]
pub(crate) struct Registry {
    catalog: Catalog,
    pub(crate) name: String,
    pub(crate) config: Option<String>,
    pub(crate) version: String,
}

impl Registry {
    /// Opens a catalog; `info` describes a TFDS folder. Refuses a version that is there with another folder, unless it may be replaced.
    pub(crate) fn open(
        url: &str,
        name: &str,
        info: Option<&DatasetInfo>,
        output: &Location,
        overwrite: bool,
    ) -> Result<Self> {
        let location = Location::parse(url)?;
        let catalog = Catalog::open(&location).map_err(hinted)?;
        let found = Self {
            catalog,
            name: info.map_or(name, |info| &info.name).to_owned(),
            config: info.and_then(|info| info.config_name.clone()),
            version: info.map_or(VERSION, |info| &info.version).to_owned(),
        };
        let dataset = DatasetName::new(&found.name, found.config.as_deref()).map_err(hinted)?;
        let stored = found.catalog.stored_path(output).map_err(hinted)?;
        let state = match found.catalog.state(&dataset) {
            Ok(state) => state,
            Err(prep_catalog::Error::UnknownDataset { .. } | prep_catalog::Error::UnknownConfig { .. }) => {
                return Ok(found);
            }
            Err(error) => return Err(hinted(error)),
        };
        let version = prep_catalog::Version::parse(&found.version).map_err(hinted)?;
        let other = state
            .version(&version.to_string())
            .filter(|there| there.record.path != stored);
        if let Some(there) = other
            && !overwrite
        {
            return Err(Hinted::new(
                format!(
                    "the catalog has {}:{} already, in {}",
                    found.name, found.version, there.record.path
                ),
                "give another `--name`, or replace it with `--overwrite`",
            )
            .into());
        }
        Ok(found)
    }

    /// The manifest of a folder that is registered, or could be.
    pub(crate) fn manifest_in(folder: &Location) -> Option<Manifest> {
        Manifest::read(folder).ok()
    }

    /// Commits an entry: of the output, or where something is replaced, of the staged folder that is about to change places with it. Gives its number.
    pub(crate) fn commit(
        &self,
        manifest: &Manifest,
        output: &Location,
        staged: Option<&Path>,
        overwrite: bool,
    ) -> Result<u64> {
        let mut build = Build::new(manifest, output.clone()).overwrite(overwrite);
        if let Some(staged) = staged {
            build = build.staged(Location::from_path(staged));
        }
        Ok(self.catalog.commit_build(&build).map_err(hinted)?.log_number)
    }

    /// Writes all that describes an output into its folder, the manifest last.
    pub(crate) fn describe(
        &self,
        out: &Path,
        about: &Description<'_>,
        workers: usize,
        monitor: &Monitor,
    ) -> Result<Manifest> {
        let features = match about.tfds {
            Some(tfds) => match &tfds.chosen {
                Some(chosen) => chosen.features.clone(),
                None => Features::read_folder(&tfds.folder)?,
            },
            None => {
                let paths: Vec<&str> = about
                    .summaries
                    .iter()
                    .map(|summary| summary.path.as_str())
                    .collect();
                infer(out, &paths, workers, monitor)?
            }
        };
        let splits: Vec<(String, usize)> = match about.tfds {
            Some(tfds) => tfds
                .info
                .splits
                .iter()
                .enumerate()
                .map(|(index, split)| (split.name.clone(), index))
                .collect(),
            None => vec![(SPLIT.to_owned(), 0)],
        };
        let mut described = Vec::new();
        for (name, index) in splits {
            let shards: Vec<&ShardSummary> = about
                .summaries
                .iter()
                .filter(|summary| summary.split == index)
                .collect();
            let manifests = shards.iter().map(|shard| ShardManifest {
                path: shard.path.clone(),
                records: shard.records,
                bytes: shard.file_bytes,
                sha256: shard.sha256.clone().unwrap_or_default(),
                sequence_hash: shard.sequence_hash.clone().unwrap_or_default(),
                ..ShardManifest::default()
            });
            described.push(SplitManifest {
                name,
                records: shards.iter().map(|shard| shard.records).sum(),
                bytes: shards.iter().map(|shard| shard.payload_bytes).sum(),
                options: about.options.clone(),
                skipped: about.skipped.get(index).copied().unwrap_or(0),
                shards: manifests.collect(),
            });
        }
        let sums = in_parallel(workers, &(0..about.inputs.len()).collect::<Vec<_>>(), |input| {
            Ok((*input, sha256(&about.inputs[*input], monitor)?))
        })?;
        let sums: BTreeMap<usize, String> = sums.into_iter().collect();
        let mut manifest = Manifest {
            format: 1,
            name: self.name.clone(),
            config: self.config.clone(),
            version: self.version.clone(),
            fingerprint: String::new(),
            recipe_sha256: hex::encode(Sha256::digest(about.request.to_string())),
            layout: if about.tfds.is_some() { "tfds" } else { "by-source" }.to_owned(),
            in_place: false,
            sources: about
                .inputs
                .iter()
                .enumerate()
                .map(|(index, input)| SourceManifest {
                    name: input.file_name(),
                    bytes: input.bytes,
                    sha256: sums.get(&index).cloned().unwrap_or_default(),
                    tar_headers_sha256: None,
                })
                .collect(),
            splits: described,
            files: Vec::new(),
        };
        manifest.fingerprint = fingerprint(&manifest, &features)?;
        for (name, text) in features.to_files() {
            write_synced(&out.join(name), text.as_bytes())?;
        }
        if about.tfds.is_none() {
            write_synced(
                &out.join("dataset_info.json"),
                self.info(&manifest).to_json().as_bytes(),
            )?;
        }
        manifest.write(&Location::from_path(out))?;
        Ok(manifest)
    }

    /// What TFDS says of a dataset, for an output that has no such file.
    fn info(&self, manifest: &Manifest) -> DatasetInfo {
        DatasetInfo {
            name: self.name.clone(),
            version: self.version.clone(),
            file_format: "array_record".to_owned(),
            splits: manifest
                .splits
                .iter()
                .map(|split| SplitInfo {
                    name: split.name.clone(),
                    shard_lengths: split.shards.iter().map(|shard| shard.records).collect(),
                    num_bytes: split.bytes,
                    filepath_template: "{DATASET}.{FILEFORMAT}-{SHARD_X_OF_Y}".to_owned(),
                    ..SplitInfo::default()
                })
                .collect(),
            ..DatasetInfo::default()
        }
    }
}

/// What an output is, for its manifest.
pub(crate) struct Description<'a> {
    pub(crate) inputs: &'a [InputFile],
    pub(crate) summaries: &'a [ShardSummary],
    pub(crate) options: String,
    pub(crate) request: &'a serde_json::Value,
    /// The input, where it is a TFDS folder.
    pub(crate) tfds: Option<&'a TfdsFolder>,
    /// Damaged records left out, by split.
    pub(crate) skipped: Vec<u64>,
}

fn sha256(input: &InputFile, monitor: &Monitor) -> Result<String> {
    let source = input.open()?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; (1 << 20).min(source.len()) as usize];
    let mut offset = 0;
    while offset < source.len() {
        monitor.check()?;
        let count = (source.len() - offset).min(buffer.len() as u64) as usize;
        source.read_at(offset, &mut buffer[..count])?;
        hash.update(&buffer[..count]);
        offset += count as u64;
    }
    Ok(hex::encode(hash.finalize()))
}

/// What the records say of one feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// 1 integers, 2 floats, 3 byte strings; 0 none seen.
    kind: u8,
    records: u64,
    shortest: usize,
    longest: usize,
}

/// Features of the records of some files: a scalar where each record has one value, a tensor where each has as many, a sequence otherwise.
fn infer(out: &Path, paths: &[&str], workers: usize, monitor: &Monitor) -> Result<Features> {
    let parts = in_parallel(workers, paths, |path| infer_file(&out.join(path), monitor))?;
    let mut records = 0;
    let mut all: BTreeMap<String, Seen> = BTreeMap::new();
    for (count, part) in parts {
        records += count;
        for (name, seen) in part {
            let there = all.entry(name.clone()).or_insert(Seen { records: 0, ..seen });
            if there.kind != 0 && seen.kind != 0 && there.kind != seen.kind {
                bail!("feature `{name}` has values of several types, so it has no features for a catalog");
            }
            there.kind = there.kind.max(seen.kind);
            there.records += seen.records;
            there.shortest = there.shortest.min(seen.shortest);
            there.longest = there.longest.max(seen.longest);
        }
    }
    let mut found = Vec::new();
    for (name, seen) in all {
        let dtype = match seen.kind {
            1 => DType::Int64,
            2 => DType::Float32,
            3 => DType::String,
            // Never a value: nothing can be said of it.
            _ => continue,
        };
        let single = match dtype {
            DType::String => Feature::Text,
            dtype => Feature::Scalar { dtype },
        };
        let feature = match (seen.shortest, seen.longest) {
            (1, 1) => single,
            // Absent, or there without a value.
            (0, 1) => Feature::Optional(Box::new(Feature::Scalar { dtype })),
            (n, m) if n == m && dtype != DType::String => Feature::Tensor {
                shape: vec![Some(n as u64)],
                dtype,
                encoding: Encoding::None,
            },
            _ => Feature::sequence(single),
        };
        let feature = match feature {
            Feature::Text if seen.records < records => Feature::Scalar { dtype },
            other => other,
        };
        let is_absent = seen.records < records && !matches!(feature, Feature::Optional(_));
        let feature = if is_absent {
            Feature::Optional(Box::new(feature))
        } else {
            feature
        };
        found.push((name, feature));
    }
    Ok(Features::new(found)?)
}

fn infer_file(path: &Path, monitor: &Monitor) -> Result<(u64, BTreeMap<String, Seen>)> {
    let reader = Reader::from_source(std::sync::Arc::new(PositionedFile::open(path)?))?;
    let mut all: BTreeMap<String, Seen> = BTreeMap::new();
    let mut failure = None;
    let visited = reader.for_each(
        0..reader.num_records(),
        &mut Scratch::default(),
        |index, record| {
            if index % 1024 == 0 && monitor.is_cancelled() {
                return Err(prep_formats::Error::Invalid("stopped".into()));
            }
            let example = match ExampleView::parse(record) {
                Ok(example) => example,
                Err(error) => {
                    failure = Some((index, error));
                    return Err(prep_formats::Error::Invalid("not an example".into()));
                }
            };
            for (name, view) in example.iter() {
                let kind = match view {
                    FeatureView::Int64(_) => 1,
                    FeatureView::Float(_) => 2,
                    FeatureView::Bytes(_) => 3,
                    _ => 0,
                };
                let length = view.len();
                match all.get_mut(name) {
                    Some(seen) => {
                        if kind != 0 && seen.kind != 0 && kind != seen.kind {
                            let text = format!("feature `{name}` has values of several types");
                            failure = Some((index, prep_formats::Error::Invalid(text)));
                            return Err(prep_formats::Error::Invalid("several types".into()));
                        }
                        seen.kind = seen.kind.max(kind);
                        seen.records += 1;
                        seen.shortest = seen.shortest.min(length);
                        seen.longest = seen.longest.max(length);
                    }
                    None => {
                        let seen = Seen {
                            kind,
                            records: 1,
                            shortest: length,
                            longest: length,
                        };
                        all.insert(name.to_owned(), seen);
                    }
                }
            }
            Ok(())
        },
    );
    if let Some((index, error)) = failure {
        let place = format!(
            "{}, record {index}",
            path.file_name().unwrap_or_default().to_string_lossy()
        );
        return Err(anyhow::Error::new(error).context(Hinted::new(
            format!("{place} has no features for a catalog"),
            "a catalog holds tf.train.Examples whose features have one type each; convert without `--catalog`",
        )));
    }
    monitor.check()?;
    visited?;
    Ok((reader.num_records(), all))
}

/// The catalog's error with its hint, as commands print it.
fn hinted(error: prep_catalog::Error) -> anyhow::Error {
    match error.hint() {
        Some(hint) => Hinted::new(error.to_string(), hint).into(),
        None => anyhow::Error::new(error).context("the catalog"),
    }
}
