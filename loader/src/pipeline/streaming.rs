//! Streaming pipelines at work: some tasks advance a virtual stream, others make batches of what streams have given.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::damage::DamagedRecord;
use crate::element::Element;
use crate::engine::{Claim, Done, Work};
use crate::error::{Error, Result};
use crate::meter::{self, Meter};
use crate::pipeline::merge::Merge;
use crate::pipeline::state::LaneStand;
use crate::pipeline::{Batching, Made};
use crate::stages::{Cursor, ENDLESS, Machine, Parent, Stream, Text};

/// Outputs that a task makes at most, and their bytes.
const MAX_OUTPUTS: u64 = 64;
const TASK_BYTES: u64 = 1 << 20;
/// Places of a stream that the counting pass keeps.
const MAX_SNAPSHOTS: usize = 32;

/// Makes the steps of one host.
#[derive(Clone)]
pub(crate) struct StreamsWork {
    pub(crate) stage: Parent,
    pub(crate) streams: u64,
    pub(crate) shard_index: u64,
    pub(crate) shard_count: u64,
    /// Rows of a batch on one host; 1 without batches.
    pub(crate) batch_size: u64,
    pub(crate) drop_remainder: bool,
    pub(crate) batching: Option<Batching>,
    /// Of a pipeline with an end that is dealt to several hosts.
    pub(crate) counts: Option<Arc<Counts>>,
    /// Batches made ahead, and bytes of what streams have given.
    pub(crate) prefetch: u64,
    pub(crate) prefetch_bytes: u64,
    pub(crate) meter: Arc<Meter>,
}

/// How many outputs each virtual stream has, and some places on the way.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ends: Vec<u64>,
    snapshots: Vec<Vec<LaneStand>>,
}

impl Counts {
    /// Counts of another time.
    pub(crate) fn given(ends: &[u64], streams: u64) -> Result<Self> {
        if ends.len() as u64 != streams {
            return Err(Error::Options(format!(
                "counts of {} virtual streams, the pipeline has {streams}",
                ends.len()
            )));
        }
        Ok(Self {
            ends: ends.to_vec(),
            snapshots: Vec::new(),
        })
    }
}

/// What threads share about the streams; under the engine's lock.
pub(crate) struct Gather {
    merge: Merge,
    lanes: Vec<Lane>,
    /// Start of the global batch that is gathered.
    position: u64,
    /// The next output of this host in it.
    next: u64,
    rows: Vec<Element>,
    /// Where the streams that gave rows stand after them.
    moved: BTreeMap<u64, LaneStand>,
    /// Outputs that wait, and their bytes.
    waiting: u64,
    bytes: u64,
    /// Records left out on the way to the rows.
    damaged: Vec<DamagedRecord>,
    finished: bool,
}

/// One virtual stream.
struct Lane {
    /// Where it is opened.
    start: LaneStand,
    running: Option<Running>,
    /// Outputs that wait, in order.
    outputs: VecDeque<Output>,
    /// Whether a thread has it.
    is_running: bool,
    /// Whether nothing more comes.
    is_over: bool,
}

/// A stream that is open, and how many outputs it has given.
pub(crate) struct Running {
    machine: Box<dyn Machine>,
    given: u64,
}

/// What a stream has given.
pub(crate) enum Output {
    Element {
        element: Element,
        stand: LaneStand,
        /// Records left out before it.
        damaged: Vec<DamagedRecord>,
    },
    End {
        stand: LaneStand,
        damaged: Vec<DamagedRecord>,
    },
    Failed(Error),
}

/// What a thread does.
pub(crate) enum Task {
    /// Makes some more outputs of a stream.
    Advance {
        stream: u64,
        running: Option<Running>,
        start: LaneStand,
        outputs: u64,
    },
    /// Makes a batch.
    Make {
        rows: Vec<Element>,
        first: u64,
        made: Made,
    },
    /// Hands on what is not made of rows: what a stream failed with, or has left out at its end.
    Hand(Result<Made>),
}

/// What became of a stream.
pub(crate) struct Advanced {
    stream: u64,
    /// None where nothing more comes.
    running: Option<Running>,
    outputs: Vec<Output>,
}

impl StreamsWork {
    fn place(&self, stream: u64, stop: &Arc<AtomicBool>) -> Stream {
        Stream {
            number: stream,
            count: self.streams,
            round: 0,
            stop: Arc::clone(stop),
        }
    }

    /// How many outputs each stream has, where that follows without reading; not where records may be left out.
    pub(crate) fn lengths(&self) -> Option<Vec<u64>> {
        if self.meter.on_damage().skips() {
            return None;
        }
        let length = |stream| self.stage.length(&self.place(stream, &Arc::default()));
        (0..self.streams).map(length).collect()
    }

    /// The order of the outputs, with the ends that are known.
    fn merge(&self, stands: &BTreeMap<u64, LaneStand>) -> Merge {
        let ends: Vec<(u64, u64)> = match &self.counts {
            Some(counts) => (0..).zip(counts.ends.iter().copied()).collect(),
            None => stands
                .iter()
                .filter_map(|(&stream, stand)| Some((stream, stand.end?)))
                .collect(),
        };
        Merge::new(self.streams, &ends)
    }

    /// Adds where the other streams of this host stand at a position. `None`: that does not follow without reading.
    pub(crate) fn fill(&self, position: u64, stands: &mut BTreeMap<u64, LaneStand>) -> Option<()> {
        self.lengths()?;
        let merge = self.merge(stands);
        for stream in (0..self.streams).filter(|&stream| self.runs(stream)) {
            if stands.contains_key(&stream) {
                continue;
            }
            let mut stand = LaneStand {
                given: merge.given(stream, position),
                ..LaneStand::default()
            };
            if stand.given > 0 {
                let place = self.place(stream, &Arc::default());
                stand.reach = self.stage.at(&place, stand.given, &mut stand.cursor)?;
            }
            stand.end = merge
                .known_end(stream)
                .filter(|_| merge.is_over(stream, position));
            stands.insert(stream, stand);
        }
        Some(())
    }

    /// The position some steps further on, and where the streams stand there. `None`: that does not follow without reading.
    pub(crate) fn skip(&self, position: u64, steps: u64) -> Option<(u64, BTreeMap<u64, LaneStand>)> {
        let size = self.batch_size.saturating_mul(self.shard_count);
        let mut stands = BTreeMap::new();
        let total = self.merge(&stands).total().unwrap_or(ENDLESS);
        let position = match position.saturating_add(steps.saturating_mul(size)) {
            next if next <= total => next,
            _ if self.drop_remainder => total - (total - position) % size,
            _ => total,
        };
        self.fill(position, &mut stands)?;
        Some((position, stands))
    }

    /// Where the streams stand at a position.
    pub(crate) fn gather(&self, position: u64, stands: &BTreeMap<u64, LaneStand>) -> Gather {
        let merge = self.merge(stands);
        let lane = |stream| {
            let start = stands.get(&stream).cloned();
            Lane {
                start: start.unwrap_or_else(|| self.snapshot(stream, position, &merge)),
                running: None,
                outputs: VecDeque::new(),
                is_running: false,
                is_over: false,
            }
        };
        Gather {
            lanes: (0..self.streams).map(lane).collect(),
            merge,
            position,
            next: self.first_from(position),
            rows: Vec::new(),
            moved: BTreeMap::new(),
            waiting: 0,
            bytes: 0,
            damaged: Vec::new(),
            finished: false,
        }
    }

    /// The last place known of a stream before its first output from a position on.
    fn snapshot(&self, stream: u64, position: u64, merge: &Merge) -> LaneStand {
        let Some(counts) = &self.counts else {
            return LaneStand::default();
        };
        // Outputs are dealt in rounds: no stream has given more than its share when all others have ended.
        let round = merge.locate(position).map_or(u64::MAX, |(_, round)| round);
        let known = counts.snapshots.get(stream as usize);
        let known = known.and_then(|places| places.iter().rfind(|stand| stand.given <= round));
        known.cloned().unwrap_or_default()
    }

    /// Whether this host takes outputs of a stream before any has ended.
    pub(crate) fn runs(&self, stream: u64) -> bool {
        let common = gcd(self.streams, self.shard_count);
        stream % common == self.shard_index % common
    }

    /// The first output of this host from a position on: output `k` is that of host `k mod H`.
    fn first_from(&self, position: u64) -> u64 {
        let (own, hosts) = (self.shard_index, self.shard_count);
        position + (own + hosts - position % hosts) % hosts
    }

    /// A stream at work.
    fn open(&self, stream: u64, start: &LaneStand, stop: &Arc<AtomicBool>) -> Result<Box<dyn Machine>> {
        let place = self.place(stream, stop);
        if start.cursor.is_empty() {
            return self.stage.open(place, None);
        }
        let mut cursor = Cursor::new(&start.cursor);
        let machine = self.stage.open(place, Some(&mut cursor))?;
        cursor.finish()?;
        Ok(machine)
    }

    /// Runs all streams to their ends, on some threads.
    pub(crate) fn count(&self, threads: usize) -> Result<Counts> {
        let slots: Vec<Mutex<(u64, Vec<LaneStand>)>> = (0..self.streams).map(|_| Mutex::default()).collect();
        let next = AtomicU64::new(0);
        let work = || -> Result<()> {
            while let stream = next.fetch_add(1, Ordering::Relaxed)
                && let Some(slot) = slots.get(stream as usize)
            {
                let counted = self.count_stream(stream);
                if counted.is_err() {
                    next.store(self.streams, Ordering::Relaxed);
                }
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = counted?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            let others = others.into_iter().map(|other| {
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            others.fold(own, Result::and)
        })?;
        let mut counts = Counts::default();
        for slot in slots {
            let (end, snapshots) = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            counts.ends.push(end);
            counts.snapshots.push(snapshots);
        }
        Ok(counts)
    }

    fn count_stream(&self, stream: u64) -> Result<(u64, Vec<LaneStand>)> {
        // Damaged records are left out here, too; no time is counted.
        let _task = Arc::new(Meter::new(&Text::default(), self.meter.on_damage())).begin();
        let mut machine = self.open(stream, &LaneStand::default(), &Arc::default())?;
        let (mut given, mut stride) = (0u64, 16);
        let mut snapshots: Vec<LaneStand> = Vec::new();
        while machine.next()?.is_some() {
            meter::take_damaged();
            given += 1;
            if given.is_multiple_of(stride) {
                snapshots.push(stand(&*machine, given));
            }
            if snapshots.len() > MAX_SNAPSHOTS {
                stride *= 2;
                snapshots.retain(|stand| stand.given.is_multiple_of(stride));
            }
        }
        Ok((given, snapshots))
    }

    /// Moves outputs that are ready into the global batch; what is to be done next.
    fn gather_next(&self, gather: &mut Gather, room: bool) -> Claim<Task> {
        let size = self.batch_size * self.shard_count;
        self.meter.merging(gather.waiting);
        loop {
            let full = gather.next >= gather.position + size;
            let total = gather.merge.total();
            let is_last = total.is_some_and(|total| total < gather.position + size);
            let located = match full {
                true => None,
                false => gather.merge.locate(gather.next),
            };
            let Some((stream, number)) = located else {
                let end = total.filter(|_| is_last).unwrap_or(gather.position + size);
                if is_last && (end <= gather.position || self.drop_remainder) {
                    gather.finished = true;
                    if gather.damaged.is_empty() {
                        return Claim::End;
                    }
                    return Claim::Item(Task::Hand(Ok(Made {
                        element: None,
                        position: gather.position,
                        lanes: Vec::new(),
                        damaged: std::mem::take(&mut gather.damaged),
                    })));
                }
                if !room {
                    return self.ahead(gather, None);
                }
                gather.finished = is_last;
                return Claim::Item(self.take(gather, end));
            };
            let lane = &mut gather.lanes[stream as usize];
            // Those of other hosts.
            while let Some(Output::Element { element, stand, .. }) = lane.outputs.front()
                && stand.given <= number
            {
                gather.bytes -= element.num_bytes();
                gather.waiting -= 1;
                lane.outputs.pop_front();
            }
            match lane.outputs.pop_front() {
                Some(Output::Element {
                    element,
                    stand,
                    damaged,
                }) => {
                    gather.bytes -= element.num_bytes();
                    gather.waiting -= 1;
                    gather.rows.push(element);
                    gather.damaged.extend(damaged);
                    gather.moved.insert(stream, stand);
                    gather.next += self.shard_count;
                }
                Some(Output::End { stand, damaged }) => {
                    gather.merge.end(stream, stand.given);
                    gather.damaged.extend(damaged);
                    gather.moved.insert(stream, stand);
                }
                Some(Output::Failed(error)) => {
                    gather.finished = true;
                    return Claim::Item(Task::Hand(Err(error)));
                }
                None => return self.ahead(gather, Some(stream)),
            }
        }
    }

    /// The batch that is gathered, which ends at a position.
    fn take(&self, gather: &mut Gather, end: u64) -> Task {
        if self.counts.is_some() {
            // Ends are known from the beginning: told where they are passed, as without counts.
            for stream in (0..self.streams).filter(|&stream| gather.merge.is_over(stream, end)) {
                let known = gather.merge.known_end(stream);
                if let Some(stand) = gather.moved.get_mut(&stream) {
                    stand.end = known;
                } else if let lane = &gather.lanes[stream as usize]
                    && lane.start.end.is_none()
                    && self.runs(stream)
                {
                    let stand = LaneStand {
                        end: known,
                        ..lane.start.clone()
                    };
                    gather.moved.insert(stream, stand);
                }
            }
        }
        for (&stream, stand) in &gather.moved {
            gather.lanes[stream as usize].start.clone_from(stand);
        }
        let first = gather.next - self.shard_count * gather.rows.len() as u64;
        gather.position = end;
        gather.next = self.first_from(end);
        Task::Make {
            rows: std::mem::take(&mut gather.rows),
            first,
            made: Made {
                element: None,
                position: end,
                lanes: std::mem::take(&mut gather.moved).into_iter().collect(),
                damaged: std::mem::take(&mut gather.damaged),
            },
        }
    }

    /// A stream to advance: the one that is needed, or one that will be.
    fn ahead(&self, gather: &mut Gather, needed: Option<u64>) -> Claim<Task> {
        let size = self.batch_size * self.shard_count;
        let share = size.saturating_mul(self.prefetch + 1).div_ceil(self.streams);
        if let Some(stream) = needed
            && !gather.lanes[stream as usize].is_running
        {
            return self.advance(gather, stream, share);
        }
        if gather.bytes >= self.prefetch_bytes {
            return Claim::Wait;
        }
        let first = needed.unwrap_or(gather.next % self.streams);
        let next = (1..=self.streams)
            .map(|ahead| (first + ahead) % self.streams)
            .find(|&stream| {
                let lane = &gather.lanes[stream as usize];
                !lane.is_running && !lane.is_over && (lane.outputs.len() as u64) < share && self.runs(stream)
            });
        match next {
            Some(stream) => {
                let waiting = gather.lanes[stream as usize].outputs.len() as u64;
                self.advance(gather, stream, share - waiting)
            }
            None => Claim::Wait,
        }
    }

    fn advance(&self, gather: &mut Gather, stream: u64, outputs: u64) -> Claim<Task> {
        let lane = &mut gather.lanes[stream as usize];
        lane.is_running = true;
        Claim::Side(Task::Advance {
            stream,
            running: lane.running.take(),
            start: lane.start.clone(),
            outputs: outputs.clamp(1, MAX_OUTPUTS),
        })
    }

    /// Makes some outputs of a stream.
    fn run_stream(
        &self,
        stream: u64,
        running: Option<Running>,
        start: &LaneStand,
        wanted: u64,
        stop: &Arc<AtomicBool>,
    ) -> Advanced {
        let _task = self.meter.begin();
        let _span = tracing::debug_span!("stream", stream).entered();
        let mut outputs = Vec::new();
        let opened = running.map_or_else(
            || {
                Ok(Running {
                    machine: self.open(stream, start, stop)?,
                    given: start.given,
                })
            },
            Ok,
        );
        // What a restored stream reads again was told when it was read first.
        meter::take_damaged();
        let mut running = match opened {
            Ok(running) => Some(running),
            Err(error) => {
                outputs.push(Output::Failed(error));
                None
            }
        };
        let mut bytes = 0;
        while let Some(Running { machine, given }) = &mut running
            && (outputs.len() as u64) < wanted
            && bytes < TASK_BYTES
            && !stop.load(Ordering::Relaxed)
        {
            match machine.next() {
                Ok(Some(element)) => {
                    *given += 1;
                    bytes += element.num_bytes();
                    outputs.push(Output::Element {
                        element,
                        stand: stand(&**machine, *given),
                        damaged: meter::take_damaged(),
                    });
                }
                Ok(None) => {
                    outputs.push(Output::End {
                        stand: LaneStand {
                            end: Some(*given),
                            ..stand(&**machine, *given)
                        },
                        damaged: meter::take_damaged(),
                    });
                    running = None;
                }
                Err(error) => {
                    outputs.push(Output::Failed(error));
                    running = None;
                }
            }
        }
        Advanced {
            stream,
            running,
            outputs,
        }
    }
}

/// Where a stream stands that has given so many outputs.
fn stand(machine: &dyn Machine, given: u64) -> LaneStand {
    let mut cursor = Vec::new();
    machine.save(&mut cursor);
    LaneStand {
        given,
        end: None,
        reach: machine.reach(),
        cursor,
    }
}

impl Work for StreamsWork {
    type Cursor = Gather;
    type Task = Task;
    type Item = Made;
    type Side = Advanced;
    type Local = ();

    fn claim(&self, gather: &mut Gather, room: bool) -> Claim<Task> {
        if gather.finished {
            return Claim::End;
        }
        self.gather_next(gather, room)
    }

    fn run(&self, task: Task, (): &mut (), stop: &Arc<AtomicBool>) -> Option<Done<Self>> {
        match task {
            Task::Advance {
                stream,
                running,
                start,
                outputs,
            } => Some(Done::Side(
                self.run_stream(stream, running, &start, outputs, stop),
            )),
            Task::Make {
                mut rows,
                first,
                mut made,
            } => {
                let _task = self.meter.begin();
                let _span = tracing::debug_span!("step", position = first).entered();
                let element = match &self.batching {
                    Some(batching) => batching.make(rows, first).map(Some),
                    None => Ok(rows.pop()),
                };
                Some(Done::Item(element.map(|element| {
                    made.element = element;
                    made
                })))
            }
            Task::Hand(made) => Some(Done::Item(made)),
        }
    }

    fn absorb(&self, gather: &mut Gather, advanced: Advanced) {
        let lane = &mut gather.lanes[advanced.stream as usize];
        lane.is_running = false;
        lane.is_over = advanced.running.is_none();
        lane.running = advanced.running;
        for output in advanced.outputs {
            if let Output::Element { element, .. } = &output {
                gather.bytes += element.num_bytes();
                gather.waiting += 1;
            }
            lane.outputs.push_back(output);
        }
    }

    fn waited(&self, time: Duration) {
        self.meter.waited(time);
    }

    fn bytes(&self, made: &Made) -> u64 {
        made.bytes()
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
