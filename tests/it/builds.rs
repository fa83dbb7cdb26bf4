//! `prep build` as its users see it: kills, memory, where data lie, and that a fault leaves no trace in the catalog.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prep_testing::archive::write_gzip;
use prep_testing::process::kill_after;
use prep_testing::{Noise, Prep, assert_same_folder, folder_digest, source_folder, temp_dir};
use serde_json::Value;

fn log_entries(prep: &Prep, dataset: &str) -> usize {
    fs::read_dir(prep.catalog().join("log").join(dataset)).map_or(0, Iterator::count)
}

#[test]
fn thirty_kills_on_one_output_then_a_rerun_give_the_undisturbed_bytes() {
    let (whole, killed) = (Prep::new(), Prep::new());
    let started = Instant::now();
    whole.build("cifar10", &["--shards", "4"]).expect(0);
    let took = started.elapsed();
    let source = source_folder("cifar10");
    let arguments = [
        "build",
        "cifar10",
        "--no-checksum",
        "--shards",
        "4",
        "--from",
        source.to_str().unwrap(),
    ];
    let version = killed.catalog().join("data/cifar10/3.0.2");
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..30 {
        // Other numbers of workers on the way: what they left is used all the same.
        let workers = (round % 4 + 1).to_string();
        let pause = Duration::from_micros(noise.below(took.as_micros() as u64));
        let command = killed.command(arguments.iter().copied().chain(["--workers", &workers]));
        kill_after(command, pause);
        if version.exists() {
            assert_same_folder(whole.catalog().join("data/cifar10/3.0.2"), &version);
        }
    }
    killed.run(arguments).expect(0);
    assert_same_folder(whole.catalog().join("data"), killed.catalog().join("data"));
    assert_eq!(log_entries(&killed, "cifar10"), 1);
    let listed = |prep: &Prep| prep.run(["list", "--json"]).expect(0).json()[0]["fingerprint"].clone();
    assert_eq!(listed(&whole), listed(&killed));
    assert!(killed.run(arguments).expect(0).stdout.contains("up to date"));
}

/// Square pictures, `count` and ten, and a recipe for them. They are of noise, so that nothing makes them smaller; or else of zeros, and packed: little
/// to store, and long to read.
pub(crate) fn large_source(folder: &Path, side: u32, count: u32, mut noise: Option<Noise>) -> PathBuf {
    for (name, count) in [("train", count), ("t10k", 10)] {
        let mut images = [0x803, count, side, side].map(u32::to_be_bytes).concat();
        let mut labels = [0x801, count].map(u32::to_be_bytes).concat();
        labels.extend((0..count).map(|label| (label % 10) as u8));
        let pixels = (count * side * side) as usize;
        let images_path = folder.join(format!("{name}-images-idx3-ubyte.gz"));
        if let Some(noise) = &mut noise {
            images.extend(noise.bytes(pixels));
            fs::write(images_path, images).unwrap();
        } else {
            images.resize(images.len() + pixels, 0);
            write_gzip(images_path, &images);
        }
        fs::write(folder.join(format!("{name}-labels-idx1-ubyte.gz")), labels).unwrap();
    }
    let text = prep_jobs::recipe::builtin::text("mnist").unwrap();
    let recipe = folder.join("large.toml");
    let text = text
        .replace("\"mnist\"", "\"large\"")
        .replace("28, 28", &format!("{side}, {side}"));
    fs::write(&recipe, text).unwrap();
    recipe
}

#[test]
fn a_budget_below_the_data_gives_the_same_bytes_and_is_kept() {
    let folder = temp_dir();
    let recipe = large_source(folder.path(), 256, 1100, Some(Noise(42)));
    let build = |memory: &str, workers: &str| {
        let prep = Prep::new();
        let report = prep.home().join("report.json");
        let run = prep.run([
            "build",
            recipe.to_str().unwrap(),
            "--from",
            folder.path().to_str().unwrap(),
            "--no-checksum",
            "--memory",
            memory,
            "--workers",
            workers,
            "--report",
            report.to_str().unwrap(),
        ]);
        run.expect(0);
        let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
        (prep, report)
    };
    let number = |report: &Value, name: &str| report[name].as_u64().unwrap();
    let (small, report) = build("64MiB", "2");
    assert_eq!(number(&report, "memory_bytes"), 64 << 20);
    assert!(number(&report, "spilled_bytes") >= 1100 * 65536, "{report}");
    assert!(number(&report, "peak_held_bytes") < 64 << 20, "{report}");
    let (large, report) = build("4GiB", "1");
    assert_eq!(number(&report, "spilled_bytes"), 0);
    assert_same_folder(small.catalog().join("data"), large.catalog().join("data"));
}

#[test]
fn a_data_folder_elsewhere_is_told_in_every_answer() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let (first, second) = (folder.path().join("my data"), folder.path().join("other"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    prep.build("mnist", &["--data-dir", first]).expect(0);
    let again = prep.build("mnist", &[]).expect(0);
    assert!(again.stdout.contains("up to date at") && again.stdout.contains(first));
    assert_eq!(
        prep.run(["show", "mnist", "--json"]).json()[0]["path"],
        format!("{first}/mnist/3.0.1")
    );
    // Nobody is told that it is in a folder where it is not.
    let refused = prep.build("mnist", &["--data-dir", second]).expect(1);
    for part in [first, second, "--overwrite"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    assert_eq!(log_entries(&prep, "mnist"), 1);
    prep.build("mnist", &["--data-dir", second, "--overwrite"])
        .expect(0);
    prep.run(["verify", "mnist"]).expect(0);
    assert_eq!(
        prep.run(["show", "mnist", "--json"]).json()[0]["path"],
        format!("{second}/mnist/3.0.1")
    );
}

#[test]
fn what_is_refused_leaves_the_catalog_as_it_was() {
    let (prep, folder) = (Prep::new(), temp_dir());
    prep.build("mnist", &[]).expect(0);
    let log = || folder_digest(prep.catalog().join("log"));
    let before = log();
    let archive = folder.path().join("cifar-10-binary.tar.gz");
    let whole = fs::read(source_folder("cifar10").join("cifar-10-binary.tar.gz")).unwrap();
    let from = folder.path().to_str().unwrap();
    for (content, code, said) in [
        (&whole[..whole.len() / 2], 1, "cut short"),
        (&b"<!DOCTYPE html><html>sign in</html>"[..], 1, "web page"),
        (b"", 1, "is empty: it has 0 bytes"),
    ] {
        fs::write(&archive, content).unwrap();
        let run = prep
            .run(["build", "cifar10", "--no-checksum", "--from", from])
            .expect(code);
        assert!(run.stderr.contains(said), "{}", run.stderr);
        assert_eq!((run.stdout.as_str(), log()), ("", before.clone()));
        // Nothing was finished that the next run could use.
        assert!(!prep.catalog().join("data/.staging").exists());
    }
    // The right bytes, and not those of the recipe.
    fs::write(&archive, &whole).unwrap();
    let run = prep.run(["build", "cifar10", "--from", from]).expect(1);
    assert!(run.stderr.contains("the recipe says 170052171"), "{}", run.stderr);
    assert_eq!(log(), before);
    assert_eq!(prep.run(["list", "--json"]).expect(0).json().len(), 1);
    let run = prep
        .run(["build", "cifar10", "--memory", "1", "--from", from])
        .expect(2);
    assert!(run.stderr.contains("at least 16.0 MiB"), "{}", run.stderr);
    // A cause is told once, though the libraries between repeat it.
    let run = prep.run(["list", "--catalog", "/dev/null"]).expect(1);
    assert_eq!(run.stderr.matches("os error").count(), 1, "{}", run.stderr);
    // What is known and not built yet is not a spelling mistake.
    let unknown = prep.run(["load", "cifar10"]).expect(1);
    assert!(
        unknown.stderr.contains("`prep build cifar10`"),
        "{}",
        unknown.stderr
    );
    // A folder is no dataset's name.
    let cat = prep.run(["cat", from]).expect(1);
    assert!(cat.stderr.contains("is not a file"), "{}", cat.stderr);
}

/// Three thousand archives of one text each, and many more workers than cores; then more workers than archives. The command ends, which it does
/// only when no thread is left. Bug log: B23.
#[test]
fn thousands_of_archives_and_more_workers_than_archives_come_to_an_end() {
    let folder = temp_dir();
    let mut recipe =
        "format = 1\nname = \"many\"\n[reader]\nkind = \"files\"\n[features.text]\nkind = \"text\"\n\
                      [[splits]]\nname = \"train\"\nfiles = [\"*.txt\"]\nshards = 3\n"
            .to_owned();
    let few = recipe.clone();
    let source = |index: usize| format!("[[sources]]\npath = \"{index}.tgz\"\n");
    for index in 0..3000 {
        let member = (format!("{index}.txt"), format!("text {index}").into_bytes());
        prep_testing::archive::write_tar_gz(folder.path().join(format!("{index}.tgz")), &[member]);
        recipe += &source(index);
    }
    let few = (0..3).fold(few, |recipe, index| recipe + &source(index));
    let build = |name: &str, text: &str, workers: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        let prep = Prep::new();
        let run = prep
            .run(["build", path.to_str().unwrap(), "--workers", workers, "--json"])
            .expect(0);
        let done = run.json().pop().unwrap();
        (prep, done["splits"]["train"]["examples"].as_u64())
    };
    let (first, examples) = build("many.toml", &recipe, "8");
    assert_eq!(examples, Some(3000));
    let (second, _) = build("many.toml", &recipe, "1");
    assert_same_folder(first.catalog().join("data"), second.catalog().join("data"));
    assert_eq!(build("few.toml", &few, "16").1, Some(3));
}
