//! Brings the values of each key together, where all keys together are small.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline as Local;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Capability, Operator};
use timely::progress::Antichain;

use crate::Error;
use crate::container::Batch;
use crate::items::{by, unpack};
use crate::operators::source::BATCH_ITEMS;
use crate::pipeline::{Collection, Epoch};
use crate::record::Weigh;

/// What a table takes for each entry besides key and value: the hash table's slack and the allocator's.
const ENTRY_BYTES: usize = 32;
/// Partial results that a worker puts together before it sends them on.
const PARTIAL_ENTRIES: usize = 4096;
const PARTIAL_BYTES: usize = 64 << 10;

/// A key of small data: compared, hashed, and sent between workers.
pub trait SmallKey: Weigh + Ord + Hash + Serialize + DeserializeOwned + Send + 'static {}
impl<K: Weigh + Ord + Hash + Serialize + DeserializeOwned + Send + 'static> SmallKey for K {}

/// A value of small data: sent between workers.
pub trait SmallValue: Weigh + Serialize + DeserializeOwned + Send + 'static {}
impl<V: Weigh + Serialize + DeserializeOwned + Send + 'static> SmallValue for V {}

/// The same on all workers of all processes; what a job yields doesn't depend on it.
fn hash(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl<'scope, T: SmallKey> Collection<'scope, T> {
    /// Counts equal items: one item and its number for each. As [`combine_small`](Collection::combine_small).
    pub fn count(self, name: &str) -> Collection<'scope, (T, u64)> {
        self.map(|item| (item, 1))
            .combine_small(name, |sum: &mut u64, more| *sum += more)
    }
}

impl<'scope, K: SmallKey, V: SmallValue> Collection<'scope, (K, V)> {
    /// Makes one value of all values of a key, two at a time: sums, extremes, sketches.
    ///
    /// `merge` must give the same whatever the order and the pairs (as a sum of integers does, and one of floats doesn't). A barrier: what
    /// follows starts when the last item has arrived. Each worker merges what it has of a key at the time, and sends that to the worker that
    /// owns the key's hash. There it is held in a table of at most an eighth of the worker's budget; more keys than that are an error
    /// ([`Error::TooLarge`]), and a task for a [`sort`](Collection::sort). Yields each worker's keys in order.
    pub fn combine_small(self, name: &str, merge: impl Fn(&mut V, V) + 'static) -> Self {
        let merge = std::rc::Rc::new(merge);
        let partial = {
            let merge = merge.clone();
            self.partial(name, move |to, from| merge(to, from))
        };
        partial.table(name, move |entry: Entry<'_, K, V>, value| match entry {
            Entry::Occupied(mut found) => {
                let before = found.get().weigh();
                merge(found.get_mut(), value);
                found.get().weigh() as i64 - before as i64
            }
            Entry::Vacant(empty) => {
                let bytes = empty.key().weigh() + value.weigh() + ENTRY_BYTES;
                empty.insert(value);
                bytes as i64
            }
        })
    }

    /// Collects the values of each key, sorted. Moves every item to the worker that owns the key's hash, and holds all of them there, in at
    /// most an eighth of the worker's budget; what doesn't fit is an error ([`Error::TooLarge`]), and a task for
    /// [`group_sorted`](crate::Sorted::group_sorted). A barrier. Yields each worker's keys in order.
    pub fn group_small(self, name: &str) -> Collection<'scope, (K, Vec<V>)>
    where
        V: Ord,
    {
        let groups = self.table(name, |entry: Entry<'_, K, Vec<V>>, value: V| {
            let mut bytes = value.weigh();
            let new = matches!(entry, Entry::Vacant(_));
            if new {
                bytes += entry.key().weigh() + ENTRY_BYTES + size_of::<Vec<V>>();
            }
            entry.or_default().push(value);
            bytes as i64
        });
        groups.map(|(key, mut values)| {
            values.sort_unstable();
            (key, values)
        })
    }

    /// Merges values of equal keys as long as more of them come, and passes on what there is when none do.
    fn partial(self, name: &str, merge: impl Fn(&mut V, V) + 'static) -> Self {
        let graph = self.pipeline.0.clone();
        let (job, account, scope) = (graph.job.clone(), graph.progress().account(), graph.scope);
        let stage: Arc<str> = name.into();
        let stream = self
            .stream
            .unary::<CapacityContainerBuilder<Batch<(K, V)>>, _, _, _>(Local, "CombineHere", |_, info| {
                let activator = scope.activator_for(info.address);
                let mut table: HashMap<K, V> = HashMap::new();
                let mut bytes = 0;
                let mut oldest: Option<Capability<Epoch>> = None;
                move |input, output| {
                    crate::job::enter(&stage);
                    let mut quiet = true;
                    input.for_each(|capability, batch| {
                        quiet = false;
                        let capability = capability.retain_least(0);
                        let older = oldest.as_ref().map(|oldest| *oldest.time());
                        if let Some(capability) = capability
                            && older.is_none_or(|oldest| *capability.time() < oldest)
                        {
                            oldest = Some(capability);
                        }
                        for (key, value) in std::mem::take(batch).items {
                            match table.entry(key) {
                                Entry::Occupied(mut found) => merge(found.get_mut(), value),
                                Entry::Vacant(empty) => {
                                    bytes += empty.key().weigh() + value.weigh();
                                    empty.insert(value);
                                }
                            }
                        }
                    });
                    if !quiet {
                        job.tick();
                    }
                    if table.is_empty() {
                        return;
                    }
                    if !quiet && table.len() < PARTIAL_ENTRIES && bytes < PARTIAL_BYTES {
                        // Looks again after the others, which may have more.
                        activator.activate();
                        return;
                    }
                    bytes = 0;
                    if let Some(capability) = oldest.take() {
                        give(&account, table.drain(), |batch| {
                            output.session(&capability).give_container(batch);
                        });
                    }
                }
            });
        Collection {
            pipeline: self.pipeline,
            stream,
            flow: self.flow,
        }
    }

    /// Holds a table by key, into which `put` puts a value, saying how many bytes that takes.
    fn table<A: Weigh + 'static>(
        self,
        name: &str,
        mut put: impl FnMut(Entry<'_, K, A>, V) -> i64 + 'static,
    ) -> Collection<'scope, (K, A)> {
        let graph = self.pipeline.0.clone();
        graph.count_table();
        let scope = graph.scope;
        let unpacked = unpack(self.stream);
        let mut builder = OperatorBuilder::new(name.to_owned(), scope);
        let mut input = builder.new_input(unpacked, by(|(key, _): &(K, V)| hash(key)));
        let (acks_output, acks) = builder.new_output::<Vec<()>>();
        let (output, stream) = builder.new_output_connection([] as [(usize, Antichain<Epoch>); 0]);
        let mut output: OutputBuilder<Epoch, CapacityContainerBuilder<Batch<(K, A)>>> =
            OutputBuilder::from(output);
        let (job, account, shares) = (
            graph.job.clone(),
            graph.progress().account(),
            graph.shares.clone(),
        );
        let (stage, counters): (Arc<str>, _) = (name.into(), graph.progress().counters(name));
        builder.build(move |mut capabilities| {
            let mut done = capabilities.pop();
            drop(capabilities);
            let mut table: HashMap<K, A> = HashMap::new();
            let mut bytes = 0i64;
            let mut held = account.hold(0);
            move |frontiers| {
                let _ = &acks_output;
                crate::job::enter(&stage);
                let limit = shares.get().table_bytes as i64;
                input.for_each(|_, items| {
                    for (key, value) in items.take(&stage, &job) {
                        let more = put(table.entry(key), value);
                        bytes += more;
                        held.grow(usize::try_from(more).unwrap_or(0));
                    }
                    job.tick();
                    if bytes > limit {
                        let (bytes, limit) = (bytes.unsigned_abs(), limit.unsigned_abs());
                        job.fail(Error::TooLarge {
                            stage: stage.to_string(),
                            entries: table.len() as u64,
                            bytes,
                            limit,
                        });
                    }
                });
                if frontiers[0].is_empty()
                    && !job.stopped()
                    && let Some(capability) = done.take()
                {
                    held = account.hold(0);
                    let mut entries: Vec<(K, A)> = table.drain().collect();
                    entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
                    counters.add(entries.len() as u64, bytes.unsigned_abs());
                    give(&account, entries.into_iter(), |batch| {
                        output.activate().session(&capability).give_container(batch);
                    });
                }
            }
        });
        let mut flows = graph.flows.borrow_mut();
        flows.acknowledge(self.flow, acks);
        let flow = flows.open(None);
        flows.wait(flow, self.flow);
        drop(flows);
        Collection {
            pipeline: self.pipeline,
            stream,
            flow,
        }
    }
}

/// Puts items into batches.
fn give<T: Weigh>(
    account: &Arc<crate::progress::Account>,
    mut items: impl Iterator<Item = T>,
    mut put: impl FnMut(&mut Batch<T>),
) {
    loop {
        let items: Vec<T> = items.by_ref().take(BATCH_ITEMS).collect();
        if items.is_empty() {
            return;
        }
        let bytes = items.iter().map(Weigh::weigh).sum();
        put(&mut Batch {
            items,
            held: account.hold(bytes),
        });
    }
}
