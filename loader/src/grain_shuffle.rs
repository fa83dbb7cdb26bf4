//! Grain's shuffle, bit for bit: `MapDataset.shuffle(seed)` and its index permutation.
//!
//! Grain permutes `0..=max_index` with the round function of the SIMON block cipher on a block of
//! `max(16, ceil(log2(max_index)))` bits, rounded up to an even number, and walks the cycle until the value is in range.
//! Round keys come from C++'s `std::seed_seq` over the one seed word; epoch `e` uses seed `(seed + e) mod 2^32`.
//!
//! Source: Grain, `experimental/index_shuffle/index_shuffle.cc` and `dataset/transformations/shuffle.py`; SIMON's round
//! function: Beaulieu and others, "The SIMON and SPECK families of lightweight block ciphers", 2013; cycle walking: Black
//! and Rogaway, "Ciphers with arbitrary finite domains", 2002; `std::seed_seq::generate`: ISO C++, section `rand.util.seedseq`.
//!
//! Where `max_index` is `2^k` with an even `k >= 16` (65,537 records, for example), Grain's block is one bit too short:
//! one record of the epoch comes twice and one never. Being bit for bit the same, this order has that fault too;
//! [`GrainShuffle::is_permutation`] tells.

/// Rounds that `MapDataset.shuffle` uses.
const ROUNDS: usize = 4;

/// Grain's permutation of one epoch: 4 round keys and the word size; a few nanoseconds an index, O(1) memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrainShuffle {
    max_index: u64,
    word_bits: u32,
    round_keys: [u64; ROUNDS],
}

impl GrainShuffle {
    /// The permutation of `0..length` for an epoch. `None` where Grain cannot: `length` or `seed` is not below 2^32, or
    /// there are no records.
    pub fn new(length: u64, seed: u64, epoch: u64) -> Option<Self> {
        if length == 0 || length >= 1 << 32 || seed >= 1 << 32 {
            return None;
        }
        let max_index = length - 1;
        let word_bits = word_bits(max_index);
        let mask = (1u64 << word_bits) - 1;
        let epoch_seed = (seed as u32).wrapping_add(epoch as u32);
        let round_keys = seed_sequence::<ROUNDS>(epoch_seed).map(|key| u64::from(key) & mask);
        Some(Self {
            max_index,
            word_bits,
            round_keys,
        })
    }

    /// The record at a position of the epoch.
    ///
    /// # Panics
    /// If `index` is not below the length: a caller's bug.
    pub fn apply(&self, index: u64) -> u64 {
        assert!(
            index <= self.max_index,
            "index {index} is beyond {}",
            self.max_index
        );
        if self.max_index == 0 {
            return 0;
        }
        let mut value = index;
        loop {
            value = encrypt(value, self.word_bits, &self.round_keys);
            if value <= self.max_index {
                return value;
            }
        }
    }

    /// Whether each record comes once; false only where Grain's own block is too short (see the module's text).
    pub fn is_permutation(&self) -> bool {
        self.max_index >> (2 * self.word_bits) == 0
    }
}

/// Half of Grain's block size, in bits.
fn word_bits(max_index: u64) -> u32 {
    // ceil(log2(max_index)), exact for all u64.
    let bits = if max_index <= 1 {
        0
    } else {
        64 - (max_index - 1).leading_zeros()
    };
    bits.next_multiple_of(2).max(16) / 2
}

/// A left rotation of a word of `bits` bits; a rotation by the whole word leaves it as it is.
fn rotate(word: u64, by: u32, bits: u32) -> u64 {
    ((word << by) | (word >> (bits - by))) & ((1 << bits) - 1)
}

fn simon(word: u64, bits: u32) -> u64 {
    (rotate(word, 1, bits) & rotate(word, 8, bits)) ^ rotate(word, 2, bits)
}

fn encrypt(value: u64, bits: u32, round_keys: &[u64]) -> u64 {
    let mask = (1u64 << bits) - 1;
    let (mut left, mut right) = ((value >> bits) & mask, value & mask);
    for pair in round_keys.chunks_exact(2) {
        left ^= simon(right, bits) ^ pair[0];
        right ^= simon(left, bits) ^ pair[1];
    }
    (left << bits) | right
}

/// What `std::seed_seq{seed}` generates for `N` words, `2 <= N < 7`.
fn seed_sequence<const N: usize>(seed: u32) -> [u32; N] {
    let mix = |x: u32| x ^ (x >> 27);
    let mut words = [0x8b8b_8b8bu32; N];
    let spread = (N - 1) / 2;
    let near = (N - spread) / 2;
    let far = near + spread;
    for step in 0..N.max(2) {
        let (at, before) = (step % N, (step + N - 1) % N);
        let first = 1_664_525u32.wrapping_mul(mix(words[at] ^ words[(step + near) % N] ^ words[before]));
        let second = first.wrapping_add(match step {
            0 => 1,
            1 => (at as u32).wrapping_add(seed),
            _ => at as u32,
        });
        words[(step + near) % N] = words[(step + near) % N].wrapping_add(first);
        words[(step + far) % N] = words[(step + far) % N].wrapping_add(second);
        words[at] = second;
    }
    for step in N.max(2)..N.max(2) + N {
        let (at, before) = (step % N, (step + N - 1) % N);
        let sum = words[at]
            .wrapping_add(words[(step + near) % N])
            .wrapping_add(words[before]);
        let third = 1_566_083_941u32.wrapping_mul(mix(sum));
        let fourth = third.wrapping_sub(at as u32);
        words[(step + near) % N] ^= third;
        words[(step + far) % N] ^= fourth;
        words[at] = fourth;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_what_grain_printed() {
        let text = include_str!("../../tests/golden/grain/index_shuffle.json");
        let file: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut compared = 0;
        for row in file["rows"].as_array().unwrap() {
            let number = |field: &str| row[field].as_u64().unwrap();
            let (length, seed) = (number("n"), number("seed"));
            let values: Vec<u64> = row["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_u64().unwrap())
                .collect();
            let indices: Vec<u64> = match row["indices"].as_array() {
                Some(indices) => indices.iter().map(|v| v.as_u64().unwrap()).collect(),
                None => (0..length).collect(),
            };
            let found: Vec<u64> = match number("rounds") {
                4 => {
                    let shuffle = GrainShuffle::new(length, seed, 0).unwrap();
                    indices.iter().map(|&index| shuffle.apply(index)).collect()
                }
                _ => continue,
            };
            assert_eq!(found, values, "n {length}, seed {seed}");
            compared += values.len();
        }
        assert!(compared > 500, "{compared}");
    }

    #[test]
    fn each_record_comes_once() {
        for length in [1, 2, 3, 17, 255, 256, 257, 1000, 65_536, 65_538] {
            let shuffle = GrainShuffle::new(length, 7, 3).unwrap();
            assert!(shuffle.is_permutation());
            let mut seen = vec![false; length as usize];
            for index in 0..length {
                assert!(!std::mem::replace(&mut seen[shuffle.apply(index) as usize], true));
            }
        }
    }

    #[test]
    fn says_where_grain_loses_a_record() {
        let shuffle = GrainShuffle::new(65_537, 7, 0).unwrap();
        assert!(!shuffle.is_permutation());
        assert_eq!(shuffle.apply(0), shuffle.apply(65_536));
    }

    #[test]
    fn epochs_count_seeds_modulo_two_to_the_32() {
        assert_eq!(
            GrainShuffle::new(1000, u64::from(u32::MAX), 1),
            GrainShuffle::new(1000, 0, 0)
        );
        assert_eq!(GrainShuffle::new(1 << 32, 0, 0), None);
        assert_eq!(GrainShuffle::new(10, 1 << 32, 0), None);
        assert_eq!(GrainShuffle::new(0, 0, 0), None);
    }
}
