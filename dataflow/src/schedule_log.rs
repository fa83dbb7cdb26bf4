//! Listens to timely's log of what each worker does: for the time that stages take, and for the trace.
//!
//! Costs a clock read and 40 bytes at each start and stop of an operator; there are a few of those a megabyte. Source of the events:
//! `timely::logging`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use timely::logging::{StartStop, TimelyEvent, TimelyEventBuilder};
use timely::worker::Worker;

use crate::progress::{Counters, Progress};
use crate::trace::Trace;

/// How often the memory account is noted in a trace.
const ACCOUNT_EVERY: Duration = Duration::from_millis(100);

/// Listens from now on; before the graph is built.
pub(crate) fn register(worker: &mut Worker, progress: &Progress, trace: Option<Trace>) {
    let mut listener = Listener {
        is_first: worker.index() == 0,
        progress: progress.clone(),
        trace,
        begin: None,
        operators: HashMap::new(),
        running: Vec::new(),
        accounted: None,
    };
    if let Some(mut log) = worker.log_register() {
        log.insert::<TimelyEventBuilder, _>("timely", move |time, events| {
            if let Some(events) = events {
                listener.listen(*time, events.drain(..));
            }
        });
    }
}

/// One worker's.
struct Listener {
    is_first: bool,
    progress: Progress,
    trace: Option<Trace>,
    /// What the log's times are counted from.
    begin: Option<Instant>,
    operators: HashMap<usize, Operator>,
    /// Operators that run: a scope runs those inside it.
    running: Vec<(usize, Duration)>,
    accounted: Option<Instant>,
}

struct Operator {
    name: String,
    /// Once it has run; none where the operator is no stage of its own.
    counters: Option<Option<Arc<Counters>>>,
}

impl Listener {
    fn listen(&mut self, now: Duration, events: impl Iterator<Item = (Duration, TimelyEvent)>) {
        let begin = *self
            .begin
            .get_or_insert_with(|| Instant::now().checked_sub(now).unwrap_or_else(Instant::now));
        for (time, event) in events {
            match event {
                TimelyEvent::Operates(operator) => {
                    let new = Operator {
                        name: operator.name,
                        counters: None,
                    };
                    self.operators.insert(operator.id, new);
                }
                TimelyEvent::Schedule(event) if event.start_stop == StartStop::Start => {
                    self.running.push((event.id, time));
                }
                TimelyEvent::Schedule(_) => {
                    if let Some((id, start)) = self.running.pop() {
                        self.ran(id, begin + start, time.saturating_sub(start));
                    }
                }
                _ => {}
            }
        }
        if let Some(trace) = self.trace.as_ref().filter(|_| self.is_first)
            && self.accounted.is_none_or(|last| last.elapsed() >= ACCOUNT_EVERY)
        {
            self.accounted = Some(Instant::now());
            trace.counter("memory held", &[("bytes", self.progress.held_bytes())]);
            trace.counter("spilled", &[("bytes", self.progress.spilled_bytes())]);
        }
    }

    fn ran(&mut self, id: usize, start: Instant, duration: Duration) {
        let Some(operator) = self.operators.get_mut(&id) else {
            return;
        };
        let first = operator.counters.is_none();
        let counters = operator
            .counters
            .get_or_insert_with(|| self.progress.find(&operator.name));
        if let Some(counters) = counters {
            counters.busy(duration);
        }
        if let Some(trace) = &self.trace {
            trace.run(&operator.name, start, duration, first);
        }
    }
}
