//! `--select` and `--rename`, and which names of features were seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use prep_formats::example::ExampleView;

use crate::convert::read::Block;
use crate::error::Hinted;

/// Names that are kept for the message about a feature that nobody has.
const MOST_NAMES: usize = 1000;

/// What is done to the features of each record.
#[derive(Debug)]
pub(crate) struct Transform {
    /// Names that stay; `None` for all.
    select: Option<BTreeSet<String>>,
    /// New names by old ones.
    rename: BTreeMap<String, String>,
    /// Every name that was seen, up to so many.
    seen: Mutex<BTreeSet<String>>,
}

/// What one thread keeps from record to record.
#[derive(Debug, Default)]
pub(crate) struct Scribe {
    /// Names that are in `seen` already, as far as this thread knows.
    known: BTreeSet<String>,
    buffer: Vec<u8>,
}

/// Parses `F,..` of `--select`.
pub(crate) fn parse_select(text: &str) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    for name in text.split(',') {
        let name = name.trim();
        if name.is_empty() {
            return Err(format!(
                "`{text}` has an empty name; wanted names with commas between"
            ));
        }
        if names.iter().any(|other| other == name) {
            return Err(format!("`{name}` is there twice"));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Parses `OLD=NEW,..` of `--rename`.
pub(crate) fn parse_rename(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for pair in text.split(',') {
        let wrong = || format!("`{pair}` is not OLD=NEW");
        let (old, new) = pair.split_once('=').ok_or_else(wrong)?;
        let (old, new) = (old.trim(), new.trim());
        if old.is_empty() || new.is_empty() || new.contains('=') {
            return Err(wrong());
        }
        for (other_old, other_new) in &pairs {
            if old == other_old {
                return Err(format!("`{old}` is renamed twice"));
            }
            if new == other_new {
                return Err(format!("`{old}` and `{other_old}` would both be `{new}`"));
            }
        }
        pairs.push((old.to_owned(), new.to_owned()));
    }
    Ok(pairs)
}

impl Transform {
    pub(crate) fn new(select: Option<&[String]>, rename: &[(String, String)]) -> Result<Self> {
        let select: Option<BTreeSet<String>> = select.map(|names| names.iter().cloned().collect());
        if let Some(select) = &select
            && let Some((old, _)) = rename.iter().find(|(old, _)| !select.contains(old))
        {
            bail!("`{old}` is to be renamed, but is not among the selected features");
        }
        Ok(Self {
            select,
            rename: rename.iter().cloned().collect(),
            seen: Mutex::default(),
        })
    }

    /// Whether records stay as they are.
    pub(crate) fn is_identity(&self) -> bool {
        self.select.is_none() && self.rename.is_empty()
    }

    pub(crate) fn scribe(&self) -> Scribe {
        Scribe::default()
    }

    /// Parses a record and notes the names of its features.
    pub(crate) fn parse<'a>(&self, scribe: &mut Scribe, record: &'a [u8]) -> Result<ExampleView<'a>> {
        let example = ExampleView::parse(record).context(Hinted::new(
            "it is not a tf.train.Example, which is what features are read from",
            "records of another kind can be converted whole: without flags that name features",
        ))?;
        for (name, _) in example.iter() {
            if !scribe.known.contains(name) && scribe.known.len() < MOST_NAMES {
                scribe.known.insert(name.to_owned());
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen.len() < MOST_NAMES {
                    seen.insert(name.to_owned());
                }
            }
        }
        Ok(example)
    }

    /// Appends the record as it is to be written.
    pub(crate) fn write(&self, example: &ExampleView<'_>, out: &mut Vec<u8>) -> Result<()> {
        if !self.rename.is_empty() {
            for (old, new) in &self.rename {
                let is_free = !example.iter().any(|(name, _)| name == new)
                    || self.rename.contains_key(new)
                    || self.select.as_ref().is_some_and(|select| !select.contains(new));
                if !is_free && example.get(old).is_some() {
                    bail!("`{old}` cannot be renamed to `{new}`: the record has a feature of that name");
                }
            }
        }
        example.encode_some(
            |name| {
                if self.select.as_ref().is_some_and(|select| !select.contains(name)) {
                    return None;
                }
                Some(self.rename.get(name).map_or(name, String::as_str))
            },
            out,
        );
        Ok(())
    }

    /// Rewrites all records of a block.
    pub(crate) fn apply_to_block(&self, scribe: &mut Scribe, block: &mut Block, name: &str) -> Result<()> {
        let mut out = std::mem::take(&mut scribe.buffer);
        out.clear();
        for index in 0..block.records.len() {
            let start = out.len();
            let example = self.parse(scribe, &block.buffer[block.records[index].clone()]);
            example
                .and_then(|example| self.write(&example, &mut out))
                .with_context(|| format!("{name}, record {}", block.first + index as u64))?;
            block.records[index] = start..out.len();
        }
        scribe.buffer = std::mem::replace(&mut block.buffer, out);
        Ok(())
    }

    /// The names seen so far.
    pub(crate) fn names(&self) -> Vec<String> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }

    /// Notes names that an earlier run or another process has seen.
    pub(crate) fn restore(&self, names: &[String]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(names.iter().cloned());
    }

    /// The features that are chosen or renamed, for [`check_names`].
    pub(crate) fn wanted(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let select = self
            .select
            .iter()
            .flatten()
            .map(|name| ("--select", name.as_str()));
        select.chain(self.rename.keys().map(|name| ("--rename", name.as_str())))
    }
}

/// Refuses features that no record had: they are misspelt.
pub(crate) fn check_names<'a>(
    wanted: impl Iterator<Item = (&'static str, &'a str)>,
    seen: &[String],
) -> Result<()> {
    for (flag, name) in wanted {
        if seen.iter().any(|other| other == name) || seen.is_empty() || seen.len() >= MOST_NAMES {
            continue;
        }
        let names: Vec<String> = seen.iter().take(50).map(|name| format!("`{name}`")).collect();
        return Err(anyhow!(Hinted::new(
            format!("no record has a feature `{name}`, which `{flag}` names"),
            format!("there are {}", names.join(", ")),
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prep_formats::example::{Example, FeatureList};

    use super::*;

    #[test]
    fn lists_of_names_are_checked() {
        assert_eq!(parse_select("a, b/c").unwrap(), ["a", "b/c"]);
        assert!(parse_select("a,,b").is_err() && parse_select("a,a").is_err());
        assert_eq!(parse_rename("a=b,c=d").unwrap().len(), 2);
        for wrong in ["a", "a=", "=b", "a=b=c", "a=b,a=c", "a=c,b=c", ""] {
            assert!(parse_rename(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn features_are_chosen_and_renamed() {
        let mut example = Example::default();
        for (name, list) in [
            ("a", FeatureList::Int64(vec![1, -2])),
            ("b", FeatureList::Bytes(vec![b"x".to_vec(), vec![]])),
            ("c", FeatureList::Float(vec![0.5])),
            ("d", FeatureList::None),
        ] {
            example.features.insert(name.into(), list);
        }
        let record = example.encode();
        let run = |select: Option<&str>, rename: &str| -> Result<Example> {
            let select = select.map(|text| parse_select(text).unwrap());
            let rename = if rename.is_empty() {
                vec![]
            } else {
                parse_rename(rename).unwrap()
            };
            let transform = Transform::new(select.as_deref(), &rename)?;
            let mut scribe = transform.scribe();
            let mut out = Vec::new();
            transform.write(&transform.parse(&mut scribe, &record)?, &mut out)?;
            assert_eq!(transform.names(), ["a", "b", "c", "d"]);
            Ok(Example::decode(&out)?)
        };
        assert_eq!(run(None, "").unwrap(), example);
        let found = run(Some("b,a"), "a=z").unwrap();
        let names: Vec<&String> = found.features.keys().collect();
        assert_eq!(names, ["b", "z"]);
        assert_eq!(found.features["z"], example.features["a"]);
        // Two may change places; one may take the name of what is left out.
        assert_eq!(run(None, "a=b,b=a").unwrap().features["a"], example.features["b"]);
        assert!(run(Some("a"), "a=b").is_ok());
        assert!(run(None, "a=b").unwrap_err().to_string().contains("of that name"));
        assert!(run(Some("a"), "b=c").is_err());
    }

    #[test]
    fn unknown_names_bring_the_known_ones() {
        let seen = ["a".to_owned(), "b".to_owned()];
        assert!(check_names([("--select", "a")].into_iter(), &seen).is_ok());
        let error = check_names([("--select", "x")].into_iter(), &seen).unwrap_err();
        let hint = &crate::error::find::<Hinted>(&error).unwrap().hint;
        assert!(error.to_string().contains("`x`") && hint.contains("`a`, `b`"));
        assert!(check_names([("--select", "x")].into_iter(), &[]).is_ok());
    }
}
