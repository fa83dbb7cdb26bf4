//! Puts a finished version into an object store: which folder it gets, its files, and a look at what has arrived.
//!
//! ```text
//! DATA_DIR/NAME[/CONFIG]/VERSION/...                        the files; the manifest comes last
//! DATA_DIR/.staging/NAME[/CONFIG]/VERSION/claim.json        whose files are being put there, while they are
//! ```
//!
//! A store has no renames, and no locks. So a folder belongs to a content: who wants to put files into one claims it for the SHA-256 of its
//! manifest, by a put-if-absent. Whoever finds the same hash there puts the same bytes, and may do so at the same time; an upload that was killed goes on
//! where it was. Whoever finds another one takes the folder `VERSION-HASH`, which nobody else with other bytes can want. Readers find a folder
//! through the catalog only, which names it when all of it is there and was read back.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use prep_catalog::manifest::{MANIFEST_FILE, Manifest};
use prep_formats::store::{self, Existing, Location, Output};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::archive::folder_files;
use crate::build::base;
use crate::build::publish::hinted;
use crate::build::staging::STAGING_FOLDER;
use crate::error::Hinted;
use crate::monitor::{Meter, Monitor, Unit};

/// Name of the object that says whose files are being put into a folder.
pub(crate) const CLAIM_FILE: &str = "claim.json";
/// Characters of a hash in the name of a folder: 48 bits, among the builds of one version.
pub(crate) const HASH_CHARACTERS: usize = 12;
/// Files that are sent or read back at a time; each upload has up to four parts of 8 MiB in flight.
const FILES_AT_ONCE: usize = 4;
/// Bytes that are read back at a time.
const BLOCK_BYTES: usize = 8 << 20;

/// The folder of a remote version that is being published.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: Location,
    /// To be removed when the version is in the catalog.
    claim: Option<Location>,
}

/// What may be done with a folder.
#[derive(Debug, PartialEq, Eq)]
enum Claimed {
    /// It is for this content.
    Ours(Option<Location>),
    /// It has, or is to have, another one.
    Others,
}

impl Place {
    /// Finds the folder for a version and claims it. `is_taken` tells of a folder that it cannot be, whatever lies there. Where puts are not
    /// conditional, it is one with the hash in its name.
    pub(crate) fn find(
        data_dir: &Location,
        relative: &str,
        manifest: &Manifest,
        conditional: bool,
        is_taken: &dyn Fn(&Location) -> Result<bool>,
    ) -> Result<Self> {
        let hash = &manifest.sha256()[..HASH_CHARACTERS];
        let names = std::iter::once(relative.to_owned())
            .chain(std::iter::once(format!("{relative}-{hash}")))
            .chain((2..1000).map(|number| format!("{relative}-{hash}-{number}")));
        for (attempt, name) in names.enumerate() {
            if attempt == 0 && !conditional {
                continue;
            }
            let folder = data_dir.join(&name);
            if is_taken(&folder)? {
                continue;
            }
            let claim = conditional.then(|| data_dir.join(&format!("{STAGING_FOLDER}/{name}/{CLAIM_FILE}")));
            match claim_folder(&folder, claim, manifest)? {
                Claimed::Ours(claim) => return Ok(Self { folder, claim }),
                Claimed::Others => {}
            }
        }
        bail!("{data_dir} has no place left for {relative}: clean up with `prep gc`")
    }

    /// That the claim still stands, before the version is committed: `prep gc` takes one that has not been renewed for long, before it deletes what was
    /// put there.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.claim {
            Some(claim) if store::size_of_file(claim)?.is_none() => Err(Hinted::new(
                format!("{} was cleaned up while files were put there", self.folder),
                "give the same command again: it sends them anew",
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Says that all is done. The claim may stay where the store fails now: the manifest says the same, and `prep gc` removes it.
    pub(crate) fn release(self) {
        if let Some(claim) = self.claim {
            let _ = store::remove_file(&claim);
        }
    }
}

fn claim_folder(folder: &Location, claim: Option<Location>, manifest: &Manifest) -> Result<Claimed> {
    let sha256 = manifest.sha256();
    let manifest_at = folder.join(MANIFEST_FILE);
    let holds = || -> Result<Option<bool>> {
        let there = store::read_file(&manifest_at)?;
        Ok(there.map(|bytes| hex::encode(Sha256::digest(&bytes)) == sha256))
    };
    match holds()? {
        Some(true) => return Ok(Claimed::Ours(None)),
        Some(false) => return Ok(Claimed::Others),
        None => {}
    }
    let Some(claim) = claim else {
        return Ok(Claimed::Ours(None));
    };
    let text = json!({"format": 1, "manifest_sha256": sha256}).to_string();
    if !prep_catalog::put_if_absent(&claim, text.clone().into_bytes()).map_err(hinted)? {
        let found = store::read_file(&claim)?.unwrap_or_default();
        let found: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
        if found["manifest_sha256"] != sha256.as_str() {
            return Ok(Claimed::Others);
        }
        // Of an earlier run: somebody is at it again.
        let mut renewed = Output::create(&claim, Existing::Replace)?;
        renewed
            .write_all(text.as_bytes())
            .with_context(|| format!("could not write {claim}"))?;
        renewed.commit()?;
    }
    // Its owner may have finished, and let go of the claim, between the two looks.
    Ok(match holds()? {
        Some(false) => {
            let _ = store::remove_file(&claim);
            Claimed::Others
        }
        _ => Claimed::Ours(Some(claim)),
    })
}

/// A file on its way.
struct Task {
    path: PathBuf,
    to: Location,
    bytes: u64,
    sha256: Option<String>,
    /// An earlier run has sent it, as its size says.
    is_there: bool,
}

/// A file of another version's folder, of which the new one has a copy.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) from: Location,
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// Sends the files of a finished version, the manifest last; and has the store copy others.
pub(crate) fn send(
    out: &Path,
    manifest: &Manifest,
    copies: &[Copy],
    place: &Place,
    monitor: &Monitor,
) -> Result<()> {
    copy_all(copies, &place.folder, monitor)?;
    let shards = manifest.splits.iter().flat_map(|split| &split.shards);
    let shards = shards.map(|shard| (shard.path.as_str(), shard.sha256.as_str()));
    let files = manifest
        .files
        .iter()
        .map(|file| (file.path.as_str(), file.sha256.as_str()));
    let sums = shards.chain(files).collect();
    send_files(out, &place.folder, &sums, MANIFEST_FILE, monitor)?;
    manifest.write(&place.folder).map_err(hinted)
}

/// Copies what is not there in its full size, and reads all of it back: a store vouches for the bytes it has, not for their being the manifest's.
fn copy_all(copies: &[Copy], folder: &Location, monitor: &Monitor) -> Result<()> {
    if copies.is_empty() {
        return Ok(());
    }
    let there = sizes(folder)?;
    let missing: Vec<&Copy> = copies
        .iter()
        .filter(|copy| there.get(&copy.name) != Some(&copy.bytes))
        .collect();
    let total = missing.iter().map(|copy| copy.bytes).sum();
    let meter = monitor.stage("copy", Unit::Bytes, Some(total));
    at_once(&missing, |copy| copy_to(copy, folder, &meter, monitor))?;
    meter.finish();
    let total = copies.iter().map(|copy| copy.bytes).sum();
    let read = monitor.stage("read back", Unit::Bytes, Some(total));
    at_once(copies, |copy| {
        let to = folder.join(&copy.name);
        let mut found = hash_remote(&to, copy.bytes, &read, monitor)?;
        if found != copy.sha256 && there.contains_key(&copy.name) {
            copy_to(copy, folder, &meter, monitor)?;
            found = hash_remote(&to, copy.bytes, &read, monitor)?;
        }
        if found != copy.sha256 {
            let _ = store::remove_file(&to);
            return Err(base::damaged(&copy.from, &found, &copy.sha256));
        }
        Ok(())
    })?;
    read.finish();
    Ok(())
}

/// The files that are in a folder.
fn sizes(folder: &Location) -> Result<HashMap<String, u64>> {
    let files = store::list_files(folder)?.into_iter();
    Ok(files.map(|file| (file.relative, file.bytes)).collect())
}

/// Sends the files of a local folder, but `last`, and reads all of them back. What is there in its full size is not sent again, unless it has other bytes.
/// `sums` are the SHA-256 of files as far as they are known.
pub(crate) fn send_files(
    out: &Path,
    folder: &Location,
    sums: &HashMap<&str, &str>,
    last: &str,
    monitor: &Monitor,
) -> Result<()> {
    let there = sizes(folder)?;
    let mut tasks = Vec::new();
    for name in folder_files(out)? {
        if name == last {
            continue;
        }
        let path = out.join(&name);
        let bytes = std::fs::metadata(&path)
            .with_context(|| format!("could not look at {}", path.display()))?
            .len();
        tasks.push(Task {
            bytes,
            to: folder.join(&name),
            sha256: sums.get(name.as_str()).map(|sum| (*sum).to_owned()),
            is_there: there.get(&name) == Some(&bytes),
            path,
        });
    }
    let missing: Vec<&Task> = tasks.iter().filter(|task| !task.is_there).collect();
    let total = missing.iter().map(|task| task.bytes).sum();
    let sent = monitor.stage("upload", Unit::Bytes, Some(total));
    at_once(&missing, |task| {
        let _span = monitor.span("upload", format!("upload {}", task.to));
        upload(task, &sent, monitor)
    })?;
    sent.finish();
    let total = tasks.iter().map(|task| task.bytes).sum();
    let meter = monitor.stage("read back", Unit::Bytes, Some(total));
    at_once(&tasks, |task| {
        let _span = monitor.span("verify", format!("read back {}", task.to));
        let wanted = match &task.sha256 {
            Some(sum) => sum.clone(),
            None => hex::encode(crate::fetch::hash_file(&task.path, None, monitor)?.sha256),
        };
        let mut found = hash_remote(&task.to, task.bytes, &meter, monitor)?;
        if found != wanted && task.is_there {
            upload(task, &sent, monitor)?;
            found = hash_remote(&task.to, task.bytes, &meter, monitor)?;
        }
        if found != wanted {
            return Err(damaged(&task.to, &found, &wanted));
        }
        Ok(())
    })?;
    meter.finish();
    Ok(())
}

/// An object that does not hold what was sent.
pub(crate) fn damaged(at: &Location, found: &str, wanted: &str) -> anyhow::Error {
    // The same size with other bytes would be taken for finished by the next run.
    let _ = store::remove_file(at);
    Hinted::new(
        format!("{at} has the SHA-256 {found}, wanted {wanted}: the store did not keep what was sent"),
        "give the same command again: it sends the file anew",
    )
    .into()
}

/// Has the store copy a file, or where it does not, reads and writes it.
fn copy_to(copy: &Copy, folder: &Location, meter: &Meter, monitor: &Monitor) -> Result<()> {
    monitor.check()?;
    let Copy {
        from,
        name,
        bytes,
        sha256,
    } = copy;
    let to = folder.join(name);
    let _span = monitor.span("upload", format!("copy {to}"));
    if store::copy_file(from, &to, *bytes)? {
        let found = store::size_of_file(&to)?;
        if found != Some(*bytes) {
            let _ = store::remove_file(&to);
            bail!("{to}, a copy of {from}, has {found:?} bytes, wanted {bytes}");
        }
        meter.add(*bytes);
        return Ok(());
    }
    let source = store::open(from)?;
    let mut output = Output::create(&to, Existing::Replace)?;
    let mut sum = Sha256::new();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut offset = 0;
    while offset < *bytes {
        monitor.check()?;
        let count = (*bytes - offset).min(BLOCK_BYTES as u64);
        let block = &mut buffer[..count as usize];
        source.read_at(offset, block)?;
        sum.update(&*block);
        output
            .write_all(block)
            .with_context(|| format!("could not write {to}"))?;
        meter.add(count);
        offset += count;
    }
    let found = hex::encode(sum.finalize());
    if found != *sha256 {
        return Err(base::damaged(from, &found, sha256));
    }
    Ok(output.commit()?)
}

fn upload(task: &Task, meter: &Meter, monitor: &Monitor) -> Result<()> {
    let shown = task.path.display();
    let mut file = File::open(&task.path).with_context(|| format!("could not open {shown}"))?;
    let mut output = Output::create(&task.to, Existing::Replace)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        // Dropped, the upload is aborted and its parts are removed.
        monitor.check()?;
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).with_context(|| format!("could not read {shown}")),
        };
        output
            .write_all(&buffer[..count])
            .with_context(|| format!("could not write {}", task.to))?;
        meter.add(count as u64);
    }
    Ok(output.commit()?)
}

/// The SHA-256 of an object of this size, hex.
pub(crate) fn hash_remote(at: &Location, bytes: u64, meter: &Meter, monitor: &Monitor) -> Result<String> {
    let source = store::open(at)?;
    if source.len() != bytes {
        bail!("{at} has {} bytes, wanted {bytes}", source.len());
    }
    let mut sha256 = Sha256::new();
    let mut buffer = vec![0; BLOCK_BYTES.min(usize::try_from(bytes).unwrap_or(BLOCK_BYTES))];
    let mut offset = 0;
    while offset < bytes {
        monitor.check()?;
        let count = (bytes - offset).min(buffer.len() as u64);
        let block = &mut buffer[..count as usize];
        source.read_at(offset, block)?;
        sha256.update(&*block);
        meter.add(count);
        offset += count;
    }
    Ok(hex::encode(sha256.finalize()))
}

/// Does the work for all, a few at a time, until one fails.
pub(crate) fn at_once<T: Sync>(all: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..FILES_AT_ONCE.min(all.len()) {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = work(one) {
                        failure
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .get_or_insert(error);
                        next.store(all.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use prep_catalog::fingerprint::SequenceHash;
    use prep_catalog::manifest::{ShardManifest, SplitManifest};

    /// A folder with one shard of these bytes, and its manifest.
    fn version(folder: &Path, bytes: &[u8]) -> Manifest {
        let shard = ShardManifest {
            path: "a-train.array_record-00000-of-00001".into(),
            records: 1,
            bytes: bytes.len() as u64,
            sha256: hex::encode(Sha256::digest(bytes)),
            sequence_hash: SequenceHash::of([bytes]).to_hex(),
            min_key: None,
            max_key: None,
            index: None,
        };
        std::fs::write(folder.join(&shard.path), bytes).unwrap();
        std::fs::write(folder.join("features.json"), "{}").unwrap();
        let manifest = Manifest {
            format: 1,
            name: "a".into(),
            config: None,
            version: "1.0.0".into(),
            fingerprint: "ab".repeat(32),
            recipe_sha256: "ab".repeat(32),
            layout: "tfds".into(),
            in_place: false,
            sources: Vec::new(),
            splits: vec![SplitManifest {
                name: "train".into(),
                records: 1,
                bytes: bytes.len() as u64,
                options: "uncompressed".into(),
                skipped: 0,
                shards: vec![shard],
            }],
            files: Vec::new(),
        };
        manifest.write(&Location::from_path(folder)).unwrap();
        manifest
    }

    fn names(folder: &Location) -> Vec<String> {
        let files = store::list_files(folder).unwrap();
        files.into_iter().map(|file| file.relative).collect()
    }

    #[test]
    fn a_folder_belongs_to_a_content() {
        let data_dir = Location::parse("memory:///upload-test/data").unwrap();
        let monitor = Monitor::new();
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = version(one.path(), &[1; 3_000_000]);
        let second = version(two.path(), &[2; 100]);
        let free = |_: &Location| Ok(false);
        let find = |manifest: &Manifest| Place::find(&data_dir, "a/1.0.0", manifest, true, &free).unwrap();
        let place = find(&first);
        assert_eq!(place.folder.to_string(), "memory:///upload-test/data/a/1.0.0");
        // The same content shares the claim, another one goes elsewhere, before there is a manifest and after.
        assert_eq!(find(&first).folder, place.folder);
        let other = find(&second);
        let hash = &second.sha256()[..HASH_CHARACTERS];
        assert!(other.folder.to_string().ends_with(&format!("a/1.0.0-{hash}")));
        send(one.path(), &first, &[], &place, &monitor).unwrap();
        send(two.path(), &second, &[], &other, &monitor).unwrap();
        let wanted = [
            "a-train.array_record-00000-of-00001",
            "features.json",
            MANIFEST_FILE,
        ];
        assert_eq!(names(&place.folder), wanted);
        place.release();
        other.release();
        assert_eq!(
            find(&second).folder.to_string(),
            data_dir.join(&format!("a/1.0.0-{hash}")).to_string()
        );
        assert!(names(&data_dir.join(STAGING_FOLDER)).is_empty());
        // One that is being deleted is passed over.
        let taken = |folder: &Location| Ok(folder.to_string().ends_with("/1.0.0"));
        let place = Place::find(&data_dir, "a/1.0.0", &first, true, &taken).unwrap();
        let hash = &first.sha256()[..HASH_CHARACTERS];
        assert!(place.folder.to_string().ends_with(hash));
        place.release();
        // Without conditions, nobody else may want the folder.
        let place = Place::find(&data_dir, "a/2.0.0", &first, false, &free).unwrap();
        assert!(place.folder.to_string().ends_with(&format!("a/2.0.0-{hash}")));
        assert!(place.claim.is_none());
    }

    #[test]
    fn what_is_there_with_other_bytes_is_found_and_sent_again() {
        let data_dir = Location::parse("memory:///upload-damage/data").unwrap();
        let monitor = Monitor::new();
        let folder = tempfile::tempdir().unwrap();
        let manifest = version(folder.path(), &[1; 1000]);
        let place = Place::find(&data_dir, "a/1.0.0", &manifest, true, &|_| Ok(false)).unwrap();
        // An object of the right size with other bytes.
        let shard = place.folder.join("a-train.array_record-00000-of-00001");
        let mut output = Output::create(&shard, Existing::Keep).unwrap();
        output.write_all(&[7; 1000]).unwrap();
        output.commit().unwrap();
        send(folder.path(), &manifest, &[], &place, &monitor).unwrap();
        assert_eq!(store::read_file(&shard).unwrap().unwrap(), vec![1; 1000]);
        // A copy of what has rotted is refused, and is not left.
        let copy = Copy {
            from: shard,
            name: "copy".to_owned(),
            bytes: 1000,
            sha256: hex::encode(Sha256::digest([2; 1000])),
        };
        let error = send(folder.path(), &manifest, &[copy], &place, &monitor).unwrap_err();
        assert!(error.to_string().contains("is damaged: its SHA-256"), "{error}");
        assert!(!names(&place.folder).contains(&"copy".to_owned()));
        monitor.cancel();
        assert!(send(folder.path(), &manifest, &[], &place, &monitor).is_err());
    }
}
