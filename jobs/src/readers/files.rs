//! Files in archives and folders: each file whose path fits a pattern of a split is an example.
//!
//! The file is one feature; classes, texts and the key come from its path.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use prep_formats::features::Feature;
use prep_formats::value::{DType, Value};

use crate::archive::{damage, each_file, read_after};
use crate::builder::{Input, Output, Raw, Source};
use crate::error::Hinted;
use crate::readers::pack::{pack, unpack};
use crate::recipe::{Caught, Contents, Names, Pattern, ReaderSpec, Recipe, Template, near};

/// Largest file that is taken as an example.
const MOST_FILE_BYTES: u64 = 256 << 20;
/// Names that an error about a split without files shows.
const MOST_NAMES: usize = 20;

/// Reads files as a recipe says.
#[derive(Debug)]
pub(super) struct Files {
    contents: String,
    form: Contents,
    key: Template,
    labels: Vec<(String, Template)>,
    /// Shape and type of the contents, where they are a tensor.
    tensor: Option<(Vec<Option<u64>>, DType)>,
    splits: Vec<Split>,
    /// What each input had: by input, so that reading again counts nothing twice.
    seen: Mutex<BTreeMap<usize, Seen>>,
}

#[derive(Debug)]
struct Split {
    name: String,
    patterns: Vec<Pattern>,
    /// Names of sources; empty for all.
    sources: Vec<String>,
    values: Vec<(String, i64)>,
}

/// The files of one input.
#[derive(Debug, Default)]
struct Seen {
    source: String,
    /// Number of files, and the paths of some.
    files: u64,
    names: Vec<String>,
    /// Files of each split.
    fits: Vec<u64>,
}

impl Files {
    pub(super) fn new(recipe: &Recipe) -> Self {
        let ReaderSpec::Files {
            contents,
            form,
            key,
            labels,
        } = &recipe.reader
        else {
            unreachable!("the reader was chosen by its kind")
        };
        let splits = recipe
            .spec
            .splits
            .iter()
            .zip(&recipe.files)
            .map(|(split, files)| Split {
                name: split.name.clone(),
                patterns: files.patterns.clone(),
                sources: files.sources.clone(),
                values: files.values.clone(),
            });
        Self {
            contents: contents.clone(),
            form: *form,
            key: key.clone(),
            labels: labels.clone(),
            tensor: match recipe.spec.features.get(contents) {
                Some(Feature::Tensor { shape, dtype, .. }) => Some((shape.clone(), *dtype)),
                _ => None,
            },
            splits: splits.collect(),
            seen: Mutex::default(),
        }
    }

    pub(super) fn read(&self, inputs: usize, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let source = input.sources[0];
        let mut seen = Seen {
            source: source.name.clone(),
            fits: vec![0; self.splits.len()],
            ..Seen::default()
        };
        // One part for the whole archive: a name for each of millions of members would have to be kept.
        let part = output.part(&source.name);
        // A damaged archive is told as a fault of the split whose file was last; before any file, of the first that has files of it.
        let mut last = self
            .splits
            .iter()
            .position(|split| split.sources.is_empty() || split.sources.contains(&source.name))
            .unwrap_or(0);
        let mut is_told = false;
        let result = each_file(source, true, &mut |member, data| {
            let record = seen.files;
            seen.files += 1;
            if seen.names.len() < MOST_NAMES {
                seen.names.push(member.path.clone());
            }
            let Some((split, caught)) = self.split_of(&source.name, &member.path)? else {
                return Ok(ControlFlow::Continue(()));
            };
            seen.fits[split] += 1;
            last = split;
            let names = self.names(split, &member.path, &caught);
            let key = self.key.render_with(&names);
            let mut packed = pack(&[member.path.as_bytes()], member.bytes.min(1 << 20) as usize)?;
            match read_after(&mut packed, &source.name, member, data, MOST_FILE_BYTES) {
                Ok(()) => output.emit(Raw::new(split, record, part, packed).with_key(key))?,
                Err(error) => {
                    let Some(reason) = damage(&error) else {
                        return Err(error);
                    };
                    is_told = true;
                    output.fault(split, part, record, &reason)?;
                    is_told = false;
                }
            }
            Ok(ControlFlow::Continue(()))
        });
        if let Err(error) = result {
            match damage(&error).filter(|_| !is_told) {
                Some(reason) if seen.files > 0 => output.fault(last, part, seen.files, &reason)?,
                Some(_) => {
                    return Err(error.context(Hinted::new(
                        format!("could not read {}", source.path().display()),
                        "the source is damaged, or no archive; get it again",
                    )));
                }
                None => return Err(error),
            }
        }
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(input.index, seen);
        if all.len() < inputs {
            return Ok(());
        }
        self.check_splits(&all)
    }

    /// The split whose pattern a path fits, and what it caught.
    fn split_of<'a>(&'a self, source: &str, path: &'a str) -> Result<Option<(usize, Caught<'a>)>> {
        let mut found: Option<(usize, &Pattern, Caught<'a>)> = None;
        for (index, split) in self.splits.iter().enumerate() {
            if !split.sources.is_empty() && !split.sources.iter().any(|name| name == source) {
                continue;
            }
            let Some((pattern, caught)) = split
                .patterns
                .iter()
                .find_map(|pattern| Some((pattern, pattern.matches(path)?)))
            else {
                continue;
            };
            if let Some((other, first, _)) = &found {
                return Err(Hinted::new(
                    format!(
                        "{source}, member {path}: it fits `{}` of split `{}` and `{}` of split `{}`",
                        first.text(),
                        self.splits[*other].name,
                        pattern.text(),
                        split.name
                    ),
                    "make the patterns of the splits exclude each other",
                )
                .into());
            }
            found = Some((index, pattern, caught));
        }
        Ok(found.map(|(index, _, caught)| (index, caught)))
    }

    fn names<'a>(&'a self, split: usize, path: &'a str, caught: &'a [(&'a str, &'a str)]) -> Names<'a> {
        Names {
            split: &self.splits[split].name,
            index: 0,
            path,
            caught,
        }
    }

    /// Refuses splits that no file of any input fits.
    fn check_splits(&self, all: &BTreeMap<usize, Seen>) -> Result<()> {
        let mut empty = self
            .splits
            .iter()
            .enumerate()
            .filter(|(index, _)| all.values().all(|seen| seen.fits[*index] == 0))
            .map(|(_, split)| split)
            .peekable();
        let Some(split) = empty.peek() else {
            return Ok(());
        };
        let looked: Vec<&Seen> = all
            .values()
            .filter(|seen| split.sources.is_empty() || split.sources.contains(&seen.source))
            .collect();
        let patterns: Vec<String> = split
            .patterns
            .iter()
            .map(|pattern| format!("`{}`", pattern.text()))
            .collect();
        let mut message = format!("split `{}`: no file fits {}", split.name, patterns.join(" or "));
        for seen in &looked {
            message += &match seen.files {
                0 => format!("; {} has no files", seen.source),
                files => {
                    let shown = seen.names.join(", ");
                    let more = match files - seen.names.len() as u64 {
                        0 => String::new(),
                        more => format!(" and {more} more"),
                    };
                    format!("; {} has {shown}{more}", seen.source)
                }
            };
        }
        let mut hint = "patterns are those of files, not regular expressions: `*` is any text without `/`, `**` any text, \
                        `{name}` a text that is kept; upper and lower case differ"
            .to_owned();
        // A pattern with the case, or the folders in front, of what is there would do.
        let candidates: Vec<&str> = looked
            .iter()
            .flat_map(|seen| seen.names.iter().map(String::as_str))
            .collect();
        for pattern in &split.patterns {
            let folded = Pattern::parse(&pattern.text().to_lowercase());
            let deeper = Pattern::parse(&format!("**/{}", pattern.text()));
            let fits = |pattern: &Result<Pattern, String>, path: &str| {
                pattern
                    .as_ref()
                    .is_ok_and(|pattern| pattern.matches(path).is_some())
            };
            if let Some(path) = candidates.iter().find(|path| fits(&folded, &path.to_lowercase())) {
                hint = format!("`{path}` would fit but for upper and lower case; {hint}");
            } else if let Some(path) = candidates.iter().find(|path| fits(&deeper, path)) {
                hint = format!("`{path}` would fit `**/{}`; {hint}", pattern.text());
            } else if let Some(path) = near(pattern.text(), candidates.iter().copied()).first() {
                hint = format!("is `{path}` meant? {hint}");
            }
        }
        bail!(Hinted::new(message, hint))
    }

    pub(super) fn name_of(&self, raw: &Raw) -> Option<String> {
        let [path, _] = unpack(&raw.data).ok()?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }

    pub(super) fn decode<'a>(
        &'a self,
        raw: &Raw,
        texts: &'a [(String, Template)],
        values: &mut Vec<(&'a str, Value)>,
    ) -> Result<()> {
        let [path, data] = unpack(&raw.data)?;
        let path = std::str::from_utf8(&path)?;
        let split = &self.splits[raw.split];
        let caught = split
            .patterns
            .iter()
            .find_map(|pattern| pattern.matches(path))
            .context("the path fits no pattern")?;
        let names = self.names(raw.split, path, &caught);
        for (feature, number) in &split.values {
            values.push((feature, Value::Int(*number)));
        }
        for (feature, template) in &self.labels {
            if split.values.iter().all(|(other, _)| other != feature) {
                values.push((feature, text_value(template, &names)));
            }
        }
        for (feature, template) in texts {
            values.push((feature, text_value(template, &names)));
        }
        let contents = match (self.form, &self.tensor) {
            (Contents::AsFound, _) => Value::Bytes(data),
            (Contents::Stripped, _) => Value::Bytes(stripped(&data)),
            (Contents::Tiff, Some((shape, dtype))) => tiff(&data, shape, *dtype)?,
            (Contents::Tiff, None) => bail!("`{}` is not a tensor", self.contents),
        };
        values.push((&self.contents, contents));
        Ok(())
    }
}

/// The paths of files of an archive, by their position among all.
pub(super) fn paths_at(source: &Source, records: &[u64]) -> Result<Vec<Option<String>>> {
    let mut found = vec![None; records.len()];
    let most = records.iter().max().copied().unwrap_or(0);
    let mut position = 0;
    each_file(source, false, &mut |member, _| {
        for (slot, wanted) in found.iter_mut().zip(records) {
            if *wanted == position {
                *slot = Some(member.path.clone());
            }
        }
        position += 1;
        Ok(if position > most {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    })?;
    Ok(found)
}

fn text_value(template: &Template, names: &Names<'_>) -> Value {
    Value::Bytes(template.render_with(names).into_bytes().into())
}

/// Text without the white space around it, as Python's `bytes.strip` has it.
fn stripped(text: &Bytes) -> Bytes {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let end = text
        .iter()
        .rposition(|byte| !is_space(byte))
        .map_or(start, |last| last + 1);
    text.slice(start..end)
}

/// The samples of a TIFF file as a tensor of another type of numbers.
fn tiff(file: &[u8], wanted: &[Option<u64>], dtype: DType) -> Result<Value> {
    let image = prep_formats::tiff::decode(file)?;
    let shape = [image.height, image.width, image.samples];
    let fits = wanted.len() == 3
        && wanted
            .iter()
            .zip(shape)
            .all(|(wanted, found)| wanted.is_none_or(|wanted| wanted == u64::from(found)));
    if !fits {
        let wanted: Vec<String> = wanted
            .iter()
            .map(|size| size.map_or("any".to_owned(), |size| size.to_string()))
            .collect();
        bail!("a TIFF of shape {shape:?}, wanted [{}]", wanted.join(", "));
    }
    let data: Vec<u8> = match (dtype, image.bits) {
        (DType::Float32, _) => image
            .values()
            .flat_map(|value| f32::from(value).to_le_bytes())
            .collect(),
        (DType::UInt16, _) => image.values().flat_map(u16::to_le_bytes).collect(),
        (DType::UInt8, 8) => image.values().map(|value| value as u8).collect(),
        (dtype, bits) => bail!("a TIFF of {bits} bits a sample does not make {dtype}; float32 and uint16 do"),
    };
    Ok(Value::Tensor {
        dtype,
        shape: shape.map(|size| size as usize).to_vec(),
        data: data.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_stripped_as_in_python() {
        for (text, wanted) in [
            (&b" \t\r\n\x0b\x0c a b \n"[..], &b"a b"[..]),
            ("\u{3000}a\u{a0}".as_bytes(), "\u{3000}a\u{a0}".as_bytes()),
            (b"  ", b""),
            (b"", b""),
            (b"\0a", b"\0a"),
        ] {
            assert_eq!(stripped(&Bytes::copy_from_slice(text)), wanted);
        }
    }
}
