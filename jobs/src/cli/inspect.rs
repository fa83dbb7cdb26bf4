//! `prep inspect`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use prep_formats::Error;
use prep_formats::array_record::{Reader, SIGNATURE, Scratch};
use prep_formats::store::{PositionedFile, ReadAt};
use serde_json::{Value, json};

use crate::cli::output::{Hinted, say};
use crate::cli::record_file::{Kind, compression_name, kind, open_tfrecord};
use crate::cli::{Global, Outcome, targets, verify, verify_dataset};
use crate::resources::show_size;

/// The postscript begins so many bytes before the end. Source: `kBlockSize` in `riegeli/records/block.h`.
const BLOCK_BYTES: u64 = 1 << 16;

/// Shows what files are made of: layout, chunks, codecs, sizes.
///
/// Of a folder or a dataset it shows each shard, and each split in all. Reads the files once. Damaged parts are counted and left out;
/// `prep verify` says what is wrong with them.
///
/// Example: prep inspect mnist-train.array_record-00000-of-00001
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// ArrayRecord or TFRecord files, folders of them, or dataset names; patterns are expanded.
    #[arg(required = true, value_name = "FILE|FOLDER|NAME")]
    targets: Vec<String>,
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG", value_parser = crate::cli::from_catalog::place)]
    catalog: Option<String>,
    /// One JSON object a line on stdout: one a file, then for folders and datasets one a split.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Inspect, global: &Global) -> anyhow::Result<Outcome> {
    let (mut damaged, mut failed) = (false, false);
    for target in targets::expand(&args.targets)? {
        let path = PathBuf::from(&target);
        if path.is_file() {
            let found = inspect(&path)?.0;
            damaged |= is_damaged(&found);
            print(&found, args.json, for_people)?;
            continue;
        }
        let folder = if path.is_dir() {
            path
        } else {
            verify_dataset::folder_of(&target, args.catalog.as_deref())?
        };
        let mut splits: BTreeMap<String, Split> = BTreeMap::new();
        for path in verify::record_files(&folder)? {
            let split = split_of(&path);
            let (mut found, sizes) = match inspect(&path) {
                Ok(found) => found,
                // The others are shown all the same.
                Err(error) => {
                    failed = true;
                    let found = json!({"path": path.to_string_lossy(), "split": split, "error": format!("{error:#}")});
                    print(&found, args.json, one_line)?;
                    continue;
                }
            };
            damaged |= is_damaged(&found);
            found["split"] = split.as_str().into();
            print(&found, args.json, one_line)?;
            splits.entry(split).or_default().add(&found, &sizes);
        }
        for (name, split) in &splits {
            print(&split.to_json(name, &folder), args.json, for_people)?;
        }
    }
    if !global.quiet && damaged {
        say("some records cannot be read: `prep verify` says which and why");
    }
    Ok(if failed { Outcome::No } else { Outcome::Done })
}

fn is_damaged(found: &Value) -> bool {
    found["damaged_records"]
        .as_u64()
        .is_some_and(|damaged| damaged > 0)
}

fn print(found: &Value, json: bool, show: fn(&Value) -> String) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut output, found).map_err(io::Error::from)?;
        writeln!(output)?;
    } else {
        write!(output, "{}", show(found))?;
    }
    Ok(())
}

fn inspect(path: &Path) -> anyhow::Result<(Value, Sizes)> {
    match kind(path)? {
        Kind::ArrayRecord => array_record(path),
        Kind::TfRecord => tfrecord(path),
    }
}

/// The split that a shard's name tells: `mnist-train.array_record-00000-of-00001` is of `train`.
fn split_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let end = [".array_record", ".tfrecord"]
        .iter()
        .filter_map(|end| name.find(end))
        .min();
    let stem = &name[..end.unwrap_or(name.len())];
    stem.rsplit_once('-').map_or(stem, |(_, split)| split).to_string()
}

/// The shards of a split in all.
#[derive(Debug, Default)]
struct Split {
    format: String,
    shards: u64,
    sums: BTreeMap<&'static str, u64>,
    codecs: BTreeMap<String, u64>,
    sizes: Sizes,
}

impl Split {
    fn add(&mut self, found: &Value, sizes: &Sizes) {
        self.shards += 1;
        self.format = found["format"].as_str().unwrap_or_default().to_string();
        for name in [
            "bytes",
            "records",
            "record_bytes",
            "damaged_records",
            "stored_bytes",
        ] {
            *self.sums.entry(name).or_default() += found[name].as_u64().unwrap_or(0);
        }
        for (codec, count) in found["codecs"].as_object().into_iter().flatten() {
            *self.codecs.entry(codec.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
        self.sizes.merge(sizes);
    }

    fn to_json(&self, name: &str, folder: &Path) -> Value {
        let sum = |name: &str| self.sums.get(name).copied().unwrap_or(0);
        json!({
            "path": folder.to_string_lossy(),
            "split": name,
            "format": self.format,
            "shards": self.shards,
            "bytes": sum("bytes"),
            "records": sum("records"),
            "record_bytes": sum("record_bytes"),
            "damaged_records": sum("damaged_records"),
            "stored_bytes": sum("stored_bytes"),
            "ratio": ratio(sum("record_bytes"), sum("stored_bytes")),
            "codecs": self.codecs,
            "record_sizes": self.sizes.to_json(),
        })
    }
}

/// A shard of a folder.
fn one_line(found: &Value) -> String {
    let path = found["path"].as_str().unwrap_or_default();
    if let Some(error) = found["error"].as_str() {
        return format!("{path}  cannot be read: {error}\n");
    }
    let codecs: Vec<&str> = found["codecs"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    let ratio = found["ratio"]
        .as_f64()
        .map_or(String::new(), |ratio| format!(", ratio {ratio:.3}"));
    let damaged = match found["damaged_records"].as_u64().unwrap_or(0) {
        0 => String::new(),
        damaged => format!(", {damaged} damaged"),
    };
    format!(
        "{path}  {} records, {}, {}{ratio}{damaged}\n",
        found["records"],
        show_size(found["bytes"].as_u64().unwrap_or(0)),
        codecs.join(" and ")
    )
}

/// Counts, bounds and a histogram of record sizes. The histogram's steps are powers of two.
#[derive(Debug, Default)]
struct Sizes {
    count: u64,
    bytes: u64,
    smallest: Option<u64>,
    largest: u64,
    steps: BTreeMap<u64, u64>,
}

impl Sizes {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.smallest = Some(self.smallest.unwrap_or(bytes).min(bytes));
        self.largest = self.largest.max(bytes);
        let step = if bytes == 0 { 0 } else { 1 << bytes.ilog2() };
        *self.steps.entry(step).or_default() += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.smallest = [self.smallest, other.smallest].into_iter().flatten().min();
        self.largest = self.largest.max(other.largest);
        for (&step, &count) in &other.steps {
            *self.steps.entry(step).or_default() += count;
        }
    }

    fn to_json(&self) -> Value {
        let steps = self.steps.iter().map(|(&from, &count)| {
            json!({"from": from, "to": if from == 0 { 1 } else { from.saturating_mul(2) }, "records": count})
        });
        json!({
            "min": self.smallest,
            "max": self.smallest.map(|_| self.largest),
            "mean": if self.count == 0 { None } else { Some(self.bytes as f64 / self.count as f64) },
            "histogram": steps.collect::<Vec<_>>(),
        })
    }
}

/// Chunk sizes kept for their median.
const MAX_CHUNK_SIZES: usize = 1 << 20;

/// Smallest, middle and largest of the chunks: exact up to a million chunks, of an even choice beyond.
#[derive(Debug, Default)]
struct ChunkSizes {
    count: u64,
    kept: Vec<u64>,
    /// One of so many, a power of two, is kept.
    step: u64,
    smallest: Option<u64>,
    largest: u64,
}

impl ChunkSizes {
    fn add(&mut self, bytes: u64) {
        self.smallest = Some(self.smallest.map_or(bytes, |smallest| smallest.min(bytes)));
        self.largest = self.largest.max(bytes);
        self.step = self.step.max(1);
        if self.count.is_multiple_of(self.step) {
            self.kept.push(bytes);
        }
        self.count += 1;
        if self.kept.len() == MAX_CHUNK_SIZES {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.step *= 2;
        }
    }

    fn sorted_json(&mut self) -> Value {
        self.kept.sort_unstable();
        let median = self.kept.get(self.kept.len().saturating_sub(1) / 2);
        json!({"min": self.smallest, "median": median, "max": self.smallest.map(|_| self.largest)})
    }
}

fn array_record(path: &Path) -> anyhow::Result<(Value, Sizes)> {
    // Read, not mapped: memory stays small whatever the file's size.
    let source = Arc::new(PositionedFile::open(path)?);
    let file_bytes = source.len();
    let mut head = [0; 8];
    let has_signature = file_bytes >= 8 && {
        source.read_at(0, &mut head)?;
        head == SIGNATURE
    };
    let reader = Reader::from_source(source).map_err(|error| match error {
        Error::Damaged { .. } => anyhow::Error::new(Hinted::new(
            error.to_string(),
            "`prep salvage` makes a readable file of what is left of one that was cut or damaged",
        )),
        other => other.into(),
    })?;
    let mut chunk_sizes = ChunkSizes::default();
    let mut scratch = Scratch::default();
    let (mut sizes, mut damaged, mut stored) = (Sizes::default(), 0, 0);
    let (mut codecs, mut types) = (BTreeMap::new(), BTreeMap::new());
    let mut index = 0;
    for chunk in 0..reader.num_chunks() {
        match reader.chunk_info(chunk, &mut scratch) {
            Ok(info) => {
                *codecs.entry(info.codec).or_insert(0u64) += 1;
                *types.entry(info.chunk_type.name()).or_insert(0u64) += 1;
                stored += info.data_size;
                chunk_sizes.add(info.data_size);
            }
            Err(error @ Error::Io { .. }) => return Err(error.into()),
            Err(_) => {}
        }
        let records = reader.chunk_records(chunk)?;
        while index < records.end {
            match reader.record(index, &mut scratch) {
                Ok(record) => sizes.add(record.len() as u64),
                Err(error @ Error::Io { .. }) => return Err(error.into()),
                Err(_) => {
                    damaged += records.end - index;
                    index = records.end;
                    break;
                }
            }
            index += 1;
        }
    }
    let group_size = if reader.num_chunks() > 0 {
        reader.chunk_records(0)?.end
    } else {
        0
    };
    let first_chunk = (reader.num_chunks() > 0)
        .then(|| reader.chunk_offset(0))
        .transpose()?;
    let found = json!({
        "path": path.to_string_lossy(),
        "format": "array_record",
        "bytes": file_bytes,
        "records": reader.num_records(),
        "record_bytes": sizes.bytes,
        "damaged_records": damaged,
        "ratio": ratio(sizes.bytes, stored),
        "chunks": reader.num_chunks(),
        "group_size": group_size,
        "chunk_bytes": stored,
        "stored_bytes": stored,
        "chunk_sizes": chunk_sizes.sorted_json(),
        "signature": has_signature,
        "codecs": codecs,
        "chunk_types": types,
        "writer_options": reader.writer_options(),
        "first_chunk": first_chunk,
        "footer_offset": reader.footer_offset(),
        "postscript_offset": file_bytes.saturating_sub(BLOCK_BYTES),
        "overhead_bytes": file_bytes.saturating_sub(stored),
        "index_memory": reader.index_memory(),
        "record_sizes": sizes.to_json(),
    });
    Ok((found, sizes))
}

fn tfrecord(path: &Path) -> anyhow::Result<(Value, Sizes)> {
    let file_bytes = PositionedFile::open(path)?.len();
    let mut reader = open_tfrecord(path)?;
    let (mut sizes, mut damaged) = (Sizes::default(), 0u64);
    loop {
        match reader.next() {
            Ok(Some(record)) => sizes.add(record.len() as u64),
            Ok(None) => break,
            Err(error @ Error::Io { .. }) => return Err(error.into()),
            Err(_) => damaged += 1,
        }
    }
    let found = json!({
        "path": path.to_string_lossy(),
        "format": "tfrecord",
        "bytes": file_bytes,
        "records": sizes.count + damaged,
        "record_bytes": sizes.bytes,
        "damaged_records": damaged,
        "ratio": ratio(sizes.bytes, file_bytes),
        "stored_bytes": file_bytes,
        "codecs": {compression_name(reader.compression()): 1},
        "record_sizes": sizes.to_json(),
    });
    Ok((found, sizes))
}

/// How many times larger the records are than what stores them: the chunks of an ArrayRecord file, a whole TFRecord file.
fn ratio(record_bytes: u64, stored_bytes: u64) -> Option<f64> {
    (stored_bytes > 0).then(|| record_bytes as f64 / stored_bytes as f64)
}

fn for_people(found: &Value) -> String {
    let split = found["split"]
        .as_str()
        .map_or(String::new(), |split| format!(", split {split}"));
    let mut text = format!("{}{split}\n", found["path"].as_str().unwrap_or_default());
    let mut line = |name: &str, value: String| text += &format!("  {name:<16} {value}\n");
    let number = |name: &str| found[name].as_u64().unwrap_or(0);
    line("format", found["format"].as_str().unwrap_or_default().to_string());
    line("file size", format!("{} bytes", number("bytes")));
    let ratio = found["ratio"].as_f64().unwrap_or(0.0);
    line(
        "records",
        format!(
            "{}, {} bytes, {ratio:.3} times what stores them",
            number("records"),
            number("record_bytes")
        ),
    );
    if number("damaged_records") > 0 {
        line("damaged", format!("{} records", number("damaged_records")));
    }
    let counts = |name: &str| {
        let counts = found[name].as_object().into_iter().flatten();
        counts
            .map(|(name, count)| format!("{name} {count}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(shards) = found["shards"].as_u64() {
        line("shards", shards.to_string());
    }
    if found["format"] == "array_record" && found["chunks"].is_u64() {
        line(
            "chunks",
            format!(
                "{} of {} records, {} bytes",
                number("chunks"),
                number("group_size"),
                number("chunk_bytes")
            ),
        );
        let sizes = &found["chunk_sizes"];
        if let (Some(min), Some(median), Some(max)) = (
            sizes["min"].as_u64(),
            sizes["median"].as_u64(),
            sizes["max"].as_u64(),
        ) {
            line("chunk sizes", format!("{min} to {max} bytes, median {median}"));
        }
        line("chunk types", counts("chunk_types"));
        line(
            "written with",
            found["writer_options"].as_str().unwrap_or_default().to_string(),
        );
        let signature = if found["signature"] == true {
            "signature"
        } else {
            "damaged signature"
        };
        let chunks = found["first_chunk"]
            .as_u64()
            .map_or(String::new(), |first| format!(", chunks from {first}"));
        line(
            "layout",
            format!(
                "{signature} at 0{chunks}, footer at {}, postscript at {}",
                number("footer_offset"),
                number("postscript_offset")
            ),
        );
        line(
            "overhead",
            format!(
                "{} bytes of headers, footer and padding",
                number("overhead_bytes")
            ),
        );
        line("index", format!("{} bytes in memory", number("index_memory")));
    }
    line("codecs", counts("codecs"));
    let sizes = &found["record_sizes"];
    if let (Some(min), Some(max), Some(mean)) = (
        sizes["min"].as_u64(),
        sizes["max"].as_u64(),
        sizes["mean"].as_f64(),
    ) {
        line("record sizes", format!("{min} to {max} bytes, mean {mean:.1}"));
        let steps = sizes["histogram"].as_array().map_or(&[][..], Vec::as_slice);
        let most = steps
            .iter()
            .filter_map(|step| step["records"].as_u64())
            .max()
            .unwrap_or(1);
        for step in steps {
            let (from, to, count) = (&step["from"], &step["to"], step["records"].as_u64().unwrap_or(0));
            let bar = "#".repeat((count * 40).div_ceil(most) as usize);
            text += &format!(
                "    {:>10} .. {:<10} {count:>10}  {bar}\n",
                from.to_string(),
                to.to_string()
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_splits() {
        for (name, split) in [
            ("mnist-train.array_record-00000-of-00001", "train"),
            ("a/my-set-val.tfrecord-00000-of-00001", "val"),
            ("data.array_record-00000-of-00004", "data"),
            ("x.tfrecord.gz", "x"),
        ] {
            assert_eq!(split_of(Path::new(name)), split);
        }
    }

    #[test]
    fn the_median_of_many_chunks_is_that_of_an_even_choice() {
        let mut sizes = ChunkSizes::default();
        for size in [5, 1, 9] {
            sizes.add(size);
        }
        assert_eq!(sizes.sorted_json(), json!({"min": 1, "median": 5, "max": 9}));
        let mut sizes = ChunkSizes::default();
        for size in 0..3_000_000 {
            sizes.add(size);
        }
        assert!(sizes.kept.len() < MAX_CHUNK_SIZES);
        let found = sizes.sorted_json();
        assert!(
            found["median"].as_u64().unwrap().abs_diff(1_500_000) < 10,
            "{found}"
        );
        assert_eq!((&found["min"], &found["max"]), (&json!(0), &json!(2_999_999)));
        assert_eq!(
            ChunkSizes::default().sorted_json(),
            json!({"min": null, "median": null, "max": null})
        );
    }

    #[test]
    fn splits_add_up() {
        let (mut a, mut b) = (Sizes::default(), Sizes::default());
        a.add(3);
        b.add(0);
        b.add(1000);
        a.merge(&b);
        assert_eq!(
            (a.count, a.bytes, a.smallest, a.largest),
            (3, 1003, Some(0), 1000)
        );
        assert_eq!(a.steps.values().sum::<u64>(), 3);
        a.merge(&Sizes::default());
        assert_eq!(a.smallest, Some(0));
    }
}
