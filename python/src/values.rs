//! Python objects as values of a pipeline, and elements of a pipeline as Python objects.
//!
//! A dict is an element, a value a key; dicts in it are names such as `a/b`. What is no dict is an element with a single value, whose name is
//! empty. A value keeps its object, which comes out again as it is; where it is a number, an array or bytes, stages of Rust's see an array over
//! its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use bytes::Bytes;
use prep_formats::value::DType;
use prep_loader::element::{Array, Element, Foreign, Value};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::arrays;

/// Arrays up to this size are copied, which costs less than to keep track of them.
const COPIED_BYTES: usize = 512;

/// A reference to a Python object, which any thread may drop, with or without the interpreter lock.
///
/// PyO3 has a list of references to give up too, behind a lock that a fork could leave held.
#[derive(Debug)]
pub(crate) struct Held(Option<Py<PyAny>>);

/// A reference that was dropped.
struct Dropped {
    object: Py<PyAny>,
    next: *mut Dropped,
}

static DROPPED: AtomicPtr<Dropped> = AtomicPtr::new(std::ptr::null_mut());

impl Held {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> Self {
        Self(Some(object.clone().unbind()))
    }

    pub(crate) fn get<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match &self.0 {
            Some(object) => object.bind(py).clone(),
            None => py.None().into_bound(py),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(object) = self.0.take() else {
            return;
        };
        let node = Box::into_raw(Box::new(Dropped {
            object,
            next: DROPPED.load(Ordering::Relaxed),
        }));
        // SAFETY: the node is this thread's until the exchange succeeds.
        let mut next = unsafe { (*node).next };
        while let Err(other) = DROPPED.compare_exchange_weak(next, node, Ordering::Release, Ordering::Relaxed)
        {
            // SAFETY: as above.
            unsafe { (*node).next = other };
            next = other;
        }
    }
}

/// Gives up the references that were dropped so far.
pub(crate) fn sweep(_attached: Python<'_>) {
    let mut node = DROPPED.swap(std::ptr::null_mut(), Ordering::Acquire);
    while !node.is_null() {
        // SAFETY: the whole list is this thread's since the swap; each node was made by `Box::into_raw`.
        let dropped = unsafe { Box::from_raw(node) };
        node = dropped.next;
        drop(dropped.object);
    }
}

/// A Python object in an element.
#[derive(Debug)]
struct Object {
    held: Held,
    array: Option<Array>,
    bytes: u64,
}

impl Foreign for Object {
    fn describe(&self) -> String {
        Python::try_attach(|py| {
            let object = self.held.get(py);
            match object.getattr("dtype") {
                Ok(dtype) if is_array(&object) => {
                    format!("a NumPy array of {dtype}, which only Python functions can work on")
                }
                _ => format!("a Python object of {}", object.get_type()),
            }
        })
        .unwrap_or_else(|| "a Python object".into())
    }

    fn array(&self) -> Option<&Array> {
        self.array.as_ref()
    }

    fn num_bytes(&self) -> u64 {
        self.bytes
    }
}

/// A number of `MapDataset.range`: made without Python, and an `int` there.
#[derive(Debug)]
pub(crate) struct Number {
    number: i64,
    array: Array,
}

impl Number {
    pub(crate) fn new(number: i64) -> Self {
        Self {
            number,
            array: Array::scalar(number),
        }
    }
}

impl Foreign for Number {
    fn describe(&self) -> String {
        "an int".into()
    }

    fn array(&self) -> Option<&Array> {
        Some(&self.array)
    }
}

/// An element of a Python object.
pub(crate) fn element(object: &Bound<'_, PyAny>) -> Element {
    if let Ok(dict) = object.cast_exact::<PyDict>()
        && !dict.is_empty()
    {
        let mut fields = Vec::with_capacity(dict.len());
        if put_fields(dict, "", MOST_DEPTH, &mut fields) {
            return fields.into_iter().collect();
        }
    }
    Element::from_iter([("", value(object))])
}

/// Dicts in dicts. A dict that has itself in it would have no end.
const MOST_DEPTH: usize = 64;

/// Adds the values of a dict; `false` where it is not one of names.
fn put_fields(
    dict: &Bound<'_, PyDict>,
    prefix: &str,
    depth: usize,
    fields: &mut Vec<(Arc<str>, Value)>,
) -> bool {
    if depth == 0 {
        return false;
    }
    dict.iter().all(|(key, item)| {
        let Ok(key) = key.cast_exact::<PyString>() else {
            return false;
        };
        let Ok(key) = key.to_str() else {
            return false;
        };
        if key.is_empty() || key.contains('/') {
            return false;
        }
        let name: Arc<str> = match prefix {
            "" => key.into(),
            prefix => format!("{prefix}/{key}").into(),
        };
        match item.cast_exact::<PyDict>() {
            Ok(inner) if !inner.is_empty() => put_fields(inner, &name, depth - 1, fields),
            _ => {
                fields.push((name, value(&item)));
                true
            }
        }
    })
}

/// A value of a Python object.
pub(crate) fn value(object: &Bound<'_, PyAny>) -> Value {
    if object.is_none() {
        return Value::Missing;
    }
    let array = array(object);
    let bytes = match &array {
        Some(array) => array.num_bytes(),
        None => weight(object),
    };
    Value::Foreign(Arc::new(Object {
        held: Held::new(object),
        array,
        bytes,
    }))
}

/// About how many bytes an object takes that is no array.
fn weight(object: &Bound<'_, PyAny>) -> u64 {
    let of_items = |items: &mut dyn Iterator<Item = Bound<'_, PyAny>>| {
        items.map(|item| own_weight(&item)).sum::<u64>() + 56
    };
    if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        of_items(&mut tuple.iter())
    } else if let Ok(list) = object.cast_exact::<PyList>() {
        of_items(&mut list.iter())
    } else {
        own_weight(object)
    }
}

fn own_weight(object: &Bound<'_, PyAny>) -> u64 {
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return bytes.as_bytes().len() as u64;
    }
    if is_array(object) {
        let bytes = object.getattr("nbytes").and_then(|bytes| bytes.extract());
        return bytes.unwrap_or(64);
    }
    64
}

/// The array that equals an object, if there is one.
fn array(object: &Bound<'_, PyAny>) -> Option<Array> {
    if let Ok(number) = object.cast_exact::<PyInt>() {
        return number.extract().ok().map(|number: i64| Array::scalar(number));
    }
    if let Ok(number) = object.cast_exact::<PyFloat>() {
        return Some(Array::scalar(number.value()));
    }
    if let Ok(truth) = object.cast_exact::<PyBool>() {
        return Some(Array::scalar(truth.is_true()));
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        let data = bytes.as_bytes();
        // SAFETY: the bytes of a `bytes` object stay where they are, and as they are, as long as it lives.
        return Some(Array::string(unsafe {
            memory(object, data.as_ptr(), data.len())
        }));
    }
    if is_array(object) {
        return numpy_array(object);
    }
    None
}

/// A NumPy array or scalar. Not one with a mask: there is more to it than its memory.
fn is_array(object: &Bound<'_, PyAny>) -> bool {
    static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static MASKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let is = |class: &PyOnceLock<Py<PyType>>, module: &str, name: &str| {
        let class = class.import(object.py(), module, name);
        class.is_ok_and(|class| object.is_instance(class).unwrap_or(false))
    };
    let is_plain = ARRAY
        .get(object.py())
        .is_some_and(|class| object.get_type().is(class.bind(object.py())));
    is_plain
        || is_scalar(object)
        || (is(&ARRAY, "numpy", "ndarray") && !is(&MASKED, "numpy.ma", "MaskedArray"))
}

fn is_scalar(object: &Bound<'_, PyAny>) -> bool {
    static SCALAR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = SCALAR.import(object.py(), "numpy", "generic");
    class.is_ok_and(|class| object.is_instance(class).unwrap_or(false))
}

/// Bytes of an object's memory: a copy of few, and else the object is kept.
///
/// # Safety
/// `length` bytes at `start` have to stay in place as long as the object lives.
unsafe fn memory(object: &Bound<'_, PyAny>, start: *const u8, length: usize) -> Bytes {
    struct Memory {
        _held: Held,
        start: *const u8,
        length: usize,
    }
    // SAFETY: it is read only, and `Held` may be dropped by any thread.
    unsafe impl Send for Memory {}
    impl AsRef<[u8]> for Memory {
        fn as_ref(&self) -> &[u8] {
            // SAFETY: what the caller of `memory` promised; the object lives as long as this.
            unsafe { std::slice::from_raw_parts(self.start, self.length) }
        }
    }
    if length == 0 {
        return Bytes::new();
    }
    if length <= COPIED_BYTES {
        // SAFETY: what the caller promises.
        return Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(start, length) });
    }
    Bytes::from_owner(Memory {
        _held: Held::new(object),
        start,
        length,
    })
}

/// The array of a NumPy array or scalar: over its memory, where that is contiguous.
fn numpy_array(object: &Bound<'_, PyAny>) -> Option<Array> {
    view(object).or_else(|| {
        // Of another order: a copy. Arrays of objects that are all `bytes`: strings.
        let py = object.py();
        let kind: String = object
            .getattr("dtype")
            .ok()?
            .getattr("char")
            .ok()?
            .extract()
            .ok()?;
        if kind == "O" {
            return strings(object);
        }
        let contiguous = py
            .import("numpy")
            .ok()?
            .call_method1("ascontiguousarray", (object,))
            .ok()?;
        if contiguous.is(object) {
            return None;
        }
        view(&contiguous)
    })
}

fn strings(object: &Bound<'_, PyAny>) -> Option<Array> {
    let shape: Vec<usize> = object.getattr("shape").ok()?.extract().ok()?;
    let flat = object.call_method0("ravel").ok()?.call_method0("tolist").ok()?;
    let strings: Option<Vec<Bytes>> = flat
        .cast::<PyList>()
        .ok()?
        .iter()
        .map(|item| {
            let bytes = item.cast_exact::<PyBytes>().ok()?;
            Some(Bytes::copy_from_slice(bytes.as_bytes()))
        })
        .collect();
    Array::strings(shape, strings?).ok()
}

fn view(object: &Bound<'_, PyAny>) -> Option<Array> {
    let py = object.py();
    let flags = ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_FORMAT;
    let mut buffer = std::mem::MaybeUninit::<ffi::Py_buffer>::zeroed();
    // SAFETY: `buffer` is what CPython's function fills.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), buffer.as_mut_ptr(), flags) } != 0 {
        drop(PyErr::take(py));
        return None;
    }
    // SAFETY: it was filled; `format` and `shape` are asked for by the flags, and `ndim` long.
    unsafe {
        let mut buffer = buffer.assume_init();
        let shape: Vec<usize> = match buffer.ndim {
            0 => Vec::new(),
            rank => std::slice::from_raw_parts(buffer.shape, rank as usize)
                .iter()
                .map(|&size| size as usize)
                .collect(),
        };
        let dtype = match buffer.format.is_null() {
            true => Some(DType::UInt8),
            false => dtype(std::ffi::CStr::from_ptr(buffer.format).to_bytes()),
        };
        // Of scalars that are no numbers, such as dates, the buffer is one of their bytes.
        let is_number = buffer.ndim == 0 || !is_scalar(object);
        let array = dtype.filter(|_| is_number).and_then(|dtype| {
            // The memory of a NumPy array is the array's, whoever else has a view of it.
            let data = memory(object, buffer.buf.cast(), buffer.len as usize);
            Array::new(dtype, shape, data).ok()
        });
        ffi::PyBuffer_Release(&raw mut buffer);
        array
    }
}

/// The element type of a buffer's format.
fn dtype(format: &[u8]) -> Option<DType> {
    let letter = match format {
        [b'<' | b'=' | b'@', letter] | [letter] => letter,
        _ => return None,
    };
    Some(match letter {
        b'?' => DType::Bool,
        b'b' => DType::Int8,
        b'B' => DType::UInt8,
        b'h' => DType::Int16,
        b'H' => DType::UInt16,
        b'i' => DType::Int32,
        b'I' => DType::UInt32,
        // `long` has 8 bytes on all systems that this package is built for.
        b'l' | b'q' => DType::Int64,
        b'L' | b'Q' => DType::UInt64,
        b'e' => DType::Float16,
        b'f' => DType::Float32,
        b'd' => DType::Float64,
        _ => return None,
    })
}

/// What becomes of arrays that others see too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    /// A copy, to be written to.
    Copied,
    /// A view that cannot be written to.
    ReadOnly,
}

/// An element as a Python object.
pub(crate) fn object<'py>(py: Python<'py>, element: Element, shared: Shared) -> PyResult<Bound<'py, PyAny>> {
    let dict = PyDict::new(py);
    for (name, value) in element.into_fields() {
        let value = value_object(py, value, shared)?;
        if name.is_empty() {
            return Ok(value);
        }
        match name.rsplit_once('/') {
            None => dict.set_item(&*name, value)?,
            Some((outer, last)) => {
                let mut dict = dict.clone();
                for part in outer.split('/') {
                    let inner = match dict.get_item(part)? {
                        Some(inner) => inner.cast_into::<PyDict>().map_err(|_| {
                            PyTypeError::new_err(format!("`{name}` is inside of a value that is no dict"))
                        })?,
                        None => {
                            let inner = PyDict::new(py);
                            dict.set_item(part, &inner)?;
                            inner
                        }
                    };
                    dict = inner;
                }
                dict.set_item(last, value)?;
            }
        }
    }
    Ok(dict.into_any())
}

/// A value as a Python object.
pub(crate) fn value_object(py: Python<'_>, value: Value, shared: Shared) -> PyResult<Bound<'_, PyAny>> {
    Ok(match value {
        Value::Array(array) => arrays::numpy_of(py, array, shared == Shared::ReadOnly)?,
        Value::List(values) => {
            let list = PyList::empty(py);
            for value in values.iter() {
                list.append(value_object(py, value.clone(), shared)?)?;
            }
            list.into_any()
        }
        Value::Foreign(value) => {
            let any: &dyn std::any::Any = &*value;
            if let Some(object) = any.downcast_ref::<Object>() {
                object.held.get(py)
            } else if let Some(number) = any.downcast_ref::<Number>() {
                number.number.into_pyobject(py)?.into_any()
            } else {
                return Err(PyTypeError::new_err("a value that is not of this package"));
            }
        }
        _ => py.None().into_bound(py),
    })
}
