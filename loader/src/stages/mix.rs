//! Several datasets in proportion to weights: ORDER.md, section 11.

use std::sync::Arc;

use super::concatenate::{get_from, same_spec};
use super::{Cursor, ENDLESS, Facts, Item, IterStage, Machine, MapStage, Parent, Stream, Text};
use crate::element::ElementSpec;
use crate::error::{Error, Result};

/// Weights that are no whole numbers are scaled so that the largest is this.
const SCALE: f64 = 4_294_967_296.0;

/// When a mixture ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StopRule {
    /// Before the first element that a dataset does not have: none comes twice.
    #[default]
    FirstExhausted,
    /// When each dataset was seen as a whole; shorter ones begin anew, with their next epoch.
    AllExhausted,
}

impl StopRule {
    fn name(self) -> &'static str {
        match self {
            Self::FirstExhausted => "first",
            Self::AllExhausted => "all",
        }
    }
}

/// How datasets are mixed.
///
/// # Examples
/// ```
/// use prep_loader::{MapDataset, Mixture, StopRule};
///
/// let few = MapDataset::range(3)?;
/// let many = MapDataset::range(100)?.skip(10)?;
/// let mixed = MapDataset::mix([few, many], Mixture::new([1.0, 3.0]).stop(StopRule::FirstExhausted))?;
/// let values: Vec<i64> = mixed.iter().map(|element| element.unwrap().array("value").unwrap().item().unwrap()).collect();
/// assert_eq!(values, [0, 10, 11, 12, 1, 13, 14, 15, 2, 16, 17, 18]);
/// # Ok::<(), prep_loader::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Mixture {
    /// One for each dataset, above 0.
    pub weights: Vec<f64>,
    /// When it ends.
    pub stop: StopRule,
    /// Positions of the mixture from which other weights hold, rising.
    pub changes: Vec<(u64, Vec<f64>)>,
}

impl Mixture {
    /// Mixes in proportion to weights.
    pub fn new(weights: impl Into<Vec<f64>>) -> Self {
        Self {
            weights: weights.into(),
            ..Self::default()
        }
    }

    /// Sets when it ends. Default: with the first dataset that is exhausted.
    #[must_use]
    pub fn stop(mut self, stop: StopRule) -> Self {
        self.stop = stop;
        self
    }

    /// Other weights from a position of the mixture on: each dataset goes on where it stands. On streams that is the sample position of an output: `j*V + v`
    /// of output `j` of stream `v` of `V`. A state that was saved at or before that position fits a mixture with the change and one without;
    /// [`PipelineState::mixture_position`](crate::PipelineState::mixture_position) is the first one that a state allows.
    #[must_use]
    pub fn change(mut self, position: u64, weights: impl Into<Vec<f64>>) -> Self {
        self.changes.push((position, weights.into()));
        self
    }

    /// Where weights begin to hold, and which.
    fn schedule(&self, parents: usize) -> Result<Vec<(u64, Vec<u64>)>> {
        let mut schedule = vec![(0, whole(&self.weights, parents)?)];
        for (start, weights) in &self.changes {
            let last = schedule.last().map_or(0, |(last, _)| *last);
            if !(last..ENDLESS).contains(start) {
                return Err(Error::Options(format!(
                    "weights change at position {start}, wanted one from {last} on, below 2^63"
                )));
            }
            schedule.push((*start, whole(weights, parents)?));
        }
        Ok(schedule)
    }

    fn describe(&self, parents: usize, text: &mut Text) {
        let mut line = format!(
            "mix parents={parents} stop={} weights={:?}",
            self.stop.name(),
            self.weights
        );
        for (position, weights) in &self.changes {
            line += &format!("; from {position} weights={weights:?}");
        }
        text.line(line);
    }
}

/// Deals positions to sources in proportion to whole weights: each has its share of any run of positions, to within one for each level
/// of a tree over the sources.
#[derive(Debug, Clone)]
struct Weights {
    /// Sums of the weights before each source, and of all.
    sums: Vec<u64>,
}

impl Weights {
    fn new(weights: &[u64]) -> Self {
        let mut sums = vec![0];
        let mut sum = 0;
        for weight in weights {
            sum += weight;
            sums.push(sum);
        }
        Self { sums }
    }

    /// Where a part of the sources is halved, and how many of its first `position` positions the first half has.
    fn halve(&self, first: usize, end: usize, position: u64) -> (usize, u64) {
        let middle = first + (end - first).div_ceil(2);
        let whole = u128::from(self.sums[end] - self.sums[first]);
        let left = u128::from(self.sums[middle] - self.sums[first]);
        (middle, (u128::from(position) * left).div_ceil(whole) as u64)
    }

    /// The source of a position, and the position in it.
    fn place(&self, mut position: u64) -> (usize, u64) {
        let (mut first, mut end) = (0, self.sums.len() - 1);
        while end - first > 1 {
            let (middle, left) = self.halve(first, end, position);
            if self.halve(first, end, position + 1).1 > left {
                (end, position) = (middle, left);
            } else {
                (first, position) = (middle, position - left);
            }
        }
        (first, position)
    }

    /// How many of the first `position` positions a source has.
    fn count(&self, source: usize, mut position: u64) -> u64 {
        let (mut first, mut end) = (0, self.sums.len() - 1);
        while end - first > 1 {
            let (middle, left) = self.halve(first, end, position);
            if source < middle {
                (end, position) = (middle, left);
            } else {
                (first, position) = (middle, position - left);
            }
        }
        position
    }
}

/// Weights as whole numbers: as they are, or scaled and rounded, at least 1.
fn whole(weights: &[f64], parents: usize) -> Result<Vec<u64>> {
    if weights.len() != parents {
        return Err(Error::Options(format!(
            "{} weights for {parents} datasets",
            weights.len()
        )));
    }
    if let Some(wrong) = weights
        .iter()
        .find(|&&weight| !(weight > 0.0 && weight.is_finite()))
    {
        return Err(Error::Options(format!(
            "a weight is {wrong}, wanted a number above 0; leave the dataset out instead"
        )));
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let exact = largest <= SCALE && weights.iter().all(|weight| weight.fract() == 0.0);
    Ok(weights
        .iter()
        .map(|&weight| match exact {
            true => weight as u64,
            false => ((weight / largest * SCALE).round() as u64).max(1),
        })
        .collect())
}

/// A run of positions under the same weights.
struct Segment {
    start: u64,
    weights: Weights,
    /// Positions of each source before it.
    before: Vec<u64>,
}

/// Mixes random access: where the element of a position comes from is a pure function of it.
pub(crate) struct MixMapStage {
    /// All of them, for the text.
    all: Vec<Arc<dyn MapStage>>,
    /// Those that are not empty.
    parents: Vec<Arc<dyn MapStage>>,
    mixture: Mixture,
    segments: Vec<Segment>,
    facts: Facts,
}

impl MixMapStage {
    pub(crate) fn new(all: Vec<Arc<dyn MapStage>>, mixture: Mixture) -> Result<Self> {
        let mut facts = same_spec(&all, "mix")?;
        let is_there: Vec<bool> = all.iter().map(|parent| parent.facts().length > 0).collect();
        let mut segments: Vec<Segment> = Vec::new();
        for (start, weights) in mixture.schedule(all.len())? {
            let weights: Vec<u64> = weights
                .into_iter()
                .zip(&is_there)
                .filter_map(|(weight, &there)| there.then_some(weight))
                .collect();
            let before = match segments.last() {
                None => vec![0; weights.len()],
                Some(last) => (0..weights.len())
                    .map(|source| last.before[source] + last.weights.count(source, start - last.start))
                    .collect(),
            };
            segments.push(Segment {
                start,
                weights: Weights::new(&weights),
                before,
            });
        }
        let parents: Vec<_> = all
            .iter()
            .zip(is_there)
            .filter(|(_, there)| *there)
            .map(|(parent, _)| Arc::clone(parent))
            .collect();
        let mut stage = Self {
            facts: facts.clone(),
            all,
            parents,
            mixture,
            segments,
        };
        let ends = (0..stage.parents.len()).map(|source| {
            let length = stage.parents[source].facts().length;
            match (length, stage.mixture.stop) {
                (ENDLESS.., _) => ENDLESS,
                // The position of the first element that it does not have.
                (length, StopRule::FirstExhausted) => {
                    stage.least(|position| stage.count(source, position + 1) > length)
                }
                (length, StopRule::AllExhausted) => {
                    stage.least(|position| stage.count(source, position) >= length)
                }
            }
        });
        facts.length = match stage.mixture.stop {
            StopRule::FirstExhausted => ends.min(),
            StopRule::AllExhausted => ends.max(),
        }
        .unwrap_or(0);
        // Which elements of a source an epoch of the mixture has differs from epoch to epoch.
        facts.epochal = true;
        stage.facts = facts;
        Ok(stage)
    }

    fn segment(&self, position: u64) -> &Segment {
        &self.segments[self.segments.partition_point(|segment| segment.start <= position) - 1]
    }

    fn count(&self, source: usize, position: u64) -> u64 {
        let segment = self.segment(position);
        segment.before[source] + segment.weights.count(source, position - segment.start)
    }

    fn place(&self, position: u64) -> (usize, u64) {
        let segment = self.segment(position);
        let (source, within) = segment.weights.place(position - segment.start);
        (source, segment.before[source] + within)
    }

    /// The least position at which something holds that goes on to hold; [`ENDLESS`] without one.
    fn least(&self, holds: impl Fn(u64) -> bool) -> u64 {
        let (mut low, mut high) = (0, ENDLESS);
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle) {
                high = middle
            } else {
                low = middle + 1
            }
        }
        low
    }
}

impl MapStage for MixMapStage {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        // Epochs of the mixture go on where the sources stand: no source begins anew with it.
        get_from(&self.parents, positions, items, |position| self.place(position));
    }

    fn describe(&self, text: &mut Text) {
        for parent in &self.all {
            text.branch(|text| parent.describe(text));
        }
        self.mixture.describe(self.all.len(), text);
    }
}

/// Mixes streams, each virtual stream for itself.
pub(crate) struct MixIterStage {
    parents: Vec<Parent>,
    mixture: Mixture,
    schedule: Arc<[(u64, Vec<u64>)]>,
    spec: ElementSpec,
}

impl MixIterStage {
    pub(crate) fn new(parents: Vec<Parent>, mixture: Mixture) -> Result<Self> {
        Ok(Self {
            schedule: mixture.schedule(parents.len())?.into(),
            spec: common_spec(&parents, "mix")?,
            parents,
            mixture,
        })
    }
}

/// The spec of elements of several streams.
pub(crate) fn common_spec(parents: &[Parent], stage: &str) -> Result<ElementSpec> {
    let Some(first) = parents.first() else {
        return Err(Error::Options(format!(
            "`{stage}` of no datasets, wanted at least 1"
        )));
    };
    parents[1..]
        .iter()
        .try_fold(first.spec().clone(), |spec, parent| {
            spec.common(parent.spec()).ok_or_else(|| {
                Error::Options(format!(
                    "`{stage}` wants elements with the same names and dtypes: one has ({spec}), another ({})",
                    parent.spec()
                ))
            })
        })
}

impl IterStage for MixIterStage {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }

    fn is_endless(&self) -> bool {
        let mut parents = self.parents.iter();
        match self.mixture.stop {
            StopRule::FirstExhausted => parents.all(|parent| parent.is_endless()),
            StopRule::AllExhausted => parents.any(|parent| parent.is_endless()),
        }
    }

    fn open(&self, stream: Stream, mut cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        let mut children = Vec::with_capacity(self.parents.len());
        for parent in &self.parents {
            let mut child = Child {
                parent: Arc::clone(parent),
                machine: None,
                round: stream.round,
                given: 0,
                is_done: false,
                is_empty: false,
            };
            if let Some(cursor) = cursor.as_deref_mut() {
                child.round = cursor.next()?;
                child.given = cursor.next()?;
                let flags = cursor.next()?;
                (child.is_done, child.is_empty) = (flags & 1 != 0, flags & 2 != 0);
            }
            let begun = Stream {
                round: child.round,
                ..stream.clone()
            };
            if !child.is_empty {
                child.machine = Some(parent.open(begun, cursor.as_deref_mut())?);
            }
            children.push(child);
        }
        let (number, ended) = match cursor {
            Some(cursor) => (cursor.next()?, cursor.next()? != 0),
            None => (0, false),
        };
        let mut machine = MixMachine {
            stop: self.mixture.stop,
            schedule: Arc::clone(&self.schedule),
            held: 0,
            start: 0,
            there: Vec::new(),
            weights: Weights::new(&[]),
            children,
            stream,
            number,
            ended,
        };
        machine.weigh();
        Ok(Box::new(machine))
    }

    fn describe(&self, text: &mut Text) {
        for parent in &self.parents {
            text.branch(|text| parent.describe(text));
        }
        self.mixture.describe(self.parents.len(), text);
    }
}

struct MixMachine {
    stop: StopRule,
    /// Positions from which weights of all children hold, and those.
    schedule: Arc<[(u64, Vec<u64>)]>,
    /// How many of them hold or have held, and from which output of this stream on the last one does.
    held: usize,
    start: u64,
    /// Children that are not empty, and their weights.
    there: Vec<usize>,
    weights: Weights,
    children: Vec<Child>,
    stream: Stream,
    /// Elements given.
    number: u64,
    ended: bool,
}

struct Child {
    parent: Parent,
    /// None of an empty one.
    machine: Option<Box<dyn Machine>>,
    /// How often it was begun anew.
    round: u64,
    /// Elements given since.
    given: u64,
    /// Whether it was exhausted once.
    is_done: bool,
    /// Whether it gives nothing at all: it is left out.
    is_empty: bool,
}

impl MixMachine {
    /// Takes the weights that hold for the next output, of the children that are not empty.
    fn weigh(&mut self) {
        let position = self.stream.position(self.number);
        self.held = self.schedule.partition_point(|(start, _)| *start <= position);
        let (start, weights) = &self.schedule[self.held - 1];
        // The first output of this stream at or after that position.
        self.start = start
            .saturating_sub(self.stream.number)
            .div_ceil(self.stream.count);
        self.there = (0..self.children.len())
            .filter(|&child| !self.children[child].is_empty)
            .collect();
        let weights: Vec<u64> = self.there.iter().map(|&child| weights[child]).collect();
        self.weights = Weights::new(&weights);
        self.ended |= self.there.is_empty();
    }

    /// Whether other weights hold for the next output.
    fn changes(&self) -> bool {
        let next = self.schedule.get(self.held);
        next.is_some_and(|(start, _)| *start <= self.stream.position(self.number))
    }
}

impl Machine for MixMachine {
    fn next(&mut self) -> Item {
        while !self.ended {
            if self.changes() {
                self.weigh();
            }
            let chosen = self.there[self.weights.place(self.number - self.start).0];
            let child = &mut self.children[chosen];
            let element = match &mut child.machine {
                Some(machine) => machine.next()?,
                None => None,
            };
            if element.is_some() {
                self.number += 1;
                child.given += 1;
                return Ok(element);
            }
            child.is_done = true;
            let is_empty = child.given == 0;
            if is_empty {
                child.is_empty = true;
                child.machine = None;
                self.weigh();
            } else if self.stop == StopRule::FirstExhausted || self.children.iter().all(|child| child.is_done)
            {
                self.ended = true;
            } else {
                let child = &mut self.children[chosen];
                child.round += 1;
                child.given = 0;
                child.machine = Some(child.parent.open(
                    Stream {
                        round: child.round,
                        ..self.stream.clone()
                    },
                    None,
                )?);
            }
        }
        Ok(None)
    }

    /// Positions of the mixture, not of its sources: those are what weights change at.
    fn reach(&self) -> u64 {
        let last = self.number.checked_sub(1);
        last.map_or(0, |last| self.stream.position(last) + 1)
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        for child in &self.children {
            cursor.extend([
                child.round,
                child.given,
                u64::from(child.is_done) | u64::from(child.is_empty) << 1,
            ]);
            if let Some(machine) = &child.machine {
                machine.save(cursor);
            }
        }
        cursor.extend([self.number, u64::from(self.ended)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_places_agree_and_stay_near_the_share() {
        for weights in [&[1u64][..], &[1, 1], &[9_995, 5], &[3, 1, 2, 7, 1], &[1, 1 << 32]] {
            let tree = Weights::new(weights);
            let mut counts = vec![0; weights.len()];
            let total: u64 = weights.iter().sum();
            for position in 0..5_000 {
                for source in 0..weights.len() {
                    assert_eq!(tree.count(source, position), counts[source]);
                    let share = position as f64 * weights[source] as f64 / total as f64;
                    assert!(
                        (counts[source] as f64 - share).abs() <= 3.0,
                        "{weights:?} at {position}"
                    );
                }
                let (source, within) = tree.place(position);
                assert_eq!(within, counts[source]);
                counts[source] += 1;
            }
        }
        // Far positions do not overflow.
        let tree = Weights::new(&[u64::from(u32::MAX), 1, 1 << 32]);
        assert_eq!(
            (0..3).map(|source| tree.count(source, ENDLESS)).sum::<u64>(),
            ENDLESS
        );
    }

    #[test]
    fn wrong_weights_are_named() {
        for weights in [&[1.0][..], &[1.0, 0.0], &[1.0, f64::NAN], &[f64::INFINITY, 1.0]] {
            assert!(whole(weights, 2).unwrap_err().is_usage());
        }
        assert_eq!(whole(&[2.0, 3.0], 2).unwrap(), [2, 3]);
        assert_eq!(whole(&[0.5, 0.25], 2).unwrap(), [1 << 32, 1 << 31]);
        assert_eq!(whole(&[1e-300, 1.0], 2).unwrap(), [1, 1 << 32]);
    }
}
