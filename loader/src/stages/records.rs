//! Records of a dataset as columns: for stages that copy values out, and have no need of an element for each record.

use std::sync::Arc;

use prep_formats::columns::{Batch, Cell, ColumnSpec};
use prep_formats::value::DType;

use crate::dataset::Dataset;
use crate::element::{Array, Element, Origin, Value};
use crate::error::{Error, Result};

/// Records that were read together.
#[derive(Debug)]
pub(crate) struct Records {
    pub(super) dataset: Dataset,
    /// Their positions in the dataset.
    pub(super) indices: Vec<u64>,
    pub(super) batch: Batch,
    pub(super) columns: Arc<Columns>,
}

/// What the columns of a dataset are.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) specs: Vec<ColumnSpec>,
    /// Their names, to be shared.
    pub(super) names: Vec<Arc<str>>,
}

impl Records {
    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Bytes of a record, on average.
    pub(crate) fn bytes_each(&self) -> u64 {
        let bytes: usize = self.batch.columns.iter().map(|column| column.num_bytes()).sum();
        (bytes / self.len().max(1)) as u64
    }

    fn cell(&self, column: usize, row: usize) -> Result<Cell<'_>> {
        let cell = self.batch.columns[column].cell(&self.columns.specs[column], row);
        cell.ok_or_else(|| {
            let name = &self.columns.names[column];
            Error::Element(format!("row {row} of column `{name}` is not there"))
        })
    }

    /// The column of a name.
    fn column(&self, name: &str) -> Option<usize> {
        self.columns.names.iter().position(|own| **own == *name)
    }

    fn value(&self, column: usize, row: usize) -> Result<Value> {
        copied(self.cell(column, row)?, self.columns.specs[column].dtype)
    }

    fn origin(&self, row: usize) -> Origin {
        Origin::new(self.dataset.clone(), self.indices[row])
    }

    /// A record, copied out.
    pub(super) fn element(&self, row: usize) -> Result<Element> {
        let names = self.columns.names.iter().enumerate();
        let mut element = names
            .map(|(column, name)| Ok((Arc::clone(name), self.value(column, row)?)))
            .collect::<Result<Element>>()?;
        element.set_origin(Some(self.origin(row)));
        Ok(element)
    }
}

/// A cell, copied out of its batch.
fn copied(cell: Cell<'_>, dtype: DType) -> Result<Value> {
    Ok(match cell {
        Cell::Missing => Value::Missing,
        Cell::Array { shape, data } => Value::Array(Array::new(dtype, sizes(&shape), data.to_vec())?),
        Cell::Strings { shape, strings } => {
            let strings: Vec<bytes::Bytes> = strings.into_iter().map(bytes::Bytes::copy_from_slice).collect();
            Value::Array(Array::strings(sizes(&shape), strings)?)
        }
        Cell::List(cells) => Value::List(
            cells
                .into_iter()
                .map(|cell| copied(cell, dtype))
                .collect::<Result<Vec<_>>>()?
                .into(),
        ),
        other => return Err(Error::Element(format!("{other:?} is not known here"))),
    })
}

fn sizes(shape: &[u64]) -> Vec<usize> {
    let size = |&size| usize::try_from(size).unwrap_or(usize::MAX);
    shape.iter().map(size).collect()
}

/// What a stage is given: an element, or a record of which none was made.
#[derive(Debug)]
pub(crate) enum Given {
    Element(Element),
    Record { records: Arc<Records>, row: usize },
}

/// Numbers, wherever they lie.
#[derive(Debug, PartialEq)]
pub(super) struct Numbers<'a> {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) data: &'a [u8],
}

impl Given {
    pub(crate) fn into_element(self) -> Result<Element> {
        match self {
            Self::Element(element) => Ok(element),
            Self::Record { records, row } => records.element(row),
        }
    }

    pub(super) fn origin(&self) -> Option<Origin> {
        match self {
            Self::Element(element) => element.origin().cloned(),
            Self::Record { records, row } => Some(records.origin(*row)),
        }
    }

    /// The numbers of a name. `None` for byte strings.
    ///
    /// # Errors
    /// As [`Element::array`].
    pub(super) fn numbers(&self, name: &str) -> Result<Option<Numbers<'_>>> {
        match self {
            Self::Element(element) => {
                let array = element.array(name)?;
                Ok(array.bytes().map(|data| Numbers {
                    dtype: array.dtype(),
                    shape: array.shape().to_vec(),
                    data,
                }))
            }
            Self::Record { records, row } => {
                match records
                    .column(name)
                    .map(|column| (column, records.cell(column, *row)))
                {
                    Some((column, Ok(Cell::Array { shape, data }))) => Ok(Some(Numbers {
                        dtype: records.columns.specs[column].dtype,
                        shape: sizes(&shape),
                        data,
                    })),
                    // Something else, or nothing: an element says it.
                    _ => records.element(*row)?.array(name).map(|_| None),
                }
            }
        }
    }

    /// The value of a name.
    ///
    /// # Errors
    /// A name that is not there.
    pub(super) fn value(&self, name: &str) -> Result<Value> {
        match self {
            Self::Element(element) => element.get(name).cloned().ok_or_else(|| element.no_value(name)),
            Self::Record { records, row } => match records.column(name) {
                Some(column) => records.value(column, *row),
                None => Err(records.element(*row)?.no_value(name)),
            },
        }
    }
}
