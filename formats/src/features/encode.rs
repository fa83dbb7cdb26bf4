//! Typed values to `tf.train.Example` bytes.

use std::collections::HashMap;

use crate::example::in_feature;
use crate::example::wire::{self, Kind};
use crate::features::{Feature, Features, Shape, shape_fits};
use crate::png;
use crate::value::{Class, DType, Value, bfloat16_to_f32, half_to_f32};
use crate::{Error, Result};

/// Encodes typed values as `tf.train.Example` bytes under a schema, features in sorted order.
///
/// Equal values give equal bytes. Buffers and the PNG encoder are kept: one per thread.
///
/// # Examples
/// ```
/// use prep_formats::features::{Feature, Features};
/// use prep_formats::value::Value;
///
/// let label = Feature::ClassLabel { num_classes: 2, names: vec!["cat".into(), "dog".into()] };
/// let features = Features::new(vec![("text".into(), Feature::Text), ("label".into(), label)])?;
/// let mut record = Vec::new();
/// let values = [("text", Value::Bytes("woof".into())), ("label", Value::Bytes("dog".into()))];
/// features.encoder().encode(&values, &mut record)?;
/// assert_eq!(record, b"\x0a\x22\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x01\x0a\x10\x0a\x04text\x12\x08\x0a\x06\x0a\x04woof");
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug)]
pub struct ExampleEncoder {
    fields: Vec<Field>,
    /// For each field, which of the values it is.
    slots: Vec<usize>,
    scratch: Scratch,
}

#[derive(Debug)]
struct Field {
    name: String,
    feature: Feature,
    /// Numbers of classes by name.
    classes: HashMap<Vec<u8>, i64>,
}

#[derive(Debug, Default)]
struct Scratch {
    png: png::Encoder,
    bytes: Vec<u8>,
}

/// No value for this field yet.
const MISSING: usize = usize::MAX;

impl ExampleEncoder {
    pub(super) fn new(features: &Features) -> Self {
        let fields = features.iter().map(|(name, feature)| Field {
            name: name.to_string(),
            classes: match feature {
                Feature::ClassLabel { names, .. } => (0..)
                    .zip(names)
                    .map(|(number, name)| (name.as_bytes().to_vec(), number))
                    .collect(),
                _ => HashMap::new(),
            },
            feature: feature.clone(),
        });
        Self {
            fields: fields.collect(),
            slots: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Appends the encoded example to `out`. `values` may come in any order, each feature once.
    ///
    /// An image is pixels, which are encoded as PNG, or a file's bytes, which are taken as they are. A label is a number, -1 for
    /// none, or a name. Numbers go into a feature of any type that holds them; the type of a tensor has to be the declared one.
    ///
    /// # Errors
    /// A missing or unknown feature, a wrong type or shape, a label out of range: named with feature, found and wanted.
    /// `out` is then as it was before.
    pub fn encode(&mut self, values: &[(&str, Value)], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        let result = self.encode_features(values, out);
        match result {
            Ok(()) => wire::close_example(start, out),
            Err(_) => out.truncate(start),
        }
        result
    }

    fn encode_features(&mut self, values: &[(&str, Value)], out: &mut Vec<u8>) -> Result<()> {
        self.slots.clear();
        self.slots.resize(self.fields.len(), MISSING);
        for (index, (name, _)) in values.iter().enumerate() {
            // Values often come in the order of the schema.
            let field = match self.fields.get(index) {
                Some(field) if field.name == *name => Ok(index),
                _ => self
                    .fields
                    .binary_search_by(|field| field.name.as_str().cmp(name)),
            };
            let Ok(field) = field else {
                return Err(Error::Invalid(format!(
                    "feature `{name}` is not in the schema, which has {}",
                    names(&self.fields)
                )));
            };
            if self.slots[field] != MISSING {
                return Err(Error::Invalid(format!("feature `{name}` is given twice")));
            }
            self.slots[field] = index;
        }
        for (field, &slot) in self.fields.iter().zip(&self.slots) {
            let Some((_, value)) = values.get(slot) else {
                return Err(Error::Invalid(format!("feature `{}` has no value", field.name)));
            };
            field
                .encode(value, &mut self.scratch, out)
                .map_err(|error| in_feature(&field.name, error))?;
        }
        Ok(())
    }
}

fn names(fields: &[Field]) -> String {
    let names: Vec<String> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
    names.join(", ")
}

impl Field {
    fn encode(&self, value: &Value, scratch: &mut Scratch, out: &mut Vec<u8>) -> Result<()> {
        match &self.feature {
            Feature::Text => match value {
                Value::Bytes(text) => self.put_bytes(&[text], out),
                other => return Err(wrong(other, "text")),
            },
            Feature::ClassLabel { num_classes, .. } => {
                let class = self.class(value, *num_classes)?;
                self.put_integers(std::iter::once(class), out);
            }
            Feature::Image {
                shape,
                dtype,
                encoding_format,
            } => {
                let format = encoding_format.as_deref();
                self.encode_image(shape, *dtype, format, value, scratch, out)?;
            }
            Feature::Scalar { dtype } => self.encode_tensor(&[], *dtype, value, scratch, out)?,
            Feature::Tensor { shape, dtype } => {
                self.encode_tensor(shape, *dtype, value, scratch, out)?;
            }
        }
        Ok(())
    }

    fn put_bytes(&self, values: &[&[u8]], out: &mut Vec<u8>) {
        let length = wire::bytes_list_length(values.iter().copied());
        wire::put_entry(&self.name, Some(Kind::Bytes), length, out, |out| {
            for value in values {
                out.push(0x0a);
                wire::put_varint(value.len() as u64, out);
                out.extend_from_slice(value);
            }
        });
    }

    fn put_integers(&self, values: impl Iterator<Item = i64> + Clone, out: &mut Vec<u8>) {
        let body = values
            .clone()
            .map(|value| wire::varint_length(value.cast_unsigned()))
            .sum();
        let length = wire::packed_length(body);
        wire::put_entry(&self.name, Some(Kind::Int64), length, out, |out| {
            wire::put_packed_header(body, out);
            for value in values {
                wire::put_varint(value.cast_unsigned(), out);
            }
        });
    }

    fn put_floats(&self, values: impl ExactSizeIterator<Item = f32>, out: &mut Vec<u8>) {
        let body = 4 * values.len();
        let length = wire::packed_length(body);
        wire::put_entry(&self.name, Some(Kind::Float), length, out, |out| {
            wire::put_packed_header(body, out);
            for value in values {
                out.extend_from_slice(&value.to_le_bytes());
            }
        });
    }

    fn class(&self, value: &Value, num_classes: u64) -> Result<i64> {
        let range = -1..num_classes.cast_signed();
        let class = match value {
            Value::Int(class) => *class,
            Value::Bytes(name) => match self.classes.get(&name[..]) {
                Some(&class) => return Ok(class),
                // Without names, a class is called by its number. Source: `ClassLabel.str2int` in TFDS.
                None if self.classes.is_empty() => std::str::from_utf8(name)
                    .ok()
                    .and_then(|text| text.trim().parse().ok())
                    .filter(|&class: &i64| class >= 0)
                    .ok_or_else(|| {
                        Error::Invalid(format!(
                            "label is `{}`, but the classes have numbers only, 0 to {}",
                            name.escape_ascii(),
                            range.end - 1
                        ))
                    })?,
                None => {
                    return Err(Error::Invalid(format!(
                        "label is `{}`, which is none of the {num_classes} class names",
                        name.escape_ascii()
                    )));
                }
            },
            Value::Tensor { dtype, shape, data }
                if shape.is_empty() && dtype.class() == Class::Integer && data.len() == dtype.num_bytes() =>
            {
                integer(*dtype, data)
            }
            other => return Err(wrong(other, "a class number or name")),
        };
        if !range.contains(&class) {
            return Err(Error::Invalid(format!(
                "label is {class}, wanted 0 to {}, or -1 for none",
                range.end - 1
            )));
        }
        Ok(class)
    }

    fn encode_image(
        &self,
        wanted: &[Option<u64>],
        dtype: DType,
        format: Option<&str>,
        value: &Value,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match value {
            Value::Bytes(file) => {
                check_file(file, wanted, dtype)?;
                self.put_bytes(&[file], out);
            }
            Value::Tensor {
                dtype: found,
                shape,
                data,
            } => {
                if *found != dtype || !shape_fits(shape, wanted) {
                    return Err(Error::Invalid(format!(
                        "pixels are {found} {shape:?}, wanted {dtype} {}",
                        Shape(wanted)
                    )));
                }
                if format == Some("jpeg") {
                    return Err(Error::unsupported(
                        "pixels are not written as JPEG in this version; give the bytes of JPEG files, or declare `png`",
                    ));
                }
                let size = |index: usize| {
                    u32::try_from(shape[index])
                        .map_err(|_| Error::Invalid(format!("a picture of {shape:?} is too large")))
                };
                let channels = match dtype {
                    // The four bytes of a float are stored as the channels of a pixel. Source: `_FloatImageEncoder` in TFDS.
                    DType::Float32 => 4,
                    _ => u8::try_from(shape[2]).unwrap_or(u8::MAX),
                };
                let info = png::Info {
                    height: size(0)?,
                    width: size(1)?,
                    channels,
                    bits: if dtype == DType::UInt16 { 16 } else { 8 },
                };
                scratch.bytes.clear();
                scratch.png.encode(&info, data, &mut scratch.bytes)?;
                self.put_bytes(&[&scratch.bytes], out);
            }
            other => return Err(wrong(other, "pixels or the bytes of an image file")),
        }
        Ok(())
    }

    fn encode_tensor(
        &self,
        wanted: &[Option<u64>],
        dtype: DType,
        value: &Value,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if wanted.iter().filter(|size| size.is_none()).count() > 1 {
            return Err(Error::unsupported(format!(
                "a tensor of {} with more than one varying dimension, of which TFDS stores no shape",
                Shape(wanted)
            )));
        }
        if dtype == DType::String {
            let mut strings = Vec::new();
            let mut shape = Vec::new();
            flatten(value, 0, &mut shape, &mut |leaf| match leaf {
                Value::Bytes(bytes) => {
                    strings.push(&bytes[..]);
                    Ok(())
                }
                other => Err(wrong(other, "byte strings")),
            })?;
            check_shape(&shape, wanted, dtype)?;
            self.put_bytes(&strings, out);
            return Ok(());
        }
        if let Value::Tensor {
            dtype: found,
            shape,
            data,
        } = value
        {
            if *found != dtype {
                return Err(Error::Invalid(format!(
                    "tensor of {found} {shape:?}, wanted {dtype} {}",
                    Shape(wanted)
                )));
            }
            check_shape(shape, wanted, dtype)?;
            let elements = shape
                .iter()
                .try_fold(1usize, |elements, &size| elements.checked_mul(size));
            if elements.and_then(|elements| elements.checked_mul(dtype.num_bytes())) != Some(data.len()) {
                return Err(Error::Invalid(format!(
                    "tensor of {dtype} {shape:?} has {} bytes",
                    data.len()
                )));
            }
            return self.put_elements(dtype, data, out);
        }
        scratch.bytes.clear();
        let mut shape = Vec::new();
        flatten(value, 0, &mut shape, &mut |leaf| {
            number(leaf, dtype, &mut scratch.bytes)
        })?;
        check_shape(&shape, wanted, dtype)?;
        self.put_elements(dtype, &scratch.bytes, out)
    }

    /// Puts elements as they lie in memory, little-endian.
    fn put_elements(&self, dtype: DType, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
        macro_rules! chunks {
            ($type:ty) => {
                data.as_chunks::<{ size_of::<$type>() }>()
                    .0
                    .iter()
                    .map(|&bytes| <$type>::from_le_bytes(bytes))
            };
        }
        match dtype {
            DType::Bool => {
                if let Some(byte) = data.iter().find(|&&byte| byte > 1) {
                    return Err(Error::Invalid(format!("bool is {byte}, wanted 0 or 1")));
                }
                self.put_integers(data.iter().map(|&byte| byte.into()), out);
            }
            DType::UInt8 => self.put_integers(data.iter().map(|&byte| byte.into()), out),
            DType::Int8 => {
                self.put_integers(data.iter().map(|&byte| byte.cast_signed().into()), out);
            }
            DType::UInt16 => self.put_integers(chunks!(u16).map(i64::from), out),
            DType::Int16 => self.put_integers(chunks!(i16).map(i64::from), out),
            DType::UInt32 => self.put_integers(chunks!(u32).map(i64::from), out),
            DType::Int32 => self.put_integers(chunks!(i32).map(i64::from), out),
            // The same bits, as TFDS stores them.
            DType::UInt64 | DType::Int64 => self.put_integers(chunks!(i64), out),
            DType::Float16 => self.put_floats(chunks!(u16).map(half_to_f32), out),
            DType::BFloat16 => self.put_floats(chunks!(u16).map(bfloat16_to_f32), out),
            DType::Float32 => self.put_floats(chunks!(f32), out),
            DType::Float64 => self.put_floats(chunks!(f64).map(|value| value as f32), out),
            DType::String => unreachable!("byte strings have no elements of a fixed size"),
        }
        Ok(())
    }
}

fn wrong(found: &Value, wanted: &str) -> Error {
    Error::Invalid(format!("value is {}, wanted {wanted}", found.describe()))
}

fn check_shape(found: &[usize], wanted: &[Option<u64>], dtype: DType) -> Result<()> {
    if shape_fits(found, wanted) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "value has shape {found:?}, wanted {dtype} {}",
        Shape(wanted)
    )))
}

/// Goes over the leaves of nested lists and finds their shape.
fn flatten<'a>(
    value: &'a Value,
    depth: usize,
    shape: &mut Vec<usize>,
    leaf: &mut impl FnMut(&'a Value) -> Result<()>,
) -> Result<()> {
    let Value::List(values) = value else {
        if shape.len() > depth {
            return Err(wrong(value, "a list, as beside it"));
        }
        return leaf(value);
    };
    match shape.get(depth) {
        None => shape.push(values.len()),
        Some(&size) if size == values.len() => {}
        Some(&size) => {
            return Err(Error::Invalid(format!(
                "lists of {size} and of {} elements side by side",
                values.len()
            )));
        }
    }
    for (index, inner) in values.iter().enumerate() {
        if index > 0 && shape.len() == depth + 1 && matches!(inner, Value::List(_)) {
            return Err(wrong(inner, "a single value, as beside it"));
        }
        flatten(inner, depth + 1, shape, leaf)?;
    }
    Ok(())
}

/// Appends a number as an element of `dtype`.
fn number(value: &Value, dtype: DType, out: &mut Vec<u8>) -> Result<()> {
    let float = match (value, dtype.class()) {
        (Value::Int(value), Class::Bool | Class::Integer) => {
            let (least, greatest) = dtype.stored_range();
            let least = if dtype == DType::UInt64 { 0 } else { least };
            if !(least..=greatest).contains(value) {
                return Err(Error::Invalid(format!(
                    "{value} does not fit into {dtype}, which holds {least} to {greatest}"
                )));
            }
            out.extend_from_slice(&value.to_le_bytes()[..dtype.num_bytes()]);
            return Ok(());
        }
        (Value::Float(value), Class::Float) => *value,
        (Value::Int(value), Class::Float) => *value as f64,
        (
            Value::Tensor {
                dtype: found,
                shape,
                data,
            },
            _,
        ) if *found == dtype && shape.is_empty() && data.len() == dtype.num_bytes() => {
            out.extend_from_slice(data);
            return Ok(());
        }
        _ => return Err(wrong(value, dtype.name())),
    };
    match dtype {
        DType::Float64 => out.extend_from_slice(&float.to_le_bytes()),
        DType::Float32 => out.extend_from_slice(&(float as f32).to_le_bytes()),
        DType::Float16 => {
            out.extend_from_slice(&crate::value::f32_to_half(float as f32).to_le_bytes());
        }
        _ => out.extend_from_slice(&crate::value::f32_to_bfloat16(float as f32).to_le_bytes()),
    }
    Ok(())
}

/// One integer as it lies in memory.
fn integer(dtype: DType, data: &[u8]) -> i64 {
    let mut bytes = [0; 8];
    bytes[..data.len()].copy_from_slice(data);
    let unsigned = u64::from_le_bytes(bytes);
    match dtype {
        DType::Int8 | DType::Int16 | DType::Int32 => {
            let unused = 64 - 8 * data.len();
            (unsigned << unused).cast_signed() >> unused
        }
        DType::UInt64 => i64::try_from(unsigned).unwrap_or(i64::MAX),
        _ => unsigned.cast_signed(),
    }
}

/// Looks at the first bytes of an image file: is it one, and of the size wanted as far as that is quickly seen?
fn check_file(file: &[u8], wanted: &[Option<u64>], dtype: DType) -> Result<()> {
    let invalid = |error: Error| match error {
        Error::Damaged { reason, .. } => Error::Invalid(reason),
        other => other,
    };
    if file.starts_with(&png::SIGNATURE) {
        let info = png::info(file).map_err(invalid)?;
        let fits = |found: u32, wanted: Option<u64>| wanted.is_none_or(|size| size == u64::from(found));
        if !fits(info.height, wanted[0]) || !fits(info.width, wanted[1]) {
            return Err(Error::Invalid(format!(
                "PNG of height {} and width {}, wanted {}",
                info.height,
                info.width,
                Shape(wanted)
            )));
        }
        if dtype == DType::Float32 && (info.channels, info.bits) != (4, 8) {
            return Err(Error::Invalid(
                "PNG of float32 pixels, which has to be RGBA of 8 bits".to_string(),
            ));
        }
        return Ok(());
    }
    // Source: the magic numbers that `tf.io.decode_image` looks for.
    let other = file.starts_with(b"\xff\xd8\xff") || file.starts_with(b"GIF8") || file.starts_with(b"BM");
    if !other || dtype != DType::UInt8 {
        return Err(Error::Invalid(format!(
            "bytes that begin with `{}` are no {} file",
            file[..file.len().min(8)].escape_ascii(),
            if dtype == DType::UInt8 {
                "PNG, JPEG, GIF or BMP"
            } else {
                "PNG"
            }
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::example::{Example, FeatureList};

    fn schema(features: &[(&str, Feature)]) -> Features {
        let features = features
            .iter()
            .map(|(name, feature)| (name.to_string(), feature.clone()));
        Features::new(features.collect()).unwrap()
    }

    fn encode(feature: Feature, value: Value) -> Result<FeatureList> {
        let mut out = vec![9];
        let result = schema(&[("x", feature)])
            .encoder()
            .encode(&[("x", value)], &mut out);
        if let Err(error) = result {
            assert_eq!(out, [9], "an error leaves nothing behind");
            return Err(error);
        }
        let mut example = Example::decode(&out[1..])?;
        assert_eq!(example.encode(), &out[1..], "the encoding is canonical");
        Ok(example.features.remove("x").unwrap())
    }

    fn scalar(dtype: DType, value: Value) -> Result<FeatureList> {
        encode(Feature::Scalar { dtype }, value)
    }

    fn tensor(dtype: DType, shape: &[usize], data: &[u8]) -> Value {
        Value::Tensor {
            dtype,
            shape: shape.to_vec(),
            data: Bytes::copy_from_slice(data),
        }
    }

    fn names_of_two() -> Feature {
        Feature::ClassLabel {
            num_classes: 2,
            names: vec!["cat".into(), "dog".into()],
        }
    }

    #[test]
    fn numbers_are_stored_as_tfds_stores_them() {
        use FeatureList::{Float, Int64};
        assert_eq!(scalar(DType::Int8, Value::Int(-5)).unwrap(), Int64(vec![-5]));
        assert_eq!(scalar(DType::Bool, Value::Int(1)).unwrap(), Int64(vec![1]));
        assert_eq!(
            scalar(DType::UInt64, tensor(DType::UInt64, &[], &[0xff; 8])).unwrap(),
            Int64(vec![-1])
        );
        assert_eq!(
            scalar(DType::Float64, Value::Float(1e300)).unwrap(),
            Float(vec![f32::INFINITY])
        );
        assert_eq!(
            scalar(DType::Float16, Value::Float(0.1)).unwrap(),
            Float(vec![0.099_975_586])
        );
        assert_eq!(scalar(DType::BFloat16, Value::Int(3)).unwrap(), Float(vec![3.0]));
        let three = Feature::Tensor {
            shape: vec![Some(3)],
            dtype: DType::Int16,
        };
        let bytes = [1, 0, 0xff, 0xff, 0, 0x80];
        assert_eq!(
            encode(three.clone(), tensor(DType::Int16, &[3], &bytes)).unwrap(),
            Int64(vec![1, -1, -32768])
        );
        let list = Value::List(vec![Value::Int(1), Value::Int(-1), Value::Int(7)]);
        assert_eq!(encode(three, list).unwrap(), Int64(vec![1, -1, 7]));
        let empty = Feature::Tensor {
            shape: vec![None],
            dtype: DType::Float32,
        };
        assert_eq!(encode(empty, Value::List(Vec::new())).unwrap(), Float(vec![]));
    }

    #[test]
    fn strings_and_nested_lists() {
        let feature = Feature::Tensor {
            shape: vec![None, Some(2)],
            dtype: DType::String,
        };
        let pair = |a: &'static str, b: &'static str| {
            Value::List(vec![Value::Bytes(a.into()), Value::Bytes(b.into())])
        };
        let rows = Value::List(vec![pair("a", ""), pair("c", "d")]);
        let wanted = ["a", "", "c", "d"].map(|text| text.as_bytes().to_vec());
        assert_eq!(
            encode(feature.clone(), rows).unwrap(),
            FeatureList::Bytes(wanted.to_vec())
        );
        let error = encode(feature.clone(), pair("a", "b")).unwrap_err().to_string();
        assert!(
            error.contains("`x`") && error.contains("[2]") && error.contains("[None, 2]"),
            "{error}"
        );
        let mixed = Value::List(vec![pair("a", "b"), Value::Bytes("c".into())]);
        assert!(encode(feature.clone(), mixed).is_err());
        let mixed = Value::List(vec![Value::Bytes("c".into()), pair("a", "b")]);
        assert!(encode(feature.clone(), mixed).is_err());
        let ragged = Value::List(vec![pair("a", "b"), Value::List(vec![Value::Bytes("c".into())])]);
        assert!(encode(feature, ragged).is_err());
    }

    #[test]
    fn labels_by_number_and_name() {
        let label = |value| encode(names_of_two(), value);
        assert_eq!(
            label(Value::Bytes("dog".into())).unwrap(),
            FeatureList::Int64(vec![1])
        );
        assert_eq!(label(Value::Int(0)).unwrap(), FeatureList::Int64(vec![0]));
        assert_eq!(label(Value::Int(-1)).unwrap(), FeatureList::Int64(vec![-1]));
        assert_eq!(
            label(tensor(DType::UInt8, &[], &[1])).unwrap(),
            FeatureList::Int64(vec![1])
        );
        for (value, text) in [
            (Value::Int(2), "label is 2, wanted 0 to 1"),
            (Value::Int(-2), "label is -2"),
            (Value::Bytes("cow".into()), "`cow`"),
            (tensor(DType::Int8, &[], &[0xfe]), "label is -2"),
            (Value::Float(1.0), "the number 1.0"),
            (Value::Null, "a missing value"),
        ] {
            let error = label(value).unwrap_err().to_string();
            assert!(error.contains("feature `x`") && error.contains(text), "{error}");
        }
        let numbers = Feature::ClassLabel {
            num_classes: 7,
            names: vec![],
        };
        assert_eq!(
            encode(numbers.clone(), Value::Bytes("6".into())).unwrap(),
            FeatureList::Int64(vec![6])
        );
        assert!(encode(numbers.clone(), Value::Bytes("7".into())).is_err());
        assert!(encode(numbers, Value::Bytes("six".into())).is_err());
    }

    fn image(shape: [Option<u64>; 3], dtype: DType, format: Option<&str>) -> Feature {
        Feature::Image {
            shape: shape.to_vec(),
            dtype,
            encoding_format: format.map(str::to_string),
        }
    }

    #[test]
    fn pixels_become_png_and_files_are_kept() {
        let feature = image([Some(2), Some(3), Some(3)], DType::UInt8, None);
        let pixels: Vec<u8> = (0..18).collect();
        let FeatureList::Bytes(stored) =
            encode(feature.clone(), tensor(DType::UInt8, &[2, 3, 3], &pixels)).unwrap()
        else {
            panic!("images are byte strings")
        };
        let mut decoded = Vec::new();
        let info = png::Decoder::new()
            .decode_append(&stored[0], Some(3), 8, &mut decoded)
            .unwrap();
        assert_eq!((info.height, info.width), (2, 3));
        assert_eq!(decoded, pixels);
        let again = encode(feature.clone(), Value::Bytes(stored[0].clone().into())).unwrap();
        assert_eq!(again, FeatureList::Bytes(stored.clone()));

        let other = image([Some(3), None, Some(3)], DType::UInt8, None);
        let error = encode(other, Value::Bytes(stored[0].clone().into()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("height 2 and width 3, wanted [3, None, 3]"),
            "{error}"
        );
        let error = encode(feature.clone(), tensor(DType::UInt8, &[3, 2, 3], &pixels))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("uint8 [3, 2, 3], wanted uint8 [2, 3, 3]"),
            "{error}"
        );
        let error = encode(feature.clone(), tensor(DType::UInt8, &[2, 3, 3], &pixels[1..]));
        assert!(error.unwrap_err().to_string().contains("17 bytes"));
        let error = encode(feature, Value::Bytes("<html>".into()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("`<html>`"), "{error}");
        let jpeg = image([None, None, Some(3)], DType::UInt8, Some("jpeg"));
        assert!(encode(jpeg.clone(), Value::Bytes(b"\xff\xd8\xff\xe0".as_ref().into())).is_ok());
        let error = encode(jpeg, tensor(DType::UInt8, &[2, 3, 3], &pixels)).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }

    #[test]
    fn wide_and_float_pixels_come_back() {
        for (dtype, channels) in [(DType::UInt16, 2), (DType::Float32, 1)] {
            let feature = image([None, Some(2), Some(channels)], dtype, Some("png"));
            let data: Vec<u8> = (0..16).map(|i| i * 7).collect();
            let shape = [2, 2, channels as usize];
            let FeatureList::Bytes(stored) = encode(feature, tensor(dtype, &shape, &data)).unwrap() else {
                panic!("images are byte strings")
            };
            let (channels, bits) = if dtype == DType::UInt16 { (2, 16) } else { (4, 8) };
            let mut decoded = Vec::new();
            png::Decoder::new()
                .decode_append(&stored[0], Some(channels), bits, &mut decoded)
                .unwrap();
            assert_eq!(decoded, data);
        }
    }

    #[test]
    fn each_feature_once_and_none_besides() {
        let features = schema(&[("b", Feature::Text), ("a", names_of_two())]);
        let mut encoder = features.encoder();
        let text = || Value::Bytes("t".into());
        let mut first = Vec::new();
        encoder
            .encode(&[("b", text()), ("a", Value::Int(0))], &mut first)
            .unwrap();
        let mut second = Vec::new();
        encoder
            .encode(&[("a", Value::Int(0)), ("b", text())], &mut second)
            .unwrap();
        assert_eq!(first, second);
        let mut error =
            |values: &[(&str, Value)]| encoder.encode(values, &mut Vec::new()).unwrap_err().to_string();
        assert!(error(&[("a", Value::Int(0))]).contains("feature `b` has no value"));
        assert!(
            error(&[("a", Value::Int(0)), ("b", text()), ("c", text())])
                .contains("`c` is not in the schema, which has `a`, `b`")
        );
        assert!(error(&[("b", text()), ("b", text())]).contains("`b` is given twice"));
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for (dtype, value) in [
            (DType::UInt8, Value::Int(256)),
            (DType::Int8, Value::Int(-129)),
            (DType::UInt64, Value::Int(-1)),
            (DType::Bool, Value::Int(2)),
            (DType::Int32, Value::Float(1.0)),
            (DType::Float32, Value::Bytes("1".into())),
            (DType::Int64, tensor(DType::Int32, &[], &[0; 4])),
            (DType::Int64, tensor(DType::Int64, &[], &[0; 4])),
            (DType::Bool, tensor(DType::Bool, &[], &[2])),
            (DType::String, Value::Int(1)),
        ] {
            assert!(scalar(dtype, value.clone()).is_err(), "{dtype} {value:?}");
        }
        let feature = Feature::Tensor {
            shape: vec![None, None],
            dtype: DType::Int8,
        };
        assert!(matches!(
            encode(feature, Value::List(vec![])),
            Err(Error::Unsupported { .. })
        ));
        let feature = Feature::Tensor {
            shape: vec![None],
            dtype: DType::Int64,
        };
        assert!(encode(feature, tensor(DType::Int64, &[usize::MAX], &[])).is_err());
    }
}
