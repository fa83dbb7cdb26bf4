//! Random schemas and values: what is encoded comes back.

use bytes::Bytes;
use proptest::prelude::*;

use crate::columns::{BatchDecoder, Cell};
use crate::features::{Encoding, Feature, Features};
use crate::value::{DType, Value, f32_to_bfloat16, f32_to_half};

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn size(&mut self, size: Option<u64>) -> usize {
        match size {
            Some(size) => size as usize,
            None => self.below(4) as usize,
        }
    }
}

const NUMBERS: [DType; 13] = [
    DType::Bool,
    DType::UInt8,
    DType::Int8,
    DType::UInt16,
    DType::Int16,
    DType::UInt32,
    DType::Int32,
    DType::UInt64,
    DType::Int64,
    DType::Float16,
    DType::BFloat16,
    DType::Float32,
    DType::Float64,
];

fn feature(random: &mut Random, depth: u32, in_sequence: bool) -> Feature {
    let dtype = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
    let encoding = [Encoding::None, Encoding::Bytes, Encoding::Zlib][random.below(3) as usize];
    let kinds = if depth == 0 { 10 } else { 14 };
    match random.below(kinds) {
        0 => Feature::Scalar { dtype },
        1 => Feature::Tensor {
            // How many tensors without elements there are in a sequence is not stored.
            shape: vec![Some(2), Some(u64::from(in_sequence) + random.below(2))],
            dtype,
            encoding,
        },
        2 if !in_sequence || encoding != Encoding::None => Feature::Tensor {
            shape: vec![None, Some(2)],
            dtype,
            encoding,
        },
        3 if encoding != Encoding::None => Feature::Tensor {
            shape: vec![None, Some(2), None],
            dtype,
            encoding,
        },
        2 | 3 => Feature::tensor(vec![Some(3)], DType::String),
        4 => Feature::Text,
        5 => Feature::ClassLabel {
            num_classes: 200,
            names: vec![],
        },
        6 => {
            let dtype = [DType::UInt8, DType::UInt16, DType::Float32][random.below(3) as usize];
            let channels = if dtype == DType::Float32 {
                1
            } else {
                1 + random.below(4)
            };
            let side = |random: &mut Random| (random.below(2) == 0).then_some(1 + random.below(4));
            Feature::Image {
                shape: vec![side(random), side(random), Some(channels)],
                dtype,
                encoding_format: None,
            }
        }
        7 => Feature::BBox { format: None },
        8 if !in_sequence => Feature::Optional(Box::new(match random.below(3) {
            0 => Feature::Scalar { dtype },
            1 => Feature::Scalar { dtype: DType::String },
            _ => Feature::Tensor {
                shape: vec![None, Some(2)],
                dtype,
                encoding,
            },
        })),
        8 | 9 => Feature::Video {
            shape: vec![None, Some(2), Some(3), Some(1)],
            dtype: DType::UInt8,
            encoding_format: Some("png".into()),
        },
        10 => dict(random, depth),
        11 => Feature::Dataset {
            feature: Box::new(dict(random, depth)),
            length: None,
        },
        _ => Feature::Sequence {
            feature: Box::new(feature(random, depth - 1, true)),
            length: (random.below(3) == 0).then_some(random.below(3)),
        },
    }
}

fn dict(random: &mut Random, depth: u32) -> Feature {
    let fields = 1 + random.below(3);
    Feature::dict((0..fields).map(|field| (format!("f{field}"), feature(random, depth - 1, true))))
}

fn elements(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for _ in 0..count {
        // Values that halves hold too.
        let small = random.below(256) as i64 - 128;
        match dtype {
            DType::Bool => data.push(random.below(2) as u8),
            DType::Float16 => data.extend(f32_to_half(small as f32).to_le_bytes()),
            DType::BFloat16 => data.extend(f32_to_bfloat16(small as f32).to_le_bytes()),
            DType::Float32 => data.extend((small as f32).to_le_bytes()),
            DType::Float64 => data.extend((small as f64).to_le_bytes()),
            _ => {
                let wide = random.below(1 << 31) << (random.below(34));
                data.extend(&wide.to_le_bytes()[..dtype.num_bytes()]);
            }
        }
    }
    data
}

fn tensor(random: &mut Random, dtype: DType, shape: &[Option<u64>]) -> Value {
    let shape: Vec<usize> = shape.iter().map(|&size| random.size(size)).collect();
    Value::Tensor {
        dtype,
        data: elements(random, dtype, shape.iter().product()).into(),
        shape,
    }
}

fn text(random: &mut Random) -> Value {
    let length = random.below(5) as usize;
    Value::Bytes(elements(random, DType::UInt8, length).into())
}

fn value(random: &mut Random, feature: &Feature) -> Value {
    match feature {
        Feature::Scalar { dtype: DType::String } | Feature::Text => text(random),
        Feature::Scalar { dtype } => tensor(random, *dtype, &[]),
        Feature::Tensor {
            dtype: DType::String,
            shape,
            ..
        } => Value::List((0..shape[0].unwrap()).map(|_| text(random)).collect()),
        Feature::Tensor { shape, dtype, .. } => tensor(random, *dtype, shape),
        Feature::ClassLabel { num_classes, .. } => Value::Int(random.below(*num_classes) as i64),
        Feature::Image { shape, dtype, .. } => {
            let shape: Vec<_> = shape
                .iter()
                .map(|&size| size.or_else(|| Some(1 + random.below(3))))
                .collect();
            tensor(random, *dtype, &shape)
        }
        Feature::BBox { .. } => tensor(random, DType::Float32, &[Some(4)]),
        Feature::Optional(inner) => match random.below(2) {
            0 => Value::Null,
            _ => value(random, inner),
        },
        Feature::Video { shape, dtype, .. } => tensor(random, *dtype, shape),
        Feature::Sequence { feature, length } | Feature::Dataset { feature, length } => {
            let length = random.size(*length);
            Value::List((0..length).map(|_| value(random, feature)).collect())
        }
        Feature::Dict(features) => Value::Dict(
            features
                .iter()
                .map(|(name, feature)| (name.clone(), value(random, feature)))
                .collect(),
        ),
        other => panic!("no value for {other:?}"),
    }
}

/// What is wanted of one column of a row.
#[derive(Debug)]
enum Tree {
    Missing,
    Array(Vec<usize>, Bytes),
    String(Bytes),
    List(Vec<Tree>),
}

fn wanted(feature: &Feature, value: &Value, path: &[String]) -> Tree {
    match (feature, value) {
        (Feature::Sequence { feature, .. } | Feature::Dataset { feature, .. }, Value::List(values)) => {
            Tree::List(values.iter().map(|value| wanted(feature, value, path)).collect())
        }
        (Feature::Dict(features), Value::Dict(values)) => {
            let (name, rest) = path.split_first().unwrap();
            let at = features.iter().position(|(other, _)| other == name).unwrap();
            wanted(&features[at].1, &values[at].1, rest)
        }
        (Feature::Optional(_), Value::Null) => Tree::Missing,
        (Feature::Optional(feature), value) => wanted(feature, value, path),
        (_, Value::Tensor { shape, data, .. }) => Tree::Array(shape.clone(), data.clone()),
        (_, Value::Bytes(bytes)) => Tree::String(bytes.clone()),
        (_, Value::Int(number)) => Tree::Array(vec![], Bytes::copy_from_slice(&number.to_le_bytes())),
        (_, Value::List(strings)) => Tree::List(
            strings
                .iter()
                .map(|string| wanted(feature, string, path))
                .collect(),
        ),
        (feature, value) => panic!("{value:?} for {feature:?}"),
    }
}

/// Whether a cell holds the tree; arrays stand for the lists that they were made of.
fn holds(cell: &Cell<'_>, tree: &Tree) -> bool {
    match (cell, tree) {
        (Cell::Missing, Tree::Missing) => true,
        (Cell::Array { shape, data }, Tree::Array(wanted, bytes)) => {
            shape.iter().map(|&size| size as usize).eq(wanted.iter().copied()) && data[..] == bytes[..]
        }
        (Cell::Strings { shape, strings }, Tree::String(bytes)) => {
            shape.is_empty() && strings.len() == 1 && strings[0] == &bytes[..]
        }
        (Cell::List(cells), Tree::List(trees)) => {
            cells.len() == trees.len() && cells.iter().zip(trees).all(|(cell, tree)| holds(cell, tree))
        }
        (Cell::Array { shape, data }, Tree::List(trees)) => {
            let size = data.len().checked_div(trees.len()).unwrap_or(0);
            shape.first() == Some(&(trees.len() as u64))
                && trees.iter().enumerate().all(|(index, tree)| {
                    let data = &data[index * size..(index + 1) * size];
                    holds(
                        &Cell::Array {
                            shape: shape[1..].to_vec(),
                            data,
                        },
                        tree,
                    )
                })
        }
        (Cell::Strings { shape, strings }, Tree::List(trees)) => {
            let size = strings.len().checked_div(trees.len()).unwrap_or(0);
            shape.first() == Some(&(trees.len() as u64))
                && trees.iter().enumerate().all(|(index, tree)| {
                    holds(
                        &Cell::Strings {
                            shape: shape[1..].to_vec(),
                            strings: strings[index * size..(index + 1) * size].to_vec(),
                        },
                        tree,
                    )
                })
        }
        _ => false,
    }
}

/// The same value with lists of dicts as dicts of lists.
fn by_field(feature: &Feature, value: &Value) -> Value {
    match (feature, value) {
        (Feature::Sequence { feature, .. } | Feature::Dataset { feature, .. }, Value::List(values)) => {
            match &**feature {
                Feature::Dict(fields) => Value::Dict(
                    fields
                        .iter()
                        .enumerate()
                        .map(|(at, (name, feature))| {
                            let column = values.iter().map(|value| match value {
                                Value::Dict(values) => by_field(feature, &values[at].1),
                                other => panic!("{other:?} is no dict"),
                            });
                            (name.clone(), Value::List(column.collect()))
                        })
                        .collect(),
                ),
                feature => Value::List(values.iter().map(|value| by_field(feature, value)).collect()),
            }
        }
        (Feature::Dict(fields), Value::Dict(values)) => Value::Dict(
            fields
                .iter()
                .zip(values)
                .map(|((name, feature), (_, value))| (name.clone(), by_field(feature, value)))
                .collect(),
        ),
        (_, value) => value.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_encoded_comes_back(seed in any::<u64>(), count in 1u64..5) {
        let mut random = Random(seed);
        let schema = Features::new(
            (0..count).map(|number| (format!("x{number}"), feature(&mut random, 3, false))).collect(),
        ).unwrap();
        // The schema comes back from its files.
        let files = schema.to_files();
        let read = Features::from_files("features.json", &files[0].1, |_| Ok(None)).unwrap();
        prop_assert_eq!(read.canonical_json(), schema.canonical_json());
        prop_assert_eq!(&read, &schema);

        let mut encoder = schema.encoder();
        let mut decoder = BatchDecoder::new(&schema, true).unwrap();
        let mut batch = decoder.new_batch(3);
        let mut rows = Vec::new();
        for _ in 0..3 {
            let values: Vec<(&str, Value)> =
                schema.iter().map(|(name, feature)| (name, value(&mut random, feature))).collect();
            let mut record = Vec::new();
            encoder.encode(&values, &mut record).unwrap();
            // In another form it is the same record.
            let mut others: Vec<(&str, Value)> = schema
                .iter()
                .zip(&values)
                .map(|((name, feature), (_, value))| (name, by_field(feature, value)))
                .collect();
            others.reverse();
            let mut again = Vec::new();
            encoder.encode(&others, &mut again).unwrap();
            prop_assert_eq!(&again, &record);
            decoder.push(&record, &mut batch).unwrap();
            rows.push((values, record));
        }
        for (row, (values, _)) in rows.iter().enumerate() {
            for (spec, column) in decoder.specs().iter().zip(&batch.columns) {
                let (name, rest) = spec.path.split_first().unwrap();
                let (_, value) = values.iter().find(|(other, _)| other == name).unwrap();
                let tree = wanted(schema.get(name).unwrap(), value, rest);
                let cell = column.cell(spec, row).unwrap();
                prop_assert!(holds(&cell, &tree), "{}: {:?} is not {:?}", spec.name, cell, tree);
            }
        }
        // A row that fails leaves nothing behind.
        let before = format!("{batch:?}");
        let record = &rows[0].1;
        // Without any byte it is an example without features, which may be one.
        for length in (1..record.len()).rev().take(40) {
            prop_assert!(decoder.push(&record[..length], &mut batch).is_err(), "a record that is cut is read");
            prop_assert_eq!(format!("{:?}", &batch), before.as_str());
        }
        decoder.clear(&mut batch);
        for (_, record) in &rows {
            decoder.push(record, &mut batch).unwrap();
        }
        prop_assert_eq!(format!("{batch:?}"), before);
    }
}
