//! `prep.write` and builders in Python: examples of the caller's code into the engine of all builds.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use prep_jobs::describe;
use prep_jobs::examples::{
    Cell, ExampleBuilder, ExampleFile, ExampleSet, ExampleSpec, ExampleWriter, Producer, Row, Scratch, Task,
};
use pyo3::prelude::*;

use crate::boundary::{OfProcess, TICK, guarded, outside};
use crate::cells;
use crate::error::{IntoPython, Kind};
use crate::registry::{BuildOptions, JobError, run_job};

/// Examples whose arrays are larger are kept without the interpreter lock.
const LARGE_BYTES: usize = 64 << 10;

fn parse(spec: &str) -> Result<ExampleSet, JobError> {
    let spec: ExampleSpec = serde_json::from_str(spec)
        .map_err(|error| prep_formats::Error::Invalid(format!("the description: {error}")))?;
    Ok(spec.check()?)
}

enum State {
    Open(Box<ExampleWriter>),
    /// An example is being written, without the interpreter lock.
    Busy,
    Whole(Box<ExampleFile>),
    Closed,
}

/// A file of examples (see `examples/file.rs` of `prep-jobs`): without a name, or that of a source, at a path.
#[pyclass(module = "prep._core", name = "ExampleWriter", frozen)]
pub(crate) struct Examples {
    inner: OfProcess<Inner>,
}

struct Inner {
    name: String,
    state: Mutex<State>,
    /// Of a file without a name.
    _scratch: Option<Scratch>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> PyErr {
    Kind::Closed.error("the file of examples was closed before, or belongs to another process or thread")
}

/// About how many bytes of memory a row refers to.
fn weight(row: &Row) -> usize {
    let of_cell = |cell: &Cell| match cell {
        Cell::Text(bytes) | Cell::Bytes(bytes) | Cell::Tensor(_, _, bytes) => bytes.len(),
        Cell::List(cells) => cells.len() * size_of::<Cell>(),
        _ => 0,
    };
    row.iter().map(|(_, cell)| of_cell(cell)).sum()
}

impl Examples {
    /// Takes what `pick` takes of the state, which is `then` from here on.
    fn take<T>(&self, then: State, pick: impl FnOnce(State) -> Result<T, State>) -> PyResult<T> {
        let mut state = lock(&self.inner.get().ok_or_else(closed)?.state);
        match pick(std::mem::replace(&mut *state, then)) {
            Ok(taken) => Ok(taken),
            Err(other) => {
                *state = other;
                Err(closed())
            }
        }
    }

    fn put(&self, state: State) {
        if let Some(inner) = self.inner.get() {
            *lock(&inner.state) = state;
        }
    }

    fn take_writer(&self) -> PyResult<Box<ExampleWriter>> {
        self.take(State::Busy, |state| match state {
            State::Open(writer) => Ok(writer),
            other => Err(other),
        })
    }

    fn take_file(&self) -> PyResult<ExampleFile> {
        self.take(State::Closed, |state| match state {
            State::Whole(file) => Ok(*file),
            other => Err(other),
        })
    }
}

#[pymethods]
impl Examples {
    /// `name` is what errors call it. Without a path it lies where the version of this catalog and data folder will be made.
    #[new]
    #[pyo3(signature = (spec, name, *, path=None, catalog=None, data_dir=None))]
    fn new(
        py: Python<'_>,
        spec: &str,
        name: &str,
        path: Option<PathBuf>,
        catalog: Option<String>,
        data_dir: Option<String>,
    ) -> PyResult<Self> {
        guarded(|| {
            let open = || -> Result<_, JobError> {
                let set = parse(spec)?;
                let Some(path) = path else {
                    let scratch = Scratch::open(&set, catalog.as_deref(), data_dir.as_deref())?;
                    return Ok((ExampleWriter::unnamed(&scratch, name, &set)?, Some(scratch)));
                };
                Ok((ExampleWriter::create(&path, name, &set)?, None))
            };
            let (writer, scratch) = outside(py, open)?;
            Ok(Self {
                inner: OfProcess::new(Inner {
                    name: name.to_owned(),
                    state: Mutex::new(State::Open(Box::new(writer))),
                    _scratch: scratch,
                }),
            })
        })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.inherited().name
    }

    fn add(&self, py: Python<'_>, example: &Bound<'_, PyAny>) -> PyResult<()> {
        guarded(|| {
            let mut writer = self.take_writer()?;
            let place = writer.place();
            // The values' own code may run, which the state is not locked for.
            let added = cells::row(example, &place).and_then(|row| {
                let mut add = |row| writer.add(row).map_err(JobError::from);
                match weight(&row) < LARGE_BYTES {
                    true => add(row).map_err(IntoPython::into_python),
                    false => outside(py, || add(row)),
                }
            });
            self.put(State::Open(writer));
            added
        })
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        guarded(|| {
            let writer = self.take_writer()?;
            let file = outside(py, || writer.finish().map_err(JobError::from));
            self.put(State::Closed);
            self.put(State::Whole(Box::new(file?)));
            Ok(())
        })
    }

    /// Lets go of the file; one that is not whole is removed.
    fn close(&self) -> PyResult<()> {
        self.take(State::Closed, Ok).map(drop)
    }
}

/// Builds what is in finished files, one for each split.
#[pyfunction]
#[pyo3(signature = (spec, files, *, options, progress, note))]
pub(crate) fn write<'py>(
    py: Python<'py>,
    spec: &str,
    files: Vec<Bound<'py, Examples>>,
    options: BuildOptions,
    progress: Option<Bound<'py, PyAny>>,
    note: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let set = parse(spec).map_err(IntoPython::into_python)?;
        let name = set.spec().name.clone();
        let files = files
            .iter()
            .map(|file| file.get().take_file())
            .collect::<PyResult<_>>()?;
        let builder =
            ExampleBuilder::of_files(set, files).map_err(|error| JobError::from(error).into_python())?;
        run(py, &name, builder, &options, progress, &note, || Ok(()))
    })
}

/// Builds what code makes of sources: of each its split, by index, and its place. `produce` is called with (name, path, the file to write) of each
/// source whose examples are not there yet, if there are such.
#[pyfunction]
#[pyo3(signature = (spec, identity, sources, produce, *, options, progress, note))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of one Python function"
)]
pub(crate) fn build_code<'py>(
    py: Python<'py>,
    spec: &str,
    identity: String,
    sources: Vec<(usize, String)>,
    produce: Bound<'py, PyAny>,
    options: BuildOptions,
    progress: Option<Bound<'py, PyAny>>,
    note: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let set = parse(spec).map_err(IntoPython::into_python)?;
        let name = set.spec().name.clone();
        let request = Arc::new(Request::default());
        let producer: Arc<dyn Producer> = request.clone();
        let builder = ExampleBuilder::of_sources(set, &sources, identity, producer)
            .map_err(|error| JobError::from(error).into_python())?;
        let serve = || request.serve(&produce);
        run(py, &name, builder, &options, progress, &note, serve)
    })
}

fn run<'py>(
    py: Python<'py>,
    name: &str,
    builder: ExampleBuilder,
    options: &BuildOptions,
    progress: Option<Bound<'py, PyAny>>,
    note: &Bound<'py, PyAny>,
    serve: impl FnMut() -> PyResult<()>,
) -> PyResult<Bound<'py, PyAny>> {
    let request = options.request(Arc::new(builder))?;
    let monitor = Arc::clone(&request.monitor);
    let work = move || -> Result<_, JobError> { Ok(describe::outcome(&prep_jobs::build(request)?)) };
    run_job(
        py,
        &format!("building `{name}`"),
        &monitor,
        progress,
        note,
        serve,
        work,
    )
}

/// What the thread of the build asks of the one that called, as no thread of ours runs Python.
#[derive(Default)]
struct Request {
    turn: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Default)]
enum Turn {
    #[default]
    Idle,
    Asked(Vec<Task>),
    Running,
    Done,
}

impl Request {
    /// Does what was asked for, if anything was. Called with the interpreter lock.
    fn serve(&self, produce: &Bound<'_, PyAny>) -> PyResult<()> {
        let tasks = {
            let mut turn = lock(&self.turn);
            match std::mem::replace(&mut *turn, Turn::Running) {
                Turn::Asked(tasks) => tasks,
                other => {
                    *turn = other;
                    return Ok(());
                }
            }
        };
        let tasks: Vec<(String, OsString, OsString)> = tasks
            .into_iter()
            .map(|task| (task.name, task.source.into(), task.output.into()))
            .collect();
        produce.call1((tasks,))?;
        *lock(&self.turn) = Turn::Done;
        self.changed.notify_all();
        Ok(())
    }
}

impl Producer for Request {
    fn produce(&self, tasks: &[Task], check: &dyn Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut turn = lock(&self.turn);
        *turn = Turn::Asked(tasks.to_vec());
        loop {
            if let Turn::Done = *turn {
                *turn = Turn::Idle;
                return Ok(());
            }
            check()?;
            (turn, _) = self
                .changed
                .wait_timeout(turn, TICK)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
