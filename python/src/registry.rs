//! `prep.catalog`, `prep.build`, `prep.convert`: what there is, and making more.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prep_catalog::{Catalog, DatasetName, catalog_location};
use prep_jobs::builder::Builder;
use prep_jobs::convert::ConvertWords;
use prep_jobs::error::{Hinted, Usage, find};
use prep_jobs::monitor::Monitor;
use prep_jobs::readers::RecipeBuilder;
use prep_jobs::{BuildRequest, OnError, changes, describe, recipe, resources};
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
        } else if find::<Usage>(error).is_some() {
            Kind::Invalid
        } else if let Some(cause) = find::<std::io::Error>(error) {
            match cause.kind() {
                std::io::ErrorKind::NotFound => Kind::NotFound,
                _ => Kind::Storage,
            }
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
        with_hint(kind, in_python(&text), hint.map(|hint| in_python(&hint)))
    }
}

/// A text in which the command's flags are called as the arguments of functions are: `--data-dir` becomes `data_dir`, and `--on-error skip`
/// becomes `on_error="skip"`.
fn in_python(text: &str) -> String {
    let mut parts = text.split("`--");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (flag, rest) = part.split_once('`').unwrap_or((part, ""));
        let (name, value) = match flag.split_once([' ', '=']) {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let name = match name.replace('-', "_") {
            name if name == "from" => "from_".to_owned(),
            name => name,
        };
        shown += &match (name.strip_prefix("no_"), value) {
            (Some(name), _) => format!("`{name}=False`"),
            (None, Some(value)) => format!("`{name}=\"{value}\"`"),
            (None, None) => format!("`{name}`"),
        };
        shown += rest;
    }
    shown
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
    in_catalog(py, catalog, move |catalog| {
        let found = catalog.resolve(&DatasetName::parse(&name)?)?;
        Ok(describe::resolved(&found)?)
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

/// Builds a dataset from a recipe: its name or path, or with `as_json` what it says. With `in_place` its files stay where they are. `progress` is called with a
/// list of (stage, unit, done, total, finished); `note` with (is it a warning, text).
#[pyfunction]
#[pyo3(signature = (recipe, *, as_json, in_place, sources, checksum, options, progress, note))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of one Python function"
)]
pub(crate) fn build<'py>(
    py: Python<'py>,
    recipe: &str,
    as_json: bool,
    in_place: bool,
    sources: Vec<String>,
    checksum: bool,
    options: BuildOptions,
    progress: Option<Bound<'py, PyAny>>,
    note: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let found = match as_json {
            true => serde_json::from_str(recipe)
                .map_err(anyhow::Error::from)
                .and_then(|said| Ok(recipe::from_json(&said, Path::new("."))?)),
            false => recipe::find(recipe),
        };
        let found = found.map_err(|error| {
            let error = JobError(error);
            match find::<Hinted>(&error.0) {
                Some(hinted) => with_hint(Kind::NotFound, error.0.to_string(), Some(hinted.hint.clone())),
                None => Kind::Invalid.error(format!("{:#}", error.0)),
            }
        })?;
        let name = found.spec.name.clone();
        let builder = Arc::new(RecipeBuilder::new(found));
        let request = options.request(Arc::clone(&builder) as Arc<dyn Builder>)?;
        let request = request.from(sources).check_sums(checksum);
        let monitor = Arc::clone(&request.monitor);
        let work = move || -> Result<_, JobError> {
            let outcome = match in_place {
                true => prep_jobs::register_in_place(&request, &builder)?,
                false => prep_jobs::build(request)?,
            };
            Ok(describe::outcome(&outcome))
        };
        run_job(
            py,
            &format!("building `{name}`"),
            &monitor,
            progress,
            &note,
            || Ok(()),
            work,
        )
    })
}

/// How records are converted, in the command's words: a dict with all of these.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ConvertOptions {
    name: String,
    max_shard_size: Option<String>,
    shards: Option<String>,
    order: String,
    options: Option<String>,
    filter: Option<String>,
    select: Option<String>,
    rename: Option<String>,
    limit: Option<u64>,
    dedup: Option<String>,
    catalog: Option<String>,
}

/// Converts record files, with `job` for all that is not about records.
#[pyfunction]
#[pyo3(signature = (inputs, output, *, words, job, progress, note))]
pub(crate) fn convert<'py>(
    py: Python<'py>,
    inputs: Vec<OsString>,
    output: PathBuf,
    words: ConvertOptions,
    job: BuildOptions,
    progress: Option<Bound<'py, PyAny>>,
    note: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let words = ConvertWords {
            name: words.name,
            shards: words.shards,
            max_shard_size: words.max_shard_size,
            order: words.order,
            options: words.options,
            filter: words.filter,
            select: words.select,
            rename: words.rename,
            limit: words.limit,
            dedup: words.dedup,
            catalog: words.catalog,
        };
        let doing = format!("converting to `{}`", output.display());
        let request = words
            .request(inputs, output)
            .map_err(|error| JobError(error).into_python())?;
        let (on_error, memory) = job.checked()?;
        let mut request = request;
        request.on_error = on_error;
        request.overwrite = job.overwrite;
        request.dry_run = job.dry_run;
        request.workers = job.workers.unwrap_or(request.workers);
        request.memory_bytes = memory.unwrap_or(request.memory_bytes);
        let monitor = Arc::clone(&request.monitor);
        let work = move || -> Result<_, JobError> {
            Ok(describe::converted(&prep_jobs::convert::convert(request)?))
        };
        run_job(py, &doing, &monitor, progress, &note, || Ok(()), work)
    })
}

/// Gives a version a tag, or takes it away: see `changes.rs` of `prep-jobs`.
#[pyfunction]
pub(crate) fn tag<'py>(
    py: Python<'py>,
    name: String,
    tag: String,
    delete: bool,
    dry_run: bool,
    catalog: Option<String>,
) -> PyResult<Bound<'py, PyAny>> {
    in_catalog(py, catalog, move |catalog| {
        Ok(changes::tag(
            catalog,
            &DatasetName::parse(&name)?,
            &tag,
            delete,
            dry_run,
        )?)
    })
}

/// Removes versions: see `changes.rs` of `prep-jobs`.
#[pyfunction]
pub(crate) fn remove<'py>(
    py: Python<'py>,
    name: String,
    all: bool,
    dry_run: bool,
    catalog: Option<String>,
) -> PyResult<Bound<'py, PyAny>> {
    in_catalog(py, catalog, move |catalog| {
        Ok(changes::remove(catalog, &DatasetName::parse(&name)?, all, dry_run)?.into())
    })
}

/// Checks the files of a version: a list of what was found in each.
#[pyfunction]
#[pyo3(signature = (name, quick, workers, catalog, progress))]
pub(crate) fn verify<'py>(
    py: Python<'py>,
    name: String,
    quick: bool,
    workers: Option<usize>,
    catalog: Option<String>,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        check_workers(workers)?;
        let workers = workers.unwrap_or_else(resources::default_workers);
        let monitor = Monitor::new();
        let watched = Arc::clone(&monitor);
        let tick = || {
            progress
                .as_ref()
                .map_or(Ok(()), |progress| tell_progress(&monitor, progress))
        };
        let work = move || -> Result<_, JobError> {
            let found = open_catalog(catalog.as_deref())?.resolve(&DatasetName::parse(&name)?)?;
            let reports = prep_jobs::verify_version(found, quick, workers, &watched)?;
            Ok(serde_json::Value::from(reports).to_string())
        };
        let text = on_thread(py, || monitor.cancel(), false, tick, work)?;
        json(py, &text)
    })
}

/// What is done with a catalog without waiting for long.
fn in_catalog<'py>(
    py: Python<'py>,
    catalog: Option<String>,
    work: impl FnOnce(&Catalog) -> Result<serde_json::Value, JobError> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let work =
            move || -> Result<_, JobError> { Ok(work(&open_catalog(catalog.as_deref())?)?.to_string()) };
        let text = on_thread(py, || {}, false, || Ok(()), work)?;
        json(py, &text)
    })
}

fn check_workers(workers: Option<usize>) -> PyResult<()> {
    match workers {
        Some(workers) if !(1..=1024).contains(&workers) => {
            Err(Kind::Invalid.error("`workers` is out of range: 1 to 1024"))
        }
        _ => Ok(()),
    }
}

impl BuildOptions {
    /// What to do with damaged records, and the memory budget.
    fn checked(&self) -> PyResult<(OnError, Option<u64>)> {
        let on_error = OnError::parse(&self.on_error)
            .map_err(|reason| Kind::Invalid.error(format!("`on_error`: {reason}")))?;
        let memory = match self.memory.as_deref().map(resources::parse_size).transpose() {
            Ok(memory) => memory,
            Err(reason) => return Err(Kind::Invalid.error(format!("`memory`: {reason}"))),
        };
        check_workers(self.workers)?;
        if self.shards.is_some_and(|shards| !(1..=100_000).contains(&shards)) {
            return Err(Kind::Invalid.error("`shards` is out of range: 1 to 100000"));
        }
        Ok((on_error, memory))
    }

    /// The request that these options make.
    pub(crate) fn request(&self, builder: Arc<dyn Builder>) -> PyResult<BuildRequest> {
        let (on_error, memory) = self.checked()?;
        let mut request = BuildRequest::new(builder)
            .on_error(on_error)
            .overwrite(self.overwrite)
            .statistics(self.statistics)
            .dry_run(self.dry_run);
        request.catalog.clone_from(&self.catalog);
        request.data_dir.clone_from(&self.data_dir);
        request.shards = self.shards;
        request.workers = self.workers.unwrap_or(request.workers);
        request.memory_bytes = memory.unwrap_or(request.memory_bytes);
        Ok(request)
    }
}

/// Runs a job that `monitor` watches; blocks, and looks for signals meanwhile. `serve` is called with the interpreter lock many times a second.
pub(crate) fn run_job<'py>(
    py: Python<'py>,
    doing: &str,
    monitor: &Arc<Monitor>,
    progress: Option<Bound<'py, PyAny>>,
    note: &Bound<'py, PyAny>,
    mut serve: impl FnMut() -> PyResult<()>,
    work: impl FnOnce() -> Result<serde_json::Value, JobError> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let mut last = Instant::now();
    let tick = || {
        tell_notes(monitor, note)?;
        serve()?;
        if let Some(progress) = &progress
            && last.elapsed() >= PROGRESS_INTERVAL
        {
            last = Instant::now();
            tell_progress(monitor, progress)?;
        }
        Ok(())
    };
    let work = move || work().map(|outcome| outcome.to_string());
    let result = on_thread(py, || monitor.cancel(), true, tick, work);
    let outcome = result.map_err(|error| {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return PyKeyboardInterrupt::new_err(format!("stopped {doing}; the same call goes on from here"));
        }
        error
    })?;
    tell_notes(monitor, note)?;
    if let Some(progress) = &progress {
        tell_progress(monitor, progress)?;
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
