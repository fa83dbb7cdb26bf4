//! A cache on local disk of what was read from object stores, shared by all processes of a host.
//!
//! ```text
//! FOLDER/prep-cache.json      marks the folder as a cache: {"format": 1}
//! FOLDER/lock                 held while something is written or removed
//! FOLDER/used                 bytes that the files below take, as decimal text
//! FOLDER/objects/KEY          a sparse file per object: one byte a page that says whether the page is there, then the pages
//! ```
//!
//! An object is cached by pages of 16 KiB, those that were read. Its key is a hash of its content where the caller knows one, so that the same
//! shard under another address is found; else a hash of address, length and the store's tag.
//!
//! Reading takes no lock: the flags are read, then the pages, then it is looked whether the file still has its name. A file to be removed loses
//! its name before it is emptied, and never gets one again, so pages read before that are right. Nothing is ever removed but files in `objects` that
//! have a key's form.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use crate::store::{AtomicFile, Existing, FileLock, Location, ObjectFile, Part, ReadAt, sync_folder};
use crate::{Error, Position, Result};

/// Bytes of a page: what a record of some KB costs to fetch hardly differs from it, and a shard of 1 GiB has 64 KiB of flags.
const PAGE: u64 = 16 << 10;
/// The least limit, 64 pages.
const MIN_LIMIT: u64 = 64 * PAGE;
/// Bytes that are asked for and held at once while missing pages are fetched.
const FETCH_BYTES: u64 = 16 << 20;
/// A file that is read is noted as used again after so long.
const TOUCH_EVERY: Duration = Duration::from_secs(30);
/// Version of the folder's layout.
const FORMAT: u32 = 1;

const MARKER: &str = "prep-cache.json";
const LOCK: &str = "lock";
const USED: &str = "used";
const OBJECTS: &str = "objects";
/// A page that is there.
const PRESENT: u8 = 1;

/// A folder that keeps what was read from object stores, up to a number of bytes; cheap to clone.
///
/// Processes that share the folder share what it holds, and each keeps to its own limit when it adds something. The least recently used objects go
/// first. Where nothing can be added (the disk is full), reads go to the store as if there were no cache.
///
/// Takes 1/16384 of an object's length in flags: 64 KiB for a shard of 1 GiB, 64 MiB for 10^4 of them. An addition is a lock, two writes and two
/// `fstat`; a read of cached bytes two reads and an `fstat`. Making room lists the objects: about 10 ms for 10^4.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    limit: u64,
    counts: Counters,
    /// Said once.
    has_warned: AtomicBool,
}

#[derive(Default)]
struct Counters {
    cached: AtomicU64,
    fetched: AtomicU64,
    evicted: AtomicU64,
}

/// What a [`Cache`] has done in this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Bytes that were asked for and were there.
    pub cached_bytes: u64,
    /// Bytes that were asked of the store, whole pages.
    pub fetched_bytes: u64,
    /// Bytes removed to make room.
    pub evicted_bytes: u64,
}

impl CacheCounts {
    /// Whether more came from stores than was there.
    pub fn is_cold(self) -> bool {
        self.fetched_bytes > self.cached_bytes
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("folder", &self.inner.folder)
            .field("limit", &self.inner.limit)
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// Opens the cache in a local folder, or begins one in a folder that is empty or not there. `limit` is in bytes on disk.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: a limit below 1 MiB; a folder that holds something else, or the cache of a newer version; one that cannot be written.
    pub fn open(folder: impl AsRef<Path>, limit: u64) -> Result<Self> {
        let folder = folder.as_ref();
        if limit < MIN_LIMIT {
            return Err(refused(
                folder,
                format!(
                    "a cache of {limit} bytes is too small: at least {MIN_LIMIT} (1 MiB) are needed, and the size of what is read again is of use"
                ),
            ));
        }
        fs::create_dir_all(folder).map_err(Error::io(folder, "create the cache"))?;
        let marker = folder.join(MARKER);
        match fs::read_to_string(&marker) {
            Ok(text) => check_format(folder, &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => begin(folder, &marker)?,
            Err(error) => return Err(Error::io(&marker, "read")(error)),
        }
        let objects = folder.join(OBJECTS);
        fs::create_dir_all(&objects).map_err(Error::io(&objects, "create"))?;
        // Whether it can be written shows here, and not after hours.
        FileLock::acquire(folder.join(LOCK), || ())?;
        Ok(Self {
            inner: Arc::new(Inner {
                folder: folder.to_path_buf(),
                limit,
                counts: Counters::default(),
                has_warned: AtomicBool::new(false),
            }),
        })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// Its limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.inner.limit
    }

    /// What it has done in this process, over all clones.
    pub fn counts(&self) -> CacheCounts {
        let counts = &self.inner.counts;
        CacheCounts {
            cached_bytes: counts.cached.load(Ordering::Relaxed),
            fetched_bytes: counts.fetched.load(Ordering::Relaxed),
            evicted_bytes: counts.evicted.load(Ordering::Relaxed),
        }
    }

    /// Opens an object whose content is known by a hash, with the length it has. Nothing is asked of the store until something is read that is
    /// not here.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the cache's file cannot be opened. That the store does not have it, or has another length, shows when it is read.
    pub fn open_content(&self, location: &Location, content: &str, length: u64) -> Result<Arc<dyn ReadAt>> {
        let key = key(&["content", content, &length.to_string()]);
        Ok(Arc::new(CachedFile::new(self, location, key, length, None)?))
    }

    /// Opens an object of which nothing is known but its address: one request gives its length and tag. Without a tag it cannot be told from
    /// another that takes its place, and is read past the cache.
    ///
    /// # Errors
    ///
    /// As [`ObjectFile::open`].
    pub fn open_object(&self, location: &Location) -> Result<Arc<dyn ReadAt>> {
        let object = ObjectFile::open(location)?;
        let Some(tag) = object.tag() else {
            return Ok(Arc::new(object));
        };
        let length = object.len();
        let key = key(&["address", &location.to_string(), tag, &length.to_string()]);
        Ok(Arc::new(CachedFile::new(
            self,
            location,
            key,
            length,
            Some(object),
        )?))
    }
}

impl Inner {
    fn object_path(&self, key: &str) -> PathBuf {
        self.folder.join(OBJECTS).join(key)
    }

    fn lock(&self) -> Result<FileLock> {
        FileLock::acquire(self.folder.join(LOCK), || ())
    }

    /// Bytes that all objects take, by the note; counted where there is none. Under the lock.
    fn used(&self) -> io::Result<u64> {
        let noted = fs::read_to_string(self.folder.join(USED));
        match noted.ok().and_then(|text| text.trim().parse().ok()) {
            Some(used) => Ok(used),
            None => Ok(self.objects()?.iter().map(|object| object.bytes).sum()),
        }
    }

    fn note_used(&self, used: u64) -> io::Result<()> {
        fs::write(self.folder.join(USED), used.to_string())
    }

    fn objects(&self) -> io::Result<Vec<Object>> {
        let mut objects = Vec::new();
        for entry in fs::read_dir(self.folder.join(OBJECTS))? {
            let entry = entry?;
            let is_key = entry.file_name().to_str().is_some_and(is_key);
            // Gone meanwhile: by somebody's hand.
            let Some(metadata) = entry.metadata().ok().filter(|found| is_key && found.is_file()) else {
                continue;
            };
            objects.push(Object {
                path: entry.path(),
                bytes: metadata.blocks() * 512,
                used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
        Ok(objects)
    }

    /// Removes the objects that were used least recently until `wanted` more bytes fit, with an eighth of the limit to spare. Under the lock.
    fn make_room(&self, wanted: u64) -> io::Result<u64> {
        let mut objects = self.objects()?;
        objects.sort_unstable_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        let mut used: u64 = objects.iter().map(|object| object.bytes).sum();
        let aim = (self.limit - self.limit / 8).saturating_sub(wanted);
        for object in &objects {
            if used + wanted <= self.limit && used <= aim {
                break;
            }
            remove(&object.path)?;
            used = used.saturating_sub(object.bytes);
            self.counts.evicted.fetch_add(object.bytes, Ordering::Relaxed);
        }
        Ok(used)
    }

    /// Adds fetched pages to an object's file, those that are not there yet. A disk that is full only means that they are not kept.
    fn add(&self, entry: &Entry, runs: &[Run]) {
        let added = self.lock().map_err(|error| error.to_string()).and_then(|_held| {
            self.add_locked(entry, runs)
                .map_err(|error| format!("{}: {error}", self.folder.display()))
        });
        if let Err(error) = added
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("nothing is added to the cache, reads go to the store: {error}");
        }
    }

    fn add_locked(&self, entry: &Entry, runs: &[Run]) -> io::Result<()> {
        let wanted: u64 = runs.iter().map(|run| run.bytes.len() as u64).sum::<u64>() + PAGE;
        if wanted > self.limit {
            return Ok(());
        }
        let mut used = self.used()?;
        if used + wanted > self.limit {
            used = self.make_room(wanted)?;
            self.note_used(used)?;
        }
        // Where that took this file too, the next read begins another one.
        if !entry.is_live()? {
            return Ok(());
        }
        let before = entry.file.metadata()?.blocks();
        let written = runs.iter().try_for_each(|run| entry.write(run));
        let after = entry.file.metadata()?.blocks();
        self.note_used((used + 512 * after).saturating_sub(512 * before))?;
        written
    }
}

struct Object {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Takes a file's name, then its bytes, in this order: see above.
fn remove(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    fs::remove_file(path)?;
    file.set_len(0)
}

/// The open file of an object.
struct Entry {
    file: File,
    /// Where pages begin: after the flags.
    start: u64,
    length: u64,
}

/// Fetched pages one after another; the last one of an object may be short.
struct Run {
    first: u64,
    bytes: Vec<u8>,
}

impl Entry {
    fn open(path: &Path, length: u64) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(Error::io(path, "open"))?;
        let start = length.div_ceil(PAGE).next_multiple_of(PAGE);
        // All flags are zero in a new file, and what is read of it is never short.
        let set = || match file.metadata()?.len() == start + length {
            true => Ok(()),
            false => file.set_len(start + length),
        };
        set().map_err(Error::io(path, "write"))?;
        Ok(Self { file, start, length })
    }

    fn is_live(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }

    fn page_length(&self, page: u64) -> u64 {
        PAGE.min(self.length - page * PAGE)
    }

    fn write(&self, run: &Run) -> io::Result<()> {
        self.file
            .write_all_at(&run.bytes, self.start + run.first * PAGE)?;
        let pages = (run.bytes.len() as u64).div_ceil(PAGE) as usize;
        self.file.write_all_at(&vec![PRESENT; pages], run.first)
    }

    /// Reads bytes whose pages were seen to be there; `false`: the file was taken away meanwhile, and they may be wrong.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        match self.file.read_exact_at(buffer, self.start + offset) {
            Ok(()) => self.is_live(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The flags of pages; none are set in a file that was emptied.
    fn flags(&self, pages: std::ops::Range<u64>, flags: &mut Vec<u8>) -> io::Result<()> {
        flags.clear();
        flags.resize((pages.end - pages.start) as usize, 0);
        match self.file.read_exact_at(flags, pages.start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                flags.fill(0);
                Ok(())
            }
            other => other,
        }
    }
}

/// An object that is read through a cache.
struct CachedFile {
    cache: Cache,
    name: String,
    location: Location,
    key: String,
    length: u64,
    entry: Mutex<(Arc<Entry>, SystemTime)>,
    object: OnceLock<ObjectFile>,
    is_settled: AtomicBool,
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile")
            .field("name", &self.name)
            .field("len", &self.length)
            .finish_non_exhaustive()
    }
}

impl CachedFile {
    fn new(
        cache: &Cache,
        location: &Location,
        key: String,
        length: u64,
        object: Option<ObjectFile>,
    ) -> Result<Self> {
        let entry = open_entry(cache, &key, length)?;
        Ok(Self {
            cache: cache.clone(),
            name: location.to_string(),
            location: location.clone(),
            key,
            length,
            entry: Mutex::new(entry),
            object: object.map(OnceLock::from).unwrap_or_default(),
            is_settled: AtomicBool::new(false),
        })
    }

    /// The file of the object as it is now: opened anew where it was taken away.
    fn entry(&self) -> Result<Arc<Entry>> {
        let mut held = lock(&self.entry);
        let failed = |error| Error::io(self.cache.inner.object_path(&self.key), "read")(error);
        if !held.0.is_live().map_err(failed)? {
            *held = open_entry(&self.cache, &self.key, self.length)?;
        }
        let now = SystemTime::now();
        if now.duration_since(held.1).is_ok_and(|since| since >= TOUCH_EVERY) {
            held.1 = now;
            // That others know it is in use; no matter if it fails.
            let _ = held.0.file.set_modified(now);
        }
        Ok(held.0.clone())
    }

    fn object(&self) -> Result<&ObjectFile> {
        if let Some(object) = self.object.get() {
            return Ok(object);
        }
        let object = ObjectFile::open(&self.location)?;
        if object.len() != self.length {
            return Err(Error::Damaged {
                at: self.at(None),
                reason: format!(
                    "the object has {} bytes, {} were expected: it was cut or replaced",
                    object.len(),
                    self.length
                ),
            });
        }
        if self.is_settled.load(Ordering::Relaxed) {
            object.settle();
        }
        Ok(self.object.get_or_init(|| object))
    }

    fn at(&self, offset: Option<u64>) -> Position {
        Position {
            path: self.name.clone(),
            record: None,
            offset,
        }
    }

    /// Reads one part, if all of it is there.
    fn read_cached(&self, entry: &Entry, part: &mut Part<'_>, flags: &mut Vec<u8>) -> io::Result<bool> {
        entry.flags(pages(part), flags)?;
        Ok(flags.iter().all(|flag| *flag == PRESENT) && entry.read(part.offset, part.buffer)?)
    }

    /// Reads parts that are not there as a whole: missing pages come from the store, in as few requests as they lie together.
    fn read_missing(&self, entry: &Entry, parts: &mut [&mut Part<'_>]) -> Result<()> {
        let failed = |error| Error::io(self.cache.inner.object_path(&self.key), "read")(error);
        let mut wanted: Vec<u64> = Vec::new();
        let mut flags = Vec::new();
        for part in parts.iter() {
            let range = pages(part);
            entry.flags(range.clone(), &mut flags).map_err(failed)?;
            wanted.extend(
                range
                    .zip(&flags)
                    .filter(|(_, flag)| **flag != PRESENT)
                    .map(|(page, _)| page),
            );
        }
        wanted.sort_unstable();
        wanted.dedup();
        let mut runs = self.fetch(entry, &wanted)?;
        if !runs.is_empty() {
            self.cache.inner.add(entry, &runs);
        }
        runs.sort_unstable_by_key(|run| run.first);
        for part in parts {
            let end = part.offset + part.buffer.len() as u64;
            let mut at = part.offset;
            while at < end {
                let next = runs.partition_point(|run| run.end() <= at);
                let run = runs.get(next);
                let target = (at - part.offset) as usize;
                match run.filter(|run| run.first * PAGE <= at) {
                    Some(run) => {
                        let until = run.end().min(end);
                        let from = (at - run.first * PAGE) as usize;
                        let length = (until - at) as usize;
                        part.buffer[target..target + length].copy_from_slice(&run.bytes[from..from + length]);
                        at = until;
                    }
                    None => {
                        let until = run.map_or(end, |run| end.min(run.first * PAGE));
                        let buffer = &mut part.buffer[target..target + (until - at) as usize];
                        // Taken away between two looks: from the store then.
                        if !entry.read(at, buffer).map_err(failed)? {
                            self.object()?.read_at(at, buffer)?;
                        }
                        at = until;
                    }
                }
            }
        }
        Ok(())
    }

    /// The pages of a sorted list, as runs.
    fn fetch(&self, entry: &Entry, wanted: &[u64]) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        for &page in wanted {
            let length = entry.page_length(page) as usize;
            match runs.last_mut() {
                Some(run) if run.end() == page * PAGE && (run.bytes.len() as u64) < FETCH_BYTES => {
                    run.bytes.resize(run.bytes.len() + length, 0);
                }
                _ => runs.push(Run {
                    first: page,
                    bytes: vec![0; length],
                }),
            }
        }
        let mut parts: Vec<Part<'_>> = runs
            .iter_mut()
            .map(|run| Part {
                offset: run.first * PAGE,
                buffer: &mut run.bytes,
            })
            .collect();
        if !parts.is_empty() {
            self.object()?.read_many(&mut parts)?;
        }
        let bytes: u64 = runs.iter().map(|run| run.bytes.len() as u64).sum();
        self.cache
            .inner
            .counts
            .fetched
            .fetch_add(bytes, Ordering::Relaxed);
        Ok(runs)
    }
}

impl Run {
    /// The byte of the object after the last.
    fn end(&self) -> u64 {
        self.first * PAGE + self.bytes.len() as u64
    }
}

impl ReadAt for CachedFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.read_many(&mut [Part { offset, buffer }])
    }

    fn read_many(&self, parts: &mut [Part<'_>]) -> Result<()> {
        for part in &*parts {
            let end = part.offset.checked_add(part.buffer.len() as u64);
            if end.is_none_or(|end| end > self.length) {
                return Err(Error::Damaged {
                    at: self.at(Some(part.offset)),
                    reason: format!(
                        "{} bytes wanted here, the object ends at byte {}: it is cut short",
                        part.buffer.len(),
                        self.length
                    ),
                });
            }
        }
        let entry = self.entry()?;
        let failed = |error| Error::io(self.cache.inner.object_path(&self.key), "read")(error);
        let mut flags = Vec::new();
        let mut missing = Vec::new();
        let mut missing_bytes = 0;
        for part in parts.iter_mut().filter(|part| !part.buffer.is_empty()) {
            let length = part.buffer.len() as u64;
            if self.read_cached(&entry, part, &mut flags).map_err(failed)? {
                self.cache
                    .inner
                    .counts
                    .cached
                    .fetch_add(length, Ordering::Relaxed);
                continue;
            }
            if missing_bytes > 0 && missing_bytes + length > FETCH_BYTES {
                self.read_missing(&entry, &mut missing)?;
                missing.clear();
                missing_bytes = 0;
            }
            missing_bytes += length;
            missing.push(part);
        }
        match missing.is_empty() {
            true => Ok(()),
            false => self.read_missing(&entry, &mut missing),
        }
    }

    fn request_cost(&self) -> u64 {
        // Bytes that lie between what is wanted are fetched once, and then here.
        PAGE
    }

    fn settle(&self) {
        self.is_settled.store(true, Ordering::Relaxed);
        if let Some(object) = self.object.get() {
            object.settle();
        }
    }

    fn distrust(&self) -> bool {
        if self.object.get().is_some_and(|object| !object.distrust()) {
            return false;
        }
        let inner = &self.cache.inner;
        let removed = inner.lock().is_ok_and(|_held| {
            let path = inner.object_path(&self.key);
            let bytes = path.metadata().map_or(0, |metadata| metadata.blocks() * 512);
            let used = inner.used().unwrap_or(0).saturating_sub(bytes);
            remove(&path).is_ok() && inner.note_used(used).is_ok()
        });
        if !removed {
            tracing::warn!("{} could not be removed from the cache", self.name);
        }
        true
    }
}

/// Pages that a part touches.
fn pages(part: &Part<'_>) -> std::ops::Range<u64> {
    let end = part.offset + part.buffer.len() as u64;
    part.offset / PAGE..end.div_ceil(PAGE)
}

fn open_entry(cache: &Cache, key: &str, length: u64) -> Result<(Arc<Entry>, SystemTime)> {
    let path = cache.inner.object_path(key);
    loop {
        let entry = Entry::open(&path, length)?;
        let is_live = entry.is_live().map_err(Error::io(&path, "open"))?;
        if is_live {
            let now = SystemTime::now();
            entry.file.set_modified(now).map_err(Error::io(&path, "write"))?;
            return Ok((Arc::new(entry), now));
        }
    }
}

/// 32 hexadecimal digits.
fn key(parts: &[&str]) -> String {
    let text = parts.join("\0");
    format!("{:032x}", twox_hash::XxHash3_128::oneshot(text.as_bytes()))
}

fn is_key(name: &str) -> bool {
    name.len() == 32
        && name
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Marks a folder that holds nothing yet.
fn begin(folder: &Path, marker: &Path) -> Result<()> {
    let mut entries = fs::read_dir(folder).map_err(Error::io(folder, "list"))?;
    // What others leave who begin the same cache this moment: staged markers, the lock.
    let is_foreign = |entry: &io::Result<fs::DirEntry>| {
        entry
            .as_ref()
            .is_ok_and(|entry| !entry.file_name().to_string_lossy().starts_with(MARKER))
    };
    if let Some(Ok(found)) = entries.find(is_foreign)
        && !marker.exists()
    {
        return Err(refused(
            folder,
            format!(
                "the folder holds `{}` and is no cache of Prep's: give an empty folder, or one that is not there",
                found.file_name().to_string_lossy()
            ),
        ));
    }
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let staging = folder.join(format!("{MARKER}.{}-{number}", std::process::id()));
    let mut file = AtomicFile::create(staging)?;
    let text = format!("{{\"format\": {FORMAT}}}\n");
    file.write_all(text.as_bytes())
        .map_err(Error::io(marker, "write"))?;
    file.commit(marker, Existing::Replace)?;
    sync_folder(folder)
}

fn check_format(folder: &Path, text: &str) -> Result<()> {
    let format = serde_json::from_str::<serde_json::Value>(text)
        .ok()
        .and_then(|value| value.get("format")?.as_u64());
    match format {
        Some(format) if format == u64::from(FORMAT) => Ok(()),
        Some(format) => Err(refused(
            folder,
            format!("the cache has format {format}, this version knows {FORMAT}: give another folder"),
        )),
        None => Err(refused(
            folder,
            format!("`{MARKER}` cannot be read: remove the folder, what it holds can be fetched again"),
        )),
    }
}

fn refused(folder: &Path, reason: String) -> Error {
    Error::io(folder, "use as a cache")(io::Error::other(reason))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{block_on, object_store};
    use object_store::ObjectStoreExt;
    use proptest::prelude::*;

    /// An object of the memory store, and its bytes.
    fn object(name: &str, length: usize) -> (Location, Vec<u8>) {
        let location = Location::parse(&format!("memory:///cache/{name}")).unwrap();
        let seed = name
            .bytes()
            .fold(7u32, |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
        let bytes: Vec<u8> = (0..length as u32)
            .map(|at| (at.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        put(&location, &bytes);
        (location, bytes)
    }

    fn put(location: &Location, bytes: &[u8]) {
        let (store, path) = object_store(location).unwrap();
        block_on(store.put(&path, bytes.to_vec().into())).unwrap();
    }

    fn delete(location: &Location) {
        let (store, path) = object_store(location).unwrap();
        block_on(store.delete(&path)).unwrap();
    }

    fn read(file: &dyn ReadAt, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0xEE; length];
        file.read_at(offset, &mut buffer).unwrap();
        buffer
    }

    fn disk_bytes(cache: &Cache) -> u64 {
        cache
            .inner
            .objects()
            .unwrap()
            .iter()
            .map(|object| object.bytes)
            .sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn any_reads_give_the_objects_bytes(
            length in 1usize..200_000,
            reads in prop::collection::vec(prop::collection::vec((any::<u32>(), any::<u32>()), 1..6), 1..12),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let (location, bytes) = object(&format!("any-{length}"), length);
            let cache = Cache::open(folder.path(), 8 << 20).unwrap();
            let file = cache.open_content(&location, "any", length as u64).unwrap();
            for parts in &reads {
                let ranges: Vec<(usize, usize)> = parts
                    .iter()
                    .map(|&(from, count)| {
                        let from = from as usize % (length + 1);
                        (from, count as usize % (length - from + 1))
                    })
                    .collect();
                let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|&(_, count)| vec![0xEE; count]).collect();
                let mut parts: Vec<Part<'_>> = ranges
                    .iter()
                    .zip(&mut buffers)
                    .map(|(&(from, _), buffer)| Part { offset: from as u64, buffer })
                    .collect();
                file.read_many(&mut parts).unwrap();
                for ((from, count), buffer) in ranges.into_iter().zip(&buffers) {
                    prop_assert_eq!(&buffer[..], &bytes[from..from + count]);
                }
            }
        }
    }

    #[test]
    fn what_was_read_needs_no_store_also_for_another_process_and_address() {
        let folder = tempfile::tempdir().unwrap();
        let (location, bytes) = object("warm", 300_001);
        let cache = Cache::open(folder.path(), 8 << 20).unwrap();
        let file = cache.open_content(&location, "hash", 300_001).unwrap();
        assert_eq!(read(&*file, 0, 300_001), bytes);
        assert_eq!(cache.counts().fetched_bytes, 300_001);
        delete(&location);

        let moved = Location::parse("memory:///cache/never-there").unwrap();
        let other = Cache::open(folder.path(), 8 << 20).unwrap();
        let file = other.open_content(&moved, "hash", 300_001).unwrap();
        assert_eq!(read(&*file, 16_380, 200_000), bytes[16_380..216_380]);
        assert_eq!(
            other.counts(),
            CacheCounts {
                cached_bytes: 200_000,
                ..CacheCounts::default()
            }
        );
        // Another content has nothing here, and the store does not have it.
        let file = other.open_content(&moved, "other", 300_001).unwrap();
        assert!(file.read_at(0, &mut [0; 10]).is_err());
    }

    #[test]
    fn what_is_there_is_read_without_a_lock_or_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let (location, bytes) = object("unlocked", 300_001);
        let cache = Cache::open(folder.path(), 8 << 20).unwrap();
        let file = cache.open_content(&location, "hash", 300_001).unwrap();
        assert_eq!(read(&*file, 0, 300_001), bytes);
        // Whoever asks for the lock now waits.
        let held = cache.inner.lock().unwrap();
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| done.send(read(&*file, 100, 200_000)));
            let found = wait.recv_timeout(std::time::Duration::from_secs(60));
            drop(held);
            assert_eq!(found.expect("it waits for the lock"), bytes[100..200_100]);
        });
    }

    #[test]
    fn an_object_without_a_hash_is_known_by_its_tag() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 8 << 20).unwrap();
        let (location, bytes) = object("tagged", 50_000);
        let file = cache.open_object(&location).unwrap();
        assert_eq!(read(&*file, 0, 50_000), bytes);
        put(&location, &vec![9; 50_000]);
        let file = cache.open_object(&location).unwrap();
        assert_eq!(read(&*file, 0, 50_000), vec![9; 50_000]);
    }

    #[test]
    fn the_limit_is_kept_and_the_least_recently_used_goes() {
        let folder = tempfile::tempdir().unwrap();
        let limit = 2 << 20;
        let cache = Cache::open(folder.path(), limit).unwrap();
        let bystander = folder.path().join(OBJECTS).join("notes.txt");
        fs::write(&bystander, "mine").unwrap();
        let length = 700_000;
        for number in 0..6 {
            let name = format!("limit-{number}");
            let (location, bytes) = object(&name, length);
            let file = cache.open_content(&location, &name, length as u64).unwrap();
            assert_eq!(read(&*file, 0, length), bytes);
            let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000 + number);
            let path = cache
                .inner
                .object_path(&key(&["content", &name, &length.to_string()]));
            File::open(path).unwrap().set_modified(past).unwrap();
            assert!(disk_bytes(&cache) <= limit, "{}", disk_bytes(&cache));
        }
        assert!(cache.counts().evicted_bytes >= 3 * length as u64);
        assert_eq!(fs::read_to_string(&bystander).unwrap(), "mine");
        // The last one is there.
        let fetched = cache.counts().fetched_bytes;
        let last = Location::parse("memory:///cache/limit-5").unwrap();
        read(
            &*cache.open_content(&last, "limit-5", length as u64).unwrap(),
            0,
            length,
        );
        assert_eq!(cache.counts().fetched_bytes, fetched);
    }

    #[test]
    fn readers_that_take_each_others_room_read_what_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let objects: Vec<(Location, Vec<u8>)> = (0..4)
            .map(|number| object(&format!("crowd-{number}"), 600_000))
            .collect();
        std::thread::scope(|scope| {
            for reader in 0..4u64 {
                let (folder, objects) = (folder.path(), &objects);
                scope.spawn(move || {
                    // Each its own, as processes have; together they need more than twice the limit.
                    let cache = Cache::open(folder, MIN_LIMIT).unwrap();
                    let files: Vec<Arc<dyn ReadAt>> = (0..4)
                        .map(|number: usize| {
                            let name = format!("crowd-{number}");
                            cache.open_content(&objects[number].0, &name, 600_000).unwrap()
                        })
                        .collect();
                    let mut chance = reader + 1;
                    for _ in 0..300 {
                        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let number = (chance >> 60) as usize % 4;
                        let from = (chance >> 20) as usize % 550_000;
                        let found = read(&*files[number], from as u64, 50_000);
                        assert!(found == objects[number].1[from..from + 50_000]);
                    }
                });
            }
        });
        let cache = Cache::open(folder.path(), MIN_LIMIT).unwrap();
        assert!(disk_bytes(&cache) <= MIN_LIMIT);
    }

    #[test]
    fn a_page_that_is_not_trusted_is_fetched_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 8 << 20).unwrap();
        let (location, bytes) = object("spoiled", 100_000);
        let file = cache.open_content(&location, "spoiled", 100_000).unwrap();
        read(&*file, 0, 100_000);
        let path = cache.inner.object_path(&key(&["content", "spoiled", "100000"]));
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .write_all_at(b"rot", PAGE + 500)
            .unwrap();
        assert_ne!(read(&*file, 0, 1_000), bytes[..1_000]);
        assert!(file.distrust());
        assert_eq!(read(&*file, 0, 100_000), bytes);
    }

    #[test]
    fn a_disk_without_room_only_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 8 << 20).unwrap();
        let (location, bytes) = object("full", 100_000);
        let file = cache.open_content(&location, "full", 100_000).unwrap();
        // The note of what is used cannot be written.
        fs::create_dir(folder.path().join(USED)).unwrap();
        assert_eq!(read(&*file, 5, 90_000), bytes[5..90_005]);
        assert_eq!(read(&*file, 0, 100_000), bytes);
    }

    #[test]
    fn folders_and_limits_that_do_not_fit_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let message = |result: Result<Cache>| format!("{:#}", with_causes(result.unwrap_err()));
        assert!(message(Cache::open(folder.path().join("a"), 512 << 10)).contains("at least 1048576"));
        assert!(!folder.path().join("a").exists());
        fs::write(folder.path().join("thesis.txt"), "x").unwrap();
        assert!(message(Cache::open(folder.path(), 8 << 20)).contains("thesis.txt"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let newer = folder.path().join("newer");
        fs::create_dir(&newer).unwrap();
        fs::write(newer.join(MARKER), "{\"format\": 2}").unwrap();
        assert!(message(Cache::open(&newer, 8 << 20)).contains("format 2"));
        fs::write(newer.join(MARKER), "{").unwrap();
        assert!(message(Cache::open(&newer, 8 << 20)).contains("cannot be read"));
    }

    /// The message with its causes.
    fn with_causes(error: Error) -> String {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(found) = cause {
            text.push_str(": ");
            text.push_str(&found.to_string());
            cause = found.source();
        }
        text
    }
}
