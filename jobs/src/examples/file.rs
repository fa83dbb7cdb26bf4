//! Files of examples: what code gives, until it is built.
//!
//! A TFRecord file (so that what comes back is what was written) of rows in the form of [`write_row`].

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use prep_formats::tfrecord::{self, Compression};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build::publish::Registry;
use crate::build::staging::{STAGING_FOLDER, sync_folder};
use crate::examples::builder::key_of;
use crate::examples::invalid;
use crate::examples::schema::Checker;
use crate::examples::spec::ExampleSet;
use crate::readers::rows::cell::{Row, write_row};
use crate::readers::rows::survey::{EXAMPLE, Place, Survey};

/// Where files without names can lie until a version is built: they go with the process that holds them, however it ends.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// Finds room on the file system on which a version will lie, or, if that will be in a store, is made.
    ///
    /// # Errors
    /// The catalog or the data folder cannot be written: so that shows before any example is made.
    pub fn open(set: &ExampleSet, catalog: Option<&str>, data_dir: Option<&str>) -> Result<Self> {
        let registry = Registry::open(&set.spec, catalog, data_dir)?;
        registry.check_writable()?;
        let folder = registry.data_dir.join(STAGING_FOLDER);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("could not make the folder {}", folder.display()))?;
        Ok(Self { folder })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Where something is in it, it is somebody's staging.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Writes a file of examples. Each is compared with the schema when it is added, as far as that is known.
///
/// Holds a buffer of 256 KiB, and what the survey of an unknown schema notes of each feature, whatever the number of examples.
#[derive(Debug)]
pub struct ExampleWriter {
    name: Arc<str>,
    writer: tfrecord::Writer<Sink>,
    part: Option<Part>,
    checker: Option<Checker>,
    key: Option<String>,
    survey: Option<Survey>,
    buffer: Vec<u8>,
}

/// A file under a name that it has until it is whole, and that goes with it otherwise.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    is_whole: bool,
}

impl Part {
    fn of(path: &Path) -> Self {
        Self {
            path: path.with_extension("part"),
            is_whole: false,
        }
    }

    fn finish(mut self) -> io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension(ENDING))?;
        self.is_whole = true;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[derive(Debug)]
struct Sink {
    file: File,
    /// Of a file without a name, which is a source by itself.
    hasher: Option<Sha256>,
    bytes: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&bytes[..count]);
        }
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// What is written down beside the file of a source.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) examples: u64,
    pub(super) survey: Option<Survey>,
}

/// A file of examples that is whole.
#[derive(Debug)]
pub struct ExampleFile {
    pub(super) name: String,
    /// Keeps what has no name.
    file: File,
    pub(super) bytes: u64,
    pub(super) sha256: [u8; 32],
    pub(super) summary: Summary,
}

impl ExampleFile {
    /// Where it can be opened, as long as this exists.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

impl ExampleWriter {
    /// Starts a file without a name for a split. Messages call it by `name`.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn unnamed(scratch: &Scratch, name: &str, set: &ExampleSet) -> Result<Self> {
        let shown = || format!("could not make a file in {}", scratch.folder.display());
        let file = tempfile::tempfile_in(&scratch.folder).with_context(shown)?;
        Self::new(file, Some(Sha256::new()), None, name, set)
    }

    /// Starts the file of a source at a path, which is that of a [`Task`](crate::examples::Task). It gets its name when it is whole.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path, name: &str, set: &ExampleSet) -> Result<Self> {
        let part = Part::of(path);
        let file =
            File::create(&part.path).with_context(|| format!("could not write {}", part.path.display()))?;
        Self::new(file, None, Some(part), name, set)
    }

    fn new(
        file: File,
        hasher: Option<Sha256>,
        part: Option<Part>,
        name: &str,
        set: &ExampleSet,
    ) -> Result<Self> {
        let sink = Sink {
            file,
            hasher,
            bytes: 0,
        };
        let is_known = set.schema.features().is_some();
        Ok(Self {
            name: name.into(),
            writer: tfrecord::Writer::new(sink, Compression::Plain)?,
            part,
            checker: set.schema.checker()?,
            key: set.key.clone(),
            survey: (!is_known).then(|| Survey::new(&set.schema.classes())),
            buffer: Vec::new(),
        })
    }

    /// How many examples were added.
    pub fn num_examples(&self) -> u64 {
        self.writer.num_records()
    }

    /// What messages call the next example: `train, example 7`.
    pub fn place(&self) -> String {
        format!("{}, example {}", self.name, self.num_examples())
    }

    /// Adds an example.
    ///
    /// # Errors
    /// It does not fit the schema, or the key is none: the message names the example, the feature, what was found and what was wanted. Or the file
    /// cannot be written.
    pub fn add(&mut self, row: Row) -> Result<()> {
        if let Some(key) = &self.key
            && let Err(reason) = key_of(key, &row)
        {
            return Err(invalid(format!("{}, {reason}", self.place())));
        }
        self.buffer.clear();
        write_row(&row, &mut self.buffer);
        if let Some(survey) = &mut self.survey {
            let place = Place {
                source: 0,
                file: 0,
                row: self.writer.num_records(),
                path: Arc::clone(&self.name),
                unit: EXAMPLE,
            };
            survey.add(&row, &place);
        }
        if let Some(checker) = &mut self.checker
            && let Err(reason) = checker.check(row)
        {
            return Err(invalid(format!("{}, {reason}", self.place())));
        }
        self.writer
            .write(&self.buffer)
            .with_context(|| format!("could not keep {}", self.place()))
    }

    /// Ends the file; one with a name is durable then, and has it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> Result<ExampleFile> {
        let summary = Summary {
            examples: self.writer.num_records(),
            survey: self.survey.map(Survey::settled),
        };
        let writing = || format!("could not keep the examples of {}", self.name);
        let sink = self.writer.finish().with_context(writing)?;
        if let Some(part) = self.part {
            let beside = summary_of(&part.path);
            let folder = part.path.parent().unwrap_or(Path::new(".")).to_owned();
            let text = serde_json::to_string(&summary)?;
            sink.file
                .sync_all()
                .and_then(|()| {
                    let mut file = File::create(&beside)?;
                    file.write_all(text.as_bytes())?;
                    file.sync_all()?;
                    // The name of the examples says that both are whole.
                    part.finish()
                })
                .with_context(writing)?;
            sync_folder(&folder)?;
        }
        Ok(ExampleFile {
            name: self.name.to_string(),
            file: sink.file,
            bytes: sink.bytes,
            sha256: sink.hasher.map_or([0; 32], |hasher| hasher.finalize().into()),
            summary,
        })
    }
}

/// What is written down beside a file of examples.
pub(super) fn summary_of(path: &Path) -> PathBuf {
    path.with_extension("json")
}

/// The ending of files of examples that are whole.
pub(crate) const ENDING: &str = "examples";
