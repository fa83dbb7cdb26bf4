//! Which files the sources of a recipe are, and which split each belongs to.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use prep_formats::store::{self, Location};

use crate::builder::{FileSet, SourcePlace, SourceSpec};
use crate::error::Hinted;
use crate::fetch;
use crate::readers::rows::file::{is_packed, set_name};
use crate::readers::rows::{Contents, RowReader};
use crate::recipe::rows::SourceRule;
use crate::recipe::rows::{Files, files_of, objects_of};
use crate::recipe::{Pattern, RowsSpec, SplitFiles, near};

/// How many files share a shard on average, where each file is a row.
const GROUP_OF_WHOLE_FILES: u64 = 1024;
/// So many files of rows each have shards of their own; with more, the recipe has to say how many share one.
const MOST_SOURCES: usize = 50_000;
/// A set has at most so many times the average.
const MOST_TIMES: u64 = 16;
/// Names that messages show.
const MOST_NAMES: usize = 10;

/// Says which split a file belongs to.
#[derive(Debug)]
pub(super) struct Splits {
    names: Vec<String>,
    files: Vec<SplitFiles>,
    by_fraction: bool,
    /// The splits of files, where their folders say so and the recipe does not.
    told: Option<HashMap<String, usize>>,
}

impl Splits {
    pub(super) fn new(spec: &RowsSpec, names: Vec<String>, files: &[SplitFiles]) -> Self {
        Self {
            names,
            files: files.to_vec(),
            by_fraction: spec.fractions.is_some(),
            told: None,
        }
    }

    /// The splits that folders say, in the order in which they come first.
    fn told(contents: &[Option<(Contents, String)>]) -> Self {
        let mut splits = Self {
            names: Vec::new(),
            files: Vec::new(),
            by_fraction: false,
            told: None,
        };
        let mut told = HashMap::new();
        for (contents, prefix) in contents.iter().flatten() {
            let names = contents.splits.iter();
            let numbers: Vec<usize> = names
                .map(|name| Self::number_in(&mut splits.names, name))
                .collect();
            for (file, split) in &contents.files {
                told.insert(format!("{prefix}{file}"), numbers[*split]);
            }
        }
        splits.files = vec![SplitFiles::default(); splits.names.len()];
        splits.told = Some(told);
        splits
    }

    /// The number of a split among others, where it is from now on.
    pub(super) fn number_in(names: &mut Vec<String>, name: &str) -> usize {
        let known = names.iter().position(|other| other == name);
        known.unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
    }

    /// Their names.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The split of a file of a source, or of a member of it; 0 where a hash decides later.
    ///
    /// # Errors
    /// It fits none, or two.
    pub(super) fn of(&self, source: &str, file: &str, member: Option<&str>) -> Result<usize> {
        if self.by_fraction {
            return Ok(0);
        }
        if let Some(told) = &self.told {
            let split = told.get(file).copied();
            return split.with_context(|| {
                format!("{file}: no folder of the sources names it; `path` is the folder of a version")
            });
        }
        let fits = |split: &SplitFiles| {
            let is_source = split.sources.is_empty() || split.sources.iter().any(|name| name == source);
            let fits = |pattern: &Pattern| {
                pattern.matches(file).is_some()
                    || member.is_some_and(|member| pattern.matches(member).is_some())
            };
            is_source && (split.patterns.is_empty() || split.patterns.iter().any(fits))
        };
        let mut found = self.files.iter().enumerate().filter(|(_, split)| fits(split));
        let shown = member.map_or(file.to_owned(), |member| format!("{file}, member {member}"));
        match (found.next(), found.next()) {
            (Some((split, _)), None) => Ok(split),
            (Some((first, _)), Some((second, _))) => Err(Hinted::new(
                format!(
                    "{shown} belongs to the splits `{}` and `{}`",
                    self.names[first], self.names[second]
                ),
                "make the patterns of the splits exclude each other",
            )
            .into()),
            _ => Err(Hinted::new(
                format!("{shown} belongs to none of the splits"),
                "leave it out of the sources, with a narrower `path` or `members`, or add a split for it; patterns of splits are \
                 those of whole paths, as in `data/train/*.jsonl` or `**/train/**`",
            )
            .into()),
        }
    }
}

/// What a source of a recipe stands for.
enum Place {
    /// A file that lies there.
    File(SourcePlace),
    /// What fits below a folder, and what comes before its path in the names of files.
    Folder(Tree, Pattern, String),
    /// What is fetched, or asked for when it is registered where it lies.
    Address,
}

/// What each source stands for. Stores are listed.
///
/// # Errors
/// A pattern that is none, or a store that cannot be listed.
fn places_of(spec: &RowsSpec, sources: &[SourceSpec], from: &[String]) -> Result<Vec<Place>> {
    let place_of = |rule: &SourceRule, source: &SourceSpec| -> Result<Place> {
        if rule.is_taken_over {
            return Ok(Place::Address);
        }
        let text = rule.text.as_deref().unwrap_or(&source.name);
        let place = match (&source.place, &rule.text) {
            (SourcePlace::Path(_), Some(text)) if !from.is_empty() => {
                let is_only = sources.len() == 1;
                match moved(text, from, is_only) {
                    Some(place) => place,
                    None => return moved_to_address(text, from, is_only),
                }
            }
            _ => source.place.clone(),
        };
        let folder = match files_of(&place).map_err(anyhow::Error::msg)? {
            Some(Files::One(path)) => return Ok(Place::File(SourcePlace::Found(path, None))),
            Some(Files::Folder(root, pattern)) => (Tree::Local(root), pattern),
            None => match objects_of(&place, text).map_err(anyhow::Error::msg)? {
                Some((root, pattern)) => (Tree::list(root)?, pattern),
                None => return Ok(Place::Address),
            },
        };
        let (root, pattern) = folder;
        let prefix = prefix_of(path_in(text), &pattern);
        Ok(Place::Folder(root, pattern, prefix))
    };
    let rules = spec.sources.iter().zip(sources);
    rules
        .map(|(rule, source)| place_of(rule, source).with_context(|| rule.at.clone()))
        .collect()
}

/// What the folders among the sources say of themselves, each with what comes before its names; nothing of those that say nothing.
///
/// # Errors
/// As [`RowReader::contents`].
fn contents_of(
    spec: &RowsSpec,
    places: &[Place],
    reader: &dyn RowReader,
) -> Result<Vec<Option<(Contents, String)>>> {
    let contents_of = |place: &Place| -> Result<Option<(Contents, String)>> {
        let Place::Folder(root, pattern, prefix) = place else {
            return Ok(None);
        };
        if pattern.text() != "**" {
            return Ok(None);
        }
        let contents = reader.contents(&root.location())?;
        Ok(contents.map(|contents| (contents, prefix.clone())))
    };
    let rules = spec.sources.iter().zip(places);
    rules
        .map(|(rule, place)| contents_of(place).with_context(|| rule.at.clone()))
        .collect()
}

/// The sources that a recipe's stand for, in order, and for each which of the recipe's it is of; and the splits, where the recipe leaves them to the
/// folders.
///
/// Takes a look at every folder that a pattern leads through, and at no file.
///
/// # Errors
/// A pattern that nothing fits, a file of two sources, of no split or of two, a split without files.
pub(super) fn expand(
    spec: &RowsSpec,
    splits: &Splits,
    sources: &[SourceSpec],
    reader: &dyn RowReader,
    from: &[String],
) -> Result<(Vec<SourceSpec>, Vec<u32>, Option<Splits>)> {
    let places = places_of(spec, sources, from)?;
    let contents = contents_of(spec, &places, reader)?;
    let told = splits.names.is_empty().then(|| Splits::told(&contents));
    let splits = told.as_ref().unwrap_or(splits);
    let mut found = Found {
        reader,
        splits,
        sources: Vec::new(),
        rules: Vec::new(),
        seen: HashSet::new(),
        used: vec![false; splits.names.len()],
        // Splits that get nothing new are those of sources that are taken over.
        is_open: spec.fractions.is_some()
            || told.is_some()
            || spec.sources.iter().any(|rule| rule.is_taken_over),
    };
    for (index, ((rule, source), place)) in spec.sources.iter().zip(sources).zip(&places).enumerate() {
        if rule.is_taken_over {
            continue;
        }
        let group = rule.group.unwrap_or(match reader.unit() {
            "" => GROUP_OF_WHOLE_FILES,
            _ => 1,
        });
        match place {
            Place::Address if stands_for_several(&source.place) || told.is_some() => {
                // Of what is registered in place it shows when the server is asked.
                found.is_open = true;
                found.sources.push(source.clone());
                found.rules.push(index as u32);
            }
            Place::Address => {
                // What is fetched: which members of an archive there are shows later.
                match splits.of(&rule.name, &source.name, None) {
                    Ok(split) => found.used[split] = true,
                    Err(_) if is_packed(&source.name, reader.endings()) => found.is_open = true,
                    Err(error) => return Err(error.context(rule.at.clone())),
                }
                found.sources.push(source.clone());
                found.rules.push(index as u32);
            }
            Place::File(place) => {
                let text = rule.text.as_deref().unwrap_or(&source.name);
                let spec = SourceSpec {
                    name: name_of(Path::new(text)),
                    place: place.clone(),
                    ..source.clone()
                };
                found
                    .add(&rule.name, index, spec)
                    .with_context(|| rule.at.clone())?;
            }
            Place::Folder(root, pattern, prefix) => {
                if source.sha256.is_some() || source.bytes.is_some() {
                    bail!(
                        "{}: a pattern or folder stands for files of any content; `sha256` and `bytes` are for one file",
                        rule.at
                    );
                }
                let before = found.sources.len();
                match &contents[index] {
                    Some((contents, prefix)) => {
                        let files = contents.files.iter().map(|(file, _)| file);
                        for file in contents.aside.iter().chain(files) {
                            let source = root.source(format!("{prefix}{file}"), file)?;
                            found
                                .add(&rule.name, index, source)
                                .with_context(|| rule.at.clone())?;
                        }
                    }
                    None => found
                        .add_folder(&rule.name, index, root, prefix, pattern, group)
                        .with_context(|| rule.at.clone())?,
                }
                let is_aside = |source: &SourceSpec| reader.is_aside(&source.name);
                if contents[index].is_none() && found.sources[before..].iter().all(is_aside) {
                    return Err(nothing_fits(&rule.at, root, pattern, reader));
                }
                if rule.group.is_none() && found.sources.len() - before > MOST_SOURCES {
                    return Err(Hinted::new(
                        format!(
                            "{}: it stands for {} files, each of which would have shards of its own",
                            rule.at,
                            found.sources.len() - before
                        ),
                        "say how many files share a shard: `group = 1000` beside `path`",
                    )
                    .into());
                }
            }
        }
    }
    let (sources, rules) = (found.sources, found.rules);
    let unused = found.used.iter().position(|used| !used);
    if let Some(split) = unused.filter(|_| !found.is_open) {
        let at = &spec.splits_at[split];
        let names: Vec<&str> = sources
            .iter()
            .take(1000)
            .map(|source| source.name.as_str())
            .collect();
        let patterns: Vec<String> = splits.files[split]
            .files
            .iter()
            .map(|text| format!("`{text}`"))
            .collect();
        let what = match patterns.is_empty() {
            true => "its sources".to_owned(),
            false => patterns.join(" or "),
        };
        let hint = splits.files[split]
            .files
            .iter()
            .find_map(|text| near(text, names.iter().copied()).first().copied())
            .map_or(String::new(), |name| format!("; is `{name}` meant?"));
        let shown = names[..names.len().min(MOST_NAMES)].join(", ");
        return Err(Hinted::new(
            format!("{at}: no file fits {what}"),
            format!("the sources have {shown}{hint}"),
        )
        .into());
    }
    Ok((sources, rules, told))
}

/// Whether an address is that of several files: only of files that stay there.
pub(crate) fn stands_for_several(place: &SourcePlace) -> bool {
    matches!(place, SourcePlace::Url(url) if url.scheme() != "file" && (url.path().contains('*') || url.path().ends_with('/')))
}

struct Found<'a> {
    reader: &'a dyn RowReader,
    splits: &'a Splits,
    sources: Vec<SourceSpec>,
    rules: Vec<u32>,
    seen: HashSet<String>,
    /// Whether each split has files.
    used: Vec<bool>,
    /// Whether that shows only when archives are read.
    is_open: bool,
}

impl Found<'_> {
    fn add(&mut self, rule_name: &str, rule: usize, source: SourceSpec) -> Result<()> {
        match self.splits.of(rule_name, &source.name, None) {
            // It may be above the folders of several splits.
            _ if self.reader.is_aside(&source.name) => {}
            Ok(split) => self.used[split] = true,
            Err(_) if is_packed(&source.name, self.reader.endings()) => self.is_open = true,
            Err(error) => return Err(error),
        }
        if !self.seen.insert(source.name.clone()) {
            return Err(Hinted::new(
                format!("the file {} is there twice", source.name),
                "make the paths of the sources exclude each other",
            )
            .into());
        }
        self.sources.push(source);
        self.rules.push(rule as u32);
        Ok(())
    }

    fn add_folder(
        &mut self,
        rule_name: &str,
        rule: usize,
        root: &Tree,
        prefix: &str,
        pattern: &Pattern,
        group: u64,
    ) -> Result<()> {
        let everything = pattern.text() == "**";
        let mut set = FileSet::default();
        let mut first = String::new();
        root.walk(&mut |path| {
            if self.reader.is_aside(path) {
                let name = format!("{prefix}{path}");
                return self.add(rule_name, rule, root.source(name, path)?);
            }
            let fits = match everything {
                true => self.reader.takes(path) || is_packed(path, self.reader.endings()),
                false => pattern.matches(path).is_some(),
            };
            if !fits {
                return Ok(());
            }
            let name = format!("{prefix}{path}");
            if group == 1 || is_packed(path, self.reader.endings()) {
                return self.add(rule_name, rule, root.source(name, path)?);
            }
            // Sets begin where a hash says, so that a new file changes only the set that it comes into.
            let hash = blake3::hash(path.as_bytes());
            let number = hash
                .as_bytes()
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let begins = number % group == 0 || set.len() >= group * MOST_TIMES;
            if begins && !set.is_empty() {
                let whole = std::mem::take(&mut set);
                self.add_set(rule, root, set_name(prefix, &first), whole)?;
            }
            let split = self.splits.of(rule_name, &name, None)?;
            self.used[split] = true;
            if set.is_empty() {
                path.clone_into(&mut first);
            }
            set.push(path);
            Ok(())
        })?;
        if !set.is_empty() {
            self.add_set(rule, root, set_name(prefix, &first), set)?;
        }
        Ok(())
    }

    fn add_set(&mut self, rule: usize, root: &Tree, name: String, set: FileSet) -> Result<()> {
        if !self.seen.insert(name.clone()) {
            return Err(Hinted::new(
                format!("the files {name} are there twice"),
                "make the paths of the sources exclude each other",
            )
            .into());
        }
        self.sources.push(root.source_of_set(name, set)?);
        self.rules.push(rule as u32);
        Ok(())
    }
}

/// Where a pattern is looked up.
enum Tree {
    Local(PathBuf),
    /// A folder of a store, and the paths of what is below it, in the order of [`walk`]. About 100 bytes an object while it is listed.
    Stored(Location, Vec<Box<str>>),
}

impl Tree {
    fn list(root: Location) -> Result<Self> {
        let listed = store::list_files(&root)?;
        let mut paths: Vec<Box<str>> = Vec::with_capacity(listed.len());
        for file in listed {
            let mut parts = file.relative.split('/');
            if parts.clone().any(|part| matches!(part, "" | "." | "..")) {
                // A marker of a folder, or what has no name as a file.
                continue;
            }
            if !parts.any(is_hidden) {
                paths.push(file.relative.into_boxed_str());
            }
        }
        paths.sort_unstable_by(|a, b| a.split('/').cmp(b.split('/')));
        Ok(Self::Stored(root, paths))
    }

    fn location(&self) -> Location {
        match self {
            Self::Local(root) => Location::from_path(root),
            Self::Stored(root, _) => root.clone(),
        }
    }

    /// Calls `visit` with the path of each file below it, as [`walk`] does.
    fn walk(&self, visit: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        match self {
            Self::Local(root) => walk(root, "", visit),
            Self::Stored(_, paths) => paths.iter().try_for_each(|path| visit(path)),
        }
    }

    /// A file below it as a source.
    fn source(&self, name: String, path: &str) -> Result<SourceSpec> {
        let place = match self {
            Self::Local(root) => SourcePlace::Found(root.join(path), None),
            Self::Stored(root, _) => SourcePlace::Listed(address(&root.join(path))?, None),
        };
        Ok(SourceSpec::at(name, place))
    }

    /// Some files below it as one source.
    fn source_of_set(&self, name: String, set: FileSet) -> Result<SourceSpec> {
        let files = Some(Arc::new(set));
        let place = match self {
            Self::Local(root) => SourcePlace::Found(root.clone(), files),
            Self::Stored(root, _) => SourcePlace::Listed(address(root)?, files),
        };
        Ok(SourceSpec::at(name, place))
    }
}

impl std::fmt::Display for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(root) => root.display().fmt(f),
            Self::Stored(root, _) => root.fmt(f),
        }
    }
}

fn address(location: &Location) -> Result<url::Url> {
    url::Url::parse(&location.to_string()).with_context(|| format!("{location} is not an address"))
}

/// Whether a name is left out of what patterns and folders stand for.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name.ends_with('~')
}

/// What a path or address in a recipe says of a place, without the store.
fn path_in(text: &str) -> &str {
    match text.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |slash| &rest[slash..]),
        None => text,
    }
}

/// Where a path of the recipe is in the local files and folders that the user says. Not: `None`.
fn moved(text: &str, from: &[String], is_only: bool) -> Option<SourcePlace> {
    let text = Path::new(text);
    for place in from.iter().filter(|place| !place.contains("://")) {
        let place = Path::new(place);
        if !place.is_dir() {
            if is_only || place.file_name() == text.file_name() {
                return Some(SourcePlace::Path(place.to_owned()));
            }
            continue;
        }
        for rest in endings_of(text) {
            let candidate = place.join(&rest);
            let is_pattern = rest.to_str().is_some_and(|rest| rest.contains(['*', '{']));
            let is_there = match is_pattern {
                false => candidate.exists(),
                true => match files_of(&SourcePlace::Path(candidate.clone())) {
                    Ok(Some(Files::Folder(root, pattern))) => fits_any(&root, &pattern),
                    _ => false,
                },
            };
            if is_there {
                return Some(SourcePlace::Path(candidate));
            }
        }
    }
    None
}

/// A path as the recipe has it, then without the folders in front.
fn endings_of(text: &Path) -> impl Iterator<Item = PathBuf> {
    let parts: Vec<_> = text
        .components()
        .filter(|part| matches!(part, std::path::Component::Normal(_)))
        .map(|part| part.as_os_str().to_owned())
        .collect();
    (0..parts.len()).map(move |skipped| parts[skipped..].iter().collect())
}

/// Where a path of the recipe is at the addresses that the user says: of the file itself, or of a folder that it is in. Stores are asked; a web
/// server is taken to have a file.
///
/// # Errors
/// It is at none of them; a store that does not answer.
fn moved_to_address(text: &str, from: &[String], is_only: bool) -> Result<Place> {
    let is_pattern = text.contains(['*', '{']);
    for address in from.iter().filter(|place| place.contains("://")) {
        let url = url::Url::parse(address).with_context(|| format!("`{address}` is not an address"))?;
        let last = url.path_segments().and_then(|mut parts| parts.next_back());
        let last = last.filter(|name| !name.is_empty());
        let is_it = last.is_some_and(|name| Path::new(text).file_name().is_some_and(|own| *own == *name));
        if !fetch::is_store(url.scheme()) {
            if is_pattern {
                continue;
            }
            let is_file = is_it || (is_only && last.is_some_and(|name| name.contains('.')));
            let mut url = url.clone();
            if !is_file && let Ok(mut parts) = url.path_segments_mut() {
                parts
                    .pop_if_empty()
                    .extend(Path::new(text).file_name().and_then(|name| name.to_str()));
            }
            return Ok(Place::File(SourcePlace::Listed(url, None)));
        }
        let place = SourcePlace::Url(url);
        if !is_pattern
            && (is_it || is_only)
            && objects_of(&place, address).map_err(anyhow::Error::msg)?.is_none()
        {
            return Ok(Place::File(listed(address)?));
        }
        for rest in endings_of(Path::new(text)) {
            let Some(rest) = rest.to_str() else { continue };
            let candidate = format!("{}/{}", address.trim_end_matches('/'), rest.replace('%', "%25"));
            let Some((root, pattern)) = objects_of(&place, &candidate).map_err(anyhow::Error::msg)? else {
                return Ok(Place::File(listed(&candidate)?));
            };
            let root = Tree::list(root)?;
            let mut fits = false;
            root.walk(&mut |path| {
                fits |= pattern.matches(path).is_some();
                Ok(())
            })?;
            if fits {
                let prefix = prefix_of(text, &pattern);
                return Ok(Place::Folder(root, pattern, prefix));
            }
        }
    }
    let places: Vec<String> = from.iter().map(|place| format!("`{place}`")).collect();
    Err(Hinted::new(
        format!("could not find `{text}` in {}", places.join(", ")),
        "with `--from` all sources of a recipe are looked for there; name each place that has some, or leave it out",
    )
    .into())
}

/// An object.
fn listed(text: &str) -> Result<SourcePlace> {
    let location = Location::parse(text)?;
    Ok(SourcePlace::Listed(address(&location)?, None))
}

fn fits_any(root: &Path, pattern: &Pattern) -> bool {
    let mut found = false;
    let walked = walk(root, "", &mut |path| {
        if pattern.matches(path).is_some() {
            found = true;
            bail!("found");
        }
        Ok(())
    });
    found && walked.is_err()
}

/// The name of a file that a recipe calls so: the path as it is there, or the file's name where it leads out of the recipe's folder.
fn name_of(path: &Path) -> String {
    use std::path::Component;

    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            _ => {
                return path
                    .file_name()
                    .map_or(String::new(), |name| name.to_string_lossy().into_owned());
            }
        }
    }
    parts.join("/")
}

/// A pattern of the names that the files of a source get whose path is written so.
pub(crate) fn files_text(text: &str, place: &SourcePlace) -> Result<String, String> {
    Ok(match files_of(place)? {
        Some(Files::Folder(_, pattern)) => prefix_of(text, &pattern) + pattern.text(),
        _ => name_of(Path::new(text)),
    })
}

/// What comes before the paths that fit a pattern in the names of files.
pub(crate) fn prefix_of(text: &str, pattern: &Pattern) -> String {
    let rest = text.strip_suffix(pattern.text()).unwrap_or(text);
    let name = name_of(Path::new(rest));
    match name.is_empty() {
        true => name,
        false => name + "/",
    }
}

/// Calls `visit` with the path of each file under a folder, in the order of names in each folder. Links to folders are not followed; names that
/// begin with a dot or end with `~` are left out.
pub(crate) fn walk(root: &Path, inside: &str, visit: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let folder = root.join(inside);
    let shown = || format!("could not read {}", folder.display());
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(shown)? {
        let entry = entry.with_context(shown)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            bail!("{}: the name is not UTF-8", entry.path().display());
        };
        if is_hidden(name) {
            continue;
        }
        let kind = entry.file_type().with_context(shown)?;
        // A link that leads nowhere is told when the file is opened.
        let is_file = match kind.is_symlink() {
            true => std::fs::metadata(entry.path()).map_or(true, |target| target.is_file()),
            false => kind.is_file(),
        };
        if kind.is_dir() || is_file {
            entries.push((name.to_owned().into_boxed_str(), is_file));
        }
    }
    entries.sort_unstable();
    for (name, is_file) in entries {
        let path = match inside {
            "" => name.into_string(),
            inside => format!("{inside}/{name}"),
        };
        if is_file {
            visit(&path)?;
        } else {
            walk(root, &path, visit)?;
        }
    }
    Ok(())
}

fn nothing_fits(at: &str, root: &Tree, pattern: &Pattern, reader: &dyn RowReader) -> anyhow::Error {
    let mut names = Vec::new();
    let walked = root.walk(&mut |path| {
        names.push(path.to_owned());
        match names.len() < 1000 {
            true => Ok(()),
            false => bail!("enough"),
        }
    });
    if let Err(error) = walked
        && names.is_empty()
    {
        return error.context(at.to_owned());
    }
    let what = match pattern.text() {
        "**" => format!("ends in {}", reader.endings().join(", ")),
        text => format!("fits `{text}`"),
    };
    let hint = match names.as_slice() {
        [] => "the folder is empty".to_owned(),
        names => format!("there are {}", names[..names.len().min(MOST_NAMES)].join(", ")),
    };
    Hinted::new(format!("{at}: no file of {root} {what}"), hint).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_lead_out_of_the_recipes_folder() {
        for (text, wanted) in [
            ("data/a.csv", "data/a.csv"),
            ("./a.csv", "a.csv"),
            ("../data/a.csv", "a.csv"),
            ("/data/x/a.csv", "a.csv"),
        ] {
            assert_eq!(name_of(Path::new(text)), wanted);
        }
        let pattern = Pattern::parse("*.csv").unwrap();
        assert_eq!(prefix_of("data/x/*.csv", &pattern), "data/x/");
        assert_eq!(prefix_of("*.csv", &pattern), "");
        assert_eq!(prefix_of("/data/x/*.csv", &pattern), "x/");
    }
}
