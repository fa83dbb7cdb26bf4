//! Numbers and bytes without a pattern, the same in each run.

/// A generator that is the same everywhere: xorshift64, by G. Marsaglia. The seed is not 0, of which nothing else comes.
#[derive(Debug, Clone)]
pub struct Noise(pub u64);

impl Noise {
    /// The next number.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator would have an end to think of"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`; 0 where that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end.max(1)
    }

    /// So many bytes, which do not compress.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8))
            .flat_map(|_| self.next().to_le_bytes())
            .collect();
        bytes.truncate(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same() {
        let (mut one, mut other) = (Noise(7), Noise(7));
        assert_eq!(one.bytes(13), other.bytes(13));
        assert_eq!(one.bytes(13).len(), 13);
        assert!((0..100).all(|_| one.below(3) < 3));
        assert_eq!(one.below(0), 0);
    }
}
