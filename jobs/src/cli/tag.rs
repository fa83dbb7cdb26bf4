//! `prep tag`.

use std::io::{self, Write};

use clap::Args;
use prep_catalog::DatasetName;

use crate::changes;
use crate::cli::from_catalog::CatalogArgs;
use crate::cli::from_catalog::{advise, catalog, text};
use crate::cli::{Global, Outcome};

/// Gives a version a name, or takes one away.
///
/// A tag names one version at a time: given again, it moves. `prep load NAME@TAG` and all other commands take it. With `--delete` the tag goes, and
/// its version stays.
///
/// Example: prep tag cifar10:3.0.2 best
#[derive(Debug, Args)]
pub(crate) struct Tag {
    /// `name`, `name/config`, `name:version` or `name@tag`; without a version, the newest.
    name: String,
    /// A letter or digit, then letters, digits, `_`, `-` and `.`.
    tag: String,
    /// Removes the tag.
    #[arg(long)]
    delete: bool,
    /// Shows what would be done, and does nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: CatalogArgs,
}

pub(crate) fn run(args: &Tag, global: &Global) -> anyhow::Result<Outcome> {
    let name = DatasetName::parse(&args.name).map_err(advise)?;
    let catalog = catalog(args.at.catalog.as_deref())?;
    let done = changes::tag(&catalog, &name, &args.tag, args.delete, args.dry_run).map_err(advise)?;
    let mut out = io::stdout().lock();
    if args.at.json {
        writeln!(out, "{done}")?;
    } else if !global.quiet {
        let (place, tag) = (name.place(), &args.tag);
        let (version, status) = (text(&done["version"]), text(&done["status"]));
        let text = match status.as_str() {
            "planned" if args.delete => format!("tag `{tag}` of {place}:{version} would be removed"),
            "planned" => format!("{place}:{version} would be {place}@{tag}"),
            "removed" => format!("tag `{tag}` of {place}:{version} is removed"),
            "tagged" => format!("{place}:{version} is {place}@{tag}"),
            _ => format!("{place}:{version} is {place}@{tag} already"),
        };
        writeln!(out, "{text}")?;
    }
    Ok(Outcome::Done)
}
