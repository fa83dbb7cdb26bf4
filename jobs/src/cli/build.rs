//! `prep build`.

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;

use crate::build::{BuildOutcome, BuildRequest, Status};
use crate::cli::job_args::{Action, JobArgs, run_job};
use crate::cli::output::Usage;
use crate::cli::{Global, Outcome};
use crate::cluster::ClusterArgs;
use crate::describe;
use crate::fetch;
use crate::monitor::{Monitor, Unit};
use crate::readers::RecipeBuilder;
use crate::recipe;
use crate::resources::show_size;
use crate::team::Team;
use url::Url;

/// Builds a dataset into ArrayRecord shards and registers it in the catalog.
///
/// The sources are fetched from the recipe's addresses, or taken from where `--from` says; checked; read without unpacking
/// them; and written as shards in the order of TFDS. A build that was stopped or killed goes on when the same command is given
/// again. Asking for what is there already says "up to date" and writes nothing.
///
/// Example: prep build cifar10 --from ~/Downloads
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// A built-in dataset, with a config where it has such, as in imagenette/160px; or a recipe file.
    ///
    /// Built in, with their configs, the default one first: beans, cifar10, cifar100, eurosat (rgb, all), fashion_mnist, food101, imagenet2012,
    /// imagenette (full-size-v2, 320px-v2, 160px-v2, full-size, 320px, 160px), imdb_reviews, kmnist, mnist, oxford_iiit_pet, stl10, tf_flowers.
    #[arg(value_name = "NAME[/CONFIG]|RECIPE.toml")]
    recipe: String,
    /// A file, folder or URL that holds the sources, in place of the recipe addresses; may be repeated.
    #[arg(long, value_name = "PATH|URL")]
    from: Vec<String>,
    /// Where datasets lie; default: `data` in the catalog.
    #[arg(long, value_name = "URL")]
    data_dir: Option<String>,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG", value_parser = crate::cli::from_catalog::place)]
    catalog: Option<String>,
    /// Shards of each split; default: the recipe decides.
    #[arg(long, value_name = "N")]
    shards: Option<u64>,
    /// Takes sources whose size or SHA-256 is not the recipe's.
    #[arg(long)]
    no_checksum: bool,
    /// Leaves out the statistics of features, and the search for examples that come more than once.
    #[arg(long)]
    no_statistics: bool,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Build {
    /// The dataset or recipe file.
    pub(crate) fn recipe(&self) -> &str {
        &self.recipe
    }
}

pub(crate) fn run(args: &Build, global: &Global) -> Result<Outcome> {
    run_as("build", "building", args, global, false)
}

/// The same, called by another name; `in_place` leaves the files where they are.
pub(crate) fn run_as(
    verb: &'static str,
    doing: &'static str,
    args: &Build,
    global: &Global,
    in_place: bool,
) -> Result<Outcome> {
    let monitor = Monitor::new();
    let follows = args.cluster.index()?.is_some_and(|process| process > 0);
    let job = if follows {
        args.job.of_a_follower(args.cluster.index()?.unwrap_or(0))
    } else {
        args.job.clone()
    };
    let action = Action {
        verb,
        doing,
        what: &args.recipe,
    };
    let outcome = run_job(action, &job, global, &monitor, describe::outcome, || {
        // A recipe may be long, and is read in sight of the user too.
        let meter = monitor.stage("recipe", Unit::Files, Some(1));
        let builder = Arc::new(RecipeBuilder::new(recipe::find(&args.recipe)?));
        let mut request = request(args, Arc::clone(&builder))?;
        meter.set(1);
        monitor.forget(&meter);
        request.monitor = Arc::clone(&monitor);
        request.team = Team::of(args.cluster.connect(arguments(args)?, &monitor)?);
        request.team.show_to(&monitor);
        if in_place {
            return crate::register_in_place(&request, &builder);
        }
        crate::build(request)
    })?;
    let exit = Outcome::without(outcome.skipped);
    if follows {
        // Process 0 has the output.
        return Ok(exit);
    }
    if let (Some(format), Some(graph), false) = (args.job.explain, &outcome.graph, args.job.json) {
        write!(io::stdout(), "{}", format.draw(graph))?;
    } else if !args.job.json && !global.quiet {
        writeln!(io::stdout(), "{}", summary(&outcome))?;
    }
    Ok(exit)
}

/// What has to be the same for all processes of a cluster.
fn arguments(args: &Build) -> Result<Vec<String>> {
    let mut arguments = vec!["build".to_owned(), args.recipe.clone()];
    // Addresses may hold a password, and differing arguments are shown.
    arguments.extend(args.from.iter().map(|from| match Url::parse(from) {
        Ok(url) => format!("--from {}", fetch::shown(&url)),
        Err(_) => format!("--from {from}"),
    }));
    let flags = [
        ("--data-dir", args.data_dir.clone()),
        ("--catalog", args.catalog.clone()),
        ("--shards", args.shards.map(|shards| shards.to_string())),
        ("--no-checksum", args.no_checksum.then(String::new)),
        ("--no-statistics", args.no_statistics.then(String::new)),
    ];
    for (flag, value) in flags {
        arguments.extend(value.map(|value| format!("{flag} {value}").trim_end().to_owned()));
    }
    arguments.extend(args.job.arguments());
    Ok(arguments)
}

/// The request that the flags make.
fn request(args: &Build, builder: Arc<RecipeBuilder>) -> Result<BuildRequest> {
    let job = args.job.settings()?;
    if args.shards.is_some_and(|shards| !(1..=100_000).contains(&shards)) {
        return Err(Usage("`--shards` is out of range: 1 to 100000".to_owned()).into());
    }
    let mut request = BuildRequest::new(builder)
        .from(args.from.clone())
        .workers(job.workers)
        .memory_bytes(job.memory_bytes)
        .on_error(job.on_error)
        .overwrite(job.overwrite)
        .check_sums(!args.no_checksum)
        .statistics(!args.no_statistics)
        .dry_run(job.dry_run)
        .explain(job.explain);
    request.catalog = args.catalog.clone();
    request.data_dir = args.data_dir.clone();
    request.shards = args.shards;
    request.spill_folder = job.spill_folder;
    Ok(request)
}

/// `cifar10:3.0.2: train 50000, test 10000 examples in 2 shards, 131.0 MiB, at /data/cifar10/3.0.2`.
pub(crate) fn summary(outcome: &BuildOutcome) -> String {
    let config = outcome
        .config
        .as_ref()
        .map_or(String::new(), |config| format!("/{config}"));
    let name = format!("{}{config}:{}", outcome.name, outcome.version);
    match outcome.status {
        Status::UpToDate => {
            let skipped = left_out_before(outcome.skipped);
            return format!("{name} is up to date at {}{skipped}", outcome.path);
        }
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

/// What to say of what is up to date, and was made with damaged records left out.
pub(crate) fn left_out_before(skipped: u64) -> String {
    match skipped {
        0 => String::new(),
        count => format!("; {count} damaged records were left out when it was made"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    use crate::build::OnError;
    use crate::cli::output::Hinted;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        build: Build,
    }

    fn parse(words: &[&str]) -> Result<BuildRequest> {
        let words = std::iter::once("build").chain(words.iter().copied());
        let args = Command::try_parse_from(words).unwrap().build;
        let builder = RecipeBuilder::new(recipe::find(args.recipe())?);
        request(&args, Arc::new(builder))
    }

    #[test]
    fn wrong_usage_is_told_as_such() {
        for words in [["cifar10", "--memory", "lots"], ["cifar10", "--shards", "0"]] {
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
            "--no-statistics",
        ])
        .unwrap();
        assert_eq!((request.memory_bytes, request.shards), (64 << 20, Some(2)));
        assert_eq!(request.on_error, OnError::Skip(Some(3)));
        assert!(!request.check_sums && !request.statistics);
    }

    #[test]
    fn the_help_names_all_built_in_datasets_and_configs() {
        let mut command = <Command as clap::CommandFactory>::command();
        let help = command.render_long_help().to_string();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words(&help).contains(&words(&recipe::builtin::overview())),
            "{help}"
        );
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
