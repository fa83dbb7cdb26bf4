//! Keeps elements in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Facts, Item, MapStage, Text};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::meter::{self, Count};

/// Locks that the kept elements are spread over.
const PARTS: usize = 64;
/// What one kept element takes beside its data.
const OVERHEAD: u64 = 160;

/// Keeps the first elements that it sees, up to a number of bytes.
///
/// Under a shuffle each element is asked for once an epoch, in another order: what was kept first is as good as anything else, and is never
/// given up.
pub(crate) struct CacheStage {
    parent: Arc<dyn MapStage>,
    budget: u64,
    used: AtomicU64,
    parts: Vec<Mutex<HashMap<u64, Option<Element>>>>,
}

impl CacheStage {
    pub(crate) fn new(parent: Arc<dyn MapStage>, budget: u64) -> Result<Self> {
        if parent.facts().epochal {
            return Err(Error::Options(
                "what is shuffled or drawn at random differs from epoch to epoch and cannot be cached: put `cache` before it".into(),
            ));
        }
        Ok(Self {
            parent,
            budget,
            used: AtomicU64::new(0),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
        })
    }

    fn part(&self, offset: u64) -> std::sync::MutexGuard<'_, HashMap<u64, Option<Element>>> {
        self.parts[offset as usize % PARTS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, offset: u64, element: &Option<Element>) {
        let bytes = OVERHEAD + element.as_ref().map_or(0, Element::num_bytes);
        let reserved = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|&used| used <= self.budget)
            });
        if reserved.is_ok() && self.part(offset).insert(offset, element.clone()).is_some() {
            // Another thread has put it there meanwhile.
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl MapStage for CacheStage {
    fn facts(&self) -> &Facts {
        self.parent.facts()
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let length = self.facts().length.max(1);
        let kept: Vec<Option<Option<Element>>> = positions
            .iter()
            .map(|position| self.part(position % length).get(&(position % length)).cloned())
            .collect();
        let missing: Vec<u64> = positions
            .iter()
            .zip(&kept)
            .filter_map(|(&position, kept)| kept.is_none().then_some(position))
            .collect();
        meter::count(Count::Misses, missing.len() as u64);
        meter::count(Count::Hits, (positions.len() - missing.len()) as u64);
        let mut got = Vec::with_capacity(missing.len());
        if !missing.is_empty() {
            self.parent.get_many(&missing, &mut got);
            for (position, item) in missing.iter().zip(&got) {
                if let Ok(element) = item {
                    self.keep(position % length, element);
                }
            }
        }
        let mut got = got.into_iter();
        items.extend(kept.into_iter().map(|kept| match kept {
            Some(element) => Ok(element),
            None => got.next().unwrap_or(Ok(None)),
        }));
    }

    /// Nothing: it changes no element.
    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
    }
}
