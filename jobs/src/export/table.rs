//! Features as columns of Arrow, and batches of examples as their values.
//!
//! | feature | column | Hugging Face's name |
//! |---|---|---|
//! | numbers, `bool` | the same type; `bfloat16` as `float32` | `Value` |
//! | `ClassLabel` | `int64` | `ClassLabel` |
//! | `Text`, byte strings | text, or bytes where a value is not UTF-8 | `Value` |
//! | `Image`, `LabeledImage` | `struct<bytes, path>`, the file | `Image` |
//! | `Audio` that is kept as a file | `struct<bytes, path>` | `Audio` |
//! | `Tensor`, `Audio`, `BBox` of one dimension | list, of a fixed size where it has one | `List` |
//! | of two to five, of which the first may vary | lists in lists | `Array2D` to `Array5D` |
//! | `Sequence`, `Dataset`, `Video` | list | list |
//! | `Dict`, `Translation`, `TranslationVariableLanguages` | struct | dict, `Translation`, .. |
//! | `Optional` | the same, with nulls | |
//!
//! All columns may have nulls, as `datasets` wants it; only optional ones do. A feature that is made of no features is no column.
//!
//! Source of the notes: `features/features.py` of `datasets` 5.2; readers take a note where its type is the column's.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use arrow_array::types as t;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, FixedSizeListArray, ListArray,
    PrimitiveArray, RecordBatch, StringArray, StructArray, make_array, new_null_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use prep_formats::columns::{Batch, ColumnData, ColumnSpec, Images};
use prep_formats::features::{Feature, Features};
use prep_formats::value::DType;
use serde_json::{Map, Value as Json, json};

/// The schema of a table, and how its columns come from those of a batch.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) schema: Arc<Schema>,
    columns: Vec<Column>,
    specs: Vec<ColumnSpec>,
    /// Paths of columns of the file that hold compressed data already: pictures and sounds.
    pub(crate) media: Vec<Vec<String>>,
}

/// Values of a column of texts that are none.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` has values that are not UTF-8")]
pub(crate) struct NotText(pub(crate) String);

/// A column and how it is made.
#[derive(Debug)]
struct Column {
    field: FieldRef,
    note: Json,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Leaf {
        /// Its place among the columns of a batch.
        spec: usize,
        /// Sequences around it.
        levels: Vec<Option<u64>>,
        value: Value,
    },
    Struct(Vec<Column>),
    List(Box<Column>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Number(DType),
    Text,
    Bytes,
    /// A file in a `struct<bytes, path>`.
    File,
}

impl Table {
    /// The columns of a schema. Those named in `binary` hold bytes in place of texts.
    ///
    /// # Errors
    /// Features of which records do not say enough to be decoded.
    pub(crate) fn new(features: &Features, binary: &BTreeSet<String>) -> Result<Self> {
        let specs = features.column_specs(Images::Encoded)?;
        let mut maker = Maker {
            places: specs
                .iter()
                .enumerate()
                .map(|(place, spec)| (spec.path.clone(), place))
                .collect(),
            specs: &specs,
            binary,
            media: Vec::new(),
        };
        let mut columns = Vec::new();
        for (name, feature) in features.iter() {
            let mut path = vec![name.to_owned()];
            columns.extend(maker.column(name, feature, &mut path, &[], &[name.to_owned()])?);
        }
        if columns.is_empty() {
            bail!("the dataset has no features that could be columns");
        }
        let media = maker.media;
        let notes: Map<String, Json> = columns
            .iter()
            .map(|column| (column.field.name().clone(), column.note.clone()))
            .collect();
        let fields: Vec<FieldRef> = columns.iter().map(|column| Arc::clone(&column.field)).collect();
        let note = json!({"info": {"features": notes}}).to_string();
        let schema = Schema::new_with_metadata(fields, HashMap::from([("huggingface".to_owned(), note)]));
        Ok(Self {
            schema: Arc::new(schema),
            columns,
            specs,
            media,
        })
    }

    /// The rows of a batch that a decoder of the same features, pictures left encoded, has made.
    ///
    /// # Errors
    /// [`NotText`]; sequences of one feature that differ in length; more than 2 GiB of a column.
    pub(crate) fn rows(&self, batch: &Batch) -> Result<RecordBatch> {
        let arrays = self.columns.iter().map(|column| self.array(column, batch, 0));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), arrays)?)
    }

    /// The values of a column at a depth of sequences: one for each element of the sequence around it, of all rows.
    fn array(&self, column: &Column, batch: &Batch, depth: usize) -> Result<ArrayRef> {
        match &column.kind {
            Kind::Leaf { spec, levels, value } => {
                let (spec, data) = (&self.specs[*spec], &batch.columns[*spec]);
                let leveled = Leveled::new(data, levels, &spec.shape[levels.len()..], batch.rows)?;
                let kind = column.field.data_type();
                leveled.array(*value, kind, &spec.shape[levels.len()..], &spec.name)
            }
            Kind::Struct(columns) => {
                let DataType::Struct(fields) = column.field.data_type() else {
                    bail!("`{}` is no struct", column.field.name());
                };
                let arrays = columns.iter().map(|column| self.array(column, batch, depth));
                let arrays = arrays.collect::<Result<Vec<_>>>()?;
                Ok(Arc::new(StructArray::try_new(fields.clone(), arrays, None)?))
            }
            Kind::List(element) => {
                let offsets = self.offsets(element, batch, depth)?;
                let values = self.array(element, batch, depth + 1)?;
                list(column.field.data_type(), &offsets, values, None)
            }
        }
    }

    /// Where the sequences of a depth begin, which all features in them have to agree about.
    fn offsets(&self, column: &Column, batch: &Batch, depth: usize) -> Result<Vec<u64>> {
        match &column.kind {
            Kind::Leaf { spec, levels, .. } => {
                let (spec, data) = (&self.specs[*spec], &batch.columns[*spec]);
                let mut leveled = Leveled::new(data, levels, &spec.shape[levels.len()..], batch.rows)?;
                Ok(leveled.offsets.swap_remove(depth))
            }
            Kind::List(element) => self.offsets(element, batch, depth),
            Kind::Struct(columns) => {
                let mut all = columns.iter().map(|column| self.offsets(column, batch, depth));
                let first = all.next().context("a struct without columns")??;
                for other in all {
                    if other? != first {
                        bail!(
                            "the features in the sequence `{}` have different lengths in one example, which a list of structs cannot have",
                            column.field.name()
                        );
                    }
                }
                Ok(first)
            }
        }
    }
}

/// Makes columns of features.
struct Maker<'a> {
    places: HashMap<Vec<String>, usize>,
    specs: &'a [ColumnSpec],
    binary: &'a BTreeSet<String>,
    media: Vec<Vec<String>>,
}

impl Maker<'_> {
    /// The column of a feature, `None` of one that holds nothing. `name` is that of the field, `path` the names of the features down to it, `at` those of
    /// the columns of the file.
    fn column(
        &mut self,
        name: &str,
        feature: &Feature,
        path: &mut Vec<String>,
        levels: &[Option<u64>],
        at: &[String],
    ) -> Result<Option<Column>> {
        let text = Feature::Text;
        match feature {
            Feature::Dict(features) => {
                let children: Vec<(&str, &Feature)> = features
                    .iter()
                    .map(|(name, feature)| (name.as_str(), feature))
                    .collect();
                self.nested(name, &children, path, levels, at, None)
            }
            Feature::Translation { languages } => {
                let children: Vec<(&str, &Feature)> = languages
                    .iter()
                    .map(|language| (language.as_str(), &text))
                    .collect();
                let note = json!({"languages": languages, "_type": "Translation"});
                self.nested(name, &children, path, levels, at, Some(note))
            }
            Feature::TranslationVariableLanguages { languages } => {
                let texts = Feature::sequence(Feature::Text);
                let children = [("language", &texts), ("translation", &texts)];
                let note = json!({
                    "languages": languages,
                    "num_languages": languages.len(),
                    "_type": "TranslationVariableLanguages",
                });
                self.nested(
                    name,
                    &children,
                    path,
                    levels,
                    at,
                    (!languages.is_empty()).then_some(note),
                )
            }
            Feature::Sequence { feature, length } | Feature::Dataset { feature, length } => {
                self.list(name, feature, *length, path, levels, at)
            }
            Feature::Video {
                shape,
                dtype,
                encoding_format,
            } => {
                let (length, frame) = shape.split_first().context("a video without dimensions")?;
                let frame = Feature::Image {
                    shape: frame.to_vec(),
                    dtype: *dtype,
                    encoding_format: encoding_format.clone(),
                };
                self.list(name, &frame, *length, path, levels, at)
            }
            feature => self.leaf(name, feature, path, levels, at).map(Some),
        }
    }

    fn nested(
        &mut self,
        name: &str,
        children: &[(&str, &Feature)],
        path: &mut Vec<String>,
        levels: &[Option<u64>],
        at: &[String],
        note: Option<Json>,
    ) -> Result<Option<Column>> {
        let mut columns = Vec::new();
        for (child, feature) in children {
            path.push((*child).to_owned());
            let inside = [at, &[(*child).to_owned()]].concat();
            columns.extend(self.column(child, feature, path, levels, &inside)?);
            path.pop();
        }
        if columns.is_empty() {
            return Ok(None);
        }
        let fields: Fields = columns.iter().map(|column| Arc::clone(&column.field)).collect();
        let note = note.unwrap_or_else(|| {
            let notes = columns
                .iter()
                .map(|column| (column.field.name().clone(), column.note.clone()));
            Json::Object(notes.collect())
        });
        Ok(Some(Column {
            field: field(name, DataType::Struct(fields)),
            note,
            kind: Kind::Struct(columns),
        }))
    }

    fn list(
        &mut self,
        name: &str,
        element: &Feature,
        length: Option<u64>,
        path: &mut Vec<String>,
        levels: &[Option<u64>],
        at: &[String],
    ) -> Result<Option<Column>> {
        let levels = [levels, &[length]].concat();
        let inside = [at, &["list".to_owned(), ITEM.to_owned()]].concat();
        let Some(element) = self.column(ITEM, element, path, &levels, &inside)? else {
            return Ok(None);
        };
        let (kind, note) = list_of(&element.field, &element.note, length);
        Ok(Some(Column {
            field: field(name, kind),
            note,
            kind: Kind::List(Box::new(element)),
        }))
    }

    fn leaf(
        &mut self,
        name: &str,
        feature: &Feature,
        path: &[String],
        levels: &[Option<u64>],
        at: &[String],
    ) -> Result<Column> {
        let place = *self.places.get(path).ok_or_else(|| {
            anyhow!(
                "feature `{}` of class {} has no column",
                path.join("/"),
                feature.class()
            )
        })?;
        let spec = &self.specs[place];
        let shape = &spec.shape[levels.len()..];
        let feature = match feature {
            Feature::Optional(inner) => inner,
            feature => feature,
        };
        let (value, note) = match feature {
            Feature::Image { .. } | Feature::LabeledImage { .. } => (Value::File, json!({"_type": "Image"})),
            Feature::Audio {
                lazy_decode: true,
                sample_rate,
                ..
            } => (
                Value::File,
                json!({"sampling_rate": sample_rate, "_type": "Audio"}),
            ),
            Feature::ClassLabel { num_classes, names } if *num_classes > 0 => {
                let note = match names.is_empty() {
                    true => json!({"num_classes": num_classes, "_type": "ClassLabel"}),
                    false => json!({"names": names, "_type": "ClassLabel"}),
                };
                (Value::Number(DType::Int64), note)
            }
            _ if spec.dtype != DType::String => {
                let value = Value::Number(spec.dtype);
                (value, json!({"dtype": value_name(value), "_type": "Value"}))
            }
            _ => {
                let value = match self.binary.contains(&spec.name) {
                    true => Value::Bytes,
                    false => Value::Text,
                };
                (value, json!({"dtype": value_name(value), "_type": "Value"}))
            }
        };
        if value == Value::File {
            self.media.push([at, &["bytes".to_owned()]].concat());
        }
        let element = field(ITEM, data_type(value)?);
        let (kind, note, metadata) = match shape {
            [] => (element.data_type().clone(), note, None),
            [length] => {
                let (kind, note) = list_of(&element, &note, *length);
                (kind, note, None)
            }
            shape => {
                let (mut kind, mut lists) = (element.data_type().clone(), note);
                for _ in shape {
                    (kind, lists) = list_of(&field(ITEM, kind), &lists, None);
                }
                // `datasets` has a type for these; in lists it has none.
                let is_array = levels.is_empty()
                    && (2..=5).contains(&shape.len())
                    && shape[1..].iter().all(Option::is_some)
                    && matches!(value, Value::Number(_));
                if is_array {
                    let dtype = value_name(value);
                    let class = format!("Array{}D", shape.len());
                    let metadata = HashMap::from([
                        (
                            "ARROW:extension:name".to_owned(),
                            format!("datasets.features.features.{class}ExtensionType"),
                        ),
                        (
                            "ARROW:extension:metadata".to_owned(),
                            json!([shape, dtype]).to_string(),
                        ),
                    ]);
                    let note = json!({"shape": shape, "dtype": dtype, "_type": class});
                    (kind, note, Some(metadata))
                } else {
                    (kind, lists, None)
                }
            }
        };
        let mut named = Field::new(name, kind, true);
        if let Some(metadata) = metadata {
            named = named.with_metadata(metadata);
        }
        Ok(Column {
            field: Arc::new(named),
            note,
            kind: Kind::Leaf {
                spec: place,
                levels: levels.to_vec(),
                value,
            },
        })
    }
}

/// What an element of a list is called, as Arrow's programs call it.
const ITEM: &str = "item";

fn field(name: &str, kind: DataType) -> FieldRef {
    Arc::new(Field::new(name, kind, true))
}

/// The type of a list, and Hugging Face's name of it. A list of no length at all is one of any: that of a fixed size would not know how many there are.
fn list_of(element: &FieldRef, note: &Json, length: Option<u64>) -> (DataType, Json) {
    match length
        .and_then(|length| i32::try_from(length).ok())
        .filter(|length| *length > 0)
    {
        Some(length) => {
            let kind = DataType::FixedSizeList(Arc::clone(element), length);
            (kind, json!({"feature": note, "length": length, "_type": "List"}))
        }
        None => (
            DataType::List(Arc::clone(element)),
            json!({"feature": note, "_type": "List"}),
        ),
    }
}

fn data_type(value: Value) -> Result<DataType> {
    Ok(match value {
        Value::Text => DataType::Utf8,
        Value::Bytes => DataType::Binary,
        Value::File => DataType::Struct(file_fields()),
        Value::Number(dtype) => match dtype {
            DType::Bool => DataType::Boolean,
            DType::UInt8 => DataType::UInt8,
            DType::Int8 => DataType::Int8,
            DType::UInt16 => DataType::UInt16,
            DType::Int16 => DataType::Int16,
            DType::UInt32 => DataType::UInt32,
            DType::Int32 => DataType::Int32,
            DType::UInt64 => DataType::UInt64,
            DType::Int64 => DataType::Int64,
            DType::Float16 => DataType::Float16,
            DType::BFloat16 | DType::Float32 => DataType::Float32,
            DType::Float64 => DataType::Float64,
            other => bail!("there is no column of type {other}"),
        },
    })
}

/// The name of a value's type in `datasets`.
fn value_name(value: Value) -> &'static str {
    match value {
        Value::Number(DType::BFloat16) => DType::Float32.name(),
        Value::Number(dtype) => dtype.name(),
        Value::Text => "string",
        Value::Bytes | Value::File => "binary",
    }
}

/// What `datasets` keeps of a file.
fn file_fields() -> Fields {
    [field("bytes", DataType::Binary), field("path", DataType::Utf8)]
        .into_iter()
        .collect()
}

/// The data of a column, with the sequences around its values apart from them.
struct Leveled<'a> {
    /// For each level, the outermost first, where its sequences begin among those of the next, and the end.
    offsets: Vec<Vec<u64>>,
    present: Option<&'a [u8]>,
    values: Values<'a>,
    count: usize,
}

/// Values without sequences around them.
#[derive(Clone, Copy)]
enum Values<'a> {
    /// Packed, of one shape.
    Fixed(&'a [u8]),
    Strings {
        offsets: &'a [u64],
        data: &'a [u8],
    },
    /// Each of its own shape.
    Ragged {
        shapes: &'a [u64],
        data: &'a [u8],
    },
    /// Strings along a dimension that varies.
    Lists {
        splits: &'a [u64],
        offsets: &'a [u64],
        data: &'a [u8],
    },
}

impl<'a> Leveled<'a> {
    fn new(
        column: &'a ColumnData,
        levels: &[Option<u64>],
        shape: &[Option<u64>],
        rows: usize,
    ) -> Result<Self> {
        let odd = || anyhow!("a column is not laid out as its feature says");
        let (present, column) = match column {
            ColumnData::Optional { present, values } => (Some(present.as_slice()), &**values),
            column => (None, column),
        };
        let fixed: Option<Vec<u64>> = levels.iter().copied().collect();
        let (offsets, values, count) = match (column, levels, fixed) {
            // One sequence of any length, of values of one shape.
            (ColumnData::Ragged { shapes, data, .. }, [None], _) => {
                let mut offsets = vec![0];
                let mut end = 0;
                for row in shapes.chunks_exact(shape.len() + 1) {
                    end += row[0];
                    offsets.push(end);
                }
                (vec![offsets], Values::Fixed(data), usize::try_from(end)?)
            }
            (ColumnData::Nested { splits, values }, levels, _) if !levels.is_empty() => {
                if splits.len() != levels.len() {
                    return Err(odd());
                }
                let count = splits.last().and_then(|last| last.last()).copied().unwrap_or(0);
                (
                    splits.clone(),
                    Values::new(values).ok_or_else(odd)?,
                    usize::try_from(count)?,
                )
            }
            // Sequences of fixed lengths are packed, and so is what is in none.
            (column, _, Some(lengths)) => {
                let mut offsets = Vec::with_capacity(lengths.len());
                let mut count = rows as u64;
                for length in lengths {
                    offsets.push((0..=count).map(|number| number * length).collect());
                    count *= length;
                }
                (
                    offsets,
                    Values::new(column).ok_or_else(odd)?,
                    usize::try_from(count)?,
                )
            }
            _ => return Err(odd()),
        };
        Ok(Self {
            offsets,
            present,
            values,
            count,
        })
    }

    fn array(&self, value: Value, kind: &DataType, shape: &[Option<u64>], name: &str) -> Result<ArrayRef> {
        let (count, values) = (self.count, self.values);
        // The elements, and the lists around them from the outermost in: their types and where each begins.
        let elements = match values {
            Values::Fixed(data) | Values::Ragged { data, .. } => numbers(value, data)?,
            Values::Strings { offsets, data } | Values::Lists { offsets, data, .. } => {
                strings(value, offsets, data, name)?
            }
        };
        let mut lists: Vec<Vec<u64>> = Vec::with_capacity(shape.len());
        match values {
            Values::Ragged { shapes, .. } => {
                for dimension in 0..shape.len() {
                    let mut offsets = vec![0];
                    let mut end = 0;
                    for sizes in shapes.chunks_exact(shape.len()) {
                        for _ in 0..sizes[..dimension].iter().product::<u64>() {
                            end += sizes[dimension];
                            offsets.push(end);
                        }
                    }
                    lists.push(offsets);
                }
            }
            _ => {
                let mut rows = count as u64;
                for (dimension, size) in shape.iter().enumerate() {
                    let offsets = match (values, dimension, size) {
                        (Values::Lists { splits, .. }, 0, None) => splits.to_vec(),
                        (_, _, Some(size)) => (0..=rows).map(|row| row * size).collect(),
                        _ => bail!("`{name}` has a dimension of which nothing is stored"),
                    };
                    rows = offsets.last().copied().unwrap_or(0);
                    lists.push(offsets);
                }
            }
        }
        let nulls = self
            .present
            .map(|present| NullBuffer::new(BooleanBuffer::from_iter(present.iter().map(|byte| *byte != 0))));
        let mut kinds = vec![kind];
        while kinds.len() < lists.len() {
            kinds.push(element_type(kinds[kinds.len() - 1])?);
        }
        let mut array = elements;
        for (index, offsets) in lists.iter().enumerate().rev() {
            array = list(kinds[index], offsets, array, nulls.clone().filter(|_| index == 0))?;
        }
        match nulls {
            Some(nulls) if lists.is_empty() => with_nulls(&array, nulls),
            _ => Ok(array),
        }
    }
}

impl<'a> Values<'a> {
    fn new(column: &'a ColumnData) -> Option<Self> {
        match column {
            ColumnData::Fixed(data) => Some(Self::Fixed(data)),
            ColumnData::Bytes { offsets, data } => Some(Self::Strings { offsets, data }),
            ColumnData::Ragged { shapes, data, .. } => Some(Self::Ragged { shapes, data }),
            ColumnData::Nested { splits, values } => match (splits.as_slice(), &**values) {
                ([splits], ColumnData::Bytes { offsets, data }) => Some(Self::Lists {
                    splits,
                    offsets,
                    data,
                }),
                _ => None,
            },
            _ => None,
        }
    }
}

fn element_type(list: &DataType) -> Result<&DataType> {
    match list {
        DataType::List(element) | DataType::FixedSizeList(element, _) => Ok(element.data_type()),
        other => bail!("{other} is no list"),
    }
}

/// Numbers that lie packed, little-endian.
fn numbers(value: Value, data: &[u8]) -> Result<ArrayRef> {
    fn typed<T: ArrowPrimitiveType>(data: &[u8]) -> ArrayRef {
        // A copy: Arrow wants its numbers aligned.
        let length = data.len() / size_of::<T::Native>();
        let values = ScalarBuffer::<T::Native>::new(Buffer::from_slice_ref(data), 0, length);
        Arc::new(PrimitiveArray::<T>::new(values, None))
    }

    let Value::Number(dtype) = value else {
        bail!("numbers where there should be strings");
    };
    Ok(match dtype {
        DType::Bool => Arc::new(BooleanArray::from(
            data.iter().map(|byte| *byte != 0).collect::<Vec<_>>(),
        )),
        DType::UInt8 => typed::<t::UInt8Type>(data),
        DType::Int8 => typed::<t::Int8Type>(data),
        DType::UInt16 => typed::<t::UInt16Type>(data),
        DType::Int16 => typed::<t::Int16Type>(data),
        DType::UInt32 => typed::<t::UInt32Type>(data),
        DType::Int32 => typed::<t::Int32Type>(data),
        DType::UInt64 => typed::<t::UInt64Type>(data),
        DType::Int64 => typed::<t::Int64Type>(data),
        DType::Float16 => typed::<t::Float16Type>(data),
        DType::Float32 => typed::<t::Float32Type>(data),
        DType::Float64 => typed::<t::Float64Type>(data),
        DType::BFloat16 => {
            // The upper half of a float.
            let wide: Vec<u8> = data
                .chunks_exact(2)
                .flat_map(|half| [0, 0, half[0], half[1]])
                .collect();
            typed::<t::Float32Type>(&wide)
        }
        other => bail!("there is no column of type {other}"),
    })
}

fn strings(value: Value, offsets: &[u64], data: &[u8], name: &str) -> Result<ArrayRef> {
    let offsets = small(offsets)?;
    let data = Buffer::from_slice_ref(data);
    Ok(match value {
        Value::Text => match StringArray::try_new(offsets, data, None) {
            Ok(array) => Arc::new(array),
            Err(_) => return Err(NotText(name.to_owned()).into()),
        },
        Value::Bytes => Arc::new(BinaryArray::try_new(offsets, data, None)?),
        Value::File => {
            let bytes: ArrayRef = Arc::new(BinaryArray::try_new(offsets, data, None)?);
            let path = new_null_array(&DataType::Utf8, bytes.len());
            Arc::new(StructArray::try_new(file_fields(), vec![bytes, path], None)?)
        }
        Value::Number(_) => bail!("strings where there should be numbers"),
    })
}

/// Offsets of 32 bits.
fn small(offsets: &[u64]) -> Result<OffsetBuffer<i32>> {
    let offsets: Result<Vec<i32>, _> = offsets.iter().map(|offset| i32::try_from(*offset)).collect();
    let offsets = offsets.map_err(|_| {
        anyhow!("the values of some examples take more than 2 GiB, which a column of Parquet cannot hold")
    })?;
    Ok(OffsetBuffer::new(ScalarBuffer::from(offsets)))
}

fn list(kind: &DataType, offsets: &[u64], values: ArrayRef, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    Ok(match kind {
        DataType::List(element) => Arc::new(ListArray::try_new(
            Arc::clone(element),
            small(offsets)?,
            values,
            nulls,
        )?),
        DataType::FixedSizeList(element, length) => Arc::new(FixedSizeListArray::try_new(
            Arc::clone(element),
            *length,
            values,
            nulls,
        )?),
        other => bail!("{other} is no list"),
    })
}

fn with_nulls(array: &ArrayRef, nulls: NullBuffer) -> Result<ArrayRef> {
    let data = array.to_data().into_builder().nulls(Some(nulls)).build()?;
    Ok(make_array(data))
}
