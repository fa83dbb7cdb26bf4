//! STL-10's binary files in a tar archive.
//!
//! Pictures are 3 planes of 96 by 96 bytes, column by column; labels a byte each, from 1. A split without labels has class -1. A
//! record's key is its position. Labels may come after their pictures: then the archive is first gone through up to them.
//!
//! Source: <http://ai.stanford.edu/~acoates/stl10/>; `stl10_dataset_builder.py` of TFDS 4.9.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use prep_formats::value::{DType, Value};

use crate::archive::{Member, each_file, lost, read_all};
use crate::builder::{Input, Output, Raw, Source};
use crate::recipe::{ReaderSpec, Recipe};

const SIDE: usize = 96;
const PIXEL_BYTES: usize = SIDE * SIDE * 3;
/// Pictures that are read at a time.
const BLOCK_RECORDS: u64 = 16;
/// Largest member of labels or names that is believed.
const MOST_LABELS: u64 = 64 << 20;

/// Reads STL-10 as a recipe says.
#[derive(Debug)]
pub(super) struct Stl10 {
    image: String,
    label: String,
    class_names: Option<String>,
    /// For each split its file of pictures, and its file of labels.
    splits: Vec<(String, Option<String>)>,
}

impl Stl10 {
    pub(super) fn new(recipe: &Recipe) -> Self {
        let ReaderSpec::Stl10 {
            image,
            label,
            class_names,
        } = &recipe.reader
        else {
            unreachable!("the reader was chosen by its kind")
        };
        let split = |files: &crate::recipe::SplitFiles| {
            let mut files = files.files.iter().cloned();
            (files.next().unwrap_or_default(), files.next())
        };
        Self {
            image: image.clone(),
            label: label.clone(),
            class_names: class_names.clone(),
            splits: recipe.files.iter().map(split).collect(),
        }
    }

    fn is_labels(&self, name: &str) -> bool {
        self.splits
            .iter()
            .any(|(_, labels)| labels.as_deref() == Some(name))
    }

    /// Goes through the archive until all labels are there, or to its end.
    fn find_labels(&self, source: &Source) -> Result<HashMap<String, Vec<u8>>> {
        let wanted = self.splits.iter().filter(|(_, labels)| labels.is_some()).count();
        let mut found = HashMap::new();
        each_file(source, false, &mut |member, data| {
            let name = member.file_name();
            if self.is_labels(name) {
                found.insert(
                    name.to_owned(),
                    read_all(&source.name, member, data, MOST_LABELS)?,
                );
            }
            Ok(if found.len() == wanted {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        Ok(found)
    }

    pub(super) fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let source = input.sources[0];
        let mut labels: HashMap<String, Vec<u8>> = HashMap::new();
        let mut seen = vec![false; self.splits.len()];
        let mut last = 0;
        let mut is_told = false;
        let result = each_file(source, true, &mut |member, data| {
            let name = member.file_name().to_owned();
            if self.is_labels(&name) {
                if let Entry::Vacant(slot) = labels.entry(name) {
                    slot.insert(read_all(&source.name, member, data, MOST_LABELS)?);
                }
            } else if self.class_names.as_ref() == Some(&name) {
                let text = read_all(&source.name, member, data, MOST_LABELS)?;
                let text = String::from_utf8(text)
                    .with_context(|| format!("{}, member {}: not UTF-8", source.name, member.path))?;
                output.class_names(&self.label, text.lines().map(str::to_owned).collect())?;
            } else if let Some(split) = self.splits.iter().position(|(pictures, _)| *pictures == name) {
                if std::mem::replace(&mut seen[split], true) {
                    bail!("{} has the member {name} twice", source.name);
                }
                let of_split = match &self.splits[split].1 {
                    None => None,
                    Some(file) => {
                        if !labels.contains_key(file) {
                            labels.extend(self.find_labels(source)?);
                        }
                        let found = labels.get(file);
                        Some(found.with_context(|| format!("{} has no member `{file}`", source.name))?)
                    }
                };
                let place = format!("{}, member {}", source.name, member.path);
                let labels = of_split.map(Vec::as_slice);
                is_told |= !read_pictures(&place, split, member, labels, data, output)?;
                last = split;
            }
            Ok(ControlFlow::Continue(()))
        });
        let damaged = lost(result)?;
        let missing: Vec<String> = self
            .splits
            .iter()
            .zip(seen)
            .filter(|(_, seen)| !seen)
            .map(|((pictures, _), _)| format!("`{pictures}`"))
            .collect();
        if !missing.is_empty() {
            // How many pictures are lost, nobody knows.
            let reason = damaged.map_or(String::new(), |reason| format!(": {reason}"));
            bail!("{} has no member {}{reason}", source.name, missing.join(", "));
        }
        if let Some(reason) = damaged.filter(|_| !is_told) {
            let part = output.part(&source.name);
            output.fault(last, part, 0, &reason)?;
        }
        Ok(())
    }

    pub(super) fn decode<'a>(&'a self, raw: &Raw, values: &mut Vec<(&'a str, Value)>) -> Result<()> {
        let (Some((label, planes)), PIXEL_BYTES) = (raw.data.split_first(), raw.data.len().saturating_sub(1))
        else {
            bail!("not a record of STL-10");
        };
        // From 1 in the file; 0 is written for a split without labels.
        values.push((&self.label, Value::Int(i64::from(*label) - 1)));
        values.push((
            &self.image,
            Value::Tensor {
                dtype: DType::UInt8,
                shape: vec![SIDE, SIDE, 3],
                data: upright(planes),
            },
        ));
        Ok(())
    }
}

/// Gives the pictures of a member; false where it is damaged, and the pictures that are lost with that were told.
fn read_pictures(
    place: &str,
    split: usize,
    member: &Member,
    labels: Option<&[u8]>,
    data: &mut dyn Read,
    output: &mut Output<'_>,
) -> Result<bool> {
    let count = member.bytes / PIXEL_BYTES as u64;
    if !member.bytes.is_multiple_of(PIXEL_BYTES as u64) {
        bail!(
            "{place}: {} bytes are not a whole number of pictures of {PIXEL_BYTES}",
            member.bytes
        );
    }
    if let Some(labels) = labels.filter(|labels| labels.len() as u64 != count) {
        bail!("{place}: {count} pictures, but {} labels", labels.len());
    }
    let part = output.part(place);
    let record_bytes = 1 + PIXEL_BYTES;
    let mut record = 0;
    while record < count {
        let records = BLOCK_RECORDS.min(count - record);
        let mut block = BytesMut::zeroed(records as usize * record_bytes);
        let mut damaged = None;
        for (index, slot) in block.chunks_exact_mut(record_bytes).enumerate() {
            let read = data.read_exact(&mut slot[1..]);
            if let Some(reason) = lost(read.with_context(|| format!("could not read {place}")))? {
                damaged = Some((index, reason));
                break;
            }
            slot[0] = labels.map_or(0, |labels| labels[record as usize + index]);
        }
        let mut block = block.freeze();
        let whole = damaged.as_ref().map_or(records, |(index, _)| *index as u64);
        for _ in 0..whole {
            let data = block.split_to(record_bytes);
            if labels.is_some() && data[0] == 0 {
                output.fault(split, part, record, "label 0; labels begin with 1")?;
            } else {
                output.emit(Raw::new(split, record, part, data))?;
            }
            record += 1;
        }
        if let Some((_, reason)) = damaged {
            for record in record..count {
                output.fault(split, part, record, &reason)?;
            }
            return Ok(false);
        }
    }
    Ok(true)
}

/// `u8[channel, column, row]` to `u8[row, column, channel]`.
fn upright(planes: &[u8]) -> Bytes {
    let mut pixels = vec![0; PIXEL_BYTES];
    for (channel, plane) in planes.chunks_exact(SIDE * SIDE).enumerate() {
        for (column, rows) in plane.chunks_exact(SIDE).enumerate() {
            for (row, value) in rows.iter().enumerate() {
                pixels[(row * SIDE + column) * 3 + channel] = *value;
            }
        }
    }
    pixels.into()
}
