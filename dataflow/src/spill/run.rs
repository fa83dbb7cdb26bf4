//! A sorted run on disk: blocks of records, each with its checksum, in a file without a name.
//!
//! The file is only ever read by the process that wrote it, which keeps the index of its blocks in memory (32 bytes for each block of 4 to
//! 256 KiB, or longer where one record is).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};

use crate::Error;
use crate::job::Job;
use crate::progress::Account;
use crate::record::{Order, RECORD_OVERHEAD_BYTES, Record, put_header, take_record};

/// Where runs go, and how they are cut.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) block_bytes: usize,
    pub(crate) account: Arc<Account>,
    pub(crate) job: Arc<Job>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    offset: u64,
    /// Position in the run of the block's first record.
    first: u64,
    checksum: u64,
    length: usize,
}

/// A finished run.
#[derive(Debug)]
pub(crate) struct Run {
    file: File,
    folder: PathBuf,
    blocks: Vec<Block>,
    pub(crate) bytes: u64,
}

/// Writes a run, record by record in order.
pub(crate) struct RunWriter<W = File> {
    file: W,
    folder: Folder,
    buffer: Vec<u8>,
    blocks: Vec<Block>,
    offset: u64,
    records: u64,
    block_first: u64,
    /// What the whole run will take at least, for the message when the disk is full.
    expected_bytes: u64,
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
            bytes: self.offset,
        })
    }
}

impl<W: Write> RunWriter<W> {
    fn new(file: W, folder: &Folder, expected_bytes: u64) -> Self {
        Self {
            file,
            folder: folder.clone(),
            buffer: Vec::new(),
            blocks: Vec::new(),
            offset: 0,
            records: 0,
            block_first: 0,
            expected_bytes,
        }
    }

    pub(crate) fn push(&mut self, record: &Record) -> Result<(), Error> {
        let mut header = [0; RECORD_OVERHEAD_BYTES];
        put_header(record, &mut header);
        self.buffer.extend_from_slice(&header);
        self.buffer.extend_from_slice(&record.data);
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
        self.file.write_all(&self.buffer).map_err(|error| {
            let needed = self
                .expected_bytes
                .saturating_sub(self.offset)
                .max(self.buffer.len() as u64);
            write_error(&self.folder.path, needed, error)
        })?;
        let length = self.buffer.len();
        let checksum = checksum(CrcAlgorithm::Crc64Nvme, &self.buffer);
        self.blocks.push(Block {
            offset: self.offset,
            first: self.block_first,
            checksum,
            length,
        });
        self.folder.account.spilled(length as u64);
        self.folder.job.tick();
        self.offset += length as u64;
        self.block_first = self.records;
        self.buffer.clear();
        Ok(())
    }
}

fn write_error(folder: &Path, needed_bytes: u64, source: io::Error) -> Error {
    Error::SpillWrite {
        folder: folder.to_owned(),
        needed_bytes,
        source,
    }
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
    pub(crate) fn read(&self, block: usize) -> Result<Bytes, Error> {
        let Block {
            offset,
            checksum: stored,
            length,
            ..
        } = self.blocks[block];
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(|source| Error::SpillRead {
                folder: self.folder.clone(),
                source,
            })?;
        let computed = checksum(CrcAlgorithm::Crc64Nvme, &bytes);
        if computed != stored {
            return Err(Error::SpillDamaged {
                folder: self.folder.clone(),
                offset,
                stored,
                computed,
            });
        }
        Ok(bytes.into())
    }
}

/// Reads a whole run in order, one block at a time.
struct Reader {
    run: Run,
    block: usize,
    rest: Bytes,
}

impl Reader {
    fn next(&mut self) -> Result<Option<Record>, Error> {
        loop {
            if let Some(record) = take_record(&mut self.rest) {
                return Ok(Some(record));
            }
            if self.block == self.run.num_blocks() {
                return Ok(None);
            }
            self.rest = self.run.read(self.block)?;
            self.block += 1;
        }
    }
}

/// Merges sorted runs into one, at most `fan_in` at a time, and shows `see` every record of the last merge in order,
/// which says whether to keep it.
///
/// Holds one block for each run that is merged at once and one to write; with more than `fan_in` runs, reads and writes records once more
/// for each further power of `fan_in`.
pub(crate) fn merge(
    runs: Vec<Run>,
    fan_in: usize,
    folder: &Folder,
    order: Order,
    see: &mut dyn FnMut(&Record) -> bool,
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
    see: &mut dyn FnMut(&Record) -> bool,
) -> Result<Run, Error> {
    let _held = folder.account.hold((runs.len() + 1) * folder.block_bytes);
    let mut writer = RunWriter::create(folder, runs.iter().map(|run| run.bytes).sum())?;
    let mut readers: Vec<Reader> = runs
        .into_iter()
        .map(|run| Reader {
            run,
            block: 0,
            rest: Bytes::new(),
        })
        .collect();
    let mut heap = BinaryHeap::with_capacity(readers.len());
    for (index, reader) in readers.iter_mut().enumerate() {
        if let Some(record) = reader.next()? {
            heap.push(Reverse(Head { order, index, record }));
        }
    }
    while let Some(mut top) = heap.peek_mut() {
        let index = top.0.index;
        if see(&top.0.record) {
            writer.push(&top.0.record)?;
        }
        match readers[index].next()? {
            Some(record) => top.0.record = record,
            None => {
                std::collections::binary_heap::PeekMut::pop(top);
            }
        }
        if folder.job.stopped() {
            // The job has its error; this only ends the thread.
            return Err(Error::Cancelled);
        }
    }
    writer.finish()
}

/// The next record of one run in a merge.
struct Head {
    order: Order,
    index: usize,
    record: Record,
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order
            .compare(&self.record, &other.record)
            .then_with(|| self.index.cmp(&other.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cancel, Progress};

    fn folder(path: &Path) -> Folder {
        Folder {
            path: path.to_owned(),
            block_bytes: 100,
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
            writer.push(&record(number)).unwrap();
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
        let mut reader = Reader {
            run,
            block: 0,
            rest: Bytes::new(),
        };
        for number in 0..460 {
            assert_eq!(reader.next().unwrap(), Some(record(number)));
        }
        assert_eq!(reader.next().unwrap(), None);
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
        assert!(run.read(2).is_ok());
        match run.read(3) {
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
        run.file.set_len(run.bytes - 1).unwrap();
        let error = run.read(run.num_blocks() - 1).unwrap_err();
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
            .find_map(|number| writer.push(&record(number)).err())
            .unwrap();
        assert!(writer.offset > 0 && writer.offset <= 1000);
        match error {
            Error::SpillWrite {
                folder,
                needed_bytes,
                source,
            } => {
                assert_eq!(folder, home.path());
                assert_eq!(needed_bytes, 5000 - writer.offset);
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
}
