//! Whole files, decoded by threads and handed out in order.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::array_record::index::ChunkIndex;
use crate::array_record::reader::{Reader, RecordBatch, Scratch};
use crate::{Error, Result};

/// How [`Reader::scan`] reads.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ScanOptions {
    range: Option<Range<u64>>,
    num_threads: usize,
    batch_bytes: u64,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self {
            range: None,
            num_threads: 0,
            batch_bytes: 512 << 10,
        }
    }
}

impl ScanOptions {
    /// The records to read; all of them by default.
    #[must_use]
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Threads that read and decode ahead of the caller. Default 0: the caller's thread does.
    #[must_use]
    pub fn num_threads(mut self, num_threads: usize) -> Self {
        self.num_threads = num_threads;
        self
    }

    /// Bytes of the file that make a batch, 512 KiB by default (a hand-over then costs under 10 ns a record of 1 kB); a larger chunk makes
    /// one alone.
    #[must_use]
    pub fn batch_bytes(mut self, batch_bytes: u64) -> Self {
        self.batch_bytes = batch_bytes.max(1);
        self
    }
}

/// The records of a file in order, a batch at a time: what [`Reader::scan`] gives.
///
/// Batches, and so errors, come in file order whatever the threads do. At most two batches a thread are held, of as many bytes as their
/// chunks decode to, and the one handed out. Dropping it stops the threads; a chunk under way is finished.
pub struct Scan {
    reader: Reader,
    batch: RecordBatch,
    tasks: VecDeque<Range<u64>>,
    scratch: Scratch,
    shared: Option<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
    failed: bool,
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan")
            .field("reader", &self.reader)
            .field("num_threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

struct Shared {
    state: Mutex<State>,
    /// A batch is done, or a place for one is free.
    changed: Condvar,
}

struct State {
    tasks: VecDeque<Range<u64>>,
    /// What was handed to threads and not to the caller, in order; `None` while it is worked on.
    slots: VecDeque<Option<Result<(u64, RecordBatch)>>>,
    /// Number of the first slot.
    first_slot: u64,
    max_slots: usize,
    free: Vec<RecordBatch>,
    stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, reader: &Reader) {
        let mut scratch = Scratch::default();
        loop {
            let (number, task, mut batch) = {
                let mut state = self.lock();
                loop {
                    if state.stopped || state.tasks.is_empty() {
                        return;
                    }
                    if state.slots.len() < state.max_slots {
                        break;
                    }
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                let Some(task) = state.tasks.pop_front() else {
                    return;
                };
                state.slots.push_back(None);
                let number = state.first_slot + state.slots.len() as u64 - 1;
                (number, task, state.free.pop().unwrap_or_default())
            };
            let first = task.start;
            let work = std::panic::AssertUnwindSafe(|| reader.read_range(task, &mut batch, &mut scratch));
            let result = match std::panic::catch_unwind(work) {
                Ok(Ok(())) => Ok((first, batch)),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(Error::Invalid(format!(
                    "reading `{}` from record {first} on ended in a panic, which is a fault of this program",
                    reader.name()
                ))),
            };
            let mut state = self.lock();
            let slot = (number - state.first_slot) as usize;
            state.slots[slot] = Some(result);
            drop(state);
            self.changed.notify_all();
        }
    }
}

impl Reader {
    /// Reads the whole file, or a range, front to back, with threads that work ahead.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a range that is not in the file, and those of [`load_index`](Self::load_index).
    ///
    /// # Examples
    ///
    /// ```
    /// use prep_formats::array_record::{Reader, ScanOptions, WriteOptions, Writer};
    /// use prep_formats::store::MemoryFile;
    /// use std::sync::Arc;
    ///
    /// let mut writer = Writer::new(Vec::new(), WriteOptions::default())?;
    /// for i in 0..100u8 {
    ///     writer.write(&[i])?;
    /// }
    /// let reader = Reader::from_source(Arc::new(MemoryFile::new("example", writer.finish()?)))?;
    /// let mut scan = reader.scan(ScanOptions::default().num_threads(2).batch_bytes(1000))?;
    /// let mut found = Vec::new();
    /// while let Some((first, batch)) = scan.next_batch()? {
    ///     assert_eq!(first, found.len() as u64);
    ///     found.extend(batch.iter().map(|record| record[0]));
    /// }
    /// assert_eq!(found, (0..100).collect::<Vec<u8>>());
    /// # Ok::<(), prep_formats::Error>(())
    /// ```
    pub fn scan(&self, options: ScanOptions) -> Result<Scan> {
        let range = options.range.unwrap_or(0..self.num_records());
        self.check_range(&range)?;
        let chunks = self.inner.index()?;
        let tasks = tasks(&chunks, range, options.batch_bytes);
        drop(chunks);
        let mut scan = Scan {
            reader: self.clone(),
            batch: RecordBatch::default(),
            tasks,
            scratch: Scratch::default(),
            shared: None,
            threads: Vec::new(),
            failed: false,
        };
        let num_threads = options.num_threads.min(scan.tasks.len());
        if num_threads > 0 {
            let shared = Arc::new(Shared {
                state: Mutex::new(State {
                    tasks: std::mem::take(&mut scan.tasks),
                    slots: VecDeque::new(),
                    first_slot: 0,
                    max_slots: 2 * num_threads,
                    free: Vec::new(),
                    stopped: false,
                }),
                changed: Condvar::new(),
            });
            for _ in 0..num_threads {
                let (shared, reader) = (Arc::clone(&shared), self.clone());
                let thread = std::thread::Builder::new()
                    .name("prep-scan".into())
                    .spawn(move || shared.work(&reader));
                // Those that started do the work; without any the caller's thread does.
                match thread {
                    Ok(thread) => scan.threads.push(thread),
                    Err(_) => break,
                }
            }
            if scan.threads.is_empty() {
                scan.tasks = std::mem::take(&mut shared.lock().tasks);
            } else {
                scan.shared = Some(shared);
            }
        }
        Ok(scan)
    }
}

/// Cuts a range where chunks begin, after so many bytes of the file each. 16 bytes a batch.
fn tasks(chunks: &ChunkIndex, range: Range<u64>, batch_bytes: u64) -> VecDeque<Range<u64>> {
    let mut tasks = VecDeque::new();
    let mut start = range.start;
    while start < range.end {
        let chunk = chunks.chunk_of(start);
        let limit = chunks.offset(chunk).saturating_add(batch_bytes);
        // The last chunk that ends by the limit; at least this one.
        let (mut low, mut high) = (chunk + 1, chunks.num_chunks());
        while low < high {
            let middle = low + (high - low) / 2;
            if chunks.offset(middle + 1) <= limit {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let end = chunks.place(low - 1).end.min(range.end);
        tasks.push_back(start..end);
        start = end;
    }
    tasks
}

impl Scan {
    /// The next records, and the index of the first of them; `None` after the last.
    ///
    /// # Errors
    ///
    /// As [`Reader::record`]; the records of the batch before the damaged one are not given (read them by [`Reader::record`]). Nothing
    /// comes after an error.
    pub fn next_batch(&mut self) -> Result<Option<(u64, &RecordBatch)>> {
        if self.failed {
            return Ok(None);
        }
        let Some(shared) = self.shared.clone() else {
            let Some(task) = self.tasks.pop_front() else {
                return Ok(None);
            };
            let first = task.start;
            if let Err(error) = self.reader.read_range(task, &mut self.batch, &mut self.scratch) {
                self.failed = true;
                return Err(error);
            }
            return Ok(Some((first, &self.batch)));
        };
        let mut state = shared.lock();
        let used = std::mem::take(&mut self.batch);
        if used.is_used() {
            state.free.push(used);
        }
        let done = loop {
            if state.slots.front().is_some_and(Option::is_some) {
                state.first_slot += 1;
                break state.slots.pop_front().flatten();
            }
            if state.slots.is_empty() && state.tasks.is_empty() {
                break None;
            }
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        shared.changed.notify_all();
        match done {
            Some(Ok((first, batch))) => {
                self.batch = batch;
                Ok(Some((first, &self.batch)))
            }
            Some(Err(error)) => {
                self.failed = true;
                self.stop();
                Err(error)
            }
            None => Ok(None),
        }
    }

    /// Calls `visit(index, record)` for all records that are left, in order. Stops at the first error.
    ///
    /// # Errors
    ///
    /// As [`next_batch`](Self::next_batch), and those of `visit`.
    pub fn for_each(mut self, mut visit: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        while let Some((first, batch)) = self.next_batch()? {
            for (index, record) in (first..).zip(batch.iter()) {
                visit(index, record)?;
            }
        }
        Ok(())
    }

    fn stop(&mut self) {
        let Some(shared) = &self.shared else {
            return;
        };
        shared.lock().stopped = true;
        shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was turned into an error already.
            let _ = thread.join();
        }
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.stop();
    }
}
