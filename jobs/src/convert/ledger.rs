//! What became of damaged records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use crate::build::OnError;
use crate::error::Hinted;
use crate::monitor::Monitor;

/// Damaged records that are told one by one; all are counted.
const MOST_TOLD: u64 = 10;

/// Decides about damaged records, and counts them by input.
#[derive(Debug)]
pub(crate) struct Ledger {
    on_error: OnError,
    skipped: Vec<AtomicU64>,
    total: AtomicU64,
    monitor: Arc<Monitor>,
}

impl Ledger {
    pub(crate) fn new(on_error: OnError, num_inputs: usize, monitor: &Arc<Monitor>) -> Arc<Self> {
        Arc::new(Self {
            on_error,
            skipped: (0..num_inputs).map(|_| AtomicU64::new(0)).collect(),
            total: AtomicU64::new(0),
            monitor: Arc::clone(monitor),
        })
    }

    /// Whether the first damaged record ends the job.
    pub(crate) fn stops(&self) -> bool {
        self.on_error == OnError::Fail
    }

    /// Counts a damaged record, or ends the job with it.
    pub(crate) fn fault(&self, input: usize, error: anyhow::Error) -> Result<()> {
        let OnError::Skip(most) = self.on_error else {
            return Err(error);
        };
        if let Some(count) = self.skipped.get(input) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        if most.is_some_and(|most| total > most) {
            return Err(error.context(Hinted::new(
                format!("{total} records are damaged, more than may be skipped; the last is named below"),
                "raise the number after `skip:`, or get the files again",
            )));
        }
        if total <= MOST_TOLD {
            self.monitor.warn(format!("left out: {error:#}"));
        }
        Ok(())
    }

    /// Counts what an earlier run has counted.
    pub(crate) fn restore(&self, input: usize, count: u64) {
        if let Some(skipped) = self.skipped.get(input) {
            skipped.fetch_add(count, Ordering::Relaxed);
            self.total.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Damaged records of an input so far.
    pub(crate) fn skipped(&self, input: usize) -> u64 {
        self.skipped
            .get(input)
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// Adds what to do about a damaged input to its error. `skips` says whether the user has asked to leave damaged records out.
pub(crate) fn advise(error: anyhow::Error, skips: bool) -> anyhow::Error {
    let is_damage = matches!(
        crate::error::find::<prep_formats::Error>(&error),
        Some(prep_formats::Error::Damaged { .. })
    );
    if !is_damage || crate::error::find::<Hinted>(&error).is_some() {
        return error;
    }
    let hint = if skips {
        "`--on-error skip` leaves out records, and this is more: get the file again, or leave it out (`prep salvage` shows what can be read)"
    } else {
        "get the file again, or leave such records out with `--on-error skip` (`prep salvage` shows what can be read)"
    };
    error.context(Hinted::new("an input is damaged", hint))
}
