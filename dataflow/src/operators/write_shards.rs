//! Cuts sorted records into shards and writes each of them in order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use serde::{Deserialize, Serialize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{DistributorPact, Exchange, Pipeline as Local};
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Feedback, Operator};
use timely::progress::Antichain;
use timely::scheduling::{Activator, SyncActivator};

use crate::container::{Batch, Chunk, ToNamedWorker};
use crate::job::Job;
use crate::operators::records::refuse;
use crate::operators::{Duplicates, Sorted};
use crate::options::WINDOW;
use crate::pipeline::{Collection, Epoch};
use crate::progress::{Account, Counters};
use crate::queue::{Next, Sender, queue};
use crate::record::{Record, Weigh};
use crate::schedule::{Decision, Schedule, Shard, SplitPlan, SplitTotals, shards};
use crate::spill::{Cursor, Duplicate, SortedRun};
use crate::{BoxError, Error};

/// Opens shards for writing.
pub trait ShardSink: Send + Sync + 'static {
    /// What is kept of a finished shard. It travels to where it is collected.
    type Summary: Serialize + for<'de> Deserialize<'de> + Send + 'static;
    /// Writes one shard, on one thread.
    type Writer: ShardWriter<Summary = Self::Summary>;

    /// Begins a shard. May block; each worker has one thread that writes its shards one after the other.
    ///
    /// # Errors
    ///
    /// Any error ends the job.
    fn open(&self, shard: &Shard) -> Result<Self::Writer, BoxError>;

    /// Told once on each worker of each process, before any shard is opened: how much each split holds. Default: nothing.
    fn begin(&self, _totals: &[SplitTotals]) {}

    /// Whether a shard was already finished by an earlier, interrupted job: then it isn't written again, and none of its records move.
    /// Asked once for each shard, on worker 0, before any shard is opened. Default: no.
    ///
    /// # Errors
    ///
    /// Any error ends the job.
    fn complete(&self, _shard: &Shard) -> Result<Option<Self::Summary>, BoxError> {
        Ok(None)
    }
}

/// Writes the records of one shard.
///
/// Dropped without [`finish`](Self::finish) where the job fails: then it should remove what it wrote.
pub trait ShardWriter {
    /// See [`ShardSink::Summary`].
    type Summary;

    /// Takes the next record; they come in the order of their positions. May block.
    ///
    /// # Errors
    ///
    /// Any error ends the job.
    fn write(&mut self, record: &Record) -> Result<(), BoxError>;

    /// Completes the shard, when it has had [`Shard::records`] records.
    ///
    /// # Errors
    ///
    /// Any error ends the job.
    fn finish(self) -> Result<Self::Summary, BoxError>;
}

/// A shard that is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written<S> {
    /// Which one, and how many records it has.
    pub shard: Shard,
    /// Whether it was found complete and not written again.
    pub found: bool,
    /// What its writer, or [`ShardSink::complete`], says of it.
    pub summary: S,
}

impl<S> Weigh for Written<S> {}

/// What one worker tells worker 0 about its sorted records: its index, its totals, and its first pair of equal keys.
type Counts = (u64, Vec<SplitTotals>, Option<Duplicate>);

/// What the operators of one worker share; they run on one thread.
struct Shared<S> {
    run: Option<Arc<SortedRun>>,
    schedule: Option<Rc<Schedule>>,
    found: Vec<Written<S>>,
    wake_writer: Option<Activator>,
}

impl<'scope> Sorted<'scope> {
    /// Writes sorted records into shards and yields what is left of each.
    ///
    /// When the sort is done, worker 0 is told how much every worker holds and calls `plan` once, with the totals of each split, to learn
    /// where to cut them. Shards are dealt to workers in contiguous blocks of about equal work. A thread on each worker reads the sorted
    /// records, another writes its shards, one after the other.
    ///
    /// Moves every record to the worker that writes its shard: its pointer within a process, its bytes between processes. Each worker holds
    /// at most 8 batches (of a 64th of the worker's budget, at most 1 MiB; or of one record) for its writer, and one block of sorted
    /// records from disk for each worker that it sends to; `schedule.rs` says why that cannot deadlock. The results come in no
    /// particular order; sort by [`Written::shard`].
    pub fn write_shards<K, P, E>(
        self,
        name: &str,
        plan: P,
        sink: K,
    ) -> Collection<'scope, Written<K::Summary>>
    where
        K: ShardSink,
        P: Fn(&[SplitTotals]) -> Result<Vec<SplitPlan>, E> + 'static,
        E: Into<BoxError>,
    {
        let graph = self.pipeline.0.clone();
        let (scope, job) = (graph.scope, graph.job.clone());
        graph.count_replay();
        let (index, peers) = (scope.index(), scope.peers());
        let (stage, sink): (Arc<str>, _) = (name.into(), Arc::new(sink));
        let none = [] as [(usize, Antichain<Epoch>); 0];
        let shared = Rc::new(RefCell::new(Shared {
            run: None,
            schedule: None,
            found: Vec::new(),
            wake_writer: None,
        }));

        // Each worker counts what it holds, for worker 0.
        let mine = shared.clone();
        let counts =
            self.runs
                .unary::<CapacityContainerBuilder<Vec<Counts>>, _, _, _>(Local, "Count", |_, _| {
                    move |input, output| {
                        input.for_each(|capability, runs| {
                            for run in runs.drain(..) {
                                let counts = (index as u64, run.totals.clone(), run.duplicate);
                                output.session(&capability).give(counts);
                                mine.borrow_mut().run = Some(run);
                            }
                        });
                    }
                });

        // Worker 0 decides.
        let mut planner = Planner {
            stage: stage.clone(),
            sort_stage: self.stage.clone(),
            duplicates: self.options.duplicates,
            plan,
            sink: sink.clone(),
            counts: Vec::new(),
        };
        let (mine, planner_job) = (shared.clone(), job.clone());
        let to_first = Exchange::new(|_: &Counts| 0);
        let decisions = counts.unary::<CapacityContainerBuilder<Vec<(u64, Decision)>>, _, _, _>(
            to_first,
            "Plan",
            |_, _| {
                move |input, output| {
                    input.for_each(|capability, counts| {
                        planner.counts.append(counts);
                        if planner.counts.len() < peers {
                            return;
                        }
                        crate::job::enter(&planner.stage);
                        planner_job.tick();
                        match planner.decide() {
                            Ok((decision, found)) => {
                                mine.borrow_mut().found = found;
                                let each = (0..peers as u64).map(|worker| (worker, decision.clone()));
                                output.session(&capability).give_iterator(each);
                            }
                            Err(error) => planner_job.fail(error),
                        }
                    });
                }
            },
        );

        // Every worker sends its records to their writers: a new source, with a window of its own.
        let (feedback, acks) = scope.feedback::<Vec<()>>(1);
        let mut builder = OperatorBuilder::new("Place".to_owned(), scope);
        let (output, chunks) = builder.new_output::<Chunk>();
        let mut output: OutputBuilder<Epoch, CapacityContainerBuilder<Chunk>> = OutputBuilder::from(output);
        let to_worker = Exchange::new(|(worker, _): &(u64, Decision)| *worker);
        let mut decisions = builder.new_input_connection(decisions, to_worker, none.clone());
        let acks = builder.new_input_connection(acks, Local, none.clone());
        let address = builder.operator_info().address;
        let activator = scope.activator_for(address.clone());
        let wake = scope.worker().sync_activator_for(address.to_vec());
        let shares = graph.shares.clone();
        let (mine, place_job, place_stage) = (shared.clone(), job.clone(), stage.clone());
        let begin = sink.clone();
        let account = graph.progress().account();
        builder.build(move |mut capabilities| {
            let mut capability = capabilities.pop();
            let mut sorted = None;
            move |frontiers| {
                let _ = &acks;
                let shares = shares.get();
                decisions.for_each(|_, decisions| {
                    for (_, decision) in decisions.drain(..) {
                        begin.begin(&sums(&decision.totals));
                        let schedule = Rc::new(Schedule::new(&decision, index, shares.replay_bytes));
                        let mut mine = mine.borrow_mut();
                        let run = mine.run.take().expect("a worker counts before worker 0 decides");
                        if let Some(first) = schedule.batches().next_epoch() {
                            if let Some(capability) = &mut capability {
                                capability.downgrade(&first);
                            }
                            let (sender, receiver) = queue(shares.replay_bytes * 2, wake.clone());
                            let schedule = Schedule {
                                sends: schedule.sends.clone(),
                                writes: Vec::new(),
                            };
                            let (job, account) = (place_job.clone(), account.clone());
                            place_job.spawn(&place_stage, move || {
                                read_sorted(&run, &schedule, &sender, &account, &job)
                            });
                            sorted = Some(receiver);
                        } else {
                            capability = None;
                        }
                        mine.schedule = Some(schedule);
                        if let Some(writer) = &mine.wake_writer {
                            writer.activate();
                        }
                    }
                });
                let (Some(now), Some(receiver)) = (&mut capability, &sorted) else {
                    return;
                };
                let oldest = frontiers[1].frontier().iter().next().copied();
                if oldest.is_some_and(|oldest| *now.time() + 1 >= oldest + WINDOW) {
                    return;
                }
                match receiver.next() {
                    Next::Item((chunk, following)) => {
                        place_job.tick();
                        let mut chunk: Chunk = chunk;
                        output.activate().session(&*now).give_container(&mut chunk);
                        match following {
                            Some(epoch) => now.downgrade(&epoch),
                            None => capability = None,
                        }
                        // One batch, then the other operators have their turn.
                        activator.activate();
                    }
                    // The reader ends early only where it failed.
                    Next::Later | Next::End => {}
                }
            }
        });

        // And every worker writes its shards.
        let mut builder = OperatorBuilder::new(name.to_owned(), scope);
        let mut input = builder.new_input(chunks, DistributorPact(|_peers| ToNamedWorker));
        let (acks_output, acks) = builder.new_output::<Vec<()>>();
        let (output, written) = builder.new_output_connection(none);
        let mut output: OutputBuilder<Epoch, CapacityContainerBuilder<Batch<Written<K::Summary>>>> =
            OutputBuilder::from(output);
        let address = builder.operator_info().address;
        shared.borrow_mut().wake_writer = Some(scope.activator_for(address.clone()));
        let wake = scope.worker().sync_activator_for(address.to_vec());
        let counters = graph.progress().counters(name);
        builder.build(move |mut capabilities| {
            let mut done = capabilities.pop();
            drop(capabilities);
            // By epoch: batches of different senders overtake each other.
            let mut early = BTreeMap::new();
            let mut next_epoch = 0;
            let mut written_epochs = 0;
            let mut writing = BTreeMap::new();
            let mut writer: Option<(mpsc::Sender<Chunk>, Replies<K>)> = None;
            let mut missing = None;
            move |_frontiers| {
                let _ = &acks_output;
                input.for_each(|capability, chunk| {
                    if let Some(capability) = capability.retain_least(0) {
                        early.insert(*capability.time(), (capability, std::mem::take(chunk)));
                    }
                });
                if missing.is_none() {
                    let mut mine = shared.borrow_mut();
                    let Some(schedule) = mine.schedule.take() else {
                        return;
                    };
                    missing = Some(schedule.writes.len());
                    if let Some(capability) = &done
                        && !mine.found.is_empty()
                    {
                        let mut batch = Batch {
                            items: std::mem::take(&mut mine.found),
                            ..Batch::default()
                        };
                        output.activate().session(capability).give_container(&mut batch);
                    }
                    if !schedule.writes.is_empty() {
                        let ((chunks, inbox), (outbox, replies)) = (mpsc::channel(), mpsc::channel());
                        let thread = Writer {
                            stage: stage.clone(),
                            sink: sink.clone(),
                            job: job.clone(),
                            counters: counters.clone(),
                            inbox,
                            outbox,
                            wake: wake.clone(),
                        };
                        let shards = schedule.writes.clone();
                        job.spawn(&stage, move || thread.write(shards));
                        writer = Some((chunks, replies));
                    }
                }
                if let Some((chunks, replies)) = &writer {
                    while let Some((capability, chunk)) = early.remove(&next_epoch) {
                        writing.insert(next_epoch, capability);
                        next_epoch += 1;
                        // A writer that has gone has left its error with the job.
                        let _ = chunks.send(chunk);
                    }
                    for reply in replies.try_iter() {
                        job.tick();
                        match reply {
                            Reply::Batch => {
                                writing.remove(&written_epochs);
                                written_epochs += 1;
                            }
                            Reply::Shard(written) => {
                                missing = missing.map(|missing| missing - 1);
                                if let Some(capability) = &done {
                                    let mut batch = Batch {
                                        items: vec![written],
                                        ..Batch::default()
                                    };
                                    output.activate().session(capability).give_container(&mut batch);
                                }
                            }
                        }
                    }
                }
                if missing == Some(0) {
                    done = None;
                    writer = None;
                }
            }
        });
        let mut flows = graph.flows.borrow_mut();
        let writing = flows.open(Some(feedback));
        flows.wait(writing, self.flow);
        flows.acknowledge(writing, acks);
        // What is left of shards is little and waits for nothing.
        let flow = flows.open(None);
        flows.wait(flow, writing);
        Collection {
            pipeline: self.pipeline,
            stream: written,
            flow,
        }
    }
}

/// What a writer thread says to its operator.
type Replies<K> = Receiver<Reply<<K as ShardSink>::Summary>>;

/// Shards that were complete beforehand.
type Found<K> = Vec<Written<<K as ShardSink>::Summary>>;

/// What worker 0 needs to decide.
struct Planner<K, P> {
    stage: Arc<str>,
    sort_stage: Arc<str>,
    duplicates: Duplicates,
    plan: P,
    sink: Arc<K>,
    counts: Vec<Counts>,
}

/// What all workers together hold of each split.
fn sums(totals: &[Vec<SplitTotals>]) -> Vec<SplitTotals> {
    let mut sums = vec![SplitTotals::default(); totals.first().map_or(0, Vec::len)];
    for (sum, part) in totals.iter().flat_map(|totals| totals.iter().enumerate()) {
        sums[sum].records += part.records;
        sums[sum].bytes += part.bytes;
    }
    sums
}

impl<K: ShardSink, P> Planner<K, P> {
    fn decide<E>(&mut self) -> Result<(Decision, Found<K>), Error>
    where
        P: Fn(&[SplitTotals]) -> Result<Vec<SplitPlan>, E>,
        E: Into<BoxError>,
    {
        self.counts.sort_by_key(|(worker, ..)| *worker);
        let found = self.counts.iter().map(|(_, _, duplicate)| *duplicate);
        refuse(&self.sort_stage, self.duplicates, found)?;
        let totals: Vec<Vec<SplitTotals>> = self.counts.drain(..).map(|(_, totals, _)| totals).collect();
        let sums = sums(&totals);
        let plans = (self.plan)(&sums).map_err(|error| Error::stage(&self.stage, error))?;
        let bad = |split, reason| Error::Plan {
            stage: self.stage.to_string(),
            split,
            reason,
        };
        if plans.len() != sums.len() {
            let reason = format!(
                "there are plans for {} splits, and {} splits",
                plans.len(),
                sums.len()
            );
            return Err(bad(plans.len().min(sums.len()), reason));
        }
        for (split, (plan, sum)) in plans.iter().zip(&sums).enumerate() {
            plan.check(sum.records).map_err(|reason| bad(split, reason))?;
        }
        let boundaries: Vec<Vec<u64>> = plans.into_iter().map(|plan| plan.boundaries).collect();
        let (mut complete, mut found) = (Vec::new(), Vec::new());
        for shard in shards(&boundaries) {
            let summary = self
                .sink
                .complete(&shard)
                .map_err(|error| Error::stage(&self.stage, error))?;
            complete.push(summary.is_some());
            found.extend(summary.map(|summary| Written {
                shard,
                found: true,
                summary,
            }));
        }
        Ok((
            Decision {
                totals,
                boundaries,
                complete,
            },
            found,
        ))
    }
}

/// The thread that reads a worker's sorted records, in the order in which they are sent.
fn read_sorted(
    run: &Arc<SortedRun>,
    schedule: &Schedule,
    sender: &Sender<(Chunk, Option<Epoch>)>,
    account: &Arc<Account>,
    job: &Job,
) -> Result<(), Error> {
    let mut cursors: BTreeMap<usize, Cursor> = BTreeMap::new();
    let mut batches = schedule.batches();
    while let Some(batch) = batches.next() {
        let segment = batch.segment;
        let cursor = cursors
            .entry(segment.writer)
            .or_insert_with(|| Cursor::new(run.clone()));
        let start = run.starts[segment.split as usize] + batch.start;
        let mut chunk = Chunk {
            worker: segment.writer as u64,
            shard: segment.shard as u64,
            ..Chunk::default()
        };
        chunk.records = cursor.read(start, batch.records)?;
        chunk.data_bytes = chunk.records.iter().map(|record| record.data.len()).sum();
        let bytes = chunk.weigh();
        if !run.is_in_memory() {
            chunk.held = account.hold(bytes);
        }
        let last = schedule.sends[segment.writer].last();
        if last == Some(segment) && batch.start + batch.records == segment.start + segment.records {
            cursors.remove(&segment.writer);
        }
        if job.stopped() || !sender.send((chunk, batches.next_epoch()), bytes) {
            break;
        }
    }
    Ok(())
}

enum Reply<S> {
    Batch,
    Shard(Written<S>),
}

/// The thread that writes a worker's shards.
struct Writer<K: ShardSink> {
    stage: Arc<str>,
    sink: Arc<K>,
    job: Arc<Job>,
    counters: Arc<Counters>,
    inbox: Receiver<Chunk>,
    outbox: mpsc::Sender<Reply<K::Summary>>,
    wake: SyncActivator,
}

impl<K: ShardSink> Writer<K> {
    fn write(self, shards: Vec<(usize, Shard)>) -> Result<(), Error> {
        let failed = |error| Error::stage(&self.stage, error);
        for (index, shard) in shards {
            if self.job.stopped() {
                break;
            }
            let _span = crate::trace::span("write", format!("shard {}.{}", shard.split, shard.index));
            let mut writer = self.sink.open(&shard).map_err(failed)?;
            let mut missing = shard.records;
            while missing > 0 {
                // The operator hangs up where the job has failed.
                let Ok(chunk) = self.inbox.recv() else {
                    return Ok(());
                };
                if self.job.stopped() {
                    return Ok(());
                }
                assert_eq!(chunk.shard, index as u64, "batches come in the order of shards");
                for record in &chunk.records {
                    writer.write(record).map_err(failed)?;
                }
                self.counters
                    .add(chunk.records.len() as u64, chunk.data_bytes as u64);
                missing -= chunk.records.len() as u64;
                drop(chunk);
                self.reply(Reply::Batch);
            }
            let finishing = crate::trace::span("write", "finish");
            let summary = writer.finish().map_err(failed)?;
            drop(finishing);
            self.reply(Reply::Shard(Written {
                shard,
                found: false,
                summary,
            }));
        }
        Ok(())
    }

    fn reply(&self, reply: Reply<K::Summary>) {
        // The operator may have gone; then there is nobody to tell.
        let _ = self.outbox.send(reply);
        let _ = self.wake.activate();
    }
}
