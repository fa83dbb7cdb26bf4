//! A sorted run on disk: blocks of records, each compressed where that pays and with its checksum, in a file without a name.
//!
//! The file is only ever read by the process that wrote it, which keeps the index of its blocks in memory (40 bytes for each block of 4 to
//! 256 KiB, or longer where one record is).

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use zstd_safe::{CCtx, CParameter, DCtx, compress_bound};

use crate::Error;
use crate::job::Job;
use crate::progress::Account;
use crate::record::{Lying, Order, RECORD_OVERHEAD_BYTES, first_record, number, put_header};

/// How hard blocks are compressed. Of zstd's levels 1, -3 and -7, the CPU time of text through a spilling sort (`cargo bench -p prep-dataflow -- text`)
/// was 14.6, 12.3 and 9.0 us a record of 1 KB, for 0.42, 0.60 and 0.78 of its bytes; uncompressed it is 2.5 us.
const LEVEL: i32 = 1;
/// Most blocks that are not tried after some that didn't shrink.
const LONGEST_PAUSE: u32 = 64;
/// While nothing is compressed, one block in so many is, to know what it would bring.
const PROBE_EVERY: u64 = 256;

/// Whether sorted runs are compressed on their way to the spill folder. See [`Options::spill_compression`](crate::Options::spill_compression).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpillCompression {
    /// Where it saves time, because the disk takes longer for the bytes that are saved than compressing does, or where the disk
    /// doesn't have four times the room that is needed.
    #[default]
    Auto,
    /// Wherever blocks shrink.
    Always,
    /// Nowhere.
    Never,
}

/// What writing and compressing have cost so far, in all runs of a folder.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    written_bytes: AtomicU64,
    write_ns: AtomicU64,
    packed_bytes: AtomicU64,
    packed_to_bytes: AtomicU64,
    pack_ns: AtomicU64,
    blocks: AtomicU64,
}

impl Pace {
    fn wrote(&self, bytes: u64, took: Duration) {
        self.written_bytes.fetch_add(bytes, Relaxed);
        self.write_ns.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    fn packed(&self, bytes: u64, to_bytes: u64, took: Duration) {
        self.packed_bytes.fetch_add(bytes, Relaxed);
        self.packed_to_bytes.fetch_add(to_bytes, Relaxed);
        self.pack_ns.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    /// Whether the bytes that a block shrinks by cost more to write and read again than compressing and unpacking it.
    fn pays(&self) -> bool {
        let get = |number: &AtomicU64| number.load(Relaxed) as f64;
        let packed = get(&self.packed_bytes);
        if packed == 0.0 || self.blocks.load(Relaxed).is_multiple_of(PROBE_EVERY) {
            return true;
        }
        let saved = 1.0 - get(&self.packed_to_bytes) / packed;
        let write = get(&self.write_ns) / get(&self.written_bytes).max(1.0);
        // Reading is taken to cost what writing does, and unpacking a quarter of packing.
        2.0 * write * saved > 1.25 * get(&self.pack_ns) / packed
    }
}

/// Where runs go, and how they are cut.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) block_bytes: usize,
    pub(crate) compression: SpillCompression,
    pub(crate) pace: Arc<Pace>,
    pub(crate) account: Arc<Account>,
    pub(crate) job: Arc<Job>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    offset: u64,
    /// Position in the run of the block's first record.
    first: u64,
    /// Of the bytes on disk.
    checksum: u64,
    /// Bytes on disk, and of records: fewer on disk where it was compressed.
    stored: u64,
    length: u64,
}

/// A finished run.
#[derive(Debug)]
pub(crate) struct Run {
    file: File,
    folder: PathBuf,
    blocks: Vec<Block>,
}

/// Writes a run, record by record in order.
pub(crate) struct RunWriter<W = File> {
    file: W,
    folder: Folder,
    buffer: Vec<u8>,
    compressor: Compressor,
    compression: SpillCompression,
    blocks: Vec<Block>,
    offset: u64,
    records: u64,
    block_first: u64,
    /// Bytes of records in finished blocks.
    record_bytes: u64,
    /// What the records of the whole run have at least, for the message when the disk is full.
    expected_bytes: u64,
}

/// Compresses blocks as long as that pays.
struct Compressor {
    context: CCtx<'static>,
    compressed: Vec<u8>,
    /// Blocks still to be written as they are, before the next one is tried.
    pause: u32,
    /// How long the next pause will be.
    next_pause: u32,
}

impl Compressor {
    fn new() -> Self {
        let mut context = CCtx::create();
        // A level that this version doesn't know leaves the default, which is only slower.
        let _ = context.set_parameter(CParameter::CompressionLevel(LEVEL));
        Self {
            context,
            compressed: Vec::new(),
            pause: 0,
            next_pause: 1,
        }
    }

    /// The block compressed, or None where it isn't worth it: it, or those before it, didn't shrink by an eighth, or the disk is fast.
    fn shrink(&mut self, block: &[u8], mode: SpillCompression, pace: &Pace) -> Option<&[u8]> {
        pace.blocks.fetch_add(1, Relaxed);
        if mode == SpillCompression::Never || mode == SpillCompression::Auto && !pace.pays() {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let start = Instant::now();
        self.compressed.clear();
        self.compressed.reserve(compress_bound(block.len()));
        let done = self.context.compress2(&mut self.compressed, block).is_ok();
        pace.packed(
            block.len() as u64,
            self.compressed.len().min(block.len()) as u64,
            start.elapsed(),
        );
        if done && self.compressed.len() <= block.len() / 8 * 7 {
            self.next_pause = 1;
            return Some(&self.compressed);
        }
        // Pictures don't shrink anywhere; text may have begun behind them.
        self.pause = self.next_pause;
        self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
        None
    }
}

impl RunWriter {
    /// Begins a run of about `expected_bytes`. The file has no name (it is unlinked at once where the system cannot make it so), and is
    /// gone with the last handle, however the process ends.
    pub(crate) fn create(folder: &Folder, expected_bytes: u64) -> Result<Self, Error> {
        let file = tempfile::tempfile_in(&folder.path)
            .map_err(|error| write_error(&folder.path, expected_bytes, error))?;
        Ok(Self::new(file, folder, expected_bytes))
    }

    pub(crate) fn finish(mut self) -> Result<Run, Error> {
        self.flush()?;
        self.folder.account.run_written();
        Ok(Run {
            file: self.file,
            folder: self.folder.path,
            blocks: self.blocks,
        })
    }
}

impl<W: Write> RunWriter<W> {
    fn new(file: W, folder: &Folder, expected_bytes: u64) -> Self {
        let short = || free_bytes(&folder.path).is_some_and(|free| free / 4 < expected_bytes);
        let compression = match folder.compression {
            SpillCompression::Auto if short() => SpillCompression::Always,
            mode => mode,
        };
        Self {
            file,
            folder: folder.clone(),
            buffer: Vec::new(),
            compressor: Compressor::new(),
            compression,
            blocks: Vec::new(),
            offset: 0,
            records: 0,
            block_first: 0,
            record_bytes: 0,
            expected_bytes,
        }
    }

    pub(crate) fn push(&mut self, record: Lying<'_>) -> Result<(), Error> {
        let mut header = [0; RECORD_OVERHEAD_BYTES];
        put_header(record, &mut header);
        self.buffer.extend_from_slice(&header);
        self.buffer.extend_from_slice(record.data);
        self.pushed()
    }

    /// Takes a record with its header.
    fn push_whole(&mut self, record: &[u8]) -> Result<(), Error> {
        self.buffer.extend_from_slice(record);
        self.pushed()
    }

    fn pushed(&mut self) -> Result<(), Error> {
        self.records += 1;
        if self.buffer.len() >= self.folder.block_bytes {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let (mode, pace) = (self.compression, &self.folder.pace);
        let stored = self
            .compressor
            .shrink(&self.buffer, mode, pace)
            .unwrap_or(&self.buffer);
        let start = Instant::now();
        self.file.write_all(stored).map_err(|error| {
            // As far as what is left shrinks as what went before.
            let left = self.expected_bytes.saturating_sub(self.record_bytes);
            let left = (u128::from(left) * u128::from(self.offset.max(1))
                / u128::from(self.record_bytes.max(1))) as u64;
            write_error(&self.folder.path, left.max(stored.len() as u64), error)
        })?;
        let (length, stored_bytes) = (self.buffer.len() as u64, stored.len() as u64);
        pace.wrote(stored_bytes, start.elapsed());
        self.blocks.push(Block {
            offset: self.offset,
            first: self.block_first,
            checksum: checksum(CrcAlgorithm::Crc64Nvme, stored),
            stored: stored_bytes,
            length,
        });
        self.folder.account.spilled(stored_bytes);
        self.folder.job.tick();
        self.offset += stored_bytes;
        self.record_bytes += length;
        self.block_first = self.records;
        self.buffer.clear();
        Ok(())
    }
}

fn write_error(folder: &Path, needed_bytes: u64, source: io::Error) -> Error {
    Error::SpillWrite {
        folder: folder.to_owned(),
        needed_bytes,
        free_bytes: free_bytes(folder),
        source,
    }
}

/// What is free on a folder's disk, where the system says.
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

impl Run {
    /// The block that holds a position, which the run must have.
    pub(crate) fn block_at(&self, position: u64) -> usize {
        self.blocks.partition_point(|block| block.first <= position) - 1
    }

    /// Position in the run of a block's first record.
    pub(crate) fn first_of(&self, block: usize) -> u64 {
        self.blocks[block].first
    }

    pub(crate) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Reads one block and checks it. Its records share the memory of the result.
    pub(crate) fn read(&self, block: usize, unpacker: &mut Unpacker) -> Result<Bytes, Error> {
        let mut bytes = Vec::new();
        self.read_into(block, unpacker, &mut bytes)?;
        Ok(bytes.into())
    }

    fn read_into(&self, block: usize, unpacker: &mut Unpacker, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let Block {
            offset,
            checksum: expected,
            stored,
            length,
            ..
        } = self.blocks[block];
        let read_error = |source| Error::SpillRead {
            folder: self.folder.clone(),
            source,
        };
        let compressed = stored != length;
        let read = if compressed {
            &mut unpacker.packed
        } else {
            &mut *bytes
        };
        read.resize(stored as usize, 0);
        self.file.read_exact_at(read, offset).map_err(read_error)?;
        let computed = checksum(CrcAlgorithm::Crc64Nvme, read);
        if computed != expected {
            return Err(Error::SpillDamaged {
                folder: self.folder.clone(),
                offset,
                stored: expected,
                computed,
            });
        }
        if compressed {
            bytes.clear();
            bytes.reserve(length as usize);
            let context = unpacker.context.get_or_insert_with(DCtx::create);
            let done = context.decompress(bytes, &unpacker.packed);
            if !done.is_ok_and(|unpacked| unpacked as u64 == length) {
                let message = format!("the block at byte {offset} does not unpack to {length} bytes");
                return Err(read_error(io::Error::new(io::ErrorKind::InvalidData, message)));
            }
        }
        Ok(())
    }
}

/// What reading compressed blocks needs, used again from block to block.
#[derive(Default)]
pub(crate) struct Unpacker {
    context: Option<DCtx<'static>>,
    packed: Vec<u8>,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Unpacker({} bytes)", self.packed.capacity())
    }
}

/// Reads a whole run in order, one block at a time.
struct Reader {
    run: Run,
    /// The block after the current one.
    block: usize,
    /// The current block.
    bytes: Vec<u8>,
    /// Where the current record starts in the block, and where it ends.
    start: usize,
    end: usize,
}

impl Reader {
    fn new(run: Run) -> Self {
        Self {
            run,
            block: 0,
            bytes: Vec::new(),
            start: 0,
            end: 0,
        }
    }

    /// Goes on to the next record. False: there is none.
    fn advance(&mut self, unpacker: &mut Unpacker) -> Result<bool, Error> {
        self.start = self.end;
        if self.start == self.bytes.len() {
            if self.block == self.run.num_blocks() {
                return Ok(false);
            }
            self.run.read_into(self.block, unpacker, &mut self.bytes)?;
            self.block += 1;
            self.start = 0;
        }
        match first_record(&self.bytes[self.start..]) {
            Some(record) => {
                self.end = self.start + RECORD_OVERHEAD_BYTES + record.data.len();
                Ok(true)
            }
            None => Err(Error::SpillRead {
                folder: self.run.folder.clone(),
                source: io::Error::new(io::ErrorKind::InvalidData, "a block ends inside a record"),
            }),
        }
    }

    /// The current record, with its header.
    fn whole(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn record(&self) -> Lying<'_> {
        first_record(self.whole()).expect("`advance` has looked at it")
    }
}

/// Merges sorted runs into one, at most `fan_in` at a time, and shows `see` every record of the last merge in order,
/// which says whether to keep it.
///
/// Holds one block for each run that is merged at once, one that is unpacked, and two to write; with more than `fan_in` runs, reads and writes records once more
/// for each further power of `fan_in`.
pub(crate) fn merge(
    runs: Vec<Run>,
    fan_in: usize,
    folder: &Folder,
    order: Order,
    see: &mut dyn FnMut(Lying<'_>) -> bool,
) -> Result<Run, Error> {
    let mut runs = std::collections::VecDeque::from(runs);
    while runs.len() > fan_in {
        // The oldest are the shortest; merge just enough of them for the last merge to be a full one.
        let count = fan_in.min(runs.len() - fan_in + 1);
        let some = runs.drain(..count).collect();
        runs.push_back(merge_once(some, folder, order, &mut |_| true)?);
    }
    merge_once(runs.into(), folder, order, see)
}

fn merge_once(
    runs: Vec<Run>,
    folder: &Folder,
    order: Order,
    see: &mut dyn FnMut(Lying<'_>) -> bool,
) -> Result<Run, Error> {
    let _held = folder.account.hold((runs.len() + 3) * folder.block_bytes);
    let record_bytes = runs
        .iter()
        .flat_map(|run| &run.blocks)
        .map(|block| block.length)
        .sum();
    let mut writer = RunWriter::create(folder, record_bytes)?;
    let mut unpacker = Unpacker::default();
    let mut readers = Vec::with_capacity(runs.len());
    for run in runs {
        let mut reader = Reader::new(run);
        if reader.advance(&mut unpacker)? {
            readers.push(reader);
        }
    }
    let mut heap = Heap::new(readers, order);
    let mut until_look = 0u32;
    while let Some(least) = heap.least() {
        if see(least.record()) {
            writer.push_whole(least.whole())?;
        }
        heap.advance(&mut unpacker)?;
        until_look = until_look.wrapping_sub(1);
        if until_look.is_multiple_of(1024) && folder.job.stopped() {
            // The job has its error; this only ends the thread.
            return Err(Error::Cancelled);
        }
    }
    writer.finish()
}

/// Readers, the one with the least record on top: a binary heap that looks at records where they lie.
struct Heap {
    readers: Vec<Reader>,
    /// Positions of readers.
    heap: Vec<usize>,
    /// What the readers' records are ordered by first, so that a comparison mostly looks at nothing else.
    keys: Vec<(u32, u128)>,
    order: Order,
}

impl Heap {
    fn new(readers: Vec<Reader>, order: Order) -> Self {
        let mut heap = Self {
            heap: (0..readers.len()).collect(),
            keys: readers.iter().map(order_of).collect(),
            readers,
            order,
        };
        for position in (0..heap.heap.len() / 2).rev() {
            heap.sift_down(position);
        }
        heap
    }

    fn least(&self) -> Option<&Reader> {
        self.heap.first().map(|index| &self.readers[*index])
    }

    /// Takes the next record of the reader on top.
    fn advance(&mut self, unpacker: &mut Unpacker) -> Result<(), Error> {
        let index = self.heap[0];
        if self.readers[index].advance(unpacker)? {
            self.keys[index] = order_of(&self.readers[index]);
        } else {
            self.heap.swap_remove(0);
            self.readers[index].bytes = Vec::new();
        }
        self.sift_down(0);
        Ok(())
    }

    fn less(&self, one: usize, other: usize) -> bool {
        self.keys[one]
            .cmp(&self.keys[other])
            .then_with(|| {
                let (one, other) = (self.readers[one].record(), self.readers[other].record());
                self.order.compare(one, other)
            })
            .then_with(|| one.cmp(&other))
            .is_lt()
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let mut least = position;
            for child in [2 * position + 1, 2 * position + 2] {
                if child < self.heap.len() && self.less(self.heap[child], self.heap[least]) {
                    least = child;
                }
            }
            if least == position {
                return;
            }
            self.heap.swap(position, least);
            position = least;
        }
    }
}

fn order_of(reader: &Reader) -> (u32, u128) {
    let record = reader.record();
    (record.split, number(&record.key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cancel, Progress, Record};

    fn folder(path: &Path) -> Folder {
        Folder {
            path: path.to_owned(),
            block_bytes: 100,
            compression: SpillCompression::Always,
            pace: Arc::default(),
            account: Progress::new().account(),
            job: Job::new(Cancel::new()),
        }
    }

    fn record(number: u64) -> Record {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_be_bytes());
        Record {
            split: 0,
            key,
            origin: number,
            data: vec![number as u8; number as usize % 50].into(),
        }
    }

    fn run_of(folder: &Folder, numbers: impl Iterator<Item = u64>) -> Run {
        let mut writer = RunWriter::create(folder, 0).unwrap();
        for number in numbers {
            writer.push(record(number).lying()).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn many_runs_merge_into_one_in_several_passes() {
        let home = tempfile::tempdir().unwrap();
        let folder = folder(home.path());
        let runs = (0..23)
            .map(|run| run_of(&folder, (0..20).map(|i| i * 23 + run)))
            .collect();
        let mut seen = Vec::new();
        let run = merge(runs, 3, &folder, Order::default(), &mut |record| {
            seen.push(record.origin);
            true
        })
        .unwrap();
        assert_eq!(seen, (0..460).collect::<Vec<_>>());
        let (mut reader, mut unpacker) = (Reader::new(run), Unpacker::default());
        for number in 0..460 {
            assert!(reader.advance(&mut unpacker).unwrap());
            assert_eq!(reader.record(), record(number).lying());
        }
        assert!(!reader.advance(&mut unpacker).unwrap());
        assert_eq!(
            std::fs::read_dir(home.path()).unwrap().count(),
            0,
            "spill files have no names"
        );
    }

    #[test]
    fn a_flipped_bit_is_noticed_and_placed() {
        let home = tempfile::tempdir().unwrap();
        let run = run_of(&folder(home.path()), 0..100);
        let block = run.blocks[3];
        let mut byte = [0];
        run.file.read_exact_at(&mut byte, block.offset + 7).unwrap();
        run.file.write_all_at(&[byte[0] ^ 4], block.offset + 7).unwrap();
        assert!(run.read(2, &mut Unpacker::default()).is_ok());
        match run.read(3, &mut Unpacker::default()) {
            Err(Error::SpillDamaged {
                offset,
                stored,
                computed,
                ..
            }) => {
                assert_eq!((offset, stored), (block.offset, block.checksum));
                assert_ne!(stored, computed);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_cut_short_is_an_error_that_names_the_folder() {
        let home = tempfile::tempdir().unwrap();
        let run = run_of(&folder(home.path()), 0..100);
        let last = run.blocks[run.num_blocks() - 1];
        run.file.set_len(last.offset + last.stored - 1).unwrap();
        let error = run
            .read(run.num_blocks() - 1, &mut Unpacker::default())
            .unwrap_err();
        assert!(
            error.to_string().contains(&home.path().display().to_string()),
            "{error}"
        );
    }

    /// A disk with room for so many bytes, which takes at most 10 of them at a time.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(10).min(self.0);
            self.0 -= taken;
            if taken == 0 {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(taken)
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn short_writes_are_continued_and_a_full_disk_says_what_is_needed() {
        let home = tempfile::tempdir().unwrap();
        let mut writer = RunWriter::new(Disk(1000), &folder(home.path()), 5000);
        let error = (0..)
            .find_map(|number| writer.push(record(number).lying()).err())
            .unwrap();
        assert!(writer.offset > 0 && writer.offset <= 1000);
        match error {
            Error::SpillWrite {
                folder,
                needed_bytes,
                free_bytes,
                source,
            } => {
                assert_eq!(folder, home.path());
                assert!(needed_bytes > 0 && needed_bytes < 5000);
                assert!(free_bytes.is_some());
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let home = tempfile::tempdir().unwrap();
        let missing = home.path().join("missing");
        let error = RunWriter::create(&folder(&missing), 77).err().unwrap();
        assert!(matches!(&error, Error::SpillWrite { folder, needed_bytes: 77, .. } if *folder == missing));
    }

    #[test]
    fn blocks_are_compressed_where_that_pays_and_come_back_in_any_mixture() {
        let home = tempfile::tempdir().unwrap();
        let folder = folder(home.path());
        let mut state = 1u64;
        let mut noise = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        let records: Vec<Record> = (0..600)
            .map(|number| {
                let data: Vec<u8> = match number {
                    // Noise doesn't shrink.
                    150..400 => (0..300).map(|_| noise()).collect(),
                    _ => vec![number as u8; 300],
                };
                Record {
                    data: data.into(),
                    ..record(number)
                }
            })
            .collect();
        let mut writer = RunWriter::create(&folder, 0).unwrap();
        for record in &records {
            writer.push(record.lying()).unwrap();
        }
        let run = writer.finish().unwrap();
        let compressed = |first: u64| {
            let block = run.blocks[run.block_at(first)];
            block.stored < block.length
        };
        assert!(compressed(0) && compressed(149) && !compressed(200) && !compressed(399));
        // The longest pause has ended by then, and text is found again.
        assert!(compressed(599));
        let tried = run
            .blocks
            .iter()
            .filter(|block| block.stored < block.length)
            .count();
        assert!(tried >= 250, "{tried} blocks");
        let (mut reader, mut unpacker) = (Reader::new(run), Unpacker::default());
        for record in &records {
            assert!(reader.advance(&mut unpacker).unwrap());
            assert_eq!(reader.record(), record.lying());
        }
    }

    #[test]
    fn compressing_has_to_pay() {
        let (second, pace) = (Duration::from_secs(1), Pace::default());
        assert!(pace.pays(), "nothing is known yet");
        pace.blocks.store(1, Relaxed);
        pace.packed(1000, 400, second);
        pace.wrote(1000, second / 100);
        assert!(!pace.pays(), "a hundredth of a second for a second's work");
        pace.wrote(1000, 4 * second);
        assert!(pace.pays());
        pace.packed(1_000_000, 1_000_000, 100 * second);
        assert!(!pace.pays(), "it hardly shrinks");
        pace.blocks.store(PROBE_EVERY, Relaxed);
        assert!(pace.pays(), "a probe");
        let home = tempfile::tempdir().unwrap();
        let never = Folder {
            compression: SpillCompression::Never,
            ..folder(home.path())
        };
        let run = run_of(&never, 0..100);
        assert!(run.blocks.iter().all(|block| block.stored == block.length));
    }
}
