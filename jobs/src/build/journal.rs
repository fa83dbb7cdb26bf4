//! What a build has finished so far, so that the same command after a kill goes on from there.
//!
//! The file format is that of [`crate::journal`].

use serde::{Deserialize, Serialize};

use crate::build::shard::ShardSummary;

/// One finished piece of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "snake_case")]
pub(crate) enum Entry {
    /// A source was downloaded; it lies in `downloads`.
    Fetched {
        name: String,
        bytes: u64,
        sha256: String,
    },
    /// What the builder learnt from the sources.
    Learned { text: String },
    /// A shard was written, and is durable.
    Shard(ShardSummary),
    /// All shards of all splits were written from sources with these checksums, in the recipe's order.
    Written(Written),
}

/// What is known when all shards are there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Written {
    /// (name, bytes, SHA-256) of each source.
    pub(crate) sources: Vec<(String, u64, String)>,
    /// Number of shards of each split, or of each source of a split.
    pub(crate) num_shards: Vec<u64>,
    /// Records left out of each split, or of each source of a split.
    pub(crate) skipped: Vec<u64>,
    /// Names of classes that the sources gave: (feature, names).
    pub(crate) class_names: Vec<(String, Vec<String>)>,
}

/// The journal of one process of a build.
pub(crate) type Journal = crate::journal::Journal<Entry>;

/// The file name of a process's journal.
pub(crate) fn file_name(process: usize) -> String {
    match process {
        0 => "journal.jsonl".to_owned(),
        process => format!("journal-{process}.jsonl"),
    }
}
