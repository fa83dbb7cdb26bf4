//! Reads finished shards back before they are published.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use prep_formats::array_record::Reader;
use sha2::{Digest, Sha256};

use crate::build::shard::{CRC, ShardSummary};
use crate::monitor::{Meter, Monitor};

/// Checks that each shard holds the bytes that were written to it, and opens as an ArrayRecord file of as many records.
///
/// Reads every file once, from the page cache as a rule: the checksum runs at tens of GB/s, which SHA-256 does not. Where that was left to
/// this, it is computed of what is read, and noted in the summary.
pub(crate) fn verify(
    folder: &Path,
    shards: &mut [ShardSummary],
    threads: usize,
    meter: &Meter,
    monitor: &Monitor,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let count = shards.len();
    let slots: Vec<Mutex<&mut ShardSummary>> = shards.iter_mut().map(Mutex::new).collect();
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(count).max(1) {
            scope.spawn(|| {
                while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut shard = slot.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Err(error) = verify_shard(folder, &mut shard, meter, monitor) {
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

fn verify_shard(folder: &Path, shard: &mut ShardSummary, meter: &Meter, monitor: &Monitor) -> Result<()> {
    let _span = monitor.span("verify", format!("verify {}", shard.path));
    let path = folder.join(&shard.path);
    let shown = path.display();
    let mut file = File::open(&path).with_context(|| format!("could not open {shown}"))?;
    let mut buffer = vec![0; 1 << 20];
    let mut crc = crc_fast::Digest::new(CRC);
    let mut sha256 = shard.sha256.is_empty().then(Sha256::new);
    let mut bytes = 0;
    loop {
        monitor.check()?;
        let count = file
            .read(&mut buffer)
            .with_context(|| format!("could not read {shown}"))?;
        if count == 0 {
            break;
        }
        crc.update(&buffer[..count]);
        if let Some(sha256) = &mut sha256 {
            sha256.update(&buffer[..count]);
        }
        bytes += count as u64;
        meter.add(count as u64);
    }
    if bytes != shard.file_bytes {
        bail!("{shown} has {bytes} bytes; {} were written", shard.file_bytes);
    }
    let crc = crc.finalize();
    if crc != shard.crc64 {
        bail!(
            "{shown} does not hold what was written to it: its CRC-64 is {crc:#018x}, of what was written {:#018x}",
            shard.crc64
        );
    }
    let reader = Reader::open(&path).with_context(|| format!("could not read {shown} back"))?;
    if reader.num_records() != shard.records {
        bail!(
            "{shown} has {} records; {} were written",
            reader.num_records(),
            shard.records
        );
    }
    if let Some(sha256) = sha256 {
        shard.sha256 = hex::encode(sha256.finalize());
    }
    Ok(())
}
