//! ImageNet's archives of ILSVRC 2012, as they are downloaded: a tar of one tar a class, and two flat ones.
//!
//! Only the headers of members are read, several of the inner tars at a time; the pictures stay where they are until their shard is
//! written. An example's key is its path in the (inner) archive, as TFDS has it. Some twenty files are not RGB JPEGs, and are made such
//! as TFDS does: see [`repair`]. Labels of the validation split are known by the position of a file among the sorted names of all.
//!
//! Source: TFDS 4.9, `datasets/imagenet2012/imagenet2012_dataset_builder.py` and `imagenet_common.py`.

mod repair;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read};

use anyhow::{Context, Result, bail};
use prep_formats::features::Feature;
use prep_formats::value::Value;

use crate::archive::{LeftOut, Member, MemberKind, Section, Tar, normal_path};
use crate::builder::{Input, Output, Raw, Source};
use crate::error::Hinted;
use crate::recipe::{ReaderSpec, Recipe, near};
use crate::tfds::Key;

/// So many threads at most list inner tars at the same time.
const LANES: usize = 8;
/// Pictures of the whole validation split.
const VALIDATION_PICTURES: usize = 50_000;
/// Members that are left out of which each is told.
const MOST_TOLD: u64 = 5;
/// Largest file that is repaired: those there are have less than 2 MB.
const MOST_REPAIRED_BYTES: u64 = 64 << 20;
/// Classes of the validation pictures, by the order of their names: four a time, 10 bits each, in 5 bytes, little-endian.
///
/// Source: `datasets/imagenet2012/validation_labels.txt` in TFDS 4.9, with classes by their position among the sorted synsets.
const VALIDATION_LABELS: &[u8] = include_bytes!("validation_labels.bin");
/// CMYK JPEGs, and the PNG: written anew as RGB JPEG. Source: `CMYK_IMAGES` and `PNG_IMAGES` of TFDS's builder.
const REPAIRED: [&str; 23] = [
    "n01739381_1309.JPEG",
    "n02077923_14822.JPEG",
    "n02105855_2933.JPEG",
    "n02447366_23489.JPEG",
    "n02492035_15739.JPEG",
    "n02747177_10752.JPEG",
    "n03018349_4028.JPEG",
    "n03062245_4620.JPEG",
    "n03347037_9675.JPEG",
    "n03467068_12171.JPEG",
    "n03529860_11437.JPEG",
    "n03544143_17228.JPEG",
    "n03633091_5218.JPEG",
    "n03710637_5125.JPEG",
    "n03961711_5286.JPEG",
    "n04033995_2932.JPEG",
    "n04258138_17003.JPEG",
    "n04264628_27969.JPEG",
    "n04336792_7448.JPEG",
    "n04371774_5854.JPEG",
    "n04596742_4225.JPEG",
    "n07583066_647.JPEG",
    "n13037406_4650.JPEG",
];

/// Reads ILSVRC 2012's archives as a recipe says.
#[derive(Debug)]
pub(super) struct Imagenet {
    image: String,
    label: String,
    file_name: String,
    /// Position of each class.
    classes: HashMap<String, u64>,
    /// What each input is: split, its source, and what is read of it.
    inputs: Vec<(usize, usize, Part)>,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    /// Every so manyeth inner tar.
    Train {
        lane: usize,
    },
    Validation,
    Test,
}

impl Imagenet {
    pub(super) fn new(recipe: &Recipe) -> Self {
        let ReaderSpec::Imagenet {
            image,
            label,
            file_name,
        } = &recipe.reader
        else {
            unreachable!("the reader was chosen by its kind")
        };
        let names = recipe
            .spec
            .features
            .iter()
            .find_map(|(name, feature)| match feature {
                Feature::ClassLabel { names, .. } if name == label => Some(names.as_slice()),
                _ => None,
            });
        let mut inputs = Vec::new();
        for (split, (spec, files)) in recipe.spec.splits.iter().zip(&recipe.files).enumerate() {
            let source = |file: &String| recipe.spec.sources.iter().position(|source| source.name == *file);
            for source in files.files.iter().filter_map(source) {
                match spec.name.as_str() {
                    "train" => inputs.extend((0..LANES).map(|lane| (split, source, Part::Train { lane }))),
                    "validation" => inputs.push((split, source, Part::Validation)),
                    _ => inputs.push((split, source, Part::Test)),
                }
            }
        }
        Self {
            image: image.clone(),
            label: label.clone(),
            file_name: file_name.clone(),
            classes: names.unwrap_or_default().iter().cloned().zip(0..).collect(),
            inputs,
        }
    }

    pub(super) fn inputs(&self) -> Vec<Vec<usize>> {
        self.inputs.iter().map(|(_, source, _)| vec![*source]).collect()
    }

    pub(super) fn payload(&self) -> &str {
        &self.image
    }

    pub(super) fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let source = input.sources[0];
        let Some((split, _, part)) = self.inputs.get(input.index).copied() else {
            bail!("there is no input {}", input.index);
        };
        if source.is_packed()? {
            return Err(Hinted::new(
                format!("{} is packed by gzip", source.path().display()),
                "unpack it with `gunzip`: members can be read where they are then",
            )
            .into());
        }
        match part {
            Part::Train { lane } => self.read_train(source, split, lane, output),
            Part::Validation => read_validation(source, split, output),
            Part::Test => {
                let part = output.part(&source.name);
                let mut archive = Pictures::new(source, &source.name, source.section()?, split, part);
                while let Some(picture) = archive.next(output)? {
                    picture.emit(&archive, NO_LABEL, output)?;
                }
                Ok(())
            }
        }
    }

    fn read_train(&self, source: &Source, split: usize, lane: usize, output: &mut Output<'_>) -> Result<()> {
        let pictures = source.section()?;
        let mut outer = Tar::new(&source.name, source.section_again()?);
        let mut seen = HashSet::new();
        let mut ordinal = 0;
        // Whether the first lane has told what is missing at the end of a file that is cut short.
        let mut told = false;
        let mut others = 0;
        loop {
            let member = match outer.next_member() {
                Ok(Some(member)) => member,
                Ok(None) => break,
                // What comes behind a cut is lost, and no lane can go on; the first one says so.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    if lane == 0 && !told {
                        let part = output.part(&source.name);
                        output.fault(split, part, ordinal, &error.to_string())?;
                    }
                    return Ok(());
                }
                Err(error) => {
                    return Err(anyhow::Error::new(error).context(Hinted::new(
                        format!("{} is damaged between its members", source.path().display()),
                        "get the file again: what follows cannot be found",
                    )));
                }
            };
            let Some(path) = normal_path(&member.path).filter(|_| member.kind == MemberKind::File) else {
                continue;
            };
            let name = path.rsplit('/').next().unwrap_or(&path);
            let Some(class) = name.strip_suffix(".tar") else {
                others += 1;
                if lane == 0 && others <= MOST_TOLD {
                    output.warn(&format!(
                        "{}: {path} is no tar of a class, and is left out",
                        source.name
                    ));
                }
                continue;
            };
            let Some(label) = self.classes.get(class).copied() else {
                let near = near(class, self.classes.keys().map(String::as_str));
                let hint = match near.first() {
                    Some(near) => format!("is `{near}` meant?"),
                    None => "members are tars named as the classes are, `n01440764.tar`".to_owned(),
                };
                let message = format!("{}, member {path}: `{class}` is none of the classes", source.name);
                return Err(Hinted::new(message, hint).into());
            };
            if !seen.insert(label) {
                bail!("{} has the member {path} twice", source.name);
            }
            let is_cut = member.bytes > source.bytes().saturating_sub(member.data_offset);
            // A tar that is cut short is the first lane's, so that one lane knows all of what is missing.
            if (is_cut && lane == 0) || (!is_cut && ordinal as usize % LANES == lane) {
                let name = format!("{}, {path}", source.name);
                let section = pictures.part(&name, member.data_offset, member.bytes);
                let part = output.part(&name);
                let mut archive = Pictures::new(source, &name, section, split, part);
                while let Some(picture) = archive.next(output)? {
                    picture.emit(&archive, label, output)?;
                }
                told |= archive.is_damaged;
            }
            ordinal += 1;
        }
        if lane == 0 && others > MOST_TOLD {
            let more = others - MOST_TOLD;
            output.warn(&format!(
                "{}: {more} more members are no tars of a class, and are left out",
                source.name
            ));
        }
        if lane == 0 && seen.len() < self.classes.len() {
            output.warn(&format!(
                "{} has the pictures of {} classes; there are {}",
                source.path().display(),
                seen.len(),
                self.classes.len()
            ));
        }
        Ok(())
    }

    pub(super) fn decode<'a>(&'a self, raw: &Raw, values: &mut Vec<(&'a str, Value)>) -> Result<()> {
        let Key::Text(name) = &raw.key else {
            bail!("the key is not a file name");
        };
        let label = if raw.tag == NO_LABEL { -1 } else { raw.tag as i64 };
        values.push((&self.file_name, Value::Bytes(name.clone().into_bytes().into())));
        values.push((&self.image, Value::Bytes(raw.data.clone())));
        values.push((&self.label, Value::Int(label)));
        Ok(())
    }
}

/// Stands for a label that nobody knows.
const NO_LABEL: u64 = u64::MAX;

fn read_validation(source: &Source, split: usize, output: &mut Output<'_>) -> Result<()> {
    let part = output.part(&source.name);
    let mut archive = Pictures::new(source, &source.name, source.section()?, split, part);
    let mut found = Vec::new();
    while let Some(picture) = archive.next(output)? {
        found.push(picture);
    }
    // All names count, also those of files that are left out.
    let names: BTreeMap<&str, usize> = archive.names.iter().map(String::as_str).zip(0..).collect();
    let shown = source.path().display();
    if let Some(name) = names
        .keys()
        .find(|name| last_part(name).starts_with("ILSVRC2012_test_"))
    {
        return Err(Hinted::new(
            format!("{shown} has {name}, which is a picture of the test split: its labels are not known"),
            format!(
                "is this `ILSVRC2012_img_test.tar` under the name of `{}`?",
                source.name
            ),
        )
        .into());
    }
    let positions: HashMap<&str, usize> = if archive.is_damaged {
        // Names are missing, so positions among them say nothing; but the numbers in names do.
        let all = names.keys().map(|name| Some((*name, numbered(name)?)));
        all.collect::<Option<_>>().with_context(|| {
            format!("{shown} is damaged, and without all names of its files their labels are not known")
        })?
    } else {
        names.keys().copied().zip(0..).collect()
    };
    if let Some(name) = positions
        .iter()
        .filter(|(_, position)| **position >= VALIDATION_PICTURES)
        .map(|(name, _)| name)
        .min()
    {
        bail!(
            "{shown} has {} pictures, of which {VALIDATION_PICTURES} have a label, and `{name}` none",
            names.len()
        );
    }
    if names.len() < VALIDATION_PICTURES {
        output.warn(&format!(
            "{shown} has {} pictures; the validation split has {VALIDATION_PICTURES}",
            names.len()
        ));
    }
    let shifted = |(name, position): &(&&str, &usize)| numbered(name) != Some(**position);
    if let Some((name, position)) = positions
        .iter()
        .filter(shifted)
        .min_by_key(|(_, position)| **position)
    {
        let question = if numbered(name).is_some() {
            "are files missing?"
        } else {
            "it is not named `ILSVRC2012_val_` and eight digits, so nobody can tell whether its label is right"
        };
        output.warn(&format!(
            "{shown}: labels go by the position among the sorted names, as TFDS has it, and {name} is at position {}: {question}",
            position + 1
        ));
    }
    for picture in found {
        let label = positions
            .get(picture.name.as_str())
            .and_then(|position| validation_label(*position))
            .context("a picture has no label")?;
        picture.emit(&archive, label, output)?;
    }
    Ok(())
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The position, from 0, that a validation picture's name says.
fn numbered(path: &str) -> Option<usize> {
    let number = last_part(path)
        .strip_prefix("ILSVRC2012_val_")?
        .strip_suffix(".JPEG")?;
    let is_number = number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<usize>().ok().filter(|_| is_number)?.checked_sub(1)
}

/// The class of a validation picture, by its position among the sorted names.
fn validation_label(position: usize) -> Option<u64> {
    let group = VALIDATION_LABELS.get(position / 4 * 5..position / 4 * 5 + 5)?;
    let mut word = [0; 8];
    word[..5].copy_from_slice(group);
    Some(u64::from_le_bytes(word) >> (position % 4 * 10) & 0x3ff)
}

/// A file of an archive that is a picture, or has to be made one.
struct Picture {
    name: String,
    member: Member,
    record: u64,
    is_repaired: bool,
}

/// Goes over the pictures of a tar archive, by its headers.
struct Pictures<'a> {
    source: &'a Source,
    name: &'a str,
    split: usize,
    part: u32,
    section: Section,
    tar: Tar<Section>,
    record: u64,
    /// All names so far.
    names: HashSet<String>,
    /// Whether what follows could not be read.
    is_damaged: bool,
    /// Whether it was told that there are other files.
    told: bool,
    left_out: LeftOut,
}

impl<'a> Pictures<'a> {
    fn new(source: &'a Source, name: &'a str, section: Section, split: usize, part: u32) -> Self {
        Self {
            source,
            name,
            split,
            part,
            tar: Tar::new(name, section.part(name, 0, section.size())),
            section,
            record: 0,
            names: HashSet::new(),
            is_damaged: false,
            told: false,
            left_out: LeftOut::default(),
        }
    }

    /// The next picture; what is damaged is reported.
    fn next(&mut self, output: &mut Output<'_>) -> Result<Option<Picture>> {
        while !self.is_damaged {
            let member = match self.tar.next_member() {
                Ok(Some(member)) => member,
                Ok(None) => {
                    if let Some(text) = self.left_out.text(self.name) {
                        output.warn(&text);
                    }
                    return Ok(None);
                }
                Err(error) => {
                    use io::ErrorKind::{InvalidData, UnexpectedEof};
                    if !matches!(error.kind(), InvalidData | UnexpectedEof) {
                        return Err(error.into());
                    }
                    self.is_damaged = true;
                    output.fault(self.split, self.part, self.record, &error.to_string())?;
                    break;
                }
            };
            let Some(name) = self.left_out.path_of(&member) else {
                continue;
            };
            let file_name = name.rsplit('/').next().unwrap_or(&name);
            let extension = file_name.rsplit_once('.').map_or("", |(_, end)| end);
            if !["jpeg", "jpg"]
                .iter()
                .any(|end| extension.eq_ignore_ascii_case(end))
            {
                if !self.told {
                    self.told = true;
                    output.warn(&format!(
                        "{}: {name} is left out, as is all whose name does not end in `.JPEG`",
                        self.name
                    ));
                }
                continue;
            }
            let record = self.record;
            self.record += 1;
            let room = self.section.size().saturating_sub(member.data_offset);
            if member.bytes > room {
                self.is_damaged = true;
                let reason = format!(
                    "{}, member {name} at byte {}: the archive is cut short, {room} of its {} bytes are there",
                    self.name, member.offset, member.bytes
                );
                output.fault(self.split, self.part, record, &reason)?;
                break;
            }
            let is_repaired = REPAIRED.binary_search(&file_name).is_ok();
            let mut start = [0; 8];
            let length = start.len().min(member.bytes as usize);
            self.tar.read_exact(&mut start[..length])?;
            let fault = if self.names.contains(&name) {
                Some("the archive has a member of this name already".to_owned())
            } else {
                what_is_wrong(&start[..length], is_repaired)
            };
            self.names.insert(name.clone());
            if let Some(fault) = fault {
                let reason = format!("{}, member {name} at byte {}: {fault}", self.name, member.offset);
                output.fault(self.split, self.part, record, &reason)?;
                continue;
            }
            return Ok(Some(Picture {
                name,
                member,
                record,
                is_repaired,
            }));
        }
        Ok(None)
    }
}

impl Picture {
    fn emit(self, archive: &Pictures<'_>, label: u64, output: &mut Output<'_>) -> Result<()> {
        let Member {
            offset,
            data_offset,
            bytes,
            ..
        } = self.member;
        let raw = if self.is_repaired {
            match self.repaired(&archive.section) {
                Ok(data) => Raw::new(archive.split, self.record, archive.part, data),
                Err(error) => {
                    let name = &self.name;
                    let reason = format!("{}, member {name} at byte {offset}: {error:#}", archive.name);
                    return output.fault(archive.split, archive.part, self.record, &reason);
                }
            }
        } else {
            let extent = archive
                .source
                .extent(archive.section.start() + data_offset, bytes);
            Raw::at(archive.split, self.record, archive.part, extent)
        };
        output.emit(raw.with_key(self.name).with_tag(label))
    }

    fn repaired(&self, section: &Section) -> Result<Vec<u8>> {
        let bytes = self.member.bytes;
        if bytes > MOST_REPAIRED_BYTES {
            bail!("it has {bytes} bytes; at most {MOST_REPAIRED_BYTES} are decoded");
        }
        let mut data = vec![0; bytes as usize];
        section.read_exact_at(self.member.data_offset, &mut data)?;
        repair::to_rgb_jpeg(&data)
    }
}

/// Says what a file is that should be a JPEG, by its first bytes.
fn what_is_wrong(start: &[u8], is_repaired: bool) -> Option<String> {
    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
    match start {
        [0xff, 0xd8, 0xff, ..] => None,
        _ if is_repaired && start == PNG => None,
        [] => Some("the file is empty".to_owned()),
        _ if start == PNG => Some("the file is a PNG, and none of those that are known to be".to_owned()),
        _ => Some(format!(
            "the file is no JPEG: it begins with `{}`",
            start.escape_ascii()
        )),
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn validation_labels_are_fifty_for_each_class() {
        let mut counts = vec![0; 1000];
        for position in 0..VALIDATION_PICTURES {
            counts[validation_label(position).unwrap() as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count == 50));
        assert_eq!(validation_label(VALIDATION_PICTURES), None);
        assert_eq!(validation_label(usize::MAX / 8), None);
        // The first three lines of TFDS's list: n01751748, n09193705, n02105855.
        assert_eq!([0, 1, 2].map(validation_label), [Some(65), Some(970), Some(230)]);
    }

    #[test]
    fn what_is_no_jpeg_is_told_by_its_beginning() {
        assert_eq!(what_is_wrong(b"\xff\xd8\xff\xe0....", false), None);
        assert_eq!(what_is_wrong(b"\x89PNG\r\n\x1a\n", true), None);
        assert!(
            what_is_wrong(b"\x89PNG\r\n\x1a\n", false)
                .unwrap()
                .contains("a PNG")
        );
        assert!(what_is_wrong(b"", true).unwrap().contains("empty"));
        assert!(what_is_wrong(b"GIF89a..", true).unwrap().contains("`GIF89a..`"));
        assert!(what_is_wrong(b"\xff\xd8", false).unwrap().contains("no JPEG"));
        assert!(REPAIRED.is_sorted());
    }
}
