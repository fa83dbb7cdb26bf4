//! The earlier version that a build takes finished shards over from, and what each version keeps for those that come after it.
//!
//! ```text
//! prep_recipe.toml        the recipe, as it was written
//! prep_sources.jsonl      a line about all, and a line a source: what decides its shards, what was learnt of it, and its shards
//! ```
//!
//! Only versions in the layout by source have these files. Both are functions of recipe and sources, as the rest of the folder is. A source whose line in the
//! earlier version says the same of what decides its shards is not read again: its shards are finished already. `prep update` brings them into the new
//! version's folder, under the same names; `prep append` leaves them where they are.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use prep_catalog::Resolved;
use prep_catalog::manifest::{FileManifest, Manifest, ShardManifest, SourceManifest};
use prep_formats::store::{self, Location};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::build::info::{self, write_file};
use crate::build::kept::KeptRule;
use crate::build::shard::ShardSummary;
use crate::build::statistics::STATISTICS_FILE;
use crate::build::{OUTPUT_REVISION, OnError, upload};
use crate::builder::{DatasetSpec, FileSet, Known, Making, SourcePlace, SourceSpec};
use crate::error::Hinted;
use crate::fetch::{self, Checksum, hash_file};
use crate::monitor::{Monitor, Unit};

/// File name of the recipe in a version's folder.
pub(crate) const RECIPE_FILE: &str = "prep_recipe.toml";
/// File name of what a version keeps of its sources.
pub(crate) const SOURCES_FILE: &str = "prep_sources.jsonl";

/// The format of [`SOURCES_FILE`].
const FORMAT: u32 = 1;

/// The first line of [`SOURCES_FILE`].
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u32,
    /// Of shards: those of another one are not taken over.
    revision: u32,
    /// As [`Making`] has it.
    settings: String,
}

/// What a version keeps of a source.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    source: String,
    bytes: u64,
    sha256: String,
    /// As [`MadeOf`](crate::builder::MadeOf) has it.
    made: String,
    learned: Value,
    /// Of each split that it has shards or damaged records in.
    splits: Vec<OfSplit>,
}

/// What a source has given to a split.
#[derive(Debug, Serialize, Deserialize)]
struct OfSplit {
    split: String,
    skipped: u64,
    shards: Vec<ShardSummary>,
}

/// How shards are taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taking {
    /// Into the new version's own folder, where all else depends on all sources too.
    In,
    /// They stay in the earlier version's folder; its sources are not looked at.
    Beside,
}

/// An earlier version.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) manifest: Manifest,
    pub(crate) folder: Location,
    pub(crate) taking: Taking,
    /// Whether the recipe asks for this very version, but for its number and sources.
    pub(crate) is_same_recipe: bool,
    /// Where the sources that are looked at are of rules that come behind those of its recipe, the latter.
    pub(crate) kept_rules: Option<Vec<KeptRule>>,
    settings: String,
    /// By the name of the source.
    lines: HashMap<String, Line>,
}

/// What is taken over.
#[derive(Debug, Default)]
pub(crate) struct TakenOver {
    /// For each source whether its shards are.
    pub(crate) sources: Vec<bool>,
    /// For each of these sources what decided what was made of it.
    pub(crate) made: Vec<Option<String>>,
    /// Records left out of each group, and the shards.
    pub(crate) skipped: Vec<u64>,
    pub(crate) shards: Vec<ShardSummary>,
}

impl TakenOver {
    /// Records of each split.
    pub(crate) fn records(&self, spec: &DatasetSpec) -> Vec<u64> {
        let mut records = vec![0; spec.splits.len()];
        for shard in &self.shards {
            records[shard.split as usize / spec.sources_of_split().max(1)] += shard.records;
        }
        records
    }
}

impl Base {
    /// Reads what a version has kept. One that has kept nothing, or nothing that can be used, is a base of which nothing is taken over.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn read(resolved: &Resolved, taking: Taking) -> Result<Self> {
        let kept = kept_file(resolved, SOURCES_FILE)?;
        let (settings, lines) = kept
            .and_then(|text| parse(&text, &resolved.manifest))
            .unwrap_or_default();
        Ok(Self {
            manifest: resolved.manifest.clone(),
            folder: resolved.folder.clone(),
            taking,
            is_same_recipe: false,
            kept_rules: None,
            settings,
            lines,
        })
    }

    /// What identifies it, for staging: another base is another job.
    pub(crate) fn id(&self) -> String {
        format!("{:?} {}", self.taking, self.manifest.sha256())
    }

    /// Whether it has statistics: then those after it have some too.
    pub(crate) fn has_statistics(&self) -> bool {
        self.manifest.file(STATISTICS_FILE).is_some()
    }

    /// Whether something of its sources was kept.
    pub(crate) fn has_kept(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Whether the sources are, one by one, those that it was made from.
    pub(crate) fn has_sources(&self, spec: &DatasetSpec, sums: &[Checksum]) -> bool {
        let there = &self.manifest.sources;
        let pairs = there.iter().zip(spec.sources.iter().zip(sums));
        there.len() == spec.sources.len()
            && pairs.into_iter().all(|(there, (source, sum))| {
                there.name == source.name
                    && there.bytes == sum.bytes
                    && there.sha256 == hex::encode(sum.sha256)
            })
    }

    /// Checks that what is found for an append can be behind what is there: files of known names are those files, and new rules bring either none or only
    /// such as are new, and as the kept ones do not stand for. Local files are known by their SHA-256, which is read, objects of stores by their sizes;
    /// web servers are not asked.
    ///
    /// # Errors
    /// A file of a known name has another content; a rule stands for known files and for new ones, or for those of another rule, so that the recipe would
    /// have them twice.
    pub(crate) fn check_addition(&self, sources: &[SourceSpec], monitor: &Arc<Monitor>) -> Result<()> {
        let version = &self.manifest.version;
        let there = self.manifest.sources.iter();
        let there: HashMap<&str, &SourceManifest> =
            there.map(|source| (source.name.as_str(), source)).collect();
        let (known, new): (Vec<&SourceSpec>, Vec<&SourceSpec>) = sources
            .iter()
            .partition(|source| there.contains_key(source.name.as_str()));
        let mut sizes = Sizes::default();
        for source in &known {
            let Some(there) = there.get(source.name.as_str()) else {
                continue;
            };
            let (place, found) = match &source.place {
                SourcePlace::Found(path, _) => {
                    let sum = fetch::identify(source, path, monitor)?;
                    let found = (info::source(&source.name, &sum) != **there)
                        .then(|| format!("{} bytes of SHA-256 {}", sum.bytes, hex::encode(sum.sha256)));
                    (path.display().to_string(), found)
                }
                SourcePlace::Url(url) | SourcePlace::Listed(url, _) if fetch::is_store(url.scheme()) => {
                    let bytes = sizes.of(url, source.files())?;
                    let found = (bytes != Some(there.bytes))
                        .then(|| bytes.map_or("nothing".to_owned(), |bytes| format!("{bytes} bytes")));
                    (fetch::shown(url), found)
                }
                _ => continue,
            };
            if let Some(found) = found {
                return Err(Hinted::new(
                    format!(
                        "{place} has another content than the source `{}` of version {version}: {found}, and {} bytes of SHA-256 {} there",
                        source.name, there.bytes, there.sha256
                    ),
                    "sources are only added here. A new file needs a name of its own: give a path below the recipe's folder, which is \
                     the whole name then, or call the file otherwise. What has changed is taken in by `prep update RECIPE.toml`",
                )
                .into());
            }
        }
        let kept_rules = self.kept_rules.iter().flatten();
        let twice = kept_rules
            .flat_map(|rule| new.iter().map(move |source| (rule, source)))
            .find(|(rule, source)| rule.takes(source));
        if let Some((rule, source)) = twice {
            return Err(Hinted::new(
                format!(
                    "the recipe of version {version} stands for {} already, with `{}`: with one more source it would have the file twice",
                    source.name, rule.text
                ),
                "`prep append NAME RECIPE.toml` adds what is new of the recipe's own sources, and `prep update` takes in all that has changed",
            )
            .into());
        }
        match (known.first(), new.first()) {
            (Some(known), Some(new)) if self.kept_rules.is_some() => Err(Hinted::new(
                format!(
                    "the file {} is there already, in version {version}, and {} is new: the recipe would have the former twice",
                    known.name, new.name
                ),
                "make the pattern narrower, so that only new files fit; or put it into the recipe, and `prep update RECIPE.toml`",
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// The line of a source, if it is still the same.
    fn line(&self, name: &str, sum: &Checksum) -> Option<&Line> {
        let line = self.lines.get(name)?;
        (line.bytes == sum.bytes && line.sha256 == hex::encode(sum.sha256)).then_some(line)
    }

    /// What is known of each source.
    pub(crate) fn known(&self, spec: &DatasetSpec, sums: &[Checksum]) -> Vec<Option<Known>> {
        let known = |(source, sum): (&SourceSpec, &Checksum)| {
            Some(Known {
                text: self.line(&source.name, sum)?.learned.to_string(),
                is_there: source.place != SourcePlace::TakenOver,
            })
        };
        spec.sources.iter().zip(sums).map(known).collect()
    }

    /// How sources differ from those that it was made from: (added, changed, removed).
    pub(crate) fn differences<'a>(
        &'a self,
        spec: &'a DatasetSpec,
        sums: &[Checksum],
    ) -> (Vec<&'a str>, Vec<&'a str>, Vec<&'a str>) {
        let (mut added, mut changed) = (Vec::new(), Vec::new());
        let there: HashMap<&str, &SourceManifest> = self
            .manifest
            .sources
            .iter()
            .map(|source| (source.name.as_str(), source))
            .collect();
        for (source, sum) in spec.sources.iter().zip(sums) {
            match there.get(source.name.as_str()) {
                None => added.push(source.name.as_str()),
                Some(there) if there.bytes != sum.bytes || there.sha256 != hex::encode(sum.sha256) => {
                    changed.push(source.name.as_str());
                }
                Some(_) => {}
            }
        }
        let now: BTreeSet<&str> = spec.sources.iter().map(|source| source.name.as_str()).collect();
        let removed = self.manifest.sources.iter().map(|source| source.name.as_str());
        let removed = removed.filter(|name| !now.contains(name)).collect();
        (added, changed, removed)
    }

    /// Which sources' shards are taken over.
    ///
    /// # Errors
    /// Shards that have to be taken over do not fit: the recipe makes other examples of their sources now.
    pub(crate) fn take_over(
        &self,
        spec: &DatasetSpec,
        making: Option<&Making>,
        sums: &[Checksum],
        on_error: OnError,
    ) -> Result<TakenOver> {
        let mut taken = TakenOver {
            sources: vec![false; spec.sources.len()],
            made: vec![None; spec.sources.len()],
            skipped: vec![0; spec.num_groups()],
            shards: Vec::new(),
        };
        let Some(making) = making else {
            bail!("the builder does not tell what its shards depend on");
        };
        if self.taking == Taking::Beside && making.settings != self.settings {
            return Err(self.other_settings(spec));
        }
        let there = self.there()?;
        for (index, (source, sum)) in spec.sources.iter().zip(sums).enumerate() {
            let must = source.place == SourcePlace::TakenOver;
            let line = self.line(&source.name, sum);
            let is_same = |line: &&Line| {
                let is_made_so = making.sources.get(index).is_some_and(|of| of.made == line.made);
                let is_whole = on_error != OnError::Fail || line.splits.iter().all(|of| of.skipped == 0);
                let mut shards = line.splits.iter().flat_map(|of| &of.shards);
                is_made_so
                    && is_whole
                    && shards.all(|shard| there.get(shard.path.as_str()) == Some(&shard.file_bytes))
            };
            let line = match line {
                Some(line) if must => line,
                Some(line) if is_same(&line) => line,
                None if must => bail!("version {} has no source {}", self.manifest.version, source.name),
                _ => continue,
            };
            let mut shards = line.splits.iter().flat_map(|of| &of.shards);
            let is_whole = |shard: &ShardSummary| there.get(shard.path.as_str()) == Some(&shard.file_bytes);
            if let Some(shard) = shards.find(|shard| !is_whole(shard)) {
                let message = format!(
                    "version {} is damaged: {} is absent or has another size",
                    self.manifest.version, shard.path
                );
                return Err(Hinted::new(
                    message,
                    "`prep verify` says what else is; build it anew with `prep register --overwrite`",
                )
                .into());
            }
            for of in &line.splits {
                let Some(split) = spec.splits.iter().position(|split| split.name == of.split) else {
                    bail!(
                        "the recipe has no split `{}`, and version {} has",
                        of.split,
                        self.manifest.version
                    );
                };
                let group = split * spec.sources_of_split() + index;
                taken.skipped[group] += of.skipped;
                taken.shards.extend(of.shards.iter().map(|shard| ShardSummary {
                    split: group as u32,
                    path: match self.taking {
                        Taking::In => file_name(&shard.path).to_owned(),
                        Taking::Beside => self.seen_from_beside(&shard.path),
                    },
                    ..shard.clone()
                }));
            }
            taken.sources[index] = true;
            taken.made[index] = Some(line.made.clone());
        }
        Ok(taken)
    }

    /// The sizes of its shards, by their paths in the manifest; of one that is not there, there is none.
    fn there(&self) -> Result<HashMap<&str, u64>> {
        let shards = self.manifest.splits.iter().flat_map(|split| &split.shards);
        let mut sizes = Sizes::default();
        let mut found = HashMap::new();
        for shard in shards {
            let at = shard.location(&self.folder);
            let size = match (at.as_path(), at.parent()) {
                (None, Some(folder)) => sizes.in_folder(&folder)?.get(file_name(&shard.path)).copied(),
                _ => store::size_of_file(&at)?,
            };
            if let Some(size) = size {
                found.insert(shard.path.as_str(), size);
            }
        }
        Ok(found)
    }

    /// The path of one of its shards from the folder of another version beside it.
    fn seen_from_beside(&self, path: &str) -> String {
        if path.starts_with("../") {
            return path.to_owned();
        }
        let folder = self.folder.to_string();
        let name = file_name(folder.trim_end_matches('/'));
        format!("../{name}/{path}")
    }

    /// What to say where shards cannot stay as they are.
    fn other_settings(&self, spec: &DatasetSpec) -> anyhow::Error {
        let version = &self.manifest.version;
        let mut changed = Vec::new();
        if let Ok(before) = prep_formats::features::Features::read_location(&self.folder) {
            for (name, feature) in spec.features.iter() {
                match before.get(name) {
                    None => changed.push(format!("`{name}` is new")),
                    Some(before) if before != feature => {
                        changed.push(format!("`{name}` becomes another type"))
                    }
                    Some(_) => {}
                }
            }
            let gone = before
                .iter()
                .filter(|(name, _)| spec.features.get(name).is_none());
            changed.extend(gone.map(|(name, _)| format!("`{name}` goes")));
        }
        let reason = match changed.is_empty() {
            true => "the recipe has other settings".to_owned(),
            false => changed.join(", "),
        };
        Hinted::new(
            format!("the examples of version {version} cannot stay as they are: {reason}"),
            "all has to be built anew: put the sources into the recipe, and `prep update RECIPE.toml` does it",
        )
        .into()
    }

    /// Brings shards that lie in local files into a folder: by hard links, or by copies where the file system has none. What is there already stays. Reads
    /// each, as what has rotted at the same size would be the new version's too.
    ///
    /// # Errors
    /// A file cannot be read or written, or is not what the manifest says.
    pub(crate) fn bring(&self, shards: &[ShardSummary], folder: &Path, monitor: &Monitor) -> Result<()> {
        let places = self.places();
        let total = shards.iter().map(|shard| shard.file_bytes).sum();
        let meter = monitor.stage("take over", Unit::Bytes, Some(total));
        upload::at_once(shards, |shard| {
            let from = places.get(shard.path.as_str());
            let from = from.ok_or_else(|| anyhow!("there is no shard {}", shard.path))?;
            let from = from.local_path()?;
            bring(from, &folder.join(&shard.path), shard, monitor)
                .with_context(|| format!("could not take over {}", from.display()))?;
            meter.add(shard.file_bytes);
            Ok(())
        })?;
        meter.finish();
        Ok(())
    }

    /// Where its shards are, by file name.
    pub(crate) fn places(&self) -> HashMap<&str, Location> {
        let shards = self.manifest.splits.iter().flat_map(|split| &split.shards);
        let place = |shard: &ShardManifest| shard.location(&self.folder);
        shards
            .map(|shard| (file_name(&shard.path), place(shard)))
            .collect()
    }
}

/// The sizes of objects, by folder: one request for a thousand, not one for each.
#[derive(Default)]
struct Sizes(HashMap<String, HashMap<String, u64>>);

impl Sizes {
    /// Of all that is below a folder.
    fn in_folder(&mut self, folder: &Location) -> Result<&HashMap<String, u64>> {
        use std::collections::hash_map::Entry;

        Ok(match self.0.entry(folder.to_string()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let files = store::list_files(folder)?.into_iter();
                entry.insert(files.map(|file| (file.relative, file.bytes)).collect())
            }
        })
    }

    /// Of an object, or of these below an address; `None` where one is not there.
    fn of(&mut self, url: &url::Url, files: Option<&Arc<FileSet>>) -> Result<Option<u64>> {
        let at = Location::parse(url.as_str())?;
        let Some(files) = files else {
            let name = at
                .parent()
                .map(|folder| (file_name(url.path()).to_owned(), folder));
            // A name may be written otherwise in an address.
            return Ok(match name {
                Some((name, folder)) if self.in_folder(&folder)?.contains_key(&name) => {
                    self.in_folder(&folder)?.get(&name).copied()
                }
                _ => store::size_of_file(&at)?,
            });
        };
        let there = self.in_folder(&at)?;
        Ok(files.iter().map(|file| there.get(file).copied()).sum())
    }
}

/// The content of a file that a version has kept, as its manifest says; `None` where there is none such.
///
/// # Errors
/// It cannot be read.
pub(crate) fn kept_file(resolved: &Resolved, name: &str) -> Result<Option<Bytes>> {
    let Some(file) = resolved.manifest.file(name) else {
        return Ok(None);
    };
    let at = resolved.folder.join(name);
    let bytes = store::read_file(&at).with_context(|| format!("could not read {at}"))?;
    Ok(bytes.filter(|bytes| hex::encode(Sha256::digest(bytes)) == file.sha256))
}

fn bring(from: &Path, to: &Path, shard: &ShardSummary, monitor: &Monitor) -> Result<()> {
    let sha256 = || Ok::<_, anyhow::Error>(hex::encode(hash_file(to, None, monitor)?.sha256));
    let is_there = std::fs::metadata(to).is_ok_and(|there| there.len() == shard.file_bytes);
    if is_there && sha256()? == shard.sha256 {
        return Ok(());
    }
    crate::fault::pass("bring");
    link_or_copy(from, to)?;
    let found = sha256()?;
    if found != shard.sha256 {
        std::fs::remove_file(to)?;
        return Err(damaged(&from.display(), &found, &shard.sha256));
    }
    Ok(())
}

/// A shard that cannot be taken over.
pub(crate) fn damaged(at: &dyn std::fmt::Display, found: &str, wanted: &str) -> anyhow::Error {
    Hinted::new(
        format!("{at} is damaged: its SHA-256 is {found}, and the manifest says {wanted}"),
        "`prep verify` says what else is; `prep register`, with another `version` in the recipe, builds all anew",
    )
    .into()
}

fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    match std::fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        // Another file system, one without links, or too many of them: the bytes are copied.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error.into()),
        Err(_) => copy(from, to),
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    // Under another name as long as it is not whole; one that was left behind goes before the folder is published.
    let mut staged = to.as_os_str().to_owned();
    staged.push(".part");
    let staged = Path::new(&staged);
    std::fs::copy(from, staged)?;
    File::open(staged)?.sync_all()?;
    Ok(std::fs::rename(staged, to)?)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What a version has kept, if it goes with its manifest, which the log vouches for.
fn parse(text: &[u8], manifest: &Manifest) -> Option<(String, HashMap<String, Line>)> {
    let mut texts = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head: Head = serde_json::from_slice(texts.next()?).ok()?;
    if (head.format, head.revision) != (FORMAT, OUTPUT_REVISION) {
        return None;
    }
    let shards: HashMap<(&str, &str), &ShardManifest> = manifest
        .splits
        .iter()
        .flat_map(|split| split.shards.iter().map(|shard| (split.name.as_str(), shard)))
        .map(|(split, shard)| ((split, shard.path.as_str()), shard))
        .collect();
    let mut lines = HashMap::new();
    let mut count = 0;
    for text in texts {
        let line: Line = serde_json::from_slice(text).ok()?;
        for of in &line.splits {
            for shard in &of.shards {
                let there = shards.get(&(of.split.as_str(), shard.path.as_str()))?;
                let is_same = there.sha256 == shard.sha256
                    && (there.records, there.bytes) == (shard.records, shard.file_bytes)
                    && there.sequence_hash == shard.sequence_hash
                    && (&there.min_key, &there.max_key) == (&shard.min_key, &shard.max_key);
                is_same.then_some(())?;
                count += 1;
            }
        }
        lines.insert(line.source.clone(), line);
    }
    (count == shards.len() && lines.len() == manifest.sources.len()).then_some((head.settings, lines))
}

/// Writes what a version keeps into its folder.
///
/// # Errors
/// The files cannot be written.
pub(crate) fn write(
    folder: &Path,
    recipe: Option<&str>,
    spec: &DatasetSpec,
    making: &Making,
    sums: &[Checksum],
    shards: &[ShardSummary],
    skipped: &[u64],
) -> Result<Vec<FileManifest>> {
    let mut files = Vec::new();
    let mut put = |name: &str, text: &str| {
        write_file(&folder.join(name), text)?;
        files.push(FileManifest {
            path: name.to_owned(),
            bytes: text.len() as u64,
            sha256: hex::encode(Sha256::digest(text)),
        });
        Ok::<_, anyhow::Error>(())
    };
    if let Some(recipe) = recipe {
        put(RECIPE_FILE, recipe)?;
    }
    let mut text = serde_json::to_string(&Head {
        format: FORMAT,
        revision: OUTPUT_REVISION,
        settings: making.settings.clone(),
    })?;
    text.push('\n');
    let sources = spec.sources_of_split().max(1);
    let mut of_group: HashMap<usize, Vec<&ShardSummary>> = HashMap::new();
    for shard in shards {
        of_group.entry(shard.split as usize).or_default().push(shard);
    }
    for (index, ((source, sum), of)) in spec.sources.iter().zip(sums).zip(&making.sources).enumerate() {
        let mut splits = Vec::new();
        for (number, split) in spec.splits.iter().enumerate() {
            let group = number * sources + index;
            let shards = of_group.remove(&group).unwrap_or_default();
            let skipped = skipped.get(group).copied().unwrap_or(0);
            if !shards.is_empty() || skipped > 0 {
                splits.push(OfSplit {
                    split: split.name.clone(),
                    skipped,
                    shards: shards.into_iter().cloned().collect(),
                });
            }
        }
        let line = Line {
            source: source.name.clone(),
            bytes: sum.bytes,
            sha256: hex::encode(sum.sha256),
            made: of.made.clone(),
            learned: serde_json::from_str(&of.learned)
                .with_context(|| format!("what was learnt of {} is no JSON", source.name))?,
            splits,
        };
        text += &serde_json::to_string(&line)?;
        text.push('\n');
    }
    put(SOURCES_FILE, &text)?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    use prep_catalog::fingerprint::SequenceHash;
    use prep_catalog::manifest::SplitManifest;
    use prep_formats::features::Features;

    use crate::builder::{MadeOf, SourceIdentity};

    fn shard(split: u32, path: &str) -> ShardSummary {
        ShardSummary {
            split,
            index: 0,
            num_shards: 1,
            split_records: 1,
            split_bytes: 1,
            path: path.to_owned(),
            records: 1,
            payload_bytes: 1,
            file_bytes: 10,
            sha256: "ab".repeat(32),
            crc64: u64::MAX,
            sequence_hash: SequenceHash::of([path.as_bytes()]).to_hex(),
            min_key: Some("00".to_owned()),
            max_key: None,
        }
    }

    /// Two sources, the first of which gives something to each of two splits; and the shards.
    fn version() -> (DatasetSpec, Vec<ShardSummary>, Manifest) {
        let mut spec = DatasetSpec::new("a", "1.0.0", Features::default())
            .source(SourceSpec::path("x.csv"))
            .source(SourceSpec::path("y.csv"))
            .split("train")
            .split("test");
        spec.layout = crate::builder::Layout::BySource;
        let shards = vec![
            shard(0, "train.x"),
            shard(1, "../0.9.0/train.y"),
            shard(2, "test.x"),
        ];
        let split = |name: &str, shards: &[ShardSummary]| SplitManifest {
            name: name.to_owned(),
            records: shards.len() as u64,
            bytes: shards.len() as u64,
            options: String::new(),
            skipped: 0,
            shards: shards.iter().map(ShardSummary::described).collect(),
        };
        let source = |name: &str| SourceManifest {
            name: name.to_owned(),
            bytes: 3,
            sha256: "07".repeat(32),
            tar_headers_sha256: None,
        };
        let text = serde_json::json!({
            "format": 1, "name": "a", "config": null, "version": "1.0.0", "fingerprint": "ab".repeat(32),
            "recipe_sha256": "ab".repeat(32), "layout": "by-source", "sources": [], "splits": [],
        });
        let mut manifest = Manifest::from_json(text.to_string().as_bytes(), "m").unwrap();
        manifest.sources = vec![source("x.csv"), source("y.csv")];
        manifest.splits = vec![split("train", &shards[..2]), split("test", &shards[2..])];
        manifest.validate().unwrap();
        (spec, shards, manifest)
    }

    fn sum() -> Checksum {
        Checksum {
            bytes: 3,
            sha256: [7; 32],
            identity: SourceIdentity::Sha256,
        }
    }

    #[test]
    fn what_is_kept_counts_only_if_it_goes_with_the_manifest() {
        let (spec, shards, manifest) = version();
        let making = Making {
            settings: "settings".to_owned(),
            sources: ["one", "two"]
                .map(|made| MadeOf {
                    made: made.to_owned(),
                    learned: format!("{{\"of\":\"{made}\"}}"),
                })
                .to_vec(),
        };
        let folder = tempfile::tempdir().unwrap();
        let skipped = [0, 0, 0, 5];
        let files = write(
            folder.path(),
            Some("recipe"),
            &spec,
            &making,
            &[sum(), sum()],
            &shards,
            &skipped,
        );
        let files = files.unwrap();
        for file in &files {
            let bytes = std::fs::read(folder.path().join(&file.path)).unwrap();
            assert_eq!(
                (bytes.len() as u64, hex::encode(Sha256::digest(&bytes))),
                (file.bytes, file.sha256.clone())
            );
        }
        assert_eq!(
            files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(),
            [RECIPE_FILE, SOURCES_FILE]
        );
        let text = std::fs::read_to_string(folder.path().join(SOURCES_FILE)).unwrap();
        let (settings, lines) = parse(text.as_bytes(), &manifest).unwrap();
        assert_eq!((settings.as_str(), lines.len()), ("settings", 2));
        let splits = |source: &str| -> Vec<(&str, u64, usize)> {
            let all = lines[source].splits.iter();
            all.map(|of| (of.split.as_str(), of.skipped, of.shards.len()))
                .collect()
        };
        assert_eq!(splits("x.csv"), [("train", 0, 1), ("test", 0, 1)]);
        assert_eq!(splits("y.csv"), [("train", 0, 1), ("test", 5, 0)]);
        assert_eq!(lines["y.csv"].learned.to_string(), "{\"of\":\"two\"}");

        for (from, to) in [
            ("\"format\":1", "\"format\":2"),
            ("\"revision\":", "\"revision\":9"),
            ("abab", "abac"),
            ("\"records\":1", "\"records\":2"),
            ("\"file_bytes\":10", "\"file_bytes\":11"),
            ("\"min_key\":\"00\"", "\"min_key\":null"),
            ("test.x", "test.z"),
            ("\"split\":\"test\"", "\"split\":\"train\""),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(
                parse(text.replacen(from, to, 1).as_bytes(), &manifest).is_none(),
                "{from}"
            );
        }
        // Cut at any place, too.
        for end in 0..text.len() - 1 {
            assert!(parse(&text.as_bytes()[..end], &manifest).is_none(), "{end}");
        }
    }

    #[test]
    fn a_shard_that_is_taken_over_is_one_file_under_two_names() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let monitor = Monitor::new();
        let shard = ShardSummary {
            file_bytes: 7,
            sha256: hex::encode(Sha256::digest("content")),
            ..shard(0, "to")
        };
        // Whatever was there before.
        for before in ["", "before!"] {
            let _ = std::fs::remove_file(&from);
            let _ = std::fs::remove_file(&to);
            std::fs::write(&from, "content").unwrap();
            std::fs::write(&to, before).unwrap();
            bring(&from, &to, &shard, &monitor).unwrap();
            std::fs::write(&from, "changed").unwrap();
            assert_eq!(std::fs::read(&to).unwrap(), b"changed");
        }
        // Rotten at its size, it is not taken, by no way, and not left behind.
        let error = bring(&from, &to, &shard, &monitor).unwrap_err();
        assert!(
            error.to_string().contains("from is damaged: its SHA-256"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        // A copy is another file.
        std::fs::write(&from, "content").unwrap();
        copy(&from, &to).unwrap();
        std::fs::write(&from, "changed").unwrap();
        bring(&from, &to, &shard, &monitor).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"content");
        std::fs::remove_file(&from).unwrap();
        std::fs::remove_file(&to).unwrap();
        assert!(bring(&from, &to, &shard, &monitor).is_err());
    }
}
