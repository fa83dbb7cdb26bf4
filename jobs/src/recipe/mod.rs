//! Recipes: what a dataset is made from, as TOML.
//!
//! ```toml
//! format = 1                       # of recipes
//! name = "letters"
//! version = "1.0.0"                # the default
//! description = "Scanned letters."
//! layout = "tfds"                  # order and shards as TFDS; the default
//! key = "index"                    # what orders a record: its position among its split's files; the default
//!
//! [[sources]]
//! name = "images.gz"               # file name, which `--from FOLDER` looks for
//! url = "https://example.org/images.gz"    # also s3:, gs:, az:; or `path`, relative to the recipe
//! bytes = 7840016
//! sha256 = "..."
//!
//! [reader]
//! kind = "idx"                     # see below
//!
//! [features.image]
//! kind = "image"
//! shape = [28, 28, 1]
//!
//! [features.label]
//! kind = "class_label"
//! names = ["a", "b"]
//!
//! [[splits]]
//! name = "train"
//! files = ["images.gz", "labels.gz"]
//! shards = 1                       # else TFDS's rule by size; with `examples = 8000` only for that many
//!
//! [output]
//! compression = "uncompressed"     # any of ArrayRecord's; the default is `zstd:3`
//! group_size = 1
//! ```
//!
//! | reader | what a split's `files` are |
//! |---|---|
//! | `idx` | two sources: images and labels |
//! | `cifar` | members of a tar archive with CIFAR's binary batches |
//! | `imagenet2012` | one of ILSVRC 2012's archives, for the splits `train`, `validation` and `test` |
//! | `files` | [patterns](Pattern) of paths in tar and zip archives, and in folders; each file is an example |
//! | `label-lists` | members of an archive that list its pictures by class, as JSON |
//! | `stl10` | members of a tar archive: pictures, and labels where there are such |
//! | `oxford-iiit-pet` | members of `annotations.tar.gz` that list pictures |
//!
//! Pictures by class, in folders of an archive that are named as the classes are:
//!
//! ```toml
//! key = "{path}"                   # the default of `files`; also {file}, {stem}, {folder}, and what patterns catch
//!
//! [reader]
//! kind = "files"
//!
//! [features.image]                 # the one feature without a value is the contents: an image, a text or a tensor (TIFF)
//! kind = "image"
//! shape = [-1, -1, 3]
//!
//! [features.label]
//! kind = "class_label"
//! names = ["cat", "dog"]
//! value = "{label:lower}"          # default: `{label}`, the feature's own name
//!
//! [[splits]]
//! name = "train"
//! sources = ["train.zip"]          # default: all
//! files = ["**/{label}/*.jpg"]
//! values = { label = -1 }          # instead, where a split has no labels
//! ```
//!
//! # Data of one's own
//!
//! Tables, records and texts need no code and few words: types of columns follow from the data.
//!
//! ```toml
//! format = 1
//! name = "reviews"
//! licence = "CC-BY-4.0"
//! filter = "stars >= 1 and lang in ('de', 'en')"   # as of `prep convert`, by the names of columns
//! drop = ["internal_id"]           # or `select = [..]`
//! key = "{user}-{id}"              # or one column: `key = "id"`; also {path}, {file}, {stem}, {folder}, {row}
//!
//! [rename]
//! body = "text"
//!
//! [[sources]]
//! path = "data/*.jsonl.gz"         # a file, a folder or a pattern, from the recipe's folder; or `url` and `sha256`
//!
//! [reader]
//! kind = "jsonl"
//!
//! [features.stars]                 # what is not said follows from all rows
//! kind = "class_label"             # without names: the values of the data, sorted
//!
//! [splits]                         # by a hash of the key, or of the record where there is none
//! train = 0.9
//! test = 0.1
//! ```
//!
//! | reader | a row is | settings |
//! |---|---|---|
//! | `jsonl` | a line, a JSON object | `sample` |
//! | `csv`, `tsv` | a record of texts; types are what all texts of a column look like | `delimiter`, `quote`, `header`, `columns`, `nulls`, `sample` |
//! | `text` | a line: `text` | |
//! | `text_files` | a file: `path` and `text` | |
//! | `parquet` | a row; Hugging Face's notes on pictures, classes, sounds and arrays count | |
//! | `npz` | what arrays have at one position of their first dimension; `.npy` is the column `data` | |
//! | `tfrecord`, `array_record` | a `tf.train.Example` | `sample` |
//! | `tfds` | an example of a folder that TFDS wrote, TFRecord or ArrayRecord: `path` is the folder, whose features and splits it takes over | |
//!
//! - In an object store, `url = "s3://bucket/data/*.jsonl"` is a pattern or a folder as `path` is: the store is asked what there is, and the
//!   objects are fetched before they are read.
//! - Files may be packed by gzip or Zstandard (text formats, TFRecord), and lie in zip and tar archives, packed or not: those of the reader's
//!   endings are read, or those that fit `members`.
//! - A file belongs to the split whose `files` (patterns of whole paths: `data/train/*.jsonl`, or paths in an archive) or `sources` (names) it fits:
//!   one that fits none or two is an error, and so is a split without files. Without `splits` all is `train`.
//! - `prep register --in-place` leaves the files of `tfrecord`, `array_record` and `tfds` where they are, also in a bucket or on a web server
//!   (`url = "s3://BUCKET/DATA/*.tfrecord"`): then records stay as they are stored.
//! - `layout = "by-source"` is the default here: each file has shards of its own, in the order of its rows, so that a new file changes no other
//!   shard. Of `text_files` 1024 files share a shard, on average; `group = N` beside `path` says another number, for other readers too.
//! - `sample = N` takes types from the first N rows of each file; every row is held against them all the same.
//! - `[features.NAME]` also knows `kind = "sequence"` (`feature = { .. }`, `length`), `kind = "dict"` (`features = { .. }`), `optional = true`, and
//!   for tensors `encoding = "bytes"`, which keeps all bits of `float64`. `kind = "text"` takes any value, others than texts as JSON.
//! - A list, or an object with values in it, may be empty and not missing, as no feature of TFDS tells these apart: one that is missing is an error,
//!   unless `missing_as_empty = ["tags", "meta/links"]` names its column. A list that lacks one of its values can be kept as text only.
//! - Pictures are stored as they are, unless `resize = [height, width]` or `reencode = "jpeg"` (`quality = 90`) or `"png"` say otherwise.
//!
//! Several datasets of one kind are configs of one recipe. Each `[[configs]]` has a `name`, may have a `description`, and replaces
//! what it brings of `sources`, `reader`, `features`, `splits`, `key`, `supervised_keys`, `output`; the first is the default.

pub mod builtin;
pub(crate) mod edit;
mod parse;
mod pattern;
pub(crate) mod rows;

use std::path::Path;
use std::sync::Arc;

use crate::builder::DatasetSpec;

pub(crate) use parse::{declared_features, is_split_name};
pub use parse::{parse, parse_all};
pub(crate) use pattern::{Caught, Names};
pub use pattern::{Pattern, Template};
pub use prep_catalog::near;
pub use rows::RowsSpec;

/// A recipe that passed all checks.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The whole text.
    pub text: Arc<str>,
    /// What every builder states.
    pub spec: DatasetSpec,
    /// How sources become examples.
    pub reader: ReaderSpec,
    /// Which files make each split, in the order of `spec.splits`.
    pub files: Vec<SplitFiles>,
    /// Text features that are made from an example's split and index.
    pub texts: Vec<(String, Template)>,
}

/// The reader of a recipe, and its settings.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ReaderSpec {
    /// CIFAR's binary batches in a tar archive.
    Cifar {
        /// The class label features, in the order of the label bytes of a record.
        labels: Vec<String>,
        /// The image feature.
        image: String,
        /// Members with the names of a label, one a line: (feature, file name).
        label_files: Vec<(String, String)>,
    },
    /// ILSVRC 2012's archives, one for each of the splits `train`, `validation` and `test`.
    Imagenet {
        /// The image feature.
        image: String,
        /// The class label feature, whose names are those of the tars in the first archive.
        label: String,
        /// The text feature with the name of the file.
        file_name: String,
    },
    /// A file of images and a file of labels for each split.
    Idx {
        /// The image feature.
        image: String,
        /// The class label feature.
        label: String,
    },
    /// Each member of an archive, or file of a folder, whose path fits a pattern of a split, is an example.
    Files {
        /// The feature that is the file's contents.
        contents: String,
        /// What becomes of the contents on the way.
        form: Contents,
        /// What orders an example.
        key: Template,
        /// Class labels by the name of the class, where the split does not say another: (feature, template).
        labels: Vec<(String, Template)>,
    },
    /// Pictures in an archive, and for each split a member that lists them by class: a JSON object, class name to list of names.
    LabelLists {
        /// The image feature.
        image: String,
        /// The class label feature.
        label: String,
        /// Pattern of the pictures' paths; what it catches as `{name}` is the name in the lists, which may have folders.
        members: String,
    },
    /// STL-10's binary files in a tar archive.
    Stl10 {
        /// The image feature.
        image: String,
        /// The class label feature.
        label: String,
        /// The member with the names of classes, one a line.
        class_names: Option<String>,
    },
    /// The two archives of the Oxford-IIIT pets: pictures and annotations.
    OxfordPets,
    /// Tables, records and files of one's own.
    Rows(Box<RowsSpec>),
}

/// What becomes of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// They are the feature as they are: a picture's file, or text.
    AsFound,
    /// Text, without the white space around it (that of ASCII).
    Stripped,
    /// A TIFF file whose samples are the elements of a tensor.
    Tiff,
}

/// The files that make a split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SplitFiles {
    /// Names of sources or of members, in order.
    pub files: Vec<String>,
    /// How many records each file is expected to have; another number costs one more pass over the archive.
    pub file_records: Option<u64>,
    /// The sources that `files` are looked for in, where not in all.
    pub sources: Vec<String>,
    /// Class numbers that all examples of the split have: (feature, number).
    pub values: Vec<(String, i64)>,
    /// `files` as patterns, where the reader takes such.
    pub patterns: Vec<Pattern>,
}

/// A recipe that cannot be used: which file, where in it, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", place(.file, *.line, .field))]
pub struct RecipeError {
    /// The recipe's file, or the name of a built-in one.
    pub file: String,
    /// Line, from 1, where it is known.
    pub line: Option<usize>,
    /// The field, as in `sources[0].sha256`; empty for the whole file.
    pub field: String,
    /// What was found and what was wanted.
    pub reason: String,
}

fn place(file: &str, line: Option<usize>, field: &str) -> String {
    let mut text = file.to_owned();
    if let Some(line) = line {
        text += &format!(", line {line}");
    }
    if !field.is_empty() {
        text += &format!(", `{field}`");
    }
    text + ": "
}

/// The recipe that a text names: a built-in dataset, as in `cifar10` or `imagenette/160px`, or a recipe file, as in `my_data.toml`
/// or `my_data.toml/small`. Without a config it is the first one.
///
/// # Errors
/// As [`read`]; an unknown dataset or config, with near names as a [`Hinted`](crate::error::Hinted).
pub fn find(text: &str) -> anyhow::Result<Recipe> {
    let is_toml = |path: &str| {
        Path::new(path)
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("toml"))
    };
    if is_toml(text) {
        return Ok(read(Path::new(text))?);
    }
    let hinted = |unknown: builtin::UnknownDataset| {
        let hint = unknown.hint();
        anyhow::Error::from(crate::error::Hinted::new(unknown.to_string(), hint))
    };
    if let Some((path, config)) = text.rsplit_once('/') {
        if is_toml(path) {
            let recipes = read_all(Path::new(path))?;
            let names: Vec<String> = recipes
                .iter()
                .filter_map(|recipe| recipe.spec.config.clone())
                .collect();
            return recipes
                .into_iter()
                .find(|recipe| recipe.spec.config.as_deref() == Some(config))
                .ok_or_else(|| hinted(builtin::UnknownDataset::config(path, config, &names)));
        }
        // Neither a built-in dataset nor nearly one: a file that has another ending.
        let known = builtin::text(path).is_some();
        if !known && (Path::new(text).exists() || near(path, builtin::names()).is_empty()) {
            return Ok(read(Path::new(text))?);
        }
    }
    builtin::find(text).map_err(hinted)
}

/// Reads the recipe at a path; of several configs, the first. Relative source paths are taken from the recipe's folder.
///
/// # Errors
/// The file cannot be read, or is not a recipe: the message names line and field.
pub fn read(path: &Path) -> Result<Recipe, RecipeError> {
    Ok(read_all(path)?.swap_remove(0))
}

/// The recipe that an object is which says what a TOML file would say. Relative source paths are taken from `folder`.
///
/// # Errors
/// It is not a recipe: the message names the field.
pub fn from_json(recipe: &serde_json::Value, folder: &Path) -> Result<Recipe, RecipeError> {
    let file = "recipe";
    let text = toml::to_string(recipe).map_err(|error| RecipeError {
        file: file.to_owned(),
        line: None,
        field: String::new(),
        reason: error.to_string(),
    })?;
    let found = parse(file, &text, folder);
    // Nobody has seen its lines.
    found.map_err(|fault| RecipeError { line: None, ..fault })
}

/// Reads all configs of the recipe at a path: at least one.
///
/// # Errors
/// As [`read`].
pub fn read_all(path: &Path) -> Result<Vec<Recipe>, RecipeError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| RecipeError {
        file: file.clone(),
        line: None,
        field: String::new(),
        reason: format!("could not read the recipe: {error}"),
    })?;
    parse_all(&file, &text, path.parent().unwrap_or(Path::new("")))
}
