//! Stages that cannot fail and look at one item at a time.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::Operator;

use crate::container::Batch;
use crate::pipeline::Collection;
use crate::record::Weigh;

impl<'scope, T: 'static> Collection<'scope, T> {
    /// Turns each item into another. Moves and holds nothing.
    pub fn map<U: Weigh + 'static>(self, mut each: impl FnMut(T) -> U + 'static) -> Collection<'scope, U> {
        self.by_batch("Map", move |items| items.into_iter().map(&mut each).collect())
    }

    /// Turns each item into any number of others. Moves nothing; holds the results of one batch (at most 64 KiB of input, or one item).
    pub fn flat_map<U: Weigh + 'static, I: IntoIterator<Item = U>>(
        self,
        mut each: impl FnMut(T) -> I + 'static,
    ) -> Collection<'scope, U> {
        self.by_batch("FlatMap", move |items| {
            items.into_iter().flat_map(&mut each).collect()
        })
    }

    /// Keeps the items for which `keep` says so. Moves and holds nothing.
    pub fn filter(self, mut keep: impl FnMut(&T) -> bool + 'static) -> Self
    where
        T: Weigh,
    {
        self.by_batch("Filter", move |mut items| {
            items.retain(&mut keep);
            items
        })
    }

    /// Looks at each item as it passes. Moves and holds nothing.
    pub fn inspect(self, mut look: impl FnMut(&T) + 'static) -> Self
    where
        T: Weigh,
    {
        self.by_batch("Inspect", move |items| {
            items.iter().for_each(&mut look);
            items
        })
    }

    fn by_batch<U: Weigh + 'static>(
        self,
        name: &str,
        mut convert: impl FnMut(Vec<T>) -> Vec<U> + 'static,
    ) -> Collection<'scope, U> {
        let account = self.pipeline.0.progress().account();
        let stage: std::sync::Arc<str> = name.into();
        let stream =
            self.stream
                .unary::<CapacityContainerBuilder<Batch<U>>, _, _, _>(Local, name, move |_, _| {
                    move |input, output| {
                        crate::job::enter(&stage);
                        input.for_each(|capability, batch| {
                            let Batch { items, held } = std::mem::take(batch);
                            let items = convert(items);
                            if !items.is_empty() {
                                let bytes = items.iter().map(Weigh::weigh).sum();
                                let mut batch = Batch {
                                    items,
                                    held: account.hold(bytes),
                                };
                                output.session(&capability).give_container(&mut batch);
                            }
                            drop(held);
                        });
                    }
                });
        Collection {
            pipeline: self.pipeline,
            stream,
            flow: self.flow,
        }
    }
}
