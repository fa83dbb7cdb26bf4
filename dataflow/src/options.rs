//! How many workers, how much memory, and where to put what doesn't fit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::spill::SpillCompression;
use crate::trace::Trace;
use crate::{Cancel, Cluster, ClusterSpec, Error, Progress};

/// Options of a job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    pub(crate) workers: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) spill_folder: PathBuf,
    pub(crate) spill_compression: SpillCompression,
    pub(crate) progress: Progress,
    pub(crate) trace: Option<Trace>,
    pub(crate) cancel: Cancel,
    pub(crate) stall: Duration,
    pub(crate) serialise: bool,
    pub(crate) cluster: Option<Cluster>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 1,
            memory_bytes: 256 << 20,
            spill_folder: std::env::temp_dir(),
            spill_compression: SpillCompression::default(),
            progress: Progress::default(),
            trace: None,
            cancel: Cancel::default(),
            stall: Duration::from_secs(600),
            serialise: false,
            cluster: None,
        }
    }
}

impl Options {
    /// Worker threads, at least 1; more than the cores there are only costs. Default 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// What the job may hold, in bytes, over all workers of this process; the crate's page on memory has the formula. Default
    /// 256 MiB; less than 1 MiB a worker is taken as that.
    pub fn memory_bytes(mut self, memory_bytes: usize) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Folder for sorted runs that don't fit in memory. It must exist; the files have no names there, so that none is left
    /// however the process ends. Default: the system's folder for temporary files.
    pub fn spill_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.spill_folder = folder.as_ref().to_owned();
        self
    }

    /// Whether sorted runs are compressed (zstd, its fastest level) before they are written. Default: where that saves time or room;
    /// pictures don't shrink, and a fast disk takes text faster than it is compressed.
    pub fn spill_compression(mut self, compression: SpillCompression) -> Self {
        self.spill_compression = compression;
        self
    }

    /// The handle through which another thread can watch the job. Default: one that only the report shows.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Where to note what ran when: operators, and the threads beside them. Default: nowhere.
    pub fn trace(mut self, trace: Trace) -> Self {
        self.trace = Some(trace);
        self
    }

    /// The handle through which another thread can end the job. Default: none.
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// How long nothing may move before the job is given up as stuck. Default 10 minutes, longer than any request to a store
    /// should take.
    pub fn stall(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// The processes that run the job together: each of them has to call [`run`](crate::run) with the same graph and as many workers. All
    /// of them take the smallest of their budgets. Default: this process alone.
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Joins the cluster that the environment names, where it names one: `PREP_CLUSTER_HOSTS` (`host:port,host:port`),
    /// `PREP_CLUSTER_PROCESS` (which of these this process is, from 0) and `PREP_CLUSTER_SECRET`. So a program is a cluster's by being started
    /// once for each host, with the same arguments.
    ///
    /// # Errors
    ///
    /// [`Error::Cluster`] where a variable is missing or isn't what it should be, or the others don't come up: see [`Cluster::connect`].
    pub fn cluster_from_env(self) -> Result<Self, Error> {
        let Ok(hosts) = std::env::var("PREP_CLUSTER_HOSTS") else {
            return Ok(self);
        };
        let variable = |name: &str| {
            let missing = |_| Error::Cluster(format!("PREP_CLUSTER_HOSTS is set, and {name} isn't"));
            std::env::var(name).map_err(missing)
        };
        let process = variable("PREP_CLUSTER_PROCESS")?;
        let process = process.parse().map_err(|_| {
            Error::Cluster(format!(
                "PREP_CLUSTER_PROCESS is `{process}`, not a number from 0"
            ))
        })?;
        let spec = ClusterSpec::new(hosts.split(','), process, variable("PREP_CLUSTER_SECRET")?);
        let arguments = std::env::args_os().skip(1);
        let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
        Ok(self.cluster(Cluster::connect(spec.arguments(arguments))?))
    }

    /// Treats each worker as if it were a process of its own: what moves between workers is serialised. For tests of that.
    #[doc(hidden)]
    pub fn serialise(mut self) -> Self {
        self.serialise = true;
        self
    }
}

/// How [`Options::memory_bytes`] is dealt out. See the crate's page on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// One sort arena; a worker has two, so that one fills while the other is spilled.
    pub(crate) arena_bytes: usize,
    /// What a worker's source emits in one epoch.
    pub(crate) epoch_bytes: usize,
    /// Items that move together between the stages of a worker.
    pub(crate) batch_bytes: usize,
    /// What a source thread may have read ahead of its worker.
    pub(crate) read_ahead_bytes: usize,
    /// Sorted records that go to a shard's writer together, or are let into the graph in one epoch.
    pub(crate) replay_bytes: usize,
    /// One table of small data.
    pub(crate) table_bytes: usize,
    /// One block of a spill file.
    pub(crate) block_bytes: usize,
    /// How many sorted runs are merged at once.
    pub(crate) fan_in: usize,
}

/// Epochs in flight. From the timely study: 8 to 16 hide the round trip of an acknowledgement.
pub(crate) const WINDOW: u64 = 8;

/// What a graph asks memory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    pub(crate) sources: usize,
    pub(crate) sorts: usize,
    /// Stages that read sorted records and let them into the graph again.
    pub(crate) replays: usize,
    /// Tables of small data.
    pub(crate) tables: usize,
}

impl Shares {
    pub(crate) fn new(memory_bytes: usize, workers: usize, demand: Demand) -> Self {
        let (sources, sorts, replays) = (demand.sources.max(1), demand.sorts.max(1), demand.replays.max(1));
        let worker = (memory_bytes / workers).max(1 << 20);
        let arena_bytes = worker / 4 / sorts;
        let epochs = worker / 8 / WINDOW as usize;
        let block_bytes = (arena_bytes / 128).clamp(4 << 10, 256 << 10);
        // A source on its own stands still while sorted records are read; several don't.
        let read_ahead = if sources + replays > 2 {
            worker / 64
        } else {
            worker / 32
        };
        let epoch_bytes = (epochs / sources).clamp(16 << 10, 4 << 20);
        Self {
            arena_bytes,
            epoch_bytes,
            batch_bytes: (epoch_bytes / 8).clamp(4 << 10, 64 << 10),
            read_ahead_bytes: (read_ahead / sources.max(replays)).clamp(32 << 10, 8 << 20),
            table_bytes: worker / 8 / demand.tables.max(1),
            replay_bytes: (epochs / replays).clamp(16 << 10, 1 << 20),
            block_bytes,
            // While runs are merged, both arenas are empty.
            fan_in: (arena_bytes / block_bytes * 3 / 2).clamp(4, 512),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fit_into_the_budget() {
        for workers in [1, 2, 3, 4, 16] {
            for memory in [16usize << 20, 64 << 20, 1 << 30, 64 << 30] {
                for (sources, sorts, replays) in [(1, 1, 1), (2, 1, 1), (1, 2, 2), (3, 3, 4)] {
                    let memory = memory * sources * sorts;
                    let demand = Demand {
                        sources,
                        sorts,
                        replays,
                        tables: sorts,
                    };
                    let shares = Shares::new(memory, workers, demand);
                    let window = 2 * WINDOW as usize;
                    let arenas = 2 * sorts * shares.arena_bytes;
                    let first = sources * (window * shares.epoch_bytes + 2 * shares.read_ahead_bytes);
                    let second = replays * (window * shares.replay_bytes + shares.read_ahead_bytes);
                    let arenas = arenas + sorts * shares.table_bytes;
                    let budget = memory.max(workers << 20);
                    let text = format!("{workers} workers, {memory} bytes, {demand:?}: {shares:?}");
                    assert!(workers * (arenas + first) <= budget, "{text}");
                    assert!(workers * (arenas + second) <= budget, "{text}");
                    assert!(
                        (shares.fan_in + 3) * shares.block_bytes <= 2 * shares.arena_bytes,
                        "{text}"
                    );
                }
            }
        }
    }
}
