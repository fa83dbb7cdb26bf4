//! Prints the examples of a TFRecord file, one JSON object a line: `cargo run -p prep-formats --example example_json -- FILE [sequence]`.
//!
//! Byte strings come in hex, integers as decimal text, floats as their IEEE bits in hex, so that nothing is lost. A record that is not an
//! example gives `{"error": TEXT}`. The interoperability tests compare it with Google's Protocol Buffers.
#![expect(clippy::print_stdout, reason = "its results are what the program is for")]

use prep_formats::example::{Example, FeatureList, SequenceExample};
use prep_formats::tfrecord::{ReadOptions, Reader};
use serde_json::{Value, json};

fn feature(list: &FeatureList) -> Value {
    match list {
        FeatureList::Bytes(values) => json!({ "bytes": values.iter().map(hex::encode).collect::<Vec<_>>() }),
        FeatureList::Int64(values) => {
            json!({ "int64": values.iter().map(ToString::to_string).collect::<Vec<_>>() })
        }
        FeatureList::Float(values) => {
            let bits = values.iter().map(|value| format!("{:08x}", value.to_bits()));
            json!({ "float": bits.collect::<Vec<_>>() })
        }
        FeatureList::None => json!({}),
    }
}

fn features<'a>(features: impl IntoIterator<Item = (&'a String, &'a FeatureList)>) -> Value {
    let features = features.into_iter();
    Value::Object(
        features
            .map(|(name, list)| (name.clone(), feature(list)))
            .collect(),
    )
}

/// Decodes a record, and decodes it again from its canonical encoding, which must give the same.
fn example(record: &[u8]) -> prep_formats::Result<Value> {
    let show = |example: &Example| features(&example.features);
    let example = Example::decode(record)?;
    assert_eq!(show(&Example::decode(&example.encode())?), show(&example));
    Ok(show(&example))
}

fn sequence_example(record: &[u8]) -> prep_formats::Result<Value> {
    let show = |example: &SequenceExample| {
        let lists = example.feature_lists.iter();
        let lists = lists.map(|(name, steps)| (name.clone(), steps.iter().map(feature).collect()));
        json!({ "context": features(&example.context), "feature_lists": Value::Object(lists.collect()) })
    };
    let example = SequenceExample::decode(record)?;
    assert_eq!(show(&SequenceExample::decode(&example.encode())?), show(&example));
    Ok(show(&example))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("give a TFRecord file")?;
    let decode = match arguments.next().as_deref() {
        None => example,
        Some("sequence") => sequence_example,
        Some(other) => return Err(format!("`{other}` is unknown: write `sequence` or nothing").into()),
    };
    let mut reader = Reader::open(path, ReadOptions::default())?;
    while let Some(record) = reader.next()? {
        let value = decode(record).unwrap_or_else(|error| json!({ "error": error.to_string() }));
        println!("{value}");
    }
    Ok(())
}
