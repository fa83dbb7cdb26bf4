//! Python values to cells: what an example of the caller's may hold.

use std::fmt::Write;

use bytes::Bytes;
use prep_formats::value::DType;
use prep_jobs::examples::{Cell, Row};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PyString, PyTuple, PyType,
};

use crate::error::Kind;

/// Values in values in values, and so on, are taken so far.
const MOST_DEPTH: usize = 64;

/// The row that an example is. `place` is what errors call it.
pub(crate) fn row(example: &Bound<'_, PyAny>, place: &str) -> PyResult<Row> {
    let Ok(fields) = example.cast::<PyDict>() else {
        let found = type_name(example);
        return Err(Kind::Invalid.error(format!(
            "{place}: wanted a dict of the values of all features, found {found}"
        )));
    };
    let mut reader = Reader {
        place,
        path: Vec::new(),
    };
    reader.fields(fields)
}

struct Reader<'a> {
    place: &'a str,
    /// Names and positions from the feature on.
    path: Vec<String>,
}

impl Reader<'_> {
    fn wrong(&self, found: &str, wanted: &str) -> PyErr {
        let mut path = String::new();
        for part in &self.path {
            match part.starts_with('[') || path.is_empty() {
                true => path += part,
                false => _ = write!(path, "/{part}"),
            }
        }
        let feature = match path.is_empty() {
            true => String::new(),
            false => format!(", feature `{path}`"),
        };
        Kind::Invalid.error(format!("{}{feature}: found {found}, wanted {wanted}", self.place))
    }

    fn fields(&mut self, fields: &Bound<'_, PyDict>) -> PyResult<Row> {
        let mut row = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            let Ok(name) = name.extract::<PyBackedStr>() else {
                return Err(self.wrong(&format!("the name {}", short(&name)), "names that are `str`"));
            };
            self.path.push(name.to_string());
            row.push((name.to_string(), self.cell(&value)?));
            self.path.pop();
        }
        Ok(row)
    }

    fn cell(&mut self, value: &Bound<'_, PyAny>) -> PyResult<Cell> {
        if value.is_none() {
            return Ok(Cell::Null);
        }
        if let Ok(text) = value.cast::<PyString>() {
            let Ok(text) = text.extract::<PyBackedStr>() else {
                return Err(self.wrong(&format!("the text {}", short(value)), "text without surrogates"));
            };
            return Ok(Cell::Text(Bytes::from_owner(text)));
        }
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(Cell::Bytes(owned(bytes)));
        }
        if let Ok(value) = value.cast::<PyBool>() {
            return Ok(Cell::Bool(value.is_true()));
        }
        if value.is_instance_of::<PyInt>() {
            if let Ok(number) = value.extract::<i64>() {
                return Ok(Cell::Int(number));
            }
            return match value.extract::<u64>() {
                Ok(number) => Ok(Cell::UInt(number)),
                Err(_) => Err(self.wrong("an integer beyond 64 bits", "one of -2**63 to 2**64 - 1, or text")),
            };
        }
        if let Ok(number) = value.cast::<PyFloat>() {
            return Ok(Cell::Float(number.value()));
        }
        if self.path.len() > MOST_DEPTH {
            return Err(self.wrong(
                &format!("more than {MOST_DEPTH} levels"),
                "values that do not hold themselves",
            ));
        }
        if let Ok(fields) = value.cast::<PyDict>() {
            return Ok(Cell::Dict(self.fields(fields)?));
        }
        if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            return self.list(value);
        }
        if value.is_instance_of::<PyByteArray>() || value.is_instance_of::<PyMemoryView>() {
            let bytes = value.py().get_type::<PyBytes>().call1((value,))?;
            return Ok(Cell::Bytes(owned(bytes.cast()?)));
        }
        if value.is_instance(array_type(value.py())?)? {
            return self.array(value);
        }
        if value.hasattr("__array__")? || value.hasattr("__array_interface__")? {
            let array = value.py().import("numpy")?.call_method1("asarray", (value,))?;
            return self.array(&array);
        }
        Err(self.wrong(
            &type_name(value),
            "a number, text, bytes, an array, a list, a dict or None",
        ))
    }

    fn list(&mut self, value: &Bound<'_, PyAny>) -> PyResult<Cell> {
        let mut cells = Vec::with_capacity(value.len()?);
        for (index, value) in value.try_iter()?.enumerate() {
            self.path.push(format!("[{index}]"));
            cells.push(self.cell(&value?)?);
            self.path.pop();
        }
        Ok(Cell::List(cells))
    }

    fn array(&mut self, array: &Bound<'_, PyAny>) -> PyResult<Cell> {
        let dtype = array.getattr("dtype")?;
        let kind: char = dtype.getattr("kind")?.extract()?;
        if matches!(kind, 'O' | 'S' | 'U' | 'T') {
            let values = array.call_method0("tolist")?;
            // An array without dimensions is its value.
            return self.cell(&values);
        }
        let name: PyBackedStr = dtype.getattr("name")?.extract()?;
        let Some(known) = DType::from_name(&name) else {
            return Err(self.wrong(
                &format!("an array of {}", &*name),
                "integers, floats or truth values; say times as integers",
            ));
        };
        if array.hasattr("mask")? {
            return Err(self.wrong("a masked array", "an array, or None where all is missing"));
        }
        let shape: Vec<usize> = array.getattr("shape")?.extract()?;
        let little = match dtype.getattr("byteorder")?.extract::<char>()? {
            '>' => array.call_method1("astype", (dtype.call_method1("newbyteorder", ("<",))?,))?,
            _ => array.clone(),
        };
        let bytes = little.call_method0("tobytes")?;
        let data = owned(bytes.cast()?);
        // What Python's own numbers are as well.
        if shape.is_empty()
            && let Some(number) = data.first_chunk::<8>()
        {
            match known {
                DType::Int64 => return Ok(Cell::Int(i64::from_le_bytes(*number))),
                DType::Float64 => return Ok(Cell::Float(f64::from_le_bytes(*number))),
                _ => {}
            }
        }
        if shape.is_empty() && known == DType::Bool {
            return Ok(Cell::Bool(*data != [0]));
        }
        Ok(Cell::Tensor(known, shape, data))
    }
}

/// Without a copy.
fn owned(bytes: &Bound<'_, PyBytes>) -> Bytes {
    Bytes::from_owner(PyBackedBytes::from(bytes.clone()))
}

/// NumPy's arrays and scalars.
fn array_type<'py>(py: Python<'py>) -> PyResult<&'py Bound<'py, PyAny>> {
    static TYPES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let types = TYPES.get_or_try_init(py, || {
        let numpy = py.import("numpy")?;
        let types = (numpy.getattr("ndarray")?, numpy.getattr("generic")?);
        types.into_pyobject(py).map(|types| types.into_any().unbind())
    })?;
    Ok(types.bind(py))
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    let kind: Bound<'_, PyType> = value.get_type();
    match kind.fully_qualified_name() {
        Ok(name) => format!("`{}`", name.to_string_lossy()),
        Err(_) => "something without a type".to_owned(),
    }
}

/// A value's own words, cut.
fn short(value: &Bound<'_, PyAny>) -> String {
    let text = value
        .repr()
        .map_or_else(|_| type_name(value), |text| text.to_string_lossy().into_owned());
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}
