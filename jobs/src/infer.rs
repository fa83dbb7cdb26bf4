//! First recipes, written from the data: what kind of files there are, their splits, their features and classes.
//!
//! Reads the data twice: for the types of columns, and to count rows and classes. Holds what a registration holds for the files, and the number of
//! rows of each class.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use prep_catalog::DatasetName;
use prep_formats::dataset_info::DatasetInfo;
use prep_formats::features::{Encoding, Feature, Features};
use prep_formats::store::Location;
use prep_formats::value::{DType, Value};

use crate::archive::each_file;
use crate::builder::{Builder, Decoded, Input, Output, OutputSink, Raw, Source, SourcePlace};
use crate::error::{Hinted, find};
use crate::monitor::{Monitor, Unit};
use crate::readers::RecipeBuilder;
use crate::readers::rows::convert::{Misfit, Remedy};
use crate::readers::rows::file::is_archive;
use crate::readers::rows::files::{prefix_of, walk};
use crate::readers::rows::image_folder::{self, SPLIT_NAMES, is_metadata, picture_kind};
use crate::readers::rows::survey::quoted;
use crate::readers::rows::webdataset;
use crate::recipe::rows::ROW_KINDS;
use crate::recipe::{Pattern, parse};

/// Folders and beginnings of names that are looked at for splits.
const MOST_PARTS: usize = 10_000;
/// Classes that a recipe lists; with more it says that they are those of the data.
const MOST_LISTED: usize = 1000;
/// Columns that are taken for classes if they are texts.
const CLASS_COLUMNS: [&str; 5] = ["label", "class", "category", "target", "cls"];

/// What to look at.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    pub(crate) path: &'a Path,
    /// Where the recipe will lie.
    pub(crate) recipe: &'a Path,
    pub(crate) name: Option<&'a str>,
    /// The reader, where the user says.
    pub(crate) kind: Option<&'a str>,
    /// So many examples are shown.
    pub(crate) samples: usize,
    pub(crate) workers: usize,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Inferred {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) text: String,
    /// Rows of each split.
    pub(crate) splits: Vec<(String, u64)>,
    pub(crate) features: Features,
    /// Rows of each class, of the features that have such.
    pub(crate) classes: BTreeMap<String, BTreeMap<String, u64>>,
    pub(crate) samples: Vec<serde_json::Value>,
    /// Rows that are damaged, and the first one's fault.
    pub(crate) damaged: Option<(u64, String)>,
}

/// Looks at a file or folder.
///
/// # Errors
/// It cannot be read, has nothing that a reader knows, or files of several kinds; or its rows do not go together.
pub(crate) fn infer(question: &Question<'_>) -> Result<Inferred> {
    let path = question
        .path
        .canonicalize()
        .with_context(|| format!("could not read {}", question.path.display()))?;
    let monitor = Monitor::new();
    let mut shape = Shape::default();
    if path.is_dir() {
        walk(&path, "", &mut |file| {
            shape.add(file);
            Ok(())
        })?;
    } else {
        shape.add(&path.file_name().unwrap_or_default().to_string_lossy());
    }
    if let Some(archive) = shape.archive.take() {
        let archive = if path.is_dir() {
            path.join(&archive)
        } else {
            path.clone()
        };
        shape.look_into(&source_of(&archive, &monitor)?, path.is_file())?;
    }
    let is_tfds = prep_loader::is_tfds_folder(&path);
    let kind = match question.kind {
        Some(kind) => kind.to_owned(),
        None if is_tfds => "tfds".to_owned(),
        None => shape.kind(&path, question.path)?,
    };
    let about = match kind.as_str() {
        "tfds" => Some(DatasetInfo::read_location(&Location::from_path(&path))?),
        _ => None,
    };
    let home = question
        .recipe
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let home = home
        .canonicalize()
        .with_context(|| format!("could not read the folder {}", home.display()))?;
    let relative = from(&path, &home);
    let Some(text) = relative.to_str() else {
        bail!("{}: the path is not UTF-8, as a recipe is", relative.display());
    };
    let mut draft = Draft {
        name: match (question.name, &about) {
            (Some(name), _) => name.to_owned(),
            (None, Some(about)) if DatasetName::new(&about.name, None).is_ok() => about.name.clone(),
            (None, _) => name_for(&path),
        },
        path: text.to_owned(),
        kind,
        labels: None,
        splits: match about {
            Some(_) => Vec::new(),
            None => shape.splits(text, path.is_file()),
        },
        classes: Vec::new(),
        texts: BTreeMap::new(),
        empty: BTreeSet::new(),
        about,
    };
    let shown = question.recipe.display().to_string();
    let learn_once = |draft: &Draft| -> Result<(Arc<dyn Builder>, Vec<Source>)> {
        let recipe = parse(&shown, &draft.write(None, &BTreeMap::new(), &[]), &home)?;
        let builder = RecipeBuilder::new(recipe);
        let builder = builder.with_files(&[])?.context("the reader has no rows")?;
        let sources = sources_of(&*builder, &monitor)?;
        let learned = builder
            .learn(&sources, &[], question.workers)?
            .context("the reader has no rows")?;
        Ok((builder.with_learned(&learned)?, sources))
    };
    let learn = |draft: &mut Draft| loop {
        match learn_once(draft) {
            Err(error) if find::<Misfit>(&error).is_some_and(|misfit| draft.heed(misfit)) => {}
            other => return other,
        }
    };
    let (mut builder, mut sources) = learn(&mut draft)?;
    // The features of TFDS's folders are as they are.
    let is_class = |(name, feature): &(&str, &Feature)| {
        draft.about.is_none() && CLASS_COLUMNS.contains(name) && matches!(feature, Feature::Text)
    };
    draft.classes = builder
        .spec()
        .features
        .iter()
        .filter(is_class)
        .map(|(name, _)| name.to_owned())
        .collect();
    if !draft.classes.is_empty() {
        // Texts that are all different are no classes.
        match learn(&mut draft) {
            Ok(found) => (builder, sources) = found,
            Err(_) => draft.classes.clear(),
        }
    }
    if draft.kind == "image_folder" {
        draft.labels = Some(
            matches!(
                builder.spec().features.get("label"),
                Some(Feature::ClassLabel { .. })
            ) && draft.classes.is_empty(),
        );
    }
    let counter = loop {
        let mut counter = Counter::new(&*builder, question.samples);
        counter.looks_at_all |= !draft.texts.is_empty();
        for (index, inputs) in builder.inputs().into_iter().enumerate() {
            let input = Input {
                index,
                sources: inputs.iter().filter_map(|source| sources.get(*source)).collect(),
            };
            builder.read(&input, &mut Output::new(&mut counter))?;
        }
        // What files say of their columns may leave open whether lists lack something.
        let mut is_new = false;
        for misfit in &counter.misfits {
            is_new |= draft.heed(misfit);
        }
        if !is_new {
            break counter;
        }
        drop(counter);
        (builder, sources) = learn(&mut draft)?;
    };
    let names = builder.spec().splits.iter().map(|split| split.name.clone());
    let splits: Vec<(String, u64)> = names.zip(counter.rows).collect();
    let features = builder.spec().features.clone();
    let text = draft.write(Some(&features), &counter.classes, &splits);
    parse(&shown, &text, &home)
        .context("the recipe that was written does not hold; please report this, with the message")?;
    Ok(Inferred {
        name: draft.name,
        kind: draft.kind,
        text,
        splits,
        features,
        classes: counter.classes,
        samples: counter.samples,
        damaged: (counter.damaged > 0).then_some((counter.damaged, counter.first_fault)),
    })
}

fn source_of(path: &Path, monitor: &Arc<Monitor>) -> Result<Source> {
    let bytes = std::fs::metadata(path)
        .with_context(|| format!("could not read {}", path.display()))?
        .len();
    let meter = monitor.stage("look", Unit::Bytes, None);
    let (name, path) = (path.display().to_string(), path.to_owned());
    Ok(Source::new(
        name,
        0,
        path,
        None,
        bytes,
        meter,
        Arc::clone(monitor),
    ))
}

/// The sources of a builder that knows its files, ready to be read; local ones only.
///
/// # Errors
/// One that is not local, or cannot be read.
pub(crate) fn sources_of(builder: &dyn Builder, monitor: &Arc<Monitor>) -> Result<Vec<Source>> {
    let meter = monitor.stage("learn", Unit::Bytes, None);
    let mut sources = Vec::new();
    for (index, source) in builder.spec().sources.iter().enumerate() {
        let SourcePlace::Found(path, _) = &source.place else {
            bail!("{}: it is no local file", source.name);
        };
        let bytes = match source.files() {
            Some(_) => 0,
            None => std::fs::metadata(path)
                .with_context(|| format!("could not read {}", path.display()))?
                .len(),
        };
        let files = source.files().cloned();
        let (meter, monitor) = (Arc::clone(&meter), Arc::clone(monitor));
        sources.push(Source::new(
            source.name.clone(),
            index as u32,
            path.clone(),
            files,
            bytes,
            meter,
            monitor,
        ));
    }
    Ok(sources)
}

/// The reader of files with this name.
fn kind_of(path: &str) -> Option<&'static str> {
    let name = path.to_ascii_lowercase();
    let name = name
        .strip_suffix(".gz")
        .or_else(|| name.strip_suffix(".zst"))
        .unwrap_or(&name);
    let ends = |endings: &[&str]| endings.iter().any(|end| name.ends_with(end));
    let kind = if ends(image_folder::ENDINGS) {
        "image_folder"
    } else if ends(&[".csv"]) {
        "csv"
    } else if ends(&[".tsv", ".tab"]) {
        "tsv"
    } else if ends(&[".jsonl", ".ndjson", ".json"]) {
        "jsonl"
    } else if ends(&[".txt"]) {
        "text"
    } else if ends(&[".parquet"]) {
        "parquet"
    } else if ends(&[".npz", ".npy"]) {
        "npz"
    } else if ends(&[".array_record", ".arrayrecord"]) || name.contains(".array_record-") {
        "array_record"
    } else if ends(&[".tfrecord", ".tfrecords"]) || name.contains(".tfrecord-") {
        "tfrecord"
    } else {
        return None;
    };
    ROW_KINDS.iter().find(|known| **known == kind).copied()
}

/// What files there are, and how they lie.
#[derive(Debug, Default)]
struct Shape {
    /// How many of each kind, and the first one.
    kinds: BTreeMap<&'static str, (u64, String)>,
    metadata: u64,
    /// The first archive.
    archive: Option<String>,
    others: Vec<String>,
    /// The outer folders of each file: up to three.
    folders: BTreeMap<&'static str, BTreeSet<Vec<String>>>,
    /// The letters with which the names of files begin that lie in no folder.
    starts: BTreeMap<&'static str, BTreeSet<String>>,
    /// Whether the folders are those within the one archive.
    inside: bool,
}

impl Shape {
    fn add(&mut self, path: &str) {
        if is_archive(path) {
            self.archive.get_or_insert_with(|| path.to_owned());
            self.note("archive", path);
            return;
        }
        self.add_file(path);
    }

    fn add_file(&mut self, path: &str) {
        if is_metadata(path) {
            self.metadata += 1;
        }
        match kind_of(path) {
            Some(kind) if !is_metadata(path) => self.note(kind, path),
            Some(_) => {}
            None if self.others.len() < 5 => self.others.push(path.to_owned()),
            None => {}
        }
    }

    fn note(&mut self, kind: &'static str, path: &str) {
        self.kinds.entry(kind).or_insert_with(|| (0, path.to_owned())).0 += 1;
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parts: Vec<String> = folders
            .split('/')
            .filter(|part| !part.is_empty())
            .take(3)
            .map(str::to_owned)
            .collect();
        if parts.is_empty() {
            let start = name
                .split(|c: char| !c.is_ascii_alphabetic())
                .next()
                .unwrap_or_default();
            let starts = self.starts.entry(kind).or_default();
            if starts.len() < MOST_PARTS {
                starts.insert(start.to_owned());
            }
        }
        let known = self.folders.entry(kind).or_default();
        if known.len() < MOST_PARTS {
            known.insert(parts);
        }
    }

    /// Looks at the members of an archive: what they are, or whether they are samples.
    fn look_into(&mut self, source: &Source, is_only: bool) -> Result<()> {
        let mut inner = Self::default();
        let mut last: Option<(String, String)> = None;
        let mut is_dataset = false;
        let is_tar = !source.name.to_ascii_lowercase().ends_with(".zip");
        each_file(source, false, &mut |member, _| {
            if let Some((key, extension)) = webdataset::cut(&member.path, false) {
                is_dataset |= is_tar
                    && last
                        .as_ref()
                        .is_some_and(|(other, before)| other == key && before != extension);
                last = Some((key.to_owned(), extension.to_owned()));
            }
            inner.add_file(&member.path);
            Ok(ControlFlow::Continue(()))
        })?;
        let Some((count, first)) = self.kinds.remove("archive") else {
            return Ok(());
        };
        let (folders, starts) = (self.folders.remove("archive"), self.starts.remove("archive"));
        let kind = match inner.kinds.len() {
            _ if is_dataset => "webdataset",
            0 if is_tar => "webdataset",
            1 => inner.kinds.keys().next().copied().unwrap_or("webdataset"),
            _ => {
                return Err(inner.mixed(&source.name));
            }
        };
        let slot = self.kinds.entry(kind).or_insert((0, first));
        slot.0 += count;
        if is_only && kind != "webdataset" {
            self.inside = true;
            self.folders
                .insert(kind, inner.folders.remove(kind).unwrap_or_default());
            self.starts
                .insert(kind, inner.starts.remove(kind).unwrap_or_default());
        } else {
            self.folders
                .entry(kind)
                .or_default()
                .extend(folders.into_iter().flatten());
            self.starts
                .entry(kind)
                .or_default()
                .extend(starts.into_iter().flatten());
        }
        Ok(())
    }

    fn mixed(&self, place: &str) -> anyhow::Error {
        let found: Vec<String> = self
            .kinds
            .iter()
            .map(|(kind, (count, first))| format!("{count} of {kind} ({first})"))
            .collect();
        Hinted::new(
            format!("{place}: it has files of several kinds: {}", found.join(", ")),
            "say which with `--kind`, or name the folder or file that is meant",
        )
        .into()
    }

    fn kind(&self, path: &Path, shown: &Path) -> Result<String> {
        if self.metadata > 0 && !self.kinds.contains_key("image_folder") {
            // A table that is only called so.
            let is_csv =
                path.is_dir() && path.join("metadata.csv").is_file() || path.ends_with("metadata.csv");
            return Ok(if is_csv { "csv" } else { "jsonl" }.to_owned());
        }
        match self.kinds.len() {
            1 => Ok(self.kinds.keys().next().copied().unwrap_or_default().to_owned()),
            0 if path.is_file() => by_content(path)?
                .map(str::to_owned)
                .ok_or_else(|| self.nothing(shown)),
            0 => Err(self.nothing(shown)),
            // Notes beside pictures and tables are no data.
            _ => {
                let mut others = self.kinds.iter().filter(|(kind, _)| **kind != "text");
                match (others.next(), others.next()) {
                    (Some((kind, (count, _))), None)
                        if *count >= 10 * self.kinds.get("text").map_or(0, |(count, _)| *count) =>
                    {
                        Ok((*kind).to_owned())
                    }
                    _ => Err(self.mixed(&shown.display().to_string())),
                }
            }
        }
    }

    fn nothing(&self, shown: &Path) -> anyhow::Error {
        let found = match self.others.as_slice() {
            [] => "it has no files".to_owned(),
            others => format!("it has {}", others.join(", ")),
        };
        Hinted::new(
            format!(
                "{}: there is no file of a kind that a reader knows; {found}",
                shown.display()
            ),
            format!(
                "say which reader it is for with `--kind`: {}",
                ROW_KINDS.join(", ")
            ),
        )
        .into()
    }

    /// The splits that folders or beginnings of names stand for, each with a pattern; none where they do not.
    fn splits(&self, text: &str, is_file: bool) -> Vec<(String, String)> {
        if is_file && !self.inside {
            return Vec::new();
        }
        let Some((kind, _)) = self.kinds.iter().max_by_key(|(_, (count, _))| *count) else {
            return Vec::new();
        };
        let prefix = match (self.inside, Pattern::parse("**")) {
            (false, Ok(everything)) => prefix_of(text, &everything),
            _ => String::new(),
        };
        let is_plain = |text: &str| !text.contains(['*', '{', '}', '^', '$', '\\', '[', '?', '(']);
        let empty = BTreeSet::new();
        let folders = self.folders.get(kind).unwrap_or(&empty);
        for level in 0..3 {
            let names: Option<BTreeSet<&String>> = folders.iter().map(|parts| parts.get(level)).collect();
            let Some(names) = names else { break };
            let before: BTreeSet<String> = folders.iter().map(|parts| parts[..level].join("/")).collect();
            let (Some(before), 1) = (before.first(), before.len()) else {
                break;
            };
            let is_split = |name: &&String| SPLIT_NAMES.contains(&name.as_str());
            if !names.is_empty() && names.iter().all(is_split) {
                let before = match before.is_empty() {
                    true => prefix.clone(),
                    false => format!("{prefix}{before}/"),
                };
                if !is_plain(&before) {
                    break;
                }
                return names
                    .into_iter()
                    .map(|name| (name.clone(), format!("{before}{name}/**")))
                    .collect();
            }
        }
        let only_flat = folders.iter().all(Vec::is_empty);
        let starts: Vec<&String> = self.starts.get(kind).into_iter().flatten().collect();
        let is_split = |name: &&String| SPLIT_NAMES.contains(&name.as_str());
        let overlap = starts.iter().any(|one| {
            starts
                .iter()
                .any(|other| one != other && other.starts_with(one.as_str()))
        });
        if only_flat
            && !overlap
            && *kind != "image_folder"
            && is_plain(&prefix)
            && starts.iter().all(is_split)
        {
            return starts
                .into_iter()
                .map(|start| (start.clone(), format!("{prefix}{start}*")))
                .collect();
        }
        Vec::new()
    }
}

/// The reader of a file whose name does not tell.
fn by_content(path: &Path) -> Result<Option<&'static str>> {
    let mut start = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(4096).read_to_end(&mut start))
        .with_context(|| format!("could not read {}", path.display()))?;
    let kind = if start.starts_with(b"PAR1") {
        "parquet"
    } else if picture_kind(&start).is_some() {
        "image_folder"
    } else if start.get(257..262) == Some(b"ustar") {
        "webdataset"
    } else if start.trim_ascii_start().starts_with(b"{") {
        "jsonl"
    } else {
        return Ok(None);
    };
    Ok(ROW_KINDS.iter().find(|known| **known == kind).copied())
}

/// A path as seen from a folder; both are absolute.
fn from(path: &Path, folder: &Path) -> PathBuf {
    let shared = path
        .components()
        .zip(folder.components())
        .take_while(|(one, other)| one == other)
        .count();
    let mut relative = PathBuf::new();
    for _ in folder.components().skip(shared) {
        relative.push(Component::ParentDir);
    }
    relative.extend(path.components().skip(shared));
    if relative.as_os_str().is_empty() {
        relative.push(Component::CurDir);
    }
    relative
}

/// A dataset's name out of that of its file or folder.
fn name_for(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = match path.is_file() {
        true => file.split('.').find(|part| !part.is_empty()).unwrap_or("data"),
        false => &file,
    };
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    let name: String = stem.chars().map(plain).take(100).collect();
    match name.trim_matches(|c: char| !c.is_ascii_alphanumeric()) {
        "" => "data".to_owned(),
        name => name.to_owned(),
    }
}

/// A recipe on its way.
#[derive(Debug)]
struct Draft {
    name: String,
    path: String,
    kind: String,
    labels: Option<bool>,
    /// (split, pattern).
    splits: Vec<(String, String)>,
    /// Columns whose texts are classes.
    classes: Vec<String>,
    /// Columns that are kept as texts, and whether they may be missing.
    texts: BTreeMap<String, bool>,
    /// Columns, or parts of them, whose missing lists and nested values are empty ones.
    empty: BTreeSet<String>,
    /// What the TFDS folder says of itself.
    about: Option<DatasetInfo>,
}

impl Draft {
    /// Takes up what makes a row fit that does not; `false` where nothing does, or it was taken up already.
    fn heed(&mut self, misfit: &Misfit) -> bool {
        let base = misfit.base();
        match misfit.remedy {
            Remedy::Empty => self.empty.insert(misfit.column.clone()),
            Remedy::Text => self.texts.insert(base.to_owned(), false).is_none(),
            Remedy::Optional => {
                let text = self.texts.get_mut(base).filter(|may_lack| !**may_lack);
                text.map(|may_lack| *may_lack = true).is_some()
            }
            Remedy::Type => false,
        }
    }

    /// The names for `missing_as_empty`: without columns that are kept as texts, and what is in others of them.
    fn empty(&self) -> Vec<String> {
        let is_within = |name: &str, outer: &String| {
            let rest = name.strip_prefix(outer.as_str());
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let counts = |name: &&String| {
            let base = name.split('/').next().unwrap_or_default();
            !self.texts.contains_key(base) && !self.empty.iter().any(|outer| is_within(name, outer))
        };
        self.empty
            .iter()
            .filter(counts)
            .map(|name| toml_text(name))
            .collect()
    }

    /// The recipe's text; without features where they are to be found.
    fn write(
        &self,
        features: Option<&Features>,
        classes: &BTreeMap<String, BTreeMap<String, u64>>,
        rows: &[(String, u64)],
    ) -> String {
        let mut text = String::new();
        if features.is_some() {
            text += "# A first recipe, written by `prep infer` from the data: look it over, then `prep register` it.\n";
        }
        // Writing to a string cannot fail.
        let version = match &self.about {
            Some(about) if prep_catalog::Version::parse(&about.version).is_ok() => &about.version,
            _ => "1.0.0",
        };
        let _ = writeln!(
            text,
            "format = 1\nname = {}\nversion = {}",
            toml_text(&self.name),
            toml_text(version)
        );
        if features.is_some() {
            let about = self.about.as_ref();
            let licence = about.and_then(|about| about.license.as_deref());
            for (field, value) in [
                ("description", about.map_or("", |about| &about.description)),
                ("licence", licence.unwrap_or_default()),
                ("citation", about.map_or("", |about| &about.citation)),
            ] {
                let mark = if value.is_empty() { "# " } else { "" };
                let _ = writeln!(text, "{mark}{field} = {}", toml_text(value));
            }
        }
        let empty = self.empty();
        if !empty.is_empty() {
            if features.is_some() {
                text += "# Some rows lack these, which no feature can say: stored are lists without elements, and nested values that are missing.\n";
            }
            let _ = writeln!(text, "missing_as_empty = [{}]", empty.join(", "));
        }
        let has = |name: &str| features.is_some_and(|features| features.get(name).is_some());
        if let Some(about) = &self.about {
            if let Some((input, target)) = about.supervised_keys.as_ref().filter(|_| features.is_some()) {
                let _ = writeln!(
                    text,
                    "supervised_keys = [{}, {}]",
                    toml_text(input),
                    toml_text(target)
                );
            }
        } else if has("image") && has("label") {
            text += "supervised_keys = [\"image\", \"label\"]\n";
        }
        let _ = write!(
            text,
            "\n[[sources]]\npath = {}\n\n[reader]\nkind = {}\n",
            toml_text(&self.path),
            toml_text(&self.kind)
        );
        if let Some(labels) = self.labels {
            let _ = writeln!(text, "labels = {labels}");
        }
        let count = |name: &str| {
            let found = rows.iter().find(|(split, _)| split == name);
            found.map_or(String::new(), |(_, count)| format!("  # {count} examples"))
        };
        if self.about.is_some() {
            if let Some(features) = features {
                text += "\n# The folder itself says its splits and features; write `[[splits]]` or `[features.NAME]` here to have them otherwise.\n";
                for (split, count) in rows {
                    let _ = writeln!(text, "# split {}: {count} examples", split.escape_debug());
                }
                for (name, feature) in features.iter() {
                    let _ = writeln!(text, "# feature {}: {}", name.escape_debug(), feature.class());
                }
            }
            return text;
        }
        if self.splits.is_empty() {
            let _ = write!(text, "\n[[splits]]\nname = \"train\"{}\n", count("train"));
        }
        for (name, files) in &self.splits {
            let _ = write!(
                text,
                "\n[[splits]]\nname = {}{}\nfiles = [{}]\n",
                toml_text(name),
                count(name),
                toml_text(files)
            );
        }
        let Some(features) = features else {
            for name in &self.classes {
                let _ = write!(text, "\n[features.{}]\nkind = \"class_label\"\n", quoted(name));
            }
            for (name, may_lack) in &self.texts {
                let name = quoted(name);
                let _ = write!(
                    text,
                    "\n[features.{name}]\nkind = \"text\"\noptional = {may_lack}\n"
                );
            }
            return text;
        };
        for (name, feature) in features.iter() {
            let Some(fields) = fields_of(feature) else {
                let _ = write!(text, "\n# `{}` is as the data have it.\n", name.escape_debug());
                continue;
            };
            text.push('\n');
            for (class, count) in classes.get(name).into_iter().flatten().take(MOST_LISTED) {
                let _ = writeln!(text, "# {}: {count}", class.escape_debug());
            }
            if self.texts.contains_key(name) {
                text += "# Its lists lack some of their values, which no sequence can: kept as JSON.\n";
            }
            let _ = writeln!(text, "[features.{}]", quoted(name));
            for (field, value) in fields {
                let _ = writeln!(text, "{field} = {value}");
            }
        }
        text
    }
}

/// A text as TOML has it.
fn toml_text(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The fields of a feature in a recipe; `None` for one that a recipe does not state.
fn fields_of(feature: &Feature) -> Option<Vec<(&'static str, String)>> {
    let kind = |kind: &str| ("kind", toml_text(kind));
    let shape_of = |shape: &[Option<u64>]| {
        let sizes: Vec<String> = shape
            .iter()
            .map(|size| size.map_or("-1".to_owned(), |size| size.to_string()))
            .collect();
        ("shape", format!("[{}]", sizes.join(", ")))
    };
    let dtype_of = |dtype: DType| ("dtype", toml_text(dtype.name()));
    Some(match feature {
        Feature::Text => vec![kind("text")],
        Feature::Scalar { dtype } => vec![kind("scalar"), dtype_of(*dtype)],
        Feature::Optional(inner) => {
            let mut fields = match &**inner {
                Feature::Scalar { dtype: DType::String } => vec![kind("text")],
                inner @ (Feature::Scalar { .. } | Feature::Tensor { .. }) => fields_of(inner)?,
                _ => return None,
            };
            fields.push(("optional", "true".to_owned()));
            fields
        }
        Feature::ClassLabel { names, num_classes } => {
            let mut fields = vec![kind("class_label")];
            if names.is_empty() {
                fields.push(("num_classes", num_classes.to_string()));
            } else if names.len() <= MOST_LISTED {
                let names: Vec<String> = names.iter().map(|name| toml_text(name)).collect();
                fields.push(("names", format!("[{}]", names.join(", "))));
            }
            fields
        }
        Feature::Image {
            shape,
            dtype,
            encoding_format,
        } => {
            let mut fields = vec![kind("image"), shape_of(shape), dtype_of(*dtype)];
            fields.extend(
                encoding_format
                    .as_ref()
                    .map(|format| ("encoding_format", toml_text(format))),
            );
            fields
        }
        Feature::Tensor {
            shape,
            dtype,
            encoding,
        } => {
            let mut fields = vec![kind("tensor"), shape_of(shape), dtype_of(*dtype)];
            if *encoding != Encoding::None {
                fields.push(("encoding", toml_text(encoding.name())));
            }
            fields
        }
        Feature::Sequence { feature, length } => {
            let mut fields = vec![kind("sequence"), ("feature", inline(feature)?)];
            fields.extend(length.map(|length| ("length", length.to_string())));
            fields
        }
        Feature::Dict(features) => {
            let inner: Option<Vec<String>> = features
                .iter()
                .map(|(name, feature)| Some(format!("{} = {}", quoted(name), inline(feature)?)))
                .collect();
            vec![kind("dict"), ("features", format!("{{ {} }}", inner?.join(", ")))]
        }
        _ => return None,
    })
}

fn inline(feature: &Feature) -> Option<String> {
    let fields = fields_of(feature)?;
    let fields: Vec<String> = fields
        .into_iter()
        .map(|(field, value)| format!("{field} = {value}"))
        .collect();
    Some(format!("{{ {} }}", fields.join(", ")))
}

/// Counts rows and classes, and keeps the first examples.
struct Counter<'a> {
    builder: &'a dyn Builder,
    rows: Vec<u64>,
    classes: BTreeMap<String, BTreeMap<String, u64>>,
    samples: Vec<serde_json::Value>,
    most: usize,
    /// Names of the class labels.
    labels: Vec<(String, Vec<String>)>,
    /// Whether all rows are looked at: some may lack parts of features that are made of others.
    looks_at_all: bool,
    misfits: Vec<Misfit>,
    damaged: u64,
    first_fault: String,
}

impl<'a> Counter<'a> {
    fn new(builder: &'a dyn Builder, most: usize) -> Self {
        let labels = builder
            .spec()
            .features
            .iter()
            .filter_map(|(name, feature)| match feature {
                Feature::ClassLabel { names, .. } => Some((name.to_owned(), names.clone())),
                _ => None,
            });
        Self {
            labels: labels.collect(),
            rows: vec![0; builder.spec().splits.len()],
            classes: BTreeMap::new(),
            samples: Vec::new(),
            most,
            looks_at_all: builder
                .spec()
                .features
                .iter()
                .any(|(_, feature)| matches!(feature, Feature::Sequence { .. } | Feature::Dict(_))),
            misfits: Vec::new(),
            builder,
            damaged: 0,
            first_fault: String::new(),
        }
    }

    fn damage(&mut self, reason: String) {
        if self.damaged == 0 {
            self.first_fault = reason;
        }
        self.damaged += 1;
    }
}

impl OutputSink for Counter<'_> {
    fn part(&mut self, _name: &str) -> u32 {
        0
    }

    fn emit(&mut self, raw: Raw) -> Result<()> {
        let is_shown = self.samples.len() < self.most;
        if self.labels.is_empty() && !self.looks_at_all && !is_shown {
            if let Some(count) = self.rows.get_mut(raw.split) {
                *count += 1;
            }
            return Ok(());
        }
        let (values, split) = match self.builder.decode_and_place(&raw) {
            Ok(Decoded::Example(values)) => (values, raw.split),
            Ok(Decoded::Placed(values, split, _)) => (values, split),
            Ok(Decoded::ByContent(values, ..)) => (values, raw.split),
            Ok(Decoded::LeftOut) => return Ok(()),
            Err(error) => {
                // Once each, though many rows may have it.
                if let Some(misfit) = find::<Misfit>(&error)
                    && !self
                        .misfits
                        .iter()
                        .any(|known| known.column == misfit.column && known.remedy == misfit.remedy)
                {
                    self.misfits.push(misfit.clone());
                }
                self.damage(format!("{error:#}"));
                return Ok(());
            }
        };
        if let Some(count) = self.rows.get_mut(split) {
            *count += 1;
        }
        for (name, names) in &self.labels {
            let class = values
                .iter()
                .find(|(other, _)| other == name)
                .map(|(_, value)| match value {
                    Value::Int(number) => {
                        let known = usize::try_from(*number).ok().and_then(|number| names.get(number));
                        known.cloned().unwrap_or_else(|| number.to_string())
                    }
                    Value::Bytes(name) => String::from_utf8_lossy(name).into_owned(),
                    _ => String::new(),
                });
            if let Some(class) = class {
                *self
                    .classes
                    .entry(name.clone())
                    .or_default()
                    .entry(class)
                    .or_insert(0) += 1;
            }
        }
        if is_shown {
            let fields = values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), shown(value)));
            self.samples.push(serde_json::Value::Object(fields.collect()));
        }
        Ok(())
    }

    fn fault(&mut self, _split: usize, _part: u32, _record: u64, reason: &str) -> Result<()> {
        self.damage(reason.to_owned());
        Ok(())
    }

    fn class_names(&mut self, _feature: &str, _names: Vec<String>) -> Result<()> {
        Ok(())
    }

    fn warn(&mut self, _text: &str) {}
}

/// A value, in short.
fn shown(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;

    match value {
        Value::Null => Json::Null,
        Value::Int(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Bytes(bytes) => match (picture_kind(bytes), std::str::from_utf8(bytes)) {
            (Some(kind), _) => format!("<{kind}, {} bytes>", bytes.len()).into(),
            (None, Ok(text)) => {
                let short: String = text.chars().take(200).collect();
                let more = if short.len() < text.len() { ".." } else { "" };
                format!("{short}{more}").into()
            }
            (None, Err(_)) => format!("<{} bytes>", bytes.len()).into(),
        },
        Value::Tensor { dtype, shape, .. } => format!("<{dtype} {shape:?}>").into(),
        Value::List(values) => {
            let mut items: Vec<Json> = values.iter().take(10).map(shown).collect();
            if values.len() > 10 {
                items.push(format!(".. {} in all", values.len()).into());
            }
            Json::Array(items)
        }
        Value::Dict(fields) => Json::Object(
            fields
                .iter()
                .map(|(name, value)| (name.clone(), shown(value)))
                .collect(),
        ),
        _ => "<a value>".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_from_the_recipe() {
        for (path, folder, wanted) in [
            ("/a/b/c", "/a/b", "c"),
            ("/a/b", "/a/b", "."),
            ("/a/x/c", "/a/b/d", "../../x/c"),
        ] {
            assert_eq!(from(Path::new(path), Path::new(folder)), Path::new(wanted));
        }
    }

    #[test]
    fn splits_are_folders_or_starts_of_names_that_are_called_so() {
        let splits = |files: &[&str]| {
            let mut shape = Shape::default();
            for file in files {
                shape.add(file);
            }
            shape.splits("data", false)
        };
        let pair = |name: &str, files: &str| (name.to_owned(), files.to_owned());
        assert_eq!(
            splits(&["in/train/a/1.png", "in/test/b/2.png"]),
            [pair("test", "data/in/test/**"), pair("train", "data/in/train/**")]
        );
        assert_eq!(
            splits(&["train-00000.csv", "train-00001.csv", "val.csv"]),
            [pair("train", "data/train*"), pair("val", "data/val*")]
        );
        for none in [
            &["cat/1.png", "train/2.png"][..],
            &["val.csv", "validation.csv"],
            &["a/train/1.csv", "b/train/2.csv"],
            &["trains.csv"],
        ] {
            assert_eq!(splits(none), [], "{none:?}");
        }
    }

    #[test]
    fn features_are_written_as_recipes_have_them() {
        let feature = Feature::sequence(Feature::dict([
            (
                "a b".to_owned(),
                Feature::Optional(Box::new(Feature::Scalar { dtype: DType::String })),
            ),
            (
                "n".to_owned(),
                Feature::tensor(vec![None, Some(2)], DType::Float32),
            ),
        ]));
        let text = inline(&feature).unwrap();
        assert!(
            text.contains("\"a b\" = { kind = \"text\", optional = true }"),
            "{text}"
        );
        assert!(text.contains("shape = [-1, 2], dtype = \"float32\""), "{text}");
    }
}
