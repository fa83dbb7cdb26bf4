//! `prep update`.

use anyhow::Result;
use clap::Args;

use crate::cli::revise::{self, ReviseArgs};
use crate::cli::{Global, Outcome};
use crate::revise::update;

/// Makes a new version of a dataset from what its sources are now, and builds only what has changed.
///
/// All sources are read for their SHA-256. Of those that are as they were, the shards are taken over into the new version's folder, by hard links or by the
/// store's own copies; sources that were added or changed are built. The result is byte for byte that of building the recipe anew. Where nothing has
/// changed it says "up to date" and writes nothing. If the type of a column changes, all is built anew.
///
/// By a name, it is the recipe that the version has kept, with paths from the current folder.
///
/// Example: prep update my_data.toml
#[derive(Debug, Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Update {
    /// The recipe, or a dataset of the catalog.
    #[arg(value_name = "RECIPE.toml|NAME[/CONFIG][:VERSION]")]
    target: String,
    #[command(flatten)]
    args: ReviseArgs,
}

pub(crate) fn run(args: &Update, global: &Global) -> Result<Outcome> {
    let of = &args.args;
    revise::run(
        "update",
        ("update", "updating", &args.target),
        of,
        global,
        |passed| update(of.catalog.as_deref(), &args.target, of.version.as_deref(), passed),
    )
}
