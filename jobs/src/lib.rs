//! Dataset builders, conversion jobs and the `prep` command line.
#![expect(
    clippy::print_stdout,
    reason = "standard output is the data channel of the command"
)]

pub mod cli;
