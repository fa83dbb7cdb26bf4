//! Sequences of varying length into rows of one length: ORDER.md, section 14.

use std::collections::VecDeque;
use std::sync::Arc;

use prep_formats::columns::ColumnSpec;
use prep_formats::value::DType;

use super::records::{Given, Numbers};
use super::{Clean, Cursor, Item, IterStage, Machine, Parent, Stream, Text, replay};
use crate::element::{Array, Element, ElementSpec, Origin, Value};
use crate::error::{Error, Result};
use crate::permutation::Permutation;
use crate::recycle::{Memory, Recycler};

/// Bytes of the rows of all streams that are kept to be filled again.
const ROWS_AT_REST: usize = 32 << 20;

/// Which row a sequence is put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packing {
    /// The first of some open rows that has room. Where none has, all of them are given and emptied.
    FirstFit {
        /// Rows that are open at a time.
        bins: usize,
    },
    /// The open row that it leaves the least room in, the first of equals. Else as first-fit.
    BestFit {
        /// Rows that are open at a time.
        bins: usize,
    },
    /// One row after the other, split where a row is full: no padding but in the last one.
    ConcatThenSplit,
}

/// How sequences are packed.
///
/// # Examples
/// ```
/// use prep_loader::{PackOptions, Packing};
///
/// let options = PackOptions::new(Packing::BestFit { bins: 16 }, [("tokens", 2048)]).meta_features(["source"]);
/// assert_eq!(options.lengths[0].1, 2048);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackOptions {
    /// Which row a sequence is put into.
    pub packing: Packing,
    /// What is packed, and how long a row of it is.
    pub lengths: Vec<(String, usize)>,
    /// What is kept as a list of the values of a row's sequences.
    pub meta_features: Vec<String>,
    /// Gives the rows that are full together in an order of this seed.
    pub shuffle_bins: Option<u64>,
    /// Leaves out what is in the rows when the stream ends.
    pub drop_remainder: bool,
}

impl PackOptions {
    /// Packs values along their first dimension into rows of a length. Scalars count as one. All other values but the meta features are left
    /// out.
    pub fn new<S: Into<String>>(packing: Packing, lengths: impl IntoIterator<Item = (S, usize)>) -> Self {
        Self {
            packing,
            lengths: lengths
                .into_iter()
                .map(|(name, length)| (name.into(), length))
                .collect(),
            meta_features: Vec::new(),
            shuffle_bins: None,
            drop_remainder: false,
        }
    }

    /// Keeps values as a list for each row, one for each sequence in it.
    #[must_use]
    pub fn meta_features<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.meta_features = names.into_iter().map(Into::into).collect();
        self
    }

    /// Shuffles rows that are given together. Default: as they were opened.
    #[must_use]
    pub fn shuffle_bins(mut self, seed: u64) -> Self {
        self.shuffle_bins = Some(seed);
        self
    }

    /// Leaves out what is in the rows when the stream ends. Default false: each token is seen, and the last rows are padded.
    #[must_use]
    pub fn drop_remainder(mut self, drop_remainder: bool) -> Self {
        self.drop_remainder = drop_remainder;
        self
    }

    fn bins(&self) -> usize {
        match self.packing {
            Packing::FirstFit { bins } | Packing::BestFit { bins } => bins,
            Packing::ConcatThenSplit => 1,
        }
    }
}

/// One packed value.
#[derive(Debug)]
struct Field {
    name: Arc<str>,
    segment_ids: Arc<str>,
    positions: Arc<str>,
    length: usize,
    dtype: DType,
    /// Dimensions after the first.
    inner: Vec<usize>,
    /// Bytes of one step along the first dimension.
    step: usize,
}

struct Plan {
    options: PackOptions,
    fields: Vec<Field>,
    meta: Vec<Arc<str>>,
    buffers: Arc<Recycler>,
}

/// Packs each virtual stream.
pub(crate) struct PackStage {
    parent: Parent,
    plan: Arc<Plan>,
    spec: ElementSpec,
}

impl PackStage {
    pub(crate) fn new(parent: Parent, options: PackOptions) -> Result<Self> {
        let refuse = |text: String| Err(Error::Options(text));
        if options.bins() == 0 {
            return refuse("packing into 0 bins, wanted at least 1".into());
        }
        if options.lengths.is_empty() {
            return refuse("nothing is packed: name at least one value and its length".into());
        }
        let mut spec = ElementSpec::new();
        let mut fields = Vec::new();
        for (name, length) in &options.lengths {
            let found = parent.spec().field(name)?;
            let inner = inner(found)?;
            if *length == 0 || i32::try_from(*length).is_err() {
                return refuse(format!("rows of {length} for `{name}`, wanted 1 to {}", i32::MAX));
            }
            let step = inner
                .iter()
                .try_fold(found.dtype.num_bytes(), |step, &size| step.checked_mul(size))
                .filter(|step| {
                    let bytes = step.checked_mul(*length);
                    bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok())
                })
                .ok_or_else(|| Error::Options(format!("a row of `{name}` is larger than memory can hold")))?;
            let mut shape = vec![Some(*length as u64)];
            shape.extend(inner.iter().map(|&size| Some(size as u64)));
            let field = Field {
                segment_ids: format!("{name}_segment_ids").into(),
                positions: format!("{name}_positions").into(),
                name: (&**name).into(),
                length: *length,
                dtype: found.dtype,
                inner,
                step,
            };
            spec.set(name, found.dtype, shape);
            for made in [&field.segment_ids, &field.positions] {
                spec.set(made, DType::Int32, [Some(*length as u64)]);
            }
            fields.push(field);
        }
        let splits = options.packing == Packing::ConcatThenSplit;
        if splits
            && fields
                .iter()
                .any(|field: &Field| field.length != fields[0].length)
        {
            return refuse("values that are split together have rows of one length".into());
        }
        for name in &options.meta_features {
            let mut found = parent.spec().field(name)?.clone();
            if spec.get(name).is_some() {
                return refuse(format!("`{name}` is both packed and a meta feature"));
            }
            found.shape.insert(0, None);
            spec.push(found);
        }
        Ok(Self {
            parent,
            plan: Arc::new(Plan {
                meta: options
                    .meta_features
                    .iter()
                    .map(|name| (&**name).into())
                    .collect(),
                buffers: Recycler::new(ROWS_AT_REST),
                options,
                fields,
            }),
            spec,
        })
    }
}

/// The dimensions of a packed value after the first.
fn inner(field: &ColumnSpec) -> Result<Vec<usize>> {
    let wrong = |what: String| {
        Err(Error::Options(format!(
            "`{}` is {what}, and numbers are packed along their first dimension",
            field.name
        )))
    };
    if field.dtype == DType::String || field.optional {
        return wrong(format!(
            "{}{}",
            if field.optional { "optional " } else { "" },
            field.dtype
        ));
    }
    field
        .shape
        .iter()
        .skip(1)
        .map(|size| size.and_then(|size| usize::try_from(size).ok()))
        .collect::<Option<_>>()
        .map_or_else(|| wrong("of several varying dimensions".into()), Ok)
}

impl IterStage for PackStage {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }

    fn is_endless(&self) -> bool {
        self.parent.is_endless()
    }

    fn open(&self, stream: Stream, mut cursor: Option<&mut Cursor<'_>>) -> Result<Box<dyn Machine>> {
        let parent = self.parent.open(stream.clone(), cursor.as_deref_mut())?;
        let saved = match cursor {
            Some(cursor) => [cursor.next()?, cursor.next()?, cursor.next()?],
            None => [stream.first_number(), 0, 0],
        };
        let [number, skip, given] = saved;
        let mut machine = PackMachine {
            parent,
            plan: Arc::clone(&self.plan),
            stream,
            number,
            skip,
            begins: (Vec::new(), skip),
            pending: None,
            ready: VecDeque::new(),
            ended: false,
            clean: Clean::default(),
        };
        machine.clean.mark(&*machine.parent);
        replay(&mut machine, given)?;
        Ok(Box::new(machine))
    }

    fn describe(&self, text: &mut Text) {
        self.parent.describe(text);
        let options = &self.plan.options;
        let packing = match options.packing {
            Packing::FirstFit { bins } => format!("first_fit bins={bins}"),
            Packing::BestFit { bins } => format!("best_fit bins={bins}"),
            Packing::ConcatThenSplit => "concat_then_split".to_string(),
        };
        text.line(format!(
            "pack {packing} lengths={:?} meta_features={:?} shuffle_bins={:?} drop_remainder={}",
            options.lengths, options.meta_features, options.shuffle_bins, options.drop_remainder
        ));
    }
}

/// An open row.
struct Row {
    columns: Vec<Column>,
    segments: i32,
    meta: Vec<Vec<Value>>,
    /// That of the first sequence.
    origin: Option<Origin>,
}

/// The buffers of one packed value in a row, whole from the beginning and filled up to what is used.
struct Column {
    data: Memory,
    segment_ids: Memory,
    positions: Memory,
    /// Steps.
    used: usize,
}

impl Row {
    fn new(plan: &Plan) -> Result<Self> {
        let column = |field: &Field| {
            Ok(Column {
                data: plan.buffers.take(field.length * field.step)?,
                segment_ids: plan.buffers.take(field.length * 4)?,
                positions: plan.buffers.take(field.length * 4)?,
                used: 0,
            })
        };
        Ok(Self {
            columns: plan.fields.iter().map(column).collect::<Result<_>>()?,
            segments: 0,
            meta: vec![Vec::new(); plan.meta.len()],
            origin: None,
        })
    }

    /// The room that is left when sequences of these lengths are put in, over all values. `None`: they do not fit.
    fn room(&self, lengths: &[usize], plan: &Plan) -> Option<usize> {
        let mut room = 0;
        for ((column, field), length) in self.columns.iter().zip(&plan.fields).zip(lengths) {
            room += (field.length - column.used).checked_sub(*length)?;
        }
        Some(room)
    }

    /// Copies steps `start..end` of each value.
    fn put(
        &mut self,
        sequence: &Sequence,
        plan: &Plan,
        range: impl Fn(usize) -> (usize, usize),
    ) -> Result<()> {
        self.segments += 1;
        if self.origin.is_none() {
            self.origin = sequence.given.origin();
        }
        let id = self.segments.to_le_bytes();
        for (number, (column, field)) in self.columns.iter_mut().zip(&plan.fields).enumerate() {
            let (start, end) = range(number);
            let (at, steps) = (column.used, end - start);
            let data = field.numbers(&sequence.given)?.data;
            column.data[at * field.step..][..steps * field.step]
                .copy_from_slice(&data[start * field.step..end * field.step]);
            column.segment_ids.as_chunks_mut::<4>().0[at..][..steps].fill(id);
            let positions = &mut column.positions.as_chunks_mut::<4>().0[at..][..steps];
            for (position, number) in positions.iter_mut().zip(0u32..) {
                *position = number.to_le_bytes();
            }
            column.used += steps;
        }
        for (values, value) in self.meta.iter_mut().zip(&sequence.meta) {
            values.push(value.clone());
        }
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<Element> {
        let mut element = Element::new();
        element.set_origin(self.origin);
        for (mut column, field) in self.columns.into_iter().zip(&plan.fields) {
            column.data[column.used * field.step..].fill(0);
            let mut shape = vec![field.length];
            shape.extend_from_slice(&field.inner);
            let values = Array::recycled(field.dtype, shape, column.data)?;
            element.set(Arc::clone(&field.name), values);
            for (name, mut numbers) in [
                (&field.segment_ids, column.segment_ids),
                (&field.positions, column.positions),
            ] {
                numbers[column.used * 4..].fill(0);
                let numbers = Array::recycled(DType::Int32, [field.length], numbers)?;
                element.set(Arc::clone(name), numbers);
            }
        }
        for (name, values) in plan.meta.iter().zip(self.meta) {
            element.set(Arc::clone(name), Value::List(values.into()));
        }
        Ok(element)
    }
}

impl Field {
    /// The numbers of an element that are packed.
    fn numbers<'a>(&self, given: &'a Given) -> Result<Numbers<'a>> {
        let numbers = given.numbers(&self.name)?;
        let inner = |numbers: &Numbers<'_>| numbers.shape.get(1..).unwrap_or_default() == self.inner;
        match numbers {
            Some(numbers) if numbers.dtype == self.dtype && inner(&numbers) => Ok(numbers),
            numbers => Err(Error::Element(format!(
                "`{}` is {}, wanted {} of any length and then {:?}",
                self.name,
                numbers.map_or("byte strings".to_string(), |found| format!(
                    "{} {:?}",
                    found.dtype, found.shape
                )),
                self.dtype,
                self.inner
            ))),
        }
    }
}

/// What is packed of an element.
struct Sequence {
    given: Given,
    /// Steps of each packed value.
    lengths: Vec<usize>,
    meta: Vec<Value>,
}

impl Sequence {
    /// The lengths and the meta features of an element that can be packed.
    fn of(given: &Given, plan: &Plan) -> Result<(Vec<usize>, Vec<Value>)> {
        let length = |field: &Field| Ok(field.numbers(given)?.shape.first().copied().unwrap_or(1));
        let lengths: Vec<usize> = plan.fields.iter().map(length).collect::<Result<_>>()?;
        let meta = plan.meta.iter().map(|name| given.value(name));
        let meta = meta.collect::<Result<_>>()?;
        if plan.options.packing == Packing::ConcatThenSplit {
            if let Some(odd) = lengths.iter().find(|&&length| length != lengths[0]) {
                return Err(Error::Element(format!(
                    "values that are split together have {} and {odd} steps, wanted equal lengths",
                    lengths[0]
                )));
            }
        } else if let Some((field, length)) = plan
            .fields
            .iter()
            .zip(&lengths)
            .find(|(field, length)| **length > field.length)
        {
            return Err(Error::Element(format!(
                "`{}` has {length} steps and rows have {}: cut it before, or pack with `ConcatThenSplit`, in Python `concat_then_split`",
                field.name, field.length
            )));
        }
        Ok((lengths, meta))
    }
}

struct PackMachine {
    parent: Box<dyn Machine>,
    plan: Arc<Plan>,
    stream: Stream,
    /// Sets of rows that were given.
    number: u64,
    /// Steps of the next sequence that earlier rows have.
    skip: u64,
    /// Where the parent stood before the first sequence of the next rows, and how much of it is in earlier ones.
    begins: (Vec<u64>, u64),
    /// A sequence that is next, or whose rest is.
    pending: Option<Sequence>,
    ready: VecDeque<Element>,
    ended: bool,
    clean: Clean,
}

impl PackMachine {
    /// Takes the next sequence; notes where the parent stood before it.
    fn take(&mut self) -> Result<Option<Sequence>> {
        if let Some(pending) = self.pending.take() {
            return Ok(Some(pending));
        }
        self.begins.0.clear();
        self.parent.save(&mut self.begins.0);
        let Some(given) = self.parent.next_given()? else {
            self.ended = true;
            return Ok(None);
        };
        match Sequence::of(&given, &self.plan) {
            Ok((lengths, meta)) => Ok(Some(Sequence { given, lengths, meta })),
            Err(error) => {
                let position = self.stream.position(self.number);
                Err(error.at_stage("pack", position, given.origin().as_ref()))
            }
        }
    }

    fn open_row(&self) -> Result<Row> {
        let position = self.stream.position(self.number);
        Row::new(&self.plan).map_err(|error| error.at_stage("pack", position, None))
    }

    /// Fills rows until a sequence does not fit, or the stream ends.
    fn fill_bins(&mut self) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        while let Some(sequence) = self.take()? {
            let plan = &*self.plan;
            let mut fitting = rows
                .iter()
                .enumerate()
                .filter_map(|(at, row)| Some((row.room(&sequence.lengths, plan)?, at)));
            let chosen = match plan.options.packing {
                Packing::BestFit { .. } => fitting.min(),
                _ => fitting.next(),
            };
            let at = match chosen {
                Some((_, at)) => at,
                None if rows.len() < plan.options.bins() => {
                    rows.push(self.open_row()?);
                    rows.len() - 1
                }
                None => {
                    self.pending = Some(sequence);
                    break;
                }
            };
            rows[at].put(&sequence, plan, |number| (0, sequence.lengths[number]))?;
        }
        Ok(rows)
    }

    /// Fills one row with the sequences in their order.
    fn fill_one(&mut self) -> Result<Vec<Row>> {
        let length = self.plan.fields[0].length;
        let mut row: Option<Row> = None;
        let mut used = 0;
        while used < length {
            let Some(sequence) = self.take()? else {
                break;
            };
            let start = usize::try_from(self.skip)
                .unwrap_or(usize::MAX)
                .min(sequence.lengths[0]);
            let end = sequence.lengths[0].min(start + (length - used));
            if start < end {
                let open = match &mut row {
                    Some(open) => open,
                    None => row.insert(self.open_row()?),
                };
                open.put(&sequence, &self.plan, |_| (start, end))?;
                used += end - start;
            }
            if end < sequence.lengths[0] {
                self.skip = end as u64;
                self.pending = Some(sequence);
            } else {
                self.skip = 0;
            }
        }
        if self.plan.options.drop_remainder && used < length {
            row = None;
        }
        Ok(row.into_iter().collect())
    }

    /// The rows that begin now have nothing of what was taken but what is pending.
    fn mark(&mut self) {
        match &self.pending {
            Some(_) => {
                self.clean.set(&self.begins.0);
                self.begins.1 = self.skip;
            }
            None => {
                self.clean.mark(&*self.parent);
                self.begins.1 = 0;
            }
        }
    }
}

impl Machine for PackMachine {
    fn next(&mut self) -> Item {
        if self.ready.is_empty() {
            if self.ended {
                return Ok(None);
            }
            let splits = self.plan.options.packing == Packing::ConcatThenSplit;
            let mut rows = if splits {
                self.fill_one()?
            } else {
                self.fill_bins()?
            };
            if !splits && self.ended && self.plan.options.drop_remainder {
                rows.clear();
            }
            let mut rows: Vec<Option<Row>> = rows.into_iter().map(Some).collect();
            let order = self.plan.options.shuffle_bins.map(|seed| {
                Permutation::windowed(seed, self.stream.position(self.number), rows.len() as u64)
            });
            for at in 0..rows.len() {
                let from = order.as_ref().map_or(at, |order| order.apply(at as u64) as usize);
                if let Some(row) = rows[from].take() {
                    self.ready.push_back(row.finish(&self.plan)?);
                }
            }
            self.number += 1;
        }
        let row = self.ready.pop_front();
        self.clean.given += 1;
        if self.ready.is_empty() {
            self.mark();
        }
        Ok(row)
    }

    fn reach(&self) -> u64 {
        self.parent.reach()
    }

    fn save(&self, cursor: &mut Vec<u64>) {
        // The number of the set of rows that is made next, or of which some were given.
        let number = self.number - u64::from(!self.ready.is_empty());
        self.clean.save(&[number, self.begins.1], cursor);
    }
}
