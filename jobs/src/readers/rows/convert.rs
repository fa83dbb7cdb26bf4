//! Cells to the values of features.

use bytes::Bytes;
use prep_formats::features::Feature;
use prep_formats::value::{DType, Value};

use crate::readers::rows::cell::Cell;
use crate::readers::rows::survey::quoted;

/// A cell that is not what its feature asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("wanted {wanted}, found {found}")]
pub(crate) struct Misfit {
    /// Names from the outermost column on.
    pub(crate) column: String,
    pub(crate) wanted: String,
    pub(crate) found: String,
    pub(crate) remedy: Remedy,
}

/// What could be written into the recipe, so that a cell fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Remedy {
    /// Another type.
    Type,
    /// That the value may be missing.
    Optional,
    /// That a list or nested values that are missing are taken as empty.
    Empty,
    /// That the column is kept as text, as no feature has a place for what is missing.
    Text,
}

impl Misfit {
    /// The column of the source.
    pub(crate) fn base(&self) -> &str {
        self.column.split('/').next().unwrap_or_default()
    }

    /// A list with a place that is empty.
    pub(crate) fn gap(column: &str) -> Self {
        Self {
            column: column.to_owned(),
            wanted: "values in the list".to_owned(),
            found: "one that is missing".to_owned(),
            remedy: Remedy::Text,
        }
    }

    /// Advice for whoever writes the recipe.
    pub(crate) fn hint(&self) -> String {
        let features = quoted(self.base());
        let what = match self.remedy {
            Remedy::Type => {
                format!("under `[features.{features}]`: another type; `kind = \"text\"` takes any value")
            }
            Remedy::Optional => {
                format!("under `[features.{features}]`: `optional = true`, if it may be missing")
            }
            Remedy::Empty => format!(
                "`missing_as_empty = [{:?}]`, to store what is missing as a list without elements, or as nested values that are all missing: \
                 no feature tells these apart",
                self.column
            ),
            Remedy::Text => format!(
                "under `[features.{features}]`: `kind = \"text\"`, which keeps the list as JSON, as a sequence cannot hold what is missing"
            ),
        };
        format!(
            "write into the recipe, {what}; or leave the column out with `drop`, or such rows with `--on-error skip`"
        )
    }
}

/// Which lists and nested values may be missing, and are then empty.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lacking<'a> {
    /// All, as in records, which have no other way to say that a list is empty.
    Any,
    /// These, by names from the outermost column on, and what is in them.
    Named(&'a [String]),
}

impl Lacking<'_> {
    fn allows(self, column: &str) -> bool {
        let within = |name: &String| {
            column
                .strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self {
            Self::Any => true,
            Self::Named(names) => names.iter().any(within),
        }
    }
}

/// The value of a feature that a cell has. Whether a number fits its type is looked at when it is encoded.
pub(crate) fn value(
    feature: &Feature,
    cell: Cell,
    column: &str,
    lacking: Lacking<'_>,
) -> Result<Value, Misfit> {
    let misfit = |wanted: &str, cell: &Cell| Misfit {
        column: column.to_owned(),
        wanted: wanted.to_owned(),
        found: cell.describe(),
        remedy: match cell {
            Cell::Null if is_nested(feature) => Remedy::Empty,
            Cell::Null => Remedy::Optional,
            _ => Remedy::Type,
        },
    };
    let cell = single(feature, cell, lacking);
    match feature {
        Feature::Optional(inner) => {
            let is_text = is_text(inner);
            match cell {
                Cell::Null => Ok(Value::Null),
                Cell::Loose(text) if text.is_empty() && !is_text => Ok(Value::Null),
                // What recipes call a text that may be missing takes any value, too.
                cell if is_text && !matches!(cell, Cell::Bytes(_)) => {
                    text(cell).map_err(|cell| misfit("a text", &cell))
                }
                cell => value(inner, cell, column, lacking),
            }
        }
        Feature::Text => text(cell).map_err(|cell| misfit("a text", &cell)),
        Feature::Scalar { dtype } => scalar(*dtype, cell).map_err(|cell| misfit(wanted_of(*dtype), &cell)),
        Feature::ClassLabel { num_classes, names } => match cell {
            Cell::Int(number) => Ok(Value::Int(number)),
            Cell::Bool(value) if *num_classes == 2 => Ok(Value::Int(value.into())),
            Cell::Text(name) => Ok(Value::Bytes(name)),
            Cell::Loose(name) => {
                let is_name = names.iter().any(|known| known.as_bytes() == &name[..]);
                match parse::<i64>(&name).filter(|_| !is_name) {
                    Some(number) => Ok(Value::Int(number)),
                    None => Ok(Value::Bytes(name)),
                }
            }
            cell => Err(misfit("a class by name or number", &cell)),
        },
        Feature::Image { .. } | Feature::LabeledImage { .. } => match cell {
            Cell::Bytes(bytes) => Ok(Value::Bytes(bytes)),
            Cell::Tensor(dtype, mut shape, data) => {
                if shape.len() == 2 {
                    // Of one channel.
                    shape.push(1);
                }
                Ok(Value::Tensor { dtype, shape, data })
            }
            // As Hugging Face's datasets keep pictures.
            Cell::Dict(fields) => {
                let described = Cell::Dict(fields.clone());
                let bytes = fields.into_iter().find(|(name, _)| name == "bytes");
                match bytes {
                    Some((_, Cell::Bytes(bytes))) => Ok(Value::Bytes(bytes)),
                    _ => Err(misfit("the bytes of a picture's file", &described)),
                }
            }
            cell => Err(misfit("the bytes of a picture's file", &cell)),
        },
        Feature::Audio {
            lazy_decode: true, ..
        } => match cell {
            Cell::Bytes(bytes) => Ok(Value::Bytes(bytes)),
            cell => Err(misfit("the bytes of a sound file", &cell)),
        },
        Feature::Audio { shape, dtype, .. } | Feature::Tensor { shape, dtype, .. } => {
            tensor(shape.len(), *dtype, cell).map_err(|cell| {
                let unfit = unfit(&cell, *dtype).unwrap_or(cell);
                misfit(&format!("a tensor of {dtype}"), &unfit)
            })
        }
        Feature::BBox { .. } => {
            tensor(1, DType::Float32, cell).map_err(|cell| misfit("the four numbers of a box", &cell))
        }
        Feature::Sequence { feature, .. } | Feature::Dataset { feature, .. } => {
            match cell {
                // TFDS knows no missing sequences.
                Cell::Null if lacking.allows(column) => Ok(Value::List(Vec::new())),
                // Numbers are encoded all at once.
                Cell::Tensor(dtype, shape, data)
                    if shape.len() == 1
                        && matches!(**feature, Feature::Scalar { dtype: wanted } if wanted == dtype) =>
                {
                    Ok(Value::Tensor { dtype, shape, data })
                }
                Cell::Tensor(dtype, shape, data) if !shape.is_empty() => {
                    rows_of(feature, dtype, &shape, &data, column, lacking)
                }
                Cell::List(cells) | Cell::Values(cells) => {
                    let mut values = Vec::with_capacity(cells.len());
                    for cell in cells {
                        if cell == Cell::Null && !is_nested(feature) {
                            return Err(Misfit::gap(column));
                        }
                        values.push(value(feature, cell, column, lacking)?);
                    }
                    Ok(Value::List(values))
                }
                cell => Err(misfit("a list", &cell)),
            }
        }
        Feature::Video {
            shape,
            dtype,
            encoding_format,
        } => {
            let frame = Feature::Image {
                shape: shape.get(1..).unwrap_or_default().to_vec(),
                dtype: *dtype,
                encoding_format: encoding_format.clone(),
            };
            value(&Feature::sequence(frame), cell, column, lacking)
        }
        Feature::Translation { languages } => {
            let texts = languages
                .iter()
                .map(|language| (language.as_str(), Feature::Text));
            value(&Feature::dict(texts), cell, column, lacking)
        }
        Feature::TranslationVariableLanguages { .. } => {
            let pair = Feature::dict([("language", Feature::Text), ("translation", Feature::Text)]);
            value(&Feature::sequence(pair), cell, column, lacking)
        }
        Feature::Dict(features) => {
            let mut fields = match cell {
                Cell::Dict(fields) => fields,
                Cell::Null if lacking.allows(column) => Vec::new(),
                cell => return Err(misfit("nested values", &cell)),
            };
            let mut values = Vec::with_capacity(features.len());
            for (name, feature) in features {
                let at = fields.iter().position(|(other, _)| other == name);
                let cell = at.map_or(Cell::Null, |at| fields.swap_remove(at).1);
                let path = format!("{column}/{name}");
                values.push((name.clone(), value(feature, cell, &path, lacking)?));
            }
            if let Some((name, cell)) = fields.first() {
                return Err(Misfit {
                    column: format!("{column}/{name}"),
                    wanted: "no such value".to_owned(),
                    found: cell.describe(),
                    remedy: Remedy::Type,
                });
            }
            Ok(Value::Dict(values))
        }
        other => Err(misfit(&format!("what a {} is made of", other.class()), &cell)),
    }
}

fn is_text(feature: &Feature) -> bool {
    match feature {
        Feature::Text | Feature::Scalar { dtype: DType::String } => true,
        Feature::Optional(inner) => is_text(inner),
        _ => false,
    }
}

/// Whether it is made of others, so that it cannot be missing itself.
fn is_nested(feature: &Feature) -> bool {
    matches!(
        feature,
        Feature::Sequence { .. } | Feature::Dataset { .. } | Feature::Dict(_)
    )
}

/// Of a list of one value that value, as records and arrays have single ones.
pub(crate) fn plain(cell: &Cell) -> std::borrow::Cow<'_, Cell> {
    use std::borrow::Cow;

    match cell {
        Cell::Values(values) if values.len() == 1 => Cow::Borrowed(&values[0]),
        Cell::Tensor(dtype, shape, data) if shape.iter().product::<usize>() == 1 => {
            element(*dtype, data).map_or(Cow::Borrowed(cell), Cow::Owned)
        }
        cell => Cow::Borrowed(cell),
    }
}

/// Of a list of one value that value, where the feature is no list; of none nothing. So records keep single values.
fn single(feature: &Feature, cell: Cell, lacking: Lacking<'_>) -> Cell {
    // A list of numbers that becomes a text stays a list, where it can be told from a number.
    if matches!(lacking, Lacking::Named(_)) && matches!(cell, Cell::Tensor(..)) && is_text(feature) {
        return cell;
    }
    let is_single = match feature {
        Feature::Optional(inner) => matches!(**inner, Feature::Scalar { .. }),
        Feature::Text
        | Feature::Scalar { .. }
        | Feature::ClassLabel { .. }
        | Feature::Image { .. }
        | Feature::LabeledImage { .. }
        | Feature::Audio {
            lazy_decode: true, ..
        } => true,
        _ => false,
    };
    match cell {
        Cell::Values(mut values) if is_single && values.len() < 2 => values.pop().unwrap_or(Cell::Null),
        Cell::Tensor(_, shape, _) if is_single && shape == [0] => Cell::Null,
        Cell::Tensor(dtype, shape, data)
            if is_single && shape.len() < 2 && shape.iter().product::<usize>() == 1 =>
        {
            // Types that are not looked into stay as they are.
            element(dtype, &data).unwrap_or(Cell::Tensor(dtype, Vec::new(), data))
        }
        // A tensor that may be missing, in a record that lacks it.
        Cell::Tensor(_, shape, _) if matches!(feature, Feature::Optional(_)) && shape == [0] => Cell::Null,
        other => other,
    }
}

fn wanted_of(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "a truth value",
        DType::String => "a text or bytes",
        DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64 => "a number",
        _ => "an integer",
    }
}

/// Text of any cell that has one; other cells as JSON has them.
fn text(cell: Cell) -> Result<Value, Cell> {
    match cell {
        Cell::Text(text) | Cell::Loose(text) => Ok(Value::Bytes(text)),
        Cell::Bytes(bytes) if std::str::from_utf8(&bytes).is_ok() => Ok(Value::Bytes(bytes)),
        Cell::Foreign(_, text) => Ok(Value::Bytes(text.into_bytes().into())),
        Cell::Null | Cell::Bytes(_) => Err(cell),
        other => match json(&other) {
            Some(json) => Ok(Value::Bytes(json.to_string().into_bytes().into())),
            None => Err(other),
        },
    }
}

/// A cell as JSON; `None` where it is none.
fn json(cell: &Cell) -> Option<serde_json::Value> {
    use serde_json::Value as Json;

    Some(match cell {
        Cell::Null => Json::Null,
        Cell::Bool(value) => (*value).into(),
        Cell::Int(value) => (*value).into(),
        Cell::UInt(value) => (*value).into(),
        Cell::Float(value) => serde_json::Number::from_f64(*value)?.into(),
        Cell::Text(text) | Cell::Loose(text) => std::str::from_utf8(text).ok()?.into(),
        Cell::Foreign(_, text) => text.as_str().into(),
        Cell::Bytes(_) => return None,
        Cell::Tensor(dtype, shape, data) => json_of(*dtype, shape, data)?,
        Cell::List(cells) | Cell::Values(cells) => cells.iter().map(json).collect::<Option<Vec<_>>>()?.into(),
        Cell::Dict(fields) => {
            let field = |(name, cell): &(String, Cell)| Some((name.clone(), json(cell)?));
            Json::Object(fields.iter().map(field).collect::<Option<_>>()?)
        }
    })
}

/// A tensor as JSON has it: its elements in lists in lists.
fn json_of(dtype: DType, shape: &[usize], data: &[u8]) -> Option<serde_json::Value> {
    let Some((&length, inner)) = shape.split_first() else {
        return json(&element(dtype, data)?);
    };
    let bytes = data.len().checked_div(length).unwrap_or(0);
    let rows = (0..length).map(|row| json_of(dtype, inner, data.get(row * bytes..(row + 1) * bytes)?));
    Some(rows.collect::<Option<Vec<_>>>()?.into())
}

fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// A number of a loose text that may be infinite or none, as programs write them.
pub(crate) fn loose_float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    // Rust takes `infinity` and such in any case, as others do; but digits that are too large for a number as well.
    let is_named = !text.contains(|c: char| c.is_ascii_digit());
    let value: f64 = text.parse().ok()?;
    (is_named || value.is_finite()).then_some(value)
}

pub(crate) fn loose_bool(text: &[u8]) -> Option<bool> {
    match text {
        b"true" | b"True" | b"TRUE" => Some(true),
        b"false" | b"False" | b"FALSE" => Some(false),
        _ => None,
    }
}

fn scalar(dtype: DType, cell: Cell) -> Result<Value, Cell> {
    let is_float = matches!(
        dtype,
        DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64
    );
    match cell {
        Cell::Tensor(found, shape, data) if found == dtype && shape.iter().product::<usize>() == 1 => {
            Ok(Value::Tensor {
                dtype,
                shape: Vec::new(),
                data,
            })
        }
        Cell::Text(text) | Cell::Bytes(text) if dtype == DType::String => Ok(Value::Bytes(text)),
        Cell::Loose(text) if dtype == DType::String => Ok(Value::Bytes(text)),
        Cell::Foreign(_, text) if dtype == DType::String => Ok(Value::Bytes(text.into_bytes().into())),
        Cell::Bool(value) if !is_float && dtype != DType::String => Ok(Value::Int(value.into())),
        Cell::Int(value) if is_float => Ok(Value::Float(value as f64)),
        Cell::UInt(value) if is_float => Ok(Value::Float(value as f64)),
        Cell::Float(value) if is_float => Ok(Value::Float(value)),
        Cell::Int(value) if dtype != DType::String => Ok(Value::Int(value)),
        Cell::UInt(value) if dtype == DType::UInt64 => Ok(unsigned(value)),
        Cell::Foreign(kind, text) if is_float => {
            let found = text.parse().ok().map(Value::Float);
            found.ok_or(Cell::Foreign(kind, text))
        }
        Cell::Foreign(kind, text) if dtype == DType::Int64 => {
            let found = text.parse().ok().map(Value::Int);
            found.ok_or(Cell::Foreign(kind, text))
        }
        Cell::Loose(text) => {
            let found = match dtype {
                DType::Bool => loose_bool(&text)
                    .map(i64::from)
                    .or_else(|| parse::<i64>(&text))
                    .map(Value::Int),
                DType::UInt64 => parse::<u64>(&text).map(unsigned),
                _ if is_float => loose_float(&text).map(Value::Float),
                _ => parse::<i64>(&text).map(Value::Int),
            };
            found.ok_or(Cell::Loose(text))
        }
        other => Err(other),
    }
}

/// As a tensor, since integer values have a sign.
fn unsigned(value: u64) -> Value {
    Value::Tensor {
        dtype: DType::UInt64,
        shape: Vec::new(),
        data: Bytes::copy_from_slice(&value.to_le_bytes()),
    }
}

/// A tensor of so many dimensions out of lists in lists.
fn tensor(rank: usize, dtype: DType, cell: Cell) -> Result<Value, Cell> {
    match cell {
        Cell::Tensor(found, shape, data) if found == dtype => Ok(Value::Tensor { dtype, shape, data }),
        Cell::Values(mut values) if rank == 0 && dtype == DType::String && values.len() == 1 => {
            scalar(dtype, values.remove(0))
        }
        Cell::List(_) | Cell::Tensor(..) | Cell::Bool(_) | Cell::Int(_) | Cell::UInt(_) | Cell::Float(_)
            if dtype != DType::String =>
        {
            let mut shape = Vec::new();
            let mut data = Vec::new();
            let flat = match &cell {
                Cell::Tensor(found, sizes, elements) => {
                    shape.clone_from(sizes);
                    cast(*found, elements, dtype, &mut data)
                }
                cell => flatten(cell, 0, rank, &mut shape, dtype, &mut data),
            };
            if flat.is_none() {
                return Err(cell);
            }
            Ok(Value::Tensor {
                dtype,
                shape,
                data: data.into(),
            })
        }
        // A tensor of strings is a list of them, or of such lists.
        Cell::List(cells) | Cell::Values(cells) if dtype == DType::String => {
            let described = Cell::List(cells.clone());
            let strings: Result<Vec<Value>, Cell> = cells
                .into_iter()
                .map(|cell| match cell {
                    Cell::List(_) => tensor(rank.saturating_sub(1), dtype, cell),
                    cell => scalar(dtype, cell),
                })
                .collect();
            strings.map(Value::List).map_err(|_| described)
        }
        Cell::Bytes(text) | Cell::Text(text) if dtype == DType::String && rank == 0 => Ok(Value::Bytes(text)),
        other => Err(other),
    }
}

fn flatten(
    cell: &Cell,
    depth: usize,
    rank: usize,
    shape: &mut Vec<usize>,
    dtype: DType,
    data: &mut Vec<u8>,
) -> Option<()> {
    if depth == rank {
        return put(cell, dtype, data);
    }
    if let Cell::Tensor(found, sizes, elements) = cell {
        // What is inside of lists may be in one piece.
        if depth + sizes.len() != rank {
            return None;
        }
        for (at, size) in sizes.iter().enumerate() {
            match shape.get(depth + at) {
                None => shape.push(*size),
                Some(known) if known == size => {}
                Some(_) => return None,
            }
        }
        return cast(*found, elements, dtype, data);
    }
    let Cell::List(cells) = cell else { return None };
    match shape.get(depth) {
        None => shape.push(cells.len()),
        Some(size) if *size == cells.len() => {}
        Some(_) => return None,
    }
    if cells.is_empty() {
        // What would be inside has no size of its own.
        while shape.len() < rank {
            shape.push(0);
        }
    }
    for cell in cells {
        flatten(cell, depth + 1, rank, shape, dtype, data)?;
    }
    Some(())
}

/// Appends one element.
fn put(cell: &Cell, dtype: DType, data: &mut Vec<u8>) -> Option<()> {
    let integer = match cell {
        Cell::Bool(value) => Some(i128::from(*value)),
        Cell::Int(value) => Some(i128::from(*value)),
        Cell::UInt(value) => Some(i128::from(*value)),
        _ => None,
    };
    let float = match (cell, integer) {
        (Cell::Float(value), _) => *value,
        (_, Some(integer)) => integer as f64,
        _ => return None,
    };
    macro_rules! integer {
        ($type:ty) => {
            data.extend_from_slice(&<$type>::try_from(integer?).ok()?.to_le_bytes())
        };
    }
    match dtype {
        DType::Bool => data.push(integer.filter(|value| matches!(value, 0 | 1))? as u8),
        DType::UInt8 => integer!(u8),
        DType::Int8 => integer!(i8),
        DType::UInt16 => integer!(u16),
        DType::Int16 => integer!(i16),
        DType::UInt32 => integer!(u32),
        DType::Int32 => integer!(i32),
        DType::UInt64 => integer!(u64),
        DType::Int64 => integer!(i64),
        DType::Float32 if dtype.overflows(float) => return None,
        DType::Float32 => data.extend_from_slice(&(float as f32).to_le_bytes()),
        DType::Float64 => data.extend_from_slice(&float.to_le_bytes()),
        _ => return None,
    }
    Some(())
}

/// The first number in lists that a type does not hold.
fn unfit(cell: &Cell, dtype: DType) -> Option<Cell> {
    let does_not_fit = |cell: &Cell| put(cell, dtype, &mut Vec::new()).is_none();
    match cell {
        Cell::List(cells) => cells.iter().find_map(|cell| unfit(cell, dtype)),
        Cell::Tensor(found, _, data) => data
            .chunks_exact(found.num_bytes().max(1))
            .filter_map(|bytes| element(*found, bytes))
            .find(does_not_fit),
        cell => does_not_fit(cell).then(|| cell.clone()),
    }
}

/// The element at the beginning of these bytes as a cell; `None` for types that are not looked into.
pub(crate) fn element(dtype: DType, bytes: &[u8]) -> Option<Cell> {
    macro_rules! number {
        ($type:ty) => {
            <$type>::from_le_bytes(*bytes.first_chunk()?)
        };
    }
    Some(match dtype {
        DType::Bool => Cell::Bool(*bytes.first()? != 0),
        DType::UInt8 => Cell::Int(number!(u8).into()),
        DType::Int8 => Cell::Int(number!(i8).into()),
        DType::UInt16 => Cell::Int(number!(u16).into()),
        DType::Int16 => Cell::Int(number!(i16).into()),
        DType::UInt32 => Cell::Int(number!(u32).into()),
        DType::Int32 => Cell::Int(number!(i32).into()),
        DType::UInt64 => {
            let value = number!(u64);
            i64::try_from(value).map_or(Cell::UInt(value), Cell::Int)
        }
        DType::Int64 => Cell::Int(number!(i64)),
        DType::Float32 => Cell::Float(number!(f32).into()),
        DType::Float64 => Cell::Float(number!(f64)),
        _ => return None,
    })
}

/// Elements of one type as those of another, where each fits.
fn cast(from: DType, elements: &[u8], to: DType, data: &mut Vec<u8>) -> Option<()> {
    if from.num_bytes() == 0 {
        return None;
    }
    for bytes in elements.chunks_exact(from.num_bytes()) {
        put(&element(from, bytes)?, to, data)?;
    }
    Some(())
}

/// A tensor as the sequence of what it has along its first dimension.
fn rows_of(
    feature: &Feature,
    dtype: DType,
    shape: &[usize],
    data: &Bytes,
    column: &str,
    lacking: Lacking<'_>,
) -> Result<Value, Misfit> {
    let Some(bytes) = data.len().checked_div(shape[0]).filter(|_| shape[0] > 0) else {
        return Ok(Value::List(Vec::new()));
    };
    let row = |index: usize| {
        let part = data.slice(index * bytes..(index + 1) * bytes);
        let cell = match shape.len() {
            1 => element(dtype, &part).unwrap_or(Cell::Tensor(dtype, Vec::new(), part)),
            _ => Cell::Tensor(dtype, shape[1..].to_vec(), part),
        };
        value(feature, cell, column, lacking)
    };
    Ok(Value::List((0..shape[0]).map(row).collect::<Result<_, _>>()?))
}
