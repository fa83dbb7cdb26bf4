//! `prep cat`.

use clap::Args;

use crate::cli::{Global, Outcome};

/// Prints records of a file, or decoded examples of a dataset.
#[derive(Debug, Args)]
pub(crate) struct Cat {
    /// A file, or a dataset name.
    target: String,
    /// Split of a dataset.
    #[arg(long)]
    split: Option<String>,
    /// Half-open range of records, `A..B`.
    #[arg(long, value_name = "A..B")]
    records: Option<String>,
    /// Lengths and SHA-256 in place of the bytes.
    #[arg(long)]
    digest: bool,
    /// What to do with a damaged record: `fail` or `skip`.
    #[arg(long, value_name = "POLICY", default_value = "fail")]
    on_error: String,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG")]
    catalog: Option<String>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(_args: &Cat, _global: &Global) -> anyhow::Result<Outcome> {
    todo!()
}
