//! The files of a conversion: written by one thread, synced and read back by another.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail};
use prep_dataflow::trace;
use prep_formats::array_record::{Reader, WriteOptions, Writer};
use prep_formats::store::PositionedFile;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::convert::read::CRC;
use crate::journal::{Journal, Unfinished};
use crate::monitor::Meter;

/// Bytes after which the disk is asked to begin.
const SYNC_BYTES: u64 = 64 << 20;
/// Finished files that may wait to be synced: with more the disk is the limit anyway.
const MOST_WAITING: usize = 2;

/// Bytes of an input that went into a shard, and their checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputSum {
    pub(crate) input: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) crc64: u64,
}

/// What is known of a finished shard.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct ShardSummary {
    /// Its place in the plan.
    pub(crate) index: usize,
    /// The split that it belongs to.
    pub(crate) split: usize,
    pub(crate) path: String,
    pub(crate) records: u64,
    /// Payload bytes.
    pub(crate) payload_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) crc64: u64,
    pub(crate) sha256: Option<String>,
    pub(crate) sequence_hash: Option<String>,
    pub(crate) sums: Vec<InputSum>,
    /// Records of each input, where they were not counted before: (input, records, damaged ones).
    pub(crate) counts: Vec<(usize, u64, u64)>,
    /// Of a shard of sorted records: (row, records, bytes) of all rows. With them unchanged, it would be the same again.
    #[serde(default)]
    pub(crate) stamp: Vec<(usize, u64, u64)>,
    /// Names of features that were seen until it was finished.
    #[serde(default)]
    pub(crate) names: Vec<String>,
    /// Whether an earlier run has written it.
    #[serde(skip)]
    pub(crate) found: bool,
    /// Time from its first to its last byte; for reports only.
    #[serde(skip)]
    pub(crate) seconds: f64,
}

/// A file that counts and hashes what it is given.
#[derive(Debug)]
pub(crate) struct Sink {
    file: Arc<File>,
    crc: crc_fast::Digest,
    sha256: Option<Sha256>,
    bytes: u64,
    unsynced: u64,
    early: Option<SyncSender<Message>>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = (&*self.file).write(bytes)?;
        let written = &bytes[..count];
        self.crc.update(written);
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(written);
        }
        self.bytes += count as u64;
        self.unsynced += count as u64;
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            if let Some(early) = &self.early {
                // Busy with an earlier one: then it can wait.
                let _ = early.try_send(Message::Begin(Arc::clone(&self.file)));
            }
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A shard that is being written.
pub(crate) struct ShardFile {
    pub(crate) writer: Writer<Sink>,
    path: PathBuf,
    unfinished: Unfinished,
}

impl ShardFile {
    /// Starts a file. `finisher` is the one that it is going to be handed to.
    pub(crate) fn create(
        path: PathBuf,
        options: &WriteOptions,
        sha256: bool,
        finisher: Option<&Finisher>,
    ) -> Result<Self> {
        let shown = path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .with_context(|| format!("could not write {shown}"))?;
        let sink = Sink {
            file: Arc::new(file),
            crc: crc_fast::Digest::new(CRC),
            sha256: sha256.then(Sha256::new),
            bytes: 0,
            unsynced: 0,
            early: finisher.map(|finisher| finisher.messages.clone()),
        };
        // Encoding is the crew's work, or each worker writes its own shards: threads for each of them would be too many.
        let writer = Writer::new(sink, options.clone().with_max_parallelism(Some(1)))?.with_name(shown);
        Ok(Self {
            writer,
            unfinished: Unfinished(Some(path.clone())),
            path,
        })
    }

    /// Ends the file, and gives what is to be synced.
    pub(crate) fn end(mut self, mut summary: ShardSummary) -> Result<EndedShard> {
        let sink = self.writer.finish()?;
        summary.file_bytes = sink.bytes;
        summary.crc64 = sink.crc.finalize();
        summary.sha256 = sink.sha256.map(|sha256| hex::encode(sha256.finalize()));
        let unfinished = Unfinished(self.unfinished.0.take());
        Ok(EndedShard {
            file: sink.file,
            path: self.path,
            unfinished,
            summary,
        })
    }
}

/// A shard whose last byte was written.
pub(crate) struct EndedShard {
    file: Arc<File>,
    path: PathBuf,
    unfinished: Unfinished,
    summary: ShardSummary,
}

impl EndedShard {
    /// Makes it durable, reads it back, and notes it in the journal.
    pub(crate) fn complete(
        mut self,
        journal: &Journal<ShardSummary>,
        meter: Option<&Meter>,
    ) -> Result<ShardSummary> {
        let shown = self.path.display();
        let syncing = trace::span("write", "sync");
        self.file
            .sync_all()
            .with_context(|| format!("could not sync {shown}"))?;
        drop(syncing);
        let _reading = trace::span("verify", format!("verify {}", self.summary.path));
        verify(&self.file, &self.path, &self.summary, meter)?;
        journal.add(&self.summary)?;
        self.unfinished.0 = None;
        Ok(self.summary)
    }
}

/// Checks that a file holds the bytes that were written to it, and opens as an ArrayRecord file of as many records.
fn verify(file: &File, path: &Path, summary: &ShardSummary, meter: Option<&Meter>) -> Result<()> {
    let shown = path.display();
    let length = file
        .metadata()
        .with_context(|| format!("could not look at {shown}"))?
        .len();
    if length != summary.file_bytes {
        bail!("{shown} has {length} bytes; {} were written", summary.file_bytes);
    }
    // Small enough to stay in the processor's cache.
    let mut buffer = vec![0; 256 << 10];
    let mut crc = crc_fast::Digest::new(CRC);
    let mut offset = 0;
    while offset < length {
        let count = (length - offset).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..count], offset)
            .with_context(|| format!("could not read {shown} back"))?;
        crc.update(&buffer[..count]);
        offset += count as u64;
        if let Some(meter) = meter {
            meter.add(count as u64);
        }
    }
    let crc = crc.finalize();
    if crc != summary.crc64 {
        bail!(
            "{shown} does not hold what was written to it: its CRC-64 is {crc:#018x}, of what was written {:#018x}",
            summary.crc64
        );
    }
    let source = PositionedFile::open(path)?;
    let reader =
        Reader::from_source_lazy(Arc::new(source)).with_context(|| format!("could not read {shown} back"))?;
    if reader.num_records() != summary.records {
        bail!(
            "{shown} has {} records; {} were written",
            reader.num_records(),
            summary.records
        );
    }
    Ok(())
}

enum Message {
    /// The disk may begin with what was written so far.
    Begin(Arc<File>),
    End(Box<EndedShard>),
}

/// A thread that makes shards durable and reads them back while the next one is being written.
pub(crate) struct Finisher {
    messages: SyncSender<Message>,
    results: Receiver<Result<ShardSummary>>,
    thread: Option<JoinHandle<()>>,
    /// Shards handed over and not come back.
    missing: usize,
}

impl Finisher {
    pub(crate) fn start(journal: Arc<Journal<ShardSummary>>, meter: Option<Arc<Meter>>) -> Result<Self> {
        let (messages, inbox) = sync_channel(MOST_WAITING);
        let (outbox, results) = channel();
        let thread = std::thread::Builder::new()
            .name("shard sync".to_owned())
            .spawn(trace::carry(move || {
                finish(&inbox, &outbox, &journal, meter.as_deref());
            }))
            .context("could not start a thread")?;
        Ok(Self {
            messages,
            results,
            thread: Some(thread),
            missing: 0,
        })
    }

    pub(crate) fn submit(&mut self, shard: EndedShard) -> Result<()> {
        self.missing += 1;
        self.messages
            .send(Message::End(Box::new(shard)))
            .map_err(|_| anyhow!("the thread that syncs shards has ended"))
    }

    /// A shard that is done by now.
    pub(crate) fn try_next(&mut self) -> Option<Result<ShardSummary>> {
        let result = self.results.try_recv().ok()?;
        self.missing -= 1;
        Some(result)
    }

    /// Waits for a shard; `None` where all have come back.
    pub(crate) fn next(&mut self) -> Option<Result<ShardSummary>> {
        if self.missing == 0 {
            return None;
        }
        self.missing -= 1;
        let lost = || Err(anyhow!("the thread that syncs shards has ended"));
        Some(self.results.recv().unwrap_or_else(|_| lost()))
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        let (closed, _) = sync_channel(0);
        self.messages = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn finish(
    inbox: &Receiver<Message>,
    outbox: &Sender<Result<ShardSummary>>,
    journal: &Journal<ShardSummary>,
    meter: Option<&Meter>,
) {
    while let Ok(message) = inbox.recv() {
        match message {
            // Its errors show again in the sync at the end.
            Message::Begin(file) => {
                let _ = file.sync_data();
            }
            Message::End(shard) => {
                if outbox.send(shard.complete(journal, meter)).is_err() {
                    return;
                }
            }
        }
    }
}
