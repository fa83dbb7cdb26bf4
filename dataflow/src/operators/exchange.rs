//! Sends each item to the worker that its key belongs to.

use serde::Serialize;
use serde::de::DeserializeOwned;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::{DistributorPact, Pipeline as Local};
use timely::dataflow::operators::Operator;

use crate::container::{Batch, Chunk, ToNamedWorker};
use crate::items;
use crate::pipeline::{Collection, Epoch};
use crate::record::{Key, Record, Weigh};

/// How ranges of keys are dealt to workers: each owns one contiguous range in every split.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Partition {
    /// Keys are spread evenly, as hashes are: equal ranges of the first eight bytes.
    #[default]
    Uniform,
    /// Worker `i` takes the keys from bound `i - 1` up to, not including, bound `i`; the last worker takes the rest. For keys that aren't
    /// hashes, from a sample of them. Bounds must rise, and be the same on every worker; where there are fewer than workers, the
    /// last workers get nothing.
    Bounds(std::sync::Arc<[Key]>),
}

impl Partition {
    /// The worker, below `num_workers`, that owns a key.
    pub(crate) fn worker(&self, key: &Key, num_workers: usize) -> usize {
        match self {
            Self::Uniform => {
                let [a, b, c, d, e, f, g, h, ..] = *key;
                let top = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
                ((u128::from(top) * num_workers as u128) >> 64) as usize
            }
            Self::Bounds(bounds) => bounds.partition_point(|bound| bound <= key).min(num_workers - 1),
        }
    }
}

/// A chunk is sent when it holds this much.
const CHUNK_BYTES: usize = 256 << 10;
/// Or this many records.
const CHUNK_RECORDS: usize = 4096;

impl<'scope> Collection<'scope, Record> {
    /// Packs records into chunks, one for each worker that gets some, and sends these. `route` names the worker, or gives an error.
    ///
    /// Moves every record: its pointer within a process, its bytes between processes. Chunks hold up to 256 KiB for each worker, but no
    /// longer than the operator runs.
    pub(crate) fn route(
        self,
        name: &str,
        mut route: impl FnMut(&Record) -> Result<usize, crate::Error> + 'static,
    ) -> Stream<'scope, Epoch, Chunk> {
        let (peers, job) = (self.pipeline.num_workers(), self.pipeline.0.job.clone());
        let account = self.pipeline.0.progress().account();
        self.stream
            .unary::<CapacityContainerBuilder<Chunk>, _, _, _>(Local, name, move |_, _| {
                let mut chunks: Vec<Chunk> = (0..peers).map(|_| Chunk::default()).collect();
                move |input, output| {
                    input.for_each(|capability, batch| {
                        let mut session = output.session(&capability);
                        let mut send = |worker: usize, chunk: &mut Chunk| {
                            let mut chunk = std::mem::take(chunk);
                            chunk.worker = worker as u64;
                            chunk.held = account.hold(chunk.weigh());
                            session.give_container(&mut chunk);
                        };
                        for record in batch.items.drain(..) {
                            let worker = match route(&record) {
                                Ok(worker) => worker,
                                Err(error) => return job.fail(error),
                            };
                            let chunk = &mut chunks[worker];
                            chunk.push(record);
                            if chunk.data_bytes >= CHUNK_BYTES || chunk.records.len() >= CHUNK_RECORDS {
                                send(worker, chunk);
                            }
                        }
                        batch.held = Default::default();
                        for (worker, chunk) in chunks.iter_mut().enumerate() {
                            if !chunk.records.is_empty() {
                                send(worker, chunk);
                            }
                        }
                    });
                }
            })
    }

    /// Sends each record to the worker that `partition` gives its key, whatever its split. Moves every record; holds nothing.
    pub fn exchange_by_key(self, partition: Partition) -> Self {
        let (pipeline, flow) = (self.pipeline.clone(), self.flow);
        let peers = pipeline.num_workers();
        let chunks = self.route("Pack", move |record| Ok(partition.worker(&record.key, peers)));
        let pact = DistributorPact(|_peers| ToNamedWorker);
        let stream = chunks.unary::<CapacityContainerBuilder<Batch<Record>>, _, _, _>(
            pact,
            "ExchangeByKey",
            |_, _| {
                |input, output| {
                    input.for_each(|capability, chunk| {
                        let chunk = std::mem::take(chunk);
                        let mut batch = Batch {
                            items: chunk.records,
                            held: chunk.held,
                        };
                        output.session(&capability).give_container(&mut batch);
                    });
                }
            },
        );
        Self {
            pipeline,
            stream,
            flow,
        }
    }
}

impl<T> Collection<'_, T>
where
    T: Weigh + Serialize + DeserializeOwned + Send + 'static,
{
    /// Sends each item to worker `by(item) % num_workers`: items with one number meet on one worker. For small typed items; records go
    /// by [`exchange_by_key`](Collection::exchange_by_key). Moves every item; holds nothing.
    ///
    /// Between processes items travel in bincode: what that means for serde attributes is said at [`collect`](Collection::collect).
    pub fn exchange(self, mut by: impl FnMut(&T) -> u64 + 'static) -> Self {
        let account = self.pipeline.0.progress().account();
        let job = self.pipeline.0.job.clone();
        let pact = items::by(move |item: &T| by(item));
        let stream = items::unpack(self.stream).unary::<CapacityContainerBuilder<Batch<T>>, _, _, _>(
            pact,
            "Exchange",
            move |_, _| {
                move |input, output| {
                    input.for_each(|capability, items| {
                        let items = items.take("Exchange", &job);
                        let bytes = items.iter().map(Weigh::weigh).sum();
                        let mut batch = Batch {
                            items,
                            held: account.hold(bytes),
                        };
                        output.session(&capability).give_container(&mut batch);
                    });
                }
            },
        );
        Self {
            pipeline: self.pipeline,
            flow: self.flow,
            stream,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(first: u8) -> Key {
        let mut key = [0xff; 16];
        key[0] = first;
        key
    }

    #[test]
    fn ranges_are_contiguous_and_reach_every_worker() {
        for num_workers in [1, 2, 3, 5, 8] {
            let workers: Vec<usize> = (0..=255)
                .map(|first| Partition::Uniform.worker(&key(first), num_workers))
                .collect();
            assert!(workers.is_sorted());
            assert_eq!((workers[0], workers[255]), (0, num_workers - 1));
        }
    }

    #[test]
    fn a_bound_belongs_to_the_worker_above_it() {
        let partition = Partition::Bounds([key(10), key(20)].into());
        let workers: Vec<usize> = [9, 10, 19, 20, 255]
            .map(|first| partition.worker(&key(first), 3))
            .into();
        assert_eq!(workers, [0, 1, 1, 2, 2]);
        assert_eq!(partition.worker(&key(255), 2), 1);
    }
}
