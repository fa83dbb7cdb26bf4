use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use futures_core::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use serde_json::Value;

use super::*;
use crate::manifest::tests::example;

/// A catalog in a folder of its own.
struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn catalog(&self) -> Catalog {
        Catalog::open(&self.location()).unwrap()
    }

    fn location(&self) -> Location {
        Location::from_path(self.folder.path().join("catalog"))
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join("catalog").join(relative)
    }

    /// Writes a version's folder (only its manifest) at a place below the catalog.
    fn write(&self, manifest: &Manifest, relative: &str) -> Location {
        fs::create_dir_all(self.path(relative)).unwrap();
        let folder = self.location().join(relative);
        manifest.write(&folder).unwrap();
        folder
    }

    fn build(&self, dataset: &str, version: &str, seed: u8) -> Committed {
        let manifest = manifest(dataset, version, seed);
        let folder = self.write(&manifest, &format!("data/{dataset}/{version}"));
        self.catalog()
            .commit_build(&Build::new(&manifest, folder).overwrite(true))
            .unwrap()
    }

    fn tag(&self, dataset: &str, tag: &str, version: &str) -> Result<Option<u64>> {
        let change = Change::Tag(TagRecord {
            tag: tag.into(),
            version: version.into(),
            other: Map::new(),
        });
        self.catalog()
            .commit(&parse(dataset), |_| Ok(Some(change.clone())))
    }

    fn resolve(&self, name: &str) -> Result<Resolved> {
        self.catalog().resolve(&parse(name))
    }

    fn version_of(&self, name: &str) -> String {
        self.resolve(name).unwrap().version
    }

    fn entry_path(&self, dataset: &str, number: u64) -> PathBuf {
        self.path(&super::entry_path(&parse(dataset), number))
    }
}

fn parse(name: &str) -> DatasetName {
    DatasetName::parse(name).unwrap()
}

fn manifest(dataset: &str, version: &str, seed: u8) -> Manifest {
    let name = parse(dataset);
    example(&name.name, name.config.as_deref(), version, seed)
}

#[test]
fn all_forms_of_a_name_resolve() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    fixture.build("a", "10.0.0", 2);
    fixture.build("a", "9.0.0", 3);
    assert_eq!(fixture.tag("a", "best", "1.0.0").unwrap(), Some(3));
    fixture.build("a/big", "2.0.0", 4);
    for (name, version, log_number) in [
        ("a", "10.0.0", 1),
        ("a:9.0.0", "9.0.0", 2),
        ("a@best", "1.0.0", 0),
        ("a@log=0", "1.0.0", 0),
        ("a@log=2", "10.0.0", 1),
        ("a/big", "2.0.0", 0),
        ("a/big:2.0.0", "2.0.0", 0),
    ] {
        let found = fixture.resolve(name).unwrap();
        assert_eq!(
            (found.version.as_str(), found.log_number),
            (version, log_number),
            "{name}"
        );
        assert_eq!(found.manifest.version, version);
        assert!(!found.is_staged);
        assert!(found.folder.as_path().unwrap().join(MANIFEST_FILE).exists());
        found.check_unchanged().unwrap();
    }
    assert_eq!(fixture.resolve("a:1.0.0").unwrap().tags, ["best"]);
    assert_eq!(
        fs::read_to_string(fixture.path("prep.json")).unwrap(),
        "{\"format\": 1}\n"
    );
    let names: Vec<String> = fixture
        .catalog()
        .datasets()
        .unwrap()
        .iter()
        .map(DatasetName::place)
        .collect();
    assert_eq!(names, ["a", "a/big"]);
    let listing = fixture.catalog().list().unwrap();
    let versions: Vec<&str> = listing
        .versions
        .iter()
        .map(|listed| listed.record.version.as_str())
        .collect();
    assert_eq!(versions, ["1.0.0", "9.0.0", "10.0.0", "2.0.0"]);
    assert!(listing.problems.is_empty());
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let fixture = Fixture::new();
    let error = fixture.resolve("cifar10").unwrap_err();
    assert!(error.to_string().contains(&fixture.location().to_string()));
    assert!(error.hint().unwrap().contains("no catalog at this place"));
    assert!(!fixture.path("").exists(), "a reader made the catalog");
    fixture.build("cifar100", "3.0.2", 1);
    fixture.build("cifar100", "3.1.0", 1);
    fixture.build("movi_e/256x256", "1.0.0", 1);
    let catalog = fixture.catalog().suggesting(["cifar10", "mnist"]);
    let hint = |name: &str| {
        catalog
            .resolve(&parse(name))
            .unwrap_err()
            .hint()
            .unwrap_or_default()
    };
    let text = |name: &str| catalog.resolve(&parse(name)).unwrap_err().to_string();
    assert_eq!(hint("cifr100"), "did you mean `cifar100`, `cifar10`?");
    assert_eq!(hint("mnits"), "did you mean `mnist`?");
    assert!(hint("mnist").contains("`prep build mnist`"), "{}", hint("mnist"));
    assert!(hint("imagenet").contains("`prep list`"));
    assert!(text("cifar100:3.0.3").contains("no version `3.0.3`: it has versions `3.0.2`, `3.1.0`"));
    assert!(text("cifar100@best").contains("no tag `best`: it has no tags"));
    assert!(text("cifar100@log=2").contains("no log entry 2: it has entries 0 to 1"));
    fixture.tag("cifar100", "good", "3.0.2").unwrap();
    assert!(text("cifar100@best").contains("no tag `best`: it has tags `good`"));
    for name in ["movi_e", "movi_e/256"] {
        assert!(text(name).contains("has the configs `256x256`"), "{}", text(name));
        assert_eq!(hint(name), "say which one: `movi_e/256x256`");
    }
    let error = fixture.tag("cifar100", "good", "4.0.0").unwrap_err();
    assert_eq!(error.to_string(), "could not tag: there is no version `4.0.0`");
    let change = Change::Remove(RemoveRecord {
        version: "1.0.0".into(),
        other: Map::new(),
    });
    catalog
        .commit(&parse("movi_e/256x256"), |_| Ok(Some(change.clone())))
        .unwrap();
    assert!(text("movi_e/256x256").contains("no version: it has none"));
    assert!(text("movi_e/256x256:1.0.0").contains("it has no version"));
    assert_eq!(fixture.version_of("movi_e/256x256@log=0"), "1.0.0");
}

#[test]
fn the_same_build_again_is_no_new_entry_and_another_one_is_a_conflict() {
    let fixture = Fixture::new();
    let first = manifest("a", "1.0.0", 1);
    let folder = fixture.write(&first, "data/a/1.0.0");
    let catalog = fixture.catalog();
    let build = Build::new(&first, folder.clone()).flag("checksum", "skipped");
    let committed = |log_number, is_new| Committed { log_number, is_new };
    assert_eq!(catalog.commit_build(&build).unwrap(), committed(0, true));
    assert_eq!(catalog.commit_build(&build).unwrap(), committed(0, false));
    assert_eq!(
        catalog.commit_build(&build.clone().overwrite(true)).unwrap(),
        committed(0, false)
    );
    let mut second = first.clone();
    second.recipe_sha256 = "ef".repeat(32);
    let error = catalog
        .commit_build(&Build::new(&second, folder.clone()))
        .unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }));
    assert!(
        error.to_string().starts_with("`a:1.0.0` is in catalog"),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .ends_with("another recipe or other output options"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("--overwrite"));
    assert_eq!(catalog.state(&parse("a")).unwrap().log_number(), Some(0));
    let record = fixture.resolve("a").unwrap().record;
    assert_eq!(record.path, "data/a/1.0.0");
    assert_eq!(record.flags["checksum"], "skipped");
    let overwrite = Build::new(&second, folder).overwrite(true);
    assert_eq!(catalog.commit_build(&overwrite).unwrap(), committed(1, true));
}

#[test]
fn both_sides_of_an_overwrite_resolve_and_the_old_data_stay_readable_before() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    let old = fixture.resolve("a").unwrap();
    let new = manifest("a", "1.0.0", 2);
    let staged = fixture.write(&new, "data/a/.staging-x");
    assert_eq!(
        fixture.resolve("a").unwrap().manifest.fingerprint,
        old.manifest.fingerprint
    );
    let target = fixture.location().join("data/a/1.0.0");
    let build = Build::new(&new, target.clone())
        .staged(staged.clone())
        .overwrite(true);
    fixture.catalog().commit_build(&build).unwrap();
    let between = fixture.resolve("a").unwrap();
    assert_eq!(between.manifest, new);
    assert!(between.is_staged);
    assert_eq!(between.folder, staged);
    old.check_unchanged().unwrap();
    exchange(&fixture.path("data/a/.staging-x"), &fixture.path("data/a/1.0.0"));
    let after = fixture.resolve("a").unwrap();
    assert_eq!(
        (&after.manifest, after.is_staged, &after.folder),
        (&new, false, &target)
    );
    // Whoever opened one of the two before the exchange is told.
    assert!(old.check_unchanged().is_err());
    assert!(between.check_unchanged().is_err());
    fs::remove_dir_all(fixture.path("data/a/.staging-x")).unwrap();
    assert!(!fixture.resolve("a").unwrap().is_staged);
    let error = fixture.resolve("a@log=0").unwrap_err();
    assert!(error.to_string().contains("log entry 1 replaced them"), "{error}");
}

fn exchange(a: &Path, b: &Path) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
}

/// A version that shares shards of another one, and one that has replaced these meanwhile: exactly one of the two gets in, whoever is first.
#[test]
fn shards_are_shared_only_of_the_version_that_was_looked_at() {
    for replaced_first in [true, false] {
        let fixture = Fixture::new();
        fixture.build("a", "1.0.0", 1);
        let looked_at = manifest("a", "1.0.0", 1);
        let mut next = manifest("a", "1.1.0", 2);
        let shard = &mut next.splits[0].shards[0];
        shard.path = format!("../1.0.0/{}", shard.path);
        let folder = fixture.write(&next, "data/a/1.1.0");
        let catalog = fixture.catalog();
        let append = || {
            let build = Build::new(&next, folder.clone()).appended();
            catalog.commit_build(&build.shares_with("1.0.0", &looked_at.sha256()))
        };
        let replace = || {
            let other = manifest("a", "1.0.0", 9);
            let staged = fixture.write(&other, "data/.staging/a/1.0.0/out");
            let place = fixture.location().join("data/a/1.0.0");
            catalog.commit_build(&Build::new(&other, place).staged(staged).overwrite(true))
        };
        let (appended, replaced) = match replaced_first {
            true => {
                let replaced = replace();
                (append(), replaced)
            }
            false => (append(), replace()),
        };
        assert_eq!(
            (appended.is_ok(), replaced.is_ok()),
            (!replaced_first, replaced_first)
        );
        let (error, wanted) = match (appended, replaced) {
            (Err(error), _) => (error, "has been replaced meanwhile"),
            (_, Err(error)) => (error, "uses its shards"),
            _ => panic!("both are in"),
        };
        assert!(
            matches!(&error, Error::Refused(text) if text.contains(wanted)),
            "{error}"
        );
    }
}

#[test]
fn readers_never_fail_while_versions_are_replaced() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = BTreeSet::new();
                    while !done.load(Ordering::Relaxed) {
                        let found = fixture.resolve("a").unwrap();
                        assert_eq!(found.manifest.sha256(), found.record.manifest_sha256);
                        seen.insert(found.manifest.fingerprint);
                    }
                    seen.len()
                })
            })
            .collect();
        for seed in 1..40 {
            let new = manifest("a", "1.0.0", seed);
            let staged = fixture.write(&new, "data/a/.staging-x");
            let target = fixture.location().join("data/a/1.0.0");
            let build = Build::new(&new, target).staged(staged).overwrite(true);
            fixture.catalog().commit_build(&build).unwrap();
            exchange(&fixture.path("data/a/.staging-x"), &fixture.path("data/a/1.0.0"));
            fs::remove_dir_all(fixture.path("data/a/.staging-x")).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    assert_eq!(fixture.resolve("a").unwrap().log_number, 39);
}

#[test]
fn data_that_are_gone_or_changed_are_an_error_that_says_which() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    let path = fixture.path("data/a/1.0.0").join(MANIFEST_FILE);
    let good = fs::read(&path).unwrap();
    for damage in [good[..good.len() - 1].to_vec(), good.to_ascii_uppercase(), vec![]] {
        fs::write(&path, damage).unwrap();
        let error = fixture.resolve("a").unwrap_err();
        assert!(matches!(error, Error::Data { .. }));
        assert!(error.to_string().contains("has SHA-256"), "{error}");
        assert!(error.hint().unwrap().contains("build the version again"));
    }
    fs::remove_dir_all(fixture.path("data")).unwrap();
    let error = fixture.resolve("a").unwrap_err();
    assert!(error.to_string().contains("there is no `"), "{error}");
    // The listing comes from the log.
    assert_eq!(fixture.catalog().list().unwrap().versions.len(), 1);
}

#[test]
fn a_moved_catalog_works_and_data_elsewhere_are_found() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    let elsewhere = fixture.folder.path().join("with space, é");
    fs::create_dir(&elsewhere).unwrap();
    let manifest = manifest("b", "1.0.0", 1);
    let folder = Location::from_path(&elsewhere);
    manifest.write(&folder).unwrap();
    fixture
        .catalog()
        .commit_build(&Build::new(&manifest, folder))
        .unwrap();
    let moved = fixture.folder.path().join("moved to 猫");
    fs::rename(fixture.path(""), &moved).unwrap();
    let catalog = Catalog::open(&Location::from_path(&moved)).unwrap();
    let a = catalog.resolve(&parse("a")).unwrap();
    assert_eq!(a.folder.as_path().unwrap(), moved.join("data/a/1.0.0"));
    let b = catalog.resolve(&parse("b")).unwrap();
    assert_eq!(b.folder.as_path().unwrap(), elsewhere.canonicalize().unwrap());
    // Through a link, what is below the catalog is still below it.
    let link = fixture.folder.path().join("link");
    std::os::unix::fs::symlink(&moved, &link).unwrap();
    let linked = Catalog::open(&Location::from_path(&link)).unwrap();
    assert_eq!(
        linked
            .stored_path(&Location::from_path(moved.join("data/c")))
            .unwrap(),
        "data/c"
    );
    assert!(linked.stored_path(&Location::from_path(&moved)).is_err());
}

#[test]
fn a_read_only_catalog_resolves_and_lists() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    let mut folders = vec![fixture.path("")];
    let mut all: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        let children = fs::read_dir(&folder).unwrap().map(|child| child.unwrap().path());
        folders.extend(children.filter(|child| child.is_dir()));
        all.push(folder);
    }
    let chmod = |mode: u32| {
        for folder in &all {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    chmod(0o555);
    let before = snapshot(&fixture.path(""));
    let found = fixture.resolve("a");
    let listed = fixture.catalog().list();
    let commit = fixture.tag("a", "best", "1.0.0");
    chmod(0o755);
    assert_eq!(found.unwrap().version, "1.0.0");
    assert_eq!(listed.unwrap().versions.len(), 1);
    // Root may write anywhere.
    if !rustix::process::geteuid().is_root() {
        let error = commit.unwrap_err();
        assert!(error.hint().unwrap().contains("may be written"), "{error:?}");
        assert_eq!(snapshot(&fixture.path("")), before);
    }
}

/// Paths and contents of all files.
fn snapshot(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for child in fs::read_dir(folder).unwrap() {
        let path = child.unwrap().path();
        if path.is_dir() {
            files.extend(snapshot(&path));
        } else {
            files.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

#[test]
fn one_damaged_entry_hides_nothing_else() {
    let fixture = Fixture::new();
    for version in ["1.0.0", "2.0.0", "3.0.0"] {
        fixture.build("a", version, 1);
    }
    fixture.build("b", "1.0.0", 1);
    let path = fixture.entry_path("a", 1);
    let good = fs::read(&path).unwrap();
    let mut future: Value = serde_json::from_slice(&good).unwrap();
    future["kind"] = "merge".into();
    let cases: [(Option<Vec<u8>>, bool); 4] = [
        (Some(b"{".to_vec()), true),
        (Some(vec![]), true),
        (None, true),
        (Some(future.to_string().into_bytes()), false),
    ];
    for (bytes, may_resolve_by_number) in cases {
        match bytes {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let listing = fixture.catalog().list().unwrap();
        assert_eq!(listing.versions.len(), 3);
        assert_eq!(listing.problems.len(), 1);
        let problem = listing.problems[0].to_string();
        assert!(problem.contains(&*path.to_string_lossy()), "{problem}");
        assert_eq!(fixture.resolve("a").unwrap_err().to_string(), problem);
        assert_eq!(fixture.resolve("a@log=2").unwrap_err().to_string(), problem);
        assert_eq!(fixture.version_of("a@log=0"), "1.0.0");
        assert_eq!(fixture.resolve("a:3.0.0").is_ok(), may_resolve_by_number);
        assert_eq!(fixture.resolve("a:2.0.0").unwrap_err().to_string(), problem);
        assert_eq!(
            fixture.tag("a", "best", "1.0.0").unwrap_err().to_string(),
            problem
        );
        assert_eq!(fixture.version_of("b"), "1.0.0");
        fs::write(&path, &good).unwrap();
    }
    assert_eq!(fixture.version_of("a"), "3.0.0");
}

#[test]
fn cut_anywhere_an_entry_is_an_error_that_names_the_file() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    let path = fixture.entry_path("a", 0);
    let good = fs::read(&path).unwrap();
    for end in 0..good.len() - 1 {
        fs::write(&path, &good[..end]).unwrap();
        let error = fixture.resolve("a").unwrap_err().to_string();
        assert!(error.starts_with(&*path.to_string_lossy()), "{end}: {error}");
    }
}

#[test]
fn a_newer_or_damaged_catalog_is_refused() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("")).unwrap();
    for (text, part) in [
        ("{\"format\": 2}", "has format 2"),
        ("{\"format\": \"1\"}", "no `format`"),
        ("{", "damaged"),
        ("", "damaged"),
    ] {
        fs::write(fixture.path("prep.json"), text).unwrap();
        let error = Catalog::open(&fixture.location()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.to_string().contains("prep.json"), "{error}");
    }
}

#[test]
fn what_is_no_dataset_and_what_killed_writers_left_is_passed_over() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    for folder in [
        "log/lost+found",
        "log/.hidden",
        "log/a/.x",
        "log/a/9.9.9",
        "log/猫",
        "log/empty",
    ] {
        fs::create_dir_all(fixture.path(folder)).unwrap();
        fs::write(fixture.path(folder).join("x"), b"?").unwrap();
    }
    fs::write(fixture.path("log/a/00000000000000000001.json#1"), b"{\"ki").unwrap();
    fs::write(fixture.path("log/a/notes.txt"), b"?").unwrap();
    let listing = fixture.catalog().list().unwrap();
    assert_eq!((listing.versions.len(), listing.problems.len()), (1, 0));
    assert_eq!(fixture.version_of("a"), "1.0.0");
    assert_eq!(fixture.build("a", "2.0.0", 1).log_number, 1);
}

#[test]
fn long_logs_are_read_from_their_last_checkpoint() {
    let fixture = Fixture::new();
    let count = 3 * CHECKPOINT_INTERVAL + 5;
    for number in 0..count {
        fixture.build("a", &format!("1.0.{number}"), 1);
        if number % 40 == 0 {
            let tag = format!("t{number}");
            fixture.tag("a", &tag, &format!("1.0.{number}")).unwrap();
        }
    }
    let full = fixture.catalog().state(&parse("a")).unwrap();
    assert_eq!(full.versions().count() as u64, count);
    // With all entries before the last checkpoint gone, the state is the same: none of them is read.
    let last = full.log_number().unwrap();
    let checkpoint = last - last % CHECKPOINT_INTERVAL;
    for number in 0..checkpoint {
        fs::remove_file(fixture.entry_path("a", number)).unwrap();
    }
    assert_eq!(fixture.catalog().state(&parse("a")).unwrap(), full);
    assert_eq!(fixture.version_of("a@t40"), "1.0.40");
    assert_eq!(fixture.version_of("a"), format!("1.0.{}", count - 1));
}

#[test]
fn a_damaged_checkpoint_is_not_trusted() {
    let fixture = Fixture::new();
    for number in 0..2 * CHECKPOINT_INTERVAL + 2 {
        fixture.build("a", &format!("1.0.{number}"), 1);
    }
    let full = fixture.catalog().state(&parse("a")).unwrap();
    let path = fixture.entry_path("a", 2 * CHECKPOINT_INTERVAL);
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    value.as_object_mut().unwrap().remove("checkpoint").unwrap();
    fs::write(&path, value.to_string()).unwrap();
    assert_eq!(fixture.catalog().state(&parse("a")).unwrap(), full);
    value["checkpoint"] = serde_json::json!({"versions": 7});
    fs::write(&path, value.to_string()).unwrap();
    assert!(fixture.catalog().state(&parse("a")).is_err());
    assert_eq!(fixture.version_of("a:1.0.63"), "1.0.63");
}

/// Each of `writers` commits `each` tags; all land, in some order, numbered without gaps.
fn commit_many(catalog: &Catalog, writer: u64, each: u64) -> Vec<u64> {
    (0..each)
        .map(|index| {
            let change = Change::Tag(TagRecord {
                tag: format!("w{writer}-{index}"),
                version: "1.0.0".into(),
                other: Map::new(),
            });
            let number = catalog.commit(&parse("a"), |_| Ok(Some(change.clone())));
            number.unwrap().unwrap()
        })
        .collect()
}

fn check_all_landed(catalog: &Catalog, numbers: impl Iterator<Item = u64>, writers: u64, each: u64) {
    let numbers: BTreeSet<u64> = numbers.collect();
    assert_eq!(numbers, (1..=writers * each).collect());
    let state = catalog.state(&parse("a")).unwrap();
    let tags: BTreeSet<String> = state.tags().map(|(tag, _)| tag.to_string()).collect();
    let wanted = (0..writers).flat_map(|writer| (0..each).map(move |index| format!("w{writer}-{index}")));
    assert_eq!(tags, wanted.collect());
}

#[test]
fn sixteen_threads_commit_at_once_and_all_land() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    let local = fixture.catalog();
    let objects = Arc::new(InMemory::new());
    let store = Store::new(Location::from_path("memory"), objects, ObjectPath::from("root"));
    let memory = Catalog::with_store(store).unwrap();
    let first = manifest("a", "1.0.0", 1);
    let nowhere = Location::from_path("/nowhere");
    memory.commit_build(&Build::new(&first, nowhere)).unwrap();
    for catalog in [local, memory] {
        let numbers: Vec<u64> = thread::scope(|scope| {
            let catalog = &catalog;
            let threads: Vec<_> = (0..16)
                .map(|writer| scope.spawn(move || commit_many(catalog, writer, 4)))
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        check_all_landed(&catalog, numbers.into_iter(), 16, 4);
    }
}

/// A store in memory with oddities, which counts what is asked of it.
#[derive(Debug, Default)]
struct Odd {
    objects: InMemory,
    /// Puts are done and then fail.
    loses_replies: bool,
    /// Takes no notice of conditions, as some stores that speak the protocol of S3.
    is_careless: bool,
    reads: AtomicU64,
    lists: AtomicU64,
}

impl Odd {
    /// Reads and listings of some work.
    fn during<T>(&self, work: impl FnOnce() -> T) -> (u64, u64) {
        let count = || {
            (
                self.reads.load(Ordering::SeqCst),
                self.lists.load(Ordering::SeqCst),
            )
        };
        let before = count();
        work();
        let after = count();
        (after.0 - before.0, after.1 - before.1)
    }
}

impl std::fmt::Display for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("odd")
    }
}

type StoreResult<T> = object_store::Result<T>;

#[async_trait::async_trait]
impl ObjectStore for Odd {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> StoreResult<PutResult> {
        if self.is_careless {
            options = PutOptions::default();
        }
        let put = self.objects.put_opts(path, payload, options).await?;
        if self.loses_replies {
            return Err(object_store::Error::Generic {
                store: "test",
                source: "connection reset".into(),
            });
        }
        Ok(put)
    }
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }
    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> StoreResult<GetResult> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.objects.get_opts(path, options).await
    }
    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<ObjectPath>>,
    ) -> BoxStream<'static, StoreResult<ObjectPath>> {
        self.objects.delete_stream(paths)
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.objects.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> StoreResult<ListResult> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.objects.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> StoreResult<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

const CHILD: &str = "PREP_TEST_WRITER";

/// Not a test by itself: what the processes of the tests below run.
#[test]
fn child_process_that_commits() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let mut parts = task.splitn(3, ' ');
    let writer: u64 = parts.next().unwrap().parse().unwrap();
    let each: u64 = parts.next().unwrap().parse().unwrap();
    let catalog = Catalog::open(&Location::from_path(parts.next().unwrap())).unwrap();
    commit_many(&catalog, writer, each);
}

fn start_writer(fixture: &Fixture, writer: u64, each: u64) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "catalog::tests::child_process_that_commits", "--quiet"])
        .env(CHILD, format!("{writer} {each} {}", fixture.location()))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn several_processes_commit_at_once_and_all_land() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    let children: Vec<_> = (0..6).map(|writer| start_writer(&fixture, writer, 12)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    check_all_landed(&fixture.catalog(), 1..=72, 6, 12);
}

#[test]
fn killed_writers_leave_a_catalog_that_can_be_read_and_written() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    let mut committed = 0;
    for writer in 0..12 {
        let mut child = start_writer(&fixture, writer, 1_000_000);
        // Killed at whatever it does after one more commit is seen.
        let before = committed;
        while committed <= before {
            let log = fixture.catalog().state(&parse("a")).unwrap();
            committed = log.log_number().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let state = fixture.catalog().state(&parse("a")).unwrap();
        committed = state.log_number().unwrap();
        assert_eq!(fixture.version_of("a"), "1.0.0");
    }
    assert_eq!(fixture.tag("a", "after", "1.0.0").unwrap(), Some(committed + 1));
    assert!(fixture.catalog().list().unwrap().problems.is_empty());
}

#[test]
fn a_web_server_is_only_read_and_says_so_before_any_work() {
    // Nothing is asked of it to say that.
    let objects = Arc::new(InMemory::new());
    let location = Location::parse("https://host.example/c").unwrap();
    let catalog = Catalog::with_store(Store::new(location, objects, ObjectPath::from("c"))).unwrap();
    let error = catalog.check_commits().unwrap_err();
    assert!(error.to_string().contains("can only be read"), "{error}");
    assert!(error.hint().unwrap().contains("s3://"));
    let manifest = manifest("a", "1.0.0", 1);
    let build = Build::new(&manifest, Location::from_path("/nowhere"));
    assert!(matches!(catalog.commit_build(&build), Err(Error::WebOnly { .. })));
    let error = catalog.list().unwrap_err();
    assert!(error.to_string().contains("does not tell what it has"), "{error}");
}

#[test]
fn a_log_that_cannot_be_listed_is_followed() {
    let objects = Arc::new(InMemory::new());
    let at = |url: &str| {
        let store = Store::new(
            Location::parse(url).unwrap(),
            Arc::<InMemory>::clone(&objects),
            ObjectPath::from("c"),
        );
        Catalog::with_store(store).unwrap()
    };
    let (writer, reader) = (at("s3://bucket/c"), at("https://host/c"));
    let first = manifest("a", "1.0.0", 1);
    let nowhere = Location::from_path("/nowhere");
    for round in 0..2 * CHECKPOINT_EVERY + 3 {
        if round == 0 {
            writer.commit_build(&Build::new(&first, nowhere.clone())).unwrap();
        } else {
            writer.tag(&parse("a"), &format!("t{round}")).unwrap();
        }
        let wanted = writer.state(&parse("a")).unwrap();
        assert_eq!(reader.state(&parse("a")).unwrap(), wanted);
        assert_eq!(reader.read_quickly(&parse("a")).unwrap().state, wanted);
        assert_eq!(writer.read_quickly(&parse("a")).unwrap().state, wanted);
        let early = reader.select(&parse("a@log=0")).unwrap().0;
        assert_eq!((early.log_number(), early.tags().count()), (Some(0), 0));
        // A checkpoint that is not of this log is passed over.
        if round == CHECKPOINT_EVERY {
            let path = checkpoint_path(&parse("a"));
            let bytes = writer.store.get(&path).unwrap().unwrap();
            let mut value: Value = serde_json::from_slice(&bytes).unwrap();
            value["commit_id"] = "another".into();
            value["state"]["tags"] = serde_json::json!({"of-another-log": "1.0.0"});
            writer.store.put(&path, value.to_string().into_bytes()).unwrap();
            assert_eq!(reader.state(&parse("a")).unwrap(), wanted);
        }
    }
    assert!(matches!(
        reader.select(&parse("b")),
        Err(Error::UnknownDataset { .. })
    ));
    // An entry that is lost behind the checkpoint is noticed, as the one after it is there.
    let last = writer.state(&parse("a")).unwrap().log_number().unwrap();
    writer.store.remove(&entry_path(&parse("a"), last - 1)).unwrap();
    for catalog in [&writer, &reader] {
        let error = catalog.select(&parse("a")).unwrap_err();
        assert!(error.to_string().contains("is missing"), "{error}");
    }
}

#[test]
fn a_store_without_conditional_puts_is_refused_before_the_first_commit() {
    let objects = Arc::new(Odd {
        is_careless: true,
        ..Odd::default()
    });
    let location = Location::parse("s3://bucket/c").unwrap();
    let store = Store::new(location, Arc::<Odd>::clone(&objects), ObjectPath::from("c"));
    let catalog = Catalog::with_store(store).unwrap();
    let manifest = manifest("a", "1.0.0", 1);
    let build = Build::new(&manifest, Location::from_path("/nowhere"));
    for error in [
        catalog.check_commits().unwrap_err(),
        catalog.commit_build(&build).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NoConditionalPut { .. }), "{error}");
        assert!(error.to_string().contains("took the place"), "{error}");
        assert!(error.hint().unwrap().contains("--data-dir"));
    }
    assert!(catalog.datasets().unwrap().is_empty());
    // The probes are gone.
    assert_eq!(catalog.store.list("").unwrap(), store::Children::default());
}

#[test]
fn tags_and_versions_come_and_go_by_entries() {
    let fixture = Fixture::new();
    fixture.build("a", "1.0.0", 1);
    fixture.build("a", "2.0.0", 2);
    let catalog = fixture.catalog();
    assert_eq!(catalog.tag(&parse("a:1.0.0"), "best").unwrap(), Some(2));
    assert_eq!(catalog.tag(&parse("a@best"), "best").unwrap(), None);
    assert_eq!(catalog.tag(&parse("a@best"), "old").unwrap(), Some(3));
    assert_eq!(catalog.tag(&parse("a"), "best").unwrap(), Some(4));
    assert_eq!(fixture.version_of("a@best"), "2.0.0");
    assert_eq!(fixture.version_of("a@log=2"), "2.0.0");
    assert_eq!(catalog.untag(&parse("a"), "best").unwrap(), Some(5));
    for (name, tag) in [("a", "best"), ("b", "old")] {
        assert!(catalog.untag(&parse(name), tag).is_err(), "{name}@{tag}");
    }
    assert!(matches!(catalog.tag(&parse("a"), "-x"), Err(Error::Refused(_))));
    assert!(matches!(
        catalog.tag(&parse("a:3.0.0"), "x"),
        Err(Error::UnknownVersion { .. })
    ));
    assert_eq!(catalog.remove(&parse("a@old")).unwrap(), Some(6));
    assert!(fixture.resolve("a:1.0.0").is_err() && fixture.resolve("a@old").is_err());
    assert_eq!(fixture.version_of("a"), "2.0.0");
    // The data are there still, and garbage.
    assert!(fixture.path("data/a/1.0.0").exists());
    let taken = catalog
        .collect(
            &parse("a"),
            &["data/a/1.0.0".into(), "data/a/2.0.0".into(), "data/b".into()],
        )
        .unwrap();
    assert_eq!(taken, ["data/a/1.0.0"]);
    assert!(catalog.collect(&parse("a"), &taken).unwrap().is_empty());
    assert!(catalog.state(&parse("a")).unwrap().was_collected("data/a/1.0.0"));
}

#[test]
fn a_remote_folder_that_is_being_deleted_takes_no_build() {
    let objects = Arc::new(InMemory::new());
    let location = Location::parse("s3://bucket/c").unwrap();
    let catalog = Catalog::with_store(Store::new(location, objects, ObjectPath::from("c"))).unwrap();
    let manifest = manifest("a", "1.0.0", 1);
    let folder = catalog.data_dir().join("a/1.0.0");
    let build = Build::new(&manifest, folder);
    catalog.commit_build(&build).unwrap();
    catalog.remove(&parse("a")).unwrap();
    // Back before it is collected: then there is nothing to collect.
    catalog.commit_build(&build).unwrap();
    let path = ["data/a/1.0.0".to_string()];
    assert!(catalog.collect(&parse("a"), &path).unwrap().is_empty());
    catalog.remove(&parse("a")).unwrap();
    assert_eq!(catalog.collect(&parse("a"), &path).unwrap(), path);
    let error = catalog.commit_build(&build).unwrap_err();
    assert!(error.to_string().contains("`prep gc`"), "{error}");
    let elsewhere = Build::new(&manifest, catalog.data_dir().join("a/1.0.0-x"));
    catalog.commit_build(&elsewhere).unwrap();
}

/// `open` by name at 1,000 versions: what is asked of the store.
#[test]
fn a_name_among_a_thousand_versions_costs_a_handful_of_objects() {
    let objects = Arc::new(Odd::default());
    let location = Location::parse("s3://bucket/c").unwrap();
    let store = Store::new(location, Arc::<Odd>::clone(&objects), ObjectPath::from("c"));
    let mut state = State::default();
    // Entries as a thousand commits would have left them: committing each would take a minute without optimisation.
    let dataset = parse("a");
    let count: u64 = 1_000;
    for number in 0..count {
        let manifest = manifest("a", &format!("1.0.{number}"), 1);
        let record = VersionRecord::of_manifest(&manifest, format!("data/a/1.0.{number}"));
        let mut entry = Entry::new(Change::Build(record)).unwrap();
        if number > 0 && number.is_multiple_of(CHECKPOINT_INTERVAL) {
            entry.checkpoint = Some(state.to_checkpoint());
        }
        store.put(&entry_path(&dataset, number), entry.to_json()).unwrap();
        state.apply(number, &entry).unwrap();
    }
    let catalog = Catalog::with_store(store).unwrap();
    // The next commits leave checkpoints.
    for number in 0..CHECKPOINT_EVERY {
        catalog.tag(&dataset, &format!("t{number}")).unwrap();
    }
    for name in ["a", "a:1.0.7", "a@t3", "a:1.0.999"] {
        let (reads, lists) = objects.during(|| catalog.select(&parse(name)).unwrap());
        assert!(
            reads <= 11 && lists == 0,
            "{name}: {reads} reads, {lists} listings"
        );
    }
    // Without checkpoint it is more, and bounded too.
    catalog.store.remove(&checkpoint_path(&dataset)).unwrap();
    let (reads, lists) = objects.during(|| catalog.select(&dataset).unwrap());
    assert!(reads <= 35 && lists == 1, "{reads} reads, {lists} listings");
}

#[test]
fn a_lost_reply_is_found_out() {
    let objects = Arc::new(Odd {
        loses_replies: true,
        ..Odd::default()
    });
    let store = Store::new(
        Location::parse("s3://bucket").unwrap(),
        objects,
        ObjectPath::from("root"),
    );
    let catalog = Catalog {
        store,
        exists: true,
        known: Vec::new(),
        tried: Arc::new(AtomicBool::new(true)),
    };
    let manifest = manifest("a", "1.0.0", 1);
    let build = Build::new(&manifest, Location::from_path("/nowhere"));
    let wanted = Committed {
        log_number: 0,
        is_new: true,
    };
    assert_eq!(catalog.commit_build(&build).unwrap(), wanted);
    assert_eq!(catalog.state(&parse("a")).unwrap().log_number(), Some(0));
}

#[test]
fn files_in_place_are_named_so_that_a_catalog_can_be_moved() {
    let fixture = Fixture::new();
    let raw = fixture.path("raw");
    fs::create_dir_all(&raw).unwrap();
    fs::write(raw.join("x%20.tfrecord"), b"").unwrap();
    let outside = fixture.folder.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    // The folder of the file may be reached by a link; the file may be one.
    let linked = fixture.folder.path().join("linked");
    std::os::unix::fs::symlink(&raw, &linked).unwrap();
    std::os::unix::fs::symlink(outside.join("blob"), raw.join("y")).unwrap();
    let catalog = fixture.catalog();
    let path = |folder: &Location, data_dir: &Location, file: &Path| {
        let path = catalog
            .outside_path(folder, data_dir, &Location::from_path(file))
            .unwrap();
        let found = crate::shard_location(folder, &path).as_path().unwrap();
        assert_eq!(
            found.parent().unwrap().canonicalize().unwrap(),
            file.parent().unwrap().canonicalize().unwrap()
        );
        path
    };
    let version = fixture.location().join("data/a/1.0.0");
    let data_dir = fixture.location().join("data");
    assert_eq!(
        path(&version, &data_dir, &raw.join("x%20.tfrecord")),
        "../../../raw/x%20.tfrecord"
    );
    assert_eq!(path(&version, &data_dir, &linked.join("y")), "../../../raw/y");
    let far = outside.join("blob");
    assert_eq!(
        path(&version, &data_dir, &far),
        far.canonicalize().unwrap_or(far.clone()).to_str().unwrap()
    );
    // Elsewhere the data folder is what may be moved.
    let elsewhere = Location::from_path(fixture.folder.path());
    let version = elsewhere.join("a/b/1.0.0");
    assert_eq!(path(&version, &elsewhere, &far), "../../../outside/blob");
    // URLs are as the user wrote them.
    let remote = |text: &str| Location::parse(text).unwrap();
    for (file, wanted) in [
        ("s3://b/c/raw/x", "../../../raw/x"),
        ("s3://b/c/raw/50%25%23", "../../../raw/50%#"),
        ("s3://b/c/raw/a%20b", "s3://b/c/raw/a%20b"),
        ("s3://b/cc/x", "s3://b/cc/x"),
        ("https://h/x", "https://h/x"),
    ] {
        let found = catalog.outside_path(
            &remote("s3://b/c/data/a/1.0.0"),
            &remote("s3://b/c/"),
            &remote(file),
        );
        assert_eq!(found.unwrap(), wanted);
    }
}
