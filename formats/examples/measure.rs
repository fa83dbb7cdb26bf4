//! Measures one thing that this crate does, or the floor beneath it, and prints one line of JSON: for `bench/formats.py`, which runs it
//! beside other libraries.
//!
//! ```text
//! measure random FILE.array_record          batches of 256 records by index, into one buffer
//! measure one FILE.array_record             one record a call
//! measure sequential FILE.array_record      all records in order, visited in place
//! measure write INPUT.tfrecord OUT OPTIONS  records in memory to a file
//! measure open|open-lazy FOLDER             opens all files of a folder, with and without their indices
//! measure tfrecord-read FILE.tfrecord       all records in order
//! measure tfrecord-write INPUT.tfrecord OUT
//! measure examples INPUT.tfrecord FEATURES  examples in memory to columns, 256 at a time; FEATURES: a folder with features.json
//! measure statistics INPUT.tfrecord FEATURES  statistics of examples in memory
//! measure floor-copy|floor-copy-random|floor-hash|floor-crc INPUT.tfrecord
//! measure floor-decode|floor-encode INPUT.tfrecord CODEC GROUP     zstd, snappy or brotli alone, contexts used again
//! ```
//!
//! One thread, unless the options say otherwise; `--seconds S` of measured time, at least one pass. Output: `records`, `bytes` (of records),
//! `cpu_s` (of all threads), `wall_s`, and `checksum` of what the first batches, or one pass, gave.
#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use brotlic::encode::BrotliEncoderOptions;
use brotlic::{CompressorWriter, DecompressorReader, Quality};
use highway::{HighwayHash, HighwayHasher, Key};
use prep_formats::array_record::{Reader, RecordBatch, Scratch, WriteOptions, Writer};
use prep_formats::columns::BatchDecoder;
use prep_formats::features::Features;
use prep_formats::statistics::Statistics;
use prep_formats::tfrecord;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Records of a batch.
const BATCH: usize = 256;
/// Batches that are read before the clock starts, and summed.
const CHECKED: u64 = 20;
/// Records that a file is written of, and that a codec alone is given, so that slow ones are done in seconds.
const WRITTEN: usize = 50_000;

/// What one step did.
#[derive(Default, Clone, Copy)]
struct Done {
    records: u64,
    bytes: u64,
}

impl Done {
    fn add(&mut self, record: &[u8]) {
        self.records += 1;
        self.bytes += record.len() as u64;
    }
}

/// Length and both ends of records: what all contenders sum.
fn weight(record: &[u8]) -> u64 {
    let end = |byte: Option<&u8>| u64::from(byte.copied().unwrap_or(0));
    record.len() as u64 + end(record.first()) + end(record.last())
}

/// The `k`-th index of a random sequence below `n`, the same in `peer_formats.py`. Source: `splitmix64`.
fn index_of(k: u64, n: u64) -> u64 {
    let mut z = k.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % n
}

/// CPU seconds of this process. Of its living threads to the nanosecond; where others have ended meanwhile, in steps of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
    let after = stat.rsplit(')').next().expect("a name in brackets");
    let ticks = |field: usize| number(after.split_whitespace().nth(field));
    let all = (ticks(11) + ticks(12)) / 100.0;
    let tasks = fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let living: f64 = tasks
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .map(|text| number(text.split_whitespace().next()) / 1e9)
        .sum();
    if all > living + 0.03 { all } else { living }
}

fn number(text: Option<&str>) -> f64 {
    text.and_then(|text| text.parse().ok()).expect("a number")
}

/// Runs `step` until the time is over, and prints what it cost.
fn measure(seconds: f64, checksum: u64, mut step: impl FnMut() -> Result<Done>) -> Result<()> {
    let mut total = Done::default();
    let (cpu, start) = (cpu_seconds(), Instant::now());
    loop {
        let done = step()?;
        total.records += done.records;
        total.bytes += done.bytes;
        if start.elapsed().as_secs_f64() >= seconds {
            break;
        }
    }
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!(
        "{{\"records\": {}, \"bytes\": {}, \"cpu_s\": {cpu:.4}, \"wall_s\": {wall:.6}, \"checksum\": {checksum}}}",
        total.records, total.bytes
    );
    Ok(())
}

/// All records of a TFRecord file.
fn load(path: &str) -> Result<Vec<Vec<u8>>> {
    let mut reader = tfrecord::Reader::new(File::open(path)?, path, tfrecord::ReadOptions::default())?;
    let mut records = Vec::new();
    while let Some(record) = reader.next()? {
        records.push(record.to_vec());
    }
    Ok(records)
}

fn sum(records: &[Vec<u8>]) -> u64 {
    records.iter().map(|record| weight(record)).sum()
}

/// Random batches of records: `read` delivers those at a list of indices, then shows them one by one.
fn random(
    seconds: f64,
    n: u64,
    mut read: impl FnMut(&[u64], &mut dyn FnMut(&[u8])) -> Result<()>,
) -> Result<()> {
    let (mut k, mut indices) = (0, Vec::new());
    let mut batch = move |visit: &mut dyn FnMut(&[u8])| -> Result<()> {
        indices.clear();
        indices.extend((k..k + BATCH as u64).map(|k| index_of(k, n)));
        k += BATCH as u64;
        read(&indices, visit)
    };
    let mut checksum = 0;
    for _ in 0..CHECKED {
        batch(&mut |record| checksum += weight(record))?;
    }
    measure(seconds, checksum, || {
        let mut done = Done::default();
        batch(&mut |record| done.add(record))?;
        Ok(done)
    })
}

/// Records one after the other in one buffer.
#[derive(Default)]
struct Joined {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Joined {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }

    fn visit(&self, visit: &mut dyn FnMut(&[u8])) {
        let mut start = 0;
        for &end in &self.ends {
            visit(&self.bytes[start..end]);
            start = end;
        }
    }
}

fn write(records: &[Vec<u8>], path: &str, options: &WriteOptions) -> Result<()> {
    let mut writer = Writer::new(File::create(path)?, options.clone())?;
    for record in records {
        writer.write(record)?;
    }
    writer.finish()?;
    Ok(())
}

/// The pieces that a codec is given: `group` records each, joined.
fn pieces(records: &[Vec<u8>], group: usize) -> Vec<Vec<u8>> {
    records.chunks(group).map(<[Vec<u8>]>::concat).collect()
}

/// A codec with its contexts, at the level that the benchmark uses.
enum Codec {
    Zstd(zstd_safe::CCtx<'static>, zstd_safe::DCtx<'static>),
    Snappy(Box<snap::raw::Encoder>, snap::raw::Decoder),
    Brotli,
}

impl Codec {
    fn new(name: &str) -> Result<Self> {
        Ok(match name {
            "zstd" => Self::Zstd(zstd_safe::CCtx::create(), zstd_safe::DCtx::create()),
            "snappy" => Self::Snappy(Box::new(snap::raw::Encoder::new()), snap::raw::Decoder::new()),
            "brotli" => Self::Brotli,
            _ => return Err(format!("`{name}` is no codec").into()),
        })
    }

    fn encode(&mut self, piece: &[u8], output: &mut Vec<u8>) -> Result<()> {
        output.clear();
        match self {
            Self::Zstd(context, _) => {
                output.reserve(zstd_safe::compress_bound(piece.len()));
                let done = context.compress(output, piece, 3);
                done.map_err(|code| zstd_safe::get_error_name(code).to_string())?;
            }
            Self::Snappy(encoder, _) => {
                output.resize(snap::raw::max_compress_len(piece.len()), 0);
                let length = encoder.compress(piece, output)?;
                output.truncate(length);
            }
            Self::Brotli => {
                let encoder = BrotliEncoderOptions::new().quality(Quality::new(6)?).build()?;
                let mut writer = CompressorWriter::with_encoder(encoder, std::mem::take(output));
                std::io::Write::write_all(&mut writer, piece)?;
                *output = writer.into_inner().map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn decode(&mut self, piece: &[u8], length: usize, output: &mut Vec<u8>) -> Result<()> {
        output.clear();
        match self {
            Self::Zstd(_, context) => {
                output.reserve(length);
                let done = context.decompress(output, piece);
                done.map_err(|code| zstd_safe::get_error_name(code).to_string())?;
            }
            Self::Snappy(_, decoder) => {
                output.resize(length, 0);
                decoder.decompress(piece, output)?;
            }
            Self::Brotli => {
                std::io::Read::read_to_end(&mut DecompressorReader::new(piece), output)?;
            }
        }
        Ok(())
    }
}

fn run(what: &str, arguments: &[String], seconds: f64) -> Result<()> {
    let argument = |number: usize| {
        let found = arguments.get(number).map(String::as_str);
        found.ok_or_else(|| format!("`{what}` lacks an argument"))
    };
    let path = argument(0)?;
    match what {
        "random" => {
            let reader = Reader::open(path)?;
            let mut scratch = Scratch::default();
            let mut batch = RecordBatch::default();
            random(seconds, reader.num_records(), |indices, visit| {
                reader.read(indices, &mut batch, &mut scratch)?;
                batch.iter().for_each(visit);
                Ok(())
            })
        }
        "one" => {
            let reader = Reader::open(path)?;
            let mut scratch = Scratch::default();
            let n = reader.num_records();
            let mut checksum = 0;
            for k in 0..CHECKED * BATCH as u64 {
                checksum += weight(reader.record(index_of(k, n), &mut scratch)?);
            }
            let mut k = 0;
            measure(seconds, checksum, || {
                let mut done = Done::default();
                for _ in 0..BATCH {
                    done.add(reader.record(index_of(k, n), &mut scratch)?);
                    k += 1;
                }
                Ok(done)
            })
        }
        "sequential" => {
            let reader = Reader::open(path)?;
            let mut scratch = Scratch::default();
            let mut pass = |sum: &mut u64| -> Result<Done> {
                let mut done = Done::default();
                reader.for_each(0..reader.num_records(), &mut scratch, |_, record| {
                    done.add(record);
                    *sum += weight(record);
                    Ok(())
                })?;
                Ok(done)
            };
            let mut checksum = 0;
            pass(&mut checksum)?;
            measure(seconds, checksum, || pass(&mut 0))
        }
        "write" => {
            let mut records = load(path)?;
            records.truncate(WRITTEN);
            let (out, options) = (argument(1)?, WriteOptions::parse(argument(2)?)?);
            write(&records, out, &options)?;
            // What was written is read back, off the clock.
            let reader = Reader::open(out)?;
            let mut checksum = 0;
            reader.for_each(0..reader.num_records(), &mut Scratch::default(), |_, record| {
                checksum += weight(record);
                Ok(())
            })?;
            let bytes = records.iter().map(|record| record.len() as u64).sum();
            measure(seconds, checksum, || {
                write(&records, out, &options)?;
                Ok(Done {
                    records: records.len() as u64,
                    bytes,
                })
            })
        }
        "open" | "open-lazy" => {
            let mut files: Vec<_> = fs::read_dir(path)?
                .map(|entry| Ok(entry?.path()))
                .collect::<Result<_>>()?;
            files.sort();
            let open = |files: &[std::path::PathBuf]| -> Result<(Vec<Reader>, u64)> {
                let readers: Vec<Reader> = files
                    .iter()
                    .map(|path| {
                        Ok(match what {
                            "open" => Reader::open(path)?,
                            _ => Reader::open_lazy(path)?,
                        })
                    })
                    .collect::<Result<_>>()?;
                let records = readers.iter().map(Reader::num_records).sum();
                Ok((readers, records))
            };
            let (_, checksum) = open(&files)?;
            measure(seconds, checksum, || {
                let (readers, _) = open(&files)?;
                Ok(Done {
                    records: readers.len() as u64,
                    bytes: 0,
                })
            })
        }
        "tfrecord-read" => {
            let pass = |sum: &mut u64| -> Result<Done> {
                let mut reader =
                    tfrecord::Reader::new(File::open(path)?, path, tfrecord::ReadOptions::default())?;
                let mut done = Done::default();
                while let Some(record) = reader.next()? {
                    done.add(record);
                    *sum += weight(record);
                }
                Ok(done)
            };
            let mut checksum = 0;
            pass(&mut checksum)?;
            measure(seconds, checksum, || pass(&mut 0))
        }
        "tfrecord-write" => {
            let mut records = load(path)?;
            records.truncate(WRITTEN);
            let out = argument(1)?;
            let bytes = records.iter().map(|record| record.len() as u64).sum();
            let pass = || -> Result<Done> {
                let mut writer = tfrecord::Writer::new(File::create(out)?, tfrecord::Compression::Plain)?;
                for record in &records {
                    writer.write(record)?;
                }
                writer.finish()?;
                Ok(Done {
                    records: records.len() as u64,
                    bytes,
                })
            };
            pass()?;
            let checksum = sum(&load(out)?);
            measure(seconds, checksum, pass)
        }
        "examples" => {
            let records = load(path)?;
            let features = Features::read_folder(Path::new(argument(1)?))?;
            let mut decoder = BatchDecoder::new(&features, true)?;
            let mut batch = decoder.new_batch(BATCH);
            let mut decode = |start: usize, sum: &mut u64| -> Result<Done> {
                decoder.clear(&mut batch);
                let mut done = Done::default();
                for record in &records[start..start + BATCH] {
                    decoder.push(record, &mut batch)?;
                    done.add(record);
                }
                for (spec, column) in decoder.specs().iter().zip(&batch.columns) {
                    for row in 0..batch.rows {
                        // Of a text its length and ends, of an `id` its value.
                        match column.row(spec, row) {
                            Some((_, bytes)) if spec.name == "text" => *sum += weight(bytes),
                            Some((_, bytes)) if spec.name == "id" => {
                                *sum += u64::from_le_bytes(bytes.try_into()?)
                            }
                            _ => {}
                        }
                    }
                }
                Ok(done)
            };
            let batches = records.len() / BATCH;
            let mut checksum = 0;
            for number in 0..CHECKED as usize {
                decode(number % batches * BATCH, &mut checksum)?;
            }
            let mut number = 0;
            let mut batch = decoder.new_batch(BATCH);
            measure(seconds, checksum, || {
                let start = number % batches * BATCH;
                number += 1;
                decoder.clear(&mut batch);
                let mut done = Done::default();
                for record in &records[start..start + BATCH] {
                    decoder.push(record, &mut batch)?;
                    done.add(record);
                }
                std::hint::black_box(&batch);
                Ok(done)
            })
        }
        "statistics" => {
            let records = load(path)?;
            let features = Features::read_folder(Path::new(argument(1)?))?;
            let all = |statistics: &mut Statistics| -> Result<Done> {
                let mut done = Done::default();
                for record in &records {
                    statistics.add(record)?;
                    done.add(record);
                }
                Ok(done)
            };
            let mut first = Statistics::new(&features);
            all(&mut first)?;
            let checksum = first.to_bytes().iter().map(|byte| u64::from(*byte)).sum();
            let mut statistics = Statistics::new(&features);
            measure(seconds, checksum, || all(&mut statistics))
        }
        _ => floor(what, &load(path)?, arguments, seconds),
    }
}

/// What nobody can avoid for the same result.
fn floor(what: &str, records: &[Vec<u8>], arguments: &[String], seconds: f64) -> Result<()> {
    let bytes: u64 = records.iter().map(|record| record.len() as u64).sum();
    let all = Done {
        records: records.len() as u64,
        bytes,
    };
    // Joined, as they would lie in a file.
    let joined = records.concat();
    let mut places = Vec::with_capacity(records.len());
    let mut start = 0;
    for record in records {
        places.push(start..start + record.len());
        start += record.len();
    }
    match what {
        "floor-copy" => {
            // Runs of some MB, as a reader in batches has them.
            let run = (4 << 20) / (joined.len() / records.len().max(1)).max(1) + 1;
            let mut buffer = Vec::with_capacity(8 << 20);
            measure(seconds, sum(records), || {
                for places in places.chunks(run) {
                    buffer.clear();
                    for place in places {
                        buffer.extend_from_slice(&joined[place.clone()]);
                    }
                    std::hint::black_box(&buffer);
                }
                Ok(all)
            })
        }
        "floor-copy-random" => {
            let mut batch = Joined::default();
            random(seconds, records.len() as u64, |indices, visit| {
                batch.clear();
                for &index in indices {
                    batch.push(&joined[places[index as usize].clone()]);
                }
                batch.visit(visit);
                Ok(())
            })
        }
        "floor-hash" => measure(seconds, sum(records), || {
            for place in &places {
                let hasher = HighwayHasher::new(Key([1, 2, 3, 4]));
                std::hint::black_box(hasher.hash64(&joined[place.clone()]));
            }
            Ok(all)
        }),
        "floor-crc" => measure(seconds, sum(records), || {
            for place in &places {
                let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &joined[place.clone()]);
                std::hint::black_box(sum);
            }
            Ok(all)
        }),
        "floor-encode" | "floor-decode" => {
            let [_, codec, group] = arguments else {
                return Err(format!("`{what}` wants INPUT CODEC GROUP").into());
            };
            let mut codec = Codec::new(codec)?;
            let records = &records[..records.len().min(WRITTEN)];
            let all = Done {
                records: records.len() as u64,
                bytes: records.iter().map(|record| record.len() as u64).sum(),
            };
            let plain = pieces(records, group.parse()?);
            let mut output = Vec::new();
            let mut packed = Vec::new();
            let mut longest = 0;
            for piece in &plain {
                codec.encode(piece, &mut output)?;
                packed.push(output.clone());
                let mut back = Vec::new();
                codec.decode(&output, piece.len(), &mut back)?;
                if back != *piece {
                    return Err("a codec gave other bytes".into());
                }
                longest = longest.max(piece.len());
            }
            output = Vec::with_capacity(longest + 64);
            measure(seconds, sum(records), || {
                for (piece, packed) in plain.iter().zip(&packed) {
                    if what == "floor-encode" {
                        codec.encode(piece, &mut output)?;
                    } else {
                        codec.decode(packed, piece.len(), &mut output)?;
                    }
                    std::hint::black_box(&output);
                }
                Ok(all)
            })
        }
        _ => Err(format!("`{what}` is not measured here").into()),
    }
}

fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut seconds = 1.0;
    if let Some(place) = arguments.iter().position(|text| text == "--seconds") {
        let value = arguments.get(place + 1).ok_or("`--seconds` lacks a number")?;
        seconds = value.parse()?;
        arguments.drain(place..place + 2);
    }
    let (what, rest) = arguments
        .split_first()
        .ok_or("say what to measure: see the top of this program")?;
    run(what, rest, seconds)
}
