//! From records to the column buffers of a batch, without an example in between.
//!
//! | feature | column |
//! |---|---|
//! | `ClassLabel` | [`ColumnData::Fixed`], `int64` |
//! | `Scalar`, `Tensor` of numbers | [`ColumnData::Fixed`] of the declared type; with one varying dimension [`ColumnData::Ragged`] |
//! | `Text`, string `Scalar` and `Tensor` | [`ColumnData::Bytes`] |
//! | `Image` | pixels, [`ColumnData::Fixed`] or where sizes vary [`ColumnData::Ragged`]; undecoded [`ColumnData::Bytes`] |

mod decode;

use crate::value::DType;

pub use decode::BatchDecoder;

/// What one feature of a batch looks like, known before any data are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Feature name.
    pub name: String,
    /// Element type; [`DType::String`] for byte strings.
    pub dtype: DType,
    /// Shape of one row; `None` where it varies from row to row.
    pub shape: Vec<Option<u64>>,
}

/// The values of one feature for all rows of a batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ColumnData {
    /// Rows of one fixed shape, packed: little-endian, C order.
    Fixed(Vec<u8>),
    /// One byte string a row: row `i` is `data[offsets[i]..offsets[i + 1]]`. A tensor of `n` strings has `n` of them a row, in C order.
    Bytes {
        /// `rows * n + 1` offsets into `data`.
        offsets: Vec<u64>,
        /// All bytes.
        data: Vec<u8>,
    },
    /// One array of its own shape a row.
    Ragged {
        /// Shape of each row, `rank` numbers a row.
        shapes: Vec<u64>,
        /// `rows + 1` byte offsets into `data`.
        offsets: Vec<u64>,
        /// All elements.
        data: Vec<u8>,
    },
}

/// Rows of examples as one column a feature.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Number of rows.
    pub rows: usize,
    /// One per feature, in the order of the decoder's specs.
    pub columns: Vec<ColumnData>,
}

impl ColumnData {
    /// Shape and bytes of one row, where its values are single: numbers little-endian in C order, or one byte string.
    ///
    /// `None` if there is no such row, or the column holds several strings a row.
    pub fn row(&self, spec: &ColumnSpec, row: usize) -> Option<(Vec<u64>, &[u8])> {
        let range = |offsets: &[u64]| {
            let start = usize::try_from(*offsets.get(row)?).ok()?;
            let end = usize::try_from(*offsets.get(row + 1)?).ok()?;
            Some(start..end)
        };
        match self {
            Self::Fixed(data) => {
                let shape: Vec<u64> = spec.shape.iter().copied().collect::<Option<_>>()?;
                let elements: u64 = shape.iter().product();
                let bytes = usize::try_from(elements).ok()? * spec.dtype.num_bytes();
                let start = row.checked_mul(bytes)?;
                Some((shape, data.get(start..start + bytes)?))
            }
            Self::Bytes { offsets, data } => {
                if !spec.shape.is_empty() {
                    return None;
                }
                Some((Vec::new(), data.get(range(offsets)?)?))
            }
            Self::Ragged {
                shapes,
                offsets,
                data,
            } => {
                let rank = spec.shape.len();
                let shape = shapes.get(row * rank..(row + 1) * rank)?;
                Some((shape.to_vec(), data.get(range(offsets)?)?))
            }
        }
    }
}
