//! The `prep` command line: one file per subcommand.
//!
//! stdout is data, stderr is progress, logs and errors. Exit codes: 0 done, 1 failed or the answer is no, 2 wrong usage,
//! 3 finished but records were skipped.

mod append;
mod bench;
mod build;
mod cat;
mod cat_dataset;
mod completions;
mod convert;
mod diff;
mod export;
mod from_catalog;
mod gc;
mod infer;
mod inspect;
mod job_args;
mod launch;
mod lineage;
mod list;
mod load;
mod output;
mod progress;
mod record_file;
mod register;
mod revise;
mod rm;
mod salvage;
mod show;
mod stop;
mod tag;
mod targets;
mod update;
mod verify;
mod verify_dataset;
mod verify_described;

use std::ffi::OsString;
use std::process::ExitCode;

pub(crate) use progress::show_count;
pub use verify::verify_version;

use clap::{Args, Parser, Subcommand};

/// How a command that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Done,
    /// Exit code 1: it worked, and the answer is no.
    No,
    /// Exit code 3: finished, with records skipped.
    Skipped,
    /// The exit code of commands that this one ran.
    Exit(u8),
}

impl Outcome {
    /// A job has ended well, and its output, made now or before, lacks so many damaged records.
    pub(crate) fn without(skipped: u64) -> Self {
        match skipped {
            0 => Self::Done,
            _ => Self::Skipped,
        }
    }
}

/// Turns raw datasets into indexed ArrayRecord shards, keeps a catalog of them, and streams batches by name.
#[derive(Debug, Parser)]
#[command(name = "prep", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// More about what happens, on stderr; twice for more still.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// No progress and no notes; errors only.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Build(build::Build),
    Infer(infer::Infer),
    Register(register::Register),
    Append(append::Append),
    Update(update::Update),
    Convert(convert::Convert),
    Launch(launch::Launch),
    List(list::List),
    Show(show::Show),
    Tag(tag::Tag),
    Rm(rm::Rm),
    Gc(gc::Gc),
    Diff(diff::Diff),
    Export(export::Export),
    Lineage(lineage::Lineage),
    Cat(cat::Cat),
    Verify(verify::Verify),
    Salvage(salvage::Salvage),
    Inspect(inspect::Inspect),
    Load(load::Load),
    Bench(bench::Bench),
    Completions(completions::Completions),
}

/// Runs the command of this process's arguments and gives its exit code.
pub fn main() -> ExitCode {
    let program = std::env::current_exe().map_or_else(|_| "prep".into(), OsString::from);
    ExitCode::from(run(&[program], std::env::args_os()))
}

/// Runs the command of these arguments, the program's name first, and gives its exit code. `program` is what starts another process of
/// this program: the words before its arguments.
pub fn run(program: &[OsString], arguments: impl IntoIterator<Item = OsString>) -> u8 {
    launch::end_with_launcher();
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { 2 } else { 0 };
        }
    };
    let global = &cli.global;
    let result = match &cli.command {
        Command::Build(args) => build::run(args, global),
        Command::Infer(args) => infer::run(args, global),
        Command::Register(args) => register::run(args, global),
        Command::Append(args) => append::run(args, global),
        Command::Update(args) => update::run(args, global),
        Command::Convert(args) => convert::run(args, global),
        Command::Launch(args) => launch::run(args, program),
        Command::List(args) => list::run(args, global),
        Command::Show(args) => show::run(args, global),
        Command::Tag(args) => tag::run(args, global),
        Command::Rm(args) => rm::run(args, global),
        Command::Gc(args) => gc::run(args, global),
        Command::Diff(args) => diff::run(args, global),
        Command::Export(args) => export::run(args, global),
        Command::Lineage(args) => lineage::run(args, global),
        Command::Cat(args) => cat::run(args, global),
        Command::Verify(args) => verify::run(args, global),
        Command::Salvage(args) => salvage::run(args, global),
        Command::Inspect(args) => inspect::run(args, global),
        Command::Load(args) => load::run(args, global),
        Command::Bench(args) => bench::run(args, global),
        Command::Completions(args) => completions::run(args, global),
    };
    output::finish(result)
}
