//! The processes that do a job together; one process alone is a team too.
//!
//! All of them run the same command over a file system that they share. Process 0, the leader, decides: it takes the lock of the staging folder,
//! fetches, plans, publishes and commits. The others wait for what it tells them, run the job graph with it, and give back what they counted.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use prep_dataflow::Cluster;
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Cancelled, Hinted};
use crate::monitor::Monitor;

/// What a process says when its user stops it.
const STOPPED: &str = "it was stopped, as asked";
/// How long a file that another machine wrote may take to show here; network file systems cache names for some seconds.
const VISIBLE: Duration = Duration::from_secs(10);

/// The processes that do a job together. Calls that tell, hear and gather have to be made by all of them in the same order.
#[derive(Debug, Clone, Default)]
pub struct Team {
    cluster: Option<Cluster>,
}

impl Team {
    /// A process that has nobody to talk to.
    pub fn alone() -> Self {
        Self::default()
    }

    /// The processes of a cluster; without one, this process alone.
    pub fn of(cluster: Option<Cluster>) -> Self {
        Self {
            cluster: cluster.filter(|cluster| cluster.len() > 1),
        }
    }

    /// Lets the first process's monitor see the progress of all.
    pub(crate) fn show_to(&self, monitor: &Monitor) {
        if let Some(cluster) = &self.cluster {
            monitor.set_peers(Box::new(cluster.clone()));
        }
    }

    /// The cluster, where there is more than one process: for `prep_dataflow::Options::cluster`.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// Which process this is, from 0.
    pub fn index(&self) -> usize {
        self.cluster.as_ref().map_or(0, Cluster::index)
    }

    /// The number of processes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a team has at least this process")]
    pub fn len(&self) -> usize {
        self.cluster.as_ref().map_or(1, Cluster::len)
    }

    /// Whether this is the process that decides.
    pub fn is_leader(&self) -> bool {
        self.index() == 0
    }

    /// `process 2 (node2:7171)`.
    pub fn name(&self, process: usize) -> String {
        match &self.cluster {
            Some(cluster) => cluster.name(process),
            None => format!("process {process}"),
        }
    }

    /// On the leader: tells all others.
    ///
    /// # Errors
    /// A process was lost or failed.
    pub fn tell<T: Serialize>(&self, value: &T) -> Result<()> {
        if let Some(cluster) = &self.cluster {
            let text = serde_json::to_vec(value).context("could not write a message")?;
            cluster.broadcast(Some(text)).map_err(explain)?;
        }
        Ok(())
    }

    /// On the others: waits for what the leader tells, for as long as it lives.
    ///
    /// # Errors
    /// A process was lost or failed.
    pub fn hear<T: DeserializeOwned>(&self) -> Result<T> {
        let cluster = self.cluster.as_ref().context("there is nobody to hear")?;
        let text = cluster.broadcast(None).map_err(explain)?;
        serde_json::from_slice(&text).context("could not read a message of process 0")
    }

    /// Makes a decision on the leader, and gives it to all. Where the leader fails, all do.
    ///
    /// # Errors
    /// The leader's, or a process was lost or failed.
    pub fn decide<T: Serialize + DeserializeOwned>(&self, decide: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.is_leader() {
            return self.hear();
        }
        let value = decide().inspect_err(|error| self.fail(error))?;
        self.tell(&value)?;
        Ok(value)
    }

    /// Brings a value of each process to the leader, which gets them by process; the others get `None`.
    ///
    /// # Errors
    /// A process was lost or failed.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<Option<Vec<T>>> {
        let Some(cluster) = &self.cluster else {
            return Ok(Some(vec![value]));
        };
        let text = serde_json::to_vec(&value).context("could not write a message")?;
        let Some(texts) = cluster.gather(text).map_err(explain)? else {
            return Ok(None);
        };
        let mut values = Vec::new();
        for (process, text) in texts.iter().enumerate() {
            let value = serde_json::from_slice(text);
            values.push(value.with_context(|| format!("could not read a message of process {process}"))?);
        }
        Ok(Some(values))
    }

    /// The smallest of the numbers that the processes bring: of worker threads, for instance, which have to be as many everywhere.
    ///
    /// # Errors
    /// A process was lost or failed.
    pub fn least(&self, number: usize) -> Result<usize> {
        match self.gather(number)? {
            Some(numbers) => {
                let least = numbers.into_iter().min().unwrap_or(number);
                self.tell(&least)?;
                Ok(least)
            }
            None => self.hear(),
        }
    }

    /// Ends all processes with this error.
    pub fn fail(&self, error: &anyhow::Error) {
        if let Some(cluster) = &self.cluster {
            cluster.fail(&format!("{error:#}"));
        }
    }

    /// Ends all processes when the job of this one is stopped, and stops the job of this one when another has failed; for as long as the guard
    /// lives. [`Watch::settle`] ends it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn watch(&self, monitor: &Arc<Monitor>) -> Result<Watch> {
        let Some(cluster) = self.cluster.clone() else {
            return Ok(Watch::default());
        };
        let (over, by_cluster) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let run = {
            let (monitor, over, by_cluster) =
                (Arc::clone(monitor), Arc::clone(&over), Arc::clone(&by_cluster));
            let cluster = cluster.clone();
            move || {
                while !over.load(Ordering::Relaxed) {
                    if monitor.is_cancelled() {
                        cluster.fail(STOPPED);
                        break;
                    }
                    // Whatever this process is at (waiting for a lock, fetching) is in vain.
                    if let Some(failure) = cluster.failure() {
                        by_cluster.store(true, Ordering::SeqCst);
                        monitor.cancel_because(failure.to_string());
                        break;
                    }
                    std::thread::park_timeout(Duration::from_millis(50));
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("team watch".to_owned())
            .spawn(run)
            .context("could not start a thread")?;
        Ok(Watch {
            over,
            by_cluster,
            cluster: Some(cluster),
            thread: Some(thread),
        })
    }

    /// Makes sure that a folder is the same for all processes, and that nobody of an earlier run works in it any more. Call it on all
    /// processes; the leader when it has the folder to itself. Each process holds a lock in it until the guard goes.
    ///
    /// # Errors
    /// The folder is not on a file system that all share, by process; a process was lost or failed; the job was stopped.
    pub fn enter_folder(&self, folder: &Path, monitor: &Monitor) -> Result<InFolder> {
        let token_path = folder.join("team");
        if !self.is_leader() {
            let token: String = self.hear()?;
            let entered = self.follow_into(folder, &token_path, &token);
            let said = entered.as_ref().err().map(|error| format!("{error:#}"));
            self.gather(said)?;
            return entered;
        }
        let entered = self.lead_into(folder, &token_path, monitor);
        let token = entered.inspect_err(|error| self.fail(error))?;
        self.tell(&token)?;
        let said = self.gather(None::<String>)?.unwrap_or_default();
        if let Some((process, reason)) = said
            .into_iter()
            .enumerate()
            .find_map(|(process, said)| Some((process, said?)))
        {
            let error: anyhow::Error = Hinted::new(
                format!(
                    "{} does not share {} with process 0: {reason}",
                    self.name(process),
                    folder.display()
                ),
                "all processes of a cluster need the same data folder, on a file system that they share, under the same path",
            )
            .into();
            self.fail(&error);
            return Err(error);
        }
        Ok(InFolder { _lock: None })
    }

    /// On the leader, when it has the folder to itself: waits until nobody of an earlier run works there any more.
    ///
    /// # Errors
    /// The folder cannot be used, or the job was stopped.
    pub fn clear_folder(&self, folder: &Path, monitor: &Monitor) -> Result<()> {
        self.lead_into(folder, &folder.join("team"), monitor).map(drop)
    }

    /// Leaves a token that processes of an earlier run don't know, and waits until they have gone.
    fn lead_into(&self, folder: &Path, token_path: &Path, monitor: &Monitor) -> Result<String> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut bytes))
            .context("the system gives no random bytes")?;
        let token = hex::encode(bytes);
        let shown = token_path.display();
        let written = File::create(token_path).and_then(|mut file| {
            file.write_all(token.as_bytes())?;
            file.sync_all()
        });
        written.with_context(|| format!("could not write {shown}"))?;
        let mut told = false;
        for entry in
            std::fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))?
        {
            let path = entry
                .with_context(|| format!("could not list {}", folder.display()))?
                .path();
            if !path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("lock-"))
            {
                continue;
            }
            let lock = match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(lock) => lock,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    return Err(anyhow!(error).context(format!("could not open {}", path.display())));
                }
            };
            while !take(&lock, &path)? {
                monitor.check()?;
                if !told {
                    monitor.note(format!(
                        "a process of an earlier run still works here; waiting for {}",
                        path.display()
                    ));
                    told = true;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(token)
    }

    fn follow_into(&self, folder: &Path, token_path: &Path, token: &str) -> Result<InFolder> {
        let path = folder.join(format!("lock-{}", self.index()));
        let deadline = Instant::now() + VISIBLE;
        loop {
            let entered = self.try_to_follow(&path, token_path, token);
            match entered {
                Ok(Some(entered)) => return Ok(entered),
                Ok(None) | Err(_) if Instant::now() < deadline && !self.has_failed() => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                Ok(None) => return Err(anyhow!("it does not see there what process 0 has written")),
                Err(error) => return Err(error),
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.cluster
            .as_ref()
            .is_some_and(|cluster| cluster.failure().is_some())
    }

    fn try_to_follow(&self, path: &PathBuf, token_path: &Path, token: &str) -> Result<Option<InFolder>> {
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("could not open {}", path.display()))?;
        if !take(&lock, path)? {
            return Ok(None);
        }
        // Looked at under the lock: the next leader writes its token before it looks for locks.
        let there = std::fs::read_to_string(token_path)
            .with_context(|| format!("could not read {}", token_path.display()))?;
        Ok((there == token).then_some(InFolder { _lock: Some(lock) }))
    }
}

/// Whether the lock could be taken.
fn take(lock: &File, path: &Path) -> Result<bool> {
    match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(anyhow!(error).context(format!("could not lock {}", path.display()))),
    }
}

/// Ends a watch when it goes. See [`Team::watch`].
#[derive(Debug, Default)]
pub struct Watch {
    over: Arc<AtomicBool>,
    /// Whether the job was stopped because another process had failed.
    by_cluster: Arc<AtomicBool>,
    cluster: Option<Cluster>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Ends the watch, and says what a job's error comes from: a stop that the user asked for, or what went wrong in another process.
    ///
    /// # Errors
    /// The job's own, where neither is its cause; [`Cancelled`].
    pub fn settle<T>(mut self, result: Result<T>, monitor: &Monitor) -> Result<T> {
        self.end();
        result.map_err(|error| {
            if !self.by_cluster.load(Ordering::SeqCst) {
                // Whatever failed after a stop failed because of it.
                return if monitor.is_cancelled() {
                    Cancelled.into()
                } else {
                    error
                };
            }
            match self.cluster.as_ref().and_then(Cluster::failure) {
                Some(failure) if crate::error::find::<Cancelled>(&error).is_some() => explain(failure),
                _ => error,
            }
        })
    }

    fn end(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

/// Holds this process's lock in a folder. See [`Team::enter_folder`].
#[derive(Debug)]
pub struct InFolder {
    _lock: Option<File>,
}

/// An error of the cluster, with advice, and in the words of jobs.
pub(crate) fn explain(mut error: prep_dataflow::Error) -> anyhow::Error {
    if let prep_dataflow::Error::Remote { cause, .. } = &mut error
        && (*cause == prep_dataflow::Error::Cancelled.to_string() || cause.ends_with(&Cancelled.to_string()))
    {
        // Its graph, or a stage of it, was faster to say so than its team.
        STOPPED.clone_into(cause);
    }
    match &error {
        prep_dataflow::Error::Lost { .. } => Hinted::new(
            error.to_string(),
            "the same command, given again on all processes, goes on from what is finished",
        )
        .into(),
        _ => anyhow!(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_alone_is_a_team() {
        let team = Team::alone();
        assert_eq!((team.index(), team.len(), team.is_leader()), (0, 1, true));
        team.tell(&1).unwrap();
        assert_eq!(team.decide(|| Ok(5)).unwrap(), 5);
        assert_eq!(team.gather("a".to_owned()).unwrap().unwrap(), ["a"]);
        assert_eq!(team.least(3).unwrap(), 3);
        let folder = tempfile::tempdir().unwrap();
        team.enter_folder(folder.path(), &Monitor::new()).unwrap();
    }

    #[test]
    fn a_stop_elsewhere_is_told_in_one_way() {
        let remote = |cause: &str| prep_dataflow::Error::Remote {
            process: 1,
            address: "a:1".into(),
            cause: cause.into(),
        };
        let of_stage = format!("stage `read` failed: {Cancelled}");
        for cause in ["the job was cancelled", of_stage.as_str()] {
            let told = explain(remote(cause)).to_string();
            assert_eq!(told, "process 1 (a:1) failed: it was stopped, as asked");
        }
        assert_eq!(explain(remote("x")).to_string(), "process 1 (a:1) failed: x");
    }

    #[test]
    fn a_leader_waits_for_processes_of_an_earlier_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock-1");
        let left = File::create(&path).unwrap();
        assert!(take(&left, &path).unwrap());
        let monitor = Monitor::new();
        std::thread::scope(|scope| {
            let entering = scope.spawn(|| Team::alone().enter_folder(folder.path(), &monitor).map(drop));
            while monitor.take_notes().is_empty() {
                std::thread::yield_now();
            }
            drop(left);
            entering.join().unwrap().unwrap();
        });
        // And it does not wait when the job is stopped.
        let left = File::create(&path).unwrap();
        assert!(take(&left, &path).unwrap());
        monitor.cancel();
        assert!(Team::alone().enter_folder(folder.path(), &monitor).is_err());
    }
}
