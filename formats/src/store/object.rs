//! Object stores, and waiting for them from code that is not async.

use std::collections::HashMap;
use std::future::Future;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use url::Url;

use crate::store::Location;
use crate::store::client::Connector;
use crate::{Error, Position, Result};

/// Stores of other machines that this process uses, by scheme and host: they share connections.
struct Stores {
    process: u32,
    by_host: HashMap<String, Arc<dyn ObjectStore>>,
}

static STORES: Mutex<Option<Stores>> = Mutex::new(None);

/// The store that holds `location`, and the path in it.
///
/// Local folders need not exist: putting creates them, listing finds nothing. `PutMode::Create` is put-if-absent.
///
/// | URL | store | credentials and endpoint |
/// |---|---|---|
/// | `s3://BUCKET/KEY`, `s3a://` | Amazon S3 and what speaks its protocol | `AWS_*` variables, such as `AWS_ENDPOINT_URL`; instance metadata |
/// | `gs://BUCKET/KEY` | Google Cloud Storage | `GOOGLE_*` variables, application default credentials |
/// | `az://CONTAINER/KEY`, `abfs://`, `abfss://` | Azure Blob Storage | `AZURE_*` variables |
/// | `http://HOST/PATH`, `https://` | a web server (or WebDAV) | none; the URL has no query |
/// | `memory:///PATH` | this process's memory, for tests | |
///
/// Stores of other machines are kept for the life of the process, one a host, and made anew in a process that was forked.
///
/// # Errors
///
/// [`Error::Invalid`] for a path that an object store cannot name and a URL that is none, or for settings in the environment that its
/// store refuses. No request is made.
pub fn object_store(location: &Location) -> Result<(Arc<dyn ObjectStore>, ObjectPath)> {
    let Some(path) = location.as_path() else {
        return remote(&location.to_string());
    };
    let absolute = std::path::absolute(&path).map_err(Error::io(&path, "resolve"))?;
    let object_path = ObjectPath::from_absolute_path(&absolute)
        .map_err(|error| Error::Invalid(format!("`{location}` cannot be used as a store: {error}")))?;
    Ok((Arc::new(LocalFileSystem::new().with_fsync(true)), object_path))
}

fn remote(text: &str) -> Result<(Arc<dyn ObjectStore>, ObjectPath)> {
    let invalid = |reason: String| Error::Invalid(format!("`{text}` cannot be used as a store: {reason}"));
    let url = Url::parse(text).map_err(|error| invalid(error.to_string()))?;
    let unsupported = |reason: &str| Error::Unsupported {
        at: Position {
            path: text.to_string(),
            ..Position::default()
        },
        reason: reason.into(),
    };
    if url.query().is_some() {
        return Err(unsupported(
            "a store's URL has no query (`?...`); download the file, or give it without; in the name of an object write `%3F`",
        ));
    }
    // What is behind it would be left out, and another object meant.
    if url.fragment().is_some() {
        return Err(unsupported(
            "a store's URL has no fragment (`#...`); in the name of an object write `%23`",
        ));
    }
    let path = ObjectPath::from_url_path(url.path()).map_err(|error| invalid(error.to_string()))?;
    if url.scheme() == "memory" {
        static MEMORY: OnceLock<Arc<InMemory>> = OnceLock::new();
        return Ok((MEMORY.get_or_init(Arc::default).clone(), path));
    }
    let host = &url[..url::Position::BeforePath];
    let process = std::process::id();
    // A lock that another thread held while this process was forked stays locked: then the store is not shared.
    let Ok(mut stores) = STORES.try_lock() else {
        return Ok((
            build(&url, host).map_err(|error| invalid(error.to_string()))?,
            path,
        ));
    };
    let stores = match &mut *stores {
        Some(stores) if stores.process == process => stores,
        other => {
            // The parent's connections are not ours to close: its stores are left alone.
            std::mem::forget(other.take());
            other.insert(Stores {
                process,
                by_host: HashMap::new(),
            })
        }
    };
    if let Some(store) = stores.by_host.get(host) {
        return Ok((store.clone(), path));
    }
    let store = build(&url, host).map_err(|error| invalid(error.to_string()))?;
    stores.by_host.insert(host.to_string(), store.clone());
    Ok((store, path))
}

/// Forgets a store whose credentials were refused, so that the next use asks for fresh ones: they may have been taken back, or have expired before they said.
/// `false`: there are none, as for a web server.
pub(super) fn renew(location: &Location, refused: &Arc<dyn ObjectStore>) -> bool {
    let Some(url) = Url::parse(&location.to_string()).ok().filter(|url| {
        let known = ["s3", "s3a", "gs", "az", "abfs", "abfss"];
        known.contains(&url.scheme())
    }) else {
        return false;
    };
    if let Ok(mut stores) = STORES.lock()
        && let Some(stores) = &mut *stores
        && stores.process == std::process::id()
    {
        let host = &url[..url::Position::BeforePath];
        // Another read may have done so meanwhile.
        if stores
            .by_host
            .get(host)
            .is_some_and(|store| Arc::ptr_eq(store, refused))
        {
            stores.by_host.remove(host);
        }
    }
    true
}

/// How clients try again by themselves: on 5xx, 429, timeouts and broken connections, not on 403 or 404; after 0.2 s, and up to twice
/// that each time, by chance. Their own default, three minutes, is longer than anybody waits; 30 s outlast a store that is busy. One that
/// is not there is given up sooner, by [`client`](super::client).
pub(super) fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(10),
            base: 2.0,
        },
        max_retries: 8,
        retry_timeout: Duration::from_secs(30),
    }
}

fn build(url: &Url, host: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    // The TLS of this workspace; another part of the program may have chosen before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let name = url.host_str().unwrap_or_default();
    Ok(match url.scheme() {
        "s3" | "s3a" => Arc::new(
            AmazonS3Builder::from_env()
                .with_bucket_name(name)
                .with_retry(retry())
                .with_http_connector(Connector::default())
                .build()?,
        ),
        "gs" => Arc::new(
            GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(name)
                .with_retry(retry())
                .with_http_connector(Connector::default())
                .build()?,
        ),
        "az" | "abfs" | "abfss" => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str());
            let builder = builder
                .with_retry(retry())
                .with_http_connector(Connector::default());
            Arc::new(builder.build()?)
        }
        _ => Arc::new(
            HttpBuilder::new()
                .with_url(host)
                .with_retry(retry())
                .with_client_options(ClientOptions::new().with_allow_http(url.scheme() == "http"))
                .with_http_connector(Connector::default())
                .build()?,
        ),
    })
}

/// One runtime of one process; never freed, as a process has one (a forked child leaves its parent's alone).
struct Slot {
    process: u32,
    runtime: tokio::runtime::Runtime,
}

static SLOT: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

/// The paths of all objects below a folder of a store, sorted, in the store's own form: without the URL's host.
///
/// # Errors
///
/// As [`object_store()`], and [`Error::Io`] of the store, which may not be able to list (most web servers are not).
pub fn list_objects(folder: &Location) -> Result<Vec<String>> {
    let (store, prefix) = object_store(folder)?;
    let found: Result<Vec<_>, object_store::Error> =
        block_on(async move { store.list(Some(&prefix)).try_collect().await });
    let found = found.map_err(|error| Error::io(folder.to_string(), "list")(std::io::Error::other(error)))?;
    let mut paths: Vec<String> = found.into_iter().map(|meta| meta.location.to_string()).collect();
    paths.sort();
    Ok(paths)
}

/// Whether a store has any object below a folder: asks for the first ones only.
///
/// # Errors
///
/// As [`object_store()`], and [`Error::Io`] of the store: of the kind `NotFound` where there is no such bucket.
pub fn has_objects(folder: &Location) -> Result<bool> {
    let (store, prefix) = object_store(folder)?;
    let first = block_on(async move { store.list(Some(&prefix)).try_next().await });
    match first {
        Ok(found) => Ok(found.is_some()),
        Err(error) => {
            // Of a list, the clients tell a bucket that is not there by the words of the answer only.
            let is_absent = matches!(error, object_store::Error::NotFound { .. })
                || error.to_string().contains("status code: 404");
            let kind = match is_absent {
                true => std::io::ErrorKind::NotFound,
                false => std::io::ErrorKind::Other,
            };
            Err(Error::io(folder.to_string(), "list")(std::io::Error::new(
                kind, error,
            )))
        }
    }
}

/// An object of a store, or a file, as [`list_files`] finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedFile {
    /// Path below the folder that was listed, parts separated by `/`.
    pub relative: String,
    /// Size in bytes.
    pub bytes: u64,
    /// When it was last written, by the clock of the store.
    pub modified: SystemTime,
}

/// All files below a folder, local or of a store, sorted by path; none where there is no such folder. About 100 bytes each in memory; a
/// store is asked once for every 1,000 of them.
///
/// # Errors
///
/// As [`list_objects`].
pub fn list_files(folder: &Location) -> Result<Vec<ListedFile>> {
    let (store, prefix) = object_store(folder)?;
    let found: Result<Vec<_>, object_store::Error> = block_on({
        let prefix = prefix.clone();
        async move { store.list(Some(&prefix)).try_collect().await }
    });
    let found = match found {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => Vec::new(),
        Err(error) => {
            return Err(Error::io(folder.to_string(), "list")(std::io::Error::other(
                error,
            )));
        }
    };
    let mut files: Vec<ListedFile> = found
        .into_iter()
        .filter_map(|meta| {
            let relative = meta.location.prefix_match(&prefix)?;
            let relative: Vec<String> = relative.map(|part| part.as_ref().to_string()).collect();
            Some(ListedFile {
                relative: relative.join("/"),
                bytes: meta.size,
                modified: meta.last_modified.into(),
            })
        })
        .collect();
    files.sort_by(|a, b| a.relative.cmp(&b.relative));
    Ok(files)
}

/// The bytes of a small file or object; `None` if there is none.
///
/// # Errors
///
/// As [`object_store()`], and [`Error::Io`] of the system or the store.
pub fn read_file(location: &Location) -> Result<Option<Bytes>> {
    if let Some(path) = location.as_path() {
        return match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path, "read")(error)),
        };
    }
    let (store, path) = object_store(location)?;
    let read = async move { store.get(&path).await?.bytes().await };
    match block_on(read) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(Error::io(location.to_string(), "read")(std::io::Error::other(
            error,
        ))),
    }
}

/// The size of an object or a file in bytes; `None` if there is none.
///
/// # Errors
///
/// As [`read_file`].
pub fn size_of_file(location: &Location) -> Result<Option<u64>> {
    if let Some(path) = location.as_path() {
        return match std::fs::metadata(&path) {
            Ok(file) => Ok(Some(file.len())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path, "look at")(error)),
        };
    }
    let (store, path) = object_store(location)?;
    match block_on(async move { store.head(&path).await }) {
        Ok(meta) => Ok(Some(meta.size)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(Error::io(location.to_string(), "look at")(std::io::Error::other(
            error,
        ))),
    }
}

/// Deletes a file or object. One that is not there is no error.
///
/// # Errors
///
/// As [`object_store()`], and [`Error::Io`] of the system or the store.
pub fn remove_file(location: &Location) -> Result<()> {
    let (store, path) = object_store(location)?;
    match block_on(async move { store.delete(&path).await }) {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(Error::io(location.to_string(), "delete")(std::io::Error::other(
            error,
        ))),
    }
}

/// The largest object that stores copy by one request.
///
/// Source: Amazon S3, `CopyObject`.
const MOST_COPIED_BYTES: u64 = 5 << 30;

/// Has a store copy an object of this size to another place in it, replacing what is there. `false` where the two are not in one store, the object is over
/// 5 GiB, or the store does not do it: then the caller reads and writes it.
///
/// # Errors
///
/// As [`object_store()`], and [`Error::Io`] of the store where the object is not there.
pub fn copy_file(from: &Location, to: &Location, bytes: u64) -> Result<bool> {
    let host = |location: &Location| {
        let url = Url::parse(&location.to_string()).ok()?;
        Some(url[..url::Position::BeforePath].to_string())
    };
    if bytes > MOST_COPIED_BYTES || host(from).is_none() || host(from) != host(to) {
        return Ok(false);
    }
    let (store, from_path) = object_store(from)?;
    let (_, to_path) = object_store(to)?;
    match block_on(async move { store.copy(&from_path, &to_path).await }) {
        Ok(()) => Ok(true),
        Err(error @ object_store::Error::NotFound { .. }) => {
            Err(Error::io(from.to_string(), "copy")(std::io::Error::other(error)))
        }
        // Whatever it is: if it holds for reading and writing too, these say it better.
        Err(_) => Ok(false),
    }
}

/// A text that changes when the object does: the store's tag and time of change; empty where the store tells neither.
///
/// # Errors
///
/// As [`object_store()`], and [`Error::Io`] of the store.
pub fn object_identity(location: &Location) -> Result<String> {
    let (store, path) = object_store(location)?;
    let meta = block_on(async move { store.head(&path).await })
        .map_err(|error| Error::io(location.to_string(), "look at")(std::io::Error::other(error)))?;
    Ok(format!(
        "{} {}",
        meta.e_tag.unwrap_or_default(),
        meta.last_modified
    ))
}

/// Runs a future to its end, blocking this thread, on the one runtime of this process.
///
/// The runtime starts with the first call, and anew in a process that was forked: threads do not survive a fork, so the parent's
/// cannot be used. Inside another runtime the future is driven by a thread of its own.
///
/// # Panics
///
/// Where the system refuses to start a runtime (out of file descriptors or memory).
pub fn block_on<F>(future: F) -> F::Output
where
    F: Future + Send,
    F::Output: Send,
{
    if tokio::runtime::Handle::try_current().is_ok() {
        return std::thread::scope(|scope| {
            scope
                .spawn(|| slot().runtime.block_on(future))
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
    }
    slot().runtime.block_on(future)
}

fn slot() -> &'static Slot {
    let process = std::process::id();
    let found = SLOT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from `Box::into_raw` below and is never freed. There is no safe twin: a `OnceLock` cannot be
    // reset after a fork, and a lock may have been held by a thread that the fork did not copy. One load per call, not per byte.
    if let Some(slot) = unsafe { found.as_ref() }
        && slot.process == process
    {
        return slot;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("prep-store")
        // Local stores work on threads of their own, which would linger for 10 s; a process that reads keeps none.
        .thread_keep_alive(std::time::Duration::from_millis(100))
        .build()
        .expect("the system starts a runtime");
    let new = Box::into_raw(Box::new(Slot { process, runtime }));
    match SLOT.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `new` came from a box just above and is now shared for good.
        Ok(_) => unsafe { &*new },
        Err(winner) => {
            // SAFETY: `new` was never shared; `winner` was put there by another thread of this process and is never freed.
            unsafe {
                drop(Box::from_raw(new));
                &*winner
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::{ObjectStoreExt, PutMode, PutOptions};

    #[test]
    fn put_if_absent_lets_one_of_many_win() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::from_path(folder.path().join("not yet/there"));
        let (store, path) = object_store(&location).unwrap();
        let path = path.join("log").join("1.json");
        let winners: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let (store, path) = (store.clone(), path.clone());
                    scope.spawn(move || {
                        let options = PutOptions::from(PutMode::Create);
                        block_on(store.put_opts(&path, format!("{thread}").into(), options)).is_ok()
                    })
                })
                .collect();
            threads
                .into_iter()
                .filter(|_| true)
                .map(|t| usize::from(t.join().unwrap()))
                .sum()
        });
        assert_eq!(winners, 1);
        let bytes = block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap() });
        assert_eq!(bytes.len(), 1);
        assert!(location.join("log/1.json").as_path().unwrap().exists());
    }

    #[test]
    fn blocking_inside_another_runtime_works() {
        let outer = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(outer.block_on(async { block_on(async { 7 }) }), 7);
    }

    #[test]
    fn urls_lead_to_stores_without_a_request() {
        for (url, path) in [
            ("s3://bucket/a/b", "a/b"),
            ("gs://bucket/a%20b", "a b"),
            ("http://localhost:1/data/x", "data/x"),
            ("https://host.example/x", "x"),
            ("memory:///x/y", "x/y"),
        ] {
            let location = Location::parse(url).unwrap();
            // Without credentials in the environment some stores build and others say what they miss.
            match object_store(&location) {
                Ok((store, found)) => {
                    assert_eq!(found.as_ref(), path);
                    let again = object_store(&location).unwrap().0;
                    assert!(Arc::ptr_eq(&store, &again), "{url}");
                }
                Err(error) => {
                    assert!(url.starts_with("gs:"), "{error}");
                    assert!(
                        matches!(&error, Error::Invalid(text) if text.contains(url)),
                        "{error}"
                    );
                }
            }
        }
        let location = Location::parse("https://host.example/x?token=1").unwrap();
        assert!(matches!(object_store(&location), Err(Error::Unsupported { .. })));
    }
}
