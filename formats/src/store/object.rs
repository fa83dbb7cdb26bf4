//! Object stores, and waiting for them from code that is not async.

use std::future::Future;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;

use crate::store::Location;
use crate::{Error, Result};

/// The store that holds `location`, and the path in it.
///
/// Local folders need not exist: putting creates them, listing finds nothing. `PutMode::Create` is put-if-absent.
///
/// # Errors
///
/// [`Error::Unsupported`] for URLs of other machines, [`Error::Invalid`] for a path that an object store cannot name.
pub fn object_store(location: &Location) -> Result<(Arc<dyn ObjectStore>, ObjectPath)> {
    let path = location.local_path()?;
    let absolute = std::path::absolute(path).map_err(Error::io(path, "resolve"))?;
    let object_path = ObjectPath::from_absolute_path(&absolute)
        .map_err(|error| Error::Invalid(format!("`{location}` cannot be used as a store: {error}")))?;
    Ok((Arc::new(LocalFileSystem::new().with_fsync(true)), object_path))
}

/// One runtime of one process; never freed, as a process has one (a forked child leaves its parent's alone).
struct Slot {
    process: u32,
    runtime: tokio::runtime::Runtime,
}

static SLOT: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

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
        .enable_time()
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
    fn other_machines_are_not_supported_yet() {
        let location = Location::parse("s3://bucket/catalog").unwrap();
        assert!(matches!(object_store(&location), Err(Error::Unsupported { .. })));
    }
}
