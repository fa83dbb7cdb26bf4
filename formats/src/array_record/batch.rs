//! Groups of records on their way to becoming chunks: what threads that encode are handed.

use crate::array_record::encoder::{ChunkEncoder, Records};
use crate::array_record::layout::{ChunkHeader, put_varint};

/// One or more groups of records, and after [`encode`](Self::encode) their chunks.
///
/// Small groups travel together, so that a record of 1 kB does not pay for a hand-over each.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Varint sizes and bytes of all records, joined.
    sizes: Vec<u8>,
    values: Vec<u8>,
    /// Where each closed group ends in the two, and its number of records.
    groups: Vec<Group>,
    /// Records of the group that is still open.
    open_records: u64,
    /// Encoded chunks, one for each group: headers, and where the data of each end in `data`.
    chunks: Vec<(ChunkHeader, usize)>,
    data: Vec<u8>,
    /// Whether the records follow the data of each chunk.
    values_follow: bool,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    num_records: u64,
    sizes_end: usize,
    values_end: usize,
}

impl Batch {
    /// Appends a record to the open group, and gives the number of records in it.
    #[inline]
    pub(super) fn add(&mut self, record: &[u8]) -> u64 {
        put_varint(&mut self.sizes, record.len() as u64);
        self.values.extend_from_slice(record);
        self.open_records += 1;
        self.open_records
    }

    /// Ends the open group, if it has a record.
    pub(super) fn close_group(&mut self) {
        if self.open_records > 0 {
            self.groups.push(Group {
                num_records: std::mem::take(&mut self.open_records),
                sizes_end: self.sizes.len(),
                values_end: self.values.len(),
            });
        }
    }

    /// Whether there is no closed group.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Closed groups.
    pub(super) fn num_groups(&self) -> usize {
        self.groups.len()
    }

    /// Bytes of records and their sizes: what encoding has to deal with.
    pub(super) fn num_bytes(&self) -> usize {
        self.sizes.len() + self.values.len()
    }

    /// Bytes that its buffers take.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.sizes.capacity() + self.values.capacity() + self.data.capacity()
    }

    /// Encodes the closed groups.
    pub(super) fn encode(&mut self, encoder: &mut ChunkEncoder) -> Result<(), String> {
        self.values_follow = encoder.values_follow();
        let (mut sizes_start, mut values_start) = (0, 0);
        for group in &self.groups {
            let records = Records {
                num_records: group.num_records,
                sizes: &self.sizes[sizes_start..group.sizes_end],
                values: &self.values[values_start..group.values_end],
            };
            let header = encoder.encode(records, &mut self.data)?;
            self.chunks.push((header, self.data.len()));
            (sizes_start, values_start) = (group.sizes_end, group.values_end);
        }
        Ok(())
    }

    /// The encoded chunks in order: header, data, and the rest of the data.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (ChunkHeader, &[u8], &[u8])> {
        let (mut data_start, mut values_start) = (0, 0);
        self.chunks
            .iter()
            .zip(&self.groups)
            .map(move |(&(header, data_end), group)| {
                let data = &self.data[data_start..data_end];
                let values = if self.values_follow {
                    &self.values[values_start..group.values_end]
                } else {
                    &[]
                };
                (data_start, values_start) = (data_end, group.values_end);
                (header, data, values)
            })
    }

    /// Empties it for reuse. Buffers that one huge group has made much larger than `usual_bytes` are given back.
    pub(super) fn clear(&mut self, usual_bytes: usize) {
        let most = 2 * usual_bytes.max(self.num_bytes());
        for buffer in [&mut self.sizes, &mut self.values, &mut self.data] {
            buffer.clear();
            buffer.shrink_to(most);
        }
        self.groups.clear();
        self.chunks.clear();
        self.open_records = 0;
    }
}
