//! The statistics of one feature.

use std::io::Read;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::example::FeatureView;
use crate::features::stored::Leaf;
use crate::features::{Encoding, Feature};
use crate::statistics::distinct::{Distinct, hash_bytes, hash_number};
use crate::statistics::lengths::Lengths;
use crate::statistics::pictures::Pictures;
use crate::statistics::sum::{ExactSum, mean_of};
use crate::value::{Class, DType, bfloat16_to_f32, half_to_f32};
use crate::{Error, Result};

/// Classes from this number on are counted together.
const MOST_LABELS: usize = 1 << 16;
/// Bytes of an unpacked tensor that are held at a time: a multiple of every element's.
const BLOCK_BYTES: usize = 8 << 10;

/// What the values of a feature are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Byte strings.
    Strings,
    /// Numbers in a list.
    Numbers(DType),
    /// The memory of numbers, as a zlib stream or not.
    Packed(DType, bool),
    Labels,
    Pictures,
}

/// How a feature is read.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) optional: bool,
    /// Whether there are sequences around it.
    is_sequence: bool,
    /// Whether it is a tensor of a varying number of elements.
    varies: bool,
    /// Whether an example that has it may have no values.
    may_be_empty: bool,
    /// How many values are stored for an element of the sequences around it.
    stored: u64,
}

impl Plan {
    pub(super) fn of(leaf: &Leaf) -> Self {
        let (kind, shape): (_, &[Option<u64>]) = match &leaf.feature {
            Feature::ClassLabel { .. } => (Kind::Labels, &[]),
            Feature::Image { .. } | Feature::LabeledImage { .. } => (Kind::Pictures, &[]),
            Feature::Scalar { dtype } => (listed(*dtype), &[]),
            Feature::BBox { .. } => (Kind::Numbers(DType::Float32), &[Some(4)]),
            Feature::Audio {
                lazy_decode: true, ..
            } => (Kind::Strings, &[]),
            Feature::Tensor {
                shape,
                dtype,
                encoding,
            }
            | Feature::Audio {
                shape,
                dtype,
                encoding,
                ..
            } => match encoding {
                Encoding::None => (listed(*dtype), shape),
                encoding => (Kind::Packed(*dtype, *encoding == Encoding::Zlib), shape),
            },
            _ => (Kind::Strings, &[]),
        };
        let stored = match kind {
            Kind::Packed(..) => 1,
            _ => shape
                .iter()
                .flatten()
                .fold(1u64, |product, size| product.saturating_mul(*size)),
        };
        let (is_sequence, varies) = (!leaf.levels.is_empty(), shape.contains(&None));
        Self {
            kind,
            optional: leaf.optional,
            is_sequence,
            varies,
            may_be_empty: is_sequence || varies || stored == 0,
            stored: stored.max(1),
        }
    }

    fn has_lengths(&self) -> bool {
        self.is_sequence || self.varies
    }
}

fn listed(dtype: DType) -> Kind {
    match dtype {
        DType::String => Kind::Strings,
        dtype => Kind::Numbers(dtype),
    }
}

/// What is counted of one feature.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Column {
    /// Examples that have it.
    examples: u64,
    missing: u64,
    /// Elements of all tensors and sequences.
    values: u64,
    distinct: Distinct,
    #[serde(skip_serializing_if = "Option::is_none")]
    integers: Option<Integers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    floats: Option<Floats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Labels>,
    /// Lengths of byte strings.
    #[serde(skip_serializing_if = "Option::is_none")]
    strings: Option<Lengths>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequences: Option<Lengths>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pictures: Option<Pictures>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Integers {
    range: Option<(i128, i128)>,
    sum: i128,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Floats {
    nan: u64,
    /// Negative and positive ones.
    infinite: [u64; 2],
    finite: u64,
    /// Bits of the least and the greatest finite one.
    range: Option<(u64, u64)>,
    sum: ExactSum,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Labels {
    /// By class, up to the last that there is.
    counts: Vec<u64>,
    /// -1: an example without one.
    none: u64,
    /// Of classes beyond those that are counted one by one.
    more: u64,
}

impl Integers {
    #[inline]
    fn add(&mut self, value: i128) {
        let (low, high) = self.range.unwrap_or((value, value));
        self.range = Some((low.min(value), high.max(value)));
        self.sum += value;
    }

    fn merge(&mut self, other: Self) {
        self.range = match (self.range, other.range) {
            (Some((low, high)), Some((other_low, other_high))) => {
                Some((low.min(other_low), high.max(other_high)))
            }
            (range, other) => range.or(other),
        };
        self.sum += other.sum;
    }
}

impl Floats {
    /// Adds a number, and gives the bits that stand for it: one for both zeros, one for all NaNs.
    #[inline]
    fn add(&mut self, value: f64) -> u64 {
        if value.is_nan() {
            self.nan += 1;
            return f64::NAN.to_bits();
        }
        if value.is_infinite() {
            self.infinite[usize::from(value > 0.0)] += 1;
            return value.to_bits();
        }
        // Minus zero becomes zero.
        let value = value + 0.0;
        self.finite += 1;
        self.sum.add(value);
        self.widen(value, value);
        value.to_bits()
    }

    #[inline]
    fn widen(&mut self, low: f64, high: f64) {
        self.range = Some(match self.range {
            None => (low.to_bits(), high.to_bits()),
            Some((least, greatest)) => (
                f64::from_bits(least).min(low).to_bits(),
                f64::from_bits(greatest).max(high).to_bits(),
            ),
        });
    }

    fn merge(&mut self, other: Self) {
        self.nan += other.nan;
        self.finite += other.finite;
        for (count, other) in self.infinite.iter_mut().zip(other.infinite) {
            *count += other;
        }
        if let Some((low, high)) = other.range {
            self.widen(f64::from_bits(low), f64::from_bits(high));
        }
        self.sum.merge(other.sum);
    }
}

impl Labels {
    fn add(&mut self, class: i64) {
        match usize::try_from(class) {
            Err(_) => self.none += 1,
            Ok(class) if class >= MOST_LABELS => self.more += 1,
            Ok(class) => {
                if class >= self.counts.len() {
                    self.counts.resize(class + 1, 0);
                }
                self.counts[class] += 1;
            }
        }
    }

    fn merge(&mut self, other: Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count += other;
        }
        self.none += other.none;
        self.more += other.more;
    }
}

/// Buffers for the numbers of a list.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    integers: Vec<i64>,
    floats: Vec<f32>,
    block: Vec<u8>,
}

/// An element of a tensor.
enum Element {
    Integer(i128),
    Float(f64),
}

impl Column {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut column = Self::default();
        match plan.kind {
            Kind::Strings => column.strings = Some(Lengths::default()),
            Kind::Labels => column.labels = Some(Labels::default()),
            Kind::Pictures => column.pictures = Some(Pictures::default()),
            Kind::Numbers(dtype) | Kind::Packed(dtype, _) => match dtype.class() {
                Class::Float => column.floats = Some(Floats::default()),
                _ => column.integers = Some(Integers::default()),
            },
        }
        column.sequences = plan.has_lengths().then(Lengths::default);
        column
    }

    /// Whether it counts the same things as another.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let counts = |column: &Self| {
            [
                column.integers.is_some(),
                column.floats.is_some(),
                column.labels.is_some(),
                column.strings.is_some(),
                column.sequences.is_some(),
                column.pictures.is_some(),
            ]
        };
        counts(self) == counts(other)
    }

    /// Adds what an example has. `lengths` is how many elements its outermost sequence has, where that is stored.
    pub(super) fn add(
        &mut self,
        plan: &Plan,
        view: Option<&FeatureView<'_>>,
        lengths: Option<u64>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let view = view.filter(|view| !matches!(view, FeatureView::None));
        // Other writers leave out the list of a sequence without elements.
        let is_there = match view {
            Some(view) => plan.may_be_empty || !view.is_empty(),
            None => plan.has_lengths() && !plan.optional,
        };
        if !is_there {
            self.missing += 1;
            return Ok(());
        }
        self.examples += 1;
        let before = self.values;
        let stored = view.map_or(0, FeatureView::len) as u64;
        if let Some(view) = view {
            self.add_values(plan, view, scratch)?;
        }
        if let Some(sequences) = &mut self.sequences {
            sequences.add(match lengths {
                Some(length) => length,
                None if plan.is_sequence => stored / plan.stored,
                None => self.values - before,
            });
        }
        Ok(())
    }

    fn add_values(&mut self, plan: &Plan, view: &FeatureView<'_>, scratch: &mut Scratch) -> Result<()> {
        match (plan.kind, view) {
            (Kind::Strings | Kind::Pictures, FeatureView::Bytes(list)) => {
                for bytes in list.iter() {
                    self.values += 1;
                    self.distinct.insert(hash_bytes(bytes));
                    if let Some(strings) = &mut self.strings {
                        strings.add(bytes.len() as u64);
                    }
                    if let Some(pictures) = &mut self.pictures {
                        pictures.add(bytes);
                    }
                }
            }
            (Kind::Packed(dtype, zlib), FeatureView::Bytes(list)) => {
                for packed in list.iter() {
                    if zlib {
                        self.add_inflated(dtype, packed, &mut scratch.block)?;
                    } else {
                        self.add_memory(dtype, packed)?;
                    }
                }
            }
            (Kind::Labels | Kind::Numbers(_), FeatureView::Int64(list)) => {
                scratch.integers.clear();
                list.append_to(&mut scratch.integers);
                self.values += scratch.integers.len() as u64;
                let is_unsigned = plan.kind == Kind::Numbers(DType::UInt64);
                for value in &scratch.integers {
                    self.distinct.insert(hash_number(value.cast_unsigned()));
                    if let Some(labels) = &mut self.labels {
                        labels.add(*value);
                    } else if let Some(integers) = &mut self.integers {
                        integers.add(match is_unsigned {
                            true => value.cast_unsigned().into(),
                            false => (*value).into(),
                        });
                    } else {
                        return Err(wrong_list("integers"));
                    }
                }
            }
            (Kind::Numbers(_), FeatureView::Float(list)) => {
                scratch.floats.clear();
                list.append_to(&mut scratch.floats);
                self.values += scratch.floats.len() as u64;
                let Some(floats) = &mut self.floats else {
                    return Err(wrong_list("floats"));
                };
                for value in &scratch.floats {
                    let bits = floats.add(f64::from(*value));
                    self.distinct.insert(hash_number(bits));
                }
            }
            (_, FeatureView::Bytes(_)) => return Err(wrong_list("byte strings")),
            (_, FeatureView::Int64(_)) => return Err(wrong_list("integers")),
            (_, FeatureView::Float(_)) => return Err(wrong_list("floats")),
            (_, FeatureView::None) => {}
        }
        Ok(())
    }

    /// Unpacks a zlib stream block by block, whatever size it has.
    fn add_inflated(&mut self, dtype: DType, packed: &[u8], block: &mut Vec<u8>) -> Result<()> {
        let mut stream = flate2::read::ZlibDecoder::new(packed);
        block.resize(BLOCK_BYTES, 0);
        loop {
            let mut filled = 0;
            while filled < BLOCK_BYTES {
                match stream.read(&mut block[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) => return Err(Error::damaged(format!("not a zlib stream: {error}"))),
                }
            }
            self.add_memory(dtype, &block[..filled])?;
            if filled < BLOCK_BYTES {
                return Ok(());
            }
        }
    }

    /// Adds numbers as they lie in memory, little-endian.
    fn add_memory(&mut self, dtype: DType, bytes: &[u8]) -> Result<()> {
        if !bytes.len().is_multiple_of(dtype.num_bytes().max(1)) {
            return Err(Error::damaged(format!(
                "{} bytes, wanted a multiple of {} for {dtype}",
                bytes.len(),
                dtype.num_bytes()
            )));
        }
        macro_rules! each {
            ($type:ty, $value:ident => $element:expr) => {
                for bytes in bytes.as_chunks::<{ size_of::<$type>() }>().0 {
                    let $value = <$type>::from_le_bytes(*bytes);
                    self.add_element($element);
                }
            };
        }
        match dtype {
            DType::Bool | DType::UInt8 => each!(u8, value => Element::Integer(value.into())),
            DType::Int8 => each!(i8, value => Element::Integer(value.into())),
            DType::UInt16 => each!(u16, value => Element::Integer(value.into())),
            DType::Int16 => each!(i16, value => Element::Integer(value.into())),
            DType::UInt32 => each!(u32, value => Element::Integer(value.into())),
            DType::Int32 => each!(i32, value => Element::Integer(value.into())),
            DType::UInt64 => each!(u64, value => Element::Integer(value.into())),
            DType::Int64 => each!(i64, value => Element::Integer(value.into())),
            DType::Float16 => each!(u16, value => Element::Float(half_to_f32(value).into())),
            DType::BFloat16 => each!(u16, value => Element::Float(bfloat16_to_f32(value).into())),
            DType::Float32 => each!(f32, value => Element::Float(value.into())),
            DType::Float64 => each!(f64, value => Element::Float(value)),
            DType::String => return Err(wrong_list("the memory of numbers")),
        }
        Ok(())
    }

    #[inline]
    fn add_element(&mut self, element: Element) {
        self.values += 1;
        match (element, &mut self.integers, &mut self.floats) {
            (Element::Integer(value), Some(integers), _) => {
                integers.add(value);
                // The same bits as those of a list of integers.
                self.distinct.insert(hash_number(value as u64));
            }
            (Element::Float(value), _, Some(floats)) => {
                let bits = floats.add(value);
                self.distinct.insert(hash_number(bits));
            }
            _ => {}
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        fn join<T>(own: &mut Option<T>, other: Option<T>, merge: impl Fn(&mut T, T)) {
            if let (Some(own), Some(other)) = (own, other) {
                merge(own, other);
            }
        }
        self.examples += other.examples;
        self.missing += other.missing;
        self.values += other.values;
        self.distinct.merge(other.distinct);
        join(&mut self.integers, other.integers, Integers::merge);
        join(&mut self.floats, other.floats, Floats::merge);
        join(&mut self.labels, other.labels, Labels::merge);
        join(&mut self.strings, other.strings, Lengths::merge);
        join(&mut self.sequences, other.sequences, Lengths::merge);
        join(&mut self.pictures, other.pictures, Pictures::merge);
    }

    /// The column as JSON; `feature` knows the names of classes.
    pub(super) fn describe(&self, feature: &Feature) -> Value {
        let mut object = json!({
            "examples": self.examples,
            "missing": self.missing,
            "values": self.values,
            "distinct": self.distinct.estimate().min(self.values),
        });
        if let Some(Integers { range, sum }) = &self.integers {
            object["min"] = range.map_or(Value::Null, |(low, _)| whole(low));
            object["max"] = range.map_or(Value::Null, |(_, high)| whole(high));
            object["mean"] = json!(mean_of(*sum, self.values));
        }
        if let Some(floats) = &self.floats {
            object["min"] = json!(floats.range.map(|(low, _)| f64::from_bits(low)));
            object["max"] = json!(floats.range.map(|(_, high)| f64::from_bits(high)));
            object["mean"] = json!(floats.sum.mean(floats.finite));
            object["nan"] = floats.nan.into();
            object["infinite"] = json!({"negative": floats.infinite[0], "positive": floats.infinite[1]});
        }
        if let Some(labels) = &self.labels {
            let names: &[String] = match feature {
                Feature::ClassLabel { names, .. } => names,
                _ => &[],
            };
            let mut counts = Map::new();
            for (class, count) in labels.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let name = names.get(class).cloned().unwrap_or_else(|| class.to_string());
                counts.insert(name, (*count).into());
            }
            object["labels"] = counts.into();
            object["unlabelled"] = labels.none.into();
            if labels.more > 0 {
                object["other_labels"] = labels.more.into();
            }
        }
        if let Some(strings) = &self.strings {
            object["bytes"] = strings.describe();
        }
        if let Some(sequences) = &self.sequences {
            object["lengths"] = sequences.describe();
        }
        if let Some(pictures) = &self.pictures {
            object["sizes"] = pictures.describe();
        }
        object
    }
}

fn wrong_list(found: &str) -> Error {
    Error::damaged(format!("stored as {found}, which its type is not"))
}

/// Every number of a feature fits into one of the two.
fn whole(value: i128) -> Value {
    match i64::try_from(value) {
        Ok(value) => value.into(),
        Err(_) => json!(u64::try_from(value).ok()),
    }
}
