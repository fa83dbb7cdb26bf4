//! CIFAR's binary batches, straight from the tar archive they come in.
//!
//! A record's key is its position among all records of its split, so the number of records in the files before it must be
//! known, while members come in any order. The recipe says how many each file is expected to have. When a member turns out
//! to have another number, the archive's headers are read once more, all of them; if examples with wrong keys have gone out
//! by then, the job starts over.

use std::collections::HashSet;
use std::io::Read;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use prep_formats::cifar::{PIXEL_BYTES, SIDE, interleave};
use prep_formats::value::{DType, Value};

use crate::archive::{Member, MemberKind, Stream, Tar};
use crate::builder::{Input, Output, Raw, Source, StartOver};
use crate::recipe::{ReaderSpec, Recipe};

/// Bytes unpacked at a time; records are slices of such blocks.
const BLOCK_BYTES: usize = 512 << 10;
/// Longest file of label names.
const MOST_NAMES_BYTES: u64 = 64 << 10;

/// Reads CIFAR archives as a recipe says.
#[derive(Debug)]
pub(super) struct Cifar {
    labels: Vec<String>,
    image: String,
    label_files: Vec<(String, String)>,
    /// The files of each split, in order.
    files: Vec<Vec<String>>,
    /// How many records each of them has: as the recipe says, later as found.
    num_records: Mutex<Vec<Vec<Option<u64>>>>,
}

/// Where a file belongs: split, and position among its files.
type Slot = (usize, usize);

impl Cifar {
    pub(super) fn new(recipe: &Recipe) -> Self {
        let ReaderSpec::Cifar {
            labels,
            image,
            label_files,
        } = &recipe.reader
        else {
            unreachable!("the reader was chosen by its kind")
        };
        let expected = |split: &crate::recipe::SplitFiles| vec![split.file_records; split.files.len()];
        Self {
            labels: labels.clone(),
            image: image.clone(),
            label_files: label_files.clone(),
            files: recipe.files.iter().map(|split| split.files.clone()).collect(),
            num_records: Mutex::new(recipe.files.iter().map(expected).collect()),
        }
    }

    fn record_bytes(&self) -> usize {
        self.labels.len() + PIXEL_BYTES
    }

    fn slot(&self, file_name: &str) -> Option<Slot> {
        self.files.iter().enumerate().find_map(|(split, files)| {
            let position = files.iter().position(|file| file == file_name)?;
            Some((split, position))
        })
    }

    /// How many records a member has by its size.
    fn count(&self, archive: &str, member: &Member) -> Result<u64> {
        let record = self.record_bytes() as u64;
        if !member.bytes.is_multiple_of(record) {
            bail!(
                "{archive}, member {}: {} bytes are no whole number of records of {record} bytes",
                member.path,
                member.bytes
            );
        }
        Ok(member.bytes / record)
    }

    /// The number of records of every file, from the headers of the whole archive.
    fn scan(&self, source: &Source) -> Result<Vec<Vec<Option<u64>>>> {
        let mut tar = Tar::new(&source.name, source.open_again()?);
        let mut found: Vec<Vec<Option<u64>>> =
            self.files.iter().map(|files| vec![None; files.len()]).collect();
        while let Some(member) = tar.next_member()? {
            if let (MemberKind::File, Some((split, position))) = (member.kind, self.slot(member.file_name()))
            {
                found[split][position] = Some(self.count(&source.name, &member)?);
            }
        }
        self.check_complete(&source.name, |(split, position)| found[split][position].is_some())?;
        Ok(found)
    }

    fn check_complete(&self, archive: &str, has: impl Fn(Slot) -> bool) -> Result<()> {
        let mut missing = Vec::new();
        for (split, files) in self.files.iter().enumerate() {
            for (position, file) in files.iter().enumerate() {
                if !has((split, position)) {
                    missing.push(format!("`{file}`"));
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        bail!("{archive} has no member {}", missing.join(", "))
    }

    pub(super) fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let source = input.sources[0];
        let mut known = self
            .num_records
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut scanned = false;
        // First keys of the files whose examples have gone out.
        let mut sent: Vec<(Slot, u64)> = Vec::new();
        let mut seen = HashSet::new();
        let mut tar = Tar::new(&source.name, source.open()?);
        while let Some(member) = tar.next_member()? {
            if member.kind != MemberKind::File {
                continue;
            }
            if let Some((label, _)) = self
                .label_files
                .iter()
                .find(|(_, file)| file == member.file_name())
            {
                let names = read_names(&source.name, &member, &mut tar)?;
                output.class_names(label, names)?;
                continue;
            }
            let Some(slot) = self.slot(member.file_name()) else {
                continue;
            };
            if !seen.insert(slot) {
                bail!("{} has the member {} twice", source.name, member.path);
            }
            let count = self.count(&source.name, &member)?;
            if known[slot.0][slot.1] != Some(count) || known[slot.0][..slot.1].contains(&None) {
                if scanned {
                    bail!(
                        "{}, member {}: its size changed while it was read",
                        source.name,
                        member.path
                    );
                }
                scanned = true;
                known = self.scan(source)?;
                *self.num_records.lock().unwrap_or_else(PoisonError::into_inner) = known.clone();
                if sent
                    .iter()
                    .any(|(slot, first_key)| first_key_of(&known, *slot) != *first_key)
                {
                    let reason = format!(
                        "the batches of {} have other sizes than the recipe expects",
                        source.name
                    );
                    return Err(StartOver { reason }.into());
                }
            }
            let first_key = first_key_of(&known, slot);
            sent.push((slot, first_key));
            let part = output.part(&format!("{}, member {}", source.name, member.path));
            self.read_batch(slot.0, first_key, part, count, &mut tar, output)
                .with_context(|| format!("could not read {}, member {}", source.name, member.path))?;
        }
        tar.into_inner().drain()?;
        self.check_complete(&source.name, |slot| seen.contains(&slot))
    }

    fn read_batch(
        &self,
        split: usize,
        first_key: u64,
        part: u32,
        count: u64,
        tar: &mut Tar<Stream>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let record_bytes = self.record_bytes();
        let block_records = (BLOCK_BYTES / record_bytes) as u64;
        let mut record = 0;
        while record < count {
            let records = block_records.min(count - record);
            let mut block = BytesMut::zeroed(records as usize * record_bytes);
            tar.read_exact(&mut block)?;
            let mut block = block.freeze();
            for _ in 0..records {
                let data = block.split_to(record_bytes);
                output.emit(Raw::new(split, record, part, data).with_key(first_key + record))?;
                record += 1;
            }
        }
        Ok(())
    }

    pub(super) fn decode<'a>(&'a self, raw: &Raw, values: &mut Vec<(&'a str, Value)>) -> Result<()> {
        let (labels, planes) = raw.data.split_at(self.labels.len().min(raw.data.len()));
        let planes = planes
            .try_into()
            .context("not a record of CIFAR's binary batches")?;
        let mut pixels = vec![0; PIXEL_BYTES];
        if let Some(pixels) = pixels.first_chunk_mut() {
            interleave(planes, pixels);
        }
        for (name, label) in self.labels.iter().zip(labels) {
            values.push((name, Value::Int(i64::from(*label))));
        }
        values.push((
            &self.image,
            Value::Tensor {
                dtype: DType::UInt8,
                shape: vec![SIDE, SIDE, 3],
                data: Bytes::from(pixels),
            },
        ));
        Ok(())
    }
}

/// The key of a file's first record: the number of records in the files before it.
fn first_key_of(known: &[Vec<Option<u64>>], (split, position): Slot) -> u64 {
    known[split][..position].iter().flatten().sum()
}

/// The lines of a member that are not empty.
fn read_names(archive: &str, member: &Member, tar: &mut Tar<Stream>) -> Result<Vec<String>> {
    if member.bytes > MOST_NAMES_BYTES {
        bail!(
            "{archive}, member {}: {} bytes are too many for names of classes",
            member.path,
            member.bytes
        );
    }
    let mut text = String::new();
    tar.read_to_string(&mut text)
        .with_context(|| format!("could not read {archive}, member {}", member.path))?;
    Ok(text
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect())
}
