//! From records to the column buffers of a batch, without an example in between.
//!
//! Each feature that is not made of others has a column of its own, named by its path: `label`, `objects/bbox`.
//!
//! | feature | column |
//! |---|---|
//! | `ClassLabel` | [`ColumnData::Fixed`], `int64` |
//! | `Scalar`, `Tensor`, `BBox`, `Audio` | [`ColumnData::Fixed`] of the declared type; with varying dimensions [`ColumnData::Ragged`] |
//! | `Text`, string `Scalar` and `Tensor` | [`ColumnData::Bytes`]; a `Tensor` whose first dimension varies [`ColumnData::Nested`] |
//! | `Image`, `LabeledImage` | pixels, [`ColumnData::Fixed`] or where sizes vary [`ColumnData::Ragged`]; undecoded [`ColumnData::Bytes`] |
//! | lazily decoded `Audio` | the file, [`ColumnData::Bytes`] |
//! | in a `Sequence`, `Dataset` or `Video` of one length | as without it, one dimension more |
//! | in one of any length | [`ColumnData::Ragged`], where elements are of one size; strings and pictures of many sizes [`ColumnData::Nested`] |
//! | in a sequence in a sequence | [`ColumnData::Nested`]: the values of all elements, and row splits for each level |
//! | `Optional` | [`ColumnData::Optional`]: values and which of them are there |
//!
//! JPEG, GIF and BMP files are not decoded in this version: [`Images`] says what becomes of them.

mod cell;
mod decode;
mod integers;
mod leaf;
mod plan;
mod scan;
#[cfg(test)]
mod tests;

use crate::features::Features;
use crate::value::DType;
use crate::{Error, Result};

pub use cell::Cell;
pub use decode::BatchDecoder;

/// What one column of a batch looks like, known before any data are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Names of the feature and of those it is nested in, joined with `/`.
    pub name: String,
    /// These names one by one, the outermost first. Names may contain a `/` themselves.
    pub path: Vec<String>,
    /// Element type; [`DType::String`] for byte strings.
    pub dtype: DType,
    /// Shape of one row, lengths of sequences in front; `None` where it varies from row to row.
    pub shape: Vec<Option<u64>>,
    /// Whether rows may be missing.
    pub optional: bool,
}

/// What becomes of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Images {
    /// Pixels. A feature that is declared JPEG, or a GIF, is refused when the decoder is made; another file than PNG where it is met.
    #[default]
    Decoded,
    /// The bytes of the files.
    Encoded,
    /// Pixels of features that are not declared JPEG or GIF; those stay the bytes of their files.
    DecodedWherePossible,
}

impl From<bool> for Images {
    /// Whether images are decoded.
    fn from(decoded: bool) -> Self {
        if decoded { Self::Decoded } else { Self::Encoded }
    }
}

impl Features {
    /// Name, type and row shape of each column of a batch, sorted by name: what a [`BatchDecoder`] has.
    ///
    /// # Errors
    /// As [`BatchDecoder::new`].
    pub fn column_specs(&self, images: impl Into<Images>) -> Result<Vec<ColumnSpec>> {
        Ok(plan::compile(self, images.into())?.specs)
    }
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
    /// Sequences, or sequences of sequences, of elements that [`ColumnData::Ragged`] cannot hold. With two levels, row `i` is the
    /// sequences `splits[0][i]..splits[0][i + 1]`, and sequence `j` the elements `splits[1][j]..splits[1][j + 1]` of `values`.
    Nested {
        /// For each level, the outermost first, where each sequence begins among those of the next level or the elements, and the end of
        /// the last: row splits, as TensorFlow calls them. Their differences are the row lengths.
        splits: Vec<Vec<u64>>,
        /// The elements of all rows: a column with a row for each.
        values: Box<ColumnData>,
    },
    /// Rows that may be missing.
    Optional {
        /// A byte a row: 1 if it is there, 0 if it is missing.
        present: Vec<u8>,
        /// All rows; missing ones are zeros, empty strings, or arrays without elements.
        values: Box<ColumnData>,
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
    /// Bytes of all buffers of the column.
    pub fn num_bytes(&self) -> usize {
        match self {
            Self::Fixed(data) => data.len(),
            Self::Bytes { offsets, data } => data.len() + 8 * offsets.len(),
            Self::Ragged {
                shapes,
                offsets,
                data,
            } => data.len() + 8 * (offsets.len() + shapes.len()),
            Self::Nested { splits, values } => {
                8 * splits.iter().map(Vec::len).sum::<usize>() + values.num_bytes()
            }
            Self::Optional { present, values } => present.len() + values.num_bytes(),
        }
    }

    /// The lengths of the sequences of a level of a nested column, level 0 those of the rows: TensorFlow's row lengths. Empty for a level
    /// or a column that has none.
    pub fn row_lengths(&self, level: usize) -> impl Iterator<Item = u64> {
        let splits = match self {
            Self::Nested { splits, .. } => splits.get(level).map_or(&[][..], Vec::as_slice),
            _ => &[],
        };
        splits.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// Shape and bytes of one row, where its values are single: numbers little-endian in C order, or one byte string.
    ///
    /// `None` if there is no such row, the row is missing, or it is not in one piece: [`ColumnData::cell`] gives those.
    pub fn row(&self, spec: &ColumnSpec, row: usize) -> Option<(Vec<u64>, &[u8])> {
        match self.cell(spec, row)? {
            Cell::Array { shape, data } => Some((shape, data)),
            Cell::Strings { shape, strings } if shape.is_empty() => {
                Some((shape, strings.first().copied().unwrap_or_default()))
            }
            _ => None,
        }
    }
}

/// More than memory can address, before anything is allocated.
fn too_large(shape: &[Option<u64>]) -> Error {
    Error::unsupported(format!(
        "a tensor of {} is larger than memory can hold",
        crate::features::Shape(shape)
    ))
}
