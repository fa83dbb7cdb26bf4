//! Values of one list to elements of a column.

use std::io::Read;

use crate::columns::plan::{capped, end, with_zero};
use crate::columns::{ColumnData, integers};
use crate::example::wire::{self, Kind};
use crate::features::Shape;
use crate::png;
use crate::value::{Class, DType, f32_to_bfloat16, f32_to_half};
use crate::{Error, Result};

/// A list of the record.
#[derive(Debug, Clone, Copy)]
pub(super) struct List<'a> {
    /// Whether its name came at all.
    pub(super) found: bool,
    pub(super) kind: Option<Kind>,
    /// The list message.
    pub(super) bytes: &'a [u8],
}

/// How the values of a feature become rows of a column: those of the batch, or elements of its sequences.
#[derive(Debug, Clone)]
pub(super) enum Leaf {
    /// So many byte strings a row.
    Strings(usize),
    /// A class, -1 up to this; 0 where it is not known.
    Label(u64),
    /// So many numbers a row.
    Numbers { dtype: DType, elements: usize },
    /// Numbers in rows of `inner` along the one varying dimension.
    RaggedNumbers {
        dtype: DType,
        shape: Vec<Option<u64>>,
        inner: usize,
    },
    /// The memory of numbers, so many bytes of it.
    Packed { dtype: DType, bytes: usize, zlib: bool },
    /// The memory of numbers, `inner` of them beside the varying dimensions.
    RaggedPacked {
        dtype: DType,
        shape: Vec<Option<u64>>,
        inner: usize,
        zlib: bool,
    },
    /// A picture of this size.
    Image(png::Info),
    /// A picture of any size that the shape allows.
    RaggedImage { shape: Vec<Option<u64>>, dtype: DType },
}

/// Decoders that keep their buffers.
#[derive(Debug, Default)]
pub(super) struct Tools {
    pub(super) png: png::Decoder,
    inflate: Inflate,
}

/// A decompressor, which has no `Debug` of its own.
struct Inflate(libdeflater::Decompressor);

impl Default for Inflate {
    fn default() -> Self {
        Self(libdeflater::Decompressor::new())
    }
}

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inflate")
    }
}

impl Leaf {
    /// Whether all rows have one shape.
    pub(super) fn has_fixed_rows(&self) -> bool {
        match self {
            Self::Strings(_)
            | Self::Label(_)
            | Self::Numbers { .. }
            | Self::Packed { .. }
            | Self::Image(_) => true,
            Self::RaggedNumbers { .. } | Self::RaggedPacked { .. } | Self::RaggedImage { .. } => false,
        }
    }

    /// Bytes of a row of numbers, or strings in a row.
    pub(super) fn row_units(&self) -> usize {
        match self {
            Self::Strings(count) => *count,
            Self::Label(_) => 8,
            Self::Numbers { dtype, elements } => elements * dtype.num_bytes(),
            Self::Packed { bytes, .. } => *bytes,
            Self::Image(info) => info.num_bytes().unwrap_or(0),
            Self::RaggedNumbers { .. } | Self::RaggedPacked { .. } | Self::RaggedImage { .. } => 0,
        }
    }

    fn rank(&self) -> usize {
        match self {
            Self::RaggedNumbers { shape, .. }
            | Self::RaggedPacked { shape, .. }
            | Self::RaggedImage { shape, .. } => shape.len(),
            _ => 0,
        }
    }

    /// An empty column with room for `rows`.
    pub(super) fn new_column(&self, rows: usize) -> ColumnData {
        match self {
            Self::Strings(count) => ColumnData::Bytes {
                offsets: with_zero(rows.saturating_mul(*count)),
                data: Vec::new(),
            },
            leaf if leaf.has_fixed_rows() => {
                let bytes = rows.saturating_mul(leaf.row_units());
                ColumnData::Fixed(Vec::with_capacity(capped(bytes, 1)))
            }
            leaf => ColumnData::Ragged {
                shapes: Vec::with_capacity(capped(rows.saturating_mul(leaf.rank()), 8)),
                offsets: with_zero(rows),
                data: Vec::new(),
            },
        }
    }

    /// Cuts a column of this leaf to so many rows.
    pub(super) fn truncate(&self, column: &mut ColumnData, rows: usize) {
        match column {
            ColumnData::Fixed(data) => data.truncate(rows * self.row_units()),
            ColumnData::Bytes { offsets, data } => {
                offsets.truncate(rows * self.row_units() + 1);
                data.truncate(end(offsets));
            }
            ColumnData::Ragged {
                shapes,
                offsets,
                data,
            } => {
                shapes.truncate(rows * self.rank());
                offsets.truncate(rows + 1);
                data.truncate(end(offsets));
            }
            _ => {}
        }
    }

    /// Appends rows without values: zeros, empty strings, arrays without elements.
    pub(super) fn append_missing(&self, rows: usize, column: &mut ColumnData) {
        match column {
            ColumnData::Fixed(data) => data.resize(data.len() + rows * self.row_units(), 0),
            ColumnData::Bytes { offsets, data } => {
                offsets.resize(offsets.len() + rows * self.row_units(), data.len() as u64);
            }
            ColumnData::Ragged {
                shapes,
                offsets,
                data,
            } => {
                for _ in 0..rows {
                    match self {
                        Self::RaggedNumbers { shape, .. }
                        | Self::RaggedPacked { shape, .. }
                        | Self::RaggedImage { shape, .. } => {
                            shapes.extend(shape.iter().map(|size| size.unwrap_or(0)));
                        }
                        _ => {}
                    }
                    offsets.push(data.len() as u64);
                }
            }
            _ => {}
        }
    }

    /// Appends the rows of a list, as many as it has or `wanted`, and returns how many.
    #[inline]
    pub(super) fn decode(
        &self,
        list: List<'_>,
        shapes: Option<List<'_>>,
        wanted: Option<usize>,
        column: &mut ColumnData,
        tools: &mut Tools,
    ) -> Result<usize> {
        match column {
            ColumnData::Fixed(data) => self.decode_fixed(list, wanted, data, tools),
            ColumnData::Bytes { offsets, data } => {
                let Self::Strings(count) = *self else {
                    panic!("a batch of this decoder has a column of strings for strings only");
                };
                decode_strings(list, count, wanted, offsets, data)
            }
            ColumnData::Ragged {
                shapes: found_shapes,
                offsets,
                data,
            } => self.decode_ragged(list, shapes, wanted, found_shapes, offsets, data, tools),
            _ => panic!("a batch of this decoder has a column for {self:?}"),
        }
    }

    /// The same for rows of one shape, which lie one after another.
    #[inline]
    pub(super) fn decode_fixed(
        &self,
        list: List<'_>,
        wanted: Option<usize>,
        data: &mut Vec<u8>,
        tools: &mut Tools,
    ) -> Result<usize> {
        match self {
            Self::Label(num_classes) => {
                let start = data.len();
                if wanted == Some(1)
                    && list.kind == Some(Kind::Int64)
                    && let [0x0a, 1, class] = *list.bytes
                    && class < 0x80
                {
                    // One packed integer below 128, as nearly all are.
                    data.extend_from_slice(&i64::from(class).to_le_bytes());
                } else {
                    numbers(list, DType::Int64, wanted.is_none_or(|rows| rows == 0), data)?;
                }
                let (classes, _) = data[start..].as_chunks::<8>();
                for class in classes {
                    let class = i64::from_le_bytes(*class);
                    if class < -1 || (*num_classes > 0 && class >= num_classes.cast_signed()) {
                        return Err(Error::damaged(format!(
                            "label is {class}, wanted 0 to {}, or -1 for none",
                            num_classes.saturating_sub(1)
                        )));
                    }
                }
                check_rows(classes.len(), 1, wanted)
            }
            Self::Numbers { dtype, elements } => {
                let start = data.len();
                let may_be_empty = *elements == 0 || wanted.is_none_or(|rows| rows == 0);
                numbers(list, *dtype, may_be_empty, data)?;
                check_rows((data.len() - start) / dtype.num_bytes(), *elements, wanted)
            }
            Self::Packed { dtype, bytes, zlib } => each_string(list, wanted, |packed| {
                let start = data.len();
                if *zlib {
                    inflate_exactly(packed, *bytes, data, &mut tools.inflate)?;
                } else if packed.len() == *bytes {
                    data.extend_from_slice(packed);
                } else {
                    return Err(wrong_size(packed.len(), *bytes));
                }
                check_bools(*dtype, &data[start..])
            }),
            Self::Image(info) => each_string(list, wanted, |file| {
                refuse_other_images(file)?;
                let length = info.num_bytes().unwrap_or(0);
                if !png::is_plausible(length, file.len()) {
                    return Err(Error::damaged(format!(
                        "{} bytes are no picture of height {} and width {}",
                        file.len(),
                        info.height,
                        info.width
                    )));
                }
                let start = data.len();
                data.resize(start + length, 0);
                tools.png.decode(file, info, &mut data[start..])
            }),
            leaf => panic!("a batch of this decoder has a ragged column for {leaf:?}"),
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the three buffers of a column, taken apart"
    )]
    fn decode_ragged(
        &self,
        list: List<'_>,
        stored_shapes: Option<List<'_>>,
        wanted: Option<usize>,
        shapes: &mut Vec<u64>,
        offsets: &mut Vec<u64>,
        data: &mut Vec<u8>,
        tools: &mut Tools,
    ) -> Result<usize> {
        match self {
            Self::RaggedNumbers { dtype, shape, inner } => {
                let before = data.len();
                numbers(list, *dtype, true, data)?;
                let found = (data.len() - before) / dtype.num_bytes();
                let varying = varying_size(found, *inner, shape)?;
                shapes.extend(shape.iter().map(|size| size.unwrap_or(varying)));
                offsets.push(data.len() as u64);
                Ok(1)
            }
            Self::RaggedPacked {
                dtype,
                shape,
                inner,
                zlib,
            } => {
                let mut sizes = Vec::new();
                if let Some(list) = stored_shapes {
                    expect(list, Kind::Int64, true)
                        .and_then(|()| wire::each_int64(list.bytes, |size| sizes.push(size)))
                        .map_err(|error| crate::example::in_feature("shape", error))?;
                }
                let mut rest = &sizes[..];
                let rows = each_string(list, wanted, |packed| {
                    if stored_shapes.is_none() {
                        let before = data.len();
                        if *zlib {
                            inflate_all(packed, data)?;
                        } else {
                            data.extend_from_slice(packed);
                        }
                        let bytes = data.len() - before;
                        if !bytes.is_multiple_of(dtype.num_bytes()) {
                            return Err(Error::damaged(format!(
                                "{bytes} bytes, wanted a multiple of {} for {dtype}",
                                dtype.num_bytes()
                            )));
                        }
                        check_bools(*dtype, &data[before..])?;
                        let varying = varying_size(bytes / dtype.num_bytes(), *inner, shape)?;
                        shapes.extend(shape.iter().map(|size| size.unwrap_or(varying)));
                        offsets.push(data.len() as u64);
                        return Ok(());
                    }
                    let Some((row, others)) = rest.split_at_checked(shape.len()) else {
                        return Err(Error::damaged(format!(
                            "its shape has {} dimensions, wanted {}",
                            rest.len(),
                            shape.len()
                        )));
                    };
                    rest = others;
                    let wrong = || Error::damaged(format!("its shape is {row:?}, wanted {}", Shape(shape)));
                    let mut bytes = dtype.num_bytes();
                    for (&size, wanted) in row.iter().zip(shape) {
                        let size = u64::try_from(size).map_err(|_| wrong())?;
                        if wanted.is_some_and(|wanted| wanted != size) {
                            return Err(wrong());
                        }
                        let size_here = usize::try_from(size).map_err(|_| wrong())?;
                        bytes = bytes.checked_mul(size_here).ok_or_else(wrong)?;
                        shapes.push(size);
                    }
                    let before = data.len();
                    if *zlib {
                        inflate_exactly(packed, bytes, data, &mut tools.inflate)?;
                    } else if packed.len() == bytes {
                        data.extend_from_slice(packed);
                    } else {
                        return Err(wrong_size(packed.len(), bytes));
                    }
                    offsets.push(data.len() as u64);
                    check_bools(*dtype, &data[before..])
                })?;
                if !rest.is_empty() {
                    return Err(Error::damaged(format!(
                        "{} more numbers of shapes than values",
                        rest.len()
                    )));
                }
                Ok(rows)
            }
            Self::RaggedImage { shape, dtype } => each_string(list, wanted, |file| {
                refuse_other_images(file)?;
                let stored = png::info(file)?;
                let fits =
                    |found: u32, wanted: Option<u64>| wanted.is_none_or(|size| size == u64::from(found));
                if !fits(stored.height, shape[0]) || !fits(stored.width, shape[1]) {
                    return Err(Error::damaged(format!(
                        "PNG of height {} and width {}, wanted {}",
                        stored.height,
                        stored.width,
                        Shape(shape)
                    )));
                }
                let channels = shape[2].map_or(stored.channels, |channels| channels as u8);
                let (stored_channels, bits) = layout(*dtype, channels);
                let info = tools.png.decode_append(file, Some(stored_channels), bits, data)?;
                shapes.extend([u64::from(info.height), u64::from(info.width), u64::from(channels)]);
                offsets.push(data.len() as u64);
                Ok(())
            }),
            leaf => panic!("a batch of this decoder has a column of one shape for {leaf:?}"),
        }
    }
}

/// The size of the varying dimension of `found` elements.
fn varying_size(found: usize, inner: usize, shape: &[Option<u64>]) -> Result<u64> {
    if found.checked_rem(inner).unwrap_or(found) != 0 {
        return Err(Error::damaged(format!(
            "{found} values, wanted whole rows of a tensor of {}",
            Shape(shape)
        )));
    }
    Ok(found.checked_div(inner).unwrap_or(0) as u64)
}

fn wrong_size(found: usize, wanted: usize) -> Error {
    Error::damaged(format!("a tensor of {found} bytes, wanted {wanted}"))
}

/// Makes sure that each is 0 or 1, if they are truth values.
fn check_bools(dtype: DType, data: &[u8]) -> Result<()> {
    match data.iter().find(|&&byte| byte > 1) {
        Some(byte) if dtype == DType::Bool => Err(Error::damaged(format!("bool is {byte}, wanted 0 or 1"))),
        _ => Ok(()),
    }
}

/// More than deflate can expand its input. Source: the maximum of 1032:1 in zlib's technical details.
const MOST_EXPANSION: usize = 1032;

fn inflate_exactly(packed: &[u8], bytes: usize, data: &mut Vec<u8>, inflate: &mut Inflate) -> Result<()> {
    // What is claimed is not allocated before the input can hold it.
    if bytes / MOST_EXPANSION > packed.len() {
        return Err(Error::damaged(format!(
            "{} compressed bytes cannot hold a tensor of {bytes}",
            packed.len()
        )));
    }
    let start = data.len();
    data.resize(start + bytes, 0);
    match inflate.0.zlib_decompress(packed, &mut data[start..]) {
        Ok(found) if found == bytes => Ok(()),
        Ok(found) => Err(wrong_size(found, bytes)),
        Err(libdeflater::DecompressionError::InsufficientSpace) => Err(Error::damaged(format!(
            "a tensor of more than the {bytes} bytes wanted"
        ))),
        Err(libdeflater::DecompressionError::BadData) => {
            Err(Error::damaged("compressed tensor is no zlib stream, or damaged"))
        }
    }
}

fn inflate_all(packed: &[u8], data: &mut Vec<u8>) -> Result<()> {
    flate2::bufread::ZlibDecoder::new(packed)
        .read_to_end(data)
        .map(|_| ())
        .map_err(|error| {
            Error::damaged(format!(
                "compressed tensor is no zlib stream, or damaged: {error}"
            ))
        })
}

/// Channels and bits of the PNG file for pixels of `dtype`.
pub(super) fn layout(dtype: DType, channels: u8) -> (u8, u8) {
    match dtype {
        DType::UInt16 => (channels, 16),
        // The four bytes of a float are the channels of a pixel. Source: `_FloatImageEncoder` in TFDS.
        DType::Float32 => (4, 8),
        _ => (channels, 8),
    }
}

pub(super) fn no_jpeg() -> Error {
    Error::unsupported("JPEG images are not decoded in this version; load with undecoded images")
}

pub(super) fn no_gif() -> Error {
    Error::unsupported("GIF and BMP images are not decoded in this version; load with undecoded images")
}

#[inline]
fn refuse_other_images(file: &[u8]) -> Result<()> {
    if file.starts_with(&png::SIGNATURE) {
        Ok(())
    } else if file.starts_with(b"\xff\xd8\xff") {
        Err(no_jpeg())
    } else if file.starts_with(b"GIF8") || file.starts_with(b"BM") {
        Err(no_gif())
    } else {
        Err(Error::damaged(format!(
            "bytes that begin with `{}` are no image",
            file[..file.len().min(8)].escape_ascii()
        )))
    }
}

/// Makes sure that the feature is there and of the kind wanted; without a kind it counts as empty, where it may be.
#[inline]
pub(super) fn expect(list: List<'_>, wanted: Kind, may_be_empty: bool) -> Result<()> {
    match list.kind {
        Some(kind) if kind == wanted => Ok(()),
        Some(kind) => Err(Error::damaged(format!(
            "holds {}, wanted {}",
            kind.name(),
            wanted.name()
        ))),
        None if list.found && may_be_empty => Ok(()),
        None => Err(Error::damaged(
            "missing from the record, though the schema has it",
        )),
    }
}

/// How many rows of `each` values there are, if they are whole rows and as many as wanted.
#[inline]
fn check_rows(found: usize, each: usize, wanted: Option<usize>) -> Result<usize> {
    match wanted {
        Some(rows) if rows * each == found => Ok(rows),
        Some(rows) => Err(Error::damaged(format!("{found} values, wanted {}", rows * each))),
        None if found.checked_rem(each).unwrap_or(found) != 0 => Err(Error::damaged(format!(
            "{found} values, wanted a multiple of {each}"
        ))),
        None => Ok(found.checked_div(each).unwrap_or(0)),
    }
}

/// Calls `decode` with each byte string of a list, and counts them.
#[inline]
fn each_string<'a>(
    list: List<'a>,
    wanted: Option<usize>,
    mut decode: impl FnMut(&'a [u8]) -> Result<()>,
) -> Result<usize> {
    expect(list, Kind::Bytes, wanted.is_none_or(|rows| rows == 0))?;
    let mut found = 0;
    let mut result = Ok(());
    wire::each_bytes(list.bytes, |bytes| {
        found += 1;
        if result.is_ok() && wanted.is_none_or(|rows| found <= rows) {
            result = decode(bytes);
        }
    })?;
    // A wrong number of values says more than what is wrong with one of them.
    let rows = check_rows(found, 1, wanted)?;
    result.map(|()| rows)
}

fn decode_strings(
    list: List<'_>,
    each: usize,
    wanted: Option<usize>,
    offsets: &mut Vec<u64>,
    data: &mut Vec<u8>,
) -> Result<usize> {
    let most = wanted.map(|rows| rows * each);
    expect(list, Kind::Bytes, most.is_none_or(|most| most == 0))?;
    if most == Some(1)
        && let Some(bytes) = integers::packed_only(list.bytes)
    {
        // One string and nothing else: its field is of the form of a packed one.
        data.extend_from_slice(bytes);
        offsets.push(data.len() as u64);
        return Ok(1);
    }
    let mut found = 0usize;
    wire::each_bytes(list.bytes, |bytes| {
        found += 1;
        if most.is_none_or(|most| found <= most) {
            data.extend_from_slice(bytes);
            offsets.push(data.len() as u64);
        }
    })?;
    check_rows(found, each, wanted)
}

/// Appends the numbers of a list as elements of `dtype`.
#[inline]
fn numbers(list: List<'_>, dtype: DType, may_be_empty: bool, out: &mut Vec<u8>) -> Result<()> {
    match dtype.class() {
        Class::Float => {
            expect(list, Kind::Float, may_be_empty)?;
            if dtype == DType::Float32
                && let Some(packed) = integers::packed_only(list.bytes)
                && packed.len().is_multiple_of(4)
            {
                out.extend_from_slice(packed);
                return Ok(());
            }
            wire::each_float_run(list.bytes, |run| match dtype {
                DType::Float32 => out.extend_from_slice(run.as_flattened()),
                DType::Float64 => out.extend(
                    run.iter()
                        .flat_map(|&bytes| f64::from(f32::from_le_bytes(bytes)).to_le_bytes()),
                ),
                DType::Float16 => out.extend(
                    run.iter()
                        .flat_map(|&bytes| f32_to_half(f32::from_le_bytes(bytes)).to_le_bytes()),
                ),
                _ => out.extend(
                    run.iter()
                        .flat_map(|&bytes| f32_to_bfloat16(f32::from_le_bytes(bytes)).to_le_bytes()),
                ),
            })
        }
        Class::Bool | Class::Integer => {
            expect(list, Kind::Int64, may_be_empty)?;
            integers::append(list.bytes, dtype, out)
        }
        Class::String => unreachable!("strings are not planned as numbers"),
    }
}
