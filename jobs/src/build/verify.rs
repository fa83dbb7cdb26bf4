//! Reads finished shards back before they are published.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use prep_formats::array_record::Reader;
use rustix::fs::Advice;

use crate::build::shard::{CRC, ShardSummary};
use crate::monitor::{Meter, Monitor};
use crate::sha256::{self, Stream};

/// Bytes that a thread holds of all its shards: they fit into a core's own cache, where they are read, summed and hashed one after the other.
const BUFFER_BYTES: usize = 512 << 10;
/// Most bytes of one shard.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces lie so much further apart than their length, or those of a power of two would compete for the same lines of the cache.
const PIECE_GAP: usize = 256;

/// Checks that each shard holds the bytes that were written to it, and opens as an ArrayRecord file of as many records.
///
/// Reads every file once, from the page cache as a rule: the checksum runs at tens of GB/s, which SHA-256 does not. Where that was left to
/// this, it is computed of what is read, of several shards at a time, and noted in the summary. Each thread holds 0.5 MB and has up to 16
/// files open.
pub(crate) fn verify(
    folder: &Path,
    shards: &mut [ShardSummary],
    threads: usize,
    meter: &Meter,
    monitor: &Monitor,
) -> Result<()> {
    let size = group_size(shards.len(), threads, sha256::best_streams());
    let next = AtomicUsize::new(0);
    let groups: Vec<Mutex<&mut [ShardSummary]>> = shards.chunks_mut(size).map(Mutex::new).collect();
    let count = groups.len();
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(count).max(1) {
            scope.spawn(|| {
                while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut group = group.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Err(error) = verify_group(folder, &mut group, meter, monitor) {
                        failure
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .get_or_insert(error);
                        next.store(count, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// How many shards a thread reads at a time: as many as it hashes best, but all threads as many.
fn group_size(shards: usize, threads: usize, most: usize) -> usize {
    let threads = threads.max(1);
    let groups = shards.div_ceil(threads * most).max(1) * threads;
    shards.div_ceil(groups).max(1)
}

/// A shard that is being read.
struct Reading<'a> {
    summary: &'a mut ShardSummary,
    path: PathBuf,
    file: File,
    crc: crc_fast::Digest,
    bytes: u64,
    /// Whether its SHA-256 is still to be computed.
    is_hashed: bool,
    /// What the last call of `next` has read.
    count: usize,
}

impl<'a> Reading<'a> {
    fn open(folder: &Path, summary: &'a mut ShardSummary) -> Result<Self> {
        let path = folder.join(&summary.path);
        let file = File::open(&path).with_context(|| format!("could not open {}", path.display()))?;
        // Several files are read in turn, so each had better be read far ahead. It is only advice.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
        Ok(Self {
            is_hashed: summary.sha256.is_empty(),
            summary,
            path,
            file,
            crc: crc_fast::Digest::new(CRC),
            bytes: 0,
            count: 0,
        })
    }

    /// Fills the buffer, but for the end of the file.
    fn next(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.count = 0;
        while self.count < buffer.len() {
            match self.file.read(&mut buffer[self.count..]) {
                Ok(0) => break,
                Ok(count) => self.count += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("could not read {}", self.path.display()));
                }
            }
        }
        self.crc.update(&buffer[..self.count]);
        self.bytes += self.count as u64;
        Ok(())
    }

    fn finish(self, sha256: Stream) -> Result<()> {
        let Self { summary, path, .. } = self;
        let shown = path.display();
        if self.bytes != summary.file_bytes {
            bail!(
                "{shown} has {} bytes; {} were written",
                self.bytes,
                summary.file_bytes
            );
        }
        let crc = self.crc.finalize();
        if crc != summary.crc64 {
            bail!(
                "{shown} does not hold what was written to it: its CRC-64 is {crc:#018x}, of what was written {:#018x}",
                summary.crc64
            );
        }
        let reader = Reader::open(&path).with_context(|| format!("could not read {shown} back"))?;
        if reader.num_records() != summary.records {
            bail!(
                "{shown} has {} records; {} were written",
                reader.num_records(),
                summary.records
            );
        }
        if self.is_hashed {
            summary.sha256 = hex::encode(sha256.finish());
        }
        Ok(())
    }
}

fn verify_group(folder: &Path, shards: &mut [ShardSummary], meter: &Meter, monitor: &Monitor) -> Result<()> {
    let Some(first) = shards.first() else {
        return Ok(());
    };
    let more = match shards.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let _span = monitor.span("verify", format!("verify {}{more}", first.path));
    let mut readings = Vec::with_capacity(shards.len());
    for summary in shards {
        readings.push(Reading::open(folder, summary)?);
    }
    let piece = (BUFFER_BYTES / readings.len()).min(PIECE_BYTES);
    let mut buffer = vec![0; (piece + PIECE_GAP) * readings.len()];
    let mut streams = vec![Stream::default(); readings.len()];
    loop {
        monitor.check()?;
        for (reading, buffer) in readings
            .iter_mut()
            .zip(buffer.chunks_exact_mut(piece + PIECE_GAP))
        {
            reading.next(&mut buffer[..piece])?;
        }
        let pieces: Vec<&[u8]> = readings
            .iter()
            .zip(buffer.chunks_exact(piece + PIECE_GAP))
            .map(|(reading, buffer)| {
                if reading.is_hashed {
                    &buffer[..reading.count]
                } else {
                    &[]
                }
            })
            .collect();
        sha256::update(&mut streams, &pieces);
        let count: usize = readings.iter().map(|reading| reading.count).sum();
        if count == 0 {
            break;
        }
        meter.add(count as u64);
    }
    for (reading, stream) in readings.into_iter().zip(streams) {
        reading.finish(stream)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use prep_formats::array_record::{WriteOptions, Writer};
    use sha2::{Digest, Sha256};

    use crate::monitor::Unit;

    #[test]
    fn all_threads_have_as_much_to_do() {
        for most in [1, 2, 16] {
            for threads in 1..5 {
                for shards in 1..200 {
                    let size = group_size(shards, threads, most);
                    assert!((1..=most).contains(&size), "{shards} {threads} {most}: {size}");
                    // No thread waits for more than one group less a shard or two.
                    let rounds = shards.div_ceil(size).div_ceil(threads);
                    assert_eq!(
                        rounds,
                        shards.div_ceil(threads * most),
                        "{shards} {threads} {most}: {size}"
                    );
                }
            }
        }
        assert_eq!(group_size(0, 2, 16), 1);
        assert_eq!(group_size(1024, 2, 16), 16);
        assert_eq!(group_size(40, 2, 16), 10);
    }

    /// Shards of different lengths, and their summaries; every third one's SHA-256 is known.
    fn shards(folder: &Path, count: usize) -> Vec<ShardSummary> {
        let shards = (0..count).map(|index| {
            let path = format!("x-{index}");
            let mut writer = Writer::new(Vec::new(), WriteOptions::uncompressed()).unwrap();
            for record in 0..index {
                writer.write(&vec![record as u8; 41_000]).unwrap();
            }
            let bytes = writer.finish().unwrap();
            std::fs::write(folder.join(&path), &bytes).unwrap();
            ShardSummary {
                split: 0,
                index: index as u32,
                num_shards: count as u32,
                split_records: 0,
                split_bytes: 0,
                path,
                records: index as u64,
                payload_bytes: 0,
                file_bytes: bytes.len() as u64,
                sha256: if index % 3 == 1 {
                    "known".to_owned()
                } else {
                    String::new()
                },
                crc64: crc_fast::checksum(CRC, &bytes),
                sequence_hash: String::new(),
                min_key: None,
                max_key: None,
            }
        });
        shards.collect()
    }

    #[test]
    fn the_hashes_that_were_left_are_noted_whatever_the_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let written = shards(folder.path(), 19);
        for threads in [1, 2, 3, 8, 40] {
            let mut found = written.clone();
            let monitor = Monitor::new();
            let meter = monitor.stage("verify", Unit::Bytes, None);
            verify(folder.path(), &mut found, threads, &meter, &monitor).unwrap();
            for (shard, before) in found.iter().zip(&written) {
                let bytes = std::fs::read(folder.path().join(&shard.path)).unwrap();
                let wanted = match before.sha256.as_str() {
                    "" => hex::encode(Sha256::digest(&bytes)),
                    known => known.to_owned(),
                };
                assert_eq!(shard.sha256, wanted);
            }
        }
    }

    #[test]
    fn a_shard_that_is_not_what_was_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = shards(folder.path(), 18);
        let path = folder.path().join("x-17");
        let whole = std::fs::read(&path).unwrap();
        let verify_all = |shards: &mut Vec<ShardSummary>| {
            let monitor = Monitor::new();
            let meter = monitor.stage("verify", Unit::Bytes, None);
            verify(folder.path(), shards, 2, &meter, &monitor).map_err(|error| format!("{error:#}"))
        };
        let mut flipped = whole.clone();
        flipped[whole.len() - 70_000] ^= 1;
        let longer = [&whole[..], b"x"].concat();
        for (bytes, wanted) in [
            (&flipped[..], "does not hold what was written"),
            (&whole[..whole.len() - 1], "bytes; "),
            (&longer, "bytes; "),
            (&whole[..0], "has 0 bytes"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = verify_all(&mut found.clone()).unwrap_err();
            assert!(error.contains("x-17") && error.contains(wanted), "{error}");
        }
        std::fs::write(&path, &whole).unwrap();
        found[17].records += 1;
        let error = verify_all(&mut found).unwrap_err();
        assert!(error.contains("has 17 records; 18 were written"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(verify_all(&mut found).unwrap_err().contains("x-17"));
    }
}
