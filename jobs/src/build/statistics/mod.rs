//! Statistics of a version: from those of its shards, and the hashes of their records.
//!
//! ```text
//! shard being written -> STAGING/statistics/SHARD    statistics of the shard, and runs of hashes of its records
//! all shards there    -> prep_statistics.json        merged for each split, with duplicates: for `prep show`
//!                        prep_statistics.bin         of each shard, in the layout by source: for versions that will share it
//! ```
//!
//! Nothing here depends on anything but the records: neither on how they were grouped into shards, nor on who wrote those. A shard of another
//! version, beside this one, brings its statistics from that one's folder; a shard that nobody has any of is read.
//!
//! Costs: while a shard is written, 0.5 MB and its statistics in memory, and 10 bytes a record on disk; in the end one pass over the hashes,
//! within a quarter of the memory budget. 10^9 records have 10 GB of hashes, which take about three minutes of one core to compare.

mod duplicates;
mod parts;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use prep_catalog::Resolved;
use prep_catalog::fingerprint::{SequenceHash, record_hash};
use prep_catalog::manifest::{FileManifest, Manifest, ShardManifest, SplitManifest};
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::features::Features;
use prep_formats::statistics::{DISTINCT_ERROR, Statistics};
use prep_formats::store::{self, Location};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::build::info::write_file;
use crate::build::statistics::duplicates::{Duplicates, Run};
use crate::build::statistics::parts::{Part, PartsFile, PartsWriter, open_unmapped};
use crate::build::upload::hash_remote;
use crate::error::Hinted;
use crate::fetch::hash_file;
use crate::monitor::{Monitor, Unit};

pub(crate) use parts::ShardStatistics;

/// File name of the statistics of a version, in its folder.
pub(crate) const STATISTICS_FILE: &str = "prep_statistics.json";
/// File name of the statistics of its shards.
const PARTS_FILE: &str = "prep_statistics.bin";
/// The format of both.
pub(crate) const FORMAT: u32 = 1;

/// What the statistics of a version are made from.
pub(crate) struct Finishing<'a> {
    /// With the names of classes.
    pub(crate) features: &'a Features,
    /// The folder that is being finished.
    pub(crate) out: &'a Path,
    /// Where it will be: other versions are beside it.
    pub(crate) place: &'a Location,
    /// The folder with the statistics of shards that were written.
    pub(crate) parts: &'a Path,
    /// Where shards lie in earlier versions that have come from there into this one, by their paths here.
    pub(crate) earlier: HashMap<&'a str, Location>,
    pub(crate) memory_bytes: u64,
    pub(crate) monitor: &'a Monitor,
}

/// Where the part of a shard is put while a job runs.
pub(crate) fn part_path(folder: &Path, shard: &str) -> PathBuf {
    // Paths of files in place may be longer than names can be.
    const MOST_BYTES: usize = 200;
    let name = shard.replace('/', "%");
    folder.join(match name.len() {
        0..=MOST_BYTES => name,
        _ => hex::encode(Sha256::digest(shard)),
    })
}

/// A short name of what statistics are of: those of one layout can be merged.
pub(crate) fn layout_of(statistics: &Statistics) -> String {
    hex::encode(&Sha256::digest(statistics.layout())[..16])
}

impl Finishing<'_> {
    /// Writes the statistics of all shards of a manifest into the folder, durably, and describes the files for it.
    ///
    /// # Errors
    /// A shard that is not there, or cannot be read; what was counted of it is damaged.
    pub(crate) fn write(&self, manifest: &Manifest) -> Result<Vec<FileManifest>> {
        let prototype = Statistics::new(self.features);
        // Nothing can share the shards of a version in place.
        let is_shared = manifest.layout == "by-source" && !manifest.in_place;
        let mut scratch = PartsWriter::create(&self.parts.join("all"))?;
        let mut kept = match is_shared {
            true => Some(PartsWriter::create(&self.out.join(PARTS_FILE))?),
            false => None,
        };
        let shards = manifest
            .splits
            .iter()
            .map(|split| split.shards.len() as u64)
            .sum();
        let meter = self.monitor.stage("statistics", Unit::Files, Some(shards));
        let mut finder = Finder {
            job: self,
            layout: layout_of(&prototype),
            others: HashMap::new(),
        };
        let (mut runs, mut repeated) = (Vec::new(), Vec::new());
        let mut splits = Map::new();
        for (index, split) in manifest.splits.iter().enumerate() {
            let mut sum = prototype.clone();
            repeated.push(0);
            for shard in &split.shards {
                self.monitor.check()?;
                let (file, part) = finder.find(shard, &prototype)?;
                let of_shard = file
                    .statistics(&part, &prototype)
                    .with_context(|| format!("the statistics of the shard {}", shard.path))?;
                sum.merge(of_shard)?;
                let is_own = !shard.path.starts_with("../");
                let (writer, place) = match &mut kept {
                    Some(kept) if is_own => (kept, 1),
                    _ => (&mut scratch, 0),
                };
                let mut offset = writer.append(&file, &part)?;
                for count in &part.runs {
                    runs.push(Run::new(place, index as u32, offset, *count));
                    offset += Run::bytes(*count);
                }
                repeated[index] += part.repeated;
                meter.add(1);
            }
            splits.insert(split.name.clone(), sum.describe(self.features));
        }
        let mut files = vec![scratch.finish()?.0];
        let mut described = Vec::new();
        if let Some(kept) = kept {
            let (file, bytes, sha256) = kept.finish()?;
            files.push(file);
            described.push(FileManifest {
                path: PARTS_FILE.to_owned(),
                bytes,
                sha256,
            });
        }
        let found = duplicates::count(&files, runs, repeated, self.memory_bytes / 4, self.monitor)?;
        let text = format!(
            "{:#}\n",
            json!({
                "format": FORMAT,
                "distinct_error": DISTINCT_ERROR,
                "splits": splits,
                "duplicates": describe_duplicates(&found, &manifest.splits),
            })
        );
        write_file(&self.out.join(STATISTICS_FILE), &text)?;
        described.push(FileManifest {
            path: STATISTICS_FILE.to_owned(),
            bytes: text.len() as u64,
            sha256: hex::encode(Sha256::digest(&text)),
        });
        meter.finish();
        Ok(described)
    }
}

/// The statistics of a version as JSON; `None` where it was made without. `CATALOG.md` in the crate `prep-catalog` says what is in them.
///
/// # Errors
/// The file is absent, or is not what the manifest says.
pub(crate) fn read(resolved: &Resolved) -> Result<Option<Map<String, Value>>> {
    let Some(file) = resolved.manifest.file(STATISTICS_FILE) else {
        return Ok(None);
    };
    let at = resolved.folder.join(STATISTICS_FILE);
    let text =
        store::read_file(&at)?.with_context(|| format!("{at} is absent, but the manifest lists it"))?;
    if hex::encode(Sha256::digest(&text)) != file.sha256 {
        return Err(Hinted::new(
            format!("{at} is damaged: its SHA-256 is not the manifest's"),
            "`prep verify` says what else is; build the version anew with `--overwrite`",
        )
        .into());
    }
    let statistics =
        serde_json::from_slice(&text).with_context(|| format!("{at} is not what `prep build` writes"))?;
    Ok(Some(statistics))
}

fn describe_duplicates(found: &Duplicates, splits: &[SplitManifest]) -> Value {
    let name = |index: u32| splits.get(index as usize).map_or("", |split| split.name.as_str());
    let within: Map<String, Value> = splits
        .iter()
        .zip(&found.within)
        .map(|(split, count)| (split.name.clone(), (*count).into()))
        .collect();
    let across: Vec<Value> = found
        .across
        .iter()
        .map(|((one, other), count)| json!({"splits": [name(*one), name(*other)], "examples": count}))
        .collect();
    json!({"within": within, "across": across})
}

/// Finds the statistics of shards.
struct Finder<'a> {
    job: &'a Finishing<'a>,
    layout: String,
    /// Those that lie beside, by folder; `None` where there are none.
    others: HashMap<String, Option<Arc<PartsFile>>>,
}

impl Finder<'_> {
    /// The statistics of a shard: as it was written, from the folder of the version that it is shared with, or else by reading it.
    fn find(&mut self, shard: &ShardManifest, prototype: &Statistics) -> Result<(Arc<PartsFile>, Part)> {
        let at = part_path(self.job.parts, &shard.path);
        if let Some(found) = self.in_file(
            PartsFile::open(&Location::from_path(&at))?.map(Arc::new),
            &shard.path,
            shard,
        ) {
            return Ok(found);
        }
        let elsewhere = match shard.path.starts_with("../") {
            true => Some(shard.location(self.job.place)),
            false => self.job.earlier.get(shard.path.as_str()).cloned(),
        };
        if let Some((folder, name)) = elsewhere
            .as_ref()
            .and_then(|location| Some((location.parent()?, shard.path.rsplit('/').next()?)))
        {
            let others = match self.others.get(&folder.to_string()) {
                Some(others) => others.clone(),
                None => {
                    let others = match self.is_whole(&folder)? {
                        true => PartsFile::open(&folder.join(PARTS_FILE))?.map(Arc::new),
                        false => None,
                    };
                    self.others.insert(folder.to_string(), others.clone());
                    others
                }
            };
            if let Some(found) = self.in_file(others, name, shard) {
                return Ok(found);
            }
        }
        let location = elsewhere.unwrap_or_else(|| Location::from_path(self.job.out.join(&shard.path)));
        read_shard(&location, &at, shard, prototype)
            .with_context(|| format!("could not count the examples of {location}"))?;
        let file = PartsFile::open(&Location::from_path(&at))?.map(Arc::new);
        self.in_file(file, &shard.path, shard)
            .with_context(|| format!("{location} does not hold the records that the manifest says"))
    }

    /// Whether the statistics of the shards of an earlier version are there, and what its manifest says; warns where they are something else.
    fn is_whole(&self, folder: &Location) -> Result<bool> {
        let at = folder.join(PARTS_FILE);
        let Some(bytes) = store::size_of_file(&at)? else {
            return Ok(false);
        };
        let monitor = self.job.monitor;
        let manifest = Manifest::read(folder).ok();
        if let Some(file) = manifest.as_ref().and_then(|manifest| manifest.file(PARTS_FILE))
            && file.bytes == bytes
        {
            let found = match at.as_path() {
                Some(path) => hex::encode(hash_file(&path, None, monitor)?.sha256),
                None => hash_remote(
                    &at,
                    bytes,
                    &monitor.stage("compare statistics", Unit::Bytes, Some(bytes)),
                    monitor,
                )?,
            };
            if found == file.sha256 {
                return Ok(true);
            }
        }
        monitor.warn(format!(
            "{at} is damaged: it is not what the manifest beside it says; the examples of its shards are counted anew"
        ));
        Ok(false)
    }

    fn in_file(
        &self,
        file: Option<Arc<PartsFile>>,
        name: &str,
        shard: &ShardManifest,
    ) -> Option<(Arc<PartsFile>, Part)> {
        let file = file?;
        let part = file.part(name).filter(|part| {
            part.layout == self.layout
                && part.sequence_hash == shard.sequence_hash
                && part.records == shard.records
        })?;
        let part = part.clone();
        Some((file, part))
    }
}

/// Counts the examples of a shard that nobody has counted.
fn read_shard(location: &Location, at: &Path, shard: &ShardManifest, prototype: &Statistics) -> Result<()> {
    let reader = Reader::from_source(open_unmapped(location)?)?;
    let mut counting = ShardStatistics::create(at, prototype)?;
    let mut sequence = SequenceHash::default();
    let mut failed = None;
    reader.for_each(0..reader.num_records(), &mut Scratch::default(), |_, record| {
        let hash = record_hash(record);
        sequence.push_hash(hash);
        if failed.is_none() {
            failed = counting.add(record, hash).err();
        }
        Ok(())
    })?;
    match failed {
        Some(error) => Err(error),
        None => counting.finish(&shard.path, &sequence),
    }
}

#[cfg(test)]
mod tests;
