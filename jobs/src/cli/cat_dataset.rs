//! `prep cat` of a dataset: decoded examples.

use crate::cli::cat::Cat;
use crate::cli::output::Hinted;
use crate::cli::{Global, Outcome};

/// Prints examples of the dataset `args.target`; called for a target that is no file.
pub(crate) fn run(args: &Cat, _global: &Global) -> anyhow::Result<Outcome> {
    Err(Hinted {
        message: format!("`{}` is not a file", args.target),
        hint: "give the path of an ArrayRecord or TFRecord file".into(),
    }
    .into())
}
