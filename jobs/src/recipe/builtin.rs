//! The recipes that come with the program.

use std::path::Path;

use crate::recipe::{Recipe, near, parse_all};

macro_rules! recipes {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../recipes/", $name, ".toml")))),*]
    };
}

/// Name and text of each.
const RECIPES: &[(&str, &str)] = recipes![
    "beans",
    "cifar10",
    "cifar100",
    "eurosat",
    "fashion_mnist",
    "food101",
    "imagenet2012",
    "imagenette",
    "imdb_reviews",
    "kmnist",
    "mnist",
    "oxford_iiit_pet",
    "stl10",
    "tf_flowers",
];

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

/// No built-in dataset has this name, or the dataset has no such config.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct UnknownDataset {
    /// What was asked for: a dataset's name.
    pub name: String,
    /// The config that was asked for, where the dataset is there and the config is not.
    pub config: Option<String>,
    /// Names that are near; of a config all that there are, if none is near.
    pub near: Vec<String>,
}

impl UnknownDataset {
    /// There is no such config of a recipe that has these.
    pub(crate) fn config(name: &str, config: &str, known: &[String]) -> Self {
        let found = near(config, known.iter().map(String::as_str));
        Self {
            name: name.to_owned(),
            config: Some(config.to_owned()),
            near: match found.as_slice() {
                [] => known.to_vec(),
                found => found.iter().map(|name| (*name).to_owned()).collect(),
            },
        }
    }

    fn message(&self) -> String {
        match &self.config {
            None => format!("there is no built-in dataset `{}`", self.name),
            Some(config) => format!("`{}` has no config `{config}`", self.name),
        }
    }

    /// What the user may have meant.
    pub fn hint(&self) -> String {
        let quoted: Vec<String> = self.near.iter().map(|name| format!("`{name}`")).collect();
        match (&self.config, self.near.is_empty()) {
            (None, true) => {
                let all: Vec<String> = names().map(|name| format!("`{name}`")).collect();
                format!(
                    "the built-in datasets are {}; for your own data give the path of a recipe, `my_data.toml`",
                    all.join(", ")
                )
            }
            (Some(_), true) => format!("it has no configs: say `{}`", self.name),
            (Some(_), false) if self.near.len() > 3 => format!("it has {}", quoted.join(", ")),
            (_, false) => format!("did you mean {}?", quoted.join(" or ")),
        }
    }
}

/// All configs of the built-in recipe of this name, the default one first.
///
/// # Errors
/// No dataset has the name; the error holds near ones.
///
/// # Panics
/// If a recipe in the program is faulty, which a test rules out.
pub fn configs(name: &str) -> Result<Vec<Recipe>, UnknownDataset> {
    let Some(text) = text(name) else {
        return Err(UnknownDataset {
            name: name.to_owned(),
            config: None,
            near: near(name, names()).into_iter().map(str::to_owned).collect(),
        });
    };
    Ok(parse_all(name, text, Path::new(""))
        .unwrap_or_else(|error| panic!("a built-in recipe is faulty: {error}")))
}

/// The built-in recipe of this name, `cifar10`, or of this name and config, `imagenette/160px`. Without a config it is the first one.
///
/// # Errors
/// No dataset has the name, or it has no such config; the error holds near ones.
///
/// # Panics
/// As [`configs`].
pub fn find(name: &str) -> Result<Recipe, UnknownDataset> {
    let (dataset, config) = match name.split_once('/') {
        Some((dataset, config)) => (dataset, Some(config)),
        None => (name, None),
    };
    let mut recipes = configs(dataset)?;
    let Some(config) = config else {
        return Ok(recipes.swap_remove(0));
    };
    let known: Vec<String> = recipes
        .iter()
        .filter_map(|recipe| recipe.spec.config.clone())
        .collect();
    recipes
        .into_iter()
        .find(|recipe| recipe.spec.config.as_deref() == Some(config))
        .ok_or_else(|| UnknownDataset::config(dataset, config, &known))
}

/// The built-in datasets for a help text: `beans, cifar10, imagenette (full-size-v2, ..), ..`.
pub fn overview() -> String {
    let mut text = String::new();
    for name in names() {
        let configs: Vec<String> = configs(name)
            .into_iter()
            .flatten()
            .filter_map(|recipe| recipe.spec.config)
            .collect();
        if !text.is_empty() {
            text += ", ";
        }
        text += name;
        if configs.len() > 1 {
            text += &format!(" ({})", configs.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_recipes_parse_and_have_their_names() {
        assert!(names().is_sorted());
        for name in names() {
            for recipe in configs(name).unwrap() {
                assert_eq!(recipe.spec.name, name);
                // ImageNet's are behind a login.
                let is_open = name != "imagenet2012";
                assert!(
                    recipe
                        .spec
                        .sources
                        .iter()
                        .all(|source| (source.sha256.is_some() && source.bytes.is_some()) == is_open)
                );
                // What holds packed pictures is not packed again.
                let packed = !matches!(recipe.spec.config.as_deref(), Some("plain_text" | "all"));
                let wanted = if packed { "uncompressed" } else { "zstd:3" };
                assert_eq!(recipe.spec.options, format!("group_size:1,{wanted}"));
                let (input, target) = recipe.spec.supervised_keys.clone().unwrap();
                assert!(["image", "text", "sentinel2"].contains(&input.as_str()));
                assert_eq!(target, "label");
                assert!(!recipe.spec.description.is_empty() && !recipe.spec.citation.is_empty());
            }
        }
        assert_eq!(find("cifar100").unwrap().spec.version, "3.0.2");
        assert_eq!(find("kmnist").unwrap().spec.version, "3.0.1");
    }

    #[test]
    fn the_first_config_is_the_default() {
        let config = |name: &str| find(name).unwrap().spec.config;
        assert_eq!(config("imagenette").as_deref(), Some("full-size-v2"));
        assert_eq!(config("imagenette/160px").as_deref(), Some("160px"));
        assert_eq!(config("eurosat").as_deref(), Some("rgb"));
        assert_eq!(config("imdb_reviews").as_deref(), Some("plain_text"));
        assert_eq!(config("beans"), None);
        let configs: Vec<_> = configs("imagenette")
            .unwrap()
            .into_iter()
            .filter_map(|recipe| recipe.spec.config)
            .collect();
        assert_eq!(
            configs,
            [
                "full-size-v2",
                "320px-v2",
                "160px-v2",
                "full-size",
                "320px",
                "160px"
            ]
        );
        assert!(
            overview().contains("imagenette (full-size-v2, "),
            "{}",
            overview()
        );
    }

    #[test]
    fn an_unknown_name_brings_near_ones() {
        let error = find("cifar-10").unwrap_err();
        assert_eq!(error.hint(), "did you mean `cifar10` or `cifar100`?");
        assert!(find("wikipedia").unwrap_err().hint().contains("`kmnist`"));
        let error = find("imagenete/160px").unwrap_err();
        assert_eq!(error.hint(), "did you mean `imagenette`?");
        let error = find("imagenette/160").unwrap_err();
        assert_eq!(error.to_string(), "`imagenette` has no config `160`");
        assert!(error.hint().contains("`160px`"), "{}", error.hint());
        let error = find("imagenette/tiny").unwrap_err();
        assert!(
            error.hint().starts_with("it has `full-size-v2`, "),
            "{}",
            error.hint()
        );
        assert!(find("beans/x").unwrap_err().hint().contains("no configs"));
    }
}
