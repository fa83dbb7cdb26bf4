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

/// What a number is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Bool,
    Integer,
    Float,
    String,
}

impl DType {
    /// All element types.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::UInt8,
        Self::Int8,
        Self::UInt16,
        Self::Int16,
        Self::UInt32,
        Self::Int32,
        Self::UInt64,
        Self::Int64,
        Self::Float16,
        Self::BFloat16,
        Self::Float32,
        Self::Float64,
        Self::String,
    ];

    /// The name that NumPy and TFDS use, `uint8` for example.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::UInt8 => "uint8",
            Self::Int8 => "int8",
            Self::UInt16 => "uint16",
            Self::Int16 => "int16",
            Self::UInt32 => "uint32",
            Self::Int32 => "int32",
            Self::UInt64 => "uint64",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::String => "string",
        }
    }

    /// The type of that name. NumPy's `object`, `bytes` and `str` are byte strings too, as TFDS has them.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "object" | "bytes" | "str" => Some(Self::String),
            _ => Self::ALL.into_iter().find(|dtype| dtype.name() == name),
        }
    }

    /// Bytes of one element; 0 for [`DType::String`], whose elements vary.
    pub fn num_bytes(self) -> usize {
        match self {
            Self::Bool | Self::UInt8 | Self::Int8 => 1,
            Self::UInt16 | Self::Int16 | Self::Float16 | Self::BFloat16 => 2,
            Self::UInt32 | Self::Int32 | Self::Float32 => 4,
            Self::UInt64 | Self::Int64 | Self::Float64 => 8,
            Self::String => 0,
        }
    }

    /// Whether this is a type of floating-point numbers that has only infinity for a finite number.
    ///
    /// # Examples
    /// ```
    /// use prep_formats::value::DType;
    ///
    /// assert!(DType::Float32.overflows(1e39) && !DType::Float32.overflows(f64::INFINITY));
    /// assert!(DType::Float16.overflows(65520.0) && !DType::Float16.overflows(65519.0));
    /// ```
    pub fn overflows(self, value: f64) -> bool {
        let narrow = value as f32;
        let stored = match self {
            Self::Float16 => half_to_f32(f32_to_half(narrow)),
            Self::BFloat16 => bfloat16_to_f32(f32_to_bfloat16(narrow)),
            Self::Float32 => narrow,
            _ => return false,
        };
        value.is_finite() && stored.is_infinite()
    }

    pub(crate) fn class(self) -> Class {
        match self {
            Self::Bool => Class::Bool,
            Self::Float16 | Self::BFloat16 | Self::Float32 | Self::Float64 => Class::Float,
            Self::String => Class::String,
            _ => Class::Integer,
        }
    }

    /// The least and greatest integer; `uint64` is stored as the `int64` of the same bits, and so has the range of that.
    pub(crate) fn stored_range(self) -> (i64, i64) {
        match self {
            Self::Bool => (0, 1),
            Self::UInt8 => (0, u8::MAX.into()),
            Self::Int8 => (i8::MIN.into(), i8::MAX.into()),
            Self::UInt16 => (0, u16::MAX.into()),
            Self::Int16 => (i16::MIN.into(), i16::MAX.into()),
            Self::UInt32 => (0, u32::MAX.into()),
            Self::Int32 => (i32::MIN.into(), i32::MAX.into()),
            _ => (i64::MIN, i64::MAX),
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Turns an IEEE half to a float; exact.
pub(crate) fn half_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10 & 0x1f);
    let fraction = u32::from(bits & 0x3ff);
    match exponent {
        0 => {
            // Zero and subnormal numbers: the fraction counts steps of 2^-24.
            let magnitude = fraction as f32 * (1.0 / 16_777_216.0);
            f32::from_bits(sign | magnitude.to_bits())
        }
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Rounds a float to the nearest IEEE half, ties to even; too large becomes infinite.
pub(crate) fn f32_to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | (magnitude >> 13 & 0x3ff) as u16;
    }
    // 65520 and above round to infinity; below 2^-14 are subnormal numbers.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Adding 0.5 leaves the number's steps of 2^-24 in the fraction, rounded by the processor.
        let steps = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits();
        return sign | steps as u16;
    }
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (112 << 23);
    sign | (rounded >> 13) as u16
}

/// Turns a bfloat16 to a float; exact.
pub(crate) fn bfloat16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds a float to the nearest bfloat16, ties to even.
pub(crate) fn f32_to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
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

impl Value {
    /// A word for what this is, for error messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Tensor { dtype, shape, .. } => format!("a tensor of {dtype} {shape:?}"),
            Self::Bytes(bytes) => format!("a byte string of {} bytes", bytes.len()),
            Self::Int(value) => format!("the integer {value}"),
            Self::Float(value) => format!("the number {value:?}"),
            Self::List(values) => format!("a list of {}", values.len()),
            Self::Dict(_) => "nested features".to_string(),
            Self::Null => "a missing value".to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_name("object"), Some(DType::String));
        assert_eq!(DType::from_name("complex64"), None);
    }

    #[test]
    fn every_half_comes_back_from_a_float() {
        for bits in 0..=u16::MAX {
            let value = half_to_f32(bits);
            if value.is_nan() {
                assert!(half_to_f32(f32_to_half(value)).is_nan());
            } else {
                assert_eq!(f32_to_half(value), bits, "{value}");
            }
            let value = bfloat16_to_f32(bits);
            if value.is_nan() {
                assert!(bfloat16_to_f32(f32_to_bfloat16(value)).is_nan());
            } else {
                assert_eq!(f32_to_bfloat16(value), bits, "{value}");
            }
        }
    }

    /// Halves, and the middle between each two, rounded as `np.float16` rounds them: ties to even.
    #[test]
    fn floats_round_to_the_nearest_half() {
        for bits in 0..0x7bffu16 {
            let (low, high) = (half_to_f32(bits), half_to_f32(bits + 1));
            let middle = low + (high - low) / 2.0;
            let even = if bits.is_multiple_of(2) { bits } else { bits + 1 };
            assert_eq!(f32_to_half(middle), even, "{middle}");
            assert_eq!(f32_to_half(middle.next_down()), bits);
            assert_eq!(f32_to_half(middle.next_up()), bits + 1);
        }
        assert_eq!(f32_to_half(65519.996), 0x7bff);
        assert_eq!(f32_to_half(65520.0), 0x7c00);
        assert_eq!(f32_to_half(-1e10), 0xfc00);
        assert_eq!(half_to_f32(0x3c00), 1.0);
        assert_eq!(half_to_f32(0x0001), 5.960_464_5e-8);
        assert_eq!(f32_to_bfloat16(1.0), 0x3f80);
    }
}
