//! What the graphs of a conversion share, and running one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use prep_dataflow::{Cancel, Error, Options, Progress};
use prep_formats::array_record::WriteOptions;

use crate::convert::crew::Work;
use crate::convert::ledger::Ledger;
use crate::convert::plan::Plan;
use crate::convert::shard::ShardSummary;
use crate::convert::transform::Transform;
use crate::error::{Cancelled, Carried};
use crate::journal::Journal;
use crate::monitor::{Meter, Monitor};
use crate::team::Team;

/// Blocks of records: large enough that handing one over costs nothing, small enough for the processor's cache.
const MOST_BLOCK_BYTES: u64 = 1 << 20;
const LEAST_BLOCK_BYTES: u64 = 64 << 10;

/// A conversion under way in this process.
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) options: WriteOptions,
    pub(crate) transform: Option<Arc<Transform>>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) monitor: Arc<Monitor>,
    /// Counts records that are written, and bytes that are read back.
    pub(crate) meter: Arc<Meter>,
    pub(crate) verify_meter: Arc<Meter>,
    pub(crate) journal: Arc<Journal<ShardSummary>>,
    /// The folder of the shards.
    pub(crate) out: PathBuf,
    pub(crate) spill: PathBuf,
    /// Whether shards are hashed for a catalog or report, and records for a fingerprint.
    pub(crate) sha256: bool,
    pub(crate) fingerprint: bool,
    pub(crate) block_bytes: usize,
    pub(crate) workers: usize,
    pub(crate) memory_bytes: u64,
    /// The processes that do it together.
    pub(crate) team: Team,
    /// What the graph held at most, and spilled.
    pub(crate) peak_held_bytes: AtomicU64,
    pub(crate) spilled_bytes: AtomicU64,
}

/// Bytes of a block within a memory budget: all drivers and helpers together hold two blocks a worker, each before and after encoding.
pub(crate) fn block_bytes(memory_bytes: u64, workers: usize) -> usize {
    (memory_bytes / (16 * workers as u64)).clamp(LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES) as usize
}

impl Job {
    /// What the crew does to each block.
    pub(crate) fn work(&self) -> Result<Work> {
        Ok(Work {
            options: self.options.clone(),
            transform: self
                .transform
                .clone()
                .filter(|transform| !transform.is_identity()),
            names: self.plan.inputs.iter().map(|input| input.shown.clone()).collect(),
            fingerprint: self.fingerprint,
        })
    }

    /// Names of features seen so far; empty where none are looked at.
    pub(crate) fn names(&self) -> Vec<String> {
        self.transform
            .as_ref()
            .map_or(Vec::new(), |transform| transform.names())
    }

    /// Runs a graph to its end.
    pub(crate) fn run_graph<B>(&self, graph: B) -> Result<()>
    where
        B: for<'scope> Fn(&prep_dataflow::Pipeline<'scope>) + Send + Sync + 'static,
    {
        let (cancel, progress) = (Cancel::new(), Progress::new());
        let mut options = Options::default()
            .workers(self.workers)
            .memory_bytes(usize::try_from(self.memory_bytes).unwrap_or(usize::MAX))
            .spill_folder(&self.spill)
            .progress(progress.clone())
            .cancel(cancel.clone())
            // A shard is one item: nothing moves while it is written, which may take hours.
            .stall(Duration::from_secs(u64::from(u32::MAX)));
        if let Some(cluster) = self.team.cluster() {
            options = options.cluster(cluster.clone());
        }
        if let Some(trace) = self.monitor.trace() {
            options = options.trace(trace.clone());
        }
        let watched = self.monitor.watch(&progress);
        // The graph has its own switch; this thread turns it when the job's is turned.
        let over = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (monitor, over) = (Arc::clone(&self.monitor), Arc::clone(&over));
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    if monitor.is_cancelled() {
                        cancel.cancel();
                        break;
                    }
                    std::thread::park_timeout(Duration::from_millis(50));
                }
            })
        };
        let result = prep_dataflow::run(options, graph);
        over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        let _ = watcher.join();
        drop(watched);
        self.peak_held_bytes
            .fetch_max(progress.peak_held_bytes(), Ordering::Relaxed);
        self.spilled_bytes
            .fetch_add(progress.spilled_bytes(), Ordering::Relaxed);
        result.map(|_| ()).map_err(translate)
    }

    /// Processes of the cluster, and which one this is.
    pub(crate) fn num_processes(&self) -> usize {
        self.team.len()
    }

    pub(crate) fn process_index(&self) -> usize {
        self.team.index()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.num_processes() > 1
    }
}

/// The errors of the graph in the words of a conversion.
fn translate(error: Error) -> anyhow::Error {
    match error {
        Error::Stage { stage, source } => match source.downcast::<Carried>() {
            Ok(carried) => carried.0,
            Err(other) => anyhow!(other).context(format!("could not {stage}")),
        },
        Error::Cancelled => Cancelled.into(),
        other => crate::team::explain(other),
    }
}
