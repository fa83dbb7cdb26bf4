//! A split of a dataset with random access: indices to records to rows.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use prep_catalog::manifest::{MANIFEST_FILE, Manifest, shard_location};
use prep_formats::array_record::{Reader, RecordBatch, Scratch};
use prep_formats::columns::{Batch, BatchDecoder, ColumnSpec, Images};
use prep_formats::features::Features;
use prep_formats::store::{self, Cache, Location, ReadAt};
use prep_formats::tfrecord::{Index, IndexedReader};

use crate::damage::DamagedRecord;
use crate::error::{Error, Result};
use crate::metrics::ReadTimer;
use crate::split::{ResolvedSplit, SplitLengths};
use crate::tfds::{self, ShardFormat};

/// Shards that are kept open by default: each takes one mapping (a process has 65,530) and the memory of its index.
const MAX_OPEN_SHARDS: usize = 4_096;
/// Readers that a reading thread keeps at hand without asking the dataset.
const NEAR_READERS: usize = 64;
/// Shards of an object store that are read at the same time, each with up to 16 requests in flight.
const SHARDS_AT_ONCE: usize = 8;
/// Bytes of local shards that reading keeps mapped by default: they belong to the page cache, and count as the process's.
const MAX_MAPPED_BYTES: u64 = 2 << 30;
/// What the system maps around a byte that is touched.
const MAPPED_AROUND: u64 = 64 << 10;
/// How many rows ahead the records are fetched into the processor's caches. Measured on 2 KB records: 4 to 16 are alike.
const ROWS_AHEAD: usize = 8;

/// One split of a dataset version, or a part of one, or several after one another; cheap to clone and to share between threads.
///
/// Opening reads the manifest and the features, and no shard. Shards are opened when they are first read, checked against the manifest,
/// and kept; above a count the least recently used are closed. Holds some 100 bytes a shard, and the indices of open shards.
#[derive(Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
}

struct Inner {
    manifest: Manifest,
    folder: Location,
    features: Features,
    split: ResolvedSplit,
    /// Records, the number of the index after the last.
    records: u64,
    /// Bytes of all shards that have some of them, and of a record in its shard, on average.
    shard_bytes: u64,
    record_bytes: u64,
    /// First index of each run, for the search.
    starts: Vec<u64>,
    runs: Vec<Run>,
    shards: Vec<Shard>,
    /// Open shards, the oldest first.
    open_order: Mutex<VecDeque<usize>>,
    max_open_shards: usize,
    max_mapped_bytes: u64,
    /// Bytes that were mapped since that was given back, at most.
    mapped_bytes: AtomicU64,
    stamp: Mutex<Option<Stamp>>,
    /// How shards are stored that have no index beside them: in a version of ours as ArrayRecord.
    format: ShardFormat,
    /// Keeps what was read of stores.
    cache: Option<Cache>,
    /// Whether a shard lies in an object store: then those of a batch are read together.
    is_remote: bool,
    /// Whether there is a manifest in the folder.
    described: bool,
    images: Images,
    specs: Vec<ColumnSpec>,
    /// For single rows: what [`Dataset::get`] needs, kept from call to call.
    contexts: Mutex<Vec<ReadContext>>,
}

/// Successive records of one shard.
#[derive(Debug, Clone, Copy)]
struct Run {
    shard: usize,
    /// First record in the shard.
    record: u64,
    /// Its global index.
    global_index: u64,
}

struct Shard {
    path: String,
    records: u64,
    bytes: u64,
    /// Hex; empty where nobody has said it.
    sha256: String,
    /// The file with the index of a TFRecord file, in the version's folder.
    index: Option<String>,
    reader: RwLock<Option<ShardReader>>,
    /// Read since the last look for a shard to close.
    used: AtomicBool,
}

/// An open shard; cheap to clone.
#[derive(Clone)]
enum ShardReader {
    ArrayRecord(Reader),
    TfRecord(IndexedReader),
}

impl ShardReader {
    fn num_records(&self) -> u64 {
        match self {
            Self::ArrayRecord(reader) => reader.num_records(),
            Self::TfRecord(reader) => reader.num_records(),
        }
    }

    fn source(&self) -> &Arc<dyn ReadAt> {
        match self {
            Self::ArrayRecord(reader) => reader.source(),
            Self::TfRecord(reader) => reader.source(),
        }
    }

    #[inline]
    fn record<'a>(&'a self, record: u64, scratch: &'a mut RecordScratch) -> prep_formats::Result<&'a [u8]> {
        match self {
            Self::ArrayRecord(reader) => reader.record(record, &mut scratch.array_record),
            Self::TfRecord(reader) => reader.record(record, &mut scratch.tfrecord),
        }
    }

    #[inline]
    fn prefetch(&self, record: u64) {
        match self {
            Self::ArrayRecord(reader) => reader.prefetch(record),
            Self::TfRecord(reader) => reader.prefetch(record),
        }
    }

    /// Reads records of a list together.
    fn read(
        &self,
        records: &[u64],
        batch: &mut RecordBatch,
        scratch: &mut Scratch,
    ) -> prep_formats::Result<()> {
        match self {
            Self::ArrayRecord(reader) => reader.read(records, batch, scratch),
            Self::TfRecord(reader) => reader.read(records, batch),
        }
    }
}

/// Buffers of a thread that reads.
#[derive(Default)]
struct RecordScratch {
    array_record: Scratch,
    tfrecord: Vec<u8>,
}

/// Records that were read together.
struct Fetched {
    batches: Vec<RecordBatch>,
    /// Batch and position in it of each record asked for.
    rows: Vec<(usize, usize)>,
}

impl Fetched {
    fn record(&self, row: usize) -> &[u8] {
        let (batch, position) = self.rows[row];
        self.batches[batch].get(position).unwrap_or_default()
    }
}

/// Where a record is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    shard: usize,
    record: u64,
    global_index: u64,
}

/// Tells whether a file is still the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<std::time::SystemTime>,
    file_number: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = path.metadata().ok()?;
        #[cfg(unix)]
        let file_number = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let file_number = 0;
        Some(Self {
            length: metadata.len(),
            modified: metadata.modified().ok(),
            file_number,
        })
    }
}

/// What one thread needs to read and decode: buffers, the decoder, readers at hand.
pub(crate) struct ReadContext {
    /// None until rows are decoded: records of any schema can be read.
    decoder: Option<BatchDecoder>,
    scratch: RecordScratch,
    near: Vec<Option<(usize, ShardReader)>>,
    places: Vec<Place>,
    /// Whether records that cannot be read are left out.
    skips: bool,
    /// Those of the rows that were read last.
    damaged: Vec<DamagedRecord>,
    timer: ReadTimer,
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset")
            .field("name", &self.name())
            .field("split", &self.inner.split.to_string())
            .field("records", &self.inner.records)
            .finish_non_exhaustive()
    }
}

impl Dataset {
    /// Opens a split of a version that lies in a folder, whatever the catalog says.
    ///
    /// # Errors
    /// A folder without manifest or features, a split string that does not fit.
    pub fn open_folder(folder: &Location, split: &str) -> Result<Self> {
        let manifest = Manifest::read(folder)?;
        Self::with_manifest(folder, manifest, split)
    }

    /// Opens a split of a version that a catalog has found. The manifest is not read again: that the folder is still the same shows in one look at its
    /// inode.
    ///
    /// # Errors
    /// As [`with_manifest`](Self::with_manifest).
    pub fn resolved(found: prep_catalog::Resolved, split: &str) -> Result<Self> {
        let stamp = manifest_path(&found.folder).and_then(|path| Stamp::of(&path));
        found.check_unchanged()?;
        let features = Features::read_location(&found.folder)?;
        let format = ShardFormat::ArrayRecord;
        Self::new(&found.folder, found.manifest, features, split, format, stamp)
    }

    /// Opens a split of a version whose manifest is known: that in the folder has to be the same.
    ///
    /// # Errors
    /// As [`open_folder`](Self::open_folder); [`Error::Changed`] where the folder holds another build.
    pub fn with_manifest(folder: &Location, manifest: Manifest, split: &str) -> Result<Self> {
        let stamp = manifest_path(folder).and_then(|path| Stamp::of(&path));
        // Behind a URL nothing is exchanged: another build of a version gets another folder.
        if folder.as_path().is_some() {
            check_manifest(folder, &manifest)?;
        }
        let features = Features::read_location(folder)?;
        Self::new(folder, manifest, features, split, ShardFormat::ArrayRecord, stamp)
    }

    /// Opens a split of a folder that TFDS wrote, which no catalog knows: ArrayRecord or TFRecord shards.
    ///
    /// Reads `dataset_info.json`, `features.json` and the sizes of the shards. Nothing is known of their hashes, so that shards are checked by
    /// length and by the checksums of their records only. A TFRecord shard has no index: it is scanned when it is first read.
    ///
    /// # Errors
    /// A folder that is none of TFDS's, shards that are missing or of another file format, a split string that does not fit.
    pub fn open_tfds(folder: &Location, split: &str) -> Result<Self> {
        let (manifest, features, format) = tfds::describe(folder)?;
        let mut dataset = Self::new(folder, manifest, features, split, format, None)?;
        if let Some(inner) = Arc::get_mut(&mut dataset.inner) {
            inner.described = false;
        }
        Ok(dataset)
    }

    fn new(
        folder: &Location,
        manifest: Manifest,
        features: Features,
        split: &str,
        format: ShardFormat,
        stamp: Option<Stamp>,
    ) -> Result<Self> {
        let lengths: Vec<SplitLengths> = manifest
            .splits
            .iter()
            .map(|split| SplitLengths {
                name: split.name.clone(),
                shards: split.shards.iter().map(|shard| shard.records).collect(),
            })
            .collect();
        let split = ResolvedSplit::parse(split, &lengths)?;
        let mut dataset = Inner {
            records: split.records(),
            shard_bytes: 0,
            record_bytes: 0,
            starts: Vec::new(),
            runs: Vec::new(),
            shards: Vec::new(),
            open_order: Mutex::default(),
            max_open_shards: MAX_OPEN_SHARDS,
            max_mapped_bytes: MAX_MAPPED_BYTES,
            mapped_bytes: AtomicU64::new(0),
            stamp: Mutex::new(stamp),
            specs: specs(&features, Images::Decoded),
            contexts: Mutex::default(),
            folder: folder.clone(),
            images: Images::Decoded,
            described: true,
            cache: None,
            is_remote: false,
            format,
            features,
            split,
            manifest,
        };
        dataset.lay_out();
        Ok(Self {
            inner: Arc::new(dataset),
        })
    }

    /// The dataset with something else done about pictures in [`get`](Self::get) and [`get_many`](Self::get_many). Default
    /// [`Images::Decoded`].
    #[must_use]
    pub fn with_images(self, images: Images) -> Self {
        let mut fresh = self.fresh();
        fresh.specs = specs(&fresh.features, images);
        fresh.images = images;
        Self {
            inner: Arc::new(fresh),
        }
    }

    /// What becomes of pictures.
    pub fn images(&self) -> Images {
        self.inner.images
    }

    /// The dataset with another limit of shards kept open, at least 1. Default 4,096.
    ///
    /// A thread that reads keeps up to 64 more at hand.
    #[must_use]
    pub fn with_max_open_shards(self, max_open_shards: usize) -> Self {
        let mut fresh = self.fresh();
        fresh.max_open_shards = max_open_shards.max(1);
        Self {
            inner: Arc::new(fresh),
        }
    }

    /// The dataset with another limit of bytes of local shards that stay mapped, beside what the last rows have touched. Default 2 GiB.
    ///
    /// Such bytes are the page cache's, which the system takes back where memory is short; but they count as resident in this process. Giving them back costs a
    /// system call per open shard, once for each time that so much was touched.
    #[must_use]
    pub fn with_max_mapped_bytes(self, max_mapped_bytes: u64) -> Self {
        let mut fresh = self.fresh();
        fresh.max_mapped_bytes = max_mapped_bytes;
        Self {
            inner: Arc::new(fresh),
        }
    }

    /// The dataset with a cache on disk for what is read of object stores. Local shards are read as they are.
    ///
    /// Shards are known by the SHA-256 of the manifest: another catalog's copy finds what is there, and a shard that is there as a whole is read without
    /// asking the store. Default: none.
    #[must_use]
    pub fn with_cache(self, cache: Cache) -> Self {
        let mut fresh = self.fresh();
        fresh.cache = Some(cache);
        Self {
            inner: Arc::new(fresh),
        }
    }

    /// The same with no shard open.
    fn fresh(&self) -> Inner {
        let inner = &self.inner;
        let mut fresh = Inner {
            manifest: inner.manifest.clone(),
            folder: inner.folder.clone(),
            features: inner.features.clone(),
            split: inner.split.clone(),
            records: inner.records,
            shard_bytes: 0,
            record_bytes: 0,
            starts: Vec::new(),
            runs: Vec::new(),
            shards: Vec::new(),
            open_order: Mutex::default(),
            max_open_shards: inner.max_open_shards,
            max_mapped_bytes: inner.max_mapped_bytes,
            mapped_bytes: AtomicU64::new(0),
            stamp: Mutex::new(*lock(&inner.stamp)),
            format: inner.format,
            cache: inner.cache.clone(),
            is_remote: false,
            described: inner.described,
            images: inner.images,
            specs: inner.specs.clone(),
            contexts: Mutex::default(),
        };
        fresh.lay_out();
        fresh
    }

    /// `name:version` or `name/config:version`: opens this version again.
    pub fn name(&self) -> String {
        let manifest = &self.inner.manifest;
        match &manifest.config {
            None => format!("{}:{}", manifest.name, manifest.version),
            Some(config) => format!("{}/{config}:{}", manifest.name, manifest.version),
        }
    }

    /// The version's description.
    pub fn manifest(&self) -> &Manifest {
        &self.inner.manifest
    }

    /// The folder that it lies in.
    pub fn folder(&self) -> &Location {
        &self.inner.folder
    }

    /// The cache of what is read of stores.
    pub fn cache(&self) -> Option<&Cache> {
        self.inner.cache.as_ref()
    }

    /// The split, resolved.
    pub fn split(&self) -> &ResolvedSplit {
        &self.inner.split
    }

    /// Number of records.
    pub fn len(&self) -> u64 {
        self.inner.records
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.inner.records == 0
    }

    /// The schema.
    pub fn features(&self) -> &Features {
        &self.inner.features
    }

    /// Name, dtype and shape of each column of one row; known without reading data. None of a schema that cannot be decoded, whose records can
    /// be read nevertheless; pictures of a kind that cannot be are byte strings here.
    pub fn element_spec(&self) -> &[ColumnSpec] {
        &self.inner.specs
    }

    /// The position of a record in its whole split: ORDER.md, section 1.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn global_index(&self, index: u64) -> Result<u64> {
        Ok(self.place(index)?.global_index)
    }

    /// A record's place in words: `record 3 of `train-00000` (global index 1003)`.
    pub(crate) fn address(&self, index: u64) -> String {
        match self.place(index) {
            Ok(place) => format!(
                "record {} of `{}` (global index {})",
                place.record,
                self.shard_location(place.shard),
                place.global_index
            ),
            Err(_) => format!("index {index}"),
        }
    }

    /// One record as stored: a serialized `tf.train.Example`. O(1), and a copy of the bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; a damaged record or a changed shard, named.
    pub fn record(&self, index: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.visit_records(&[index], |_, record| {
            bytes.extend_from_slice(record);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Calls `visit(index, record)` for each index, in the order given, without copying records.
    ///
    /// # Errors
    /// As [`record`](Self::record); stops at the first error, also one of `visit`.
    pub fn visit_records(
        &self,
        indices: &[u64],
        mut visit: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.in_context(|context| {
            if self.inner.is_remote {
                let places: Vec<Place> = indices
                    .iter()
                    .map(|index| self.place(*index))
                    .collect::<Result<_>>()?;
                if let Some(fetched) = self.fetch(&places) {
                    for (row, &index) in indices.iter().enumerate() {
                        visit(index, fetched.record(row))?;
                    }
                    return Ok(());
                }
            }
            for &index in indices {
                let place = self.place(index)?;
                let ReadContext { near, scratch, .. } = &mut *context;
                self.with_record(place, near, scratch, |record| visit(index, record))?;
            }
            self.count_mapped(indices.len());
            Ok(())
        })
    }

    /// One decoded row, as a batch of one: shapes are those of [`element_spec`](Self::element_spec) with a 1 in front.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; a record that cannot be read or decoded, named.
    pub fn get(&self, index: u64) -> Result<Batch> {
        self.get_many(&[index])
    }

    /// Decoded rows in the order of the indices, which may repeat.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_many(&self, indices: &[u64]) -> Result<Batch> {
        self.in_context(|context| {
            if context.decoder.is_none() {
                context.decoder = Some(self.decoder(&self.inner.features, self.inner.images)?);
            }
            let mut batch = context.new_batch(indices.len());
            self.read_rows(indices, context, &mut batch, &AtomicBool::new(false))?;
            Ok(batch)
        })
    }

    fn in_context<T>(&self, work: impl FnOnce(&mut ReadContext) -> Result<T>) -> Result<T> {
        let kept = lock(&self.inner.contexts).pop();
        let mut context = match kept {
            Some(context) => context,
            None => ReadContext::new(None),
        };
        let result = work(&mut context);
        let mut contexts = lock(&self.inner.contexts);
        if contexts.len() < 16 {
            contexts.push(context);
        }
        result
    }

    /// What a thread needs to decode these columns (`None`: all).
    pub(crate) fn read_context(
        &self,
        columns: Option<&[String]>,
        images: impl Into<Images>,
    ) -> Result<ReadContext> {
        let decoder = match columns {
            None => self.decoder(&self.inner.features, images)?,
            Some(columns) => self.decoder(&self.selected(columns)?, images)?,
        };
        Ok(ReadContext::new(Some(decoder)))
    }

    fn decoder(&self, features: &Features, images: impl Into<Images>) -> Result<BatchDecoder> {
        let place = prep_formats::Position {
            path: self.inner.folder.join("features.json").to_string(),
            ..prep_formats::Position::default()
        };
        Ok(BatchDecoder::new(features, images).map_err(|error| error.with_position(&place))?)
    }

    fn selected(&self, columns: &[String]) -> Result<Features> {
        if columns.is_empty() {
            return Err(Error::Options("no column is selected".into()));
        }
        let known = |column: &String| {
            let features = &self.inner.features;
            features.select(std::slice::from_ref(column)).is_ok()
        };
        if let Some(column) = columns.iter().find(|column| !known(column)) {
            let names: Vec<String> = self
                .inner
                .features
                .iter()
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            return Err(Error::Options(format!(
                "there is no column `{column}`; the dataset has {}",
                names.join(", ")
            )));
        }
        Ok(self.inner.features.select(columns)?)
    }

    /// The records at these places, read together where they lie in an object store: those of a shard in one go, near ones in one request, and some
    /// shards at the same time. `None` where all shards are local, of which each record is read by itself; and where something went wrong, so that
    /// reading one by one tells where.
    fn fetch(&self, places: &[Place]) -> Option<Fetched> {
        if !self.inner.is_remote {
            return None;
        }
        let mut groups: Vec<(usize, Vec<u64>)> = Vec::new();
        let mut group_of = HashMap::new();
        let mut rows = Vec::with_capacity(places.len());
        for place in places {
            let group = *group_of.entry(place.shard).or_insert_with(|| {
                groups.push((place.shard, Vec::new()));
                groups.len() - 1
            });
            rows.push((group, groups[group].1.len()));
            groups[group].1.push(place.record);
        }
        let next = AtomicUsize::new(0);
        let slots: Vec<Mutex<Option<RecordBatch>>> = groups.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            let mut scratch = Scratch::default();
            while let Some((group, (shard, records))) = {
                let group = next.fetch_add(1, Ordering::Relaxed);
                groups.get(group).map(|found| (group, found))
            } {
                let mut batch = RecordBatch::default();
                let read = self
                    .reader(*shard)
                    .is_ok_and(|reader| reader.read(records, &mut batch, &mut scratch).is_ok());
                if !read {
                    next.store(groups.len(), Ordering::Relaxed);
                    return;
                }
                *lock(&slots[group]) = Some(batch);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..groups.len().min(SHARDS_AT_ONCE) {
                scope.spawn(work);
            }
            work();
        });
        let batches: Option<Vec<RecordBatch>> = slots
            .into_iter()
            .map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        Some(Fetched {
            batches: batches?,
            rows,
        })
    }

    /// Decodes rows into an empty batch, in the order of the indices. `false`: `stop` was set, and the batch is not whole.
    pub(crate) fn read_rows(
        &self,
        indices: &[u64],
        context: &mut ReadContext,
        batch: &mut Batch,
        stop: &AtomicBool,
    ) -> Result<bool> {
        let ReadContext {
            decoder,
            scratch,
            near,
            places,
            skips,
            damaged,
            timer,
        } = context;
        let skips = *skips;
        damaged.clear();
        let Some(decoder) = decoder else {
            unreachable!("rows are read by a context that decodes")
        };
        places.clear();
        for &index in indices {
            places.push(self.place(index)?);
        }
        let fetched = match self.inner.is_remote {
            true => timer.whole(|| self.fetch(places)),
            false => None,
        };
        for (row, &place) in places.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if let Some(ahead) = places.get(row + ROWS_AHEAD)
                && let Some((shard, reader)) = &near[ahead.shard % NEAR_READERS]
                && *shard == ahead.shard
            {
                reader.prefetch(ahead.record);
            }
            let mut decode = |record: &[u8]| {
                decoder
                    .push(record, batch)
                    .map_err(|error| self.record_error(place, error))
            };
            let decoded = match &fetched {
                Some(fetched) => decode(fetched.record(row)),
                None => {
                    let began = timer.start();
                    self.with_record(place, near, scratch, |record| {
                        timer.stop(began);
                        decode(record)
                    })
                }
            };
            match decoded {
                Ok(()) => {}
                Err(error) => match DamagedRecord::of(&error) {
                    Some(record) if skips => damaged.push(record),
                    _ => return Err(error),
                },
            }
        }
        if !damaged.is_empty() {
            let mut left_out = damaged.iter().map(|record| record.global_index).peekable();
            places.retain(|place| left_out.next_if_eq(&place.global_index).is_none());
        }
        if fetched.is_none() {
            self.count_mapped(indices.len());
        }
        Ok(true)
    }

    /// Counts what rows of local shards have mapped, and gives all of it back where that is too much.
    fn count_mapped(&self, rows: usize) {
        let inner = &*self.inner;
        if inner.shard_bytes <= inner.max_mapped_bytes {
            return;
        }
        let of_rows = rows as u64 * (MAPPED_AROUND + inner.record_bytes);
        let before = inner.mapped_bytes.fetch_add(of_rows, Ordering::Relaxed);
        if before + of_rows < inner.max_mapped_bytes {
            return;
        }
        inner.mapped_bytes.store(0, Ordering::Relaxed);
        // Those of an index, and of a footer, too.
        for &number in lock(&inner.open_order).iter() {
            let reader = inner.shards[number].reader.try_read();
            if let Some(reader) = reader.ok().as_deref().and_then(Option::as_ref) {
                reader.source().unmap();
            }
        }
    }

    /// Reads one record. One that is damaged and comes from a store is read once more: it may have been spoiled on the way, or in a cache.
    #[inline]
    fn with_record(
        &self,
        place: Place,
        near: &mut [Option<(usize, ShardReader)>],
        scratch: &mut RecordScratch,
        take: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.near_reader(place.shard, near)?;
        let Some((_, reader)) = &near[place.shard % NEAR_READERS] else {
            unreachable!("near_reader has put it there")
        };
        let error = match reader.record(place.record, scratch) {
            Ok(record) => return take(record),
            Err(error) => error,
        };
        if !(self.inner.is_remote && error.is_damaged() && reader.source().distrust()) {
            return Err(self.record_error(place, error));
        }
        tracing::warn!("{error}: read from the store once more");
        store::tried_again();
        // The same object, but with an index that is read anew.
        let reader = self.reader_of(place.shard, reader.source().clone())?;
        *self.inner.shards[place.shard]
            .reader
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(reader.clone());
        let (_, reader) = near[place.shard % NEAR_READERS].insert((place.shard, reader));
        match reader.record(place.record, scratch) {
            Ok(record) => take(record),
            Err(error) => Err(self.record_error(place, error)),
        }
    }

    fn record_error(&self, place: Place, source: prep_formats::Error) -> Error {
        let source = match source {
            prep_formats::Error::Damaged { at, reason } if self.inner.manifest.in_place => {
                let advice =
                    "the file was registered where it lies: if it was changed since, register it again";
                prep_formats::Error::Damaged {
                    at,
                    reason: format!("{reason} ({advice})"),
                }
            }
            other => other,
        };
        Error::Record {
            path: self.shard_location(place.shard).to_string(),
            record: place.record,
            global_index: place.global_index,
            source: Box::new(source),
        }
    }

    /// Where the record of an index is stored: a binary search over the shards.
    pub(crate) fn place(&self, index: u64) -> Result<Place> {
        let inner = &*self.inner;
        if index >= inner.records {
            return Err(Error::OutOfRange {
                index,
                length: inner.records,
            });
        }
        let at = inner.starts.partition_point(|&start| start <= index) - 1;
        let (run, within) = (inner.runs[at], index - inner.starts[at]);
        Ok(Place {
            shard: run.shard,
            record: run.record + within,
            global_index: run.global_index + within,
        })
    }

    /// Puts a shard's reader into its place among those at hand.
    fn near_reader(&self, shard: usize, near: &mut [Option<(usize, ShardReader)>]) -> Result<()> {
        let slot = &mut near[shard % NEAR_READERS];
        if !matches!(slot, Some((held, _)) if *held == shard) {
            *slot = Some((shard, self.reader(shard)?));
        }
        Ok(())
    }

    fn shard_location(&self, shard: usize) -> Location {
        shard_location(&self.inner.folder, &self.inner.shards[shard].path)
    }

    /// The reader of a shard, opened and checked if it is not open.
    fn reader(&self, number: usize) -> Result<ShardReader> {
        let shard = &self.inner.shards[number];
        {
            let reader = shard.reader.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(reader) = &*reader {
                shard.used.store(true, Ordering::Relaxed);
                return Ok(reader.clone());
            }
        }
        let mut slot = shard.reader.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = &*slot {
            return Ok(reader.clone());
        }
        let reader = self.open_shard(number)?;
        *slot = Some(reader.clone());
        drop(slot);
        self.close_others(number);
        Ok(reader)
    }

    fn open_shard(&self, number: usize) -> Result<ShardReader> {
        self.check_unchanged()?;
        let shard = &self.inner.shards[number];
        let source = self.open_source(shard, &self.shard_location(number))?;
        match self.reader_of(number, source.clone()) {
            Err(Error::Format(error)) if error.is_damaged() && source.distrust() => {
                tracing::warn!("{error}: read from the store once more");
                store::tried_again();
                self.reader_of(number, source)
            }
            other => other,
        }
    }

    /// The reader of a shard from its file or object.
    fn reader_of(&self, number: usize, source: Arc<dyn ReadAt>) -> Result<ShardReader> {
        let shard = &self.inner.shards[number];
        let location = self.shard_location(number);
        let changed = |what: &str, found: u64, wanted: u64| Error::Changed {
            path: location.to_string(),
            reason: format!("the file has {found} {what}, {}", self.said(wanted, &location)),
        };
        if source.len() != shard.bytes {
            return Err(changed("bytes", source.len(), shard.bytes));
        }
        let reader = match (&shard.index, self.inner.format) {
            (Some(index), _) => {
                let index = Index::load_from(&self.inner.folder.join(index), &*source)?;
                ShardReader::TfRecord(IndexedReader::with_index(source, Arc::new(index)))
            }
            (None, ShardFormat::ArrayRecord) => ShardReader::ArrayRecord(Reader::from_source(source)?),
            (None, ShardFormat::TfRecord) => ShardReader::TfRecord(IndexedReader::new(source)?),
        };
        if reader.num_records() != shard.records {
            return Err(changed("records", reader.num_records(), shard.records));
        }
        Ok(reader)
    }

    /// The file or object of a shard, through the cache where there is one.
    fn open_source(&self, shard: &Shard, location: &Location) -> Result<Arc<dyn ReadAt>> {
        let opened = match &self.inner.cache {
            Some(cache) if location.as_path().is_none() => match shard.sha256.as_str() {
                "" => cache.open_object(location),
                sha256 => cache.open_content(location, sha256, shard.bytes),
            },
            _ => store::open(location),
        };
        Ok(opened?)
    }

    /// Who said what a shard should have, and what to do where it has not.
    fn said(&self, wanted: u64, location: &Location) -> String {
        let inner = &self.inner;
        if inner.manifest.in_place {
            return format!(
                "it had {wanted} when it was registered in place: it was changed since; register it again, with `prep register --in-place --overwrite`"
            );
        }
        if inner.described {
            return format!(
                "the manifest says {wanted}: it was cut or replaced; run `prep verify {}`",
                self.name()
            );
        }
        format!("`dataset_info.json` says {wanted}: it was cut or replaced; run `prep verify {location}`")
    }

    /// Notes an opened shard and closes one that was not read lately where there are too many.
    fn close_others(&self, opened: usize) {
        let inner = &*self.inner;
        let mut order = lock(&inner.open_order);
        order.push_back(opened);
        let mut looks = 2 * order.len();
        while order.len() > inner.max_open_shards && looks > 0 {
            looks -= 1;
            let Some(candidate) = order.pop_front() else {
                break;
            };
            let shard = &inner.shards[candidate];
            // A second chance for those in use; one that is being opened or read this moment stays.
            let closed = candidate != opened
                && !shard.used.swap(false, Ordering::Relaxed)
                && shard
                    .reader
                    .try_write()
                    .is_ok_and(|mut reader| reader.take().is_some());
            if !closed {
                order.push_back(candidate);
            }
        }
    }

    /// That the folder still holds the build that was opened. One `stat` where nothing has happened.
    fn check_unchanged(&self) -> Result<()> {
        if !self.inner.described {
            return Ok(());
        }
        let Some(path) = manifest_path(&self.inner.folder) else {
            return Ok(());
        };
        let now = Stamp::of(&path);
        let mut stamp = lock(&self.inner.stamp);
        if now.is_none() || now != *stamp {
            check_manifest(&self.inner.folder, &self.inner.manifest)?;
            *stamp = now;
        }
        Ok(())
    }
}

#[cfg(test)]
impl Dataset {
    pub(crate) fn num_open_shards(&self) -> usize {
        let is_open = |shard: &&Shard| shard.reader.read().unwrap().is_some();
        self.inner.shards.iter().filter(is_open).count()
    }
}

impl Inner {
    /// Cuts the parts of the split into runs of one shard each. Shards that are named twice have one entry.
    fn lay_out(&mut self) {
        self.cut_up();
        let (bytes, records) = self.shards.iter().fold((0, 0), |sum: (u64, u64), shard| {
            (sum.0 + shard.bytes, sum.1 + shard.records)
        });
        self.shard_bytes = bytes;
        self.record_bytes = bytes / records.max(1);
        let is_remote = |shard: &Shard| shard_location(&self.folder, &shard.path).as_path().is_none();
        self.is_remote = match self.manifest.in_place {
            true => self.shards.iter().any(is_remote),
            false => self.folder.as_path().is_none(),
        };
    }

    fn cut_up(&mut self) {
        let mut numbers = vec![None; self.manifest.splits.len()];
        let mut global_starts = vec![None; self.manifest.splits.len()];
        let mut next_global = 0;
        let mut start = 0;
        for part in self.split.parts() {
            let split = &self.manifest.splits[part.split];
            let split_global = *global_starts[part.split].get_or_insert_with(|| {
                let first = next_global;
                next_global += split.shards.iter().map(|shard| shard.records).sum::<u64>();
                first
            });
            let first_shard = *numbers[part.split].get_or_insert_with(|| {
                let first = self.shards.len();
                self.shards.extend(split.shards.iter().map(|shard| Shard {
                    path: shard.path.clone(),
                    records: shard.records,
                    bytes: shard.bytes,
                    sha256: shard.sha256.clone(),
                    index: shard.index.as_ref().map(|index| index.path.clone()),
                    reader: RwLock::new(None),
                    used: AtomicBool::new(false),
                }));
                first
            });
            let mut shard_start = 0;
            for (number, shard) in split.shards.iter().enumerate() {
                let from = part.start.max(shard_start);
                let to = part.end.min(shard_start + shard.records);
                if from < to {
                    self.starts.push(start);
                    self.runs.push(Run {
                        shard: first_shard + number,
                        record: from - shard_start,
                        global_index: split_global + from,
                    });
                    start += to - from;
                }
                shard_start += shard.records;
            }
        }
    }
}

impl ReadContext {
    fn new(decoder: Option<BatchDecoder>) -> Self {
        Self {
            decoder,
            scratch: RecordScratch::default(),
            near: (0..NEAR_READERS).map(|_| None).collect(),
            places: Vec::new(),
            skips: false,
            damaged: Vec::new(),
            timer: ReadTimer::default(),
        }
    }

    /// Leaves records out that cannot be read, and times the reading of each.
    pub(crate) fn with(mut self, skips: bool, profile: bool) -> Self {
        self.skips = skips;
        self.timer = ReadTimer::new(profile);
        self
    }

    /// The records left out of the rows that were read last.
    pub(crate) fn take_damaged(&mut self) -> Vec<DamagedRecord> {
        std::mem::take(&mut self.damaged)
    }

    /// The time of reading since this was last asked.
    pub(crate) fn take_read_time(&mut self) -> std::time::Duration {
        std::mem::take(&mut self.timer.read)
    }

    fn decoder(&self) -> &BatchDecoder {
        match &self.decoder {
            Some(decoder) => decoder,
            None => unreachable!("rows are read by a context that decodes"),
        }
    }

    /// Name, dtype and row shape of the columns it decodes.
    pub(crate) fn specs(&self) -> &[ColumnSpec] {
        self.decoder().specs()
    }

    /// An empty batch with room for some rows.
    pub(crate) fn new_batch(&self, rows: usize) -> Batch {
        self.decoder().new_batch(rows)
    }

    /// The global indices of the rows that were read last.
    pub(crate) fn global_indices(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|place| place.global_index)
    }

    /// Empties a batch of this decoder and keeps its buffers.
    pub(crate) fn clear(&self, batch: &mut Batch) {
        self.decoder().clear(batch);
    }
}

/// The columns of a row, where it is known how they are decoded.
fn specs(features: &Features, images: Images) -> Vec<ColumnSpec> {
    features
        .column_specs(images)
        .or_else(|_| features.column_specs(Images::DecodedWherePossible))
        .unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn manifest_path(folder: &Location) -> Option<PathBuf> {
    folder.join(MANIFEST_FILE).as_path()
}

fn check_manifest(folder: &Location, wanted: &Manifest) -> Result<()> {
    let found = Manifest::read(folder)?;
    if found == *wanted {
        return Ok(());
    }
    let side = |manifest: &Manifest| {
        format!(
            "{}:{}, content {}",
            manifest.name,
            manifest.version,
            manifest.fingerprint.get(..16).unwrap_or(&manifest.fingerprint)
        )
    };
    Err(Error::Changed {
        path: folder.to_string(),
        reason: format!(
            "the folder now holds another build ({}) than the one opened ({}); open the dataset again",
            side(&found),
            side(wanted)
        ),
    })
}
