//! `prep build`.

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::build::{BuildOutcome, BuildRequest, OnError, Status};
use crate::cli::output::{Hinted, Usage};
use crate::cli::progress::{Display, stage_json};
use crate::cli::{Global, Outcome, stop};
use crate::describe;
use crate::error::Cancelled;
use crate::monitor::Monitor;
use crate::readers::RecipeBuilder;
use crate::recipe;
use crate::resources::{parse_size, show_size};

/// Least memory budget: buffers of one worker, and a few of the largest examples of the built-in datasets.
const LEAST_MEMORY: u64 = 16 << 20;

/// Builds a dataset into ArrayRecord shards and registers it in the catalog.
///
/// The sources are fetched from the recipe's addresses, or taken from where `--from` says; checked; read without unpacking
/// them; and written as shards in the order of TFDS. A build that was stopped or killed goes on when the same command is given
/// again. Asking for what is there already says "up to date" and writes nothing.
///
/// Example: prep build cifar10 --from ~/Downloads
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// A built-in dataset (cifar10, cifar100, fashion_mnist, kmnist, mnist), or a recipe file.
    #[arg(value_name = "NAME|RECIPE.toml")]
    recipe: String,
    /// A file, folder or URL that holds the sources, in place of the recipe addresses; may be repeated.
    #[arg(long, value_name = "PATH|URL")]
    from: Vec<String>,
    /// Where datasets lie; default: `data` in the catalog.
    #[arg(long, value_name = "URL")]
    data_dir: Option<String>,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG")]
    catalog: Option<String>,
    /// Worker threads; default: one per core.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Memory budget, as in 512M or 4GiB; default: a quarter of what the machine or its cgroup allows.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Shards of each split; default: the recipe decides.
    #[arg(long, value_name = "N")]
    shards: Option<u64>,
    /// What to do with a damaged record: `fail`, `skip` or `skip:MAX`.
    #[arg(long, value_name = "POLICY", default_value = "fail")]
    on_error: String,
    /// Replaces a different build of the same version; the old one stays readable until the new one is in.
    #[arg(long)]
    overwrite: bool,
    /// Takes sources whose size or SHA-256 is not the recipe's.
    #[arg(long)]
    no_checksum: bool,
    /// Shows what would be done, and does nothing.
    #[arg(long)]
    dry_run: bool,
    /// Writes a JSON report of the run to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<std::path::PathBuf>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Build, global: &Global) -> Result<Outcome> {
    let request = request(args)?;
    let monitor = Arc::clone(&request.monitor);
    let name = request.builder.spec().name.clone();
    if let Some(path) = &args.report {
        check_report(path)?;
    }
    stop::on_signals(&monitor.switch())?;
    let result = {
        let _display = Display::start(&monitor, args.json, global);
        crate::build(request)
    };
    let mut reported = Ok(());
    if let Some(path) = &args.report {
        let report = match &result {
            Ok(outcome) => describe::outcome(outcome),
            Err(error) => json!({"status": "failed", "name": name, "error": format!("{error:#}")}),
        };
        let report = with_stages(report, &monitor);
        let text = format!("{report:#}\n");
        reported = std::fs::write(path, text)
            .with_context(|| format!("could not write the report {}", path.display()));
    }
    // What became of the build matters more than its report.
    let outcome = result.map_err(|error| explain(error, &name))?;
    reported?;
    if args.json {
        let mut line = with_stages(describe::outcome(&outcome), &monitor);
        line["event"] = "done".into();
        writeln!(io::stdout(), "{line}")?;
    } else if !global.quiet {
        writeln!(io::stdout(), "{}", summary(&outcome))?;
    }
    Ok(if outcome.skipped > 0 && outcome.status == Status::Built {
        Outcome::Skipped
    } else {
        Outcome::Done
    })
}

/// Refuses a report that could not be written, before any work is done.
fn check_report(path: &std::path::Path) -> Result<()> {
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

/// The request that the flags make.
fn request(args: &Build) -> Result<BuildRequest> {
    let usage = |text: String| anyhow::Error::new(Usage(text));
    let memory = args.memory.as_deref().map(parse_size).transpose();
    let memory = memory.map_err(|reason| usage(format!("`--memory`: {reason}")))?;
    if memory.is_some_and(|bytes| bytes < LEAST_MEMORY) {
        return Err(usage(format!(
            "`--memory {}` is too small: a build takes at least {}",
            args.memory.as_deref().unwrap_or_default(),
            show_size(LEAST_MEMORY)
        )));
    }
    let on_error =
        OnError::parse(&args.on_error).map_err(|reason| usage(format!("`--on-error`: {reason}")))?;
    if args.workers.is_some_and(|workers| !(1..=1024).contains(&workers)) {
        return Err(usage("`--workers` is out of range: 1 to 1024".to_owned()));
    }
    if args.shards.is_some_and(|shards| !(1..=100_000).contains(&shards)) {
        return Err(usage("`--shards` is out of range: 1 to 100000".to_owned()));
    }
    let mut request = BuildRequest::new(Arc::new(RecipeBuilder::new(recipe::find(&args.recipe)?)))
        .from(args.from.clone())
        .on_error(on_error)
        .overwrite(args.overwrite)
        .check_sums(!args.no_checksum)
        .dry_run(args.dry_run);
    request.catalog = args.catalog.clone();
    request.data_dir = args.data_dir.clone();
    request.shards = args.shards;
    request.workers = args.workers.unwrap_or(request.workers);
    request.memory_bytes = memory.unwrap_or(request.memory_bytes);
    Ok(request)
}

fn explain(error: anyhow::Error, name: &str) -> anyhow::Error {
    if crate::error::find::<Cancelled>(&error).is_some() {
        return Hinted::new(
            format!("stopped building `{name}`, as asked"),
            format!("the same command goes on from here: {}", stop::command_line()),
        )
        .into();
    }
    error.context(format!("could not build `{name}`"))
}

fn with_stages(mut report: serde_json::Value, monitor: &Monitor) -> serde_json::Value {
    report["stages"] = monitor.stages().iter().map(stage_json).collect();
    report
}

/// `cifar10:3.0.2: train 50000, test 10000 examples in 2 shards, 131.0 MiB, at /data/cifar10/3.0.2`.
fn summary(outcome: &BuildOutcome) -> String {
    let config = outcome
        .config
        .as_ref()
        .map_or(String::new(), |config| format!("/{config}"));
    let name = format!("{}{config}:{}", outcome.name, outcome.version);
    match outcome.status {
        Status::UpToDate => return format!("{name} is up to date at {}", outcome.path),
        Status::Planned => {
            return format!(
                "{name} would be built at {}\n{}",
                outcome.path,
                outcome.plan.join("\n")
            );
        }
        Status::Built => {}
    }
    let counts: Vec<String> = outcome
        .splits
        .iter()
        .map(|split| format!("{} {}", split.name, split.examples))
        .collect();
    let shards: u64 = outcome.splits.iter().map(|split| split.shards).sum();
    let bytes: u64 = outcome.splits.iter().map(|split| split.bytes).sum();
    let skipped = match outcome.skipped {
        0 => String::new(),
        count => format!(", {count} damaged records left out"),
    };
    format!(
        "{name}: {} examples in {shards} shards, {}{skipped}, in {:.1} s, at {}",
        counts.join(", "),
        show_size(bytes),
        outcome.seconds,
        outcome.path
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        build: Build,
    }

    fn parse(words: &[&str]) -> Result<BuildRequest> {
        let words = std::iter::once("build").chain(words.iter().copied());
        request(&Command::try_parse_from(words).unwrap().build)
    }

    #[test]
    fn wrong_usage_is_told_as_such() {
        for words in [
            ["cifar10", "--memory", "lots"],
            ["cifar10", "--memory", "1"],
            ["cifar10", "--memory", "16777215"],
            ["cifar10", "--on-error", "ignore"],
            ["cifar10", "--workers", "0"],
            ["cifar10", "--shards", "0"],
        ] {
            let error = parse(&words).unwrap_err();
            assert!(error.is::<Usage>(), "{words:?}: {error}");
            assert!(error.to_string().contains(words[1]), "{error}");
        }
    }

    #[test]
    fn flags_reach_the_request() {
        let request = parse(&[
            "mnist",
            "--memory",
            "64M",
            "--shards",
            "2",
            "--on-error",
            "skip:3",
            "--no-checksum",
        ])
        .unwrap();
        assert_eq!((request.memory_bytes, request.shards), (64 << 20, Some(2)));
        assert_eq!(request.on_error, OnError::Skip(Some(3)));
        assert!(!request.check_sums);
    }

    #[test]
    fn an_unknown_dataset_brings_near_names() {
        let error = parse(&["cifar01"]).unwrap_err();
        assert!(!error.is::<Usage>());
        let hint = &error.downcast_ref::<Hinted>().unwrap().hint;
        assert!(hint.contains("`cifar10`"), "{hint}");
        assert!(
            parse(&["no/such.toml"])
                .unwrap_err()
                .to_string()
                .contains("no/such.toml")
        );
    }
}
