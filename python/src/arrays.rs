//! Batches as dicts of NumPy arrays that view Rust's buffers.
//!
//! ```text
//! numpy.ndarray --base--> Buffer --Arc--> Lent --owns--> the batch, which goes back to its pool when the last array dies
//! ```
//!
//! NumPy is imported by the first stream or element, not by `import prep`.

use std::ffi::c_int;
use std::fmt;
use std::ops::DerefMut;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use prep_formats::columns::{Batch, Cell, ColumnData, ColumnSpec};
use prep_formats::value::DType;
use prep_loader::element::{Array, ElementSpec, Memory};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyString, PyTuple, PyType};

use crate::error::Kind;

/// A batch whose column buffers are lent to Python.
///
/// From [`Lent::new`] to its drop Rust does not touch the buffers: Python's arrays are the only ones that read and write them.
struct Lent {
    process: u32,
    owner: NonNull<dyn DerefMut<Target = Batch> + Send>,
    /// Where the elements of each column lie, and how many bytes.
    buffers: Vec<(*mut u8, usize)>,
}

// SAFETY: the owner is `Send`, is touched by `new` and `drop` only, and the pointers are to its heap memory, which no thread of Rust's
// reads or writes in between.
unsafe impl Send for Lent {}
// SAFETY: as above; a shared reference gives addresses, and nothing is read through them here.
unsafe impl Sync for Lent {}

impl Lent {
    fn new(mut owner: Box<dyn DerefMut<Target = Batch> + Send>) -> Self {
        let buffers = owner.columns.iter_mut().map(elements).collect();
        // A raw pointer, since a `Box` that moves would claim that nothing else points into it.
        let owner = NonNull::from(Box::leak(owner));
        Self {
            process: std::process::id(),
            owner,
            buffers,
        }
    }
}

/// Where the elements of a column lie, those of nested and optional ones too, and how many bytes.
fn elements(column: &mut ColumnData) -> (*mut u8, usize) {
    match column {
        ColumnData::Fixed(data) | ColumnData::Bytes { data, .. } | ColumnData::Ragged { data, .. } => {
            (data.as_mut_ptr(), data.len())
        }
        ColumnData::Nested { values, .. } | ColumnData::Optional { values, .. } => elements(values),
        _ => (NonNull::dangling().as_ptr(), 0),
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // In a child of a fork the pool's lock may be held for ever: the memory is left to the end of the process.
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: made by `Box::leak` in `new`, and given back once, here.
        drop(unsafe { Box::from_raw(self.owner.as_ptr()) });
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("buffers", &self.buffers.len())
            .finish_non_exhaustive()
    }
}

/// Bytes for the arrays that view them: the `base` of each.
#[pyclass(frozen, module = "prep._core")]
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Keeps the memory.
    _owner: Owner,
    start: *mut u8,
    length: usize,
    is_read_only: bool,
}

#[derive(Debug)]
enum Owner {
    /// A column of a batch.
    Batch { _lent: Arc<Lent> },
    /// Memory that nothing else sees.
    Alone { _memory: Memory },
    /// Memory that others read.
    Shared { _memory: Bytes },
}

// SAFETY: the pointer is to memory of the owner, which stays in place; nothing is read or written through it here.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn of_column(lent: &Arc<Lent>, column: usize) -> Self {
        let (start, length) = lent.buffers[column];
        Self {
            _owner: Owner::Batch {
                _lent: Arc::clone(lent),
            },
            start,
            length,
            is_read_only: false,
        }
    }

    /// Over memory of an array: as it is where nothing else sees it; else read only or a copy.
    fn of_array(array: Array, read_only: bool) -> Self {
        if read_only {
            let memory = array.into_bytes();
            return Self {
                start: memory.as_ptr().cast_mut(),
                length: memory.len(),
                is_read_only: true,
                _owner: Owner::Shared { _memory: memory },
            };
        }
        let mut memory = array.into_memory();
        Self {
            start: memory.as_mut_ptr(),
            length: memory.len(),
            is_read_only: false,
            _owner: Owner::Alone { _memory: memory },
        }
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.length
    }

    // SAFETY of the contract: `view` is filled by CPython's own function, which takes a reference to `slf`, so the memory lives as long as
    // the view.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let own = slf.get();
        // SAFETY: `view` is not null and `slf` is alive; the memory is `length` bytes long and stays in place while `slf` lives.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                own.start.cast(),
                own.length as ffi::Py_ssize_t,
                c_int::from(own.is_read_only),
                flags,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// What every batch of a dataset looks like, with the Python objects that describe it made once.
#[derive(Debug)]
pub(crate) struct Layout {
    columns: Vec<LayoutColumn>,
}

#[derive(Debug)]
struct LayoutColumn {
    /// Names from the outermost dict in.
    path: Vec<Py<PyString>>,
    spec: ColumnSpec,
}

impl Layout {
    pub(crate) fn new(py: Python<'_>, specs: &[ColumnSpec]) -> Self {
        let columns = specs
            .iter()
            .map(|spec| LayoutColumn {
                path: spec
                    .path
                    .iter()
                    .map(|name| PyString::intern(py, name).unbind())
                    .collect(),
                spec: spec.clone(),
            })
            .collect();
        Self { columns }
    }

    /// A dict of one array a column, first dimension `rows`: a view where rows have one shape; an object array of `bytes` for byte
    /// strings; a list of arrays (views) where shapes vary, of lists of them where sequences are in sequences. Optional columns are a masked
    /// array, or with `None` in the list. Nested features are nested dicts.
    pub(crate) fn batch<'py>(
        &self,
        py: Python<'py>,
        batch: impl DerefMut<Target = Batch> + Send + 'static,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.convert(py, Box::new(batch), false)
    }

    /// A dict of the values of the only row of a batch: arrays, NumPy scalars, `bytes`, lists, `None` where it is missing.
    pub(crate) fn element<'py>(
        &self,
        py: Python<'py>,
        batch: impl DerefMut<Target = Batch> + Send + 'static,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.convert(py, Box::new(batch), true)
    }

    fn convert<'py>(
        &self,
        py: Python<'py>,
        batch: Box<dyn DerefMut<Target = Batch> + Send>,
        single: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let rows = batch.rows;
        // What is copied or has a shape of its own is read before the buffers are lent.
        let mut parts = Vec::with_capacity(self.columns.len());
        for (column, data) in self.columns.iter().zip(&batch.columns) {
            parts.push(part(py, &column.spec, data, rows, single)?);
        }
        let lent = Arc::new(Lent::new(batch));
        for (index, (column, part)) in self.columns.iter().zip(parts).enumerate() {
            let value = match part {
                // Nothing is lent.
                Part::Made(value) => value,
                part => {
                    let lender = Buffer::of_column(&lent, index);
                    part.finish(py, column.spec.dtype, &Bound::new(py, lender)?, single)?
                }
            };
            put(py, &dict, &column.path, value)?;
        }
        Ok(dict)
    }

    /// A dict of `prep.ArraySpec`: the shape of an element, or of a batch with `rows` (a number, or `None` where the last may be short).
    pub(crate) fn element_spec<'py>(
        &self,
        py: Python<'py>,
        rows: Option<Option<usize>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let class = py.import("prep._spec")?.getattr("ArraySpec")?;
        let dict = PyDict::new(py);
        for column in &self.columns {
            let mut shape: Vec<Option<u64>> = column.spec.shape.clone();
            if let Some(rows) = rows {
                shape.insert(0, rows.map(|rows| rows as u64));
            }
            let spec = class.call1((PyTuple::new(py, shape)?, dtype(py, column.spec.dtype)?))?;
            put(py, &dict, &column.path, spec)?;
        }
        Ok(dict)
    }
}

/// An array of a pipeline's: a NumPy scalar or `bytes` where it has no dimensions.
pub(crate) fn numpy_of(py: Python<'_>, value: Array, read_only: bool) -> PyResult<Bound<'_, PyAny>> {
    let kind = value.dtype();
    let shape: Vec<u64> = value.shape().iter().map(|&size| size as u64).collect();
    if kind == DType::String {
        let strings = value.as_strings();
        return match strings {
            [string] if shape.is_empty() => Ok(PyBytes::new(py, string).into_any()),
            _ => {
                let strings = strings.iter().map(|string| PyBytes::new(py, string)).collect();
                objects(py, strings, &shape)
            }
        };
    }
    let buffer = Bound::new(py, Buffer::of_array(value, read_only))?;
    let view = array(py, kind, &shape, &buffer, 0)?;
    scalar(py, view, &shape)
}

/// What the elements of a pipeline look like, as dicts of `prep.ArraySpec`, or one. `None`: not known.
pub(crate) fn spec_of<'py>(py: Python<'py>, spec: &ElementSpec) -> PyResult<Option<Bound<'py, PyAny>>> {
    if spec.is_unknown() {
        return Ok(None);
    }
    let class = py.import("prep._spec")?.getattr("ArraySpec")?;
    let dict = PyDict::new(py);
    for field in spec.iter() {
        let own = class.call1((PyTuple::new(py, &field.shape)?, dtype(py, field.dtype)?))?;
        if field.name.is_empty() {
            return Ok(Some(own));
        }
        let path: Vec<Py<PyString>> = field
            .name
            .split('/')
            .map(|name| PyString::intern(py, name).unbind())
            .collect();
        put(py, &dict, &path, own)?;
    }
    Ok(Some(dict.into_any()))
}

/// Puts a value into nested dicts.
fn put<'py>(
    py: Python<'py>,
    dict: &Bound<'py, PyDict>,
    path: &[Py<PyString>],
    value: Bound<'py, PyAny>,
) -> PyResult<()> {
    let Some((last, outer)) = path.split_last() else {
        return Ok(());
    };
    let mut dict = dict.clone();
    for name in outer {
        let inner = match dict.get_item(name)? {
            Some(inner) => inner.cast_into::<PyDict>()?,
            None => {
                let inner = PyDict::new(py);
                dict.set_item(name, &inner)?;
                inner
            }
        };
        dict = inner;
    }
    dict.set_item(last, value)
}

/// How a column is handed over.
enum Part<'py> {
    Made(Bound<'py, PyAny>),
    View {
        shape: Vec<u64>,
    },
    Rows(Vec<Row<'py>>),
    /// A view with a mask, true where a row is missing.
    Masked {
        shape: Vec<u64>,
        missing: Vec<bool>,
    },
}

/// One row of a list.
enum Row<'py> {
    Made(Bound<'py, PyAny>),
    View { shape: Vec<u64>, offset: u64 },
    List(Vec<Row<'py>>),
}

/// Looks at a column before its elements are lent.
fn part<'py>(
    py: Python<'py>,
    spec: &ColumnSpec,
    data: &ColumnData,
    rows: usize,
    single: bool,
) -> PyResult<Part<'py>> {
    let whole_shape = || {
        let mut shape: Vec<u64> = spec.shape.iter().map(|size| size.unwrap_or(0)).collect();
        if !single {
            shape.insert(0, rows as u64);
        }
        shape
    };
    Ok(match data {
        ColumnData::Fixed(_) => Part::View { shape: whole_shape() },
        ColumnData::Bytes { offsets, data } => {
            let strings: Vec<_> = offsets
                .windows(2)
                .map(|pair| PyBytes::new(py, &data[pair[0] as usize..pair[1] as usize]))
                .collect();
            Part::Made(match strings.as_slice() {
                [string] if single && spec.shape.is_empty() => string.clone().into_any(),
                _ => objects(py, strings, &whole_shape())?,
            })
        }
        ColumnData::Optional { present, values } => match &**values {
            _ if single && present.first() == Some(&0) => Part::Made(py.None().into_bound(py)),
            _ if single => part(py, spec, values, rows, single)?,
            ColumnData::Fixed(_) => Part::Masked {
                shape: whole_shape(),
                missing: present.iter().map(|&present| present == 0).collect(),
            },
            _ => Part::Rows(cells(py, spec, data, rows)?),
        },
        _ => Part::Rows(cells(py, spec, data, rows)?),
    })
}

/// The rows of a column one by one.
fn cells<'py>(py: Python<'py>, spec: &ColumnSpec, data: &ColumnData, rows: usize) -> PyResult<Vec<Row<'py>>> {
    let mut column = data;
    while let ColumnData::Nested { values, .. } | ColumnData::Optional { values, .. } = column {
        column = values;
    }
    let start = match column {
        ColumnData::Fixed(data) | ColumnData::Ragged { data, .. } => data.as_ptr().addr(),
        _ => 0,
    };
    (0..rows)
        .map(|row| match data.cell(spec, row) {
            Some(cell) => one_row(py, &cell, start),
            None => Err(Kind::Internal.error(format!("column `{}` has no row {row}", spec.name))),
        })
        .collect()
}

/// A cell whose column's elements begin at the address `start`.
fn one_row<'py>(py: Python<'py>, cell: &Cell<'_>, start: usize) -> PyResult<Row<'py>> {
    Ok(match cell {
        Cell::Missing => Row::Made(py.None().into_bound(py)),
        Cell::Array { shape, data } => Row::View {
            shape: shape.clone(),
            offset: if data.is_empty() {
                0
            } else {
                (data.as_ptr().addr() - start) as u64
            },
        },
        Cell::Strings { shape, strings } => match strings.as_slice() {
            [string] if shape.is_empty() => Row::Made(PyBytes::new(py, string).into_any()),
            strings => {
                let strings = strings.iter().map(|string| PyBytes::new(py, string)).collect();
                Row::Made(objects(py, strings, shape)?)
            }
        },
        Cell::List(cells) => Row::List(
            cells
                .iter()
                .map(|cell| one_row(py, cell, start))
                .collect::<PyResult<_>>()?,
        ),
        _ => return Err(Kind::Internal.error("a kind of value that the package does not know")),
    })
}

impl<'py> Part<'py> {
    /// The Python object, once the elements are lent.
    fn finish(
        self,
        py: Python<'py>,
        kind: DType,
        buffer: &Bound<'py, Buffer>,
        single: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Made(value) => Ok(value),
            Self::View { shape } => {
                let view = array(py, kind, &shape, buffer, 0)?;
                if single {
                    scalar(py, view, &shape)
                } else {
                    Ok(view)
                }
            }
            Self::Masked { shape, missing } => {
                let view = array(py, kind, &shape, buffer, 0)?;
                let mut column = vec![missing.len() as u64];
                column.resize(shape.len(), 1);
                let mask = numpy(py, "array")?
                    .call1((missing,))?
                    .call_method1("reshape", (PyTuple::new(py, column)?,))?;
                let mask = numpy(py, "broadcast_to")?.call1((mask, PyTuple::new(py, &shape)?))?;
                py.import("numpy.ma")?.getattr("MaskedArray")?.call1((view, mask))
            }
            Self::Rows(rows) => {
                let list = Row::List(rows).finish(py, kind, buffer)?;
                if single { list.get_item(0) } else { Ok(list) }
            }
        }
    }
}

impl<'py> Row<'py> {
    fn finish(
        self,
        py: Python<'py>,
        kind: DType,
        buffer: &Bound<'py, Buffer>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Made(value) => Ok(value),
            Self::View { shape, offset } => array(py, kind, &shape, buffer, offset),
            Self::List(rows) => {
                let list = PyList::empty(py);
                for row in rows {
                    list.append(row.finish(py, kind, buffer)?)?;
                }
                Ok(list.into_any())
            }
        }
    }
}

/// `numpy.ndarray(shape, dtype, buffer, offset)`: a view whose `base` is the buffer.
fn array<'py>(
    py: Python<'py>,
    kind: DType,
    shape: &[u64],
    buffer: &Bound<'py, Buffer>,
    offset: u64,
) -> PyResult<Bound<'py, PyAny>> {
    static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    NDARRAY.import(py, "numpy", "ndarray")?.call1((
        PyTuple::new(py, shape)?,
        dtype(py, kind)?,
        buffer,
        offset,
    ))
}

/// An object array of byte strings.
fn objects<'py>(
    py: Python<'py>,
    strings: Vec<Bound<'py, PyBytes>>,
    shape: &[u64],
) -> PyResult<Bound<'py, PyAny>> {
    let flat = numpy(py, "empty")?.call1((strings.len(), dtype(py, DType::String)?))?;
    flat.set_item(PySlice::full(py), PyList::new(py, strings)?)?;
    if shape.len() == 1 {
        Ok(flat)
    } else {
        flat.call_method1("reshape", (PyTuple::new(py, shape)?,))
    }
}

/// An array without dimensions as a NumPy scalar, others as they are.
fn scalar<'py>(py: Python<'py>, value: Bound<'py, PyAny>, shape: &[u64]) -> PyResult<Bound<'py, PyAny>> {
    if shape.is_empty() {
        value.get_item(PyTuple::empty(py))
    } else {
        Ok(value)
    }
}

fn numpy<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("numpy")?.getattr(name)
}

/// The NumPy dtype of an element type; that of byte strings is `object`.
fn dtype(py: Python<'_>, kind: DType) -> PyResult<Bound<'_, PyAny>> {
    const KINDS: usize = 14;
    static DTYPES: [PyOnceLock<Py<PyAny>>; KINDS] = [const { PyOnceLock::new() }; KINDS];
    let name = match kind {
        DType::Bool => "bool",
        DType::UInt8 => "uint8",
        DType::Int8 => "int8",
        DType::UInt16 => "<u2",
        DType::Int16 => "<i2",
        DType::UInt32 => "<u4",
        DType::Int32 => "<i4",
        DType::UInt64 => "<u8",
        DType::Int64 => "<i8",
        DType::Float16 => "<f2",
        DType::BFloat16 => "bfloat16",
        DType::Float32 => "<f4",
        DType::Float64 => "<f8",
        DType::String => "object",
        _ => return Err(Kind::Unsupported.error(format!("NumPy has no dtype for {kind:?}"))),
    };
    let make = || -> PyResult<Py<PyAny>> {
        let argument = if kind == DType::BFloat16 {
            // NumPy knows it through the package that JAX and TensorFlow use.
            py.import("ml_dtypes")
                .map_err(|_| {
                    Kind::Unsupported.error("arrays of bfloat16 need the package `ml_dtypes`: install it")
                })?
                .getattr("bfloat16")?
        } else {
            PyString::new(py, name).into_any()
        };
        Ok(numpy(py, "dtype")?.call1((argument,))?.unbind())
    };
    let index = kind as usize;
    match DTYPES.get(index) {
        Some(slot) => Ok(slot.get_or_try_init(py, make)?.bind(py).clone()),
        None => Ok(make()?.into_bound(py)),
    }
}
