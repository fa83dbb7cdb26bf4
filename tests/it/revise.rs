//! `prep append` and `prep update`: new versions that take over what they need not build.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use prep_testing::archive::tar;
use prep_testing::{Noise, assert_same_folder, golden_path, png, temp_dir};
use serde_json::Value;

use crate::home::{Home, number, rows};

fn samples(keys: std::ops::Range<u32>, text: &str) -> Vec<u8> {
    let members: Vec<(String, Vec<u8>)> = keys
        .flat_map(|key| {
            let text = format!("{text} {key}").into_bytes();
            [
                (format!("{key:04}.cls"), (key % 3).to_string().into_bytes()),
                (format!("{key:04}.txt"), text),
            ]
        })
        .collect();
    tar(&members)
}

/// Files of a dataset in four states: at first; changed; with one more, one less and one renamed; and with other types.
fn states(reader: &str) -> [Vec<(String, Vec<u8>)>; 4] {
    let csv = |range: std::ops::Range<u32>, label: &str| {
        let rows = range.map(|row| format!("{row},{label}{}\n", row % 2));
        format!("id,label\n{}", rows.collect::<String>()).into_bytes()
    };
    let parquet = |name: &str| fs::read(golden_path(Path::new("rows").join(name))).unwrap();
    let named = |files: &[(&str, Vec<u8>)]| -> Vec<(String, Vec<u8>)> {
        let named = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.clone()));
        named.collect()
    };
    // Three files, what becomes of the second, and one that comes.
    let of_three = |ending: &str, [one, two, three, changed, added]: [Vec<u8>; 5], others: &[Vec<u8>]| {
        let files = |names: &[&str], contents: &[&Vec<u8>]| -> Vec<(String, Vec<u8>)> {
            let names = names.iter().map(|name| format!("{name}.{ending}"));
            names
                .zip(contents.iter().map(|content| (*content).clone()))
                .collect()
        };
        let last: Vec<&Vec<u8>> = std::iter::once(&one).chain(others).collect();
        [
            files(&["a", "b/b", "c"], &[&one, &two, &three]),
            files(&["a", "b/b", "c"], &[&one, &changed, &three]),
            files(&["a", "0", "d"], &[&one, &added, &three]),
            files(&["a", "0"], &last),
        ]
    };
    match reader {
        "jsonl" => {
            let [one, two, three] = [0..40, 40..80, 80..90].map(|range| rows(range, "x").into_bytes());
            let [changed, added] = [rows(40..70, "y"), rows(90..99, "z")].map(String::into_bytes);
            // A text becomes one that may be missing.
            let null = b"{\"id\": 7, \"text\": null}\n".to_vec();
            of_three(reader, [one, two, three, changed, added], &[null])
        }
        "csv" => {
            let files = [0..20, 20..40, 40..45, 20..50, 90..99].map(|range| csv(range, "k"));
            // A class more.
            of_three(reader, files, &[csv(90..99, "other")])
        }
        "parquet" => {
            let (one, two) = (parquet("types.parquet"), parquet("types_snappy.parquet"));
            of_three(reader, [&one, &one, &two, &two, &two].map(Vec::clone), &[])
        }
        "webdataset" => {
            let files = [
                (0..30, "x"),
                (30..60, "x"),
                (60..70, "x"),
                (30..50, "y"),
                (90..99, "z"),
            ];
            of_three("tar", files.map(|(keys, text)| samples(keys, text)), &[])
        }
        "image_folder" => {
            let metadata = |names: &[&str]| {
                let rows = names.iter().map(|name| format!("{name},caption of {name}\n"));
                format!("file_name,caption\n{}", rows.collect::<String>()).into_bytes()
            };
            [
                named(&[
                    ("a/1.png", png(1)),
                    ("a/2.png", png(2)),
                    ("b/3.png", png(3)),
                    ("metadata.csv", metadata(&["a/1.png", "a/2.png", "b/3.png"])),
                ]),
                named(&[
                    ("a/1.png", png(1)),
                    ("a/2.png", png(20)),
                    ("b/3.png", png(3)),
                    ("metadata.csv", metadata(&["a/1.png", "a/2.png", "b/3.png"])),
                ]),
                named(&[
                    ("a/1.png", png(1)),
                    ("b/4.png", png(20)),
                    ("b/3.png", png(3)),
                    ("metadata.csv", metadata(&["a/1.png", "b/3.png", "b/4.png"])),
                ]),
                // Classes in place of metadata.
                named(&[("a/1.png", png(1)), ("b/4.png", png(20)), ("b/3.png", png(3))]),
            ]
        }
        "text_files" => {
            let text = |text: &str| text.as_bytes().to_vec();
            [
                named(&[
                    ("a.txt", text("one")),
                    ("b.txt", text("two")),
                    ("c/c.txt", text("three")),
                ]),
                named(&[
                    ("a.txt", text("one")),
                    ("b.txt", text("other")),
                    ("c/c.txt", text("three")),
                ]),
                named(&[
                    ("a.txt", text("one")),
                    ("b.txt", text("two")),
                    ("c/d.txt", text("three")),
                ]),
                named(&[("a.txt", text("one"))]),
            ]
        }
        other => panic!("{other}"),
    }
}

/// Sets of two pictures or texts on average, so that there are several; a class label of what CSV has.
fn home_of(reader: &str) -> Home {
    let group = match reader {
        "image_folder" | "text_files" => "group = 2\n",
        _ => "",
    };
    let features = match reader {
        "csv" => "[features.label]\nkind = \"class_label\"\n",
        "parquet" => "[features.kind]\nkind = \"class_label\"\n",
        _ => "",
    };
    // Of the types, one row has no words.
    let empty = match reader {
        "parquet" => "missing_as_empty = [\"words\"]\n",
        _ => "",
    };
    Home::of(format!(
        "format = 1\nname = \"mine\"\n{empty}[[sources]]\npath = \"data\"\n{group}[reader]\nkind = \"{reader}\"\n{features}"
    ))
}

#[test]
fn an_update_is_byte_for_byte_a_full_build() {
    for reader in [
        "jsonl",
        "csv",
        "parquet",
        "image_folder",
        "text_files",
        "webdataset",
    ] {
        let home = home_of(reader);
        for (step, files) in states(reader).iter().enumerate() {
            let _ = fs::remove_dir_all(home.path("data"));
            for (name, bytes) in files {
                home.put(&format!("data/{name}"), bytes);
            }
            if step == 0 {
                home.register();
                continue;
            }
            let workers = ["1", "3", "2"][step - 1];
            let done = home.job(&["update", "mine.toml", "--workers", workers]);
            assert_eq!(done["version"], format!("1.0.{step}"), "{reader}: {done}");
            assert_eq!(done["status"], "built", "{reader}: {done}");
            home.assert_is_full_build(&format!("1.0.{step}"));
            home.run(&["verify", "mine"]).expect(0);
        }
    }
}

/// Rows of which types come and go: integers, numbers and nothing; texts; lists; an object with a value more or less.
fn random_rows(noise: &mut Noise, count: u64) -> String {
    let row = |noise: &mut Noise| {
        let mut fields = vec![format!("\"id\": {}", noise.below(1000))];
        fields.push(match noise.below(40) {
            0 => "\"n\": null".to_owned(),
            1 => "\"n\": 0.5".to_owned(),
            2 => "\"n\": 18446744073709551615".to_owned(),
            _ => format!("\"n\": {}", noise.below(9)),
        });
        if noise.below(30) > 0 {
            fields.push("\"t\": \"text\"".to_owned());
        }
        fields.push(format!("\"l\": [{}, 1]", noise.below(3)));
        let more = if noise.below(25) == 0 { ", \"b\": true" } else { "" };
        fields.push(format!("\"o\": {{\"a\": {}{more}}}", noise.below(3)));
        format!("{{{}}}\n", fields.join(", "))
    };
    (0..count).map(|_| row(noise)).collect()
}

#[test]
fn whatever_changes_an_update_is_a_full_build() {
    let mut noise = Noise(7);
    let home = Home::new("jsonl", "[splits]\ntrain = 0.75\ntest = 0.25\n");
    for file in 0..8 {
        home.put(&format!("data/{file}.jsonl"), random_rows(&mut noise, 6));
    }
    home.register();
    let mut taken = Vec::new();
    for step in 1..=12 {
        for _ in 0..=noise.below(2) {
            let file = format!("data/{}.jsonl", noise.below(10));
            match noise.below(4) {
                0 if step > 1
                    && home.path(&file).exists()
                    && fs::read_dir(home.path("data")).unwrap().count() > 3 =>
                {
                    home.remove(&file);
                }
                _ => {
                    let count = 2 + noise.below(8);
                    home.put(&file, random_rows(&mut noise, count));
                }
            }
        }
        let done = home.update();
        if done["status"] == "up to date" {
            continue;
        }
        taken.push(number(&done, "shards_taken_over"));
        home.assert_is_full_build(done["version"].as_str().unwrap());
    }
    // Both have come.
    assert!(
        taken.contains(&0) && taken.iter().any(|taken| *taken > 0),
        "{taken:?}"
    );
}

#[test]
fn after_a_change_of_one_percent_one_percent_is_read_and_written() {
    let home = Home::new("jsonl", "");
    for file in 0..100 {
        home.put(
            &format!("data/{file:03}.jsonl"),
            rows(file * 20..file * 20 + 20, "x"),
        );
    }
    let done = home.register();
    // Once for the types, once for the examples.
    assert_eq!(number(&done, "records_read"), 4000);
    assert_eq!(number(&done, "records_written"), 2000);
    home.put("data/050.jsonl", rows(0..20, "changed"));
    let report = home.path("report.json");
    let done = home.job(&["update", "mine.toml", "--report", report.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    for told in [&done, &report] {
        assert_eq!(number(told, "records_read"), 40);
        assert_eq!(number(told, "records_written"), 20);
        assert_eq!(number(told, "shards_written"), 1);
        assert_eq!(number(told, "shards_taken_over"), 99);
        assert_eq!(number(told, "records_taken_over"), 1980);
    }
    home.assert_is_full_build("1.0.1");
    // One file under two names.
    let shard = |version: &str, start: &str| {
        let files = fs::read_dir(home.version(version)).unwrap();
        let names = files.map(|file| file.unwrap());
        let mut found = names.filter(|file| file.file_name().to_string_lossy().starts_with(start));
        found.next().unwrap().metadata().unwrap().ino()
    };
    assert_eq!(shard("1.0.0", "mine-train.007"), shard("1.0.1", "mine-train.007"));
    assert_ne!(shard("1.0.0", "mine-train.050"), shard("1.0.1", "mine-train.050"));
    // What is taken away costs nothing.
    home.remove("data/001.jsonl");
    let done = home.update();
    assert_eq!(
        (number(&done, "records_read"), number(&done, "records_written")),
        (0, 0)
    );
    home.assert_is_full_build("1.0.2");
    // A shard that is taken over is read for its checksum only. What damages one of two names damages both.
    let damaged = fs::read_dir(home.version("1.0.2"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .find(|path| path.display().to_string().contains("mine-train.007"))
        .unwrap();
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[70_000] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    for version in ["1.0.0", "1.0.2"] {
        let run = home.run(&["verify", &format!("mine:{version}")]).expect(1);
        assert!(run.stdout.contains("mine-train.007"), "{}", run.stdout);
    }
}

#[test]
fn a_changed_type_builds_all_anew_and_says_so() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"))
        .put("data/b.jsonl", rows(9..12, "x"));
    home.register();
    for (step, row) in [
        "{\"id\": null, \"text\": \"x\"}\n",
        "{\"id\": 1.5, \"text\": \"x\"}\n",
    ]
    .into_iter()
    .enumerate()
    {
        home.put("data/b.jsonl", row);
        let run = home.run(&["update", "mine.toml", "--json"]).expect(0);
        assert!(run.stdout.contains("all is built anew"), "{}", run.stdout);
        let done = run.json().pop().unwrap();
        assert_eq!(number(&done, "shards_taken_over"), 0);
        // The types of the others are known: they are read once only.
        assert_eq!(number(&done, "records_read"), 9 + 1 + 1);
        home.assert_is_full_build(&format!("1.0.{}", step + 1));
    }
    // And back: types follow from what is there now, not from what was.
    home.put("data/b.jsonl", rows(9..12, "x"));
    home.update();
    home.assert_is_full_build("1.0.3");
    let features = |version: &str| fs::read(home.version(version).join("features.json")).unwrap();
    assert_eq!(features("1.0.0"), features("1.0.3"));
}

#[test]
fn an_update_of_nothing_writes_nothing() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"));
    home.register();
    let before = home.contents();
    for target in ["mine.toml", "mine", "mine:1.0.0"] {
        let run = home.run(&["update", target]).expect(0);
        assert!(run.stdout.contains("mine:1.0.0 is up to date"), "{}", run.stdout);
    }
    // Comments and times are no changes.
    home.put("mine.toml", format!("# more\n{}", home.recipe));
    home.put("data/a.jsonl", rows(0..9, "x"));
    assert_eq!(home.update()["status"], "up to date");
    let dry = home
        .put("data/b.jsonl", rows(0..1, "new"))
        .run(&["update", "mine.toml", "--dry-run"]);
    for wanted in [
        "mine:1.0.1 would be built",
        "added: data/b.jsonl",
        "take over the shards of 1 sources from version 1.0.0",
        "data/b.jsonl",
    ] {
        assert!(dry.stdout.contains(wanted), "{wanted}: {}", dry.stdout);
    }
    assert_eq!(home.contents(), before);
}

#[test]
fn versions_are_the_recipes_or_the_next_ones() {
    let home = Home::new("jsonl", "version = \"1.2.0\"\n");
    home.put("data/a.jsonl", rows(0..9, "x"));
    home.register();
    let next = |more: &[&str]| {
        let all = [&["update", "mine.toml"], more].concat();
        home.job(&all)["version"].as_str().unwrap().to_owned()
    };
    home.put("data/a.jsonl", rows(0..8, "x"));
    assert_eq!(next(&[]), "1.2.1");
    home.put("data/a.jsonl", rows(0..7, "x"));
    assert_eq!(next(&["--version", "3.0.0"]), "3.0.0");
    // The recipe's own, when that is a new one, whatever has changed.
    home.put("mine.toml", home.recipe.replace("1.2.0", "3.1.0"));
    assert_eq!(next(&[]), "3.1.0");
    home.assert_is_full_build("3.1.0");
    home.put("data/b.jsonl", rows(7..8, "x"));
    let done = home.job(&["append", "mine", "mine.toml"]);
    assert_eq!(done["version"], "3.2.0");
    // A number whose files may still be there is not used again.
    home.run(&["rm", "mine:3.2.0"]).expect(0);
    assert_eq!(home.job(&["append", "mine", "mine.toml"])["version"], "3.3.0");
    let wrong = home.run(&["update", "mine.toml", "--version", "1.0"]).expect(2);
    assert!(wrong.stderr.contains("three numbers"), "{}", wrong.stderr);
    let there = home
        .put("data/c.jsonl", rows(8..9, "x"))
        .run(&["update", "mine.toml", "--version", "1.2.0"]);
    assert!(there.expect(1).stderr.contains("is there already"));
}

#[test]
fn appended_versions_share_shards_and_outlive_the_ones_between() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"))
        .put("data/b.jsonl", rows(9..20, "x"));
    home.register();
    // The old files may be gone.
    fs::remove_dir_all(home.path("data")).unwrap();
    home.put("more/c.jsonl", rows(20..25, "y"));
    let done = home.job(&["append", "mine", "--source", "train=more/*.jsonl"]);
    assert_eq!(done["version"], "1.1.0");
    assert_eq!(
        (number(&done, "records_read"), number(&done, "records_written")),
        (10, 5)
    );
    assert_eq!(number(&done, "records_taken_over"), 20);
    // Nothing is added twice.
    assert_eq!(
        home.job(&["append", "mine", "--source", "more/*.jsonl"])["status"],
        "up to date"
    );
    // What looks like a split before a path that is there belongs to the path.
    let partition = "day=1/d.jsonl";
    home.put("1/other.jsonl", rows(90..91, "z"));
    let wrong = home
        .run(&["append", "mine", "--source", partition])
        .expect(1)
        .stderr;
    assert!(
        wrong.contains("there is no split `day`") && wrong.contains("write `./day=1/d.jsonl`"),
        "{wrong}"
    );
    home.put(partition, rows(25..27, "z"));
    let done = home.job(&["append", "mine", "--source", partition]);
    assert_eq!(
        (done["version"].as_str(), number(&done, "records_written")),
        (Some("1.2.0"), 2)
    );
    let manifest = fs::read_to_string(home.version("1.2.0").join("prep_manifest.json")).unwrap();
    for shared in ["../1.0.0/mine-train.a", "../1.1.0/mine-train.c"] {
        assert!(manifest.contains(shared), "{manifest}");
    }
    let lineage = home.json(&["lineage", "mine"]).remove(0);
    assert_eq!(lineage["kind"], "append");
    assert_eq!(lineage["shares"].as_array().unwrap().len(), 2);
    let differences = home.run(&["diff", "mine:1.0.0", "mine", "--json"]);
    assert!(
        differences.stdout.contains("\"added\":7") || differences.stdout.contains("\"added\": 7"),
        "{}",
        differences.stdout
    );

    // The same examples, in order, before and after the versions between are gone.
    let ids = || -> Vec<String> {
        let rows = home.json(&["cat", "mine", "--split", "train"]);
        rows.iter()
            .map(|row| row["features"]["id"]["data"].to_string())
            .collect()
    };
    let before = ids();
    assert_eq!(before.len(), 27);
    for version in ["1.1.0", "1.0.0"] {
        home.run(&["rm", &format!("mine:{version}")]).expect(0);
    }
    home.run(&["gc", "--delete", "--older-than", "0s"]).expect(0);
    assert_eq!(ids(), before);
    home.run(&["verify", "mine"]).expect(0);
    home.run(&["load", "mine", "--split", "train", "--batches", "2"])
        .expect(0);
    home.run(&["export", "mine", "exported", "--tfds", "-q"])
        .expect(0);
    let exported = home
        .run(&["cat", "exported/mine/1.2.0", "--split", "train", "--json"])
        .expect(0);
    assert_eq!(exported.json().len(), 27);
    let replaced = home
        .put("data/a.jsonl", rows(0..3, "x"))
        .run(&["register", "mine.toml", "--overwrite"]);
    assert_ne!(replaced.code, 0, "{}", replaced.stdout);
    assert_eq!(ids(), before);

    // What is made of it by an update needs nobody.
    home.put("data/a.jsonl", rows(0..9, "x"))
        .put("data/b.jsonl", rows(9..20, "x"));
    let done = home.job(&["update", "mine", "--version", "2.0.0"]);
    assert_eq!(
        (number(&done, "records_read"), number(&done, "records_taken_over")),
        (0, 27)
    );
    home.assert_is_full_build("2.0.0");
    home.run(&["rm", "mine:1.2.0"]).expect(0);
    home.run(&["gc", "--delete", "--older-than", "0s"]).expect(0);
    home.run(&["verify", "mine"]).expect(0);
    let left: Vec<_> = fs::read_dir(home.prep.catalog().join("data/mine"))
        .unwrap()
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_recipe_with_more_sources_is_appended() {
    let splits = "[[splits]]\nname = \"train\"\nfiles = [\"data/**\"]\n[[splits]]\nname = \"test\"\nfiles = [\"held/**\"]\n";
    let home = Home::of(format!(
        "format = 1\nname = \"mine\"\n[[sources]]\npath = \"data\"\n[[sources]]\npath = \"held\"\n[reader]\nkind = \"jsonl\"\n{splits}"
    ));
    home.put("data/a.jsonl", rows(0..9, "x"))
        .put("held/t.jsonl", rows(100..104, "x"));
    home.register();
    home.put("data/b.jsonl", rows(9..12, "x"))
        .put("held/u.jsonl", rows(104..105, "x"))
        .put("new/v.jsonl", rows(200..202, "x"))
        .put(
            "mine.toml",
            home.recipe
                .replace("[reader]", "[[sources]]\npath = \"new\"\n[reader]")
                .replace("\"data/**\"", "\"data/**\", \"new/**\""),
        );
    let done = home.job(&["append", "mine", "mine.toml"]);
    assert_eq!(number(&done["splits"]["train"], "examples"), 14);
    assert_eq!(number(&done["splits"]["test"], "examples"), 5);
    assert_eq!(number(&done, "records_written"), 6);
    assert_eq!(home.job(&["append", "mine", "mine.toml"])["status"], "up to date");
    // By name too, to the split that is asked for.
    home.put("more/w.jsonl", rows(300..303, "x"));
    let done = home.job(&["append", "mine", "--source", "test=more/w.jsonl"]);
    assert_eq!(number(&done["splits"]["test"], "examples"), 8);
    for source in ["more", "tset=more"] {
        let run = home.run(&["append", "mine", "--source", source]).expect(1);
        assert!(run.stderr.contains("`train`, `test`"), "{}", run.stderr);
    }
}

#[test]
fn what_cannot_be_taken_over_is_refused_with_advice() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"));
    let refused = |arguments: &[&str], code: i32, wanted: &[&str]| {
        let before = home.contents();
        let run = home.run(arguments).expect(code);
        for wanted in wanted {
            assert!(
                run.stderr.contains(wanted),
                "{arguments:?}, {wanted}: {}",
                run.stderr
            );
        }
        assert_eq!(home.contents(), before, "{arguments:?}");
    };
    fs::create_dir_all(home.prep.catalog()).unwrap();
    refused(
        &["update", "mine.toml"],
        1,
        &["no dataset `mine`", "prep register mine.toml"],
    );
    refused(&["update", "mine"], 1, &["no dataset `mine`"]);
    home.put(
        "tfds.toml",
        home.recipe
            .replace("name = \"mine\"", "name = \"tfds\"\nlayout = \"tfds\""),
    );
    home.run(&["register", "tfds.toml", "-q"]).expect(0);
    for arguments in [
        &["update", "tfds.toml"][..],
        &["update", "tfds"],
        &["append", "tfds", "tfds.toml"],
    ] {
        refused(arguments, 1, &["layout `tfds`", "layout = \"by-source\""]);
    }
    home.register();
    // Files of the user's, of which there is nothing to take over.
    let shards = fs::read_dir(home.version("1.0.0"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let shard = shards
        .into_iter()
        .find(|path| path.display().to_string().contains("array_record"));
    home.put("rec/x.array_record", fs::read(shard.unwrap()).unwrap());
    home.put(
        "here.toml",
        "format = 1\nname = \"here\"\n[[sources]]\npath = \"rec\"\n[reader]\nkind = \"array_record\"\n",
    );
    home.run(&["register", "here.toml", "--in-place", "-q"]).expect(0);
    for arguments in [&["update", "here.toml"][..], &["append", "here", "here.toml"]] {
        refused(arguments, 1, &["in place", "--in-place"]);
    }
    refused(&["append", "mine"], 2, &["RECIPE.toml"]);
    refused(
        &["append", "mine", "mine.toml", "--version", "1.0.0"],
        2,
        &["appended to"],
    );
    refused(&["append", "mine", "tfds.toml"], 1, &["`tfds`"]);
    refused(&["append", "mine", "--source", "test=data"], 1, &["only `train`"]);
    refused(
        &["append", "mine", "--source", "nothing/*.jsonl"],
        1,
        &["nothing"],
    );
    // Types that would change, settings, and sources that have.
    home.put("odd/b.jsonl", "{\"id\": 1.5, \"text\": \"x\"}\n");
    refused(
        &["append", "mine", "--source", "odd"],
        1,
        &["`id` becomes another type", "prep update"],
    );
    home.put("odd/b.jsonl", "{\"id\": 1, \"text\": \"x\", \"more\": 1}\n");
    refused(&["append", "mine", "--source", "odd"], 1, &["`more` is new"]);
    home.put(
        "other.toml",
        format!("{}[features.id]\nkind = \"text\"\n", home.recipe),
    );
    home.put("data/b.jsonl", rows(0..1, "y"));
    refused(
        &["append", "mine", "other.toml"],
        1,
        &["cannot stay", "prep update"],
    );
    home.put("data/a.jsonl", rows(0..10, "x"));
    refused(
        &["append", "mine", "mine.toml"],
        1,
        &["data/a.jsonl", "prep update"],
    );
    // A version of which the recipe is not known.
    fs::remove_file(home.version("1.0.0").join("prep_recipe.toml")).unwrap();
    refused(
        &["update", "mine"],
        1,
        &["has kept no recipe", "prep update RECIPE.toml"],
    );
    fs::remove_file(home.version("1.0.0").join("prep_sources.jsonl")).unwrap();
    refused(&["append", "mine", "mine.toml"], 1, &["prep update RECIPE.toml"]);
    // An update can do without: it builds all.
    let done = home.update();
    assert_eq!(number(&done, "shards_taken_over"), 0);
    home.assert_is_full_build("1.0.1");
}

#[test]
fn a_file_is_known_by_its_content_and_not_by_its_name() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"));
    home.register();
    // The same size.
    home.put("y0/day.jsonl", rows(10..12, "y"))
        .put("y1/day.jsonl", rows(20..22, "y"))
        .put("y2/day.jsonl", rows(10..12, "y"));
    let append = |folder: &str| {
        let path = home.path(&format!("{folder}/day.jsonl"));
        home.run(&["append", "mine", "--source", path.to_str().unwrap(), "--json"])
    };
    assert_eq!(append("y0").expect(0).json().pop().unwrap()["status"], "built");
    let run = append("y1").expect(1);
    for wanted in [
        "y1/day.jsonl",
        "`day.jsonl`",
        "1.1.0",
        "another content",
        "below the recipe's folder",
    ] {
        assert!(run.stderr.contains(wanted), "{wanted}: {}", run.stderr);
    }
    assert_eq!(
        append("y2").expect(0).json().pop().unwrap()["status"],
        "up to date"
    );
    // As the advice has it.
    let done = home.job(&["append", "mine", "--source", "y1/day.jsonl"]);
    assert_eq!(
        (done["version"].as_str(), number(&done, "records_written")),
        (Some("1.2.0"), 2)
    );
}

#[test]
fn an_append_never_leaves_a_recipe_with_a_file_twice() {
    let home = Home::of(
        "format = 1\nname = \"mine\"\n[[sources]]\npath = \"r0/a.jsonl\"\n[reader]\nkind = \"jsonl\"\n"
            .to_owned(),
    );
    home.put("r0/a.jsonl", rows(0..9, "x"))
        .put("r0/b.jsonl", rows(9..12, "x"));
    home.register();
    home.job(&["append", "mine", "--source", "r0/b.jsonl"]);
    home.put("r0/c.jsonl", rows(12..13, "x"));
    let run = home.run(&["append", "mine", "--source", "r0/*.jsonl"]).expect(1);
    for wanted in [
        "r0/a.jsonl is there already",
        "r0/c.jsonl is new",
        "narrower",
        "prep update",
    ] {
        assert!(run.stderr.contains(wanted), "{wanted}: {}", run.stderr);
    }
    home.remove("r0/c.jsonl");
    let done = home.job(&["append", "mine", "--source", "r0/*.jsonl"]);
    assert_eq!(done["status"], "up to date", "{done}");
    // The recipe that was kept works.
    home.run(&["update", "mine"]).expect(0);
}

#[test]
fn damaged_records_are_counted_where_they_are() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", format!("{}no json\n", rows(0..9, "x")))
        .put("data/b.jsonl", rows(9..12, "x"));
    home.run(&["register", "mine.toml", "--on-error", "skip", "-q"])
        .expect(3);
    home.put("data/b.jsonl", rows(9..13, "x"));
    let run = home
        .run(&["update", "mine.toml", "--on-error", "skip", "--json"])
        .expect(3);
    let done = run.json().pop().unwrap();
    assert_eq!(
        (number(&done, "skipped"), number(&done, "records_written")),
        (1, 4)
    );
    // Who does not want to skip hears of it, though that source has not changed.
    let run = home.run(&["update", "mine.toml"]).expect(1);
    assert!(run.stderr.contains("data/a.jsonl, record 9"), "{}", run.stderr);
}

#[test]
fn a_damaged_shard_is_not_taken_over() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"))
        .put("data/b.jsonl", rows(9..12, "x"));
    home.register();
    let name = fs::read_dir(home.version("1.0.0"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.display().to_string().contains("mine-train.a"))
        .unwrap();
    fs::write(&name, "cut").unwrap();
    home.put("data/b.jsonl", rows(9..13, "x"));
    let done = home.update();
    assert_eq!(
        (
            number(&done, "records_written"),
            number(&done, "shards_taken_over")
        ),
        (13, 0)
    );
    home.assert_is_full_build("1.0.1");
    fs::remove_file(&name).unwrap();
    home.put("new/c.jsonl", rows(0..1, "y"));
    let run = home.run(&["append", "mine:1.0.0", "--source", "new"]).expect(1);
    assert!(
        run.stderr.contains("is absent or has another size"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_killed_update_goes_on_and_ends_as_a_full_build() {
    let home = Home::new("jsonl", "");
    for file in 0..6 {
        home.put(
            &format!("data/{file}.jsonl"),
            rows(file * 50..file * 50 + 50, "x"),
        );
    }
    home.register();
    let mut version = 0;
    for command in ["update", "append"] {
        for place in ["encode:7", "write:130", "bring:3", "publish:1", "commit:1"] {
            if command == "append" && place.starts_with("bring") {
                continue;
            }
            version += 1;
            let arguments: Vec<&str> = match command {
                "update" => {
                    for file in 0..3 {
                        home.put(&format!("data/{file}.jsonl"), rows(0..50 + version, "changed"));
                    }
                    vec!["update", "mine.toml"]
                }
                _ => {
                    for file in 0..3 {
                        home.put(&format!("data/{version}-{file}.jsonl"), rows(0..50, "added"));
                    }
                    vec!["append", "mine", "mine.toml"]
                }
            };
            let listed = home.json(&["list"]).len();
            home.kill_at(place, &arguments, || {});
            // Nothing half is to be seen.
            assert_eq!(home.json(&["list"]).len(), listed, "{command} {place}");
            home.run(&["verify", "mine"]).expect(0);
            let done = home.job(&arguments);
            assert_eq!(done["status"], "built", "{command} {place}: {done}");
            home.run(&["verify", "mine"]).expect(0);
            if command == "update" {
                home.assert_is_full_build(done["version"].as_str().unwrap());
            }
            let staging = home.prep.catalog().join("data/.staging/mine");
            assert!(!staging.exists(), "{command} {place}");
        }
    }
    // Not one of the versions whose shards were taken over has been changed.
    for found in home.json(&["list"]) {
        let name = format!("mine:{}", found["version"].as_str().unwrap());
        home.run(&["verify", &name]).expect(0);
    }
}

#[test]
fn what_a_killed_append_has_left_blocks_no_other() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"));
    home.register();
    for name in ["b", "c", "d"] {
        home.put(&format!("{name}.jsonl"), rows(20..22, name));
    }
    let kill = |arguments: &[&str]| {
        home.kill_at("commit:1", arguments, || {
            // While it runs, its folder is its own.
            let found = home.json(&["gc", "--older-than", "0s"]);
            let is_its =
                |item: &&Value| item["kind"] == "orphan" && item["kept"] == "a build of this version runs";
            assert_eq!(found.iter().filter(is_its).count(), 1, "{found:?}");
        });
    };
    kill(&["append", "mine", "--source", "b.jsonl"]);
    assert!(home.version("1.1.0").exists());
    let run = home.run(&["append", "mine", "--source", "c.jsonl"]).expect(0);
    assert!(
        run.stderr.contains("1.1.0") && run.stderr.contains("passed over"),
        "{}",
        run.stderr
    );
    assert!(home.version("1.2.0").exists());
    home.run(&["verify", "mine:1.2.0"]).expect(0);

    // The same command again still takes what it had made.
    kill(&["append", "mine", "--source", "d.jsonl"]);
    let done = home.job(&["append", "mine", "--source", "d.jsonl"]);
    assert_eq!(
        (done["version"].as_str(), number(&done, "records_written")),
        (Some("1.3.0"), 0)
    );

    let young = home.json(&["gc", "--delete"]);
    assert!(young.iter().all(|item| item["status"] == "kept"), "{young:?}");
    // Folders that are not such: no manifest, another version's, a user's.
    fs::create_dir(home.version("7.0.0")).unwrap();
    let copy = |to: &str| {
        fs::create_dir(home.version(to)).unwrap();
        fs::copy(
            home.version("1.1.0").join("prep_manifest.json"),
            home.version(to).join("prep_manifest.json"),
        )
        .unwrap();
    };
    copy("8.0.0");
    copy("mine");
    home.put("left", "");
    fs::copy(home.path("left"), home.version("1.1.0").join("mine.txt")).unwrap();
    // By another name the catalog is the same.
    let link = home.path("link");
    std::os::unix::fs::symlink(home.prep.catalog(), &link).unwrap();
    let gc = home
        .run_in(&link, &["gc", "--delete", "--older-than", "0s", "--json"])
        .expect(0)
        .json();
    let orphans: Vec<&Value> = gc.iter().filter(|item| item["kind"] == "orphan").collect();
    assert_eq!(orphans.len(), 1, "{gc:?}");
    assert_eq!(orphans[0]["status"], "deleted");
    let left: Vec<_> = fs::read_dir(home.version("1.1.0"))
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(left, ["mine.txt"]);
    for name in ["7.0.0", "8.0.0/prep_manifest.json", "mine/prep_manifest.json"] {
        assert!(home.version(name).exists(), "{name}");
    }
    for version in ["1.0.0", "1.2.0", "1.3.0"] {
        home.run(&["verify", &format!("mine:{version}")]).expect(0);
    }
}

#[test]
fn a_number_that_was_given_back_is_not_used_below_greater_ones() {
    let home = Home::new("jsonl", "");
    for count in [9, 8, 7] {
        home.put("data/a.jsonl", rows(0..count, "x"));
        match count {
            9 => home.register(),
            _ => home.update(),
        };
    }
    home.run(&["rm", "mine:1.0.0"]).expect(0);
    home.run(&["gc", "--delete", "--older-than", "0s"]).expect(0);
    let done = home.update();
    assert_eq!(
        (&done["status"], &done["version"]),
        (&"up to date".into(), &"1.0.2".into())
    );
    home.put("data/a.jsonl", rows(0..6, "x"));
    assert_eq!(home.update()["version"], "1.0.3");
    home.put("data/b.jsonl", rows(6..7, "x"));
    assert_eq!(home.job(&["append", "mine", "mine.toml"])["version"], "1.1.0");
}

#[test]
fn damaged_statistics_of_an_earlier_version_are_counted_anew() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"))
        .put("data/b.jsonl", rows(9..12, "x"));
    home.register();
    let path = home.version("1.0.0").join("prep_statistics.bin");
    let whole = fs::read(&path).unwrap();
    // In what was counted, in a hash, and in the index.
    for at in [0, whole.len() / 3, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(&path, bytes).unwrap();
        let size = at as u32 % 7;
        home.put("data/b.jsonl", rows(9..13 + size, "y"));
        let arguments = ["update", "mine:1.0.0"];
        let run = home.run(&arguments).expect(0);
        assert!(
            run.stderr.contains("1.0.0/prep_statistics.bin is damaged"),
            "{}",
            run.stderr
        );
        let version = home.json(&["list"]);
        let version = version
            .iter()
            .filter_map(|found| found["version"].as_str())
            .max()
            .unwrap()
            .to_owned();
        home.assert_is_full_build(&version);
    }
}

#[test]
fn appends_at_once_all_get_in() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"));
    home.register();
    let count = 4;
    let children: Vec<_> = (0..count)
        .map(|index| {
            home.put(&format!("new-{index}/x.jsonl"), rows(index..index + 1, "y"));
            home.prep
                .command(["append", "mine", "--source", &format!("new-{index}"), "-q"])
                .current_dir(home.folder.path())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let rows = home.json(&["cat", "mine", "--split", "train"]);
    assert_eq!(rows.len(), 9 + count as usize);
    assert_eq!(home.json(&["list"]).len(), 1 + count as usize);
}

#[test]
fn an_update_without_hard_links_copies() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"))
        .put("data/b.jsonl", rows(9..12, "x"));
    home.register();
    home.put("data/b.jsonl", rows(9..13, "x"));
    // `/dev/shm` is another file system than the temporary folder, as a rule; where it is not, links are right too.
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let place = other.path().to_str().unwrap();
    let done = home.job(&["update", "mine.toml", "--data-dir", place]);
    assert_eq!(
        (
            number(&done, "records_written"),
            number(&done, "records_taken_over")
        ),
        (4, 9)
    );
    let (there, catalog) = (other.path().join("mine/1.0.1"), temp_dir());
    fs::copy(there.join("prep_recipe.toml"), home.path("full.toml")).unwrap();
    home.run_in(catalog.path(), &["register", "full.toml", "-q"])
        .expect(0);
    assert_same_folder(&there, catalog.path().join("data/mine/1.0.1"));
    home.put("new/c.jsonl", rows(0..1, "y"));
    let run = home
        .run(&["append", "mine:1.0.0", "--source", "new", "--data-dir", place])
        .expect(1);
    assert!(run.stderr.contains("not beside"), "{}", run.stderr);
}
