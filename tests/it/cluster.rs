//! Several processes that build one dataset: the same bytes for any number of them, after any kills, and a cause for every fault.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use prep_testing::archive::change_tar_gz;
use prep_testing::network::Network;
use prep_testing::process::{Process, free_hosts, member, running, wait_for};
use prep_testing::{Noise, Prep, assert_same_folder, source_folder, temp_dir};

use crate::builds::large_source;

fn cifar10(shards: &str) -> Vec<String> {
    let source = source_folder("cifar10");
    ["build", "cifar10", "--no-checksum", "--shards", shards, "--from"]
        .into_iter()
        .map(str::to_owned)
        .chain([source.to_str().unwrap().to_owned()])
        .collect()
}

fn strs(words: &[String]) -> impl Iterator<Item = &str> {
    words.iter().map(String::as_str)
}

fn log_entries(prep: &Prep) -> usize {
    fs::read_dir(prep.catalog().join("log/cifar10")).map_or(0, Iterator::count)
}

#[test]
fn any_number_of_workers_and_processes_writes_the_same_bytes() {
    let whole = Prep::new();
    let words = cifar10("5");
    whole.run(strs(&words)).expect(0);
    for processes in 1..=3usize {
        for workers in 1..=4usize {
            let prep = Prep::new();
            let memory = if (processes + workers).is_multiple_of(2) {
                "64MB"
            } else {
                "4GB"
            };
            let (processes, workers) = (processes.to_string(), workers.to_string());
            let launched = ["launch", "--processes", &processes, "--"];
            let more = ["--workers", &workers, "--memory", memory];
            let run = prep
                .run(launched.into_iter().chain(strs(&words)).chain(more))
                .expect(0);
            // The output is process 0's, and only that.
            assert_eq!(run.stdout.matches("cifar10:3.0.2: ").count(), 1, "{}", run.stdout);
            assert_same_folder(whole.catalog().join("data"), prep.catalog().join("data"));
            assert_eq!(log_entries(&prep), 1);
            if processes == "3" {
                let again = prep.run(launched.into_iter().chain(strs(&words))).expect(0);
                assert!(again.stdout.contains("up to date"), "{}", again.stdout);
            }
        }
    }
}

/// Kills a random process of three at a random moment, so many times, and then lets one run end.
fn kills(rounds: u64) {
    let (whole, killed) = (Prep::new(), Prep::new());
    let words = cifar10("7");
    whole.run(strs(&words)).expect(0);
    let trial = Prep::new();
    let start = |prep: &Prep, workers: &str| -> Vec<Process> {
        let hosts = free_hosts(3);
        let more = ["--workers", workers];
        (0..3)
            .map(|index| Process::start(member(prep, strs(&words).chain(more), &hosts, index)))
            .collect()
    };
    let begun = Instant::now();
    for process in start(&trial, "1") {
        let (code, _, said) = process.end();
        assert_eq!(code, 0, "{said}");
    }
    let took = begun.elapsed().as_micros() as u64;
    let version = killed.catalog().join("data/cifar10/3.0.2");
    let check = || {
        if version.exists() {
            assert_same_folder(whole.catalog().join("data/cifar10/3.0.2"), &version);
        }
    };
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..rounds {
        let mut processes = start(&killed, if round % 2 == 0 { "1" } else { "2" });
        std::thread::sleep(Duration::from_micros(noise.below(took)));
        let victim = noise.below(3) as usize;
        processes[victim].kill();
        check();
        for (index, process) in processes.into_iter().enumerate() {
            let (code, _, said) = process.end();
            check();
            // It may have been done, or all may have been.
            assert!(
                code == 0 || code == 1 || index == victim,
                "process {index}: {code}\n{said}"
            );
            assert!(!said.contains("panicked"), "{said}");
        }
    }
    for process in start(&killed, "2") {
        let (code, _, said) = process.end();
        assert_eq!(code, 0, "{said}");
    }
    assert_same_folder(whole.catalog().join("data"), killed.catalog().join("data"));
    assert_eq!(log_entries(&killed), 1);
}

#[test]
fn ten_kills_of_any_of_three_processes_then_a_rerun_give_the_undisturbed_bytes() {
    kills(10);
}

#[test]
#[ignore = "takes minutes: make soak"]
fn fifty_kills_of_any_of_three_processes_then_a_rerun_give_the_undisturbed_bytes() {
    kills(50);
}

/// Arguments and variables of one process.
type Given<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// Runs one process for each list of words, with these variables; gives what they end with.
fn differing(hosts: &[String], processes: &[Given<'_>]) -> Vec<(i32, String, String)> {
    let prep = Prep::new();
    let words = cifar10("2");
    let started: Vec<Process> = processes
        .iter()
        .enumerate()
        .map(|(index, (more, variables))| {
            let mut command = member(&prep, strs(&words).chain(more.iter().copied()), hosts, index);
            command.envs(variables.iter().copied());
            Process::start(command)
        })
        .collect();
    let ended = started.into_iter().map(Process::end).collect();
    assert!(!prep.catalog().join("data").exists(), "nothing is to be written");
    ended
}

#[test]
fn processes_that_do_not_fit_are_named_on_all_sides() {
    // Of three, one never comes.
    let hosts = free_hosts(3);
    let wait: &[&str] = &["--wait", "2"];
    for (code, _, said) in differing(&hosts, &[(wait, &[]), (wait, &[])]) {
        assert_eq!(code, 1, "{said}");
        let absent = format!("process 2 ({})", hosts[2]);
        assert!(
            said.contains(&absent) && said.contains("within 2 seconds"),
            "{said}"
        );
    }
    let hosts = free_hosts(2);
    for (code, _, said) in differing(&hosts, &[(&[], &[]), (&[], &[("PREP_TEST_VERSION", "9.9.9")])]) {
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains("different versions") && said.contains("9.9.9") && said.contains(&hosts[1]),
            "{said}"
        );
    }
    let hosts = free_hosts(2);
    for (code, _, said) in differing(&hosts, &[(&[], &[]), (&["--on-error", "skip"], &[])]) {
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains("different arguments") && said.contains("`--on-error skip`"),
            "{said}"
        );
    }
    let hosts = free_hosts(2);
    let other = [("PREP_CLUSTER_SECRET", "another secret")];
    let ended = differing(&hosts, &[(wait, &[]), (wait, &other)]);
    assert!(ended[0].2.contains("did not come up"), "{}", ended[0].2);
    assert!(ended[1].2.contains("another secret"), "{}", ended[1].2);
    for (code, _, said) in &ended {
        assert_eq!(*code, 1, "{said}");
        assert!(!said.contains("a secret of tests"), "{said}");
    }
}

/// Holds the lock of a build's staging, so that process 0 waits, and the others for it.
struct Held(fs::File);

impl Held {
    fn new(prep: &Prep) -> Self {
        let folder = prep.catalog().join("data/.staging/cifar10/3.0.2");
        fs::create_dir_all(&folder).unwrap();
        let lock = fs::File::create(folder.join("lock")).unwrap();
        lock.lock().unwrap();
        Self(lock)
    }
}

#[test]
fn a_process_that_stops_is_lost_and_one_that_is_asked_to_ends_all() {
    for signal in ["-STOP", "-KILL", "-TERM"] {
        let prep = Prep::new();
        let held = Held::new(&prep);
        let (words, hosts) = (cifar10("2"), free_hosts(3));
        let mut processes: Vec<Process> = (0..3)
            .map(|index| Process::start(member(&prep, strs(&words), &hosts, index)))
            .collect();
        processes[0].wait_until("another process is building this");
        let victim = processes.remove(1);
        victim.signal(signal);
        for process in processes {
            let (code, _, said) = process.end();
            assert_eq!(code, 1, "{said}");
            let cause = match signal {
                "-TERM" => format!("process 1 ({}) failed: it was stopped, as asked", hosts[1]),
                _ => format!("process 1 ({}) was lost", hosts[1]),
            };
            assert!(said.contains(&cause), "{signal}: {said}");
        }
        if signal == "-STOP" {
            victim.signal("-CONT");
        }
        let (code, _, said) = victim.end();
        assert_eq!(code, if signal == "-KILL" { -1 } else { 1 }, "{said}");
        drop(held.0);
    }
}

#[test]
fn a_data_folder_that_is_not_shared_is_an_error() {
    let prep = Prep::new();
    let folders = [temp_dir(), temp_dir()];
    let mut words = cifar10("2");
    words.extend(["--data-dir".to_owned(), "data".to_owned()]);
    let hosts = free_hosts(2);
    let started: Vec<Process> = (0..2)
        .map(|index| {
            let mut command = member(&prep, strs(&words), &hosts, index);
            command.current_dir(folders[index].path());
            Process::start(command)
        })
        .collect();
    for process in started {
        let (code, _, said) = process.end();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(".staging/cifar10/3.0.2"), "{said}");
    }
}

#[test]
fn a_damaged_record_in_any_process_is_told_by_all_and_skipping_is_counted() {
    let folder = temp_dir();
    let source = source_folder("cifar10");
    let name = "cifar-10-binary.tar.gz";
    change_tar_gz(source.join(name), folder.path().join(name), |member, data| {
        if member.ends_with("data_batch_4.bin") || member.ends_with("data_batch_2.bin") {
            // A label of 77 in the sixth record.
            data[5 * 3073] = 77;
        }
        true
    });
    let from = folder.path().to_str().unwrap();
    let words = ["build", "cifar10", "--no-checksum", "--from", from];
    let launch = ["launch", "--processes", "2", "--"];
    let (alone, prep) = (Prep::new(), Prep::new());
    let run = prep.run(launch.into_iter().chain(words)).expect(1);
    for index in 0..2 {
        let told = run
            .stderr
            .lines()
            .filter(|line| line.starts_with(&format!("[{index}]")));
        let told = told.filter(|line| line.contains("record 5")).count();
        assert!(told > 0, "{}", run.stderr);
    }
    alone
        .run(words.into_iter().chain(["--on-error", "skip:2"]))
        .expect(3);
    prep.run(launch.into_iter().chain(words).chain(["--on-error", "skip:1"]))
        .expect(1);
    prep.run(launch.into_iter().chain(words).chain(["--on-error", "skip:2"]))
        .expect(3);
    assert_same_folder(alone.catalog().join("data"), prep.catalog().join("data"));
}

#[test]
fn what_one_process_does_is_refused_where_there_are_several() {
    let prep = Prep::new();
    for words in [
        &["append", "mine", "--source", "train=x.jsonl"][..],
        &["update", "mine.toml"],
    ] {
        let run = prep.run(
            ["launch", "--processes", "3", "--"]
                .into_iter()
                .chain(words.iter().copied()),
        );
        let run = run.expect(2);
        let wanted = format!(
            "`prep {}` is done by one process, and this is process 2 of 3",
            words[0]
        );
        assert!(
            run.stderr.contains(&wanted) && run.stderr.contains("hint: "),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn launch_passes_signals_on_and_reports_the_worst_exit_code() {
    let prep = Prep::new();
    let held = Held::new(&prep);
    let words = cifar10("2");
    // The end of the terminal reaches the first process alone, as Ctrl-C does.
    for signal in ["-TERM", "-HUP", "-INT"] {
        let command = prep.command(
            ["launch", "--processes", "2", "--"]
                .into_iter()
                .chain(strs(&words)),
        );
        let launched = Process::start(command);
        launched.wait_until("another process is building this");
        launched.signal(signal);
        let (code, _, said) = launched.end();
        assert_eq!(code, 1, "{signal}: {said}");
        assert!(
            said.contains("stopped building `cifar10`, as asked"),
            "{signal}: {said}"
        );
    }
    drop(held.0);
    let run = prep.run([
        "launch",
        "--processes",
        "2",
        "--",
        "build",
        "cifar10",
        "--workers",
        "0",
    ]);
    run.expect(2);
    prep.run(["launch", "--processes", "0", "--", "list"]).expect(2);
    prep.run(["launch", "--", "list"]).expect(2);
}

#[test]
fn a_launch_that_is_killed_takes_its_processes_with_it() {
    let prep = Prep::new();
    let _held = Held::new(&prep);
    let words = cifar10("2");
    let launch = ["launch", "--processes", "2", "--"];
    let mut launched = Process::start(prep.command(launch.into_iter().chain(strs(&words))));
    launched.wait_until("another process is building this");
    let children = launched.children();
    assert_eq!(children.len(), 2);
    launched.kill();
    wait_for(
        || children.iter().all(|child| running(*child).is_none()),
        || format!("{children:?} work on: {}", launched.stderr()),
    );
    assert_eq!(launched.end().0, -1);
}

#[test]
fn what_makes_no_cluster_is_wrong_usage() {
    let (folder, prep) = (temp_dir(), Prep::new());
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (good, none, two) = (
        path("good", "a:1\nb:2\n"),
        path("none", "# none\n"),
        path("two", "a b\n"),
    );
    let absent = folder.path().join("absent").to_str().unwrap().to_owned();
    let build = ["build", "cifar10"];
    for (more, said) in [
        (&["--hosts", &good, "--process", "2"][..], "0 to 1"),
        (&["--hosts", &good], "which of them"),
        (&["--process", "0"], "no list"),
        (&["--hosts", &absent, "--process", "0"], "No such file"),
        (&["--hosts", &none, "--process", "0"], "names no hosts"),
        (&["--hosts", &two, "--process", "0"], "more than one host"),
        (&["--hosts", &good, "--process", "0"], "common secret"),
        (
            &["--hosts", &good, "--process", "0", "--secret-file", &absent],
            "No such file",
        ),
    ] {
        let run = prep.run(build.iter().chain(more)).expect(2);
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
        assert_eq!(run.stderr.matches("error:").count(), 1, "{}", run.stderr);
    }
    for (hosts, said) in [
        (&absent, "No such file"),
        (&none, "names no hosts"),
        (&two, "more than one host"),
    ] {
        let run = prep.run(["launch", "--hosts", hosts, "--", "list"]).expect(2);
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
    }
}

#[test]
fn three_hosts_with_addresses_of_their_own() {
    let Some(network) = Network::new() else { return };
    let whole = Prep::new();
    let words = cifar10("5");
    whole.run(strs(&words)).expect(0);

    // A normal run, with a stranger who connects while it waits for the lock.
    let prep = Prep::new();
    let held = Held::new(&prep);
    let start = |prep: &Prep| -> Vec<Process> {
        (0..3)
            .map(|host| Process::start(network.command(host, prep, &words)))
            .collect()
    };
    let processes = start(&prep);
    processes[0].wait_until("another process is building this");
    network.stranger();
    drop(held.0);
    for (index, process) in processes.into_iter().enumerate() {
        let (code, _, said) = process.end();
        assert_eq!(code, 0, "{said}");
        let refused = said.contains("refused a connection from 10.77.0.4");
        assert_eq!(refused, index == 0, "{said}");
    }
    assert_same_folder(whole.catalog().join("data"), prep.catalog().join("data"));

    // Another version on one host.
    let prep = Prep::new();
    let processes: Vec<Process> = (0..3)
        .map(|host| {
            let mut command = network.command(host, &prep, &words);
            if host == 2 {
                command.env("PREP_TEST_VERSION", "0.0.1");
            }
            Process::start(command)
        })
        .collect();
    for process in processes {
        let (code, _, said) = process.end();
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains("process 2 (10.77.0.3:7171)") && said.contains("0.0.1"),
            "{said}"
        );
    }

    // A link that is cut, and the same command once it is mended.
    let prep = Prep::new();
    let held = Held::new(&prep);
    let processes = start(&prep);
    processes[0].wait_until("another process is building this");
    network.cut(1);
    for (index, process) in processes.into_iter().enumerate() {
        let (code, _, said) = process.end();
        assert_eq!(code, 1, "{said}");
        let lost = if index == 1 {
            "was lost"
        } else {
            "process 1 (10.77.0.2:7171) was lost"
        };
        assert!(said.contains(lost), "{said}");
    }
    network.mend(1);
    drop(held.0);
    for process in start(&prep) {
        let (code, _, said) = process.end();
        assert_eq!(code, 0, "{said}");
    }
    assert_same_folder(whole.catalog().join("data"), prep.catalog().join("data"));
}

#[test]
fn a_kill_in_the_middle_of_the_graph_is_told_by_the_others() {
    let (folder, prep) = (temp_dir(), Prep::new());
    let recipe = large_source(folder.path(), 256, 6400, None);
    let from = folder.path().to_str().unwrap();
    let words = [
        "build",
        recipe.to_str().unwrap(),
        "--no-checksum",
        "--from",
        from,
        "--workers",
        "1",
    ];
    let hosts = free_hosts(2);
    let mut processes: Vec<Process> = (0..2)
        .map(|index| Process::start(member(&prep, words, &hosts, index)))
        .collect();
    // The second process has begun the graph, or is about to.
    let sign = prep.catalog().join("data/.staging/large/3.0.1/journal-1.jsonl");
    wait_for(|| sign.exists(), || processes[0].stderr());
    // A stranger at this moment changes nothing.
    let mut stranger = TcpStream::connect(&hosts[0]).unwrap();
    stranger.write_all(&[0xff; 1000]).unwrap();
    let mut victim = processes.remove(1);
    victim.kill();
    let (code, _, said) = processes.remove(0).end();
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains(&format!("process 1 ({}) was lost", hosts[1])),
        "{said}"
    );
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(victim.end().0, -1);
    assert!(!prep.catalog().join("data/large").exists());
}
