//! Tests of the encoder.

use bytes::Bytes;

use crate::example::{Example, FeatureList};
use crate::features::{Encoding, Feature, Features};
use crate::png;
use crate::value::{DType, Value};
use crate::{Error, Result};

fn schema(features: &[(&str, Feature)]) -> Features {
    let features = features
        .iter()
        .map(|(name, feature)| (name.to_string(), feature.clone()));
    Features::new(features.collect()).unwrap()
}

fn encode(feature: Feature, value: Value) -> Result<FeatureList> {
    let mut out = vec![9];
    let mut encoder = schema(&[("x", feature)]).encoder();
    let values = [("x", value)];
    let checked = encoder.check(&values);
    let result = encoder.encode(&values, &mut out);
    assert_eq!(format!("{checked:?}"), format!("{result:?}"));
    if let Err(error) = result {
        assert_eq!(out, [9], "an error leaves nothing behind");
        return Err(error);
    }
    let mut example = Example::decode(&out[1..])?;
    assert_eq!(example.encode(), &out[1..], "the encoding is canonical");
    Ok(example.features.remove("x").unwrap())
}

fn scalar(dtype: DType, value: Value) -> Result<FeatureList> {
    encode(Feature::Scalar { dtype }, value)
}

fn tensor(dtype: DType, shape: &[usize], data: &[u8]) -> Value {
    Value::Tensor {
        dtype,
        shape: shape.to_vec(),
        data: Bytes::copy_from_slice(data),
    }
}

fn names_of_two() -> Feature {
    Feature::ClassLabel {
        num_classes: 2,
        names: vec!["cat".into(), "dog".into()],
    }
}

#[test]
fn numbers_are_stored_as_tfds_stores_them() {
    use FeatureList::{Float, Int64};
    assert_eq!(scalar(DType::Int8, Value::Int(-5)).unwrap(), Int64(vec![-5]));
    assert_eq!(scalar(DType::Bool, Value::Int(1)).unwrap(), Int64(vec![1]));
    assert_eq!(
        scalar(DType::UInt64, tensor(DType::UInt64, &[], &[0xff; 8])).unwrap(),
        Int64(vec![-1])
    );
    assert_eq!(
        scalar(DType::Float64, Value::Float(0.1)).unwrap(),
        Float(vec![0.1])
    );
    assert_eq!(
        scalar(DType::Float16, Value::Float(0.1)).unwrap(),
        Float(vec![0.099_975_586])
    );
    assert_eq!(scalar(DType::BFloat16, Value::Int(3)).unwrap(), Float(vec![3.0]));
    let three = Feature::tensor(vec![Some(3)], DType::Int16);
    let bytes = [1, 0, 0xff, 0xff, 0, 0x80];
    assert_eq!(
        encode(three.clone(), tensor(DType::Int16, &[3], &bytes)).unwrap(),
        Int64(vec![1, -1, -32768])
    );
    let list = Value::List(vec![Value::Int(1), Value::Int(-1), Value::Int(7)]);
    assert_eq!(encode(three, list).unwrap(), Int64(vec![1, -1, 7]));
    let empty = Feature::tensor(vec![None], DType::Float32);
    assert_eq!(encode(empty, Value::List(Vec::new())).unwrap(), Float(vec![]));
}

#[test]
fn strings_and_nested_lists() {
    let feature = Feature::tensor(vec![None, Some(2)], DType::String);
    let pair =
        |a: &'static str, b: &'static str| Value::List(vec![Value::Bytes(a.into()), Value::Bytes(b.into())]);
    let rows = Value::List(vec![pair("a", ""), pair("c", "d")]);
    let wanted = ["a", "", "c", "d"].map(|text| text.as_bytes().to_vec());
    assert_eq!(
        encode(feature.clone(), rows).unwrap(),
        FeatureList::Bytes(wanted.to_vec())
    );
    let error = encode(feature.clone(), pair("a", "b")).unwrap_err().to_string();
    assert!(
        error.contains("`x`") && error.contains("[2]") && error.contains("[None, 2]"),
        "{error}"
    );
    let mixed = Value::List(vec![pair("a", "b"), Value::Bytes("c".into())]);
    assert!(encode(feature.clone(), mixed).is_err());
    let mixed = Value::List(vec![Value::Bytes("c".into()), pair("a", "b")]);
    assert!(encode(feature.clone(), mixed).is_err());
    let ragged = Value::List(vec![pair("a", "b"), Value::List(vec![Value::Bytes("c".into())])]);
    assert!(encode(feature, ragged).is_err());
}

#[test]
fn labels_by_number_and_name() {
    let label = |value| encode(names_of_two(), value);
    assert_eq!(
        label(Value::Bytes("dog".into())).unwrap(),
        FeatureList::Int64(vec![1])
    );
    assert_eq!(label(Value::Int(0)).unwrap(), FeatureList::Int64(vec![0]));
    assert_eq!(label(Value::Int(-1)).unwrap(), FeatureList::Int64(vec![-1]));
    assert_eq!(
        label(tensor(DType::UInt8, &[], &[1])).unwrap(),
        FeatureList::Int64(vec![1])
    );
    for (value, text) in [
        (Value::Int(2), "label is 2, wanted 0 to 1"),
        (Value::Int(-2), "label is -2"),
        (Value::Bytes("cow".into()), "`cow`"),
        (tensor(DType::Int8, &[], &[0xfe]), "label is -2"),
        (Value::Float(1.0), "the number 1.0"),
        (Value::Null, "a missing value"),
    ] {
        let error = label(value).unwrap_err().to_string();
        assert!(error.contains("feature `x`") && error.contains(text), "{error}");
    }
    let numbers = Feature::ClassLabel {
        num_classes: 7,
        names: vec![],
    };
    assert_eq!(
        encode(numbers.clone(), Value::Bytes("6".into())).unwrap(),
        FeatureList::Int64(vec![6])
    );
    assert!(encode(numbers.clone(), Value::Bytes("7".into())).is_err());
    assert!(encode(numbers, Value::Bytes("six".into())).is_err());
}

fn image(shape: [Option<u64>; 3], dtype: DType, format: Option<&str>) -> Feature {
    Feature::Image {
        shape: shape.to_vec(),
        dtype,
        encoding_format: format.map(str::to_string),
    }
}

#[test]
fn pixels_become_png_and_files_are_kept() {
    let feature = image([Some(2), Some(3), Some(3)], DType::UInt8, None);
    let pixels: Vec<u8> = (0..18).collect();
    let FeatureList::Bytes(stored) =
        encode(feature.clone(), tensor(DType::UInt8, &[2, 3, 3], &pixels)).unwrap()
    else {
        panic!("images are byte strings")
    };
    let mut decoded = Vec::new();
    let info = png::Decoder::new()
        .decode_append(&stored[0], Some(3), 8, &mut decoded)
        .unwrap();
    assert_eq!((info.height, info.width), (2, 3));
    assert_eq!(decoded, pixels);
    let again = encode(feature.clone(), Value::Bytes(stored[0].clone().into())).unwrap();
    assert_eq!(again, FeatureList::Bytes(stored.clone()));

    let other = image([Some(3), None, Some(3)], DType::UInt8, None);
    let error = encode(other, Value::Bytes(stored[0].clone().into()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("height 2 and width 3, wanted [3, None, 3]"),
        "{error}"
    );
    let error = encode(feature.clone(), tensor(DType::UInt8, &[3, 2, 3], &pixels))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("uint8 [3, 2, 3], wanted uint8 [2, 3, 3]"),
        "{error}"
    );
    let error = encode(feature.clone(), tensor(DType::UInt8, &[2, 3, 3], &pixels[1..]));
    assert!(error.unwrap_err().to_string().contains("17 bytes"));
    let error = encode(feature, Value::Bytes("<html>".into()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("`<html>`"), "{error}");
    let jpeg = image([None, None, Some(3)], DType::UInt8, Some("jpeg"));
    assert!(encode(jpeg.clone(), Value::Bytes(b"\xff\xd8\xff\xe0".as_ref().into())).is_ok());
    let error = encode(jpeg, tensor(DType::UInt8, &[2, 3, 3], &pixels)).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn wide_and_float_pixels_come_back() {
    for (dtype, channels) in [(DType::UInt16, 2), (DType::Float32, 1)] {
        let feature = image([None, Some(2), Some(channels)], dtype, Some("png"));
        let data: Vec<u8> = (0..16).map(|i| i * 7).collect();
        let shape = [2, 2, channels as usize];
        let FeatureList::Bytes(stored) = encode(feature, tensor(dtype, &shape, &data)).unwrap() else {
            panic!("images are byte strings")
        };
        let (channels, bits) = if dtype == DType::UInt16 { (2, 16) } else { (4, 8) };
        let mut decoded = Vec::new();
        png::Decoder::new()
            .decode_append(&stored[0], Some(channels), bits, &mut decoded)
            .unwrap();
        assert_eq!(decoded, data);
    }
}

#[test]
fn each_feature_once_and_none_besides() {
    let features = schema(&[("b", Feature::Text), ("a", names_of_two())]);
    let mut encoder = features.encoder();
    let text = || Value::Bytes("t".into());
    let mut first = Vec::new();
    encoder
        .encode(&[("b", text()), ("a", Value::Int(0))], &mut first)
        .unwrap();
    let mut second = Vec::new();
    encoder
        .encode(&[("a", Value::Int(0)), ("b", text())], &mut second)
        .unwrap();
    assert_eq!(first, second);
    let mut error =
        |values: &[(&str, Value)]| encoder.encode(values, &mut Vec::new()).unwrap_err().to_string();
    assert!(error(&[("a", Value::Int(0))]).contains("feature `b` has no value"));
    assert!(
        error(&[("a", Value::Int(0)), ("b", text()), ("c", text())])
            .contains("`c` is not in the schema, which has `a`, `b`")
    );
    assert!(error(&[("b", text()), ("b", text())]).contains("`b` is given twice"));
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    for (dtype, value) in [
        (DType::UInt8, Value::Int(256)),
        (DType::Int8, Value::Int(-129)),
        (DType::UInt64, Value::Int(-1)),
        (DType::Bool, Value::Int(2)),
        (DType::Int32, Value::Float(1.0)),
        (DType::Float32, Value::Bytes("1".into())),
        (DType::Int64, tensor(DType::Int32, &[], &[0; 4])),
        (DType::Int64, tensor(DType::Int64, &[], &[0; 4])),
        (DType::Bool, tensor(DType::Bool, &[], &[2])),
        (DType::String, Value::Int(1)),
    ] {
        assert!(scalar(dtype, value.clone()).is_err(), "{dtype} {value:?}");
    }
    let feature = Feature::tensor(vec![None, None], DType::Int8);
    assert!(matches!(
        encode(feature, Value::List(vec![])),
        Err(Error::Unsupported { .. })
    ));
    let feature = Feature::tensor(vec![None], DType::Int64);
    assert!(encode(feature, tensor(DType::Int64, &[usize::MAX], &[])).is_err());
}

#[test]
fn finite_numbers_beyond_a_type_are_refused_and_infinite_ones_stay() {
    use FeatureList::Float;
    let double = |value: f64| {
        tensor(
            DType::Float64,
            &[2],
            &[value.to_le_bytes(), 1f64.to_le_bytes()].concat(),
        )
    };
    let sequence = || {
        Feature::sequence(Feature::Scalar {
            dtype: DType::Float64,
        })
    };
    let fixed = || Feature::tensor(vec![Some(2)], DType::Float64);
    for value in [1e300, -3.5e38] {
        for error in [
            scalar(DType::Float64, Value::Float(value)).unwrap_err(),
            encode(sequence(), double(value)).unwrap_err(),
            encode(fixed(), double(value)).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(
                text.contains("feature `x`")
                    && text.contains(&format!("{value:e}"))
                    && text.contains("`bytes`"),
                "{text}"
            );
        }
        let text = scalar(DType::Float32, Value::Float(value))
            .unwrap_err()
            .to_string();
        assert!(text.contains("float32"), "{text}");
    }
    assert!(scalar(DType::Float16, Value::Float(65520.0)).is_err());
    assert!(scalar(DType::BFloat16, Value::Float(3.4e38)).is_err());
    // The largest there is, and what rounds to it; and what the source itself has as infinite.
    for value in [
        f64::from(f32::MAX),
        3.402_823_5e38,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ] {
        let stored = value as f32;
        assert_eq!(
            scalar(DType::Float64, Value::Float(value)).unwrap(),
            Float(vec![stored])
        );
        assert_eq!(encode(fixed(), double(value)).unwrap(), Float(vec![stored, 1.0]));
    }
    let kept = Feature::Tensor {
        shape: vec![],
        dtype: DType::Float64,
        encoding: Encoding::Bytes,
    };
    assert!(encode(kept, Value::Float(1e300)).is_ok());
}
