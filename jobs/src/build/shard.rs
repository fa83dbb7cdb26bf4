//! Writes shard files: records in, a durable file and its description out.
//!
//! The framing of records happens on the thread that has them; a second thread hashes the bytes, a third one writes them, and for large
//! shards a fourth one asks the disk to start on them, so that the sync at the end has little left to do.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use prep_catalog::fingerprint::SequenceHash;
use prep_dataflow::{BoxError, Record, Shard, ShardSink, ShardWriter, SplitTotals};
use prep_formats::array_record::{WriteOptions, Writer};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build::graph::Carried;
use crate::build::journal::{Entry, Journal};
use crate::monitor::Meter;

/// Bytes that go to the writing thread at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks that may wait for the writing thread.
const MOST_CHUNKS: usize = 4;
/// Bytes after which the disk is asked to begin.
const SYNC_BYTES: usize = 16 << 20;

/// What is known of a finished shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardSummary {
    pub(crate) split: u32,
    pub(crate) index: u32,
    pub(crate) num_shards: u32,
    /// Records and payload bytes of the whole split: with them and the sources unchanged, the shard would be the same again.
    pub(crate) split_records: u64,
    pub(crate) split_bytes: u64,
    /// Path relative to the version's folder.
    pub(crate) path: String,
    pub(crate) records: u64,
    /// Payload bytes.
    pub(crate) payload_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) sha256: String,
    /// Checksum to compare with when the file is read back.
    pub(crate) crc64: u64,
    pub(crate) sequence_hash: String,
    pub(crate) min_key: Option<String>,
    pub(crate) max_key: Option<String>,
}

/// The checksum that is compared when shards are read back: fast, unlike SHA-256.
pub(crate) const CRC: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc64Nvme;

/// The file name of a shard, as TFDS names it.
///
/// ```
/// assert_eq!(prep_jobs::shard_file_name("mnist", "train", 3, 16), "mnist-train.array_record-00003-of-00016");
/// ```
pub fn shard_file_name(dataset: &str, split: &str, index: u64, num_shards: u64) -> String {
    format!("{dataset}-{split}.array_record-{index:05}-of-{num_shards:05}")
}

/// Opens the shards of a build.
#[derive(Debug)]
pub(crate) struct Shards {
    pub(crate) folder: PathBuf,
    pub(crate) dataset: String,
    pub(crate) splits: Vec<String>,
    pub(crate) options: WriteOptions,
    pub(crate) journal: Arc<Journal>,
    /// Shards that an earlier run finished.
    pub(crate) finished: Vec<ShardSummary>,
    /// Totals of each split, known when the plan was made.
    pub(crate) totals: Arc<std::sync::OnceLock<Vec<SplitTotals>>>,
    pub(crate) meter: Arc<Meter>,
}

impl Shards {
    fn totals(&self, shard: &Shard) -> SplitTotals {
        let totals = self.totals.get().and_then(|all| all.get(shard.split as usize));
        totals.cloned().unwrap_or_default()
    }

    fn open_shard(&self, shard: &Shard) -> Result<ShardFile> {
        let split = &self.splits[shard.split as usize];
        let name = shard_file_name(&self.dataset, split, shard.index.into(), shard.num_shards.into());
        let path = self.folder.join(&name);
        let file = Pipe::create(&path)?;
        // Each worker writes its own shards: threads for each of them would be too many.
        let writer = Writer::new(file, self.options.clone().with_max_parallelism(Some(1)))
            .with_context(|| format!("could not write {}", path.display()))?;
        let totals = self.totals(shard);
        Ok(ShardFile {
            writer,
            unfinished: Unfinished(Some(path.clone())),
            path,
            journal: Arc::clone(&self.journal),
            meter: Arc::clone(&self.meter),
            hash: SequenceHash::default(),
            unreported: 0,
            summary: ShardSummary {
                split: shard.split,
                index: shard.index,
                num_shards: shard.num_shards,
                split_records: totals.records,
                split_bytes: totals.bytes,
                path: name,
                records: 0,
                payload_bytes: 0,
                file_bytes: 0,
                sha256: String::new(),
                crc64: 0,
                sequence_hash: String::new(),
                min_key: None,
                max_key: None,
            },
            first_key: None,
            last_key: None,
        })
    }
}

impl ShardSink for Shards {
    type Summary = ShardSummary;
    type Writer = ShardFile;

    fn open(&self, shard: &Shard) -> Result<ShardFile, BoxError> {
        self.open_shard(shard).map_err(Carried::boxed)
    }

    fn complete(&self, shard: &Shard) -> Result<Option<ShardSummary>, BoxError> {
        let totals = self.totals(shard);
        let same = |summary: &&ShardSummary| {
            (summary.split, summary.index, summary.num_shards, summary.records)
                == (shard.split, shard.index, shard.num_shards, shard.records)
                && (summary.split_records, summary.split_bytes) == (totals.records, totals.bytes)
        };
        // The last entry counts: a shard may have been written more than once.
        let found = self.finished.iter().rev().find(same).filter(|summary| {
            std::fs::metadata(self.folder.join(&summary.path))
                .is_ok_and(|file| file.len() == summary.file_bytes)
        });
        if let Some(summary) = found {
            self.meter.add(summary.records);
        }
        Ok(found.cloned())
    }
}

/// A shard that is being written.
#[derive(Debug)]
pub(crate) struct ShardFile {
    writer: Writer<Pipe>,
    path: PathBuf,
    journal: Arc<Journal>,
    meter: Arc<Meter>,
    hash: SequenceHash,
    unreported: u64,
    summary: ShardSummary,
    first_key: Option<[u8; 16]>,
    last_key: Option<[u8; 16]>,
    // Last, so that the writing thread has ended before the file is removed.
    unfinished: Unfinished,
}

/// Removes a file unless it was finished: half a shard would only take room.
#[derive(Debug)]
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl ShardFile {
    fn complete(mut self) -> Result<ShardSummary> {
        let shown = self.path.display().to_string();
        let pipe = self
            .writer
            .finish()
            .with_context(|| format!("could not write {shown}"))?;
        let written = pipe
            .finish()
            .with_context(|| format!("could not write {shown}"))?;
        self.meter.add(self.unreported);
        self.summary.file_bytes = written.bytes;
        self.summary.sha256 = hex::encode(written.sha256);
        self.summary.crc64 = written.crc64;
        self.summary.sequence_hash = self.hash.to_hex();
        self.summary.min_key = self.first_key.map(hex::encode);
        self.summary.max_key = self.last_key.map(hex::encode);
        self.journal.add(&Entry::Shard(self.summary.clone()))?;
        self.unfinished.0 = None;
        Ok(self.summary)
    }
}

impl ShardWriter for ShardFile {
    type Summary = ShardSummary;

    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        self.writer
            .write(&record.data)
            .with_context(|| format!("could not write {}", self.path.display()))
            .map_err(Carried::boxed)?;
        self.hash.push(&record.data);
        self.summary.records += 1;
        self.summary.payload_bytes += record.data.len() as u64;
        self.first_key.get_or_insert(record.key);
        self.last_key = Some(record.key);
        self.unreported += 1;
        if self.unreported == 256 {
            self.meter.add(std::mem::take(&mut self.unreported));
        }
        Ok(())
    }

    fn finish(self) -> Result<ShardSummary, BoxError> {
        self.complete().map_err(Carried::boxed)
    }
}

/// What a finished file holds.
struct WrittenFile {
    bytes: u64,
    sha256: [u8; 32],
    crc64: u64,
}

/// The writing end of a file that another thread hashes and writes.
#[derive(Debug)]
struct Pipe {
    buffer: Vec<u8>,
    sender: Option<SyncSender<Vec<u8>>>,
    spare: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<io::Result<WrittenFile>>>,
}

impl std::fmt::Debug for WrittenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WrittenFile({} bytes)", self.bytes)
    }
}

impl Pipe {
    fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .with_context(|| format!("could not write {}", path.display()))?;
        let (sender, receiver) = sync_channel(MOST_CHUNKS);
        let (give_back, spare) = channel();
        let thread = std::thread::Builder::new()
            .name("shard hash".to_owned())
            .spawn(move || hash_and_write(file, &receiver, give_back))
            .context("could not start a thread")?;
        Ok(Self {
            buffer: Vec::with_capacity(CHUNK_BYTES),
            sender: Some(sender),
            spare,
            thread: Some(thread),
        })
    }

    /// Hands the buffer over, and takes a used one for it.
    fn send(&mut self) -> io::Result<()> {
        let spare = self
            .spare
            .try_recv()
            .unwrap_or_else(|_| Vec::with_capacity(CHUNK_BYTES));
        let full = std::mem::replace(&mut self.buffer, spare);
        let sent = self
            .sender
            .as_ref()
            .is_some_and(|sender| sender.send(full).is_ok());
        if sent {
            return Ok(());
        }
        // The thread has ended: with an error.
        match self.join() {
            Err(error) => Err(error),
            Ok(_) => Err(io::Error::other("the writing thread ended early")),
        }
    }

    fn join(&mut self) -> io::Result<WrittenFile> {
        self.sender = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the writing thread panicked")),
            None => Err(io::Error::other("an earlier write failed")),
        }
    }

    /// Writes what is left, and syncs the file.
    fn finish(mut self) -> Result<WrittenFile> {
        if !self.buffer.is_empty() {
            self.send()?;
        }
        self.join().map_err(|error| anyhow!(error))
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.buffer.len() == CHUNK_BYTES {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The thread must not outlive the folder that it writes to.
        let _ = self.join();
    }
}

/// Hashes what comes, and passes it on to a thread that writes it: the two take about as long.
fn hash_and_write(
    file: File,
    chunks: &Receiver<Vec<u8>>,
    give_back: Sender<Vec<u8>>,
) -> io::Result<WrittenFile> {
    let (sender, receiver) = sync_channel::<Vec<u8>>(MOST_CHUNKS);
    let writer = std::thread::Builder::new()
        .name("shard file".to_owned())
        .spawn(move || write_file(&file, &receiver, &give_back))?;
    let mut sha256 = Sha256::new();
    let mut crc = crc_fast::Digest::new(CRC);
    let mut bytes = 0;
    while let Ok(chunk) = chunks.recv() {
        sha256.update(&chunk);
        crc.update(&chunk);
        bytes += chunk.len() as u64;
        if sender.send(chunk).is_err() {
            break;
        }
    }
    drop(sender);
    writer
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")))?;
    Ok(WrittenFile {
        bytes,
        sha256: sha256.finalize().into(),
        crc64: crc.finalize(),
    })
}

fn write_file(mut file: &File, chunks: &Receiver<Vec<u8>>, give_back: &Sender<Vec<u8>>) -> io::Result<()> {
    let mut unasked = 0;
    let mut starter: Option<(SyncSender<()>, JoinHandle<()>)> = None;
    while let Ok(mut chunk) = chunks.recv() {
        file.write_all(&chunk)?;
        unasked += chunk.len();
        if unasked >= SYNC_BYTES {
            unasked = 0;
            if starter.is_none() {
                starter = start_early(file).ok();
            }
            if let Some((sender, _)) = &starter {
                // Busy with the last one: then it can wait.
                let _ = sender.try_send(());
            }
        }
        chunk.clear();
        let _ = give_back.send(chunk);
    }
    if let Some((sender, thread)) = starter {
        drop(sender);
        let _ = thread.join();
    }
    file.sync_all()
}

/// A thread that makes the disk begin with what was written so far. Its errors show again in the sync at the end.
fn start_early(file: &File) -> io::Result<(SyncSender<()>, JoinHandle<()>)> {
    let file = file.try_clone()?;
    let (sender, receiver) = sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("shard sync".to_owned())
        .spawn(move || {
            while receiver.recv().is_ok() {
                let _ = file.sync_data();
            }
        })?;
    Ok((sender, thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_writes_and_hashes_what_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 17, 40 << 20] {
            let data: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
            let mut pipe = Pipe::create(&path).unwrap();
            pipe.write_all(&data).unwrap();
            let written = pipe.finish().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), data);
            assert_eq!(written.bytes, length as u64);
            assert_eq!(written.sha256, <[u8; 32]>::from(Sha256::digest(&data)));
            assert_eq!(written.crc64, crc_fast::checksum(CRC, &data));
        }
    }

    #[test]
    fn a_full_disk_is_an_error_with_its_kind() {
        // Linux has a device that is always full.
        let mut pipe = Pipe::create(Path::new("/dev/full")).unwrap();
        let result = (0..10).try_for_each(|_| pipe.write_all(&[0; CHUNK_BYTES]));
        assert_eq!(
            result.unwrap_err().raw_os_error(),
            Some(rustix::io::Errno::NOSPC.raw_os_error())
        );
    }
}
