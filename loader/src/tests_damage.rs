//! Streams over stores that spoil, stall and fail, and over damaged shards.

use prep_formats::store::{Cache, Location};
use prep_testing::server::{Fault, FileServer};

use crate::damage::OnDamage;
use crate::dataset::Dataset;
use crate::error::Error;
use crate::loader::Loader;
use crate::options::LoadOptions;
use crate::order::Order;
use crate::testing::{TestData, numbers, text_of};

const SPLITS: &[(&str, &[u64])] = &[("train", &[20, 0, 25, 15])];

fn served(server: &FileServer) -> prep_formats::Result<Location> {
    Location::parse(server.url("").trim_end_matches('/'))
}

fn is_of_shard(request: &prep_testing::server::Request) -> bool {
    request.path.contains("array_record")
}

/// The numbers of all batches, until the end or an error.
fn stream(loader: &mut Loader) -> (Vec<u64>, Option<Error>) {
    let mut all = Vec::new();
    loop {
        match loader.next_batch() {
            Ok(Some(batch)) => {
                assert_eq!(numbers(&batch), batch.global_indices());
                all.extend(numbers(&batch));
            }
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}

fn options() -> LoadOptions {
    LoadOptions::new(8).seed(5).num_epochs(2).num_threads(0)
}

fn spoil(data: &TestData, shard: usize, number: u64) {
    let path = data.shard("train", shard, 4);
    let mut bytes = std::fs::read(&path).unwrap();
    let needle = text_of(number);
    let at = bytes
        .windows(needle.len())
        .position(|window| window == needle.as_bytes())
        .unwrap();
    bytes[at] ^= 0x40;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn what_was_spoiled_on_the_way_is_asked_for_again() {
    let data = TestData::new(SPLITS, 0);
    let wanted = stream(&mut data.open("train").load(options()).unwrap()).0;
    for is_cached in [false, true] {
        let mut at = 0;
        loop {
            let script = (0..=at).map(|number| match number == at {
                true => Fault::Garble(0),
                false => Fault::None,
            });
            let server = FileServer::start(data.path(), script);
            let folder = tempfile::tempdir().unwrap();
            let opened = Dataset::open_folder(&served(&server).unwrap(), "train");
            let requests = server.requests().len();
            if requests > at {
                // The manifest or the features: nothing of the stream.
                at += 1;
                continue;
            }
            let mut dataset = opened.unwrap();
            if is_cached {
                dataset = dataset.with_cache(Cache::open(folder.path(), 4 << 20).unwrap());
            }
            let (found, error) = stream(&mut dataset.load(options()).unwrap());
            assert!(error.is_none(), "request {at}: {error:?}");
            assert_eq!(found, wanted, "request {at}");
            if server.faults_left() > 0 {
                // There are no more requests than that.
                break;
            }
            assert!(is_of_shard(&server.requests()[at]));
            at += 1;
        }
        assert!(at > 5, "{at}");
    }
}

#[test]
fn a_store_that_fails_and_stalls_gives_the_same_stream_and_a_warm_cache_needs_none() {
    let data = TestData::new(SPLITS, 0);
    let wanted = stream(&mut data.open("train").load(options()).unwrap()).0;
    let script = (0..40).map(|number| match number % 5 {
        1 => Fault::Slow(50),
        2 => Fault::Status(503),
        3 => Fault::CutAfter(10),
        4 => Fault::Close,
        _ => Fault::None,
    });
    let server = FileServer::start(data.path(), script);
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), 4 << 20).unwrap();
    let dataset = Dataset::open_folder(&served(&server).unwrap(), "train").unwrap();
    let dataset = dataset.with_cache(cache);
    let (found, error) = stream(&mut dataset.load(options().num_threads(2)).unwrap());
    assert!(error.is_none(), "{error:?}");
    assert_eq!(found, wanted);
    let before = server
        .requests()
        .iter()
        .filter(|request| is_of_shard(request))
        .count();
    assert!(before >= 3);

    // Another process: opened anew, another seed.
    let again = Dataset::open_folder(&served(&server).unwrap(), "train").unwrap();
    let again = again.with_cache(Cache::open(folder.path(), 4 << 20).unwrap());
    let mut loader = again.load(options().seed(6)).unwrap();
    let mut found = stream(&mut loader).0;
    found.sort_unstable();
    let all: Vec<u64> = (0..60).flat_map(|number| [number, number]).collect();
    assert_eq!(found, all);
    let metrics = loader.metrics();
    let cache = metrics.cache.unwrap();
    assert_eq!(cache.fetched_bytes, 0);
    assert!(cache.cached_bytes > 0);
    let after = server
        .requests()
        .iter()
        .filter(|request| is_of_shard(request))
        .count();
    assert_eq!(after, before);
}

#[test]
fn a_shard_replaced_in_the_store_is_an_error_and_not_a_mixture() {
    let data = TestData::new(&[("train", &[40])], 0);
    let server = FileServer::start(data.path(), []);
    let dataset = Dataset::open_folder(&served(&server).unwrap(), "train").unwrap();
    assert_eq!(numbers(&dataset.get(0).unwrap()), [0]);
    data.write(&[("train", &[40])], 1_000_000, "uncompressed");
    let error = dataset.get(39).unwrap_err();
    assert!(
        error.with_causes().contains("replaced"),
        "{}",
        error.with_causes()
    );
}

#[test]
fn damaged_records_are_left_out_where_that_is_asked_for() {
    for is_remote in [false, true] {
        let data = TestData::new(SPLITS, 0);
        let wanted = stream(&mut data.open("train").load(options()).unwrap()).0;
        spoil(&data, 0, 13);
        spoil(&data, 3, 59);
        let server = FileServer::start(data.path(), []);
        let open = || match is_remote {
            true => Dataset::open_folder(&served(&server).unwrap(), "train").unwrap(),
            false => data.open("train"),
        };
        let failed = stream(&mut open().load(options()).unwrap()).1.unwrap();
        assert!(
            matches!(
                failed,
                Error::Record {
                    global_index: 13 | 59,
                    ..
                }
            ),
            "{failed}"
        );

        for threads in [0, 3] {
            let skip = options()
                .on_damage(OnDamage::Skip { limit: Some(4) })
                .num_threads(threads);
            let mut loader = open().load(skip).unwrap();
            let mut found = Vec::new();
            let mut damaged = Vec::new();
            while let Some(batch) = loader.next_batch().unwrap() {
                assert_eq!(numbers(&batch), batch.global_indices());
                assert_eq!(
                    batch.rows + batch.damaged().len(),
                    batch.step().rows.clone().count()
                );
                found.extend(numbers(&batch));
                damaged.extend(batch.damaged().iter().map(|record| {
                    assert!(
                        record.reason.contains("t-train.array_record-0000"),
                        "{}",
                        record.reason
                    );
                    record.global_index
                }));
            }
            let rest: Vec<u64> = wanted
                .iter()
                .copied()
                .filter(|number| ![13, 59].contains(number))
                .collect();
            assert_eq!(found, rest);
            damaged.sort_unstable();
            assert_eq!(damaged, [13, 13, 59, 59]);
            let metrics = loader.metrics();
            assert_eq!((metrics.damaged, metrics.rows), (4, 116));
        }
    }
}

#[test]
fn more_damaged_records_than_allowed_are_an_error_before_their_batch() {
    let data = TestData::new(&[("train", &[20, 0, 25, 15])], 0);
    spoil(&data, 0, 3);
    spoil(&data, 2, 30);
    let options = LoadOptions::new(10)
        .order(Order::Source)
        .num_epochs(1)
        .on_damage("skip:1".parse().unwrap());
    let mut loader = data.open("train").load(options).unwrap();
    let (found, error) = stream(&mut loader);
    assert_eq!(found.len(), 29);
    assert!(
        matches!(&error, Some(Error::TooManyDamaged { skipped: 2, limit: 1, last }) if last.contains("record 10")),
        "{error:?}"
    );
    assert_eq!(loader.state().sample_position, 30);
}

#[test]
fn metrics_add_up() {
    let data = TestData::new(SPLITS, 0);
    for threads in [0, 2] {
        let mut loader = data
            .open("train")
            .load(options().num_threads(threads).profile(true))
            .unwrap();
        assert_eq!(loader.metrics().batches, 0);
        stream(&mut loader);
        let metrics = loader.metrics();
        assert_eq!(
            (metrics.batches, metrics.rows, metrics.threads),
            (16, 120, threads)
        );
        assert!(metrics.bytes > 120 * 8);
        assert!(metrics.read.as_nanos() > 0 && metrics.decode.as_nanos() > 0);
        assert!(metrics.consumer_wait <= metrics.elapsed);
        assert!(!metrics.advice(2).is_empty());
        assert_eq!(metrics.cache, None);
    }
}
