//! Finds and deletes what no version of a catalog needs any more.
//!
//! | what | known from | deleted |
//! | --- | --- | --- |
//! | the folder of a version that was removed, or replaced by one in another folder | the log | its shards and what describes them; the folder, if nothing else is in it |
//! | the folder of a version of which the log has no entry, as a job was killed between the two | it lies in the catalog's own data folder, and its manifest is of that version | as above |
//! | staging of a job that does not run | `.staging` of the data folders, and that nobody holds its lock | all of it |
//! | files put into a store by a build that was killed | its claim there; a whole folder only in the catalog's own data folder | the claim, and those files |
//! | objects by which a store was tried, temporary files of killed commits | their names | they |
//!
//! Only what has been so for a while, seven days unless said otherwise, is taken: a reader that has opened a version before it was removed reads on for that
//! long. A folder is taken out of use by an entry of the log before it is deleted (see [`prep_catalog::catalog`]), and, where it is local, under the
//! lock that builds of that version take. What is merely not known to the log is not garbage outside the catalog's own folder: it may be another catalog's. A data folder that several
//! catalogs use must not be cleaned by one that removed a version which another one has too.
//!
//! Takes one listing for each folder, and memory for the names in one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use prep_catalog::manifest::{MANIFEST_FILE, Manifest};
use prep_catalog::name::Version;
use prep_catalog::{Catalog, DatasetName, State};
use prep_formats::store::{self, ListedFile, Location};

use crate::build::publish::hinted;
use crate::build::staging::{STAGING_FOLDER, Staging};
use crate::build::upload::CLAIM_FILE;
use crate::monitor::Monitor;
use crate::place::ours;

/// How long after its manifest a folder in a store may still get its entry, which is the job's next step.
const COMMITTED_WITHIN: Duration = Duration::from_secs(3600);
const MAY_BE_COMMITTED: &str = "it is whole, and its job may be about to tell the log";
const TRIED: &str = "a store was tried by it, and the program was killed";

/// How long things are spared by default.
pub const SPARED: Duration = Duration::from_secs(7 * 24 * 3600);

/// What to look for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GcOptions {
    /// Only what belongs to this dataset; its selector does not matter.
    pub dataset: Option<DatasetName>,
    /// What is younger is spared.
    pub spared: Duration,
    /// Data folders to look for staging in, besides those of the catalog's versions.
    pub data_dirs: Vec<Location>,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self {
            dataset: None,
            spared: SPARED,
            data_dirs: Vec::new(),
        }
    }
}

impl GcOptions {
    /// Only what belongs to this dataset. Default: everything.
    #[must_use]
    pub fn dataset(mut self, dataset: Option<DatasetName>) -> Self {
        self.dataset = dataset;
        self
    }

    /// Spares what is younger than this. Default: seven days.
    #[must_use]
    pub fn spared(mut self, spared: Duration) -> Self {
        self.spared = spared;
        self
    }

    /// Looks for staging in these data folders too. Default: in those where versions of the catalog lie.
    #[must_use]
    pub fn data_dirs(mut self, data_dirs: Vec<Location>) -> Self {
        self.data_dirs = data_dirs;
        self
    }
}

/// Something that could be deleted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// The folder or file.
    pub location: Location,
    /// Files in it.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// How long it has been garbage.
    pub age: Duration,
    /// Why it is.
    pub reason: String,
    /// Why it stays nevertheless; `None` where it goes.
    pub kept: Option<String>,
    /// The dataset, and the path as its log writes it.
    dataset: Option<(DatasetName, String)>,
}

/// What an [`Item`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The folder of a version.
    Version,
    /// The folder of a version of which the log has no entry.
    Orphan,
    /// A local staging folder.
    Staging,
    /// Files in a store that no version was made of.
    Upload,
    /// A temporary file of a commit.
    Temporary,
}

impl Kind {
    /// `version`, `orphan`, `staging`, `upload` or `temporary`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Orphan => "orphan",
            Self::Staging => "staging",
            Self::Upload => "upload",
            Self::Temporary => "temporary",
        }
    }
}

/// What was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// Finds what could be deleted, and what of it is spared and why. Writes nothing.
///
/// # Errors
/// A log that cannot be read: then nobody knows what is needed. A folder that cannot be listed.
pub fn plan(catalog: &Catalog, options: &GcOptions, monitor: &Monitor) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let now = SystemTime::now();
    let mut states = Vec::new();
    let mut needed = BTreeSet::new();
    let mut known = BTreeSet::new();
    let mut data_dirs = BTreeMap::new();
    let mut note_data_dir = |location: Location| {
        data_dirs.insert(location.to_string().trim_end_matches('/').to_owned(), location);
    };
    note_data_dir(catalog.data_dir());
    options.data_dirs.iter().cloned().for_each(&mut note_data_dir);
    for dataset in catalog.datasets().map_err(hinted)? {
        monitor.check()?;
        let state = catalog.state(&dataset).map_err(hinted)?;
        let used = state.versions().flat_map(|(_, version)| version.record.folders());
        for path in used {
            needed.insert(catalog.folder(path).map_err(hinted)?.to_string());
        }
        // What is in place may be files of another version.
        for (_, version) in state.versions().filter(|(_, version)| version.kind == "register") {
            let folder = catalog.folder(&version.record.path).map_err(hinted)?;
            let manifest = Manifest::read(&folder).map_err(hinted)?;
            for shard in manifest.splits.iter().flat_map(|split| &split.shards) {
                if let Some(holder) = shard.location(&folder).parent() {
                    needed.insert(holder.to_string());
                }
            }
        }
        for path in paths_of(&state) {
            let folder = catalog.folder(path).map_err(hinted)?;
            known.insert(folder.to_string());
            if let Some((data_dir, _)) = data_dir_of(&folder, &dataset) {
                note_data_dir(data_dir);
            }
        }
        states.push((dataset, state));
    }
    for (dataset, state) in &states {
        let wanted = options.dataset.as_ref();
        if wanted.is_some_and(|wanted| wanted.place() != dataset.place()) {
            continue;
        }
        for (path, garbage) in state.garbage() {
            let location = catalog.folder(path).map_err(hinted)?;
            let age = garbage.age(now);
            let reason = format!(
                "version {} of {} was removed or replaced by log entry {}",
                garbage.version,
                dataset.place(),
                garbage.log_number
            );
            let mut item = version_item(&location, age, reason, &needed)?;
            item.dataset = Some((dataset.clone(), path.to_owned()));
            items.push(spare(item, options.spared));
        }
        // Of a run that was killed between its entry and the last file.
        for (path, number) in state.collected() {
            let location = catalog.folder(path).map_err(hinted)?;
            let reason = format!("`prep gc` began to delete it with log entry {number}");
            let mut item = version_item(&location, Duration::MAX, reason, &needed)?;
            if item.files == 0 {
                continue;
            }
            item.dataset = Some((dataset.clone(), path.to_owned()));
            items.push(spare(item, options.spared));
        }
        let found = orphans(catalog, dataset, state, &needed, now)?;
        items.extend(found.into_iter().map(|item| spare(item, options.spared)));
    }
    if options.dataset.is_none() {
        if let Ok(home) = prep_catalog::home_folder() {
            for entry in std::fs::read_dir(home.join("remote"))
                .into_iter()
                .flatten()
                .flatten()
            {
                note_data_dir(Location::from_path(entry.path()));
            }
        }
        for data_dir in data_dirs.values() {
            monitor.check()?;
            let found = match data_dir.as_path() {
                Some(path) => local_staging(&path, now, monitor)?,
                None => {
                    let may_be_others = *data_dir != catalog.data_dir();
                    let mut found = uploads(data_dir, now, &|folder, is_whole| {
                        known.contains(&folder.to_string()) || is_whole && may_be_others
                    })?;
                    found.extend(probes(data_dir, now)?);
                    found
                }
            };
            items.extend(found.into_iter().map(|item| spare(item, options.spared)));
        }
        let found = match catalog.location().as_path() {
            Some(path) => temporary_files(&path.join("log"), now)?,
            None => probes(catalog.location(), now)?,
        };
        items.extend(found.into_iter().map(|item| spare(item, options.spared)));
    }
    Ok(items)
}

/// Deletes what a plan says, but not what is kept. `each` hears of every item: what was deleted of it, or why it stayed.
///
/// # Errors
/// An entry that cannot be committed, a file that cannot be deleted. What was deleted so far is gone; the next run goes on.
pub fn delete(
    catalog: &Catalog,
    items: &[Item],
    options: &GcOptions,
    monitor: &Monitor,
    mut each: impl FnMut(&Item, Result<Deleted, String>) -> Result<()>,
) -> Result<()> {
    for item in items {
        monitor.check()?;
        if let Some(reason) = &item.kept {
            each(item, Err(reason.clone()))?;
            continue;
        }
        let outcome = match item.kind {
            Kind::Version => delete_version(catalog, item, monitor)?,
            Kind::Orphan => delete_orphan(catalog, item, options.spared, monitor)?,
            Kind::Staging => delete_staging(item, options.spared, monitor)?,
            Kind::Upload => delete_upload(catalog, item, options.spared, SystemTime::now())?,
            Kind::Temporary => {
                match item.location.as_path() {
                    // Its name is one that object stores do not take.
                    Some(path) => std::fs::remove_file(&path)
                        .with_context(|| format!("could not delete {}", path.display()))?,
                    None => store::remove_file(&item.location)?,
                }
                Ok(Deleted {
                    files: item.files,
                    bytes: item.bytes,
                })
            }
        };
        each(item, outcome)?;
    }
    Ok(())
}

/// The folders that a log knows, as it writes them: of versions, and of what was removed.
fn paths_of(state: &State) -> impl Iterator<Item = &str> {
    let versions = state.versions().map(|(_, version)| version.record.path.as_str());
    let garbage = state.garbage().map(|(path, _)| path);
    versions
        .chain(garbage)
        .chain(state.collected().map(|(path, _)| path))
}

/// The data folder in which the folder of a version of this dataset lies, and its path in there; `None` where it was put elsewhere.
fn data_dir_of(folder: &Location, dataset: &DatasetName) -> Option<(Location, String)> {
    let text = folder.to_string();
    let text = text.trim_end_matches('/');
    let (above, last) = text.rsplit_once('/')?;
    let data_dir = above.strip_suffix(&dataset.place())?.strip_suffix('/')?;
    let relative = format!("{}/{last}", dataset.place());
    let data_dir = match folder.as_path() {
        Some(_) => Location::from_path(if data_dir.is_empty() { "/" } else { data_dir }),
        None => Location::parse(data_dir).ok()?,
    };
    Some((data_dir, relative))
}

fn spare(mut item: Item, spared: Duration) -> Item {
    if item.kept.is_none() && item.age < spared {
        item.kept = Some(format!("it is younger than {}", show_age(spared)));
    }
    item
}

/// Days, hours, minutes or seconds, whatever is at least one.
pub fn show_age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (count, unit) = match seconds {
        86_400.. => (seconds / 86_400, "day"),
        3_600.. => (seconds / 3_600, "hour"),
        60.. => (seconds / 60, "minute"),
        _ => (seconds, "second"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

fn version_item(
    location: &Location,
    age: Duration,
    reason: String,
    needed: &BTreeSet<String>,
) -> Result<Item> {
    let inside = format!("{}/", location.to_string().trim_end_matches('/'));
    let is_needed = needed.contains(&location.to_string())
        || needed
            .range(inside.clone()..)
            .next()
            .is_some_and(|path| path.starts_with(&inside));
    let files = match ours_in(location) {
        Ok(files) => files,
        Err(reason_kept) => {
            return Ok(Item {
                kind: Kind::Version,
                location: location.clone(),
                files: 0,
                bytes: 0,
                age,
                reason,
                kept: Some(format!("{reason_kept:#}")),
                dataset: None,
            });
        }
    };
    Ok(Item {
        kind: Kind::Version,
        location: location.clone(),
        files: files.len() as u64,
        bytes: files.iter().map(|file| file.bytes).sum(),
        age,
        reason,
        kept: is_needed.then(|| "a version of the catalog needs it".to_owned()),
        dataset: None,
    })
}

/// The files of a version's folder that the program has put there: those of its manifest, and what describes them; the manifest last. What the user has
/// put beside them is the user's.
fn ours_in(folder: &Location) -> Result<Vec<ListedFile>> {
    let all = store::list_files(folder)?;
    if !all.iter().any(|file| file.relative == MANIFEST_FILE) {
        // Nothing of it is there any more, or a deletion was killed before the manifest's turn, which is last: then it never had one.
        return Ok(Vec::new());
    }
    let manifest = Manifest::read(folder).map_err(hinted)?;
    let listed = ours::listed(&manifest);
    let is_ours = |file: &ListedFile| listed.contains(&file.relative) || ours::describes(&file.relative);
    let mut files: Vec<ListedFile> = all.into_iter().filter(is_ours).collect();
    files.sort_by_key(|file| file.relative == MANIFEST_FILE);
    Ok(files)
}

fn delete_version(catalog: &Catalog, item: &Item, monitor: &Monitor) -> Result<Result<Deleted, String>> {
    let Some((dataset, path)) = &item.dataset else {
        return Ok(Err("it belongs to no dataset".to_owned()));
    };
    // Held until the files are gone: a build of this version waits.
    let mut staging = None;
    if let Some(folder) = item.location.as_path() {
        let (data_dir, relative) = match data_dir_of(&item.location, dataset) {
            Some((data_dir, relative)) => (data_dir.as_path().unwrap_or_default(), PathBuf::from(relative)),
            None => (
                folder.parent().unwrap_or(Path::new("/")).to_owned(),
                PathBuf::from(folder.file_name().unwrap_or_default()),
            ),
        };
        if folder.exists() {
            match Staging::try_enter(&data_dir, &relative, monitor)? {
                Some(entered) => staging = Some(entered),
                None => return Ok(Err("a build of this version runs".to_owned())),
            }
        }
    }
    let state = catalog.state(dataset).map_err(hinted)?;
    let is_ours = state.was_collected(path)
        || !catalog
            .collect(dataset, std::slice::from_ref(path))
            .map_err(hinted)?
            .is_empty();
    let result = if is_ours {
        delete_files(&item.location).map(Ok)
    } else {
        Ok(Err("a version of the catalog needs it now".to_owned()))
    };
    if let Some(staging) = staging
        && staging.holds_nothing()
    {
        staging.remove()?;
    }
    result
}

/// Folders of versions that the log does not know, in the catalog's own data folder: their jobs were killed between folder and entry. One that cannot be read is
/// none.
fn orphans(
    catalog: &Catalog,
    dataset: &DatasetName,
    state: &State,
    needed: &BTreeSet<String>,
    now: SystemTime,
) -> Result<Vec<Item>> {
    let Some(data_dir) = catalog.data_dir().as_path() else {
        // In a store the claim tells.
        return Ok(Vec::new());
    };
    let place = dataset.place();
    let Ok(entries) = std::fs::read_dir(data_dir.join(&place)) else {
        return Ok(Vec::new());
    };
    let mut items = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let version = name.to_str().filter(|name| is_unknown(state, name));
        let (Some(version), Ok(true)) = (version, entry.file_type().map(|kind| kind.is_dir())) else {
            continue;
        };
        let location = Location::from_path(entry.path());
        let stored = catalog.stored_path(&location).map_err(hinted)?;
        // What the log has taken out of use, or what it needs under another name.
        let is_known = state.garbage().any(|(path, _)| path == stored) || state.was_collected(&stored);
        if is_known || is_used(&entry.path(), needed) {
            continue;
        }
        let is_its = |manifest: &Manifest| {
            (
                manifest.name.as_str(),
                manifest.config.as_ref(),
                manifest.version.as_str(),
            ) == (dataset.name.as_str(), dataset.config.as_ref(), version)
        };
        if !Manifest::read(&location).is_ok_and(|manifest| is_its(&manifest)) {
            continue;
        }
        let (.., newest) = tree(&entry.path());
        let age = now.duration_since(newest).unwrap_or_default();
        let reason = format!("a job was killed before it told the log of version {version} of {place}");
        let mut item = version_item(&location, age, reason, needed)?;
        let lock = data_dir
            .join(STAGING_FOLDER)
            .join(&place)
            .join(version)
            .join("lock");
        if is_locked(&lock) {
            item.kept = Some("a build of this version runs".to_owned());
        }
        item.kind = Kind::Orphan;
        item.dataset = Some((dataset.clone(), stored));
        items.push(item);
    }
    items.sort_by_key(|item| item.location.to_string());
    Ok(items)
}

/// Whether this is the name of a version, and of none that the log has.
fn is_unknown(state: &State, name: &str) -> bool {
    Version::parse(name).is_ok_and(|version| version.to_string() == name) && state.version(name).is_none()
}

/// Whether a local folder is one of these, whatever links lead there, or holds one of them.
fn is_used(folder: &Path, needed: &BTreeSet<String>) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = real(folder);
    let local = needed
        .iter()
        .filter_map(|path| Location::parse(path).ok()?.as_path());
    local.into_iter().any(|path| real(&path).starts_with(&folder))
}

fn delete_orphan(
    catalog: &Catalog,
    item: &Item,
    spared: Duration,
    monitor: &Monitor,
) -> Result<Result<Deleted, String>> {
    let found = item.dataset.as_ref().and_then(|(dataset, _)| {
        let (data_dir, relative) = data_dir_of(&item.location, dataset)?;
        Some((dataset, data_dir.as_path()?, relative, item.location.as_path()?))
    });
    let Some((dataset, data_dir, relative, folder)) = found else {
        return Ok(Err("it belongs to no dataset".to_owned()));
    };
    // Held until the files are gone: the job that may find its folder, and make the entry, waits.
    let Some(staging) = Staging::try_enter(&data_dir, Path::new(&relative), monitor)? else {
        return Ok(Err("a build of this version runs".to_owned()));
    };
    let state = catalog.state(dataset).map_err(hinted)?;
    let version = folder
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let (.., newest) = tree(&folder);
    let age = SystemTime::now().duration_since(newest).unwrap_or_default();
    let result = if !is_unknown(&state, version) {
        Ok(Err("a version of the catalog needs it now".to_owned()))
    } else if age < spared {
        Ok(Err("a build has worked on it meanwhile".to_owned()))
    } else {
        delete_files(&item.location).map(Ok)
    };
    if staging.holds_nothing() {
        staging.remove()?;
    }
    result
}

fn delete_files(folder: &Location) -> Result<Deleted> {
    let mut deleted = Deleted::default();
    for file in ours_in(folder)? {
        store::remove_file(&folder.join(&file.relative))?;
        deleted.files += 1;
        deleted.bytes += file.bytes;
    }
    if let Some(path) = folder.as_path() {
        // Not empty: what is left is the user's. Its parents go while they are empty, up to the data folder.
        let mut next = Some(path.as_path());
        for _ in 0..3 {
            let Some(folder) = next else { break };
            if std::fs::remove_dir(folder).is_err() {
                break;
            }
            next = folder.parent();
        }
    }
    Ok(deleted)
}

/// Staging folders below a data folder: those with a lock file.
fn local_staging(data_dir: &Path, now: SystemTime, monitor: &Monitor) -> Result<Vec<Item>> {
    let top = data_dir.join(STAGING_FOLDER);
    let mut items = Vec::new();
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        monitor.check()?;
        if folder.join("lock").is_file() {
            let (files, bytes, newest) = tree(&folder);
            items.push(Item {
                kind: Kind::Staging,
                location: Location::from_path(&folder),
                files,
                bytes,
                age: now.duration_since(newest).unwrap_or_default(),
                reason: "a job that does not run any more has left it".to_owned(),
                kept: is_locked(&folder.join("lock")).then(|| "a job works in it".to_owned()),
                dataset: None,
            });
            continue;
        }
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        let inner = entries.flatten().map(|entry| entry.path());
        folders.extend(inner.filter(|path| path.is_dir() && !path.is_symlink()));
    }
    items.sort_by_key(|item| item.location.to_string());
    Ok(items)
}

/// Whether another process holds this lock file. Looks at it and takes nothing.
fn is_locked(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else {
        return false;
    };
    // Closed at once, which lets go of it again.
    matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock))
}

/// Number of files, their bytes, and when anything below was last changed.
fn tree(folder: &Path) -> (u64, u64, SystemTime) {
    let (mut files, mut bytes, mut newest) = (0, 0, SystemTime::UNIX_EPOCH);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            newest = newest.max(metadata.modified().unwrap_or(newest));
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                files += 1;
                bytes += metadata.len();
            }
        }
    }
    (files, bytes, newest)
}

fn delete_staging(item: &Item, spared: Duration, monitor: &Monitor) -> Result<Result<Deleted, String>> {
    let Some(folder) = item.location.as_path() else {
        return Ok(Err("it is not local".to_owned()));
    };
    let split = folder
        .ancestors()
        .find(|ancestor| ancestor.file_name().is_some_and(|name| name == STAGING_FOLDER));
    let (Some(top), true) = (split, folder.exists()) else {
        return Ok(Ok(Deleted::default()));
    };
    let relative = folder.strip_prefix(top).unwrap_or(&folder).to_owned();
    let data_dir = top.parent().unwrap_or(Path::new("/")).to_owned();
    let Some(staging) = Staging::try_enter(&data_dir, &relative, monitor)? else {
        return Ok(Err("a job works in it".to_owned()));
    };
    let (files, bytes, newest) = tree(&folder);
    let age = SystemTime::now().duration_since(newest).unwrap_or_default();
    if age < spared {
        return Ok(Err("a job has worked in it meanwhile".to_owned()));
    }
    staging.remove()?;
    Ok(Ok(Deleted { files, bytes }))
}

/// What builds that were killed have put into a store: known from their claims. `is_version` tells of a folder, and whether it is whole, that it is to stay.
fn uploads(
    data_dir: &Location,
    now: SystemTime,
    is_version: &dyn Fn(&Location, bool) -> bool,
) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let top = data_dir.join(STAGING_FOLDER);
    for file in store::list_files(&top)? {
        let age = now.duration_since(file.modified).unwrap_or_default();
        if is_probe(&file.relative) {
            items.push(temporary(top.join(&file.relative), file.bytes, age, TRIED));
        }
        let Some(name) = file.relative.strip_suffix(&format!("/{CLAIM_FILE}")) else {
            continue;
        };
        let folder = data_dir.join(name);
        let files = store::list_files(&folder)?;
        let manifest = files.iter().find(|file| file.relative == MANIFEST_FILE);
        let kept = manifest
            .filter(|manifest| is_fresh(manifest, now))
            .map(|_| MAY_BE_COMMITTED.to_owned());
        let (count, bytes, kept) = match is_version(&folder, manifest.is_some()) {
            true => (0, 0, None),
            false => (
                files.len() as u64,
                files.iter().map(|file| file.bytes).sum(),
                kept,
            ),
        };
        items.push(Item {
            kind: Kind::Upload,
            location: folder,
            files: count,
            bytes,
            age,
            reason: "a build that was killed has put it there".to_owned(),
            kept,
            dataset: None,
        });
    }
    Ok(items)
}

/// Whether a folder has become whole so lately that its job may be about to make the entry.
fn is_fresh(manifest: &ListedFile, now: SystemTime) -> bool {
    now.duration_since(manifest.modified).unwrap_or_default() < COMMITTED_WITHIN
}

/// Objects by which a place in a store was tried.
fn probes(folder: &Location, now: SystemTime) -> Result<Vec<Item>> {
    let found = prep_catalog::probes(folder).map_err(hinted)?.into_iter();
    let item = |(location, modified)| {
        let age = now.duration_since(modified).unwrap_or_default();
        temporary(location, 0, age, TRIED)
    };
    Ok(found.map(item).collect())
}

fn is_probe(path: &str) -> bool {
    path.rsplit('/')
        .next()
        .is_some_and(|name| name.starts_with(prep_catalog::PROBE))
}

fn temporary(location: Location, bytes: u64, age: Duration, reason: &str) -> Item {
    Item {
        kind: Kind::Temporary,
        location,
        files: 1,
        bytes,
        age,
        reason: reason.to_owned(),
        kept: None,
        dataset: None,
    }
}

fn delete_upload(
    catalog: &Catalog,
    item: &Item,
    spared: Duration,
    now: SystemTime,
) -> Result<Result<Deleted, String>> {
    let folder = &item.location;
    // From `DATA_DIR/NAME/VERSION` to `DATA_DIR/.staging/NAME/VERSION`: the claim is beside one of the folders above.
    let text = folder.to_string();
    let mut above = folder.parent();
    let mut found = None;
    while let Some(data_dir) = above {
        let relative = &text[data_dir.to_string().len() + 1..];
        let staged = data_dir.join(STAGING_FOLDER).join_encoded(relative);
        let files = store::list_files(&staged)?;
        if let Some(claim) = files.into_iter().find(|file| file.relative == CLAIM_FILE) {
            found = Some((staged.join(CLAIM_FILE), claim));
            break;
        }
        above = data_dir.parent();
    }
    let Some((claim, listed)) = found else {
        return Ok(Err("the build has ended meanwhile".to_owned()));
    };
    let age = now.duration_since(listed.modified).unwrap_or_default();
    if age < spared {
        return Ok(Err("a build is at it again".to_owned()));
    }
    // First the claim, for which a build looks before it commits.
    store::remove_file(&claim)?;
    let mut deleted = Deleted {
        files: 1,
        bytes: listed.bytes,
    };
    if item.files == 0 {
        return Ok(Ok(deleted));
    }
    let files = store::list_files(folder)?;
    if let Some(manifest) = files.iter().find(|file| file.relative == MANIFEST_FILE)
        && (is_fresh(manifest, now) || is_known(catalog, folder)?)
    {
        return Ok(Ok(deleted));
    }
    for file in files {
        store::remove_file(&folder.join(&file.relative))?;
        deleted.files += 1;
        deleted.bytes += file.bytes;
    }
    Ok(Ok(deleted))
}

/// Whether some log knows a folder now.
fn is_known(catalog: &Catalog, folder: &Location) -> Result<bool> {
    let path = catalog.stored_path(folder).map_err(hinted)?;
    for dataset in catalog.datasets().map_err(hinted)? {
        let state = catalog.state(&dataset).map_err(hinted)?;
        if paths_of(&state).any(|known| known == path) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Files that killed writers have left in a local log: `..json#1`.
fn temporary_files(log: &Path, now: SystemTime) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut folders = vec![log.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("could not list {}", folder.display()))?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let name = entry.file_name();
            let is_temporary = name.to_str().is_some_and(|name| {
                name.rsplit_once(".json#").is_some_and(|(_, number)| {
                    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
                })
            });
            if is_temporary {
                let modified = metadata.modified().unwrap_or(now);
                items.push(temporary(
                    Location::from_path(entry.path()),
                    metadata.len(),
                    now.duration_since(modified).unwrap_or_default(),
                    "a commit that was killed has left it",
                ));
            }
        }
    }
    items.sort_by_key(|item| item.location.to_string());
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_folder_is_what_is_above_the_name() {
        let dataset = DatasetName::new("a", Some("b")).unwrap();
        for (folder, data_dir, relative) in [
            ("/d/a/b/1.0.0", "/d", "a/b/1.0.0"),
            ("/a/b/1.0.0", "/", "a/b/1.0.0"),
            ("s3://bucket/x/a/b/1.0.0-0123", "s3://bucket/x", "a/b/1.0.0-0123"),
        ] {
            let (found, rest) = data_dir_of(&Location::parse(folder).unwrap(), &dataset).unwrap();
            assert_eq!((found.to_string().as_str(), rest.as_str()), (data_dir, relative));
        }
        assert!(data_dir_of(&Location::from_path("/out/1.0.0"), &dataset).is_none());
        assert!(data_dir_of(&Location::from_path("/xa/b/1.0.0"), &dataset).is_none());
    }

    #[test]
    fn ages_are_shown_in_one_unit() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (61, "1 minute"),
            (7_200, "2 hours"),
            (604_800, "7 days"),
        ] {
            assert_eq!(show_age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn an_upload_that_was_killed_is_found_by_its_claim_and_goes() {
        use std::io::Write;

        let data_dir = Location::parse("memory:///gc-uploads/data").unwrap();
        let put = |path: &str, text: &str| {
            let at = data_dir.join(path);
            let mut output = store::Output::create(&at, store::Existing::Keep).unwrap();
            output.write_all(text.as_bytes()).unwrap();
            output.commit().unwrap();
        };
        put(".staging/a/1.0.0/claim.json", "{}");
        put("a/1.0.0/part", "half");
        // This one was finished but for its claim.
        put(".staging/a/2.0.0/claim.json", "{}");
        put("a/2.0.0/part", "whole");
        put("a/2.0.0/prep_manifest.json", "{}");
        let later = SystemTime::now() + Duration::from_secs(60);
        put(".staging/a/2.0.0/.probe-1", "first");
        put(".probe-2", "first");
        let catalog = Catalog::open(&Location::parse("memory:///gc-uploads").unwrap()).unwrap();
        // Of a data folder that may be another catalog's: what is whole is left.
        let items = uploads(&data_dir, later, &|_, is_whole| is_whole).unwrap();
        let found: Vec<_> = items.iter().map(|item| (item.kind, item.files)).collect();
        assert_eq!(
            found,
            [(Kind::Upload, 1), (Kind::Temporary, 1), (Kind::Upload, 0)]
        );
        assert!(items.iter().all(|item| item.kept.is_none()));
        let young = delete_upload(&catalog, &items[0], Duration::from_secs(3600), later).unwrap();
        assert!(young.unwrap_err().contains("at it again"));
        delete_upload(&catalog, &items[0], Duration::ZERO, later)
            .unwrap()
            .unwrap();
        // Of the catalog's own, it goes as well; but not while its job may be about to make the entry.
        let items = uploads(&data_dir, later, &|_, _| false).unwrap();
        assert_eq!(
            (items[1].files, items[1].kept.as_deref()),
            (2, Some(MAY_BE_COMMITTED))
        );
        let much_later = later + COMMITTED_WITHIN;
        let items = uploads(&data_dir, much_later, &|_, _| false).unwrap();
        assert!(items[1].kept.is_none());
        let probes = probes(&data_dir, later).unwrap();
        assert_eq!(probes.len(), 1);
        for probe in probes.iter().chain(&items[..1]) {
            assert_eq!(probe.kind, Kind::Temporary);
            store::remove_file(&probe.location).unwrap();
        }
        let left = |data_dir: &Location| -> Vec<String> {
            let left = store::list_files(data_dir).unwrap();
            left.into_iter().map(|file| file.relative).collect()
        };
        assert_eq!(
            left(&data_dir),
            [
                ".staging/a/2.0.0/claim.json",
                "a/2.0.0/part",
                "a/2.0.0/prep_manifest.json"
            ]
        );
        delete_upload(&catalog, &items[1], Duration::ZERO, much_later)
            .unwrap()
            .unwrap();
        assert!(left(&data_dir).is_empty());
    }
}
