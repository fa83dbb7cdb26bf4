//! Readers of rows: datasets out of tables, records and files of one's own, without code.
//!
//! A [`RowReader`] knows one kind of file: it cuts files into raw rows, and raw rows into named [`Cell`](cell::Cell)s. All the rest is the
//! same for all of them: which files there are ([`files`]), archives and packed files ([`file`]), the types of columns ([`survey`]),
//! what becomes of a cell under a feature ([`convert`]), filters, names, keys and splits ([`Table`]).
//!
//! To add a reader: implement the trait in a file of its own, name it in [`reader`] and in
//! [`ROW_KINDS`](crate::recipe::rows::ROW_KINDS), and let `check_row_options` say which settings it takes.

pub(crate) mod cell;
pub(crate) mod convert;
mod csv;
pub(crate) mod file;
pub(crate) mod files;
pub(crate) mod image_folder;
mod learn;
mod lines;
mod npz;
mod parquet;
pub(crate) mod picture;
mod records;
pub(crate) mod stay;
pub(crate) mod survey;
mod survey_text;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod tfds;
pub(crate) mod webdataset;

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use prep_formats::features::{Feature, Features};
use prep_formats::store::Location;

use crate::readers::rows::cell::Row;
use crate::readers::rows::file::{RowFile, has_ending};
use crate::readers::rows::survey::Survey;
use crate::recipe::RowsSpec;

pub(super) use table::Table;

/// Reads the rows of one kind of file.
///
/// Everything is a function of the file's bytes and the recipe: rows come in the file's order, whoever reads them.
pub(crate) trait RowReader: Send + Sync + std::fmt::Debug {
    /// The ends of names by which its files are found in folders and archives; none for all files. Those of packers may follow.
    fn endings(&self) -> &'static [&'static str];

    /// Whether a file of a folder or an archive is its, by its name.
    fn takes(&self, name: &str) -> bool {
        has_ending(name, self.endings())
    }

    /// What a row is called in messages, `line` or `row`; nothing where each file is one.
    fn unit(&self) -> &'static str;

    /// Notes in `survey` what the file itself says of its columns, where it does: then its rows are not looked at for their types.
    ///
    /// # Errors
    /// The file cannot be read, or is not of this kind.
    fn columns(&self, file: &mut RowFile<'_>, source: u32, survey: &mut Survey) -> Result<bool> {
        let _ = (file, source, survey);
        Ok(false)
    }

    /// Whether a file, by its path, has no rows of its own and says something of those of others. It is a source by itself, wherever it lies.
    fn is_aside(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Whether files have to fit each other, so that all that are there are looked at by [`columns`](Self::columns) when one of them has changed.
    fn looks_at_all(&self) -> bool {
        false
    }

    /// The columns that the reader itself knows once it was shown all files, of which this is the survey.
    ///
    /// # Errors
    /// The files do not go together.
    fn features(&self, survey: &Survey) -> Result<Vec<(String, Feature)>> {
        let _ = survey;
        Ok(Vec::new())
    }

    /// Whether a column may be left out where the schema has none of its name.
    fn may_lack(&self, column: &str) -> bool {
        let _ = column;
        false
    }

    /// Whether a list that a row lacks is an empty one, as what is read has no other way to say so.
    fn lists_may_lack(&self) -> bool {
        false
    }

    /// The files of a folder and their splits, where the folder says that itself; `None` where files are found by their names.
    ///
    /// # Errors
    /// What says so cannot be read, or names files that are not there.
    fn contents(&self, folder: &Location) -> Result<Option<Contents>> {
        let _ = folder;
        Ok(None)
    }

    /// The reader that knows the features of all columns, where it takes rows apart by them.
    ///
    /// # Errors
    /// Rows cannot be taken apart by these.
    fn knowing(&self, columns: &Features) -> Result<Option<Arc<dyn RowReader>>> {
        let _ = columns;
        Ok(None)
    }

    /// In how many pieces a file that lies by itself can be read side by side. One by default.
    ///
    /// # Errors
    /// The file cannot be read, or is not of this kind.
    fn pieces(&self, file: &mut RowFile<'_>) -> Result<u64> {
        let _ = file;
        Ok(1)
    }

    /// Cuts a file, or one piece of it, into rows. Runs on a thread of its own; holds no more than a few MB at a time. What can be done for a
    /// row alone belongs in [`cells`](Self::cells).
    ///
    /// # Errors
    /// The file is unusable. A single bad row goes to [`Rows::fault`].
    fn read(&self, file: &mut RowFile<'_>, piece: u64, rows: &mut dyn Rows) -> Result<()>;

    /// The columns of a raw row. A pure function, called on many threads.
    ///
    /// # Errors
    /// The row is damaged.
    fn cells(&self, data: &Bytes, tag: u64) -> Result<Row>;
}

/// What a folder says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Its splits, in order.
    pub(crate) splits: Vec<String>,
    /// The names of its files, in order, and which split each is of.
    pub(crate) files: Vec<(String, usize)>,
    /// The names of the files that say so: they have no rows, and a change of them is one of the data.
    pub(crate) aside: Vec<String>,
}

/// Where the rows of a file go.
pub(crate) trait Rows {
    /// Takes a row; `Break` where no more are wanted.
    ///
    /// # Errors
    /// The job is stopping; pass the error on.
    fn put(&mut self, row: RawRow) -> Result<ControlFlow<()>>;

    /// Takes the news of a damaged row.
    ///
    /// # Errors
    /// It is not to be skipped; pass the error on.
    fn fault(&mut self, row: u64, reason: &str) -> Result<()>;
}

/// A row as it was cut from its file.
#[derive(Debug)]
pub(crate) struct RawRow {
    /// Position in the file, from 0: rising, and each once. The line, where rows are lines.
    pub(crate) row: u64,
    /// Its bytes, in whatever form [`RowReader::cells`] takes.
    pub(crate) data: Bytes,
    /// A number for the reader's own use.
    pub(crate) tag: u64,
    /// How far into the file it is, of how much: bytes or anything; of 0 where that is not known.
    pub(crate) way: (u64, u64),
}

/// The reader of this kind.
///
/// `wanted` are the columns that count, where that is known.
pub(crate) fn reader(spec: &RowsSpec, wanted: Option<Vec<String>>) -> Box<dyn RowReader> {
    match spec.kind.as_str() {
        "csv" => Box::new(csv::Csv::new(b',', &spec.options)),
        "tsv" => Box::new(csv::Csv::new(b'\t', &spec.options)),
        "jsonl" => Box::new(lines::Lines::Json),
        "text" => Box::new(lines::Lines::Text),
        "parquet" => Box::new(parquet::Parquet::new(wanted)),
        "npz" => Box::new(npz::Npz),
        "tfrecord" => Box::new(records::TfRecords),
        "array_record" => Box::new(records::ArrayRecords),
        "image_folder" => Box::new(image_folder::ImageFolder::new(&spec.options)),
        "tfds" => Box::new(tfds::Tfds::default()),
        "webdataset" => Box::new(webdataset::WebDataset::new(&spec.options)),
        _ => Box::new(lines::TextFiles),
    }
}
