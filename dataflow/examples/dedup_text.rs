//! Leaves out repeated lines (or whole files) of text, and writes the others in their order, in shards of equal length:
//! `cargo run -p prep-dataflow --example dedup_text -- lines|files FOLDER FILE...`. With PREP_CLUSTER_HOSTS=host:port,host:port,
//! PREP_CLUSTER_PROCESS=0 and PREP_CLUSTER_SECRET it is one process of a cluster: start the same command once for each host.
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;

use prep_dataflow::*;

type Texts = Box<dyn Iterator<Item = Result<Record, String>>>;

/// The texts of a file, keyed by their content. They end with the byte `end`.
fn read((number, path): (u32, PathBuf), end: u8) -> Result<Texts, String> {
    let file = File::open(&path);
    let failed = move |error| format!("could not read `{}`: {error}", path.display());
    let texts = BufReader::new(file.map_err(&failed)?).split(end).zip(0..);
    Ok(Box::new(texts.map(move |(text, index)| {
        let mut record = Record::new(origin(number, index), text.map_err(&failed)?);
        let hash = *blake3::hash(&record.data).as_bytes();
        record.key.copy_from_slice(&hash[..16]);
        Ok(record)
    })))
}

/// Text files, each of which gets its name when it is complete.
fn text_files(folder: PathBuf) -> impl ShardSink {
    sink(
        move |shard| {
            let path = folder.join(format!("text-{:05}-of-{:05}.txt", shard.index, shard.num_shards));
            let file = File::create(path.with_extension("part"))?;
            Ok((BufWriter::new(file), path))
        },
        |(file, _), record| {
            Ok(file
                .write_all(&record.data)
                .and_then(|()| file.write_all(b"\n"))?)
        },
        |(file, path)| {
            file.into_inner()?.sync_all()?;
            Ok(std::fs::rename(path.with_extension("part"), path)?)
        },
    )
}

/// Gives the number of texts, and of those that are left.
pub(crate) fn dedup(
    end: u8,
    files: Vec<PathBuf>,
    to: PathBuf,
    options: Options,
) -> Result<(u64, u64), Error> {
    let report = run(options, move |pipeline| {
        let (all, left) = (pipeline.counter("all"), pipeline.counter("left"));
        let tasks = (0..).zip(files.clone()).collect();
        pipeline
            .source("Read", tasks, move |file| read(file, end))
            .inspect(move |_| all.increment())
            .dedup_by_key("Distinct", 1)
            .records("Left")
            .inspect(move |_| left.increment())
            .reshard("Order", 1, files.len() as u32)
            .write_shards("Write", SplitPlan::all_even(4), text_files(to.clone()))
            .collect(&Collected::new());
    })?;
    Ok((report.counters["all"], report.counters["left"]))
}

fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, folder, files @ ..] = &arguments[..] else {
        return Err("lines or files, to which folder, from which files?".into());
    };
    let files = files.iter().map(PathBuf::from).collect();
    let end = if what == "lines" { b'\n' } else { 0 };
    let options = Options::default().workers(2).cluster_from_env()?;
    let (all, left) = dedup(end, files, folder.into(), options)?;
    Ok(writeln!(std::io::stdout(), "{left} of {all} texts are left")?)
}
