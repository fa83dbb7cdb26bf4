//! `prep verify`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use clap::Args;
use prep_catalog::Resolved;
use prep_catalog::manifest::{FileManifest, MANIFEST_FILE, Manifest, ShardManifest};
use prep_formats::Error;
use prep_formats::array_record::{self, VerifyOptions};
use prep_formats::store::{self, Location, PositionedFile, ReadAt};
use prep_formats::tfrecord;
use sha2::{Digest, Sha256};

use crate::cli::from_catalog::CatalogArgs;
use crate::cli::output::{Usage, say};
use crate::cli::progress::Display;
use crate::cli::record_file::{Kind, kind, kind_by_name};
use crate::cli::verify_dataset::{self, VerifyJournal};
use crate::cli::verify_described::Description;
use crate::cli::{Global, Outcome, targets};
use crate::monitor::{Meter, Monitor, Unit};
use crate::resources::default_workers;

/// Checks every hash and checksum of files, folders or datasets.
///
/// Goes on past damage and lists the records lost. A folder with Prep's manifest is compared with it as well: shards and files of statistics that are
/// absent or have another SHA-256 are damaged, and so are features and `dataset_info.json` that say something else of the records than the manifest. Of a dataset in place the user's files are looked at, and their indices. A dataset may lie in an object store. What is found whole is noted in a journal; after a run that was
/// stopped, `--resume` passes over what is in it and has not changed since.
///
/// Example: prep verify '/data/mnist/3.0.1/*-train*' --quick
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Files, folders, or dataset names; patterns are expanded. A folder ./NAME goes before a dataset NAME, which has to be given as NAME:VERSION then.
    #[arg(required = true, value_name = "FILE|FOLDER|NAME")]
    targets: Vec<String>,
    /// Reads footers and headers only, not the data: finds files that are cut or mixed up. TFRecord files have none, and are read whole.
    #[arg(long)]
    quick: bool,
    /// Files looked at at once; default: one per core.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Goes on where an earlier run of the same command was stopped; the journal is in the home folder, or in FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    at: CatalogArgs,
}

/// Bytes that are hashed at a time.
const HASH_BYTES: usize = 1 << 20;

/// What was found in one file.
#[derive(Debug, serde::Serialize)]
struct Report {
    path: String,
    ok: bool,
    /// Records, good and damaged, where they can be counted.
    records: Option<u64>,
    damaged: Vec<Lost>,
    /// Whether an earlier run has found it whole, and it was not read again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    resumed: bool,
    /// What `prep salvage` would save, where records cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    salvage: Option<Salvage>,
}

/// What `prep salvage` would save.
#[derive(Debug, serde::Serialize)]
struct Salvage {
    records: u64,
    /// How many are lost, where that is known.
    lost_records: Option<u64>,
}

/// One damaged place: half-open range of records, empty where none is lost or nobody can tell.
#[derive(Debug, serde::Serialize)]
struct Lost {
    records: [u64; 2],
    offset: u64,
    reason: String,
}

/// A file to look at, and what the manifest says about it.
struct Task {
    place: Location,
    expected: Option<Expected>,
    /// Where the index of a TFRecord file is, of a dataset in place.
    index: Option<Location>,
    in_place: bool,
}

/// What a manifest says of a file.
enum Expected {
    Shard(ShardManifest),
    /// A file without records.
    Other(FileManifest),
    /// One that describes records: the manifest has no hash of it, but what it says shows in the manifest too.
    Description(Arc<Manifest>, Description),
}

impl Expected {
    fn bytes(&self) -> u64 {
        match self {
            Self::Shard(shard) => shard.bytes,
            Self::Other(file) => file.bytes,
            Self::Description(..) => 0,
        }
    }

    fn records(&self) -> u64 {
        match self {
            Self::Shard(shard) => shard.records,
            Self::Other(_) | Self::Description(..) => 0,
        }
    }
}

impl Task {
    /// A file of which no manifest is known.
    fn of_file(path: PathBuf) -> Self {
        Self {
            place: Location::from_path(path),
            expected: None,
            index: None,
            in_place: false,
        }
    }

    fn size(&self) -> u64 {
        match (self.place.as_path(), &self.expected) {
            (Some(path), _) => fs::metadata(path).map_or(0, |metadata| metadata.len()),
            (None, Some(expected)) => expected.bytes(),
            (None, None) => 0,
        }
    }

    /// A text that changes when the file does; `None` where that cannot be told.
    fn stamp(&self) -> Option<String> {
        let Some(path) = self.place.as_path() else {
            let identity = store::object_identity(&self.place).ok()?;
            return (!identity.trim().is_empty()).then_some(identity);
        };
        let metadata = fs::metadata(path).ok()?;
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{} {}", metadata.len(), modified.as_nanos()))
    }
}

pub(crate) fn run(args: &Verify, global: &Global) -> anyhow::Result<Outcome> {
    if args.workers.is_some_and(|workers| !(1..=1024).contains(&workers)) {
        return Err(Usage("`--workers` is out of range: 1 to 1024".into()).into());
    }
    let mut tasks = Vec::new();
    for target in targets::expand(&args.targets)? {
        let path = PathBuf::from(&target);
        if path.is_file() {
            tasks.push(Task::of_file(path));
            continue;
        }
        if path.is_dir() {
            if let Some(text) = verify_dataset::also_named(&target, args.at.catalog.as_deref())
                && !global.quiet
            {
                say(text);
            }
            tasks.extend(tasks_of(&path)?);
            continue;
        }
        let found = verify_dataset::resolve(&target, args.at.catalog.as_deref())?;
        tasks.extend(tasks_of_version(found)?);
    }
    let journal = VerifyJournal::open(args.resume.as_deref(), args.quick, &args.targets)?;
    let monitor = Monitor::new();
    let look = Look {
        quick: args.quick,
        meter: monitor.stage("verify", Unit::Bytes, Some(tasks.iter().map(Task::size).sum())),
        journal: &journal,
    };
    let num_files = tasks.len();
    let (mut num_damaged, mut num_records) = (0, 0);
    {
        let _display = Display::bars(&monitor, global);
        let workers = args.workers.unwrap_or_else(default_workers);
        verify_all(&tasks, workers, &look, |report| {
            num_damaged += usize::from(!report.ok);
            num_records += report.records.unwrap_or(0);
            print(&report, args.at.json, global)
        })?;
        look.meter.finish();
    }
    journal.remove();
    if !args.at.json && !global.quiet && num_files > 1 {
        say(format_args!(
            "{num_files} files, {num_records} records, {num_damaged} files damaged"
        ));
    }
    Ok(if num_damaged == 0 {
        Outcome::Done
    } else {
        Outcome::No
    })
}

/// The files of a version.
fn tasks_of_version(found: Resolved) -> anyhow::Result<Vec<Task>> {
    match found.folder.as_path() {
        Some(folder) => tasks_of(&folder),
        None => Ok(files_of(found.manifest, &found.folder).collect()),
    }
}

/// Checks every hash and checksum of a version, as `prep verify NAME`; with `quick` reads footers and headers only. For each file, in the order of their paths, what
/// `--json` prints: `path`, `ok`, `records`, and `damaged` [{`records`, `offset`, `reason`}].
///
/// # Errors
/// A file cannot be read; damage is no error. Or a stop.
pub fn verify_version(
    found: Resolved,
    quick: bool,
    workers: usize,
    monitor: &Monitor,
) -> anyhow::Result<Vec<serde_json::Value>> {
    let tasks = tasks_of_version(found)?;
    let journal = VerifyJournal::none(quick);
    let look = Look {
        quick,
        meter: monitor.stage("verify", Unit::Bytes, Some(tasks.iter().map(Task::size).sum())),
        journal: &journal,
    };
    let mut reports = Vec::new();
    verify_all(&tasks, workers, &look, |report| {
        monitor.check()?;
        reports.push(serde_json::to_value(report)?);
        Ok(())
    })?;
    look.meter.finish();
    Ok(reports)
}

/// How closely files are looked at, and how far that is.
struct Look<'a> {
    quick: bool,
    meter: Arc<Meter>,
    journal: &'a VerifyJournal,
}

impl Look<'_> {
    /// A file is at `offset`; `before` is where it was.
    fn reached(&self, before: &mut u64, offset: u64) {
        self.meter.add(offset.saturating_sub(*before));
        *before = offset.max(*before);
    }
}

fn print(report: &Report, json: bool, global: &Global) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut output, report).map_err(io::Error::from)?;
        writeln!(output)?;
    } else if report.ok {
        if !global.quiet {
            let records = report
                .records
                .map_or(String::new(), |records| format!("  {records} records"));
            writeln!(output, "ok       {}{records}", report.path)?;
        }
    } else {
        for lost in &report.damaged {
            let [start, end] = lost.records;
            let records = if start < end {
                format!(", records {start}..{end}")
            } else {
                String::new()
            };
            writeln!(
                output,
                "damaged  {}{records}, byte {}: {}",
                report.path, lost.offset, lost.reason
            )?;
        }
        if let Some(salvage) = report.salvage.as_ref().filter(|salvage| salvage.records > 0) {
            let lost = match salvage.lost_records {
                Some(0) => "all of them".to_string(),
                Some(lost) => format!("all but {lost}"),
                None => "the number lost is not known".to_string(),
            };
            writeln!(
                output,
                "         {}: `prep salvage` would save {} records, {lost}",
                report.path, salvage.records
            )?;
        }
    }
    Ok(())
}

/// The record files of a folder, in the order of their paths.
pub(crate) fn record_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let tasks = tasks_of(folder)?.into_iter();
    let files = tasks.filter(|task| matches!(task.expected, None | Some(Expected::Shard(_))));
    Ok(files.filter_map(|task| task.place.as_path()).collect())
}

/// The files of a version: those that its manifest has the SHA-256 of, and those that describe them.
fn files_of(manifest: Manifest, folder: &Location) -> impl Iterator<Item = Task> {
    let in_place = manifest.in_place;
    let whole = Arc::new(manifest.clone());
    let descriptions = Description::ALL.map(|description| Task {
        place: folder.join(description.file_name()),
        index: None,
        expected: Some(Expected::Description(Arc::clone(&whole), description)),
        in_place: false,
    });
    let shards = manifest.splits.into_iter().flat_map(|split| split.shards);
    let shards = shards.map(move |shard| Task {
        place: shard.location(folder),
        index: shard.index.as_ref().map(|index| folder.join(&index.path)),
        expected: Some(Expected::Shard(shard)),
        in_place,
    });
    let others = manifest.files.into_iter();
    let others = others.map(|file| Task {
        place: folder.join(&file.path),
        index: None,
        expected: Some(Expected::Other(file)),
        in_place: false,
    });
    shards.chain(others).chain(descriptions)
}

/// The record files of a folder, in the order of their paths; with a manifest, its files as well, present or not.
fn tasks_of(folder: &Path) -> anyhow::Result<Vec<Task>> {
    let mut tasks: BTreeMap<PathBuf, Task> = BTreeMap::new();
    let mut is_described = false;
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let context = || format!("could not list `{}`", folder.display());
        for entry in fs::read_dir(&folder).with_context(context)? {
            let path = entry.with_context(context)?.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if kind_by_name(&path).is_some() {
                tasks.entry(path.clone()).or_insert_with(|| Task::of_file(path));
            } else if path.file_name().is_some_and(|name| name == MANIFEST_FILE) {
                let context = || format!("could not read `{}`", path.display());
                let text = fs::read(&path).with_context(context)?;
                let manifest: Manifest = serde_json::from_slice(&text).with_context(context)?;
                is_described = true;
                for task in files_of(manifest, &Location::from_path(&folder)) {
                    let path = task.place.as_path();
                    tasks.insert(path.unwrap_or_else(|| task.place.to_string().into()), task);
                }
            }
        }
    }
    if tasks.is_empty() && !is_described {
        anyhow::bail!(
            "`{}` holds no record files: none has `.array_record` or `.tfrecord` in its name",
            folder.display()
        );
    }
    Ok(tasks.into_values().collect())
}

/// Looks at all files, on so many threads; `each` is called in their order.
fn verify_all(
    tasks: &[Task],
    workers: usize,
    look: &Look<'_>,
    mut each: impl FnMut(Report) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let threads = workers.min(tasks.len());
    let next = AtomicUsize::new(0);
    // A bound, so that a slow first file does not let reports pile up.
    let (sender, receiver) = mpsc::sync_channel(threads * 4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some((index, task)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    tasks.get(index).map(|task| (index, task))
                } {
                    if sender.send((index, verify_or_pass(task, look))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (index, report) in receiver {
            early.insert(index, report);
            while let Some(report) = early.remove(&due) {
                each(report?)?;
                due += 1;
            }
        }
        Ok(())
    })
}

/// Looks at a file, unless an earlier run has found it whole.
fn verify_or_pass(task: &Task, look: &Look<'_>) -> anyhow::Result<Report> {
    let name = task.place.to_string();
    let stamp = task.stamp();
    if let Some(records) = look.journal.found(&name, stamp.as_deref()) {
        look.meter.add(task.size());
        let mut report = report(&name, Some(records), Vec::new());
        report.resumed = true;
        return Ok(report);
    }
    let found = match &task.expected {
        Some(Expected::Other(file)) => return verify_other(&task.place, file, look),
        Some(Expected::Description(manifest, description)) => {
            look.meter.add(task.size());
            let fault = description.fault(&task.place, manifest)?;
            let damaged = fault.into_iter().map(|reason| lost(0..0, 0, reason));
            return Ok(report(&name, None, damaged.collect()));
        }
        _ => verify_file(task, look)?,
    };
    // A file that changed while it was read is not noted.
    if found.ok
        && let (Some(records), Some(stamp)) = (found.records, stamp)
        && task.stamp().as_ref() == Some(&stamp)
    {
        look.journal.note(&name, &stamp, records);
    }
    Ok(found)
}

fn verify_file(task: &Task, look: &Look<'_>) -> anyhow::Result<Report> {
    let name = task.place.to_string();
    // Files in place may be anything by now, and were of a kind.
    let known = match (&task.expected, &task.index) {
        (Some(_), Some(_)) => Some(Kind::TfRecord),
        (Some(_), None) if task.in_place => Some(Kind::ArrayRecord),
        _ => None,
    };
    let (source, kind): (Arc<dyn ReadAt>, Kind) = match task.place.as_path() {
        Some(path) => {
            if let Some(expected) = &task.expected
                && !path.exists()
            {
                return Ok(absent(&name, expected));
            }
            // Read, not mapped: memory stays small whatever the file's size, and a file cut meanwhile is an error.
            let kind = known.map_or_else(|| kind(&path), Ok)?;
            (Arc::new(PositionedFile::open(&path)?), kind)
        }
        None => match store::open(&task.place) {
            Ok(source) => (source, known.unwrap_or(Kind::ArrayRecord)),
            Err(error) => match &task.expected {
                Some(expected) if is_absent(&error) => return Ok(absent(&name, expected)),
                _ => return Err(error.into()),
            },
        },
    };
    let mut found = match kind {
        Kind::ArrayRecord => {
            let options = VerifyOptions::default().quick(look.quick);
            let mut before = 0;
            let verified = array_record::verify_with(Arc::clone(&source), options, |offset| {
                look.reached(&mut before, offset);
            })?;
            let damaged = verified.damaged.into_iter();
            let mut report = report(
                &name,
                verified.num_records,
                damaged.map(|d| lost(d.records, d.offset, d.reason)).collect(),
            );
            if report.records.is_none() && !look.quick {
                report.salvage = salvage_array_record(&*source);
            }
            look.reached(&mut before, source.len());
            report
        }
        Kind::TfRecord => verify_tfrecord(&*source, look)?,
    };
    if let Some(Expected::Shard(shard)) = &task.expected {
        compare(&*source, shard, look.quick, task.in_place, &mut found)?;
        if let (Some(at), true) = (&task.index, found.ok) {
            compare_index(at, &*source, shard, &mut found)?;
        }
    }
    Ok(found)
}

/// Compares a file without records with the manifest: its size, and unless the look is a quick one its SHA-256.
fn verify_other(place: &Location, file: &FileManifest, look: &Look<'_>) -> anyhow::Result<Report> {
    let name = place.to_string();
    let Some(bytes) = store::size_of_file(place)? else {
        return Ok(absent(&name, &Expected::Other(file.clone())));
    };
    look.meter.add(bytes);
    let damaged = |reason: String| Ok(report(&name, None, vec![lost(0..0, 0, reason)]));
    if bytes != file.bytes {
        return damaged(format!(
            "the file has {bytes} bytes, the manifest says {}",
            file.bytes
        ));
    }
    if !look.quick {
        let source: Arc<dyn ReadAt> = match place.as_path() {
            Some(path) => Arc::new(PositionedFile::open(path)?),
            None => store::open(place)?,
        };
        let digest = hash(&*source)?;
        if digest != file.sha256 {
            return damaged(format!(
                "the file has the SHA-256 {digest}, the manifest says {}",
                file.sha256
            ));
        }
    }
    Ok(report(&name, None, Vec::new()))
}

/// The SHA-256 of a file, hex.
fn hash(source: &dyn ReadAt) -> anyhow::Result<String> {
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; HASH_BYTES]);
    let mut offset = 0;
    while offset < source.len() {
        let count = (source.len() - offset).min(HASH_BYTES as u64);
        let block = &mut buffer[..count as usize];
        source.read_at(offset, block)?;
        hasher.update(&*block);
        offset += count;
    }
    Ok(hex::encode(hasher.finalize()))
}

fn absent(name: &str, expected: &Expected) -> Report {
    let reason = "the file is absent, but the manifest lists it".to_string();
    report(name, None, vec![lost(0..expected.records(), 0, reason)])
}

pub(crate) fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// Compares a file that is whole in itself with the manifest.
///
/// A quick look compares the number of records only.
fn compare(
    source: &dyn ReadAt,
    shard: &ShardManifest,
    quick: bool,
    in_place: bool,
    found: &mut Report,
) -> anyhow::Result<()> {
    let advice = match in_place {
        true => ": it was changed since it was registered in place; register it again",
        false => "",
    };
    if !found.ok {
        if let Some(last) = found.damaged.last_mut() {
            last.reason += advice;
        }
        return Ok(());
    }
    if quick {
        if found.records != Some(shard.records) {
            let records = found.records.unwrap_or(0);
            let reason = format!(
                "the file has {records} records, the manifest says {}{advice}",
                shard.records
            );
            found.damaged.push(lost(0..shard.records, 0, reason));
            found.ok = false;
        }
        return Ok(());
    }
    let digest = hash(source)?;
    if digest != shard.sha256 || found.records != Some(shard.records) {
        let reason = format!(
            "the file has {} records and the SHA-256 {digest}, the manifest says {} and {}: it is another file, whole in itself{advice}",
            found.records.unwrap_or(0),
            shard.records,
            shard.sha256
        );
        found.damaged.push(lost(0..shard.records, 0, reason));
        found.ok = false;
    }
    Ok(())
}

/// Compares the index of a TFRecord file in place, which lies in the version's folder, with the manifest and the file.
fn compare_index(
    at: &Location,
    source: &dyn ReadAt,
    shard: &ShardManifest,
    found: &mut Report,
) -> anyhow::Result<()> {
    let Some(wanted) = &shard.index else { return Ok(()) };
    let reason = match store::read_file(at)? {
        None => Some("is absent".to_string()),
        Some(bytes) if hex::encode(Sha256::digest(&bytes)) != wanted.sha256 => {
            Some("has another SHA-256 than the manifest says".to_string())
        }
        Some(_) => match tfrecord::Index::load_from(at, source) {
            Ok(index) if index.num_records() == shard.records => None,
            Ok(index) => Some(format!("has {} records", index.num_records())),
            Err(error) => Some(format!("cannot be used: {error}")),
        },
    };
    if let Some(reason) = reason {
        let reason = format!("its index {at} {reason}: register the file again");
        found.damaged.push(lost(0..shard.records, 0, reason));
        found.ok = false;
    }
    Ok(())
}

/// What could be saved of a file without a footer.
fn salvage_array_record(source: &dyn ReadAt) -> Option<Salvage> {
    let (_, found) = array_record::salvage(source, io::sink(), |_| {}).ok()?;
    Some(Salvage {
        records: found.num_records,
        lost_records: found.lost.iter().map(|lost| lost.num_records).sum(),
    })
}

fn verify_tfrecord(source: &dyn ReadAt, look: &Look<'_>) -> anyhow::Result<Report> {
    let mut damaged = Vec::new();
    let mut note = |index: u64, error: Error| match error {
        Error::Damaged { at, reason } | Error::Unsupported { at, reason } => {
            damaged.push(lost(index..index + 1, at.offset.unwrap_or(0), reason));
            Ok(())
        }
        other => Err(other),
    };
    let mut before = 0;
    let counted = Counted {
        source,
        look,
        before: &mut before,
        offset: 0,
    };
    let options = tfrecord::ReadOptions::default();
    let mut records = 0;
    let mut is_broken = false;
    match tfrecord::Reader::new(counted, source.name(), options) {
        Ok(mut reader) => {
            loop {
                let index = reader.record_index();
                match reader.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        is_broken |= !reader.can_continue();
                        note(index, error)?;
                    }
                }
            }
            records = reader.record_index();
        }
        Err(error) => {
            is_broken = true;
            note(0, error)?;
        }
    }
    // A record whose length is damaged was not counted, and hides those behind it.
    let records = records.max(damaged.last().map_or(0, |lost| lost.records[1]));
    let mut report = report(source.name(), Some(records), damaged);
    if is_broken {
        report.salvage = salvage_tfrecord(source);
    }
    look.reached(&mut before, source.len());
    Ok(report)
}

/// What could be saved of a file whose records end in damage.
fn salvage_tfrecord(source: &dyn ReadAt) -> Option<Salvage> {
    let mut writer = tfrecord::Writer::new(io::sink(), tfrecord::Compression::Plain).ok()?;
    let found = tfrecord::salvage(source, &mut writer, tfrecord::SalvageOptions::default()).ok()?;
    let lost_records = found
        .lost
        .iter()
        .map(|lost| lost.num_records)
        .sum::<Option<u64>>();
    Some(Salvage {
        records: found.num_records,
        lost_records: lost_records.filter(|_| found.num_gaps == found.lost.len() as u64),
    })
}

/// A file that shows how far it was read.
struct Counted<'a> {
    source: &'a dyn ReadAt,
    look: &'a Look<'a>,
    before: &'a mut u64,
    offset: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.source.len().saturating_sub(self.offset);
        let count = rest.min(buffer.len() as u64);
        let buffer = &mut buffer[..count as usize];
        self.source
            .read_at(self.offset, buffer)
            .map_err(io::Error::other)?;
        self.offset += count;
        self.look.reached(self.before, self.offset);
        Ok(buffer.len())
    }
}

fn report(path: &str, records: Option<u64>, damaged: Vec<Lost>) -> Report {
    Report {
        path: path.to_owned(),
        ok: damaged.is_empty(),
        records,
        damaged,
        resumed: false,
        salvage: None,
    }
}

fn lost(records: std::ops::Range<u64>, offset: u64, reason: String) -> Lost {
    Lost {
        records: [records.start, records.end],
        offset,
        reason,
    }
}
