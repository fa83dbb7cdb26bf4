//! Looks at all records of one key at a time, however many they are.

use std::sync::Arc;

use crate::container::Batch;
use crate::operators::Sorted;
use crate::operators::source::{BATCH_ITEMS, Reader};
use crate::pipeline::Collection;
use crate::record::{Order, Record, Weigh};
use crate::spill::{Cursor, SortedRun};
use crate::{BoxError, Error};

/// The records of one split and key, in the order of the sort. What isn't taken is passed over.
#[derive(Debug)]
pub struct Group<'a> {
    cursor: &'a mut Cursor,
    order: Order,
    /// Position of the record after `next`, and how many records there are in all.
    position: u64,
    records: u64,
    /// The next record of this group, or of the one behind it.
    next: &'a mut Option<Record>,
    /// The group's first record.
    first: Record,
    error: Option<Error>,
}

impl Group<'_> {
    /// The first record, which also is the first that the iterator gives.
    pub fn first(&self) -> &Record {
        &self.first
    }
}

impl Iterator for Group<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let same = self.next.as_ref().is_some_and(|next| {
            (next.split, next.key) == (self.first.split, self.first.key)
                && self.order.payloads(&self.first.data, &next.data).is_eq()
        });
        if !same {
            return None;
        }
        let following = if self.position < self.records && self.error.is_none() {
            self.cursor.next(self.position).map(Some).unwrap_or_else(|error| {
                self.error = Some(error);
                None
            })
        } else {
            None
        };
        self.position += 1;
        std::mem::replace(self.next, following)
    }
}

impl<'scope> Sorted<'scope> {
    /// Calls `each` with the records of every key, one key after the other, and yields what it makes of them, in that order.
    ///
    /// The sort has to have been told [`Duplicates::Keep`](crate::Duplicates::Keep). All records of a key are on one worker, and need not fit in
    /// memory: they are read as the closure takes them, on a thread of its own, which may block. Within a key they have the order of their
    /// origins. Where [`SortOptions::then_by`](crate::SortOptions::then_by) was given, records of one key for which it doesn't say `Equal`
    /// are different groups. Nothing moves between workers after the sort; what is held is as for [`records`](Self::records), besides one
    /// block of records, and what the closure keeps.
    pub fn group_sorted<U, I, E>(
        self,
        name: &str,
        mut each: impl FnMut(&mut Group<'_>) -> Result<I, E> + Send + 'static,
    ) -> Collection<'scope, U>
    where
        U: Weigh + Send + 'static,
        I: IntoIterator<Item = U>,
        E: Into<BoxError>,
    {
        let (order, stage): (_, Arc<str>) = (self.options.order, name.into());
        self.replay(name, move |run, reader| {
            groups(run, reader, order, &stage, &mut each)
        })
    }
}

fn groups<U, I, E>(
    run: Arc<SortedRun>,
    reader: &Reader<U>,
    order: Order,
    stage: &str,
    each: &mut impl FnMut(&mut Group<'_>) -> Result<I, E>,
) -> Result<(), Error>
where
    U: Weigh,
    I: IntoIterator<Item = U>,
    E: Into<BoxError>,
{
    let records: u64 = run.totals.iter().map(|totals| totals.records).sum();
    let mut cursor = Cursor::new(run);
    let mut batch = Batch::default();
    let mut bytes = 0;
    let mut next = if records > 0 { Some(cursor.next(0)?) } else { None };
    let mut position = 1;
    while let Some(first) = next.clone() {
        let mut group = Group {
            cursor: &mut cursor,
            order,
            position,
            records,
            next: &mut next,
            first,
            error: None,
        };
        let results = each(&mut group).map_err(|error| Error::stage(stage, error))?;
        for _ in group.by_ref() {}
        position = group.position;
        if let Some(error) = group.error {
            return Err(error);
        }
        for result in results {
            bytes += result.weigh();
            batch.items.push(result);
            if (bytes >= reader.batch_bytes() || batch.items.len() >= BATCH_ITEMS)
                && !reader.send(&mut batch, &mut bytes)
            {
                return Ok(());
            }
        }
        if reader.job.stopped() {
            return Ok(());
        }
    }
    if !batch.items.is_empty() {
        reader.send(&mut batch, &mut bytes);
    }
    Ok(())
}
