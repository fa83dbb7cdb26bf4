//! Several processes that build one dataset: the same bytes for any number of them, after any kills, and a cause for every fault.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prep_testing::archive::{change_tar_gz, write_gzip};
use prep_testing::command::prep_binary;
use prep_testing::{Prep, assert_same_folder, source_folder, temp_dir};

/// Longer than anything here may take; so that a fault is a failure, and no endless wait.
const FOREVER: Duration = Duration::from_secs(120);

/// Places on this machine that nobody listens on.
fn free_hosts(count: usize) -> Vec<String> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    listeners.iter().map(address).collect()
}

/// One process of a cluster.
struct Process {
    child: Child,
    output: Vec<Arc<Mutex<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pipes: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        let (mut output, mut readers) = (Vec::new(), Vec::new());
        for mut pipe in pipes {
            let text = Arc::new(Mutex::new(String::new()));
            output.push(Arc::clone(&text));
            readers.push(std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                    let part = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    text.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push_str(&part);
                }
            }));
        }
        Self {
            child,
            output,
            readers,
        }
    }

    fn stderr(&self) -> String {
        self.output[1].lock().unwrap().clone()
    }

    /// Waits for its end; gives the exit code (-1 for a signal), stdout and stderr.
    fn end(mut self) -> (i32, String, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > FOREVER {
                let said = self.stderr();
                self.child.kill().unwrap();
                panic!("a process does not end; it said:\n{said}");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let text = |index: usize| self.output[index].lock().unwrap().clone();
        (status.code().unwrap_or(-1), text(0), text(1))
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

/// The command of process `index` of these hosts.
fn member<'a>(
    prep: &Prep,
    arguments: impl IntoIterator<Item = &'a str>,
    hosts: &[String],
    index: usize,
) -> Command {
    let mut command = prep.command(arguments);
    command
        .env("PREP_CLUSTER_HOSTS", hosts.join(","))
        .env("PREP_CLUSTER_PROCESS", index.to_string())
        .env("PREP_CLUSTER_SECRET", "a secret of tests");
    command
}

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
    let mut noise = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..rounds {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        let mut processes = start(&killed, if round % 2 == 0 { "1" } else { "2" });
        std::thread::sleep(Duration::from_micros(noise % took.max(1)));
        let victim = (noise >> 32) as usize % 3;
        processes[victim].child.kill().unwrap();
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

/// Waits until a process says something.
fn wait_until(process: &Process, what: &str) {
    let begun = Instant::now();
    while !process.stderr().contains(what) {
        assert!(begun.elapsed() < FOREVER, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(5));
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
        wait_until(&processes[0], "another process is building this");
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
fn launch_passes_signals_on_and_reports_the_worst_exit_code() {
    let prep = Prep::new();
    let held = Held::new(&prep);
    let words = cifar10("2");
    let command = prep.command(
        ["launch", "--processes", "2", "--"]
            .into_iter()
            .chain(strs(&words)),
    );
    let launched = Process::start(command);
    wait_until(&launched, "another process is building this");
    launched.signal("-TERM");
    let (code, _, said) = launched.end();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("stopped building `cifar10`, as asked"), "{said}");
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

/// Three hosts with addresses of their own, and a switch between them.
struct Network {
    names: Vec<String>,
}

impl Network {
    /// `None` where this machine or user can have none.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let mut network = Self { names: Vec::new() };
        let switch = format!("prep{id}s");
        let ip = |words: &[&str]| -> bool {
            Command::new("ip")
                .args(words)
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        let mut add = |name: &str| {
            let added = ip(&["netns", "add", name]) && ip(&["-n", name, "link", "set", "lo", "up"]);
            network.names.push(name.to_owned());
            added
        };
        let mut good = add(&switch)
            && ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])
            && ip(&["-n", &switch, "link", "set", "br0", "up"]);
        for host in 0..4 {
            let (name, port) = (format!("prep{id}h{host}"), format!("p{host}"));
            let address = format!("10.77.0.{}/24", host + 1);
            good = good
                && add(&name)
                && ip(&[
                    "-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns",
                    &name,
                ])
                && ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])
                && ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])
                && ip(&["-n", &name, "link", "set", "eth0", "up"]);
        }
        if !good {
            // Past the capture of the test's output, so that it shows.
            let _ = std::io::stderr().write_all(
                b"\nskipped: no network namespaces here (they take root and `ip`), so nothing ran on three hosts\n",
            );
            return None;
        }
        Some(network)
    }

    fn hosts() -> Vec<String> {
        (1..=3).map(|host| format!("10.77.0.{host}:7171")).collect()
    }

    /// A command of `prep` on a host.
    fn command(&self, host: usize, prep: &Prep, words: &[String], hosts_file: &Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.names[host + 1]])
            .arg(prep_binary())
            .args(words)
            .args(["--process", &host.to_string(), "--hosts"])
            .arg(hosts_file)
            .env("PREP_HOME", prep.home())
            .env("PREP_CATALOG", prep.catalog())
            .env("PREP_CLUSTER_SECRET", "a secret of tests")
            .env("NO_COLOR", "1");
        command
    }

    /// Pulls the cable of a host.
    fn cut(&self, host: usize) {
        let port = format!("p{host}");
        let words = ["-n", &self.names[0], "link", "set", &port, "down"];
        assert!(Command::new("ip").args(words).status().unwrap().success());
    }

    /// Puts it in again.
    fn mend(&self, host: usize) {
        let port = format!("p{host}");
        let words = ["-n", &self.names[0], "link", "set", &port, "up"];
        assert!(Command::new("ip").args(words).status().unwrap().success());
    }

    /// Sends something from the fourth host to the first, as a stranger.
    fn stranger(&self) {
        let script = "exec 3<>/dev/tcp/10.77.0.1/7171; printf 'GET / HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3 >/dev/null; true";
        let status = Command::new("ip")
            .args([
                "netns",
                "exec",
                &self.names[4],
                "timeout",
                "20",
                "bash",
                "-c",
                script,
            ])
            .stderr(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "the stranger was not hung up on");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.names.iter().rev() {
            let _ = Command::new("ip")
                .args(["netns", "delete", name])
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// A hosts file for the three.
fn hosts_file(folder: &Path) -> PathBuf {
    let path = folder.join("hosts");
    fs::write(&path, format!("# three hosts\n{}\n", Network::hosts().join("\n"))).unwrap();
    path
}

#[test]
fn three_hosts_with_addresses_of_their_own() {
    let Some(network) = Network::new() else { return };
    let folder = temp_dir();
    let hosts = hosts_file(folder.path());
    let whole = Prep::new();
    let words = cifar10("5");
    whole.run(strs(&words)).expect(0);

    // A normal run, with a stranger who connects while it waits for the lock.
    let prep = Prep::new();
    let held = Held::new(&prep);
    let start = |prep: &Prep| -> Vec<Process> {
        (0..3)
            .map(|host| Process::start(network.command(host, prep, &words, &hosts)))
            .collect()
    };
    let processes = start(&prep);
    wait_until(&processes[0], "another process is building this");
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
            let mut command = network.command(host, &prep, &words, &hosts);
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
    wait_until(&processes[0], "another process is building this");
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

/// Pictures of zeros, 400 MB of them unpacked, and a recipe for them: little to store, and long to read.
fn long_source(folder: &Path) -> PathBuf {
    for (name, count) in [("train", 6400u32), ("t10k", 10)] {
        let mut images = [0x803, count, 256, 256].map(u32::to_be_bytes).concat();
        images.resize(images.len() + count as usize * 65536, 0);
        let mut labels = [0x801, count].map(u32::to_be_bytes).concat();
        labels.extend((0..count).map(|label| (label % 10) as u8));
        write_gzip(folder.join(format!("{name}-images-idx3-ubyte.gz")), &images);
        write_gzip(folder.join(format!("{name}-labels-idx1-ubyte.gz")), &labels);
    }
    let text = prep_jobs::recipe::builtin::text("mnist").unwrap();
    let recipe = folder.join("large.toml");
    let text = text
        .replace("\"mnist\"", "\"large\"")
        .replace("28, 28", "256, 256");
    fs::write(&recipe, text).unwrap();
    recipe
}

#[test]
fn a_kill_in_the_middle_of_the_graph_is_told_by_the_others() {
    let (folder, prep) = (temp_dir(), Prep::new());
    let recipe = long_source(folder.path());
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
    let begun = Instant::now();
    while !sign.exists() {
        assert!(begun.elapsed() < FOREVER, "{}", processes[0].stderr());
        std::thread::sleep(Duration::from_millis(2));
    }
    // A stranger at this moment changes nothing.
    let mut stranger = TcpStream::connect(&hosts[0]).unwrap();
    stranger.write_all(&[0xff; 1000]).unwrap();
    let mut victim = processes.remove(1);
    victim.child.kill().unwrap();
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
