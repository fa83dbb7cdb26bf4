//! Rows of Parquet files, by the crates of Apache Arrow.
//!
//! The schema in the file says what columns are; which of them lack values, its statistics do. What Hugging Face's `datasets` note under the
//! key `huggingface` says which columns are pictures, classes, sounds and arrays. Row groups are read side by side, a few
//! megabytes of rows at a time.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use ::parquet::file::metadata::ParquetMetaData;
use anyhow::{Context, Result, anyhow, bail};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use prep_formats::features::{Encoding, Feature};
use prep_formats::value::DType;
use serde_json::Value as Json;

use crate::readers::rows::cell::{Cell, Row, read_row, write_row};
use crate::readers::rows::file::RowFile;
use crate::readers::rows::survey::{Place, Survey, Told, picture};
use crate::readers::rows::{RawRow, RowReader, Rows};

/// Rows of a batch are about so many bytes, as the file says how many there are.
const BATCH_BYTES: u64 = 4 << 20;
/// And at most so many.
const BATCH_ROWS: u64 = 1024;
/// Columns in columns are followed so deep.
const MOST_NESTED: usize = 32;

/// Reads Parquet.
#[derive(Debug)]
pub(crate) struct Parquet {
    /// The columns that are wanted; `None` for all.
    columns: Option<Vec<String>>,
}

impl Parquet {
    pub(crate) fn new(columns: Option<Vec<String>>) -> Self {
        Self { columns }
    }

    fn wants(&self, name: &str) -> bool {
        self.columns
            .as_ref()
            .is_none_or(|columns| columns.iter().any(|other| other == name))
    }
}

/// The crates' errors, and their panics over files that are damaged in ways they did not think of, as errors.
fn guarded<T>(shown: &str, work: impl FnOnce() -> Result<T, ::parquet::errors::ParquetError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.with_context(|| format!("could not read {shown} as Parquet")),
        Err(_) => bail!("could not read {shown} as Parquet: it is damaged"),
    }
}

fn open(file: &mut RowFile<'_>) -> Result<(File, ArrowReaderMetadata)> {
    let shown = file.shown.clone();
    // The file stays open when a copy's name is gone.
    let opened = File::open(file.local()?.path()).with_context(|| format!("could not open {shown}"))?;
    let metadata = guarded(&shown, || {
        ArrowReaderMetadata::load(&opened, ArrowReaderOptions::new())
    })?;
    Ok((opened, metadata))
}

fn rows_of(metadata: &ParquetMetaData) -> u64 {
    let groups = metadata.row_groups().iter();
    groups
        .map(|group| u64::try_from(group.num_rows()).unwrap_or(0))
        .sum()
}

impl RowReader for Parquet {
    fn endings(&self) -> &'static [&'static str] {
        &[".parquet", ".pq"]
    }

    fn unit(&self) -> &'static str {
        "row"
    }

    fn columns(&self, file: &mut RowFile<'_>, source: u32, survey: &mut Survey) -> Result<bool> {
        let (_, metadata) = open(file)?;
        let place = Place {
            source,
            file: file.index,
            row: 0,
            path: file.shown.as_str().into(),
            unit: "",
        };
        let rows = rows_of(metadata.metadata());
        let schema = metadata.schema();
        let notes = hugging_face(schema);
        let mut leaf = 0;
        for field in schema.fields() {
            let note = notes.as_ref().and_then(|notes| notes.get(field.name()));
            let first = leaf;
            leaf += leaves(field.data_type());
            if !self.wants(field.name()) {
                continue;
            }
            let told = told(field, note, metadata.metadata(), first, 0);
            survey.tell(field.name(), told, rows, &place);
        }
        survey.rows += rows;
        Ok(true)
    }

    fn pieces(&self, file: &mut RowFile<'_>) -> Result<u64> {
        let (_, metadata) = open(file)?;
        Ok(metadata.metadata().num_row_groups().max(1) as u64)
    }

    fn read(&self, file: &mut RowFile<'_>, piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let shown = file.shown.clone();
        let (opened, metadata) = open(file)?;
        let groups = metadata.metadata().row_groups();
        // Of a member of an archive all are one piece.
        let wanted: Vec<usize> = match file.is_member() {
            true => (0..groups.len()).collect(),
            false => (0..groups.len()).filter(|index| *index as u64 == piece).collect(),
        };
        let total = rows_of(metadata.metadata());
        for index in wanted {
            let before = groups[..index].iter();
            let mut row: u64 = before
                .map(|group| u64::try_from(group.num_rows()).unwrap_or(0))
                .sum();
            let group = &groups[index];
            let (count, bytes) = (
                group.num_rows().max(1) as u64,
                group.total_byte_size().max(0) as u64,
            );
            let batch = (BATCH_BYTES * count / bytes.max(1)).clamp(1, BATCH_ROWS);
            let roots: Vec<usize> = metadata
                .schema()
                .fields()
                .iter()
                .enumerate()
                .filter(|(_, field)| self.wants(field.name()))
                .map(|(root, _)| root)
                .collect();
            let mask = ProjectionMask::roots(metadata.parquet_schema(), roots);
            let again = opened
                .try_clone()
                .with_context(|| format!("could not open {shown}"))?;
            let mut batches = guarded(&shown, || {
                ParquetRecordBatchReaderBuilder::new_with_metadata(again, metadata.clone())
                    .with_projection(mask)
                    .with_row_groups(vec![index])
                    .with_batch_size(batch as usize)
                    .build()
            })?;
            while let Some(batch) = guarded(&shown, || Ok(batches.next().transpose()?))? {
                let schema = batch.schema();
                for index in 0..batch.num_rows() {
                    let mut cells: Vec<(&str, Cell)> = Vec::with_capacity(batch.num_columns());
                    for (field, column) in schema.fields().iter().zip(batch.columns()) {
                        let value = cell(column, index, 0).with_context(|| {
                            format!("{shown}, row {}, column `{}`", row + 1, field.name())
                        })?;
                        cells.push((field.name(), value));
                    }
                    let mut data = Vec::new();
                    write_row(&cells, &mut data);
                    let next = RawRow {
                        row,
                        data: data.into(),
                        tag: 0,
                        way: (row, total),
                    };
                    row += 1;
                    if rows.put(next)?.is_break() {
                        return Ok(());
                    }
                }
            }
            file.add_progress(u64::try_from(group.compressed_size()).unwrap_or(0));
        }
        Ok(())
    }

    fn cells(&self, data: &Bytes, _tag: u64) -> Result<Row> {
        read_row(data).context("a row came malformed out of the reader")
    }
}

/// What Hugging Face's `datasets` say of the columns, by name.
fn hugging_face(schema: &Schema) -> Option<Json> {
    let text = schema.metadata().get("huggingface")?;
    let notes: Json = serde_json::from_str(text).ok()?;
    notes.get("info")?.get("features").cloned()
}

/// How many columns of the file a column of its schema is.
fn leaves(kind: &DataType) -> usize {
    match kind {
        DataType::Struct(fields) => fields.iter().map(|field| leaves(field.data_type())).sum(),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => leaves(field.data_type()),
        DataType::Dictionary(_, values) => leaves(values),
        _ => 1,
    }
}

/// Whether a column of the file may lack values; where its statistics do not say, its schema does.
fn may_lack(field: &Field, metadata: &ParquetMetaData, leaf: usize) -> bool {
    field.is_nullable()
        && metadata
            .row_groups()
            .iter()
            .filter(|group| group.num_rows() > 0)
            .any(|group| {
                let statistics = group.columns().get(leaf).and_then(|column| column.statistics());
                statistics
                    .and_then(|statistics| statistics.null_count_opt())
                    .is_none_or(|count| count > 0)
            })
}

/// What the file says of a column.
fn told(field: &Field, note: Option<&Json>, metadata: &ParquetMetaData, leaf: usize, depth: usize) -> Told {
    let optional = |feature: Feature| match may_lack(field, metadata, leaf) {
        false => feature,
        true => match feature {
            Feature::Text => Feature::Optional(Box::new(Feature::Scalar { dtype: DType::String })),
            feature @ (Feature::Scalar { .. } | Feature::Tensor { .. }) => {
                Feature::Optional(Box::new(feature))
            }
            feature => feature,
        },
    };
    match feature(field.data_type(), note, metadata, leaf, depth) {
        Ok(feature) => Told::Feature(optional(feature)),
        Err(kind) => Told::Foreign(kind),
    }
}

/// The feature of a type; an error is the name of one that no feature is.
fn feature(
    kind: &DataType,
    note: Option<&Json>,
    metadata: &ParquetMetaData,
    leaf: usize,
    depth: usize,
) -> Result<Feature, String> {
    if depth > MOST_NESTED {
        return Err(format!("column nested more than {MOST_NESTED} deep"));
    }
    if let Some(feature) = note.and_then(|note| noted(note, kind)) {
        return Ok(feature);
    }
    let scalar = |dtype| Ok(Feature::Scalar { dtype });
    match kind {
        DataType::Boolean => scalar(DType::Bool),
        DataType::Int8 => scalar(DType::Int8),
        DataType::Int16 => scalar(DType::Int16),
        DataType::Int32 => scalar(DType::Int32),
        DataType::Int64 => scalar(DType::Int64),
        DataType::UInt8 => scalar(DType::UInt8),
        DataType::UInt16 => scalar(DType::UInt16),
        DataType::UInt32 => scalar(DType::UInt32),
        DataType::UInt64 => scalar(DType::UInt64),
        DataType::Float16 => scalar(DType::Float16),
        DataType::Float32 => scalar(DType::Float32),
        DataType::Float64 => scalar(DType::Float64),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(Feature::Text),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            scalar(DType::String)
        }
        DataType::Dictionary(_, values) => feature(values, note, metadata, leaf, depth + 1),
        DataType::FixedSizeList(inner, length) => {
            let element = feature(inner.data_type(), inner_note(note), metadata, leaf, depth + 1)?;
            let length = u64::try_from(*length).unwrap_or(0);
            Ok(match element {
                Feature::Scalar { dtype } if dtype != DType::String => {
                    Feature::tensor(vec![Some(length)], dtype)
                }
                Feature::Tensor {
                    mut shape,
                    dtype,
                    encoding: Encoding::None,
                } => {
                    shape.insert(0, Some(length));
                    Feature::tensor(shape, dtype)
                }
                element => Feature::Sequence {
                    feature: Box::new(element),
                    length: Some(length),
                },
            })
        }
        DataType::List(inner)
        | DataType::LargeList(inner)
        | DataType::ListView(inner)
        | DataType::LargeListView(inner) => {
            let element = feature(inner.data_type(), inner_note(note), metadata, leaf, depth + 1)?;
            Ok(Feature::sequence(element))
        }
        DataType::Map(entries, _) => {
            let element = feature(entries.data_type(), None, metadata, leaf, depth + 1)?;
            Ok(Feature::sequence(element))
        }
        DataType::Struct(fields) => {
            let mut features = Vec::new();
            let mut leaf = leaf;
            for field in fields {
                let note = note.and_then(|note| note.get(field.name()));
                // In a list nothing can be missing; what is shows when it is read.
                let inner = match depth {
                    0 => told(field, note, metadata, leaf, depth),
                    _ => match feature(field.data_type(), note, metadata, leaf, depth + 1) {
                        Ok(feature) => Told::Feature(feature),
                        Err(kind) => Told::Foreign(kind),
                    },
                };
                leaf += leaves(field.data_type());
                match inner {
                    Told::Feature(feature) => features.push((field.name().clone(), feature)),
                    Told::Foreign(kind) => return Err(kind),
                }
            }
            Ok(Feature::dict(features))
        }
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => Err(format!("decimal({precision}, {scale})")),
        DataType::Timestamp(unit, None) => Err(format!("timestamp[{}]", unit_of(unit))),
        DataType::Timestamp(unit, Some(zone)) => Err(format!("timestamp[{}, {zone}]", unit_of(unit))),
        DataType::Date32 | DataType::Date64 => Err("date".to_owned()),
        DataType::Time32(unit) | DataType::Time64(unit) => Err(format!("time[{}]", unit_of(unit))),
        DataType::Duration(unit) => Err(format!("duration[{}]", unit_of(unit))),
        DataType::Null => Err("column without any value".to_owned()),
        other => Err(format!("column of type {other}")),
    }
}

fn unit_of(unit: &TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

/// What Hugging Face's note of a list says of its elements.
fn inner_note(note: Option<&Json>) -> Option<&Json> {
    match note? {
        Json::Array(items) => items.first(),
        note => note.get("feature"),
    }
}

/// The feature that a note of Hugging Face's names, where it says more than the type does.
fn noted(note: &Json, kind: &DataType) -> Option<Feature> {
    let is_bytes = |kind: &DataType| {
        matches!(
            kind,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView
        )
    };
    let holds_file = is_bytes(kind)
        || matches!(kind, DataType::Struct(fields) if fields.iter().any(|field| field.name() == "bytes" && is_bytes(field.data_type())));
    match note.get("_type")?.as_str()? {
        "Image" if holds_file => Some(picture()),
        "Audio" if holds_file => Some(Feature::Audio {
            shape: vec![None],
            dtype: DType::Int64,
            file_format: None,
            sample_rate: note.get("sampling_rate").and_then(Json::as_u64),
            encoding: Encoding::None,
            lazy_decode: true,
        }),
        "ClassLabel" if kind.is_integer() => {
            let names: Vec<String> = note
                .get("names")?
                .as_array()?
                .iter()
                .map(|name| name.as_str().map(str::to_owned))
                .collect::<Option<_>>()?;
            let num_classes = match names.len() as u64 {
                0 => note.get("num_classes")?.as_u64()?,
                count => count,
            };
            Some(Feature::ClassLabel { num_classes, names })
        }
        "Array2D" | "Array3D" | "Array4D" | "Array5D" => {
            let shape = note.get("shape")?.as_array()?.iter();
            let shape: Vec<Option<u64>> = shape.map(Json::as_u64).collect();
            let dtype = DType::from_name(note.get("dtype")?.as_str()?)?;
            Some(Feature::tensor(shape, dtype))
        }
        _ => None,
    }
}

fn number<T: ArrowPrimitiveType>(array: &dyn Array, row: usize) -> T::Native {
    array.as_primitive::<T>().value(row)
}

/// The value of a row of a column.
fn cell(array: &ArrayRef, row: usize, depth: usize) -> Result<Cell> {
    if depth > MOST_NESTED {
        bail!("it is nested more than {MOST_NESTED} deep");
    }
    if array.is_null(row) {
        return Ok(Cell::Null);
    }
    let bytes = |bytes: &[u8]| Cell::Bytes(Bytes::copy_from_slice(bytes));
    let text = |text: &str| Cell::Text(Bytes::copy_from_slice(text.as_bytes()));
    Ok(match array.data_type() {
        DataType::Null => Cell::Null,
        DataType::Boolean => Cell::Bool(array.as_boolean().value(row)),
        DataType::Int8 => Cell::Int(number::<Int8Type>(array, row).into()),
        DataType::Int16 => Cell::Int(number::<Int16Type>(array, row).into()),
        DataType::Int32 => Cell::Int(number::<Int32Type>(array, row).into()),
        DataType::Int64 => Cell::Int(number::<Int64Type>(array, row)),
        DataType::UInt8 => Cell::Int(number::<UInt8Type>(array, row).into()),
        DataType::UInt16 => Cell::Int(number::<UInt16Type>(array, row).into()),
        DataType::UInt32 => Cell::Int(number::<UInt32Type>(array, row).into()),
        DataType::UInt64 => {
            let value = number::<UInt64Type>(array, row);
            i64::try_from(value).map_or(Cell::UInt(value), Cell::Int)
        }
        DataType::Float16 => Cell::Float(number::<Float16Type>(array, row).to_f64()),
        DataType::Float32 => Cell::Float(number::<Float32Type>(array, row).into()),
        DataType::Float64 => Cell::Float(number::<Float64Type>(array, row)),
        DataType::Utf8 => text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => text(array.as_string_view().value(row)),
        DataType::Binary => bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(row)),
        DataType::Dictionary(..) => {
            let dictionary = array
                .as_any_dictionary_opt()
                .context("a dictionary without its values")?;
            let index = dictionary.normalized_keys().get(row).copied();
            let index = index
                .filter(|index| *index < dictionary.values().len())
                .context("a dictionary without that value")?;
            cell(dictionary.values(), index, depth + 1)?
        }
        DataType::List(_) => list(&array.as_list::<i32>().value(row), depth)?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row), depth)?,
        DataType::ListView(_) => list(&array.as_list_view::<i32>().value(row), depth)?,
        DataType::LargeListView(_) => list(&array.as_list_view::<i64>().value(row), depth)?,
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(row), depth)?,
        DataType::Map(..) => {
            let entries: ArrayRef = std::sync::Arc::new(array.as_map().value(row));
            list(&entries, depth)?
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let mut values = Vec::with_capacity(fields.len());
            for (field, column) in fields.iter().zip(columns) {
                values.push((field.name().clone(), cell(column, row, depth + 1)?));
            }
            Cell::Dict(values)
        }
        kind => Cell::Foreign(kind.to_string(), foreign(array, kind, row)?),
    })
}

/// A list, of numbers as the memory of them.
fn list(values: &ArrayRef, depth: usize) -> Result<Cell> {
    fn memory<T: ArrowPrimitiveType>(values: &ArrayRef) -> Option<&[u8]> {
        let array: &PrimitiveArray<T> = values.as_primitive_opt()?;
        let buffer = array.values().inner();
        Some(buffer.as_slice())
    }

    if values.null_count() == 0 && cfg!(target_endian = "little") {
        let found = match values.data_type() {
            DataType::Int32 => Some((DType::Int32, memory::<Int32Type>(values))),
            DataType::Int64 => Some((DType::Int64, memory::<Int64Type>(values))),
            DataType::UInt8 => Some((DType::UInt8, memory::<UInt8Type>(values))),
            DataType::Float32 => Some((DType::Float32, memory::<Float32Type>(values))),
            DataType::Float64 => Some((DType::Float64, memory::<Float64Type>(values))),
            _ => None,
        };
        if let Some((dtype, Some(memory))) = found
            && memory.len() == values.len() * dtype.num_bytes()
        {
            return Ok(Cell::Tensor(
                dtype,
                vec![values.len()],
                Bytes::copy_from_slice(memory),
            ));
        }
    }
    let cells = (0..values.len()).map(|row| cell(values, row, depth + 1));
    Ok(Cell::List(cells.collect::<Result<_>>()?))
}

/// What no feature is, as text: decimals with their point, times as numbers of their unit since their beginning.
fn foreign(array: &ArrayRef, kind: &DataType, row: usize) -> Result<String> {
    use arrow_array::types as t;

    Ok(match kind {
        DataType::Decimal32(..) => array.as_primitive::<t::Decimal32Type>().value_as_string(row),
        DataType::Decimal64(..) => array.as_primitive::<t::Decimal64Type>().value_as_string(row),
        DataType::Decimal128(..) => array.as_primitive::<t::Decimal128Type>().value_as_string(row),
        DataType::Decimal256(..) => array.as_primitive::<t::Decimal256Type>().value_as_string(row),
        DataType::Timestamp(TimeUnit::Second, _) => number::<t::TimestampSecondType>(array, row).to_string(),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            number::<t::TimestampMillisecondType>(array, row).to_string()
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            number::<t::TimestampMicrosecondType>(array, row).to_string()
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            number::<t::TimestampNanosecondType>(array, row).to_string()
        }
        DataType::Date32 => number::<t::Date32Type>(array, row).to_string(),
        DataType::Date64 => number::<t::Date64Type>(array, row).to_string(),
        DataType::Time32(TimeUnit::Second) => number::<t::Time32SecondType>(array, row).to_string(),
        DataType::Time32(_) => number::<t::Time32MillisecondType>(array, row).to_string(),
        DataType::Time64(TimeUnit::Microsecond) => number::<t::Time64MicrosecondType>(array, row).to_string(),
        DataType::Time64(_) => number::<t::Time64NanosecondType>(array, row).to_string(),
        DataType::Duration(TimeUnit::Second) => number::<t::DurationSecondType>(array, row).to_string(),
        DataType::Duration(TimeUnit::Millisecond) => {
            number::<t::DurationMillisecondType>(array, row).to_string()
        }
        DataType::Duration(TimeUnit::Microsecond) => {
            number::<t::DurationMicrosecondType>(array, row).to_string()
        }
        DataType::Duration(TimeUnit::Nanosecond) => {
            number::<t::DurationNanosecondType>(array, row).to_string()
        }
        other => return Err(anyhow!("there is no feature for a column of type {other}")),
    })
}
