//! Where the catalog is when nobody says.

use std::ffi::OsString;
use std::path::PathBuf;

use prep_formats::store::Location;

use crate::{Error, Result};

/// The catalog to use: `given` (`--catalog`), else `$PREP_CATALOG`, else [`default_catalog`]. The environment is read at each
/// call. An empty text counts as not given.
///
/// # Errors
/// [`Error::Format`] for a text that is no location, [`Error::Refused`] where no home folder is known.
pub fn catalog_location(given: Option<&str>) -> Result<Location> {
    locate(given, |name| std::env::var_os(name))
}

/// The catalog without `--catalog`: `$PREP_CATALOG`, else the folder `catalog` in `$PREP_HOME`, else in the platform's data folder
/// (`$XDG_DATA_HOME/prep` or `~/.local/share/prep`, `~/Library/Application Support/prep` on macOS).
///
/// # Errors
/// As [`catalog_location`].
pub fn default_catalog() -> Result<Location> {
    catalog_location(None)
}

/// The folder of this user's that holds the default catalog and what is kept between runs: `$PREP_HOME`, else `prep` in the platform's data
/// folder.
///
/// # Errors
/// [`Error::Refused`] where no home folder is known.
pub fn home_folder() -> Result<PathBuf> {
    home(|name| std::env::var_os(name))
}

fn locate(given: Option<&str>, variable: impl Fn(&str) -> Option<OsString>) -> Result<Location> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return Ok(Location::parse(given)?);
    }
    if let Some(value) = variable("PREP_CATALOG") {
        return Ok(match value.to_str() {
            Some(text) => Location::parse(text)?,
            None => Location::from_path(value),
        });
    }
    Ok(Location::from_path(home(variable)?.join("catalog")))
}

fn home(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let absolute = |name: &str| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    if let Some(home) = variable("PREP_HOME") {
        Ok(PathBuf::from(home))
    } else if let Some(data) = absolute("XDG_DATA_HOME") {
        Ok(data.join("prep"))
    } else if let Some(home) = absolute("HOME") {
        Ok(home.join(if cfg!(target_os = "macos") {
            "Library/Application Support/prep"
        } else {
            ".local/share/prep"
        }))
    } else {
        Err(Error::Refused(
            "no catalog is given, and no home folder is known: give `--catalog`, or set `PREP_CATALOG` or `PREP_HOME`".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_set_wins() {
        let all = [
            ("PREP_CATALOG", "/c"),
            ("PREP_HOME", "/p"),
            ("XDG_DATA_HOME", "/x"),
            ("HOME", "/h"),
        ];
        let found = |given: Option<&str>, from: usize| {
            locate(given, |name| {
                let pair = all[from..].iter().find(|(key, _)| *key == name);
                pair.map(|(_, value)| OsString::from(value))
            })
            .map(|location| location.to_string())
        };
        assert_eq!(found(Some("given"), 0).unwrap(), "given");
        assert_eq!(found(Some(""), 0).unwrap(), "/c");
        assert_eq!(found(None, 1).unwrap(), "/p/catalog");
        assert_eq!(found(None, 2).unwrap(), "/x/prep/catalog");
        if cfg!(not(target_os = "macos")) {
            assert_eq!(found(None, 3).unwrap(), "/h/.local/share/prep/catalog");
        }
        let error = found(None, 4).unwrap_err();
        assert!(error.to_string().contains("PREP_CATALOG"));
        // XDG: relative paths are to be ignored.
        let relative = locate(None, |name| (name == "XDG_DATA_HOME").then(|| "x".into()));
        assert!(relative.is_err());
    }
}
