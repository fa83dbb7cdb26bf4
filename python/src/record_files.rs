//! Records of a list of ArrayRecord files by one index: what `prep.ArrayRecordDataSource` stands on.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use prep_formats::array_record::{Reader, Scratch};
use prep_formats::store::{self, Location};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::boundary::{guarded, outside};
use crate::error::Kind;

/// Files opened at once when their numbers of records are asked for.
const OPENING_THREADS: usize = 16;
/// Records that one release of the interpreter lock covers, and bytes: then signals are looked for. Enough to make the switch cheap
/// (under 1 ns a record), few enough for Ctrl-C (milliseconds) and for memory.
const SLICE_RECORDS: usize = 1024;
const SLICE_BYTES: usize = 4 << 20;
/// Records that the processor is told of ahead. 8 to 16 gave the same on a mapped file.
const AHEAD: usize = 8;

thread_local! {
    static SCRATCH: RefCell<Option<Box<Scratch>>> = const { RefCell::new(None) };
}

/// Lends this thread's buffers, so that they are allocated once.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = work(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}

/// A part of a file: records `start..end` of it.
#[derive(Debug)]
struct Part {
    path: String,
    start: u64,
    end: u64,
}

/// Readers of a set of files, opened when first needed.
type Readers = Arc<Vec<OnceLock<Reader>>>;

/// Records of parts of ArrayRecord files, one after the other, by index. A lookup costs O(1) whatever the size of a file (and a binary
/// search over the files); files whose range is given are opened when first read.
#[pyclass(subclass, frozen, module = "prep._core")]
#[derive(Debug)]
pub(crate) struct RecordFiles {
    parts: Arc<Vec<Part>>,
    /// Records before each part, and in all.
    starts: Arc<Vec<u64>>,
    /// Locked for the exchange of the `Arc` only, and with the interpreter lock held: so never across a fork.
    readers: Mutex<Readers>,
}

#[pymethods]
impl RecordFiles {
    /// `parts`: (path, start, end); without start and end the whole file, which is opened to count its records.
    #[new]
    fn new(py: Python<'_>, parts: Vec<(String, Option<(u64, u64)>)>) -> PyResult<Self> {
        guarded(|| {
            let opened = outside(py, || open_all(&parts))?;
            let mut starts = vec![0];
            let mut known = Vec::with_capacity(parts.len());
            for ((path, range), reader) in parts.into_iter().zip(&opened) {
                let (start, end) = match range {
                    Some(range) => range,
                    None => (0, reader.get().map_or(0, Reader::num_records)),
                };
                if start > end {
                    return Err(
                        Kind::Invalid.error(format!("`{path}[{start}:{end}]`: the start is behind the end"))
                    );
                }
                starts.push(starts[starts.len() - 1] + (end - start));
                known.push(Part { path, start, end });
            }
            Ok(Self {
                parts: Arc::new(known),
                starts: Arc::new(starts),
                readers: Mutex::new(Arc::new(opened)),
            })
        })
    }

    fn __len__(&self) -> usize {
        self.starts[self.parts.len()] as usize
    }

    /// The record at an index, hashes checked.
    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let index = self.check(index)?;
            let readers = self.readers();
            with_scratch(|scratch| {
                let (part, record) = self.locate(index);
                let bytes = outside(py, || {
                    reader(&self.parts, &readers, part)?.record(record, scratch)
                })?;
                Ok(PyBytes::new(py, bytes))
            })
        })
    }

    /// The records at these indices, in their order.
    fn __getitems__<'py>(
        &self,
        py: Python<'py>,
        indices: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let mut wanted = Vec::new();
            for index in indices.try_iter()? {
                wanted.push(self.locate(self.check(&index?)?));
            }
            let readers = self.readers();
            collect(py, &wanted, |(part, record)| {
                Ok((reader(&self.parts, &readers, part)?, record))
            })
        })
    }

    /// (path, start, end) of each part.
    #[getter]
    fn parts(&self) -> Vec<(&str, u64, u64)> {
        let triple = |part: &'_ Part| -> (u64, u64) { (part.start, part.end) };
        self.parts
            .iter()
            .map(|part| {
                let (start, end) = triple(part);
                (part.path.as_str(), start, end)
            })
            .collect()
    }

    /// Closes the files. A later lookup opens them again.
    fn close(&self) {
        let fresh = Arc::new(self.parts.iter().map(|_| OnceLock::new()).collect());
        *self.readers.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
    }
}

impl RecordFiles {
    fn readers(&self) -> Readers {
        self.readers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn check(&self, index: &Bound<'_, PyAny>) -> PyResult<u64> {
        let length = self.starts[self.parts.len()];
        match index.extract::<i128>() {
            Ok(index) if 0 <= index && index < i128::from(length) => Ok(index as u64),
            Ok(index) => Err(Kind::OutOfRange.error(format!(
                "record {index} of {length}: the first is 0, the last {}",
                length as i128 - 1
            ))),
            Err(error) => Err(error),
        }
    }

    /// The part that holds a record, and the record's number in its file.
    fn locate(&self, index: u64) -> (usize, u64) {
        let part = self.starts.partition_point(|start| *start <= index) - 1;
        (part, self.parts[part].start + index - self.starts[part])
    }
}

/// The reader of a part, opened now if it was not. Two threads may open one file at once; one of the readers stays.
fn reader<'a>(parts: &[Part], readers: &'a Readers, part: usize) -> prep_formats::Result<&'a Reader> {
    let slot = &readers[part];
    if let Some(reader) = slot.get() {
        return Ok(reader);
    }
    let Part { path, end, .. } = &parts[part];
    let opened = open(path)?;
    if *end > opened.num_records() {
        return Err(prep_formats::Error::Invalid(format!(
            "`{path}`: records up to {end} are asked for, the file has {}",
            opened.num_records()
        )));
    }
    Ok(slot.get_or_init(|| opened))
}

fn open(path: &str) -> prep_formats::Result<Reader> {
    Reader::from_source(store::open(&Location::parse(path)?)?)
}

/// One slot a file, filled where the range is not known.
fn open_all(parts: &[(String, Option<(u64, u64)>)]) -> prep_formats::Result<Vec<OnceLock<Reader>>> {
    let open_run = |run: &[(String, Option<(u64, u64)>)]| {
        run.iter()
            .map(|(path, range)| match range {
                Some(_) => Ok(OnceLock::new()),
                None => Ok(OnceLock::from(open(path)?)),
            })
            .collect::<prep_formats::Result<Vec<_>>>()
    };
    let unknown = parts.iter().filter(|(_, range)| range.is_none()).count();
    // Threads cost more than a few local opens (0.1 ms each).
    if unknown <= 2 * OPENING_THREADS {
        return open_run(parts);
    }
    thread::scope(|scope| {
        let runs: Vec<_> = parts
            .chunks(parts.len().div_ceil(OPENING_THREADS))
            .map(|run| scope.spawn(move || open_run(run)))
            .collect();
        let mut all = Vec::with_capacity(parts.len());
        for run in runs {
            match run.join() {
                Ok(readers) => all.append(&mut readers?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })
}

/// Records as a list of `bytes`: read in slices without the interpreter lock, signals looked for between them.
pub(crate) fn collect<'py, 'r, W: Copy + Sync>(
    py: Python<'py>,
    wanted: &[W],
    find: impl Fn(W) -> prep_formats::Result<(&'r Reader, u64)> + Sync,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    let mut buffer = Vec::new();
    let mut ends = Vec::new();
    let mut done = 0;
    while done < wanted.len() {
        buffer.clear();
        ends.clear();
        outside(py, || {
            with_scratch(|scratch| {
                for (step, item) in wanted[done..].iter().take(SLICE_RECORDS).enumerate() {
                    if let Some(later) = wanted.get(done + step + AHEAD) {
                        let (reader, record) = find(*later)?;
                        reader.prefetch(record);
                    }
                    let (reader, record) = find(*item)?;
                    buffer.extend_from_slice(reader.record(record, scratch)?);
                    ends.push(buffer.len());
                    if buffer.len() >= SLICE_BYTES {
                        break;
                    }
                }
                Ok::<_, prep_formats::Error>(())
            })
        })?;
        let mut start = 0;
        for end in &ends {
            list.append(PyBytes::new(py, &buffer[start..*end]))?;
            start = *end;
        }
        done += ends.len();
        py.check_signals()?;
    }
    Ok(list)
}
