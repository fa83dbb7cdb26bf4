//! From records to the column buffers of a batch, without an example in between.

use crate::Result;
use crate::features::Features;
use crate::value::DType;

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
    /// One byte string a row: row `i` is `data[offsets[i]..offsets[i + 1]]`.
    Bytes {
        /// `rows + 1` offsets into `data`.
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

/// Decodes records under a schema into batches. One per thread.
#[derive(Debug)]
pub struct BatchDecoder {}
impl BatchDecoder {
    /// Compiles a schema. `decode_images: false` leaves images as encoded bytes.
    pub fn new(_features: &Features, _decode_images: bool) -> Result<Self> {
        todo!()
    }
    /// Name, dtype and row shape of each column.
    pub fn specs(&self) -> &[ColumnSpec] {
        todo!()
    }
    /// An empty batch with room for `rows`.
    pub fn new_batch(&self, _rows: usize) -> Batch {
        todo!()
    }
    /// Empties a batch and keeps its buffers.
    pub fn clear(&self, _batch: &mut Batch) {
        todo!()
    }
    /// Decodes one record as the next row. After an error the batch is as it was before.
    pub fn push(&mut self, _record: &[u8], _batch: &mut Batch) -> Result<()> {
        todo!()
    }
}
