//! Makes one collection of several.

use timely::dataflow::operators::Concatenate;

use crate::Error;
use crate::pipeline::{Collection, Pipeline};

impl<'scope> Pipeline<'scope> {
    /// All items of several collections. Nothing moves between workers, nothing is held.
    ///
    /// From here on the sources of all of them wait for each other: the slowest sets the pace. So a collection can't be united with one that
    /// only begins when it has ended, as with what a [`sort`](Collection::sort) makes of its other branch: the job then ends with an error that
    /// says so. Sort both, or write both with one [`write_shards`](crate::Sorted::write_shards) of two splits.
    pub fn flatten<T: 'static>(
        &self,
        collections: impl IntoIterator<Item = Collection<'scope, T>>,
    ) -> Collection<'scope, T> {
        let mut flows = self.0.flows.borrow_mut();
        let mut flow = None;
        let mut streams = Vec::new();
        for collection in collections {
            if flow.is_some_and(|flow| !flows.join(flow, collection.flow)) {
                let message = "it unites a collection with what follows from that collection's end (behind a sort or a \
                               table): the two can't run at once; sort both, or write them as two splits";
                self.0.job.fail(Error::stage("Flatten", message));
            }
            flow.get_or_insert(collection.flow);
            streams.push(collection.stream);
        }
        let flow = flow.unwrap_or_else(|| flows.open(None));
        Collection {
            pipeline: self.clone(),
            stream: self.0.scope.concatenate(streams),
            flow,
        }
    }
}
