//! `prep cat` of a dataset: decoded examples.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prep_formats::columns::{Batch, Cell, ColumnSpec, Images};
use prep_formats::store::Location;
use prep_formats::value::DType;
use prep_loader::Dataset;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::cli::cat::Cat;
use crate::cli::from_catalog;
use crate::cli::output::say;
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
    let dataset = open(args, split)?.with_images(Images::DecodedWherePossible);
    let end = end.unwrap_or(dataset.len());
    if end > dataset.len() || start > end {
        anyhow::bail!(
            "records {start}..{end} are out of range: split `{split}` of `{}` has {}",
            args.target,
            dataset.len()
        );
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
        say(format_args!(
            "skipped {skipped} damaged records of {}",
            args.target
        ));
    }
    Ok(Outcome::Skipped)
}

/// Opens a split of a dataset by name, or of a folder that TFDS wrote.
fn open(args: &Cat, split: &str) -> anyhow::Result<Dataset> {
    let folder = Path::new(&args.target);
    // A name that is in the catalog is not hidden by a folder beside the user.
    let is_name = prep_catalog::DatasetName::parse(&args.target).is_ok();
    if !prep_loader::is_tfds_folder(folder) {
        return from_catalog::open(args.catalog.as_deref(), &args.target, split);
    }
    if is_name && let Ok(dataset) = from_catalog::open(args.catalog.as_deref(), &args.target, split) {
        return Ok(dataset);
    }
    Dataset::open_tfds(&Location::from_path(folder), split).map_err(from_catalog::explain)
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
    print_row(
        out,
        (args.json, args.digest),
        dataset.element_spec(),
        index,
        batch,
        row,
    )
}

/// Prints one row of a batch: as JSON or for people, with digests in place of data or without.
pub(crate) fn print_row(
    out: &mut impl Write,
    (as_json, digest): (bool, bool),
    specs: &[ColumnSpec],
    index: u64,
    batch: &Batch,
    row: usize,
) -> anyhow::Result<()> {
    let cells = specs
        .iter()
        .zip(&batch.columns)
        .filter_map(|(spec, column)| Some((spec, column.cell(spec, row)?)));
    if as_json {
        let mut features = Map::new();
        for (spec, cell) in cells {
            put(&mut features, &spec.path, json(spec.dtype, &cell, digest));
        }
        writeln!(out, "{}", json!({"index": index, "features": features}))?;
        return Ok(());
    }
    write!(out, "{index}")?;
    for (spec, cell) in cells {
        write!(out, "  {}={}", spec.name, preview(spec.dtype, &cell, digest))?;
    }
    writeln!(out)?;
    Ok(())
}

/// Puts a value into nested objects.
fn put(object: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [name] => {
            object.insert(name.clone(), value);
        }
        [name, rest @ ..] => {
            let inner = object.entry(name).or_insert_with(|| Map::new().into());
            if let Value::Object(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

/// `{"dtype", "shape", "data"}`, or `"sha256"` in place of the data; several strings are a list of them. What is missing is `null`, and
/// elements of their own shapes are a list.
fn json(dtype: DType, cell: &Cell<'_>, digest: bool) -> Value {
    let (field, encode): (&str, fn(&[u8]) -> String) = if digest {
        ("sha256", |data| hex::encode(Sha256::digest(data)))
    } else {
        ("data", |data| STANDARD.encode(data))
    };
    let object = |shape: &[u64], value: Value| json!({"dtype": dtype.name(), "shape": shape, field: value});
    match cell {
        Cell::Array { shape, data } => object(shape, encode(data).into()),
        Cell::Strings { shape, strings } => match strings.as_slice() {
            [string] if shape.is_empty() => object(shape, encode(string).into()),
            strings => object(shape, strings.iter().map(|string| encode(string)).collect()),
        },
        Cell::List(cells) => cells.iter().map(|cell| json(dtype, cell, digest)).collect(),
        _ => Value::Null,
    }
}

/// A value as people can read it, cut short.
fn preview(dtype: DType, cell: &Cell<'_>, digest: bool) -> String {
    match cell {
        Cell::List(cells) => {
            let mut shown: Vec<String> = cells
                .iter()
                .take(NUMBERS)
                .map(|cell| preview(dtype, cell, digest))
                .collect();
            if cells.len() > NUMBERS {
                shown.push("..".into());
            }
            format!("[{}]", shown.join(", "))
        }
        Cell::Array { shape, data } => {
            let kind = format!("{}{shape:?}", dtype.name());
            if digest {
                return format!("{kind} {}", hex::encode(Sha256::digest(data)));
            }
            let size = dtype.num_bytes().max(1);
            let mut numbers: Vec<String> = data
                .chunks_exact(size)
                .take(NUMBERS)
                .map(|bytes| number(dtype, bytes))
                .collect();
            if shape.is_empty() {
                return numbers.concat();
            }
            if data.len() > size * NUMBERS {
                numbers.push("..".into());
            }
            format!("{kind}({})", numbers.join(" "))
        }
        Cell::Strings { shape, strings } => {
            if digest {
                let digests: Vec<String> = strings
                    .iter()
                    .map(|string| hex::encode(Sha256::digest(string)))
                    .collect();
                return format!("{}{shape:?} {}", dtype.name(), digests.join(" "));
            }
            let shown: Vec<String> = strings.iter().take(NUMBERS).map(|string| text(string)).collect();
            shown.join(" ")
        }
        _ => "none".into(),
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

    #[test]
    fn numbers_are_one_piece_and_strings_one_by_one() {
        let data: Vec<u8> = [3i16, 4].iter().flat_map(|n| n.to_le_bytes()).collect();
        let cell = Cell::Array {
            shape: vec![2],
            data: &data,
        };
        assert_eq!(
            json(DType::Int16, &cell, false),
            json!({"dtype": "int16", "shape": [2], "data": "AwAEAA=="})
        );
        assert_eq!(preview(DType::Int16, &cell, false), "int16[2](3 4)");
        let strings = Cell::Strings {
            shape: vec![2],
            strings: vec![b"a", b"bc"],
        };
        assert_eq!(
            json(DType::String, &strings, false)["data"],
            json!(["YQ==", "YmM="])
        );
        assert_eq!(preview(DType::String, &strings, false), r#""a" "bc""#);
        let single = Cell::Strings {
            shape: vec![],
            strings: vec![b"bc"],
        };
        assert_eq!(
            json(DType::String, &single, false),
            json!({"dtype": "string", "shape": [], "data": "YmM="})
        );
        let sha256 = hex::encode(Sha256::digest(b"bc"));
        assert_eq!(
            json(DType::String, &single, true),
            json!({"dtype": "string", "shape": [], "sha256": sha256})
        );
        let ragged = Cell::List(vec![cell.clone(), Cell::List(vec![])]);
        assert_eq!(
            json(DType::Int16, &ragged, false),
            json!([{"dtype": "int16", "shape": [2], "data": "AwAEAA=="}, []])
        );
        assert_eq!(preview(DType::Int16, &ragged, false), "[int16[2](3 4), []]");
        assert_eq!(json(DType::Int16, &Cell::Missing, false), Value::Null);
    }

    #[test]
    fn nested_features_are_nested_objects() {
        let mut object = Map::new();
        let path = |names: &[&str]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
        put(&mut object, &path(&["a", "b"]), 1.into());
        put(&mut object, &path(&["a", "c", "d"]), 2.into());
        put(&mut object, &path(&["x/y"]), 3.into());
        assert_eq!(
            Value::Object(object),
            json!({"a": {"b": 1, "c": {"d": 2}}, "x/y": 3})
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
