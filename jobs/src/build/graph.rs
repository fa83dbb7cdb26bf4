//! The job graph of a build.
//!
//! ```text
//! read (a thread an input) -> rebalance -> encode -> sort by (split, key) -> plan -> shards -> summaries
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail};
use prep_dataflow::{
    BoxError, Cancel, Collected, Error, Options, Record, SortOptions, SplitPlan, SplitTotals, Weigh, trace,
};
use prep_formats::features::{Feature, Features};
use serde::{Deserialize, Serialize};

use crate::build::OnError;
use crate::build::payload::{self, PartNames, Payloads};
use crate::build::shard::{ShardSummary, Shards};
use crate::builder::{Builder, Decoded, Input, Layout, Output, OutputSink, Raw, Source, StartOver};
use crate::error::{Cancelled, Carried, Hinted};
use crate::monitor::{Meter, Monitor, Unit};
use crate::team::{self, Team};
use crate::tfds::{self, KeyHasher};

/// Examples that a reading thread hands over at a time, and how many bytes.
const BATCH_EXAMPLES: usize = 256;
const BATCH_BYTES: usize = 256 << 10;

/// What the graph of a build needs.
pub(crate) struct Plan {
    pub(crate) builder: Arc<dyn Builder>,
    pub(crate) sources: Arc<Vec<Source>>,
    pub(crate) shards: Shards,
    /// Number of shards of each split, where it is fixed.
    pub(crate) num_shards: Vec<Option<u64>>,
    pub(crate) on_error: OnError,
    /// Whether payloads may stay in their sources until they are written; the output is the same.
    pub(crate) by_reference: bool,
    pub(crate) workers: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) spill_folder: std::path::PathBuf,
    pub(crate) monitor: Arc<Monitor>,
    /// The processes that run it together.
    pub(crate) team: Team,
    /// Whether a reader that learned better may have it run again.
    pub(crate) may_restart: bool,
    /// The sources that are not read, as their shards are taken over; and how many records of each split are in those.
    pub(crate) taken: Vec<bool>,
    pub(crate) taken_records: Vec<u64>,
    /// Records that those sources had left out.
    pub(crate) skipped_before: u64,
}

/// What the graph of a build leaves behind.
#[derive(Debug)]
pub(crate) struct Finished {
    /// All shards, by split and index.
    pub(crate) shards: Vec<ShardSummary>,
    /// How many of them were there already.
    pub(crate) found: u64,
    /// Records left out of each group.
    pub(crate) skipped: Vec<u64>,
    /// Names of classes that the sources gave.
    pub(crate) class_names: Vec<(String, Vec<String>)>,
    /// The most bytes that were held, and bytes that were spilled.
    pub(crate) peak_held_bytes: u64,
    pub(crate) spilled_bytes: u64,
}

impl Weigh for Raw {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.data.len()
    }
}

/// What all stages share: parts, faults and names of classes.
struct Ledger {
    parts: Arc<PartNames>,
    /// Of each group.
    skipped: Vec<AtomicU64>,
    /// Groups of each split.
    sources_of_split: usize,
    total_skipped: AtomicU64,
    /// Of sources that are taken over: they count for the most that may be.
    skipped_before: u64,
    /// Examples that the recipe leaves out.
    left_out: AtomicU64,
    on_error: OnError,
    features: Features,
    splits: Vec<String>,
    class_names: Mutex<Vec<(String, Vec<String>)>>,
    monitor: Arc<Monitor>,
}

impl Ledger {
    /// Decides about a damaged record: an error if the job is to stop.
    fn fault(
        &self,
        (split, source): (usize, usize),
        part: u32,
        record: u64,
        name: Option<&str>,
        reason: anyhow::Error,
    ) -> Result<()> {
        let place = named(self.parts.place(part, record), name);
        let most = match self.on_error {
            OnError::Fail => {
                let hint = match crate::error::find::<Hinted>(&reason) {
                    // Whoever found it knows better.
                    Some(hinted) => hinted.hint.clone(),
                    None => "the source is damaged; get it again, or leave such records out with `--on-error skip`"
                        .to_owned(),
                };
                return Err(reason.context(Hinted::new(place, hint)));
            }
            OnError::Skip(most) => most,
        };
        let group = split * self.sources_of_split + source.min(self.sources_of_split.saturating_sub(1));
        if let Some(count) = self.skipped.get(group) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.monitor.skipped(
            self.splits.get(split).map_or("?", String::as_str),
            &self.parts.name(part),
            1,
        );
        let total = self.total_skipped.fetch_add(1, Ordering::Relaxed) + 1;
        let all = self.skipped_before + total;
        if most.is_some_and(|most| all > most) {
            let hint = "raise the number after `skip:`, or get the source again";
            let message = format!("{all} records are damaged, more than may be skipped; the last is {place}");
            return Err(reason.context(Hinted::new(message, hint)));
        }
        // The first ones are told; the number of all is in the manifest.
        if total <= 10 {
            self.monitor.warn(format!("left out {place}: {reason:#}"));
        }
        Ok(())
    }
}

/// `name, record 7, member a/b.jpg`.
fn named(place: String, name: Option<&str>) -> String {
    name.map_or(place.clone(), |name| format!("{place}, member {name}"))
}

/// Runs the graph.
pub(crate) fn run(plan: Plan) -> Result<Finished> {
    let spec = plan.builder.spec().clone();
    let monitor = Arc::clone(&plan.monitor);
    let ledger = Arc::new(Ledger {
        parts: Arc::clone(&plan.shards.parts),
        skipped: (0..spec.num_groups()).map(|_| AtomicU64::new(0)).collect(),
        sources_of_split: spec.sources_of_split(),
        total_skipped: AtomicU64::new(0),
        skipped_before: plan.skipped_before,
        left_out: AtomicU64::new(0),
        on_error: plan.on_error,
        features: spec.features.clone(),
        splits: spec.splits.iter().map(|split| split.name.clone()).collect(),
        class_names: Mutex::default(),
        monitor: Arc::clone(&monitor),
    });
    let encode_meter = monitor.stage("encode", Unit::Examples, None);
    let write_meter = Arc::clone(&plan.shards.meter);
    let collected = Collected::new();
    let progress = prep_dataflow::Progress::new();
    let cancel = Cancel::new();
    let watched = monitor.watch(&progress);
    let mut options = Options::default()
        .workers(plan.workers)
        .memory_bytes(plan.memory_bytes)
        .spill_folder(&plan.spill_folder)
        .progress(progress.clone())
        .cancel(cancel.clone());
    if let Some(trace) = monitor.trace() {
        options = options.trace(trace.clone());
    }
    if let Some(cluster) = plan.team.cluster() {
        options = options.cluster(cluster.clone());
    }

    let totals: Arc<OnceLock<Vec<SplitTotals>>> = Arc::clone(&plan.shards.totals);
    let inputs = Arc::new(plan.builder.inputs());
    let num_groups = spec.num_groups();
    let is_taken = |source: &usize| plan.taken.get(*source) == Some(&true);
    let tasks: Vec<usize> = (0..inputs.len())
        .filter(|index| !inputs[*index].iter().all(is_taken))
        .collect();
    let taken_records = plan.taken_records.clone();
    let (builder, sources) = (Arc::clone(&plan.builder), Arc::clone(&plan.sources));
    let names = (Arc::clone(&plan.builder), Arc::clone(&plan.sources));
    let shards = Arc::new(plan.shards);
    let by_reference = plan.by_reference;
    let graph = {
        let (ledger, collected, encode_meter) =
            (Arc::clone(&ledger), collected.clone(), Arc::clone(&encode_meter));
        let spec = spec.clone();
        let num_shards = plan.num_shards.clone();
        move |pipeline: &prep_dataflow::Pipeline<'_>| {
            let reader = (Arc::clone(&builder), Arc::clone(&sources), Arc::clone(&ledger));
            let inputs = Arc::clone(&inputs);
            let open = move |index: usize| -> Result<Reading, BoxError> {
                let (builder, sources, ledger) = &reader;
                let input = (index, Arc::clone(&inputs));
                Reading::start(input, builder, sources, ledger, by_reference).map_err(Carried::boxed)
            };
            let mut encoder = Encoder {
                builder: Arc::clone(&builder),
                ledger: Arc::clone(&ledger),
                meter: Arc::clone(&encode_meter),
                example: spec.features.encoder(),
                hashers: spec
                    .splits
                    .iter()
                    .map(|split| KeyHasher::new(&split.name))
                    .collect(),
                sources: (spec.layout == Layout::BySource).then(|| spec.sources_of_split()),
                buffer: Vec::new(),
            };
            let (plan_totals, plan_spec, plan_shards) =
                (Arc::clone(&totals), spec.clone(), num_shards.clone());
            let taken_records = taken_records.clone();
            let (encode_meter, write_meter) = (Arc::clone(&encode_meter), Arc::clone(&write_meter));
            let monitor = Arc::clone(&ledger.monitor);
            // Where nothing could be left out, sources without examples are all that an empty split can mean.
            let may_be_empty = builder.keeps_all() && matches!(ledger.on_error, OnError::Fail);
            let cut = move |totals: &[SplitTotals]| {
                encode_meter.finish();
                write_meter.set_total(totals.iter().map(|split| split.records).sum());
                let _ = plan_totals.set(totals.to_vec());
                let empty = empty_splits(&plan_spec, &taken_records, totals);
                if let Some(split) = empty.first().filter(|_| !may_be_empty) {
                    return Err(Carried::boxed(anyhow!("split `{split}` has no examples")));
                }
                for split in empty {
                    monitor.warn(format!(
                        "split `{split}` has no examples, as its sources have none"
                    ));
                }
                cut(&plan_spec, &plan_shards, totals).map_err(Carried::boxed)
            };
            pipeline
                .source("read", tasks.clone(), open)
                .rebalance()
                .try_flat_map("encode", move |raw: Raw| {
                    encoder.encode(&raw).map_err(Carried::boxed)
                })
                .sort(
                    "sort",
                    SortOptions::new(num_groups as u32).size(payload::record_bytes),
                )
                .write_shards("write", cut, SharedShards(Arc::clone(&shards)))
                .collect(&collected);
        }
    };

    // The graph has its own switch; this thread turns it when the job's is turned.
    let over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (monitor, over) = (Arc::clone(&monitor), Arc::clone(&over));
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if monitor.is_cancelled() {
                    cancel.cancel();
                    break;
                }
                std::thread::park_timeout(std::time::Duration::from_millis(50));
            }
        })
    };
    let result = prep_dataflow::run(options, graph);
    over.store(true, Ordering::Relaxed);
    watcher.thread().unpark();
    let _ = watcher.join();
    drop(watched);
    monitor.records_read(encode_meter.snapshot().done);
    // All that this process counted, before the leader asks how it ended.
    let _ = monitor.overview();
    let translate = |error| translate(error, &ledger, &spec, &*names.0, &names.1);
    let counts = settle(
        &plan.team,
        plan.may_restart,
        result,
        &ledger,
        &translate,
        &progress,
    )?;
    encode_meter.finish();
    if counts.left_out > 0 {
        monitor.note(format!(
            "{} examples left out, as the recipe says",
            counts.left_out
        ));
    }

    let mut written = collected.take();
    written.sort_by_key(|written| (written.shard.split, written.shard.index));
    let found = written.iter().filter(|written| written.found).count() as u64;
    Ok(Finished {
        shards: written.into_iter().map(|written| written.summary).collect(),
        found,
        skipped: counts.skipped,
        class_names: counts.class_names,
        peak_held_bytes: counts.peak_held_bytes,
        spilled_bytes: counts.spilled_bytes,
    })
}

/// What a process counts beside the shards.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Counts {
    skipped: Vec<u64>,
    left_out: u64,
    class_names: Vec<(String, Vec<String>)>,
    peak_held_bytes: u64,
    spilled_bytes: u64,
}

/// How the graph ended in one process.
#[derive(Debug, Serialize, Deserialize)]
enum Ended {
    Well(Counts),
    /// Why it has to be run again, where that is all; and what the process called its inputs, for the leader's message.
    Badly(Option<String>, Vec<String>),
}

/// Agrees with the other processes on how the graph ended: well, or to be run again by all, or with an error. The leader gets the counts of all
/// processes, the others their own.
fn settle(
    team: &Team,
    may_restart: bool,
    result: Result<prep_dataflow::Report, Error>,
    ledger: &Ledger,
    translate: &dyn Fn(Error) -> anyhow::Error,
    progress: &prep_dataflow::Progress,
) -> Result<Counts> {
    let own = Counts {
        skipped: ledger
            .skipped
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect(),
        left_out: ledger.left_out.load(Ordering::Relaxed),
        class_names: std::mem::take(&mut *ledger.class_names.lock().unwrap_or_else(PoisonError::into_inner)),
        peak_held_bytes: progress.peak_held_bytes(),
        spilled_bytes: progress.spilled_bytes(),
    };
    let ended = match &result {
        Ok(_) => Ended::Well(own.clone()),
        Err(error) => Ended::Badly(start_over(error), ledger.parts.own()),
    };
    let told = team.gather(ended).and_then(|all| {
        let Some(all) = all else {
            return Ok((team.hear::<Option<String>>()?, own));
        };
        let mut again = None;
        let mut counts = Counts {
            skipped: vec![0; ledger.skipped.len()],
            ..Counts::default()
        };
        for (process, ended) in all.into_iter().enumerate() {
            match ended {
                Ended::Well(theirs) => counts.add(theirs),
                Ended::Badly(reason, names) => {
                    ledger.parts.learn(process, names);
                    again = again.or(reason.filter(|_| may_restart));
                }
            }
        }
        team.tell(&again)?;
        Ok((again, counts))
    });
    let (again, counts) = match (told, result) {
        // Where a process was lost, the graph says so as well as this does.
        (_, Err(error)) if start_over(&error).is_none() && !is_elsewhere(&error) => {
            return Err(translate(error));
        }
        (Err(error), result) => {
            return Err(result.err().map_or(error, translate));
        }
        (Ok((None, _)), Err(error)) => return Err(translate(error)),
        (Ok((again, counts)), _) => (again, counts),
    };
    if let Some(reason) = again {
        return Err(StartOver { reason }.into());
    }
    ledger
        .on_error
        .check(ledger.skipped_before + counts.skipped.iter().sum::<u64>())?;
    Ok(counts)
}

/// Whether an error is what another process says.
fn is_elsewhere(error: &Error) -> bool {
    matches!(error, Error::Remote { .. })
}

/// Why a reader wants to begin anew.
fn start_over(error: &Error) -> Option<String> {
    let Error::Stage { source, .. } = error else {
        return None;
    };
    let carried = source.downcast_ref::<Carried>()?;
    Some(crate::error::find::<StartOver>(&carried.0)?.reason.clone())
}

impl Counts {
    fn add(&mut self, other: Self) {
        for (sum, count) in self.skipped.iter_mut().zip(other.skipped) {
            *sum += count;
        }
        self.left_out += other.left_out;
        // All processes that know the names of a class have them from the same sources.
        for (feature, names) in other.class_names {
            if !self.class_names.iter().any(|(known, _)| *known == feature) {
                self.class_names.push((feature, names));
            }
        }
        self.class_names.sort();
        self.peak_held_bytes = self.peak_held_bytes.max(other.peak_held_bytes);
        self.spilled_bytes += other.spilled_bytes;
    }
}

/// One sink for all workers.
struct SharedShards(Arc<Shards>);

impl prep_dataflow::ShardSink for SharedShards {
    type Summary = ShardSummary;
    type Writer = crate::build::shard::ShardFile;

    fn open(&self, shard: &prep_dataflow::Shard) -> Result<Self::Writer, BoxError> {
        self.0.open(shard)
    }

    fn begin(&self, totals: &[SplitTotals]) {
        // The planner of worker 0 has done it already.
        let _ = self.0.totals.set(totals.to_vec());
    }

    fn complete(&self, shard: &prep_dataflow::Shard) -> Result<Option<ShardSummary>, BoxError> {
        self.0.complete(shard)
    }
}

/// The splits that no source gives anything.
fn empty_splits<'a>(
    spec: &'a crate::builder::DatasetSpec,
    taken_records: &[u64],
    totals: &[SplitTotals],
) -> Vec<&'a str> {
    let groups = totals.chunks(spec.sources_of_split().max(1));
    let splits = spec.splits.iter().zip(groups).enumerate();
    let is_empty = |index: usize, groups: &[SplitTotals]| {
        taken_records.get(index).is_none_or(|records| *records == 0)
            && groups.iter().all(|totals| totals.records == 0)
    };
    splits
        .filter(|(index, (_, groups))| is_empty(*index, groups))
        .map(|(_, (split, _))| split.name.as_str())
        .collect()
}

/// Where TFDS cuts each split, or each source of a split.
fn cut(
    spec: &crate::builder::DatasetSpec,
    num_shards: &[Option<u64>],
    totals: &[SplitTotals],
) -> Result<Vec<SplitPlan>> {
    let mut plans = Vec::new();
    let groups = totals.chunks(spec.sources_of_split().max(1));
    for ((split, wanted), groups) in spec.splits.iter().zip(num_shards).zip(groups) {
        for totals in groups {
            if totals.records == 0 {
                // A source that gives this split nothing.
                plans.push(SplitPlan {
                    boundaries: Vec::new(),
                });
                continue;
            }
            let holds = split.shards_for.is_none_or(|examples| examples == totals.records);
            let count = wanted
                .filter(|_| holds)
                .unwrap_or_else(|| tfds::number_of_shards(totals.bytes, totals.records));
            let ends = tfds::shard_boundaries(totals.records, count)
                .with_context(|| format!("could not cut split `{}` into shards", split.name))?;
            plans.push(SplitPlan {
                boundaries: std::iter::once(0).chain(ends).collect(),
            });
        }
    }
    Ok(plans)
}

/// The errors of the graph in the words of a build.
fn translate(
    error: Error,
    ledger: &Ledger,
    spec: &crate::builder::DatasetSpec,
    builder: &dyn Builder,
    sources: &[Source],
) -> anyhow::Error {
    match error {
        Error::Stage { stage, source } => match source.downcast::<Carried>() {
            Ok(carried) => carried.0,
            Err(other) => anyhow!(other).context(format!("could not {stage}")),
        },
        Error::Cancelled => Cancelled.into(),
        Error::DuplicateKey {
            split, key, origins, ..
        } => {
            let [first, second] = places(origins, ledger, builder, sources);
            let split = spec
                .splits
                .get(split as usize / spec.sources_of_split().max(1))
                .map_or("?", |split| split.name.as_str());
            Hinted::new(
                format!(
                    "two examples of split `{split}` have the same key, of hash {}: {first}, and {second}",
                    hex::encode(key)
                ),
                "each example needs a key of its own",
            )
            .into()
        }
        other => team::explain(other),
    }
}

/// What two examples are called. Where one source has both, it is read once more at most.
fn places(origins: [u64; 2], ledger: &Ledger, builder: &dyn Builder, sources: &[Source]) -> [String; 2] {
    let [(first, one), (second, two)] = origins.map(prep_dataflow::split_origin);
    let names = |part: u32, records: &[u64]| {
        let name = ledger.parts.name(part);
        sources
            .iter()
            .find(|source| source.name == name)
            .and_then(|source| builder.names_in(source, records).ok())
            .unwrap_or_else(|| vec![None; records.len()])
    };
    let found = if first == second {
        names(first, &[one, two])
    } else {
        [names(first, &[one]), names(second, &[two])].concat()
    };
    let name = |index: usize| found.get(index).and_then(Option::as_deref);
    [
        named(ledger.parts.place(first, one), name(0)),
        named(ledger.parts.place(second, two), name(1)),
    ]
}

/// Encodes raw examples, on one worker.
struct Encoder {
    builder: Arc<dyn Builder>,
    ledger: Arc<Ledger>,
    meter: Arc<Meter>,
    example: prep_formats::features::ExampleEncoder,
    hashers: Vec<KeyHasher>,
    /// In the layout by source, how many there are.
    sources: Option<usize>,
    buffer: Vec<u8>,
}

/// Hashes for fractions are salted with this.
pub(crate) const FRACTION_SALT: &str = "prep fraction";

/// Which of the fractions, as they add up, a hash falls into.
pub(crate) fn fraction_of(fractions: &[f64], hash: u128) -> usize {
    // The upper 53 bits are exact as a float.
    let share = (hash >> 75) as f64 / (1u64 << 53) as f64;
    let found = fractions.iter().position(|end| share < *end);
    found.unwrap_or(fractions.len().saturating_sub(1))
}

impl Encoder {
    fn encode(&mut self, raw: &Raw) -> Result<Option<Record>> {
        crate::fault::pass("encode");
        let encoded = self.encode_parts(raw);
        self.meter.add(1);
        let (split, key) = match encoded {
            Ok(Some(place)) => place,
            Ok(None) => {
                self.ledger.left_out.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            Err(reason) => {
                let name = self.builder.name_of(raw);
                let group = (raw.split, raw.standing.source as usize);
                self.ledger
                    .fault(group, raw.part, raw.record, name.as_deref(), reason)?;
                return Ok(None);
            }
        };
        let Some(hasher) = self.hashers.get(split) else {
            bail!(
                "{}: there is no split {split}",
                self.ledger.parts.place(raw.part, raw.record)
            );
        };
        let (split, key) = match self.sources {
            None => {
                let hash = hasher.clone().hash(key.as_ref().unwrap_or(&raw.key));
                (split, hash.to_be_bytes())
            }
            Some(sources) => (
                split * sources + raw.standing.source as usize,
                raw.standing.key(raw.record),
            ),
        };
        Ok(Some(Record {
            split: split as u32,
            key,
            origin: prep_dataflow::origin(raw.part, raw.record),
            data: bytes::Bytes::copy_from_slice(&self.buffer),
        }))
    }
}

/// Longest record, as Protocol Buffers take no longer message.
const MOST_RECORD_BYTES: u64 = (1 << 31) - 1;

impl Encoder {
    /// Fills the buffer with the record, or with what is around its payload, and says where it belongs; `None` for what is left out.
    fn encode_parts(&mut self, raw: &Raw) -> Result<Option<(usize, Option<tfds::Key>)>> {
        let decoded = self.builder.decode_and_place(raw)?;
        self.buffer.clear();
        let values = match decoded {
            Decoded::Example(values) => values,
            Decoded::LeftOut => return Ok(None),
            Decoded::Placed(values, split, key) => {
                payload::begin_whole(&mut self.buffer);
                self.example.encode(&values, &mut self.buffer)?;
                return Ok(Some((split, key)));
            }
            Decoded::ByContent(values, fractions, key) => {
                payload::begin_whole(&mut self.buffer);
                self.example.encode(&values, &mut self.buffer)?;
                let content = tfds::Key::Bytes(self.buffer[1..].to_vec());
                let hash = tfds::key_hash(FRACTION_SALT, &content);
                return Ok(Some((fraction_of(fractions, hash), key)));
            }
        };
        let Some(extent) = &raw.extent else {
            payload::begin_whole(&mut self.buffer);
            self.example.encode(&values, &mut self.buffer)?;
            return Ok(Some((raw.split, None)));
        };
        let Some(feature) = self.builder.payload() else {
            bail!("the builder does not say which feature the bytes of its sources are");
        };
        payload::begin_around(extent, &mut self.buffer);
        let before = self
            .example
            .encode_around(&values, feature, extent.bytes, &mut self.buffer)?;
        payload::finish_around(before, &mut self.buffer);
        let bytes = payload::record_bytes(&self.buffer);
        if bytes > MOST_RECORD_BYTES {
            bail!("it would make a record of {bytes} bytes; the limit is {MOST_RECORD_BYTES}");
        }
        Ok(Some((raw.split, None)))
    }
}

/// The examples of one input, read by a thread of its own.
struct Reading {
    batches: Option<Receiver<Vec<Raw>>>,
    current: std::vec::IntoIter<Raw>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Reading {
    fn start(
        (index, inputs): (usize, Arc<Vec<Vec<usize>>>),
        builder: &Arc<dyn Builder>,
        sources: &Arc<Vec<Source>>,
        ledger: &Arc<Ledger>,
        by_reference: bool,
    ) -> Result<Self> {
        let (sender, batches) = sync_channel(2);
        let (builder, sources, ledger) = (Arc::clone(builder), Arc::clone(sources), Arc::clone(ledger));
        let read = move || {
            let input = Input {
                index,
                sources: inputs[index].iter().map(|source| &sources[*source]).collect(),
            };
            let payloads = (!by_reference).then(|| Payloads::new(Arc::clone(&sources)));
            let mut sink = Sink {
                source: input.sources.first().map_or(0, |source| source.index() as usize),
                ledger: &ledger,
                payloads,
                sender,
                batch: Vec::new(),
                batch_bytes: 0,
            };
            let name = input.sources.first().map_or("", |source| source.name.as_str());
            let _span = trace::span("read", format!("read {name}"));
            builder.read(&input, &mut Output::new(&mut sink))?;
            sink.flush()
        };
        let thread = std::thread::Builder::new()
            .name(format!("read {index}"))
            .spawn(trace::carry(read))
            .context("could not start a thread")?;
        Ok(Self {
            batches: Some(batches),
            current: Vec::new().into_iter(),
            thread: Some(thread),
        })
    }
}

impl Iterator for Reading {
    type Item = Result<Raw, BoxError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(raw) = self.current.next() {
                return Some(Ok(raw));
            }
            match self.batches.as_ref()?.recv() {
                Ok(batch) => self.current = batch.into_iter(),
                Err(_) => {
                    // The end, or an error.
                    self.batches = None;
                    return match self.thread.take()?.join() {
                        Ok(Ok(())) => None,
                        Ok(Err(error)) => Some(Err(Carried::boxed(error))),
                        Err(panic) => std::panic::resume_unwind(panic),
                    };
                }
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // Ends the thread at its next batch.
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gathers a reading thread's examples.
struct Sink<'a> {
    /// The first one that is read: in the layout by source there is no other.
    source: usize,
    ledger: &'a Ledger,
    /// Where payloads are read at once, if they are not to stay in their sources.
    payloads: Option<Payloads>,
    sender: SyncSender<Vec<Raw>>,
    batch: Vec<Raw>,
    batch_bytes: usize,
}

impl Sink<'_> {
    fn flush(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        // The other end is gone when the job ends, for a reason of its own.
        if batch.is_empty() || self.sender.send(batch).is_ok() {
            return Ok(());
        }
        Err(Cancelled.into())
    }
}

impl OutputSink for Sink<'_> {
    fn part(&mut self, name: &str) -> u32 {
        self.ledger.parts.add(name)
    }

    fn emit(&mut self, mut raw: Raw) -> Result<()> {
        if let Some(payloads) = &self.payloads
            && let Some(extent) = raw.extent.take()
        {
            raw.data = payloads.read(&extent)?.into();
        }
        self.batch_bytes += raw.data.len();
        self.batch.push(raw);
        if self.batch.len() >= BATCH_EXAMPLES || self.batch_bytes >= BATCH_BYTES {
            return self.flush();
        }
        Ok(())
    }

    fn fault(&mut self, split: usize, part: u32, record: u64, reason: &str) -> Result<()> {
        self.ledger
            .fault((split, self.source), part, record, None, anyhow!("{reason}"))
    }

    fn warn(&mut self, text: &str) {
        self.ledger.monitor.warn(text.to_owned());
    }

    fn class_names(&mut self, feature: &str, names: Vec<String>) -> Result<()> {
        let found = self.ledger.features.iter().find(|(name, _)| *name == feature);
        let Some((
            _,
            Feature::ClassLabel {
                num_classes,
                names: known,
            },
        )) = found
        else {
            bail!("there is no class label `{feature}`");
        };
        if names.len() as u64 != *num_classes {
            bail!(
                "the source names {} classes of `{feature}`; there are {num_classes}",
                names.len()
            );
        }
        if names == *known {
            return Ok(());
        }
        let mut all = self
            .ledger
            .class_names
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|(name, _)| name != feature);
        all.push((feature.to_owned(), names));
        all.sort();
        Ok(())
    }
}
