//! Where elements come from: a dataset, numbers, or something of the caller's.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use prep_formats::columns::{Cell, ColumnSpec};
use prep_formats::value::DType;

use super::{Facts, Item, MapStage, Text, caught, caught_many};
use crate::dataset::{Dataset, ReadContext};
use crate::element::{Array, Element, ElementSpec, Origin, Value};
use crate::error::{Error, Result};
use crate::meter::{self, Count};
use crate::permutation::MAX_LENGTH;

/// Contexts for reading that are kept from call to call.
const MAX_CONTEXTS: usize = 64;

/// Elements by index: a source of the caller's own.
pub trait Source: Send + Sync {
    /// Number of elements, at most 2^63.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What an element looks like.
    fn spec(&self) -> ElementSpec;

    /// What it is, for states: sources of equal identity and length give equal elements. One line.
    fn identity(&self) -> String;

    /// An element; `index` is below the length. Called by several threads at the same time.
    ///
    /// # Errors
    /// Whatever the caller says.
    fn get(&self, index: u64) -> Result<Element>;

    /// Several elements, in the order given: for sources that give many at once for less. One result for each index.
    fn get_many(&self, indices: &[u64]) -> Vec<Result<Element>> {
        indices.iter().map(|&index| caught(|| self.get(index))).collect()
    }
}

/// A source of the caller's own.
pub(crate) struct CustomStage {
    source: Arc<dyn Source>,
    facts: Facts,
}

impl CustomStage {
    pub(crate) fn new(source: Arc<dyn Source>) -> Result<Self> {
        let length = source.len();
        if length > MAX_LENGTH {
            return Err(Error::Options(format!(
                "the source has {length} elements, and at most 2^63 can be ordered"
            )));
        }
        Ok(Self {
            facts: Facts {
                length,
                spec: source.spec(),
                sparse: false,
                epochal: false,
            },
            source,
        })
    }
}

impl MapStage for CustomStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let length = self.facts.length.max(1);
        let indices: Vec<u64> = positions.iter().map(|position| position % length).collect();
        let got = caught_many(indices.len(), || self.source.get_many(&indices));
        items.extend(got.into_iter().zip(positions).map(|(element, &position)| {
            element
                .map(Some)
                .map_err(|error| error.at_stage("source", position, None))
        }));
    }

    fn describe(&self, text: &mut Text) {
        text.line(format!(
            "source {} records={}",
            self.source.identity().replace('\n', " "),
            self.facts.length
        ));
    }
}

/// The numbers from 0.
#[derive(Debug)]
pub(crate) struct Range {
    length: u64,
}

impl Range {
    pub(crate) fn new(length: u64) -> Self {
        Self { length }
    }
}

impl Source for Range {
    fn len(&self) -> u64 {
        self.length
    }

    fn spec(&self) -> ElementSpec {
        let mut spec = ElementSpec::new();
        spec.set("value", DType::Int64, []);
        spec
    }

    fn identity(&self) -> String {
        "range".into()
    }

    fn get(&self, index: u64) -> Result<Element> {
        Ok(Element::from_iter([(
            "value",
            Array::scalar(index.cast_signed()),
        )]))
    }
}

/// The records of a dataset.
pub(crate) struct DatasetStage {
    dataset: Dataset,
    columns: Option<Vec<String>>,
    specs: Vec<ColumnSpec>,
    names: Vec<Arc<str>>,
    facts: Facts,
    contexts: Mutex<Vec<ReadContext>>,
}

impl DatasetStage {
    pub(crate) fn new(dataset: Dataset, columns: Option<Vec<String>>) -> Result<Self> {
        let context = dataset.read_context(columns.as_deref(), dataset.images())?;
        let specs = context.specs().to_vec();
        Ok(Self {
            names: specs.iter().map(|spec| Arc::from(&*spec.name)).collect(),
            facts: Facts {
                length: dataset.len(),
                spec: ElementSpec::of(&specs),
                sparse: false,
                epochal: false,
            },
            specs,
            contexts: Mutex::new(vec![context]),
            columns,
            dataset,
        })
    }

    pub(crate) fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    pub(crate) fn columns(&self) -> Option<&[String]> {
        self.columns.as_deref()
    }

    fn contexts(&self) -> std::sync::MutexGuard<'_, Vec<ReadContext>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads records together. Nothing is appended where one cannot be read.
    fn read(&self, indices: &[u64], items: &mut Vec<Item>) -> Result<()> {
        let kept = self.contexts().pop();
        let mut context = match kept {
            Some(context) => context,
            None => self
                .dataset
                .read_context(self.columns.as_deref(), self.dataset.images())?,
        };
        let mut batch = context.new_batch(indices.len());
        let read = self
            .dataset
            .read_rows(indices, &mut context, &mut batch, &AtomicBool::new(false));
        meter::count(Count::Read, context.take_read_time().as_nanos() as u64);
        let mut contexts = self.contexts();
        if contexts.len() < MAX_CONTEXTS {
            contexts.push(context);
        }
        drop(contexts);
        read?;
        items.extend(indices.iter().enumerate().map(|(row, &index)| {
            let fields =
                self.names
                    .iter()
                    .zip(&batch.columns)
                    .zip(&self.specs)
                    .map(|((name, column), spec)| {
                        let cell = column.cell(spec, row).ok_or_else(|| {
                            Error::Element(format!("row {row} of column `{name}` is not there"))
                        })?;
                        Ok((Arc::clone(name), value(cell, spec.dtype)?))
                    });
            let mut element = fields.collect::<Result<Element>>()?;
            element.set_origin(Some(Origin::new(self.dataset.clone(), index)));
            Ok(Some(element))
        }));
        Ok(())
    }
}

/// A cell, copied out of its batch.
fn value(cell: Cell<'_>, dtype: DType) -> Result<Value> {
    let sizes = |shape: Vec<u64>| {
        shape
            .into_iter()
            .map(|size| usize::try_from(size).unwrap_or(usize::MAX))
            .collect::<Vec<usize>>()
    };
    Ok(match cell {
        Cell::Missing => Value::Missing,
        Cell::Array { shape, data } => Value::Array(Array::new(dtype, sizes(shape), data.to_vec())?),
        Cell::Strings { shape, strings } => {
            let strings: Vec<bytes::Bytes> = strings.into_iter().map(bytes::Bytes::copy_from_slice).collect();
            Value::Array(Array::strings(sizes(shape), strings)?)
        }
        Cell::List(cells) => Value::List(
            cells
                .into_iter()
                .map(|cell| value(cell, dtype))
                .collect::<Result<Vec<_>>>()?
                .into(),
        ),
        other => return Err(Error::Element(format!("{other:?} is not known here"))),
    })
}

impl MapStage for DatasetStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let length = self.facts.length.max(1);
        let indices: Vec<u64> = positions.iter().map(|position| position % length).collect();
        if self.read(&indices, items).is_ok() {
            return;
        }
        // One by one, so that the error is at its place.
        for &index in &indices {
            if let Err(error) = self.read(&[index], items) {
                items.push(Err(error));
            }
        }
    }

    fn describe(&self, text: &mut Text) {
        let manifest = self.dataset.manifest();
        text.line(format!(
            "source {} split={} records={} fingerprint={}",
            self.dataset.name(),
            self.dataset.split(),
            self.facts.length,
            manifest.fingerprint
        ));
        text.dataset(&self.dataset);
    }
}
