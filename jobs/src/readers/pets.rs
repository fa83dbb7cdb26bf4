//! The Oxford-IIIT pets: an archive of pictures, and one of annotations.
//!
//! The annotations are read first and held: lists, boxes and trimaps, some 30 MB in the real archive. Then the pictures come by as a
//! stream, in whatever order.
//!
//! Source: <https://www.robots.ox.ac.uk/~vgg/data/pets/>; `oxford_iiit_pet_dataset_builder.py` of TFDS 4.9, also for which pictures
//! are written anew.

use std::collections::HashMap;
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use prep_formats::value::Value;

use crate::archive::{each_file, lost, read_after, read_all};
use crate::builder::{Input, Output, Raw, Source};
use crate::error::Hinted;
use crate::readers::pack::{pack, unpack};
use crate::readers::recode;
use crate::recipe::{Recipe, near};

/// Names of the sources: pictures, annotations.
pub(crate) const PET_SOURCES: [&str; 2] = ["images.tar.gz", "annotations.tar.gz"];
/// Names of the features.
pub(crate) const PET_FEATURES: [&str; 6] = [
    "file_name",
    "head_bbox",
    "image",
    "label",
    "segmentation_mask",
    "species",
];

/// Most bytes of annotations that are held; the real ones have a tenth of it.
const MOST_ANNOTATION_BYTES: u64 = 256 << 20;
/// Largest picture that is believed.
const MOST_PICTURE_BYTES: u64 = 256 << 20;

/// Pictures whose files make decoders complain: PNG files under another name, and damaged JPEG. TFDS decodes and writes them anew.
const WRITTEN_ANEW: [&str; 12] = [
    "Abyssinian_34",
    "Abyssinian_5",
    "Egyptian_Mau_139",
    "Egyptian_Mau_14",
    "Egyptian_Mau_145",
    "Egyptian_Mau_156",
    "Egyptian_Mau_167",
    "Egyptian_Mau_177",
    "Egyptian_Mau_186",
    "Egyptian_Mau_191",
    "beagle_116",
    "chihuahua_121",
];

/// Reads the pets.
#[derive(Debug)]
pub(super) struct Pets {
    /// Sources of pictures and of annotations.
    sources: Vec<usize>,
    /// For each split the names of its lists.
    lists: Vec<Vec<String>>,
}

/// What the annotations say of a picture.
#[derive(Debug)]
struct Listed {
    split: usize,
    record: u64,
    label: i64,
    species: i64,
    seen: bool,
}

/// All annotations, by the name of the picture.
#[derive(Debug, Default)]
struct Annotations {
    listed: HashMap<String, Vec<Listed>>,
    trimaps: HashMap<String, Vec<u8>>,
    boxes: HashMap<String, [f32; 4]>,
    bytes: u64,
}

impl Pets {
    pub(super) fn new(recipe: &Recipe) -> Self {
        let position = |name: &&str| {
            recipe
                .spec
                .sources
                .iter()
                .position(|source| source.name == **name)
        };
        Self {
            sources: PET_SOURCES.iter().filter_map(position).collect(),
            lists: recipe.files.iter().map(|split| split.files.clone()).collect(),
        }
    }

    pub(super) fn inputs(&self) -> Vec<Vec<usize>> {
        vec![self.sources.clone()]
    }

    fn annotations(&self, source: &Source) -> Result<Annotations> {
        let mut all = Annotations::default();
        let mut lists = Vec::new();
        let mut others = Vec::new();
        each_file(source, true, &mut |member, data| {
            let Some(path) = member.path.strip_prefix("annotations/") else {
                return Ok(ControlFlow::Continue(()));
            };
            let list = self
                .lists
                .iter()
                .enumerate()
                .find(|(_, lists)| lists.iter().any(|list| list == path));
            let trimap = path
                .strip_prefix("trimaps/")
                .and_then(|name| name.strip_suffix(".png"));
            let corners = path
                .strip_prefix("xmls/")
                .and_then(|name| name.strip_suffix(".xml"));
            if list.is_none() && trimap.is_none() && corners.is_none() {
                others.push(path.to_owned());
                return Ok(ControlFlow::Continue(()));
            }
            let left = MOST_ANNOTATION_BYTES - all.bytes;
            let bytes = read_all(&source.name, member, data, left)?;
            all.bytes += bytes.len() as u64;
            let place = || format!("{}, member {}", source.name, member.path);
            if let Some((split, _)) = list {
                let text = String::from_utf8(bytes).with_context(place)?;
                for (index, line) in text.lines().enumerate() {
                    let (name, listed) = parse_line(line, split, index as u64)
                        .with_context(|| format!("{}, line {}", place(), index + 1))?;
                    all.listed.entry(name).or_default().push(listed);
                }
                lists.push(path.to_owned());
            } else if let Some(name) = trimap {
                all.trimaps.insert(name.to_owned(), bytes);
            } else if let Some(name) = corners {
                let text = String::from_utf8(bytes).with_context(place)?;
                all.boxes
                    .insert(name.to_owned(), parse_box(&text).with_context(place)?);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let missing: Vec<&String> = self
            .lists
            .iter()
            .flatten()
            .filter(|list| !lists.contains(list))
            .collect();
        if let Some(list) = missing.first() {
            let hint = match near(list, others.iter().map(String::as_str)).first() {
                Some(other) => format!("is its `annotations/{other}` meant?"),
                None => "is this the archive that the recipe means?".to_owned(),
            };
            bail!(Hinted::new(
                format!("{} has no member `annotations/{list}`", source.name),
                hint
            ));
        }
        Ok(all)
    }

    pub(super) fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let [pictures, annotations] = input.sources[..] else {
            bail!(
                "the pets are read from two archives, {}",
                PET_SOURCES.join(" and ")
            );
        };
        let mut all = self.annotations(annotations)?;
        // What is damaged: what is listed and does not come is lost with it.
        let mut damaged = None;
        let result = each_file(pictures, true, &mut |member, data| {
            let name = member
                .path
                .strip_prefix("images/")
                .and_then(|name| name.strip_suffix(".jpg"));
            let Some((name, listed)) = name.and_then(|name| Some((name, all.listed.get_mut(name)?))) else {
                return Ok(ControlFlow::Continue(()));
            };
            let mut picture = Vec::new();
            let read = read_after(&mut picture, &pictures.name, member, data, MOST_PICTURE_BYTES);
            if let Some(reason) = lost(read)? {
                damaged.get_or_insert(reason);
                return Ok(ControlFlow::Continue(()));
            }
            let part = output.part(&format!("{}, member {}", pictures.name, member.path));
            for listed in listed {
                listed.seen = true;
                let Some(trimap) = all.trimaps.get(name) else {
                    let reason = format!("{} has no trimap of it", annotations.name);
                    output.fault(listed.split, part, listed.record, &reason)?;
                    continue;
                };
                let corners = all.boxes.get(name).copied().unwrap_or_default();
                let mut facts = [listed.label, listed.species].map(i64::to_le_bytes).concat();
                facts.extend(corners.iter().flat_map(|corner| corner.to_le_bytes()));
                let mut packed = pack(&[name.as_bytes(), &facts, trimap], picture.len())?;
                packed.extend_from_slice(&picture);
                let raw = Raw::new(listed.split, listed.record, part, packed);
                output.emit(raw.with_key(format!("{name}.jpg")))?;
            }
            Ok(ControlFlow::Continue(()))
        });
        let damaged = lost(result)?.or(damaged);
        let mut missing: Vec<(&String, &Vec<Listed>)> = all
            .listed
            .iter()
            .filter(|(_, listed)| listed.iter().any(|listed| !listed.seen))
            .collect();
        missing.sort_unstable_by_key(|(name, _)| *name);
        if let Some(reason) = damaged {
            for (name, listed) in &missing {
                let part = output.part(&format!("{}, member images/{name}.jpg", pictures.name));
                for listed in *listed {
                    output.fault(
                        listed.split,
                        part,
                        listed.record,
                        &format!("it is lost: {reason}"),
                    )?;
                }
            }
            if missing.is_empty() {
                let part = output.part(&pictures.name);
                output.fault(0, part, 0, &reason)?;
            }
            return Ok(());
        }
        match missing.as_slice() {
            [] => Ok(()),
            [(first, _), rest @ ..] => {
                let more = match rest.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                bail!(
                    "{} has no member `images/{first}.jpg`{more}, which {} lists",
                    pictures.name,
                    annotations.name
                )
            }
        }
    }

    pub(super) fn decode<'a>(&'a self, raw: &Raw, values: &mut Vec<(&'a str, Value)>) -> Result<()> {
        let [name, facts, trimap, picture] = unpack(&raw.data)?;
        let name = std::str::from_utf8(&name)?;
        let Some((numbers, corners)) = facts.split_first_chunk::<16>() else {
            bail!("an example without all its parts");
        };
        let [label, species] = [0, 8].map(|at| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&numbers[at..at + 8]);
            i64::from_le_bytes(bytes)
        });
        let corners = corners.as_chunks::<4>().0.iter();
        let corners = corners.map(|bytes| Value::Float(f64::from(f32::from_le_bytes(*bytes))));
        let picture = if WRITTEN_ANEW.contains(&name) {
            Bytes::from(recode::as_jpeg(&picture)?)
        } else {
            picture
        };
        let [file_name, head_bbox, image, label_name, mask, species_name] = PET_FEATURES;
        values.push((file_name, Value::Bytes(format!("{name}.jpg").into_bytes().into())));
        values.push((head_bbox, Value::List(corners.collect())));
        values.push((image, Value::Bytes(picture)));
        values.push((label_name, Value::Int(label)));
        values.push((mask, Value::Bytes(trimap)));
        values.push((species_name, Value::Int(species)));
        Ok(())
    }
}

/// `Abyssinian_100 1 1 1`: name, class and species from 1, and a number that is not used.
fn parse_line(line: &str, split: usize, record: u64) -> Result<(String, Listed)> {
    let parts: Vec<&str> = line.trim().split(' ').collect();
    let [name, label, species, _] = parts[..] else {
        bail!("{} words, wanted name, class, species and breed", parts.len());
    };
    let number = |text: &str| -> Result<i64> {
        let number: i64 = text
            .parse()
            .with_context(|| format!("`{text}` is not a number"))?;
        Ok(number - 1)
    };
    let listed = Listed {
        split,
        record,
        label: number(label)?,
        species: number(species)?,
        seen: false,
    };
    Ok((name.to_owned(), listed))
}

/// The box of the first object: its corners over the size of the picture, top, left, bottom, right.
fn parse_box(xml: &str) -> Result<[f32; 4]> {
    let number = |inside: &str, name: &str| -> Result<f64> {
        let text = element(inside, name).with_context(|| format!("no `{name}`"))?;
        text.trim()
            .parse()
            .with_context(|| format!("`{name}` is `{text}`, wanted a number"))
    };
    let root = element(xml, "annotation").context("no `annotation`")?;
    let size = element(root, "size").context("no `size`")?;
    let (width, height) = (number(size, "width")?, number(size, "height")?);
    let object = element(root, "object").context("no `object`")?;
    let corners = element(object, "bndbox").context("no `bndbox`")?;
    let side = |name: &str, of: f64| -> Result<f32> { Ok((number(corners, name)? / of) as f32) };
    Ok([
        side("ymin", height)?,
        side("xmin", width)?,
        side("ymax", height)?,
        side("xmax", width)?,
    ])
}

/// What is inside the first element of this name, which has neither attributes nor itself inside.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_boxes_are_parsed_or_refused_in_words() {
        let (name, listed) = parse_line("pug_3 26 2 8\r", 1, 4).unwrap();
        assert_eq!(
            (name.as_str(), listed.label, listed.species, listed.record),
            ("pug_3", 25, 1, 4)
        );
        for bad in ["pug_3 26 2", "pug_3  26 2 8", "pug_3 x 2 8", ""] {
            assert!(parse_line(bad, 0, 0).is_err(), "{bad}");
        }
        let xml = "<annotation><size><width>100</width><height>50</height></size><object><bndbox><xmin>10</xmin><ymin>5</ymin>\
                   <xmax>90</xmax><ymax> 25 </ymax></bndbox></object></annotation>";
        assert_eq!(parse_box(xml).unwrap(), [0.1, 0.1, 0.5, 0.9]);
        for (from, to, said) in [
            ("<size>", "<sise>", "size"),
            ("90", "wide", "`xmax` is `wide`"),
            ("</annotation>", "", "annotation"),
        ] {
            let error = format!("{:#}", parse_box(&xml.replace(from, to)).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }
}
