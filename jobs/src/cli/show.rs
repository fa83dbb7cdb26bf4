//! `prep show`.

use clap::Args;

use crate::cli::{Global, Outcome};

/// Shows one dataset: splits, features, sources, fingerprint.
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// `name`, `name/config`, `name:version` or `name@tag`.
    name: String,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG")]
    catalog: Option<String>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(_args: &Show, _global: &Global) -> anyhow::Result<Outcome> {
    todo!()
}
