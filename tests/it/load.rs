//! The stream of batches as `prep load` gives it: complete, the same for any threads, hosts and pauses.

use std::fs;

use prep_testing::Prep;

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
    for order in ["prep", "grain", "source"] {
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
    }
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
