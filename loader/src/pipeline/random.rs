//! Pipelines of random access at work: a task is a step, whose positions are known.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::deal::{Dealing, Step};
use crate::engine::{Claim, Done, Work};
use crate::error::Result;
use crate::meter::{self, Meter};
use crate::pipeline::{Batching, Made};
use crate::stages::MapStage;

/// Positions that are read together.
const CHUNK: usize = 64;
/// Steps of single elements that a task makes at most, their bytes, and the time that it should take: so long an element may be held up by those
/// after it.
const MAX_STEPS: u64 = 32;
const TASK_BYTES: u64 = 256 << 10;
const TASK_TIME: Duration = Duration::from_millis(2);

/// Makes the steps of one host.
#[derive(Clone)]
pub(crate) struct RandomWork {
    pub(crate) rows: Arc<dyn MapStage>,
    pub(crate) dealing: Dealing,
    pub(crate) batching: Option<Batching>,
    pub(crate) meter: Arc<Meter>,
    /// Steps of the next task.
    pub(crate) steps: Arc<Steps>,
}

/// How many steps a task takes: as many as are small and quick, to share what a task costs (locks, messages to processes, the interpreter's lock).
#[derive(Debug)]
pub(crate) struct Steps {
    next: AtomicU64,
    most: u64,
}

impl Steps {
    /// `single`: always one.
    pub(crate) fn new(single: bool) -> Self {
        Self {
            next: AtomicU64::new(1),
            most: if single { 1 } else { MAX_STEPS },
        }
    }

    fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// So many steps took this time and are so large.
    fn took(&self, steps: u64, time: Duration, bytes: u64) {
        let fitting = |limit: u64, found: u64| limit.saturating_mul(steps) / found.max(1);
        let in_time = fitting(TASK_TIME.as_micros() as u64, time.as_micros() as u64);
        let next = (2 * steps).min(fitting(TASK_BYTES, bytes)).min(in_time);
        self.next.store(next.clamp(1, self.most), Ordering::Relaxed);
    }
}

impl RandomWork {
    fn make(&self, steps: &[Step], stop: &AtomicBool) -> Option<Vec<Result<Made>>> {
        let _task = self.meter.begin();
        let began = Instant::now();
        let position = steps.first().map(|step| step.global.start);
        let _span = tracing::debug_span!("step", position).entered();
        let positions: Vec<u64> = steps.iter().flat_map(|step| step.rows.clone()).collect();
        let mut items = Vec::with_capacity(positions.len());
        for chunk in positions.chunks(CHUNK) {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            self.rows.get_many(chunk, &mut items);
        }
        let mut items = items.into_iter();
        let made: Vec<Result<Made>> = steps
            .iter()
            .map(|step| {
                let own = items.by_ref().take(step.rows.clone().count()).collect();
                let mut elements = meter::kept(own)?;
                let element = match &self.batching {
                    Some(batching) => Some(batching.make(elements, step.rows.start)?),
                    None => elements.pop(),
                };
                Ok(Made {
                    element,
                    position: step.global.end,
                    lanes: Vec::new(),
                    damaged: meter::take_damaged(),
                })
            })
            .collect();
        let bytes = self.bytes(&made);
        self.steps.took(steps.len() as u64, began.elapsed(), bytes);
        Some(made)
    }
}

impl Work for RandomWork {
    /// The position of the next step.
    type Cursor = u64;
    type Task = Vec<Step>;
    /// A step each, up to the first that failed.
    type Item = Vec<Result<Made>>;
    type Side = Infallible;
    type Local = ();

    fn claim(&self, cursor: &mut u64, room: bool) -> Claim<Vec<Step>> {
        if !room {
            return Claim::Wait;
        }
        let mut steps = Vec::new();
        while (steps.len() as u64) < self.steps.next()
            && let Some(step) = self.dealing.step(*cursor)
        {
            *cursor = step.global.end;
            steps.push(step);
        }
        match steps.is_empty() {
            true => Claim::End,
            false => Claim::Item(steps),
        }
    }

    fn run(&self, steps: Vec<Step>, (): &mut (), stop: &Arc<AtomicBool>) -> Option<Done<Self>> {
        let mut made = self.make(&steps, stop)?;
        // Nothing is made after the first step that failed, where that is the next one.
        Some(Done::Item(match made.first() {
            Some(Err(_)) => made.swap_remove(0).map(|_| Vec::new()),
            _ => Ok(made),
        }))
    }

    fn absorb(&self, _: &mut u64, side: Infallible) {
        match side {}
    }

    fn waited(&self, time: Duration) {
        self.meter.waited(time);
    }

    fn bytes(&self, made: &Vec<Result<Made>>) -> u64 {
        made.iter().flatten().map(Made::bytes).sum()
    }
}
