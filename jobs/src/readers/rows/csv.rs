//! Rows of CSV and TSV.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use csv::{ByteRecord, ErrorKind, ReaderBuilder};

use crate::error::Hinted;
use crate::readers::rows::cell::{Cell, Row};
use crate::readers::rows::file::RowFile;
use crate::readers::rows::{RawRow, RowReader, Rows};
use crate::recipe::rows::RowOptions;

/// A row that is put behind a file's last: a quote that is not closed takes it in. No delimiter or quote is in it, as those are ASCII, and no text.
const END: &[u8] = b"\n\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\n";

/// Reads tables of texts.
#[derive(Debug)]
pub(crate) struct Csv {
    delimiter: u8,
    options: RowOptions,
    /// The names of columns of all files that were opened, each list once; a row names its list by number.
    headers: RwLock<Headers>,
}

#[derive(Debug, Default)]
struct Headers {
    lists: Vec<Arc<Vec<String>>>,
    numbers: HashMap<Vec<String>, u64>,
}

impl Csv {
    pub(crate) fn new(delimiter: u8, options: &RowOptions) -> Self {
        Self {
            delimiter: options.delimiter.unwrap_or(delimiter),
            options: options.clone(),
            headers: RwLock::default(),
        }
    }

    fn number_of(&self, names: Vec<String>) -> u64 {
        let mut headers = self.headers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = headers.numbers.get(&names) {
            return *number;
        }
        let number = headers.lists.len() as u64;
        headers.lists.push(Arc::new(names.clone()));
        headers.numbers.insert(names, number);
        number
    }

    fn names(&self, number: u64) -> Option<Arc<Vec<String>>> {
        let headers = self.headers.read().unwrap_or_else(PoisonError::into_inner);
        headers.lists.get(usize::try_from(number).ok()?).cloned()
    }

    /// The names of a file's columns, out of its first record.
    fn header(&self, shown: &str, record: &ByteRecord) -> Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        for (index, field) in record.iter().enumerate() {
            let Ok(name) = std::str::from_utf8(field) else {
                bail!("{shown}: the name of column {} is not UTF-8", index + 1);
            };
            if name.is_empty() {
                return Err(Hinted::new(
                    format!("{shown}: column {} has no name", index + 1),
                    "give names with `columns = [..]` under `[reader]`; they stand for those of the header",
                )
                .into());
            }
            if names.iter().any(|other| other == name) {
                return Err(Hinted::new(
                    format!("{shown}: two columns are called `{name}`"),
                    "give names with `columns = [..]` under `[reader]`; they stand for those of the header",
                )
                .into());
            }
            names.push(name.to_owned());
        }
        Ok(names)
    }
}

impl RowReader for Csv {
    fn endings(&self) -> &'static [&'static str] {
        match self.delimiter {
            b'\t' => &[".tsv", ".tab", ".txt"],
            _ => &[".csv"],
        }
    }

    fn unit(&self) -> &'static str {
        "line"
    }

    fn read(&self, file: &mut RowFile<'_>, _piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let shown = file.shown.clone();
        let total = if file.is_plain()? { file.bytes } else { 0 };
        let mut stream = file.stream()?;
        // csv takes a mark at the start for part of the first name.
        let mut start = Vec::with_capacity(3);
        (&mut stream)
            .take(3)
            .read_to_end(&mut start)
            .with_context(|| format!("could not read {shown}"))?;
        let marked = start == b"\xef\xbb\xbf";
        let skipped = if marked { 3 } else { 0 };
        let start: &[u8] = if marked { b"" } else { &start };
        let mut reader = ReaderBuilder::new()
            .delimiter(self.delimiter)
            .has_headers(false)
            .flexible(true)
            .quoting(self.options.quote.is_some())
            .quote(self.options.quote.unwrap_or(b'"'))
            .buffer_capacity(256 << 10)
            .from_reader(start.chain(stream).chain(END));
        let mut record = ByteRecord::new();
        let wrong = |error: csv::Error| {
            let cause = match error.into_kind() {
                ErrorKind::Io(error) => anyhow::Error::new(error),
                other => anyhow::anyhow!("{other:?}"),
            };
            cause.context(format!("could not read {shown}"))
        };
        let mut names = self.options.columns.clone();
        let is_end = |record: &ByteRecord| record.as_slice() == END.trim_ascii();
        let unclosed = |record: &ByteRecord| {
            let line = record.position().map_or(0, csv::Position::line);
            Hinted::new(
                format!(
                    "{shown}, line {line}: a quote opens in this row, and none closes it up to the end of the file"
                ),
                "mend the row; if quotes mean nothing in this file, set `quote = \"\"` under `[reader]`",
            )
        };
        if self.options.has_header {
            if !reader.read_byte_record(&mut record).map_err(wrong)? || is_end(&record) {
                // A file of nothing has no rows.
                return Ok(());
            }
            if record.as_slice().ends_with(END) {
                return Err(unclosed(&record).into());
            }
            if names.is_empty() {
                names = self.header(&shown, &record)?;
            } else if record.len() != names.len() {
                bail!(
                    "{shown}: its header has {} columns, and `columns` names {}",
                    record.len(),
                    names.len()
                );
            }
        }
        let width = names.len();
        let tag = self.number_of(names);
        while reader.read_byte_record(&mut record).map_err(wrong)? && !is_end(&record) {
            if record.as_slice().ends_with(END) {
                return Err(unclosed(&record).into());
            }
            let position = record.position();
            let line = position.map_or(0, csv::Position::line);
            let row = line.saturating_sub(1);
            if record.len() != width {
                rows.fault(
                    row,
                    &format!("it has {} fields, and there are {width} columns", record.len()),
                )?;
                continue;
            }
            let way = (position.map_or(0, csv::Position::byte) + skipped, total);
            let mut data = Vec::with_capacity(4 * width + record.as_slice().len());
            for field in &record {
                data.extend_from_slice(&u32::try_from(field.len())?.to_le_bytes());
            }
            data.extend_from_slice(record.as_slice());
            let row = RawRow {
                row,
                data: data.into(),
                tag,
                way,
            };
            if rows.put(row)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn cells(&self, data: &Bytes, tag: u64) -> Result<Row> {
        let Some(names) = self.names(tag) else {
            bail!("a row of no header");
        };
        let mut row = Vec::with_capacity(names.len());
        let mut start = 4 * names.len();
        for (index, name) in names.iter().enumerate() {
            let length = data
                .get(4 * index..)
                .and_then(|rest| rest.first_chunk::<4>())
                .map(|bytes| u32::from_le_bytes(*bytes) as usize);
            let Some(end) = length
                .map(|length| start + length)
                .filter(|end| *end <= data.len())
            else {
                bail!("a row without all its fields");
            };
            let field = data.slice(start..end);
            start = end;
            let cell = if self
                .options
                .nulls
                .iter()
                .any(|null| null.as_bytes() == &field[..])
            {
                Cell::Null
            } else if std::str::from_utf8(&field).is_err() {
                bail!("column `{name}` is not UTF-8");
            } else {
                Cell::Loose(field)
            };
            row.push((name.clone(), cell));
        }
        Ok(row)
    }
}
