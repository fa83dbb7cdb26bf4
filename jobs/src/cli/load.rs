//! `prep load`.

use clap::Args;

use crate::cli::{Global, Outcome};

/// Streams batches of a dataset and prints rates.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// `name`, `name/config`, `name:version` or `name@tag`.
    name: String,
    /// Split or sub-split: `train`, `train[:80%]`, `train+test`.
    #[arg(long, default_value = "train")]
    split: String,
    /// Rows a batch, per host.
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Shuffle seed.
    #[arg(long, value_name = "K")]
    seed: Option<u64>,
    /// Epochs, counted from the start of the stream.
    #[arg(long, value_name = "E")]
    epochs: Option<u64>,
    /// Host number of hosts: `I/N`.
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// `prep`, `grain` or `source`.
    #[arg(long)]
    order: Option<String>,
    /// Decoding threads.
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// Leaves out a last batch that is not full.
    #[arg(long)]
    drop_remainder: bool,
    /// Stops after this many batches of this run.
    #[arg(long, value_name = "M")]
    batches: Option<u64>,
    /// Goes on from a saved state.
    #[arg(long, value_name = "STATE.json")]
    restore: Option<std::path::PathBuf>,
    /// Writes the position after the last printed batch.
    #[arg(long, value_name = "STATE.json")]
    save: Option<std::path::PathBuf>,
    /// Prints the global indices of each batch, and decodes nothing.
    #[arg(long)]
    indices: bool,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG")]
    catalog: Option<String>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(_args: &Load, _global: &Global) -> anyhow::Result<Outcome> {
    todo!()
}
