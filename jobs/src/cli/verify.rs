//! `prep verify`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use anyhow::Context;
use clap::Args;
use prep_catalog::manifest::{MANIFEST_FILE, Manifest, ShardManifest};
use prep_formats::Error;
use prep_formats::array_record::{self, VerifyOptions};
use prep_formats::store::{PositionedFile, ReadAt};
use prep_formats::tfrecord;
use sha2::{Digest, Sha256};

use crate::cli::output::{Usage, say};
use crate::cli::progress::Display;
use crate::cli::record_file::{Kind, kind, kind_by_name};
use crate::cli::{Global, Outcome, targets, verify_dataset};
use crate::monitor::{Meter, Monitor, Unit};
use crate::resources::default_workers;

/// Checks every hash and checksum of files, folders or datasets.
///
/// Goes on past damage and lists the records lost. A folder with Prep's manifest is compared with it as well: shards that are
/// absent or have another SHA-256 are damaged.
///
/// Example: prep verify '/data/mnist/3.0.1/*-train*' --quick
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Files, folders, or dataset names; patterns are expanded.
    #[arg(required = true, value_name = "FILE|FOLDER|NAME")]
    targets: Vec<String>,
    /// Reads footers and headers only, not the data: finds files that are cut or mixed up. TFRecord files have none, and are read whole.
    #[arg(long)]
    quick: bool,
    /// Files looked at at once; default: one per core.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG")]
    catalog: Option<String>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

/// What was found in one file.
#[derive(Debug, serde::Serialize)]
struct Report {
    path: String,
    ok: bool,
    /// Records, good and damaged, where they can be counted.
    records: Option<u64>,
    damaged: Vec<Lost>,
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
    path: PathBuf,
    expected: Option<ShardManifest>,
}

pub(crate) fn run(args: &Verify, global: &Global) -> anyhow::Result<Outcome> {
    if args.workers.is_some_and(|workers| !(1..=1024).contains(&workers)) {
        return Err(Usage("`--workers` is out of range: 1 to 1024".into()).into());
    }
    let mut tasks = Vec::new();
    for target in targets::expand(&args.targets)? {
        let path = PathBuf::from(&target);
        if path.is_file() {
            tasks.push(Task { path, expected: None });
            continue;
        }
        let folder = if path.is_dir() {
            path
        } else {
            verify_dataset::folder_of(&target, args.catalog.as_deref())?
        };
        tasks.extend(tasks_of(&folder)?);
    }
    let monitor = Monitor::new();
    let sizes = tasks
        .iter()
        .map(|task| fs::metadata(&task.path).map_or(0, |metadata| metadata.len()));
    let look = Look {
        quick: args.quick,
        meter: monitor.stage("verify", Unit::Bytes, Some(sizes.sum())),
    };
    let num_files = tasks.len();
    let (mut num_damaged, mut num_records) = (0, 0);
    {
        let _display = Display::bars(&monitor, global);
        let workers = args.workers.unwrap_or_else(default_workers);
        verify_all(&tasks, workers, &look, |report| {
            num_damaged += usize::from(!report.ok);
            num_records += report.records.unwrap_or(0);
            print(&report, args.json, global)
        })?;
        look.meter.finish();
    }
    if !args.json && !global.quiet && num_files > 1 {
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

/// How closely files are looked at, and how far that is.
struct Look {
    quick: bool,
    meter: Arc<Meter>,
}

impl Look {
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
            writeln!(
                output,
                "ok       {}  {} records",
                report.path,
                report.records.unwrap_or(0)
            )?;
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
    Ok(tasks_of(folder)?.into_iter().map(|task| task.path).collect())
}

/// The record files of a folder, in the order of their paths; with a manifest, its shards as well, present or not.
fn tasks_of(folder: &Path) -> anyhow::Result<Vec<Task>> {
    let mut tasks = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let context = || format!("could not list `{}`", folder.display());
        for entry in fs::read_dir(&folder).with_context(context)? {
            let path = entry.with_context(context)?.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if kind_by_name(&path).is_some() {
                tasks.entry(path).or_insert(None);
            } else if path.file_name().is_some_and(|name| name == MANIFEST_FILE) {
                let context = || format!("could not read `{}`", path.display());
                let text = fs::read(&path).with_context(context)?;
                let manifest: Manifest = serde_json::from_slice(&text).with_context(context)?;
                for shard in manifest.splits.into_iter().flat_map(|split| split.shards) {
                    tasks.insert(folder.join(&shard.path), Some(shard));
                }
            }
        }
    }
    if tasks.is_empty() {
        anyhow::bail!(
            "`{}` holds no record files: none has `.array_record` or `.tfrecord` in its name",
            folder.display()
        );
    }
    let tasks = tasks.into_iter().map(|(path, expected)| Task { path, expected });
    Ok(tasks.collect())
}

/// Looks at all files, on so many threads; `each` is called in their order.
fn verify_all(
    tasks: &[Task],
    workers: usize,
    look: &Look,
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
                    if sender.send((index, verify_file(task, look))).is_err() {
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

fn verify_file(task: &Task, look: &Look) -> anyhow::Result<Report> {
    let path = &task.path;
    if let Some(shard) = &task.expected
        && !path.exists()
    {
        let reason = "the file is absent, but the manifest lists it".to_string();
        return Ok(report(path, None, vec![lost(0..shard.records, 0, reason)]));
    }
    let mut found = match kind(path)? {
        Kind::ArrayRecord => {
            // Read, not mapped: memory stays small whatever the file's size, and a file cut meanwhile is an error.
            let source = Arc::new(PositionedFile::open(path)?);
            let options = VerifyOptions::default().quick(look.quick);
            let mut before = 0;
            let verified =
                array_record::verify_with(Arc::<PositionedFile>::clone(&source), options, |offset| {
                    look.reached(&mut before, offset);
                })?;
            let damaged = verified.damaged.into_iter();
            let mut report = report(
                path,
                verified.num_records,
                damaged.map(|d| lost(d.records, d.offset, d.reason)).collect(),
            );
            if report.records.is_none() && !look.quick {
                report.salvage = salvage_array_record(&*source);
            }
            look.reached(&mut before, source.len());
            report
        }
        Kind::TfRecord => verify_tfrecord(path, look)?,
    };
    if let Some(shard) = &task.expected {
        compare(path, shard, look.quick, &mut found)?;
    }
    Ok(found)
}

/// Compares a file that is whole in itself with the manifest.
///
/// A quick look compares the number of records only.
fn compare(path: &Path, shard: &ShardManifest, quick: bool, found: &mut Report) -> anyhow::Result<()> {
    if !found.ok {
        return Ok(());
    }
    if quick {
        if found.records != Some(shard.records) {
            let records = found.records.unwrap_or(0);
            let reason = format!(
                "the file has {records} records, the manifest says {}",
                shard.records
            );
            found.damaged.push(lost(0..shard.records, 0, reason));
            found.ok = false;
        }
        return Ok(());
    }
    let mut file = fs::File::open(path).with_context(|| format!("could not open `{}`", path.display()))?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file
            .read(&mut buffer)
            .with_context(|| format!("could not read `{}`", path.display()))?
        {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let digest = hex::encode(hasher.finalize());
    if digest != shard.sha256 || found.records != Some(shard.records) {
        let reason = format!(
            "the file has {} records and the SHA-256 {digest}, the manifest says {} and {}: it is another file, whole in itself",
            found.records.unwrap_or(0),
            shard.records,
            shard.sha256
        );
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

fn verify_tfrecord(path: &Path, look: &Look) -> anyhow::Result<Report> {
    let mut damaged = Vec::new();
    let mut note = |index: u64, error: Error| match error {
        Error::Damaged { at, reason } | Error::Unsupported { at, reason } => {
            damaged.push(lost(index..index + 1, at.offset.unwrap_or(0), reason));
            Ok(())
        }
        other => Err(other),
    };
    let mut before = 0;
    let file = fs::File::open(path).with_context(|| format!("could not open `{}`", path.display()))?;
    let counted = Counted {
        file,
        look,
        before: &mut before,
        offset: 0,
    };
    let options = tfrecord::ReadOptions::default();
    let mut records = 0;
    let mut is_broken = false;
    match tfrecord::Reader::new(counted, path.to_string_lossy(), options) {
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
    let mut report = report(path, Some(records), damaged);
    if is_broken {
        report.salvage = salvage_tfrecord(path);
    }
    look.reached(
        &mut before,
        fs::metadata(path).map_or(0, |metadata| metadata.len()),
    );
    Ok(report)
}

/// What could be saved of a file whose records end in damage.
fn salvage_tfrecord(path: &Path) -> Option<Salvage> {
    let source = PositionedFile::open(path).ok()?;
    let mut writer = tfrecord::Writer::new(io::sink(), tfrecord::Compression::Plain).ok()?;
    let found = tfrecord::salvage(&source, &mut writer, tfrecord::SalvageOptions::default()).ok()?;
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
    file: fs::File,
    look: &'a Look,
    before: &'a mut u64,
    offset: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.offset += read as u64;
        self.look.reached(self.before, self.offset);
        Ok(read)
    }
}

fn report(path: &Path, records: Option<u64>, damaged: Vec<Lost>) -> Report {
    Report {
        path: path.to_string_lossy().into_owned(),
        ok: damaged.is_empty(),
        records,
        damaged,
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
