//! Brings small results to one place.

use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde::de::DeserializeOwned;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Operator;

use crate::items::{by, unpack};
use crate::job::lock;
use crate::pipeline::Collection;

/// Where collected items end up: made before the job, read after it. Clones are the same place.
#[derive(Debug)]
pub struct Collected<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Collected<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Collected<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Collected<T> {
    /// An empty place.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what has been collected, in no particular order: sort it.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut lock(&self.0))
    }
}

impl<T> Collection<'_, T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    /// Brings all items to worker 0 and into `place`. Moves every item and holds every item: for summaries and counts, not for records.
    /// Ends the flow: the sources count an epoch as done when its items have arrived here.
    ///
    /// Between processes items travel in bincode, by their serde form. It stores no names, so the attributes `skip_serializing_if`, `flatten`,
    /// `untagged` and `tag` (without `content`) cannot be used in them: an item that has them ends the job of a cluster with
    /// [`Error::Untransportable`](crate::Error::Untransportable), while one process alone would not notice.
    pub fn collect(self, place: &Collected<T>) {
        let place = place.clone();
        let job = self.pipeline.0.job.clone();
        let done = unpack(self.stream).unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(
            by(|_: &T| 0),
            "Collect",
            move |_, _| {
                move |input, _output| {
                    input.for_each(|_, items| lock(&place.0).append(&mut items.take("Collect", &job)));
                }
            },
        );
        self.pipeline.0.flows.borrow_mut().acknowledge(self.flow, done);
    }
}
