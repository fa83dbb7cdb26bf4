//! Statistics against a plain count of the values that went in.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::features::{Encoding, Feature};
use crate::statistics::sum::mean_of;
use crate::value::{DType, Value as Typed};

/// An example, as plain values.
#[derive(Debug, Clone)]
struct Row {
    flag: bool,
    count: u64,
    score: f32,
    exact: Vec<f64>,
    maybe: Option<i32>,
    text: String,
    label: i64,
    words: Vec<String>,
    ragged: Vec<Vec<i64>>,
    pixels: Vec<u16>,
    point: [f32; 2],
}

fn schema() -> Features {
    let scalar = |dtype| Feature::Scalar { dtype };
    let tensor = |shape: &[Option<u64>], dtype, encoding| Feature::Tensor {
        shape: shape.to_vec(),
        dtype,
        encoding,
    };
    let label = Feature::ClassLabel {
        num_classes: 3,
        names: vec!["x".into(), "b".into(), "c".into()],
    };
    let features = [
        ("flag", scalar(DType::Bool)),
        ("count", scalar(DType::UInt64)),
        ("score", scalar(DType::Float32)),
        ("exact", tensor(&[Some(2)], DType::Float64, Encoding::Bytes)),
        ("maybe", Feature::Optional(Box::new(scalar(DType::Int32)))),
        ("text", Feature::Text),
        ("label", label),
        ("words", Feature::sequence(Feature::Text)),
        (
            "ragged",
            Feature::sequence(Feature::sequence(scalar(DType::Int64))),
        ),
        ("pixels", tensor(&[None], DType::UInt16, Encoding::Zlib)),
        (
            "nested",
            Feature::dict([("point", tensor(&[Some(2)], DType::Float32, Encoding::None))]),
        ),
    ];
    Features::new(
        features
            .map(|(name, feature)| (name.to_owned(), feature))
            .to_vec(),
    )
    .unwrap()
}

fn memory<T, const N: usize>(values: &[T], dtype: DType, bytes: impl Fn(&T) -> [u8; N]) -> Typed {
    Typed::Tensor {
        dtype,
        shape: vec![values.len()],
        data: values.iter().flat_map(bytes).collect::<Vec<u8>>().into(),
    }
}

fn record(row: &Row, encoder: &mut crate::features::ExampleEncoder) -> Vec<u8> {
    let text = |text: &String| Typed::Bytes(Bytes::from(text.clone()));
    let list = |values: &Vec<i64>| Typed::List(values.iter().map(|value| Typed::Int(*value)).collect());
    let values = [
        ("flag", Typed::Int(row.flag.into())),
        (
            "count",
            memory(&[row.count], DType::UInt64, |value| value.to_le_bytes()),
        ),
        ("score", Typed::Float(row.score.into())),
        (
            "exact",
            memory(&row.exact, DType::Float64, |value| value.to_le_bytes()),
        ),
        (
            "maybe",
            row.maybe.map_or(Typed::Null, |value| Typed::Int(value.into())),
        ),
        ("text", text(&row.text)),
        ("label", Typed::Int(row.label)),
        ("words", Typed::List(row.words.iter().map(text).collect())),
        ("ragged", Typed::List(row.ragged.iter().map(list).collect())),
        (
            "pixels",
            memory(&row.pixels, DType::UInt16, |value| value.to_le_bytes()),
        ),
        (
            "nested",
            Typed::Dict(vec![(
                "point".into(),
                memory(&row.point, DType::Float32, |value| value.to_le_bytes()),
            )]),
        ),
    ];
    let values = values.map(|(name, value)| match value {
        // A tensor of one number is a scalar.
        Typed::Tensor { dtype, data, .. } if name == "count" => (
            name,
            Typed::Tensor {
                dtype,
                shape: vec![],
                data,
            },
        ),
        value => (name, value),
    });
    let mut record = Vec::new();
    encoder.encode(&values, &mut record).unwrap();
    record
}

fn statistics(rows: &[Row]) -> Statistics {
    let features = schema();
    let (mut statistics, mut encoder) = (Statistics::new(&features), features.encoder());
    for row in rows {
        statistics.add(&record(row, &mut encoder)).unwrap();
    }
    statistics
}

/// Range, mean, distinct values and the like of floats, one after another.
fn of_floats(values: &[f64]) -> Value {
    let finite: Vec<f64> = values
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .map(|value| value + 0.0)
        .collect();
    let mut bits: Vec<u64> = values
        .iter()
        .map(|value| {
            if value.is_nan() {
                1
            } else {
                (value + 0.0).to_bits()
            }
        })
        .collect();
    bits.sort_unstable();
    bits.dedup();
    let count = |of: f64| values.iter().filter(|value| **value == of).count();
    json!({
        "values": values.len(),
        "distinct": bits.len(),
        "min": finite.iter().copied().reduce(f64::min),
        "max": finite.iter().copied().reduce(f64::max),
        "mean": finite.iter().sum::<f64>() / finite.len() as f64,
        "nan": values.iter().filter(|value| value.is_nan()).count(),
        "infinite": {"negative": count(f64::NEG_INFINITY), "positive": count(f64::INFINITY)},
    })
}

fn of_integers(values: &[i128]) -> Value {
    let distinct: std::collections::BTreeSet<&i128> = values.iter().collect();
    let plain = |value: Option<&i128>| {
        value.map(|value| u64::try_from(*value).map_or(json!(*value as i64), Value::from))
    };
    json!({
        "values": values.len(),
        "distinct": distinct.len(),
        "min": plain(values.iter().min()),
        "max": plain(values.iter().max()),
        "mean": mean_of(values.iter().sum(), values.len() as u64),
    })
}

/// The same as `Lengths::describe`.
fn of_lengths(lengths: &[usize]) -> Value {
    if lengths.is_empty() {
        return Value::Null;
    }
    let mut histogram = Vec::new();
    let mut from = 0;
    while from <= lengths.iter().copied().max().unwrap_or(0) {
        let to = if from == 0 { 0 } else { 2 * from - 1 };
        let count = lengths
            .iter()
            .filter(|length| (from..=to).contains(*length))
            .count();
        if count > 0 {
            histogram.push(json!({"from": from, "to": to, "count": count}));
        }
        from = to + 1;
    }
    json!({
        "min": lengths.iter().min(),
        "max": lengths.iter().max(),
        "mean": lengths.iter().sum::<usize>() as f64 / lengths.len() as f64,
        "histogram": histogram,
    })
}

fn of_texts(texts: &[&String]) -> Value {
    let distinct: std::collections::BTreeSet<_> = texts.iter().collect();
    let lengths: Vec<usize> = texts.iter().map(|text| text.len()).collect();
    json!({"values": texts.len(), "distinct": distinct.len(), "bytes": of_lengths(&lengths)})
}

/// The expected description, feature by feature.
fn expected(rows: &[Row]) -> Value {
    let with = |mut value: Value, missing: usize, more: Value| {
        value["examples"] = (rows.len() - missing).into();
        value["missing"] = missing.into();
        for (key, more) in more.as_object().unwrap() {
            value[key] = more.clone();
        }
        value
    };
    let plain = |value| with(value, 0, json!({}));
    let floats = |of: &dyn Fn(&Row) -> Vec<f64>| of_floats(&rows.iter().flat_map(of).collect::<Vec<_>>());
    let integers =
        |of: &dyn Fn(&Row) -> Vec<i128>| of_integers(&rows.iter().flat_map(of).collect::<Vec<_>>());
    let lengths =
        |of: &dyn Fn(&Row) -> usize| json!({"lengths": of_lengths(&rows.iter().map(of).collect::<Vec<_>>())});
    let missing = rows.iter().filter(|row| row.maybe.is_none()).count();
    let mut labels = Map::new();
    for (class, name) in ["x", "b", "c"].into_iter().enumerate() {
        let count = rows.iter().filter(|row| row.label == class as i64).count();
        if count > 0 {
            labels.insert(name.into(), count.into());
        }
    }
    let mut label = integers(&|row| vec![row.label.into()]);
    for key in ["min", "max", "mean"] {
        label.as_object_mut().unwrap().remove(key);
    }
    let unlabelled = rows.iter().filter(|row| row.label == -1).count();
    json!({
        "count": plain(integers(&|row| vec![row.count.into()])),
        "exact": plain(floats(&|row| row.exact.clone())),
        "flag": plain(integers(&|row| vec![row.flag.into()])),
        "label": with(label, 0, json!({"labels": labels, "unlabelled": unlabelled})),
        "maybe": with(integers(&|row| row.maybe.into_iter().map(i128::from).collect()), missing, json!({})),
        "nested/point": plain(floats(&|row| row.point.map(f64::from).to_vec())),
        "pixels": with(integers(&|row| row.pixels.iter().map(|pixel| (*pixel).into()).collect()), 0, lengths(&|row| row.pixels.len())),
        "ragged": with(
            integers(&|row| row.ragged.iter().flatten().map(|value| (*value).into()).collect()),
            0,
            lengths(&|row| row.ragged.len()),
        ),
        "score": plain(floats(&|row| vec![row.score.into()])),
        "text": plain(of_texts(&rows.iter().map(|row| &row.text).collect::<Vec<_>>())),
        "words": with(of_texts(&rows.iter().flat_map(|row| &row.words).collect::<Vec<_>>()), 0, lengths(&|row| row.words.len())),
    })
}

/// Values whose sums are exact in any order, so that the plain sum is right; and those that are none.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => (-4000i32..4000).prop_map(|value| f64::from(value) / 4.0),
        1 => prop::sample::select(vec![0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
    ]
}

fn row() -> impl Strategy<Value = Row> {
    let texts = prop_oneof![Just(String::new()), "[a-z猫]{0,9}"];
    (
        (
            any::<bool>(),
            any::<u64>(),
            number(),
            prop::collection::vec(number(), 2),
            any::<Option<i32>>(),
            texts,
        ),
        (
            -1i64..3,
            prop::collection::vec("[ab]{0,3}", 0..4),
            prop::collection::vec(prop::collection::vec(any::<i64>(), 0..3), 0..3),
            prop::collection::vec(0u16..300, 0..5),
            [number(), number()],
        ),
    )
        .prop_map(
            |((flag, count, score, exact, maybe, text), (label, words, ragged, pixels, point))| Row {
                flag,
                count,
                score: score as f32,
                exact,
                maybe,
                text,
                label,
                words,
                ragged,
                pixels,
                point: point.map(|value| value as f32),
            },
        )
}

proptest! {
    #[test]
    fn all_is_counted_as_a_plain_count_does(rows in prop::collection::vec(row(), 0..25)) {
        let described = statistics(&rows).describe(&schema());
        prop_assert_eq!(&described["examples"], rows.len());
        let wanted = expected(&rows);
        for (name, wanted) in wanted.as_object().unwrap() {
            // Maps are compared whatever their order is; NaN is null in both.
            prop_assert_eq!(&described["features"][name], wanted, "{}", name);
        }
        prop_assert_eq!(described["features"].as_object().unwrap().len(), wanted.as_object().unwrap().len());
    }

    #[test]
    fn order_and_grouping_do_not_count(rows in prop::collection::vec(row(), 0..30), cuts in prop::collection::vec(0usize..30, 0..4)) {
        let whole = statistics(&rows);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(rows.len())).collect();
        cuts.sort_unstable();
        let mut merged = statistics(&[]);
        let mut end = rows.len();
        for cut in cuts.into_iter().rev().chain([0]) {
            let reversed: Vec<Row> = rows[cut..end].iter().rev().cloned().collect();
            let part = statistics(&reversed);
            merged.merge(merged.from_bytes(&part.to_bytes()).unwrap()).unwrap();
            end = cut;
        }
        prop_assert_eq!(merged.to_bytes(), whole.to_bytes());
    }
}

#[test]
fn pictures_are_measured_and_never_decoded() {
    let image = Feature::Image {
        shape: vec![None, None, Some(3)],
        dtype: DType::UInt8,
        encoding_format: None,
    };
    let features = Features::new(vec![("image".into(), image)]).unwrap();
    let mut statistics = Statistics::new(&features);
    // The first bytes of a PNG, and nothing after them.
    let header = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x05\0\0\0\x03\x08\x02\0\0\0\0\0\0\0";
    let mut record = Vec::new();
    features
        .encoder()
        .encode(&[("image", Typed::Bytes(header[..].into()))], &mut record)
        .unwrap();
    statistics.add(&record).unwrap();
    statistics.add(&record).unwrap();
    let described = &statistics.describe(&features)["features"]["image"];
    assert_eq!(
        (&described["distinct"], &described["sizes"]["channels"]),
        (&json!(1), &json!({"3": 2}))
    );
    assert_eq!(described["sizes"]["width"]["max"], 5);
    assert_eq!(described["sizes"]["height"]["mean"], 3.0);
}

#[test]
fn what_is_no_example_of_the_schema_is_refused() {
    let features = schema();
    let mut statistics = Statistics::new(&features);
    assert!(statistics.add(b"no example").is_err());
    let other = Features::new(vec![("text".into(), Feature::Scalar { dtype: DType::Int64 })]).unwrap();
    let mut record = Vec::new();
    other
        .encoder()
        .encode(&[("text", Typed::Int(1))], &mut record)
        .unwrap();
    let error = Statistics::new(&features).add(&record).unwrap_err().to_string();
    assert!(error.contains("`text`") && error.contains("integers"), "{error}");
    let others = Statistics::new(&other);
    assert!(Statistics::new(&features).merge(others.clone()).is_err());
    assert!(others.from_bytes(&Statistics::new(&features).to_bytes()).is_err());
    let bytes = others.to_bytes();
    for length in 0..bytes.len() {
        assert!(others.from_bytes(&bytes[..length]).is_err());
    }
}
