//! What `build` and `convert` have in common: the flags of a job, and running it in sight of the user.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::build::OnError;
use crate::cli::output::{Hinted, Usage};
use crate::cli::progress::{Display, stage_json};
use crate::cli::{Global, stop};
use crate::error::Cancelled;
use crate::monitor::Monitor;
use crate::resources::{self, parse_size, show_size};

/// Least memory budget: buffers of one worker, and a few of the largest examples of the built-in datasets.
const LEAST_MEMORY: u64 = 16 << 20;

/// The flags of every job.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Job")]
pub(crate) struct JobArgs {
    /// Worker threads; default: one per core.
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<usize>,
    /// Memory budget, as in 512M or 4GiB; default: a quarter of what the machine or its cgroup allows.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Folder for what does not fit into memory; default: inside the staging folder, beside the output.
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
    /// What to do with a damaged record: `fail`, `skip` or `skip:MAX`.
    #[arg(long, value_name = "POLICY", default_value = "fail")]
    pub(crate) on_error: String,
    /// Replaces something different in the output's place; the old stays readable until the new is in.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Shows what would be done, and does nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Writes a JSON report of the run to this file, also when it fails.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The flags of a job, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobSettings {
    pub(crate) workers: usize,
    pub(crate) memory_bytes: u64,
    /// `None`: inside the staging folder.
    pub(crate) spill_folder: Option<PathBuf>,
    pub(crate) on_error: OnError,
    pub(crate) overwrite: bool,
    pub(crate) dry_run: bool,
}

impl JobArgs {
    /// Checks the flags.
    ///
    /// # Errors
    /// [`Usage`] for a value that cannot be; a plain error for a spill folder that is not there or not writable.
    pub(crate) fn settings(&self) -> Result<JobSettings> {
        let usage = |text: String| anyhow::Error::new(Usage(text));
        let memory = self.memory.as_deref().map(parse_size).transpose();
        let memory = memory.map_err(|reason| usage(format!("`--memory`: {reason}")))?;
        if memory.is_some_and(|bytes| bytes < LEAST_MEMORY) {
            return Err(usage(format!(
                "`--memory {}` is too small: a job takes at least {}",
                self.memory.as_deref().unwrap_or_default(),
                show_size(LEAST_MEMORY)
            )));
        }
        let on_error =
            OnError::parse(&self.on_error).map_err(|reason| usage(format!("`--on-error`: {reason}")))?;
        if self.workers.is_some_and(|workers| !(1..=1024).contains(&workers)) {
            return Err(usage("`--workers` is out of range: 1 to 1024".to_owned()));
        }
        if let Some(folder) = &self.spill_dir {
            check_spill_folder(folder)?;
        }
        Ok(JobSettings {
            workers: self.workers.unwrap_or_else(resources::default_workers),
            memory_bytes: memory.unwrap_or_else(resources::default_memory),
            spill_folder: self.spill_dir.clone(),
            on_error,
            overwrite: self.overwrite,
            dry_run: self.dry_run,
        })
    }
}

/// Says of a spill folder that cannot be used why, before any work is done.
fn check_spill_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let hint = "give `--spill-dir` a folder that is there and can be written to";
    let metadata = std::fs::metadata(folder)
        .with_context(|| Hinted::new(format!("could not use the spill folder {shown}"), hint))?;
    if !metadata.is_dir() {
        let message = format!("could not use the spill folder {shown}: it is not a folder");
        return Err(Hinted::new(message, hint).into());
    }
    // Asking for permission is not enough: root always has it, and a file system may be read-only.
    let probe = folder.join(format!(".prep-probe-{}", std::process::id()));
    std::fs::File::create_new(&probe)
        .and_then(|_| std::fs::remove_file(&probe))
        .with_context(|| Hinted::new(format!("could not write to the spill folder {shown}"), hint))
}

/// A job in words: could not `verb` `what`; stopped `doing` `what`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Action<'a> {
    /// `build`.
    pub(crate) verb: &'a str,
    /// `building`.
    pub(crate) doing: &'a str,
    /// The dataset's name, or the output.
    pub(crate) what: &'a str,
}

/// Runs a job: stops it on signals, shows how far it is, writes its report. `describe` gives a result as JSON, for the report
/// and the last line of `--json`.
///
/// # Errors
/// The job's, in the words of the command line; a report that cannot be written, where the job itself went well.
pub(crate) fn run_job<T>(
    action: Action<'_>,
    args: &JobArgs,
    global: &Global,
    monitor: &Arc<Monitor>,
    describe: impl Fn(&T) -> Value,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if let Some(path) = &args.report {
        check_report(path)?;
    }
    stop::on_signals(&monitor.switch())?;
    let result = {
        let _display = Display::start(monitor, args.json, global);
        work()
    };
    let mut reported = Ok(());
    if let Some(path) = &args.report {
        let report = match &result {
            Ok(outcome) => describe(outcome),
            Err(error) => json!({"status": "failed", "error": format!("{error:#}")}),
        };
        reported = write_report(path, &with_stages(report, monitor));
    }
    // What became of the job matters more than its report.
    let outcome = result.map_err(|error| explain(error, action))?;
    reported?;
    if args.json {
        let mut line = with_stages(describe(&outcome), monitor);
        line["event"] = "done".into();
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(outcome)
}

/// Refuses a report that could not be written, before any work is done.
fn check_report(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let shown = path.display();
    if path.is_dir() {
        anyhow::bail!("could not write the report {shown}: it is a folder");
    }
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        anyhow::bail!(
            "could not write the report {shown}: there is no folder {}",
            folder.display()
        );
    }
    Ok(())
}

fn write_report(path: &Path, report: &Value) -> Result<()> {
    std::fs::write(path, format!("{report:#}\n"))
        .with_context(|| format!("could not write the report {}", path.display()))
}

fn with_stages(mut report: Value, monitor: &Monitor) -> Value {
    report["stages"] = monitor.stages().iter().map(stage_json).collect();
    report
}

fn explain(error: anyhow::Error, action: Action<'_>) -> anyhow::Error {
    let Action { verb, doing, what } = action;
    if crate::error::find::<Cancelled>(&error).is_some() {
        return Hinted::new(
            format!("stopped {doing} `{what}`, as asked"),
            format!("the same command goes on from here: {}", stop::command_line()),
        )
        .into();
    }
    error.context(format!("could not {verb} `{what}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        job: JobArgs,
    }

    fn settings(words: &[&str]) -> Result<JobSettings> {
        let words = std::iter::once("job").chain(words.iter().copied());
        Command::try_parse_from(words).unwrap().job.settings()
    }

    #[test]
    fn wrong_usage_is_told_as_such() {
        for words in [
            ["--memory", "lots"],
            ["--memory", "1"],
            ["--memory", "16777215"],
            ["--on-error", "ignore"],
            ["--workers", "0"],
        ] {
            let error = settings(&words).unwrap_err();
            assert!(error.is::<Usage>(), "{words:?}: {error}");
            assert!(error.to_string().contains(words[0]), "{error}");
        }
    }

    #[test]
    fn flags_reach_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let spill = folder.path().to_str().unwrap();
        let settings = settings(&[
            "--memory",
            "64M",
            "--on-error",
            "skip:3",
            "--spill-dir",
            spill,
            "--overwrite",
        ])
        .unwrap();
        assert_eq!(settings.memory_bytes, 64 << 20);
        assert_eq!(settings.on_error, OnError::Skip(Some(3)));
        assert_eq!(settings.spill_folder.as_deref(), Some(folder.path()));
        assert!(settings.overwrite && !settings.dry_run);
    }

    #[test]
    fn a_spill_folder_has_to_be_a_folder_that_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for (path, reason) in [
            (folder.path().join("absent"), "No such file"),
            (file, "it is not a folder"),
            (PathBuf::from("/proc"), "could not write"),
        ] {
            let error = settings(&["--spill-dir", path.to_str().unwrap()]).unwrap_err();
            assert!(format!("{error:#}").contains(reason), "{error:#}");
            assert!(crate::error::find::<Hinted>(&error).is_some(), "{error:#}");
        }
    }
}
