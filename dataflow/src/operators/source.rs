//! Reads tasks on threads of their own, and lets no more into the job than it can hold.

use std::sync::Arc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::channels::pushers::Output;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Capability, Feedback};
use timely::progress::Antichain;
use timely::progress::frontier::MutableAntichain;
use timely::scheduling::Activator;

use crate::container::Batch;
use crate::job::{Job, Turns, working_on};
use crate::options::{Shares, WINDOW};
use crate::pipeline::{Collection, Epoch, Graph, Pipeline};
use crate::progress::{Account, Counters};
use crate::queue::{Next, Receiver, Sender, queue};
use crate::record::Weigh;
use crate::{BoxError, Error};

/// Most items that move together, so that tiny ones don't make long batches.
pub(crate) const BATCH_ITEMS: usize = 1024;

impl<'scope> Pipeline<'scope> {
    /// Reads `tasks` and yields their items.
    ///
    /// `tasks` has to be the same list on every worker. Task `i` belongs to process `i % num_processes`; inside a process each worker has a
    /// thread that takes the next task when it is through with one, in the order of the list, so that a long task keeps one
    /// thread busy and not the others waiting. Which worker reads which task is chance. `open` and the iterator may block. A task that takes
    /// as long as all others together should come first in the list, or be several tasks: ranges of a file, members of an
    /// archive. To end the job, yield an error; to let later stages decide, make the item itself a `Result`.
    ///
    /// Nothing moves between workers: see [`rebalance`](Collection::rebalance). Held are what the thread has read ahead (a 32nd
    /// of the worker's budget, or one batch) and what hasn't come to rest yet in the rest of the job: it is let in in epochs, and epoch
    /// `e + 8` has to wait until epoch `e` has been written, collected, or taken into the budget of a sort. Every worker holds the list.
    pub fn source<S, T, I, E, F, O>(&self, name: &str, tasks: Vec<S>, open: O) -> Collection<'scope, T>
    where
        S: Send + 'static,
        T: Weigh + Send + 'static,
        O: Fn(S) -> Result<I, F> + Send + 'static,
        I: IntoIterator<Item = Result<T, E>>,
        E: Into<BoxError>,
        F: Into<BoxError>,
    {
        let graph = self.0.clone();
        let scope = graph.scope;
        let (process, num_processes) = graph.process();
        let turns = graph.turns(graph.count_source());
        let tasks: Vec<S> = tasks
            .into_iter()
            .enumerate()
            .filter(|(i, _)| i % num_processes == process)
            .map(|(_, task)| task)
            .collect();

        let (feedback, acks) = scope.feedback::<Vec<()>>(1);
        let flow = graph.flows.borrow_mut().open(Some(feedback));
        let mut builder = OperatorBuilder::new(name.to_owned(), scope);
        let (output, stream) = builder.new_output::<Batch<T>>();
        // The acknowledgements wake the operator but carry no data and hold no times.
        let acks = builder.new_input_connection(acks, Local, [] as [(usize, Antichain<Epoch>); 0]);
        let address = builder.operator_info().address;
        let mut outlet = Outlet::new(&graph, name, output, scope.activator_for(address.clone()));
        let wake = scope.worker().sync_activator_for(address.to_vec());
        let stage: Arc<str> = name.into();
        let (shares, job, account) = (
            graph.shares.clone(),
            graph.job.clone(),
            graph.progress().account(),
        );
        let mut start = (!tasks.is_empty()).then_some((tasks, open, wake));
        builder.build(move |mut capabilities| {
            outlet.capability = capabilities.pop().filter(|_| start.is_some());
            move |frontiers| {
                // The input is kept for its frontier only.
                let _ = &acks;
                let shares = shares.get();
                if let Some((tasks, open, wake)) = start.take() {
                    let (sender, inbox) = queue(shares.read_ahead_bytes, wake);
                    outlet.receiver = Some(inbox);
                    let mut reader = Reader::new(&job, &stage, account.clone(), sender, &shares);
                    (reader.first, reader.step) = (process, num_processes);
                    let turns = turns.clone();
                    job.spawn(&stage, move || {
                        // The failure is noted before the queue ends: else the stages behind take its end for the end of the data.
                        if let Err(error) = reader.read(tasks, &turns, open) {
                            reader.job.fail(error);
                        }
                        Ok(())
                    });
                }
                outlet.emit(&frontiers[0], shares.epoch_bytes);
            }
        });
        Collection {
            pipeline: self.clone(),
            stream,
            flow,
        }
    }
}

/// Where what a thread has queued gets into the graph, epoch by epoch, as far as the window allows.
pub(crate) struct Outlet<T: 'static> {
    /// Until the end.
    pub(crate) capability: Option<Capability<Epoch>>,
    /// Once there is a thread.
    pub(crate) receiver: Option<Receiver<(Batch<T>, usize)>>,
    output: OutputBuilder<Epoch, CapacityContainerBuilder<Batch<T>>>,
    activator: Activator,
    job: Arc<Job>,
    counters: Arc<Counters>,
    /// What the current epoch has had.
    epoch_bytes: usize,
}

impl<T: 'static> Outlet<T> {
    /// The outlet of the stage `name`; `activator` lets its operator run again.
    pub(crate) fn new(
        graph: &Graph<'_>,
        name: &str,
        output: Output<Epoch, Batch<T>>,
        activator: Activator,
    ) -> Self {
        Self {
            capability: None,
            receiver: None,
            output: OutputBuilder::from(output),
            activator,
            job: graph.job.clone(),
            counters: graph.progress().counters(name),
            epoch_bytes: 0,
        }
    }

    /// Gives out what there is, and sees to it that the operator runs again after the others if there is more. `acks` is the frontier of the
    /// acknowledgements, `most_bytes` what an epoch may have. Drops the capability at the end.
    pub(crate) fn emit(&mut self, acks: &MutableAntichain<Epoch>, most_bytes: usize) {
        let (Some(now), Some(receiver)) = (&mut self.capability, &self.receiver) else {
            return;
        };
        let epoch = *now.time();
        let oldest = acks.frontier().iter().next().copied();
        // An acknowledgement of epoch e comes back as e + 1.
        if oldest.is_some_and(|oldest| epoch + 1 >= oldest + WINDOW) {
            return;
        }
        let mut output = self.output.activate();
        while self.epoch_bytes < most_bytes {
            match receiver.next() {
                Next::Item((mut batch, bytes)) => {
                    self.job.tick();
                    self.counters.add(batch.items.len() as u64, bytes as u64);
                    output.session(now).give_container(&mut batch);
                    self.epoch_bytes += bytes;
                }
                Next::Later => return,
                Next::End => {
                    drop(output);
                    self.capability = None;
                    return;
                }
            }
        }
        // One epoch, then the other operators have their turn.
        self.epoch_bytes = 0;
        now.downgrade(&(epoch + 1));
        self.activator.activate();
    }
}

/// The thread behind a source: puts items into batches, and these into the queue.
pub(crate) struct Reader<T> {
    pub(crate) job: Arc<Job>,
    stage: Arc<str>,
    account: Arc<Account>,
    sender: Sender<(Batch<T>, usize)>,
    batch_bytes: usize,
    /// Number of the process's first task, and of how many each is one.
    first: usize,
    step: usize,
}

impl<T: Weigh> Reader<T> {
    pub(crate) fn new(
        job: &Arc<Job>,
        stage: &Arc<str>,
        account: Arc<Account>,
        sender: Sender<(Batch<T>, usize)>,
        shares: &Shares,
    ) -> Self {
        Self {
            job: job.clone(),
            stage: stage.clone(),
            account,
            sender,
            batch_bytes: shares.batch_bytes,
            first: 0,
            step: 1,
        }
    }

    fn read<S, I, E, F>(
        &self,
        tasks: Vec<S>,
        turns: &Turns,
        open: impl Fn(S) -> Result<I, F>,
    ) -> Result<(), Error>
    where
        I: IntoIterator<Item = Result<T, E>>,
        E: Into<BoxError>,
        F: Into<BoxError>,
    {
        let mut batch = Batch::default();
        let mut bytes = 0;
        let mut left = tasks.into_iter();
        let mut passed = 0;
        while !self.job.stopped() {
            // The others have had the tasks in between.
            let turn = turns.next();
            let Some(task) = left.nth(turn - passed) else {
                break;
            };
            passed = turn + 1;
            working_on(&format!("task {}", self.first + turn * self.step));
            for item in open(task).map_err(|error| Error::stage(&self.stage, error))? {
                let item = item.map_err(|error| Error::stage(&self.stage, error))?;
                bytes += item.weigh();
                batch.items.push(item);
                if (bytes >= self.batch_bytes || batch.items.len() >= BATCH_ITEMS)
                    && (self.job.stopped() || !self.send(&mut batch, &mut bytes))
                {
                    return Ok(());
                }
            }
        }
        if !batch.items.is_empty() {
            self.send(&mut batch, &mut bytes);
        }
        Ok(())
    }

    /// Waits for room and hands a batch over. False: the job has ended.
    pub(crate) fn send(&self, batch: &mut Batch<T>, bytes: &mut usize) -> bool {
        let (mut batch, bytes) = (std::mem::take(batch), std::mem::take(bytes));
        batch.held = self.account.hold(bytes);
        self.sender.send((batch, bytes), bytes)
    }

    /// How many bytes a batch should have.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }
}
