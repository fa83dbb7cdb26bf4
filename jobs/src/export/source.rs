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

fn changed(at: &Location, what: &str, found: u64, wanted: u64) -> anyhow::Error {
    Hinted::new(
        format!("{at} has {found} {what}, the manifest says {wanted}: it was cut or replaced"),
        "`prep verify` finds all that is damaged in a dataset; build or register it again",
    )
    .into()
}

/// Records of a TFRecord file whose places are looked up at a time.
const BLOCK_RECORDS: u64 = 1 << 16;

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
    let mut first = 0;
    for shard in &split.shards {
        let (start, end) = (range.start.max(first), range.end.min(first + shard.records));
        if start < end {
            let at = shard.location(folder);
            // What `visit` says is not about the shard, and does not go through its reader.
            let mut failure = None;
            let read = read_shard(folder, shard, start - first..end - first, &mut |record, bytes| {
                visit(bytes).map_err(|error| {
                    failure = Some(error.context(format!("could not export record {record} of {at}")));
                    prep_formats::Error::Invalid("stopped".to_owned())
                })
            });
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

/// What is called with the number of a record in its shard, and its bytes.
type Visit<'a> = dyn FnMut(u64, &[u8]) -> prep_formats::Result<()> + 'a;

fn read_shard(
    folder: &Location,
    shard: &ShardManifest,
    range: Range<u64>,
    visit: &mut Visit<'_>,
) -> Result<()> {
    let source = open_shard(folder, shard)?;
    let counted = |records: u64| match records == shard.records {
        true => Ok(()),
        false => Err(changed(
            &shard.location(folder),
            "records",
            records,
            shard.records,
        )),
    };
    let Some(index) = &shard.index else {
        let reader = Reader::from_source(source)?;
        counted(reader.num_records())?;
        return Ok(reader.for_each(range, &mut Scratch::default(), |record, bytes| {
            visit(record, bytes)
        })?);
    };
    let index = Index::load_from(&folder.join(&index.path), &*source)?;
    let reader = IndexedReader::with_index(source, Arc::new(index));
    counted(reader.num_records())?;
    let mut next = range.start;
    while next < range.end {
        let records: Vec<u64> = (next..range.end.min(next + BLOCK_RECORDS)).collect();
        reader.for_each(&records, |place, bytes| visit(records[place], bytes))?;
        next += records.len() as u64;
    }
    Ok(())
}
