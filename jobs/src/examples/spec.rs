//! What a dataset of examples is, as its author says it.

use anyhow::Result;
use prep_catalog::{DatasetName, Selector, Version};
use prep_formats::array_record::WriteOptions;
use prep_formats::features::Features;
use serde::Deserialize;

use crate::builder::{DEFAULT_OPTIONS, DatasetSpec};
use crate::examples::invalid;
use crate::examples::schema::Schema;
use crate::recipe::is_split_name;

/// What a dataset of examples is. The fields are those of recipes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ExampleSpec {
    /// `name` or `name/config`.
    pub name: String,
    /// Three numbers.
    pub version: String,
    /// What it is.
    pub description: String,
    /// How to cite it.
    pub citation: String,
    /// Under which licence it may be used.
    pub licence: Option<String>,
    /// Home pages.
    pub urls: Vec<String>,
    /// The features that are (input, target) in supervised learning.
    pub supervised_keys: Option<(String, String)>,
    /// As [`Schema::parse`] takes them; nothing where they follow from the examples.
    pub features: Option<serde_json::Value>,
    /// The feature that orders examples, unique in a split; by default their position does.
    pub key: Option<String>,
    /// ArrayRecord options of the shards; default `group_size:1,zstd:3`.
    pub options: Option<String>,
    /// Splits, in the order in which they are listed.
    pub splits: Vec<String>,
}

impl ExampleSpec {
    /// A dataset of this name and version, without splits as yet, whose features follow from its examples.
    pub fn named(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            ..Self::default()
        }
    }

    /// Adds a split.
    #[must_use]
    pub fn split(mut self, name: impl Into<String>) -> Self {
        self.splits.push(name.into());
        self
    }

    /// Checks all fields.
    ///
    /// # Errors
    /// A name, version, split, feature or option that cannot be.
    pub fn check(self) -> Result<ExampleSet> {
        let name = DatasetName::parse(&self.name)?;
        if name.selector != Selector::Latest {
            return Err(invalid(format!(
                "`{}`: wanted a name without a version or tag; the version is `version`",
                self.name
            )));
        }
        Version::parse(&self.version).map_err(|_| {
            invalid(format!(
                "`version`: wanted three numbers, as in `1.0.0`, found `{}`",
                self.version.escape_debug()
            ))
        })?;
        for (index, split) in self.splits.iter().enumerate() {
            if !is_split_name(split) {
                return Err(invalid(format!(
                    "`{}` is not a split name: letters, digits and `_`, and not `all`",
                    split.escape_debug()
                )));
            }
            if self.splits[..index].contains(split) {
                return Err(invalid(format!("two splits are called `{split}`")));
            }
        }
        if self.splits.is_empty() {
            return Err(invalid("there are no splits"));
        }
        let schema = self
            .features
            .as_ref()
            .map_or(Ok(Schema::default()), Schema::parse)?;
        let named = self.key.iter().map(|name| ("key", name));
        let supervised = self
            .supervised_keys
            .iter()
            .flat_map(|(input, target)| [input, target]);
        for (what, name) in named.chain(supervised.map(|name| ("supervised_keys", name))) {
            schema.check_name(what, name)?;
        }
        let options = self.options.unwrap_or_else(|| DEFAULT_OPTIONS.to_owned());
        WriteOptions::parse(&options)?;
        let features = schema.features().map_or_else(|| Features::new(Vec::new()), Ok)?;
        let mut spec = DatasetSpec::new(name.name, self.version, features).options(options);
        spec.config = name.config;
        spec.description = self.description;
        spec.citation = self.citation;
        spec.licence = self.licence;
        spec.urls = self.urls;
        spec.supervised_keys = self.supervised_keys;
        for split in self.splits {
            spec = spec.split(split);
        }
        Ok(ExampleSet {
            spec,
            schema,
            key: self.key,
        })
    }
}

/// A dataset of examples whose description was checked.
#[derive(Debug, Clone)]
pub struct ExampleSet {
    pub(super) spec: DatasetSpec,
    pub(super) schema: Schema,
    pub(super) key: Option<String>,
}

impl ExampleSet {
    /// What it is made of, without its sources.
    pub fn spec(&self) -> &DatasetSpec {
        &self.spec
    }
}
