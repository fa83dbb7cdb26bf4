//! `prep cat`.

use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::{Error, Position};
use prep_loader::is_tfds_folder;
use sha2::{Digest, Sha256};

use crate::cli::output::{Hinted, Usage};
use crate::cli::record_file::{Kind, kind, open_source, open_tfrecord};
use crate::cli::{Global, Outcome, cat_dataset};

/// Bytes of a record shown to people.
const PREVIEW_BYTES: usize = 64;

/// Prints records of a file, or decoded examples of a dataset.
#[derive(Debug, Args)]
pub(crate) struct Cat {
    /// A file, a dataset name, or a folder that TFDS wrote.
    pub(crate) target: String,
    /// Split of a dataset.
    #[arg(long)]
    pub(crate) split: Option<String>,
    /// Half-open range of records, `A..B`; `A..` and `..B` reach to an end.
    #[arg(long, value_name = "A..B")]
    pub(crate) records: Option<String>,
    /// Lengths and SHA-256 in place of the bytes.
    #[arg(long)]
    pub(crate) digest: bool,
    /// What to do with a damaged record: `fail` or `skip`.
    #[arg(long, value_name = "POLICY", default_value = "fail")]
    pub(crate) on_error: String,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG")]
    pub(crate) catalog: Option<String>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// The bytes of the records themselves, with nothing between them.
    #[arg(long, conflicts_with_all = ["json", "digest"])]
    pub(crate) raw: bool,
}

impl Cat {
    /// Whether damaged records are left out.
    ///
    /// # Errors
    ///
    /// [`Usage`] for a policy that is neither `fail` nor `skip`.
    pub(crate) fn skips(&self) -> anyhow::Result<bool> {
        match self.on_error.as_str() {
            "fail" => Ok(false),
            "skip" => Ok(true),
            other => Err(Usage(format!("`--on-error {other}` is unknown: write `fail` or `skip`")).into()),
        }
    }

    /// The range of `--records`, both ends open unless given.
    ///
    /// # Errors
    ///
    /// [`Usage`] for what is not a range.
    pub(crate) fn range(&self) -> anyhow::Result<(u64, Option<u64>)> {
        let Some(text) = &self.records else {
            return Ok((0, None));
        };
        let wrong = || {
            Usage(format!(
                "`--records {text}` is not a range: write `A..B`, for example `3..7`"
            ))
        };
        let (start, end) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let start = if start.is_empty() { 0 } else { number(start)? };
        let end = if end.is_empty() { None } else { Some(number(end)?) };
        if end.is_some_and(|end| end < start) {
            return Err(Usage(format!("`--records {text}` ends before it begins")).into());
        }
        Ok((start, end))
    }
}

pub(crate) fn run(args: &Cat, global: &Global) -> anyhow::Result<Outcome> {
    let path = Path::new(&args.target);
    if !path.is_file() {
        // A folder of this name does not hide the dataset, but one of TFDS's is a dataset itself.
        if path.exists() && !is_tfds_folder(path) && prep_catalog::DatasetName::parse(&args.target).is_err() {
            return Err(Hinted::new(
                format!("`{}` is not a file", args.target),
                "give a record file, a folder with `dataset_info.json` and `features.json`, or the name of a dataset",
            )
            .into());
        }
        return cat_dataset::run(args, global);
    }
    if args.split.is_some() {
        return Err(Usage(format!("`--split` is for datasets, `{}` is a file", args.target)).into());
    }
    let printer = Printer {
        output: BufWriter::with_capacity(256 << 10, io::stdout().lock()),
        args,
        skips: args.skips()?,
        skipped: 0,
        line: String::new(),
    };
    let range = args.range()?;
    let skipped = match kind(path)? {
        Kind::ArrayRecord => array_record(path, range, printer)?,
        Kind::TfRecord => tfrecord(path, range, printer)?,
    };
    if skipped == 0 {
        return Ok(Outcome::Done);
    }
    if !global.quiet {
        eprintln!("skipped {skipped} damaged records of {}", args.target);
    }
    Ok(Outcome::Skipped)
}

fn array_record(path: &Path, range: (u64, Option<u64>), mut printer: Printer<'_>) -> anyhow::Result<u64> {
    let reader = Reader::from_source(open_source(path)?)?;
    let range = bounded(range, reader.num_records(), path)?;
    let mut scratch = Scratch::default();
    let mut index = range.start;
    while index < range.end {
        match reader.record(index, &mut scratch) {
            Ok(record) => printer.record(index, record)?,
            Err(error @ Error::Io { .. }) => return Err(error.into()),
            Err(error) => {
                // A fault is of the whole chunk, which is not read again for each of its records.
                let lost = reader.chunk_records(reader.chunk_of(index)?)?;
                let mut place = Place::of(error);
                for index in index..lost.end.min(range.end) {
                    place.at.record = Some(index);
                    printer.damaged(index, &place.to_string())?;
                }
                index = lost.end;
                continue;
            }
        }
        index += 1;
    }
    printer.finish()
}

fn tfrecord(path: &Path, (start, end): (u64, Option<u64>), mut printer: Printer<'_>) -> anyhow::Result<u64> {
    let mut reader = open_tfrecord(path)?;
    let mut ended = false;
    while !ended && end.is_none_or(|end| reader.record_index() < end) {
        let index = reader.record_index();
        let wanted = index >= start;
        match reader.next() {
            Ok(Some(record)) if wanted => printer.record(index, record)?,
            Ok(Some(_)) => {}
            Ok(None) => ended = true,
            Err(error @ Error::Io { .. }) => return Err(error.into()),
            Err(error) => {
                let text = error.to_string();
                if wanted || !reader.can_continue() {
                    printer.damaged(index, &text)?;
                }
                if !reader.can_continue() {
                    // The rest is lost, however much it was.
                    return printer.finish();
                }
            }
        }
    }
    if ended {
        bounded((start, end), reader.record_index(), path)?;
    }
    printer.finish()
}

/// The range asked for in a file of so many records.
fn bounded((start, end): (u64, Option<u64>), num_records: u64, path: &Path) -> anyhow::Result<Range<u64>> {
    let range = start..end.unwrap_or(num_records);
    if range.start > num_records || range.end > num_records {
        return Err(Usage(format!(
            "`--records {}..{}` is out of range: `{}` has {num_records} records",
            range.start,
            end.map_or_else(String::new, |end| end.to_string()),
            path.display()
        ))
        .into());
    }
    Ok(range)
}

/// An error about one place, to be said of others.
struct Place {
    at: Position,
    reason: String,
}

impl Place {
    fn of(error: Error) -> Self {
        match error {
            Error::Damaged { at, reason } | Error::Unsupported { at, reason } => Self { at, reason },
            other => Self {
                at: Position::default(),
                reason: other.to_string(),
            },
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.at, self.reason)
    }
}

/// Writes records to stdout in the form asked for.
struct Printer<'a> {
    output: BufWriter<io::StdoutLock<'static>>,
    args: &'a Cat,
    skips: bool,
    skipped: u64,
    line: String,
}

impl Printer<'_> {
    fn record(&mut self, index: u64, record: &[u8]) -> anyhow::Result<()> {
        let length = record.len();
        match (self.args.digest, self.args.json) {
            (true, true) => {
                let digest = hex::encode(Sha256::digest(record));
                writeln!(
                    self.output,
                    r#"{{"index": {index}, "length": {length}, "sha256": "{digest}"}}"#
                )?;
            }
            (true, false) => {
                let digest = hex::encode(Sha256::digest(record));
                writeln!(self.output, "{index}\t{length}\t{digest}")?;
            }
            (false, true) => {
                self.line.clear();
                STANDARD.encode_string(record, &mut self.line);
                writeln!(self.output, r#"{{"index": {index}, "bytes": "{}"}}"#, self.line)?;
            }
            (false, false) if self.args.raw => self.output.write_all(record)?,
            (false, false) => {
                let shown = &record[..length.min(PREVIEW_BYTES)];
                let more = if shown.len() < length { "..." } else { "" };
                writeln!(self.output, "{index}\t{length}\t{}{more}", shown.escape_ascii())?;
            }
        }
        Ok(())
    }

    /// A record that cannot be read: an error, or under `skip` a line that says so.
    fn damaged(&mut self, index: u64, text: &str) -> anyhow::Result<()> {
        if !self.skips {
            self.output.flush()?;
            return Err(Hinted {
                message: text.to_string(),
                hint: "fetch the file again, or leave such records out with `--on-error skip`; `prep verify` lists all of them".into(),
            }
            .into());
        }
        self.skipped += 1;
        if self.args.json {
            let text = serde_json::to_string(text)?;
            writeln!(self.output, r#"{{"index": {index}, "error": {text}}}"#)?;
        } else {
            self.output.flush()?;
            eprintln!("record {index} left out: {text}");
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<u64> {
        self.output.flush()?;
        Ok(self.skipped)
    }
}
