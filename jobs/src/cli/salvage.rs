//! `prep salvage`.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use prep_formats::array_record::{self, Reader};
use prep_formats::store::{AtomicFile, Existing, PositionedFile, ReadAt};
use prep_formats::tfrecord::{self, SalvageOptions};
use serde_json::{Value, json};

use crate::cli::output::{Hinted, Usage};
use crate::cli::progress::Display;
use crate::cli::record_file::{Kind, kind};
use crate::cli::stop::StoppingWriter;
use crate::cli::{Global, Outcome, stop, targets};
use crate::error::Cancelled;
use crate::monitor::{Meter, Monitor, Unit};

/// Rebuilds a readable file from a cut or damaged one, and says which records are lost.
///
/// Every record that can be read is kept. An ArrayRecord file needs no footer for that: chunks are found by their headers and the headers
/// of blocks. In a TFRecord file, records behind a damaged length are found by their checksums. The input is never changed. Exit code
/// 0: nothing is lost; 3: records are lost, or may be; 1: nothing could be saved.
///
/// Example: prep salvage cut.array_record -o whole.array_record
#[derive(Debug, Args)]
pub(crate) struct Salvage {
    /// ArrayRecord or TFRecord files; patterns are expanded.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// The new file; or a folder, where the new files get the names of the old ones.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Replaces a file at OUT; never the input.
    #[arg(long)]
    overwrite: bool,
    /// Shows what would be saved, and writes nothing.
    #[arg(long)]
    dry_run: bool,
    /// One JSON object a file on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Salvage, global: &Global) -> anyhow::Result<Outcome> {
    let files = targets::expand(&args.files)?;
    let to_folder = args.output.is_dir();
    if files.len() > 1 && !to_folder {
        let message = format!(
            "`--output {}` is no folder, and there are {} files: make a folder for them",
            args.output.display(),
            files.len()
        );
        return Err(Usage(message).into());
    }
    let mut jobs = Vec::with_capacity(files.len());
    for file in &files {
        let input = PathBuf::from(file);
        let output = match (to_folder, input.file_name()) {
            (true, Some(name)) => args.output.join(name),
            _ => args.output.clone(),
        };
        check(&input, &output, args)?;
        jobs.push((input, output));
    }
    let monitor = Monitor::new();
    stop::on_signals(&monitor.switch())?;
    let _display = Display::bars(&monitor, global);
    let (mut lost, mut failed) = (false, false);
    for (input, output) in &jobs {
        let found = salvage(input, output, args, &monitor).map_err(|error| explain(error, input))?;
        print(&found, args, global)?;
        lost |= found["complete"] != true;
        failed |= found["records"] == 0 && found["complete"] != true;
    }
    Ok(match (failed, lost) {
        (true, _) => Outcome::No,
        (false, true) => Outcome::Skipped,
        (false, false) => Outcome::Done,
    })
}

/// Refuses what would be an error only after all the work.
fn check(input: &Path, output: &Path, args: &Salvage) -> anyhow::Result<()> {
    let context = || format!("could not open `{}`", input.display());
    let from = fs::metadata(input).with_context(context)?;
    if from.is_dir() {
        return Err(Hinted::new(
            format!("`{}` is a folder", input.display()),
            format!("name the damaged files in it, or all: '{}/*'", input.display()),
        )
        .into());
    }
    let Ok(to) = fs::metadata(output) else {
        let folder = folder_of(output);
        if !args.dry_run && !folder.is_dir() {
            anyhow::bail!(
                "could not write `{}`: there is no folder `{}`",
                output.display(),
                folder.display()
            );
        }
        return Ok(());
    };
    if (from.dev(), from.ino()) == (to.dev(), to.ino()) {
        return Err(Usage(format!(
            "`{}` is the input itself: give another name for the new file",
            output.display()
        ))
        .into());
    }
    if !args.overwrite && !args.dry_run {
        return Err(Hinted::new(
            format!("`{}` exists", output.display()),
            "give another name, or replace it with `--overwrite`",
        )
        .into());
    }
    if !to.is_file() {
        anyhow::bail!("could not write `{}`: it is no file", output.display());
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// What came of one file, as it is printed.
fn salvage(input: &Path, output: &Path, args: &Salvage, monitor: &Monitor) -> anyhow::Result<Value> {
    let kind = kind(input)?;
    let source = Arc::new(PositionedFile::open(input)?);
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let meter = monitor.stage(format!("salvage {name}"), Unit::Bytes, Some(source.len()));
    let stop = monitor.switch();
    let mut found = if args.dry_run {
        save(
            kind,
            &*source,
            &meter,
            StoppingWriter {
                inner: io::sink(),
                stop,
            },
        )?
        .1
    } else {
        let mut staging = output.file_name().unwrap_or_default().to_os_string();
        staging.push(format!(".{}.tmp", std::process::id()));
        let staging = AtomicFile::create(folder_of(output).join(staging))?;
        let sink = StoppingWriter { inner: staging, stop };
        let (sink, mut found) = save(kind, &*source, &meter, sink)?;
        let useless = found["records"] == 0 && found["complete"] != true;
        if !useless {
            monitor.check()?;
            check_new(kind, sink.inner.staging_path(), &found)?;
            let existing = if args.overwrite {
                Existing::Replace
            } else {
                Existing::Keep
            };
            sink.inner.commit(output, existing)?;
        }
        found["written"] = (!useless).into();
        found
    };
    meter.finish();
    found["path"] = input.to_string_lossy().into();
    found["output"] = output.to_string_lossy().into();
    Ok(found)
}

/// Writes the new file of `source` to `sink`.
fn save<W: Write>(
    kind: Kind,
    source: &dyn ReadAt,
    meter: &Arc<Meter>,
    sink: StoppingWriter<W>,
) -> anyhow::Result<(StoppingWriter<W>, Value)> {
    Ok(match kind {
        Kind::ArrayRecord => {
            let (sink, found) = array_record::salvage(source, sink, |offset| meter.set(offset))?;
            (sink, array_record_json(&found))
        }
        Kind::TfRecord => {
            let mut head = vec![0; source.len().min(12) as usize];
            source.read_at(0, &mut head)?;
            let compression = tfrecord::detect(&head).unwrap_or(tfrecord::Compression::Plain);
            let counted = Counted { source, meter };
            let mut writer = tfrecord::Writer::new(BufWriter::with_capacity(1 << 20, sink), compression)?;
            let found = tfrecord::salvage(&counted, &mut writer, SalvageOptions::default())?;
            let sink = writer
                .finish()?
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?;
            (sink, tfrecord_json(&found))
        }
    })
}

/// Opens what was written before it gets its name.
fn check_new(kind: Kind, path: &Path, found: &Value) -> anyhow::Result<()> {
    if kind == Kind::ArrayRecord {
        let reader = Reader::from_source(Arc::new(PositionedFile::open(path)?))
            .context("the new file cannot be opened: this is a fault of Prep, and nothing was written")?;
        anyhow::ensure!(
            found["records"] == reader.num_records(),
            "the new file has {} records in place of {}: this is a fault of Prep, and nothing was written",
            reader.num_records(),
            found["records"]
        );
    }
    Ok(())
}

fn explain(error: anyhow::Error, input: &Path) -> anyhow::Error {
    let stopped = error.chain().any(|cause| {
        cause.is::<Cancelled>()
            || cause
                .downcast_ref::<io::Error>()
                .and_then(|error| error.get_ref())
                .is_some_and(|inner| inner.is::<Cancelled>())
    });
    if stopped {
        return Hinted::new(
            format!(
                "stopped salvaging `{}`, as asked; nothing was written",
                input.display()
            ),
            format!("the same command begins again: {}", stop::command_line()),
        )
        .into();
    }
    error.context(format!("could not salvage `{}`", input.display()))
}

fn range(range: &Range<u64>) -> Value {
    json!([range.start, range.end])
}

fn array_record_json(found: &array_record::Salvage) -> Value {
    let lost = found.lost.iter().map(|lost| {
        json!({
            "records": lost.records.as_ref().map(range),
            "num_records": lost.num_records,
            "bytes": range(&lost.bytes),
            "reason": lost.reason,
        })
    });
    let kept = found.kept.iter().map(|kept| {
        json!({
            "records": kept.records.as_ref().map(range),
            "new_records": range(&kept.new_records),
            "bytes": range(&kept.bytes),
        })
    });
    let harmless = found
        .harmless
        .iter()
        .map(|place| json!({"bytes": range(&place.bytes), "reason": place.reason}));
    json!({
        "path": null,
        "output": null,
        "format": "array_record",
        "written": false,
        "complete": found.is_complete(),
        "records": found.num_records,
        "total_records": found.total_records,
        "lost_records": found.lost.iter().map(|lost| lost.num_records).sum::<Option<u64>>(),
        "lost": lost.collect::<Vec<_>>(),
        "kept": kept.collect::<Vec<_>>(),
        "harmless": harmless.collect::<Vec<_>>(),
        "options": found.writer_options,
    })
}

fn tfrecord_json(found: &tfrecord::Salvaged) -> Value {
    let known = found.num_gaps == found.lost.len() as u64;
    let lost_records = found
        .lost
        .iter()
        .map(|lost| lost.num_records)
        .sum::<Option<u64>>();
    let lost_records = lost_records.filter(|_| known);
    let lost = found.lost.iter().map(|lost| {
        let records = lost.first_record.zip(lost.num_records);
        json!({
            "records": records.map(|(first, count)| json!([first, first + count])),
            "num_records": lost.num_records,
            "bytes": range(&lost.bytes),
            "reason": lost.reason,
        })
    });
    json!({
        "path": null,
        "output": null,
        "format": "tfrecord",
        "written": false,
        "complete": found.num_gaps == 0,
        "records": found.num_records,
        "total_records": lost_records.map(|lost| found.num_records + lost),
        "lost_records": lost_records,
        "lost": lost.collect::<Vec<_>>(),
        "gaps": found.num_gaps,
        "lost_bytes": found.lost_bytes,
        "repaired": found.num_repaired,
    })
}

fn print(found: &Value, args: &Salvage, global: &Global) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    if args.json {
        writeln!(output, "{found}")?;
        return Ok(());
    }
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_string();
    for lost in found["lost"].as_array().into_iter().flatten() {
        let (from, to) = (&lost["bytes"][0], &lost["bytes"][1]);
        let records = match (&lost["records"], &lost["num_records"]) {
            (Value::Array(records), _) => format!("records {}..{}", records[0], records[1]),
            (_, Value::Number(count)) => format!("{count} records"),
            _ => "an unknown number of records".to_string(),
        };
        let reason = lost["reason"].as_str().unwrap_or_default();
        writeln!(output, "lost     {records}, bytes {from}..{to}: {reason}")?;
    }
    if global.verbose > 0 {
        for place in found["harmless"].as_array().into_iter().flatten() {
            let (from, to) = (&place["bytes"][0], &place["bytes"][1]);
            let reason = place["reason"].as_str().unwrap_or_default();
            writeln!(output, "damaged  bytes {from}..{to}, no record: {reason}")?;
        }
    }
    if global.quiet {
        return Ok(());
    }
    let total = found["total_records"]
        .as_u64()
        .map_or(String::new(), |total| format!(" of {total}"));
    let (path, new) = (text("path"), text("output"));
    let to = match (args.dry_run, found["written"] == true) {
        (true, _) => format!("would be saved to {new}"),
        (false, true) => format!("saved to {new}"),
        (false, false) => "could be saved, nothing was written".to_string(),
    };
    let repaired = found["repaired"].as_u64().unwrap_or(0);
    let repaired = if repaired > 0 {
        format!(", {repaired} of them repaired")
    } else {
        String::new()
    };
    writeln!(
        output,
        "salvaged {path}: {}{total} records {to}{repaired}",
        found["records"]
    )?;
    Ok(())
}

/// A source that shows how far it was read.
#[derive(Debug)]
struct Counted<'a> {
    source: &'a dyn ReadAt,
    meter: &'a Meter,
}

impl ReadAt for Counted<'_> {
    fn name(&self) -> &str {
        self.source.name()
    }
    fn len(&self) -> u64 {
        self.source.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> prep_formats::Result<()> {
        self.source.read_at(offset, buffer)?;
        self.meter.set(offset + buffer.len() as u64);
        Ok(())
    }
}
