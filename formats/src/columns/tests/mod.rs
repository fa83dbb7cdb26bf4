//! Tests of the decoder.

mod golden;
mod random;
mod wrong;

use bytes::Bytes;
use proptest::prelude::*;

use crate::columns::{Batch, BatchDecoder, ColumnData};
use crate::example::{Example, FeatureList};
use crate::features::{Feature, Features};
use crate::value::{DType, Value};

fn schema(features: &[(&str, Feature)]) -> Features {
    let features = features
        .iter()
        .map(|(name, feature)| (name.to_string(), feature.clone()));
    Features::new(features.collect()).unwrap()
}

fn example(lists: &[(&str, FeatureList)]) -> Vec<u8> {
    let features = lists.iter().map(|(name, list)| (name.to_string(), list.clone()));
    Example {
        features: features.collect(),
    }
    .encode()
}

fn image(height: Option<u64>, channels: u64) -> Feature {
    Feature::Image {
        shape: vec![height, Some(3), Some(channels)],
        dtype: DType::UInt8,
        encoding_format: None,
    }
}

fn all_kinds() -> Features {
    let tensor = |shape: &[Option<u64>], dtype| Feature::tensor(shape.to_vec(), dtype);
    schema(&[
        ("image", image(Some(2), 3)),
        (
            "label",
            Feature::ClassLabel {
                num_classes: 300,
                names: vec![],
            },
        ),
        ("picture", image(None, 1)),
        ("ragged", tensor(&[Some(2), None], DType::Float32)),
        ("strings", tensor(&[Some(2)], DType::String)),
        ("text", Feature::Text),
        ("tokens", tensor(&[None], DType::UInt16)),
        ("u8", tensor(&[Some(3)], DType::UInt8)),
    ])
}

fn pixels(height: usize, channels: usize, first: u8) -> Value {
    Value::Tensor {
        dtype: DType::UInt8,
        shape: vec![height, 3, channels],
        data: (0..height * 3 * channels)
            .map(|byte| byte as u8 ^ first)
            .collect::<Vec<_>>()
            .into(),
    }
}

fn row(number: u8) -> Vec<(&'static str, Value)> {
    let ints = |count: u8| {
        Value::List(
            (0..count)
                .map(|n| Value::Int(i64::from(n) * 300 % 256 + i64::from(number)))
                .collect(),
        )
    };
    let text = |text: String| Value::Bytes(Bytes::from(text));
    let floats = Value::Tensor {
        dtype: DType::Float32,
        shape: vec![2, number as usize],
        data: vec![number; 8 * number as usize].into(),
    };
    vec![
        ("image", pixels(2, 3, number)),
        ("label", Value::Int(i64::from(number) * 100)),
        ("picture", pixels(1 + number as usize, 1, number)),
        ("ragged", floats),
        (
            "strings",
            Value::List(vec![text("a".repeat(number.into())), text("b".into())]),
        ),
        ("text", text(format!("row {number}"))),
        ("tokens", ints(number)),
        (
            "u8",
            Value::List((0..3).map(|n| Value::Int(n + i64::from(number))).collect()),
        ),
    ]
}

fn records() -> Vec<Vec<u8>> {
    let features = all_kinds();
    let mut encoder = features.encoder();
    (0..3)
        .map(|number| {
            let mut record = Vec::new();
            encoder.encode(&row(number), &mut record).unwrap();
            record
        })
        .collect()
}

fn snapshot(batch: &Batch) -> String {
    format!("{batch:?}")
}

#[test]
fn each_kind_of_feature_becomes_its_column() {
    let mut decoder = BatchDecoder::new(&all_kinds(), true).unwrap();
    let mut batch = decoder.new_batch(3);
    for record in records() {
        decoder.push(&record, &mut batch).unwrap();
    }
    assert_eq!(batch.rows, 3);
    let names: Vec<&str> = decoder.specs().iter().map(|spec| &*spec.name).collect();
    assert_eq!(
        names,
        [
            "image", "label", "picture", "ragged", "strings", "text", "tokens", "u8"
        ]
    );
    let column = |name: &str| {
        let index = names.iter().position(|other| *other == name).unwrap();
        (&batch.columns[index], &decoder.specs()[index])
    };
    for number in 0..3u8 {
        for (name, value) in row(number) {
            let (data, spec) = column(name);
            match value {
                Value::Tensor {
                    shape, data: bytes, ..
                } => {
                    let (found, row) = data.row(spec, number.into()).unwrap();
                    let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
                    assert_eq!((found, row), (shape, &bytes[..]), "{name}");
                }
                Value::Bytes(bytes) => {
                    assert_eq!(data.row(spec, number.into()), Some((vec![], &bytes[..])));
                }
                Value::Int(value) => {
                    let wanted = value.to_le_bytes();
                    assert_eq!(data.row(spec, number.into()), Some((vec![], &wanted[..])));
                }
                Value::List(values) if name != "strings" => {
                    let mut wanted = Vec::new();
                    for value in &values {
                        let Value::Int(value) = value else { continue };
                        wanted.extend(&value.to_le_bytes()[..spec.dtype.num_bytes()]);
                    }
                    let (found, row) = data.row(spec, number.into()).unwrap();
                    assert_eq!((found, row), (vec![values.len() as u64], &wanted[..]));
                }
                _ => {}
            }
        }
    }
    let ColumnData::Bytes { offsets, data } = column("strings").0 else {
        panic!("strings are bytes")
    };
    assert_eq!(offsets, &[0, 0, 1, 2, 3, 5, 6]);
    assert_eq!(data, b"babaab");
    assert_eq!(column("text").0.row(column("text").1, 3), None);
}

#[test]
fn undecoded_images_stay_as_they_are() {
    let features = all_kinds();
    let mut decoder = BatchDecoder::new(&features, false).unwrap();
    let mut batch = decoder.new_batch(1);
    let record = &records()[1];
    decoder.push(record, &mut batch).unwrap();
    let spec = &decoder.specs()[0];
    assert_eq!(
        (spec.name.as_str(), spec.dtype, spec.shape.len()),
        ("image", DType::String, 0)
    );
    let (_, file) = batch.columns[0].row(spec, 0).unwrap();
    let stored = Example::decode(record).unwrap();
    assert_eq!(stored.features["image"], FeatureList::Bytes(vec![file.to_vec()]));
    let jpeg = schema(&[(
        "photo",
        Feature::Image {
            shape: vec![None, None, Some(3)],
            dtype: DType::UInt8,
            encoding_format: Some("jpeg".into()),
        },
    )]);
    let error = BatchDecoder::new(&jpeg, true).unwrap_err().to_string();
    assert!(
        error.contains("`photo`") && error.contains("undecoded"),
        "{error}"
    );
    assert!(BatchDecoder::new(&jpeg, false).is_ok());
}

#[test]
fn buffers_are_kept_and_cleared() {
    let mut decoder = BatchDecoder::new(&all_kinds(), true).unwrap();
    let mut batch = decoder.new_batch(2);
    let empty = snapshot(&batch);
    let records = records();
    decoder.push(&records[2], &mut batch).unwrap();
    let first = snapshot(&batch);
    decoder.clear(&mut batch);
    assert_eq!(snapshot(&batch), empty);
    decoder.push(&records[2], &mut batch).unwrap();
    assert_eq!(snapshot(&batch), first);
}

#[test]
fn after_an_error_the_batch_is_as_before() {
    let mut decoder = BatchDecoder::new(&all_kinds(), true).unwrap();
    let mut batch = decoder.new_batch(2);
    let records = records();
    decoder.push(&records[1], &mut batch).unwrap();
    let before = snapshot(&batch);
    let record = &records[2];
    let mut errors = 0;
    for length in 0..record.len() {
        assert!(decoder.push(&record[..length], &mut batch).is_err());
        assert_eq!(snapshot(&batch), before, "cut at {length}");
    }
    for bit in 0..8 * record.len() {
        let mut flipped = record.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match decoder.push(&flipped, &mut batch) {
            Ok(()) => {
                decoder.clear(&mut batch);
                decoder.push(&records[1], &mut batch).unwrap();
            }
            Err(_) => errors += 1,
        }
        assert_eq!(snapshot(&batch), before, "bit {bit}");
    }
    assert!(errors > record.len());
    decoder.push(record, &mut batch).unwrap();
    assert_eq!(batch.rows, 2);
}

fn error_of(feature: Feature, list: FeatureList) -> String {
    let features = schema(&[("x", feature)]);
    let mut decoder = BatchDecoder::new(&features, true).unwrap();
    let mut batch = decoder.new_batch(1);
    let error = decoder.push(&example(&[("x", list)]), &mut batch).unwrap_err();
    assert_eq!(batch.rows, 0);
    error.to_string()
}

#[test]
fn what_does_not_fit_the_schema_is_named() {
    let scalar = |dtype| Feature::Scalar { dtype };
    let ints = |values: &[i64]| FeatureList::Int64(values.to_vec());
    let label = Feature::ClassLabel {
        num_classes: 3,
        names: vec![],
    };
    for (feature, list, wanted) in [
        (label.clone(), ints(&[3]), "label is 3, wanted 0 to 2"),
        (label.clone(), ints(&[-2]), "label is -2"),
        (label.clone(), ints(&[1, 2]), "2 values, wanted 1"),
        (
            label,
            FeatureList::Float(vec![1.0]),
            "holds floats, wanted integers",
        ),
        (scalar(DType::UInt8), ints(&[256]), "256 does not fit into uint8"),
        (scalar(DType::Bool), ints(&[2]), "2 does not fit into bool"),
        (scalar(DType::Int32), ints(&[]), "0 values, wanted 1"),
        (scalar(DType::Int32), FeatureList::None, "missing"),
        (
            scalar(DType::Float32),
            ints(&[1]),
            "holds integers, wanted floats",
        ),
        (
            Feature::Text,
            FeatureList::Bytes(vec![vec![], vec![]]),
            "2 values, wanted 1",
        ),
        (Feature::Text, ints(&[1]), "holds integers, wanted byte strings"),
        (
            image(None, 3),
            FeatureList::Bytes(vec![b"\xff\xd8\xff\xe0".to_vec()]),
            "JPEG",
        ),
        (
            image(None, 3),
            FeatureList::Bytes(vec![b"GIF89a".to_vec()]),
            "GIF",
        ),
        (
            image(Some(2), 3),
            FeatureList::Bytes(vec![b"nothing".to_vec()]),
            "`nothing`",
        ),
        (
            Feature::tensor(vec![None, Some(2)], DType::Int8),
            ints(&[1, 2, 3]),
            "3 values, wanted whole rows of a tensor of [None, 2]",
        ),
    ] {
        let error = error_of(feature, list);
        assert!(error.contains("feature `x`") && error.contains(wanted), "{error}");
    }
    let features = schema(&[("y", Feature::Text)]);
    let mut decoder = BatchDecoder::new(&features, true).unwrap();
    let mut batch = decoder.new_batch(1);
    let record = example(&[("x", FeatureList::None)]);
    let error = decoder.push(&record, &mut batch).unwrap_err().to_string();
    assert!(error.contains("`y`") && error.contains("missing"), "{error}");
}

#[test]
fn pictures_of_other_sizes_are_refused() {
    let mut record = Vec::new();
    schema(&[("x", image(None, 3))])
        .encoder()
        .encode(&[("x", pixels(4, 3, 0))], &mut record)
        .unwrap();
    for (feature, wanted) in [
        (image(Some(5), 3), "3 x 4 pixels, wanted 3 x 5"),
        (image(Some(4), 1), "3 channels where 1 are wanted"),
    ] {
        let features = schema(&[("x", feature)]);
        let mut decoder = BatchDecoder::new(&features, true).unwrap();
        let mut batch = decoder.new_batch(1);
        let error = decoder.push(&record, &mut batch).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn every_dtype_comes_back() {
    for dtype in DType::ALL {
        if dtype == DType::String {
            continue;
        }
        let data: Vec<u8> = match dtype {
            DType::Bool => vec![0, 1, 1, 0],
            DType::Float64 => [1.5f64, -0.0, f64::INFINITY, 0.1f32.into()]
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            _ => (0..4 * dtype.num_bytes())
                .map(|byte| (byte * 37 + 128) as u8 & 0xbf)
                .collect(),
        };
        let features = schema(&[("x", Feature::tensor(vec![Some(2), Some(2)], dtype))]);
        let value = Value::Tensor {
            dtype,
            shape: vec![2, 2],
            data: data.clone().into(),
        };
        let mut record = Vec::new();
        features.encoder().encode(&[("x", value)], &mut record).unwrap();
        let mut decoder = BatchDecoder::new(&features, true).unwrap();
        let mut batch = decoder.new_batch(1);
        decoder.push(&record, &mut batch).unwrap();
        let (shape, row) = batch.columns[0].row(&decoder.specs()[0], 0).unwrap();
        assert_eq!((shape, row), (vec![2, 2], &data[..]), "{dtype}");
    }
}

#[test]
fn unsorted_repeated_and_split_lists_are_read() {
    let features = schema(&[
        ("a", Feature::Scalar { dtype: DType::Int64 }),
        ("b", Feature::tensor(vec![None], DType::Int64)),
    ]);
    // b: [1, 2] in two parts; a: 5, then a again: 6; and a feature that nobody asked for.
    let entry = |name: u8, feature: &[u8]| {
        let mut entry = vec![0x0a, 1, name, 0x12, feature.len() as u8];
        entry.extend_from_slice(feature);
        let mut field = vec![0x0a, entry.len() as u8];
        field.extend(entry);
        field
    };
    let mut body = entry(b'b', &[0x1a, 3, 0x0a, 1, 1, 0x1a, 2, 0x08, 2]);
    body.extend(entry(b'a', &[0x1a, 3, 0x0a, 1, 5]));
    body.extend(entry(b'z', &[0x0a, 2, 0x0a, 0]));
    body.extend(entry(b'a', &[0x1a, 2, 0x08, 6]));
    let mut record = vec![0x0a, body.len() as u8];
    record.extend(body);
    let mut decoder = BatchDecoder::new(&features, true).unwrap();
    let mut batch = decoder.new_batch(1);
    decoder.push(&record, &mut batch).unwrap();
    let row = |index: usize| {
        let (shape, bytes) = batch.columns[index].row(&decoder.specs()[index], 0).unwrap();
        let values: Vec<i64> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| i64::from_le_bytes(bytes))
            .collect();
        (shape, values)
    };
    assert_eq!(row(0), (vec![], vec![6]));
    assert_eq!(row(1), (vec![2], vec![1, 2]));
}

#[test]
fn huge_schemas_reserve_nothing() {
    let features = schema(&[
        ("x", Feature::tensor(vec![Some(1 << 40)], DType::UInt8)),
        (
            "y",
            Feature::Image {
                shape: vec![Some(1 << 30), Some(1 << 30), Some(3)],
                dtype: DType::UInt8,
                encoding_format: None,
            },
        ),
    ]);
    let mut decoder = BatchDecoder::new(&features, true).unwrap();
    let mut batch = decoder.new_batch(1000);
    let record = example(&[
        ("x", FeatureList::Int64(vec![])),
        ("y", FeatureList::Bytes(vec![crate::png::SIGNATURE.to_vec()])),
    ]);
    assert!(decoder.push(&record, &mut batch).is_err());
    let tensor = |shape: Vec<Option<u64>>, dtype| {
        BatchDecoder::new(&schema(&[("x", Feature::tensor(shape, dtype))]), true)
    };
    assert!(tensor(vec![Some(u64::MAX), Some(2)], DType::Int8).is_err());
    assert!(tensor(vec![None, None], DType::Int8).is_err());
    assert!(tensor(vec![Some(2), None], DType::String).is_err());
    assert!(tensor(vec![None], DType::String).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_are_an_error_or_a_row(record in prop::collection::vec(any::<u8>(), 0..120)) {
        let features = schema(&[("", Feature::tensor(vec![None], DType::Int16))]);
        let mut decoder = BatchDecoder::new(&features, true).unwrap();
        let mut batch = decoder.new_batch(1);
        let result = decoder.push(&record, &mut batch);
        prop_assert_eq!(result.is_ok(), batch.rows == 1);
    }

    #[test]
    fn token_lists_come_back(tokens in prop::collection::vec(any::<i32>(), 0..300)) {
        let features = schema(&[("x", Feature::tensor(vec![None], DType::Int32))]);
        let record = example(&[("x", FeatureList::Int64(tokens.iter().map(|&token| token.into()).collect()))]);
        let mut decoder = BatchDecoder::new(&features, true).unwrap();
        let mut batch = decoder.new_batch(1);
        decoder.push(&record, &mut batch).unwrap();
        let wanted: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let (shape, row) = batch.columns[0].row(&decoder.specs()[0], 0).unwrap();
        prop_assert_eq!((shape, row), (vec![tokens.len() as u64], &wanted[..]));
    }
}
