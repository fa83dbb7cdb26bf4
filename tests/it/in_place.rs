//! Record files that are registered where they lie, and folders of TFDS as sources.

use std::fs;
use std::path::{Path, PathBuf};

use prep_formats::array_record::{self, Scratch, WriteOptions};
use prep_formats::dataset_info::{DatasetInfo, SplitInfo};
use prep_formats::features::{Feature, Features};
use prep_formats::tfrecord::{self, Compression};
use prep_formats::value::{DType, Value};
use prep_testing::server::FileServer;
use prep_testing::{Prep, Run, folder_digest, golden_path};
use serde_json::{Value as Json, json};

const INFO: &str = "dataset_info.json";

fn tfrecord_of(records: &[Vec<u8>], compression: Compression) -> Vec<u8> {
    let mut writer = tfrecord::Writer::new(Vec::new(), compression).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    writer.finish().unwrap()
}

fn array_record_of(records: &[Vec<u8>], options: &str) -> Vec<u8> {
    let mut writer = array_record::Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    writer.finish().unwrap()
}

/// Examples of a number and a text, as TensorFlow's users write them.
fn examples(numbers: std::ops::Range<i64>) -> Vec<Vec<u8>> {
    let features = Features::new(vec![
        ("n".into(), Feature::Scalar { dtype: DType::Int64 }),
        ("text".into(), Feature::Text),
    ])
    .unwrap();
    let mut encoder = features.encoder();
    let example = |number: i64| {
        let text = format!("row {number} {}", "x".repeat((number % 7) as usize));
        let values = [
            ("n", Value::Int(number)),
            ("text", Value::Bytes(text.into_bytes().into())),
        ];
        let mut record = Vec::new();
        encoder.encode(&values, &mut record).unwrap();
        record
    };
    numbers.map(example).collect()
}

/// Writes a folder as TFDS does: the records of each split, cut into so many shards.
fn tfds_folder(folder: &Path, schema: &Path, format: &str, splits: &[(&str, &[Vec<u8>], usize)]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    for entry in fs::read_dir(schema).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "features.json" || name == INFO || name.ends_with(".labels.txt") {
            fs::copy(&path, folder.join(name)).unwrap();
        }
    }
    let mut info = DatasetInfo::from_json(&fs::read_to_string(folder.join(INFO)).unwrap()).unwrap();
    info.file_format = format.into();
    info.splits.clear();
    for (name, records, shards) in splits {
        let cut = |shard: usize| records.len() * shard / shards.max(&1);
        let parts: Vec<&[Vec<u8>]> = (0..*shards)
            .map(|shard| &records[cut(shard)..cut(shard + 1)])
            .collect();
        let split = SplitInfo {
            name: (*name).into(),
            shard_lengths: parts.iter().map(|part| part.len() as u64).collect(),
            filepath_template: prep_formats::dataset_info::FILEPATH_TEMPLATE.into(),
            ..SplitInfo::default()
        };
        for (number, part) in parts.iter().enumerate() {
            let bytes = match format {
                "tfrecord" => tfrecord_of(part, Compression::Plain),
                _ => array_record_of(part, "group_size:1"),
            };
            fs::write(folder.join(split.shard_name(&info.name, format, number)), bytes).unwrap();
        }
        info.splits.push(split);
    }
    fs::write(folder.join(INFO), info.to_json()).unwrap();
    folder.to_owned()
}

fn kitchen_sink() -> (PathBuf, Vec<Vec<u8>>) {
    let schema = golden_path("features/kitchen_sink");
    let path = schema.join("records.tfrecord");
    let mut reader = tfrecord::Reader::open(path, tfrecord::ReadOptions::default()).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        records.push(record.to_vec());
    }
    (schema, records)
}

/// A home with files of one's own.
struct Home {
    prep: Prep,
}

impl Home {
    fn new() -> Self {
        Self { prep: Prep::new() }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.prep.path(relative)
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.prep.put(path, content)
    }

    /// Registers a recipe of this name; `more` are flags.
    fn register(&self, name: &str, recipe: &str, more: &[&str]) -> Run {
        let text = format!("format = 1\nname = \"{name}\"\n{recipe}");
        let recipe = self.put(&format!("{name}.toml"), text);
        let arguments = ["register", recipe.to_str().unwrap(), "-q"];
        self.prep.run(arguments.iter().chain(more))
    }

    /// Registers a recipe in place, and gives its manifest.
    fn in_place(&self, name: &str, recipe: &str) -> Json {
        self.register(name, recipe, &["--in-place"]).expect(0);
        self.manifest(name)
    }

    fn manifest(&self, name: &str) -> Json {
        let shown = self.show(name);
        let path = Path::new(shown["path"].as_str().unwrap()).join("prep_manifest.json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn show(&self, name: &str) -> Json {
        self.prep.run(["show", name, "--json"]).expect(0).json().remove(0)
    }

    /// All rows of a split, as printed.
    fn rows(&self, name: &str, split: &str) -> String {
        self.prep
            .run(["cat", name, "--split", split, "--json"])
            .expect(0)
            .stdout
    }

    fn load(&self, name: &str, more: &[&str]) -> Run {
        self.prep.run(["load", name].iter().chain(more))
    }
}

const TFRECORDS: &str = "[[sources]]\npath = \"raw/*.tfrecord\"\n[reader]\nkind = \"tfrecord\"\n";
const FEATURES: &str =
    "[features.n]\nkind = \"scalar\"\ndtype = \"int64\"\n[features.text]\nkind = \"text\"\n";

#[test]
fn folders_of_tfds_are_built_and_registered_in_place_alike() {
    let home = Home::new();
    let (schema, records) = kitchen_sink();
    let mut wanted = None;
    for format in ["tfrecord", "array_record"] {
        let splits: [(&str, &[Vec<u8>], usize); 3] = [
            ("validation", &records[1..], 1),
            ("train", &records, 2),
            ("none", &[], 0),
        ];
        let folder = tfds_folder(&home.path(&format!("{format}/1.2.3")), &schema, format, &splits);
        // A first recipe leaves splits and features to the folder.
        let recipe = home.path(&format!("{format}.toml"));
        let arguments = [
            "infer",
            folder.to_str().unwrap(),
            "-o",
            recipe.to_str().unwrap(),
            "--json",
        ];
        let inferred = home.prep.run(arguments).expect(0).json().remove(0);
        assert_eq!(
            (&inferred["kind"], &inferred["name"]),
            (&json!("tfds"), &json!("kitchen_sink"))
        );
        assert_eq!(
            inferred["splits"],
            json!({"none": 0, "train": 3, "validation": 2})
        );
        let text = fs::read_to_string(&recipe).unwrap();
        assert!(
            text.contains("version = \"1.2.3\"") && !text.contains("\n[features"),
            "{text}"
        );
        let two = "[[splits]]\nname = \"train\"\nfiles = [\"**/*-train.*\"]\n[[splits]]\nname = \"validation\"\nfiles = [\"**/*-validation.*\"]\n";
        for (splits, flags) in [
            (two, &[][..]),
            (two, &["--in-place"][..]),
            ("", &[][..]),
            ("", &["--in-place"][..]),
        ] {
            let catalog = home.path(&format!("{format}{}{}", flags.len(), splits.len()));
            let catalog = catalog.to_str().unwrap();
            fs::write(&recipe, format!("{text}{splits}")).unwrap();
            let arguments = ["register", recipe.to_str().unwrap(), "-q", "--catalog", catalog];
            home.prep.run(arguments.iter().chain(flags)).expect(0);
            let shown = home
                .prep
                .run(["show", "kitchen_sink", "--catalog", catalog, "--json"])
                .expect(0);
            let shown = shown.json().remove(0);
            assert_eq!(shown["in_place"], !flags.is_empty());
            let counts = shown["splits"].as_object().unwrap().iter();
            let mut counts: Vec<_> = counts
                .map(|(name, split)| (name.clone(), split["examples"].as_u64().unwrap()))
                .collect();
            counts.sort();
            let mut wanted_counts = vec![("train".to_owned(), 3), ("validation".to_owned(), 2)];
            if splits.is_empty() {
                wanted_counts.insert(0, ("none".to_owned(), 0));
                let indices = [
                    "load",
                    "kitchen_sink",
                    "--split",
                    "none",
                    "--indices",
                    "--catalog",
                    catalog,
                ];
                assert_eq!(home.prep.run(indices).expect(0).stdout, "");
            }
            assert_eq!(counts, wanted_counts);
            let rows = ["train", "validation", "train[1:]"].map(|split| {
                let arguments = [
                    "cat",
                    "kitchen_sink",
                    "--split",
                    split,
                    "--catalog",
                    catalog,
                    "--json",
                ];
                home.prep.run(arguments).expect(0).stdout
            });
            // As the folder itself is read, whatever the format.
            let wanted = wanted.get_or_insert_with(|| {
                let arguments = ["cat", folder.to_str().unwrap(), "--split", "train", "--json"];
                let train = home.prep.run(arguments).expect(0).stdout;
                (train, rows.clone())
            });
            assert_eq!(rows[0], wanted.0);
            assert_eq!(rows, wanted.1);
        }
    }
}

#[test]
fn splits_without_examples_of_tfds_folders_are_kept_as_such() {
    let home = Home::new();
    let (schema, records) = kitchen_sink();
    let splits: [(&str, &[Vec<u8>], usize); 3] =
        [("train", &records, 2), ("none", &[], 0), ("empty", &[], 1)];
    tfds_folder(&home.path("data"), &schema, "array_record", &splits);
    let source = "[[sources]]\npath = \"data\"\n[reader]\nkind = \"tfds\"\n";
    home.register("staying", source, &["--in-place"]).expect(0);
    let counts = |name: &str| {
        let shown = home.show(name);
        ["train", "none", "empty"].map(|split| shown["splits"][split]["examples"].as_u64().unwrap())
    };
    for (name, layout) in [("built", ""), ("sorted", "layout = \"tfds\"\n")] {
        let recipe = format!("{layout}{source}");
        let path = home.put(
            &format!("{name}.toml"),
            format!("format = 1\nname = \"{name}\"\n{recipe}"),
        );
        let said = home
            .prep
            .run(["register", path.to_str().unwrap()])
            .expect(0)
            .stderr;
        assert!(
            said.contains("split `none` has no examples") && said.contains("split `empty` has no examples"),
            "{said}"
        );
        assert_eq!(counts(name), counts("staying"));
        assert_eq!(home.show(name)["splits"]["none"]["shards"], 0);
        home.prep.run(["verify", name]).expect(0);
        home.prep.run(["cat", name, "--split", "none"]).expect(0);
        let again = home
            .register(name, &recipe, &["--json"])
            .expect(0)
            .json()
            .pop()
            .unwrap();
        assert_eq!(again["status"], "up to date");
        let out = home.path("out");
        home.prep
            .run(["export", name, out.to_str().unwrap(), "--tfds", "--overwrite"])
            .expect(0);
    }
}

#[test]
fn rows_of_tfds_folders_are_filtered_renamed_and_split_like_others() {
    let home = Home::new();
    let (schema, records) = kitchen_sink();
    let splits: [(&str, &[Vec<u8>], usize); 2] = [("train", &records, 3), ("test", &records[..1], 1)];
    let folder = tfds_folder(&home.path("data"), &schema, "tfrecord", &splits);
    let source = "[[sources]]\npath = \"data\"\n[reader]\nkind = \"tfds\"\n";
    let number = |row: &Json| {
        let data = row["features"]["number"]["data"].as_str().unwrap().to_owned();
        (row["index"].clone(), data)
    };
    let recipe =
        format!("select = [\"s_int64\", \"nested\", \"seq_dict\"]\n[rename]\ns_int64 = \"number\"\n{source}");
    home.register("some", &recipe, &[]).expect(0);
    let rows = home.prep.run(["cat", "some", "--json"]).expect(0).json();
    assert_eq!(rows.len(), 3);
    let features = rows[0]["features"].as_object().unwrap();
    assert_eq!(
        features.keys().collect::<Vec<_>>(),
        ["nested", "number", "seq_dict"]
    );
    let all: Vec<_> = rows.iter().map(number).collect();
    // One of the three numbers is left out by a filter.
    let whole = home
        .prep
        .run(["cat", folder.to_str().unwrap(), "--split", "train", "--json"])
        .expect(0);
    assert_eq!(whole.json()[1]["features"]["s_int64"]["data"], all[1].1);
    let filtered = format!("filter = \"s_bool == 1\"\n{recipe}");
    home.register("filtered", &filtered, &[]).expect(0);
    let kept = home
        .prep
        .run(["cat", "filtered", "--json"])
        .expect(0)
        .json()
        .len();
    let truths = whole.json();
    let truths = truths
        .iter()
        .filter(|row| row["features"]["s_bool"]["data"] == "AQ==")
        .count();
    assert_eq!(kept, truths);
    // Splits of the recipe's own, and by fraction.
    let renamed =
        format!("{source}[[splits]]\nname = \"whole\"\nfiles = [\"data/*-train*\", \"data/*-test*\"]\n");
    home.register("renamed", &renamed, &[]).expect(0);
    assert_eq!(home.show("renamed")["splits"]["whole"]["examples"], 4);
    let dealt = format!("{source}[splits]\na = 0.5\nb = 0.5\n");
    home.register("dealt", &dealt, &[]).expect(0);
    let splits = home.show("dealt")["splits"].clone();
    let count = |name: &str| splits[name]["examples"].as_u64().unwrap();
    assert_eq!(count("a") + count("b"), 4);
    // A changed description is a changed source.
    let again = home.register("some", &recipe, &["--json"]).expect(0);
    assert_eq!(again.json().pop().unwrap()["status"], "up to date");
    let labels = folder.join("label.labels.txt");
    let text = fs::read_to_string(&labels).unwrap();
    fs::write(&labels, text.to_uppercase()).unwrap();
    let said = home.register("some", &recipe, &[]).expect(1).stderr;
    assert!(said.contains("label.labels.txt"), "{said}");
    fs::write(&labels, text).unwrap();

    // What is wrong with a folder is told.
    let shard = folder.join("kitchen_sink-train.tfrecord-00001-of-00003");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, tfrecord_of(&records, Compression::Plain)).unwrap();
    for flags in [&["--overwrite"][..], &["--in-place", "--overwrite"][..]] {
        let said = home.register("some", source, flags).expect(1).stderr;
        assert!(
            said.contains("00001-of-00003 has 3 records") && said.contains("says 1"),
            "{said}"
        );
    }
    fs::remove_file(&shard).unwrap();
    let said = home.register("some", source, &["--overwrite"]).expect(1).stderr;
    assert!(
        said.contains("names a shard of split `train` that is not there"),
        "{said}"
    );
    fs::write(&shard, bytes).unwrap();
    fs::remove_file(folder.join("features.json")).unwrap();
    let said = home.register("some", source, &["--overwrite"]).expect(1).stderr;
    assert!(
        said.contains("features.json") && said.contains("the folder of one version"),
        "{said}"
    );
}

#[test]
fn files_in_place_load_as_a_build_of_the_same_records_does() {
    let home = Home::new();
    home.prep.build("cifar10", &["--shards", "4"]).expect(0);
    let built = PathBuf::from(home.show("cifar10")["path"].as_str().unwrap());
    // The same records in TFRecord files, in a folder as TFDS has it.
    let mut splits: Vec<(&str, Vec<Vec<u8>>)> = Vec::new();
    for split in ["train", "test"] {
        let mut records = Vec::new();
        for shard in 0..4 {
            let path = built.join(format!("cifar10-{split}.array_record-{shard:05}-of-00004"));
            let reader = array_record::Reader::open(path).unwrap();
            let mut scratch = Scratch::default();
            records.extend(
                (0..reader.num_records()).map(|index| reader.record(index, &mut scratch).unwrap().to_vec()),
            );
        }
        splits.push((split, records));
    }
    let parts: Vec<(&str, &[Vec<u8>], usize)> = splits
        .iter()
        .map(|(name, records)| (*name, records.as_slice(), 3))
        .collect();
    tfds_folder(&home.path("tf"), &built, "tfrecord", &parts);
    home.in_place("tf", "[[sources]]\npath = \"tf\"\n[reader]\nkind = \"tfds\"\n");
    let recipe = format!(
        "[[sources]]\npath = {:?}\n[reader]\nkind = \"tfds\"\n",
        built.to_str().unwrap()
    );
    home.in_place("ar", &recipe);
    home.register("again", &recipe, &[]).expect(0);
    let wanted = home.show("cifar10");
    let names = ["tf", "ar", "again"];
    for name in names {
        let shown = home.show(name);
        assert_eq!(shown["fingerprint"], wanted["fingerprint"], "{name}");
        assert_eq!(shown["features"], wanted["features"]);
        assert_eq!(home.rows(name, "train"), home.rows("cifar10", "train"), "{name}");
        assert_eq!(home.prep.run(["diff", "cifar10", name]).expect(0).code, 0);
    }
    // Another folder of TFDS: written anew, as the files are not ours to link to.
    for (name, more) in [("tf", &[][..]), ("ar", &["--file-format", "tfrecord"][..])] {
        let to = home.path(&format!("exported-{name}"));
        let arguments = ["export", name, to.to_str().unwrap(), "-q", "--tfds"];
        home.prep.run(arguments.iter().chain(more)).expect(0);
        let to = to.join(name).join("1.0.0");
        let read = ["cat", to.to_str().unwrap(), "--split", "train", "--json"];
        assert_eq!(
            home.prep.run(read).expect(0).stdout,
            home.rows("cifar10", "train")
        );
    }
    // An index takes under 3 bytes a record.
    let index = home.manifest("tf")["splits"][0]["shards"][0]["index"].clone();
    assert!(index["bytes"].as_u64().unwrap() < 3 * 100 + 100, "{index}");

    let indices = |name: &str, more: &[&str]| {
        let asked = [&["--indices", "--seed", "5", "--batch", "7"], more].concat();
        home.load(name, &asked).expect(0).stdout
    };
    for more in [
        &[][..],
        &["--order", "source"],
        &["--order", "grain"],
        &["--split", "train[10:250]+test"],
    ] {
        for name in names {
            assert_eq!(indices(name, more), indices("cifar10", more), "{name} {more:?}");
        }
    }
    let mut seen = Vec::new();
    for host in 0..12 {
        let shard = format!("{host}/12");
        let ours = indices("tf", &["--shard", &shard]);
        assert_eq!(ours, indices("cifar10", &["--shard", &shard]));
        for line in ours.lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            seen.extend(
                line["indices"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|index| index.as_u64().unwrap()),
            );
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..300).collect::<Vec<_>>());
    // A state is of the content: taken on one, it goes on with another of the same, but for the name.
    let state = home.path("state.json");
    let state = state.to_str().unwrap();
    let first = indices("tf", &["--batches", "11", "--save", state]);
    let rest = home
        .load("tf", &["--indices", "--batch", "7", "--restore", state])
        .expect(0)
        .stdout;
    let numbers = |text: &str| -> Vec<Json> {
        text.lines()
            .map(|line| serde_json::from_str::<Json>(line).unwrap()["indices"].clone())
            .collect()
    };
    assert_eq!(
        [numbers(&first), numbers(&rest)].concat(),
        numbers(&indices("cifar10", &[]))
    );
    // Decoded, all of it, by several threads.
    let loaded = home
        .load("tf", &["--batch", "16", "--threads", "3", "--json"])
        .expect(0)
        .json()
        .pop()
        .unwrap();
    assert_eq!(loaded["rows"], 300, "{loaded}");
}

#[test]
fn features_follow_from_records_as_for_a_build_or_are_held_against_them() {
    let home = Home::new();
    for (name, rows) in [("a", 0..40), ("b", 40..41), ("c", 41..100)] {
        home.put(
            &format!("raw/{name}.tfrecord"),
            tfrecord_of(&examples(rows), Compression::Plain),
        );
    }
    home.put("raw/empty.tfrecord", "");
    let splits = "[[splits]]\nname = \"train\"\nfiles = [\"raw/a*\", \"raw/c*\", \"raw/empty*\"]\n[[splits]]\nname = \"test\"\nfiles = [\"raw/b*\"]\n";
    let recipe = format!("{TFRECORDS}{splits}");
    let manifest = home.in_place("learned", &recipe);
    assert_eq!(manifest["splits"][0]["shards"].as_array().unwrap().len(), 3);
    home.register("built", &recipe, &[]).expect(0);
    home.in_place("said", &format!("{TFRECORDS}{splits}{FEATURES}"));
    let built = home.show("built");
    for name in ["learned", "said"] {
        let shown = home.show(name);
        for what in ["fingerprint", "statistics"] {
            assert_eq!(shown[what], built[what], "{name}");
        }
        assert_eq!(
            shown["statistics"]["duplicates"]["within"],
            json!({"train": 0, "test": 0})
        );
        for split in ["train", "test"] {
            assert_eq!(home.rows(name, split), home.rows("built", split));
        }
    }
    let stored = home
        .prep
        .run(["cat", home.path("raw/b.tfrecord").to_str().unwrap(), "--json"])
        .expect(0);
    assert_eq!(stored.json().len(), 1);

    // What records do not have as the features say it.
    for (features, wanted) in [
        (
            "[features.n]\nkind = \"text\"\n[features.text]\nkind = \"text\"\n",
            "`n`",
        ),
        (
            "[features.n]\nkind = \"scalar\"\ndtype = \"int64\"\n",
            "it has `text`, which is none of the features",
        ),
        ("[features.m]\nkind = \"scalar\"\ndtype = \"int64\"\n", "`m`"),
        (
            "[features.n]\nkind = \"class_label\"\nnum_classes = 40\n[features.text]\nkind = \"text\"\n",
            "record 0",
        ),
    ] {
        let said = home
            .register(
                "wrong",
                &format!("{TFRECORDS}{splits}{features}"),
                &["--in-place"],
            )
            .expect(1)
            .stderr;
        assert!(
            said.contains(wanted) && said.contains(".tfrecord, record "),
            "{wanted}: {said}"
        );
        assert!(said.contains("leave `--in-place` out"), "{said}");
    }
    assert!(!home.prep.catalog().join("log/wrong").exists());
}

#[test]
fn what_files_in_place_cannot_give_is_refused_with_the_reason() {
    let home = Home::new();
    home.put("raw/a.tfrecord", tfrecord_of(&examples(0..9), Compression::Plain));
    home.put(
        "raw/z.tfrecord.gz",
        tfrecord_of(&examples(0..9), Compression::Gzip),
    );
    home.put(
        "raw/cut.bin",
        &tfrecord_of(&examples(0..9), Compression::Plain)[..100],
    );
    home.put("raw/rows.jsonl", "{\"n\": 1}\n");
    home.put(
        "raw/riegeli.array_record",
        &array_record_of(&examples(0..9), "group_size:1")[..400],
    );
    let of =
        |path: &str, kind: &str| format!("[[sources]]\npath = \"raw/{path}\"\n[reader]\nkind = \"{kind}\"\n");
    let plain = of("a.tfrecord", "tfrecord");
    for (head, recipe, wanted) in [
        (
            "filter = \"n > 3\"\n",
            plain.clone(),
            "`filter` leaves records out",
        ),
        ("select = [\"n\"]\n", plain.clone(), "`select` changes records"),
        ("drop = [\"n\"]\n", plain.clone(), "`drop` changes records"),
        (
            "",
            format!("[rename]\nn = \"m\"\n{plain}"),
            "`rename` changes records",
        ),
        ("layout = \"tfds\"\n", plain.clone(), "orders records anew"),
        (
            "",
            format!("{plain}[splits]\na = 0.5\nb = 0.5\n"),
            "splits by fraction",
        ),
        (
            "",
            format!("{plain}[output]\ncompression = \"uncompressed\"\n"),
            "`[output]` asks for shards with",
        ),
        (
            "",
            format!("{plain}[features.text]\nkind = \"class_label\"\n"),
            "the classes of `features.text`",
        ),
        (
            "",
            format!("{plain}[features.text]\nkind = \"image\"\nshape = [-1, -1, 3]\nresize = [2, 2]\n"),
            "written anew",
        ),
        (
            "",
            of("rows.jsonl", "jsonl"),
            "the reader `jsonl` hold no records",
        ),
        (
            "",
            of("z.tfrecord.gz", "tfrecord"),
            "compressed as a whole, by gzip",
        ),
        ("", of("cut.bin", "tfrecord"), "cut short"),
        (
            "",
            of("riegeli.array_record", "array_record"),
            "riegeli.array_record",
        ),
        ("", of("a.tfrecord", "array_record"), "a.tfrecord"),
        ("", of("no*.tfrecord", "tfrecord"), "no file"),
    ] {
        let said = home
            .register("no", &format!("{head}{recipe}"), &["--in-place"])
            .expect(1)
            .stderr;
        assert!(said.contains(wanted), "{wanted}: {said}");
        assert!(said.contains("hint: ") || wanted.ends_with("record"), "{said}");
    }
    for (flags, wanted) in [
        (&["--shards", "2"][..], "the files are the shards"),
        (&["--on-error", "skip"][..], "no record can be left out"),
    ] {
        let said = home
            .register("no", &plain, &[flags, &["--in-place"]].concat())
            .expect(2)
            .stderr;
        assert!(said.contains(wanted), "{said}");
    }
    assert!(!home.prep.catalog().join("log").exists());
    let planned = home
        .register("no", &plain, &["--in-place", "--dry-run", "--json"])
        .expect(0)
        .json()
        .pop()
        .unwrap();
    assert_eq!(planned["status"], "planned");
    assert!(!home.prep.catalog().join("log").exists());
}

#[test]
fn a_file_that_changes_is_named_and_registered_again_and_never_deleted() {
    let home = Home::new();
    let first = home.put(
        "raw/a.tfrecord",
        tfrecord_of(&examples(0..50), Compression::Plain),
    );
    let second = home.put(
        "raw/b.tfrecord",
        tfrecord_of(&examples(50..90), Compression::Plain),
    );
    let recipe = format!("{TFRECORDS}{FEATURES}");
    home.in_place("mine", &recipe);
    let status = |more: &[&str]| {
        let run = home
            .register("mine", &recipe, &[&["--in-place", "--json"], more].concat())
            .expect(0);
        run.json().pop().unwrap()["status"].clone()
    };
    assert_eq!(status(&[]), "up to date");
    let verify = |code: i32| home.prep.run(["verify", "mine", "--json"]).expect(code).json();
    assert!(verify(0).iter().all(|report| report["ok"] == true));
    let bad = |reports: &[Json]| -> String {
        let bad = reports.iter().filter(|report| report["ok"] == false);
        bad.map(Json::to_string).collect()
    };
    let whole = fs::read(&first).unwrap();

    // One byte of a payload: that record, by its checksum; the others are read.
    let mut damaged = whole.clone();
    damaged[20] ^= 1;
    fs::write(&first, &damaged).unwrap();
    let said = home
        .prep
        .run(["cat", "mine", "--records", "0..1"])
        .expect(1)
        .stderr;
    assert!(
        said.contains("a.tfrecord")
            && said.contains("payload checksum")
            && said.contains("register it again"),
        "{said}"
    );
    home.prep.run(["cat", "mine", "--records", "1..90"]).expect(0);
    let reports = verify(1);
    let found: Vec<_> = reports.iter().filter(|report| report["ok"] == false).collect();
    assert_eq!(
        (
            found.len(),
            found[0]["path"].as_str().unwrap().ends_with("raw/a.tfrecord")
        ),
        (1, true)
    );
    let said = home
        .register("mine", &recipe, &["--in-place", "--overwrite"])
        .expect(1)
        .stderr;
    assert!(
        said.contains("a.tfrecord, record 0") && said.contains("checksum"),
        "{said}"
    );

    // Other records of the same lengths: whole in themselves, so only `verify` sees it.
    let mut swapped = examples(0..50);
    swapped.swap(0, 7);
    fs::write(&first, tfrecord_of(&swapped, Compression::Plain)).unwrap();
    let reports = verify(1);
    assert!(
        bad(&reports).contains("raw/a.tfrecord") && bad(&reports).contains("register it again"),
        "{reports:?}"
    );

    // Another length: when it is opened.
    fs::write(&first, tfrecord_of(&examples(0..60), Compression::Plain)).unwrap();
    let said = home.load("mine", &["--batches", "1"]).expect(1).stderr;
    let lengths = (whole.len(), fs::metadata(&first).unwrap().len());
    assert!(
        said.contains("raw/a.tfrecord") && said.contains("prep register --in-place --overwrite"),
        "{said}"
    );
    assert!(
        said.contains(&lengths.0.to_string()) && said.contains(&lengths.1.to_string()),
        "{said}"
    );
    let said = home.register("mine", &recipe, &["--in-place"]).expect(1).stderr;
    assert!(
        said.contains("raw/a.tfrecord has changed since") && said.contains("--overwrite"),
        "{said}"
    );
    assert_eq!(status(&["--overwrite"]), "built");
    assert_eq!(home.show("mine")["splits"]["train"]["examples"], 100);
    assert_eq!(home.rows("mine", "train").lines().count(), 100);
    verify(0);

    // A new file, an index that was damaged, a file that is gone.
    let third = home.put(
        "raw/c.tfrecord",
        tfrecord_of(&examples(90..95), Compression::Plain),
    );
    let said = home.register("mine", &recipe, &["--in-place"]).expect(1).stderr;
    assert!(said.contains("raw/c.tfrecord has come since"), "{said}");
    fs::remove_file(&third).unwrap();
    let folder = PathBuf::from(home.show("mine")["path"].as_str().unwrap());
    let index = folder.join("train-00000-of-00002.index");
    let bytes = fs::read(&index).unwrap();
    fs::write(&index, &bytes[..bytes.len() - 1]).unwrap();
    let said = home.load("mine", &["--batches", "1"]).expect(1).stderr;
    assert!(said.contains("train-00000-of-00002.index"), "{said}");
    assert!(bad(&verify(1)).contains("index"));
    fs::write(&index, bytes).unwrap();
    fs::remove_file(&second).unwrap();
    let said = home.load("mine", &["--split", "train[99:]"]).expect(1).stderr;
    assert!(said.contains("raw/b.tfrecord"), "{said}");
    verify(1);
    fs::write(&second, tfrecord_of(&examples(50..90), Compression::Plain)).unwrap();

    // The folder of what was replaced goes, and that of what was removed; the files stay.
    let raw = folder_digest(home.path("raw"));
    let gc = |more: &[&str]| {
        home.prep
            .run([&["gc", "--older-than", "0s", "--delete", "--json"], more].concat())
            .expect(0)
    };
    let replaced = home.prep.catalog().join("data/mine/1.0.0");
    assert!(replaced.exists() && folder != replaced);
    gc(&[]);
    assert!(!replaced.exists());
    assert_eq!(home.rows("mine", "train").lines().count(), 100);
    let removed = home.prep.run(["rm", "mine", "--json"]).expect(0).json().remove(0);
    assert_eq!(removed["in_place"], true);
    gc(&[]);
    assert!(!folder.exists());
    assert_eq!(folder_digest(home.path("raw")), raw);
    // A build takes the same version over, and the other way round.
    home.in_place("mine", &recipe);
    let said = home.register("mine", &recipe, &[]).expect(1).stderr;
    assert!(said.contains("another recipe"), "{said}");
    home.register("mine", &recipe, &["--overwrite"]).expect(0);
    assert_eq!(home.show("mine")["in_place"], false);
    home.register("mine", &recipe, &["--in-place"]).expect(1);
    home.register("mine", &recipe, &["--in-place", "--overwrite"])
        .expect(0);
    assert_eq!(home.show("mine")["in_place"], true);
    gc(&[]);
    assert_eq!(home.rows("mine", "train").lines().count(), 100);
    assert_eq!(folder_digest(home.path("raw")), raw);
}

#[test]
fn a_catalog_is_moved_with_the_files_that_lie_in_it() {
    let home = Home::new();
    // Names that are none of a shell's, a URL's or a pattern's friends.
    let names = [
        "a b.tfrecord",
        "\u{fc} \u{1f600}.tfrecord",
        "50%#x?.tfrecord",
        "-q.tfrecord",
        "'\"\\.tfrecord",
    ];
    for (number, name) in names.iter().enumerate() {
        let start = 10 * number as i64;
        home.put(
            &format!("catalog/raw/{name}"),
            tfrecord_of(&examples(start..start + 10), Compression::Plain),
        );
    }
    home.put(
        "outside/x.tfrecord",
        tfrecord_of(&examples(0..3), Compression::Plain),
    );
    let mine = format!("[[sources]]\npath = \"catalog/raw\"\n[reader]\nkind = \"tfrecord\"\n{FEATURES}");
    if let Some(backslash) = names.iter().find(|name| name.contains('\\')) {
        // A path's parts are parted by `/` alone, and a manifest takes no other.
        let said = home.register("mine", &mine, &["--in-place"]).expect(1).stderr;
        assert!(
            said.contains("does not stay inside") || said.contains('\\'),
            "{said}"
        );
        fs::remove_file(home.path(&format!("catalog/raw/{backslash}"))).unwrap();
    }
    let manifest = home.in_place("mine", &mine);
    let paths: Vec<&str> = manifest["splits"][0]["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shard| shard["path"].as_str().unwrap())
        .collect();
    assert!(
        paths.iter().all(|path| path.starts_with("../../../raw/")),
        "{paths:?}"
    );
    let outside = format!("[[sources]]\npath = \"outside\"\n[reader]\nkind = \"tfrecord\"\n{FEATURES}");
    let manifest = home.in_place("outside", &outside);
    assert!(
        manifest["splits"][0]["shards"][0]["path"]
            .as_str()
            .unwrap()
            .starts_with('/')
    );
    // A data folder elsewhere, with the files in it.
    home.put(
        "elsewhere/raw/x.tfrecord",
        tfrecord_of(&examples(0..3), Compression::Plain),
    );
    let elsewhere = home.path("elsewhere");
    let recipe = format!("[[sources]]\npath = \"elsewhere/raw\"\n[reader]\nkind = \"tfrecord\"\n{FEATURES}");
    home.register(
        "elsewhere",
        &recipe,
        &["--in-place", "--data-dir", elsewhere.to_str().unwrap()],
    )
    .expect(0);
    let path = home.manifest("elsewhere")["splits"][0]["shards"][0]["path"].clone();
    assert_eq!(path, "../../raw/x.tfrecord");

    let before = home.rows("mine", "train");
    assert_eq!(before.lines().count(), 40);
    let moved = home.path("moved");
    fs::rename(home.prep.catalog(), &moved).unwrap();
    let rows = |name: &str| {
        let arguments = ["cat", name, "--json", "--catalog", moved.to_str().unwrap()];
        home.prep.run(arguments).expect(0).stdout
    };
    assert_eq!(rows("mine"), before);
    assert_eq!(rows("outside").lines().count(), 3);
    home.prep
        .run(["verify", "mine", "--catalog", moved.to_str().unwrap()])
        .expect(0);
}

#[test]
fn files_on_a_web_server_are_registered_in_place() {
    let home = Home::new();
    let (schema, records) = kitchen_sink();
    let splits: [(&str, &[Vec<u8>], usize); 2] = [("train", &records, 2), ("test", &records[..1], 1)];
    tfds_folder(&home.path("web/tf/1.2.3"), &schema, "tfrecord", &splits);
    tfds_folder(&home.path("web/ar/1.2.3"), &schema, "array_record", &splits);
    home.put(
        "web/big.tfrecord",
        tfrecord_of(&examples(0..2000), Compression::Plain),
    );
    let server = FileServer::start(home.path("web"), []);
    for format in ["tf", "ar"] {
        let url = server.url(&format!("{format}/1.2.3"));
        let recipe = format!("[[sources]]\nurl = \"{url}\"\n[reader]\nkind = \"tfds\"\n");
        let manifest = home.in_place(format, &recipe);
        assert!(
            manifest["splits"][1]["shards"][0]["path"]
                .as_str()
                .unwrap()
                .starts_with(&url)
        );
        let local = home.path(&format!("web/{format}/1.2.3"));
        let wanted = home
            .prep
            .run(["cat", local.to_str().unwrap(), "--split", "train", "--json"])
            .expect(0)
            .stdout;
        assert_eq!(home.rows(format, "train"), wanted);
        home.prep.run(["verify", format]).expect(0);
        // Such a folder is no source of a build.
        home.register("no", &recipe, &[]).expect(1);
    }
    let recipe = format!(
        "[[sources]]\nurl = \"{}\"\n[reader]\nkind = \"tfrecord\"\n",
        server.url("big.tfrecord")
    );
    let said = home.register("big", &recipe, &["--in-place"]).expect(1).stderr;
    assert!(said.contains("the recipe says no features"), "{said}");
    home.in_place("big", &format!("{recipe}{FEATURES}"));
    let before = server.requests().len();
    let loaded = home
        .load("big", &["--batch", "500", "--json"])
        .expect(0)
        .json()
        .pop()
        .unwrap();
    assert_eq!(loaded["rows"], 2000, "{loaded}");
    // Records of a batch come together: not a request each.
    let requests = server.requests().len() - before;
    assert!(requests < 40, "{requests} requests");
    let pattern = format!(
        "[[sources]]\nurl = \"{}\"\n[reader]\nkind = \"tfrecord\"\n",
        server.url("*.tfrecord")
    );
    let said = home.register("all", &pattern, &["--in-place"]).expect(1).stderr;
    assert!(said.contains("does not tell what it has"), "{said}");
    // What would have to be kept in the manifest to be of use.
    for secret in ["?token=1", "#part"] {
        let url = server.url(&format!("big.tfrecord{secret}"));
        let recipe =
            format!("[[sources]]\nname = \"x\"\nurl = \"{url}\"\n[reader]\nkind = \"tfrecord\"\n{FEATURES}");
        let said = home.register("secret", &recipe, &["--in-place"]).expect(1).stderr;
        assert!(
            said.contains("more than a path") && !said.contains("token=1"),
            "{said}"
        );
    }
}

#[test]
fn a_registration_that_was_killed_goes_on_from_the_files_that_it_has_read() {
    let home = Home::new();
    for number in 0..6 {
        home.put(
            &format!("raw/{number}.tfrecord"),
            tfrecord_of(&examples(0..20), Compression::Plain),
        );
    }
    let bad = home.path("raw/5.tfrecord");
    let whole = fs::read(&bad).unwrap();
    fs::write(&bad, &whole[..whole.len() - 1]).unwrap();
    let recipe = format!("{TFRECORDS}{FEATURES}");
    // A failure late leaves what was read, as a kill does.
    home.register("mine", &recipe, &["--in-place", "--workers", "1"])
        .expect(1);
    let journal = home.prep.catalog().join("data/.staging/mine/1.0.0/files.jsonl");
    let lines = fs::read_to_string(&journal).unwrap().lines().count();
    assert_eq!(lines, 5);
    fs::write(&bad, &whole).unwrap();
    // One of them changes in between, and is read again; the others are not, even where they could not be.
    home.put(
        "raw/0.tfrecord",
        tfrecord_of(&examples(0..21), Compression::Plain),
    );
    home.register("mine", &recipe, &["--in-place", "--workers", "1"])
        .expect(0);
    let shown = home.show("mine");
    assert_eq!(shown["splits"]["train"]["examples"], 121);
    assert_eq!(shown["statistics"]["duplicates"]["within"]["train"], 100);
    assert!(!home.prep.catalog().join("data/.staging").exists());
    home.prep.run(["verify", "mine"]).expect(0);
    // A kill between the folder's name and the entry: the same command takes the folder up.
    for part in ["log/mine", "checkpoints"] {
        let _ = fs::remove_dir_all(home.prep.catalog().join(part));
    }
    let again = home
        .register("mine", &recipe, &["--in-place", "--json"])
        .expect(0);
    let outcome = again.json().pop().unwrap();
    assert_eq!(
        (&outcome["status"], &outcome["path"]),
        (&json!("built"), &shown["path"])
    );
    assert_eq!(home.show("mine")["fingerprint"], shown["fingerprint"]);
    let versions = fs::read_dir(home.prep.catalog().join("data/mine")).unwrap();
    assert_eq!(versions.count(), 1);
}

#[test]
fn gc_leaves_a_version_whose_files_another_dataset_has_in_place() {
    let home = Home::new();
    home.put(
        "raw/a.tfrecord",
        tfrecord_of(&examples(0..20), Compression::Plain),
    );
    home.register("mine", TFRECORDS, &[]).expect(0);
    let folder = PathBuf::from(home.show("mine")["path"].as_str().unwrap());
    let look = format!(
        "[[sources]]\npath = \"{}/*.array_record*\"\n[reader]\nkind = \"array_record\"\n",
        folder.display()
    );
    home.in_place("look", &look);
    let rows = home.rows("look", "train");
    home.prep.run(["rm", "mine:1.0.0"]).expect(0);
    let gc = ["gc", "--older-than", "0s", "--delete", "--json"];
    home.prep.run(gc).expect(0);
    assert_eq!(home.rows("look", "train"), rows);
    assert_eq!(rows.lines().count(), 20);
    // Once nobody has them any more, they go.
    home.prep.run(["rm", "look"]).expect(0);
    home.prep.run(gc).expect(0);
    assert!(!folder.exists());
}
