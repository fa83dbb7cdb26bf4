//! Filters, other orders, deduplication: records through a sort.
//!
//! ```text
//! read (pieces of the inputs) -> check, filter, change, key -> [sort by content, first ones] -> sort -> shards -> summaries
//! ```
//!
//! | order | key | ties |
//! | --- | --- | --- |
//! | `source` | place of the input, position in it, big-endian | none |
//! | `shuffle:SEED` | first 16 bytes of BLAKE3 over SEED, place of the input, position in it, each 8 bytes little-endian | source order |
//! | `key:FEATURE` | kind of the first value (none, integer, float, bytes), then the value: integers as numbers, floats in IEEE's total order, bytes as bytes | source order |
//!
//! The position is that among the good records of the input. So the order depends on the seed and the positions only, never on workers, memory,
//! or what a filter lets through.

use std::cmp::Ordering as Order2;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use prep_catalog::fingerprint::SequenceHash;
use prep_dataflow::{
    BoxError, Collected, Duplicates, Key, Partition, Record, Shard, ShardSink, ShardWriter, SortOptions,
    SplitPlan, SplitTotals, StopSignal,
};
use prep_formats::array_record::{RecordBatch, Scratch};
use prep_formats::example::{ExampleView, FeatureView};
use serde::{Deserialize, Serialize};

use crate::convert::filter::Expression;
use crate::convert::inputs::Kind;
use crate::convert::job::Job;
use crate::convert::ledger::advise;
use crate::convert::plan::{Count, Plan, ShardCount, boundaries, number_of_shards};
use crate::convert::read::{Block, BlockReader, Mark, ReadPlan};
use crate::convert::shard::{ShardFile, ShardSummary};
use crate::convert::transform::{Scribe, Transform};
use crate::convert::{Dedup, Order, write_synced};
use crate::error::Cancelled;
use crate::error::Carried;

/// Bytes of a plain input, about, that one task reads.
const PIECE_BYTES: u64 = 32 << 20;
/// Records of an ArrayRecord input that one task reads.
const PIECE_RECORDS: u64 = 16 << 10;

/// What is asked for beyond source order.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) order: Order,
    pub(crate) filter: Option<Expression>,
    pub(crate) dedup: Option<Dedup>,
    pub(crate) limit: Option<u64>,
    pub(crate) shards: ShardCount,
}

impl Wish {
    /// Features that it looks at, with the flags that name them.
    pub(crate) fn features(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if let Some(filter) = &self.filter {
            let mut names = Vec::new();
            filter.features(&mut names);
            found.extend(names.into_iter().map(|name| ("--filter", name)));
        }
        if let Order::Key(feature) = &self.order {
            found.push(("--order", feature.clone()));
        }
        if let Some(Dedup::Feature(feature)) = &self.dedup {
            found.push(("--dedup", feature.clone()));
        }
        found
    }
}

/// Some records of one input.
#[derive(Debug, Clone, Copy)]
struct Piece {
    input: usize,
    from: Mark,
    /// Good records; `None` up to the end.
    records: Option<u64>,
}

/// Cuts the inputs into tasks, so that a large one among small ones idles nobody.
fn pieces(plan: &Plan) -> Vec<Piece> {
    let mut found = Vec::new();
    for (input, (file, count)) in plan.inputs.iter().zip(&plan.counts).enumerate() {
        let starts: Vec<Mark> = match file.kind {
            Kind::Empty => continue,
            Kind::Gzip | Kind::Zlib | Kind::Zstd => vec![Mark::default()],
            Kind::Plain => {
                let mut next = 0;
                let mut starts = Vec::new();
                for mark in &count.marks {
                    if mark.at >= next {
                        starts.push(*mark);
                        next = mark.at + PIECE_BYTES;
                    }
                }
                starts
            }
            Kind::ArrayRecord if count.marks.is_empty() => (0..count.records.div_ceil(PIECE_RECORDS))
                .map(|piece| {
                    let at = piece * PIECE_RECORDS;
                    Mark {
                        records: at,
                        index: at,
                        at,
                    }
                })
                .collect(),
            Kind::ArrayRecord => count.marks.clone(),
        };
        for (place, from) in starts.iter().enumerate() {
            let end = starts.get(place + 1).map(|next| next.records);
            found.push(Piece {
                input,
                from: *from,
                records: end.map(|end| end - from.records),
            });
        }
    }
    // What cannot be cut comes first.
    found.sort_by_key(|piece| !plan.inputs[piece.input].kind.is_compressed());
    found
}

/// The plan of a conversion whose shards show only when all records were seen: what was counted.
pub(crate) fn plan(
    inputs: Vec<crate::convert::inputs::InputFile>,
    counts: Vec<Count>,
    splits: Vec<crate::convert::plan::Split>,
) -> Plan {
    Plan {
        inputs,
        counts,
        splits,
        shards: Vec::new(),
    }
}

/// Counts what the stages leave out, over all workers of this process.
#[derive(Debug, Default)]
struct Tally {
    passed: AtomicU64,
    filtered: AtomicU64,
}

/// What the sort of a conversion sorts into: one row of shards, or in source order under `same` one row for each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Splits,
    Inputs,
}

/// What a general conversion leaves behind.
pub(crate) struct Finished {
    pub(crate) summaries: Vec<ShardSummary>,
    pub(crate) filtered: u64,
    pub(crate) duplicates: u64,
    pub(crate) found: u64,
}

/// Runs the graph; shards that an earlier run finished are not written again.
pub(crate) fn run(job: &Arc<Job>, wish: &Arc<Wish>, earlier: Vec<ShardSummary>) -> Result<Finished> {
    let plan = Arc::clone(&job.plan);
    let rows = if wish.shards == ShardCount::Same && wish.order == Order::Source {
        Rows::Inputs
    } else {
        Rows::Splits
    };
    let split_of: Vec<u32> = split_of(&plan, rows);
    let num_rows = split_of.iter().max().map_or(1, |last| last + 1);
    let tally = Arc::new(Tally::default());
    let shards = Arc::new(Shards {
        job: Arc::clone(job),
        wish: Arc::clone(wish),
        rows,
        earlier,
        layout: OnceLock::new(),
        kept: AtomicU64::new(0),
    });
    let collected = Collected::new();
    let tasks = pieces(&plan);
    let graph = {
        let (job, wish, tally, shards, collected) = (
            Arc::clone(job),
            Arc::clone(wish),
            Arc::clone(&tally),
            Arc::clone(&shards),
            collected.clone(),
        );
        let split_of = Arc::new(split_of);
        move |pipeline: &prep_dataflow::Pipeline<'_>| {
            let stop = pipeline.stop_signal();
            let (read_job, read_wish, read_tally, read_splits) = (
                Arc::clone(&job),
                Arc::clone(&wish),
                Arc::clone(&tally),
                Arc::clone(&split_of),
            );
            let open = move |piece: Piece| -> Result<Reading, BoxError> {
                Reading::begin(piece, &read_job, &read_wish, &read_tally, &read_splits, &stop)
                    .map_err(Carried::boxed)
            };
            let by_source = by_source(&job.plan, pipeline.num_workers());
            let mut records = pipeline.source("read", tasks.clone(), open);
            if wish.dedup.is_some() {
                let (order, split_of) = (wish.order.clone(), Arc::clone(&split_of));
                let options = SortOptions::new(1).duplicates(Duplicates::KeepFirst);
                records = records
                    .sort("first of equal content", options)
                    .records("unique")
                    .try_map("order", move |record: Record| {
                        reorder(record, &order, &split_of).map_err(Carried::boxed)
                    });
            }
            let mut options = SortOptions::new(num_rows).duplicates(Duplicates::Keep);
            match wish.order {
                Order::Source => options = options.partition(by_source),
                Order::Shuffle(_) => {}
                Order::Key(_) => options = options.then_by(compare_keys),
            }
            let cut_shards = Arc::clone(&shards);
            let cut = move |totals: &[SplitTotals]| cut_shards.cut(totals).map_err(Carried::boxed);
            records
                .sort("sort", options)
                .write_shards("write", cut, Sink(Arc::clone(&shards)))
                .collect(&collected);
        }
    };
    job.run_graph(graph)?;
    let mut summaries = Vec::new();
    let mut found = 0;
    for written in collected.take() {
        if let Some(mut summary) = written.summary {
            summary.found = written.found;
            found += u64::from(written.found);
            summaries.push(summary);
        }
    }
    let counts = (
        tally.passed.load(Ordering::Relaxed),
        tally.filtered.load(Ordering::Relaxed),
    );
    let counts = job.team.gather(counts)?.unwrap_or_default();
    let passed: u64 = counts.iter().map(|(passed, _)| passed).sum();
    Ok(Finished {
        summaries,
        filtered: counts.iter().map(|(_, filtered)| filtered).sum(),
        duplicates: if wish.dedup.is_some() {
            passed.saturating_sub(shards.kept.load(Ordering::Relaxed))
        } else {
            0
        },
        found,
    })
}

/// The row of shards that each input's records go to.
fn split_of(plan: &Plan, rows: Rows) -> Vec<u32> {
    let mut found = vec![0; plan.inputs.len()];
    for (split, planned) in plan.splits.iter().enumerate() {
        for input in planned.inputs.clone() {
            found[input] = match rows {
                Rows::Inputs => input as u32,
                Rows::Splits => split as u32,
            };
        }
    }
    found
}

/// Bounds of source order that give each worker about as many bytes.
fn by_source(plan: &Plan, num_workers: usize) -> Partition {
    let total: u64 = plan.counts.iter().map(|count| count.payload_bytes + 1).sum();
    let mut bounds: Vec<Key> = Vec::new();
    let (mut before, mut worker) = (0, 1);
    for (input, count) in plan.counts.iter().enumerate() {
        let bytes = count.payload_bytes + 1;
        while worker < num_workers as u64 && total * worker / (num_workers as u64) < before + bytes {
            let inside =
                total * worker / num_workers as u64 - before.min(total * worker / num_workers as u64);
            let record = (u128::from(count.records) * u128::from(inside) / u128::from(bytes)) as u64;
            let bound = source_key(input as u64, record);
            if bounds.last().is_none_or(|last| *last < bound) {
                bounds.push(bound);
            }
            worker += 1;
        }
        before += bytes;
    }
    Partition::Bounds(bounds.into())
}

fn source_key(input: u64, position: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&input.to_be_bytes());
    key[8..].copy_from_slice(&position.to_be_bytes());
    key
}

fn shuffle_key(seed: u64, input: u64, position: u64) -> Key {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&input.to_le_bytes());
    bytes[16..].copy_from_slice(&position.to_le_bytes());
    first_half(&blake3::hash(&bytes))
}

fn first_half(hash: &blake3::Hash) -> Key {
    let mut key = [0; 16];
    key.copy_from_slice(&hash.as_bytes()[..16]);
    key
}

/// The bytes of a feature's first value that order it: kind, then value. Empty where there is none.
fn value_key(feature: Option<&FeatureView<'_>>, out: &mut Vec<u8>) {
    match feature {
        Some(FeatureView::Int64(list)) => {
            if let Some(value) = list.iter().next() {
                out.push(1);
                out.extend((value ^ i64::MIN).to_be_bytes());
            }
        }
        Some(FeatureView::Float(list)) => {
            if let Some(value) = list.iter().next() {
                let bits = value.to_bits();
                // IEEE's total order: all bits of negative numbers turn round, the sign of positive ones.
                let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
                out.push(2);
                out.extend(ordered.to_be_bytes());
            }
        }
        Some(FeatureView::Bytes(list)) => {
            if let Some(value) = list.first() {
                out.push(3);
                out.extend_from_slice(value);
            }
        }
        _ => {}
    }
}

/// All values of a feature, for comparing them: whatever their encoding in the record.
fn content_of(feature: &FeatureView<'_>, out: &mut Vec<u8>) {
    match feature {
        FeatureView::Int64(list) => {
            out.push(1);
            list.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        FeatureView::Float(list) => {
            out.push(2);
            list.iter()
                .for_each(|value| out.extend(value.to_bits().to_le_bytes()));
        }
        FeatureView::Bytes(list) => {
            out.push(3);
            for value in list.iter() {
                out.extend((value.len() as u64).to_le_bytes());
                out.extend_from_slice(value);
            }
        }
        _ => {}
    }
}

/// A payload on its way: the key's bytes and the record. Only `key:` orders have such.
///
/// | bytes | field |
/// | --- | --- |
/// | 4 | length of the key, little-endian |
/// | .. | the key |
/// | .. | the record |
fn keyed(data: &[u8]) -> (&[u8], &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<4>() else {
        return (&[], data);
    };
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
        .unwrap_or((&[], rest))
}

/// Compares the keys that do not fit into 16 bytes.
fn compare_keys(a: &[u8], b: &[u8]) -> Order2 {
    // Of equal values the order of their origins counts.
    keyed(a).0.cmp(keyed(b).0)
}

fn prefix(key: &[u8]) -> Key {
    let mut found = [0; 16];
    let count = key.len().min(16);
    found[..count].copy_from_slice(&key[..count]);
    found
}

/// A record that was sorted by its content gets the key of its order.
fn reorder(mut record: Record, order: &Order, split_of: &[u32]) -> Result<Record> {
    let (input, position) = prep_dataflow::split_origin(record.origin);
    record.split = split_of.get(input as usize).copied().unwrap_or(0);
    record.key = match order {
        Order::Source => source_key(input.into(), position),
        Order::Shuffle(seed) => shuffle_key(*seed, input.into(), position),
        Order::Key(_) => prefix(keyed(&record.data).0),
    };
    Ok(record)
}

/// The records of one piece.
struct Reading {
    job: Arc<Job>,
    wish: Arc<Wish>,
    tally: Arc<Tally>,
    splits: Arc<Vec<u32>>,
    stop: StopSignal,
    reader: BlockReader,
    left: u64,
    input: usize,
    block: Block,
    /// Where in the block the next record is, and the position of the block's first.
    next: usize,
    position: u64,
    batch: RecordBatch,
    scratch: Scratch,
    scribe: Scribe,
    key: Vec<u8>,
    out: Vec<u8>,
    ended: bool,
}

impl Reading {
    fn begin(
        piece: Piece,
        job: &Arc<Job>,
        wish: &Arc<Wish>,
        tally: &Arc<Tally>,
        splits: &Arc<Vec<u32>>,
        stop: &StopSignal,
    ) -> Result<Self> {
        let plan = ReadPlan {
            block_bytes: job.block_bytes.min(256 << 10),
            check: !job.ledger.stops(),
            counted: true,
            sum: false,
        };
        let file = &job.plan.inputs[piece.input];
        Ok(Self {
            reader: BlockReader::open(file, piece.input, piece.from, plan, &job.ledger)?,
            job: Arc::clone(job),
            wish: Arc::clone(wish),
            tally: Arc::clone(tally),
            splits: Arc::clone(splits),
            stop: stop.clone(),
            left: piece.records.unwrap_or(u64::MAX),
            input: piece.input,
            block: Block::default(),
            next: 0,
            position: piece.from.records,
            batch: RecordBatch::default(),
            scratch: Scratch::default(),
            scribe: Scribe::default(),
            key: Vec::new(),
            out: Vec::new(),
            ended: false,
        })
    }

    fn advance(&mut self) -> Result<Option<Record>> {
        crate::fault::pass("read");
        loop {
            while self.next < self.block.records.len() {
                let place = self.next;
                self.next += 1;
                if let Some(record) = self.record(place)? {
                    return Ok(Some(record));
                }
            }
            if self.ended || self.left == 0 {
                return Ok(None);
            }
            self.job.monitor.check()?;
            if self.stop.is_stopped() {
                return Err(Cancelled.into());
            }
            self.position += self.block.records.len() as u64;
            self.ended = !self.reader.next(self.left, &mut self.block)?;
            let name = &self.job.plan.inputs[self.input].shown;
            self.block.complete(name, &mut self.batch, &mut self.scratch)?;
            self.left -= self.block.records.len() as u64;
            self.next = 0;
        }
    }

    /// Filters, changes and keys a record; `None` where the filter leaves it out.
    fn record(&mut self, place: usize) -> Result<Option<Record>> {
        let position = self.position + place as u64;
        let data = &self.block.buffer[self.block.records[place].clone()];
        let file = &self.job.plan.inputs[self.input];
        let context = || format!("{}, record {}", file.shown, self.block.first + place as u64);
        let wish = &*self.wish;
        let (input, origin) = (
            self.input as u64,
            prep_dataflow::origin(self.input as u32, position),
        );
        self.out.clear();
        self.key.clear();
        let mut content = None;
        if let Some(transform) = &self.job.transform {
            let example = transform.parse(&mut self.scribe, data).with_context(context)?;
            if let Some(filter) = &wish.filter
                && !filter
                    .holds(&example)
                    .map_err(|reason| anyhow!(reason))
                    .with_context(context)?
            {
                self.tally.filtered.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            content = Some(keys_of(wish, &example, data, origin, &mut self.key));
            if matches!(wish.order, Order::Key(_)) {
                let length = u32::try_from(self.key.len())
                    .context("a key is longer than 4 GiB")
                    .with_context(context)?;
                self.out.extend(length.to_le_bytes());
                self.out.extend_from_slice(&self.key);
            }
            write(transform, &example, data, &mut self.out).with_context(context)?;
        } else {
            self.out.extend_from_slice(data);
        }
        self.tally.passed.fetch_add(1, Ordering::Relaxed);
        let content = match (&wish.dedup, content) {
            (Some(_), Some(content)) => Some(content),
            (Some(_), None) => Some(first_half(&blake3::hash(data))),
            (None, _) => None,
        };
        Ok(Some(match content {
            Some(key) => Record {
                split: 0,
                key,
                origin,
                data: Bytes::copy_from_slice(&self.out),
            },
            None => Record {
                split: self.splits[self.input],
                key: match &wish.order {
                    Order::Source => source_key(input, position),
                    Order::Shuffle(seed) => shuffle_key(*seed, input, position),
                    Order::Key(_) => prefix(&self.key),
                },
                origin,
                data: Bytes::copy_from_slice(&self.out),
            },
        }))
    }
}

/// Notes the key of the order, and gives what the content is compared by.
fn keys_of(wish: &Wish, example: &ExampleView<'_>, data: &[u8], origin: u64, key: &mut Vec<u8>) -> Key {
    if let Order::Key(feature) = &wish.order {
        value_key(example.get(feature), key);
    }
    match &wish.dedup {
        Some(Dedup::Feature(feature)) => {
            let mut content = Vec::new();
            if let Some(feature) = example.get(feature).filter(|feature| !feature.is_empty()) {
                content_of(feature, &mut content);
            } else {
                // Records without a value are not equal to each other.
                content.push(0);
                content.extend(origin.to_le_bytes());
            }
            first_half(&blake3::hash(&content))
        }
        Some(Dedup::Bytes) => first_half(&blake3::hash(data)),
        None => [0; 16],
    }
}

fn write(transform: &Transform, example: &ExampleView<'_>, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
    if transform.is_identity() {
        out.extend_from_slice(data);
        return Ok(());
    }
    transform.write(example, out)
}

impl Iterator for Reading {
    type Item = Result<Record, BoxError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance()
            .map_err(|error| Carried::boxed(advise(error, !self.job.ledger.stops())))
            .transpose()
    }
}

/// Cuts and writes shards.
struct Shards {
    job: Arc<Job>,
    wish: Arc<Wish>,
    rows: Rows,
    earlier: Vec<ShardSummary>,
    /// The shards of each row, in the order of the rows; what a limit leaves out is one more.
    layout: OnceLock<Layout>,
    /// Records that were sorted.
    kept: AtomicU64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Layout {
    /// By row and place in it: the place among all shards, the path, and the split.
    #[serde(with = "pairs")]
    shards: HashMap<(u32, u32), (usize, String, usize)>,
    /// (row, records, bytes) of all rows: with them, and nothing else changed, a shard would be the same again.
    stamp: Vec<(usize, u64, u64)>,
}

/// A map whose keys are no texts, as a list.
mod pairs {
    use std::collections::HashMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Map = HashMap<(u32, u32), (usize, String, usize)>;
    type Pair = ((u32, u32), (usize, String, usize));

    pub(super) fn serialize<S: Serializer>(map: &Map, serializer: S) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map, D::Error> {
        let pairs: Vec<Pair> = Vec::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}

/// Where the leader writes the layout, for the other processes.
const LAYOUT_FILE: &str = "layout.json";
/// How long it may take to show on another machine.
const VISIBLE: std::time::Duration = std::time::Duration::from_secs(15);

/// Removes the layout of an earlier run.
pub(crate) fn forget_layout(root: &std::path::Path) -> Result<()> {
    let path = root.join(LAYOUT_FILE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(anyhow!(error).context(format!("could not remove {}", path.display())))
        }
        _ => Ok(()),
    }
}

impl Shards {
    fn cut(&self, totals: &[SplitTotals]) -> Result<Vec<SplitPlan>> {
        let plan = &self.job.plan;
        self.kept
            .store(totals.iter().map(|row| row.records).sum(), Ordering::Relaxed);
        let mut plans = Vec::new();
        let mut shards = HashMap::new();
        let mut index = 0;
        let mut left = self.wish.limit.unwrap_or(u64::MAX);
        for (row, total) in totals.iter().enumerate() {
            let records = total.records.min(left);
            left -= records;
            let bytes =
                (u128::from(total.bytes) * u128::from(records) / u128::from(total.records.max(1))) as u64;
            let (split_index, places) = match self.rows {
                Rows::Splits => {
                    let split = &plan.splits[row];
                    let count = number_of_shards(self.wish.shards, split.inputs.len(), records, bytes);
                    (row, (0..count).map(|place| (place, count)).collect::<Vec<_>>())
                }
                Rows::Inputs => {
                    let index = plan.splits.iter().position(|split| split.inputs.contains(&row));
                    let index = index.context("an input belongs to no split")?;
                    let split = &plan.splits[index];
                    let place = (row - split.inputs.start) as u64;
                    (index, vec![(place, split.inputs.len() as u64)])
                }
            };
            let split = &plan.splits[split_index];
            let mut boundaries = boundaries(records, places.len() as u64);
            for (at, (place, count)) in places.iter().enumerate() {
                shards.insert(
                    (row as u32, at as u32),
                    (index, split.file_name(*place, *count), split_index),
                );
                index += 1;
            }
            if total.records > records {
                // One that is not written.
                boundaries.push(total.records);
            }
            plans.push(SplitPlan { boundaries });
        }
        self.job
            .meter
            .set_total(totals.iter().map(|row| row.records).sum());
        let layout = Layout {
            shards,
            stamp: totals
                .iter()
                .enumerate()
                .map(|(row, total)| (row, total.records, total.bytes))
                .collect(),
        };
        if self.job.is_cluster() {
            write_synced(&self.layout_path(), &serde_json::to_vec(&layout)?)?;
        }
        let _ = self.layout.set(layout);
        Ok(plans)
    }

    fn layout_path(&self) -> std::path::PathBuf {
        self.job.out.with_file_name(LAYOUT_FILE)
    }

    /// The layout: this process's own, or the leader's.
    fn layout(&self) -> Result<&Layout> {
        if let Some(layout) = self.layout.get() {
            return Ok(layout);
        }
        let path = self.layout_path();
        let deadline = std::time::Instant::now() + VISIBLE;
        loop {
            match std::fs::read(&path) {
                Ok(text) => {
                    let layout = serde_json::from_slice(&text)
                        .with_context(|| format!("could not read {}", path.display()))?;
                    return Ok(self.layout.get_or_init(|| layout));
                }
                Err(_) if std::time::Instant::now() < deadline => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                Err(error) => {
                    return Err(anyhow!(error).context(format!("could not read {}", path.display())));
                }
            }
        }
    }
}

/// One sink for all workers.
struct Sink(Arc<Shards>);

impl ShardSink for Sink {
    /// `None` for what a limit leaves out.
    type Summary = Option<ShardSummary>;
    type Writer = Writing;

    fn open(&self, shard: &Shard) -> Result<Writing, BoxError> {
        self.begin(shard).map_err(Carried::boxed)
    }

    fn complete(&self, shard: &Shard) -> Result<Option<Self::Summary>, BoxError> {
        let layout = self.0.layout().map_err(Carried::boxed)?;
        let Some((index, path, _)) = layout.shards.get(&(shard.split, shard.index)) else {
            // Beyond the limit: nothing is to be written.
            return Ok(Some(None));
        };
        let stamp = &layout.stamp;
        let found = self.0.earlier.iter().rev().find(|summary| {
            summary.index == *index
                && summary.path == *path
                && summary.records == shard.records
                && summary.stamp == *stamp
        });
        let found = found.filter(|summary| {
            std::fs::metadata(self.0.job.out.join(&summary.path))
                .is_ok_and(|file| file.len() == summary.file_bytes)
        });
        if let Some(summary) = found {
            self.0.job.meter.add(summary.records);
        }
        Ok(found.cloned().map(Some))
    }
}

impl Sink {
    fn begin(&self, shard: &Shard) -> Result<Writing> {
        let job = &self.0.job;
        let layout = self.0.layout()?;
        let place = layout.shards.get(&(shard.split, shard.index));
        let (index, path, split) = place.context("a shard is not in the plan")?;
        Ok(Writing {
            file: ShardFile::create(job.out.join(path), &job.options, job.sha256, None)?,
            summary: ShardSummary {
                index: *index,
                split: *split,
                path: path.clone(),
                stamp: layout.stamp.clone(),
                ..ShardSummary::default()
            },
            hash: SequenceHash::default(),
            unreported: 0,
            started: std::time::Instant::now(),
            is_keyed: matches!(self.0.wish.order, Order::Key(_)),
            job: Arc::clone(job),
        })
    }
}

/// A shard that is being written.
struct Writing {
    job: Arc<Job>,
    file: ShardFile,
    summary: ShardSummary,
    hash: SequenceHash,
    unreported: u64,
    started: std::time::Instant,
    is_keyed: bool,
}

impl ShardWriter for Writing {
    type Summary = Option<ShardSummary>;

    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        let data = if self.is_keyed {
            keyed(&record.data).1
        } else {
            &record.data
        };
        self.file
            .writer
            .write(data)
            .map_err(|error| Carried::boxed(error.into()))?;
        if self.job.fingerprint {
            self.hash.push(data);
        }
        self.summary.records += 1;
        self.summary.payload_bytes += data.len() as u64;
        self.unreported += 1;
        if self.unreported == 256 {
            self.job.meter.add(std::mem::take(&mut self.unreported));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Self::Summary, BoxError> {
        self.job.meter.add(self.unreported);
        self.summary.sequence_hash = self.job.fingerprint.then(|| self.hash.to_hex());
        self.summary.names = self.job.names();
        self.summary.seconds = self.started.elapsed().as_secs_f64();
        let ended = self.file.end(self.summary).map_err(Carried::boxed)?;
        let summary = ended.complete(&self.job.journal, Some(&self.job.verify_meter));
        summary.map(Some).map_err(Carried::boxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use prep_formats::example::{Example, FeatureList};

    fn key(list: FeatureList) -> Vec<u8> {
        let mut example = Example::default();
        example.features.insert("x".into(), list);
        let record = example.encode();
        let view = ExampleView::parse(&record).unwrap();
        let mut key = Vec::new();
        value_key(view.get("x"), &mut key);
        key
    }

    proptest! {
        #[test]
        fn keys_order_as_their_values(a in any::<i64>(), b in any::<i64>(), x in any::<f32>(), y in any::<f32>(), s in prop::collection::vec(any::<u8>(), 0..40), t in prop::collection::vec(any::<u8>(), 0..40)) {
            let int = |value| key(FeatureList::Int64(vec![value]));
            prop_assert_eq!(int(a).cmp(&int(b)), a.cmp(&b));
            let float = |value| key(FeatureList::Float(vec![value]));
            prop_assert_eq!(float(x).cmp(&float(y)), x.total_cmp(&y));
            let bytes = |value: &Vec<u8>| key(FeatureList::Bytes(vec![value.clone()]));
            let (left, right) = (bytes(&s), bytes(&t));
            prop_assert_eq!(left.cmp(&right), s.cmp(&t));
            // The first 16 bytes never say more than the whole.
            prop_assert!(prefix(&left).cmp(&prefix(&right)) == left.cmp(&right) || prefix(&left) == prefix(&right));
            prop_assert!(key(FeatureList::None) < int(a) && int(a) < float(x) && float(x) < left);
        }
    }

    #[test]
    fn long_keys_travel_with_their_records() {
        let data = [&3u32.to_le_bytes()[..], b"key", b"record"].concat();
        assert_eq!(keyed(&data), (&b"key"[..], &b"record"[..]));
        assert_eq!(keyed(b"abc"), (&b""[..], &b"abc"[..]));
        assert_eq!(compare_keys(&data, &data), Order2::Equal);
    }

    #[test]
    fn the_shuffle_is_the_documented_hash() {
        let bytes = [7u64, 2, 100].map(u64::to_le_bytes).concat();
        assert_eq!(shuffle_key(7, 2, 100), blake3::hash(&bytes).as_bytes()[..16]);
    }
}
