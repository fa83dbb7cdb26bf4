//! What commands that take a dataset's name share: the catalog, opened, and its errors with their advice.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use prep_catalog::{Catalog, DatasetName, Resolved};
use prep_loader::Dataset;
use serde_json::Value;

use crate::cli::Outcome;
use crate::cli::output::{Hinted, Usage};

/// The flags of commands that ask or change a catalog.
#[derive(Debug, Args)]
pub(crate) struct CatalogArgs {
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG", value_parser = crate::cli::from_catalog::place)]
    pub(crate) catalog: Option<String>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

impl CatalogArgs {
    /// Prints one description, as JSON or for people.
    pub(crate) fn print(
        &self,
        object: &Value,
        for_people: impl Fn(&Value) -> String,
    ) -> anyhow::Result<Outcome> {
        let text = if self.json {
            format!("{object}\n")
        } else {
            for_people(object)
        };
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(Outcome::Done)
    }
}

/// The text of `--catalog`: an empty one is what a script gives whose variable is not set, and would mean another catalog than it names. Of `$PREP_CATALOG` it
/// means none, as with any variable.
pub(crate) fn place(text: &str) -> Result<String, String> {
    let is_of_variable = || std::env::var_os("PREP_CATALOG").is_some_and(|value| value.is_empty());
    match text.is_empty() && !is_of_variable() {
        true => Err("it is empty; give a folder or URL, or leave it out for the default one".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// The line `name/config:version` above what people are told of a version.
pub(crate) fn heading(object: &Value) -> String {
    let config = object["config"]
        .as_str()
        .map_or(String::new(), |config| format!("/{config}"));
    format!("{}{config}:{}\n", text(&object["name"]), text(&object["version"]))
}

/// A text without its quotes; other values as JSON.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Opens the catalog: `--catalog`, else `$PREP_CATALOG`, else the one in the home folder.
pub(crate) fn catalog(given: Option<&str>) -> anyhow::Result<Catalog> {
    let location = prep_catalog::catalog_location(given).map_err(advise)?;
    Ok(Catalog::open(&location)
        .map_err(advise)?
        .suggesting(crate::recipe::builtin::names()))
}

/// Finds the version that a name means.
pub(crate) fn resolve(given: Option<&str>, name: &str) -> anyhow::Result<Resolved> {
    refuse_absent_path(name)?;
    let name = DatasetName::parse(name).map_err(advise)?;
    catalog(given)?.resolve(&name).map_err(advise)
}

/// Opens a split of a dataset.
pub(crate) fn open(given: Option<&str>, name: &str, split: &str) -> anyhow::Result<Dataset> {
    refuse_absent_path(name)?;
    prep_loader::open(&catalog(given)?, name, split).map_err(explain)
}

/// Says of a path that there is nothing there, rather than that it is no dataset's name.
fn refuse_absent_path(text: &str) -> anyhow::Result<()> {
    let is_path = text.starts_with(['/', '.', '~']) && DatasetName::parse(text).is_err()
        || [".array_record", ".tfrecord"]
            .iter()
            .any(|part| text.contains(part));
    if !is_path || Path::new(text).exists() {
        return Ok(());
    }
    Err(Hinted::new(
        format!("there is no file or folder `{text}`"),
        "give the path of a record file or of a dataset's folder, or the name of a dataset: `prep list` shows those",
    )
    .into())
}

/// A catalog's error with its advice.
pub(crate) fn advise(error: prep_catalog::Error) -> anyhow::Error {
    match error.hint() {
        Some(hint) => {
            let mut message = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                message += &format!(": {cause}");
            }
            Hinted::new(message, hint).into()
        }
        None => error.into(),
    }
}

/// A loader's error: wrong usage where the split string does not fit.
pub(crate) fn explain(error: prep_loader::Error) -> anyhow::Error {
    match error {
        prep_loader::Error::Catalog(error) => advise(error),
        prep_loader::Error::Split { .. } | prep_loader::Error::Options(_) => Usage(error.to_string()).into(),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_where_nothing_is_is_told_as_that() {
        for path in [
            "/no/such",
            "./no-such",
            "no/such.array_record-00000-of-00001",
            "~/x",
        ] {
            let error = resolve(Some("/no/such/catalog"), path).unwrap_err().to_string();
            assert_eq!(error, format!("there is no file or folder `{path}`"));
        }
        let error = resolve(Some("/no/such/catalog"), "cifar10")
            .unwrap_err()
            .to_string();
        assert!(error.contains("no dataset `cifar10`"), "{error}");
    }
}
