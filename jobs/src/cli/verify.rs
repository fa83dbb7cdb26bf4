//! `prep verify`.

use clap::Args;

use crate::cli::{Global, Outcome};

/// Checks every hash and checksum of a file, a folder or a dataset.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// A file, a folder, or a dataset name.
    target: String,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG")]
    catalog: Option<String>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(_args: &Verify, _global: &Global) -> anyhow::Result<Outcome> {
    todo!()
}
