//! Pipelines against the vectors of `tests/reference/order.py`, which is plain Python written from ORDER.md.

use prep_formats::value::DType;
use prep_loader::element::{Array, Element, ElementSpec};
use prep_loader::transform::Generator;
use prep_loader::{
    BatchOptions, MapDataset, Mixture, PackOptions, Packing, PipelineOptions, Result, Source, StopRule,
};
use serde_json::{Value, json};

fn vectors(part: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../../tests/golden/order/vectors.json")).unwrap();
    let rows = all[part].as_array().unwrap().clone();
    assert!(rows.len() > 3);
    rows
}

fn numbers(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_u64().unwrap())
        .collect()
}

fn value(element: &Element) -> i64 {
    element.array("value").unwrap().item().unwrap()
}

#[test]
fn generators_draw_the_words_of_section_9() {
    for row in vectors("random") {
        let number = |field: &str| row[field].as_u64().unwrap();
        let mut generator =
            Generator::new(number("seed"), row["stage"].as_str().unwrap(), number("position"));
        let words: Vec<String> = (0..10)
            .map(|_| format!("{:016x}", generator.next_u64()))
            .collect();
        assert_eq!(json!(words), row["words"]);
    }
}

#[test]
fn windows_are_those_of_section_13() {
    for row in vectors("windows") {
        let number = |field: &str| row[field].as_u64().unwrap();
        let dataset = MapDataset::range(number("n")).unwrap();
        let dataset = dataset.window_shuffle(number("window"), number("seed")).unwrap();
        let epochs: Vec<Vec<i64>> = (0..2)
            .map(|epoch| {
                let positions = number("n") * epoch..number("n") * (epoch + 1);
                positions
                    .map(|position| value(&dataset.get(position).unwrap().unwrap()))
                    .collect()
            })
            .collect();
        assert_eq!(json!(epochs), row["epochs"]);
    }
}

#[test]
fn mixtures_are_those_of_section_11() {
    for row in vectors("mixtures") {
        let weights: Vec<f64> = numbers(&row["weights"])
            .into_iter()
            .map(|weight| weight as f64)
            .collect();
        // Source `i` has the numbers from `1000 * i` on.
        let sources = |end: Option<u64>| -> Vec<MapDataset> {
            (0..weights.len() as u64)
                .map(|source| {
                    let numbers = MapDataset::range(10_000).unwrap().skip(1_000 * source).unwrap();
                    numbers.take(1_000).unwrap().take(end.unwrap_or(1_000)).unwrap()
                })
                .collect()
        };
        let mixture = || Mixture::new(weights.clone()).stop(StopRule::FirstExhausted);
        let wanted = numbers(&row["sources"]);
        let mut counts = vec![0; weights.len()];
        let places: Vec<i64> = wanted
            .iter()
            .map(|&source| {
                counts[source as usize] += 1;
                1_000 * source as i64 + counts[source as usize] - 1
            })
            .collect();
        let mixed = MapDataset::mix(sources(None), mixture()).unwrap();
        let found: Vec<i64> = (0..60)
            .map(|position| value(&mixed.get(position).unwrap().unwrap()))
            .collect();
        assert_eq!(found, places);
        // Streams choose in the same way.
        let streams = sources(None)
            .into_iter()
            .map(|source| source.to_iter_over(1).unwrap());
        let mixed = prep_loader::IterDataset::mix(streams, mixture()).unwrap();
        let found: Vec<i64> = mixed
            .load(PipelineOptions::new())
            .unwrap()
            .take(60)
            .map(|element| value(&element.unwrap()))
            .collect();
        assert_eq!(found, places);
    }
}

#[test]
fn weights_change_as_in_section_11() {
    for row in vectors("changes") {
        let weights =
            |value: &Value| -> Vec<f64> { numbers(value).into_iter().map(|weight| weight as f64).collect() };
        let mut mixture = Mixture::new(weights(&row["weights"]));
        for change in row["changes"].as_array().unwrap() {
            mixture = mixture.change(change[0].as_u64().unwrap(), weights(&change[1]));
        }
        let streams = row["streams"].as_u64().unwrap();
        // The numbers of source `i` are `10000 * i` and more.
        let sources: Vec<MapDataset> = (0..mixture.weights.len() as u64)
            .map(|source| {
                let numbers = MapDataset::range(10_000 * (source + 1)).unwrap();
                numbers.skip(10_000 * source).unwrap()
            })
            .collect();
        let split = sources
            .iter()
            .map(|source| source.clone().to_iter_over(streams).unwrap());
        let mixed = prep_loader::IterDataset::mix(split, mixture.clone()).unwrap();
        let merged: Vec<i64> = mixed
            .load(PipelineOptions::new())
            .unwrap()
            .take(40 * streams as usize)
            .map(|element| value(&element.unwrap()) / 10_000)
            .collect();
        let by_stream: Vec<Vec<i64>> = (0..streams as usize)
            .map(|stream| {
                merged
                    .iter()
                    .copied()
                    .skip(stream)
                    .step_by(streams as usize)
                    .collect()
            })
            .collect();
        assert_eq!(json!(by_stream), row["sources"], "{row}");
        if streams == 1 {
            let mixed = MapDataset::mix(sources, mixture).unwrap();
            let found: Vec<i64> = (0..40)
                .map(|position| value(&mixed.get(position).unwrap().unwrap()) / 10_000)
                .collect();
            assert_eq!(json!([found]), row["sources"], "{row}");
        }
    }
}

#[test]
fn outputs_are_merged_and_dealt_as_in_section_10() {
    for row in vectors("outputs") {
        let ends = numbers(&row["ends"]);
        let (streams, rounds) = (ends.len() as u64, *ends.iter().max().unwrap());
        // Position `j * V + v` is output `j` of stream `v`, where it has so many.
        let dataset = MapDataset::range(streams * rounds).unwrap().filter("ends", {
            let ends = ends.clone();
            move |element| {
                let position = value(element) as u64;
                Ok(position / streams < ends[(position % streams) as usize])
            }
        });
        let number = |field: &str| row[field].as_u64().unwrap();
        let batch =
            BatchOptions::new(number("batch")).drop_remainder(row["drop_remainder"].as_bool().unwrap());
        let dataset = dataset.to_iter_over(streams).unwrap().batch(batch).unwrap();
        for host in 0..number("hosts") {
            let options = PipelineOptions::new().shard(host, number("hosts"));
            let batches: Vec<Vec<[u64; 2]>> = dataset
                .load(options)
                .unwrap()
                .map(|batch| {
                    let values: Vec<i64> = batch.unwrap().array("value").unwrap().to_vec().unwrap();
                    values
                        .iter()
                        .map(|&value| [value as u64 % streams, value as u64 / streams])
                        .collect()
                })
                .collect();
            assert_eq!(
                json!(batches),
                row["batches"][host as usize],
                "host {host} of {row}"
            );
        }
    }
}

/// Sequences of some lengths; step `j` of sequence `i` is `1000 * i + j + 1`.
struct Sequences(Vec<u64>);

impl Source for Sequences {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn spec(&self) -> ElementSpec {
        let mut spec = ElementSpec::new();
        spec.set("x", DType::UInt64, [None]);
        spec
    }

    fn identity(&self) -> String {
        format!("{:?}", self.0)
    }

    fn get(&self, index: u64) -> Result<Element> {
        let steps: Vec<u64> = (0..self.0[index as usize])
            .map(|step| 1_000 * index + step + 1)
            .collect();
        Ok(Element::from_iter([("x", Array::of(&steps)?)]))
    }
}

#[test]
fn rows_are_packed_as_in_section_14() {
    for row in vectors("packed") {
        let number = |field: &str| row[field].as_u64().unwrap() as usize;
        let bins = number("bins");
        let packing = match row["packing"].as_str().unwrap() {
            "first_fit" => Packing::FirstFit { bins },
            "best_fit" => Packing::BestFit { bins },
            _ => Packing::ConcatThenSplit,
        };
        let dataset = MapDataset::custom(Sequences(numbers(&row["lengths"])))
            .unwrap()
            .to_iter_over(1)
            .unwrap();
        let packed = dataset
            .pack(PackOptions::new(packing, [("x", number("row"))]))
            .unwrap();
        let mut found = Vec::new();
        for element in packed.load(PipelineOptions::new()).unwrap() {
            let element = element.unwrap();
            let column = |name: &str| element.array(name).unwrap().to_vec::<i32>().unwrap();
            let (ids, positions) = (column("x_segment_ids"), column("x_positions"));
            let steps: Vec<u64> = element.array("x").unwrap().to_vec().unwrap();
            let mut parts: Vec<[u64; 3]> = Vec::new();
            for (at, &step) in steps.iter().enumerate().take_while(|(_, step)| **step > 0) {
                let (sequence, step) = ((step - 1) / 1_000, (step - 1) % 1_000);
                if ids[at] as usize > parts.len() {
                    parts.push([sequence, step, step]);
                }
                let part = parts.last_mut().unwrap();
                assert_eq!((part[0], part[2]), (sequence, step));
                assert_eq!(positions[at] as u64, step - part[1]);
                part[2] += 1;
            }
            assert!((0..ids.len()).all(|at| (ids[at] == 0) == (steps[at] == 0)));
            found.push(parts);
        }
        assert_eq!(json!(found), row["rows"], "{row}");
    }
}
