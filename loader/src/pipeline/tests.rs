//! Pipelines over datasets on disk.

use prep_formats::value::DType;

use super::*;
use crate::element::Array;
use crate::order::Order;
use crate::stages::batch::Stacking;
use crate::stages::pack::{PackOptions, Packing};
use crate::stages::source::Source;
use crate::testing::{TestData, text_of};
use crate::transform::function;

fn numbers(element: &Element) -> Vec<i64> {
    element.array("number").unwrap().to_vec().unwrap()
}

fn batches(dataset: &MapDataset, options: PipelineOptions) -> Vec<Element> {
    dataset.load(options).unwrap().map(Result::unwrap).collect()
}

fn is_plain(dataset: &MapDataset) -> bool {
    matches!(
        dataset.load(PipelineOptions::new()).unwrap().work,
        Running::Plain(_)
    )
}

/// A step that keeps a pipeline from being plain, and changes nothing.
fn untouched(dataset: MapDataset) -> MapDataset {
    dataset.map(function("untouched", Ok)).unwrap()
}

#[test]
fn plain_pipelines_are_served_by_the_loader_and_give_the_same() {
    let data = TestData::new(&[("train", &[20, 0, 23])], 0);
    let source = || MapDataset::source(data.open("train[3:]")).unwrap();
    let batch = |drop| BatchOptions::new(6).drop_remainder(drop);
    let chain = |start: MapDataset, across: bool, order, drop| {
        let shuffled = start.shuffle_as(order, 7).unwrap();
        match across {
            true => shuffled.repeat(3).unwrap().batch(batch(drop)).unwrap(),
            false => shuffled.batch(batch(drop)).unwrap().repeat(3).unwrap(),
        }
    };
    for across in [false, true] {
        for order in [Order::Prep, Order::Grain] {
            for drop in [false, true] {
                let plain = chain(source(), across, order, drop);
                let other = chain(untouched(source()), across, order, drop);
                assert!(is_plain(&plain) && !is_plain(&other));
                assert_eq!(plain.element_spec(), other.element_spec());
                for hosts in [1, 2, 3] {
                    for host in 0..hosts {
                        let options = || PipelineOptions::new().num_threads(2).shard(host, hosts);
                        assert_eq!(batches(&plain, options()), batches(&other, options()));
                        // Stepping past batches, and a state of the middle.
                        let mut skipped = plain.load(options()).unwrap();
                        skipped.skip_steps(5).unwrap();
                        let state = skipped.state();
                        let rest = batches(&plain, options().restore([state.clone()]));
                        assert_eq!(rest, batches(&plain, options())[5..]);
                        assert_eq!(skipped.map(Result::unwrap).collect::<Vec<_>>(), rest);
                    }
                }
            }
        }
    }
    let sourced = source().batch(BatchOptions::new(4)).unwrap();
    assert!(is_plain(&sourced));
    let texts = batches(&sourced, PipelineOptions::new());
    assert_eq!(numbers(&texts[0]), [3, 4, 5, 6]);
    assert_eq!(texts[0].array("text").unwrap().as_strings()[1], text_of(4));
    // What the loader does not do.
    let ragged = BatchOptions::new(4).stacking(Stacking::Ragged);
    assert!(!is_plain(&source().batch(ragged).unwrap()));
    assert!(!is_plain(
        &chain(source(), true, Order::Prep, false).repeat(2).unwrap()
    ));
    let twice = source().shuffle(1).unwrap().shuffle(2).unwrap();
    assert!(!is_plain(&twice.batch(BatchOptions::new(4)).unwrap()));
}

#[test]
fn endless_plain_pipelines_go_across_epochs() {
    let data = TestData::new(&[("train", &[5])], 0);
    let source = MapDataset::source(data.open("train"))
        .unwrap()
        .shuffle(3)
        .unwrap();
    let endless = source
        .clone()
        .repeat(None)
        .unwrap()
        .batch(BatchOptions::new(4))
        .unwrap();
    assert!(is_plain(&endless));
    let mut pipeline = endless.load(PipelineOptions::new()).unwrap();
    let found: Vec<i64> = (0..5)
        .flat_map(|_| numbers(&pipeline.next_element().unwrap().unwrap()))
        .collect();
    let wanted: Vec<i64> = (0..20)
        .map(|position| {
            source
                .get(position)
                .unwrap()
                .unwrap()
                .array("number")
                .unwrap()
                .item()
                .unwrap()
        })
        .collect();
    assert_eq!(found, wanted);
}

#[test]
fn buffers_of_plain_batches_go_back_to_the_pool() {
    let data = TestData::new(&[("train", &[60])], 0);
    let plain = MapDataset::source(data.open("train"))
        .unwrap()
        .batch(BatchOptions::new(4))
        .unwrap();
    let mut pipeline = plain.load(PipelineOptions::new().num_threads(1)).unwrap();
    let batch = pipeline.next_element().unwrap().unwrap();
    let kept = batch.array("number").unwrap().clone();
    drop(batch);
    assert_eq!(kept.to_vec::<i64>().unwrap(), [0, 1, 2, 3]);
    pipeline.by_ref().for_each(drop);
    // Kept arrays keep their buffers to themselves.
    assert_eq!(kept.to_vec::<i64>().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn errors_name_the_record() {
    let data = TestData::new(&[("train", &[10, 10])], 0);
    let fails = function("picky", |element: Element| match numbers(&element)[0] {
        13 => Err(Error::Element("thirteen".into())),
        _ => Ok(element),
    });
    let source = MapDataset::source(data.open("train[5:]")).unwrap();
    let mapped = source.clone().map(fails).unwrap();
    let error = mapped
        .load(PipelineOptions::new())
        .unwrap()
        .find_map(Result::err)
        .unwrap();
    let text = error.to_string();
    assert!(
        text.contains("stage `picky` failed at sample position 8"),
        "{text}"
    );
    assert!(
        text.contains("record 3 of") && text.contains("global index 13"),
        "{text}"
    );
    // A record that cannot be read: after all before it, and none of its chunk is lost.
    let path = data.shard("train", 1, 2);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes
        .windows(8)
        .rposition(|window| window == b"xxxxxx13")
        .unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let source = MapDataset::source(data.open("train")).unwrap();
    for mut pipeline in [
        untouched(source.clone()).load(PipelineOptions::new()).unwrap(),
        source
            .to_iter_over(1)
            .unwrap()
            .load(PipelineOptions::new())
            .unwrap(),
    ] {
        let before: Vec<i64> = std::iter::from_fn(|| pipeline.next_element().ok().flatten())
            .flat_map(|element| numbers(&element))
            .collect();
        assert_eq!(before, (0..13).collect::<Vec<i64>>());
        let error = pipeline.next_element().unwrap_err().to_string();
        assert!(
            error.contains("record 3 of") && error.contains("global index 13"),
            "{error}"
        );
    }
}

#[test]
fn states_of_another_dataset_are_refused() {
    let data = TestData::new(&[("train", &[10]), ("test", &[10])], 0);
    let other = TestData::new(&[("train", &[10]), ("test", &[10])], 1);
    let state = |source: MapDataset| source.load(PipelineOptions::new()).unwrap().state();
    let open = |data: &TestData, split: &str| MapDataset::source(data.open(split)).unwrap();
    let saved = state(open(&data, "train"));
    for wrong in [
        open(&other, "train"),
        open(&data, "test"),
        open(&data, "train[:9]"),
    ] {
        let error = wrong
            .load(PipelineOptions::new().restore([saved.clone()]))
            .unwrap_err();
        assert!(matches!(error, Error::Conflict(_)), "{error}");
        assert!(
            error
                .to_string()
                .contains("its stage is `source t:1.0.0 split=train records=10"),
            "{error}"
        );
    }
    open(&data, "train[:100%]")
        .load(PipelineOptions::new().restore([saved]))
        .unwrap();
}

#[test]
fn selected_columns_are_all_that_is_there() {
    let data = TestData::new(&[("train", &[4])], 0);
    let source = MapDataset::source_columns(data.open("train"), ["number"]).unwrap();
    assert_eq!(
        source.get(1).unwrap().unwrap().names().collect::<Vec<_>>(),
        ["number"]
    );
    let batch = batches(
        &source.batch(BatchOptions::new(4)).unwrap(),
        PipelineOptions::new(),
    );
    assert_eq!(batch[0].len(), 1);
    assert!(MapDataset::source_columns(data.open("train"), ["label"]).is_err());
}

#[test]
fn a_waiting_consumer_gets_more_threads() {
    let slow = function("slow", |element| {
        std::thread::sleep(Duration::from_millis(3));
        Ok(element)
    });
    let dataset = MapDataset::range(60).unwrap().map(slow).unwrap();
    let mut pipeline = dataset.load(PipelineOptions::new()).unwrap();
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    pipeline.by_ref().take(40).for_each(drop);
    assert_eq!(pipeline.num_threads(), most);
    // One that is told a number has that number.
    let mut pipeline = dataset.load(PipelineOptions::new().num_threads(3)).unwrap();
    pipeline.next_element().unwrap();
    assert_eq!(pipeline.num_threads(), 3);
    let mut pipeline = dataset.load(PipelineOptions::new().num_threads(0)).unwrap();
    pipeline.next_element().unwrap();
    assert_eq!(pipeline.num_threads(), 0);
}

#[test]
fn what_is_made_ahead_is_bounded_by_bytes() {
    let large = function("large", |mut element: Element| {
        element.set("data", crate::element::Array::of(&[0u8; 10_000]).unwrap());
        Ok(element)
    });
    let dataset = MapDataset::range(500).unwrap().map(large).unwrap();
    let options = || {
        PipelineOptions::new()
            .num_threads(2)
            .prefetch(1_000)
            .prefetch_bytes(50_000)
    };
    let mut random = dataset.load(options()).unwrap();
    random.next_element().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let Running::Random(_, Some(engine)) = &random.work else {
        panic!("it is at work")
    };
    assert!(engine.made_ahead() <= 8, "{}", engine.made_ahead());
    assert_eq!(random.count(), 499);
}

/// What is packed straight out of records is what is packed out of elements: values, meta features, states and errors.
#[test]
fn records_are_packed_as_elements_are() {
    // Varints of one to ten bytes, and records without tokens.
    let token = |number: u64, at: u64| match at % 50 {
        49 => -((number + at) as i32),
        _ => ((number * 7919 + at * 104_729) % (1 << (7 * (at % 5) + 3))) as i32,
    };
    let data = TestData::of_tokens(&[30, 0, 33], |number| {
        (0..number * 37 % 151).map(|at| token(number, at)).collect()
    });
    let orders: [fn(MapDataset) -> MapDataset; 5] = [
        |dataset| dataset,
        |dataset| dataset.shuffle(3).unwrap(),
        |dataset| dataset.window_shuffle(8, 3).unwrap(),
        |dataset| dataset.slice(5, 41, 3).unwrap().repeat(2).unwrap(),
        |dataset| dataset.shuffle(3).unwrap().repeat_as(2, false).unwrap(),
    ];
    for (number, order) in orders.into_iter().enumerate() {
        for packing in [
            Packing::ConcatThenSplit,
            Packing::FirstFit { bins: 3 },
            Packing::BestFit { bins: 3 },
        ] {
            let options = PackOptions::new(packing, [("tokens", 200)]).meta_features(["label"]);
            let packed = |dataset: MapDataset| {
                let rows = order(dataset)
                    .to_iter_over(4)
                    .unwrap()
                    .pack(options.clone())
                    .unwrap();
                rows.batch(BatchOptions::new(3)).unwrap()
            };
            let source = || MapDataset::source(data.open("train")).unwrap();
            let (straight, through) = (packed(source()), packed(untouched(source())));
            let all = |dataset: &IterDataset, options: PipelineOptions| {
                let made = dataset.load(options).unwrap();
                made.map(Result::unwrap).collect::<Vec<Element>>()
            };
            let wanted = all(&through, PipelineOptions::new().num_threads(0));
            assert!(wanted.len() > 2);
            for threads in [0, 2] {
                let options = || PipelineOptions::new().num_threads(threads);
                assert_eq!(all(&straight, options()), wanted, "{number} {packing:?}");
                let mut first = straight.load(options()).unwrap();
                first.next_element().unwrap();
                let state = first.state();
                assert_eq!(all(&straight, options().restore([state])), wanted[1..]);
            }
        }
    }
    // One bit of the tokens of a record.
    let shard = data.shard("train", 0, 3);
    let mut bytes = std::fs::read(&shard).unwrap();
    let needle = b"tokens";
    let places = bytes.windows(needle.len()).enumerate();
    let at = places.filter(|(_, window)| window == needle).nth(20).unwrap().0;
    bytes[at + 20] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let failed = |dataset: MapDataset| {
        let options = PackOptions::new(Packing::ConcatThenSplit, [("tokens", 200)]);
        let rows = dataset.to_iter_over(4).unwrap().pack(options).unwrap();
        let (mut given, mut rows) = (0, rows.load(PipelineOptions::new()).unwrap());
        loop {
            match rows.next_element() {
                Ok(row) => given += usize::from(row.unwrap().len() == 3),
                Err(error) => return (given, error.with_causes()),
            }
        }
    };
    let source = || MapDataset::source(data.open("train")).unwrap();
    let (given, text) = failed(source());
    assert_eq!((given, text.clone()), failed(untouched(source())));
    assert!(text.contains("train.array_record-00000-of-00003"), "{text}");
}

#[test]
fn a_stream_that_finds_no_element_any_more_is_an_error_and_no_hang() {
    let odd = |element: &Element| Ok(element.array("value")?.item::<i64>().unwrap_or(0) % 2 == 1);
    let endless = MapDataset::range(10).unwrap().repeat(None).unwrap();
    let before = endless.clone().filter("odd", odd).to_iter();
    let after = endless.clone().to_iter().filter("odd", odd);
    for pipeline in [before, after] {
        let error = pipeline
            .load(PipelineOptions::new())
            .unwrap()
            .next_element()
            .unwrap_err();
        assert!(error.to_string().contains("shuffle before the filter"), "{error}");
    }
    let one = endless.filter("odd", odd).to_iter_over(1).unwrap();
    let mut stream = one.load(PipelineOptions::new()).unwrap();
    let first = stream.next_element().unwrap().unwrap();
    assert_eq!(first.array("value").unwrap().item::<i64>(), Some(1));
}

/// Sequences without steps, of many numbers each.
struct Wide;

impl Source for Wide {
    fn len(&self) -> u64 {
        1
    }

    fn spec(&self) -> ElementSpec {
        let mut spec = ElementSpec::new();
        spec.set("x", DType::UInt8, [None, Some(1 << 20)]);
        spec
    }

    fn identity(&self) -> String {
        "wide".into()
    }

    fn get(&self, _: u64) -> Result<Element> {
        Ok(Element::from_iter([(
            "x",
            Array::new(DType::UInt8, [0, 1 << 20], Vec::new())?,
        )]))
    }
}

/// A pipeline of the longest rows is made at once; rows that no memory holds are an error where they are needed.
#[test]
fn packed_rows_take_memory_when_they_are_needed() {
    let wide = || MapDataset::custom(Wide).unwrap().to_iter_over(1).unwrap();
    let options = |length| PackOptions::new(Packing::FirstFit { bins: 2 }, [("x", length)]);
    let packed = wide().pack(options(i32::MAX as usize)).unwrap();
    let error = packed
        .load(PipelineOptions::new().num_threads(0))
        .unwrap()
        .next_element();
    let text = error.unwrap_err().with_causes();
    assert!(
        text.starts_with("stage `pack` failed") && text.contains("there is no memory for"),
        "{text}"
    );
    let text = wide().pack(options(1 << 31)).unwrap_err().to_string();
    assert!(text.contains("wanted 1 to 2147483647"), "{text}");
}
