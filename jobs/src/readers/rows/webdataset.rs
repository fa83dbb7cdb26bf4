//! Samples in tar archives, as `webdataset` writes them.
//!
//! A sample is the members that follow each other and have the same key. Where a member's path is cut into key and extension is said by
//! `dot` under `[reader]`:
//!
//! | `dot` | `a/b.c/07 v1.5.seg.png` is of | and its column is called |
//! |---|---|---|
//! | `first`, as `webdataset` does | `a/b.c/07 v1` | `5.seg.png` |
//! | `last` | `a/b.c/07 v1.5.seg` | `png` |
//!
//! Dots of folders never count. Columns have the names of extensions in small letters, and `__key__` has the key. What is in a column follows
//! from the end of its name: `json` is parsed, `txt` is text, `cls` and `id` are integers where they look so, `npy` is a tensor, the rest are bytes, and pictures
//! where all are. A member whose name does not allow it to be cut so, or whose key came before and was followed by another, is an error that
//! names it. Members called `__name__` are left out, as `webdataset` does; so are hidden files and links.
//!
//! Holds one sample, and 16 bytes for each sample of the archives that are being read.
//!
//! Source: webdataset 1.0, `tariterators.py` (`base_plus_ext`, `group_by_keys`), `autodecode.py` (`basichandlers`).

use std::collections::HashSet;
use std::io::{self, Read};

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;

use crate::archive::{MemberKind, Skip, Tar, normal_path, read_after};
use crate::error::{Cancelled, Hinted};
use crate::readers::rows::cell::{Cell, Row};
use crate::readers::rows::file::RowFile;
use crate::readers::rows::npz;
use crate::readers::rows::{RawRow, RowReader, Rows};
use crate::recipe::Pattern;
use crate::recipe::rows::RowOptions;

/// The column of the key.
const KEY: &str = "__key__";
/// The largest sample.
const MOST_BYTES: u64 = 1 << 30;

/// Reads samples in tar archives.
#[derive(Debug)]
pub(crate) struct WebDataset {
    last_dot: bool,
    members: Vec<Pattern>,
}

/// Key and extension of a member, cut at the first or last dot of its name; `None` where one would be empty.
pub(crate) fn cut(path: &str, last_dot: bool) -> Option<(&str, &str)> {
    let start = path.rfind('/').map_or(0, |slash| slash + 1);
    let name = &path[start..];
    let dot = match last_dot {
        false => name.find('.'),
        true => name.rfind('.'),
    };
    let dot = dot.filter(|dot| *dot > 0 && dot + 1 < name.len())?;
    Some((&path[..start + dot], &path[start + dot + 1..]))
}

/// Whether something is an extension, and not the rest of a title with dots.
fn is_extension(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

struct Unseekable<'a>(Box<dyn Read + 'a>);

impl Read for Unseekable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Skip for Unseekable<'_> {}

impl WebDataset {
    pub(crate) fn new(options: &RowOptions) -> Self {
        Self {
            last_dot: options.last_dot,
            members: options.members.clone(),
        }
    }
}

/// A sample that is being gathered.
#[derive(Debug, Default)]
struct Sample {
    key: String,
    /// Parts as [`WebDataset::cells`] takes them.
    data: Vec<u8>,
    extensions: Vec<String>,
    offset: u64,
}

impl RowReader for WebDataset {
    fn endings(&self) -> &'static [&'static str] {
        &[".tar", ".tgz"]
    }

    fn unit(&self) -> &'static str {
        "sample"
    }

    fn read(&self, file: &mut RowFile<'_>, _piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let shown = file.shown.clone();
        let total = if file.is_plain()? { file.bytes } else { 0 };
        if file.bytes == 0 {
            return Ok(());
        }
        let mut tar = Tar::new(&shown, Unseekable(file.stream()?));
        let mut finished: HashSet<u128> = HashSet::new();
        let mut sample: Option<Sample> = None;
        let mut row = 0;
        loop {
            let member = match tar.next_member() {
                Ok(member) => member,
                Err(error) => return damaged(error, row, rows),
            };
            let Some(member) = member else { break };
            if member.kind != MemberKind::File {
                continue;
            }
            let Some(path) = normal_path(&member.path) else {
                continue;
            };
            let name = path.rsplit('/').next().unwrap_or(&path);
            if name.starts_with("__") && name.ends_with("__")
                || !self.members.is_empty()
                    && !self
                        .members
                        .iter()
                        .any(|pattern| pattern.matches(&path).is_some())
            {
                continue;
            }
            let place = || format!("{shown}, member {path}, byte {}", member.offset);
            let Some((key, extension)) = cut(&path, self.last_dot) else {
                return Err(Hinted::new(
                    format!("{}: its name has no key before a dot and extension behind", place()),
                    "leave such members out: `members = \"**.{e=jpg|json}\"` under `[reader]` says which are read",
                )
                .into());
            };
            if !is_extension(extension) {
                return Err(Hinted::new(
                    format!("{}: its key is `{key}`, and its extension would be `{extension}`", place()),
                    "names are cut at their first dot, as webdataset does; `dot = \"last\"` under `[reader]` cuts them at the last one",
                )
                .into());
            }
            let extension = extension.to_lowercase();
            if sample.as_ref().is_none_or(|sample| sample.key != key) {
                if let Some(whole) = sample.take() {
                    finished.insert(hash_of(&whole.key));
                    if put(whole, &mut row, total, rows)? {
                        return Ok(());
                    }
                }
                if finished.contains(&hash_of(key)) {
                    return Err(Hinted::new(
                        format!(
                            "{}: it belongs to the sample `{key}`, whose other members are not beside it but before others",
                            place()
                        ),
                        "the members of a sample have to follow each other: write the archive anew in the order of names, as `tar --sort=name` does",
                    )
                    .into());
                }
                let mut begun = Sample {
                    key: key.to_owned(),
                    offset: member.offset,
                    ..Sample::default()
                };
                append(&mut begun.data, KEY, key.as_bytes());
                sample = Some(begun);
            }
            let Some(open) = &mut sample else { continue };
            if open.extensions.contains(&extension) || extension == KEY {
                bail!("{}: the sample `{key}` has two members `{extension}`", place());
            }
            let start = begin(&mut open.data, &extension);
            let most = MOST_BYTES.saturating_sub(start as u64);
            if let Err(error) = read_after(&mut open.data, &shown, &member, &mut tar, most) {
                return match error.downcast::<io::Error>() {
                    Ok(error) => damaged(error, row, rows),
                    Err(error) if member.bytes <= most => {
                        damaged(io::Error::other(format!("{error:#}")), row, rows)
                    }
                    Err(error) => Err(error),
                };
            }
            // Its padding too, so that a cut archive is not taken for whole.
            if let Err(error) = tar.finish_member() {
                return damaged(error, row, rows);
            }
            end(&mut open.data, start);
            open.extensions.push(extension);
        }
        if let Some(whole) = sample {
            put(whole, &mut row, total, rows)?;
        }
        Ok(())
    }

    fn cells(&self, data: &Bytes, _tag: u64) -> Result<Row> {
        let mut row = Row::new();
        let mut rest = data.clone();
        while !rest.is_empty() {
            let name = part(&mut rest)?;
            let value = part(&mut rest)?;
            let name = std::str::from_utf8(&name)?.to_owned();
            let cell = cell(&name, value).map_err(|error| anyhow!("column `{name}`: {error:#}"))?;
            row.push((name, cell));
        }
        Ok(row)
    }
}

/// Tells of an archive that ends too early or is damaged; what came before stays where faults are skipped.
fn damaged(error: io::Error, row: u64, rows: &mut dyn Rows) -> Result<()> {
    if error.get_ref().is_some_and(|inner| inner.is::<Cancelled>()) {
        return Err(error.into());
    }
    rows.fault(row, &error.to_string())
}

fn put(sample: Sample, row: &mut u64, total: u64, rows: &mut dyn Rows) -> Result<bool> {
    let whole = RawRow {
        row: *row,
        data: sample.data.into(),
        tag: 0,
        way: (sample.offset.min(total), total),
    };
    *row += 1;
    Ok(rows.put(whole)?.is_break())
}

fn hash_of(key: &str) -> u128 {
    let hash = blake3::hash(key.as_bytes());
    hash.as_bytes()
        .first_chunk()
        .map_or(0, |bytes| u128::from_le_bytes(*bytes))
}

/// Begins a part whose length comes later; gives where its data begin.
fn begin(data: &mut Vec<u8>, name: &str) -> usize {
    data.extend_from_slice(&(name.len() as u32).to_le_bytes());
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&[0; 4]);
    data.len()
}

fn end(data: &mut [u8], start: usize) {
    // Samples are far shorter than 4 GiB.
    let length = (data.len() - start) as u32;
    data[start - 4..start].copy_from_slice(&length.to_le_bytes());
}

fn append(data: &mut Vec<u8>, name: &str, value: &[u8]) {
    let start = begin(data, name);
    data.extend_from_slice(value);
    end(data, start);
}

fn part(rest: &mut Bytes) -> Result<Bytes> {
    let length = rest
        .first_chunk::<4>()
        .map(|length| u32::from_le_bytes(*length) as usize);
    let Some(length) = length.filter(|length| *length <= rest.len() - 4) else {
        bail!("a sample without all its parts");
    };
    let part = rest.slice(4..4 + length);
    *rest = rest.slice(4 + length..);
    Ok(part)
}

fn text(value: Bytes) -> Result<Cell> {
    if let Err(error) = std::str::from_utf8(&value) {
        bail!("it is not UTF-8: byte {} is wrong", error.valid_up_to() + 1);
    }
    Ok(Cell::Text(value))
}

/// What a part is, by the end of its name.
fn cell(name: &str, value: Bytes) -> Result<Cell> {
    Ok(match name.rsplit('.').next().unwrap_or(name) {
        KEY | "txt" | "text" | "transcript" | "caption" => text(value)?,
        "cls" | "cls2" | "class" | "count" | "index" | "inx" | "id" => {
            let trimmed = std::str::from_utf8(&value).ok().map(str::trim);
            match trimmed.map(|text| (text, text.parse::<i64>())) {
                Some((_, Ok(number))) => Cell::Int(number),
                Some((trimmed, Err(_))) => Cell::Text(Bytes::copy_from_slice(trimmed.as_bytes())),
                None => text(value)?,
            }
        }
        "json" | "jsn" => match serde_json::from_slice(&value) {
            Ok(cell) => cell,
            Err(error) => bail!("it is not JSON: {error}"),
        },
        "npy" => npz::whole(&value)?,
        _ => Cell::Bytes(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_at_the_first_dot_or_the_last() {
        for (path, first, last) in [
            ("a.jpg", Some(("a", "jpg")), Some(("a", "jpg"))),
            (
                "x.y/a.seg.png",
                Some(("x.y/a", "seg.png")),
                Some(("x.y/a.seg", "png")),
            ),
            (
                "set.v2/07 Song v1.5 [live].flac",
                Some(("set.v2/07 Song v1", "5 [live].flac")),
                Some(("set.v2/07 Song v1.5 [live]", "flac")),
            ),
            ("x.y/a", None, None),
            (".hidden", None, None),
            ("a.", None, None),
            ("", None, None),
        ] {
            assert_eq!(cut(path, false), first, "{path}");
            assert_eq!(cut(path, true), last, "{path}");
        }
        assert!(is_extension("seg.png") && !is_extension("5 [live].flac"));
    }

    #[test]
    fn parts_are_what_their_names_say() {
        let cell = |name: &str, value: &'static [u8]| cell(name, Bytes::from_static(value));
        assert_eq!(cell("cls", b"7\n").unwrap(), Cell::Int(7));
        assert_eq!(cell("cls", b"cat").unwrap(), Cell::Text("cat".into()));
        assert_eq!(cell("x.txt", b" a\n").unwrap(), Cell::Text(" a\n".into()));
        assert_eq!(cell("json", b"[1]").unwrap(), Cell::List(vec![Cell::Int(1)]));
        assert_eq!(cell("bin", b"\xff").unwrap(), Cell::Bytes((&b"\xff"[..]).into()));
        assert!(cell("txt", b"\xff").unwrap_err().to_string().contains("UTF-8"));
        assert!(cell("json", b"{").unwrap_err().to_string().contains("JSON"));
        let mut data = Vec::new();
        append(&mut data, "cls", b"1");
        let reader = WebDataset {
            last_dot: false,
            members: Vec::new(),
        };
        assert_eq!(
            reader.cells(&data.clone().into(), 0).unwrap(),
            [("cls".to_owned(), Cell::Int(1))]
        );
        for length in 1..data.len() {
            assert!(
                reader.cells(&Bytes::copy_from_slice(&data[..length]), 0).is_err(),
                "{length}"
            );
        }
    }
}
