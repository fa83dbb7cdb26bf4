//! An example as it lies in its record: names and lists are borrowed.

use std::collections::HashMap;

use crate::example::wire::{self, Entries, Field, Fields, Kind, Parts};
use crate::{Error, Result};

/// A parsed example that borrows from its record.
///
/// Everything has been checked when it is made, so reading the lists cannot fail. Features come in the order in which
/// their names first appear; of a name that comes again the last one counts.
///
/// # Examples
/// ```
/// use prep_formats::example::{ExampleView, FeatureView};
///
/// let record = b"\x0a\x0e\x0a\x0c\x0a\x01k\x12\x07\x1a\x05\x0a\x03\x01\xac\x02";
/// let example = ExampleView::parse(record)?;
/// let Some(FeatureView::Int64(list)) = example.get("k") else { panic!("`k` holds integers") };
/// assert_eq!(list.iter().collect::<Vec<i64>>(), [1, 300]);
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ExampleView<'a> {
    features: Vec<(&'a str, FeatureView<'a>)>,
}

/// The lists of one feature.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FeatureView<'a> {
    /// Byte strings.
    Bytes(BytesList<'a>),
    /// 64-bit integers.
    Int64(Int64List<'a>),
    /// 32-bit floats.
    Float(FloatList<'a>),
    /// A feature without a kind: how a missing value may be written.
    None,
}

impl<'a> ExampleView<'a> {
    /// Parses and checks a record. Costs one pass over the bytes, of which byte strings are skipped.
    ///
    /// # Errors
    /// Bytes that Protocol Buffers refuse: cut short, a length beyond the end, a varint of more than ten bytes, a name that is not UTF-8.
    pub fn parse(record: &'a [u8]) -> Result<Self> {
        let mut features = Named::default();
        let mut entries = Entries::new(record);
        while let Some((name, value)) = entries.next()? {
            features.put_feature(name, value)?;
        }
        Ok(Self::from_named(features))
    }

    pub(super) fn from_named(features: Named<'a, FeatureView<'a>>) -> Self {
        Self {
            features: features.values,
        }
    }

    /// Names and lists.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &FeatureView<'a>)> {
        self.features.iter().map(|(name, view)| (*name, view))
    }

    /// Appends a record with some of these features: each under the name that `pick` gives for its own, none for those it gives `None` for. The
    /// lists are copied as they are stored; the names keep their order.
    ///
    /// # Examples
    /// ```
    /// use prep_formats::example::ExampleView;
    ///
    /// let record = b"\x0a\x0e\x0a\x0c\x0a\x01k\x12\x07\x1a\x05\x0a\x03\x01\xac\x02";
    /// let example = ExampleView::parse(record)?;
    /// let mut renamed = Vec::new();
    /// example.encode_some(|name| (name == "k").then_some("label"), &mut renamed);
    /// assert_eq!(ExampleView::parse(&renamed)?.get("label").unwrap().len(), 2);
    /// # Ok::<(), prep_formats::Error>(())
    /// ```
    pub fn encode_some(&self, mut pick: impl FnMut(&'a str) -> Option<&'a str>, out: &mut Vec<u8>) {
        let start = out.len();
        for (name, view) in &self.features {
            let Some(name) = pick(name) else {
                continue;
            };
            let (kind, parts) = match view {
                FeatureView::Bytes(list) => (Some(Kind::Bytes), Some(&list.parts)),
                FeatureView::Int64(list) => (Some(Kind::Int64), Some(&list.parts)),
                FeatureView::Float(list) => (Some(Kind::Float), Some(&list.parts)),
                FeatureView::None => (None, None),
            };
            let parts = || parts.into_iter().flat_map(Parts::iter);
            let length = parts().map(<[u8]>::len).sum();
            wire::put_entry(name, kind, length, out, |out| {
                parts().for_each(|part| out.extend_from_slice(part));
            });
        }
        wire::close_example(start, out);
    }

    /// How many features there are.
    pub fn len(&self) -> usize {
        self.features.len()
    }

    /// Whether there are no features.
    pub fn is_empty(&self) -> bool {
        self.features.is_empty()
    }

    /// The feature that [`iter`](Self::iter) gives at this place.
    pub(crate) fn at(&self, index: usize) -> Option<&FeatureView<'a>> {
        self.features.get(index).map(|(_, view)| view)
    }

    /// The feature of that name, found by going through all.
    pub fn get(&self, name: &str) -> Option<&FeatureView<'a>> {
        self.features
            .iter()
            .find(|(other, _)| *other == name)
            .map(|(_, view)| view)
    }
}

/// Values by name, in the order in which their names first come; the last value of a name counts.
#[derive(Debug)]
pub(super) struct Named<'a, T> {
    pub(super) values: Vec<(&'a str, T)>,
    /// Names ascended so far, so that none can have come before.
    sorted: bool,
    /// Where each name stands, once there are many and they do not ascend.
    places: Option<HashMap<&'a str, usize>>,
}

impl<T> Default for Named<'_, T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            sorted: true,
            places: None,
        }
    }
}

impl<'a, T> Named<'a, T> {
    /// Names up to here are compared one by one.
    const FEW: usize = 24;

    pub(super) fn put(&mut self, name: &'a str, value: T) {
        self.sorted = self.sorted && self.values.last().is_none_or(|(last, _)| *last < name);
        let before = if self.sorted {
            None
        } else if self.values.len() < Self::FEW {
            self.values.iter().position(|(other, _)| *other == name)
        } else {
            let values = &self.values;
            let places = self.places.get_or_insert_with(|| {
                let places = values.iter().enumerate();
                places.map(|(place, (name, _))| (*name, place)).collect()
            });
            let next = values.len();
            let place = *places.entry(name).or_insert(next);
            (place < next).then_some(place)
        };
        match before {
            Some(place) => self.values[place].1 = value,
            None => self.values.push((name, value)),
        }
    }
}

impl<'a> Named<'a, FeatureView<'a>> {
    /// Checks an entry and adds it.
    pub(super) fn put_feature(&mut self, name: &'a [u8], value: Option<(Kind, Parts<'a>)>) -> Result<()> {
        let name = wire::utf8(name)?;
        let view = FeatureView::new(value).map_err(|error| in_feature(name, error))?;
        self.put(name, view);
        Ok(())
    }
}

/// Puts the name of a feature before the reason of an error.
pub(crate) fn in_feature(name: &str, error: Error) -> Error {
    match error {
        Error::Damaged { at, reason } => Error::Damaged {
            at,
            reason: format!("feature `{name}`: {reason}"),
        },
        Error::Unsupported { at, reason } => Error::Unsupported {
            at,
            reason: format!("feature `{name}`: {reason}"),
        },
        Error::Invalid(reason) => Error::Invalid(format!("feature `{name}`: {reason}")),
        other => other,
    }
}

impl<'a> FeatureView<'a> {
    pub(super) fn new(value: Option<(Kind, Parts<'a>)>) -> Result<Self> {
        let Some((kind, parts)) = value else {
            return Ok(Self::None);
        };
        let mut len = 0;
        for part in parts.iter() {
            match kind {
                Kind::Bytes => wire::each_bytes(part, |_| len += 1)?,
                Kind::Float => wire::each_float_run(part, |run| len += run.len())?,
                Kind::Int64 => len += wire::count_int64(part)?,
            }
        }
        Ok(match kind {
            Kind::Bytes => Self::Bytes(BytesList { parts, len }),
            Kind::Float => Self::Float(FloatList { parts, len }),
            Kind::Int64 => Self::Int64(Int64List { parts, len }),
        })
    }

    /// How many values there are, 0 without a kind.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(list) => list.len,
            Self::Int64(list) => list.len,
            Self::Float(list) => list.len,
            Self::None => 0,
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

macro_rules! list {
    ($name:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug, Clone)]
        pub struct $name<'a> {
            parts: Parts<'a>,
            len: usize,
        }

        impl<'a> $name<'a> {
            /// How many values there are.
            pub fn len(&self) -> usize {
                self.len
            }

            /// Whether there are no values.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }
        }
    };
}

list!(BytesList, "Byte strings of a feature, borrowed.");
list!(Int64List, "Integers of a feature, decoded as they are read.");
list!(FloatList, "Floats of a feature, decoded as they are read.");

impl<'a> BytesList<'a> {
    /// The byte strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a, '_> {
        self.parts.iter().flat_map(|part| {
            let mut fields = Fields::new(part);
            std::iter::from_fn(move || {
                loop {
                    match fields.next() {
                        Ok(Some((1, Field::Bytes(bytes)))) => return Some(bytes),
                        Ok(Some(_)) => {}
                        // Checked when the view was made.
                        Ok(None) | Err(_) => return None,
                    }
                }
            })
        })
    }

    /// The first byte string.
    pub fn first(&self) -> Option<&'a [u8]> {
        self.iter().next()
    }
}

impl Int64List<'_> {
    /// The integers in order.
    pub fn iter(&self) -> impl Iterator<Item = i64> {
        let mut values = Vec::with_capacity(self.len);
        self.append_to(&mut values);
        values.into_iter()
    }

    /// Appends the integers to `values`; the quickest way when there are many.
    pub fn append_to(&self, values: &mut Vec<i64>) {
        // Checked when the view was made.
        if self.parts.rest.is_empty() {
            let _ = wire::append_counted_int64(self.parts.first, self.len, values);
            return;
        }
        values.reserve(self.len);
        for part in self.parts.iter() {
            let _ = wire::append_int64(part, values);
        }
    }
}

impl FloatList<'_> {
    /// The floats in order, NaNs with the bits they have.
    pub fn iter(&self) -> impl Iterator<Item = f32> {
        let mut values = Vec::with_capacity(self.len);
        self.append_to(&mut values);
        values.into_iter()
    }

    /// Appends the floats to `values`; the quickest way when there are many.
    pub fn append_to(&self, values: &mut Vec<f32>) {
        values.reserve(self.len);
        for part in self.parts.iter() {
            // Checked when the view was made.
            let _ = wire::each_float_run(part, |run| {
                values.extend(run.iter().map(|&bytes| f32::from_le_bytes(bytes)));
            });
        }
    }
}
