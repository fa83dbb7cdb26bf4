//! Conversion of TFRecord and ArrayRecord files into ArrayRecord shards.
//!
//! ```text
//! inputs -> count and cut -> read, check, encode, write (a graph) -> verify -> publish by one rename
//! ```
//!
//! | module | what it does |
//! | --- | --- |
//! | `inputs` | which files there are, in which order, of which kind |
//! | `plan` | counts them, and decides which record goes to which shard |
//! | `fast`, `crew` | source order without filter: a task a shard, blocks of records encoded by whoever is free |
//! | `general` | filter, deduplication, other orders: records through a sort |
//! | `filter`, `transform` | expressions over features; choosing and renaming them |
//! | `shard`, `journal` | files that are synced and read back; what is finished |
//! | `manifest` | `prep_convert.json`, which says what a folder was made from |
//!
//! Names of what is measured: a record of 1 kB takes about 0.1 us to read, 0.05 to check, 0.75 to frame, hash and write, 0.15 to read back. SHA-256
//! alone would take 0.7 us more, so it is computed for a catalog or a report only; CRC-64 (0.03 us) is always there.

mod catalog;
mod crew;
mod fast;
pub(crate) mod filter;
mod general;
mod inputs;
mod job;
mod ledger;
mod manifest;
mod plan;
mod read;
mod shard;
mod tfds;
pub(crate) mod transform;
mod words;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use prep_catalog::manifest::Manifest;
use prep_formats::array_record::WriteOptions;
use prep_formats::store::{self, AtomicFile, Existing};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::build::OnError;
use crate::build::staging::{Staging, remove_files};
use crate::builder::DEFAULT_OPTIONS;
use crate::convert::catalog::{Description, Registry};
pub(crate) use crate::convert::inputs::canonical;
use crate::convert::inputs::{Found as Inputs, InputFile};
use crate::convert::job::Job;
use crate::convert::ledger::{Ledger, advise};
pub(crate) use crate::convert::manifest::MANIFEST_FILE;
use crate::convert::manifest::{Converted, ConvertedInput, ConvertedShard, FORMAT};
pub(crate) use crate::convert::plan::in_parallel;
use crate::convert::plan::{Count, Plan, ShardCount, Split};
use crate::convert::shard::ShardSummary;
use crate::convert::tfds::TfdsFolder;
use crate::convert::transform::{Transform, check_names};
use crate::error::Hinted;
use crate::explain::{Flow, Graph};
use crate::journal::Journal;
use crate::monitor::{Monitor, Unit};
use crate::place::{Look, Maker, Place, Standing};
use crate::resources::{self, show_size};
use crate::team::Team;

pub use crate::convert::words::ConvertWords;

/// Raise when the same inputs and options give other bytes than before: conversions of the old are then not "up to date".
const OUTPUT_REVISION: u32 = 2;

/// A conversion may replace a dataset version as well, if it is asked to.
const MAKER: Maker = Maker {
    name: "prep",
    marks: &[MANIFEST_FILE, prep_catalog::MANIFEST_FILE],
    listed: manifest::listed,
};

/// What shards are called unless the user says otherwise.
pub(crate) const DEFAULT_NAME: &str = "data";

/// In which order records are written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// As they are read: by input, then by position.
    Source,
    /// By a hash of this seed, the input's place and the position.
    Shuffle(u64),
    /// By the value of a feature.
    Key(String),
}

impl Order {
    /// Parses `source`, `shuffle:SEED` or `key:FEATURE`.
    ///
    /// # Errors
    /// The text is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "source" => Ok(Self::Source),
            Some(("shuffle", seed)) => seed
                .parse()
                .map(Self::Shuffle)
                .map_err(|_| format!("the seed `{seed}` is not a whole number from 0 to 2^64-1")),
            Some(("key", feature)) if !feature.is_empty() => Ok(Self::Key(feature.to_owned())),
            _ => Err(format!(
                "`{text}` is not an order; there are `source`, `shuffle:SEED` and `key:FEATURE`"
            )),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Source => "source".to_owned(),
            Self::Shuffle(seed) => format!("shuffle:{seed}"),
            Self::Key(feature) => format!("key:{feature}"),
        }
    }
}

/// How many shards a conversion writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Shards {
    /// As TFDS would choose: from 64 MiB to 1 GiB each.
    #[default]
    Auto,
    /// One for each input.
    Same,
    /// So many.
    Number(u64),
    /// As many as keep them below so many bytes of records, on average.
    MaxBytes(u64),
}

impl Shards {
    /// Parses `auto`, `same` or a number.
    ///
    /// # Errors
    /// The text is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "same" => Ok(Self::Same),
            number => match number.parse() {
                Ok(number) if (1..=100_000).contains(&number) => Ok(Self::Number(number)),
                _ => Err(format!(
                    "`{text}` is not `auto`, `same` or a number from 1 to 100000"
                )),
            },
        }
    }
}

/// Which records are left out as repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dedup {
    /// Those whose bytes came before.
    Bytes,
    /// Those whose value of this feature came before.
    Feature(String),
}

impl Dedup {
    /// Parses `exact` or `exact:FEATURE`.
    ///
    /// # Errors
    /// The text is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "exact" => Ok(Self::Bytes),
            Some(("exact", feature)) if !feature.is_empty() => Ok(Self::Feature(feature.to_owned())),
            _ => Err(format!("`{text}` is not `exact` or `exact:FEATURE`")),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Bytes => "exact".to_owned(),
            Self::Feature(feature) => format!("exact:{feature}"),
        }
    }
}

/// What to convert, to where, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertRequest {
    /// Files, patterns, folders and URLs.
    pub inputs: Vec<OsString>,
    /// The folder to be made: a path, or the URL of one in an object store.
    pub output: PathBuf,
    /// What the shards are called.
    pub name: String,
    /// How many there are; `None` for [`Shards::Auto`], and [`Shards::Same`] of a TFDS folder.
    pub shards: Option<Shards>,
    /// In which order the records are written.
    pub order: Order,
    /// Options of the shards, as Google's writer takes them; `None` for the default.
    pub options: Option<String>,
    /// Which records stay, in the language of `--filter`.
    pub filter: Option<String>,
    /// Features that stay.
    pub select: Option<Vec<String>>,
    /// New names of features: (old, new).
    pub rename: Vec<(String, String)>,
    /// At most so many records: the first ones of the output's order.
    pub limit: Option<u64>,
    /// Which records are left out as repeated.
    pub dedup: Option<Dedup>,
    /// What to do with damaged records.
    pub on_error: OnError,
    /// Whether something else in the output's place is replaced.
    pub overwrite: bool,
    /// Whether to only say what would be done.
    pub dry_run: bool,
    /// Whether to draw what would be done, whatever is there already, and do nothing.
    pub explain: bool,
    /// Catalog to register the output in, if at all.
    pub catalog: Option<String>,
    /// Whether shards are hashed with SHA-256 for the outcome.
    pub hash_shards: bool,
    /// Worker threads.
    pub workers: usize,
    /// Memory budget in bytes.
    pub memory_bytes: u64,
    /// Folder for what does not fit into memory; `None` for one in the staging folder.
    pub spill_folder: Option<PathBuf>,
    /// The processes that do it together. All of them need the same request, and the same file system.
    pub team: Team,
    /// Watches and stops the job.
    pub monitor: Arc<Monitor>,
}

impl ConvertRequest {
    /// A conversion of these inputs into this folder, with all defaults.
    pub fn new(inputs: Vec<OsString>, output: impl Into<PathBuf>) -> Self {
        Self {
            inputs,
            output: output.into(),
            name: DEFAULT_NAME.to_owned(),
            shards: None,
            order: Order::Source,
            options: None,
            filter: None,
            select: None,
            rename: Vec::new(),
            limit: None,
            dedup: None,
            on_error: OnError::Fail,
            overwrite: false,
            dry_run: false,
            explain: false,
            catalog: None,
            hash_shards: false,
            workers: resources::default_workers(),
            memory_bytes: resources::default_memory(),
            spill_folder: None,
            team: Team::alone(),
            monitor: Monitor::new(),
        }
    }

    /// What decides the output, inputs apart: equal texts and equal inputs give equal bytes.
    fn canonical(&self, options: &WriteOptions, filter: Option<&filter::Expression>) -> serde_json::Value {
        json!({
            "revision": OUTPUT_REVISION,
            "name": self.name,
            "shards": match self.shards.unwrap_or_default() {
                Shards::Auto => "auto".to_owned(),
                Shards::Same => "same".to_owned(),
                Shards::Number(number) => number.to_string(),
                Shards::MaxBytes(bytes) => format!("max {bytes} bytes"),
            },
            "order": self.order.text(),
            "options": options.to_string(),
            "filter": filter.map(ToString::to_string),
            "select": self.select,
            "rename": self.rename,
            "limit": self.limit,
            "dedup": self.dedup.as_ref().map(Dedup::text),
        })
    }
}

/// How a conversion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ConvertStatus {
    /// It was done.
    Converted,
    /// It was there already; nothing was written.
    UpToDate,
    /// A dry run: nothing was done.
    Planned,
}

impl ConvertStatus {
    /// `converted`, `up to date` or `planned`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Converted => "converted",
            Self::UpToDate => "up to date",
            Self::Planned => "planned",
        }
    }
}

/// A shard of a conversion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardOutcome {
    /// File name in the output.
    pub path: String,
    /// Number of records.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// SHA-256, hex, where it was asked for.
    pub sha256: Option<String>,
    /// Time it took to write; 0 where an earlier run wrote it.
    pub seconds: f64,
}

/// What became of an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputOutcome {
    /// As it was given.
    pub name: String,
    /// What it is: `tfrecord`, `gzip`, `zlib`, `zstd`, `array_record`, `empty`.
    pub kind: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Good records in it, where they were counted.
    pub records: u64,
    /// Damaged records left out.
    pub skipped: u64,
}

/// What a conversion left behind.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConvertOutcome {
    /// How it ended.
    pub status: ConvertStatus,
    /// The output's folder.
    pub path: String,
    /// Records written.
    pub records: u64,
    /// Bytes of them.
    pub payload_bytes: u64,
    /// Inputs, in source order.
    pub inputs: Vec<InputOutcome>,
    /// Shards, in order.
    pub shards: Vec<ShardOutcome>,
    /// Damaged records left out.
    pub skipped: u64,
    /// Records that the filter left out.
    pub filtered: u64,
    /// Records left out as repeated.
    pub duplicates: u64,
    /// Shards that an earlier, interrupted run had finished.
    pub shards_found: u64,
    /// The catalog's log entry, where one was written.
    pub log: Option<u64>,
    /// What would be done, line by line, for a dry run.
    pub plan: Vec<String>,
    /// The same as a drawing.
    #[serde(skip)]
    pub graph: Option<Graph>,
    /// Wall time.
    pub seconds: f64,
    /// Worker threads.
    pub workers: usize,
    /// Most bytes that the job graph held at a time, and bytes that did not fit into memory.
    pub peak_held_bytes: u64,
    /// Bytes that did not fit into memory.
    pub spilled_bytes: u64,
}

/// Converts record files into a folder of ArrayRecord shards.
///
/// Blocks until all is done; prints nothing. `request.monitor` shows how far it is, and stops it.
///
/// # Errors
/// Inputs that are missing, damaged or no record files; an output that cannot be written, or holds something else; a full disk; a stop by
/// [`Monitor::cancel`]. Staging is kept, and the same request goes on from there.
pub fn convert(request: ConvertRequest) -> Result<ConvertOutcome> {
    let monitor = Arc::clone(&request.monitor);
    let team = request.team.clone();
    let skips = request.on_error != OnError::Fail;
    let watch = team.watch(&monitor)?;
    let result = Conversion::new(request).and_then(|conversion| conversion.run());
    if let Err(error) = &result {
        team.fail(error);
    }
    watch
        .settle(result, &monitor)
        .map_err(|error| advise(error, skips))
}

/// A conversion on its way.
struct Conversion {
    request: ConvertRequest,
    options: WriteOptions,
    filter: Option<filter::Expression>,
    inputs: Vec<InputFile>,
    splits: Vec<Split>,
    tfds: Option<TfdsFolder>,
    registry: Option<Registry>,
    /// What decides the output, inputs apart.
    canonical: serde_json::Value,
    place: Place,
    started: Instant,
}

/// Records left out on the way.
#[derive(Debug, Clone, Copy, Default)]
struct Removed {
    filtered: u64,
    duplicates: u64,
}

impl Conversion {
    fn new(mut request: ConvertRequest) -> Result<Self> {
        check_name(&request.name)?;
        let options = WriteOptions::parse(request.options.as_deref().unwrap_or(DEFAULT_OPTIONS))?;
        let filter = match &request.filter {
            Some(text) => Some(filter::parse(text).map_err(|fault| {
                anyhow::anyhow!(Hinted::new(
                    format!("`--filter`: {}", fault.show(text)),
                    "an example: \"label in (1, 2) and len(objects/bbox) > 0 and not name == 'cat'\"",
                ))
            })?),
            None => None,
        };
        let place = Place::new(&request.output, Path::new(""), &MAKER)?;
        let (inputs, splits, tfds) = match inputs::find(&request.inputs, &place, &request.monitor)? {
            Inputs::Files(files) => {
                let splits = vec![Split::single(&request.name, files.len())];
                (files, splits, None)
            }
            Inputs::Tfds(folder) => {
                if request.limit.is_some() {
                    return Err(Hinted::new(
                        format!("`--limit` has no meaning for {}, a TFDS folder", folder.display()),
                        "its splits are converted whole; for some records of one, name its files by a pattern",
                    )
                    .into());
                }
                if request.name != DEFAULT_NAME {
                    return Err(Hinted::new(
                        format!("`--name` has no meaning for {}, a TFDS folder", folder.display()),
                        "its shards keep the dataset's name; for another one, name its files by a pattern",
                    )
                    .into());
                }
                let (tfds, files, splits) =
                    TfdsFolder::open(&folder, request.select.as_deref(), &request.rename)?;
                (files, splits, Some(tfds))
            }
        };
        if tfds.is_some() && request.shards.is_none() {
            request.shards = Some(Shards::Same);
        }
        let registry = match &request.catalog {
            Some(url) => {
                let info = tfds.as_ref().map(|tfds| &tfds.info);
                Some(Registry::open(
                    url,
                    &request.name,
                    info,
                    place.folder(),
                    request.overwrite,
                )?)
            }
            None => None,
        };
        let canonical = request.canonical(&options, filter.as_ref());
        Ok(Self {
            request,
            options,
            filter,
            inputs,
            splits,
            tfds,
            registry,
            canonical,
            place,
            started: Instant::now(),
        })
    }

    fn run(&self) -> Result<ConvertOutcome> {
        let team = &self.request.team;
        if !team.is_leader() {
            return match team.hear()? {
                Orders::Nothing(outcome) => Ok(*outcome),
                Orders::Work { root, found } => self.follow(&root, &found),
            };
        }
        let mut told = false;
        let outcome = self.lead(&mut told)?;
        // What is published is published, whoever is there to hear of it.
        let _ = if told {
            team.tell(&outcome)
        } else {
            team.tell(&Orders::Nothing(Box::new(outcome.clone())))
        };
        Ok(outcome)
    }

    /// Does a process's part of what the leader has planned.
    fn follow(&self, root: &Path, found: &[usize]) -> Result<ConvertOutcome> {
        let request = &self.request;
        let _folder = request.team.enter_folder(root, &request.monitor)?;
        let workers = request.team.least(request.workers)?;
        let path = root.join("plan.json");
        let text = std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
        let plan: Plan =
            serde_json::from_slice(&text).with_context(|| format!("could not read {}", path.display()))?;
        let ledger = Ledger::new(request.on_error, self.inputs.len(), &request.monitor);
        let job = self.job(root, Arc::new(plan), ledger, workers)?;
        if self.is_general() {
            general::run(&job, &Arc::new(self.wish()), Vec::new())?;
        } else {
            let found = found
                .iter()
                .map(|index| (*index, ShardSummary::default()))
                .collect();
            fast::run(&job, &found)?;
        }
        job.meter.finish();
        job.verify_meter.finish();
        // All that this process counted, before the leader sums up.
        let _ = request.monitor.overview();
        request.team.gather(job.names())?;
        request.team.hear()
    }

    /// What the graphs need, in one of the processes. `root` is the staging folder.
    fn job(&self, root: &Path, plan: Arc<Plan>, ledger: Arc<Ledger>, workers: usize) -> Result<Arc<Job>> {
        let request = &self.request;
        let monitor = &request.monitor;
        let (journal, _) = Journal::open(&root.join(format!("journal-{}.jsonl", request.team.index())))?;
        let total: Option<u64> = plan.shards.iter().map(|shard| shard.records).sum();
        Ok(Arc::new(Job {
            plan,
            options: self.options.clone(),
            transform: self.transform()?.map(Arc::new),
            ledger,
            monitor: Arc::clone(monitor),
            meter: monitor.stage("convert", Unit::Examples, total.filter(|_| !self.is_general())),
            verify_meter: monitor.stage("verify", Unit::Bytes, None),
            journal: Arc::new(journal),
            out: root.join("out"),
            spill: request.spill_folder.clone().unwrap_or_else(|| root.join("spill")),
            sha256: self.hashes(),
            fingerprint: request.catalog.is_some(),
            block_bytes: job::block_bytes(request.memory_bytes, workers),
            workers,
            memory_bytes: request.memory_bytes,
            team: request.team.clone(),
            peak_held_bytes: AtomicU64::new(0),
            spilled_bytes: AtomicU64::new(0),
        }))
    }

    /// Decides, and does its part of the work. `told` says afterwards whether the others were given work.
    fn lead(&self, told: &mut bool) -> Result<ConvertOutcome> {
        let monitor = &self.request.monitor;
        if self.request.explain {
            return Ok(self.dry_run(&Standing::Absent));
        }
        self.place.refuse_mount_point(&self.request.name)?;
        let standing = self.standing()?;
        if let Standing::Same(found) = &standing
            && !self.place.is_staged()
        {
            return self.adopt(found);
        }
        self.refuse_different(&standing)?;
        if self.request.dry_run {
            return Ok(self.dry_run(&standing));
        }
        self.place.check_writable()?;
        let staging = self.place.enter(monitor)?;
        // Another process may have made it while this one waited.
        let standing = self.standing()?;
        if let Standing::Same(found) = &standing {
            let outcome = self.adopt(found)?;
            staging.remove()?;
            return Ok(outcome);
        }
        if let Err(error) = self.refuse_different(&standing) {
            staging.remove()?;
            return Err(error);
        }
        let result = self.work(&staging, told);
        match result {
            Ok(outcome) => {
                staging.remove()?;
                Ok(outcome)
            }
            Err(error) => {
                // Nothing that the next run could use is no reason to leave a folder.
                if is_bare(staging.root()) {
                    let _ = staging.remove();
                }
                Err(resources::explain_full_disk(error, self.place.top(), || {
                    let inputs = self.inputs.iter().map(|input| input.bytes).sum();
                    format!("the inputs have {}", show_size(inputs))
                }))
            }
        }
    }

    /// Each process counts what it leaves out itself, and so did earlier runs; what may be left out, may be so by all of them together.
    fn refuse_skipped(&self, converted: &Converted) -> Result<()> {
        const MOST_NAMED: usize = 3;
        let skipped = converted.skipped();
        if self.request.on_error.allows(skipped) {
            return Ok(());
        }
        let damaged = converted.inputs.iter().zip(&self.inputs);
        let damaged = damaged.filter(|(converted, _)| converted.skipped > 0);
        let mut named: Vec<String> = damaged
            .clone()
            .take(MOST_NAMED)
            .map(|(converted, input)| format!("{} of {}", converted.skipped, input.shown))
            .collect();
        let more = damaged.count().saturating_sub(MOST_NAMED);
        if more > 0 {
            named.push(format!("those of {more} other inputs"));
        }
        Err(Hinted::new(
            format!(
                "{skipped} records are damaged, more than may be skipped: {}",
                named.join(", ")
            ),
            "raise the number after `skip:`, or get the files again",
        )
        .into())
    }

    /// What is in the output's place, compared with what is asked for. Reads all inputs where everything else is the same.
    fn standing(&self) -> Result<Standing<Converted>> {
        self.place.standing(|look| self.compare(look))
    }

    /// What is there, or in what it differs from what is asked for.
    fn compare(&self, look: &Look) -> Result<Result<Converted, String>> {
        let different = |reason: &str| Ok(Err(reason.to_owned()));
        let text = look.read(MANIFEST_FILE)?;
        let Some(found) = text.and_then(|text| Converted::from_json(&text)) else {
            return different("was not made by `prep convert`");
        };
        if found.request != self.canonical {
            return different("was made with other options");
        }
        let same_files = found.inputs.len() == self.inputs.len()
            && found
                .inputs
                .iter()
                .zip(&self.inputs)
                .all(|(there, input)| there.name == input.file_name() && there.bytes == input.bytes);
        if !same_files {
            return different("was made from other inputs");
        }
        let skipped = found.skipped();
        if !self.request.on_error.allows(skipped) {
            return different(&format!("was made with {skipped} damaged records left out"));
        }
        let shards = found.shards.iter();
        if let Some(reason) = look.damaged(shards.map(|shard| (shard.path.as_str(), shard.bytes)))? {
            return Ok(Err(reason));
        }
        if let Some(registry) = &self.registry {
            let is_described = Registry::manifest_in(self.place.folder()).is_some_and(|there| {
                (there.name, there.version) == (registry.name.clone(), registry.version.clone())
            });
            if !is_described {
                return different("was made without `--catalog`");
            }
        }
        let wanted: Vec<(usize, u64)> = found
            .inputs
            .iter()
            .enumerate()
            .map(|(input, there)| (input, there.read))
            .collect();
        let meter = self.request.monitor.stage(
            "compare",
            Unit::Bytes,
            Some(wanted.iter().map(|(_, bytes)| bytes).sum()),
        );
        let sums = plan::digest(
            &self.inputs,
            &wanted,
            self.request.workers,
            &meter,
            &self.request.monitor,
        )?;
        meter.finish();
        let same = found
            .inputs
            .iter()
            .zip(&sums)
            .all(|(there, sum)| there.crc64 == format!("{sum:016x}"));
        if !same {
            return different("was made from other inputs of the same names and sizes");
        }
        Ok(Ok(found))
    }

    fn refuse_different(&self, standing: &Standing<Converted>) -> Result<()> {
        match standing {
            Standing::Different(reason) if self.registry.is_some() && self.place.local().is_none() => {
                Err(Hinted::new(
                    reason,
                    "give another output: who has opened a version that lies in an object store would lose it, as folders change places \
                     on a local disk only",
                )
                .into())
            }
            standing => self.place.refuse(standing, self.request.overwrite),
        }
    }

    /// What identifies the job: the request, and the inputs with their times of change.
    fn identity(&self) -> String {
        let inputs: Vec<_> = self
            .inputs
            .iter()
            .map(|input| json!([input.shown, input.bytes, input.identity]))
            .collect();
        let on_error = match self.request.on_error {
            OnError::Fail => "fail",
            OnError::Skip(_) => "skip",
        };
        json!({
            "convert": self.canonical,
            "inputs": inputs,
            "on_error": on_error,
            "sha256": self.hashes(),
            "catalog": self.registry.as_ref().map(|registry| (&registry.name, &registry.version)),
        })
        .to_string()
    }

    fn hashes(&self) -> bool {
        self.request.hash_shards || self.request.catalog.is_some()
    }

    /// Makes the staging folder this job's: what an earlier run of the same job left stays, anything else goes.
    fn prepare(&self, staging: &Staging) -> Result<()> {
        if staging.take_for(&self.identity())? {
            self.request.monitor.note(format!(
                "what another conversion had left unfinished in {} is thrown away",
                staging.root().display()
            ));
        }
        for folder in [staging.out(), staging.spill()] {
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("could not make the folder {}", folder.display()))?;
        }
        store::sync_folder(staging.root())?;
        Ok(())
    }

    fn work(&self, staging: &Staging, told: &mut bool) -> Result<ConvertOutcome> {
        let monitor = &self.request.monitor;
        let team = &self.request.team;
        self.prepare(staging)?;
        let entries = Journal::<ShardSummary>::read_all(staging.root())?;
        let ledger = Ledger::new(self.request.on_error, self.inputs.len(), monitor);
        let plan = Arc::new(self.plan(staging, &ledger)?);
        let out = staging.out();
        let (found, earlier) = if self.is_general() {
            (HashMap::new(), entries)
        } else {
            (fast::finished(&out, &plan, entries), Vec::new())
        };
        let kept: HashSet<&str> = found
            .values()
            .chain(&earlier)
            .map(|summary| summary.path.as_str())
            .collect();
        remove_files(&out, |name| !kept.contains(name))?;
        if !found.is_empty() {
            monitor.note(format!(
                "{} of {} shards are there already, from a run that was interrupted",
                found.len(),
                plan.shards.len()
            ));
        }
        general::forget_layout(staging.root())?;
        team.tell(&Orders::Work {
            root: staging.root().to_owned(),
            found: found.keys().copied().collect(),
        })?;
        *told = true;
        let _folder = team.enter_folder(staging.root(), monitor)?;
        let workers = team.least(self.request.workers)?;
        let job = self.job(staging.root(), Arc::clone(&plan), ledger, workers)?;
        let transform = job.transform.clone();
        for summary in found.values() {
            for (input, _, skipped) in &summary.counts {
                job.ledger.restore(*input, *skipped);
            }
            if let Some(transform) = &transform {
                transform.restore(&summary.names);
            }
        }
        job.meter.add(found.values().map(|summary| summary.records).sum());
        self.tell_compressed();
        let mut removed = Removed::default();
        let mut shards_found = found.len() as u64;
        let mut summaries = if self.is_general() {
            let finished = general::run(&job, &Arc::new(self.wish()), earlier)?;
            removed.filtered = finished.filtered;
            removed.duplicates = finished.duplicates;
            shards_found = finished.found;
            if shards_found > 0 {
                monitor.note(format!(
                    "{shards_found} of {} shards were there already, from a run that was interrupted",
                    finished.summaries.len()
                ));
            }
            let kept: HashSet<&str> = finished
                .summaries
                .iter()
                .map(|summary| summary.path.as_str())
                .collect();
            remove_files(&out, |name| !kept.contains(name))?;
            finished.summaries
        } else {
            fast::run(&job, &found)?
        };
        job.meter.finish();
        job.verify_meter.finish();
        summaries.extend(found.into_values());
        summaries.sort_by_key(|summary| summary.index);
        let others = team.gather(job.names())?.unwrap_or_default();
        if let Some(transform) = &transform {
            let mut names = transform.names();
            names.extend(summaries.iter().flat_map(|summary| summary.names.clone()));
            names.extend(others.into_iter().flatten());
            names.sort();
            names.dedup();
            let wished = self.wish().features();
            let wished = wished.iter().map(|(flag, name)| (*flag, name.as_str()));
            // A schema has said already what there is, also of what no record happens to have.
            let is_known = self.tfds.as_ref().is_some_and(|tfds| tfds.chosen.is_some());
            let wanted = transform.wanted().filter(|_| !is_known);
            check_names(wanted.chain(wished), &names)?;
        }
        monitor.check()?;
        let mut converted = self.converted(&job, &summaries, removed)?;
        self.refuse_skipped(&converted)?;
        if let Some(tfds) = &self.tfds {
            let is_same = transform.is_none() && !self.is_general();
            let records: Vec<_> = converted
                .inputs
                .iter()
                .map(|input| (input.records, input.skipped))
                .collect();
            tfds.check(&self.inputs, &records)?;
            converted.files = tfds.write(&out, &summaries, is_same && converted.skipped() == 0)?;
        }
        let manifest = match &self.registry {
            Some(registry) => Some(self.describe(registry, &out, &summaries, &converted)?),
            None => None,
        };
        converted.write(&out)?;
        let log = self.publish(&out, manifest.as_ref())?;
        let mut outcome = self.outcome(ConvertStatus::Converted, &converted);
        for (shard, summary) in outcome.shards.iter_mut().zip(&summaries) {
            shard.sha256 = summary.sha256.clone();
            shard.seconds = summary.seconds;
        }
        outcome.payload_bytes = summaries.iter().map(|summary| summary.payload_bytes).sum();
        outcome.shards_found = shards_found;
        self.tell(&outcome, &summaries);
        outcome.log = log;
        outcome.peak_held_bytes = job.peak_held_bytes.load(Ordering::Relaxed);
        outcome.spilled_bytes = job.spilled_bytes.load(Ordering::Relaxed);
        Ok(outcome)
    }

    /// Tells the monitor what the final report says.
    fn tell(&self, outcome: &ConvertOutcome, summaries: &[ShardSummary]) {
        let monitor = &self.request.monitor;
        monitor.shards_found(outcome.shards_found);
        // An earlier run's shards have no time.
        for shard in summaries
            .iter()
            .filter(|shard| !shard.found && shard.seconds > 0.0)
        {
            let took = Duration::from_secs_f64(shard.seconds);
            monitor.shard_written(
                &shard.path,
                took,
                shard.records,
                shard.payload_bytes,
                shard.file_bytes,
            );
        }
        for split in &self.splits {
            for input in outcome.inputs.get(split.inputs.clone()).unwrap_or_default() {
                if input.skipped > 0 {
                    monitor.skipped(&split.name, &input.name, input.skipped);
                }
            }
        }
    }

    /// What the conversion would do, drawn.
    fn graph(&self) -> Graph {
        const MOST_INPUTS: usize = 8;
        let request = &self.request;
        let bytes: u64 = self.inputs.iter().map(|input| input.bytes).sum();
        let compressed = self.inputs.iter().any(|input| input.kind.is_compressed());
        let mut graph = Graph::new(format!("convert {} files to {}", self.inputs.len(), self.place));
        let mut details: Vec<String> = self
            .inputs
            .iter()
            .take(MOST_INPUTS)
            .map(|input| {
                format!(
                    "{} ({}, {})",
                    input.shown,
                    input.kind.word(),
                    show_size(input.bytes)
                )
            })
            .collect();
        if self.inputs.len() > MOST_INPUTS {
            details.push(format!("and {} more", self.inputs.len() - MOST_INPUTS));
        }
        let inputs = graph.stage("inputs", details, &[]);
        // Of compressed files nobody knows beforehand; checksums and lengths are a few bytes a record.
        let records = Flow::new().bytes((!compressed).then_some(bytes));
        let workers = format!("on {} workers", request.workers);
        let read = graph.stage(
            "read",
            [
                format!("checks every record's checksum, {workers}"),
                if compressed {
                    "a compressed file cannot be split: one thread reads it".to_owned()
                } else {
                    "files are split between workers".to_owned()
                },
            ],
            &[(inputs, Flow::new().bytes(bytes))],
        );
        let mut last = read;
        if self.filter.is_some() || request.select.is_some() || !request.rename.is_empty() {
            let asked = [
                self.filter.as_ref().map(|filter| format!("keeps {filter}")),
                request
                    .select
                    .as_ref()
                    .map(|names| format!("selects {}", names.join(", "))),
                (!request.rename.is_empty()).then(|| "renames features".to_owned()),
            ];
            last = graph.stage(
                "transform",
                asked.into_iter().flatten(),
                &[(last, records.clone())],
            );
        }
        if self.is_general() {
            let spills = if bytes > request.memory_bytes / 4 || compressed {
                let folder = match &request.spill_folder {
                    Some(folder) => folder.display().to_string(),
                    None => "the staging folder".to_owned(),
                };
                format!(
                    "spills what is over {} to {folder}",
                    show_size(request.memory_bytes / 4)
                )
            } else {
                "fits into memory, nothing is spilled".to_owned()
            };
            let dedup = request
                .dedup
                .as_ref()
                .map(|dedup| format!("leaves out repeated records: {}", dedup.text()));
            let details = [
                Some(format!("order: {}", request.order.text())),
                dedup,
                Some(spills),
            ];
            last = graph.stage(
                "sort",
                details.into_iter().flatten(),
                &[(last, records.clone().how("to the worker of its key"))],
            );
        }
        let write = graph.stage(
            "write",
            [
                format!(
                    "shards: {}, options `{}`",
                    self.canonical["shards"].as_str().unwrap_or_default(),
                    self.options
                ),
                format!("into {}", self.place.staging_path().display()),
            ],
            &[(last, records)],
        );
        let verify = graph.stage("verify", ["reads every shard back"], &[(write, Flow::new())]);
        graph.stage(
            "publish",
            [format!("as {}", self.place)],
            &[(verify, Flow::new().how("by one rename"))],
        );
        graph.note(format!(
            "memory: up to {} for {} workers",
            show_size(request.memory_bytes),
            request.workers
        ));
        let free = resources::free_bytes(self.place.top());
        graph.note(format!(
            "disk: {} are free at {}",
            free.map_or("an unknown number of bytes".to_owned(), show_size),
            self.place.top().display()
        ));
        graph.note("estimates are made from the sizes of files; nothing was written");
        graph
    }

    /// Says once that compressed inputs have to be read by one thread each.
    fn tell_compressed(&self) {
        let compressed: Vec<&InputFile> = self
            .inputs
            .iter()
            .filter(|input| input.kind.is_compressed())
            .collect();
        if self.request.workers > 1
            && let Some(first) = compressed.iter().max_by_key(|input| input.bytes)
            && compressed.len() < self.request.workers
        {
            self.request.monitor.note(format!(
                "{} ({}) is compressed as a whole and cannot be split: one thread decompresses it, others encode",
                first.shown,
                first.kind.word()
            ));
        }
    }

    fn transform(&self) -> Result<Option<Transform>> {
        let is_idle = self.request.select.is_none() && self.request.rename.is_empty();
        if is_idle && self.wish().features().is_empty() {
            return Ok(None);
        }
        let chosen = self.tfds.as_ref().and_then(|tfds| tfds.chosen.as_ref());
        match chosen {
            Some(chosen) => Transform::new(chosen.select.as_deref(), &chosen.rename),
            None => Transform::new(self.request.select.as_deref(), &self.request.rename),
        }
        .map(Some)
    }

    /// The plan of an earlier run, or a new one.
    fn plan(&self, staging: &Staging, ledger: &Arc<Ledger>) -> Result<Plan> {
        let path = staging.root().join("plan.json");
        if let Ok(text) = std::fs::read(&path)
            && let Ok(plan) = serde_json::from_slice::<Plan>(&text)
        {
            for (input, count) in plan.counts.iter().enumerate() {
                ledger.restore(input, count.skipped);
            }
            return Ok(plan);
        }
        let shards = self.shard_count();
        let plan = if self.is_general() {
            general::plan(self.inputs.clone(), self.count(ledger)?, self.splits.clone())
        } else if shards == ShardCount::Same && self.request.limit.is_none() {
            plan::one_to_one(self.inputs.clone(), self.splits.clone())
        } else {
            let counts = self.count(ledger)?;
            plan::cut(
                self.inputs.clone(),
                counts,
                self.splits.clone(),
                shards,
                self.request.limit,
                ledger,
            )?
        };
        write_synced(&path, &serde_json::to_vec(&plan)?)?;
        Ok(plan)
    }

    /// Whether records have to go through a sort.
    fn is_general(&self) -> bool {
        self.filter.is_some() || self.request.dedup.is_some() || self.request.order != Order::Source
    }

    fn wish(&self) -> general::Wish {
        general::Wish {
            order: self.request.order.clone(),
            filter: self.filter.clone(),
            dedup: self.request.dedup.clone(),
            limit: self.request.limit,
            shards: self.shard_count(),
        }
    }

    fn shard_count(&self) -> ShardCount {
        match self.request.shards.unwrap_or_default() {
            Shards::Auto => ShardCount::Auto,
            Shards::Same => ShardCount::Same,
            Shards::Number(number) => ShardCount::Number(number),
            Shards::MaxBytes(bytes) => ShardCount::MaxBytes(bytes),
        }
    }

    fn count(&self, ledger: &Arc<Ledger>) -> Result<Vec<Count>> {
        let monitor = &self.request.monitor;
        let total = self.inputs.iter().map(|input| input.bytes).sum();
        let meter = monitor.stage("count", Unit::Bytes, Some(total));
        let counts = plan::count(&self.inputs, self.request.workers, ledger, &meter, monitor)?;
        meter.finish();
        Ok(counts)
    }

    /// What the output's manifest says.
    fn converted(&self, job: &Job, summaries: &[ShardSummary], removed: Removed) -> Result<Converted> {
        let plan = &job.plan;
        let joined = fast::join_sums(self.inputs.len(), summaries);
        // What was not summed while it was read: kinds that are not read byte by byte, from start to end.
        let mut sums: Vec<(u64, u64)> = joined.iter().map(|sum| sum.unwrap_or_default()).collect();
        let missing: Vec<(usize, u64)> = joined
            .iter()
            .enumerate()
            .filter(|(input, sum)| sum.is_none() && self.inputs[*input].bytes > 0)
            .map(|(input, _)| (input, self.inputs[input].bytes))
            .collect();
        if !missing.is_empty() {
            let monitor = &self.request.monitor;
            let total = missing.iter().map(|(_, bytes)| bytes).sum();
            let meter = monitor.stage("digest", Unit::Bytes, Some(total));
            let found = plan::digest(&self.inputs, &missing, self.request.workers, &meter, monitor)?;
            meter.finish();
            for ((input, bytes), sum) in missing.into_iter().zip(found) {
                sums[input] = (bytes, sum);
            }
        }
        let mut counted: HashMap<usize, (u64, u64)> = HashMap::new();
        for (input, count) in plan.counts.iter().enumerate() {
            counted.insert(input, (count.records, count.skipped));
        }
        for (input, records, skipped) in summaries.iter().flat_map(|summary| &summary.counts) {
            let entry = counted.entry(*input).or_default();
            entry.0 += records;
            entry.1 += skipped;
        }
        let inputs = self.inputs.iter().enumerate().map(|(input, file)| {
            let (records, skipped) = counted.get(&input).copied().unwrap_or_default();
            ConvertedInput {
                name: file.file_name(),
                kind: file.kind.word().to_owned(),
                bytes: file.bytes,
                read: sums[input].0,
                crc64: format!("{:016x}", sums[input].1),
                records,
                skipped,
            }
        });
        Ok(Converted {
            format: FORMAT,
            request: self.canonical.clone(),
            inputs: inputs.collect(),
            records: summaries.iter().map(|summary| summary.records).sum(),
            filtered: removed.filtered,
            duplicates: removed.duplicates,
            shards: summaries
                .iter()
                .map(|summary| ConvertedShard {
                    path: summary.path.clone(),
                    records: summary.records,
                    bytes: summary.file_bytes,
                    crc64: format!("{:016x}", summary.crc64),
                })
                .collect(),
            files: Vec::new(),
        })
    }

    /// Writes what a catalog wants to know of the output.
    fn describe(
        &self,
        registry: &Registry,
        out: &Path,
        summaries: &[ShardSummary],
        converted: &Converted,
    ) -> Result<Manifest> {
        let skipped = |split: &Split| {
            let inputs = converted.inputs[split.inputs.clone()].iter();
            inputs.map(|input| input.skipped).sum()
        };
        let about = Description {
            inputs: &self.inputs,
            summaries,
            options: self.options.to_string(),
            request: &self.canonical,
            tfds: self.tfds.as_ref(),
            skipped: self.splits.iter().map(skipped).collect(),
        };
        registry.describe(out, &about, self.request.workers, &self.request.monitor)
    }

    /// Puts the finished folder in place, and writes the catalog's entry; what it replaces is left in the staging folder, and goes with it. As in a
    /// build, the entry comes first where something is replaced, and names both places.
    fn publish(&self, out: &Path, manifest: Option<&Manifest>) -> Result<Option<u64>> {
        let registered = self.registry.as_ref().zip(manifest);
        let folder = self.place.folder();
        let mut log = None;
        if let Some((registry, manifest)) = registered
            && self.request.overwrite
            && self.place.local().is_some()
            && self.place.is_taken()?
        {
            log = Some(registry.commit(manifest, folder, Some(out), true)?);
        }
        self.place
            .publish(out, MANIFEST_FILE, self.request.overwrite, &self.request.monitor)?;
        if let Some((registry, manifest)) = registered
            && log.is_none()
        {
            log = Some(registry.commit(manifest, folder, None, self.request.overwrite)?);
        }
        Ok(log)
    }

    /// The outcome for what is there already; a catalog that does not know it yet, as a kill may leave it, is told.
    fn adopt(&self, found: &Converted) -> Result<ConvertOutcome> {
        let mut outcome = self.up_to_date(found);
        if let Some(registry) = &self.registry
            && let Some(manifest) = Registry::manifest_in(self.place.folder())
        {
            outcome.log =
                Some(registry.commit(&manifest, self.place.folder(), None, self.request.overwrite)?);
        }
        Ok(outcome)
    }

    fn up_to_date(&self, found: &Converted) -> ConvertOutcome {
        self.outcome(ConvertStatus::UpToDate, found)
    }

    fn outcome(&self, status: ConvertStatus, converted: &Converted) -> ConvertOutcome {
        let mut outcome = self.empty_outcome(status);
        outcome.records = converted.records;
        outcome.filtered = converted.filtered;
        outcome.duplicates = converted.duplicates;
        outcome.skipped = converted.inputs.iter().map(|input| input.skipped).sum();
        for (there, file) in outcome.inputs.iter_mut().zip(&converted.inputs) {
            there.records = file.records;
            there.skipped = file.skipped;
        }
        outcome.shards = converted
            .shards
            .iter()
            .map(|shard| ShardOutcome {
                path: shard.path.clone(),
                records: shard.records,
                bytes: shard.bytes,
                sha256: None,
                seconds: 0.0,
            })
            .collect();
        outcome
    }

    fn empty_outcome(&self, status: ConvertStatus) -> ConvertOutcome {
        ConvertOutcome {
            status,
            path: self.place.to_string(),
            records: 0,
            payload_bytes: 0,
            inputs: self
                .inputs
                .iter()
                .map(|input| InputOutcome {
                    name: input.shown.clone(),
                    kind: input.kind.word().to_owned(),
                    bytes: input.bytes,
                    records: 0,
                    skipped: 0,
                })
                .collect(),
            shards: Vec::new(),
            skipped: 0,
            filtered: 0,
            duplicates: 0,
            shards_found: 0,
            log: None,
            plan: Vec::new(),
            graph: None,
            seconds: self.started.elapsed().as_secs_f64(),
            workers: self.request.workers,
            peak_held_bytes: 0,
            spilled_bytes: 0,
        }
    }

    fn dry_run(&self, standing: &Standing<Converted>) -> ConvertOutcome {
        let mut outcome = self.empty_outcome(ConvertStatus::Planned);
        outcome.graph = Some(self.graph());
        let mut lines = Vec::new();
        for input in &self.inputs {
            lines.push(format!(
                "read {} ({}, {})",
                input.shown,
                input.kind.word(),
                show_size(input.bytes)
            ));
        }
        lines.push(format!(
            "write shards (`{}`, order {}, options `{}`)",
            self.canonical["shards"].as_str().unwrap_or_default(),
            self.request.order.text(),
            self.options
        ));
        if let Standing::Different(reason) = standing {
            lines.push(format!("replace what is there: {reason}"));
        }
        outcome.plan = lines;
        outcome
    }
}

/// What the leader of several processes tells the others.
#[derive(Debug, Serialize, Deserialize)]
enum Orders {
    /// There is nothing to do.
    Nothing(Box<ConvertOutcome>),
    /// The plan is in this staging folder; these shards of it are finished.
    Work { root: PathBuf, found: Vec<usize> },
}

/// With what comes behind it, a name has to be one of a file: 255 bytes at most.
const MOST_NAME_BYTES: usize = 200;

/// A name of shards has to be a file name.
fn check_name(name: &str) -> Result<()> {
    let is_odd = name.is_empty()
        || name.starts_with('.')
        || name.contains(['/', '\\', '\0'])
        || name.len() > MOST_NAME_BYTES
        || name.chars().any(char::is_control);
    if is_odd {
        return Err(Hinted::new(
            format!("`{}` cannot be the name of shards", name.escape_debug()),
            format!(
                "a name has no `/` or `\\`, no `.` at its start, and {MOST_NAME_BYTES} bytes at most; it becomes \
                 NAME.array_record-00000-of-00008"
            ),
        )
        .into());
    }
    Ok(())
}

/// Whether a staging folder holds nothing that is worth keeping.
fn is_bare(root: &Path) -> bool {
    let is_empty = |path: PathBuf| std::fs::metadata(path).map_or(true, |file| file.len() == 0);
    is_empty(root.join("journal-0.jsonl")) && !root.join("plan.json").exists()
}

/// Writes a file that is whole or not there, durably.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> prep_formats::Result<()> {
        let mut file = AtomicFile::create(path.with_extension("new"))?;
        file.write_all(bytes)
            .map_err(prep_formats::Error::io(path, "write"))?;
        file.commit(path, Existing::Replace)
    };
    write().with_context(|| format!("could not write {}", path.display()))
}
