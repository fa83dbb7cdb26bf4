//! `prep build`.

use clap::Args;

use crate::cli::{Global, Outcome};

/// Builds a dataset into ArrayRecord shards and registers it in the catalog.
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// A built-in dataset, or a recipe file.
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
    /// Memory budget; default: a quarter of what the machine or its cgroup allows.
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

pub(crate) fn run(_args: &Build, _global: &Global) -> anyhow::Result<Outcome> {
    todo!()
}
