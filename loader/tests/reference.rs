//! Generated pipelines against a plain, slow reference that is written from ORDER.md and shares no code with the engine: any number of threads
//! and hosts, saved and restored anywhere, value for value.

use std::collections::BTreeMap;

use prep_formats::value::DType;
use prep_loader::element::{Array, Element, ElementSpec, Value};
use prep_loader::transform::{function, random_function};
use prep_loader::{
    BatchOptions, IterDataset, MapDataset, Mixture, PackOptions, Packing, Pipeline, PipelineOptions,
    PipelineState, Result, Source, Stacking, StopRule,
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

// --- The reference: numbers ------------------------------------------------------------------------------------------

/// The first words of a ChaCha20 key stream with a zero nonce (RFC 8439).
fn key_stream(first: u64, second: u64, third: u64, tag: &[u8; 8], words: usize) -> Vec<u64> {
    let mut key = Vec::new();
    for part in [first, second, third] {
        key.extend(part.to_le_bytes());
    }
    key.extend(tag);
    let mut bytes = Vec::new();
    let mut counter = 0u32;
    while bytes.len() < 8 * words {
        let mut start = [0u32; 16];
        start[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
        for at in 0..8 {
            start[4 + at] = u32::from_le_bytes(key[4 * at..4 * at + 4].try_into().unwrap());
        }
        start[12] = counter;
        let mut words = start;
        let mut quarter = |a: usize, b: usize, c: usize, d: usize| {
            for (x, y, z, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
                words[x] = words[x].wrapping_add(words[y]);
                words[z] = (words[z] ^ words[x]).rotate_left(by);
            }
        };
        for _ in 0..10 {
            (0..4).for_each(|at| quarter(at, 4 + at, 8 + at, 12 + at));
            (0..4).for_each(|at| quarter(at, 4 + (at + 1) % 4, 8 + (at + 2) % 4, 12 + (at + 3) % 4));
        }
        bytes.extend((0..16).flat_map(|at| words[at].wrapping_add(start[at]).to_le_bytes()));
        counter += 1;
    }
    bytes
        .chunks(8)
        .take(words)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// The permutation of section 2, as a list.
fn permuted(seed: u64, number: u64, n: u64, tag: &[u8; 8]) -> Vec<u64> {
    if n == 0 {
        return Vec::new();
    }
    let rounds = if n < 256 { 32 } else { 12 };
    let keys = key_stream(seed, number, n, tag, rounds);
    let a = (1..).find(|a| a * a >= n).unwrap();
    let b = (1..).find(|b| a * b >= n).unwrap();
    let b = b + u64::from(a % 2 == 1 && b % 2 == 1);
    let mix = |x: u64, key: u64| {
        let z = x.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(key);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        u128::from(z ^ (z >> 31))
    };
    let pass = |x: u64| {
        let (mut left, mut right) = (x / b, x % b);
        for (round, &key) in keys.iter().enumerate() {
            if round % 2 == 0 {
                left = (left + ((mix(right, key) * u128::from(a)) >> 64) as u64) % a;
            } else {
                right = (right + ((mix(left, key) * u128::from(b)) >> 64) as u64) % b;
            }
        }
        left * b + right
    };
    (0..n)
        .map(|x| {
            std::iter::successors(Some(pass(x)), |&x| Some(pass(x)))
                .find(|&x| x < n)
                .unwrap()
        })
        .collect()
}

/// The first random number of a stage for a position, below a limit.
fn random_below(seed: u64, stage: &str, position: u64, limit: u64) -> i64 {
    let name = u64::from_le_bytes(Sha256::digest(stage)[..8].try_into().unwrap());
    let word = key_stream(seed, position, name, b"random\0\0", 1)[0];
    ((u128::from(word) * u128::from(limit)) >> 64) as i64
}

// --- The reference: random access --------------------------------------------------------------------------------------

/// Values of an element, flattened.
type Row = BTreeMap<String, Vec<i64>>;

#[derive(Debug, Clone)]
enum Op {
    Shuffle(u64),
    WindowedShuffle(u64, u64),
    Slice(u64, u64, u64),
    Repeat(u64, bool),
    Map(i64),
    RandomMap(u64),
    Index,
    Filter(i64),
    Cache,
    /// Mixed with numbers from 1,000 on, in proportion to weights, until the first or all are exhausted.
    Mix(u64, [u64; 2], bool),
    /// Followed by numbers from 2,000 on.
    Concatenate(u64),
}

#[derive(Debug, Clone)]
enum StreamOp {
    Filter(i64),
    FlatMap(i64),
    Map(i64),
    RandomMap(u64),
    Index,
    WindowShuffle(u64, u64),
    Batch(u64),
    Rebatch(u64),
    /// Bins (0: concat-then-split), best fit, shuffled, length, whether the rest is left out.
    Pack(usize, bool, Option<u64>, usize, bool),
}

fn source_row(index: u64) -> Row {
    let tokens = (0..index * 7 % 5).map(|at| (100 * index + at) as i64).collect();
    Row::from([("tokens".into(), tokens), ("value".into(), vec![index as i64])])
}

/// A list of the elements of `epochs` epochs, gaps included; and the length of one.
fn random_access(first: u64, n: u64, ops: &[Op], epochs: u64) -> (Vec<Option<Row>>, u64) {
    let Some((op, before)) = ops.split_last() else {
        let rows = (0..n * epochs)
            .map(|at| Some(source_row(first + at % n)))
            .collect();
        return (rows, n);
    };
    let parent_length = random_access(first, n, before, 1).1;
    let parent = |epochs: u64| random_access(first, n, before, epochs).0;
    let change = |change: &dyn Fn(u64, &mut Row)| {
        let mut rows = parent(epochs);
        for (position, row) in rows.iter_mut().enumerate() {
            if let Some(row) = row {
                change(position as u64, row);
            }
        }
        (rows, parent_length)
    };
    let length = parent_length;
    match *op {
        Op::Shuffle(seed) => {
            let rows = parent(epochs);
            let order = (0..epochs).flat_map(|epoch| {
                permuted(seed, epoch, length, b"shuffle\0")
                    .into_iter()
                    .map(move |at| epoch * length + at)
            });
            (order.map(|at| rows[at as usize].clone()).collect(), length)
        }
        Op::WindowedShuffle(window, seed) => {
            let rows = parent(epochs);
            let full = length / window;
            let mut out = Vec::new();
            for epoch in 0..epochs {
                let mut windows = permuted(seed, epoch, full, b"shuffle\0");
                windows.push(full);
                for number in windows {
                    let start = number * window;
                    let size = window.min(length - start);
                    let inner = permuted(seed, epoch * (full + 1) + number, size, b"window\0\0");
                    out.extend(
                        inner
                            .iter()
                            .map(|at| rows[(epoch * length + start + at) as usize].clone()),
                    );
                }
            }
            (out, length)
        }
        Op::Slice(start, stop, step) => {
            let rows = parent(epochs);
            let stop = stop.min(length);
            let mut out = Vec::new();
            for epoch in 0..epochs {
                let mut at = start.min(stop);
                while at < stop {
                    out.push(rows[(epoch * length + at) as usize].clone());
                    at += step;
                }
            }
            let own = out.len() as u64 / epochs;
            (out, own)
        }
        Op::Repeat(count, reseed) => {
            let rows = if reseed {
                parent(count * epochs)
            } else {
                let once = parent(1);
                (0..count * epochs).flat_map(|_| once.clone()).collect()
            };
            (rows, count * length)
        }
        Op::Map(by) => change(&|_, row| row.get_mut("value").unwrap()[0] = row["value"][0] * 3 + by),
        Op::RandomMap(seed) => change(&|position, row| {
            row.get_mut("value").unwrap()[0] += random_below(seed, "jitter", position, 1000);
        }),
        Op::Index => change(&|position, row| {
            row.insert("index".into(), vec![(position % length.max(1)) as i64]);
        }),
        Op::Filter(by) => {
            let mut rows = parent(epochs);
            for row in &mut rows {
                if row.as_ref().is_some_and(|row| row["value"][0] % by == 0) {
                    *row = None;
                }
            }
            (rows, length)
        }
        Op::Cache => (parent(epochs), length),
        Op::Concatenate(more) => {
            let (first, second) = (parent(epochs), random_access(2_000, more, &[], epochs).0);
            let mut out = Vec::new();
            for epoch in 0..epochs {
                out.extend_from_slice(&first[(epoch * length) as usize..((epoch + 1) * length) as usize]);
                out.extend_from_slice(&second[(epoch * more) as usize..((epoch + 1) * more) as usize]);
            }
            (out, length + more)
        }
        Op::Mix(more, weights, all) => {
            let lengths = [length, more];
            // Which of the two each position comes from, one after the other.
            let choose = |position: u64| {
                if length == 0 || more == 0 {
                    return usize::from(length == 0);
                }
                let of_first = |p: u64| (p * weights[0]).div_ceil(weights[0] + weights[1]);
                usize::from(of_first(position + 1) == of_first(position))
            };
            let mut counts = [0u64; 2];
            let mut own = 0;
            if length + more > 0 {
                loop {
                    let done = |side: usize| counts[side] >= lengths[side];
                    if all && done(0) && done(1) {
                        break;
                    }
                    let side = choose(own);
                    if !all && counts[side] == lengths[side] {
                        break;
                    }
                    counts[side] += 1;
                    own += 1;
                }
            }
            let total = own * epochs;
            let rows = [
                parent(total.checked_div(length).unwrap_or(0) + 1),
                random_access(1_000, more, &[], total.checked_div(more).unwrap_or(0) + 1).0,
            ];
            let mut counts = [0usize; 2];
            let mixed = (0..total).map(|position| {
                let side = choose(position);
                counts[side] += 1;
                rows[side][counts[side] - 1].clone()
            });
            (mixed.collect(), own)
        }
    }
}

// --- The reference: streams ----------------------------------------------------------------------------------------------

fn stream_rows(mut rows: Vec<Row>, ops: &[StreamOp], stream: u64, streams: u64) -> Vec<Row> {
    for op in ops {
        let position = |number: usize| number as u64 * streams + stream;
        rows = match *op {
            StreamOp::Filter(by) => rows.into_iter().filter(|row| row["value"][0] % by != 0).collect(),
            StreamOp::FlatMap(by) => rows.iter().flat_map(|row| expanded(row, by)).collect(),
            StreamOp::Map(by) => {
                for row in &mut rows {
                    row.get_mut("value").unwrap()[0] = row["value"][0] * 3 + by;
                }
                rows
            }
            StreamOp::RandomMap(seed) => {
                for (number, row) in rows.iter_mut().enumerate() {
                    row.get_mut("value").unwrap()[0] += random_below(seed, "jitter", position(number), 1000);
                }
                rows
            }
            StreamOp::Index => {
                for (number, row) in rows.iter_mut().enumerate() {
                    row.insert("index".into(), vec![position(number) as i64]);
                }
                rows
            }
            StreamOp::WindowShuffle(window, seed) => {
                let size = window.div_ceil(streams) as usize;
                let mut out = Vec::new();
                for (number, window) in rows.chunks(size).enumerate() {
                    let order = permuted(seed, position(number), window.len() as u64, b"window\0\0");
                    out.extend(order.iter().map(|&at| window[at as usize].clone()));
                }
                out
            }
            // Batches that are taken apart again: nothing has changed.
            StreamOp::Batch(_) | StreamOp::Rebatch(_) => rows,
            StreamOp::Pack(0, _, _, length, drop) => split(&rows, length, drop),
            StreamOp::Pack(bins, best, shuffled, length, drop) => {
                let mut sets = fitted(&rows, bins, best, length);
                if drop {
                    sets.pop();
                }
                let mut out = Vec::new();
                for (number, set) in sets.iter().enumerate() {
                    let order = match shuffled {
                        Some(seed) => permuted(seed, position(number), set.len() as u64, b"window\0\0"),
                        None => (0..set.len() as u64).collect(),
                    };
                    out.extend(order.iter().map(|&at| packed_row(&set[at as usize], length)));
                }
                out
            }
        };
    }
    rows
}

fn expanded(row: &Row, by: i64) -> Vec<Row> {
    (0..row["value"][0].rem_euclid(by))
        .map(|at| {
            let mut row = row.clone();
            row.get_mut("value").unwrap()[0] += 10_000 * at;
            row
        })
        .collect()
}

/// Sequences with their values, one row's.
type Parts = Vec<(Vec<i64>, i64)>;

fn packed_row(parts: &Parts, length: usize) -> Row {
    let mut columns = [vec![], vec![], vec![]];
    for (number, (tokens, _)) in parts.iter().enumerate() {
        for (at, &token) in tokens.iter().enumerate() {
            columns[0].push(token);
            columns[1].push(number as i64 + 1);
            columns[2].push(at as i64);
        }
    }
    columns.iter_mut().for_each(|column| column.resize(length, 0));
    let [tokens, ids, positions] = columns;
    Row::from([
        ("tokens".into(), tokens),
        ("tokens_segment_ids".into(), ids),
        ("tokens_positions".into(), positions),
        ("value".into(), parts.iter().map(|(_, value)| *value).collect()),
    ])
}

fn fitted(rows: &[Row], bins: usize, best: bool, length: usize) -> Vec<Vec<Parts>> {
    let mut sets = Vec::new();
    let mut open: Vec<Parts> = vec![Vec::new(); bins];
    for row in rows {
        let (tokens, value) = (row["tokens"].clone(), row["value"][0]);
        let room = |bin: &Parts| {
            length as i64
                - bin.iter().map(|(tokens, _)| tokens.len() as i64).sum::<i64>()
                - tokens.len() as i64
        };
        let fitting: Vec<usize> = (0..bins).filter(|&at| room(&open[at]) >= 0).collect();
        // Rows that nothing was put into come after those that have something, even where that has no length.
        let chosen = match best {
            true => fitting
                .iter()
                .copied()
                .min_by_key(|&at| (open[at].is_empty(), room(&open[at]), at)),
            false => fitting.first().copied(),
        };
        match chosen {
            Some(at) => open[at].push((tokens, value)),
            None => {
                sets.push(std::mem::replace(&mut open, vec![Vec::new(); bins]));
                open[0].push((tokens, value));
            }
        }
    }
    sets.push(open);
    for set in &mut sets {
        set.retain(|parts| !parts.is_empty());
    }
    sets
}

fn split(rows: &[Row], length: usize, drop: bool) -> Vec<Row> {
    let (mut out, mut open, mut used) = (Vec::new(), Parts::new(), 0);
    for row in rows {
        let mut tokens = &row["tokens"][..];
        while !tokens.is_empty() {
            let (part, rest) = tokens.split_at(tokens.len().min(length - used));
            open.push((part.to_vec(), row["value"][0]));
            used += part.len();
            tokens = rest;
            if used == length {
                out.push(packed_row(&open, length));
                (open, used) = (Parts::new(), 0);
            }
        }
    }
    if !open.is_empty() && !drop {
        out.push(packed_row(&open, length));
    }
    out
}

/// Two sources mixed on streams: `first`, and numbers from 1,000 on.
#[derive(Debug, Clone)]
struct StreamMix {
    more: u64,
    weights: [u64; 2],
    /// Until all are exhausted.
    all: bool,
    /// From a position on other weights.
    changes: Vec<(u64, [u64; 2])>,
}

impl StreamMix {
    /// The mixture of one stream: `first` and numbers are given as lists of positions, epoch after epoch.
    fn stream(
        &self,
        first: &[Vec<Option<Row>>],
        second: &[Vec<Option<Row>>],
        stream: u64,
        streams: u64,
    ) -> Vec<Row> {
        let own = |epochs: &[Vec<Option<Row>>]| -> Vec<Vec<Row>> {
            let of_epoch = |epoch: &Vec<Option<Row>>| {
                let dealt = epoch.iter().skip(stream as usize).step_by(streams as usize);
                dealt.flatten().cloned().collect()
            };
            epochs.iter().map(of_epoch).collect()
        };
        let sources = [own(first), own(second)];
        let (mut out, mut round, mut at) = (Vec::new(), [0, 0], [0, 0]);
        let (mut done, mut empty) = ([false; 2], [false; 2]);
        // Outputs of the tree that holds, by weights.
        let (mut schedule, mut weights, mut of_tree) = (self.changes.iter().peekable(), self.weights, 0);
        loop {
            while let Some((_, changed)) =
                schedule.next_if(|(from, _)| *from <= out.len() as u64 * streams + stream)
            {
                (weights, of_tree) = (*changed, 0);
            }
            let of_first = |q: u64| (q * weights[0]).div_ceil(weights[0] + weights[1]);
            let side = match empty {
                [true, true] => return out,
                [true, false] => 1,
                [false, true] => 0,
                _ => usize::from(of_first(of_tree + 1) == of_first(of_tree)),
            };
            match sources[side][round[side]].get(at[side]) {
                Some(row) => {
                    out.push(row.clone());
                    at[side] += 1;
                    of_tree += 1;
                }
                None => {
                    done[side] = true;
                    if at[side] == 0 {
                        empty[side] = true;
                    } else if !self.all || done == [true, true] {
                        return out;
                    } else {
                        (round[side], at[side]) = (round[side] + 1, 0);
                    }
                }
            }
        }
    }

    fn build(&self, first: MapDataset, streams: u64) -> IterDataset {
        let stop = match self.all {
            true => StopRule::AllExhausted,
            false => StopRule::FirstExhausted,
        };
        let of = |weights: [u64; 2]| weights.map(|weight| weight as f64);
        let mut mixture = Mixture::new(of(self.weights)).stop(stop);
        for (position, weights) in &self.changes {
            mixture = mixture.change(*position, of(*weights));
        }
        let sources = [first, numbers(1_000, self.more)];
        IterDataset::mix(
            sources.map(|source| source.to_iter_over(streams).unwrap()),
            mixture,
        )
        .unwrap()
    }
}

/// All outputs, merged round robin.
fn merged(positions: &[Option<Row>], ops: &[StreamOp], streams: u64) -> Vec<Row> {
    let all: Vec<Vec<Row>> = (0..streams)
        .map(|stream| {
            let own = positions
                .iter()
                .skip(stream as usize)
                .step_by(streams as usize)
                .flatten()
                .cloned();
            stream_rows(own.collect(), ops, stream, streams)
        })
        .collect();
    in_rounds(&all)
}

fn in_rounds(all: &[Vec<Row>]) -> Vec<Row> {
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|round| all.iter().filter_map(move |rows| rows.get(round).cloned()))
        .collect()
}

// --- The engine ----------------------------------------------------------------------------------------------------------

struct Numbers {
    first: u64,
    n: u64,
}

impl Source for Numbers {
    fn len(&self) -> u64 {
        self.n
    }

    fn spec(&self) -> ElementSpec {
        let mut spec = ElementSpec::new();
        spec.set("tokens", DType::Int64, [None]);
        spec.set("value", DType::Int64, []);
        spec
    }

    fn identity(&self) -> String {
        format!("numbers from {}", self.first)
    }

    fn get(&self, index: u64) -> Result<Element> {
        let row = source_row(self.first + index);
        Ok(Element::from_iter([
            ("tokens", Array::of(&row["tokens"])?),
            ("value", Array::scalar(row["value"][0])),
        ]))
    }
}

fn value(element: &Element) -> i64 {
    element.array("value").unwrap().item().unwrap()
}

fn with_value(mut element: Element, value: i64) -> Element {
    element.set("value", Array::scalar(value));
    element
}

fn jitter() -> impl prep_loader::transform::Transform {
    random_function("jitter", |element, generator| {
        let more = generator.below(1000) as i64;
        let own = value(&element);
        Ok(with_value(element, own + more))
    })
}

fn triple(by: i64) -> impl prep_loader::transform::Transform {
    function("triple", move |element| {
        let own = value(&element);
        Ok(with_value(element, own * 3 + by))
    })
    .parameters(format!("by={by}"))
}

fn numbers(first: u64, n: u64) -> MapDataset {
    MapDataset::custom(Numbers { first, n }).unwrap()
}

fn build(n: u64, ops: &[Op]) -> MapDataset {
    let mut dataset = numbers(0, n);
    let mut shuffled = false;
    for op in ops {
        dataset = match *op {
            Op::Shuffle(seed) => dataset.shuffle(seed).unwrap(),
            Op::WindowedShuffle(window, seed) => dataset.window_shuffle(window, seed).unwrap(),
            Op::Slice(start, stop, step) => dataset.slice(start, stop, step).unwrap(),
            Op::Repeat(epochs, reseed) => dataset.repeat_as(epochs, reseed).unwrap(),
            Op::Map(by) => dataset.map(triple(by)).unwrap(),
            Op::RandomMap(seed) => dataset.random_map(jitter(), seed).unwrap(),
            Op::Index => dataset.map_with_index("index"),
            Op::Filter(by) => {
                dataset.filter(&format!("not {by}"), move |element| Ok(value(element) % by != 0))
            }
            Op::Cache if shuffled => dataset,
            Op::Cache => dataset.cache(3_000).unwrap(),
            Op::Concatenate(more) => MapDataset::concatenate([dataset, numbers(2_000, more)]).unwrap(),
            Op::Mix(more, weights, all) => {
                let stop = if all {
                    StopRule::AllExhausted
                } else {
                    StopRule::FirstExhausted
                };
                let mixture = Mixture::new(weights.map(|weight| weight as f64)).stop(stop);
                MapDataset::mix([dataset, numbers(1_000, more)], mixture).unwrap()
            }
        };
        shuffled |= matches!(
            op,
            Op::Shuffle(_) | Op::WindowedShuffle(..) | Op::RandomMap(_) | Op::Mix(..)
        );
    }
    dataset
}

fn build_streams(mut dataset: IterDataset, ops: &[StreamOp]) -> IterDataset {
    for op in ops {
        dataset = match *op {
            StreamOp::Filter(by) => {
                dataset.filter(&format!("not {by}"), move |element| Ok(value(element) % by != 0))
            }
            StreamOp::FlatMap(by) => dataset.flat_map(&format!("times {by}"), None, move |element| {
                let own = value(&element);
                Ok((0..own.rem_euclid(by))
                    .map(|at| with_value(element.clone(), own + 10_000 * at))
                    .collect())
            }),
            StreamOp::Map(by) => dataset.map(triple(by)).unwrap(),
            StreamOp::RandomMap(seed) => dataset.random_map(jitter(), seed).unwrap(),
            StreamOp::Index => dataset.map_with_index("index"),
            StreamOp::WindowShuffle(window, seed) => dataset.window_shuffle(window, seed).unwrap(),
            StreamOp::Batch(size) => dataset
                .batch(BatchOptions::new(size).stacking(Stacking::Ragged))
                .unwrap()
                .unbatch(),
            StreamOp::Rebatch(size) => dataset
                .batch(BatchOptions::new(size).stacking(Stacking::Ragged))
                .unwrap()
                .rebatch(BatchOptions::new(size + 1).stacking(Stacking::Ragged))
                .unwrap()
                .unbatch(),
            StreamOp::Pack(bins, best, shuffled, length, drop) => {
                let packing = match (bins, best) {
                    (0, _) => Packing::ConcatThenSplit,
                    (bins, true) => Packing::BestFit { bins },
                    (bins, false) => Packing::FirstFit { bins },
                };
                let mut options = PackOptions::new(packing, [("tokens", length)])
                    .meta_features(["value"])
                    .drop_remainder(drop);
                if let Some(seed) = shuffled {
                    options = options.shuffle_bins(seed);
                }
                dataset.pack(options).unwrap()
            }
        };
    }
    dataset
}

fn flat(value: &Value) -> Vec<i64> {
    match value {
        Value::Array(array) => match array.dtype() {
            DType::Int64 => array.to_vec::<i64>().unwrap(),
            DType::Int32 => array
                .to_vec::<i32>()
                .unwrap()
                .into_iter()
                .map(i64::from)
                .collect(),
            other => panic!("{other}"),
        },
        Value::List(values) => values.iter().flat_map(flat).collect(),
        other => panic!("{other:?}"),
    }
}

/// The rows of a batch.
fn rows(batch: &Element) -> Vec<Row> {
    let count = batch.iter().map(|(_, value)| match value {
        Value::Array(array) => array.shape()[0],
        Value::List(values) => values.len(),
        other => panic!("{other:?}"),
    });
    (0..count.max().unwrap_or(0))
        .map(|at| {
            batch
                .iter()
                .map(|(name, value)| {
                    let row = match value {
                        Value::Array(array) => flat(&Value::Array(array.row(at).unwrap())),
                        Value::List(values) => flat(&values[at]),
                        other => panic!("{other:?}"),
                    };
                    (name.to_string(), row)
                })
                .collect()
        })
        .collect()
}

/// One part of a run: hosts, rows a host, steps, threads of each host.
#[derive(Debug, Clone)]
struct Leg {
    hosts: u64,
    size: u64,
    steps: usize,
    threads: Vec<usize>,
}

fn legs(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Leg>> {
    let leg = (
        1u64..13,
        1u64..5,
        0usize..6,
        prop::collection::vec(0usize..5, 1..4),
    )
        .prop_map(|(hosts, size, steps, threads)| Leg {
            hosts,
            size,
            steps,
            threads,
        });
    prop::collection::vec(leg, count)
}

/// Runs legs one after the other, each from the states of the one before, and then to the end; the global stream.
fn run(
    open: &dyn Fn(u64, PipelineOptions) -> Pipeline,
    strided: bool,
    legs: &[Leg],
    limit: usize,
) -> Vec<Row> {
    let mut stream: Vec<Row> = Vec::new();
    let mut states: Vec<PipelineState> = Vec::new();
    let end = Leg {
        hosts: 1,
        size: 3,
        steps: usize::MAX,
        threads: vec![2],
    };
    for leg in legs.iter().chain([&end]) {
        let mut counts: Option<Vec<u64>> = None;
        let mut hosts: Vec<Pipeline> = Vec::new();
        for host in 0..leg.hosts {
            let options = PipelineOptions::new()
                .shard(host, leg.hosts)
                .num_threads(leg.threads[host as usize % leg.threads.len()])
                .prefetch(3)
                .counts(counts.clone())
                .restore(states.clone());
            let opened = open(leg.size, options);
            counts = opened.counts().map(<[u64]>::to_vec);
            hosts.push(opened);
        }
        for _ in 0..leg.steps {
            let position = hosts[0].position();
            let batches: Vec<Option<Element>> = hosts
                .iter_mut()
                .map(|host| host.next_element().unwrap())
                .collect();
            let ended = batches.iter().filter(|batch| batch.is_none()).count() as u64;
            assert!(
                ended == 0 || ended == leg.hosts,
                "all hosts take the same number of steps"
            );
            if ended > 0 || stream.len() >= limit {
                break;
            }
            let global: Vec<Vec<Row>> = batches.iter().flatten().map(rows).collect();
            let sizes: Vec<usize> = global.iter().map(Vec::len).collect();
            assert!(
                sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1,
                "{sizes:?}"
            );
            if strided {
                // Row `k` is host `k mod H`'s.
                let mut parts: Vec<_> = global.into_iter().map(Vec::into_iter).collect();
                let total: usize = sizes.iter().sum();
                for at in position..position + total as u64 {
                    stream.push(parts[(at % leg.hosts) as usize].next().unwrap());
                }
            } else {
                stream.extend(global.into_iter().flatten());
            }
            assert!(hosts.iter().all(|host| host.position() == stream.len() as u64));
        }
        states = hosts
            .iter()
            .map(|host| PipelineState::from_json(&host.state().to_json()).unwrap())
            .collect();
    }
    stream
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        any::<u64>().prop_map(Op::Shuffle),
        (1u64..9, any::<u64>()).prop_map(|(window, seed)| Op::WindowedShuffle(window, seed)),
        (0u64..5, 0u64..60, 1u64..4).prop_map(|(start, stop, step)| Op::Slice(start, stop, step)),
        (1u64..4, any::<bool>()).prop_map(|(epochs, reseed)| Op::Repeat(epochs, reseed)),
        (0i64..9).prop_map(Op::Map),
        any::<u64>().prop_map(Op::RandomMap),
        Just(Op::Index),
        Just(Op::Cache),
        (0u64..9, [1u64..9, 1..9], any::<bool>())
            .prop_map(|(more, weights, all)| Op::Mix(more, weights, all)),
        (0u64..9).prop_map(Op::Concatenate),
    ];
    // A value that only one of several sources has cannot be mixed.
    prop::collection::vec(op, 0..5).prop_map(|mut ops| {
        let joined = ops
            .iter()
            .rposition(|op| matches!(op, Op::Mix(..) | Op::Concatenate(_)));
        let joined = joined.unwrap_or(0);
        let mut at = 0;
        ops.retain(|op| {
            at += 1;
            at > joined || !matches!(op, Op::Index)
        });
        ops
    })
}

fn stream_ops() -> impl Strategy<Value = Vec<StreamOp>> {
    let op = prop_oneof![
        (2i64..5).prop_map(StreamOp::Filter),
        (2i64..5).prop_map(StreamOp::FlatMap),
        (0i64..9).prop_map(StreamOp::Map),
        any::<u64>().prop_map(StreamOp::RandomMap),
        Just(StreamOp::Index),
        (1u64..20, any::<u64>()).prop_map(|(window, seed)| StreamOp::WindowShuffle(window, seed)),
        (1u64..5).prop_map(StreamOp::Batch),
        (1u64..5).prop_map(StreamOp::Rebatch),
    ];
    let pack = (
        0usize..4,
        any::<bool>(),
        prop::option::of(any::<u64>()),
        5usize..12,
        any::<bool>(),
    )
        .prop_map(|(bins, best, shuffled, length, drop)| StreamOp::Pack(bins, best, shuffled, length, drop));
    let after = prop_oneof![
        Just(StreamOp::Index),
        (1u64..20, any::<u64>()).prop_map(|(window, seed)| StreamOp::WindowShuffle(window, seed)),
        (1u64..5).prop_map(StreamOp::Batch),
    ];
    (
        prop::collection::vec(op, 0..4),
        prop::option::of(pack),
        prop::collection::vec(after, 0..2),
    )
        .prop_map(|(mut ops, pack, after)| {
            ops.extend(pack);
            ops.extend(after);
            ops
        })
}

/// Killed and gone on with a hundred times, each time by another number of hosts and threads: nothing is left out and nothing comes twice.
#[test]
fn a_hundred_restores_change_nothing() {
    let ops = [
        Op::Shuffle(1),
        Op::Mix(8, [3, 1], true),
        Op::RandomMap(2),
        Op::Filter(4),
    ];
    let stream_ops = [
        StreamOp::FlatMap(3),
        StreamOp::Pack(3, true, Some(4), 9, false),
        StreamOp::Index,
        StreamOp::WindowShuffle(20, 5),
    ];
    let streams = 6;
    let dataset = build(40, &ops)
        .repeat(None)
        .unwrap()
        .to_iter_over(streams)
        .unwrap();
    let dataset = build_streams(dataset, &stream_ops);
    let open = |size, options: PipelineOptions| {
        let batch = BatchOptions::new(size).stacking(Stacking::Ragged);
        dataset.clone().batch(batch).unwrap().load(options).unwrap()
    };
    let mut random = 1u64;
    let mut below = |limit: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let legs: Vec<Leg> = (0..100)
        .map(|_| Leg {
            hosts: 1 + below(12),
            size: 1 + below(2),
            steps: below(3) as usize,
            threads: vec![below(16) as usize, below(3) as usize],
        })
        .collect();
    let limit = 1_500;
    let found = run(&open, true, &legs, limit);
    assert!(found.len() >= limit);
    let mut wanted = merged(&random_access(0, 40, &ops, 300).0, &stream_ops, streams);
    assert!(wanted.len() > limit + 500, "{}", wanted.len());
    wanted.truncate(found.len());
    assert_eq!(found, wanted);
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_access_is_as_in_the_reference(n in 0u64..50, ops in ops(), legs in legs(0..4)) {
        let wanted: Vec<Row> = random_access(0, n, &ops, 1).0.into_iter().flatten().collect();
        let dataset = build(n, &ops);
        let open = |size, options: PipelineOptions| {
            let batch = BatchOptions::new(size).stacking(Stacking::Ragged);
            dataset.clone().batch(batch).unwrap().load(options).unwrap()
        };
        prop_assert_eq!(run(&open, false, &legs, usize::MAX), wanted);
    }

    #[test]
    fn streams_are_as_in_the_reference(
        n in 0u64..50, ops in ops(), filter in prop::option::of(2i64..5), stream_ops in stream_ops(),
        streams in 1u64..8, legs in legs(0..4),
    ) {
        let mut ops = ops;
        ops.extend(filter.map(Op::Filter));
        let wanted = merged(&random_access(0, n, &ops, 1).0, &stream_ops, streams);
        let dataset = build_streams(build(n, &ops).to_iter_over(streams).unwrap(), &stream_ops);
        let open = |size, options: PipelineOptions| {
            let batch = BatchOptions::new(size).stacking(Stacking::Ragged);
            dataset.clone().batch(batch).unwrap().load(options).unwrap()
        };
        prop_assert_eq!(run(&open, true, &legs, usize::MAX), wanted);
    }

    /// Weights that change, on the way of a run that knows it from the start and of one that learns it from a state: the same.
    #[test]
    fn mixed_streams_are_as_in_the_reference(
        n in 0u64..30, ops in ops(), filter in prop::option::of(2i64..5), stream_ops in stream_ops(), streams in 1u64..8,
        more in 0u64..9, weights in [1u64..9, 1..9], all in any::<bool>(),
        mut changes in prop::collection::vec((0u64..60, [1u64..9, 1..9]), 0..3), legs in legs(0..4), cut in legs(1..2),
    ) {
        let mut ops = ops;
        ops.retain(|op| !matches!(op, Op::Index));
        ops.extend(filter.map(Op::Filter));
        changes.sort();
        let mix = StreamMix { more, weights, all, changes };
        let length = random_access(0, n, &ops, 1).1;
        // Each round gives one element at least, and the other source's are nine times as many at most.
        let epochs = |own: u64, other: u64, ops: &[Op], first: u64, n: u64| -> Vec<Vec<Option<Row>>> {
            match own {
                0 => vec![Vec::new()],
                own => {
                    let rows = random_access(first, n, ops, 9 * other + 12).0;
                    rows.chunks(own as usize).map(<[Option<Row>]>::to_vec).collect()
                }
            }
        };
        let first = epochs(length, more, &ops, 0, n);
        let second = epochs(more, length, &[], 1_000, more);
        let of_streams: Vec<Vec<Row>> = (0..streams)
            .map(|stream| stream_rows(mix.stream(&first, &second, stream, streams), &stream_ops, stream, streams))
            .collect();
        let wanted = in_rounds(&of_streams);
        let open = |mix: &StreamMix| {
            let dataset = build_streams(mix.build(build(n, &ops), streams), &stream_ops);
            move |size, options: PipelineOptions| {
                let batch = BatchOptions::new(size).stacking(Stacking::Ragged);
                dataset.clone().batch(batch).unwrap().load(options).unwrap()
            }
        };
        prop_assert_eq!(run(&open(&mix), true, &legs, usize::MAX), wanted.clone());

        // Saved before anything changes, by a run that knows of no change.
        let old = open(&StreamMix { changes: Vec::new(), ..mix.clone() });
        let mut pipeline = old(cut[0].size, PipelineOptions::new());
        let mut found: Vec<Row> = Vec::new();
        let mut state = pipeline.state();
        let earliest = mix.changes.first().map_or(u64::MAX, |(position, _)| *position);
        for _ in 0..cut[0].steps {
            let Some(batch) = pipeline.next_element().unwrap() else { break };
            if pipeline.state().mixture_position() > earliest {
                // It cannot be changed for what has been delivered.
                let options = PipelineOptions::new().restore([pipeline.state()]);
                let dataset = build_streams(mix.build(build(n, &ops), streams), &stream_ops);
                prop_assert!(dataset.batch(BatchOptions::new(1).stacking(Stacking::Ragged)).unwrap().load(options).is_err());
                break;
            }
            found.extend(self::rows(&batch));
            state = pipeline.state();
        }
        let mut rest = open(&mix)(3, PipelineOptions::new().restore([state]));
        while let Some(batch) = rest.next_element().unwrap() {
            found.extend(self::rows(&batch));
        }
        prop_assert_eq!(found, wanted);
    }

    /// Without an end nothing is counted, and hosts know of each other's streams by their states only.
    #[test]
    fn endless_streams_are_as_in_the_reference(
        n in 4u64..30, ops in ops(), stream_ops in stream_ops(), streams in 1u64..8, legs in legs(1..4),
    ) {
        let mut ops = ops;
        ops.retain(|op| !matches!(op, Op::Slice(..) | Op::Mix(..)));
        // One that gives nothing for ever is not waited for.
        let mut stream_ops = stream_ops;
        stream_ops.retain(|op| !matches!(op, StreamOp::Filter(_) | StreamOp::FlatMap(_)));
        // So is a row that is never full: a stream of nothing but empty sequences.
        let streams = if stream_ops.iter().any(|op| matches!(op, StreamOp::Pack(..))) { 1 } else { streams };
        let epochs = 50;
        let mut wanted = merged(&random_access(0, n, &ops, epochs).0, &stream_ops, streams);
        let dataset = build(n, &ops).repeat(None).unwrap().to_iter_over(streams).unwrap();
        let dataset = build_streams(dataset, &stream_ops);
        let open = |size, options: PipelineOptions| {
            let batch = BatchOptions::new(size).stacking(Stacking::Ragged);
            dataset.clone().batch(batch).unwrap().load(options).unwrap()
        };
        // Far from the end of the reference, which the engine does not have.
        let limit = (wanted.len() / 3).min(60);
        let mut found = run(&open, true, &legs, limit);
        found.truncate(limit);
        wanted.truncate(found.len());
        prop_assert_eq!(found, wanted);
    }
}
