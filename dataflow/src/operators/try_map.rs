//! Stages that may fail, and may take long.

use std::collections::VecDeque;
use std::sync::Arc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::Operator;

use crate::container::Batch;
use crate::pipeline::Collection;
use crate::record::Weigh;
use crate::{BoxError, Error};

impl<'scope, T: 'static> Collection<'scope, T> {
    /// Turns each item into another on its worker; an error ends the job.
    ///
    /// State that should live as long as the worker (an encoder, a buffer) is built next to this call and captured: the graph is built
    /// once on each worker. Moves nothing. One batch is converted at a time, and the worker sees to its other stages in between; what
    /// waits is counted in the sources' windows.
    pub fn try_map<U, E>(
        self,
        name: &str,
        mut each: impl FnMut(T) -> Result<U, E> + 'static,
    ) -> Collection<'scope, U>
    where
        U: Weigh + 'static,
        E: Into<BoxError>,
    {
        self.try_flat_map(name, move |item| each(item).map(Some))
    }

    /// Turns each item into any number of others, with an error ending the job: `None` leaves an item out, as a policy on bad input
    /// does that counts and goes on. Else as [`try_map`](Self::try_map).
    pub fn try_flat_map<U, I, E>(
        self,
        name: &str,
        mut each: impl FnMut(T) -> Result<I, E> + 'static,
    ) -> Collection<'scope, U>
    where
        U: Weigh + 'static,
        I: IntoIterator<Item = U>,
        E: Into<BoxError>,
    {
        let graph = self.pipeline.0.clone();
        let (job, account) = (graph.job.clone(), graph.progress().account());
        let counters = graph.progress().counters(name);
        let stage: Arc<str> = name.into();
        let stream =
            self.stream
                .unary::<CapacityContainerBuilder<Batch<U>>, _, _, _>(Local, name, |_, info| {
                    let activator = graph.scope.activator_for(info.address);
                    let mut waiting = VecDeque::new();
                    move |input, output| {
                        input.for_each(|capability, batch| {
                            if let Some(capability) = capability.retain_least(0) {
                                waiting.push_back((capability, std::mem::take(batch)));
                            }
                        });
                        let Some((capability, Batch { items, held })) = waiting.pop_front() else {
                            return;
                        };
                        if job.stopped() {
                            return;
                        }
                        crate::job::enter(&stage);
                        let mut results = Vec::with_capacity(items.len());
                        let mut bytes = 0;
                        for item in items {
                            match each(item) {
                                Ok(converted) => results
                                    .extend(converted.into_iter().inspect(|item| bytes += item.weigh())),
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
                            output.session(&capability).give_container(&mut batch);
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
