//! Times PNG, the example encoder and the batch decoder, one thread, warm; checks every answer.
//!
//! `cargo bench -p prep-formats --bench examples [-- FOLDER]`. Pictures are made from a seed; with FOLDER the records of all
//! uncompressed TFDS shards in it are used besides, and sizes compared with theirs.
#![expect(clippy::print_stdout, reason = "its results are what the program is for")]

use std::hint::black_box;

use prep_formats::columns::{BatchDecoder, ColumnData};
use prep_formats::example::{Example, FeatureList};
use prep_formats::features::{Encoding, Feature, Features};
use prep_formats::png::{Decoder, Encoder, Info};
use prep_formats::value::{DType, Value};

mod support;

/// Median microseconds of CPU an item.
fn time(items: usize, work: impl FnMut()) -> f64 {
    support::time(items, work) / 1e3
}

/// Pictures of `kind`: 0 noisy as small photographs are, 1 dark strokes on nothing.
fn pictures(kind: u8, info: &Info, count: usize) -> Vec<Vec<u8>> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as i32
    };
    let (width, height, channels) = (info.width as i32, info.height as i32, i32::from(info.channels));
    (0..count)
        .map(|_| {
            let waves: Vec<[i32; 4]> = (0..4)
                .map(|_| [random() % 9 - 4, random() % 9 - 4, random() % 60, random() % 256])
                .collect();
            let (x0, y0, radius) = (8 + random() % 12, 8 + random() % 12, 4 + random() % 6);
            let mut pixels = Vec::with_capacity(info.num_bytes().unwrap_or(0));
            for y in 0..height {
                for x in 0..width {
                    for channel in 0..channels {
                        pixels.push(if kind == 0 {
                            let smooth: i32 = waves
                                .iter()
                                .map(|[dx, dy, height, phase]| {
                                    let angle = f64::from(dx * x + dy * y + phase + 13 * channel) / 25.0;
                                    (angle.sin() * f64::from(*height)) as i32
                                })
                                .sum();
                            (128 + smooth + random() % 17 - 8).clamp(0, 255) as u8
                        } else {
                            let distance = (x - x0) * (x - x0) + (y - y0) * (y - y0);
                            let off = (distance - radius * radius).abs();
                            (255 - 12 * off - random() % 9).clamp(0, 255) as u8 * u8::from(off < 20)
                        });
                    }
                }
            }
            pixels
        })
        .collect()
}

fn png(name: &str, info: &Info, pictures: &[Vec<u8>], theirs: Option<&[Vec<u8>]>) {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new();
    let mut files = Vec::new();
    for pixels in pictures {
        let mut file = Vec::new();
        encoder.encode(info, pixels, &mut file).expect("pixels fit");
        files.push(file);
    }
    let mut out = vec![0; info.num_bytes().expect("small")];
    for (file, pixels) in files.iter().zip(pictures) {
        decoder.decode(file, info, &mut out).expect("a PNG");
        assert_eq!(&out, pixels, "pixels come back");
    }
    let mut file = Vec::new();
    let encode = time(pictures.len(), || {
        for pixels in pictures {
            file.clear();
            encoder.encode(info, pixels, &mut file).expect("pixels fit");
            black_box(&file);
        }
    });
    let mut decode_all = |files: &[Vec<u8>]| {
        time(files.len(), || {
            for file in files {
                decoder.decode(file, info, &mut out).expect("a PNG");
                black_box(&out);
            }
        })
    };
    let decode = decode_all(&files);
    let total = |files: &[Vec<u8>]| files.iter().map(Vec::len).sum::<usize>();
    print!(
        "{name:<28} {:>6} B   encode {encode:6.2} us   decode {decode:6.2} us",
        total(&files) / files.len()
    );
    if let Some(theirs) = theirs {
        print!(
            "   theirs: {:>6} B, ours to theirs {:.4}, decode {:6.2} us",
            total(theirs) / theirs.len(),
            total(&files) as f64 / total(theirs) as f64,
            decode_all(theirs)
        );
    }
    println!();
}

fn rows(name: &str, features: &Features, records: &[Vec<u8>]) {
    let mut decoder = BatchDecoder::new(features, true).expect("a schema that is decoded");
    let mut batch = decoder.new_batch(256);
    let each = time(records.len(), || {
        for chunk in records.chunks(256) {
            decoder.clear(&mut batch);
            for record in chunk {
                decoder.push(record, &mut batch).expect("a record");
            }
            assert_eq!(batch.rows, chunk.len(), "each record is a row");
            black_box(&batch);
        }
    });
    println!("{name:<28} {each:8.3} us a row");
}

fn cifar(pictures: &[Vec<u8>]) {
    let features = Features::new(vec![
        ("id".into(), Feature::Text),
        (
            "image".into(),
            Feature::Image {
                shape: vec![Some(32), Some(32), Some(3)],
                dtype: DType::UInt8,
                encoding_format: None,
            },
        ),
        (
            "label".into(),
            Feature::ClassLabel {
                num_classes: 10,
                names: Vec::new(),
            },
        ),
    ])
    .expect("a schema");
    let mut encoder = features.encoder();
    let values: Vec<_> = pictures
        .iter()
        .enumerate()
        .map(|(index, pixels)| {
            let image = Value::Tensor {
                dtype: DType::UInt8,
                shape: vec![32, 32, 3],
                data: pixels.clone().into(),
            };
            [
                ("id", Value::Bytes(format!("train_{index:05}").into())),
                ("image", image),
                ("label", Value::Int(index as i64 % 10)),
            ]
        })
        .collect();
    let mut records = Vec::new();
    for values in &values {
        let mut record = Vec::new();
        encoder.encode(values, &mut record).expect("values fit");
        records.push(record);
    }
    let mut record = Vec::new();
    let each = time(values.len(), || {
        for values in &values {
            record.clear();
            encoder.encode(values, &mut record).expect("values fit");
            black_box(&record);
        }
    });
    println!("{:<28} {each:8.3} us an example", "encode cifar10");
    let mut decoder = BatchDecoder::new(&features, true).expect("a schema");
    let mut batch = decoder.new_batch(1);
    decoder.push(&records[7], &mut batch).expect("a record");
    let ColumnData::Fixed(image) = &batch.columns[1] else {
        panic!("images of one size are packed")
    };
    assert_eq!(image, &pictures[7], "pixels come back");
    rows("decode cifar10", &features, &records);
    let mut decoder = BatchDecoder::new(&features, false).expect("a schema");
    let mut batch = decoder.new_batch(256);
    let each = time(records.len(), || {
        for chunk in records.chunks(256) {
            decoder.clear(&mut batch);
            for record in chunk {
                decoder.push(record, &mut batch).expect("a record");
            }
            black_box(&batch);
        }
    });
    println!("{:<28} {each:8.3} us a row", "cifar10, images undecoded");
}

fn tokens() {
    let features =
        Features::new(vec![("tokens".into(), Feature::tensor(vec![None], DType::Int32))]).expect("a schema");
    let records: Vec<Vec<u8>> = (0..2000u64)
        .map(|row| {
            let tokens = (0..604).map(|index| {
                let mixed = (row * 604 + index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                ((mixed >> 32) % (1 << (4 + mixed % 13))) as i64
            });
            let mut example = Example::default();
            let list = FeatureList::Int64(tokens.collect());
            example.features.insert("tokens".into(), list);
            example.encode()
        })
        .collect();
    rows("decode 604 tokens", &features, &records);
}

/// Schemas of which each row is one tensor of `uint8`, stored as a list, as bytes, and compressed.
fn raw_pixels(pictures: &[Vec<u8>]) {
    for encoding in [Encoding::None, Encoding::Bytes, Encoding::Zlib] {
        let feature = Feature::Tensor {
            shape: vec![Some(32), Some(32), Some(3)],
            dtype: DType::UInt8,
            encoding,
        };
        let features = Features::new(vec![("x".into(), feature)]).expect("a schema");
        let mut encoder = features.encoder();
        let records: Vec<Vec<u8>> = pictures
            .iter()
            .map(|pixels| {
                let value = Value::Tensor {
                    dtype: DType::UInt8,
                    shape: vec![32, 32, 3],
                    data: pixels.clone().into(),
                };
                let mut record = Vec::new();
                encoder.encode(&[("x", value)], &mut record).expect("values fit");
                record
            })
            .collect();
        rows(
            &format!("decode uint8[3072] {}", encoding.name()),
            &features,
            &records,
        );
    }
}

/// What a record of about 1 KB of text, numbers and sequences costs: the schema of which `tf.io.parse_example` is timed beside it.
fn text_rows() {
    let scalar = |dtype| Feature::Scalar { dtype };
    let features = Features::new(vec![
        ("id".into(), scalar(DType::Int64)),
        (
            "label".into(),
            Feature::ClassLabel {
                num_classes: 10,
                names: Vec::new(),
            },
        ),
        ("score".into(), scalar(DType::Float32)),
        ("text".into(), Feature::Text),
        ("title".into(), Feature::Text),
        ("tokens".into(), Feature::tensor(vec![None], DType::Int64)),
        (
            "embedding".into(),
            Feature::tensor(vec![Some(64)], DType::Float32),
        ),
    ])
    .expect("a schema");
    let mut encoder = features.encoder();
    let records: Vec<Vec<u8>> = (0..2000i64)
        .map(|row| {
            let tokens = (0..100)
                .map(|at| Value::Int((row * 100 + at) * 7919 % 30_000))
                .collect();
            let embedding = (0..64)
                .map(|at| Value::Float((row * at) as f64 / 100.0))
                .collect();
            let values = [
                ("id", Value::Int(row)),
                ("label", Value::Int(row % 10)),
                ("score", Value::Float(row as f64 / 7.0)),
                ("text", Value::Bytes("x".repeat(480).into())),
                ("title", Value::Bytes(format!("title {row}").into())),
                ("tokens", Value::List(tokens)),
                ("embedding", Value::List(embedding)),
            ];
            let mut record = Vec::new();
            encoder.encode(&values, &mut record).expect("values fit");
            record
        })
        .collect();
    rows(
        &format!("decode {} B, 7 features", records[0].len()),
        &features,
        &records,
    );
    if let Ok(path) = std::env::var("PREP_BENCH_RECORDS") {
        // Each record after its length, for the other program.
        let mut file = Vec::new();
        for record in &records {
            file.extend((record.len() as u32).to_le_bytes());
            file.extend(record);
        }
        std::fs::write(path, file).expect("a file that can be written");
    }
}

/// Sequences in sequences, of numbers and of texts.
fn nested_rows() {
    let numbers = Feature::sequence(Feature::sequence(Feature::Scalar { dtype: DType::Int32 }));
    let objects = Feature::sequence(Feature::dict([
        ("box", Feature::BBox { format: None }),
        ("name", Feature::Text),
    ]));
    let features =
        Features::new(vec![("numbers".into(), numbers), ("objects".into(), objects)]).expect("a schema");
    let mut encoder = features.encoder();
    let records: Vec<Vec<u8>> = (0..2000i64)
        .map(|row| {
            let list = |length: i64| Value::List((0..length).map(|at| Value::Int(at * row % 1000)).collect());
            let object = |at: i64| {
                Value::Dict(vec![
                    ("box".into(), Value::List(vec![Value::Float(0.5); 4])),
                    ("name".into(), Value::Bytes(format!("object {at}").into())),
                ])
            };
            let values = [
                (
                    "numbers",
                    Value::List((0..10).map(|at| list((row + at) % 20)).collect()),
                ),
                ("objects", Value::List((0..row % 16).map(object).collect())),
            ];
            let mut record = Vec::new();
            encoder.encode(&values, &mut record).expect("values fit");
            record
        })
        .collect();
    rows("decode nested, 95 + 38 values", &features, &records);
}

/// Encoded images of the shards in a folder, by name of the dataset's folder.
fn stored_images(folder: &std::path::Path, found: &mut Vec<(String, Vec<Vec<u8>>)>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let mut images = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            stored_images(&path, found);
        } else if path.to_string_lossy().contains(".tfrecord-") {
            let bytes = std::fs::read(&path).expect("a file");
            let mut rest = &bytes[..];
            while let Some(length) = rest.first_chunk::<8>() {
                let length = u64::from_le_bytes(*length) as usize;
                let example = Example::decode(&rest[12..12 + length]).expect("an example");
                if let Some(FeatureList::Bytes(files)) = example.features.get("image") {
                    images.extend(files.iter().cloned());
                }
                rest = &rest[16 + length..];
            }
        }
    }
    if !images.is_empty() {
        found.push((folder.display().to_string(), images));
    }
}

fn main() {
    let colour = Info {
        width: 32,
        height: 32,
        channels: 3,
        bits: 8,
    };
    let grey = Info {
        width: 28,
        height: 28,
        channels: 1,
        bits: 8,
    };
    let noisy = pictures(0, &colour, 2000);
    png("png 32x32x3 noisy", &colour, &noisy, None);
    png("png 28x28x1 strokes", &grey, &pictures(1, &grey, 2000), None);
    cifar(&noisy);
    raw_pixels(&noisy);
    tokens();
    text_rows();
    nested_rows();
    if let Some(folder) = std::env::args().skip(1).find(|arg| !arg.starts_with('-')) {
        let mut found = Vec::new();
        stored_images(std::path::Path::new(&folder), &mut found);
        for (name, files) in &found {
            let Ok(info) = prep_formats::png::info(&files[0]) else {
                continue;
            };
            let mut decoder = Decoder::new();
            let pixels: Vec<Vec<u8>> = files
                .iter()
                .map(|file| {
                    let mut out = Vec::new();
                    decoder
                        .decode_append(file, None, info.bits, &mut out)
                        .expect("a PNG");
                    out
                })
                .collect();
            png(
                &name[name.len().saturating_sub(28)..],
                &info,
                &pixels,
                Some(files),
            );
        }
    }
}
