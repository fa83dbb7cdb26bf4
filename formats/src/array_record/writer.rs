//! Writes ArrayRecord files.

use std::fmt;
use std::io::Write;

use highway::{HighwayHash, HighwayHasher, Key};

use crate::array_record::batch::Batch;
use crate::array_record::blocks::BlockWriter;
use crate::array_record::encoder::{ChunkEncoder, Records};
use crate::array_record::footer::{Metadata, POSTSCRIPT_COPIES, postscript_to_bytes};
use crate::array_record::layout::{hash_two_and_second, put_varint};
use crate::array_record::pool::{Pool, Refused};
use crate::array_record::prepared::EncodedBlock;
use crate::array_record::{Compression, WriteOptions};
use crate::store::{Existing, Location, Output};
use crate::{Error, Position, Result};

/// Bytes of records from which on a batch goes to a thread: about 1 ms of zstd, against about 10 us for the hand-over.
const BATCH_BYTES: usize = 128 << 10;
/// Groups from which on it goes, so that many empty records do not gather.
const BATCH_GROUPS: usize = 8 << 10;
/// Bytes of records that may be with the threads under `max_parallelism:auto`.
const AUTO_BYTES: usize = 256 << 20;
/// Most threads under `max_parallelism:auto`: one thread places chunks, and 16 zstd encoders keep it busy.
const AUTO_THREADS: usize = 16;

/// Writes records to an ArrayRecord file.
///
/// The bytes depend on the records, the options and the versions of the codecs only. Uncompressed files are byte for byte those of
/// Google's writer with the same options and records.
///
/// # Threads
///
/// Under `max_parallelism:1` chunks are encoded by the caller's thread. Under `max_parallelism:N` up to `N` threads encode them,
/// while the caller's thread gathers records and writes chunks in their order; `auto`, the default, is as many as the machine has
/// CPUs (up to 16), and for uncompressed chunks the caller's alone, as handing records over takes as long as encoding them. They start when there is work for them (the first 128 KiB of records), and end with the writer.
/// [`write`](Self::write) waits where they cannot keep up.
///
/// # Memory
///
/// Records travel in batches of whole groups: 128 KiB, or one group if that is larger. With one thread the writer holds one group; with
/// `N`, `2 N + 1` batches, each before and after compression, and under `auto` no more than 256 MiB of records besides the group that
/// is being gathered and one that is encoded. In addition to that a buffer of 512 KiB, and 10 to 14 bytes for each chunk written, for
/// the footer: 14 GB at 10^9 records in chunks of one, so such data belong into shards.
pub struct Writer<W> {
    file: BlockWriter<W>,
    options: WriteOptions,
    num_records: u64,
    /// Records that are not encoded yet.
    batch: Batch,
    /// Encodes on this thread.
    encoder: ChunkEncoder,
    /// For the encoder's output and a size.
    data: Vec<u8>,
    size: Vec<u8>,
    threads: Option<Threads>,
}

/// What encoding by threads takes.
#[derive(Debug)]
struct Threads {
    pool: Pool<Batch>,
    /// Empty batches, for reuse.
    spare: Vec<Batch>,
    /// Bytes of records with the pool, and their limit.
    num_bytes: usize,
    max_bytes: usize,
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("options", &self.options)
            .field("num_records", &self.num_records)
            .finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Starts a file: writes the signature block.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a level or window that the codec's library refuses; parsed options have none.
    pub fn new(sink: W, options: WriteOptions) -> Result<Self> {
        let encoder = ChunkEncoder::new(&options).map_err(|reason| Error::Unsupported {
            at: Position::default(),
            reason: format!("options `{options}`: {reason}"),
        })?;
        let threads = Threads::new(&options, {
            let options = options.clone();
            move || ChunkEncoder::new(&options)
        });
        Ok(Self {
            file: BlockWriter::new(sink)?,
            options,
            num_records: 0,
            batch: Batch::default(),
            encoder,
            data: Vec::new(),
            size: Vec::new(),
            threads,
        })
    }

    /// Names the file in error messages, which call it `ArrayRecord file` otherwise.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.file.name = name.into();
        self
    }

    /// Appends a record.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the sink, and [`Error::Invalid`] where a chunk could not be compressed, this one or one before that a thread
    /// was working on. Every later call fails then, as part of a chunk may be written.
    #[inline]
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        self.file.check()?;
        self.num_records += 1;
        let group_size = u64::from(self.options.group_size());
        if group_size == 1 && self.threads.is_none() {
            return self.put_alone(record);
        }
        if self.batch.add(record) == group_size {
            self.batch.close_group();
            if self.threads.is_none() {
                self.encode_batch()?;
            } else if self.batch.is_large() {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    /// [`write`](Self::write), and the HighwayHash-128 of the record under `key`: where records are stored as they are, in groups of one, it is
    /// computed along with the chunk's own hash, which takes a third of the time of a second pass.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_and_hash(&mut self, record: &[u8], key: [u64; 4]) -> Result<[u64; 2]> {
        if self.options.group_size() > 1 || self.threads.is_some() || !self.encoder.values_follow() {
            self.write(record)?;
            return Ok(HighwayHasher::new(Key(key)).hash128(record));
        }
        self.file.check()?;
        self.num_records += 1;
        let records = Records::one(record, &mut self.size);
        self.data.clear();
        let mut hash = [0; 2];
        let header = self.encoder.encode_before(records, &mut self.data, |before| {
            let (of_chunk, of_record) = hash_two_and_second(before, record, key);
            hash = of_record;
            of_chunk
        });
        self.file.put_records(header, &self.data, record)?;
        self.end_group()?;
        Ok(hash)
    }

    /// Places the chunks of a block that a [`BlockEncoder`](crate::array_record::BlockEncoder) with the same options has made from `buffer`, behind
    /// what was written before. A group that is open is closed.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and [`Error::Invalid`] for a buffer that is not the block's.
    pub fn write_encoded(&mut self, block: &EncodedBlock, buffer: &[u8]) -> Result<()> {
        self.file.check()?;
        if buffer.len() != block.buffer_bytes {
            return Err(Error::Invalid(format!(
                "the block was made from {} bytes, not from these {}",
                block.buffer_bytes,
                buffer.len()
            )));
        }
        self.close_open_groups()?;
        let mut start = 0;
        for piece in &block.pieces {
            let data = &block.data[start..piece.data_end];
            self.file
                .put_records(piece.header, data, &buffer[piece.rest.clone()])?;
            self.end_group()?;
            start = piece.data_end;
        }
        self.num_records += block.num_records;
        Ok(())
    }

    /// Records written so far.
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Bytes of the file so far: without the footer, the group that is still open, and groups that threads are working on.
    pub fn bytes_written(&self) -> u64 {
        self.file.position()
    }

    /// The file, for tests of what blocks look like far from its start.
    #[cfg(test)]
    pub(super) fn blocks(&mut self) -> &mut BlockWriter<W> {
        &mut self.file
    }

    /// Where the bytes go.
    pub fn sink(&self) -> &W {
        &self.file.sink
    }

    /// Writes footer and postscript, and gives the sink back. A writer dropped before leaves a file that no reader opens, and ends its
    /// threads.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), of this or an earlier call.
    pub fn finish(mut self) -> Result<W> {
        self.file.check()?;
        self.close_open_groups()?;
        self.threads = None;
        debug_assert_eq!(self.file.index.num_records, self.num_records);

        let footer_offset = self.file.position();
        let mut index = std::mem::take(&mut self.file.index);
        let metadata = Metadata {
            num_chunks: index.num_chunks,
            num_records: index.num_records,
            writer_options: self.options.to_string(),
        }
        .to_bytes();
        self.size.clear();
        put_varint(&mut self.size, metadata.len() as u64);
        index.entry_sizes.splice(0..0, self.size.iter().copied());
        index.entries.splice(0..0, metadata);
        self.encoder.stop_transposing();
        self.put_records_of_footer(Records {
            num_records: index.num_chunks + 1,
            sizes: &index.entry_sizes,
            values: &index.entries,
        })?;
        self.file.pad_to_block_boundary()?;

        let simple = WriteOptions::uncompressed();
        self.encoder = ChunkEncoder::new(&simple).map_err(Error::Invalid)?;
        let (mut sizes, mut values) = (Vec::new(), Vec::new());
        for _ in 0..POSTSCRIPT_COPIES {
            let postscript = postscript_to_bytes(footer_offset);
            put_varint(&mut sizes, postscript.len() as u64);
            values.extend(postscript);
        }
        self.put_records_of_footer(Records {
            num_records: POSTSCRIPT_COPIES as u64,
            sizes: &sizes,
            values: &values,
        })?;
        self.file.pad_to_block_boundary()?;
        self.file.flush()?;
        Ok(self.file.sink)
    }

    /// Places all that was written so far; what comes next begins a group.
    fn close_open_groups(&mut self) -> Result<()> {
        while let Some(batch) = self.threads.as_mut().and_then(|threads| threads.pool.take()) {
            self.place(batch)?;
        }
        self.batch.close_group();
        self.encode_batch()
    }

    /// Encodes and places a chunk of one record, without a copy of it.
    fn put_alone(&mut self, record: &[u8]) -> Result<()> {
        let records = Records::one(record, &mut self.size);
        self.data.clear();
        let encoded = self.encoder.encode(records, &mut self.data);
        let header = encoded.map_err(|reason| failed(&mut self.file, reason))?;
        let rest = if self.encoder.values_follow() { record } else { &[] };
        self.file.put_records(header, &self.data, rest)?;
        self.end_group()
    }

    /// Encodes and places a chunk that the footer does not list.
    fn put_records_of_footer(&mut self, records: Records<'_>) -> Result<()> {
        self.data.clear();
        let encoded = self.encoder.encode(records, &mut self.data);
        let header = encoded.map_err(|reason| failed(&mut self.file, reason))?;
        let rest = if self.encoder.values_follow() {
            records.values
        } else {
            &[]
        };
        self.file.put_chunk(header, &self.data, rest)
    }

    fn end_group(&mut self) -> Result<()> {
        if self.options.pad_to_block_boundary() {
            self.file.pad_to_block_boundary()?;
        }
        Ok(())
    }

    /// Encodes the batch on this thread, and places its chunks.
    fn encode_batch(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        let encoded = batch.encode(&mut self.encoder);
        encoded.map_err(|reason| failed(&mut self.file, reason))?;
        self.put_batch(&batch)?;
        batch.clear(BATCH_BYTES);
        self.batch = batch;
        Ok(())
    }

    /// Hands the batch to the threads, after placing what they have done where they hold enough.
    fn hand_over(&mut self) -> Result<()> {
        let Some(threads) = &mut self.threads else {
            return self.encode_batch();
        };
        let next = threads.spare.pop().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, next);
        let num_bytes = batch.num_bytes();
        while let Some(threads) = &mut self.threads
            && threads.is_full(num_bytes)
            && let Some(done) = threads.pool.take()
        {
            self.place(done)?;
        }
        if let Some(threads) = &mut self.threads {
            threads.num_bytes += num_bytes;
            match threads.pool.submit(batch) {
                Ok(()) => {}
                Err(Refused::NoThread(batch)) => {
                    // The system has no threads to give: this one does it all.
                    self.threads = None;
                    self.batch = batch;
                    return self.encode_batch();
                }
                Err(Refused::Forked) => {
                    let reason =
                        "the process was forked after writing began: the threads that encode stayed behind";
                    return Err(failed(&mut self.file, reason.into()));
                }
            }
        }
        while let Some(done) = self.threads.as_mut().and_then(|threads| threads.pool.try_take()) {
            self.place(done)?;
        }
        Ok(())
    }

    /// Places what a thread has encoded.
    fn place(&mut self, done: Result<Batch, String>) -> Result<()> {
        let mut batch = done.map_err(|reason| failed(&mut self.file, reason))?;
        self.put_batch(&batch)?;
        if let Some(threads) = &mut self.threads {
            threads.num_bytes -= batch.num_bytes();
            batch.clear(BATCH_BYTES);
            threads.spare.push(batch);
        }
        Ok(())
    }

    fn put_batch(&mut self, batch: &Batch) -> Result<()> {
        for (header, data, rest) in batch.chunks() {
            self.file.put_records(header, data, rest)?;
            self.end_group()?;
        }
        Ok(())
    }
}

impl Writer<Output> {
    /// Starts a file or object at `location` that nobody sees before [`publish`](Self::publish): a local file under another name in the
    /// same folder, which must exist; an object by an upload in parts.
    ///
    /// # Errors
    ///
    /// As [`Output::create`], and [`Error::Unsupported`] as [`new`](Self::new).
    ///
    /// # Examples
    ///
    /// ```
    /// use prep_formats::array_record::{Reader, WriteOptions, Writer};
    /// use prep_formats::store::{Existing, Location};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("data.array_record");
    /// let location = Location::from_path(&path);
    /// let mut writer = Writer::create(&location, WriteOptions::default(), Existing::Keep)?;
    /// for left in writer.sink().unfinished() {
    ///     eprintln!("an earlier writer was killed and left {}", left.display());
    /// }
    /// writer.write(b"record")?;
    /// assert!(!path.exists());
    /// writer.publish()?;
    /// assert_eq!(Reader::open(&path)?.num_records(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create(location: &Location, options: WriteOptions, existing: Existing) -> Result<Self> {
        let sink = Output::create(location, existing)?;
        Ok(Self::new(sink, options)?.with_name(location.to_string()))
    }

    /// Finishes the file, makes it durable, and gives it its name.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish) and [`Output::commit`]; nothing is visible then that was not before.
    pub fn publish(self) -> Result<()> {
        self.finish()?.commit()
    }
}

impl Batch {
    fn is_large(&self) -> bool {
        self.num_bytes() >= BATCH_BYTES || self.num_groups() >= BATCH_GROUPS
    }
}

impl Threads {
    /// `None` where this thread does it all.
    fn new(
        options: &WriteOptions,
        make_encoder: impl Fn() -> Result<ChunkEncoder, String> + Send + Sync + 'static,
    ) -> Option<Self> {
        let (num_threads, max_bytes) = match options.max_parallelism() {
            Some(most) => (most as usize, usize::MAX),
            None if options.compression() == Compression::Uncompressed && !options.transpose() => {
                return None;
            }
            None => {
                let cpus = std::thread::available_parallelism().map_or(1, usize::from);
                (cpus.min(AUTO_THREADS), AUTO_BYTES)
            }
        };
        (num_threads > 1).then(|| Self {
            pool: Pool::new(num_threads, move || {
                let mut encoder = make_encoder()?;
                Ok(Box::new(move |batch: &mut Batch| batch.encode(&mut encoder)))
            }),
            spare: Vec::new(),
            num_bytes: 0,
            max_bytes,
        })
    }

    /// Whether results have to be placed before `more` bytes are handed over.
    fn is_full(&self, more: usize) -> bool {
        self.pool.is_full()
            || self.pool.num_tasks() > 0 && self.num_bytes.saturating_add(more) > self.max_bytes
    }
}

/// The error for a chunk that could not be encoded; the file refuses what comes after it.
fn failed<W: Write>(file: &mut BlockWriter<W>, reason: String) -> Error {
    file.fail();
    Error::Invalid(format!("could not compress a chunk: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(text: &str, records: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), WriteOptions::parse(text).unwrap()).unwrap();
        for record in records {
            writer.write(record).unwrap();
        }
        writer.finish().unwrap()
    }

    /// Records of a few kinds, `total` bytes of them and more.
    fn records(seed: u64, total: usize, longest: u64) -> Vec<Vec<u8>> {
        let mut state = seed | 1;
        let mut next = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut records, mut length) = (Vec::new(), 0);
        while length < total {
            let size = next(longest);
            let kind = next(3);
            let record: Vec<u8> = (0..size)
                .map(|i| match kind {
                    0 => 0,
                    1 => (i % 11) as u8,
                    _ => next(256) as u8,
                })
                .collect();
            length += record.len() + 1;
            records.push(record);
        }
        records
    }

    const CODECS: [&str; 8] = [
        "uncompressed",
        "zstd:1",
        "zstd:3",
        "zstd:-5",
        "brotli:1",
        "snappy",
        "uncompressed,transpose",
        "zstd:1,transpose",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn any_number_of_threads_gives_the_same_file(
            seed: u64,
            codec in prop::sample::select(CODECS.to_vec()),
            group_size in prop::sample::select(vec![1, 2, 7, 256]),
            pad in prop::sample::select(vec!["", ",pad_to_block_boundary:true"]),
            (total, longest) in prop::sample::select(vec![(900_000, 3000), (1_500_000, 200_000), (30_000, 3)]),
        ) {
            // Padding takes 64 KiB a chunk.
            let total = if pad.is_empty() { total } else { total / 4 };
            let records = records(seed, total, longest);
            let text = format!("{codec},group_size:{group_size}{pad}");
            let serial = written(&format!("{text},max_parallelism:1"), &records);
            for threads in 2..=8 {
                let parallel = written(&format!("{text},max_parallelism:{threads}"), &records);
                prop_assert!(parallel == serial, "{text} by {threads} threads differs");
            }
            prop_assert!(written(&text, &records) == serial);
        }
    }

    /// A writer with two threads whose encoders fail or panic for records that say so.
    fn with_faults(text: &str) -> Writer<Vec<u8>> {
        let options = WriteOptions::parse(text).unwrap();
        let mut writer = Writer::new(Vec::new(), options.clone()).unwrap();
        writer.threads = Threads::new(&options.clone(), move || {
            let mut encoder = ChunkEncoder::new(&options)?;
            encoder.faults = true;
            Ok(encoder)
        });
        writer.encoder.faults = true;
        writer
    }

    #[test]
    fn a_fault_of_an_encoder_fails_the_writer_for_good() {
        for (fault, threads, reason) in [
            ("fail", 1, "could not compress a chunk: a test asked for it"),
            ("fail", 2, "could not compress a chunk: a test asked for it"),
            (
                "panic",
                2,
                "could not compress a chunk: a thread panicked: a test asked for it",
            ),
        ] {
            let mut writer = with_faults(&format!("zstd,max_parallelism:{threads}"));
            writer.write(b"good").unwrap();
            let mut result = writer.write(fault.as_bytes());
            let mut num_more = 0;
            while result.is_ok() && num_more < 100 {
                result = writer.write(&[0; BATCH_BYTES]);
                num_more += 1;
            }
            assert_eq!(result.unwrap_err().to_string(), reason);
            assert!(num_more <= 5);
            assert!(matches!(writer.write(b"more"), Err(Error::Io { .. })));
            assert!(matches!(writer.finish(), Err(Error::Io { .. })));

            // Where there is no later write to fail, `finish` does.
            let mut writer = with_faults(&format!("zstd,max_parallelism:{threads}"));
            let first = writer.write(fault.as_bytes());
            let second = writer.write(&[0; BATCH_BYTES]);
            if threads > 1 {
                first.unwrap();
                if second.is_ok() {
                    assert_eq!(writer.finish().unwrap_err().to_string(), reason);
                }
            } else {
                first.unwrap_err();
            }
        }
    }

    #[test]
    fn without_threads_to_have_the_caller_encodes() {
        let records = records(5, 600_000, 3000);
        let text = "zstd:1,group_size:3,max_parallelism:4";
        let options = WriteOptions::parse(text).unwrap();
        let mut writer = Writer::new(Vec::new(), options.clone()).unwrap();
        writer.threads = Threads::new(&options, || Err("no memory".into()));
        for record in &records {
            writer.write(record).unwrap();
        }
        assert!(writer.threads.is_none());
        assert!(writer.finish().unwrap() == written(text, &records));
    }

    #[test]
    fn what_the_threads_hold_is_bounded() {
        let options = WriteOptions::parse("zstd:3,group_size:3,max_parallelism:3").unwrap();
        let mut writer = Writer::new(Vec::new(), options).unwrap();
        let mut written = 0;
        for i in 0..2000u32 {
            let record: Vec<u8> = (0..1 + i % 40_000).map(|j| (j * i) as u8).collect();
            writer.write(&record).unwrap();
            written += record.len();
            let threads = writer.threads.as_ref().unwrap();
            assert!(threads.pool.num_tasks() <= 6);
            assert!(threads.num_bytes <= 6 * (BATCH_BYTES + 3 * 40_010));
            assert!(threads.spare.len() <= 7);
            assert!(writer.batch.num_bytes() <= BATCH_BYTES + 3 * 40_010);
        }
        assert!(written > 10 * BATCH_BYTES);
        // The limit in bytes holds back all but one batch.
        let threads = writer.threads.as_mut().unwrap();
        threads.max_bytes = 1;
        for _ in 0..20 {
            writer.write(&[7; 50_000]).unwrap();
            assert!(writer.threads.as_ref().unwrap().pool.num_tasks() <= 6);
        }
        for _ in 0..3 {
            writer.write(&[7; BATCH_BYTES]).unwrap();
        }
        assert!(writer.threads.as_ref().unwrap().pool.num_tasks() <= 1);
        writer.finish().unwrap();
    }

    #[test]
    fn buffers_that_one_record_made_large_are_given_back() {
        let mut batch = Batch::default();
        batch.add(&vec![0; 10 << 20]);
        batch.close_group();
        batch.clear(BATCH_BYTES);
        assert!(batch.capacity() >= 10 << 20);
        batch.add(b"x");
        batch.close_group();
        assert_eq!(batch.num_bytes(), 2);
        batch.clear(BATCH_BYTES);
        assert!(batch.capacity() <= 2 * BATCH_BYTES + 64);
    }
}
