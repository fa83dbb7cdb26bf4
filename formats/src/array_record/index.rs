//! A compact map from record to chunk to offset.

/// Numbers that share a base.
const BLOCK: usize = 64;

/// Where a chunk lies and which records it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) chunk: u64,
    /// The first of its records, and the one after the last.
    pub(super) first: u64,
    pub(super) end: u64,
    /// Its first byte, and the first that cannot be its own.
    pub(super) begin: u64,
    pub(super) limit: u64,
}

impl Place {
    /// Records that the footer gives it.
    #[inline]
    pub(super) fn num_records(&self) -> u64 {
        self.end - self.first
    }
}

/// Growing numbers, kept per 64 as a straight line and what each lies off it, in as many bits as the farthest needs. O(1) to look up.
#[derive(Debug, Default)]
struct Packed {
    blocks: Vec<Block>,
    bits: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    /// The first number less what makes all residues positive.
    base: i64,
    /// From number to number on the line.
    slope: u64,
    /// First bit of the residues.
    bit: u64,
    /// Bits of a residue.
    width: u32,
}

impl Packed {
    #[inline]
    fn get(&self, index: u64) -> u64 {
        let (block, i) = (self.blocks[index as usize / BLOCK], index % BLOCK as u64);
        let at = block.bit + i * u64::from(block.width);
        let words = &self.bits[at as usize / 64..at as usize / 64 + 2];
        let joined = u128::from(words[0]) | (u128::from(words[1]) << 64);
        let mask = (1u128 << block.width) - 1;
        let residue = ((joined >> (at % 64)) & mask) as u64;
        (block.base as u64)
            .wrapping_add(i * block.slope)
            .wrapping_add(residue)
    }

    fn memory(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>() + self.bits.capacity() * 8
    }
}

/// Takes growing numbers below 2^62.
#[derive(Debug, Default)]
struct Packer {
    packed: Packed,
    pending: Vec<u64>,
    num_bits: u64,
}

impl Packer {
    fn push(&mut self, number: u64) {
        self.pending.push(number);
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
        let residue = |i: usize, number: u64| number as i64 - (first + i as u64 * slope) as i64;
        let residues = || {
            self.pending
                .iter()
                .enumerate()
                .map(|(i, &number)| residue(i, number))
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
        self.packed.bits.resize(self.num_bits as usize / 64 + 2, 0);
        for (i, &number) in self.pending.iter().enumerate() {
            let value = u128::from((residue(i, number) - lowest) as u64);
            let at = bit + i as u64 * u64::from(width);
            let shifted = value << (at % 64);
            self.packed.bits[at as usize / 64] |= shifted as u64;
            self.packed.bits[at as usize / 64 + 1] |= (shifted >> 64) as u64;
        }
        self.packed.blocks.push(Block {
            base: first as i64 + lowest,
            slope,
            bit,
            width,
        });
        self.pending.clear();
    }

    fn finish(mut self) -> Packed {
        self.pack();
        self.packed.blocks.shrink_to_fit();
        self.packed.bits.shrink_to_fit();
        self.packed
    }
}

/// Where the chunks of a file begin and which records they hold.
///
/// For records of 1 kB that vary by half about 2 bytes a chunk, against 8 for plain offsets; where chunks hold different numbers of records
/// about 1 byte more. A lookup is O(1) where all chunks but the last hold the same number of records, else O(log chunks).
#[derive(Debug, Default)]
pub(super) struct ChunkIndex {
    num_chunks: u64,
    num_records: u64,
    /// Where the last chunk has to end.
    end: u64,
    /// Records in every chunk but the last, where they are equal.
    group_size: u64,
    offsets: Packed,
    /// Where they are not: the first record of each chunk.
    starts: Option<Packed>,
}

/// Takes chunks in file order.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    index: ChunkIndex,
    offsets: Packer,
    starts: Option<Packer>,
    last_records: u64,
}

impl IndexBuilder {
    /// Adds a chunk. Offsets must grow; they and the number of records must be below 2^62: both are checked before.
    pub(super) fn push(&mut self, offset: u64, num_records: u64) {
        let index = &mut self.index;
        if index.num_chunks == 0 {
            index.group_size = num_records;
        } else if self.starts.is_none()
            && (self.last_records != index.group_size || num_records > index.group_size)
        {
            // Not all alike: remember each start, also of those before.
            let mut starts = Packer::default();
            for chunk in 0..index.num_chunks {
                starts.push(chunk * index.group_size);
            }
            self.starts = Some(starts);
        }
        if let Some(starts) = &mut self.starts {
            starts.push(index.num_records);
        }
        self.last_records = num_records;
        index.num_chunks += 1;
        index.num_records += num_records;
        self.offsets.push(offset);
    }

    /// The index of a file whose last chunk ends by `end`.
    pub(super) fn finish(self, end: u64) -> ChunkIndex {
        ChunkIndex {
            end,
            offsets: self.offsets.finish(),
            starts: self.starts.map(Packer::finish),
            ..self.index
        }
    }
}

impl ChunkIndex {
    pub(super) fn num_chunks(&self) -> u64 {
        self.num_chunks
    }

    pub(super) fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Whether every chunk holds one record.
    pub(super) fn is_one_each(&self) -> bool {
        self.group_size == 1 && self.starts.is_none()
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.offsets.memory() + self.starts.as_ref().map_or(0, Packed::memory)
    }

    /// The chunk of a record that exists. O(1); O(log chunks) where chunks differ in size.
    #[inline]
    pub(super) fn chunk_of(&self, record: u64) -> u64 {
        match &self.starts {
            None if self.group_size == 1 => record,
            None => record / self.group_size,
            Some(starts) => {
                // The first chunk that begins behind the record is the one after its own.
                let (mut low, mut high) = (0, self.num_chunks);
                while low < high {
                    let middle = low + (high - low) / 2;
                    if starts.get(middle) <= record {
                        low = middle + 1;
                    } else {
                        high = middle;
                    }
                }
                low - 1
            }
        }
    }

    /// First record of a chunk that exists; the number of records for the one after the last.
    #[inline]
    fn first_record(&self, chunk: u64) -> u64 {
        if chunk >= self.num_chunks {
            return self.num_records;
        }
        match &self.starts {
            None => chunk * self.group_size,
            Some(starts) => starts.get(chunk),
        }
    }

    /// Where a chunk that exists begins; where the last one has to end for the one after it.
    #[inline]
    pub(super) fn offset(&self, chunk: u64) -> u64 {
        if chunk >= self.num_chunks {
            return self.end;
        }
        self.offsets.get(chunk)
    }

    /// All about a chunk that exists.
    #[inline]
    pub(super) fn place(&self, chunk: u64) -> Place {
        Place {
            chunk,
            first: self.first_record(chunk),
            end: self.first_record(chunk + 1),
            begin: self.offset(chunk),
            limit: self.offset(chunk + 1),
        }
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
            for (chunk, &(size, num_records)) in chunks.iter().enumerate() {
                let num_records = if alike { 3 } else { num_records };
                builder.push(offset, num_records);
                expected.push(Place {
                    chunk: chunk as u64,
                    first: record,
                    end: record + num_records,
                    begin: offset,
                    limit: offset + size,
                });
                offset += size;
                record += num_records;
            }
            let index = builder.finish(offset);
            prop_assert_eq!(index.num_chunks(), chunks.len() as u64);
            prop_assert_eq!(index.num_records(), record);
            for &place in &expected {
                prop_assert_eq!(index.place(place.chunk), place);
                for record in place.first..place.end {
                    prop_assert_eq!(index.chunk_of(record), place.chunk);
                }
            }
        }
    }

    /// Bytes that an index takes a record, for records of 500 to 1,499 bytes in chunks of these sizes.
    fn bytes_a_record(num_records: u64, group_size: impl Fn(u64) -> u64) -> f64 {
        let mut builder = IndexBuilder::default();
        let (mut offset, mut state, mut record) = (64u64, 1u64, 0);
        while record < num_records {
            let size = group_size(record);
            builder.push(offset, size);
            for _ in 0..size {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                offset += 500 + (state >> 33) % 1000;
            }
            offset += 43;
            record += size;
        }
        builder.finish(offset).memory() as f64 / record as f64
    }

    #[test]
    fn ten_million_records_of_1_kb_take_under_3_bytes_each() {
        let one_each = bytes_a_record(10_000_000, |_| 1);
        assert!((1.8..2.2).contains(&one_each), "{one_each}");
        let mixed = bytes_a_record(1_000_000, |record| 1 + record % 2);
        assert!(mixed < 2.2, "{mixed}");
        let grouped = bytes_a_record(10_000_000, |_| 256);
        assert!(grouped < 0.02, "{grouped}");
    }
}
