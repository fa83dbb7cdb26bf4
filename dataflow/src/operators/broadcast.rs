//! Gives every worker all of a small collection, beside the items of another one.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::Operator;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::Antichain;

use crate::container::Batch;
use crate::flow::FlowId;
use crate::items::{Items, by};
use crate::pipeline::{Collection, Epoch};
use crate::record::Weigh;
use crate::{BoxError, Error};

/// All items of a small collection, on every worker. See [`Collection::broadcast_small`]. Clones are the same items.
#[must_use = "a small collection does nothing until a stage looks at it"]
pub struct Small<'scope, S: 'static> {
    stage: Arc<str>,
    stream: Stream<'scope, Epoch, Vec<Arc<Vec<S>>>>,
    /// What has to end before the items are there.
    flow: FlowId,
}

impl<S> Clone for Small<'_, S> {
    fn clone(&self) -> Self {
        Self {
            stage: self.stage.clone(),
            stream: self.stream.clone(),
            flow: self.flow,
        }
    }
}

impl<S> std::fmt::Debug for Small<'_, S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Small({})", self.stage)
    }
}

impl<'scope, S> Collection<'scope, S>
where
    S: Weigh + Ord + Clone + Serialize + DeserializeOwned + Send + 'static,
{
    /// Brings all items to every worker, sorted, for [`with_small`](Collection::with_small): names of classes, hashes of what to leave out,
    /// results of [`combine_small`](Collection::combine_small). A barrier. Moves every item to every worker; each holds all of them, in at
    /// most an eighth of its budget; more are an error ([`Error::TooLarge`]).
    pub fn broadcast_small(self, name: &str) -> Small<'scope, S> {
        let graph = self.pipeline.0.clone();
        graph.count_table();
        let (scope, peers) = (graph.scope, graph.scope.peers() as u64);
        let stage: Arc<str> = name.into();
        let copies = self
            .stream
            .unary::<CapacityContainerBuilder<Items<(u64, S)>>, _, _, _>(Local, "Copy", |_, _| {
                move |input, output| {
                    input.for_each(|capability, batch| {
                        let mut session = output.session(&capability);
                        for item in batch.items.drain(..) {
                            for worker in 1..peers {
                                session.give((worker, item.clone()));
                            }
                            session.give((0, item));
                        }
                    });
                }
            });
        let mut builder = OperatorBuilder::new(name.to_owned(), scope);
        let mut input = builder.new_input(copies, by(|(worker, _): &(u64, S)| *worker));
        let (acks_output, acks) = builder.new_output::<Vec<()>>();
        let (output, stream) = builder.new_output_connection([] as [(usize, Antichain<Epoch>); 0]);
        let mut output: OutputBuilder<Epoch, CapacityContainerBuilder<Vec<Arc<Vec<S>>>>> =
            OutputBuilder::from(output);
        let (job, account, shares) = (
            graph.job.clone(),
            graph.progress().account(),
            graph.shares.clone(),
        );
        let (stage_here, counters) = (stage.clone(), graph.progress().counters(name));
        builder.build(move |mut capabilities| {
            let mut done = capabilities.pop();
            drop(capabilities);
            let mut items: Vec<S> = Vec::new();
            let mut bytes = 0;
            // Accounted for until the job ends, as the items are held that long.
            let mut held = account.hold(0);
            move |frontiers| {
                let _ = &acks_output;
                crate::job::enter(&stage_here);
                let limit = shares.get().table_bytes;
                input.for_each(|_, copies| {
                    for (_, item) in copies.take(&stage_here, &job) {
                        let more = item.weigh();
                        bytes += more;
                        held.grow(more);
                        items.push(item);
                    }
                    job.tick();
                    if bytes > limit {
                        job.fail(Error::TooLarge {
                            stage: stage_here.to_string(),
                            entries: items.len() as u64,
                            bytes: bytes as u64,
                            limit: limit as u64,
                        });
                    }
                });
                if frontiers[0].is_empty()
                    && !job.stopped()
                    && let Some(capability) = done.take()
                {
                    items.sort_unstable();
                    counters.add(items.len() as u64, bytes as u64);
                    let all = Arc::new(std::mem::take(&mut items));
                    output.activate().session(&capability).give(all);
                }
            }
        });
        graph.flows.borrow_mut().acknowledge(self.flow, acks);
        Small {
            stage,
            stream,
            flow: self.flow,
        }
    }
}

impl<'scope, T: 'static> Collection<'scope, T> {
    /// Turns each item into any number of others, looking at all items of a small collection, which are sorted. An error ends the job.
    ///
    /// The sources of this collection wait, with what they have in flight, until the small one is complete. So that has to come from another
    /// source: a branch of the same one would wait for itself, and the job ends with an error that says so. Moves nothing.
    pub fn with_small<S, U, I, E>(
        self,
        name: &str,
        small: &Small<'scope, S>,
        mut each: impl FnMut(T, &[S]) -> Result<I, E> + 'static,
    ) -> Collection<'scope, U>
    where
        S: 'static,
        U: Weigh + 'static,
        I: IntoIterator<Item = U>,
        E: Into<BoxError>,
    {
        let graph = self.pipeline.0.clone();
        let (job, stage): (_, Arc<str>) = (graph.job.clone(), name.into());
        if !graph.flows.borrow_mut().wait(self.flow, small.flow) {
            let message = format!(
                "its items and those of `{}` come from one source, which can't be at its end and not; \
                 read the small ones from a source of their own",
                small.stage
            );
            job.fail(Error::stage(&stage, message));
        }
        let (account, counters) = (graph.progress().account(), graph.progress().counters(name));
        let mut builder = OperatorBuilder::new(name.to_owned(), graph.scope);
        let mut input = builder.new_input(self.stream, Local);
        let mut small =
            builder.new_input_connection(small.stream.clone(), Local, [] as [(usize, Antichain<Epoch>); 0]);
        // The new input has no way to an output that is there already; this one hears of the items alone.
        let (output, stream) = builder.new_output_connection([(0, Antichain::from_elem(Default::default()))]);
        let mut output: OutputBuilder<Epoch, CapacityContainerBuilder<Batch<U>>> =
            OutputBuilder::from(output);
        let activator = graph.scope.activator_for(builder.operator_info().address);
        builder.build(move |capabilities| {
            drop(capabilities);
            let mut waiting = VecDeque::new();
            let mut all: Option<Arc<Vec<S>>> = None;
            move |_frontiers| {
                crate::job::enter(&stage);
                input.for_each(|capability, batch| {
                    if let Some(capability) = capability.retain_least(0) {
                        waiting.push_back((capability, std::mem::take(batch)));
                    }
                });
                small.for_each(|_, items| all = items.pop().or(all.take()));
                let Some(all) = &all else {
                    return;
                };
                let Some((capability, Batch { items, held })) = waiting.pop_front() else {
                    return;
                };
                if job.stopped() {
                    return;
                }
                let mut results = Vec::with_capacity(items.len());
                let mut bytes = 0;
                for item in items {
                    match each(item, all) {
                        Ok(converted) => {
                            results.extend(converted.into_iter().inspect(|item| bytes += item.weigh()));
                        }
                        Err(error) => return job.fail(Error::stage(&stage, error)),
                    }
                }
                job.tick();
                counters.add(results.len() as u64, bytes as u64);
                if !results.is_empty() {
                    let mut batch = Batch {
                        items: results,
                        held: account.hold(bytes),
                    };
                    output.activate().session(&capability).give_container(&mut batch);
                }
                drop(held);
                if !waiting.is_empty() {
                    activator.activate();
                }
            }
        });
        Collection {
            pipeline: self.pipeline,
            stream,
            flow: self.flow,
        }
    }
}
