//! The state of a dataset: the fold of its log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::entry::{Change, Entry, VersionRecord};
use crate::{Error, Result, Version};

/// The versions and tags of a dataset, after an entry of its log. About 1 KB for each version.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    log_number: Option<u64>,
    versions: BTreeMap<Version, VersionState>,
    tags: BTreeMap<String, Version>,
}

/// A version, and the entry that brought it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionState {
    /// Number of the entry.
    pub log_number: u64,
    /// What it says.
    #[serde(flatten)]
    pub record: VersionRecord,
}

/// A state in an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    versions: Vec<VersionState>,
    tags: BTreeMap<String, String>,
}

impl State {
    /// Number of the last entry, `None` for an empty log.
    pub fn log_number(&self) -> Option<u64> {
        self.log_number
    }

    /// Versions, oldest number first.
    pub fn versions(&self) -> impl DoubleEndedIterator<Item = (&Version, &VersionState)> {
        self.versions.iter()
    }

    /// The greatest version.
    pub fn latest(&self) -> Option<&VersionState> {
        self.versions.values().next_back()
    }

    /// The version of this number.
    pub fn version(&self, version: &str) -> Option<&VersionState> {
        self.versions.get(&version.parse().ok()?)
    }

    /// Tags and the versions that they name, sorted by tag.
    pub fn tags(&self) -> impl Iterator<Item = (&str, &Version)> {
        self.tags.iter().map(|(tag, version)| (tag.as_str(), version))
    }

    /// Follows the log by one entry.
    pub(crate) fn apply(&mut self, log_number: u64, entry: &Entry) -> Result<()> {
        self.log_number = Some(log_number);
        match &entry.change {
            Change::Build(record) | Change::Register(record) | Change::Append(record) => {
                let state = VersionState {
                    log_number,
                    record: record.clone(),
                };
                self.versions.insert(record.version.parse()?, state);
            }
            Change::Tag(record) => {
                self.tags.insert(record.tag.clone(), record.version.parse()?);
            }
            Change::Remove(record) => {
                let version = record.version.parse()?;
                self.versions.remove(&version);
                self.tags.retain(|_, tagged| *tagged != version);
            }
            Change::Gc(_) => {}
        }
        Ok(())
    }

    /// Checks that a change makes sense now.
    ///
    /// # Errors
    /// [`Error::Refused`] for a tag on, or the removal of, a version that is not there, and for malformed records.
    pub(crate) fn check(&self, change: &Change) -> Result<()> {
        change.validate().map_err(Error::Refused)?;
        let wanted = match change {
            Change::Tag(record) => &record.version,
            Change::Remove(record) => &record.version,
            _ => return Ok(()),
        };
        if self.version(wanted).is_some() {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "could not {}: there is no version `{wanted}`",
            change.kind()
        )))
    }

    pub(crate) fn to_checkpoint(&self) -> Checkpoint {
        Checkpoint {
            versions: self.versions.values().cloned().collect(),
            tags: self
                .tags
                .iter()
                .map(|(tag, version)| (tag.clone(), version.to_string()))
                .collect(),
        }
    }

    /// The state that a checkpoint in entry `log_number` holds: the one before that entry.
    pub(crate) fn from_checkpoint(checkpoint: &Checkpoint, log_number: u64) -> Result<Self> {
        let mut state = Self {
            log_number: log_number.checked_sub(1),
            ..Self::default()
        };
        for version in &checkpoint.versions {
            Change::Build(version.record.clone())
                .validate()
                .map_err(Error::Refused)?;
            state
                .versions
                .insert(version.record.version.parse()?, version.clone());
        }
        for (tag, version) in &checkpoint.tags {
            state.tags.insert(tag.clone(), version.parse()?);
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{GcRecord, RemoveRecord, TagRecord};
    use crate::manifest::tests::example;
    use serde_json::Map;

    fn build(version: &str, seed: u8) -> Change {
        let manifest = example("a", None, version, seed);
        Change::Build(VersionRecord::of_manifest(&manifest, format!("data/a/{version}")))
    }

    fn tag(tag: &str, version: &str) -> Change {
        Change::Tag(TagRecord {
            tag: tag.into(),
            version: version.into(),
            other: Map::new(),
        })
    }

    fn remove(version: &str) -> Change {
        Change::Remove(RemoveRecord {
            version: version.into(),
            other: Map::new(),
        })
    }

    fn fold(changes: &[Change]) -> State {
        let mut state = State::default();
        for (number, change) in changes.iter().enumerate() {
            state.check(change).unwrap();
            state
                .apply(number as u64, &Entry::new(change.clone()).unwrap())
                .unwrap();
        }
        state
    }

    #[test]
    fn the_latest_is_the_greatest_version_not_the_last_built() {
        let state = fold(&[build("10.0.0", 1), build("9.0.0", 2)]);
        assert_eq!(state.latest().unwrap().record.version, "10.0.0");
        assert_eq!(state.latest().unwrap().log_number, 0);
        assert_eq!(state.log_number(), Some(1));
    }

    #[test]
    fn a_second_build_replaces_the_first_and_tags_follow_the_log() {
        let gc = Change::Gc(GcRecord {
            paths: vec![],
            other: Map::new(),
        });
        let mut changes = vec![build("1.0.0", 1), tag("best", "1.0.0"), build("1.0.0", 2), gc];
        let state = fold(&changes);
        assert_eq!(state.version("1.0.0").unwrap().log_number, 2);
        assert_eq!(
            state.version("1.0.0").unwrap().record.fingerprint,
            "02".repeat(32)
        );
        assert_eq!(state.tags().count(), 1);
        changes.push(remove("1.0.0"));
        let state = fold(&changes);
        assert_eq!((state.versions().count(), state.tags().count()), (0, 0));
        assert!(state.check(&tag("best", "1.0.0")).is_err());
        assert!(state.check(&remove("1.0.0")).is_err());
        assert!(state.check(&tag("../x", "1.0.0")).is_err());
    }

    #[test]
    fn a_checkpoint_is_the_state() {
        let state = fold(&[
            build("1.0.0", 1),
            build("2.0.0", 2),
            tag("best", "1.0.0"),
            remove("2.0.0"),
        ]);
        let json = serde_json::to_string(&state.to_checkpoint()).unwrap();
        let checkpoint = serde_json::from_str(&json).unwrap();
        assert_eq!(State::from_checkpoint(&checkpoint, 4).unwrap(), state);
    }
}
