//! `prep.Loader`: the stream of batches as a Python iterator.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prep_formats::store::CacheCounts;
use prep_jobs::resources::parse_size;
use prep_loader::{LoadMetrics, LoadOptions, State};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::Layout;
use crate::boundary::{OfProcess, TICK, guarded, outside};
use crate::dataset::{Dataset, features_dict, json, reduce_arguments};
use crate::error::{IntoPython, Kind};

/// As `--cache-size` of the command.
const DEFAULT_CACHE_SIZE: &str = "16G";

/// A stream of batches, in order; made by `prep.load`. It is its own iterator: a loop that is left in the middle is gone on with by the next.
#[pyclass(frozen, module = "prep")]
#[derive(Debug)]
pub(crate) struct Loader {
    dataset: Py<Dataset>,
    /// The keyword arguments of `prep.load` that make the stream, for pickling.
    arguments: Py<PyDict>,
    layout: Layout,
    /// The first dimension of each array, where it is always the same.
    rows: Option<usize>,
    closed: AtomicBool,
    /// Samples of the global stream that were handed out.
    position: AtomicU64,
    /// Locked for the exchange of its contents only, and with the interpreter lock held: so never across a fork.
    session: Mutex<Session>,
}

/// The stream that runs in this process.
#[derive(Debug, Clone)]
struct Session {
    /// The second lock is held while a batch is waited for, without the interpreter lock. A child of a fork leaves it alone.
    stream: Arc<OfProcess<Mutex<prep_loader::Loader>>>,
    /// All of a state but the position.
    identity: State,
    num_batches: Option<u64>,
}

#[pymethods]
impl Loader {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// The next batch: a dict of arrays.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        guarded(|| {
            loop {
                let session = self.session(py)?;
                let Some(stream) = session.stream.get() else {
                    continue;
                };
                let next = outside(py, || {
                    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                    if stream.wait(TICK)? {
                        stream.next_batch().map(Some)
                    } else {
                        Ok(None)
                    }
                })?;
                match next {
                    Some(Some(batch)) => {
                        self.position.store(batch.step().global.end, Ordering::Relaxed);
                        return self.layout.batch(py, batch).map(Some);
                    }
                    Some(None) => return Ok(None),
                    None => py.check_signals()?,
                }
            }
        })
    }

    /// Batches in all, from where the stream was opened.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        guarded(|| match self.session(py)?.num_batches {
            Some(batches) => Ok(batches as usize),
            None => Err(pyo3::exceptions::PyTypeError::new_err(
                "the stream is endless and has no length: give `num_epochs`, or count `steps_per_epoch`",
            )),
        })
    }

    /// Batches of a whole epoch.
    #[getter]
    fn steps_per_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        guarded(|| {
            let session = self.session(py)?;
            let Some(stream) = session.stream.get() else {
                return Err(Kind::Internal.error("a stream of another process was used"));
            };
            outside(py, || {
                let stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                Ok::<_, PyErr>(stream.steps_per_epoch())
            })
        })
    }

    /// What was done so far, and where the time went.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let session = self.session(py)?;
            let Some(stream) = session.stream.get() else {
                return Err(Kind::Internal.error("a stream of another process was used"));
            };
            let metrics = outside(py, || {
                let stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                Ok::<_, PyErr>(stream.metrics())
            })?;
            metrics_dict(py, &metrics)
        })
    }

    /// Where the consumer stands, as a dict.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| json(py, &self.current_state().to_json()))
    }

    /// Goes on from a state.
    fn restore(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        guarded(|| {
            self.check_open()?;
            let state = parse_state(state)?;
            let session = self.start(py, Some(state.clone()))?;
            self.position.store(state.sample_position, Ordering::Relaxed);
            self.replace(py, session)
        })
    }

    /// Stops the threads and lets go of batches made ahead. Arrays that were handed out stay.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        guarded(|| {
            self.closed.store(true, Ordering::Relaxed);
            let session = self
                .session
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let Some(stream) = session.stream.get() else {
                return Ok(());
            };
            outside(py, || {
                stream.lock().unwrap_or_else(PoisonError::into_inner).stop();
                Ok::<_, PyErr>(())
            })
        })
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    /// The dataset that is streamed.
    #[getter]
    fn dataset(&self, py: Python<'_>) -> Py<Dataset> {
        self.dataset.clone_ref(py)
    }

    /// The schema as a dict.
    #[getter]
    fn features<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let handle = self.dataset.get().handle(py)?;
        match handle.get() {
            Some(dataset) => features_dict(py, dataset.features()),
            None => Err(Kind::Internal.error("a dataset of another process was used")),
        }
    }

    /// Shape and dtype of each array of a batch.
    #[getter]
    fn element_spec<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.layout.element_spec(py, Some(self.rows))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        guarded(|| {
            self.check_open()?;
            let load = py.import("prep._core")?.getattr("load")?;
            let dataset = reduce_arguments(py, self.dataset.get())?;
            let rest = (self.arguments.bind(py), self.state(py)?);
            let arguments = dataset
                .as_sequence()
                .concat(rest.into_pyobject(py)?.as_sequence())?;
            Ok((load, arguments.to_tuple()?))
        })
    }

    fn __repr__(&self) -> String {
        let state = self.current_state();
        format!(
            "prep.Loader('{}:{}', split='{}', order='{}', seed={}, sample_position={})",
            state.dataset, state.version, state.split, state.order, state.seed, state.sample_position
        )
    }
}

impl Loader {
    pub(crate) fn new(
        py: Python<'_>,
        dataset: Py<Dataset>,
        arguments: Bound<'_, PyDict>,
        state: Option<State>,
    ) -> PyResult<Self> {
        let options = parse_options(&arguments, state.clone())?;
        // Now, and not by whatever thread takes the first batch: a fork in the middle of an import leaves its lock held in the child.
        py.import("numpy")?;
        let is_full = options.drop_remainder && !options.on_damage.skips();
        let rows = is_full.then_some(options.batch_size as usize);
        let stream = dataset.get().load(py, options)?;
        Ok(Self {
            layout: Layout::new(py, stream.element_spec()),
            rows,
            closed: AtomicBool::new(false),
            position: AtomicU64::new(stream.state().sample_position),
            session: Mutex::new(Session::new(stream)),
            dataset,
            arguments: arguments.unbind(),
        })
    }

    fn current_state(&self) -> State {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        State {
            sample_position: self.position.load(Ordering::Relaxed),
            ..session.identity.clone()
        }
    }

    /// The stream in this process. After a fork the child starts its own, from where the consumer stood.
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        self.check_open()?;
        let session = self
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if session.stream.get().is_some() {
            return Ok(session);
        }
        let fresh = Session {
            // What it yields in all is counted from where the parent opened it.
            num_batches: session.num_batches,
            ..self.start(py, Some(self.current_state()))?
        };
        self.replace(py, fresh.clone())?;
        Ok(fresh)
    }

    fn start(&self, py: Python<'_>, state: Option<State>) -> PyResult<Session> {
        let options = parse_options(self.arguments.bind(py), state)?;
        Ok(Session::new(self.dataset.get().load(py, options)?))
    }

    /// Puts a stream in place of the current one, whose threads are waited for without the interpreter lock.
    fn replace(&self, py: Python<'_>, session: Session) -> PyResult<()> {
        let old = {
            let mut place = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *place, session)
        };
        outside(py, move || {
            drop(old);
            Ok::<_, PyErr>(())
        })
    }

    fn check_open(&self) -> PyResult<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Kind::Closed.error("the loader is closed"));
        }
        Ok(())
    }
}

fn metrics_dict<'py>(py: Python<'py>, metrics: &LoadMetrics) -> PyResult<Bound<'py, PyDict>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let dict = PyDict::new(py);
    dict.set_item("threads", metrics.threads)?;
    dict.set_item("prefetch", metrics.prefetch)?;
    dict.set_item("batches", metrics.batches)?;
    dict.set_item("rows", metrics.rows)?;
    dict.set_item("bytes", metrics.bytes)?;
    dict.set_item("skipped", metrics.damaged)?;
    set_seconds(
        &dict,
        [
            ("elapsed_seconds", metrics.elapsed),
            ("read_seconds", metrics.read),
            ("decode_seconds", metrics.decode),
            ("room_wait_seconds", metrics.room_wait),
            ("consumer_wait_seconds", metrics.consumer_wait),
        ],
    )?;
    dict.set_item("ready_batches", metrics.ready_batches)?;
    set_store(&dict, metrics.cache, metrics.retries)?;
    dict.set_item("limit", metrics.limit().to_string())?;
    dict.set_item("advice", metrics.advice(cores))?;
    Ok(dict)
}

pub(crate) fn set_seconds<const N: usize>(
    dict: &Bound<'_, PyDict>,
    times: [(&str, Duration); N],
) -> PyResult<()> {
    times
        .into_iter()
        .try_for_each(|(name, time)| dict.set_item(name, time.as_secs_f64()))
}

/// What was read of stores.
pub(crate) fn set_store(dict: &Bound<'_, PyDict>, cache: Option<CacheCounts>, retries: u64) -> PyResult<()> {
    dict.set_item("cached_bytes", cache.map(|cache| cache.cached_bytes))?;
    dict.set_item("fetched_bytes", cache.map(|cache| cache.fetched_bytes))?;
    dict.set_item("retries", retries)
}

impl Session {
    fn new(stream: prep_loader::Loader) -> Self {
        Self {
            identity: stream.state(),
            num_batches: stream.num_batches(),
            stream: Arc::new(OfProcess::new(Mutex::new(stream))),
        }
    }
}

/// Reads a state: the dict that `Loader.state()` gave, or its JSON.
pub(crate) fn parse_state(state: &Bound<'_, PyAny>) -> PyResult<State> {
    let text: String = match state.extract() {
        Ok(text) => text,
        Err(_) => state
            .py()
            .import("json")?
            .call_method1("dumps", (state,))?
            .extract()?,
    };
    State::from_json(&text).map_err(IntoPython::into_python)
}

/// The cache of `prep.load`: its folder, and most of its bytes.
pub(crate) fn parse_cache(arguments: &Bound<'_, PyDict>) -> PyResult<Option<(PathBuf, u64)>> {
    let given = |name: &str| Ok::<_, PyErr>(arguments.get_item(name)?.filter(|value| !value.is_none()));
    let Some(folder) = given("cache")? else {
        return Ok(None);
    };
    let limit: String = match given("cache_size")? {
        Some(limit) => limit.extract()?,
        None => DEFAULT_CACHE_SIZE.into(),
    };
    let bytes =
        parse_size(&limit).map_err(|reason| Kind::Invalid.error(format!("`cache_size`: {reason}")))?;
    Ok(Some((folder.extract()?, bytes)))
}

/// The keyword arguments of `prep.load` that make the stream.
fn parse_options(arguments: &Bound<'_, PyDict>, state: Option<State>) -> PyResult<LoadOptions> {
    let mut options = LoadOptions::default();
    for (key, value) in arguments {
        let key: String = key.extract()?;
        if value.is_none() {
            continue;
        }
        match key.as_str() {
            "batch_size" => options.batch_size = number(&key, &value)?,
            "seed" => options.seed = Some(number(&key, &value)?),
            "num_epochs" => options.num_epochs = Some(number(&key, &value)?),
            "drop_remainder" => options.drop_remainder = value.extract()?,
            "shard_index" => options.shard_index = number(&key, &value)?,
            "shard_count" => options.shard_count = number(&key, &value)?,
            "num_threads" => options.num_threads = Some(number(&key, &value)? as usize),
            "prefetch" => options.prefetch = Some(number(&key, &value)? as usize),
            "prefetch_bytes" => options.prefetch_bytes = number(&key, &value)?,
            "decode" => options.decode_images = value.extract()?,
            "columns" => options.columns = Some(value.extract()?),
            "profile" => options.profile = value.extract()?,
            "on_error" => {
                let text: String = value.extract()?;
                options.on_damage = text
                    .parse()
                    .map_err(<prep_loader::Error as IntoPython>::into_python)?;
            }
            // Of the dataset.
            "cache" | "cache_size" => {}
            "order" => {
                let order: String = value.extract()?;
                options.order = Some(
                    order
                        .parse()
                        .map_err(<prep_loader::Error as IntoPython>::into_python)?,
                );
            }
            _ => {
                return Err(Kind::Internal.error(format!("an option `{key}` that the package does not know")));
            }
        }
    }
    options.restore = state;
    Ok(options)
}

/// A number from 0 to 2^64 - 1, whatever integer type it has.
fn number(key: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let wide: i128 = value.extract()?;
    u64::try_from(wide).map_err(|_| Kind::Invalid.error(format!("`{key}` is {wide}, wanted 0 to 2**64 - 1")))
}
