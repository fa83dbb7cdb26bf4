//! `prep verify`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use anyhow::Context;
use clap::Args;
use prep_catalog::manifest::{MANIFEST_FILE, Manifest, ShardManifest};
use prep_formats::Error;
use prep_formats::array_record;
use prep_formats::tfrecord::{Compression, CrcPolicy, Scanner, detect};
use sha2::{Digest, Sha256};

use crate::cli::record_file::{Kind, kind, kind_by_name, open_source, open_tfrecord};
use crate::cli::{Global, Outcome, verify_dataset};

/// Checks every hash and checksum of a file, a folder or a dataset.
///
/// Goes on past damage and lists the records lost. A folder with Prep's manifest is compared with it as well: shards that are
/// absent or have another SHA-256 are damaged.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// A file, a folder, or a dataset name.
    target: String,
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
    let path = PathBuf::from(&args.target);
    let tasks = if path.is_file() {
        vec![Task { path, expected: None }]
    } else {
        let folder = if path.is_dir() {
            path
        } else {
            verify_dataset::folder_of(&args.target, args.catalog.as_deref())?
        };
        tasks_of(&folder)?
    };
    let num_files = tasks.len();
    let (mut num_damaged, mut num_records) = (0, 0);
    verify_all(&tasks, |report| {
        num_damaged += usize::from(!report.ok);
        num_records += report.records.unwrap_or(0);
        print(&report, args.json, global)
    })?;
    if !args.json && !global.quiet && num_files > 1 {
        eprintln!("{num_files} files, {num_records} records, {num_damaged} files damaged");
    }
    Ok(if num_damaged == 0 {
        Outcome::Done
    } else {
        Outcome::No
    })
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
    }
    Ok(())
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

/// Looks at all files, on as many threads as there are processors; `each` is called in their order.
fn verify_all(tasks: &[Task], mut each: impl FnMut(Report) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(tasks.len());
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
                    if sender.send((index, verify_file(task))).is_err() {
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

fn verify_file(task: &Task) -> anyhow::Result<Report> {
    let path = &task.path;
    if let Some(shard) = &task.expected
        && !path.exists()
    {
        let reason = "the file is absent, but the manifest lists it".to_string();
        return Ok(report(path, None, vec![lost(0..shard.records, 0, reason)]));
    }
    let mut found = match kind(path)? {
        Kind::ArrayRecord => {
            let verified = array_record::verify(open_source(path)?)?;
            let damaged = verified.damaged.into_iter();
            report(
                path,
                verified.num_records,
                damaged.map(|d| lost(d.records, d.offset, d.reason)).collect(),
            )
        }
        Kind::TfRecord => verify_tfrecord(path)?,
    };
    if let Some(shard) = &task.expected {
        compare(path, shard, &mut found)?;
    }
    Ok(found)
}

/// Compares a file that is whole in itself with the manifest.
fn compare(path: &Path, shard: &ShardManifest, found: &mut Report) -> anyhow::Result<()> {
    if !found.ok {
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

fn verify_tfrecord(path: &Path) -> anyhow::Result<Report> {
    let source = open_source(path)?;
    let bytes = source.as_slice().unwrap_or(&[]);
    let mut damaged = Vec::new();
    let mut note = |index: u64, error: Error| match error {
        Error::Damaged { at, reason } | Error::Unsupported { at, reason } => {
            damaged.push(lost(index..index + 1, at.offset.unwrap_or(0), reason));
            Ok(())
        }
        other => Err(other),
    };
    let kind = detect(&bytes[..bytes.len().min(12)]);
    let records = if matches!(kind, None | Some(Compression::Plain)) {
        let mut scanner = Scanner::new(bytes, source.name(), CrcPolicy::Check);
        loop {
            let index = scanner.record_index();
            match scanner.next() {
                Ok(Some(_)) => {}
                Ok(None) => break scanner.record_index(),
                Err(error) => note(index, error)?,
            }
        }
    } else {
        let mut reader = open_tfrecord(path)?;
        loop {
            let index = reader.record_index();
            match reader.next() {
                Ok(Some(_)) => {}
                Ok(None) => break reader.record_index(),
                Err(error) => note(index, error)?,
            }
        }
    };
    // A record whose length is damaged was not counted, and hides those behind it.
    let records = records.max(damaged.last().map_or(0, |lost| lost.records[1]));
    Ok(report(path, Some(records), damaged))
}

fn report(path: &Path, records: Option<u64>, damaged: Vec<Lost>) -> Report {
    Report {
        path: path.to_string_lossy().into_owned(),
        ok: damaged.is_empty(),
        records,
        damaged,
    }
}

fn lost(records: std::ops::Range<u64>, offset: u64, reason: String) -> Lost {
    Lost {
        records: [records.start, records.end],
        offset,
        reason,
    }
}
