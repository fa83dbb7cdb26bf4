//! Objects of a store, read by ranges.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt};

use crate::store::{Location, Part, ReadAt, block_on, client, object, object_store};
use crate::{Error, Position, Result};

/// Bytes fetched from the end when an object is opened: the last two blocks of 64 KiB of an ArrayRecord file, and the footer of some 10,000
/// chunks before them, in one request.
const TAIL_BYTES: u64 = 256 << 10;
/// Bytes that a store sends in the time that one more request takes: 20 to 50 ms at 10 to 50 MB/s.
const REQUEST_COST: u64 = 512 << 10;
/// Requests in flight of one read.
const REQUESTS: usize = 16;
/// Times that a request is tried, with waits of 50, 100, 200 ms between. The clients of remote stores try again by themselves before that; this
/// is for what they do not try again, for replies that are short, and for stores without that.
const TRIES: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// After so long no further try is begun: with what the clients take, a store that only ever fails is given up within about a minute. One
/// that is not there is given up within ten seconds: see [`client`](super::client).
const PATIENCE: Duration = Duration::from_secs(30);
/// Answers that say no after so long are those that the client has asked for several times already.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// Requests for the end of an object that fail for so long fail because of the store, and not because it cannot count from the end.
const LONG: Duration = Duration::from_secs(5);

/// The tries of one request: how many there were, and the pauses between them.
struct Tries {
    began: Instant,
    /// When the last one began.
    last: Instant,
    count: u32,
    wait: Duration,
    /// Whether the client counts those that fail in the network.
    are_counted: bool,
}

impl Tries {
    fn new(first_wait: Duration, are_counted: bool) -> Self {
        Self {
            began: Instant::now(),
            last: Instant::now(),
            count: 1,
            wait: first_wait,
            are_counted,
        }
    }

    /// Waits before another try, where the failure may pass and there is to be one; else gives it back. The pause is by chance up to a
    /// half shorter or longer, so that many readers do not come back at the same moment.
    async fn again(&mut self, failure: Failure) -> Result<(), Failure> {
        let is_passing = failure.is_passing(self.last.elapsed());
        if !is_passing || self.count >= TRIES || self.began.elapsed() >= PATIENCE {
            return Err(failure);
        }
        let chance = (RandomState::new().hash_one(self.count) % 1024) as u32;
        tokio::time::sleep(self.wait / 2 + self.wait / 1024 * chance).await;
        self.count += 1;
        self.wait *= 2;
        self.last = Instant::now();
        // What broke on the way is counted by the client; an answer that was not what was asked for is seen here only.
        let is_of_network = matches!(&failure, Failure::Store(error) if client::is_of_network(error));
        if !(self.are_counted && is_of_network) {
            client::tried_again();
        }
        Ok(())
    }
}

/// An object of a store (S3, Google Cloud Storage, Azure, a web server), read by ranges.
///
/// Opening takes one request, which also brings the last 256 KiB (two where the store cannot give the end of an object whose length is
/// unknown). Parts of one read are in flight together, up to 16. A request that fails for a passing reason is tried again. Where the store
/// gives objects a tag, every request asks for the object that was opened: one that is replaced meanwhile is an error, never a mixture.
///
/// Blocks the calling thread. Usable after a fork if it was opened by [`Location`].
pub struct ObjectFile {
    name: String,
    target: Target,
    length: u64,
    tag: Option<String>,
    /// The last bytes, until the reader settles.
    tail: Mutex<Option<Bytes>>,
    first_wait: Duration,
    /// Another object has its name now.
    is_replaced: AtomicBool,
}

enum Target {
    /// Looked up for each read: a forked process has other stores.
    Location(Location),
    Store(Arc<dyn ObjectStore>, ObjectPath),
}

impl fmt::Debug for ObjectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectFile")
            .field("name", &self.name)
            .field("len", &self.length)
            .finish_non_exhaustive()
    }
}

/// Why one try did not give what was wanted.
enum Failure {
    Store(object_store::Error),
    /// A store's error that says no for good, though not why.
    Refused(object_store::Error),
    Short {
        wanted: u64,
        found: u64,
    },
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

impl Failure {
    /// Whether another try may help, after one that took so long.
    fn is_passing(&self, took: Duration) -> bool {
        match self {
            Self::Short { .. } => true,
            Self::Store(error @ object_store::Error::Generic { .. }) => {
                !client::is_unreachable(error)
                    && !client::has_no_suffixes(error)
                    && (took < ASKED_AGAIN || client::is_of_network(error))
            }
            Self::Store(error) => matches!(error, object_store::Error::JoinError { .. }),
            Self::Refused(_) => false,
        }
    }

    /// Whether the store is not there, refuses, or has failed for so long that other requests would not fare better.
    fn is_for_all(&self, took: Duration) -> bool {
        match self {
            Self::Store(error @ object_store::Error::Generic { .. }) => {
                client::is_unreachable(error) || took >= LONG && !client::has_no_suffixes(error)
            }
            Self::Refused(_) => true,
            Self::Short { .. } | Self::Store(_) => false,
        }
    }

    /// Whether it may be the credentials that are refused. S3 says so of expired ones with status 400.
    fn is_denied(&self) -> bool {
        use object_store::Error as Store;
        match self {
            Self::Store(Store::PermissionDenied { .. } | Store::Unauthenticated { .. }) => true,
            Self::Store(error @ Store::Generic { .. }) | Self::Refused(error) => {
                let text = error.to_string();
                ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"]
                    .iter()
                    .any(|code| text.contains(code))
            }
            _ => false,
        }
    }

    fn into_error(self, name: &str, offset: Option<u64>, action: &'static str) -> Error {
        use object_store::Error as Store;
        let (kind, error) = match self {
            Self::Short { wanted, found } => {
                let reason = format!("{found} bytes came of {wanted}, {TRIES} times");
                (io::ErrorKind::UnexpectedEof, io::Error::other(reason))
            }
            Self::Store(Store::Precondition { .. }) => {
                return Error::Damaged {
                    at: Position {
                        path: name.to_string(),
                        record: None,
                        offset,
                    },
                    reason: "the object was replaced since it was opened: open it again".into(),
                };
            }
            Self::Store(error) | Self::Refused(error) => {
                let kind = match &error {
                    Store::NotFound { .. } => io::ErrorKind::NotFound,
                    Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => {
                        io::ErrorKind::PermissionDenied
                    }
                    Store::NotSupported { .. } | Store::NotImplemented { .. } => io::ErrorKind::Unsupported,
                    _ => io::ErrorKind::Other,
                };
                (kind, io::Error::other(error))
            }
        };
        Error::Io {
            path: name.to_string(),
            action,
            source: io::Error::new(kind, error),
        }
    }
}

impl ObjectFile {
    /// Opens the object at `location`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the store does not have it or cannot be reached, and those of [`object_store()`].
    pub fn open(location: &Location) -> Result<Self> {
        Self::start(
            location.to_string(),
            Target::Location(location.clone()),
            FIRST_WAIT,
        )
    }

    /// The store's tag of the object that was opened, which another content does not have; `None` where it gives none.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Opens an object of a store of the caller's; `name` is for error messages.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the store does not have it or cannot be reached.
    pub fn from_store(
        store: Arc<dyn ObjectStore>,
        path: ObjectPath,
        name: impl Into<String>,
    ) -> Result<Self> {
        Self::start(name.into(), Target::Store(store, path), FIRST_WAIT)
    }

    fn start(name: String, target: Target, first_wait: Duration) -> Result<Self> {
        let mut file = Self {
            name,
            target,
            length: 0,
            tag: None,
            tail: Mutex::new(None),
            first_wait,
            is_replaced: AtomicBool::new(false),
        };
        let (length, tag, tail) = file.with_store(|store, path| {
            block_on(file.open_object(store, path)).map_err(|failure| (failure, None, "open"))
        })?;
        file.length = length;
        // A weak tag does not promise the same bytes, and never fits a condition.
        file.tag = tag.filter(|tag| !tag.starts_with("W/"));
        file.tail = Mutex::new(Some(tail));
        Ok(file)
    }

    fn tries(&self) -> Tries {
        // The stores of locations have a client of ours.
        let are_counted = matches!(&self.target, Target::Location(location) if !location.to_string().starts_with("memory:"));
        Tries::new(self.first_wait, are_counted)
    }

    fn store(&self) -> Result<(Arc<dyn ObjectStore>, ObjectPath)> {
        match &self.target {
            Target::Location(location) => object_store(location),
            Target::Store(store, path) => Ok((store.clone(), path.clone())),
        }
    }

    /// Does something with the store, and once more with fresh credentials where those it had are refused. Failures have an offset and what was done.
    fn with_store<T>(
        &self,
        mut work: impl FnMut(&dyn ObjectStore, &ObjectPath) -> Result<T, (Failure, Option<u64>, &'static str)>,
    ) -> Result<T> {
        let mut may_renew = true;
        loop {
            let (store, path) = self.store()?;
            let (failure, offset, action) = match work(&*store, &path) {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            let renewed = may_renew
                && failure.is_denied()
                && matches!(&self.target, Target::Location(location) if object::renew(location, &store));
            if !renewed {
                return Err(failure.into_error(&self.name, offset, action));
            }
            tracing::debug!("{}: refused, asked again with fresh credentials", self.name);
            client::tried_again();
            may_renew = false;
        }
    }

    /// Length, tag, and the last bytes.
    async fn open_object(
        &self,
        store: &dyn ObjectStore,
        path: &ObjectPath,
    ) -> Result<(u64, Option<String>, Bytes), Failure> {
        let began = Instant::now();
        let by_end = self
            .retry(|| async {
                let options = GetOptions {
                    range: Some(GetRange::Suffix(TAIL_BYTES)),
                    ..GetOptions::default()
                };
                whole(store.get_opts(path, options).await?).await
            })
            .await;
        match by_end {
            Ok(found) => return Ok(found),
            Err(failure @ Failure::Store(object_store::Error::NotFound { .. }))
            | Err(failure @ Failure::Store(object_store::Error::PermissionDenied { .. }))
            | Err(failure @ Failure::Store(object_store::Error::Unauthenticated { .. })) => {
                return Err(failure);
            }
            Err(failure) if failure.is_for_all(began.elapsed()) => return Err(failure),
            // Some stores cannot count from the end, and an empty object has no last bytes.
            Err(_) => {}
        }
        let meta = self.retry(|| async { Ok(store.head(path).await?) }).await?;
        if meta.size == 0 {
            return Ok((0, meta.e_tag, Bytes::new()));
        }
        self.retry(|| async {
            let options = GetOptions {
                range: Some(GetRange::Bounded(meta.size.saturating_sub(TAIL_BYTES)..meta.size)),
                ..GetOptions::default()
            };
            whole(store.get_opts(path, options).await?).await
        })
        .await
    }

    /// Tries until it works, or has failed for good.
    async fn retry<T, F>(&self, mut step: impl FnMut() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut tries = self.tries();
        loop {
            match once(step()).await {
                Ok(found) => return Ok(found),
                Err(failure) => tries.again(failure).await?,
            }
        }
    }

    /// One part, as it arrives. A try that fails half way begins again.
    async fn fetch(
        &self,
        store: &dyn ObjectStore,
        path: &ObjectPath,
        part: &mut Part<'_>,
    ) -> Result<(), Failure> {
        let mut tries = self.tries();
        loop {
            match once(self.fetch_once(store, path, part.offset, part.buffer)).await {
                Ok(()) => return Ok(()),
                Err(failure) => tries.again(failure).await?,
            }
        }
    }

    async fn fetch_once(
        &self,
        store: &dyn ObjectStore,
        path: &ObjectPath,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let wanted = buffer.len() as u64;
        let options = GetOptions {
            range: Some(GetRange::Bounded(offset..offset + wanted)),
            if_match: self.tag.clone(),
            ..GetOptions::default()
        };
        let result = store.get_opts(path, options).await?;
        let begins_elsewhere = result.range.start != offset;
        let mut filled = 0;
        if !begins_elsewhere {
            let mut pieces = result.into_stream();
            while let Some(piece) = pieces.next().await {
                let piece = piece?;
                let Some(place) = buffer.get_mut(filled..filled + piece.len()) else {
                    break;
                };
                place.copy_from_slice(&piece);
                filled += piece.len();
            }
        }
        if filled as u64 == wanted {
            return Ok(());
        }
        Err(Failure::Short {
            wanted,
            found: filled as u64,
        })
    }
}

/// One try.
async fn once<T>(step: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let (result, is_refused) = client::and_is_refused(step).await;
    result.map_err(|failure| match failure {
        Failure::Store(error @ object_store::Error::Generic { .. }) if is_refused => Failure::Refused(error),
        failure => failure,
    })
}

/// Length and tag of an object, and the bytes of its end.
async fn whole(result: GetResult) -> Result<(u64, Option<String>, Bytes), Failure> {
    let (size, tag, range) = (result.meta.size, result.meta.e_tag.clone(), result.range.clone());
    let wanted = size.min(TAIL_BYTES);
    if range.end != size || range.end - range.start != wanted {
        return Err(Failure::Short {
            wanted,
            found: range.end.saturating_sub(range.start),
        });
    }
    let tail = result.bytes().await?;
    if tail.len() as u64 != wanted {
        return Err(Failure::Short {
            wanted,
            found: tail.len() as u64,
        });
    }
    Ok((size, tag, tail))
}

impl ReadAt for ObjectFile {
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
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tail = tail.unwrap_or_default();
        let tail_begin = self.length - tail.len() as u64;
        let mut wanted = Vec::with_capacity(parts.len());
        for part in parts {
            let end = part.offset.checked_add(part.buffer.len() as u64);
            let Some(end) = end.filter(|end| *end <= self.length) else {
                return Err(Error::Damaged {
                    at: Position {
                        path: self.name.clone(),
                        record: None,
                        offset: Some(part.offset),
                    },
                    reason: format!(
                        "{} bytes wanted here, the object ends at byte {}: it is cut short",
                        part.buffer.len(),
                        self.length
                    ),
                });
            };
            // What the tail has needs no request.
            let held_from = part.offset.max(tail_begin).min(end);
            let (before, held) = part.buffer.split_at_mut((held_from - part.offset) as usize);
            if !held.is_empty() {
                let start = (held_from - tail_begin) as usize;
                held.copy_from_slice(&tail[start..start + held.len()]);
            }
            if !before.is_empty() {
                wanted.push(Part {
                    offset: part.offset,
                    buffer: before,
                });
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        self.with_store(|store, path| {
            let fetches: Vec<_> = wanted
                .iter_mut()
                .map(|part| async move {
                    let offset = part.offset;
                    self.fetch(store, path, part).await.map_err(|failure| {
                        if matches!(failure, Failure::Store(object_store::Error::Precondition { .. })) {
                            self.is_replaced.store(true, Ordering::Relaxed);
                        }
                        (failure, Some(offset), "read")
                    })
                })
                .collect();
            block_on(
                stream::iter(fetches)
                    .buffer_unordered(REQUESTS)
                    .try_collect::<()>(),
            )
        })
    }
    fn request_cost(&self) -> u64 {
        REQUEST_COST
    }
    fn settle(&self) {
        *self.tail.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
    fn distrust(&self) -> bool {
        self.settle();
        !self.is_replaced.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array_record::{Reader, RecordBatch, Scratch, WriteOptions, Writer};
    use object_store::memory::InMemory;
    use std::collections::VecDeque;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::atomic::AtomicUsize;

    /// What goes wrong with one answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fault {
        None,
        Status(u16),
        /// The connection closes after so many bytes of the body.
        Cut(usize),
        Close,
        /// A partial answer of half of what was asked for, as if that was all.
        Half,
        IgnoreRange,
    }

    /// A web server for one object, which misbehaves by a script; it counts requests.
    struct Server {
        url: String,
        shared: Arc<Shared>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    struct Shared {
        body: Mutex<(Vec<u8>, String)>,
        script: Mutex<VecDeque<Fault>>,
        requests: AtomicUsize,
        stopped: AtomicBool,
        suffixes: bool,
    }

    impl Server {
        fn start(body: Vec<u8>, script: &[Fault], suffixes: bool) -> Self {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let url = format!("http://{}/data/x.array_record", listener.local_addr().unwrap());
            let shared = Arc::new(Shared {
                body: Mutex::new((body, "\"1\"".into())),
                script: Mutex::new(script.iter().copied().collect()),
                requests: AtomicUsize::new(0),
                stopped: AtomicBool::new(false),
                suffixes,
            });
            let served = shared.clone();
            let thread = std::thread::spawn(move || {
                for stream in listener.incoming() {
                    if served.stopped.load(Ordering::Acquire) {
                        return;
                    }
                    // A client that goes away is its own business.
                    let _ = served.answer(stream.unwrap());
                }
            });
            Self {
                url,
                shared,
                thread: Some(thread),
            }
        }

        fn open(&self) -> Result<ObjectFile> {
            let location = Location::parse(&self.url).unwrap();
            ObjectFile::start(
                self.url.clone(),
                Target::Location(location),
                Duration::from_millis(1),
            )
        }

        fn script(&self, faults: &[Fault]) {
            self.shared.script.lock().unwrap().extend(faults);
        }

        fn requests(&self) -> usize {
            self.shared.requests.swap(0, Ordering::Relaxed)
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.shared.stopped.store(true, Ordering::Release);
            let address = self.url.split('/').nth(2).unwrap();
            let _ = TcpStream::connect(address);
            if let Some(thread) = self.thread.take() {
                thread.join().unwrap();
            }
        }
    }

    impl Shared {
        fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
            let mut lines = BufReader::new(stream.try_clone()?).lines();
            let request = lines.next().unwrap_or(Ok(String::new()))?;
            let (mut range, mut condition) = (None, None);
            for line in lines {
                let line = line?.to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(value) = line.strip_prefix("range: bytes=") {
                    range = Some(value.to_string());
                }
                if let Some(value) = line.strip_prefix("if-match: ") {
                    condition = Some(value.to_string());
                }
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            let fault = self.script.lock().unwrap().pop_front().unwrap_or(Fault::None);
            let (body, tag) = self.body.lock().unwrap().clone();
            let length = body.len();
            let (mut status, mut start, mut end) = (200, 0, length);
            match range.as_deref().and_then(|range| range.split_once('-')) {
                Some(("", suffix)) if self.suffixes && length > 0 => {
                    status = 206;
                    start = length.saturating_sub(suffix.parse().unwrap());
                }
                Some(("", _)) => status = 416,
                Some((from, to)) => {
                    status = 206;
                    start = from.parse().unwrap();
                    end = (to.parse::<usize>().unwrap() + 1).min(length);
                }
                None => {}
            }
            if condition.is_some_and(|condition| condition != tag) {
                status = 412;
            }
            match fault {
                Fault::Close => return Ok(()),
                Fault::Status(other) => status = other,
                Fault::IgnoreRange => (status, start, end) = (200, 0, length),
                Fault::Half => end = start + (end - start) / 2,
                Fault::None | Fault::Cut(_) => {}
            }
            if !matches!(status, 200 | 206) {
                return write!(
                    stream,
                    "HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
            }
            write!(
                stream,
                "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nETag: {tag}\r\nLast-Modified: Sun, 29 Nov 2026 00:00:00 GMT\r\nConnection: close\r\n",
                end - start
            )?;
            if status == 206 {
                write!(
                    stream,
                    "Content-Range: bytes {start}-{}/{length}\r\n",
                    end.max(1) - 1
                )?;
            }
            stream.write_all(b"\r\n")?;
            if !request.starts_with("HEAD") {
                let sent = match fault {
                    Fault::Cut(bytes) => bytes.min(end - start),
                    _ => end - start,
                };
                stream.write_all(&body[start..start + sent])?;
            }
            Ok(())
        }
    }

    fn array_record(number: u32, options: &str) -> (Vec<u8>, Vec<Vec<u8>>) {
        let records: Vec<Vec<u8>> = (0..number)
            .map(|i| vec![i as u8; 500 + (i as usize * 7919) % 1000])
            .collect();
        let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
        for record in &records {
            writer.write(record).unwrap();
        }
        (writer.finish().unwrap(), records)
    }

    #[test]
    fn parts_come_whole_over_http_whatever_goes_wrong_once() {
        let body: Vec<u8> = (0..400_000u32).flat_map(|i| (i as u16).to_le_bytes()).collect();
        for faults in [
            &[][..],
            &[Fault::Status(503)],
            &[Fault::Status(500), Fault::Close],
            &[Fault::Cut(1000)],
            &[Fault::Half],
        ] {
            for suffixes in [true, false] {
                let server = Server::start(body.clone(), faults, suffixes);
                let file = server.open().unwrap();
                assert_eq!(file.len(), body.len() as u64);
                server.script(faults);
                let mut buffers = [vec![0; 10], vec![0; 300_000], vec![0; 7], vec![]];
                let offsets = [0, 400_000, 799_993, 800_000];
                let mut parts: Vec<Part<'_>> = offsets
                    .into_iter()
                    .zip(&mut buffers)
                    .map(|(offset, buffer)| Part { offset, buffer })
                    .collect();
                file.read_many(&mut parts).unwrap();
                for (offset, buffer) in offsets.into_iter().zip(&buffers) {
                    let start = offset as usize;
                    assert!(
                        *buffer == body[start..start + buffer.len()],
                        "{faults:?} {offset}"
                    );
                }
                let error = file.read_at(799_995, &mut [0; 6]).unwrap_err();
                assert!(matches!(&error, Error::Damaged { .. }), "{error}");
            }
        }
    }

    #[test]
    fn what_does_not_pass_is_an_error_that_names_the_object() {
        let server = Server::start(vec![1; 600_000], &[Fault::Status(404)], true);
        let error = server.open().unwrap_err();
        assert_eq!(server.requests(), 1);
        let Error::Io { path, source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((path, source.kind()), (&server.url, io::ErrorKind::NotFound));

        let file = server.open().unwrap();
        server.script(&[Fault::Half; 4]);
        server.requests();
        let error = file.read_at(0, &mut [0; 100]).unwrap_err();
        assert_eq!(server.requests(), 4);
        assert!(matches!(&error, Error::Io { .. }), "{error}");

        // What is refused is refused for good, in the middle too.
        for status in [403, 410] {
            server.script(&[Fault::Status(status)]);
            let error = file.read_at(0, &mut [0; 100]).unwrap_err();
            assert_eq!(server.requests(), 1, "{error}");
            let refusing = Server::start(vec![1; 600_000], &[Fault::Status(status)], true);
            let error = refusing.open().unwrap_err();
            assert_eq!(refusing.requests(), 1, "{error}");
        }

        // A server that sends whole files only is no store.
        server.script(&[Fault::IgnoreRange]);
        let error = file.read_at(0, &mut [0; 100]).unwrap_err();
        assert!(
            matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::Unsupported),
            "{error}"
        );

        // Another object under the same name.
        *server.shared.body.lock().unwrap() = (vec![2; 600_000], "\"2\"".into());
        let error = file.read_at(0, &mut [0; 100]).unwrap_err();
        assert!(error.to_string().contains("was replaced"), "{error}");
        let empty = Server::start(Vec::new(), &[], true);
        assert_eq!(empty.open().unwrap().len(), 0);
    }

    #[test]
    fn opening_takes_one_request_and_scattered_records_few() {
        let (bytes, records) = array_record(5000, "uncompressed,group_size:1");
        let server = Server::start(bytes, &[], true);
        let reader = Reader::from_source(Arc::new(server.open().unwrap())).unwrap();
        assert_eq!(server.requests(), 1, "open, footer and index");
        let (mut batch, mut scratch) = (RecordBatch::default(), Scratch::default());
        assert_eq!(reader.record(17, &mut scratch).unwrap(), records[17]);
        assert_eq!(server.requests(), 1, "one record");
        let list: Vec<u64> = (0..256).map(|i| i * 7919 % 5000).collect();
        reader.read(&list, &mut batch, &mut scratch).unwrap();
        for (i, &index) in list.iter().enumerate() {
            assert_eq!(&batch[i], records[index as usize]);
        }
        // 5 MB in all: gaps of 20 kB cost less than requests.
        let requests = server.requests();
        assert!(requests <= 2, "{requests} requests for 256 scattered records");
        reader.read_range(0..5000, &mut batch, &mut scratch).unwrap();
        assert_eq!(batch.iter().collect::<Vec<_>>(), records);
        let requests = server.requests();
        assert!(requests <= 2, "{requests} requests for the whole file");
    }

    #[test]
    fn a_footer_larger_than_the_tail_takes_one_request_more() {
        let records = vec![vec![7u8]; 30_000];
        let mut writer = Writer::new(Vec::new(), WriteOptions::parse("uncompressed").unwrap()).unwrap();
        for record in &records {
            writer.write(record).unwrap();
        }
        let server = Server::start(writer.finish().unwrap(), &[], true);
        let reader = Reader::from_source(Arc::new(server.open().unwrap())).unwrap();
        assert_eq!(reader.num_records(), 30_000);
        assert_eq!(server.requests(), 2);
    }

    #[test]
    fn objects_of_any_store_and_memory_urls_open() {
        let (bytes, records) = array_record(50, "zstd,group_size:4");
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let path = ObjectPath::from("a/b");
        block_on(store.put(&path, bytes.clone().into())).unwrap();
        let file = ObjectFile::from_store(store, path, "mine").unwrap();
        let reader = Reader::from_source(Arc::new(file)).unwrap();
        assert_eq!(reader.record(49, &mut Scratch::default()).unwrap(), records[49]);

        let location = Location::parse("memory:///object_file/x").unwrap();
        let (store, path) = object_store(&location).unwrap();
        assert!(matches!(
            crate::store::open(&location),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound
        ));
        block_on(store.put(&path, bytes.into())).unwrap();
        let reader = Reader::from_source(crate::store::open(&location).unwrap()).unwrap();
        assert_eq!(reader.num_records(), 50);
    }
}
