//! Whatever goes wrong, all processes end within ten seconds and say why, and the same command then gives the undisturbed bytes.
//!
//! The fault always strikes while records flow: `PREP_TEST_FAULT` (`jobs/src/fault.rs`) makes a process stand still in the middle of its work, and
//! tells so by a file. Ten seconds are what is promised, so that is what is measured: from the fault to the last exit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use prep_formats::tfrecord::Compression;
use prep_testing::network::Network;
use prep_testing::process::{Process, free_hosts, member, wait_for};
use prep_testing::server::{Fault, FileServer};
use prep_testing::{Noise, Prep, SmallDisk, TempDir, assert_same_folder, source_folder, temp_dir};

use crate::builds::large_source;
use crate::convert::{examples, write_tfrecord};

/// Within so long after a fault everybody has ended.
const BOUND: Duration = Duration::from_secs(10);

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Build,
    /// A conversion in source order: no record moves between processes.
    Straight,
    /// One through a sort.
    Sorted,
}

const KINDS: [Kind; 3] = [Kind::Build, Kind::Straight, Kind::Sorted];

/// A job, its output, and what it gives when nothing disturbs it.
struct Job {
    kind: Kind,
    prep: Prep,
    folder: TempDir,
    words: Vec<String>,
}

impl Job {
    fn new(kind: Kind) -> Self {
        let folder = temp_dir();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let words = match kind {
            Kind::Build => vec![
                "build".to_owned(),
                "cifar10".to_owned(),
                "--no-checksum".to_owned(),
                "--from".to_owned(),
                text(&source_folder("cifar10")),
                "--shards".to_owned(),
                "5".to_owned(),
            ],
            Kind::Straight | Kind::Sorted => {
                let mut noise = Noise(0x5eed);
                for index in 0..6 {
                    let path = folder.path().join(format!("{index}.tfrecord"));
                    write_tfrecord(&path, Compression::Plain, &examples(&mut noise, 600));
                }
                let order = if kind == Kind::Sorted {
                    "shuffle:3"
                } else {
                    "source"
                };
                ["convert", &text(&folder.path().join("*.tfrecord")), "OUT"]
                    .into_iter()
                    .chain(["--shards", "7", "--order", order])
                    .map(str::to_owned)
                    .collect()
            }
        };
        Self {
            kind,
            prep: Prep::new(),
            folder,
            words,
        }
    }

    /// Where a process passes while records flow, and how often before the fault.
    fn place(&self, process: usize) -> &'static str {
        match self.kind {
            // There is one archive, which process 0 reads.
            Kind::Build if process == 0 => "encode:20",
            Kind::Build => "write:5",
            Kind::Straight => "convert:1",
            Kind::Sorted => "read:100",
        }
    }

    fn output(&self) -> PathBuf {
        match self.kind {
            Kind::Build => self.prep.catalog().join("data/cifar10"),
            _ => self.folder.path().join("out"),
        }
    }

    fn words_into(&self, output: &str) -> Vec<String> {
        let output = self.folder.path().join(output);
        let output = output.to_str().unwrap();
        let words = self.words.iter().map(|word| match word.as_str() {
            "OUT" => output.to_owned(),
            word => word.to_owned(),
        });
        words.chain(["--workers".to_owned(), "1".to_owned()]).collect()
    }

    fn words(&self) -> Vec<String> {
        self.words_into("out")
    }

    /// The processes; `fault` is what `PREP_TEST_FAULT` is for one of them.
    fn start(&self, processes: usize, fault: Option<(usize, String)>) -> (Vec<Process>, Vec<String>) {
        let (hosts, words) = (free_hosts(processes), self.words());
        let started = (0..processes).map(|index| {
            let words = words.iter().map(String::as_str);
            let mut command = match processes {
                1 => self.prep.command(words),
                _ => member(&self.prep, words, &hosts, index),
            };
            if let Some((victim, fault)) = &fault
                && *victim == index
            {
                command.env("PREP_TEST_FAULT", fault);
            }
            Process::start(command)
        });
        (started.collect(), hosts)
    }

    /// The processes, when one of them has come to stand still in the middle of its work; and the file that it waits for.
    fn hold(&self, processes: usize, victim: usize) -> (Vec<Process>, Vec<String>, PathBuf) {
        let sign = self.folder.path().join("held");
        let fault = format!("hold@{}:{}", self.place(victim), sign.display());
        let (started, hosts) = self.start(processes, Some((victim, fault)));
        wait_for(
            || sign.exists(),
            || {
                let said: Vec<String> = started.iter().map(Process::stderr).collect();
                format!("{:?} does not come to its middle: {said:?}", self.kind)
            },
        );
        assert!(!self.output().exists(), "nothing is visible in the middle");
        (started, hosts, sign)
    }

    /// The same command goes on, and gives what an undisturbed one gives.
    fn goes_on(&self) {
        assert!(
            !self.output().exists(),
            "{:?}: nothing is visible after a fault",
            self.kind
        );
        self.prep.run(self.words()).expect(0);
        let (whole, other) = (Prep::new(), self.words_into("whole"));
        whole.run(&other).expect(0);
        let whole = match self.kind {
            Kind::Build => whole.catalog().join("data/cifar10"),
            _ => self.folder.path().join("whole"),
        };
        assert_same_folder(whole, self.output());
    }
}

/// Waits for the ends; gives what each said. All have to fail, and in time.
#[track_caller]
fn all_fail(what: &str, struck: Instant, processes: Vec<Process>) -> Vec<String> {
    let said = processes.into_iter().map(|process| {
        let (code, _, said) = process.end();
        let took = struck.elapsed();
        assert_eq!(code, 1, "{what}: {said}");
        assert!(took < BOUND, "{what}: it took {took:?}: {said}");
        said
    });
    said.collect()
}

/// Runs something for each kind of job, side by side: most of it is waiting.
fn each_kind(check: impl Fn(Kind) + Sync) {
    std::thread::scope(|scope| {
        for kind in KINDS {
            let check = &check;
            scope.spawn(move || check(kind));
        }
    });
}

#[test]
fn a_process_that_is_lost_in_the_middle_ends_all_in_time() {
    each_kind(|kind| {
        for (signal, victim) in [("-KILL", 0), ("-KILL", 1), ("-STOP", 2)] {
            let job = Job::new(kind);
            let (mut processes, hosts, sign) = job.hold(3, victim);
            let struck = Instant::now();
            let lost = processes.remove(victim);
            lost.signal(signal);
            let what = format!("{kind:?} {signal}");
            for said in all_fail(&what, struck, processes) {
                let cause = format!("process {victim} ({}) was lost", hosts[victim]);
                assert!(said.contains(&cause), "{what}: {said}");
                assert!(said.contains("hint: ") && !said.contains("panicked"), "{said}");
            }
            fs::remove_file(&sign).unwrap();
            if signal == "-STOP" {
                lost.signal("-CONT");
                let (code, _, said) = lost.end();
                assert_eq!(code, 1, "{said}");
                assert!(said.contains("process 0") || said.contains("process 1"), "{said}");
            } else {
                assert_eq!(lost.end().0, -1);
            }
            job.goes_on();
        }
    });
}

#[test]
fn a_process_whose_work_is_stuck_ends_in_time_when_another_is_lost() {
    each_kind(|kind| {
        let job = Job::new(kind);
        // Process 0 stands still, and does so until the end.
        let (mut processes, hosts, sign) = job.hold(3, 0);
        let struck = Instant::now();
        let mut lost = processes.remove(1);
        lost.kill();
        for said in all_fail(&format!("{kind:?}"), struck, processes) {
            assert!(
                said.contains(&format!("process 1 ({}) was lost", hosts[1])),
                "{said}"
            );
        }
        fs::remove_file(sign).unwrap();
        job.goes_on();
    });
}

#[test]
fn a_worker_that_panics_ends_all_in_time() {
    each_kind(|kind| {
        for processes in [1, 3] {
            let job = Job::new(kind);
            let victim = processes / 2;
            let (started, hosts) =
                job.start(processes, Some((victim, format!("panic@{}", job.place(victim)))));
            started[victim].wait_until("a test asked for a panic here");
            let struck = Instant::now();
            let what = format!("{kind:?} of {processes}");
            for (index, said) in all_fail(&what, struck, started).into_iter().enumerate() {
                assert!(
                    said.contains("panicked") && said.contains("error: "),
                    "{what}: {said}"
                );
                let elsewhere = format!("process {victim} ({}) failed", hosts[victim]);
                assert_eq!(said.contains(&elsewhere), index != victim, "{what}: {said}");
            }
            job.goes_on();
        }
    });
}

/// Whether this test was started with a signal ignored, as by `nohup`: then its children would be, too.
fn is_ignored(bit: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (bit - 1) & 1 == 1)
}

#[test]
fn a_request_to_stop_ends_all_in_time() {
    each_kind(|kind| {
        for (signal, processes) in [
            ("-INT", 1),
            ("-TERM", 1),
            ("-HUP", 1),
            ("-INT", 3),
            ("-TERM", 3),
            ("-HUP", 3),
        ] {
            if signal == "-HUP" && is_ignored(1) {
                continue;
            }
            let job = Job::new(kind);
            let victim = processes - 1;
            let (mut started, hosts, sign) = job.hold(processes, victim);
            let struck = Instant::now();
            let stopped = started.remove(victim);
            stopped.signal(signal);
            let what = format!("{kind:?} {signal} of {processes}");
            for said in all_fail(&what, struck, started) {
                let cause = format!(
                    "process {victim} ({}) failed: it was stopped, as asked",
                    hosts[victim]
                );
                assert!(said.contains(&cause), "{what}: {said}");
            }
            if processes == 1 {
                // Its switch is looked at twenty times a second; else it would be done before.
                std::thread::sleep(Duration::from_millis(500));
            }
            fs::remove_file(sign).unwrap();
            for said in all_fail(&what, struck, vec![stopped]) {
                let cause = "as asked\nhint: the same command goes on from here";
                assert!(said.contains(cause), "{what}: {said}");
            }
            job.goes_on();
        }
    });
}

#[test]
fn a_request_to_stop_ends_also_what_is_stuck() {
    each_kind(|kind| {
        for processes in [1, 3] {
            let job = Job::new(kind);
            let (started, _, sign) = job.hold(processes, 0);
            let struck = Instant::now();
            started[0].signal("-TERM");
            let what = format!("{kind:?} of {processes}");
            for said in all_fail(&what, struck, started) {
                assert!(said.contains("as asked"), "{what}: {said}");
            }
            fs::remove_file(sign).unwrap();
            job.goes_on();
        }
    });
}

#[test]
fn a_full_spill_disk_ends_all_in_time_and_is_told() {
    let Some(disk) = SmallDisk::mount(512) else { return };
    let folder = temp_dir();
    let recipe = large_source(folder.path(), 128, 3000, Some(Noise(17)));
    let mut noise = Noise(3);
    let large: Vec<Vec<u8>> = (0..500).map(|_| noise.bytes(100_000)).collect();
    let input = folder.path().join("large.tfrecord");
    write_tfrecord(&input, Compression::Plain, &large);
    drop(large);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let out = folder.path().join("out");
    let (recipe, input, from) = (text(&recipe), text(&input), text(folder.path()));
    let build = ["build", &recipe, "--no-checksum", "--from", &from];
    let convert = [
        "convert",
        &input,
        &text(&out),
        "--order",
        "shuffle:1",
        "--shards",
        "4",
    ];
    for words in [&build[..], &convert] {
        for processes in [1, 3] {
            let prep = Prep::new();
            let spill = text(disk.path());
            let more = ["--spill-dir", &spill, "--memory", "16M", "--workers", "1"];
            let hosts = free_hosts(processes);
            let started: Vec<Process> = (0..processes)
                .map(|index| {
                    let words = words.iter().copied().chain(more);
                    let command = match processes {
                        1 => prep.command(words),
                        _ => member(&prep, words, &hosts, index),
                    };
                    Process::start(command)
                })
                .collect();
            // The first word of it is the fault, as near as can be seen from outside.
            let told = |process: &Process| process.stderr().contains("error: could not");
            wait_for(
                || started.iter().any(told),
                || started.iter().map(Process::stderr).collect(),
            );
            let what = format!("{} of {processes}", words[0]);
            let all = all_fail(&what, Instant::now(), started);
            for said in all {
                assert!(
                    said.contains(&spill) && said.contains("No space left on device"),
                    "{what}: {said}"
                );
            }
            assert!(!out.exists() && !prep.catalog().join("log").exists());
            assert_eq!(
                fs::read_dir(disk.path()).unwrap().count(),
                0,
                "{what}: nothing is left"
            );
        }
    }
}

#[test]
fn a_store_that_goes_away_ends_all_in_time_with_its_address() {
    let folder = temp_dir();
    let mut noise = Noise(8);
    for name in ["a.tfrecord", "b.tfrecord"] {
        // Several blocks, so that the one that is held is not the last.
        let large: Vec<Vec<u8>> = (0..60).map(|_| noise.bytes(100_000)).collect();
        write_tfrecord(&folder.path().join(name), Compression::Plain, &large);
    }
    for processes in [1, 3] {
        let server = FileServer::start(folder.path(), []);
        let urls = [server.url("a.tfrecord"), server.url("b.tfrecord")];
        let (prep, out, sign) = (Prep::new(), folder.path().join("out"), folder.path().join("held"));
        let words = [
            "convert",
            &urls[0],
            &urls[1],
            out.to_str().unwrap(),
            "--shards",
            "same",
            "--workers",
            "1",
        ];
        let hosts = free_hosts(processes);
        let started: Vec<Process> = (0..processes)
            .map(|index| {
                let mut command = match processes {
                    1 => prep.command(words),
                    _ => member(&prep, words, &hosts, index),
                };
                if index == 0 {
                    command.env("PREP_TEST_FAULT", format!("hold@convert:1:{}", sign.display()));
                }
                Process::start(command)
            })
            .collect();
        wait_for(|| sign.exists(), || started[0].stderr());
        drop(server);
        let struck = Instant::now();
        fs::remove_file(&sign).unwrap();
        for said in all_fail(&format!("{processes}"), struck, started) {
            assert!(said.contains("could not be reached for"), "{said}");
            assert!(urls.iter().any(|url| said.contains(url.as_str())), "{said}");
        }
        assert!(!out.exists());
    }

    // One that was never there.
    let nowhere = format!("http://{}/a.tfrecord", free_hosts(1)[0]);
    let prep = Prep::new();
    let struck = Instant::now();
    let out = folder.path().join("out");
    let said = prep
        .run(["convert", &nowhere, out.to_str().unwrap()])
        .expect(1)
        .stderr;
    assert!(struck.elapsed() < BOUND, "{:?}", struck.elapsed());
    assert!(
        said.contains(&nowhere) && said.contains("could not be reached for"),
        "{said}"
    );

    // A server of sources that goes away between two pieces of a download.
    for processes in [1, 3] {
        let source = source_folder("cifar10");
        let server = FileServer::start(&source, vec![Fault::CutAfter(5000); 10_000]);
        let url = server.url("");
        let prep = Prep::new();
        let words = ["build", "cifar10", "--no-checksum", "--from", &url];
        let hosts = free_hosts(processes);
        let started: Vec<Process> = (0..processes)
            .map(|index| match processes {
                1 => Process::start(prep.command(words)),
                _ => Process::start(member(&prep, words, &hosts, index)),
            })
            .collect();
        started[0].wait_until("trying again from byte");
        drop(server);
        for said in all_fail(&format!("build of {processes}"), Instant::now(), started) {
            assert!(said.contains("could not fetch ") && said.contains(&url), "{said}");
        }
        assert!(!prep.catalog().join("log").exists());
    }
}

#[test]
fn what_a_store_gets_wrong_for_a_while_is_tried_again_and_counted() {
    let folder = temp_dir();
    let mut noise = Noise(5);
    let large: Vec<Vec<u8>> = (0..60).map(|_| noise.bytes(50_000)).collect();
    write_tfrecord(&folder.path().join("a.tfrecord"), Compression::Plain, &large);
    let prep = Prep::new();
    let (whole, report) = (folder.path().join("whole"), folder.path().join("report.json"));
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    prep.run(["convert", &path("a.tfrecord"), &path("whole"), "--shards", "2"])
        .expect(0);
    let faults = [
        Fault::Status(500),
        Fault::None,
        Fault::Status(503),
        Fault::Reset,
        Fault::None,
        Fault::None,
        Fault::CutAfter(1000),
        Fault::Busy(0),
        Fault::Slow(300),
        Fault::Close,
        Fault::Short,
    ];
    let failing = faults
        .iter()
        .filter(|fault| !matches!(fault, Fault::None | Fault::Slow(_)));
    let failing = failing.count();
    let server = FileServer::start(folder.path(), faults);
    let words = |output: &str| {
        let url = server.url("a.tfrecord");
        [
            "convert",
            &url,
            &path(output),
            "--shards",
            "2",
            "--report",
            &path("report.json"),
        ]
        .map(str::to_owned)
    };
    let run = prep.run(words("out")).expect(0);
    assert_eq!(
        server.faults_left(),
        0,
        "all faults were met: {:?}",
        server.requests()
    );
    let manifest = |folder: &Path| {
        let mut shards: Vec<PathBuf> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().contains(".array_record-"))
            .collect();
        shards.sort();
        shards
            .iter()
            .map(|shard| fs::read(shard).unwrap())
            .collect::<Vec<_>>()
    };
    assert!(manifest(&whole) == manifest(&folder.path().join("out")));
    let found: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(found["retries"], failing, "{:?}", server.requests());
    assert!(
        run.stderr.contains(&format!("{failing} retries")),
        "{}",
        run.stderr
    );

    // What will not pass is not tried again.
    for status in [403, 404, 410] {
        let server = FileServer::start(folder.path(), [Fault::Status(status)]);
        let url = server.url("a.tfrecord");
        let run = prep.run(["convert", &url, &path("none")]).expect(1);
        assert!(
            run.stderr.contains(&url) && run.stderr.contains(&status.to_string()),
            "{status}: {}",
            run.stderr
        );
        assert!(server.requests().len() <= 3, "{status}: {:?}", server.requests());
    }
}

#[test]
#[ignore = "a minute of waiting: make soak"]
fn a_store_that_only_ever_says_no_is_given_up_with_address_and_status() {
    let folder = temp_dir();
    for status in [500, 503, 429] {
        let server = FileServer::start(folder.path(), vec![Fault::Status(status); 10_000]);
        let url = server.url("a.tfrecord");
        let prep = Prep::new();
        let begun = Instant::now();
        let out = folder.path().join("out");
        let run = prep.run(["convert", &url, out.to_str().unwrap()]).expect(1);
        assert!(
            run.stderr.contains(&url) && run.stderr.contains(&status.to_string()),
            "{}",
            run.stderr
        );
        assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
        assert!(server.requests().len() < 50);
    }
}

#[test]
fn a_cable_that_is_cut_while_records_flow_ends_all_in_time() {
    let Some(network) = Network::new() else { return };
    let folder = temp_dir();
    let recipe = large_source(folder.path(), 128, 1200, Some(Noise(17)));
    let mut noise = Noise(21);
    for index in 0..3 {
        let records: Vec<Vec<u8>> = (0..100).map(|_| noise.bytes(80_000)).collect();
        write_tfrecord(
            &folder.path().join(format!("{index}.tfrecord")),
            Compression::Plain,
            &records,
        );
    }
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let build = vec![
        "build".to_owned(),
        text(recipe),
        "--no-checksum".to_owned(),
        "--from".to_owned(),
        text(folder.path().into()),
        "--shards=4".to_owned(),
    ];
    let convert = |out: &str| {
        vec![
            "convert".to_owned(),
            text(folder.path().join("*.tfrecord")),
            text(folder.path().join(out)),
            "--order=shuffle:2".to_owned(),
            "--shards=5".to_owned(),
        ]
    };
    // About half of what goes to or comes from host 1 is still to come when its cable is cut. Of a build host 0 reads all.
    for (words, whole_words, place) in [
        (build.clone(), build, "encode:600"),
        (convert("out"), convert("whole"), "read:50"),
    ] {
        let (prep, whole) = (Prep::new(), Prep::new());
        let sign = folder.path().join("held");
        let start = |fault: bool| -> Vec<Process> {
            let host = |host: usize| {
                let mut words = words.clone();
                words.extend(["--workers".to_owned(), "1".to_owned()]);
                let mut command = network.command(host, &prep, &words);
                // Whoever reads stands still in the middle, and goes on when the cable is cut.
                if fault {
                    let sign = sign.with_extension(host.to_string());
                    command.env("PREP_TEST_FAULT", format!("hold@{place}:{}", sign.display()));
                }
                Process::start(command)
            };
            (0..3).map(host).collect()
        };
        let before = network.bytes_moved(1);
        let mut processes = start(true);
        let held = sign.with_extension("0");
        wait_for(
            || held.exists() && network.bytes_moved(1) - before > 1 << 20,
            || {
                format!(
                    "{} bytes: {}",
                    network.bytes_moved(1) - before,
                    processes[0].stderr()
                )
            },
        );
        assert!(processes.iter_mut().all(|process| !process.has_ended()));
        network.cut(1);
        let struck = Instant::now();
        for host in 0..3 {
            let _ = fs::remove_file(sign.with_extension(host.to_string()));
        }
        for (index, said) in all_fail(&words[0], struck, processes).into_iter().enumerate() {
            let lost = match index {
                1 => "was lost",
                _ => "process 1 (10.77.0.2:7171) was lost",
            };
            assert!(
                said.contains(lost) && !said.contains("panicked"),
                "{index}: {said}"
            );
        }
        network.mend(1);
        assert!(!prep.catalog().join("data/large").exists() && !folder.path().join("out").exists());
        for process in start(false) {
            let (code, _, said) = process.end();
            assert_eq!(code, 0, "{said}");
        }
        whole.run(&whole_words).expect(0);
        if words[0] == "build" {
            assert_same_folder(whole.catalog().join("data"), prep.catalog().join("data"));
        } else {
            assert_same_folder(folder.path().join("whole"), folder.path().join("out"));
        }
    }
}

/// A library that shifts the clock of whatever is started with it in `LD_PRELOAD`, by `PREP_TEST_CLOCK` seconds.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t shift(void) {
    const char *text = getenv("PREP_TEST_CLOCK");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, out);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += shift();
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"#;

/// The library, where there is a compiler for it and the system takes it.
fn clock(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    fs::write(&source, CLOCK).unwrap();
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status()
        .is_ok_and(|status| status.success());
    // `date` tells whether it works: a static libc would not notice.
    let year = Command::new("date")
        .args(["-u", "+%s"])
        .env("LD_PRELOAD", &library)
        .env("PREP_TEST_CLOCK", "-86400")
        .output();
    let said = year.map(|output| String::from_utf8_lossy(&output.stdout).trim().parse::<u64>());
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let works = matches!(said, Ok(Ok(said)) if said + 80_000 < now.as_secs());
    if !(made && works) {
        use std::io::Write;
        let _ = std::io::stderr()
            .write_all(b"\nskipped: no clock can be shifted here (that takes `cc` and `LD_PRELOAD`)\n");
        return None;
    }
    Some(library)
}

/// The day that the log of a dataset has for its first entry.
fn day_of_entry(prep: &Prep) -> String {
    let entry = prep.catalog().join("log/cifar10/00000000000000000000.json");
    let entry: serde_json::Value = serde_json::from_slice(&fs::read(entry).unwrap()).unwrap();
    entry["time"].as_str().unwrap()[..10].to_owned()
}

#[test]
fn another_clock_is_no_matter() {
    let home = temp_dir();
    let Some(clock) = clock(home.path()) else { return };
    let shifted = |command: &mut Command, seconds: i64| {
        command
            .env("LD_PRELOAD", &clock)
            .env("PREP_TEST_CLOCK", seconds.to_string());
    };
    each_kind(|kind| {
        // Two hosts that are days apart, before and after the third.
        let shifts = [-200_000, 0, 30 * 3600];
        let job = Job::new(kind);
        let run = |kill: bool| {
            let (hosts, words) = (free_hosts(3), job.words());
            let sign = job.folder.path().join("held");
            let mut processes: Vec<Process> = (0..3)
                .map(|index| {
                    let mut command = member(&job.prep, words.iter().map(String::as_str), &hosts, index);
                    shifted(&mut command, shifts[index]);
                    if kill && index == 2 {
                        let fault = format!("hold@{}:{}", job.place(2), sign.display());
                        command.env("PREP_TEST_FAULT", fault);
                    }
                    Process::start(command)
                })
                .collect();
            if kill {
                wait_for(|| sign.exists(), || processes[2].stderr());
                let struck = Instant::now();
                let mut lost = processes.remove(2);
                lost.kill();
                all_fail("another clock", struck, processes);
                fs::remove_file(sign).unwrap();
                return;
            }
            for process in processes {
                let (code, _, said) = process.end();
                assert_eq!(code, 0, "{said}");
            }
        };
        run(true);
        // What is there is from yesterday, or from the day after tomorrow.
        let files = Command::new("find")
            .args([job.prep.home(), job.folder.path()])
            .args(["-path", "*.staging*", "-type", "f"])
            .output()
            .unwrap();
        let staged = String::from_utf8(files.stdout).unwrap();
        for (index, file) in staged.lines().enumerate() {
            let date = if index % 2 == 0 {
                "1971-01-01"
            } else {
                "2099-12-31"
            };
            assert!(
                Command::new("touch")
                    .args(["-d", date, file])
                    .status()
                    .unwrap()
                    .success()
            );
        }
        assert!(!staged.is_empty());
        run(false);
        let (whole, other) = (Prep::new(), job.words_into("whole"));
        whole.run(&other).expect(0);
        if kind == Kind::Build {
            assert_same_folder(whole.catalog().join("data"), job.prep.catalog().join("data"));
            // The clock was another one indeed: the log has the leader's.
            assert_ne!(day_of_entry(&whole), day_of_entry(&job.prep));
        } else {
            assert_same_folder(job.folder.path().join("whole"), job.output());
        }
        // And by any clock it is up to date.
        for seconds in [-400_000, 0, 400_000] {
            let mut command = job.prep.command(job.words());
            shifted(&mut command, seconds);
            let output = command.output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains("up to date"));
        }
    });
}
