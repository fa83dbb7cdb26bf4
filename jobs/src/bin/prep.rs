//! The `prep` command; everything is in [`prep_jobs::cli`].

fn main() -> std::process::ExitCode {
    prep_jobs::cli::main()
}
