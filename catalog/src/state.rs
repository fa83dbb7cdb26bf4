//! The state of a dataset: the fold of its log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::entry::{Change, Entry, VersionRecord};
use crate::{Error, Result, Version};

/// The versions and tags of a dataset, after an entry of its log. About 1 KB for each version.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    log_number: Option<u64>,
    versions: BTreeMap<Version, VersionState>,
    tags: BTreeMap<String, Version>,
    garbage: BTreeMap<String, Garbage>,
    collected: BTreeMap<String, u64>,
}

/// A folder that was a version's and is nobody's now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Garbage {
    /// Number of the entry that removed or replaced the version.
    pub log_number: u64,
    /// When that was, by the clock of its writer.
    pub time: String,
    /// The version that it held.
    pub version: String,
}

/// A version, and the entry that brought it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionState {
    /// Number of the entry.
    pub log_number: u64,
    /// Its kind: `build`, `register` (the shards are the user's files, and never deleted) or `append`.
    #[serde(default = "build_kind")]
    pub kind: String,
    /// What it says.
    #[serde(flatten)]
    pub record: VersionRecord,
}

/// A state in an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    versions: Vec<VersionState>,
    tags: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    garbage: BTreeMap<String, Garbage>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    collected: BTreeMap<String, u64>,
}

fn build_kind() -> String {
    "build".into()
}

impl Garbage {
    /// For how long it has been garbage; nothing where the clocks disagree, or the entry tells no time.
    pub fn age(&self, now: SystemTime) -> Duration {
        let since = crate::entry::parse_utc(&self.time);
        since
            .and_then(|since| now.duration_since(since).ok())
            .unwrap_or_default()
    }
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

    /// Folders that were a version's and are nobody's now, by their paths as in [`VersionRecord::path`]. Of files that were registered where they
    /// lay it is the folder that describes them.
    pub fn garbage(&self) -> impl Iterator<Item = (&str, &Garbage)> {
        let used: BTreeSet<&str> = self
            .versions
            .values()
            .flat_map(|state| state.record.folders())
            .collect();
        let all = self
            .garbage
            .iter()
            .map(|(path, garbage)| (path.as_str(), garbage));
        all.filter(move |(path, _)| !used.contains(path))
    }

    /// The folders that a `gc` has deleted, or was about to when it was killed, and the number of its entry.
    pub fn collected(&self) -> impl Iterator<Item = (&str, u64)> {
        self.collected
            .iter()
            .map(|(path, number)| (path.as_str(), *number))
    }

    /// Whether a `gc` has deleted this folder, or is about to. About 100 bytes are kept for each.
    pub fn was_collected(&self, path: &str) -> bool {
        self.collected.contains_key(path)
    }

    /// The versions, as texts, that need a folder.
    pub fn users_of(&self, path: &str) -> Vec<String> {
        let users = self.versions.iter();
        users
            .filter(|(_, state)| state.record.folders().any(|folder| folder == path))
            .map(|(version, _)| version.to_string())
            .collect()
    }

    /// Follows the log by one entry.
    pub(crate) fn apply(&mut self, log_number: u64, entry: &Entry) -> Result<()> {
        self.log_number = Some(log_number);
        match &entry.change {
            Change::Build(record) | Change::Register(record) | Change::Append(record) => {
                let state = VersionState {
                    log_number,
                    kind: entry.change.kind().to_string(),
                    record: record.clone(),
                };
                let old = self.versions.insert(record.version.parse()?, state);
                if let Some(old) = old {
                    self.let_go(&old, log_number, &entry.time);
                }
                self.garbage.remove(&record.path);
                self.collected.remove(&record.path);
            }
            Change::Tag(record) => {
                self.tags.insert(record.tag.clone(), record.version.parse()?);
            }
            Change::Untag(record) => {
                self.tags.remove(&record.tag);
            }
            Change::Remove(record) => {
                let version = record.version.parse()?;
                let old = self.versions.remove(&version);
                self.tags.retain(|_, tagged| *tagged != version);
                if let Some(old) = old {
                    self.let_go(&old, log_number, &entry.time);
                }
            }
            Change::Gc(record) => {
                for path in &record.paths {
                    self.garbage.remove(path);
                    self.collected.insert(path.clone(), log_number);
                }
            }
        }
        Ok(())
    }

    /// Notes the folder of a version that is gone.
    fn let_go(&mut self, old: &VersionState, log_number: u64, time: &str) {
        let record = &old.record;
        let is_used = self
            .versions
            .values()
            .any(|state| state.record.path == record.path);
        // A staged folder goes with its staging.
        if !is_used {
            let garbage = Garbage {
                log_number,
                time: time.to_string(),
                version: record.version.clone(),
            };
            self.garbage.insert(record.path.clone(), garbage);
        }
        // What it shared has had a reader until now.
        for folder in &record.shares {
            if let Some(garbage) = self.garbage.get_mut(folder) {
                garbage.log_number = log_number;
                garbage.time = time.to_string();
            }
        }
    }

    /// Checks that a change makes sense now.
    ///
    /// # Errors
    /// [`Error::Refused`] for a tag on, or the removal of, a version that is not there, for a folder that others need or that is being deleted,
    /// and for malformed records.
    pub(crate) fn check(&self, change: &Change) -> Result<()> {
        change.validate().map_err(Error::Refused)?;
        if let Some(record) = change.version_record() {
            return self.check_folders(record);
        }
        let wanted = match change {
            Change::Untag(record) if !self.tags.contains_key(&record.tag) => {
                return Err(Error::Refused(format!(
                    "could not remove the tag `{}`: there is no such tag",
                    record.tag
                )));
            }
            Change::Gc(record) => {
                let used = record.paths.iter().find(|path| !self.users_of(path).is_empty());
                return match used {
                    None => Ok(()),
                    Some(path) => Err(Error::Refused(format!(
                        "could not delete `{path}`: version {} needs it",
                        self.users_of(path).join(", ")
                    ))),
                };
            }
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

    /// Checks that a version which comes in neither changes the files of another one nor relies on files that go away.
    fn check_folders(&self, record: &VersionRecord) -> Result<()> {
        let same_data = |other: &VersionState| other.record.manifest_sha256 == record.manifest_sha256;
        let in_place = self
            .version(&record.version)
            .filter(|old| old.record.path == record.path);
        // Also of a version that was removed the folder may be in use.
        let changes = match in_place {
            Some(old) => !same_data(old),
            None => record.staged_path.is_some(),
        };
        if changes {
            let users: Vec<String> = self
                .users_of(&record.path)
                .into_iter()
                .filter(|user| *user != record.version)
                .collect();
            if !users.is_empty() {
                return Err(Error::Refused(format!(
                    "could not replace version {}: {} uses its shards; remove it first, or give a new version",
                    record.version,
                    users.join(", ")
                )));
            }
        }
        for shared in &record.shares {
            let is_there = !self.users_of(shared).is_empty() || self.garbage.contains_key(shared);
            if !is_there {
                return Err(Error::Refused(format!(
                    "version {} uses shards in `{shared}`, which no version of the catalog has",
                    record.version
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn to_checkpoint(&self) -> Checkpoint {
        Checkpoint {
            versions: self.versions.values().cloned().collect(),
            tags: self
                .tags
                .iter()
                .map(|(tag, version)| (tag.clone(), version.to_string()))
                .collect(),
            garbage: self.garbage.clone(),
            collected: self.collected.clone(),
        }
    }

    /// The state that a checkpoint in entry `log_number` holds: the one before that entry.
    pub(crate) fn from_checkpoint(checkpoint: &Checkpoint, log_number: u64) -> Result<Self> {
        let mut state = Self {
            log_number: log_number.checked_sub(1),
            garbage: checkpoint.garbage.clone(),
            collected: checkpoint.collected.clone(),
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
    fn folders_are_garbage_when_nobody_needs_them() {
        let in_folder = |version: &str, seed: u8, folder: &str, shares: &[&str]| {
            let mut record =
                VersionRecord::of_manifest(&example("a", None, version, seed), folder.to_string());
            record.shares = shares.iter().map(ToString::to_string).collect();
            record
        };
        let garbage =
            |state: &State| -> Vec<String> { state.garbage().map(|(path, _)| path.to_string()).collect() };
        let mut changes = vec![
            Change::Build(in_folder("1.0.0", 1, "d/1.0.0", &[])),
            Change::Append(in_folder("1.1.0", 2, "d/1.1.0", &["d/1.0.0"])),
            Change::Register(in_folder("3.0.0", 3, "d/3.0.0", &[])),
        ];
        // Its folder must not change under the version that shares it.
        let state = fold(&changes);
        assert!(
            state
                .check(&Change::Build(in_folder("1.0.0", 9, "d/1.0.0", &[])))
                .is_err()
        );
        assert!(
            state
                .check(&Change::Append(in_folder("1.2.0", 4, "d/1.2.0", &["d/x"])))
                .is_err()
        );
        changes.extend([remove("1.0.0"), remove("3.0.0")]);
        // What describes files in place goes; they themselves are in no folder of the catalog's.
        let state = fold(&changes);
        assert_eq!(garbage(&state), ["d/3.0.0"]);
        // Nor when the version itself is gone. What lies there may come back.
        let mut again = in_folder("1.0.0", 9, "d/1.0.0", &[]);
        assert!(state.check(&Change::Build(again.clone())).is_ok());
        again.staged_path = Some("d/.staging/1.0.0".into());
        assert!(state.check(&Change::Build(again)).is_err());
        changes.pop();
        changes.push(remove("1.1.0"));
        let state = fold(&changes);
        assert_eq!(garbage(&state), ["d/1.0.0", "d/1.1.0"]);
        let collect = |path: &str| {
            Change::Gc(GcRecord {
                paths: vec![path.into()],
                other: Map::new(),
            })
        };
        changes.push(collect("d/1.0.0"));
        let state = fold(&changes);
        assert_eq!(garbage(&state), ["d/1.1.0"]);
        assert!(state.was_collected("d/1.0.0") && !state.was_collected("d/1.1.0"));
        assert!(
            state
                .check(&Change::Append(in_folder("2.0.0", 4, "d/2.0.0", &["d/1.0.0"])))
                .is_err()
        );
        // One that comes back is in use again, and cannot be collected.
        changes.push(Change::Build(in_folder("1.1.0", 2, "d/1.1.0", &[])));
        let state = fold(&changes);
        assert!(garbage(&state).is_empty());
        assert!(state.check(&collect("d/1.1.0")).is_err());
        // Another folder for the same version leaves the old one.
        changes.push(Change::Build(in_folder("1.1.0", 5, "d/1.1.0-x", &[])));
        assert_eq!(garbage(&fold(&changes)), ["d/1.1.0"]);
    }

    #[test]
    fn a_checkpoint_is_the_state() {
        let mut changes = vec![
            build("1.0.0", 1),
            build("2.0.0", 2),
            build("3.0.0", 3),
            tag("best", "1.0.0"),
            remove("2.0.0"),
            remove("3.0.0"),
        ];
        let taken = fold(&changes).garbage().next().unwrap().0.to_string();
        changes.push(Change::Gc(GcRecord {
            paths: vec![taken],
            other: Map::new(),
        }));
        let state = fold(&changes);
        assert_eq!((state.garbage().count(), state.collected().count()), (1, 1));
        let json = serde_json::to_string(&state.to_checkpoint()).unwrap();
        let checkpoint = serde_json::from_str(&json).unwrap();
        assert_eq!(State::from_checkpoint(&checkpoint, 7).unwrap(), state);
    }
}
