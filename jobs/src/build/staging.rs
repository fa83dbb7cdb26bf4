//! The folder in which a build lives until it is published.
//!
//! ```text
//! DATA_DIR/.staging/NAME[/CONFIG]/VERSION/
//!     lock             held by the process that works here
//!     job.json         what is being built; staging of another job is thrown away
//!     journal.jsonl    what is finished; journal-1.jsonl and so on by the other processes of a cluster
//!     team, lock-1     the token of a run, and locks of the other processes (`team`)
//!     downloads/       sources
//!     kept/            what the builder has made of them before they are read
//!     spill/           sorted runs that did not fit into memory
//!     out/             the future version folder
//! ```

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;

use crate::build::journal::{self, Entry, Journal};
use crate::monitor::Monitor;

/// Name of the folder in a data folder that holds all staging.
pub(crate) const STAGING_FOLDER: &str = ".staging";

/// How often a folder may vanish under our hands before that is an error.
const MOST_VANISHED: u32 = 1000;

/// A staging folder, locked by this process.
#[derive(Debug)]
pub(crate) struct Staging {
    root: PathBuf,
    /// `DATA_DIR/.staging`, up to which empty folders are removed at the end.
    top: PathBuf,
    /// Held by the first process of a job; the others have locks of their own.
    _lock: Option<File>,
}

impl Staging {
    /// Makes the folder and takes its lock; waits while another process has it.
    ///
    /// `relative` is `NAME[/CONFIG]/VERSION`.
    pub(crate) fn enter(data_dir: &Path, relative: &Path, monitor: &Monitor) -> Result<Self> {
        let entered = Self::enter_if(data_dir, relative, monitor, true)?;
        entered.context("the staging folder is in use, though it was waited for")
    }

    /// The same without waiting: `None` where another process has the lock.
    pub(crate) fn try_enter(data_dir: &Path, relative: &Path, monitor: &Monitor) -> Result<Option<Self>> {
        Self::enter_if(data_dir, relative, monitor, false)
    }

    fn enter_if(data_dir: &Path, relative: &Path, monitor: &Monitor, waits: bool) -> Result<Option<Self>> {
        let top = data_dir.join(STAGING_FOLDER);
        let root = top.join(relative);
        let path = root.join("lock");
        let mut told = false;
        // Folders that vanished between two steps; in a place like `/proc` they always do.
        let mut vanished = 0;
        loop {
            monitor.check()?;
            match std::fs::create_dir_all(&root) {
                Ok(()) => {}
                // Another process has just finished, and removed the folders above.
                Err(error) if error.kind() == ErrorKind::NotFound && vanished < MOST_VANISHED => {
                    vanished += 1;
                    continue;
                }
                Err(error) => {
                    let message = format!("could not make the folder {}", root.display());
                    return Err(anyhow::Error::new(error).context(message));
                }
            }
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            let lock = match opened {
                Ok(lock) => lock,
                // Another process has just finished and removed the folder.
                Err(error) if error.kind() == ErrorKind::NotFound && vanished < MOST_VANISHED => {
                    vanished += 1;
                    continue;
                }
                Err(error) => {
                    return Err(
                        anyhow::Error::new(error).context(format!("could not open {}", path.display()))
                    );
                }
            };
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if !waits => return Ok(None),
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    if !told {
                        monitor.note(format!(
                            "another process is building this; waiting for {}",
                            path.display()
                        ));
                        told = true;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Err(error) => {
                    return Err(
                        anyhow::Error::new(error).context(format!("could not lock {}", path.display()))
                    );
                }
            }
            // The lock of a folder that was removed meanwhile locks nothing.
            let same = match (lock.metadata(), std::fs::metadata(&path)) {
                (Ok(ours), Ok(there)) => ours.ino() == there.ino() && ours.dev() == there.dev(),
                _ => false,
            };
            if same {
                return Ok(Some(Self {
                    root,
                    top,
                    _lock: Some(lock),
                }));
            }
        }
    }

    /// The folder as other processes than the first use it, which has the lock.
    pub(crate) fn follow(data_dir: &Path, relative: &Path) -> Self {
        let top = data_dir.join(STAGING_FOLDER);
        Self {
            root: top.join(relative),
            top,
            _lock: None,
        }
    }

    /// Makes the folder that of a job: what another job has left is thrown away. Whether there was such.
    pub(crate) fn take_for(&self, job: &str) -> Result<bool> {
        let path = self.root.join("job.json");
        let there = std::fs::read_to_string(&path).ok();
        if there.as_deref() == Some(job) {
            return Ok(false);
        }
        self.discard()?;
        File::create(&path)
            .and_then(|mut file| {
                std::io::Write::write_all(&mut file, job.as_bytes())?;
                file.sync_all()
            })
            .with_context(|| format!("could not write {}", path.display()))?;
        Ok(there.is_some())
    }

    /// Prepares for a job: what an earlier run of the same job finished is kept, anything else is thrown away. Gives the
    /// journal and what it holds.
    pub(crate) fn prepare(&self, job: &str) -> Result<(Journal, Vec<Entry>)> {
        self.take_for(job)?;
        for folder in [self.downloads(), self.spill(), self.out(), self.statistics()] {
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("could not make the folder {}", folder.display()))?;
        }
        // Spilled runs have no names; what lies there is a stranger's or a bug's.
        sync_folder(&self.root)?;
        // Those of the first process come last, as they are the newest where a shard was written twice.
        let mut entries = Journal::read_all(&self.root)?;
        let (journal, own) = self.journal(0)?;
        entries.extend(own);
        Ok((journal, entries))
    }

    /// The journal of a process, and what it holds.
    pub(crate) fn journal(&self, process: usize) -> Result<(Journal, Vec<Entry>)> {
        Journal::open(&self.root.join(journal::file_name(process)))
    }

    /// Whether nothing here is of use to the next run: no work was finished, and nothing was downloaded.
    pub(crate) fn holds_nothing(&self) -> bool {
        let mut journals = crate::journal::paths(&self.root).unwrap_or_default();
        journals.push(self.root.join(journal::file_name(0)));
        let is_unused = journals
            .iter()
            .all(|journal| std::fs::metadata(journal).map_or(true, |journal| journal.len() == 0));
        let is_bare =
            |folder: PathBuf| std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
        is_unused && is_bare(self.downloads()) && is_bare(self.kept())
    }

    /// Throws away everything but the lock.
    pub(crate) fn discard(&self) -> Result<()> {
        let entries = std::fs::read_dir(&self.root)
            .with_context(|| format!("could not list {}", self.root.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("could not list {}", self.root.display()))?;
            let path = entry.path();
            if entry.file_name() == "lock" {
                continue;
            }
            let removed = if path.is_dir() && !path.is_symlink() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.with_context(|| format!("could not remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Throws away what was written, but not what was downloaded.
    pub(crate) fn discard_output(&self) -> Result<()> {
        let (out, kept) = (self.out(), self.kept());
        let shown = out.display();
        if kept.exists() {
            std::fs::remove_dir_all(&kept).with_context(|| format!("could not remove {}", kept.display()))?;
        }
        for path in crate::journal::paths(&self.root)? {
            std::fs::remove_file(&path).with_context(|| format!("could not remove {}", path.display()))?;
        }
        std::fs::remove_dir_all(&out)
            .or_else(|error| {
                if error.kind() == ErrorKind::NotFound {
                    Ok(())
                } else {
                    Err(error)
                }
            })
            .and_then(|()| std::fs::create_dir_all(&out))
            .with_context(|| format!("could not empty {shown}"))
    }

    /// Removes the staging folder, and the folders above it that are empty then.
    pub(crate) fn remove(self) -> Result<()> {
        self.discard()?;
        let lock = self.root.join("lock");
        std::fs::remove_file(&lock).with_context(|| format!("could not remove {}", lock.display()))?;
        // From here on another process may have moved in: then the folder is not empty, and its own.
        match std::fs::remove_dir(&self.root) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {
                return Ok(());
            }
            Err(error) => {
                let message = format!("could not remove {}", self.root.display());
                return Err(anyhow::Error::new(error).context(message));
            }
        }
        let mut folder = self.root.as_path();
        while let Some(parent) = folder.parent().filter(|_| folder != self.top) {
            // Not empty: somebody else's staging.
            if std::fs::remove_dir(parent).is_err() {
                break;
            }
            folder = parent;
        }
        Ok(())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn downloads(&self) -> PathBuf {
        self.root.join("downloads")
    }

    /// What the builder has made of its sources: see [`Builder::keep_in`](crate::builder::Builder::keep_in).
    pub(crate) fn kept(&self) -> PathBuf {
        self.root.join("kept")
    }

    pub(crate) fn spill(&self) -> PathBuf {
        self.root.join("spill")
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.root.join("out")
    }

    /// Statistics of the shards that were written.
    pub(crate) fn statistics(&self) -> PathBuf {
        self.root.join("statistics")
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("could not sync {}", folder.display()))
}

/// Removes the files of a folder whose names `goes` picks.
pub(crate) fn remove_files(folder: &Path, goes: impl Fn(&str) -> bool) -> Result<()> {
    let listing = || format!("could not list {}", folder.display());
    for entry in std::fs::read_dir(folder).with_context(listing)? {
        let entry = entry.with_context(listing)?;
        if goes(&entry.file_name().to_string_lossy()) {
            std::fs::remove_file(entry.path())
                .with_context(|| format!("could not remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::error::Cancelled;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn staging_of_another_job_is_thrown_away() {
        let data = tempfile::tempdir().unwrap();
        let monitor = Monitor::new();
        let staging = Staging::enter(data.path(), Path::new("a/1.0.0"), &monitor).unwrap();
        staging.prepare("one").unwrap();
        std::fs::write(staging.downloads().join("x"), "x").unwrap();
        staging.prepare("one").unwrap();
        assert_eq!(names(&staging.downloads()), ["x"]);
        staging.prepare("two").unwrap();
        assert!(names(&staging.downloads()).is_empty());
        assert_eq!(
            names(staging.root()),
            [
                "downloads",
                "job.json",
                "journal.jsonl",
                "lock",
                "out",
                "spill",
                "statistics"
            ]
        );
    }

    #[test]
    fn what_was_finished_or_downloaded_is_worth_keeping() {
        let data = tempfile::tempdir().unwrap();
        let staging = Staging::enter(data.path(), Path::new("a/1.0.0"), &Monitor::new()).unwrap();
        assert!(staging.holds_nothing());
        staging.prepare("one").unwrap();
        std::fs::write(staging.out().join("half a shard"), "x").unwrap();
        assert!(staging.holds_nothing());
        let part = staging.downloads().join("x.part");
        std::fs::write(&part, "x").unwrap();
        assert!(!staging.holds_nothing());
        std::fs::remove_file(part).unwrap();
        let (journal, _) = staging.prepare("one").unwrap();
        let fetched = Entry::Fetched {
            name: "x".into(),
            bytes: 1,
            sha256: String::new(),
        };
        journal.add(&fetched).unwrap();
        assert!(!staging.holds_nothing());
    }

    #[test]
    fn removal_leaves_nothing_but_what_others_have() {
        let data = tempfile::tempdir().unwrap();
        let monitor = Monitor::new();
        let one = Staging::enter(data.path(), Path::new("a/config/1.0.0"), &monitor).unwrap();
        let two = Staging::enter(data.path(), Path::new("b/1.0.0"), &monitor).unwrap();
        one.remove().unwrap();
        assert_eq!(names(&data.path().join(STAGING_FOLDER)), ["b"]);
        two.remove().unwrap();
        assert!(names(data.path()).is_empty());
    }

    #[test]
    fn a_second_process_waits_and_then_works_in_a_new_folder() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().to_owned();
        let monitor = Monitor::new();
        let first = Staging::enter(&path, Path::new("a/1.0.0"), &monitor).unwrap();
        let waiting = Monitor::new();
        let second = std::thread::spawn({
            let (path, waiting) = (path.clone(), std::sync::Arc::clone(&waiting));
            move || Staging::enter(&path, Path::new("a/1.0.0"), &waiting)
        });
        while waiting.take_notes().is_empty() {
            std::thread::yield_now();
        }
        first.remove().unwrap();
        let second = second.join().unwrap().unwrap();
        assert_eq!(names(second.root()), ["lock"]);
    }

    #[test]
    fn waiting_ends_when_the_job_is_stopped() {
        let data = tempfile::tempdir().unwrap();
        let monitor = Monitor::new();
        let _first = Staging::enter(data.path(), Path::new("a/1.0.0"), &monitor).unwrap();
        let waiting = Monitor::new();
        waiting.cancel();
        let error = Staging::enter(data.path(), Path::new("a/1.0.0"), &waiting).unwrap_err();
        assert!(error.is::<Cancelled>());
    }

    #[test]
    fn many_come_and_go_without_getting_in_each_others_way() {
        let data = tempfile::tempdir().unwrap();
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..12 {
                        let staging =
                            Staging::enter(data.path(), Path::new("a/1.0.0"), &Monitor::new()).unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        staging.prepare("job").unwrap();
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        staging.remove().unwrap();
                    }
                });
            }
        });
        assert!(names(data.path()).is_empty());
    }

    #[test]
    fn a_place_where_nothing_can_be_made_is_an_error() {
        let error = Staging::enter(Path::new("/proc"), Path::new("a/1.0.0"), &Monitor::new()).unwrap_err();
        assert!(error.to_string().contains("/proc/.staging"), "{error}");
    }
}
