//! What a pipeline stage yields: named arrays, cheap to clone.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prep_formats::columns::ColumnSpec;
use prep_formats::value::DType;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
pub use crate::recycle::Memory;

/// An array of numbers or of byte strings. A clone shares the data.
///
/// Numbers are little-endian in C order: `shape.iter().product() * dtype size` bytes.
///
/// # Examples
/// ```
/// use prep_formats::value::DType;
/// use prep_loader::element::Array;
///
/// let pixels = Array::new(DType::UInt8, vec![2, 2, 3], vec![0; 12])?;
/// assert_eq!((pixels.dtype(), pixels.shape()), (DType::UInt8, &[2, 2, 3][..]));
/// assert_eq!(Array::of(&[1i32, -2])?.to_vec::<i32>(), Some(vec![1, -2]));
/// assert!(Array::new(DType::Int16, vec![3], vec![0; 5]).is_err());
/// # Ok::<(), prep_loader::Error>(())
/// ```
#[derive(Clone)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    data: Data,
    /// What the numbers lie in as a whole, where they may go to another array when this is dropped.
    memory: Option<Arc<Memory>>,
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        (self.dtype, &self.shape, &self.data) == (other.dtype, &other.shape, &other.data)
    }
}

#[derive(Clone, PartialEq)]
enum Data {
    Numbers(Bytes),
    Strings(Arc<[Bytes]>),
}

impl Array {
    /// An array of numbers over bytes that are already there.
    ///
    /// # Errors
    /// [`DType::String`]; bytes that are not as many as shape and type say.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, data: impl Into<Bytes>) -> Result<Self> {
        let (shape, data) = (shape.into(), data.into());
        if dtype == DType::String {
            return Err(Error::Element(
                "an array of byte strings has no packed bytes; make it of strings".into(),
            ));
        }
        let wanted = shape
            .iter()
            .try_fold(dtype.num_bytes(), |bytes, &size| bytes.checked_mul(size));
        if wanted != Some(data.len()) {
            return Err(Error::Element(format!(
                "{} bytes do not make an array of {dtype} {shape:?}",
                data.len()
            )));
        }
        Ok(Self {
            dtype,
            shape,
            data: Data::Numbers(data),
            memory: None,
        })
    }

    /// An array of numbers over memory that goes back where it came from.
    pub(crate) fn recycled(dtype: DType, shape: impl Into<Vec<usize>>, memory: Memory) -> Result<Self> {
        let memory = Arc::new(memory);
        let array = Self::new(dtype, shape, Bytes::from_owner(Owned(Arc::clone(&memory))))?;
        Ok(Self {
            memory: Some(memory),
            ..array
        })
    }

    /// An array of byte strings in C order.
    ///
    /// # Errors
    /// Strings that are not as many as the shape says.
    pub fn strings(shape: impl Into<Vec<usize>>, strings: impl Into<Arc<[Bytes]>>) -> Result<Self> {
        let (shape, strings) = (shape.into(), strings.into());
        let wanted = shape
            .iter()
            .try_fold(1usize, |count, &size| count.checked_mul(size));
        if wanted != Some(strings.len()) {
            return Err(Error::Element(format!(
                "{} byte strings do not make an array {shape:?}",
                strings.len()
            )));
        }
        Ok(Self {
            dtype: DType::String,
            shape,
            data: Data::Strings(strings),
            memory: None,
        })
    }

    /// One byte string, without dimensions: a text, or an encoded image.
    pub fn string(text: impl Into<Bytes>) -> Self {
        Self {
            dtype: DType::String,
            shape: Vec::new(),
            data: Data::Strings([text.into()].into()),
            memory: None,
        }
    }

    /// One number, without dimensions.
    pub fn scalar<T: Number>(value: T) -> Self {
        let mut data = Vec::with_capacity(T::DTYPE.num_bytes());
        value.put(&mut data);
        Self {
            dtype: T::DTYPE,
            shape: Vec::new(),
            data: Data::Numbers(data.into()),
            memory: None,
        }
    }

    /// Numbers in one dimension.
    ///
    /// # Errors
    /// None in practice: it is [`new`](Self::new).
    pub fn of<T: Number>(values: &[T]) -> Result<Self> {
        let mut data = Vec::with_capacity(std::mem::size_of_val(values));
        for value in values {
            value.put(&mut data);
        }
        Self::new(T::DTYPE, vec![values.len()], data)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The numbers, little-endian in C order. `None` for byte strings.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.data {
            Data::Numbers(data) => Some(data),
            Data::Strings(_) => None,
        }
    }

    /// The numbers as [`bytes`](Self::bytes), taken out. None for byte strings.
    pub fn into_bytes(self) -> Bytes {
        match self.data {
            Data::Numbers(data) => data,
            Data::Strings(_) => Bytes::new(),
        }
    }

    /// The same to write to: as they are where nothing else sees them, else a copy.
    pub fn into_memory(mut self) -> Memory {
        let memory = self.memory.take();
        let data = self.into_bytes();
        let Some(memory) = memory else {
            return Vec::from(data).into();
        };
        drop(data);
        Arc::try_unwrap(memory).unwrap_or_else(|shared| shared.to_vec().into())
    }

    /// The byte strings in C order; none for numbers.
    pub fn as_strings(&self) -> &[Bytes] {
        match &self.data {
            Data::Numbers(_) => &[],
            Data::Strings(strings) => strings,
        }
    }

    /// The byte string of an array without dimensions.
    pub fn as_string(&self) -> Option<&Bytes> {
        match (&self.data, &self.shape[..]) {
            (Data::Strings(strings), []) => strings.first(),
            _ => None,
        }
    }

    /// The numbers; `None` where they are of another type. A copy.
    pub fn to_vec<T: Number>(&self) -> Option<Vec<T>> {
        let data = self.bytes().filter(|_| self.dtype == T::DTYPE)?;
        Some(data.chunks_exact(T::DTYPE.num_bytes()).map(T::get).collect())
    }

    /// The number of an array with one element; `None` for another type or more elements.
    pub fn item<T: Number>(&self) -> Option<T> {
        let data = self.bytes()?;
        (self.dtype == T::DTYPE && data.len() == T::DTYPE.num_bytes()).then(|| T::get(data))
    }

    /// The same data in another shape.
    ///
    /// # Errors
    /// A shape of another number of elements.
    pub fn reshape(self, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        match self.data {
            Data::Numbers(data) => Ok(Self {
                memory: self.memory,
                ..Self::new(self.dtype, shape, data)?
            }),
            Data::Strings(strings) => Self::strings(shape, strings),
        }
    }

    /// Row `index` of the first dimension, sharing the data. `None` beyond its end, and for a scalar.
    pub fn row(&self, index: usize) -> Option<Self> {
        self.rows(index, index.checked_add(1)?).map(|mut row| {
            row.shape.remove(0);
            row
        })
    }

    /// Rows `start..end` of the first dimension, sharing the data. `None` beyond its end, and for a scalar.
    pub fn rows(&self, start: usize, end: usize) -> Option<Self> {
        let (&rows, inner) = self.shape.split_first()?;
        if start > end || end > rows {
            return None;
        }
        let each: usize = inner.iter().product();
        let mut shape = self.shape.clone();
        shape[0] = end - start;
        let data = match &self.data {
            Data::Numbers(data) => {
                let bytes = each * self.dtype.num_bytes();
                Data::Numbers(data.slice(start * bytes..end * bytes))
            }
            Data::Strings(strings) => Data::Strings(strings[start * each..end * each].into()),
        };
        Some(Self {
            dtype: self.dtype,
            shape,
            data,
            memory: None,
        })
    }

    /// Bytes of the data.
    pub fn num_bytes(&self) -> u64 {
        match &self.data {
            Data::Numbers(data) => data.len() as u64,
            Data::Strings(strings) => strings.iter().map(|string| string.len() as u64 + 16).sum(),
        }
    }
}

/// Memory that bytes lie in.
struct Owned(Arc<Memory>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} ", self.dtype, self.shape)?;
        match &self.data {
            Data::Numbers(data) if data.len() <= 64 => write!(f, "{data:?}"),
            Data::Numbers(data) => write!(f, "({} bytes)", data.len()),
            Data::Strings(strings) if strings.len() <= 4 => write!(f, "{strings:?}"),
            Data::Strings(strings) => write!(f, "({} strings)", strings.len()),
        }
    }
}

/// A number of Rust's that an array can hold.
pub trait Number: Copy + private::Sealed {
    /// Its element type.
    const DTYPE: DType;
    /// Appends it, little-endian.
    fn put(self, out: &mut Vec<u8>);
    /// Reads it from as many bytes as it has.
    fn get(bytes: &[u8]) -> Self;
}

mod private {
    #[expect(unnameable_types, reason = "seals `Number`")]
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ty: $dtype:ident),*) => {$(
        impl private::Sealed for $number {}
        impl Number for $number {
            const DTYPE: DType = DType::$dtype;
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }
        }
    )*};
}

numbers!(u8: UInt8, i8: Int8, u16: UInt16, i16: Int16, u32: UInt32, i32: Int32, u64: UInt64, i64: Int64, f32: Float32, f64: Float64);

impl private::Sealed for bool {}

impl Number for bool {
    const DTYPE: DType = DType::Bool;

    fn put(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }

    fn get(bytes: &[u8]) -> Self {
        bytes.first().is_some_and(|&byte| byte != 0)
    }
}

/// A value of the caller's, of whatever type: stages move it. Those that need an array work on the one that stands for it, and what they make
/// is an array.
///
/// Dropped by any thread.
pub trait Foreign: Any + Send + Sync {
    /// A word for what it is, for error messages.
    fn describe(&self) -> String;

    /// The array that equals it, where there is one.
    fn array(&self) -> Option<&Array> {
        None
    }

    /// Bytes of memory, about: they count where elements are made ahead or kept.
    fn num_bytes(&self) -> u64 {
        self.array().map_or(0, Array::num_bytes)
    }
}

impl PartialEq for dyn Foreign {
    /// The same value, or equal arrays.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
            || matches!((self.array(), other.array()), (Some(own), Some(other)) if own == other)
    }
}

impl fmt::Debug for dyn Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

/// The value of one name in an element.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Value {
    /// An array.
    Array(Array),
    /// Values that do not make one array: sequences of sequences, or the rows of a ragged batch.
    List(Arc<[Value]>),
    /// An optional value that is not there.
    Missing,
    /// Something of the caller's.
    Foreign(Arc<dyn Foreign>),
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Array(own), Self::Array(other)) => own == other,
            (Self::List(own), Self::List(other)) => own == other,
            (Self::Missing, Self::Missing) => true,
            (Self::Foreign(own), Self::Foreign(other)) => **own == **other,
            _ => false,
        }
    }
}

impl Value {
    /// The array, if it is one, or if one stands for it.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            Self::Foreign(value) => value.array(),
            _ => None,
        }
    }

    /// Bytes of the data.
    pub fn num_bytes(&self) -> u64 {
        match self {
            Self::Array(array) => array.num_bytes(),
            Self::List(values) => values.iter().map(|value| value.num_bytes() + 48).sum(),
            Self::Missing => 0,
            Self::Foreign(value) => value.num_bytes(),
        }
    }

    /// A word for what this is, for error messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Array(array) => format!("{} {:?}", array.dtype, array.shape),
            Self::List(values) => format!("a list of {}", values.len()),
            Self::Missing => "a missing value".to_string(),
            Self::Foreign(value) => value.describe(),
        }
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

/// Where an element came from: for error messages. Elements made of several have that of the first.
#[derive(Clone)]
pub struct Origin {
    dataset: Dataset,
    index: u64,
}

impl Origin {
    pub(crate) fn new(dataset: Dataset, index: u64) -> Self {
        Self { dataset, index }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.dataset.address(self.index))
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Named values: an example, or after batching a batch. A clone shares the data.
///
/// A nested feature has its path as a name: `objects/bbox`. Names keep the order in which they were set; those of a dataset are sorted.
/// Two elements are equal that have equal values under equal names in the same order.
///
/// # Examples
/// ```
/// use prep_loader::element::{Array, Element};
///
/// let mut element = Element::new();
/// element.set("label", Array::scalar(3i64));
/// element.set("text", Array::string("three"));
/// assert_eq!(element.array("label")?.item::<i64>(), Some(3));
/// assert_eq!(element.names().collect::<Vec<_>>(), ["label", "text"]);
/// assert!(element.array("image").is_err());
/// # Ok::<(), prep_loader::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Element {
    fields: Vec<(Arc<str>, Value)>,
    origin: Option<Origin>,
}

impl Element {
    /// An element without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where it came from, as far as it is known.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    pub(crate) fn set_origin(&mut self, origin: Option<Origin>) {
        self.origin = origin;
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields
            .iter()
            .find_map(|(own, value)| (**own == *name).then_some(value))
    }

    /// The array of a name.
    ///
    /// # Errors
    /// A name that is not there, or whose value is no array; says what there is.
    pub fn array(&self, name: &str) -> Result<&Array> {
        let value = self.get(name).ok_or_else(|| self.no_value(name))?;
        value
            .as_array()
            .ok_or_else(|| Error::Element(format!("`{name}` is {}, wanted an array", value.describe())))
    }

    pub(crate) fn no_value(&self, name: &str) -> Error {
        let names: Vec<String> = self.names().map(|name| format!("`{name}`")).collect();
        Error::Element(match &names[..] {
            [] => format!("there is no value `{name}`: the element is empty"),
            names => format!("there is no value `{name}`; the element has {}", names.join(", ")),
        })
    }

    /// Sets the value of a name, in its place if it is there, else at the end.
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: impl Into<Value>) {
        let (name, value) = (name.into(), value.into());
        match self.fields.iter_mut().find(|(own, _)| **own == *name) {
            Some((_, own)) => *own = value,
            None => self.fields.push((name, value)),
        }
    }

    /// Takes a value out.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.fields.iter().position(|(own, _)| **own == *name)?;
        Some(self.fields.remove(at).1)
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (&**name, value))
    }

    /// Names and values in order, taken out.
    pub fn into_fields(self) -> impl Iterator<Item = (Arc<str>, Value)> {
        self.fields.into_iter()
    }

    /// Names and values in order, the names to be shared.
    pub(crate) fn shared_fields(&self) -> &[(Arc<str>, Value)] {
        &self.fields
    }

    /// Adds the values of another element, whose names are others.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.fields.append(&mut other.fields);
        if self.origin.is_none() {
            self.origin = other.origin;
        }
    }

    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Bytes of all values.
    pub fn num_bytes(&self) -> u64 {
        self.fields.iter().map(|(_, value)| value.num_bytes()).sum()
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<N: Into<Arc<str>>, V: Into<Value>> FromIterator<(N, V)> for Element {
    /// Names that come twice are kept twice: a caller's bug.
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        Self {
            fields: fields
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            origin: None,
        }
    }
}

/// A shape as errors and specs print it: `[?, 32, 3]`, where `?` varies.
pub(crate) fn sizes_text(shape: &[Option<u64>]) -> String {
    let sizes = shape
        .iter()
        .map(|size| size.map_or("?".to_string(), |size| size.to_string()));
    format!("[{}]", sizes.collect::<Vec<_>>().join(", "))
}

/// Names, dtypes and shapes of an element, known without reading data; `None` in a shape where it varies.
///
/// # Examples
/// ```
/// use prep_formats::value::DType;
/// use prep_loader::element::ElementSpec;
///
/// let mut spec = ElementSpec::new();
/// spec.set("image", DType::UInt8, vec![None, None, Some(3)]);
/// assert_eq!(spec.get("image").unwrap().shape, [None, None, Some(3)]);
/// assert_eq!(spec.to_string(), "image: uint8[?, ?, 3]");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ElementSpec {
    fields: Vec<ColumnSpec>,
    /// There may be other fields than these, or none of them.
    unknown: bool,
}

impl ElementSpec {
    /// A spec without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// The spec of elements of which nothing is known before they are made. Stages check them then.
    pub fn unknown() -> Self {
        Self {
            fields: Vec::new(),
            unknown: true,
        }
    }

    /// Whether elements may look different from what is said here.
    pub fn is_unknown(&self) -> bool {
        self.unknown
    }

    pub(crate) fn set_unknown(&mut self, unknown: bool) {
        self.unknown = unknown;
    }

    /// The spec of some columns.
    pub fn of(fields: &[ColumnSpec]) -> Self {
        Self {
            fields: fields.to_vec(),
            unknown: false,
        }
    }

    /// The spec of a name.
    pub fn get(&self, name: &str) -> Option<&ColumnSpec> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The spec of a name.
    ///
    /// # Errors
    /// A name that is not there; says which there are.
    pub fn field(&self, name: &str) -> Result<&ColumnSpec> {
        self.get(name).ok_or_else(|| {
            let names: Vec<String> = self.iter().map(|field| format!("`{}`", field.name)).collect();
            Error::Element(match &names[..] {
                _ if self.unknown => format!("it is not known what `{name}` is before an element is made"),
                [] => format!("there is no value `{name}`: the element is empty"),
                names => format!("there is no value `{name}`; the element has {}", names.join(", ")),
            })
        })
    }

    /// Sets dtype and shape of a name, in its place if it is there, else at the end. What was optional stays so.
    pub fn set(&mut self, name: &str, dtype: DType, shape: impl Into<Vec<Option<u64>>>) {
        match self.fields.iter_mut().find(|field| field.name == name) {
            Some(field) => {
                field.dtype = dtype;
                field.shape = shape.into();
            }
            None => self.push(ColumnSpec {
                name: name.to_string(),
                path: vec![name.to_string()],
                dtype,
                shape: shape.into(),
                optional: false,
            }),
        }
    }

    /// Adds a field, in the place of one of the same name.
    pub fn push(&mut self, field: ColumnSpec) {
        match self.fields.iter_mut().find(|own| own.name == field.name) {
            Some(own) => *own = field,
            None => self.fields.push(field),
        }
    }

    /// Takes a field out.
    pub fn remove(&mut self, name: &str) -> Option<ColumnSpec> {
        let at = self.fields.iter().position(|field| field.name == name)?;
        Some(self.fields.remove(at))
    }

    /// Fields in order.
    pub fn iter(&self) -> impl Iterator<Item = &ColumnSpec> {
        self.fields.iter()
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// What two specs with the same names, dtypes and ranks have in common: sizes that differ vary. `None` for others.
    pub(crate) fn common(&self, other: &Self) -> Option<Self> {
        if self.unknown || other.unknown {
            return Some(Self::unknown());
        }
        let fields = self.iter().map(|field| {
            let other = other.get(&field.name)?;
            let fits = field.dtype == other.dtype && field.shape.len() == other.shape.len();
            let sizes = field.shape.iter().zip(&other.shape);
            fits.then(|| ColumnSpec {
                shape: sizes.map(|(own, other)| own.filter(|_| own == other)).collect(),
                optional: field.optional || other.optional,
                ..field.clone()
            })
        });
        let fields: Option<Vec<ColumnSpec>> = fields.collect();
        fields
            .filter(|fields| fields.len() == other.len())
            .map(|fields| Self {
                fields,
                unknown: false,
            })
    }

    /// The same with one more dimension in front of each field.
    #[must_use]
    pub fn batched(mut self, rows: Option<u64>) -> Self {
        for field in &mut self.fields {
            field.shape.insert(0, rows);
        }
        self
    }
}

impl fmt::Display for ElementSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unknown {
            return f.write_str("unknown");
        }
        for (number, field) in self.iter().enumerate() {
            let separator = if number > 0 { ", " } else { "" };
            let optional = if field.optional { "?" } else { "" };
            write!(
                f,
                "{separator}{}: {}{}{optional}",
                field.name,
                field.dtype,
                sizes_text(&field.shape)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_out_where_nothing_else_sees_it() {
        let home = crate::recycle::Recycler::new(100);
        let array = || {
            let mut memory = home.take(4).unwrap();
            memory.copy_from_slice(&[1, 2, 3, 4]);
            Array::recycled(DType::UInt8, [2, 2], memory).unwrap()
        };
        let alone = array().reshape([4]).unwrap();
        let place = alone.bytes().unwrap().as_ptr();
        let memory = alone.into_memory();
        assert_eq!((memory.as_ptr(), &*memory), (place, &[1, 2, 3, 4][..]));
        drop(memory);
        let again = array();
        assert_eq!(again.bytes().unwrap().as_ptr(), place, "it was used again");
        let (copy, row) = (again.clone(), again.row(1).unwrap());
        assert_ne!(again.into_memory().as_ptr(), place);
        assert_eq!((copy.num_elements(), &**row.bytes().unwrap()), (4, &[3, 4][..]));
        drop(copy);
        // A row that is left keeps all of it.
        assert_ne!(array().bytes().unwrap().as_ptr(), place);
        assert_eq!(&**row.bytes().unwrap(), &[3, 4]);
        drop(row);
        let own = Array::new(DType::UInt8, [3], vec![5, 6, 7]).unwrap();
        let place = own.bytes().unwrap().as_ptr();
        assert_eq!(own.into_memory().as_ptr(), place);
    }

    #[test]
    fn arrays_are_checked_and_share_their_data() {
        let array = Array::of(&[1u16, 2, 3, 4, 5, 6])
            .unwrap()
            .reshape([3, 2])
            .unwrap();
        let row = array.row(1).unwrap();
        assert_eq!((row.shape(), row.to_vec::<u16>()), (&[2][..], Some(vec![3, 4])));
        assert_eq!(
            row.bytes().unwrap().as_ptr(),
            array.bytes().unwrap()[4..].as_ptr(),
            "no copy"
        );
        assert_eq!(array.rows(1, 3).unwrap().shape(), [2, 2]);
        assert_eq!(array.rows(2, 4), None);
        assert_eq!(array.row(usize::MAX), None);
        assert_eq!(Array::scalar(1u8).row(0), None);
        assert!(array.clone().reshape([7]).is_err());
        assert!(Array::new(DType::Float64, [usize::MAX, 2], vec![]).is_err());
        assert!(Array::new(DType::String, [0], vec![]).is_err());
        assert_eq!(Array::scalar(true).item::<bool>(), Some(true));
        assert_eq!(Array::scalar(1.5f32).item::<f64>(), None);
        let strings: Vec<Bytes> = ["a", "b", "c", "d"].map(Bytes::from).to_vec();
        let strings = Array::strings([2, 2], strings).unwrap();
        assert_eq!(strings.row(1).unwrap().as_strings(), ["c", "d"]);
        assert!(Array::strings([3], vec![Bytes::new()]).is_err());
        assert_eq!(Array::string("x").as_string().unwrap(), "x");
    }

    #[test]
    fn elements_keep_the_order_of_their_names() {
        let mut element = Element::from_iter([("b", Array::scalar(1u8)), ("a", Array::scalar(2u8))]);
        element.set("b", Array::scalar(3u8));
        element.set("c", Value::Missing);
        assert_eq!(element.names().collect::<Vec<_>>(), ["b", "a", "c"]);
        assert_eq!(element.array("b").unwrap().item::<u8>(), Some(3));
        let text = element.array("c").unwrap_err().to_string();
        assert_eq!(text, "`c` is a missing value, wanted an array");
        let text = element.array("d").unwrap_err().to_string();
        assert_eq!(text, "there is no value `d`; the element has `b`, `a`, `c`");
        assert_eq!(element.remove("a").unwrap().num_bytes(), 1);
        assert_eq!(element.len(), 2);
    }
}
