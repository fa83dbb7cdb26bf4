//! Folders that TFDS wrote: a version's files without a manifest of ours.
//!
//! Source: `core/dataset_info.py`, `core/splits.py` and `ShardedFileTemplate` in `core/naming.py` of TFDS 4.9.

use std::path::Path;

use prep_catalog::manifest::{MANIFEST_FORMAT, Manifest, ShardManifest, SplitManifest};
use prep_formats::dataset_info::DatasetInfo;
use prep_formats::features::Features;
use prep_formats::store::Location;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The files that make a folder one of TFDS's.
pub(crate) const TFDS_FILES: [&str; 2] = ["dataset_info.json", "features.json"];

/// How the records of a TFDS folder are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardFormat {
    ArrayRecord,
    TfRecord,
}

/// Describes the folder as a manifest would. Looks at the size of each shard, and reads none.
///
/// Its hashes are those of the description (features, splits, names, lengths and sizes of shards), since nobody recorded those of the records.
pub(crate) fn describe(folder: &Location) -> Result<(Manifest, Features, ShardFormat)> {
    let path = folder
        .as_path()
        .ok_or_else(|| Error::Options(format!("{folder}: only local datasets can be opened yet")))?;
    let info = DatasetInfo::read_location(folder)?;
    let features = Features::read_folder(&path)?;
    let format = match info.shard_format() {
        "array_record" => ShardFormat::ArrayRecord,
        "tfrecord" => ShardFormat::TfRecord,
        other => {
            return Err(Error::Options(format!(
                "{folder}: its shards are `{other}` files; `array_record` and `tfrecord` can be read"
            )));
        }
    };
    let mut splits = Vec::with_capacity(info.splits.len());
    for (split, names) in info.splits.iter().zip(info.shard_names()?) {
        let mut shards = Vec::with_capacity(names.len());
        for (name, &records) in names.into_iter().zip(&split.shard_lengths) {
            let file = path.join(&name);
            let metadata = std::fs::metadata(&file).map_err(prep_formats::Error::io(&file, "open"))?;
            shards.push(ShardManifest {
                path: name,
                records,
                bytes: metadata.len(),
                ..ShardManifest::default()
            });
        }
        splits.push(SplitManifest {
            name: split.name.clone(),
            records: split.shard_lengths.iter().sum(),
            bytes: split.num_bytes,
            options: String::new(),
            skipped: 0,
            shards,
        });
    }
    let mut manifest = Manifest {
        format: MANIFEST_FORMAT,
        name: info.name,
        config: info.config_name,
        version: info.version,
        fingerprint: String::new(),
        recipe_sha256: String::new(),
        layout: "tfds".into(),
        in_place: false,
        sources: Vec::new(),
        splits,
        files: Vec::new(),
    };
    let mut hash = Sha256::new();
    hash.update(features.canonical_json());
    hash.update(manifest.to_json());
    manifest.fingerprint = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((manifest, features, format))
}

/// Whether a folder is one of TFDS's, with or without a manifest of ours.
pub fn is_tfds_folder(folder: &Path) -> bool {
    TFDS_FILES.iter().all(|name| folder.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use prep_formats::array_record::{WriteOptions, Writer};
    use prep_formats::columns::{Cell, Images};
    use prep_formats::tfrecord;

    use super::*;
    use crate::Dataset;

    fn golden() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/features/kitchen_sink")
    }

    fn records() -> Vec<Vec<u8>> {
        let path = golden().join("records.tfrecord");
        let mut reader = tfrecord::Reader::open(&path, tfrecord::ReadOptions::default()).unwrap();
        let mut records = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            records.push(record.to_vec());
        }
        records
    }

    /// A folder of the golden records, two shards.
    fn folder(format: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(golden()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let text = std::fs::read_to_string(golden().join(TFDS_FILES[0])).unwrap();
        let mut info = DatasetInfo::from_json(&text).unwrap();
        info.file_format = format.into();
        info.splits.remove(0);
        info.splits[0].shard_lengths = vec![2, 1];
        std::fs::write(folder.path().join(TFDS_FILES[0]), info.to_json()).unwrap();
        for (number, records) in records().chunks(2).enumerate() {
            let bytes = if format == "tfrecord" {
                let mut writer = tfrecord::Writer::new(Vec::new(), tfrecord::Compression::Plain).unwrap();
                records.iter().for_each(|record| writer.write(record).unwrap());
                writer.finish().unwrap()
            } else {
                let options = WriteOptions::parse("group_size:1").unwrap();
                let mut writer = Writer::new(Vec::new(), options).unwrap();
                records.iter().for_each(|record| writer.write(record).unwrap());
                writer.finish().unwrap()
            };
            let name = info.splits[0].shard_name(&info.name, format, number);
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        folder
    }

    #[test]
    fn folders_of_both_formats_give_the_same_rows() {
        let wanted = records();
        let mut seen = Vec::new();
        for format in ["array_record", "tfrecord"] {
            let folder = folder(format);
            assert!(is_tfds_folder(folder.path()));
            let location = Location::from_path(folder.path());
            let dataset = Dataset::open_tfds(&location, "validation_other").unwrap();
            assert_eq!(
                (dataset.len(), dataset.name()),
                (3, "kitchen_sink/full:1.2.3".into())
            );
            for (index, record) in (0..).zip(&wanted) {
                assert_eq!(&dataset.record(index).unwrap(), record);
            }
            // JPEG is not decoded, and says so; the rest is.
            let error = dataset.get(0).unwrap_err().to_string();
            assert!(error.contains("JPEG"), "{error}");
            let dataset = dataset.with_images(Images::DecodedWherePossible);
            let batch = dataset.get_many(&[2, 0]).unwrap();
            let specs = dataset.element_spec();
            let at = specs.iter().position(|spec| spec.name == "nested/x/y").unwrap();
            let Some(Cell::Strings { strings, .. }) = batch.columns[at].cell(&specs[at], 0) else {
                panic!("`nested/x/y` is a text")
            };
            assert_eq!(strings.len(), 1);
            seen.push(format!("{batch:?}"));
            let part = Dataset::open_tfds(&location, "validation_other[1:]").unwrap();
            assert_eq!(part.record(0).unwrap(), wanted[1]);
            assert!(Dataset::open_tfds(&location, "train").is_err());
        }
        assert_eq!(seen[0], seen[1]);
    }

    #[test]
    fn columns_are_selected_by_their_path() {
        let folder = folder("array_record");
        let location = Location::from_path(folder.path());
        let dataset = Dataset::open_tfds(&location, "validation_other").unwrap();
        let columns = ["nested/x".to_string(), "seq_i".to_string()];
        let context = dataset.read_context(Some(&columns), true).unwrap();
        let names: Vec<&str> = context.specs().iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["nested/x/y", "nested/x/z", "seq_i"]);
        let error = dataset.read_context(Some(&["nested/q".to_string()]), true);
        let error = error.err().unwrap().to_string();
        assert!(error.contains("no column `nested/q`"), "{error}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let open = |folder: &Path| {
            let dataset = Dataset::open_tfds(&Location::from_path(folder), "validation_other")?;
            dataset.record(2).map(drop)
        };
        let folder = folder("tfrecord");
        let path = folder.path();
        let shard = path.join("kitchen_sink-validation_other.tfrecord-00001-of-00002");
        std::fs::copy(path.join("records.tfrecord"), &shard).unwrap();
        let error = open(path).unwrap_err().to_string();
        assert!(
            error.contains("3 records") && error.contains("dataset_info.json"),
            "{error}"
        );
        std::fs::remove_file(&shard).unwrap();
        let error = open(path).unwrap_err().to_string();
        assert!(error.contains("00001-of-00002"), "{error}");
        let info = path.join(TFDS_FILES[0]);
        let text = std::fs::read_to_string(&info).unwrap();
        std::fs::write(&info, text.replace("\"tfrecord\"", "\"riegeli\"")).unwrap();
        let error = open(path).unwrap_err().to_string();
        assert!(error.contains("`riegeli`"), "{error}");
        std::fs::write(&info, "{").unwrap();
        let error = open(path).unwrap_err().to_string();
        assert!(
            error.contains("dataset_info.json") && error.contains("not JSON"),
            "{error}"
        );
        std::fs::remove_file(&info).unwrap();
        assert!(!is_tfds_folder(path));
        assert!(open(path).is_err());
    }
}
