//! Built-in datasets against what TFDS's own builders make of the same archives: `tests/golden/recipes`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::example::{ExampleView, FeatureView};
use prep_testing::{folder_digest, golden_path};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use crate::build::{BuildOutcome, BuildRequest};
use crate::readers::RecipeBuilder;
use crate::recipe::{self, builtin};

/// (dataset, config), as in the golden files' names.
const CASES: [(&str, Option<&str>); 10] = [
    ("beans", None),
    ("eurosat", Some("all")),
    ("eurosat", Some("rgb")),
    ("food101", None),
    ("imagenette", Some("160px-v2")),
    ("imagenette", Some("full-size")),
    ("imdb_reviews", Some("plain_text")),
    ("oxford_iiit_pet", None),
    ("stl10", None),
    ("tf_flowers", None),
];

fn golden(dataset: &str, config: Option<&str>) -> Json {
    let config = config.map_or(String::new(), |config| format!("-{config}"));
    let path = golden_path(format!("recipes/{dataset}{config}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn request(home: &Path, recipe: recipe::Recipe, from: &Path) -> BuildRequest {
    BuildRequest::new(Arc::new(RecipeBuilder::new(recipe)))
        .catalog(home.join("catalog").to_str().unwrap())
        .from(vec![from.to_str().unwrap().to_owned()])
        .check_sums(false)
        .workers(2)
        .memory_bytes(64 << 20)
}

fn build_of(home: &Path, dataset: &str, config: Option<&str>, from: &Path) -> anyhow::Result<BuildOutcome> {
    let name = config.map_or(dataset.to_owned(), |config| format!("{dataset}/{config}"));
    crate::build(request(home, builtin::find(&name).unwrap(), from))
}

fn records(path: &Path) -> Vec<Vec<u8>> {
    let reader = Reader::open(path).unwrap();
    let mut records = Vec::new();
    let count = reader.num_records();
    let visit = |_, record: &[u8]| {
        records.push(record.to_vec());
        Ok(())
    };
    reader.for_each(0..count, &mut Scratch::default(), visit).unwrap();
    records
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Whether a feature of a record is what TFDS wrote, in the ways that the golden files have.
fn assert_feature(found: Option<&FeatureView<'_>>, wanted: &Json, place: &str) {
    match found {
        Some(FeatureView::Int64(list)) => {
            let found: Vec<i64> = list.iter().collect();
            assert_eq!(serde_json::json!(found), wanted["ints"], "{place}");
        }
        Some(FeatureView::Float(list)) => {
            let found: Vec<f32> = list.iter().collect();
            match wanted.get("sha256") {
                None => {
                    let wanted = wanted["floats"].as_array().unwrap();
                    let wanted: Vec<f32> = wanted.iter().map(|n| n.as_f64().unwrap() as f32).collect();
                    assert_eq!(found, wanted, "{place}");
                }
                Some(wanted_hash) => {
                    assert_eq!(found.len() as u64, wanted["floats"], "{place}");
                    let bytes: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
                    assert_eq!(sha256(&bytes), *wanted_hash, "{place}");
                }
            }
        }
        Some(FeatureView::Bytes(list)) => {
            let found = list.first().unwrap();
            if let Some(text) = wanted.get("text") {
                assert_eq!(text.as_str().unwrap().as_bytes(), found, "{place}");
            } else if wanted.get("bytes").is_some() {
                assert_eq!(found.len() as u64, wanted["bytes"], "{place}");
                assert_eq!(sha256(found), wanted["sha256"], "{place}");
            } else if wanted.get("png").is_some() {
                // Files depend on the encoder, pixels do not.
                let mut pixels = Vec::new();
                let info = prep_formats::png::Decoder::new()
                    .decode_append(found, None, 8, &mut pixels)
                    .unwrap();
                let shape = serde_json::json!([info.height, info.width, info.channels]);
                assert_eq!(shape, wanted["png"], "{place}");
                assert_eq!(sha256(&pixels), wanted["sha256"], "{place}");
            } else {
                assert_jpeg(found, wanted, place);
            }
        }
        other => panic!("{place}: {other:?}"),
    }
}

/// Whether a JPEG file has nearly the pixels that TFDS's has: encoders and decoders differ.
fn assert_jpeg(file: &[u8], wanted: &Json, place: &str) {
    use zune_jpeg::zune_core::bytestream::ZCursor;

    let mut decoder = zune_jpeg::JpegDecoder::new(ZCursor::new(file));
    let found = decoder.decode().unwrap();
    let (width, height) = decoder.dimensions().unwrap();
    assert_eq!(serde_json::json!([height, width, 3]), wanted["jpeg"], "{place}");
    let wanted = base64::engine::general_purpose::STANDARD
        .decode(wanted["pixels"].as_str().unwrap())
        .unwrap();
    assert_eq!(found.len(), wanted.len(), "{place}");
    let differences = found.iter().zip(&wanted).map(|(a, b)| u64::from(a.abs_diff(*b)));
    let mean = differences.clone().sum::<u64>() as f64 / found.len() as f64;
    assert!(mean < 3.0, "{place}: pixels are {mean} apart");
    assert!(differences.max() < Some(40), "{place}");
}

#[test]
fn what_is_built_is_what_tfds_builds() {
    for (dataset, config) in CASES {
        let home = tempfile::tempdir().unwrap();
        let golden = golden(dataset, config);
        let from = golden_path(format!("recipes/{dataset}"));
        let before = folder_digest(&from);
        let outcome = build_of(home.path(), dataset, config, &from).unwrap();
        assert_eq!(folder_digest(&from), before, "sources are left as they were");
        assert_eq!(outcome.version, golden["version"].as_str().unwrap());
        let folder = PathBuf::from(&outcome.path);
        let relative = config.map_or(PathBuf::from(dataset), |config| Path::new(dataset).join(config));
        assert!(
            folder.ends_with(relative.join(&outcome.version)),
            "{}",
            folder.display()
        );
        for (name, text) in golden["files"].as_object().unwrap() {
            let ours = std::fs::read_to_string(folder.join(name)).unwrap();
            let blind = |text: &str| {
                // Files of pictures that are written anew differ in size.
                let anew = ["stl10", "oxford_iiit_pet"].contains(&dataset);
                let lines = text
                    .lines()
                    .filter(|line| !(anew && line.contains("\"numBytes\"")));
                lines.collect::<Vec<_>>().join("\n")
            };
            assert_eq!(
                blind(&ours),
                blind(text.as_str().unwrap()),
                "{dataset} {config:?}: {name}"
            );
        }
        for (split, wanted) in golden["splits"].as_object().unwrap() {
            let mut position = 0;
            for shard in wanted["shards"].as_array().unwrap() {
                let path = shard["path"].as_str().unwrap();
                let records = records(&folder.join(path));
                assert_eq!(records.len() as u64, shard["records"], "{path}");
                for record in &records {
                    let wanted = &wanted["positions"][position];
                    let place = format!("{dataset} {config:?} {split}[{position}], key {}", wanted["key"]);
                    let view = ExampleView::parse(record).unwrap();
                    let features = wanted["features"].as_object().unwrap();
                    for (name, wanted) in features {
                        assert_feature(view.get(name), wanted, &format!("{place}: `{name}`"));
                    }
                    position += 1;
                }
            }
            assert_eq!(
                position,
                wanted["positions"].as_array().unwrap().len(),
                "{dataset} {split}"
            );
        }
    }
}
