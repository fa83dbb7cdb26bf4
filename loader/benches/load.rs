//! What the loader costs: CPU per image and per permuted index, opening, restoring.
//!
//! `cargo bench -p prep-loader --bench load [-- --images N | --folder BUILT]`. CIFAR-10's shape: PNG of 32x32x3, 2.2 KB, one a chunk, batches of 256,
//! shuffled over the whole split. CPU is that of the process, from `/proc/self/stat` (0.01 s), so runs last a second or more. The
//! stream's sums are checked against those of the pictures written.

use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::columns::ColumnData;
use prep_formats::features::{Feature, Features};
use prep_formats::store::Location;
use prep_formats::value::{DType, Value};
use prep_loader::permutation::Permutation;
use prep_loader::{Dataset, LoadOptions, Order};

mod common;

use common::{cpu_seconds, publish};

const PIXELS: usize = 32 * 32 * 3;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only wants to see it run.
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let images = arguments
        .windows(2)
        .find(|pair| pair[0] == "--images")
        .map_or(if quick { 600 } else { 50_000 }, |pair| pair[1].parse().unwrap());
    let mut out = std::io::stdout().lock();
    writeln!(out, "{images} images a split").unwrap();
    if let Some(pair) = arguments.windows(2).find(|pair| pair[0] == "--folder") {
        built(&mut out, Path::new(&pair[1]));
        return;
    }
    permutations(&mut out, quick);
    let folder = std::env::temp_dir().join(format!("prep-bench-load-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (kind, feature) in [
        (
            "png",
            Feature::Image {
                shape: vec![Some(32), Some(32), Some(3)],
                dtype: DType::UInt8,
                encoding_format: Some("png".to_string()),
            },
        ),
        (
            "raw",
            Feature::tensor(vec![Some(32), Some(32), Some(3)], DType::UInt8),
        ),
    ] {
        let place = folder.join(kind);
        let sum = write(&place, feature, images);
        stream(&mut out, kind, &place, images, sum, if quick { 1 } else { 4 });
    }
    many_shards(&mut out, &folder.join("many"), if quick { 100 } else { 10_000 });
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Streams a dataset folder that `prep build` wrote, some 200,000 rows of its first split.
fn built(out: &mut impl Write, folder: &Path) {
    let location = Location::from_path(folder);
    let split = prep_catalog::Manifest::read(&location).unwrap().splits[0]
        .name
        .clone();
    let dataset = Dataset::open_folder(&location, &split).unwrap();
    for threads in [0, 1, 2] {
        let epochs = 200_000u64.div_ceil(dataset.len().max(1));
        let options = LoadOptions::new(256).num_epochs(epochs).num_threads(threads);
        let mut loader = dataset.load(options).unwrap();
        let (begin, cpu, mut rows) = (Instant::now(), cpu_seconds(), 0);
        while let Some(batch) = loader.next_batch().unwrap() {
            rows += batch.rows as u64;
        }
        assert_eq!(rows, dataset.len() * epochs);
        writeln!(
            out,
            "{} {split}, {threads} threads: {:.2} us of CPU a row, {:.0} rows/s",
            dataset.name(),
            (cpu_seconds() - cpu) / rows as f64 * 1e6,
            rows as f64 / begin.elapsed().as_secs_f64()
        )
        .unwrap();
    }
}

fn permutations(out: &mut impl Write, quick: bool) {
    let count: u64 = if quick { 1_000 } else { 5_000_000 };
    for length in [100u64, 50_000, 1_281_167, 1_000_000_000, 1 << 62] {
        let permutation = Permutation::new(42, 0, length);
        let begin = Instant::now();
        let mut sum = 0u64;
        for at in 0..count {
            sum = sum.wrapping_add(permutation.apply(at % length));
        }
        let apart = begin.elapsed().as_secs_f64() / count as f64;
        // Each waits for the one before: what one index costs alone.
        let begin = Instant::now();
        let mut value = 1;
        for _ in 0..count {
            value = permutation.apply(value);
        }
        black_box((sum, value));
        let alone = begin.elapsed().as_secs_f64() / count as f64;
        writeln!(
            out,
            "permutation of {length}: {:.1} ns an index, {:.1} ns alone",
            apart * 1e9,
            alone * 1e9
        )
        .unwrap();
    }
}

/// A picture that compresses as a photograph does: slopes and noise.
fn picture(random: &mut u64, pixels: &mut [u8]) {
    let mut next = || {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random
    };
    let slopes = [next() % 5, next() % 5, next() % 60, next() % 60 + 60];
    for (at, pixel) in pixels.iter_mut().enumerate() {
        let (x, y, channel) = ((at / 3 % 32) as u64, (at / 96) as u64, (at % 3) as u64);
        let noise = next() % 24;
        *pixel = (slopes[0] * x + slopes[1] * y + slopes[2] * channel + slopes[3] * (y / 9) + noise) as u8;
    }
}

/// Writes a dataset of pictures and gives the sum of their bytes.
fn write(folder: &Path, feature: Feature, images: u64) -> u64 {
    let features = Features::new(vec![
        ("image".to_string(), feature),
        (
            "label".to_string(),
            Feature::ClassLabel {
                num_classes: 10,
                names: Vec::new(),
            },
        ),
    ])
    .unwrap();
    let mut encoder = features.encoder();
    let mut writer = Writer::new(Vec::new(), WriteOptions::uncompressed()).unwrap();
    let (mut random, mut sum, mut record) = (0x9e37_79b9_7f4a_7c15, 0, Vec::new());
    let mut pixels = vec![0; PIXELS];
    for number in 0..images {
        picture(&mut random, &mut pixels);
        sum += pixels.iter().map(|&pixel| u64::from(pixel)).sum::<u64>();
        let image = Value::Tensor {
            dtype: DType::UInt8,
            shape: vec![32, 32, 3],
            data: pixels.clone().into(),
        };
        record.clear();
        encoder
            .encode(
                &[("image", image), ("label", Value::Int((number % 10) as i64))],
                &mut record,
            )
            .unwrap();
        writer.write(&record).unwrap();
    }
    publish(folder, &features, &writer.finish().unwrap(), images, 1);
    sum
}

fn stream(out: &mut impl Write, kind: &str, folder: &Path, images: u64, sum: u64, epochs: u64) {
    let dataset = Dataset::open_folder(&Location::from_path(folder), "train").unwrap();
    let bytes = dataset.manifest().splits[0].bytes / images;
    for threads in [0, 1, 2] {
        for order in [Order::Prep, Order::Source] {
            let options = LoadOptions::new(256)
                .num_epochs(epochs)
                .num_threads(threads)
                .order(order)
                .seed(42);
            let mut loader = dataset.load(options).unwrap();
            let (begin, cpu) = (Instant::now(), cpu_seconds());
            let (mut rows, mut found) = (0u64, 0u64);
            let mut first = None;
            while let Some(batch) = loader.next_batch().unwrap() {
                first.get_or_insert_with(|| begin.elapsed());
                if rows < images {
                    let ColumnData::Fixed(pixels) = &batch.columns[0] else {
                        unreachable!("pictures of one size are fixed")
                    };
                    found += pixels.iter().map(|&pixel| u64::from(pixel)).sum::<u64>();
                }
                rows += batch.rows as u64;
            }
            let (wall, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            assert_eq!((rows, found), (images * epochs, sum));
            writeln!(
                out,
                "{kind} ({bytes} bytes), order {order}, {threads} threads: {:.2} us of CPU an image, {:.0} images/s, first batch {:.2} ms",
                cpu / rows as f64 * 1e6,
                rows as f64 / wall,
                first.unwrap_or_default().as_secs_f64() * 1e3
            )
            .unwrap();
        }
    }
}

fn many_shards(out: &mut impl Write, folder: &Path, num_shards: u64) {
    let features = Features::new(vec![(
        "number".to_string(),
        Feature::Scalar { dtype: DType::Int64 },
    )])
    .unwrap();
    let mut writer = Writer::new(Vec::new(), WriteOptions::uncompressed()).unwrap();
    let mut record = Vec::new();
    features
        .encoder()
        .encode(&[("number", Value::Int(7))], &mut record)
        .unwrap();
    writer.write(&record).unwrap();
    publish(folder, &features, &writer.finish().unwrap(), 1, num_shards);
    let begin = Instant::now();
    let dataset = Dataset::open_folder(&Location::from_path(folder), "train").unwrap();
    let opened = begin.elapsed();
    let mut state = dataset.plan(&LoadOptions::new(4)).unwrap().state();
    state.sample_position = num_shards * 1_000_000_007;
    let begin = Instant::now();
    let mut loader = dataset
        .load(LoadOptions::new(4).num_threads(1).restore(state))
        .unwrap();
    loader.next_batch().unwrap();
    writeln!(
        out,
        "{num_shards} shards: opened in {:.1} ms; restored a billion epochs on, first batch after {:.2} ms",
        opened.as_secs_f64() * 1e3,
        begin.elapsed().as_secs_f64() * 1e3
    )
    .unwrap();
}
