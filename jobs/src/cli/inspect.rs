//! `prep inspect`.

use clap::Args;

use crate::cli::{Global, Outcome};

/// Shows the layout of a file: chunks, codecs, sizes.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// An ArrayRecord or TFRecord file.
    file: std::path::PathBuf,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(_args: &Inspect, _global: &Global) -> anyhow::Result<Outcome> {
    todo!()
}
