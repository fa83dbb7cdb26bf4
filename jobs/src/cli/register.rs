//! `prep register`.

use std::path::Path;

use anyhow::Result;
use clap::Args;

use crate::cli::build::{self, Build};
use crate::cli::output::Usage;
use crate::cli::{Global, Outcome};
use crate::recipe::builtin;

/// Makes a dataset of your own out of a recipe, and registers it in the catalog.
///
/// The recipe, a TOML file, says which files there are and which reader they are for; types of columns follow from the data where the recipe
/// does not say them. The data are written as shards, those of each source by themselves in the order of the source, unless the recipe
/// asks for the layout of TFDS. Flags are those of `prep build`.
///
/// With `--in-place`, TFRecord and ArrayRecord files and folders of TFDS stay where they are, here, in a bucket or on a web server: each is read once and
/// checked, and the catalog gets counts, checksums and indices. What would have to be written anew is refused, with the reason.
///
/// Example: prep register my_data.toml --catalog catalog
#[derive(Debug, Args)]
pub(crate) struct Register {
    /// Leaves the files where they are, and writes only what describes them.
    #[arg(long)]
    in_place: bool,
    #[command(flatten)]
    build: Build,
}

pub(crate) fn run(args: &Register, global: &Global) -> Result<Outcome> {
    let recipe = args.build.recipe();
    if builtin::text(recipe).is_some() && !Path::new(recipe).exists() {
        return Err(Usage(format!(
            "`{recipe}` is a built-in dataset: `prep build {recipe}` makes it; `register` takes the path of a recipe"
        ))
        .into());
    }
    build::run_as("register", "registering", &args.build, global, args.in_place)
}
