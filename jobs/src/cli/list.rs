//! `prep list`.

use std::io::{self, BufWriter, Write};

use clap::Args;
use prep_catalog::Listed;

use crate::cli::from_catalog::CatalogArgs;
use crate::cli::output::say;
use crate::cli::{Global, Outcome, from_catalog};
use crate::describe;

/// Lists the datasets of the catalog.
///
/// One line a version, sorted by name and version. With `--json` one object a line: name, config, version, splits {name:
/// {examples, shards, bytes}}, fingerprint, path. What cannot be read is reported on stderr, the rest is listed, and the exit code is 1.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    at: CatalogArgs,
}

pub(crate) fn run(args: &List, global: &Global) -> anyhow::Result<Outcome> {
    let catalog = from_catalog::catalog(args.at.catalog.as_deref())?;
    let listing = catalog.list().map_err(from_catalog::advise)?;
    let mut out = BufWriter::new(io::stdout().lock());
    if args.at.json {
        for version in &listing.versions {
            writeln!(out, "{}", describe::listed(version))?;
        }
    } else {
        let rows: Vec<[String; 3]> = listing.versions.iter().map(row).collect();
        let width = |column: usize| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let (name, splits) = (width(0), width(1));
        for [title, counts, path] in &rows {
            writeln!(out, "{title:name$}  {counts:splits$}  {path}")?;
        }
        if rows.is_empty() && listing.problems.is_empty() && !global.quiet {
            say(format_args!("catalog `{}` has no datasets", catalog.location()));
        }
    }
    out.flush()?;
    for problem in &listing.problems {
        say(format_args!("warning: {problem}"));
    }
    Ok(if listing.problems.is_empty() {
        Outcome::Done
    } else {
        Outcome::No
    })
}

fn row(listed: &Listed) -> [String; 3] {
    let config = listed
        .config
        .as_ref()
        .map_or(String::new(), |config| format!("/{config}"));
    let mut title = format!("{}{config}:{}", listed.name, listed.record.version);
    for tag in &listed.tags {
        title += &format!(" @{tag}");
    }
    let splits: Vec<String> = listed
        .record
        .splits
        .iter()
        .map(|(name, split)| format!("{name} {}", split.examples))
        .collect();
    [title, splits.join(", "), listed.folder.to_string()]
}
