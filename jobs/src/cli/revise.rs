//! What `prep append` and `prep update` share.

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use prep_catalog::name::Version;

use crate::build::BuildRequest;
use crate::build::publish::hinted;
use crate::cli::build::summary;
use crate::cli::job_args::{Action, JobArgs, run_job};
use crate::cli::{Global, Outcome};
use crate::cluster::ClusterArgs;
use crate::describe;
use crate::error::{Occupied, Overtaken, find};
use crate::monitor::{Monitor, Unit};

/// The flags of both.
#[derive(Debug, Args)]
pub(crate) struct ReviseArgs {
    /// The new version; default: the recipe's if it is a new one, else the next one.
    #[arg(long, value_name = "X.Y.Z")]
    pub(crate) version: Option<String>,
    /// A file, folder or URL that holds the sources, in place of the recipe's addresses; may be repeated.
    #[arg(long, value_name = "PATH|URL")]
    from: Vec<String>,
    /// Where datasets lie; default: `data` in the catalog.
    #[arg(long, value_name = "URL")]
    data_dir: Option<String>,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG", value_parser = crate::cli::from_catalog::place)]
    pub(crate) catalog: Option<String>,
    /// Takes sources whose size or SHA-256 is not the recipe's.
    #[arg(long)]
    no_checksum: bool,
    #[command(flatten)]
    job: JobArgs,
}

/// How often other processes may make the version first that this one has chosen; each time one of them gets on.
const MOST_OVERTAKEN: u32 = 1000;

/// Makes the version that `plan` asks for; where another process makes it first, or a killed one has left its folder, the one that it asks for then. `plan`
/// is given the versions that such folders have.
pub(crate) fn run(
    command: &str,
    (verb, doing, what): (&'static str, &'static str, &str),
    args: &ReviseArgs,
    global: &Global,
    plan: impl Fn(&[Version]) -> Result<BuildRequest>,
) -> Result<Outcome> {
    ClusterArgs::refuse_others(command)?;
    let monitor = Monitor::new();
    let action = Action { verb, doing, what };
    let outcome = run_job(action, &args.job, global, &monitor, describe::outcome, || {
        let job = args.job.settings()?;
        let mut left = match args.version {
            Some(_) => 0,
            None => MOST_OVERTAKEN,
        };
        let mut passed = Vec::new();
        loop {
            let meter = monitor.stage("recipe", Unit::Files, Some(1));
            let mut request = plan(&passed)?
                .from(args.from.clone())
                .workers(job.workers)
                .memory_bytes(job.memory_bytes)
                .on_error(job.on_error)
                .overwrite(job.overwrite)
                .check_sums(!args.no_checksum)
                .dry_run(job.dry_run)
                .explain(job.explain);
            meter.set(1);
            monitor.forget(&meter);
            request.data_dir.clone_from(&args.data_dir);
            request.spill_folder.clone_from(&job.spill_folder);
            request.monitor = Arc::clone(&monitor);
            match crate::build(request) {
                Err(error) if left > 0 && find::<Overtaken>(&error).is_some() => {
                    left -= 1;
                    monitor.note("another process has made that version; this one makes the next");
                }
                Err(error)
                    if left > 0
                        && let Some(Occupied(version)) = find(&error).cloned() =>
                {
                    left -= 1;
                    monitor.warn(format!(
                        "the folder of version {version} is there, and the catalog does not have that version: it is passed over; `prep gc` finds what killed jobs have left"
                    ));
                    passed.push(Version::parse(&version).map_err(hinted)?);
                }
                result => return result,
            }
        }
    })?;
    if let (Some(format), Some(graph), false) = (args.job.explain, &outcome.graph, args.job.json) {
        write!(io::stdout(), "{}", format.draw(graph))?;
    } else if !args.job.json && !global.quiet {
        writeln!(io::stdout(), "{}", summary(&outcome))?;
    }
    Ok(Outcome::without(outcome.skipped))
}
