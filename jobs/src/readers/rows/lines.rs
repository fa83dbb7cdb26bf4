//! Rows that are lines: JSON Lines and plain text; and texts that are whole files.

use std::io::Read;
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use prep_formats::features::Feature;

use crate::readers::rows::cell::{Cell, Row};
use crate::readers::rows::file::RowFile;
use crate::readers::rows::survey::{Place, Survey, Told};
use crate::readers::rows::{RawRow, RowReader, Rows};

/// Bytes that are read at a time; rows are slices of them.
const BLOCK_BYTES: usize = 256 << 10;
/// The longest line, and the longest file that is a row.
const MOST_BYTES: usize = 1 << 30;
/// What some programs put at the start of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// What a reader of lines makes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lines {
    /// A JSON object.
    Json,
    /// A text.
    Text,
}

impl RowReader for Lines {
    fn endings(&self) -> &'static [&'static str] {
        match self {
            Self::Json => &[".jsonl", ".ndjson", ".json"],
            Self::Text => &[".txt"],
        }
    }

    fn unit(&self) -> &'static str {
        "line"
    }

    fn columns(&self, file: &mut RowFile<'_>, source: u32, survey: &mut Survey) -> Result<bool> {
        if *self == Self::Text {
            tell_texts(&["text"], file, source, self.unit(), survey);
        }
        Ok(*self == Self::Text)
    }

    fn read(&self, file: &mut RowFile<'_>, _piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let shown = file.shown.clone();
        let total = if file.is_plain()? { file.bytes } else { 0 };
        let mut stream = file.stream()?;
        let mut buffer = BytesMut::new();
        let (mut line, mut offset) = (0, 0u64);
        let mut is_end = false;
        // Bytes of the buffer that are known to have no end of a line.
        let mut searched = 0;
        while !is_end {
            let start = buffer.len();
            buffer.resize(start + BLOCK_BYTES, 0);
            let count = stream
                .read(&mut buffer[start..])
                .with_context(|| format!("could not read {shown}"))?;
            buffer.truncate(start + count);
            is_end = count == 0;
            if offset == 0 && line == 0 && searched == 0 && buffer.starts_with(MARK) {
                let _ = buffer.split_to(MARK.len());
                offset += MARK.len() as u64;
            }
            loop {
                let end = memchr::memchr(b'\n', &buffer[searched..]).map(|at| searched + at + 1);
                let Some(end) = end.or((is_end && !buffer.is_empty()).then_some(buffer.len())) else {
                    searched = buffer.len();
                    break;
                };
                searched = 0;
                let mut data = buffer.split_to(end).freeze();
                let way = (offset, total);
                offset += data.len() as u64;
                while let [.., b'\n' | b'\r'] = &data[..] {
                    data.truncate(data.len() - 1);
                }
                let is_row = *self == Self::Text || !data.trim_ascii().is_empty();
                if is_row
                    && rows
                        .put(RawRow {
                            row: line,
                            data,
                            tag: 0,
                            way,
                        })?
                        .is_break()
                {
                    return Ok(());
                }
                line += 1;
            }
            if buffer.len() > MOST_BYTES {
                bail!("{shown}, line {}: it is longer than {MOST_BYTES} bytes", line + 1);
            }
        }
        Ok(())
    }

    fn cells(&self, data: &Bytes, _tag: u64) -> Result<Row> {
        match self {
            Self::Text => {
                check_text(data)?;
                Ok(vec![("text".to_owned(), Cell::Text(data.clone()))])
            }
            Self::Json => match serde_json::from_slice(data) {
                Ok(Cell::Dict(row)) => Ok(row),
                Ok(other) => bail!("wanted a JSON object, found {}", other.describe()),
                Err(error) => {
                    let hint = if data.trim_ascii_start().starts_with(b"[") || data.trim_ascii() == b"{" {
                        "; wanted a whole object on each line (JSON Lines)"
                    } else {
                        ""
                    };
                    bail!("it is not JSON: {}{hint}", column_of(&error))
                }
            },
        }
    }
}

/// The message of an error without its line, which is always 1.
fn column_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(reason) => format!("{reason} at column {}", error.column()),
        None => text,
    }
}

fn check_text(data: &[u8]) -> Result<()> {
    if let Err(error) = std::str::from_utf8(data) {
        bail!("it is not UTF-8: byte {} is wrong", error.valid_up_to() + 1);
    }
    Ok(())
}

/// Notes that a file has these columns of texts; of how many rows does not matter, as none lacks them.
fn tell_texts(columns: &[&str], file: &RowFile<'_>, source: u32, unit: &'static str, survey: &mut Survey) {
    let place = Place {
        source,
        file: file.index,
        row: 0,
        path: file.shown.as_str().into(),
        unit,
    };
    for column in columns {
        survey.tell(column, Told::Feature(Feature::Text), 1, &place);
    }
    survey.rows += 1;
}

/// Each file is a row: its path and its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextFiles;

impl RowReader for TextFiles {
    fn endings(&self) -> &'static [&'static str] {
        &[]
    }

    fn unit(&self) -> &'static str {
        ""
    }

    fn columns(&self, file: &mut RowFile<'_>, source: u32, survey: &mut Survey) -> Result<bool> {
        tell_texts(&["path", "text"], file, source, self.unit(), survey);
        Ok(true)
    }

    fn read(&self, file: &mut RowFile<'_>, _piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let shown = file.shown.clone();
        let path = file.path.clone();
        let mut packed = crate::readers::pack::pack(&[path.as_bytes()], file.bytes.min(1 << 20) as usize)?;
        let before = packed.len();
        file.stream()?
            .take(MOST_BYTES as u64 + 1)
            .read_to_end(&mut packed)
            .with_context(|| format!("could not read {shown}"))?;
        if packed.len() - before > MOST_BYTES {
            bail!("{shown}: it is longer than {MOST_BYTES} bytes");
        }
        let row = RawRow {
            row: 0,
            data: packed.into(),
            tag: 0,
            way: (0, 0),
        };
        let _: ControlFlow<()> = rows.put(row)?;
        Ok(())
    }

    fn cells(&self, data: &Bytes, _tag: u64) -> Result<Row> {
        let [path, text] = crate::readers::pack::unpack(data)?;
        check_text(&text)?;
        let text = match text.strip_prefix(MARK) {
            Some(rest) => text.slice_ref(rest),
            None => text,
        };
        Ok(vec![
            ("path".to_owned(), Cell::Text(path)),
            ("text".to_owned(), Cell::Text(text)),
        ])
    }
}
