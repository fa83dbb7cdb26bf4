//! Functions of Python's as stages of a pipeline.
//!
//! A function is a number in a table that `calls` knows (`prep._pool`): `calls(number, elements, keys)` gives one result an element, called here
//! or in a worker process. A chunk of elements is one call, for which the interpreter lock is taken once.

use std::fmt;
use std::sync::Arc;

use prep_formats::value::DType;
use prep_loader::element::{Element, ElementSpec, Foreign, Value};
use prep_loader::transform::{Generator, Transform};
use prep_loader::{Error, Predicate, Result, Source, stack_elements, unstack_element};
use pyo3::exceptions::{PyException, PyRuntimeError, PyStopAsyncIteration, PyStopIteration};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};

use crate::values::{self, Held, Number, Shared, element, object, sweep};

/// What a function of Python's raised.
#[derive(Debug)]
pub(crate) struct Raised {
    error: PyErr,
    text: String,
}

impl Raised {
    fn new(py: Python<'_>, error: PyErr) -> Self {
        let stops =
            error.is_instance_of::<PyStopIteration>(py) || error.is_instance_of::<PyStopAsyncIteration>(py);
        let error = if stops {
            // It would end the stream without a word.
            let wrapped = PyRuntimeError::new_err("a function of the pipeline raised StopIteration");
            wrapped.set_cause(py, Some(error));
            wrapped
        } else {
            error
        };
        Self {
            text: error.to_string(),
            error,
        }
    }

    fn boxed(py: Python<'_>, error: PyErr) -> Error {
        Error::User(Box::new(Self::new(py, error)))
    }

    /// The exception, with a note on where it was raised.
    pub(crate) fn with_note(&self, py: Python<'_>, note: &str) -> PyErr {
        let error = self.error.clone_ref(py);
        // Without the note it is still the exception.
        let _ = error.value(py).call_method1("add_note", (note,));
        error
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Raised {}

/// Runs Python code in whatever thread this is.
fn attached<T>(work: impl FnOnce(Python<'_>) -> Result<T>) -> Result<T> {
    let done = Python::try_attach(|py| {
        sweep(py);
        work(py)
    });
    done.unwrap_or_else(|| Err(Error::User("the interpreter is ending".into())))
}

/// What failed as a whole, for each element: the error for the first, its text for the others.
fn of_each<T>(count: usize, error: Error) -> Vec<Result<T>> {
    let text = error.to_string();
    let mut first = Some(error);
    let each = || Err(first.take().unwrap_or_else(|| Error::User(text.clone().into())));
    std::iter::repeat_with(each).take(count).collect()
}

/// A function in the table of a pipeline.
#[derive(Debug)]
pub(crate) struct Function {
    calls: Held,
    number: usize,
    name: String,
    parameters: String,
    kind: Kind,
}

/// How a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `function(element)`.
    Plain,
    /// `function(element, rng)`.
    Random,
    /// `function((index, element))`: the index is the value of the name [`INDEX`].
    WithIndex,
}

/// The name under which an element carries its index: no key of a dict makes it.
pub(crate) const INDEX: &str = "/index";

impl Function {
    pub(crate) fn new(
        calls: &Bound<'_, PyAny>,
        number: usize,
        name: String,
        parameters: String,
        kind: Kind,
    ) -> Self {
        Self {
            calls: Held::new(calls),
            number,
            name,
            parameters,
            kind,
        }
    }

    /// One result for each object.
    fn call<'py>(
        &self,
        py: Python<'py>,
        mut objects: Vec<Bound<'py, PyAny>>,
        mut keys: Option<Vec<u128>>,
    ) -> Vec<Result<Bound<'py, PyAny>>> {
        let mut results = Vec::with_capacity(objects.len());
        while !objects.is_empty() {
            match self.call_once(py, &objects, keys.as_deref()) {
                Ok(given) => {
                    results.extend(given.into_iter().map(Ok));
                    break;
                }
                Err(Stopped::At { given, error }) => {
                    // Those after it are tried by themselves.
                    let done = (given.len() + 1).min(objects.len());
                    objects.drain(..done);
                    if let Some(keys) = &mut keys {
                        keys.drain(..done);
                    }
                    results.extend(given.into_iter().map(Ok));
                    results.push(Err(Raised::boxed(py, error)));
                }
                Err(Stopped::All(error)) => {
                    results.extend(
                        objects
                            .iter()
                            .map(|_| Err(Raised::boxed(py, error.clone_ref(py)))),
                    );
                    break;
                }
            }
        }
        results
    }

    fn call_once<'py>(
        &self,
        py: Python<'py>,
        objects: &[Bound<'py, PyAny>],
        keys: Option<&[u128]>,
    ) -> Result<Vec<Bound<'py, PyAny>>, Stopped<'py>> {
        let arguments = (self.number, objects, keys);
        let called = self.calls.get(py).call1(arguments).and_then(|list| {
            let list = list.cast_into::<PyList>()?;
            Ok(list.iter().collect::<Vec<_>>())
        });
        called.map_err(|error| {
            Stopped::of(py, &error)
                .filter(|(given, _)| given.len() < objects.len())
                .map_or(Stopped::All(error), |(given, error)| Stopped::At { given, error })
        })
    }
}

/// How a call of a chunk failed.
enum Stopped<'py> {
    /// An element did, after those that gave these results.
    At {
        given: Vec<Bound<'py, PyAny>>,
        error: PyErr,
    },
    All(PyErr),
}

impl<'py> Stopped<'py> {
    /// The results before it, and what was raised, of a `prep._pool.CallError`.
    fn of(py: Python<'py>, error: &PyErr) -> Option<(Vec<Bound<'py, PyAny>>, PyErr)> {
        static CALL_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let class = CALL_ERROR.import(py, "prep._pool", "CallError").ok()?;
        let value = error.value(py);
        if !value.is_instance(class).ok()? {
            return None;
        }
        let cause = error.cause(py)?;
        let results = value.getattr("results").ok()?.cast_into::<PyList>().ok()?;
        Some((results.iter().collect(), cause))
    }
}

impl Transform for Function {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn parameters(&self) -> String {
        self.parameters.clone()
    }

    fn is_random(&self) -> bool {
        self.kind == Kind::Random
    }

    fn spec(&self, _: &ElementSpec) -> Result<ElementSpec> {
        Ok(ElementSpec::unknown())
    }

    fn apply(&self, element: Element, generator: &mut Generator) -> Result<Element> {
        let mut made = self.apply_many(vec![element], std::slice::from_mut(generator));
        made.pop()
            .unwrap_or_else(|| Err(Error::User("it gave no result".into())))
    }

    fn apply_many(&self, elements: Vec<Element>, generators: &mut [Generator]) -> Vec<Result<Element>> {
        let count = elements.len();
        let keys = (self.kind == Kind::Random).then(|| generators.iter_mut().map(numpy_key).collect());
        let made = attached(|py| {
            let mut objects = Vec::with_capacity(count);
            for mut own in elements {
                let index = match self.kind {
                    Kind::WithIndex => own.remove(INDEX),
                    _ => None,
                };
                let mut argument =
                    object(py, own, Shared::Copied).map_err(|error| Raised::boxed(py, error))?;
                if let Some(index) = index.as_ref().and_then(|index| index.as_array()) {
                    let pair = (index.item::<i64>(), argument).into_pyobject(py);
                    argument = pair.map_err(|error| Raised::boxed(py, error))?.into_any();
                }
                objects.push(argument);
            }
            let results = self.call(py, objects, keys);
            Ok(results
                .into_iter()
                .map(|result| result.map(|result| element(&result)))
                .collect::<Vec<_>>())
        });
        made.unwrap_or_else(|error| of_each(count, error))
    }
}

/// The key of NumPy's generator, from two draws: ORDER.md, section 9.
fn numpy_key(generator: &mut Generator) -> u128 {
    let low = generator.next_u64();
    u128::from(low) | u128::from(generator.next_u64()) << 64
}

/// A function that tells whether elements stay.
#[derive(Debug)]
pub(crate) struct Filter(pub(crate) Function);

impl Predicate for Filter {
    fn keeps(&self, element: &Element) -> Result<bool> {
        self.keeps_many(&[element]).pop().unwrap_or(Ok(true))
    }

    fn keeps_many(&self, elements: &[&Element]) -> Vec<Result<bool>> {
        let kept = attached(|py| {
            let objects: PyResult<Vec<_>> = elements
                .iter()
                .map(|&element| object(py, element.clone(), Shared::ReadOnly))
                .collect();
            let objects = objects.map_err(|error| Raised::boxed(py, error))?;
            let results = self.0.call(py, objects, None).into_iter();
            Ok(results
                .map(|result| result?.is_truthy().map_err(|error| Raised::boxed(py, error)))
                .collect::<Vec<_>>())
        });
        kept.unwrap_or_else(|error| of_each(elements.len(), error))
    }
}

/// Makes a batch of elements by a function of the list of them.
pub(crate) fn combine(function: &Function, elements: Vec<Element>) -> Result<Element> {
    attached(|py| {
        let list = PyList::empty(py);
        let listed: PyResult<()> = elements
            .into_iter()
            .try_for_each(|own| list.append(object(py, own, Shared::Copied)?));
        listed.map_err(|error| Raised::boxed(py, error))?;
        let batch = function.call(py, vec![list.into_any()], None).pop();
        Ok(element(&batch.unwrap_or_else(|| {
            Err(Error::User("it gave no result".into()))
        })?))
    })
}

/// Stacks elements: arrays without Python, and of each name that has others what `make_native_batch` makes of its values.
pub(crate) fn stack(elements: Vec<Element>) -> Result<Element> {
    let is_native = |element: &Element| element.iter().all(|(_, value)| value.as_array().is_some());
    if elements.iter().all(is_native) {
        return stack_elements(&elements);
    }
    attached(|py| {
        static MAKE_BATCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let stacked = || -> PyResult<Element> {
            let make_batch = MAKE_BATCH.import(py, "prep._batch", "make_native_batch")?;
            let list = PyList::empty(py);
            for own in elements {
                list.append(object(py, own, Shared::Copied)?)?;
            }
            Ok(element(&make_batch.call1((list,))?))
        };
        stacked().map_err(|error| Raised::boxed(py, error))
    })
}

/// The rows of a batch: of arrays without Python, of others what `split_batch` makes.
pub(crate) fn unstack(batch: Element) -> Result<Vec<Element>> {
    let has_rows = |value: &Value| matches!(value, Value::List(_)) || value.as_array().is_some();
    if batch.iter().all(|(_, value)| has_rows(value)) {
        return unstack_element(batch);
    }
    attached(|py| {
        static SPLIT_BATCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let split = || -> PyResult<Vec<Element>> {
            let split_batch = SPLIT_BATCH.import(py, "prep._batch", "split_batch")?;
            let rows = split_batch.call1((object(py, batch, Shared::Copied)?,))?;
            rows.try_iter()?.map(|row| Ok(element(&row?))).collect()
        };
        split().map_err(|error| Raised::boxed(py, error))
    })
}

/// The elements that a function makes of one.
pub(crate) fn expand(function: &Function, own: Element) -> Result<Vec<Element>> {
    attached(|py| {
        let argument = object(py, own, Shared::Copied).map_err(|error| Raised::boxed(py, error))?;
        let Some(made) = function.call(py, vec![argument], None).pop() else {
            return Ok(Vec::new());
        };
        let parts: PyResult<Vec<Element>> = made?
            .try_iter()
            .and_then(|parts| parts.map(|part| Ok(element(&part?))).collect());
        parts.map_err(|error| Raised::boxed(py, error))
    })
}

/// A sequence of Python's.
#[derive(Debug)]
pub(crate) struct Sequence {
    sequence: Held,
    length: u64,
    identity: String,
    /// Whether it has `__getitems__`.
    has_many: bool,
}

impl Sequence {
    pub(crate) fn new(sequence: &Bound<'_, PyAny>, identity: String) -> PyResult<Self> {
        Ok(Self {
            length: sequence.len()? as u64,
            has_many: sequence.hasattr("__getitems__")?,
            sequence: Held::new(sequence),
            identity,
        })
    }
}

impl Source for Sequence {
    fn len(&self) -> u64 {
        self.length
    }

    fn spec(&self) -> ElementSpec {
        ElementSpec::unknown()
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn get(&self, index: u64) -> Result<Element> {
        attached(|py| {
            let got = self.sequence.get(py).get_item(index);
            got.map(|got| element(&got))
                .map_err(|error| Raised::boxed(py, error))
        })
    }

    fn get_many(&self, indices: &[u64]) -> Vec<Result<Element>> {
        let many = attached(|py| {
            let sequence = self.sequence.get(py);
            if self.has_many && indices.len() > 1 {
                let got: PyResult<Vec<Element>> = sequence
                    .call_method1("__getitems__", (indices,))
                    .and_then(|got| got.try_iter()?.map(|own| Ok(element(&own?))).collect());
                match got {
                    Ok(got) if got.len() == indices.len() => return Ok(got.into_iter().map(Ok).collect()),
                    Ok(_) => {}
                    // An interrupt is nothing of a record's.
                    Err(error) if !error.is_instance_of::<PyException>(py) => {
                        return Err(Raised::boxed(py, error));
                    }
                    Err(_) => {}
                }
            }
            // One by one, so that an error is at its place.
            let each = indices.iter().map(|&index| {
                let got = sequence.get_item(index);
                got.map(|got| element(&got))
                    .map_err(|error| Raised::boxed(py, error))
            });
            Ok(each.collect::<Vec<Result<Element>>>())
        });
        many.unwrap_or_else(|error| of_each(indices.len(), error))
    }
}

/// `range(start, stop, step)`, made without Python.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) start: i64,
    pub(crate) step: i64,
    pub(crate) length: u64,
}

impl Source for Range {
    fn len(&self) -> u64 {
        self.length
    }

    fn spec(&self) -> ElementSpec {
        let mut spec = ElementSpec::new();
        spec.set("", DType::Int64, []);
        spec
    }

    fn identity(&self) -> String {
        format!("range start={} step={}", self.start, self.step)
    }

    fn get(&self, index: u64) -> Result<Element> {
        let number = self
            .start
            .wrapping_add(self.step.wrapping_mul(index.cast_signed()));
        let value: Arc<dyn Foreign> = Arc::new(Number::new(number));
        Ok(Element::from_iter([("", Value::Foreign(value))]))
    }
}

/// Elements as single values: what `zip` puts together.
#[derive(Debug)]
pub(crate) struct Whole {
    /// The name of the value.
    pub(crate) name: String,
}

impl Transform for Whole {
    fn name(&self) -> String {
        "whole".into()
    }

    fn parameters(&self) -> String {
        self.name.clone()
    }

    fn spec(&self, _: &ElementSpec) -> Result<ElementSpec> {
        Ok(ElementSpec::unknown())
    }

    fn apply(&self, element: Element, _: &mut Generator) -> Result<Element> {
        attached(|py| {
            let whole = object(py, element, Shared::Copied).map_err(|error| Raised::boxed(py, error))?;
            Ok(Element::from_iter([(&*self.name, values::value(&whole))]))
        })
    }
}

/// The values of an element as a tuple.
#[derive(Debug)]
pub(crate) struct Tuple;

impl Transform for Tuple {
    fn name(&self) -> String {
        "tuple".into()
    }

    fn parameters(&self) -> String {
        String::new()
    }

    fn spec(&self, _: &ElementSpec) -> Result<ElementSpec> {
        Ok(ElementSpec::unknown())
    }

    fn apply(&self, own: Element, _: &mut Generator) -> Result<Element> {
        attached(|py| {
            let tuple = || -> PyResult<Element> {
                let values: PyResult<Vec<_>> = own
                    .into_fields()
                    .map(|(_, value)| values::value_object(py, value, Shared::Copied))
                    .collect();
                Ok(element(&PyTuple::new(py, values?)?.into_any()))
            };
            tuple().map_err(|error| Raised::boxed(py, error))
        })
    }
}
