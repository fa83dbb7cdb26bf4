//! Several elements to one, with a dimension more.

use std::sync::Arc;

use bytes::Bytes;
use prep_formats::value::DType;

use super::{Cursor, ENDLESS, Facts, Item, IterStage, Machine, MapStage, Parent, Stream, Text, guarded};
use crate::element::{Array, Element, ElementSpec, Value};
use crate::error::{Error, Result};
use crate::meter;
use crate::recycle::{Recycler, filled};

/// Bytes of the batches that are kept to be filled again.
const BATCHES_AT_REST: usize = 256 << 20;

/// What a function of the caller's makes of the elements of a batch.
pub(crate) type Combine = dyn Fn(Vec<Element>) -> Result<Element> + Send + Sync;

/// How elements become a batch.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Stacking {
    /// Arrays of the same shape are stacked; others are an error.
    #[default]
    Equal,
    /// Arrays are padded with zeros, and strings with empty ones, to the largest of the batch in each dimension.
    Padded,
    /// Arrays of different shapes stay apart, as a list.
    Ragged,
    /// A function makes the batch.
    Custom(Custom),
}

/// A function that makes batches.
#[derive(Clone)]
pub struct Custom {
    name: Arc<str>,
    spec: ElementSpec,
    combine: Arc<Combine>,
}

impl Custom {
    /// `name` stands for it in states; `spec` is what it makes. A pure function of the elements, called by several threads at the same time.
    pub fn new(
        name: &str,
        spec: ElementSpec,
        combine: impl Fn(Vec<Element>) -> Result<Element> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            spec,
            combine: Arc::new(combine),
        }
    }
}

impl std::fmt::Debug for Stacking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

impl std::fmt::Debug for Custom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Custom")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Stacking {
    fn name(&self) -> String {
        match self {
            Self::Equal => "equal".into(),
            Self::Padded => "padded".into(),
            Self::Ragged => "ragged".into(),
            Self::Custom(custom) => format!("custom:{}", custom.name.replace('\n', " ")),
        }
    }
}

/// How batches are made.
///
/// # Examples
/// ```
/// use prep_loader::{BatchOptions, Stacking};
///
/// let options = BatchOptions::new(32).drop_remainder(true).stacking(Stacking::Padded);
/// assert_eq!(options.size, 32);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BatchOptions {
    /// Elements of a batch.
    pub size: u64,
    /// Leaves out a last batch that is not full.
    pub drop_remainder: bool,
    /// How they become one.
    pub stacking: Stacking,
}

impl BatchOptions {
    /// Batches of `size` elements of equal shapes, the last one as short as it is.
    pub fn new(size: u64) -> Self {
        Self {
            size,
            drop_remainder: false,
            stacking: Stacking::Equal,
        }
    }

    /// Leaves out a last batch that is not full. Default false: each element is seen.
    #[must_use]
    pub fn drop_remainder(mut self, drop_remainder: bool) -> Self {
        self.drop_remainder = drop_remainder;
        self
    }

    /// Sets how elements become a batch. Default: stacked, of equal shapes.
    #[must_use]
    pub fn stacking(mut self, stacking: Stacking) -> Self {
        self.stacking = stacking;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.size {
            1..=ENDLESS => Ok(()),
            size => Err(Error::Options(format!(
                "the batch size is {size}, wanted 1 to 2^63"
            ))),
        }
    }

    /// Batches of so many elements.
    fn batches(&self, elements: u64) -> u64 {
        match (elements, self.drop_remainder) {
            (ENDLESS.., _) => ENDLESS,
            (elements, true) => elements / self.size,
            (elements, false) => elements.div_ceil(self.size),
        }
    }

    /// What a batch looks like.
    pub(crate) fn spec(&self, input: &ElementSpec) -> ElementSpec {
        match &self.stacking {
            Stacking::Custom(custom) => custom.spec.clone(),
            _ => input.clone().batched(self.drop_remainder.then_some(self.size)),
        }
    }

    pub(crate) fn describe(&self, text: &mut Text) {
        text.line(format!(
            "batch size={} drop_remainder={} stacking={}",
            self.size,
            self.drop_remainder,
            self.stacking.name()
        ));
    }

    /// The line of a batch that is dealt to hosts: its size is not said.
    pub(crate) fn describe_dealt(&self, text: &mut Text) {
        text.line(format!("batch stacking={}", self.stacking.name()));
    }
}

/// Makes batches; cheap to clone.
#[derive(Clone)]
pub(crate) struct Batcher {
    pub(crate) options: BatchOptions,
    buffers: Arc<Recycler>,
}

impl Batcher {
    pub(crate) fn new(options: BatchOptions) -> Self {
        Self {
            options,
            buffers: Recycler::new(BATCHES_AT_REST),
        }
    }

    /// Makes a batch of at least one element. `position` is for errors.
    pub(crate) fn make(&self, elements: Vec<Element>, position: u64) -> Result<Element> {
        let origin = elements.iter().find_map(|element| element.origin().cloned());
        let name = match &self.options.stacking {
            Stacking::Custom(custom) => &*custom.name,
            _ => "batch",
        };
        let mut batch = guarded(name, position, origin.as_ref(), || match &self.options.stacking {
            Stacking::Custom(custom) => (custom.combine)(elements),
            stacking => stack(&elements, stacking, &self.buffers),
        })?;
        batch.set_origin(origin);
        Ok(batch)
    }
}

/// A batch without rows.
pub(crate) fn empty(spec: &ElementSpec) -> Element {
    let field = |field: &prep_formats::columns::ColumnSpec| {
        let mut shape: Vec<usize> = field
            .shape
            .iter()
            .map(|size| size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0))
            .collect();
        if let Some(rows) = shape.first_mut() {
            *rows = 0;
        }
        let array = match field.dtype {
            DType::String => Array::strings(shape, Vec::new()),
            dtype => Array::new(dtype, shape, Bytes::new()),
        };
        let value = array.map_or_else(|_| Value::List([].into()), Value::Array);
        (field.name.clone(), value)
    };
    spec.iter().map(field).collect()
}

/// Stacks the values of each name, which are of one shape, as [`Stacking::Equal`] does: for functions that make batches of their own.
///
/// # Errors
/// Values of different names, types or shapes.
pub fn stack_elements(elements: &[Element]) -> Result<Element> {
    stack(elements, &Stacking::Equal, &Recycler::new(0))
}

/// Stacks the values of each name.
fn stack(elements: &[Element], stacking: &Stacking, buffers: &Arc<Recycler>) -> Result<Element> {
    let Some(first) = elements.first() else {
        return Ok(Element::new());
    };
    let mut batch = Element::new();
    for (number, (name, _)) in first.shared_fields().iter().enumerate() {
        let mut values = Vec::with_capacity(elements.len());
        for element in elements {
            // Names come in one order nearly always.
            let value = match element.shared_fields().get(number) {
                Some((own, value)) if own == name => value,
                _ => element.get(name).ok_or_else(|| element.no_value(name))?,
            };
            values.push(value);
        }
        let stacked = stack_values(&values, stacking, buffers).map_err(|error| match error {
            Error::Element(reason) => Error::Element(format!("`{name}`: {reason}")),
            other => other,
        })?;
        batch.set(Arc::clone(name), stacked);
    }
    if let Some(odd) = elements.iter().find(|element| element.len() != first.len()) {
        let names = |element: &Element| element.names().collect::<Vec<_>>().join(", ");
        return Err(Error::Element(format!(
            "one element has {}, another {}",
            names(first),
            names(odd)
        )));
    }
    Ok(batch)
}

fn stack_values(values: &[&Value], stacking: &Stacking, buffers: &Arc<Recycler>) -> Result<Value> {
    let arrays: Option<Vec<&Array>> = values.iter().map(|value| value.as_array()).collect();
    let list = || Value::List(values.iter().map(|&value| value.clone()).collect());
    // What is missing or nested has no shape to stack.
    let Some(arrays) = arrays else {
        return Ok(list());
    };
    let (dtype, shape) = (arrays[0].dtype(), arrays[0].shape());
    if let Some(odd) = arrays.iter().find(|array| array.dtype() != dtype) {
        return Err(Error::Element(format!(
            "one element has {dtype}, another {}",
            odd.dtype()
        )));
    }
    let Some(odd) = arrays.iter().find(|array| array.shape() != shape) else {
        return stack_equal(&arrays, buffers).map(Value::Array);
    };
    match stacking {
        Stacking::Ragged => Ok(list()),
        Stacking::Padded if odd.shape().len() == shape.len() => pad(&arrays).map(Value::Array),
        _ => Err(Error::Element(format!(
            "one element has shape {shape:?}, another {:?}; make them equal, or use {} stacking",
            odd.shape(),
            match odd.shape().len() == shape.len() {
                true => "padded or ragged",
                // Padding adds no dimensions.
                false => "ragged",
            }
        ))),
    }
}

fn stack_equal(arrays: &[&Array], buffers: &Arc<Recycler>) -> Result<Array> {
    let mut shape = vec![arrays.len()];
    shape.extend_from_slice(arrays[0].shape());
    if arrays[0].dtype() == DType::String {
        let strings: Vec<Bytes> = arrays
            .iter()
            .flat_map(|array| array.as_strings())
            .cloned()
            .collect();
        return Array::strings(shape, strings);
    }
    let row = arrays[0].bytes().map_or(0, Bytes::len);
    let mut data = buffers.take(row.saturating_mul(arrays.len()))?;
    if row > 0 {
        for (out, array) in data.chunks_exact_mut(row).zip(arrays) {
            out.copy_from_slice(array.bytes().map_or(&[], |bytes| bytes));
        }
    }
    Array::recycled(arrays[0].dtype(), shape, data)
}

/// Pads arrays of one rank to the largest size in each dimension, and stacks them.
fn pad(arrays: &[&Array]) -> Result<Array> {
    let rank = arrays[0].shape().len();
    let largest: Vec<usize> = (0..rank)
        .map(|at| arrays.iter().map(|array| array.shape()[at]).max().unwrap_or(0))
        .collect();
    let mut shape = vec![arrays.len()];
    shape.extend_from_slice(&largest);
    let elements = largest
        .iter()
        .try_fold(arrays.len(), |product, &size| product.checked_mul(size))
        .and_then(|elements| elements.checked_mul(arrays[0].dtype().num_bytes().max(1)))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| Error::Element(format!("padded to {shape:?} it is larger than memory can hold")))?
        / arrays[0].dtype().num_bytes().max(1);
    let each = elements / arrays.len();
    if arrays[0].dtype() == DType::String {
        let mut strings = vec![Bytes::new(); elements];
        for (row, array) in arrays.iter().enumerate() {
            let mut from = array.as_strings().iter();
            runs(array.shape(), &largest, |start, length| {
                for (to, from) in strings[row * each + start..][..length].iter_mut().zip(&mut from) {
                    to.clone_from(from);
                }
            });
        }
        return Array::strings(shape, strings);
    }
    let size = arrays[0].dtype().num_bytes();
    let mut data = filled(&[0], &[elements * size])?;
    for (row, array) in arrays.iter().enumerate() {
        let mut from = array.bytes().map_or(&[][..], |bytes| bytes);
        runs(array.shape(), &largest, |start, length| {
            let (run, rest) = from.split_at(length * size);
            data[(row * each + start) * size..][..run.len()].copy_from_slice(run);
            from = rest;
        });
    }
    Array::new(arrays[0].dtype(), shape, data)
}

/// Where the innermost rows of an array of `shape` lie in one of `outer`: start and length of each, in elements.
fn runs(shape: &[usize], outer: &[usize], mut visit: impl FnMut(usize, usize)) {
    fn descend(shape: &[usize], outer: &[usize], start: usize, visit: &mut impl FnMut(usize, usize)) {
        match shape {
            [] => visit(start, 1),
            [last] => visit(start, *last),
            [first, rest @ ..] => {
                let stride: usize = outer[1..].iter().product();
                for at in 0..*first {
                    descend(rest, &outer[1..], start + at * stride, visit);
                }
            }
        }
    }
    if !shape.contains(&0) {
        descend(shape, outer, 0, &mut visit);
    }
}

/// Batches of random access, inside an epoch each.
pub(crate) struct BatchMapStage {
    parent: Arc<dyn MapStage>,
    batcher: Batcher,
    facts: Facts,
}

impl BatchMapStage {
    pub(crate) fn new(parent: Arc<dyn MapStage>, options: BatchOptions) -> Result<Self> {
        options.check()?;
        let facts = parent.facts();
        if facts.sparse {
            return Err(Error::Options(
                "a filter leaves gaps in random access, which cannot be batched: go on as a stream (`to_iter`, in \
                 Python `to_iter_dataset`)"
                    .into(),
            ));
        }
        let length = options.batches(facts.length);
        Ok(Self {
            facts: Facts {
                length,
                spec: options.spec(&facts.spec),
                ..facts.clone()
            },
            parent,
            batcher: Batcher::new(options),
        })
    }
}

impl MapStage for BatchMapStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let (own, rows) = (self.facts.length.max(1), self.parent.facts().length);
        for &position in positions {
            let (epoch, number) = (position / own, position % own);
            let start = number.saturating_mul(self.batcher.options.size);
            let end = rows.min(start.saturating_add(self.batcher.options.size));
            let wanted: Vec<u64> = (start..end).map(|offset| epoch * rows + offset).collect();
            let mut got = Vec::with_capacity(wanted.len());
            self.parent.get_many(&wanted, &mut got);
            items.push(meter::kept(got).and_then(|elements| match elements.is_empty() {
                // All of its records are damaged.
                true => Ok(None),
                false => self.batcher.make(elements, position).map(Some),
            }));
        }
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        self.batcher.options.describe(text);
    }
}

/// Batches of each virtual stream.
pub(crate) struct BatchIterStage {
    parent: Parent,
    batcher: Batcher,
    spec: ElementSpec,
}

impl BatchIterStage {
    pub(crate) fn new(parent: Parent, options: BatchOptions) -> Result<Self> {
        options.check()?;
        Ok(Self {
            spec: options.spec(parent.spec()),
            parent,
            batcher: Batcher::new(options),
        })
    }
}

impl IterStage for BatchIterStage {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }

    fn is_endless(&self) -> bool {
        self.parent.is_endless()
    }

    fn length(&self, stream: &Stream) -> Option<u64> {
        self.parent
            .length(stream)
            .map(|length| self.batcher.options.batches(length))
    }

    fn at(&self, stream: &Stream, given: u64, cursor: &mut Vec<u64>) -> Option<u64> {
        let taken = given.saturating_mul(self.batcher.options.size);
        let reach = self
            .parent
            .at(stream, taken.min(self.parent.length(stream)?), cursor)?;
        cursor.push(stream.first_number() + given);
        Some(reach)
    }

    fn open(&self, stream: Stream, mut cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        let parent = self.parent.open(stream.clone(), cursor.as_deref_mut())?;
        let number = stream.next_number(cursor)?;
        Ok(Box::new(BatchMachine {
            parent,
            batcher: self.batcher.clone(),
            stream,
            number,
        }))
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        self.batcher.options.describe(text);
    }
}

/// Between two batches nothing is held.
struct BatchMachine {
    parent: Box<dyn Machine>,
    batcher: Batcher,
    stream: Stream,
    number: u64,
}

impl Machine for BatchMachine {
    fn next(&mut self) -> Item {
        let mut elements = Vec::new();
        while (elements.len() as u64) < self.batcher.options.size {
            match self.parent.next()? {
                Some(element) => elements.push(element),
                None if elements.is_empty() || self.batcher.options.drop_remainder => return Ok(None),
                None => break,
            }
        }
        let position = self.stream.position(self.number);
        self.number += 1;
        self.batcher.make(elements, position).map(Some)
    }

    fn reach(&self) -> u64 {
        self.parent.reach()
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        self.parent.save(cursor);
        cursor.push(self.number);
    }
}

/// The rows of a batch, as [`IterDataset::unbatch`](crate::IterDataset::unbatch) gives them.
///
/// # Errors
/// Values without a first dimension, or whose first dimensions differ.
pub fn unstack_element(batch: Element) -> Result<Vec<Element>> {
    let size = |value: &Value| match value {
        Value::List(values) => Some(values.len()),
        value => value.as_array().and_then(|array| array.shape().first().copied()),
    };
    let mut number = None;
    for (name, value) in batch.iter() {
        let Some(own) = size(value) else {
            return Err(Error::Element(format!(
                "`{name}` is {}, which has no rows",
                value.describe()
            )));
        };
        if *number.get_or_insert(own) != own {
            return Err(Error::Element(format!(
                "`{name}` has {own} rows, another value {}",
                number.unwrap_or(0)
            )));
        }
    }
    let row = |value: &Value, at: usize| match value {
        Value::List(values) => values.get(at).cloned(),
        value => value.as_array().and_then(|array| array.row(at)).map(Value::Array),
    };
    Ok((0..number.unwrap_or(0))
        .map(|at| {
            batch
                .shared_fields()
                .iter()
                .filter_map(|(name, value)| Some((Arc::clone(name), row(value, at)?)))
                .collect()
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(values: &[i32]) -> Element {
        Element::from_iter([("x", Array::of(values).unwrap())])
    }

    fn stack(elements: &[Element], stacking: &Stacking) -> Result<Element> {
        super::stack(elements, stacking, &Recycler::new(0))
    }

    #[test]
    fn arrays_are_stacked_padded_or_left_apart() {
        let rows = [element(&[1, 2]), element(&[3, 4])];
        let batch = stack(&rows, &Stacking::Equal).unwrap();
        assert_eq!(batch.array("x").unwrap().shape(), [2, 2]);
        assert_eq!(super::unstack_element(batch).unwrap(), rows);
        let rows = [element(&[1]), element(&[2, 3, 4])];
        let text = stack(&rows, &Stacking::Equal).unwrap_err().to_string();
        assert!(
            text.contains("`x`: one element has shape [1], another [3]"),
            "{text}"
        );
        assert!(
            text.ends_with("make them equal, or use padded or ragged stacking"),
            "{text}"
        );
        let flat = Element::from_iter([("x", Array::scalar(1i32))]);
        let text = stack(&[element(&[1]), flat], &Stacking::Padded)
            .unwrap_err()
            .to_string();
        assert!(
            text.ends_with("another []; make them equal, or use ragged stacking"),
            "{text}"
        );
        let padded = stack(&rows, &Stacking::Padded).unwrap();
        assert_eq!(
            padded.array("x").unwrap().to_vec::<i32>().unwrap(),
            [1, 0, 0, 2, 3, 4]
        );
        let ragged = stack(&rows, &Stacking::Ragged).unwrap();
        assert!(matches!(ragged.get("x"), Some(Value::List(values)) if values.len() == 2));
        assert_eq!(super::unstack_element(ragged).unwrap(), rows);
    }

    #[test]
    fn padding_goes_to_the_largest_of_each_dimension() {
        let array = |shape: [usize; 2], first: u8| {
            let data: Vec<u8> = (0..shape[0] * shape[1]).map(|at| first + at as u8).collect();
            Array::new(DType::UInt8, shape, data).unwrap()
        };
        let padded = pad(&[&array([2, 1], 1), &array([1, 3], 11), &array([0, 5], 0)]).unwrap();
        assert_eq!(padded.shape(), [3, 2, 5]);
        let mut wanted = vec![0u8; 30];
        (wanted[0], wanted[5]) = (1, 2);
        wanted[10..13].copy_from_slice(&[11, 12, 13]);
        assert_eq!(padded.to_vec::<u8>().unwrap(), wanted);
        let strings = |list: &[&'static str]| {
            Array::strings(
                [list.len()],
                list.iter().map(|&text| Bytes::from(text)).collect::<Vec<_>>(),
            )
            .unwrap()
        };
        let padded = pad(&[&strings(&["a"]), &strings(&["b", "c"])]).unwrap();
        assert_eq!(padded.as_strings(), ["a", "", "b", "c"]);
    }

    #[test]
    fn what_is_padded_beyond_memory_is_an_error() {
        let array = |shape: [usize; 2]| Array::new(DType::UInt8, shape, Vec::new()).unwrap();
        let error = pad(&[&array([1 << 30, 0]), &array([0, 1 << 30])]).unwrap_err();
        assert!(error.to_string().contains("there is no memory for"), "{error}");
    }

    #[test]
    fn elements_that_differ_are_named() {
        let other = Element::from_iter([("y", Array::scalar(1u8))]);
        let text = stack(&[element(&[1]), other], &Stacking::Equal)
            .unwrap_err()
            .to_string();
        assert!(text.contains("there is no value `x`"), "{text}");
        let mut more = element(&[1]);
        more.set("z", Array::scalar(1u8));
        let text = stack(&[element(&[1]), more], &Stacking::Equal)
            .unwrap_err()
            .to_string();
        assert!(text.contains("one element has x, another x, z"), "{text}");
        let floats = Element::from_iter([("x", Array::of(&[1f32]).unwrap())]);
        assert!(stack(&[element(&[1]), floats], &Stacking::Ragged).is_err());
    }
}
