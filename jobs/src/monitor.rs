//! Watching and stopping a job from another thread.
//!
//! A job tells its [`Monitor`] of stages and of what happens on the way; whoever shows the job looks at it. In a cluster each
//! process has one, and sends [`Snapshot`]s of it to the first, which [`merge`]s them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use prep_dataflow::trace::{Span, Trace};
use prep_dataflow::{Cluster, Progress, StageProgress};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Cancelled;
use crate::resources;

/// Inputs whose skipped records are counted one by one; those of further inputs are counted together.
const MOST_INPUTS: usize = 1000;
/// What further inputs are called.
const OTHER_INPUTS: &str = "other inputs";

/// A handle on a running job: its stages, its notes, and a switch to stop it. Share it by [`Arc`].
#[derive(Debug, Default)]
pub struct Monitor {
    cancelled: Arc<AtomicBool>,
    /// Why it was stopped, where nobody asked for that.
    cause: OnceLock<String>,
    meters: Mutex<Vec<Arc<Meter>>>,
    notes: Mutex<Vec<Note>>,
    /// Those that run, and since when.
    graphs: Mutex<Vec<(Progress, Instant)>>,
    trace: OnceLock<Trace>,
    facts: Mutex<Facts>,
    /// Retries of reading objects, by this process, before the job.
    retries_before: u64,
    peers: OnceLock<Box<dyn Peers>>,
}

/// The other processes of a cluster, as a monitor sees them. See [`Monitor::set_peers`].
pub trait Peers: Send + Sync + std::fmt::Debug {
    /// Makes this process's snapshot known; a later one takes the place of an earlier one.
    fn publish(&self, snapshot: Vec<u8>);

    /// The latest snapshots of the other processes, where this one is the first; else none.
    fn latest(&self) -> Vec<Vec<u8>>;
}

impl Peers for Cluster {
    fn publish(&self, snapshot: Vec<u8>) {
        self.report(snapshot);
    }

    fn latest(&self) -> Vec<Vec<u8>> {
        // Of the first process, which is this one where there are any, more is known here.
        self.reports().into_iter().skip(1).flatten().collect()
    }
}

/// What a meter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Examples.
    Examples,
    /// Records.
    Records,
    /// Files.
    Files,
}

impl Unit {
    /// `bytes`, `examples`, `records` or `files`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Examples => "examples",
            Self::Records => "records",
            Self::Files => "files",
        }
    }
}

/// How far one stage is. Counting is one atomic addition.
#[derive(Debug)]
pub struct Meter {
    name: String,
    unit: Unit,
    total: AtomicU64,
    done: AtomicU64,
    started: Instant,
    /// Nanoseconds after the start; 0 while it runs.
    finished: AtomicU64,
    /// What the job graph says of the stage of this name.
    graph: Mutex<Option<StageProgress>>,
    /// Whether only the job graph knows of it.
    of_graph: bool,
    /// What it is a part of: what is done here is done there too.
    whole: Option<Arc<Meter>>,
}

impl Meter {
    fn new(name: String, unit: Unit, total: Option<u64>) -> Self {
        Self {
            name,
            unit,
            total: AtomicU64::new(total.unwrap_or(0)),
            done: AtomicU64::new(0),
            started: Instant::now(),
            finished: AtomicU64::new(0),
            graph: Mutex::default(),
            of_graph: false,
            whole: None,
        }
    }

    /// A meter that no one sees, of a part of what another one shows.
    pub fn part_of(whole: &Arc<Self>) -> Arc<Self> {
        let mut part = Self::new(whole.name.clone(), whole.unit, None);
        part.whole = Some(Arc::clone(whole));
        Arc::new(part)
    }

    /// Adds to what is done.
    pub fn add(&self, amount: u64) {
        self.done.fetch_add(amount, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.add(amount);
        }
    }

    /// Sets what is done.
    pub fn set(&self, done: u64) {
        let before = self.done.swap(done, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.done.fetch_add(done.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Sets how much there is in all.
    pub fn set_total(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// Ends the stage.
    pub fn finish(&self) {
        let nanoseconds = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let _ = self
            .finished
            .compare_exchange(0, nanoseconds.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How far it is now.
    pub fn snapshot(&self) -> Stage {
        let finished = self.finished.load(Ordering::Relaxed);
        let total = self.total.load(Ordering::Relaxed);
        let graph = lock(&self.graph);
        let of_graph = |of: fn(&StageProgress) -> u64| graph.as_ref().map(of);
        Stage {
            name: self.name.clone(),
            unit: self.unit,
            done: self.done.load(Ordering::Relaxed),
            total: (total > 0).then_some(total),
            elapsed: match finished {
                0 => self.started.elapsed(),
                nanoseconds => Duration::from_nanos(nanoseconds),
            },
            finished: finished > 0,
            records: of_graph(|stage| stage.records),
            bytes: of_graph(|stage| stage.bytes),
            workers: graph.as_ref().map_or_else(Vec::new, |stage| {
                let share = |worker: &prep_dataflow::WorkerProgress| Share {
                    worker: worker.worker,
                    records: worker.records,
                    bytes: worker.bytes,
                    busy_seconds: worker.busy.as_secs_f64(),
                };
                stage.workers.iter().map(share).collect()
            }),
        }
    }
}

/// How far a stage was at some moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// What it does: `fetch cifar-10-binary.tar.gz`.
    pub name: String,
    /// What is counted.
    pub unit: Unit,
    /// How much is done.
    pub done: u64,
    /// How much there is, where it is known.
    pub total: Option<u64>,
    /// Time since it began, or that it took.
    pub elapsed: Duration,
    /// Whether it is over.
    pub finished: bool,
    /// Records that left it, where it is a stage of the job graph.
    pub records: Option<u64>,
    /// Their bytes.
    pub bytes: Option<u64>,
    /// What each worker did of it, where it is a stage of the job graph.
    pub workers: Vec<Share>,
}

/// One worker's part of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The worker, from 0, over all processes.
    pub worker: usize,
    /// Records that left the stage there.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long the worker, and the threads beside it, worked on the stage.
    pub busy_seconds: f64,
}

impl Stage {
    /// A stage of this name that has just begun.
    pub fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self {
            name: name.into(),
            unit,
            done: 0,
            total: None,
            elapsed: Duration::ZERO,
            finished: false,
            records: None,
            bytes: None,
            workers: Vec::new(),
        }
    }

    /// How long all workers together were busy with it, where the job graph counts that.
    pub fn busy_seconds(&self) -> Option<f64> {
        let busy = self.workers.iter().map(|share| share.busy_seconds).sum();
        (!self.workers.is_empty()).then_some(busy)
    }

    /// The least and the most busy worker's time, where there are several.
    pub fn skew(&self) -> Option<(f64, f64)> {
        let busy = self.workers.iter().map(|share| share.busy_seconds);
        (self.workers.len() > 1).then(|| busy.fold((f64::MAX, 0.0), |(a, b), s| (s.min(a), s.max(b))))
    }
}

/// What happened on the way, beside the stages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Requests that were tried again.
    pub retries: u64,
    /// Damaged records that were left out.
    pub skipped: u64,
    /// The same by split and input; inputs beyond the first thousand together.
    pub skipped_by: BTreeMap<String, BTreeMap<String, u64>>,
    /// Shards that this run wrote.
    pub shards_written: u64,
    /// Shards that an earlier, interrupted run had finished.
    pub shards_found: u64,
    /// Sources that an earlier run had fetched.
    pub sources_found: u64,
    /// Records that this run took from sources: each time that they were read, for their types or for what is made of them.
    pub records_read: u64,
    /// Records that this run wrote.
    pub records_written: u64,
    /// Shards that were taken over from an earlier version, and the records in them.
    pub shards_taken_over: u64,
    /// See `shards_taken_over`.
    pub records_taken_over: u64,
    /// Bytes of all records that this run wrote, and of the files that hold them.
    pub payload_bytes: u64,
    /// Bytes of the files that this run wrote.
    pub file_bytes: u64,
    /// The shard that took longest.
    pub slowest_shard: Option<ShardTime>,
    /// Most bytes that the job graph held at a time; in a cluster the most of any process.
    pub peak_held_bytes: u64,
    /// Bytes that did not fit into memory.
    pub spilled_bytes: u64,
    /// Most memory that the process had at a time; in a cluster the most of any process.
    pub peak_resident_bytes: u64,
}

/// How long a shard took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardTime {
    /// Its file.
    pub path: String,
    /// From its first record to when it was durable.
    pub seconds: f64,
    /// Its records.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Facts {
    fn skip(&mut self, split: &str, input: &str, count: u64) {
        self.skipped += count;
        let known = self.skipped_by.values().map(BTreeMap::len).sum::<usize>();
        let inputs = self.skipped_by.entry(split.to_owned()).or_default();
        let input = if known < MOST_INPUTS || inputs.contains_key(input) {
            input
        } else {
            OTHER_INPUTS
        };
        *inputs.entry(input.to_owned()).or_default() += count;
    }

    fn slower(&mut self, shard: ShardTime) {
        let slower = self
            .slowest_shard
            .as_ref()
            .is_none_or(|known| shard.seconds > known.seconds);
        if slower {
            self.slowest_shard = Some(shard);
        }
    }
}

/// A job as one process sees it at some moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Stages, in the order in which they began.
    pub stages: Vec<Stage>,
    /// What happened on the way.
    pub facts: Facts,
}

/// The job as all processes together see it: amounts are added up, times and peaks are the largest, and a stage is over
/// when it is over everywhere. The first snapshot gives the order of stages, and the totals where it has them.
pub fn merge(snapshots: impl IntoIterator<Item = Snapshot>) -> Snapshot {
    let mut all = Snapshot::default();
    for snapshot in snapshots {
        let mut used: Vec<usize> = Vec::new();
        for stage in snapshot.stages {
            // A stage that began anew has the same name once more.
            let place = (0..all.stages.len())
                .find(|index| !used.contains(index) && all.stages[*index].name == stage.name);
            match place {
                Some(index) => {
                    used.push(index);
                    join(&mut all.stages[index], stage);
                }
                None => {
                    used.push(all.stages.len());
                    all.stages.push(stage);
                }
            }
        }
        let (into, facts) = (&mut all.facts, snapshot.facts);
        into.retries += facts.retries;
        for (split, inputs) in &facts.skipped_by {
            for (input, count) in inputs {
                into.skip(split, input, *count);
            }
        }
        into.shards_written += facts.shards_written;
        into.shards_found += facts.shards_found;
        into.sources_found += facts.sources_found;
        into.records_read += facts.records_read;
        into.records_written += facts.records_written;
        into.shards_taken_over += facts.shards_taken_over;
        into.records_taken_over += facts.records_taken_over;
        into.payload_bytes += facts.payload_bytes;
        into.file_bytes += facts.file_bytes;
        into.spilled_bytes += facts.spilled_bytes;
        into.peak_held_bytes = into.peak_held_bytes.max(facts.peak_held_bytes);
        into.peak_resident_bytes = into.peak_resident_bytes.max(facts.peak_resident_bytes);
        if let Some(shard) = facts.slowest_shard {
            into.slower(shard);
        }
    }
    all
}

fn join(into: &mut Stage, other: Stage) {
    let sum = |a: Option<u64>, b: Option<u64>| a.map(|a| a + b.unwrap_or(0)).or(b);
    into.done += other.done;
    into.total = into.total.or(other.total);
    into.elapsed = into.elapsed.max(other.elapsed);
    into.finished &= other.finished;
    into.records = sum(into.records, other.records);
    into.bytes = sum(into.bytes, other.bytes);
    into.workers.extend(other.workers);
    into.workers.sort_by_key(|share| share.worker);
}

/// Something a user may want to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether it needs attention.
    pub warning: bool,
    /// One line.
    pub text: String,
}

/// A job graph that a monitor watches, until this is dropped.
#[derive(Debug)]
#[must_use = "the graph is watched until this is dropped"]
pub struct Watched<'a> {
    monitor: &'a Monitor,
    progress: Progress,
    since: Instant,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.monitor.refresh(&self.progress, self.since, true);
        // Those of a later graph are their own.
        lock(&self.monitor.graphs).clear();
        let mut facts = lock(&self.monitor.facts);
        facts.peak_held_bytes = facts.peak_held_bytes.max(self.progress.peak_held_bytes());
        facts.spilled_bytes += self.progress.spilled_bytes();
    }
}

impl Monitor {
    /// A handle for one job.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            retries_before: prep_formats::store::retries(),
            ..Self::default()
        })
    }

    /// Asks the job to stop. It ends with [`Cancelled`], and leaves its staging for the next run.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    /// Stops the job because it is in vain: `cause` says why, in the words of an error. The first cause counts.
    pub fn cancel_because(&self, cause: impl Into<String>) {
        let _ = self.cause.set(cause.into());
        self.cancel();
    }

    /// Why the job was stopped by [`cancel_because`](Self::cancel_because).
    pub fn cause(&self) -> Option<&str> {
        self.cause.get().map(String::as_str)
    }

    /// The switch itself, for a signal handler: stored `true`, it is [`cancel`](Self::cancel).
    pub fn switch(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Whether the job was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// An error if the job was asked to stop.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub fn check(&self) -> Result<(), Cancelled> {
        if self.is_cancelled() {
            Err(Cancelled)
        } else {
            Ok(())
        }
    }

    /// Begins a stage.
    pub fn stage(&self, name: impl Into<String>, unit: Unit, total: Option<u64>) -> Arc<Meter> {
        self.begin(Meter::new(name.into(), unit, total))
    }

    fn begin(&self, meter: Meter) -> Arc<Meter> {
        let meter = Arc::new(meter);
        lock(&self.meters).push(Arc::clone(&meter));
        meter
    }

    /// Takes a stage off the list again: it was over before anybody could care.
    pub fn forget(&self, meter: &Arc<Meter>) {
        lock(&self.meters).retain(|other| !Arc::ptr_eq(other, meter));
    }

    /// Ends a stage, and takes it off the list again if it took less than a second.
    pub fn forget_quick(&self, meter: &Arc<Meter>) {
        meter.finish();
        if meter.started.elapsed() < Duration::from_secs(1) {
            self.forget(meter);
        }
    }

    /// Watches a job graph, until the result is dropped: its counts are added to the stages of the same names; those that
    /// the job itself does not meter become stages too.
    pub fn watch<'a>(&'a self, progress: &Progress) -> Watched<'a> {
        let since = Instant::now();
        lock(&self.graphs).push((progress.clone(), since));
        Watched {
            monitor: self,
            progress: progress.clone(),
            since,
        }
    }

    fn refresh(&self, progress: &Progress, since: Instant, over: bool) {
        for graph in progress.stages() {
            // Of several stages of one name, the last is the one that runs.
            let found = lock(&self.meters)
                .iter()
                .rev()
                .find(|meter| meter.name == graph.name)
                .cloned();
            let meter = match found {
                Some(meter) => meter,
                None if graph.records == 0 => continue,
                // It has run since the graph has, not only since somebody looks.
                None => self.begin(Meter {
                    of_graph: true,
                    started: since,
                    ..Meter::new(graph.name.clone(), Unit::Records, None)
                }),
            };
            if meter.of_graph {
                meter.set(graph.records);
                if over {
                    meter.finish();
                }
            }
            *lock(&meter.graph) = Some(graph);
        }
    }

    /// All stages so far, in the order in which they began, as this process sees them.
    pub fn stages(&self) -> Vec<Stage> {
        let graphs = lock(&self.graphs).clone();
        for (progress, since) in &graphs {
            self.refresh(progress, *since, false);
        }
        lock(&self.meters).iter().map(|meter| meter.snapshot()).collect()
    }

    /// The job as this process sees it.
    pub fn snapshot(&self) -> Snapshot {
        let stages = self.stages();
        let mut facts = lock(&self.facts).clone();
        for (progress, _) in lock(&self.graphs).iter() {
            facts.peak_held_bytes = facts.peak_held_bytes.max(progress.peak_held_bytes());
            facts.spilled_bytes += progress.spilled_bytes();
        }
        facts.retries += prep_formats::store::retries().saturating_sub(self.retries_before);
        facts.peak_resident_bytes = resources::peak_resident_bytes().unwrap_or(0);
        Snapshot { stages, facts }
    }

    /// Says who the other processes of the cluster are; once, at the start.
    pub fn set_peers(&self, peers: Box<dyn Peers>) {
        let _ = self.peers.set(peers);
    }

    /// The job as all processes see it, on the first; on the others, and without a cluster, as this one sees it. Tells the
    /// others of this one.
    pub fn overview(&self) -> Snapshot {
        let own = self.snapshot();
        let Some(peers) = self.peers.get() else {
            return own;
        };
        peers.publish(serde_json::to_vec(&own).unwrap_or_default());
        // What a peer sent while it was starting may be empty.
        let others = peers.latest().into_iter();
        let others = others.filter_map(|text| serde_json::from_slice(&text).ok());
        merge(std::iter::once(own).chain(others))
    }

    /// Notes what runs when in `trace` from now on; once, at the start.
    pub fn set_trace(&self, trace: Trace) {
        let _ = self.trace.set(trace);
    }

    /// The trace, where there is one.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.get()
    }

    /// Notes in the trace, where there is one, that this thread does something until the result is dropped.
    pub fn span(&self, category: &'static str, name: impl Into<Cow<'static, str>>) -> Span {
        match self.trace.get() {
            Some(trace) => trace.span(category, name),
            None => Span::default(),
        }
    }

    /// Counts a request that is tried again.
    pub fn retried(&self) {
        lock(&self.facts).retries += 1;
    }

    /// Counts damaged records that are left out.
    pub fn skipped(&self, split: &str, input: &str, count: u64) {
        lock(&self.facts).skip(split, input, count);
    }

    /// Counts a shard that was written, and the time that took.
    pub fn shard_written(
        &self,
        path: &str,
        took: Duration,
        records: u64,
        payload_bytes: u64,
        file_bytes: u64,
    ) {
        let mut facts = lock(&self.facts);
        facts.shards_written += 1;
        facts.records_written += records;
        facts.payload_bytes += payload_bytes;
        facts.file_bytes += file_bytes;
        facts.slower(ShardTime {
            path: path.to_owned(),
            seconds: took.as_secs_f64(),
            records,
            bytes: file_bytes,
        });
    }

    /// Counts shards that an earlier run had finished.
    pub fn shards_found(&self, count: u64) {
        lock(&self.facts).shards_found += count;
    }

    /// Counts sources that an earlier run had fetched.
    pub fn sources_found(&self, count: u64) {
        lock(&self.facts).sources_found += count;
    }

    /// Counts records that were taken from sources.
    pub fn records_read(&self, count: u64) {
        lock(&self.facts).records_read += count;
    }

    /// Counts shards that were taken over from an earlier version, and their records.
    pub fn taken_over(&self, shards: u64, records: u64) {
        let mut facts = lock(&self.facts);
        facts.shards_taken_over += shards;
        facts.records_taken_over += records;
    }

    /// Says something in passing.
    pub fn note(&self, text: impl Into<String>) {
        self.push(false, text.into());
    }

    /// Says something that needs attention.
    pub fn warn(&self, text: impl Into<String>) {
        self.push(true, text.into());
    }

    fn push(&self, warning: bool, text: String) {
        lock(&self.notes).push(Note { warning, text });
    }

    /// The notes since the last call.
    pub fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut *lock(&self.notes))
    }
}

/// A stage as it is in JSON lines and reports.
pub fn stage_json(stage: &Stage) -> Value {
    let workers: Vec<Value> = stage
        .workers
        .iter()
        .map(|share| {
            json!({
                "worker": share.worker,
                "records": share.records,
                "bytes": share.bytes,
                "busy_seconds": rounded(share.busy_seconds),
            })
        })
        .collect();
    json!({
        "name": stage.name,
        "unit": stage.unit.name(),
        "done": stage.done,
        "total": stage.total,
        "seconds": rounded(stage.elapsed.as_secs_f64()),
        "finished": stage.finished,
        "records": stage.records,
        "bytes": stage.bytes,
        "busy_seconds": stage.busy_seconds().map(rounded),
        "workers": workers,
    })
}

/// What the final report says of the job besides its outcome.
pub fn report_json(snapshot: &Snapshot) -> Value {
    let Snapshot { stages, facts } = snapshot;
    let ratio = facts.payload_bytes as f64 / facts.file_bytes as f64;
    let skipped_by: Vec<Value> = facts
        .skipped_by
        .iter()
        .flat_map(|(split, inputs)| {
            let entry = move |(input, records): (&String, &u64)| json!({"split": split, "input": input, "records": records});
            inputs.iter().map(entry)
        })
        .collect();
    let slowest = facts.slowest_shard.as_ref().map(|shard| {
        json!({
            "path": shard.path,
            "seconds": rounded(shard.seconds),
            "records": shard.records,
            "bytes": shard.bytes,
        })
    });
    json!({
        "stages": stages.iter().map(stage_json).collect::<Vec<_>>(),
        "retries": facts.retries,
        "skipped": facts.skipped,
        "skipped_by": skipped_by,
        "shards_written": facts.shards_written,
        "shards_found_finished": facts.shards_found,
        "sources_found_fetched": facts.sources_found,
        "records_read": facts.records_read,
        "records_written": facts.records_written,
        "shards_taken_over": facts.shards_taken_over,
        "records_taken_over": facts.records_taken_over,
        "payload_bytes": facts.payload_bytes,
        "file_bytes": facts.file_bytes,
        "compression_ratio": (facts.file_bytes > 0).then(|| rounded(ratio)),
        "slowest_shard": slowest,
        "peak_held_bytes": facts.peak_held_bytes,
        "spilled_bytes": facts.spilled_bytes,
        "peak_resident_bytes": facts.peak_resident_bytes,
    })
}

/// To a thousandth.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_show_what_is_done() {
        let monitor = Monitor::new();
        let meter = monitor.stage("read", Unit::Bytes, Some(10));
        meter.add(4);
        let stage = monitor.stages().remove(0);
        assert_eq!((stage.done, stage.total, stage.finished), (4, Some(10), false));
        meter.finish();
        let first = monitor.stages().remove(0);
        assert!(first.finished);
        assert_eq!(monitor.stages().remove(0).elapsed, first.elapsed);
    }

    #[test]
    fn parts_add_up_and_may_begin_anew() {
        let monitor = Monitor::new();
        let whole = monitor.stage("fetch", Unit::Bytes, Some(10));
        let (one, two) = (Meter::part_of(&whole), Meter::part_of(&whole));
        one.add(3);
        two.set(4);
        two.set(1);
        assert_eq!(monitor.stages()[0].done, 4);
        assert_eq!(monitor.stages().len(), 1);
        monitor.forget(&whole);
        assert!(monitor.stages().is_empty());
    }

    #[test]
    fn a_cancelled_job_is_told_so() {
        let monitor = Monitor::new();
        assert_eq!(monitor.check(), Ok(()));
        monitor.cancel();
        assert_eq!((monitor.check(), monitor.cause()), (Err(Cancelled), None));
        let monitor = Monitor::new();
        monitor.cancel_because("the other one is gone");
        monitor.cancel_because("and another");
        assert_eq!(
            (monitor.check(), monitor.cause()),
            (Err(Cancelled), Some("the other one is gone"))
        );
    }

    #[test]
    fn notes_are_given_once() {
        let monitor = Monitor::new();
        monitor.note("one");
        monitor.warn("two");
        assert_eq!(monitor.take_notes().len(), 2);
        assert!(monitor.take_notes().is_empty());
    }

    #[test]
    fn a_job_graph_adds_to_the_stages_of_its_names() {
        let monitor = Monitor::new();
        let read = monitor.stage("read", Unit::Bytes, Some(100));
        let progress = Progress::new();
        let watched = monitor.watch(&progress);
        let begun = Instant::now();
        let place = prep_dataflow::Collected::new();
        let options = prep_dataflow::Options::default()
            .workers(2)
            .progress(progress.clone());
        prep_dataflow::run(options, move |pipeline| {
            pipeline
                .source("read", vec![0, 1], |_| {
                    Ok::<_, prep_dataflow::Error>((0..5).map(|_| Ok::<_, prep_dataflow::Error>(vec![0u8; 7])))
                })
                .try_map("double", |data: Vec<u8>| Ok::<_, prep_dataflow::Error>(data))
                .collect(&place);
        })
        .unwrap();
        let ran = begun.elapsed();
        read.add(100);
        drop(watched);
        let stages = monitor.stages();
        let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["read", "double"]);
        assert_eq!((stages[0].done, stages[0].records), (100, Some(10)));
        assert_eq!((stages[1].done, stages[1].finished), (10, true));
        assert!(stages[1].elapsed >= ran, "it has run since the graph has");
        assert_eq!(stages[1].workers.len(), 2);
        let (least, most) = stages[1].skew().unwrap();
        assert!(least <= most && stages[1].busy_seconds().unwrap() > 0.0);
        assert!(monitor.snapshot().facts.peak_held_bytes > 0);
    }

    #[test]
    fn snapshots_of_processes_add_up() {
        let snapshot = |process: usize, done: u64, finished: bool| {
            let mut stage = Stage::new("read", Unit::Bytes);
            stage.done = done;
            stage.total = (process == 0).then_some(100);
            stage.finished = finished;
            stage.records = Some(done / 10);
            stage.workers = vec![Share {
                worker: process,
                records: done / 10,
                bytes: done,
                busy_seconds: done as f64,
            }];
            let mut facts = Facts::default();
            facts.skip("train", "a.tfrecord", 1);
            facts.peak_resident_bytes = done;
            facts.slower(ShardTime {
                path: format!("shard {process}"),
                seconds: done as f64,
                records: 1,
                bytes: 1,
            });
            Snapshot {
                stages: vec![stage],
                facts,
            }
        };
        // They travel as JSON.
        let far = serde_json::to_vec(&snapshot(1, 30, false)).unwrap();
        let all = merge([snapshot(0, 20, true), serde_json::from_slice(&far).unwrap()]);
        let stage = &all.stages[0];
        assert_eq!((stage.done, stage.total, stage.records), (50, Some(100), Some(5)));
        assert!(!stage.finished);
        assert_eq!(stage.skew(), Some((20.0, 30.0)));
        assert_eq!(all.facts.skipped_by["train"]["a.tfrecord"], 2);
        assert_eq!(all.facts.peak_resident_bytes, 30);
        assert_eq!(all.facts.slowest_shard.unwrap().path, "shard 1");
    }

    #[test]
    fn inputs_with_skipped_records_are_not_counted_one_by_one_without_end() {
        let monitor = Monitor::new();
        for input in 0..MOST_INPUTS + 50 {
            monitor.skipped("train", &format!("input {input}"), 2);
        }
        let facts = monitor.snapshot().facts;
        assert_eq!(facts.skipped, 2 * (MOST_INPUTS as u64 + 50));
        assert_eq!(facts.skipped_by["train"].len(), MOST_INPUTS + 1);
        assert_eq!(facts.skipped_by["train"][OTHER_INPUTS], 100);
    }

    #[derive(Debug)]
    struct One(Mutex<Vec<u8>>);

    impl Peers for Arc<One> {
        fn publish(&self, snapshot: Vec<u8>) {
            *lock(&self.0) = snapshot;
        }

        fn latest(&self) -> Vec<Vec<u8>> {
            vec![lock(&self.0).clone(), b"not yet".to_vec()]
        }
    }

    #[test]
    fn the_first_process_sees_what_the_others_published() {
        let place = Arc::new(One(Mutex::default()));
        let monitor = Monitor::new();
        monitor.stage("read", Unit::Records, None).add(3);
        monitor.set_peers(Box::new(Arc::clone(&place)));
        assert_eq!(monitor.overview().stages[0].done, 6);
    }
}
