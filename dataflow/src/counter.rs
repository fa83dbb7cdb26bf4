//! Named sums that a job keeps beside its data.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::job::lock;

/// A named sum: clones, and counters of the same name on other workers and in other processes, add to one number, which
/// [`Report::counters`](crate::Report::counters) has in the end. Get one from [`Pipeline::counter`](crate::Pipeline::counter).
///
/// Adding costs one atomic addition, which is cheap unless all workers do it for every byte.
#[derive(Debug, Clone)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds to the sum.
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Relaxed);
    }

    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// The sum so far, over the workers of this process.
    pub fn sum(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of one process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    here: BTreeMap<String, Arc<AtomicU64>>,
    /// What other processes have told of theirs.
    elsewhere: BTreeMap<String, u64>,
}

impl Sums {
    pub(crate) fn counter(&self, name: &str) -> Counter {
        Counter(lock(&self.0).here.entry(name.to_owned()).or_default().clone())
    }

    /// The sums of this process.
    pub(crate) fn here(&self) -> Vec<(String, u64)> {
        let state = lock(&self.0);
        let sums = state.here.iter();
        sums.map(|(name, sum)| (name.clone(), sum.load(Relaxed)))
            .collect()
    }

    /// Adds what another process has counted.
    pub(crate) fn add_elsewhere(&self, sums: Vec<(String, u64)>) {
        let mut state = lock(&self.0);
        for (name, sum) in sums {
            *state.elsewhere.entry(name).or_default() += sum;
        }
    }

    /// The sums of all processes.
    pub(crate) fn all(&self) -> BTreeMap<String, u64> {
        let mut all: BTreeMap<String, u64> = self.here().into_iter().collect();
        for (name, sum) in &lock(&self.0).elsewhere {
            *all.entry(name.clone()).or_default() += sum;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_one_name_are_one_sum() {
        let sums = Sums::default();
        sums.counter("a").add(3);
        sums.counter("a").increment();
        sums.counter("b").add(0);
        sums.add_elsewhere(vec![("a".into(), 10), ("c".into(), 1)]);
        let expected = [("a", 14), ("b", 0), ("c", 1)].map(|(name, sum)| (name.to_owned(), sum));
        assert_eq!(sums.all(), expected.into());
    }
}
