//! What may go wrong with versions that are there: files that rot or are changed, files of the user's in their folders, names that mean two things.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prep_testing::process::kill_after;
use prep_testing::{Noise, SmallDisk};
use serde_json::Value;

use crate::home::{Home, number, rows};

/// Files of a version's folder whose names have this in them.
fn files(folder: &Path, part: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = names
        .filter(|path| path.to_str().unwrap().contains(part))
        .collect();
    found.sort();
    found
}

/// Writes another byte into the middle of a file, as a disk may.
fn rot(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_describes_records_is_verified_too() {
    let home = Home::new("csv", "[features.label]\nkind = \"class_label\"\n");
    home.put("data/a.csv", "id,label\n1,cat\n2,dog\n3,cat\n");
    home.register();
    let folder = home.version("1.0.0");
    let shown = folder.to_str().unwrap();
    let verify = |target: &str, code: i32| -> Vec<Value> {
        home.run(&["verify", target, "--json"]).expect(code).json()
    };
    let all = verify("mine", 0);
    for name in ["features.json", "dataset_info.json"] {
        assert!(
            all.iter()
                .any(|file| file["path"].as_str().unwrap().ends_with(name)),
            "{name}"
        );
    }
    let changes: [(&str, &str, &str, &str, &str); 8] = [
        (
            "label.labels.txt",
            "cat",
            "cow",
            "features.json",
            "other features than those of the records",
        ),
        (
            "features.json",
            "\"int64\"",
            "\"int32\"",
            "features.json",
            "fingerprint",
        ),
        ("features.json", "{", "", "features.json", "JSON"),
        (
            "dataset_info.json",
            "\"3\"",
            "\"4\"",
            "dataset_info.json",
            "of the split `train`, the length of shard 0 is 4, the manifest says 3",
        ),
        (
            "dataset_info.json",
            "\"3\"",
            "\"3\", \"0\"",
            "dataset_info.json",
            "the number of shards is 2, the manifest says 1",
        ),
        (
            "dataset_info.json",
            "train",
            "test",
            "dataset_info.json",
            "the list of splits is test, the manifest says train",
        ),
        (
            "dataset_info.json",
            "\"1.0.0\"",
            "\"1.0.1\"",
            "dataset_info.json",
            "the version is 1.0.1",
        ),
        ("dataset_info.json", "{", "", "dataset_info.json", "JSON"),
    ];
    for (file, from, to, named, reason) in changes {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file}: {from}: {text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        for target in ["mine", shown] {
            let damaged: Vec<Value> = verify(target, 1)
                .into_iter()
                .filter(|file| file["ok"] == false)
                .collect();
            assert_eq!(damaged.len(), 1, "{damaged:?}");
            assert!(
                damaged[0]["path"].as_str().unwrap().ends_with(named),
                "{damaged:?}"
            );
            let told = damaged[0]["damaged"][0]["reason"].as_str().unwrap();
            assert!(told.contains(reason), "{reason}: {told}");
        }
        fs::write(&path, text).unwrap();
    }
    // What nothing depends on is free, and what is needed is not.
    let info = folder.join("dataset_info.json");
    let text = fs::read_to_string(&info).unwrap();
    fs::write(&info, text.replacen('{', "{\"description\": \"other words\",", 1)).unwrap();
    verify("mine", 0);
    for name in ["features.json", "dataset_info.json"] {
        fs::remove_file(folder.join(name)).unwrap();
        let told = home.run(&["verify", shown]).expect(1).stdout;
        assert!(
            told.contains(&format!("{name}, byte 0: the file is absent")),
            "{told}"
        );
    }
}

#[test]
fn a_shard_that_has_rotted_is_not_taken_over() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..9, "x"))
        .put("data/b.jsonl", rows(9..12, "x"));
    home.register();
    let shard = files(&home.version("1.0.0"), "mine-train.a").remove(0);
    rot(&shard);
    home.put("data/b.jsonl", rows(9..13, "x"));
    let told = home.run(&["update", "mine.toml"]).expect(1).stderr;
    assert!(
        told.contains(&format!("{} is damaged: its SHA-256 is", shard.display())),
        "{told}"
    );
    assert!(
        told.contains("`prep verify`") && told.contains("another `version`"),
        "{told}"
    );
    assert!(!home.version("1.0.1").exists());
    // The way out that it names.
    home.put(
        "mine.toml",
        home.recipe
            .replace("[[sources]]", "version = \"1.1.0\"\n[[sources]]"),
    );
    home.register();
    home.run(&["verify", "mine"]).expect(0);
    home.put("data/b.jsonl", rows(9..14, "x"));
    assert_eq!(number(&home.update(), "shards_taken_over"), 1);
}

#[test]
fn a_source_of_which_the_recipe_has_the_folder_is_not_added_again() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..5, "x"));
    home.register();
    home.put("data/c.jsonl", rows(5..7, "x"));
    let elsewhere = home.path("data/../data/c.jsonl");
    for source in [
        "data/c.jsonl",
        "./data/c.jsonl",
        "data/c*.jsonl",
        elsewhere.to_str().unwrap(),
    ] {
        let told = home.run(&["append", "mine", "--source", source]).expect(1).stderr;
        assert!(
            told.contains("c.jsonl already, with `data`") && told.contains("would have the file twice"),
            "{source}: {told}"
        );
    }
    let done = home.job(&["append", "mine", "mine.toml"]);
    assert_eq!(
        (&done["version"], number(&done, "records_written")),
        (&Value::from("1.1.0"), 2)
    );
    assert_eq!(
        home.job(&["append", "mine", "--source", "data/c.jsonl"])["status"],
        "up to date"
    );
    home.run(&["update", "mine"]).expect(0);
}

#[test]
fn records_that_were_left_out_count_whoever_left_them_out() {
    let home = Home::new("jsonl", "");
    let damaged = |numbers: std::ops::Range<u32>| format!("{}no json\n", rows(numbers, "x"));
    home.put("data/a.jsonl", damaged(0..9))
        .put("data/b.jsonl", rows(9..12, "x"));
    for status in [
        "1 damaged records left out",
        "1 damaged records were left out when it was made",
    ] {
        let run = home
            .run(&["register", "mine.toml", "--on-error", "skip"])
            .expect(3);
        assert!(run.stdout.contains(status), "{}", run.stdout);
    }
    let run = home
        .run(&["update", "mine.toml", "--on-error", "skip:1"])
        .expect(3);
    assert!(
        run.stdout.contains("up to date") && run.stdout.contains("1 damaged records"),
        "{}",
        run.stdout
    );
    // One more, of a source that is read, beside that of one which is not.
    home.put("data/b.jsonl", damaged(9..12));
    let told = home
        .run(&["update", "mine.toml", "--on-error", "skip:1"])
        .expect(1)
        .stderr;
    assert!(
        told.contains("2 records are damaged, more than may be skipped"),
        "{told}"
    );
    home.run(&["update", "mine.toml", "--on-error", "skip:2"])
        .expect(3);
    // Both of sources that are not read.
    home.put("data/c.jsonl", rows(20..22, "x"));
    for (arguments, code) in [
        (["update", "mine.toml", "--on-error", "skip:1"], 1),
        (["append", "mine", "mine.toml", "--on-error=skip:1"], 1),
        (["update", "mine.toml", "--on-error", "skip:2"], 3),
    ] {
        let run = home.run(&arguments).expect(code);
        assert!(
            code == 3 || run.stderr.contains("2 records are damaged"),
            "{}",
            run.stderr
        );
    }
    // Nothing is new, and nothing is read: what the version lacks is said.
    let run = home.run(&["append", "mine", "mine.toml"]).expect(3);
    assert!(
        run.stdout.contains("up to date") && run.stdout.contains("2 damaged records"),
        "{}",
        run.stdout
    );
}

#[test]
fn what_the_program_writes_is_no_source() {
    for path in [".", "**/*.jsonl"] {
        let home = Home::of(format!(
            "format = 1\nname = \"mine\"\n[[sources]]\nname = \"all\"\npath = \"{path}\"\n[reader]\nkind = \"jsonl\"\n"
        ));
        home.put("rows/a.jsonl", rows(0..5, "x"));
        let catalog = home.path("catalog");
        home.run_in(&catalog, &["register", "mine.toml", "-q"]).expect(0);
        home.put("rows/b.jsonl", rows(5..6, "x"));
        for arguments in [["update", "mine.toml"], ["register", "mine.toml"]] {
            let told = home.run_in(&catalog, &arguments).expect(1).stderr;
            let real = fs::canonicalize(&catalog).unwrap();
            assert!(told.contains(&format!("lies in {}/", real.display())), "{told}");
            assert!(told.contains("where the program writes"), "{told}");
        }
        // Asked for by name, what is in there is a source; and so is what lies beside.
        home.put("mine.toml", home.recipe.replace(path, "rows/*.jsonl"));
        home.run_in(&catalog, &["update", "mine.toml"]).expect(0);
        home.put("catalog/data/raw/a.jsonl", rows(0..2, "x"));
        home.put("mine.toml", home.recipe.replace(path, "catalog/data/raw"));
        home.run_in(&catalog, &["update", "mine.toml"]).expect(0);
    }
}

#[test]
fn files_of_the_users_are_not_replaced() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..5, "x"));
    home.register();
    let input = home.shard();
    let input = input.to_str().unwrap();
    let (converted, exported) = (home.path("converted"), home.path("exported"));
    let (out, tables) = (converted.to_str().unwrap(), exported.to_str().unwrap());
    home.run(&["convert", input, out]).expect(0);
    home.run(&["export", "mine", tables, "--parquet"]).expect(0);
    home.put("data/a.jsonl", rows(0..6, "x"));
    let replace: [(PathBuf, Vec<&str>); 3] = [
        (
            home.version("1.0.0"),
            vec!["register", "mine.toml", "--overwrite"],
        ),
        (
            converted.clone(),
            vec!["convert", input, out, "--shards", "2", "--overwrite"],
        ),
        (
            exported.clone(),
            vec![
                "export",
                "mine",
                tables,
                "--parquet",
                "--shards",
                "2",
                "--overwrite",
            ],
        ),
    ];
    for (folder, arguments) in replace {
        let mine = folder.join("deep/notes.txt");
        fs::create_dir(folder.join("deep")).unwrap();
        fs::write(&mine, "mine").unwrap();
        let told = home.run(&arguments).expect(1).stderr;
        assert!(
            told.contains("is not replaced: it has `deep/notes.txt`, which is not among"),
            "{told}"
        );
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        fs::remove_file(&mine).unwrap();
        if let Some(disk) = SmallDisk::mount_at(&folder.join("deep"), 64) {
            let told = home.run(&arguments).expect(1).stderr;
            assert!(
                told.contains(&format!("something is mounted at {}", disk.path().display())),
                "{told}"
            );
        }
        home.run(&arguments).expect(0);
    }
}

#[test]
fn a_folder_that_is_called_as_a_dataset_is_says_so() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..5, "x"));
    home.register();
    fs::create_dir(home.path("mine")).unwrap();
    fs::copy(home.shard(), home.path("mine/a.array_record")).unwrap();
    let run = home.run(&["verify", "mine"]).expect(0);
    for wanted in [
        "`mine` is the folder ./mine",
        "`mine:1.0.0` asks for",
        "`./mine` always means",
    ] {
        assert!(run.stderr.contains(wanted), "{wanted}: {}", run.stderr);
    }
    assert!(
        run.stdout.contains("mine/a.array_record") && !run.stdout.contains("mine-train"),
        "{}",
        run.stdout
    );
    let run = home.run(&["verify", "mine:1.0.0"]).expect(0);
    assert!(
        run.stdout.contains("mine-train") && !run.stderr.contains("note:"),
        "{}",
        run.stderr
    );
    let run = home.run(&["verify", "./mine"]).expect(0);
    assert!(!run.stderr.contains("note:"), "{}", run.stderr);
}

#[test]
fn words_that_name_nothing_are_told() {
    let home = Home::new("jsonl", "");
    home.put("data/a.jsonl", rows(0..5, "x"));
    home.register();
    let told = home.run(&["gc", "nosuch"]).expect(1).stderr;
    assert!(told.contains("there is no dataset `nosuch`"), "{told}");
    home.run(&["gc", "mine"]).expect(0);
    for command in [
        ["list", "--catalog", ""].as_slice(),
        &["register", "mine.toml", "--catalog="],
    ] {
        let told = home.run(command).expect(2).stderr;
        assert!(told.contains("--catalog"), "{told}");
    }
    // A variable that is empty is none.
    home.run_in(Path::new(""), &["list"]).expect(0);
    // A report is no place to lose what describes an output.
    let output = home.path("out");
    let input = home.shard();
    home.run(&["convert", input.to_str().unwrap(), output.to_str().unwrap()])
        .expect(0);
    let mark = output.join("prep_convert.json");
    let before = fs::read(&mark).unwrap();
    for name in ["prep_convert.json", "new.json"] {
        let report = output.join(name);
        let told = home
            .run(&["register", "mine.toml", "--report", report.to_str().unwrap()])
            .expect(2)
            .stderr;
        assert!(told.contains("is inside of the output"), "{told}");
    }
    // Nor are rows, which begin as a report does.
    let told = home
        .run(&["register", "mine.toml", "--report", "data/a.jsonl"])
        .expect(1)
        .stderr;
    assert!(told.contains("is no report of prep"), "{told}");
    assert_eq!(fs::read(&mark).unwrap(), before);
}

/// Kills updates and appends at random times, a few times each before they may end.
fn kills(rounds: u64) {
    let home = Home::new("jsonl", "");
    for file in 0..6 {
        home.put(
            &format!("data/{file}.jsonl"),
            rows(file * 100..file * 100 + 100, "x"),
        );
    }
    home.register();
    let mut noise = Noise(rounds);
    let mut examples = 600;
    let mut took = Duration::from_millis(200);
    for round in 0..rounds {
        let number_of = |file: u64| u32::try_from(file).unwrap();
        let arguments = match noise.below(2) {
            0 => {
                home.put(
                    &format!("data/{}.jsonl", round % 6),
                    rows(0..100, &format!("changed {round}")),
                );
                vec!["update", "mine.toml"]
            }
            _ => {
                let first = 1000 + number_of(round) * 50;
                home.put(&format!("data/n{round}.jsonl"), rows(first..first + 50, "added"));
                examples += 50;
                vec!["append", "mine", "mine.toml"]
            }
        };
        for _ in 0..=noise.below(3) {
            let pause = Duration::from_micros(noise.below(took.as_micros() as u64));
            kill_after(home.command(&arguments), pause);
            // What is to be seen is whole.
            home.run(&["verify", "mine", "-q"]).expect(0);
        }
        let started = Instant::now();
        let done = home.job(&arguments);
        // A kill may have come after the entry.
        if done["status"] == "built" {
            took = started.elapsed();
        }
        let version = done["version"].as_str().unwrap();
        let found = &home.json(&["show", "mine"])[0];
        assert_eq!(
            (&found["version"], number(&found["splits"]["train"], "examples")),
            (&done["version"], examples)
        );
        if arguments[0] == "update" {
            home.assert_is_full_build(version);
        }
    }
    // All versions are whole, whichever of them was taken over, and nothing is left behind but what `gc` finds: folders of jobs that were killed before
    // their entry, and staging of those that were right after it.
    for found in home.json(&["list"]) {
        home.run(&[
            "verify",
            &format!("mine:{}", found["version"].as_str().unwrap()),
            "-q",
        ])
        .expect(0);
    }
    home.run(&["gc", "--older-than", "0s", "--delete"]).expect(0);
    assert!(!home.prep.path("catalog/data/.staging").exists());
    let listed = home.json(&["list"]).len();
    assert_eq!(
        fs::read_dir(home.prep.path("catalog/data/mine")).unwrap().count(),
        listed
    );
    let log = fs::read_dir(home.prep.path("catalog/log/mine")).unwrap().count();
    assert!(log >= listed, "{log} entries, {listed} versions");
}

#[test]
fn killed_at_random_an_update_or_append_is_whole_or_not_there() {
    kills(6);
}

#[test]
#[ignore = "takes minutes: `make soak`"]
fn killed_a_hundred_times_over_updates_and_appends_are_whole_or_not_there() {
    kills(100);
}
