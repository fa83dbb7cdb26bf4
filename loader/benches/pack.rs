//! What packing tokens costs, end to end: CPU per token from ArrayRecord files to batches of packed rows.
//!
//! `cargo bench -p prep-loader --bench pack [-- --tokens N]`. Records are `tf.train.Example`s of one `int32` list of 64 to 1,500 tokens below
//! 50,257; rows have 2,048 tokens, with segment ids and positions; batches have 64 rows. All tokens are counted and summed. CPU is that of the
//! process, from `/proc/self/stat` (0.01 s), so runs last a second or more.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::features::{Feature, Features};
use prep_formats::store::Location;
use prep_formats::value::{DType, Value};
use prep_loader::{BatchOptions, Dataset, MapDataset, PackOptions, Packing, PipelineOptions};

mod common;

use common::{cpu_seconds, publish};

const ROW: usize = 2_048;
const BATCH: u64 = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only wants to see it run.
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let tokens = arguments
        .windows(2)
        .find(|pair| pair[0] == "--tokens")
        .map_or(if quick { 100_000 } else { 40_000_000 }, |pair| {
            pair[1].parse().unwrap()
        });
    let mut out = std::io::stdout().lock();
    let folder = std::env::temp_dir().join(format!("prep-bench-pack-{}", std::process::id()));
    let (count, sum) = write(&folder, tokens);
    writeln!(out, "{count} tokens").unwrap();
    for (name, packing) in [
        ("concat-then-split", Packing::ConcatThenSplit),
        ("first-fit, 16 bins", Packing::FirstFit { bins: 16 }),
        ("best-fit, 16 bins", Packing::BestFit { bins: 16 }),
    ] {
        for threads in [0, 1, 2] {
            run(&mut out, name, packing, threads, &folder, (count, sum));
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Writes a dataset of at least so many tokens; how many there are, and their sum.
fn write(folder: &Path, tokens: u64) -> (u64, u64) {
    let features = Features::new(vec![(
        "tokens".to_string(),
        Feature::tensor(vec![None], DType::Int32),
    )])
    .unwrap();
    let mut encoder = features.encoder();
    let mut writer = Writer::new(Vec::new(), WriteOptions::uncompressed()).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let (mut count, mut sum, mut records, mut record) = (0, 0, 0, Vec::new());
    while count < tokens {
        let list: Vec<i32> = (0..64 + next(1_437)).map(|_| 1 + next(50_256) as i32).collect();
        count += list.len() as u64;
        sum += list.iter().map(|&token| token as u64).sum::<u64>();
        record.clear();
        let value = Value::Tensor {
            dtype: DType::Int32,
            shape: vec![list.len()],
            data: list
                .iter()
                .flat_map(|token| token.to_le_bytes())
                .collect::<Vec<u8>>()
                .into(),
        };
        encoder.encode(&[("tokens", value)], &mut record).unwrap();
        writer.write(&record).unwrap();
        records += 1;
    }
    publish(folder, &features, &writer.finish().unwrap(), records, 1);
    (count, sum)
}

fn run(
    out: &mut impl Write,
    name: &str,
    packing: Packing,
    threads: usize,
    folder: &Path,
    wanted: (u64, u64),
) {
    let dataset = Dataset::open_folder(&Location::from_path(folder), "train").unwrap();
    let pipeline = MapDataset::source(dataset)
        .and_then(|dataset| dataset.shuffle(42))
        .and_then(|dataset| {
            dataset
                .to_iter()
                .pack(PackOptions::new(packing, [("tokens", ROW)]))
        })
        .and_then(|dataset| dataset.batch(BatchOptions::new(BATCH)))
        .unwrap();
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let (mut rows, mut count, mut sum) = (0, 0, 0);
    for batch in pipeline
        .load(PipelineOptions::new().num_threads(threads))
        .unwrap()
    {
        let batch = batch.unwrap();
        let tokens = batch.array("tokens").unwrap();
        rows += tokens.shape()[0];
        for token in tokens.bytes().unwrap().as_chunks::<4>().0 {
            let token = u64::from(u32::from_le_bytes(*token));
            count += u64::from(token > 0);
            sum += token;
        }
    }
    let (wall, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    assert_eq!((count, sum), wanted);
    writeln!(
        out,
        "{name}, {threads} threads: {:.2} ns of CPU a token ({:.0} M tokens a CPU second), {:.0} M tokens/s, {:.1} % padding",
        cpu / count as f64 * 1e9,
        count as f64 / cpu.max(0.01) / 1e6,
        count as f64 / wall / 1e6,
        100.0 * (1.0 - count as f64 / (rows * ROW) as f64)
    )
    .unwrap();
}
