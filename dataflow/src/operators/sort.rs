//! Puts all records in order, within the memory budget.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::DistributorPact;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::Antichain;
use timely::scheduling::SyncActivator;

use crate::Error;
use crate::container::ToNamedWorker;
use crate::flow::FlowId;
use crate::operators::Partition;
use crate::pipeline::{Collection, Epoch, Pipeline};
use crate::record::{Order, Record};
use crate::spill::{Arena, Folder, Pace, Run, RunWriter, SortedRun, Watch, merge};

/// What to do with records of a split that have the same key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Duplicates {
    /// End the job with [`Error::DuplicateKey`]; of several pairs, the one that is first in order.
    #[default]
    Refuse,
    /// Keep all, in the order of their origins.
    Keep,
    /// Keep only the one with the smallest origin: where the key is a hash of the content, this removes repeated content.
    KeepFirst,
}

/// Options of [`sort`](Collection::sort).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SortOptions {
    pub(crate) num_splits: u32,
    pub(crate) duplicates: Duplicates,
    pub(crate) partition: Partition,
    pub(crate) order: Order,
    pub(crate) size: fn(&[u8]) -> u64,
}

impl SortOptions {
    /// Sorts into `num_splits` splits; a record of any other is an error.
    pub fn new(num_splits: u32) -> Self {
        Self {
            num_splits,
            duplicates: Duplicates::default(),
            partition: Partition::default(),
            order: Order::default(),
            size: |data| data.len() as u64,
        }
    }

    /// What to do with equal keys. Default: refuse, as TFDS does.
    pub fn duplicates(mut self, duplicates: Duplicates) -> Self {
        self.duplicates = duplicates;
        self
    }

    /// Compares the payloads of records of one split whose keys are equal, before their origins: for keys that don't fit in 16 bytes and
    /// stand in the payload. Records for which it says `Equal` are duplicates, others aren't. It must be a total order that depends on
    /// nothing but the two payloads. Costs two reads of payloads for each pair with equal keys. Default: payloads don't count.
    pub fn then_by(mut self, compare: fn(&[u8], &[u8]) -> std::cmp::Ordering) -> Self {
        self.order = Order(Some(compare));
        self
    }

    /// How many bytes a payload counts in [`SplitTotals`](crate::SplitTotals), by which shards are planned. Default: its length. For
    /// payloads that only name what is written later.
    pub fn size(mut self, size: fn(&[u8]) -> u64) -> Self {
        self.size = size;
        self
    }

    /// How keys are dealt to workers. Default: evenly, which suits hashes.
    pub fn partition(mut self, partition: Partition) -> Self {
        self.partition = partition;
        self
    }
}

/// Records in order: each worker holds one range of keys of each split. See [`Collection::sort`].
#[must_use = "sorted records go nowhere until they are written"]
pub struct Sorted<'scope> {
    pub(crate) pipeline: Pipeline<'scope>,
    /// What has ended before there is anything.
    pub(crate) flow: FlowId,
    pub(crate) stage: Arc<str>,
    pub(crate) options: SortOptions,
    /// One item on each worker, when all records have arrived.
    pub(crate) runs: Stream<'scope, Epoch, Vec<Arc<SortedRun>>>,
}

impl std::fmt::Debug for Sorted<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Sorted({})", self.stage)
    }
}

impl<'scope> Collection<'scope, Record> {
    /// Orders records by split, key, payload where [`SortOptions::then_by`] asks for it, and origin.
    ///
    /// A barrier: what follows starts when the last record has arrived. Moves every record to the worker that owns its range of keys. Each
    /// worker copies its records into an arena; when that holds a quarter of the worker's memory budget, a thread sorts it and
    /// writes it to the spill folder, while a second arena fills. In the end all runs are merged into one. Where nothing was spilled, only
    /// an index of 40 bytes a record is sorted, and no payload moves.
    ///
    /// The sources' epochs are acknowledged as soon as the records are in an arena; while both arenas are full they have to wait.
    pub fn sort(self, name: &str, options: SortOptions) -> Sorted<'scope> {
        let (pipeline, flow) = (self.pipeline.clone(), self.flow);
        let graph = pipeline.0.clone();
        let (scope, job) = (graph.scope, graph.job.clone());
        graph.count_sort();
        let stage: Arc<str> = name.into();

        let (num_splits, partition, peers) = (options.num_splits, options.partition.clone(), scope.peers());
        let route_stage = stage.clone();
        let keep_first = options.duplicates == Duplicates::KeepFirst;
        let (order, size) = (options.order, options.size);
        let chunks = self.route("Pack", move |record| {
            if record.split >= num_splits {
                let (stage, split) = (route_stage.to_string(), record.split);
                return Err(Error::SplitOutOfRange {
                    stage,
                    split,
                    num_splits,
                });
            }
            if u32::try_from(record.data.len()).is_err() {
                let message = format!(
                    "a record of {} bytes is too long: the limit is 4 GiB",
                    record.data.len()
                );
                return Err(Error::stage(&route_stage, message));
            }
            Ok(partition.worker(&record.key, peers))
        });

        let mut builder = OperatorBuilder::new(name.to_owned(), scope);
        let mut input = builder.new_input(chunks, DistributorPact(|_peers| ToNamedWorker));
        let (acks_output, acks) = builder.new_output::<Vec<()>>();
        let (output, runs) = builder.new_output_connection([] as [(usize, Antichain<Epoch>); 0]);
        let mut output: OutputBuilder<Epoch, CapacityContainerBuilder<Vec<Arc<SortedRun>>>> =
            OutputBuilder::from(output);
        let wake = scope
            .worker()
            .sync_activator_for(builder.operator_info().address.to_vec());
        let account = graph.progress().account();
        let counters = graph.progress().counters(name);
        let pace: Arc<Pace> = Arc::default();
        let (sorter_stage, shares, options_of_job) =
            (stage.clone(), graph.shares.clone(), graph.options.clone());
        builder.build(move |mut capabilities| {
            let mut done = capabilities.pop();
            // Port 0 only passes acknowledgements on: it never says anything of its own accord.
            drop(capabilities);
            let mut waiting = VecDeque::new();
            let mut arena: Option<Arena> = None;
            // The one that came back from being spilled.
            let mut spare: Option<Arena> = None;
            let mut sorter: Option<(Sender<Task>, Receiver<Reply>)> = None;
            let mut busy = false;
            let mut finishing = false;
            move |frontiers| {
                let _ = &acks_output;
                crate::job::enter(&sorter_stage);
                let shares = shares.get();
                let arena = arena.get_or_insert_with(|| Arena::new(shares.arena_bytes, &account));
                input.for_each(|capability, chunk| {
                    if let Some(capability) = capability.retain_least(0) {
                        waiting.push_back((capability, std::mem::take(chunk)));
                    }
                });
                while let Some(reply) = sorter.as_ref().and_then(|(_, replies)| replies.try_recv().ok()) {
                    busy = false;
                    match reply {
                        Reply::Spilled(arena) => spare = Some(arena),
                        Reply::Sorted(run) => {
                            if let Some(capability) = done.take() {
                                output.activate().session(&capability).give(Arc::new(run));
                            }
                        }
                    }
                }
                if job.stopped() || finishing {
                    return;
                }
                let mut give = |task| {
                    let (tasks, _) = sorter.get_or_insert_with(|| {
                        let ((tasks, inbox), (outbox, replies)) = (mpsc::channel(), mpsc::channel());
                        let wake = wake.clone();
                        let folder = Folder {
                            path: options_of_job.spill_folder.clone(),
                            block_bytes: shares.block_bytes,
                            compression: options_of_job.spill_compression,
                            pace: pace.clone(),
                            account: account.clone(),
                            job: job.clone(),
                        };
                        let sorter = Sorter {
                            folder,
                            fan_in: shares.fan_in,
                            num_splits,
                            keep_first,
                            order,
                            size,
                            outbox,
                            wake,
                            runs: Vec::new(),
                        };
                        job.spawn(&sorter_stage, move || sorter.work(&inbox));
                        (tasks, replies)
                    });
                    // A sorter that has gone has left its error with the job.
                    let _ = tasks.send(task);
                };
                loop {
                    if arena.bytes() >= shares.arena_bytes {
                        if busy {
                            return; // Both are full: the capabilities that wait hold the sources back.
                        }
                        let next = spare
                            .take()
                            .unwrap_or_else(|| Arena::new(shares.arena_bytes, &account));
                        let full = std::mem::replace(arena, next);
                        busy = true;
                        give(Task::Spill(full));
                    }
                    let Some((capability, chunk)) = waiting.pop_front() else {
                        break;
                    };
                    counters.add(chunk.records.len() as u64, chunk.data_bytes as u64);
                    for record in &chunk.records {
                        arena.push(record);
                    }
                    job.tick();
                    drop(capability);
                }
                if frontiers[0].is_empty() {
                    finishing = true;
                    // The merge needs its memory.
                    spare = None;
                    give(Task::Finish(std::mem::replace(arena, Arena::new(0, &account))));
                }
            }
        });
        graph.flows.borrow_mut().acknowledge(flow, acks);
        Sorted {
            pipeline,
            flow,
            stage,
            options,
            runs,
        }
    }
}

enum Task {
    Spill(Arena),
    Finish(Arena),
}

enum Reply {
    Spilled(Arena),
    Sorted(SortedRun),
}

/// The thread beside a sorting operator: sorts, writes and merges.
struct Sorter {
    folder: Folder,
    fan_in: usize,
    num_splits: u32,
    keep_first: bool,
    order: Order,
    size: fn(&[u8]) -> u64,
    outbox: Sender<Reply>,
    wake: SyncActivator,
    runs: Vec<Run>,
}

impl Sorter {
    fn work(mut self, inbox: &Receiver<Task>) -> Result<(), Error> {
        while let Ok(task) = inbox.recv() {
            if self.folder.job.stopped() {
                break;
            }
            let (reply, last) = match task {
                Task::Spill(arena) => {
                    let arena = self.spill(arena)?.recycle(&self.folder.account);
                    (Reply::Spilled(arena), false)
                }
                Task::Finish(arena) => (Reply::Sorted(self.finish(arena)?), true),
            };
            // The operator may have gone; then there is nobody to tell.
            let _ = self.outbox.send(reply);
            let _ = self.wake.activate();
            if last {
                break;
            }
        }
        Ok(())
    }

    /// Gives the arena back, as it is.
    fn spill(&mut self, mut arena: Arena) -> Result<Arena, Error> {
        let sorting = crate::trace::span("sort", "sort a run");
        arena.sort(self.order);
        drop(sorting);
        let _spilling = crate::trace::span("sort", "spill");
        let mut writer = RunWriter::create(&self.folder, arena.data_bytes())?;
        for position in 0..arena.len() {
            writer.push(arena.get(position))?;
        }
        self.runs.push(writer.finish()?);
        Ok(arena)
    }

    fn finish(&mut self, arena: Arena) -> Result<SortedRun, Error> {
        let mut watch = Watch::new(self.num_splits, self.keep_first, self.order).counting(self.size);
        if self.runs.is_empty() {
            return Ok(SortedRun::in_memory(arena, watch));
        }
        if arena.is_empty() {
            drop(arena);
        } else {
            self.spill(arena)?;
        }
        let _merging = crate::trace::span("sort", "merge");
        let run = merge(
            std::mem::take(&mut self.runs),
            self.fan_in,
            &self.folder,
            self.order,
            &mut |record| watch.see(record),
        )?;
        Ok(SortedRun::on_disk(run, watch))
    }
}
