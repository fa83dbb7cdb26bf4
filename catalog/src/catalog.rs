//! The catalog: logs of datasets in an object store.
//!
//! ```text
//! CATALOG/prep.json                                         format version, written by the first commit
//! CATALOG/log/NAME[/CONFIG]/00000000000000000007.json       one committed change each, never edited
//! CATALOG/checkpoints/NAME[/CONFIG].json                    the state after an entry: saves readers the way through the log
//! DATA_DIR/NAME[/CONFIG]/VERSION/                           the data; DATA_DIR is CATALOG/data unless given
//! ```
//!
//! **Commit.** Read the log, decide, put the entry with the next number if there is none. Who loses that race reads what the winner
//! wrote and decides again. After a reply that was lost, the writer looks whether the entry there has its own commit id. A local put
//! is a synced temporary file, linked to its name, and a sync of the folder (and of those created for it): when
//! [`Catalog::commit`] returns, the entry survives a crash. A writer killed in between leaves a file `..json#1`, which nobody reads.
//!
//! **Reading** takes no lock and writes nothing: a catalog on a read-only mount works.
//!
//! **Checkpoints** are written after every eighth entry, without any care about who wins, by the commit that brought it, and name that entry's
//! `commit_id`. A reader takes the state in one and looks for the entries after it: nothing depends on there being a checkpoint, or on its being the
//! newest. One that does not fit its entry is passed over.
//!
//! **Stores.** A catalog lies in a local folder, in S3 and what speaks its protocol, Google Cloud Storage or Azure; or, to be read only, on a web
//! server. There nothing can be listed: the log is followed from its checkpoint until an entry is missing. Before the first commit to a remote store
//! it is tried whether its conditional put is one; where it is not, commits are refused.
//!
//! **Removing and collecting.** A version that is removed or replaced by one in another folder leaves its folder as garbage, in the state. `gc` commits an
//! entry with the folders that it is about to delete, and then deletes them; so a build that would take up such a folder loses or wins
//! against it in the log, and never has its files taken away. Files that were registered where they lie are never
//! garbage: only the folder is that describes them.
//!
//! **Replacing a version** (`--overwrite`) keeps one of the two readable at all times: the new data are durable in a staging folder,
//! the entry names both folders, then the folders are exchanged in one step. The entry holds the SHA-256 of the manifest, so
//! [`Catalog::resolve`] finds the right one of the two on either side of that step.
//!
//! **A damaged entry** is reported by [`Catalog::list`], and stops commits, and whatever depends on the order of versions
//! (`name`, `name@tag`, `name@log=7`); `name:1.0.0` still resolves, as the hash of its manifest proves that the data are those of
//! an entry. An entry of an unknown kind, or for newer readers, stops that too.
//!
//! | cost of | requests to the store | at 10^3 versions, 10^4 shards |
//! |---|---|---|
//! | `open` | 1 | |
//! | `resolve` | 1 checkpoint, 9 entries that are there or not, together; 1 manifest | 0.8 MB of checkpoint, 7 KB of entries, 5 MB of manifest |
//! | the same, `@log=N` or without checkpoint | 1 listing, 2 to 33 entries (back to the last state in an entry), 1 manifest | 1000 names, 20 KB of entries, 0.8 MB of state, 5 MB of manifest |
//! | `commit` | the same without the manifest, 1 put, again for each race lost; each 8th a checkpoint | an entry is about 1 KB, each 32nd 0.8 MB |
//! | `list` | 1 checkpoint and 9 entries for each dataset | |

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prep_formats::store::Location;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use sha2::{Digest, Sha256};

use crate::entry::{
    CHECKPOINT_INTERVAL, Change, Entry, GcRecord, RemoveRecord, TagRecord, UntagRecord, VersionRecord,
};
use crate::error::quoted;
use crate::name::{self, DatasetName, Selector};
use crate::state::{Checkpoint, State, VersionState};
use crate::store::{self, Stamp, Store};
use crate::{Error, MANIFEST_FILE, Manifest, Result, Version};

/// The format of catalogs written, and the newest one read.
const CATALOG_FORMAT: u64 = 1;

/// File with the format version.
const CATALOG_FILE: &str = "prep.json";

/// How many lost races a commit takes. Each lost race is another's commit, so some writer always gets on.
const MAX_ATTEMPTS: u32 = 10_000;

/// Entries between two checkpoints, and those that are looked for at once behind one. Ours: one request more than a reader needs at the least, and one
/// round of requests in most cases.
const CHECKPOINT_EVERY: u64 = 8;

/// How often a reader looks again for data that are being exchanged under it.
const MAX_LOOKS: u32 = 8;

/// A catalog of datasets.
#[derive(Debug, Clone)]
pub struct Catalog {
    store: Store,
    exists: bool,
    known: Vec<String>,
    /// Whether conditional puts were tried, and work.
    tried: Arc<AtomicBool>,
}

/// The content of a checkpoint object.
#[derive(Serialize, Deserialize)]
struct CheckpointFile {
    format: u64,
    /// Number of the last entry that the state has, and its id.
    log_number: u64,
    commit_id: String,
    state: Checkpoint,
}

/// A dataset version found in a catalog, and where its data are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Resolved {
    /// Dataset.
    pub name: String,
    /// Config, where there is one.
    pub config: Option<String>,
    /// Version.
    pub version: String,
    /// Number of the log entry that brought it.
    pub log_number: u64,
    /// The folder with its files.
    pub folder: Location,
    /// Whether that folder is a staging folder: the exchange with the version replaced has not happened (yet).
    pub is_staged: bool,
    /// What lies in the folder; its hash is the one in the log.
    pub manifest: Manifest,
    /// What the log says.
    pub record: VersionRecord,
    /// Tags that name this version.
    pub tags: Vec<String>,
    /// All tags of the dataset, and the versions that they name, sorted by tag.
    pub all_tags: Vec<(String, String)>,
    /// The kind of the entry that brought it: `build`, `register` or `append`.
    pub kind: String,
    stamp: Option<Stamp>,
}

/// A version in a listing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Listed {
    /// Dataset.
    pub name: String,
    /// Config, where there is one.
    pub config: Option<String>,
    /// Number of the log entry that brought it.
    pub log_number: u64,
    /// The folder of its files, or where they will be.
    pub folder: Location,
    /// What the log says.
    pub record: VersionRecord,
    /// Tags that name this version.
    pub tags: Vec<String>,
}

/// All versions of a catalog.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// Versions, sorted by name, config (none first) and version.
    pub versions: Vec<Listed>,
    /// What could not be read: the listing is complete but for these.
    pub problems: Vec<Error>,
}

/// A finished build, for [`Catalog::commit_build`].
#[derive(Debug, Clone)]
pub struct Build<'a> {
    manifest: &'a Manifest,
    folder: Location,
    staged: Option<Location>,
    flags: BTreeMap<String, String>,
    overwrite: bool,
    kind: Kind,
    base: Option<(String, String)>,
}

/// Which entry a build makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Build,
    Register,
    Append,
}

/// How a build went into the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Number of the entry that holds the version.
    pub log_number: u64,
    /// Whether this call wrote it; else the same version was there already.
    pub is_new: bool,
}

/// A log as read: the state after its last entry, and what could not be read of it.
#[derive(Debug, Default)]
struct Log {
    state: State,
    problems: Vec<Error>,
    /// Number of the last entry there is, damaged or not.
    last: Option<u64>,
    configs: Vec<String>,
}

impl<'a> Build<'a> {
    /// A build whose files, with this manifest among them, are durable in `folder`. Of a manifest of files in place the entry is a `register`.
    pub fn new(manifest: &'a Manifest, folder: Location) -> Self {
        Self {
            manifest,
            folder,
            staged: None,
            flags: BTreeMap::new(),
            overwrite: false,
            kind: match manifest.in_place {
                true => Kind::Register,
                false => Kind::Build,
            },
            base: None,
        }
    }

    /// The version was made by adding to an earlier one, whose shards it may share: the entry is an `append`.
    #[must_use]
    pub fn appended(mut self) -> Self {
        self.kind = Kind::Append;
        self
    }

    /// It shares shards of this version, which has to have this manifest still: one that has been replaced in its folder has other shards.
    #[must_use]
    pub fn shares_with(mut self, version: &str, manifest_sha256: &str) -> Self {
        self.base = Some((version.to_string(), manifest_sha256.to_string()));
        self
    }

    /// The files are in this folder, and are to be exchanged with those in the other once the commit is done.
    #[must_use]
    pub fn staged(mut self, folder: Location) -> Self {
        self.staged = Some(folder);
        self
    }

    /// Something that a reader should know, such as `checksum`: `skipped`.
    #[must_use]
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.flags.insert(name.to_string(), value.to_string());
        self
    }

    /// Whether to replace a version of the same number and other content. Default: no, that is a conflict.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }
}

impl Catalog {
    /// Opens a catalog. One that does not exist (yet) is an empty one; its first commit makes it.
    ///
    /// # Errors
    /// [`Error::TooNew`] for a newer format, [`Error::DamagedEntry`] for a damaged `prep.json`, [`Error::Store`] and
    /// [`Error::Format`] for a location that cannot be used.
    pub fn open(location: &Location) -> Result<Self> {
        Self::with_store(Store::open(location)?)
    }

    fn with_store(store: Store) -> Result<Self> {
        let exists = check_format(&store)?;
        Ok(Self {
            store,
            exists,
            known: Vec::new(),
            tried: Arc::default(),
        })
    }

    /// Names that exist outside of the catalog (built-in recipes): suggested when a dataset is not found.
    #[must_use]
    pub fn suggesting<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.known.extend(names.into_iter().map(Into::into));
        self
    }

    /// Where the catalog is, as given.
    pub fn location(&self) -> &Location {
        self.store.location()
    }

    /// Where data go by default: `data` in the catalog.
    pub fn data_dir(&self) -> Location {
        self.location().join("data")
    }

    /// Whether the catalog is on another machine.
    pub fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    /// Checks that commits are possible and safe, before any work is done for one. A remote store is tried, with an object of its own; a local
    /// folder is not looked at. Costs four requests the first time, and none later.
    ///
    /// # Errors
    /// [`Error::WebOnly`] for a web server, [`Error::NoConditionalPut`] for a store whose puts are not conditional, [`Error::Store`] where the
    /// store cannot be reached or written.
    pub fn check_commits(&self) -> Result<()> {
        if !self.store.is_remote() || self.tried.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.location().is_web() {
            return Err(Error::WebOnly {
                catalog: self.location().to_string(),
                reason: "is on a web server, and can only be read",
                hint: "give the catalog where it can be written, as in `--catalog s3://BUCKET/FOLDER`",
            });
        }
        self.store.try_conditional_put()?;
        self.tried.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The datasets that have a log: names without selector, sorted by name and config (none first).
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn datasets(&self) -> Result<Vec<DatasetName>> {
        if !self.store.can_list() {
            return Err(Error::WebOnly {
                catalog: self.location().to_string(),
                reason: "is on a web server, which does not tell what it has",
                hint: "ask for a dataset by its name",
            });
        }
        let mut datasets = Vec::new();
        for name in self.store.list("log")?.folders {
            let Ok(dataset) = DatasetName::new(&name, None) else {
                tracing::debug!(name, "not a dataset, in the catalog's log");
                continue;
            };
            let children = self.store.list(&log_folder(&dataset))?;
            if children
                .files
                .iter()
                .any(|file| store::entry_number(file).is_some())
            {
                datasets.push(dataset);
            }
            let configs = children.folders.iter();
            datasets.extend(configs.filter_map(|config| DatasetName::new(&name, Some(config)).ok()));
        }
        Ok(datasets)
    }

    /// All versions of all datasets. What cannot be read is reported beside them, and hides nothing else.
    ///
    /// # Errors
    /// [`Error::Store`] where the logs cannot be listed at all.
    pub fn list(&self) -> Result<Listing> {
        let mut listing = Listing::default();
        for dataset in self.datasets()? {
            let log = match self.read_quickly(&dataset) {
                Ok(log) => log,
                Err(error) => {
                    listing.problems.push(error);
                    continue;
                }
            };
            for (version, state) in log.state.versions() {
                match self.folder(&state.record.path) {
                    Ok(folder) => listing.versions.push(Listed {
                        name: dataset.name.clone(),
                        config: dataset.config.clone(),
                        log_number: state.log_number,
                        folder,
                        record: state.record.clone(),
                        tags: tags_of(&log.state, *version),
                    }),
                    Err(error) => listing.problems.push(error),
                }
            }
            listing.problems.extend(log.problems);
        }
        Ok(listing)
    }

    /// The state of a dataset: empty for one that has no log. The selector does not matter.
    ///
    /// # Errors
    /// [`Error::DamagedEntry`] and [`Error::TooNew`] for an entry that cannot be read, [`Error::Store`].
    pub fn state(&self, dataset: &DatasetName) -> Result<State> {
        let log = self.read_log(dataset, None)?;
        match log.problems.into_iter().next() {
            None => Ok(log.state),
            Some(problem) => Err(problem),
        }
    }

    /// An entry of a dataset's log, `None` if there is none of this number.
    ///
    /// # Errors
    /// [`Error::DamagedEntry`], [`Error::TooNew`], [`Error::Store`].
    pub fn entry(&self, dataset: &DatasetName, log_number: u64) -> Result<Option<Entry>> {
        let path = entry_path(dataset, log_number);
        let bytes = self.store.get(&path)?;
        bytes
            .map(|bytes| Entry::from_json(&bytes, &self.store.name(&path)))
            .transpose()
    }

    /// Finds a version and its data.
    ///
    /// # Errors
    /// [`Error::UnknownDataset`] (with near names), [`Error::UnknownConfig`], [`Error::UnknownVersion`] (with those there are),
    /// [`Error::Data`] if the folder does not hold what the log means, and those of [`Catalog::state`].
    pub fn resolve(&self, dataset: &DatasetName) -> Result<Resolved> {
        let (mut look, mut last) = (0, None);
        loop {
            let (state, found) = self.select(dataset)?;
            // Only looks at the same entry count: a version that was replaced meanwhile is another one to find.
            if last.replace(found.log_number) != Some(found.log_number) {
                look = 0;
            }
            let staged = found.record.staged_path.as_deref();
            let mut reasons = Vec::new();
            for (is_staged, path) in [(false, Some(found.record.path.as_str())), (true, staged)] {
                let Some(path) = path else { continue };
                let folder = self.folder(path)?;
                match read_manifest(&folder, &found.record.manifest_sha256)? {
                    Ok((manifest, stamp)) => {
                        check_same(dataset, &found.record, &manifest, &folder)?;
                        return Ok(Resolved {
                            name: dataset.name.clone(),
                            config: dataset.config.clone(),
                            version: found.record.version.clone(),
                            log_number: found.log_number,
                            tags: tags_of(&state, found.record.version.parse()?),
                            all_tags: state
                                .tags()
                                .map(|(tag, version)| (tag.to_string(), version.to_string()))
                                .collect(),
                            kind: found.kind.clone(),
                            folder,
                            is_staged,
                            manifest,
                            record: found.record.clone(),
                            stamp,
                        });
                    }
                    Err(reason) => reasons.push(reason),
                }
            }
            // The folders may have been exchanged, or replaced again, between two looks.
            look += 1;
            if look == MAX_LOOKS || (found.record.staged_path.is_none() && look > 1) {
                return Err(self.lost_data(dataset, &found, &reasons));
            }
        }
    }

    /// Commits a change to a dataset's log. `decide` sees the state and gives the change, or `None` for nothing to do; it is called
    /// again, with the new state, after each lost race. Gives the number of the entry.
    ///
    /// # Errors
    /// What `decide` gives; [`Error::Refused`] for a change that does not fit the state; [`Error::Store`] if the entry could not be
    /// written; those of [`Catalog::state`]; [`Error::Contended`].
    pub fn commit(
        &self,
        dataset: &DatasetName,
        mut decide: impl FnMut(&State) -> Result<Option<Change>>,
    ) -> Result<Option<u64>> {
        // Before anything is written: the dataset's name is public data, and becomes a path.
        let dataset = &DatasetName::new(&dataset.name, dataset.config.as_deref())?;
        for _ in 0..MAX_ATTEMPTS {
            let state = self.state(dataset)?;
            let Some(change) = decide(&state)? else {
                return Ok(None);
            };
            state.check(&change)?;
            self.check_collected(&state, &change)?;
            self.check_commits()?;
            self.make_catalog()?;
            let number = state.log_number().map_or(0, |last| last + 1);
            let mut entry = Entry::new(change)?;
            if number > 0 && number.is_multiple_of(CHECKPOINT_INTERVAL) {
                entry.checkpoint = Some(state.to_checkpoint());
            }
            if self.put_entry(&entry_path(dataset, number), &entry)? {
                tracing::debug!(%dataset, number, kind = entry.change.kind(), "committed");
                self.put_checkpoint(dataset, state, number, &entry);
                return Ok(Some(number));
            }
        }
        Err(Error::Contended {
            dataset: dataset.to_string(),
            attempts: MAX_ATTEMPTS,
        })
    }

    /// The version that a name means, without a look at its data.
    ///
    /// # Errors
    /// As [`Catalog::resolve`], but for those about data.
    pub fn version_of(&self, dataset: &DatasetName) -> Result<String> {
        Ok(self.select(dataset)?.1.record.version)
    }

    /// Lets a tag name a version from now on. `None`: it did already.
    ///
    /// # Errors
    /// [`Error::UnknownDataset`] and [`Error::UnknownVersion`] for what is not there, [`Error::Refused`] for a text that is no tag; those of
    /// [`Catalog::commit`].
    pub fn tag(&self, dataset: &DatasetName, tag: &str) -> Result<Option<u64>> {
        name::check_tag(tag).map_err(Error::Refused)?;
        let found = self.select(dataset)?.1;
        let version = found.record.version;
        self.commit(dataset, |state| {
            let is_there = state
                .tags()
                .any(|(name, tagged)| name == tag && tagged.to_string() == version);
            Ok((!is_there).then(|| {
                Change::Tag(TagRecord {
                    tag: tag.to_string(),
                    version: version.clone(),
                    other: Map::new(),
                })
            }))
        })
    }

    /// Removes a tag; its version stays.
    ///
    /// # Errors
    /// [`Error::UnknownDataset`], [`Error::UnknownVersion`] where there is no such tag; those of [`Catalog::commit`].
    pub fn untag(&self, dataset: &DatasetName, tag: &str) -> Result<Option<u64>> {
        name::check_tag(tag).map_err(Error::Refused)?;
        let tagged = dataset.clone().with_selector(Selector::Tag(tag.to_string()));
        self.select(&tagged)?;
        self.commit(dataset, |state| {
            let is_there = state.tags().any(|(name, _)| name == tag);
            Ok(is_there.then(|| {
                Change::Untag(UntagRecord {
                    tag: tag.to_string(),
                    other: Map::new(),
                })
            }))
        })
    }

    /// Removes a version and its tags from the catalog. Its data stay where they are; what was built is garbage from now on, and deleted by
    /// `prep gc` when it has been so for a while. `None`: another one removed it first.
    ///
    /// # Errors
    /// [`Error::UnknownDataset`] and [`Error::UnknownVersion`] for what is not there; those of [`Catalog::commit`].
    pub fn remove(&self, dataset: &DatasetName) -> Result<Option<u64>> {
        let version = self.select(dataset)?.1.record.version;
        self.commit(dataset, |state| {
            let is_there = state.version(&version).is_some();
            Ok(is_there.then(|| {
                Change::Remove(RemoveRecord {
                    version: version.clone(),
                    other: Map::new(),
                })
            }))
        })
    }

    /// Says in the log that nobody may use these folders any more, before they are deleted: those of them that are garbage still. Gives them.
    ///
    /// # Errors
    /// Those of [`Catalog::commit`].
    pub fn collect(&self, dataset: &DatasetName, paths: &[String]) -> Result<Vec<String>> {
        let mut taken = Vec::new();
        self.commit(dataset, |state| {
            let garbage: Vec<&str> = state.garbage().map(|(path, _)| path).collect();
            let is_garbage = |path: &&String| garbage.contains(&path.as_str());
            taken = paths.iter().filter(is_garbage).cloned().collect();
            Ok((!taken.is_empty()).then(|| {
                Change::Gc(GcRecord {
                    paths: taken.clone(),
                    other: Map::new(),
                })
            }))
        })?;
        Ok(taken)
    }

    /// Commits a finished build. The same build (recipe, options and manifest) committed before is no error, and writes nothing.
    ///
    /// The files must be durable in the build's folder (or its staging folder) before.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the version is there with other content and the build does not overwrite; those of
    /// [`Catalog::commit`].
    pub fn commit_build(&self, build: &Build<'_>) -> Result<Committed> {
        let manifest = build.manifest;
        manifest.validate().map_err(Error::Refused)?;
        let dataset = DatasetName::new(&manifest.name, manifest.config.as_deref())?;
        let mut record = VersionRecord::of_manifest(manifest, self.stored_path(&build.folder)?);
        record.staged_path = build
            .staged
            .as_ref()
            .map(|staged| self.stored_path(staged))
            .transpose()?;
        record.flags.clone_from(&build.flags);
        let mut present = None;
        let written = self.commit(&dataset, |state| {
            if let Some(found) = state.version(&record.version) {
                let same = found.record.manifest_sha256 == record.manifest_sha256;
                // The same files in another folder are a move, which has to be asked for.
                if same && found.record.path == record.path {
                    present = Some(found.log_number);
                    return Ok(None);
                }
                if !build.overwrite {
                    return Err(self.conflict(&dataset, &found.record, &record));
                }
            }
            if let Some((version, sha256)) = &build.base
                && let Some(found) = state.version(version)
                && found.record.manifest_sha256 != *sha256
            {
                return Err(Error::Refused(format!(
                    "version {version}, whose shards version {} shares, has been replaced meanwhile: give the same command again",
                    record.version
                )));
            }
            let record = record.clone();
            Ok(Some(match build.kind {
                Kind::Build => Change::Build(record),
                Kind::Register => Change::Register(record),
                Kind::Append => Change::Append(record),
            }))
        })?;
        let log_number = written
            .or(present)
            .expect("a commit without entry found the version");
        Ok(Committed {
            log_number,
            is_new: written.is_some(),
        })
    }

    /// How the log writes this folder: relative to the catalog when below it, else absolute.
    ///
    /// # Errors
    /// [`Error::Refused`] for the catalog's own folder and a path that is not UTF-8.
    pub fn stored_path(&self, folder: &Location) -> Result<String> {
        let (Some(catalog), Some(path)) = (self.location().as_path(), folder.as_path()) else {
            let (catalog, folder) = (self.location().to_string(), folder.to_string());
            let below = folder
                .strip_prefix(catalog.trim_end_matches('/'))
                .and_then(|rest| rest.strip_prefix('/'));
            return Ok(below.map_or(folder.clone(), str::to_string));
        };
        let (catalog, path) = (store::clean(&catalog)?, store::clean(&path)?);
        let text = |path: &Path| match path.to_str() {
            Some(text) if !text.is_empty() => Ok(text.to_string()),
            _ => Err(Error::Refused(format!(
                "`{folder}` cannot be the folder of a version: its path must be UTF-8, and not the catalog's own"
            ))),
        };
        match path.strip_prefix(&catalog) {
            Ok(below) => text(below),
            Err(_) => text(&path),
        }
    }

    /// The folder that [`stored_path`](Self::stored_path) wrote so.
    ///
    /// # Errors
    /// [`Error::Format`] for text that is no location.
    pub fn folder(&self, stored: &str) -> Result<Location> {
        if stored.starts_with('/') {
            return Ok(Location::from_path(stored));
        }
        if stored.contains("://") {
            return Ok(Location::parse(stored)?);
        }
        Ok(self.location().join_encoded(stored))
    }

    /// How the manifest of a version in `folder` names a file in place: by a way from the folder, where both lie in the catalog or else in `data_dir`,
    /// so that these may be moved as a whole; else absolutely.
    ///
    /// # Errors
    /// [`Error::Refused`] for a path that is not UTF-8, [`Error::Store`] for one that cannot be resolved.
    pub fn outside_path(&self, folder: &Location, data_dir: &Location, file: &Location) -> Result<String> {
        let clean = |location: &Location| -> Result<String> {
            let Some(path) = location.as_path() else {
                return Ok(location.to_string().trim_end_matches('/').to_string());
            };
            // Links to folders are followed, and the file's own name stays: what it is a link to may have any.
            let path = match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => {
                    let parent = if parent.as_os_str().is_empty() {
                        Path::new(".")
                    } else {
                        parent
                    };
                    store::clean(parent)?.join(name)
                }
                _ => store::clean(&path)?,
            };
            let text = path.to_str().map(str::to_string);
            text.ok_or_else(|| {
                Error::Refused(format!(
                    "`{location}` cannot be registered: its path is not UTF-8"
                ))
            })
        };
        let below = |path: &str, base: &str| -> Option<String> {
            let rest = path.strip_prefix(base)?.strip_prefix('/')?;
            (!rest.is_empty()).then(|| rest.to_string())
        };
        let (folder_text, file_text) = (clean(folder)?, clean(file)?);
        for base in [self.location(), data_dir] {
            let base = clean(base)?;
            let (Some(inside), Some(rest)) = (below(&folder_text, &base), below(&file_text, &base)) else {
                continue;
            };
            let rest = match file.as_path() {
                Some(_) => rest,
                // As `Location::join` writes it, backwards.
                None => rest.replace("%3F", "?").replace("%23", "#").replace("%25", "%"),
            };
            let path = format!("{}{rest}", "../".repeat(inside.split('/').count()));
            if crate::shard_location(&Location::parse(&folder_text)?, &path).to_string() == file_text {
                return Ok(path);
            }
        }
        Ok(file_text)
    }

    /// Refuses a version in a remote folder that `gc` deletes this very moment, for all that anybody knows. In a local one the lock of its
    /// staging keeps the two apart.
    fn check_collected(&self, state: &State, change: &Change) -> Result<()> {
        let Some(record) = change.version_record() else {
            return Ok(());
        };
        let is_remote = self.folder(&record.path)?.as_path().is_none();
        if is_remote && state.was_collected(&record.path) {
            return Err(Error::Data {
                version: record.version.clone(),
                folder: record.path.clone(),
                reason: "`prep gc` has deleted that folder meanwhile".into(),
                hint: "give the same command again: it takes another folder".into(),
            });
        }
        Ok(())
    }

    /// Writes the state after an entry where readers look for it first. That it fails is nobody's loss.
    fn put_checkpoint(&self, dataset: &DatasetName, mut state: State, number: u64, entry: &Entry) {
        if !(number + 1).is_multiple_of(CHECKPOINT_EVERY) || state.apply(number, entry).is_err() {
            return;
        }
        let file = CheckpointFile {
            format: CATALOG_FORMAT,
            log_number: number,
            commit_id: entry.commit_id.clone(),
            state: state.to_checkpoint(),
        };
        let put = serde_json::to_vec(&file)
            .map_err(|error| error.to_string())
            .and_then(|bytes| {
                let put = self.store.put(&checkpoint_path(dataset), bytes);
                put.map_err(|error| error.to_string())
            });
        if let Err(error) = put {
            tracing::debug!(%dataset, number, error, "no checkpoint");
        }
    }

    /// The state in the checkpoint, and the number and id of the entry that it is the state after. `None` without a good one.
    fn read_checkpoint(&self, dataset: &DatasetName) -> Result<Option<(State, u64, String)>> {
        let Some(bytes) = self.store.get(&checkpoint_path(dataset))? else {
            return Ok(None);
        };
        let Ok(file) = serde_json::from_slice::<CheckpointFile>(&bytes) else {
            return Ok(None);
        };
        let after = file
            .log_number
            .checked_add(1)
            .filter(|_| file.format == CATALOG_FORMAT);
        let state = after.and_then(|after| State::from_checkpoint(&file.state, after).ok());
        Ok(state.map(|state| (state, file.log_number, file.commit_id)))
    }

    /// Reads a log to its end, from its checkpoint where there is one: without a listing, and with no look at the entries before.
    fn read_quickly(&self, dataset: &DatasetName) -> Result<Log> {
        if let Some((state, number, commit_id)) = self.read_checkpoint(dataset)? {
            let log = Log {
                state,
                last: Some(number),
                ..Log::default()
            };
            if let Some(log) = self.follow(dataset, log, Some(&commit_id))? {
                return Ok(log);
            }
        }
        if self.store.can_list() {
            return self.read_log(dataset, None);
        }
        Ok(self.follow(dataset, Log::default(), None)?.unwrap_or_default())
    }

    /// Follows a log to its end, a few entries at a time. `None`: its last entry so far is not the one with this id.
    fn follow(&self, dataset: &DatasetName, mut log: Log, commit_id: Option<&str>) -> Result<Option<Log>> {
        let mut known = commit_id;
        loop {
            let first = match (log.last, known) {
                (None, _) => 0,
                (Some(last), Some(_)) => last,
                (Some(u64::MAX), None) => return Ok(Some(log)),
                (Some(last), None) => last + 1,
            };
            let end = first.saturating_add(CHECKPOINT_EVERY + u64::from(known.is_some()));
            let paths: Vec<String> = (first..end).map(|number| entry_path(dataset, number)).collect();
            let found = self.store.get_many(&paths)?;
            let there = found.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            for (number, (bytes, path)) in (first..end).zip(found.iter().zip(&paths)).take(there) {
                let name = self.store.name(path);
                let entry = match bytes {
                    Some(bytes) => Entry::from_json(bytes, &name),
                    None => Err(Error::DamagedEntry {
                        path: name,
                        reason: format!(
                            "the log entry is missing, and entry {} is there",
                            first + there as u64 - 1
                        ),
                    }),
                };
                if let Some(id) = known.take() {
                    match entry {
                        Ok(entry) if entry.commit_id == id => continue,
                        _ => return Ok(None),
                    }
                }
                match entry {
                    Ok(entry) => log.state.apply(number, &entry)?,
                    Err(error @ (Error::DamagedEntry { .. } | Error::TooNew { .. })) => {
                        log.problems.push(error)
                    }
                    Err(error) => return Err(error),
                }
                log.last = Some(number);
            }
            if known.is_some() {
                return Ok(None);
            }
            if there < found.len() {
                return Ok(Some(log));
            }
        }
    }

    /// Reads a log up to an entry, on a store that cannot be listed.
    fn follow_to(&self, dataset: &DatasetName, up_to: u64) -> Result<Log> {
        let mut log = Log::default();
        let all = self.follow(dataset, Log::default(), None)?.unwrap_or_default();
        log.last = all.last;
        let Some(last) = all.last else {
            return Ok(log);
        };
        let numbers: Vec<u64> = (0..=last.min(up_to)).collect();
        let paths: Vec<String> = numbers
            .iter()
            .map(|number| entry_path(dataset, *number))
            .collect();
        for ((number, path), bytes) in numbers.iter().zip(&paths).zip(self.store.get_many(&paths)?) {
            let entry = bytes.map(|bytes| Entry::from_json(&bytes, &self.store.name(path)));
            match entry {
                Some(Ok(entry)) => log.state.apply(*number, &entry)?,
                Some(Err(error)) => log.problems.push(error),
                None => {}
            }
        }
        Ok(log)
    }

    /// Writes `prep.json`, unless there is one.
    fn make_catalog(&self) -> Result<()> {
        if self.exists {
            return Ok(());
        }
        let text = format!("{{\"format\": {CATALOG_FORMAT}}}\n");
        if !self.store.put_if_absent(CATALOG_FILE, text.into_bytes())? {
            check_format(&self.store)?;
        }
        Ok(())
    }

    /// Puts an entry where there is none; `false` if another one is there.
    fn put_entry(&self, path: &str, entry: &Entry) -> Result<bool> {
        let put = self.store.put_if_absent(path, entry.to_json());
        if matches!(put, Ok(true)) {
            return put;
        }
        // The reply may have been lost, or a retry inside the store may have met its own first try: is it ours?
        let found = self.store.get(path);
        let is_ours = found.as_ref().ok().and_then(Option::as_ref).is_some_and(|bytes| {
            Entry::from_json(bytes, path).is_ok_and(|found| found.commit_id == entry.commit_id)
        });
        match put {
            _ if is_ours => self.store.sync(path).map(|()| true),
            // Whose it is cannot be told where it cannot be read.
            Ok(_) => found.map(|_| false),
            Err(error) => Err(error),
        }
    }

    /// Reads a log up to an entry, or to its end.
    fn read_log(&self, dataset: &DatasetName, up_to: Option<u64>) -> Result<Log> {
        if !self.store.can_list() {
            return match up_to {
                Some(number) => self.follow_to(dataset, number),
                None => self.read_quickly(dataset),
            };
        }
        let children = self.store.list(&log_folder(dataset))?;
        let mut log = Log {
            last: children
                .files
                .iter()
                .rev()
                .find_map(|file| store::entry_number(file)),
            configs: if dataset.config.is_none() {
                children.folders
            } else {
                Vec::new()
            },
            ..Log::default()
        };
        // A listing may be older than the newest entries.
        let mut newest = Vec::new();
        loop {
            let next = log.last.map_or(0, |last| last.saturating_add(1));
            if log.last == Some(u64::MAX) {
                break;
            }
            let Some(bytes) = self.store.get(&entry_path(dataset, next))? else {
                break;
            };
            newest.push((next, bytes));
            log.last = Some(next);
        }
        let Some(end) = log.last.map(|last| up_to.map_or(last, |number| number.min(last))) else {
            return Ok(log);
        };
        let read_all = |numbers: std::ops::RangeInclusive<u64>| -> Result<Vec<(u64, Result<Entry>)>> {
            let held = |number: &u64| newest.iter().find(|(found, _)| found == number);
            let paths: Vec<String> = numbers
                .clone()
                .filter(|number| held(number).is_none())
                .map(|number| entry_path(dataset, number))
                .collect();
            let mut fetched = self.store.get_many(&paths)?.into_iter();
            let parse = |number: u64| {
                let name = self.store.name(&entry_path(dataset, number));
                let bytes = match held(&number) {
                    Some((_, bytes)) => Some(bytes.clone()),
                    None => fetched.next().flatten(),
                };
                let entry = match bytes {
                    Some(bytes) => Entry::from_json(&bytes, &name),
                    None => Err(Error::DamagedEntry {
                        path: name,
                        reason: format!("the log entry is missing, and entry {end} is there"),
                    }),
                };
                (number, entry)
            };
            Ok(numbers.map(parse).collect())
        };
        let mut start = end - end % CHECKPOINT_INTERVAL;
        let mut entries: Vec<(u64, Result<Entry>)> = Vec::new();
        loop {
            let upper = entries.first().map_or(end, |(first, _)| first - 1);
            let mut block = read_all(start..=upper)?;
            block.append(&mut entries);
            entries = block;
            if start == 0 {
                break;
            }
            if let Ok(entry) = &entries[0].1
                && let Some(checkpoint) = &entry.checkpoint
                && let Ok(state) = State::from_checkpoint(checkpoint, start)
            {
                log.state = state;
                break;
            }
            start -= CHECKPOINT_INTERVAL;
        }
        for (number, entry) in entries {
            match entry {
                Ok(entry) => log.state.apply(number, &entry)?,
                Err(error @ (Error::DamagedEntry { .. } | Error::TooNew { .. })) => log.problems.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(log)
    }

    /// The version that a name asks for.
    fn select(&self, dataset: &DatasetName) -> Result<(State, VersionState)> {
        let up_to = match &dataset.selector {
            Selector::Log(number) => Some(*number),
            _ => None,
        };
        let log = match up_to {
            Some(_) => self.read_log(dataset, up_to)?,
            None => self.read_quickly(dataset)?,
        };
        let Some(last) = log.last else {
            return Err(self.not_found(dataset, &log.configs));
        };
        let by_number = match &dataset.selector {
            Selector::Version(version) => log.state.version(version),
            _ => None,
        };
        // An unread entry may say anything; a damaged one cannot make the data of a version others than its hash says.
        let problem = log
            .problems
            .into_iter()
            .find(|problem| by_number.is_none() || matches!(problem, Error::TooNew { .. }));
        if let Some(problem) = problem {
            return Err(problem);
        }
        let unknown = |wanted: String, known: String| Error::UnknownVersion {
            dataset: dataset.place(),
            catalog: self.location().to_string(),
            wanted,
            known,
        };
        let versions = || {
            let known: Vec<String> = log
                .state
                .versions()
                .map(|(version, _)| version.to_string())
                .collect();
            match known.len() {
                0 => "no version".to_string(),
                1 => format!("version {}", quoted(&known)),
                _ => format!("versions {}", quoted(&known)),
            }
        };
        let found = match &dataset.selector {
            Selector::Version(version) => {
                by_number.ok_or_else(|| unknown(format!("version `{version}`"), versions()))
            }
            Selector::Latest => log
                .state
                .latest()
                .ok_or_else(|| unknown("version".to_string(), "none: they were removed".to_string())),
            Selector::Log(number) if *number > last => Err(unknown(
                format!("log entry {number}"),
                format!("entries 0 to {last}"),
            )),
            Selector::Log(number) => log
                .state
                .latest()
                .ok_or_else(|| unknown(format!("version at log entry {number}"), versions())),
            Selector::Tag(tag) => {
                let known: Vec<&str> = log.state.tags().map(|(tag, _)| tag).collect();
                match log.state.tags().find(|(found, _)| found == tag) {
                    Some((_, version)) => log
                        .state
                        .version(&version.to_string())
                        .ok_or_else(|| unknown(format!("version `{version}` (tag `{tag}`)"), versions())),
                    None if known.is_empty() => Err(unknown(format!("tag `{tag}`"), "no tags".into())),
                    None => Err(unknown(
                        format!("tag `{tag}`"),
                        format!("tags {}", quoted(&known)),
                    )),
                }
            }
        };
        let found = found?.clone();
        Ok((log.state, found))
    }

    fn not_found(&self, dataset: &DatasetName, configs: &[String]) -> Error {
        let place = dataset.place();
        let in_catalog = self.datasets().unwrap_or_default();
        let siblings: Vec<String> = match dataset.config {
            None => configs.to_vec(),
            Some(_) => in_catalog
                .iter()
                .filter(|other| other.name == dataset.name)
                .filter_map(|other| other.config.clone())
                .collect(),
        };
        let catalog = self.location().to_string();
        if let Some(first) = siblings.first() {
            let near = crate::near(
                dataset.config.as_deref().unwrap_or_default(),
                siblings.iter().map(String::as_str),
            );
            let example = near.first().map_or(first.as_str(), |near| near);
            return Error::UnknownConfig {
                dataset: place,
                catalog,
                known: quoted(&siblings),
                example: name::place(&dataset.name, Some(example)),
            };
        }
        let places: Vec<String> = in_catalog.iter().map(DatasetName::place).collect();
        let candidates = places.iter().chain(&self.known).map(String::as_str);
        let suggestions = crate::near(&place, candidates).into_iter().map(str::to_string);
        Error::UnknownDataset {
            suggestions: suggestions.collect(),
            has_catalog: self.exists || !in_catalog.is_empty(),
            dataset: place,
            catalog,
        }
    }

    fn conflict(&self, dataset: &DatasetName, found: &VersionRecord, wanted: &VersionRecord) -> Error {
        let difference = if found.recipe_sha256 != wanted.recipe_sha256 {
            "made with another recipe or other output options"
        } else if found.fingerprint != wanted.fingerprint {
            "made from other sources: its content differs"
        } else {
            "with the same content in other files"
        };
        Error::Conflict {
            version: format!("{}:{}", dataset.place(), wanted.version),
            catalog: self.location().to_string(),
            difference: difference.to_string(),
        }
    }

    /// Why the data of a version are in neither of its folders.
    fn lost_data(&self, dataset: &DatasetName, found: &VersionState, reasons: &[String]) -> Error {
        let version = format!("{}:{}", dataset.place(), found.record.version);
        let now = self
            .read_log(dataset, None)
            .map(|log| log.state)
            .unwrap_or_default();
        let replaced = match now.version(&found.record.version) {
            Some(now) if now.log_number != found.log_number => Some(format!(
                "log entry {} replaced them, the ones asked for are of entry {}",
                now.log_number, found.log_number
            )),
            None if now.log_number() != Some(found.log_number) => {
                Some("a later log entry removed the version".to_string())
            }
            _ => None,
        };
        let (reason, hint) = match replaced {
            Some(reason) => (
                reason,
                format!("ask for `{}`, or for a version that is there", dataset.place()),
            ),
            None => (
                reasons.join("; "),
                "restore the folder from a backup, or build the version again".to_string(),
            ),
        };
        Error::Data {
            version,
            folder: self
                .folder(&found.record.path)
                .map_or_else(|_| found.record.path.clone(), |folder| folder.to_string()),
            reason,
            hint,
        }
    }
}

impl Resolved {
    /// The name of exactly this version.
    pub fn dataset_name(&self) -> DatasetName {
        DatasetName {
            name: self.name.clone(),
            config: self.config.clone(),
            selector: Selector::Version(self.version.clone()),
        }
    }

    /// Checks that the folder is still the one that was found: one look at the manifest's inode.
    ///
    /// `--overwrite` exchanges folders under their names. A reader that opens shards long after resolving calls this *after* opening
    /// one: if the folder is the same then, the shard is of this version.
    ///
    /// # Errors
    /// [`Error::Data`] if it was replaced or removed.
    pub fn check_unchanged(&self) -> Result<()> {
        let (Some(stamp), Some(path)) = (self.stamp, self.folder.join(MANIFEST_FILE).as_path()) else {
            return Ok(());
        };
        if Stamp::now(&path) == Some(stamp) {
            return Ok(());
        }
        Err(Error::Data {
            version: self.dataset_name().to_string(),
            folder: self.folder.to_string(),
            reason: "the folder was replaced or removed while it was read".into(),
            hint: "open the dataset again; a running job goes on from its saved state if the content is the same".into(),
        })
    }
}

/// Whether there is a catalog, of a format that can be read.
fn check_format(store: &Store) -> Result<bool> {
    let Some(bytes) = store.get(CATALOG_FILE)? else {
        return Ok(false);
    };
    let path = store.name(CATALOG_FILE);
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| Error::DamagedEntry {
        path: path.clone(),
        reason: format!("damaged: {error}"),
    })?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(CATALOG_FORMAT) => Ok(true),
        Some(format) => Err(Error::TooNew {
            path,
            reason: format!("the catalog has format {format}, this version of prep reads {CATALOG_FORMAT}"),
        }),
        None => Err(Error::DamagedEntry {
            path,
            reason: "damaged: it has no `format`, wanted a number".into(),
        }),
    }
}

fn log_folder(dataset: &DatasetName) -> String {
    format!("log/{}", dataset.place())
}

fn checkpoint_path(dataset: &DatasetName) -> String {
    format!("checkpoints/{}.json", dataset.place())
}

fn entry_path(dataset: &DatasetName, number: u64) -> String {
    format!("{}/{}", log_folder(dataset), store::entry_file(number))
}

fn tags_of(state: &State, version: Version) -> Vec<String> {
    state
        .tags()
        .filter(|(_, tagged)| **tagged == version)
        .map(|(tag, _)| tag.to_string())
        .collect()
}

/// The manifest of a folder if it is the one with this hash; else why not.
fn read_manifest(folder: &Location, sha256: &str) -> Result<Result<(Manifest, Option<Stamp>), String>> {
    let at = folder.join(MANIFEST_FILE);
    let Some((bytes, stamp)) = store::read_stamped(&at)? else {
        return Ok(Err(format!("there is no `{at}`")));
    };
    let found = hex::encode(Sha256::digest(&bytes));
    if found != sha256 {
        return Ok(Err(format!(
            "`{at}` has SHA-256 {found}, the catalog's log says {sha256}"
        )));
    }
    Ok(Ok((Manifest::from_json(&bytes, &at.to_string())?, stamp)))
}

/// Checks that a manifest is of the dataset and version that the log says.
fn check_same(
    dataset: &DatasetName,
    record: &VersionRecord,
    manifest: &Manifest,
    folder: &Location,
) -> Result<()> {
    if (&manifest.name, &manifest.config, &manifest.version)
        == (&dataset.name, &dataset.config, &record.version)
    {
        return Ok(());
    }
    Err(Error::Manifest {
        path: folder.join(MANIFEST_FILE).to_string(),
        reason: format!(
            "it describes `{}:{}`, the catalog's log says `{}:{}`",
            name::place(&manifest.name, manifest.config.as_deref()),
            manifest.version,
            dataset.place(),
            record.version
        ),
    })
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
