//! The readers of recipes: each turns sources into raw examples, and those into values.

mod cifar;
mod files;
mod idx;
mod imagenet;
mod label_lists;
mod pack;
mod pets;
mod recode;
pub(crate) mod rows;
mod stl10;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use anyhow::Result;
use prep_catalog::manifest::SourceManifest;
use prep_formats::value::Value;

use crate::builder::{Builder, DatasetSpec, Decoded, Input, Known, Layout, Making, Output, Raw, Source};
use crate::fetch::Checksum;
use crate::readers::rows::stay::Stays;
use crate::recipe::{ReaderSpec, Recipe, SplitFiles};

pub(crate) use pets::{PET_FEATURES, PET_SOURCES};

/// Raise when a reader makes other values of the same bytes than before: builds of the old are then not "up to date".
const REVISION: u32 = 1;

/// A builder that does what a recipe says.
#[derive(Debug)]
pub struct RecipeBuilder {
    recipe: Recipe,
    reader: Reader,
}

#[derive(Debug)]
enum Reader {
    Cifar(cifar::Cifar),
    Files(files::Files),
    Idx(idx::Idx),
    LabelLists(label_lists::LabelLists),
    Pets(pets::Pets),
    Stl10(stl10::Stl10),
    Imagenet(imagenet::Imagenet),
    Rows(Box<rows::Table>),
}

impl RecipeBuilder {
    /// A builder for this recipe.
    pub fn new(recipe: Recipe) -> Self {
        let reader = match &recipe.reader {
            ReaderSpec::Cifar { .. } => Reader::Cifar(cifar::Cifar::new(&recipe)),
            ReaderSpec::Files { .. } => Reader::Files(files::Files::new(&recipe)),
            ReaderSpec::Idx { .. } => Reader::Idx(idx::Idx::new(&recipe)),
            ReaderSpec::LabelLists { .. } => Reader::LabelLists(label_lists::LabelLists::new(&recipe)),
            ReaderSpec::OxfordPets => Reader::Pets(pets::Pets::new(&recipe)),
            ReaderSpec::Stl10 { .. } => Reader::Stl10(stl10::Stl10::new(&recipe)),
            ReaderSpec::Imagenet { .. } => Reader::Imagenet(imagenet::Imagenet::new(&recipe)),
            ReaderSpec::Rows(spec) => {
                Reader::Rows(Box::new(rows::Table::new(spec, &recipe.spec, &recipe.files)))
            }
        };
        Self { recipe, reader }
    }

    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The same with the files that its sources stand for now; `None` where the reader is none of rows.
    pub(crate) fn found(&self, from: &[String]) -> Result<Option<Self>> {
        let Reader::Rows(table) = &self.reader else {
            return Ok(None);
        };
        let (table, sources) = table.with_files(&self.recipe.spec, from)?;
        let mut recipe = self.recipe.clone();
        recipe.spec.sources = sources;
        if recipe.spec.splits.is_empty() {
            for name in table.split_names() {
                recipe.spec = recipe.spec.split(name);
                recipe.files.push(SplitFiles::default());
            }
        }
        Ok(Some(Self {
            recipe,
            reader: Reader::Rows(Box::new(table)),
        }))
    }

    /// What of it can stay where it is, once its files are known.
    ///
    /// # Errors
    /// As `Table::stays`.
    pub(crate) fn stays(&self) -> Result<Stays> {
        match &self.reader {
            Reader::Rows(table) => table.stays(&self.recipe.spec),
            _ => anyhow::bail!("this reader makes records of its own"),
        }
    }
}

impl Builder for RecipeBuilder {
    fn spec(&self) -> &DatasetSpec {
        &self.recipe.spec
    }

    fn identity(&self) -> String {
        let recipe = &self.recipe;
        if let Reader::Rows(table) = &self.reader {
            return format!("rows revision {REVISION}: {}", table.identity());
        }
        format!(
            "recipe revision {REVISION}: {:?}, {:?}, {:?}",
            recipe.reader, recipe.files, recipe.texts
        )
    }

    fn inputs(&self) -> Vec<Vec<usize>> {
        match &self.reader {
            Reader::Cifar(_) | Reader::LabelLists(_) | Reader::Stl10(_) => vec![vec![0]],
            // Archives are read side by side.
            Reader::Files(_) => (0..self.recipe.spec.sources.len())
                .map(|index| vec![index])
                .collect(),
            Reader::Idx(reader) => reader.inputs(),
            Reader::Pets(reader) => reader.inputs(),
            Reader::Imagenet(reader) => reader.inputs(),
            Reader::Rows(table) => table.inputs(self.recipe.spec.sources.len()),
        }
    }

    fn with_files(&self, from: &[String]) -> Result<Option<Arc<dyn Builder>>> {
        let found = self.found(from)?;
        Ok(found.map(|found| Arc::new(found) as Arc<dyn Builder>))
    }

    fn learn(&self, sources: &[Source], known: &[Option<Known>], workers: usize) -> Result<Option<String>> {
        match &self.reader {
            Reader::Rows(table) => Ok(Some(table.learn(sources, known, workers)?)),
            _ => Ok(None),
        }
    }

    fn making(&self, sums: &[Checksum]) -> Result<Option<Making>> {
        let spec = &self.recipe.spec;
        match &self.reader {
            Reader::Rows(table) if spec.layout == Layout::BySource => {
                table.making(spec, &format!("rows revision {REVISION}"), sums)
            }
            _ => Ok(None),
        }
    }

    fn recipe_text(&self) -> Option<&str> {
        Some(&self.recipe.text)
    }

    fn added_to(&self, earlier: &[SourceManifest]) -> Result<Option<Arc<dyn Builder>>> {
        let Reader::Rows(table) = &self.reader else {
            return Ok(None);
        };
        let (table, sources) = table.added_to(&self.recipe.spec, earlier)?;
        let mut recipe = self.recipe.clone();
        recipe.spec.sources = sources;
        Ok(Some(Arc::new(Self {
            recipe,
            reader: Reader::Rows(Box::new(table)),
        })))
    }

    fn with_learned(&self, learned: &str) -> Result<Arc<dyn Builder>> {
        let Reader::Rows(table) = &self.reader else {
            anyhow::bail!("this recipe learns nothing from its sources");
        };
        let (table, features) = table.with_learned(&self.recipe.spec, learned)?;
        let mut recipe = self.recipe.clone();
        recipe.spec.features = features;
        Ok(Arc::new(Self {
            recipe,
            reader: Reader::Rows(Box::new(table)),
        }))
    }

    fn keeps_all(&self) -> bool {
        match &self.reader {
            Reader::Rows(table) => table.keeps_all(),
            _ => false,
        }
    }

    fn notes(&self) -> Option<String> {
        match &self.reader {
            Reader::Rows(table) => table.notes(),
            _ => None,
        }
    }

    fn decode_and_place(&self, raw: &Raw) -> Result<Decoded<'_>> {
        match &self.reader {
            Reader::Rows(table) => table.decode(&self.recipe.spec, raw),
            _ => Ok(Decoded::Example(self.decode(raw)?)),
        }
    }

    fn payload(&self) -> Option<&str> {
        match &self.reader {
            Reader::Imagenet(reader) => Some(reader.payload()),
            _ => None,
        }
    }

    /// Without the splits of which a source is not there.
    fn with_sources(&self, present: &[bool]) -> Option<Arc<dyn Builder>> {
        let mut recipe = self.recipe.clone();
        let absent: Vec<String> = recipe
            .spec
            .sources
            .iter()
            .zip(present)
            .filter(|(_, present)| !**present)
            .map(|(source, _)| source.name.clone())
            .collect();
        let kept: Vec<bool> = recipe
            .files
            .iter()
            .map(|split| !split.files.iter().any(|file| absent.contains(file)))
            .collect();
        let mut splits = kept.iter();
        recipe.spec.splits.retain(|_| *splits.next().unwrap_or(&true));
        let mut files = kept.iter();
        recipe.files.retain(|_| *files.next().unwrap_or(&true));
        recipe
            .spec
            .sources
            .retain(|source| !absent.contains(&source.name));
        if recipe.spec.splits.is_empty() || recipe.spec.sources.is_empty() {
            return None;
        }
        Some(Arc::new(Self::new(recipe)))
    }

    fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        match &self.reader {
            Reader::Cifar(reader) => reader.read(input, output),
            Reader::Files(reader) => reader.read(self.recipe.spec.sources.len(), input, output),
            Reader::Idx(reader) => reader.read(input, output),
            Reader::LabelLists(reader) => reader.read(input, output),
            Reader::Pets(reader) => reader.read(input, output),
            Reader::Stl10(reader) => reader.read(input, output),
            Reader::Imagenet(reader) => reader.read(input, output),
            Reader::Rows(table) => table.read(input, output),
        }
    }

    fn has_fixed_size(&self) -> bool {
        matches!(self.reader, Reader::Cifar(_) | Reader::Idx(_) | Reader::Stl10(_))
    }

    fn name_of(&self, raw: &Raw) -> Option<String> {
        match &self.reader {
            Reader::Files(reader) => reader.name_of(raw),
            Reader::LabelLists(reader) => reader.name_of(raw),
            _ => None,
        }
    }

    fn names_in(&self, source: &Source, records: &[u64]) -> Result<Vec<Option<String>>> {
        match &self.reader {
            Reader::Files(_) | Reader::LabelLists(_) => files::paths_at(source, records),
            _ => Ok(vec![None; records.len()]),
        }
    }

    fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>> {
        let mut values = Vec::with_capacity(4);
        match &self.reader {
            Reader::Cifar(reader) => reader.decode(raw, &mut values)?,
            Reader::Files(reader) => {
                reader.decode(raw, &self.recipe.texts, &mut values)?;
                return Ok(values);
            }
            Reader::Idx(reader) => reader.decode(raw, &mut values),
            Reader::LabelLists(reader) => reader.decode(raw, &mut values)?,
            Reader::Pets(reader) => reader.decode(raw, &mut values)?,
            Reader::Stl10(reader) => reader.decode(raw, &mut values)?,
            Reader::Imagenet(reader) => reader.decode(raw, &mut values)?,
            Reader::Rows(table) => {
                return match table.decode(&self.recipe.spec, raw)? {
                    Decoded::Example(values)
                    | Decoded::Placed(values, ..)
                    | Decoded::ByContent(values, ..) => Ok(values),
                    Decoded::LeftOut => anyhow::bail!("the recipe leaves it out"),
                };
            }
        }
        let index = match raw.key {
            crate::tfds::Key::Int(index) => u64::try_from(index).unwrap_or(raw.record),
            _ => raw.record,
        };
        let split = &self.recipe.spec.splits[raw.split].name;
        for (name, template) in &self.recipe.texts {
            let text = template.render(split, index);
            values.push((name, Value::Bytes(text.into_bytes().into())));
        }
        Ok(values)
    }
}
