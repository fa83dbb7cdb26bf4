//! What a schema is compiled to: which lists a record has, and how each becomes a column.

use crate::columns::leaf::Leaf;
use crate::columns::{ColumnData, ColumnSpec, Images, too_large};
use crate::example::in_feature;
use crate::features::stored::Leaf as StoredLeaf;
use crate::features::{Encoding, Feature, Features, Shape};
use crate::png;
use crate::value::DType;
use crate::{Error, Result};

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) specs: Vec<ColumnSpec>,
    pub(super) plans: Vec<Plan>,
    /// Names of the lists that are read, sorted.
    pub(super) names: Vec<String>,
}

/// How one column is decoded.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) leaf: Leaf,
    pub(super) levels: Levels,
    pub(super) optional: bool,
    /// The list of the values.
    pub(super) values: usize,
    /// The list of the shape of each value.
    pub(super) shapes: Option<usize>,
}

/// The sequences around a leaf.
#[derive(Debug, Clone)]
pub(super) enum Levels {
    /// So many elements in each row: 1 without a sequence, else the product of all lengths.
    Static(usize),
    /// One sequence of any length, of elements of one shape: rows are arrays.
    Array {
        /// The shape of an element.
        inner: Vec<u64>,
    },
    /// Any sequences.
    Nested {
        /// The length of the sequences of each level, the outermost first.
        wanted: Vec<Option<u64>>,
        /// The lists of the row lengths of all levels but the outermost.
        lengths: Vec<usize>,
    },
}

/// Most bytes that are reserved before there are data.
const MOST_RESERVED: usize = 256 << 20;

pub(super) fn compile(features: &Features, images: Images) -> Result<Compiled> {
    let leaves = features.leaves();
    let mut names = Vec::new();
    for leaf in &leaves {
        for stored in std::iter::once(leaf.values()).chain(leaf.shapes()) {
            names.push(stored.values);
            names.extend(stored.lengths);
        }
    }
    names.sort_unstable();
    let list = |name: &str| match names.binary_search_by(|other| other.as_str().cmp(name)) {
        Ok(index) => index,
        Err(_) => unreachable!("the names of all leaves were collected"),
    };
    let mut specs = Vec::with_capacity(leaves.len());
    let mut plans = Vec::with_capacity(leaves.len());
    for stored in &leaves {
        let name = stored.name();
        let (leaf, dtype, inner) =
            compile_leaf(&stored.feature, images).map_err(|error| in_feature(&name, error))?;
        let levels =
            compile_levels(stored, &leaf, &inner, &list).map_err(|error| in_feature(&name, error))?;
        let mut shape = stored.levels.clone();
        shape.extend(&inner);
        plans.push(Plan {
            leaf,
            levels,
            optional: stored.optional,
            values: list(&stored.values().values),
            shapes: stored.shapes().map(|names| list(&names.values)),
        });
        specs.push(ColumnSpec {
            name,
            path: stored.path.clone(),
            dtype,
            shape,
            optional: stored.optional,
        });
    }
    Ok(Compiled { specs, plans, names })
}

/// How values of a feature are decoded; their type and shape.
fn compile_leaf(feature: &Feature, images: Images) -> Result<(Leaf, DType, Vec<Option<u64>>)> {
    let strings = || Ok((Leaf::Strings(1), DType::String, Vec::new()));
    match feature {
        Feature::Text
        | Feature::Audio {
            lazy_decode: true, ..
        } => strings(),
        Feature::ClassLabel { num_classes, .. } => Ok((Leaf::Label(*num_classes), DType::Int64, Vec::new())),
        Feature::Scalar { dtype } => compile_tensor(&[], *dtype, Encoding::None),
        Feature::BBox { .. } => compile_tensor(&[Some(4)], DType::Float32, Encoding::None),
        Feature::Tensor {
            shape,
            dtype,
            encoding,
        }
        | Feature::Audio {
            shape,
            dtype,
            encoding,
            ..
        } => compile_tensor(shape, *dtype, *encoding),
        Feature::Image {
            shape,
            dtype,
            encoding_format,
        }
        | Feature::LabeledImage {
            shape,
            dtype,
            encoding_format,
            ..
        } => {
            let jpeg = encoding_format.as_deref() == Some("jpeg");
            match images {
                Images::Encoded => return strings(),
                Images::DecodedWherePossible if jpeg || shape.len() != 3 => return strings(),
                _ if jpeg => return Err(super::leaf::no_jpeg()),
                _ if shape.len() != 3 => return Err(super::leaf::no_gif()),
                _ => {}
            }
            let side = |size: Option<u64>| size.and_then(|size| u32::try_from(size).ok());
            let fixed = match shape[..] {
                [height, width, Some(channels)] => side(height).zip(side(width)).map(|(height, width)| {
                    let (channels, bits) = super::leaf::layout(*dtype, channels as u8);
                    png::Info {
                        width,
                        height,
                        channels,
                        bits,
                    }
                }),
                _ => None,
            };
            let leaf = match fixed {
                Some(info) if info.num_bytes().is_some() => Leaf::Image(info),
                _ => Leaf::RaggedImage {
                    shape: shape.clone(),
                    dtype: *dtype,
                },
            };
            Ok((leaf, *dtype, shape.clone()))
        }
        other => unreachable!("a {} is made of other features", other.class()),
    }
}

fn compile_tensor(
    shape: &[Option<u64>],
    dtype: DType,
    encoding: Encoding,
) -> Result<(Leaf, DType, Vec<Option<u64>>)> {
    let varying = shape.iter().filter(|size| size.is_none()).count();
    let product = product(shape).ok_or_else(|| too_large(shape))?;
    let leaf = match (varying, dtype, encoding) {
        (0, DType::String, Encoding::None) => Leaf::Strings(product),
        // The strings of one row along the first dimension are elements of a sequence.
        (1, DType::String, Encoding::None) if shape[0].is_none() => Leaf::Strings(product),
        (0, dtype, Encoding::None) => Leaf::Numbers {
            dtype,
            elements: product,
        },
        (1, dtype, Encoding::None) if dtype != DType::String => Leaf::RaggedNumbers {
            dtype,
            shape: shape.to_vec(),
            inner: product,
        },
        (_, _, Encoding::None) => {
            return Err(Error::unsupported(format!(
                "a tensor of {dtype} {} without an encoding, of which no shape is stored; numbers can have one varying dimension, strings the first",
                Shape(shape)
            )));
        }
        (0, dtype, encoding) => Leaf::Packed {
            dtype,
            bytes: product * dtype.num_bytes(),
            zlib: encoding == Encoding::Zlib,
        },
        (_, dtype, encoding) => Leaf::RaggedPacked {
            dtype,
            shape: shape.to_vec(),
            inner: product,
            zlib: encoding == Encoding::Zlib,
        },
    };
    Ok((leaf, dtype, shape.to_vec()))
}

/// The elements of a shape, varying dimensions taken as 1; `None` if memory cannot hold them at 8 bytes each.
fn product(shape: &[Option<u64>]) -> Option<usize> {
    // Dimensions of 0 do not make up for others that are too large.
    let product = shape
        .iter()
        .map(|size| size.unwrap_or(1).max(1))
        .try_fold(1u64, u64::checked_mul)?;
    isize::try_from(product.checked_mul(8)?).ok()?;
    let empty = shape.contains(&Some(0));
    usize::try_from(if empty { 0 } else { product }).ok()
}

fn compile_levels(
    stored: &StoredLeaf,
    leaf: &Leaf,
    inner: &[Option<u64>],
    list: &impl Fn(&str) -> usize,
) -> Result<Levels> {
    let lengths: Vec<usize> = stored.values().lengths.iter().map(|name| list(name)).collect();
    let levels = &stored.levels;
    // A tensor of strings along a varying dimension is stored as a sequence of them.
    if levels.is_empty() && matches!(leaf, Leaf::Strings(_)) && inner.first() == Some(&None) {
        return Ok(Levels::Nested {
            wanted: vec![None],
            lengths: Vec::new(),
        });
    }
    if !levels.is_empty() {
        let ambiguous = match leaf {
            Leaf::RaggedNumbers { .. } => true,
            Leaf::Strings(_) => inner.contains(&None),
            _ => false,
        };
        if ambiguous {
            return Err(Error::unsupported(format!(
                "a tensor of {} in a sequence, of which no shape is stored; declare an encoding, or a sequence in a sequence",
                Shape(inner)
            )));
        }
    }
    if leaf.has_fixed_rows() && levels.iter().all(Option::is_some) && lengths.is_empty() {
        let elements = product(levels).ok_or_else(|| too_large(levels))?;
        let bytes = elements.checked_mul(leaf.row_units().max(1));
        if bytes.and_then(|bytes| isize::try_from(bytes).ok()).is_none() {
            return Err(too_large(levels));
        }
        return Ok(Levels::Static(elements));
    }
    if levels.is_empty() {
        return Ok(Levels::Static(1));
    }
    if let [None] = levels[..]
        && leaf.has_fixed_rows()
        && !matches!(leaf, Leaf::Strings(_))
    {
        return Ok(Levels::Array {
            inner: inner.iter().map(|size| size.unwrap_or(0)).collect(),
        });
    }
    Ok(Levels::Nested {
        wanted: levels.clone(),
        lengths,
    })
}

impl Plan {
    /// An empty column with room for `rows`.
    pub(super) fn new_column(&self, rows: usize) -> ColumnData {
        let values = match &self.levels {
            Levels::Static(elements) => self.leaf.new_column(rows.saturating_mul(*elements)),
            Levels::Array { inner } => ColumnData::Ragged {
                shapes: Vec::with_capacity(capped(rows.saturating_mul(inner.len() + 1), 8)),
                offsets: with_zero(rows),
                data: Vec::new(),
            },
            Levels::Nested { wanted, .. } => ColumnData::Nested {
                splits: wanted.iter().map(|_| with_zero(rows)).collect(),
                values: Box::new(self.leaf.new_column(0)),
            },
        };
        if !self.optional {
            return values;
        }
        ColumnData::Optional {
            present: Vec::with_capacity(capped(rows, 1)),
            values: Box::new(values),
        }
    }

    /// Cuts a column to so many rows.
    pub(super) fn truncate(&self, column: &mut ColumnData, rows: usize) {
        let column = match column {
            ColumnData::Optional { present, values } => {
                present.truncate(rows);
                values
            }
            column => column,
        };
        match (&self.levels, column) {
            (Levels::Static(elements), column) => self.leaf.truncate(column, rows * elements),
            (
                Levels::Array { inner },
                ColumnData::Ragged {
                    shapes,
                    offsets,
                    data,
                },
            ) => {
                shapes.truncate(rows * (inner.len() + 1));
                offsets.truncate(rows + 1);
                data.truncate(end(offsets));
            }
            (Levels::Nested { .. }, ColumnData::Nested { splits, values }) => {
                let mut rows = rows;
                for splits in splits {
                    splits.truncate(rows + 1);
                    rows = end(splits);
                }
                self.leaf.truncate(values, rows);
            }
            _ => {}
        }
    }
}

/// So many items of `size` bytes as are reserved.
pub(super) fn capped(items: usize, size: usize) -> usize {
    items.min(MOST_RESERVED / size)
}

pub(super) fn with_zero(rows: usize) -> Vec<u64> {
    let mut offsets = Vec::with_capacity(capped(rows.saturating_add(1), 8));
    offsets.push(0);
    offsets
}

pub(super) fn end(offsets: &[u64]) -> usize {
    offsets
        .last()
        .map_or(0, |&end| usize::try_from(end).unwrap_or(usize::MAX))
}
