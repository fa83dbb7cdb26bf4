//! One pipeline, measured: for `bench/pipelines.py`, which runs it beside those of other libraries.
//!
//! ```text
//! pipelines make FOLDER SCALE             datasets, each also as a TFRecord file of the same records; SCALE 1: 0.5 GB
//! pipelines NAME FOLDER SECONDS THREADS   batches for so long
//! pipelines first FOLDER                  the first batch of `png`, from the start of the process to its end
//! pipelines restore FOLDER                states restored in the middle of each pipeline
//! ```
//!
//! | NAME | records | pipeline |
//! |---|---|---|
//! | `png` | pictures of 32x32x3, 2.2 KB | shuffled, decoded, batches of 256 |
//! | `jpeg`, `photos` | JPEGs of 500x375, 106 KB; of 2000x1500, 860 KB | shuffled, random resized crop 224, flip, batches of 64 |
//! | `photos-dct` | | the same with DCT scaling |
//! | `tokens-split`, `tokens-fit` | lists of 64 to 1,500 tokens | shuffled, packed to 2,048 by concat-then-split or first-fit, batches of 64 |
//!
//! Pictures that shrink are resized without antialias, as TensorFlow and OpenCV do. Output: one line of JSON: `items` (pictures, or tokens),
//! `cpu_s` of all threads and `wall_s`, after a first batch that is not counted; or milliseconds.
#![expect(clippy::print_stdout, reason = "its results are what the program is for")]

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::columns::Images;
use prep_formats::features::{Feature, Features};
use prep_formats::store::Location;
use prep_formats::value::{DType, Value};
use prep_formats::{png, tfrecord};
use prep_loader::element::Element;
use prep_loader::transform::Generator;
use prep_loader::transforms::DecodeRandomResizedCrop;
use prep_loader::{BatchOptions, Dataset, MapDataset, PackOptions, Packing, Pipeline, PipelineOptions};

#[path = "../benches/common/mod.rs"]
mod common;

use common::{cpu_seconds, publish};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const NAMES: [&str; 6] = [
    "png",
    "jpeg",
    "photos",
    "photos-dct",
    "tokens-split",
    "tokens-fit",
];
const ROW: usize = 2_048;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["make", folder, scale] => make(Path::new(folder), scale.parse()?),
        ["first", folder] => {
            open("png", folder, Some(2), None)?.next_element()?;
            Ok(())
        }
        ["restore", folder] => {
            for name in NAMES {
                restore(name, folder)?;
            }
            Ok(())
        }
        [name, folder, seconds, threads] if NAMES.contains(&name) => {
            measure(name, folder, seconds.parse()?, threads.parse()?)
        }
        _ => Err("usage: pipelines make FOLDER SCALE | NAME FOLDER SECONDS THREADS | first FOLDER | restore FOLDER".into()),
    }
}

/// Opens a pipeline, at the place of a state where there is one.
fn open(
    name: &str,
    folder: &str,
    threads: Option<usize>,
    state: Option<prep_loader::PipelineState>,
) -> Result<Pipeline> {
    let kind = name.split('-').next().unwrap_or(name);
    let location = Location::from_path(Path::new(folder).join(kind));
    let images = if kind == "png" {
        Images::Decoded
    } else {
        Images::Encoded
    };
    let dataset = Dataset::open_folder(&location, "train")?.with_images(images);
    let shuffled = MapDataset::source(dataset)?.shuffle(42)?;
    let options = PipelineOptions::new().num_threads(threads).restore(state);
    let pipeline = match kind {
        "png" => shuffled
            .repeat(None)?
            .batch(BatchOptions::new(256))?
            .load(options),
        "tokens" => {
            let packing = match name {
                "tokens-split" => Packing::ConcatThenSplit,
                _ => Packing::FirstFit { bins: 16 },
            };
            let rows = shuffled.repeat(None)?.to_iter();
            let rows = rows.pack(PackOptions::new(packing, [("tokens", ROW)]))?;
            rows.batch(BatchOptions::new(64))?.load(options)
        }
        _ => {
            let mut crop = DecodeRandomResizedCrop::to("image", [224, 224]);
            crop.crop.antialias = false;
            crop.dct_scaling = name == "photos-dct";
            let rows = shuffled.repeat(None)?.random_map(crop, 42)?;
            rows.batch(BatchOptions::new(64))?.load(options)
        }
    };
    Ok(pipeline?)
}

/// Pictures of a batch, or tokens.
fn items(name: &str, batch: &Element) -> Result<u64> {
    if !name.starts_with("tokens") {
        return Ok(batch.array("image")?.shape()[0] as u64);
    }
    let segments = batch.array("tokens_segment_ids")?;
    let ids = segments.bytes().map_or(&[][..], |bytes| bytes).as_chunks::<4>().0;
    // Rows are filled from the left, so that padding is at their ends.
    let used = ids
        .chunks_exact(ROW)
        .map(|row| row.partition_point(|id| *id != [0; 4]));
    Ok(used.sum::<usize>() as u64)
}

fn measure(name: &str, folder: &str, seconds: f64, threads: usize) -> Result<()> {
    let mut pipeline = open(name, folder, Some(threads), None)?;
    let mut next = || -> Result<u64> {
        let batch = pipeline.next_element()?.ok_or("the pipeline has an end")?;
        items(name, &batch)
    };
    next()?;
    let (begin, cpu, mut count) = (Instant::now(), cpu_seconds(), 0);
    while begin.elapsed().as_secs_f64() < seconds {
        count += next()?;
    }
    let (wall, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!(
        "{}",
        serde_json::json!({"items": count, "cpu_s": cpu, "wall_s": wall})
    );
    Ok(())
}

/// Milliseconds to open a pipeline at a state, the dataset included, and to its first batch then: medians.
fn restore(name: &str, folder: &str) -> Result<()> {
    let mut pipeline = open(name, folder, Some(0), None)?;
    for _ in 0..3 {
        pipeline.next_element()?;
    }
    let state = pipeline.state();
    let wanted = pipeline.next_element()?;
    let (mut opened, mut first) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let begin = Instant::now();
        let mut restored = open(name, folder, Some(0), Some(state.clone()))?;
        opened.push(begin.elapsed().as_secs_f64() * 1e3);
        if restored.next_element()? != wanted {
            return Err(format!("`{name}` goes on with another batch").into());
        }
        first.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    println!(
        "{}",
        serde_json::json!({"name": name, "restore_ms": median(opened), "first_batch_ms": median(first)})
    );
    Ok(())
}

/// Writes records as a dataset folder and as a TFRecord file.
struct Made {
    folder: PathBuf,
    features: Features,
    records: Writer<Vec<u8>>,
    peers: tfrecord::Writer<BufWriter<File>>,
    count: u64,
}

impl Made {
    fn new(folder: &Path, name: &str, feature: Feature) -> Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        let key = if name == "tokens" { "tokens" } else { "image" };
        let label = Feature::Scalar { dtype: DType::Int64 };
        let file = BufWriter::new(File::create(folder.join("peers.tfrecord"))?);
        Ok(Self {
            features: Features::new(vec![(key.to_string(), feature), ("label".to_string(), label)])?,
            records: Writer::new(Vec::new(), WriteOptions::uncompressed())?,
            peers: tfrecord::Writer::new(file, tfrecord::Compression::Plain)?,
            folder,
            count: 0,
        })
    }

    fn push(&mut self, value: Value) -> Result<()> {
        let key = if self.features.iter().any(|(name, _)| name == "tokens") {
            "tokens"
        } else {
            "image"
        };
        let mut record = Vec::new();
        let label = Value::Int(self.count as i64);
        self.features
            .encoder()
            .encode(&[(key, value), ("label", label)], &mut record)?;
        self.records.write(&record)?;
        self.peers.write(&record)?;
        self.count += 1;
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.peers.finish()?;
        publish(
            &self.folder,
            &self.features,
            &self.records.finish()?,
            self.count,
            1,
        );
        Ok(())
    }
}

fn make(folder: &Path, scale: f64) -> Result<()> {
    let scaled = |count: f64| (count * scale).max(64.0) as u64;
    let picture = |encoding: &str, sides: Option<u64>| Feature::Image {
        shape: vec![sides, sides, Some(3)],
        dtype: DType::UInt8,
        encoding_format: Some(encoding.to_string()),
    };
    let mut made = Made::new(folder, "png", picture("png", Some(32)))?;
    let info = png::Info {
        width: 32,
        height: 32,
        channels: 3,
        bits: 8,
    };
    for seed in 0..scaled(20_000.0) {
        let mut file = Vec::new();
        png::Encoder::new().encode(&info, &common::picture(32, 32, 9.0, seed), &mut file)?;
        made.push(Value::Bytes(file.into()))?;
    }
    made.finish()?;
    for (name, [width, height], noise, quality, count) in [
        ("jpeg", [500, 375], 44.0, 93, 1_000.0),
        ("photos", [2_000, 1_500], 16.0, 90, 100.0),
    ] {
        let mut made = Made::new(folder, name, picture("jpeg", None))?;
        for seed in 0..scaled(count) {
            made.push(Value::Bytes(
                common::jpeg(width, height, noise, quality, seed).into(),
            ))?;
        }
        made.finish()?;
    }
    let mut made = Made::new(folder, "tokens", Feature::tensor(vec![None], DType::Int32))?;
    let mut numbers = Generator::new(1, "tokens", 0);
    for _ in 0..scaled(50_000.0) {
        let length = 64 + numbers.below(1_437) as usize;
        let tokens = (0..length).flat_map(|_| (1 + numbers.below(50_256) as i32).to_le_bytes());
        made.push(Value::Tensor {
            dtype: DType::Int32,
            data: tokens.collect::<Vec<u8>>().into(),
            shape: vec![length],
        })?;
    }
    made.finish()
}
