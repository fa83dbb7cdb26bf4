//! Statistics of registered and built datasets, as users see them; and a folder of very many files.

use std::fs;
use std::path::PathBuf;

use prep_testing::process::peak_mib;
use prep_testing::{Prep, Run, assert_same_folder, source_folder};
use serde_json::{Value, json};

/// A home with rows of JSON in two splits.
struct Home {
    prep: Prep,
}

const RECIPE: &str = r#"format = 1
name = "mine"
[[sources]]
path = "rows/**/*.jsonl"
[reader]
kind = "jsonl"
[[splits]]
name = "train"
files = ["rows/train/*"]
[[splits]]
name = "test"
files = ["rows/test.jsonl"]
"#;

impl Home {
    fn new(recipe: &str) -> Self {
        let home = Self { prep: Prep::new() };
        home.put("mine.toml", recipe);
        home
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.prep.home().join(relative)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn register(&self, more: &[&str]) -> Run {
        let recipe = self.path("mine.toml");
        let words = ["register", recipe.to_str().unwrap(), "-q"];
        self.prep.run(words.iter().chain(more))
    }

    fn statistics(&self) -> Value {
        let shown = self
            .prep
            .run(["show", "mine", "--json"])
            .expect(0)
            .json()
            .remove(0);
        shown["statistics"].clone()
    }

    fn folder(&self) -> PathBuf {
        self.prep.catalog().join("data/mine/1.0.0")
    }
}

fn rows() -> Home {
    let home = Home::new(RECIPE);
    home.put(
        "rows/train/a.jsonl",
        "{\"id\": 1, \"score\": 0.5, \"words\": [\"x\", \"yy\"], \"note\": null}\n\
         {\"id\": 2, \"score\": -0.0, \"words\": [], \"note\": \"\"}\n\
         {\"id\": 2, \"score\": 0.0, \"words\": [], \"note\": \"\"}\n",
    );
    home.put(
        "rows/train/b.jsonl",
        "{\"id\": 1, \"score\": 0.5, \"words\": [\"x\", \"yy\"], \"note\": null}\n",
    );
    home.put(
        "rows/test.jsonl",
        "{\"id\": 1, \"score\": 0.5, \"words\": [\"x\", \"yy\"], \"note\": null}\n\
         {\"id\": 9, \"score\": 4.0, \"words\": [\"\"], \"note\": \"caf\u{e9}\"}\n",
    );
    home
}

#[test]
fn a_registered_dataset_has_statistics_and_says_what_comes_twice() {
    let home = rows();
    home.register(&["--workers", "1"]).expect(0);
    let statistics = home.statistics();
    assert_eq!(statistics["examples"], 6);
    let train = &statistics["splits"]["train"];
    assert_eq!(train["examples"], 4);
    let column = |name: &str| &train["features"][name];
    assert_eq!(column("id")["distinct"], 2);
    assert_eq!(
        (&column("id")["min"], &column("id")["max"], &column("id")["mean"]),
        (&json!(1), &json!(2), &json!(1.5))
    );
    assert_eq!(
        (&column("score")["distinct"], &column("score")["mean"]),
        (&json!(2), &json!(0.25))
    );
    assert_eq!(
        (&column("note")["missing"], &column("note")["examples"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(column("note")["bytes"]["max"], 0);
    let words = column("words");
    assert_eq!(
        (&words["values"], &words["lengths"]["min"], &words["bytes"]["max"]),
        (&json!(4), &json!(0), &json!(2))
    );
    assert_eq!(
        statistics["splits"]["test"]["features"]["note"]["bytes"]["max"],
        5
    );
    // The row of `b.jsonl` is in `a.jsonl`, and in the other split; minus zero is another record than zero.
    assert_eq!(
        statistics["duplicates"],
        json!({"within": {"train": 1, "test": 0}, "across": [{"splits": ["train", "test"], "examples": 1}]})
    );
    let text = home.prep.run(["show", "mine"]).expect(0).stdout;
    for part in [
        "statistics of `train`\n",
        "  words       4        0         2  1 to 2 (mean 1.5) bytes; 0 to 2 (mean 1) elements\n",
        "duplicates   1 examples of `train` are there already\n",
        "duplicates   1 examples are in `train` and in `test`\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The same bytes by more workers, and in the layout of TFDS the same statistics.
    for workers in ["2", "3"] {
        let other = rows();
        other.register(&["--workers", workers]).expect(0);
        assert_same_folder(home.folder(), other.folder());
    }
    let other = rows();
    other.put("mine.toml", &format!("layout = \"tfds\"\n{RECIPE}"));
    other.register(&[]).expect(0);
    assert_eq!(other.statistics()["splits"], statistics["splits"]);
    assert_eq!(other.statistics()["duplicates"], statistics["duplicates"]);
    assert!(!other.folder().join("prep_statistics.bin").exists());
}

#[test]
fn statistics_are_vouched_for_and_left_out_when_asked() {
    let home = rows();
    home.register(&["--no-statistics"]).expect(0);
    assert!(home.statistics().get("splits").is_none());
    let text = home.prep.run(["show", "mine"]).expect(0).stdout;
    assert!(
        text.contains("statistics   none") && text.contains("`prep register` count them"),
        "{text}"
    );
    // That is another output: asked for with, it is refused.
    let refused = home.register(&[]).expect(1);
    assert!(
        refused.stderr.contains("other output options"),
        "{}",
        refused.stderr
    );
    home.register(&["--no-statistics"]).expect(0);
    home.register(&["--overwrite"]).expect(0);
    assert_eq!(home.statistics()["splits"]["train"]["examples"], 4);
    home.prep.run(["verify", "mine"]).expect(0);
    for name in ["prep_statistics.json", "prep_statistics.bin"] {
        let path = home.folder().join(name);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        bytes[20] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let damaged = home.prep.run(["verify", "mine"]).expect(1);
        assert!(damaged.stdout.contains(name), "{}", damaged.stdout);
        fs::write(&path, &bytes[1..]).unwrap();
        home.prep.run(["verify", "mine", "--quick"]).expect(1);
        fs::remove_file(&path).unwrap();
        let absent = home.prep.run(["verify", "mine", "--json"]).expect(1).stdout;
        assert!(absent.contains("absent"), "{absent}");
        fs::write(&path, whole).unwrap();
    }
    let path = home.folder().join("prep_statistics.json");
    fs::write(&path, "{}").unwrap();
    let refused = home.prep.run(["show", "mine", "--json"]).expect(1);
    assert!(refused.stderr.contains("prep verify"), "{}", refused.stderr);
    // All files of a removed version are garbage, these too.
    home.prep.run(["rm", "mine:1.0.0"]).expect(0);
    home.prep.run(["gc", "--older-than", "0s", "--delete"]).expect(0);
    assert!(!home.folder().exists());
}

#[test]
fn pictures_and_labels_are_counted_by_size_and_name() {
    let prep = Prep::new();
    let from = source_folder("cifar10");
    let words = [
        "build",
        "cifar10",
        "--from",
        from.to_str().unwrap(),
        "--no-checksum",
        "-q",
    ];
    prep.run(words).expect(0);
    let shown = prep.run(["show", "cifar10", "--json"]).expect(0).json().remove(0);
    let statistics = &shown["statistics"];
    for split in ["train", "test"] {
        let examples = &shown["splits"][split]["examples"];
        let column = &statistics["splits"][split]["features"];
        let sizes = &column["image"]["sizes"];
        assert_eq!(sizes["channels"], json!({"3": examples}));
        assert_eq!(sizes["formats"], json!({"png": examples}));
        assert_eq!(
            (&sizes["width"]["min"], &sizes["height"]["max"]),
            (&json!(32), &json!(32))
        );
        let labels = column["label"]["labels"].as_object().unwrap();
        let sum: u64 = labels.values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(json!(sum), *examples);
        assert!(
            labels.keys().all(|name| name.parse::<u64>().is_err()),
            "{labels:?}"
        );
    }
}

#[test]
fn files_in_place_have_the_statistics_of_shards_that_are_built() {
    let home = rows();
    home.register(&[]).expect(0);
    let wanted = home.statistics();
    // The shards that were built, as somebody's files.
    for (split, folder) in [("train", "place/train"), ("test", "place/test")] {
        fs::create_dir_all(home.path(folder)).unwrap();
        for entry in fs::read_dir(home.folder()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with(&format!("mine-{split}")) {
                let name = format!("{}.array_record", &name[..name.find(".array_record").unwrap()]);
                fs::copy(&path, home.path(folder).join(name)).unwrap();
            }
        }
    }
    let splits = "[[splits]]\nname = \"train\"\nfiles = [\"place/train/*\"]\n[[splits]]\nname = \"test\"\nfiles = [\"place/test/*\"]\n";
    let source = "[[sources]]\npath = \"place/**/*.array_record\"\n[reader]\nkind = \"array_record\"\n";
    home.put(
        "mine.toml",
        &format!("format = 1\nname = \"mine\"\nversion = \"2.0.0\"\n{source}{splits}"),
    );
    home.register(&["--in-place"]).expect(0);
    let found = home.statistics();
    assert_eq!(found["duplicates"], wanted["duplicates"]);
    for split in ["train", "test"] {
        for feature in ["id", "score", "note"] {
            let of = |statistics: &Value| statistics["splits"][split]["features"][feature].clone();
            assert_eq!(
                of(&found)["distinct"],
                of(&wanted)["distinct"],
                "{split}, {feature}"
            );
            assert_eq!(of(&found)["values"], of(&wanted)["values"], "{split}, {feature}");
        }
    }
    home.prep.run(["verify", "mine"]).expect(0);
}

/// Registers a folder of so many files and links within a budget.
fn many_files(folders: usize, files: usize, budget: &str, most_mib: u64) {
    let home = Home::new(
        "format = 1\nname = \"mine\"\n[[sources]]\npath = \"data\"\n[reader]\nkind = \"text_files\"\n",
    );
    for folder in 0..folders {
        let folder = home.path(&format!("data/{folder:04}"));
        fs::create_dir_all(&folder).unwrap();
        let first = folder.join("00000.txt");
        fs::write(&first, format!("a small file of {}", folder.display())).unwrap();
        for file in 1..files {
            fs::hard_link(&first, folder.join(format!("{file:05}.txt"))).unwrap();
        }
    }
    let recipe = home.path("mine.toml");
    let words = [
        "register",
        recipe.to_str().unwrap(),
        "--memory",
        budget,
        "--workers",
        "2",
        "-q",
    ];
    let peak = peak_mib(home.prep.command(words));
    assert!(peak < most_mib, "{peak} MiB of {budget}");
    let statistics = home.statistics();
    let text = &statistics["splits"]["train"]["features"];
    assert_eq!(statistics["examples"], folders * files);
    assert_eq!(text["path"]["bytes"]["max"], "data/0000/00000.txt".len());
    // Paths differ, so nothing comes twice.
    assert_eq!(statistics["duplicates"]["within"]["train"], 0);
}

#[test]
fn many_small_files_are_registered_within_the_budget() {
    many_files(20, 1000, "32M", 140);
}

#[test]
#[ignore = "a million files: for `make soak`"]
fn a_million_small_files_are_registered_within_the_budget() {
    many_files(1000, 1000, "128M", 256);
}
