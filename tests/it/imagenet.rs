//! `prep build imagenet2012`, whose pictures stay in their archives until their shard is written: kills, and several processes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use prep_testing::archive::tar;
use prep_testing::process::kill_after;
use prep_testing::{Noise, Prep, assert_same_folder, golden_path, temp_dir};
use tempfile::TempDir;

const DATA: &str = "data/imagenet2012/5.1.0";

/// The archives of the golden files, but with a train archive of 12 MB: 120 pictures of one byte to 200 KB, which are a JPEG's first bytes
/// and noise.
fn sources() -> TempDir {
    let folder = temp_dir();
    for name in ["ILSVRC2012_img_val.tar", "ILSVRC2012_img_test.tar"] {
        fs::copy(golden_path("imagenet2012").join(name), folder.path().join(name)).unwrap();
    }
    let mut noise = Noise(0x2012);
    let classes = ["n01440764", "n01739381", "n02105855", "n03018349", "n15075141"].map(|class| {
        let pictures = (0..24).map(|number| {
            let mut picture = b"\xff\xd8\xff\xe0".to_vec();
            let length = match number {
                0 => 0,
                1 => 65_536 - 64 - 40,
                _ => noise.below(200_000) as usize,
            };
            picture.extend(noise.bytes(length));
            (format!("{class}_{number}0000.JPEG"), picture)
        });
        (format!("{class}.tar"), tar(&pictures.collect::<Vec<_>>()))
    });
    fs::write(folder.path().join("ILSVRC2012_img_train.tar"), tar(&classes)).unwrap();
    folder
}

fn arguments<'a>(sources: &'a TempDir, workers: &'a str) -> [&'a str; 8] {
    let from = sources.path().to_str().unwrap();
    [
        "build",
        "imagenet2012",
        "--shards",
        "4",
        "--from",
        from,
        "--workers",
        workers,
    ]
}

fn fingerprint(prep: &Prep) -> String {
    prep.run(["list", "--json"]).expect(0).json()[0]["fingerprint"].to_string()
}

fn assert_same(whole: &Prep, other: &Prep) {
    assert_same_folder(whole.catalog().join("data"), other.catalog().join("data"));
    assert_eq!(fingerprint(whole), fingerprint(other));
    let log = fs::read_dir(other.catalog().join("log/imagenet2012")).unwrap();
    assert_eq!(log.count(), 1);
}

/// No file that looks finished is other than in the whole build.
fn assert_nothing_half(whole: &Path, version: &Path) {
    if version.exists() {
        assert_same_folder(whole, version);
    }
}

fn kills(rounds: usize) {
    let sources = sources();
    let (whole, killed) = (Prep::new(), Prep::new());
    let started = Instant::now();
    whole.run(arguments(&sources, "2")).expect(0);
    let took = started.elapsed();
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..rounds {
        let workers = (round % 3 + 1).to_string();
        let pause = Duration::from_micros(noise.below(took.as_micros() as u64));
        kill_after(killed.command(arguments(&sources, &workers)), pause);
        assert_nothing_half(&whole.catalog().join(DATA), &killed.catalog().join(DATA));
    }
    killed.run(arguments(&sources, "2")).expect(0);
    assert_same(&whole, &killed);
    let again = killed.run(arguments(&sources, "1")).expect(0);
    assert!(again.stdout.contains("up to date"), "{}", again.stdout);
    killed.run(["verify", "imagenet2012"]).expect(0);
}

#[test]
fn fifteen_kills_of_an_imagenet_build_then_a_rerun_give_the_undisturbed_bytes() {
    kills(15);
}

#[test]
#[ignore = "takes minutes: make soak"]
fn a_hundred_kills_of_an_imagenet_build_then_a_rerun_give_the_undisturbed_bytes() {
    kills(100);
}

#[test]
fn any_number_of_processes_builds_the_same_imagenet() {
    let sources = sources();
    let whole = Prep::new();
    whole.run(arguments(&sources, "1")).expect(0);
    for (processes, workers) in [("1", "3"), ("2", "1"), ("2", "2"), ("3", "1"), ("3", "2")] {
        let prep = Prep::new();
        let launched = ["launch", "--processes", processes, "--"];
        prep.run(launched.into_iter().chain(arguments(&sources, workers)))
            .expect(0);
        assert_same(&whole, &prep);
    }
}
