//! Batches whose buffers go back to a pool when they are dropped.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use prep_formats::columns::Batch;

use crate::damage::DamagedRecord;
use crate::deal::Step;

/// Buffers of one batch.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) batch: Batch,
    /// Indices in the opened dataset while it is read, then the global indices.
    pub(crate) indices: Vec<u64>,
    pub(crate) damaged: Vec<DamagedRecord>,
}

/// Buffers at rest; shared by a loader and the batches that it has handed out.
#[derive(Debug)]
pub(crate) struct Pool {
    at_rest: Mutex<Vec<Buffers>>,
    limit: usize,
}

impl Pool {
    /// Keeps up to `limit` batches.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            at_rest: Mutex::default(),
            limit,
        }
    }

    pub(crate) fn take(&self) -> Option<Buffers> {
        self.at_rest.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn give_back(&self, buffers: Buffers) {
        let mut at_rest = self.at_rest.lock().unwrap_or_else(PoisonError::into_inner);
        if at_rest.len() < self.limit {
            at_rest.push(buffers);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.at_rest.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A batch of the stream: columns, and where it stands. Its buffers go back to the loader's pool when it is dropped.
///
/// It borrows nothing and may outlive the loader; it can be sent to and shared between threads. Dereferences to [`Batch`].
pub struct PooledBatch {
    buffers: Option<Buffers>,
    pool: Arc<Pool>,
    step: Step,
}

impl PooledBatch {
    pub(crate) fn new(buffers: Buffers, pool: Arc<Pool>, step: Step) -> Self {
        Self {
            buffers: Some(buffers),
            pool,
            step,
        }
    }

    fn buffers(&self) -> &Buffers {
        match &self.buffers {
            Some(buffers) => buffers,
            None => unreachable!("buffers leave with `into_batch` or `drop` only"),
        }
    }

    /// Epoch of all rows, 0-based.
    pub fn epoch(&self) -> u64 {
        self.step.epoch
    }

    /// The step: positions of the global batch and of these rows.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// The global index of each row: its position in its split.
    pub fn global_indices(&self) -> &[u64] {
        &self.buffers().indices
    }

    /// The records that were left out of this batch, in the stream's order: see [`OnDamage::Skip`](crate::OnDamage::Skip).
    pub fn damaged(&self) -> &[DamagedRecord] {
        &self.buffers().damaged
    }

    /// Bytes of all columns.
    pub fn num_bytes(&self) -> u64 {
        batch_bytes(&self.buffers().batch)
    }

    /// Takes the batch out; its buffers do not go back.
    pub fn into_batch(mut self) -> Batch {
        match self.buffers.take() {
            Some(buffers) => buffers.batch,
            None => unreachable!("buffers leave with `into_batch` or `drop` only"),
        }
    }
}

impl Deref for PooledBatch {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.buffers().batch
    }
}

/// The owner of a batch may work on it in place. Its buffers are emptied before they are used again.
impl DerefMut for PooledBatch {
    fn deref_mut(&mut self) -> &mut Batch {
        match &mut self.buffers {
            Some(buffers) => &mut buffers.batch,
            None => unreachable!("buffers leave with `into_batch` or `drop` only"),
        }
    }
}

impl Drop for PooledBatch {
    fn drop(&mut self) {
        if let Some(buffers) = self.buffers.take() {
            self.pool.give_back(buffers);
        }
    }
}

impl fmt::Debug for PooledBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledBatch")
            .field("rows", &self.rows)
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

/// Bytes of all columns of a batch.
pub(crate) fn batch_bytes(batch: &Batch) -> u64 {
    batch.columns.iter().map(|column| column.num_bytes() as u64).sum()
}
