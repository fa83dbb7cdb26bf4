//! How long things are: range, sum, and a histogram by powers of two.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::statistics::sum::mean_of;

/// Lengths of strings in bytes, of sequences in elements, or sides of pictures in pixels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Lengths {
    count: u64,
    total: i128,
    range: Option<(u64, u64)>,
    /// How many are 0; 1; 2 and 3; 4 to 7; and so on, up to the last that there are.
    buckets: Vec<u64>,
}

impl Lengths {
    pub(super) fn add(&mut self, length: u64) {
        self.count += 1;
        self.total += i128::from(length);
        let (low, high) = self.range.unwrap_or((length, length));
        self.range = Some((low.min(length), high.max(length)));
        let bucket = (u64::BITS - length.leading_zeros()) as usize;
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.total += other.total;
        self.range = match (self.range, other.range) {
            (Some((low, high)), Some((other_low, other_high))) => {
                Some((low.min(other_low), high.max(other_high)))
            }
            (range, other) => range.or(other),
        };
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (count, other) in self.buckets.iter_mut().zip(other.buckets) {
            *count += other;
        }
    }

    /// `min`, `max`, `mean`, and `histogram` [{`from`, `to`, `count`}], both ends included; `null` where there are none.
    pub(super) fn describe(&self) -> Value {
        let Some((min, max)) = self.range else {
            return Value::Null;
        };
        let buckets = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        let histogram: Value = buckets
            .map(|(bucket, count)| {
                let (from, to) = match bucket {
                    0 => (0, 0),
                    _ => (1u64 << (bucket - 1), u64::MAX >> (64 - bucket)),
                };
                json!({"from": from, "to": to, "count": count})
            })
            .collect();
        json!({"min": min, "max": max, "mean": mean_of(self.total, self.count), "histogram": histogram})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_fall_between_powers_of_two() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.describe(), Value::Null);
        for length in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            lengths.add(length);
        }
        let bucket = |from: u64, to: u64, count: u64| json!({"from": from, "to": to, "count": count});
        let described = lengths.describe();
        assert_eq!(
            (&described["min"], &described["max"]),
            (&json!(0), &json!(u64::MAX))
        );
        assert_eq!(
            described["histogram"],
            json!([
                bucket(0, 0, 1),
                bucket(1, 1, 1),
                bucket(2, 3, 2),
                bucket(4, 7, 1),
                bucket(512, 1023, 1),
                bucket(1024, 2047, 1),
                bucket(1 << 63, u64::MAX, 1)
            ])
        );
    }
}
