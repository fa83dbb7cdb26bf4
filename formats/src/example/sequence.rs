//! `tf.train.SequenceExample`: features of the whole, and lists of features, one a step.

use std::collections::BTreeMap;

use crate::Result;
use crate::example::owned::FeatureList;
use crate::example::view::{ExampleView, FeatureView, Named, in_feature};
use crate::example::wire::{self, Entries, Field, Fields, merge_feature, utf8};

/// A parsed sequence example that borrows from its record.
///
/// Everything has been checked when it is made. Lists come in the order in which their names first appear; of a name that comes again the
/// last one counts, as in Protocol Buffers.
///
/// # Examples
/// ```
/// use prep_formats::example::{FeatureList, FeatureView, SequenceExample, SequenceExampleView};
///
/// let mut example = SequenceExample::default();
/// example.context.insert("length".into(), FeatureList::Int64(vec![2]));
/// let steps = vec![FeatureList::Bytes(vec![b"one".to_vec()]), FeatureList::Bytes(vec![b"two".to_vec()])];
/// example.feature_lists.insert("words".into(), steps);
///
/// let record = example.encode();
/// let view = SequenceExampleView::parse(&record)?;
/// let words = view.feature_list("words").expect("it was put in");
/// assert_eq!(words.len(), 2);
/// let FeatureView::Bytes(second) = &words.steps()[1] else { panic!("words are bytes") };
/// assert_eq!(second.first(), Some(&b"two"[..]));
/// assert!(matches!(view.context().get("length"), Some(FeatureView::Int64(_))));
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct SequenceExampleView<'a> {
    context: ExampleView<'a>,
    lists: Vec<(&'a str, FeatureListView<'a>)>,
}

/// The features of all steps under one name.
#[derive(Debug, Clone, Default)]
pub struct FeatureListView<'a> {
    steps: Vec<FeatureView<'a>>,
}

impl<'a> FeatureListView<'a> {
    /// One feature a step.
    pub fn steps(&self) -> &[FeatureView<'a>] {
        &self.steps
    }

    /// How many steps there are.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl<'a> SequenceExampleView<'a> {
    /// Parses and checks a record. Costs one pass over the bytes, of which byte strings are skipped; holds a view of 48 bytes a step.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] for bytes that Protocol Buffers refuse, as [`ExampleView::parse`].
    pub fn parse(record: &'a [u8]) -> Result<Self> {
        let (mut context, mut lists) = (Named::default(), Named::default());
        let mut fields = Fields::new(record);
        // Either part may come more than once: their entries are then those of one.
        while let Some(field) = fields.next()? {
            match field {
                (1, Field::Bytes(features)) => {
                    let mut entries = Entries::of_features(features);
                    while let Some((name, value)) = entries.next()? {
                        context.put_feature(name, value)?;
                    }
                }
                (2, Field::Bytes(feature_lists)) => {
                    let mut entries = Fields::new(feature_lists);
                    while let Some(field) = entries.next()? {
                        if let (1, Field::Bytes(entry)) = field
                            && let Some((name, list)) = parse_entry(entry)?
                        {
                            lists.put(name, list);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(Self {
            context: ExampleView::from_named(context),
            lists: lists.values,
        })
    }

    /// The features of the whole.
    pub fn context(&self) -> &ExampleView<'a> {
        &self.context
    }

    /// Names and lists.
    pub fn feature_lists(&self) -> impl ExactSizeIterator<Item = (&'a str, &FeatureListView<'a>)> {
        self.lists.iter().map(|(name, list)| (*name, list))
    }

    /// The list of that name, found by going through all.
    pub fn feature_list(&self, name: &str) -> Option<&FeatureListView<'a>> {
        let mut lists = self.lists.iter();
        lists.find(|(other, _)| *other == name).map(|(_, list)| list)
    }
}

/// A map entry of `FeatureLists`; `None` if it has fields other than name and value, as for `Features`.
fn parse_entry(entry: &[u8]) -> Result<Option<(&str, FeatureListView<'_>)>> {
    let (mut name, mut steps, mut known) = (None, Vec::new(), true);
    let mut fields = Fields::new(entry);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(bytes)) => {
                if let Some(before) = name.replace(bytes) {
                    utf8(before)?;
                }
            }
            (2, Field::Bytes(list)) => parse_list(list, &mut steps)?,
            _ => known = false,
        }
    }
    let name = utf8(name.unwrap_or_default())?;
    let steps: Result<Vec<FeatureView<'_>>> = steps.into_iter().map(FeatureView::new).collect();
    let steps = steps.map_err(|error| in_feature(name, error))?;
    Ok(known.then_some((name, FeatureListView { steps })))
}

type Step<'a> = Option<(wire::Kind, wire::Parts<'a>)>;

/// Appends the features of a `FeatureList`.
fn parse_list<'a>(list: &'a [u8], steps: &mut Vec<Step<'a>>) -> Result<()> {
    let mut fields = Fields::new(list);
    while let Some(field) = fields.next()? {
        if let (1, Field::Bytes(feature)) = field {
            let mut step = None;
            merge_feature(feature, &mut step)?;
            steps.push(step);
        }
    }
    Ok(())
}

/// A sequence example with values of its own.
///
/// # Examples
/// ```
/// use prep_formats::example::{FeatureList, SequenceExample};
///
/// let mut example = SequenceExample::default();
/// example.feature_lists.insert("frames".into(), vec![FeatureList::Float(vec![0.5]), FeatureList::None]);
/// assert_eq!(SequenceExample::decode(&example.encode())?, example);
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SequenceExample {
    /// Features of the whole, by name.
    pub context: BTreeMap<String, FeatureList>,
    /// Features of the steps, by name: one list of values a step.
    pub feature_lists: BTreeMap<String, Vec<FeatureList>>,
}

impl SequenceExample {
    /// Parses a record.
    ///
    /// # Errors
    /// As [`SequenceExampleView::parse`].
    pub fn decode(record: &[u8]) -> Result<Self> {
        let view = SequenceExampleView::parse(record)?;
        let context = view.context.iter();
        let lists = view.feature_lists();
        Ok(Self {
            context: context
                .map(|(name, list)| (name.to_string(), list.into()))
                .collect(),
            feature_lists: lists
                .map(|(name, list)| {
                    (
                        name.to_string(),
                        list.steps.iter().map(FeatureList::from).collect(),
                    )
                })
                .collect(),
        })
    }

    /// The canonical encoding: names in sorted order, lists packed, an empty context or no lists left out. Equal examples give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_to(&mut out);
        out
    }

    /// Appends the canonical encoding to `out`.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        if !self.context.is_empty() {
            let start = out.len();
            for (name, list) in &self.context {
                list.encode_entry(name, out);
            }
            wire::close_message(0x0a, start, out);
        }
        if self.feature_lists.is_empty() {
            return;
        }
        let start = out.len();
        for (name, steps) in &self.feature_lists {
            let lengths: Vec<(usize, usize)> = steps.iter().map(FeatureList::lengths).collect();
            let feature_lengths = || {
                let both = steps.iter().zip(&lengths);
                both.map(|(step, &(length, _))| wire::feature_length(step.kind(), length))
            };
            let list_length = feature_lengths()
                .map(|length| 1 + wire::varint_length(length as u64) + length)
                .sum();
            wire::put_entry_header(name, list_length, out);
            for ((step, &(length, body)), feature_length) in steps.iter().zip(&lengths).zip(feature_lengths())
            {
                out.push(0x0a);
                wire::put_varint(feature_length as u64, out);
                wire::put_feature(step.kind(), length, out, |out| step.encode_list(body, out));
            }
        }
        wire::close_message(0x12, start, out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value as Json;

    use super::*;
    use crate::example::owned::tests::{bits, golden, list, wanted};

    fn all_bits(example: &SequenceExample) -> String {
        let lists = example.feature_lists.iter().map(|(name, steps)| {
            let steps = steps.iter().enumerate();
            let steps: BTreeMap<String, FeatureList> =
                steps.map(|(i, step)| (format!("{i:04}"), step.clone())).collect();
            format!("{name:?}: [{}]", bits(&steps))
        });
        format!("{}\n{}", bits(&example.context), lists.collect::<String>())
    }

    #[test]
    fn reads_what_protocol_buffers_read_and_refuses_what_they_refuse() {
        let folder = golden();
        let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: Json = serde_json::from_str(&manifest).unwrap();
        let mut num_files = 0;
        for file in manifest["files"].as_array().unwrap() {
            if file["type"] != "SequenceExample" {
                continue;
            }
            num_files += 1;
            let name = file["file"].as_str().unwrap();
            let record = std::fs::read(folder.join(name)).unwrap();
            let result = SequenceExample::decode(&record);
            if file["protobuf"] == "ok" {
                let example = result.unwrap_or_else(|error| panic!("{name}: {error}"));
                let decoded = &file["decoded"];
                let lists = decoded["feature_lists"].as_object().unwrap().iter();
                let wanted = SequenceExample {
                    context: wanted(&decoded["context"]),
                    feature_lists: lists
                        .map(|(name, steps)| {
                            let steps = steps.as_array().unwrap().iter();
                            let steps = steps.map(|step| {
                                let one = serde_json::json!({ "step": step });
                                wanted(&one).remove("step").unwrap()
                            });
                            (name.clone(), steps.collect())
                        })
                        .collect(),
                };
                assert_eq!(all_bits(&example), all_bits(&wanted), "{name}");
                let again = SequenceExample::decode(&example.encode()).unwrap();
                assert_eq!(all_bits(&again), all_bits(&example), "{name}");
            } else {
                assert!(result.is_err(), "{name} was read");
            }
            for cut in 0..record.len() {
                let _ = SequenceExample::decode(&record[..cut]);
            }
            for bit in 0..8 * record.len().min(400) {
                let mut flipped = record.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let _ = SequenceExample::decode(&flipped);
            }
        }
        assert!(num_files >= 6);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn decodes_what_it_encodes(
            context in prop::collection::btree_map(".{0,12}", list(), 0..5),
            feature_lists in prop::collection::btree_map(".{0,12}", prop::collection::vec(list(), 0..5), 0..5),
        ) {
            let example = SequenceExample { context, feature_lists };
            let record = example.encode();
            let back = SequenceExample::decode(&record).unwrap();
            prop_assert_eq!(all_bits(&back), all_bits(&example));
            prop_assert_eq!(back.encode(), record);
        }

        #[test]
        fn any_bytes_decode_stably_or_not_at_all(record in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(example) = SequenceExample::decode(&record) {
                prop_assert_eq!(all_bits(&SequenceExample::decode(&example.encode()).unwrap()), all_bits(&example));
            }
        }
    }

    #[test]
    fn parts_that_come_twice_are_merged_as_messages() {
        let one = |name: &str, value| {
            let mut example = SequenceExample::default();
            example
                .context
                .insert("c".into(), FeatureList::Int64(vec![value]));
            example
                .feature_lists
                .insert(name.into(), vec![FeatureList::Int64(vec![value])]);
            example
        };
        let record = [one("a", 1).encode(), one("b", 2).encode(), one("a", 3).encode()].concat();
        let example = SequenceExample::decode(&record).unwrap();
        assert_eq!(example.context["c"], FeatureList::Int64(vec![3]));
        assert_eq!(example.feature_lists["a"], [FeatureList::Int64(vec![3])]);
        assert_eq!(example.feature_lists["b"], [FeatureList::Int64(vec![2])]);
        // Within one entry the values are parts of one list: entry { 1: "k", 2: { {int64 1} }, 2: { {} } }.
        let record = b"\x12\x14\x0a\x12\x0a\x01k\x12\x09\x0a\x07\x1a\x05\x0a\x03\x01\xac\x02\x12\x02\x0a\x00";
        let view = SequenceExampleView::parse(record).unwrap();
        let list = view.feature_list("k").unwrap();
        assert_eq!(
            (list.len(), list.steps()[0].len(), list.steps()[1].is_empty()),
            (2, 2, true)
        );
        assert!(view.feature_list("x").is_none() && view.context().is_empty());
    }

    #[test]
    fn errors_name_the_list() {
        // `k`, a step with packed floats of 6 bytes.
        let record = b"\x12\x13\x0a\x11\x0a\x01k\x12\x0c\x0a\x0a\x12\x08\x0a\x06\x00\x00\x00\x00\x00\x00";
        let error = SequenceExample::decode(record).unwrap_err().to_string();
        assert!(
            error.contains("feature `k`") && error.contains("6 bytes"),
            "{error}"
        );
    }
}
