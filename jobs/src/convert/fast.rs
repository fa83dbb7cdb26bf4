//! Source order without filter: every shard is a task of its own, and no record moves between workers.
//!
//! ```text
//! shards of the plan, the largest first -> convert (a driver a worker, helped by idle ones) -> summaries
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use prep_catalog::fingerprint::SequenceHash;
use prep_dataflow::{BoxError, Collected, StopSignal, Weigh};

use crate::convert::crew::{Crew, Driver};
use crate::convert::job::Job;
use crate::convert::ledger::advise;
use crate::convert::plan::{Plan, Segment, changed};
use crate::convert::read::{Block, BlockReader, ReadPlan};
use crate::convert::shard::{Finisher, InputSum, ShardFile, ShardSummary};
use crate::error::Cancelled;
use crate::error::Carried;

impl Weigh for ShardSummary {}

/// Shards that one thread writes one after the other.
type Task = Vec<usize>;

/// The shards that are missing, as tasks: the largest first.
fn tasks(plan: &Plan, found: &HashMap<usize, ShardSummary>) -> Vec<Task> {
    let mut tasks: Vec<Task> = Vec::new();
    for (index, shard) in plan.shards.iter().enumerate() {
        if found.contains_key(&index) {
            continue;
        }
        match tasks.last_mut() {
            Some(task) if shard.follows && task.last() == Some(&(index - 1)) => task.push(index),
            _ => tasks.push(vec![index]),
        }
    }
    let weight = |task: &Task| task.iter().map(|shard| plan.shards[*shard].weight).sum::<u64>();
    tasks.sort_by_key(|task| (std::cmp::Reverse(weight(task)), task[0]));
    tasks
}

/// Deals tasks to processes, so that all get about as many bytes: the largest first, each to the one that has least.
fn deal(plan: &Plan, tasks: Vec<Task>, num_processes: usize) -> Vec<VecDeque<Task>> {
    let mut hands: Vec<(u64, VecDeque<Task>)> = vec![Default::default(); num_processes];
    for task in tasks {
        let weight: u64 = task.iter().map(|shard| plan.shards[*shard].weight).sum();
        if let Some((total, hand)) = hands.iter_mut().min_by_key(|(total, _)| *total) {
            // A shard costs something even if it is empty.
            *total += weight + 1;
            hand.push_back(task);
        }
    }
    hands.into_iter().map(|(_, hand)| hand).collect()
}

/// Writes all shards that are not found, and gives the summaries of these.
pub(crate) fn run(job: &Arc<Job>, found: &HashMap<usize, ShardSummary>) -> Result<Vec<ShardSummary>> {
    let tasks = tasks(&job.plan, found);
    if tasks.is_empty() && !job.is_cluster() {
        return Ok(Vec::new());
    }
    let hands = deal(&job.plan, tasks, job.num_processes());
    let mine = hands.into_iter().nth(job.process_index()).unwrap_or_default();
    let crew = Arc::new(Crew::new(job.work()?, job.workers)?);
    let queue = Arc::new(Mutex::new(mine));
    let collected = Collected::new();
    let graph = {
        let (job, collected) = (Arc::clone(job), collected.clone());
        move |pipeline: &prep_dataflow::Pipeline<'_>| {
            let (job, crew, queue) = (Arc::clone(&job), Arc::clone(&crew), Arc::clone(&queue));
            let stop = pipeline.stop_signal();
            let open = move |_slot: usize| -> Result<Shards, BoxError> {
                Shards::begin(&job, &crew, &queue, &stop).map_err(Carried::boxed)
            };
            pipeline
                .source("convert", (0..pipeline.num_workers()).collect(), open)
                .collect(&collected);
        }
    };
    job.run_graph(graph)?;
    Ok(collected.take())
}

/// The shards that one driver writes.
struct Shards {
    job: Arc<Job>,
    crew: Arc<Crew>,
    queue: Arc<Mutex<VecDeque<Task>>>,
    stop: StopSignal,
    driver: Option<Driver>,
    finisher: Finisher,
    task: VecDeque<usize>,
    /// The compressed input that the last shard did not read to its end: (input, good records read, reader).
    open: Option<(usize, u64, BlockReader)>,
}

impl Shards {
    fn begin(
        job: &Arc<Job>,
        crew: &Arc<Crew>,
        queue: &Arc<Mutex<VecDeque<Task>>>,
        stop: &StopSignal,
    ) -> Result<Self> {
        Ok(Self {
            finisher: Finisher::start(Arc::clone(&job.journal), Some(Arc::clone(&job.verify_meter)))?,
            job: Arc::clone(job),
            crew: Arc::clone(crew),
            queue: Arc::clone(queue),
            stop: stop.clone(),
            driver: None,
            task: VecDeque::new(),
            open: None,
        })
    }

    fn next_shard(&mut self) -> Option<usize> {
        if self.task.is_empty() {
            self.open = None;
            let task = self
                .queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front()?;
            self.task = task.into();
        }
        self.task.pop_front()
    }

    fn check(&self) -> Result<()> {
        self.job.monitor.check()?;
        if self.stop.is_stopped() {
            return Err(Cancelled.into());
        }
        Ok(())
    }

    /// The next finished shard.
    fn advance(&mut self) -> Result<Option<ShardSummary>> {
        loop {
            if let Some(result) = self.finisher.try_next() {
                return result.map(Some);
            }
            match self.next_shard() {
                Some(index) => {
                    let mut driver = match self.driver.take() {
                        Some(driver) => driver,
                        None => self.crew.driver()?,
                    };
                    self.write(index, &mut driver)?;
                    self.driver = Some(driver);
                }
                None => {
                    // From here on this thread's core is free for others.
                    self.driver = None;
                    return self.finisher.next().transpose();
                }
            }
        }
    }

    /// Writes a shard, and hands it to the finisher.
    fn write(&mut self, index: usize, driver: &mut Driver) -> Result<()> {
        let job = Arc::clone(&self.job);
        let shard = &job.plan.shards[index];
        let started = std::time::Instant::now();
        let _span = prep_dataflow::trace::span("write", format!("write {}", shard.path));
        let hashed = job.fingerprint;
        let path = job.out.join(&shard.path);
        let mut file = ShardFile::create(path, &job.options, job.sha256, Some(&self.finisher))?;
        let mut summary = ShardSummary {
            index,
            split: shard.split,
            path: shard.path.clone(),
            ..ShardSummary::default()
        };
        let mut hash = SequenceHash::default();
        let mut whole_groups = Groups::new(job.options.group_size() as usize);
        for segment in &shard.segments {
            self.read(
                segment,
                driver,
                &mut file,
                &mut summary,
                &mut hash,
                &mut whole_groups,
            )?;
        }
        if let Some(block) = whole_groups.rest() {
            submit(driver, block);
        }
        while let Some(done) = driver.next() {
            place(driver, &mut file, done?, &mut summary, &mut hash)?;
        }
        job.meter.add(summary.records);
        if shard.records.is_some_and(|records| records != summary.records) {
            bail!(
                "the shard {} has {} records, {} were planned: an input was changed while it was read",
                shard.path,
                summary.records,
                shard.records.unwrap_or_default()
            );
        }
        summary.sequence_hash = hashed.then(|| hash.to_hex());
        summary.names = job.names();
        summary.seconds = started.elapsed().as_secs_f64();
        self.finisher.submit(file.end(summary)?)
    }

    /// Reads one segment of a shard through the driver into its file.
    fn read(
        &mut self,
        segment: &Segment,
        driver: &mut Driver,
        file: &mut ShardFile,
        summary: &mut ShardSummary,
        hash: &mut SequenceHash,
        groups: &mut Groups,
    ) -> Result<()> {
        let job = Arc::clone(&self.job);
        let input = &job.plan.inputs[segment.input];
        let counted = job.plan.is_counted();
        let mut at = segment.from.records;
        let kept = self
            .open
            .take()
            .filter(|(open, at, _)| *open == segment.input && *at <= segment.skip);
        let plan = ReadPlan {
            block_bytes: job.block_bytes,
            check: !job.ledger.stops() || !groups.is_single(),
            counted,
            sum: true,
        };
        let mut reader = match kept {
            Some((_, read, reader)) => {
                at = read;
                reader
            }
            None => BlockReader::open(input, segment.input, segment.from, plan, &job.ledger)?,
        };
        let start = segment.from.records + segment.skip;
        let mut block = Block::default();
        while at < start {
            self.check()?;
            let more = reader.next(start - at, &mut block)?;
            at += block.len();
            if !more && at < start {
                return Err(changed(input));
            }
        }
        let end = segment.records.map(|records| start + records);
        let skipped = job.ledger.skipped(segment.input);
        let mut read = 0;
        loop {
            self.check()?;
            let left = end.map_or(u64::MAX, |end| end - at);
            if left == 0 {
                break;
            }
            let mut done = driver.blank();
            let more = reader.next(left, &mut done.block)?;
            let count = done.block.len();
            at += count;
            read += count;
            if groups.is_single() {
                if count > 0 {
                    driver.submit(done);
                } else {
                    driver.recycle(done);
                }
            } else {
                groups.add(&done.block);
                driver.recycle(done);
                while let Some(block) = groups.whole() {
                    submit(driver, block);
                    drain(driver, file, summary, hash)?;
                }
            }
            drain(driver, file, summary, hash)?;
            if !more {
                if end.is_some_and(|end| at < end) {
                    return Err(changed(input));
                }
                break;
            }
        }
        if let Some((range, crc64)) = reader.sum() {
            summary.sums.push(InputSum {
                input: segment.input,
                start: range.start,
                end: range.end,
                crc64,
            });
        }
        if !counted {
            let skipped = job.ledger.skipped(segment.input) - skipped;
            summary.counts.push((segment.input, read, skipped));
        }
        if input.kind.is_compressed() {
            self.open = Some((segment.input, at, reader));
        }
        Ok(())
    }
}

/// Places the oldest blocks until another may be handed in.
fn drain(
    driver: &mut Driver,
    file: &mut ShardFile,
    summary: &mut ShardSummary,
    hash: &mut SequenceHash,
) -> Result<()> {
    while driver.is_full() {
        let Some(done) = driver.next() else {
            break;
        };
        place(driver, file, done?, summary, hash)?;
    }
    Ok(())
}

fn submit(driver: &mut Driver, block: Block) {
    let mut done = driver.blank();
    done.block = block;
    driver.submit(done);
}

fn place(
    driver: &mut Driver,
    file: &mut ShardFile,
    done: crate::convert::crew::Done,
    summary: &mut ShardSummary,
    hash: &mut SequenceHash,
) -> Result<()> {
    file.writer.write_encoded(&done.encoded, &done.block.buffer)?;
    summary.records += done.encoded.num_records();
    summary.payload_bytes += done.payload_bytes;
    *hash = hash.join(done.hash);
    driver.recycle(done);
    Ok(())
}

impl Iterator for Shards {
    type Item = Result<ShardSummary, BoxError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance()
            .map_err(|error| Carried::boxed(advise(error, !self.job.ledger.stops())))
            .transpose()
    }
}

/// Joins records of several blocks where chunks hold several records: a block that is encoded has to hold whole groups.
struct Groups {
    group_size: usize,
    block: Block,
    /// Bytes from which on a block goes.
    most_bytes: usize,
}

impl Groups {
    fn new(group_size: usize) -> Self {
        Self {
            group_size,
            block: Block::default(),
            most_bytes: 1 << 20,
        }
    }

    /// Whether any block holds whole groups.
    fn is_single(&self) -> bool {
        self.group_size == 1
    }

    fn add(&mut self, other: &Block) {
        if self.block.records.is_empty() {
            (self.block.input, self.block.first) = (other.input, other.first);
        }
        for range in &other.records {
            let start = self.block.buffer.len();
            self.block.buffer.extend_from_slice(&other.buffer[range.clone()]);
            self.block.records.push(start..self.block.buffer.len());
        }
    }

    /// A block of whole groups, if there is enough for one.
    fn whole(&mut self) -> Option<Block> {
        let count = self.block.records.len() / self.group_size * self.group_size;
        if count == 0 || self.block.buffer.len() < self.most_bytes {
            return None;
        }
        let rest = self.block.records.split_off(count);
        let end = self.block.records.last().map_or(0, |range| range.end);
        let tail = self.block.buffer.split_off(end);
        let next = Block {
            records: rest
                .into_iter()
                .map(|range| range.start - end..range.end - end)
                .collect(),
            buffer: tail,
            input: self.block.input,
            first: self.block.first + count as u64,
            ..Block::default()
        };
        Some(std::mem::replace(&mut self.block, next))
    }

    /// All that is left.
    fn rest(&mut self) -> Option<Block> {
        let rest = std::mem::take(&mut self.block);
        (!rest.records.is_empty()).then_some(rest)
    }
}

/// What an earlier run, or an earlier process of a cluster, finished: by place in the plan. A file that is not there any more, or not whole, does
/// not count.
pub(crate) fn finished(
    job_out: &std::path::Path,
    plan: &Plan,
    entries: Vec<ShardSummary>,
) -> HashMap<usize, ShardSummary> {
    let mut found = HashMap::new();
    for mut summary in entries {
        let is_planned = plan.shards.get(summary.index).is_some_and(|shard| {
            shard.path == summary.path && shard.records.is_none_or(|records| records == summary.records)
        });
        let is_there =
            std::fs::metadata(job_out.join(&summary.path)).is_ok_and(|file| file.len() == summary.file_bytes);
        if is_planned && is_there {
            summary.found = true;
            found.insert(summary.index, summary);
        }
    }
    found
}

/// The checksums of what was read of each input: (bytes, checksum); `None` where the pieces do not join.
pub(crate) fn join_sums(num_inputs: usize, summaries: &[ShardSummary]) -> Vec<Option<(u64, u64)>> {
    let mut pieces: Vec<Vec<&InputSum>> = vec![Vec::new(); num_inputs];
    for sum in summaries.iter().flat_map(|summary| &summary.sums) {
        if let Some(pieces) = pieces.get_mut(sum.input) {
            pieces.push(sum);
        }
    }
    pieces
        .into_iter()
        .map(|mut pieces| {
            pieces.sort_by_key(|piece| (piece.start, piece.end));
            let mut joined: Option<(u64, u64)> = None;
            for piece in pieces {
                joined = match joined {
                    None if piece.start == 0 => Some((piece.end, piece.crc64)),
                    Some((end, crc)) if end == piece.start => {
                        let crc = crc_fast::checksum_combine(
                            crate::convert::read::CRC,
                            crc,
                            piece.crc64,
                            piece.end - end,
                        );
                        Some((piece.end, crc))
                    }
                    _ => return None,
                };
            }
            joined
        })
        .collect()
}
