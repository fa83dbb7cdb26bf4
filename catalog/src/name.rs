//! Dataset names: `name`, `name/config`, `name:3.0.2`, `name@tag`, `name@log=7`.
//!
//! | part | allowed | why |
//! |---|---|---|
//! | name | a letter, then letters, digits and `_` | it is a Python identifier in TFDS |
//! | config | letters, digits, `_`, `+`, `-`, `.`; not first `.` or `-`; not like a version or a log entry | it is a path part |
//! | version | `major.minor.patch`, no leading zeros | TFDS's versions |
//! | tag | a letter or digit, then letters, digits, `_`, `-`, `.` | |
//!
//! Letters are those of ASCII, and parts have at most 128 of them: every part is safe as a file name on every file system and
//! in a URL, and there is one spelling of each.
//!
//! Source of the first three rows: `core/naming.py` and `core/utils/version.py` in tensorflow-datasets 4.9.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The longest part of a name, in bytes. Ours: shard file names, which begin with it, stay below 255 bytes.
const MAX_PART_BYTES: usize = 128;

/// A parsed dataset name.
///
/// # Examples
///
/// ```
/// use prep_catalog::{DatasetName, Selector};
///
/// let name = DatasetName::parse("movi_e/256x256:1.0.0")?;
/// assert_eq!(name.name, "movi_e");
/// assert_eq!(name.config.as_deref(), Some("256x256"));
/// assert_eq!(name.selector, Selector::Version("1.0.0".into()));
/// assert_eq!(name.to_string(), "movi_e/256x256:1.0.0");
/// assert!(DatasetName::parse("../secrets").is_err());
/// # Ok::<(), prep_catalog::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DatasetName {
    /// The dataset.
    pub name: String,
    /// Its config, where there is one.
    pub config: Option<String>,
    /// Which version is asked for.
    pub selector: Selector,
}

/// Which version of a dataset a name asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Selector {
    /// The newest version: the greatest number, not the last one built.
    Latest,
    /// `:3.0.2`.
    Version(String),
    /// `@tag`.
    Tag(String),
    /// `@log=7`: what the catalog said after log entry 7.
    Log(u64),
}

impl DatasetName {
    /// Parses `name`, `name/config`, and each with `:version`, `@tag` or `@log=N` after it.
    ///
    /// # Errors
    /// [`Error::Name`], saying which part is wrong and what it may be.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |reason: String| Error::Name {
            text: text.to_string(),
            reason,
        };
        let end = text.find([':', '@']).unwrap_or(text.len());
        let (place, selector) = text.split_at(end);
        let (name, config) = match place.split_once('/') {
            Some((name, config)) => (name, Some(config)),
            None => (place, None),
        };
        check_name(name).map_err(wrong)?;
        if let Some(config) = config {
            check_config(config).map_err(wrong)?;
        }
        let selector = if let Some(version) = selector.strip_prefix(':') {
            Version::from_str(version).map_err(|_| {
                wrong(format!(
                    "`{version}` is not a version: wanted three numbers such as `:1.0.0`"
                ))
            })?;
            Selector::Version(version.to_string())
        } else if let Some(number) = selector.strip_prefix("@log=") {
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            match number.parse() {
                Ok(number) if is_number => Selector::Log(number),
                _ => {
                    return Err(wrong(format!(
                        "`{number}` is not a log number: wanted one such as `@log=7`"
                    )));
                }
            }
        } else if let Some(tag) = selector.strip_prefix('@') {
            check_tag(tag).map_err(wrong)?;
            Selector::Tag(tag.to_string())
        } else {
            Selector::Latest
        };
        Ok(Self {
            name: name.to_string(),
            config: config.map(str::to_string),
            selector,
        })
    }

    /// The name of a dataset, all versions of it.
    ///
    /// # Errors
    /// [`Error::Name`] as [`DatasetName::parse`].
    pub fn new(name: &str, config: Option<&str>) -> Result<Self> {
        let wrong = |reason: String| Error::Name {
            text: name.to_string() + &config.map(|config| format!("/{config}")).unwrap_or_default(),
            reason,
        };
        check_name(name).map_err(wrong)?;
        config.map_or(Ok(()), check_config).map_err(wrong)?;
        Ok(Self {
            name: name.to_string(),
            config: config.map(str::to_string),
            selector: Selector::Latest,
        })
    }

    /// `name` or `name/config`, without what asks for a version: the folder below `log` and below the data folder.
    pub fn place(&self) -> String {
        place(&self.name, self.config.as_deref())
    }

    /// The same dataset with another selector.
    #[must_use]
    pub fn with_selector(mut self, selector: Selector) -> Self {
        self.selector = selector;
        self
    }
}

/// `name` or `name/config`.
pub(crate) fn place(name: &str, config: Option<&str>) -> String {
    match config {
        Some(config) => format!("{name}/{config}"),
        None => name.to_string(),
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.place(), self.selector)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => Ok(()),
            Self::Version(version) => write!(f, ":{version}"),
            Self::Tag(tag) => write!(f, "@{tag}"),
            Self::Log(number) => write!(f, "@log={number}"),
        }
    }
}

impl FromStr for DatasetName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

fn check_name(name: &str) -> Result<(), String> {
    check_length("dataset name", name)?;
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(format!("a dataset name starts with a letter, `{name}` does not"));
    }
    check_letters("dataset name", name, "_")
}

fn check_config(config: &str) -> Result<(), String> {
    check_length("config", config)?;
    check_letters("config", config, "_+-.")?;
    if config.starts_with(['.', '-']) {
        return Err(format!(
            "a config starts with a letter, a digit, `_` or `+`, `{config}` does not"
        ));
    }
    if Version::from_str(config).is_ok() {
        return Err(format!(
            "a config must not look like a version: for version `{config}` write `:{config}`"
        ));
    }
    if crate::store::entry_number(config).is_some() {
        return Err(format!(
            "a config must not look like a log entry's file, `{config}` does"
        ));
    }
    Ok(())
}

/// Checks the name of a tag.
pub(crate) fn check_tag(tag: &str) -> Result<(), String> {
    check_length("tag", tag)?;
    if !tag.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(format!("a tag starts with a letter or a digit, `{tag}` does not"));
    }
    check_letters("tag", tag, "_-.")
}

fn check_length(what: &str, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("the {what} is empty"));
    }
    if text.len() > MAX_PART_BYTES {
        return Err(format!(
            "the {what} has {} bytes, at most {MAX_PART_BYTES} are allowed",
            text.len()
        ));
    }
    Ok(())
}

fn check_letters(what: &str, text: &str, others: &str) -> Result<(), String> {
    match text
        .chars()
        .find(|&c| !c.is_ascii_alphanumeric() && !others.contains(c))
    {
        None => Ok(()),
        Some(found) => Err(format!(
            "`{}` is not allowed in a {what}: wanted a-z, A-Z, 0-9 and `{others}`",
            found.escape_debug()
        )),
    }
}

/// A version: `major.minor.patch`, compared as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u64,
    minor: u64,
    patch: u64,
}

impl Version {
    /// Parses `major.minor.patch`, no leading zeros.
    ///
    /// # Errors
    /// [`Error::Name`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        text.parse()
    }

    /// `1.2.3` becomes `1.2.4`; `None` where there is no greater number.
    pub fn next_patch(self) -> Option<Self> {
        let patch = self.patch.checked_add(1)?;
        Some(Self { patch, ..self })
    }

    /// `1.2.3` becomes `1.3.0`; `None` where there is no greater number.
    pub fn next_minor(self) -> Option<Self> {
        let minor = self.minor.checked_add(1)?;
        Some(Self {
            minor,
            patch: 0,
            ..self
        })
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split('.').map(|part| {
            let is_plain = !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_digit())
                && (part == "0" || !part.starts_with('0'));
            part.parse::<u64>().ok().filter(|_| is_plain)
        });
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => {
                Ok(Self { major, minor, patch })
            }
            _ => Err(Error::Name {
                text: text.to_string(),
                reason: "a version is three numbers without leading zeros, such as `1.0.0`".into(),
            }),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_follow_each_other() {
        let version = Version::parse("1.2.9").unwrap();
        assert_eq!(version.next_patch().unwrap().to_string(), "1.2.10");
        assert_eq!(version.next_minor().unwrap().to_string(), "1.3.0");
        let last = Version::parse(&format!("1.{0}.{0}", u64::MAX)).unwrap();
        assert_eq!((last.next_patch(), last.next_minor()), (None, None));
    }

    #[test]
    fn all_forms_parse_and_print_the_same() {
        for (text, config, selector) in [
            ("cifar10", None, Selector::Latest),
            ("MNIST_2", None, Selector::Latest),
            ("movi_e/256x256", Some("256x256"), Selector::Latest),
            ("a/b-c.d+e", Some("b-c.d+e"), Selector::Latest),
            ("cifar10:3.0.2", None, Selector::Version("3.0.2".into())),
            ("a/b:10.0.0", Some("b"), Selector::Version("10.0.0".into())),
            ("cifar10@best", None, Selector::Tag("best".into())),
            ("a/b@v1.2-rc_1", Some("b"), Selector::Tag("v1.2-rc_1".into())),
            ("cifar10@log", None, Selector::Tag("log".into())),
            ("cifar10@log=7", None, Selector::Log(7)),
            ("cifar10@log=18446744073709551615", None, Selector::Log(u64::MAX)),
        ] {
            let name = DatasetName::parse(text).unwrap();
            assert_eq!(
                (name.config.as_deref(), &name.selector),
                (config, &selector),
                "{text}"
            );
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn wrong_names_say_which_part_is_wrong() {
        for (text, part) in [
            ("", "dataset name is empty"),
            ("/x", "dataset name is empty"),
            (":1.0.0", "dataset name is empty"),
            ("10cifar", "starts with a letter"),
            ("..", "starts with a letter"),
            ("../x", "starts with a letter"),
            ("cifar-10", "`-` is not allowed in a dataset name"),
            ("café", "`é` is not allowed"),
            ("猫", "starts with a letter"),
            ("a\0b", "`\\0` is not allowed"),
            ("a b", "` ` is not allowed"),
            ("a/", "config is empty"),
            ("a/..", "config starts with"),
            ("a/.hidden", "config starts with"),
            ("a/b/c", "`/` is not allowed in a config"),
            ("a/b\\c", "is not allowed in a config"),
            ("a/1.0.0", "must not look like a version"),
            ("a/00000000000000000007.json", "must not look like a log entry"),
            ("a:", "is not a version"),
            ("a:1.0", "is not a version"),
            ("a:01.0.0", "is not a version"),
            ("a:1.0.0.0", "is not a version"),
            ("a:1.0.-1", "is not a version"),
            ("a:99999999999999999999.0.0", "is not a version"),
            ("a:1.0.0@best", "is not a version"),
            ("a@", "tag is empty"),
            ("a@-x", "tag starts with"),
            ("a@x/y", "not allowed in a tag"),
            ("a@log=", "is not a log number"),
            ("a@log=+7", "is not a log number"),
            ("a@log=18446744073709551616", "is not a log number"),
        ] {
            let error = DatasetName::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let long = "a".repeat(129);
        assert!(DatasetName::parse(&long).is_err());
        assert!(DatasetName::parse(&long[..128]).is_ok());
    }

    #[test]
    fn versions_compare_as_numbers() {
        let mut versions: Vec<Version> = ["10.0.0", "9.1.0", "9.0.10", "9.0.9"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        versions.sort();
        let sorted: Vec<String> = versions.iter().map(Version::to_string).collect();
        assert_eq!(sorted, ["9.0.9", "9.0.10", "9.1.0", "10.0.0"]);
    }

    proptest! {
        /// What parses is safe as a path, prints as it was written, and nothing panics.
        #[test]
        fn parsed_names_are_safe(text in "[a/.:@=0-9+_é\\\\ -]{0,12}|.{0,12}") {
            if let Ok(name) = DatasetName::parse(&text) {
                prop_assert_eq!(name.to_string(), text);
                prop_assert!(name.place().split('/').all(|part| !part.is_empty() && !part.starts_with('.')));
                prop_assert!(name.place().is_ascii());
            }
        }
    }
}
