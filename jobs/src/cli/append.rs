//! `prep append`.

use anyhow::Result;
use clap::Args;

use crate::cli::revise::{self, ReviseArgs};
use crate::cli::{Global, Outcome};
use crate::revise::{Addition, append};

/// Adds sources to a dataset, as a new version that shares the shards of the one before.
///
/// Only the new sources are read; those that the version has stay as they were, wherever their files are now. A recipe may have the old sources beside the
/// new ones; with `--source` it is the recipe that the version has kept. The version has to have the layout `by-source`, which is that of `prep
/// register`, and the new sources have to have the types of the old ones.
///
/// Example: prep append my_data --source train=new/*.jsonl
#[derive(Debug, Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Append {
    /// The dataset; without a version its greatest one.
    #[arg(value_name = "NAME[/CONFIG][:VERSION]")]
    name: String,
    /// A recipe that has the new sources.
    #[arg(value_name = "RECIPE.toml", required_unless_present = "source")]
    recipe: Option<String>,
    /// Adds files, a pattern of paths or an address to a split, from the current folder; without `SPLIT=` where the recipe deals them; may be repeated.
    #[arg(long, value_name = "SPLIT=PATTERN", conflicts_with = "recipe")]
    source: Vec<String>,
    #[command(flatten)]
    args: ReviseArgs,
}

pub(crate) fn run(args: &Append, global: &Global) -> Result<Outcome> {
    let addition = match &args.recipe {
        Some(recipe) => Addition::Recipe(recipe.clone()),
        None => Addition::Sources(args.source.clone()),
    };
    let of = &args.args;
    revise::run(
        "append",
        ("append to", "appending to", &args.name),
        of,
        global,
        |passed| {
            append(
                of.catalog.as_deref(),
                &args.name,
                &addition,
                of.version.as_deref(),
                passed,
            )
        },
    )
}
