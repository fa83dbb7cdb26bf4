//! Writes a folder that TFDS opens: `cargo run -p prep-formats --example tfds_folder -- FOLDER [NAME..]`.
//!
//! One feature of each connector, but those named, five examples, one shard. `tests/interop/test_tfds_features.py` reads it with TFDS and knows the values.
#![expect(clippy::print_stderr, reason = "a program says what it does")]

use std::error::Error;
use std::path::Path;

use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::dataset_info::{DatasetInfo, FILEPATH_TEMPLATE, SplitInfo};
use prep_formats::features::{Encoding, Feature, Features};
use prep_formats::value::{DType, Value};

/// Examples in the split `train`.
const EXAMPLES: u8 = 5;

/// Types of scalars, but `bool` and `string`.
const NUMBERS: [DType; 11] = [
    DType::UInt8,
    DType::Int8,
    DType::UInt16,
    DType::Int16,
    DType::UInt32,
    DType::Int32,
    DType::UInt64,
    DType::Int64,
    DType::Float16,
    DType::Float32,
    DType::Float64,
];

fn schema() -> prep_formats::Result<Features> {
    let scalar = |dtype| Feature::Scalar { dtype };
    let tensor = |shape: &[Option<u64>], dtype, encoding| Feature::Tensor {
        shape: shape.to_vec(),
        dtype,
        encoding,
    };
    let image = |shape: [Option<u64>; 3], dtype| Feature::Image {
        shape: shape.to_vec(),
        dtype,
        encoding_format: Some("png".into()),
    };
    let names = || vec!["cat".to_string(), "dog".to_string()];
    let label = || Feature::ClassLabel {
        num_classes: 2,
        names: names(),
    };
    let bbox = || Feature::BBox {
        format: Some("REL_YXYX".into()),
    };
    let languages = || vec!["de".to_string(), "en".to_string()];
    let mut features: Vec<(String, Feature)> = NUMBERS
        .iter()
        .map(|&dtype| (format!("s_{dtype}"), scalar(dtype)))
        .collect();
    let others = [
        ("s_bool", scalar(DType::Bool)),
        ("s_string", scalar(DType::String)),
        (
            "t_fixed",
            tensor(&[Some(2), Some(3)], DType::Int32, Encoding::None),
        ),
        (
            "t_varying",
            tensor(&[None, Some(2)], DType::Float32, Encoding::None),
        ),
        ("t_bytes", tensor(&[Some(3)], DType::Float64, Encoding::Bytes)),
        ("t_zlib", tensor(&[None, None], DType::UInt16, Encoding::Zlib)),
        ("t_strings", tensor(&[Some(2)], DType::String, Encoding::None)),
        ("text", Feature::Text),
        ("label", label()),
        ("image", image([None, None, Some(3)], DType::UInt8)),
        ("image16", image([Some(2), Some(2), Some(1)], DType::UInt16)),
        ("image_float", image([Some(2), Some(2), Some(1)], DType::Float32)),
        (
            "mask",
            Feature::LabeledImage {
                shape: vec![Some(2), Some(2), Some(1)],
                dtype: DType::UInt8,
                encoding_format: None,
                num_classes: 2,
                names: names(),
            },
        ),
        (
            "video",
            Feature::Video {
                shape: vec![None, Some(2), Some(2), Some(3)],
                dtype: DType::UInt8,
                encoding_format: Some("png".into()),
            },
        ),
        (
            "audio",
            Feature::Audio {
                shape: vec![None],
                dtype: DType::Int16,
                file_format: None,
                sample_rate: Some(16_000),
                encoding: Encoding::None,
                lazy_decode: false,
            },
        ),
        ("bbox", bbox()),
        ("seq", Feature::sequence(scalar(DType::Int32))),
        (
            "seq_fixed",
            Feature::Sequence {
                feature: Box::new(scalar(DType::Float32)),
                length: Some(2),
            },
        ),
        ("seq_text", Feature::sequence(Feature::Text)),
        (
            "objects",
            Feature::sequence(Feature::dict([("bbox", bbox()), ("label", label())])),
        ),
        (
            "ragged",
            Feature::sequence(Feature::sequence(scalar(DType::Int64))),
        ),
        ("ragged_text", Feature::sequence(Feature::sequence(Feature::Text))),
        (
            "nested",
            Feature::dict([
                ("a", scalar(DType::Int32)),
                ("b", Feature::dict([("c", Feature::Text)])),
            ]),
        ),
        (
            "steps",
            Feature::Dataset {
                feature: Box::new(Feature::dict([
                    ("number", scalar(DType::Int64)),
                    ("picture", image([Some(1), Some(2), Some(3)], DType::UInt8)),
                ])),
                length: None,
            },
        ),
        ("optional", Feature::Optional(Box::new(scalar(DType::Int32)))),
        (
            "optional_tensor",
            Feature::Optional(Box::new(Feature::tensor(vec![Some(2)], DType::Float32))),
        ),
        (
            "translation",
            Feature::Translation {
                languages: languages(),
            },
        ),
        (
            "translations",
            Feature::TranslationVariableLanguages {
                languages: languages(),
            },
        ),
    ];
    features.extend(others.map(|(name, feature)| (name.to_string(), feature)));
    Features::new(features)
}

/// Pixels or samples that count up from `first`.
fn counting(dtype: DType, shape: &[usize], first: u8) -> Value {
    let elements: usize = shape.iter().product();
    let data: Vec<u8> = (0..elements)
        .flat_map(|index| {
            let number = index as u32 + u32::from(first);
            match dtype {
                DType::Float32 => (number as f32 / 2.0).to_le_bytes().to_vec(),
                DType::UInt16 | DType::Int16 => (number as u16 * 100).to_le_bytes().to_vec(),
                _ => vec![number as u8],
            }
        })
        .collect();
    Value::Tensor {
        dtype,
        shape: shape.to_vec(),
        data: data.into(),
    }
}

fn values(row: u8) -> Vec<(String, Value)> {
    let count = usize::from(row);
    let number = i64::from(row);
    let text = |text: String| Value::Bytes(text.into());
    let list = |values: Vec<Value>| Value::List(values);
    let dict = |fields: Vec<(&str, Value)>| {
        Value::Dict(
            fields
                .into_iter()
                .map(|(name, value)| (name.to_string(), value))
                .collect(),
        )
    };
    let ints = |length: usize| list((0..length as i64).map(|at| Value::Int(at * 300 - 1)).collect());
    let bbox = || list([0.0, 0.25, 0.5, 1.0].map(Value::Float).to_vec());
    let mut all: Vec<(String, Value)> = NUMBERS
        .iter()
        .map(|&dtype| {
            let value = match dtype {
                DType::Float16 | DType::Float32 | DType::Float64 => Value::Float(f64::from(row) + 0.5),
                _ => Value::Int(number + 1),
            };
            (format!("s_{dtype}"), value)
        })
        .collect();
    let others = [
        ("s_bool", Value::Int(number % 2)),
        ("s_string", text(format!("s{row}"))),
        ("t_fixed", list(vec![ints(3), ints(3)])),
        ("t_varying", counting(DType::Float32, &[count, 2], row)),
        ("t_bytes", list([0.1, 1e300, -0.0].map(Value::Float).to_vec())),
        ("t_zlib", counting(DType::UInt16, &[count, 2], row)),
        (
            "t_strings",
            list(vec![text("a".repeat(count)), text(String::new())]),
        ),
        ("text", text(format!("text \u{e9} {row}"))),
        ("label", text(["cat", "dog"][count % 2].to_string())),
        ("image", counting(DType::UInt8, &[2, count + 1, 3], row)),
        ("image16", counting(DType::UInt16, &[2, 2, 1], row)),
        ("image_float", counting(DType::Float32, &[2, 2, 1], row)),
        (
            "mask",
            Value::Tensor {
                dtype: DType::UInt8,
                shape: vec![2, 2, 1],
                data: vec![0, 1, 1, row % 2].into(),
            },
        ),
        ("video", counting(DType::UInt8, &[count, 2, 2, 3], row)),
        ("audio", counting(DType::Int16, &[10 * count], row)),
        ("bbox", bbox()),
        ("seq", ints(count)),
        (
            "seq_fixed",
            list(vec![Value::Float(0.5), Value::Float(f64::from(row))]),
        ),
        (
            "seq_text",
            list((0..count).map(|at| text(format!("t{at}"))).collect()),
        ),
        (
            "objects",
            list(
                (0..number)
                    .map(|at| dict(vec![("bbox", bbox()), ("label", Value::Int(at % 2))]))
                    .collect(),
            ),
        ),
        ("ragged", list((0..count).map(ints).collect())),
        (
            "ragged_text",
            list(
                (0..count)
                    .map(|at| list(vec![text("r".repeat(at)); at]))
                    .collect(),
            ),
        ),
        (
            "nested",
            dict(vec![
                ("a", Value::Int(-number)),
                ("b", dict(vec![("c", text(format!("c{row}")))])),
            ]),
        ),
        (
            "steps",
            list(
                (0..row)
                    .map(|at| {
                        dict(vec![
                            ("number", Value::Int(at.into())),
                            ("picture", counting(DType::UInt8, &[1, 2, 3], at)),
                        ])
                    })
                    .collect(),
            ),
        ),
        (
            "optional",
            if row % 2 == 1 {
                Value::Int(number)
            } else {
                Value::Null
            },
        ),
        (
            "optional_tensor",
            if row % 2 == 1 {
                counting(DType::Float32, &[2], row)
            } else {
                Value::Null
            },
        ),
        (
            "translation",
            dict(vec![
                ("en", text(format!("en {row}"))),
                ("de", text(format!("de {row}"))),
            ]),
        ),
        (
            "translations",
            dict(vec![
                ("en", list(vec![text("two".into()), text("one".into())])),
                ("de", text("eins".into())),
            ]),
        ),
    ];
    all.extend(others.map(|(name, value)| (name.to_string(), value)));
    all
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("give the folder to write")?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let left_out: Vec<String> = std::env::args().skip(2).collect();
    let all = schema()?;
    let wanted: Vec<&str> = all
        .iter()
        .map(|(name, _)| name)
        .filter(|name| !left_out.iter().any(|other| other == name))
        .collect();
    let features = all.select(&wanted)?;
    for (name, text) in features.to_files() {
        std::fs::write(folder.join(name), text)?;
    }
    let mut encoder = features.encoder();
    let options = WriteOptions::parse("group_size:1")?;
    let mut writer = Writer::new(Vec::new(), options)?;
    let (mut record, mut num_bytes) = (Vec::new(), 0);
    for row in 0..EXAMPLES {
        let values = values(row);
        let values: Vec<(&str, Value)> = values
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .filter(|(name, _)| wanted.contains(name))
            .collect();
        record.clear();
        encoder.encode(&values, &mut record)?;
        num_bytes += record.len() as u64;
        writer.write(&record)?;
    }
    let split = SplitInfo {
        name: "train".into(),
        shard_lengths: vec![EXAMPLES.into()],
        num_bytes,
        filepath_template: FILEPATH_TEMPLATE.into(),
        ..SplitInfo::default()
    };
    let info = DatasetInfo {
        name: "every_feature".into(),
        version: "1.0.0".into(),
        description: "One feature of each connector.".into(),
        file_format: "array_record".into(),
        splits: vec![split.clone()],
        ..DatasetInfo::default()
    };
    let shard = folder.join(split.shard_name(&info.name, &info.file_format, 0));
    std::fs::write(&shard, writer.finish()?)?;
    std::fs::write(folder.join("dataset_info.json"), info.to_json())?;
    eprintln!("wrote {EXAMPLES} examples to {}", shard.display());
    Ok(())
}
