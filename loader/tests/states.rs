//! States saved at the places that loaders get wrong, for pipelines of each kind.

use prep_loader::element::{Array, Element};
use prep_loader::transform::{function, random_function};
use prep_loader::{
    BatchOptions, IterDataset, MapDataset, Mixture, PackOptions, Packing, Pipeline, PipelineOptions,
    PipelineState, Stacking,
};

type Opened = Box<dyn Fn(Option<PipelineState>) -> Pipeline>;

/// Records of an epoch.
const EPOCH: u64 = 30;

fn value(element: &Element) -> i64 {
    element.array("value").unwrap().item().unwrap()
}

/// Two epochs of shuffled numbers, each changed at random.
fn numbers() -> MapDataset {
    let jitter = random_function("jitter", |mut element, generator| {
        let moved = value(&element) + 100 * generator.below(50) as i64;
        element.set("value", Array::scalar(moved));
        Ok(element)
    });
    let shuffled = MapDataset::range(EPOCH).unwrap().shuffle(3).unwrap();
    shuffled.random_map(jitter, 5).unwrap()
}

fn streamed(dataset: MapDataset) -> IterDataset {
    dataset.repeat(2).unwrap().to_iter_over(4).unwrap()
}

/// Pipelines of each kind; all have two epochs of [`EPOCH`] numbers.
fn pipelines() -> Vec<(&'static str, Opened)> {
    fn random(name: &'static str, dataset: MapDataset) -> (&'static str, Opened) {
        (name, Box::new(move |state| dataset.load(options(state)).unwrap()))
    }
    fn streams(name: &'static str, dataset: IterDataset) -> (&'static str, Opened) {
        (name, Box::new(move |state| dataset.load(options(state)).unwrap()))
    }
    let batch = |size| BatchOptions::new(size).stacking(Stacking::Ragged);
    let tokens = function("tokens", |mut element: Element| {
        let tokens = vec![value(&element); (value(&element) % 5) as usize];
        element.set("tokens", Array::of(&tokens)?);
        Ok(element)
    });
    let mut spec = numbers().element_spec().clone();
    spec.set("tokens", prep_formats::value::DType::Int64, [None]);
    let packed = streamed(numbers().map(tokens.spec(spec)).unwrap());
    let packing = PackOptions::new(Packing::FirstFit { bins: 2 }, [("tokens", 8)]).meta_features(["value"]);
    let odd = |element: &Element| Ok(value(element) % 2 == 1);
    let both = IterDataset::mix(
        [streamed(numbers()), streamed(numbers())],
        Mixture::new([2.0, 1.0]),
    );
    vec![
        random("elements", numbers().repeat(2).unwrap()),
        random("batches", numbers().batch(batch(7)).unwrap().repeat(2).unwrap()),
        random(
            "batches across epochs",
            numbers().repeat(2).unwrap().batch(batch(7)).unwrap(),
        ),
        random(
            "window",
            numbers().window_shuffle(8, 1).unwrap().repeat(2).unwrap(),
        ),
        streams(
            "filter",
            streamed(numbers()).filter("odd", odd).batch(batch(3)).unwrap(),
        ),
        streams(
            "window on streams",
            streamed(numbers()).window_shuffle(24, 1).unwrap(),
        ),
        streams("packed", packed.pack(packing).unwrap().batch(batch(2)).unwrap()),
        streams("mixed", both.unwrap().batch(batch(4)).unwrap()),
    ]
}

fn options(state: Option<PipelineState>) -> PipelineOptions {
    PipelineOptions::new().num_threads(2).restore(state)
}

/// A state as another process reads it.
fn saved(pipeline: &Pipeline) -> PipelineState {
    PipelineState::from_json(&pipeline.state().to_json()).unwrap()
}

fn rest(pipeline: &mut Pipeline) -> Vec<Element> {
    pipeline.map(Result::unwrap).collect()
}

/// Takes some steps, saves, and compares what a restored pipeline gives with what is left of the undisturbed one.
fn saved_after(name: &str, open: &Opened, steps: usize) -> PipelineState {
    let whole = rest(&mut open(None));
    let mut pipeline = open(None);
    for _ in 0..steps {
        pipeline.next_element().unwrap().unwrap();
    }
    let state = saved(&pipeline);
    assert_eq!(
        rest(&mut open(Some(state.clone()))),
        whole[steps..],
        "{name} after {steps}"
    );
    // Saving changes nothing.
    assert_eq!(rest(&mut pipeline), whole[steps..], "{name} after {steps}");
    state
}

#[test]
fn saved_before_the_first_sample() {
    for (name, open) in pipelines() {
        let state = saved_after(name, &open, 0);
        assert_eq!(state.position, 0, "{name}");
        // Also where threads have made something ahead already.
        let mut waiting = open(None);
        waiting.wait(prep_testing::process::FOREVER).unwrap();
        assert_eq!(saved(&waiting), state, "{name}");
    }
}

#[test]
fn saved_inside_a_window() {
    for (name, open) in pipelines() {
        // At each place: windows, open rows and batches of streams begin and end at all of them.
        for steps in 1..rest(&mut open(None)).len() {
            saved_after(name, &open, steps);
        }
    }
}

#[test]
fn saved_right_after_a_restore() {
    for (name, open) in pipelines() {
        for steps in [1, 5] {
            let state = saved_after(name, &open, steps);
            let restored = open(Some(state.clone()));
            assert_eq!(saved(&restored), state, "{name}");
            // Twice more, and with threads that have begun to work.
            let mut again = open(Some(saved(&open(Some(saved(&restored))))));
            again.wait(prep_testing::process::FOREVER).unwrap();
            assert_eq!(saved(&again), state, "{name}");
            assert_eq!(rest(&mut again), rest(&mut open(Some(state))), "{name}");
        }
    }
}

#[test]
fn saved_at_the_exact_end_of_an_epoch() {
    for (name, open) in pipelines() {
        let whole = rest(&mut open(None));
        // The end of the last one: nothing is left, before and after it was told.
        let state = saved_after(name, &open, whole.len());
        assert!(rest(&mut open(Some(state))).is_empty(), "{name}");
        let mut ended = open(None);
        ended.by_ref().for_each(drop);
        assert!(rest(&mut open(Some(saved(&ended)))).is_empty(), "{name}");
        assert!(ended.next_element().unwrap().is_none(), "{name}");
    }
    // The end of the first: the next batch is the first of the second, in its order.
    let batches = numbers().batch(BatchOptions::new(7)).unwrap().repeat(2).unwrap();
    let open: Opened = Box::new(move |state| batches.load(options(state)).unwrap());
    let state = saved_after("batches", &open, 5);
    assert_eq!(state.position, EPOCH);
    let second = rest(&mut open(Some(state)));
    assert_eq!(second.len(), 5);
    assert_ne!(second, rest(&mut open(None))[..5]);
}

#[test]
fn saved_in_epoch_two() {
    for (name, open) in pipelines() {
        let steps = rest(&mut open(None)).len();
        for steps in [steps / 2 + 1, 3 * steps / 4, steps - 1] {
            let state = saved_after(name, &open, steps);
            assert!(state.position > 0, "{name}");
        }
    }
    let elements = numbers().repeat(2).unwrap();
    let open: Opened = Box::new(move |state| elements.load(options(state)).unwrap());
    assert_eq!(saved_after("elements", &open, 40).position, EPOCH + 10);
}

/// Streams that give an element for each position are gone past by arithmetic: as far, and to the same state, as by reading.
#[test]
fn steps_of_streams_are_gone_past_as_if_they_were_read() {
    let doubled = || {
        let doubled = function("double", |mut element: Element| {
            element.set("value", Array::scalar(2 * value(&element)));
            Ok(element)
        });
        numbers()
            .to_iter_over(4)
            .unwrap()
            .map(doubled)
            .unwrap()
            .map_with_index("index")
    };
    let batch = |size| BatchOptions::new(size).stacking(Stacking::Ragged);
    let inner = doubled()
        .batch(batch(4))
        .unwrap()
        .unbatch()
        .batch(batch(3))
        .unwrap();
    let endless = numbers().repeat(None).unwrap().to_iter_over(4).unwrap();
    for (name, dataset, is_counted) in [
        ("elements", doubled(), true),
        ("batches", doubled().batch(batch(3)).unwrap(), true),
        (
            "full batches",
            doubled().batch(batch(4).drop_remainder(true)).unwrap(),
            true,
        ),
        (
            "batches of streams",
            doubled().batch(batch(4)).unwrap().map_with_index("batch"),
            true,
        ),
        ("endless", endless.batch(batch(3)).unwrap(), true),
        ("read", inner, false),
    ] {
        for hosts in [1, 2, 3] {
            for host in 0..hosts {
                let open = || {
                    dataset
                        .load(PipelineOptions::new().num_threads(1).shard(host, hosts))
                        .unwrap()
                };
                let whole: Vec<Element> = open().take(20).map(Result::unwrap).collect();
                for steps in 0..=whole.len() + 1 {
                    let at = format!("{name}: {steps} steps of host {host} of {hosts}");
                    let mut read = open();
                    for _ in 0..steps {
                        read.next_element().unwrap();
                    }
                    let mut skipped = open();
                    skipped.skip_steps(steps as u64).unwrap();
                    assert_eq!(skipped.position(), read.position(), "{at}");
                    assert_eq!(skipped.num_threads() == 0, is_counted || steps == 0, "{at}");
                    let state = saved(&skipped);
                    let next = |pipeline: &mut Pipeline| -> Vec<Element> {
                        pipeline
                            .take(20usize.saturating_sub(steps))
                            .map(Result::unwrap)
                            .collect()
                    };
                    let wanted = next(&mut read);
                    assert_eq!(next(&mut skipped), wanted, "{at}");
                    // From its state too, and twice.
                    let options = PipelineOptions::new().shard(host, hosts).restore([state]);
                    let mut again = dataset.load(options).unwrap();
                    again.skip_steps(0).unwrap();
                    assert_eq!(next(&mut again), wanted, "{at}");
                }
            }
        }
    }
    // Far, and from one host's state on another number of hosts.
    let far = numbers().repeat(None).unwrap().to_iter().batch(batch(2)).unwrap();
    let mut pipeline = far.load(PipelineOptions::new().shard(1, 2)).unwrap();
    pipeline.skip_steps(1_000_000_000).unwrap();
    assert_eq!(pipeline.position(), 4_000_000_000);
    let mut one = far
        .load(PipelineOptions::new().restore([saved(&pipeline)]))
        .unwrap();
    let first = one.next_element().unwrap().unwrap();
    let wanted: Vec<Element> = (4_000_000_000..4_000_000_002)
        .map(|position| numbers().get(position).unwrap().unwrap())
        .collect();
    let found: Vec<i64> = first.array("value").unwrap().to_vec().unwrap();
    assert_eq!(found, wanted.iter().map(value).collect::<Vec<_>>());
}

/// Streams whose places are in the data only need the states of all hosts on another number of them.
#[test]
fn a_state_that_lacks_streams_says_what_is_missing() {
    let odd = |element: &Element| Ok(value(element) % 2 == 1);
    let endless = numbers()
        .repeat(None)
        .unwrap()
        .to_iter_over(4)
        .unwrap()
        .filter("odd", odd);
    let states: Vec<PipelineState> = (0..2)
        .map(|host| {
            let mut pipeline = endless.load(PipelineOptions::new().shard(host, 2)).unwrap();
            for _ in 0..10 {
                pipeline.next_element().unwrap();
            }
            saved(&pipeline)
        })
        .collect();
    let error = endless
        .load(PipelineOptions::new().restore([states[0].clone()]))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("nothing of virtual stream 1")
            && text.contains("all hosts saved")
            && text.contains("1 of which"),
        "{text}"
    );
    endless.load(PipelineOptions::new().restore(states)).unwrap();
}
