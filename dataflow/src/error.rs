//! What can end a job, with its cause.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::Key;

/// The error of a closure that a user gave to the job. `run` hands it back as the source of [`Error::Stage`], where it can
/// be downcast to its own type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a job ended without its result: the first thing that went wrong on any thread.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A closure, reader or writer of a stage returned an error.
    #[error("stage `{stage}` failed")]
    Stage {
        /// Name of the stage, as given when the job was built.
        stage: String,
        /// What the closure returned.
        #[source]
        source: BoxError,
    },
    /// A closure, reader or writer of a stage panicked: a bug in it, or in this crate.
    #[error("stage `{stage}` panicked{}: {message}", on(.input))]
    Panic {
        /// Name of the stage, or `worker` where it isn't known.
        stage: String,
        /// What it worked on, where that is known: see [`working_on`](crate::working_on).
        input: Option<String>,
        /// The panic's message.
        message: String,
    },
    /// Two records of one split have the same key.
    #[error(
        "stage `{stage}`: two records of split {split} have the key {}, origins {} and {}",
        hex(.key), .origins[0], .origins[1]
    )]
    DuplicateKey {
        /// Name of the sorting stage.
        stage: String,
        /// The split's ordinal.
        split: u32,
        /// The key that occurs twice.
        key: Key,
        /// [`Record::origin`](crate::Record::origin) of the two, the smaller first.
        origins: [u64; 2],
    },
    /// A record belongs to a split that the sorting stage wasn't told of.
    #[error("stage `{stage}`: a record has split {split}, but there are {num_splits} splits")]
    SplitOutOfRange {
        /// Name of the sorting stage.
        stage: String,
        /// The record's split.
        split: u32,
        /// How many splits the stage was given.
        num_splits: u32,
    },
    /// The shard boundaries that a plan returned don't fit the records.
    #[error("stage `{stage}`: the plan of split {split} is not usable: {reason}")]
    Plan {
        /// Name of the writing stage.
        stage: String,
        /// The split's ordinal.
        split: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Data that was said to be small isn't.
    #[error(
        "stage `{stage}`: {entries} entries take {bytes} bytes on one worker, and {limit} are allowed; \
         allow more memory, or sort the data and group that"
    )]
    TooLarge {
        /// Name of the stage.
        stage: String,
        /// Entries that one worker holds.
        entries: u64,
        /// What they take, in bytes.
        bytes: u64,
        /// What they may take.
        limit: u64,
    },
    /// An item did not come through to another process: its type's serde form is not one that bincode can carry.
    #[error(
        "stage `{stage}`: an item did not get from one process to another: {reason}; items travel in bincode, whose readers know a type's \
         fields beforehand, so the serde attributes `skip_serializing_if`, `flatten`, `untagged` and `tag` cannot be used in them"
    )]
    Untransportable {
        /// Name of the stage that should have got it; `Collect` and `Exchange` have no other.
        stage: String,
        /// What bincode says.
        reason: String,
    },
    /// Sorted records could not be put aside on disk.
    #[error("could not write {needed_bytes} more bytes of sorted records to the spill folder `{}`{}; \
             free some space there, name another folder, or allow more memory", .folder.display(), free(.free_bytes))]
    SpillWrite {
        /// The folder that was meant to take them.
        folder: PathBuf,
        /// Bytes this run of records still needed.
        needed_bytes: u64,
        /// Bytes that are free on its disk, where the system says.
        free_bytes: Option<u64>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Records put aside on disk could not be read again.
    #[error("could not read sorted records back from the spill folder `{}`", .folder.display())]
    SpillRead {
        /// The folder that holds them.
        folder: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Records put aside on disk came back changed: the disk is faulty.
    #[error(
        "sorted records in the spill folder `{}` came back damaged at byte {offset}: \
         checksum is {computed:#018x}, written {stored:#018x}",
        .folder.display()
    )]
    SpillDamaged {
        /// The folder that holds them.
        folder: PathBuf,
        /// Where the damaged block starts in its file.
        offset: u64,
        /// CRC-64/NVME when the block was written.
        stored: u64,
        /// CRC-64/NVME of the bytes read.
        computed: u64,
    },
    /// [`Cancel::cancel`](crate::Cancel::cancel) was called.
    #[error("the job was cancelled")]
    Cancelled,
    /// Nothing moved for longer than [`Options::stall`](crate::Options::stall) allows.
    #[error("the job made no progress for {0:?}")]
    Stalled(Duration),
    /// The processes of a cluster did not meet, or do not fit together. The text names them.
    #[error("{0}")]
    Cluster(String),
    /// Another process of the cluster was lost: it was killed, its machine or the network between is gone.
    #[error("process {process} ({address}) was lost: {reason}")]
    Lost {
        /// Which one, from 0.
        process: usize,
        /// Its host, as given to the cluster.
        address: String,
        /// How that showed.
        reason: String,
    },
    /// The job failed in another process of the cluster.
    #[error("process {process} ({address}) failed: {cause}")]
    Remote {
        /// Which one, from 0.
        process: usize,
        /// Its host, as given to the cluster.
        address: String,
        /// What it says, with all causes.
        cause: String,
    },
    /// The worker threads could not be started.
    #[error("could not start the workers: {0}")]
    Start(String),
}

impl Error {
    /// Wraps what a stage's closure returned.
    pub(crate) fn stage(stage: &str, source: impl Into<BoxError>) -> Self {
        Self::Stage {
            stage: stage.to_owned(),
            source: source.into(),
        }
    }
}

fn free(bytes: &Option<u64>) -> String {
    bytes.map_or(String::new(), |bytes| format!(", where {bytes} are free"))
}

fn on(input: &Option<String>) -> String {
    input
        .as_ref()
        .map_or(String::new(), |input| format!(" on {input}"))
}

fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}
