//! A hash for maps of small numbers that are never iterated.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`Fold`] hashers.
pub(super) type FoldState = BuildHasherDefault<Fold>;

/// Multiplies and folds: a few cycles for a pair of numbers, where the standard hash takes twenty.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Fold(u64);

impl Fold {
    fn mix(&mut self, value: u64) {
        // The fraction of the golden ratio, an odd number with bits all over.
        let product = u128::from(self.0 ^ value ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
