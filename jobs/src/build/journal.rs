//! What a build has finished so far, so that the same command after a kill goes on from there.
//!
//! One JSON object a line, each synced to disk before the work counts as done. A last line that is torn is ignored.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
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
    /// Number of shards of each split.
    pub(crate) num_shards: Vec<u64>,
    /// Records left out of each split.
    pub(crate) skipped: Vec<u64>,
    /// Names of classes that the sources gave: (feature, names).
    pub(crate) class_names: Vec<(String, Vec<String>)>,
}

/// The journal of one build.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Mutex<File>,
    path: PathBuf,
}

impl Journal {
    /// Opens the journal at a path, made if it is not there, and gives what it holds.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<Entry>)> {
        let shown = path.display();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("could not open {shown}"))?;
        let (entries, whole) = read(&file).with_context(|| format!("could not read {shown}"))?;
        file.set_len(whole)
            .and_then(|()| file.seek(std::io::SeekFrom::Start(whole)))
            .with_context(|| format!("could not write {shown}"))?;
        let journal = Self {
            file: Mutex::new(file),
            path: path.to_owned(),
        };
        Ok((journal, entries))
    }

    /// What the journals of other processes than the first hold, in a folder; nothing is changed.
    pub(crate) fn read_others(folder: &Path) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for path in others(folder)? {
            let shown = path.display();
            let file = File::open(&path).with_context(|| format!("could not open {shown}"))?;
            entries.extend(read(&file).with_context(|| format!("could not read {shown}"))?.0);
        }
        Ok(entries)
    }

    /// Notes a finished piece of work; returns once that is durable.
    pub(crate) fn add(&self, entry: &Entry) -> Result<()> {
        let mut line = serde_json::to_vec(entry).context("could not write a journal entry")?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line)
            .and_then(|()| file.sync_data())
            .with_context(|| format!("could not write {}", self.path.display()))
    }
}

/// The file name of a process's journal.
pub(crate) fn file_name(process: usize) -> String {
    match process {
        0 => "journal.jsonl".to_owned(),
        process => format!("journal-{process}.jsonl"),
    }
}

/// The journals in a folder of other processes than the first, in order.
pub(crate) fn others(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))? {
        let entry = entry.with_context(|| format!("could not list {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("journal-") && name.ends_with(".jsonl") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The whole lines of a journal, and how many bytes they are.
fn read(file: &File) -> std::io::Result<(Vec<Entry>, u64)> {
    let mut entries = Vec::new();
    let mut whole = 0;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line)?;
        match serde_json::from_slice(&line) {
            Ok(entry) if line.ends_with(b"\n") => {
                entries.push(entry);
                whole += count as u64;
            }
            // The end, or a line that a kill cut off.
            _ => return Ok((entries, whole)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(name: &str) -> Entry {
        Entry::Fetched {
            name: name.to_owned(),
            bytes: 7,
            sha256: "00".to_owned(),
        }
    }

    #[test]
    fn entries_come_back_and_a_torn_line_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (journal, entries) = Journal::open(&path).unwrap();
        assert!(entries.is_empty());
        journal.add(&fetched("a")).unwrap();
        journal.add(&fetched("b")).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let (journal, entries) = Journal::open(&path).unwrap();
            let wanted: &[Entry] = match length {
                n if n < first => &[],
                n if n < whole.len() => &[fetched("a")],
                _ => &[fetched("a"), fetched("b")],
            };
            assert_eq!(entries, wanted, "{length}");
            // What follows a torn line is not glued to it.
            journal.add(&fetched("c")).unwrap();
            let (_, entries) = Journal::open(&path).unwrap();
            assert_eq!(entries.last(), Some(&fetched("c")));
            assert_eq!(entries.len(), wanted.len() + 1);
        }
    }
}
