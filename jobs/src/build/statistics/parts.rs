//! Files with the statistics of shards, and hashes of their records.
//!
//! | bytes | field |
//! |---|---|
//! | | of each part: its runs, one after another, and its statistics ([`Statistics::to_bytes`]) |
//! | | the index: JSON that lists the parts |
//! | 8 | length of the index, little-endian |
//! | 8 | CRC-64/NVME of the index, little-endian |
//!
//! A run has the hashes of up to 32,768 records that follow each other: the first 10 bytes of each record's hash, ascending, each once. Two different
//! records of 10^9 have the same 80 bits with a probability of 4 * 10^-7.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use prep_catalog::fingerprint::SequenceHash;
use prep_formats::statistics::Statistics;
use prep_formats::store::{self, Location, PositionedFile, ReadAt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build::shard::CRC;
use crate::build::statistics::{FORMAT, layout_of};

/// Bytes of a hash.
pub(super) const HASH_BYTES: usize = 10;
/// Records of a run.
const RUN_RECORDS: usize = 1 << 15;
const FOOTER_BYTES: usize = 16;
/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// One shard's part of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    /// Path of the shard in its version's folder.
    pub(super) path: String,
    pub(super) records: u64,
    /// Which records they are.
    pub(super) sequence_hash: String,
    /// What was counted of them.
    pub(super) layout: String,
    /// Where its runs begin.
    offset: u64,
    /// Hashes of each run.
    pub(super) runs: Vec<u32>,
    /// Records whose hash is in their run already.
    pub(super) repeated: u64,
    /// Bytes of the statistics, which follow the runs.
    statistics_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Index {
    format: u32,
    parts: Vec<Part>,
}

impl Part {
    fn runs_bytes(&self) -> u64 {
        self.runs
            .iter()
            .map(|count| u64::from(*count) * HASH_BYTES as u64)
            .sum()
    }

    /// Whether it lies before the index, and its numbers go together.
    fn fits(&self, end: u64) -> bool {
        let hashes: u64 = self.runs.iter().map(|count| u64::from(*count)).sum();
        let is_within = self
            .offset
            .checked_add(self.runs_bytes())
            .and_then(|bytes| bytes.checked_add(self.statistics_bytes))
            .is_some_and(|bytes| bytes <= end);
        is_within && hashes.checked_add(self.repeated) == Some(self.records)
    }
}

/// Opens a file to be read with calls: the pages of a mapped one would count as memory of this process.
pub(super) fn open_unmapped(location: &Location) -> Result<Arc<dyn ReadAt>> {
    Ok(match location.as_path() {
        Some(path) => Arc::new(PositionedFile::open(path)?),
        None => store::open(location)?,
    })
}

/// A file of parts, to be read.
#[derive(Debug)]
pub(super) struct PartsFile {
    source: Arc<dyn ReadAt>,
    /// By path.
    parts: Vec<Part>,
}

impl PartsFile {
    /// Opens a file; `None` where there is none, or one that is not whole.
    pub(super) fn open(location: &Location) -> Result<Option<Self>> {
        let Some(bytes) = store::size_of_file(location)? else {
            return Ok(None);
        };
        let source = open_unmapped(location)?;
        let Some(end) = bytes.checked_sub(FOOTER_BYTES as u64) else {
            return Ok(None);
        };
        let mut footer = [0; FOOTER_BYTES];
        source.read_at(end, &mut footer)?;
        let [length, crc] = [0, 8].map(|at| {
            let mut number = [0; 8];
            number.copy_from_slice(&footer[at..at + 8]);
            u64::from_le_bytes(number)
        });
        let Some(start) = end.checked_sub(length) else {
            return Ok(None);
        };
        let mut index = vec![0; length as usize];
        source.read_at(start, &mut index)?;
        if crc_fast::checksum(CRC, &index) != crc {
            return Ok(None);
        }
        let index: Index = match serde_json::from_slice(&index) {
            Ok(index) => index,
            // Of a later version.
            Err(_) => return Ok(None),
        };
        if index.format != FORMAT || !index.parts.iter().all(|part| part.fits(start)) {
            return Ok(None);
        }
        let mut parts = index.parts;
        parts.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Some(Self { source, parts }))
    }

    /// The part of a shard.
    pub(super) fn part(&self, path: &str) -> Option<&Part> {
        let index = self.parts.binary_search_by(|part| part.path.as_str().cmp(path));
        self.parts.get(index.ok()?)
    }

    /// The statistics of one of its parts.
    pub(super) fn statistics(&self, part: &Part, prototype: &Statistics) -> Result<Statistics> {
        let mut bytes = vec![0; part.statistics_bytes as usize];
        self.source.read_at(part.offset + part.runs_bytes(), &mut bytes)?;
        Ok(prototype.from_bytes(&bytes)?)
    }
}

/// A file of parts that is being written.
#[derive(Debug)]
pub(super) struct PartsWriter {
    file: BufWriter<File>,
    path: PathBuf,
    sha256: Sha256,
    bytes: u64,
    parts: Vec<Part>,
}

impl PartsWriter {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path);
        let file = file.with_context(|| format!("could not write {}", path.display()))?;
        Ok(Self {
            file: BufWriter::new(file),
            path: path.to_owned(),
            sha256: Sha256::new(),
            bytes: 0,
            parts: Vec::new(),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sha256.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file
            .write_all(bytes)
            .with_context(|| format!("could not write {}", self.path.display()))
    }

    /// Copies a part of another file, and gives where its runs begin now.
    pub(super) fn append(&mut self, from: &PartsFile, part: &Part) -> Result<u64> {
        let offset = self.bytes;
        let (mut at, mut left) = (part.offset, part.runs_bytes() + part.statistics_bytes);
        let mut buffer = vec![0; COPY_BYTES.min(left as usize)];
        while left > 0 {
            let block = &mut buffer[..(left.min(COPY_BYTES as u64)) as usize];
            from.source.read_at(at, block)?;
            self.write(block)?;
            at += block.len() as u64;
            left -= block.len() as u64;
        }
        self.parts.push(Part {
            offset,
            ..part.clone()
        });
        Ok(offset)
    }

    /// Writes the index; gives the file, which is durable then, its length and its SHA-256.
    pub(super) fn finish(mut self) -> Result<(File, u64, String)> {
        let index = Index {
            format: FORMAT,
            parts: std::mem::take(&mut self.parts),
        };
        let index = serde_json::to_vec(&index).context("could not write an index of statistics")?;
        self.write(&index)?;
        self.write(&(index.len() as u64).to_le_bytes())?;
        self.write(&crc_fast::checksum(CRC, &index).to_le_bytes())?;
        let shown = || format!("could not write {}", self.path.display());
        let file = self
            .file
            .into_inner()
            .map_err(|error| error.into_error())
            .with_context(shown)?;
        file.sync_data().with_context(shown)?;
        Ok((file, self.bytes, hex::encode(self.sha256.finalize())))
    }
}

/// The statistics of a shard that is being written or read, and the file that they come into.
#[derive(Debug)]
pub(crate) struct ShardStatistics {
    writer: PartsWriter,
    statistics: Statistics,
    /// Of the run that is being filled.
    hashes: Vec<u128>,
    runs: Vec<u32>,
    repeated: u64,
    records: u64,
}

impl ShardStatistics {
    /// Begins with no records; `prototype` says what is counted.
    pub(crate) fn create(path: &Path, prototype: &Statistics) -> Result<Self> {
        Ok(Self {
            writer: PartsWriter::create(path)?,
            statistics: prototype.clone(),
            hashes: Vec::new(),
            runs: Vec::new(),
            repeated: 0,
            records: 0,
        })
    }

    /// Adds a record and its hash, as the fingerprint has it.
    pub(crate) fn add(&mut self, record: &[u8], [low, high]: [u64; 2]) -> Result<()> {
        self.statistics
            .add(record)
            .context("could not count an example")?;
        self.records += 1;
        self.hashes
            .push((u128::from(high) << 64 | u128::from(low)) >> (128 - 8 * HASH_BYTES));
        if self.hashes.len() == RUN_RECORDS {
            self.end_run()?;
        }
        Ok(())
    }

    fn end_run(&mut self) -> Result<()> {
        let mut hashes = std::mem::take(&mut self.hashes);
        let before = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        self.repeated += (before - hashes.len()) as u64;
        self.runs.push(hashes.len() as u32);
        for hash in &hashes {
            self.writer.write(&hash.to_be_bytes()[16 - HASH_BYTES..])?;
        }
        hashes.clear();
        self.hashes = hashes;
        Ok(())
    }

    /// Writes the file, durably. `path` is that of the shard in its version's folder.
    pub(crate) fn finish(mut self, path: &str, sequence: &SequenceHash) -> Result<()> {
        if !self.hashes.is_empty() {
            self.end_run()?;
        }
        if sequence.length() != self.records {
            bail!("{} records of {} were counted", self.records, sequence.length());
        }
        let statistics = self.statistics.to_bytes();
        self.writer.write(&statistics)?;
        self.writer.parts.push(Part {
            path: path.to_owned(),
            records: self.records,
            sequence_hash: sequence.to_hex(),
            layout: layout_of(&self.statistics),
            offset: 0,
            runs: self.runs,
            repeated: self.repeated,
            statistics_bytes: statistics.len() as u64,
        });
        self.writer.finish()?;
        Ok(())
    }
}
