//! Entries of a dataset's log: JSON objects, written once and never edited.
//!
//! ```json
//! {
//!   "kind": "build",
//!   "commit_id": "8e2c77aa4b7d4a1fbc0ad3b2d10f7e55",
//!   "min_reader": 1,
//!   "time": "2026-11-29T17:35:38Z", "program": "prep 0.1.0", "host": "trainer-7",
//!   "version": "3.0.2",
//!   "path": "data/cifar10/3.0.2",
//!   "manifest_sha256": "..", "fingerprint": "..", "recipe_sha256": "..",
//!   "splits": {"train": {"examples": 50000, "shards": 1, "bytes": 120000000}},
//!   "flags": {"checksum": "skipped"}, "skipped_records": 0
//! }
//! ```
//!
//! | kind | says |
//! |---|---|
//! | `build` | a version was built; a second one of the same number replaces the first |
//! | `register` | the same, of files that stay where they were: its folder only describes them (`min_reader` 2) |
//! | `append` | the same, sharing shards with an earlier version |
//! | `tag` | `tag` names `version` from now on |
//! | `untag` | `tag` names nothing any more |
//! | `remove` | `version` is gone, its tags too; its data stay until `gc` |
//! | `gc` | nobody may use the folders in `paths` any more: they are deleted after this entry; changes no version |
//!
//! A version may use shards of another one's folder: its manifest then names them as `../OTHER/FILE`, and its record lists those
//! folders in `shares`, so that neither `gc` nor `--overwrite` takes them away.
//!
//! Fields that this program does not know are kept. A kind that it does not know is refused, since what it says about the
//! versions is unknown; so is an entry whose `min_reader` is above [`READER`]. Time, program and host are here, and nowhere in what
//! is built. Every 32nd entry (number 32, 64 ..) also has a `checkpoint`: the state before it, so that readers go back no further.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::manifest::Manifest;
use crate::state::Checkpoint;
use crate::{Error, Result};

/// What this program can read: entries with a `min_reader` up to this.
pub const READER: u32 = 2;

/// The least reader of versions whose shards are files in place: those before would look for them in the version's folder.
const IN_PLACE_READER: u32 = 2;

/// How many entries lie between two that hold a checkpoint. Ours: a reader fetches 32 entries at most, and 1000 versions
/// (0.6 KB each) write 10 MB of checkpoints in all.
pub const CHECKPOINT_INTERVAL: u64 = 32;

/// One committed change.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// Random, 128 bits in hex: tells a writer whose reply was lost whether an entry is its own.
    pub commit_id: String,
    /// The least [`READER`] that may read this entry.
    pub min_reader: u32,
    /// When it was committed, UTC, as `2026-11-29T17:35:38Z`, by the writer's clock.
    pub time: String,
    /// The program that wrote it, `prep 0.1.0`.
    pub program: String,
    /// The machine that wrote it.
    pub host: String,
    /// What it says.
    pub change: Change,
    /// The state before this entry, where the entry holds it.
    pub(crate) checkpoint: Option<Checkpoint>,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// A version was built.
    Build(VersionRecord),
    /// A version was registered in place.
    Register(VersionRecord),
    /// A version was made by adding to an earlier one.
    Append(VersionRecord),
    /// A tag names a version from now on.
    Tag(TagRecord),
    /// A tag names nothing any more.
    Untag(UntagRecord),
    /// A version is gone.
    Remove(RemoveRecord),
    /// Unreferenced folders were deleted.
    Gc(GcRecord),
}

/// A version, as the log tells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionRecord {
    /// `major.minor.patch`.
    pub version: String,
    /// Its folder: relative to the catalog when below it (so a moved catalog works), else absolute.
    pub path: String,
    /// Where the data lie until they are exchanged with those that they replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged_path: Option<String>,
    /// SHA-256 of the manifest's bytes, hex: which data are meant.
    pub manifest_sha256: String,
    /// Other folders whose shards it uses, written as [`path`](Self::path).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<String>,
    /// Content fingerprint.
    pub fingerprint: String,
    /// SHA-256 of recipe and output options.
    pub recipe_sha256: String,
    /// Splits in the builder's order.
    #[serde(with = "in_order")]
    pub splits: Vec<(String, SplitSummary)>,
    /// What a reader should know, such as `checksum`: `skipped`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flags: BTreeMap<String, String>,
    /// Records left out under `--on-error skip`, in all splits.
    #[serde(default)]
    pub skipped_records: u64,
    /// Fields that this program does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The size of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitSummary {
    /// Number of examples.
    pub examples: u64,
    /// Number of shard files.
    pub shards: u64,
    /// Bytes of all records (payload only), as TFDS counts them.
    pub bytes: u64,
}

/// A tag and the version that it names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TagRecord {
    /// The tag.
    pub tag: String,
    /// The version.
    pub version: String,
    /// Fields that this program does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A tag that names nothing any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UntagRecord {
    /// The tag.
    pub tag: String,
    /// Fields that this program does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A version that is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RemoveRecord {
    /// The version.
    pub version: String,
    /// Fields that this program does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Folders that are deleted after this entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GcRecord {
    /// Their paths, as in [`VersionRecord::path`].
    pub paths: Vec<String>,
    /// Fields that this program does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// An entry on its way from and to JSON: what all kinds share, and the rest.
#[derive(Serialize, Deserialize)]
struct Envelope {
    kind: String,
    commit_id: String,
    min_reader: u32,
    #[serde(default)]
    time: String,
    #[serde(default)]
    program: String,
    #[serde(default)]
    host: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Checkpoint>,
}

impl VersionRecord {
    /// What the log says of a version with this manifest. `path` is relative to the catalog, or absolute.
    pub fn of_manifest(manifest: &Manifest, path: String) -> Self {
        let splits = manifest.splits.iter().map(|split| {
            let summary = SplitSummary {
                examples: split.records,
                shards: split.shards.len() as u64,
                bytes: split.bytes,
            };
            (split.name.clone(), summary)
        });
        let mut shares: Vec<String> = Vec::new();
        if let Some((parent, _)) = path.rsplit_once('/') {
            let folders = manifest.shared_folders().into_iter();
            shares.extend(folders.map(|folder| format!("{parent}/{folder}")));
        }
        Self {
            version: manifest.version.clone(),
            path,
            shares,
            staged_path: None,
            manifest_sha256: manifest.sha256(),
            fingerprint: manifest.fingerprint.clone(),
            recipe_sha256: manifest.recipe_sha256.clone(),
            splits: splits.collect(),
            flags: BTreeMap::new(),
            skipped_records: manifest.splits.iter().map(|split| split.skipped).sum(),
            other: Map::new(),
        }
    }
}

impl VersionRecord {
    /// All folders that it needs, as the log writes them: its own, the staged one, those it shares.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.path)
            .chain(&self.staged_path)
            .chain(&self.shares)
            .map(String::as_str)
    }
}

impl Change {
    /// The `kind` in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Build(_) => "build",
            Self::Register(_) => "register",
            Self::Append(_) => "append",
            Self::Tag(_) => "tag",
            Self::Untag(_) => "untag",
            Self::Remove(_) => "remove",
            Self::Gc(_) => "gc",
        }
    }

    /// The version that this change brings, if it brings one.
    pub fn version_record(&self) -> Option<&VersionRecord> {
        match self {
            Self::Build(record) | Self::Register(record) | Self::Append(record) => Some(record),
            Self::Tag(_) | Self::Untag(_) | Self::Remove(_) | Self::Gc(_) => None,
        }
    }

    fn payload(&self) -> serde_json::Result<Value> {
        match self {
            Self::Build(record) | Self::Register(record) | Self::Append(record) => {
                serde_json::to_value(record)
            }
            Self::Tag(record) => serde_json::to_value(record),
            Self::Untag(record) => serde_json::to_value(record),
            Self::Remove(record) => serde_json::to_value(record),
            Self::Gc(record) => serde_json::to_value(record),
        }
    }

    /// `Ok(None)` for an unknown kind.
    pub(crate) fn from_payload(kind: &str, payload: Value) -> serde_json::Result<Option<Self>> {
        let parse = serde_json::from_value::<VersionRecord>;
        Ok(Some(match kind {
            "build" => Self::Build(parse(payload)?),
            "register" => Self::Register(parse(payload)?),
            "append" => Self::Append(parse(payload)?),
            "tag" => Self::Tag(serde_json::from_value(payload)?),
            "untag" => Self::Untag(serde_json::from_value(payload)?),
            "remove" => Self::Remove(serde_json::from_value(payload)?),
            "gc" => Self::Gc(serde_json::from_value(payload)?),
            _ => return Ok(None),
        }))
    }
}

impl Entry {
    /// A new entry of this program, this machine and this moment, with a commit id of its own.
    ///
    /// # Errors
    /// [`Error::Refused`] where the system has no random numbers.
    pub fn new(change: Change) -> Result<Self> {
        Ok(Self {
            commit_id: commit_id()?,
            min_reader: match change {
                Change::Register(_) => IN_PLACE_READER,
                _ => 1,
            },
            time: utc(now()),
            program: concat!("prep ", env!("CARGO_PKG_VERSION")).to_string(),
            host: host(),
            change,
            checkpoint: None,
        })
    }

    /// The bytes of the entry's file.
    ///
    /// # Panics
    /// Never: an entry holds nothing that JSON lacks.
    pub fn to_json(&self) -> Vec<u8> {
        let payload = self
            .change
            .payload()
            .expect("a record is texts and whole numbers");
        let Value::Object(rest) = payload else {
            unreachable!("a record is a JSON object");
        };
        let envelope = Envelope {
            kind: self.change.kind().to_string(),
            commit_id: self.commit_id.clone(),
            min_reader: self.min_reader,
            time: self.time.clone(),
            program: self.program.clone(),
            host: self.host.clone(),
            rest,
            checkpoint: self.checkpoint.clone(),
        };
        let mut json = serde_json::to_vec(&envelope).expect("an entry is texts and whole numbers");
        json.push(b'\n');
        json
    }

    /// Parses the bytes of an entry's file. `at` is its path or URL, for messages.
    ///
    /// # Errors
    /// [`Error::TooNew`] for an unknown kind or a `min_reader` above [`READER`], [`Error::DamagedEntry`] for all else.
    pub fn from_json(bytes: &[u8], at: &str) -> Result<Self> {
        let damaged = |reason: String| Error::DamagedEntry {
            path: at.to_string(),
            reason: format!("damaged log entry: {reason}"),
        };
        let too_new = |reason: String| Error::TooNew {
            path: at.to_string(),
            reason,
        };
        #[derive(Deserialize)]
        struct Head {
            kind: String,
            min_reader: u32,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if head.min_reader > READER {
            return Err(too_new(format!(
                "the log entry is for readers of version {} and later, this is {READER}",
                head.min_reader
            )));
        }
        let envelope: Envelope = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        let change = Change::from_payload(&head.kind, Value::Object(envelope.rest))
            .map_err(|error| damaged(error.to_string()))?
            .ok_or_else(|| {
                too_new(format!(
                    "the log entry has the unknown kind `{}`",
                    head.kind.escape_debug()
                ))
            })?;
        let entry = Self {
            commit_id: envelope.commit_id,
            min_reader: envelope.min_reader,
            time: envelope.time,
            program: envelope.program,
            host: envelope.host,
            change,
            checkpoint: envelope.checkpoint,
        };
        entry.change.validate().map_err(damaged)?;
        Ok(entry)
    }
}

impl Change {
    /// Checks what a reader relies on: versions are versions, paths and hashes are such.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let check_version = |version: &str| match crate::Version::parse(version) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("`{}` is not a version", version.escape_debug())),
        };
        if let Some(record) = self.version_record() {
            for path in record.folders() {
                let is_absolute = path.starts_with('/') || path.contains("://");
                if !is_absolute {
                    crate::manifest::check_relative_path(path)
                        .map_err(|reason| format!("path `{}`: {reason}", path.escape_debug()))?;
                }
            }
            let is_hash = |text: &str| text.len() == 64 && hex::decode(text).is_ok();
            if !is_hash(&record.manifest_sha256) {
                return Err(format!(
                    "manifest_sha256 `{}` is not a SHA-256",
                    record.manifest_sha256.escape_debug()
                ));
            }
            check_version(&record.version)?;
        }
        match self {
            Self::Tag(record) => {
                crate::name::check_tag(&record.tag)?;
                check_version(&record.version)
            }
            Self::Untag(record) => crate::name::check_tag(&record.tag),
            Self::Remove(record) => check_version(&record.version),
            _ => Ok(()),
        }
    }
}

fn now() -> SystemTime {
    #[cfg(test)]
    if tests::FIXED_ID.with_borrow(Option::is_some) {
        return UNIX_EPOCH;
    }
    SystemTime::now()
}

/// A text that no other commit has.
pub(crate) fn commit_id() -> Result<String> {
    #[cfg(test)]
    if let Some(id) = tests::fixed_id() {
        return Ok(id);
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id)
        .map_err(|error| Error::Refused(format!("the system gave no random numbers: {error}")))?;
    Ok(hex::encode(id))
}

/// The name of this machine, or nothing where it has none.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|name| name.trim().to_string()).unwrap_or_default()
}

/// A time as `2026-11-29T17:35:38Z`.
pub(crate) fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days from 0000-03-01, in eras of 400 years (146,097 days), whose years begin in March.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The time that [`utc`] wrote so; `None` for text that it never writes.
pub(crate) fn parse_utc(text: &str) -> Option<SystemTime> {
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = text.get(range)?;
        digits
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let marks: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
    if text.len() != 20 || marks != "--T::Z" {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // As `utc`, the other way round.
    let (year, march_month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    let seconds = (days.checked_sub(719_468)?) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(UNIX_EPOCH + std::time::Duration::from_secs(seconds))
}

/// Pairs as a JSON object that keeps their order.
mod in_order {
    use std::fmt;

    use serde::de::{MapAccess, Visitor};
    use serde::{Deserializer, Serializer};

    use super::SplitSummary;

    type Pairs = Vec<(String, SplitSummary)>;

    pub(super) fn serialize<S: Serializer>(pairs: &Pairs, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(pairs.iter().map(|(name, summary)| (name, summary)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of splits")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::manifest::tests::example;
    use proptest::prelude::*;
    use std::time::Duration;

    thread_local! {
        /// What the ids of commits of this thread begin with, and how many there were: for models whose steps have to be the same again.
        pub(crate) static FIXED_ID: std::cell::RefCell<Option<(String, u32)>> =
            const { std::cell::RefCell::new(None) };
    }

    /// The next id, where they are fixed.
    pub(super) fn fixed_id() -> Option<String> {
        FIXED_ID.with_borrow_mut(|fixed| {
            let (prefix, count) = fixed.as_mut()?;
            *count += 1;
            Some(format!("{prefix}-{count}"))
        })
    }

    fn build_entry() -> Entry {
        let mut record =
            VersionRecord::of_manifest(&example("a", None, "1.0.0", 7), "data/a/1.0.0".to_string());
        record.flags.insert("checksum".into(), "skipped".into());
        Entry::new(Change::Build(record)).unwrap()
    }

    #[test]
    fn entries_of_all_kinds_survive_json() {
        let record = build_entry().change.version_record().unwrap().clone();
        for change in [
            Change::Build(record.clone()),
            Change::Register(record.clone()),
            Change::Append(record),
            Change::Tag(TagRecord {
                tag: "best".into(),
                version: "1.0.0".into(),
                other: Map::new(),
            }),
            Change::Untag(UntagRecord {
                tag: "best".into(),
                other: Map::new(),
            }),
            Change::Remove(RemoveRecord {
                version: "1.0.0".into(),
                other: Map::new(),
            }),
            Change::Gc(GcRecord {
                paths: vec!["data/a/1.0.0".into()],
                other: Map::new(),
            }),
        ] {
            let entry = Entry::new(change).unwrap();
            assert_eq!(Entry::from_json(&entry.to_json(), "e").unwrap(), entry);
        }
    }

    #[test]
    fn files_in_place_are_for_readers_that_know_them() {
        let manifest = crate::manifest::tests::in_place("1.0.0", 7);
        let record = VersionRecord::of_manifest(&manifest, "data/a/1.0.0".to_string());
        assert!(record.shares.is_empty());
        assert_eq!(Entry::new(Change::Register(record)).unwrap().min_reader, 2);
        assert_eq!(build_entry().min_reader, 1);
    }

    #[test]
    fn splits_keep_their_order_and_unknown_fields_are_kept() {
        let mut value: Value = serde_json::from_slice(&build_entry().to_json()).unwrap();
        let splits: Vec<_> = value["splits"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(splits, ["train", "test"]);
        assert_eq!(value["splits"]["train"]["examples"], 5);
        value["new_field"] = serde_json::json!({"x": [1, 2]});
        let entry = Entry::from_json(value.to_string().as_bytes(), "e").unwrap();
        let again: Value = serde_json::from_slice(&entry.to_json()).unwrap();
        assert_eq!(again["new_field"], value["new_field"]);
    }

    #[test]
    fn what_must_not_be_guessed_at_is_refused() {
        let mut value: Value = serde_json::from_slice(&build_entry().to_json()).unwrap();
        let refused = |value: &Value| Entry::from_json(value.to_string().as_bytes(), "x/7.json").unwrap_err();
        value["kind"] = "merge".into();
        let error = refused(&value);
        assert!(matches!(error, Error::TooNew { .. }));
        assert_eq!(
            error.to_string(),
            "x/7.json: the log entry has the unknown kind `merge`"
        );
        value["kind"] = "build".into();
        value["min_reader"] = (READER + 1).into();
        assert!(matches!(refused(&value), Error::TooNew { .. }));
        value["min_reader"] = 1.into();
        for (field, bad) in [
            ("path", "../../etc"),
            ("staged_path", "a//b"),
            ("version", "latest"),
            ("manifest_sha256", "00"),
        ] {
            let good = value[field].take();
            value[field] = bad.into();
            let error = refused(&value);
            assert!(matches!(error, Error::DamagedEntry { .. }), "{field}: {error}");
            value[field] = good;
        }
        Entry::from_json(value.to_string().as_bytes(), "e").unwrap();
    }

    #[test]
    fn cut_anywhere_it_is_an_error_that_names_the_file() {
        let json = build_entry().to_json();
        for end in 0..json.len() - 1 {
            let error = Entry::from_json(&json[..end], "x/7.json").unwrap_err();
            assert!(error.to_string().starts_with("x/7.json: "), "{error}");
        }
    }

    #[test]
    fn commit_ids_differ_and_times_are_right() {
        let (a, b) = (build_entry(), build_entry());
        assert_ne!(a.commit_id, b.commit_id);
        assert_eq!(a.commit_id.len(), 32);
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
            assert_eq!(parse_utc(text), Some(UNIX_EPOCH + Duration::from_secs(seconds)));
        }
        for wrong in [
            "",
            "1970-01-01",
            "1970-13-01T00:00:00Z",
            "1970-01-01T00:00:0éZ",
            "1970-01-01 00:00:00Z",
        ] {
            assert_eq!(parse_utc(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A changed byte gives an error that names the file or another entry, never a panic.
        #[test]
        fn damaged_bytes_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut json = build_entry().to_json();
            let at = at.index(json.len());
            json[at] = byte;
            match Entry::from_json(&json, "x/7.json") {
                Ok(entry) => entry.change.validate().unwrap(),
                Err(error) => prop_assert!(error.to_string().starts_with("x/7.json: ")),
            }
        }
    }
}
