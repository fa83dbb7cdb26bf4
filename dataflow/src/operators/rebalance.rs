//! Deals items out to all workers.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::DistributorPact;
use timely::dataflow::operators::Operator;

use crate::container::{Batch, RoundRobin};
use crate::pipeline::Collection;

impl<T: Send + 'static> Collection<'_, T> {
    /// Deals items out to the workers of this process in turn, a small batch at a time, so that one source keeps all of them busy.
    ///
    /// Moves all items, by pointer. Holds nothing.
    pub fn rebalance(self) -> Self {
        let (index, options) = (self.pipeline.worker_index(), self.pipeline.0.options.clone());
        // Every process has the same number of workers, numbered in a row. Each begins with itself.
        let count = if options.serialise { 1 } else { options.workers };
        if count == 1 {
            return self;
        }
        let (first, turn) = (index - index % count, index % count);
        let pact = DistributorPact(move |_peers| RoundRobin { first, count, turn });
        let stream =
            self.stream
                .unary::<CapacityContainerBuilder<Batch<T>>, _, _, _>(pact, "Rebalance", |_, _| {
                    |input, output| {
                        input.for_each(|capability, batch| output.session(&capability).give_container(batch))
                    }
                });
        Self { stream, ..self }
    }
}
