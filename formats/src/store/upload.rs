//! Uploads to object stores, in parts, from code that is not async.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::store::{Existing, block_on, client};
use crate::{Error, Result};

/// Least bytes of a part. Source: "Amazon S3 multipart upload limits": 5 MiB, save for the last one.
const LEAST_PART_BYTES: usize = 5 << 20;
/// Parts after which the size of a part doubles. Stores take 10,000 parts (S3): from 5 MiB on, that makes 5.3 TB.
const PARTS_OF_A_SIZE: u64 = 1000;
/// Times that an object of one part is put, where the network breaks between, with pauses of 0.1, 0.2, 0.4 s. Parts are tried again by the
/// client, but a put that must not replace anything is not: the first one may have arrived.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How long an upload that has failed waits for parts in flight, so that none arrives after it was aborted.
const ABORT_WAIT: Duration = Duration::from_secs(10);

/// How an [`Upload`] goes about its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadOptions {
    part_bytes: usize,
    parts_in_flight: usize,
    existing: Existing,
}

impl Default for UploadOptions {
    /// Parts of 8 MiB, 4 in flight, nothing overwritten.
    fn default() -> Self {
        Self {
            part_bytes: 8 << 20,
            parts_in_flight: 4,
            existing: Existing::Keep,
        }
    }
}

impl UploadOptions {
    /// Bytes of a part, 8 MiB unless set, at least 5 MiB. They double after every 1,000 parts, since a store takes 10,000: a file of 8 GiB
    /// has parts of one size, one of 5 TB parts of up to 4 GiB. Set more where files are larger and memory allows.
    #[must_use]
    pub fn with_part_bytes(mut self, part_bytes: usize) -> Self {
        self.part_bytes = part_bytes.max(LEAST_PART_BYTES);
        self
    }

    /// Parts that are sent at the same time, 4 unless set, at least 1.
    #[must_use]
    pub fn with_parts_in_flight(mut self, parts_in_flight: usize) -> Self {
        self.parts_in_flight = parts_in_flight.max(1);
        self
    }

    /// What to do where an object has the name already: [`Existing::Keep`] unless set.
    #[must_use]
    pub fn with_existing(mut self, existing: Existing) -> Self {
        self.existing = existing;
        self
    }

    /// Bytes of part `number`, from 0.
    fn bytes_of_part(self, number: u64) -> usize {
        self.part_bytes
            .saturating_mul(1 << (number / PARTS_OF_A_SIZE).min(20))
    }
}

/// An object that is being written, and appears whole with [`finish`](Self::finish) or not at all.
///
/// What is written gathers in a part; whole parts are sent by a background thread, several at a time, while writing goes on; writing waits
/// where sending cannot keep up. An object of less than one part is put in one request. Holds one part more than there are in flight:
/// 40 MiB unless set otherwise. Requests that fail for a passing reason are tried again.
///
/// Dropped unfinished, or after an error, the upload is aborted and its parts are removed; this waits for parts in flight, up to 10
/// seconds. Only a process that is killed leaves parts, invisible and without a name: have the bucket's lifecycle rules remove
/// incomplete uploads.
///
/// Nothing is overwritten under [`Existing::Keep`]: for objects of one part the store guarantees that; for larger ones, stores have no
/// conditional completion, so it is checked before the first part and again before completion, which leaves a moment in which another writer's
/// object would be replaced. Give each writer a name of its own, as builds do.
///
/// # Examples
///
/// ```
/// use std::io::Write;
/// use std::sync::Arc;
///
/// use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
/// use prep_formats::store::{Upload, UploadOptions, block_on};
///
/// let store = Arc::new(InMemory::new());
/// let mut upload = Upload::new(store.clone(), Path::from("a/b"), "memory:a/b", UploadOptions::default());
/// upload.write_all(b"text")?;
/// assert!(block_on(store.head(&Path::from("a/b"))).is_err());
/// upload.finish()?;
/// assert_eq!(block_on(store.head(&Path::from("a/b")))?.size, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Upload {
    target: Target,
    options: UploadOptions,
    /// The part that is being gathered, and its size when full.
    part: Vec<u8>,
    part_bytes: usize,
    num_parts: u64,
    transfer: Option<Transfer>,
    failed: bool,
}

/// Where an upload goes.
#[derive(Debug, Clone)]
struct Target {
    store: Arc<dyn ObjectStore>,
    path: ObjectPath,
    /// For messages.
    name: String,
}

impl Upload {
    /// Prepares an upload to `path` in `store`; sends nothing yet. `name` is for error messages, such as the object's URL.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        path: ObjectPath,
        name: impl Into<String>,
        options: UploadOptions,
    ) -> Self {
        Self {
            target: Target {
                store,
                path,
                name: name.into(),
            },
            options,
            part: Vec::new(),
            part_bytes: options.bytes_of_part(0),
            num_parts: 0,
            transfer: None,
            failed: false,
        }
    }

    /// The name given for messages.
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// Sends what is left, waits for all parts, and makes the object visible.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] for what the store refuses, with kind [`io::ErrorKind::AlreadyExists`] for a name that is taken under
    /// [`Existing::Keep`]. The object is not visible then, except where the answer to the last request was lost.
    pub fn finish(mut self) -> Result<()> {
        let result = self.try_finish();
        result.map_err(|source| Error::Io {
            path: self.target.name.clone(),
            action: "upload",
            source,
        })
    }

    fn try_finish(&mut self) -> io::Result<()> {
        self.check()?;
        if self.transfer.is_none() {
            let bytes = std::mem::take(&mut self.part).into();
            return block_on(put_whole(&self.target, bytes, self.options.existing)).map_err(io_error);
        }
        if !self.part.is_empty() {
            self.send_part()?;
        }
        let result = match self.transfer.take() {
            Some(transfer) => transfer.complete(),
            None => Ok(()),
        };
        self.failed |= result.is_err();
        result
    }

    fn check(&self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier part failed, the upload was aborted"));
        }
        Ok(())
    }

    /// Hands the part to the background thread, and waits while too many are in flight.
    fn send_part(&mut self) -> io::Result<()> {
        self.num_parts += 1;
        self.part_bytes = self.options.bytes_of_part(self.num_parts);
        let part = std::mem::take(&mut self.part).into();
        let sent = match &mut self.transfer {
            Some(transfer) => transfer.send(part),
            none => Transfer::start(self.target.clone(), self.options)
                .and_then(|transfer| none.insert(transfer).send(part)),
        };
        if sent.is_err() {
            self.failed = true;
            self.transfer = None;
        }
        sent
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        if self.num_parts > 0 && self.part.is_empty() {
            // The object is a large one, and this part will be full.
            let reserved = self.part.try_reserve_exact(self.part_bytes);
            reserved.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        }
        let count = bytes.len().min(self.part_bytes - self.part.len());
        self.part.extend_from_slice(&bytes[..count]);
        if self.part.len() == self.part_bytes {
            self.send_part()?;
        }
        Ok(count)
    }

    /// Sends nothing, as parts have a least size; tells of a part that has failed.
    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        let failure = self.transfer.as_ref().and_then(Transfer::failure);
        match failure {
            Some(error) => {
                self.failed = true;
                self.transfer = None;
                Err(error)
            }
            None => Ok(()),
        }
    }
}

/// A multipart upload, and the thread that sends its parts. Dropped, the upload is aborted.
struct Transfer {
    commands: Option<UnboundedSender<Command>>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
    parts_in_flight: usize,
    /// The process that has the thread: it does not survive a fork.
    process: u32,
}

enum Command {
    Part(Bytes),
    Complete,
}

/// What the two threads tell each other.
#[derive(Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    in_flight: usize,
    failure: Option<io::Error>,
    /// The thread has ended: with success, unless there is or was a failure.
    ended: bool,
}

impl Progress {
    /// No code panics while it holds the lock, so a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("parts_in_flight", &self.parts_in_flight)
            .finish_non_exhaustive()
    }
}

impl Transfer {
    fn start(target: Target, options: UploadOptions) -> io::Result<Self> {
        let (commands, receiver) = unbounded_channel();
        let progress = Arc::new(Progress::default());
        let thread = std::thread::Builder::new().name("prep-upload".into()).spawn({
            let progress = Arc::clone(&progress);
            move || {
                // Tells of the end whatever ends the thread: a panic, too, must not leave the writer waiting.
                struct Ended(Arc<Progress>);
                impl Drop for Ended {
                    fn drop(&mut self) {
                        let panicked = std::thread::panicking();
                        self.0.update(|state| {
                            state.ended = true;
                            if panicked {
                                state.failure = Some(io::Error::other("the uploading thread panicked"));
                            }
                        });
                    }
                }
                let ended = Ended(progress);
                let result = block_on(transfer(&target, options.existing, receiver, &ended.0));
                if let Err(error) = result {
                    ended.0.update(|state| state.failure = Some(io_error(error)));
                }
            }
        })?;
        Ok(Self {
            commands: Some(commands),
            progress,
            thread: Some(thread),
            parts_in_flight: options.parts_in_flight,
            process: std::process::id(),
        })
    }

    fn failure(&self) -> Option<io::Error> {
        self.progress.lock().failure.take()
    }

    /// Fails in a child process, where the thread is not, and its lock may be held for good.
    fn check_process(&self) -> io::Result<()> {
        if self.process != std::process::id() {
            return Err(io::Error::other(
                "the process was forked during an upload: the thread that sends its parts stayed behind",
            ));
        }
        Ok(())
    }

    fn send(&mut self, part: Bytes) -> io::Result<()> {
        self.check_process()?;
        let mut state = self.progress.lock();
        while state.in_flight >= self.parts_in_flight && state.failure.is_none() && !state.ended {
            state = self.progress.wait(state);
        }
        if let Some(error) = state.failure.take() {
            return Err(error);
        }
        state.in_flight += 1;
        drop(state);
        let sent = self
            .commands
            .as_ref()
            .is_some_and(|commands| commands.send(Command::Part(part)).is_ok());
        if sent {
            return Ok(());
        }
        // The thread is at its end, and has or will have said why.
        self.wait_for_end()?;
        Err(io::Error::other("the upload ended early"))
    }

    /// Makes the object visible after all parts have arrived.
    fn complete(mut self) -> io::Result<()> {
        self.check_process()?;
        if let Some(commands) = self.commands.take() {
            // Fails where the thread has ended with an error, which is waited for below.
            let _ = commands.send(Command::Complete);
        }
        self.wait_for_end()
    }

    fn wait_for_end(&self) -> io::Result<()> {
        let mut state = self.progress.lock();
        while !state.ended {
            state = self.progress.wait(state);
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The upload is the parent's.
            std::mem::forget(self.thread.take());
            std::mem::forget(self.commands.take());
            return;
        }
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been told of.
            let _ = thread.join();
        }
    }
}

/// Sends parts as they come, several at a time, up to the command to complete; without that it aborts.
async fn transfer(
    target: &Target,
    existing: Existing,
    mut commands: UnboundedReceiver<Command>,
    progress: &Progress,
) -> object_store::Result<()> {
    check_absent(target, existing).await?;
    let mut upload = target.store.put_multipart(&target.path).await?;
    let mut parts = JoinSet::new();
    let result = send_all(
        &mut *upload,
        target,
        existing,
        &mut commands,
        &mut parts,
        progress,
    )
    .await;
    if !matches!(result, Ok(End::Completed)) {
        // A part that arrives after the abort would stay: let those in flight end.
        let _ = tokio::time::timeout(ABORT_WAIT, async { while parts.join_next().await.is_some() {} }).await;
        parts.shutdown().await;
        // The first error is the one to tell of.
        let _ = upload.abort().await;
    }
    result.map(drop)
}

/// How an upload without an error ends.
enum End {
    Completed,
    /// The writer was dropped.
    Abandoned,
}

async fn send_all(
    upload: &mut dyn MultipartUpload,
    target: &Target,
    existing: Existing,
    commands: &mut UnboundedReceiver<Command>,
    parts: &mut JoinSet<object_store::Result<()>>,
    progress: &Progress,
) -> object_store::Result<End> {
    enum Event {
        Command(Option<Command>),
        Sent(object_store::Result<()>),
    }
    let mut is_complete = false;
    while !(is_complete && parts.is_empty()) {
        let event = poll_fn(|context| {
            if let Poll::Ready(Some(sent)) = parts.poll_join_next(context) {
                return Poll::Ready(Event::Sent(flatten(sent)));
            }
            if is_complete {
                return Poll::Pending;
            }
            commands.poll_recv(context).map(Event::Command)
        })
        .await;
        match event {
            Event::Command(Some(Command::Part(part))) => {
                parts.spawn(upload.put_part(part.into()));
            }
            Event::Command(Some(Command::Complete)) => is_complete = true,
            Event::Command(None) => return Ok(End::Abandoned),
            Event::Sent(sent) => {
                sent?;
                progress.update(|state| state.in_flight -= 1);
            }
        }
    }
    check_absent(target, existing).await?;
    upload.complete().await?;
    Ok(End::Completed)
}

fn flatten(
    sent: std::result::Result<object_store::Result<()>, tokio::task::JoinError>,
) -> object_store::Result<()> {
    sent.unwrap_or_else(|source| Err(object_store::Error::JoinError { source }))
}

/// Puts an object in one request.
async fn put_whole(target: &Target, bytes: Bytes, existing: Existing) -> object_store::Result<()> {
    let mode = match existing {
        Existing::Keep => PutMode::Create,
        Existing::Replace => PutMode::Overwrite,
    };
    let put = async |mode: &PutMode| {
        let options = PutOptions::from(mode.clone());
        let payload = bytes.clone().into();
        target.store.put_opts(&target.path, payload, options).await
    };
    let mut tries = 1;
    let mut result = put(&mode).await;
    while let Err(error @ object_store::Error::Generic { .. }) = &result
        && client::is_of_network(error)
        && !client::is_unreachable(error)
        && tries < TRIES
    {
        tokio::time::sleep(FIRST_PAUSE * (1 << (tries - 1))).await;
        tries += 1;
        result = put(&mode).await;
    }
    match result {
        // It was ours.
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })
            if tries > 1 && holds(target, &bytes).await =>
        {
            Ok(())
        }
        // A store without conditional requests.
        Err(object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. })
            if existing == Existing::Keep =>
        {
            check_absent(target, existing).await?;
            put(&PutMode::Overwrite).await.map(drop)
        }
        other => other.map(drop),
    }
}

/// Whether an object is there and has these bytes.
async fn holds(target: &Target, bytes: &Bytes) -> bool {
    match target.store.get(&target.path).await {
        Ok(found) => found.bytes().await.is_ok_and(|found| found == *bytes),
        Err(_) => false,
    }
}

/// Fails where something is that has to be kept.
async fn check_absent(target: &Target, existing: Existing) -> object_store::Result<()> {
    if existing == Existing::Replace {
        return Ok(());
    }
    match target.store.head(&target.path).await {
        Ok(_) => Err(object_store::Error::AlreadyExists {
            path: target.path.to_string(),
            source: "an object of this name was found".into(),
        }),
        Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn io_error(error: object_store::Error) -> io::Error {
    match error {
        object_store::Error::AlreadyExists { .. } => io::Error::new(io::ErrorKind::AlreadyExists, error),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array_record::{Reader, Scratch, WriteOptions, Writer};
    use crate::store::MemoryFile;
    use futures_core::stream::BoxStream;
    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;
    use object_store::{
        CopyOptions, GetOptions, GetResult, ListResult, ObjectMeta, PutMultipartOptions, PutPayload,
        PutResult, UploadPart,
    };
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    type StoreResult<T> = object_store::Result<T>;

    /// Which request fails.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fault {
        None,
        Head,
        Start,
        Part(usize),
        PanicInPart(usize),
        Complete,
        PutWhole,
        NoConditions,
    }

    /// A store that counts requests, and fails one.
    #[derive(Debug)]
    struct Counting<S> {
        store: S,
        fault: Fault,
        counts: Arc<Counts>,
    }

    #[derive(Debug, Default)]
    struct Counts {
        parts: AtomicUsize,
        in_flight: AtomicUsize,
        most_in_flight: AtomicUsize,
        completed: AtomicUsize,
        aborted: AtomicUsize,
        /// Set when a part arrives after the abort.
        late: AtomicUsize,
    }

    fn fault() -> object_store::Error {
        object_store::Error::Generic {
            store: "test",
            source: "connection reset".into(),
        }
    }

    impl<S> fmt::Display for Counting<S> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("counting")
        }
    }

    #[async_trait::async_trait]
    impl<S: ObjectStore> ObjectStore for Counting<S> {
        async fn put_opts(
            &self,
            path: &ObjectPath,
            payload: PutPayload,
            options: PutOptions,
        ) -> StoreResult<PutResult> {
            match self.fault {
                Fault::PutWhole => Err(fault()),
                Fault::NoConditions if options.mode != PutMode::Overwrite => {
                    Err(object_store::Error::NotImplemented {
                        operation: "conditional put".into(),
                        implementer: "test".into(),
                    })
                }
                _ => self.store.put_opts(path, payload, options).await,
            }
        }
        async fn put_multipart_opts(
            &self,
            path: &ObjectPath,
            options: PutMultipartOptions,
        ) -> StoreResult<Box<dyn MultipartUpload>> {
            if self.fault == Fault::Start {
                return Err(fault());
            }
            Ok(Box::new(CountingUpload {
                upload: self.store.put_multipart_opts(path, options).await?,
                fault: self.fault,
                counts: Arc::clone(&self.counts),
            }))
        }
        async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> StoreResult<GetResult> {
            if self.fault == Fault::Head {
                return Err(fault());
            }
            self.store.get_opts(path, options).await
        }
        fn delete_stream(
            &self,
            paths: BoxStream<'static, StoreResult<ObjectPath>>,
        ) -> BoxStream<'static, StoreResult<ObjectPath>> {
            self.store.delete_stream(paths)
        }
        fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
            self.store.list(prefix)
        }
        async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> StoreResult<ListResult> {
            self.store.list_with_delimiter(prefix).await
        }
        async fn copy_opts(
            &self,
            from: &ObjectPath,
            to: &ObjectPath,
            options: CopyOptions,
        ) -> StoreResult<()> {
            self.store.copy_opts(from, to, options).await
        }
    }

    #[derive(Debug)]
    struct CountingUpload {
        upload: Box<dyn MultipartUpload>,
        fault: Fault,
        counts: Arc<Counts>,
    }

    #[async_trait::async_trait]
    impl MultipartUpload for CountingUpload {
        fn put_part(&mut self, data: PutPayload) -> UploadPart {
            let number = self.counts.parts.fetch_add(1, SeqCst);
            let part = self.upload.put_part(data);
            let (counts, fails) = (Arc::clone(&self.counts), self.fault);
            Box::pin(async move {
                let now = counts.in_flight.fetch_add(1, SeqCst) + 1;
                counts.most_in_flight.fetch_max(now, SeqCst);
                // Others get a turn, so that several are in flight.
                tokio::task::yield_now().await;
                let result = part.await;
                counts.in_flight.fetch_sub(1, SeqCst);
                counts.late.fetch_add(counts.aborted.load(SeqCst), SeqCst);
                if fails == Fault::Part(number) {
                    return Err(fault());
                }
                assert!(fails != Fault::PanicInPart(number), "a test asked for it");
                result
            })
        }
        async fn complete(&mut self) -> StoreResult<PutResult> {
            if self.fault == Fault::Complete {
                return Err(fault());
            }
            self.counts.completed.fetch_add(1, SeqCst);
            self.upload.complete().await
        }
        async fn abort(&mut self) -> StoreResult<()> {
            self.counts.aborted.fetch_add(1, SeqCst);
            self.upload.abort().await
        }
    }

    fn counting<S: ObjectStore>(store: S, fault: Fault) -> (Arc<Counting<S>>, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        let store = Counting {
            store,
            fault,
            counts: Arc::clone(&counts),
        };
        (Arc::new(store), counts)
    }

    /// Parts of 100 bytes, as no store would take them.
    fn small_parts(existing: Existing) -> UploadOptions {
        UploadOptions {
            part_bytes: 100,
            parts_in_flight: 3,
            existing,
        }
    }

    fn upload<S: ObjectStore>(store: &Arc<Counting<S>>, existing: Existing) -> Upload {
        Upload::new(
            store.clone(),
            ObjectPath::from("a/b"),
            "test:a/b",
            small_parts(existing),
        )
    }

    fn bytes_of(store: &dyn ObjectStore) -> Option<Vec<u8>> {
        block_on(async {
            let found = store.get(&ObjectPath::from("a/b")).await.ok()?;
            Some(found.bytes().await.unwrap().to_vec())
        })
    }

    fn kind(error: &Error) -> io::ErrorKind {
        match error {
            Error::Io { source, .. } => source.kind(),
            other => panic!("not an I/O error: {other}"),
        }
    }

    #[test]
    fn what_is_written_arrives_in_parts_of_one_size() {
        let folder = tempfile::tempdir().unwrap();
        for length in [0, 1, 99, 100, 101, 250, 1000, 1234] {
            let data: Vec<u8> = (0..length).map(|i| i as u8).collect();
            for step in [1, 70, 2000] {
                fn check<S: ObjectStore>(store: S, data: &[u8], step: usize) {
                    let (store, counts) = counting(store, Fault::None);
                    let mut upload = upload(&store, Existing::Keep);
                    for piece in data.chunks(step) {
                        upload.write_all(piece).unwrap();
                        upload.flush().unwrap();
                        assert_eq!(bytes_of(&store.store), None);
                    }
                    upload.finish().unwrap();
                    assert_eq!(bytes_of(&store.store).unwrap(), data);
                    let parts = if data.len() < 100 {
                        0
                    } else {
                        data.len().div_ceil(100)
                    };
                    assert_eq!(counts.parts.load(SeqCst), parts);
                    assert_eq!(counts.completed.load(SeqCst), usize::from(parts > 0));
                    assert_eq!(counts.aborted.load(SeqCst), 0);
                    assert!(counts.most_in_flight.load(SeqCst) <= 3);
                }
                check(InMemory::new(), &data, step);
                let folder = folder.path().join(format!("{length}-{step}"));
                std::fs::create_dir(&folder).unwrap();
                check(LocalFileSystem::new_with_prefix(&folder).unwrap(), &data, step);
            }
        }
    }

    #[test]
    fn any_part_that_fails_aborts_the_upload_and_nothing_is_visible() {
        for number in 0..10 {
            for fault in [Fault::Part(number), Fault::PanicInPart(number)] {
                let (store, counts) = counting(InMemory::new(), fault);
                let mut upload = upload(&store, Existing::Keep);
                let written = upload.write_all(&[7; 950]);
                let error = match written {
                    Err(error) => {
                        // From then on everything fails.
                        assert!(upload.write_all(&[7; 100]).is_err());
                        assert!(upload.flush().is_err());
                        assert!(upload.finish().is_err());
                        error
                    }
                    Ok(()) => match upload.finish().unwrap_err() {
                        Error::Io { source, .. } => source,
                        other => panic!("{other}"),
                    },
                };
                let expected = match fault {
                    Fault::Part(_) => "connection reset",
                    _ => "panicked",
                };
                assert!(error.to_string().contains(expected), "{error}");
                assert_eq!(bytes_of(&store.store), None);
                assert_eq!(counts.aborted.load(SeqCst), 1, "{fault:?}");
                assert_eq!(counts.completed.load(SeqCst), 0);
                assert_eq!(counts.late.load(SeqCst), 0);
            }
        }
    }

    #[test]
    fn other_requests_that_fail_leave_nothing_either() {
        for (fault, length, aborted) in [
            (Fault::Head, 950, 0),
            (Fault::Start, 950, 0),
            (Fault::Complete, 950, 1),
            (Fault::PutWhole, 50, 0),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
            let (store, counts) = counting(local, fault);
            let mut upload = upload(&store, Existing::Keep);
            let written = upload.write_all(&vec![7; length]);
            let finished = upload.finish();
            let error = finished.unwrap_err();
            assert!(written.is_ok() || fault != Fault::Complete);
            assert!(error.to_string().contains("test:a/b"), "{error}");
            assert_eq!(counts.aborted.load(SeqCst), aborted, "{fault:?}");
            assert_eq!(bytes_of(&store.store), None);
            let left = walk(folder.path());
            assert!(left.is_empty(), "{fault:?} left {left:?}");
        }
    }

    /// All files below a folder.
    fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        entries
            .flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] })
            .collect()
    }

    #[test]
    fn a_dropped_upload_is_aborted() {
        for length in [0, 50, 100, 1000] {
            let folder = tempfile::tempdir().unwrap();
            let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
            let (store, counts) = counting(local, Fault::None);
            let mut upload = upload(&store, Existing::Replace);
            upload.write_all(&vec![1; length]).unwrap();
            drop(upload);
            assert_eq!(counts.aborted.load(SeqCst), usize::from(length >= 100));
            assert_eq!(counts.completed.load(SeqCst), 0);
            assert!(walk(folder.path()).is_empty());
        }
    }

    #[test]
    fn an_object_stays_unless_it_is_to_be_replaced() {
        for (length, fault) in [(50, Fault::None), (50, Fault::NoConditions), (1000, Fault::None)] {
            let (store, counts) = counting(InMemory::new(), fault);
            let path = ObjectPath::from("a/b");
            // One that is there before, and one that comes meanwhile.
            for late in [false, true] {
                block_on(store.store.delete(&path)).ok();
                let mut upload = upload(&store, Existing::Keep);
                if late && length >= 100 {
                    upload.write_all(&[1; 100]).unwrap();
                    // The first check is made before the first part.
                    while counts.parts.load(SeqCst) == 0 {
                        std::thread::yield_now();
                    }
                }
                block_on(store.store.put(&path, "first".into())).unwrap();
                let written = upload.write_all(&vec![1; length]);
                let error = match written {
                    Ok(()) => kind(&upload.finish().unwrap_err()),
                    Err(error) => error.kind(),
                };
                assert_eq!(error, io::ErrorKind::AlreadyExists);
                assert_eq!(bytes_of(&store.store).unwrap(), b"first");
                counts.parts.store(0, SeqCst);
            }
            let mut upload = upload(&store, Existing::Replace);
            upload.write_all(&vec![1; length]).unwrap();
            upload.finish().unwrap();
            assert_eq!(bytes_of(&store.store).unwrap(), vec![1; length]);
        }
    }

    #[test]
    fn a_child_process_is_told_that_the_thread_stayed_behind() {
        let (store, counts) = counting(InMemory::new(), Fault::None);
        let mut upload = upload(&store, Existing::Replace);
        upload.write_all(&[1; 100]).unwrap();
        let transfer = upload.transfer.as_mut().unwrap();
        let process = std::mem::replace(&mut transfer.process, 0);
        let error = transfer.send(Bytes::from_static(b"part")).unwrap_err();
        assert!(error.to_string().contains("forked"), "{error}");
        // Back in the parent.
        transfer.process = process;
        upload.write_all(&[1; 50]).unwrap();
        upload.finish().unwrap();
        assert_eq!(bytes_of(&store.store).unwrap(), [1; 150]);
        assert_eq!(counts.parts.load(SeqCst), 2);
    }

    #[test]
    fn ten_thousand_parts_hold_five_terabytes() {
        let options = UploadOptions::default().with_part_bytes(0);
        let total: u64 = (0..10_000)
            .map(|number| options.bytes_of_part(number) as u64)
            .sum();
        assert!(total >= 5_000_000_000_000, "{total}");
        assert_eq!(options.bytes_of_part(0), LEAST_PART_BYTES);
        // No part is larger than what S3 takes.
        assert!(options.bytes_of_part(9_999) as u64 <= 5 << 30);
    }

    #[test]
    fn an_array_record_file_is_uploaded_from_inside_a_runtime_too() {
        let write = || {
            let store = Arc::new(InMemory::new());
            let upload = Upload::new(
                store.clone(),
                ObjectPath::from("a/b"),
                "test:a/b",
                UploadOptions {
                    part_bytes: 10_000,
                    ..UploadOptions::default()
                },
            );
            let options = WriteOptions::parse("zstd:1,max_parallelism:2").unwrap();
            let mut writer = Writer::new(upload, options).unwrap();
            for i in 0..2000u32 {
                writer.write(&i.to_le_bytes().repeat(100)).unwrap();
            }
            writer.finish().unwrap().finish().unwrap();
            let bytes = bytes_of(&*store).unwrap();
            let reader = Reader::from_source(Arc::new(MemoryFile::new("b", bytes))).unwrap();
            assert_eq!(reader.num_records(), 2000);
            let record = reader.record(1999, &mut Scratch::default()).unwrap().to_vec();
            assert_eq!(record, 1999u32.to_le_bytes().repeat(100));
        };
        write();
        let outer = tokio::runtime::Builder::new_current_thread().build().unwrap();
        outer.block_on(async { write() });
    }
}
