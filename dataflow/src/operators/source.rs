//! Reads tasks on threads of their own, and lets no more into the job than it can hold.

use std::sync::Arc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::Feedback;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::Antichain;

use crate::container::Batch;
use crate::job::Job;
use crate::options::WINDOW;
use crate::pipeline::{Collection, Epoch, Pipeline};
use crate::progress::Account;
use crate::queue::{Next, Sender, queue};
use crate::record::Weigh;
use crate::{BoxError, Error};

/// Most items that move together, so that tiny ones don't make long batches.
const BATCH_ITEMS: usize = 1024;

impl<'scope> Pipeline<'scope> {
    /// Reads `tasks` and yields their items.
    ///
    /// `tasks` has to be the same list on every worker; task `i` belongs to worker `i % num_workers`, which reads its tasks one after
    /// the other on one thread, so that `open` and the iterator may block. To end the job, yield an error; to let later stages
    /// decide, make the item itself a `Result`.
    ///
    /// Nothing moves between workers: see [`rebalance`](Collection::rebalance). Held are what the thread has read ahead (a 32nd
    /// of the worker's budget, or one batch) and what hasn't come to rest yet in the rest of the job: it is let in in epochs, and epoch
    /// `e + 8` has to wait until epoch `e` has been written, collected, or taken into the budget of a sort.
    pub fn source<S, T, I, E, F, O>(&self, name: &str, tasks: Vec<S>, open: O) -> Collection<'scope, T>
    where
        S: Send + 'static,
        T: Weigh + Send + 'static,
        O: Fn(S) -> Result<I, F> + Send + 'static,
        I: IntoIterator<Item = Result<T, E>>,
        E: Into<BoxError>,
        F: Into<BoxError>,
    {
        let graph = &self.0;
        let (scope, shares) = (graph.scope, graph.shares);
        let (feedback, acks) = scope.feedback::<Vec<()>>(1);
        graph.loops.borrow_mut().push(feedback);

        let mut builder = OperatorBuilder::new(name.to_owned(), scope);
        let (output, stream) = builder.new_output::<Batch<T>>();
        let mut output: OutputBuilder<Epoch, CapacityContainerBuilder<Batch<T>>> =
            OutputBuilder::from(output);
        // The acknowledgements wake the operator but carry no data and hold no times.
        let acks = builder.new_input_connection(acks, Local, [] as [(usize, Antichain<Epoch>); 0]);

        let address = builder.operator_info().address;
        let activator = scope.activator_for(address.clone());
        let (index, peers) = (scope.index(), scope.peers());
        let tasks: Vec<S> = tasks
            .into_iter()
            .enumerate()
            .filter(|(i, _)| i % peers == index)
            .map(|(_, task)| task)
            .collect();
        let receiver = (!tasks.is_empty()).then(|| {
            let wake = scope.worker().sync_activator_for(address.to_vec());
            let (sender, receiver) = queue(shares.read_ahead_bytes, wake);
            let stage: Arc<str> = name.into();
            let reader = Reader {
                job: graph.job.clone(),
                stage: stage.clone(),
                account: graph.progress().account(),
                sender,
                batch_bytes: shares.batch_bytes,
            };
            graph.job.spawn(&stage, move || {
                // The failure is noted before the queue ends: else the stages behind take its end for the end of the data.
                if let Err(error) = reader.read(tasks, open) {
                    reader.job.fail(error);
                }
                Ok(())
            });
            receiver
        });

        let (job, counters) = (graph.job.clone(), graph.progress().counters(name));
        builder.build(move |mut capabilities| {
            let mut capability = capabilities.pop().filter(|_| receiver.is_some());
            let mut epoch_bytes = 0;
            move |frontiers| {
                // The input is kept for its frontier only.
                let _ = &acks;
                let (Some(now), Some(receiver)) = (&mut capability, &receiver) else {
                    return;
                };
                let epoch = *now.time();
                let oldest = frontiers[0].frontier().iter().next().copied();
                // An acknowledgement of epoch e comes back as e + 1.
                if oldest.is_some_and(|oldest| epoch + 1 >= oldest + WINDOW) {
                    return;
                }
                let mut output = output.activate();
                while epoch_bytes < shares.epoch_bytes {
                    match receiver.next() {
                        Next::Item((mut batch, bytes)) => {
                            job.tick();
                            let batch: &mut Batch<T> = &mut batch;
                            counters.add(batch.items.len() as u64, bytes as u64);
                            output.session(&*now).give_container(batch);
                            epoch_bytes += bytes;
                        }
                        Next::Later => return,
                        Next::End => {
                            capability = None;
                            return;
                        }
                    }
                }
                // One epoch, then the other operators have their turn.
                epoch_bytes = 0;
                now.downgrade(&(epoch + 1));
                activator.activate();
            }
        });
        Collection {
            pipeline: self.clone(),
            stream,
            acknowledged: true,
        }
    }
}

/// What a source's thread needs.
struct Reader<T> {
    job: Arc<Job>,
    stage: Arc<str>,
    account: Arc<Account>,
    sender: Sender<(Batch<T>, usize)>,
    batch_bytes: usize,
}

impl<T: Weigh> Reader<T> {
    fn read<S, I, E, F>(&self, tasks: Vec<S>, open: impl Fn(S) -> Result<I, F>) -> Result<(), Error>
    where
        I: IntoIterator<Item = Result<T, E>>,
        E: Into<BoxError>,
        F: Into<BoxError>,
    {
        let mut batch = Batch::default();
        let mut bytes = 0;
        for task in tasks {
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

    fn send(&self, batch: &mut Batch<T>, bytes: &mut usize) -> bool {
        let (mut batch, bytes) = (std::mem::take(batch), std::mem::take(bytes));
        batch.held = self.account.hold(bytes);
        self.sender.send((batch, bytes), bytes)
    }
}
