//! The objects of a catalog: read, list, put if absent.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use prep_formats::store::{AtomicFile, Existing, Location, block_on, object_store};

use crate::{Error, Result};

/// Requests in flight of one read.
const REQUESTS: usize = 16;

/// What the names of objects begin with by which a store is tried.
pub const PROBE: &str = ".probe-";

/// The objects below a location.
#[derive(Clone)]
pub(crate) struct Store {
    location: Location,
    objects: Arc<dyn ObjectStore>,
    root: ObjectPath,
}

/// What lies directly below a place: names, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Children {
    pub(crate) files: Vec<String>,
    pub(crate) folders: Vec<String>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.location).finish()
    }
}

impl Store {
    pub(crate) fn open(location: &Location) -> Result<Self> {
        let place = match location.as_path() {
            Some(path) => Location::from_path(clean(&path)?),
            None => location.clone(),
        };
        let (objects, root) = object_store(&place)?;
        Ok(Self::new(location.clone(), objects, root))
    }

    pub(crate) fn new(location: Location, objects: Arc<dyn ObjectStore>, root: ObjectPath) -> Self {
        Self {
            location,
            objects,
            root,
        }
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Whether the store is on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.location.as_path().is_none()
    }

    /// Whether what is below a folder can be listed. Web servers have no way to ask.
    pub(crate) fn can_list(&self) -> bool {
        !self.location.is_web()
    }

    /// The path or URL of an object, for messages.
    pub(crate) fn name(&self, relative: &str) -> String {
        self.location.join(relative).to_string()
    }

    fn path(&self, relative: &str) -> ObjectPath {
        let parts = relative.split('/').filter(|part| !part.is_empty());
        parts.fold(self.root.clone(), |path, part| path.join(part))
    }

    fn error(&self, relative: &str, action: &'static str) -> impl FnOnce(object_store::Error) -> Error {
        let path = self.name(relative);
        move |source| Error::Store {
            path,
            action,
            source: Box::new(source),
        }
    }

    /// The bytes of an object, `None` if there is none.
    pub(crate) fn get(&self, relative: &str) -> Result<Option<Bytes>> {
        let path = self.path(relative);
        let read = async { self.objects.get(&path).await?.bytes().await };
        match block_on(read) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.error(relative, "read")(error)),
        }
    }

    /// The bytes of several objects, `None` where there is none: requests in flight together, up to 16.
    pub(crate) fn get_many(&self, relative: &[String]) -> Result<Vec<Option<Bytes>>> {
        let one = |relative: &String| {
            let path = self.path(relative);
            async move {
                match self.objects.get(&path).await {
                    Ok(found) => found.bytes().await.map(Some),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        };
        let reads = relative.iter().map(one);
        let all = block_on(stream::iter(reads).buffered(REQUESTS).collect::<Vec<_>>());
        all.into_iter()
            .zip(relative)
            .map(|(found, relative)| found.map_err(self.error(relative, "read")))
            .collect()
    }

    /// Puts an object in the place of what is there.
    pub(crate) fn put(&self, relative: &str, bytes: Vec<u8>) -> Result<()> {
        let path = self.path(relative);
        block_on(self.objects.put(&path, PutPayload::from(bytes))).map_err(self.error(relative, "write"))?;
        Ok(())
    }

    /// Removes an object; one that is not there is no error.
    pub(crate) fn remove(&self, relative: &str) -> Result<()> {
        let path = self.path(relative);
        match block_on(self.objects.delete(&path)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error(relative, "delete")(error)),
        }
    }

    /// Tries whether the store takes objects, and really puts them only where there is none: with an object of its own, which is removed again.
    /// Four requests.
    ///
    /// Some stores that speak the protocol of S3 pass over the condition. Commits to such a one would overwrite each other.
    pub(crate) fn try_conditional_put(&self) -> Result<()> {
        let relative = format!("{PROBE}{}", crate::entry::commit_id()?);
        let no_condition = |reason: String| Error::NoConditionalPut {
            catalog: self.location.to_string(),
            reason,
        };
        let path = self.path(&relative);
        let put = |text: &'static str| {
            let options = PutOptions::from(PutMode::Create);
            block_on(self.objects.put_opts(&path, PutPayload::from(text), options))
        };
        let explain = |error: object_store::Error| match error {
            object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. } => {
                no_condition("it has no such operation".into())
            }
            error => self.error(&relative, "write")(error),
        };
        match put("first") {
            // Nobody else has this name: a try inside the client, whose reply was lost, has put it there.
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(explain(error)),
        }
        let second = put("second");
        let kept = self.get(&relative)?;
        // A probe that stays is a few bytes, and removed by `gc`.
        let _ = self.remove(&relative);
        match (second, kept.as_deref()) {
            (Err(object_store::Error::AlreadyExists { .. }), Some(b"first")) => Ok(()),
            (Ok(_), _) => Err(no_condition(
                "an object that was to be put only if absent took the place of another one".into(),
            )),
            (Err(error), Some(b"first")) => Err(explain(error)),
            (Err(_), _) => Err(no_condition(
                "a put that was refused has changed the object all the same".into(),
            )),
        }
    }

    /// Puts an object where there is none, durably; `false` if there is one.
    pub(crate) fn put_if_absent(&self, relative: &str, bytes: Vec<u8>) -> Result<bool> {
        let path = self.path(relative);
        let options = PutOptions::from(PutMode::Create);
        match block_on(self.objects.put_opts(&path, PutPayload::from(bytes), options)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.error(relative, "write")(error)),
        }
    }

    /// Makes sure that an object which can be read is durable: for one whose put failed after it had become visible.
    pub(crate) fn sync(&self, relative: &str) -> Result<()> {
        let Some(path) = self.location.join(relative).as_path() else {
            return Ok(());
        };
        let sync = || {
            File::open(&path)?.sync_all()?;
            path.parent()
                .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
        };
        sync().map_err(|source: io::Error| io_error(&self.location.join(relative), "sync", source))
    }

    /// The files directly below a folder, and when each was written by the clock of the store.
    pub(crate) fn stamped_files(&self, relative: &str) -> Result<Vec<(String, SystemTime)>> {
        let path = self.path(relative);
        let listed = block_on(self.objects.list_with_delimiter(Some(&path)));
        let listed = listed.map_err(self.error(relative, "list"))?;
        let files = listed.objects.into_iter().filter_map(|object| {
            let name = object.location.filename()?.to_string();
            Some((name, object.last_modified.into()))
        });
        Ok(files.collect())
    }

    /// What lies directly below a folder; nothing if there is no such folder.
    pub(crate) fn list(&self, relative: &str) -> Result<Children> {
        let path = self.path(relative);
        let listed = match block_on(self.objects.list_with_delimiter(Some(&path))) {
            Ok(listed) => listed,
            Err(object_store::Error::NotFound { .. }) => return Ok(Children::default()),
            Err(error) => return Err(self.error(relative, "list")(error)),
        };
        let names = |paths: &mut dyn Iterator<Item = ObjectPath>| {
            let mut names: Vec<String> = paths
                .filter_map(|path| path.filename().map(str::to_string))
                .collect();
            names.sort_unstable();
            names
        };
        Ok(Children {
            files: names(&mut listed.objects.into_iter().map(|object| object.location)),
            folders: names(&mut listed.common_prefixes.into_iter()),
        })
    }
}

/// How a store takes objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Also only where there is none yet.
    Conditional,
    /// Always in the place of what is there.
    Replacing,
}

/// Tries whether objects can be put below a remote folder, before any work is done for it: with an object of its own, which is removed again. Four
/// requests.
///
/// # Errors
/// [`Error::WebOnly`] for a web server, [`Error::Store`] where the store cannot be reached or refuses.
pub fn try_store(folder: &Location) -> Result<Take> {
    if folder.is_web() {
        return Err(Error::WebOnly {
            catalog: folder.to_string(),
            reason: "is on a web server, and can only be read",
            hint: "give a place that can be written, as in `--data-dir s3://BUCKET/FOLDER`",
        });
    }
    match Store::open(folder)?.try_conditional_put() {
        Ok(()) => Ok(Take::Conditional),
        Err(Error::NoConditionalPut { .. }) => Ok(Take::Replacing),
        Err(error) => Err(error),
    }
}

/// The objects by which a remote folder was tried, directly below it, and when each was put there: a program that was killed meanwhile has left them.
///
/// # Errors
/// [`Error::Store`] where the store refuses.
pub fn probes(folder: &Location) -> Result<Vec<(Location, SystemTime)>> {
    let store = Store::open(folder)?;
    if !store.is_remote() || !store.can_list() {
        return Ok(Vec::new());
    }
    let files = store.stamped_files("")?.into_iter();
    let probes = files.filter(|(name, _)| name.starts_with(PROBE));
    Ok(probes.map(|(name, put)| (folder.join(&name), put)).collect())
}

/// Puts an object where there is none, durably; `false` if there is one.
///
/// # Errors
/// [`Error::Store`] where the store refuses.
pub fn put_if_absent(at: &Location, bytes: Vec<u8>) -> Result<bool> {
    let (objects, path) = object_store(at)?;
    let options = PutOptions::from(PutMode::Create);
    match block_on(objects.put_opts(&path, PutPayload::from(bytes), options)) {
        Ok(_) => Ok(true),
        Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
        Err(error) => Err(Error::Store {
            path: at.to_string(),
            action: "write",
            source: Box::new(error),
        }),
    }
}

/// File name of a log entry: 20 digits, so that names sort as numbers do.
pub(crate) fn entry_file(number: u64) -> String {
    format!("{number:020}.json")
}

/// The number of the log entry of this file name; `None` for any other file.
pub(crate) fn entry_number(file: &str) -> Option<u64> {
    let digits = file.strip_suffix(".json")?;
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

/// The bytes of a file, `None` if there is none.
pub(crate) fn read(at: &Location) -> Result<Option<Bytes>> {
    Ok(read_stamped(at)?.map(|(bytes, _)| bytes))
}

/// What tells a file from another one that is put in its place: device, inode, time of the last change in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(u64, u64, i128);

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let changed = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Self(metadata.dev(), metadata.ino(), changed)
    }

    /// The stamp of the file that is there now; `None` without one.
    pub(crate) fn now(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().as_ref().map(Self::of)
    }
}

/// The bytes of a file and, for a local one, its stamp.
pub(crate) fn read_stamped(at: &Location) -> Result<Option<(Bytes, Option<Stamp>)>> {
    let Some(path) = at.as_path() else {
        let (objects, path) = object_store(at)?;
        let read = async { objects.get(&path).await?.bytes().await };
        return match block_on(read) {
            Ok(bytes) => Ok(Some((bytes, None))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Error::Store {
                path: at.to_string(),
                action: "read",
                source: Box::new(error),
            }),
        };
    };
    let read = || {
        let mut file = File::open(&path)?;
        let stamp = Stamp::of(&file.metadata()?);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((Bytes::from(bytes), Some(stamp)))
    };
    match read() {
        Ok(found) => Ok(Some(found)),
        Err(error) => match io::Error::kind(&error) {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(io_error(at, "read", error)),
        },
    }
}

/// Writes a local file that appears whole, durably. Takes the place of what was there.
pub(crate) fn write(at: &Location, bytes: Vec<u8>) -> Result<()> {
    let Some(path) = at.as_path() else {
        let (objects, path) = object_store(at)?;
        let put = async { objects.put(&path, PutPayload::from(bytes)).await };
        block_on(put).map_err(|error| Error::Store {
            path: at.to_string(),
            action: "write",
            source: Box::new(error),
        })?;
        return Ok(());
    };
    let mut file = AtomicFile::create(path.with_extension("part"))?;
    file.write_all(&bytes)
        .map_err(|error| io_error(at, "write", error))?;
    Ok(file.commit(&path, Existing::Replace)?)
}

fn io_error(at: &Location, action: &'static str, source: io::Error) -> Error {
    Error::Store {
        path: at.to_string(),
        action,
        source: Box::new(source),
    }
}

/// The absolute path of a file or folder that need not exist: links of what exists followed, `.` and `..` taken out.
pub(crate) fn clean(path: &Path) -> Result<PathBuf> {
    let failed = |source| io_error(&Location::from_path(path), "resolve", source);
    let mut existing = std::path::absolute(path).map_err(failed)?;
    let mut rest: Vec<OsString> = Vec::new();
    let mut cleaned = loop {
        match existing.canonicalize() {
            Ok(found) => break found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Some(part) = existing.components().next_back() else {
                    return Err(failed(error));
                };
                rest.push(part.as_os_str().to_os_string());
                if !existing.pop() {
                    return Err(failed(error));
                }
            }
            Err(error) => return Err(failed(error)),
        }
    };
    for part in rest.into_iter().rev() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => {
                cleaned.pop();
            }
            Some(Component::Normal(part)) => cleaned.push(part),
            _ => {}
        }
    }
    Ok(cleaned)
}

/// What every store of a catalog has to do, as a test that each implementation calls with an empty store of its own.
#[cfg(test)]
pub(crate) fn conformance(store: &Store) {
    assert_eq!(store.get("log/a/0.json").unwrap(), None);
    assert_eq!(store.list("log/a").unwrap(), Children::default());
    assert!(store.put_if_absent("log/a/0.json", b"first".to_vec()).unwrap());
    assert!(!store.put_if_absent("log/a/0.json", b"second".to_vec()).unwrap());
    assert_eq!(store.get("log/a/0.json").unwrap().unwrap(), "first");
    assert!(store.put_if_absent("log/a/1.json", vec![]).unwrap());
    assert!(store.put_if_absent("log/a/b+c/0.json", vec![0xff]).unwrap());
    let wanted: Vec<String> = ["log/a/1.json", "log/a/7.json", "log/a/0.json"]
        .map(Into::into)
        .into();
    let found = store.get_many(&wanted).unwrap();
    assert_eq!(found, [Some(Bytes::new()), None, Some(Bytes::from("first"))]);
    store.try_conditional_put().unwrap();
    for text in ["one", "two"] {
        store.put("checkpoints/a.json", text.into()).unwrap();
        assert_eq!(store.get("checkpoints/a.json").unwrap().unwrap(), text);
    }
    store.remove("checkpoints/a.json").unwrap();
    store.remove("checkpoints/a.json").unwrap();
    assert_eq!(store.get("checkpoints/a.json").unwrap(), None);
    let children = store.list("log/a").unwrap();
    assert_eq!(children.files, ["0.json", "1.json"]);
    assert_eq!(children.folders, ["b+c"]);
    assert_eq!(store.list("log").unwrap().folders, ["a"]);
    // Of many that put at once, one does, and its bytes are there whole.
    let writers = 16;
    let won: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| scope.spawn(move || store.put_if_absent("race", vec![writer; 100_000]).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let winner = won.iter().position(|won| *won).unwrap();
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
    assert_eq!(store.get("race").unwrap().unwrap(), vec![winner as u8; 100_000]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_folder_conforms() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "plain",
            "with space, é, 猫, #1 and 100%25",
            "deep/../not/yet/there",
        ] {
            conformance(&Store::open(&Location::from_path(folder.path().join(name))).unwrap());
        }
        assert!(folder.path().join("not/yet/there/log/a/0.json").exists());
        assert!(
            folder
                .path()
                .join("with space, é, 猫, #1 and 100%25/race")
                .exists()
        );
    }

    #[test]
    fn memory_conforms() {
        let objects = Arc::new(object_store::memory::InMemory::new());
        conformance(&Store::new(
            Location::from_path("memory"),
            objects,
            ObjectPath::from("root"),
        ));
    }

    #[test]
    fn what_a_killed_writer_left_is_not_listed_and_does_not_stop_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::from_path(folder.path())).unwrap();
        std::fs::create_dir(folder.path().join("log")).unwrap();
        std::fs::write(folder.path().join("log/0.json#1"), b"{\"ki").unwrap();
        assert_eq!(store.list("log").unwrap(), Children::default());
        assert!(store.put_if_absent("log/0.json", b"x".to_vec()).unwrap());
        assert_eq!(store.list("log").unwrap().files, ["0.json"]);
    }

    #[test]
    fn entry_files_sort_as_numbers() {
        assert_eq!(entry_file(7), "00000000000000000007.json");
        for number in [0, 7, u64::MAX] {
            assert_eq!(entry_number(&entry_file(number)), Some(number));
        }
        for other in [
            "7.json",
            "00000000000000000007.json#1",
            "99999999999999999999.json",
            "+0000000000000000007.json",
            "",
        ] {
            assert_eq!(entry_number(other), None, "{other}");
        }
    }

    #[test]
    fn files_are_stamped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let at = Location::from_path(&path);
        assert_eq!(read(&at).unwrap(), None);
        write(&at, b"1".to_vec()).unwrap();
        let (bytes, stamp) = read_stamped(&at).unwrap().unwrap();
        assert_eq!((bytes.as_ref(), stamp), (b"1".as_slice(), Stamp::now(&path)));
        write(&at, b"2".to_vec()).unwrap();
        assert_ne!(stamp, Stamp::now(&path));
        assert!(write(&at.join("below a file"), vec![]).is_err());
    }
}
