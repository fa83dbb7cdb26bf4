//! The stream of batches as `prep load` gives it: complete, the same for any threads, hosts and pauses.

use std::fs;

use prep_testing::Prep;
use prep_testing::server::FileServer;
use serde_json::json;

const RECORDS: u64 = 300;

type Batches = Vec<Vec<u64>>;

fn built() -> Prep {
    let prep = Prep::new();
    prep.build("cifar10", &["--shards", "3"]).expect(0);
    prep
}

/// The batches of `prep load cifar10 --indices`.
fn indices(prep: &Prep, more: &[&str]) -> Batches {
    let arguments = ["load", "cifar10", "--indices"].iter().chain(more);
    let lines = prep.run(arguments).expect(0).json();
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(line["batch"], number);
    }
    let numbers = |line: &serde_json::Value| serde_json::from_value(line["indices"].clone()).unwrap();
    lines.iter().map(numbers).collect()
}

fn sorted(batches: &[Vec<u64>]) -> Vec<u64> {
    let mut all = batches.concat();
    all.sort_unstable();
    all
}

fn every_record(times: u64) -> Vec<u64> {
    (0..RECORDS)
        .flat_map(|index| std::iter::repeat_n(index, times as usize))
        .collect()
}

#[test]
fn each_epoch_has_every_record_once_and_threads_change_nothing() {
    let prep = built();
    let steps = RECORDS.div_ceil(7) as usize;
    for order in ["prep", "grain", "source", "window:10"] {
        let asked = ["--batch", "7", "--seed", "5", "--epochs", "2", "--order", order];
        let batches = indices(&prep, &asked);
        assert_eq!(batches.len(), 2 * steps);
        let (first, second) = batches.split_at(steps);
        assert_eq!(sorted(first), every_record(1));
        assert_eq!(sorted(second), every_record(1));
        assert_eq!(first == second, order == "source");
        for threads in ["0", "1", "8"] {
            let with = [&asked[..], &["--threads", threads]].concat();
            assert_eq!(indices(&prep, &with), batches);
        }
    }
    let seeded = |seed| indices(&prep, &["--seed", seed, "--batches", "1"]);
    assert_ne!(seeded("1"), seeded("2"));
    // Decoding takes the same steps, and ends at the same position.
    let states: Vec<String> = ["1", "8"]
        .iter()
        .map(|threads| {
            let file = prep.home().join(format!("{threads}.json"));
            let arguments = [
                "load",
                "cifar10",
                "--batch",
                "7",
                "--batches",
                "50",
                "--epochs",
                "2",
                "--threads",
                threads,
                "--save",
                file.to_str().unwrap(),
                "--json",
            ];
            let run = prep.run(arguments).expect(0);
            assert_eq!(run.json()[0]["batches"], 50);
            fs::read_to_string(file).unwrap()
        })
        .collect();
    assert_eq!(states[0], states[1]);
}

#[test]
fn hosts_are_disjoint_complete_and_take_equal_steps() {
    let prep = built();
    for rest in [&[][..], &["--drop-remainder"][..]] {
        let asked = [&["--seed", "3", "--epochs", "2"][..], rest].concat();
        let hosts: Vec<Batches> = ["0/3", "1/3", "2/3"]
            .iter()
            .map(|shard| {
                let with = ["--batch", "7", "--shard", shard];
                indices(&prep, &[&asked[..], &with].concat())
            })
            .collect();
        let global = indices(&prep, &[&asked[..], &["--batch", "21"]].concat());
        for host in &hosts {
            assert_eq!(host.len(), global.len());
        }
        for (step, batch) in global.iter().enumerate() {
            let parts: Vec<&[u64]> = hosts.iter().map(|host| host[step].as_slice()).collect();
            assert_eq!(&parts.concat(), batch);
            let sizes = || parts.iter().map(|part| part.len());
            assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
        if rest.is_empty() {
            assert_eq!(sorted(&global), every_record(2));
        } else {
            assert!(global.iter().all(|batch| batch.len() == 21));
        }
    }
}

#[test]
fn a_state_after_any_batch_continues_exactly_also_on_other_hosts() {
    let prep = built();
    let state = prep.home().join("state.json");
    let state = state.to_str().unwrap();
    let whole = indices(&prep, &["--batch", "40", "--seed", "9", "--epochs", "2"]);
    for count in 0..=whole.len() {
        let many = count.to_string();
        let begun = [
            "--batch",
            "40",
            "--seed",
            "9",
            "--epochs",
            "2",
            "--batches",
            &many,
            "--save",
            state,
        ];
        let before = indices(&prep, &begun);
        assert_eq!(before, whole[..count]);
        let rest = ["--batch", "40", "--epochs", "2", "--restore", state];
        assert_eq!(indices(&prep, &rest), whole[count..], "after {count} batches");
        let mut both = before;
        for shard in ["0/2", "1/2"] {
            both.extend(indices(&prep, &[&rest[..], &["--shard", shard]].concat()));
        }
        assert_eq!(sorted(&both), every_record(2), "after {count} batches");
    }
    // Nothing streamed: the beginning, and no output.
    let run = prep.run(["load", "cifar10", "--batches", "0", "--save", state]);
    assert_eq!(run.expect(0).stdout, "");
    assert_eq!(indices(&prep, &["--restore", state]), indices(&prep, &[]));
}

#[test]
fn a_state_of_something_else_is_refused_with_both_sides_named() {
    let prep = built();
    prep.build("mnist", &[]).expect(0);
    let state = prep.home().join("state.json");
    let state = state.to_str().unwrap();
    indices(&prep, &["--seed", "5", "--batches", "1", "--save", state]);
    for (name, more, sides) in [
        ("cifar10", &["--split", "test"][..], ["`train,", "`test,"]),
        (
            "cifar10",
            &["--split", "train[:50%]"],
            ["`train,", "`train[0:150],"],
        ),
        ("mnist", &[], ["cifar10:3.0.2", "mnist:3.0.1"]),
        ("cifar10", &["--seed", "6"], ["`5`", "`6`"]),
        ("cifar10", &["--order", "grain"], ["`prep`", "`grain`"]),
    ] {
        let arguments = ["load", name, "--indices", "--restore", state];
        let run = prep.run(arguments.iter().chain(more)).expect(1);
        assert_eq!(run.stdout, "");
        for side in sides {
            assert!(run.stderr.contains(side), "{side}: {}", run.stderr);
        }
    }
    // Other shards of the same content, another batch size: the same stream.
    let rest = indices(&prep, &["--restore", state, "--batch", "10"]);
    prep.build("cifar10", &["--shards", "5", "--overwrite"]).expect(0);
    assert_eq!(indices(&prep, &["--restore", state, "--batch", "10"]), rest);
}

#[test]
fn a_flipped_byte_fails_the_load_at_its_record_and_the_state_is_before_it() {
    let prep = built();
    let name = "cifar10-train.array_record-00001-of-00003";
    let shard = prep.catalog().join("data/cifar10/3.0.2").join(name);
    let mut bytes = fs::read(&shard).unwrap();
    bytes[30_000] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let verify = prep.run(["verify", "cifar10", "--json"]).expect(1).json();
    let damaged: Vec<_> = verify.iter().filter(|file| file["ok"] == false).collect();
    assert_eq!(damaged.len(), 1);
    let record = damaged[0]["damaged"][0]["records"][0].as_u64().unwrap();
    let state = prep.home().join("state.json");
    for threads in ["0", "8"] {
        let arguments = [
            "load",
            "cifar10",
            "--batch",
            "10",
            "--threads",
            threads,
            "--save",
            state.to_str().unwrap(),
        ];
        let run = prep.run(arguments).expect(1);
        assert!(
            run.stderr.contains(&format!("record {record} of")) && run.stderr.contains(name),
            "{}",
            run.stderr
        );
        // The batch that could not be read is the next one.
        let next = indices(
            &prep,
            &[
                "--restore",
                state.to_str().unwrap(),
                "--batch",
                "10",
                "--batches",
                "1",
            ],
        );
        assert!(next[0].contains(&(100 + record)), "{next:?}");
        // Left out where that is asked for: named, counted, and the exit code says so.
        let skipping = ["load", "cifar10", "--threads", threads, "--json", "--on-error"];
        let run = prep.run(skipping.iter().chain(&["skip:1"])).expect(3);
        assert_eq!(
            (&run.json()[0]["rows"], &run.json()[0]["skipped"]),
            (&json!(299), &json!(1))
        );
        assert!(
            run.stderr.contains("warning: left out: could not load record"),
            "{}",
            run.stderr
        );
        let run = prep.run(skipping.iter().chain(&["skip:0"])).expect(1);
        assert!(run.stderr.contains("at most 0 were to be"), "{}", run.stderr);
    }
    let run = prep.run(["load", "cifar10", "--on-error", "ignore"]).expect(2);
    assert!(
        run.stderr.contains("`fail`, `skip` or `skip:MAX`"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_profile_says_where_the_time_goes_and_a_benchmark_which_setting_to_take() {
    let prep = built();
    let run = prep
        .run(["load", "cifar10", "--threads", "0", "--profile", "--json"])
        .expect(0);
    let profile = &run.json()[0]["profile"];
    assert_eq!(
        (&profile["threads"], &profile["cached_bytes"]),
        (&json!(0), &json!(null))
    );
    for time in ["read_seconds", "decode_seconds", "consumer_wait_seconds"] {
        assert!(profile[time].as_f64().unwrap() > 0.0, "{time}: {profile}");
    }
    assert!(
        ["read", "decode"].contains(&profile["limit"].as_str().unwrap()),
        "{profile}"
    );
    assert!(
        profile["advice"].as_str().unwrap().contains("--threads"),
        "{profile}"
    );
    let text = prep.run(["load", "cifar10", "--profile"]).expect(0).stdout;
    assert!(text.contains("limit: "), "{text}");

    let bench = [
        "bench",
        "load",
        "cifar10",
        "--seconds",
        "0.05",
        "--threads",
        "1,3",
    ];
    let report = prep
        .run(bench.iter().chain(&["--json"]))
        .expect(0)
        .json()
        .remove(0);
    let settings = report["settings"].as_array().unwrap();
    assert_eq!(
        settings
            .iter()
            .map(|setting| &setting["threads"])
            .collect::<Vec<_>>(),
        [1, 3]
    );
    assert!(
        settings
            .iter()
            .all(|setting| setting["rows_per_second"].as_f64().unwrap() > 0.0),
        "{report}"
    );
    assert!(
        [1, 3]
            .map(|threads| json!(threads))
            .contains(&report["recommended_threads"]),
        "{report}"
    );
    let text = prep.run(bench).expect(0).stdout;
    assert!(text.contains("recommended: --threads"), "{text}");
    for wrong in [
        ["--seconds", "0"],
        ["--threads", "0"],
        ["--batch", "0"],
        ["--wanted", "-1"],
    ] {
        prep.run(["bench", "load", "cifar10"].iter().chain(&wrong))
            .expect(2);
    }
}

#[test]
fn a_cache_is_filled_once_and_its_folder_and_limit_are_checked() {
    let prep = built();
    let folder = prep.catalog().join("data/cifar10/3.0.2");
    let recipe = prep.home().join("remote.toml");
    let server = FileServer::start(&folder, []);
    let shards = (0..3).map(|shard| server.url(&format!("cifar10-train.array_record-{shard:05}-of-00003")));
    let sources: String = shards
        .map(|url| format!("[[sources]]\nurl = \"{url}\"\n"))
        .collect();
    let features = fs::read_to_string(folder.join("features.json")).unwrap();
    assert!(features.contains("image"));
    fs::write(
        &recipe,
        format!(
            "format = 1\nname = \"remote\"\n{sources}[reader]\nkind = \"array_record\"\n[features.image]\nkind = \"image\"\n\
             shape = [32, 32, 3]\n[features.label]\nkind = \"class_label\"\nnum_classes = 10\n[features.id]\nkind = \"text\"\n\
             [[splits]]\nname = \"train\"\n"
        ),
    )
    .unwrap();
    prep.run(["register", recipe.to_str().unwrap(), "--in-place"])
        .expect(0);
    let cache = prep.home().join("cache");
    let load = |size: &str| {
        let cache = cache.to_str().unwrap();
        prep.run([
            "load",
            "remote",
            "--json",
            "--profile",
            "--cache",
            cache,
            "--cache-size",
            size,
        ])
    };
    assert!(load("512K").expect(1).stderr.contains("at least 1048576"));
    let first = load("64M").expect(0).json().remove(0);
    assert_eq!(first["rows"], RECORDS);
    assert!(
        first["profile"]["fetched_bytes"].as_u64().unwrap() > 100_000,
        "{first}"
    );
    let asked = server.requests().len();
    let second = load("64M").expect(0).json().remove(0);
    assert_eq!(
        (&second["rows"], &second["profile"]["fetched_bytes"]),
        (&json!(RECORDS), &json!(0))
    );
    assert_eq!(server.requests().len(), asked);
    // A folder of something else stays as it is.
    let mine = prep.home().join("mine");
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("thesis.txt"), "x").unwrap();
    let run = prep
        .run(["load", "remote", "--cache", mine.to_str().unwrap()])
        .expect(1);
    assert!(run.stderr.contains("is no cache of Prep's"), "{}", run.stderr);
    assert_eq!(fs::read_dir(&mine).unwrap().count(), 1);
}

/// Ctrl-C ends the stream with an error that says how to go on, and the state goes on exactly there.
#[test]
fn an_interrupted_load_saves_its_position_and_says_how_to_go_on() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    let prep = Prep::new();
    prep.build("mnist", &[]).expect(0);
    let state = prep.home().join("state.json");
    let path = state.to_str().unwrap();
    let stream = [
        "load",
        "mnist",
        "--batch",
        "7",
        "--epochs",
        "100000000",
        "--indices",
    ];
    let mut child = prep
        .command(stream.iter().copied().chain(["--save", path]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let pid = child.id().to_string();
    let killed = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status()
        .unwrap();
    assert!(killed.success());
    let last = lines.map(Result::unwrap).last().unwrap();
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("as asked") && said.contains("--restore"), "{said}");
    let batches = last["batch"].as_u64().unwrap() + 1;
    let next = (batches + 1).to_string();
    let undisturbed = prep
        .run(stream.iter().copied().chain(["--batches", &next]))
        .expect(0)
        .json();
    let resumed = prep
        .run(
            stream
                .iter()
                .copied()
                .chain(["--restore", path, "--batches", "1"]),
        )
        .expect(0)
        .json();
    assert_eq!(resumed[0]["indices"], undisturbed[batches as usize]["indices"]);
}
