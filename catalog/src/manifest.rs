//! The immutable description of a dataset version: what lies in its folder, and what it was made from.
//!
//! `prep_manifest.json` is the last file written into a version's folder, and a pure function of recipe, source bytes and output
//! options: no time, host or absolute path (but in a version that was registered in place, whose files may be anywhere). The log holds its SHA-256, and it holds that of every shard, so one hash vouches for
//! all bytes. It is read before any shard: opening a dataset of 10^4 shards reads about 5 MB here and none of the shards.

use std::collections::HashSet;
use std::path::{Component, Path};

use prep_formats::store::Location;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::fingerprint::{SequenceHash, dataset_fingerprint};
use crate::{DatasetName, Error, Result, Version, store};

/// File name of the manifest inside a version's folder.
pub const MANIFEST_FILE: &str = "prep_manifest.json";

/// The format of manifests whose shards lie in their folder, or beside it.
pub const MANIFEST_FORMAT: u32 = 1;

/// The format of manifests whose shards are a user's files, wherever these lie; the newest one read. Programs of before it refuse them.
pub const IN_PLACE_FORMAT: u32 = 2;

/// A dataset version's immutable description. A pure function of recipe, source bytes and output options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format: [`MANIFEST_FORMAT`], or [`IN_PLACE_FORMAT`].
    pub format: u32,
    /// Dataset.
    pub name: String,
    /// Config; `null` without one.
    pub config: Option<String>,
    /// Version, `major.minor.patch`.
    pub version: String,
    /// Content fingerprint, hex: features and the ordered hashes of records.
    pub fingerprint: String,
    /// SHA-256 of what decides the output: canonical recipe and output options.
    pub recipe_sha256: String,
    /// `tfds` or `by-source`.
    pub layout: String,
    /// Whether the shards are a user's files that stay where they are: then the folder holds what describes them, and none of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_place: bool,
    /// Sources, in the recipe's order.
    pub sources: Vec<SourceManifest>,
    /// Splits, in the builder's order.
    pub splits: Vec<SplitManifest>,
    /// Other files of the folder that it vouches for: statistics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileManifest>,
}

/// A file of the version's folder that is no shard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileManifest {
    /// Path relative to the version's folder.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, hex.
    pub sha256: String,
}

/// A source file that went into a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceManifest {
    /// File name in the recipe.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, hex; empty where only headers were hashed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// SHA-256 of the headers of a tar archive, and of the tar archives in it, hex: for archives that are too large to be read twice. It vouches
    /// for names, sizes and times of members, not for their contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tar_headers_sha256: Option<String>,
}

/// A split's shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitManifest {
    /// Split name.
    pub name: String,
    /// Number of records.
    pub records: u64,
    /// Bytes of all records (payload only).
    pub bytes: u64,
    /// ArrayRecord options of the shards.
    pub options: String,
    /// Records left out under `--on-error skip`.
    pub skipped: u64,
    /// Shards in order.
    pub shards: Vec<ShardManifest>,
}

/// One shard file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShardManifest {
    /// Path relative to the version's folder; `../OTHER/FILE` for a shard in the folder of another version of the dataset, beside this one. Of a
    /// version in place it leads out of the folder by any number of `../`, or is absolute, or a URL.
    pub path: String,
    /// Number of records.
    pub records: u64,
    /// File size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// [`SequenceHash`] of the records, hex: joined in order they give the split's, whatever becomes of its other shards.
    pub sequence_hash: String,
    /// Smallest sort key, hex; `null` for an empty shard.
    pub min_key: Option<String>,
    /// Largest sort key, hex.
    pub max_key: Option<String>,
    /// Where the records of a TFRecord file begin, which has no index of its own: `prep_formats::tfrecord::Index` as bytes, under 2 bytes a record.
    /// Without it the shard is an ArrayRecord file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<FileManifest>,
}

impl Manifest {
    /// The canonical text: the bytes of the file. The same manifest always gives the same bytes.
    ///
    /// # Panics
    /// Never: a manifest holds nothing that JSON lacks.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a manifest is texts and whole numbers");
        text.push('\n');
        text
    }

    /// SHA-256 of the canonical text, hex: what the log holds.
    pub fn sha256(&self) -> String {
        hex::encode(Sha256::digest(self.to_json()))
    }

    /// Parses and checks the text of a manifest. `at` is its path or URL, for messages.
    ///
    /// # Errors
    /// [`Error::Manifest`] for text that is not a manifest, a format newer than [`IN_PLACE_FORMAT`], and all that
    /// [`validate`](Self::validate) finds.
    pub fn from_json(bytes: &[u8], at: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let wrong = |reason: String| Error::Manifest {
            path: at.to_string(),
            reason,
        };
        let parsed: serde_json::Result<Self> = serde_json::from_slice(bytes);
        // One of another format may lack what this one has: its format alone says why then. Read only if need be, as a manifest may be large.
        let format = match &parsed {
            Ok(manifest) => manifest.format,
            Err(_) => serde_json::from_slice(bytes).map_or(MANIFEST_FORMAT, |head: Head| head.format),
        };
        if ![MANIFEST_FORMAT, IN_PLACE_FORMAT].contains(&format) {
            return Err(wrong(format!(
                "it has format {format}, this version of prep reads {MANIFEST_FORMAT} and {IN_PLACE_FORMAT}"
            )));
        }
        let manifest = parsed.map_err(|error| wrong(format!("not a manifest: {error}")))?;
        manifest.validate().map_err(wrong)?;
        Ok(manifest)
    }

    /// Reads and checks the manifest of a version's folder.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json); [`Error::Manifest`] where there is none.
    pub fn read(folder: &Location) -> Result<Self> {
        let at = folder.join(MANIFEST_FILE);
        match store::read(&at)? {
            Some(bytes) => Self::from_json(&bytes, &at.to_string()),
            None => Err(Error::Manifest {
                path: at.to_string(),
                reason: "there is no such file".into(),
            }),
        }
    }

    /// Writes the manifest into a version's folder, durably. Give it last: a folder with a manifest is a finished one.
    ///
    /// # Errors
    /// [`Error::Manifest`] if it does not hold together (then nothing is written), [`Error::Store`] if the folder cannot be
    /// written.
    pub fn write(&self, folder: &Location) -> Result<()> {
        let at = folder.join(MANIFEST_FILE);
        self.validate().map_err(|reason| Error::Manifest {
            path: at.to_string(),
            reason,
        })?;
        store::write(&at, self.to_json().into_bytes())
    }

    /// The folders of other versions whose shards it uses: names beside its own folder, sorted.
    pub fn shared_folders(&self) -> Vec<&str> {
        if self.in_place {
            return Vec::new();
        }
        let shards = self.splits.iter().flat_map(|split| &split.shards);
        let mut folders: Vec<&str> = shards
            .filter_map(|shard| Some(shard.path.strip_prefix("../")?.split_once('/')?.0))
            .collect();
        folders.sort_unstable();
        folders.dedup();
        folders
    }

    /// The file of this path, among those that are no shards.
    pub fn file(&self, path: &str) -> Option<&FileManifest> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The split of this name.
    pub fn split(&self, name: &str) -> Option<&SplitManifest> {
        self.splits.iter().find(|split| split.name == name)
    }

    /// The fingerprint that these features and the records of the shards give: see [`dataset_fingerprint`]. `None` if the hash of a shard is malformed.
    pub fn fingerprint_with(&self, features_json: &str) -> Option<String> {
        let hashes = self.splits.iter().map(|split| {
            let shards = split
                .shards
                .iter()
                .try_fold(SequenceHash::default(), |hash, shard| {
                    Some(hash.join(SequenceHash::from_hex(&shard.sequence_hash, shard.records)?))
                });
            Some((split.name.clone(), shards?))
        });
        Some(dataset_fingerprint(
            features_json,
            &hashes.collect::<Option<Vec<_>>>()?,
        ))
    }

    /// Checks that the parts hold together: names and version are valid, paths stay inside the folder (unless it is in place), no file or split
    /// comes twice, counts add up, hashes are hashes.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), String> {
        let format = match self.in_place {
            true => IN_PLACE_FORMAT,
            false => MANIFEST_FORMAT,
        };
        if self.format != format {
            return Err(format!("its format is {}, wanted {format}", self.format));
        }
        DatasetName::new(&self.name, self.config.as_deref()).map_err(|error| error.to_string())?;
        Version::parse(&self.version).map_err(|error| error.to_string())?;
        check_hex("fingerprint", &self.fingerprint, 64)?;
        check_hex("recipe_sha256", &self.recipe_sha256, 64)?;
        if !["tfds", "by-source"].contains(&self.layout.as_str()) {
            return Err(format!(
                "its layout is `{}`, known are `tfds` and `by-source`",
                self.layout
            ));
        }
        for source in &self.sources {
            if let Some(headers) = &source.tar_headers_sha256 {
                check_hex(
                    &format!("source `{}`: tar_headers_sha256", source.name),
                    headers,
                    64,
                )?;
                if source.sha256.is_empty() {
                    continue;
                }
            }
            check_hex(&format!("source `{}`: sha256", source.name), &source.sha256, 64)?;
        }
        let mut split_names = HashSet::new();
        let mut paths: HashSet<&str> = HashSet::from([MANIFEST_FILE]);
        for split in &self.splits {
            let at = format!("split `{}`", split.name);
            if split.name.is_empty() || split.name.contains(['/', '\\', '\0']) {
                return Err(format!("{at}: not a name of a split"));
            }
            if !split_names.insert(&split.name) {
                return Err(format!("{at} comes twice"));
            }
            let mut records = 0_u64;
            for shard in &split.shards {
                // Said only where it is needed: there may be many.
                let at = || format!("{at}, shard `{}`", shard.path.escape_debug());
                shard
                    .check(self.in_place, &mut paths)
                    .map_err(|reason| format!("{}: {reason}", at()))?;
                records = records
                    .checked_add(shard.records)
                    .ok_or_else(|| format!("{}: too many records", at()))?;
            }
            if records != split.records {
                return Err(format!(
                    "{at} claims {} records, its shards have {records}",
                    split.records
                ));
            }
        }
        for file in &self.files {
            file.check(&mut paths)
                .map_err(|reason| format!("file `{}`: {reason}", file.path.escape_debug()))?;
        }
        Ok(())
    }
}

/// Checks that `text` is `digits` lowercase hex digits.
fn check_hex(what: &str, text: &str, digits: usize) -> Result<(), String> {
    let is_hex = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if is_hex && text.len() == digits && digits.is_multiple_of(2) {
        return Ok(());
    }
    Err(format!("{what} `{text}` is not {digits} lowercase hex digits"))
}

impl FileManifest {
    /// Checks one file; `paths` are those of the others.
    fn check<'a>(&'a self, paths: &mut HashSet<&'a str>) -> Result<(), String> {
        check_relative_path(&self.path)?;
        take_path(&self.path, paths)?;
        check_hex("sha256", &self.sha256, 64)
    }
}

/// Checks that no other file has this path.
fn take_path<'a>(path: &'a str, paths: &mut HashSet<&'a str>) -> Result<(), String> {
    match paths.insert(path) {
        true => Ok(()),
        false => Err("the path is taken by another file".into()),
    }
}

impl ShardManifest {
    /// Checks one shard; `paths` are those of other files.
    fn check<'a>(&'a self, in_place: bool, paths: &mut HashSet<&'a str>) -> Result<(), String> {
        match in_place {
            true => check_outside_path(&self.path),
            false => check_shard_path(&self.path),
        }?;
        take_path(&self.path, paths)?;
        if let Some(index) = &self.index {
            let at = |reason: String| format!("index `{}`: {reason}", index.path.escape_debug());
            index.check(paths).map_err(at)?;
            if !in_place || index.path.contains('/') {
                return Err(at("only a version in place has such, in its own folder".into()));
            }
        }
        check_hex("sha256", &self.sha256, 64)?;
        if SequenceHash::from_hex(&self.sequence_hash, self.records).is_none() {
            return Err(format!(
                "sequence_hash `{}` is not that of {} records",
                self.sequence_hash, self.records
            ));
        }
        for (name, key) in [("min_key", &self.min_key), ("max_key", &self.max_key)] {
            if let Some(key) = key {
                check_hex(name, key, key.len())?;
            }
        }
        Ok(())
    }

    /// Where the file is, of a version that lies in `folder`.
    pub fn location(&self, folder: &Location) -> Location {
        shard_location(folder, &self.path)
    }
}

/// Where the shard with this path is, of a version that lies in `folder`.
pub fn shard_location(folder: &Location, path: &str) -> Location {
    if path.starts_with('/') {
        return Location::from_path(path);
    }
    if path.contains("://")
        && let Ok(location) = Location::parse(path)
    {
        return location;
    }
    let (mut base, mut rest) = (folder.clone(), path);
    while let Some((above, parent)) = rest.strip_prefix("../").zip(base.parent()) {
        (base, rest) = (parent, above);
    }
    base.join(rest)
}

/// Checks that a shard is in the version's folder, or directly in one beside it.
fn check_shard_path(path: &str) -> Result<(), String> {
    let Some(rest) = path.strip_prefix("../") else {
        return check_relative_path(path);
    };
    check_relative_path(rest)?;
    // Staging and whatever else is hidden belongs to nobody.
    if rest.contains('/') && !rest.starts_with('.') {
        return Ok(());
    }
    Err("the path does not stay inside the folder, nor inside that of another version beside it".into())
}

/// Checks that a shard is a file outside of the version's folder: absolute, behind a URL, or found by a way that begins with `../`.
fn check_outside_path(path: &str) -> Result<(), String> {
    if path.contains("://") {
        return match Location::parse(path) {
            Ok(location) if location.as_path().is_none() && !path.contains(['\0', '\n', '\r']) => Ok(()),
            _ => Err("it is not the URL of a file on another machine".into()),
        };
    }
    if let Some(rest) = path.strip_prefix('/') {
        return check_relative_path(rest).map_err(|_| "the absolute path has a way around in it".into());
    }
    let mut rest = path;
    while let Some(above) = rest.strip_prefix("../") {
        rest = above;
    }
    if rest.len() == path.len() {
        return Err("a file in place does not lie in the folder of its version".into());
    }
    check_relative_path(rest)
}

/// Checks that a path with `/` between its parts stays below the folder that it is relative to.
pub(crate) fn check_relative_path(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("the path is empty".into());
    }
    let is_plain = path
        .split('/')
        .all(|part| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', '\0']));
    let stays_inside = Path::new(path)
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    if is_plain && stays_inside {
        return Ok(());
    }
    Err("the path does not stay inside the folder".into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A small manifest of two splits; `seed` changes its content.
    pub(crate) fn example(name: &str, config: Option<&str>, version: &str, seed: u8) -> Manifest {
        let shard = |split: &str, index: u64, records: u64| ShardManifest {
            path: format!("{name}-{split}.array_record-{index:05}-of-00002"),
            records,
            bytes: 100 * records,
            sha256: hex::encode([seed; 32]),
            sequence_hash: SequenceHash::of(vec![[seed]; records as usize]).to_hex(),
            min_key: (records > 0).then(|| "00ff".into()),
            max_key: (records > 0).then(|| "ff00".into()),
            index: None,
        };
        let split = |name: &str, records: [u64; 2]| SplitManifest {
            name: name.into(),
            records: records[0] + records[1],
            bytes: 10 * (records[0] + records[1]),
            options: "group_size:1,uncompressed".into(),
            skipped: 0,
            shards: vec![shard(name, 0, records[0]), shard(name, 1, records[1])],
        };
        Manifest {
            format: 1,
            name: name.into(),
            config: config.map(Into::into),
            version: version.into(),
            fingerprint: hex::encode([seed; 32]),
            recipe_sha256: "ab".repeat(32),
            layout: "tfds".into(),
            in_place: false,
            sources: vec![SourceManifest {
                name: "archive.tar.gz".into(),
                bytes: 7,
                sha256: "cd".repeat(32),
                tar_headers_sha256: None,
            }],
            splits: vec![split("train", [3, 2]), split("test", [1, 0])],
            files: Vec::new(),
        }
    }

    #[test]
    fn a_manifest_survives_its_folder_and_its_bytes_never_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = Location::from_path(folder.path());
        let manifest = example("a", None, "1.0.0", 7);
        manifest.write(&at).unwrap();
        assert_eq!(Manifest::read(&at).unwrap(), manifest);
        let bytes = std::fs::read(folder.path().join(MANIFEST_FILE)).unwrap();
        assert_eq!(hex::encode(Sha256::digest(&bytes)), manifest.sha256());
        assert_eq!(bytes, manifest.clone().to_json().into_bytes());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn shards_may_be_those_of_a_version_beside_it() {
        let mut manifest = example("a", None, "1.1.0", 7);
        assert!(manifest.shared_folders().is_empty());
        manifest.splits[0].shards[1].path = "../1.0.0/x-00001".into();
        manifest.splits[1].shards[0].path = "../1.0.0/y-00000".into();
        manifest.validate().unwrap();
        assert_eq!(manifest.shared_folders(), ["1.0.0"]);
        let shard = &manifest.splits[0].shards[1];
        for (folder, wanted) in [
            ("/data/a/1.1.0", "/data/a/1.0.0/x-00001"),
            ("s3://bucket/a/1.1.0/", "s3://bucket/a/1.0.0/x-00001"),
        ] {
            let folder = Location::parse(folder).unwrap();
            assert_eq!(shard.location(&folder).to_string(), wanted);
        }
        let record = crate::VersionRecord::of_manifest(&manifest, "data/a/1.1.0".into());
        assert_eq!(record.shares, ["data/a/1.0.0"]);
        for outside in [
            "../x",
            "../../b/1.0.0/x",
            "../.staging/x",
            "..",
            "../",
            "1.0.0/../../x",
        ] {
            manifest.splits[0].shards[1].path = outside.into();
            assert!(manifest.validate().is_err(), "{outside}");
        }
    }

    /// The example with its shards elsewhere, one a TFRecord file.
    pub(crate) fn in_place(version: &str, seed: u8) -> Manifest {
        let mut manifest = example("a", None, version, seed);
        (manifest.format, manifest.in_place) = (IN_PLACE_FORMAT, true);
        let paths = ["/raw/x y", "s3://bucket/raw/z", "../../../raw/x", "../../x%#"];
        let shards = manifest.splits.iter_mut().flat_map(|split| &mut split.shards);
        for (shard, path) in shards.zip(paths) {
            shard.path = path.into();
        }
        manifest.splits[0].shards[0].index = Some(FileManifest {
            path: "train-00000-of-00002.index".into(),
            bytes: 50,
            sha256: "ab".repeat(32),
        });
        manifest
    }

    #[test]
    fn files_in_place_may_be_anywhere_and_are_marked_so() {
        let manifest = in_place("1.0.0", 7);
        manifest.validate().unwrap();
        assert!(manifest.shared_folders().is_empty());
        let json = manifest.to_json();
        assert_eq!(Manifest::from_json(json.as_bytes(), "m").unwrap(), manifest);
        let shards: Vec<&ShardManifest> = manifest.splits.iter().flat_map(|split| &split.shards).collect();
        for (folder, wanted) in [
            (
                "/catalog/data/a/1.0.0",
                [
                    "/raw/x y",
                    "s3://bucket/raw/z",
                    "/catalog/raw/x",
                    "/catalog/data/x%#",
                ],
            ),
            (
                "s3://b/catalog/data/a/1.0.0",
                [
                    "/raw/x y",
                    "s3://bucket/raw/z",
                    "s3://b/catalog/raw/x",
                    "s3://b/catalog/data/x%25%23",
                ],
            ),
        ] {
            let folder = Location::parse(folder).unwrap();
            let found: Vec<String> = shards
                .iter()
                .map(|shard| shard.location(&folder).to_string())
                .collect();
            assert_eq!(found, wanted);
        }
        // A program that knows no files in place reads format 1 only, and so does one that takes the mark away.
        assert_eq!(manifest.format, 2);
        let mut unmarked = manifest.clone();
        unmarked.in_place = false;
        assert!(unmarked.validate().is_err());
        unmarked.format = MANIFEST_FORMAT;
        assert!(unmarked.validate().unwrap_err().contains("stay inside"));
        type Change = fn(&mut ShardManifest);
        let wrong: [Change; 11] = [
            |shard| shard.path = "x".into(),
            |shard| shard.path = "a/../../x".into(),
            |shard| shard.path = "../a/../x".into(),
            |shard| shard.path = "..".into(),
            |shard| shard.path = "../".into(),
            |shard| shard.path = "/a/../x".into(),
            |shard| shard.path = "/".into(),
            |shard| shard.path = "file:///x".into(),
            |shard| shard.path = "ftp://x/y".into(),
            |shard| shard.index.as_mut().unwrap().path = "../x".into(),
            |shard| shard.index.as_mut().unwrap().sha256.clear(),
        ];
        for (number, change) in wrong.into_iter().enumerate() {
            let mut manifest = manifest.clone();
            change(&mut manifest.splits[0].shards[0]);
            assert!(manifest.validate().is_err(), "{number}");
        }
        let mut indexed = example("a", None, "1.0.0", 7);
        indexed.splits[0].shards[0].index = manifest.splits[0].shards[0].index.clone();
        assert!(indexed.validate().is_err());
    }

    #[test]
    fn a_source_may_be_known_by_its_headers_only() {
        let mut manifest = example("a", None, "1.0.0", 7);
        let with_all = manifest.clone().to_json();
        assert!(!with_all.contains("tar_headers"));
        manifest.sources[0].sha256.clear();
        manifest.sources[0].tar_headers_sha256 = Some("ef".repeat(32));
        let folder = tempfile::tempdir().unwrap();
        let at = Location::from_path(folder.path());
        manifest.write(&at).unwrap();
        assert_eq!(Manifest::read(&at).unwrap(), manifest);
    }

    #[test]
    fn files_that_are_no_shards_are_vouched_for_where_there_are_any() {
        let mut manifest = example("a", None, "1.0.0", 7);
        assert!(!manifest.to_json().contains("files"));
        manifest.files.push(FileManifest {
            path: "statistics.json".into(),
            bytes: 3,
            sha256: "ab".repeat(32),
        });
        let read = Manifest::from_json(manifest.to_json().as_bytes(), "m").unwrap();
        assert_eq!(read.file("statistics.json"), manifest.files.first());
        assert_eq!(read.file("other"), None);
    }

    #[test]
    fn what_does_not_hold_together_is_refused() {
        type Change = fn(&mut Manifest);
        let changes: [(&str, Change); 23] = [
            ("format is 2", |m| m.format = 2),
            ("dataset name", |m| m.name = "../x".into()),
            ("config", |m| m.config = Some("..".into())),
            ("version", |m| m.version = "1".into()),
            ("fingerprint", |m| m.fingerprint = "xyz".into()),
            ("recipe_sha256", |m| m.recipe_sha256 = "AB".repeat(32)),
            ("layout", |m| m.layout = "heap".into()),
            ("source `archive.tar.gz`", |m| m.sources[0].sha256.clear()),
            ("tar_headers_sha256", |m| {
                m.sources[0].tar_headers_sha256 = Some("x".into());
            }),
            ("not a name of a split", |m| m.splits[0].name = "a/b".into()),
            ("comes twice", |m| m.splits[1].name = "train".into()),
            ("stay inside", |m| {
                m.splits[0].shards[0].path = "../../etc/passwd".into()
            }),
            ("stay inside", |m| {
                m.splits[0].shards[0].path = "/etc/passwd".into()
            }),
            ("stay inside", |m| m.splits[0].shards[0].path = "a/./b".into()),
            ("path is empty", |m| m.splits[0].shards[0].path = String::new()),
            ("taken by another", |m| {
                m.splits[0].shards[0].path = MANIFEST_FILE.into()
            }),
            ("taken by another", |m| {
                m.splits[1].shards[0].path = m.splits[0].shards[0].path.clone();
            }),
            ("claims 5 records, its shards have 4", |m| {
                m.splits[0].shards[0].records = 2
            }),
            ("too many records", |m| m.splits[0].shards[1].records = u64::MAX),
            ("sequence_hash", |m| {
                m.splits[1].shards[1].sequence_hash = "01".repeat(16)
            }),
            ("stay inside", |m| m.files[0].path = "../x".into()),
            ("taken by another", |m| {
                m.files[0].path = m.splits[0].shards[0].path.clone()
            }),
            ("sha256", |m| m.files[0].sha256 = "x".into()),
        ];
        let folder = tempfile::tempdir().unwrap();
        for (part, change) in changes {
            let mut manifest = example("a", Some("b"), "1.0.0", 7);
            manifest.files.push(FileManifest {
                path: "statistics.json".into(),
                bytes: 3,
                sha256: "ab".repeat(32),
            });
            manifest.validate().unwrap();
            change(&mut manifest);
            let reason = manifest.validate().unwrap_err();
            assert!(reason.contains(part), "{part}: {reason}");
            assert!(manifest.write(&Location::from_path(folder.path())).is_err());
            let error = Manifest::from_json(manifest.to_json().as_bytes(), "x/m.json").unwrap_err();
            assert!(error.to_string().contains("x/m.json"), "{error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn cut_anywhere_it_is_an_error_that_names_the_file() {
        let json = example("a", None, "1.0.0", 7).to_json();
        for end in 0..json.len() - 2 {
            let error = Manifest::from_json(&json.as_bytes()[..end], "x/m.json").unwrap_err();
            assert!(error.to_string().contains("x/m.json"));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A changed byte gives an error or another manifest that holds together, never a panic.
        #[test]
        fn damaged_bytes_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut json = example("a", None, "1.0.0", 7).to_json().into_bytes();
            let at = at.index(json.len());
            json[at] = byte;
            if let Ok(manifest) = Manifest::from_json(&json, "m") {
                manifest.validate().unwrap();
            }
        }
    }
}
