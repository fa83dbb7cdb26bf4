//! `prep build` as a process: exit codes, output, kills, many at once, a full disk.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use prep_testing::process::kill_after;
use prep_testing::{SmallDisk, assert_same_folder, folder_digest, source_folder};
use serde_json::Value;

use crate::command::{ARCHIVE, build_from, damaged, expect, golden, json, json_lines, prep};

fn build(catalog: &Path, more: &[&str]) -> Command {
    build_from(catalog, &golden(), more)
}

fn no_staging(catalog: &Path) -> bool {
    !catalog.join("data/.staging").exists()
}

fn version(catalog: &Path) -> PathBuf {
    catalog.join("data/cifar10/3.0.2")
}

#[test]
fn a_build_and_its_repetition_are_told_on_stdout() {
    let home = tempfile::tempdir().unwrap();
    let (out, err) = expect(build(home.path(), &[]).output().unwrap(), 0);
    assert!(
        out.starts_with("cifar10:3.0.2: train 300, test 60 examples in 2 shards"),
        "{out}"
    );
    assert!(
        err.contains("read: ") && err.contains("write: 360 examples"),
        "{err}"
    );
    let before = folder_digest(home.path());
    let (out, _) = expect(build(home.path(), &["--workers", "1"]).output().unwrap(), 0);
    assert!(out.contains("up to date"), "{out}");
    assert_eq!(folder_digest(home.path()), before);
    let (out, err) = expect(build(home.path(), &["-q"]).output().unwrap(), 0);
    assert_eq!((out.as_str(), err.as_str()), ("", ""));
}

#[test]
fn json_is_one_object_a_line_and_the_report_has_the_stages() {
    let home = tempfile::tempdir().unwrap();
    let report = home.path().join("report.json");
    let more = ["--json", "--report", report.to_str().unwrap()];
    let (out, _) = expect(build(&home.path().join("c"), &more).output().unwrap(), 0);
    let lines = json_lines(&out);
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["event"], &last["status"]),
        (&Value::from("done"), &Value::from("built"))
    );
    assert_eq!(last["splits"]["train"]["examples"], 300);
    assert!(lines.iter().any(|line| line["event"] == "progress"));
    let report = json(&report);
    let stages: Vec<&str> = report["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["name"].as_str().unwrap())
        .collect();
    for stage in ["read", "encode", "write", "verify"] {
        assert!(stages.contains(&stage), "{stages:?}");
    }
    assert_eq!(
        (&report["skipped"], &report["unchecked_sources"][0]),
        (&Value::from(0), &Value::from(ARCHIVE))
    );
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_anything_is_built() {
    let home = tempfile::tempdir().unwrap();
    let catalog = home.path().join("c");
    for report in [home.path().to_path_buf(), home.path().join("absent/report.json")] {
        let more = ["--report", report.to_str().unwrap()];
        let (out, err) = expect(build(&catalog, &more).output().unwrap(), 1);
        assert_eq!(out, "");
        assert!(err.contains("could not write the report"), "{err}");
        assert!(!catalog.exists());
    }
}

#[test]
fn a_spill_folder_is_looked_at_before_anything_is_built() {
    let home = tempfile::tempdir().unwrap();
    let catalog = home.path().join("c");
    let absent = home.path().join("absent");
    let (_, err) = expect(
        build(&catalog, &["--spill-dir", absent.to_str().unwrap()])
            .output()
            .unwrap(),
        1,
    );
    assert!(
        err.contains("could not use the spill folder") && err.contains("hint: "),
        "{err}"
    );
    assert!(!catalog.exists());
    let spill = home.path().join("spill");
    std::fs::create_dir(&spill).unwrap();
    let more = ["--spill-dir", spill.to_str().unwrap(), "--memory", "16M"];
    expect(build(&catalog, &more).output().unwrap(), 0);
    assert_eq!(std::fs::read_dir(&spill).unwrap().count(), 0);
}

#[test]
fn exit_codes_tell_failure_wrong_usage_and_skipped_records() {
    let home = tempfile::tempdir().unwrap();
    let catalog = home.path().join("c");
    let (_, err) = expect(prep(&catalog, &["build", "cifar1O"]).output().unwrap(), 1);
    assert!(err.contains("did you mean `cifar10`"), "{err}");
    expect(build(&catalog, &["--memory", "lots"]).output().unwrap(), 2);
    expect(build(&catalog, &["--no-such-flag"]).output().unwrap(), 2);
    let empty = tempfile::tempdir().unwrap();
    let from = ["build", "cifar10", "--from", empty.path().to_str().unwrap()];
    let (_, err) = expect(prep(&catalog, &from).output().unwrap(), 1);
    assert!(err.contains("is empty") && err.contains("hint: "), "{err}");
    damaged(empty.path());
    let from = [
        "build",
        "cifar10",
        "--no-checksum",
        "--from",
        empty.path().to_str().unwrap(),
    ];
    let (_, err) = expect(prep(&catalog, &from).output().unwrap(), 1);
    assert!(
        err.contains("test_batch.bin, record 0") && err.contains("--on-error skip"),
        "{err}"
    );
    assert!(!catalog.join("log").exists());
    let skip = [&from[..], &["--on-error", "skip:1"]].concat();
    let (out, _) = expect(prep(&catalog, &skip).output().unwrap(), 3);
    assert!(out.contains("1 damaged records left out"), "{out}");
}

#[test]
fn a_recipe_file_is_built_and_its_faults_name_the_line() {
    let home = tempfile::tempdir().unwrap();
    let text = prep_jobs::recipe::builtin::text("mnist").unwrap();
    let path = home.path().join("mine.toml");
    let mine = text
        .replace("\"mnist\"", "\"mine\"")
        .replace("shards = 1", "shards = 2");
    std::fs::write(&path, &mine).unwrap();
    let from = source_folder("mnist");
    let arguments = [
        "build",
        path.to_str().unwrap(),
        "--no-checksum",
        "--from",
        from.to_str().unwrap(),
    ];
    let catalog = home.path().join("c");
    expect(prep(&catalog, &arguments).output().unwrap(), 0);
    assert!(
        catalog
            .join("data/mine/3.0.1/mine-train.array_record-00001-of-00002")
            .exists()
    );
    std::fs::write(&path, mine.replace("kind = \"idx\"", "kind = \"ids\"")).unwrap();
    let (_, err) = expect(prep(&catalog, &arguments).output().unwrap(), 1);
    let line = mine.lines().position(|line| line == "kind = \"idx\"").unwrap() + 1;
    assert!(
        err.contains(&format!("mine.toml, line {line}, `reader.kind`")),
        "{err}"
    );
}

#[test]
fn killed_builds_are_finished_by_the_same_command() {
    let home = tempfile::tempdir().unwrap();
    let (whole, killed) = (home.path().join("whole"), home.path().join("killed"));
    let started = std::time::Instant::now();
    expect(build(&whole, &["--shards", "3"]).output().unwrap(), 0);
    let took = started.elapsed();
    // From at once to about the end, in steps that miss each other's places.
    for step in 0..12 {
        let time = took.mul_f64(f64::from(step * 7 % 12) / 11.0);
        kill_after(build(&killed, &["--shards", "3"]), time);
        // What is visible is whole, at any time.
        if version(&killed).exists() {
            assert_same_folder(version(&whole), version(&killed));
        }
    }
    expect(build(&killed, &["--shards", "3"]).output().unwrap(), 0);
    assert_same_folder(whole.join("data"), killed.join("data"));
    assert_eq!(std::fs::read_dir(killed.join("log/cifar10")).unwrap().count(), 1);
    assert!(no_staging(&killed));
}

#[test]
fn an_overwrite_that_is_killed_leaves_one_of_the_two_readable() {
    let home = tempfile::tempdir().unwrap();
    let (two, three, killed) = (
        home.path().join("2"),
        home.path().join("3"),
        home.path().join("killed"),
    );
    expect(build(&two, &["--shards", "2"]).output().unwrap(), 0);
    let started = std::time::Instant::now();
    expect(build(&three, &["--shards", "3"]).output().unwrap(), 0);
    let took = started.elapsed();
    expect(build(&killed, &["--shards", "2"]).output().unwrap(), 0);
    let catalog = prep_catalog::Catalog::open(&prep_formats::store::Location::from_path(&killed)).unwrap();
    let name = prep_catalog::DatasetName::parse("cifar10").unwrap();
    for step in 0..8 {
        let time = took.mul_f64(f64::from(step * 5 % 8) / 7.0);
        kill_after(build(&killed, &["--shards", "3", "--overwrite"]), time);
        let resolved = catalog.resolve(&name).unwrap();
        let folder = resolved.folder.as_path().unwrap();
        let shards = resolved.manifest.splits[0].shards.len();
        let wanted = if shards == 2 { &two } else { &three };
        assert_same_folder(version(wanted), folder);
    }
    expect(
        build(&killed, &["--shards", "3", "--overwrite"])
            .output()
            .unwrap(),
        0,
    );
    assert_same_folder(three.join("data"), killed.join("data"));
    assert!(no_staging(&killed));
}

#[test]
fn an_interrupted_build_says_how_to_go_on() {
    let home = tempfile::tempdir().unwrap();
    let catalog = home.path().join("c");
    for signal in ["INT", "TERM"] {
        // A server that never answers keeps the build waiting. One a build: a build opens several connections, and what an
        // earlier one left in the queue would look like the next one's before that listens for signals.
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = format!("http://{}/", listener.local_addr().unwrap());
        let child = prep(&catalog, &["build", "mnist", "--from", &address])
            .spawn()
            .unwrap();
        let _waiting = listener.accept().unwrap();
        let sent = Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        let (_, err) = expect(child.wait_with_output().unwrap(), 1);
        assert!(err.contains("stopped building `mnist`"), "{err}");
        assert!(
            err.contains("the same command goes on from here") && err.contains(&address),
            "{err}"
        );
        assert!(!catalog.join("log").exists());
    }
}

#[test]
fn eight_builds_at_once_make_one_version() {
    let home = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..8).map(|_| build(home.path(), &[]).spawn().unwrap()).collect();
    let mut built = 0;
    for child in children {
        let (out, _) = expect(child.wait_with_output().unwrap(), 0);
        built += usize::from(!out.contains("up to date"));
    }
    assert_eq!(built, 1);
    assert_eq!(
        std::fs::read_dir(home.path().join("log/cifar10"))
            .unwrap()
            .count(),
        1
    );
    assert!(no_staging(home.path()));
}

#[test]
fn a_full_disk_is_told_and_the_build_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(200) else {
        return;
    };
    let catalog = disk.path().join("c");
    // Too little by far: refused before any work.
    let (_, err) = expect(build(&catalog, &[]).output().unwrap(), 1);
    assert!(
        err.contains("not enough room") && err.contains("are needed") && err.contains("are free"),
        "{err}"
    );
    // About enough for the estimate's lower end, and not for the data.
    disk.resize(450);
    let (_, err) = expect(build(&catalog, &[]).output().unwrap(), 1);
    assert!(
        err.contains("no space is left at") && err.contains("more are needed"),
        "{err}"
    );
    assert!(err.contains("goes on from where it stopped"), "{err}");
    assert!(!catalog.join("log").exists() && !version(&catalog).exists());
    disk.resize(20_000);
    expect(build(&catalog, &[]).output().unwrap(), 0);
    let fresh = tempfile::tempdir().unwrap();
    expect(build(fresh.path(), &[]).output().unwrap(), 0);
    assert_same_folder(fresh.path().join("data"), catalog.join("data"));
}

/// The room that counts is that of the file system of the output, whatever other ones have. Bug log: B58.
#[test]
fn the_room_that_counts_is_that_of_the_output() {
    let (Some(small), Some(large)) = (SmallDisk::mount(200), SmallDisk::mount(20_000)) else {
        return;
    };
    let arguments = |catalog: &Path, data: &Path| {
        let mut command = build(catalog, &["--data-dir", data.to_str().unwrap()]);
        // Where temporary files would go is no matter either.
        command.env("TMPDIR", small.path());
        command
    };
    let (small_catalog, large_catalog) = (small.path().join("c"), large.path().join("c"));
    let (_, err) = expect(
        arguments(&large_catalog, &small.path().join("d"))
            .output()
            .unwrap(),
        1,
    );
    assert!(
        err.contains("not enough room") && err.contains(small.path().to_str().unwrap()),
        "{err}"
    );
    expect(
        arguments(&small_catalog, &large.path().join("d"))
            .output()
            .unwrap(),
        0,
    );
    assert!(large.path().join("d/cifar10/3.0.2").exists());
}
