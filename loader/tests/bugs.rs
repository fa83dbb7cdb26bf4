//! What loaders of others have shipped broken, kind by kind, and where states are easily wrong. Numbers are those of the reports that the
//! kinds were collected from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prep_formats::value::DType;
use prep_loader::element::{Array, Element, ElementSpec, Value};
use prep_loader::transform::function;
use prep_loader::{
    BatchOptions, Error, IterDataset, MapDataset, Mixture, PackOptions, Packing, Pipeline, PipelineOptions,
    PipelineState, Result, Source, StopRule,
};

fn options() -> PipelineOptions {
    PipelineOptions::new().num_threads(2)
}

/// The values of an element, or of a batch.
fn values(element: &Element) -> Vec<i64> {
    element.array("value").unwrap().to_vec().unwrap()
}

fn all(pipeline: &mut Pipeline) -> Vec<i64> {
    pipeline.flat_map(|element| values(&element.unwrap())).collect()
}

fn some(pipeline: &mut Pipeline, steps: usize) -> Vec<i64> {
    (0..steps)
        .flat_map(|_| values(&pipeline.next_element().unwrap().unwrap()))
        .collect()
}

/// A state as another process reads it.
fn saved(pipeline: &Pipeline) -> PipelineState {
    PipelineState::from_json(&pipeline.state().to_json()).unwrap()
}

fn batched(dataset: MapDataset, size: u64) -> MapDataset {
    dataset.batch(BatchOptions::new(size)).unwrap()
}

fn multiples_of_3(dataset: IterDataset) -> IterDataset {
    dataset.filter("multiples of 3", |element| Ok(values(element)[0] % 3 == 0))
}

#[test]
fn b36_a_window_shuffle_is_restored_at_each_position() {
    for streams in [1, 4] {
        let dataset = MapDataset::range(23).unwrap().to_iter_over(streams).unwrap();
        let dataset = dataset.window_shuffle(7, 5).unwrap();
        let wanted = all(&mut dataset.load(options()).unwrap());
        assert_ne!(wanted, (0..23).collect::<Vec<i64>>());
        for position in 0..=23 {
            let mut first = dataset.load(options()).unwrap();
            assert_eq!(some(&mut first, position), wanted[..position]);
            let mut rest = dataset.load(options().restore([saved(&first)])).unwrap();
            assert_eq!(all(&mut rest), wanted[position..], "at {position}");
        }
    }
}

#[test]
fn b37_states_of_restored_streams_go_on() {
    let plain = MapDataset::range(40).unwrap().shuffle(1).unwrap();
    let streamed = plain.clone().to_iter().window_shuffle(20, 2).unwrap();
    let open = |state: Option<PipelineState>, streaming: bool| {
        let options = options().restore(state);
        if streaming {
            streamed.load(options)
        } else {
            plain.load(options)
        }
        .unwrap()
    };
    for streaming in [false, true] {
        let wanted = all(&mut open(None, streaming));
        let mut pipeline = open(None, streaming);
        let mut found = some(&mut pipeline, 10);
        for position in [10, 17, 24, 31] {
            let state = saved(&pipeline);
            assert_eq!(state.position, position);
            // Right after a restore the state is the same.
            pipeline = open(Some(state.clone()), streaming);
            assert_eq!(pipeline.state(), state);
            found.extend(some(&mut pipeline, 7));
        }
        assert_eq!(found, wanted[..38]);
    }
}

#[test]
fn b38_epochs_after_a_restored_one_are_whole() {
    let dataset = batched(MapDataset::range(90).unwrap().shuffle(3).unwrap(), 20)
        .repeat(3)
        .unwrap();
    let rows = batched(MapDataset::range(90).unwrap().shuffle(3).unwrap(), 1)
        .repeat(3)
        .unwrap();
    let mut first = rows.load(options()).unwrap();
    some(&mut first, 74);
    let mut rest = dataset.load(options().restore([saved(&first)])).unwrap();
    let sizes: Vec<usize> = rest.by_ref().map(|batch| values(&batch.unwrap()).len()).collect();
    assert_eq!(sizes, [16, 20, 20, 20, 20, 10, 20, 20, 20, 20, 10]);
}

#[test]
fn b39_a_state_at_the_end_of_an_epoch_is_the_start_of_the_next() {
    let epochs = |number: u64| {
        batched(MapDataset::range(10).unwrap().shuffle(4).unwrap(), 4)
            .repeat(number)
            .unwrap()
    };
    let wanted = all(&mut epochs(3).load(options()).unwrap());
    assert_ne!(wanted[..10], wanted[10..20]);
    let mut one = epochs(1).load(options()).unwrap();
    some(&mut one, 3);
    let before = saved(&one);
    assert!(one.next_element().unwrap().is_none());
    let after = saved(&one);
    assert_eq!(before, after);
    // The end of the first epoch, and then of the second.
    let mut two = epochs(2).load(options().restore([after])).unwrap();
    assert_eq!(all(&mut two), wanted[10..20]);
    let mut third = epochs(3).load(options().restore([saved(&two)])).unwrap();
    assert_eq!(all(&mut third), wanted[20..]);
}

#[test]
fn b40_any_number_of_hosts_goes_on_from_any_other() {
    let dataset = MapDataset::range(50)
        .unwrap()
        .shuffle(8)
        .unwrap()
        .repeat(None)
        .unwrap()
        .to_iter();
    let dataset = multiples_of_3(dataset);
    let hosts = |count: u64, size: u64, states: &[PipelineState]| -> Vec<Pipeline> {
        let open = |host| {
            let options = options().shard(host, count).restore(states.to_vec());
            dataset
                .clone()
                .batch(BatchOptions::new(size))
                .unwrap()
                .load(options)
                .unwrap()
        };
        (0..count).map(open).collect()
    };
    let steps = |hosts: &mut [Pipeline], steps: usize| -> Vec<i64> {
        let count = hosts.len();
        let mut global = Vec::new();
        for _ in 0..steps {
            let position = hosts[0].position() as usize;
            let parts: Vec<Vec<i64>> = hosts.iter_mut().map(|host| some(host, 1)).collect();
            let total: usize = parts.iter().map(Vec::len).sum();
            let mut parts: Vec<_> = parts.into_iter().map(Vec::into_iter).collect();
            global.extend((position..position + total).map(|at| parts[at % count].next().unwrap()));
        }
        global
    };
    let wanted = steps(&mut hosts(1, 24, &[]), 20);
    let mut four = hosts(4, 6, &[]);
    assert_eq!(steps(&mut four, 9), wanted[..9 * 24]);
    let states: Vec<PipelineState> = four.iter().map(saved).collect();
    for (count, size) in [(2, 12), (3, 8), (8, 3), (1, 24), (5, 5), (4, 6)] {
        let found = steps(&mut hosts(count, size, &states), 8);
        assert_eq!(found, wanted[9 * 24..][..found.len()], "{count} hosts");
    }
    // The same host needs its own state only; another number needs all, and says so.
    let own = options().shard(2, 4).restore([states[2].clone()]);
    dataset
        .clone()
        .batch(BatchOptions::new(6))
        .unwrap()
        .load(own)
        .unwrap();
    let other = options().shard(0, 2).restore([states[0].clone()]);
    let error = dataset
        .clone()
        .batch(BatchOptions::new(12))
        .unwrap()
        .load(other)
        .unwrap_err();
    assert!(
        error.to_string().contains("states that all hosts saved"),
        "{error}"
    );
    let mixed = options().restore([states[0].clone(), hosts(1, 24, &[])[0].state()]);
    let error = dataset.load(mixed).unwrap_err().to_string();
    assert!(error.contains("216") && error.contains("same step"), "{error}");
}

#[test]
fn b41_b42_shards_and_workers_do_not_starve_hosts() {
    for records in [64, 6] {
        let dataset = batched(MapDataset::range(records).unwrap().shuffle(1).unwrap(), 4);
        let mut seen = Vec::new();
        let mut steps = Vec::new();
        for host in 0..4 {
            let mut pipeline = dataset
                .load(PipelineOptions::new().num_threads(8).shard(host, 4))
                .unwrap();
            let batches: Vec<Vec<i64>> = pipeline.by_ref().map(|batch| values(&batch.unwrap())).collect();
            steps.push(batches.len() as u64);
            seen.extend(batches.concat());
        }
        assert_eq!(steps, [records.div_ceil(16); 4]);
        seen.sort_unstable();
        assert_eq!(seen, (0..records as i64).collect::<Vec<_>>());
    }
}

#[test]
fn b43_hosts_take_equal_steps_and_the_length_is_right() {
    for records in [0, 1, 99, 100, 103] {
        for hosts in 1..=4 {
            for threads in 0..=4 {
                for drop_remainder in [false, true] {
                    for streaming in [false, true] {
                        let dataset = MapDataset::range(records).unwrap();
                        let batch = BatchOptions::new(4).drop_remainder(drop_remainder);
                        let options = |host| PipelineOptions::new().num_threads(threads).shard(host, hosts);
                        let open = |host| match streaming {
                            true => dataset
                                .clone()
                                .to_iter()
                                .batch(batch.clone())
                                .unwrap()
                                .load(options(host)),
                            false => dataset.clone().batch(batch.clone()).unwrap().load(options(host)),
                        };
                        let mut partial = 0;
                        for host in 0..hosts {
                            let mut pipeline = open(host).unwrap();
                            let length = pipeline.remaining_steps();
                            let sizes: Vec<usize> = pipeline
                                .by_ref()
                                .map(|batch| values(&batch.unwrap()).len())
                                .collect();
                            let full = records / (4 * hosts);
                            let wanted = full + u64::from(!drop_remainder && records % (4 * hosts) > 0);
                            assert_eq!(sizes.len() as u64, wanted);
                            assert!(length.is_none_or(|length| length == wanted));
                            assert!(sizes[..full as usize].iter().all(|&size| size == 4));
                            partial += sizes.get(full as usize).map_or(0, |&size| size as u64);
                        }
                        assert!(drop_remainder || partial == records % (4 * hosts));
                    }
                }
            }
        }
    }
}

#[test]
fn b44_there_is_no_shuffle_without_a_seed() {
    // Hosts that say the same have the same order; nothing is drawn from the clock.
    let dataset = batched(MapDataset::range(100).unwrap().shuffle(0).unwrap(), 5);
    let mut union: Vec<i64> = (0..4)
        .flat_map(|host| all(&mut dataset.load(options().shard(host, 4)).unwrap()))
        .collect();
    union.sort_unstable();
    assert_eq!(union, (0..100).collect::<Vec<i64>>());
}

#[test]
fn b45_as_many_are_taken_as_were_asked_for() {
    let dataset = batched(
        MapDataset::range(10)
            .unwrap()
            .shuffle(2)
            .unwrap()
            .take(7)
            .unwrap(),
        2,
    );
    let mut taken: Vec<i64> = (0..2)
        .flat_map(|host| all(&mut dataset.load(options().shard(host, 2)).unwrap()))
        .collect();
    assert_eq!(taken.len(), 7);
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 7);
}

#[test]
fn b49_extreme_weights_stay_inside_the_sources() {
    let sources = || {
        let numbers = MapDataset::range(160).unwrap();
        [numbers.clone().take(80).unwrap(), numbers.skip(80).unwrap()]
    };
    let weights = || Mixture::new([0.9995, 0.0005]);
    let endless = sources().map(|source| source.repeat(None).unwrap());
    let mixed = MapDataset::mix(endless, weights()).unwrap();
    let drawn: Vec<i64> = (0..6_000)
        .map(|at| values(&mixed.get(at).unwrap().unwrap())[0])
        .collect();
    let rare = drawn.iter().filter(|&&value| value >= 80).count();
    assert!((2..=4).contains(&rare), "{rare} of 6000, wanted 3 to within 1");
    // Ends with the first that is exhausted; nothing comes twice.
    let mixed = MapDataset::mix(sources(), weights()).unwrap();
    let mut drawn = all(&mut mixed.load(options()).unwrap());
    assert_eq!(drawn.len() as u64, mixed.len().unwrap());
    drawn.sort_unstable();
    assert!(drawn.len() <= 82 && drawn.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn b50_empty_sources_add_nothing() {
    let part = |start: u64, length: u64| {
        MapDataset::range(10)
            .unwrap()
            .skip(start)
            .unwrap()
            .take(length)
            .unwrap()
    };
    let sources = [part(0, 0), part(1, 3), part(5, 2)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for stop in [StopRule::FirstExhausted, StopRule::AllExhausted] {
            let mixture = Mixture::new([1.0, 1.0, 1.0]).stop(stop);
            let chosen = || order.map(|at: usize| sources[at].clone());
            let without = order
                .into_iter()
                .filter(|&at| at > 0)
                .map(|at| sources[at].clone());
            let two = MapDataset::mix(without, Mixture::new([1.0, 1.0]).stop(stop)).unwrap();
            let mixed = MapDataset::mix(chosen(), mixture.clone()).unwrap();
            let found = all(&mut mixed.load(options()).unwrap());
            assert_eq!(found, all(&mut two.load(options()).unwrap()));
            // Both sources as a whole, or neither twice.
            let count = |value: i64| found.iter().filter(|&&other| other == value).count();
            match stop {
                StopRule::AllExhausted => assert!(
                    [1, 2, 3, 5, 6].iter().all(|&value| count(value) >= 1),
                    "{found:?}"
                ),
                _ => assert!(
                    found.iter().all(|&value| count(value) == 1) && found.len() >= 4,
                    "{found:?}"
                ),
            }
            // Streams that turn out to be empty.
            let streams = chosen().map(|source| source.to_iter_over(1).unwrap());
            let mixed = IterDataset::mix(streams, mixture).unwrap();
            let found = all(&mut mixed.load(options()).unwrap());
            assert!(found.len() >= 4, "{found:?}");
        }
    }
    let nothing = MapDataset::mix([part(0, 0), part(0, 0)], Mixture::new([1.0, 2.0])).unwrap();
    assert!(all(&mut nothing.load(options()).unwrap()).is_empty());
}

/// Token lists of some lengths; token `100 * i + j` is token `j` of list `i`.
struct Lists(&'static [usize]);

impl Source for Lists {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn spec(&self) -> ElementSpec {
        let mut spec = ElementSpec::new();
        spec.set("tokens", DType::Int32, [None]);
        spec
    }

    fn identity(&self) -> String {
        format!("lists {:?}", self.0)
    }

    fn get(&self, index: u64) -> Result<Element> {
        let tokens: Vec<i32> = (0..self.0[index as usize])
            .map(|at| 100 * (index as i32 + 1) + at as i32)
            .collect();
        Ok(Element::from_iter([("tokens", Array::of(&tokens)?)]))
    }
}

#[test]
fn b51_packing_keeps_all_tokens_whatever_is_in_the_rows() {
    const LENGTHS: [usize; 5] = [5, 9, 3, 8, 2];
    let tokens = |row: &Element| row.array("tokens").unwrap().to_vec::<i32>().unwrap();
    for packing in [
        Packing::FirstFit { bins: 1 },
        Packing::FirstFit { bins: 2 },
        Packing::BestFit { bins: 3 },
        Packing::ConcatThenSplit,
    ] {
        for prefix in 0..=5 {
            let lists = MapDataset::custom(Lists(&LENGTHS)).unwrap().take(prefix).unwrap();
            let packed = |drop| {
                let options = PackOptions::new(packing, [("tokens", 10)]).drop_remainder(drop);
                lists.clone().to_iter_over(1).unwrap().pack(options).unwrap()
            };
            let rows: Vec<Element> = packed(false)
                .load(options())
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let mut found: Vec<i32> = rows.iter().flat_map(tokens).filter(|&token| token > 0).collect();
            found.sort_unstable();
            let lengths = LENGTHS.iter().take(prefix as usize).enumerate();
            let wanted: Vec<i32> = lengths
                .flat_map(|(list, &length)| (0..length).map(move |at| 100 * (list as i32 + 1) + at as i32))
                .collect();
            assert_eq!(found, wanted, "{packing:?} of {prefix}");
            // What is left at the end may be left out, and only that.
            let fewer = packed(true).load(options()).unwrap().count();
            assert!(fewer <= rows.len());
            for position in 0..=rows.len() {
                let mut first = packed(false).load(options()).unwrap();
                (0..position).for_each(|_| drop(first.next_element().unwrap()));
                let rest = packed(false).load(options().restore([saved(&first)])).unwrap();
                assert_eq!(rest.map(Result::unwrap).collect::<Vec<_>>(), rows[position..]);
            }
        }
    }
    // By hand: 5 and 3 share a row, 9 has one; 8 and 2 share one.
    let lists = MapDataset::custom(Lists(&LENGTHS))
        .unwrap()
        .to_iter_over(1)
        .unwrap();
    let packed = lists
        .pack(PackOptions::new(Packing::FirstFit { bins: 2 }, [("tokens", 10)]))
        .unwrap();
    let rows: Vec<Element> = packed.load(options()).unwrap().map(Result::unwrap).collect();
    let ids: Vec<Vec<i32>> = rows
        .iter()
        .map(|row| row.array("tokens_segment_ids").unwrap().to_vec().unwrap())
        .collect();
    assert_eq!(ids[0], [1, 1, 1, 1, 1, 2, 2, 2, 0, 0]);
    assert_eq!(ids[1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(ids[2], [1, 1, 1, 1, 1, 1, 1, 1, 2, 2]);
    let positions: Vec<i32> = rows[0].array("tokens_positions").unwrap().to_vec().unwrap();
    assert_eq!(positions, [0, 1, 2, 3, 4, 0, 1, 2, 0, 0]);
}

#[test]
fn b51_what_cannot_be_packed_is_named() {
    let lists = || {
        MapDataset::custom(Lists(&[3, 11]))
            .unwrap()
            .to_iter_over(1)
            .unwrap()
    };
    let packed = lists()
        .pack(PackOptions::new(Packing::FirstFit { bins: 2 }, [("tokens", 10)]))
        .unwrap();
    let error = packed.load(options()).unwrap().find_map(Result::err).unwrap();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("11 steps and rows have 10"), "{cause}");
    for (packing, name, length) in [
        (Packing::FirstFit { bins: 0 }, "tokens", 10),
        (Packing::ConcatThenSplit, "tokens", 0),
        (Packing::ConcatThenSplit, "text", 10),
    ] {
        lists()
            .pack(PackOptions::new(packing, [(name, length)]))
            .unwrap_err();
    }
}

#[test]
fn b52_a_filtered_stream_is_restored_exactly() {
    for streams in [1, 2, 48] {
        let dataset = multiples_of_3(MapDataset::range(100).unwrap().to_iter_over(streams).unwrap());
        let wanted = all(&mut dataset.load(options()).unwrap());
        let mut sorted = wanted.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..34).map(|value| 3 * value).collect::<Vec<i64>>());
        for position in [0, 11, 33, 34] {
            let mut first = dataset.load(options()).unwrap();
            some(&mut first, position);
            let mut rest = dataset.load(options().restore([saved(&first)])).unwrap();
            assert_eq!(all(&mut rest), wanted[position..]);
        }
    }
}

#[test]
fn weights_change_after_a_checkpoint() {
    let sources = || {
        let numbers = MapDataset::range(2_000).unwrap();
        [numbers.clone().take(1_000).unwrap(), numbers.skip(1_000).unwrap()]
    };
    let before = MapDataset::mix(sources(), Mixture::new([1.0, 1.0])).unwrap();
    let mut first = before.load(options()).unwrap();
    let mut found = some(&mut first, 100);
    let state = saved(&first);
    let changed = |at| MapDataset::mix(sources(), Mixture::new([1.0, 1.0]).change(at, [9.0, 1.0])).unwrap();
    let mut second = changed(state.position)
        .load(options().restore([state.clone()]))
        .unwrap();
    found.extend(some(&mut second, 500));
    // Nothing is left out and nothing comes twice on either side.
    let side = |second: bool| -> Vec<i64> {
        found
            .iter()
            .copied()
            .filter(|&value| (value >= 1_000) == second)
            .collect()
    };
    assert_eq!(side(false), (0..500).collect::<Vec<i64>>());
    assert_eq!(side(true), (1_000..1_100).collect::<Vec<i64>>());
    // It cannot be changed for what has been delivered.
    let error = changed(99).load(options().restore([state.clone()])).unwrap_err();
    assert!(matches!(error, Error::Conflict(_)), "{error}");
    // Under a filter and packing too: positions of the mixture are counted by what was read.
    let streamed = |dataset: MapDataset| {
        let kept = |element: &Element| Ok(values(element)[0] % 7 != 3);
        dataset.to_iter().filter("most", kept)
    };
    let mut first = streamed(before).load(options()).unwrap();
    some(&mut first, 100);
    let state = saved(&first);
    streamed(changed(1_000))
        .load(options().restore([state.clone()]))
        .unwrap();
    assert!(streamed(changed(10)).load(options().restore([state])).is_err());
}

#[test]
fn a_state_of_another_pipeline_is_refused_by_its_stage() {
    let dataset = |seed, by: i64| {
        let shuffled = MapDataset::range(20).unwrap().shuffle(seed).unwrap();
        let scaled = function("scale", Ok).parameters(format!("by={by}"));
        batched(shuffled.map(scaled).unwrap(), 4)
    };
    let state = saved(&dataset(1, 2).load(options()).unwrap());
    let refused = |dataset: MapDataset| {
        dataset
            .load(options().restore([state.clone()]))
            .unwrap_err()
            .to_string()
    };
    let text = refused(dataset(2, 2));
    assert!(
        text.contains("`shuffle order=prep seed=1`, here it is `shuffle order=prep seed=2`"),
        "{text}"
    );
    let text = refused(dataset(1, 3));
    assert!(
        text.contains("`map scale by=2`, here it is `map scale by=3`"),
        "{text}"
    );
    let text = refused(batched(MapDataset::range(21).unwrap(), 4));
    assert!(
        text.contains("records=20") && text.contains("records=21"),
        "{text}"
    );
    // What does not change the stream does not matter.
    let other = dataset(1, 2);
    other
        .load(options().num_threads(0).prefetch(9).restore([state.clone()]))
        .unwrap();
}

#[test]
fn a_million_steps_are_gone_past_at_once() {
    let dataset = batched(
        MapDataset::range(1_000_000_000)
            .unwrap()
            .shuffle(5)
            .unwrap()
            .repeat(None)
            .unwrap(),
        256,
    );
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or(0) * 4096
    };
    let before = resident();
    let mut pipeline = dataset.load(options()).unwrap();
    pipeline.skip_steps(1_000_000).unwrap();
    assert_eq!(pipeline.position(), 256_000_000);
    let batch = values(&pipeline.next_element().unwrap().unwrap());
    let rows = dataset.get(1_000_000).unwrap().unwrap();
    assert_eq!(batch, values(&rows));
    // In the second epoch, and in the billionth.
    for steps in [4_000_000, 1 << 50] {
        pipeline.skip_steps(steps).unwrap();
        let state = saved(&pipeline);
        let next = values(&pipeline.next_element().unwrap().unwrap());
        let mut restored = dataset.load(options().restore([state])).unwrap();
        assert_eq!(values(&restored.next_element().unwrap().unwrap()), next);
    }
    // Streams of it are opened where they stood: a window is read again, and no more.
    let streamed = MapDataset::range(1_000_000_000)
        .unwrap()
        .shuffle(5)
        .unwrap()
        .to_iter()
        .window_shuffle(4_800, 1)
        .unwrap();
    let mut pipeline = streamed.load(options()).unwrap();
    some(&mut pipeline, 1_000);
    let mut restored = streamed.load(options().restore([saved(&pipeline)])).unwrap();
    assert_eq!(some(&mut restored, 100), some(&mut pipeline, 100));
    assert!(pipeline.state().to_json().len() < 4_096);
    assert!(
        resident().saturating_sub(before) < 100 << 20,
        "{} more bytes",
        resident() - before
    );
}

#[test]
fn errors_come_at_their_element_and_can_be_tried_again() {
    let failures = Arc::new(AtomicU64::new(2));
    let dataset = {
        let failures = Arc::clone(&failures);
        let fails = move |element: Element| {
            if values(&element)[0] == 13 && failures.load(Ordering::Relaxed) > 0 {
                failures.fetch_sub(1, Ordering::Relaxed);
                return Err(Error::User("a bad day".into()));
            }
            Ok(element)
        };
        MapDataset::range(40)
            .unwrap()
            .map(function("fails", fails))
            .unwrap()
    };
    for streaming in [false, true] {
        for threads in [0, 3] {
            failures.store(2, Ordering::Relaxed);
            let options = PipelineOptions::new().num_threads(threads);
            let mut pipeline = match streaming {
                true => dataset.clone().to_iter_over(1).unwrap().load(options).unwrap(),
                false => dataset.load(options).unwrap(),
            };
            let mut found = some(&mut pipeline, 13);
            let mut tries = 0;
            while let Err(error) = pipeline
                .next_element()
                .map(|element| found.extend(element.map(|element| values(&element)).unwrap()))
            {
                assert!(
                    error
                        .to_string()
                        .contains("stage `fails` failed at sample position 13"),
                    "{error}"
                );
                assert_eq!(pipeline.position(), 13);
                tries += 1;
            }
            found.extend(all(&mut pipeline));
            assert!(tries >= 1);
            assert_eq!(found, (0..40).collect::<Vec<i64>>());
        }
    }
}

#[test]
fn panics_of_the_callers_functions_are_errors() {
    let dataset = || MapDataset::range(40).unwrap();
    let panics = |element: &Element| -> bool {
        assert_ne!(values(element)[0], 7, "seven is unlucky");
        true
    };
    let mapped = dataset().map(function("unlucky", move |element| {
        panics(&element);
        Ok(element)
    }));
    let filtered = dataset()
        .to_iter()
        .filter("unlucky", move |element| Ok(panics(element)));
    let expanded = dataset().to_iter().flat_map("unlucky", None, move |element| {
        panics(&element);
        Ok(vec![element])
    });
    for mut pipeline in [
        mapped.unwrap().load(options()).unwrap(),
        filtered.load(options()).unwrap(),
        expanded.load(options()).unwrap(),
    ] {
        let error = pipeline.find_map(Result::err).unwrap();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(
            error.to_string().contains("`unlucky`") && cause.contains("seven is unlucky"),
            "{error}: {cause}"
        );
        assert!(pipeline.next().is_none());
    }
}

#[test]
fn dropping_stops_threads_that_look_for_what_never_comes() {
    let nothing = MapDataset::range(10)
        .unwrap()
        .repeat(None)
        .unwrap()
        .to_iter()
        .filter("none", |_| Ok(false));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut pipeline = nothing.load(options()).unwrap();
        // The threads are at work, and nothing comes.
        assert!(!pipeline.wait(std::time::Duration::from_millis(20)).unwrap());
        drop(pipeline);
        sender.send(()).unwrap();
    });
    receiver
        .recv_timeout(std::time::Duration::from_secs(60))
        .expect("its threads have stopped");
}

#[test]
fn what_does_not_go_together_is_refused_when_it_is_made() {
    let numbers = || MapDataset::range(10).unwrap();
    let sparse = numbers().filter("even", |element| Ok(values(element)[0] % 2 == 0));
    assert_eq!(sparse.get(1).unwrap(), None);
    assert_eq!(sparse.len(), Some(10));
    assert!(sparse.clone().batch(BatchOptions::new(2)).is_err());
    assert_eq!(all(&mut sparse.load(options()).unwrap()).len(), 5);
    assert!(numbers().shuffle(1).unwrap().cache(100).is_err());
    assert!(numbers().repeat(None).unwrap().shuffle(1).is_err());
    assert!(numbers().repeat(0).is_err());
    assert!(numbers().repeat(1 << 62).is_err());
    assert!(numbers().slice(0, 5, 0).is_err());
    assert!(numbers().batch(BatchOptions::new(0)).is_err());
    assert!(numbers().to_iter_over(0).is_err());
    assert!(MapDataset::zip([numbers(), numbers()]).is_err());
    assert!(MapDataset::zip([]).is_err());
    assert!(MapDataset::concatenate([numbers(), batched(numbers(), 2)]).is_err());
    let random = prep_loader::transform::random_function("r", |element, _| Ok(element));
    assert!(numbers().map(random).is_err());
    assert!(numbers().load(options().shard(2, 2)).is_err());
    assert!(numbers().get(1 << 63).is_err());
    assert!(numbers().take(0).unwrap().get(0).is_err());
    let mut renamed = numbers().map_with_index("index");
    renamed = MapDataset::zip([
        renamed,
        numbers()
            .map(
                function("rename", |mut element| {
                    let value = element.remove("value").unwrap_or(Value::Missing);
                    element.set("other", value);
                    Ok(element)
                })
                .spec({
                    let mut spec = ElementSpec::new();
                    spec.set("other", DType::Int64, []);
                    spec
                }),
            )
            .unwrap(),
    ])
    .unwrap();
    let element = renamed.get(13).unwrap().unwrap();
    assert_eq!(element.array("index").unwrap().item::<i64>(), Some(3));
    assert_eq!(
        renamed.element_spec().to_string(),
        "value: int64[], index: int64[], other: int64[]"
    );
}
