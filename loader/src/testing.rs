//! Small datasets for tests.

use std::path::{Path, PathBuf};

use prep_catalog::fingerprint::SequenceHash;
use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::columns::{Batch, ColumnData};
use prep_formats::features::{Feature, Features};
use prep_formats::store::Location;
use prep_formats::value::{DType, Value};
use sha2::{Digest, Sha256};

use crate::dataset::Dataset;

pub(crate) struct TestData {
    folder: tempfile::TempDir,
}

pub(crate) fn features() -> Features {
    Features::new(vec![
        ("number".to_string(), Feature::Scalar { dtype: DType::Int64 }),
        ("text".to_string(), Feature::Text),
    ])
    .unwrap()
}

/// The text of a row: its length varies.
pub(crate) fn text_of(number: u64) -> String {
    "x".repeat((number % 7) as usize) + &number.to_string()
}

impl TestData {
    /// Splits of shards of some records; record `i` of a split holds `i` plus `base`.
    pub(crate) fn new(splits: &[(&str, &[u64])], base: u64) -> Self {
        Self::with_options(splits, base, "uncompressed")
    }

    pub(crate) fn with_options(splits: &[(&str, &[u64])], base: u64, options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = Self { folder };
        data.write(splits, base, options);
        data
    }

    /// A split `train` of shards of some records, which have a label and so many tokens.
    pub(crate) fn of_tokens(shards: &[u64], tokens: impl Fn(u64) -> Vec<i32>) -> Self {
        let features = Features::new(vec![
            ("label".to_string(), Feature::Scalar { dtype: DType::Int64 }),
            ("tokens".to_string(), Feature::tensor(vec![None], DType::Int32)),
        ]);
        let data = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        data.write_values(
            &[("train", shards)],
            0,
            "uncompressed",
            &features.unwrap(),
            |number| {
                let tokens = tokens(number);
                let tokens = Value::Tensor {
                    dtype: DType::Int32,
                    shape: vec![tokens.len()],
                    data: tokens
                        .iter()
                        .flat_map(|token| token.to_le_bytes())
                        .collect::<Vec<u8>>()
                        .into(),
                };
                [("label", Value::Int(number as i64)), ("tokens", tokens)]
            },
        );
        data
    }

    /// Writes another build into the folder.
    pub(crate) fn write(&self, splits: &[(&str, &[u64])], base: u64, options: &str) {
        self.write_values(splits, base, options, &features(), |number| {
            [
                ("number", Value::Int(number as i64)),
                ("text", Value::Bytes(text_of(number).into())),
            ]
        });
    }

    fn write_values(
        &self,
        splits: &[(&str, &[u64])],
        base: u64,
        options: &str,
        features: &Features,
        values: impl Fn(u64) -> [(&'static str, Value); 2],
    ) {
        for (name, text) in features.to_files() {
            std::fs::write(self.path().join(name), text).unwrap();
        }
        let mut encoder = features.encoder();
        let mut manifest_splits = Vec::new();
        for (split, lengths) in splits {
            let mut next = base;
            let mut shards = Vec::new();
            let mut split_bytes = 0;
            for (number, &length) in lengths.iter().enumerate() {
                let path = format!("t-{split}.array_record-{number:05}-of-{:05}", lengths.len());
                let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
                let mut hash = SequenceHash::default();
                for _ in 0..length {
                    let mut record = Vec::new();
                    encoder.encode(&values(next), &mut record).unwrap();
                    writer.write(&record).unwrap();
                    hash.push(&record);
                    split_bytes += record.len() as u64;
                    next += 1;
                }
                let bytes = writer.finish().unwrap();
                std::fs::write(self.path().join(&path), &bytes).unwrap();
                shards.push(serde_json::json!({
                    "path": path, "records": length, "bytes": bytes.len(), "sha256": hex(&Sha256::digest(&bytes)),
                    "sequence_hash": hash.to_hex(), "min_key": null, "max_key": null,
                }));
            }
            manifest_splits.push(serde_json::json!({
                "name": split, "records": lengths.iter().sum::<u64>(), "bytes": split_bytes, "options": options,
                "skipped": 0, "shards": shards,
            }));
        }
        let fingerprint = hex(&Sha256::digest(serde_json::to_string(&manifest_splits).unwrap()));
        let manifest = serde_json::json!({
            "format": 1, "name": "t", "config": null, "version": "1.0.0", "fingerprint": fingerprint,
            "recipe_sha256": hex(&Sha256::digest("recipe")), "layout": "by-source", "sources": [],
            "splits": manifest_splits,
        });
        std::fs::write(
            self.path().join("prep_manifest.json"),
            serde_json::to_string_pretty(&manifest).unwrap() + "\n",
        )
        .unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn location(&self) -> Location {
        Location::from_path(self.path())
    }

    pub(crate) fn open(&self, split: &str) -> Dataset {
        Dataset::open_folder(&self.location(), split).unwrap()
    }

    pub(crate) fn shard(&self, split: &str, number: usize, count: usize) -> PathBuf {
        self.path()
            .join(format!("t-{split}.array_record-{number:05}-of-{count:05}"))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The numbers of a batch, checked against its texts.
pub(crate) fn numbers(batch: &Batch) -> Vec<u64> {
    let ColumnData::Fixed(data) = &batch.columns[0] else {
        panic!("numbers are fixed")
    };
    let numbers: Vec<u64> = data
        .chunks_exact(8)
        .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as u64)
        .collect();
    let ColumnData::Bytes { offsets, data } = &batch.columns[1] else {
        panic!("texts are bytes")
    };
    assert_eq!((numbers.len(), offsets.len()), (batch.rows, batch.rows + 1));
    for (row, &number) in numbers.iter().enumerate() {
        let text = &data[offsets[row] as usize..offsets[row + 1] as usize];
        assert_eq!(text, text_of(number).as_bytes());
    }
    numbers
}
