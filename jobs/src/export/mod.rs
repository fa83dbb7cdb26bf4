//! Exports of dataset versions for other tools: TFDS folders, and Parquet files for Hugging Face's `datasets`, pandas and whoever reads them.
//!
//! ```text
//! version in a catalog -> plan -> files, each by a worker of its own -> read back -> publish by one rename
//! ```
//!
//! | module | what it does |
//! | --- | --- |
//! | `source` | the records of a split, from its shards |
//! | `tfds` | names and JSON files of a TFDS folder; shards linked as they are, or written anew |
//! | `table`, `parquet` | examples as columns; Parquet files |
//! | `manifest` | `prep_export.json`, which says what a folder was made from |
//!
//! What is in a file follows from the version and the request alone, so workers do not matter, and a file that an interrupted run has finished is
//! the one that this run would write.

mod manifest;
mod parquet;
mod source;
mod table;
mod tfds;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use prep_catalog::manifest::{ShardManifest, SplitManifest};
use prep_catalog::{Catalog, DatasetName, Resolved};
use prep_formats::array_record::{self, WriteOptions};
use prep_formats::features::Features;
use prep_formats::store;
use prep_formats::tfrecord;
use prep_loader::split::{ResolvedSplit, SplitLengths};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::build::publish::hinted;
use crate::build::staging::{Staging, remove_files};
use crate::builder::DEFAULT_OPTIONS;
use crate::convert::{canonical, in_parallel, write_synced};
use crate::error::{Hinted, Usage, find};
pub(crate) use crate::export::manifest::MANIFEST_FILE;
use crate::export::manifest::{Exported, ExportedFile, FORMAT, Origin};
use crate::export::parquet::ParquetWriter;
use crate::export::table::{NotText, Table};
use crate::journal::{Journal, Unfinished};
use crate::monitor::{Meter, Monitor, Unit};
use crate::place::{Maker, Place, Standing};
use crate::resources::{self, show_size};
use crate::tfds::shard_boundaries;

/// Raise when the same version and request give other bytes than before: exports of the old are then not "up to date".
const OUTPUT_REVISION: u32 = 1;
const MAKER: Maker = Maker {
    name: "`prep export`",
    marks: &[MANIFEST_FILE],
    listed: manifest::listed,
};
/// What a worker holds at most: a row group with its pages, and 32 MiB of a shard.
const WORKER_BYTES: u64 = 64 << 20;
/// Bytes of records that make a Parquet file, as `datasets` writes them.
const PARQUET_FILE_BYTES: u64 = 500 << 20;
/// Most files of a split: their names have five digits.
const MOST_FILES: u64 = 99_999;

/// What an export is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// A TFDS folder, at `OUTPUT/NAME[/CONFIG]/VERSION`.
    Tfds,
    /// Parquet files, at `OUTPUT/data`.
    Parquet,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Tfds => "tfds",
            Self::Parquet => "parquet",
        }
    }
}

/// The files of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// ArrayRecord.
    ArrayRecord,
    /// TFRecord, not compressed.
    TfRecord,
}

impl FileFormat {
    /// Parses TFDS's name of a format.
    ///
    /// # Errors
    /// The text is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "array_record" => Ok(Self::ArrayRecord),
            "tfrecord" => Ok(Self::TfRecord),
            other => Err(format!("`{other}` is not `array_record` or `tfrecord`")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ArrayRecord => "array_record",
            Self::TfRecord => "tfrecord",
        }
    }
}

/// What to export, to where, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExportRequest {
    /// `name`, `name/config`, `name:version` or `name@tag`.
    pub name: String,
    /// The folder to be made, or to make it in: a path, or the URL of one in an object store.
    pub output: PathBuf,
    /// For whom.
    pub form: Form,
    /// Catalog; `None` for the default one.
    pub catalog: Option<String>,
    /// Splits, or parts of them; all where there are none.
    pub splits: Vec<String>,
    /// Files of each split; `None` for as many as there are shards, or for Parquet one for each 500 MiB.
    pub shards: Option<u64>,
    /// The files of a TFDS folder; `None` for those that the version has.
    pub file_format: Option<FileFormat>,
    /// Whether shards that stay as they are get copied, also where they could be linked.
    pub copy: bool,
    /// Whether an earlier export or conversion in the output's place is replaced.
    pub overwrite: bool,
    /// Whether to only say what would be done.
    pub dry_run: bool,
    /// Worker threads.
    pub workers: usize,
    /// Memory budget in bytes; decides how many workers are at work.
    pub memory_bytes: u64,
    /// Watches and stops the job.
    pub monitor: Arc<Monitor>,
}

impl ExportRequest {
    /// An export of this dataset to this folder, with all defaults.
    pub fn new(name: impl Into<String>, output: impl Into<PathBuf>, form: Form) -> Self {
        Self {
            name: name.into(),
            output: output.into(),
            form,
            catalog: None,
            splits: Vec::new(),
            shards: None,
            file_format: None,
            copy: false,
            overwrite: false,
            dry_run: false,
            workers: resources::default_workers(),
            memory_bytes: resources::default_memory(),
            monitor: Monitor::new(),
        }
    }
}

/// How an export ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportStatus {
    /// It was made.
    Exported,
    /// It was there already; nothing was written.
    UpToDate,
    /// A dry run: nothing was done.
    Planned,
}

impl ExportStatus {
    /// `exported`, `up to date` or `planned`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::UpToDate => "up to date",
            Self::Planned => "planned",
        }
    }
}

/// A split as it was exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedSplit {
    /// Its name.
    pub name: String,
    /// Number of examples.
    pub examples: u64,
    /// Number of files.
    pub shards: u64,
    /// Bytes of the files; 0 for a dry run.
    pub bytes: u64,
}

/// What an export left behind.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExportOutcome {
    /// How it ended.
    pub status: ExportStatus,
    /// `name:version` or `name/config:version`.
    pub dataset: String,
    /// For whom.
    pub form: Form,
    /// The folder that was made.
    pub path: String,
    /// Splits, in order.
    pub splits: Vec<ExportedSplit>,
    /// Files that are links to the dataset's own.
    pub linked: u64,
    /// Files that an earlier, interrupted run had finished.
    pub shards_found: u64,
    /// What would be done, line by line, for a dry run.
    pub plan: Vec<String>,
    /// Wall time.
    pub seconds: f64,
}

/// Exports a dataset version.
///
/// Blocks until all is done; prints nothing. `request.monitor` shows how far it is, and stops it.
///
/// # Errors
/// A dataset or split that is not there; shards that are missing or damaged; an output that cannot be written, or holds something else; a full disk; a stop
/// by [`Monitor::cancel`]. Staging is kept, and the same request goes on from there.
pub fn export(request: ExportRequest) -> Result<ExportOutcome> {
    Export::new(request)?.run()
}

/// A run of examples of one split, and the files that they go to.
#[derive(Debug)]
struct Split<'a> {
    from: &'a SplitManifest,
    range: Range<u64>,
    /// Shards are taken as they are.
    is_direct: bool,
    /// Ends of the files' examples, counted from the start of the range.
    ends: Vec<u64>,
    paths: Vec<String>,
}

impl Split<'_> {
    fn is_whole(&self) -> bool {
        self.range == (0..self.from.records)
    }

    fn records(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A file to be made.
#[derive(Debug)]
struct Task<'a> {
    index: usize,
    split: &'a Split<'a>,
    /// Its number in the split.
    number: usize,
    /// Examples of the source's split.
    range: Range<u64>,
}

/// What is known of a finished file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Summary {
    index: usize,
    file: ExportedFile,
    payload_bytes: u64,
    is_link: bool,
    /// Whether an earlier run has written it.
    #[serde(skip)]
    found: bool,
}

/// What a staging folder was begun with.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Decided {
    /// Columns whose values are not texts.
    binary: BTreeSet<String>,
}

struct Export {
    request: ExportRequest,
    found: Resolved,
    features: Features,
    /// The files of a TFDS folder.
    format: FileFormat,
    place: Place,
    started: Instant,
}

impl Export {
    fn new(request: ExportRequest) -> Result<Self> {
        if request
            .shards
            .is_some_and(|shards| !(1..=MOST_FILES).contains(&shards))
        {
            return Err(Usage(format!("`--shards` is out of range: 1 to {MOST_FILES}")).into());
        }
        let name = DatasetName::parse(&request.name).map_err(hinted)?;
        let location = prep_catalog::catalog_location(request.catalog.as_deref()).map_err(hinted)?;
        let catalog = Catalog::open(&location).map_err(hinted)?;
        let catalog = catalog.suggesting(crate::recipe::builtin::names());
        let found = catalog.resolve(&name).map_err(hinted)?;
        let features = Features::read_location(&found.folder)?;
        let inside = match request.form {
            Form::Tfds => {
                let mut inside = PathBuf::from(&found.name);
                inside.extend(found.config.as_deref());
                inside.push(&found.version);
                inside
            }
            Form::Parquet => PathBuf::new(),
        };
        let place = Place::new(&request.output, &inside, &MAKER)?;
        if let (Some(output), Some(dataset)) = (place.local(), found.folder.as_path())
            && output.starts_with(canonical(&dataset))
        {
            let message = format!("the output {place} lies in the dataset's own folder");
            return Err(Hinted::new(message, "give another output").into());
        }
        let unread = features.missing_beyond_tfds();
        if let (Form::Tfds, Some((name, reason))) = (request.form, unread.first()) {
            return Err(Hinted::new(
                format!("TFDS cannot read the feature `{name}`, which may be missing and has {reason}"),
                "make the dataset with a tensor of a fixed shape without an encoding, or with one that is never missing (an empty one, for \
                 instance); `--parquet` exports it as it is",
            )
            .into());
        }
        let mut shards = found.manifest.splits.iter().flat_map(|split| &split.shards);
        let format = match request.file_format {
            Some(format) => format,
            None if shards.all(|shard| format_of(shard) == FileFormat::TfRecord) => FileFormat::TfRecord,
            None => FileFormat::ArrayRecord,
        };
        Ok(Self {
            format,
            place,
            request,
            found,
            features,
            started: Instant::now(),
        })
    }

    fn run(&self) -> Result<ExportOutcome> {
        let splits = self.splits()?;
        self.place.refuse_mount_point(&self.found.name)?;
        let standing = self.standing(&splits)?;
        if let Standing::Same(exported) = &standing
            && !self.place.is_staged()
        {
            return Ok(self.outcome(ExportStatus::UpToDate, &splits, &exported.files));
        }
        self.place.refuse(&standing, self.request.overwrite)?;
        if self.request.dry_run {
            return Ok(self.planned(&splits, &standing));
        }
        self.place.check_writable()?;
        let staging = self.place.enter(&self.request.monitor)?;
        // Another process may have made it while this one waited.
        let standing = self.standing(&splits)?;
        if let Standing::Same(exported) = &standing {
            staging.remove()?;
            return Ok(self.outcome(ExportStatus::UpToDate, &splits, &exported.files));
        }
        let result = self.place.refuse(&standing, self.request.overwrite);
        let result = result.and_then(|()| self.work(&staging, &splits));
        match result {
            Ok(outcome) => {
                staging.remove()?;
                Ok(outcome)
            }
            Err(error) => {
                // Nothing that the next run could use is no reason to leave a folder.
                let journal = staging.root().join(JOURNAL);
                if std::fs::metadata(journal).map_or(true, |journal| journal.len() == 0) {
                    let _ = staging.remove();
                }
                Err(resources::explain_full_disk(error, self.place.top(), || {
                    let bytes = splits.iter().map(|split| split.from.bytes).sum();
                    format!("the dataset has {}", show_size(bytes))
                }))
            }
        }
    }

    /// The splits that are asked for, and how they are cut into files.
    fn splits(&self) -> Result<Vec<Split<'_>>> {
        let all = &self.found.manifest.splits;
        let lengths: Vec<SplitLengths> = all
            .iter()
            .map(|split| SplitLengths {
                name: split.name.clone(),
                shards: split.shards.iter().map(|shard| shard.records).collect(),
            })
            .collect();
        let mut parts = Vec::new();
        for text in &self.request.splits {
            let resolved = ResolvedSplit::parse(text, &lengths).map_err(|error| Usage(error.to_string()))?;
            parts.extend(
                resolved
                    .parts()
                    .iter()
                    .map(|part| (part.split, part.start..part.end)),
            );
        }
        if self.request.splits.is_empty() {
            parts.extend(
                all.iter()
                    .enumerate()
                    .map(|(index, split)| (index, 0..split.records)),
            );
        }
        let mut seen = HashSet::new();
        parts
            .into_iter()
            .map(|(index, range)| {
                if !seen.insert(index) {
                    let text = format!(
                        "split `{}` is asked for twice, and can be exported once",
                        all[index].name
                    );
                    return Err(Usage(text).into());
                }
                self.cut(&all[index], range)
            })
            .collect()
    }

    fn cut<'a>(&self, from: &'a SplitManifest, range: Range<u64>) -> Result<Split<'a>> {
        let records = range.end - range.start;
        let is_whole = range == (0..from.records);
        let request = &self.request;
        let is_direct = request.form == Form::Tfds
            && is_whole
            && records > 0
            && request.shards.is_none()
            && from
                .shards
                .iter()
                .all(|shard| shard.records == 0 || format_of(shard) == self.format);
        // What a part has of its split's bytes, as far as that can be known.
        let bytes = (u128::from(from.bytes) * u128::from(records)).checked_div(u128::from(from.records));
        let bytes = u64::try_from(bytes.unwrap_or(0)).unwrap_or(u64::MAX);
        let number = match (request.shards, request.form) {
            (Some(shards), _) => Some(shards),
            // As the version is cut; what holds nothing is left out.
            (None, Form::Tfds) if is_whole => None,
            (None, Form::Tfds) => Some(crate::tfds::number_of_shards(bytes, records)),
            (None, Form::Parquet) => Some(
                bytes
                    .div_ceil(PARQUET_FILE_BYTES)
                    .clamp(1, records.clamp(1, MOST_FILES)),
            ),
        };
        let ends = match number {
            _ if records == 0 => vec![0],
            None => {
                let mut end = 0;
                let filled = from.shards.iter().filter(|shard| shard.records > 0);
                filled
                    .map(|shard| {
                        end += shard.records;
                        end
                    })
                    .collect()
            }
            Some(number) => shard_boundaries(records, number).map_err(|error| {
                Hinted::new(
                    format!("split `{}` cannot be cut: {error}", from.name),
                    "give fewer `--shards`, or none",
                )
            })?,
        };
        let paths = (0..ends.len()).map(|number| match request.form {
            Form::Tfds => tfds::file_name(&self.found.name, &from.name, self.format, number, ends.len()),
            Form::Parquet => format!("data/{}-{number:05}-of-{:05}.parquet", from.name, ends.len()),
        });
        Ok(Split {
            paths: paths.collect(),
            from,
            range,
            is_direct,
            ends,
        })
    }

    /// What decides the output, the version apart: an equal request for an equal version gives equal bytes.
    fn canonical(&self, splits: &[Split<'_>]) -> serde_json::Value {
        let splits: Vec<_> = splits
            .iter()
            .map(|split| json!([split.from.name, split.range.start, split.range.end]))
            .collect();
        json!({
            "revision": OUTPUT_REVISION,
            "form": self.request.form.name(),
            "splits": splits,
            "shards": self.request.shards,
            "file_format": (self.request.form == Form::Tfds).then(|| self.format.name()),
        })
    }

    fn standing(&self, splits: &[Split<'_>]) -> Result<Standing<Exported>> {
        self.place.standing(|look| {
            let different = |reason: &str| Ok(Err(reason.to_owned()));
            let text = look.read(MANIFEST_FILE)?;
            let Some(exported) = text.and_then(|text| Exported::from_json(&text)) else {
                return different("was not made by `prep export`");
            };
            let origin = Origin::of(&self.found);
            if exported.dataset != origin {
                let there = &exported.dataset;
                let is_same_version = (&there.name, &there.version) == (&origin.name, &origin.version);
                return different(match is_same_version {
                    true => "is of an earlier build of this version",
                    false => "is of another dataset or version",
                });
            }
            if exported.request != self.canonical(splits) {
                return different("was made with other options");
            }
            let files = exported.files.iter();
            let damaged = look.damaged(files.map(|file| (file.path.as_str(), file.bytes)))?;
            Ok(damaged.map_or(Ok(exported), Err))
        })
    }

    fn work(&self, staging: &Staging, splits: &[Split<'_>]) -> Result<ExportOutcome> {
        let request = &self.request;
        let monitor = &request.monitor;
        let identity =
            json!({"export": self.canonical(splits), "of": Origin::of(&self.found), "copy": request.copy});
        if staging.take_for(&identity.to_string())? {
            monitor.note(format!(
                "what another export had left unfinished in {} is thrown away",
                staging.root().display()
            ));
        }
        let out = staging.out();
        let data = match request.form {
            Form::Tfds => out.clone(),
            Form::Parquet => out.join("data"),
        };
        std::fs::create_dir_all(&data)
            .with_context(|| format!("could not make the folder {}", data.display()))?;
        let tasks = tasks(splits);
        let summaries = loop {
            match self.files(staging, &data, &tasks) {
                Ok(summaries) => break summaries,
                // That a column holds other bytes than texts shows in its values only; then all files are to have it as bytes.
                Err(error) => {
                    let Some(NotText(column)) = find::<NotText>(&error) else {
                        return Err(error);
                    };
                    monitor.note(format!(
                        "`{column}` has values that are not UTF-8: it becomes a column of bytes, and the files are written again"
                    ));
                    let mut decided = self.decided(staging)?;
                    decided.binary.insert(column.clone());
                    // Files of before do not count any more, also for a run after a kill.
                    let journal = staging.root().join(JOURNAL);
                    std::fs::remove_file(&journal)
                        .with_context(|| format!("could not remove {}", journal.display()))?;
                    write_synced(&staging.root().join(DECIDED), &serde_json::to_vec(&decided)?)?;
                }
            }
        };
        self.describe(&out, splits, &summaries)?;
        let files: Vec<ExportedFile> = summaries.iter().map(|summary| summary.file.clone()).collect();
        let exported = Exported {
            format: FORMAT,
            request: self.canonical(splits),
            dataset: Origin::of(&self.found),
            files,
        };
        write_synced(&out.join(MANIFEST_FILE), exported.to_json().as_bytes())?;
        store::sync_folder(&data)?;
        monitor.check()?;
        self.place
            .publish(&out, MANIFEST_FILE, request.overwrite, monitor)?;
        let mut outcome = self.outcome(ExportStatus::Exported, splits, &exported.files);
        outcome.linked = summaries.iter().filter(|summary| summary.is_link).count() as u64;
        outcome.shards_found = summaries.iter().filter(|summary| summary.found).count() as u64;
        monitor.shards_found(outcome.shards_found);
        Ok(outcome)
    }

    fn decided(&self, staging: &Staging) -> Result<Decided> {
        match std::fs::read(staging.root().join(DECIDED)) {
            Ok(text) => {
                serde_json::from_slice(&text).context("could not read what was decided in the staging folder")
            }
            Err(_) => Ok(Decided::default()),
        }
    }

    /// Makes all files that are not there, and gives what is known of each.
    fn files(&self, staging: &Staging, data: &Path, tasks: &[Task<'_>]) -> Result<Vec<Summary>> {
        let request = &self.request;
        let monitor = &request.monitor;
        let out = staging.out();
        let (journal, entries) = Journal::<Summary>::open(&staging.root().join(JOURNAL))?;
        let mut finished: HashMap<usize, Summary> = HashMap::new();
        for mut summary in entries {
            let there = std::fs::metadata(out.join(&summary.file.path));
            if there.is_ok_and(|there| there.len() == summary.file.bytes) {
                summary.found = true;
                finished.insert(summary.index, summary);
            }
        }
        let kept: HashSet<&str> = finished
            .values()
            .map(|summary| summary.file.path.as_str())
            .collect();
        let kept: HashSet<&str> = kept.iter().filter_map(|path| path.rsplit('/').next()).collect();
        remove_files(data, |name| !kept.contains(name))?;
        if !finished.is_empty() {
            monitor.note(format!(
                "{} of {} files are there already, from a run that was interrupted",
                finished.len(),
                tasks.len()
            ));
        }
        let table = match request.form {
            Form::Parquet => Some(Table::new(&self.features, &self.decided(staging)?.binary)?),
            Form::Tfds => None,
        };
        let missing: Vec<&Task<'_>> = tasks
            .iter()
            .filter(|task| !finished.contains_key(&task.index))
            .collect();
        let records = missing.iter().map(|task| task.range.end - task.range.start).sum();
        let job = Job {
            export: self,
            table: table.as_ref(),
            out: &out,
            meter: monitor.stage("export", Unit::Examples, Some(records)),
            verify_meter: monitor.stage("verify", Unit::Bytes, None),
            journal,
        };
        let workers = usize::try_from(request.memory_bytes / WORKER_BYTES).unwrap_or(usize::MAX);
        let made = in_parallel(request.workers.min(workers).max(1), &missing, |task| {
            let _span = monitor.span("write", format!("export {}", task.path()));
            job.make(task)
        })?;
        job.meter.finish();
        job.verify_meter.finish();
        let mut summaries: Vec<Summary> = finished.into_values().chain(made).collect();
        summaries.sort_by_key(|summary| summary.index);
        Ok(summaries)
    }

    /// Writes what lies beside the shards.
    fn describe(&self, out: &Path, splits: &[Split<'_>], summaries: &[Summary]) -> Result<()> {
        if self.request.form == Form::Parquet {
            return Ok(());
        }
        let written: Vec<tfds::Written<'_>> = splits
            .iter()
            .map(|split| {
                let files = || {
                    summaries
                        .iter()
                        .filter(|summary| summary.file.split == split.from.name)
                };
                tfds::Written {
                    name: &split.from.name,
                    lengths: files().map(|summary| summary.file.records).collect(),
                    bytes: match split.is_whole() {
                        true => split.from.bytes,
                        false => files().map(|summary| summary.payload_bytes).sum(),
                    },
                }
            })
            .collect();
        let info = tfds::info(&self.found, self.format, &written)?;
        write_synced(&out.join(tfds::INFO_FILE), info.to_json().as_bytes())?;
        for (name, text) in self.features.to_files() {
            write_synced(&out.join(name), text.as_bytes())?;
        }
        Ok(())
    }

    fn outcome(&self, status: ExportStatus, splits: &[Split<'_>], files: &[ExportedFile]) -> ExportOutcome {
        let config = self
            .found
            .config
            .as_deref()
            .map_or(String::new(), |config| format!("/{config}"));
        ExportOutcome {
            status,
            dataset: format!("{}{config}:{}", self.found.name, self.found.version),
            form: self.request.form,
            path: self.place.to_string(),
            splits: splits
                .iter()
                .map(|split| ExportedSplit {
                    name: split.from.name.clone(),
                    examples: split.records(),
                    shards: split.paths.len() as u64,
                    bytes: files
                        .iter()
                        .filter(|file| file.split == split.from.name)
                        .map(|file| file.bytes)
                        .sum(),
                })
                .collect(),
            linked: 0,
            shards_found: 0,
            plan: Vec::new(),
            seconds: self.started.elapsed().as_secs_f64(),
        }
    }

    fn planned(&self, splits: &[Split<'_>], standing: &Standing<Exported>) -> ExportOutcome {
        let mut outcome = self.outcome(ExportStatus::Planned, splits, &[]);
        for split in splits {
            let how = match split.is_direct {
                true => "as they are",
                false => "written anew",
            };
            outcome.plan.push(format!(
                "split {}: {} examples in {} files, {how}",
                split.from.name,
                split.records(),
                split.paths.len()
            ));
        }
        if let Standing::Different(reason) = standing {
            outcome.plan.push(format!("replace what is there: {reason}"));
        }
        outcome
    }
}

/// Name of the file in the staging folder that holds [`Decided`].
const DECIDED: &str = "decided.json";
/// Name of the one that says what is finished.
const JOURNAL: &str = "journal-0.jsonl";

/// How a shard is stored.
fn format_of(shard: &ShardManifest) -> FileFormat {
    match shard.index {
        Some(_) => FileFormat::TfRecord,
        None => FileFormat::ArrayRecord,
    }
}

/// All files, in the order of their splits.
fn tasks<'a>(splits: &'a [Split<'a>]) -> Vec<Task<'a>> {
    let mut tasks = Vec::new();
    for split in splits {
        let mut start = 0;
        for (number, end) in split.ends.iter().enumerate() {
            tasks.push(Task {
                index: tasks.len(),
                split,
                number,
                range: split.range.start + start..split.range.start + end,
            });
            start = *end;
        }
    }
    tasks
}

impl Task<'_> {
    fn path(&self) -> &str {
        &self.split.paths[self.number]
    }
}

/// What making files needs.
struct Job<'a> {
    export: &'a Export,
    table: Option<&'a Table>,
    out: &'a Path,
    meter: Arc<Meter>,
    verify_meter: Arc<Meter>,
    journal: Journal<Summary>,
}

/// A file that counts and hashes what it is given.
struct Sink {
    file: File,
    sha256: Sha256,
    bytes: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.sha256.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Job<'_> {
    fn make(&self, task: &Task<'_>) -> Result<Summary> {
        let monitor = &self.export.request.monitor;
        monitor.check()?;
        let started = Instant::now();
        let mut summary = Summary {
            index: task.index,
            file: ExportedFile {
                split: task.split.from.name.clone(),
                path: task.path().to_owned(),
                records: task.range.end - task.range.start,
                ..ExportedFile::default()
            },
            ..Summary::default()
        };
        let path = self.out.join(task.path());
        if task.split.is_direct && self.link(task, &path, &mut summary)? {
            self.meter.add(summary.file.records);
            return Ok(summary);
        }
        let mut unfinished = Unfinished(Some(path.clone()));
        let shown = path.display();
        let file = File::create(&path).with_context(|| format!("could not write {shown}"))?;
        let sink = Sink {
            file,
            sha256: Sha256::new(),
            bytes: 0,
        };
        let sink = if task.split.is_direct {
            self.copy(task, sink)?
        } else {
            self.write(task, sink, &mut summary)?
        };
        summary.file.bytes = sink.bytes;
        summary.file.sha256 = hex::encode(sink.sha256.finalize());
        sink.file
            .sync_all()
            .with_context(|| format!("could not sync {shown}"))?;
        let read = crate::fetch::hash_file(&path, None, monitor)?;
        self.verify_meter.add(read.bytes);
        if hex::encode(read.sha256) != summary.file.sha256 {
            bail!("{shown} does not hold what was written to it: the disk is damaged");
        }
        self.journal.add(&summary)?;
        unfinished.0 = None;
        monitor.shard_written(
            task.path(),
            started.elapsed(),
            summary.file.records,
            summary.payload_bytes,
            summary.file.bytes,
        );
        Ok(summary)
    }

    /// The shard that a task takes as it is.
    fn shard<'t>(task: &Task<'t>) -> Result<&'t ShardManifest> {
        let shards = &task.split.from.shards;
        let shard = shards.iter().filter(|shard| shard.records > 0).nth(task.number);
        shard.ok_or_else(|| anyhow!("split `{}` has no shard {}", task.split.from.name, task.number))
    }

    /// Links a shard under its new name, where it lies on the same file system.
    fn link(&self, task: &Task<'_>, path: &Path, summary: &mut Summary) -> Result<bool> {
        let shard = Self::shard(task)?;
        // Of one that was cut or replaced since.
        let _ = source::open_shard(&self.export.found.folder, shard)?;
        let at = shard.location(&self.export.found.folder);
        // A user's own file may be changed, and a link to it with it.
        if self.export.request.copy || self.export.found.manifest.in_place {
            return Ok(false);
        }
        let Some(from) = at.as_path() else {
            return Ok(false);
        };
        // A link of the same name may be left of an earlier run.
        let from =
            std::fs::canonicalize(&from).with_context(|| format!("could not open {}", from.display()))?;
        let _ = std::fs::remove_file(path);
        if std::fs::hard_link(from, path).is_err() {
            return Ok(false);
        }
        summary.file.bytes = shard.bytes;
        summary.file.sha256.clone_from(&shard.sha256);
        summary.is_link = true;
        Ok(true)
    }

    fn copy(&self, task: &Task<'_>, mut sink: Sink) -> Result<Sink> {
        let shard = Self::shard(task)?;
        let from = source::open_shard(&self.export.found.folder, shard)?;
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(from.len()).unwrap_or(COPY_BYTES))];
        let mut offset = 0;
        while offset < from.len() {
            self.export.request.monitor.check()?;
            let count = (from.len() - offset).min(buffer.len() as u64) as usize;
            from.read_at(offset, &mut buffer[..count])?;
            sink.write_all(&buffer[..count])
                .with_context(|| format!("could not write {}", task.path()))?;
            offset += count as u64;
        }
        let found = hex::encode(sink.sha256.clone().finalize());
        if found != shard.sha256 {
            return Err(Hinted::new(
                format!(
                    "{} has the SHA-256 {found}, the manifest says {}",
                    from.name(),
                    shard.sha256
                ),
                "the dataset is damaged: `prep verify` finds where; build it again",
            )
            .into());
        }
        self.meter.add(shard.records);
        Ok(sink)
    }

    fn write(&self, task: &Task<'_>, sink: Sink, summary: &mut Summary) -> Result<Sink> {
        let export = self.export;
        let shown = self.out.join(task.path()).display().to_string();
        let mut writer = match (self.table, export.format) {
            (Some(table), _) => Writer::Parquet(Box::new(ParquetWriter::new(sink, &export.features, table)?)),
            (None, FileFormat::ArrayRecord) => {
                let options = match task.split.from.options.as_str() {
                    "" => DEFAULT_OPTIONS,
                    options => options,
                };
                let options = WriteOptions::parse(options)?.with_max_parallelism(Some(1));
                Writer::ArrayRecord(Box::new(
                    array_record::Writer::new(sink, options)?.with_name(shown),
                ))
            }
            (None, FileFormat::TfRecord) => {
                Writer::TfRecord(tfrecord::Writer::new(sink, tfrecord::Compression::Plain)?)
            }
        };
        let mut waiting = 0;
        source::each_record(
            &export.found.folder,
            task.split.from,
            task.range.clone(),
            |record| {
                crate::fault::pass("export");
                writer.write(record)?;
                summary.payload_bytes += record.len() as u64;
                waiting += 1;
                if waiting == LOOK_RECORDS {
                    self.meter.add(waiting);
                    waiting = 0;
                    export.request.monitor.check()?;
                }
                Ok(())
            },
        )?;
        self.meter.add(waiting);
        writer
            .finish()
            .with_context(|| format!("could not write {}", task.path()))
    }
}

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 4 << 20;
/// Records after which it is looked whether to stop.
const LOOK_RECORDS: u64 = 64;

enum Writer<'a> {
    ArrayRecord(Box<array_record::Writer<Sink>>),
    TfRecord(tfrecord::Writer<Sink>),
    Parquet(Box<ParquetWriter<'a, Sink>>),
}

impl Writer<'_> {
    fn write(&mut self, record: &[u8]) -> Result<()> {
        match self {
            Self::ArrayRecord(writer) => Ok(writer.write(record)?),
            Self::TfRecord(writer) => Ok(writer.write(record)?),
            Self::Parquet(writer) => writer.write(record),
        }
    }

    fn finish(self) -> Result<Sink> {
        match self {
            Self::ArrayRecord(writer) => Ok(writer.finish()?),
            Self::TfRecord(writer) => Ok(writer.finish()?),
            Self::Parquet(writer) => writer.finish(),
        }
    }
}
