//! Ends a flow whose items nobody needs.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::Operator;

use crate::pipeline::Collection;

impl<T: 'static> Collection<'_, T> {
    /// Drops all items, and tells the sources so: for a flow whose last stage works by its effects (a request, a counter). Where a collection
    /// is dropped instead, its sources don't wait for its stages, and what these have not come to yet is bounded by nothing.
    pub fn discard(self) {
        let done =
            self.stream
                .unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(Local, "Discard", |_, _| {
                    |input, _output| input.for_each(|_, batch| drop(std::mem::take(batch)))
                });
        self.pipeline.0.flows.borrow_mut().acknowledge(self.flow, done);
    }
}
