//! One row of a column.

use crate::columns::{ColumnData, ColumnSpec};

/// What one row of a column holds, borrowed from the batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cell<'a> {
    /// An optional row that is missing.
    Missing,
    /// Numbers, little-endian in C order.
    Array {
        /// Dimensions.
        shape: Vec<u64>,
        /// The elements.
        data: &'a [u8],
    },
    /// Byte strings in C order; a single one without dimensions.
    Strings {
        /// Dimensions.
        shape: Vec<u64>,
        /// One each.
        strings: Vec<&'a [u8]>,
    },
    /// Elements that do not make one array.
    List(Vec<Cell<'a>>),
}

impl ColumnData {
    /// One row. A sequence is one array as far as its elements are of one size: so an innermost sequence of numbers or strings is.
    ///
    /// `None` if there is no such row, or the spec is that of another column.
    pub fn cell(&self, spec: &ColumnSpec, row: usize) -> Option<Cell<'_>> {
        cell(self, &spec.shape, spec.dtype.num_bytes(), row)
    }
}

fn cell<'a>(
    column: &'a ColumnData,
    shape: &[Option<u64>],
    element_bytes: usize,
    row: usize,
) -> Option<Cell<'a>> {
    match column {
        ColumnData::Fixed(_) | ColumnData::Bytes { .. } => cells(column, shape, element_bytes, row, None),
        ColumnData::Ragged {
            shapes,
            offsets,
            data,
        } => {
            let rank = shape.len();
            let shape = shapes.get(row.checked_mul(rank)?..row.checked_add(1)?.checked_mul(rank)?)?;
            Some(Cell::Array {
                shape: shape.to_vec(),
                data: data.get(range(offsets, row)?)?,
            })
        }
        ColumnData::Nested { splits, values } => {
            let inner = shape.get(splits.len()..)?;
            nested(splits, values, inner, element_bytes, row)
        }
        ColumnData::Optional { present, values } => match present.get(row)? {
            0 => Some(Cell::Missing),
            _ => cell(values, shape, element_bytes, row),
        },
    }
}

fn nested<'a>(
    splits: &'a [Vec<u64>],
    values: &'a ColumnData,
    shape: &[Option<u64>],
    element_bytes: usize,
    row: usize,
) -> Option<Cell<'a>> {
    let (first, deeper) = splits.split_first()?;
    let elements = range(first, row)?;
    if !deeper.is_empty() {
        let lists = elements.map(|element| nested(deeper, values, shape, element_bytes, element));
        return Some(Cell::List(lists.collect::<Option<_>>()?));
    }
    match values {
        ColumnData::Fixed(_) | ColumnData::Bytes { .. } => {
            cells(values, shape, element_bytes, elements.start, Some(elements.len()))
        }
        _ => {
            let elements = elements.map(|element| cell(values, shape, element_bytes, element));
            Some(Cell::List(elements.collect::<Option<_>>()?))
        }
    }
}

/// Successive rows of a column of one shape as one array: with their number as a dimension, or one row without.
fn cells<'a>(
    column: &'a ColumnData,
    shape: &[Option<u64>],
    element_bytes: usize,
    row: usize,
    count: Option<usize>,
) -> Option<Cell<'a>> {
    let inner: Vec<u64> = shape.iter().copied().collect::<Option<_>>()?;
    let size = inner.iter().try_fold(1usize, |product, &size| {
        product.checked_mul(usize::try_from(size).ok()?)
    })?;
    let (start, length) = (row.checked_mul(size)?, count.unwrap_or(1).checked_mul(size)?);
    let mut shape = inner;
    if let Some(count) = count {
        shape.insert(0, count as u64);
    }
    match column {
        ColumnData::Fixed(data) => {
            let start = start.checked_mul(element_bytes)?;
            let end = start.checked_add(length.checked_mul(element_bytes)?)?;
            Some(Cell::Array {
                shape,
                data: data.get(start..end)?,
            })
        }
        ColumnData::Bytes { offsets, data } => {
            let strings = (start..start.checked_add(length)?).map(|index| data.get(range(offsets, index)?));
            Some(Cell::Strings {
                shape,
                strings: strings.collect::<Option<_>>()?,
            })
        }
        _ => None,
    }
}

fn range(offsets: &[u64], row: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(*offsets.get(row)?).ok()?;
    let end = usize::try_from(*offsets.get(row.checked_add(1)?)?).ok()?;
    (start <= end).then_some(start..end)
}
