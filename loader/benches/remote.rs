//! What latency, errors and stalls of a store cost a stream: pictures of 3 KB from a web server in this process, shuffled, in batches of 64.
//!
//! `cargo bench -p prep-loader --bench remote`. The slow server takes 50 ms for each answer, fails one in twenty (503, or a connection that breaks) and
//! stalls one in two hundred, which costs the client five seconds each. The first epoch fills the cache on disk, ten more are warm. The server reads
//! a whole shard for each request, in this process: of rates without a cache compare the two, and no others.

use std::io::Write;
use std::time::Instant;

use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::features::{Feature, Features};
use prep_formats::store::{Cache, Location};
use prep_formats::value::{DType, Value};
use prep_loader::{Dataset, LoadOptions};
use prep_testing::server::{Fault, FileServer};

mod common;

const PIXELS: usize = 32 * 32 * 3;
const SHARDS: u64 = 32;

fn main() {
    let quick = !std::env::args().any(|argument| argument == "--bench");
    let per_shard = if quick { 50 } else { 500 };
    let folder = tempfile::tempdir().unwrap();
    let shape = vec![Some(32), Some(32), Some(3)];
    let features = Features::new(vec![("image".into(), Feature::tensor(shape, DType::UInt8))]).unwrap();
    let mut encoder = features.encoder();
    let mut writer = Writer::new(Vec::new(), WriteOptions::parse("uncompressed").unwrap()).unwrap();
    let (mut record, pixels) = (Vec::new(), vec![7u8; PIXELS]);
    for _ in 0..per_shard {
        record.clear();
        let image = Value::Tensor {
            dtype: DType::UInt8,
            shape: vec![32, 32, 3],
            data: pixels.clone().into(),
        };
        encoder.encode(&[("image", image)], &mut record).unwrap();
        writer.write(&record).unwrap();
    }
    common::publish(
        folder.path(),
        &features,
        &writer.finish().unwrap(),
        per_shard,
        SHARDS,
    );
    let script = || {
        (0..20_000).map(|number| match number {
            _ if number % 200 == 199 => Fault::Stall,
            _ if number % 40 == 19 => Fault::Status(503),
            _ if number % 40 == 39 => Fault::Close,
            _ => Fault::Slow(50),
        })
    };
    let mut out = std::io::stdout().lock();
    let mut warm = Vec::new();
    for (name, server) in [
        ("no latency", FileServer::start(folder.path(), [])),
        (
            "50 ms, 5 % errors, stalls",
            FileServer::start(folder.path(), if quick { vec![] } else { script().collect() }),
        ),
    ] {
        let location = Location::parse(server.url("").trim_end_matches('/')).unwrap();
        let cached = tempfile::tempdir().unwrap();
        let cache = Cache::open(cached.path(), 1 << 30).unwrap();
        let uncached = Dataset::open_folder(&location, "train").unwrap();
        let dataset = uncached.clone().with_cache(cache);
        for (kind, dataset) in [("no cache", &uncached), ("cold", &dataset), ("warm", &dataset)] {
            let requests = server.requests().len();
            let epochs = if kind == "warm" { 10 } else { 1 };
            let options = LoadOptions::new(64).seed(1).num_epochs(epochs).num_threads(4);
            let mut loader = dataset.load(options).unwrap();
            let (begin, cpu, mut rows) = (Instant::now(), common::cpu_seconds(), 0);
            while let Some(batch) = loader.next_batch().unwrap() {
                rows += batch.rows as u64;
            }
            assert_eq!(rows, epochs * per_shard * SHARDS);
            let rate = rows as f64 / begin.elapsed().as_secs_f64();
            writeln!(
                out,
                "{name}, {kind}: {rate:.0} rows/s, {:.1} ms of CPU per 1,000, {} requests",
                1e6 * (common::cpu_seconds() - cpu) / rows as f64,
                server.requests().len() - requests
            )
            .unwrap();
            if kind == "warm" {
                warm.push(rate);
            }
        }
    }
    writeln!(out, "warm: {:.2} of the rate without latency", warm[1] / warm[0]).unwrap();
}
