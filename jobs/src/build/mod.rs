//! Building a dataset: from a builder and its sources to a version in the catalog.
//!
//! ```text
//! locate sources -> fetch -> read, encode, sort, write shards -> verify -> publish -> commit
//! ```
//!
//! All happens in a staging folder under the data folder (`staging`); what is finished there is journaled, so that the same
//! request goes on after a kill. The version's folder gets its name by one rename, and the catalog its entry by one commit.

pub(crate) mod apart;
pub(crate) mod base;
mod estimate;
mod graph;
pub(crate) mod info;
mod journal;
pub(crate) mod kept;
mod payload;
pub(crate) mod publish;
mod shard;
pub(crate) mod staging;
pub(crate) mod statistics;
pub(crate) mod upload;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use prep_catalog::manifest::Manifest;
use prep_formats::array_record::WriteOptions;
use prep_formats::statistics::Statistics;
use prep_formats::store::Location;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build::base::{Base, TakenOver, Taking};
use crate::build::graph::{Finished, Plan};
use crate::build::journal::{Entry, Journal, Written};
use crate::build::payload::{PartNames, Payloads};
use crate::build::publish::{Found, Registry};
use crate::build::shard::{ShardSummary, Shards};
use crate::build::staging::Staging;
use crate::build::statistics::Finishing;
use crate::build::upload::Copy;
use crate::builder::{Builder, DatasetSpec, Known, Layout, Source, StartOver};
use crate::error::{Hinted, Occupied, Overtaken};
use crate::explain::{Flow, Graph};
use crate::fetch::{self, Checksum, ChecksumThread, FetchOptions, Fetched, Located};
use crate::monitor::{Meter, Monitor, Unit};
use crate::resources;
use crate::team::Team;

pub(crate) use graph::{FRACTION_SALT, fraction_of};
pub use shard::shard_file_name;

/// Raise when the same recipe and sources give other bytes than before: builds of the old are then not "up to date".
const OUTPUT_REVISION: u32 = 1;
/// How often a job starts over because a reader learned better.
const MOST_RESTARTS: u32 = 2;

/// What to do with a damaged record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The build fails, naming it.
    #[default]
    Fail,
    /// It is left out and counted; more than this many are an error again.
    Skip(Option<u64>),
}

impl OnError {
    /// Parses `fail`, `skip` or `skip:MAX`.
    ///
    /// # Errors
    /// The text is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "fail" => Ok(Self::Fail),
            None if text == "skip" => Ok(Self::Skip(None)),
            Some(("skip", most)) => match most.parse() {
                Ok(most) => Ok(Self::Skip(Some(most))),
                Err(_) => Err(format!("`{most}` is not a number of records")),
            },
            _ => Err(format!(
                "`{text}` is not a policy; there are `fail`, `skip` and `skip:MAX`"
            )),
        }
    }

    /// Whether so many records may have been left out.
    pub fn allows(self, skipped: u64) -> bool {
        match self {
            Self::Fail => skipped == 0,
            Self::Skip(most) => most.is_none_or(|most| skipped <= most),
        }
    }

    /// Refuses more records to be left out than may be; that none may be is the matter of whoever finds one.
    pub(crate) fn check(self, skipped: u64) -> Result<()> {
        if self == Self::Fail || self.allows(skipped) {
            return Ok(());
        }
        Err(Hinted::new(
            format!("{skipped} records are damaged, more than may be skipped"),
            "raise the number after `skip:`, or get the source again",
        )
        .into())
    }
}

/// What to build, from where, to where, and how.
#[derive(Clone)]
#[non_exhaustive]
pub struct BuildRequest {
    /// Makes the dataset.
    pub builder: Arc<dyn Builder>,
    /// Files, folders and addresses to take sources from; empty for the builder's own places.
    pub from: Vec<String>,
    /// Catalog; `None` for the default one.
    pub catalog: Option<String>,
    /// Where datasets lie; `None` for `data` in the catalog.
    pub data_dir: Option<String>,
    /// Worker threads.
    pub workers: usize,
    /// Memory budget in bytes.
    pub memory_bytes: u64,
    /// Folder for records that do not fit into memory; `None` for one inside staging. It must exist.
    pub spill_folder: Option<PathBuf>,
    /// Shards of each split; `None` for the builder's numbers.
    pub shards: Option<u64>,
    /// What to do with damaged records.
    pub on_error: OnError,
    /// Whether a different build of the same version is replaced.
    pub overwrite: bool,
    /// Whether a source has to have the size and hash that the builder states.
    pub check_sums: bool,
    /// Whether the version gets statistics.
    pub statistics: bool,
    /// Whether payloads may stay in their sources until they are written. The output is the same either way; for tests.
    #[doc(hidden)]
    pub by_reference: bool,
    /// Whether to only say what would be done.
    pub dry_run: bool,
    /// Whether to draw what would be done, whatever is there already, and do nothing.
    pub explain: bool,
    /// How downloads behave.
    pub fetch: FetchOptions,
    /// Watches and stops the job.
    pub monitor: Arc<Monitor>,
    /// The processes that do it together.
    pub team: Team,
    /// The earlier version that finished shards are taken over from.
    pub(crate) base: Option<Arc<Base>>,
}

impl std::fmt::Debug for BuildRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildRequest")
            .field("name", &self.builder.spec().name)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

impl BuildRequest {
    /// A build with this builder: its own sources, the default catalog, all cores, a quarter of the memory.
    pub fn new(builder: Arc<dyn Builder>) -> Self {
        Self {
            builder,
            from: Vec::new(),
            catalog: None,
            data_dir: None,
            workers: resources::default_workers(),
            memory_bytes: resources::default_memory(),
            spill_folder: None,
            shards: None,
            on_error: OnError::Fail,
            overwrite: false,
            check_sums: true,
            statistics: true,
            by_reference: true,
            dry_run: false,
            explain: false,
            fetch: FetchOptions::default(),
            monitor: Monitor::new(),
            team: Team::alone(),
            base: None,
        }
    }

    /// Sets where sources are taken from: files, folders or addresses. Default: the builder's own places.
    #[must_use]
    pub fn from(mut self, from: Vec<String>) -> Self {
        self.from = from;
        self
    }

    /// Sets the catalog. Default: `$PREP_CATALOG`, else the one in the platform's data folder.
    #[must_use]
    pub fn catalog(mut self, catalog: impl Into<String>) -> Self {
        self.catalog = Some(catalog.into());
        self
    }

    /// Sets the folder under which datasets lie. Default: `data` in the catalog.
    #[must_use]
    pub fn data_dir(mut self, data_dir: impl Into<String>) -> Self {
        self.data_dir = Some(data_dir.into());
        self
    }

    /// Sets the number of worker threads. Default: one a core.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets the memory budget in bytes. Default: a quarter of what the machine or its cgroup allows.
    #[must_use]
    pub fn memory_bytes(mut self, memory_bytes: u64) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Sets the folder for records that do not fit into memory; it must exist. Default: one inside staging.
    #[must_use]
    pub fn spill_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.spill_folder = Some(folder.into());
        self
    }

    /// Sets the number of shards of each split. Default: the builder's numbers, else TFDS's rule by size.
    #[must_use]
    pub fn shards(mut self, shards: u64) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Sets what to do with damaged records. Default: the build fails.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Sets whether a different build of the same version is replaced. Default: no.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Sets whether sources have to be those that the builder states. Default: yes.
    #[must_use]
    pub fn check_sums(mut self, check_sums: bool) -> Self {
        self.check_sums = check_sums;
        self
    }

    /// Sets whether the version gets statistics: of each feature, and how many examples come more than once. Default: yes.
    #[must_use]
    pub fn statistics(mut self, statistics: bool) -> Self {
        self.statistics = statistics;
        self
    }

    /// Sets whether to only say what would be done. Default: no.
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets whether to draw what would be done, whatever is there already, and do nothing. Default: no.
    #[must_use]
    pub fn explain(mut self, explain: bool) -> Self {
        self.explain = explain;
        self
    }

    /// Sets how downloads behave.
    #[must_use]
    pub fn fetch(mut self, fetch: FetchOptions) -> Self {
        self.fetch = fetch;
        self
    }
}

/// How a build ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Status {
    /// It was built, and is in the catalog.
    Built,
    /// It was there already; nothing was written.
    UpToDate,
    /// A dry run: nothing was done.
    Planned,
}

impl Status {
    /// `built`, `up to date` or `planned`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Built => "built",
            Self::UpToDate => "up to date",
            Self::Planned => "planned",
        }
    }
}

/// A split of a finished build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitOutcome {
    /// Name.
    pub name: String,
    /// Number of examples.
    pub examples: u64,
    /// Number of shards.
    pub shards: u64,
    /// Bytes of all records (payload only).
    pub bytes: u64,
    /// Records left out.
    pub skipped: u64,
}

/// What a build left behind.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BuildOutcome {
    /// How it ended.
    pub status: Status,
    /// Dataset.
    pub name: String,
    /// Config, where there is one.
    pub config: Option<String>,
    /// Version.
    pub version: String,
    /// The version's folder.
    pub path: String,
    /// Content fingerprint; empty for a dry run.
    pub fingerprint: String,
    /// Splits, in order.
    pub splits: Vec<SplitOutcome>,
    /// Records left out, in all splits.
    pub skipped: u64,
    /// The catalog's log entry, where one was written.
    pub log: Option<u64>,
    /// Sources whose size or hash was not the builder's, and that were taken all the same.
    pub unchecked: Vec<String>,
    /// What would be done, line by line, for a dry run.
    pub plan: Vec<String>,
    /// The same as a drawing.
    pub graph: Option<Graph>,
    /// Wall time.
    pub seconds: f64,
    /// Worker threads.
    pub workers: usize,
    /// Memory budget.
    pub memory_bytes: u64,
    /// Most bytes that the job graph held at a time.
    pub peak_held_bytes: u64,
    /// Bytes that did not fit into memory.
    pub spilled_bytes: u64,
    /// Bytes of all sources.
    pub source_bytes: u64,
    /// Shards that an earlier, interrupted run had finished.
    pub shards_found: u64,
}

impl BuildOutcome {
    /// What is known before there is a manifest.
    pub(crate) fn of(spec: &DatasetSpec, status: Status, place: &Location, request: &BuildRequest) -> Self {
        Self {
            status,
            name: spec.name.clone(),
            config: spec.config.clone(),
            version: spec.version.clone(),
            path: place.to_string(),
            fingerprint: String::new(),
            splits: Vec::new(),
            skipped: 0,
            log: None,
            unchecked: Vec::new(),
            plan: Vec::new(),
            graph: None,
            seconds: 0.0,
            workers: request.workers,
            memory_bytes: request.memory_bytes,
            peak_held_bytes: 0,
            spilled_bytes: 0,
            source_bytes: 0,
            shards_found: 0,
        }
    }

    /// Adds what a manifest says.
    pub(crate) fn add(&mut self, manifest: &Manifest) {
        self.fingerprint.clone_from(&manifest.fingerprint);
        self.splits = manifest
            .splits
            .iter()
            .map(|split| SplitOutcome {
                name: split.name.clone(),
                examples: split.records,
                shards: split.shards.len() as u64,
                bytes: split.bytes,
                skipped: split.skipped,
            })
            .collect();
        self.skipped = manifest.splits.iter().map(|split| split.skipped).sum();
        self.source_bytes = manifest.sources.iter().map(|source| source.bytes).sum();
    }
}

/// Builds a dataset and registers it in the catalog.
///
/// With a team of several processes, each of them has to call it with the same request. Process 0 decides, fetches and publishes; the others
/// read, sort and write with it, and get an outcome that says how it ended, how much was skipped, and no more.
///
/// Blocks until all is done; prints nothing. `request.monitor` shows how far it is, and stops it.
///
/// # Errors
/// Sources that are missing, damaged or not the builder's; a place that cannot be written or is full; another dataset in this
/// one's place; a stop by [`Monitor::cancel`]. Staging is kept, and the same request goes on from there.
pub fn build(request: BuildRequest) -> Result<BuildOutcome> {
    let monitor = Arc::clone(&request.monitor);
    let team = request.team.clone();
    let watch = team.watch(&monitor)?;
    let result = build_together(request, &team).inspect_err(|error| team.fail(error));
    watch.settle(result, &monitor)
}

/// The request without the splits whose sources are optional and not there, of which it warns.
fn leave_out_absent(mut request: BuildRequest) -> Result<BuildRequest> {
    let spec = request.builder.spec();
    if spec.sources.iter().all(|source| !source.optional) {
        return Ok(request);
    }
    let (present, suspects) = fetch::present(&spec.sources, &request.from)?;
    if present.iter().all(|present| *present) {
        return Ok(request);
    }
    let absent: Vec<&str> = spec
        .sources
        .iter()
        .zip(&present)
        .filter(|(_, present)| !**present)
        .map(|(source, _)| source.name.as_str())
        .collect();
    let Some(builder) = request.builder.with_sources(&present) else {
        bail!(
            "could not find {}, and nothing can be made without",
            absent.join(", ")
        );
    };
    let splits = |spec: &DatasetSpec| -> Vec<String> {
        spec.splits
            .iter()
            .map(|split| format!("`{}`", split.name))
            .collect()
    };
    let kept = splits(builder.spec());
    let left_out: Vec<String> = splits(spec)
        .into_iter()
        .filter(|split| !kept.contains(split))
        .collect();
    request.monitor.warn(format!(
        "{} not found: {} left out",
        absent.join(", "),
        left_out.join(", ")
    ));
    for suspect in suspects {
        request.monitor.warn(suspect);
    }
    request.builder = builder;
    Ok(request)
}

fn build_together(request: BuildRequest, team: &Team) -> Result<BuildOutcome> {
    // All processes see the same files.
    let mut request = leave_out_absent(request)?;
    if team.len() > 1 {
        request.workers = team.least(request.workers)?;
    }
    let build = Build::new(request)?;
    if !team.is_leader() {
        return build.follow();
    }
    let outcome = build.run()?;
    let done = Done {
        status: outcome.status,
        fingerprint: outcome.fingerprint.clone(),
        skipped: outcome.skipped,
        path: outcome.path.clone(),
    };
    // What is committed is committed, whoever is there to hear of it.
    let _ = team.tell(&Order::Done(done));
    Ok(outcome)
}

/// What process 0 tells the others to do.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Run the graph on these sources, with a builder of this identity that has learnt this.
    Run(Vec<Fetched>, String, Option<String>),
    /// The job is over.
    Done(Done),
}

/// How a job ended that another process led.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    status: Status,
    fingerprint: String,
    skipped: u64,
    path: String,
}

/// A build on its way.
struct Build {
    request: BuildRequest,
    spec: DatasetSpec,
    registry: Registry,
    recipe_sha256: String,
    /// The builder that knows what its sources tell, and the text that made it so.
    learned: Mutex<Option<(Arc<dyn Builder>, String)>>,
    started: Instant,
}

/// The builder's spec with the shards that the request asks for.
fn shaped(request: &BuildRequest) -> Result<DatasetSpec> {
    let mut spec = request.builder.spec().clone();
    if let Some(shards) = request.shards {
        if spec.layout == Layout::BySource {
            return Err(Hinted::new(
                "`--shards` is the number of shards of a split, and in the layout `by-source` each source has shards of its own",
                "leave it out, or set `layout = \"tfds\"` in the recipe",
            )
            .into());
        }
        for split in &mut spec.splits {
            split.shards = Some(shards);
            split.shards_for = None;
        }
    }
    Ok(spec)
}

/// What the job graph or an earlier run's journal says.
struct Output {
    /// Those that were built; and when these are verified, all.
    shards: Vec<ShardSummary>,
    found: u64,
    /// Of each group.
    skipped: Vec<u64>,
    class_names: Vec<(String, Vec<String>)>,
    peak_held_bytes: u64,
    spilled_bytes: u64,
}

impl From<Finished> for Output {
    fn from(finished: Finished) -> Self {
        Self {
            shards: finished.shards,
            found: finished.found,
            skipped: finished.skipped,
            class_names: finished.class_names,
            peak_held_bytes: finished.peak_held_bytes,
            spilled_bytes: finished.spilled_bytes,
        }
    }
}

impl Build {
    fn new(mut request: BuildRequest) -> Result<Self> {
        // What the recipe says counts for whether it is the same, and not what its patterns stand for: sources are compared by themselves.
        let recipe_sha256 = identity(
            &shaped(&request)?,
            &request.builder.identity(),
            request.statistics,
        );
        let asked = request.builder.spec().sources.clone();
        if let Some(found) = request.builder.with_files(&request.from)? {
            request.builder = found;
        }
        if let Some(base) = request.base.as_ref().filter(|base| base.taking == Taking::Beside) {
            base.check_addition(&request.builder.spec().sources, &request.monitor)?;
            let added = request.builder.added_to(&base.manifest.sources)?;
            request.builder = added.context("only recipes of rows can be appended to")?;
        }
        let spec = shaped(&request)?;
        if spec.splits.is_empty() {
            bail!("there are no splits: neither the recipe nor its sources say any");
        }
        WriteOptions::parse(&spec.options).context("the builder's options of shards")?;
        let mut registry = Registry::open(&spec, request.catalog.as_deref(), request.data_dir.as_deref())?;
        apart::check(&asked, &request.from, &spec.sources, &registry.written())?;
        match request.base.as_deref() {
            Some(base) if base.taking == Taking::Beside => registry.share(&base.manifest, &base.folder)?,
            Some(base) if base.folder.as_path().is_none() && !registry.is_remote() => {
                return Err(Hinted::new(
                    format!(
                        "version {} lies at {}, and the new one would be local",
                        base.manifest.version, base.folder
                    ),
                    "leave `--data-dir` out, or give it the same store",
                )
                .into());
            }
            _ => {}
        }
        Ok(Self {
            request,
            spec,
            registry,
            recipe_sha256,
            learned: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Has the builder learn what it can only learn from its sources, or told it by an earlier run or another process.
    fn learn(
        &self,
        told: Option<String>,
        known: &[Option<Known>],
        fetched: &[Fetched],
        journal: Option<&Journal>,
    ) -> Result<()> {
        let builder = &self.request.builder;
        let text = match told {
            Some(text) => text,
            None => {
                let total = fetched.iter().map(|source| source.bytes).sum();
                let meter = self.request.monitor.stage("learn", Unit::Bytes, Some(total));
                let sources = self.sources(fetched, &meter);
                let learned = builder.learn(&sources, known, self.request.workers)?;
                meter.finish();
                self.request.monitor.forget(&meter);
                let Some(text) = learned else { return Ok(()) };
                if let Some(journal) = journal {
                    journal.add(&Entry::Learned { text: text.clone() })?;
                }
                text
            }
        };
        let knowing = builder.with_learned(&text)?;
        if let Some(notes) = knowing.notes() {
            self.request.monitor.note(notes);
        }
        *self.learned.lock().unwrap_or_else(PoisonError::into_inner) = Some((knowing, text));
        Ok(())
    }

    /// The builder, with what it has learnt.
    fn builder(&self) -> Arc<dyn Builder> {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        let knowing = learned.as_ref().map(|(builder, _)| builder);
        Arc::clone(knowing.unwrap_or(&self.request.builder))
    }

    /// The sources, ready to be read.
    fn sources(&self, fetched: &[Fetched], meter: &Arc<Meter>) -> Vec<Source> {
        let specs = self.spec.sources.iter();
        let source = |(index, (source, spec)): (usize, (&Fetched, &crate::builder::SourceSpec))| {
            Source::new(
                source.name.clone(),
                index as u32,
                source.path.clone(),
                spec.files().cloned(),
                source.bytes,
                Arc::clone(meter),
                Arc::clone(&self.request.monitor),
            )
        };
        fetched.iter().zip(specs).enumerate().map(source).collect()
    }

    fn run(&self) -> Result<BuildOutcome> {
        let found = self.registry.find()?;
        let located = match self.standing(&found, None)? {
            // What is pinned needs no look at the sources.
            Standing::Same if !self.request.explain => None,
            _ => Some(self.locate()?),
        };
        let standing = self.standing(&found, located.as_deref())?;
        let staging_path = self.registry.staging_path();
        if let (Standing::Same, Found::Registered(manifest, folder)) = (&standing, &found)
            && !staging_path.exists()
            && !self.request.explain
        {
            return Ok(self.up_to_date(manifest, folder));
        }
        let located = match (&self.request.base, located) {
            (Some(_), None) => Some(self.locate()?),
            (_, located) => located,
        };
        let sums = match (&self.request.base, &located) {
            (Some(base), Some(located)) => {
                let sums = self.digest(located)?;
                if let Some(outcome) = self.same_as_base(base, sums.as_deref()) {
                    return Ok(outcome);
                }
                sums
            }
            _ => None,
        };
        if self.request.explain {
            return self.dry_run(&standing, located.as_deref(), sums.as_deref());
        }
        // Who chooses the version by what is there waits for the process that may be about to make it: see below.
        if self.request.base.is_none() || self.request.dry_run {
            self.refuse_different(&standing, &found)?;
        }
        if self.request.dry_run {
            return self.dry_run(&standing, located.as_deref(), sums.as_deref());
        }
        self.registry.check_writable()?;
        let staging = Staging::enter(
            &self.registry.data_dir,
            &self.registry.relative(),
            &self.request.monitor,
        )
        .map_err(|error| self.unwritable(error))?;
        // Another process may have built it while this one waited; one that was killed may have left the last steps undone.
        let found = self.registry.heal()?;
        let standing = self.standing(&found, located.as_deref())?;
        if let (Standing::Same, Found::Registered(manifest, folder)) = (&standing, &found) {
            let outcome = self.up_to_date(manifest, folder);
            staging.remove()?;
            return Ok(outcome);
        }
        if let (Standing::Same, Found::Unregistered(manifest)) = (&standing, &found) {
            let unchecked = self.unchecked_of(manifest);
            let log = self.registry.adopt(manifest, &unchecked, &self.request.monitor)?;
            staging.remove()?;
            let mut outcome = self.outcome(Status::Built, manifest);
            outcome.log = Some(log);
            outcome.unchecked = unchecked;
            outcome.shards_found = outcome.splits.iter().map(|split| split.shards).sum();
            return Ok(outcome);
        }
        if let Err(error) = self.refuse_different(&standing, &found) {
            staging.remove()?;
            return Err(error);
        }
        let located = match located {
            Some(located) => located,
            None => self.locate()?,
        };
        let known = match (&standing, &found) {
            (Standing::Unknown, Found::Registered(manifest, folder)) => Some((manifest, folder)),
            _ => None,
        };
        self.work(staging, &located, known, sums).map_err(|error| {
            resources::explain_full_disk(error, &self.registry.data_dir, || {
                let room = self.room(&self.registry.staging_path(), &located, &[]);
                match room.likely {
                    0 => "nothing tells how much is needed".to_owned(),
                    bytes => format!("about {} more are needed", resources::show_size(bytes)),
                }
            })
        })
    }

    fn locate(&self) -> Result<Vec<Located>> {
        fetch::locate(&self.spec.sources, &self.request.from)
    }

    /// How what is there compares with what is asked for.
    fn standing(&self, found: &Found, located: Option<&[Located]>) -> Result<Standing> {
        let standing = self.compare(found, located)?;
        // In a store a folder belongs to a content. What another job has put there, which was killed before its entry, or is about to make it, is in
        // nobody's way: this one gets a folder of its own, and `prep gc` finds the other.
        Ok(match standing {
            Standing::Different(_) if self.registry.is_remote() && self.registry.has_no_entry()? => {
                Standing::Absent
            }
            standing => standing,
        })
    }

    fn compare(&self, found: &Found, located: Option<&[Located]>) -> Result<Standing> {
        let place = self.registry.place();
        let said = |folder: &Location, reason: &str| {
            let reason = format!("{folder} is there already, and {reason}");
            Ok(Standing::Different(reason))
        };
        let (manifest, folder) = match found {
            Found::Nothing => return Ok(Standing::Absent),
            Found::Foreign(folder, reason) => return said(folder, reason),
            Found::Registered(manifest, folder) => (manifest, folder),
            Found::Unregistered(manifest) => (manifest, &place),
        };
        let different = |reason: &str| said(folder, reason);
        if manifest.recipe_sha256 != self.recipe_sha256 {
            return different("was built from another recipe or with other output options");
        }
        if self.request.on_error == OnError::Fail && manifest.splits.iter().any(|split| split.skipped > 0) {
            return different("was built with damaged records left out");
        }
        let skipped: u64 = manifest.splits.iter().map(|split| split.skipped).sum();
        if let OnError::Skip(Some(most)) = self.request.on_error
            && skipped > most
        {
            return different(&format!(
                "was built with {skipped} damaged records left out, where {most} may be"
            ));
        }
        if manifest.sources.len() != self.spec.sources.len() {
            return different("was built from other sources");
        }
        let mut unknown = false;
        for (index, (there, spec)) in manifest.sources.iter().zip(&self.spec.sources).enumerate() {
            let pinned = spec.is_pinned()
                && spec.bytes == Some(there.bytes)
                && spec.sha256.map(hex::encode).as_deref() == Some(there.sha256.as_str());
            if spec.is_pinned() && self.request.check_sums {
                if !pinned {
                    return different(&format!("was built from another `{}`", there.name));
                }
                continue;
            }
            match located.map(|located| &located[index]) {
                // An address that the recipe vouches for needs no second download.
                Some(Located::TakenOver) if pinned => {}
                Some(Located::TakenOver) => return different("was made from other shards"),
                Some(Located::Url(_)) | None if pinned && self.request.from.is_empty() => {}
                Some(Located::File(path)) => {
                    let same_size = fetch::local::size_of(path, spec.files().map(|files| &**files))
                        .is_ok_and(|bytes| bytes == there.bytes);
                    let same = same_size && {
                        let sum = fetch::identify(spec, path, &self.request.monitor)?;
                        info::source(&there.name, &sum) == *there
                    };
                    if !same {
                        return different(&format!("was built from another `{}`", there.name));
                    }
                }
                Some(Located::Url(_)) | None => unknown = true,
            }
        }
        Ok(if unknown {
            Standing::Unknown
        } else {
            Standing::Same
        })
    }

    fn refuse_different(&self, standing: &Standing, found: &Found) -> Result<()> {
        match standing {
            Standing::Different(reason) if !self.request.overwrite => {
                let hint = "replace it with `--overwrite`, or give the recipe another version";
                let hinted = Hinted::new(reason, hint);
                Err(match &self.request.base {
                    None => hinted.into(),
                    // Nobody works on it: its lock is held, or nothing will be written.
                    Some(_) if self.is_left_behind(found)? => {
                        anyhow::Error::new(Occupied(self.spec.version.clone())).context(hinted)
                    }
                    // There was none when its number was chosen.
                    Some(_) => anyhow::Error::new(Overtaken).context(hinted),
                })
            }
            Standing::Different(_) => self.registry.refuse_others(),
            _ => Ok(()),
        }
    }

    /// Whether what is there is a local folder that no entry of the log names.
    fn is_left_behind(&self, found: &Found) -> Result<bool> {
        Ok(matches!(found, Found::Unregistered(_) | Found::Foreign(..))
            && !self.registry.is_remote()
            && self.registry.has_no_entry()?)
    }

    fn dry_run(
        &self,
        standing: &Standing,
        located: Option<&[Located]>,
        sums: Option<&[Checksum]>,
    ) -> Result<BuildOutcome> {
        let mut outcome = self.outcome_of_nothing(Status::Planned);
        outcome.graph = Some(self.graph(located.unwrap_or_default()));
        let plan = &mut outcome.plan;
        let is_read = match (&self.request.base, sums) {
            (Some(base), Some(sums)) => {
                let (added, changed, removed) = base.differences(&self.spec, sums);
                let kept = self.spec.sources.len() - added.len() - changed.len();
                for (what, names) in [("added", &added), ("changed", &changed), ("removed", &removed)] {
                    plan.extend(names.iter().map(|name| format!("{what}: {name}")));
                }
                plan.push(format!(
                    "take over the shards of {kept} sources from version {}, as long as settings and types of columns stay",
                    base.manifest.version
                ));
                let mut names = added;
                names.extend(changed);
                Some(names)
            }
            _ => None,
        };
        for (spec, place) in self.spec.sources.iter().zip(located.unwrap_or_default()) {
            if is_read
                .as_ref()
                .is_some_and(|names| !names.contains(&spec.name.as_str()))
            {
                continue;
            }
            plan.push(match place {
                Located::TakenOver => continue,
                Located::File(path) => format!("read {}", path.display()),
                Located::Url(url) => {
                    let size = spec
                        .bytes
                        .map_or("an unknown number of bytes".to_owned(), resources::show_size);
                    format!("fetch {} ({size})", fetch::shown(url))
                }
            });
        }
        for split in &self.spec.splits {
            let shards = split
                .shards
                .map_or("as its size asks".to_owned(), |count| count.to_string());
            plan.push(format!(
                "write split `{}`, shards: {shards}, {}",
                split.name, self.spec.options
            ));
        }
        if let Standing::Different(_) = standing {
            plan.push(format!("replace {}", self.registry.place()));
        }
        plan.push(format!(
            "register it in the catalog {}",
            self.registry.catalog_name()
        ));
        Ok(outcome)
    }

    /// What the build would do, drawn.
    fn graph(&self, located: &[Located]) -> Graph {
        const MOST_SOURCES: usize = 8;
        let request = &self.request;
        let config = self
            .spec
            .config
            .as_ref()
            .map_or(String::new(), |config| format!("/{config}"));
        let mut graph = Graph::new(format!("build {}{config}:{}", self.spec.name, self.spec.version));
        let staging = self.registry.staging_path();
        let room = self.room(&staging, located, &[]);
        let packed = (!room.unknown).then_some(room.sources);
        let mut sources = Vec::new();
        let mut unpacked = packed;
        for (spec, place) in self.spec.sources.iter().zip(located) {
            let (text, bytes, there) = match place {
                Located::File(path) => {
                    let bytes = fetch::local::size_of(path, spec.files().map(|files| &**files)).ok();
                    (path.display().to_string(), bytes, estimate::unpacked_bytes(path))
                }
                Located::Url(url) => (fetch::shown(url), spec.bytes, None),
                Located::TakenOver => continue,
            };
            let size = bytes.map_or("size not known".to_owned(), resources::show_size);
            sources.push(format!("{text} ({size})"));
            if let (Some(total), Some(bytes), Some(there)) = (unpacked, bytes, there) {
                unpacked = Some(total - bytes.min(total) + there);
            }
        }
        if sources.len() > MOST_SOURCES {
            let more = sources.len() - MOST_SOURCES;
            sources.truncate(MOST_SOURCES);
            sources.push(format!("and {more} more"));
        }
        let has_remote = located.iter().any(|place| matches!(place, Located::Url(_)));
        let name = if has_remote { "fetch" } else { "sources" };
        let fetch = graph.stage(name, sources, &[]);
        let records =
            estimate::records(&self.spec.features, unpacked).filter(|_| request.builder.has_fixed_size());
        let inputs = match request.builder.inputs().len() {
            1 => "1 input, on a thread of its own".to_owned(),
            inputs => format!("{inputs} inputs, each on a thread of its own"),
        };
        let read = graph.stage(
            "read",
            [format!("{inputs}; nothing is unpacked to disk")],
            &[(
                fetch,
                Flow::new().bytes(packed).how("checked against size and SHA-256"),
            )],
        );
        let by_reference = request.by_reference && request.builder.payload().is_some();
        let flow = Flow::new()
            .records(records)
            .bytes(if by_reference { None } else { unpacked });
        let encode = graph.stage(
            "encode",
            [format!("values to records, on {} workers", request.workers)],
            &[(read, flow.clone().how("dealt to the workers evenly"))],
        );
        // Half an arena each is filled while the other half is written: a quarter of the budget stays in memory for sure.
        let held = request.memory_bytes / 4;
        let spills = if by_reference {
            "payloads stay in their sources until they are written".to_owned()
        } else {
            match unpacked {
                Some(bytes) if bytes <= held => "fits into memory, nothing is spilled".to_owned(),
                Some(bytes) => format!(
                    "spills about {} to {}",
                    resources::show_size(bytes),
                    request
                        .spill_folder
                        .as_ref()
                        .unwrap_or(&staging.join("spill"))
                        .display()
                ),
                None => format!("spills what is over {}", resources::show_size(held)),
            }
        };
        let sort = graph.stage(
            "sort",
            ["by split and hash of the key".to_owned(), spills],
            &[(encode, flow.clone().how("to the worker of its key"))],
        );
        let splits = self.spec.splits.iter().map(|split| {
            let shards = match split.shards {
                Some(1) => "1 shard".to_owned(),
                Some(count) => format!("{count} shards"),
                None => "shards as its size asks".to_owned(),
            };
            format!("split `{}`: {shards}, {}", split.name, self.spec.options)
        });
        let mut details: Vec<String> = splits.collect();
        details.push(format!("into {}", staging.join("out").display()));
        let write = graph.stage(
            "write",
            details,
            &[(sort, flow.how("to the worker of its shard"))],
        );
        let written = Flow::new().records(records).bytes(packed);
        let verify = graph.stage("verify", ["reads every shard back"], &[(write, written.clone())]);
        let publish = graph.stage(
            "publish",
            [format!("as {}", self.registry.place())],
            &[(
                verify,
                written.how(if self.registry.is_remote() {
                    "sent, and read back"
                } else {
                    "by one rename"
                }),
            )],
        );
        graph.stage(
            "commit",
            [format!("to the catalog {}", self.registry.catalog_name())],
            &[(publish, Flow::new().bytes(1 << 10).how("one log entry"))],
        );
        graph.note(format!(
            "memory: up to {} for {} workers, of which sorting takes half",
            resources::show_size(request.memory_bytes),
            request.workers
        ));
        let free = resources::free_bytes(&self.registry.data_dir);
        graph.note(format!(
            "disk: about {} at {}, where {} are free",
            resources::show_size(room.likely),
            self.registry.data_dir.display(),
            free.map_or("an unknown number of bytes".to_owned(), resources::show_size)
        ));
        graph.note(
            "estimates are made from the sizes of sources and the shapes of features; nothing was written",
        );
        graph
    }

    /// What an error of making the staging folder means.
    fn unwritable(&self, error: anyhow::Error) -> anyhow::Error {
        unwritable(&self.registry.data_dir, error)
    }

    /// Fetches, builds, verifies, publishes; leaves staging only where the next run can go on from it. `known` is the version that is there, if
    /// only the sources can tell whether it is the same; `sums` are the checksums of the sources, if they are known.
    fn work(
        &self,
        staging: Staging,
        located: &[Located],
        known: Option<(&Manifest, &Location)>,
        sums: Option<Vec<Checksum>>,
    ) -> Result<BuildOutcome> {
        let result = self.work_in(&staging, located, known, sums);
        if result.is_ok() || staging.holds_nothing() {
            let removed = staging.remove();
            if result.is_ok() {
                removed?;
            }
        }
        result
    }

    fn work_in(
        &self,
        staging: &Staging,
        located: &[Located],
        known: Option<(&Manifest, &Location)>,
        sums: Option<Vec<Checksum>>,
    ) -> Result<BuildOutcome> {
        let request = &self.request;
        let monitor = &request.monitor;
        request.team.clear_folder(staging.root(), monitor)?;
        let (journal, entries) = staging
            .prepare(&self.job(located)?)
            .map_err(|error| self.unwritable(error))?;
        request.builder.keep_in(&staging.kept());
        let journal = Arc::new(journal);
        let shards = entries.iter().filter(|entry| matches!(entry, Entry::Shard(_)));
        match shards.count() {
            0 => {}
            count => monitor.note(format!(
                "going on from an earlier run, which finished {count} shards"
            )),
        }
        if request.base.is_none() {
            self.check_room(staging, located, &[])?;
        }

        let note = |source: &Fetched| {
            journal.add(&Entry::Fetched {
                name: source.name.clone(),
                bytes: source.bytes,
                sha256: source.sha256.map(hex::encode).unwrap_or_default(),
            })
        };
        let downloads = staging.downloads();
        let fetched = fetch::fetch_all(
            &self.spec.sources,
            located,
            &downloads,
            request.check_sums,
            &request.fetch,
            monitor,
            &note,
        )?;
        if let Some((manifest, folder)) = known {
            let sums = self.digest_fetched(&fetched)?;
            let found = fetched.iter().zip(&sums);
            if found
                .map(|(source, sum)| info::source(&source.name, sum))
                .eq(manifest.sources.iter().cloned())
            {
                return Ok(self.up_to_date(manifest, folder));
            }
            let reason = format!("{folder} is there already, and was built from other sources");
            let found = Found::Registered(manifest.clone(), folder.clone());
            self.refuse_different(&Standing::Different(reason), &found)?;
        }
        let entries = self.still_true(staging, entries, &fetched)?;
        let told = entries.iter().rev().find_map(|entry| match entry {
            Entry::Learned { text } => Some(text.clone()),
            _ => None,
        });
        if let Some(base) = &request.base {
            let sums = match sums {
                Some(sums) => sums,
                None => self.digest_fetched(&fetched)?,
            };
            return match self.same_as_base(base, Some(&sums)) {
                Some(outcome) => Ok(outcome),
                None => self.work_from(base, staging, located, &journal, (entries, told), fetched, sums),
            };
        }
        let checksums = ChecksumThread::start(&self.spec.sources, &fetched, monitor)?;
        self.learn(told, &[], &fetched, Some(&journal))?;
        let none = TakenOver::default();
        let resumed = resume(staging, &entries, self.spec.num_groups());
        let (output, checksums) = match resumed {
            Some((output, written)) => {
                monitor.note("all shards are there from an earlier run");
                let sums = self.checked(checksums.join()?, &fetched)?;
                if written.sources != named(&fetched, &sums) {
                    // The user's files changed between the runs.
                    staging.discard_output()?;
                    self.learn(None, &[], &fetched, Some(&journal))?;
                    let sums = ChecksumThread::start(&self.spec.sources, &fetched, monitor)?;
                    self.write_shards(staging, &journal, Vec::new(), &fetched, sums, &none)?
                } else {
                    (output, sums)
                }
            }
            None => {
                let finished = finished_of(entries);
                self.write_shards(staging, &journal, finished, &fetched, checksums, &none)?
            }
        };
        self.publish(staging, &fetched, &checksums, output, none)
    }

    /// Builds only what an earlier version does not have.
    #[expect(clippy::too_many_arguments, reason = "what a build has gathered so far")]
    fn work_from(
        &self,
        base: &Base,
        staging: &Staging,
        located: &[Located],
        journal: &Arc<Journal>,
        (entries, told): (Vec<Entry>, Option<String>),
        mut fetched: Vec<Fetched>,
        sums: Vec<Checksum>,
    ) -> Result<BuildOutcome> {
        let monitor = &self.request.monitor;
        let (added, changed, removed) = base.differences(&self.spec, &sums);
        monitor.note(format!(
            "against version {}: {} sources added, {} changed, {} removed",
            base.manifest.version,
            added.len(),
            changed.len(),
            removed.len()
        ));
        // What is added is learnt soon, and nothing of it is worth keeping where the types turn out to be others.
        let noted = (base.taking == Taking::In).then_some(&**journal);
        self.learn(told, &base.known(&self.spec, &sums), &fetched, noted)?;
        let mut spec = self.spec.clone();
        spec.features = self.builder().spec().features.clone();
        let making = self.builder().making(&sums)?;
        let taken = base.take_over(&spec, making.as_ref(), &sums, self.request.on_error)?;
        self.request.on_error.check(taken.skipped.iter().sum())?;
        let count = taken.sources.iter().filter(|taken| **taken).count();
        if count == 0 && added.len() + changed.len() < self.spec.sources.len() {
            monitor.note(format!(
                "all is built anew: settings or types of columns are others than those of version {}",
                base.manifest.version
            ));
        }
        self.check_room(staging, located, &taken.sources)?;
        if base.taking == Taking::In && base.folder.as_path().is_some() {
            base.bring(&taken.shards, &staging.out(), monitor)?;
        }
        monitor.taken_over(
            taken.shards.len() as u64,
            taken.shards.iter().map(|shard| shard.records).sum(),
        );
        // What is read is hashed once more while it is: it has to be what was compared.
        for ((fetched, sum), taken) in fetched.iter_mut().zip(&sums).zip(&taken.sources) {
            fetched.sha256 = taken.then_some(sum.sha256).or(fetched.sha256);
        }
        let resumed = resume(staging, &entries, self.spec.num_groups());
        let resumed = resumed.filter(|(_, written)| written.sources == named(&fetched, &sums));
        let output = match resumed {
            Some((output, _)) => {
                monitor.note("all shards are there from an earlier run");
                output
            }
            None => {
                let checksums = ChecksumThread::start(&self.spec.sources, &fetched, monitor)?;
                let finished = finished_of(entries);
                let (output, read) =
                    self.write_shards(staging, journal, finished, &fetched, checksums, &taken)?;
                let changed = read.iter().zip(&sums).position(|(read, sum)| read != sum);
                if let Some(index) = changed {
                    return Err(Hinted::new(
                        format!("{} was changed while it was read", fetched[index].path.display()),
                        "give the same command again",
                    )
                    .into());
                }
                output
            }
        };
        self.publish(staging, &fetched, &sums, output, taken)
    }

    /// The checksums of all sources, as far as that takes no download: `None` where one does.
    fn digest(&self, located: &[Located]) -> Result<Option<Vec<Checksum>>> {
        let monitor = &self.request.monitor;
        let mut total = 0;
        for (spec, place) in self.spec.sources.iter().zip(located) {
            match place {
                Located::Url(_) => return Ok(None),
                Located::File(path) => {
                    total += fetch::local::size_of(path, spec.files().map(|files| &**files))?
                }
                Located::TakenOver => {}
            }
        }
        let meter = monitor.stage("compare sources", Unit::Bytes, Some(total));
        let sums: Vec<OnceLock<Checksum>> = located.iter().map(|_| OnceLock::new()).collect();
        let all: Vec<_> = self.spec.sources.iter().zip(located).zip(&sums).collect();
        upload::at_once(&all, |((spec, place), slot)| {
            let sum = match (place, spec.bytes, spec.sha256) {
                (Located::File(path), ..) => {
                    let sum = fetch::identify(spec, path, monitor)?;
                    meter.add(sum.bytes);
                    sum
                }
                (_, Some(bytes), Some(sha256)) => Checksum {
                    bytes,
                    sha256,
                    identity: spec.identity,
                },
                _ => bail!("the checksum of {} is not known", spec.name),
            };
            let _ = slot.set(sum);
            Ok(())
        })?;
        meter.finish();
        Ok(sums.into_iter().map(OnceLock::into_inner).collect())
    }

    /// The same of sources that were fetched.
    fn digest_fetched(&self, fetched: &[Fetched]) -> Result<Vec<Checksum>> {
        ChecksumThread::start(&self.spec.sources, fetched, &self.request.monitor)?.join()
    }

    /// What to say if nothing differs from the earlier version.
    fn same_as_base(&self, base: &Base, sums: Option<&[Checksum]>) -> Option<BuildOutcome> {
        let skipped = base.manifest.splits.iter().map(|split| split.skipped).sum();
        let on_error = self.request.on_error;
        // Where nothing is added, the recipe does not matter, nor what was wrong with sources that are not read again.
        let is_same = match base.taking {
            Taking::In => base.is_same_recipe && on_error.allows(skipped),
            Taking::Beside => on_error == OnError::Fail || on_error.allows(skipped),
        } && base.has_sources(&self.spec, sums?);
        is_same.then(|| {
            let mut outcome = self.up_to_date(&base.manifest, &base.folder);
            outcome.version = base.manifest.version.clone();
            outcome
        })
    }

    /// What identifies the job: staging of another one is not continued.
    fn job(&self, located: &[Located]) -> Result<String> {
        let mut sources = Vec::new();
        for (spec, place) in self.spec.sources.iter().zip(located) {
            sources.push(match place {
                _ if self.request.check_sums && spec.is_pinned() => "as the recipe says".to_owned(),
                Located::Url(url) => match spec.files() {
                    Some(files) => format!("{url}, {}", files.digest()),
                    None => url.to_string(),
                },
                Located::File(path) => fetch::local::stamp_of(path, spec.files().map(|files| &**files))?,
                Located::TakenOver => "taken over".to_owned(),
            });
        }
        let pins: Vec<Option<String>> = self
            .spec
            .sources
            .iter()
            .map(|source| source.sha256.map(hex::encode))
            .collect();
        let job = serde_json::json!({
            "format": 1,
            "recipe_sha256": self.recipe_sha256,
            "pins": pins,
            "sources": sources,
            "on_error": format!("{:?}", self.request.on_error),
            "check_sums": self.request.check_sums,
            "base": self.request.base.as_ref().map(|base| base.id()),
        });
        Ok(format!("{job:#}\n"))
    }

    /// Throws away what was made from a download that has since come in again with other bytes.
    fn still_true(&self, staging: &Staging, entries: Vec<Entry>, fetched: &[Fetched]) -> Result<Vec<Entry>> {
        let changed = fetched.iter().any(|source| {
            let Some(now) = source.sha256.map(hex::encode) else {
                return false;
            };
            entries.iter().any(|entry| {
                matches!(entry, Entry::Fetched { name, sha256, .. } if *name == source.name && *sha256 != now)
            })
        });
        if !changed {
            return Ok(entries);
        }
        staging.discard_output()?;
        Ok(Vec::new())
    }

    /// How much room the rest of the work takes, but for sources whose shards are taken over.
    fn room(&self, staging: &Path, located: &[Located], taken: &[bool]) -> Room {
        let mut room = Room::default();
        let (mut downloads, mut sources) = (0, 0);
        for (index, (spec, place)) in self.spec.sources.iter().zip(located).enumerate() {
            if taken.get(index) == Some(&true) {
                continue;
            }
            let size = match place {
                Located::TakenOver => continue,
                Located::File(path) => fetch::local::size_of(path, spec.files().map(|files| &**files)).ok(),
                Located::Url(_) => spec.bytes,
            };
            let Some(size) = size else {
                room.unknown = true;
                continue;
            };
            sources += size;
            if let Located::Url(_) = place {
                let there = [spec.name.clone(), format!("{}.part", spec.name)]
                    .into_iter()
                    .filter_map(|name| {
                        Some(
                            std::fs::metadata(staging.join("downloads").join(name))
                                .ok()?
                                .len(),
                        )
                    })
                    .max();
                downloads += size.saturating_sub(there.unwrap_or(0));
            }
        }
        // Packed pictures come out about as large as they went in; what is written already takes no more room.
        let written = folder_bytes(&staging.join("out"));
        let spill = if sources > self.request.memory_bytes / 4 {
            sources
        } else {
            0
        };
        room.sources = sources;
        room.spill = spill;
        room.least = downloads + (sources / 2).saturating_sub(written);
        room.likely = downloads + (sources + sources / 4).saturating_sub(written);
        if self.request.spill_folder.is_none() {
            room.likely += spill;
        }
        room
    }

    /// Refuses to begin where there is clearly no room, and warns where it may be tight. It is the file system of the output
    /// that counts.
    fn check_room(&self, staging: &Staging, located: &[Located], taken: &[bool]) -> Result<()> {
        let room = self.room(staging.root(), located, taken);
        let free = resources::free_bytes(staging.root())?;
        let place = self.registry.data_dir.display();
        let show = resources::show_size;
        let needs = format!("about {} are needed, {} are free", show(room.likely), show(free));
        if free < room.least {
            return Err(Hinted::new(
                format!("not enough room at {place}: {needs}"),
                "free some space, or give another place with `--data-dir`",
            )
            .into());
        }
        if free < room.likely {
            self.request
                .monitor
                .warn(format!("there may not be enough room at {place}: {needs}"));
        } else if room.unknown {
            let text = format!(
                "the sizes of some sources are not known; {} are free at {place}",
                show(free)
            );
            self.request.monitor.warn(text);
        }
        if let Some(folder) = &self.request.spill_folder {
            let free = resources::free_bytes(folder)?;
            if free < room.spill {
                self.request.monitor.warn(format!(
                    "there may not be enough room in the spill folder {}: about {} are needed, {} are free",
                    folder.display(),
                    show(room.spill),
                    show(free)
                ));
            }
        }
        Ok(())
    }

    /// Compares checksums with the spec, unless the user does not want that.
    fn checked(&self, sums: Vec<Checksum>, fetched: &[Fetched]) -> Result<Vec<Checksum>> {
        if self.request.check_sums {
            for ((spec, source), sum) in self.spec.sources.iter().zip(fetched).zip(&sums) {
                if let Err(error) = fetch::compare(spec, &source.path, sum) {
                    // A download that went bad on disk is not to be found again.
                    if source
                        .path
                        .parent()
                        .is_some_and(|parent| parent.ends_with("downloads"))
                    {
                        let _ = std::fs::remove_file(&source.path);
                    }
                    return Err(error);
                }
            }
        }
        Ok(sums)
    }

    /// Runs the job graph, until it needs no further start.
    fn write_shards(
        &self,
        staging: &Staging,
        journal: &Arc<Journal>,
        finished: Vec<ShardSummary>,
        fetched: &[Fetched],
        checksums: ChecksumThread,
        taken: &TakenOver,
    ) -> Result<(Output, Vec<Checksum>)> {
        let team = &self.request.team;
        if team.len() > 1 {
            let mut sources = fetched.to_vec();
            for source in &mut sources {
                source.path = absolute(&source.path)?;
            }
            let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
            let learned = learned.as_ref().map(|(_, text)| text.clone());
            team.tell(&Order::Run(sources, self.recipe_sha256.clone(), learned))?;
        }
        let inside = team.enter_folder(staging.root(), &self.request.monitor)?;
        let result = self.run_graph(staging, journal, &finished, fetched, taken);
        drop(inside);
        // A wrong file explains whatever went wrong in reading it, so its checksum is looked at first.
        let sums = match checksums.join() {
            Ok(sums) => sums,
            Err(error) => return Err(result.err().unwrap_or(error)),
        };
        let sums = self.checked(sums, fetched)?;
        let finished = result?;
        let mut num_shards = vec![0; self.spec.num_groups()];
        for shard in &finished.shards {
            num_shards[shard.split as usize] = u64::from(shard.num_shards);
        }
        journal.add(&Entry::Written(Written {
            sources: named(fetched, &sums),
            num_shards,
            skipped: finished.skipped.clone(),
            class_names: finished.class_names.clone(),
        }))?;
        Ok((finished.into(), sums))
    }

    /// What other processes than the first do: what that one tells.
    fn follow(&self) -> Result<BuildOutcome> {
        let team = &self.request.team;
        let staging = Staging::follow(&self.registry.data_dir, &self.registry.relative());
        loop {
            match team.hear()? {
                Order::Done(done) => {
                    let mut outcome = self.outcome_of_nothing(done.status);
                    outcome.fingerprint = done.fingerprint;
                    outcome.skipped = done.skipped;
                    outcome.path = done.path;
                    return Ok(outcome);
                }
                Order::Run(fetched, recipe_sha256, learned) => {
                    let inside = team.enter_folder(staging.root(), &self.request.monitor)?;
                    if recipe_sha256 != self.recipe_sha256 {
                        bail!(
                            "this process and process 0 do not build the same dataset: their recipes differ"
                        );
                    }
                    if fetched.len() != self.spec.sources.len() {
                        bail!(
                            "this process sees {} sources, and process 0 sees {}",
                            self.spec.sources.len(),
                            fetched.len()
                        );
                    }
                    for (source, spec) in fetched.iter().zip(&self.spec.sources) {
                        let shown = source.path.display();
                        let there = std::fs::metadata(&source.path)
                            .with_context(|| format!("could not read {shown}, which process 0 sees"))?;
                        if there.is_dir() && source.name == spec.name {
                            continue;
                        }
                        if there.len() != source.bytes {
                            bail!(
                                "{shown} has {} bytes here, and {} where process 0 runs",
                                there.len(),
                                source.bytes
                            );
                        }
                    }
                    if learned.is_some() {
                        self.learn(learned, &[], &fetched, None)?;
                    }
                    let (journal, _) = staging.journal(team.index())?;
                    // Only builds from the beginning are done by several processes.
                    self.run_graph(&staging, &Arc::new(journal), &[], &fetched, &TakenOver::default())?;
                    drop(inside);
                }
            }
        }
    }

    /// Runs the job graph, until it needs no further start.
    fn run_graph(
        &self,
        staging: &Staging,
        journal: &Arc<Journal>,
        finished: &[ShardSummary],
        fetched: &[Fetched],
        taken: &TakenOver,
    ) -> Result<Finished> {
        let request = &self.request;
        let monitor = &request.monitor;
        let team = &request.team;
        let mut restarts = 0;
        loop {
            let total = fetched.iter().map(|source| source.bytes).sum();
            let meter = monitor.stage("read", Unit::Bytes, Some(total));
            let sources: Arc<Vec<Source>> = Arc::new(self.sources(fetched, &meter));
            let by_reference = request.by_reference && request.builder.payload().is_some();
            let payloads = by_reference.then(|| Arc::new(Payloads::new(Arc::clone(&sources))));
            let write_meter = monitor.stage("write", Unit::Examples, None);
            let counted = request
                .statistics
                .then(|| Statistics::new(&self.builder().spec().features));
            let shards = Shards {
                folder: staging.out(),
                counted: counted.map(|prototype| (staging.statistics(), prototype)),
                dataset: self.spec.name.clone(),
                groups: groups(&self.spec),
                options: WriteOptions::parse(&self.spec.options)?,
                journal: Arc::clone(journal),
                finished: finished.to_vec(),
                totals: Arc::new(OnceLock::new()),
                meter: Arc::clone(&write_meter),
                monitor: Arc::clone(monitor),
                parts: Arc::new(PartNames::of(team.index(), team.len())),
                payloads,
            };
            let result = graph::run(Plan {
                builder: self.builder(),
                sources,
                shards,
                num_shards: self.spec.splits.iter().map(|split| split.shards).collect(),
                on_error: request.on_error,
                by_reference,
                workers: request.workers,
                memory_bytes: usize::try_from(request.memory_bytes).unwrap_or(usize::MAX),
                spill_folder: request.spill_folder.clone().unwrap_or_else(|| staging.spill()),
                monitor: Arc::clone(monitor),
                team: team.clone(),
                may_restart: restarts < MOST_RESTARTS,
                taken: taken.sources.clone(),
                taken_records: taken.records(&self.spec),
                skipped_before: taken.skipped.iter().sum(),
            });
            meter.finish();
            write_meter.finish();
            match result {
                Err(error)
                    if restarts < MOST_RESTARTS && crate::error::find::<StartOver>(&error).is_some() =>
                {
                    restarts += 1;
                    monitor.note(format!("{error}; reading again"));
                }
                result => return result,
            }
        }
    }

    /// Writes what describes the shards, verifies them, and makes it all visible.
    fn publish(
        &self,
        staging: &Staging,
        fetched: &[Fetched],
        sums: &[Checksum],
        mut output: Output,
        taken: TakenOver,
    ) -> Result<BuildOutcome> {
        crate::fault::pass("publish");
        let monitor = &self.request.monitor;
        let out = staging.out();
        let meter = monitor.stage(
            "verify",
            Unit::Bytes,
            Some(output.shards.iter().map(|shard| shard.file_bytes).sum()),
        );
        verify::verify(&out, &mut output.shards, self.request.workers, &meter, monitor)?;
        meter.finish();
        // Those that are taken over were compared when they were brought; or stay where they are.
        let copies = self.copies(&taken)?;
        output.shards.extend(taken.shards);
        output.shards.sort_by_key(|shard| (shard.split, shard.index));
        for (count, taken) in output.skipped.iter_mut().zip(&taken.skipped) {
            *count += taken;
        }
        let mut spec = self.spec.clone();
        spec.features = self.builder().spec().features.clone();
        let (spec, mut manifest) = info::describe(&spec, &self.recipe_sha256, fetched, sums, &output)?;
        if self.request.statistics {
            let finishing = Finishing {
                features: &spec.features,
                out: &out,
                place: &self.registry.place(),
                parts: &staging.statistics(),
                earlier: self.request.base.as_deref().map(Base::places).unwrap_or_default(),
                memory_bytes: self.request.memory_bytes,
                monitor,
            };
            manifest.files = finishing.write(&manifest)?;
        }
        if let Some(mut making) = self.builder().making(sums)? {
            // Of sources that are not looked at, the builder does not know all of it.
            for (of, made) in making.sources.iter_mut().zip(taken.made) {
                of.made = made.unwrap_or_else(|| std::mem::take(&mut of.made));
            }
            let recipe = self.builder().recipe_text().map(str::to_owned);
            let kept = base::write(
                &out,
                recipe.as_deref(),
                &spec,
                &making,
                sums,
                &output.shards,
                &output.skipped,
            )?;
            manifest.files.extend(kept);
        }
        info::write(&spec, &manifest, &out)?;
        monitor.shards_found(output.found);
        let _span = monitor.span("publish", "publish");
        // From here on a stop would only leave work for the next run.
        monitor.check()?;
        let unchecked = self.unchecked(sums);
        let (log, folder) = self.registry.publish(
            &out,
            &manifest,
            &copies,
            &unchecked,
            self.request.overwrite,
            monitor,
        )?;
        let mut outcome = self.outcome(Status::Built, &manifest);
        outcome.path = folder.to_string();
        outcome.log = Some(log);
        outcome.unchecked = unchecked;
        outcome.peak_held_bytes = output.peak_held_bytes;
        outcome.spilled_bytes = output.spilled_bytes;
        outcome.shards_found = output.found;
        Ok(outcome)
    }

    /// The shards that a store copies from the folder of the earlier version.
    fn copies(&self, taken: &TakenOver) -> Result<Vec<Copy>> {
        let base = match &self.request.base {
            Some(base) if base.taking == Taking::In && base.folder.as_path().is_none() => base,
            _ => return Ok(Vec::new()),
        };
        let places = base.places();
        let copy = |shard: &ShardSummary| {
            let from = places.get(shard.path.as_str()).cloned();
            Ok(Copy {
                from: from.with_context(|| format!("there is no shard {}", shard.path))?,
                name: shard.path.clone(),
                bytes: shard.file_bytes,
                sha256: shard.sha256.clone(),
            })
        };
        taken.shards.iter().map(copy).collect()
    }

    /// Names of the sources that are not the recipe's.
    fn unchecked(&self, sums: &[Checksum]) -> Vec<String> {
        let other = |(spec, sum): (&crate::builder::SourceSpec, &Checksum)| {
            let differs = spec.bytes.is_some_and(|bytes| bytes != sum.bytes)
                || spec.sha256.is_some_and(|sha256| sha256 != sum.sha256);
            differs.then(|| spec.name.clone())
        };
        self.spec.sources.iter().zip(sums).filter_map(other).collect()
    }

    /// The same for a version that is there.
    fn unchecked_of(&self, manifest: &Manifest) -> Vec<String> {
        let other = |(spec, there): (
            &crate::builder::SourceSpec,
            &prep_catalog::manifest::SourceManifest,
        )| {
            let differs = spec.bytes.is_some_and(|bytes| bytes != there.bytes)
                || spec
                    .sha256
                    .is_some_and(|sha256| hex::encode(sha256) != there.sha256);
            differs.then(|| spec.name.clone())
        };
        self.spec
            .sources
            .iter()
            .zip(&manifest.sources)
            .filter_map(other)
            .collect()
    }

    fn up_to_date(&self, manifest: &Manifest, folder: &Location) -> BuildOutcome {
        let mut outcome = self.outcome(Status::UpToDate, manifest);
        outcome.path = folder.to_string();
        outcome
    }

    fn outcome(&self, status: Status, manifest: &Manifest) -> BuildOutcome {
        let mut outcome = self.outcome_of_nothing(status);
        outcome.add(manifest);
        outcome
    }

    fn outcome_of_nothing(&self, status: Status) -> BuildOutcome {
        let mut outcome = BuildOutcome::of(&self.spec, status, &self.registry.place(), &self.request);
        outcome.seconds = self.started.elapsed().as_secs_f64();
        outcome
    }
}

/// Bytes that the rest of the work takes on the disk.
#[derive(Debug, Default)]
struct Room {
    /// With less than this it cannot end well.
    least: u64,
    /// An estimate on the safe side.
    likely: u64,
    /// Whether the size of some source is not known.
    unknown: bool,
    /// Bytes of the sources whose size is known.
    sources: u64,
    /// Bytes of sorted records that are put aside; part of `likely` where that is on the same file system.
    spill: u64,
}

/// What an error of making the staging folder in a data folder means.
pub(crate) fn unwritable(data_dir: &Path, error: anyhow::Error) -> anyhow::Error {
    resources::explain_unwritable(
        error,
        data_dir,
        "give a folder that can be, with `--data-dir` or `--catalog`",
    )
}

/// How what is there compares with what is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing is there.
    Absent,
    /// It is the same.
    Same,
    /// The same recipe; whether the same sources shows when they are fetched.
    Unknown,
    /// Something else is there, for this reason.
    Different(String),
}

/// SHA-256 of what decides the output of a builder whose files are not known yet, as manifests have it.
pub(crate) fn recipe_sha256(builder: &dyn Builder, statistics: bool) -> String {
    identity(builder.spec(), &builder.identity(), statistics)
}

/// SHA-256 of what decides the output: the spec and the builder's own settings, but not where sources come from.
///
/// Versions from before there were statistics have the identity of those without.
pub(crate) fn identity(spec: &DatasetSpec, builder: &str, statistics: bool) -> String {
    let splits: Vec<_> = spec
        .splits
        .iter()
        .map(|split| serde_json::json!([split.name, split.shards]))
        .collect();
    let sources: Vec<&str> = spec.sources.iter().map(|source| source.name.as_str()).collect();
    let mut identity = serde_json::json!({
        "revision": OUTPUT_REVISION,
        "name": spec.name,
        "config": spec.config,
        "config_description": spec.config_description,
        "release_notes": spec.release_notes,
        "version": spec.version,
        "description": spec.description,
        "citation": spec.citation,
        "urls": spec.urls,
        "module_name": spec.module_name,
        "supervised_keys": spec.supervised_keys,
        "layout": spec.layout.name(),
        "features": spec.features.canonical_json(),
        "splits": splits,
        "sources": sources,
        "options": spec.options,
        "builder": builder,
    });
    if let Some(licence) = &spec.licence {
        identity["licence"] = licence.as_str().into();
    }
    if statistics {
        identity["statistics"] = statistics::FORMAT.into();
    }
    hex::encode(Sha256::digest(identity.to_string()))
}

/// What stands for each group of examples in the names of its shards: the split; and where each source has shards of its own, the beginning of
/// its file's name and a hash of all of it, so that a name does not depend on which other sources there are.
fn groups(spec: &DatasetSpec) -> Vec<String> {
    let splits = spec.splits.iter();
    if spec.layout == Layout::Tfds {
        return splits.map(|split| split.name.clone()).collect();
    }
    let label = |source: &crate::builder::SourceSpec| {
        let file = source.name.rsplit('/').next().unwrap_or_default();
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '-'
            }
        };
        let stem: String = file
            .split('.')
            .next()
            .unwrap_or_default()
            .chars()
            .take(32)
            .map(plain)
            .collect();
        let hash = blake3::hash(source.name.as_bytes()).to_hex();
        format!("{stem}-{}", &hash[..12])
    };
    let labels: Vec<String> = spec.sources.iter().map(label).collect();
    splits
        .flat_map(|split| labels.iter().map(|label| format!("{}.{label}", split.name)))
        .collect()
}

fn named(fetched: &[Fetched], sums: &[Checksum]) -> Vec<(String, u64, String)> {
    let name =
        |(source, sum): (&Fetched, &Checksum)| (source.name.clone(), sum.bytes, hex::encode(sum.sha256));
    fetched.iter().zip(sums).map(name).collect()
}

/// The shards that an earlier run has finished.
fn finished_of(entries: Vec<Entry>) -> Vec<ShardSummary> {
    let shard = |entry| match entry {
        Entry::Shard(summary) => Some(summary),
        _ => None,
    };
    entries.into_iter().filter_map(shard).collect()
}

/// What an earlier run left, if it wrote all shards and they are there.
fn resume(staging: &Staging, entries: &[Entry], num_splits: usize) -> Option<(Output, Written)> {
    let written = entries.iter().rev().find_map(|entry| match entry {
        Entry::Written(written) => Some(written.clone()),
        _ => None,
    })?;
    if written.num_shards.len() != num_splits {
        return None;
    }
    let out = staging.out();
    // The last entry counts: a shard may have been written more than once.
    let mut known = std::collections::HashMap::new();
    for entry in entries {
        if let Entry::Shard(shard) = entry {
            let place = (
                u64::from(shard.index),
                shard.split as usize,
                u64::from(shard.num_shards),
            );
            known.insert(place, shard);
        }
    }
    let mut shards = Vec::new();
    for (split, count) in written.num_shards.iter().enumerate() {
        for index in 0..*count {
            let shard = *known.get(&(index, split, *count))?;
            let there = std::fs::metadata(out.join(&shard.path)).ok()?;
            if there.len() != shard.file_bytes {
                return None;
            }
            shards.push(shard.clone());
        }
    }
    let output = Output {
        found: shards.len() as u64,
        shards,
        skipped: written.skipped.clone(),
        class_names: written.class_names.clone(),
        peak_held_bytes: 0,
        spilled_bytes: 0,
    };
    Some((output, written))
}

fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
        .sum()
}

/// The path without a way around.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("could not find out where {} is", path.display()))
}

#[cfg(test)]
mod tests;
