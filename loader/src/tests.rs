//! The whole stream, from files to batches, against a plain slow reference.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use crate::permutation::Permutation;
use crate::testing::{TestData, numbers};
use crate::{Dataset, Error, LoadOptions, Loader, Order, PooledBatch, State};

/// What a host is given, by the text of ORDER.md and nothing else: records hold their own indices.
#[derive(Debug, Clone, Copy)]
struct Reference {
    records: u64,
    seed: u64,
    order: Order,
    batch: u64,
    host: u64,
    hosts: u64,
    drop_remainder: bool,
    epochs: u64,
}

impl Reference {
    /// From a position: the batches, each with the position after it.
    fn batches(&self, mut position: u64) -> Vec<(Vec<u64>, u64)> {
        let mut batches = Vec::new();
        while position < self.records * self.epochs {
            let epoch = position / self.records;
            let mut global = Vec::new();
            while (global.len() as u64) < self.batch * self.hosts && position / self.records == epoch {
                let offset = position % self.records;
                global.push(match self.order {
                    Order::Source => offset,
                    _ => Permutation::new(self.seed, epoch, self.records).apply(offset),
                });
                position += 1;
            }
            let full = global.len() as u64 == self.batch * self.hosts;
            if full || !self.drop_remainder {
                let own = (0..self.hosts)
                    .scan(0, |start, host| {
                        let share = global.len() as u64 / self.hosts;
                        let size = share + u64::from(host < global.len() as u64 % self.hosts);
                        *start += size;
                        Some((*start - size, size))
                    })
                    .nth(self.host as usize)
                    .unwrap();
                let rows = global[own.0 as usize..(own.0 + own.1) as usize].to_vec();
                batches.push((rows, position));
            }
        }
        batches
    }

    fn options(&self) -> LoadOptions {
        LoadOptions::new(self.batch)
            .seed(self.seed)
            .order(self.order)
            .shard(self.host, self.hosts)
            .drop_remainder(self.drop_remainder)
            .num_epochs(self.epochs)
    }
}

fn plain(records: u64, batch: u64) -> Reference {
    Reference {
        records,
        seed: 3,
        order: Order::Prep,
        batch,
        host: 0,
        hosts: 1,
        drop_remainder: false,
        epochs: 1,
    }
}

fn rows(loader: &mut Loader) -> Vec<Vec<u64>> {
    let mut batches = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        assert_eq!(numbers(&batch), batch.global_indices());
        batches.push(numbers(&batch));
    }
    batches
}

fn expected(reference: &Reference, position: u64) -> Vec<Vec<u64>> {
    reference
        .batches(position)
        .into_iter()
        .map(|batch| batch.0)
        .collect()
}

#[test]
fn batches_can_be_sent_and_shared() {
    fn check<T: Send + Sync + 'static>() {}
    check::<PooledBatch>();
    check::<Dataset>();
    fn check_send<T: Send + 'static>() {}
    check_send::<Loader>();
}

#[test]
fn the_stream_is_the_same_for_any_number_of_threads() {
    let data = TestData::new(&[("train", &[14, 15, 0, 14])], 0);
    let dataset = data.open("train");
    for order in [Order::Prep, Order::Source] {
        let reference = Reference {
            order,
            epochs: 3,
            ..plain(43, 4)
        };
        let wanted = expected(&reference, 0);
        for threads in [0, 1, 2, 8] {
            for prefetch in [1, 3, 100] {
                let options = reference.options().num_threads(threads).prefetch(prefetch);
                let mut loader = dataset.load(options).unwrap();
                assert_eq!(loader.num_batches(), Some(wanted.len() as u64));
                assert_eq!(rows(&mut loader), wanted);
                assert!(loader.next_batch().unwrap().is_none());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any hosts, threads and sizes give the reference's batches; a state taken after any of them is resumed by others.
    #[test]
    fn equals_the_slow_reference_and_resumes_anywhere(
        shards in proptest::collection::vec(0u64..30, 1..5), seed: u64, batch in 1u64..20, hosts in 1u64..5, threads in 0usize..4,
        prefetch in 1usize..6, drop_remainder: bool, shuffled: bool, cut: u8, later_batch in 1u64..20, later_hosts in 1u64..5,
    ) {
        let data = TestData::new(&[("train", &shards)], 0);
        let dataset = data.open("train");
        let order = if shuffled { Order::Prep } else { Order::Source };
        let base = Reference {
            records: shards.iter().sum(), seed, order, batch, host: 0, hosts, drop_remainder, epochs: 2,
        };
        let mut states = Vec::new();
        let mut position = 0;
        for host in 0..hosts {
            let reference = Reference { host, ..base };
            let wanted = reference.batches(0);
            let mut loader = dataset.load(reference.options().num_threads(threads).prefetch(prefetch)).unwrap();
            prop_assert_eq!(loader.num_batches(), Some(wanted.len() as u64));
            let stop = if wanted.is_empty() { 0 } else { cut as usize % (wanted.len() + 1) };
            position = 0;
            for (rows, after) in &wanted[..stop] {
                let batch = loader.next_batch().unwrap().unwrap();
                prop_assert_eq!(&numbers(&batch), rows);
                position = *after;
            }
            prop_assert_eq!(loader.state().sample_position, position);
            states.push(State::from_json(&loader.state().to_json()).unwrap());
            if stop == wanted.len() {
                prop_assert!(loader.next_batch().unwrap().is_none());
                prop_assert_eq!(loader.state().sample_position, position);
            }
        }
        prop_assert!(states.iter().all(|state| *state == states[0]));
        for host in 0..later_hosts {
            let reference = Reference { batch: later_batch, hosts: later_hosts, host, ..base };
            let options = LoadOptions { seed: None, order: None, ..reference.options().num_threads(threads) };
            let mut loader = dataset.load(options.restore(states[0].clone())).unwrap();
            // Right after a restore the state is the one restored.
            prop_assert_eq!(&loader.state(), &states[0]);
            prop_assert_eq!(rows(&mut loader), expected(&reference, position));
        }
    }
}

#[test]
fn states_at_each_kind_of_place_resume_exactly() {
    let data = TestData::new(&[("train", &[23])], 0);
    let dataset = data.open("train");
    for drop_remainder in [false, true] {
        let reference = Reference {
            epochs: 3,
            drop_remainder,
            ..plain(23, 5)
        };
        let whole = expected(&reference, 0);
        // Before the first batch, in the middle, at the exact end of an epoch, in epochs two and three, at the end of all.
        for taken in 0..=whole.len() {
            let mut loader = dataset
                .load(reference.options().num_threads(2).prefetch(9))
                .unwrap();
            for _ in 0..taken {
                loader.next_batch().unwrap().unwrap();
            }
            let state = loader.state();
            let mut again = dataset.load(reference.options().restore(state)).unwrap();
            assert_eq!(again.num_batches(), Some((whole.len() - taken) as u64));
            assert_eq!(rows(&mut again), whole[taken..]);
        }
    }
}

#[test]
fn restoring_again_and_again_moves_on() {
    let data = TestData::new(&[("train", &[60])], 0);
    let dataset = data.open("train");
    let reference = plain(60, 1);
    let mut state = None;
    let mut seen = Vec::new();
    for advance in [10, 7, 7, 36] {
        let mut options = reference.options().num_threads(1);
        options.restore = state;
        let mut loader = dataset.load(options).unwrap();
        for _ in 0..advance {
            seen.extend(numbers(&loader.next_batch().unwrap().unwrap()));
        }
        state = Some(loader.state());
        assert_eq!(loader.state().sample_position, seen.len() as u64);
    }
    assert_eq!(seen, expected(&reference, 0).concat());
}

#[test]
fn epochs_after_a_restore_are_whole() {
    let data = TestData::new(&[("train", &[90])], 0);
    let dataset = data.open("train");
    let state = State {
        sample_position: 74,
        ..dataset.plan(&LoadOptions::new(2)).unwrap().state()
    };
    let mut loader = dataset
        .load(LoadOptions::new(2).num_epochs(3).restore(state))
        .unwrap();
    let mut sizes = [0; 3];
    while let Some(batch) = loader.next_batch().unwrap() {
        sizes[batch.epoch() as usize] += batch.rows;
    }
    assert_eq!(sizes, [16, 90, 90]);
}

#[test]
fn hosts_of_few_shards_and_records_all_end_together() {
    let data = TestData::new(&[("train", &[64])], 0);
    for (hosts, batch) in [(4u64, 4u64), (7, 3), (64, 1), (100, 1)] {
        let mut all = Vec::new();
        let mut counts = Vec::new();
        for host in 0..hosts {
            let options = LoadOptions::new(batch)
                .num_epochs(1)
                .shard(host, hosts)
                .num_threads(2);
            let mut loader = data.open("train").load(options).unwrap();
            let steps = loader.steps_per_epoch();
            let own = rows(&mut loader);
            assert_eq!(own.len() as u64, steps);
            counts.push(own.len());
            all.extend(own.concat());
        }
        all.sort_unstable();
        assert_eq!(all, (0..64).collect::<Vec<_>>());
        assert!(counts.iter().all(|&count| count == counts[0]));
    }
}

#[test]
fn endless_streams_go_on_and_others_end() {
    let data = TestData::new(&[("train", &[5]), ("none", &[0])], 0);
    let dataset = data.open("train");
    let mut loader = dataset.load(LoadOptions::new(4).num_threads(1)).unwrap();
    assert_eq!(loader.num_batches(), None);
    let sizes: Vec<usize> = (0..6)
        .map(|_| loader.next_batch().unwrap().unwrap().rows)
        .collect();
    assert_eq!(sizes, [4, 1, 4, 1, 4, 1]);
    assert_eq!(loader.state().epoch(), 3);
    let none = data.open("none");
    assert!(matches!(none.load(LoadOptions::new(4)), Err(Error::Options(_))));
    let mut loader = none.load(LoadOptions::new(4).num_epochs(2)).unwrap();
    assert_eq!(loader.num_batches(), Some(0));
    assert!(loader.next_batch().unwrap().is_none());
    assert_eq!(loader.state().sample_position, 0);
}

#[test]
fn a_damaged_record_is_an_error_at_its_place_and_can_be_tried_again() {
    for threads in [0, 1, 3] {
        let data = TestData::new(&[("train", &[20, 20])], 0);
        let path = data.shard("train", 1, 2);
        let good = std::fs::read(&path).unwrap();
        // The text of record 5 of the second shard.
        let mut bad = good.clone();
        let needle = crate::testing::text_of(25);
        let at = bad
            .windows(needle.len())
            .position(|bytes| bytes == needle.as_bytes())
            .unwrap();
        bad[at] ^= 0x40;
        std::fs::write(&path, &bad).unwrap();
        let dataset = data.open("train");
        let options = LoadOptions::new(4)
            .order(Order::Source)
            .num_epochs(1)
            .num_threads(threads)
            .prefetch(20);
        let mut loader = dataset.load(options.clone()).unwrap();
        for step in 0..6 {
            assert_eq!(numbers(&loader.next_batch().unwrap().unwrap())[0], 4 * step);
        }
        for _ in 0..2 {
            let error = loader.next_batch().unwrap_err();
            let Error::Record {
                path,
                record,
                global_index,
                ..
            } = &error
            else {
                panic!("{error}")
            };
            assert!(path.ends_with("t-train.array_record-00001-of-00002"), "{path}");
            assert_eq!((*record, *global_index), (5, 25));
            assert_eq!(loader.state().sample_position, 24);
        }
        // The iterator ends after the error.
        let mut iterated = dataset.load(options).unwrap();
        assert_eq!(iterated.by_ref().filter(Result::is_ok).count(), 6);
        assert!(iterated.next().is_none());
        // Mended in place: mapped files show it, and the stream goes on with the same batch.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, &good[at..=at], at as u64).unwrap();
        assert_eq!(rows(&mut loader).concat(), (24..40).collect::<Vec<_>>());
    }
}

#[test]
fn a_panic_of_a_thread_is_an_error_at_its_place() {
    let data = TestData::new(&[("train", &[40])], 0);
    for threads in [0, 1, 4] {
        let mut loader = data
            .open("train")
            .load(plain(40, 4).options().num_threads(threads).prefetch(8))
            .unwrap();
        loader.panic_at(12);
        for _ in 0..3 {
            loader.next_batch().unwrap().unwrap();
        }
        let error = loader.next_batch().unwrap_err();
        assert!(matches!(error, Error::Panic { position: 12, .. }), "{error}");
        assert!(error.to_string().contains("asked for by a test"), "{error}");
        assert_eq!(loader.state().sample_position, 12);
    }
}

#[test]
fn dropping_in_mid_epoch_stops_the_threads() {
    let data = TestData::new(&[("train", &[500])], 0);
    let dataset = data.open("train");
    for taken in [0, 1, 7] {
        for _ in 0..20 {
            let mut loader = dataset
                .load(LoadOptions::new(3).num_threads(4).prefetch(4))
                .unwrap();
            for _ in 0..taken {
                loader.next_batch().unwrap().unwrap();
            }
            let threads = loader.shared_by();
            drop(loader);
            // Threads hold what they share: all of them have ended.
            assert!(threads.is_none_or(|shared| shared.strong_count() == 0));
        }
    }
}

#[test]
fn a_stopped_loader_goes_on() {
    let data = TestData::new(&[("train", &[30])], 0);
    let reference = plain(30, 4);
    let mut loader = data
        .open("train")
        .load(reference.options().num_threads(2))
        .unwrap();
    let mut seen = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        seen.push(numbers(&batch));
        loader.stop();
    }
    assert_eq!(seen, expected(&reference, 0));
}

#[test]
fn buffers_go_back_to_the_pool_and_outlive_the_loader() {
    let data = TestData::new(&[("train", &[100])], 0);
    let mut loader = data
        .open("train")
        .load(LoadOptions::new(10).num_threads(0))
        .unwrap();
    let pool = loader.pool();
    let first = loader.next_batch().unwrap().unwrap();
    let wanted = numbers(&first);
    let address = first.columns.as_ptr();
    assert_eq!(pool.len(), 0);
    drop(first);
    assert_eq!(pool.len(), 1);
    // The same buffers, with other rows.
    let second = loader.next_batch().unwrap().unwrap();
    assert_eq!(second.columns.as_ptr(), address);
    assert_ne!(numbers(&second), wanted);
    let held = numbers(&second);
    drop(loader);
    assert_eq!(numbers(&second), held);
    let batch = second.into_batch();
    assert_eq!(numbers(&batch), held);
    assert_eq!(pool.len(), 0);
}

#[test]
fn what_is_made_ahead_is_bounded_in_batches_and_bytes() {
    let data = TestData::new(&[("train", &[400])], 0);
    let dataset = data.open("train");
    for (prefetch, bytes, most) in [(5, u64::MAX, 5), (100, 0, 1), (1, u64::MAX, 1)] {
        let options = LoadOptions::new(4)
            .num_epochs(1)
            .num_threads(3)
            .prefetch(prefetch)
            .prefetch_bytes(bytes);
        let mut loader = dataset.load(options).unwrap();
        let mut seen = 0;
        let mut held = Vec::new();
        while let Some(batch) = loader.next_batch().unwrap() {
            seen += batch.rows;
            held.push(batch);
            assert!(
                loader.made_ahead() <= most,
                "{} batches, limit {most}",
                loader.made_ahead()
            );
        }
        assert_eq!(seen, 400);
    }
}

#[test]
fn waiting_ends_with_a_batch_or_with_time() {
    let data = TestData::new(&[("train", &[8])], 0);
    let mut loader = data
        .open("train")
        .load(LoadOptions::new(4).num_epochs(1).num_threads(1))
        .unwrap();
    let mut batches = 0;
    loop {
        while !loader.wait(Duration::from_millis(50)).unwrap() {}
        match loader.next_batch().unwrap() {
            Some(_) => batches += 1,
            None => break,
        }
    }
    assert_eq!(batches, 2);
}

#[test]
fn states_of_other_streams_are_refused() {
    let data = TestData::new(&[("train", &[50]), ("test", &[50])], 0);
    let other = TestData::new(&[("train", &[50])], 1);
    let dataset = data.open("train");
    let options = || LoadOptions::new(4);
    let state = dataset
        .load(options().seed(9).order(Order::Source))
        .unwrap()
        .state();
    let refused = |dataset: &Dataset, options: LoadOptions| {
        let error = dataset.load(options.restore(state.clone())).unwrap_err();
        assert!(matches!(error, Error::Conflict(_)), "{error}");
        error.to_string()
    };
    assert!(refused(&other.open("train"), options()).contains("its dataset is"));
    assert!(
        refused(&data.open("test"), options()).contains("`train, 50 records`, here it is `test, 50 records`")
    );
    assert!(refused(&data.open("train[:10]"), options()).contains("train[0:10]"));
    assert!(refused(&dataset, options().seed(8)).contains("its seed is `9`, here it is `8`"));
    assert!(
        refused(&dataset, options().order(Order::Prep)).contains("its order is `source`, here it is `prep`")
    );
    // Left out, or the same said otherwise: taken from the state.
    let loader = data
        .open("train[:100%]")
        .load(options().restore(state.clone()))
        .unwrap();
    assert_eq!(loader.state(), state);
    assert_eq!(loader.plan().seed(), 9);
}

#[test]
fn splits_and_sub_splits_give_their_records() {
    let data = TestData::with_options(
        &[("train", &[14, 15, 14]), ("test", &[8])],
        0,
        "group_size:4,zstd:3",
    );
    let source = |split: &str| {
        let options = LoadOptions::new(7)
            .order(Order::Source)
            .num_epochs(1)
            .num_threads(1);
        let mut loader = data.open(split).load(options).unwrap();
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        while let Some(batch) = loader.next_batch().unwrap() {
            values.extend(numbers(&batch));
            indices.extend_from_slice(batch.global_indices());
        }
        (values, indices)
    };
    let range = |range: std::ops::Range<u64>| range.collect::<Vec<_>>();
    assert_eq!(source("train[10:31]"), (range(10..31), range(10..31)));
    assert_eq!(source("train[-1shard]"), (range(29..43), range(29..43)));
    // The second split's global indices follow on the whole first one.
    assert_eq!(
        source("train[:2]+test[6:]"),
        (vec![0, 1, 6, 7], vec![0, 1, 49, 50])
    );
    assert_eq!(source("test[6:]+train[:2]"), (vec![6, 7, 0, 1], vec![6, 7, 8, 9]));
    assert_eq!(source("train[:2]+train[:2]").0, [0, 1, 0, 1]);
}

#[test]
fn random_access_reads_rows_and_records() {
    let data = TestData::new(&[("train", &[3, 0, 4])], 100);
    let dataset = data.open("train[1:]");
    assert_eq!((dataset.len(), dataset.is_empty()), (6, false));
    assert_eq!(numbers(&dataset.get(0).unwrap()), [101]);
    assert_eq!(numbers(&dataset.get_many(&[5, 0, 5]).unwrap()), [106, 101, 106]);
    assert_eq!(dataset.get_many(&[]).unwrap().rows, 0);
    assert_eq!(dataset.global_index(0).unwrap(), 1);
    let record = dataset.record(2).unwrap();
    let mut visited = Vec::new();
    dataset
        .visit_records(&[2], |index, bytes| {
            visited.push((index, bytes.to_vec()));
            Ok(())
        })
        .unwrap();
    assert_eq!(visited, [(2, record)]);
    let error = dataset.get(6).unwrap_err();
    assert_eq!(
        error.to_string(),
        "index 6 is out of range: the split has 6 records"
    );
    assert_eq!(dataset.element_spec().len(), 2);
}

#[test]
fn columns_can_be_selected() {
    let data = TestData::new(&[("train", &[5])], 0);
    let options = LoadOptions::new(5).num_epochs(1).order(Order::Source);
    let mut loader = data
        .open("train")
        .load(options.clone().columns(["number"]))
        .unwrap();
    assert_eq!(loader.element_spec().len(), 1);
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!((batch.columns.len(), batch.rows), (1, 5));
    for wrong in [vec!["label"], vec![]] {
        let error = data
            .open("train")
            .load(options.clone().columns(wrong))
            .unwrap_err();
        assert!(error.is_usage(), "{error}");
    }
}

#[test]
fn changed_files_are_noticed() {
    let load = |dataset: &Dataset| {
        let mut loader = dataset.load(LoadOptions::new(4).num_epochs(1)).unwrap();
        loader.next_batch().unwrap_err().to_string()
    };
    // A shard of another length.
    let data = TestData::new(&[("train", &[10])], 0);
    let dataset = data.open("train");
    let path = data.shard("train", 0, 1);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let text = load(&dataset);
    assert!(
        text.contains("the manifest says") && text.contains("prep verify t:1.0.0"),
        "{text}"
    );
    // A shard that is gone.
    std::fs::remove_file(&path).unwrap();
    assert!(load(&dataset).contains("t-train.array_record-00000-of-00001"));
    // Another build in the same place.
    let data = TestData::new(&[("train", &[10])], 0);
    let dataset = data.open("train");
    data.write(&[("train", &[10])], 5, "uncompressed");
    let text = load(&dataset);
    assert!(text.contains("another build"), "{text}");
    // The same build, written again: nothing has changed.
    let data = TestData::new(&[("train", &[10])], 0);
    let dataset = data.open("train");
    data.write(&[("train", &[10])], 0, "uncompressed");
    dataset.get(3).unwrap();
}

#[test]
fn few_shards_stay_open() {
    let lengths = [3; 40];
    let data = TestData::new(&[("train", &lengths)], 0);
    let dataset = data.open("train").with_max_open_shards(4);
    let reference = Reference {
        epochs: 2,
        ..plain(120, 7)
    };
    let mut loader = dataset.load(reference.options().num_threads(3)).unwrap();
    assert_eq!(rows(&mut loader), expected(&reference, 0));
    assert!(
        dataset.num_open_shards() <= 4 + 3,
        "{}",
        dataset.num_open_shards()
    );
}

#[test]
fn options_are_checked_when_the_stream_is_opened() {
    let data = TestData::new(&[("train", &[10])], 0);
    let dataset = data.open("train");
    for options in [
        LoadOptions::new(0),
        LoadOptions::new(1).shard(1, 1),
        LoadOptions::new(1).shard(0, 0),
        LoadOptions::new(11).drop_remainder(true),
        LoadOptions::new(1).num_threads(1 << 20),
        LoadOptions::new(1).order(Order::Grain).seed(1 << 32),
    ] {
        let error = dataset.load(options).unwrap_err();
        assert!(error.is_usage(), "{error}");
    }
    assert!(matches!(
        Dataset::open_folder(&data.location(), "nope"),
        Err(Error::Split { .. })
    ));
    let huge = dataset
        .load(LoadOptions::new(u64::MAX >> 1).num_epochs(1).num_threads(1))
        .unwrap()
        .next_batch()
        .unwrap()
        .unwrap();
    assert_eq!(huge.rows, 10);
}

#[test]
fn grain_order_is_streamed() {
    let data = TestData::new(&[("train", &[100])], 0);
    let options = LoadOptions::new(100).order(Order::Grain).seed(42).num_epochs(1);
    let mut loader = data.open("train").load(options).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    let shuffle = crate::grain_shuffle::GrainShuffle::new(100, 42, 0).unwrap();
    let wanted: Vec<u64> = (0..100).map(|offset| shuffle.apply(offset)).collect();
    assert_eq!(numbers(&batch), wanted);
}

#[test]
fn a_loader_can_be_read_from_another_thread() {
    let data = TestData::new(&[("train", &[50])], 0);
    let reference = plain(50, 4);
    let dataset = Arc::new(data.open("train"));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let dataset = Arc::clone(&dataset);
            std::thread::spawn(move || {
                rows(&mut dataset.load(plain(50, 4).options().num_threads(2)).unwrap())
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected(&reference, 0));
    }
}
