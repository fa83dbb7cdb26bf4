//! Values of one feature that is not made of others, to the body of its list.

use std::collections::HashMap;

use crate::example::in_feature;
use crate::example::wire::{self, Kind};
use crate::features::encode::{Deflate, Output};
use crate::features::{Encoding, Feature, Shape, shape_fits};
use crate::png;
use crate::value::{Class, DType, Value, bfloat16_to_f32, f32_to_bfloat16, f32_to_half, half_to_f32};
use crate::{Error, Result};

/// Encodes the values of one leaf of the schema.
#[derive(Debug)]
pub(super) struct LeafEncoder {
    path: String,
    feature: Feature,
    /// Which list takes the values.
    values: usize,
    /// Which list takes the shape of each value.
    shapes: Option<usize>,
    /// Lists that take row lengths, level by level: of the values and of the shapes.
    lengths: Vec<Vec<usize>>,
    /// Whether several values are stored one after another.
    in_sequence: bool,
    /// Numbers of classes by name.
    classes: HashMap<Vec<u8>, i64>,
}

/// The kind of list that a feature's values are stored in.
pub(super) fn kind(feature: &Feature) -> Kind {
    let (dtype, encoding) = match feature {
        Feature::Scalar { dtype } => (*dtype, Encoding::None),
        Feature::Tensor { dtype, encoding, .. } => (*dtype, *encoding),
        Feature::Audio {
            lazy_decode: true, ..
        } => return Kind::Bytes,
        Feature::Audio { dtype, encoding, .. } => (*dtype, *encoding),
        Feature::ClassLabel { .. } => return Kind::Int64,
        Feature::BBox { .. } => return Kind::Float,
        _ => return Kind::Bytes,
    };
    match dtype.class() {
        _ if encoding != Encoding::None => Kind::Bytes,
        Class::String => Kind::Bytes,
        Class::Float => Kind::Float,
        Class::Bool | Class::Integer => Kind::Int64,
    }
}

impl LeafEncoder {
    pub(super) fn new(
        path: String,
        feature: Feature,
        values: usize,
        shapes: Option<usize>,
        lengths: Vec<Vec<usize>>,
        in_sequence: bool,
    ) -> Self {
        let classes = match &feature {
            Feature::ClassLabel { names, .. } => (0..)
                .zip(names)
                .map(|(number, name)| (name.as_bytes().to_vec(), number))
                .collect(),
            _ => HashMap::new(),
        };
        Self {
            path,
            feature,
            values,
            shapes,
            lengths,
            in_sequence,
            classes,
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn lengths(&self) -> &[Vec<usize>] {
        &self.lengths
    }

    /// Calls `visit` with each list that this feature is stored in.
    pub(super) fn each_list(&self, mut visit: impl FnMut(usize)) {
        visit(self.values);
        self.shapes.into_iter().for_each(&mut visit);
        self.lengths.iter().flatten().copied().for_each(&mut visit);
    }

    pub(super) fn encode(&self, value: &Value, output: &mut Output) -> Result<()> {
        if output.hole == Some(self.values)
            && let Value::Bytes(bytes) = value
        {
            // Contents that nobody has seen yet are no matter for a check.
            self.put_bytes(bytes, output);
            return Ok(());
        }
        match &self.feature {
            Feature::Text
            | Feature::Audio {
                lazy_decode: true, ..
            } => match value {
                Value::Bytes(bytes) => self.put_bytes(bytes, output),
                other if self.feature == Feature::Text => return Err(wrong(other, "text")),
                other => return Err(wrong(other, "the bytes of a sound file")),
            },
            Feature::ClassLabel { num_classes, .. } => {
                let class = self.class(value, *num_classes)?;
                wire::put_varint(class.cast_unsigned(), &mut output.lists[self.values].body);
            }
            Feature::Image {
                shape,
                dtype,
                encoding_format,
            }
            | Feature::LabeledImage {
                shape,
                dtype,
                encoding_format,
                ..
            } => {
                let format = encoding_format.as_deref();
                self.encode_image(shape, *dtype, format, value, output)?;
            }
            Feature::BBox { format } => {
                let start = output.lists[self.values].body.len();
                self.encode_tensor(&[Some(4)], DType::Float32, Encoding::None, value, output)?;
                let stored = &output.lists[self.values].body[start..];
                check_box(stored, value, format.as_deref())?;
            }
            Feature::Scalar { dtype } => self.encode_tensor(&[], *dtype, Encoding::None, value, output)?,
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
            } => {
                self.encode_tensor(shape, *dtype, *encoding, value, output)?;
            }
            other => unreachable!("a {} is made of other features", other.class()),
        }
        Ok(())
    }

    /// Encodes a tensor of elements at once; `false` where each is to be looked at.
    pub(super) fn encode_all(&self, value: &Value, output: &mut Output) -> Result<bool> {
        let (wanted, dtype): (&[Option<u64>], _) = match &self.feature {
            Feature::Scalar { dtype } => (&[], *dtype),
            Feature::Tensor {
                shape,
                dtype,
                encoding: Encoding::None,
            } => (shape, *dtype),
            _ => return Ok(false),
        };
        let Value::Tensor {
            dtype: found,
            shape,
            data,
        } = value
        else {
            return Ok(false);
        };
        if *found != dtype
            || wanted.iter().any(|size| size.is_none_or(|size| size == 0))
            || !shape_fits(&shape[1..], wanted)
        {
            return Ok(false);
        }
        let put = check_elements(dtype, shape, data)
            .and_then(|()| put_elements(dtype, data, &mut output.lists[self.values].body));
        put.map_err(|error| in_feature(&self.path, error))?;
        Ok(true)
    }

    fn put_bytes(&self, bytes: &[u8], output: &mut Output) {
        put_string(bytes, &mut output.lists[self.values].body);
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
        output: &mut Output,
    ) -> Result<()> {
        match value {
            Value::Bytes(file) => {
                check_file(file, wanted, dtype)?;
                self.put_bytes(file, output);
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
                if shape.len() != 3 {
                    return Err(Error::unsupported(
                        "moving pictures are not written in this version; give the bytes of GIF files, or declare a video",
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
                if output.is_check {
                    return png::Encoder::check(&info, data);
                }
                output.scratch.clear();
                output.png.encode(&info, data, &mut output.scratch)?;
                put_string(&output.scratch, &mut output.lists[self.values].body);
            }
            other => return Err(wrong(other, "pixels or the bytes of an image file")),
        }
        Ok(())
    }

    fn encode_tensor(
        &self,
        wanted: &[Option<u64>],
        dtype: DType,
        encoding: Encoding,
        value: &Value,
        output: &mut Output,
    ) -> Result<()> {
        if encoding == Encoding::None && wanted.iter().filter(|size| size.is_none()).count() > 1 {
            return Err(Error::unsupported(format!(
                "a tensor of {} with more than one varying dimension, of which TFDS stores no shape without an encoding; declare `bytes` or `zlib`",
                Shape(wanted)
            )));
        }
        if encoding == Encoding::None && self.in_sequence && wanted.contains(&None) {
            return Err(Error::unsupported(format!(
                "a tensor of {} in a sequence, of which no shape is stored; declare an encoding, or a sequence in a sequence",
                Shape(wanted)
            )));
        }
        if encoding == Encoding::None && self.in_sequence && wanted.contains(&Some(0)) {
            return Err(Error::unsupported(format!(
                "tensors of {} in a sequence, of which TFDS does not store how many there are",
                Shape(wanted)
            )));
        }
        if dtype == DType::String {
            let mut shape = Vec::new();
            let body = &mut output.lists[self.values].body;
            flatten(value, 0, &mut shape, &mut |leaf| match leaf {
                Value::Bytes(bytes) => {
                    put_string(bytes, body);
                    Ok(())
                }
                other => Err(wrong(other, "byte strings")),
            })?;
            return check_shape(&shape, wanted, dtype);
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
            check_elements(dtype, shape, data)?;
            return self.put_tensor(dtype, encoding, shape, data, output);
        }
        let mut elements = std::mem::take(&mut output.scratch);
        elements.clear();
        let mut shape = Vec::new();
        let result = flatten(value, 0, &mut shape, &mut |leaf| {
            number(leaf, dtype, &mut elements)
        })
        .and_then(|()| check_shape(&shape, wanted, dtype))
        .and_then(|()| self.put_tensor(dtype, encoding, &shape, &elements, output));
        output.scratch = elements;
        result
    }

    fn put_tensor(
        &self,
        dtype: DType,
        encoding: Encoding,
        shape: &[usize],
        data: &[u8],
        output: &mut Output,
    ) -> Result<()> {
        if let Some(list) = self.shapes {
            for &size in shape {
                wire::put_varint(size as u64, &mut output.lists[list].body);
            }
        }
        let body = &mut output.lists[self.values].body;
        match encoding {
            Encoding::None => put_elements(dtype, data, body),
            Encoding::Bytes => {
                check_bools(dtype, data)?;
                put_string(data, body);
                Ok(())
            }
            Encoding::Zlib => {
                check_bools(dtype, data)?;
                // The level of Python's `zlib.compress`.
                let Deflate(compressor) = output.deflate.get_or_insert_with(|| {
                    Deflate(libdeflater::Compressor::new(
                        libdeflater::CompressionLvl::new(6).unwrap_or_default(),
                    ))
                });
                let mut packed = vec![0; compressor.zlib_compress_bound(data.len())];
                let length = compressor.zlib_compress(data, &mut packed).map_err(|error| {
                    Error::Invalid(format!("could not compress {} bytes: {error:?}", data.len()))
                })?;
                put_string(&packed[..length], body);
                Ok(())
            }
        }
    }
}

/// Appends one byte string to a list of them.
fn put_string(bytes: &[u8], body: &mut Vec<u8>) {
    body.push(0x0a);
    wire::put_varint(bytes.len() as u64, body);
    body.extend_from_slice(bytes);
}

fn check_bools(dtype: DType, data: &[u8]) -> Result<()> {
    match data.iter().find(|&&byte| byte > 1) {
        Some(byte) if dtype == DType::Bool => Err(Error::Invalid(format!("bool is {byte}, wanted 0 or 1"))),
        _ => Ok(()),
    }
}

/// Appends elements as they lie in memory, little-endian, as the values of a packed list.
fn put_elements(dtype: DType, data: &[u8], body: &mut Vec<u8>) -> Result<()> {
    macro_rules! chunks {
        ($type:ty) => {
            data.as_chunks::<{ size_of::<$type>() }>()
                .0
                .iter()
                .map(|&bytes| <$type>::from_le_bytes(bytes))
        };
    }
    fn integers(values: impl Iterator<Item = i64>, body: &mut Vec<u8>) {
        for value in values {
            wire::put_varint(value.cast_unsigned(), body);
        }
    }
    fn floats(values: impl Iterator<Item = f32>, body: &mut Vec<u8>) {
        body.extend(values.flat_map(f32::to_le_bytes));
    }
    match dtype {
        DType::Bool => {
            check_bools(dtype, data)?;
            body.extend_from_slice(data);
        }
        DType::UInt8 => {
            // From 128 on a varint is the byte itself, whose upper bit says that it goes on, and a 1. Both are written each time.
            let start = body.len();
            body.resize(start + 2 * data.len() + 1, 0);
            let mut end = start;
            for &byte in data {
                body[end] = byte;
                body[end + 1] = 1;
                end += 1 + usize::from(byte >> 7);
            }
            body.truncate(end);
        }
        DType::Int8 => integers(data.iter().map(|&byte| byte.cast_signed().into()), body),
        DType::UInt16 => integers(chunks!(u16).map(i64::from), body),
        DType::Int16 => integers(chunks!(i16).map(i64::from), body),
        DType::UInt32 => integers(chunks!(u32).map(i64::from), body),
        DType::Int32 => integers(chunks!(i32).map(i64::from), body),
        // The same bits, as TFDS stores them.
        DType::UInt64 | DType::Int64 => integers(chunks!(i64), body),
        DType::Float16 => floats(chunks!(u16).map(half_to_f32), body),
        DType::BFloat16 => floats(chunks!(u16).map(bfloat16_to_f32), body),
        DType::Float32 => body.extend_from_slice(data),
        DType::Float64 => {
            if let Some(value) = chunks!(f64).find(|value| DType::Float32.overflows(*value)) {
                return Err(Error::Invalid(format!(
                    "{value:e} is beyond what float32 holds, as which float64 is stored; declare a tensor with the encoding `bytes`, \
                     which keeps all bits"
                )));
            }
            floats(chunks!(f64).map(|value| value as f32), body);
        }
        DType::String => unreachable!("byte strings have no elements of a fixed size"),
    }
    Ok(())
}

/// What TFDS checks of a box, on the four numbers as they were given. Source: `BBoxFeature.encode_example`.
fn check_box(stored: &[u8], value: &Value, format: Option<&str>) -> Result<()> {
    let [ymin, xmin, ymax, xmax] = stored.as_chunks::<4>().0 else {
        return Err(wrong(value, "four numbers"));
    };
    let [ymin, xmin, ymax, xmax] = [ymin, xmin, ymax, xmax].map(|bytes| f32::from_le_bytes(*bytes));
    let relative = matches!(format, Some("REL_YXYX" | "REL_XYXY"));
    if relative
        && let Some(outside) = [ymin, xmin, ymax, xmax]
            .iter()
            .find(|coordinate| !(0.0..=1.0).contains(*coordinate))
    {
        return Err(Error::Invalid(format!(
            "box has the coordinate {outside}, wanted 0 to 1"
        )));
    }
    if matches!(format, Some("YXYX" | "REL_YXYX")) && (xmax < xmin || ymax < ymin) {
        return Err(Error::Invalid(format!(
            "box from ({ymin}, {xmin}) to ({ymax}, {xmax}), wanted the lesser coordinates first"
        )));
    }
    Ok(())
}

pub(super) fn wrong(found: &Value, wanted: &str) -> Error {
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
    if dtype.overflows(float) {
        return Err(Error::Invalid(format!("{float:e} is beyond what {dtype} holds")));
    }
    match dtype {
        DType::Float64 => out.extend_from_slice(&float.to_le_bytes()),
        DType::Float32 => out.extend_from_slice(&(float as f32).to_le_bytes()),
        DType::Float16 => out.extend_from_slice(&f32_to_half(float as f32).to_le_bytes()),
        _ => out.extend_from_slice(&f32_to_bfloat16(float as f32).to_le_bytes()),
    }
    Ok(())
}

/// Makes sure that a tensor has the bytes that its shape says.
fn check_elements(dtype: DType, shape: &[usize], data: &[u8]) -> Result<()> {
    let elements = shape
        .iter()
        .try_fold(1usize, |elements, &size| elements.checked_mul(size));
    if elements.and_then(|elements| elements.checked_mul(dtype.num_bytes())) == Some(data.len()) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "tensor of {dtype} {shape:?} has {} bytes",
        data.len()
    )))
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
    if file.is_empty() {
        return Err(Error::Invalid("the file is empty: it has 0 bytes".to_string()));
    }
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
