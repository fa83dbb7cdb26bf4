//! Makes several collections of one.

use std::sync::Arc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

use crate::Error;
use crate::container::Batch;
use crate::pipeline::{Collection, Epoch};
use crate::record::Weigh;

impl<'scope, T: Weigh + 'static> Collection<'scope, T> {
    /// Deals items to `N` collections: `choose` says to which, from 0. An item for which it names none of them ends the job with an
    /// error. Nothing moves between workers, nothing is held. The order of items stays within each.
    pub fn partition<const N: usize>(
        self,
        name: &str,
        mut choose: impl FnMut(&T) -> usize + 'static,
    ) -> [Self; N] {
        let (job, stage): (_, Arc<str>) = (self.pipeline.0.job.clone(), name.into());
        self.split(name, move |items, parts: &mut [Vec<T>; N]| {
            for item in items {
                let part = choose(&item);
                match parts.get_mut(part) {
                    Some(part) => part.push(item),
                    None => {
                        let message = format!(
                            "part {part} was chosen, and there are parts 0 to {}",
                            N.saturating_sub(1)
                        );
                        return job.fail(Error::stage(&stage, message));
                    }
                }
            }
        })
    }

    /// Two collections with the same items. Nothing moves between workers, nothing is held; the copies count as bytes in flight, although
    /// clones of records share their payloads.
    pub fn tee(self) -> (Self, Self)
    where
        T: Clone,
    {
        let [one, other] = self.split("Tee", |items, parts: &mut [Vec<T>; 2]| {
            parts[0].clone_from(&items);
            parts[1] = items;
        });
        (one, other)
    }

    fn split<const N: usize>(
        self,
        name: &str,
        mut deal: impl FnMut(Vec<T>, &mut [Vec<T>; N]) + 'static,
    ) -> [Self; N] {
        let graph = self.pipeline.0.clone();
        let (account, stage): (_, Arc<str>) = (graph.progress().account(), name.into());
        let mut builder = OperatorBuilder::new(name.to_owned(), graph.scope);
        let mut input = builder.new_input(self.stream, Local);
        let (mut outputs, mut streams) = (Vec::new(), Vec::new());
        for _ in 0..N {
            let (output, stream) = builder.new_output::<Batch<T>>();
            outputs.push(OutputBuilder::<Epoch, CapacityContainerBuilder<Batch<T>>>::from(
                output,
            ));
            streams.push(stream);
        }
        builder.build(move |capabilities| {
            drop(capabilities);
            move |_frontiers| {
                crate::job::enter(&stage);
                input.for_each(|capability, batch| {
                    let Batch { items, held } = std::mem::take(batch);
                    let mut parts: [Vec<T>; N] = std::array::from_fn(|_| Vec::new());
                    deal(items, &mut parts);
                    for (port, items) in parts.into_iter().enumerate() {
                        if items.is_empty() {
                            continue;
                        }
                        let bytes = items.iter().map(Weigh::weigh).sum();
                        let mut batch = Batch {
                            items,
                            held: account.hold(bytes),
                        };
                        if let Some(capability) = capability.retain_least(port) {
                            outputs[port]
                                .activate()
                                .session(&capability)
                                .give_container(&mut batch);
                        }
                    }
                    drop(held);
                });
            }
        });
        let (pipeline, flow) = (self.pipeline, self.flow);
        let mut streams = streams.into_iter();
        std::array::from_fn(|_| Self {
            pipeline: pipeline.clone(),
            stream: streams.next().expect("there are as many streams as parts"),
            flow,
        })
    }
}
