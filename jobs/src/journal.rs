//! What is finished so far, one JSON object a line, each synced before it counts; and what is not finished, which goes when it is dropped.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The journal of one process.
#[derive(Debug)]
pub(crate) struct Journal<T> {
    file: Mutex<File>,
    path: PathBuf,
    entries: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned> Journal<T> {
    /// Opens a journal, made if it is not there, and gives what it holds. A last line that a kill cut off is dropped.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<T>)> {
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
            entries: PhantomData,
        };
        Ok((journal, entries))
    }

    /// What the journals `journal-PROCESS.jsonl` in a folder hold, by name; nothing is changed.
    pub(crate) fn read_all(folder: &Path) -> Result<Vec<T>> {
        let mut all = Vec::new();
        for path in paths(folder)? {
            let shown = path.display();
            let file = File::open(&path).with_context(|| format!("could not open {shown}"))?;
            all.extend(read(&file).with_context(|| format!("could not read {shown}"))?.0);
        }
        Ok(all)
    }

    /// Notes a finished piece of work; returns once that is durable.
    pub(crate) fn add(&self, entry: &T) -> Result<()> {
        let mut line = serde_json::to_vec(entry).context("could not write a journal entry")?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line)
            .and_then(|()| file.sync_data())
            .with_context(|| format!("could not write {}", self.path.display()))
    }
}

/// The files `journal-PROCESS.jsonl` in a folder, by name.
pub(crate) fn paths(folder: &Path) -> Result<Vec<PathBuf>> {
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
fn read<T: DeserializeOwned>(file: &File) -> std::io::Result<(Vec<T>, u64)> {
    let (mut entries, mut whole) = (Vec::new(), 0);
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

/// Removes a file unless it was finished: half a shard would only take room.
#[derive(Debug)]
pub(crate) struct Unfinished(pub(crate) Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_a_torn_line_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal-0.jsonl");
        let (journal, entries) = Journal::<u64>::open(&path).unwrap();
        assert!(entries.is_empty());
        journal.add(&10).unwrap();
        journal.add(&200).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let (journal, entries) = Journal::<u64>::open(&path).unwrap();
            let wanted: &[u64] = match length {
                0..=2 => &[],
                3..=6 => &[10],
                _ => &[10, 200],
            };
            assert_eq!(entries, wanted, "{length}");
            journal.add(&3).unwrap();
            let (other, _) = Journal::<u64>::open(&folder.path().join("journal-1.jsonl")).unwrap();
            if length == 0 {
                other.add(&4).unwrap();
            }
            let all = Journal::<u64>::read_all(folder.path()).unwrap();
            assert_eq!(all, [wanted, &[3, 4]].concat());
        }
    }
}
