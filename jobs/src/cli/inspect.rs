//! `prep inspect`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use prep_formats::Error;
use prep_formats::array_record::{Reader, Scratch};
use serde_json::{Value, json};

use crate::cli::record_file::{Kind, compression_name, kind, open_source, open_tfrecord};
use crate::cli::{Global, Outcome};

/// Shows the layout of a file: chunks, codecs, sizes.
///
/// Reads the whole file once. Damaged parts are counted and left out; `prep verify` says what is wrong with them.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// An ArrayRecord or TFRecord file.
    file: PathBuf,
    /// One JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Inspect, global: &Global) -> anyhow::Result<Outcome> {
    let found = match kind(&args.file)? {
        Kind::ArrayRecord => array_record(&args.file)?,
        Kind::TfRecord => tfrecord(&args.file)?,
    };
    let mut output = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut output, &found).map_err(io::Error::from)?;
        writeln!(output)?;
    } else {
        write!(output, "{}", for_people(&found))?;
    }
    if !global.quiet
        && found["damaged_records"]
            .as_u64()
            .is_some_and(|damaged| damaged > 0)
    {
        eprintln!("some records cannot be read: `prep verify` says which and why");
    }
    Ok(Outcome::Done)
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

fn array_record(path: &Path) -> anyhow::Result<Value> {
    let source = open_source(path)?;
    let file_bytes = source.len();
    let reader = Reader::from_source(source)?;
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
    Ok(json!({
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
        "codecs": codecs,
        "chunk_types": types,
        "writer_options": reader.writer_options(),
        "footer_offset": reader.footer_offset(),
        "index_memory": reader.index_memory(),
        "record_sizes": sizes.to_json(),
    }))
}

fn tfrecord(path: &Path) -> anyhow::Result<Value> {
    let file_bytes = open_source(path)?.len();
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
    Ok(json!({
        "path": path.to_string_lossy(),
        "format": "tfrecord",
        "bytes": file_bytes,
        "records": sizes.count + damaged,
        "record_bytes": sizes.bytes,
        "damaged_records": damaged,
        "ratio": ratio(sizes.bytes, file_bytes),
        "codecs": {compression_name(reader.compression()): 1},
        "record_sizes": sizes.to_json(),
    }))
}

/// How many times larger the records are than what stores them: the chunks of an ArrayRecord file, a whole TFRecord file.
fn ratio(record_bytes: u64, stored_bytes: u64) -> Option<f64> {
    (stored_bytes > 0).then(|| record_bytes as f64 / stored_bytes as f64)
}

fn for_people(found: &Value) -> String {
    let mut text = format!("{}\n", found["path"].as_str().unwrap_or_default());
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
    if found["format"] == "array_record" {
        line(
            "chunks",
            format!(
                "{} of {} records, {} bytes",
                number("chunks"),
                number("group_size"),
                number("chunk_bytes")
            ),
        );
        line("chunk types", counts("chunk_types"));
        line(
            "written with",
            found["writer_options"].as_str().unwrap_or_default().to_string(),
        );
        line(
            "footer",
            format!(
                "at byte {}, index {} bytes in memory",
                number("footer_offset"),
                number("index_memory")
            ),
        );
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
