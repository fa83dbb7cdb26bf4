//! Puts right hashes over wrong contents, so that tests and fuzzing reach what lies behind the hashes.

use crate::array_record::layout::{
    BLOCK, BLOCK_HEADER, CHUNK_HEADER, ChunkHeader, ChunkType, after, hash, round_up_to_boundary,
};

/// Rewrites the hash of every block header and of every chunk that can be walked to from the start or from the last block, so that a changed
/// file looks as if its writer had meant it. A file that is too short for a step is left as it is from there on. O(bytes).
pub fn fix_hashes(file: &mut [u8]) {
    for header in file.chunks_mut(BLOCK as usize) {
        if let Some((stored, rest)) = header.split_first_chunk_mut::<8>()
            && let Some(rest) = rest.get(..BLOCK_HEADER as usize - 8)
        {
            *stored = hash(rest).to_le_bytes();
        }
    }
    let last_block = (file.len() as u64).saturating_sub(1) / BLOCK * BLOCK;
    for mut begin in [0, last_block] {
        while let Some(end) = fix_chunk(file, begin) {
            if end <= begin {
                break;
            }
            begin = end;
        }
    }
}

/// Fixes one chunk and says where it ends.
fn fix_chunk(file: &mut [u8], begin: u64) -> Option<u64> {
    let header = gather(file, begin, CHUNK_HEADER)?;
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    let (data_size, type_and_records) = (word(8), word(24));
    let header_end = after(begin, CHUNK_HEADER)?;
    let data = gather(file, header_end, data_size)?;
    let fixed = ChunkHeader {
        data_size,
        data_hash: hash(&data),
        chunk_type: ChunkType::from_byte(type_and_records as u8),
        num_records: type_and_records >> 8,
        decoded_data_size: word(32),
    };
    scatter(file, begin, &fixed.to_bytes());
    let end = fixed.end(begin)?;
    round_up_to_boundary(end)
}

/// The pieces of `size` bytes from `begin` on, between block headers.
fn pieces(length: usize, begin: u64, size: u64) -> Option<Vec<std::ops::Range<usize>>> {
    let mut pieces = Vec::new();
    let (mut position, mut left) = (begin, size);
    if size > length as u64 {
        return None;
    }
    while left > 0 {
        if position.is_multiple_of(BLOCK) {
            position += BLOCK_HEADER;
        }
        let step = left.min(BLOCK - position % BLOCK);
        let range = position as usize..(position + step) as usize;
        if range.end > length {
            return None;
        }
        pieces.push(range);
        position += step;
        left -= step;
    }
    Some(pieces)
}

fn gather(file: &[u8], begin: u64, size: u64) -> Option<Vec<u8>> {
    let pieces = pieces(file.len(), begin, size)?;
    Some(
        pieces
            .into_iter()
            .flat_map(|range| file[range].iter().copied())
            .collect(),
    )
}

fn scatter(file: &mut [u8], begin: u64, bytes: &[u8]) {
    let mut rest = bytes;
    for range in pieces(file.len(), begin, bytes.len() as u64).unwrap_or_default() {
        let (now, later) = rest.split_at(range.len());
        file[range].copy_from_slice(now);
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array_record::{Reader, Scratch, WriteOptions, Writer};
    use crate::store::MemoryFile;
    use std::sync::Arc;

    fn file() -> Vec<u8> {
        let options = WriteOptions::parse("uncompressed,group_size:3").unwrap();
        let mut writer = Writer::new(Vec::new(), options).unwrap();
        for i in 0..100u32 {
            writer.write(&vec![i as u8; 3000]).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn a_whole_file_stays_as_it_is() {
        let mut fixed = file();
        fix_hashes(&mut fixed);
        assert!(fixed == file());
    }

    #[test]
    fn a_changed_record_reads_as_if_it_were_meant() {
        let mut changed = file();
        let at = changed.iter().position(|&byte| byte == 50).unwrap();
        let place = changed[at..]
            .windows(8)
            .position(|bytes| bytes == [50; 8])
            .unwrap()
            + at;
        changed[place] = 51;
        let open = |bytes: Vec<u8>| Reader::from_source(Arc::new(MemoryFile::new("f", bytes))).unwrap();
        assert!(open(changed.clone()).record(50, &mut Scratch::default()).is_err());
        fix_hashes(&mut changed);
        let reader = open(changed);
        let record = reader.record(50, &mut Scratch::default()).unwrap().to_vec();
        assert_eq!(record.iter().filter(|&&byte| byte == 51).count(), 1);
    }

    #[test]
    fn short_and_random_bytes_do_no_harm() {
        for length in [
            0, 1, 7, 8, 23, 24, 25, 63, 64, 65, 65535, 65536, 65537, 65560, 131_072,
        ] {
            let mut bytes: Vec<u8> = (0..length).map(|i: usize| (i * 31 % 251) as u8).collect();
            fix_hashes(&mut bytes);
            assert_eq!(bytes.len(), length);
        }
    }
}
