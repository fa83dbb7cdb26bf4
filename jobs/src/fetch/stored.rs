//! Sources in object stores: one object as one file, which goes on where an earlier attempt ended, or a set of small ones.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use prep_formats::store::{self, Location, ObjectFile, ReadAt};
use url::Url;

use super::http::{Client, Failure, Part, PartState, Wish, other_size};
use super::{Fetched, local};
use crate::builder::{FileSet, SourceSpec};
use crate::monitor::Meter;

/// Bytes of one request, and requests in flight for one object.
const REQUEST_BYTES: usize = 1 << 20;
const REQUESTS: usize = 8;
/// Objects of a set that are fetched at a time: each takes a request or two, and waiting is most of it.
const PARALLEL_OBJECTS: usize = 16;

/// Where the objects of a set come to lie in the folder of downloads. All sets of one address share it, so that a path is not fetched twice.
pub(super) fn folder_of_set(folder: &Path, url: &Url) -> PathBuf {
    let hash = blake3::hash(url.as_str().as_bytes()).to_hex();
    folder.join(format!("listed-{}", &hash[..16]))
}

impl Client {
    /// Fetches an object, from where the part ends if that is of the same object. The store's client tries again by itself.
    pub(super) fn attempt_stored(&self, part: &mut Part, wish: &Wish<'_>) -> Result<(), Failure> {
        let object = ObjectFile::open(&Location::parse(wish.url.as_str())?)?;
        let total = object.len();
        if let Some(wanted) = wish.spec.bytes.filter(|wanted| wish.strict && *wanted != total) {
            return Err(Failure::Final(other_size(wish.spec, wanted, &total.to_string())));
        }
        let state = PartState::of_object(wish.url, object.tag());
        if !part.is_of(&state) || part.bytes() > total {
            part.restart(state)?;
            wish.meter.set(0);
        }
        self.copy(&object, part.bytes(), wish.meter, &mut |bytes| part.append(bytes))?;
        Ok(())
    }

    /// Gives the bytes of an object from an offset on.
    fn copy(
        &self,
        object: &ObjectFile,
        mut offset: u64,
        meter: &Meter,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let room = (object.len() - offset).min((REQUEST_BYTES * REQUESTS) as u64);
        let mut buffer = vec![0; room as usize];
        while offset < object.len() {
            self.check()?;
            let count = (object.len() - offset).min(room) as usize;
            let mut parts: Vec<store::Part<'_>> = Vec::with_capacity(REQUESTS);
            let mut at = offset;
            for buffer in buffer[..count].chunks_mut(REQUEST_BYTES) {
                let bytes = buffer.len() as u64;
                parts.push(store::Part { offset: at, buffer });
                at += bytes;
            }
            object.read_many(&mut parts)?;
            take(&buffer[..count])?;
            offset = at;
            meter.add(count as u64);
        }
        Ok(())
    }

    /// Fetches the objects of a set that are not there yet. Each gets its name when it is whole and durable.
    ///
    /// # Errors
    /// The store does not have one of them or cannot be reached, the disk is full, or the job was stopped.
    pub(super) fn download_set(
        &self,
        url: &Url,
        folder: &Path,
        spec: &SourceSpec,
        files: &FileSet,
        meter: &Meter,
    ) -> Result<Fetched> {
        let root = Location::parse(url.as_str())?;
        let path = folder_of_set(folder, url);
        let queue = Mutex::new(files.iter());
        let failed = AtomicBool::new(false);
        let work = || -> Result<()> {
            while !failed.load(Ordering::Relaxed) {
                let next = queue
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .next();
                let Some(file) = next else { break };
                self.download_one(&root.join(file), &path.join(file), meter)
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..PARALLEL_OBJECTS).map(|_| scope.spawn(work)).collect();
            let results: Vec<Result<()>> = workers
                .into_iter()
                .map(|worker| {
                    worker
                        .join()
                        .unwrap_or_else(|_| Err(anyhow::anyhow!("a download thread panicked")))
                })
                .collect();
            results.into_iter().collect::<Result<()>>()
        })?;
        Ok(Fetched {
            name: spec.name.clone(),
            bytes: local::size_of(&path, Some(files))?,
            path,
            sha256: None,
        })
    }

    fn download_one(&self, from: &Location, path: &Path, meter: &Meter) -> Result<()> {
        self.check()?;
        if path.exists() {
            return Ok(());
        }
        let object = ObjectFile::open(from)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        // Hidden names are not listed, so no object is called so.
        let part = path.with_file_name(format!(".{}", name.to_string_lossy()));
        let shown = || format!("could not write {}", part.display());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(shown)?;
        }
        let mut file = File::create(&part).with_context(shown)?;
        self.copy(&object, 0, meter, &mut |bytes| {
            file.write_all(bytes).with_context(shown)
        })?;
        file.sync_all()
            .and_then(|()| std::fs::rename(&part, path))
            .with_context(shown)
    }
}
