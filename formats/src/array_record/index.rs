//! A compact map from record to chunk to offset.

/// Chunks that share a base.
const BLOCK: usize = 64;

/// Where the chunks of a file begin and which records they hold.
///
/// Offsets are kept per 64 chunks as a straight line and what each chunk lies off it, in as many bits as the farthest needs: about
/// 2.3 bytes a chunk for records of 1 kB that vary by half, against 8 for plain offsets. A lookup is O(1).
#[derive(Debug, Default)]
pub(super) struct ChunkIndex {
    num_chunks: u64,
    num_records: u64,
    /// Records in every chunk but the last, where they are equal.
    group_size: u64,
    /// Where they are not: the first record of each chunk, and the number of records.
    starts: Option<Vec<u64>>,
    blocks: Vec<Block>,
    bits: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    /// Offset of the first chunk less what makes all residues positive.
    base: i64,
    /// Bytes from chunk to chunk on the line.
    slope: u64,
    /// First bit of the residues.
    bit: u64,
    /// Bits of a residue.
    width: u32,
}

/// Takes chunks in file order.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    index: ChunkIndex,
    pending: Vec<u64>,
    last_records: u64,
    num_bits: u64,
}

impl IndexBuilder {
    /// Adds a chunk. Offsets must grow and be below 2^62; both are checked before.
    pub(super) fn push(&mut self, offset: u64, num_records: u64) {
        let index = &mut self.index;
        if index.num_chunks == 0 {
            index.group_size = num_records;
        } else if index.starts.is_none()
            && (self.last_records != index.group_size || num_records > index.group_size)
        {
            // Not all alike: remember each start, also of those before.
            let starts = (0..index.num_chunks).map(|chunk| chunk * index.group_size);
            index.starts = Some(starts.collect());
        }
        if let Some(starts) = &mut index.starts {
            starts.push(index.num_records);
        }
        self.last_records = num_records;
        index.num_chunks += 1;
        index.num_records += num_records;
        self.pending.push(offset);
        if self.pending.len() == BLOCK {
            self.pack();
        }
    }

    fn pack(&mut self) {
        let (Some(&first), Some(&last)) = (self.pending.first(), self.pending.last()) else {
            return;
        };
        let steps = self.pending.len() as u64 - 1;
        let slope = (last - first).checked_div(steps).unwrap_or(0);
        let residue = |i: usize, offset: u64| offset as i64 - (first + i as u64 * slope) as i64;
        let residues = || {
            self.pending
                .iter()
                .enumerate()
                .map(|(i, &offset)| residue(i, offset))
        };
        let lowest = residues().min().unwrap_or(0);
        let widest = residues()
            .map(|residue| (residue - lowest) as u64)
            .max()
            .unwrap_or(0);
        let width = u64::BITS - widest.leading_zeros();
        let bit = self.num_bits;
        self.num_bits += u64::from(width) * self.pending.len() as u64;
        // One word more, so that two words can always be read.
        self.index.bits.resize(self.num_bits as usize / 64 + 2, 0);
        for (i, &offset) in self.pending.iter().enumerate() {
            let value = u128::from((residue(i, offset) - lowest) as u64);
            let at = bit + i as u64 * u64::from(width);
            let shifted = value << (at % 64);
            self.index.bits[at as usize / 64] |= shifted as u64;
            self.index.bits[at as usize / 64 + 1] |= (shifted >> 64) as u64;
        }
        self.index.blocks.push(Block {
            base: first as i64 + lowest,
            slope,
            bit,
            width,
        });
        self.pending.clear();
    }

    pub(super) fn finish(mut self) -> ChunkIndex {
        self.pack();
        if let Some(starts) = &mut self.index.starts {
            starts.push(self.index.num_records);
        }
        self.index.blocks.shrink_to_fit();
        self.index.bits.shrink_to_fit();
        self.index
    }
}

impl ChunkIndex {
    pub(super) fn num_chunks(&self) -> u64 {
        self.num_chunks
    }

    pub(super) fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
            + self.bits.capacity() * 8
            + self.starts.as_ref().map_or(0, |starts| starts.capacity() * 8)
    }

    /// The chunk of a record that exists, and the record's place in it. O(1); O(log chunks) where chunks differ in size.
    #[inline]
    pub(super) fn chunk_of(&self, record: u64) -> (u64, u64) {
        match &self.starts {
            None if self.group_size == 1 => (record, 0),
            None => (record / self.group_size, record % self.group_size),
            Some(starts) => {
                let chunk = starts.partition_point(|&start| start <= record) - 1;
                (chunk as u64, record - starts[chunk])
            }
        }
    }

    /// First record of a chunk that exists; the number of records for the one after the last.
    #[inline]
    pub(super) fn first_record(&self, chunk: u64) -> u64 {
        match &self.starts {
            None => (chunk * self.group_size).min(self.num_records),
            Some(starts) => starts[chunk as usize],
        }
    }

    /// Where a chunk that exists begins.
    #[inline]
    pub(super) fn offset(&self, chunk: u64) -> u64 {
        let (block, i) = (self.blocks[chunk as usize / BLOCK], chunk % BLOCK as u64);
        let at = block.bit + i * u64::from(block.width);
        let words = &self.bits[at as usize / 64..at as usize / 64 + 2];
        let joined = u128::from(words[0]) | (u128::from(words[1]) << 64);
        let mask = (1u128 << block.width) - 1;
        let residue = ((joined >> (at % 64)) & mask) as u64;
        (block.base as u64)
            .wrapping_add(i * block.slope)
            .wrapping_add(residue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn offsets_and_records_come_back(
            chunks in prop::collection::vec((prop_oneof![40u64..3000, 40u64..200_000_000_000], 1u64..6), 0..400),
            alike in any::<bool>(),
        ) {
            let mut builder = IndexBuilder::default();
            let (mut offset, mut record, mut expected) = (64, 0, Vec::new());
            for &(size, num_records) in &chunks {
                let num_records = if alike { 3 } else { num_records };
                builder.push(offset, num_records);
                expected.push((offset, record, num_records));
                offset += size;
                record += num_records;
            }
            let index = builder.finish();
            prop_assert_eq!(index.num_chunks(), chunks.len() as u64);
            prop_assert_eq!(index.num_records(), record);
            prop_assert_eq!(index.first_record(index.num_chunks()), record);
            for (chunk, &(offset, first, num_records)) in expected.iter().enumerate() {
                prop_assert_eq!(index.offset(chunk as u64), offset);
                prop_assert_eq!(index.first_record(chunk as u64), first);
                for i in 0..num_records {
                    prop_assert_eq!(index.chunk_of(first + i), (chunk as u64, i));
                }
            }
        }
    }

    #[test]
    fn a_record_of_1_kb_takes_under_3_bytes() {
        let mut builder = IndexBuilder::default();
        let (mut offset, mut state) = (64u64, 1u64);
        for _ in 0..100_000 {
            builder.push(offset, 1);
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            offset += 500 + (state >> 33) % 1000;
        }
        let index = builder.finish();
        assert!(index.memory() < 300_000, "{} bytes", index.memory());
    }
}
