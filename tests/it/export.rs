//! `prep export` as its users see it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prep_catalog::{Build, Catalog, DatasetName};
use prep_formats::dataset_info::DatasetInfo;
use prep_formats::store::Location;
use prep_testing::process::{Process, kill_after, peak_mib, wait_for};
use prep_testing::{Noise, Prep, Run, TempDir, assert_same_folder, folder_digest, golden_path, temp_dir};
use serde_json::Value;

use crate::builds::large_source;

/// A home, and a folder beside it for sources and exports.
struct Home {
    prep: Prep,
    folder: TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            prep: Prep::new(),
            folder: temp_dir(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Registers a dataset of these lines.
    fn register(&self, name: &str, recipe: &str) -> Value {
        let path = self.path(&format!("{name}.toml"));
        fs::write(&path, format!("format = 1\nname = \"{name}\"\n{recipe}")).unwrap();
        let run = self
            .prep
            .run(["register", path.to_str().unwrap(), "--json"])
            .expect(0);
        run.json().pop().unwrap()
    }

    /// Exports to a folder beside the home.
    fn export(&self, name: &str, output: &str, more: &[&str]) -> Run {
        let output = self.text(output);
        let words = ["export", name, &output];
        self.prep.run(words.iter().chain(more))
    }

    /// The examples of a dataset or folder, as `prep cat` prints them.
    fn rows(&self, what: &str, split: &str) -> Vec<Value> {
        let run = self.prep.run(["cat", what, "--split", split, "--json"]).expect(0);
        run.json()
            .into_iter()
            .map(|mut row| row["features"].take())
            .collect()
    }
}

fn info(folder: &Path) -> DatasetInfo {
    let text = fs::read_to_string(folder.join("dataset_info.json")).unwrap();
    DatasetInfo::from_json(&text).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    folder_digest(folder).into_keys().collect()
}

#[test]
fn a_built_in_dataset_is_the_tfds_folder_that_it_is_already() {
    let home = Home::new();
    home.prep.build("cifar10", &["--shards", "3"]).expect(0);
    let planned = home
        .export("cifar10", "out", &["--tfds", "--dry-run"])
        .expect(0)
        .stdout;
    assert!(
        planned.contains("would be exported") && planned.contains("as they are"),
        "{planned}"
    );
    assert!(!home.path("out").exists());
    let outcome = home
        .export("cifar10", "out", &["--tfds", "--json"])
        .expect(0)
        .json()
        .pop()
        .unwrap();
    let (built, made) = (
        home.prep.catalog().join("data/cifar10/3.0.2"),
        home.path("out/cifar10/3.0.2"),
    );
    assert_eq!(
        (outcome["status"].as_str(), outcome["linked"].as_u64()),
        (Some("exported"), Some(6))
    );
    assert_eq!(outcome["path"], made.to_str().unwrap());
    assert_eq!(outcome["splits"]["train"]["shards"], 3);
    // The same files with the same bytes, but for what says who made them, and what TFDS does not have.
    let (mut there, mut here) = (folder_digest(&built), folder_digest(&made));
    assert!(there.remove("prep_manifest.json").is_some() && here.remove("prep_export.json").is_some());
    assert!(there.remove("prep_statistics.json").is_some());
    assert_eq!(here, there);
    let shard = "cifar10-train.array_record-00001-of-00003";
    let number = |folder: &Path| fs::metadata(folder.join(shard)).unwrap().ino();
    assert_eq!(number(&built), number(&made));
    assert!(!home.path("out/.staging").exists());
    // Again: nothing is done.
    let again = home.export("cifar10", "out", &["--tfds"]).expect(0).stdout;
    assert!(again.contains("is up to date"), "{again}");
    // Copies have the same bytes, and are files of their own.
    home.export("cifar10", "copied", &["--tfds", "--copy"]).expect(0);
    assert_same_folder(&made, home.path("copied/cifar10/3.0.2"));
    assert_ne!(number(&built), number(&home.path("copied/cifar10/3.0.2")));
    // A second version, and another dataset, go beside the first.
    home.prep.build("mnist", &[]).expect(0);
    home.export("mnist", "out", &["--tfds"]).expect(0);
    assert!(home.path("out/mnist/3.0.1/features.json").exists() && made.exists());
}

#[test]
fn shards_by_source_and_shared_ones_get_tfds_names() {
    let home = Home::new();
    for (file, count) in [("a", 3), ("b", 0), ("c", 4)] {
        let rows: String = (0..count)
            .map(|id| format!("{{\"id\": {id}, \"text\": \"{file}{id}\"}}\n"))
            .collect();
        fs::write(home.path(&format!("{file}.jsonl")), rows).unwrap();
    }
    home.register(
        "mine",
        "[[sources]]\npath = \"*.jsonl\"\n[reader]\nkind = \"jsonl\"\n",
    );
    // A version that has all shards from the first.
    let catalog = Catalog::open(&Location::from_path(home.prep.catalog())).unwrap();
    let first = catalog.resolve(&DatasetName::parse("mine").unwrap()).unwrap();
    let mut manifest = first.manifest.clone();
    "1.1.0".clone_into(&mut manifest.version);
    for shard in &mut manifest.splits[0].shards {
        shard.path = format!("../1.0.0/{}", shard.path);
    }
    let folder = home.prep.catalog().join("data/mine/1.1.0");
    fs::create_dir(&folder).unwrap();
    for name in ["features.json", "dataset_info.json"] {
        fs::copy(
            home.prep.catalog().join("data/mine/1.0.0").join(name),
            folder.join(name),
        )
        .unwrap();
    }
    let at = Location::from_path(&folder);
    manifest.write(&at).unwrap();
    catalog.commit_build(&Build::new(&manifest, at)).unwrap();
    for version in ["1.0.0", "1.1.0"] {
        let name = format!("mine:{version}");
        home.export(&name, "out", &["--tfds"]).expect(0);
        let made = home.path(&format!("out/mine/{version}"));
        let wanted = [
            "dataset_info.json",
            "features.json",
            "mine-train.array_record-00000-of-00002",
            "mine-train.array_record-00001-of-00002",
            "prep_export.json",
        ];
        assert_eq!(names(&made), wanted);
        let info = info(&made);
        assert_eq!(
            (info.version.as_str(), &info.splits[0].shard_lengths),
            (version, &vec![3, 4])
        );
        assert_eq!(
            home.rows(made.to_str().unwrap(), "train"),
            home.rows(&name, "train")
        );
    }
}

/// A folder that TFDS has written, with a feature of each kind: three examples in a TFRecord file.
fn tfds_folder(home: &Home) -> String {
    let golden = golden_path("features/kitchen_sink");
    let source = home.path("source");
    fs::create_dir(&source).unwrap();
    for entry in fs::read_dir(&golden).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, source.join(path.file_name().unwrap())).unwrap();
    }
    let mut described = info(&source);
    "tfrecord".clone_into(&mut described.file_format);
    described.splits.remove(0);
    described.splits[0].shard_lengths = vec![3];
    fs::write(source.join("dataset_info.json"), described.to_json()).unwrap();
    let shard = described.splits[0].shard_name(&described.name, "tfrecord", 0);
    fs::rename(source.join("records.tfrecord"), source.join(shard)).unwrap();
    home.text("source")
}

/// The same as a dataset in the catalog, converted, in two shards.
fn kitchen_sink(home: &Home, more: &[&str]) -> String {
    let (from, to) = (tfds_folder(home), home.text("converted"));
    let catalog = home.prep.catalog();
    let words = [
        "convert",
        &from,
        &to,
        "--shards",
        "2",
        "--catalog",
        catalog.to_str().unwrap(),
    ];
    home.prep.run(words.iter().chain(more)).expect(0);
    "kitchen_sink/full:1.2.3".to_owned()
}

#[test]
fn every_kind_of_feature_goes_through_every_kind_of_file() {
    let home = Home::new();
    let name = kitchen_sink(&home, &[]);
    let wanted = home.rows(&name, "validation_other");
    assert_eq!(wanted.len(), 3);
    for (more, format, shards) in [
        (&[][..], "array_record", vec![2, 1]),
        (&["--file-format", "tfrecord"], "tfrecord", vec![2, 1]),
        (&["--shards", "3"], "array_record", vec![1, 1, 1]),
        (
            &["--shards", "1", "--file-format", "tfrecord"],
            "tfrecord",
            vec![3],
        ),
    ] {
        home.export(&name, "out", &[more, &["--tfds", "--overwrite"]].concat())
            .expect(0);
        let made = home.path("out/kitchen_sink/full/1.2.3");
        let info = info(&made);
        assert_eq!(
            (info.file_format.as_str(), &info.splits[0].shard_lengths),
            (format, &shards)
        );
        assert_eq!(info.config_name.as_deref(), Some("full"));
        assert_eq!(
            home.rows(made.to_str().unwrap(), "validation_other"),
            wanted,
            "{more:?}"
        );
        for file in ["features.json", "nested-x-z.labels.txt"] {
            let golden = golden_path("features/kitchen_sink").join(file);
            assert_eq!(
                fs::read(made.join(file)).unwrap(),
                fs::read(golden).unwrap(),
                "{file}"
            );
        }
    }
    home.export(&name, "table", &["--parquet"]).expect(0);
    assert_eq!(
        names(&home.path("table")),
        ["data/validation_other-00000-of-00001.parquet", "prep_export.json"]
    );
}

#[test]
fn files_in_place_are_copied_as_they_are_and_read_for_other_formats() {
    let home = Home::new();
    let source = tfds_folder(&home);
    let recipe = home.path("sink.toml");
    let text = "format = 1\nname = \"sink\"\n[[sources]]\npath = \"source\"\n[reader]\nkind = \"tfds\"\n";
    fs::write(&recipe, text).unwrap();
    home.prep
        .run(["register", recipe.to_str().unwrap(), "--in-place"])
        .expect(0);
    let wanted = home.rows(&source, "validation_other");
    assert_eq!(home.rows("sink", "validation_other"), wanted);
    for (more, format) in [
        (&[][..], "tfrecord"),
        (&["--file-format", "array_record"], "array_record"),
        (&["--shards", "2"], "tfrecord"),
    ] {
        home.export("sink", "out", &[more, &["--tfds", "--overwrite"]].concat())
            .expect(0);
        let made = home.path("out/sink/1.0.0");
        assert_eq!(info(&made).file_format, format);
        assert_eq!(
            home.rows(made.to_str().unwrap(), "validation_other"),
            wanted,
            "{more:?}"
        );
        if more.is_empty() {
            // The user may change his file, and not the export with it.
            let (there, here) = (
                PathBuf::from(&source).join("kitchen_sink-validation_other.tfrecord-00000-of-00001"),
                made.join("sink-validation_other.tfrecord-00000-of-00001"),
            );
            assert_eq!(fs::read(&there).unwrap(), fs::read(&here).unwrap());
            assert_ne!(
                fs::metadata(&there).unwrap().ino(),
                fs::metadata(&here).unwrap().ino()
            );
        }
    }
    home.export("sink", "table", &["--parquet"]).expect(0);
}

#[test]
fn parquet_there_and_back_gives_the_same_dataset() {
    for file in ["types.parquet", "pictures.parquet"] {
        let home = Home::new();
        fs::copy(golden_path("rows").join(file), home.path(file)).unwrap();
        let recipe = |path: &str| format!("[[sources]]\npath = \"{path}\"\n[reader]\nkind = \"parquet\"\n");
        // Of the types, one row has no words.
        let empty = if file == "types.parquet" {
            "missing_as_empty = [\"words\"]\n"
        } else {
            ""
        };
        let first = home.register("first", &format!("{empty}{}", recipe(file)));
        let run = home
            .export("first", "out", &["--parquet", "--shards", "2"])
            .expect(0);
        // Bytes show as such in the values only.
        assert_eq!(
            run.stderr.contains("`bytes` has values that are not UTF-8"),
            file == "types.parquet"
        );
        let again = home.register("again", &recipe("out/data/train-*.parquet"));
        if file == "types.parquet" {
            assert_eq!(home.rows("again", "train"), home.rows("first", "train"));
        }
        let features =
            |name: &str| home.prep.run(["show", name, "--json"]).expect(0).json()[0]["features"].clone();
        assert_eq!(features("again"), features("first"));
        assert_eq!(again["fingerprint"], first["fingerprint"], "{file}");
    }
}

#[test]
fn parts_of_splits_are_exported_under_their_names() {
    let home = Home::new();
    home.prep.build("cifar10", &[]).expect(0);
    let all = home.rows("cifar10", "train");
    let more = ["--split", "train[10:25]", "--split", "test"];
    home.export("cifar10", "out", &[&more[..], &["--tfds"]].concat())
        .expect(0);
    let made = home.path("out/cifar10/3.0.2");
    assert_eq!(home.rows(made.to_str().unwrap(), "train"), all[10..25]);
    let described = info(&made);
    let lengths: BTreeMap<&str, u64> = described
        .splits
        .iter()
        .map(|split| (split.name.as_str(), split.shard_lengths.iter().sum()))
        .collect();
    assert_eq!(lengths["train"], 15);
    assert!(
        described.splits[0].num_bytes
            < info(&home.prep.catalog().join("data/cifar10/3.0.2")).splits[0].num_bytes
    );
    home.export(
        "cifar10",
        "table",
        &["--parquet", "--split", "train[10:25]", "--shards", "4"],
    )
    .expect(0);
    home.register("part", "[[sources]]\npath = \"table/data/*.parquet\"\n[reader]\nkind = \"parquet\"\n[features.image]\nkind = \"image\"\nshape = [32, 32, 3]\n");
    assert_eq!(home.rows("part", "train"), all[10..25]);
    for (split, said) in [("tain", "no split `tain`"), ("train+train[:3]", "twice")] {
        let told = home
            .export("cifar10", "no", &["--tfds", "--split", split])
            .expect(2)
            .stderr;
        assert!(told.contains(said), "{split}: {told}");
    }
    let told = home
        .export("cifar10", "no", &["--parquet", "--shards", "100000"])
        .expect(2)
        .stderr;
    assert!(told.contains("`--shards`"), "{told}");
    let told = home
        .export("cifar10", "no", &["--parquet", "--shards", "90000"])
        .expect(1)
        .stderr;
    assert!(
        told.contains("split `train`") && told.contains("fewer `--shards`"),
        "{told}"
    );
    assert!(!home.path("no").exists() && !home.path(".staging").exists());
}

#[test]
fn what_is_in_the_place_of_an_export_is_replaced_only_if_prep_made_it() {
    let home = Home::new();
    home.prep.build("mnist", &[]).expect(0);
    fs::create_dir(home.path("out")).unwrap();
    home.export("mnist", "out", &["--parquet"]).expect(0);
    let before = folder_digest(home.path("out"));
    let refused = home
        .export("mnist", "out", &["--parquet", "--shards", "2"])
        .expect(1)
        .stderr;
    assert!(
        refused.contains("with other options") && refused.contains("--overwrite"),
        "{refused}"
    );
    // Another build of the version is another dataset.
    home.prep
        .build("mnist", &["--shards", "2", "--overwrite"])
        .expect(0);
    let refused = home.export("mnist", "out", &["--parquet"]).expect(1).stderr;
    assert!(refused.contains("earlier build"), "{refused}");
    assert_eq!(folder_digest(home.path("out")), before);
    home.export("mnist", "out", &["--parquet", "--shards", "2", "--overwrite"])
        .expect(0);
    assert!(home.path("out/data/train-00001-of-00002.parquet").exists());
    // A file that was cut is not up to date.
    let cut = fs::File::options()
        .write(true)
        .open(home.path("out/data/train-00001-of-00002.parquet"))
        .unwrap();
    cut.set_len(10).unwrap();
    let refused = home
        .export("mnist", "out", &["--parquet", "--shards", "2"])
        .expect(1)
        .stderr;
    assert!(refused.contains("is damaged"), "{refused}");
    home.export("mnist", "out", &["--parquet", "--shards", "2", "--overwrite"])
        .expect(0);
    // Somebody else's.
    fs::create_dir_all(home.path("mine")).unwrap();
    fs::write(home.path("mine/thesis.tex"), "x").unwrap();
    let told = home
        .export("mnist", "mine", &["--parquet", "--overwrite"])
        .expect(1)
        .stderr;
    assert!(told.contains("it has `thesis.tex`"), "{told}");
    // A TFDS folder goes beside it, not in its place.
    home.export("mnist", "mine", &["--tfds"]).expect(0);
    assert_eq!(fs::read_to_string(home.path("mine/thesis.tex")).unwrap(), "x");
    // Nor is the dataset itself, by an export of it or of another one.
    let data = home.prep.catalog().join("data");
    let before = folder_digest(&data);
    let within = data.join("mnist/3.0.1/export");
    for (output, form) in [
        (&data, "--tfds"),
        (&data.join("mnist/3.0.1"), "--parquet"),
        (&within, "--parquet"),
    ] {
        let words = ["export", "mnist", output.to_str().unwrap(), form, "--overwrite"];
        let told = home.prep.run(words).expect(1).stderr;
        assert!(told.contains("lies in the dataset's own folder"), "{told}");
    }
    home.prep.build("fashion_mnist", &[]).expect(0);
    let other = data.join("fashion_mnist/3.0.1");
    let words = [
        "export",
        "mnist",
        other.to_str().unwrap(),
        "--parquet",
        "--overwrite",
    ];
    let told = home.prep.run(words).expect(1).stderr;
    assert!(told.contains("was not made by `prep export`"), "{told}");
    fs::remove_dir_all(data.join("fashion_mnist")).unwrap();
    assert_eq!(folder_digest(&data), before);
    let told = home.export("nothing", "x", &["--tfds"]).expect(1).stderr;
    assert!(told.contains("no dataset `nothing`"), "{told}");
}

#[test]
fn workers_and_memory_change_no_byte_and_damage_is_named() {
    let home = Home::new();
    home.prep.build("cifar10", &["--shards", "2"]).expect(0);
    for (form, more) in [
        ("--parquet", &["--shards", "5"][..]),
        ("--tfds", &["--shards", "5", "--file-format", "tfrecord"]),
    ] {
        let made = |workers: &str, memory: &str| {
            let output = format!("{form}-{workers}");
            let words = [&["--workers", workers, "--memory", memory, form][..], more].concat();
            home.export("cifar10", &output, &words).expect(0);
            home.path(&output)
        };
        assert_same_folder(made("1", "16M"), made("3", "4G"));
    }
    let shard = home
        .prep
        .catalog()
        .join("data/cifar10/3.0.2/cifar10-train.array_record-00001-of-00002");
    let whole = fs::read(&shard).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 0xff;
    fs::write(&shard, damaged).unwrap();
    for more in [
        &["--parquet"][..],
        &["--tfds", "--shards", "1"],
        &["--tfds", "--copy"],
    ] {
        let told = home.export("cifar10", "no", more).expect(1).stderr;
        assert!(
            told.contains("cifar10-train.array_record-00001-of-00002"),
            "{told}"
        );
        assert!(!home.path("no/data").exists() && !home.path("no/cifar10").exists());
    }
    fs::write(&shard, &whole[..whole.len() - 1]).unwrap();
    let told = home.export("cifar10", "no", &["--tfds"]).expect(1).stderr;
    assert!(
        told.contains("the manifest says") && told.contains("prep verify"),
        "{told}"
    );
}

#[test]
fn killed_exports_leave_nothing_visible_and_are_finished_by_the_same_command() {
    let home = Home::new();
    let rows: String = (0..20_000)
        .map(|id| format!("{{\"id\": {id}, \"text\": \"{}\"}}\n", "word ".repeat(id % 50)))
        .collect();
    fs::write(home.path("a.jsonl"), rows).unwrap();
    home.register(
        "mine",
        "[[sources]]\npath = \"*.jsonl\"\n[reader]\nkind = \"jsonl\"\n",
    );
    for (form, place) in [("--parquet", "data"), ("--tfds", "mine")] {
        let words = [form, "--shards", "12"];
        let started = Instant::now();
        home.export("mine", "whole", &words).expect(0);
        let took = started.elapsed();
        let mut noise = Noise(7);
        let output = home.text("killed");
        for round in 0..10 {
            let workers = (round % 3 + 1).to_string();
            let words = [
                "export",
                "mine",
                &output,
                form,
                "--shards",
                "12",
                "--workers",
                &workers,
            ];
            let pause = Duration::from_micros(noise.below(took.as_micros() as u64));
            kill_after(home.prep.command(words), pause);
            if home.path("killed").join(place).exists() {
                assert_same_folder(home.path("whole").join(place), home.path("killed").join(place));
            }
        }
        home.export("mine", "killed", &words).expect(0);
        assert_same_folder(home.path("whole"), home.path("killed"));
        assert!(!home.path(".staging").exists());
        for name in ["whole", "killed"] {
            fs::remove_dir_all(home.path(name)).unwrap();
        }
    }
}

#[test]
fn an_interrupted_export_says_how_to_go_on_and_does() {
    let home = Home::new();
    let rows: String = (0..4000).map(|id| format!("{{\"id\": {id}}}\n")).collect();
    fs::write(home.path("a.jsonl"), rows).unwrap();
    home.register(
        "mine",
        "[[sources]]\npath = \"a.jsonl\"\n[reader]\nkind = \"jsonl\"\n",
    );
    for (form, place) in [("--parquet", "data"), ("--tfds", "mine")] {
        let words = [form, "--shards", "4"];
        home.export("mine", "whole", &words).expect(0);
        let (output, sign) = (home.text("stopped"), home.path("held"));
        let words = ["export", "mine", &output, form, "--shards", "4", "--workers", "1"];
        let mut command = home.prep.command(words);
        // In the third file; two are done.
        command.env("PREP_TEST_FAULT", format!("hold@export:2500:{}", sign.display()));
        let export = Process::start(command);
        wait_for(|| sign.exists(), || export.stderr());
        export.signal("-INT");
        // Its switch is looked at twenty times a second; else it would be done before.
        std::thread::sleep(Duration::from_millis(500));
        fs::remove_file(&sign).unwrap();
        let (code, _, said) = export.end();
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains("as asked\nhint: the same command goes on from here"),
            "{said}"
        );
        assert!(!home.path("stopped").join(place).exists());
        let run = home.prep.run(words.into_iter().chain(["--json"])).expect(0);
        assert_eq!(run.json().pop().unwrap()["shards_found"], 2);
        assert_same_folder(home.path("whole"), &output);
        for name in ["whole", "stopped"] {
            fs::remove_dir_all(home.path(name)).unwrap();
        }
    }
}

#[test]
fn an_export_is_traced_as_other_jobs_are() {
    let home = Home::new();
    home.prep.build("mnist", &[]).expect(0);
    let trace = home.text("trace.json");
    home.export("mnist", "out", &["--tfds", "--shards", "2", "--trace", &trace])
        .expect(0);
    let text = fs::read_to_string(&trace).unwrap();
    let events: Value = serde_json::from_str(&text).unwrap();
    let events = events.as_array().or(events["traceEvents"].as_array()).unwrap();
    let is_span = |event: &&Value| {
        event["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("export mnist-train"))
    };
    assert!(events.iter().filter(is_span).count() >= 2, "{text}");
}

#[test]
fn splits_without_examples_are_exported_too() {
    let home = Home::new();
    let name = kitchen_sink(&home, &["--filter", "label > 100"]);
    home.export(&name, "tfds", &["--tfds"]).expect(0);
    let made = home.path("tfds/kitchen_sink/full/1.2.3");
    assert_eq!(info(&made).splits[0].shard_lengths, [0]);
    assert!(home.rows(made.to_str().unwrap(), "validation_other").is_empty());
    home.export(&name, "table", &["--parquet"]).expect(0);
    assert!(
        home.path("table/data/validation_other-00000-of-00001.parquet")
            .exists()
    );
}

#[test]
fn memory_follows_the_budget() {
    let home = Home::new();
    let recipe = large_source(home.folder.path(), 256, 2000, Some(Noise(5)));
    let words = [
        "build",
        recipe.to_str().unwrap(),
        "--from",
        home.folder.path().to_str().unwrap(),
    ];
    home.prep.run(words.iter().chain(&["--no-checksum"])).expect(0);
    for form in ["--parquet", "--tfds"] {
        let output = home.text(form);
        // 131 MB of pictures in one file: written anew, also of the TFDS folder.
        let words = [
            "export", "large", &output, form, "--memory", "64M", "--shards", "1", "-q",
        ];
        let peak = peak_mib(home.prep.command(words));
        assert!(peak < 150, "{form}: {peak} MiB");
    }
}
