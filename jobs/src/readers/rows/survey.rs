//! What the rows of all sources have in common: the types of columns.
//!
//! A survey notes for each column which types it saw, each with the first place in source order. Surveys of parts add up to that of the
//! whole, in any order: so the types follow from the sources alone, however many threads look at them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use prep_formats::features::Feature;
use prep_formats::value::DType;
use serde::{Deserialize, Serialize};

use crate::error::Hinted;
use crate::readers::rows::cell::Cell;
use crate::readers::rows::convert::{Misfit, loose_bool, loose_float, plain};
use crate::readers::rows::image_folder::Folders;
use crate::readers::rows::survey_text as text;

/// Columns, or names in one object, that are taken.
const MOST_COLUMNS: usize = 4096;
/// Classes of a label that are gathered from the data.
const MOST_CLASSES: usize = 100_000;

/// What a row is called that comes from code, and not from a file.
pub(crate) const EXAMPLE: &str = "example";

/// Where a row is: ordered as the sources are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) source: u32,
    pub(crate) file: u32,
    pub(crate) row: u64,
    /// The file, as messages call it.
    pub(crate) path: Arc<str>,
    /// What the reader calls a row: `line`; nothing where a file is one.
    pub(crate) unit: &'static str,
}

impl Place {
    /// `a.csv, line 3`.
    pub(crate) fn shown(&self) -> String {
        match self.unit {
            "" => self.path.to_string(),
            // As code counts.
            EXAMPLE => format!("{}, {EXAMPLE} {}", self.path, self.row),
            unit => format!("{}, {unit} {}", self.path, self.row + 1),
        }
    }
}

/// The types that were seen, each with its first place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    /// How often there was a value, or an explicit null.
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    null: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bool: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    int: Option<Place>,
    /// Among integers, one below zero, and one that needs 64 bits without a sign.
    #[serde(skip_serializing_if = "Option::is_none")]
    negative: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    large: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    foreign: Option<(Place, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<(Place, Box<Node>)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dict: Option<(Place, BTreeMap<String, Node>)>,
    #[serde(skip_serializing_if = "Option::is_none", with = "text::tensor")]
    tensor: Option<(Place, DType, Vec<Option<u64>>)>,
    /// A tensor that is not like the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_tensor: Option<(Place, String)>,
    /// Texts of which only their looks tell what they are.
    #[serde(skip_serializing_if = "Loose::is_empty")]
    loose: Loose,
    /// Whether some byte string is no picture, and no text.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_picture: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_text: bool,
    /// The byte strings of records: the first place, least and most of them in a row, and what they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<(Place, usize, usize, Box<Node>)>,
    /// What files themselves say the column is, each once, without whether it may be missing; and whether it may.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", with = "text::told")]
    told: BTreeMap<String, (Place, Feature)>,
    /// Too many names in one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    crowded: Option<Place>,
}

/// What texts of CSV look like.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Loose {
    #[serde(skip_serializing_if = "Option::is_none")]
    empty: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bool: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    int: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Place>,
}

fn note(slot: &mut Option<Place>, place: &Place) {
    if slot.as_ref().is_none_or(|known| place < known) {
        *slot = Some(place.clone());
    }
}

fn merge(slot: &mut Option<Place>, other: Option<Place>) {
    if let Some(place) = other {
        note(slot, &place);
    }
}

/// Whether a text is a number that comes out as it went in: no zeros or signs in front, as postal codes and telephone numbers have.
fn is_plain_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', ..] => digits.len() <= 19 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    plain && std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}

fn is_plain_float(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        b"nan" | b"NaN" | b"inf" | b"Infinity" => true,
        [b'0', b'0'..=b'9', ..] => false,
        [b'0'..=b'9' | b'.', ..] => {
            // Digits alone are a number that is too long to be an integer, which a float would round.
            digits.len() <= 64
                && digits.iter().any(u8::is_ascii_digit)
                && digits.iter().any(|byte| b".eE".contains(byte))
                && loose_float(text).is_some_and(f64::is_finite)
        }
        _ => false,
    }
}

impl Loose {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, text: &[u8], place: &Place) {
        let slot = if text.is_empty() {
            &mut self.empty
        } else if is_plain_integer(text) {
            &mut self.int
        } else if is_plain_float(text) {
            &mut self.float
        } else if loose_bool(text).is_some() {
            &mut self.bool
        } else {
            &mut self.text
        };
        note(slot, place);
    }
}

impl Node {
    pub(crate) fn add(&mut self, cell: &Cell, place: &Place) {
        self.count += 1;
        match cell {
            Cell::Null => note(&mut self.null, place),
            Cell::Bool(_) => note(&mut self.bool, place),
            Cell::Int(value) => {
                note(&mut self.int, place);
                if *value < 0 {
                    note(&mut self.negative, place);
                }
            }
            Cell::UInt(_) => {
                note(&mut self.int, place);
                note(&mut self.large, place);
            }
            Cell::Float(_) => note(&mut self.float, place),
            Cell::Text(_) => note(&mut self.text, place),
            Cell::Bytes(bytes) => {
                note(&mut self.bytes, place);
                self.not_picture = self.not_picture || !is_picture(bytes);
                self.not_text = self.not_text || std::str::from_utf8(bytes).is_err();
            }
            Cell::Values(values) => {
                let count = values.len();
                let (first, least, most, node) = self
                    .values
                    .get_or_insert_with(|| (place.clone(), count, count, Box::default()));
                (*least, *most) = ((*least).min(count), (*most).max(count));
                if place < first {
                    *first = place.clone();
                }
                for value in values {
                    node.add(value, place);
                }
            }
            Cell::Loose(text) => self.loose.add(text, place),
            Cell::Foreign(kind, _) => {
                if self.foreign.as_ref().is_none_or(|(known, _)| place < known) {
                    self.foreign = Some((place.clone(), kind.clone()));
                }
            }
            Cell::List(cells) => {
                let (first, element) = self.list.get_or_insert_with(|| (place.clone(), Box::default()));
                if place < first {
                    *first = place.clone();
                }
                for cell in cells {
                    element.add(cell, place);
                }
            }
            Cell::Dict(fields) => {
                let (first, nodes) = self.dict.get_or_insert_with(|| (place.clone(), BTreeMap::new()));
                if place < first {
                    *first = place.clone();
                }
                add_fields(nodes, fields, place, &mut self.crowded);
            }
            Cell::Tensor(dtype, shape, _) => {
                let shape = shape.iter().map(|size| Some(*size as u64)).collect();
                self.add_tensor(place.clone(), *dtype, shape);
            }
        }
    }

    fn add_tensor(&mut self, place: Place, dtype: DType, shape: Vec<Option<u64>>) {
        let Some((first, known, sizes)) = &mut self.tensor else {
            self.tensor = Some((place, dtype, shape));
            return;
        };
        if *known != dtype || sizes.len() != shape.len() {
            // Kept as what is later in order, so that the order of adding does not count.
            let (later, text) = if place < *first {
                let text = format!("{known} of {} dimensions", sizes.len());
                let later = std::mem::replace(first, place);
                (*known, *sizes) = (dtype, shape);
                (later, text)
            } else {
                (place, format!("{dtype} of {} dimensions", shape.len()))
            };
            if self.other_tensor.as_ref().is_none_or(|(known, _)| later < *known) {
                self.other_tensor = Some((later, text));
            }
            return;
        }
        for (size, other) in sizes.iter_mut().zip(shape) {
            if *size != other {
                *size = None;
            }
        }
        if place < *first {
            *first = place;
        }
    }

    fn add_told(&mut self, name: String, place: Place, feature: Feature) {
        match self.told.get_mut(&name) {
            None => {
                self.told.insert(name, (place, feature));
            }
            Some((first, known)) => {
                *known = joined(known, &feature);
                if place < *first {
                    *first = place;
                }
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.count += other.count;
        merge(&mut self.null, other.null);
        merge(&mut self.bool, other.bool);
        merge(&mut self.int, other.int);
        merge(&mut self.negative, other.negative);
        merge(&mut self.large, other.large);
        merge(&mut self.float, other.float);
        merge(&mut self.text, other.text);
        merge(&mut self.bytes, other.bytes);
        merge(&mut self.crowded, other.crowded);
        merge(&mut self.loose.empty, other.loose.empty);
        merge(&mut self.loose.bool, other.loose.bool);
        merge(&mut self.loose.int, other.loose.int);
        merge(&mut self.loose.float, other.loose.float);
        merge(&mut self.loose.text, other.loose.text);
        self.not_picture |= other.not_picture;
        self.not_text |= other.not_text;
        match (&mut self.values, other.values) {
            (Some((place, least, most, node)), Some((other_place, other_least, other_most, other))) => {
                *place = (*place).clone().min(other_place);
                (*least, *most) = ((*least).min(other_least), (*most).max(other_most));
                node.merge(*other);
            }
            (slot @ None, Some(other)) => *slot = Some(other),
            (_, None) => {}
        }
        for (name, (place, feature)) in other.told {
            self.add_told(name, place, feature);
        }
        if let Some((place, kind)) = other.foreign
            && self.foreign.as_ref().is_none_or(|(known, _)| place < *known)
        {
            self.foreign = Some((place, kind));
        }
        match (&mut self.list, other.list) {
            (Some((place, node)), Some((other_place, other))) => {
                *place = (*place).clone().min(other_place);
                node.merge(*other);
            }
            (slot @ None, Some(other)) => *slot = Some(other),
            (_, None) => {}
        }
        match (&mut self.dict, other.dict) {
            (Some((place, nodes)), Some((other_place, others))) => {
                *place = (*place).clone().min(other_place);
                merge_fields(nodes, others, &mut self.crowded);
            }
            (slot @ None, Some(other)) => *slot = Some(other),
            (_, None) => {}
        }
        if let Some((place, dtype, shape)) = other.tensor {
            self.add_tensor(place, dtype, shape);
        }
        if let Some((place, text)) = other.other_tensor
            && self.other_tensor.as_ref().is_none_or(|(known, _)| place < *known)
        {
            self.other_tensor = Some((place, text));
        }
    }

    /// The feature that holds all values of so many rows.
    ///
    /// # Errors
    /// There is none: the message names the column, the places and what was found, and the advice what to write into the recipe.
    pub(crate) fn feature(&self, column: &str, rows: u64, place_of_rows: Option<&Place>) -> Result<Feature> {
        let is_missing = self.null.is_some() || self.count < rows;
        if let Some(place) = &self.crowded {
            return Err(Hinted::new(
                format!(
                    "{}, column `{column}`: its objects have more than {MOST_COLUMNS} different names",
                    place.shown()
                ),
                format!(
                    "keep it as text: `[features.{}]` with `kind = \"text\"`, or leave it out with `drop`",
                    quoted(column)
                ),
            )
            .into());
        }
        if let Some((place, kind)) = &self.foreign {
            let cast = if kind.starts_with("decimal") {
                "`kind = \"scalar\"`, `dtype = \"float64\"` (rounded), or `kind = \"text\"`"
            } else {
                "`kind = \"scalar\"`, `dtype = \"int64\"` (since 1970, in its unit), or `kind = \"text\"`"
            };
            return Err(Hinted::new(
                format!(
                    "{}, column `{column}`: there is no feature for a {kind}",
                    place.shown()
                ),
                format!(
                    "say what it becomes: `[features.{}]` with {cast}; or leave it out with `drop`",
                    quoted(column)
                ),
            )
            .into());
        }
        if !self.told.is_empty() {
            return self.told_feature(column, is_missing);
        }
        let mut kinds: Vec<(&Place, &str)> = Vec::new();
        let numbers = [
            (&self.bool, "a truth value"),
            (&self.int, "an integer"),
            (&self.float, "a number"),
            (&self.text, "a text"),
            (&self.bytes, "bytes"),
        ];
        for (place, what) in numbers {
            if let Some(place) = place {
                // Integers and numbers go together.
                if what == "a number" && self.int.is_some() {
                    continue;
                }
                kinds.push((place, what));
            }
        }
        if let Some((place, _)) = &self.list {
            kinds.push((place, "a list"));
        }
        if let Some((place, _)) = &self.dict {
            kinds.push((place, "an object"));
        }
        if let Some((place, ..)) = &self.tensor {
            kinds.push((place, "numbers"));
        }
        if let Some((place, ..)) = &self.values {
            kinds.push((place, "byte strings"));
        }
        let loose = self.loose_dtype();
        if let Some((place, _)) = &loose {
            kinds.push((place, "a text"));
        }
        kinds.sort();
        if let [(first, one), (second, other), ..] = kinds.as_slice() {
            return Err(Hinted::new(
                format!(
                    "{}, column `{column}`: found {other}, where {} has {one}",
                    second.shown(), first.shown()
                ),
                format!(
                    "say what all become: `[features.{}]` with `kind = \"text\"` takes any value; or leave the column out with `drop`",
                    quoted(column)
                ),
            )
            .into());
        }
        if let Some((place, text)) = &self.other_tensor
            && let Some((first, dtype, shape)) = &self.tensor
        {
            return Err(anyhow!(
                "{}, column `{column}`: found {text}, where {} has {dtype} of {} dimensions",
                place.shown(),
                first.shown(),
                shape.len()
            ));
        }
        let optional = |feature: Feature| match is_missing {
            true => Feature::Optional(Box::new(feature)),
            false => feature,
        };
        let scalar = |dtype| optional(Feature::Scalar { dtype });
        if let Some((_, dtype)) = loose {
            return Ok(match dtype {
                DType::String if !is_missing => Feature::Text,
                DType::String => scalar(dtype),
                // Of what CSV has, an empty text is no number.
                dtype if self.loose.empty.is_some() => Feature::Optional(Box::new(Feature::Scalar { dtype })),
                dtype => scalar(dtype),
            });
        }
        if let (Some(_), None) = (&self.int, &self.float) {
            return match (&self.negative, &self.large) {
                (_, None) => Ok(scalar(DType::Int64)),
                (None, Some(_)) => Ok(scalar(DType::UInt64)),
                (Some(negative), Some(large)) => Err(Hinted::new(
                    format!(
                        "column `{column}`: {} has an integer below 0, and {} one beyond 2^63; no type holds both",
                        negative.shown(), large.shown()
                    ),
                    format!("`[features.{}]` with `kind = \"text\"` or `dtype = \"float64\"` takes both", quoted(column)),
                )
                .into()),
            };
        }
        if self.float.is_some() {
            return Ok(scalar(DType::Float64));
        }
        if self.bool.is_some() {
            return Ok(scalar(DType::Bool));
        }
        if self.text.is_some() {
            return Ok(if is_missing {
                scalar(DType::String)
            } else {
                Feature::Text
            });
        }
        if self.bytes.is_some() {
            return Ok(match self.not_picture || is_missing {
                true => scalar(DType::String),
                false => picture(),
            });
        }
        if let Some((place, element)) = &self.list {
            let feature = element.feature(&format!("{column}[]"), element.count, Some(place))?;
            return match feature {
                Feature::Optional(_) => {
                    let misfit = Misfit::gap(column.trim_end_matches("[]"));
                    let place = element.null.as_ref().unwrap_or(place).shown();
                    let context = Hinted::new(format!("{place}, column `{column}`"), misfit.hint());
                    Err(anyhow::Error::new(misfit).context(context))
                }
                feature => Ok(Feature::sequence(feature)),
            };
        }
        if let Some((place, nodes)) = &self.dict {
            // What is missing as a whole lacks each of its values.
            let rows = if is_missing {
                rows.max(self.count)
            } else {
                self.count
            };
            let mut features = Vec::new();
            for (name, node) in nodes {
                let feature = node.feature(&format!("{column}/{name}"), rows, Some(place))?;
                features.push((name.clone(), feature));
            }
            return Ok(Feature::dict(features));
        }
        if let Some((_, least, most, node)) = &self.values {
            let is_text = !node.not_text;
            let is_picture = node.bytes.is_some() && !node.not_picture;
            return Ok(match (least, most) {
                (1, 1) if is_picture && !is_missing => picture(),
                (1, 1) if is_text && !is_missing => Feature::Text,
                (1, 1) if !is_missing => Feature::Scalar { dtype: DType::String },
                (_, 1) => Feature::Optional(Box::new(Feature::Scalar { dtype: DType::String })),
                (least, most) if least == most => {
                    optional(Feature::tensor(vec![Some(*most as u64)], DType::String))
                }
                _ if is_picture => Feature::sequence(picture()),
                _ if is_text => Feature::sequence(Feature::Text),
                _ => Feature::sequence(Feature::Scalar { dtype: DType::String }),
            });
        }
        if let Some((place, dtype, shape)) = &self.tensor {
            // Records have lists of numbers only, where code has arrays.
            return Ok(
                if shape.is_empty() || shape[..] == [Some(1)] && place.unit != EXAMPLE {
                    scalar(*dtype)
                } else {
                    optional(Feature::tensor(shape.clone(), *dtype))
                },
            );
        }
        let place = self.null.as_ref().or(self.loose.empty.as_ref()).or(place_of_rows);
        let shown = place.map_or(String::new(), |place| format!("{}, ", place.shown()));
        Err(Hinted::new(
            format!("{shown}column `{column}`: there is no value in any row, so its type does not show"),
            format!(
                "say what it is: `[features.{}]` with `kind = \"text\"` and `optional = true`; or leave it out with `drop`",
                quoted(column.trim_end_matches("[]"))
            ),
        )
        .into())
    }

    /// The feature that all files say the column is.
    fn told_feature(&self, column: &str, is_missing: bool) -> Result<Feature> {
        let mut told: Vec<&(Place, Feature)> = self.told.values().collect();
        told.sort_by(|(a, _), (b, _)| a.cmp(b));
        if let [(first, one), (second, other), ..] = told.as_slice() {
            return Err(Hinted::new(
                format!(
                    "{}, column `{column}`: it is {}, where in {} it is {}",
                    second.shown(),
                    in_words(other),
                    first.shown(),
                    in_words(one)
                ),
                format!(
                    "say what all become under `[features.{}]`; or leave the column out with `drop`",
                    quoted(column)
                ),
            )
            .into());
        }
        let feature = told.first().map_or(Feature::Text, |(_, feature)| feature.clone());
        if !is_missing {
            return Ok(feature);
        }
        Ok(match feature {
            Feature::Text => Feature::Optional(Box::new(Feature::Scalar { dtype: DType::String })),
            feature @ (Feature::Scalar { .. } | Feature::Tensor { .. }) => {
                Feature::Optional(Box::new(feature))
            }
            feature => feature,
        })
    }

    /// What texts without a type are, all together.
    fn loose_dtype(&self) -> Option<(Place, DType)> {
        let Loose {
            empty: _,
            bool,
            int,
            float,
            text,
        } = &self.loose;
        let first = [bool, int, float, text].into_iter().flatten().min()?.clone();
        let dtype = match (bool, int, float, text) {
            (_, _, _, Some(_)) => DType::String,
            (Some(_), None, None, None) => DType::Bool,
            (Some(_), ..) => DType::String,
            (None, _, Some(_), None) => DType::Float64,
            (None, _, None, None) => DType::Int64,
        };
        Some((first, dtype))
    }
}

/// What a file itself says of a column.
#[derive(Debug, Clone)]
pub(crate) enum Told {
    /// It is this.
    Feature(Feature),
    /// It is of a type, in the file's words, that no feature is.
    Foreign(String),
}

/// The feature without whether it, or what is in it, may be missing, and with texts as byte strings: what can be joined is the same.
fn bare(feature: &Feature) -> Feature {
    match feature {
        Feature::Optional(inner) => bare(inner),
        Feature::Text => Feature::Scalar { dtype: DType::String },
        Feature::Dict(features) => {
            Feature::dict(features.iter().map(|(name, inner)| (name.clone(), bare(inner))))
        }
        other => other.clone(),
    }
}

/// Of two features that are the same when [`bare`] the one for both; the order does not matter.
fn joined(one: &Feature, other: &Feature) -> Feature {
    match (one, other) {
        (Feature::Dict(ones), Feature::Dict(others)) => {
            let pairs = ones.iter().zip(others);
            Feature::dict(pairs.map(|((name, one), (_, other))| (name.clone(), joined(one, other))))
        }
        (Feature::Optional(_), _) | (_, Feature::Text) => one.clone(),
        _ => other.clone(),
    }
}

/// A feature's type, for messages.
fn in_words(feature: &Feature) -> String {
    match (feature, feature.dtype()) {
        (Feature::Sequence { feature, .. }, _) => format!("a list of {}", in_words(feature)),
        (Feature::Dict(_), _) => "a struct".to_owned(),
        (Feature::Text, _) => "text".to_owned(),
        (Feature::Scalar { dtype }, _) => dtype.name().to_owned(),
        (Feature::Tensor { dtype, .. }, _) => format!("a tensor of {dtype}{}", shape_of(feature)),
        (Feature::Optional(inner), _) => in_words(inner),
        (other, _) => other.class().to_owned(),
    }
}

fn shape_of(feature: &Feature) -> String {
    let sizes = feature.shape().unwrap_or_default();
    let sizes: Vec<String> = sizes
        .iter()
        .map(|size| size.map_or("?".to_owned(), |size| size.to_string()))
        .collect();
    format!(" [{}]", sizes.join(", "))
}

/// A picture of any size, stored as it is.
pub(crate) fn picture() -> Feature {
    Feature::Image {
        shape: vec![None, None, None],
        dtype: DType::UInt8,
        encoding_format: None,
    }
}

pub(crate) fn is_picture(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xd8, 0xff]) || bytes.starts_with(b"\x89PNG\r\n\x1a\n")
}

/// A name as a key of TOML.
pub(crate) fn quoted(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !name.is_empty() && name.bytes().all(is_bare) {
        return name.to_owned();
    }
    let mut text = String::from("\"");
    for c in name.chars() {
        match c {
            '"' | '\\' => {
                text.push('\\');
                text.push(c);
            }
            c if c.is_control() => text += &format!("\\u{:04X}", c as u32),
            c => text.push(c),
        }
    }
    text + "\""
}

fn add_fields(
    nodes: &mut BTreeMap<String, Node>,
    fields: &[(String, Cell)],
    place: &Place,
    crowded: &mut Option<Place>,
) {
    for (name, cell) in fields {
        if let Some(node) = nodes.get_mut(name) {
            node.add(cell, place);
        } else if nodes.len() < MOST_COLUMNS {
            nodes.entry(name.clone()).or_default().add(cell, place);
        } else {
            note(crowded, place);
        }
    }
}

fn merge_fields(
    nodes: &mut BTreeMap<String, Node>,
    others: BTreeMap<String, Node>,
    crowded: &mut Option<Place>,
) {
    for (name, other) in others {
        if let Some(node) = nodes.get_mut(&name) {
            node.merge(other);
        } else if nodes.len() < MOST_COLUMNS {
            nodes.insert(name, other);
        } else if let Some(place) = other.first() {
            note(crowded, &place);
        }
    }
}

impl Node {
    /// The first place of anything.
    fn first(&self) -> Option<Place> {
        let Self {
            null,
            bool,
            int,
            float,
            text,
            bytes,
            loose,
            ..
        } = self;
        let plain = [
            null,
            bool,
            int,
            float,
            text,
            bytes,
            &loose.empty,
            &loose.bool,
            &loose.int,
            &loose.float,
            &loose.text,
        ];
        let nested = [
            self.values.as_ref().map(|(place, ..)| place),
            self.told.values().map(|(place, _)| place).min(),
            self.list.as_ref().map(|(place, _)| place),
            self.dict.as_ref().map(|(place, _)| place),
            self.tensor.as_ref().map(|(place, ..)| place),
            self.foreign.as_ref().map(|(place, _)| place),
        ];
        let all = plain.into_iter().flatten().chain(nested.into_iter().flatten());
        all.min().cloned()
    }
}

impl Node {
    /// Drops which of too many names of an object were kept: that depends on the order in which rows came.
    fn settle(&mut self) {
        if self.crowded.is_some()
            && let Some((place, nodes)) = &mut self.dict
        {
            nodes.clear();
            self.crowded = Some(place.clone());
        }
        let inner = self.list.iter_mut().map(|(_, node)| &mut **node);
        let inner = inner.chain(self.values.iter_mut().map(|(.., node)| &mut **node));
        let fields = self.dict.iter_mut().flat_map(|(_, nodes)| nodes.values_mut());
        inner.chain(fields).for_each(Self::settle);
    }

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place)) {
        let Self {
            null,
            bool,
            int,
            negative,
            large,
            float,
            text,
            bytes,
            foreign,
            list,
            dict,
            tensor,
            other_tensor,
            loose,
            values,
            told,
            crowded,
            count: _,
            not_picture: _,
            not_text: _,
        } = self;
        let plain = [null, bool, int, negative, large, float, text, bytes, crowded];
        let loose = [
            &mut loose.empty,
            &mut loose.bool,
            &mut loose.int,
            &mut loose.float,
            &mut loose.text,
        ];
        plain.into_iter().chain(loose).flatten().for_each(&mut *visit);
        let named = foreign.iter_mut().chain(other_tensor).map(|(place, _)| place);
        let named = named.chain(tensor.iter_mut().map(|(place, ..)| place));
        named
            .chain(told.values_mut().map(|(place, _)| place))
            .for_each(&mut *visit);
        if let Some((place, node)) = list {
            visit(place);
            node.each_place(visit);
        }
        if let Some((place, .., node)) = values {
            visit(place);
            node.each_place(visit);
        }
        if let Some((place, nodes)) = dict {
            visit(place);
            nodes.values_mut().for_each(|node| node.each_place(visit));
        }
    }
}

/// What was seen of all columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Survey {
    pub(crate) rows: u64,
    pub(crate) columns: BTreeMap<String, Node>,
    /// The columns whose values are gathered as classes, by name: up to one more than are taken.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) classes: BTreeMap<String, BTreeSet<String>>,
    /// The largest number of a column whose values are gathered as classes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) largest: BTreeMap<String, i64>,
    /// What the folders of pictures are called, and what lies in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) folders: Option<Folders>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crowded: Option<Place>,
}

impl Survey {
    /// A survey that also gathers the classes of these columns.
    pub(crate) fn new(classes: &[String]) -> Self {
        Self {
            classes: classes
                .iter()
                .map(|name| (name.clone(), BTreeSet::new()))
                .collect(),
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, row: &[(String, Cell)], place: &Place) {
        self.rows += 1;
        note(&mut self.first, place);
        for (name, cell) in row {
            let Some(classes) = self.classes.get_mut(name) else {
                continue;
            };
            match plain(cell).as_ref() {
                Cell::Text(text) | Cell::Loose(text) | Cell::Bytes(text) => {
                    let text = String::from_utf8_lossy(text);
                    if classes.len() <= MOST_CLASSES && !classes.contains(text.as_ref()) {
                        classes.insert(text.into_owned());
                    }
                }
                Cell::Int(number) => {
                    let largest = self.largest.entry(name.clone()).or_insert(*number);
                    *largest = (*largest).max(*number);
                }
                _ => {}
            }
        }
        add_fields(&mut self.columns, row, place, &mut self.crowded);
    }

    /// Notes what a file of so many rows says of a column.
    pub(crate) fn tell(&mut self, column: &str, told: Told, rows: u64, place: &Place) {
        note(&mut self.first, place);
        if !self.columns.contains_key(column) && self.columns.len() >= MOST_COLUMNS {
            note(&mut self.crowded, place);
            return;
        }
        let node = self.columns.entry(column.to_owned()).or_default();
        node.count += rows;
        match told {
            Told::Feature(feature) => {
                let bare = bare(&feature);
                node.add_told(format!("{bare:?}"), place.clone(), feature);
            }
            Told::Foreign(kind) => {
                if node.foreign.as_ref().is_none_or(|(known, _)| place < known) {
                    node.foreign = Some((place.clone(), kind));
                }
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.rows += other.rows;
        merge(&mut self.first, other.first);
        merge(&mut self.crowded, other.crowded);
        merge_fields(&mut self.columns, other.columns, &mut self.crowded);
        for (name, names) in other.classes {
            let classes = self.classes.entry(name).or_default();
            for name in names {
                if classes.len() > MOST_CLASSES {
                    break;
                }
                classes.insert(name);
            }
        }
        for (name, number) in other.largest {
            let largest = self.largest.entry(name).or_insert(number);
            *largest = (*largest).max(number);
        }
        if let Some(folders) = other.folders {
            self.folders.get_or_insert_default().merge(folders);
        }
    }

    /// For later versions: the same whatever order the rows were added in.
    pub(crate) fn settled(mut self) -> Self {
        self.columns.values_mut().for_each(Node::settle);
        // Which of too many there are depends on that order.
        let too_many = |classes: &&mut BTreeSet<String>| classes.len() > MOST_CLASSES;
        self.classes
            .values_mut()
            .filter(too_many)
            .for_each(BTreeSet::clear);
        if let Some(folders) = &mut self.folders {
            folders.settle();
        }
        self
    }

    /// The same of a source that is at this position now.
    pub(crate) fn of_source(mut self, source: u32) -> Self {
        let mut set = |place: &mut Place| place.source = source;
        self.first.iter_mut().chain(&mut self.crowded).for_each(&mut set);
        for node in self.columns.values_mut() {
            node.each_place(&mut set);
        }
        self
    }

    /// The feature of a column.
    ///
    /// # Errors
    /// As [`Node::feature`].
    pub(crate) fn feature(&self, column: &str) -> Result<Feature> {
        match self.columns.get(column) {
            Some(node) => node.feature(column, self.rows, self.first.as_ref()),
            None => Err(anyhow!("no row has a column `{column}`")),
        }
    }

    /// Fails where there are too many columns.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.crowded {
            Some(place) => Err(Hinted::new(
                format!(
                    "{}: there are more than {MOST_COLUMNS} different columns",
                    place.shown()
                ),
                "name those that are wanted with `select`, and say their types in `[features]`",
            )
            .into()),
            None => Ok(()),
        }
    }

    /// The class label of a column, by its values: names sorted, or as many classes as its numbers ask for.
    ///
    /// # Errors
    /// There are neither, or too many.
    pub(crate) fn label(&self, column: &str) -> Result<Feature> {
        let names = self.classes.get(column).cloned().unwrap_or_default();
        if names.len() > MOST_CLASSES {
            return Err(Hinted::new(
                format!("column `{column}` has more than {MOST_CLASSES} different values, too many for a class label"),
                "declare it as `kind = \"text\"`",
            )
            .into());
        }
        let numeric = !names.is_empty()
            && names
                .iter()
                .all(|name| is_plain_integer(name.as_bytes()) && !name.starts_with('-'));
        let largest = match self.largest.get(column) {
            Some(largest) => Some(*largest),
            None if numeric => names.iter().filter_map(|name| name.parse().ok()).max(),
            None => None,
        };
        match largest {
            Some(largest) if names.is_empty() || numeric => {
                let num_classes = u64::try_from(largest.saturating_add(1)).unwrap_or(0).max(1);
                Ok(Feature::ClassLabel {
                    num_classes,
                    names: Vec::new(),
                })
            }
            _ if names.is_empty() => Err(anyhow!("column `{column}` has no value that could be a class")),
            _ => Ok(Feature::ClassLabel {
                num_classes: names.len() as u64,
                names: names.into_iter().collect(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(row: u64) -> Place {
        Place {
            source: 0,
            file: 0,
            row,
            path: "a.jsonl".into(),
            unit: "line",
        }
    }

    fn rows(texts: &[&str]) -> Vec<Vec<(String, Cell)>> {
        let row = |text: &&str| match serde_json::from_str(text).unwrap() {
            Cell::Dict(row) => row,
            _ => panic!("{text}"),
        };
        texts.iter().map(row).collect()
    }

    /// The same whatever the order, and however the rows are dealt.
    fn survey(texts: &[&str]) -> Survey {
        let rows = rows(texts);
        let mut whole = Survey::new(&[]);
        for (index, row) in rows.iter().enumerate() {
            whole.add(row, &place(index as u64));
        }
        let mut parts = Survey::new(&[]);
        for (index, row) in rows.iter().enumerate().rev() {
            let mut part = Survey::new(&[]);
            part.add(row, &place(index as u64));
            if index % 2 == 0 {
                part.merge(parts);
                parts = part;
            } else {
                parts.merge(part);
            }
        }
        let shown = |survey: &Survey| {
            let features = survey
                .columns
                .keys()
                .map(|name| format!("{:?}", survey.feature(name).map_err(|error| format!("{error:#}"))));
            features.collect::<Vec<_>>()
        };
        assert_eq!(shown(&whole), shown(&parts));
        assert_eq!(kept(&parts), whole.clone().settled());
        whole
    }

    /// What a later version reads of what was written down.
    fn kept(survey: &Survey) -> Survey {
        let text = serde_json::to_string(&survey.clone().settled()).unwrap();
        let kept: Survey = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&kept).unwrap(), text);
        kept.of_source(0)
    }

    #[test]
    fn what_was_written_down_is_what_was_seen() {
        let text = |text: &str| bytes::Bytes::copy_from_slice(text.as_bytes());
        let tensor = |shape: &[usize]| {
            let count = shape.iter().product::<usize>();
            Cell::Tensor(DType::Float32, shape.to_vec(), vec![0; 4 * count].into())
        };
        let mut survey = Survey::new(&["label".to_owned()]);
        for (row, cells) in [
            vec![
                ("tensor", tensor(&[2, 3])),
                ("bytes", Cell::Bytes(text("\u{1}"))),
                ("loose", Cell::Loose(text("7"))),
                ("foreign", Cell::Foreign("decimal".into(), "1.5".into())),
                (
                    "values",
                    Cell::Values(vec![Cell::Bytes(text("a")), Cell::Bytes(text("b"))]),
                ),
                ("label", Cell::Text(text("cat"))),
                ("large", Cell::UInt(u64::MAX)),
            ],
            vec![
                ("tensor", tensor(&[4, 3])),
                ("loose", Cell::Loose(text(""))),
                ("list", Cell::List(vec![Cell::Int(-1), Cell::Null])),
                ("label", Cell::Int(3)),
            ],
            vec![("tensor", tensor(&[4]))],
        ]
        .into_iter()
        .enumerate()
        {
            let cells: Vec<_> = cells
                .into_iter()
                .map(|(name, cell)| (name.to_owned(), cell))
                .collect();
            survey.add(&cells, &place(row as u64));
        }
        let told = Feature::Optional(Box::new(Feature::tensor(vec![None, Some(2)], DType::Int32)));
        survey.tell("told", Told::Feature(told), 3, &place(0));
        survey.tell(
            "class",
            Told::Feature(Feature::ClassLabel {
                num_classes: 2,
                names: vec!["a".into(), "b".into()],
            }),
            3,
            &place(0),
        );
        survey.folders = Some(Folders::default());
        assert_eq!(kept(&survey), survey);
        // Where a source is by now shows in messages.
        let moved = kept(&survey).of_source(7);
        let mut places = Vec::new();
        for node in moved.clone().columns.values_mut() {
            node.each_place(&mut |place| places.push(place.source));
        }
        assert!(
            places.len() > 10 && places.iter().all(|source| *source == 7),
            "{places:?}"
        );
        assert!(serde_json::from_str::<Place>("[0, 1, \"a\", \"furlong\"]").is_err());
    }

    #[test]
    fn which_of_too_many_names_were_kept_is_not_written_down() {
        let object = |start: usize| {
            let names: Vec<String> = (start..start + 3000)
                .map(|name| format!("\"n{name}\": 1"))
                .collect();
            format!("{{\"a\": {{{}}}}}", names.join(", "))
        };
        let (one, other) = (object(0), object(2000));
        let whole = |texts: [&str; 2]| {
            let mut survey = Survey::new(&[]);
            for (row, cells) in rows(&texts).iter().enumerate() {
                survey.add(cells, &place(u64::from((texts[0] == one) == (row == 1))));
            }
            survey.settled()
        };
        assert_eq!(whole([&one, &other]), whole([&other, &one]));
        let node = &whole([&one, &other]).columns["a"];
        assert!(node.crowded.is_some() && node.dict.as_ref().is_some_and(|(_, nodes)| nodes.is_empty()));
    }

    fn feature(texts: &[&str], column: &str) -> Feature {
        survey(texts).feature(column).unwrap()
    }

    fn fault(texts: &[&str], column: &str) -> (String, String) {
        let error = survey(texts).feature(column).unwrap_err();
        let hint = crate::error::find::<Hinted>(&error).map_or(String::new(), |hinted| hinted.hint.clone());
        (error.to_string(), hint)
    }

    #[test]
    fn types_are_those_that_hold_all_values() {
        let scalar = |dtype| Feature::Scalar { dtype };
        let optional = |dtype| Feature::Optional(Box::new(scalar(dtype)));
        for (rows, wanted) in [
            (&[r#"{"a": 1}"#, r#"{"a": -2}"#][..], scalar(DType::Int64)),
            (&[r#"{"a": 1}"#, r#"{"a": 2.5}"#], scalar(DType::Float64)),
            (&[r#"{"a": 18446744073709551615}"#], scalar(DType::UInt64)),
            (&[r#"{"a": true}"#], scalar(DType::Bool)),
            (&[r#"{"a": "x"}"#], Feature::Text),
            (&[r#"{"a": "x"}"#, r#"{"a": null}"#], optional(DType::String)),
            (&[r#"{"a": 1}"#, r#"{}"#], optional(DType::Int64)),
            (
                &[r#"{"a": [1]}"#, r#"{"a": []}"#],
                Feature::sequence(scalar(DType::Int64)),
            ),
            (
                &[r#"{"a": [[1], [2, 3]]}"#],
                Feature::sequence(Feature::sequence(scalar(DType::Int64))),
            ),
            (
                &[r#"{"a": {"b": 1}}"#, r#"{"a": {"b": 2, "c": "x"}}"#],
                Feature::dict([("b", scalar(DType::Int64)), ("c", optional(DType::String))]),
            ),
            (
                &[r#"{"a": {"b": 1}}"#, r#"{"a": null}"#],
                Feature::dict([("b", optional(DType::Int64))]),
            ),
            (
                &[r#"{"a": [{"b": 1}, {"b": 2}]}"#],
                Feature::sequence(Feature::dict([("b", scalar(DType::Int64))])),
            ),
        ] {
            assert_eq!(feature(rows, "a"), wanted, "{rows:?}");
        }
    }

    #[test]
    fn what_does_not_go_together_names_both_places_and_a_way_out() {
        let (error, hint) = fault(&[r#"{"a": 1}"#, r#"{"a": 2}"#, r#"{"a": "x"}"#], "a");
        assert_eq!(
            error,
            "a.jsonl, line 3, column `a`: found a text, where a.jsonl, line 1 has an integer"
        );
        assert!(hint.contains("`[features.a]` with `kind = \"text\"`"), "{hint}");
        let (error, _) = fault(&[r#"{"a": {"b c": [1]}}"#, r#"{"a": {"b c": {}}}"#], "a");
        assert!(
            error.contains("line 2, column `a/b c`: found an object"),
            "{error}"
        );
        let (error, hint) = fault(&[r#"{"a": null}"#, r#"{"a": null}"#], "a");
        assert!(
            error.starts_with("a.jsonl, line 1, column `a`: there is no value"),
            "{error}"
        );
        assert!(hint.contains("optional = true"), "{hint}");
        let (error, _) = fault(&[r#"{"a": [1]}"#, r#"{"a": [1, null]}"#], "a");
        assert!(error.starts_with("a.jsonl, line 2"), "{error}");
        let (error, _) = fault(&[r#"{"a": -1}"#, r#"{"a": 18446744073709551615}"#], "a");
        assert!(error.contains("no type holds both"), "{error}");
    }

    #[test]
    fn loose_texts_become_what_all_of_them_are() {
        let guess = |texts: &[&str]| {
            let mut node = Node::default();
            for (index, text) in texts.iter().enumerate() {
                node.add(
                    &Cell::Loose(text.as_bytes().to_vec().into()),
                    &place(index as u64),
                );
            }
            node.feature("a", texts.len() as u64, None)
        };
        let scalar = |dtype| Feature::Scalar { dtype };
        for (texts, wanted) in [
            (&["1", "-2"][..], scalar(DType::Int64)),
            (&["1", "2.5", "1e3", "nan", "-.5"], scalar(DType::Float64)),
            (&["1", ""], Feature::Optional(Box::new(scalar(DType::Int64)))),
            (&["true", "False"], scalar(DType::Bool)),
            (&["true", "1"], Feature::Text),
            // Codes, not numbers.
            (&["01234", "12345"], Feature::Text),
            (&["+1", "2"], Feature::Text),
            (&["99999999999999999999", "1"], Feature::Text),
            (&["x", ""], Feature::Text),
            (&["1", "x"], Feature::Text),
            (&["-0", "1e999"], Feature::Text),
        ] {
            assert_eq!(guess(texts).unwrap(), wanted, "{texts:?}");
        }
        assert!(guess(&["", ""]).is_err());
    }

    #[test]
    fn classes_are_gathered_and_sorted() {
        let mut survey = Survey::new(&["label".to_owned()]);
        for (index, name) in ["dog", "cat", "dog"].iter().enumerate() {
            let row = [("label".to_owned(), Cell::Text(name.as_bytes().to_vec().into()))];
            survey.add(&row, &place(index as u64));
        }
        let Feature::ClassLabel {
            num_classes: 2,
            names,
        } = survey.label("label").unwrap()
        else {
            panic!()
        };
        assert_eq!(names, ["cat", "dog"]);
        let mut survey = Survey::new(&["label".to_owned()]);
        survey.add(&[("label".to_owned(), Cell::Loose("7".into()))], &place(0));
        survey.add(&[("label".to_owned(), Cell::Loose("10".into()))], &place(1));
        let label = survey.label("label").unwrap();
        assert_eq!(
            label,
            Feature::ClassLabel {
                num_classes: 11,
                names: Vec::new()
            }
        );
    }

    #[test]
    fn names_are_quoted_as_toml_has_it() {
        assert_eq!(quoted("a_b-1"), "a_b-1");
        assert_eq!(quoted("a b\"\n"), "\"a b\\\"\\u000A\"");
    }
}
