//! `prep convert`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::build::left_out_before;
use crate::cli::job_args::{Action, JobArgs, refuse_inside, run_job};
use crate::cli::output::Usage;
use crate::cli::{Global, Outcome};
use crate::cluster::ClusterArgs;
use crate::convert::transform::{parse_rename, parse_select};
use crate::convert::{
    ConvertOutcome, ConvertRequest, ConvertStatus, DEFAULT_NAME, Dedup, Order, Shards, filter,
};
use crate::resources::{parse_size, show_size};
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
    /// What the shards are called: NAME.array_record-00000-of-00008. In a catalog, the name of the dataset.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    name: String,
    /// Number of shards: a number, `same` (one for each input), or `auto` (64 MiB to 1 GiB each, as TFDS).
    ///
    /// Default: `auto`; for a TFDS folder `same`.
    #[arg(long, value_name = "N|auto|same")]
    shards: Option<String>,
    /// As many shards as keep each below this size of its records, on average.
    #[arg(long, value_name = "SIZE", conflicts_with = "shards")]
    max_shard_size: Option<String>,
    /// Order of the records: `source`, `shuffle:SEED`, or `key:FEATURE`.
    #[arg(long, value_name = "ORDER", default_value = "source")]
    order: String,
    /// Options of the shards, as the ArrayRecord writer takes them: `group_size:1,zstd:3`, `uncompressed`.
    #[arg(long, value_name = "STRING")]
    options: Option<String>,
    /// Keeps records for which this holds: "label in (1, 2) and not name == 'cat'".
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Keeps these features only.
    #[arg(long, value_name = "F,..")]
    select: Option<String>,
    /// Renames features.
    #[arg(long, value_name = "OLD=NEW,..")]
    rename: Option<String>,
    /// Writes at most so many records: the first ones of the order.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Leaves out records that came before: `exact` compares whole records, `exact:FEATURE` the values of a feature.
    #[arg(long, value_name = "exact[:FEATURE]")]
    dedup: Option<String>,
    /// Registers the output in this catalog, as dataset NAME.
    #[arg(long, value_name = "URL")]
    catalog: Option<String>,
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
    let outcome = run_job(action, &job, global, &monitor, describe, || {
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
        ("--name", Some(args.name.clone())),
        ("--shards", args.shards.clone()),
        ("--max-shard-size", args.max_shard_size.clone()),
        ("--order", Some(args.order.clone())),
        ("--options", args.options.clone()),
        ("--filter", args.filter.clone()),
        ("--select", args.select.clone()),
        ("--rename", args.rename.clone()),
        ("--limit", args.limit.map(|limit| limit.to_string())),
        ("--dedup", args.dedup.clone()),
        ("--catalog", args.catalog.clone()),
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
    fn usage<T>(flag: &str, result: Result<T, String>) -> Result<T> {
        result.map_err(|reason| Usage(format!("`--{flag}`: {reason}")).into())
    }
    let job = args.job.settings()?;
    let mut inputs = args.paths.clone();
    let output = inputs.pop().unwrap_or_default();
    if inputs.is_empty() {
        return Err(Usage("give at least one input, and the output".to_owned()).into());
    }
    let mut request = ConvertRequest::new(inputs, output);
    request.name.clone_from(&args.name);
    request.shards = match (&args.max_shard_size, &args.shards) {
        (Some(size), _) => {
            let bytes = usage("max-shard-size", parse_size(size))?;
            if bytes == 0 {
                return Err(Usage("`--max-shard-size` is 0".to_owned()).into());
            }
            Some(Shards::MaxBytes(bytes))
        }
        (None, Some(text)) => Some(usage("shards", Shards::parse(text))?),
        (None, None) => None,
    };
    request.order = usage("order", Order::parse(&args.order))?;
    if let Some(text) = &args.options {
        let parsed = prep_formats::array_record::WriteOptions::parse(text);
        usage("options", parsed.map(|_| ()).map_err(|error| error.to_string()))?;
    }
    request.options.clone_from(&args.options);
    if let Some(text) = &args.filter {
        usage(
            "filter",
            filter::parse(text).map(|_| ()).map_err(|fault| fault.show(text)),
        )?;
    }
    request.filter.clone_from(&args.filter);
    request.select = usage("select", args.select.as_deref().map(parse_select).transpose())?;
    request.rename = usage(
        "rename",
        args.rename.as_deref().map_or(Ok(Vec::new()), parse_rename),
    )?;
    request.limit = args.limit;
    request.dedup = usage("dedup", args.dedup.as_deref().map(Dedup::parse).transpose())?;
    request.catalog.clone_from(&args.catalog);
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

fn describe(outcome: &ConvertOutcome) -> Value {
    let bytes_in: u64 = outcome.inputs.iter().map(|input| input.bytes).sum();
    let bytes_out: u64 = outcome.shards.iter().map(|shard| shard.bytes).sum();
    let slowest = outcome
        .shards
        .iter()
        .filter(|shard| shard.seconds > 0.0)
        .max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    json!({
        "status": outcome.status.name(),
        "path": outcome.path,
        "records": outcome.records,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "payload_bytes": outcome.payload_bytes,
        "skipped": outcome.skipped,
        "filtered": outcome.filtered,
        "duplicates": outcome.duplicates,
        "shards_found": outcome.shards_found,
        "log": outcome.log,
        "plan": outcome.plan,
        "graph": outcome.graph.as_ref().map(crate::explain::Graph::json),
        "seconds": outcome.seconds,
        "workers": outcome.workers,
        "peak_held_bytes": outcome.peak_held_bytes,
        "spilled_bytes": outcome.spilled_bytes,
        "slowest_shard": slowest.map(|shard| json!({"path": shard.path, "seconds": shard.seconds})),
        "inputs": outcome.inputs.iter().map(|input| json!({
            "name": input.name,
            "kind": input.kind,
            "bytes": input.bytes,
            "records": input.records,
            "skipped": input.skipped,
        })).collect::<Vec<_>>(),
        "shards": outcome.shards.iter().map(|shard| json!({
            "path": shard.path,
            "records": shard.records,
            "bytes": shard.bytes,
            "sha256": shard.sha256,
        })).collect::<Vec<_>>(),
    })
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
