//! `imagenet2012` against what TFDS's own builder makes of the same archives: `tests/golden/imagenet2012`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::example::{ExampleView, FeatureView};
use prep_testing::{assert_same_folder, golden_path};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use crate::build::{BuildOutcome, BuildRequest, OnError, Status, build};
use crate::error::{Hinted, find};
use crate::readers::RecipeBuilder;
use crate::recipe::builtin;

const TRAIN: &str = "ILSVRC2012_img_train.tar";
const VALIDATION: &str = "ILSVRC2012_img_val.tar";
const TEST: &str = "ILSVRC2012_img_test.tar";
const BLOCK: usize = 512;

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(home.sources()).unwrap();
        home
    }

    /// A home with these archives among its sources.
    fn with(files: &[(&str, &[u8])]) -> Self {
        let home = Self::new();
        for (name, bytes) in files {
            std::fs::write(home.sources().join(name), bytes).unwrap();
        }
        home
    }

    fn sources(&self) -> PathBuf {
        self.0.path().join("sources")
    }

    fn request(&self, from: &Path) -> BuildRequest {
        BuildRequest::new(Arc::new(RecipeBuilder::new(
            builtin::find("imagenet2012").unwrap(),
        )))
        .catalog(self.0.path().join("catalog").to_str().unwrap())
        .from(vec![from.to_str().unwrap().to_owned()])
        .workers(2)
        .memory_bytes(64 << 20)
    }

    fn own(&self) -> BuildRequest {
        self.request(&self.sources())
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("catalog/data/imagenet2012/5.1.0")
    }
}

fn golden_folder() -> PathBuf {
    golden_path("imagenet2012")
}

fn golden_file(name: &str) -> Vec<u8> {
    std::fs::read(golden_folder().join(name)).unwrap()
}

fn golden() -> Json {
    serde_json::from_slice(&golden_file("golden.json")).unwrap()
}

/// Name, label and picture of each example of a shard.
fn examples(path: &Path) -> Vec<(String, i64, Vec<u8>)> {
    let reader = Reader::open(path).unwrap();
    let mut examples = Vec::new();
    let visit = |_, record: &[u8]| {
        let view = ExampleView::parse(record).unwrap();
        let bytes = |name: &str| match view.get(name) {
            Some(FeatureView::Bytes(list)) => list.first().unwrap().to_vec(),
            other => panic!("`{name}` is {other:?}"),
        };
        let Some(FeatureView::Int64(label)) = view.get("label") else {
            panic!("no label");
        };
        let name = String::from_utf8(bytes("file_name")).unwrap();
        examples.push((name, label.iter().next().unwrap(), bytes("image")));
        Ok(())
    };
    reader
        .for_each(0..reader.num_records(), &mut Scratch::default(), visit)
        .unwrap();
    examples
}

fn names(home: &Home, split: &str) -> Vec<String> {
    let path = home
        .folder()
        .join(format!("imagenet2012-{split}.array_record-00000-of-00001"));
    let mut names: Vec<String> = examples(&path).into_iter().map(|(name, ..)| name).collect();
    names.sort();
    names
}

fn pixels(file: &[u8]) -> Vec<u8> {
    let mut decoder = zune_jpeg::JpegDecoder::new(zune_jpeg::zune_core::bytestream::ZCursor::new(file));
    decoder.decode().unwrap()
}

/// A tar archive of these members.
fn tar_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        // Also names that the crate would refuse or mend.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        if path.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
        }
        header.set_cksum();
        builder.append(&header, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn jpeg(number: u8) -> Vec<u8> {
    [&b"\xff\xd8\xff\xe0"[..], &[number; 700], b"\xff\xd9"].concat()
}

#[track_caller]
fn assert_fails(request: BuildRequest, texts: &[&str]) -> anyhow::Error {
    let error = build(request).unwrap_err();
    let shown = format!("{error:#}");
    for text in texts {
        assert!(shown.contains(text), "`{text}` is not in: {shown}");
    }
    error
}

fn skipping(request: BuildRequest) -> BuildOutcome {
    build(request.on_error(OnError::Skip(None))).unwrap()
}

#[test]
fn what_is_built_is_what_tfds_builds() {
    let home = Home::new();
    let outcome = build(home.request(&golden_folder())).unwrap();
    assert_eq!(outcome.status, Status::Built);
    let golden = golden();
    let blind = |text: &str| {
        // Repaired pictures differ from encoder to encoder.
        let lines = text.lines().filter(|line| !line.contains("\"numBytes\""));
        lines.collect::<Vec<_>>().join("\n")
    };
    for (name, text) in golden["files"].as_object().unwrap() {
        let ours = std::fs::read_to_string(home.folder().join(name)).unwrap();
        assert_eq!(blind(&ours), blind(text.as_str().unwrap()), "{name}");
    }
    let mut repaired = 0;
    for (split, wanted) in golden["splits"].as_object().unwrap() {
        let shards = wanted["shards"].as_array().unwrap();
        assert_eq!(shards.len(), 1);
        let found = examples(&home.folder().join(shards[0].as_str().unwrap()));
        let positions = wanted["positions"].as_array().unwrap();
        assert_eq!(found.len(), positions.len(), "{split}");
        for ((name, label, image), wanted) in found.iter().zip(positions) {
            assert_eq!(
                (Some(name.as_str()), Some(*label)),
                (wanted["key"].as_str(), wanted["label"].as_i64())
            );
            let Some(theirs) = wanted["jpeg"].as_str() else {
                assert_eq!(
                    hex::encode(Sha256::digest(image)),
                    wanted["sha256"].as_str().unwrap()
                );
                continue;
            };
            repaired += 1;
            let theirs = base64::engine::general_purpose::STANDARD.decode(theirs).unwrap();
            let (ours, theirs) = (pixels(image), pixels(&theirs));
            assert_eq!(ours.len(), theirs.len(), "{name}");
            let sum: u64 = ours
                .iter()
                .zip(&theirs)
                .map(|(a, b)| u64::from(a.abs_diff(*b)))
                .sum();
            assert!(
                (sum as f64) < 1.5 * ours.len() as f64,
                "{name}: {sum} of {}",
                ours.len()
            );
        }
    }
    assert_eq!(repaired, 3);
    assert_eq!(
        build(home.request(&golden_folder())).unwrap().status,
        Status::UpToDate
    );
}

#[test]
fn bytes_depend_on_nothing_but_the_sources() {
    let first = Home::new();
    build(first.request(&golden_folder()).workers(1).shards(3)).unwrap();
    for (workers, memory, by_reference) in [
        (2, 64 << 20, true),
        (3, 1 << 20, true),
        (4, 4 << 30, true),
        // Payloads through the sort, in memory and spilled.
        (2, 64 << 20, false),
        (2, 1 << 20, false),
    ] {
        let home = Home::new();
        let mut request = home.request(&golden_folder()).shards(3);
        (request.workers, request.memory_bytes, request.by_reference) = (workers, memory, by_reference);
        build(request).unwrap();
        assert_same_folder(first.folder(), home.folder());
    }
}

#[test]
fn absent_archives_leave_their_split_out() {
    let (validation, test) = (golden_file(VALIDATION), golden_file(TEST));
    let home = Home::with(&[(VALIDATION, &validation), (TEST, &test)]);
    let request = home.own();
    let monitor = Arc::clone(&request.monitor);
    let outcome = build(request).unwrap();
    let splits: Vec<&str> = outcome.splits.iter().map(|split| split.name.as_str()).collect();
    assert_eq!(splits, ["validation", "test"]);
    let notes = monitor.take_notes();
    assert!(
        notes
            .iter()
            .any(|note| note.warning && note.text.contains(TRAIN) && note.text.contains("`train`")),
        "{notes:?}"
    );
    assert_eq!(build(home.own()).unwrap().status, Status::UpToDate);
    // Now it is there: that is another dataset.
    std::fs::write(home.sources().join(TRAIN), golden_file(TRAIN)).unwrap();
    assert_fails(home.own(), &["is there already"]);
    assert_eq!(build(home.own().overwrite(true)).unwrap().splits.len(), 3);
}

#[test]
fn a_folder_without_any_archive_is_an_error_that_lists_it() {
    let home = Home::with(&[("ILSVRC2012_img_train.tar.part", b"x"), ("notes.txt", b"x")]);
    let error = assert_fails(home.own(), &[TRAIN, VALIDATION, TEST, "notes.txt"]);
    assert!(
        find::<Hinted>(&error)
            .unwrap()
            .hint
            .contains("ILSVRC2012_img_train.tar.part")
    );
    let home = Home::new();
    assert_fails(home.own(), &[TRAIN, "is empty"]);
    let mut request = home.own();
    request.from.clear();
    let error = assert_fails(request, &[TRAIN]);
    assert!(find::<Hinted>(&error).unwrap().hint.contains("--from"));
}

#[test]
fn a_cut_anywhere_is_told_and_costs_one_picture_when_skipping() {
    let whole = golden_file(TRAIN);
    for length in (BLOCK..whole.len() - 2 * BLOCK).step_by(4567) {
        let home = Home::with(&[(TRAIN, &whole[..length])]);
        let error = build(home.own());
        let outcome = build(home.own().on_error(OnError::Skip(None)));
        match (error, outcome) {
            (Err(error), Ok(outcome)) => {
                assert!(format!("{error:#}").contains(TRAIN), "{length}: {error:#}");
                assert_eq!(outcome.skipped, 1, "{length}");
            }
            // Behind the last picture of an archive nothing is missing; before the first there is none.
            (Ok(outcome), Ok(_)) => assert_eq!(outcome.skipped, 0),
            (Err(_), Err(error)) => assert!(length < 4 * BLOCK, "{length}: {error:#}"),
            (Ok(_), Err(error)) => panic!("{length}: {error:#}"),
        }
    }
}

#[test]
fn a_damaged_inner_archive_costs_what_follows_in_it_only() {
    let good = tar_of(&[("n01440764_1.JPEG", &jpeg(1)), ("n01440764_2.JPEG", &jpeg(2))]);
    let mut bad = tar_of(&[
        ("n01443537_1.JPEG", &jpeg(3)),
        ("n01443537_2.JPEG", &jpeg(4)),
        ("n01443537_3.JPEG", &jpeg(5)),
    ]);
    bad[3 * BLOCK + 1] ^= 1;
    let train = tar_of(&[("n01443537.tar", &bad), ("n01440764.tar", &good)]);
    let home = Home::with(&[(TRAIN, &train)]);
    assert_fails(home.own(), &[TRAIN, "n01443537.tar", "byte 1536", "checksum"]);
    let outcome = skipping(home.own());
    assert_eq!(outcome.skipped, 1);
    let wanted = ["n01440764_1.JPEG", "n01440764_2.JPEG", "n01443537_1.JPEG"];
    assert_eq!(names(&home, "train"), wanted);
}

#[test]
fn odd_members_are_faults_or_left_out() {
    let inner = tar_of(&[
        ("./", b""),
        ("./n01440764_1.JPEG", &jpeg(1)),
        ("more/", b""),
        ("more/n01440764_2.JPEG", &jpeg(2)),
        ("._n01440764_1.JPEG", b"left out silently"),
        ("readme.txt", b"left out with a warning"),
        ("n01440764_3.JPEG", b""),
        ("n01440764_4.JPEG", b"\x89PNG\r\n\x1a\n and so on"),
        ("n01440764_5.JPEG", b"GIF89a"),
        ("n01440764_1.JPEG", &jpeg(9)),
    ]);
    let train = tar_of(&[("./n01440764.tar", &inner), ("wnids.txt", b"x")]);
    let home = Home::with(&[(TRAIN, &train)]);
    assert_fails(home.own(), &["n01440764.tar", "n01440764_3.JPEG", "is empty"]);
    let request = home.own().on_error(OnError::Skip(None));
    let monitor = Arc::clone(&request.monitor);
    let outcome = build(request).unwrap();
    assert_eq!((outcome.skipped, outcome.splits[0].examples), (4, 2));
    assert_eq!(
        names(&home, "train"),
        ["more/n01440764_2.JPEG", "n01440764_1.JPEG"]
    );
    let notes: Vec<String> = monitor.take_notes().into_iter().map(|note| note.text).collect();
    for text in [
        "readme.txt",
        "wnids.txt",
        "is a PNG",
        "`GIF89a`",
        "of this name already",
    ] {
        assert!(
            notes.iter().any(|note| note.contains(text)),
            "`{text}` is not in {notes:?}"
        );
    }
    // A tar that is no class.
    let home = Home::with(&[(TRAIN, &tar_of(&[("n01440765.tar", &inner)]))]);
    let error = assert_fails(home.own(), &["n01440765", "none of the classes"]);
    assert!(find::<Hinted>(&error).unwrap().hint.contains("n01440764"));
}

#[test]
fn a_repair_that_fails_is_a_fault() {
    let broken = [&b"\xff\xd8\xff\xe0"[..], &[7; 40]].concat();
    let inner = tar_of(&[("n01739381_1309.JPEG", &broken), ("n01739381_1.JPEG", &jpeg(1))]);
    let home = Home::with(&[(TRAIN, &tar_of(&[("n01739381.tar", &inner)]))]);
    assert_fails(home.own(), &["n01739381_1309.JPEG", "could not decode the JPEG"]);
    assert_eq!(skipping(home.own()).skipped, 1);
}

#[test]
fn labels_of_a_damaged_validation_archive_go_by_the_numbers_in_names() {
    let names: Vec<String> = [3, 1, 2, 4]
        .iter()
        .map(|number| format!("ILSVRC2012_val_{number:08}.JPEG"))
        .collect();
    let picture = jpeg(1);
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &picture[..])).collect();
    let whole = tar_of(&members);
    let labels = |home: &Home| {
        let path = home
            .folder()
            .join("imagenet2012-validation.array_record-00000-of-00001");
        let mut found: Vec<(String, i64)> = examples(&path)
            .into_iter()
            .map(|(name, label, _)| (name, label))
            .collect();
        found.sort();
        found.into_iter().map(|(_, label)| label).collect::<Vec<_>>()
    };
    let home = Home::with(&[(VALIDATION, &whole)]);
    build(home.own()).unwrap();
    assert_eq!(labels(&home), [65, 970, 230, 809]);
    // Without the last two members: pictures 3 and 1 are left.
    let home = Home::with(&[(VALIDATION, &whole[..4 * 3 * BLOCK - 4 * BLOCK])]);
    assert_fails(home.own(), &[VALIDATION, "cut short"]);
    assert_eq!(skipping(home.own()).skipped, 1);
    assert_eq!(labels(&home), [65, 230]);
}

fn notes_of(request: BuildRequest) -> Vec<String> {
    let monitor = Arc::clone(&request.monitor);
    build(request).unwrap();
    monitor.take_notes().into_iter().map(|note| note.text).collect()
}

/// Labels go by position, so names that do not say the same position are told, in whatever folder they are.
#[test]
fn validation_names_that_do_not_fit_their_position_are_told() {
    let picture = jpeg(1);
    for (name, said) in [
        ("val/ILSVRC2012_val_00000002.JPEG", "are files missing?"),
        ("ILSVRC2012_val_00000000.JPEG", "nobody can tell"),
        ("ILSVRC2012_val_+0000001.JPEG", "nobody can tell"),
        ("hello.JPEG", "nobody can tell"),
    ] {
        let notes = notes_of(Home::with(&[(VALIDATION, &tar_of(&[(name, &picture)]))]).own());
        assert!(
            notes
                .iter()
                .any(|note| note.contains(name) && note.contains(said)),
            "{name}: {notes:?}"
        );
    }
    let right = tar_of(&[("./val/ILSVRC2012_val_00000001.JPEG", &picture)]);
    let notes = notes_of(Home::with(&[(VALIDATION, &right)]).own());
    assert!(notes.iter().all(|note| !note.contains("position")), "{notes:?}");
}

#[test]
fn the_test_archive_under_the_name_of_the_validation_archive_is_refused() {
    let home = Home::with(&[(VALIDATION, &golden_file(TEST))]);
    let error = assert_fails(home.own(), &[VALIDATION, "a picture of the test split"]);
    assert!(find::<Hinted>(&error).unwrap().hint.contains(TEST));
}

#[test]
fn of_many_members_that_are_no_classes_the_first_are_told_and_the_rest_counted() {
    let pictures: Vec<String> = (0..40).map(|number| format!("{number}.JPEG")).collect();
    let mut members: Vec<(&str, &[u8])> = pictures.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
    let inner = tar_of(&[("n01440764_1.JPEG", &jpeg(1))]);
    members.push(("n01440764.tar", &inner));
    let notes = notes_of(Home::with(&[(TRAIN, &tar_of(&members))]).own());
    let told = notes.iter().filter(|note| note.contains("no tar of a class"));
    assert_eq!(told.count(), 5);
    assert!(
        notes
            .iter()
            .any(|note| note.contains("35 more members are no tars of a class")),
        "{notes:?}"
    );
}

#[test]
fn members_that_lead_out_are_left_out_and_told() {
    let test = tar_of(&[
        ("a.JPEG", &jpeg(1)),
        ("../b.JPEG", &jpeg(2)),
        ("/c.JPEG", &jpeg(3)),
    ]);
    let notes = notes_of(Home::with(&[(TEST, &test)]).own());
    assert!(
        notes
            .iter()
            .any(|note| note.contains("2 members are left out; `../b.JPEG` leads out of the archive")),
        "{notes:?}"
    );
}

#[test]
fn a_source_is_known_by_its_headers() {
    let build_of = |members: &[(&str, &[u8])]| {
        let home = Home::with(&[(TEST, &tar_of(members))]);
        build(home.own()).unwrap();
        let manifest = std::fs::read(home.folder().join("prep_manifest.json")).unwrap();
        let manifest: Json = serde_json::from_slice(&manifest).unwrap();
        let source = &manifest["sources"][0];
        assert!(source.get("sha256").is_none());
        source["tar_headers_sha256"].as_str().unwrap().to_owned()
    };
    let first = build_of(&[("a.JPEG", &jpeg(1)), ("b.JPEG", &jpeg(2))]);
    assert_eq!(build_of(&[("a.JPEG", &jpeg(3)), ("b.JPEG", &jpeg(2))]), first);
    assert_ne!(build_of(&[("a.JPEG", &jpeg(1)), ("c.JPEG", &jpeg(2))]), first);
    let longer = [&jpeg(1)[..], b"x"].concat();
    assert_ne!(build_of(&[("a.JPEG", &longer), ("b.JPEG", &jpeg(2))]), first);
}
