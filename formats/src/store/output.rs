//! Files and objects that appear whole or not at all, wherever they are.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::{AtomicFile, Existing, Location, Upload, UploadOptions, object_store};
use crate::{Error, Result};

/// Ending of the files that local outputs are until they are committed.
const UNFINISHED: &str = ".unfinished";

/// A file or object that is being written, and gets its name when it is whole and durable.
///
/// A local file is written beside its final place as `.NAME.PROCESS-NUMBER.unfinished`, synced and renamed; an object is uploaded in parts
/// (see [`Upload`]). Dropped without [`commit`](Self::commit), nothing is left of it; a killed process leaves a local file of that name, which
/// the next writer of the same place finds ([`unfinished`](Self::unfinished)). Writes are not buffered for local files.
///
/// # Examples
///
/// ```
/// use std::io::Write;
/// use prep_formats::store::{Existing, Location, Output};
///
/// let folder = tempfile::tempdir()?;
/// let location = Location::from_path(folder.path().join("data"));
/// let mut output = Output::create(&location, Existing::Keep)?;
/// output.write_all(b"text")?;
/// assert!(!folder.path().join("data").exists());
/// output.commit()?;
/// assert_eq!(std::fs::read(folder.path().join("data"))?, b"text");
/// // What is there stays unless it is asked for.
/// assert!(Output::create(&location, Existing::Keep).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Output {
    location: Location,
    existing: Existing,
    kind: Kind,
    unfinished: Vec<PathBuf>,
}

#[derive(Debug)]
enum Kind {
    File { file: AtomicFile, path: PathBuf },
    Object(Box<Upload>),
}

impl Output {
    /// Begins a file or object at `location`. The folder of a local file must exist.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with kind [`io::ErrorKind::AlreadyExists`] where something is at `location` already, under [`Existing::Keep`]; it is
    /// checked again when committing. [`Error::Io`] where the system refuses, [`Error::Unsupported`] for a store that this version cannot
    /// reach.
    pub fn create(location: &Location, existing: Existing) -> Result<Self> {
        let Some(path) = location.as_path() else {
            let (store, path) = object_store(location)?;
            let options = UploadOptions::default().with_existing(existing);
            return Ok(Self {
                location: location.clone(),
                existing,
                kind: Kind::Object(Box::new(Upload::new(store, path, location.to_string(), options))),
                unfinished: Vec::new(),
            });
        };
        if existing == Existing::Keep && fs::symlink_metadata(&path).is_ok() {
            return Err(Error::io(&path, "create")(io::ErrorKind::AlreadyExists.into()));
        }
        let unfinished = unfinished(&path)?;
        let file = AtomicFile::create_new(staging_path(&path)?)?;
        Ok(Self {
            location: location.clone(),
            existing,
            kind: Kind::File { file, path },
            unfinished,
        })
    }

    /// Where it will be.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// What writers of the same place have left that were killed: local files that nobody is writing any more. They hold nothing that a
    /// reader could use by name, and may be removed.
    pub fn unfinished(&self) -> &[PathBuf] {
        &self.unfinished
    }

    /// Makes it durable, and visible under its name.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the system or the store, with kind [`io::ErrorKind::AlreadyExists`] where something has got that name meanwhile,
    /// under [`Existing::Keep`]. Nothing is left then, and what was there before stays.
    pub fn commit(self) -> Result<()> {
        match self.kind {
            Kind::File { file, path } => file.commit(path, self.existing),
            Kind::Object(upload) => upload.finish(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.kind {
            Kind::File { file, .. } => file.write(bytes),
            Kind::Object(upload) => upload.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.kind {
            Kind::File { file, .. } => file.flush(),
            Kind::Object(upload) => upload.flush(),
        }
    }
}

/// Files that writers of `path` have left: those that were killed, since writers that live hold a lock on theirs.
///
/// # Errors
///
/// [`Error::Io`] where the folder of `path` cannot be listed.
pub fn unfinished(path: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let path = path.as_ref();
    let (folder, prefix) = folder_and_prefix(path)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        let entry = entry.map_err(Error::io(folder, "list"))?;
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let is_staging = name.starts_with(prefix.as_encoded_bytes())
            && name.ends_with(UNFINISHED.as_bytes())
            && name.len() > prefix.len() + UNFINISHED.len()
            && name[prefix.len()..name.len() - UNFINISHED.len()]
                .iter()
                .all(|byte| byte.is_ascii_digit() || *byte == b'-');
        // A file that has gone meanwhile was finished or given up by its writer.
        if is_staging
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// A name beside `path` that no other writer uses.
fn staging_path(path: &Path) -> Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (folder, mut name) = folder_and_prefix(path)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    name.push(format!("{}-{number}{UNFINISHED}", std::process::id()));
    Ok(folder.join(name))
}

/// The folder of `path`, and what the names of its unfinished files begin with.
fn folder_and_prefix(path: &Path) -> Result<(&Path, OsString)> {
    let name = path.file_name().ok_or_else(|| {
        Error::Invalid(format!(
            "`{}` names no file: give a path that ends with a name",
            path.display()
        ))
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    Ok((folder.unwrap_or(Path::new(".")), prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(error: &Error) -> io::ErrorKind {
        match error {
            Error::Io { source, .. } => source.kind(),
            other => panic!("not an I/O error: {other}"),
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_is_left_of_an_output_that_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::from_path(folder.path().join("x"));
        let mut output = Output::create(&location, Existing::Keep).unwrap();
        output.write_all(b"half").unwrap();
        let staged = names(folder.path());
        assert!(staged.len() == 1 && staged[0].starts_with(".x."), "{staged:?}");
        drop(output);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn something_that_came_meanwhile_stays_unless_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let location = Location::from_path(&path);
        for existing in [Existing::Keep, Existing::Replace] {
            let _ = fs::remove_file(&path);
            let mut output = Output::create(&location, existing).unwrap();
            output.write_all(b"late").unwrap();
            fs::write(&path, "early").unwrap();
            let result = output.commit();
            if existing == Existing::Keep {
                assert_eq!(kind(&result.unwrap_err()), io::ErrorKind::AlreadyExists);
                assert_eq!(fs::read(&path).unwrap(), b"early");
                let error = Output::create(&location, existing).unwrap_err();
                assert_eq!(kind(&error), io::ErrorKind::AlreadyExists);
            } else {
                result.unwrap();
                assert_eq!(fs::read(&path).unwrap(), b"late");
            }
            assert_eq!(names(folder.path()), ["x"]);
        }
    }

    #[test]
    fn files_of_writers_that_were_killed_are_found_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let location = Location::from_path(&path);
        let left = folder.path().join(".x.123-0.unfinished");
        for name in [
            ".x.123-0.unfinished",
            ".x.y.123-0.unfinished",
            ".x..unfinished",
            ".xy.1-0.unfinished",
            "x.1-0.unfinished",
        ] {
            fs::write(folder.path().join(name), "half").unwrap();
        }
        let first = Output::create(&location, Existing::Keep).unwrap();
        assert_eq!(first.unfinished(), std::slice::from_ref(&left));
        // The first is alive.
        let second = Output::create(&location, Existing::Keep).unwrap();
        assert_eq!(second.unfinished(), std::slice::from_ref(&left));
        drop(first);
        second.commit().unwrap();
        assert_eq!(unfinished(&path).unwrap(), std::slice::from_ref(&left));
        fs::remove_file(&left).unwrap();
        assert!(unfinished(&path).unwrap().is_empty());
    }

    #[test]
    fn places_that_cannot_be_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let absent = Location::from_path(folder.path().join("absent/x"));
        let error = Output::create(&absent, Existing::Keep).unwrap_err();
        assert_eq!(kind(&error), io::ErrorKind::NotFound);
        let error = Output::create(&Location::from_path(".."), Existing::Replace).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
}
