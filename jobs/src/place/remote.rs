//! An output in an object store, which knows no renames and no locks.
//!
//! ```text
//! FOLDER/...                                 files; the mark comes last, so that a folder with a mark is whole
//! ABOVE/.staging/NAME/claim.json             whose files are being put there, while they are: the hash of the mark, and their names
//! ```
//!
//! The claim is a put-if-absent. Who finds one with the hash of its own mark puts the same bytes, and goes on where that upload ended. Who finds another
//! one leaves the folder alone, unless it is to be overwritten: what the claim names goes then. A folder that is replaced loses its mark first, so nobody
//! takes half of one for whole; but it cannot be read until the new one is there.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use prep_formats::store::{self, Existing, Location, Output};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::archive::folder_files;
use crate::build::publish::hinted;
use crate::build::upload;
use crate::error::Hinted;
use crate::monitor::Monitor;
use crate::place::{Found, Maker, foreign, told_by};

/// Whose files are being put into a folder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    format: u32,
    /// SHA-256 of the mark, hex: it holds checksums of all the rest.
    mark_sha256: String,
    files: Vec<String>,
}

impl Claim {
    fn read(at: &Location) -> Result<Option<Self>> {
        let Some(text) = store::read_file(at)? else {
            return Ok(None);
        };
        let found: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{at} is no claim that this version knows"))?;
        Ok(Some(found))
    }
}

/// What is in a folder, and the sizes of its files.
pub(super) fn look(
    folder: &Location,
    claim: &Location,
    maker: &Maker,
) -> Result<(Found, HashMap<String, u64>)> {
    let files = store::list_files(folder)?;
    let sizes: HashMap<String, u64> = files
        .into_iter()
        .map(|file| (file.relative, file.bytes))
        .collect();
    let found = match told_by(sizes.keys().cloned().collect(), folder, maker) {
        // What an upload that was killed has left, is nothing yet.
        Found::Foreign(_) if let Some(claim) = Claim::read(claim)? => {
            let known: HashSet<String> = claim.files.into_iter().collect();
            told_by(
                sizes
                    .keys()
                    .filter(|name| !known.contains(*name))
                    .cloned()
                    .collect(),
                folder,
                maker,
            )
        }
        found => found,
    };
    Ok((found, sizes))
}

/// Puts the files of the finished local folder `out` there, `mark` last.
pub(super) fn publish(
    out: &Path,
    mark: &str,
    folder: &Location,
    claim_at: &Location,
    maker: &Maker,
    overwrite: bool,
    monitor: &Monitor,
) -> Result<()> {
    let text = std::fs::read(out.join(mark))
        .with_context(|| format!("could not read {}", out.join(mark).display()))?;
    let claim = Claim {
        format: 1,
        mark_sha256: hex::encode(Sha256::digest(&text)),
        files: folder_files(out)?,
    };
    let is_first = take(&claim, claim_at, folder, maker, overwrite)?;
    let mark_at = folder.join(mark);
    let (found, sizes) = look(folder, claim_at, maker)?;
    let is_ours = found == Found::Ours;
    let refused = match found {
        Found::Foreign(reason) => Some(foreign(&reason)),
        // By the same command, at the same time or killed between its last two steps.
        Found::Ours if store::read_file(&mark_at)?.is_some_and(|there| there == text) => {
            return Ok(store::remove_file(claim_at)?);
        }
        Found::Ours if !overwrite => Some(come_meanwhile(folder)),
        Found::Ours | Found::Nothing => None,
    };
    if let Some(error) = refused {
        if is_first {
            let _ = store::remove_file(claim_at);
        }
        return Err(error);
    }
    if is_ours {
        let mut names: Vec<&str> = sizes.keys().map(String::as_str).collect();
        names.sort_unstable_by_key(|name| !maker.marks.contains(name));
        for name in names {
            monitor.check()?;
            store::remove_file(&folder.join(name))?;
        }
    }
    upload::send_files(out, folder, &HashMap::new(), mark, monitor)?;
    monitor.check()?;
    if Claim::read(claim_at)?.as_ref() != Some(&claim) {
        return Err(Hinted::new(
            format!("another job has taken over {folder} while files were put there"),
            "give another output, or the same command again when nobody else writes there",
        )
        .into());
    }
    if !prep_catalog::put_if_absent(&mark_at, text.clone()).map_err(hinted)?
        && store::read_file(&mark_at)?.is_none_or(|there| there != text)
    {
        return Err(come_meanwhile(folder));
    }
    // The mark says the same; a claim that is left by a store that fails now is one of this content.
    let _ = store::remove_file(claim_at);
    Ok(())
}

fn come_meanwhile(folder: &Location) -> anyhow::Error {
    Hinted::new(
        format!("{folder} has come from somebody else meanwhile"),
        "give another output, or replace that one with `--overwrite`",
    )
    .into()
}

/// Claims a folder. Whether nobody had claimed it for the same content before.
fn take(claim: &Claim, at: &Location, folder: &Location, maker: &Maker, overwrite: bool) -> Result<bool> {
    let text = serde_json::to_vec(claim)?;
    if prep_catalog::put_if_absent(at, text.clone()).map_err(hinted)? {
        return Ok(true);
    }
    let Some(there) = Claim::read(at)? else {
        bail!("somebody else has just put files into {folder}: give the same command again");
    };
    if there == *claim {
        return Ok(false);
    }
    if !overwrite {
        return Err(Hinted::new(
            format!("another job puts other files into {folder}, or was killed while it did"),
            "wait for it, or give another output; where nobody is at work any more, `--overwrite` takes its place",
        )
        .into());
    }
    // Of a folder that is whole, all goes later.
    if !matches!(look(folder, at, maker)?.0, Found::Ours) {
        for name in &there.files {
            store::remove_file(&folder.join(name))?;
        }
    }
    let mut output = Output::create(at, Existing::Replace)?;
    output
        .write_all(&text)
        .with_context(|| format!("could not write {at}"))?;
    output.commit()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "mark.json";
    const TESTER: Maker = Maker {
        name: "tests",
        marks: &[MARK],
        listed: |_| Ok(HashSet::new()),
    };

    /// A finished folder of two shards, whose bytes and mark depend on `seed`.
    fn finished(seed: u8) -> tempfile::TempDir {
        let out = tempfile::tempdir().unwrap();
        std::fs::create_dir(out.path().join("data")).unwrap();
        for name in ["data/a", "data/b"] {
            std::fs::write(out.path().join(name), [seed; 1000]).unwrap();
        }
        std::fs::write(out.path().join(MARK), format!("{{\"seed\": {seed}}}")).unwrap();
        out
    }

    struct Store {
        folder: Location,
        claim: Location,
    }

    impl Store {
        fn new(name: &str) -> Self {
            let above = Location::parse(&format!("memory:///{name}")).unwrap();
            Self {
                folder: above.join("out"),
                claim: above.join(".staging/out/claim.json"),
            }
        }

        fn publish(&self, seed: u8, overwrite: bool) -> Result<()> {
            let out = finished(seed);
            publish(
                out.path(),
                MARK,
                &self.folder,
                &self.claim,
                &TESTER,
                overwrite,
                &Monitor::new(),
            )
        }

        fn names(&self) -> Vec<String> {
            store::list_files(&self.folder)
                .unwrap()
                .into_iter()
                .map(|file| file.relative)
                .collect()
        }

        fn get(&self, name: &str) -> Vec<u8> {
            store::read_file(&self.folder.join(name))
                .unwrap()
                .unwrap()
                .to_vec()
        }

        fn put(&self, at: &Location, data: &[u8]) {
            let mut output = Output::create(at, Existing::Replace).unwrap();
            output.write_all(data).unwrap();
            output.commit().unwrap();
        }

        fn claim(&self, seed: u8) {
            let out = finished(seed);
            let claim = Claim {
                format: 1,
                mark_sha256: hex::encode(Sha256::digest(std::fs::read(out.path().join(MARK)).unwrap())),
                files: folder_files(out.path()).unwrap(),
            };
            self.put(&self.claim, &serde_json::to_vec(&claim).unwrap());
        }

        fn is_claimed(&self) -> bool {
            store::size_of_file(&self.claim).unwrap().is_some()
        }
    }

    #[test]
    fn a_folder_is_made_once_and_replaced_only_if_asked() {
        let store = Store::new("place-made");
        assert_eq!(
            look(&store.folder, &store.claim, &TESTER).unwrap().0,
            Found::Nothing
        );
        store.publish(1, false).unwrap();
        assert_eq!(store.names(), ["data/a", "data/b", MARK]);
        assert!(!store.is_claimed());
        // The same again is no trouble, another one is.
        store.publish(1, false).unwrap();
        let error = store.publish(2, false).unwrap_err().to_string();
        assert!(error.contains("somebody else") && !store.is_claimed(), "{error}");
        assert_eq!(store.get("data/a"), [1; 1000]);
        store.put(&store.folder.join("data/older"), b"x");
        store.publish(2, true).unwrap();
        assert_eq!(store.names(), ["data/a", "data/b", MARK]);
        assert_eq!(store.get("data/b"), [2; 1000]);
    }

    #[test]
    fn an_upload_that_was_killed_is_continued_by_its_own_command_and_replaced_by_another() {
        let store = Store::new("place-killed");
        store.claim(1);
        store.put(&store.folder.join("data/a"), &[1; 1000]);
        assert_eq!(
            look(&store.folder, &store.claim, &TESTER).unwrap().0,
            Found::Nothing
        );
        let error = store.publish(2, false).unwrap_err().to_string();
        assert!(error.contains("was killed") && store.is_claimed(), "{error}");
        // Half of it with other bytes of the same size: noticed, and sent anew.
        store.put(&store.folder.join("data/b"), &[7; 1000]);
        store.publish(1, false).unwrap();
        assert_eq!((store.get("data/b"), store.is_claimed()), (vec![1; 1000], false));
        // Taken over.
        let store = Store::new("place-taken");
        store.claim(1);
        store.put(&store.folder.join("data/a"), &[1; 1000]);
        store.publish(2, true).unwrap();
        assert_eq!((store.get("data/a"), store.is_claimed()), (vec![2; 1000], false));
    }

    #[test]
    fn what_is_somebody_elses_stays() {
        let store = Store::new("place-foreign");
        store.put(&store.folder.join("thesis.tex"), b"x");
        for overwrite in [false, true] {
            let error = store.publish(1, overwrite).unwrap_err().to_string();
            assert!(error.contains("it has `thesis.tex`"), "{error}");
            assert_eq!(
                (store.names(), store.is_claimed()),
                (vec!["thesis.tex".to_owned()], false)
            );
        }
        // Beside what a killed upload has left, too.
        store.claim(1);
        store.put(&store.folder.join("data/a"), &[1; 1000]);
        let error = store.publish(1, true).unwrap_err().to_string();
        assert!(error.contains("it has `thesis.tex`"), "{error}");
    }
}
