//! Statistics of versions that are put together by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use prep_catalog::manifest::{MANIFEST_FILE, SourceManifest};
use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::features::Feature;
use prep_formats::value::{DType, Value as Typed};
use prep_testing::Noise;
use proptest::prelude::*;

use super::*;

/// Records of the shards of each split.
type Splits = Vec<Vec<Vec<Vec<u8>>>>;

fn features() -> Features {
    let number = Feature::Scalar { dtype: DType::Int64 };
    Features::new(vec![("number".into(), number), ("text".into(), Feature::Text)]).unwrap()
}

fn record(number: i64) -> Vec<u8> {
    let mut record = Vec::new();
    let text = Typed::Bytes("x".repeat((number % 7) as usize).into());
    features()
        .encoder()
        .encode(&[("number", Typed::Int(number)), ("text", text)], &mut record)
        .unwrap();
    record
}

/// Versions of a dataset, in folders beside each other.
struct Folders {
    data: tempfile::TempDir,
}

impl Folders {
    fn new() -> Self {
        Self {
            data: tempfile::tempdir().unwrap(),
        }
    }

    fn version(&self, name: &str) -> PathBuf {
        let folder = self.data.path().join(name);
        std::fs::create_dir_all(folder.join("parts")).unwrap();
        folder
    }

    /// Writes the shards of a version; statistics of those that are `counted`, as if they had just been written.
    fn write(&self, name: &str, splits: &Splits, layout: &str, counted: impl Fn(usize) -> bool) -> Manifest {
        let folder = self.version(name);
        let prototype = Statistics::new(&features());
        let mut manifest = Manifest {
            format: 1,
            name: "a".into(),
            config: None,
            version: name.into(),
            fingerprint: "ab".repeat(32),
            recipe_sha256: "ab".repeat(32),
            layout: layout.into(),
            in_place: false,
            sources: Vec::<SourceManifest>::new(),
            splits: Vec::new(),
            files: Vec::new(),
        };
        for (index, shards) in splits.iter().enumerate() {
            let mut described = Vec::new();
            for (number, records) in shards.iter().enumerate() {
                let path = format!("a-{index}.array_record-{number:05}-of-{:05}", shards.len());
                let mut writer = Writer::new(Vec::new(), WriteOptions::uncompressed()).unwrap();
                records.iter().for_each(|record| writer.write(record).unwrap());
                let bytes = writer.finish().unwrap();
                std::fs::write(folder.join(&path), &bytes).unwrap();
                let sequence = SequenceHash::of(records);
                if counted(number) {
                    let at = part_path(&folder.join("parts"), &path);
                    let mut counting = ShardStatistics::create(&at, &prototype).unwrap();
                    for record in records {
                        counting.add(record, record_hash(record)).unwrap();
                    }
                    counting.finish(&path, &sequence).unwrap();
                }
                described.push(ShardManifest {
                    path,
                    records: records.len() as u64,
                    bytes: bytes.len() as u64,
                    sha256: hex::encode(Sha256::digest(&bytes)),
                    sequence_hash: sequence.to_hex(),
                    min_key: None,
                    max_key: None,
                    index: None,
                });
            }
            manifest.splits.push(SplitManifest {
                name: format!("s{index}"),
                records: described.iter().map(|shard| shard.records).sum(),
                bytes: 0,
                options: String::new(),
                skipped: 0,
                shards: described,
            });
        }
        manifest
    }

    fn finish(&self, name: &str, manifest: &Manifest) -> Result<(Value, Vec<FileManifest>)> {
        let folder = self.version(name);
        let finishing = Finishing {
            features: &features(),
            out: &folder,
            place: &Location::from_path(&folder),
            parts: &folder.join("parts"),
            earlier: HashMap::new(),
            memory_bytes: 1 << 20,
            monitor: &Monitor::new(),
        };
        let files = finishing.write(manifest)?;
        for file in &files {
            let bytes = std::fs::read(folder.join(&file.path)).unwrap();
            assert_eq!(bytes.len() as u64, file.bytes);
            assert_eq!(hex::encode(Sha256::digest(&bytes)), file.sha256);
        }
        let mut whole = manifest.clone();
        whole.files.clone_from(&files);
        std::fs::write(folder.join(MANIFEST_FILE), whole.to_json()).unwrap();
        let text = std::fs::read(folder.join(STATISTICS_FILE)).unwrap();
        Ok((serde_json::from_slice(&text).unwrap(), files))
    }
}

fn numbers(splits: &[Vec<i64>], cuts: &[usize]) -> Splits {
    let cut = |numbers: &Vec<i64>| {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (numbers.len() + 1)).collect();
        ends.push(numbers.len());
        ends.sort_unstable();
        let mut start = 0;
        let shard = |end: usize| {
            let shard = numbers[start..end].iter().map(|number| record(*number)).collect();
            start = end;
            shard
        };
        ends.into_iter().map(shard).collect()
    };
    splits.iter().map(cut).collect()
}

/// Duplicates by a plain count.
fn expected(splits: &[Vec<i64>]) -> Value {
    let sets: Vec<BTreeSet<&i64>> = splits.iter().map(|split| split.iter().collect()).collect();
    let within: Map<String, Value> = splits
        .iter()
        .zip(&sets)
        .enumerate()
        .map(|(index, (split, set))| (format!("s{index}"), (split.len() - set.len()).into()))
        .collect();
    let mut across = Vec::new();
    for (one, first) in sets.iter().enumerate() {
        for (other, second) in sets.iter().enumerate().skip(one + 1) {
            let both = first.intersection(second).count();
            if both > 0 {
                across.push(json!({"splits": [format!("s{one}"), format!("s{other}")], "examples": both}));
            }
        }
    }
    json!({"within": within, "across": across})
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the cutting, and whether shards were counted as they were written or are read.
    #[test]
    fn statistics_depend_on_records_only(
        splits in prop::collection::vec(prop::collection::vec(0i64..40, 0..30), 1..4),
        cuts in prop::collection::vec(0usize..30, 0..3),
        other_cuts in prop::collection::vec(0usize..30, 0..3),
    ) {
        let folders = Folders::new();
        let one = folders.write("1.0.0", &numbers(&splits, &cuts), "tfds", |_| true);
        let (first, files) = folders.finish("1.0.0", &one).unwrap();
        prop_assert_eq!(files.len(), 1);
        prop_assert_eq!(&first["duplicates"], &expected(&splits));
        for (index, split) in splits.iter().enumerate() {
            let column = &first["splits"][format!("s{index}")]["features"]["number"];
            prop_assert_eq!(&column["values"], split.len());
            prop_assert_eq!(&column["max"], &json!(split.iter().max()));
        }
        let two = folders.write("2.0.0", &numbers(&splits, &other_cuts), "by-source", |number| number % 2 == 0);
        let (second, files) = folders.finish("2.0.0", &two).unwrap();
        prop_assert_eq!(files.len(), 2);
        prop_assert_eq!(first, second);
    }
}

/// What versions of the layout by source keep is used by those that share their shards, which are not read then.
#[test]
fn shards_of_another_version_bring_their_statistics() {
    let splits = [(0..20).chain(5..8).collect::<Vec<i64>>(), (15..30).collect()];
    let folders = Folders::new();
    let old = folders.write("1.0.0", &numbers(&splits, &[10]), "by-source", |_| true);
    let (wanted, _) = folders.finish("1.0.0", &old).unwrap();
    let mut new = old.clone();
    for shard in new.splits.iter_mut().flat_map(|split| &mut split.shards) {
        shard.path = format!("../1.0.0/{}", shard.path);
    }
    let shards: Vec<PathBuf> = new
        .splits
        .iter()
        .flat_map(|split| &split.shards)
        .map(|shard| folders.version("1.1.0").join(&shard.path))
        .collect();
    let kept: Vec<Vec<u8>> = shards.iter().map(|path| std::fs::read(path).unwrap()).collect();
    shards.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    assert_eq!(folders.finish("1.1.0", &new).unwrap().0, wanted);
    // Where that version has none, or others, the shards are read.
    let parts = folders.version("1.0.0").join(PARTS_FILE);
    let whole = std::fs::read(&parts).unwrap();
    let error = |new: &Manifest| format!("{:#}", folders.finish("1.1.0", new).unwrap_err());
    std::fs::write(&parts, &whole[..whole.len() - 1]).unwrap();
    assert!(error(&new).contains("a-0.array_record-00000-of-00002"));
    for (path, bytes) in shards.iter().zip(&kept) {
        std::fs::write(path, bytes).unwrap();
    }
    assert_eq!(folders.finish("1.1.0", &new).unwrap().0, wanted);
    // A shard with other records than the manifest says is no such shard.
    new.splits[0].shards[0].sequence_hash = SequenceHash::of([b"x"; 10]).to_hex();
    assert!(
        error(&new).contains("does not hold the records"),
        "{}",
        error(&new)
    );
}

#[test]
fn hashes_are_compared_piece_by_piece() {
    let mut noise = Noise(5);
    // Several runs of three splits, of numbers that come in more than one of them; more than one piece holds.
    let mut contents: Vec<BTreeMap<u128, u64>> = vec![BTreeMap::new(); 3];
    let mut file = tempfile::tempfile().unwrap();
    let (mut runs, mut offset) = (Vec::new(), 0);
    for number in 0..9 {
        let split = number % 3;
        let run: BTreeSet<u128> = (0..25_000)
            .map(|_| {
                let seed = u128::from(noise.below(60_000)) + 1;
                seed.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) >> 48
            })
            .collect();
        let bytes: Vec<u8> = run
            .iter()
            .flat_map(|hash| hash.to_be_bytes()[6..].to_vec())
            .collect();
        file.write_all(&bytes).unwrap();
        runs.push((split, offset, run.len() as u32));
        offset += bytes.len() as u64;
        for hash in run {
            *contents[split as usize].entry(hash).or_default() += 1;
        }
    }
    let within = contents
        .iter()
        .map(|split| split.values().map(|count| count - 1).sum())
        .collect();
    let mut across = BTreeMap::new();
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        let both = contents[one]
            .keys()
            .filter(|hash| contents[other].contains_key(*hash))
            .count();
        across.insert((one as u32, other as u32), both as u64);
    }
    let wanted = Duplicates { within, across };
    let open = || {
        runs.iter()
            .map(|(split, offset, count)| Run::new(0, *split, *offset, *count))
            .collect::<Vec<_>>()
    };
    for memory in [0, 3 << 20, 1 << 30] {
        let found = duplicates::count(
            std::slice::from_ref(&file),
            open(),
            vec![0; 3],
            memory,
            &Monitor::new(),
        )
        .unwrap();
        assert_eq!(found, wanted, "{memory}");
    }
    // A run that begins in the middle of a hash is not in order.
    let damaged = vec![Run::new(0, 0, 3, 20_000)];
    let error =
        duplicates::count(std::slice::from_ref(&file), damaged, vec![0], 0, &Monitor::new()).unwrap_err();
    assert!(error.to_string().contains("not in order"), "{error}");
}

#[test]
fn a_file_of_parts_that_is_not_whole_is_none() {
    let folders = Folders::new();
    let old = folders.write("1.0.0", &numbers(&[vec![1, 2, 3]], &[]), "by-source", |_| true);
    folders.finish("1.0.0", &old).unwrap();
    let path = folders.version("1.0.0").join(PARTS_FILE);
    let whole = std::fs::read(&path).unwrap();
    let at = Location::from_path(&path);
    assert!(PartsFile::open(&at).unwrap().is_some());
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(PartsFile::open(&at).unwrap().is_none(), "{length}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(PartsFile::open(&at).unwrap().is_none());
}
