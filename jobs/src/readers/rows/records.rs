//! Rows of record files: `tf.train.Example`s in TFRecord and ArrayRecord files.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::example::{ExampleView, FeatureView};
use prep_formats::store::PositionedFile;
use prep_formats::tfrecord;
use prep_formats::value::DType;

use crate::readers::rows::cell::{Cell, Row};
use crate::readers::rows::file::{Local, RowFile, has_ending};
use crate::readers::rows::{RawRow, RowReader, Rows};

/// An ArrayRecord file is read in pieces of about so many bytes.
const PIECE_BYTES: u64 = 64 << 20;

/// Reads TFRecord files, plain or packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TfRecords;

impl RowReader for TfRecords {
    fn endings(&self) -> &'static [&'static str] {
        &[".tfrecord", ".tfrecords"]
    }

    fn takes(&self, name: &str) -> bool {
        has_ending(name, self.endings()) || name.contains(".tfrecord-")
    }

    fn unit(&self) -> &'static str {
        "record"
    }

    fn lists_may_lack(&self) -> bool {
        true
    }

    fn read(&self, file: &mut RowFile<'_>, _piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let (shown, bytes) = (file.shown.clone(), file.bytes);
        let total = if file.is_plain()? { bytes } else { 0 };
        let stream: Box<dyn Read + '_> = file.stream()?;
        let mut reader = tfrecord::Reader::new(stream, shown, tfrecord::ReadOptions::default())?;
        loop {
            let (row, offset) = (reader.record_index(), reader.offset());
            match reader.next() {
                Ok(None) => return Ok(()),
                Ok(Some(record)) => {
                    let next = RawRow {
                        row,
                        data: Bytes::copy_from_slice(record),
                        tag: 0,
                        way: (offset, total),
                    };
                    if rows.put(next)?.is_break() {
                        return Ok(());
                    }
                }
                // What was lost is this record only, or all that follows.
                Err(error @ prep_formats::Error::Damaged { .. }) => {
                    rows.fault(row, &error.to_string())?;
                    if !reader.can_continue() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn cells(&self, data: &Bytes, _tag: u64) -> Result<Row> {
        example(data)
    }
}

/// Reads ArrayRecord files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayRecords;

pub(super) fn open(file: &mut RowFile<'_>) -> Result<(Local, Reader)> {
    let local = file.local()?;
    let source = Arc::new(PositionedFile::open(local.path())?);
    let reader = Reader::from_source(source)
        .with_context(|| format!("could not read {} as ArrayRecord", file.shown))?;
    Ok((local, reader))
}

impl RowReader for ArrayRecords {
    fn endings(&self) -> &'static [&'static str] {
        &[".array_record", ".arrayrecord"]
    }

    fn takes(&self, name: &str) -> bool {
        has_ending(name, self.endings()) || name.contains(".array_record-")
    }

    fn unit(&self) -> &'static str {
        "record"
    }

    fn lists_may_lack(&self) -> bool {
        true
    }

    fn pieces(&self, file: &mut RowFile<'_>) -> Result<u64> {
        let (_, reader) = open(file)?;
        Ok((file.bytes / PIECE_BYTES + 1).min(reader.num_records().max(1)))
    }

    fn read(&self, file: &mut RowFile<'_>, piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let (local, reader) = open(file)?;
        let count = reader.num_records();
        let pieces = match file.is_member() {
            true => 1,
            false => (file.bytes / PIECE_BYTES + 1).min(count.max(1)),
        };
        let cut = |piece: u64| (u128::from(count) * u128::from(piece) / u128::from(pieces)) as u64;
        let mut scratch = Scratch::default();
        for row in cut(piece)..cut(piece + 1) {
            if row % 256 == 0 {
                file.check()?;
            }
            match reader.record(row, &mut scratch) {
                Ok(record) => {
                    let next = RawRow {
                        row,
                        data: Bytes::copy_from_slice(record),
                        tag: 0,
                        way: (row, count),
                    };
                    if rows.put(next)?.is_break() {
                        return Ok(());
                    }
                }
                Err(error @ prep_formats::Error::Damaged { .. }) => rows.fault(row, &error.to_string())?,
                Err(error) => return Err(error.into()),
            }
        }
        file.add_progress(file.bytes / pieces);
        drop(local);
        Ok(())
    }

    fn cells(&self, data: &Bytes, _tag: u64) -> Result<Row> {
        example(data)
    }
}

/// The features of a `tf.train.Example`.
fn example(data: &Bytes) -> Result<Row> {
    let view = ExampleView::parse(data).context("it is not a tf.train.Example")?;
    let mut row = Vec::with_capacity(view.len());
    for (name, feature) in view.iter() {
        let cell = match feature {
            FeatureView::Bytes(list) => Cell::Values(
                list.iter()
                    .map(|bytes| Cell::Bytes(data.slice_ref(bytes)))
                    .collect(),
            ),
            FeatureView::Int64(list) => {
                let mut bytes = Vec::with_capacity(8 * list.len());
                list.iter()
                    .for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                Cell::Tensor(DType::Int64, vec![bytes.len() / 8], bytes.into())
            }
            FeatureView::Float(list) => {
                let mut bytes = Vec::with_capacity(4 * list.len());
                list.iter()
                    .for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                Cell::Tensor(DType::Float32, vec![bytes.len() / 4], bytes.into())
            }
            _ => Cell::Null,
        };
        row.push((name.to_owned(), cell));
    }
    Ok(row)
}
