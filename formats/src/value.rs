//! Typed values of examples, before they are encoded and after they are decoded.

use bytes::Bytes;

/// The element type of a tensor, with the names that NumPy and TFDS use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// `bool`, one byte, 0 or 1.
    Bool,
    /// `uint8`.
    UInt8,
    /// `int8`.
    Int8,
    /// `uint16`.
    UInt16,
    /// `int16`.
    Int16,
    /// `uint32`.
    UInt32,
    /// `int32`.
    Int32,
    /// `uint64`.
    UInt64,
    /// `int64`.
    Int64,
    /// `float16`, IEEE half.
    Float16,
    /// `bfloat16`.
    BFloat16,
    /// `float32`.
    Float32,
    /// `float64`.
    Float64,
    /// `string`: byte strings of any length.
    String,
}

/// A typed value of one feature.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A dense array of a fixed-size type: `data` is little-endian, C order, `shape.iter().product() * dtype size` bytes.
    /// Pixels of an image are `uint8[height, width, channels]`.
    Tensor {
        /// Element type, not [`DType::String`].
        dtype: DType,
        /// Dimensions, outermost first; empty for a scalar.
        shape: Vec<usize>,
        /// The elements.
        data: Bytes,
    },
    /// Text, a byte string, or an image that is already encoded.
    Bytes(Bytes),
    /// An integer scalar or a class label by number.
    Int(i64),
    /// A floating-point scalar.
    Float(f64),
    /// A sequence, one value an element.
    List(Vec<Value>),
    /// Nested features.
    Dict(Vec<(String, Value)>),
    /// A missing optional value.
    Null,
}
