//! Numbers of another type, labels, shapes, and the names of an element.

use std::fmt;

use prep_formats::value::DType;

use super::image::{check_made, check_type};
use crate::element::{Array, Element, ElementSpec, Number};
use crate::error::{Error, Result};
use crate::recycle::filled;
use crate::transform::{Generator, Transform};

/// Calls a function with the Rust type of a number type: `with_type!(dtype, T => expression, else => expression)`.
macro_rules! with_type {
    ($dtype:expr, $number:ident => $do:expr, else => $other:expr) => {
        match $dtype {
            DType::Bool => {
                type $number = bool;
                $do
            }
            DType::UInt8 => {
                type $number = u8;
                $do
            }
            DType::Int8 => {
                type $number = i8;
                $do
            }
            DType::UInt16 => {
                type $number = u16;
                $do
            }
            DType::Int16 => {
                type $number = i16;
                $do
            }
            DType::UInt32 => {
                type $number = u32;
                $do
            }
            DType::Int32 => {
                type $number = i32;
                $do
            }
            DType::UInt64 => {
                type $number = u64;
                $do
            }
            DType::Int64 => {
                type $number = i64;
                $do
            }
            DType::Float32 => {
                type $number = f32;
                $do
            }
            DType::Float64 => {
                type $number = f64;
                $do
            }
            _ => $other,
        }
    };
}

/// A number on its way from one type to another, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scalar {
    Whole(i128),
    Float(f64),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
        }
    }
}

/// Numbers to and from [`Scalar`].
trait Convert: Number {
    fn widen(self) -> Scalar;
    /// `None` if it is out of range.
    fn narrow(value: Scalar) -> Option<Self>;
}

macro_rules! whole {
    ($($number:ty),*) => {$(
        impl Convert for $number {
            fn widen(self) -> Scalar {
                Scalar::Whole(self.into())
            }
            fn narrow(value: Scalar) -> Option<Self> {
                match value {
                    Scalar::Whole(value) => value.try_into().ok(),
                    // No float beyond 2^64 fits, so the conversion to i128 loses nothing that counts.
                    Scalar::Float(value) if value.is_finite() => (value as i128).try_into().ok(),
                    Scalar::Float(_) => None,
                }
            }
        }
    )*};
}

whole!(u8, i8, u16, i16, u32, i32, u64, i64);

impl Convert for bool {
    fn widen(self) -> Scalar {
        Scalar::Whole(self.into())
    }

    fn narrow(value: Scalar) -> Option<Self> {
        Some(match value {
            Scalar::Whole(value) => value != 0,
            Scalar::Float(value) => value != 0.0,
        })
    }
}

impl Convert for f32 {
    fn widen(self) -> Scalar {
        Scalar::Float(self.into())
    }

    fn narrow(value: Scalar) -> Option<Self> {
        Some(match value {
            Scalar::Whole(value) => value as Self,
            Scalar::Float(value) => value as Self,
        })
    }
}

impl Convert for f64 {
    fn widen(self) -> Scalar {
        Scalar::Float(self)
    }

    fn narrow(value: Scalar) -> Option<Self> {
        Some(match value {
            Scalar::Whole(value) => value as Self,
            Scalar::Float(value) => value,
        })
    }
}

/// What can be converted.
const NUMBERS: &[DType] = &[
    DType::Bool,
    DType::UInt8,
    DType::Int8,
    DType::UInt16,
    DType::Int16,
    DType::UInt32,
    DType::Int32,
    DType::UInt64,
    DType::Int64,
    DType::Float32,
    DType::Float64,
];

/// The numbers of an array, widened.
fn widened(feature: &str, array: &Array) -> Result<Vec<Scalar>> {
    check_type(feature, array.dtype(), NUMBERS)?;
    let data = array.bytes().map_or(&[][..], |data| data);
    Ok(
        with_type!(array.dtype(), T => data.chunks_exact(size_of::<T>()).map(|bytes| T::get(bytes).widen()).collect(), else => Vec::new()),
    )
}

/// Numbers in another type.
fn narrowed(feature: &str, dtype: DType, values: impl Iterator<Item = Scalar>) -> Result<Vec<u8>> {
    fn all<T: Convert>(feature: &str, values: impl Iterator<Item = Scalar>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for value in values {
            let narrow = T::narrow(value).ok_or_else(|| {
                Error::Element(format!(
                    "`{feature}` has the value {value}, which {} cannot hold",
                    T::DTYPE
                ))
            })?;
            narrow.put(&mut out);
        }
        Ok(out)
    }
    check_made(feature, dtype, NUMBERS)?;
    with_type!(dtype, T => all::<T>(feature, values), else => Ok(Vec::new()))
}

/// Turns numbers into another type, as NumPy's `astype`: whole numbers to floats are rounded to the nearest, floats to whole numbers lose their
/// fraction (1.5 becomes 1, -1.5 becomes -1), all but 0 becomes true, and a `float64` beyond the range of `float32` becomes infinite.
///
/// Unlike there nothing wraps: a value that a whole type cannot hold, such as 300 or NaN in `uint8`, is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast {
    /// Name of the array. Any numbers but half floats.
    pub feature: String,
    /// The type wanted: any number type but half floats.
    pub dtype: DType,
}

impl Transform for Cast {
    fn name(&self) -> String {
        "cast".into()
    }

    fn parameters(&self) -> String {
        format!("feature={:?}, dtype={}", self.feature, self.dtype)
    }

    fn check(&self) -> Result<()> {
        check_made(&self.feature, self.dtype, NUMBERS)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let field = input.field(&self.feature)?;
        check_type(&self.feature, field.dtype, NUMBERS)?;
        let mut spec = input.clone();
        spec.set(&self.feature, self.dtype, field.shape.clone());
        Ok(spec)
    }

    fn apply(&self, mut element: Element, _: &mut Generator) -> Result<Element> {
        let array = element.array(&self.feature)?;
        if array.dtype() == self.dtype {
            return Ok(element);
        }
        let values = widened(&self.feature, array)?;
        let shape = array.shape().to_vec();
        let data = narrowed(&self.feature, self.dtype, values.into_iter())?;
        element.set(&*self.feature, Array::new(self.dtype, shape, data)?);
        Ok(element)
    }
}

/// Turns labels into rows of `depth` numbers, 1 at the label's place and 0 elsewhere. A label below 0 or of `depth` and more is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct OneHot {
    /// Name of the labels: whole numbers of any shape.
    pub feature: String,
    /// How many labels there are, below 2^31.
    pub depth: usize,
    /// Type of the result: any number type but half floats.
    pub dtype: DType,
}

const LABELS: &[DType] = &[
    DType::UInt8,
    DType::Int8,
    DType::UInt16,
    DType::Int16,
    DType::UInt32,
    DType::Int32,
    DType::UInt64,
    DType::Int64,
];

impl Transform for OneHot {
    fn name(&self) -> String {
        "one_hot".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, depth={}, dtype={}",
            self.feature, self.depth, self.dtype
        )
    }

    fn check(&self) -> Result<()> {
        const MOST: usize = i32::MAX as usize;
        if !(1..=MOST).contains(&self.depth) {
            return Err(Error::Element(format!(
                "a depth of {}: wanted 1 to {MOST}",
                self.depth
            )));
        }
        check_made(&self.feature, self.dtype, NUMBERS)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let field = input.field(&self.feature)?;
        check_type(&self.feature, field.dtype, LABELS)?;
        let mut shape = field.shape.clone();
        shape.push(Some(self.depth as u64));
        let mut spec = input.clone();
        spec.set(&self.feature, self.dtype, shape);
        Ok(spec)
    }

    fn apply(&self, mut element: Element, _: &mut Generator) -> Result<Element> {
        self.check()?;
        let array = element.array(&self.feature)?;
        check_type(&self.feature, array.dtype(), LABELS)?;
        let one = narrowed(&self.feature, self.dtype, std::iter::once(Scalar::Whole(1)))?;
        let labels = widened(&self.feature, array)?;
        let mut data = filled(&vec![0; one.len()], &[labels.len(), self.depth])?;
        for (row, label) in labels.iter().enumerate() {
            let place = match *label {
                Scalar::Whole(label) => usize::try_from(label).ok().filter(|&label| label < self.depth),
                Scalar::Float(_) => None,
            };
            let place = place.ok_or_else(|| {
                Error::Element(format!(
                    "`{}` has the label {label}, wanted 0 to {}",
                    self.feature,
                    self.depth - 1
                ))
            })?;
            data[(row * self.depth + place) * one.len()..][..one.len()].copy_from_slice(&one);
        }
        let mut shape = array.shape().to_vec();
        shape.push(self.depth);
        element.set(&*self.feature, Array::new(self.dtype, shape, data)?);
        Ok(element)
    }
}

/// Brings an array to a fixed shape: each dimension is cut at its end, or filled up there with a value.
#[derive(Debug, Clone, PartialEq)]
pub struct PadOrTruncate {
    /// Name of the array, of any numbers but half floats and of one or more dimensions.
    pub feature: String,
    /// The shape wanted, of as many dimensions.
    pub shape: Vec<usize>,
    /// What it is filled up with: a number that the array's type can hold.
    pub value: f64,
}

impl PadOrTruncate {
    /// The bytes of the value.
    fn fill(&self, dtype: DType, dimensions: usize) -> Result<Vec<u8>> {
        self.check()?;
        if dimensions != self.shape.len() || dimensions == 0 {
            return Err(Error::Element(format!(
                "`{}` has {dimensions} dimensions, which cannot become {:?}",
                self.feature, self.shape
            )));
        }
        check_type(&self.feature, dtype, NUMBERS)?;
        narrowed(&self.feature, dtype, std::iter::once(Scalar::Float(self.value)))
    }
}

impl Transform for PadOrTruncate {
    fn name(&self) -> String {
        "pad_or_truncate".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, shape={:?}, value={:?}",
            self.feature, self.shape, self.value
        )
    }

    fn check(&self) -> Result<()> {
        let bytes = self
            .shape
            .iter()
            .try_fold(8usize, |bytes, &size| bytes.checked_mul(size));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::Element(format!(
                "{:?} is a shape larger than any memory",
                self.shape
            )));
        }
        Ok(())
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let field = input.field(&self.feature)?;
        self.fill(field.dtype, field.shape.len())?;
        let mut spec = input.clone();
        let shape: Vec<_> = self.shape.iter().map(|&size| Some(size as u64)).collect();
        spec.set(&self.feature, field.dtype, shape);
        Ok(spec)
    }

    fn apply(&self, mut element: Element, _: &mut Generator) -> Result<Element> {
        let array = element.array(&self.feature)?;
        let value = self.fill(array.dtype(), array.shape().len())?;
        let bytes = value.len();
        let source = array.bytes().map_or(&[][..], |data| data);
        let mut data = filled(&value, &self.shape)?;
        // Row by row of the last dimension; `place` counts through the others as far as both shapes go.
        let common: Vec<usize> = self
            .shape
            .iter()
            .zip(array.shape())
            .map(|(&wanted, &own)| wanted.min(own))
            .collect();
        if let Some((&run, outer)) = common.split_last().filter(|_| !common.contains(&0)) {
            let mut place = vec![0; outer.len()];
            loop {
                let start = |shape: &[usize]| {
                    place
                        .iter()
                        .zip(shape)
                        .fold(0, |sum, (&at, &size)| sum * size + at)
                        * shape[outer.len()]
                        * bytes
                };
                let (from, to) = (start(array.shape()), start(&self.shape));
                data[to..to + run * bytes].copy_from_slice(&source[from..from + run * bytes]);
                let Some(next) = (0..outer.len())
                    .rev()
                    .find(|&dimension| place[dimension] + 1 < outer[dimension])
                else {
                    break;
                };
                place[next] += 1;
                place[next + 1..].fill(0);
            }
        }
        let made = Array::new(array.dtype(), self.shape.clone(), data)?;
        element.set(&*self.feature, made);
        Ok(element)
    }
}

/// Keeps the values of some names, in the order given here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Select {
    /// The names.
    pub features: Vec<String>,
}

impl Transform for Select {
    fn name(&self) -> String {
        "select".into()
    }

    fn parameters(&self) -> String {
        format!("features={:?}", self.features)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let mut spec = ElementSpec::new();
        for feature in &self.features {
            spec.push(input.field(feature)?.clone());
        }
        Ok(spec)
    }

    fn apply(&self, mut element: Element, _: &mut Generator) -> Result<Element> {
        // What is not selected is taken out of the element, so that it keeps where it came from.
        let mut kept = Vec::with_capacity(self.features.len());
        for feature in &self.features {
            let value = element.get(feature).cloned();
            kept.push((feature.as_str(), value.ok_or_else(|| element.no_value(feature))?));
        }
        let names: Vec<String> = element.names().map(str::to_string).collect();
        for name in &names {
            element.remove(name);
        }
        for (name, value) in kept {
            element.set(name, value);
        }
        Ok(element)
    }
}

/// Leaves out the values of some names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drop {
    /// The names.
    pub features: Vec<String>,
}

impl Transform for Drop {
    fn name(&self) -> String {
        "drop".into()
    }

    fn parameters(&self) -> String {
        format!("features={:?}", self.features)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let mut spec = input.clone();
        for feature in &self.features {
            input.field(feature)?;
            spec.remove(feature);
        }
        Ok(spec)
    }

    fn apply(&self, mut element: Element, _: &mut Generator) -> Result<Element> {
        for feature in &self.features {
            if element.remove(feature).is_none() {
                return Err(element.no_value(feature));
            }
        }
        Ok(element)
    }
}

/// Gives values other names. They move to the end, in the order given here; all names are taken out before the first is put back, so two
/// can change places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// Pairs of the name that is there and the one wanted.
    pub names: Vec<(String, String)>,
}

impl Rename {
    fn taken(&self, name: &str) -> Error {
        Error::Element(format!(
            "a value cannot be renamed to `{name}`: there is one of that name"
        ))
    }
}

impl Transform for Rename {
    fn name(&self) -> String {
        "rename".into()
    }

    fn parameters(&self) -> String {
        format!("names={:?}", self.names)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let mut spec = input.clone();
        for (from, _) in &self.names {
            spec.field(from)?;
            spec.remove(from);
        }
        for (from, to) in &self.names {
            if spec.get(to).is_some() {
                return Err(self.taken(to));
            }
            let mut field = input.field(from)?.clone();
            (field.name, field.path) = (to.clone(), vec![to.clone()]);
            spec.push(field);
        }
        Ok(spec)
    }

    fn apply(&self, mut element: Element, _: &mut Generator) -> Result<Element> {
        let mut moved = Vec::with_capacity(self.names.len());
        for (from, to) in &self.names {
            let value = element.remove(from).ok_or_else(|| element.no_value(from))?;
            moved.push((to.as_str(), value));
        }
        for (to, value) in moved {
            if element.get(to).is_some() {
                return Err(self.taken(to));
            }
            element.set(to, value);
        }
        Ok(element)
    }
}
