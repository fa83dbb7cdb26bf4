//! How many distinct values there are: exactly for a few, by a sketch for many.

use serde::{Deserialize, Serialize};

/// Bits of a hash that choose a register.
const PRECISION: u32 = 11;
const REGISTERS: usize = 1 << PRECISION;
/// Bits of a hash that are left: ranks are 1 to one more than these.
const RANK_BITS: u32 = 64 - PRECISION;
/// So many hashes are kept as they are: about as many bytes as a sketch takes when it is packed.
const MOST_EXACT: usize = 128;
/// One character a register.
const ALPHABET: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The standard error of an estimate, as a part of it: 1.04 / sqrt(registers). Up to 128 distinct values are counted exactly.
pub(super) const STANDARD_ERROR: f64 = 0.023;

/// A HyperLogLog sketch of 2,048 registers over 64-bit hashes. Which values came, and not in which order or how often, decides what it holds;
/// sketches merge by the maximum of each register.
///
/// Source: P. Flajolet et al., "HyperLogLog", 2007; estimated as O. Ertl does, "New cardinality estimation algorithms for HyperLogLog sketches",
/// 2017, algorithm 6, which has no bias at any size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Stored", try_from = "Stored")]
pub(super) enum Distinct {
    /// All hashes, ascending.
    Exact(Vec<u64>),
    /// The greatest rank that came for each register.
    Sketch(Box<[u8; REGISTERS]>),
}

impl Default for Distinct {
    fn default() -> Self {
        Self::Exact(Vec::new())
    }
}

impl Distinct {
    /// Adds the hash of a value.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64) {
        match self {
            Self::Sketch(registers) => raise(registers, hash),
            Self::Exact(hashes) => {
                let Err(at) = hashes.binary_search(&hash) else {
                    return;
                };
                if hashes.len() < MOST_EXACT {
                    hashes.insert(at, hash);
                    return;
                }
                let mut registers = Box::new([0; REGISTERS]);
                hashes.iter().for_each(|hash| raise(&mut registers, *hash));
                raise(&mut registers, hash);
                *self = Self::Sketch(registers);
            }
        }
    }

    /// Adds what another has.
    pub(super) fn merge(&mut self, other: Self) {
        match (&mut *self, other) {
            (_, Self::Exact(hashes)) => hashes.into_iter().for_each(|hash| self.insert(hash)),
            (Self::Sketch(registers), Self::Sketch(others)) => {
                for (register, other) in registers.iter_mut().zip(*others) {
                    *register = other.max(*register);
                }
            }
            (Self::Exact(hashes), Self::Sketch(mut others)) => {
                hashes.iter().for_each(|hash| raise(&mut others, *hash));
                *self = Self::Sketch(others);
            }
        }
    }

    /// About how many distinct values there were.
    pub(super) fn estimate(&self) -> u64 {
        let registers = match self {
            Self::Exact(hashes) => return hashes.len() as u64,
            Self::Sketch(registers) => registers,
        };
        let mut counts = [0u32; RANK_BITS as usize + 2];
        for rank in registers.iter() {
            counts[usize::from(*rank)] += 1;
        }
        let all = REGISTERS as f64;
        let (zero, last) = (counts[0], counts[RANK_BITS as usize + 1]);
        let mut z = all * tau(1.0 - f64::from(last) / all);
        for count in counts[1..=RANK_BITS as usize].iter().rev() {
            z = 0.5 * (z + f64::from(*count));
        }
        z += all * sigma(f64::from(zero) / all);
        (all * all / (2.0 * std::f64::consts::LN_2 * z)).round() as u64
    }
}

#[inline]
fn raise(registers: &mut [u8; REGISTERS], hash: u64) {
    let register = &mut registers[(hash >> RANK_BITS) as usize];
    let rank = (hash << PRECISION).leading_zeros().min(RANK_BITS) + 1;
    *register = (rank as u8).max(*register);
}

/// Source: Ertl, as above.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// Source: Ertl, as above.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// Mixes the bits of a number. Source: the finalizer of MurmurHash3 for 64 bits.
#[inline]
pub(super) fn hash_number(bits: u64) -> u64 {
    let mut hash = bits;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// Longer strings are told apart by their length and so many pieces of them: a hash of a whole picture of 110 kB takes 25 us, as long as all else
/// that is done with it.
const MOST_WHOLE: usize = PIECES * PIECE_BYTES;
const PIECES: usize = 16;
const PIECE_BYTES: usize = 512;

/// Source: XXH3, 64 bits, seed 0, of xxHash 0.8.
#[inline]
pub(super) fn hash_bytes(bytes: &[u8]) -> u64 {
    if bytes.len() <= MOST_WHOLE {
        return twox_hash::XxHash3_64::oneshot(bytes);
    }
    // From the first bytes to the last ones, evenly.
    let mut sample = [0; MOST_WHOLE + 8];
    let (pieces, length) = sample.split_at_mut(MOST_WHOLE);
    for (index, piece) in pieces.chunks_exact_mut(PIECE_BYTES).enumerate() {
        let start = (bytes.len() - PIECE_BYTES) / (PIECES - 1) * index;
        let start = if index == PIECES - 1 {
            bytes.len() - PIECE_BYTES
        } else {
            start
        };
        piece.copy_from_slice(&bytes[start..start + PIECE_BYTES]);
    }
    length.copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    twox_hash::XxHash3_64::oneshot(&sample)
}

/// One of the two.
#[derive(Debug, Serialize, Deserialize)]
enum Stored {
    #[serde(rename = "exact")]
    Exact(Vec<u64>),
    #[serde(rename = "registers")]
    Registers(String),
}

impl From<Distinct> for Stored {
    fn from(distinct: Distinct) -> Self {
        match distinct {
            Distinct::Exact(hashes) => Self::Exact(hashes),
            Distinct::Sketch(registers) => {
                let character = |rank: &u8| char::from(ALPHABET[usize::from(*rank)]);
                Self::Registers(registers.iter().map(character).collect())
            }
        }
    }
}

impl TryFrom<Stored> for Distinct {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        match stored {
            Stored::Exact(hashes) => {
                if hashes.len() > MOST_EXACT || !hashes.is_sorted_by(|a, b| a < b) {
                    return Err("the hashes of distinct values are too many, or not in order");
                }
                Ok(Self::Exact(hashes))
            }
            Stored::Registers(text) => {
                let mut registers = Box::new([0; REGISTERS]);
                if text.len() != REGISTERS {
                    return Err("a sketch has another number of registers");
                }
                for (register, character) in registers.iter_mut().zip(text.bytes()) {
                    let rank = ALPHABET.iter().position(|other| *other == character);
                    let rank = rank.filter(|rank| *rank <= RANK_BITS as usize + 1);
                    *register = rank.ok_or("a register of a sketch is out of range")? as u8;
                }
                Ok(Self::Sketch(registers))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Distinct {
        let mut distinct = Distinct::default();
        values
            .into_iter()
            .for_each(|value| distinct.insert(hash_number(value)));
        distinct
    }

    #[test]
    fn a_few_are_counted_exactly_and_many_within_the_bound() {
        for count in [0, 1, 2, 127, 128] {
            assert_eq!(of((0..count).chain(0..count)).estimate(), count);
        }
        // Each size with values of its own; none of these is further off than 3.3 standard errors (one in a thousand would be).
        for (number, count) in [129u64, 500, 2_000, 5_000, 10_000, 50_000, 300_000, 1_000_000]
            .into_iter()
            .enumerate()
        {
            let start = (number as u64) << 40;
            let estimate = of(start..start + count).estimate();
            let error = (estimate as f64 - count as f64) / count as f64;
            assert!(
                error.abs() < 3.3 * STANDARD_ERROR,
                "{count}: {estimate}, {error:+.3}"
            );
        }
    }

    #[test]
    fn texts_are_estimated_as_well_as_numbers() {
        let mut distinct = Distinct::default();
        for number in 0..100_000 {
            distinct.insert(hash_bytes(format!("row {number}").as_bytes()));
        }
        let error = distinct.estimate() as f64 / 1e5 - 1.0;
        assert!(error.abs() < 3.3 * STANDARD_ERROR, "{error:+.3}");
        // The hash is part of the format: a sketch of another version is merged with it.
        assert_eq!(hash_bytes(b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn long_strings_are_told_apart_by_their_ends_their_length_and_what_is_between() {
        for length in [
            MOST_WHOLE - 1,
            MOST_WHOLE,
            MOST_WHOLE + 1,
            MOST_WHOLE + 15,
            100_003,
        ] {
            let plain = vec![7; length];
            let mut hashes = vec![hash_bytes(&plain), hash_bytes(&plain[1..])];
            for at in [
                0,
                length / 2 - length / 2 % ((length - PIECE_BYTES) / (PIECES - 1)),
                length - 1,
            ] {
                let mut other = plain.clone();
                other[at] ^= 1;
                hashes.push(hash_bytes(&other));
            }
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), 5, "{length}");
        }
    }

    #[test]
    fn what_is_no_sketch_is_refused() {
        for text in [
            r#"{"exact":[2,1]}"#,
            r#"{"registers":"00"}"#,
            r#"{"registers":1}"#,
            "{}",
        ] {
            assert!(serde_json::from_str::<Distinct>(text).is_err(), "{text}");
        }
        let high = format!(r#"{{"registers":"{}"}}"#, "Z".repeat(REGISTERS));
        assert!(serde_json::from_str::<Distinct>(&high).is_err());
    }

    proptest! {
        #[test]
        fn order_and_grouping_do_not_count(values in prop::collection::vec(0u64..400, 0..600), cuts in prop::collection::vec(0usize..600, 0..4)) {
            let whole = of(values.iter().copied());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(values.len())).collect();
            cuts.sort_unstable();
            cuts.push(values.len());
            let mut parts = Vec::new();
            let mut start = 0;
            for cut in cuts {
                parts.push(of(values[start..cut].iter().rev().copied()));
                start = cut;
            }
            let merged = parts.into_iter().rev().fold(Distinct::default(), |mut merged, part| {
                let text = serde_json::to_string(&part).unwrap();
                merged.merge(serde_json::from_str(&text).unwrap());
                merged
            });
            prop_assert_eq!(merged, whole);
        }
    }
}
