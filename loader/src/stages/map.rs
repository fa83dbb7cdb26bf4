//! One element to one element.

use std::sync::Arc;

use prep_formats::value::DType;

use super::{Cursor, Facts, Item, IterStage, Machine, MapStage, Parent, Stream, Text, caught_many};
use crate::element::{Array, Element, ElementSpec, Origin};
use crate::error::{Error, Result};
use crate::transform::{Generator, Transform, stage_key};

/// A transform as a stage: what `map`, `random_map` and `map_with_index` share.
#[derive(Clone)]
pub(crate) struct Mapping {
    work: Work,
    name: String,
    key: [u8; 8],
    seed: u64,
    spec: ElementSpec,
}

#[derive(Clone)]
enum Work {
    Transform(Arc<dyn Transform>),
    /// Sets a value to the position, counted from 0 in each epoch of this length.
    Index(u64),
}

impl Mapping {
    /// Sets a value to the position in an epoch.
    pub(crate) fn with_index(input: &ElementSpec, name: &str, length: u64) -> Self {
        let mut spec = input.clone();
        spec.set(name, DType::Int64, []);
        Self {
            work: Work::Index(length.max(1)),
            name: name.to_string(),
            key: [0; 8],
            seed: 0,
            spec,
        }
    }

    /// `seed` is for a random one.
    pub(crate) fn new(input: &ElementSpec, transform: Arc<dyn Transform>, seed: Option<u64>) -> Result<Self> {
        let name = transform.name();
        let said = |error| match error {
            Error::Element(reason) => Error::Options(format!("`{name}`: {reason}")),
            other => other,
        };
        transform.check().map_err(said)?;
        if transform.is_random() && seed.is_none() {
            return Err(Error::Options(format!(
                "`{name}` is random: use `random_map`, which takes a seed"
            )));
        }
        let spec = match transform.spec(input) {
            // It is checked with each element.
            Err(Error::Element(_)) if input.is_unknown() => ElementSpec::unknown(),
            spec => spec.map_err(said)?,
        };
        Ok(Self {
            key: stage_key(&name),
            work: Work::Transform(transform),
            name,
            seed: seed.unwrap_or(0),
            spec,
        })
    }

    pub(crate) fn is_random(&self) -> bool {
        matches!(&self.work, Work::Transform(transform) if transform.is_random())
    }

    pub(crate) fn apply(&self, position: u64, element: Element) -> Result<Element> {
        self.apply_many(&[position], vec![element])
            .pop()
            .unwrap_or_else(|| Ok(Element::new()))
    }

    /// One result for each element.
    fn apply_many(&self, positions: &[u64], mut elements: Vec<Element>) -> Vec<Result<Element>> {
        let transform = match &self.work {
            Work::Transform(transform) => transform,
            Work::Index(length) => {
                for (element, position) in elements.iter_mut().zip(positions) {
                    element.set(&*self.name, Array::scalar((position % length).cast_signed()));
                }
                return elements.into_iter().map(Ok).collect();
            }
        };
        let origins: Vec<Option<Origin>> = elements.iter().map(|element| element.origin().cloned()).collect();
        let made = caught_many(positions.len(), || {
            let generators = positions
                .iter()
                .map(|&position| Generator::keyed(self.seed, self.key, position));
            transform.apply_many(elements, &mut generators.collect::<Vec<_>>())
        });
        let made = made.into_iter().zip(origins).zip(positions);
        made.map(|((made, origin), &position)| {
            let mut made = made.map_err(|error| error.at_stage(&self.name, position, origin.as_ref()))?;
            if made.origin().is_none() {
                made.set_origin(origin);
            }
            Ok(made)
        })
        .collect()
    }

    pub(crate) fn describe(&self, text: &mut Text) {
        let Work::Transform(transform) = &self.work else {
            return text.line(format!("map_with_index {}", self.name));
        };
        let parameters = transform.parameters().replace('\n', " ");
        let space = if parameters.is_empty() { "" } else { " " };
        text.line(match transform.is_random() {
            true => format!("random_map {}{space}{parameters} seed={}", self.name, self.seed),
            false => format!("map {}{space}{parameters}", self.name),
        });
    }
}

/// Applies a transform to each element, keyed by its position.
pub(crate) struct MapMapStage {
    parent: Arc<dyn MapStage>,
    mapping: Mapping,
    facts: Facts,
}

impl MapMapStage {
    pub(crate) fn new(parent: Arc<dyn MapStage>, mapping: Mapping) -> Self {
        let facts = Facts {
            spec: mapping.spec.clone(),
            epochal: parent.facts().epochal || mapping.is_random(),
            ..parent.facts().clone()
        };
        Self {
            parent,
            mapping,
            facts,
        }
    }
}

impl MapStage for MapMapStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let start = items.len();
        self.parent.get_many(positions, items);
        let (mut places, mut chosen, mut elements) = (Vec::new(), Vec::new(), Vec::new());
        for (item, &position) in items[start..].iter_mut().zip(positions) {
            if let Ok(Some(element)) = item {
                elements.push(std::mem::take(element));
                chosen.push(position);
                places.push(item);
            }
        }
        for (place, made) in places.into_iter().zip(self.mapping.apply_many(&chosen, elements)) {
            *place = made.map(Some);
        }
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        self.mapping.describe(text);
    }
}

/// Applies a transform to each element of a stream, keyed by its number among all streams.
pub(crate) struct MapIterStage {
    parent: Parent,
    mapping: Mapping,
}

impl MapIterStage {
    pub(crate) fn new(parent: Parent, mapping: Mapping) -> Self {
        Self { parent, mapping }
    }
}

impl IterStage for MapIterStage {
    fn spec(&self) -> &ElementSpec {
        &self.mapping.spec
    }

    fn is_endless(&self) -> bool {
        self.parent.is_endless()
    }

    fn length(&self, stream: &Stream) -> Option<u64> {
        self.parent.length(stream)
    }

    fn at(&self, stream: &Stream, given: u64, cursor: &mut Vec<u64>) -> Option<u64> {
        let reach = self.parent.at(stream, given, cursor)?;
        cursor.push(stream.first_number() + given);
        Some(reach)
    }

    fn open(&self, stream: Stream, mut cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        let parent = self.parent.open(stream.clone(), cursor.as_deref_mut())?;
        let number = stream.next_number(cursor)?;
        Ok(Box::new(MapMachine {
            parent,
            mapping: self.mapping.clone(),
            stream,
            number,
        }))
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        self.mapping.describe(text);
    }
}

struct MapMachine {
    parent: Box<dyn Machine>,
    mapping: Mapping,
    stream: Stream,
    /// Elements before this one.
    number: u64,
}

impl Machine for MapMachine {
    fn next(&mut self) -> Item {
        let Some(element) = self.parent.next()? else {
            return Ok(None);
        };
        let position = self.stream.position(self.number);
        self.number += 1;
        self.mapping.apply(position, element).map(Some)
    }

    fn reach(&self) -> u64 {
        self.parent.reach()
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        self.parent.save(cursor);
        cursor.push(self.number);
    }
}
