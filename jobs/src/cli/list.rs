//! `prep list`.

use clap::Args;

use crate::cli::{Global, Outcome};

/// Lists the datasets of the catalog.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG")]
    catalog: Option<String>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(_args: &List, _global: &Global) -> anyhow::Result<Outcome> {
    todo!()
}
