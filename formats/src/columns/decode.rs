//! The compiled decoder.

use crate::columns::leaf::{Tools, expect};
use crate::columns::plan::{self, Levels, Plan, end};
use crate::columns::scan::{Scanner, Slot};
use crate::columns::{Batch, ColumnData, ColumnSpec, Images};
use crate::example::wire::{self, Kind};
use crate::example::{Example, in_feature};
use crate::features::Features;
use crate::{Error, Result};

/// Decodes records under a schema into batches. Keeps its buffers: one per thread.
///
/// Features that the schema does not have are skipped. Nothing is allocated per record once the batch's buffers have grown. The order of
/// features in a record is remembered, so that one comparison finds each in the next.
///
/// # Examples
/// ```
/// use prep_formats::columns::{BatchDecoder, ColumnData};
/// use prep_formats::features::{Feature, Features};
/// use prep_formats::value::{DType, Value};
///
/// let numbers = Feature::sequence(Feature::sequence(Feature::Scalar { dtype: DType::UInt8 }));
/// let features = Features::new(vec![("x".into(), Feature::Scalar { dtype: DType::Int16 }), ("y".into(), numbers)])?;
/// let list = |values: &[i64]| Value::List(values.iter().map(|&value| Value::Int(value)).collect());
/// let lists = Value::List(vec![list(&[1, 2]), list(&[]), list(&[3])]);
/// let mut record = Vec::new();
/// features.encoder().encode(&[("x", Value::Int(-2)), ("y", lists)], &mut record)?;
///
/// let mut decoder = BatchDecoder::new(&features, true)?;
/// let mut batch = decoder.new_batch(2);
/// decoder.push(&record, &mut batch)?;
/// decoder.push(&record, &mut batch)?;
/// let ColumnData::Fixed(bytes) = &batch.columns[0] else { panic!("numbers are packed") };
/// assert_eq!(bytes, &[0xfe, 0xff, 0xfe, 0xff]);
/// let ColumnData::Nested { values, .. } = &batch.columns[1] else { panic!("sequences in sequences are nested") };
/// let ColumnData::Fixed(bytes) = &**values else { panic!("numbers are packed") };
/// assert_eq!(bytes, &[1, 2, 3, 1, 2, 3]);
/// assert_eq!(batch.columns[1].row_lengths(0).collect::<Vec<_>>(), [3, 3]);
/// assert_eq!(batch.columns[1].row_lengths(1).collect::<Vec<_>>(), [2, 0, 1, 2, 0, 1]);
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug)]
pub struct BatchDecoder {
    specs: Vec<ColumnSpec>,
    plans: Vec<Plan>,
    scanner: Scanner,
    tools: Tools,
}

impl BatchDecoder {
    /// Compiles a schema. `images` is [`Images`], or whether images are decoded: `false` leaves them as encoded bytes.
    ///
    /// # Errors
    /// What this version cannot decode: JPEG and GIF pictures, unless they are to stay encoded; tensors of which no shape is stored: with two
    /// varying dimensions and no encoding, or with one inside a sequence.
    pub fn new(features: &Features, images: impl Into<Images>) -> Result<Self> {
        let compiled = plan::compile(features, images.into())?;
        Ok(Self {
            scanner: Scanner::new(&compiled.names),
            specs: compiled.specs,
            plans: compiled.plans,
            tools: Tools::default(),
        })
    }

    /// Name, dtype and row shape of each column, sorted by name.
    pub fn specs(&self) -> &[ColumnSpec] {
        &self.specs
    }

    /// An empty batch with room for `rows`.
    pub fn new_batch(&self, rows: usize) -> Batch {
        Batch {
            rows: 0,
            columns: self.plans.iter().map(|plan| plan.new_column(rows)).collect(),
        }
    }

    /// Empties a batch and keeps its buffers.
    pub fn clear(&self, batch: &mut Batch) {
        batch.rows = 0;
        self.truncate(batch);
    }

    /// Decodes one record as the next row. After an error the batch is as it was before.
    ///
    /// `batch` is one that [`BatchDecoder::new_batch`] of the same schema made.
    ///
    /// # Errors
    /// A record that is no example, lacks a feature that is not optional, or holds other values than the schema says: wrong kind or number of
    /// them, row lengths that do not add up, a number that the declared type cannot hold, a label out of range, a damaged picture. All name
    /// the feature.
    ///
    /// # Panics
    /// If `batch` has another number or another kind of columns than this decoder's.
    pub fn push(&mut self, record: &[u8], batch: &mut Batch) -> Result<()> {
        assert_eq!(
            batch.columns.len(),
            self.plans.len(),
            "a batch of this decoder has its columns"
        );
        let result = match self.scanner.scan(record) {
            Ok(true) => self.decode_lists(record, batch),
            // Lists in parts, which no writer makes: put together, then read as any other.
            Ok(false) => match Example::decode(record) {
                Ok(example) => {
                    let record = example.encode();
                    self.scanner
                        .scan(&record)
                        .and_then(|_| self.decode_lists(&record, batch))
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => batch.rows += 1,
            Err(_) => self.truncate(batch),
        }
        result
    }

    fn decode_lists(&mut self, record: &[u8], batch: &mut Batch) -> Result<()> {
        let slots = self.scanner.slots();
        let columns = batch.columns.iter_mut().zip(&self.plans).zip(&self.specs);
        for ((column, plan), spec) in columns {
            plan.decode(record, slots, column, &mut self.tools)
                .map_err(|error| in_feature(&spec.name, error))?;
        }
        Ok(())
    }

    /// Cuts each column to the batch's number of rows.
    fn truncate(&self, batch: &mut Batch) {
        for (column, plan) in batch.columns.iter_mut().zip(&self.plans) {
            plan.truncate(column, batch.rows);
        }
    }
}

impl Plan {
    #[inline]
    fn decode(
        &self,
        record: &[u8],
        slots: &[Slot],
        column: &mut ColumnData,
        tools: &mut Tools,
    ) -> Result<()> {
        if !self.optional {
            return self.decode_present(record, slots, column, tools);
        }
        let ColumnData::Optional { present, values } = column else {
            panic!("a batch of this decoder has an optional column for an optional feature");
        };
        let list = slots[self.values].list(record);
        // One without a kind is how a missing value may be written, too, where no empty one could be.
        if list.kind.is_some() {
            present.push(1);
            return self.decode_present(record, slots, values, tools);
        }
        present.push(0);
        match (&self.levels, &mut **values) {
            (Levels::Static(elements), values) => self.leaf.append_missing(*elements, values),
            // Of optional features only strings along a varying dimension are a sequence: of no elements.
            (_, ColumnData::Nested { splits, .. }) => {
                if let Some(first) = splits.first_mut() {
                    push_split(first, 0);
                }
            }
            _ => {}
        }
        Ok(())
    }

    #[inline]
    fn decode_present(
        &self,
        record: &[u8],
        slots: &[Slot],
        column: &mut ColumnData,
        tools: &mut Tools,
    ) -> Result<()> {
        let list = slots[self.values].list(record);
        let stored_shapes = self.shapes.map(|slot| slots[slot].list(record));
        match (&self.levels, column) {
            (Levels::Static(elements), column) => {
                self.leaf
                    .decode(list, stored_shapes, Some(*elements), column, tools)?;
                Ok(())
            }
            (
                Levels::Array { inner },
                ColumnData::Ragged {
                    shapes,
                    offsets,
                    data,
                },
            ) => {
                let elements = self.leaf.decode_fixed(list, None, data, tools)?;
                shapes.push(elements as u64);
                shapes.extend_from_slice(inner);
                offsets.push(data.len() as u64);
                Ok(())
            }
            (Levels::Nested { wanted, lengths }, ColumnData::Nested { splits, values }) => {
                // Without row lengths there is one sequence, of all elements.
                if lengths.is_empty() {
                    let elements = self.leaf.decode(list, stored_shapes, None, values, tools)?;
                    check_length(elements as u64, wanted[0])?;
                    push_split(&mut splits[0], elements as u64);
                    return Ok(());
                }
                let mut expected: Option<u64> = None;
                for (level, &slot) in lengths.iter().enumerate() {
                    let list = slots[slot].list(record);
                    let (before, deeper) = splits.split_at_mut(level + 1);
                    let deeper = &mut deeper[0];
                    let (found, total) = append_lengths(list, wanted[level + 1], deeper)
                        .map_err(|error| in_row_lengths(level, error))?;
                    match expected {
                        None => {
                            check_length(found, wanted[0])?;
                            push_split(&mut before[0], found);
                        }
                        Some(wanted) if wanted != found => {
                            return Err(Error::damaged(format!(
                                "{found} row lengths at level {level}, wanted {wanted}"
                            )));
                        }
                        Some(_) => {}
                    }
                    expected = Some(total);
                }
                let found = self.leaf.decode(list, stored_shapes, None, values, tools)? as u64;
                match expected {
                    Some(wanted) if wanted != found => Err(Error::damaged(format!(
                        "{found} values, but the row lengths add up to {wanted}"
                    ))),
                    _ => Ok(()),
                }
            }
            (_, _) => panic!("a batch of this decoder has a column for {:?}", self.leaf),
        }
    }
}

fn in_row_lengths(level: usize, error: Error) -> Error {
    match error {
        Error::Damaged { at, reason } => Error::Damaged {
            at,
            reason: format!("row lengths of level {level}: {reason}"),
        },
        other => other,
    }
}

fn check_length(found: u64, wanted: Option<u64>) -> Result<()> {
    match wanted {
        Some(wanted) if wanted != found => Err(Error::damaged(format!(
            "a sequence of {found} elements, wanted {wanted}"
        ))),
        _ => Ok(()),
    }
}

fn push_split(splits: &mut Vec<u64>, length: u64) {
    let last = end(splits) as u64;
    splits.push(last + length);
}

/// Appends row lengths as splits; how many there are, and their sum.
fn append_lengths(
    list: crate::columns::leaf::List<'_>,
    wanted: Option<u64>,
    splits: &mut Vec<u64>,
) -> Result<(u64, u64)> {
    expect(list, Kind::Int64, true)?;
    let start = end(splits) as u64;
    let (mut found, mut last) = (0, start);
    let mut wrong = None;
    wire::each_int64(list.bytes, |length| {
        found += 1;
        let next = u64::try_from(length).ok().and_then(|length| {
            let fits = wanted.is_none_or(|wanted| wanted == length);
            // So long that no list can be: the sum stays far from its limit.
            last.checked_add(length)
                .filter(|&next| fits && next <= i64::MAX.cast_unsigned())
        });
        match next {
            Some(next) => last = next,
            None => {
                wrong.get_or_insert(length);
            }
        }
        splits.push(last);
    })?;
    match wrong {
        None => Ok((found, last - start)),
        Some(length) => Err(Error::damaged(match wanted {
            Some(wanted) => format!("a sequence of {length} elements, wanted {wanted}"),
            None => format!("a sequence of {length} elements"),
        })),
    }
}
