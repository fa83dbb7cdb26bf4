//! Pictures in folders, samples in tar archives, and first recipes of them, as users see them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use prep_testing::archive::{gzip_stored, tar};
use prep_testing::{Prep, Run, assert_same_folder, golden_path, png};
use serde_json::Value;

/// A home with data and a recipe.
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

    fn put(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        self.prep.put(path, content);
        self
    }

    fn recipe(&self, text: &str) -> &Self {
        self.put("my.toml", format!("format = 1\nname = \"mine\"\n{text}"))
    }

    fn register(&self, more: &[&str]) -> Run {
        let recipe = self.path("my.toml");
        let mut words = vec![
            "register",
            recipe.to_str().unwrap(),
            "-q",
            "--workers",
            "2",
            "--overwrite",
        ];
        words.extend(more);
        self.prep.run(words)
    }

    /// Standard error of a registration that fails.
    fn fault(&self) -> String {
        self.register(&[]).expect(1).stderr
    }

    fn infer(&self, path: &str, more: &[&str]) -> Run {
        let (data, recipe) = (self.path(path), self.path("my.toml"));
        let mut words = vec![
            "infer",
            data.to_str().unwrap(),
            "-o",
            recipe.to_str().unwrap(),
            "-q",
        ];
        words.extend(more);
        self.prep.run(words)
    }

    /// The values of features of a split: texts and numbers as text, pictures as `png COLOUR`.
    fn rows(&self, split: &str) -> Vec<BTreeMap<String, String>> {
        let rows = self
            .prep
            .run(["cat", "mine", "--split", split, "--json"])
            .expect(0)
            .json();
        let mut found: Vec<BTreeMap<String, String>> = rows
            .iter()
            .map(|row| {
                let features = row["features"].as_object().unwrap();
                features
                    .iter()
                    .map(|(name, value)| (name.clone(), shown(value)))
                    .collect()
            })
            .collect();
        found.sort();
        found
    }

    fn column(&self, split: &str, column: &str) -> Vec<String> {
        self.rows(split)
            .into_iter()
            .map(|mut row| row.remove(column).unwrap_or_default())
            .collect()
    }

    fn classes(&self) -> Vec<String> {
        let text = fs::read_to_string(self.prep.catalog().join("data/mine/1.0.0/label.labels.txt")).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// A value as text; nested ones one after the other.
fn shown(value: &Value) -> String {
    let Some(data) = value.get("data") else {
        let inner: Vec<String> = value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, value)| shown(value))
            .collect();
        return inner.join(",");
    };
    let bytes = base64(data.as_str().unwrap_or_default());
    match value["dtype"].as_str() {
        Some("int64") => bytes
            .try_into()
            .map_or(String::new(), |bytes| i64::from_le_bytes(bytes).to_string()),
        Some("float32") => bytes
            .try_into()
            .map_or(String::new(), |bytes| f32::from_le_bytes(bytes).to_string()),
        Some("uint8") => format!("pixels {bytes:?}"),
        _ if bytes.starts_with(b"\x89PNG") => format!("png {}", bytes[49]),
        _ => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

fn base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

const FOLDER: &str = "[[sources]]\npath = \"pics\"\n[reader]\nkind = \"image_folder\"\n";

#[test]
fn folders_of_pictures_by_class_with_and_without_splits() {
    let home = Home::new();
    home.put("pics/zebra/1.png", png(1))
        .put("pics/caf\u{e9}/deux \u{1f600}.PNG", png(2))
        .put("pics/caf\u{e9}/3.png", png(3))
        .put("pics/caf\u{e9}/.hidden.png", png(4))
        .put("pics/.cache/5.png", png(5))
        .put("pics/caf\u{e9}/notes.txt", "not a picture")
        .recipe(FOLDER);
    home.register(&[]).expect(0);
    assert_eq!(home.classes(), ["caf\u{e9}", "zebra"]);
    // In the order of the pictures.
    assert_eq!(home.column("train", "label"), ["1", "0", "0"]);

    // With split folders, a recipe made by `infer`.
    let home = Home::new();
    for (path, color) in [
        ("train/cat/1.png", 1),
        ("train/dog/2.png", 2),
        ("test/cat/1.png", 3),
    ] {
        home.put(&format!("pics/{path}"), png(color));
    }
    let shown = home
        .infer("pics", &["--name", "mine", "--json"])
        .expect(0)
        .json()
        .remove(0);
    assert_eq!(shown["kind"], "image_folder");
    assert_eq!(shown["splits"], serde_json::json!({"test": 1, "train": 2}));
    assert_eq!(shown["classes"]["label"], serde_json::json!({"cat": 2, "dog": 1}));
    assert!(!shown["samples"].as_array().unwrap().is_empty());
    home.register(&[]).expect(0);
    assert_eq!(home.classes(), ["cat", "dog"]);
    assert_eq!(
        (home.column("train", "label"), home.column("test", "label")),
        (vec!["0".into(), "1".into()], vec!["0".into()])
    );
    home.infer("pics", &["--name", "mine"]).expect(1);
    home.infer("pics", &["--name", "mine", "--overwrite"]).expect(0);

    // Flat, and at different depths.
    let home = Home::new();
    home.put("pics/1.png", png(1))
        .put("pics/2.png", png(2))
        .recipe(FOLDER);
    home.register(&[]).expect(0);
    let rows = home.rows("train");
    assert!(
        rows.len() == 2 && rows.iter().all(|row| !row.contains_key("label")),
        "{rows:?}"
    );
    home.put("pics/a/3.png", png(3)).put("pics/b/4.png", png(3));
    let said = home.fault();
    assert!(
        said.contains("pics/1.png") && said.contains("labels = false"),
        "{said}"
    );
    fs::remove_file(home.path("pics/1.png")).unwrap();
    fs::remove_file(home.path("pics/2.png")).unwrap();
    home.put("pics/deep/c/5.png", png(5));
    assert!(home.fault().contains("not equally deep"));
    home.recipe(&format!("{FOLDER}labels = true\n"));
    home.register(&[]).expect(0);
    assert_eq!(home.classes(), ["a", "b", "c"]);
    home.put("pics/b/4.png", "<html>");
    let said = home.fault();
    assert!(
        said.contains("pics/b/4.png") && said.contains("no picture of a known kind"),
        "{said}"
    );
    home.register(&["--on-error", "skip"]).expect(3);
}

#[test]
fn metadata_beside_or_above_the_pictures_are_their_features() {
    let home = Home::new();
    home.put("pics/train/a.png", png(1))
        .put("pics/train/deep/b.png", png(2))
        .put(
            "pics/train/metadata.csv",
            "file_name,text,size\na.png,\"two\nlines\",1\ndeep/b.png,\u{e9}t\u{e9},2\n",
        )
        .put("pics/test/c.png", png(3))
        .put("pics/test/metadata.csv", "file_name,text,size\nc.png,x,3\n");
    home.infer("pics", &["--name", "mine"]).expect(0);
    home.register(&[]).expect(0);
    assert_eq!(home.column("train", "text"), ["two\nlines", "\u{e9}t\u{e9}"]);
    assert_eq!(
        (home.column("train", "size"), home.column("test", "size")),
        (vec!["1".into(), "2".into()], vec!["3".into()])
    );

    // A row without a picture, a picture without a row, and what is changed in a row alone.
    home.put("pics/test/metadata.csv", "file_name,text,size\nc.png,y,3\n");
    home.register(&[]).expect(0);
    assert_eq!(home.column("test", "text"), ["y"]);
    home.put(
        "pics/test/metadata.csv",
        "file_name,text,size\nc.png,y,3\nno.png,,0\n",
    );
    let said = home.fault();
    assert!(
        said.contains("pics/test/metadata.csv: it has a row for `no.png`"),
        "{said}"
    );
    home.put("pics/test/metadata.csv", "file_name,text,size\nc.png,y,3\n");
    home.put("pics/test/d.png", png(4));
    let said = home.fault();
    assert!(
        said.contains("pics/test/d.png: it has no row in pics/test/metadata.csv"),
        "{said}"
    );
}

#[test]
fn pictures_in_archives_are_those_of_folders() {
    let metadata = "file_name,text\ncat/1.png,one\ndog/2.png,two\n";
    let members: [(&str, &[u8]); 3] = [
        ("cat/1.png", &png(1)),
        ("dog/2.png", &png(2)),
        ("metadata.csv", metadata.as_bytes()),
    ];
    let home = Home::new();
    home.put("pics.tar", tar(&members))
        .recipe("[[sources]]\npath = \"pics.tar\"\n[reader]\nkind = \"image_folder\"\nlabels = true\n");
    home.register(&[]).expect(0);
    assert_eq!(home.column("train", "text"), ["one", "two"]);
    assert_eq!(home.classes(), ["cat", "dog"]);
    home.put("pics.tar", tar(&members[1..]));
    let said = home.fault();
    assert!(
        said.contains("pics.tar, member metadata.csv: it has a row for `cat/1.png`"),
        "{said}"
    );
    let mut packed = gzip_stored(&tar(&members[..2]));
    home.put("pics.tar.gz", &packed);
    home.infer("pics.tar.gz", &["--name", "mine", "--overwrite"])
        .expect(0);
    home.register(&[]).expect(0);
    assert_eq!(home.column("train", "label"), ["0", "1"]);
    packed.truncate(packed.len() / 2);
    home.put("pics.tar.gz", &packed);
    assert!(home.fault().contains("pics.tar.gz"));
}

const TARS: &str = "[[sources]]\npath = \"tars\"\n[reader]\nkind = \"webdataset\"\n";

#[test]
fn samples_of_archives_have_the_types_that_their_names_say() {
    let home = Home::new();
    let members: [(&str, &[u8]); 7] = [
        ("x.y/k1.png", &png(1)),
        ("x.y/k1.CLS", b"3\n"),
        ("x.y/k1.json", br#"{"a": 1, "b": "t"}"#),
        ("x.y/k2.png", &png(2)),
        ("x.y/k2.cls", b"4"),
        ("x.y/k2.json", br#"{"a": 2, "b": "u"}"#),
        ("x.y/k2.txt", "\u{e9}".as_bytes()),
    ];
    home.put("tars/train-0.tar", tar(&members))
        .put("tars/test-0.tar.gz", gzip_stored(&tar(&members[..3])));
    let shown = home
        .infer("tars", &["--name", "mine", "--json"])
        .expect(0)
        .json()
        .remove(0);
    assert_eq!(shown["kind"], "webdataset");
    assert_eq!(shown["splits"], serde_json::json!({"test": 1, "train": 2}));
    home.register(&[]).expect(0);
    assert_eq!(home.column("train", "__key__"), ["x.y/k1", "x.y/k2"]);
    assert_eq!(home.column("train", "cls"), ["3", "4"]);
    assert_eq!(
        home.column("train", "txt"),
        ["", "\u{e9}"],
        "a part that is missing"
    );
    let row = &home.rows("train")[1];
    assert!(row.values().any(|value| value.ends_with('u')), "{row:?}");
}

#[test]
fn b10_names_with_dots_are_cut_where_the_recipe_says_and_odd_ones_are_named() {
    let home = Home::new();
    home.put(
        "tars/a.tar",
        tar(&[
            ("set.v2/07 Song v1.5 [live].flac", "sound"),
            ("set.v2/07 Song v1.5 [live].json", "{\"n\": 7}"),
        ]),
    )
    .recipe(TARS);
    let said = home.fault();
    assert!(
        said.contains("tars/a.tar, member set.v2/07 Song v1.5 [live].flac"),
        "{said}"
    );
    assert!(said.contains("dot = \"last\""), "{said}");
    home.recipe(&format!("{TARS}dot = \"last\"\n"));
    home.register(&[]).expect(0);
    let rows = home.rows("train");
    assert_eq!(rows.len(), 1, "both parts are in one sample");
    assert_eq!(
        (&*rows[0]["__key__"], &*rows[0]["flac"]),
        ("set.v2/07 Song v1.5 [live]", "sound")
    );
    home.put("tars/a.tar", tar(&[("k.txt", "t"), ("README", "r")]));
    assert!(home.fault().contains("member README"));
}

#[test]
fn b11_members_of_a_sample_that_are_not_adjacent_are_an_error_that_names_them() {
    let home = Home::new();
    home.put(
        "tars/a.tar",
        tar(&[
            ("k2.x", b"1"),
            ("k1.x", b"2"),
            ("k2.y", b"3"),
            ("k1.y", b"4"),
            ("k3.x", b"5"),
        ]),
    )
    .recipe(TARS);
    let said = home.fault();
    assert!(
        said.contains("tars/a.tar, member k2.y") && said.contains("sample `k2`"),
        "{said}"
    );
    // Skipping faults does not split samples either.
    let said = home.register(&["--on-error", "skip"]).expect(1).stderr;
    assert!(said.contains("member k2.y"), "{said}");
    home.put(
        "tars/a.tar",
        tar(&[
            ("k2.x", b"1"),
            ("k2.y", b"3"),
            ("k1.x", b"2"),
            ("k1.y", b"4"),
            ("k3.x", b"5"),
        ]),
    );
    home.register(&[]).expect(0);
    assert_eq!(home.column("train", "y"), ["4", "3", ""]);
}

#[test]
fn b12_a_cut_archive_is_named_with_its_last_good_member_and_the_others_are_read() {
    let home = Home::new();
    for number in 0..10 {
        let members: Vec<(String, Vec<u8>)> = (0..3)
            .flat_map(|key| {
                let name = format!("{number}-{key}");
                [
                    (format!("{name}.bin"), vec![0xff; 2000]),
                    (format!("{name}.txt"), name.into_bytes()),
                ]
            })
            .collect();
        let members: Vec<(&str, &[u8])> = members
            .iter()
            .map(|(path, data)| (path.as_str(), data.as_slice()))
            .collect();
        let mut bytes = tar(&members);
        if number == 4 {
            // In the data of the third member, the first of the second sample.
            bytes.truncate(5000);
        }
        home.put(&format!("tars/{number}.tar"), bytes);
    }
    home.recipe(TARS);
    let said = home.fault();
    assert!(
        said.contains("tars/4.tar")
            && said.contains("last whole member is `4-0.txt`")
            && said.contains("byte "),
        "{said}"
    );
    home.register(&["--on-error", "skip"]).expect(3);
    let keys = home.column("train", "__key__");
    assert_eq!(keys.len(), 9 * 3 + 1);
    assert_eq!(
        keys.iter()
            .filter(|key| key.starts_with("4-"))
            .collect::<Vec<_>>(),
        ["4-0"]
    );
}

#[test]
fn first_recipes_say_what_becomes_of_what_no_feature_can_miss() {
    let golden = fs::read(golden_path("rows").join("nulls.parquet")).unwrap();
    let lines = [
        r#"{"id": 0, "tags": ["a"], "gaps": [1, null], "inner": {"a": 1, "tags": ["x"]}}"#,
        r#"{"id": 1, "gaps": [], "inner": {"a": null, "tags": []}}"#,
        r#"{"id": 2, "tags": [], "gaps": null, "inner": null}"#,
        r#"{"id": 3, "tags": ["b", "c"], "gaps": [2], "inner": {"a": 4, "tags": null}}"#,
    ];
    let mut found = Vec::new();
    for (file, data) in [("t.parquet", golden), ("t.jsonl", lines.join("\n").into_bytes())] {
        let home = Home::new();
        home.put(file, data);
        home.infer(file, &["--name", "mine"]).expect(0);
        let text = fs::read_to_string(home.path("my.toml")).unwrap();
        for part in [
            "missing_as_empty = [\"inner\", \"tags\"]",
            "[features.gaps]\nkind = \"text\"\noptional = true",
        ] {
            assert!(text.contains(part), "{file}, {part}: {text}");
        }
        home.register(&[]).expect(0);
        found.push(home.prep.run(["cat", "mine", "--json"]).expect(0).stdout);
    }
    assert_eq!(found[0], found[1]);

    // A table without rows makes a dataset without examples.
    let home = Home::new();
    home.put(
        "t.parquet",
        fs::read(golden_path("rows").join("empty.parquet")).unwrap(),
    );
    home.infer("t.parquet", &["--name", "mine"]).expect(0);
    home.register(&[]).expect(0);
    assert!(home.rows("train").is_empty());
}

#[test]
fn first_recipes_of_tables_and_texts_work_at_once() {
    let home = Home::new();
    home.put("data/train.csv", "id,label,score\n1,yes,0.5\n2,no,\n3,yes,1.5\n")
        .put("data/test.csv", "id,label,score\n4,no,2\n");
    let shown = home
        .infer("data", &["--name", "mine", "--json"])
        .expect(0)
        .json()
        .remove(0);
    assert_eq!(shown["kind"], "csv");
    assert_eq!(shown["splits"], serde_json::json!({"test": 1, "train": 3}));
    assert_eq!(shown["classes"]["label"], serde_json::json!({"no": 2, "yes": 2}));
    home.register(&[]).expect(0);
    assert_eq!(home.classes(), ["no", "yes"]);
    let text = fs::read_to_string(home.path("my.toml")).unwrap();
    assert!(
        text.contains("path = \"data\"") && text.contains("optional = true"),
        "{text}"
    );

    let single = Home::new();
    single.put(
        "odd dir/my rows.jsonl",
        "{\"a\": [1, 2], \"b\": {\"c\": \"x\"}}\n",
    );
    let human = single.infer("odd dir/my rows.jsonl", &[]).expect(0).stdout;
    assert!(human.contains("train") && human.contains("my_rows"), "{human}");
    let recipe = single.path("my.toml");
    single
        .prep
        .run(["register", recipe.to_str().unwrap(), "-q"])
        .expect(0);
    single.prep.run(["cat", "my_rows", "--split", "train"]).expect(0);

    let mixed = Home::new();
    mixed.put("data/a.csv", "a\n1\n").put("data/b.jsonl", "{}\n");
    let said = mixed.infer("data", &[]).expect(1).stderr;
    assert!(said.contains("1 of csv") && said.contains("1 of jsonl"), "{said}");
    mixed.infer("data", &["--kind", "csv"]).expect(0);
    let said = mixed.infer("nothing", &["--overwrite"]).expect(1).stderr;
    assert!(said.contains("nothing"), "{said}");
}

#[test]
fn damaged_rows_do_not_pass_while_a_recipe_is_written() {
    let home = Home::new();
    home.put("rows.csv", "a,b\n1,2\n3\n4,5\n");
    let found = home.infer("rows.csv", &["--name", "mine"]).expect(3).stdout;
    assert!(
        found.contains("train 2") && found.contains("--on-error skip"),
        "{found}"
    );
    assert!(home.fault().contains("line 3: it has 1 fields"));
    home.register(&["--on-error", "skip"]).expect(3);
    assert_eq!(home.rows("train").len(), 2);
}

/// Cuts, sorts and shards by source are the same for any number of workers and processes.
#[test]
fn rows_of_any_reader_are_the_same_by_any_number_of_processes() {
    let lines = |from: usize, count: usize| -> String {
        let line = |id: usize| {
            format!(
                "{{\"id\": {id}, \"text\": \"{}\", \"score\": {}.5}}\n",
                "x".repeat(id % 90),
                id
            )
        };
        (from..from + count).map(line).collect()
    };
    let home = || {
        let home = Home::new();
        for file in 0..7 {
            let text = lines(file * 1000, 300 + 40 * file);
            home.put(&format!("lines/{file}.jsonl"), &text)
                .put(&format!("lines/p{file}.jsonl.gz"), gzip_stored(text.as_bytes()));
        }
        for file in 0..60u8 {
            home.put(&format!("texts/{}/{file}.txt", file % 3), format!("text {file}"))
                .put(
                    &format!("pics/train/{}/{file}.png", ["cat", "dog"][usize::from(file % 2)]),
                    png(file),
                )
                .put(&format!("pics/test/cat/{file}.png"), png(200 + file % 50));
        }
        for file in 0..5u8 {
            let members: Vec<(String, Vec<u8>)> = (0..20u8)
                .flat_map(|k| {
                    [
                        (format!("{k}.png"), png(file * 20 + k)),
                        (format!("{k}.cls"), k.to_string().into_bytes()),
                    ]
                })
                .collect();
            home.put(&format!("tars/{file}.tar"), tar(&members));
        }
        home
    };
    let recipes = [
        "[[sources]]\npath = \"lines\"\n[reader]\nkind = \"jsonl\"\n[splits]\ntrain = 0.8\ntest = 0.2\n",
        "layout = \"tfds\"\nkey = \"{file}-{id}\"\nfilter = \"score > 100\"\n[[sources]]\npath = \"lines\"\n[reader]\nkind = \"jsonl\"\n",
        "[[sources]]\npath = \"texts\"\ngroup = 10\n[reader]\nkind = \"text_files\"\n",
        "[[sources]]\npath = \"pics\"\ngroup = 10\n[reader]\nkind = \"image_folder\"\n[[splits]]\nname = \"train\"\nfiles = [\"pics/train/**\"]\n[[splits]]\nname = \"test\"\nfiles = [\"pics/test/**\"]\n",
        TARS,
    ];
    for recipe in recipes {
        let folders: Vec<Home> = ["1", "2", "3"]
            .map(|processes| {
                let home = home();
                home.recipe(recipe);
                let path = home.path("my.toml");
                let path = path.to_str().unwrap();
                let words = [
                    "launch",
                    "--processes",
                    processes,
                    "--",
                    "register",
                    path,
                    "--workers",
                    processes,
                ];
                home.prep.run(words).expect(0);
                home
            })
            .into();
        for other in &folders[1..] {
            assert_same_folder(
                folders[0].prep.catalog().join("data"),
                other.prep.catalog().join("data"),
            );
        }
    }
}
