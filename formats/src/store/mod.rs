//! Files and object stores behind one interface: positioned blocking reads, atomic writes and uploads.
//!
//! | to | use |
//! |---|---|
//! | name a file or folder, local or remote | [`Location`] |
//! | read a file at any offset from many threads | [`open`], [`ReadAt`] |
//! | keep on disk what was read from a store, for all processes of a host | [`Cache`] |
//! | write a file or object that appears whole or not at all | [`Output`], [`Upload`], [`AtomicFile`] |
//! | find what killed writers have left | [`unfinished`] |
//! | put a finished folder in its place, or swap it with the old one | [`publish_folder`], [`rename_exchange`] |
//! | keep two processes off the same folder | [`FileLock`] |
//! | read, list or delete small files, wherever they are; have a store copy one | [`read_file`], [`list_files`], [`remove_file`], [`copy_file`] |
//! | talk to a catalog's object store, and wait for it | [`object_store()`], [`block_on`] |

mod atomic;
mod cache;
mod client;
mod location;
mod lock;
mod object;
mod object_file;
mod output;
mod read_at;
mod upload;

pub use atomic::{
    AtomicFile, Existing, publish_folder, rename_exchange, rename_without_replacing, sync_folder,
};
pub use cache::{Cache, CacheCounts};
pub use client::{retries, tried_again};
pub use location::Location;
pub use lock::FileLock;
pub use object::{
    ListedFile, block_on, copy_file, has_objects, list_files, list_objects, object_identity, object_store,
    read_file, remove_file, size_of_file,
};
pub use object_file::ObjectFile;
pub use output::{Output, unfinished};
pub use read_at::{MappedFile, MemoryFile, Part, PositionedFile, ReadAt, open, open_lazy};
pub use upload::{Upload, UploadOptions};
