//! The keyed permutation of order `prep`: a Feistel network over a rectangle of `a` by `b` cells, cycles walked into `0..n`.
//!
//! Source: ORDER.md, section 2. Cycle walking and networks over rectangles: Black and Rogaway, "Ciphers with arbitrary finite
//! domains", 2002. The mixing constants are SplitMix64's: Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The largest length that can be permuted.
pub const MAX_LENGTH: u64 = 1 << 63;

const MAX_ROUNDS: usize = 32;

/// A keyed bijection of `0..length`; it depends on seed, epoch and length only.
///
/// Made in under a microsecond, holds 34 words whatever the length, and evaluates an index in O(1): 8 to 32 rounds of some 5
/// nanoseconds, over an expected `1 + 2 / sqrt(length)` passes.
///
/// # Examples
/// ```
/// use prep_loader::permutation::Permutation;
///
/// let permutation = Permutation::new(42, 0, 10);
/// let order: Vec<u64> = (0..10).map(|offset| permutation.apply(offset)).collect();
/// assert_eq!(order, [3, 4, 7, 0, 6, 2, 8, 5, 1, 9]);
/// ```
#[derive(Debug, Clone)]
pub struct Permutation {
    length: u64,
    sides: (u64, u64),
    num_rounds: usize,
    keys: [u64; MAX_ROUNDS],
}

impl Permutation {
    /// The permutation of `0..length` for one epoch of a seed.
    ///
    /// # Panics
    /// If `length` is above 2^63: a caller's bug.
    pub fn new(seed: u64, epoch: u64, length: u64) -> Self {
        Self::tagged(seed, epoch, length, b"shuffle\0")
    }

    /// The permutation inside a window, of another key stream: ORDER.md, section 13.
    pub(crate) fn windowed(seed: u64, window: u64, length: u64) -> Self {
        Self::tagged(seed, window, length, b"window\0\0")
    }

    fn tagged(seed: u64, number: u64, length: u64, tag: &[u8; 8]) -> Self {
        assert!(
            length <= MAX_LENGTH,
            "length {length} is above 2^63; callers check it"
        );
        let num_rounds = num_rounds(length);
        let mut keys = [0; MAX_ROUNDS];
        let mut stream = key_stream(seed, number, length, tag);
        for key in &mut keys[..num_rounds] {
            *key = stream.next_u64();
        }
        Self {
            length,
            sides: sides(length),
            num_rounds,
            keys,
        }
    }

    /// How many indices are permuted.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The index at an offset of the epoch.
    ///
    /// # Panics
    /// If `offset` is not below the length: a caller's bug.
    pub fn apply(&self, offset: u64) -> u64 {
        assert!(
            offset < self.length,
            "offset {offset} is beyond length {}",
            self.length
        );
        let mut value = self.pass(offset);
        while value >= self.length {
            value = self.pass(value);
        }
        value
    }

    fn pass(&self, value: u64) -> u64 {
        let (a, b) = self.sides;
        let (mut left, mut right) = (value / b, value % b);
        for pair in self.keys[..self.num_rounds].chunks_exact(2) {
            left = add(left, scale(mix(right, pair[0]), a), a);
            right = add(right, scale(mix(left, pair[1]), b), b);
        }
        left * b + right
    }
}

fn num_rounds(length: u64) -> usize {
    match length {
        0..0x100 => MAX_ROUNDS,
        0x100..0x1_0000 => 12,
        _ => 8,
    }
}

/// The least rectangle for a length, with an even side so that odd permutations are possible.
fn sides(length: u64) -> (u64, u64) {
    if length == 0 {
        return (1, 1);
    }
    let root = length.isqrt();
    let a = if root * root == length { root } else { root + 1 };
    let b = length.div_ceil(a);
    (a, if a % 2 == 1 && b % 2 == 1 { b + 1 } else { b })
}

fn key_stream(seed: u64, number: u64, length: u64, tag: &[u8; 8]) -> ChaCha20Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&number.to_le_bytes());
    key[16..24].copy_from_slice(&length.to_le_bytes());
    key[24..].copy_from_slice(tag);
    ChaCha20Rng::from_seed(key)
}

#[inline]
fn mix(value: u64, key: u64) -> u64 {
    let mut z = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(key);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A 64-bit number to `0..side`.
#[inline]
fn scale(value: u64, side: u64) -> u64 {
    ((u128::from(value) * u128::from(side)) >> 64) as u64
}

/// `(x + y) mod side` for `x, y < side < 2^32`.
#[inline]
fn add(x: u64, y: u64, side: u64) -> u64 {
    let sum = x + y;
    if sum >= side { sum - side } else { sum }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vectors() -> serde_json::Value {
        serde_json::from_str(include_str!("../../tests/golden/order/vectors.json")).unwrap()
    }

    fn numbers(value: &serde_json::Value) -> Vec<u64> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_u64().unwrap())
            .collect()
    }

    #[test]
    fn equals_the_reference() {
        let vectors = vectors();
        for row in vectors["sides"].as_array().unwrap() {
            let row = numbers(row);
            assert_eq!(sides(row[0]), (row[1], row[2]), "n {}", row[0]);
        }
        let make = |row: &serde_json::Value| {
            let number = |field: &str| row[field].as_u64().unwrap();
            Permutation::new(number("seed"), number("epoch"), number("n"))
        };
        for row in vectors["round_keys"].as_array().unwrap() {
            let permutation = make(row);
            let keys: Vec<String> = permutation.keys[..permutation.num_rounds]
                .iter()
                .map(|key| format!("{key:016x}"))
                .collect();
            assert_eq!(serde_json::json!(keys), row["keys"]);
        }
        let mut compared = 0;
        for row in vectors["permutations"].as_array().unwrap() {
            let permutation = make(row);
            for (offset, &index) in numbers(&row["first"]).iter().enumerate() {
                assert_eq!(permutation.apply(offset as u64), index, "{row}");
                compared += 1;
            }
        }
        for row in vectors["at"].as_array().unwrap() {
            let permutation = make(row);
            for pair in row["at"].as_array().unwrap() {
                let pair = numbers(pair);
                assert_eq!(permutation.apply(pair[0]), pair[1], "{row}");
                compared += 1;
            }
        }
        assert!(compared > 1000, "{compared}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn is_a_bijection(length in 0u64..5_000, seed: u64, epoch: u64) {
            let permutation = Permutation::new(seed, epoch, length);
            let mut seen = vec![false; length as usize];
            for offset in 0..length {
                prop_assert!(!std::mem::replace(&mut seen[permutation.apply(offset) as usize], true));
            }
        }

        #[test]
        fn stays_in_range_and_apart_for_any_length(length in 2u64..=MAX_LENGTH, seed: u64, first: u64, second: u64) {
            let permutation = Permutation::new(seed, 0, length);
            let (first, second) = (first % length, second % length);
            let (x, y) = (permutation.apply(first), permutation.apply(second));
            prop_assert!(x < length && y < length);
            prop_assert_eq!(first == second, x == y);
        }
    }

    /// Chi-square over equally likely classes, as a number of standard deviations from its expectation.
    fn chi_square_deviation(counts: &[u64]) -> f64 {
        let total: u64 = counts.iter().sum();
        let expected = total as f64 / counts.len() as f64;
        let chi_square: f64 = counts
            .iter()
            .map(|&count| (count as f64 - expected).powi(2) / expected)
            .sum();
        let freedom = (counts.len() - 1) as f64;
        (chi_square - freedom) / (2.0 * freedom).sqrt()
    }

    /// The number of a permutation among all `n!`, by its Lehmer code.
    fn class(order: &[u64]) -> usize {
        let mut class = 0;
        for (at, &value) in order.iter().enumerate() {
            let smaller = order[at + 1..].iter().filter(|&&later| later < value);
            class = class * (order.len() - at) + smaller.count();
        }
        class
    }

    #[test]
    fn all_permutations_of_few_are_equally_likely() {
        for (length, samples) in [
            (2u64, 20_000u64),
            (3, 30_000),
            (4, 60_000),
            (5, 60_000),
            (6, 80_000),
        ] {
            let classes: u64 = (1..=length).product();
            let mut counts = vec![0; classes as usize];
            for sample in 0..samples {
                // Seeds and epochs both vary: small numbers, as users choose them.
                let permutation = Permutation::new(sample / 100, sample % 100, length);
                let order: Vec<u64> = (0..length).map(|offset| permutation.apply(offset)).collect();
                counts[class(&order)] += 1;
            }
            let deviation = chi_square_deviation(&counts);
            assert!(deviation.abs() < 4.0, "n {length}: {deviation}");
        }
    }

    #[test]
    fn images_and_pairs_are_uniform() {
        for length in [9u64, 10, 16, 25, 100, 257, 1000] {
            let samples = 40_000u64;
            let buckets = length.min(10);
            let mut single = vec![0; buckets as usize];
            let mut pairs = vec![0u64; (buckets * buckets) as usize];
            for seed in 0..samples {
                let permutation = Permutation::new(seed, 5, length);
                let (x, y) = (permutation.apply(0), permutation.apply(1));
                if length % buckets == 0 {
                    single[(x * buckets / length) as usize] += 1;
                    if length > buckets {
                        pairs[(x % buckets * buckets + y % buckets) as usize] += 1;
                    }
                }
            }
            if length % buckets == 0 {
                let deviation = chi_square_deviation(&single);
                assert!(deviation.abs() < 4.0, "n {length}: {deviation}");
            }
            if length % buckets == 0 && length > buckets {
                // Pairs of equal residues are a little rarer, as x and y differ: compare with that.
                let mut chi_square = 0.0;
                for (at, &count) in pairs.iter().enumerate() {
                    let (n, residues) = (length as f64, buckets as f64);
                    let same = at as u64 / buckets == at as u64 % buckets;
                    let partners = n / residues - if same { 1.0 } else { 0.0 };
                    let expected = samples as f64 * (1.0 / residues) * partners / (n - 1.0);
                    chi_square += (count as f64 - expected).powi(2) / expected;
                }
                let freedom = (buckets * buckets - 1) as f64;
                let deviation = (chi_square - freedom) / (2.0 * freedom).sqrt();
                assert!(deviation.abs() < 4.0, "n {length}, pairs: {deviation}");
            }
        }
    }

    /// Fixed points, cycles, rises and serial correlation of whole permutations, beside what a true random one has.
    #[test]
    fn looks_like_a_random_permutation() {
        for length in [64u64, 100, 255, 256, 1000, 4097] {
            let rounds = 60_000 / length + 60;
            let (mut fixed, mut cycles, mut rises, mut odd, mut correlation) =
                (0u64, 0u64, 0u64, 0u64, 0.0f64);
            for seed in 0..rounds {
                let permutation = Permutation::new(seed, 0, length);
                let order: Vec<u64> = (0..length).map(|offset| permutation.apply(offset)).collect();
                fixed += (0..length).filter(|&at| order[at as usize] == at).count() as u64;
                rises += order.windows(2).filter(|pair| pair[0] < pair[1]).count() as u64;
                let mut seen = vec![false; length as usize];
                let mut own_cycles = 0;
                for start in 0..length as usize {
                    let mut at = start;
                    own_cycles += u64::from(!seen[at]);
                    while !std::mem::replace(&mut seen[at], true) {
                        at = order[at] as usize;
                    }
                }
                cycles += own_cycles;
                odd += (length - own_cycles) % 2;
                let mean = (length - 1) as f64 / 2.0;
                let variance = ((length * length - 1) as f64) / 12.0;
                correlation += order
                    .windows(2)
                    .map(|pair| (pair[0] as f64 - mean) * (pair[1] as f64 - mean))
                    .sum::<f64>()
                    / (variance * (length - 1) as f64);
            }
            let (n, times) = (length as f64, rounds as f64);
            let harmonic: f64 = (1..=length).map(|i| 1.0 / i as f64).sum();
            let squares: f64 = (1..=length).map(|i| 1.0 / (i * i) as f64).sum();
            // Mean and variance of each count for one uniform permutation.
            let checks = [
                ("fixed points", fixed as f64, 1.0, 1.0),
                ("cycles", cycles as f64, harmonic, harmonic - squares),
                ("rises", rises as f64, (n - 1.0) / 2.0, (n + 1.0) / 12.0),
                ("odd", odd as f64, 0.5, 0.25),
                ("serial correlation", correlation, -1.0 / (n - 1.0), 1.0 / n),
            ];
            for (what, sum, mean, variance) in checks {
                let deviation = (sum - times * mean) / (times * variance).sqrt();
                assert!(deviation.abs() < 4.0, "n {length}, {what}: {deviation}");
            }
        }
    }

    /// Neighbouring seeds, epochs and lengths give unrelated orders.
    #[test]
    fn keys_do_not_correlate() {
        let length = 1000u64;
        let samples = 200;
        let agree = |x: &Permutation, y: &Permutation| {
            (0..length)
                .filter(|&offset| x.apply(offset) == y.apply(offset))
                .count() as f64
        };
        let mut sums = [0.0f64; 3];
        for seed in 0..samples {
            let base = Permutation::new(seed, 0, length);
            sums[0] += agree(&base, &Permutation::new(seed + 1, 0, length));
            sums[1] += agree(&base, &Permutation::new(seed, 1, length));
            sums[2] += agree(&base, &Permutation::new(seed, 0, length + 1));
        }
        for sum in sums {
            // One agreement is expected each time, with variance one.
            let deviation = (sum - samples as f64) / (samples as f64).sqrt();
            assert!(deviation.abs() < 4.0, "{deviation}");
        }
    }
}
