//! Builders: the code that makes a dataset from sources.
//!
//! A builder states what it makes ([`Builder::spec`]) and how: [`Builder::read`] cuts a source into raw examples, in order,
//! on a thread of its own, and [`Builder::decode`] turns one raw example into typed values, on all workers at once.
//! Everything else (fetching, checksums, encoding, order, shards, the catalog) is [`build`](crate::build())'s work.
//! Recipes are builders too: [`RecipeBuilder`](crate::readers::RecipeBuilder).
//!
//! ```
//! use anyhow::Result;
//! use prep_formats::features::{Feature, Features};
//! use prep_formats::value::{DType, Value};
//! use prep_jobs::builder::{Builder, DatasetSpec, Input, Output, Raw, SourceSpec};
//! use std::io::BufRead;
//!
//! /// Numbers in a text file, one a line.
//! struct Numbers {
//!     spec: DatasetSpec,
//! }
//!
//! impl Numbers {
//!     fn new(path: &str) -> Result<Self> {
//!         let number = Feature::Scalar { dtype: DType::Int64 };
//!         let features = Features::new(vec![("number".to_owned(), number)])?;
//!         let spec = DatasetSpec::new("numbers", "1.0.0", features)
//!             .source(SourceSpec::path(path))
//!             .split("train");
//!         Ok(Self { spec })
//!     }
//! }
//!
//! impl Builder for Numbers {
//!     fn spec(&self) -> &DatasetSpec {
//!         &self.spec
//!     }
//!
//!     fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
//!         let part = output.part(&input.sources[0].name);
//!         for (index, line) in std::io::BufReader::new(input.sources[0].open()?).lines().enumerate() {
//!             output.emit(Raw::new(0, index as u64, part, line?))?;
//!         }
//!         Ok(())
//!     }
//!
//!     fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>> {
//!         let text = std::str::from_utf8(&raw.data)?;
//!         Ok(vec![("number", Value::Int(text.trim().parse()?))])
//!     }
//! }
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use prep_catalog::manifest::SourceManifest;
use prep_formats::features::Features;
use prep_formats::value::Value;
use url::Url;

use crate::archive::{Section, Stream};
use crate::fetch::Checksum;
use crate::monitor::{Meter, Monitor};
use crate::tfds::Key;

/// Makes a dataset from sources. See the [module](self) for an example.
pub trait Builder: Send + Sync {
    /// What is made, and from what.
    fn spec(&self) -> &DatasetSpec;

    /// What decides the output besides the spec, as text: settings, and a number to raise when the code changes what it
    /// makes. A build of another identity is another dataset, and not "up to date".
    fn identity(&self) -> String {
        String::new()
    }

    /// The sources that are read together, as indices into `spec().sources`; each group is read on a thread of its own.
    /// By default each source is read alone.
    fn inputs(&self) -> Vec<Vec<usize>> {
        (0..self.spec().sources.len()).map(|index| vec![index]).collect()
    }

    /// Cuts one input into raw examples and hands them to `output`, in an order of its own choice.
    ///
    /// Runs on a thread of its own and may block. Should be cheap: what can be done for one example alone belongs in
    /// [`decode`](Self::decode). Hold no more than a few MB at a time; slices of one large [`Bytes`] are the cheap way.
    ///
    /// # Errors
    /// Whatever makes the input unusable. A single bad example goes to [`Output::fault`], so that the user decides.
    fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()>;

    /// The feature whose value is, byte for byte, what a raw example from [`Raw::at`] names; none by default. Such an example is decoded with
    /// empty data, which are to be this feature's value: the bytes themselves go from the source into the shard only when it is written.
    fn payload(&self) -> Option<&str> {
        None
    }

    /// The same builder for only those sources that are there, and their splits, where sources are optional: `present` has an entry for
    /// each. `None` where it cannot do without them.
    fn with_sources(&self, present: &[bool]) -> Option<Arc<dyn Builder>> {
        let _ = present;
        None
    }

    /// Whether sources hold examples of one size, with the features' values as they are, and not files of some format: then their number can be
    /// told from the size of the sources, for `--explain`.
    fn has_fixed_size(&self) -> bool {
        true
    }

    /// What users call a raw example beside its place in [`Raw::part`]: the path of an archive's member. For errors.
    fn name_of(&self, raw: &Raw) -> Option<String> {
        let _ = raw;
        None
    }

    /// The same for positions in a source whose examples are gone; may read the source once more. For errors about several examples.
    ///
    /// # Errors
    /// The source cannot be read.
    fn names_in(&self, source: &Source, records: &[u64]) -> Result<Vec<Option<String>>> {
        let _ = source;
        Ok(vec![None; records.len()])
    }

    /// Turns a raw example into the values of all features. A pure function, called on many threads.
    ///
    /// # Errors
    /// The example is damaged: the job stops, or skips and counts it, as the user asked.
    fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>>;

    /// The same, for builders that see only in the values which split an example belongs to and under which key, or that it is to be left
    /// out. By default all is as [`read`](Self::read) said.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    fn decode_and_place(&self, raw: &Raw) -> Result<Decoded<'_>> {
        Ok(Decoded::Example(self.decode(raw)?))
    }

    /// The same builder with the files that its sources' patterns stand for now, where it has such: `from` are files and folders to look in,
    /// or nothing for the sources' own places. Called once, before anything else is asked of it but the name.
    ///
    /// # Errors
    /// A place that cannot be read, or a pattern that nothing fits.
    fn with_files(&self, from: &[String]) -> Result<Option<Arc<dyn Builder>>> {
        let _ = from;
        Ok(None)
    }

    /// Tells of a folder of the job's own, which need not be there yet. What [`learn`](Self::learn) leaves in it is there when sources are read, also
    /// by later runs of the same job, and goes when the version is published or a source has changed.
    fn keep_in(&self, folder: &Path) {
        let _ = folder;
    }

    /// What only the sources tell, such as the types of columns: a text for [`with_learned`](Self::with_learned), the same for any number
    /// of threads. `None` where the spec is complete as it is.
    ///
    /// `known` has for each source what an earlier version has learnt of it; it may be empty.
    ///
    /// # Errors
    /// The sources are unusable, or do not tell.
    fn learn(&self, sources: &[Source], known: &[Option<Known>], workers: usize) -> Result<Option<String>> {
        let _ = (sources, known, workers);
        Ok(None)
    }

    /// The same builder with a complete spec, by what [`learn`](Self::learn) gave, in this process or another one.
    ///
    /// # Errors
    /// The text is not this builder's.
    fn with_learned(&self, learned: &str) -> Result<Arc<dyn Builder>> {
        let _ = learned;
        anyhow::bail!("this builder learns nothing from its sources")
    }

    /// What decides what is made of each source, once all is learnt: a later version takes over the shards of sources for which it is the same. Only for
    /// the layout by source, where shards depend on nothing else; `None` where that cannot be told. `sums` are those of the sources.
    ///
    /// # Errors
    /// A source is of no split, or of two.
    fn making(&self, sums: &[Checksum]) -> Result<Option<Making>> {
        let _ = sums;
        Ok(None)
    }

    /// The recipe's text, where there is one: it is kept beside shards that a later version may take over.
    fn recipe_text(&self) -> Option<&str> {
        None
    }

    /// The same builder, of which the files are known, with the sources of an earlier version before its own, as far as it had not the same: those are taken
    /// over, and not read. `None` where that is not possible.
    ///
    /// # Errors
    /// A source of the earlier version cannot be taken over.
    fn added_to(&self, earlier: &[SourceManifest]) -> Result<Option<Arc<dyn Builder>>> {
        let _ = earlier;
        Ok(None)
    }

    /// Whether each row that sources have, and that is not damaged, is an example of a split that is known before: then a split may have none,
    /// where its sources have no rows. Elsewhere one without examples is a mistake, and an error.
    fn keeps_all(&self) -> bool {
        false
    }

    /// What the user should know of the result, once all is learnt.
    fn notes(&self) -> Option<String> {
        None
    }
}

/// What an earlier version has learnt of a source.
#[derive(Debug, Clone)]
pub struct Known {
    /// As [`Making`] had it.
    pub text: String,
    /// Whether the source can be read now.
    pub is_there: bool,
}

/// What decides what is made of the sources.
#[derive(Debug, Clone)]
pub struct Making {
    /// A hash of settings and schema.
    pub settings: String,
    /// For each source.
    pub sources: Vec<MadeOf>,
}

/// What decides what is made of a source, and what was learnt of it.
#[derive(Debug, Clone)]
pub struct MadeOf {
    /// A hash of settings, schema, the source's name and content, and whatever else there is.
    pub made: String,
    /// What was learnt, as JSON.
    pub learned: String,
}

/// What [`Builder::decode_and_place`] made of a raw example.
#[derive(Debug)]
#[non_exhaustive]
pub enum Decoded<'a> {
    /// An example where [`Builder::read`] put it.
    Example(Vec<(&'a str, Value)>),
    /// An example of this split, under this key (`None`: the one that it has).
    Placed(Vec<(&'a str, Value)>, usize, Option<Key>),
    /// An example whose split follows from its record: of `fractions` of all hashes, as they add up, the first one that is larger.
    ByContent(Vec<(&'a str, Value)>, &'a [f64], Option<Key>),
    /// It is left out, as the recipe says.
    LeftOut,
}

/// How records are ordered and cut into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Layout {
    /// As TFDS: sorted by the hash of split and key.
    #[default]
    Tfds,
    /// Each source has shards of its own, in the order of its examples.
    BySource,
}

impl Layout {
    /// The name in recipes and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tfds => "tfds",
            Self::BySource => "by-source",
        }
    }
}

/// ArrayRecord options of shards, unless others are asked for.
pub(crate) const DEFAULT_OPTIONS: &str = "group_size:1,zstd:3";

/// What a builder makes, and from what.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DatasetSpec {
    /// Dataset name.
    pub name: String,
    /// Config, where there is one.
    pub config: Option<String>,
    /// What the config is.
    pub config_description: Option<String>,
    /// What changed, by version.
    pub release_notes: Vec<(String, String)>,
    /// Version, `major.minor.patch`.
    pub version: String,
    /// What it is.
    pub description: String,
    /// How to cite it.
    pub citation: String,
    /// Under which licence it may be used.
    pub licence: Option<String>,
    /// Home pages.
    pub urls: Vec<String>,
    /// Python module of the TFDS builder whose dataset this is.
    pub module_name: Option<String>,
    /// The features that are (input, target) in supervised learning.
    pub supervised_keys: Option<(String, String)>,
    /// Order and shards.
    pub layout: Layout,
    /// The schema of examples.
    pub features: Features,
    /// Splits, in the order in which they are listed.
    pub splits: Vec<SplitSpec>,
    /// Source files.
    pub sources: Vec<SourceSpec>,
    /// ArrayRecord options of the shards; default `group_size:1,zstd:3`.
    pub options: String,
}

impl DatasetSpec {
    /// A dataset of this name, version and schema, without sources and splits as yet.
    pub fn new(name: impl Into<String>, version: impl Into<String>, features: Features) -> Self {
        Self {
            name: name.into(),
            config: None,
            config_description: None,
            release_notes: Vec::new(),
            version: version.into(),
            description: String::new(),
            citation: String::new(),
            licence: None,
            urls: Vec::new(),
            module_name: None,
            supervised_keys: None,
            layout: Layout::Tfds,
            features,
            splits: Vec::new(),
            sources: Vec::new(),
            options: DEFAULT_OPTIONS.to_owned(),
        }
    }

    /// Adds a source.
    #[must_use]
    pub fn source(mut self, source: SourceSpec) -> Self {
        self.sources.push(source);
        self
    }

    /// In how many groups examples are sorted and cut into shards: splits, or in the layout by source the sources of each split.
    pub(crate) fn num_groups(&self) -> usize {
        self.splits.len() * self.sources_of_split()
    }

    /// Groups of each split, which are numbered in a row.
    pub(crate) fn sources_of_split(&self) -> usize {
        match self.layout {
            Layout::Tfds => 1,
            Layout::BySource => self.sources.len(),
        }
    }

    /// Adds a split, whose shards are as many as its size asks for.
    #[must_use]
    pub fn split(mut self, name: impl Into<String>) -> Self {
        self.splits.push(SplitSpec {
            name: name.into(),
            shards: None,
            shards_for: None,
        });
        self
    }

    /// Sets the ArrayRecord options of the shards, as in `group_size:1,uncompressed`. Default: `group_size:1,zstd:3`.
    #[must_use]
    pub fn options(mut self, options: impl Into<String>) -> Self {
        self.options = options.into();
        self
    }
}

/// A split of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitSpec {
    /// Name.
    pub name: String,
    /// Number of shards; else TFDS's rule by size.
    pub shards: Option<u64>,
    /// The number of examples for which `shards` holds, where that is the published dataset's; with another number it is TFDS's rule again.
    pub shards_for: Option<u64>,
}

/// A source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpec {
    /// File name, by which `--from` finds it.
    pub name: String,
    /// Where it is, unless the user says.
    pub place: SourcePlace,
    /// Size in bytes, where it is known.
    pub bytes: Option<u64>,
    /// SHA-256, where it is known.
    pub sha256: Option<[u8; 32]>,
    /// Whether a dataset can be made without it: see [`Builder::with_sources`].
    pub optional: bool,
    /// What identifies its content.
    pub identity: SourceIdentity,
}

/// What identifies the content of a source, for "up to date".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SourceIdentity {
    /// SHA-256 of all bytes.
    #[default]
    Sha256,
    /// SHA-256 of the headers of a tar archive, and of those of the tar archives in it: of names, sizes and times, but not of contents. For
    /// archives of which no SHA-256 is published and that are too large to be read twice.
    TarHeaders,
}

impl SourceSpec {
    /// A local file, whatever its contents are.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        let place = SourcePlace::Path(path.into());
        Self::at(place.file_name().unwrap_or_default(), place)
    }

    /// Something at a place, of which only its name is known.
    pub(crate) fn at(name: impl Into<String>, place: SourcePlace) -> Self {
        Self {
            name: name.into(),
            place,
            bytes: None,
            sha256: None,
            optional: false,
            identity: SourceIdentity::default(),
        }
    }

    /// A source of an earlier version, which is not looked for.
    ///
    /// # Errors
    /// The version does not know its SHA-256.
    pub(crate) fn taken_over(source: &SourceManifest) -> Result<Self> {
        let mut sha256 = [0; 32];
        hex::decode_to_slice(&source.sha256, &mut sha256)
            .with_context(|| format!("the SHA-256 of the source {} is not known", source.name))?;
        Ok(Self {
            bytes: Some(source.bytes),
            sha256: Some(sha256),
            ..Self::at(source.name.clone(), SourcePlace::TakenOver)
        })
    }

    /// The files of the folder that it stands for, where it is not a file or all of a folder.
    pub(crate) fn files(&self) -> Option<&Arc<FileSet>> {
        match &self.place {
            SourcePlace::Found(_, files) | SourcePlace::Listed(_, files) => files.as_ref(),
            _ => None,
        }
    }

    /// Whether it is what a pattern stood for: then it may hold anything, and lies there whatever the user says of other sources.
    pub(crate) fn is_of_pattern(&self) -> bool {
        matches!(self.place, SourcePlace::Found(..) | SourcePlace::Listed(..))
    }

    /// Whether size and hash are fixed.
    pub fn is_pinned(&self) -> bool {
        self.bytes.is_some() && self.sha256.is_some()
    }
}

/// Where a source is, unless the user says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourcePlace {
    /// An address to fetch it from.
    Url(Url),
    /// A local file.
    Path(PathBuf),
    /// A local file that a pattern stood for, or of this folder these files, which count as one source. It lies there, whatever the user says of
    /// other sources.
    Found(PathBuf, Option<Arc<FileSet>>),
    /// The same in an object store: an object, or of what is below this address these objects.
    Listed(Url, Option<Arc<FileSet>>),
    /// Only the user has it.
    Unknown,
    /// Nowhere: an earlier version has its shards.
    TakenOver,
}

/// Some of the files under a folder, as one source: a path a line in one string, so that a million take about as much as their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileSet {
    paths: String,
    count: u64,
}

impl FileSet {
    /// Adds a file by its path from the folder, with `/`.
    pub fn push(&mut self, path: &str) {
        self.paths.push_str(path);
        self.paths.push('\0');
        self.count += 1;
    }

    /// The paths, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.paths.split_terminator('\0')
    }

    /// A hash of the paths, hex.
    pub(crate) fn digest(&self) -> String {
        blake3::hash(self.paths.as_bytes()).to_hex().to_string()
    }

    /// How many files there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl SourcePlace {
    /// The last part of the address or path.
    pub fn file_name(&self) -> Option<String> {
        match self {
            Self::Url(url) | Self::Listed(url, _) => url
                .path_segments()?
                .rfind(|name| !name.is_empty())
                .map(str::to_owned),
            Self::Path(path) | Self::Found(path, _) => Some(path.file_name()?.to_str()?.to_owned()),
            Self::Unknown | Self::TakenOver => None,
        }
    }
}

/// One group of sources, ready to be read.
#[derive(Debug)]
pub struct Input<'a> {
    /// Position of the group in [`Builder::inputs`].
    pub index: usize,
    /// The sources, in the order in which `inputs` names them.
    pub sources: Vec<&'a Source>,
}

/// A source that is on this machine.
#[derive(Debug)]
pub struct Source {
    /// File name in the spec.
    pub name: String,
    index: u32,
    path: PathBuf,
    files: Option<Arc<FileSet>>,
    bytes: u64,
    meter: Arc<Meter>,
    monitor: Arc<Monitor>,
}

impl Source {
    pub(crate) fn new(
        name: String,
        index: u32,
        path: PathBuf,
        files: Option<Arc<FileSet>>,
        bytes: u64,
        meter: Arc<Meter>,
        monitor: Arc<Monitor>,
    ) -> Self {
        Self {
            name,
            index,
            path,
            files,
            bytes,
            meter,
            monitor,
        }
    }

    /// Position among the spec's sources.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The files under [`path`](Self::path) that it stands for, where it is some of a folder.
    pub(crate) fn files(&self) -> Option<&FileSet> {
        self.files.as_deref()
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Opens it for reading, unpacked where it is gzip. What is read counts as progress, and reading ends with an error
    /// when the job is stopped.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(&self) -> Result<Stream> {
        self.open_counted(Some(Arc::clone(&self.meter)))
    }

    /// The same, for a second look that does not count as progress.
    pub(crate) fn open_again(&self) -> Result<Stream> {
        self.open_counted(None)
    }

    /// Opens it for reading at positions, as it lies. What is gone over counts as progress.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn section(&self) -> Result<Section> {
        Ok(self.section_again()?.counted(Arc::clone(&self.meter)))
    }

    /// The same, for a look that does not count as progress.
    pub(crate) fn section_again(&self) -> Result<Section> {
        let monitor = Arc::clone(&self.monitor);
        Ok(Section::new(
            &self.name,
            Arc::new(self.file()?),
            self.bytes,
            monitor,
        ))
    }

    /// Whether it is packed by gzip: then its bytes have to be streamed, and no [`Extent`] names them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_packed(&self) -> Result<bool> {
        let mut start = [0; 2];
        let section = self.section_again()?;
        if section.size() < 2 {
            return Ok(false);
        }
        section.read_exact_at(0, &mut start)?;
        Ok(start == [0x1f, 0x8b])
    }

    /// These bytes of the file, for [`Raw::at`].
    pub fn extent(&self, offset: u64, bytes: u64) -> Extent {
        Extent {
            source: self.index,
            offset,
            bytes,
        }
    }

    pub(crate) fn file(&self) -> Result<File> {
        File::open(&self.path).with_context(|| format!("could not open {}", self.path.display()))
    }

    /// An error if the job was asked to stop.
    pub(crate) fn check(&self) -> Result<()> {
        Ok(self.monitor.check()?)
    }

    /// Tells the user of something odd in it.
    pub(crate) fn warn(&self, text: String) {
        self.monitor.warn(text);
    }

    /// Counts records that were looked at for what there is to learn.
    pub(crate) fn add_records_read(&self, count: u64) {
        self.monitor.records_read(count);
    }

    /// Counts bytes that were read in another way than by [`open`](Self::open).
    pub(crate) fn add_progress(&self, bytes: u64) {
        self.meter.add(bytes);
    }

    fn open_counted(&self, meter: Option<Arc<Meter>>) -> Result<Stream> {
        Stream::new(&self.name, self.file()?, meter, Arc::clone(&self.monitor))
    }
}

/// An example as it was cut from its source, before it is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    /// Index of the split in the spec.
    pub split: usize,
    /// What orders it in its split; each key once.
    pub key: Key,
    /// The file or archive member it is from, as numbered by [`Output::part`].
    pub part: u32,
    /// Position in that file or member, from 0.
    pub record: u64,
    /// Its bytes, in whatever form [`Builder::decode`] takes.
    pub data: Bytes,
    /// A number for the builder's own use.
    pub tag: u64,
    /// Where the value of the feature [`Builder::payload`] lies, if it stays there until the example is written.
    pub extent: Option<Extent>,
    /// Where it stands in its source, for the layout by source.
    pub(crate) standing: Standing,
}

/// Where an example stands: its source, the file in it, and how far into the source that is, of 2^64: it may be the same for many, but
/// never falls along the source. Examples are dealt to workers by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    pub(crate) source: u32,
    pub(crate) file: u32,
    pub(crate) way: u64,
}

impl Standing {
    /// The key by which examples of a source are sorted: unique for 2^24 files of 2^40 examples each.
    pub(crate) fn key(&self, record: u64) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.way.to_be_bytes());
        let place = u64::from(self.file) << 40 | record & ((1 << 40) - 1);
        key[8..].copy_from_slice(&place.to_be_bytes());
        key
    }
}

/// A range of bytes of a source that is on this machine and not packed: from [`Source::extent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub(crate) source: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Extent {
    /// Where it begins in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Raw {
    /// An example of this split (by index) whose key is its position in its file or member.
    pub fn new(split: usize, record: u64, part: u32, data: impl Into<Bytes>) -> Self {
        Self {
            split,
            key: record.into(),
            part,
            record,
            data: data.into(),
            tag: 0,
            extent: None,
            standing: Standing::default(),
        }
    }

    /// An example whose [`payload`](Builder::payload) stays where it is until it is written: neither the sort nor any queue holds it. Whatever
    /// is to be said against its bytes has to be said before, from a look at their beginning.
    pub fn at(split: usize, record: u64, part: u32, extent: Extent) -> Self {
        Self {
            extent: Some(extent),
            ..Self::new(split, record, part, Bytes::new())
        }
    }

    /// The same with a number that [`Builder::decode`] needs, such as a label.
    #[must_use]
    pub fn with_tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// The same with another key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Key>) -> Self {
        self.key = key.into();
        self
    }
}

/// Where a reader's examples go.
pub struct Output<'a> {
    sink: &'a mut dyn OutputSink,
}

impl std::fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// What stands behind an [`Output`].
pub(crate) trait OutputSink {
    fn part(&mut self, name: &str) -> u32;
    fn emit(&mut self, raw: Raw) -> Result<()>;
    fn fault(&mut self, split: usize, part: u32, record: u64, reason: &str) -> Result<()>;
    fn class_names(&mut self, feature: &str, names: Vec<String>) -> Result<()>;
    fn warn(&mut self, text: &str);
}

impl<'a> Output<'a> {
    pub(crate) fn new(sink: &'a mut dyn OutputSink) -> Self {
        Self { sink }
    }

    /// Names a file or archive member whose records come next; errors about them name it.
    pub fn part(&mut self, name: &str) -> u32 {
        self.sink.part(name)
    }

    /// Hands an example over. Blocks while the workers are behind.
    ///
    /// # Errors
    /// The job is stopping; pass the error on.
    pub fn emit(&mut self, raw: Raw) -> Result<()> {
        self.sink.emit(raw)
    }

    /// Reports a damaged record of a split.
    ///
    /// # Errors
    /// The user did not ask to skip such records, or there were too many; pass the error on.
    pub fn fault(&mut self, split: usize, part: u32, record: u64, reason: &str) -> Result<()> {
        self.sink.fault(split, part, record, reason)
    }

    /// Tells the user of something odd that is no fault of a record.
    pub fn warn(&mut self, text: &str) {
        self.sink.warn(text);
    }

    /// Sets the names of a class label's classes, where the source knows them better than the spec.
    ///
    /// # Errors
    /// There is no such class label, or it has another number of classes.
    pub fn class_names(&mut self, feature: &str, names: Vec<String>) -> Result<()> {
        self.sink.class_names(feature, names)
    }
}

/// Returned by [`Builder::read`] when what it emitted before turned out wrong, and it knows better now: the job starts over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct StartOver {
    /// Why, for the log.
    pub reason: String,
}
