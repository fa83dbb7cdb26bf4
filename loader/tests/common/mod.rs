//! What tests of whole datasets share.

use std::fs;
use std::path::Path;

use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::features::{Feature, Features};
use prep_formats::value::{DType, Value};

/// Makes a folder of TFDS's, `NAME/VERSION`, whose shards are links to one file beside it: record `i` of each has `at`, the number `i`.
pub(crate) fn linked_shards(folder: &Path, shards: u64, per_shard: u64) {
    fs::create_dir_all(folder).unwrap();
    let features = Features::new(vec![("at".into(), Feature::Scalar { dtype: DType::Int64 })]).unwrap();
    for (name, text) in features.to_files() {
        fs::write(folder.join(name), text).unwrap();
    }
    let mut encoder = features.encoder();
    let options = WriteOptions::parse("zstd:3,group_size:100").unwrap();
    let mut writer = Writer::new(Vec::new(), options).unwrap();
    let mut record = Vec::new();
    for at in 0..per_shard {
        record.clear();
        encoder
            .encode(&[("at", Value::Int(at as i64))], &mut record)
            .unwrap();
        writer.write(&record).unwrap();
    }
    let shard = folder.with_extension("shard");
    fs::write(&shard, writer.finish().unwrap()).unwrap();
    for number in 0..shards {
        let name = format!("many-train.array_record-{number:05}-of-{shards:05}");
        fs::hard_link(&shard, folder.join(name)).unwrap();
    }
    let lengths = vec![format!("\"{per_shard}\""); shards as usize].join(", ");
    let info = format!(
        "{{\"name\": \"many\", \"version\": \"1.0.0\", \"fileFormat\": \"array_record\", \"splits\": [{{\"name\": \"train\", \
         \"shardLengths\": [{lengths}], \"numBytes\": \"1\", \
         \"filepathTemplate\": \"{{DATASET}}-{{SPLIT}}.{{FILEFORMAT}}-{{SHARD_X_OF_Y}}\"}}]}}"
    );
    fs::write(folder.join("dataset_info.json"), info).unwrap();
}
