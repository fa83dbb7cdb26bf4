//! The rules by which TFDS orders examples and cuts them into shards.
//!
//! Positions of a dataset built here are those of `tfds build`, so that sub-splits such as `train[:80%]` and published
//! results stay the same.
//!
//! Source: TFDS 4.9, `core/hashing.py` (`Hasher`) and `core/utils/shard_utils.py` (`ShardConfig`, `get_shard_boundaries`).

use std::borrow::Cow;
use std::fmt;

use md5::{Digest, Md5};

/// What orders a record inside its split.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// A number; TFDS hashes its decimal text.
    Int(i128),
    /// Text; TFDS hashes it with `\` replaced by `/`.
    Text(String),
    /// Bytes, hashed as they are.
    Bytes(Vec<u8>),
}

impl Key {
    /// The bytes that are hashed.
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Int(number) => Cow::Owned(number.to_string().into_bytes()),
            Self::Text(text) if text.contains('\\') => Cow::Owned(text.replace('\\', "/").into_bytes()),
            Self::Text(text) => Cow::Borrowed(text.as_bytes()),
            Self::Bytes(bytes) => Cow::Borrowed(bytes),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::Bytes(bytes) => write!(f, "{}", String::from_utf8_lossy(bytes)),
        }
    }
}

impl From<u64> for Key {
    fn from(number: u64) -> Self {
        Self::Int(i128::from(number))
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Hashes the keys of one split: MD5 of the split's name, then the key.
#[derive(Debug, Clone)]
pub struct KeyHasher {
    salted: Md5,
}

impl KeyHasher {
    /// A hasher for the keys of this split.
    pub fn new(split: &str) -> Self {
        let salt = Key::Text(split.to_owned());
        Self {
            salted: Md5::new_with_prefix(salt.to_bytes()),
        }
    }

    /// The 128-bit hash of a key; records are sorted by it, as an unsigned number.
    pub fn hash(&self, key: &Key) -> u128 {
        let mut hasher = self.salted.clone();
        match key {
            // Formats on the stack: this runs once a record.
            Key::Int(number) => {
                let mut text = DecimalText {
                    bytes: [0; 40],
                    length: 0,
                };
                let _ = fmt::Write::write_fmt(&mut text, format_args!("{number}"));
                hasher.update(text.as_bytes());
            }
            other => hasher.update(other.to_bytes()),
        }
        u128::from_be_bytes(hasher.finalize().into())
    }
}

/// Room for any `i128` in decimal.
struct DecimalText {
    bytes: [u8; 40],
    length: usize,
}

impl DecimalText {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Write for DecimalText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes
            .get_mut(self.length..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// The 128-bit hash by which TFDS orders the record of this key in this split.
///
/// ```
/// use prep_jobs::tfds::{key_hash, Key};
///
/// assert_eq!(key_hash("train", &Key::Int(0)), 0x9318f9213195ac5c50b1ddb3c7d5aacd);
/// ```
pub fn key_hash(split: &str, key: &Key) -> u128 {
    KeyHasher::new(split).hash(key)
}

/// Smallest shard that TFDS aims at, in bytes.
const MIN_SHARD_BYTES: u128 = 64 << 20;
/// Largest shard that TFDS aims at, in bytes.
const MAX_SHARD_BYTES: u128 = 1 << 30;
/// What TFDS adds to each record for its framing, in bytes.
const RECORD_OVERHEAD_BYTES: u128 = 16;

/// How many shards TFDS makes of `num_examples` records of `total_bytes` in all (payload only).
///
/// At least one. Where TFDS's search has no end (fewer examples than shards of the largest size need), one shard an example.
pub fn number_of_shards(total_bytes: u64, num_examples: u64) -> u64 {
    let total = u128::from(total_bytes) + u128::from(num_examples) * RECORD_OVERHEAD_BYTES;
    let most = total / MIN_SHARD_BYTES;
    let least = total / MAX_SHARD_BYTES;
    let fits = |n: u64| u128::from(n) >= least && num_examples >= n;
    if least <= 1024 && most >= 1024 && num_examples >= 1024 {
        return 1024;
    }
    if least > 1024 {
        let multiple = least.div_ceil(1024).max(2);
        let wanted = u64::try_from(multiple * 1024).unwrap_or(u64::MAX);
        return wanted.min(num_examples).max(1);
    }
    [512, 256, 128, 64, 32, 16, 8, 4, 2]
        .into_iter()
        .find(|&n| fits(n) && u128::from(n) <= most)
        .unwrap_or(1)
}

/// A split cannot be cut into the shards asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShardCountError {
    /// No shards were asked for.
    #[error("the number of shards is 0, and must be at least 1")]
    Zero,
    /// Some shards would be empty.
    #[error("{num_shards} shards were asked for, but there are only {num_examples} examples")]
    MoreThanExamples {
        /// Shards asked for.
        num_shards: u64,
        /// Examples there are.
        num_examples: u64,
    },
}

/// The position after the last record of each shard: `round(num_examples * i / num_shards)`, half to even, in the double
/// precision that TFDS computes in.
///
/// # Errors
/// No shards, or more shards than examples.
///
/// ```
/// assert_eq!(prep_jobs::tfds::shard_boundaries(10, 7), Ok(vec![1, 3, 4, 6, 7, 9, 10]));
/// ```
pub fn shard_boundaries(num_examples: u64, num_shards: u64) -> Result<Vec<u64>, ShardCountError> {
    if num_shards == 0 {
        return Err(ShardCountError::Zero);
    }
    if num_examples < num_shards {
        return Err(ShardCountError::MoreThanExamples {
            num_shards,
            num_examples,
        });
    }
    let boundary = |i: u64| rounded_quotient(u128::from(num_examples) * u128::from(i), num_shards);
    Ok((1..=num_shards).map(boundary).collect())
}

/// `round(a / b)` as Python gives it: the quotient in the nearest double, then half to even.
fn rounded_quotient(a: u128, b: u64) -> u64 {
    const EXACT: u128 = 1 << 53;
    if a < EXACT && u128::from(b) < EXACT {
        return (a as f64 / b as f64).round_ties_even() as u64;
    }
    let b = u128::from(b);
    let bits = 128 - (a / b).leading_zeros();
    let nearest = |numerator: u128, denominator: u128| {
        let (quotient, rest) = (numerator / denominator, numerator % denominator);
        let up = rest * 2 > denominator || (rest * 2 == denominator && quotient % 2 == 1);
        quotient + u128::from(up)
    };
    let result = if bits > 53 {
        let shift = bits - 53;
        nearest(a, b << shift) << shift
    } else {
        let shift = 53 - bits;
        nearest(nearest(a << shift, b), 1 << shift)
    };
    u64::try_from(result).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::Value;

    fn vectors(name: &str) -> Vec<Vec<Value>> {
        let text = include_str!("../tests/golden/tfds/functions.json");
        let all: Value = serde_json::from_str(text).unwrap();
        serde_json::from_value(all[name]["rows"].clone()).unwrap()
    }

    #[test]
    fn key_hashes_are_those_of_tfds() {
        let rows = vectors("key_hashes");
        assert!(rows.len() > 10);
        for row in rows {
            let text = row[2].as_str().unwrap();
            let key = match row[1].as_str().unwrap() {
                "int" => Key::Int(text.parse().unwrap()),
                // A Python `bool` is rendered as text.
                "str" | "bool" => Key::Text(text.to_owned()),
                "bytes" => Key::Bytes(
                    text.chars()
                        .map(|c| u8::try_from(u32::from(c)).unwrap())
                        .collect(),
                ),
                other => panic!("unknown key type {other}"),
            };
            let hash = format!("{:032x}", key_hash(row[0].as_str().unwrap(), &key));
            assert_eq!(hash, row[3].as_str().unwrap(), "{row:?}");
        }
    }

    #[test]
    fn numbers_of_shards_are_those_of_tfds() {
        let rows = vectors("number_of_shards");
        assert!(rows.len() > 100);
        for row in rows {
            let (bytes, examples) = (row[0].as_u64().unwrap(), row[1].as_u64().unwrap());
            match row[2].as_u64() {
                Some(shards) => assert_eq!(number_of_shards(bytes, examples), shards, "{row:?}"),
                None => assert!(
                    (1..=examples).contains(&number_of_shards(bytes, examples)),
                    "{row:?}"
                ),
            }
        }
    }

    #[test]
    fn shard_boundaries_are_those_of_tfds() {
        let rows = vectors("shard_boundaries");
        assert!(rows.len() > 10);
        for row in rows {
            let (examples, shards) = (row[0].as_u64().unwrap(), row[1].as_u64().unwrap());
            let found = shard_boundaries(examples, shards);
            match &row[2] {
                Value::String(text) => {
                    assert!(text.starts_with("error"));
                    assert!(found.is_err(), "{row:?}");
                }
                Value::Array(numbers) => {
                    let wanted: Vec<u64> = numbers.iter().map(|n| n.as_u64().unwrap()).collect();
                    assert_eq!(found, Ok(wanted));
                }
                digest => {
                    let joined: Vec<String> = found.unwrap().iter().map(u64::to_string).collect();
                    let hash = hex::encode(sha2::Sha256::digest(joined.join(",")));
                    assert_eq!(hash, digest["sha256_of_comma_joined"].as_str().unwrap());
                }
            }
        }
    }

    #[test]
    fn no_shards_is_an_error() {
        assert_eq!(shard_boundaries(3, 0), Err(ShardCountError::Zero));
    }
}
