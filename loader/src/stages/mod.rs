//! The stages of a pipeline, a file each.
//!
//! [`MapStage`] is random access: the element of any position is asked for, a pure function of it. [`IterStage`] is streaming: it is opened
//! once for each virtual stream as a [`Machine`], which gives its elements one after the other.
//!
//! Every stage writes itself into the pipeline's text ([`Text`]), by which states are compared.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::dataset::Dataset;
use crate::deal::MAX_POSITION;
use crate::element::{Element, ElementSpec, Origin};
use crate::engine::panic_message;
use crate::error::{Error, Result};

pub(crate) mod batch;
pub(crate) mod cache;
pub(crate) mod concatenate;
pub(crate) mod filter;
pub(crate) mod flat_map;
pub(crate) mod interleave;
pub(crate) mod map;
pub(crate) mod mix;
pub(crate) mod pack;
pub(crate) mod records;
pub(crate) mod repeat;
pub(crate) mod shuffle;
pub(crate) mod slice;
pub(crate) mod source;
pub(crate) mod streams;
pub(crate) mod window_shuffle;
pub(crate) mod zip;

use records::{Given, Records};

/// The length of what has no end.
pub(crate) const ENDLESS: u64 = MAX_POSITION;

/// The element of a position: none where a filter left it out.
pub(crate) type Item = Result<Option<Element>>;

/// A stage of random access.
pub(crate) trait MapStage: Send + Sync {
    /// What is known of it without reading.
    fn facts(&self) -> &Facts;

    /// Appends the elements of positions below 2^63, in the order given. Position `p` is offset `p mod length` of epoch `p div length`.
    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>);

    /// The records at positions below 2^63 as columns, where the elements are records of a dataset in some order. `None` where they are something
    /// else, and where one cannot be read, which [`get_many`](Self::get_many) then tells. `used` is what an earlier call gave: its memory is used again.
    fn get_records(&self, _positions: &[u64], _used: Option<Records>) -> Option<Records> {
        None
    }

    /// Writes itself, after its parents.
    fn describe(&self, text: &mut Text);
}

impl<S: MapStage + ?Sized> MapStage for Arc<S> {
    fn facts(&self) -> &Facts {
        (**self).facts()
    }

    fn get_many(&self, positions: &[u64], items: &mut Vec<Item>) {
        (**self).get_many(positions, items);
    }

    fn describe(&self, text: &mut Text) {
        (**self).describe(text);
    }
}

/// What is known of a stage without reading.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// Positions of an epoch; [`ENDLESS`].
    pub(crate) length: u64,
    /// What an element looks like.
    pub(crate) spec: ElementSpec,
    /// Whether positions may be left out.
    pub(crate) sparse: bool,
    /// Whether epochs differ in more than their number.
    pub(crate) epochal: bool,
}

/// A streaming stage.
pub(crate) trait IterStage: Send + Sync {
    /// What an element looks like.
    fn spec(&self) -> &ElementSpec;

    /// Whether the stream has no end.
    fn is_endless(&self) -> bool;

    /// How many elements a stream gives, where that follows without reading; [`ENDLESS`].
    fn length(&self, _: &Stream) -> Option<u64> {
        None
    }

    /// Appends the numbers that a stream saves after so many elements, at most its length, where they follow without reading; gives its reach.
    fn at(&self, _stream: &Stream, _given: u64, _cursor: &mut Vec<u64>) -> Option<u64> {
        None
    }

    /// Opens one virtual stream, at its start or where a cursor was written.
    fn open(&self, stream: Stream, cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>>;

    /// Writes itself, after its parents.
    fn describe(&self, text: &mut Text);
}

/// What a streaming stage is made on.
pub(crate) type Parent = Arc<dyn IterStage>;

/// One virtual stream of a stage: its elements in order, and where it stands.
pub(crate) trait Machine: Send {
    /// The next element. `None`: the stream has ended. After an error it is left alone and opened again.
    fn next(&mut self) -> Item;

    /// As [`next`](Self::next), for a stage that has no need of an element.
    fn next_given(&mut self) -> Result<Option<Given>> {
        Ok(self.next()?.map(Given::Element))
    }

    /// Positions that were taken, at most: of the random access of all its sources, the offset after the last; behind a mixture of streams, of
    /// that mixture.
    fn reach(&self) -> u64;

    /// Appends the numbers from which [`IterStage::open`] makes what is still to come.
    fn save(&self, cursor: &mut Vec<u64>);
}

/// Which virtual stream.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// Its number, below the count.
    pub(crate) number: u64,
    /// How many there are.
    pub(crate) count: u64,
    /// How often its sources were begun anew by a mixture: the epoch it starts in.
    pub(crate) round: u64,
    /// Set when its thread has to end: its sources fail then.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Stream {
    /// The position, among all streams, of an element of this one.
    pub(crate) fn position(&self, number: u64) -> u64 {
        number.wrapping_mul(self.count).wrapping_add(self.number)
    }

    /// The number of its first element: begun anew, a stream goes on with numbers that it has not had.
    pub(crate) fn first_number(&self) -> u64 {
        self.round << 40
    }

    /// The number that a stage goes on with: the one it has saved, else the first.
    fn next_number(&self, cursor: Option<&mut Cursor<'_>>) -> Result<u64> {
        cursor.map_or_else(|| Ok(self.first_number()), Cursor::next)
    }
}

/// Numbers that machines have saved, read in the same order.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    numbers: &'a [u64],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(numbers: &'a [u64]) -> Self {
        Self { numbers }
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> Result<u64> {
        let (&first, rest) = self
            .numbers
            .split_first()
            .ok_or_else(|| Error::State("a stream has too few numbers".into()))?;
        self.numbers = rest;
        Ok(first)
    }

    /// That nothing is left.
    pub(crate) fn finish(&self) -> Result<()> {
        match self.numbers {
            [] => Ok(()),
            _ => Err(Error::State("a stream has too many numbers".into())),
        }
    }
}

/// Where a stage's buffers were last empty, and what it gave since: enough to make the rest again.
#[derive(Debug, Default)]
pub(crate) struct Clean {
    /// The parent's numbers at that time.
    parent: Vec<u64>,
    /// Elements given since.
    pub(crate) given: u64,
}

impl Clean {
    /// The parent stands where nothing of it is in a buffer.
    pub(crate) fn mark(&mut self, parent: &dyn Machine) {
        self.parent.clear();
        parent.save(&mut self.parent);
        self.given = 0;
    }

    /// The parent stood here, with nothing of it in a buffer.
    pub(crate) fn set(&mut self, parent: &[u64]) {
        self.parent.clear();
        self.parent.extend_from_slice(parent);
        self.given = 0;
    }

    /// Appends the parent's numbers, some of the stage's own at that time, and how many elements were given since.
    pub(crate) fn save(&self, own: &[u64], cursor: &mut Vec<u64>) {
        cursor.extend_from_slice(&self.parent);
        cursor.extend_from_slice(own);
        cursor.push(self.given);
    }
}

/// Elements in a row that a virtual stream may leave out. One that has no end and finds none any more would hold up all others for ever.
const MOST_LEFT_OUT: u64 = if cfg!(test) { 1 << 12 } else { 1 << 24 };

/// That a stream has not left out too many elements in a row.
pub(crate) fn check_left_out(count: u64) -> Result<()> {
    if count <= MOST_LEFT_OUT {
        return Ok(());
    }
    Err(Error::User(
        format!(
            "one of the virtual streams left out {count} elements in a row: what is kept may depend on the position, of which each stream has every \
             so many-th; shuffle before the filter, or deal to one stream only"
        )
        .into(),
    ))
}

/// Gives up as many elements as were given since the buffers were last empty.
pub(crate) fn replay(machine: &mut dyn Machine, given: u64) -> Result<()> {
    for _ in 0..given {
        if machine.next()?.is_none() {
            return Err(Error::State(
                "a stream ends before the place it was saved at".into(),
            ));
        }
    }
    Ok(())
}

/// The pipeline's text: a line a stage, parents before children, branches indented. Beside it what goes over all stages wants to know.
#[derive(Default)]
pub(crate) struct Text {
    lines: Vec<String>,
    depth: usize,
    /// Numbers and names of the stages that are measured.
    stages: Vec<(u64, Arc<str>)>,
    datasets: Vec<Dataset>,
}

impl Text {
    /// A stage that is measured under a number has written itself.
    pub(crate) fn stage(&mut self, number: u64, name: &Arc<str>) {
        self.stages.push((number, Arc::clone(name)));
    }

    /// What has written the last line is measured under a number.
    pub(crate) fn stage_of_line(&mut self, number: u64) {
        let name = self.lines.last().map_or("", |line| line.trim());
        self.stages.push((number, name.into()));
    }

    pub(crate) fn stages(&self) -> &[(u64, Arc<str>)] {
        &self.stages
    }

    /// A dataset that is read.
    pub(crate) fn dataset(&mut self, dataset: &Dataset) {
        self.datasets.push(dataset.clone());
    }

    pub(crate) fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        let indent = "  ".repeat(self.depth);
        self.lines.push(format!("{indent}{}", line.as_ref()));
    }

    /// A parent among several.
    pub(crate) fn branch(&mut self, write: impl FnOnce(&mut Self)) {
        self.depth += 1;
        write(self);
        self.depth -= 1;
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines
    }
}

/// Calls a function of the caller's: a panic is an error, and errors name stage, position and record.
pub(crate) fn guarded<T>(
    stage: &str,
    position: u64,
    origin: Option<&Origin>,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    caught(work).map_err(|error| error.at_stage(stage, position, origin))
}

/// Calls a function of the caller's: a panic is an error.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// The same of one that gives so many results.
pub(crate) fn caught_many<T>(count: usize, work: impl FnOnce() -> Vec<Result<T>>) -> Vec<Result<T>> {
    let mut results =
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| vec_of(count, || Err(panicked(&*panic))));
    let given = results.len();
    if given != count {
        results = vec_of(count, || {
            Err(Error::User(
                format!("it gave {given} results, wanted {count}").into(),
            ))
        });
    }
    results
}

fn vec_of<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    std::iter::repeat_with(make).take(count).collect()
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::User(format!("it panicked: {}", panic_message(panic)).into())
}
