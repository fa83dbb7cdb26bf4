//! `prep rm`.

use std::io::{self, Write};

use clap::Args;
use prep_catalog::{DatasetName, Selector};
use serde_json::json;

use crate::cli::from_catalog::CatalogArgs;
use crate::cli::from_catalog::{advise, catalog};
use crate::cli::output::{Usage, say};
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
    let is_exact = name.selector != Selector::Latest;
    if args.all && is_exact {
        return Err(Usage("`--all` is for a name without a version".into()).into());
    }
    // One that is not there is told with what is.
    let found = catalog.version_of(&name).map_err(advise)?;
    let state = catalog.state(&name).map_err(advise)?;
    let all: Vec<String> = state.versions().map(|(version, _)| version.to_string()).collect();
    let versions = if args.all {
        all
    } else if is_exact || all.len() == 1 {
        vec![found]
    } else {
        return Err(Usage(format!(
            "`{}` has {} versions ({}): say which one, as in `{}:{found}`, or `--all`",
            name.place(),
            all.len(),
            all.join(", "),
            name.place()
        ))
        .into());
    };
    let mut out = io::stdout().lock();
    for version in versions {
        let Some(there) = state.version(&version) else {
            continue;
        };
        let tags: Vec<&str> = state
            .tags()
            .filter(|(_, tagged)| tagged.to_string() == version)
            .map(|(tag, _)| tag)
            .collect();
        let folder = catalog.folder(&there.record.path).map_err(advise)?;
        let exact = name.clone().with_selector(Selector::Version(version.clone()));
        let log = if args.dry_run {
            None
        } else {
            match catalog.remove(&exact) {
                Ok(log) => log,
                // Another one was faster.
                Err(prep_catalog::Error::UnknownVersion { .. }) => None,
                Err(error) => return Err(advise(error)),
            }
        };
        let is_users = there.kind == "register";
        if args.at.json {
            let object = json!({
                "status": if args.dry_run { "planned" } else { "removed" },
                "name": name.name, "config": name.config, "version": version, "tags": tags, "log": log,
                "path": folder.to_string(), "in_place": is_users,
            });
            writeln!(out, "{object}")?;
        } else if !global.quiet {
            let would = if args.dry_run { "would be" } else { "is" };
            let tags = match tags.len() {
                0 => String::new(),
                _ => format!(", and its tags {}", tags.join(", ")),
            };
            writeln!(out, "{exact} {would} removed{tags}")?;
            say(format_args!(
                "{}",
                if is_users {
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
