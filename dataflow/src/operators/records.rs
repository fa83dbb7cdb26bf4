//! Lets sorted records into the graph again, in order.

use std::sync::Arc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{Exchange, Pipeline as Local};
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Feedback, Operator};
use timely::progress::Antichain;

use crate::Error;
use crate::container::Batch;
use crate::operators::source::{BATCH_ITEMS, Outlet, Reader};
use crate::operators::{Duplicates, Sorted};
use crate::pipeline::{Collection, Epoch};
use crate::queue::queue;
use crate::record::{Record, Weigh};
use crate::spill::{Cursor, Duplicate, SortedRun};

/// What the sorts of the workers found: the first pair of equal keys of all is the error, whoever found it.
pub(crate) fn refuse(
    sorted: &str,
    duplicates: Duplicates,
    found: impl Iterator<Item = Option<Duplicate>>,
) -> Result<(), Error> {
    match found.flatten().min() {
        Some((split, key, origins)) if duplicates == Duplicates::Refuse => Err(Error::DuplicateKey {
            stage: sorted.to_owned(),
            split,
            key,
            origins,
        }),
        _ => Ok(()),
    }
}

impl<'scope> Sorted<'scope> {
    /// Yields the records in order: each worker those of its range of keys, split by split, and the ranges rise with the workers.
    ///
    /// So a second sort can follow, on another key (what is left of equal content, back in the order of the sources), or a stage that
    /// looks at neighbours. Later stages keep the order as long as they stay on their worker; after [`rebalance`](Collection::rebalance) it is gone.
    ///
    /// Starts when the sort is done on all workers. Nothing moves between workers. A thread reads the records; what it has read ahead (a
    /// 32nd of the worker's budget) is held, and what hasn't come to rest yet in the rest of the job: a new source with a window of its own, of
    /// 8 epochs of at most a 64th of the worker's budget and 1 MiB. Records that fit in the sort's arena stay there until all of them
    /// have been yielded.
    pub fn records(self, name: &str) -> Collection<'scope, Record> {
        self.replay(name, replay)
    }

    /// A source behind the sort: `body` reads each worker's records, and puts what it makes of them into batches.
    pub(crate) fn replay<T: Weigh + Send + 'static>(
        self,
        name: &str,
        body: impl FnOnce(Arc<SortedRun>, &Reader<T>) -> Result<(), Error> + Send + 'static,
    ) -> Collection<'scope, T> {
        let graph = self.pipeline.0.clone();
        let (scope, peers) = (graph.scope, graph.scope.peers());
        graph.count_replay();

        // Worker 0 hears what every worker found, and tells all of them to start.
        let mine = std::rc::Rc::new(std::cell::RefCell::new(None::<Arc<SortedRun>>));
        let found = mine.clone();
        let counts = self
            .runs
            .unary::<CapacityContainerBuilder<Vec<Option<Duplicate>>>, _, _, _>(Local, "Found", |_, _| {
                move |input, output| {
                    input.for_each(|capability, runs| {
                        for run in runs.drain(..) {
                            output.session(&capability).give(run.duplicate);
                            *found.borrow_mut() = Some(run);
                        }
                    });
                }
            });
        let (sorted, duplicates, check_job) = (self.stage, self.options.duplicates, graph.job.clone());
        let to_first = Exchange::new(|_: &Option<Duplicate>| 0);
        let start = counts.unary::<CapacityContainerBuilder<Vec<u64>>, _, _, _>(to_first, "Check", |_, _| {
            let mut all = Vec::new();
            move |input, output| {
                input.for_each(|capability, counts| {
                    all.append(counts);
                    if all.len() == peers {
                        match refuse(&sorted, duplicates, all.drain(..)) {
                            Ok(()) => output.session(&capability).give_iterator(0..peers as u64),
                            Err(error) => check_job.fail(error),
                        }
                    }
                });
            }
        });

        let (feedback, acks) = scope.feedback::<Vec<()>>(1);
        let flow = {
            let mut flows = graph.flows.borrow_mut();
            let flow = flows.open(Some(feedback));
            flows.wait(flow, self.flow);
            flow
        };
        let none = [] as [(usize, Antichain<Epoch>); 0];
        let mut builder = OperatorBuilder::new(name.to_owned(), scope);
        let (output, stream) = builder.new_output::<Batch<T>>();
        let mut start =
            builder.new_input_connection(start, Exchange::new(|worker: &u64| *worker), none.clone());
        let acks = builder.new_input_connection(acks, Local, none);
        let address = builder.operator_info().address;
        let mut outlet = Outlet::new(&graph, name, output, scope.activator_for(address.clone()));
        let wake = scope.worker().sync_activator_for(address.to_vec());
        let stage: Arc<str> = name.into();
        let (shares, job, account) = (
            graph.shares.clone(),
            graph.job.clone(),
            graph.progress().account(),
        );
        builder.build(move |mut capabilities| {
            outlet.capability = capabilities.pop();
            let mut body = Some(body);
            move |frontiers| {
                let _ = &acks;
                let shares = shares.get();
                start.for_each(|_, workers| {
                    workers.clear();
                    let run = mine
                        .borrow_mut()
                        .take()
                        .expect("a worker tells of its run before worker 0 answers");
                    let (sender, inbox) = queue(shares.read_ahead_bytes, wake.clone());
                    outlet.receiver = Some(inbox);
                    let reader = Reader::new(&job, &stage, account.clone(), sender, &shares);
                    let Some(body) = body.take() else {
                        return;
                    };
                    job.spawn(&stage, move || {
                        // As in `source`: the failure first, then the end of the queue.
                        if let Err(error) = body(run, &reader) {
                            reader.job.fail(error);
                        }
                        Ok(())
                    });
                });
                outlet.emit(&frontiers[1], shares.replay_bytes);
            }
        });
        Collection {
            pipeline: self.pipeline,
            stream,
            flow,
        }
    }
}

/// Reads a worker's sorted records from the first to the last.
fn replay(run: Arc<SortedRun>, reader: &Reader<Record>) -> Result<(), Error> {
    let records: u64 = run.totals.iter().map(|totals| totals.records).sum();
    let mut cursor = Cursor::new(run);
    let mut batch = Batch::default();
    let mut bytes = 0;
    for position in 0..records {
        let record = cursor.next(position)?;
        bytes += record.weigh();
        batch.items.push(record);
        if (bytes >= reader.batch_bytes() || batch.items.len() >= BATCH_ITEMS || position + 1 == records)
            && (reader.job.stopped() || !reader.send(&mut batch, &mut bytes))
        {
            break;
        }
    }
    Ok(())
}
