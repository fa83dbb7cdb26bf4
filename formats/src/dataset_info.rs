//! `dataset_info.json`: what TFDS writes about a dataset version.
//!
//! The file is a `DatasetInfo` message in Protocol Buffers' JSON: 64-bit numbers in quotes, empty fields left out, keys sorted.
//!
//! Source: `DatasetInfo.write_to_directory` in `core/dataset_info.py` and `core/proto/dataset_info.proto` of TFDS 4.9.

use serde_json::{Map, Value as Json, json};

use crate::store::{self, Location};
use crate::{Error, Position, Result, json};

/// Name of the file in a version's folder.
pub const FILE_NAME: &str = "dataset_info.json";

/// The contents of `dataset_info.json`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DatasetInfo {
    /// Dataset name.
    pub name: String,
    /// Config name, where there is one.
    pub config_name: Option<String>,
    /// What the config is.
    pub config_description: Option<String>,
    /// Version, `major.minor.patch`.
    pub version: String,
    /// What changed, by version.
    pub release_notes: Vec<(String, String)>,
    /// What it is.
    pub description: String,
    /// How to cite it.
    pub citation: String,
    /// Licence of the data.
    pub license: Option<String>,
    /// Home pages.
    pub urls: Vec<String>,
    /// Python module of the TFDS builder, for built-ins.
    pub module_name: Option<String>,
    /// Whether records stand in the order in which the builder gave them.
    pub disable_shuffling: bool,
    /// Bytes of all sources.
    pub download_size: u64,
    /// `array_record` or `tfrecord`.
    pub file_format: String,
    /// Feature names of (input, target), where there are such.
    pub supervised_keys: Option<(String, String)>,
    /// Splits, in the builder's order.
    pub splits: Vec<SplitInfo>,
    /// Fields of the file that are not among these, written back as they are.
    pub other: Map<String, Json>,
}

/// One split in `dataset_info.json`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SplitInfo {
    /// Split name.
    pub name: String,
    /// Records of each shard.
    pub shard_lengths: Vec<u64>,
    /// Bytes of all records (payload only).
    pub num_bytes: u64,
    /// File name pattern, `{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}`.
    pub filepath_template: String,
    /// Fields of the file that are not among these, written back as they are.
    pub other: Map<String, Json>,
}

/// The pattern of files that TFDS writes, and means where none is given.
pub const FILEPATH_TEMPLATE: &str = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}";

impl DatasetInfo {
    /// Parses the JSON text. Fields that are not known are kept in `other`.
    ///
    /// # Errors
    /// Text that is not JSON, or a field of the wrong kind.
    pub fn from_json(text: &str) -> Result<Self> {
        let parsed = serde_json::from_str(text)
            .map_err(|error| Error::damaged(format!("dataset info is not JSON: {error}")))?;
        let Json::Object(map) = parsed else {
            return Err(Error::damaged("dataset info is not a JSON object"));
        };
        let mut fields = Fields(map);
        let splits = fields.list("splits", "splits")?;
        let keys = fields.take("supervisedKeys", "supervised_keys");
        let location = fields.take("location", "location");
        let redistribution = fields.take("redistributionInfo", "redistribution_info");
        let notes = fields.take("releaseNotes", "release_notes");
        let mut info = Self {
            name: fields.text("name", "name")?,
            config_name: optional(fields.text("configName", "config_name")?),
            config_description: optional(fields.text("configDescription", "config_description")?),
            version: fields.text("version", "version")?,
            description: fields.text("description", "description")?,
            citation: fields.text("citation", "citation")?,
            module_name: optional(fields.text("moduleName", "module_name")?),
            disable_shuffling: fields.take("disableShuffling", "disable_shuffling") == Some(Json::Bool(true)),
            download_size: fields.number("downloadSize", "download_size")?,
            file_format: fields.text("fileFormat", "file_format")?,
            splits: splits.into_iter().map(SplitInfo::parse).collect::<Result<_>>()?,
            ..Self::default()
        };
        match location {
            None | Some(Json::Null) => {}
            Some(location) => {
                let urls = location
                    .get("urls")
                    .and_then(Json::as_array)
                    .map(|urls| urls.iter().filter_map(Json::as_str));
                info.urls = urls.into_iter().flatten().map(str::to_string).collect();
            }
        }
        match redistribution {
            None | Some(Json::Null) => {}
            Some(redistribution) => {
                info.license = redistribution
                    .get("license")
                    .and_then(Json::as_str)
                    .map(str::to_string);
            }
        }
        if let Some(Json::Object(notes)) = notes {
            for (version, note) in notes {
                let note = note.as_str().unwrap_or_default().to_string();
                info.release_notes.push((version, note));
            }
        }
        if let Some(keys) = keys.filter(|keys| !keys.is_null()) {
            info.supervised_keys = pair(&keys);
            if info.supervised_keys.is_none() {
                fields.0.insert("supervisedKeys".to_string(), keys);
            }
        }
        info.other = fields.0;
        Ok(info)
    }

    /// Reads the file of a version's folder, which may lie in an object store.
    ///
    /// # Errors
    /// A folder without the file, a store that cannot be reached, and as [`DatasetInfo::from_json`].
    pub fn read_location(folder: &Location) -> Result<Self> {
        let at = folder.join(FILE_NAME);
        let place = || Position {
            path: at.to_string(),
            ..Position::default()
        };
        let bytes = store::read_file(&at)?.ok_or_else(|| Error::Io {
            path: at.to_string(),
            action: "read",
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| Error::damaged("dataset info is not UTF-8").with_position(&place()))?;
        Self::from_json(text).map_err(|error| error.with_position(&place()))
    }

    /// How shards are stored: the word in `file_format`, or where there is none `tfrecord`, which it was before there was a choice.
    pub fn shard_format(&self) -> &str {
        match self.file_format.as_str() {
            "" => "tfrecord",
            format => format,
        }
    }

    /// The file names of all shards, for each split in order.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a pattern that gives what is no name of a file in the folder, or one name twice.
    pub fn shard_names(&self) -> Result<Vec<Vec<String>>> {
        let mut seen = std::collections::HashSet::new();
        let mut all = Vec::new();
        for split in &self.splits {
            let mut names = Vec::new();
            for number in 0..split.shard_lengths.len() {
                let name = split.shard_name(&self.name, self.shard_format(), number);
                if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
                    return Err(Error::damaged(format!(
                        "dataset info: `{}` is not the name of a shard in the folder",
                        name.escape_debug()
                    )));
                }
                if !seen.insert(name.clone()) {
                    return Err(Error::damaged(format!(
                        "dataset info names the shard `{name}` twice"
                    )));
                }
                names.push(name);
            }
            all.push(names);
        }
        Ok(all)
    }

    /// The JSON text, byte for byte as TFDS 4.9 writes it. Fields that are empty or 0 are left out.
    pub fn to_json(&self) -> String {
        let mut map = self.other.clone();
        put(&mut map, "name", &self.name);
        put(&mut map, "configName", self.config_name.as_deref().unwrap_or(""));
        let config = self.config_description.as_deref().unwrap_or("");
        put(&mut map, "configDescription", config);
        put(&mut map, "version", &self.version);
        put(&mut map, "description", &self.description);
        put(&mut map, "citation", &self.citation);
        put(&mut map, "moduleName", self.module_name.as_deref().unwrap_or(""));
        put(&mut map, "fileFormat", &self.file_format);
        put_number(&mut map, "downloadSize", self.download_size);
        if self.disable_shuffling {
            map.insert("disableShuffling".to_string(), true.into());
        }
        if !self.urls.is_empty() {
            map.insert("location".to_string(), json!({"urls": self.urls}));
        }
        if let Some(license) = &self.license {
            map.insert("redistributionInfo".to_string(), json!({"license": license}));
        }
        if !self.release_notes.is_empty() {
            let notes = self.release_notes.iter().cloned();
            let notes: Map<String, Json> = notes.map(|(key, note)| (key, note.into())).collect();
            map.insert("releaseNotes".to_string(), notes.into());
        }
        if let Some((input, target)) = &self.supervised_keys {
            let items = json!([{"featureKey": input}, {"featureKey": target}]);
            map.insert("supervisedKeys".to_string(), json!({"tuple": {"items": items}}));
        }
        if !self.splits.is_empty() {
            let splits: Vec<Json> = self.splits.iter().map(SplitInfo::to_json).collect();
            map.insert("splits".to_string(), splits.into());
        }
        json::dump(&Json::Object(map), Some(2))
    }
}

impl SplitInfo {
    /// The file name of a shard, 0-based, by the split's pattern: `mnist-train.array_record-00001-of-00002`.
    ///
    /// Source: `ShardedFileTemplate` in `core/naming.py` of TFDS 4.9.
    pub fn shard_name(&self, dataset: &str, file_format: &str, number: usize) -> String {
        let count = self.shard_lengths.len();
        let mut name = String::new();
        let mut rest = self.filepath_template.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let Some((key, after)) = after.split_once('}') else {
                break;
            };
            name += before;
            match key {
                "DATASET" => name += dataset,
                "SPLIT" => name += &self.name,
                "FILEFORMAT" => name += file_format,
                "SHARD_INDEX" => name += &format!("{number:05}"),
                "NUM_SHARDS" => name += &format!("{count:05}"),
                "SHARD_X_OF_Y" => name += &format!("{number:05}-of-{count:05}"),
                other => name += &format!("{{{other}}}"),
            }
            rest = after;
        }
        name + rest
    }

    fn parse(value: Json) -> Result<Self> {
        let Json::Object(map) = value else {
            return Err(Error::damaged(format!("dataset info: a split is {value}")));
        };
        let mut fields = Fields(map);
        let lengths = fields.list("shardLengths", "shard_lengths")?;
        let template = fields.text("filepathTemplate", "filepath_template")?;
        Ok(Self {
            name: fields.text("name", "name")?,
            shard_lengths: lengths
                .iter()
                .map(|length| unsigned("shardLengths", length))
                .collect::<Result<_>>()?,
            num_bytes: fields.number("numBytes", "num_bytes")?,
            filepath_template: optional(template).unwrap_or_else(|| FILEPATH_TEMPLATE.to_string()),
            other: fields.0,
        })
    }

    fn to_json(&self) -> Json {
        let mut map = self.other.clone();
        put(&mut map, "name", &self.name);
        put(&mut map, "filepathTemplate", &self.filepath_template);
        put_number(&mut map, "numBytes", self.num_bytes);
        if !self.shard_lengths.is_empty() {
            let lengths: Vec<String> = self.shard_lengths.iter().map(u64::to_string).collect();
            map.insert("shardLengths".to_string(), lengths.into());
        }
        Json::Object(map)
    }
}

fn put(map: &mut Map<String, Json>, key: &str, text: &str) {
    if !text.is_empty() {
        map.insert(key.to_string(), text.into());
    }
}

fn put_number(map: &mut Map<String, Json>, key: &str, number: u64) {
    if number > 0 {
        map.insert(key.to_string(), number.to_string().into());
    }
}

fn optional(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// (input, target) of supervised keys, also in the form before 4.0; `None` for triples and nested keys.
fn pair(keys: &Json) -> Option<(String, String)> {
    let text = |value: &Json| value.as_str().map(str::to_string);
    if let (Some(input), Some(output)) = (keys.get("input"), keys.get("output")) {
        return Some((text(input)?, text(output)?));
    }
    match keys.get("tuple")?.get("items")?.as_array()?.as_slice() {
        [input, target] => {
            let key = |item: &Json| item.get("featureKey").and_then(text);
            Some((key(input)?, key(target)?))
        }
        _ => None,
    }
}

/// What is left of a message; fields are called as in JSON or as in the message.
struct Fields(Map<String, Json>);

impl Fields {
    fn take(&mut self, key: &str, other: &str) -> Option<Json> {
        self.0.remove(key).or_else(|| self.0.remove(other))
    }

    fn text(&mut self, key: &str, other: &str) -> Result<String> {
        match self.take(key, other) {
            None | Some(Json::Null) => Ok(String::new()),
            Some(Json::String(text)) => Ok(text),
            Some(value) => Err(Error::damaged(format!(
                "dataset info: `{key}` is {value}, wanted text"
            ))),
        }
    }

    fn number(&mut self, key: &str, other: &str) -> Result<u64> {
        match self.take(key, other) {
            None | Some(Json::Null) => Ok(0),
            Some(value) => unsigned(key, &value),
        }
    }

    fn list(&mut self, key: &str, other: &str) -> Result<Vec<Json>> {
        match self.take(key, other) {
            None | Some(Json::Null) => Ok(Vec::new()),
            Some(Json::Array(values)) => Ok(values),
            Some(value) => Err(Error::damaged(format!(
                "dataset info: `{key}` is {value}, wanted a list"
            ))),
        }
    }
}

/// A number of at most 63 bits, in quotes or not.
fn unsigned(key: &str, value: &Json) -> Result<u64> {
    let number = match value {
        Json::String(text) => text.parse::<u64>().ok(),
        value => value.as_u64(),
    };
    number
        .filter(|&number| i64::try_from(number).is_ok())
        .ok_or_else(|| {
            Error::damaged(format!(
                "dataset info: `{key}` is {value}, wanted a number from 0"
            ))
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn files_of_tfds_come_back_byte_for_byte() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/features");
        let mut seen = 0;
        for entry in std::fs::read_dir(golden).unwrap() {
            let path = entry.unwrap().path().join("dataset_info.json");
            let Ok(text) = std::fs::read_to_string(&path) else {
                continue;
            };
            let info = DatasetInfo::from_json(&text).unwrap();
            assert_eq!(info.to_json(), text, "{}", path.display());
            assert_eq!(info.other, Map::new(), "{}", path.display());
            seen += 1;
        }
        assert!(seen >= 6, "{seen}");
    }

    #[test]
    fn fields_are_read() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/features/kitchen_sink");
        let text = std::fs::read_to_string(golden.join("dataset_info.json")).unwrap();
        let info = DatasetInfo::from_json(&text).unwrap();
        assert_eq!(info.config_name.as_deref(), Some("full"));
        assert_eq!(info.version, "1.2.3");
        assert_eq!(info.supervised_keys, Some(("png".into(), "label".into())));
        assert_eq!(info.splits[0].shard_lengths, [24]);
        assert_eq!(info.splits[1].num_bytes, 27929);
        assert_eq!(info.splits[1].filepath_template, FILEPATH_TEMPLATE);
        assert_eq!(info.release_notes.len(), 2);
        let mut split = info.splits[0].clone();
        let name = split.shard_name("mnist", "array_record", 0);
        assert_eq!(name, "mnist-train.array_record-00000-of-00001");
        split.filepath_template = "{SPLIT}/{SHARD_INDEX}_{NUM_SHARDS}.{X}{FILEFORMAT".into();
        assert_eq!(
            split.shard_name("mnist", "tfrecord", 7),
            "train/00007_00001.{X}{FILEFORMAT"
        );
    }

    #[test]
    fn unknown_fields_and_older_forms_are_kept_or_understood() {
        let text = r#"{"name": "x", "splits": [{"name": "train", "shard_lengths": [3, "4"], "num_bytes": 10, "statistics": {"numExamples": "7"}}],
            "supervisedKeys": {"tuple": {"items": [{"featureKey": "a"}, {"featureKey": "b"}, {"featureKey": "c"}]}},
            "sizeInBytes": "5", "citation": null}"#;
        let info = DatasetInfo::from_json(text).unwrap();
        assert_eq!(info.splits[0].shard_lengths, [3, 4]);
        assert_eq!(info.splits[0].filepath_template, FILEPATH_TEMPLATE);
        assert_eq!(info.supervised_keys, None);
        let written = info.to_json();
        for part in ["\"featureKey\": \"c\"", "sizeInBytes", "numExamples"] {
            assert!(written.contains(part), "{written}");
        }
        assert_eq!(DatasetInfo::from_json(&written).unwrap(), info);
        let old = DatasetInfo::from_json(r#"{"supervisedKeys": {"input": "a", "output": "b"}}"#);
        assert_eq!(old.unwrap().supervised_keys, Some(("a".into(), "b".into())));
    }

    #[test]
    fn wrong_kinds_are_named() {
        for (text, wanted) in [
            ("[", "not JSON"),
            ("[]", "not a JSON object"),
            (r#"{"name": 3}"#, "`name` is 3"),
            (r#"{"downloadSize": "-1"}"#, "`downloadSize` is \"-1\""),
            (r#"{"splits": [1]}"#, "a split is 1"),
            (r#"{"splits": {}}"#, "`splits` is {}"),
            (
                r#"{"splits": [{"shardLengths": ["99999999999999999999"]}]}"#,
                "`shardLengths`",
            ),
        ] {
            let error = DatasetInfo::from_json(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn shards_have_names_of_files_each_once() {
        let mut info = DatasetInfo {
            name: "a".into(),
            splits: ["train", "test"]
                .map(|name| SplitInfo {
                    name: name.into(),
                    shard_lengths: vec![3, 2],
                    filepath_template: FILEPATH_TEMPLATE.into(),
                    ..SplitInfo::default()
                })
                .into(),
            ..DatasetInfo::default()
        };
        assert_eq!(info.shard_format(), "tfrecord");
        assert_eq!(
            info.shard_names().unwrap()[1],
            ["a-test.tfrecord-00000-of-00002", "a-test.tfrecord-00001-of-00002"]
        );
        for (template, wanted) in [
            ("x/{SHARD_INDEX}-{SPLIT}", "not the name"),
            ("..", "not the name"),
            ("", "not the name"),
            ("{SPLIT}", "twice"),
            ("{SHARD_INDEX}", "twice"),
        ] {
            for split in &mut info.splits {
                split.filepath_template = template.into();
            }
            let error = info.shard_names().unwrap_err().to_string();
            assert!(error.contains(wanted), "{template}: {error}");
        }
    }
}
