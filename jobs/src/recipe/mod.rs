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
//! url = "https://example.org/images.gz"    # or `path`, relative to the recipe
//! bytes = 7840016
//! sha256 = "..."
//!
//! [reader]
//! kind = "idx"                     # `idx`: files = [images, labels]; `cifar`: files = members of a tar
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
//! shards = 1                       # else TFDS's rule by size
//!
//! [output]
//! compression = "uncompressed"     # any of ArrayRecord's; the default is `zstd:3`
//! group_size = 1
//! ```

pub mod builtin;
mod parse;

use std::path::Path;

use crate::builder::DatasetSpec;

pub use parse::parse;
pub use prep_catalog::near;

/// A recipe that passed all checks.
#[derive(Debug, Clone)]
pub struct Recipe {
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// A file of images and a file of labels for each split.
    Idx {
        /// The image feature.
        image: String,
        /// The class label feature.
        label: String,
    },
}

/// The files that make a split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SplitFiles {
    /// Names of sources or of members, in order.
    pub files: Vec<String>,
    /// How many records each file is expected to have; another number costs one more pass over the archive.
    pub file_records: Option<u64>,
}

/// A text with places for the split's name and the example's index: `{split}_{index:05}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Split,
    Index { width: usize },
}

impl Template {
    /// Parses a template; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find(['{', '}']) {
            if start > 0 {
                pieces.push(Piece::Literal(rest[..start].to_owned()));
            }
            let inside = &rest[start..];
            let end = inside.find('}').filter(|_| inside.starts_with('{'));
            let Some(end) = end else {
                return Err(format!("`{text}` has a brace without its other half"));
            };
            pieces.push(match &inside[1..end] {
                "split" => Piece::Split,
                "index" => Piece::Index { width: 0 },
                other => match other.strip_prefix("index:0").map(str::parse) {
                    Some(Ok(width @ 0..=40)) => Piece::Index { width },
                    _ => {
                        return Err(format!(
                            "`{{{other}}}` is not known; there are `{{split}}`, `{{index}}` and `{{index:05}}`"
                        ));
                    }
                },
            });
            rest = &inside[end + 1..];
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest.to_owned()));
        }
        Ok(Self { pieces })
    }

    /// The text for this split and index.
    pub fn render(&self, split: &str, index: u64) -> String {
        use std::fmt::Write;

        let mut text = String::with_capacity(24);
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Split => text.push_str(split),
                Piece::Index { width } => {
                    let _ = write!(text, "{index:0width$}");
                }
            }
        }
        text
    }
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

/// The recipe in a file, where the text looks like a path (it ends in `.toml` or has a slash), else a built-in one.
///
/// # Errors
/// As [`read`]; an unknown dataset, with near names as a [`Hinted`](crate::error::Hinted).
pub fn find(text: &str) -> anyhow::Result<Recipe> {
    let path = Path::new(text);
    let is_toml = path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("toml"));
    if is_toml || text.contains(['/', '\\']) {
        return Ok(read(path)?);
    }
    builtin::find(text).map_err(|unknown| {
        let hint = unknown.hint();
        crate::error::Hinted::new(unknown.to_string(), hint).into()
    })
}

/// Reads the recipe at a path. Relative source paths are taken from the recipe's folder.
///
/// # Errors
/// The file cannot be read, or is not a recipe: the message names line and field.
pub fn read(path: &Path) -> Result<Recipe, RecipeError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| RecipeError {
        file: file.clone(),
        line: None,
        field: String::new(),
        reason: format!("could not read the recipe: {error}"),
    })?;
    parse(&file, &text, path.parent().unwrap_or(Path::new("")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_render_split_and_index() {
        let template = Template::parse("{split}_{index:05}").unwrap();
        assert_eq!(template.render("train", 39), "train_00039");
        assert_eq!(template.render("test", 1_234_567), "test_1234567");
        assert_eq!(Template::parse("n{index}.png").unwrap().render("x", 7), "n7.png");
        assert_eq!(Template::parse("").unwrap().render("x", 7), "");
    }

    #[test]
    fn templates_with_faults_are_refused() {
        for bad in [
            "{",
            "}",
            "a{split",
            "{}",
            "{key}",
            "{index:5}",
            "{index:099}",
            "}{",
        ] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
