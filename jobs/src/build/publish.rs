//! Where a build goes: the version's folder and the catalog.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use prep_catalog::catalog::{Build as CatalogBuild, Catalog};
use prep_catalog::manifest::{MANIFEST_FILE, Manifest};
use prep_catalog::name::{DatasetName, Selector};
use prep_catalog::{Resolved, Take};
use prep_formats::store::{self, Location};
use rustix::fs::Access;
use sha2::{Digest, Sha256};

use crate::build::absolute;
use crate::build::staging::{STAGING_FOLDER, Staging, remove_files};
use crate::build::upload::{self, Copy, Place};
use crate::builder::DatasetSpec;
use crate::error::{Hinted, Overtaken};
use crate::fetch::hash_file;
use crate::monitor::{Monitor, Unit};
use crate::place::ours;

/// A catalog, and the place in it of the version that is built.
#[derive(Debug)]
pub(crate) struct Registry {
    catalog: Catalog,
    version: DatasetName,
    /// Where datasets lie; where that is in an object store, a local folder of this user's, in which they are made.
    pub(crate) data_dir: PathBuf,
    /// The version's folder, in `data_dir`.
    folder: PathBuf,
    /// Where datasets lie in an object store.
    remote: Option<Remote>,
    /// Whether the user said where datasets lie.
    is_placed: bool,
    relative: PathBuf,
    /// The version whose shards are shared, and its manifest's hash.
    shared: Option<(String, String)>,
}

/// The place of datasets in an object store.
#[derive(Debug)]
struct Remote {
    data_dir: Location,
    /// The version's folder, unless it is taken by another build of it.
    folder: Location,
    /// Whether the store has conditional puts; known when it was tried.
    conditional: OnceLock<bool>,
}

/// What is there already.
#[derive(Debug)]
pub(crate) enum Found {
    /// Neither a folder nor an entry.
    Nothing,
    /// The catalog has the version, and its data are whole, in this folder.
    Registered(Manifest, Location),
    /// A whole folder of a build that is not in the catalog: the last run ended between the two.
    Unregistered(Manifest),
    /// Something else, in this folder, described.
    Foreign(Location, String),
}

/// Whether the catalog has a version.
#[derive(Debug)]
pub(crate) enum Registered {
    /// It has not, or the folder is lost.
    Nothing,
    /// It has; what has become of the shards is not looked at.
    Version(Box<Resolved>),
}

impl Registry {
    /// Opens the catalog; writes nothing.
    pub(crate) fn open(spec: &DatasetSpec, catalog: Option<&str>, data_dir: Option<&str>) -> Result<Self> {
        let location = prep_catalog::catalog_location(catalog).map_err(hinted)?;
        let catalog = Catalog::open(&location).map_err(hinted)?;
        let data_dir_given = data_dir.is_some();
        let place = match data_dir {
            Some(text) => Location::parse(text)?,
            None => catalog.data_dir(),
        };
        if place.is_web() {
            let message = format!("{place} is on a web server, and can only be read");
            return Err(Hinted::new(message, "give `--data-dir` a folder or a bucket").into());
        }
        let mut version = DatasetName::new(&spec.name, spec.config.as_deref()).map_err(hinted)?;
        version.selector = Selector::Version(spec.version.clone());
        let mut relative = PathBuf::from(&spec.name);
        relative.extend(spec.config.as_deref());
        relative.push(&spec.version);
        let (data_dir, remote) = match place.as_path() {
            Some(path) => (absolute(&path)?, None),
            None => {
                let remote = Remote {
                    folder: place.join(&relative.to_string_lossy()),
                    data_dir: place,
                    conditional: OnceLock::new(),
                };
                (workshop(&remote.data_dir)?, Some(remote))
            }
        };
        Ok(Self {
            catalog,
            version,
            folder: data_dir.join(&relative),
            remote,
            is_placed: data_dir_given,
            data_dir,
            relative,
            shared: None,
        })
    }

    /// Says that the version shares the shards of another one, in this folder.
    ///
    /// # Errors
    /// The two folders would not lie beside each other.
    pub(crate) fn share(&mut self, manifest: &Manifest, folder: &Location) -> Result<()> {
        let place = self.place();
        let same = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
        let above = |location: &Location| location.parent();
        let is_beside = match (above(folder), above(&place)) {
            (Some(folder), Some(place)) => match (folder.as_path(), place.as_path()) {
                (Some(folder), Some(place)) => same(absolute(&folder)?) == same(absolute(&place)?),
                (None, None) => folder == place,
                _ => false,
            },
            _ => false,
        };
        if !is_beside {
            return Err(Hinted::new(
                format!(
                    "the version would lie at {place}, and shares shards in {folder}, which is not beside it"
                ),
                "give `--data-dir` the folder in which the earlier version's dataset lies",
            )
            .into());
        }
        self.shared = Some((manifest.version.clone(), manifest.sha256()));
        Ok(())
    }

    /// The version's folder, unless another build of it has that.
    pub(crate) fn place(&self) -> Location {
        match &self.remote {
            Some(remote) => remote.folder.clone(),
            None => Location::from_path(&self.folder),
        }
    }

    /// Whether datasets lie in an object store.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// Whether other machines may well read the catalog or its data.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_remote() || self.catalog.is_remote()
    }

    /// The catalog.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Where datasets lie.
    pub(crate) fn data_place(&self) -> Location {
        match &self.remote {
            Some(remote) => remote.data_dir.clone(),
            None => Location::from_path(&self.data_dir),
        }
    }

    /// Whether the catalog has the version.
    pub(crate) fn registered(&self) -> Result<Registered> {
        use prep_catalog::Error;
        match self.catalog.resolve(&self.version) {
            Ok(found) => Ok(Registered::Version(Box::new(found))),
            Err(
                Error::UnknownDataset { .. }
                | Error::UnknownConfig { .. }
                | Error::UnknownVersion { .. }
                | Error::Data { .. },
            ) => Ok(Registered::Nothing),
            Err(error) => Err(hinted(error)),
        }
    }

    /// Whether the catalog does not have the version, though its folder may be there.
    pub(crate) fn has_no_entry(&self) -> Result<bool> {
        let state = self.catalog.state(&self.version).map_err(hinted)?;
        let Selector::Version(version) = &self.version.selector else {
            return Ok(false);
        };
        Ok(state.version(version).is_none())
    }

    /// `NAME[/CONFIG]/VERSION`.
    pub(crate) fn relative(&self) -> PathBuf {
        self.relative.clone()
    }

    /// The staging folder of this version.
    pub(crate) fn staging_path(&self) -> PathBuf {
        self.data_dir.join(STAGING_FOLDER).join(&self.relative)
    }

    /// The catalog's place.
    pub(crate) fn catalog_name(&self) -> String {
        self.catalog.location().to_string()
    }

    /// Checks that files and an entry can be written later, before any work is done.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.catalog.check_commits().map_err(hinted)?;
        if let Some(remote) = &self.remote {
            let take = prep_catalog::try_store(&remote.data_dir).map_err(hinted)?;
            let _ = remote.conditional.set(take == Take::Conditional);
        }
        let Some(path) = self.catalog.location().as_path() else {
            return Ok(());
        };
        let path = absolute(&path)?;
        let there = path
            .ancestors()
            .find(|ancestor| ancestor.exists())
            .unwrap_or(&path);
        rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
            let message = format!("the catalog {} cannot be written", path.display());
            anyhow::Error::new(std::io::Error::from(error)).context(Hinted::new(
                message,
                "give one that can be, with `--catalog` or $PREP_CATALOG",
            ))
        })
    }

    /// What is there; writes nothing.
    pub(crate) fn find(&self) -> Result<Found> {
        use prep_catalog::Error;
        let place = self.place();
        let manifest_at = place.join(MANIFEST_FILE);
        match self.catalog.resolve(&self.version) {
            Ok(resolved) => return self.look_at(&resolved),
            Err(
                Error::UnknownDataset { .. } | Error::UnknownConfig { .. } | Error::UnknownVersion { .. },
            ) => {}
            // Registered, but the data are gone: then they are built again.
            Err(Error::Data { .. }) if self.is_remote() && store::size_of_file(&manifest_at)?.is_none() => {}
            Err(Error::Data { .. }) if !self.is_remote() && !self.folder.exists() => {}
            Err(Error::Data { reason, .. }) => {
                let reason = format!("is not what the catalog means: {reason}");
                return Ok(Found::Foreign(place, reason));
            }
            Err(error) => return Err(hinted(error)),
        }
        if self.is_remote() {
            if store::size_of_file(&manifest_at)?.is_none() {
                return Ok(Found::Nothing);
            }
        } else {
            if std::fs::symlink_metadata(&self.folder).is_err() {
                return Ok(Found::Nothing);
            }
            if !self.folder.join(MANIFEST_FILE).exists() {
                let reason = "was not made by `prep build`".to_owned();
                return Ok(Found::Foreign(place, reason));
            }
        }
        Ok(match Manifest::read(&place) {
            Ok(manifest) => Found::Unregistered(manifest),
            Err(error) => Found::Foreign(place, format!("has a manifest that is not usable: {error}")),
        })
    }

    /// Whether a version of the catalog is where it was asked for, and has all its shards in their full size.
    fn look_at(&self, resolved: &Resolved) -> Result<Found> {
        let folder = self.catalog.folder(&resolved.record.path).map_err(hinted)?;
        // Another build of a version may have a folder of another name beside the usual one.
        let is_elsewhere = match (folder.as_path(), &self.remote) {
            (Some(folder), None) => {
                let same = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                same(&absolute(&folder)?) != same(&self.folder)
            }
            (None, Some(remote)) => folder.parent() != remote.folder.parent(),
            _ => true,
        };
        if self.is_placed && is_elsewhere {
            let reason = format!("`--data-dir` asks for {}", self.place());
            return Ok(Found::Foreign(folder, reason));
        }
        let data = &resolved.folder;
        // One request for a thousand files, not one for each.
        let listed: Option<HashMap<String, u64>> = match data.as_path() {
            Some(_) => None,
            None => {
                let files = store::list_files(data)?.into_iter();
                Some(files.map(|file| (file.relative, file.bytes)).collect())
            }
        };
        // Files in place are no matter of the folder's: whoever builds the version anew replaces it.
        let in_place = resolved.manifest.in_place;
        let shards = resolved.manifest.splits.iter().flat_map(|split| &split.shards);
        for shard in shards.filter(|_| !in_place) {
            let size = match &listed {
                Some(listed) if !shard.path.starts_with("../") => Ok(listed.get(&shard.path).copied()),
                _ => store::size_of_file(&shard.location(data)),
            };
            let reason = match size {
                Ok(Some(bytes)) if bytes == shard.bytes => continue,
                Ok(Some(bytes)) => format!("has {bytes} bytes, not {}", shard.bytes),
                Ok(None) => "is absent".to_owned(),
                Err(error) => format!("could not be looked at: {error}"),
            };
            let reason = format!("is damaged: {} {reason}", shard.path);
            return Ok(Found::Foreign(folder, reason));
        }
        Ok(Found::Registered(resolved.manifest.clone(), folder))
    }

    /// Refuses to replace the version's folder, if it has files that are not the program's. In a store it is not replaced: see [`upload`].
    pub(crate) fn refuse_others(&self) -> Result<()> {
        if self.is_remote() {
            return Ok(());
        }
        let listed =
            Manifest::read(&self.place()).map_or_else(|_| HashSet::new(), |found| ours::listed(&found));
        ours::refuse_others_in(&self.folder, &listed)
    }

    /// Folders and files of this machine that the program writes: the log of the catalog, and the folder of all datasets.
    pub(crate) fn written(&self) -> Vec<PathBuf> {
        let catalog = self.catalog.location().as_path();
        let of_catalog = catalog
            .iter()
            .flat_map(|path| ["log", "prep.json"].map(|name| path.join(name)));
        let data_dir = (!self.is_remote()).then(|| self.data_dir.clone());
        of_catalog.chain(data_dir).collect()
    }

    /// Does what a run that was killed between commit and exchange left undone, and looks at what is there then.
    pub(crate) fn heal(&self) -> Result<Found> {
        if let Ok(resolved) = self.catalog.resolve(&self.version)
            && resolved.is_staged
            && let Some(staged) = resolved.folder.as_path()
        {
            let folder = self.catalog.folder(&resolved.record.path).map_err(hinted)?;
            let Some(folder) = folder.as_path() else {
                bail!("the folder of {} is not local", self.version);
            };
            self.exchange(&staged, &folder)?;
        }
        self.find()
    }

    /// Registers a whole folder of an earlier run, if every file in it is what its manifest says.
    pub(crate) fn adopt(&self, manifest: &Manifest, unchecked: &[String], monitor: &Monitor) -> Result<u64> {
        let place = self.place();
        let shards = manifest.splits.iter().flat_map(|split| &split.shards);
        let shards = shards.map(|shard| (shard.location(&place), shard.bytes, &shard.sha256));
        let files = manifest
            .files
            .iter()
            .map(|file| (place.join(&file.path), file.bytes, &file.sha256));
        let all: Vec<(Location, u64, &String)> = shards.chain(files).collect();
        let total = all.iter().map(|(_, bytes, _)| bytes).sum();
        let meter = monitor.stage("verify", Unit::Bytes, Some(total));
        upload::at_once(&all, |(at, bytes, sha256)| {
            let found = match at.as_path() {
                Some(path) => hex::encode(hash_file(&path, None, monitor)?.sha256),
                None => upload::hash_remote(at, *bytes, &meter, monitor)?,
            };
            if found != **sha256 {
                return Err(Hinted::new(
                    format!("{at} is damaged: its SHA-256 is not the manifest's"),
                    "build it anew with `--overwrite`",
                )
                .into());
            }
            Ok(())
        })?;
        meter.finish();
        self.commit(manifest, &place, None, unchecked, true)
    }

    /// Gives the finished folder `out` its name, and writes the catalog's entry. Where something is to be replaced, the entry
    /// comes first and points to both places, so that readers always find one of the two versions.
    ///
    /// In an object store the files are sent and read back first; what is there already keeps its own folder. `overwrite` says whether another build of
    /// the version that came into the catalog meanwhile may be replaced: on this machine the lock of the staging folder keeps them apart.
    pub(crate) fn publish(
        &self,
        out: &Path,
        manifest: &Manifest,
        copies: &[Copy],
        unchecked: &[String],
        overwrite: bool,
        monitor: &Monitor,
    ) -> Result<(u64, Location)> {
        remove_strangers(out, manifest)?;
        if let Some(remote) = &self.remote {
            return self.send(remote, out, manifest, copies, unchecked, overwrite, monitor);
        }
        if manifest.in_place {
            return self.publish_beside(out, manifest, overwrite, monitor);
        }
        let log = self.publish_folder(out, manifest, unchecked)?;
        Ok((log, self.place()))
    }

    #[expect(clippy::too_many_arguments, reason = "what `publish` was given")]
    fn send(
        &self,
        remote: &Remote,
        out: &Path,
        manifest: &Manifest,
        copies: &[Copy],
        unchecked: &[String],
        overwrite: bool,
        monitor: &Monitor,
    ) -> Result<(u64, Location)> {
        let state = self.catalog.state(&self.version).map_err(hinted)?;
        let conditional = remote.conditional.get().copied().unwrap_or(false);
        let is_taken = |folder: &Location| -> Result<bool> {
            let path = self.catalog.stored_path(folder).map_err(hinted)?;
            // In the catalog with other content, though its manifest may be lost; or shared by another version; or being deleted.
            let held = state.versions().any(|(_, held)| {
                let same = held.record.path == path && held.record.manifest_sha256 == manifest.sha256();
                !same && held.record.folders().any(|used| used == path)
            });
            Ok(held || state.was_collected(&path))
        };
        let relative = self.relative.to_string_lossy();
        let place = Place::find(&remote.data_dir, &relative, manifest, conditional, &is_taken)?;
        upload::send(out, manifest, copies, &place, monitor)?;
        monitor.check()?;
        place.check()?;
        let log = self.commit(
            manifest,
            &place.folder,
            None,
            unchecked,
            overwrite || self.is_lost(),
        )?;
        let folder = place.folder.clone();
        place.release();
        Ok((log, folder))
    }

    /// Whether the catalog has the version, and its folder is not what it means: it is replaced without asking, as on a local disk.
    fn is_lost(&self) -> bool {
        matches!(
            self.catalog.resolve(&self.version),
            Err(prep_catalog::Error::Data { .. })
        )
    }

    /// Gives the folder of files in place its name: that of the version, or where this is taken one with the manifest's hash in it. So the way from it
    /// to the files is the same before and after, and what it replaces stays readable.
    fn publish_beside(
        &self,
        out: &Path,
        manifest: &Manifest,
        overwrite: bool,
        monitor: &Monitor,
    ) -> Result<(u64, Location)> {
        store::sync_folder(out)?;
        let parent = self.make_parent()?;
        let hash = &manifest.sha256()[..upload::HASH_CHARACTERS];
        let mut name = self.relative.file_name().unwrap_or_default().to_owned();
        let mut staging = None;
        if std::fs::symlink_metadata(&self.folder).is_ok() && !is_of(&self.folder, manifest) {
            name.push(format!("-{hash}"));
            // `prep gc` takes this lock before it deletes such a folder.
            let relative = self.relative.with_file_name(&name);
            staging = Some(Staging::enter(&self.data_dir, &relative, monitor)?);
        }
        let folder = parent.join(&name);
        // There it is of an earlier run, which was killed before its entry.
        if !is_of(&folder, manifest) {
            store::rename_without_replacing(out, &folder)?;
            store::sync_folder(parent)?;
        }
        let place = Location::from_path(&folder);
        let log = self.commit(manifest, &place, None, &[], overwrite || self.is_lost())?;
        if let Some(staging) = staging {
            staging.remove()?;
        }
        Ok((log, place))
    }

    /// The folder that the version's folder is in, which is there for good then.
    fn make_parent(&self) -> Result<&Path> {
        let parent = self.folder.parent().unwrap_or(&self.data_dir);
        std::fs::create_dir_all(parent)
            .with_context(|| format!("could not make the folder {}", parent.display()))?;
        sync_up_to(parent, &self.data_dir)?;
        Ok(parent)
    }

    fn publish_folder(&self, out: &Path, manifest: &Manifest, unchecked: &[String]) -> Result<u64> {
        let place = self.place();
        store::sync_folder(out)?;
        let parent = self.make_parent()?;
        if std::fs::symlink_metadata(&self.folder).is_err() {
            store::rename_without_replacing(out, &self.folder)?;
            store::sync_folder(parent)?;
            return self.commit(manifest, &place, None, unchecked, true);
        }
        // Something may have come there since the build began.
        self.refuse_others()?;
        let log = self.commit(manifest, &place, Some(out), unchecked, true)?;
        self.exchange(out, &self.folder)?;
        Ok(log)
    }

    fn exchange(&self, staged: &Path, folder: &Path) -> Result<()> {
        if std::fs::symlink_metadata(folder).is_err() {
            store::rename_without_replacing(staged, folder)?;
        } else {
            store::rename_exchange(staged, folder)?;
        }
        for path in [folder, staged] {
            if let Some(parent) = path.parent() {
                store::sync_folder(parent)?;
            }
        }
        Ok(())
    }

    fn commit(
        &self,
        manifest: &Manifest,
        folder: &Location,
        staged: Option<&Path>,
        unchecked: &[String],
        overwrite: bool,
    ) -> Result<u64> {
        let mut build = CatalogBuild::new(manifest, folder.clone()).overwrite(overwrite);
        if !manifest.shared_folders().is_empty() {
            build = build.appended();
        }
        if let Some((version, sha256)) = &self.shared {
            build = build.shares_with(version, sha256);
        }
        if let Some(staged) = staged {
            build = build.staged(Location::from_path(staged));
        }
        if !unchecked.is_empty() {
            build = build
                .flag("checksum", "skipped")
                .flag("unchecked_sources", &unchecked.join(", "));
        }
        crate::fault::pass("commit");
        match self.catalog.commit_build(&build) {
            Ok(committed) => Ok(committed.log_number),
            Err(error @ prep_catalog::Error::Conflict { .. }) => Err(hinted(error).context(Overtaken)),
            Err(error) => Err(hinted(error)),
        }
    }
}

/// Whether a folder is that of this manifest.
fn is_of(folder: &Path, manifest: &Manifest) -> bool {
    Manifest::read(&Location::from_path(folder)).is_ok_and(|found| found == *manifest)
}

/// The catalog's error with its hint, as commands print it.
pub(crate) fn hinted(error: prep_catalog::Error) -> anyhow::Error {
    match error.hint() {
        Some(hint) => {
            let message = error.to_string();
            let source = std::error::Error::source(&error).map(|source| source.to_string());
            let message = source.map_or(message.clone(), |source| format!("{message}: {source}"));
            Hinted::new(message, hint).into()
        }
        None => error.into(),
    }
}

/// The local folder in which datasets for a place in an object store are made: one for each such place, in this user's home, so that the same
/// command finds it again.
pub(crate) fn workshop(data_dir: &Location) -> Result<PathBuf> {
    let home = prep_catalog::home_folder().map_err(hinted)?;
    let name = hex::encode(Sha256::digest(data_dir.to_string().trim_end_matches('/')));
    absolute(&home.join("remote").join(&name[..16]))
}

/// Removes what is not part of the version: shards of an earlier attempt with another number of them.
fn remove_strangers(out: &Path, manifest: &Manifest) -> Result<()> {
    let shards: HashSet<&str> = manifest
        .splits
        .iter()
        .flat_map(|split| &split.shards)
        .map(|shard| shard.path.as_str())
        .collect();
    remove_files(out, |name| {
        name.contains(".array_record-") && !shards.contains(name)
    })
}

/// Makes the names of folders durable, from `folder` up to `top`'s parent.
fn sync_up_to(folder: &Path, top: &Path) -> Result<()> {
    for ancestor in folder.ancestors() {
        store::sync_folder(ancestor)?;
        if ancestor == top {
            if let Some(parent) = top.parent() {
                store::sync_folder(parent)?;
            }
            break;
        }
    }
    Ok(())
}
