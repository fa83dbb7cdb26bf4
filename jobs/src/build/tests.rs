//! Whole builds, on small archives, and what goes wrong with them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use prep_catalog::catalog::Catalog;
use prep_catalog::name::DatasetName;
use prep_formats::array_record::{Reader, Scratch};
use prep_formats::example::{ExampleView, FeatureView};
use prep_formats::features::{Feature, Features};
use prep_formats::store::Location;
use prep_formats::value::{DType, Value};
use prep_testing::archive::{change_tar_gz, read_tar_gz, write_tar_gz};
use prep_testing::server::FileServer;
use prep_testing::{Golden, assert_same_folder, folder_digest, source_folder};

use super::*;
use crate::builder::{Input, Raw, SourceSpec};
use crate::error::Cancelled;
use crate::readers::RecipeBuilder;
use crate::recipe::{builtin, parse};

const ARCHIVE: &str = "cifar-10-binary.tar.gz";

/// A catalog of its own.
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

    fn with(&self, builder: impl Builder + 'static) -> BuildRequest {
        BuildRequest::new(Arc::new(builder))
            .catalog(self.path("catalog").to_str().unwrap())
            .workers(2)
            .memory_bytes(64 << 20)
    }

    /// A build of a built-in dataset from a folder that does not hold the recipe's own files.
    fn builtin(&self, dataset: &str, from: &Path) -> BuildRequest {
        self.with(RecipeBuilder::new(builtin::find(dataset).unwrap()))
            .from(vec![from.to_str().unwrap().to_owned()])
            .check_sums(false)
    }

    fn cifar10(&self) -> BuildRequest {
        self.builtin("cifar10", &source_folder("cifar10"))
    }

    fn data(&self, dataset: &str, version: &str) -> PathBuf {
        self.path("catalog/data").join(dataset).join(version)
    }

    fn log_entries(&self, dataset: &str) -> usize {
        std::fs::read_dir(self.path("catalog/log").join(dataset)).map_or(0, Iterator::count)
    }

    fn has_staging(&self) -> bool {
        self.path("catalog/data").join(staging::STAGING_FOLDER).exists()
    }

    fn resolve(&self, name: &str) -> prep_catalog::Result<prep_catalog::Resolved> {
        let catalog = Catalog::open(&Location::from_path(self.path("catalog")))?;
        catalog.resolve(&DatasetName::parse(name)?)
    }
}

/// All records of a split, in order.
fn records(folder: &Path, split: &str) -> Vec<Vec<u8>> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.to_str()
                .unwrap()
                .contains(&format!("-{split}.array_record-"))
        })
        .collect();
    names.sort();
    let mut records = Vec::new();
    for name in names {
        let reader = Reader::open(name).unwrap();
        let count = reader.num_records();
        let mut scratch = Scratch::default();
        let visit = |_, record: &[u8]| {
            records.push(record.to_vec());
            Ok(())
        };
        reader.for_each(0..count, &mut scratch, visit).unwrap();
    }
    records
}

fn bytes_of<'a>(view: &ExampleView<'a>, feature: &str) -> &'a [u8] {
    match view.get(feature) {
        Some(FeatureView::Bytes(list)) => list.first().unwrap(),
        other => panic!("`{feature}` is {other:?}"),
    }
}

fn int_of(view: &ExampleView<'_>, feature: &str) -> i64 {
    match view.get(feature) {
        Some(FeatureView::Int64(list)) => list.iter().next().unwrap(),
        other => panic!("`{feature}` is {other:?}"),
    }
}

fn pixels_sha256(file: &[u8]) -> String {
    let mut pixels = Vec::new();
    prep_formats::png::Decoder::new()
        .decode_append(file, None, 8, &mut pixels)
        .unwrap();
    hex::encode(Sha256::digest(pixels))
}

fn hint(error: &anyhow::Error) -> String {
    crate::error::find::<Hinted>(error)
        .map(|hinted| hinted.hint.clone())
        .unwrap_or_default()
}

/// Builds, and expects an error whose chain has all of these texts; the catalog stays as it was.
#[track_caller]
fn assert_fails(home: &Home, request: BuildRequest, texts: &[&str]) -> anyhow::Error {
    let name = request.builder.spec().name.clone();
    let before = home.log_entries(&name);
    let error = build(request).unwrap_err();
    let shown = format!("{error:#}");
    for text in texts {
        assert!(shown.contains(text), "`{text}` is not in: {shown}");
    }
    assert_eq!(home.log_entries(&name), before);
    error
}

#[test]
fn what_is_built_is_what_tfds_builds() {
    for dataset in prep_testing::fixtures::DATASETS {
        let home = Home::new();
        let golden = Golden::load(dataset);
        let outcome = build(home.builtin(dataset, &source_folder(dataset))).unwrap();
        assert_eq!(
            (outcome.status, &outcome.version),
            (Status::Built, &golden.version)
        );
        let folder = home.data(dataset, &golden.version);
        for (name, text) in &golden.files {
            let ours = std::fs::read_to_string(folder.join(name)).unwrap();
            let blind = |text: &str| {
                // Sizes of PNG files differ from encoder to encoder.
                let lines = text.lines().filter(|line| !line.contains("\"numBytes\""));
                lines.collect::<Vec<_>>().join("\n")
            };
            assert_eq!(blind(&ours), blind(text), "{dataset}, {name}");
        }
        for (split, wanted) in &golden.splits {
            assert!(
                wanted
                    .shards
                    .iter()
                    .all(|shard| folder.join(&shard.path).exists())
            );
            let found = records(&folder, split);
            assert_eq!(found.len(), wanted.positions.len());
            for (record, wanted) in found.iter().zip(&wanted.positions) {
                let view = ExampleView::parse(record).unwrap();
                assert_eq!(
                    pixels_sha256(bytes_of(&view, "image")),
                    wanted.sha256,
                    "{dataset}, key {}",
                    wanted.key
                );
                assert_eq!(int_of(&view, "label"), wanted.label);
                if let Some(id) = &wanted.id {
                    assert_eq!(bytes_of(&view, "id"), id.as_bytes());
                }
                if let Some(coarse) = wanted.coarse_label {
                    assert_eq!(int_of(&view, "coarse_label"), coarse);
                }
            }
        }
        assert!(!home.has_staging());
        let resolved = home.resolve(dataset).unwrap();
        assert_eq!(resolved.manifest.fingerprint, outcome.fingerprint);
    }
}

#[test]
fn bytes_depend_on_neither_workers_nor_memory() {
    let first = Home::new();
    build(first.cifar10().workers(1).shards(3)).unwrap();
    for (workers, memory) in [(2, 1 << 20), (3, 64 << 20), (4, 4 << 30)] {
        let home = Home::new();
        build(home.cifar10().workers(workers).memory_bytes(memory).shards(3)).unwrap();
        assert_same_folder(first.data("cifar10", "3.0.2"), home.data("cifar10", "3.0.2"));
    }
}

#[test]
fn a_second_build_is_up_to_date_and_writes_nothing() {
    let home = Home::new();
    build(home.cifar10()).unwrap();
    let before = folder_digest(home.folder.path());
    let outcome = build(home.cifar10()).unwrap();
    assert_eq!(outcome.status, Status::UpToDate);
    assert_eq!(
        outcome.splits[0].examples,
        Golden::load("cifar10").length("train")
    );
    assert_eq!(folder_digest(home.folder.path()), before);
}

#[test]
fn something_different_is_refused_and_replaced_only_when_asked() {
    let home = Home::new();
    build(home.cifar10()).unwrap();
    let before = folder_digest(home.data("cifar10", "3.0.2"));
    let error = assert_fails(
        &home,
        home.cifar10().shards(2),
        &["is there already", "other output options"],
    );
    assert!(hint(&error).contains("--overwrite"));
    assert_eq!(folder_digest(home.data("cifar10", "3.0.2")), before);
    assert!(!home.has_staging());

    let outcome = build(home.cifar10().shards(2).overwrite(true)).unwrap();
    assert_eq!(outcome.status, Status::Built);
    assert_eq!(home.log_entries("cifar10"), 2);
    assert!(!home.has_staging());
    let fresh = Home::new();
    build(fresh.cifar10().shards(2)).unwrap();
    assert_same_folder(home.data("cifar10", "3.0.2"), fresh.data("cifar10", "3.0.2"));
    // Asking again with the flag changes nothing.
    assert_eq!(
        build(home.cifar10().shards(2).overwrite(true)).unwrap().status,
        Status::UpToDate
    );
}

#[test]
fn a_version_in_another_data_folder_is_named_where_it_is_and_not_taken_for_the_one_asked_for() {
    let home = Home::new();
    let (first, second) = (
        home.folder.path().join("first"),
        home.folder.path().join("second"),
    );
    let at = |folder: &Path| home.cifar10().data_dir(folder.to_str().unwrap());
    build(at(&first)).unwrap();
    // Asked for by name only: it is there, and the message says where.
    let outcome = build(home.cifar10()).unwrap();
    assert_eq!(outcome.status, Status::UpToDate);
    assert_eq!(Path::new(&outcome.path), first.join("cifar10/3.0.2"));
    let wanted = [
        first.to_str().unwrap(),
        "is there already",
        second.to_str().unwrap(),
    ];
    assert_fails(&home, at(&second), &wanted);
    assert!(!second.exists());
    assert_fails(&home, home.cifar10().shards(2), &wanted[..2]);
    assert_eq!(build(at(&second).overwrite(true)).unwrap().status, Status::Built);
    assert_same_folder(first.join("cifar10"), second.join("cifar10"));
    assert_eq!(build(at(&second)).unwrap().status, Status::UpToDate);
}

#[test]
fn a_version_without_a_shard_is_not_up_to_date() {
    let home = Home::new();
    build(home.cifar10().shards(2)).unwrap();
    let shard = home
        .data("cifar10", "3.0.2")
        .join("cifar10-train.array_record-00001-of-00002");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..100]).unwrap();
    let name = "cifar10-train.array_record-00001-of-00002";
    let error = assert_fails(
        &home,
        home.cifar10().shards(2),
        &["is damaged", name, "has 100 bytes"],
    );
    assert!(hint(&error).contains("--overwrite"));
    std::fs::remove_file(&shard).unwrap();
    assert_fails(
        &home,
        home.cifar10().shards(2),
        &["is damaged", name, "is absent"],
    );
    build(home.cifar10().shards(2).overwrite(true)).unwrap();
    assert_eq!(std::fs::read(&shard).unwrap(), bytes);
}

#[test]
fn a_page_in_place_of_an_archive_is_told_also_unchecked() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(ARCHIVE), "<!DOCTYPE html><html></html>").unwrap();
    let request = home.builtin("cifar10", folder.path()).check_sums(false);
    assert_fails(&home, request, &[ARCHIVE, "looks like a web page"]);
}

#[test]
fn other_bytes_in_a_source_make_another_dataset() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(ARCHIVE);
    let source = source_folder("cifar10").join(ARCHIVE);
    std::fs::copy(&source, &path).unwrap();
    build(home.builtin("cifar10", folder.path())).unwrap();
    change_tar_gz(&source, &path, |name, content| {
        if name.ends_with("test_batch.bin") {
            content[1] ^= 1;
        }
        true
    });
    assert_fails(
        &home,
        home.builtin("cifar10", folder.path()),
        &["was built from another", ARCHIVE],
    );
}

#[test]
fn a_folder_that_is_not_ours_is_left_alone() {
    let home = Home::new();
    let folder = home.data("cifar10", "3.0.2");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("mine.txt"), "mine").unwrap();
    assert_fails(&home, home.cifar10(), &["was not made by `prep build`"]);
    assert_eq!(std::fs::read(folder.join("mine.txt")).unwrap(), b"mine");
    let refused = home.cifar10().overwrite(true);
    assert_fails(&home, refused, &["is not replaced: it has `mine.txt`"]);
    assert_eq!(std::fs::read(folder.join("mine.txt")).unwrap(), b"mine");
    std::fs::remove_file(folder.join("mine.txt")).unwrap();
    build(home.cifar10().overwrite(true)).unwrap();
}

#[test]
fn a_source_that_is_not_the_recipes_is_refused() {
    let home = Home::new();
    let error = assert_fails(
        &home,
        home.cifar10().check_sums(true),
        &["598197 bytes", "170052171"],
    );
    assert!(hint(&error).contains("--no-checksum"));
    // Taken on request, and the catalog says so; the files do not.
    let outcome = build(home.cifar10()).unwrap();
    assert_eq!(outcome.unchecked, [ARCHIVE]);
    assert_eq!(
        home.resolve("cifar10").unwrap().record.flags["checksum"],
        "skipped"
    );
}

/// CIFAR-10's recipe with this size and hash.
fn pinned(bytes: u64, sha256: &str) -> RecipeBuilder {
    let text = builtin::text("cifar10").unwrap();
    let text = text.replace("170052171", &bytes.to_string()).replace(
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        sha256,
    );
    RecipeBuilder::new(parse("cifar10", &text, Path::new("")).unwrap())
}

#[test]
fn a_wrong_checksum_is_told_before_what_it_led_to() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(source_folder("cifar10").join(ARCHIVE)).unwrap();
    let from = vec![folder.path().to_str().unwrap().to_owned()];
    let length = bytes.len() as u64;
    let right = hex::encode(Sha256::digest(&bytes));
    // Damaged in the middle, so that unpacking fails too; or only other bytes, so that it does not.
    let middle = bytes.len() / 2;
    for at in [middle, 5] {
        bytes[at] ^= 0xff;
        std::fs::write(folder.path().join(ARCHIVE), &bytes).unwrap();
        let request = home.with(pinned(length, &right)).from(from.clone());
        assert_fails(
            &home,
            request,
            &["has the SHA-256", &right, &hex::encode(Sha256::digest(&bytes))],
        );
        bytes[at] ^= 0xff;
    }
    assert!(!home.data("cifar10", "3.0.2").exists());
    std::fs::write(folder.path().join(ARCHIVE), &bytes).unwrap();
    let outcome = build(home.with(pinned(length, &right)).from(from)).unwrap();
    assert!(outcome.unchecked.is_empty());
    assert!(home.resolve("cifar10").unwrap().record.flags.is_empty());
}

/// A folder with CIFAR-10's small archive, changed.
fn changed(change: impl FnMut(&mut String, &mut Vec<u8>) -> bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    change_tar_gz(
        source_folder("cifar10").join(ARCHIVE),
        folder.path().join(ARCHIVE),
        change,
    );
    folder
}

#[test]
fn archives_with_faults_are_refused_with_their_place() {
    let home = Home::new();
    let missing = changed(|name, _| !name.ends_with("data_batch_3.bin"));
    assert_fails(
        &home,
        home.builtin("cifar10", missing.path()),
        &[ARCHIVE, "has no member", "data_batch_3.bin"],
    );

    let odd = changed(|name, content| {
        if name.ends_with("data_batch_4.bin") {
            content.pop();
        }
        true
    });
    let texts = [
        ARCHIVE,
        "data_batch_4.bin",
        "no whole number of records of 3073 bytes",
    ];
    assert_fails(&home, home.builtin("cifar10", odd.path()), &texts);

    let label = changed(|name, content| {
        if name.ends_with("data_batch_5.bin") {
            content[3073 * 7] = 10;
        }
        true
    });
    let texts = [ARCHIVE, "data_batch_5.bin, record 7", "label", "10"];
    let error = assert_fails(&home, home.builtin("cifar10", label.path()), &texts);
    assert!(hint(&error).contains("--on-error skip"));

    let names = changed(|name, content| {
        if name.ends_with("batches.meta.txt") {
            *content = b"cat\ndog\n".to_vec();
        }
        true
    });
    assert_fails(
        &home,
        home.builtin("cifar10", names.path()),
        &["names 2 classes of `label`"],
    );

    let cut = tempfile::tempdir().unwrap();
    let whole = std::fs::read(source_folder("cifar10").join(ARCHIVE)).unwrap();
    for length in [0, 1, 1000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(cut.path().join(ARCHIVE), &whole[..length]).unwrap();
        assert_fails(&home, home.builtin("cifar10", cut.path()), &[ARCHIVE]);
    }
    std::fs::write(cut.path().join(ARCHIVE), "<!DOCTYPE html>").unwrap();
    assert_fails(&home, home.builtin("cifar10", cut.path()), &[ARCHIVE]);
    assert!(!home.data("cifar10", "3.0.2").exists());
}

#[test]
fn damaged_records_are_left_out_only_on_request() {
    let home = Home::new();
    let bad = changed(|name, content| {
        if name.ends_with("data_batch_1.bin") {
            content[3073 * 2] = 200;
            content[3073 * 3] = 201;
        }
        true
    });
    let request = || home.builtin("cifar10", bad.path());
    assert_fails(
        &home,
        request().on_error(OnError::Skip(Some(1))),
        &["2 records are damaged", "data_batch_1.bin"],
    );
    let outcome = build(request().on_error(OnError::Skip(Some(2)))).unwrap();
    let golden = Golden::load("cifar10");
    assert_eq!((outcome.skipped, outcome.splits[0].skipped), (2, 2));
    assert_eq!(outcome.splits[0].examples, golden.length("train") - 2);
    // The others keep their keys, and with them their order.
    let folder = home.data("cifar10", "3.0.2");
    let ids: Vec<String> = records(&folder, "train")
        .iter()
        .map(|record| {
            String::from_utf8(bytes_of(&ExampleView::parse(record).unwrap(), "id").to_vec()).unwrap()
        })
        .collect();
    let kept = golden.splits["train"]
        .positions
        .iter()
        .filter(|p| p.key != "2" && p.key != "3");
    let wanted: Vec<String> = kept.map(|p| p.id.clone().unwrap()).collect();
    assert_eq!(ids, wanted);
    // What was built with records left out is not what is asked for without.
    assert_fails(&home, request(), &["damaged records left out"]);
    assert_eq!(
        build(request().on_error(OnError::Skip(None))).unwrap().status,
        Status::UpToDate
    );
}

#[test]
fn members_may_come_in_any_order_and_under_any_path() {
    let home = Home::new();
    let plain = Home::new();
    build(plain.cifar10()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut members = read_tar_gz(source_folder("cifar10").join(ARCHIVE));
    members.reverse();
    for (index, (name, _)) in members.iter_mut().enumerate() {
        let file = name.rsplit('/').next().unwrap().to_owned();
        *name = match index % 3 {
            0 => format!("../../../tmp/{file}"),
            1 => format!("/etc/{file}"),
            _ => file,
        };
    }
    write_tar_gz(folder.path().join(ARCHIVE), &members);
    build(home.builtin("cifar10", folder.path())).unwrap();
    for split in ["train", "test"] {
        let (ours, theirs) = (home.data("cifar10", "3.0.2"), plain.data("cifar10", "3.0.2"));
        assert_eq!(records(&ours, split), records(&theirs, split));
    }
}

#[test]
fn a_late_surprise_about_sizes_makes_it_start_over() {
    // All batches have 60 records but the second, which comes last.
    let folder = tempfile::tempdir().unwrap();
    let mut members = read_tar_gz(source_folder("cifar10").join(ARCHIVE));
    members.sort_by_key(|(name, _)| name.ends_with("data_batch_2.bin"));
    members.last_mut().unwrap().1.truncate(3073 * 41);
    write_tar_gz(folder.path().join(ARCHIVE), &members);
    let text = builtin::text("cifar10")
        .unwrap()
        .replace("file_records = 10000", "file_records = 60");
    let from = vec![folder.path().to_str().unwrap().to_owned()];
    let recipe = parse("cifar10", &text, Path::new("")).unwrap();

    let home = Home::new();
    let request = home
        .with(RecipeBuilder::new(recipe))
        .from(from.clone())
        .check_sums(false);
    let monitor = Arc::clone(&request.monitor);
    build(request).unwrap();
    let notes = monitor.take_notes();
    assert!(
        notes.iter().any(|note| note.text.contains("reading again")),
        "{notes:?}"
    );

    // The usual recipe finds out at the first member, and makes the same.
    let other = Home::new();
    build(other.builtin("cifar10", folder.path())).unwrap();
    for split in ["train", "test"] {
        let (ours, theirs) = (home.data("cifar10", "3.0.2"), other.data("cifar10", "3.0.2"));
        assert_eq!(records(&ours, split), records(&theirs, split));
    }
}

#[test]
fn shards_are_as_asked_for_and_not_more_than_examples() {
    let home = Home::new();
    let outcome = build(home.builtin("mnist", &source_folder("mnist")).shards(2)).unwrap();
    assert_eq!(
        outcome
            .splits
            .iter()
            .map(|split| split.shards)
            .collect::<Vec<_>>(),
        [2, 2]
    );
    assert!(
        home.data("mnist", "3.0.1")
            .join("mnist-test.array_record-00001-of-00002")
            .exists()
    );
    let home = Home::new();
    let request = home.builtin("mnist", &source_folder("mnist")).shards(90_000);
    assert_fails(&home, request, &["90000 shards were asked for", "split `"]);
}

#[test]
fn what_was_finished_is_not_done_again() {
    let home = Home::new();
    // The version's folder cannot be made, as a file is in its way: all work is done by then.
    std::fs::create_dir_all(home.path("catalog/data")).unwrap();
    std::fs::write(home.path("catalog/data/cifar10"), "").unwrap();
    assert_fails(&home, home.cifar10().shards(2), &["could not make the folder"]);
    let out = home.path("catalog/data/.staging/cifar10/3.0.2/out");
    let written = |name: &str| std::fs::metadata(out.join(name)).unwrap().modified().unwrap();
    let name = |index: u64| shard_file_name("cifar10", "train", index, 2);
    let times = [written(&name(0)), written(&name(1))];

    // One shard is damaged in length, and the journal lacks its end: the others are kept.
    let journal = out.parent().unwrap().join("journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("\"written\""))
        .collect();
    std::fs::write(&journal, format!("{}\n{{\"done\":\"sha", lines.join("\n"))).unwrap();
    std::fs::write(out.join(name(1)), "").unwrap();
    assert_fails(&home, home.cifar10().shards(2), &["could not make the folder"]);
    assert_eq!(written(&name(0)), times[0]);
    assert!(written(&name(1)) > times[1]);

    // Everything is there: nothing is read again.
    std::fs::remove_file(home.path("catalog/data/cifar10")).unwrap();
    let times = [written(&name(0)), written(&name(1))];
    let request = home.cifar10().shards(2);
    let monitor = Arc::clone(&request.monitor);
    let outcome = build(request).unwrap();
    assert_eq!(outcome.shards_found, 4);
    let facts = monitor.snapshot().facts;
    assert_eq!((facts.shards_found, facts.shards_written), (4, 0));
    let notes = monitor.take_notes();
    assert!(
        notes.iter().any(|note| note.text.contains("from an earlier run")),
        "{notes:?}"
    );
    let folder = home.data("cifar10", "3.0.2");
    for (index, time) in times.iter().enumerate() {
        let file = folder.join(name(index as u64));
        assert_eq!(std::fs::metadata(file).unwrap().modified().unwrap(), *time);
    }
    let fresh = Home::new();
    build(fresh.cifar10().shards(2)).unwrap();
    assert_same_folder(folder, fresh.data("cifar10", "3.0.2"));
    assert!(!home.has_staging());
}

#[test]
fn staging_that_went_bad_on_disk_is_not_published() {
    let home = Home::new();
    std::fs::create_dir_all(home.path("catalog/data")).unwrap();
    std::fs::write(home.path("catalog/data/cifar10"), "").unwrap();
    assert_fails(&home, home.cifar10(), &["could not make the folder"]);
    std::fs::remove_file(home.path("catalog/data/cifar10")).unwrap();
    let shard = home
        .path("catalog/data/.staging/cifar10/3.0.2/out")
        .join(shard_file_name("cifar10", "test", 0, 1));
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    assert_fails(&home, home.cifar10(), &["does not hold what was written to it"]);
}

#[test]
fn a_kill_between_rename_and_commit_is_healed() {
    let home = Home::new();
    build(home.cifar10()).unwrap();
    let before = folder_digest(home.data("cifar10", "3.0.2"));
    std::fs::remove_dir_all(home.path("catalog/log")).unwrap();
    assert!(home.resolve("cifar10").is_err());
    let outcome = build(home.cifar10()).unwrap();
    assert_eq!(
        (outcome.status, outcome.unchecked.as_slice()),
        (Status::Built, &[ARCHIVE.to_owned()][..])
    );
    assert_eq!(folder_digest(home.data("cifar10", "3.0.2")), before);
    assert!(home.resolve("cifar10").is_ok());
    assert!(!home.has_staging());
    // A folder that is damaged meanwhile is not registered.
    std::fs::remove_dir_all(home.path("catalog/log")).unwrap();
    let shard = home
        .data("cifar10", "3.0.2")
        .join(shard_file_name("cifar10", "test", 0, 1));
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    assert_fails(&home, home.cifar10(), &["is damaged"]);
}

/// Puts a home into the state of a build that was killed after its commit, before the folders were exchanged.
fn before_the_exchange(home: &Home) -> PathBuf {
    build(home.cifar10()).unwrap();
    let (folder, old) = (home.data("cifar10", "3.0.2"), home.path("old"));
    std::fs::rename(&folder, &old).unwrap();
    // A copy for the build to replace.
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(&old).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    build(home.cifar10().shards(2).overwrite(true)).unwrap();
    let out = home.path("catalog/data/.staging/cifar10/3.0.2/out");
    std::fs::create_dir_all(out.parent().unwrap()).unwrap();
    std::fs::rename(&folder, &out).unwrap();
    std::fs::rename(&old, &folder).unwrap();
    out
}

#[test]
fn an_overwrite_that_dies_leaves_a_version_readable_and_is_healed() {
    let home = Home::new();
    let out = before_the_exchange(&home);
    let resolved = home.resolve("cifar10").unwrap();
    assert!(resolved.is_staged);
    assert_eq!(
        resolved.folder.as_path().unwrap().canonicalize().unwrap(),
        out.canonicalize().unwrap()
    );
    // The same command puts things where they belong.
    let outcome = build(home.cifar10().shards(2).overwrite(true)).unwrap();
    assert_eq!(outcome.status, Status::UpToDate);
    assert!(!home.resolve("cifar10").unwrap().is_staged);
    assert!(
        home.data("cifar10", "3.0.2")
            .join(shard_file_name("cifar10", "train", 1, 2))
            .exists()
    );
    assert!(!home.has_staging());

    // Another one is refused as ever; or has its own say, and loses nothing meanwhile.
    let home = Home::new();
    let out = before_the_exchange(&home);
    assert_fails(&home, home.cifar10().shards(3), &["is there already"]);
    assert!(out.exists());
    assert_eq!(
        build(home.cifar10().shards(3).overwrite(true)).unwrap().status,
        Status::Built
    );
    assert_eq!(
        home.resolve("cifar10").unwrap().manifest.splits[0].shards.len(),
        3
    );
    assert!(!home.has_staging());
}

#[test]
fn of_builds_at_the_same_time_one_does_the_work() {
    let home = Home::new();
    let statuses = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let outcome = build(home.cifar10()).unwrap();
                statuses.lock().unwrap().push(outcome.status);
            });
        }
    });
    let statuses = statuses.into_inner().unwrap();
    assert_eq!(
        statuses.iter().filter(|status| **status == Status::Built).count(),
        1,
        "{statuses:?}"
    );
    assert_eq!(
        statuses
            .iter()
            .filter(|status| **status == Status::UpToDate)
            .count(),
        3
    );
    assert_eq!(home.log_entries("cifar10"), 1);
    assert!(!home.has_staging());
}

#[test]
fn a_stopped_build_leaves_no_trace_in_the_catalog_and_goes_on() {
    let home = Home::new();
    let request = home.cifar10();
    request.monitor.cancel();
    let error = build(request).unwrap_err();
    assert!(error.chain().any(|cause| cause.is::<Cancelled>()), "{error:#}");
    assert!(!home.path("catalog/log").exists());
    assert_eq!(build(home.cifar10()).unwrap().status, Status::Built);
}

/// A builder that stops its own job while it reads.
struct Stopper {
    numbers: Numbers,
    monitor: Mutex<Option<Arc<Monitor>>>,
}

impl Builder for Stopper {
    fn spec(&self) -> &DatasetSpec {
        self.numbers.spec()
    }
    fn read(&self, input: &Input<'_>, output: &mut crate::builder::Output<'_>) -> Result<()> {
        if let Some(monitor) = self.monitor.lock().unwrap().take() {
            monitor.cancel();
        }
        self.numbers.read(input, output)
    }
    fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>> {
        self.numbers.decode(raw)
    }
}

/// Numbers, one a line: `KEY VALUE`.
struct Numbers {
    spec: DatasetSpec,
}

impl Numbers {
    fn new(paths: &[PathBuf]) -> Self {
        let number = Feature::Scalar { dtype: DType::Int64 };
        let features = Features::new(vec![("number".to_owned(), number)]).unwrap();
        let mut spec = DatasetSpec::new("numbers", "1.0.0", features).split("train");
        for path in paths {
            spec = spec.source(SourceSpec::path(path));
        }
        Self { spec }
    }
}

impl Builder for Numbers {
    fn spec(&self) -> &DatasetSpec {
        &self.spec
    }
    fn read(&self, input: &Input<'_>, output: &mut crate::builder::Output<'_>) -> Result<()> {
        let source = input.sources[0];
        let part = output.part(&source.name);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut source.open()?, &mut text)?;
        for (index, line) in text.lines().enumerate() {
            match line.split_once(' ') {
                Some((key, value)) => {
                    output.emit(Raw::new(0, index as u64, part, value.to_owned()).with_key(key))?;
                }
                None => output.fault(0, part, index as u64, "no key")?,
            }
        }
        Ok(())
    }
    fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>> {
        let number = std::str::from_utf8(&raw.data)?.parse().context("not a number")?;
        Ok(vec![("number", Value::Int(number))])
    }
}

fn number_files(folder: &Path, texts: &[String]) -> Vec<PathBuf> {
    let write = |(index, text): (usize, &String)| {
        let path = folder.join(format!("{index}.txt"));
        std::fs::write(&path, text).unwrap();
        path
    };
    texts.iter().enumerate().map(write).collect()
}

#[test]
fn a_builder_in_code_makes_a_dataset_from_many_sources() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let text = |file: u64| {
        (0..300)
            .map(|i| format!("key{file}/{i} {}\n", file * 1000 + i))
            .collect()
    };
    let paths = number_files(folder.path(), &(0..5).map(text).collect::<Vec<String>>());
    let outcome = build(home.with(Numbers::new(&paths))).unwrap();
    assert_eq!(outcome.splits[0].examples, 1500);
    let mut wanted: BTreeMap<u128, i64> = BTreeMap::new();
    for file in 0..5 {
        for i in 0..300 {
            let key = crate::tfds::Key::from(format!("key{file}/{i}"));
            wanted.insert(crate::tfds::key_hash("train", &key), file * 1000 + i);
        }
    }
    let found: Vec<i64> = records(&home.data("numbers", "1.0.0"), "train")
        .iter()
        .map(|record| int_of(&ExampleView::parse(record).unwrap(), "number"))
        .collect();
    assert_eq!(found, wanted.into_values().collect::<Vec<_>>());
    assert_eq!(
        build(home.with(Numbers::new(&paths))).unwrap().status,
        Status::UpToDate
    );
}

/// Keys that are texts of any length come in the order of their hashes, few in memory as many spilled. Bug log: B27.
#[test]
fn text_keys_keep_their_order_few_in_memory_and_many_on_disk() {
    let key = |i: u64| format!("{}/{i}", "k".repeat((i * 7 % 41) as usize));
    for (count, memory, spills) in [(10, 64 << 20, false), (200_000, 1 << 20, true)] {
        let home = Home::new();
        let folder = tempfile::tempdir().unwrap();
        let lines = |from: u64| {
            (from..count)
                .step_by(2)
                .map(|i| format!("{} {i}\n", key(i)))
                .collect::<String>()
        };
        let paths = number_files(folder.path(), &[lines(0), lines(1)]);
        let request = home.with(Numbers::new(&paths)).memory_bytes(memory);
        let outcome = build(request).unwrap();
        assert_eq!(outcome.spilled_bytes > 0, spills);
        let mut wanted: Vec<(u128, i64)> = (0..count)
            .map(|i| {
                (
                    crate::tfds::key_hash("train", &crate::tfds::Key::from(key(i))),
                    i as i64,
                )
            })
            .collect();
        wanted.sort_unstable();
        let found: Vec<i64> = records(&home.data("numbers", "1.0.0"), "train")
            .iter()
            .map(|record| int_of(&ExampleView::parse(record).unwrap(), "number"))
            .collect();
        assert!(
            found.iter().eq(wanted.iter().map(|(_, number)| number)),
            "{count} records"
        );
    }
}

#[test]
fn equal_keys_are_an_error_that_names_both() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let lines = |from: u64| {
        (from..from + 500)
            .map(|i| format!("{i} {i}\n"))
            .collect::<String>()
    };
    let paths = number_files(folder.path(), &[lines(0), lines(500) + "17 1\n"]);
    let texts = [
        "same key",
        "split `train`",
        "0.txt, record 17",
        "1.txt, record 500",
    ];
    for workers in [1, 2, 3] {
        assert_fails(&home, home.with(Numbers::new(&paths)).workers(workers), &texts);
    }
}

#[test]
fn bad_lines_of_a_builder_in_code_follow_the_policy() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let paths = number_files(folder.path(), &["a 1\nb two\nthree\nd 4\n".to_owned()]);
    assert_fails(&home, home.with(Numbers::new(&paths)), &["0.txt, record "]);
    let outcome = build(home.with(Numbers::new(&paths)).on_error(OnError::Skip(None))).unwrap();
    assert_eq!((outcome.splits[0].examples, outcome.skipped), (2, 2));
}

#[test]
fn a_build_without_examples_is_an_error() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let paths = number_files(folder.path(), &[String::new()]);
    assert_fails(
        &home,
        home.with(Numbers::new(&paths)),
        &["split `train` has no examples"],
    );
}

/// Panics over one record.
struct Panicker(Numbers);

impl Builder for Panicker {
    fn spec(&self) -> &DatasetSpec {
        self.0.spec()
    }
    fn read(&self, input: &Input<'_>, output: &mut crate::builder::Output<'_>) -> Result<()> {
        self.0.read(input, output)
    }
    fn decode(&self, raw: &Raw) -> Result<Vec<(&str, Value)>> {
        assert!(raw.record != 3, "a worker's bug");
        self.0.decode(raw)
    }
}

#[test]
fn a_worker_that_panics_ends_the_build_with_its_stage_and_words() {
    let home = Home::new();
    let texts = ["a 1\nb 2\nc 3\nd 4\ne 5\n".to_owned()];
    let numbers = Numbers::new(&number_files(home.folder.path(), &texts));
    let error = build(home.with(Panicker(numbers))).unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("encode") && text.contains("a worker's bug"),
        "{text}"
    );
    assert!(!home.path("catalog/log").exists());
}

#[test]
fn a_build_can_be_stopped_while_it_reads() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..20_000).map(|i| format!("{i} {i}\n")).collect();
    let paths = number_files(folder.path(), &[lines]);
    let monitor = Monitor::new();
    let stopper = Stopper {
        numbers: Numbers::new(&paths),
        monitor: Mutex::new(Some(Arc::clone(&monitor))),
    };
    let mut request = home.with(stopper);
    request.monitor = monitor;
    let error = build(request).unwrap_err();
    assert!(error.chain().any(|cause| cause.is::<Cancelled>()), "{error:#}");
    assert_eq!(home.log_entries("numbers"), 0);
    assert_eq!(
        build(home.with(Numbers::new(&paths))).unwrap().splits[0].examples,
        20_000
    );
}

#[test]
fn sources_are_fetched_once_and_gone_afterwards() {
    let home = Home::new();
    let server = FileServer::start(source_folder("cifar10"), []);
    let bytes = std::fs::read(source_folder("cifar10").join(ARCHIVE)).unwrap();
    let builder = || pinned(bytes.len() as u64, &hex::encode(Sha256::digest(&bytes)));
    let request = || home.with(builder()).from(vec![server.url("")]);
    // The first run fails after the download.
    std::fs::create_dir_all(home.path("catalog/data")).unwrap();
    std::fs::write(home.path("catalog/data/cifar10"), "").unwrap();
    assert_fails(&home, request(), &["could not make the folder"]);
    std::fs::remove_file(home.path("catalog/data/cifar10")).unwrap();
    build(request()).unwrap();
    assert_eq!(build(request()).unwrap().status, Status::UpToDate);
    assert_eq!(server.requests().len(), 1);
    assert!(!home.has_staging());
    let local = Home::new();
    build(local.cifar10()).unwrap();
    for split in ["train", "test"] {
        let (ours, theirs) = (home.data("cifar10", "3.0.2"), local.data("cifar10", "3.0.2"));
        assert_eq!(records(&ours, split), records(&theirs, split));
    }
}

#[test]
fn local_sources_are_neither_changed_nor_copied() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(
        source_folder("cifar10").join(ARCHIVE),
        folder.path().join(ARCHIVE),
    )
    .unwrap();
    let before = folder_digest(folder.path());
    build(home.builtin("cifar10", folder.path())).unwrap();
    assert_eq!(folder_digest(folder.path()), before);
}

#[test]
fn a_dry_run_writes_nothing() {
    let home = Home::new();
    let outcome = build(home.cifar10().dry_run(true)).unwrap();
    assert_eq!(outcome.status, Status::Planned);
    assert!(
        outcome
            .plan
            .iter()
            .any(|line| line.starts_with("read ") && line.contains(ARCHIVE)),
        "{:?}",
        outcome.plan
    );
    assert_eq!(std::fs::read_dir(home.folder.path()).unwrap().count(), 0);
    let request = home
        .with(RecipeBuilder::new(builtin::find("mnist").unwrap()))
        .dry_run(true);
    let outcome = build(request).unwrap();
    assert_eq!(
        outcome
            .plan
            .iter()
            .filter(|line| line.starts_with("fetch https://"))
            .count(),
        4
    );
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_any_work() {
    let home = Home::new();
    let file = home.path("file");
    std::fs::write(&file, "").unwrap();
    let error = assert_fails(
        &home,
        home.cifar10().data_dir(file.to_str().unwrap()),
        &["file cannot be written"],
    );
    assert!(hint(&error).contains("--data-dir"));
    let error = assert_fails(
        &home,
        home.cifar10().data_dir("https://example.org/data"),
        &["https://example.org/data is on a web server, and can only be read"],
    );
    assert!(hint(&error).contains("`--data-dir`"));
}

#[test]
fn policies_are_parsed() {
    assert_eq!(OnError::parse("fail"), Ok(OnError::Fail));
    assert_eq!(OnError::parse("skip"), Ok(OnError::Skip(None)));
    assert_eq!(OnError::parse("skip:12"), Ok(OnError::Skip(Some(12))));
    for bad in ["", "skip:", "skip:x", "skip:-1", "fail:1", "ignore"] {
        assert!(OnError::parse(bad).is_err(), "{bad}");
    }
}
