//! What a thread is doing for a pipeline: where its time goes, stage by stage, and which damaged records it leaves out.
//!
//! A [`Meter`] belongs to a pipeline. A thread that does a task of it begins with [`Meter::begin`], and the stages that the task calls find it in
//! the thread: they are shared by all pipelines that are made of them, and so know of none.
//!
//! Elements are counted at each call. Clocks are looked at, and bytes counted, in the first tasks and then in one of [`SAMPLED`], whose times count so
//! much the more: so the cost stays small also where an element takes a microsecond.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prep_formats::store::{Cache, CacheCounts};

use crate::damage::{DamagedRecord, OnDamage};
use crate::dataset::Dataset;
use crate::element::{Element, ElementSpec};
use crate::error::{Error, Result};
use crate::metrics::StageMetrics;
use crate::stages::records::{Given, Records};
use crate::stages::{Cursor, Facts, Item, IterStage, Machine, MapStage, Stream, Text};

/// Tasks that are all timed at first.
const FIRST: u64 = 64;
/// After them one of so many is.
const SAMPLED: u64 = 16;

/// A number for a stage, never given twice.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What the threads of a pipeline have counted. Holds no lock: a child of a fork may go on with it.
#[derive(Default)]
pub(crate) struct Meter {
    stages: Vec<Counted>,
    datasets: Vec<Dataset>,
    on_damage: OnDamage,
    tasks: AtomicU64,
    room_wait: AtomicU64,
    /// Outputs of streams that waited to be merged, summed over the looks at them.
    merging: [AtomicU64; 2],
}

/// A stage, and what was counted of it; times in nanoseconds.
#[derive(Debug, Default)]
struct Counted {
    number: u64,
    name: Arc<str>,
    counts: [AtomicU64; COUNTS],
}

/// What is counted of a stage.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Count {
    Busy,
    Wait,
    Read,
    Elements,
    Bytes,
    Hits,
    Misses,
}
const COUNTS: usize = 7;

/// What the thread's task has counted, before it is added to the meter's.
#[derive(Default)]
struct Task {
    meter: Option<Arc<Meter>>,
    /// How much a timed call counts; 0: none is timed.
    weight: u64,
    /// The time of the stages that the stage at work has called.
    inner: Duration,
    /// The stage at work.
    current: Option<usize>,
    counts: Vec<[u64; COUNTS]>,
    damaged: Vec<DamagedRecord>,
}

thread_local! {
    static TASK: RefCell<Task> = RefCell::default();
}

impl Meter {
    /// Of a pipeline with the stages of a text.
    pub(crate) fn new(text: &Text, on_damage: OnDamage) -> Self {
        let mut stages: Vec<Counted> = Vec::new();
        for (number, name) in text.stages() {
            // One that is used twice has one row.
            if stages.iter().all(|stage| stage.number != *number) {
                stages.push(Counted {
                    number: *number,
                    name: Arc::clone(name),
                    ..Counted::default()
                });
            }
        }
        Self {
            stages,
            datasets: text.datasets().to_vec(),
            on_damage,
            ..Self::default()
        }
    }

    /// The thread begins a task of the pipeline, which ends with what this gives.
    pub(crate) fn begin(self: &Arc<Self>) -> Guard {
        let number = self.tasks.fetch_add(1, Ordering::Relaxed);
        let weight = match number {
            0..FIRST => 1,
            // Spread evenly, but not in step with anything that comes again and again.
            _ if number.wrapping_mul(0x9E37_79B9_7F4A_7C15) < u64::MAX / SAMPLED => SAMPLED,
            _ => 0,
        };
        TASK.with_borrow_mut(|task| {
            task.weight = weight;
            task.counts.resize(self.stages.len(), [0; COUNTS]);
            task.meter = Some(Arc::clone(self));
        });
        Guard(())
    }

    /// What to do about damaged records.
    pub(crate) fn on_damage(&self) -> OnDamage {
        self.on_damage
    }

    /// A thread has waited so long for something to do.
    pub(crate) fn waited(&self, time: Duration) {
        self.room_wait
            .fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn room_wait(&self) -> Duration {
        Duration::from_nanos(self.room_wait.load(Ordering::Relaxed))
    }

    /// So many outputs of streams wait to be merged.
    pub(crate) fn merging(&self, outputs: u64) {
        self.merging[0].fetch_add(outputs, Ordering::Relaxed);
        self.merging[1].fetch_add(1, Ordering::Relaxed);
    }

    /// How many waited on average.
    pub(crate) fn mean_merging(&self) -> Option<f64> {
        let [outputs, looks] = self.merging.each_ref().map(|count| count.load(Ordering::Relaxed));
        (looks > 0).then(|| outputs as f64 / looks as f64)
    }

    /// What the caches of the datasets have counted, those that several share once.
    pub(crate) fn caches(&self) -> Option<CacheCounts> {
        let mut caches: Vec<&Cache> = Vec::new();
        for cache in self.datasets.iter().filter_map(Dataset::cache) {
            if caches.iter().all(|known| known.folder() != cache.folder()) {
                caches.push(cache);
            }
        }
        caches.into_iter().map(Cache::counts).reduce(|mut sum, counts| {
            sum.cached_bytes += counts.cached_bytes;
            sum.fetched_bytes += counts.fetched_bytes;
            sum.evicted_bytes += counts.evicted_bytes;
            sum
        })
    }

    /// What was counted of each stage, in the order of the text.
    pub(crate) fn stages(&self) -> Vec<StageMetrics> {
        let of = |stage: &Counted| {
            let count = |count: Count| stage.counts[count as usize].load(Ordering::Relaxed);
            StageMetrics {
                name: stage.name.to_string(),
                busy: Duration::from_nanos(count(Count::Busy)),
                wait: Duration::from_nanos(count(Count::Wait)),
                read: Duration::from_nanos(count(Count::Read)),
                elements: count(Count::Elements),
                bytes: count(Count::Bytes),
                cache_hits: count(Count::Hits),
                cache_misses: count(Count::Misses),
            }
        };
        self.stages.iter().map(of).collect()
    }
}

/// Ends a task.
pub(crate) struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        TASK.with_borrow_mut(|task| {
            let Some(meter) = task.meter.take() else {
                return;
            };
            for (stage, counts) in meter.stages.iter().zip(&mut task.counts) {
                for (total, count) in stage.counts.iter().zip(counts) {
                    if *count > 0 {
                        total.fetch_add(std::mem::take(count), Ordering::Relaxed);
                    }
                }
            }
            task.counts.clear();
            task.damaged.clear();
            (task.weight, task.inner, task.current) = (0, Duration::ZERO, None);
        });
    }
}

/// A stage that is at work.
struct Entered {
    stage: usize,
    caller: Option<usize>,
    /// When, and the time of the stages that its caller had called before it.
    timed: Option<(Instant, Duration)>,
}

fn enter(number: u64) -> Option<Entered> {
    TASK.with_borrow_mut(|task| {
        let meter = task.meter.as_ref()?;
        let stage = meter.stages.iter().position(|stage| stage.number == number)?;
        Some(Entered {
            stage,
            caller: task.current.replace(stage),
            timed: (task.weight > 0).then(|| (Instant::now(), std::mem::take(&mut task.inner))),
        })
    })
}

fn leave(entered: Entered, elements: u64, bytes: impl FnOnce() -> u64) {
    TASK.with_borrow_mut(|task| {
        let counts = &mut task.counts[entered.stage];
        counts[Count::Elements as usize] += elements;
        if let Some((began, before)) = entered.timed {
            let whole = began.elapsed();
            let inner = task.inner.min(whole);
            counts[Count::Busy as usize] += task.weight * (whole - inner).as_nanos() as u64;
            counts[Count::Wait as usize] += task.weight * inner.as_nanos() as u64;
            counts[Count::Bytes as usize] += task.weight * bytes();
            task.inner = before + whole;
        }
        task.current = entered.caller;
    });
}

/// Does the work of a stage that gives one element; `given` shows it.
pub(crate) fn measured<T, G: Weighed>(
    number: u64,
    name: &str,
    work: impl FnOnce() -> Result<T>,
    given: impl FnOnce(&T) -> Option<&G>,
) -> Result<T> {
    let entered = enter(number);
    let _span = span(entered.as_ref(), name);
    let made = work();
    if let Some(entered) = entered {
        let given = made.as_ref().ok().and_then(given);
        leave(entered, u64::from(given.is_some()), || {
            given.map_or(0, Weighed::num_bytes)
        });
    }
    made
}

/// What stages give.
pub(crate) trait Weighed {
    fn num_bytes(&self) -> u64;
}

impl Weighed for Element {
    fn num_bytes(&self) -> u64 {
        self.num_bytes()
    }
}

impl Weighed for Given {
    fn num_bytes(&self) -> u64 {
        match self {
            Self::Element(element) => element.num_bytes(),
            Self::Record { records, .. } => records.bytes_each(),
        }
    }
}

/// A span of a stage, in the tasks that are timed.
fn span(entered: Option<&Entered>, name: &str) -> Option<tracing::span::EnteredSpan> {
    let is_timed = entered.is_some_and(|entered| entered.timed.is_some());
    is_timed.then(|| tracing::trace_span!("stage", name).entered())
}

/// Counts something of the stage at work.
pub(crate) fn count(what: Count, number: u64) {
    TASK.with_borrow_mut(|task| {
        if let Some(stage) = task.current
            && let Some(counts) = task.counts.get_mut(stage)
        {
            counts[what as usize] += number;
        }
    });
}

/// Leaves out what could not be read, if it is a damaged record and the thread's task leaves those out; gives the error back else.
pub(crate) fn leave_out(error: Error) -> Result<()> {
    TASK.with_borrow_mut(|task| {
        let on_damage = task
            .meter
            .as_ref()
            .map_or(OnDamage::Fail, |meter| meter.on_damage);
        let (true, Some(record)) = (on_damage.skips(), DamagedRecord::of(&error)) else {
            return Err(error);
        };
        tracing::warn!("left out: {record}");
        task.damaged.push(record);
        // A stage may go past records without end before it gives an element.
        on_damage.check(task.damaged.len() as u64, task.damaged.last())
    })
}

/// The elements that are there, in order; damaged ones are left out where that is wanted.
pub(crate) fn kept(items: Vec<Item>) -> Result<Vec<Element>> {
    let mut elements = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Ok(element) => elements.extend(element),
            Err(error) => leave_out(error)?,
        }
    }
    Ok(elements)
}

/// The records that the task has left out since this was last asked.
pub(crate) fn take_damaged() -> Vec<DamagedRecord> {
    TASK.with_borrow_mut(|task| std::mem::take(&mut task.damaged))
}

/// A stage whose calls are measured.
pub(crate) struct Measured<S> {
    stage: S,
    number: u64,
    name: Arc<str>,
}

impl<S> Measured<S> {
    /// Named by its own line in the pipeline's text.
    pub(crate) fn new(stage: S, describe: impl FnOnce(&S, &mut Text)) -> Self {
        let mut text = Text::default();
        describe(&stage, &mut text);
        Self::named(stage, text.into_lines().last().map_or("", |line| line.trim()))
    }

    pub(crate) fn named(stage: S, name: &str) -> Self {
        Self {
            number: next_number(),
            name: name.into(),
            stage,
        }
    }
}

impl<S: MapStage> MapStage for Measured<S> {
    fn facts(&self) -> &Facts {
        self.stage.facts()
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        let start = items.len();
        let entered = enter(self.number);
        let _span = span(entered.as_ref(), &self.name);
        self.stage.get_many(positions, items);
        if let Some(entered) = entered {
            let given = || items[start..].iter().flatten().flatten();
            leave(entered, given().count() as u64, || {
                given().map(Element::num_bytes).sum()
            });
        }
    }

    fn get_records(&self, positions: &[u64], used: Option<Records>) -> Option<Records> {
        let entered = enter(self.number);
        let _span = span(entered.as_ref(), &self.name);
        let records = self.stage.get_records(positions, used);
        if let Some(entered) = entered {
            let given = records.as_ref();
            leave(entered, given.map_or(0, |records| records.len() as u64), || {
                given.map_or(0, |records| records.len() as u64 * records.bytes_each())
            });
        }
        records
    }

    fn describe(&self, text: &mut Text) {
        self.stage.describe(text);
        text.stage(self.number, &self.name);
    }
}

impl<S: IterStage> IterStage for Measured<S> {
    fn spec(&self) -> &ElementSpec {
        self.stage.spec()
    }

    fn is_endless(&self) -> bool {
        self.stage.is_endless()
    }

    fn length(&self, stream: &Stream) -> Option<u64> {
        self.stage.length(stream)
    }

    fn at(&self, stream: &Stream, given: u64, cursor: &mut Vec<u64>) -> Option<u64> {
        self.stage.at(stream, given, cursor)
    }

    fn open(&self, stream: Stream, cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        Ok(Box::new(MeasuredMachine {
            machine: self.stage.open(stream, cursor)?,
            number: self.number,
            name: Arc::clone(&self.name),
        }))
    }

    fn describe(&self, text: &mut Text) {
        self.stage.describe(text);
        text.stage(self.number, &self.name);
    }
}

struct MeasuredMachine {
    machine: Box<dyn Machine>,
    number: u64,
    name: Arc<str>,
}

impl Machine for MeasuredMachine {
    fn next(&mut self) -> Item {
        measured(self.number, &self.name, || self.machine.next(), Option::as_ref)
    }

    fn next_given(&mut self) -> Result<Option<Given>> {
        measured(
            self.number,
            &self.name,
            || self.machine.next_given(),
            Option::as_ref,
        )
    }

    fn reach(&self) -> u64 {
        self.machine.reach()
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        self.machine.save(cursor);
    }
}
