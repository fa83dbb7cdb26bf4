//! `prep completions`.

use clap::Args;

use crate::cli::{Global, Outcome};

/// Prints a completion script for a shell.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell.
    shell: clap_complete::Shell,
}

pub(crate) fn run(_args: &Completions, _global: &Global) -> anyhow::Result<Outcome> {
    let mut command = <crate::cli::Cli as clap::CommandFactory>::command();
    clap_complete::generate(_args.shell, &mut command, "prep", &mut std::io::stdout());
    Ok(Outcome::Done)
}
