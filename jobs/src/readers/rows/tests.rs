//! Recipes of rows, from files to records.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use prep_catalog::manifest::Manifest;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::example::{ExampleView, FeatureView};
use prep_formats::store::Location;
use prep_testing::folder_digest;

use crate::build::{BuildOutcome, BuildRequest, OnError, Status, build};
use crate::error::{Hinted, find};
use crate::readers::RecipeBuilder;
use crate::recipe::parse;

/// A folder with a recipe, its data, and a catalog.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    fn request(&self, recipe: &str) -> BuildRequest {
        let text = format!("format = 1\nname = \"mine\"\n{recipe}");
        let recipe = parse("my.toml", &text, self.folder.path()).unwrap();
        BuildRequest::new(Arc::new(RecipeBuilder::new(recipe)))
            .catalog(self.path("catalog").to_str().unwrap())
            .workers(2)
            .memory_bytes(64 << 20)
    }

    fn build(&self, recipe: &str) -> Result<BuildOutcome> {
        build(self.request(recipe))
    }

    fn fault(&self, recipe: &str) -> (String, String) {
        let error = build(self.request(recipe).overwrite(true)).unwrap_err();
        let hint = find::<Hinted>(&error).map_or(String::new(), |hinted| hinted.hint.clone());
        (format!("{error:#}"), hint)
    }

    fn data(&self) -> PathBuf {
        self.path("catalog/data/mine/1.0.0")
    }

    fn manifest(&self) -> Manifest {
        Manifest::read(&Location::from_path(&self.data())).unwrap()
    }

    /// The records of a split in the order of the manifest, as text.
    fn rows(&self, split: &str) -> Vec<String> {
        let manifest = self.manifest();
        let mut rows = Vec::new();
        for shard in &manifest.split(split).unwrap().shards {
            let reader = Reader::open(&self.data().join(&shard.path)).unwrap();
            let mut scratch = Scratch::default();
            for index in 0..reader.num_records() {
                let record = reader.record(index, &mut scratch).unwrap();
                rows.push(shown(record));
            }
        }
        rows
    }

    fn schema(&self) -> String {
        std::fs::read_to_string(self.data().join("features.json")).unwrap()
    }
}

fn shown(record: &[u8]) -> String {
    let example = ExampleView::parse(record).unwrap();
    let features = example.iter().map(|(name, feature)| {
        let values: Vec<String> = match feature {
            FeatureView::Bytes(list) => list
                .iter()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
                .collect(),
            FeatureView::Int64(list) => list.iter().map(|value| value.to_string()).collect(),
            FeatureView::Float(list) => list.iter().map(|value| value.to_string()).collect(),
            _ => Vec::new(),
        };
        format!("{name}={}", values.join(","))
    });
    features.collect::<Vec<_>>().join(" ")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
    zstd_safe::compress(&mut out, bytes, 3).unwrap();
    out
}

const JSONL: &str = "[[sources]]\npath = \"data/*.jsonl*\"\n[reader]\nkind = \"jsonl\"\n";

#[test]
fn json_lines_plain_and_packed_keep_the_order_of_files_and_lines() {
    let home = Home::new();
    home.put(
        "data/b.jsonl",
        "{\"id\": 3, \"text\": \"drei\"}\n\n{\"id\": 4, \"text\": \"vier\"}",
    )
    .put(
        "data/a.jsonl.gz",
        gzip("{\"id\": 1, \"text\": \"öins\"}\r\n".as_bytes()),
    )
    .put(
        "data/c.jsonl.zst",
        zstd(b"\xef\xbb\xbf{\"id\": 5, \"text\": \"f\"}\n"),
    )
    .put("data/empty.jsonl", "");
    let outcome = home.build(JSONL).unwrap();
    assert_eq!((outcome.status, outcome.splits[0].examples), (Status::Built, 4));
    assert_eq!(
        home.rows("train"),
        [
            "id=1 text=öins",
            "id=3 text=drei",
            "id=4 text=vier",
            "id=5 text=f"
        ]
    );
    let manifest = home.manifest();
    assert_eq!(manifest.layout, "by-source");
    let names: Vec<&str> = manifest
        .sources
        .iter()
        .map(|source| source.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "data/a.jsonl.gz",
            "data/b.jsonl",
            "data/c.jsonl.zst",
            "data/empty.jsonl"
        ]
    );
    // A file of nothing has no shard.
    assert_eq!(manifest.splits[0].shards.len(), 3);
    assert!(manifest.splits[0].shards[0].path.starts_with("mine-train.a-"));
    assert_eq!(home.build(JSONL).unwrap().status, Status::UpToDate);
}

#[test]
fn the_bytes_are_the_same_for_any_workers_and_memory() {
    let mut digests = Vec::new();
    for (workers, memory) in [(1, 16 << 20), (2, 64 << 20), (5, 512 << 20)] {
        for layout in ["by-source", "tfds"] {
            let home = Home::new();
            for file in 0..7 {
                let lines: Vec<String> = (0..500 * file)
                    .map(|row| {
                        format!(
                            "{{\"id\": {row}, \"x\": [{}], \"s\": \"{file}-{row}\"}}",
                            row as f32 / 2.0
                        )
                    })
                    .collect();
                let text = lines.join("\n");
                match file % 2 {
                    0 => home.put(&format!("data/{file}.jsonl"), text),
                    _ => home.put(&format!("data/{file}.jsonl.gz"), gzip(text.as_bytes())),
                };
            }
            let recipe = format!(
                "layout = \"{layout}\"\nfilter = \"id >= 10 and not s == '3-11'\"\nkey = \"{{s}}\"\n{JSONL}[splits]\ntrain = 0.75\ntest = 0.25\n"
            );
            let outcome = build(home.request(&recipe).workers(workers).memory_bytes(memory)).unwrap();
            let counts: Vec<u64> = outcome.splits.iter().map(|split| split.examples).collect();
            assert_eq!(counts.iter().sum::<u64>(), 500 * 21 - 60 - 1);
            assert!((2400..2850).contains(&counts[1]), "{counts:?}");
            digests.push((layout, folder_digest(&home.data())));
        }
    }
    for layout in ["by-source", "tfds"] {
        let of: Vec<_> = digests.iter().filter(|(other, _)| *other == layout).collect();
        assert!(of.windows(2).all(|pair| pair[0] == pair[1]), "{layout}");
    }
}

#[test]
fn splits_follow_from_paths_and_each_file_has_one() {
    let home = Home::new();
    home.put("data/train/a.jsonl", "{\"x\": 1}")
        .put("data/train/b.jsonl", "{\"x\": 2}")
        .put("data/test/a.jsonl", "{\"x\": 3}");
    let recipe = |splits: &str| {
        format!("[[sources]]\npath = \"data/**/*.jsonl\"\n[reader]\nkind = \"jsonl\"\n{splits}")
    };
    let good = "[[splits]]\nname = \"train\"\nfiles = [\"**/train/*\"]\n[[splits]]\nname = \"test\"\nfiles = [\"data/test/*.jsonl\"]\n";
    home.build(&recipe(good)).unwrap();
    assert_eq!(home.rows("train"), ["x=1", "x=2"]);
    assert_eq!(home.rows("test"), ["x=3"]);
    for (splits, said) in [
        (
            "[[splits]]\nname = \"train\"\nfiles = [\"**\"]\n[[splits]]\nname = \"test\"\nfiles = [\"data/test/*\"]\n",
            "data/test/a.jsonl belongs to the splits `train` and `test`",
        ),
        (
            "[[splits]]\nname = \"train\"\nfiles = [\"data/train/*\"]\n",
            "data/test/a.jsonl belongs to none of the splits",
        ),
        (
            "[[splits]]\nname = \"train\"\nfiles = [\"**\"]\n[[splits]]\nname = \"test\"\nfiles = [\"data/tset/*\"]\n",
            "my.toml, line 12, `splits[1].files`: no file fits `data/tset/*`",
        ),
    ] {
        let (error, _) = home.fault(&recipe(splits));
        assert!(error.contains(said), "{error}");
    }
    let (error, hint) = home.fault("[[sources]]\npath = \"data/*.jsonl\"\n[reader]\nkind = \"jsonl\"\n");
    assert!(
        error.contains("my.toml, line 4, `sources[0].path`: no file of") && hint.contains("test/a.jsonl"),
        "{error} {hint}"
    );
}

#[test]
fn columns_are_chosen_renamed_and_cast() {
    let home = Home::new();
    home.put(
        "data/a.csv",
        "id,name,price,kind,zip\n1,\"Müller, \"\"A\"\"\",2.5,dog,00501\n2,,,cat,10115\n3,\"two\nlines\",NA,dog,\n",
    );
    let recipe = "filter = \"id != 3 or has(price)\"\ndrop = [\"id\"]\n[rename]\nname = \"title\"\n[[sources]]\npath = \"data/a.csv\"\n\
                  [reader]\nkind = \"csv\"\nnulls = [\"NA\"]\n[features.kind]\nkind = \"class_label\"\n";
    home.build(recipe).unwrap();
    assert_eq!(
        home.rows("train"),
        [
            "kind=1 price=2.5 title=Müller, \"A\" zip=00501",
            "kind=0 title= zip=10115"
        ]
    );
    let labels = std::fs::read_to_string(home.data().join("kind.labels.txt")).unwrap();
    assert_eq!(labels, "cat\ndog\n");
    for (change, said) in [
        ("drop = [\"idd\"]", "did you mean `id`?"),
        ("select = [\"names\"]", "did you mean `name`?"),
        ("filter = \"pric > 1\"", "did you mean `price`?"),
        ("key = \"{idd}\"", "did you mean `id`?"),
        ("supervised_keys = [\"name\", \"kid\"]", "there are `id`"),
    ] {
        let text = format!(
            "{change}\n[[sources]]\npath = \"data/a.csv\"\n[reader]\nkind = \"csv\"\nnulls = [\"NA\"]\n"
        );
        let (error, hint) = home.fault(&text);
        assert!(hint.contains(said), "{error} {hint}");
    }
}

#[test]
fn rows_that_do_not_fit_name_file_line_column_and_a_way_out() {
    let home = Home::new();
    home.put("data/a.jsonl", "{\"x\": 1}\n{\"x\": 2}\n")
        .put("data/b.jsonl", "{\"x\": 1}\n{\"x\": \"two\"}\n");
    let (error, hint) = home.fault(JSONL);
    assert!(
        error.contains(
            "data/b.jsonl, line 2, column `x`: found a text, where data/a.jsonl, line 1 has an integer"
        ),
        "{error}"
    );
    assert!(hint.contains("[features.x]"), "{hint}");
    // What is declared, or follows from a sample, is held against every row.
    for recipe in [
        format!("{JSONL}[features.x]\nkind = \"scalar\"\ndtype = \"int64\"\n"),
        JSONL.replace("kind =", "sample = 1\nkind ="),
    ] {
        let (error, hint) = home.fault(&recipe);
        assert!(
            error.contains("data/b.jsonl, record 1")
                && error.contains("line 2, column `x`: wanted an integer, found the text `two`"),
            "{error}"
        );
        assert!(hint.contains("[features.x]"), "{hint}");
        let outcome = build(home.request(&recipe).on_error(OnError::Skip(None))).unwrap();
        assert_eq!((outcome.splits[0].examples, outcome.skipped), (3, 1));
        std::fs::remove_dir_all(home.path("catalog")).unwrap();
    }
    let text = format!("{JSONL}[features.x]\nkind = \"text\"\n");
    home.build(&text).unwrap();
    assert_eq!(home.rows("train"), ["x=1", "x=2", "x=1", "x=two"]);
}

#[test]
fn damaged_lines_are_told_or_skipped() {
    let home = Home::new();
    home.put(
        "data/a.jsonl",
        b"{\"x\": 1}\n{\"x\": \n[1]\n{\"x\": 1, \"x\": 2}\n\xff\n{\"x\": 7}\n",
    );
    let (error, _) = home.fault(JSONL);
    assert!(
        error.contains("line 2: it is not JSON: EOF while parsing a value at column"),
        "{error}"
    );
    let outcome = build(home.request(JSONL).on_error(OnError::Skip(None))).unwrap();
    assert_eq!((outcome.splits[0].examples, outcome.skipped), (2, 4));
    let home = Home::new();
    home.put("data/a.jsonl.gz", &gzip(b"{\"x\": 1}\n")[..20]);
    let (error, _) = home.fault(JSONL);
    assert!(
        error.contains("data/a.jsonl.gz: the gzip data are cut short"),
        "{error}"
    );
    let home = Home::new();
    home.put("data/a.jsonl.zst", &zstd(&vec![b' '; 5000])[..12]);
    let (error, _) = home.fault(JSONL);
    assert!(error.contains("the Zstandard data are"), "{error}");
}

#[test]
fn tables_of_odd_shapes_are_errors_that_say_so() {
    for (text, said) in [
        ("a,a\n1,2\n", "two columns are called `a`"),
        ("a,,b\n1,2,3\n", "column 2 has no name"),
        (
            "a,b\n1,2\n1\n",
            "line 3: it has 1 fields, and there are 2 columns",
        ),
        ("a,b\n", "have no rows"),
        ("", "have no rows"),
        ("a\n\u{e9}\n", ""),
    ] {
        let home = Home::new();
        home.put("a.csv", text);
        let recipe = "[[sources]]\npath = \"a.csv\"\n[reader]\nkind = \"csv\"\n";
        if said.is_empty() {
            home.build(recipe).unwrap();
            continue;
        }
        let (error, _) = home.fault(recipe);
        assert!(error.contains(said), "{text:?}: {error}");
    }
    let home = Home::new();
    home.put("a.tsv", b"x\ty\n1\t\"a\n2\tb\xff\n");
    let recipe = "[[sources]]\npath = \"a.tsv\"\n[reader]\nkind = \"tsv\"\nquote = \"\"\n";
    let (error, _) = home.fault(recipe);
    assert!(
        error.contains("line 3") && error.contains("`y` is not UTF-8"),
        "{error}"
    );
    let home = Home::new();
    home.put("a.csv", "1;2\n3;4\n");
    let recipe = "[[sources]]\npath = \"a.csv\"\n[reader]\nkind = \"csv\"\nheader = false\ncolumns = [\"x\", \"y\"]\ndelimiter = \";\"\n";
    home.build(recipe).unwrap();
    assert_eq!(home.rows("train"), ["x=1 y=2", "x=3 y=4"]);
}

#[test]
fn texts_are_lines_or_whole_files() {
    let home = Home::new();
    home.put("a.txt", "eins\n\nzwei\n");
    home.build("[[sources]]\npath = \"a.txt\"\n[reader]\nkind = \"text\"\n")
        .unwrap();
    assert_eq!(home.rows("train"), ["text=eins", "text=", "text=zwei"]);

    let home = Home::new();
    for index in 0..3000 {
        home.put(
            &format!("docs/{}/{index}.txt", index % 3),
            format!("<html>{index}"),
        );
    }
    let recipe = "[[sources]]\npath = \"docs\"\n[reader]\nkind = \"text_files\"\n";
    home.build(recipe).unwrap();
    let rows = home.rows("train");
    assert_eq!(rows.len(), 3000);
    assert!(rows.is_sorted());
    assert_eq!(rows[0], "path=docs/0/0.txt text=<html>0");
    let sets = home.manifest();
    assert!((1..30).contains(&sets.sources.len()), "{}", sets.sources.len());
    // A new file changes the set that it comes into, and no other.
    home.put("docs/1/new.txt", "x");
    build(home.request(recipe).overwrite(true)).unwrap();
    let after = home.manifest();
    let hashes = |manifest: &Manifest| -> Vec<String> {
        manifest
            .sources
            .iter()
            .map(|source| source.sha256.clone())
            .collect()
    };
    let (before, after) = (hashes(&sets), hashes(&after));
    let changed = after.iter().filter(|hash| !before.contains(hash)).count();
    assert!((1..=2).contains(&changed), "{changed}");
}

#[test]
fn files_in_archives_are_read_like_others() {
    let home = Home::new();
    let mut tar = tar::Builder::new(Vec::new());
    for (name, text) in [
        ("train/a.jsonl", "{\"x\": 1}\n{\"x\": 2}\n"),
        ("notes.md", "#"),
        ("test/b.jsonl", "{\"x\": 3}\n"),
    ] {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    home.put("data.tar.gz", gzip(&tar.into_inner().unwrap()));
    let recipe = "[[sources]]\npath = \"data.tar.gz\"\n[reader]\nkind = \"jsonl\"\n[[splits]]\nname = \"train\"\nfiles = [\"train/*\"]\n\
                  [[splits]]\nname = \"test\"\nfiles = [\"test/*\"]\n";
    home.build(recipe).unwrap();
    assert_eq!(home.rows("train"), ["x=1", "x=2"]);
    assert_eq!(home.rows("test"), ["x=3"]);
    let (error, hint) = home.fault(&recipe.replace("jsonl\"", "csv\""));
    assert!(
        error.contains("no file whose name ends in .csv") && hint.contains("notes.md"),
        "{error} {hint}"
    );
}

#[test]
fn nested_values_and_missing_ones() {
    let home = Home::new();
    home.put(
        "data/a.jsonl",
        "{\"box\": {\"x\": [1, 2], \"n\": null}, \"tags\": null, \"odd name/ü\": true, \"m\": [[1.5], []]}\n{\"box\": {\"x\": [], \"n\": 3}, \"tags\": [\"a\"], \"odd name/ü\": false, \"m\": []}\n",
    );
    home.build(JSONL).unwrap();
    let rows = home.rows("train");
    assert!(
        rows[0].contains("box/x=1,2") && !rows[0].contains("box/n="),
        "{rows:?}"
    );
    assert!(
        rows[0].contains("odd name/ü=1") && rows[1].contains("tags=a"),
        "{rows:?}"
    );
    assert!(home.schema().contains("Sequence"));
}

#[test]
fn recipes_of_rows_are_checked() {
    let base = "format = 1\nname = \"mine\"\n";
    let source = "[[sources]]\npath = \"a.jsonl\"\n[reader]\nkind = \"jsonl\"\n";
    for (text, field, said) in [
        ("layout = \"heap\"\n".to_owned() + source, "layout", "`by-source`"),
        ("filter = \"a = 1\"\n".to_owned() + source, "filter", "write `==`"),
        ("key = \"{a\"\n".to_owned() + source, "key", "brace"),
        ("select = [\"a\", \"a\"]\n".to_owned() + source, "select", "twice"),
        (
            "select = [\"a\"]\ndrop = [\"b\"]\n".to_owned() + source,
            "drop",
            "not both",
        ),
        (
            source.to_owned() + "[splits]\ntrain = 0.9\ntest = 0.2\n",
            "splits",
            "add up to",
        ),
        (
            source.to_owned() + "[splits]\ntrain = 0.0\n",
            "splits.train",
            "not a share",
        ),
        (
            source.to_owned() + "[[splits]]\nname = \"a\"\nshards = 2\n",
            "splits[0].shards",
            "by-source",
        ),
        (
            source.to_owned() + "[[splits]]\nname = \"a\"\n[[splits]]\nname = \"b\"\nfiles = [\"x\"]\n",
            "splits[0].files",
            "all files",
        ),
        (
            source.to_owned()
                + "[[splits]]\nname = \"a\"\nfraction = 0.5\n[[splits]]\nname = \"b\"\nfiles = [\"x\"]\n",
            "splits",
            "each needs one",
        ),
        (
            source.to_owned() + "delimiter = \",\"\n",
            "reader.delimiter",
            "does not have this",
        ),
        (
            source.to_owned() + "[features.a]\nkind = \"sequence\"\n",
            "features.a.feature",
            "missing",
        ),
        (
            source.to_owned() + "[features.a]\nkind = \"image\"\nshape = [-1, -1, 3]\noptional = true\n",
            "features.a.optional",
            "cannot be missing",
        ),
        (
            source
                .replace("jsonl\"\n", "jsonll\"\n")
                .replace("path = \"a.jsonll", "path = \"a.jsonl"),
            "reader.kind",
            "did you mean `jsonl`",
        ),
    ] {
        let error = parse("my.toml", &(base.to_owned() + &text), Path::new("")).unwrap_err();
        assert_eq!(error.field, field, "{error}");
        assert!(error.reason.contains(said) && error.line.is_some(), "{error}");
    }
    let good = source.to_owned()
        + "[features.a]\nkind = \"sequence\"\nfeature = { kind = \"dict\", features = { x = { kind = \"text\", optional = true } } }\n";
    parse("my.toml", &(base.to_owned() + &good), Path::new("")).unwrap();
}
