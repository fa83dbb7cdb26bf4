//! Builds a dataset from files of your own with a builder in code: handwritten digits in CSV, `label,pixel,pixel,...`.
//!
//! ```sh
//! cargo run --package prep-jobs --example custom_builder -- digits.csv more_digits.csv
//! ```

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use prep_formats::features::{Feature, Features};
use prep_formats::value::{DType, Value};
use prep_jobs::builder::{Builder, DatasetSpec, Input, Output, Raw, SourceSpec};
use prep_jobs::{BuildOutcome, BuildRequest};

/// Height and width of a picture.
const SIDE: usize = 8;

/// Pictures `uint8[8, 8, 1]` of digits from CSV files; every fifth line of a file is for testing.
struct Digits {
    spec: DatasetSpec,
}

impl Digits {
    /// A dataset of these files.
    fn new(paths: &[PathBuf]) -> Result<Self> {
        let side = Some(SIDE as u64);
        let image = Feature::Image {
            shape: vec![side, side, Some(1)],
            dtype: DType::UInt8,
            encoding_format: None,
        };
        let label = Feature::ClassLabel {
            num_classes: 10,
            names: (0..10).map(|digit| digit.to_string()).collect(),
        };
        let features = Features::new(vec![("image".to_owned(), image), ("label".to_owned(), label)])?;
        let mut spec = DatasetSpec::new("digits", "1.0.0", features)
            .split("train")
            .split("test")
            .options("group_size:1,uncompressed");
        spec.description = "Handwritten digits of 8 by 8 pixels.".to_owned();
        spec.supervised_keys = Some(("image".to_owned(), "label".to_owned()));
        for path in paths {
            spec = spec.source(SourceSpec::path(path));
        }
        Ok(Self { spec })
    }
}

impl Builder for Digits {
    fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// One file a call, each on a thread of its own: only cuts it into lines.
    fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let source = input.sources[0];
        let part = output.part(&source.name);
        for (index, line) in BufReader::new(source.open()?).lines().enumerate() {
            let split = usize::from(index % 5 == 4);
            let key = format!("{}/{index}", source.name);
            output.emit(Raw::new(split, index as u64, part, line?).with_key(key))?;
        }
        Ok(())
    }

    /// One line a call, on all workers at once.
    fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>> {
        let line = std::str::from_utf8(&raw.data)?;
        let (label, pixels) = line.split_once(',').context("a line without a comma")?;
        let pixels: Vec<u8> = pixels
            .split(',')
            .map(|pixel| {
                pixel
                    .trim()
                    .parse()
                    .with_context(|| format!("`{pixel}` is not a pixel, 0 to 255"))
            })
            .collect::<Result<_>>()?;
        ensure!(
            pixels.len() == SIDE * SIDE,
            "{} pixels, wanted {}",
            pixels.len(),
            SIDE * SIDE
        );
        let image = Value::Tensor {
            dtype: DType::UInt8,
            shape: vec![SIDE, SIDE, 1],
            data: Bytes::from(pixels),
        };
        Ok(vec![
            ("image", image),
            ("label", Value::Int(label.trim().parse()?)),
        ])
    }
}

/// Builds the dataset and registers it in the catalog; `None` is the default one.
pub(crate) fn build_digits(paths: &[PathBuf], catalog: Option<&str>) -> Result<BuildOutcome> {
    let mut request = BuildRequest::new(Arc::new(Digits::new(paths)?));
    request.catalog = catalog.map(str::to_owned);
    prep_jobs::build(request)
}

fn main() -> Result<()> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    ensure!(!paths.is_empty(), "give the paths of CSV files");
    let outcome = build_digits(&paths, None)?;
    for split in &outcome.splits {
        eprintln!(
            "{}: {} examples in {} shards",
            split.name, split.examples, split.shards
        );
    }
    eprintln!("{} at {}", outcome.status.name(), outcome.path);
    Ok(())
}
