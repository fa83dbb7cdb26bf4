//! The compiled decoder.

use crate::columns::{Batch, ColumnData, ColumnSpec};
use crate::example::wire::{self, Entries, Kind};
use crate::example::{Example, in_feature};
use crate::features::{Feature, Features, Shape};
use crate::png;
use crate::value::{Class, DType, f32_to_bfloat16, f32_to_half};
use crate::{Error, Result};

/// Decodes records under a schema into batches. Keeps its buffers: one per thread.
///
/// Features that the schema does not have are skipped. Nothing is allocated per record once the batch's buffers have grown.
///
/// # Examples
/// ```
/// use prep_formats::columns::{BatchDecoder, ColumnData};
/// use prep_formats::features::{Feature, Features};
/// use prep_formats::value::{DType, Value};
///
/// let features = Features::new(vec![("x".into(), Feature::Scalar { dtype: DType::Int16 })])?;
/// let mut record = Vec::new();
/// features.encoder().encode(&[("x", Value::Int(-2))], &mut record)?;
///
/// let mut decoder = BatchDecoder::new(&features, true)?;
/// let mut batch = decoder.new_batch(2);
/// decoder.push(&record, &mut batch)?;
/// decoder.push(&record, &mut batch)?;
/// let ColumnData::Fixed(bytes) = &batch.columns[0] else { panic!("numbers are packed") };
/// assert_eq!(bytes, &[0xfe, 0xff, 0xfe, 0xff]);
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug)]
pub struct BatchDecoder {
    specs: Vec<ColumnSpec>,
    plans: Vec<Plan>,
    /// Where the lists of each column lie in the record.
    slots: Vec<Slot>,
    png: png::Decoder,
}

/// How one column is decoded.
#[derive(Debug, Clone)]
enum Plan {
    /// So many byte strings a row.
    Strings(usize),
    /// A class, -1 up to this; 0 where it is not known.
    Label(u64),
    /// So many numbers a row.
    Numbers { dtype: DType, elements: usize },
    /// Numbers in rows of `inner` along the one varying dimension.
    RaggedNumbers {
        dtype: DType,
        shape: Vec<Option<u64>>,
        inner: u64,
    },
    /// A picture of this size.
    Image(png::Info),
    /// A picture of any size that the shape allows.
    RaggedImage { shape: Vec<Option<u64>>, dtype: DType },
}

/// A list message in the record.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    kind: Option<Kind>,
    start: usize,
    length: usize,
    /// Whether the name came at all.
    found: bool,
}

/// Most bytes that are reserved before there are data.
const MOST_RESERVED: usize = 256 << 20;

impl BatchDecoder {
    /// Compiles a schema. `decode_images: false` leaves images as encoded bytes.
    ///
    /// # Errors
    /// What this version cannot decode: JPEG pictures, tensors of numbers with two varying dimensions, tensors of strings with one.
    pub fn new(features: &Features, decode_images: bool) -> Result<Self> {
        let mut specs = Vec::with_capacity(features.len());
        let mut plans = Vec::with_capacity(features.len());
        for (name, feature) in features.iter() {
            let plan = Plan::new(feature, decode_images).map_err(|error| in_feature(name, error))?;
            let undecoded = matches!(feature, Feature::Image { .. }) && !decode_images;
            specs.push(ColumnSpec {
                name: name.to_string(),
                dtype: if undecoded { DType::String } else { feature.dtype() },
                shape: if undecoded {
                    Vec::new()
                } else {
                    feature.shape().to_vec()
                },
            });
            plans.push(plan);
        }
        Ok(Self {
            slots: vec![Slot::default(); plans.len()],
            specs,
            plans,
            png: png::Decoder::new(),
        })
    }

    /// Name, dtype and row shape of each column, sorted by name.
    pub fn specs(&self) -> &[ColumnSpec] {
        &self.specs
    }

    /// An empty batch with room for `rows`.
    pub fn new_batch(&self, rows: usize) -> Batch {
        let columns = self.plans.iter().map(|plan| match plan {
            Plan::Strings(count) => ColumnData::Bytes {
                offsets: with_zero(rows.saturating_mul(*count)),
                data: Vec::new(),
            },
            Plan::Label(_) | Plan::Numbers { .. } | Plan::Image(_) => {
                let bytes = rows.saturating_mul(plan.row_bytes());
                ColumnData::Fixed(Vec::with_capacity(bytes.min(MOST_RESERVED)))
            }
            Plan::RaggedNumbers { shape, .. } | Plan::RaggedImage { shape, .. } => {
                let numbers = rows.saturating_mul(shape.len());
                ColumnData::Ragged {
                    shapes: Vec::with_capacity(numbers.min(MOST_RESERVED / 8)),
                    offsets: with_zero(rows),
                    data: Vec::new(),
                }
            }
        });
        Batch {
            rows: 0,
            columns: columns.collect(),
        }
    }

    /// Empties a batch and keeps its buffers.
    pub fn clear(&self, batch: &mut Batch) {
        batch.rows = 0;
        self.truncate(batch);
    }

    /// Decodes one record as the next row. After an error the batch is as it was before.
    ///
    /// `batch` is one that [`BatchDecoder::new_batch`] of the same schema made.
    ///
    /// # Errors
    /// A record that is no example, lacks a feature, or holds other values than the schema says: wrong kind or number of them, a
    /// number that the declared type cannot hold, a label out of range, a damaged picture. All name the feature.
    ///
    /// # Panics
    /// If `batch` has another number or another kind of columns than this decoder's.
    pub fn push(&mut self, record: &[u8], batch: &mut Batch) -> Result<()> {
        assert_eq!(
            batch.columns.len(),
            self.plans.len(),
            "a batch of this decoder has its columns"
        );
        let result = match self.find_lists(record) {
            Ok(true) => self.decode_lists(record, batch),
            // Lists in parts, which no writer makes: put together, then read as any other.
            Ok(false) => match Example::decode(record) {
                Ok(example) => {
                    let record = example.encode();
                    self.find_lists(&record)
                        .and_then(|_| self.decode_lists(&record, batch))
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => batch.rows += 1,
            Err(_) => self.truncate(batch),
        }
        result
    }

    /// Fills the slots; `false` if a list comes in more than one part.
    fn find_lists(&mut self, record: &[u8]) -> Result<bool> {
        self.slots.fill(Slot::default());
        let mut whole = true;
        let mut expected = 0;
        let mut entries = Entries::new(record);
        while let Some((name, value)) = entries.next()? {
            // Features in sorted order, as we write them, are found at the first try.
            let column = match self.specs.get(expected) {
                Some(spec) if spec.name.as_bytes() == name => expected,
                _ => match self.specs.binary_search_by(|spec| spec.name.as_bytes().cmp(name)) {
                    Ok(column) => column,
                    Err(_) if std::str::from_utf8(name).is_err() => {
                        return Err(Error::damaged(format!(
                            "feature name `{}` is not UTF-8",
                            name.escape_ascii()
                        )));
                    }
                    Err(_) => continue,
                },
            };
            expected = column + 1;
            let slot = &mut self.slots[column];
            *slot = Slot {
                found: true,
                ..Slot::default()
            };
            if let Some((kind, parts)) = value {
                slot.kind = Some(kind);
                slot.start = parts.first.as_ptr().addr() - record.as_ptr().addr();
                slot.length = parts.first.len();
                whole &= parts.rest.is_empty();
            }
        }
        Ok(whole)
    }

    fn decode_lists(&mut self, record: &[u8], batch: &mut Batch) -> Result<()> {
        let columns = batch.columns.iter_mut().zip(&self.plans).zip(&self.specs);
        for (((column, plan), spec), slot) in columns.zip(&self.slots) {
            let list = &record[slot.start..slot.start + slot.length];
            plan.decode(*slot, list, column, &mut self.png)
                .map_err(|error| in_feature(&spec.name, error))?;
        }
        Ok(())
    }

    /// Cuts each column to the batch's number of rows.
    fn truncate(&self, batch: &mut Batch) {
        let rows = batch.rows;
        for (column, plan) in batch.columns.iter_mut().zip(&self.plans) {
            match column {
                ColumnData::Fixed(data) => data.truncate(rows * plan.row_bytes()),
                ColumnData::Bytes { offsets, data } => {
                    let count = match plan {
                        Plan::Strings(count) => *count,
                        _ => 1,
                    };
                    offsets.truncate(rows * count + 1);
                    data.truncate(end(offsets));
                }
                ColumnData::Ragged {
                    shapes,
                    offsets,
                    data,
                } => {
                    let rank = match plan {
                        Plan::RaggedNumbers { shape, .. } | Plan::RaggedImage { shape, .. } => shape.len(),
                        _ => 0,
                    };
                    shapes.truncate(rows * rank);
                    offsets.truncate(rows + 1);
                    data.truncate(end(offsets));
                }
            }
        }
    }
}

fn with_zero(rows: usize) -> Vec<u64> {
    let mut offsets = Vec::with_capacity(rows.saturating_add(1).min(MOST_RESERVED / 8));
    offsets.push(0);
    offsets
}

fn end(offsets: &[u64]) -> usize {
    offsets
        .last()
        .map_or(0, |&end| usize::try_from(end).unwrap_or(usize::MAX))
}

impl Plan {
    fn new(feature: &Feature, decode_images: bool) -> Result<Self> {
        Ok(match feature {
            Feature::Text => Self::Strings(1),
            Feature::ClassLabel { num_classes, .. } => Self::Label(*num_classes),
            Feature::Scalar { dtype: DType::String } => Self::Strings(1),
            Feature::Scalar { dtype } => Self::Numbers {
                dtype: *dtype,
                elements: 1,
            },
            Feature::Tensor { shape, dtype } => {
                let varying = shape.iter().filter(|size| size.is_none()).count();
                let product = shape
                    .iter()
                    .map(|size| size.unwrap_or(1))
                    .try_fold(1u64, u64::checked_mul);
                let bytes = product.and_then(|product| product.checked_mul(8));
                let product = match (product, bytes.map(isize::try_from)) {
                    (Some(product), Some(Ok(_))) => product,
                    _ => {
                        return Err(Error::unsupported(format!(
                            "a tensor of {} is larger than memory can hold",
                            Shape(shape)
                        )));
                    }
                };
                match (varying, *dtype) {
                    (0, DType::String) => Self::Strings(product as usize),
                    (0, dtype) => Self::Numbers {
                        dtype,
                        elements: product as usize,
                    },
                    (1, dtype) if dtype != DType::String => Self::RaggedNumbers {
                        dtype,
                        shape: shape.clone(),
                        inner: product,
                    },
                    _ => {
                        return Err(Error::unsupported(format!(
                            "a tensor of {dtype} {}; this version decodes numbers with at most one varying dimension, strings with none",
                            Shape(shape)
                        )));
                    }
                }
            }
            Feature::Image { .. } if !decode_images => Self::Strings(1),
            Feature::Image {
                encoding_format: Some(format),
                ..
            } if format == "jpeg" => return Err(no_jpeg()),
            Feature::Image { shape, dtype, .. } => {
                let side = |size: Option<u64>| size.and_then(|size| u32::try_from(size).ok());
                let fixed = match shape[..] {
                    [height, width, Some(channels)] => {
                        side(height).zip(side(width)).map(|(height, width)| {
                            let (channels, bits) = layout(*dtype, channels as u8);
                            png::Info {
                                width,
                                height,
                                channels,
                                bits,
                            }
                        })
                    }
                    _ => None,
                };
                match fixed {
                    Some(info) if info.num_bytes().is_some() => Self::Image(info),
                    _ => Self::RaggedImage {
                        shape: shape.clone(),
                        dtype: *dtype,
                    },
                }
            }
        })
    }

    /// Bytes of a row of a fixed column.
    fn row_bytes(&self) -> usize {
        match self {
            Self::Label(_) => 8,
            Self::Numbers { dtype, elements } => elements * dtype.num_bytes(),
            Self::Image(info) => info.num_bytes().unwrap_or(0),
            _ => 0,
        }
    }

    #[inline]
    fn decode(&self, slot: Slot, list: &[u8], column: &mut ColumnData, png: &mut png::Decoder) -> Result<()> {
        match (self, column) {
            (Self::Image(info), ColumnData::Fixed(data)) => {
                let file = one_string(slot, list)?;
                refuse_other_images(file)?;
                let length = info.num_bytes().unwrap_or(0);
                if !png::is_plausible(length, file.len()) {
                    return Err(Error::damaged(format!(
                        "{} bytes are no picture of height {} and width {}",
                        file.len(),
                        info.height,
                        info.width
                    )));
                }
                let start = data.len();
                data.resize(start + length, 0);
                png.decode(file, info, &mut data[start..])
            }
            (Self::Label(num_classes), ColumnData::Fixed(data)) => {
                let class = match *list {
                    // One packed integer below 128, as nearly all are.
                    [0x0a, 1, class] if slot.kind == Some(Kind::Int64) && class < 0x80 => i64::from(class),
                    _ => one_integer(slot, list)?,
                };
                if class < -1 || (*num_classes > 0 && class >= num_classes.cast_signed()) {
                    return Err(Error::damaged(format!(
                        "label is {class}, wanted 0 to {}, or -1 for none",
                        num_classes.saturating_sub(1)
                    )));
                }
                data.extend_from_slice(&class.to_le_bytes());
                Ok(())
            }
            (Self::Strings(count), ColumnData::Bytes { offsets, data }) => {
                expect(slot, Kind::Bytes, *count == 0)?;
                let mut found = 0usize;
                wire::each_bytes(list, |bytes| {
                    found += 1;
                    if found <= *count {
                        data.extend_from_slice(bytes);
                        offsets.push(data.len() as u64);
                    }
                })?;
                check_count(found, *count)
            }
            (Self::Numbers { dtype, elements }, ColumnData::Fixed(data)) => {
                let before = data.len();
                numbers(slot, list, *dtype, *elements == 0, data)?;
                check_count((data.len() - before) / dtype.num_bytes(), *elements)
            }
            (
                Self::RaggedNumbers { dtype, shape, inner },
                ColumnData::Ragged {
                    shapes,
                    offsets,
                    data,
                },
            ) => {
                let before = data.len();
                numbers(slot, list, *dtype, true, data)?;
                let found = ((data.len() - before) / dtype.num_bytes()) as u64;
                if found.checked_rem(*inner).unwrap_or(found) != 0 {
                    return Err(Error::damaged(format!(
                        "{found} values, wanted whole rows of a tensor of {}",
                        Shape(shape)
                    )));
                }
                let varying = found.checked_div(*inner).unwrap_or(0);
                shapes.extend(shape.iter().map(|size| size.unwrap_or(varying)));
                offsets.push(data.len() as u64);
                Ok(())
            }
            (
                Self::RaggedImage { shape, dtype },
                ColumnData::Ragged {
                    shapes,
                    offsets,
                    data,
                },
            ) => {
                let file = one_string(slot, list)?;
                refuse_other_images(file)?;
                let stored = png::info(file)?;
                let fits =
                    |found: u32, wanted: Option<u64>| wanted.is_none_or(|size| size == u64::from(found));
                if !fits(stored.height, shape[0]) || !fits(stored.width, shape[1]) {
                    return Err(Error::damaged(format!(
                        "PNG of height {} and width {}, wanted {}",
                        stored.height,
                        stored.width,
                        Shape(shape)
                    )));
                }
                let channels = shape[2].map_or(stored.channels, |channels| channels as u8);
                let (stored_channels, bits) = layout(*dtype, channels);
                let info = png.decode_append(file, Some(stored_channels), bits, data)?;
                shapes.extend([u64::from(info.height), u64::from(info.width), u64::from(channels)]);
                offsets.push(data.len() as u64);
                Ok(())
            }
            (plan, _) => panic!("a batch of this decoder has a column for {plan:?}"),
        }
    }
}

/// Channels and bits of the PNG file for pixels of `dtype`.
fn layout(dtype: DType, channels: u8) -> (u8, u8) {
    match dtype {
        DType::UInt16 => (channels, 16),
        // The four bytes of a float are the channels of a pixel. Source: `_FloatImageEncoder` in TFDS.
        DType::Float32 => (4, 8),
        _ => (channels, 8),
    }
}

fn no_jpeg() -> Error {
    Error::unsupported("JPEG images are not decoded in this version; load with undecoded images")
}

#[inline]
fn refuse_other_images(file: &[u8]) -> Result<()> {
    if file.starts_with(&png::SIGNATURE) {
        Ok(())
    } else if file.starts_with(b"\xff\xd8\xff") {
        Err(no_jpeg())
    } else if file.starts_with(b"GIF8") || file.starts_with(b"BM") {
        Err(Error::unsupported(
            "GIF and BMP images are not decoded in this version; load with undecoded images",
        ))
    } else {
        Err(Error::damaged(format!(
            "bytes that begin with `{}` are no image",
            file[..file.len().min(8)].escape_ascii()
        )))
    }
}

/// Makes sure that the feature is there and of the kind wanted; without a kind it counts as empty, where it may be.
#[inline]
fn expect(slot: Slot, wanted: Kind, may_be_empty: bool) -> Result<()> {
    match slot.kind {
        Some(kind) if kind == wanted => Ok(()),
        Some(kind) => Err(Error::damaged(format!(
            "holds {}, wanted {}",
            kind.name(),
            wanted.name()
        ))),
        None if slot.found && may_be_empty => Ok(()),
        None => Err(Error::damaged(
            "missing from the record, though the schema has it",
        )),
    }
}

#[inline]
fn check_count(found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::damaged(format!("{found} values, wanted {wanted}")))
}

#[inline]
fn one_string(slot: Slot, list: &[u8]) -> Result<&[u8]> {
    expect(slot, Kind::Bytes, false)?;
    let mut string = None;
    let mut found = 0;
    wire::each_bytes(list, |bytes| {
        found += 1;
        string = Some(bytes);
    })?;
    match string {
        Some(string) if found == 1 => Ok(string),
        _ => Err(Error::damaged(format!("{found} values, wanted 1"))),
    }
}

fn one_integer(slot: Slot, list: &[u8]) -> Result<i64> {
    expect(slot, Kind::Int64, false)?;
    let mut value = 0;
    let mut found = 0;
    wire::each_int64(list, |integer| {
        found += 1;
        value = integer;
    })?;
    check_count(found, 1)?;
    Ok(value)
}

/// Appends the numbers of a list as elements of `dtype`.
fn numbers(slot: Slot, list: &[u8], dtype: DType, may_be_empty: bool, out: &mut Vec<u8>) -> Result<()> {
    match dtype.class() {
        Class::Float => {
            expect(slot, Kind::Float, may_be_empty)?;
            wire::each_float_run(list, |run| match dtype {
                DType::Float32 => out.extend_from_slice(run.as_flattened()),
                DType::Float64 => out.extend(
                    run.iter()
                        .flat_map(|&bytes| f64::from(f32::from_le_bytes(bytes)).to_le_bytes()),
                ),
                DType::Float16 => out.extend(
                    run.iter()
                        .flat_map(|&bytes| f32_to_half(f32::from_le_bytes(bytes)).to_le_bytes()),
                ),
                _ => out.extend(
                    run.iter()
                        .flat_map(|&bytes| f32_to_bfloat16(f32::from_le_bytes(bytes)).to_le_bytes()),
                ),
            })
        }
        Class::Bool | Class::Integer => {
            expect(slot, Kind::Int64, may_be_empty)?;
            match dtype.num_bytes() {
                1 => integers::<1>(list, dtype, out),
                2 => integers::<2>(list, dtype, out),
                4 => integers::<4>(list, dtype, out),
                _ => integers::<8>(list, dtype, out),
            }
        }
        Class::String => unreachable!("strings are not planned as numbers"),
    }
}

/// Appends integers of `N` bytes each, and checks that they fit.
fn integers<const N: usize>(list: &[u8], dtype: DType, out: &mut Vec<u8>) -> Result<()> {
    let (least, greatest) = dtype.stored_range();
    let mut outside = None;
    // Each integer takes a byte at least.
    out.reserve(list.len().saturating_mul(N));
    wire::each_int64(list, |value| {
        if value < least || value > greatest {
            outside = Some(value);
        }
        out.extend_from_slice(value.to_le_bytes().first_chunk::<N>().expect("N is at most 8"));
    })?;
    match outside {
        None => Ok(()),
        Some(value) => Err(Error::damaged(format!(
            "{value} does not fit into {dtype}, which holds {least} to {greatest}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::example::FeatureList;
    use crate::value::Value;

    fn schema(features: &[(&str, Feature)]) -> Features {
        let features = features
            .iter()
            .map(|(name, feature)| (name.to_string(), feature.clone()));
        Features::new(features.collect()).unwrap()
    }

    fn example(lists: &[(&str, FeatureList)]) -> Vec<u8> {
        let features = lists.iter().map(|(name, list)| (name.to_string(), list.clone()));
        Example {
            features: features.collect(),
        }
        .encode()
    }

    fn image(height: Option<u64>, channels: u64) -> Feature {
        Feature::Image {
            shape: vec![height, Some(3), Some(channels)],
            dtype: DType::UInt8,
            encoding_format: None,
        }
    }

    fn all_kinds() -> Features {
        let tensor = |shape: &[Option<u64>], dtype| Feature::Tensor {
            shape: shape.to_vec(),
            dtype,
        };
        schema(&[
            ("image", image(Some(2), 3)),
            (
                "label",
                Feature::ClassLabel {
                    num_classes: 300,
                    names: vec![],
                },
            ),
            ("picture", image(None, 1)),
            ("ragged", tensor(&[Some(2), None], DType::Float32)),
            ("strings", tensor(&[Some(2)], DType::String)),
            ("text", Feature::Text),
            ("tokens", tensor(&[None], DType::UInt16)),
            ("u8", tensor(&[Some(3)], DType::UInt8)),
        ])
    }

    fn pixels(height: usize, channels: usize, first: u8) -> Value {
        Value::Tensor {
            dtype: DType::UInt8,
            shape: vec![height, 3, channels],
            data: (0..height * 3 * channels)
                .map(|byte| byte as u8 ^ first)
                .collect::<Vec<_>>()
                .into(),
        }
    }

    fn row(number: u8) -> Vec<(&'static str, Value)> {
        let ints = |count: u8| {
            Value::List(
                (0..count)
                    .map(|n| Value::Int(i64::from(n) * 300 % 256 + i64::from(number)))
                    .collect(),
            )
        };
        let text = |text: String| Value::Bytes(Bytes::from(text));
        let floats = Value::Tensor {
            dtype: DType::Float32,
            shape: vec![2, number as usize],
            data: vec![number; 8 * number as usize].into(),
        };
        vec![
            ("image", pixels(2, 3, number)),
            ("label", Value::Int(i64::from(number) * 100)),
            ("picture", pixels(1 + number as usize, 1, number)),
            ("ragged", floats),
            (
                "strings",
                Value::List(vec![text("a".repeat(number.into())), text("b".into())]),
            ),
            ("text", text(format!("row {number}"))),
            ("tokens", ints(number)),
            (
                "u8",
                Value::List((0..3).map(|n| Value::Int(n + i64::from(number))).collect()),
            ),
        ]
    }

    fn records() -> Vec<Vec<u8>> {
        let features = all_kinds();
        let mut encoder = features.encoder();
        (0..3)
            .map(|number| {
                let mut record = Vec::new();
                encoder.encode(&row(number), &mut record).unwrap();
                record
            })
            .collect()
    }

    fn snapshot(batch: &Batch) -> String {
        format!("{batch:?}")
    }

    #[test]
    fn each_kind_of_feature_becomes_its_column() {
        let mut decoder = BatchDecoder::new(&all_kinds(), true).unwrap();
        let mut batch = decoder.new_batch(3);
        for record in records() {
            decoder.push(&record, &mut batch).unwrap();
        }
        assert_eq!(batch.rows, 3);
        let names: Vec<&str> = decoder.specs().iter().map(|spec| &*spec.name).collect();
        assert_eq!(
            names,
            [
                "image", "label", "picture", "ragged", "strings", "text", "tokens", "u8"
            ]
        );
        let column = |name: &str| {
            let index = names.iter().position(|other| *other == name).unwrap();
            (&batch.columns[index], &decoder.specs()[index])
        };
        for number in 0..3u8 {
            for (name, value) in row(number) {
                let (data, spec) = column(name);
                match value {
                    Value::Tensor {
                        shape, data: bytes, ..
                    } => {
                        let (found, row) = data.row(spec, number.into()).unwrap();
                        let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
                        assert_eq!((found, row), (shape, &bytes[..]), "{name}");
                    }
                    Value::Bytes(bytes) => {
                        assert_eq!(data.row(spec, number.into()), Some((vec![], &bytes[..])));
                    }
                    Value::Int(value) => {
                        let wanted = value.to_le_bytes();
                        assert_eq!(data.row(spec, number.into()), Some((vec![], &wanted[..])));
                    }
                    Value::List(values) if name != "strings" => {
                        let mut wanted = Vec::new();
                        for value in &values {
                            let Value::Int(value) = value else { continue };
                            wanted.extend(&value.to_le_bytes()[..spec.dtype.num_bytes()]);
                        }
                        let (found, row) = data.row(spec, number.into()).unwrap();
                        assert_eq!((found, row), (vec![values.len() as u64], &wanted[..]));
                    }
                    _ => {}
                }
            }
        }
        let ColumnData::Bytes { offsets, data } = column("strings").0 else {
            panic!("strings are bytes")
        };
        assert_eq!(offsets, &[0, 0, 1, 2, 3, 5, 6]);
        assert_eq!(data, b"babaab");
        assert_eq!(column("text").0.row(column("text").1, 3), None);
    }

    #[test]
    fn undecoded_images_stay_as_they_are() {
        let features = all_kinds();
        let mut decoder = BatchDecoder::new(&features, false).unwrap();
        let mut batch = decoder.new_batch(1);
        let record = &records()[1];
        decoder.push(record, &mut batch).unwrap();
        let spec = &decoder.specs()[0];
        assert_eq!(
            (spec.name.as_str(), spec.dtype, spec.shape.len()),
            ("image", DType::String, 0)
        );
        let (_, file) = batch.columns[0].row(spec, 0).unwrap();
        let stored = Example::decode(record).unwrap();
        assert_eq!(stored.features["image"], FeatureList::Bytes(vec![file.to_vec()]));
        let jpeg = schema(&[(
            "photo",
            Feature::Image {
                shape: vec![None, None, Some(3)],
                dtype: DType::UInt8,
                encoding_format: Some("jpeg".into()),
            },
        )]);
        let error = BatchDecoder::new(&jpeg, true).unwrap_err().to_string();
        assert!(
            error.contains("`photo`") && error.contains("undecoded"),
            "{error}"
        );
        assert!(BatchDecoder::new(&jpeg, false).is_ok());
    }

    #[test]
    fn buffers_are_kept_and_cleared() {
        let mut decoder = BatchDecoder::new(&all_kinds(), true).unwrap();
        let mut batch = decoder.new_batch(2);
        let empty = snapshot(&batch);
        let records = records();
        decoder.push(&records[2], &mut batch).unwrap();
        let first = snapshot(&batch);
        decoder.clear(&mut batch);
        assert_eq!(snapshot(&batch), empty);
        decoder.push(&records[2], &mut batch).unwrap();
        assert_eq!(snapshot(&batch), first);
    }

    #[test]
    fn after_an_error_the_batch_is_as_before() {
        let mut decoder = BatchDecoder::new(&all_kinds(), true).unwrap();
        let mut batch = decoder.new_batch(2);
        let records = records();
        decoder.push(&records[1], &mut batch).unwrap();
        let before = snapshot(&batch);
        let record = &records[2];
        let mut errors = 0;
        for length in 0..record.len() {
            assert!(decoder.push(&record[..length], &mut batch).is_err());
            assert_eq!(snapshot(&batch), before, "cut at {length}");
        }
        for bit in 0..8 * record.len() {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match decoder.push(&flipped, &mut batch) {
                Ok(()) => {
                    decoder.clear(&mut batch);
                    decoder.push(&records[1], &mut batch).unwrap();
                }
                Err(_) => errors += 1,
            }
            assert_eq!(snapshot(&batch), before, "bit {bit}");
        }
        assert!(errors > record.len());
        decoder.push(record, &mut batch).unwrap();
        assert_eq!(batch.rows, 2);
    }

    fn error_of(feature: Feature, list: FeatureList) -> String {
        let features = schema(&[("x", feature)]);
        let mut decoder = BatchDecoder::new(&features, true).unwrap();
        let mut batch = decoder.new_batch(1);
        let error = decoder.push(&example(&[("x", list)]), &mut batch).unwrap_err();
        assert_eq!(batch.rows, 0);
        error.to_string()
    }

    #[test]
    fn what_does_not_fit_the_schema_is_named() {
        let scalar = |dtype| Feature::Scalar { dtype };
        let ints = |values: &[i64]| FeatureList::Int64(values.to_vec());
        let label = Feature::ClassLabel {
            num_classes: 3,
            names: vec![],
        };
        for (feature, list, wanted) in [
            (label.clone(), ints(&[3]), "label is 3, wanted 0 to 2"),
            (label.clone(), ints(&[-2]), "label is -2"),
            (label.clone(), ints(&[1, 2]), "2 values, wanted 1"),
            (
                label,
                FeatureList::Float(vec![1.0]),
                "holds floats, wanted integers",
            ),
            (scalar(DType::UInt8), ints(&[256]), "256 does not fit into uint8"),
            (scalar(DType::Bool), ints(&[2]), "2 does not fit into bool"),
            (scalar(DType::Int32), ints(&[]), "0 values, wanted 1"),
            (scalar(DType::Int32), FeatureList::None, "missing"),
            (
                scalar(DType::Float32),
                ints(&[1]),
                "holds integers, wanted floats",
            ),
            (
                Feature::Text,
                FeatureList::Bytes(vec![vec![], vec![]]),
                "2 values, wanted 1",
            ),
            (Feature::Text, ints(&[1]), "holds integers, wanted byte strings"),
            (
                image(None, 3),
                FeatureList::Bytes(vec![b"\xff\xd8\xff\xe0".to_vec()]),
                "JPEG",
            ),
            (
                image(None, 3),
                FeatureList::Bytes(vec![b"GIF89a".to_vec()]),
                "GIF",
            ),
            (
                image(Some(2), 3),
                FeatureList::Bytes(vec![b"nothing".to_vec()]),
                "`nothing`",
            ),
            (
                Feature::Tensor {
                    shape: vec![None, Some(2)],
                    dtype: DType::Int8,
                },
                ints(&[1, 2, 3]),
                "3 values, wanted whole rows of a tensor of [None, 2]",
            ),
        ] {
            let error = error_of(feature, list);
            assert!(error.contains("feature `x`") && error.contains(wanted), "{error}");
        }
        let features = schema(&[("y", Feature::Text)]);
        let mut decoder = BatchDecoder::new(&features, true).unwrap();
        let mut batch = decoder.new_batch(1);
        let record = example(&[("x", FeatureList::None)]);
        let error = decoder.push(&record, &mut batch).unwrap_err().to_string();
        assert!(error.contains("`y`") && error.contains("missing"), "{error}");
    }

    #[test]
    fn pictures_of_other_sizes_are_refused() {
        let mut record = Vec::new();
        schema(&[("x", image(None, 3))])
            .encoder()
            .encode(&[("x", pixels(4, 3, 0))], &mut record)
            .unwrap();
        for (feature, wanted) in [
            (image(Some(5), 3), "3 x 4 pixels, wanted 3 x 5"),
            (image(Some(4), 1), "3 channels where 1 are wanted"),
        ] {
            let features = schema(&[("x", feature)]);
            let mut decoder = BatchDecoder::new(&features, true).unwrap();
            let mut batch = decoder.new_batch(1);
            let error = decoder.push(&record, &mut batch).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn every_dtype_comes_back() {
        for dtype in DType::ALL {
            if dtype == DType::String {
                continue;
            }
            let data: Vec<u8> = match dtype {
                DType::Bool => vec![0, 1, 1, 0],
                DType::Float64 => [1.5f64, -0.0, f64::INFINITY, 0.1f32.into()]
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect(),
                _ => (0..4 * dtype.num_bytes())
                    .map(|byte| (byte * 37 + 128) as u8 & 0xbf)
                    .collect(),
            };
            let features = schema(&[(
                "x",
                Feature::Tensor {
                    shape: vec![Some(2), Some(2)],
                    dtype,
                },
            )]);
            let value = Value::Tensor {
                dtype,
                shape: vec![2, 2],
                data: data.clone().into(),
            };
            let mut record = Vec::new();
            features.encoder().encode(&[("x", value)], &mut record).unwrap();
            let mut decoder = BatchDecoder::new(&features, true).unwrap();
            let mut batch = decoder.new_batch(1);
            decoder.push(&record, &mut batch).unwrap();
            let (shape, row) = batch.columns[0].row(&decoder.specs()[0], 0).unwrap();
            assert_eq!((shape, row), (vec![2, 2], &data[..]), "{dtype}");
        }
    }

    #[test]
    fn unsorted_repeated_and_split_lists_are_read() {
        let features = schema(&[
            ("a", Feature::Scalar { dtype: DType::Int64 }),
            (
                "b",
                Feature::Tensor {
                    shape: vec![None],
                    dtype: DType::Int64,
                },
            ),
        ]);
        // b: [1, 2] in two parts; a: 5, then a again: 6; and a feature that nobody asked for.
        let entry = |name: u8, feature: &[u8]| {
            let mut entry = vec![0x0a, 1, name, 0x12, feature.len() as u8];
            entry.extend_from_slice(feature);
            let mut field = vec![0x0a, entry.len() as u8];
            field.extend(entry);
            field
        };
        let mut body = entry(b'b', &[0x1a, 3, 0x0a, 1, 1, 0x1a, 2, 0x08, 2]);
        body.extend(entry(b'a', &[0x1a, 3, 0x0a, 1, 5]));
        body.extend(entry(b'z', &[0x0a, 2, 0x0a, 0]));
        body.extend(entry(b'a', &[0x1a, 2, 0x08, 6]));
        let mut record = vec![0x0a, body.len() as u8];
        record.extend(body);
        let mut decoder = BatchDecoder::new(&features, true).unwrap();
        let mut batch = decoder.new_batch(1);
        decoder.push(&record, &mut batch).unwrap();
        let row = |index: usize| {
            let (shape, bytes) = batch.columns[index].row(&decoder.specs()[index], 0).unwrap();
            let values: Vec<i64> = bytes
                .as_chunks()
                .0
                .iter()
                .map(|&bytes| i64::from_le_bytes(bytes))
                .collect();
            (shape, values)
        };
        assert_eq!(row(0), (vec![], vec![6]));
        assert_eq!(row(1), (vec![2], vec![1, 2]));
    }

    #[test]
    fn huge_schemas_reserve_nothing() {
        let features = schema(&[
            (
                "x",
                Feature::Tensor {
                    shape: vec![Some(1 << 40)],
                    dtype: DType::UInt8,
                },
            ),
            (
                "y",
                Feature::Image {
                    shape: vec![Some(1 << 30), Some(1 << 30), Some(3)],
                    dtype: DType::UInt8,
                    encoding_format: None,
                },
            ),
        ]);
        let mut decoder = BatchDecoder::new(&features, true).unwrap();
        let mut batch = decoder.new_batch(1000);
        let record = example(&[
            ("x", FeatureList::Int64(vec![])),
            ("y", FeatureList::Bytes(vec![png::SIGNATURE.to_vec()])),
        ]);
        assert!(decoder.push(&record, &mut batch).is_err());
        let tensor = |shape: Vec<Option<u64>>, dtype| {
            BatchDecoder::new(&schema(&[("x", Feature::Tensor { shape, dtype })]), true)
        };
        assert!(tensor(vec![Some(u64::MAX), Some(2)], DType::Int8).is_err());
        assert!(tensor(vec![None, None], DType::Int8).is_err());
        assert!(tensor(vec![None], DType::String).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_a_row(record in prop::collection::vec(any::<u8>(), 0..120)) {
            let features = schema(&[("", Feature::Tensor { shape: vec![None], dtype: DType::Int16 })]);
            let mut decoder = BatchDecoder::new(&features, true).unwrap();
            let mut batch = decoder.new_batch(1);
            let result = decoder.push(&record, &mut batch);
            prop_assert_eq!(result.is_ok(), batch.rows == 1);
        }

        #[test]
        fn token_lists_come_back(tokens in prop::collection::vec(any::<i32>(), 0..300)) {
            let features = schema(&[("x", Feature::Tensor { shape: vec![None], dtype: DType::Int32 })]);
            let record = example(&[("x", FeatureList::Int64(tokens.iter().map(|&token| token.into()).collect()))]);
            let mut decoder = BatchDecoder::new(&features, true).unwrap();
            let mut batch = decoder.new_batch(1);
            decoder.push(&record, &mut batch).unwrap();
            let wanted: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            let (shape, row) = batch.columns[0].row(&decoder.specs()[0], 0).unwrap();
            prop_assert_eq!((shape, row), (vec![tokens.len() as u64], &wanted[..]));
        }
    }
}
