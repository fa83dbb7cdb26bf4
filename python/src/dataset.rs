//! `prep.Dataset`: a split with random access.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prep_catalog::{Catalog, catalog_location};
use prep_formats::store::Cache;
use prep_loader::LoadOptions;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyTuple};

use crate::arrays::Layout;
use crate::boundary::{OfProcess, guarded, on_thread, outside};
use crate::error::{IntoPython, Kind};
use crate::loader::{Loader, parse_cache, parse_state};

/// Rows that are read while Ctrl-C waits; more are read on a thread that is left behind when it comes.
const DIRECT_ROWS: usize = 512;
/// Elements or records that are read at a time where a list of them is asked for: signals are looked for between.
const SLICE_ROWS: usize = 256;

/// A split of a dataset, with random access. Made by `prep.open`.
///
/// Cheap to keep, safe to share between threads, usable after a fork, pickles as name, split and catalog.
#[pyclass(frozen, module = "prep")]
#[derive(Debug)]
pub(crate) struct Dataset {
    /// `name:version` or `name/config:version`.
    name: String,
    split: String,
    /// Where the catalog is, in full.
    catalog: String,
    records: u64,
    layout: Arc<Layout>,
    /// What is read of object stores is kept here, up to so many bytes.
    cache: Option<(PathBuf, u64)>,
    /// Locked for the exchange of the `Arc` only, and with the interpreter lock held: so never across a fork.
    handle: Mutex<Arc<OfProcess<prep_loader::Dataset>>>,
}

/// Opens a split of a dataset. What is left open comes from `state`.
pub(crate) fn open_dataset(
    py: Python<'_>,
    name: String,
    split: Option<String>,
    catalog: Option<String>,
    state: Option<prep_loader::State>,
    cache: Option<(PathBuf, u64)>,
) -> PyResult<Dataset> {
    let kept = cache.clone();
    let open = move || -> PyResult<_> {
        let location = absolute(catalog_location(catalog.as_deref()).map_err(IntoPython::into_python)?);
        let catalog = Catalog::open(&location)
            .map_err(IntoPython::into_python)?
            .suggesting(prep_jobs::recipe::builtin::names());
        let dataset = match &state {
            None => prep_loader::open(&catalog, &name, split.as_deref().unwrap_or("train")),
            Some(state) => prep_loader::open_for_state(&catalog, &name, split.as_deref(), state),
        };
        let dataset = with_cache(dataset.map_err(IntoPython::into_python)?, kept.as_ref())?;
        Ok((dataset, location.to_string()))
    };
    let (dataset, catalog) = on_thread(py, || {}, false, || Ok(()), open)?;
    Ok(Dataset {
        name: dataset.name(),
        split: dataset.split().to_string(),
        catalog,
        records: dataset.len(),
        layout: Arc::new(Layout::new(py, dataset.element_spec())),
        handle: Mutex::new(Arc::new(OfProcess::new(dataset))),
        cache,
    })
}

fn with_cache(
    dataset: prep_loader::Dataset,
    cache: Option<&(PathBuf, u64)>,
) -> PyResult<prep_loader::Dataset> {
    let Some((folder, limit)) = cache else {
        return Ok(dataset);
    };
    let cache = Cache::open(folder, *limit).map_err(IntoPython::into_python)?;
    Ok(dataset.with_cache(cache))
}

/// `prep.open`.
#[pyfunction]
#[pyo3(signature = (name, split, catalog))]
pub(crate) fn open(
    py: Python<'_>,
    name: String,
    split: String,
    catalog: Option<String>,
) -> PyResult<Dataset> {
    guarded(|| open_dataset(py, name, Some(split), catalog, None, None))
}

#[pymethods]
impl Dataset {
    fn __len__(&self) -> usize {
        self.records as usize
    }

    /// An element for an index, a batch for a slice or a sequence of indices.
    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            if let Ok(slice) = key.cast::<PySlice>() {
                let range = slice.indices(self.records as isize)?;
                let indices = (0..range.slicelength)
                    .map(|step| (range.start + step as isize * range.step) as u64)
                    .collect();
                return self.batch(py, indices);
            }
            match key.extract::<i128>() {
                Ok(index) => self.element(py, self.check(index)?),
                Err(error) if error.is_instance_of::<PyTypeError>(py) => match self.indices(key) {
                    Ok(indices) => self.batch(py, indices),
                    Err(other) if other.is_instance_of::<PyTypeError>(py) => {
                        Err(PyTypeError::new_err(format!(
                            "an index is {}, wanted an integer, a slice, or a sequence of integers",
                            key.get_type()
                        )))
                    }
                    Err(other) => Err(other),
                },
                Err(error) => Err(error),
            }
        })
    }

    /// An iterator over the elements, in order.
    fn __iter__(slf: Py<Self>) -> Elements {
        Elements {
            dataset: slf,
            next: AtomicU64::new(0),
        }
    }

    /// The elements at these indices, as a list: what Grain's `__getitems__` gives.
    fn elements<'py>(&self, py: Python<'py>, indices: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let list = PyList::empty(py);
            for (number, index) in self.indices(indices)?.into_iter().enumerate() {
                if number % SLICE_ROWS == SLICE_ROWS - 1 {
                    py.check_signals()?;
                }
                list.append(self.element(py, index)?)?;
            }
            Ok(list)
        })
    }

    /// One record as stored: a serialized `tf.train.Example`.
    fn record<'py>(&self, py: Python<'py>, index: i128) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let index = self.check(index)?;
            let handle = self.handle(py)?;
            let dataset = inside(&handle)?;
            let bytes = outside(py, || dataset.record(index))?;
            Ok(PyBytes::new(py, &bytes))
        })
    }

    /// The records at these indices, as stored.
    fn records<'py>(&self, py: Python<'py>, indices: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| {
            let indices = self.indices(indices)?;
            let handle = self.handle(py)?;
            let dataset = inside(&handle)?;
            let list = PyList::empty(py);
            let (mut buffer, mut ends) = (Vec::new(), Vec::new());
            for run in indices.chunks(SLICE_ROWS) {
                buffer.clear();
                ends.clear();
                outside(py, || {
                    dataset.visit_records(run, |_, record| {
                        buffer.extend_from_slice(record);
                        ends.push(buffer.len());
                        Ok(())
                    })
                })?;
                let mut start = 0;
                for end in &ends {
                    list.append(PyBytes::new(py, &buffer[start..*end]))?;
                    start = *end;
                }
                py.check_signals()?;
            }
            Ok(list)
        })
    }

    /// `name:version`, or `name/config:version`.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The split with its bounds.
    #[getter]
    fn split(&self) -> &str {
        &self.split
    }

    /// Where the catalog is.
    #[getter]
    fn catalog(&self) -> &str {
        &self.catalog
    }

    /// The folder with the shards.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<String> {
        let handle = self.handle(py)?;
        Ok(inside(&handle)?.folder().to_string())
    }

    /// Hash over features and records.
    #[getter]
    fn fingerprint(&self, py: Python<'_>) -> PyResult<String> {
        let handle = self.handle(py)?;
        Ok(inside(&handle)?.manifest().fingerprint.clone())
    }

    /// The schema as a dict.
    #[getter]
    fn features<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let handle = self.handle(py)?;
        features_dict(py, inside(&handle)?.features())
    }

    /// Shape and dtype of each feature of an element.
    #[getter]
    fn element_spec<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.layout.element_spec(py, None)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String, String, String))> {
        let open = py.import("prep._core")?.getattr("open")?;
        Ok((
            open,
            (self.name.clone(), self.split.clone(), self.catalog.clone()),
        ))
    }

    fn __repr__(&self) -> String {
        format!(
            "prep.Dataset('{}', split='{}', records={})",
            self.name, self.split, self.records
        )
    }
}

impl Dataset {
    /// The dataset in this process: opened anew after a fork, as locks of the parent's may be held for ever in the child.
    pub(crate) fn handle(&self, _attached: Python<'_>) -> PyResult<Arc<OfProcess<prep_loader::Dataset>>> {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if handle.get().is_none() {
            let inherited = handle.inherited();
            let (folder, manifest) = (inherited.folder().clone(), inherited.manifest().clone());
            // The interpreter lock stays, as the lock above is not to be held across a release; two small files are read.
            let opened = prep_loader::Dataset::with_manifest(&folder, manifest, &self.split);
            let opened = with_cache(opened.map_err(IntoPython::into_python)?, self.cache.as_ref())?;
            *handle = Arc::new(OfProcess::new(opened));
        }
        Ok(Arc::clone(&handle))
    }

    fn check(&self, index: i128) -> PyResult<u64> {
        let records = i128::from(self.records);
        let from_start = if index < 0 { index + records } else { index };
        if 0 <= from_start && from_start < records {
            return Ok(from_start as u64);
        }
        Err(Kind::OutOfRange.error(format!(
            "index {index} is out of range: `{}` of `{}` has {records} records",
            self.split, self.name
        )))
    }

    fn indices(&self, sequence: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        sequence
            .try_iter()?
            .map(|index| self.check(index?.extract()?))
            .collect()
    }

    fn element<'py>(&self, py: Python<'py>, index: u64) -> PyResult<Bound<'py, PyDict>> {
        let handle = self.handle(py)?;
        let dataset = inside(&handle)?;
        let row = outside(py, || dataset.get(index))?;
        self.layout.element(py, Box::new(row))
    }

    fn batch<'py>(&self, py: Python<'py>, indices: Vec<u64>) -> PyResult<Bound<'py, PyDict>> {
        let handle = self.handle(py)?;
        let batch = if indices.len() <= DIRECT_ROWS {
            let dataset = inside(&handle)?;
            outside(py, || dataset.get_many(&indices))?
        } else {
            let dataset = inside(&handle)?.clone();
            on_thread(py, || {}, false, || Ok(()), move || dataset.get_many(&indices))?
        };
        self.layout.batch(py, Box::new(batch))
    }

    /// A stream over this split.
    pub(crate) fn load(&self, py: Python<'_>, options: LoadOptions) -> PyResult<prep_loader::Loader> {
        let handle = self.handle(py)?;
        let dataset = inside(&handle)?;
        outside(py, || dataset.load(options))
    }
}

/// The elements of a dataset, in order.
#[pyclass(frozen, module = "prep._core")]
#[derive(Debug)]
pub(crate) struct Elements {
    dataset: Py<Dataset>,
    next: AtomicU64,
}

#[pymethods]
impl Elements {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        guarded(|| {
            let dataset = self.dataset.get();
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= dataset.records {
                return Ok(None);
            }
            dataset.element(py, index).map(Some)
        })
    }
}

fn inside(handle: &OfProcess<prep_loader::Dataset>) -> PyResult<&prep_loader::Dataset> {
    handle
        .get()
        .ok_or_else(|| Kind::Internal.error("a dataset of another process was used"))
}

/// A schema as `prep show --json` prints it.
pub(crate) fn features_dict<'py>(
    py: Python<'py>,
    features: &prep_formats::features::Features,
) -> PyResult<Bound<'py, PyAny>> {
    json(py, &prep_jobs::describe::describe_features(features).to_string())
}

/// JSON as Python objects.
pub(crate) fn json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text,))
}

/// A local location with its whole path, so that it means the same in another process.
fn absolute(location: prep_formats::store::Location) -> prep_formats::store::Location {
    match location.as_path().map(std::path::absolute) {
        Some(Ok(path)) => prep_formats::store::Location::from_path(path),
        _ => location,
    }
}

/// `prep.load`: opens a dataset and a stream over it.
#[pyfunction]
#[pyo3(signature = (name, split, catalog, options, state))]
pub(crate) fn load(
    py: Python<'_>,
    name: String,
    split: Option<String>,
    catalog: Option<String>,
    options: Bound<'_, PyDict>,
    state: Option<Bound<'_, PyAny>>,
) -> PyResult<Loader> {
    guarded(|| {
        let state = state.map(|state| parse_state(&state)).transpose()?;
        let cache = parse_cache(&options)?;
        let dataset = open_dataset(py, name, split, catalog, state.clone(), cache)?;
        Loader::new(py, Py::new(py, dataset)?, options, state)
    })
}

/// What pickle calls.
pub(crate) fn reduce_arguments<'py>(py: Python<'py>, dataset: &Dataset) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, [&dataset.name, &dataset.split, &dataset.catalog])
}
