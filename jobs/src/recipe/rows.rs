//! Recipes of rows: datasets whose sources are tables, records or files of one's own.

use std::collections::HashSet;

use prep_formats::features::{Feature, Features};
use toml::Spanned;

use prep_formats::store::{self, Location};

use crate::builder::{DatasetSpec, Layout, SourcePlace, SourceSpec, SplitSpec};
use crate::convert::filter;
use crate::fetch;
use crate::readers::rows::picture::PictureRule;
use crate::recipe::parse::{Checker, RawConfig, RawLabels, RawReader, RawRecipe, RawSplits, did_you_mean};
use crate::recipe::{Pattern, ReaderSpec, Recipe, RecipeError, SplitFiles};

/// The readers of rows.
pub(crate) const ROW_KINDS: [&str; 12] = [
    "array_record",
    "csv",
    "image_folder",
    "jsonl",
    "npz",
    "parquet",
    "text",
    "text_files",
    "tfds",
    "tfrecord",
    "tsv",
    "webdataset",
];

/// What a recipe says of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct RowsSpec {
    /// The reader.
    pub(crate) kind: String,
    pub(crate) options: RowOptions,
    /// Features that the recipe states, by the names of columns; all others follow from the sources.
    pub(crate) declared: Vec<(String, Declared)>,
    /// What becomes of pictures, by the names of columns.
    pub(crate) pictures: Vec<(String, PictureRule)>,
    /// What orders an example, and is hashed for fractions.
    pub(crate) key: Option<KeyRule>,
    /// Which rows stay; parsed before.
    pub(crate) filter: Option<String>,
    pub(crate) select: Option<Vec<String>>,
    pub(crate) drop: Vec<String>,
    /// Columns, or parts of them as in `a/b`, whose missing lists and nested values are empty ones.
    pub(crate) missing_as_empty: Vec<String>,
    /// (column, feature).
    pub(crate) rename: Vec<(String, String)>,
    /// For each of the recipe's sources.
    pub(crate) sources: Vec<SourceRule>,
    /// Shares of the splits as they add up, where they are dealt by a hash.
    pub(crate) fractions: Option<Vec<f64>>,
    /// Where in the recipe each split stands, for messages.
    pub(crate) splits_at: Vec<String>,
    /// (input, target), by the names of features: looked for when these are known.
    pub(crate) supervised: Option<(String, String)>,
}

/// Settings of a reader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RowOptions {
    pub(crate) delimiter: Option<u8>,
    /// `None`: texts have no quotes.
    pub(crate) quote: Option<u8>,
    pub(crate) has_header: bool,
    pub(crate) columns: Vec<String>,
    /// Texts that stand for nothing.
    pub(crate) nulls: Vec<String>,
    /// Types are taken from so many rows of each file; `None` for all.
    pub(crate) sample: Option<u64>,
    /// Which files of archives are read; all that look like the reader's where there is none.
    pub(crate) members: Vec<Pattern>,
    /// Whether folders are classes; `None` to see.
    pub(crate) labels: Option<bool>,
    /// Whether names are cut at their last dot, not the first.
    pub(crate) last_dot: bool,
}

/// A feature of a recipe.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Declared {
    /// As it is.
    Feature(Feature),
    /// A class label whose classes are those of the data.
    Classes,
}

/// A source of a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceRule {
    /// Its name, by which splits call it.
    pub(crate) name: String,
    /// Its path or address as the recipe has it.
    pub(crate) text: Option<String>,
    /// Where in the recipe it stands, for messages.
    pub(crate) at: String,
    /// How many files share a shard, on average.
    pub(crate) group: Option<u64>,
    /// Whether it is not looked for, as its shards are taken over from an earlier version.
    pub(crate) is_taken_over: bool,
}

/// What orders an example: a text with names of columns, or of the file, in braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRule {
    pub(crate) pieces: Vec<KeyPiece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyPiece {
    Literal(String),
    /// `path`, `file`, `stem`, `folder`, `row`, or else a column.
    Name(String),
}

/// Names in keys that are not columns.
pub(crate) const KEY_NAMES: [&str; 5] = ["path", "file", "stem", "folder", "row"];

impl KeyRule {
    /// Parses `{user}-{row}`, or the name of one column.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the key is empty; name a column, as in `{id}`".to_owned());
        }
        if !text.contains(['{', '}']) {
            return Ok(Self {
                pieces: vec![KeyPiece::Name(text.to_owned())],
            });
        }
        let unpaired = || format!("`{text}` has a brace without its other half");
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find(['{', '}']) {
            if start > 0 {
                pieces.push(KeyPiece::Literal(rest[..start].to_owned()));
            }
            let inside = rest[start..].strip_prefix('{').ok_or_else(unpaired)?;
            let end = inside.find('}').ok_or_else(unpaired)?;
            if end == 0 {
                return Err(format!("`{text}` has an empty name in braces"));
            }
            pieces.push(KeyPiece::Name(inside[..end].to_owned()));
            rest = &inside[end + 1..];
        }
        if !rest.is_empty() {
            pieces.push(KeyPiece::Literal(rest.to_owned()));
        }
        Ok(Self { pieces })
    }

    /// The columns that it names.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            KeyPiece::Name(name) if !KEY_NAMES.contains(&name.as_str()) => Some(name.as_str()),
            _ => None,
        })
    }
}

impl Checker<'_> {
    /// The recipe of one config, where its reader is one of rows.
    pub(super) fn check_rows(
        &self,
        raw: &RawRecipe,
        config: Option<&RawConfig>,
        reader: &Spanned<RawReader>,
    ) -> Result<Recipe, RecipeError> {
        let span = config.map_or(0..0, |config| config.name.span());
        let sources_raw = config
            .and_then(|config| config.sources.as_ref())
            .or(raw.sources.as_ref())
            .ok_or_else(|| self.fault(span, "sources", "missing"))?;
        let features = config
            .and_then(|config| config.features.as_ref())
            .or(raw.features.as_ref());
        let splits = config
            .and_then(|config| config.splits.as_ref())
            .or(raw.splits.as_ref());
        let key = config.and_then(|config| config.key.as_ref()).or(raw.key.as_ref());
        let supervised = config
            .and_then(|config| config.supervised_keys.as_ref())
            .or(raw.supervised_keys.as_ref());
        let version = self.check_version(raw.version.as_ref())?;
        if let Some(config) = &raw.config {
            self.check_name("config", config)?;
        }
        let kind = reader.as_ref().kind.as_ref().as_str();
        let sources = self.check_sources(sources_raw)?;
        let mut rules = Vec::new();
        for (index, (source, spec)) in sources_raw.as_ref().iter().zip(&sources).enumerate() {
            let source = source.as_ref();
            if source.optional {
                let reason = format!("sources of the reader `{kind}` cannot be optional");
                return Err(self.fault(
                    reader.as_ref().kind.span(),
                    format!("sources[{index}].optional"),
                    reason,
                ));
            }
            let group = source.group.as_ref();
            if let Some(group) = group.filter(|group| !(1..=1 << 20).contains(group.as_ref())) {
                let reason = format!("{} is out of range, 1 to {}", group.as_ref(), 1 << 20);
                return Err(self.fault(group.span(), format!("sources[{index}].group"), reason));
            }
            let (span, part) = match &source.path {
                Some(path) => (path.span(), "path"),
                None => (reader.span(), "name"),
            };
            rules.push(SourceRule {
                name: spec.name.clone(),
                text: source
                    .path
                    .as_ref()
                    .or(source.url.as_ref())
                    .map(|text| text.as_ref().clone()),
                at: self.place(span, &format!("sources[{index}].{part}")),
                group: group.map(|group| *group.as_ref()),
                is_taken_over: false,
            });
        }
        let options = self.check_row_options(reader)?;
        let mut declared = Vec::new();
        let mut pictures = Vec::new();
        for (name, feature) in features.into_iter().flatten() {
            declared.push((name.clone(), self.check_declared(name, feature)?));
            if let Some(rule) = self.check_picture(name, feature)? {
                pictures.push((name.clone(), rule));
            }
        }
        let key = key
            .map(|key| KeyRule::parse(key.as_ref()).map_err(|reason| self.fault(key.span(), "key", reason)))
            .transpose()?;
        if let Some(text) = &raw.filter {
            filter::parse(text.as_ref())
                .map_err(|fault| self.fault(text.span(), "filter", fault.show(text.as_ref())))?;
        }
        let select = self.check_names_of("select", raw.select.as_ref())?;
        let drop = self
            .check_names_of("drop", raw.drop.as_ref())?
            .unwrap_or_default();
        if let (Some(_), Some(dropped)) = (&select, raw.drop.as_ref()) {
            let reason = "a recipe has `select` or `drop`, not both";
            return Err(self.fault(dropped.span(), "drop", reason));
        }
        let missing_as_empty = self
            .check_names_of("missing_as_empty", raw.missing_as_empty.as_ref())?
            .unwrap_or_default();
        let rename = self.check_rename(raw.rename.as_ref(), select.as_deref(), &drop)?;
        let supervised = match supervised {
            None => None,
            Some(keys) => match keys.as_ref().as_slice() {
                [input, target] => Some((input.clone(), target.clone())),
                other => {
                    let reason = format!("wanted two features, input and target, found {}", other.len());
                    return Err(self.fault(keys.span(), "supervised_keys", reason));
                }
            },
        };
        let layout = match &raw.layout {
            Some(layout) if layout.as_ref() == "tfds" => Layout::Tfds,
            _ => Layout::BySource,
        };
        let splits_at = match splits {
            Some(raw) if raw.as_ref().fractions.is_empty() => {
                let list = raw.as_ref().iter().enumerate();
                list.map(|(index, split)| {
                    self.place(
                        split.as_ref().files_span(split),
                        &format!("splits[{index}].files"),
                    )
                })
                .collect()
            }
            _ => Vec::new(),
        };
        let (splits, files, fractions) = match splits {
            // The folder says which there are.
            None if kind == "tfds" => (Vec::new(), Vec::new(), None),
            splits => self.check_row_splits(splits, &sources, layout)?,
        };
        let output = config
            .and_then(|config| config.output.as_ref())
            .unwrap_or(&raw.output);
        let mut spec = DatasetSpec::new(raw.name.as_ref().clone(), version, Features::default());
        self.describe(&mut spec, raw, config);
        spec.supervised_keys.clone_from(&supervised);
        spec.layout = layout;
        spec.options = self.check_output(output)?;
        spec.sources = sources;
        let num_splits = splits.len();
        spec.splits = splits;
        Ok(Recipe {
            text: self.text.into(),
            spec,
            reader: ReaderSpec::Rows(Box::new(RowsSpec {
                kind: kind.to_owned(),
                options,
                declared,
                pictures,
                key,
                filter: raw.filter.as_ref().map(|text| text.as_ref().clone()),
                select,
                drop,
                missing_as_empty,
                rename,
                sources: rules,
                fractions,
                splits_at: if splits_at.is_empty() {
                    vec!["splits".to_owned(); num_splits]
                } else {
                    splits_at
                },
                supervised,
            })),
            files,
            texts: Vec::new(),
        })
    }

    fn check_row_options(&self, raw: &Spanned<RawReader>) -> Result<RowOptions, RecipeError> {
        let reader = raw.as_ref();
        let kind = reader.kind.as_ref().as_str();
        let taken: &[&str] = match kind {
            "csv" | "tsv" => &[
                "members",
                "sample",
                "delimiter",
                "quote",
                "header",
                "columns",
                "nulls",
            ],
            "jsonl" | "tfrecord" | "array_record" => &["members", "sample"],
            "image_folder" => &["members", "labels"],
            "webdataset" => &["members", "sample", "dot"],
            "tfds" => &[],
            _ => &["members"],
        };
        self.check_reader_fields(raw, taken)?;
        let byte = |field: &str, text: Option<&Spanned<String>>| -> Result<Option<Option<u8>>, RecipeError> {
            let Some(text) = text else { return Ok(None) };
            match text.as_ref().as_bytes() {
                [] => Ok(Some(None)),
                [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r') => Ok(Some(Some(*byte))),
                _ => {
                    let reason = format!("`{}` is not one character of ASCII", text.as_ref().escape_debug());
                    Err(self.fault(text.span(), format!("reader.{field}"), reason))
                }
            }
        };
        let delimiter = byte("delimiter", reader.delimiter.as_ref())?;
        if let (Some(None), Some(text)) = (delimiter, &reader.delimiter) {
            return Err(self.fault(text.span(), "reader.delimiter", "it is empty"));
        }
        let has_header = reader.header.as_ref().is_none_or(|header| *header.as_ref());
        let columns = self
            .check_names_of("reader.columns", reader.columns.as_ref())?
            .unwrap_or_default();
        if !has_header && columns.is_empty() && matches!(kind, "csv" | "tsv") {
            let span = reader.header.as_ref().map_or(raw.span(), Spanned::span);
            let reason = "without a header the columns need names: `columns = [\"a\", \"b\"]`";
            return Err(self.fault(span, "reader.columns", reason));
        }
        if let Some(sample) = reader.sample.as_ref().filter(|sample| *sample.as_ref() == 0) {
            return Err(self.fault(sample.span(), "reader.sample", "it is 0; wanted a number of rows"));
        }
        let mut members = Vec::new();
        for text in reader.members.iter().flat_map(|members| members.as_ref().texts()) {
            let span = reader.members.as_ref().map_or(raw.span(), Spanned::span);
            let pattern =
                Pattern::parse(text).map_err(|reason| self.fault(span, "reader.members", reason))?;
            members.push(pattern);
        }
        let labels = match reader
            .labels
            .as_ref()
            .map(|labels| (labels.span(), labels.as_ref()))
        {
            None => None,
            Some((_, RawLabels::Are(labels))) => Some(*labels),
            Some((span, RawLabels::Names(_))) => {
                let reason = "wanted `true` or `false`: whether the folder of a picture is its class";
                return Err(self.fault(span, "reader.labels", reason));
            }
        };
        let last_dot = match reader.dot.as_ref().map(|dot| (dot.span(), dot.as_ref().as_str())) {
            None | Some((_, "first")) => false,
            Some((_, "last")) => true,
            Some((span, other)) => {
                let reason = format!("`{other}` is neither `first` nor `last`");
                return Err(self.fault(span, "reader.dot", reason));
            }
        };
        Ok(RowOptions {
            labels,
            last_dot,
            delimiter: delimiter.flatten(),
            quote: byte("quote", reader.quote.as_ref())?.unwrap_or(Some(b'"')),
            has_header,
            columns,
            nulls: reader
                .nulls
                .as_ref()
                .map(|nulls| nulls.as_ref().clone())
                .unwrap_or_default(),
            sample: reader.sample.as_ref().map(|sample| *sample.as_ref()),
            members,
        })
    }

    /// A list of names, each once.
    fn check_names_of(
        &self,
        field: &str,
        names: Option<&Spanned<Vec<String>>>,
    ) -> Result<Option<Vec<String>>, RecipeError> {
        let Some(names) = names else { return Ok(None) };
        let mut seen = HashSet::new();
        if let Some(twice) = names.as_ref().iter().find(|name| !seen.insert(*name)) {
            return Err(self.fault(names.span(), field, format!("`{twice}` is there twice")));
        }
        if names.as_ref().is_empty() {
            return Err(self.fault(names.span(), field, "the list is empty"));
        }
        Ok(Some(names.as_ref().clone()))
    }

    fn check_rename(
        &self,
        raw: Option<&Spanned<std::collections::BTreeMap<String, String>>>,
        select: Option<&[String]>,
        drop: &[String],
    ) -> Result<Vec<(String, String)>, RecipeError> {
        let Some(raw) = raw else { return Ok(Vec::new()) };
        let mut new_names = HashSet::new();
        for (old, new) in raw.as_ref() {
            let field = format!("rename.{old}");
            if new.is_empty() {
                return Err(self.fault(raw.span(), field, "the new name is empty"));
            }
            if !new_names.insert(new) {
                return Err(self.fault(raw.span(), field, format!("two columns would be called `{new}`")));
            }
            let is_gone = drop.contains(old) || select.is_some_and(|select| !select.contains(old));
            if is_gone {
                let reason = "the column is renamed, and is not among those that stay";
                return Err(self.fault(raw.span(), field, reason));
            }
        }
        Ok(raw.as_ref().clone().into_iter().collect())
    }

    #[expect(
        clippy::type_complexity,
        reason = "splits, their files and their shares belong together"
    )]
    fn check_row_splits(
        &self,
        raw: Option<&RawSplits>,
        sources: &[SourceSpec],
        layout: Layout,
    ) -> Result<(Vec<SplitSpec>, Vec<SplitFiles>, Option<Vec<f64>>), RecipeError> {
        let Some(raw) = raw else {
            let train = SplitSpec {
                name: "train".to_owned(),
                shards: None,
                shards_for: None,
            };
            return Ok((vec![train], vec![SplitFiles::default()], None));
        };
        // As `[splits]`, or as `fraction` of each.
        let mut shares: Vec<(String, std::ops::Range<usize>, f64)> = Vec::new();
        let mut splits: Vec<SplitSpec> = Vec::new();
        let mut files = Vec::new();
        for (name, share) in &raw.as_ref().fractions {
            self.check_split_name(name, "splits", &splits)?;
            splits.push(SplitSpec {
                name: name.as_ref().clone(),
                shards: None,
                shards_for: None,
            });
            files.push(SplitFiles::default());
            shares.push((format!("splits.{}", name.as_ref()), share.span(), *share.as_ref()));
        }
        for (index, item) in raw.as_ref().iter().enumerate() {
            let split = item.as_ref();
            let field = |name: &str| format!("splits[{index}].{name}");
            self.check_split_name(&split.name, &field("name"), &splits)?;
            if let Some(shards) = &split.shards {
                if layout == Layout::BySource {
                    let reason = "in the layout `by-source` each source has shards of its own; set `layout = \"tfds\"` for a number";
                    return Err(self.fault(shards.span(), field("shards"), reason));
                }
                self.check_shards(shards, field("shards"))?;
            }
            if let Some(values) = &split.values {
                let reason = "only the reader `files` takes this";
                return Err(self.fault(values.span(), field("values"), reason));
            }
            if let Some(fraction) = &split.fraction {
                if !split.files.as_ref().is_empty() || split.sources.is_some() {
                    let reason = "a split is a `fraction` of all, or certain `files` or `sources`; not both";
                    return Err(self.fault(fraction.span(), field("fraction"), reason));
                }
                shares.push((field("fraction"), fraction.span(), *fraction.as_ref()));
            }
            splits.push(SplitSpec {
                name: split.name.as_ref().clone(),
                shards: split.shards.as_ref().map(|shards| *shards.as_ref()),
                shards_for: split.examples,
            });
            let mut of_split = SplitFiles {
                files: split.files.as_ref().clone(),
                ..SplitFiles::default()
            };
            for text in split.files.as_ref() {
                let pattern = Pattern::parse(text)
                    .map_err(|reason| self.fault(split.files.span(), field("files"), reason))?;
                of_split.patterns.push(pattern);
            }
            for name in split.sources.iter().flat_map(|names| names.as_ref()) {
                if !sources.iter().any(|source| source.name == *name) {
                    let span = split.sources.as_ref().map_or(0..0, Spanned::span);
                    let names = sources.iter().map(|source| &source.name);
                    let reason = format!("there is no source `{name}`{}", did_you_mean(name, names));
                    return Err(self.fault(span, field("sources"), reason));
                }
                of_split.sources.push(name.clone());
            }
            files.push(of_split);
        }
        if splits.is_empty() {
            return Err(self.fault(raw.span(), "splits", "there are no splits"));
        }
        if shares.is_empty() {
            if let [_, _, ..] = splits.as_slice() {
                let all = files
                    .iter()
                    .position(|split| split.files.is_empty() && split.sources.is_empty());
                if let Some(index) = all {
                    let reason = "it would have all files, also those of the other splits: say which with `files` or `sources`, or what `fraction`";
                    return Err(self.fault(
                        raw.as_ref()[index].span(),
                        format!("splits[{index}].files"),
                        reason,
                    ));
                }
            }
            return Ok((splits, files, None));
        }
        if shares.len() < splits.len() {
            let reason = "of splits by `fraction`, each needs one";
            return Err(self.fault(raw.span(), "splits", reason));
        }
        let mut sum = 0.0;
        let mut ends = Vec::new();
        for (field, span, share) in &shares {
            if !(*share > 0.0 && *share <= 1.0) {
                let reason = format!("{share} is not a share: more than 0, and at most 1");
                return Err(self.fault(span.clone(), field.clone(), reason));
            }
            sum += share;
            ends.push(sum);
        }
        if (sum - 1.0f64).abs() > 1e-6 {
            let reason = format!("the fractions add up to {sum}; wanted 1, so that no example is left over");
            return Err(self.fault(raw.span(), "splits", reason));
        }
        if let Some(last) = ends.last_mut() {
            *last = 1.0;
        }
        Ok((splits, files, Some(ends)))
    }
}

/// Where the files of a source lie, and how it is called: a path that stands for itself, or a folder and a pattern of paths in it.
#[derive(Debug)]
pub(crate) enum Files {
    One(std::path::PathBuf),
    Folder(std::path::PathBuf, Pattern),
}

/// Takes the path of a source apart; `None` for one that is no local path.
pub(crate) fn files_of(place: &SourcePlace) -> Result<Option<Files>, String> {
    let SourcePlace::Path(path) = place else {
        return Ok(None);
    };
    if path.is_file() {
        return Ok(Some(Files::One(path.clone())));
    }
    let everything = || Pattern::parse("**");
    if path.is_dir() {
        return Ok(Some(Files::Folder(path.clone(), everything()?)));
    }
    let mut folder = std::path::PathBuf::new();
    let mut rest = Vec::new();
    for part in path.components() {
        let text = part.as_os_str().to_str();
        let is_plain = text.is_none_or(|text| !text.contains(['*', '?', '[', '{']));
        if rest.is_empty() && is_plain {
            folder.push(part);
        } else {
            rest.push(text.ok_or_else(|| format!("{}: the pattern is not UTF-8", path.display()))?);
        }
    }
    if rest.is_empty() {
        return Ok(Some(Files::One(path.clone())));
    }
    let pattern = pattern_of(&rest.join("/"))?;
    if folder.as_os_str().is_empty() {
        folder.push(".");
    }
    Ok(Some(Files::Folder(folder, pattern)))
}

fn pattern_of(text: &str) -> Result<Pattern, String> {
    if text.contains(['?', '[']) {
        return Err(format!(
            "`{text}`: patterns have `*` (any text without `/`), `**` (any text) and `{{a=x|y}}`, and neither `?` nor `[`"
        ));
    }
    Pattern::parse(text)
}

/// Takes the address of a source in an object store apart: the folder, and the pattern of what is meant below it; all, where that is a folder. `None`
/// for an address of one object, or of a web server.
///
/// Asks the store once whether there is such an object, where there is no pattern.
pub(crate) fn objects_of(place: &SourcePlace, text: &str) -> Result<Option<(Location, Pattern)>, String> {
    let SourcePlace::Url(url) = place else {
        return Ok(None);
    };
    if !fetch::is_store(url.scheme()) {
        return Ok(None);
    }
    let whole = || Location::parse(text).map_err(|error| error.to_string());
    let Some(start) = text.find(['*', '{']) else {
        let object = whole()?;
        let is_object = !text.ends_with('/')
            && store::size_of_file(&object)
                .map_err(|error| error.to_string())?
                .is_some();
        return Ok(match is_object {
            true => None,
            false => Some((object, Pattern::parse("**")?)),
        });
    };
    let slash = text[..start].rfind('/').unwrap_or(0);
    let (folder, rest) = (&text[..slash], &text[slash + 1..]);
    let Some((_, bucket)) = folder.split_once("://") else {
        return Err(format!(
            "`{text}`: a pattern has its place in the path, behind the bucket"
        ));
    };
    if bucket.is_empty() {
        return Err(format!("`{text}`: there is no bucket"));
    }
    let folder = Location::parse(folder).map_err(|error| error.to_string())?;
    Ok(Some((folder, pattern_of(rest)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_texts_with_names() {
        let rule = KeyRule::parse("{user}-{row}").unwrap();
        assert_eq!(rule.columns().collect::<Vec<_>>(), ["user"]);
        assert_eq!(rule.pieces.len(), 3);
        assert_eq!(
            KeyRule::parse("id").unwrap().pieces,
            [KeyPiece::Name("id".to_owned())]
        );
        for wrong in ["", "{", "}", "a}", "{a", "{}"] {
            assert!(KeyRule::parse(wrong).is_err(), "{wrong}");
        }
    }
}
