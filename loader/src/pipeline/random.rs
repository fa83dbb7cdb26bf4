//! Pipelines of random access at work: a task is a step, whose positions are known.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::deal::{Dealing, Step};
use crate::engine::{Claim, Done, Work};
use crate::error::Result;
use crate::meter::{self, Meter};
use crate::pipeline::{Batching, Made};
use crate::stages::MapStage;

/// Positions that are read together.
const CHUNK: usize = 64;

/// Makes the steps of one host.
#[derive(Clone)]
pub(crate) struct RandomWork {
    pub(crate) rows: Arc<dyn MapStage>,
    pub(crate) dealing: Dealing,
    pub(crate) batching: Option<Batching>,
    pub(crate) meter: Arc<Meter>,
}

impl RandomWork {
    fn make(&self, step: &Step, stop: &AtomicBool) -> Option<Result<Made>> {
        let _task = self.meter.begin();
        let _span = tracing::debug_span!("step", position = step.global.start).entered();
        let positions: Vec<u64> = step.rows.clone().collect();
        let mut items = Vec::with_capacity(positions.len());
        for chunk in positions.chunks(CHUNK) {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            self.rows.get_many(chunk, &mut items);
        }
        Some(meter::kept(items).and_then(|mut elements| {
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
        }))
    }
}

impl Work for RandomWork {
    /// The position of the next step.
    type Cursor = u64;
    type Task = Step;
    type Item = Made;
    type Side = Infallible;
    type Local = ();

    fn claim(&self, cursor: &mut u64, room: bool) -> Claim<Step> {
        if !room {
            return Claim::Wait;
        }
        match self.dealing.step(*cursor) {
            Some(step) => {
                *cursor = step.global.end;
                Claim::Item(step)
            }
            None => Claim::End,
        }
    }

    fn run(&self, step: Step, (): &mut (), stop: &Arc<AtomicBool>) -> Option<Done<Self>> {
        self.make(&step, stop).map(Done::Item)
    }

    fn absorb(&self, _: &mut u64, side: Infallible) {
        match side {}
    }

    fn waited(&self, time: Duration) {
        self.meter.waited(time);
    }

    fn bytes(&self, made: &Made) -> u64 {
        made.bytes()
    }
}
