//! What `build` and `convert` have in common: the flags of a job, and running it in sight of the user.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use prep_dataflow::trace::Trace;
use prep_formats::store::{AtomicFile, Existing};
use serde_json::{Value, json};

use crate::build::OnError;
use crate::cli::output::{Hinted, JobFailed, Usage, say, without_passwords};
use crate::cli::progress::{Display, show_count};
use crate::cli::{Global, stop};
use crate::convert::canonical;
use crate::error::Cancelled;
use crate::explain::Graph;
use crate::monitor::{Facts, Monitor, report_json};
use crate::place::ours;
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
    /// Draws the job graph with estimated sizes, as text or for Graphviz (`--explain=dot`), and does nothing.
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    pub(crate) explain: Option<Explain>,
    /// Writes what ran when to this file, for Perfetto or `chrome://tracing`.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Writes a JSON report of the run to this file, also when it fails.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// Which process of a cluster this is.
    #[arg(skip)]
    pub(crate) process: usize,
}

/// How a job graph is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Explain {
    /// Lines of text.
    Text,
    /// The language of Graphviz.
    Dot,
}

impl Explain {
    pub(crate) fn draw(self, graph: &Graph) -> String {
        match self {
            Self::Text => graph.text(),
            Self::Dot => graph.dot(),
        }
    }
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
    /// Also true to explain.
    pub(crate) dry_run: bool,
    pub(crate) explain: bool,
}

impl JobArgs {
    /// The flags as a process takes them that is not the first of its cluster: the reports and the output are the first's.
    /// Each has a trace of its own, with its number after the name.
    pub(crate) fn of_a_follower(&self, process: usize) -> Self {
        let trace = self.trace.as_ref().map(|path| {
            let mut path = path.clone().into_os_string();
            path.push(format!(".{process}"));
            PathBuf::from(path)
        });
        Self {
            process,
            explain: None,
            trace,
            report: None,
            json: false,
            ..self.clone()
        }
    }

    /// Those that have to be the same for all processes of a cluster.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let flags = [
            ("--workers", self.workers.map(|workers| workers.to_string())),
            ("--on-error", Some(self.on_error.clone())),
            ("--overwrite", self.overwrite.then(String::new)),
            ("--dry-run", self.dry_run.then(String::new)),
            ("--explain", self.explain.map(|_| String::new())),
        ];
        let shown = |(flag, value): (&str, Option<String>)| {
            value.map(|value| format!("{flag} {value}").trim_end().to_owned())
        };
        flags.into_iter().filter_map(shown).collect()
    }

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
            dry_run: self.dry_run || self.explain.is_some(),
            explain: self.explain.is_some(),
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

/// Runs a job: stops it on signals, shows how far it is, traces it, writes its report, says how it went. `describe` gives a
/// result as JSON, for the report and the last line of `--json`.
///
/// # Errors
/// The job's, in the words of the command line; a report or a trace that cannot be written, where the job itself went well.
pub(crate) fn run_job<T>(
    action: Action<'_>,
    args: &JobArgs,
    global: &Global,
    monitor: &Arc<Monitor>,
    describe: impl Fn(&T) -> Value,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    for (what, path) in [("report", &args.report), ("trace", &args.trace)] {
        if let Some(path) = path {
            check_place(what, path)?;
        }
    }
    // Pipes and devices may take both.
    if let (Some(report), Some(trace)) = (&args.report, &args.trace)
        && report == trace
        && !std::fs::metadata(report).is_ok_and(|there| !there.is_file())
    {
        let text = format!("`--report` and `--trace` both name {}", report.display());
        return Err(Usage(text).into());
    }
    if let Some(path) = &args.trace {
        let trace = Trace::create(path, args.process)
            .with_context(|| format!("could not write the trace {}", path.display()))?;
        monitor.set_trace(trace);
    }
    stop::on_signals(&monitor.switch())?;
    let deadline = {
        let (monitor, path, stopped) = (Arc::clone(monitor), args.report.clone(), Stopped::new(action));
        let in_vain = format!("could not {} `{}`: ", action.verb, action.what);
        stop::Deadline::start(Arc::clone(&monitor), move || {
            let _ = monitor.trace().map(Trace::finish);
            let (status, message) = match monitor.cause() {
                Some(cause) => ("failed", format!("{in_vain}{cause}")),
                None => ("stopped", stopped.message),
            };
            if let Some(path) = path {
                let _ = write_report(&path, &failure(status, &stopped.what, &message, &monitor));
            }
            let text = "ended without waiting for what the system does not let go of";
            say(format_args!("error: {message}; {text}\nhint: {}", stopped.hint));
        })
    };
    let result = {
        let _display = Display::start(monitor, args.json, global);
        let _span = monitor.span("job", format!("{} {}", action.verb, action.what));
        work()
    };
    drop(deadline);
    let mut noted = Ok(());
    if let (Some(trace), Some(path)) = (monitor.trace(), &args.trace) {
        noted = trace
            .finish()
            .with_context(|| format!("could not write the trace {}", path.display()));
    }
    if let Some(path) = &args.report {
        let report = match &result {
            Ok(outcome) => with_facts(describe(outcome), monitor),
            Err(error) => {
                let cancelled = crate::error::find::<Cancelled>(error).is_some();
                let status = if cancelled { "stopped" } else { "failed" };
                failure(status, action.what, &format!("{error:#}"), monitor)
            }
        };
        noted = write_report(path, &report).and(noted);
    }
    // What became of the job matters more than its report.
    let outcome = result.map_err(|error| explain(error, action))?;
    noted?;
    if args.json {
        let mut line = with_facts(describe(&outcome), monitor);
        line["event"] = "done".into();
        writeln!(io::stdout(), "{}", without_passwords(&line.to_string()))?;
    } else if !global.quiet {
        for line in summary_lines(&monitor.overview().facts) {
            say(line);
        }
    }
    Ok(outcome)
}

/// What is said of a job that was stopped.
struct Stopped {
    what: String,
    message: String,
    hint: String,
}

impl Stopped {
    fn new(action: Action<'_>) -> Self {
        let Action { doing, what, .. } = action;
        Self {
            what: what.to_owned(),
            message: format!("stopped {doing} `{what}`, as asked"),
            hint: format!("the same command goes on from here: {}", stop::command_line()),
        }
    }
}

/// How a job went, in a few lines for people; none where it did nothing.
fn summary_lines(facts: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    let total = facts.shards_written + facts.shards_found;
    if facts.shards_found > 0 || facts.sources_found > 0 {
        let mut found = format!(
            "skipped {} of {} finished shards",
            show_count(facts.shards_found),
            show_count(total)
        );
        if facts.shards_found == 0 {
            found = format!("{} sources were there already", show_count(facts.sources_found));
        } else if facts.sources_found > 0 {
            found += &format!(" and {} fetched sources", show_count(facts.sources_found));
        }
        lines.push(format!("from an earlier run: {found}"));
    }
    if facts.shards_taken_over > 0 {
        lines.push(format!(
            "took over {} shards with {} records from an earlier version",
            show_count(facts.shards_taken_over),
            show_count(facts.records_taken_over)
        ));
    }
    if facts.shards_written > 0 {
        let mut line = format!(
            "wrote {} of records as {} in {} shards",
            show_size(facts.payload_bytes),
            show_size(facts.file_bytes),
            show_count(facts.shards_written)
        );
        if facts.file_bytes > 0 {
            let ratio = facts.payload_bytes as f64 / facts.file_bytes as f64;
            line += &format!(", compression ratio {ratio:.2}");
        }
        if let Some(shard) = &facts.slowest_shard {
            line += &format!("; slowest: {} in {:.1} s", shard.path, shard.seconds);
        }
        lines.push(line);
    }
    if total > 0 {
        let mut line = format!("peak memory {}", show_size(facts.peak_resident_bytes));
        if facts.peak_held_bytes > 0 {
            line += &format!(
                ", {} of it held by the job graph",
                show_size(facts.peak_held_bytes)
            );
        }
        if facts.spilled_bytes > 0 {
            line += &format!("; spilled {}", show_size(facts.spilled_bytes));
        }
        if facts.retries > 0 {
            line += &format!("; {} retries", show_count(facts.retries));
        }
        lines.push(line);
    }
    const MOST_SKIPPED: usize = 5;
    let skipped = facts
        .skipped_by
        .iter()
        .flat_map(|(split, inputs)| inputs.iter().map(move |(input, count)| (split, input, count)));
    for (split, input, count) in skipped.clone().take(MOST_SKIPPED) {
        lines.push(format!(
            "left out {} damaged records of {input}, split `{split}`",
            show_count(*count)
        ));
    }
    let more = skipped.count().saturating_sub(MOST_SKIPPED);
    if more > 0 {
        lines.push(format!("and more of {more} other inputs; `--report` lists them"));
    }
    lines
}

/// Refuses a report or a trace that could not be written, before any work is done.
fn check_place(what: &str, path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let shown = path.display();
    if path.is_dir() {
        anyhow::bail!("could not write the {what} {shown}: it is a folder");
    }
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        anyhow::bail!(
            "could not write the {what} {shown}: there is no folder {}",
            folder.display()
        );
    }
    if let Some(output) = ours::output_around(path) {
        return Err(Usage(format!(
            "`--{what} {shown}` is inside of the output {}, which has nothing but what was asked for: give another place",
            output.display()
        ))
        .into());
    }
    // Nothing but an old report or trace is written over: an input, for instance, would be lost.
    if !path.exists() {
        // Asking for permission is not enough: root always has it, and a file system may be read-only.
        std::fs::File::create_new(path)
            .and_then(|_| std::fs::remove_file(path))
            .with_context(|| format!("could not write the {what} {shown}"))?;
    } else if path.is_file() {
        let file = std::fs::File::open(path).with_context(|| format!("could not open {shown}"))?;
        let length = file
            .metadata()
            .with_context(|| format!("could not read {shown}"))?
            .len();
        let file = io::BufReader::new(file);
        let is_an_old_one = || match what {
            "trace" => serde_json::from_reader::<_, Vec<OldEvent>>(file).is_ok(),
            _ => serde_json::from_reader::<_, OldReport>(file).is_ok(),
        };
        if length > 0 && !is_an_old_one() {
            return Err(Hinted::new(
                format!(
                    "could not write the {what} {shown}: another file is there, which is no {what} of prep"
                ),
                format!("give another name, or remove {shown}"),
            )
            .into());
        }
    }
    Ok(())
}

/// What all reports have. Reading one takes no memory, and ends with the first thing that fits none.
#[derive(serde::Deserialize)]
struct OldReport {
    #[serde(rename = "stages")]
    _stages: Vec<serde::de::IgnoredAny>,
    #[serde(rename = "retries")]
    _retries: u64,
    #[serde(rename = "skipped_by")]
    _skipped_by: Vec<serde::de::IgnoredAny>,
}

/// What all events of a trace have.
#[derive(serde::Deserialize)]
struct OldEvent {
    #[serde(rename = "ph")]
    _phase: serde::de::IgnoredAny,
    #[serde(rename = "pid")]
    _process: serde::de::IgnoredAny,
}

/// Refuses a report or a trace inside of a folder that holds what the job was asked for, and nothing else.
///
/// # Errors
/// [`Usage`], naming both.
pub(crate) fn refuse_inside(args: &JobArgs, output: &Path) -> Result<()> {
    let output = canonical(output);
    for (flag, path) in [("--report", &args.report), ("--trace", &args.trace)] {
        if let Some(path) = path.as_ref().filter(|path| canonical(path).starts_with(&output)) {
            return Err(Usage(format!(
                "`{flag} {}` is inside of the output, which holds nothing but what was asked for",
                path.display()
            ))
            .into());
        }
    }
    Ok(())
}

/// Writes the report so that it is there whole or not at all.
fn write_report(path: &Path, report: &Value) -> Result<()> {
    let text = without_passwords(&format!("{report:#}\n"));
    let shown = path.display();
    // Pipes and devices take what they get.
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return std::fs::write(path, text).with_context(|| format!("could not write the report {shown}"));
    }
    let mut staging = path.as_os_str().to_owned();
    staging.push(format!(".{}.tmp", std::process::id()));
    AtomicFile::create(PathBuf::from(staging))
        .and_then(|mut file| {
            file.write_all(text.as_bytes())
                .map_err(prep_formats::Error::io(path, "write"))?;
            file.commit(path, Existing::Replace)
        })
        .with_context(|| format!("could not write the report {shown}"))
}

/// The report of a job that did not end well.
fn failure(status: &str, what: &str, error: &str, monitor: &Monitor) -> Value {
    with_facts(json!({"status": status, "name": what, "error": error}), monitor)
}

/// Adds what the monitor knows; what the outcome says itself stays.
fn with_facts(mut report: Value, monitor: &Monitor) -> Value {
    if let (Some(report), Value::Object(facts)) = (report.as_object_mut(), report_json(&monitor.overview())) {
        for (key, value) in facts {
            report.entry(key).or_insert(value);
        }
    }
    report
}

fn explain(error: anyhow::Error, action: Action<'_>) -> anyhow::Error {
    let Action { verb, what, .. } = action;
    if crate::error::find::<Usage>(&error).is_some() {
        return error;
    }
    if crate::error::find::<Cancelled>(&error).is_some() {
        let stopped = Stopped::new(action);
        return Hinted::new(stopped.message, stopped.hint).into();
    }
    error.context(JobFailed(format!("could not {verb} `{what}`")))
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
    fn the_summary_says_what_was_skipped_and_what_was_written() {
        assert!(summary_lines(&Facts::default()).is_empty());
        let mut facts = Facts {
            shards_written: 212,
            shards_found: 812,
            payload_bytes: 3 << 20,
            file_bytes: 1 << 20,
            retries: 2,
            ..Facts::default()
        };
        let inputs = (0..7).map(|index| (format!("{index}.tfrecord"), 1)).collect();
        facts.skipped_by.insert("train".to_owned(), inputs);
        let lines = summary_lines(&facts);
        assert_eq!(
            lines[0],
            "from an earlier run: skipped 812 of 1,024 finished shards"
        );
        assert!(lines[1].contains("3.0 MiB of records as 1.0 MiB in 212 shards, compression ratio 3.00"));
        assert!(lines[2].ends_with("; 2 retries"));
        assert_eq!(
            lines[3],
            "left out 1 damaged records of 0.tfrecord, split `train`"
        );
        assert_eq!(
            lines.last().unwrap(),
            "and more of 2 other inputs; `--report` lists them"
        );
    }

    #[test]
    fn a_report_takes_the_place_of_an_old_one_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let monitor = Monitor::new();
        for status in ["one", "two"] {
            write_report(&path, &failure(status, "a", "why", &monitor)).unwrap();
            let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(
                (&report["status"], &report["retries"]),
                (&status.into(), &0.into())
            );
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        write_report(Path::new("/dev/null"), &Value::Null).unwrap();
    }

    #[test]
    fn nothing_but_an_old_report_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("input"), b"\x10\0\0\0").unwrap();
        let report = failure("failed", "a", "why", &Monitor::new());
        std::fs::write(at("old"), report.to_string()).unwrap();
        std::fs::write(at("row"), "{\"text\": \"a\", \"stages\": []}\n").unwrap();
        std::fs::write(at("rows"), "[{\"ph\": 7}]\n").unwrap();
        let error = check_place("trace", &at("rows")).unwrap_err();
        assert!(error.to_string().contains("is no trace of prep"), "{error:#}");
        std::fs::write(at("empty"), "").unwrap();
        for name in ["old", "empty", "new"] {
            check_place("report", &at(name)).unwrap();
        }
        assert!(!at("new").exists());
        check_place("report", Path::new("/dev/null")).unwrap();
        for (path, reason) in [
            (at("input"), "is no report of prep"),
            (at("row"), "is no report of prep"),
            (at("rows"), "is no report of prep"),
            (at("absent/report"), "there is no folder"),
            (folder.path().to_owned(), "it is a folder"),
            (PathBuf::from("/proc/report"), "could not write the report"),
        ] {
            let error = check_place("report", &path).unwrap_err();
            assert!(error.to_string().contains(reason), "{error:#}");
        }
        let args = JobArgs {
            report: Some(at("out/../out/report")),
            ..JobArgs::default()
        };
        assert!(refuse_inside(&args, &at("out")).unwrap_err().is::<Usage>());
        refuse_inside(&args, &at("other")).unwrap();
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
        assert!(settings.overwrite && !settings.dry_run && !settings.explain);
    }

    #[test]
    fn explaining_is_a_dry_run() {
        for (flag, format) in [("--explain", Explain::Text), ("--explain=dot", Explain::Dot)] {
            let job = Command::try_parse_from(["job", flag]).unwrap().job;
            assert_eq!(job.explain, Some(format));
            assert!(job.settings().unwrap().dry_run);
        }
        assert!(Command::try_parse_from(["job", "--explain=png"]).is_err());
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
