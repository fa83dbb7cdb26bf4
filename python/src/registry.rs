//! `prep.list`, `prep.show`, `prep.build`: what there is, and making more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prep_catalog::{Catalog, DatasetName, catalog_location};
use prep_jobs::builder::Builder;
use prep_jobs::error::{Hinted, find};
use prep_jobs::monitor::Monitor;
use prep_jobs::readers::RecipeBuilder;
use prep_jobs::{BuildRequest, OnError, describe, recipe, resources};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::boundary::{guarded, on_thread};
use crate::dataset::json;
use crate::error::{IntoPython, Kind, kind_of_catalog, kind_of_format, with_hint};

/// How often a progress callback is called: as often as a terminal's display is drawn.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Any error of a job: the kind is that of the first cause that has one.
#[derive(Debug)]
pub(crate) struct JobError(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for JobError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoPython for JobError {
    fn into_python(self) -> PyErr {
        let error = &self.0;
        let kind = if let Some(cause) = find::<prep_catalog::Error>(error) {
            kind_of_catalog(cause)
        } else if let Some(cause) = find::<prep_formats::Error>(error) {
            kind_of_format(cause)
        } else if find::<std::io::Error>(error).is_some() {
            Kind::Storage
        } else {
            Kind::Build
        };
        let mut text = String::new();
        for cause in error.chain().map(ToString::to_string) {
            if !text.contains(&cause) {
                text += if text.is_empty() { "" } else { ": " };
                text += &cause;
            }
        }
        let hint = find::<Hinted>(error).map(|hinted| hinted.hint.clone());
        let hint = hint.or_else(|| find::<prep_catalog::Error>(error).and_then(prep_catalog::Error::hint));
        with_hint(kind, text, hint)
    }
}

fn open_catalog(catalog: Option<&str>) -> Result<Catalog, JobError> {
    Ok(Catalog::open(&catalog_location(catalog)?)?.suggesting(recipe::builtin::names()))
}

/// The versions of the catalog, as a list of dicts, and a list of what could not be read.
#[pyfunction]
pub(crate) fn list<'py>(
    py: Python<'py>,
    catalog: Option<String>,
) -> PyResult<(Bound<'py, PyAny>, Vec<String>)> {
    guarded(|| {
        let work = move || -> Result<_, JobError> {
            let listing = open_catalog(catalog.as_deref())?.list()?;
            let versions: Vec<_> = listing.versions.iter().map(describe::listed).collect();
            let problems: Vec<String> = listing
                .problems
                .iter()
                .map(|problem| crate::error::chain(problem))
                .collect();
            Ok((serde_json::Value::from(versions).to_string(), problems))
        };
        let (versions, problems) = on_thread(py, || {}, false, || Ok(()), work)?;
        Ok((json(py, &versions)?, problems))
    })
}

/// One version, as a dict.
#[pyfunction]
pub(crate) fn show<'py>(
    py: Python<'py>,
    name: String,
    catalog: Option<String>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let work = move || -> Result<_, JobError> {
            let catalog = open_catalog(catalog.as_deref())?;
            let found = catalog.resolve(&DatasetName::parse(&name)?)?;
            Ok(describe::resolved(&found)?.to_string())
        };
        let text = on_thread(py, || {}, false, || Ok(()), work)?;
        json(py, &text)
    })
}

/// How a dataset is built, whatever it is made from: a dict with all of these.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct BuildOptions {
    catalog: Option<String>,
    data_dir: Option<String>,
    workers: Option<usize>,
    memory: Option<String>,
    shards: Option<u64>,
    on_error: String,
    overwrite: bool,
    statistics: bool,
    dry_run: bool,
}

/// Builds a dataset from a recipe. `progress` is called with a list of (stage, unit, done, total, finished); `note` with (is it a warning, text).
#[pyfunction]
#[pyo3(signature = (recipe, *, sources, checksum, options, progress, note))]
pub(crate) fn build<'py>(
    py: Python<'py>,
    recipe: &str,
    sources: Vec<String>,
    checksum: bool,
    options: BuildOptions,
    progress: Option<Bound<'py, PyAny>>,
    note: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let found = recipe::find(recipe).map_err(|error| {
            let error = JobError(error);
            match find::<Hinted>(&error.0) {
                Some(hinted) => with_hint(Kind::NotFound, error.0.to_string(), Some(hinted.hint.clone())),
                None => Kind::Invalid.error(format!("{:#}", error.0)),
            }
        })?;
        let builder = Arc::new(RecipeBuilder::new(found));
        let ask = |request: BuildRequest| request.from(sources).check_sums(checksum);
        run_build(py, recipe, builder, &options, progress, &note, ask, || Ok(()))
    })
}

/// Builds a dataset; blocks, and looks for signals meanwhile. `ask` adds to the request, and `serve` is called with the interpreter lock many times a
/// second.
#[expect(clippy::too_many_arguments, reason = "what all builds have from Python")]
pub(crate) fn run_build<'py>(
    py: Python<'py>,
    name: &str,
    builder: Arc<dyn Builder>,
    options: &BuildOptions,
    progress: Option<Bound<'py, PyAny>>,
    note: &Bound<'py, PyAny>,
    ask: impl FnOnce(BuildRequest) -> BuildRequest,
    mut serve: impl FnMut() -> PyResult<()>,
) -> PyResult<Bound<'py, PyAny>> {
    let on_error = OnError::parse(&options.on_error)
        .map_err(|reason| Kind::Invalid.error(format!("`on_error`: {reason}")))?;
    let memory = match options.memory.as_deref().map(resources::parse_size).transpose() {
        Ok(memory) => memory,
        Err(reason) => return Err(Kind::Invalid.error(format!("`memory`: {reason}"))),
    };
    if options
        .workers
        .is_some_and(|workers| !(1..=1024).contains(&workers))
    {
        return Err(Kind::Invalid.error("`workers` is out of range: 1 to 1024"));
    }
    if options
        .shards
        .is_some_and(|shards| !(1..=100_000).contains(&shards))
    {
        return Err(Kind::Invalid.error("`shards` is out of range: 1 to 100000"));
    }
    let mut request = ask(BuildRequest::new(builder))
        .on_error(on_error)
        .overwrite(options.overwrite)
        .statistics(options.statistics)
        .dry_run(options.dry_run);
    request.catalog.clone_from(&options.catalog);
    request.data_dir.clone_from(&options.data_dir);
    request.shards = options.shards;
    request.workers = options.workers.unwrap_or(request.workers);
    request.memory_bytes = memory.unwrap_or(request.memory_bytes);
    let monitor = Arc::clone(&request.monitor);

    let mut last = Instant::now();
    let tick = || {
        tell_notes(&monitor, note)?;
        serve()?;
        if let Some(progress) = &progress
            && last.elapsed() >= PROGRESS_INTERVAL
        {
            last = Instant::now();
            tell_progress(&monitor, progress)?;
        }
        Ok(())
    };
    let work = move || -> Result<_, JobError> {
        let outcome = prep_jobs::build(request)?;
        Ok(describe::outcome(&outcome).to_string())
    };
    let result = on_thread(py, || monitor.cancel(), true, tick, work);
    let outcome = result.map_err(|error| {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return PyKeyboardInterrupt::new_err(format!(
                "stopped building `{name}`; the same call goes on from here"
            ));
        }
        error
    })?;
    tell_notes(&monitor, note)?;
    if let Some(progress) = &progress {
        tell_progress(&monitor, progress)?;
    }
    json(py, &outcome)
}

fn tell_notes(monitor: &Monitor, note: &Bound<'_, PyAny>) -> PyResult<()> {
    for said in monitor.take_notes() {
        note.call1((said.warning, said.text))?;
    }
    Ok(())
}

fn tell_progress(monitor: &Monitor, progress: &Bound<'_, PyAny>) -> PyResult<()> {
    let stages = PyList::empty(progress.py());
    for stage in monitor.stages() {
        stages.append((
            stage.name,
            stage.unit.name(),
            stage.done,
            stage.total,
            stage.finished,
        ))?;
    }
    progress.call1((stages,))?;
    Ok(())
}
