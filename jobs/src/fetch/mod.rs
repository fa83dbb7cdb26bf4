//! Gets a dataset's sources: from where the user says, or from the recipe's addresses.
//!
//! Sources that are local are used where they lie, and never changed. Others are downloaded into staging, a few at a time,
//! and kept there until the build is done.

mod checksum;
mod http;
pub(crate) mod local;
mod locate;
mod stored;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::builder::{SourcePlace, SourceSpec};
use crate::error::Hinted;
use crate::monitor::{Meter, Monitor, Unit};

pub use checksum::{Checksum, ChecksumThread};
pub(crate) use checksum::{compare, hash_file, identify};
pub use http::Client;
pub(crate) use http::shown;
pub(crate) use locate::{KNOWN_SCHEMES, is_known, is_store, present};
pub use locate::{Located, locate};

/// From so many sources on, looking at them is a stage of its own.
const MANY_SOURCES: usize = 1000;
/// From so many downloads on, they are shown as one.
const MANY_DOWNLOADS: usize = 17;
/// Downloads that run at the same time.
const PARALLEL_DOWNLOADS: usize = 4;

/// How downloads behave when the network does not.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FetchOptions {
    /// Attempts in a row that bring no byte before a download fails; default 6.
    pub attempts: u32,
    /// The pause after the first failure, doubled after each further one; default 0.5 s.
    pub pause: Duration,
    /// A connection that brings nothing for so long is dropped; default 30 s.
    pub stall: Duration,
    /// How long one download may be spent on failures in all, pauses included; default 1 hour.
    pub patience: Duration,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            attempts: 6,
            pause: Duration::from_millis(500),
            stall: Duration::from_secs(30),
            patience: Duration::from_secs(3600),
        }
    }
}

impl FetchOptions {
    /// Sets the attempts without progress before a download fails.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// Sets the pause after a first failure.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets how long a connection may bring nothing.
    #[must_use]
    pub fn stall(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }
}

impl FetchOptions {
    /// Sets how long one download may be spent on failures in all.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// A source that is on this machine, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fetched {
    /// File name in the spec.
    pub name: String,
    /// Where it lies: the user's own file, or a download in staging.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, where it was computed on the way in.
    pub sha256: Option<[u8; 32]>,
}

/// Gets all sources, in the order of `specs`. Downloads go to `folder`, under the sources' names; those that are there
/// already, whole, are taken. `done` is called for each download that ends well, once it is durable.
///
/// With `strict`, a source whose size or hash is not the spec's is refused. The hash of a local file is not looked at here,
/// since that takes time: see [`ChecksumThread`].
///
/// # Errors
/// A file that is not there or not readable, a download that failed for good, a source that is not the spec's.
pub fn fetch_all(
    specs: &[SourceSpec],
    located: &[Located],
    folder: &Path,
    strict: bool,
    options: &FetchOptions,
    monitor: &Arc<Monitor>,
    done: &(dyn Fn(&Fetched) -> Result<()> + Sync),
) -> Result<Vec<Fetched>> {
    let results: Vec<Mutex<Option<Result<Fetched>>>> = specs.iter().map(|_| Mutex::new(None)).collect();
    let put =
        |index: usize, result| *results[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    let mut remote = Vec::new();
    let looking = (specs.len() >= MANY_SOURCES)
        .then(|| monitor.stage("look at sources", Unit::Files, Some(specs.len() as u64)));
    for (index, (spec, place)) in specs.iter().zip(located).enumerate() {
        if let Some(meter) = &looking {
            monitor.check()?;
            meter.add(1);
        }
        match place {
            Located::File(path) => put(index, Ok(local(spec, path, strict)?)),
            Located::TakenOver => put(
                index,
                Ok(Fetched {
                    name: spec.name.clone(),
                    path: PathBuf::new(),
                    bytes: spec.bytes.unwrap_or(0),
                    sha256: spec.sha256,
                }),
            ),
            // Which of its files are there, the set finds out.
            Located::Url(url) if spec.files().is_some() => remote.push((index, spec, url)),
            Located::Url(url) => {
                let path = folder.join(&spec.name);
                match std::fs::metadata(&path) {
                    Ok(_) => {
                        put(index, Ok(local(spec, &path, strict)?));
                        monitor.sources_found(1);
                    }
                    Err(_) => remote.push((index, spec, url)),
                }
            }
        }
    }
    if let Some(meter) = looking {
        meter.finish();
    }
    if !remote.is_empty() {
        // So many bars would be none.
        let all = (remote.len() >= MANY_DOWNLOADS).then(|| {
            let total: Option<u64> = remote.iter().map(|(_, spec, _)| spec.bytes).sum();
            monitor.stage("fetch", Unit::Bytes, total)
        });
        let client = Client::new(options.clone(), Arc::clone(monitor))?;
        let queue = Mutex::new(remote.into_iter());
        let failed = std::sync::atomic::AtomicBool::new(false);
        let finished = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..PARALLEL_DOWNLOADS)
                .map(|_| {
                    scope.spawn(|| {
                        while !failed.load(std::sync::atomic::Ordering::Relaxed) {
                            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                            let Some((index, spec, url)) = next else { break };
                            let name = format!("fetch {}", spec.name);
                            let _span = monitor.span("fetch", name.clone());
                            let meter = match &all {
                                Some(all) => Meter::part_of(all),
                                None => monitor.stage(name, Unit::Bytes, spec.bytes),
                            };
                            let result = match spec.files() {
                                Some(files) => client.download_set(url, folder, spec, files, &meter),
                                None => client.download(url, folder, spec, strict, &meter),
                            };
                            let result = result.and_then(|fetched| done(&fetched).map(|()| fetched));
                            meter.finish();
                            if result.is_err() {
                                failed.store(true, std::sync::atomic::Ordering::Relaxed);
                                client.stop();
                            }
                            put(index, result);
                        }
                    })
                })
                .collect();
            // Waits in the network end when the job is stopped.
            let watcher = scope.spawn(|| {
                while !finished.load(std::sync::atomic::Ordering::Relaxed) {
                    if monitor.is_cancelled() {
                        client.stop();
                        break;
                    }
                    std::thread::park_timeout(Duration::from_millis(50));
                }
            });
            for worker in workers {
                let _ = worker.join();
            }
            if let Some(all) = &all {
                all.finish();
            }
            finished.store(true, std::sync::atomic::Ordering::Relaxed);
            watcher.thread().unpark();
        });
        monitor.check()?;
    }
    let mut fetched = Vec::new();
    let mut errors = Vec::new();
    let mut missing = false;
    for result in results {
        match result.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(Ok(source)) => fetched.push(source),
            Some(Err(error)) => errors.push(error),
            None => missing = true,
        }
    }
    // The first failure stops the others, which then fail for that reason only.
    errors.sort_by_key(|error| error.is::<http::Stopped>());
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None if missing => Err(anyhow::anyhow!("a download thread ended without a result")),
        None => Ok(fetched),
    }
}

/// Looks at a local source: that it is a file, and as long as the spec says, or a folder of which nothing is said.
fn local(spec: &SourceSpec, path: &Path, strict: bool) -> Result<Fetched> {
    let shown = path.display();
    let metadata = std::fs::metadata(path).with_context(|| format!("could not read {shown}"))?;
    if metadata.is_dir() && spec.bytes.is_none() && spec.sha256.is_none() {
        return Ok(Fetched {
            name: spec.name.clone(),
            path: path.to_owned(),
            bytes: local::size_of(path, spec.files().map(|files| &**files))?,
            sha256: None,
        });
    }
    if !metadata.is_file() {
        anyhow::bail!("{shown} is not a file");
    }
    let bytes = metadata.len();
    let mut start = [0; 512];
    let count = File::open(path)
        .and_then(|mut file| file.read(&mut start))
        .with_context(|| format!("could not read {shown}"))?;
    let is_page = http::looks_like_page(&start[..count]);
    if let Some(wanted) = spec.bytes.filter(|wanted| strict && *wanted != bytes) {
        let page = if is_page {
            ", and looks like a web page"
        } else {
            ""
        };
        return Err(Hinted::new(
            format!("{shown} has {bytes} bytes{page}; the recipe says {wanted}"),
            "get the file again, or take this one with `--no-checksum`",
        )
        .into());
    }
    // What the user's own pattern stands for may be pages, and stores send none in place of an object.
    let is_stored = matches!(&spec.place, SourcePlace::Url(url) if is_store(url.scheme()));
    if spec.is_of_pattern() || is_stored {
        return Ok(Fetched {
            name: spec.name.clone(),
            path: path.to_owned(),
            bytes,
            sha256: None,
        });
    }
    // Also where no size is known or checked: what a parser would say of it is no help.
    if is_page {
        return Err(Hinted::new(
            format!("{shown} looks like a web page, and is not `{}`", spec.name),
            "open the address that it came from in a browser, and get the file again",
        )
        .into());
    }
    Ok(Fetched {
        name: spec.name.clone(),
        path: path.to_owned(),
        bytes,
        sha256: None,
    })
}

#[cfg(test)]
mod tests;
