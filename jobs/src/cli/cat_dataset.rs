//! `prep cat` of a dataset: decoded examples.

use std::io::{self, BufWriter, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prep_formats::columns::{Batch, ColumnData, ColumnSpec};
use prep_formats::value::DType;
use prep_loader::Dataset;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::cli::cat::Cat;
use crate::cli::from_catalog;
use crate::cli::output::Usage;
use crate::cli::{Global, Outcome};

/// Examples decoded at once.
const ROWS: u64 = 32;
/// Characters of text shown to people.
const PREVIEW: usize = 60;
/// Numbers shown to people.
const NUMBERS: usize = 8;

/// Prints examples of the dataset `args.target`; called for a target that is no file.
pub(crate) fn run(args: &Cat, global: &Global) -> anyhow::Result<Outcome> {
    let skips = args.skips()?;
    let (start, end) = args.range()?;
    let split = args.split.as_deref().unwrap_or("train");
    let dataset = from_catalog::open(args.catalog.as_deref(), &args.target, split)?;
    let end = end.unwrap_or(dataset.len());
    if end > dataset.len() || start > end {
        let message = format!(
            "records {start}..{end} are out of range: split `{split}` of `{}` has {}",
            args.target,
            dataset.len()
        );
        return Err(Usage(message).into());
    }
    let mut out = BufWriter::with_capacity(256 << 10, io::stdout().lock());
    let mut skipped = 0;
    let mut index = start;
    while index < end {
        let indices: Vec<u64> = (index..end.min(index + ROWS)).collect();
        match dataset.get_many(&indices) {
            Ok(batch) => {
                for (row, index) in indices.iter().enumerate() {
                    print(&mut out, args, &dataset, *index, &batch, row)?;
                }
            }
            // One of them is damaged: which one shows when they are read alone.
            Err(_) => {
                for &index in &indices {
                    match dataset.get(index) {
                        Ok(batch) => print(&mut out, args, &dataset, index, &batch, 0)?,
                        Err(error @ prep_loader::Error::Record { .. }) if skips => {
                            skipped += 1;
                            let text = chain(&error);
                            if args.json {
                                writeln!(out, "{}", json!({"index": index, "error": text}))?;
                            } else {
                                writeln!(out, "{index}  damaged: {text}")?;
                            }
                        }
                        Err(error) => {
                            out.flush()?;
                            return Err(from_catalog::explain(error));
                        }
                    }
                }
            }
        }
        index += indices.len() as u64;
    }
    out.flush()?;
    if skipped == 0 {
        return Ok(Outcome::Done);
    }
    if !global.quiet {
        eprintln!("skipped {skipped} damaged records of {}", args.target);
    }
    Ok(Outcome::Skipped)
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

fn print(
    out: &mut impl Write,
    args: &Cat,
    dataset: &Dataset,
    index: u64,
    batch: &Batch,
    row: usize,
) -> anyhow::Result<()> {
    if args.raw {
        return Ok(out.write_all(&dataset.record(index).map_err(from_catalog::explain)?)?);
    }
    let cells = dataset.element_spec().iter().zip(&batch.columns);
    if args.json {
        let features: Map<String, Value> = cells
            .map(|(spec, column)| (spec.name.clone(), Cell::new(spec, column, row).json(args.digest)))
            .collect();
        writeln!(out, "{}", json!({"index": index, "features": features}))?;
        return Ok(());
    }
    write!(out, "{index}")?;
    for (spec, column) in cells {
        write!(
            out,
            "  {}={}",
            spec.name,
            Cell::new(spec, column, row).preview(args.digest)
        )?;
    }
    writeln!(out)?;
    Ok(())
}

/// One feature of one example.
struct Cell<'a> {
    dtype: DType,
    shape: Vec<u64>,
    /// Numbers in one piece, or byte strings one by one.
    parts: Vec<&'a [u8]>,
}

impl<'a> Cell<'a> {
    fn new(spec: &ColumnSpec, column: &'a ColumnData, row: usize) -> Self {
        let dtype = spec.dtype;
        if let Some((shape, data)) = column.row(spec, row) {
            return Self {
                dtype,
                shape,
                parts: vec![data],
            };
        }
        // Several strings a row, of a fixed shape.
        let shape: Vec<u64> = spec.shape.iter().map(|size| size.unwrap_or(0)).collect();
        let strings = usize::try_from(shape.iter().product::<u64>()).unwrap_or(0);
        let parts = match column {
            ColumnData::Bytes { offsets, data } => (row * strings..(row + 1) * strings)
                .filter_map(|at| data.get(*offsets.get(at)? as usize..*offsets.get(at + 1)? as usize))
                .collect(),
            _ => Vec::new(),
        };
        Self { dtype, shape, parts }
    }

    /// `{"dtype", "shape", "data"}`, or `"sha256"` in place of the data; several strings are a list of them.
    fn json(&self, digest: bool) -> Value {
        let (field, encode): (&str, fn(&[u8]) -> String) = if digest {
            ("sha256", |data| hex::encode(Sha256::digest(data)))
        } else {
            ("data", |data| STANDARD.encode(data))
        };
        let value: Value = match self.parts.as_slice() {
            [part] if self.dtype != DType::String || self.shape.is_empty() => encode(part).into(),
            parts => parts.iter().map(|part| encode(part)).collect(),
        };
        json!({"dtype": self.dtype.name(), "shape": self.shape, field: value})
    }

    fn preview(&self, digest: bool) -> String {
        let kind = format!("{}{:?}", self.dtype.name(), self.shape);
        if digest {
            let digests: Vec<String> = self
                .parts
                .iter()
                .map(|part| hex::encode(Sha256::digest(part)))
                .collect();
            return format!("{kind} {}", digests.join(" "));
        }
        if self.dtype == DType::String {
            let shown: Vec<String> = self.parts.iter().take(NUMBERS).map(|part| text(part)).collect();
            return shown.join(" ");
        }
        let data = self.parts.first().copied().unwrap_or_default();
        let size = self.dtype.num_bytes().max(1);
        let mut numbers: Vec<String> = data
            .chunks_exact(size)
            .take(NUMBERS)
            .map(|bytes| number(self.dtype, bytes))
            .collect();
        if self.shape.is_empty() {
            return numbers.concat();
        }
        if data.len() > size * NUMBERS {
            numbers.push("..".into());
        }
        format!("{kind}({})", numbers.join(" "))
    }
}

/// A byte string as people can read it, cut short.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown: String = text.chars().take(PREVIEW).collect();
    if shown.len() < text.len() {
        shown += "..";
    }
    format!("{shown:?}")
}

/// A little-endian number as text.
fn number(dtype: DType, bytes: &[u8]) -> String {
    let mut wide = [0; 8];
    let length = bytes.len().min(8);
    wide[..length].copy_from_slice(&bytes[..length]);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        DType::Int8 => (bits as u8 as i8).to_string(),
        DType::Int16 => (bits as u16 as i16).to_string(),
        DType::Int32 => (bits as u32 as i32).to_string(),
        DType::Int64 => (bits as i64).to_string(),
        DType::Float32 => f32::from_bits(bits as u32).to_string(),
        DType::Float64 => f64::from_bits(bits).to_string(),
        DType::BFloat16 => f32::from_bits((bits as u32) << 16).to_string(),
        DType::Bool => (bits != 0).to_string(),
        DType::Float16 => format!("{bits:#06x}"),
        _ => bits.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dtype: DType, shape: &[u64]) -> ColumnSpec {
        ColumnSpec {
            name: "x".into(),
            dtype,
            shape: shape.iter().map(|&size| Some(size)).collect(),
        }
    }

    #[test]
    fn numbers_are_one_piece_and_strings_one_by_one() {
        let column = ColumnData::Fixed([1i16, -2, 3, 4].iter().flat_map(|n| n.to_le_bytes()).collect());
        let cell = Cell::new(&spec(DType::Int16, &[2]), &column, 1);
        assert_eq!(
            cell.json(false),
            json!({"dtype": "int16", "shape": [2], "data": "AwAEAA=="})
        );
        assert_eq!(
            Cell::new(&spec(DType::Int16, &[2]), &column, 0).preview(false),
            "int16[2](1 -2)"
        );
        let column = ColumnData::Bytes {
            offsets: vec![0, 1, 3, 3, 4],
            data: b"abcd".to_vec(),
        };
        let strings = spec(DType::String, &[2]);
        assert_eq!(
            Cell::new(&strings, &column, 0).json(false)["data"],
            json!(["YQ==", "YmM="])
        );
        assert_eq!(Cell::new(&strings, &column, 1).preview(false), r#""" "d""#);
        let single = Cell::new(&spec(DType::String, &[]), &column, 1);
        assert_eq!(
            single.json(false),
            json!({"dtype": "string", "shape": [], "data": "YmM="})
        );
        let sha256 = hex::encode(Sha256::digest(b"bc"));
        assert_eq!(
            single.json(true),
            json!({"dtype": "string", "shape": [], "sha256": sha256})
        );
    }

    #[test]
    fn numbers_of_each_kind_are_readable() {
        assert_eq!(number(DType::Int64, &(-5i64).to_le_bytes()), "-5");
        assert_eq!(number(DType::UInt8, &[200]), "200");
        assert_eq!(number(DType::Float32, &1.5f32.to_le_bytes()), "1.5");
        assert_eq!(number(DType::BFloat16, &[0xc0, 0x3f]), "1.5");
        assert_eq!(number(DType::Bool, &[1]), "true");
    }
}
