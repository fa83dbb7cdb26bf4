//! `prep verify` of a dataset: from its name to its version; and what a run that was stopped has found whole.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use prep_catalog::name::Selector;
use prep_catalog::{DatasetName, Resolved};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cli::from_catalog;
use crate::cli::output::Hinted;

/// The version of the dataset `name` in a catalog, for [`super::verify`] to look through; called for a target that is no path.
pub(crate) fn resolve(name: &str, catalog: Option<&str>) -> anyhow::Result<Resolved> {
    if name.starts_with(['.', '/']) {
        let hint = "give the path of a record file, of a folder of them, or a dataset's name";
        return Err(Hinted::new(format!("`{name}` is neither a file nor a folder"), hint).into());
    }
    from_catalog::resolve(catalog, name)
}

/// What to say of a folder that is called as a dataset of the catalog is, or, where the catalog is not on this machine and not asked for this, may be.
pub(crate) fn also_named(text: &str, catalog: Option<&str>) -> Option<String> {
    if text.starts_with(['.', '/', '~']) {
        return None;
    }
    let mut name = DatasetName::parse(text).ok()?;
    let catalog = from_catalog::catalog(catalog).ok()?;
    let dataset = match catalog.location().as_path() {
        Some(_) => {
            name.selector = Selector::Version(catalog.resolve(&name).ok()?.version);
            format!("the catalog has a dataset of that name too: `{name}` asks for it")
        }
        None => format!("a dataset of that name is asked for with its version, as in `{text}:1.0.0`"),
    };
    Some(format!(
        "note: `{text}` is the folder ./{text} here, which is looked at, and `./{text}` always means; {dataset}"
    ))
}

/// The local folder of the dataset `name`, for commands that look at files.
pub(crate) fn folder_of(name: &str, catalog: Option<&str>) -> anyhow::Result<PathBuf> {
    let resolved = resolve(name, catalog)?;
    resolved.folder.as_path().ok_or_else(|| {
        let message = format!(
            "`{name}` lies at `{}`, and only files of this machine can be looked at",
            resolved.folder
        );
        Hinted::new(
            message,
            "`prep show` and `prep verify` take it; or copy the folder to this machine",
        )
        .into()
    })
}

/// A file that was found whole.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    path: String,
    /// Changes when the file does.
    stamp: String,
    records: u64,
    quick: bool,
}

/// The files that were found whole, by a run that is not at its end. Lies in the user's home, or where `--resume=FILE` says; never in a catalog. A run that
/// comes to its end removes it.
#[derive(Debug)]
pub(crate) struct VerifyJournal {
    path: Option<PathBuf>,
    file: Mutex<Option<File>>,
    found: HashMap<String, Line>,
    quick: bool,
}

impl VerifyJournal {
    /// One that notes nothing.
    pub(crate) fn none(quick: bool) -> Self {
        Self {
            path: None,
            file: Mutex::new(None),
            found: HashMap::new(),
            quick,
        }
    }

    /// Opens the journal of these targets. `resume` is what `--resume` says: nothing to begin anew, an empty path for the usual place. A place that cannot
    /// be written is an error only if the user named it.
    pub(crate) fn open(resume: Option<&Path>, quick: bool, targets: &[String]) -> anyhow::Result<Self> {
        let named = resume.filter(|path| !path.as_os_str().is_empty());
        let mut journal = Self::none(quick);
        let path = match named {
            Some(path) => path.to_owned(),
            None => match usual_place(targets) {
                Some(path) => path,
                None => return Ok(journal),
            },
        };
        if resume.is_some() {
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
                Err(error) => {
                    return Err(error).with_context(|| format!("could not read {}", path.display()));
                }
            };
            // The last line may be cut.
            let lines = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Line>(line).ok());
            journal.found = lines.map(|line| (line.path.clone(), line)).collect();
        }
        let opened = path
            .parent()
            .filter(|folder| named.is_none() && !folder.exists())
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| {
                let mut options = File::options();
                options.create(true);
                if resume.is_some() {
                    options.append(true).open(&path)
                } else {
                    options.write(true).truncate(true).open(&path)
                }
            });
        match opened {
            Ok(file) => {
                journal.file = Mutex::new(Some(file));
                journal.path = Some(path);
            }
            Err(error) if named.is_some() => {
                return Err(error).with_context(|| format!("could not write {}", path.display()));
            }
            Err(error) => tracing::debug!(%error, path = %path.display(), "no journal"),
        }
        Ok(journal)
    }

    /// The number of records of a file that was found whole, and has not changed since.
    pub(crate) fn found(&self, path: &str, stamp: Option<&str>) -> Option<u64> {
        let line = self.found.get(path)?;
        // A quick look does not stand for a whole one.
        let is_enough = Some(line.stamp.as_str()) == stamp && (self.quick || !line.quick);
        is_enough.then_some(line.records)
    }

    /// Notes a file that was found whole.
    pub(crate) fn note(&self, path: &str, stamp: &str, records: u64) {
        let line = Line {
            path: path.to_owned(),
            stamp: stamp.to_owned(),
            records,
            quick: self.quick,
        };
        let Ok(mut text) = serde_json::to_string(&line) else {
            return;
        };
        text.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // One write a line, so that a kill cuts one at most. Where it fails, the next run looks again.
        if let Some(file) = &mut *file
            && file.write_all(text.as_bytes()).is_err()
        {
            tracing::debug!("the journal cannot be written");
        }
    }

    /// The run has come to its end.
    pub(crate) fn remove(self) {
        if let Some(path) = self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// A journal of these targets, seen from this folder.
fn usual_place(targets: &[String]) -> Option<PathBuf> {
    let home = prep_catalog::home_folder().ok()?;
    let mut hash = Sha256::new();
    hash.update(std::env::current_dir().ok()?.as_os_str().as_encoded_bytes());
    for target in targets {
        hash.update([0]);
        hash.update(target);
    }
    let name = hex::encode(hash.finalize());
    Some(home.join("verify").join(format!("{}.jsonl", &name[..16])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_whole_is_passed_over_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let open = |quick| VerifyJournal::open(Some(&path), quick, &[]).unwrap();
        let journal = open(false);
        assert_eq!(journal.found("a", Some("1")), None);
        journal.note("a", "1", 7);
        drop(journal);
        let journal = open(true);
        journal.note("b", "1", 8);
        drop(journal);
        // A kill in the middle of a line.
        let mut text = fs::read_to_string(&path).unwrap();
        text += "{\"path\": \"c\", \"st";
        fs::write(&path, text).unwrap();
        let journal = open(false);
        assert_eq!(journal.found("a", Some("1")), Some(7));
        assert_eq!(journal.found("a", Some("2")), None);
        assert_eq!(journal.found("a", None), None);
        assert_eq!(journal.found("b", Some("1")), None);
        assert_eq!(open(true).found("b", Some("1")), Some(8));
        journal.remove();
        assert!(!path.exists());
        let absent = folder.path().join("absent/journal");
        assert!(VerifyJournal::open(Some(&absent), false, &[]).is_err());
    }
}
