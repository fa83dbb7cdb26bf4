//! Values that are not encoded, and records that are not decoded, with what is said of them.

use super::{example, schema};
use crate::columns::{BatchDecoder, Cell, Images};
use crate::example::FeatureList;
use crate::features::{Encoding, Feature, Features};
use crate::value::{DType, Value};

fn numbers(values: &[i64]) -> Value {
    Value::List(values.iter().map(|&value| Value::Int(value)).collect())
}

fn bytes(text: &'static str) -> Value {
    Value::Bytes(text.into())
}

fn dict(fields: &[(&str, Value)]) -> Value {
    let fields = fields
        .iter()
        .map(|(name, value)| (name.to_string(), value.clone()));
    Value::Dict(fields.collect())
}

fn scalar() -> Feature {
    Feature::Scalar { dtype: DType::UInt8 }
}

fn objects() -> Feature {
    Feature::sequence(Feature::dict([
        (
            "box",
            Feature::BBox {
                format: Some("REL_YXYX".into()),
            },
        ),
        ("name", Feature::Text),
    ]))
}

#[test]
fn values_that_do_not_fit_are_named_with_their_path() {
    let unit = Value::List([0.0, 0.25, 0.5, 1.0].map(Value::Float).to_vec());
    let object = |unit: &Value| dict(&[("box", unit.clone()), ("name", bytes("a"))]);
    let languages = |languages: &[&str]| Feature::TranslationVariableLanguages {
        languages: languages.iter().map(ToString::to_string).collect(),
    };
    let three = Feature::Sequence {
        feature: Box::new(scalar()),
        length: Some(3),
    };
    let cases: Vec<(Feature, Value, &str)> = vec![
        (
            three.clone(),
            numbers(&[1, 2]),
            "feature `x`: a sequence of 2 elements, wanted 3",
        ),
        (
            three,
            numbers(&[1, 2, 256]),
            "feature `x`: 256 does not fit into uint8",
        ),
        (
            Feature::sequence(scalar()),
            Value::Int(1),
            "feature `x`: value is the integer 1, wanted a list",
        ),
        (
            Feature::sequence(scalar()),
            dict(&[]),
            "feature `x`: value is nested features, wanted a list",
        ),
        (
            Feature::sequence(scalar()),
            Value::List(vec![Value::Null]),
            "a missing value, wanted uint8",
        ),
        (
            Feature::sequence(Feature::Optional(Box::new(scalar()))),
            Value::List(vec![Value::Null]),
            "a missing value, wanted uint8",
        ),
        (
            Feature::dict([("a", scalar())]),
            Value::Int(1),
            "feature `x`: value is the integer 1, wanted a dict with `a`",
        ),
        (
            Feature::dict([("a", scalar())]),
            dict(&[]),
            "feature `x/a` has no value",
        ),
        (
            Feature::dict([("a", scalar())]),
            dict(&[("a", Value::Int(1)), ("b", Value::Int(1))]),
            "feature `x/b` is not in the schema, which has `a`",
        ),
        (
            Feature::dict([("a", scalar())]),
            dict(&[("a", Value::Int(1)), ("a", Value::Int(1))]),
            "feature `x/a` is given twice",
        ),
        (
            objects(),
            Value::List(vec![dict(&[("box", unit.clone())])]),
            "feature `x/name` has no value",
        ),
        (
            objects(),
            dict(&[("box", Value::List(vec![unit.clone()]))]),
            "feature `x/name` has no value",
        ),
        (
            objects(),
            dict(&[
                ("box", Value::List(vec![unit.clone()])),
                ("name", Value::List(vec![])),
            ]),
            "feature `x`: `name` has 0 elements, the field before it 1",
        ),
        (
            objects(),
            dict(&[("box", Value::List(vec![])), ("name", bytes("a"))]),
            "wanted a list in `name`",
        ),
        (
            objects(),
            Value::List(vec![object(&Value::List(
                [0.0, 0.25, 0.5, 1.5].map(Value::Float).to_vec(),
            ))]),
            "feature `x/box`: box has the coordinate 1.5, wanted 0 to 1",
        ),
        (
            objects(),
            Value::List(vec![object(&Value::List(
                [0.5, 0.25, 0.0, 1.0].map(Value::Float).to_vec(),
            ))]),
            "feature `x/box`: box from (0.5, 0.25) to (0, 1)",
        ),
        (
            objects(),
            Value::List(vec![object(&Value::List([0.5, 0.25].map(Value::Float).to_vec()))]),
            "feature `x/box`: value has shape [2], wanted float32 [4]",
        ),
        (
            languages(&["de", "en"]),
            dict(&[("fr", bytes("a"))]),
            "feature `x`: language `fr` is none of de, en",
        ),
        (
            languages(&[]),
            dict(&[("fr", Value::Int(1))]),
            "wanted text in the language `fr`",
        ),
        (
            languages(&[]),
            bytes("a"),
            "wanted a dict from languages to texts",
        ),
        (
            Feature::tensor(vec![None, None], DType::Int8),
            Value::List(vec![]),
            "declare `bytes` or `zlib`",
        ),
        (
            Feature::sequence(Feature::tensor(vec![None], DType::Int8)),
            Value::List(vec![numbers(&[1])]),
            "of which no shape is stored",
        ),
        (
            Feature::Tensor {
                shape: vec![Some(2)],
                dtype: DType::Bool,
                encoding: Encoding::Bytes,
            },
            Value::Tensor {
                dtype: DType::Bool,
                shape: vec![2],
                data: vec![1, 2].into(),
            },
            "bool is 2",
        ),
        (
            Feature::sequence(scalar()),
            Value::Tensor {
                dtype: DType::UInt8,
                shape: vec![3],
                data: vec![1, 2].into(),
            },
            "tensor of uint8 [3] has 2 bytes",
        ),
        (
            Feature::Video {
                shape: vec![None, Some(2), Some(2), Some(1)],
                dtype: DType::UInt8,
                encoding_format: None,
            },
            Value::Tensor {
                dtype: DType::UInt8,
                shape: vec![1, 2, 3, 1],
                data: vec![0; 6].into(),
            },
            "feature `x`: pixels are uint8 [2, 3, 1], wanted uint8 [2, 2, 1]",
        ),
    ];
    for (feature, value, wanted) in cases {
        let schema = schema(&[("x", feature)]);
        let mut out = vec![7];
        let error = schema
            .encoder()
            .encode(&[("x", value)], &mut out)
            .unwrap_err()
            .to_string();
        assert!(error.contains(wanted), "{error}\nwanted {wanted}");
        assert_eq!(out, [7], "an error leaves nothing behind");
    }
}

#[test]
fn schemas_that_cannot_be_stored_are_refused() {
    let new = |features: &[(&str, Feature)]| {
        let features = features
            .iter()
            .map(|(name, feature)| (name.to_string(), feature.clone()));
        Features::new(features.collect())
    };
    let packed = Feature::Tensor {
        shape: vec![None, None],
        dtype: DType::Int8,
        encoding: Encoding::Zlib,
    };
    let nested = Feature::sequence(Feature::sequence(scalar()));
    let cases: Vec<(Vec<(&str, Feature)>, &str)> = vec![
        (
            vec![("a", Feature::dict([("b", scalar())])), ("a/b", scalar())],
            "stored as `a/b`",
        ),
        (
            vec![("a", packed.clone()), ("a/shape", scalar())],
            "stored as `a/shape`",
        ),
        (
            vec![("a", nested), ("a/ragged_row_lengths_0", scalar())],
            "stored as `a/ragged_row_lengths_0`",
        ),
        (
            vec![(
                "a",
                Feature::Dict(vec![("c".into(), scalar()), ("b".into(), scalar())]),
            )],
            "`a/b`: not in sorted order",
        ),
        (
            vec![(
                "a",
                Feature::Dict(vec![("b".into(), scalar()), ("b".into(), scalar())]),
            )],
            "`a/b` is declared twice",
        ),
        (
            vec![("a", Feature::Optional(Box::new(Feature::Text)))],
            "optional scalar of strings",
        ),
        (
            vec![("a", Feature::Optional(Box::new(Feature::sequence(scalar()))))],
            "an optional Sequence",
        ),
        (
            vec![(
                "a",
                Feature::BBox {
                    format: Some("YX".into()),
                },
            )],
            "box format is `YX`",
        ),
        (
            vec![(
                "a",
                Feature::Tensor {
                    shape: vec![],
                    dtype: DType::String,
                    encoding: Encoding::Zlib,
                },
            )],
            "encoding `zlib`",
        ),
        (
            vec![(
                "a",
                Feature::Translation {
                    languages: vec!["fr".into(), "en".into()],
                },
            )],
            "sorted order",
        ),
        (
            vec![(
                "a",
                Feature::dict([(
                    "b",
                    Feature::Image {
                        shape: vec![Some(1)],
                        dtype: DType::UInt8,
                        encoding_format: None,
                    },
                )]),
            )],
            "feature `a/b`: image of shape [1]",
        ),
        (
            vec![(
                "a",
                Feature::Video {
                    shape: vec![None],
                    dtype: DType::UInt8,
                    encoding_format: None,
                },
            )],
            "video of shape [None]",
        ),
        (
            vec![(
                "a",
                Feature::Audio {
                    shape: vec![],
                    dtype: DType::Int16,
                    file_format: None,
                    sample_rate: None,
                    encoding: Encoding::None,
                    lazy_decode: false,
                },
            )],
            "audio of shape []",
        ),
    ];
    for (features, wanted) in cases {
        let error = new(&features).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}\nwanted {wanted}");
    }
    // Empty dicts are nowhere, and names with a `/` are names.
    let odd = new(&[
        ("a", Feature::dict([] as [(&str, Feature); 0])),
        ("a/b", scalar()),
        ("p", packed),
    ])
    .unwrap();
    let names: Vec<String> = odd
        .column_specs(true)
        .unwrap()
        .into_iter()
        .map(|spec| spec.name)
        .collect();
    assert_eq!(names, ["a/b", "p"]);
}

fn decode_error(feature: Feature, lists: &[(&str, FeatureList)]) -> String {
    let schema = schema(&[("x", feature)]);
    let mut decoder = BatchDecoder::new(&schema, true).unwrap();
    let mut batch = decoder.new_batch(1);
    let error = decoder.push(&example(lists), &mut batch).unwrap_err().to_string();
    assert_eq!(batch.rows, 0);
    error
}

#[test]
fn lists_that_do_not_fit_together_are_named() {
    use FeatureList::{Bytes, Float, Int64};
    let ragged = || Feature::sequence(Feature::sequence(scalar()));
    let ragged3 = || Feature::sequence(ragged());
    let flat = |values: &[i64]| ("x/ragged_flat_values", Int64(values.to_vec()));
    let lengths = |values: &[i64]| ("x/ragged_row_lengths_0", Int64(values.to_vec()));
    let inner = |values: &[i64]| ("x/ragged_row_lengths_1", Int64(values.to_vec()));
    let packed = |shape: Vec<Option<u64>>, encoding| Feature::Tensor {
        shape,
        dtype: DType::Int16,
        encoding,
    };
    let string = |text: &[u8]| Bytes(vec![text.to_vec()]);
    let three = Feature::Sequence {
        feature: Box::new(Feature::sequence(scalar())),
        length: Some(3),
    };
    type Case = (Feature, Vec<(&'static str, FeatureList)>, &'static str);
    let cases: Vec<Case> = vec![
        (
            ragged(),
            vec![flat(&[1, 2, 3]), lengths(&[2, 2])],
            "3 values, but the row lengths add up to 4",
        ),
        (
            ragged(),
            vec![flat(&[1]), lengths(&[2, -1])],
            "row lengths of level 0: a sequence of -1 elements",
        ),
        (
            ragged(),
            vec![flat(&[1]), lengths(&[i64::MAX, i64::MAX])],
            "row lengths of level 0: a sequence of 9223372036854775807",
        ),
        (ragged(), vec![flat(&[1])], "missing from the record"),
        (ragged(), vec![lengths(&[0])], "missing from the record"),
        (ragged(), vec![("x", Int64(vec![1]))], "missing from the record"),
        (
            ragged(),
            vec![flat(&[1]), ("x/ragged_row_lengths_0", Float(vec![1.0]))],
            "holds floats, wanted integers",
        ),
        (
            ragged3(),
            vec![flat(&[1]), lengths(&[1, 1]), inner(&[1])],
            "1 row lengths at level 1, wanted 2",
        ),
        (
            three,
            vec![flat(&[1]), lengths(&[1])],
            "a sequence of 1 elements, wanted 3",
        ),
        (
            Feature::Sequence {
                feature: Box::new(scalar()),
                length: Some(3),
            },
            vec![("x", Int64(vec![1, 2]))],
            "2 values, wanted 3",
        ),
        (
            Feature::sequence(Feature::tensor(vec![Some(2)], DType::UInt8)),
            vec![("x", Int64(vec![1, 2, 3]))],
            "3 values, wanted a multiple of 2",
        ),
        (
            Feature::sequence(scalar()),
            vec![("x", Int64(vec![1, 300]))],
            "300 does not fit into uint8",
        ),
        (
            Feature::sequence(Feature::ClassLabel {
                num_classes: 3,
                names: vec![],
            }),
            vec![("x", Int64(vec![1, 3]))],
            "label is 3",
        ),
        (
            packed(vec![Some(2)], Encoding::Bytes),
            vec![("x", string(b"abc"))],
            "a tensor of 3 bytes, wanted 4",
        ),
        (
            packed(vec![Some(2)], Encoding::Zlib),
            vec![("x", string(b"abc"))],
            "no zlib stream",
        ),
        (
            packed(vec![Some(1 << 40)], Encoding::Zlib),
            vec![("x", string(b"abc"))],
            "cannot hold a tensor of",
        ),
        (
            packed(vec![None], Encoding::Zlib),
            vec![("x", string(b"abc"))],
            "no zlib stream",
        ),
        (
            packed(vec![None], Encoding::Bytes),
            vec![("x", string(b"abc"))],
            "3 bytes, wanted a multiple of 2",
        ),
        (
            packed(vec![None, Some(2)], Encoding::Bytes),
            vec![("x", string(b"ab"))],
            "1 values, wanted whole rows",
        ),
        (
            packed(vec![None, None], Encoding::Bytes),
            vec![("x/shape", Int64(vec![1, 2])), ("x/value", string(b"ab"))],
            "a tensor of 2 bytes, wanted 4",
        ),
        (
            packed(vec![None, None], Encoding::Zlib),
            vec![
                ("x/shape", Int64(vec![1 << 30, 1 << 30])),
                ("x/value", string(b"ab")),
            ],
            "cannot hold a tensor of",
        ),
        (
            packed(vec![None, None], Encoding::Zlib),
            vec![
                ("x/shape", Int64(vec![i64::MAX, i64::MAX])),
                ("x/value", string(b"ab")),
            ],
            "its shape is [9223372036854775807",
        ),
        (
            packed(vec![None, None], Encoding::Bytes),
            vec![("x/shape", Int64(vec![-1, 2])), ("x/value", string(b""))],
            "its shape is [-1, 2], wanted [None, None]",
        ),
        (
            packed(vec![None, None], Encoding::Bytes),
            vec![("x/shape", Int64(vec![1])), ("x/value", string(b"ab"))],
            "its shape has 1 dimensions, wanted 2",
        ),
        (
            packed(vec![None, None], Encoding::Bytes),
            vec![("x/shape", Int64(vec![1, 1, 1])), ("x/value", string(b"ab"))],
            "1 more numbers of shapes than values",
        ),
        (
            packed(vec![None, None], Encoding::Bytes),
            vec![("x/value", string(b"ab"))],
            "shape",
        ),
        (
            Feature::Optional(Box::new(scalar())),
            vec![("x", Int64(vec![]))],
            "0 values, wanted 1",
        ),
    ];
    for (feature, lists, wanted) in cases {
        let error = decode_error(feature, &lists);
        assert!(
            error.contains("feature `x`") && error.contains(wanted),
            "{error}\nwanted {wanted}"
        );
    }
}

#[test]
fn pictures_that_are_not_decoded_are_refused_or_stay_files() {
    let photo = |format: Option<&str>| Feature::Image {
        shape: vec![None, None, Some(3)],
        dtype: DType::UInt8,
        encoding_format: format.map(str::to_string),
    };
    let jpeg = FeatureList::Bytes(vec![b"\xff\xd8\xff\xe0".to_vec()]);
    let frames = Feature::sequence(photo(Some("jpeg")));
    let features = schema(&[("frames", frames), ("photo", photo(Some("jpeg")))]);
    assert!(BatchDecoder::new(&features, Images::Decoded).is_err());
    let record = example(&[("frames", jpeg.clone()), ("photo", jpeg.clone())]);
    for images in [Images::Encoded, Images::DecodedWherePossible] {
        let mut decoder = BatchDecoder::new(&features, images).unwrap();
        let mut batch = decoder.new_batch(1);
        decoder.push(&record, &mut batch).unwrap();
        let file: &[u8] = b"\xff\xd8\xff\xe0";
        for (shape, (spec, column)) in [vec![1], vec![]]
            .into_iter()
            .zip(decoder.specs().iter().zip(&batch.columns))
        {
            assert_eq!(spec.dtype, DType::String);
            let strings = vec![file];
            assert_eq!(column.cell(spec, 0), Some(Cell::Strings { shape, strings }));
            assert_eq!(column.cell(spec, 1), None);
        }
    }
    let error = decode_error(photo(None), &[("x", jpeg)]);
    assert!(error.contains("JPEG"), "{error}");
    let gif = Feature::Image {
        shape: vec![None, None, None, Some(3)],
        dtype: DType::UInt8,
        encoding_format: None,
    };
    let features = schema(&[("gif", gif)]);
    assert!(
        BatchDecoder::new(&features, true)
            .unwrap_err()
            .to_string()
            .contains("GIF")
    );
    assert!(BatchDecoder::new(&features, Images::DecodedWherePossible).is_ok());
}

#[test]
fn columns_are_selected_by_name_and_path() {
    let features = schema(&[
        (
            "a",
            Feature::dict([
                ("b", Feature::dict([("c", scalar()), ("d", Feature::Text)])),
                ("e", scalar()),
            ]),
        ),
        ("f/g", scalar()),
        ("h", Feature::Text),
    ]);
    let names = |names: &[&str]| -> Vec<String> {
        let selected = features.select(names).unwrap();
        selected
            .column_specs(true)
            .unwrap()
            .into_iter()
            .map(|spec| spec.name)
            .collect()
    };
    assert_eq!(names(&["h", "a"]), ["a/b/c", "a/b/d", "a/e", "h"]);
    assert_eq!(names(&["a/e", "f/g", "a/b/d"]), ["a/b/d", "a/e", "f/g"]);
    assert_eq!(names(&["a/b"]), ["a/b/c", "a/b/d"]);
    for wrong in [
        &["x"][..],
        &["a/x"],
        &["a/b/x"],
        &["h/x"],
        &["h", "h"],
        &["a/e", "a/e"],
    ] {
        assert!(features.select(wrong).is_err(), "{wrong:?}");
    }
    let error = features.select(&["x"]).unwrap_err().to_string();
    assert!(
        error.contains("`x` is not in the schema, which has `a`, `f/g`, `h`"),
        "{error}"
    );
}

/// Names of features that the schema does not have, and orders that change, are found all the same.
#[test]
fn orders_change_from_record_to_record() {
    let features = schema(&[("b", scalar()), ("d", scalar())]);
    let mut decoder = BatchDecoder::new(&features, true).unwrap();
    let mut batch = decoder.new_batch(10);
    let entry = |name: &str, value: u8| {
        let mut entry = vec![0x0a, name.len() as u8];
        entry.extend(name.as_bytes());
        entry.extend([0x12, 5, 0x1a, 3, 0x0a, 1, value]);
        entry
    };
    let record = |names: &[(&str, u8)]| {
        let mut features = Vec::new();
        for (name, value) in names {
            let entry = entry(name, *value);
            features.extend([0x0a, entry.len() as u8]);
            features.extend(entry);
        }
        let mut record = vec![0x0a, features.len() as u8];
        record.extend(features);
        record
    };
    let orders: [&[(&str, u8)]; 7] = [
        &[("b", 1), ("d", 2)],
        &[("d", 4), ("b", 3)],
        &[("a", 0), ("b", 5), ("c", 0), ("d", 6), ("e", 0)],
        &[("a", 0), ("b", 7), ("c", 0), ("d", 8), ("e", 0)],
        &[("e", 0), ("d", 10), ("c", 0), ("b", 9)],
        // One name twice: the last counts.
        &[("b", 0), ("b", 11), ("d", 0), ("d", 12)],
        &[("c", 0), ("d", 14), ("d2", 0), ("b", 13)],
    ];
    for names in orders {
        decoder.push(&record(names), &mut batch).unwrap();
    }
    let bytes: Vec<Vec<u8>> = batch
        .columns
        .iter()
        .map(|column| match column {
            crate::columns::ColumnData::Fixed(data) => data.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bytes[0], [1, 3, 5, 7, 9, 11, 13]);
    assert_eq!(bytes[1], [2, 4, 6, 8, 10, 12, 14]);
    assert!(decoder.push(&record(&[("b", 1)]), &mut batch).is_err());
    // More names that are ignored than are remembered.
    for number in 0..600 {
        let name = format!("z{number}");
        decoder
            .push(&record(&[("b", 1), (&name, 3), ("d", 2)]), &mut batch)
            .unwrap();
    }
    assert_eq!(batch.rows, 607);
    let odd = [0x0a, 12, 0x0a, 10, 0x0a, 1, 0xff, 0x12, 5, 0x1a, 3, 0x0a, 1, 1];
    let error = decoder.push(&odd, &mut batch).unwrap_err().to_string();
    assert!(error.contains("UTF-8"), "{error}");
}

/// The same example, missing or there, of each kind that can be missing.
#[test]
fn optional_rows_are_there_or_missing() {
    let optional = |feature| Feature::Optional(Box::new(feature));
    let features = schema(&[
        ("n", optional(Feature::tensor(vec![Some(2)], DType::Int16))),
        ("r", optional(Feature::tensor(vec![None, Some(2)], DType::Int16))),
        ("s", optional(Feature::Scalar { dtype: DType::String })),
        ("t", optional(Feature::tensor(vec![None], DType::String))),
    ]);
    let mut encoder = features.encoder();
    let there = [
        ("n", numbers(&[1, 2])),
        ("r", Value::List(vec![numbers(&[3, 4])])),
        ("s", bytes("five")),
        ("t", Value::List(vec![bytes("six")])),
    ];
    let missing = ["n", "r", "s", "t"].map(|name| (name, Value::Null));
    let mut decoder = BatchDecoder::new(&features, true).unwrap();
    let mut batch = decoder.new_batch(4);
    for values in [&missing, &there, &missing, &there] {
        let mut record = Vec::new();
        encoder.encode(values, &mut record).unwrap();
        decoder.push(&record, &mut batch).unwrap();
    }
    let mut empty = Vec::new();
    encoder.encode(&missing, &mut empty).unwrap();
    assert_eq!(empty, b"\x0a\x00", "nothing is stored of what is missing");
    for (spec, column) in decoder.specs().iter().zip(&batch.columns) {
        assert!(spec.optional);
        for row in [0, 2] {
            assert_eq!(column.cell(spec, row), Some(Cell::Missing), "{}", spec.name);
            assert_eq!(column.row(spec, row), None);
        }
        assert_eq!(column.cell(spec, 1), column.cell(spec, 3));
    }
    let cell = |column: usize| batch.columns[column].cell(&decoder.specs()[column], 3).unwrap();
    let array = |shape: &[u64], data: &'static [u8]| Cell::Array {
        shape: shape.to_vec(),
        data,
    };
    assert_eq!(cell(0), array(&[2], &[1, 0, 2, 0]));
    assert_eq!(cell(1), array(&[1, 2], &[3, 0, 4, 0]));
    let strings = |shape: &[u64], string: &'static [u8]| Cell::Strings {
        shape: shape.to_vec(),
        strings: vec![string],
    };
    assert_eq!(cell(2), strings(&[], b"five"));
    assert_eq!(cell(3), strings(&[1], b"six"));
}
