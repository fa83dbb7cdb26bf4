//! How many records come more than once, inside of a split and in two of them.
//!
//! Hashes are spread evenly, so their range is cut into pieces that fit into memory: of each piece the hashes of all runs are sorted together.
//! A run is read once, from its beginning to its end, a bit of it for each piece.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};

use crate::build::statistics::parts::HASH_BYTES;
use crate::monitor::Monitor;

/// Bits of a hash; those below are the number of its split.
const HASH_BITS: u32 = 8 * HASH_BYTES as u32;
const SPLIT_BITS: u32 = 32;
/// Hashes of one piece, whatever the budget is.
const LEAST_PIECE: u64 = 1 << 16;
const MOST_PIECE: u64 = 1 << 24;

/// Ascending hashes of records of one split.
#[derive(Debug)]
pub(super) struct Run {
    file: usize,
    split: u32,
    /// Where the hashes lie that were not read yet, and how many those are.
    offset: u64,
    left: u32,
    count: u32,
    /// The last one that was read.
    last: Option<u128>,
}

impl Run {
    /// `count` hashes at this place of one of the files.
    pub(super) fn new(file: usize, split: u32, offset: u64, count: u32) -> Self {
        Self {
            file,
            split,
            offset,
            left: count,
            count,
            last: None,
        }
    }

    /// How many bytes so many hashes take.
    pub(super) fn bytes(count: u32) -> u64 {
        u64::from(count) * HASH_BYTES as u64
    }

    /// Moves the hashes below `end` to `piece`.
    fn take_below(
        &mut self,
        end: u128,
        expected: u32,
        file: &File,
        buffer: &mut Vec<u8>,
        piece: &mut Vec<u128>,
    ) -> Result<()> {
        while self.left > 0 {
            let count = expected.min(self.left);
            buffer.resize(count as usize * HASH_BYTES, 0);
            file.read_exact_at(buffer, self.offset)
                .context("could not read the hashes of records")?;
            for bytes in buffer.as_chunks::<HASH_BYTES>().0 {
                let mut wide = [0; 16];
                wide[16 - HASH_BYTES..].copy_from_slice(bytes);
                let hash = u128::from_be_bytes(wide);
                if hash >= end {
                    return Ok(());
                }
                if self.last.is_some_and(|last| last >= hash) {
                    bail!("the hashes of records are damaged: they are not in order");
                }
                self.last = Some(hash);
                self.left -= 1;
                self.offset += HASH_BYTES as u64;
                piece.push(hash << SPLIT_BITS | u128::from(self.split));
            }
        }
        Ok(())
    }
}

/// What comes more than once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Duplicates {
    /// Of each split, how many records could go without any content being lost.
    pub(super) within: Vec<u64>,
    /// For two splits, how many contents are in both; none where there are none.
    pub(super) across: BTreeMap<(u32, u32), u64>,
}

/// Compares all hashes. `repeated` are the records of each split whose hash is in the same run already.
pub(super) fn count(
    files: &[File],
    mut runs: Vec<Run>,
    repeated: Vec<u64>,
    memory_bytes: u64,
    monitor: &Monitor,
) -> Result<Duplicates> {
    let mut found = Duplicates {
        within: repeated,
        across: BTreeMap::new(),
    };
    let all: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
    // Its vector has grown to twice that at most.
    let of_a_piece = (memory_bytes / (2 * size_of::<u128>()) as u64).clamp(LEAST_PIECE, MOST_PIECE);
    let pieces = all.div_ceil(of_a_piece).max(1);
    let (mut piece, mut buffer) = (Vec::new(), Vec::new());
    for number in 1..=pieces {
        monitor.check()?;
        let end = (u128::from(number) << HASH_BITS) / u128::from(pieces);
        piece.clear();
        for run in &mut runs {
            // A tenth more than its share, so that one read is enough as a rule.
            let expected = (u64::from(run.count) / pieces * 11 / 10 + 64) as u32;
            let file = files.get(run.file).context("a run of hashes lies in no file")?;
            run.take_below(end, expected, file, &mut buffer, &mut piece)?;
        }
        piece.sort_unstable();
        for same in piece.chunk_by(|a, b| a >> SPLIT_BITS == b >> SPLIT_BITS) {
            found.add(same);
        }
    }
    Ok(found)
}

impl Duplicates {
    /// Adds one content: the splits it is in, ascending.
    fn add(&mut self, same: &[u128]) {
        if let [_] = same {
            return;
        }
        let mut splits: Vec<u32> = same.iter().map(|hash| *hash as u32).collect();
        for pair in splits.windows(2).filter(|pair| pair[0] == pair[1]) {
            if let Some(count) = self.within.get_mut(pair[0] as usize) {
                *count += 1;
            }
        }
        splits.dedup();
        for (index, one) in splits.iter().enumerate() {
            for other in &splits[index + 1..] {
                *self.across.entry((*one, *other)).or_default() += 1;
            }
        }
    }
}
