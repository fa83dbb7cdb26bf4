//! Where a build goes: the version's folder and the catalog.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prep_catalog::Resolved;
use prep_catalog::catalog::{Build as CatalogBuild, Catalog};
use prep_catalog::manifest::{MANIFEST_FILE, Manifest};
use prep_catalog::name::{DatasetName, Selector};
use prep_formats::store::{self, Location};
use rustix::fs::Access;

use crate::build::staging::STAGING_FOLDER;
use crate::build::{absolute, not_local};
use crate::builder::DatasetSpec;
use crate::error::Hinted;
use crate::fetch::hash_file;
use crate::monitor::Monitor;

/// A catalog, and the place in it of the version that is built.
#[derive(Debug)]
pub(crate) struct Registry {
    catalog: Catalog,
    version: DatasetName,
    /// Where datasets lie.
    pub(crate) data_dir: PathBuf,
    /// The version's folder.
    pub(crate) folder: PathBuf,
    /// Whether the user said where datasets lie.
    is_placed: bool,
    relative: PathBuf,
}

/// What is there already.
#[derive(Debug)]
pub(crate) enum Found {
    /// Neither a folder nor an entry.
    Nothing,
    /// The catalog has the version, and its data are whole, in this folder.
    Registered(Manifest, PathBuf),
    /// A whole folder of a build that is not in the catalog: the last run ended between the two.
    Unregistered(Manifest),
    /// Something else, in this folder, described.
    Foreign(PathBuf, String),
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
        let data_dir = match place.as_path() {
            Some(path) => absolute(&path)?,
            None => return Err(not_local("the data folder", &place.to_string())),
        };
        let mut version = DatasetName::new(&spec.name, spec.config.as_deref()).map_err(hinted)?;
        version.selector = Selector::Version(spec.version.clone());
        let mut relative = PathBuf::from(&spec.name);
        relative.extend(spec.config.as_deref());
        relative.push(&spec.version);
        Ok(Self {
            catalog,
            version,
            folder: data_dir.join(&relative),
            is_placed: data_dir_given,
            data_dir,
            relative,
        })
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

    /// Checks that an entry can be written later, before any work is done.
    pub(crate) fn check_writable(&self) -> Result<()> {
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

        match self.catalog.resolve(&self.version) {
            Ok(resolved) => return self.look_at(&resolved),
            Err(
                Error::UnknownDataset { .. } | Error::UnknownConfig { .. } | Error::UnknownVersion { .. },
            ) => {}
            // Registered, but the data are gone: then they are built again.
            Err(Error::Data { .. }) if !self.folder.exists() => {}
            Err(Error::Data { reason, .. }) => {
                let reason = format!("is not what the catalog means: {reason}");
                return Ok(Found::Foreign(self.folder.clone(), reason));
            }
            Err(error) => return Err(hinted(error)),
        }
        if std::fs::symlink_metadata(&self.folder).is_err() {
            return Ok(Found::Nothing);
        }
        if !self.folder.join(MANIFEST_FILE).exists() {
            let reason = "was not made by `prep build`".to_owned();
            return Ok(Found::Foreign(self.folder.clone(), reason));
        }
        Ok(match Manifest::read(&Location::from_path(&self.folder)) {
            Ok(manifest) => Found::Unregistered(manifest),
            Err(error) => Found::Foreign(
                self.folder.clone(),
                format!("has a manifest that is not usable: {error}"),
            ),
        })
    }

    /// Whether a version of the catalog is where it was asked for, and has all its shards in their full size.
    fn look_at(&self, resolved: &Resolved) -> Result<Found> {
        let folder = self.catalog.folder(&resolved.record.path).map_err(hinted)?;
        let (Some(folder), Some(data)) = (folder.as_path(), resolved.folder.as_path()) else {
            bail!("the folder of {} is not local", self.version);
        };
        let folder = absolute(&folder)?;
        let same = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if self.is_placed && same(&folder) != same(&self.folder) {
            let reason = format!("`--data-dir` asks for {}", self.folder.display());
            return Ok(Found::Foreign(folder, reason));
        }
        for shard in resolved.manifest.splits.iter().flat_map(|split| &split.shards) {
            let reason = match std::fs::metadata(data.join(&shard.path)) {
                Ok(file) if file.len() == shard.bytes => continue,
                Ok(file) => format!("has {} bytes, not {}", file.len(), shard.bytes),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => "is absent".to_owned(),
                Err(error) => format!("could not be looked at: {error}"),
            };
            let reason = format!("is damaged: {} {reason}", shard.path);
            return Ok(Found::Foreign(folder, reason));
        }
        Ok(Found::Registered(resolved.manifest.clone(), folder))
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
        for shard in manifest.splits.iter().flat_map(|split| &split.shards) {
            let path = self.folder.join(&shard.path);
            let sum = hash_file(&path, None, monitor)?;
            if hex::encode(sum.sha256) != shard.sha256 {
                return Err(Hinted::new(
                    format!("{} is damaged: its SHA-256 is not the manifest's", path.display()),
                    "build it anew with `--overwrite`",
                )
                .into());
            }
        }
        self.commit(manifest, None, unchecked)
    }

    /// Gives the finished folder `out` its name, and writes the catalog's entry. Where something is to be replaced, the entry
    /// comes first and points to both places, so that readers always find one of the two versions.
    pub(crate) fn publish(&self, out: &Path, manifest: &Manifest, unchecked: &[String]) -> Result<u64> {
        remove_strangers(out, manifest)?;
        store::sync_folder(out)?;
        let parent = self.folder.parent().unwrap_or(&self.data_dir);
        std::fs::create_dir_all(parent)
            .with_context(|| format!("could not make the folder {}", parent.display()))?;
        sync_up_to(parent, &self.data_dir)?;
        if std::fs::symlink_metadata(&self.folder).is_err() {
            store::rename_without_replacing(out, &self.folder)?;
            store::sync_folder(parent)?;
            return self.commit(manifest, None, unchecked);
        }
        let log = self.commit(manifest, Some(out), unchecked)?;
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

    fn commit(&self, manifest: &Manifest, staged: Option<&Path>, unchecked: &[String]) -> Result<u64> {
        let mut build = CatalogBuild::new(manifest, Location::from_path(&self.folder)).overwrite(true);
        if let Some(staged) = staged {
            build = build.staged(Location::from_path(staged));
        }
        if !unchecked.is_empty() {
            build = build
                .flag("checksum", "skipped")
                .flag("unchecked_sources", &unchecked.join(", "));
        }
        Ok(self.catalog.commit_build(&build).map_err(hinted)?.log_number)
    }
}

/// The catalog's error with its hint, as commands print it.
fn hinted(error: prep_catalog::Error) -> anyhow::Error {
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

/// Removes what is not part of the version: shards of an earlier attempt with another number of them.
fn remove_strangers(out: &Path, manifest: &Manifest) -> Result<()> {
    let shards: HashSet<&str> = manifest
        .splits
        .iter()
        .flat_map(|split| &split.shards)
        .map(|shard| shard.path.as_str())
        .collect();
    for entry in std::fs::read_dir(out).with_context(|| format!("could not list {}", out.display()))? {
        let entry = entry.with_context(|| format!("could not list {}", out.display()))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.contains(".array_record-") && !shards.contains(name.as_ref()) {
            std::fs::remove_file(entry.path())
                .with_context(|| format!("could not remove {}", entry.path().display()))?;
        }
    }
    Ok(())
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
