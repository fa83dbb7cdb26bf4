//! What reading one `tf.train.Example` costs: token lists, text, a picture. One thread, warm, processor time; checks every answer.
//!
//! `cargo bench -p prep-formats --bench wire`.
#![expect(clippy::print_stdout, reason = "its results are what the program is for")]

use std::hint::black_box;

use prep_formats::example::{Example, ExampleView, FeatureList, FeatureView};

mod support;

use support::{next, time};

fn example(features: impl IntoIterator<Item = (&'static str, FeatureList)>) -> Vec<u8> {
    let features = features.into_iter();
    Example {
        features: features.map(|(name, list)| (name.to_string(), list)).collect(),
    }
    .encode()
}

fn main() {
    let mut state = 42;
    // Token numbers of a vocabulary of 50,000: frequent ones are small.
    let tokens = |bits: u64, state: &mut u64| -> Vec<i64> {
        (0..600)
            .map(|_| {
                let shift = next(state) % bits;
                ((next(state) & 0xffff) >> shift) as i64
            })
            .collect()
    };
    for (name, bits) in [
        ("tokens of 1 to 3 bytes", 16),
        ("tokens of 2 and 3 bytes", 8),
        ("tokens of 3 bytes", 2),
    ] {
        let lists: Vec<Vec<i64>> = (0..500).map(|_| tokens(bits, &mut state)).collect();
        let records: Vec<Vec<u8>> = lists
            .iter()
            .map(|list| example([("tokens", FeatureList::Int64(list.clone()))]))
            .collect();
        let bytes: usize = records.iter().map(Vec::len).sum();
        let mut values = Vec::new();
        let each = time(500 * 600, || {
            for (record, list) in records.iter().zip(&lists) {
                let view = ExampleView::parse(record).expect("it was encoded");
                values.clear();
                match view.get("tokens") {
                    Some(FeatureView::Int64(tokens)) => tokens.append_to(&mut values),
                    _ => unreachable!("it was encoded"),
                }
                assert_eq!(black_box(values.len()), list.len());
            }
        });
        assert_eq!(Some(&values), lists.last());
        println!(
            "{name:<28} {each:>7.2} ns a token, {:.0} M/s, {:.2} bytes each",
            1e3 / each,
            bytes as f64 / 3e5
        );
        let parse = time(500 * 600, || {
            for record in &records {
                black_box(ExampleView::parse(record).expect("it was encoded").len());
            }
        });
        println!("{:<28} {parse:>7.2} ns a token to check and count", "");
    }
    let text = || FeatureList::Bytes(vec![vec![b'x'; 900]]);
    let picture = || FeatureList::Bytes(vec![vec![0; 2200]]);
    let number = |value| FeatureList::Int64(vec![value]);
    let floats = || FeatureList::Float(vec![0.5; 1000]);
    for (name, record) in [
        (
            "text and label",
            example([("label", number(1)), ("text", text())]),
        ),
        (
            "picture, id and label",
            example([("id", text()), ("image", picture()), ("label", number(7))]),
        ),
        ("1,000 floats", example([("embedding", floats())])),
    ] {
        let mut values: Vec<f32> = Vec::new();
        let each = time(1000, || {
            for _ in 0..1000 {
                let view = ExampleView::parse(black_box(&record)).expect("it was encoded");
                if let Some(FeatureView::Float(list)) = view.get("embedding") {
                    values.clear();
                    list.append_to(&mut values);
                }
                black_box(view.len());
            }
        });
        println!("{name:<28} {each:>7.1} ns an example");
    }
}
