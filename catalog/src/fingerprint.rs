//! Content fingerprints: a hash over features and the ordered hashes of records, unchanged by recompression or resharding.
//!
//! The hash of a record is HighwayHash-128 under a fixed key, taken modulo the prime `p = 2^127 - 1`. The hash of a sequence is a
//! polynomial in a fixed `r`:
//!
//! ```text
//! hash([])     = 0
//! hash(s + x)  = hash(s) * r + record(x)                  (mod p)
//! hash(s + t)  = hash(s) * r^len(t) + hash(t)             (mod p)
//! ```
//!
//! so shards are hashed in parallel and joined, and the cutting does not show. Length and hash together identify a sequence:
//! two different sequences of up to 10^9 records agree with a probability of about 10^9 / 2^127, unless someone who knows the
//! key looks for a collision. The fingerprint finds changes; it is no seal against forgery (the manifest's SHA-256 sums are).
//!
//! Costs: `push` is the record's hash (about 10 GB/s) and one 127-bit product (about 3 ns); `join` is `2 log2(n)` products.
//!
//! Source of the record hash: Google's HighwayHash, `highwayhash/highwayhash.h`. The polynomial is the usual one over a
//! Mersenne prime.

use std::fmt;

use highway::{HighwayHash, HighwayHasher, Key};
use sha2::{Digest, Sha256};

/// Key of the record hash: the ASCII text `prep record hash, format 1      `, as four little-endian words. Ours: any fixed key does.
pub const RECORD_KEY: [u64; 4] = [
    u64::from_le_bytes(*b"prep rec"),
    u64::from_le_bytes(*b"ord hash"),
    u64::from_le_bytes(*b", format"),
    u64::from_le_bytes(*b" 1      "),
];
const KEY: Key = Key(RECORD_KEY);

/// The prime 2^127 - 1.
const PRIME: u128 = (1 << 127) - 1;

/// Base of the polynomial: the first 127 bits of the fraction of the golden ratio. Ours: any large fixed number does.
const BASE: u128 = 0x4f1b_bcdc_bfa5_3e0a_f9ce_6030_2e76_e41a;

/// The hash of a sequence of records.
///
/// # Examples
///
/// ```
/// use prep_catalog::fingerprint::SequenceHash;
///
/// let whole = SequenceHash::of([b"a", b"b", b"c"]);
/// let joined = SequenceHash::of([b"a"]).join(SequenceHash::of([b"b", b"c"]));
/// assert_eq!(joined, whole);
/// assert_eq!(whole.length(), 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceHash {
    value: u128,
    length: u64,
}

impl SequenceHash {
    /// The hash of these records in this order.
    pub fn of<R: AsRef<[u8]>>(records: impl IntoIterator<Item = R>) -> Self {
        let mut hash = Self::default();
        for record in records {
            hash.push(record.as_ref());
        }
        hash
    }

    /// Appends a record.
    pub fn push(&mut self, record: &[u8]) {
        self.push_hash(record_hash(record));
    }

    /// Appends a record whose HighwayHash-128 under [`RECORD_KEY`] is known.
    pub fn push_hash(&mut self, [low, high]: [u64; 2]) {
        let record = reduce(u128::from(high) << 64 | u128::from(low));
        self.value = add(multiply(self.value, BASE), record);
        self.length += 1;
    }

    /// The hash of this sequence followed by `other`.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self {
            value: add(multiply(self.value, power(BASE, other.length)), other.value),
            length: self.length + other.length,
        }
    }

    /// Number of records.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The hash, big-endian. With [`length`](Self::length) it is all there is: see [`from_bytes`](Self::from_bytes).
    pub fn to_bytes(self) -> [u8; 16] {
        self.value.to_be_bytes()
    }

    /// The hash that [`to_bytes`](Self::to_bytes) gave, of a sequence of `length` records. `None` for bytes that it never gives.
    pub fn from_bytes(bytes: [u8; 16], length: u64) -> Option<Self> {
        let value = u128::from_be_bytes(bytes);
        (value < PRIME && (length > 0 || value == 0)).then_some(Self { value, length })
    }

    /// The hash in hex, as manifests store it.
    pub fn to_hex(self) -> String {
        hex::encode(self.to_bytes())
    }

    /// The hash that [`to_hex`](Self::to_hex) gave, of a sequence of `length` records. `None` for text that it never gives.
    pub fn from_hex(text: &str, length: u64) -> Option<Self> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Self::from_bytes(bytes, length)
    }
}

impl fmt::Display for SequenceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// The HighwayHash-128 of a record under [`RECORD_KEY`].
pub fn record_hash(record: &[u8]) -> [u64; 2] {
    HighwayHasher::new(KEY).hash128(record)
}

/// `x` modulo the prime, for any `x`.
fn reduce(x: u128) -> u128 {
    let folded = (x & PRIME) + (x >> 127);
    if folded >= PRIME { folded - PRIME } else { folded }
}

/// Sum of two residues.
fn add(a: u128, b: u128) -> u128 {
    reduce(a + b)
}

/// Product of two residues, by four 64-bit products.
fn multiply(a: u128, b: u128) -> u128 {
    let (a1, a0) = (a >> 64, a & u128::from(u64::MAX));
    let (b1, b0) = (b >> 64, b & u128::from(u64::MAX));
    // a1 and b1 are below 2^63, so the sum of the two middle products is below 2^128.
    let (low, middle, high) = (a0 * b0, a1 * b0 + a0 * b1, a1 * b1);
    // The product is high * 2^128 + middle * 2^64 + low, and 2^127 is 1 modulo the prime:
    // 2^128 is 2, and middle * 2^64 is (middle >> 63) + (the low 63 bits of middle) * 2^64.
    let middle = (middle >> 63) + ((middle & ((1 << 63) - 1)) << 64);
    add(add(reduce(high << 1), reduce(middle)), reduce(low))
}

/// `base` to the power of `exponent`, by squaring.
fn power(mut base: u128, mut exponent: u64) -> u128 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, base);
        }
        base = multiply(base, base);
        exponent >>= 1;
    }
    result
}

/// The fingerprint of a dataset: hex of a SHA-256 over the canonical features and, per split, name, length and sequence hash.
///
/// The splits count in the order of their names, so the order in which they are given does not matter. Every text is preceded
/// by its length in bytes (`u64`, big-endian), so no two inputs give the same bytes to hash.
pub fn dataset_fingerprint(features_json: &str, splits: &[(String, SequenceHash)]) -> String {
    let mut sorted: Vec<_> = splits.iter().collect();
    sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut digest = Sha256::new();
    let text = |digest: &mut Sha256, text: &str| {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text.as_bytes());
    };
    text(&mut digest, "prep dataset fingerprint, format 1");
    text(&mut digest, features_json);
    digest.update((sorted.len() as u64).to_be_bytes());
    for (name, hash) in sorted {
        text(&mut digest, name);
        digest.update(hash.length().to_be_bytes());
        digest.update(hash.to_bytes());
    }
    hex::encode(digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The product by doubling and adding, bit by bit: slow and plainly right.
    fn multiply_slowly(a: u128, mut b: u128) -> u128 {
        let (mut result, mut a) = (0, a);
        while b > 0 {
            if b & 1 == 1 {
                result = (result + a) % PRIME;
            }
            a = (a + a) % PRIME;
            b >>= 1;
        }
        result
    }

    #[test]
    fn the_hash_never_changes() {
        // Vectors of this format: a change here is a change of every fingerprint there is.
        assert_eq!(SequenceHash::default().to_hex(), "0".repeat(32));
        assert_eq!(SequenceHash::of([b""]).to_hex(), VECTOR_EMPTY);
        assert_eq!(SequenceHash::of(["a", "bc", ""]).to_hex(), VECTOR_THREE);
        let mut hash = SequenceHash::of(["a", "bc"]);
        hash.push_hash(HighwayHasher::new(Key(RECORD_KEY)).hash128(b""));
        assert_eq!(hash.to_hex(), VECTOR_THREE);
        let splits = [
            ("train".to_string(), SequenceHash::of(["a", "bc"])),
            ("test".to_string(), SequenceHash::default()),
        ];
        assert_eq!(dataset_fingerprint("{}", &splits), VECTOR_DATASET);
    }

    const VECTOR_EMPTY: &str = "55c451ebe6a14d459d6e50085dec4125";
    const VECTOR_THREE: &str = "5e60e85efc02d55f9285c140ae986c65";
    const VECTOR_DATASET: &str = "13c8e552e810a65a8a7250ae8239a095b01063a9efea3819529c7bea3d374955";

    #[test]
    fn products_of_the_largest_residues_are_right() {
        let edges = [
            0,
            1,
            2,
            u128::from(u64::MAX),
            1 << 64,
            1 << 126,
            PRIME - 2,
            PRIME - 1,
            BASE,
        ];
        for a in edges {
            for b in edges {
                assert_eq!(multiply(a, b), multiply_slowly(a, b), "{a} {b}");
            }
        }
        assert_eq!(reduce(u128::MAX), 1);
        assert_eq!(reduce(PRIME), 0);
    }

    #[test]
    fn a_fingerprint_tells_what_differs() {
        let split = |name: &str, records: &[&str]| (name.to_string(), SequenceHash::of(records));
        let base = [split("train", &["a", "b"]), split("test", &["c"])];
        let print = dataset_fingerprint("{}", &base);
        assert_eq!(print.len(), 64);
        let swapped = [base[1].clone(), base[0].clone()];
        assert_eq!(dataset_fingerprint("{}", &swapped), print);
        for other in [
            dataset_fingerprint("{ }", &base),
            dataset_fingerprint("{}", &base[..1]),
            dataset_fingerprint("{}", &[split("train", &["b", "a"]), split("test", &["c"])]),
            dataset_fingerprint("{}", &[split("train", &["a"]), split("test", &["b", "c"])]),
            dataset_fingerprint("{}", &[split("train", &["a", "b"]), split("tes", &["c"])]),
            dataset_fingerprint("{}", &[split("train", &["a", "b", ""]), split("test", &["c"])]),
        ] {
            assert_ne!(other, print);
        }
    }

    #[test]
    fn hex_round_trips_and_refuses_what_it_never_gives() {
        let hash = SequenceHash::of(["x", "y"]);
        assert_eq!(SequenceHash::from_hex(&hash.to_hex(), 2), Some(hash));
        assert_eq!(SequenceHash::from_hex(&"f".repeat(32), 2), None);
        assert_eq!(SequenceHash::from_hex(&hash.to_hex(), 0), None);
        assert_eq!(SequenceHash::from_hex("00", 1), None);
        assert_eq!(SequenceHash::from_hex("é", 1), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// However records are cut into shards, empty ones among them, the joined hash is the same, in any grouping.
        #[test]
        fn any_cutting_into_shards_joins_to_the_same(
            records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..40),
            mut cuts in prop::collection::vec(0usize..41, 0..6),
        ) {
            let whole = SequenceHash::of(&records);
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(records.len()));
            cuts.sort_unstable();
            let mut start = 0;
            let mut shards = Vec::new();
            for end in cuts.into_iter().chain([records.len()]) {
                shards.push(SequenceHash::of(&records[start..end]));
                start = end;
            }
            let from_left = shards.iter().fold(SequenceHash::default(), |a, b| a.join(*b));
            let from_right = shards.iter().rev().fold(SequenceHash::default(), |b, a| a.join(b));
            prop_assert_eq!(from_left, whole);
            prop_assert_eq!(from_right, whole);
        }

        /// Order matters, and so does each record.
        #[test]
        fn a_change_shows(
            mut records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 2..20),
            a in any::<prop::sample::Index>(),
            b in any::<prop::sample::Index>(),
        ) {
            let (a, b) = (a.index(records.len()), b.index(records.len()));
            let before = SequenceHash::of(&records);
            let differ = records[a] != records[b];
            records.swap(a, b);
            prop_assert_eq!(SequenceHash::of(&records) != before, differ);
            records.swap(a, b);
            records[a].push(0);
            prop_assert_ne!(SequenceHash::of(&records), before);
        }

        #[test]
        fn fast_products_are_right(a in 0..PRIME, b in 0..PRIME) {
            prop_assert_eq!(multiply(a, b), multiply_slowly(a, b));
        }
    }
}
