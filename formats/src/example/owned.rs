//! An example that owns its values, and its canonical encoding.

use std::collections::BTreeMap;

use crate::Result;
use crate::example::view::{ExampleView, FeatureView};
use crate::example::wire::{self, Kind};

/// The values of one feature.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum FeatureList {
    /// Byte strings.
    Bytes(Vec<Vec<u8>>),
    /// 64-bit integers.
    Int64(Vec<i64>),
    /// 32-bit floats.
    Float(Vec<f32>),
    /// A feature without a kind.
    #[default]
    None,
}

/// An example with values of its own: for tests, tools and single records. Batches go through [`crate::columns`].
///
/// # Examples
/// ```
/// use prep_formats::example::{Example, FeatureList};
///
/// let mut example = Example::default();
/// example.features.insert("label".into(), FeatureList::Int64(vec![7]));
/// assert_eq!(Example::decode(&example.encode())?, example);
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Example {
    /// Lists by feature name.
    pub features: BTreeMap<String, FeatureList>,
}

impl Example {
    /// Parses a record.
    ///
    /// # Errors
    /// As [`ExampleView::parse`].
    pub fn decode(record: &[u8]) -> Result<Self> {
        let view = ExampleView::parse(record)?;
        let features = view
            .iter()
            .map(|(name, list)| (name.to_string(), FeatureList::from(list)))
            .collect();
        Ok(Self { features })
    }

    /// The canonical encoding: names in sorted order, lists packed. Equal examples give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_to(&mut out);
        out
    }

    /// Appends the canonical encoding to `out`.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        for (name, list) in &self.features {
            list.encode_entry(name, out);
        }
        wire::close_example(start, out);
    }
}

impl FeatureList {
    pub(super) fn kind(&self) -> Option<Kind> {
        match self {
            Self::Bytes(_) => Some(Kind::Bytes),
            Self::Int64(_) => Some(Kind::Int64),
            Self::Float(_) => Some(Kind::Float),
            Self::None => None,
        }
    }

    /// Length of the list message, and of what is packed in it.
    pub(super) fn lengths(&self) -> (usize, usize) {
        let body = match self {
            Self::Bytes(values) => {
                return (wire::bytes_list_length(values.iter().map(Vec::as_slice)), 0);
            }
            Self::Int64(values) => values
                .iter()
                .map(|value| wire::varint_length(value.cast_unsigned()))
                .sum(),
            Self::Float(values) => 4 * values.len(),
            Self::None => 0,
        };
        (wire::packed_length(body), body)
    }

    /// Appends the list message; `body` is the length of what is packed in it.
    pub(super) fn encode_list(&self, body: usize, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(values) => {
                for value in values {
                    out.push(0x0a);
                    wire::put_varint(value.len() as u64, out);
                    out.extend_from_slice(value);
                }
            }
            Self::Int64(values) => {
                wire::put_packed_header(body, out);
                for value in values {
                    wire::put_varint(value.cast_unsigned(), out);
                }
            }
            Self::Float(values) => {
                wire::put_packed_header(body, out);
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::None => {}
        }
    }

    /// Appends a map entry of `Features`.
    pub(super) fn encode_entry(&self, name: &str, out: &mut Vec<u8>) {
        let (length, body) = self.lengths();
        wire::put_entry(name, self.kind(), length, out, |out| self.encode_list(body, out));
    }
}

impl From<&FeatureView<'_>> for FeatureList {
    fn from(view: &FeatureView<'_>) -> Self {
        match view {
            FeatureView::Bytes(list) => Self::Bytes(list.iter().map(<[u8]>::to_vec).collect()),
            FeatureView::Int64(list) => Self::Int64(list.iter().collect()),
            FeatureView::Float(list) => Self::Float(list.iter().collect()),
            FeatureView::None => Self::None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::Value as Json;

    use super::*;

    pub(in crate::example) fn golden() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/example")
    }

    /// The lists that Google's Protocol Buffers found, as the manifest has them.
    pub(in crate::example) fn wanted(features: &Json) -> BTreeMap<String, FeatureList> {
        let features = features.as_object().unwrap();
        let text = |value: &Json| value.as_str().unwrap().to_string();
        features
            .iter()
            .map(|(name, feature)| {
                let list = if let Some(values) = feature.get("bytes_hex") {
                    let values = values.as_array().unwrap();
                    FeatureList::Bytes(
                        values
                            .iter()
                            .map(|value| hex::decode(text(value)).unwrap())
                            .collect(),
                    )
                } else if let Some(values) = feature.get("int64_list") {
                    let values = values.as_array().unwrap();
                    FeatureList::Int64(values.iter().map(|value| text(value).parse().unwrap()).collect())
                } else if let Some(values) = feature.get("float_bits") {
                    let values = values.as_array().unwrap();
                    let bits = |value| u32::from_str_radix(&text(value), 16).unwrap();
                    FeatureList::Float(values.iter().map(|value| f32::from_bits(bits(value))).collect())
                } else {
                    FeatureList::None
                };
                (name.clone(), list)
            })
            .collect()
    }

    /// Equality by bits: a NaN equals itself.
    pub(in crate::example) fn bits(features: &BTreeMap<String, FeatureList>) -> String {
        let floats = |list: &FeatureList| match list {
            FeatureList::Float(values) => {
                format!("{:x?}", values.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
            }
            other => format!("{other:?}"),
        };
        features
            .iter()
            .map(|(name, list)| format!("{name:?}: {}\n", floats(list)))
            .collect()
    }

    #[test]
    fn reads_what_protocol_buffers_read_and_refuses_what_they_refuse() {
        let folder = golden();
        let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: Json = serde_json::from_str(&manifest).unwrap();
        let files = manifest["files"].as_array().unwrap();
        assert!(files.len() > 20);
        for file in files.iter().filter(|file| file["type"].is_null()) {
            let name = file["file"].as_str().unwrap();
            let record = std::fs::read(folder.join(name)).unwrap();
            let result = Example::decode(&record);
            if file["protobuf"] == "ok" {
                let example = result.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(
                    bits(&example.features),
                    bits(&wanted(&file["decoded"]["features"])),
                    "{name}"
                );
                let again = Example::decode(&example.encode()).unwrap();
                assert_eq!(bits(&again.features), bits(&example.features), "{name}");
            } else {
                assert!(result.is_err(), "{name} was read");
            }
            for cut in 0..record.len() {
                let _ = Example::decode(&record[..cut]);
            }
            for bit in 0..8 * record.len().min(400) {
                let mut flipped = record.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let _ = Example::decode(&flipped);
            }
        }
    }

    pub(in crate::example) fn list() -> impl Strategy<Value = FeatureList> {
        prop_oneof![
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5)
                .prop_map(FeatureList::Bytes),
            prop::collection::vec(any::<i64>(), 0..40).prop_map(FeatureList::Int64),
            prop::collection::vec(-1000i64..1000, 0..40).prop_map(FeatureList::Int64),
            prop::collection::vec(any::<u32>(), 0..40)
                .prop_map(|bits| FeatureList::Float(bits.into_iter().map(f32::from_bits).collect())),
            Just(FeatureList::None),
        ]
    }

    proptest! {
        #[test]
        fn decodes_what_it_encodes(features in prop::collection::btree_map(".{0,12}", list(), 0..8)) {
            let example = Example { features };
            let record = example.encode();
            let back = Example::decode(&record).unwrap();
            prop_assert_eq!(bits(&back.features), bits(&example.features));
            prop_assert_eq!(back.encode(), record);
        }

        #[test]
        fn any_bytes_decode_stably_or_not_at_all(record in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(example) = Example::decode(&record) {
                let canonical = example.encode();
                prop_assert_eq!(bits(&Example::decode(&canonical).unwrap().features), bits(&example.features));
            }
        }
    }

    #[test]
    fn errors_name_the_feature() {
        // `k` with packed floats of 6 bytes.
        let record = b"\x0a\x11\x0a\x0f\x0a\x01k\x12\x0a\x12\x08\x0a\x06\x00\x00\x00\x00\x00\x00";
        let error = Example::decode(record).unwrap_err().to_string();
        assert!(
            error.contains("feature `k`") && error.contains("6 bytes"),
            "{error}"
        );
    }
}
