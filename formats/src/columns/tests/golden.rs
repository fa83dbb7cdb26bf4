//! Records of every kind of feature that TFDS wrote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use crate::columns::{BatchDecoder, Cell, ColumnSpec, Images};
use crate::example::{Example, FeatureList};
use crate::features::{Encoding, Feature, Features};
use crate::tfrecord;
use crate::value::{DType, Value};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/features/kitchen_sink")
}

fn records() -> Vec<Vec<u8>> {
    let path = folder().join("records.tfrecord");
    let mut reader = tfrecord::Reader::open(&path, tfrecord::ReadOptions::default()).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        records.push(record.to_vec());
    }
    records
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn as_json(dtype: DType, cell: &Cell<'_>) -> Json {
    match cell {
        Cell::Missing => Json::Null,
        Cell::Array { shape, data } => {
            json!({"dtype": dtype.name(), "shape": shape, "sha256": digest(data)})
        }
        Cell::Strings { shape, strings } => {
            let digests: Vec<String> = strings.iter().map(|string| digest(string)).collect();
            let digests = if shape.is_empty() {
                json!(digests[0])
            } else {
                json!(digests)
            };
            json!({"dtype": "string", "shape": shape, "sha256": digests})
        }
        Cell::List(cells) => cells.iter().map(|cell| as_json(dtype, cell)).collect(),
    }
}

fn put(object: &mut Map<String, Json>, path: &[String], value: Json) {
    let (name, rest) = path.split_first().unwrap();
    if rest.is_empty() {
        object.insert(name.clone(), value);
    } else {
        let inner = object.entry(name).or_insert_with(|| json!({}));
        put(inner.as_object_mut().unwrap(), rest, value);
    }
}

/// Values, dtypes and shapes are those that TFDS itself decodes.
#[test]
fn every_kind_of_feature_decodes_as_in_tfds() {
    let features = Features::read_folder(&folder()).unwrap();
    let mut decoder = BatchDecoder::new(&features, Images::DecodedWherePossible).unwrap();
    let mut batch = decoder.new_batch(3);
    for record in records() {
        decoder.push(&record, &mut batch).unwrap();
    }
    let wanted = std::fs::read_to_string(folder().join("expected.jsonl")).unwrap();
    assert_eq!(wanted.lines().count(), batch.rows);
    for (row, line) in wanted.lines().enumerate() {
        let wanted: Json = serde_json::from_str(line).unwrap();
        let mut found = Map::new();
        for (spec, column) in decoder.specs().iter().zip(&batch.columns) {
            put(
                &mut found,
                &spec.path,
                as_json(spec.dtype, &column.cell(spec, row).unwrap()),
            );
        }
        for (name, wanted) in wanted["features"].as_object().unwrap() {
            assert_eq!(&found[name], wanted, "row {row}, `{name}`");
        }
        assert_eq!(found.len(), features.len());
    }
}

/// A value for the encoder, from what was decoded.
fn value(feature: &Feature, path: &str, cells: &BTreeMap<String, (&ColumnSpec, Cell<'_>)>) -> Value {
    let dict = |features: &[(String, Feature)]| {
        let values = features
            .iter()
            .map(|(name, feature)| (name.clone(), value(feature, &format!("{path}/{name}"), cells)));
        Value::Dict(values.collect())
    };
    match feature {
        Feature::Dict(features) => dict(features),
        Feature::Translation { languages } => {
            let texts: Vec<_> = languages
                .iter()
                .map(|language| (language.clone(), Feature::Text))
                .collect();
            dict(&texts)
        }
        // Of nested features a dict of lists.
        Feature::Sequence { feature, .. } if matches!(**feature, Feature::Dict(_)) => {
            value(feature, path, cells)
        }
        _ => {
            let (spec, cell) = &cells[path];
            leaf(spec.dtype, cell)
        }
    }
}

fn leaf(dtype: DType, cell: &Cell<'_>) -> Value {
    match cell {
        Cell::Missing => Value::Null,
        Cell::Array { shape, data } => Value::Tensor {
            dtype,
            shape: shape.iter().map(|&size| size as usize).collect(),
            data: Bytes::copy_from_slice(data),
        },
        Cell::Strings { shape, strings } => {
            let mut strings = strings
                .iter()
                .map(|string| Value::Bytes(Bytes::copy_from_slice(string)));
            match shape[..] {
                [] => strings.next().unwrap(),
                _ => Value::List(strings.collect()),
            }
        }
        Cell::List(cells) => Value::List(cells.iter().map(|cell| leaf(dtype, cell)).collect()),
    }
}

/// Names of lists that hold what a compressor made.
fn is_compressed(name: &str, features: &Features) -> bool {
    let feature = features.get(name.split('/').next().unwrap()).unwrap();
    match feature {
        Feature::Tensor { encoding, .. } => *encoding == Encoding::Zlib && !name.ends_with("/shape"),
        Feature::Image { .. } | Feature::LabeledImage { .. } | Feature::Video { .. } => true,
        Feature::Sequence { feature, .. } => matches!(**feature, Feature::Image { .. }),
        _ => false,
    }
}

/// What was decoded, encoded again, is stored under the same names, with the same values.
#[test]
fn every_kind_of_feature_is_stored_as_tfds_stores_it() {
    let features = Features::read_folder(&folder()).unwrap();
    let mut decoder = BatchDecoder::new(&features, Images::DecodedWherePossible).unwrap();
    let mut encoder = features.encoder();
    let mut compressed = 0;
    for record in records() {
        let mut batch = decoder.new_batch(1);
        decoder.push(&record, &mut batch).unwrap();
        let cells: BTreeMap<String, (&ColumnSpec, Cell<'_>)> = decoder
            .specs()
            .iter()
            .zip(&batch.columns)
            .map(|(spec, column)| (spec.name.clone(), (spec, column.cell(spec, 0).unwrap())))
            .collect();
        let values: Vec<(&str, Value)> = features
            .iter()
            .map(|(name, feature)| (name, value(feature, name, &cells)))
            .collect();
        let mut ours = Vec::new();
        encoder.encode(&values, &mut ours).unwrap();
        let (mine, theirs) = (
            Example::decode(&ours).unwrap().features,
            Example::decode(&record).unwrap().features,
        );
        assert_eq!(mine.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
        for (name, list) in &theirs {
            if is_compressed(name, &features) {
                let FeatureList::Bytes(files) = &mine[name] else {
                    panic!("`{name}` is stored as {:?}", mine[name])
                };
                let FeatureList::Bytes(theirs) = list else {
                    panic!("`{name}` is stored as {list:?}")
                };
                assert_eq!(files.len(), theirs.len());
                compressed += 1;
                continue;
            }
            // NaNs are equal by their bits.
            assert_eq!(format!("{:?}", mine[name]), format!("{list:?}"), "`{name}`");
        }
        // What was compressed anew holds the same.
        let mut again = decoder.new_batch(1);
        decoder.push(&ours, &mut again).unwrap();
        assert_eq!(format!("{again:?}"), format!("{batch:?}"));
    }
    assert!(compressed >= 3 * 10, "{compressed}");
}

/// Cut or changed, a record is an error or another row, and the batch stays whole.
#[test]
fn damaged_records_leave_the_batch_as_it_was() {
    let features = Features::read_folder(&folder()).unwrap();
    let mut decoder = BatchDecoder::new(&features, Images::DecodedWherePossible).unwrap();
    let records = records();
    let mut batch = decoder.new_batch(2);
    decoder.push(&records[1], &mut batch).unwrap();
    let before = format!("{batch:?}");
    let record = &records[0];
    let mut errors = 0;
    for cut in (0..record.len()).step_by(5) {
        assert!(decoder.push(&record[..cut], &mut batch).is_err(), "cut at {cut}");
        assert_eq!(batch.rows, 1);
        if cut % 50 == 0 {
            assert_eq!(format!("{batch:?}"), before, "cut at {cut}");
        }
    }
    let mut damaged = record.clone();
    for at in (0..record.len()).step_by(3) {
        damaged[at] ^= 1 << (at % 8);
        match decoder.push(&damaged, &mut batch) {
            Ok(()) => {
                decoder.clear(&mut batch);
                decoder.push(&records[1], &mut batch).unwrap();
            }
            Err(_) => errors += 1,
        }
        assert_eq!(batch.rows, 1);
        damaged[at] = record[at];
    }
    assert!(errors > 100, "{errors}");
    assert_eq!(format!("{batch:?}"), before);
}
