//! Built-in datasets against what TFDS's own builders make of the same archives: `tests/golden/recipes`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::example::{ExampleView, FeatureView};
use prep_testing::archive::{read_tar_gz, tar, write_tar_gz};
use prep_testing::{assert_same_folder, folder_digest, golden_path};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use crate::build::{BuildOutcome, BuildRequest, OnError};
use crate::error::Hinted;
use crate::explain::Graph;
use crate::readers::RecipeBuilder;
use crate::recipe::{self, builtin};

/// (dataset, config), as in the golden files' names.
const CASES: [(&str, Option<&str>); 10] = [
    ("beans", None),
    ("eurosat", Some("all")),
    ("eurosat", Some("rgb")),
    ("food101", None),
    ("imagenette", Some("160px-v2")),
    ("imagenette", Some("full-size")),
    ("imdb_reviews", Some("plain_text")),
    ("oxford_iiit_pet", None),
    ("stl10", None),
    ("tf_flowers", None),
];

fn golden(dataset: &str, config: Option<&str>) -> Json {
    let config = config.map_or(String::new(), |config| format!("-{config}"));
    let path = golden_path(format!("recipes/{dataset}{config}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn request(home: &Path, recipe: recipe::Recipe, from: &Path) -> BuildRequest {
    BuildRequest::new(Arc::new(RecipeBuilder::new(recipe)))
        .catalog(home.join("catalog").to_str().unwrap())
        .from(vec![from.to_str().unwrap().to_owned()])
        .check_sums(false)
        .workers(2)
        .memory_bytes(64 << 20)
}

fn build_of(home: &Path, dataset: &str, config: Option<&str>, from: &Path) -> anyhow::Result<BuildOutcome> {
    let name = config.map_or(dataset.to_owned(), |config| format!("{dataset}/{config}"));
    crate::build(request(home, builtin::find(&name).unwrap(), from))
}

fn records(path: &Path) -> Vec<Vec<u8>> {
    let reader = Reader::open(path).unwrap();
    let mut records = Vec::new();
    let count = reader.num_records();
    let visit = |_, record: &[u8]| {
        records.push(record.to_vec());
        Ok(())
    };
    reader.for_each(0..count, &mut Scratch::default(), visit).unwrap();
    records
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Whether a feature of a record is what TFDS wrote, in the ways that the golden files have.
fn assert_feature(found: Option<&FeatureView<'_>>, wanted: &Json, place: &str) {
    match found {
        Some(FeatureView::Int64(list)) => {
            let found: Vec<i64> = list.iter().collect();
            assert_eq!(serde_json::json!(found), wanted["ints"], "{place}");
        }
        Some(FeatureView::Float(list)) => {
            let found: Vec<f32> = list.iter().collect();
            match wanted.get("sha256") {
                None => {
                    let wanted = wanted["floats"].as_array().unwrap();
                    let wanted: Vec<f32> = wanted.iter().map(|n| n.as_f64().unwrap() as f32).collect();
                    assert_eq!(found, wanted, "{place}");
                }
                Some(wanted_hash) => {
                    assert_eq!(found.len() as u64, wanted["floats"], "{place}");
                    let bytes: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
                    assert_eq!(sha256(&bytes), *wanted_hash, "{place}");
                }
            }
        }
        Some(FeatureView::Bytes(list)) => {
            let found = list.first().unwrap();
            if let Some(text) = wanted.get("text") {
                assert_eq!(text.as_str().unwrap().as_bytes(), found, "{place}");
            } else if wanted.get("bytes").is_some() {
                assert_eq!(found.len() as u64, wanted["bytes"], "{place}");
                assert_eq!(sha256(found), wanted["sha256"], "{place}");
            } else if wanted.get("png").is_some() {
                // Files depend on the encoder, pixels do not.
                let mut pixels = Vec::new();
                let info = prep_formats::png::Decoder::new()
                    .decode_append(found, None, 8, &mut pixels)
                    .unwrap();
                let shape = serde_json::json!([info.height, info.width, info.channels]);
                assert_eq!(shape, wanted["png"], "{place}");
                assert_eq!(sha256(&pixels), wanted["sha256"], "{place}");
            } else {
                assert_jpeg(found, wanted, place);
            }
        }
        other => panic!("{place}: {other:?}"),
    }
}

/// Whether a JPEG file has nearly the pixels that TFDS's has: encoders and decoders differ.
fn assert_jpeg(file: &[u8], wanted: &Json, place: &str) {
    use zune_jpeg::zune_core::bytestream::ZCursor;

    let mut decoder = zune_jpeg::JpegDecoder::new(ZCursor::new(file));
    let found = decoder.decode().unwrap();
    let (width, height) = decoder.dimensions().unwrap();
    assert_eq!(serde_json::json!([height, width, 3]), wanted["jpeg"], "{place}");
    let wanted = base64::engine::general_purpose::STANDARD
        .decode(wanted["pixels"].as_str().unwrap())
        .unwrap();
    assert_eq!(found.len(), wanted.len(), "{place}");
    let differences = found.iter().zip(&wanted).map(|(a, b)| u64::from(a.abs_diff(*b)));
    let mean = differences.clone().sum::<u64>() as f64 / found.len() as f64;
    assert!(mean < 3.0, "{place}: pixels are {mean} apart");
    assert!(differences.max() < Some(40), "{place}");
}

#[test]
fn what_is_built_is_what_tfds_builds() {
    for (dataset, config) in CASES {
        let home = tempfile::tempdir().unwrap();
        let golden = golden(dataset, config);
        let from = golden_path(format!("recipes/{dataset}"));
        let before = folder_digest(&from);
        let outcome = build_of(home.path(), dataset, config, &from).unwrap();
        assert_eq!(folder_digest(&from), before, "sources are left as they were");
        assert_eq!(outcome.version, golden["version"].as_str().unwrap());
        let folder = PathBuf::from(&outcome.path);
        let relative = config.map_or(PathBuf::from(dataset), |config| Path::new(dataset).join(config));
        assert!(
            folder.ends_with(relative.join(&outcome.version)),
            "{}",
            folder.display()
        );
        for (name, text) in golden["files"].as_object().unwrap() {
            let ours = std::fs::read_to_string(folder.join(name)).unwrap();
            let blind = |text: &str| {
                // Files of pictures that are written anew differ in size.
                let anew = ["stl10", "oxford_iiit_pet"].contains(&dataset);
                let lines = text
                    .lines()
                    .filter(|line| !(anew && line.contains("\"numBytes\"")));
                lines.collect::<Vec<_>>().join("\n")
            };
            assert_eq!(
                blind(&ours),
                blind(text.as_str().unwrap()),
                "{dataset} {config:?}: {name}"
            );
        }
        for (split, wanted) in golden["splits"].as_object().unwrap() {
            let mut position = 0;
            for shard in wanted["shards"].as_array().unwrap() {
                let path = shard["path"].as_str().unwrap();
                let records = records(&folder.join(path));
                assert_eq!(records.len() as u64, shard["records"], "{path}");
                for record in &records {
                    let wanted = &wanted["positions"][position];
                    let place = format!("{dataset} {config:?} {split}[{position}], key {}", wanted["key"]);
                    let view = ExampleView::parse(record).unwrap();
                    let features = wanted["features"].as_object().unwrap();
                    for (name, wanted) in features {
                        assert_feature(view.get(name), wanted, &format!("{place}: `{name}`"));
                    }
                    position += 1;
                }
            }
            assert_eq!(
                position,
                wanted["positions"].as_array().unwrap().len(),
                "{dataset} {split}"
            );
        }
    }
}

type Members = Vec<(String, Vec<u8>)>;

/// Builds from the golden archives of a dataset, one of them with its members changed; gives the folder that holds the dataset.
fn build_changed(
    home: &Path,
    dataset: &str,
    archive: &str,
    change: impl FnOnce(&mut Members),
) -> anyhow::Result<BuildOutcome> {
    let from = home.join("from");
    std::fs::create_dir(&from).unwrap();
    for entry in std::fs::read_dir(golden_path(format!("recipes/{dataset}"))).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, from.join(path.file_name().unwrap())).unwrap();
    }
    let mut members = read_tar_gz(from.join(archive));
    change(&mut members);
    write_tar_gz(from.join(archive), &members);
    build_of(home, dataset, None, &from)
}

#[track_caller]
fn assert_fails(result: anyhow::Result<BuildOutcome>, texts: &[&str]) {
    let error = result.unwrap_err();
    let hint = crate::error::find::<Hinted>(&error).map_or("", |hinted| &hinted.hint);
    let shown = format!("{error:#}; hint: {hint}");
    for text in texts {
        assert!(shown.contains(text), "`{text}` is not in: {shown}");
    }
}

/// Lists before and after what they list, labels before and after their pictures.
#[test]
fn members_may_come_in_any_order() {
    for (dataset, archive) in [
        ("food101", "food-101.tar.gz"),
        ("stl10", "stl10_binary.tar.gz"),
        ("oxford_iiit_pet", "images.tar.gz"),
        ("oxford_iiit_pet", "annotations.tar.gz"),
        ("tf_flowers", "flower_photos.tgz"),
    ] {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let outcome = build_of(
            home.path(),
            dataset,
            None,
            &golden_path(format!("recipes/{dataset}")),
        )
        .unwrap();
        let reversed = build_changed(other.path(), dataset, archive, |members| members.reverse()).unwrap();
        assert_eq!(outcome.fingerprint, reversed.fingerprint, "{dataset}");
    }
}

#[test]
fn lists_and_archives_that_disagree_are_told_with_both() {
    let changed = |dataset: &str, archive: &str, change: &dyn Fn(&mut Members)| {
        let home = tempfile::tempdir().unwrap();
        build_changed(home.path(), dataset, archive, change)
    };
    let without =
        |name: &'static str| move |members: &mut Members| members.retain(|(path, _)| !path.ends_with(name));
    let food = |change: &dyn Fn(&mut Members)| changed("food101", "food-101.tar.gz", change);
    assert_fails(
        food(&without("meta/test.json")),
        &[
            "food-101.tar.gz has no member `food-101/meta/test.json`",
            "it has `food-101/meta/",
        ],
    );
    assert_fails(
        food(&without("images/apple_pie/1005649.jpg")),
        &["has no member `food-101/images/apple_pie/1005649.jpg`, which its lists name"],
    );
    assert_fails(
        food(&|members| {
            members
                .iter_mut()
                .filter(|(path, _)| path.ends_with("train.json"))
                .for_each(|(_, data)| data.truncate(9))
        }),
        &["member food-101/meta/train.json: not a list of pictures by class"],
    );
    let stl = |change: &dyn Fn(&mut Members)| changed("stl10", "stl10_binary.tar.gz", change);
    let cut = |name: &'static str, bytes: usize| {
        move |members: &mut Members| {
            let member = members.iter_mut().find(|(path, _)| path.ends_with(name)).unwrap();
            member.1.truncate(bytes);
        }
    };
    assert_fails(stl(&without("test_y.bin")), &["has no member `test_y.bin`"]);
    assert_fails(
        stl(&without("unlabeled_X.bin")),
        &["has no member `unlabeled_X.bin`"],
    );
    assert_fails(
        stl(&cut("train_y.bin", 3)),
        &["train_X.bin: 5 pictures, but 3 labels"],
    );
    assert_fails(
        stl(&cut("train_X.bin", 27_649)),
        &["not a whole number of pictures"],
    );
    let pets = |archive: &str, change: &dyn Fn(&mut Members)| changed("oxford_iiit_pet", archive, change);
    assert_fails(
        pets("images.tar.gz", &without("pug_3.jpg")),
        &["images.tar.gz has no member `images/pug_3.jpg`, which annotations.tar.gz lists"],
    );
    assert_fails(
        pets("annotations.tar.gz", &without("trainval.txt")),
        &["annotations.tar.gz has no member `annotations/trainval.txt`"],
    );
    assert_fails(
        pets("annotations.tar.gz", &without("trimaps/pug_3.png")),
        &["images.tar.gz, member images/pug_3.jpg, record 5", "no trimap"],
    );
    assert_fails(
        pets("annotations.tar.gz", &|members| {
            let list = members
                .iter_mut()
                .find(|(path, _)| path.ends_with("/test.txt"))
                .unwrap();
            list.1.extend_from_slice(b"Bombay_12 8\n");
        }),
        &["annotations/test.txt, line 5", "2 words"],
    );
}

#[test]
fn a_class_that_is_not_there_is_told_with_the_file_and_may_be_left_out() {
    let rename = |members: &mut Members| {
        for (path, _) in members.iter_mut().filter(|(path, _)| path.contains("/daisy/")) {
            *path = path.replace("/daisy/", "/daisies/");
        }
    };
    let home = tempfile::tempdir().unwrap();
    let result = build_changed(home.path(), "tf_flowers", "flower_photos.tgz", rename);
    assert_fails(
        result,
        &[
            "flower_photos.tgz, record ",
            ", member flower_photos/daisies/",
            "label is `daisies`",
        ],
    );
    let request = request(
        home.path(),
        builtin::find("tf_flowers").unwrap(),
        &home.path().join("from"),
    );
    let outcome = crate::build(request.on_error(OnError::Skip(None))).unwrap();
    assert_eq!((outcome.splits[0].examples, outcome.skipped), (8, 2));
}

/// A recipe of one's own for texts in an archive, with these splits.
fn texts_recipe(splits: &str) -> recipe::Recipe {
    let text = format!(
        "format = 1\nname = \"texts\"\n[[sources]]\nname = \"a.zip\"\n[[sources]]\nname = \"b.tgz\"\n[reader]\nkind = \"files\"\n\
         [features.text]\nkind = \"text\"\n[features.name]\nkind = \"text\"\nvalue = \"{{stem}}\"\n{splits}"
    );
    recipe::parse("texts.toml", &text, Path::new("")).unwrap()
}

/// The sources of [`texts_recipe`]: members of a zip archive, and of a tar archive.
fn texts_sources(folder: &Path, zip: &[(&str, &str)], tar: &[(&str, &str)]) {
    use std::io::Write;

    let mut writer = zip::ZipWriter::new(std::fs::File::create(folder.join("a.zip")).unwrap());
    for (path, text) in zip {
        writer
            .start_file(*path, zip::write::SimpleFileOptions::default())
            .unwrap();
        writer.write_all(text.as_bytes()).unwrap();
    }
    writer.finish().unwrap();
    let members: Members = tar
        .iter()
        .map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()))
        .collect();
    write_tar_gz(folder.join("b.tgz"), &members);
}

#[test]
fn a_recipe_of_ones_own_reads_zip_and_tar_side_by_side_and_nothing_outside() {
    let home = tempfile::tempdir().unwrap();
    let zip = [
        ("x/one.txt", "1"),
        ("x/../../evil.txt", "e"),
        ("x/.hidden.txt", "h"),
        ("/etc/two.txt", "e"),
    ];
    let tar = [("./y/two.txt", "2"), ("y/three.md", "3"), ("y/z/four.txt", " 4 ")];
    texts_sources(home.path(), &zip, &tar);
    let recipe = texts_recipe(
        "[[splits]]\nname = \"train\"\nfiles = [\"x/*.txt\", \"y/*.txt\"]\n[[splits]]\nname = \"deep\"\nsources = [\"b.tgz\"]\nfiles = [\"y/z/**\"]\n",
    );
    let before: Vec<_> = folder_digest(home.path()).into_keys().collect();
    let outcome = crate::build(request(home.path(), recipe, home.path())).unwrap();
    let counts: Vec<u64> = outcome.splits.iter().map(|split| split.examples).collect();
    assert_eq!(counts, [2, 1]);
    let folder = PathBuf::from(&outcome.path);
    let record = &records(&folder.join("texts-deep.array_record-00000-of-00001"))[0];
    let view = ExampleView::parse(record).unwrap();
    let text = |name: &str| match view.get(name) {
        Some(FeatureView::Bytes(list)) => list.first().unwrap().to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!((text("text"), text("name")), (b" 4 ".to_vec(), b"four".to_vec()));
    let after = folder_digest(home.path());
    let new: Vec<_> = after.keys().filter(|path| !before.contains(path)).collect();
    assert!(new.iter().all(|path| path.starts_with("catalog/")), "{new:?}");
}

/// Splits that no file fits, and that share files, are errors that say what was tried and what there is. Bug log: B57, B59.
#[test]
fn splits_without_files_or_with_the_same_are_told_with_their_patterns() {
    let home = tempfile::tempdir().unwrap();
    texts_sources(
        home.path(),
        &[("Train/a.txt", "1")],
        &[("data/val/b.txt", "2"), ("data/val/c.txt", "3")],
    );
    let fails = |splits: &str, texts: &[&str]| {
        assert_fails(
            crate::build(request(home.path(), texts_recipe(splits), home.path())),
            texts,
        );
    };
    let split =
        |name: &str, pattern: &str| format!("[[splits]]\nname = \"{name}\"\nfiles = [\"{pattern}\"]\n");
    fails(
        &split("train", "train/*.txt"),
        &[
            "split `train`: no file fits `train/*.txt`; a.zip has Train/a.txt; b.tgz has data/val/b.txt, data/val/c.txt",
            "`Train/a.txt` would fit but for upper and lower case",
            "not regular expressions",
        ],
    );
    fails(&split("val", "val/*.txt"), &["would fit `**/val/*.txt`"]);
    // Without what a regular expression would have, it is told by what it does not fit.
    fails(
        &split("train", "Train.*"),
        &["no file fits `Train.*`", "not regular expressions"],
    );
    fails(
        &(split("train", "**/*.txt") + &split("val", "data/**")),
        &[
            "b.tgz, member data/val/b.txt: it fits `**/*.txt` of split `train` and `data/**` of split `val`",
            "exclude",
        ],
    );
    let fault = |pattern: &str| {
        let text = format!(
            "format = 1\nname = \"t\"\n[[sources]]\nname = \"a.zip\"\n[reader]\nkind = \"files\"\n[features.text]\nkind = \"text\"\n{}",
            split("train", pattern)
        );
        recipe::parse("texts.toml", &text, Path::new(""))
            .unwrap_err()
            .to_string()
    };
    let error = fault("train-.*");
    assert!(
        error.contains("looks like a regular expression") && error.contains("`splits[0].files`"),
        "{error}"
    );
    assert!(
        crate::build(request(
            home.path(),
            texts_recipe(&split("train", "**/a.txt")),
            home.path()
        ))
        .is_ok()
    );
}

#[test]
fn damage_and_lies_of_an_archive_stop_the_build_with_the_member_named() {
    let home = tempfile::tempdir().unwrap();
    texts_sources(
        home.path(),
        &[("a.txt", &"text ".repeat(1000))],
        &[("b.txt", "2")],
    );
    let recipe = || texts_recipe("[[splits]]\nname = \"train\"\nfiles = [\"*.txt\"]\n");
    let whole = std::fs::read(home.path().join("a.zip")).unwrap();
    let fails = |bytes: &[u8], texts: &[&str]| {
        std::fs::write(home.path().join("a.zip"), bytes).unwrap();
        assert_fails(crate::build(request(home.path(), recipe(), home.path())), texts);
    };
    fails(&whole[..whole.len() - 30], &["a.zip", "damaged or cut short"]);
    let directory = whole
        .windows(4)
        .position(|window| window == b"PK\x01\x02")
        .unwrap();
    let mut lie = whole.clone();
    lie[directory + 24..directory + 28].copy_from_slice(&u32::MAX.to_le_bytes()[..4]);
    lie[directory + 27] = 0x0f;
    fails(&lie, &["a.zip, member a.txt", "268435455"]);
    let mut flipped = whole.clone();
    flipped[45] ^= 0x55;
    fails(&flipped, &["a.zip, member a.txt"]);
    fails(
        b"no archive at all, and longer than a block of 512 bytes"
            .repeat(12)
            .as_slice(),
        &["a.zip", "no tar archive"],
    );
    fails(b"", &["a.zip is empty"]);
    std::fs::write(home.path().join("a.zip"), &whole).unwrap();
    assert_eq!(
        crate::build(request(home.path(), recipe(), home.path()))
            .unwrap()
            .splits[0]
            .examples,
        2
    );
}

const TEXTS_SPLIT: &str = "[[splits]]\nname = \"train\"\nfiles = [\"*.txt\"]\n";

/// What a user who leaves out damaged records gets of archives that are damaged in one member, and cut short. Bug log: B12.
#[test]
fn damage_of_an_archive_costs_no_more_than_what_it_hits_when_skipping() {
    let home = tempfile::tempdir().unwrap();
    let long = |seed: u32| -> String {
        let mut state = seed;
        let letters = (0..20_000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'a' + (state >> 27) as u8 % 26)
        });
        letters.collect()
    };
    let texts: Vec<String> = (1..=6).map(long).collect();
    texts_sources(
        home.path(),
        &[("a.txt", &texts[0]), ("b.txt", &texts[1]), ("c.txt", &texts[2])],
        &[("d.txt", &texts[3]), ("e.txt", &texts[4]), ("f.txt", &texts[5])],
    );
    let whole = ["a.zip", "b.tgz"].map(|name| std::fs::read(home.path().join(name)).unwrap());
    let build = |on_error| {
        let request = request(home.path(), texts_recipe(TEXTS_SPLIT), home.path());
        let monitor = Arc::clone(&request.monitor);
        let outcome = crate::build(request.on_error(on_error).overwrite(true));
        (outcome, monitor.overview().facts.skipped_by)
    };

    // The first member of the zip archive.
    let mut flipped = whole[0].clone();
    flipped[1000] ^= 0x55;
    std::fs::write(home.path().join("a.zip"), &flipped).unwrap();
    assert_fails(
        build(OnError::Fail).0,
        &[
            "a.zip, record 0",
            "member a.txt",
            "hint: the source is damaged",
            "--on-error skip",
        ],
    );
    let (outcome, by) = build(OnError::Skip(None));
    let outcome = outcome.unwrap();
    assert_eq!((outcome.splits[0].examples, outcome.skipped), (5, 1));
    assert_eq!(
        by["train"].iter().collect::<Vec<_>>(),
        [(&"a.zip".to_owned(), &1)]
    );

    // The tar archive too, in its second member: the third is lost with it.
    std::fs::write(home.path().join("b.tgz"), &whole[1][..whole[1].len() / 2]).unwrap();
    let outcome = build(OnError::Skip(None)).0.unwrap();
    assert_eq!((outcome.splits[0].examples, outcome.skipped), (3, 2));
    assert_fails(
        build(OnError::Skip(Some(1))).0,
        &["2 records are damaged, more than may be skipped"],
    );
    std::fs::write(home.path().join("a.zip"), &whole[0]).unwrap();
    assert_fails(
        build(OnError::Fail).0,
        &[
            "b.tgz, record 1",
            "in member `e.txt`; the last whole member is `d.txt`",
            "--on-error skip",
        ],
    );

    // Nothing can be read of it: that is no record.
    std::fs::write(home.path().join("b.tgz"), &whole[1][..8]).unwrap();
    let shown = home.path().join("b.tgz").display().to_string();
    assert_fails(
        build(OnError::Skip(None)).0,
        &[&format!("could not read {shown}"), "get it again"],
    );
}

/// Readers that know what there should be count each picture that a cut archive does not have.
#[test]
fn a_cut_of_an_archive_with_lists_costs_the_pictures_behind_it_when_skipping() {
    // Dataset, archive, and what comes last in it.
    let cases = [
        ("food101", "food-101.tar.gz", "images/"),
        ("oxford_iiit_pet", "images.tar.gz", "images/"),
        ("stl10", "stl10_binary.tar.gz", "unlabeled_X.bin"),
    ];
    for (dataset, archive, last) in cases {
        let from = golden_path(format!("recipes/{dataset}"));
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&from).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
        let mut members = read_tar_gz(from.join(archive));
        // One picture of Food-101 is in no list.
        members.sort_by_key(|(path, _)| (path.contains(last) && !path.ends_with("/9.jpg"), path.clone()));
        let whole = tar(&members);
        let build = |on_error, bytes: &[u8]| -> anyhow::Result<(u64, u64)> {
            std::fs::write(folder.path().join(archive), bytes).unwrap();
            let home = tempfile::tempdir().unwrap();
            let request = request(home.path(), builtin::find(dataset).unwrap(), folder.path());
            let outcome = crate::build(request.on_error(on_error))?;
            Ok((
                outcome.splits.iter().map(|split| split.examples).sum::<u64>(),
                outcome.skipped,
            ))
        };
        let (all, none) = build(OnError::Fail, &whole).unwrap();
        assert_eq!(none, 0);
        // In the data of the last member, and in its header; 1024 bytes are the end of the archive.
        let data = members.last().unwrap().1.len();
        let in_data = whole.len() - 1024 - data.next_multiple_of(512) + data / 2;
        let in_header = whole.len() - 1024 - data.next_multiple_of(512) - 100;
        for at in [in_data, in_header] {
            let failed = build(OnError::Fail, &whole[..at]);
            let error = format!("{:#}", failed.unwrap_err());
            assert!(error.contains(archive), "{dataset}: {error}");
            let built = build(OnError::Skip(None), &whole[..at]);
            if dataset == "stl10" && at == in_header {
                let error = format!("{:#}", built.unwrap_err());
                assert!(error.contains("has no member `unlabeled_X.bin`: "), "{error}");
                continue;
            }
            let (left, skipped) = built.unwrap();
            assert!(skipped > 0 && left > 0, "{dataset}: {left}, {skipped}");
            assert_eq!(left + skipped, all, "{dataset}");
        }
        // Behind all that is read: a header that is none.
        let odd = [&whole[..whole.len() - 1024], &[0xff; 1024]].concat();
        let (left, skipped) = build(OnError::Skip(None), &odd).unwrap();
        assert_eq!((left, skipped), (all, 1), "{dataset}");
    }
}

#[test]
fn equal_keys_are_told_with_the_members_that_have_them() {
    let home = tempfile::tempdir().unwrap();
    texts_sources(
        home.path(),
        &[("x/a.txt", "1"), ("same.txt", "2")],
        &[("y/b.txt", "3"), ("./same.txt", "4")],
    );
    let recipe = texts_recipe("[[splits]]\nname = \"train\"\nfiles = [\"**/*.txt\"]\n");
    let result = crate::build(request(home.path(), recipe, home.path()));
    assert_fails(
        result,
        &[
            "the same key",
            "a.zip, record 1, member same.txt",
            "b.tgz, record 1, member same.txt",
        ],
    );
}

#[test]
fn members_that_lead_out_are_left_out_and_told() {
    let home = tempfile::tempdir().unwrap();
    texts_sources(
        home.path(),
        &[("a.txt", "1"), ("../evil.txt", "2")],
        &[("b.txt", "3"), (".hidden", "4")],
    );
    let request = request(home.path(), texts_recipe(TEXTS_SPLIT), home.path());
    let monitor = Arc::clone(&request.monitor);
    assert_eq!(crate::build(request).unwrap().splits[0].examples, 2);
    let notes: Vec<String> = monitor.take_notes().into_iter().map(|note| note.text).collect();
    assert!(
        notes.contains(&"a.zip: `../evil.txt` leads out of the archive, and is left out".to_owned()),
        "{notes:?}"
    );
    assert!(!notes.iter().any(|note| note.contains("b.tgz")), "{notes:?}");
}

/// Files of pictures and texts are of any size.
#[test]
fn a_drawing_claims_no_number_of_records_that_nobody_knows() {
    let home = tempfile::tempdir().unwrap();
    let drawn = |dataset: &str, folder: &str| {
        let from = golden_path(folder);
        let outcome =
            crate::build(request(home.path(), builtin::find(dataset).unwrap(), &from).explain(true));
        outcome.unwrap().graph.unwrap()
    };
    let read = |graph: &Graph| graph.json()["stages"][2]["inputs"][0].clone();
    for dataset in ["imdb_reviews", "beans", "eurosat", "eurosat/all"] {
        let folder = format!("recipes/{}", dataset.split('/').next().unwrap());
        let flow = read(&drawn(dataset, &folder));
        assert_eq!(
            (&flow["stage"], &flow["records"]),
            (&"read".into(), &Json::Null),
            "{dataset}"
        );
    }
    let text = drawn("imdb_reviews", "recipes/imdb_reviews").text();
    assert!(text.contains("1 input, on a thread of its own"), "{text}");
    assert!(read(&drawn("mnist", "mnist"))["records"].as_u64() > Some(0));
}

/// Twenty splits of one file in a folder that nobody may write to. Bug log: B22.
#[test]
fn one_file_may_be_the_source_of_many_splits_and_stays_as_it_was() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let home = tempfile::tempdir().unwrap();
    let inputs = home.path().join("inputs");
    std::fs::create_dir(&inputs).unwrap();
    write_tar_gz(
        inputs.join("all.tgz"),
        &[
            ("a.txt".to_owned(), b"text".to_vec()),
            ("b.txt".to_owned(), vec![b'b'; 5000]),
        ],
    );
    let mut text =
        "format = 1\nname = \"many\"\n[reader]\nkind = \"files\"\n[features.text]\nkind = \"text\"\n"
            .to_owned();
    for index in 0..20 {
        text += &format!(
            "[[sources]]\nname = \"s{index}\"\npath = \"all.tgz\"\n[[splits]]\nname = \"part{index}\"\nsources = [\"s{index}\"]\nfiles = [\"*.txt\"]\n"
        );
    }
    let state = || {
        let file = std::fs::metadata(inputs.join("all.tgz")).unwrap();
        (
            folder_digest(&inputs),
            file.ino(),
            file.mtime(),
            file.mtime_nsec(),
            file.nlink(),
        )
    };
    let before = state();
    let mut folders = Vec::new();
    for mode in [0o555, 0o755] {
        std::fs::set_permissions(&inputs, std::fs::Permissions::from_mode(mode)).unwrap();
        let recipe = recipe::parse("many.toml", &text, &inputs).unwrap();
        let mut request = request(&home.path().join(format!("{mode:o}")), recipe, &inputs);
        request.from.clear();
        let outcome = crate::build(request).unwrap();
        assert_eq!(outcome.splits.len(), 20);
        assert!(outcome.splits.iter().all(|split| split.examples == 2));
        assert_eq!(state(), before);
        folders.push(PathBuf::from(outcome.path));
    }
    assert_same_folder(&folders[0], &folders[1]);
}

/// Pictures in folders that are named as the classes are, where they lie: no archive.
#[test]
fn a_folder_of_pictures_by_class_is_a_source() {
    let home = tempfile::tempdir().unwrap();
    let photos = home.path().join("photos");
    let members = read_tar_gz(golden_path("recipes/tf_flowers/flower_photos.tgz"));
    for (path, data) in &members {
        let path = photos.join(path.strip_prefix("flower_photos/").unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, data).unwrap();
    }
    std::fs::write(photos.join("daisy/.DS_Store"), b"x").unwrap();
    let text = "format = 1\nname = \"photos\"\nkey = \"{folder}/{file}\"\n[[sources]]\npath = \"photos\"\n[reader]\nkind = \"files\"\n\
                [features.image]\nkind = \"image\"\nshape = [-1, -1, 3]\n[features.label]\nkind = \"class_label\"\n\
                names = [\"daisy\", \"dandelion\", \"roses\", \"sunflowers\", \"tulips\"]\n\
                [[splits]]\nname = \"train\"\nfiles = [\"{label}/*.jpg\"]\n";
    let build = || {
        let mut request = request(
            home.path(),
            recipe::parse("photos.toml", text, home.path()).unwrap(),
            home.path(),
        );
        request.from.clear();
        crate::build(request)
    };
    let before = folder_digest(&photos);
    let outcome = build().unwrap();
    assert_eq!(outcome.splits[0].examples, 10);
    assert_eq!(folder_digest(&photos), before);
    assert_eq!(build().unwrap().status.name(), "up to date");
    // The same pictures in the same order as from the archive.
    let flowers = build_of(
        home.path(),
        "tf_flowers",
        None,
        &golden_path("recipes/tf_flowers"),
    )
    .unwrap();
    let images = |outcome: &BuildOutcome, name: &str| -> Vec<Vec<u8>> {
        let path = PathBuf::from(&outcome.path).join(format!("{name}-train.array_record-00000-of-00001"));
        let image = |record: &Vec<u8>| match ExampleView::parse(record).unwrap().get("image") {
            Some(FeatureView::Bytes(list)) => list.first().unwrap().to_vec(),
            other => panic!("{other:?}"),
        };
        records(&path).iter().map(image).collect()
    };
    assert_eq!(images(&outcome, "photos"), images(&flowers, "tf_flowers"));
    std::fs::write(photos.join("daisy/new.jpg"), &members.last().unwrap().1).unwrap();
    assert_fails(build(), &["was built from another `photos`"]);
}
