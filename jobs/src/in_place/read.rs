//! Reads a record file from its start to its end, once: checksums, the hash of its records, and for TFRecord where they begin.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use prep_catalog::FileManifest;
use prep_catalog::fingerprint::{SequenceHash, record_hash};
use prep_formats::array_record::{StreamOptions, StreamReader};
use prep_formats::columns::{Batch, BatchDecoder, Images};
use prep_formats::example::ExampleView;
use prep_formats::features::Features;
use prep_formats::statistics::Statistics;
use prep_formats::store::{self, Part, PositionedFile, ReadAt};
use prep_formats::tfrecord::{self, Compression, IndexBuilder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build::statistics::ShardStatistics;
use crate::error::Hinted;
use crate::fetch;
use crate::monitor::{Meter, Monitor};
use crate::readers::rows::stay::StayingFile;
use crate::readers::rows::tfds::other_length;

/// Bytes of one request, and how many are in flight for a file of an object store.
const PART_BYTES: usize = 4 << 20;
const PARTS: usize = 4;
/// Rows that are decoded before the batch is emptied.
const ROWS: usize = 64;

/// What is known of a file once it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// Its name among the sources.
    pub(super) name: String,
    /// Changes when the file does.
    pub(super) stamp: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    pub(super) records: u64,
    pub(super) payload_bytes: u64,
    pub(super) sequence_hash: String,
    pub(super) index: Option<FileManifest>,
}

/// A text that changes when the file does.
pub(super) fn stamp_of(file: &StayingFile) -> Result<String> {
    match file.location.as_path() {
        Some(path) => fetch::local::stamp_of(&path, None),
        None => Ok(format!(
            "{}, {}",
            file.location,
            store::object_identity(&file.location)?
        )),
    }
}

/// Checks records against features, one thread's.
pub(super) struct Checker<'a> {
    decoder: BatchDecoder,
    batch: Batch,
    /// The lists that a record may have, sorted; `None` for any.
    names: Option<&'a [String]>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(features: &Features, names: Option<&'a [String]>) -> Result<Self> {
        let decoder = BatchDecoder::new(features, Images::Encoded)?;
        let batch = decoder.new_batch(ROWS);
        Ok(Self {
            decoder,
            batch,
            names,
        })
    }

    /// What is wrong with a record.
    fn check(&mut self, record: &[u8]) -> Result<(), String> {
        if self.batch.rows == ROWS {
            self.decoder.clear(&mut self.batch);
        }
        self.decoder
            .push(record, &mut self.batch)
            .map_err(|error| error.to_string())?;
        let Some(names) = self.names else { return Ok(()) };
        let view = ExampleView::parse(record).map_err(|error| error.to_string())?;
        let is_known = |name: &str| names.binary_search_by(|known| known.as_str().cmp(name)).is_ok();
        match view.iter().find(|(name, _)| !is_known(name)) {
            Some((name, _)) => Err(format!("it has `{name}`, which is none of the features")),
            None => Ok(()),
        }
    }
}

/// The error about a record that is not as the features say.
fn misfit(file: &StayingFile, record: u64, reason: &str) -> anyhow::Error {
    Hinted::new(
        format!("{}, record {record}: {reason}", file.location),
        "files in place stay as they are stored: say in the recipe's features what the records have; or leave `--in-place` out, and they are converted",
    )
    .into()
}

/// Where goes what is made of a file.
#[derive(Debug)]
pub(super) struct Target<'a> {
    /// The index of a TFRecord file.
    pub(super) index: &'a Path,
    /// How the manifest calls the file.
    pub(super) path: &'a str,
    /// The statistics, and what is counted; `None` where nothing is.
    pub(super) statistics: Option<(&'a Path, &'a Statistics)>,
}

/// Reads a file, and writes what is made of it, durably.
///
/// # Errors
/// A file that is damaged, compressed as a whole, changed while it was read, or whose records are not what `checker` wants.
pub(super) fn read_file(
    file: &StayingFile,
    target: &Target<'_>,
    checker: &mut Checker<'_>,
    meter: &Meter,
    monitor: &Monitor,
) -> Result<Facts> {
    let stamp = stamp_of(file)?;
    let source: Arc<dyn ReadAt> = match file.location.as_path() {
        // Read, not mapped: memory stays small whatever its size, and a file cut meanwhile is an error.
        Some(path) => Arc::new(PositionedFile::open(path)?),
        None => store::open(&file.location)?,
    };
    let mut tally = Tally {
        file,
        checker,
        records: 0,
        payload_bytes: 0,
        hash: SequenceHash::default(),
        counting: match target.statistics {
            None => None,
            Some((path, prototype)) => Some(ShardStatistics::create(path, prototype)?),
        },
    };
    let mut bytes = Hashed::new(&*source, meter, monitor);
    let index = match file.is_array_record {
        true => read_array_record(&mut bytes, &mut tally).map(|()| None),
        false => read_tfrecord(&mut bytes, &mut tally).map(Some),
    };
    // A stop shows as an error of reading.
    monitor.check()?;
    let index = index?;
    let (records, payload_bytes, hash) = (tally.records, tally.payload_bytes, tally.hash);
    let counted = tally.counting;
    let sha256 = bytes.finish()?;
    if let Some(wanted) = file.records.filter(|wanted| *wanted != records) {
        return Err(other_length(&file.location.to_string(), records, wanted));
    }
    if stamp_of(file)? != stamp {
        return Err(Hinted::new(
            format!("{} changed while it was read", file.location),
            "register files when nothing writes to them",
        )
        .into());
    }
    let index = match index {
        None => None,
        Some(index) if index.file_bytes() == source.len() => {
            Some(write_index(&index.to_bytes(), target.index)?)
        }
        Some(_) => bail!("{}: its records do not fill the file", file.location),
    };
    if let Some(counted) = counted {
        counted.finish(target.path, &hash)?;
    }
    Ok(Facts {
        name: file.name.clone(),
        stamp,
        bytes: source.len(),
        sha256,
        records,
        payload_bytes,
        sequence_hash: hash.to_hex(),
        index,
    })
}

/// Counts, hashes and checks records.
struct Tally<'a, 'b> {
    file: &'a StayingFile,
    checker: &'a mut Checker<'b>,
    records: u64,
    payload_bytes: u64,
    hash: SequenceHash,
    counting: Option<ShardStatistics>,
}

impl Tally<'_, '_> {
    fn add(&mut self, record: &[u8]) -> Result<()> {
        self.checker
            .check(record)
            .map_err(|reason| misfit(self.file, self.records, &reason))?;
        let hash = record_hash(record);
        self.hash.push_hash(hash);
        if let Some(counting) = &mut self.counting {
            counting.add(record, hash)?;
        }
        self.records += 1;
        self.payload_bytes += record.len() as u64;
        Ok(())
    }
}

/// What to do about a damaged file.
fn damaged(error: prep_formats::Error) -> anyhow::Error {
    match error {
        prep_formats::Error::Damaged { .. } => Hinted::new(
            error.to_string(),
            "get the file again; or leave `--in-place` out, and such records too with `--on-error skip`",
        )
        .into(),
        other => other.into(),
    }
}

fn read_array_record(bytes: &mut Hashed<'_>, tally: &mut Tally<'_, '_>) -> Result<()> {
    let name = tally.file.location.to_string();
    let mut reader = StreamReader::new(bytes, name, StreamOptions::default());
    while let Some(record) = reader.next().map_err(damaged)? {
        tally.add(record)?;
    }
    Ok(())
}

fn read_tfrecord(bytes: &mut Hashed<'_>, tally: &mut Tally<'_, '_>) -> Result<tfrecord::Index> {
    let name = tally.file.location.to_string();
    let mut reader = tfrecord::Reader::new(bytes, name, tfrecord::ReadOptions::default()).map_err(damaged)?;
    if reader.compression() != Compression::Plain {
        return Err(Hinted::new(
            format!(
                "{} is compressed as a whole, by {}: its records have no places that could be jumped to",
                tally.file.location,
                reader.compression().word()
            ),
            "write it anew with `prep convert`, and register the shards that it gives; or leave `--in-place` out",
        )
        .into());
    }
    let mut index = IndexBuilder::default();
    while let Some(record) = reader.next().map_err(damaged)? {
        tally.add(record)?;
        index.push(record.len() as u64);
    }
    Ok(index.finish())
}

fn write_index(bytes: &[u8], path: &Path) -> Result<FileManifest> {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    File::create(path)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .with_context(|| format!("could not write {}", path.display()))?;
    Ok(FileManifest {
        path: name,
        bytes: bytes.len() as u64,
        sha256: hex::encode(Sha256::digest(bytes)),
    })
}

/// The bytes of a source, hashed on their way; ends with an error when the job is stopped. Holds one block: 4 MiB, 16 MiB of an object store.
struct Hashed<'a> {
    source: &'a dyn ReadAt,
    meter: &'a Meter,
    monitor: &'a Monitor,
    sha256: Sha256,
    /// Where the next block begins.
    offset: u64,
    block: Vec<u8>,
    start: usize,
    parts: usize,
}

impl<'a> Hashed<'a> {
    fn new(source: &'a dyn ReadAt, meter: &'a Meter, monitor: &'a Monitor) -> Self {
        Self {
            // What a request costs tells whether it is far away.
            parts: match source.request_cost() > PART_BYTES as u64 / 64 {
                true => PARTS,
                false => 1,
            },
            source,
            meter,
            monitor,
            sha256: Sha256::new(),
            offset: 0,
            block: Vec::new(),
            start: 0,
        }
    }

    fn next_block(&mut self) -> io::Result<()> {
        self.monitor.check().map_err(io::Error::other)?;
        let count = (self.source.len() - self.offset).min((PART_BYTES * self.parts) as u64);
        self.block.resize(count as usize, 0);
        self.start = 0;
        let mut at = self.offset;
        let mut parts: Vec<Part<'_>> = Vec::new();
        for buffer in self.block.chunks_mut(PART_BYTES) {
            let length = buffer.len() as u64;
            parts.push(Part { offset: at, buffer });
            at += length;
        }
        self.source.read_many(&mut parts).map_err(io::Error::other)?;
        self.offset = at;
        self.sha256.update(&self.block);
        self.meter.add(count);
        Ok(())
    }

    /// SHA-256 of all bytes, hex.
    fn finish(mut self) -> Result<String> {
        // A reader stops where its format ends.
        while self.offset < self.source.len() {
            self.next_block()?;
        }
        Ok(hex::encode(self.sha256.finalize()))
    }
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.start == self.block.len() && self.offset < self.source.len() {
            self.next_block()?;
        }
        let rest = &self.block[self.start..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.start += count;
        Ok(count)
    }
}
