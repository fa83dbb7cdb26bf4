//! Parses recipes, with errors that name line and field.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;

use prep_formats::array_record::WriteOptions;
use prep_formats::features::{Encoding, Feature, Features};
use prep_formats::value::DType;
use serde::Deserialize;
use toml::Spanned;

use crate::builder::{DatasetSpec, Layout, SourceIdentity, SourcePlace, SourceSpec, SplitSpec};
use crate::fetch;
use crate::readers::rows::picture::PictureRule;
use crate::recipe::pattern::{PATH_NAMES, Pattern};
use crate::recipe::rows::{Declared, ROW_KINDS};
use crate::recipe::{Contents, ReaderSpec, Recipe, RecipeError, SplitFiles, Template, near};

/// The readers of datasets with formats of their own.
const OWN_KINDS: [&str; 7] = [
    "cifar",
    "files",
    "idx",
    "imagenet2012",
    "label-lists",
    "oxford-iiit-pet",
    "stl10",
];

/// The version of recipes that this program reads.
const FORMAT: u64 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRecipe {
    format: Spanned<u64>,
    pub(super) name: Spanned<String>,
    pub(super) config: Option<Spanned<String>>,
    pub(super) version: Option<Spanned<String>>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    citation: String,
    #[serde(default)]
    urls: Vec<String>,
    #[serde(alias = "license")]
    licence: Option<String>,
    module_name: Option<String>,
    pub(super) supervised_keys: Option<Spanned<Vec<String>>>,
    pub(super) layout: Option<Spanned<String>>,
    #[serde(default)]
    release_notes: BTreeMap<String, String>,
    pub(super) key: Option<Spanned<String>>,
    pub(super) filter: Option<Spanned<String>>,
    pub(super) select: Option<Spanned<Vec<String>>>,
    pub(super) drop: Option<Spanned<Vec<String>>>,
    pub(super) missing_as_empty: Option<Spanned<Vec<String>>>,
    pub(super) rename: Option<Spanned<BTreeMap<String, String>>>,
    pub(super) sources: Option<RawSources>,
    reader: Option<Spanned<RawReader>>,
    pub(super) features: Option<RawFeatures>,
    pub(super) splits: Option<RawSplits>,
    #[serde(default)]
    pub(super) output: RawOutput,
    configs: Option<Spanned<Vec<Spanned<RawConfig>>>>,
}

type RawSources = Spanned<Vec<Spanned<RawSource>>>;
pub(super) type RawFeatures = BTreeMap<String, Spanned<RawFeature>>;
pub(super) type RawSplits = Spanned<SplitList>;

/// Splits as `[[splits]]`, or as `[splits]` with the share of each.
#[derive(Default)]
pub(super) struct SplitList {
    list: Vec<Spanned<RawSplit>>,
    pub(super) fractions: Vec<(Spanned<String>, Spanned<f64>)>,
}

impl std::ops::Deref for SplitList {
    type Target = [Spanned<RawSplit>];

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

impl<'de> Deserialize<'de> for SplitList {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = SplitList;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`[[splits]]`, or `[splits]` with the share of each, as in `train = 0.9`")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<SplitList, A::Error> {
                let mut splits = SplitList::default();
                while let Some(split) = items.next_element()? {
                    splits.list.push(split);
                }
                Ok(splits)
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut items: A) -> Result<SplitList, A::Error> {
                let mut splits = SplitList::default();
                while let Some(entry) = items.next_entry::<Spanned<String>, Spanned<f64>>()? {
                    splits.fractions.push(entry);
                }
                // As they are written, which the parser does not keep.
                splits.fractions.sort_by_key(|(name, _)| name.span().start);
                Ok(splits)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// What a config has of its own, in place of what the recipe has for all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) name: Spanned<String>,
    description: Option<String>,
    pub(super) supervised_keys: Option<Spanned<Vec<String>>>,
    pub(super) key: Option<Spanned<String>>,
    pub(super) sources: Option<RawSources>,
    reader: Option<Spanned<RawReader>>,
    pub(super) features: Option<RawFeatures>,
    pub(super) splits: Option<RawSplits>,
    pub(super) output: Option<RawOutput>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSource {
    name: Option<Spanned<String>>,
    pub(super) url: Option<Spanned<String>>,
    pub(super) path: Option<Spanned<String>>,
    bytes: Option<u64>,
    sha256: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) optional: bool,
    pub(super) group: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReader {
    pub(super) kind: Spanned<String>,
    pub(super) labels: Option<Spanned<RawLabels>>,
    pub(super) dot: Option<Spanned<String>>,
    label_files: Option<Spanned<BTreeMap<String, String>>>,
    pub(super) members: Option<Spanned<Texts>>,
    class_names: Option<Spanned<String>>,
    pub(super) delimiter: Option<Spanned<String>>,
    pub(super) quote: Option<Spanned<String>>,
    pub(super) header: Option<Spanned<bool>>,
    pub(super) columns: Option<Spanned<Vec<String>>>,
    pub(super) nulls: Option<Spanned<Vec<String>>>,
    pub(super) sample: Option<Spanned<u64>>,
}

/// The columns of labels, or whether there are any.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawLabels {
    Are(bool),
    Names(Vec<String>),
}

/// A text, or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Texts {
    One(String),
    Several(Vec<String>),
}

impl Texts {
    pub(super) fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Several(texts) => texts,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFeature {
    kind: Spanned<String>,
    shape: Option<Spanned<Vec<i64>>>,
    dtype: Option<Spanned<String>>,
    names: Option<Spanned<Vec<String>>>,
    num_classes: Option<Spanned<u64>>,
    encoding_format: Option<Spanned<String>>,
    value: Option<Spanned<String>>,
    strip: Option<Spanned<bool>>,
    use_colormap: Option<Spanned<bool>>,
    format: Option<Spanned<String>>,
    encoding: Option<Spanned<String>>,
    optional: Option<Spanned<bool>>,
    feature: Option<Box<Spanned<RawFeature>>>,
    features: Option<RawFeatures>,
    length: Option<Spanned<u64>>,
    resize: Option<Spanned<Vec<u32>>>,
    reencode: Option<Spanned<String>>,
    quality: Option<Spanned<u8>>,
}

impl RawFeature {
    fn without_optional(&self) -> Self {
        Self {
            kind: self.kind.clone(),
            shape: self.shape.clone(),
            dtype: self.dtype.clone(),
            names: self.names.clone(),
            num_classes: self.num_classes.clone(),
            encoding_format: self.encoding_format.clone(),
            value: self.value.clone(),
            strip: self.strip.clone(),
            use_colormap: self.use_colormap.clone(),
            format: self.format.clone(),
            encoding: self.encoding.clone(),
            optional: None,
            feature: None,
            features: None,
            length: self.length.clone(),
            resize: None,
            reencode: None,
            quality: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSplit {
    pub(super) name: Spanned<String>,
    #[serde(default = "no_files")]
    pub(super) files: Spanned<Vec<String>>,
    file_records: Option<u64>,
    pub(super) shards: Option<Spanned<u64>>,
    pub(super) examples: Option<u64>,
    pub(super) sources: Option<Spanned<Vec<String>>>,
    pub(super) values: Option<Spanned<BTreeMap<String, i64>>>,
    pub(super) fraction: Option<Spanned<f64>>,
}

impl RawSplit {
    /// Where its files stand, or else it itself.
    pub(super) fn files_span(&self, split: &Spanned<Self>) -> Range<usize> {
        match self.files.span() {
            Range { start: 0, end: 0 } => split.span(),
            span => span,
        }
    }
}

fn no_files() -> Spanned<Vec<String>> {
    Spanned::new(0..0, Vec::new())
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOutput {
    compression: Option<Spanned<String>>,
    group_size: Option<Spanned<u64>>,
}

/// Parses the text of a recipe; of several configs, gives the first. `file` is what errors call it; relative paths are taken from
/// `folder`.
///
/// # Errors
/// The text is not TOML, a field is missing, unknown or of another type, or does not fit the rest.
pub fn parse(file: &str, text: &str, folder: &Path) -> Result<Recipe, RecipeError> {
    Ok(parse_all(file, text, folder)?.swap_remove(0))
}

/// Parses the text of a recipe, all configs of it: at least one.
///
/// # Errors
/// As [`parse`].
pub fn parse_all(file: &str, text: &str, folder: &Path) -> Result<Vec<Recipe>, RecipeError> {
    let raw: RawRecipe = toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        RecipeError {
            file: file.to_owned(),
            line: error.span().map(|span| line_of(text, span.start)),
            field: field_at(text, &span),
            reason: error.message().to_owned(),
        }
    })?;
    Checker { file, text, folder }.check(raw)
}

/// Whether a split can be called so.
pub(crate) fn is_split_name(text: &str) -> bool {
    let good = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    good && text != "all"
}

/// Checks features that are declared by themselves, in the words of a recipe of rows, and not in one. Sorted by name.
///
/// # Errors
/// A feature that cannot be: `field` says which, `line` means nothing.
pub(crate) fn declared_features(
    features: serde_json::Map<String, serde_json::Value>,
) -> Result<Vec<(String, Declared)>, RecipeError> {
    #[derive(Deserialize)]
    struct Alone {
        features: RawFeatures,
    }

    let fault = |field: String, reason: String| RecipeError {
        file: String::new(),
        line: None,
        field,
        reason,
    };
    let text = toml::to_string(&serde_json::json!({ "features": features }))
        .map_err(|error| fault(String::new(), error.to_string()))?;
    let raw: Alone = toml::from_str(&text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        fault(field_at(&text, &span), error.message().to_owned())
    })?;
    let checker = Checker {
        file: "",
        text: &text,
        folder: Path::new(""),
    };
    let check = |(name, feature): (&String, &Spanned<RawFeature>)| {
        Ok((name.clone(), checker.check_declared(name, feature)?))
    };
    raw.features.iter().map(check).collect()
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

/// The field that a span lies in: the table header above it and the key on its line.
fn field_at(text: &str, span: &Range<usize>) -> String {
    let start = span.start.min(text.len());
    let line_start = text.as_bytes()[..start]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let bare = |key: &str| {
        let key = key.trim();
        (!key.is_empty()
            && key
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.\"".contains(&b)))
        .then(|| key.to_owned())
    };
    // The line of an array may hold no key; the key is then above.
    let mut key = None;
    let mut header = None;
    let lines = text[..line_start].lines().rev();
    let here = text[line_start..].lines().next().unwrap_or("");
    for line in std::iter::once(here).chain(lines) {
        let line = line.trim();
        if line.starts_with('[') && line.contains(']') && !line.contains('=') && !line.ends_with(',') {
            header = bare(line.trim_start_matches('[').split(']').next().unwrap_or(""));
            if header.is_some() {
                break;
            }
        }
        if key.is_none() {
            key = line.split_once('=').and_then(|(key, _)| bare(key));
        }
    }
    match (header, key) {
        (Some(header), Some(key)) => format!("{header}.{key}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => String::new(),
    }
}

pub(super) struct Checker<'a> {
    file: &'a str,
    pub(super) text: &'a str,
    folder: &'a Path,
}

impl Checker<'_> {
    pub(super) fn fault(
        &self,
        span: Range<usize>,
        field: impl Into<String>,
        reason: impl Into<String>,
    ) -> RecipeError {
        RecipeError {
            file: self.file.to_owned(),
            line: Some(line_of(self.text, span.start)),
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// A place in the recipe, for messages of later.
    pub(super) fn place(&self, span: Range<usize>, field: &str) -> String {
        format!(
            "{}, line {}, `{field}`",
            self.file,
            line_of(self.text, span.start)
        )
    }

    fn check(&self, raw: RawRecipe) -> Result<Vec<Recipe>, RecipeError> {
        if *raw.format.as_ref() != FORMAT {
            return Err(self.fault(
                raw.format.span(),
                "format",
                format!(
                    "recipes of format {} are not known; this program reads format {FORMAT}",
                    raw.format.as_ref()
                ),
            ));
        }
        self.check_name("name", &raw.name)?;
        if let Some(layout) = &raw.layout
            && !["tfds", "by-source"].contains(&layout.as_ref().as_str())
        {
            let reason = format!(
                "layout `{}` is not known; there are `tfds` and `by-source`",
                layout.as_ref()
            );
            return Err(self.fault(layout.span(), "layout", reason));
        }
        let Some(configs) = &raw.configs else {
            return Ok(vec![self.check_config(&raw, None)?]);
        };
        if let Some(config) = &raw.config {
            return Err(self.fault(
                config.span(),
                "config",
                "a recipe has a `config` or `configs`, not both",
            ));
        }
        let mut recipes: Vec<Recipe> = Vec::new();
        for (index, config) in configs.as_ref().iter().enumerate() {
            let name = &config.as_ref().name;
            let field = format!("configs[{index}].name");
            self.check_name(&field, name)?;
            if recipes
                .iter()
                .any(|other| other.spec.config.as_ref() == Some(name.as_ref()))
            {
                return Err(self.fault(
                    name.span(),
                    field,
                    format!("two configs are called `{}`", name.as_ref()),
                ));
            }
            recipes.push(self.check_config(&raw, Some(config.as_ref()))?);
        }
        if recipes.is_empty() {
            return Err(self.fault(configs.span(), "configs", "there are no configs"));
        }
        Ok(recipes)
    }

    /// The recipe of one config, or of a recipe without such.
    fn check_config(&self, raw: &RawRecipe, config: Option<&RawConfig>) -> Result<Recipe, RecipeError> {
        let span = config.map_or(0..0, |config| config.name.span());
        let missing = |field: &str| self.fault(span.clone(), field, "missing");
        let reader = config
            .and_then(|config| config.reader.as_ref())
            .or(raw.reader.as_ref());
        let reader = reader.ok_or_else(|| missing("reader"))?;
        let kind = reader.as_ref().kind.as_ref().as_str();
        if ROW_KINDS.contains(&kind) {
            return self.check_rows(raw, config, reader);
        }
        if !OWN_KINDS.contains(&kind) {
            let kinds: Vec<&str> = OWN_KINDS.into_iter().chain(ROW_KINDS).collect();
            let near = match near(kind, kinds.iter().copied()).first() {
                Some(name) => format!("; did you mean `{name}`?"),
                None => String::new(),
            };
            let reason = format!("`{kind}` is not known; there are {}{near}", quoted_list(&kinds));
            return Err(self.fault(reader.as_ref().kind.span(), "reader.kind", reason));
        }
        let of_rows = [
            ("filter", raw.filter.as_ref().map(Spanned::span)),
            ("select", raw.select.as_ref().map(Spanned::span)),
            ("drop", raw.drop.as_ref().map(Spanned::span)),
            (
                "missing_as_empty",
                raw.missing_as_empty.as_ref().map(Spanned::span),
            ),
            ("rename", raw.rename.as_ref().map(Spanned::span)),
            (
                "layout",
                raw.layout
                    .as_ref()
                    .filter(|layout| layout.as_ref() != "tfds")
                    .map(Spanned::span),
            ),
        ];
        for (field, span) in of_rows {
            if let Some(span) = span {
                let reason = format!(
                    "the reader `{kind}` does not take this; {} do",
                    quoted_list(&ROW_KINDS)
                );
                return Err(self.fault(span, field, reason));
            }
        }
        let sources = config
            .and_then(|config| config.sources.as_ref())
            .or(raw.sources.as_ref());
        let sources_raw = sources.ok_or_else(|| missing("sources"))?;
        let features = config
            .and_then(|config| config.features.as_ref())
            .or(raw.features.as_ref());
        let features_raw = features.ok_or_else(|| missing("features"))?;
        let splits = config
            .and_then(|config| config.splits.as_ref())
            .or(raw.splits.as_ref());
        let splits_raw = splits.ok_or_else(|| missing("splits"))?;
        let key = config.and_then(|config| config.key.as_ref()).or(raw.key.as_ref());
        let supervised = config
            .and_then(|config| config.supervised_keys.as_ref())
            .or(raw.supervised_keys.as_ref());

        let version = self.check_version(raw.version.as_ref())?;
        if let Some(config) = &raw.config {
            self.check_name("config", config)?;
        }
        let mut sources = self.check_sources(sources_raw)?;
        let (splits, mut files) = self.check_splits(splits_raw)?;
        // What templates of this reader may name beside split and index.
        let of_files = matches!(reader.as_ref().kind.as_ref().as_str(), "files");
        let mut names: Vec<String> = Vec::new();
        if of_files {
            names = self.check_patterns(splits_raw, &mut files, &sources)?;
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut features = Vec::new();
        let mut texts = Vec::new();
        let mut colormaps = Vec::new();
        for (name, feature) in features_raw {
            if feature
                .as_ref()
                .use_colormap
                .as_ref()
                .is_some_and(|on| *on.as_ref())
            {
                colormaps.push(name.as_str());
            }
            let (feature, template) = self.check_feature(name, feature, &names)?;
            if let Some(template) = template {
                texts.push((name.clone(), template));
            }
            features.push((name.clone(), feature));
        }
        let supervised_keys = self.check_supervised(supervised, features_raw)?;
        self.check_values(splits_raw, &features, of_files)?;
        let reader_spec = if of_files {
            self.check_files_reader(reader, features_raw, &texts, key, &names, splits_raw)?
        } else {
            if let Some(key) = key.filter(|key| key.as_ref() != "index") {
                return Err(self.fault(
                    key.span(),
                    "key",
                    format!("key rule `{}` is not known; there is `index`", key.as_ref()),
                ));
            }
            self.check_reader(reader, &features, &texts, &sources)?
        };
        self.check_files(&reader_spec, &sources, splits_raw)?;
        if let ReaderSpec::Imagenet { .. } = reader_spec {
            // Too large to be read twice, where nothing says what they should be.
            for source in sources.iter_mut().filter(|source| source.sha256.is_none()) {
                source.identity = SourceIdentity::TarHeaders;
            }
        }
        let features = Features::new(features)
            .and_then(|features| with_colormaps(features, &colormaps))
            .map_err(|error| self.fault(reader.span(), "features", error.to_string()))?;
        let output = config
            .and_then(|config| config.output.as_ref())
            .unwrap_or(&raw.output);
        let options = self.check_output(output)?;
        let mut spec = DatasetSpec::new(raw.name.as_ref().clone(), version, features);
        self.describe(&mut spec, raw, config);
        spec.supervised_keys = supervised_keys;
        spec.layout = Layout::Tfds;
        spec.sources = sources;
        spec.splits = splits;
        spec.options = options;
        Ok(Recipe {
            text: self.text.into(),
            spec,
            reader: reader_spec,
            files,
            texts,
        })
    }

    /// What a recipe says of the dataset in words.
    pub(super) fn describe(&self, spec: &mut DatasetSpec, raw: &RawRecipe, config: Option<&RawConfig>) {
        spec.licence.clone_from(&raw.licence);
        spec.config = match config {
            Some(config) => Some(config.name.as_ref().clone()),
            None => raw.config.as_ref().map(|config| config.as_ref().clone()),
        };
        spec.config_description = config.and_then(|config| config.description.clone());
        spec.release_notes = raw.release_notes.clone().into_iter().collect();
        spec.description = raw.description.clone();
        spec.citation = raw.citation.clone();
        spec.urls = raw.urls.clone();
        spec.module_name = raw.module_name.clone();
    }

    /// Parses the files of splits as patterns, and gives the names that templates may use: those that all patterns catch.
    fn check_patterns(
        &self,
        raw: &RawSplits,
        files: &mut [SplitFiles],
        sources: &[SourceSpec],
    ) -> Result<Vec<String>, RecipeError> {
        let mut common: Option<Vec<String>> = None;
        for (index, (split, files)) in raw.as_ref().iter().zip(files).enumerate() {
            let split = split.as_ref();
            for text in split.files.as_ref() {
                let pattern = Pattern::parse(text).map_err(|reason| {
                    self.fault(split.files.span(), format!("splits[{index}].files"), reason)
                })?;
                let names: Vec<String> = pattern.names().map(str::to_owned).collect();
                common = Some(match common {
                    None => names,
                    Some(common) => common.into_iter().filter(|name| names.contains(name)).collect(),
                });
                files.patterns.push(pattern);
            }
            for name in split.sources.iter().flat_map(|names| names.as_ref()) {
                if !sources.iter().any(|source| source.name == *name) {
                    let span = split.sources.as_ref().map_or(0..0, Spanned::span);
                    let names = sources.iter().map(|source| &source.name);
                    let reason = format!("there is no source `{name}`{}", did_you_mean(name, names));
                    return Err(self.fault(span, format!("splits[{index}].sources"), reason));
                }
                files.sources.push(name.clone());
            }
        }
        let mut names = common.unwrap_or_default();
        names.extend(PATH_NAMES.map(str::to_owned));
        Ok(names)
    }

    /// Checks the class numbers that splits give to all their examples.
    fn check_values(
        &self,
        raw: &RawSplits,
        features: &[(String, Feature)],
        taken: bool,
    ) -> Result<(), RecipeError> {
        for (index, split) in raw.as_ref().iter().enumerate() {
            let split = split.as_ref();
            let others = [
                ("sources", split.sources.as_ref().map(Spanned::span)),
                ("values", split.values.as_ref().map(Spanned::span)),
            ];
            for (field, span) in others {
                if let Some(span) = span.filter(|_| !taken) {
                    let reason = "only the reader `files` takes this";
                    return Err(self.fault(span, format!("splits[{index}].{field}"), reason));
                }
            }
            let Some(values) = &split.values else { continue };
            for (name, number) in values.as_ref() {
                let field = format!("splits[{index}].values.{name}");
                let feature = features
                    .iter()
                    .find(|(other, _)| other == name)
                    .map(|(_, feature)| feature);
                let Some(Feature::ClassLabel { num_classes, .. }) = feature else {
                    let known = features.iter().map(|(name, _)| name);
                    let reason = format!("there is no class label `{name}`{}", did_you_mean(name, known));
                    return Err(self.fault(values.span(), field, reason));
                };
                if *number < -1 || *number >= num_classes.cast_signed() {
                    let reason = format!(
                        "{number} is out of range: 0 to {}, or -1 for none",
                        num_classes - 1
                    );
                    return Err(self.fault(values.span(), field, reason));
                }
            }
        }
        Ok(())
    }

    /// The reader whose examples are files.
    fn check_files_reader(
        &self,
        raw: &Spanned<RawReader>,
        features: &RawFeatures,
        texts: &[(String, Template)],
        key: Option<&Spanned<String>>,
        names: &[&str],
        splits: &RawSplits,
    ) -> Result<ReaderSpec, RecipeError> {
        self.check_reader_fields(raw, &[])?;
        let mut contents: Option<(&String, Contents)> = None;
        let mut labels = Vec::new();
        for (name, feature) in features {
            let feature_span = feature.span();
            let feature = feature.as_ref();
            if texts.iter().any(|(text, _)| text == name) && feature.kind.as_ref() == "text" {
                continue;
            }
            let form = match feature.kind.as_ref().as_str() {
                "class_label" => {
                    let (text, span) = match &feature.value {
                        Some(value) => (value.as_ref().clone(), value.span()),
                        None => (format!("{{{name}}}"), feature_span.clone()),
                    };
                    let everywhere = splits.as_ref().iter().all(|split| {
                        let values = split.as_ref().values.as_ref();
                        values.is_some_and(|values| values.as_ref().contains_key(name))
                    });
                    if feature.value.is_none() && everywhere {
                        continue;
                    }
                    // Where a split has a number of its own, its patterns need not catch the name.
                    let mut known = names.to_vec();
                    let caught = self.names_of_labelled(splits, name)?;
                    known.extend(caught.iter().map(String::as_str));
                    let template = Template::parse_with(&text, &known)
                        .map_err(|reason| self.fault(span, format!("features.{name}.value"), reason))?;
                    labels.push((name.clone(), template));
                    continue;
                }
                "image" => Contents::AsFound,
                "text" if feature.strip.as_ref().is_some_and(|strip| *strip.as_ref()) => Contents::Stripped,
                "text" => Contents::AsFound,
                "tensor" => Contents::Tiff,
                other => {
                    let reason = format!("the reader `files` does not give features of kind `{other}`");
                    return Err(self.fault(feature_span, format!("features.{name}"), reason));
                }
            };
            if let Some((first, _)) = contents {
                let reason = format!(
                    "`{first}` and `{name}` are both the contents of a file; give a text its `value`, or leave one out"
                );
                return Err(self.fault(feature_span, format!("features.{name}"), reason));
            }
            contents = Some((name, form));
        }
        let Some((contents, form)) = contents else {
            let reason = "none of the features is the contents of a file: an image, a text or a tensor without a `value`";
            return Err(self.fault(raw.span(), "features", reason));
        };
        let (text, span) = key.map_or(("{path}", raw.span()), |key| (key.as_ref().as_str(), key.span()));
        let key = Template::parse_with(text, names).map_err(|reason| self.fault(span, "key", reason))?;
        Ok(ReaderSpec::Files {
            contents: contents.clone(),
            form,
            key,
            labels,
        })
    }

    /// The names that all patterns catch of splits which have no number of their own for this label.
    fn names_of_labelled(&self, splits: &RawSplits, label: &str) -> Result<Vec<String>, RecipeError> {
        let mut common: Option<Vec<String>> = None;
        for split in splits.as_ref().iter() {
            let split = split.as_ref();
            if split
                .values
                .as_ref()
                .is_some_and(|values| values.as_ref().contains_key(label))
            {
                continue;
            }
            for text in split.files.as_ref() {
                let pattern = Pattern::parse(text)
                    .map_err(|reason| self.fault(split.files.span(), "splits.files", reason))?;
                let names: Vec<String> = pattern.names().map(str::to_owned).collect();
                common = Some(match common {
                    None => names,
                    Some(common) => common.into_iter().filter(|name| names.contains(name)).collect(),
                });
            }
        }
        Ok(common.unwrap_or_default())
    }

    /// Refuses fields that a reader does not take.
    pub(super) fn check_reader_fields(
        &self,
        raw: &Spanned<RawReader>,
        taken: &[&str],
    ) -> Result<(), RecipeError> {
        let reader = raw.as_ref();
        let fields = [
            ("labels", reader.labels.as_ref().map(Spanned::span)),
            ("dot", reader.dot.as_ref().map(Spanned::span)),
            ("label_files", reader.label_files.as_ref().map(Spanned::span)),
            ("members", reader.members.as_ref().map(Spanned::span)),
            ("class_names", reader.class_names.as_ref().map(Spanned::span)),
            ("delimiter", reader.delimiter.as_ref().map(Spanned::span)),
            ("quote", reader.quote.as_ref().map(Spanned::span)),
            ("header", reader.header.as_ref().map(Spanned::span)),
            ("columns", reader.columns.as_ref().map(Spanned::span)),
            ("nulls", reader.nulls.as_ref().map(Spanned::span)),
            ("sample", reader.sample.as_ref().map(Spanned::span)),
        ];
        for (field, span) in fields {
            if let Some(span) = span.filter(|_| !taken.contains(&field)) {
                let reason = format!("a reader of kind `{}` does not have this", reader.kind.as_ref());
                return Err(self.fault(span, format!("reader.{field}"), reason));
            }
        }
        Ok(())
    }

    pub(super) fn check_name(&self, field: &str, name: &Spanned<String>) -> Result<(), RecipeError> {
        let text = name.as_ref();
        let good = text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
            && text.len() <= 200;
        if good {
            return Ok(());
        }
        Err(self.fault(
            name.span(),
            field,
            format!("`{text}` is not a name: letters, digits, `_`, `-` and `.`, the first a letter or digit"),
        ))
    }

    pub(super) fn check_version(&self, version: Option<&Spanned<String>>) -> Result<String, RecipeError> {
        let Some(version) = version else {
            return Ok("1.0.0".to_owned());
        };
        let parts: Vec<&str> = version.as_ref().split('.').collect();
        let number =
            |part: &&str| !part.is_empty() && part.len() < 10 && part.bytes().all(|b| b.is_ascii_digit());
        if parts.len() == 3 && parts.iter().all(number) {
            return Ok(version.as_ref().clone());
        }
        Err(self.fault(
            version.span(),
            "version",
            format!(
                "`{}` is not a version; wanted three numbers, as in `1.0.0`",
                version.as_ref()
            ),
        ))
    }

    pub(super) fn check_sources(
        &self,
        raw: &Spanned<Vec<Spanned<RawSource>>>,
    ) -> Result<Vec<SourceSpec>, RecipeError> {
        if raw.as_ref().is_empty() {
            return Err(self.fault(raw.span(), "sources", "there are no sources"));
        }
        let mut sources: Vec<SourceSpec> = Vec::new();
        for (index, item) in raw.as_ref().iter().enumerate() {
            let source = item.as_ref();
            let field = |name: &str| format!("sources[{index}].{name}");
            let place = match (&source.url, &source.path) {
                (Some(url), None) => {
                    let parsed = url::Url::parse(url.as_ref()).map_err(|error| {
                        self.fault(url.span(), field("url"), format!("not a URL: {error}"))
                    })?;
                    if !fetch::is_known(parsed.scheme()) {
                        let reason = format!(
                            "`{}:` is not supported; there are {}",
                            parsed.scheme(),
                            fetch::KNOWN_SCHEMES
                        );
                        return Err(self.fault(url.span(), field("url"), reason));
                    }
                    SourcePlace::Url(parsed)
                }
                (None, Some(path)) => SourcePlace::Path(self.folder.join(path.as_ref())),
                (None, None) => SourcePlace::Unknown,
                (Some(_), Some(path)) => {
                    return Err(self.fault(
                        path.span(),
                        field("path"),
                        "a source has a `url` or a `path`, not both",
                    ));
                }
            };
            let name = match &source.name {
                Some(name) => name.as_ref().clone(),
                None => place.file_name().ok_or_else(|| {
                    self.fault(
                        item.span(),
                        field("name"),
                        "missing, and no file name follows from `url` or `path`",
                    )
                })?,
            };
            let span = source.name.as_ref().map_or(item.span(), Spanned::span);
            // A pattern has no file name, and is its own name.
            let name = match (&source.name, source.path.as_ref().or(source.url.as_ref())) {
                (None, Some(text)) if text.as_ref().contains(['*', '{']) => {
                    text.as_ref().replace(['/', '\\'], " ")
                }
                _ => name,
            };
            if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
                return Err(self.fault(span, field("name"), format!("`{name}` is not a file name")));
            }
            if sources.iter().any(|other| other.name == name) {
                return Err(self.fault(span, field("name"), format!("two sources are called `{name}`")));
            }
            let sha256 = match &source.sha256 {
                None => None,
                Some(text) => {
                    let mut digest = [0; 32];
                    hex::decode_to_slice(text.as_ref().to_lowercase(), &mut digest).map_err(|_| {
                        let reason = format!("`{}` is not a SHA-256; wanted 64 hex digits", text.as_ref());
                        self.fault(text.span(), field("sha256"), reason)
                    })?;
                    Some(digest)
                }
            };
            sources.push(SourceSpec {
                name,
                place,
                bytes: source.bytes,
                sha256,
                optional: source.optional,
                identity: SourceIdentity::default(),
            });
        }
        Ok(sources)
    }

    fn check_feature(
        &self,
        name: &str,
        raw: &Spanned<RawFeature>,
        names: &[&str],
    ) -> Result<(Feature, Option<Template>), RecipeError> {
        let feature = raw.as_ref();
        let field = |part: &str| format!("features.{name}.{part}");
        let kind = feature.kind.as_ref().as_str();
        let takes: &[&str] = match kind {
            "image" => &["shape", "dtype", "encoding_format", "use_colormap"],
            // A text to find the class by is for the readers whose templates have names.
            "class_label" if names.is_empty() => &["names", "num_classes"],
            "class_label" => &["names", "num_classes", "value"],
            "text" if names.is_empty() => &["value"],
            "text" => &["value", "strip"],
            "bbox" => &["format"],
            "tensor" => &["shape", "dtype", "encoding"],
            "scalar" => &["dtype"],
            other => {
                return Err(self.fault(
                    feature.kind.span(),
                    field("kind"),
                    format!("`{other}` is not known; there are `image`, `class_label`, `text`, `tensor`, `scalar` and `bbox`"),
                ));
            }
        };
        let given = [
            ("shape", feature.shape.as_ref().map(Spanned::span)),
            ("dtype", feature.dtype.as_ref().map(Spanned::span)),
            ("names", feature.names.as_ref().map(Spanned::span)),
            ("num_classes", feature.num_classes.as_ref().map(Spanned::span)),
            (
                "encoding_format",
                feature.encoding_format.as_ref().map(Spanned::span),
            ),
            ("value", feature.value.as_ref().map(Spanned::span)),
            ("strip", feature.strip.as_ref().map(Spanned::span)),
            ("use_colormap", feature.use_colormap.as_ref().map(Spanned::span)),
            ("format", feature.format.as_ref().map(Spanned::span)),
            ("encoding", feature.encoding.as_ref().map(Spanned::span)),
            ("optional", feature.optional.as_ref().map(Spanned::span)),
            ("feature", feature.feature.as_ref().map(|inner| inner.span())),
            ("features", feature.features.as_ref().map(|_| raw.span())),
            ("length", feature.length.as_ref().map(Spanned::span)),
            ("resize", feature.resize.as_ref().map(Spanned::span)),
            ("reencode", feature.reencode.as_ref().map(Spanned::span)),
            ("quality", feature.quality.as_ref().map(Spanned::span)),
        ];
        for (part, span) in given {
            if let Some(span) = span.filter(|_| !takes.contains(&part)) {
                return Err(self.fault(
                    span,
                    field(part),
                    format!("a feature of kind `{kind}` has no `{part}`"),
                ));
            }
        }
        let shape = || -> Result<Vec<Option<u64>>, RecipeError> {
            let Some(shape) = &feature.shape else {
                return Err(self.fault(raw.span(), field("shape"), "missing"));
            };
            let dimension = |n: &i64| match *n {
                -1 => Ok(None),
                n => u64::try_from(n).map(Some).map_err(|_| {
                    let reason = format!("{n} is not a dimension; -1 is one that varies");
                    self.fault(shape.span(), field("shape"), reason)
                }),
            };
            shape.as_ref().iter().map(dimension).collect()
        };
        let dtype = |default: Option<DType>| match (&feature.dtype, default) {
            (Some(dtype), _) => dtype_of(dtype.as_ref()).ok_or_else(|| {
                let reason = format!(
                    "`{}` is not a type; `uint8`, `int64`, `float32` are",
                    dtype.as_ref()
                );
                self.fault(dtype.span(), field("dtype"), reason)
            }),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.fault(raw.span(), field("dtype"), "missing")),
        };
        Ok(match kind {
            "image" => (
                Feature::Image {
                    shape: shape()?,
                    dtype: dtype(Some(DType::UInt8))?,
                    encoding_format: feature.encoding_format.as_ref().map(|text| text.as_ref().clone()),
                },
                None,
            ),
            "class_label" => (self.check_class_label(name, raw)?, None),
            "text" => {
                let template = feature.value.as_ref().map(|value| {
                    Template::parse_with(value.as_ref(), names)
                        .map_err(|reason| self.fault(value.span(), field("value"), reason))
                });
                (Feature::Text, template.transpose()?)
            }
            "tensor" => {
                let encoding = match &feature.encoding {
                    None => Encoding::None,
                    Some(text) => Encoding::from_name(text.as_ref()).ok_or_else(|| {
                        let reason = format!(
                            "`{}` is not known; there are `none`, `bytes` and `zlib`",
                            text.as_ref()
                        );
                        self.fault(text.span(), field("encoding"), reason)
                    })?,
                };
                let tensor = Feature::Tensor {
                    shape: shape()?,
                    dtype: dtype(None)?,
                    encoding,
                };
                (tensor, None)
            }
            "bbox" => (
                Feature::BBox {
                    format: feature.format.as_ref().map(|format| format.as_ref().clone()),
                },
                None,
            ),
            _ => (Feature::Scalar { dtype: dtype(None)? }, None),
        })
    }

    /// A feature of a recipe of rows: also nested ones, those that may be missing, and labels whose classes are those of the data.
    pub(super) fn check_declared(
        &self,
        name: &str,
        raw: &Spanned<RawFeature>,
    ) -> Result<Declared, RecipeError> {
        let feature = raw.as_ref();
        let kind = feature.kind.as_ref().as_str();
        let field = |part: &str| format!("features.{name}.{part}");
        if kind == "class_label" && feature.names.is_none() && feature.num_classes.is_none() {
            let others = [
                ("shape", feature.shape.is_some()),
                ("dtype", feature.dtype.is_some()),
            ];
            if let Some((part, _)) = others.iter().find(|(_, given)| *given) {
                let reason = format!("a feature of kind `{kind}` has no `{part}`");
                return Err(self.fault(raw.span(), field(part), reason));
            }
            return Ok(Declared::Classes);
        }
        let optional = feature
            .optional
            .as_ref()
            .is_some_and(|optional| *optional.as_ref());
        let inner = match kind {
            "sequence" => {
                let Some(inner) = &feature.feature else {
                    let reason = "missing: what an element is, as in `feature = { kind = \"scalar\", dtype = \"int64\" }`";
                    return Err(self.fault(raw.span(), field("feature"), reason));
                };
                let Declared::Feature(inner) = self.check_declared(&format!("{name}.feature"), inner)? else {
                    let reason = "a class label inside of a sequence needs its `names` or `num_classes`";
                    return Err(self.fault(raw.span(), field("feature"), reason));
                };
                Feature::Sequence {
                    feature: Box::new(inner),
                    length: feature.length.as_ref().map(|length| *length.as_ref()),
                }
            }
            "dict" => {
                let Some(inner) = &feature.features else {
                    let reason = "missing: what is in it, as in `features = { x = { kind = \"text\" } }`";
                    return Err(self.fault(raw.span(), field("features"), reason));
                };
                let mut features = Vec::new();
                for (inside, feature) in inner {
                    match self.check_declared(&format!("{name}.{inside}"), feature)? {
                        Declared::Feature(feature) => features.push((inside.clone(), feature)),
                        Declared::Classes => {
                            let reason = "a class label inside of a dict needs its `names` or `num_classes`";
                            return Err(self.fault(feature.span(), field(inside), reason));
                        }
                    }
                }
                Feature::dict(features)
            }
            _ => {
                // What is said of missing values is not for the check of the feature itself.
                let plain = feature.without_optional();
                let plain = Spanned::new(raw.span(), plain);
                self.check_feature(name, &plain, &[])?.0
            }
        };
        let feature = match (optional, inner) {
            (false, inner) => inner,
            // As TFDS declares it.
            (true, Feature::Text) => Feature::Optional(Box::new(Feature::Scalar { dtype: DType::String })),
            (true, inner @ (Feature::Scalar { .. } | Feature::Tensor { .. })) => {
                Feature::Optional(Box::new(inner))
            }
            (true, _) => {
                let reason =
                    format!("a feature of kind `{kind}` cannot be missing; texts, scalars and tensors can");
                let span = raw.as_ref().optional.as_ref().map_or(raw.span(), Spanned::span);
                return Err(self.fault(span, field("optional"), reason));
            }
        };
        Features::new(vec![(name.to_owned(), feature.clone())])
            .map_err(|error| self.fault(raw.span(), format!("features.{name}"), error.to_string()))?;
        Ok(Declared::Feature(feature))
    }

    /// What is to become of the pictures of a feature.
    pub(super) fn check_picture(
        &self,
        name: &str,
        raw: &Spanned<RawFeature>,
    ) -> Result<Option<PictureRule>, RecipeError> {
        let feature = raw.as_ref();
        let field = |part: &str| format!("features.{name}.{part}");
        let spans = [
            ("resize", feature.resize.as_ref().map(Spanned::span)),
            ("reencode", feature.reencode.as_ref().map(Spanned::span)),
            ("quality", feature.quality.as_ref().map(Spanned::span)),
        ];
        let Some((part, Some(span))) = spans.into_iter().find(|(_, span)| span.is_some()) else {
            return Ok(None);
        };
        let kind = feature.kind.as_ref();
        if kind != "image" {
            let reason = format!("a feature of kind `{kind}` has no `{part}`");
            return Err(self.fault(span, field(part), reason));
        }
        let shape = feature.shape.as_ref();
        let sides = shape.map_or(&[] as &[i64], |shape| shape.as_ref().as_slice());
        let channels = match sides {
            [_, _, channels @ (1 | 3)] => *channels as usize,
            _ => {
                let reason = "pictures are written anew with 1 or 3 channels: `shape = [-1, -1, 3]`";
                return Err(self.fault(shape.map_or(raw.span(), Spanned::span), field("shape"), reason));
            }
        };
        if feature
            .dtype
            .as_ref()
            .is_some_and(|dtype| dtype.as_ref() != "uint8")
        {
            let reason = "pictures are written anew with pixels of `uint8`";
            return Err(self.fault(raw.span(), field("dtype"), reason));
        }
        let size = match &feature.resize {
            None => None,
            Some(sizes) => match sizes.as_ref()[..] {
                [height @ 1..=16384, width @ 1..=16384] => {
                    let fits = |side: i64, wanted: u32| side == -1 || side == i64::from(wanted);
                    if !fits(sides[0], height) || !fits(sides[1], width) {
                        let reason = format!("pictures of {height} x {width} do not fit the shape {sides:?}");
                        return Err(self.fault(sizes.span(), field("resize"), reason));
                    }
                    Some((height, width))
                }
                _ => {
                    let reason = "wanted height and width, 1 to 16384: `resize = [224, 224]`";
                    return Err(self.fault(sizes.span(), field("resize"), reason));
                }
            },
        };
        let format = feature.reencode.as_ref().or(feature.encoding_format.as_ref());
        let jpeg = match format.map(|format| (format.as_ref().as_str(), format.span())) {
            Some(("jpeg", _)) => Some(feature.quality.as_ref().map_or(90, |quality| *quality.as_ref())),
            Some(("png", _)) | None => None,
            Some((other, span)) => {
                let reason = format!("`{other}` is not known; there are `jpeg` and `png`");
                return Err(self.fault(span, field("reencode"), reason));
            }
        };
        if let Some(quality) = &feature.quality {
            if jpeg.is_none() {
                return Err(self.fault(
                    quality.span(),
                    field("quality"),
                    "it is for `reencode = \"jpeg\"`",
                ));
            }
            if !(1..=100).contains(quality.as_ref()) {
                return Err(self.fault(quality.span(), field("quality"), "out of range, 1 to 100"));
            }
        }
        Ok(Some(PictureRule { size, jpeg, channels }))
    }

    fn check_class_label(&self, name: &str, raw: &Spanned<RawFeature>) -> Result<Feature, RecipeError> {
        let feature = raw.as_ref();
        let names = feature
            .names
            .as_ref()
            .map(|names| names.as_ref().clone())
            .unwrap_or_default();
        if let Some(given) = &feature.names {
            let mut seen = HashSet::new();
            if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
                let reason = format!("the class `{twice}` is there twice");
                return Err(self.fault(given.span(), format!("features.{name}.names"), reason));
            }
        }
        let num_classes = match (&feature.num_classes, names.len() as u64) {
            (None, 0) => {
                let field = format!("features.{name}.names");
                return Err(self.fault(raw.span(), field, "a class label needs `names` or `num_classes`"));
            }
            (Some(count), found) if found > 0 && *count.as_ref() != found => {
                let reason = format!("{} classes, but {found} names", count.as_ref());
                return Err(self.fault(count.span(), format!("features.{name}.num_classes"), reason));
            }
            (Some(count), _) => *count.as_ref(),
            (None, found) => found,
        };
        Ok(Feature::ClassLabel { num_classes, names })
    }

    fn check_supervised(
        &self,
        keys: Option<&Spanned<Vec<String>>>,
        features: &BTreeMap<String, Spanned<RawFeature>>,
    ) -> Result<Option<(String, String)>, RecipeError> {
        let Some(keys) = keys else {
            return Ok(None);
        };
        for key in keys.as_ref() {
            if !features.contains_key(key) {
                let reason = format!(
                    "there is no feature `{key}`{}",
                    did_you_mean(key, features.keys())
                );
                return Err(self.fault(keys.span(), "supervised_keys", reason));
            }
        }
        match keys.as_ref().as_slice() {
            [input, target] => Ok(Some((input.clone(), target.clone()))),
            other => {
                let reason = format!("wanted two features, input and target, found {}", other.len());
                Err(self.fault(keys.span(), "supervised_keys", reason))
            }
        }
    }

    pub(super) fn check_split_name(
        &self,
        name: &Spanned<String>,
        field: &str,
        splits: &[SplitSpec],
    ) -> Result<(), RecipeError> {
        let text = name.as_ref();
        if !is_split_name(text) {
            let reason = format!("`{text}` is not a split name: letters, digits and `_`, and not `all`");
            return Err(self.fault(name.span(), field, reason));
        }
        if splits.iter().any(|other| other.name == *text) {
            return Err(self.fault(name.span(), field, format!("two splits are called `{text}`")));
        }
        Ok(())
    }

    pub(super) fn check_shards(&self, shards: &Spanned<u64>, field: String) -> Result<(), RecipeError> {
        if (1..=100_000).contains(shards.as_ref()) {
            return Ok(());
        }
        let reason = format!("{} is out of range, 1 to 100000", shards.as_ref());
        Err(self.fault(shards.span(), field, reason))
    }

    fn check_splits(&self, raw: &RawSplits) -> Result<(Vec<SplitSpec>, Vec<SplitFiles>), RecipeError> {
        if raw.as_ref().is_empty() {
            return Err(self.fault(raw.span(), "splits", "there are no splits"));
        }
        let mut splits: Vec<SplitSpec> = Vec::new();
        let mut files = Vec::new();
        for (index, item) in raw.as_ref().iter().enumerate() {
            let split = item.as_ref();
            let field = |name: &str| format!("splits[{index}].{name}");
            let name = split.name.as_ref();
            self.check_split_name(&split.name, &field("name"), &splits)?;
            if let Some(shards) = &split.shards {
                self.check_shards(shards, field("shards"))?;
            }
            if let Some(fraction) = &split.fraction {
                let reason = format!("only readers of rows take this: {}", quoted_list(&ROW_KINDS));
                return Err(self.fault(fraction.span(), field("fraction"), reason));
            }
            if split.files.as_ref().is_empty() {
                return Err(self.fault(split.files_span(item), field("files"), "there are no files"));
            }
            splits.push(SplitSpec {
                name: name.clone(),
                shards: split.shards.as_ref().map(|shards| *shards.as_ref()),
                shards_for: split.examples,
            });
            files.push(SplitFiles {
                files: split.files.as_ref().clone(),
                file_records: split.file_records,
                ..SplitFiles::default()
            });
            if let (Some(values), Some(files)) = (&split.values, files.last_mut()) {
                files.values = values.as_ref().clone().into_iter().collect();
            }
        }
        Ok((splits, files))
    }

    fn check_reader(
        &self,
        raw: &Spanned<RawReader>,
        features: &[(String, Feature)],
        texts: &[(String, Template)],
        sources: &[SourceSpec],
    ) -> Result<ReaderSpec, RecipeError> {
        let reader = raw.as_ref();
        let kind = reader.kind.as_ref().as_str();
        let one = |what: &str, fits: &dyn Fn(&Feature) -> bool| -> Result<String, RecipeError> {
            let found: Vec<&String> = features
                .iter()
                .filter(|(_, f)| fits(f))
                .map(|(name, _)| name)
                .collect();
            match found.as_slice() {
                [name] => Ok((*name).clone()),
                other => {
                    let reason = format!("`{kind}` needs one {what}, and there are {}", other.len());
                    Err(self.fault(raw.span(), "features", reason))
                }
            }
        };
        let is_image = |f: &Feature| matches!(f, Feature::Image { .. });
        let is_label = |f: &Feature| matches!(f, Feature::ClassLabel { .. });
        let spec = match kind {
            "cifar" => {
                self.check_reader_fields(raw, &["labels", "label_files"])?;
                self.check_one_source(raw, sources)?;
                let image = one("image feature", &is_image)?;
                let expected = [Some(32), Some(32), Some(3)];
                if !features.iter().any(|(name, f)| *name == image && matches!(f, Feature::Image { shape, dtype: DType::UInt8, .. } if *shape == expected)) {
                    let field = format!("features.{image}");
                    return Err(self.fault(raw.span(), field, "`cifar` gives images of shape [32, 32, 3] and type `uint8`"));
                }
                let Some(labels) = &reader.labels else {
                    return Err(self.fault(
                        raw.span(),
                        "reader.labels",
                        "missing: which feature each label byte is",
                    ));
                };
                let RawLabels::Names(names) = labels.as_ref() else {
                    return Err(self.fault(labels.span(), "reader.labels", "wanted a list of names"));
                };
                for label in names {
                    if !features.iter().any(|(name, f)| name == label && is_label(f)) {
                        let known = features.iter().filter(|(_, f)| is_label(f)).map(|(name, _)| name);
                        let reason =
                            format!("there is no class label `{label}`{}", did_you_mean(label, known));
                        return Err(self.fault(labels.span(), "reader.labels", reason));
                    }
                }
                let label_files = reader.label_files.as_ref();
                for label in label_files.iter().flat_map(|files| files.as_ref().keys()) {
                    if !names.contains(label) {
                        let span = label_files.map_or(raw.span(), |files| files.span());
                        let reason = format!("`{label}` is not among `labels`");
                        return Err(self.fault(span, format!("reader.label_files.{label}"), reason));
                    }
                }
                ReaderSpec::Cifar {
                    labels: names.clone(),
                    image,
                    label_files: label_files
                        .map(|files| files.as_ref().clone().into_iter().collect())
                        .unwrap_or_default(),
                }
            }
            "idx" => {
                self.check_reader_fields(raw, &[])?;
                let image = one("image feature", &is_image)?;
                let fixed = |f: &Feature| {
                    matches!(f, Feature::Image { shape, dtype: DType::UInt8, .. }
                        if shape.len() == 3 && shape.iter().all(Option::is_some))
                };
                if !features.iter().any(|(name, f)| *name == image && fixed(f)) {
                    let reason = "`idx` gives images of type `uint8` and one shape, such as [28, 28, 1]";
                    return Err(self.fault(raw.span(), format!("features.{image}.shape"), reason));
                }
                ReaderSpec::Idx {
                    image,
                    label: one("class label", &is_label)?,
                }
            }
            "imagenet2012" => {
                self.check_reader_fields(raw, &[])?;
                let is_free = |name: &str| !texts.iter().any(|(text, _)| text == name);
                let free: Vec<(String, Feature)> = features
                    .iter()
                    .filter(|(name, feature)| matches!(feature, Feature::Text) && is_free(name))
                    .cloned()
                    .collect();
                let [(file_name, _)] = free.as_slice() else {
                    let reason = "`imagenet2012` needs one text without a value, for the name of the file";
                    return Err(self.fault(raw.span(), "features", reason));
                };
                ReaderSpec::Imagenet {
                    image: one("image feature", &is_image)?,
                    label: one("class label", &is_label)?,
                    file_name: file_name.clone(),
                }
            }
            "label-lists" => {
                self.check_reader_fields(raw, &["members"])?;
                self.check_one_source(raw, sources)?;
                let Some(members) = &reader.members else {
                    return Err(self.fault(
                        raw.span(),
                        "reader.members",
                        "missing: where the pictures lie, as in `images/{name}.jpg`",
                    ));
                };
                let [text] = members.as_ref().texts() else {
                    return Err(self.fault(members.span(), "reader.members", "wanted one text"));
                };
                Template::parse_with(text, &["name"])
                    .map_err(|reason| self.fault(members.span(), "reader.members", reason))?;
                ReaderSpec::LabelLists {
                    image: one("image feature", &is_image)?,
                    label: one("class label", &is_label)?,
                    members: text.clone(),
                }
            }
            "stl10" => {
                self.check_reader_fields(raw, &["class_names"])?;
                self.check_one_source(raw, sources)?;
                let image = one("image feature", &is_image)?;
                let expected = [Some(96), Some(96), Some(3)];
                if !features.iter().any(|(name, f)| *name == image && matches!(f, Feature::Image { shape, dtype: DType::UInt8, .. } if *shape == expected)) {
                    let field = format!("features.{image}");
                    return Err(self.fault(raw.span(), field, "`stl10` gives images of shape [96, 96, 3] and type `uint8`"));
                }
                ReaderSpec::Stl10 {
                    image,
                    label: one("class label", &is_label)?,
                    class_names: reader.class_names.as_ref().map(|name| name.as_ref().clone()),
                }
            }
            "oxford-iiit-pet" => {
                self.check_reader_fields(raw, &[])?;
                for name in crate::readers::PET_SOURCES {
                    if !sources.iter().any(|source| source.name == name) {
                        let reason = format!("`oxford-iiit-pet` reads a source `{name}`");
                        return Err(self.fault(reader.kind.span(), "sources", reason));
                    }
                }
                ReaderSpec::OxfordPets
            }
            other => unreachable!("the kind `{other}` was looked up before"),
        };
        for (name, _) in features {
            let read = match &spec {
                ReaderSpec::Cifar { labels, image, .. } => labels.contains(name) || name == image,
                ReaderSpec::Idx { image, label }
                | ReaderSpec::LabelLists { image, label, .. }
                | ReaderSpec::Stl10 { image, label, .. } => name == image || name == label,
                ReaderSpec::OxfordPets => crate::readers::PET_FEATURES.contains(&name.as_str()),
                ReaderSpec::Files { .. } | ReaderSpec::Rows(_) => true,
                ReaderSpec::Imagenet {
                    image,
                    label,
                    file_name,
                } => [image, label, file_name].contains(&name),
            };
            if !read && !texts.iter().any(|(text, _)| text == name) {
                let reason =
                    format!("the reader `{kind}` does not give this feature; a text may have a `value`");
                return Err(self.fault(raw.span(), format!("features.{name}"), reason));
            }
        }
        Ok(spec)
    }

    fn check_one_source(&self, raw: &Spanned<RawReader>, sources: &[SourceSpec]) -> Result<(), RecipeError> {
        let kind = &raw.as_ref().kind;
        match sources {
            [_, second, ..] => {
                let reason = format!(
                    "`{}` reads one archive, and there is also `{}`",
                    kind.as_ref(),
                    second.name
                );
                Err(self.fault(kind.span(), "sources", reason))
            }
            _ => Ok(()),
        }
    }

    fn check_files(
        &self,
        reader: &ReaderSpec,
        sources: &[SourceSpec],
        splits: &RawSplits,
    ) -> Result<(), RecipeError> {
        let mut seen: HashSet<(&String, Option<&Vec<String>>)> = HashSet::new();
        for (index, split) in splits.as_ref().iter().enumerate() {
            let files = &split.as_ref().files;
            // One pattern may be for several sources.
            let of = split.as_ref().sources.as_ref().map(|sources| sources.as_ref());
            let field = format!("splits[{index}].files");
            if let Some(twice) = files.as_ref().iter().find(|file| !seen.insert((*file, of))) {
                return Err(self.fault(files.span(), field, format!("`{twice}` is used twice")));
            }
            if let ReaderSpec::Imagenet { .. } = reader {
                let known = ["train", "validation", "test"];
                let name = &split.as_ref().name;
                if !known.contains(&name.as_ref().as_str()) {
                    let reason = format!("`imagenet2012` gives the splits {}", known.join(", "));
                    return Err(self.fault(name.span(), format!("splits[{index}].name"), reason));
                }
                for file in files.as_ref() {
                    if !sources.iter().any(|source| source.name == *file) {
                        let names = sources.iter().map(|source| &source.name);
                        let reason = format!("there is no source `{file}`{}", did_you_mean(file, names));
                        return Err(self.fault(files.span(), field, reason));
                    }
                }
            }
            if let ReaderSpec::Idx { .. } = reader {
                if files.as_ref().len() != 2 {
                    let reason = format!(
                        "`idx` needs two files, images and labels, found {}",
                        files.as_ref().len()
                    );
                    return Err(self.fault(files.span(), field, reason));
                }
                for file in files.as_ref() {
                    if !sources.iter().any(|source| source.name == *file) {
                        let names = sources.iter().map(|source| &source.name);
                        let reason = format!("there is no source `{file}`{}", did_you_mean(file, names));
                        return Err(self.fault(files.span(), field, reason));
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_output(&self, output: &RawOutput) -> Result<String, RecipeError> {
        let compression = output.compression.as_ref().map_or("zstd:3", |text| text.as_ref());
        let group_size = output.group_size.as_ref().map_or(1, |size| *size.as_ref());
        let options = format!("group_size:{group_size},{compression}");
        match WriteOptions::parse(&options) {
            Ok(_) => Ok(options),
            Err(error) => {
                let (field, span) = match (&output.compression, &output.group_size) {
                    (Some(compression), _) => ("output.compression", compression.span()),
                    (None, Some(size)) => ("output.group_size", size.span()),
                    (None, None) => ("output", 0..0),
                };
                Err(self.fault(span, field, error.to_string()))
            }
        }
    }
}

/// The schema with TFDS's mark of pictures whose values are classes, which changes how they are shown.
fn with_colormaps(features: Features, names: &[&str]) -> prep_formats::Result<Features> {
    if names.is_empty() {
        return Ok(features);
    }
    let files = features.to_files();
    let mut text = String::new();
    let mut labels = BTreeMap::new();
    for (file, content) in files {
        if file == "features.json" {
            text = content;
        } else {
            labels.insert(file, content);
        }
    }
    let mut json: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| prep_formats::Error::Invalid(format!("the schema is not JSON: {error}")))?;
    for name in names {
        json["featuresDict"]["features"][name]["image"]["useColormap"] = true.into();
    }
    Features::from_files("features.json", &json.to_string(), |file| {
        Ok(labels.get(file).cloned())
    })
}

/// `` `a`, `b` ``
pub(super) fn quoted_list(names: &[&str]) -> String {
    let all: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    all.join(", ")
}

pub(super) fn did_you_mean<'a>(wanted: &str, names: impl Iterator<Item = &'a String>) -> String {
    match near(wanted, names.map(String::as_str)).first() {
        Some(name) => format!("; did you mean `{name}`?"),
        None => String::new(),
    }
}

fn dtype_of(name: &str) -> Option<DType> {
    Some(match name {
        "bool" => DType::Bool,
        "uint8" => DType::UInt8,
        "int8" => DType::Int8,
        "uint16" => DType::UInt16,
        "int16" => DType::Int16,
        "uint32" => DType::UInt32,
        "int32" => DType::Int32,
        "uint64" => DType::UInt64,
        "int64" => DType::Int64,
        "float16" => DType::Float16,
        "bfloat16" => DType::BFloat16,
        "float32" => DType::Float32,
        "float64" => DType::Float64,
        "string" => DType::String,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::recipe::builtin;

    fn fault(text: &str) -> RecipeError {
        parse("my.toml", text, Path::new("")).unwrap_err()
    }

    /// A built-in recipe with one piece of text replaced.
    fn edited(name: &str, from: &str, to: &str) -> String {
        let text = builtin::text(name).unwrap();
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    }

    fn line_with(text: &str, part: &str) -> usize {
        text.lines().position(|line| line.contains(part)).unwrap() + 1
    }

    #[test]
    fn faults_name_line_and_field() {
        let cases = [
            ("format = 1", "format = 2", "format", "format 2"),
            ("\"cifar10\"", "\"../x\"", "name", "not a name"),
            ("\"3.0.2\"", "\"3.0\"", "version", "not a version"),
            ("\"tfds\"", "\"tdfs\"", "layout", "`tdfs`"),
            ("key = \"index\"", "key = \"id\"", "key", "`id`"),
            (
                "[\"image\", \"label\"]",
                "[\"image\", \"labels\"]",
                "supervised_keys",
                "did you mean `label`",
            ),
            (
                "[\"image\", \"label\"]",
                "[\"image\"]",
                "supervised_keys",
                "wanted two",
            ),
            ("kind = \"cifar\"", "kind = \"cfar\"", "reader.kind", "`cfar`"),
            (
                "labels = [\"label\"]",
                "labels = [\"labl\"]",
                "reader.labels",
                "did you mean `label`",
            ),
            (
                "sha256 = \"c4a3",
                "sha256 = \"zz\" #",
                "sources[0].sha256",
                "64 hex digits",
            ),
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10",
                "ftp://x/",
                "sources[0].url",
                "`ftp:`",
            ),
            ("{split}_{index:05}", "{spit}", "features.id.value", "`{spit}`"),
            ("\"airplane\", ", "\"bird\", ", "features.label.names", "twice"),
            (
                "dtype = \"uint8\"",
                "dtype = \"u8\"",
                "features.image.dtype",
                "`u8`",
            ),
            ("kind = \"text\"", "kind = \"txt\"", "features.id.kind", "`txt`"),
            (
                "kind = \"text\"",
                "kind = \"text\"\nshape = [1]",
                "features.id.shape",
                "has no `shape`",
            ),
            (
                "files = [\"test_batch.bin\"]",
                "files = [\"data_batch_1.bin\"]",
                "splits[1].files",
                "used twice",
            ),
            (
                "name = \"test\"",
                "name = \"train\"",
                "splits[1].name",
                "two splits",
            ),
            ("shards = 1", "shards = 0", "splits[0].shards", "out of range"),
            ("\"uncompressed\"", "\"lz77\"", "output.compression", "lz77"),
        ];
        for (from, to, field, reason) in cases {
            let text = edited("cifar10", from, to);
            let fault = fault(&text);
            assert_eq!(fault.field, field, "{fault}");
            assert!(fault.reason.contains(reason), "{fault}");
            let marker = to.lines().last().unwrap();
            let line = fault.line.unwrap();
            assert!(
                line == line_with(&text, marker)
                    || text.lines().skip(line - 1).take(3).any(|l| l.contains(marker)),
                "{fault}: wanted near line {}",
                line_with(&text, marker)
            );
        }
    }

    #[test]
    fn faults_of_type_and_syntax_name_line_and_field() {
        let text = edited("cifar10", "bytes = 170052171", "bytes = \"many\"");
        let error = fault(&text);
        assert_eq!(error.line, Some(line_with(&text, "\"many\"")));
        assert_eq!(error.field, "sources.bytes");
        assert!(
            error.to_string().starts_with(&format!(
                "my.toml, line {}, `sources.bytes`: ",
                error.line.unwrap()
            )),
            "{error}"
        );

        let text = edited("cifar10", "[output]", "[output]\ntint = 1");
        let error = fault(&text);
        assert_eq!(error.line, Some(line_with(&text, "tint")));
        assert!(error.reason.contains("tint"), "{error}");

        let text = edited("cifar10", "[output]", "[output");
        assert_eq!(fault(&text).line, Some(line_with(&text, "[output")));
        assert!(fault("").reason.contains("format"));
    }

    #[test]
    fn idx_files_must_be_sources() {
        let text = edited(
            "mnist",
            "files = [\"train-images-idx3-ubyte.gz\"",
            "files = [\"train-image-idx3-ubyte.gz\"",
        );
        let error = fault(&text);
        assert_eq!(error.field, "splits[0].files");
        assert!(
            error
                .reason
                .contains("did you mean `train-images-idx3-ubyte.gz`?"),
            "{error}"
        );
    }

    #[test]
    fn paths_are_relative_to_the_recipe() {
        let text = edited(
            "cifar10",
            "url = \"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz\"",
            "path = \"data/c.tar.gz\"",
        );
        let recipe = parse("my.toml", &text, Path::new("/recipes")).unwrap();
        assert_eq!(
            recipe.spec.sources[0].place,
            SourcePlace::Path("/recipes/data/c.tar.gz".into())
        );
    }
}
