//! Builds datasets from files of examples.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use prep_formats::features::{Feature, Features};
use prep_formats::tfrecord::{self, Compression, ReadOptions};
use prep_formats::value::Value;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::build::absolute;
use crate::builder::{
    Builder, DatasetSpec, Decoded, Input, Known, Output, Raw, Source, SourcePlace, SourceSpec,
};
use crate::error::Hinted;
use crate::examples::file::{ENDING, ExampleFile, Summary, summary_of};
use crate::examples::invalid;
use crate::examples::schema::{form, values};
use crate::examples::spec::ExampleSet;
use crate::fetch::{KNOWN_SCHEMES, is_known};
use crate::readers::rows::cell::{Cell, read_row};
use crate::readers::rows::convert::plain;
use crate::readers::rows::survey::Survey;
use crate::tfds::Key;

/// Raise when the same examples give other records than before.
const REVISION: u32 = 1;

/// Runs the code that makes examples of sources.
pub trait Producer: Send + Sync {
    /// Has an [`ExampleWriter`](crate::examples::ExampleWriter) write the file of each task, in any order, several at a time if it likes. What is
    /// finished stays when others fail.
    ///
    /// `check` fails when the job was asked to stop; to be called a few times a second.
    ///
    /// # Errors
    /// Whatever the code says.
    fn produce(&self, tasks: &[Task], check: &dyn Fn() -> Result<()>) -> Result<()>;
}

/// A source whose examples are to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Task {
    /// What messages call the source.
    pub name: String,
    /// Where it lies on this machine: a file, or a folder.
    pub source: PathBuf,
    /// The file to write.
    pub output: PathBuf,
}

/// A builder of examples that code gives.
#[derive(Clone)]
pub struct ExampleBuilder {
    set: ExampleSet,
    /// What else decides the output: the identity of the code.
    identity: String,
    /// Of each source, its split, and how many examples of this are in the sources before it.
    splits: Vec<usize>,
    before: Vec<u64>,
    /// All features as one; known when the spec's are.
    form: Feature,
    files: Files,
}

#[derive(Clone)]
enum Files {
    /// The sources themselves, which last as long as this does.
    Sources { _held: Arc<Vec<ExampleFile>> },
    /// Those that are made of sources, in a folder that is told before it is needed.
    Made(Arc<dyn Producer>, Arc<OnceLock<PathBuf>>),
}

impl std::fmt::Debug for ExampleBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExampleBuilder")
            .field("set", &self.set)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl ExampleBuilder {
    /// Builds from files that are there, one for each split in the order of the splits.
    ///
    /// # Errors
    /// The features do not follow from the examples.
    pub fn of_files(mut set: ExampleSet, files: Vec<ExampleFile>) -> Result<Self> {
        if set.schema.features().is_none() {
            let surveys = files.iter().map(|file| file.summary.survey.clone());
            set.spec.features = set.schema.resolve(&add_up(set.schema.classes(), surveys))?;
        }
        for file in &files {
            let mut source = SourceSpec::at(file.name.clone(), SourcePlace::Path(file.path()));
            source.bytes = Some(file.bytes);
            source.sha256 = Some(file.sha256);
            set.spec.sources.push(source);
        }
        check_names(&set, &set.spec.features)?;
        Ok(Self {
            identity: String::new(),
            splits: (0..files.len()).collect(),
            before: vec![0; files.len()],
            form: form(&set.spec.features),
            files: Files::Sources {
                _held: Arc::new(files),
            },
            set,
        })
    }

    /// Builds from sources, of which `producer` makes examples: for each its split, as an index, and its path or address. `identity` is that of the
    /// code: another one makes another dataset.
    ///
    /// # Errors
    /// A source that is none, or is there twice.
    pub fn of_sources(
        mut set: ExampleSet,
        sources: &[(usize, String)],
        identity: impl Into<String>,
        producer: Arc<dyn Producer>,
    ) -> Result<Self> {
        let places: Vec<SourcePlace> = sources
            .iter()
            .map(|(_, text)| place(text))
            .collect::<Result<_>>()?;
        for (name, place) in names(&places)?.into_iter().zip(places) {
            set.spec.sources.push(SourceSpec::at(name, place));
        }
        Ok(Self {
            identity: identity.into(),
            splits: sources.iter().map(|(split, _)| *split).collect(),
            before: Vec::new(),
            form: form(&set.spec.features),
            files: Files::Made(producer, Arc::default()),
            set,
        })
    }

    /// The file of the examples of a source.
    fn file_of(&self, source: &Source) -> Result<PathBuf> {
        match &self.files {
            Files::Sources { .. } => Ok(source.path().to_owned()),
            Files::Made(_, folder) => {
                let folder = folder.get().context("the job has no folder for examples")?;
                Ok(folder.join(format!("{:06}.{ENDING}", source.index())))
            }
        }
    }
}

/// Where a source is, as users write it.
fn place(text: &str) -> Result<SourcePlace> {
    if !text.contains("://") {
        let path = absolute(Path::new(text))?;
        return match path.exists() {
            true => Ok(SourcePlace::Path(path)),
            false => Err(prep_formats::Error::Io {
                path: path.display().to_string(),
                action: "find",
                source: std::io::ErrorKind::NotFound.into(),
            }
            .into()),
        };
    }
    let url = Url::parse(text).map_err(|error| invalid(format!("`{text}` is not an address: {error}")))?;
    match url.scheme() {
        scheme if !is_known(scheme) => Err(invalid(format!(
            "`{text}`: `{scheme}:` is not supported; there are {KNOWN_SCHEMES}"
        ))),
        _ => Ok(SourcePlace::Url(url)),
    }
}

/// Names for sources: the ends of their paths, as long as tells them apart. So they do not depend on where the sources lie.
fn names(places: &[SourcePlace]) -> Result<Vec<String>> {
    let parts: Vec<Vec<String>> = places
        .iter()
        .map(|place| match place {
            SourcePlace::Url(url) => {
                let inside = url
                    .path_segments()
                    .into_iter()
                    .flatten()
                    .filter(|part| !part.is_empty());
                url.host_str()
                    .into_iter()
                    .chain(inside)
                    .map(str::to_owned)
                    .collect()
            }
            SourcePlace::Path(path) => {
                let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
                parts.filter(|part| part != "/").collect()
            }
            _ => Vec::new(),
        })
        .collect();
    let mut lengths = vec![1; places.len()];
    loop {
        let name = |(parts, length): (&Vec<String>, &usize)| {
            let start = parts.len().saturating_sub(*length);
            parts[start..].join("/")
        };
        let names: Vec<String> = parts.iter().zip(&lengths).map(name).collect();
        let mut of_name: std::collections::HashMap<&str, Vec<usize>> = std::collections::HashMap::new();
        for (index, name) in names.iter().enumerate() {
            of_name.entry(name).or_default().push(index);
        }
        let repeated: Vec<usize> = of_name
            .into_values()
            .filter(|same| same.len() > 1)
            .flatten()
            .collect();
        if repeated.is_empty() {
            // A download is a file of that name in one folder.
            let flat = names.into_iter().zip(places).map(|(name, place)| match place {
                SourcePlace::Url(_) => name.replace('/', "-"),
                _ => name,
            });
            return Ok(flat.collect());
        }
        let is_at_end = |index: &&usize| lengths[**index] >= parts[**index].len();
        if let Some(same) = repeated.iter().filter(is_at_end).min() {
            return Err(invalid(format!("the source `{}` is there twice", names[*same])));
        }
        for index in repeated {
            lengths[index] += 1;
        }
    }
}

/// What the surveys of all sources see together.
fn add_up(classes: Vec<String>, surveys: impl Iterator<Item = Option<Survey>>) -> Survey {
    let mut all = Survey::new(&classes);
    for (index, survey) in surveys.enumerate() {
        if let Some(survey) = survey {
            all.merge(survey.of_source(index as u32));
        }
    }
    all
}

/// Fails where a name that counts is no feature's.
fn check_names(set: &ExampleSet, features: &Features) -> Result<()> {
    let supervised = set
        .spec
        .supervised_keys
        .iter()
        .flat_map(|(input, target)| [input, target]);
    let missing = supervised
        .chain(&set.key)
        .find(|name| features.get(name).is_none());
    match missing {
        None => Ok(()),
        Some(name) => Err(invalid(format!("no example has a feature `{name}`"))),
    }
}

/// The key that a row has in this feature.
pub(super) fn key_of(name: &str, row: &[(String, Cell)]) -> Result<Key, String> {
    let wrong = |found: &str| {
        Err(format!(
            "feature `{name}`: wanted a text or an integer, as it is the key, found {found}"
        ))
    };
    let Some((_, cell)) = row.iter().find(|(other, _)| other == name) else {
        return wrong("nothing");
    };
    match plain(cell).as_ref() {
        Cell::Int(number) => Ok(Key::Int(i128::from(*number))),
        Cell::UInt(number) => Ok(Key::Int(i128::from(*number))),
        Cell::Text(text) => Ok(Key::Text(String::from_utf8_lossy(text).into_owned())),
        Cell::Bytes(bytes) => Ok(Key::Bytes(bytes.to_vec())),
        other => wrong(&other.describe()),
    }
}

/// What is known once all examples are there, for the journal.
#[derive(Debug, Serialize, Deserialize)]
struct Notes {
    /// The files of the schema, by name.
    features: std::collections::BTreeMap<String, String>,
    /// The examples of each source.
    examples: Vec<u64>,
}

impl Builder for ExampleBuilder {
    fn spec(&self) -> &DatasetSpec {
        &self.set.spec
    }

    fn identity(&self) -> String {
        // Of files that are there, the spec has the features.
        let schema = match &self.files {
            Files::Sources { .. } => String::new(),
            Files::Made(..) => format!("{:?}", self.set.schema),
        };
        format!(
            "examples revision {REVISION}: key {:?}, splits {:?}, schema {schema}, code {:?}",
            self.set.key, self.splits, self.identity
        )
    }

    fn has_fixed_size(&self) -> bool {
        false
    }

    fn keeps_all(&self) -> bool {
        true
    }

    fn keep_in(&self, folder: &Path) {
        if let Files::Made(_, known) = &self.files {
            let _ = known.set(folder.to_owned());
        }
    }

    fn learn(&self, sources: &[Source], _known: &[Option<Known>], _workers: usize) -> Result<Option<String>> {
        let Files::Made(producer, folder) = &self.files else {
            return Ok(None);
        };
        if let Some(folder) = folder.get() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("could not make the folder {}", folder.display()))?;
        }
        let mut outputs = Vec::new();
        let mut tasks = Vec::new();
        for source in sources {
            let output = self.file_of(source)?;
            if !output.exists() {
                tasks.push(Task {
                    name: source.name.clone(),
                    source: source.path().to_owned(),
                    output: output.clone(),
                });
            }
            outputs.push(output);
        }
        if !tasks.is_empty() {
            let check = || sources.iter().take(1).try_for_each(Source::check);
            producer.produce(&tasks, &check)?;
        }
        let mut summaries = Vec::new();
        for (source, output) in sources.iter().zip(&outputs) {
            if !output.exists() {
                bail!("the examples of {} were not made", source.name);
            }
            let beside = summary_of(output);
            let read = || format!("could not read {}", beside.display());
            let text = std::fs::read_to_string(&beside).with_context(read)?;
            let summary: Summary = serde_json::from_str(&text).with_context(read)?;
            summaries.push(summary);
        }
        let examples = summaries.iter().map(|summary| summary.examples).collect();
        let surveys = summaries.into_iter().map(|summary| summary.survey);
        let features = match self.set.schema.features() {
            Some(features) => features,
            None => self
                .set
                .schema
                .resolve(&add_up(self.set.schema.classes(), surveys))?,
        };
        check_names(&self.set, &features)?;
        let notes = Notes {
            features: features.to_files().into_iter().collect(),
            examples,
        };
        Ok(Some(serde_json::to_string(&notes)?))
    }

    fn with_learned(&self, learned: &str) -> Result<Arc<dyn Builder>> {
        let notes: Notes =
            serde_json::from_str(learned).context("what is known of the examples is damaged")?;
        let schema = notes.features.get("features.json").map_or("", String::as_str);
        let features = Features::from_files("features.json", schema, |file| {
            Ok(notes.features.get(file).cloned())
        })?;
        let mut builder = self.clone();
        builder.form = form(&features);
        builder.set.spec.features = features;
        let mut of_split = vec![0; self.set.spec.splits.len()];
        for (split, examples) in self.splits.iter().zip(&notes.examples) {
            let count: &mut u64 = &mut of_split[*split];
            builder.before.push(*count);
            *count += examples;
        }
        Ok(Arc::new(builder))
    }

    fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        for source in &input.sources {
            let index = source.index() as usize;
            let (Some(split), Some(before)) = (self.splits.get(index), self.before.get(index)) else {
                bail!("the examples of {} were not counted", source.name);
            };
            let path = self.file_of(source)?;
            let file = File::open(&path).with_context(|| format!("could not open {}", path.display()))?;
            let options = ReadOptions::default().compression(Compression::Plain);
            let mut reader = tfrecord::Reader::new(file, path.to_string_lossy(), options)?;
            let part = output.part(&source.name);
            let damaged = || {
                Hinted::new(
                    format!("the examples of {} could not be read again", source.name),
                    format!("the disk below {} may be failing", path.display()),
                )
            };
            loop {
                let record = reader.record_index();
                let Some(data) = reader.next().with_context(damaged)? else {
                    break;
                };
                let raw = Raw::new(*split, record, part, bytes::Bytes::copy_from_slice(data));
                output.emit(raw.with_key(before + record))?;
            }
            source.add_progress(source.bytes());
        }
        Ok(())
    }

    fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>> {
        let _ = raw;
        bail!("examples are decoded with their keys")
    }

    fn decode_and_place(&self, raw: &Raw) -> Result<Decoded<'_>> {
        let row = read_row(&raw.data).context("it is no row")?;
        let key = match &self.set.key {
            None => None,
            Some(name) => Some(key_of(name, &row).map_err(invalid)?),
        };
        let found = values(&self.form, row).map_err(|reason| {
            let hint = "mend the code that gives it, or say what the feature is with `features`";
            invalid(reason.clone()).context(Hinted::new(reason, hint))
        })?;
        Ok(Decoded::Placed(found, raw.split, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(texts: &[&str]) -> Result<Vec<String>, String> {
        let place = |text: &&str| match Url::parse(text) {
            Ok(url) => SourcePlace::Url(url),
            Err(_) => SourcePlace::Path(PathBuf::from(text)),
        };
        let places: Vec<SourcePlace> = texts.iter().map(place).collect();
        names(&places).map_err(|error| error.to_string())
    }

    #[test]
    fn sources_have_the_shortest_names_that_tell_them_apart() {
        assert_eq!(named(&["/a/x", "/b/y"]).unwrap(), ["x", "y"]);
        assert_eq!(
            named(&["/a/1/x", "/a/2/x", "/a/2/y"]).unwrap(),
            ["1/x", "2/x", "y"]
        );
        assert_eq!(named(&["/a/1/x", "/b/1/x"]).unwrap(), ["a/1/x", "b/1/x"]);
        assert_eq!(
            named(&["https://a.org/1/x", "https://b.org/1/x"]).unwrap(),
            ["a.org-1-x", "b.org-1-x"]
        );
        assert!(named(&["/a/x", "/a/x"]).unwrap_err().contains("is there twice"));
        assert_eq!(named(&[]).unwrap(), Vec::<String>::new());
    }
}
