//! Which files a conversion reads, in which order, and of which kind they are.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use prep_formats::array_record::SIGNATURE;
use prep_formats::store::{self, Location, PositionedFile, ReadAt};
use prep_formats::tfrecord::{self, Compression};
use serde::{Deserialize, Serialize};

use crate::error::Hinted;
use crate::monitor::{Meter, Monitor, Unit};
use crate::patterns::{PatternError, is_pattern, matches};
use crate::place::Place;

/// What a file is, as told by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// No bytes at all: no records.
    Empty,
    /// TFRecord.
    Plain,
    /// TFRecord in gzip, zlib or zstd: readable from its start only.
    Gzip,
    Zlib,
    Zstd,
    ArrayRecord,
}

impl Kind {
    pub(crate) fn is_compressed(self) -> bool {
        matches!(self, Self::Gzip | Self::Zlib | Self::Zstd)
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Plain => "tfrecord",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
            Self::ArrayRecord => "array_record",
        }
    }
}

/// A file to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputFile {
    /// As the user wrote it, or found by what the user wrote: for messages.
    pub(crate) shown: String,
    /// Where it lies: the bytes of an absolute path, or a URL.
    place: At,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// Tells whether it was changed since: time of change and number of the file, or what the store says.
    pub(crate) identity: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum At {
    Path(Vec<u8>),
    Url(String),
}

impl InputFile {
    /// Opens it for positioned reads: without a map, whose pages would count as this process's memory.
    pub(crate) fn open(&self) -> Result<Arc<dyn ReadAt>> {
        let file: Arc<dyn ReadAt> = match &self.place {
            At::Path(bytes) => {
                let path = PathBuf::from(OsString::from_vec(bytes.clone()));
                Arc::new(Named {
                    name: self.shown.clone(),
                    file: PositionedFile::open(&path)
                        .with_context(|| format!("could not open {}", self.shown))?,
                })
            }
            At::Url(url) => store::open(&Location::parse(url)?)?,
        };
        if file.len() != self.bytes {
            return Err(Hinted::new(
                format!(
                    "{} has {} bytes now, it had {} before",
                    self.shown,
                    file.len(),
                    self.bytes
                ),
                "it was changed while it was read: give the same command again once it is at rest",
            )
            .into());
        }
        Ok(file)
    }

    /// The last part of its name: what the manifest calls it.
    pub(crate) fn file_name(&self) -> String {
        match &self.place {
            At::Path(bytes) => {
                let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
                path.file_name()
                    .map_or_else(|| self.shown.clone(), |name| name.to_string_lossy().into_owned())
            }
            At::Url(url) => url.rsplit('/').next().unwrap_or(url).to_owned(),
        }
    }

    pub(crate) fn path(&self) -> Option<PathBuf> {
        match &self.place {
            At::Path(bytes) => Some(PathBuf::from(OsString::from_vec(bytes.clone()))),
            At::Url(_) => None,
        }
    }
}

/// A file under the name that the user knows.
#[derive(Debug)]
struct Named {
    name: String,
    file: PositionedFile,
}

impl ReadAt for Named {
    fn name(&self) -> &str {
        &self.name
    }
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> prep_formats::Result<()> {
        self.file.read_at(offset, buffer)
    }
}

/// What the arguments of a conversion name.
#[derive(Debug)]
pub(crate) enum Found {
    /// Record files, in source order.
    Files(Vec<InputFile>),
    /// A TFDS folder.
    Tfds(PathBuf),
}

/// Finds the files that arguments name: paths, patterns, URLs and folders. Source order is that of the arguments, and by name inside a
/// pattern or folder.
pub(crate) fn find(arguments: &[OsString], output: &Place, monitor: &Monitor) -> Result<Found> {
    let meter = monitor.stage("find inputs", Unit::Files, None);
    let found = find_metered(arguments, output, monitor, &meter);
    // Where it took no time, it is no stage.
    monitor.forget_quick(&meter);
    found
}

fn find_metered(arguments: &[OsString], output: &Place, monitor: &Monitor, meter: &Meter) -> Result<Found> {
    let mut files = Vec::new();
    for argument in arguments {
        monitor.check()?;
        meter.set(files.len() as u64);
        let text = argument.to_string_lossy();
        let is_url = text.contains("://") && !Path::new(argument).exists();
        if is_url {
            let location = Location::parse(&text)?;
            refuse_query(&location, &text)?;
            match location.as_path() {
                Some(path) => add_path(&path, &mut files, arguments, output)?,
                None if is_pattern(&text) => files.extend(list_store(&text)?),
                None => files.extend(remote_or_below(&text, &location)?),
            }
            continue;
        }
        let path = Path::new(argument);
        if argument.is_empty() {
            bail!("an input is an empty text; give a file, a pattern, a folder or a URL");
        }
        if std::fs::symlink_metadata(path).is_err() && is_pattern(&text) {
            for found in expand(&text)? {
                if found.is_dir() {
                    continue;
                }
                monitor.check()?;
                files.push(local(&found)?);
                meter.set(files.len() as u64);
            }
            continue;
        }
        if is_tfds(path) {
            if arguments.len() > 1 {
                return Err(Hinted::new(
                    format!("{} is a TFDS folder, and is not the only input", path.display()),
                    "convert a TFDS folder by itself; to mix its records with others, name its files: `'FOLDER/*.tfrecord*'`",
                )
                .into());
            }
            refuse_inside(path, output)?;
            return Ok(Found::Tfds(path.to_owned()));
        }
        add_path(path, &mut files, arguments, output)?;
    }
    refuse_repeated(&files)?;
    let inside = format!("{output}/");
    for file in &files {
        let is_inside = match (&file.place, output.local()) {
            (At::Path(_), Some(output)) => file.path().is_some_and(|path| path.starts_with(output)),
            (At::Url(url), None) => url.starts_with(&inside),
            _ => false,
        };
        if is_inside {
            return Err(Hinted::new(
                format!("the input {} lies in the output {output}", file.shown),
                "inputs are never changed or removed: give another output",
            )
            .into());
        }
    }
    Ok(Found::Files(files))
}

fn add_path(path: &Path, files: &mut Vec<InputFile>, arguments: &[OsString], output: &Place) -> Result<()> {
    let metadata = std::fs::metadata(path).with_context(|| not_found(path, arguments))?;
    if !metadata.is_dir() {
        files.push(local(path)?);
        return Ok(());
    }
    refuse_inside(path, output)?;
    let found = record_files(path)?;
    if found.is_empty() {
        return Err(no_record_files(path.display()));
    }
    for path in found {
        files.push(local(&path)?);
    }
    Ok(())
}

fn not_found(path: &Path, arguments: &[OsString]) -> String {
    let shown = path.display();
    if arguments.len() == 1 {
        format!("could not open the input {shown}")
    } else {
        format!("could not open the input {shown} (the last argument is the output)")
    }
}

/// Whether this is a folder as TFDS writes it.
pub(crate) fn is_tfds(path: &Path) -> bool {
    path.is_dir() && path.join("dataset_info.json").is_file() && path.join("features.json").is_file()
}

fn refuse_inside(folder: &Path, output: &Place) -> Result<()> {
    let Some(output) = output.local() else {
        return Ok(());
    };
    let folder = canonical(folder);
    if output.starts_with(&folder) {
        return Err(Hinted::new(
            format!(
                "the output {} lies in the input {}",
                output.display(),
                folder.display()
            ),
            "inputs are never changed: give an output outside of it, or name the files by a pattern",
        )
        .into());
    }
    if folder.starts_with(output) {
        return Err(Hinted::new(
            format!(
                "the input {} lies in the output {}",
                folder.display(),
                output.display()
            ),
            "inputs are never changed or removed: give another output",
        )
        .into());
    }
    Ok(())
}

/// The path without links and ways around, as far as it exists.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut rest = Vec::new();
    for ancestor in absolute.ancestors() {
        if let Ok(mut found) = std::fs::canonicalize(ancestor) {
            found.extend(rest.iter().rev());
            return found;
        }
        rest.extend(ancestor.file_name().map(ToOwned::to_owned));
    }
    absolute
}

/// The record files directly in a folder, by name.
fn record_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let shown = folder.display();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("could not list {shown}"))? {
        let entry = entry.with_context(|| format!("could not list {shown}"))?;
        if is_record_file(&entry.file_name().to_string_lossy()) && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a file of a folder that is given as a whole is taken, by its name.
fn is_record_file(name: &str) -> bool {
    let is_named = ["tfrecord", "array_record", "arrayrecord", "riegeli"]
        .iter()
        .any(|word| name.contains(word));
    // A lone `.index` beside a file is another program's.
    let is_other = name.starts_with('.') || name.ends_with(".index") || name.ends_with(".json");
    is_named && !is_other
}

fn no_record_files(folder: impl std::fmt::Display) -> anyhow::Error {
    Hinted::new(
        format!("the folder {folder} has no record files"),
        "files whose names contain `tfrecord` or `array_record` are taken; for others give a pattern: `'FOLDER/*'`",
    )
    .into()
}

/// The files that a pattern matches, by name.
fn expand(pattern: &str) -> Result<Vec<PathBuf>> {
    let found = matches(pattern).map_err(|error| match error {
        PatternError::Malformed(reason) => anyhow!("the pattern `{pattern}` is malformed: {reason}"),
        error => anyhow!(error).context(format!("could not look for `{pattern}`")),
    })?;
    if !found.iter().any(|path| !path.is_dir()) {
        return Err(Hinted::new(
            format!("no file matches `{pattern}`"),
            "patterns are those of a shell: `*`, `?`, `[abc]`, and `**` for any folders",
        )
        .into());
    }
    Ok(found)
}

pub(crate) fn local(path: &Path) -> Result<InputFile> {
    let shown = path.display().to_string();
    let metadata = std::fs::metadata(path).with_context(|| format!("could not open the input {shown}"))?;
    if metadata.is_dir() {
        bail!("the input {shown} is a folder, a file was wanted");
    }
    if !metadata.is_file() {
        return Err(Hinted::new(
            format!("the input {shown} is not a regular file"),
            "pipes and devices cannot be read twice: copy it to a file first",
        )
        .into());
    }
    let source = PositionedFile::open(path).with_context(|| format!("could not open the input {shown}"))?;
    let absolute =
        std::fs::canonicalize(path).with_context(|| format!("could not open the input {shown}"))?;
    Ok(InputFile {
        kind: kind_of(&source).with_context(|| format!("could not read {shown}"))?,
        shown,
        place: At::Path(absolute.into_os_string().into_vec()),
        bytes: metadata.len(),
        identity: format!(
            "{}:{}:{}.{:09}",
            metadata.dev(),
            metadata.ino(),
            metadata.mtime(),
            metadata.mtime_nsec()
        ),
    })
}

fn remote(url: &str) -> Result<InputFile> {
    let location = Location::parse(url)?;
    let source = store::open(&location)?;
    // Where the store says nothing, its size has to do.
    let identity = store::object_identity(&location);
    Ok(InputFile {
        shown: url.to_owned(),
        place: At::Url(url.to_owned()),
        bytes: source.len(),
        kind: kind_of(&*source)?,
        identity: identity.unwrap_or_default(),
    })
}

/// The object at a URL; where there is none, the record files in the folder of that name, which web servers do not list.
fn remote_or_below(url: &str, location: &Location) -> Result<Vec<InputFile>> {
    // A bucket by itself answers, too, with something that is no file.
    let is_folder = url.ends_with('/') || location.parent().is_none();
    let absent = match (location.is_web(), is_folder) {
        (true, _) => return Ok(vec![remote(url)?]),
        (false, true) => None,
        (false, false) => match remote(url) {
            Err(error) if is_absent(&error) => Some(error),
            found => return Ok(vec![found?]),
        },
    };
    if let Err(error) = store::has_objects(location) {
        let error = anyhow::Error::new(error);
        if !is_absent(&error) {
            return Err(error);
        }
        let bucket = location.to_string();
        let bucket = bucket.split('/').nth(2).unwrap_or_default();
        bail!("there is no bucket `{bucket}`");
    }
    let listed = store::list_files(location)?;
    if listed.is_empty() {
        return Err(absent.map_or_else(
            || no_record_files(location),
            |_| {
                Hinted::new(
                    format!("there is neither an object nor a folder {location}"),
                    "look at the names: those of objects are told apart by case, and `%41` in an address stands for `A`",
                )
                .into()
            },
        ));
    }
    let has = |name: &str| listed.iter().any(|file| file.relative == name);
    if has("dataset_info.json") && has("features.json") {
        return Err(Hinted::new(
            format!("{location} is a TFDS folder, of which only local ones are converted split by split"),
            "name the files of a split by a pattern: `'FOLDER/*-train.*'`; or register it where it lies: a recipe with the reader `tfds`, and \
             `prep register --in-place`",
        )
        .into());
    }
    let names = listed.iter().map(|file| file.relative.as_str());
    let found: Vec<InputFile> = names
        .filter(|name| !name.contains('/') && is_record_file(name))
        .map(|name| remote(&location.join(name).to_string()))
        .collect::<Result<_>>()?;
    if found.is_empty() {
        return Err(no_record_files(location));
    }
    Ok(found)
}

/// Whether a store has no such object.
fn is_absent(error: &anyhow::Error) -> bool {
    matches!(
        crate::error::find(error),
        Some(prep_formats::Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound
    )
}

/// What follows a `?` in an address is no part of its path, and most often a signature: not to be shown, and not sent by the reader of ranges.
fn refuse_query(location: &Location, url: &str) -> Result<()> {
    match url.split_once('?') {
        Some((path, _)) if location.is_web() => Err(Hinted::new(
            format!(
                "the address {path}?... has a query, and files of web servers are read by their paths alone"
            ),
            "download such a file, and convert it from there; where a `?` is part of its name, write `%3F`",
        )
        .into()),
        _ => Ok(()),
    }
}

/// The objects of a store that a URL with a pattern in its path matches, by name.
fn list_store(url: &str) -> Result<Vec<InputFile>> {
    let host = url.find("://").map_or(0, |at| at + 3);
    let root = &url[..url[host..].find('/').map_or(url.len(), |slash| host + slash)];
    if is_pattern(root) {
        bail!("`{url}`: a pattern has its place in the path, behind the host or bucket");
    }
    let path = url[root.len()..].trim_start_matches('/');
    let pattern =
        glob::Pattern::new(path).map_err(|error| anyhow!("the pattern `{url}` is malformed: {error}"))?;
    let options = glob::MatchOptions {
        require_literal_separator: true,
        ..glob::MatchOptions::default()
    };
    let fixed = &path[..path.find(['*', '?', '[']).unwrap_or(path.len())];
    let folder = fixed.rfind('/').map_or("", |slash| &fixed[..slash]);
    // Names stand in patterns as they are, without the escapes of addresses.
    let place = Location::parse(root)?.join(folder);
    let listed = store::list_objects(&place).map_err(|error| {
        let error = anyhow::Error::new(error);
        if !place.is_web() {
            return error;
        }
        error.context(Hinted::new(
            format!("the files of {place} cannot be listed"),
            "few web servers list their files (by WebDAV): name each file",
        ))
    })?;
    let paths: Vec<String> = listed
        .into_iter()
        .filter(|path| pattern.matches_with(path, options))
        .collect();
    if paths.is_empty() {
        bail!("no object matches `{url}`");
    }
    let root = Location::parse(root)?;
    paths
        .iter()
        .map(|path| remote(&root.join(path).to_string()))
        .collect()
}

/// Tells what a file is from its first bytes.
fn kind_of(source: &dyn ReadAt) -> Result<Kind> {
    let mut head = [0; 12];
    let count = source.len().min(12) as usize;
    source.read_at(0, &mut head[..count])?;
    let head = &head[..count];
    if head.is_empty() {
        return Ok(Kind::Empty);
    }
    if head.starts_with(&SIGNATURE) {
        return Ok(Kind::ArrayRecord);
    }
    Ok(match tfrecord::detect(head) {
        Some(Compression::Gzip) => Kind::Gzip,
        Some(Compression::Zlib) => Kind::Zlib,
        Some(Compression::Zstd) => Kind::Zstd,
        // Damaged, or none at all: its reader says so.
        _ => Kind::Plain,
    })
}

/// Two names of one file are a mistake: its records would be there twice.
fn refuse_repeated(files: &[InputFile]) -> Result<()> {
    let mut seen: HashMap<&At, usize> = HashMap::new();
    for (index, file) in files.iter().enumerate() {
        if let Some(first) = seen.insert(&file.place, index) {
            let other = &files[first].shown;
            let names = if *other == file.shown {
                format!("{other} is given twice")
            } else {
                format!("{other} and {} are the same file", file.shown)
            };
            return Err(Hinted::new(
                names,
                "its records would come twice: leave one out; to have them twice on purpose, make a hard link to the file",
            )
            .into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(output: &Path) -> Place {
        Place::new(output, Path::new(""), &crate::convert::MAKER).unwrap()
    }

    fn names(found: Found) -> Vec<String> {
        match found {
            Found::Files(files) => files.iter().map(InputFile::file_name).collect(),
            Found::Tfds(path) => vec![format!("tfds:{}", path.display())],
        }
    }

    fn find_in(folder: &Path, arguments: &[&str]) -> Result<Vec<String>> {
        let arguments: Vec<OsString> = arguments
            .iter()
            .map(|argument| match *argument {
                "" => OsString::new(),
                _ => folder.join(argument).into(),
            })
            .collect();
        find(&arguments, &place(&folder.join("out")), &Monitor::default()).map(names)
    }

    #[test]
    fn order_is_that_of_arguments_and_then_of_names() {
        let home = tempfile::tempdir().unwrap();
        for name in [
            "b.tfrecord",
            "a.tfrecord",
            "ü x[1].tfrecord",
            "c.txt",
            ".d.tfrecord",
            "10",
            "9",
        ] {
            std::fs::write(home.path().join(name), b"").unwrap();
        }
        std::fs::create_dir(home.path().join("z.tfrecord")).unwrap();
        let find = |arguments: &[&str]| find_in(home.path(), arguments).unwrap();
        assert_eq!(
            find(&["b.tfrecord", "?", "a.tfrecord"]),
            ["b.tfrecord", "9", "a.tfrecord"]
        );
        assert_eq!(
            find(&["*.tfrecord"]),
            ["a.tfrecord", "b.tfrecord", "ü x[1].tfrecord"]
        );
        assert_eq!(find(&["ü x[1].tfrecord"]), ["ü x[1].tfrecord"]);
        let output = tempfile::tempdir().unwrap();
        let found = super::find(&[home.path().into()], &place(output.path()), &Monitor::default()).unwrap();
        assert_eq!(names(found), ["a.tfrecord", "b.tfrecord", "ü x[1].tfrecord"]);
    }

    #[test]
    fn what_cannot_be_meant_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a.tfrecord"), b"").unwrap();
        std::os::unix::fs::symlink("a.tfrecord", home.path().join("link")).unwrap();
        std::os::unix::fs::symlink("loop", home.path().join("loop")).unwrap();
        std::fs::create_dir(home.path().join("empty")).unwrap();
        std::fs::create_dir(home.path().join("out")).unwrap();
        std::fs::write(home.path().join("out/x.tfrecord"), b"").unwrap();
        for (arguments, words) in [
            (&["no*.tfrecord"][..], "no file matches"),
            (&["a.tfrecord", "a.tfrecord"], "given twice"),
            (&["a.tfrecord", "*.tfrecord"], "given twice"),
            (&["link", "a.tfrecord"], "are the same file"),
            (&["loop"], "could not open the input"),
            (&["absent"], "could not open the input"),
            (&["empty"], "no record files"),
            (&["."], "lies in the input"),
            (&["out/x.tfrecord"], "lies in the output"),
            (&["out"], "lies in the input"),
            (&[""], "empty text"),
        ] {
            let error = format!("{:#}", find_in(home.path(), arguments).unwrap_err());
            assert!(error.contains(words), "{arguments:?}: {error}");
        }
        // A hard link is another file on purpose.
        std::fs::hard_link(home.path().join("a.tfrecord"), home.path().join("b.tfrecord")).unwrap();
        assert_eq!(find_in(home.path(), &["*.tfrecord"]).unwrap().len(), 2);
    }
}
