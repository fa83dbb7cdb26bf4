//! Recipes of rows, from files to records.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use prep_catalog::manifest::Manifest;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::example::{ExampleView, FeatureView};
use prep_formats::store::{Existing, Location, Output};
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
        Manifest::read(&Location::from_path(self.data())).unwrap()
    }

    /// The records of a split in the order of the manifest, as text.
    fn rows(&self, split: &str) -> Vec<String> {
        let manifest = self.manifest();
        let mut rows = Vec::new();
        for shard in &manifest.split(split).unwrap().shards {
            let reader = Reader::open(self.data().join(&shard.path)).unwrap();
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
            digests.push((layout, folder_digest(home.data())));
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
    let (error, hint) = home.fault(JSONL);
    assert!(
        error.contains("line 1, column `tags`: wanted a list, found nothing"),
        "{error}"
    );
    assert!(hint.contains("missing_as_empty = [\"tags\"]"), "{hint}");
    home.build(&format!("missing_as_empty = [\"tags\"]\n{JSONL}"))
        .unwrap();
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
fn lists_and_nested_values_that_are_missing_are_told_and_stored_as_empty_where_that_is_asked_for() {
    let home = Home::new();
    home.put("t.parquet", golden("nulls.parquet"));
    let (mut empty, mut select) = (Vec::new(), vec!["id"]);
    for (column, part, row, wanted) in [
        ("tags", "tags", 2, "a list"),
        ("inner", "inner", 3, "nested values"),
    ] {
        select.push(column);
        let recipe = format!("select = {select:?}\nmissing_as_empty = {empty:?}\n{PARQUET}")
            .replace("missing_as_empty = []\n", "");
        let (error, hint) = home.fault(&recipe);
        let said = format!("row {row}, column `{part}`: wanted {wanted}, found nothing");
        assert!(error.contains("t.parquet") && error.contains(&said), "{error}");
        assert!(
            hint.contains(&format!("missing_as_empty = [\"{part}\"]")),
            "{hint}"
        );
        empty.push(part);
    }
    home.build(&format!(
        "select = {select:?}\nmissing_as_empty = {empty:?}\n{PARQUET}"
    ))
    .unwrap();
    assert_eq!(
        home.rows("train"),
        [
            "id=0 inner/a=1 inner/tags=x tags=a",
            "id=1 inner/tags= tags=",
            "id=2 inner/tags= tags=",
            "id=3 inner/a=4 inner/tags= tags=b,c",
        ]
    );
    // A list with a place that is empty is no sequence, and may be text.
    let (error, hint) = home.fault(&format!(
        "select = [\"gaps\"]\nmissing_as_empty = [\"gaps\"]\n{PARQUET}"
    ));
    assert!(
        error.contains("row 1, column `gaps`: wanted values in the list, found one that is missing"),
        "{error}"
    );
    assert!(
        hint.contains("[features.gaps]") && hint.contains("kind = \"text\""),
        "{hint}"
    );
    let text = "[features.gaps]\nkind = \"text\"\noptional = true\n";
    build(
        home.request(&format!("select = [\"gaps\"]\n{PARQUET}{text}"))
            .overwrite(true),
    )
    .unwrap();
    assert_eq!(home.rows("train"), ["gaps=[1,null]", "gaps=[]", "", "gaps=[2]"]);
    let (error, _) = home.fault(&format!("missing_as_empty = [\"tagz\"]\n{PARQUET}"));
    assert!(
        error.contains("`missing_as_empty`: no row has a column `tagz`"),
        "{error}"
    );
}

#[test]
fn numbers_beyond_a_type_are_told_and_infinite_ones_are_kept() {
    let big = |value: &str| format!("{{\"id\": 1, \"x\": 1.5}}\n{{\"id\": 2, \"x\": {value}}}\n");
    let home = Home::new();
    home.put("data/a.jsonl", big("1e300"));
    let (error, _) = home.fault(JSONL);
    for part in ["data/a.jsonl, record 1", "`x`", "1e300", "float32", "`bytes`"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let kept = "[features.x]\nkind = \"tensor\"\nshape = []\ndtype = \"float64\"\nencoding = \"bytes\"\n";
    home.build(&format!("{JSONL}{kept}")).unwrap();
    // In a table of texts, and as an element of a declared tensor.
    let home = Home::new();
    home.put("a.csv", "x,y\n-1e39,1\n");
    let csv = "[[sources]]\npath = \"a.csv\"\n[reader]\nkind = \"csv\"\n";
    assert!(home.fault(csv).0.contains("-1e39 is beyond"));
    home.put("a.csv", "x,y\n1e400,1\n");
    let float = "[features.x]\nkind = \"scalar\"\ndtype = \"float64\"\n";
    assert!(
        home.fault(&format!("{csv}{float}"))
            .0
            .contains("column `x`: wanted a number, found `1e400`")
    );
    let home = Home::new();
    home.put("data/a.jsonl", "{\"x\": [1.0, 1e39]}\n");
    let tensor = "[features.x]\nkind = \"tensor\"\nshape = [2]\ndtype = \"float32\"\n";
    let (error, _) = home.fault(&format!("{JSONL}{tensor}"));
    assert!(
        error.contains("column `x`: wanted a tensor of float32, found the number 1"),
        "{error}"
    );
    // What the source itself calls infinite stays.
    let home = Home::new();
    home.put("a.csv", "x\ninf\n-inf\nnan\n3.4028235e38\n");
    home.build(csv).unwrap();
    assert_eq!(
        home.rows("train"),
        [
            "x=inf",
            "x=-inf",
            "x=NaN",
            "x=340282350000000000000000000000000000000"
        ]
    );
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

/// A golden file.
fn golden(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/rows");
    std::fs::read(folder.join(name)).unwrap()
}

fn zip_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, data) in members {
        zip.start_file(*name, zip::write::SimpleFileOptions::default())
            .unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Of the types, one row has no words.
const TYPES: &str = "missing_as_empty = [\"words\"]\n";
const PARQUET: &str = "[[sources]]\npath = \"t.parquet\"\n[reader]\nkind = \"parquet\"\n";

#[test]
fn parquet_of_all_types_in_any_packing_and_number_of_row_groups() {
    let mut found = Vec::new();
    for name in ["types.parquet", "types_snappy.parquet"] {
        let home = Home::new();
        home.put("t.parquet", golden(name));
        home.build(&format!("{TYPES}{PARQUET}")).unwrap();
        found.push((home.rows("train"), home.schema(), home.manifest().fingerprint));
    }
    assert_eq!(found[0], found[1]);
    let (rows, schema, _) = &found[0];
    assert_eq!(rows.len(), 7);
    for part in [
        "i8=-2",
        "u64=-2",
        "i64=1000000000000",
        "f16=0.5",
        "f32=0.25",
        "f64=0.125",
        "flag=0",
        "text=ä",
        "maybe=x",
        "kind=b",
        "list=0 ",
        "words=w",
        "vector=1,1.5",
        "inner/a=1",
        "ünï codé=1",
        "items/k=0 items/v=0",
        "ragged/ragged_flat_values=1 ragged/ragged_row_lengths_0=1,0",
    ] {
        assert!(rows[1].contains(part), "{part}: {}", rows[1]);
    }
    assert!(
        !rows[1].contains("inner/b=") && !rows[0].contains("maybe=") && !rows[4].contains("i64="),
        "{rows:?}"
    );
    // What no row lacks is not optional, whatever the schema allows.
    let json: serde_json::Value = serde_json::from_str(schema).unwrap();
    let features = &json["featuresDict"]["features"];
    let is_optional = |name: &str| features[name].to_string().contains("ptional");
    assert!(
        is_optional("i64") && is_optional("maybe") && !is_optional("i8") && !is_optional("text"),
        "{schema}"
    );
    // A choice of columns reads only these.
    let home = Home::new();
    home.put("t.parquet", golden("types.parquet"));
    home.build(&format!(
        "select = [\"text\", \"inner\"]\nfilter = \"i8 > 1\"\n{PARQUET}"
    ))
    .unwrap();
    assert_eq!(
        home.rows("train"),
        ["inner/a=5 inner/b=5 text=f", "inner/a=6 inner/b=6 text=日本"]
    );
}

#[test]
fn parquet_knows_pictures_and_classes_of_hugging_face() {
    let home = Home::new();
    home.put("t.parquet", golden("pictures.parquet"));
    home.build(PARQUET).unwrap();
    let schema = home.schema();
    assert!(
        schema.contains("image_feature.Image") && schema.contains("ClassLabel"),
        "{schema}"
    );
    let labels = std::fs::read_to_string(home.data().join("label.labels.txt")).unwrap();
    assert_eq!(labels, "cat\ndog\neel\n");
    let rows = home.rows("train");
    assert!(
        rows[2].contains("captions=b,c grid=2,1,2,3") && rows[2].contains("label=1"),
        "{}",
        rows[2]
    );
    assert!(rows[1].contains("PNG"), "{}", rows[1]);
}

#[test]
fn parquet_types_without_a_feature_ask_for_a_cast() {
    let home = Home::new();
    home.put("t.parquet", golden("foreign.parquet"));
    let (error, hint) = home.fault(PARQUET);
    assert!(
        error.contains("t.parquet, column `at`: there is no feature for a timestamp[us]"),
        "{error}"
    );
    assert!(hint.contains("[features.at]") && hint.contains("int64"), "{hint}");
    let (error, hint) = home.fault(&format!("drop = [\"at\", \"day\"]\n{PARQUET}"));
    assert!(
        error.contains("decimal(10, 2)") && hint.contains("float64"),
        "{error} {hint}"
    );
    let cast = "[features.price]\nkind = \"scalar\"\ndtype = \"float64\"\n[features.at]\nkind = \"scalar\"\ndtype = \"int64\"\n\
                [features.day]\nkind = \"text\"\noptional = true\n";
    home.build(&format!("{PARQUET}{cast}")).unwrap();
    assert_eq!(
        home.rows("train"),
        [
            "at=1704153600000000 day=2 price=1.5",
            "at=-86400000000 price=-2.25"
        ]
    );
}

#[test]
fn parquet_that_is_empty_mixed_or_damaged_is_told() {
    let home = Home::new();
    home.put("t.parquet", golden("empty.parquet"));
    // Without rows there are no examples, and that is said; a filter that leaves none is a mistake.
    let request = home.request(PARQUET);
    let monitor = Arc::clone(&request.monitor);
    let outcome = build(request).unwrap();
    assert_eq!((outcome.splits[0].examples, outcome.splits[0].shards), (0, 0));
    let said: Vec<String> = monitor.take_notes().into_iter().map(|note| note.text).collect();
    assert!(
        said.iter()
            .any(|text| text.contains("split `train` has no examples")),
        "{said:?}"
    );
    assert!(
        home.fault(&format!("filter = \"i8 > 1\"\n{PARQUET}"))
            .0
            .contains("split `train` has no examples")
    );
    // A file without rows beside others does not matter.
    let home = Home::new();
    home.put("t.parquet", golden("empty.parquet"));
    let several = format!("{TYPES}{}", PARQUET.replace("t.parquet", "*.parquet"));
    home.put("u.parquet", golden("types.parquet"));
    home.build(&several).unwrap();
    assert_eq!(home.manifest().splits[0].records, 7);
    home.put("v.parquet", golden("foreign.parquet"));
    let (error, _) = home.fault(&several);
    assert!(error.contains("v.parquet, column `at`"), "{error}");
    let whole = golden("types.parquet");
    for length in [0, 3, 100, whole.len() / 2, whole.len() - 1] {
        let home = Home::new();
        home.put("t.parquet", &whole[..length]);
        let (error, _) = home.fault(PARQUET);
        assert!(
            error.contains("could not read t.parquet as Parquet"),
            "{length}: {error}"
        );
    }
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let home = Home::new();
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        home.put("t.parquet", damaged);
        // Right, or an error; never a panic.
        let _ = home.build(PARQUET);
    }
}

#[test]
fn arrays_of_numpy_are_columns() {
    let mut found = Vec::new();
    for name in ["arrays.npz", "packed.npz"] {
        let home = Home::new();
        home.put("a.npz", golden(name));
        home.build("[[sources]]\npath = \"a.npz\"\n[reader]\nkind = \"npz\"\n")
            .unwrap();
        found.push(home.rows("train"));
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(
        found[0][1],
        "big=1 code=c flag=0 fortran=6,7,8,9,10,11 half=0.25 label=1 name=ä x=6,7,8,9,10,11"
    );
    let home = Home::new();
    home.put("one.npy", golden("one.npy"));
    home.put("a.npz", golden("arrays.npz"));
    home.build("version = \"1.1.0\"\n[[sources]]\npath = \"a.npz\"\n[reader]\nkind = \"npz\"\n[features.label]\nkind = \"class_label\"\n")
        .unwrap();
    home.build("[[sources]]\npath = \"one.npy\"\n[reader]\nkind = \"npz\"\n[rename]\ndata = \"x\"\n")
        .unwrap();
    assert_eq!(home.rows("train")[4], "x=8,9");
    for (name, said) in [
        ("objects.npz", "pickled"),
        ("uneven.npz", "the array `b` has 4 rows, and `a` has 3"),
    ] {
        let home = Home::new();
        home.put("a.npz", golden(name));
        let (error, _) = home.fault("[[sources]]\npath = \"a.npz\"\n[reader]\nkind = \"npz\"\n");
        assert!(error.contains(said), "{error}");
    }
    let whole = golden("packed.npz");
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let home = Home::new();
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        home.put("a.npz", damaged);
        let _ = home.build("[[sources]]\npath = \"a.npz\"\n[reader]\nkind = \"npz\"\n");
    }
}

#[test]
fn records_show_their_features_and_every_format_gives_the_same() {
    use prep_formats::array_record::{WriteOptions, Writer};
    use prep_formats::example::{Example, FeatureList};

    let records: Vec<Vec<u8>> = (0..40i64)
        .map(|index| {
            let mut example = Example::default();
            let mut put = |name: &str, list| example.features.insert(name.to_owned(), list);
            put("id", FeatureList::Int64(vec![index]));
            put("vector", FeatureList::Float(vec![index as f32, 0.5]));
            put("ragged", FeatureList::Int64((0..index % 3).collect()));
            put("text", FeatureList::Bytes(vec![format!("ä{index}").into_bytes()]));
            put("raw", FeatureList::Bytes(vec![vec![0xff, index as u8]]));
            if index % 2 == 0 {
                put("maybe", FeatureList::Float(vec![1.5]));
            }
            example.encode()
        })
        .collect();
    let mut tfrecord = Vec::new();
    let mut writer =
        prep_formats::tfrecord::Writer::new(&mut tfrecord, prep_formats::tfrecord::Compression::Plain)
            .unwrap();
    for record in &records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap();
    let mut writer = Writer::new(Vec::new(), WriteOptions::parse("group_size:1,zstd:3").unwrap()).unwrap();
    for record in &records {
        writer.write(record).unwrap();
    }
    let array_record = writer.finish().unwrap();
    let mut found = Vec::new();
    for (kind, file, data) in [
        ("tfrecord", "a.tfrecord", tfrecord.clone()),
        ("tfrecord", "a.tfrecord.gz", gzip(&tfrecord)),
        ("tfrecord", "a.zip", zip_of(&[("x/a.tfrecord", &tfrecord)])),
        ("array_record", "a.array_record", array_record.clone()),
        (
            "array_record",
            "a.zip",
            zip_of(&[("x/a.array_record", &array_record)]),
        ),
    ] {
        let home = Home::new();
        home.put(file, data);
        home.build(&format!(
            "[[sources]]\npath = \"{file}\"\n[reader]\nkind = \"{kind}\"\n"
        ))
        .unwrap();
        found.push((home.rows("train"), home.schema()));
    }
    for other in &found[1..] {
        assert_eq!(*other, found[0]);
    }
    let (rows, schema) = &found[0];
    assert!(
        rows[5].contains("id=5 ragged=0,1 ") && rows[5].contains("text=ä5 vector=5,0.5"),
        "{}",
        rows[5]
    );
    assert!(schema.contains("ptional"), "{schema}");
    // A record that is damaged is told of, or skipped.
    let home = Home::new();
    let mut damaged = tfrecord.clone();
    damaged[20] ^= 1;
    home.put("a.tfrecord", damaged);
    let recipe = "[[sources]]\npath = \"a.tfrecord\"\n[reader]\nkind = \"tfrecord\"\n";
    assert!(home.fault(recipe).0.contains("a.tfrecord, record 0"));
    let outcome = build(home.request(recipe).on_error(OnError::Skip(None))).unwrap();
    assert_eq!((outcome.splits[0].examples, outcome.skipped), (39, 1));
}

#[test]
fn tables_in_archives_are_read_like_others() {
    for (kind, member, data, rows) in [
        ("parquet", "d/t.parquet", golden("types.parquet"), 7),
        ("npz", "d/a.npz", golden("packed.npz"), 5),
        ("csv", "d/a.csv", b"a,b\n1,2\n".to_vec(), 1),
        ("text_files", "d/a.txt", b"x".to_vec(), 1),
    ] {
        let home = Home::new();
        home.put("a.zip", zip_of(&[(member, &data)]));
        let types = if kind == "parquet" { TYPES } else { "" };
        home.build(&format!(
            "{types}[[sources]]\npath = \"a.zip\"\n[reader]\nkind = \"{kind}\"\n"
        ))
        .unwrap();
        assert_eq!(home.rows("train").len(), rows, "{kind}");
    }
}

/// Puts an object into the store of this process.
fn put_object(url: &str, content: &[u8]) {
    let mut output = Output::create(&Location::parse(url).unwrap(), Existing::Replace).unwrap();
    output.write_all(content).unwrap();
    output.commit().unwrap();
}

#[test]
fn objects_of_a_store_are_read_as_files_of_a_folder_are() {
    let files = [
        ("data/a/x.jsonl", "{\"id\": 1}\n"),
        ("data/a-b.jsonl", "{\"id\": 2}\n"),
        ("data/a/ü %.jsonl", "{\"id\": 3}\n{\"id\": 4}\n"),
        ("data/.hidden.jsonl", "no"),
        ("data/a/.tmp/y.jsonl", "no"),
        ("data/z~", "no"),
        ("data/notes.md", "no"),
    ];
    let local = Home::new();
    for (path, text) in files {
        local.put(path, text);
        put_object(
            &format!("memory:///rows/{}", path.replace('%', "%25")),
            text.as_bytes(),
        );
    }
    let data = local.path("data");
    let data = data.display();
    let kind = |source: &str, reader: &str| format!("[[sources]]\n{source}\n[reader]\nkind = \"{reader}\"\n");
    // A pattern, a whole folder, files that share shards, one file.
    for (here, there, reader, more) in [
        (format!("{data}/**.jsonl"), "data/**.jsonl", "jsonl", ""),
        (format!("{data}/a"), "data/a", "jsonl", ""),
        (format!("{data}/a"), "data/a/", "jsonl", ""),
        (
            format!("{data}/**.jsonl"),
            "data/**.jsonl",
            "text_files",
            "group = 2",
        ),
        (format!("{data}/a/x.jsonl"), "data/a/x.jsonl", "jsonl", ""),
    ] {
        let request = local.request(&kind(&format!("path = \"{here}\"\n{more}"), reader));
        build(request.overwrite(true)).unwrap();
        let wanted = local.manifest();
        let stored = Home::new();
        let recipe = kind(&format!("url = \"memory:///rows/{there}\"\n{more}"), reader);
        assert_eq!(stored.build(&recipe).unwrap().status, Status::Built, "{there}");
        let found = stored.manifest();
        assert_eq!(found.sources, wanted.sources, "{there}");
        assert_eq!(found.splits, wanted.splits, "{there}");
        assert_eq!(found.fingerprint, wanted.fingerprint, "{there}");
        let again = stored.build(&recipe).unwrap();
        assert_eq!(again.status, Status::UpToDate, "{there}");
    }
}

#[test]
fn a_store_in_from_has_the_files_whatever_lies_beside_the_recipe() {
    let files = [
        ("data/x.jsonl", "{\"id\": 1}\n"),
        ("data/more/y.jsonl", "{\"id\": 2}\n{\"id\": 3}\n"),
    ];
    let local = Home::new();
    for (path, text) in files {
        local.put(path, text);
        put_object(&format!("memory:///moved/{path}"), text.as_bytes());
    }
    for (path, from) in [
        ("data/**.jsonl", "memory:///moved"),
        ("data/**.jsonl", "memory:///moved/data/"),
        ("data", "memory:///moved"),
        ("data/x.jsonl", "memory:///moved"),
        ("data/x.jsonl", "memory:///moved/data/x.jsonl"),
    ] {
        let recipe = format!("[[sources]]\npath = \"{path}\"\n[reader]\nkind = \"jsonl\"\n");
        build(local.request(&recipe).overwrite(true)).unwrap();
        let wanted = local.manifest();
        let moved = Home::new();
        moved.put("data/x.jsonl", "{\"id\": 9}\n");
        let request = || moved.request(&recipe).from(vec![from.to_owned()]);
        assert_eq!(build(request()).unwrap().status, Status::Built, "{path} {from}");
        assert_eq!(moved.manifest().sources, wanted.sources, "{path} {from}");
        assert_eq!(moved.manifest().fingerprint, wanted.fingerprint, "{path} {from}");
    }
    // Nowhere: what lies beside the recipe is not taken instead.
    let moved = Home::new();
    moved.put("data/z.jsonl", "{\"id\": 9}\n");
    moved.put("other/a.txt", "");
    let recipe = "[[sources]]\npath = \"data/z.jsonl\"\n[[sources]]\npath = \"data/w.jsonl\"\n[reader]\nkind = \"jsonl\"\n";
    let folder = moved.path("other").display().to_string();
    for from in ["memory:///moved", &folder] {
        let error = build(moved.request(recipe).from(vec![from.to_owned()])).unwrap_err();
        let said = format!("{error:#}");
        assert!(
            said.contains(&format!("could not find `data/z.jsonl` in `{from}`")),
            "{said}"
        );
    }
}

#[test]
fn a_quote_that_is_not_closed_takes_in_no_rows_silently() {
    let recipe = "[[sources]]\npath = \"data/*.csv\"\n[reader]\nkind = \"csv\"\n";
    for (text, line) in [
        ("a,b\n1,\"2\n3,4\n5,6\n", 2),
        ("a,b\n1,2\n3,\"4", 3),
        ("a,\"b\n1,2\n", 1),
    ] {
        let home = Home::new();
        home.put("data/x.csv", text);
        let (said, hint) = home.fault(recipe);
        assert!(
            said.contains(&format!("data/x.csv, line {line}: a quote opens")),
            "{said}"
        );
        assert!(hint.contains("quote = \"\""), "{hint}");
    }
    // Quotes that are closed, and quotes that mean nothing.
    let home = Home::new();
    home.put("data/x.csv", "a,b\n1,\"2\n3,\"\"4\"\n5,6\n\n");
    home.build(recipe).unwrap();
    assert_eq!(home.rows("train"), ["a=1 b=2\n3,\"4", "a=5 b=6"]);
    let home = Home::new();
    home.put("data/x.csv", "a,b\n1,\"2\n3,4");
    home.build(&format!("{recipe}quote = \"\"\n")).unwrap();
    assert_eq!(home.rows("train"), ["a=1 b=\"2", "a=3 b=4"]);
}

#[test]
fn where_no_row_can_be_read_the_first_damage_is_told() {
    let home = Home::new();
    home.put("data/a.jsonl", "{\"id\": 1} x\n[2]\n");
    let (said, hint) = home.fault(JSONL);
    assert!(said.contains("data/a.jsonl, line 1: "), "{said}");
    assert!(hint.contains("no row could be read"), "{hint}");
}

#[test]
fn links_that_lead_nowhere_are_not_passed_over() {
    let home = Home::new();
    home.put("data/a.jsonl", "{\"id\": 1}\n");
    std::os::unix::fs::symlink("nowhere", home.path("data/b.jsonl")).unwrap();
    let (said, _) = home.fault(JSONL);
    assert!(said.contains("data/b.jsonl"), "{said}");
}
