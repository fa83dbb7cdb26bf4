//! Writes shard files: records in, a durable file and its description out.
//!
//! The framing of records happens on the thread that has them; a second thread hashes the bytes, a third one writes them, and for large
//! shards a fourth one asks the disk to start on them, so that the sync at the end has little left to do.
//!
//! Where payloads come straight from their sources ([`payload`](crate::build::payload)) it is one thread a shard that reads, frames and
//! writes, while the bytes are in its core's cache; and SHA-256, which takes longer than all that, is left to the look at the finished
//! files, where it runs for several files at once.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use prep_catalog::fingerprint::{RECORD_KEY, SequenceHash};
use prep_catalog::manifest::ShardManifest;
use prep_dataflow::{BoxError, Record, Shard, ShardSink, ShardWriter, SplitTotals, trace};
use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::statistics::Statistics;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build::journal::{Entry, Journal};
use crate::build::payload::{self, PartNames, Parts, Payloads};
use crate::build::statistics::{ShardStatistics, part_path};
use crate::builder::Extent;
use crate::error::Carried;
use crate::journal::Unfinished;
use crate::monitor::{Meter, Monitor};

/// Bytes that go to the writing thread at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks that may wait for the writing thread.
const MOST_CHUNKS: usize = 4;
/// Bytes after which the disk is asked to begin.
const SYNC_BYTES: usize = 16 << 20;

/// Payloads that are known beforehand, for the system to read.
const MOST_PENDING: usize = 32;
/// After a payload that was not in memory, so many are asked for early.
const COLD_PAYLOADS: u32 = 1024;

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
    /// Hex; empty as long as it was left to the look at the finished file.
    pub(crate) sha256: String,
    /// Checksum to compare with when the file is read back.
    pub(crate) crc64: u64,
    pub(crate) sequence_hash: String,
    pub(crate) min_key: Option<String>,
    pub(crate) max_key: Option<String>,
}

impl ShardSummary {
    /// As the manifest has it.
    pub(crate) fn described(&self) -> ShardManifest {
        ShardManifest {
            path: self.path.clone(),
            records: self.records,
            bytes: self.file_bytes,
            sha256: self.sha256.clone(),
            sequence_hash: self.sequence_hash.clone(),
            min_key: self.min_key.clone(),
            max_key: self.max_key.clone(),
            index: None,
        }
    }
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
    /// What stands for each group in the names of its shards: the split, and the source where each has its own.
    pub(crate) groups: Vec<String>,
    pub(crate) options: WriteOptions,
    pub(crate) journal: Arc<Journal>,
    /// Shards that an earlier run finished.
    pub(crate) finished: Vec<ShardSummary>,
    /// Totals of each split, known when the plan was made.
    pub(crate) totals: Arc<std::sync::OnceLock<Vec<SplitTotals>>>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) monitor: Arc<Monitor>,
    /// Where examples come from, for messages.
    pub(crate) parts: Arc<PartNames>,
    /// Payloads that stayed in their sources; `None` where the graph carries whole records.
    pub(crate) payloads: Option<Arc<Payloads>>,
    /// Where the statistics of shards come, and what is counted; `None` where nothing is.
    pub(crate) counted: Option<(PathBuf, Statistics)>,
}

impl Shards {
    fn totals(&self, shard: &Shard) -> SplitTotals {
        let totals = self.totals.get().and_then(|all| all.get(shard.split as usize));
        totals.cloned().unwrap_or_default()
    }

    fn open_shard(&self, shard: &Shard) -> Result<ShardFile> {
        let group = &self.groups[shard.split as usize];
        let name = shard_file_name(&self.dataset, group, shard.index.into(), shard.num_shards.into());
        let path = self.folder.join(&name);
        let file = match &self.payloads {
            None => Target::Pipe(Pipe::create(&path)?),
            Some(_) => Target::Direct(Box::new(Direct::create(&path)?)),
        };
        // Each worker writes its own shards: threads for each of them would be too many.
        let writer = Writer::new(file, self.options.clone().with_max_parallelism(Some(1)))
            .with_context(|| format!("could not write {}", path.display()))?;
        let totals = self.totals(shard);
        let statistics = match &self.counted {
            None => None,
            Some((folder, prototype)) => Some(ShardStatistics::create(&part_path(folder, &name), prototype)?),
        };
        Ok(ShardFile {
            writer,
            statistics,
            unfinished: Unfinished(Some(path.clone())),
            path,
            journal: Arc::clone(&self.journal),
            meter: Arc::clone(&self.meter),
            monitor: Arc::clone(&self.monitor),
            started: Instant::now(),
            hash: SequenceHash::default(),
            parts: Arc::clone(&self.parts),
            payloads: self.payloads.clone(),
            pending: VecDeque::new(),
            cold: 0,
            buffer: Vec::new(),
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
    writer: Writer<Target>,
    statistics: Option<ShardStatistics>,
    path: PathBuf,
    journal: Arc<Journal>,
    meter: Arc<Meter>,
    monitor: Arc<Monitor>,
    started: Instant,
    hash: SequenceHash,
    parts: Arc<PartNames>,
    payloads: Option<Arc<Payloads>>,
    /// Records whose payload is still to be read.
    pending: VecDeque<Pending>,
    /// How many more payloads are asked for early.
    cold: u32,
    /// For one record.
    buffer: Vec<u8>,
    unreported: u64,
    summary: ShardSummary,
    first_key: Option<[u8; 16]>,
    last_key: Option<[u8; 16]>,
    // Last, so that the writing thread has ended before the file is removed.
    unfinished: Unfinished,
}

/// A record whose payload is still to be read.
#[derive(Debug)]
struct Pending {
    key: [u8; 16],
    origin: u64,
    extent: Extent,
    before: Bytes,
    after: Bytes,
}

impl ShardFile {
    fn complete(mut self) -> Result<ShardSummary> {
        let shown = self.path.display().to_string();
        while let Some(pending) = self.pending.pop_front() {
            self.put_pending(&pending)?;
        }
        let target = self
            .writer
            .finish()
            .with_context(|| format!("could not write {shown}"))?;
        let written = target
            .finish()
            .with_context(|| format!("could not write {shown}"))?;
        self.meter.add(self.unreported);
        self.summary.file_bytes = written.bytes;
        self.summary.sha256 = written.sha256.map(hex::encode).unwrap_or_default();
        self.summary.crc64 = written.crc64;
        self.summary.sequence_hash = self.hash.to_hex();
        self.summary.min_key = self.first_key.map(hex::encode);
        self.summary.max_key = self.last_key.map(hex::encode);
        if let Some(statistics) = self.statistics {
            statistics.finish(&self.summary.path, &self.hash)?;
        }
        self.journal.add(&Entry::Shard(self.summary.clone()))?;
        self.unfinished.0 = None;
        let ShardSummary {
            path,
            records,
            payload_bytes,
            file_bytes,
            ..
        } = &self.summary;
        self.monitor.shard_written(
            path,
            self.started.elapsed(),
            *records,
            *payload_bytes,
            *file_bytes,
        );
        Ok(self.summary)
    }
}

impl ShardFile {
    fn take(&mut self, record: &Record) -> Result<()> {
        match payload::parse(&record.data) {
            Some(Parts::Whole(data)) => {
                while let Some(pending) = self.pending.pop_front() {
                    self.put_pending(&pending)?;
                }
                self.put(record.key, &data)
            }
            Some(Parts::Around(extent, before, after)) => {
                let pending = Pending {
                    key: record.key,
                    origin: record.origin,
                    extent,
                    // Copies: a few bytes must not keep a whole batch alive.
                    before: Bytes::copy_from_slice(&before),
                    after: Bytes::copy_from_slice(&after),
                };
                if self.cold > 0
                    && let Some(payloads) = &self.payloads
                {
                    self.cold -= 1;
                    payloads.will_need(&extent);
                }
                self.pending.push_back(pending);
                if self.pending.len() > MOST_PENDING
                    && let Some(first) = self.pending.pop_front()
                {
                    self.put_pending(&first)?;
                }
                Ok(())
            }
            None => Err(anyhow!("a record came malformed out of the sort")),
        }
    }

    /// Reads the payload of a record, and writes it.
    fn put_pending(&mut self, pending: &Pending) -> Result<()> {
        let Some(payloads) = self.payloads.clone() else {
            return Err(anyhow!(
                "a payload was left in its source, and nothing says where that is"
            ));
        };
        let (start, end) = (
            pending.before.len(),
            pending.before.len() + pending.extent.bytes() as usize,
        );
        let length = end + pending.after.len();
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        buffer[..start].copy_from_slice(&pending.before);
        buffer[end..length].copy_from_slice(&pending.after);
        let warm = payloads
            .read_into(&pending.extent, &mut buffer[start..end])
            .with_context(|| {
                let (part, record) = prep_dataflow::split_origin(pending.origin);
                self.parts.place(part, record)
            })?;
        if !warm {
            if self.cold == 0 {
                for later in &self.pending {
                    payloads.will_need(&later.extent);
                }
            }
            self.cold = COLD_PAYLOADS;
        }
        let result = self.put(pending.key, &buffer[..length]);
        self.buffer = buffer;
        result
    }

    fn put(&mut self, key: [u8; 16], data: &[u8]) -> Result<()> {
        let hash = self
            .writer
            .write_and_hash(data, RECORD_KEY)
            .with_context(|| format!("could not write {}", self.path.display()))?;
        self.hash.push_hash(hash);
        if let Some(statistics) = &mut self.statistics {
            statistics.add(data, hash)?;
        }
        self.summary.records += 1;
        self.summary.payload_bytes += data.len() as u64;
        self.first_key.get_or_insert(key);
        self.last_key = Some(key);
        self.unreported += 1;
        if self.unreported == 256 {
            self.meter.add(std::mem::take(&mut self.unreported));
        }
        Ok(())
    }
}

impl ShardWriter for ShardFile {
    type Summary = ShardSummary;

    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        crate::fault::pass("write");
        self.take(record).map_err(Carried::boxed)
    }

    fn finish(self) -> Result<ShardSummary, BoxError> {
        self.complete().map_err(Carried::boxed)
    }
}

/// What a finished file holds.
struct WrittenFile {
    bytes: u64,
    /// None: not computed.
    sha256: Option<[u8; 32]>,
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

/// Where the bytes of a shard go.
#[derive(Debug)]
enum Target {
    /// To threads that hash and write them.
    Pipe(Pipe),
    /// Into the file.
    Direct(Box<Direct>),
}

impl Target {
    /// Writes what is left, and syncs the file.
    fn finish(self) -> Result<WrittenFile> {
        match self {
            Self::Pipe(pipe) => pipe.finish(),
            Self::Direct(direct) => direct.finish(),
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.write(bytes),
            Self::Direct(direct) => direct.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that the thread that has the bytes writes itself; the writer in front gathers them.
struct Direct {
    file: File,
    crc: crc_fast::Digest,
    bytes: u64,
    sync: EarlySync,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Direct({} bytes)", self.bytes)
    }
}

impl Direct {
    fn create(path: &Path) -> Result<Self> {
        Ok(Self {
            file: create(path)?,
            crc: crc_fast::Digest::new(CRC),
            bytes: 0,
            sync: EarlySync::default(),
        })
    }

    fn finish(mut self) -> Result<WrittenFile> {
        self.sync.stop();
        let _syncing = trace::span("write", "sync");
        self.file.sync_all()?;
        Ok(WrittenFile {
            bytes: self.bytes,
            sha256: None,
            crc64: self.crc.finalize(),
        })
    }
}

impl Write for Direct {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.crc.update(&bytes[..count]);
        self.bytes += count as u64;
        self.sync.wrote(&self.file, count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file of its own: one that is there already may be another version's too, by a hard link.
fn create(path: &Path) -> Result<File> {
    if std::fs::symlink_metadata(path).is_ok_and(|there| there.is_file()) {
        std::fs::remove_file(path).with_context(|| format!("could not replace {}", path.display()))?;
    }
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .with_context(|| format!("could not write {}", path.display()))
}

impl Pipe {
    fn create(path: &Path) -> Result<Self> {
        let file = create(path)?;
        let (sender, receiver) = sync_channel(MOST_CHUNKS);
        let (give_back, spare) = channel();
        let thread = std::thread::Builder::new()
            .name("shard hash".to_owned())
            .spawn(trace::carry(move || hash_and_write(file, &receiver, give_back)))
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
        .spawn(trace::carry(move || write_file(&file, &receiver, &give_back)))?;
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
        sha256: Some(sha256.finalize().into()),
        crc64: crc.finalize(),
    })
}

fn write_file(mut file: &File, chunks: &Receiver<Vec<u8>>, give_back: &Sender<Vec<u8>>) -> io::Result<()> {
    let mut sync = EarlySync::default();
    while let Ok(mut chunk) = chunks.recv() {
        file.write_all(&chunk)?;
        sync.wrote(file, chunk.len());
        chunk.clear();
        let _ = give_back.send(chunk);
    }
    sync.stop();
    let _syncing = trace::span("write", "sync");
    file.sync_all()
}

/// Makes the disk begin with what was written so far, for large files.
#[derive(Default)]
struct EarlySync {
    unasked: usize,
    starter: Option<(SyncSender<()>, JoinHandle<()>)>,
}

impl EarlySync {
    /// Notes that so many bytes were written.
    fn wrote(&mut self, file: &File, bytes: usize) {
        self.unasked += bytes;
        if self.unasked >= SYNC_BYTES {
            self.unasked = 0;
            if self.starter.is_none() {
                self.starter = start_early(file).ok();
            }
            if let Some((sender, _)) = &self.starter {
                // Busy with the last one: then it can wait.
                let _ = sender.try_send(());
            }
        }
    }

    fn stop(&mut self) {
        if let Some((sender, thread)) = self.starter.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

impl Drop for EarlySync {
    fn drop(&mut self) {
        self.stop();
    }
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
            assert_eq!(written.sha256, Some(Sha256::digest(&data).into()));
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
