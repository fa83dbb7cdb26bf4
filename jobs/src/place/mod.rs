//! Where a conversion or an export goes: the folder it makes, what is in its place before, and how it gets there as a whole.
//!
//! | | on this machine | in an object store |
//! | --- | --- | --- |
//! | made in | `.staging` beside it | `$PREP_HOME/remote` |
//! | put in place by | one rename | files that are sent and read back, the one that says it is whole last ([`remote`]) |

pub(crate) mod ours;
mod remote;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use prep_catalog::Take;
use prep_formats::store::{self, Existing, Location};

use crate::build::publish::{hinted, workshop};
use crate::build::staging::{STAGING_FOLDER, Staging};
use crate::build::upload::CLAIM_FILE;
use crate::convert::canonical;
use crate::error::Hinted;
use crate::monitor::Monitor;
use crate::resources;

/// Who makes folders, and which of those that are there it may replace.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) name: &'static str,
    /// Files of which one is in each such folder.
    pub(crate) marks: &'static [&'static str],
    /// The files of such a folder that its marks list.
    pub(crate) listed: fn(&Location) -> Result<HashSet<String>>,
}

/// Where an output goes.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The folder that is made.
    folder: Location,
    maker: &'static Maker,
    kind: Kind,
    /// The folder that staging is in, and the output's name there.
    top: PathBuf,
    relative: PathBuf,
}

#[derive(Debug, Clone)]
enum Kind {
    Local(PathBuf),
    /// With the object that claims the folder while it is filled.
    Remote(Location),
}

/// What is in the place of an output.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) found: Found,
    folder: Location,
    /// The files of a folder in a store, which is listed once.
    sizes: Option<HashMap<String, u64>>,
}

/// How what is in the place of an output compares with what is asked for.
#[derive(Debug)]
pub(crate) enum Standing<T> {
    Absent,
    Same(Box<T>),
    /// Something that the same command made, and that is replaced where that is asked for; and why it is not the same.
    Different(String),
    /// Something else.
    Foreign(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// No folder, an empty one, or what an upload that was killed has left.
    Nothing,
    /// A folder that its maker made.
    Ours,
    /// Something else, in words. It is never replaced.
    Foreign(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.fmt(f)
    }
}

impl Place {
    /// The place that a user means: a path, or the URL of a folder in a store; and in it the folder `inside`, which may be empty.
    ///
    /// # Errors
    /// A text that names no folder of its own.
    pub(crate) fn new(output: &Path, inside: &Path, maker: &'static Maker) -> Result<Self> {
        let text = output.to_string_lossy();
        if text.is_empty() {
            bail!("the output is an empty text; give a folder");
        }
        let location = match Location::parse(&text) {
            Ok(location) => location,
            // Of an unknown scheme, unless there is such a folder.
            Err(error) if !output.exists() => return Err(error.into()),
            Err(_) => Location::from_path(output),
        };
        let Some(path) = location.as_path() else {
            return Self::remote(&text, inside, maker);
        };
        let path = if text.starts_with("file://") {
            path
        } else {
            output.to_owned()
        };
        let found = canonical(&path);
        let (top, relative) = match (inside.as_os_str().is_empty(), found.parent(), found.file_name()) {
            (false, ..) => (found, inside.to_owned()),
            (true, Some(parent), Some(name)) => (parent.to_owned(), PathBuf::from(name)),
            _ => bail!(
                "the output {} cannot be replaced: give a folder of its own",
                path.display()
            ),
        };
        let folder = top.join(&relative);
        Ok(Self {
            folder: Location::from_path(&folder),
            maker,
            kind: Kind::Local(folder),
            top,
            relative,
        })
    }

    fn remote(text: &str, inside: &Path, maker: &'static Maker) -> Result<Self> {
        let folder = Location::parse(text.trim_end_matches('/'))?;
        if folder.is_web() {
            return Err(Hinted::new(
                format!("the output `{text}` is on a web server, and can only be read"),
                "give a folder, or one in a bucket: s3://BUCKET/FOLDER",
            )
            .into());
        }
        let (folder, above, relative) = match inside.as_os_str().is_empty() {
            false => (folder.join(&inside.to_string_lossy()), folder, inside.to_owned()),
            true => {
                let name = folder.to_string();
                let name = name.rsplit('/').next().unwrap_or_default().to_owned();
                let above = folder.parent().filter(|_| !name.is_empty());
                let above = above.with_context(|| {
                    format!("the output `{text}` is no folder of its own: give one in it")
                })?;
                (folder, above, PathBuf::from(name))
            }
        };
        let name = relative.to_string_lossy();
        Ok(Self {
            folder,
            maker,
            kind: Kind::Remote(above.join(&format!("{STAGING_FOLDER}/{name}/{CLAIM_FILE}"))),
            top: workshop(&above)?,
            relative,
        })
    }

    /// The folder that is made.
    pub(crate) fn folder(&self) -> &Location {
        &self.folder
    }

    /// Its path, where it is on this machine.
    pub(crate) fn local(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Local(folder) => Some(folder),
            Kind::Remote(_) => None,
        }
    }

    /// The folder that has staging in it, on this machine.
    pub(crate) fn top(&self) -> &Path {
        &self.top
    }

    /// Whether an earlier run has left staging.
    pub(crate) fn is_staged(&self) -> bool {
        self.staging_path().exists()
    }

    /// The staging folder.
    pub(crate) fn staging_path(&self) -> PathBuf {
        self.top.join(STAGING_FOLDER).join(&self.relative)
    }

    /// Makes the staging folder, and takes its lock.
    ///
    /// # Errors
    /// A folder that cannot be made; a stop while another process has the lock.
    pub(crate) fn enter(&self, monitor: &Monitor) -> Result<Staging> {
        let entered = std::fs::create_dir_all(&self.top)
            .with_context(|| format!("could not make the folder {}", self.top.display()))
            .and_then(|()| Staging::enter(&self.top, &self.relative, monitor));
        let hint = "the output is made beside its place: give one in a folder that can be written";
        entered.map_err(|error| resources::explain_unwritable(error, &self.top, hint))
    }

    /// Refuses a folder that something is mounted on, as a volume of a container is: it cannot be put in place by a rename. `inside` is a name that could be
    /// given in it.
    ///
    /// # Errors
    /// The folder is such a one.
    pub(crate) fn refuse_mount_point(&self, inside: &str) -> Result<()> {
        match self.local() {
            Some(folder) if resources::is_mount_point(folder) => Err(Hinted::new(
                format!("the output {self} is a mount point"),
                format!(
                    "the output is put in place as a whole, which takes a folder of its own: give `{}`, for instance",
                    folder.join(inside).display()
                ),
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Tries whether objects can be put into a store, and only where there is none, before any work is done.
    ///
    /// # Errors
    /// A store that cannot be reached or refuses, or passes over conditions.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let Kind::Remote(claim) = &self.kind else {
            return Ok(());
        };
        // Beside the claim: what a killed try leaves is nobody's file in the folder.
        let beside = claim.parent().unwrap_or_else(|| self.folder.clone());
        if prep_catalog::try_store(&beside).map_err(hinted)? == Take::Conditional {
            return Ok(());
        }
        Err(Hinted::new(
            format!("{self} cannot be written safely: its store passes over conditions, so that two writers could mix their files"),
            "write to a local folder, and copy that",
        )
        .into())
    }

    /// What is there.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub(crate) fn look(&self) -> Result<Look> {
        let (found, sizes) = match &self.kind {
            Kind::Local(folder) => (look_at(folder, self.maker)?, None),
            Kind::Remote(claim) => {
                let (found, sizes) = remote::look(&self.folder, claim, self.maker)?;
                (found, Some(sizes))
            }
        };
        Ok(Look {
            found,
            folder: self.folder.clone(),
            sizes,
        })
    }

    /// What is there, where `compare` gives what our command made, or in what it differs from what is asked for.
    ///
    /// # Errors
    /// A folder that cannot be listed, and those of `compare`.
    pub(crate) fn standing<T>(
        &self,
        compare: impl FnOnce(&Look) -> Result<Result<T, String>>,
    ) -> Result<Standing<T>> {
        let look = self.look()?;
        match look.found {
            Found::Nothing => return Ok(Standing::Absent),
            Found::Foreign(reason) => return Ok(Standing::Foreign(reason)),
            Found::Ours => {}
        }
        Ok(match compare(&look)? {
            Ok(same) => Standing::Same(Box::new(same)),
            Err(reason) => Standing::Different(format!("{self} is there already, and {reason}")),
        })
    }

    /// Refuses to replace what is there, unless it is ours alone and that is asked for.
    ///
    /// # Errors
    /// As said; and a folder that cannot be listed.
    pub(crate) fn refuse<T>(&self, standing: &Standing<T>, overwrite: bool) -> Result<()> {
        match standing {
            Standing::Foreign(reason) => Err(foreign(reason)),
            Standing::Different(reason) if !overwrite => Err(Hinted::new(
                reason,
                "give another output, or replace this one with `--overwrite`",
            )
            .into()),
            Standing::Different(_) => self.refuse_others(),
            _ => Ok(()),
        }
    }

    /// Refuses to replace what is there, if that has files that are not ours.
    ///
    /// # Errors
    /// There are such, or the folder cannot be listed.
    pub(crate) fn refuse_others(&self) -> Result<()> {
        let look = self.look()?;
        if look.found != Found::Ours {
            return Ok(());
        }
        let listed = (self.maker.listed)(&self.folder)?;
        match (&self.kind, &look.sizes) {
            (Kind::Remote(_), Some(sizes)) => {
                ours::refuse_others(self, sizes.keys().map(String::as_str), &listed)
            }
            (Kind::Remote(_), None) => Ok(()),
            (Kind::Local(folder), _) => ours::refuse_others_in(folder, &listed),
        }
    }

    /// Whether something of ours is there, which may have come after it was looked at first.
    ///
    /// # Errors
    /// Something else is there.
    pub(crate) fn is_taken(&self) -> Result<bool> {
        match self.look()?.found {
            Found::Nothing => Ok(false),
            Found::Ours => Ok(true),
            Found::Foreign(reason) => Err(foreign(&reason)),
        }
    }

    /// Puts the finished folder `out` in place; the file `mark` in it says that it is whole. What it replaces on this machine is in `out` then.
    ///
    /// # Errors
    /// Something that is there, unless it is ours and may be replaced; the system's and the store's.
    pub(crate) fn publish(&self, out: &Path, mark: &str, overwrite: bool, monitor: &Monitor) -> Result<()> {
        if overwrite {
            // Something may have come there since.
            self.refuse_others()?;
        }
        let folder = match &self.kind {
            Kind::Local(folder) => folder,
            Kind::Remote(claim) => {
                return remote::publish(out, mark, &self.folder, claim, self.maker, overwrite, monitor);
            }
        };
        let existing = match self.is_taken()? && !overwrite {
            true => Existing::Keep,
            false => Existing::Replace,
        };
        let above = folder.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(above)
            .with_context(|| format!("could not make the folder {}", above.display()))?;
        store::publish_folder(out, folder, existing).with_context(|| format!("could not publish {self}"))?;
        Ok(())
    }
}

impl Look {
    /// A small file of the folder.
    ///
    /// # Errors
    /// The system's or the store's.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Bytes>> {
        Ok(store::read_file(&self.folder.join(name))?)
    }

    /// Which of these files, by path and size, is damaged: as the end of a sentence.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn damaged<'a>(
        &self,
        files: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Result<Option<String>> {
        for (path, bytes) in files {
            if !self.has(path, bytes)? {
                return Ok(Some(format!("is damaged: {path} is absent or has another size")));
            }
        }
        Ok(None)
    }

    /// Whether a file of the folder has this size.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn has(&self, name: &str, bytes: u64) -> Result<bool> {
        let size = match &self.sizes {
            Some(sizes) => sizes.get(name).copied(),
            None => store::size_of_file(&self.folder.join(name))?,
        };
        Ok(size == Some(bytes))
    }
}

fn look_at(folder: &Path, maker: &Maker) -> Result<Found> {
    let shown = folder.display();
    match std::fs::symlink_metadata(folder) {
        Ok(there) if !there.is_dir() => {
            return Ok(Found::Foreign(format!(
                "the output {shown} is there already, and is not a folder"
            )));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(anyhow::Error::new(error).context(format!("could not look at {shown}"))),
    }
    let listing = || format!("could not list {shown}");
    let names = std::fs::read_dir(folder)
        .with_context(listing)?
        .map(|entry| {
            Ok(entry
                .with_context(listing)?
                .file_name()
                .to_string_lossy()
                .into_owned())
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(told_by(names, &shown, maker))
}

/// What a folder with these files is.
fn told_by(mut names: Vec<String>, shown: &impl fmt::Display, maker: &Maker) -> Found {
    if names.is_empty() {
        return Found::Nothing;
    }
    if names.iter().any(|name| maker.marks.contains(&name.as_str())) {
        return Found::Ours;
    }
    names.sort_unstable();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Found::Foreign(format!(
        "{shown} is there already, and was not made by {}: it has {}",
        maker.name,
        ours::some(&names)
    ))
}

/// The error about what is not ours to replace.
fn foreign(reason: &str) -> anyhow::Error {
    Hinted::new(
        reason,
        "`--overwrite` replaces nothing else than what the same command has made: give another output, or remove this one yourself",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTER: Maker = Maker {
        name: "tests",
        marks: &["a.json", "b.json"],
        listed: |_| Ok(HashSet::new()),
    };

    #[test]
    fn an_output_whose_place_cannot_be_written_is_told_with_a_way_out() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("file"), "").unwrap();
        let place = Place::new(&home.path().join("file/folder/out"), Path::new(""), &TESTER).unwrap();
        let error = place.enter(&Monitor::new()).err().unwrap();
        let hinted = crate::error::find::<Hinted>(&error).unwrap();
        assert!(
            hinted.message.ends_with("file/folder cannot be written")
                && hinted.hint.contains("can be written"),
            "{error:#}"
        );
    }

    #[test]
    fn a_folder_is_ours_by_its_marks_and_others_are_named() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("out");
        assert_eq!(look_at(&folder, &TESTER).unwrap(), Found::Nothing);
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(look_at(&folder, &TESTER).unwrap(), Found::Nothing);
        for name in ["d", "b", "a", "c.txt"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let Found::Foreign(reason) = look_at(&folder, &TESTER).unwrap() else {
            panic!("four files are not ours")
        };
        assert!(
            reason.ends_with("it has `a`, `b`, `c.txt` and 1 more"),
            "{reason}"
        );
        for mark in TESTER.marks {
            std::fs::write(folder.join(mark), "{}").unwrap();
            assert_eq!(look_at(&folder, &TESTER).unwrap(), Found::Ours);
            std::fs::remove_file(folder.join(mark)).unwrap();
        }
        let Found::Foreign(reason) = look_at(&folder.join("a"), &TESTER).unwrap() else {
            panic!("a file is no folder")
        };
        assert!(reason.ends_with("is not a folder"), "{reason}");
    }

    #[test]
    fn places_that_are_no_folders_of_their_own_are_refused() {
        let refused = |output: &str| {
            Place::new(Path::new(output), Path::new(""), &TESTER)
                .unwrap_err()
                .to_string()
        };
        assert!(refused("").contains("empty"));
        assert!(refused("/").contains("folder of its own"));
        assert!(refused("https://example.org/x").contains("can only be read"));
        assert!(refused("s3://bucket").contains("no folder of its own"));
        assert!(refused("s3://bucket/").contains("no folder of its own"));
        let inside = Place::new(Path::new("s3://bucket/"), Path::new("a/1.0.0"), &TESTER).unwrap();
        assert_eq!(inside.to_string(), "s3://bucket/a/1.0.0");
        let place = Place::new(Path::new("s3://bucket/x/y/"), Path::new(""), &TESTER).unwrap();
        assert_eq!(
            (place.to_string().as_str(), place.local()),
            ("s3://bucket/x/y", None)
        );
    }
}
