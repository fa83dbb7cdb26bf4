//! Gives every target the kept corpus and the golden files, as they are and with bytes changed in a fixed way.

use std::fs;
use std::path::{Path, PathBuf};

use prep_fuzzed::{TARGETS, run};

/// Changed copies of each input.
const CHANGES: u64 = 6;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
}

fn inputs(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// The same input with some bytes changed, taken out or put in: a function of the input and `round` only.
fn changed(bytes: &[u8], round: u64) -> Vec<u8> {
    let mut state = bytes
        .iter()
        .fold(round.wrapping_add(0x9e37_79b9_7f4a_7c15), |state, &byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    let mut next = || {
        // xorshift64, by G. Marsaglia.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = bytes.to_vec();
    for _ in 0..=next() % 4 {
        if bytes.is_empty() {
            break;
        }
        let at = (next() % bytes.len() as u64) as usize;
        match next() % 4 {
            0 => bytes[at] ^= 1 << (next() % 8),
            1 => bytes[at] = next() as u8,
            2 => drop(bytes.remove(at)),
            _ => bytes.insert(at, next() as u8),
        }
    }
    bytes
}

fn replay(target: &str) {
    let inputs = inputs(&corpus(target));
    assert!(!inputs.is_empty(), "no corpus for {target}");
    for (path, bytes) in inputs {
        for round in 0..=CHANGES {
            let bytes = if round == 0 {
                bytes.clone()
            } else {
                changed(&bytes, round)
            };
            let result = std::panic::catch_unwind(|| run(target, &bytes));
            assert!(result.is_ok(), "{target}: {} in round {round}", path.display());
        }
    }
}

macro_rules! replays {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )*

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($target)),*];
            assert!(TARGETS.iter().map(|(name, _)| *name).eq(replayed));
        }
    };
}

replays!(array_record tfrecord example columns schema png jpeg raw documents texts tar);
