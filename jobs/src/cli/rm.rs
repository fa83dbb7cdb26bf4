//! `prep rm`.

use std::io::{self, Write};

use clap::Args;
use prep_catalog::DatasetName;

use crate::changes;
use crate::cli::from_catalog::CatalogArgs;
use crate::cli::from_catalog::{advise, catalog, text};
use crate::cli::output::say;
use crate::cli::{Global, Outcome};

/// Removes versions from the catalog; their data stay until `prep gc`.
///
/// The tags of a version go with it. `name@tag` removes the version that the tag names; to remove only the tag, use `prep tag --delete`. Files that were
/// registered where they lay are never deleted.
///
/// Example: prep rm my_data:1.0.0
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// `name:version` or `name@tag`, with a config where there is one; a name alone where it has one version only.
    name: String,
    /// All versions of the dataset.
    #[arg(long)]
    all: bool,
    /// Shows what would be removed, and does nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: CatalogArgs,
}

pub(crate) fn run(args: &Rm, global: &Global) -> anyhow::Result<Outcome> {
    let name = DatasetName::parse(&args.name).map_err(advise)?;
    let catalog = catalog(args.at.catalog.as_deref())?;
    let removed =
        changes::remove(&catalog, &name, args.all, args.dry_run).map_err(|error| match error
            .downcast::<prep_catalog::Error>(
        ) {
            Ok(error) => advise(error),
            Err(error) => error,
        })?;
    let mut out = io::stdout().lock();
    for version in removed {
        if args.at.json {
            writeln!(out, "{version}")?;
        } else if !global.quiet {
            let would = if args.dry_run { "would be" } else { "is" };
            let tags: Vec<String> = version["tags"]
                .as_array()
                .into_iter()
                .flatten()
                .map(text)
                .collect();
            let tags = match tags.len() {
                0 => String::new(),
                _ => format!(", and its tags {}", tags.join(", ")),
            };
            let folder = text(&version["path"]);
            writeln!(
                out,
                "{}:{} {would} removed{tags}",
                name.place(),
                text(&version["version"])
            )?;
            say(format_args!(
                "{}",
                if version["in_place"] == true {
                    format!(
                        "its files are yours, and stay; what describes them stays at {folder} until `prep gc` deletes it"
                    )
                } else {
                    format!("its data stay at {folder} until `prep gc` deletes them")
                }
            ));
        }
    }
    Ok(Outcome::Done)
}
