//! Changes of the catalog alone: tags, and versions that go. What is done comes as JSON, for the command and for Python.

use anyhow::Result;
use prep_catalog::{Catalog, DatasetName, Selector};
use serde_json::{Value, json};

use crate::error::Usage;

/// Names the version that `name` means by a tag, which moves if it is another one's; or with `delete` takes the tag away. `status` (`planned`, `tagged`,
/// `removed`, `up to date`), `name`, `config`, `version`, `tag`, `log`.
///
/// # Errors
/// There is no such version or tag, the tag is no name, or the catalog cannot be written.
pub fn tag(
    catalog: &Catalog,
    name: &DatasetName,
    tag: &str,
    delete: bool,
    dry_run: bool,
) -> Result<Value, prep_catalog::Error> {
    let selected = match delete {
        true => name.clone().with_selector(Selector::Tag(tag.to_owned())),
        false => name.clone(),
    };
    // Also says which version an unknown one could have been meant to be, before anything is written.
    let version = catalog.version_of(&selected)?;
    let log = match (dry_run, delete) {
        (true, _) => None,
        (false, true) => catalog.untag(name, tag)?,
        (false, false) => catalog.tag(name, tag)?,
    };
    let status = match (dry_run, delete, log) {
        (true, ..) => "planned",
        (false, true, _) => "removed",
        (false, false, Some(_)) => "tagged",
        (false, false, None) => "up to date",
    };
    Ok(json!({
        "status": status, "name": name.name, "config": name.config, "version": version, "tag": tag, "log": log,
    }))
}

/// Removes the version that `name` means, or with `all` those of the dataset; their data stay. A name without a version is enough where there is one. For each
/// `status` (`planned` or `removed`), `name`, `config`, `version`, `tags`, `log`, `path`, and `in_place`: whether the files are the user's.
///
/// # Errors
/// There is no such version, or several where one has to be named; the catalog cannot be written.
pub fn remove(catalog: &Catalog, name: &DatasetName, all: bool, dry_run: bool) -> Result<Vec<Value>> {
    let is_exact = name.selector != Selector::Latest;
    if all && is_exact {
        return Err(Usage("`--all` is for a name without a version".into()).into());
    }
    // One that is not there is told with what is.
    let found = catalog.version_of(name)?;
    let state = catalog.state(name)?;
    let there: Vec<String> = state.versions().map(|(version, _)| version.to_string()).collect();
    let versions = if all {
        there
    } else if is_exact || there.len() == 1 {
        vec![found]
    } else {
        return Err(Usage(format!(
            "`{}` has {} versions ({}): say which one, as in `{}:{found}`, or `--all`",
            name.place(),
            there.len(),
            there.join(", "),
            name.place()
        ))
        .into());
    };
    let mut removed = Vec::new();
    for version in versions {
        let Some(there) = state.version(&version) else {
            continue;
        };
        let tags: Vec<&str> = state
            .tags()
            .filter(|(_, tagged)| tagged.to_string() == version)
            .map(|(tag, _)| tag)
            .collect();
        let folder = catalog.folder(&there.record.path)?;
        let exact = name.clone().with_selector(Selector::Version(version.clone()));
        let log = match dry_run {
            true => None,
            false => match catalog.remove(&exact) {
                Ok(log) => log,
                // Another one was faster.
                Err(prep_catalog::Error::UnknownVersion { .. }) => None,
                Err(error) => return Err(error.into()),
            },
        };
        removed.push(json!({
            "status": if dry_run { "planned" } else { "removed" },
            "name": name.name, "config": name.config, "version": version, "tags": tags, "log": log,
            "path": folder.to_string(), "in_place": there.kind == "register",
        }));
    }
    Ok(removed)
}
