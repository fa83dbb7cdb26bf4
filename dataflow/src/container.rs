//! The containers in which timely moves items and records: sized by bytes, and accounted for while they live.

use std::io::Write;

use bytes::Bytes;
use timely::Accountable;
use timely::communication::Push;
use timely::dataflow::channels::pushers::exchange::Distributor;
use timely::dataflow::channels::{ContainerBytes, Message, Stamp};

use crate::progress::Held;
use crate::record::{RECORD_OVERHEAD_BYTES, Record, put_header, take_record};

/// Typed items that stay in one process: they are never serialised.
#[derive(Debug)]
pub(crate) struct Batch<T> {
    pub(crate) items: Vec<T>,
    pub(crate) held: Held,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            held: Held::default(),
        }
    }
}

impl<T> Accountable for Batch<T> {
    fn record_count(&self) -> i64 {
        self.items.len() as i64
    }
}

/// Never called: `rebalance` sends to workers of its own process only, and timely moves those messages as they are.
impl<T> ContainerBytes for Batch<T> {
    fn from_bytes(_: timely::bytes::arc::Bytes) -> Self {
        unreachable!("typed items never leave their process")
    }

    fn length_in_bytes(&self) -> usize {
        unreachable!("typed items never leave their process")
    }

    fn into_bytes<W: Write>(&self, _: &mut W) {
        unreachable!("typed items never leave their process")
    }
}

/// Records on their way to one worker.
///
/// | bytes | field |
/// |---|---|
/// | 8 | `worker` |
/// | 8 | `shard` |
/// | 8 | number of records `n` |
/// | `n` times 32 + length | length `u32`, split `u32`, key, origin `u64`, payload |
/// | 0 to 7 | zeros, up to a multiple of 8 |
///
/// All numbers are little-endian. Within a process the payloads are shared, not copied; between processes they are copied once, into
/// the send buffer, and the receiver takes slices of what it received.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    /// The worker that gets the records.
    pub(crate) worker: u64,
    /// The shard that they belong to, as an index into the schedule; 0 before there are shards.
    pub(crate) shard: u64,
    pub(crate) records: Vec<Record>,
    /// Bytes of the payloads.
    pub(crate) data_bytes: usize,
    pub(crate) held: Held,
}

impl Chunk {
    pub(crate) fn push(&mut self, record: Record) {
        self.data_bytes += record.data.len();
        self.records.push(record);
    }

    pub(crate) fn weigh(&self) -> usize {
        self.data_bytes + RECORD_OVERHEAD_BYTES * self.records.len()
    }
}

impl Accountable for Chunk {
    fn record_count(&self) -> i64 {
        self.records.len() as i64
    }
}

/// Lets `Bytes` own a slice of timely's receive buffer.
struct Wire(timely::bytes::arc::Bytes);

impl AsRef<[u8]> for Wire {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl ContainerBytes for Chunk {
    /// # Panics
    ///
    /// If the bytes are not those of [`into_bytes`](Self::into_bytes): peers are authenticated and run the same program, so this is a
    /// bug; the worker's guard turns it into the job's error.
    fn from_bytes(bytes: timely::bytes::arc::Bytes) -> Self {
        let mut rest = Bytes::from_owner(Wire(bytes));
        let mut number = || {
            let field = rest.split_to(8);
            u64::from_le_bytes(
                field[..]
                    .try_into()
                    .expect("a chunk has a header of three numbers"),
            )
        };
        let (worker, shard, num_records) = (number(), number(), number());
        let mut chunk = Self {
            worker,
            shard,
            ..Self::default()
        };
        for _ in 0..num_records {
            chunk.push(take_record(&mut rest).expect("a chunk has as many records as it says"));
        }
        chunk
    }

    fn length_in_bytes(&self) -> usize {
        (24 + self.weigh()).next_multiple_of(8)
    }

    fn into_bytes<W: Write>(&self, writer: &mut W) {
        let mut put = |bytes: &[u8]| {
            writer
                .write_all(bytes)
                .expect("timely's send buffer takes what was announced")
        };
        put(&self.worker.to_le_bytes());
        put(&self.shard.to_le_bytes());
        put(&(self.records.len() as u64).to_le_bytes());
        let mut header = [0; RECORD_OVERHEAD_BYTES];
        for record in &self.records {
            put_header(record.lying(), &mut header);
            put(&header);
            put(&record.data);
        }
        put(&[0; 8][..self.length_in_bytes() - 24 - self.weigh()]);
    }
}

/// Sends each chunk whole to the worker that it names.
pub(crate) struct ToNamedWorker;

impl Distributor<Chunk> for ToNamedWorker {
    fn partition<T: Clone, P: Push<Message<T, Chunk>>>(
        &mut self,
        chunk: &mut Chunk,
        stamp: &Stamp<T>,
        pushers: &mut [P],
    ) {
        let worker = chunk.worker as usize;
        Message::push_at(chunk, stamp.clone(), &mut pushers[worker]);
    }

    fn flush<T: Clone, P: Push<Message<T, Chunk>>>(&mut self, _: &Stamp<T>, _: &mut [P]) {}
}

/// Sends whole batches to the workers of one process in turn.
pub(crate) struct RoundRobin {
    /// The process's first worker.
    pub(crate) first: usize,
    /// Its number of workers.
    pub(crate) count: usize,
    /// Whose turn it is, counted from the first.
    pub(crate) turn: usize,
}

impl<I> Distributor<Batch<I>> for RoundRobin {
    fn partition<T: Clone, P: Push<Message<T, Batch<I>>>>(
        &mut self,
        batch: &mut Batch<I>,
        stamp: &Stamp<T>,
        pushers: &mut [P],
    ) {
        let worker = self.first + self.turn % self.count;
        self.turn = (self.turn + 1) % self.count;
        Message::push_at(batch, stamp.clone(), &mut pushers[worker]);
    }

    fn flush<T: Clone, P: Push<Message<T, Batch<I>>>>(&mut self, _: &Stamp<T>, _: &mut [P]) {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_chunk_survives_the_wire(
            worker in any::<u64>(), shard in any::<u64>(),
            records in prop::collection::vec((any::<u32>(), any::<[u8; 16]>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        ) {
            let mut chunk = Chunk { worker, shard, ..Chunk::default() };
            for (split, key, origin, data) in records {
                chunk.push(Record { split, key, origin, data: data.into() });
            }
            let mut wire = Vec::new();
            chunk.into_bytes(&mut wire);
            prop_assert_eq!(wire.len(), chunk.length_in_bytes());
            let received = timely::bytes::arc::BytesMut::from(wire).freeze();
            let back = Chunk::from_bytes(received);
            prop_assert_eq!((back.worker, back.shard, back.data_bytes), (worker, shard, chunk.data_bytes));
            prop_assert_eq!(back.records, chunk.records);
        }
    }
}
