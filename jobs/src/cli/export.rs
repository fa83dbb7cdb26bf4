//! `prep export`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::job_args::{Action, JobArgs, refuse_inside, run_job};
use crate::cli::output::Usage;
use crate::cli::progress::show_count;
use crate::cli::{Global, Outcome};
use crate::export::{ExportOutcome, ExportRequest, ExportStatus, FileFormat, Form};
use crate::resources::show_size;

/// Exports a dataset version: to a TFDS folder, or to Parquet files.
///
/// `--tfds` makes OUTPUT/NAME[/CONFIG]/VERSION, which `tfds.load(NAME, data_dir=OUTPUT)` and `tfds.builder_from_directory` of that folder read. Shards
/// stay as they are and are linked, or copied to another file system. `--parquet` makes OUTPUT/data/SPLIT-00000-of-0000N.parquet, which
/// `datasets.load_dataset(OUTPUT)` reads with classes and pictures, and pandas file by file. An export appears as a whole; one that was stopped or killed
/// goes on when the same command is given again.
///
/// Example: prep export cifar10 tfds --tfds
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// `name`, `name/config`, `name:version` or `name@tag`.
    name: String,
    /// Folder to make; for `--tfds` the one to make it in. It may be in a store (s3, gs, az).
    output: PathBuf,
    /// Makes a TFDS folder.
    #[arg(long, required_unless_present = "parquet", conflicts_with = "parquet")]
    tfds: bool,
    /// Makes Parquet files.
    #[arg(long)]
    parquet: bool,
    /// Split to export, or a part of one as in `train[:10%]`; may be given several times. Default: all.
    #[arg(long, value_name = "SPLIT")]
    split: Vec<String>,
    /// Files of each split. Default: as many as the dataset has, or for Parquet one for each 500 MiB.
    #[arg(long, value_name = "N")]
    shards: Option<u64>,
    /// Files of a TFDS folder: `array_record` or `tfrecord`. Default: those that the dataset has.
    #[arg(long, value_name = "FORMAT", conflicts_with = "parquet")]
    file_format: Option<String>,
    /// Copies shards that could be linked.
    #[arg(long, conflicts_with = "parquet")]
    copy: bool,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG", value_parser = crate::cli::from_catalog::place)]
    catalog: Option<String>,
    /// Worker threads; default: one per core.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Memory budget, as in 512M or 4GiB; default: a quarter of what the machine or its cgroup allows.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Replaces, as a whole and with whatever was put into it since, the folder that an earlier export made; one that prep has not made is never
    /// replaced.
    #[arg(long)]
    overwrite: bool,
    /// Shows what would be done, and does nothing.
    #[arg(long)]
    dry_run: bool,
    /// Writes what ran when to this file, for Perfetto or `chrome://tracing`.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Writes a JSON report of the run to this file, also when it fails.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Export, global: &Global) -> Result<Outcome> {
    let job = JobArgs {
        workers: args.workers,
        memory: args.memory.clone(),
        on_error: "fail".to_owned(),
        overwrite: args.overwrite,
        dry_run: args.dry_run,
        trace: args.trace.clone(),
        report: args.report.clone(),
        json: args.json,
        ..JobArgs::default()
    };
    let request = request(args, &job)?;
    refuse_inside(&job, &request.output)?;
    let monitor = Arc::clone(&request.monitor);
    let action = Action {
        verb: "export",
        doing: "exporting",
        what: &args.name,
    };
    let outcome = run_job(action, &job, global, &monitor, describe, || {
        crate::export::export(request)
    })?;
    if !args.json && !global.quiet {
        writeln!(io::stdout(), "{}", summary(&outcome))?;
    }
    Ok(Outcome::Done)
}

fn request(args: &Export, job: &JobArgs) -> Result<ExportRequest> {
    let settings = job.settings()?;
    let form = if args.parquet { Form::Parquet } else { Form::Tfds };
    let mut request = ExportRequest::new(&args.name, &args.output, form);
    request.catalog.clone_from(&args.catalog);
    request.splits.clone_from(&args.split);
    request.shards = args.shards;
    let format = args.file_format.as_deref().map(FileFormat::parse).transpose();
    request.file_format = format.map_err(|reason| Usage(format!("`--file-format`: {reason}")))?;
    request.copy = args.copy;
    request.overwrite = settings.overwrite;
    request.dry_run = settings.dry_run;
    request.workers = settings.workers;
    request.memory_bytes = settings.memory_bytes;
    Ok(request)
}

fn describe(outcome: &ExportOutcome) -> Value {
    let splits: Map<String, Value> = outcome
        .splits
        .iter()
        .map(|split| {
            let about = json!({"examples": split.examples, "shards": split.shards, "bytes": split.bytes});
            (split.name.clone(), about)
        })
        .collect();
    json!({
        "status": outcome.status.name(),
        "dataset": outcome.dataset,
        "path": outcome.path,
        "splits": splits,
        "linked": outcome.linked,
        "shards_found": outcome.shards_found,
        "plan": outcome.plan,
        "seconds": outcome.seconds,
    })
}

/// `exported cifar10:3.0.2 to out/cifar10/3.0.2 in 0.1 s: train 300 examples in 1 file, 1.0 MiB; ..`.
fn summary(outcome: &ExportOutcome) -> String {
    let (dataset, path) = (&outcome.dataset, &outcome.path);
    match outcome.status {
        ExportStatus::UpToDate => return format!("{path} is up to date"),
        ExportStatus::Planned => {
            return format!(
                "{dataset} would be exported to {path}:\n{}",
                outcome.plan.join("\n")
            );
        }
        ExportStatus::Exported => {}
    }
    let splits: Vec<String> = outcome
        .splits
        .iter()
        .map(|split| {
            format!(
                "{} {} examples in {} files, {}",
                split.name,
                show_count(split.examples),
                split.shards,
                show_size(split.bytes)
            )
        })
        .collect();
    let linked = match outcome.linked {
        0 => "",
        _ => "; shards are links to those of the dataset",
    };
    format!(
        "exported {dataset} to {path} in {:.1} s: {}{linked}",
        outcome.seconds,
        splits.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        export: Export,
    }

    fn parse(words: &[&str]) -> Result<ExportRequest> {
        let words = ["export", "x", "out"].into_iter().chain(words.iter().copied());
        let args = Command::try_parse_from(words)?.export;
        let job = JobArgs {
            on_error: "fail".to_owned(),
            memory: args.memory.clone(),
            ..JobArgs::default()
        };
        request(&args, &job)
    }

    #[test]
    fn wrong_usage_is_told_as_such() {
        for words in [
            &[][..],
            &["--tfds", "--parquet"],
            &["--parquet", "--copy"],
            &["--parquet", "--file-format", "tfrecord"],
        ] {
            assert!(parse(words).unwrap_err().is::<clap::Error>(), "{words:?}");
        }
        for words in [
            ["--tfds", "--file-format", "riegeli"],
            ["--tfds", "--memory", "1K"],
        ] {
            let error = parse(&words).unwrap_err();
            assert!(
                error.is::<Usage>() && error.to_string().contains(words[1]),
                "{error}"
            );
        }
    }

    #[test]
    fn flags_reach_the_request() {
        let words = [
            "--tfds",
            "--split",
            "a",
            "--split",
            "b[:5]",
            "--shards",
            "3",
            "--file-format",
            "tfrecord",
        ];
        let request = parse(&words).unwrap();
        assert_eq!(
            (request.form, request.file_format),
            (Form::Tfds, Some(FileFormat::TfRecord))
        );
        assert_eq!(request.splits, ["a", "b[:5]"]);
        assert_eq!(
            (request.shards, request.overwrite, request.dry_run),
            (Some(3), false, false)
        );
    }
}
