//! Where elements come from: a dataset, numbers, or something of the caller's.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use prep_formats::value::DType;

use super::records::{Columns, Records};
use super::{Facts, Item, MapStage, Text, caught, caught_many};
use crate::dataset::{Dataset, ReadContext};
use crate::element::{Array, Element, ElementSpec};
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
    /// Those that were selected.
    columns: Option<Vec<String>>,
    read: Arc<Columns>,
    facts: Facts,
    contexts: Mutex<Vec<ReadContext>>,
}

impl DatasetStage {
    pub(crate) fn new(dataset: Dataset, columns: Option<Vec<String>>) -> Result<Self> {
        let context = dataset.read_context(columns.as_deref(), dataset.images())?;
        let specs = context.specs().to_vec();
        Ok(Self {
            facts: Facts {
                length: dataset.len(),
                spec: ElementSpec::of(&specs),
                sparse: false,
                epochal: false,
            },
            read: Arc::new(Columns {
                names: specs.iter().map(|spec| Arc::from(&*spec.name)).collect(),
                specs,
            }),
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

    /// Reads records together.
    fn read(&self, indices: Vec<u64>, used: Option<Records>) -> Result<Records> {
        let kept = self.contexts().pop();
        let mut context = match kept {
            Some(context) => context,
            None => self
                .dataset
                .read_context(self.columns.as_deref(), self.dataset.images())?,
        };
        let mut batch = match used {
            // Of this stage, and not of another that it was mixed with.
            Some(mut used) if Arc::ptr_eq(&used.columns, &self.read) => {
                context.clear(&mut used.batch);
                used.batch
            }
            _ => context.new_batch(indices.len()),
        };
        let read = self
            .dataset
            .read_rows(&indices, &mut context, &mut batch, &AtomicBool::new(false));
        meter::count(Count::Read, context.take_read_time().as_nanos() as u64);
        let mut contexts = self.contexts();
        if contexts.len() < MAX_CONTEXTS {
            contexts.push(context);
        }
        drop(contexts);
        read?;
        Ok(Records {
            dataset: self.dataset.clone(),
            indices,
            batch,
            columns: Arc::clone(&self.read),
        })
    }

    fn indices(&self, positions: &[u64]) -> Vec<u64> {
        let length = self.facts.length.max(1);
        positions.iter().map(|position| position % length).collect()
    }
}

impl MapStage for DatasetStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let indices = self.indices(positions);
        let element = |records: &Records, row| records.element(row).map(Some);
        if let Ok(records) = self.read(indices.clone(), None) {
            items.extend((0..records.len()).map(|row| element(&records, row)));
            return;
        }
        // One by one, so that the error is at its place.
        items.extend(indices.into_iter().map(|index| {
            let records = self.read(vec![index], None)?;
            element(&records, 0)
        }));
    }

    fn get_records(&self, positions: &[u64], used: Option<Records>) -> Option<Records> {
        self.read(self.indices(positions), used).ok()
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
