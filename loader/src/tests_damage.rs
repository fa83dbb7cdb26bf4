//! Streams over stores that spoil, stall and fail, and over damaged shards.

use prep_formats::store::{Cache, Location};
use prep_testing::server::{Fault, FileServer};

use crate::damage::OnDamage;
use crate::dataset::Dataset;
use crate::error::Error;
use crate::loader::Loader;
use crate::map_dataset::MapDataset;
use crate::options::LoadOptions;
use crate::order::Order;
use crate::pipeline::{Pipeline, PipelineOptions};
use crate::stages::batch::BatchOptions;
use crate::testing::{TestData, numbers, text_of};
use crate::transform::function;

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
    spoil_in(data, shard, 4, number);
}

fn spoil_in(data: &TestData, shard: usize, shards: usize, number: u64) {
    let path = data.shard("train", shard, shards);
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

/// Records that are near each other are asked for together: a batch inside of a window is one request, where records all over a shard are many.
#[test]
fn windows_read_near_records_together() {
    let data = TestData::new(&[("train", &[26_000])], 0);
    let mut numbers_by_order = Vec::new();
    for order in [Order::Prep, Order::Window(64)] {
        let server = FileServer::start(data.path(), []);
        let dataset = Dataset::open_folder(&served(&server).unwrap(), "train").unwrap();
        let options = LoadOptions::new(64).seed(3).order(order).num_epochs(1);
        let mut loader = dataset.load(options.clone().num_threads(0)).unwrap();
        let mut local = data.open("train").load(options.num_threads(2)).unwrap();
        let asked: u64 = (0..8)
            .map(|_| {
                let before = server.requests().len();
                let batch = loader.next_batch().unwrap().unwrap();
                assert_eq!(numbers(&batch), numbers(&local.next_batch().unwrap().unwrap()));
                let bytes =
                    |request: &prep_testing::server::Request| match (request.range_start, request.range_last)
                    {
                        (Some(start), Some(last)) => last - start + 1,
                        _ => 0,
                    };
                server.requests()[before..].iter().map(bytes).sum::<u64>()
            })
            .sum();
        numbers_by_order.push(asked);
        assert_eq!(loader.state().order, order.to_string());
        let again = dataset.load(LoadOptions::new(64).num_threads(0).restore(loader.state()));
        let next = again.unwrap().next_batch().unwrap().unwrap();
        assert_eq!(numbers(&next), numbers(&local.next_batch().unwrap().unwrap()));
    }
    assert!(
        8 * numbers_by_order[1] < numbers_by_order[0],
        "{numbers_by_order:?}"
    );
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

// --- Bug reports -----------------------------------------------------------------------------------------------------------

/// A shard of a little more than 2 MiB.
fn large() -> TestData {
    TestData::new(&[("train", &[26_000])], 0)
}

fn sum(dataset: &Dataset, threads: usize) -> u64 {
    let options = LoadOptions::new(1_000)
        .order(Order::Source)
        .num_epochs(2)
        .num_threads(threads);
    let mut loader = dataset.load(options).unwrap();
    let (found, error) = stream(&mut loader);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(found.len() as u64, 2 * dataset.len());
    found.iter().sum()
}

#[test]
fn b46_a_cache_smaller_than_a_shard_works_or_is_refused_with_its_minimum() {
    let data = large();
    let shard = data.shard("train", 0, 1).metadata().unwrap().len();
    let server = FileServer::start(data.path(), []);
    let wanted = sum(&data.open("train"), 1);
    let folder = tempfile::tempdir().unwrap();
    let error = Cache::open(folder.path(), 512 << 10).unwrap_err();
    let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(text.contains("at least 1048576 (1 MiB)"), "{text}");
    assert!(shard > 3 << 19, "{shard}");
    for limit in [1 << 20, shard] {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), limit).unwrap();
        let dataset = Dataset::open_folder(&served(&server).unwrap(), "train").unwrap();
        assert_eq!(sum(&dataset.with_cache(cache.clone()), 4), wanted);
        assert!(cache.counts().fetched_bytes >= shard);
    }
}

#[test]
fn b47_only_what_was_fetched_is_evicted() {
    let (local, remote) = (large(), large());
    let files = |data: &TestData| -> Vec<_> {
        let entries = std::fs::read_dir(data.path()).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = [files(&local), files(&remote)];
    let server = FileServer::start(remote.path(), []);
    let folder = tempfile::tempdir().unwrap();
    // Less than either.
    let cache = Cache::open(folder.path(), 1 << 20).unwrap();
    let of_cache = |dataset: Dataset| MapDataset::source(dataset.with_cache(cache.clone())).unwrap();
    let both = MapDataset::concatenate([
        of_cache(local.open("train")),
        of_cache(Dataset::open_folder(&served(&server).unwrap(), "train").unwrap()),
    ]);
    let batches = both.unwrap().batch(BatchOptions::new(500)).unwrap();
    let mut pipeline = batches
        .repeat(2)
        .unwrap()
        .load(PipelineOptions::new().num_threads(2))
        .unwrap();
    let rows: usize = pipeline
        .by_ref()
        .map(|batch| batch.unwrap().array("number").unwrap().shape()[0])
        .sum();
    assert_eq!(rows, 4 * 26_000);
    let counts = pipeline.metrics().cache.unwrap();
    assert!(
        counts.evicted_bytes > 0 && counts.fetched_bytes > 1 << 20,
        "{counts:?}"
    );
    assert_eq!([files(&local), files(&remote)], before);
}

#[test]
fn b48_a_shard_spoiled_on_the_way_is_read_again_and_one_that_stays_so_is_named() {
    let data = TestData::new(&[("train", &[20])], 0);
    for times in [1, 1_000] {
        // The manifest and the features come first.
        let spoiled = std::iter::repeat_n(Fault::Garble(0), times);
        let script = [Fault::None, Fault::None].into_iter().chain(spoiled);
        let server = FileServer::start(data.path(), script);
        let dataset = Dataset::open_folder(&served(&server).unwrap(), "train").unwrap();
        assert_eq!(server.requests().len(), 2);
        let before = prep_formats::store::retries();
        let mut loader = dataset
            .load(LoadOptions::new(8).order(Order::Source).num_epochs(1))
            .unwrap();
        match (stream(&mut loader), times) {
            ((found, None), 1) => {
                assert_eq!(found, (0..20).collect::<Vec<_>>());
                assert!(loader.metrics().retries > before);
            }
            ((_, Some(error)), 1_000) => {
                let text = error.with_causes();
                assert!(text.contains("t-train.array_record-00000-of-00001"), "{text}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

const STORE: &str = "PREP_TEST_STORE";

/// Loads for some seconds from S3 at an address; not a test, unless it is started as that.
#[test]
fn the_program_whose_credentials_expire() {
    if std::env::var(STORE).is_err() {
        return;
    }
    let folder = Location::parse("s3://bucket/data").unwrap();
    let begun = std::time::Instant::now();
    let mut epochs = 0;
    let dataset = Dataset::open_folder(&folder, "train").unwrap();
    while begun.elapsed() < std::time::Duration::from_secs(4) {
        // With no shard open, so that all is read again.
        sum(&dataset.clone().with_max_open_shards(2), 2);
        epochs += 2;
    }
    eprintln!("{epochs} epochs");
}

#[test]
fn b53_credentials_are_renewed_before_they_expire_and_where_they_are_refused() {
    use std::time::Duration;

    use prep_testing::server::Credentials;

    let data = TestData::new(SPLITS, 0);
    let bucket = tempfile::tempdir().unwrap();
    let below = bucket.path().join("bucket/data");
    std::fs::create_dir_all(&below).unwrap();
    for entry in std::fs::read_dir(data.path()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, below.join(path.file_name().unwrap())).unwrap();
    }
    let token = bucket.path().join("token");
    std::fs::write(&token, "token").unwrap();
    let second = Duration::from_secs(1);
    // They say when they expire, or are taken back before that.
    for are_taken_back in [false, true] {
        let server = FileServer::start_guarded(
            bucket.path(),
            Credentials {
                lifetime: second,
                are_taken_back,
            },
        );
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "tests_damage::the_program_whose_credentials_expire",
                "--nocapture",
            ])
            .env(STORE, "1")
            .env("AWS_ENDPOINT_URL", server.url("").trim_end_matches('/'))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "here")
            .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url("credentials"))
            .env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.success(), "{said}");
        assert!(said.contains("epochs"), "{said}");
        let keys: std::collections::BTreeSet<_> = server
            .requests()
            .into_iter()
            .filter_map(|request| request.key)
            .collect();
        assert!(keys.len() >= 3, "{keys:?}");
        if are_taken_back {
            assert!(server.num_refused() >= 2, "they were taken back");
        }
    }
}

// --- Pipelines ---------------------------------------------------------------------------------------------------------------

type Opened = Box<dyn Fn(PipelineOptions) -> Pipeline>;

/// Kinds of pipeline over the same records: one that the plain loader serves, one of random access, one on streams.
fn pipelines(dataset: &Dataset) -> [(&'static str, Opened); 4] {
    let source = MapDataset::source(dataset.clone()).unwrap().shuffle(5).unwrap();
    let untouched = source.clone().map(function("untouched", Ok)).unwrap();
    let plain = source.clone().batch(BatchOptions::new(8)).unwrap();
    let random = untouched.clone().batch(BatchOptions::new(8)).unwrap();
    // Batches that are made in the middle, and shuffled.
    let inner = source.batch(BatchOptions::new(8)).unwrap().shuffle(1).unwrap();
    let streamed = untouched.to_iter_over(4).unwrap();
    let streamed = streamed.window_shuffle(12, 3).unwrap();
    let streamed = streamed.batch(BatchOptions::new(8)).unwrap();
    [
        ("plain", Box::new(move |options| plain.load(options).unwrap())),
        ("random", Box::new(move |options| random.load(options).unwrap())),
        ("inner", Box::new(move |options| inner.load(options).unwrap())),
        (
            "streamed",
            Box::new(move |options| streamed.load(options).unwrap()),
        ),
    ]
}

/// The numbers of all elements and those left out on the way, until the end.
fn all_of(pipeline: &mut Pipeline) -> (Vec<i64>, Vec<u64>) {
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    loop {
        let batch = pipeline.next_element().unwrap();
        damaged.extend(pipeline.damaged().iter().map(|record| {
            assert!(record.reason.contains("t-train.array_record-0000"), "{record}");
            record.global_index
        }));
        match batch {
            Some(batch) => found.extend(batch.array("number").unwrap().to_vec::<i64>().unwrap()),
            None => return (found, damaged),
        }
    }
}

#[test]
fn pipelines_leave_damaged_records_out_where_that_is_asked_for() {
    for is_remote in [false, true] {
        let data = TestData::new(SPLITS, 0);
        let whole: Vec<Vec<i64>> = pipelines(&data.open("train"))
            .iter()
            .map(|(_, open)| all_of(&mut open(PipelineOptions::new())).0)
            .collect();
        spoil(&data, 0, 13);
        spoil(&data, 3, 59);
        let server = FileServer::start(data.path(), []);
        let dataset = match is_remote {
            true => Dataset::open_folder(&served(&server).unwrap(), "train").unwrap(),
            false => data.open("train"),
        };
        for ((kind, open), whole) in pipelines(&dataset).iter().zip(&whole) {
            let error = open(PipelineOptions::new()).find_map(Result::err).unwrap();
            assert!(
                matches!(
                    &error,
                    Error::Record {
                        global_index: 13 | 59,
                        ..
                    }
                ),
                "{kind}: {error}"
            );
            let skip = |limit| PipelineOptions::new().on_damage(OnDamage::Skip { limit });
            let (found, mut damaged) = all_of(&mut open(skip(None).num_threads(0)));
            let is_there = |number: &i64| ![13, 59].contains(number);
            match *kind {
                // There they are missing from a stream, as behind a filter.
                "streamed" => assert!(found.iter().all(is_there) && found.len() == 58),
                _ => assert_eq!(found, whole.iter().copied().filter(is_there).collect::<Vec<_>>()),
            }
            damaged.sort_unstable();
            assert_eq!(damaged, [13, 59], "{kind}");

            // The same with threads, on several hosts, and saved and restored at each step: each record is named once.
            for hosts in [1, 2, 3] {
                let mut parts: Vec<(Vec<i64>, Vec<u64>)> = Vec::new();
                for host in 0..hosts {
                    let options = || skip(Some(2)).num_threads(2).shard(host, hosts);
                    let undisturbed = all_of(&mut open(options()));
                    let (mut found, mut damaged) = (Vec::new(), Vec::new());
                    let mut pipeline = open(options());
                    while let Some(batch) = pipeline.next_element().unwrap() {
                        found.extend(batch.array("number").unwrap().to_vec::<i64>().unwrap());
                        damaged.extend(pipeline.damaged().iter().map(|record| record.global_index));
                        pipeline = open(options().restore([pipeline.state()]));
                    }
                    damaged.extend(pipeline.damaged().iter().map(|record| record.global_index));
                    assert_eq!((&found, &damaged), (&undisturbed.0, &undisturbed.1), "{kind}");
                    parts.push(undisturbed);
                }
                let mut all: Vec<i64> = parts.iter().flat_map(|part| part.0.clone()).collect();
                all.sort_unstable();
                assert_eq!(all, (0..60).filter(is_there).collect::<Vec<_>>(), "{kind}");
            }

            // More than allowed: an error before its batch, from which the stream can be gone on with.
            let mut pipeline = open(skip(Some(1)));
            let mut position = 0;
            let error = loop {
                match pipeline.next_element() {
                    Ok(batch) => {
                        assert!(batch.is_some(), "{kind}");
                        position = pipeline.position();
                    }
                    Err(error) => break error,
                }
            };
            assert!(
                matches!(
                    error,
                    Error::TooManyDamaged {
                        skipped: 2,
                        limit: 1,
                        ..
                    }
                ),
                "{kind}: {error}"
            );
            assert_eq!(pipeline.position(), position);
            let rest = open(skip(None).restore([pipeline.state()])).count();
            assert!(rest > 0, "{kind}");
        }
    }
}

/// 50 ms for each answer, one in ten fails, one stalls: nothing of that is seen in a pipeline but time.
#[test]
fn a_store_that_is_slow_fails_and_stalls_shows_in_no_element() {
    let data = TestData::new(SPLITS, 0);
    let script = || {
        (0..400).map(|number| match number {
            30 => Fault::Stall,
            _ if number % 20 == 9 => Fault::Status(503),
            _ if number % 20 == 19 => Fault::Close,
            _ => Fault::Slow(50),
        })
    };
    let wanted = pipelines(&data.open("train"));
    let server = FileServer::start(data.path(), script());
    let folder = tempfile::tempdir().unwrap();
    for is_cached in [false, true] {
        let mut dataset = Dataset::open_folder(&served(&server).unwrap(), "train").unwrap();
        if is_cached {
            dataset = dataset.with_cache(Cache::open(folder.path(), 4 << 20).unwrap());
        }
        for ((kind, open), (_, local)) in pipelines(&dataset).iter().zip(&wanted) {
            let options = || PipelineOptions::new().num_threads(4);
            let mut pipeline = open(options());
            assert_eq!(all_of(&mut pipeline), all_of(&mut local(options())), "{kind}");
            assert_eq!(pipeline.metrics().cache.is_some(), is_cached);
        }
    }
    assert!(server.requests().len() > 40, "{}", server.requests().len());
    // All was read by the first of the cached ones: another process asks for nothing.
    let requests = server.requests().len();
    let warm = Dataset::open_folder(&served(&server).unwrap(), "train").unwrap();
    let warm = warm.with_cache(Cache::open(folder.path(), 4 << 20).unwrap());
    for ((_, open), (_, local)) in pipelines(&warm).iter().zip(&wanted) {
        let mut pipeline = open(PipelineOptions::new());
        assert_eq!(all_of(&mut pipeline), all_of(&mut local(PipelineOptions::new())));
        assert_eq!(pipeline.metrics().cache.unwrap().fetched_bytes, 0);
    }
    assert!(
        server.requests()[requests..]
            .iter()
            .all(|request| !is_of_shard(request))
    );
}

#[test]
fn a_damaged_end_of_a_stream_is_told_at_its_end() {
    let data = TestData::new(&[("train", &[20])], 0);
    spoil_in(&data, 0, 1, 19);
    let source = MapDataset::source(data.open("train")).unwrap();
    let skipping = || PipelineOptions::new().on_damage(OnDamage::Skip { limit: None });
    let untouched = source.clone().map(function("untouched", Ok)).unwrap();
    let streamed = source.to_iter_over(1).unwrap();
    for pipeline in [untouched.load(skipping()), streamed.load(skipping())] {
        let (found, damaged) = all_of(&mut pipeline.unwrap());
        assert_eq!((found.len(), damaged), (19, vec![19]));
    }
}

#[test]
fn metrics_of_pipelines_add_up_stage_by_stage() {
    let data = TestData::new(SPLITS, 0);
    // A cache is shared by all pipelines that are made of it: each has its own here.
    let repeated = || {
        let source = MapDataset::source(data.open("train")).unwrap();
        let slow = function("slow", |element| {
            let began = std::time::Instant::now();
            while began.elapsed() < std::time::Duration::from_micros(200) {
                std::hint::spin_loop();
            }
            Ok(element)
        });
        let shuffled = source.cache(1 << 20).unwrap().shuffle(5).unwrap();
        shuffled.repeat(3).unwrap().map(slow).unwrap()
    };
    let random = || repeated().batch(BatchOptions::new(8)).unwrap();
    let odd =
        |element: &crate::element::Element| Ok(element.array("number")?.item::<i64>().unwrap_or(0) % 2 == 1);
    let streamed = || {
        let filtered = repeated().to_iter_over(4).unwrap().filter("odd", odd);
        filtered.batch(BatchOptions::new(8)).unwrap()
    };
    for threads in [0, 2] {
        let options = || PipelineOptions::new().num_threads(threads);
        for (mut pipeline, is_stream) in [
            (random().load(options()).unwrap(), false),
            (streamed().load(options()).unwrap(), true),
        ] {
            assert_eq!(pipeline.metrics().steps, 0);
            assert_eq!(pipeline.metrics().advice(2), "nothing was loaded");
            let steps = pipeline.by_ref().map(Result::unwrap).count() as u64;
            let metrics = pipeline.metrics();
            let stage = |name: &str| {
                let found = metrics.stages.iter().find(|stage| stage.name.starts_with(name));
                found.unwrap_or_else(|| panic!("{name}: {metrics:?}"))
            };
            assert_eq!((metrics.steps, metrics.damaged), (steps, 0));
            assert!(metrics.bytes > 90 * 8 && metrics.consumer_wait <= metrics.elapsed);
            for name in ["cache", "shuffle", "repeat", "map slow"] {
                assert_eq!(stage(name).elements, 180, "{name}");
            }
            // Threads may ask for the same one at the same time.
            let (cache, source) = (stage("cache"), stage("source"));
            assert_eq!(cache.cache_hits + cache.cache_misses, 180);
            assert_eq!(cache.cache_misses, source.elements);
            assert!((60..=64).contains(&source.elements), "{}", source.elements);
            assert_eq!(stage("batch").elements, steps);
            assert_eq!(metrics.merging.is_some(), is_stream);
            if is_stream {
                assert_eq!(
                    (stage("to_iter").elements, stage("filter odd").elements),
                    (180, 90)
                );
            }
            // What spins limits, and what calls it waits for it.
            assert_eq!(metrics.limit().unwrap().name, "map slow", "{metrics}");
            let slow = stage("map slow");
            assert!(slow.busy.as_micros() >= 180 * 150, "{metrics}");
            let last = if is_stream { "filter odd" } else { "map slow" };
            assert!(stage(last).wait >= stage("repeat").busy, "{metrics}");
            let said = metrics.advice(8);
            match threads {
                0 => assert!(said.contains("`num_threads 1` or more"), "{said}"),
                _ => assert!(said.contains("use `num_threads 8`"), "{said}"),
            }
            assert!(
                metrics
                    .advice(2)
                    .contains(if threads == 0 { "consumer's" } else { "`map slow`" })
            );
            assert!(metrics.to_string().contains("180 elements"), "{metrics}");
        }
    }
    // Batches of a plain loader have its two.
    let plain = MapDataset::source(data.open("train")).unwrap();
    let plain = plain.batch(BatchOptions::new(8)).unwrap();
    let mut pipeline = plain.load(PipelineOptions::new().num_threads(1)).unwrap();
    pipeline.by_ref().for_each(drop);
    let metrics = pipeline.metrics();
    let names: Vec<_> = metrics.stages.iter().map(|stage| &*stage.name).collect();
    assert_eq!((names, metrics.steps), (vec!["read", "decode"], 8));
    assert_eq!(metrics.stages[1].elements, 60);
}
