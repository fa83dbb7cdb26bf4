//! Writes every distinct line of some text files once, shuffled, in shards of equal length:
//! `cargo run -p prep-dataflow --example distinct_lines -- FOLDER FILE...`
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;

use md5::{Digest, Md5};
use prep_dataflow::*;

/// A folder that takes shards as text files.
struct Folder(PathBuf);
struct TextFile(BufWriter<File>);

impl ShardSink for Folder {
    type Summary = ();
    type Writer = TextFile;
    fn open(&self, shard: &Shard) -> Result<TextFile, BoxError> {
        let path = self.0.join(format!("lines-{:05}.txt", shard.index));
        Ok(TextFile(BufWriter::new(File::create(path)?)))
    }
}

impl ShardWriter for TextFile {
    type Summary = ();

    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        self.0.write_all(&record.data)?;
        Ok(self.0.write_all(b"\n")?)
    }

    fn finish(self) -> Result<(), BoxError> {
        Ok(self.0.into_inner()?.sync_all()?)
    }
}

type Line = (u64, String);

/// The lines of a file, each with its origin.
fn read((number, path): (u32, PathBuf)) -> Result<impl Iterator<Item = Result<Line, BoxError>>, BoxError> {
    let file = File::open(&path);
    let failed = move |error| format!("could not read `{}`: {error}", path.display());
    let lines = BufReader::new(file.map_err(&failed)?).lines().zip(0..);
    Ok(lines.map(move |(line, index)| Ok((origin(number, index), line.map_err(&failed)?))))
}

fn record((origin, line): Line) -> Record {
    Record {
        split: 0,
        key: Md5::digest(&line).into(),
        origin,
        data: line.into(),
    }
}

fn plan(totals: &[SplitTotals]) -> Result<Vec<SplitPlan>, Error> {
    Ok(vec![SplitPlan::even(totals[0].records, 4)])
}

/// Gives the number of distinct lines.
pub(crate) fn distinct_lines(files: Vec<PathBuf>, folder: PathBuf, options: Options) -> Result<u64, Error> {
    let report = run(options, move |pipeline| {
        pipeline
            .source("Read", (0..).zip(files.clone()).collect(), read)
            .rebalance()
            .map(record)
            .sort("Order", SortOptions::new(1).duplicates(Duplicates::KeepFirst))
            .write_shards("Write", plan, Folder(folder.clone()))
            .collect(&Collected::new());
    })?;
    Ok(report.progress.stage("Write").map_or(0, |stage| stage.records))
}

fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("which folder should the shards go to?")?;
    let lines = distinct_lines(arguments.collect(), folder, Options::default().workers(2))?;
    Ok(writeln!(std::io::stdout(), "{lines} distinct lines")?)
}
