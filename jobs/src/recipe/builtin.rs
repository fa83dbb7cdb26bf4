//! The recipes that come with the program.

use std::path::Path;

use crate::recipe::{Recipe, near, parse};

macro_rules! recipes {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../recipes/", $name, ".toml")))),*]
    };
}

/// Name and text of each.
const RECIPES: &[(&str, &str)] = recipes!["cifar10", "cifar100", "fashion_mnist", "kmnist", "mnist"];

/// The names of the built-in datasets, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|(name, _)| *name)
}

/// The text of a built-in recipe, a start for one of your own.
pub fn text(name: &str) -> Option<&'static str> {
    RECIPES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, text)| *text)
}

/// No built-in dataset has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no built-in dataset `{name}`")]
pub struct UnknownDataset {
    /// What was asked for.
    pub name: String,
    /// Names that are near.
    pub near: Vec<&'static str>,
}

impl UnknownDataset {
    /// What the user may have meant.
    pub fn hint(&self) -> String {
        match self.near.as_slice() {
            [] => {
                let all: Vec<String> = names().map(|name| format!("`{name}`")).collect();
                format!(
                    "the built-in datasets are {}; for your own data give the path of a recipe, `my_data.toml`",
                    all.join(", ")
                )
            }
            near => {
                let near: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
                format!("did you mean {}?", near.join(" or "))
            }
        }
    }
}

/// The built-in recipe of this name.
///
/// # Errors
/// No dataset has the name; the error holds near ones.
///
/// # Panics
/// If a recipe in the program is faulty, which a test rules out.
pub fn find(name: &str) -> Result<Recipe, UnknownDataset> {
    let Some(text) = text(name) else {
        return Err(UnknownDataset {
            name: name.to_owned(),
            near: near(name, names()),
        });
    };
    Ok(parse(name, text, Path::new(""))
        .unwrap_or_else(|error| panic!("a built-in recipe is faulty: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_recipes_parse_and_have_their_names() {
        assert!(names().is_sorted());
        for name in names() {
            let recipe = find(name).unwrap();
            assert_eq!(recipe.spec.name, name);
            assert!(
                recipe
                    .spec
                    .sources
                    .iter()
                    .all(|source| source.sha256.is_some() && source.bytes.is_some())
            );
            assert!(recipe.spec.splits.iter().all(|split| split.shards == Some(1)));
            assert_eq!(recipe.spec.options, "group_size:1,uncompressed");
            assert_eq!(
                recipe.spec.supervised_keys,
                Some(("image".to_owned(), "label".to_owned()))
            );
        }
        assert_eq!(find("cifar100").unwrap().spec.version, "3.0.2");
        assert_eq!(find("kmnist").unwrap().spec.version, "3.0.1");
    }

    #[test]
    fn an_unknown_name_brings_near_ones() {
        let error = find("cifar-10").unwrap_err();
        assert_eq!(error.hint(), "did you mean `cifar10` or `cifar100`?");
        assert!(find("wikipedia").unwrap_err().hint().contains("`kmnist`"));
    }
}
