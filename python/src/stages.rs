//! The stages of a pipeline, for `prep/_pipeline.py`, which has the names and the documentation.

use std::sync::Arc;

use prep_formats::columns::Images;
use prep_formats::value::DType;
use prep_loader::element::ElementSpec;
use prep_loader::transform::Transform;
use prep_loader::{
    BatchOptions, Custom, IterDataset, MapDataset, Mixture, Order, PackOptions, Packing, PipelineOptions,
    PipelineState, Result, Stacking, StopRule,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays;
use crate::boundary::{OfProcess, guarded, outside};
use crate::dataset::Dataset;
use crate::error::{IntoPython, Kind};
use crate::functions::{self, Filter, Function, INDEX, Kind as FunctionKind, Range, Sequence, Tuple, Whole};
use crate::stream::Stream;
use crate::transforms::transform_of;
use crate::values::{Shared, object};

/// A pipeline of random access, or a streaming one. Each method gives another.
#[pyclass(frozen, module = "prep._core")]
#[derive(Debug)]
pub(crate) struct Stages {
    stages: OfProcess<Kinds>,
}

#[derive(Debug, Clone)]
enum Kinds {
    Map(MapDataset),
    Iter(IterDataset),
}

/// Where a function is: how it is called, its number, the name in states, what its result depends on beside.
type Place<'py> = (Bound<'py, PyAny>, usize, String, String);

fn function((calls, number, name, parameters): Place<'_>, kind: FunctionKind) -> Function {
    Function::new(&calls, number, name, parameters, kind)
}

impl Stages {
    fn kinds(&self) -> PyResult<Kinds> {
        let kinds = self.stages.get().cloned();
        kinds.ok_or_else(|| Kind::Internal.error("the stages of another process were used"))
    }

    fn map(&self) -> PyResult<MapDataset> {
        match self.kinds()? {
            Kinds::Map(dataset) => Ok(dataset),
            Kinds::Iter(_) => Err(Kind::Internal.error("random access on a stream")),
        }
    }

    fn iter(&self) -> PyResult<IterDataset> {
        match self.kinds()? {
            Kinds::Iter(dataset) => Ok(dataset),
            Kinds::Map(_) => Err(Kind::Internal.error("a stage of streams on random access")),
        }
    }

    /// Another pipeline made of this one.
    fn then(
        &self,
        map: impl FnOnce(MapDataset) -> Result<MapDataset>,
        iter: impl FnOnce(IterDataset) -> Result<IterDataset>,
    ) -> PyResult<Self> {
        guarded(|| match self.kinds()? {
            Kinds::Map(dataset) => made(map(dataset)),
            Kinds::Iter(dataset) => made_iter(iter(dataset)),
        })
    }

    fn mapped(&self, transform: Arc<dyn Transform>, seed: Option<u64>) -> PyResult<Self> {
        let shared = Arc::clone(&transform);
        self.then(
            |dataset| dataset.map_shared(transform, seed),
            |dataset| dataset.map_shared(shared, seed),
        )
    }
}

fn of(kinds: Kinds) -> Stages {
    Stages {
        stages: OfProcess::new(kinds),
    }
}

fn made(dataset: Result<MapDataset>) -> PyResult<Stages> {
    let dataset = dataset.map_err(IntoPython::into_python)?;
    Ok(of(Kinds::Map(dataset)))
}

fn made_iter(dataset: Result<IterDataset>) -> PyResult<Stages> {
    let dataset = dataset.map_err(IntoPython::into_python)?;
    Ok(of(Kinds::Iter(dataset)))
}

#[pymethods]
impl Stages {
    /// Records of a dataset.
    #[staticmethod]
    fn dataset(
        py: Python<'_>,
        dataset: &Dataset,
        columns: Option<Vec<String>>,
        decode: bool,
    ) -> PyResult<Self> {
        guarded(|| {
            let handle = dataset.handle(py)?;
            let own = handle
                .get()
                .ok_or_else(|| Kind::Internal.error("a dataset of another process was used"))?;
            let images = if decode {
                Images::DecodedWherePossible
            } else {
                Images::Encoded
            };
            let own = own.clone().with_images(images);
            made(match columns {
                Some(columns) => MapDataset::source_columns(own, columns),
                None => MapDataset::source(own),
            })
        })
    }

    /// Elements of a sequence.
    #[staticmethod]
    fn sequence(sequence: &Bound<'_, PyAny>, identity: String) -> PyResult<Self> {
        guarded(|| made(MapDataset::custom(Sequence::new(sequence, identity)?)))
    }

    /// `length` numbers.
    #[staticmethod]
    fn range(start: i64, step: i64, length: u64) -> PyResult<Self> {
        guarded(|| made(MapDataset::custom(Range { start, step, length })))
    }

    #[staticmethod]
    fn mix(
        parents: Vec<PyRef<'_, Self>>,
        weights: Vec<f64>,
        until_all: bool,
        changes: Vec<(u64, Vec<f64>)>,
    ) -> PyResult<Self> {
        guarded(|| {
            let stop = if until_all {
                StopRule::AllExhausted
            } else {
                StopRule::FirstExhausted
            };
            let mixture = changes.into_iter().fold(
                Mixture::new(weights).stop(stop),
                |mixture, (position, weights)| mixture.change(position, weights),
            );
            match parents.first().map(|parent| parent.kinds()).transpose()? {
                Some(Kinds::Iter(_)) => made_iter(IterDataset::mix(iters(&parents)?, mixture)),
                _ => made(MapDataset::mix(maps(&parents)?, mixture)),
            }
        })
    }

    #[staticmethod]
    fn concatenate(parents: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        guarded(|| made(MapDataset::concatenate(maps(&parents)?)))
    }

    /// Tuples of the elements of each.
    #[staticmethod]
    fn zip(parents: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        guarded(|| {
            let whole = maps(&parents)?.into_iter().enumerate().map(|(number, parent)| {
                parent.map(Whole {
                    name: number.to_string(),
                })
            });
            let whole: Result<Vec<MapDataset>> = whole.collect();
            made(
                whole
                    .and_then(MapDataset::zip)
                    .and_then(|zipped| zipped.map(Tuple)),
            )
        })
    }

    #[staticmethod]
    fn interleave(parents: Vec<PyRef<'_, Self>>, cycle_length: usize) -> PyResult<Self> {
        guarded(|| made_iter(IterDataset::interleave(iters(&parents)?, cycle_length)))
    }

    /// The same: for options that are Python's.
    fn same(&self) -> PyResult<Self> {
        Ok(of(self.kinds()?))
    }

    fn shuffle(&self, order: &str, seed: u64) -> PyResult<Self> {
        guarded(|| {
            let order: Order = order
                .parse()
                .map_err(<prep_loader::Error as IntoPython>::into_python)?;
            made(self.map()?.shuffle_as(order, seed))
        })
    }

    fn window_shuffle(&self, window: u64, seed: u64) -> PyResult<Self> {
        self.then(
            |dataset| dataset.window_shuffle(window, seed),
            |dataset| dataset.window_shuffle(window, seed),
        )
    }

    fn slice(&self, start: u64, stop: u64, step: u64) -> PyResult<Self> {
        guarded(|| made(self.map()?.slice(start, stop, step)))
    }

    fn repeat(&self, num_epochs: Option<u64>, reseed_each_epoch: bool) -> PyResult<Self> {
        guarded(|| made(self.map()?.repeat_as(num_epochs, reseed_each_epoch)))
    }

    fn cache(&self, num_bytes: u64) -> PyResult<Self> {
        guarded(|| made(self.map()?.cache(num_bytes)))
    }

    /// A function of each element; random with a seed.
    fn function(&self, place: Place<'_>, seed: Option<u64>) -> PyResult<Self> {
        let kind = match seed {
            Some(_) => FunctionKind::Random,
            None => FunctionKind::Plain,
        };
        self.mapped(Arc::new(function(place, kind)), seed)
    }

    /// A function of `(index, element)`.
    fn function_with_index(&self, place: Place<'_>) -> PyResult<Self> {
        let indexed = self.then(
            |dataset| Ok(dataset.map_with_index(INDEX)),
            |dataset| Ok(dataset.map_with_index(INDEX)),
        )?;
        indexed.mapped(Arc::new(function(place, FunctionKind::WithIndex)), None)
    }

    /// A transform of Rust's, by its name and parameters; a random one with a seed.
    fn transform(&self, name: &str, parameters: &Bound<'_, PyDict>, seed: Option<u64>) -> PyResult<Self> {
        self.mapped(guarded(|| transform_of(name, parameters))?, seed)
    }

    fn filter(&self, place: Place<'_>) -> PyResult<Self> {
        let name = place.2.clone();
        let filter = Arc::new(Filter(function(place, FunctionKind::Plain)));
        let shared = Arc::clone(&filter);
        self.then(
            |dataset| Ok(dataset.filter_shared(&name, filter)),
            |dataset| Ok(dataset.filter_shared(&name, shared)),
        )
    }

    fn flat_map(&self, place: Place<'_>) -> PyResult<Self> {
        guarded(|| {
            let function = function(place, FunctionKind::Plain);
            let name = function.name();
            let expand = move |element| functions::expand(&function, element);
            made_iter(Ok(self.iter()?.flat_map(&name, ElementSpec::unknown(), expand)))
        })
    }

    /// `stacking`: `equal`, `padded`, `ragged`; or a function of the list of elements.
    fn batch(
        &self,
        size: u64,
        drop_remainder: bool,
        stacking: &str,
        place: Option<Place<'_>>,
    ) -> PyResult<Self> {
        let unknown = match self.kinds()? {
            Kinds::Map(dataset) => dataset.element_spec().is_unknown(),
            Kinds::Iter(dataset) => dataset.element_spec().is_unknown(),
        };
        let stacking = match (place, stacking) {
            (Some(place), _) => {
                let function = function(place, FunctionKind::Plain);
                let name = function.name();
                let combine = move |elements| functions::combine(&function, elements);
                Stacking::Custom(Custom::new(&name, ElementSpec::unknown(), combine))
            }
            (None, "padded") => Stacking::Padded,
            (None, "ragged") => Stacking::Ragged,
            // What may not be arrays.
            (None, _) if unknown => {
                Stacking::Custom(Custom::new("batch", ElementSpec::unknown(), functions::stack))
            }
            (None, _) => Stacking::Equal,
        };
        let options = BatchOptions::new(size)
            .drop_remainder(drop_remainder)
            .stacking(stacking);
        let same = options.clone();
        self.then(|dataset| dataset.batch(options), |dataset| dataset.batch(same))
    }

    fn unbatch(&self) -> PyResult<Self> {
        guarded(|| {
            let dataset = self.iter()?;
            made_iter(Ok(match dataset.element_spec().is_unknown() {
                // What may not be arrays.
                true => dataset.flat_map("unbatch", ElementSpec::unknown(), functions::unstack),
                false => dataset.unbatch(),
            }))
        })
    }

    fn pack(
        &self,
        packing: &str,
        bins: usize,
        lengths: Vec<(String, usize)>,
        meta_features: Vec<String>,
        shuffle_bins: Option<u64>,
        drop_remainder: bool,
    ) -> PyResult<Self> {
        guarded(|| {
            let packing = match packing {
                "first_fit" => Packing::FirstFit { bins },
                "best_fit" => Packing::BestFit { bins },
                "concat_then_split" => Packing::ConcatThenSplit,
                other => {
                    return Err(Kind::Invalid.error(format!(
                        "`packing` is `{other}`, wanted `first_fit`, `best_fit` or `concat_then_split`"
                    )));
                }
            };
            let mut options = PackOptions::new(packing, lengths)
                .meta_features(meta_features)
                .drop_remainder(drop_remainder);
            options.shuffle_bins = shuffle_bins;
            made_iter(self.iter()?.pack(options))
        })
    }

    fn to_iter(&self, streams: Option<u64>) -> PyResult<Self> {
        guarded(|| {
            let dataset = self.map()?;
            made_iter(match streams {
                Some(streams) => dataset.to_iter_over(streams),
                None => Ok(dataset.to_iter()),
            })
        })
    }

    /// Says what elements look like: `(name, dtype, shape)` of each value.
    fn with_spec(&self, fields: Vec<(String, String, Vec<Option<u64>>)>) -> PyResult<Self> {
        let spec = guarded(|| {
            let mut spec = ElementSpec::new();
            for (name, dtype, shape) in fields {
                let dtype = DType::from_name(&dtype)
                    .ok_or_else(|| Kind::Unsupported.error(format!("`{name}` is an array of {dtype}")))?;
                spec.set(&name, dtype, shape);
            }
            Ok(spec)
        })?;
        self.mapped(
            Arc::new(prep_loader::transform::function("known", Ok).spec(spec)),
            None,
        )
    }

    /// The element of a position in a tuple; none where a filter left it out.
    fn get<'py>(&self, py: Python<'py>, position: u64) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        guarded(|| {
            let dataset = self.map()?;
            match outside(py, || dataset.get(position))? {
                Some(element) => Ok(Some((object(py, element, Shared::Copied)?,))),
                None => Ok(None),
            }
        })
    }

    /// Positions of an epoch; `None`: without end.
    #[getter]
    fn length(&self) -> PyResult<Option<u64>> {
        Ok(self.map()?.len())
    }

    /// What elements look like; `None` where that is not known.
    #[getter]
    fn element_spec<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        guarded(|| match self.kinds()? {
            Kinds::Map(dataset) => arrays::spec_of(py, dataset.element_spec()),
            Kinds::Iter(dataset) => arrays::spec_of(py, dataset.element_spec()),
        })
    }

    /// The pipeline's text: a line a stage.
    fn describe(&self) -> PyResult<Vec<String>> {
        Ok(match self.kinds()? {
            Kinds::Map(dataset) => dataset.describe(),
            Kinds::Iter(dataset) => dataset.describe(),
        })
    }

    /// Opens the stream of elements.
    fn load(&self, py: Python<'_>, options: &Bound<'_, PyDict>, states: Vec<String>) -> PyResult<Stream> {
        guarded(|| {
            // Now, NumPy too, and not by whatever thread takes the first element: a fork in the middle of an import leaves its lock held in the
            // child.
            py.import("prep._batch")?;
            let mut parsed = PipelineOptions::new();
            for (key, value) in options {
                let key: String = key.extract()?;
                match key.as_str() {
                    "shard_index" => parsed.shard_index = value.extract()?,
                    "shard_count" => parsed.shard_count = value.extract()?,
                    "num_threads" => parsed.num_threads = value.extract()?,
                    "prefetch" => parsed.prefetch = value.extract()?,
                    "prefetch_bytes" => parsed.prefetch_bytes = value.extract()?,
                    "counts" => parsed.counts = value.extract()?,
                    "on_error" => {
                        let text: String = value.extract()?;
                        parsed.on_damage = text
                            .parse()
                            .map_err(<prep_loader::Error as IntoPython>::into_python)?;
                    }
                    other => return Err(Kind::Internal.error(format!("no option `{other}` is known"))),
                }
            }
            let states: Result<Vec<PipelineState>> = states
                .iter()
                .map(|state| PipelineState::from_json(state))
                .collect();
            let parsed = parsed.restore(states.map_err(IntoPython::into_python)?);
            let kinds = self.kinds()?;
            let pipeline = outside(py, || match kinds {
                Kinds::Map(dataset) => dataset.load(parsed),
                Kinds::Iter(dataset) => dataset.load(parsed),
            })?;
            Ok(Stream::new(pipeline))
        })
    }

    fn __reduce__(&self) -> PyResult<Bound<'_, PyTuple>> {
        Err(pyo3::exceptions::PyTypeError::new_err(
            "stages do not pickle: the dataset that has them does",
        ))
    }
}

fn maps(parents: &[PyRef<'_, Stages>]) -> PyResult<Vec<MapDataset>> {
    parents.iter().map(|parent| parent.map()).collect()
}

fn iters(parents: &[PyRef<'_, Stages>]) -> PyResult<Vec<IterDataset>> {
    parents.iter().map(|parent| parent.iter()).collect()
}
