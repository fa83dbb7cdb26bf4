//! The exact sum of floats, whatever their order.

use serde::{Deserialize, Serialize};

/// Limbs of 32 bits: the 2,098 bits that an `f64` can have, and room for the carries of 2^64 of them.
const LIMBS: usize = 68;
/// Additions after which limbs might overflow: each adds less than 2^32 to a limb of 63 bits.
const MOST_PENDING: u32 = 1 << 30;
/// The exponent of the lowest bit.
const LOWEST: i32 = -1074;

/// A fixed-point number that holds the sum of any `f64`s without rounding, so that it does not depend on their order or grouping. Takes 544
/// bytes; an addition costs about 3 ns.
///
/// Source: the small superaccumulator of R. M. Neal, "Fast exact summation using small and large superaccumulators", 2015.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Stored", try_from = "Stored")]
pub(super) struct ExactSum {
    /// The lowest first; all but the last are below 2^32 once carries are propagated.
    limbs: Box<[i64; LIMBS]>,
    pending: u32,
}

impl Default for ExactSum {
    fn default() -> Self {
        Self {
            limbs: Box::new([0; LIMBS]),
            pending: 0,
        }
    }
}

impl ExactSum {
    /// Adds a finite number.
    pub(super) fn add(&mut self, value: f64) {
        debug_assert!(value.is_finite(), "infinities are counted elsewhere");
        let bits = value.to_bits();
        let exponent = (bits >> 52 & 0x7ff) as usize;
        let fraction = bits & ((1 << 52) - 1);
        // Subnormal numbers have the exponent of the smallest normal ones, and no leading one.
        let (significand, shift) = match exponent {
            0 => (fraction, 0),
            _ => (fraction | 1 << 52, exponent - 1),
        };
        let (limb, shift) = (shift / 32, shift % 32);
        let wide = u128::from(significand) << shift;
        for (index, limb) in self.limbs[limb..limb + 3].iter_mut().enumerate() {
            let part = (wide >> (32 * index) & 0xffff_ffff) as i64;
            *limb += if value.is_sign_negative() { -part } else { part };
        }
        self.pending += 1;
        if self.pending == MOST_PENDING {
            self.carry();
        }
    }

    /// Adds another sum.
    pub(super) fn merge(&mut self, mut other: Self) {
        self.carry();
        other.carry();
        for (limb, other) in self.limbs.iter_mut().zip(&*other.limbs) {
            *limb += other;
        }
        self.carry();
    }

    /// The sum over `count`, rounded once; NaN for none.
    pub(super) fn mean(&self, count: u64) -> f64 {
        let (negative, magnitude) = self.magnitude();
        let top = magnitude.iter().rposition(|limb| *limb != 0).unwrap_or(0).max(2);
        let [low, middle, high] = [top - 2, top - 1, top].map(|index| u128::from(magnitude[index]));
        // What lies below only says whether the rest is above its lowest bit: more bits than a float has.
        let sticky = magnitude[..top - 2].iter().any(|limb| *limb != 0);
        let leading = high << 64 | middle << 32 | low | u128::from(sticky);
        let mean = quotient(leading, count, LOWEST + 32 * (top as i32 - 2));
        if negative { -mean } else { mean }
    }

    /// Brings all limbs but the last into 0 to 2^32 - 1: the one form of each number.
    fn carry(&mut self) {
        let mut carry = 0;
        for limb in &mut self.limbs[..LIMBS - 1] {
            let sum = *limb + carry;
            carry = sum >> 32;
            *limb = sum & 0xffff_ffff;
        }
        self.limbs[LIMBS - 1] += carry;
        self.pending = 0;
    }

    /// Sign and digits.
    fn magnitude(&self) -> (bool, [u32; LIMBS]) {
        let mut sum = self.clone();
        sum.carry();
        let negative = sum.limbs[LIMBS - 1] < 0;
        if negative {
            sum.limbs.iter_mut().for_each(|limb| *limb = -*limb);
            sum.carry();
        }
        (negative, sum.limbs.map(|limb| limb as u32))
    }
}

/// The mean of `count` integers with this sum, rounded once; NaN for none.
pub(super) fn mean_of(sum: i128, count: u64) -> f64 {
    let mean = quotient(sum.unsigned_abs(), count, 0);
    if sum < 0 { -mean } else { mean }
}

/// `value * 2^exponent / count`, rounded once; NaN where the count is 0.
fn quotient(value: u128, count: u64, exponent: i32) -> f64 {
    if value == 0 || count == 0 {
        return 0.0 / count as f64;
    }
    // As many bits as fit, of which the quotient has 64 or more; the lowest says whether anything is below it.
    let shift = value.leading_zeros();
    let (value, count) = (value << shift, u128::from(count));
    let quotient = (value / count) | u128::from(value % count != 0);
    scale(quotient as f64, exponent - shift as i32)
}

/// `value * 2^exponent`.
fn scale(mut value: f64, mut exponent: i32) -> f64 {
    const STEP: i32 = 1000;
    let power = |exponent: i32| f64::from_bits(((1023 + exponent) as u64) << 52);
    while exponent > STEP {
        value *= power(STEP);
        exponent -= STEP;
    }
    while exponent < -STEP {
        value *= power(-STEP);
        exponent += STEP;
    }
    value * power(exponent)
}

/// The digits of a sum, without zeros at the ends.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    negative: bool,
    first: usize,
    limbs: Vec<u32>,
}

impl From<ExactSum> for Stored {
    fn from(sum: ExactSum) -> Self {
        let (negative, magnitude) = sum.magnitude();
        let first = magnitude.iter().position(|limb| *limb != 0).unwrap_or(LIMBS);
        let last = magnitude
            .iter()
            .rposition(|limb| *limb != 0)
            .map_or(first, |last| last + 1);
        Self {
            negative,
            first,
            limbs: magnitude[first..last].to_vec(),
        }
    }
}

impl TryFrom<Stored> for ExactSum {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let mut sum = Self::default();
        let place = stored
            .first
            .checked_add(stored.limbs.len())
            .and_then(|end| sum.limbs.get_mut(stored.first..end))
            .ok_or("a sum has more digits than any sum of floats")?;
        for (limb, digits) in place.iter_mut().zip(&stored.limbs) {
            *limb = i64::from(*digits) * if stored.negative { -1 } else { 1 };
        }
        sum.carry();
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn sum(values: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add(*value));
        sum
    }

    fn text(sum: &ExactSum) -> String {
        serde_json::to_string(sum).unwrap()
    }

    #[test]
    fn what_rounding_would_lose_is_kept() {
        assert_eq!(sum(&[1e300, 1.0, -1e300]).mean(1), 1.0);
        assert_eq!(sum(&[f64::MAX, f64::MAX]).mean(2), f64::MAX);
        assert_eq!(sum(&[-f64::MAX; 3]).mean(3), -f64::MAX);
        assert_eq!(sum(&[f64::from_bits(1); 6]).mean(3), f64::from_bits(2));
        assert_eq!(sum(&[0.1; 10]).mean(10), 0.1);
        assert_eq!(sum(&[-0.0]).mean(1).to_bits(), 0);
        assert!(sum(&[]).mean(0).is_nan());
        assert_eq!(text(&sum(&[1.5, -1.5])), text(&sum(&[])));
        assert!(serde_json::from_str::<ExactSum>(r#"{"negative":false,"first":67,"limbs":[1,2]}"#).is_err());
    }

    #[test]
    fn means_of_integers_are_rounded_once() {
        // Were the sum rounded first, it would be 3002399751580330.5.
        assert_eq!(mean_of((1 << 53) + 1, 3), 3_002_399_751_580_331.0);
        assert_eq!(mean_of(-((1 << 53) + 1), 3), -3_002_399_751_580_331.0);
        assert_eq!(mean_of(3 * i128::from(i64::MAX), 3), i64::MAX as f64);
        assert_eq!(mean_of(0, 3).to_bits(), 0);
        assert!(mean_of(0, 0).is_nan());
    }

    #[test]
    fn many_additions_do_not_overflow() {
        let mut many = ExactSum::default();
        for _ in 0..5 {
            many.add(-f64::MAX);
            many.pending = MOST_PENDING - 1;
        }
        assert_eq!(many.mean(5), -f64::MAX);
    }

    proptest! {
        /// The distances are whole numbers: of floats this large, 2^-38 divides all.
        #[test]
        fn no_float_is_nearer_to_a_mean(sum in 1i128 << 32..1 << 64, count in 1u64..1 << 16) {
            let mean = mean_of(sum, count);
            let distance = |float: f64| ((float * (1u64 << 38) as f64) as i128 * i128::from(count) - (sum << 38)).abs();
            prop_assert!(distance(mean) <= distance(mean.next_up()) && distance(mean) <= distance(mean.next_down()));
            prop_assert_eq!(mean_of(-sum, count), -mean);
        }

        /// Whole numbers have a sum to compare with; a power of two changes nothing but the exponent.
        #[test]
        fn sums_are_exact(values in prop::collection::vec(-(1i64 << 53)..1 << 53, 1..50), exponent in -900i32..900) {
            let wanted: i128 = values.iter().map(|value| i128::from(*value)).sum();
            let floats: Vec<f64> = values.iter().map(|value| scale(*value as f64, exponent)).collect();
            prop_assert_eq!(sum(&floats).mean(1), scale(wanted as f64, exponent));
        }

        #[test]
        fn order_and_grouping_do_not_count(
            values in prop::collection::vec(any::<f64>().prop_filter("finite", |value| value.is_finite()), 0..40),
            cut in 0usize..40,
        ) {
            let whole = sum(&values);
            let (first, second) = values.split_at(cut.min(values.len()));
            let mut parts = sum(second);
            parts.merge(serde_json::from_str(&text(&sum(first))).unwrap());
            prop_assert_eq!(text(&parts), text(&whole));
        }
    }
}
