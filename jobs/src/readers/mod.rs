//! The readers of recipes: each turns sources into raw examples, and those into values.

mod cifar;
mod idx;

use anyhow::Result;
use prep_formats::value::Value;

use crate::builder::{Builder, DatasetSpec, Input, Output, Raw};
use crate::recipe::{ReaderSpec, Recipe};

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
    Idx(idx::Idx),
}

impl RecipeBuilder {
    /// A builder for this recipe.
    pub fn new(recipe: Recipe) -> Self {
        let reader = match &recipe.reader {
            ReaderSpec::Cifar { .. } => Reader::Cifar(cifar::Cifar::new(&recipe)),
            ReaderSpec::Idx { .. } => Reader::Idx(idx::Idx::new(&recipe)),
        };
        Self { recipe, reader }
    }

    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }
}

impl Builder for RecipeBuilder {
    fn spec(&self) -> &DatasetSpec {
        &self.recipe.spec
    }

    fn identity(&self) -> String {
        let recipe = &self.recipe;
        format!(
            "recipe revision {REVISION}: {:?}, {:?}, {:?}",
            recipe.reader, recipe.files, recipe.texts
        )
    }

    fn inputs(&self) -> Vec<Vec<usize>> {
        match &self.reader {
            Reader::Cifar(_) => vec![vec![0]],
            Reader::Idx(reader) => reader.inputs(),
        }
    }

    fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        match &self.reader {
            Reader::Cifar(reader) => reader.read(input, output),
            Reader::Idx(reader) => reader.read(input, output),
        }
    }

    fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>> {
        let mut values = Vec::with_capacity(4);
        match &self.reader {
            Reader::Cifar(reader) => reader.decode(raw, &mut values)?,
            Reader::Idx(reader) => reader.decode(raw, &mut values),
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
