//! The records of a version's splits, from its shards.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use prep_catalog::manifest::{ShardManifest, SplitManifest};
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::store::{self, Location, PositionedFile, ReadAt};
use prep_formats::tfrecord::{Index, IndexedReader};

use crate::error::Hinted;

/// Opens a shard for reads in sequence: a local one without a map, whose pages would count as this process's memory.
pub(crate) fn open_shard(folder: &Location, shard: &ShardManifest) -> Result<Arc<dyn ReadAt>> {
    let at = shard.location(folder);
    let file: Arc<dyn ReadAt> = match at.as_path() {
        Some(path) => Arc::new(
            PositionedFile::open(&path).with_context(|| format!("could not open {}", path.display()))?,
        ),
        None => store::open(&at)?,
    };
    if file.len() != shard.bytes {
        return Err(changed(&at, "bytes", file.len(), shard.bytes));
    }
    Ok(file)
}

/// Calls `visit` for a range of records, some at a time.
fn each_of_tfrecord(
    reader: &IndexedReader,
    range: Range<u64>,
    mut visit: impl FnMut(u64, &[u8]) -> prep_formats::Result<()>,
) -> prep_formats::Result<()> {
    const RECORDS: u64 = 4096;
    let mut start = range.start;
    while start < range.end {
        let indices: Vec<u64> = (start..range.end.min(start + RECORDS)).collect();
        reader.for_each(&indices, |place, bytes| visit(indices[place], bytes))?;
        start += RECORDS;
    }
    Ok(())
}

fn changed(at: &Location, what: &str, found: u64, wanted: u64) -> anyhow::Error {
    Hinted::new(
        format!("{at} has {found} {what}, the manifest says {wanted}: it was cut or replaced"),
        "`prep verify` finds all that is damaged in a dataset; build it again",
    )
    .into()
}

/// Calls `visit` for the records of a range of a split, in order. Holds up to 32 MiB of a shard.
///
/// # Errors
/// A shard that is missing, changed or damaged, with the number of the record; those of `visit`.
pub(crate) fn each_record(
    folder: &Location,
    split: &SplitManifest,
    range: Range<u64>,
    mut visit: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut scratch = Scratch::default();
    let mut first = 0;
    for shard in &split.shards {
        let (start, end) = (range.start.max(first), range.end.min(first + shard.records));
        if start < end {
            let at = shard.location(folder);
            let source = open_shard(folder, shard)?;
            // What `visit` says is not about the shard, and does not go through its reader.
            let mut failure = None;
            let mut each = |record: u64, bytes: &[u8]| {
                visit(bytes).map_err(|error| {
                    failure = Some(error.context(format!("could not export record {record} of {at}")));
                    prep_formats::Error::Invalid("stopped".to_owned())
                })
            };
            let range = start - first..end - first;
            let read = match &shard.index {
                Some(index) => {
                    let index = Index::load_from(&folder.join(&index.path), &*source)?;
                    each_of_tfrecord(&IndexedReader::with_index(source, Arc::new(index)), range, each)
                }
                None => {
                    let reader = Reader::from_source(source)?;
                    if reader.num_records() != shard.records {
                        return Err(changed(&at, "records", reader.num_records(), shard.records));
                    }
                    reader.for_each(range, &mut scratch, &mut each)
                }
            };
            if let Some(error) = failure {
                return Err(error);
            }
            read?;
        }
        first += shard.records;
    }
    if range.end > first {
        bail!(
            "split `{}` has {first} records, {} are wanted",
            split.name,
            range.end
        );
    }
    Ok(())
}
