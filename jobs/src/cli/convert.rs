//! `prep convert`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;

use crate::cli::build::left_out_before;
use crate::cli::job_args::{Action, JobArgs, refuse_inside, run_job};
use crate::cli::output::Usage;
use crate::cli::{Global, Outcome};
use crate::cluster::ClusterArgs;
use crate::convert::{ConvertOutcome, ConvertRequest, ConvertStatus, ConvertWords};
use crate::describe;
use crate::resources::show_size;
use crate::team::Team;

/// Converts TFRecord and ArrayRecord files into a folder of ArrayRecord shards.
///
/// Inputs are files, quoted patterns, folders of record files, a TFDS folder, or URLs (http, s3, gs, az); TFRecord files may be plain, gzip, zlib
/// or zstd, which is told by their content. Records keep their order, checksums are verified, and the output appears as a whole when all of it is
/// written and read back. A conversion that was stopped or killed goes on when the same command is given again.
///
/// Example: prep convert 'data/*.tfrecord' shards --shards 16 --options group_size:1,zstd:3
#[derive(Debug, Args)]
#[command(override_usage = "prep convert [OPTIONS] <INPUT>... <OUTPUT>")]
pub(crate) struct Convert {
    /// What to convert, and at the end the folder to make, which may be in a store (s3, gs, az).
    #[arg(value_name = "INPUT|OUTPUT", num_args = 2.., required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    words: ConvertWords,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    job: JobArgs,
}

pub(crate) fn run(args: &Convert, global: &Global) -> Result<Outcome> {
    let request = request(args)?;
    let monitor = Arc::clone(&request.monitor);
    let output = request.output.display().to_string();
    let action = Action {
        verb: "convert to",
        doing: "converting to",
        what: &output,
    };
    refuse_inside(&args.job, &request.output)?;
    let arguments = arguments(args);
    let process = args.cluster.index()?.unwrap_or(0);
    let job = if process > 0 {
        args.job.of_a_follower(process)
    } else {
        args.job.clone()
    };
    let outcome = run_job(action, &job, global, &monitor, describe::converted, || {
        let mut request = request;
        request.team = Team::of(args.cluster.connect(arguments, &monitor)?);
        request.team.show_to(&monitor);
        crate::convert::convert(request)
    })?;
    if process > 0 {
        // The output is process 0's.
    } else if let (Some(format), Some(graph), false) = (args.job.explain, &outcome.graph, args.job.json) {
        write!(io::stdout(), "{}", format.draw(graph))?;
    } else if !args.job.json && !global.quiet {
        writeln!(io::stdout(), "{}", summary(&outcome))?;
    }
    Ok(Outcome::without(outcome.skipped))
}

/// What all processes of a cluster have to be asked alike: all but who they are, what they may use, and what they tell.
fn arguments(args: &Convert) -> Vec<String> {
    let mut found: Vec<String> = args
        .paths
        .iter()
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    let flags = [
        ("--name", Some(args.words.name.clone())),
        ("--shards", args.words.shards.clone()),
        ("--max-shard-size", args.words.max_shard_size.clone()),
        ("--order", Some(args.words.order.clone())),
        ("--options", args.words.options.clone()),
        ("--filter", args.words.filter.clone()),
        ("--select", args.words.select.clone()),
        ("--rename", args.words.rename.clone()),
        ("--limit", args.words.limit.map(|limit| limit.to_string())),
        ("--dedup", args.words.dedup.clone()),
        ("--catalog", args.words.catalog.clone()),
        ("--on-error", Some(args.job.on_error.clone())),
        ("--overwrite", args.job.overwrite.then(String::new)),
        ("--dry-run", args.job.dry_run.then(String::new)),
        ("--explain", args.job.explain.map(|_| String::new())),
        // Shards are hashed for it by all.
        ("--report", args.job.report.as_ref().map(|_| "FILE".to_owned())),
    ];
    let shown =
        |(flag, value): (&str, Option<String>)| Some(format!("{flag} {}", value?).trim_end().to_owned());
    found.extend(flags.into_iter().filter_map(shown));
    found
}

/// The request that the flags make.
fn request(args: &Convert) -> Result<ConvertRequest> {
    let job = args.job.settings()?;
    let mut inputs = args.paths.clone();
    let output = inputs.pop().unwrap_or_default();
    if inputs.is_empty() {
        return Err(Usage("give at least one input, and the output".to_owned()).into());
    }
    let mut request = args.words.request(inputs, output)?;
    request.hash_shards = args.job.report.is_some();
    request.on_error = job.on_error;
    request.overwrite = job.overwrite;
    request.dry_run = job.dry_run;
    request.explain = job.explain;
    request.workers = job.workers;
    request.memory_bytes = job.memory_bytes;
    request.spill_folder = job.spill_folder;
    Ok(request)
}

/// `1000000 records in 8 shards, 1.0 GiB, in 1.2 s, at shards`.
fn summary(outcome: &ConvertOutcome) -> String {
    let path = &outcome.path;
    match outcome.status {
        ConvertStatus::UpToDate => {
            return format!("{path} is up to date{}", left_out_before(outcome.skipped));
        }
        ConvertStatus::Planned => return format!("{path} would be made:\n{}", outcome.plan.join("\n")),
        ConvertStatus::Converted => {}
    }
    let bytes: u64 = outcome.shards.iter().map(|shard| shard.bytes).sum();
    let mut left_out = String::new();
    for (count, what) in [
        (outcome.filtered, "filtered"),
        (outcome.duplicates, "repeated"),
        (outcome.skipped, "damaged"),
    ] {
        if count > 0 {
            left_out += &format!(", {count} {what} records left out");
        }
    }
    let found = match outcome.shards_found {
        0 => String::new(),
        found => format!(" ({found} of them from an earlier run)"),
    };
    format!(
        "{} records in {} shards{found}, {}{left_out}, in {:.1} s, at {path}",
        outcome.records,
        outcome.shards.len(),
        show_size(bytes),
        outcome.seconds
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    use crate::build::OnError;
    use crate::convert::{Dedup, Order, Shards};

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        convert: Convert,
    }

    fn parse(words: &[&str]) -> Result<ConvertRequest> {
        let words = ["convert", "in", "out"].into_iter().chain(words.iter().copied());
        request(&Command::try_parse_from(words)?.convert)
    }

    #[test]
    fn wrong_usage_is_told_as_such() {
        for words in [
            ["--shards", "0"],
            ["--shards", "some"],
            ["--max-shard-size", "0"],
            ["--order", "random"],
            ["--order", "shuffle:x"],
            ["--order", "key:"],
            ["--options", "zstd:99"],
            ["--filter", "label = 3"],
            ["--select", "a,a"],
            ["--rename", "a"],
            ["--dedup", "fuzzy"],
            ["--on-error", "ignore"],
        ] {
            let error = parse(&words).unwrap_err();
            assert!(error.is::<Usage>(), "{words:?}: {error}");
            assert!(error.to_string().contains(words[0]), "{error}");
        }
        assert!(Command::try_parse_from(["convert", "out"]).is_err());
        assert!(parse(&["--shards", "2", "--max-shard-size", "1M"]).is_err());
    }

    #[test]
    fn flags_reach_the_request() {
        let request = parse(&[
            "more",
            "--shards",
            "same",
            "--order",
            "key:label",
            "--rename",
            "a=b",
            "--limit",
            "5",
            "--dedup",
            "exact:x",
            "--on-error",
            "skip:3",
        ])
        .unwrap();
        assert_eq!(request.inputs, ["in", "out"]);
        assert_eq!(request.output.to_str(), Some("more"));
        assert_eq!((request.shards, request.limit), (Some(Shards::Same), Some(5)));
        assert_eq!(request.order, Order::Key("label".into()));
        assert_eq!(request.dedup, Some(Dedup::Feature("x".into())));
        assert_eq!(request.on_error, OnError::Skip(Some(3)));
    }
}
