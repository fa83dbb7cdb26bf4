//! `prep cat`.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::columns::{Batch, BatchDecoder, Images};
use prep_formats::features::Features;
use prep_formats::store::PositionedFile;
use prep_formats::{Error, Position};
use prep_loader::is_tfds_folder;
use sha2::{Digest, Sha256};

use crate::cli::output::{Hinted, Usage, say};
use crate::cli::record_file::{Kind, kind, open_tfrecord};
use crate::cli::{Global, Outcome, cat_dataset, targets};

/// Bytes of a record shown to people.
const PREVIEW_BYTES: usize = 64;

/// Prints records of files, or decoded examples of a dataset.
///
/// Several files, such as the shards of a split, are taken as one: their records are numbered through. With `--features` the
/// records of files are decoded as examples. A dataset is a name, or a folder that TFDS wrote.
///
/// Example: prep cat 'mnist-train*' --records 3..7 --features
#[derive(Debug, Args)]
pub(crate) struct Cat {
    /// A file, a dataset name, or a folder that TFDS wrote; patterns are expanded.
    #[arg(value_name = "FILE|NAME")]
    pub(crate) target: String,
    /// More files.
    #[arg(value_name = "FILE")]
    more: Vec<String>,
    /// Decodes records as examples of this `features.json`, or of the one in this folder; alone, of the one beside the file.
    #[arg(long, value_name = "features.json", num_args = 0..=1, default_missing_value = "", conflicts_with = "raw")]
    features: Option<String>,
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
    #[arg(long, env = "PREP_CATALOG", value_parser = crate::cli::from_catalog::place)]
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
    let mut words = vec![args.target.clone()];
    words.extend(args.more.iter().cloned());
    let files = targets::expand(&words)?;
    let path = Path::new(&files[0]);
    if let Some(other) = files
        .iter()
        .find(|file| files.len() > 1 && !Path::new(file).is_file())
    {
        return Err(Hinted::new(
            format!("`{other}` is not a file"),
            "several targets have to be record files; a dataset stands alone",
        )
        .into());
    }
    if !path.is_file() {
        if args.features.is_some() {
            return Err(Usage("`--features` is for files: a dataset has its schema with it".into()).into());
        }
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
    let range = args.range()?;
    let mut printer = Printer {
        output: BufWriter::with_capacity(256 << 10, io::stdout().lock()),
        args,
        skips: args.skips()?,
        skipped: 0,
        line: String::new(),
        examples: None,
    };
    if let Some(features) = &args.features {
        printer.examples = Some(Examples::new(Path::new(features), path)?);
    }
    // Records in the files before.
    let mut base = 0;
    for file in &files {
        let path = Path::new(file);
        if range.1.is_some_and(|end| base >= end) && base > 0 {
            break;
        }
        let part = Part {
            path,
            base,
            range,
            alone: files.len() == 1,
        };
        base += match kind(path)? {
            Kind::ArrayRecord => array_record(part, &mut printer)?,
            Kind::TfRecord => tfrecord(part, &mut printer)?,
        };
    }
    printer.output.flush()?;
    let skipped = printer.skipped;
    if skipped == 0 {
        check_range(range, base, &args.target)?;
        return Ok(Outcome::Done);
    }
    if !global.quiet {
        say(format_args!(
            "skipped {skipped} damaged records of {}",
            args.target
        ));
    }
    Ok(Outcome::Skipped)
}

/// One of the files, and what is wanted of all.
struct Part<'a> {
    path: &'a Path,
    /// Records in the files before.
    base: u64,
    range: (u64, Option<u64>),
    /// Whether there are no others.
    alone: bool,
}

/// Prints the records wanted of a file, and gives how many it has.
fn array_record(part: Part<'_>, printer: &mut Printer<'_>) -> anyhow::Result<u64> {
    // Read, not mapped: memory stays small whatever the file's size.
    let source = Arc::new(PositionedFile::open(part.path)?);
    let reader = Reader::from_source(source).map_err(|error| match error {
        Error::Damaged { .. } => anyhow::Error::new(Hinted::new(
            error.to_string(),
            "`prep salvage` makes a readable file of what is left of one that was cut or damaged",
        )),
        other => other.into(),
    })?;
    let (base, num_records) = (part.base, reader.num_records());
    let (start, end) = part.range;
    if part.alone {
        check_range(part.range, num_records, &part.path.to_string_lossy())?;
    }
    let mut scratch = Scratch::default();
    let mut index = start.saturating_sub(base).min(num_records);
    let end = end.map_or(num_records, |end| end.saturating_sub(base).min(num_records));
    while index < end {
        match reader.record(index, &mut scratch) {
            Ok(record) => printer.record(base + index, record, part.path)?,
            Err(error @ Error::Io { .. }) => return Err(error.into()),
            Err(error) => {
                // A fault is of the whole chunk, which is not read again for each of its records.
                let lost = reader.chunk_records(reader.chunk_of(index)?)?;
                let mut place = Place::of(error);
                for index in index..lost.end.min(end) {
                    place.at.record = Some(index);
                    printer.damaged(base + index, &place.to_string())?;
                }
                index = lost.end;
                continue;
            }
        }
        index += 1;
    }
    Ok(num_records)
}

/// Prints the records wanted of a file, and gives how many were gone over.
fn tfrecord(part: Part<'_>, printer: &mut Printer<'_>) -> anyhow::Result<u64> {
    let mut reader = open_tfrecord(part.path)?;
    let (start, end) = part.range;
    while end.is_none_or(|end| part.base + reader.record_index() < end) {
        let index = part.base + reader.record_index();
        let wanted = index >= start;
        match reader.next() {
            Ok(Some(record)) if wanted => printer.record(index, record, part.path)?,
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error @ Error::Io { .. }) => return Err(error.into()),
            Err(error) => {
                let text = error.to_string();
                if wanted || !reader.can_continue() {
                    printer.damaged(index, &text)?;
                }
                if !reader.can_continue() {
                    // The rest is lost, however much it was.
                    break;
                }
            }
        }
    }
    Ok(reader.record_index())
}

/// An error where the range asked for reaches beyond so many records.
fn check_range((start, end): (u64, Option<u64>), num_records: u64, what: &str) -> anyhow::Result<()> {
    if start > num_records || end.is_some_and(|end| end > num_records) {
        let end = end.map_or_else(String::new, |end| end.to_string());
        anyhow::bail!("`--records {start}..{end}` is out of range: `{what}` has {num_records} records");
    }
    Ok(())
}

/// Decodes records as examples.
struct Examples {
    decoder: BatchDecoder,
    batch: Batch,
}

impl Examples {
    /// The schema at `given`: a file, a folder, or nothing, which is the folder of `file`.
    fn new(given: &Path, file: &Path) -> anyhow::Result<Self> {
        let beside = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = if given.as_os_str().is_empty() {
            beside.unwrap_or(Path::new("."))
        } else {
            given
        };
        let path = if folder.is_dir() {
            folder.join("features.json")
        } else {
            folder.to_path_buf()
        };
        let shown = path.display();
        let text = fs::read_to_string(&path).map_err(|error| {
            anyhow::Error::new(error).context(Hinted::new(
                format!("could not read the schema `{shown}`"),
                "give the `features.json` of the dataset: `--features PATH`",
            ))
        })?;
        let read = |name: &str| {
            let path = path.with_file_name(name);
            match fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Error::io(&path, "read")(error)),
            }
        };
        let features = Features::from_files(&path.to_string_lossy(), &text, read)?;
        let decoder = BatchDecoder::new(&features, Images::DecodedWherePossible)
            .with_context(|| format!("could not decode by the schema `{shown}`"))?;
        let batch = decoder.new_batch(1);
        Ok(Self { decoder, batch })
    }
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
    examples: Option<Examples>,
}

impl Printer<'_> {
    fn record(&mut self, index: u64, record: &[u8], path: &Path) -> anyhow::Result<()> {
        if let Some(examples) = &mut self.examples {
            examples.decoder.clear(&mut examples.batch);
            return match examples.decoder.push(record, &mut examples.batch) {
                Ok(()) => {
                    let form = (self.args.json, self.args.digest);
                    let specs = examples.decoder.specs();
                    cat_dataset::print_row(&mut self.output, form, specs, index, &examples.batch, 0)
                }
                Err(error) => self.damaged(index, &format!("{}, record {index}: {error}", path.display())),
            };
        }
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
            say(format_args!("record {index} left out: {text}"));
        }
        Ok(())
    }
}
