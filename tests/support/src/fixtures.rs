//! Where the golden files lie, and what TFDS makes of the source archives among them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The datasets that have a source archive and a [`Golden`].
pub const DATASETS: [&str; 5] = ["cifar10", "cifar100", "mnist", "fashion_mnist", "kmnist"];

/// The path of a golden file or folder, given relative to `tests/golden`.
///
/// # Panics
/// If there is no such file.
pub fn golden_path(relative: impl AsRef<Path>) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden");
    let path = root.join(relative);
    path.canonicalize()
        .unwrap_or_else(|error| panic!("golden file `{}`: {error}", path.display()))
}

/// The folder with the source files of a dataset: what `prep build NAME --from` takes.
pub fn source_folder(dataset: &str) -> PathBuf {
    golden_path(dataset)
}

/// What TFDS's own builder made of a source archive. `golden/make_tfds_golden.py` wrote it.
#[derive(Debug, Clone, Deserialize)]
pub struct Golden {
    /// Version of the dataset, such as `3.0.2`.
    pub version: String,
    /// Text of `features.json`, `dataset_info.json` and `*.labels.txt`, by file name.
    pub files: BTreeMap<String, String>,
    /// Splits by name.
    pub splits: BTreeMap<String, GoldenSplit>,
}

/// A split as TFDS wrote it.
#[derive(Debug, Clone, Deserialize)]
pub struct GoldenSplit {
    /// Shard files in order.
    pub shards: Vec<GoldenShard>,
    /// Sum of the sizes of the encoded images, in bytes.
    pub png_bytes: u64,
    /// Split string to the parts of files that TFDS reads for it: file name, records skipped, records taken (-1: all).
    pub instructions: BTreeMap<String, Vec<(String, u64, i64)>>,
    /// Examples in the order of the shards.
    pub positions: Vec<GoldenExample>,
}

/// A shard file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GoldenShard {
    /// File name.
    pub path: String,
    /// Number of records.
    pub records: u64,
}

/// An example as TFDS decodes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GoldenExample {
    /// The builder's key, as decimal text.
    pub key: String,
    /// Class.
    pub label: i64,
    /// Coarse class, CIFAR-100 only.
    pub coarse_label: Option<i64>,
    /// The feature `id`, CIFAR only.
    pub id: Option<String>,
    /// SHA-256 of the pixels in hex: `u8[height, width, channel]` in C order.
    pub sha256: String,
}

impl Golden {
    /// Reads what TFDS made of `dataset`.
    ///
    /// # Panics
    /// If there is no golden file for it.
    pub fn load(dataset: &str) -> Self {
        let path = golden_path(format!("tfds/{dataset}.json"));
        let text = std::fs::read(&path).expect("golden files are readable");
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
    }

    /// Number of examples of a split.
    ///
    /// # Panics
    /// If there is no such split.
    pub fn length(&self, split: &str) -> u64 {
        self.splits[split].positions.len() as u64
    }

    /// The label names of a feature, or `None` where TFDS wrote none.
    pub fn label_names(&self, feature: &str) -> Option<Vec<&str>> {
        Some(
            self.files
                .get(&format!("{feature}.labels.txt"))?
                .lines()
                .collect(),
        )
    }
}

impl GoldenSplit {
    /// The positions that a split string selects, such as `train[:30%]`, as TFDS reads it.
    ///
    /// # Panics
    /// If the golden file lacks the string; [`GoldenSplit::instructions`] has the keys.
    pub fn selected(&self, split_string: &str) -> Vec<u64> {
        let mut selected = Vec::new();
        for (path, skip, take) in &self.instructions[split_string] {
            let mut start = 0;
            for shard in &self.shards {
                if shard.path == *path {
                    let end = u64::try_from(*take).map_or(shard.records, |take| skip + take);
                    selected.extend(start + skip..start + end);
                }
                start += shard.records;
            }
        }
        selected
    }
}

/// A PNG picture of one pixel, of a colour of its own: the only one of its palette.
pub fn png(color: u8) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8], data: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(kind);
        crc.update(data);
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(kind);
        bytes.extend_from_slice(data);
        bytes.extend_from_slice(&crc.sum().to_be_bytes());
    };
    chunk(b"IHDR", &[0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0]);
    // A stored block of zlib: the filter's byte, and the pixel.
    let (a, b) = (1 + u16::from(color), 2 + u16::from(color));
    let mut data = vec![0x78, 0x01, 0x01, 2, 0, 0xfd, 0xff, 0, color];
    data.extend_from_slice(&b.to_be_bytes());
    data.extend_from_slice(&a.to_be_bytes());
    chunk(b"IDAT", &data);
    chunk(b"IEND", b"");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dataset_has_sources_and_a_golden_file() {
        for dataset in DATASETS {
            let golden = Golden::load(dataset);
            assert!(source_folder(dataset).is_dir());
            for split in ["train", "test"] {
                let shards: u64 = golden.splits[split]
                    .shards
                    .iter()
                    .map(|shard| shard.records)
                    .sum();
                assert_eq!(golden.length(split), shards, "{dataset} {split}");
            }
            assert!(golden.files.contains_key("features.json"));
        }
    }

    #[test]
    fn split_strings_select_positions() {
        let golden = Golden::load("cifar10");
        let train = &golden.splits["train"];
        assert_eq!(train.selected("train[:30%]"), (0..90).collect::<Vec<_>>());
        assert_eq!(train.selected("train[-5:]"), (295..300).collect::<Vec<_>>());
    }

    #[test]
    fn label_names_come_from_the_archive() {
        let names = |dataset: &str, feature: &str| {
            Golden::load(dataset)
                .label_names(feature)
                .map(|names| names.len())
        };
        assert_eq!(names("cifar10", "label"), Some(10));
        assert_eq!(names("cifar100", "label"), Some(100));
        assert_eq!(names("cifar100", "coarse_label"), Some(20));
        assert_eq!(names("mnist", "label"), None);
    }
}
