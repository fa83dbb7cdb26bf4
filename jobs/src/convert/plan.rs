//! Decides which record goes to which shard: counts the inputs, and cuts.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use prep_formats::Position;
use prep_formats::array_record::Reader as ArrayReader;
use prep_formats::dataset_info::SplitInfo;
use prep_formats::store::ReadAt;
use prep_formats::tfrecord::{
    self, CrcPolicy, FRAME_HEADER, FRAME_TRAILER, Frame, ReadOptions, cut_short, find_record, frame_at,
};
use serde::{Deserialize, Serialize};

use crate::convert::inputs::{InputFile, Kind};
use crate::convert::ledger::Ledger;
use crate::convert::read::{Block, BlockReader, CRC, Mark, ReadPlan};
use crate::monitor::{Meter, Monitor};
use crate::tfds;

/// Bytes of a plain file that one thread counts at a time.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Bytes between two marks, of plain files; records between them, of ArrayRecord files.
const MARK_BYTES: u64 = 4 << 20;
const MARK_RECORDS: u64 = 64 << 10;
/// Bytes asked of a plain file at once while counting.
const STEP_BYTES: usize = 256 << 10;
/// Bytes asked where records are so large that they are jumped over.
const PROBE_BYTES: usize = 4 << 10;

/// How many shards there are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ShardCount {
    /// As TFDS would choose, by size.
    Auto,
    /// One for each input.
    Same,
    Number(u64),
    /// As many as keep a shard below so many bytes, on average.
    MaxBytes(u64),
}

/// Inputs that make one row of shards.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Split {
    pub(crate) name: String,
    pub(crate) inputs: Range<usize>,
    naming: Naming,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Naming {
    Plain,
    /// As TFDS names the files of this dataset.
    Tfds {
        dataset: String,
        template: String,
    },
}

impl Split {
    /// All inputs in one row.
    pub(crate) fn single(name: &str, num_inputs: usize) -> Self {
        Self {
            name: name.to_owned(),
            inputs: 0..num_inputs,
            naming: Naming::Plain,
        }
    }

    pub(crate) fn tfds(name: &str, inputs: Range<usize>, dataset: &str, template: &str) -> Self {
        Self {
            name: name.to_owned(),
            inputs,
            naming: Naming::Tfds {
                dataset: dataset.to_owned(),
                template: template.to_owned(),
            },
        }
    }

    /// The file name of a shard.
    pub(crate) fn file_name(&self, index: u64, count: u64) -> String {
        match &self.naming {
            Naming::Plain => format!("{}.array_record-{index:05}-of-{count:05}", self.name),
            Naming::Tfds { dataset, template } => SplitInfo {
                name: self.name.clone(),
                shard_lengths: vec![0; usize::try_from(count).unwrap_or(usize::MAX)],
                filepath_template: template.clone(),
                ..SplitInfo::default()
            }
            .shard_name(
                dataset,
                "array_record",
                usize::try_from(index).unwrap_or(usize::MAX),
            ),
        }
    }
}

/// Which record goes to which shard. Holds some 100 bytes a shard and an input, and 24 for each 4 MiB of a plain input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) inputs: Vec<InputFile>,
    /// What was counted, by input; empty where nothing was.
    pub(crate) counts: Vec<Count>,
    pub(crate) splits: Vec<Split>,
    pub(crate) shards: Vec<PlannedShard>,
}

impl Plan {
    pub(crate) fn is_counted(&self) -> bool {
        !self.counts.is_empty()
    }
}

/// A shard that is to be written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlannedShard {
    pub(crate) split: usize,
    pub(crate) path: String,
    /// Records, where they are known.
    pub(crate) records: Option<u64>,
    /// Bytes of it, about: large ones are begun first.
    pub(crate) weight: u64,
    pub(crate) segments: Vec<Segment>,
    /// Whether it goes on in the compressed input in which the shard before it ends, so that one thread writes both.
    pub(crate) follows: bool,
}

/// Records of one input, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) input: usize,
    pub(crate) from: Mark,
    /// Good records to pass over behind the mark: compressed inputs have no other marks than their start.
    pub(crate) skip: u64,
    /// Good records; `None` for all there are.
    pub(crate) records: Option<u64>,
}

/// What one pass over an input tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Good records.
    pub(crate) records: u64,
    /// Their bytes.
    pub(crate) payload_bytes: u64,
    /// Damaged records.
    pub(crate) skipped: u64,
    pub(crate) marks: Vec<Mark>,
}

/// Counts all inputs, on `workers` threads. Checks checksums where damaged records are to be left out.
pub(crate) fn count(
    inputs: &[InputFile],
    workers: usize,
    ledger: &Arc<Ledger>,
    meter: &Meter,
    monitor: &Monitor,
) -> Result<Vec<Count>> {
    let check = !ledger.stops();
    let mut tasks = Vec::new();
    for (input, file) in inputs.iter().enumerate() {
        let is_cut = file.kind == Kind::Plain && !check && file.bytes > 2 * SEGMENT_BYTES;
        let count = if is_cut {
            file.bytes.div_ceil(SEGMENT_BYTES)
        } else {
            1
        };
        tasks.extend((0..count).map(|segment| (input, segment, count)));
    }
    // The files that cannot be split first, the largest of them before the others.
    tasks.sort_by_key(|(input, segment, count)| {
        (
            *count > 1,
            std::cmp::Reverse(inputs[*input].bytes / count),
            *input,
            *segment,
        )
    });
    let found = in_parallel(workers, &tasks, |&(input, segment, count)| {
        monitor.check()?;
        let file = &inputs[input];
        if count > 1 {
            let begin = segment * SEGMENT_BYTES;
            let stop = (begin + SEGMENT_BYTES).min(file.bytes);
            let source = file.open()?;
            let first = if segment == 0 {
                Some(0)
            } else {
                find_record(&*source, begin)?
            };
            let hop = match first {
                Some(first) => Hop::over(&*source, first, stop, meter, monitor)?,
                None => Hop::default(),
            };
            return Ok((input, segment, Part::Segment(hop)));
        }
        let whole = match file.kind {
            Kind::Plain if !check => {
                let source = file.open()?;
                let hop = Hop::over(&*source, 0, file.bytes, meter, monitor)?;
                hop.whole(&*source, &file.shown)?
            }
            _ => count_whole(file, input, check, ledger, meter, monitor)?,
        };
        Ok((input, segment, Part::Whole(whole)))
    })?;
    let mut counts = vec![Count::default(); inputs.len()];
    let mut segments: Vec<Vec<(u64, Hop)>> = vec![Vec::new(); inputs.len()];
    for (input, segment, part) in found {
        match part {
            Part::Whole(count) => counts[input] = count,
            Part::Segment(hop) => segments[input].push((segment, hop)),
        }
    }
    for (input, mut hops) in segments
        .into_iter()
        .enumerate()
        .filter(|(_, hops)| !hops.is_empty())
    {
        hops.sort_by_key(|(segment, _)| *segment);
        let file = &inputs[input];
        let source = file.open()?;
        let mut chain: Option<Hop> = None;
        for (segment, hop) in hops {
            let stop = ((segment + 1) * SEGMENT_BYTES).min(file.bytes);
            let Some(before) = &mut chain else {
                chain = Some(hop);
                continue;
            };
            // Proven where the chain of lengths from the start leads to its first record; else it was bytes of a record that look like one.
            if before.damage {
                break;
            }
            if before.end >= stop {
                continue;
            }
            let proven = if hop.first == before.end && hop.end > hop.first {
                hop
            } else {
                Hop::over(&*source, before.end, stop, meter, monitor)?
            };
            before.append(proven);
        }
        counts[input] = chain.unwrap_or_default().whole(&*source, &file.shown)?;
    }
    Ok(counts)
}

enum Part {
    Whole(Count),
    Segment(Hop),
}

/// What hopping from length to length through a plain file tells.
#[derive(Debug, Clone, Default)]
struct Hop {
    first: u64,
    /// Where the record begins that was not looked at.
    end: u64,
    records: u64,
    payload_bytes: u64,
    marks: Vec<Mark>,
    /// Whether there is no record at `end`, although the file goes on.
    damage: bool,
}

impl Hop {
    /// Hops from `first` to the first record that begins at `stop` or behind.
    fn over(source: &dyn ReadAt, first: u64, stop: u64, meter: &Meter, monitor: &Monitor) -> Result<Self> {
        let length = source.len();
        let mut hop = Self {
            first,
            end: first,
            ..Self::default()
        };
        let cost = usize::try_from(source.request_cost()).unwrap_or(STEP_BYTES);
        let (step, probe) = (STEP_BYTES.max(cost), PROBE_BYTES.max(cost));
        let mut buffer = vec![0; step];
        let (mut begin, mut filled) = (first, 0_usize);
        let mut next_mark = first;
        while hop.end < stop {
            let mut at = (hop.end - begin) as usize;
            let known = filled.saturating_sub(at);
            if known < FRAME_HEADER && (begin + filled as u64) < length {
                monitor.check()?;
                // Where the last bytes held only a few records, they are jumped over.
                let large = hop.records > 0 && (hop.end - first) / hop.records > (step / 4) as u64;
                let count = (length - hop.end).min(if large { probe } else { step } as u64) as usize;
                source.read_at(hop.end, &mut buffer[..count])?;
                meter.add(hop.end + count as u64 - (begin + filled as u64).min(hop.end));
                (begin, filled, at) = (hop.end, count, 0);
            }
            let bytes = buffer[..filled].get(at..).unwrap_or(&[]);
            let payload = match frame_at(bytes) {
                Frame::Whole(payload) => payload as u64,
                Frame::Partial(needed) if bytes.len() >= FRAME_HEADER && needed <= length - hop.end => {
                    needed - (FRAME_HEADER + FRAME_TRAILER) as u64
                }
                _ => {
                    hop.damage = true;
                    break;
                }
            };
            if hop.end >= next_mark {
                hop.marks.push(Mark {
                    records: hop.records,
                    index: hop.records,
                    at: hop.end,
                });
                next_mark = hop.end + MARK_BYTES;
            }
            hop.records += 1;
            hop.payload_bytes += payload;
            hop.end += payload + (FRAME_HEADER + FRAME_TRAILER) as u64;
        }
        Ok(hop)
    }

    fn append(&mut self, next: Self) {
        let before = self.records;
        self.marks.extend(next.marks.into_iter().map(|mark| Mark {
            records: mark.records + before,
            index: mark.index + before,
            at: mark.at,
        }));
        self.records += next.records;
        self.payload_bytes += next.payload_bytes;
        self.end = next.end;
        self.damage = next.damage;
    }

    /// What it says of the whole file; an error where it did not come to its end.
    fn whole(self, source: &dyn ReadAt, name: &str) -> Result<Count> {
        if self.damage {
            let at = Position {
                path: name.to_owned(),
                record: Some(self.records),
                offset: Some(self.end),
            };
            let mut header = [0; FRAME_HEADER];
            let left = source.len() - self.end;
            let header = &mut header[..left.min(FRAME_HEADER as u64) as usize];
            source.read_at(self.end, header)?;
            return Err(match frame_at(header) {
                Frame::BadLength(fault) => fault.at(at),
                Frame::Partial(needed) => cut_short(at, needed, left),
                _ => cut_short(at, u64::MAX, left),
            }
            .into());
        }
        Ok(Count {
            records: self.records,
            payload_bytes: self.payload_bytes,
            skipped: 0,
            marks: self.marks,
        })
    }
}

/// Counts a file from its start to its end.
fn count_whole(
    file: &InputFile,
    input: usize,
    check: bool,
    ledger: &Arc<Ledger>,
    meter: &Meter,
    monitor: &Monitor,
) -> Result<Count> {
    let mut count = Count::default();
    match file.kind {
        Kind::Empty => return Ok(count),
        Kind::ArrayRecord if !check => {
            let reader = ArrayReader::from_source(file.open()?)?;
            meter.add(file.bytes);
            // The footer has no sizes of records; those of the file will do for choosing a number of shards.
            return Ok(Count {
                records: reader.num_records(),
                payload_bytes: file.bytes,
                ..count
            });
        }
        Kind::Gzip | Kind::Zlib | Kind::Zstd if !check => {
            let source = crate::convert::read::sequential(file.open()?);
            let options = ReadOptions::default().crc(CrcPolicy::Skip);
            let mut reader = tfrecord::Reader::new(source, &file.shown, options)?;
            while let Some(record) = reader.next()? {
                count.records += 1;
                count.payload_bytes += record.len() as u64;
                if count.records.is_multiple_of(1024) {
                    monitor.check()?;
                }
            }
            meter.add(file.bytes);
            return Ok(count);
        }
        _ => {}
    }
    let plan = ReadPlan {
        block_bytes: STEP_BYTES,
        check: true,
        counted: false,
        sum: false,
    };
    let before = ledger.skipped(input);
    let mut reader = BlockReader::open(file, input, Mark::default(), plan, ledger)?;
    let mut block = Block::default();
    let mut last_mark = 0;
    loop {
        monitor.check()?;
        let mark = reader.mark(0);
        let due = match file.kind {
            Kind::Plain => MARK_BYTES,
            _ => MARK_RECORDS,
        };
        if mark.at == 0 && count.marks.is_empty() || mark.at >= last_mark + due {
            count.marks.push(mark);
            last_mark = mark.at;
        }
        let more = reader.next(u64::MAX, &mut block)?;
        count.records += block.len();
        count.payload_bytes += block.payload_bytes();
        if !more {
            break;
        }
        if file.kind == Kind::Plain {
            meter.add(reader.mark(0).at - mark.at);
        }
    }
    count.skipped = ledger.skipped(input) - before;
    Ok(count)
}

/// Where the good record of this number begins, and how many have to be passed over from there.
fn locate(
    file: &InputFile,
    input: usize,
    count: &Count,
    record: u64,
    ledger: &Arc<Ledger>,
) -> Result<(Mark, u64)> {
    let check = !ledger.stops();
    if record == 0 {
        return Ok((Mark::default(), 0));
    }
    match file.kind {
        Kind::Gzip | Kind::Zlib | Kind::Zstd | Kind::Empty => return Ok((Mark::default(), record)),
        Kind::ArrayRecord if !check => {
            let mark = Mark {
                records: record,
                index: record,
                at: record,
            };
            return Ok((mark, 0));
        }
        _ => {}
    }
    let place = count.marks.partition_point(|mark| mark.records <= record);
    let mark = place
        .checked_sub(1)
        .map_or(Mark::default(), |place| count.marks[place]);
    let plan = ReadPlan {
        block_bytes: STEP_BYTES,
        check,
        counted: true,
        sum: false,
    };
    let mut reader = BlockReader::open(file, input, mark, plan, ledger)?;
    let mut block = Block::default();
    let mut left = record - mark.records;
    while left > 0 {
        let more = reader.next(left, &mut block)?;
        left -= block.len();
        if !more && left > 0 {
            bail!("{} has changed since it was counted", file.shown);
        }
    }
    Ok((reader.mark(mark.records), 0))
}

/// `numerator / denominator`, a half to the even side, as Python and TFDS round.
fn round_half_even(numerator: u128, denominator: u128) -> u128 {
    let (quotient, rest) = (numerator / denominator, numerator % denominator);
    match (2 * rest).cmp(&denominator) {
        std::cmp::Ordering::Less => quotient,
        std::cmp::Ordering::Greater => quotient + 1,
        std::cmp::Ordering::Equal => quotient + quotient % 2,
    }
}

/// Where the shards of so many records begin, and the end of the last: at round-half-even(records * i / shards).
pub(crate) fn boundaries(records: u64, shards: u64) -> Vec<u64> {
    (0..=shards)
        .map(|i| round_half_even(u128::from(records) * u128::from(i), u128::from(shards.max(1))) as u64)
        .collect()
}

/// How many shards so many records make.
pub(crate) fn number_of_shards(
    count: ShardCount,
    num_inputs: usize,
    records: u64,
    payload_bytes: u64,
) -> u64 {
    match count {
        ShardCount::Same => num_inputs as u64,
        ShardCount::Number(number) => number,
        ShardCount::Auto => tfds::number_of_shards(payload_bytes, records).max(1),
        ShardCount::MaxBytes(most) => {
            let total = payload_bytes.saturating_add(16 * records);
            total.div_ceil(most.max(1)).clamp(1, records.max(1))
        }
    }
}

/// The plan of a conversion in source order that needs no counting: each input becomes a shard.
pub(crate) fn one_to_one(inputs: Vec<InputFile>, splits: Vec<Split>) -> Plan {
    let mut shards = Vec::new();
    for (index, split) in splits.iter().enumerate() {
        let count = split.inputs.len() as u64;
        for (place, input) in split.inputs.clone().enumerate() {
            shards.push(PlannedShard {
                split: index,
                path: split.file_name(place as u64, count),
                records: None,
                weight: inputs[input].bytes,
                segments: vec![Segment {
                    input,
                    from: Mark::default(),
                    skip: 0,
                    records: None,
                }],
                follows: false,
            });
        }
    }
    Plan {
        inputs,
        counts: Vec::new(),
        splits,
        shards,
    }
}

/// The plan of a conversion in source order: cuts what was counted.
pub(crate) fn cut(
    inputs: Vec<InputFile>,
    counts: Vec<Count>,
    splits: Vec<Split>,
    shards: ShardCount,
    limit: Option<u64>,
    ledger: &Arc<Ledger>,
) -> Result<Plan> {
    let mut planned = Vec::new();
    for (index, split) in splits.iter().enumerate() {
        let all: u64 = counts[split.inputs.clone()]
            .iter()
            .map(|count| count.records)
            .sum();
        let bytes: u64 = counts[split.inputs.clone()]
            .iter()
            .map(|count| count.payload_bytes)
            .sum();
        let records = limit.map_or(all, |limit| all.min(limit));
        let bytes = scaled(bytes, records, all);
        let cuts = if shards == ShardCount::Same {
            let mut cuts = vec![0];
            for input in split.inputs.clone() {
                cuts.push((cuts[cuts.len() - 1] + counts[input].records).min(records));
            }
            cuts
        } else {
            boundaries(
                records,
                number_of_shards(shards, split.inputs.len(), records, bytes),
            )
        };
        let num_shards = cuts.len() as u64 - 1;
        let mut cursor = (split.inputs.start, 0);
        for (place, cut) in cuts.windows(2).enumerate() {
            let segments = segments(
                &inputs,
                &counts,
                &split.inputs,
                &mut cursor,
                cut[1] - cut[0],
                ledger,
            )?;
            planned.push(PlannedShard {
                split: index,
                path: split.file_name(place as u64, num_shards),
                records: Some(cut[1] - cut[0]),
                weight: scaled(bytes, cut[1] - cut[0], records),
                follows: follows(&segments, &inputs, cut[1] - cut[0]),
                segments,
            });
        }
    }
    Ok(Plan {
        inputs,
        counts,
        splits,
        shards: planned,
    })
}

fn scaled(bytes: u64, part: u64, whole: u64) -> u64 {
    (u128::from(bytes) * u128::from(part) / u128::from(whole.max(1))) as u64
}

/// Whether a shard is better written after the one before it: where it begins deep in a compressed input, which would have to be decompressed up
/// to there once more.
fn follows(segments: &[Segment], inputs: &[InputFile], records: u64) -> bool {
    segments
        .first()
        .is_some_and(|segment| inputs[segment.input].kind.is_compressed() && segment.skip > records)
}

/// The next records of a split, from the cursor (input, record in it) on.
fn segments(
    inputs: &[InputFile],
    counts: &[Count],
    of: &Range<usize>,
    cursor: &mut (usize, u64),
    mut records: u64,
    ledger: &Arc<Ledger>,
) -> Result<Vec<Segment>> {
    let mut found = Vec::new();
    while records > 0 {
        let (input, start) = *cursor;
        if input >= of.end {
            bail!("there are fewer records than were counted");
        }
        let left = counts[input].records - start;
        if left == 0 {
            *cursor = (input + 1, 0);
            continue;
        }
        let take = left.min(records);
        let (from, skip) = locate(&inputs[input], input, &counts[input], start, ledger)
            .with_context(|| format!("could not find record {start} of {}", inputs[input].shown))?;
        found.push(Segment {
            input,
            from,
            skip,
            records: Some(take),
        });
        records -= take;
        *cursor = (input, start + take);
    }
    Ok(found)
}

/// The checksums of the first `bytes` bytes of inputs, on `workers` threads: (input, bytes) in, checksums out in the same order.
pub(crate) fn digest(
    inputs: &[InputFile],
    wanted: &[(usize, u64)],
    workers: usize,
    meter: &Meter,
    monitor: &Monitor,
) -> Result<Vec<u64>> {
    // In pieces, so that one large file keeps all workers busy.
    let mut pieces = Vec::new();
    for (place, (input, bytes)) in wanted.iter().enumerate() {
        let mut start = 0;
        loop {
            let end = (start + SEGMENT_BYTES).min(*bytes);
            pieces.push((place, *input, start, end));
            start = end;
            if start >= *bytes {
                break;
            }
        }
    }
    let mut found = in_parallel(workers, &pieces, |&(place, input, start, end)| {
        let source = inputs[input].open()?;
        let step = STEP_BYTES.max(usize::try_from(source.request_cost()).unwrap_or(STEP_BYTES)) as u64;
        let mut buffer = vec![0; step.min(end - start) as usize];
        let mut crc = crc_fast::Digest::new(CRC);
        let mut offset = start;
        while offset < end {
            monitor.check()?;
            let count = (end - offset).min(step) as usize;
            source.read_at(offset, &mut buffer[..count])?;
            crc.update(&buffer[..count]);
            meter.add(count as u64);
            offset += count as u64;
        }
        Ok((place, start, end, crc.finalize()))
    })?;
    found.sort_unstable();
    let mut sums: Vec<Option<u64>> = vec![None; wanted.len()];
    for (place, start, end, crc) in found {
        sums[place] = Some(match sums[place] {
            None => crc,
            Some(before) => crc_fast::checksum_combine(CRC, before, crc, end - start),
        });
    }
    Ok(sums.into_iter().map(Option::unwrap_or_default).collect())
}

/// Works on all tasks, on up to `workers` threads; results come in no particular order. The first error ends it.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    workers: usize,
    tasks: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    // The error of the task that comes first, so that it does not depend on timing.
    let failure: Mutex<Option<(usize, anyhow::Error)>> = Mutex::new(None);
    let lock_failure = || failure.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(tasks.len()).max(1) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(place) else {
                        return;
                    };
                    match work(task) {
                        Ok(result) => results
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(result),
                        Err(error) => {
                            let mut failure = lock_failure();
                            if failure.as_ref().is_none_or(|(other, _)| place < *other) {
                                *failure = Some((place, error));
                            }
                            next.store(tasks.len(), Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// An error that tells where a number of records and a plan differ.
pub(crate) fn changed(file: &InputFile) -> anyhow::Error {
    anyhow!(
        "{} has fewer records than were counted: it was changed since",
        file.shown
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use prep_formats::store::MemoryFile;
    use prep_formats::tfrecord::{Compression, Writer};

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), Compression::Plain).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap()
    }

    #[test]
    fn cuts_are_tfdss() {
        assert_eq!(boundaries(10, 4), [0, 2, 5, 8, 10]);
        assert_eq!(boundaries(3, 8), [0, 0, 1, 1, 2, 2, 2, 3, 3]);
        assert_eq!(boundaries(0, 2), [0, 0, 0]);
        for (records, shards) in [(100, 7), (50_000, 16), (1, 1), (17, 17)] {
            let wanted = tfds::shard_boundaries(records, shards).unwrap();
            assert_eq!(boundaries(records, shards)[1..], wanted[..]);
        }
    }

    #[test]
    fn numbers_of_shards_follow_their_rule() {
        assert_eq!(number_of_shards(ShardCount::Same, 5, 0, 0), 5);
        assert_eq!(number_of_shards(ShardCount::Auto, 5, 0, 0), 1);
        assert_eq!(
            number_of_shards(ShardCount::MaxBytes(1 << 20), 1, 1000, 10 << 20),
            11
        );
        assert_eq!(number_of_shards(ShardCount::MaxBytes(1), 1, 3, 100), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Hops from any two places meet, and together see what one pass sees.
        #[test]
        fn hops_meet(lengths in prop::collection::vec(prop_oneof![0usize..100, 0usize..5000, Just(300_000)], 1..60), cut in any::<prop::sample::Index>()) {
            let records: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(i, length)| vec![i as u8 + 1; *length]).collect();
            let bytes = file(&records);
            let cut = cut.index(bytes.len()) as u64;
            let source = MemoryFile::new("x", bytes.clone());
            let monitor = Monitor::new();
            let meter = monitor.stage("count", crate::monitor::Unit::Bytes, None);
            let whole = Hop::over(&source, 0, bytes.len() as u64, &meter, &monitor).unwrap();
            prop_assert_eq!((whole.records, whole.damage), (records.len() as u64, false));
            prop_assert_eq!(whole.payload_bytes, lengths.iter().sum::<usize>() as u64);
            let mut first = Hop::over(&source, 0, cut, &meter, &monitor).unwrap();
            let second = match find_record(&source, cut).unwrap() {
                Some(start) => Hop::over(&source, start, bytes.len() as u64, &meter, &monitor).unwrap(),
                None => Hop { first: bytes.len() as u64, end: bytes.len() as u64, ..Hop::default() },
            };
            prop_assert_eq!(first.end, second.first);
            first.append(second);
            prop_assert_eq!((first.records, first.payload_bytes, first.end), (whole.records, whole.payload_bytes, whole.end));
        }
    }

    #[test]
    fn errors_come_from_the_first_task() {
        let tasks: Vec<u32> = (0..100).collect();
        let found = in_parallel(4, &tasks, |task| Ok(task * 2)).unwrap();
        assert_eq!(found.iter().sum::<u32>(), 9900);
        let error = in_parallel(1, &tasks, |task| {
            if *task >= 10 {
                Err(anyhow!("{task}"))
            } else {
                Ok(())
            }
        });
        assert_eq!(error.unwrap_err().to_string(), "10");
    }
}
