//! Files cut at each byte, flipped at each byte, and put together from parts.

use super::*;
use crate::array_record::{Reader, Scratch, Verification, Writer, verify};
use crate::store::MemoryFile;
use proptest::prelude::*;
use std::sync::Arc;

fn file(options: &str, records: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap()
}

/// Records that differ, of these lengths.
fn records(lengths: &[usize]) -> Vec<Vec<u8>> {
    let make = |(i, &length): (usize, &usize)| {
        let mut state = i as u32 + 1;
        let next = move |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..length).map(next).collect()
    };
    lengths.iter().enumerate().map(make).collect()
}

fn read_all(bytes: &[u8]) -> Vec<Vec<u8>> {
    let source = MemoryFile::new("new", bytes.to_vec());
    let reader = Reader::from_source(Arc::new(source)).unwrap();
    let mut scratch = Scratch::default();
    (0..reader.num_records())
        .map(|i| reader.record(i, &mut scratch).unwrap().to_vec())
        .collect()
}

fn verified(bytes: &[u8]) -> Verification {
    verify(Arc::new(MemoryFile::new("file", bytes.to_vec()))).unwrap()
}

fn run(bytes: &[u8]) -> Result<(Vec<u8>, Salvage)> {
    salvage(&MemoryFile::new("old", bytes.to_vec()), Vec::new(), |_| {})
}

/// Where chunks begin, where the footer begins, and the records of each chunk.
fn layout(bytes: &[u8]) -> (Vec<(u64, Range<u64>)>, u64) {
    let reader = Reader::from_source(Arc::new(MemoryFile::new("x", bytes.to_vec()))).unwrap();
    let chunks = (0..reader.num_chunks()).map(|chunk| {
        (
            reader.chunk_offset(chunk).unwrap(),
            reader.chunk_records(chunk).unwrap(),
        )
    });
    (chunks.collect(), reader.footer_offset())
}

/// Checks what holds for every salvage: the new file is whole, what is kept is what was there, and nothing is told twice.
fn check(bytes: &[u8], all: &[Vec<u8>]) -> Option<Salvage> {
    let (new, found) = match run(bytes) {
        Ok(done) => done,
        Err(error) => {
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            return None;
        }
    };
    assert!(verified(&new).is_ok());
    let new = read_all(&new);
    assert_eq!(new.len() as u64, found.num_records);
    assert_eq!(
        found.record_bytes,
        new.iter().map(|r| r.len() as u64).sum::<u64>()
    );
    let mut next = 0;
    for kept in &found.kept {
        assert_eq!(kept.new_records.start, next);
        next = kept.new_records.end;
        if let Some(records) = &kept.records {
            let old = &all[records.start as usize..records.end as usize];
            assert_eq!(
                old,
                &new[kept.new_records.start as usize..kept.new_records.end as usize]
            );
        }
    }
    assert_eq!(next, found.num_records);
    if let Some(total) = found.total_records {
        assert_eq!(total, all.len() as u64);
        let mut ranges: Vec<Range<u64>> = found
            .kept
            .iter()
            .map(|kept| kept.records.clone().unwrap())
            .collect();
        ranges.extend(found.lost.iter().map(|lost| lost.records.clone().unwrap()));
        ranges.sort_by_key(|range| range.start);
        let mut end = 0;
        for range in ranges {
            assert_eq!(range.start, end);
            end = range.end;
        }
        assert_eq!(end, total);
    }
    Some(found)
}

fn kept(found: &Salvage) -> Vec<Range<u64>> {
    found
        .kept
        .iter()
        .map(|kept| kept.records.clone().unwrap())
        .collect()
}

const OPTIONS: [&str; 4] = [
    "uncompressed",
    "zstd:3,group_size:3",
    "uncompressed,group_size:7,pad_to_block_boundary",
    "uncompressed,group_size:4",
];

#[test]
fn a_whole_file_comes_out_the_same() {
    for options in OPTIONS {
        for lengths in [
            &[][..],
            &[5],
            &[0, 0, 0],
            &[3, 70_000, 65_000, 12, 150_000, 1, 2, 3],
        ] {
            let all = records(lengths);
            let bytes = file(options, &all);
            let (new, found) = run(&bytes).unwrap();
            assert!(new == bytes, "{options} {lengths:?}");
            assert!(found.is_complete() && found.harmless.is_empty(), "{found:?}");
            check(&bytes, &all).unwrap();
        }
    }
}

#[test]
fn a_file_cut_anywhere_keeps_the_chunks_before_the_cut() {
    for options in OPTIONS {
        let all = records(&[30, 31, 0, 4, 52, 6, 17, 8, 9, 10]);
        let bytes = file(options, &all);
        let (chunks, footer) = layout(&bytes);
        let last = chunks.last().unwrap().0;
        let near = |cut: u64| cut < 1000 || cut.abs_diff(last) < 700 || cut.abs_diff(footer) < 300;
        for cut in (0..bytes.len())
            .filter(|&cut| near(cut as u64) || cut.is_multiple_of(1009) || cut % (1 << 16) < 130)
        {
            let Some(found) = check(&bytes[..cut], &all) else {
                assert!(cut < 64, "{cut}");
                continue;
            };
            let mut whole = chunks.iter().enumerate().filter(|(i, _)| {
                // Padding behind a chunk is not needed.
                let end = chunks.get(i + 1).map_or(footer, |next| next.0);
                let cut = cut as u64;
                end <= cut || options.contains("pad") && chunks[*i].0 + 40 + 250 < cut
            });
            let saved = whole.next_back().map_or(0, |(_, chunk)| chunk.1.end);
            if options.contains("pad") {
                assert!(found.num_records >= saved, "{options} {cut}: {found:?}");
            } else {
                assert_eq!(found.num_records, saved, "{options} {cut}: {found:?}");
            }
            if cut as u64 <= footer {
                assert!(!found.is_complete(), "{options} {cut}: {found:?}");
                assert_eq!(found.total_records, None);
            }
        }
        // Whole but for the postscript and what is behind it: the footer is found where it is.
        let found = check(&bytes[..bytes.len() - 65_536], &all).unwrap();
        assert!(
            found.is_complete() && found.total_records == Some(10),
            "{found:?}"
        );
    }
}

#[test]
fn a_flipped_byte_costs_the_chunk_it_is_in() {
    for options in OPTIONS {
        let all = records(&[30, 31, 0, 4, 52, 6, 17, 8, 9, 10]);
        let bytes = file(options, &all);
        let (chunks, footer) = layout(&bytes);
        for at in (0..bytes.len()).filter(|&at| {
            let at = at as u64;
            at < 700 || at.abs_diff(footer) < 300 || at.is_multiple_of(1013) || at % (1 << 16) < 130
        }) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let found = check(&damaged, &all).unwrap();
            // In the chunk, or in the padding behind it.
            let hit = chunks
                .iter()
                .rev()
                .find(|chunk| chunk.0 <= at as u64 && (at as u64) < footer);
            let lost: Vec<_> = found.lost.iter().map(|lost| lost.records.clone()).collect();
            match hit {
                Some((_, records)) if !options.contains("pad") => {
                    assert_eq!(lost, [Some(records.clone())], "{options} {at}: {found:?}");
                }
                Some((_, records)) => {
                    assert!(
                        lost.is_empty() || lost == [Some(records.clone())],
                        "{options} {at}: {found:?}"
                    );
                }
                None => assert!(lost.is_empty(), "{options} {at}: {found:?}"),
            }
            assert!(
                !lost.is_empty() || !found.harmless.is_empty(),
                "{options} {at}: nothing seen"
            );
        }
    }
}

#[test]
fn block_headers_lead_over_damage_where_the_footer_is_gone() {
    let all = records(&[20_000, 20_000, 30_000, 50_000, 100, 200_000, 40, 50, 60]);
    for options in ["uncompressed", "zstd:1"] {
        let whole = file(options, &all);
        let (chunks, footer) = layout(&whole);
        let spoil = |bytes: &mut Vec<u8>, chunk: usize| bytes[chunks[chunk].0 as usize + 30] ^= 4;
        // The header of chunk 2, which the block at 65536 interrupts: it says where the next one is.
        let mut bytes = whole[..footer as usize].to_vec();
        spoil(&mut bytes, 2);
        let found = check(&bytes, &all).unwrap();
        assert_eq!(found.num_records, 8, "{found:?}");
        assert_eq!(found.lost.len(), 2);
        assert_eq!(found.lost[0].bytes, chunks[2].0..chunks[3].0);
        assert_eq!(found.lost[0].num_records, None);
        assert_eq!(found.kept[0].records, Some(0..2));
        // The header of chunk 0, which no block interrupts: the next is found by looking for it.
        let mut bytes = whole[..footer as usize].to_vec();
        spoil(&mut bytes, 0);
        let found = check(&bytes, &all).unwrap();
        assert_eq!(
            (found.num_records, found.lost[0].bytes.clone()),
            (8, chunks[0].0..chunks[1].0)
        );
        // Behind the last block header as well.
        let mut bytes = whole[..footer as usize].to_vec();
        spoil(&mut bytes, 6);
        let found = check(&bytes, &all).unwrap();
        assert_eq!(
            (found.num_records, found.lost[0].bytes.clone()),
            (8, chunks[6].0..chunks[7].0)
        );
        // The postscript alone is enough to know that a damaged footer was no chunk of records.
        let mut bytes = whole.clone();
        bytes[footer as usize + 50] ^= 1;
        let found = check(&bytes, &all).unwrap();
        assert!(found.is_complete() && found.num_records == 9, "{found:?}");
        assert!(found.harmless[0].reason.contains("footer"), "{found:?}");
    }
}

#[test]
fn a_lost_stretch_takes_what_lay_in_it_only() {
    let all = records(&[9_000; 60]);
    let whole = file("uncompressed", &all);
    let (chunks, footer) = layout(&whole);
    let mut bytes = whole.clone();
    bytes[100_000..300_000].fill(0);
    let lost: Vec<usize> = (0..60)
        .filter(|&chunk| {
            let end = chunks.get(chunk + 1).map_or(footer, |next| next.0);
            chunks[chunk].0 < 300_000 && end > 100_000
        })
        .collect();
    let found = check(&bytes, &all).unwrap();
    assert_eq!(
        kept(&found),
        [0..lost[0] as u64, lost[lost.len() - 1] as u64 + 1..60]
    );
    // Without the footer the same are saved, and the number of those lost is not known.
    let found = check(&bytes[..footer as usize], &all).unwrap();
    assert_eq!(found.num_records, 60 - lost.len() as u64);
    assert_eq!(
        found.lost.iter().map(|lost| lost.num_records).collect::<Vec<_>>(),
        [Some(1), None, None]
    );
    assert_eq!(found.kept[1].records, None);
    // A block taken out moves all that follows.
    let mut bytes = whole.clone();
    bytes.drain(131_072..196_608);
    let found = check(&bytes[..footer as usize - 65_536], &all).unwrap();
    let hit = (0..60).filter(|&chunk| {
        let end = chunks.get(chunk + 1).map_or(footer, |next| next.0);
        chunks[chunk].0 < 196_608 && end > 131_072
    });
    assert_eq!(found.num_records, 60 - hit.count() as u64, "{found:?}");
}

#[test]
fn a_file_kept_as_a_record_is_not_taken_for_records() {
    let inner = file("uncompressed", &records(&[10, 20, 30]));
    // Cut, so that it is a chunk and a signature and nothing else.
    for inner in [inner.clone(), inner[..300].to_vec(), inner[64..300].to_vec()] {
        let all = vec![vec![1; 50], inner, vec![2; 50], vec![3; 70_000]];
        let whole = file("uncompressed", &all);
        let (chunks, footer) = layout(&whole);
        let mut bytes = whole.clone();
        bytes[chunks[1].0 as usize + 9] ^= 1;
        let found = check(&bytes, &all).unwrap();
        assert_eq!(kept(&found), [0..1, 2..4]);
        let (new, _) = run(&bytes[..footer as usize]).unwrap();
        for record in read_all(&new) {
            assert!(all.contains(&record), "{} bytes", record.len());
        }
    }
}

#[test]
fn two_files_in_a_row_give_the_records_of_both() {
    let (first, second) = (records(&[10, 20, 30]), records(&[7, 8]));
    let mut bytes = file("uncompressed", &first);
    bytes.extend(file("zstd:3", &second));
    let (new, found) = run(&bytes).unwrap();
    assert_eq!(read_all(&new), [first, second].concat());
    assert_eq!(found.num_records, 5);
}

#[test]
fn a_footer_that_lies_is_not_believed() {
    use crate::array_record::footer::{Entry, Metadata, postscript_to_bytes};
    use crate::array_record::layout::hash;

    let all = records(&[10, 20, 30, 40]);
    let bytes = file("uncompressed", &all);
    let (chunks, offset) = layout(&bytes);
    // The same file with another footer, its hashes right.
    let with = |entries: &[Entry], num_records: u64| {
        let mut new = bytes[..offset as usize].to_vec();
        let mut values = vec![
            Metadata {
                num_chunks: entries.len() as u64,
                num_records,
                writer_options: String::new(),
            }
            .to_bytes(),
        ];
        values.extend(entries.iter().map(|entry| {
            let mut bytes = Vec::new();
            entry.put(&mut bytes);
            bytes
        }));
        let put = |new: &mut Vec<u8>, values: &[Vec<u8>]| {
            let mut data = vec![0, values.len() as u8];
            data.extend(values.iter().map(|value| value.len() as u8));
            data.extend(values.concat());
            let header = ChunkHeader {
                data_size: data.len() as u64,
                data_hash: hash(&data),
                chunk_type: ChunkType::Simple,
                num_records: values.len() as u64,
                decoded_data_size: values.concat().len() as u64,
            };
            new.extend(header.to_bytes());
            new.extend(data);
        };
        put(&mut new, &values);
        let zeros = vec![0; 65_536 - new.len() - 40];
        let padding = ChunkHeader {
            data_size: zeros.len() as u64,
            data_hash: hash(&zeros),
            chunk_type: ChunkType::Padding,
            num_records: 0,
            decoded_data_size: 0,
        };
        new.extend(padding.to_bytes());
        new.extend(zeros);
        // The postscript of the file as it was.
        assert!(
            bytes[65_536..]
                .windows(4)
                .any(|w| w == &postscript_to_bytes(offset)[..4])
        );
        new.extend(&bytes[65_536..]);
        new
    };
    let entry = |chunk: usize, num_records| Entry {
        chunk_offset: chunks[chunk].0,
        decoded_data_size: 0,
        num_records,
    };
    let right: Vec<Entry> = (0..4).map(|chunk| entry(chunk, 1)).collect();
    let (_, found) = run(&with(&right, 4)).unwrap();
    assert!(
        found.total_records == Some(4) && found.harmless.is_empty(),
        "{found:?}"
    );
    let lies = [
        (vec![entry(0, 1), entry(1, 2), entry(2, 1), entry(3, 1)], 5),
        (vec![entry(0, 1), entry(2, 1), entry(3, 1)], 3),
        (
            vec![
                entry(0, 1),
                entry(1, 1),
                Entry {
                    chunk_offset: chunks[2].0 + 50,
                    ..entry(2, 1)
                },
                entry(3, 1),
            ],
            4,
        ),
        (vec![entry(0, 1), entry(0, 1)], 2),
        (right.clone(), 7),
    ];
    for (entries, num_records) in lies {
        let (new, found) = run(&with(&entries, num_records)).unwrap();
        assert_eq!(read_all(&new), all, "{entries:?}");
        assert!(found.is_complete() && found.total_records.is_none(), "{found:?}");
        assert!(found.harmless[0].reason.contains("footer"), "{found:?}");
    }
}

#[test]
fn what_is_no_file_gives_nothing() {
    for bytes in [&b""[..], b"text", &[0; 200_000]] {
        assert!(run(bytes).unwrap_err().to_string().contains("nothing to salvage"));
    }
}

#[test]
fn an_unmapped_source_gives_the_same() {
    let all = records(&[20_000, 20_000, 30_000, 50_000, 100, 2_000_000, 40, 50, 60]);
    let mut bytes = file("zstd:3", &all);
    bytes[140_000..150_000].fill(7);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, &bytes).unwrap();
    let source = crate::store::PositionedFile::open(&path).unwrap();
    let mut reached = 0;
    let (new, found) = salvage(&source, Vec::new(), |offset| reached = offset).unwrap();
    assert_eq!(reached, bytes.len() as u64);
    let (expected, same) = run(&bytes).unwrap();
    assert!(new == expected && found == same);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever is overwritten or cut: chunks that were not touched are saved.
    #[test]
    fn untouched_chunks_are_saved(
        lengths in prop::collection::vec(prop_oneof![0usize..300, 20_000usize..90_000], 1..25),
        group in 1u32..6,
        codec in prop_oneof![Just("uncompressed"), Just("zstd:1"), Just("uncompressed,pad_to_block_boundary")],
        at in 0.0f64..1.0, size in 1usize..40_000, fill: u8, cut in prop::option::of(0.0f64..1.0),
    ) {
        let all = records(&lengths);
        let mut bytes = file(&format!("{codec},group_size:{group}"), &all);
        let (chunks, footer) = layout(&bytes);
        let at = (at * bytes.len() as f64) as usize;
        let end = bytes.len().min(at + size);
        bytes[at..end].fill(fill);
        if let Some(cut) = cut {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        let intact: u64 = chunks.iter().enumerate().filter(|(i, chunk)| {
            let chunk_end = chunks.get(i + 1).map_or(footer, |next| next.0) as usize;
            chunk_end <= bytes.len() && (chunk_end <= at || end <= chunk.0 as usize)
        }).map(|(_, chunk)| chunk.1.end - chunk.1.start).sum();
        match check(&bytes, &all) {
            Some(found) => prop_assert!(found.num_records >= intact, "{} of {intact}: {found:?}", found.num_records),
            None => prop_assert_eq!(intact, 0),
        }
    }

    #[test]
    fn any_bytes_are_salvaged_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..3000), put in 0usize..2000) {
        let _ = run(&bytes);
        let mut whole = file("uncompressed", &records(&[100; 9]));
        let end = whole.len().min(put + bytes.len());
        whole[put..end].copy_from_slice(&bytes[..end - put]);
        check(&whole, &records(&[100; 9]));
    }
}
