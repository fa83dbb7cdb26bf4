//! `prep build` as its user sees it: progress, traces, reports, drawings; and how it ends when it is told to, or things go wrong.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use prep_testing::server::{Fault, FileServer};
use prep_testing::{SmallDisk, assert_same_folder, source_folder};
use serde_json::Value;

use crate::command::{build_from, damaged, expect, golden, json, json_lines};

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill")
        .args(["-s", signal, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

/// Checks that the spans of every thread nest, and gives their names.
fn spans(trace: &Path) -> Vec<String> {
    let events = json(trace);
    let mut threads: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut names = Vec::new();
    for event in events
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["ph"] == "X")
    {
        let number = |key: &str| event[key].as_f64().unwrap();
        let thread = (number("pid") as u64, number("tid") as u64);
        let span = (number("ts"), number("ts") + number("dur"));
        threads.entry(thread).or_default().push(span);
        names.push(event["name"].as_str().unwrap().to_owned());
    }
    for spans in threads.values_mut() {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<f64> = Vec::new();
        for (start, end) in spans {
            // Times are in microseconds, rounded to thousandths.
            while open.last().is_some_and(|outer| *outer <= *start + 0.01) {
                open.pop();
            }
            assert!(open.last().is_none_or(|outer| *end <= outer + 0.01));
            open.push(*end);
        }
    }
    names
}

#[test]
fn a_trace_has_every_stage_and_is_whole_also_when_the_build_fails() {
    let home = tempfile::tempdir().unwrap();
    let (trace, report) = (home.path().join("trace.json"), home.path().join("report.json"));
    let more = [
        "--trace",
        trace.to_str().unwrap(),
        "--report",
        report.to_str().unwrap(),
        "--workers",
        "2",
    ];
    let catalog = home.path().join("c");
    let (_, err) = expect(build_from(&catalog, &golden(), &more).output().unwrap(), 0);
    let names = spans(&trace);
    for name in [
        "build cifar10",
        "read",
        "encode",
        "sort",
        "write",
        "shard 0.0",
        "sync",
        "publish",
    ] {
        assert!(names.iter().any(|found| found == name), "no `{name}`: {names:?}");
    }
    for start in ["read cifar-10", "checksum cifar-10", "verify cifar10-train"] {
        assert!(
            names.iter().any(|found| found.starts_with(start)),
            "no `{start}`: {names:?}"
        );
    }
    let report_text = json(&report);
    assert_eq!(report_text["shards_written"], 2);
    assert!(
        report_text["slowest_shard"]["path"]
            .as_str()
            .unwrap()
            .contains("array_record")
    );
    assert!(report_text["compression_ratio"].as_f64().unwrap() > 0.0);
    assert!(report_text["peak_resident_bytes"].as_u64().unwrap() > 1 << 20);
    for line in ["compression ratio", "slowest: cifar10-", "peak memory"] {
        assert!(err.contains(line), "{err}");
    }

    let other = tempfile::tempdir().unwrap();
    let catalog = home.path().join("d");
    let (_, err) = expect(
        build_from(&catalog, &damaged(other.path()), &more)
            .output()
            .unwrap(),
        1,
    );
    assert!(err.contains("test_batch.bin, record 0"), "{err}");
    assert!(spans(&trace).iter().any(|name| name == "build cifar10"));
    let failed = json(&report);
    assert_eq!(
        (&failed["status"], &failed["name"]),
        (&"failed".into(), &"cifar10".into())
    );
    assert!(
        failed["error"]
            .as_str()
            .unwrap()
            .contains("test_batch.bin, record 0")
    );
    assert!(
        failed["stages"]
            .as_array()
            .unwrap()
            .iter()
            .any(|stage| stage["name"] == "read")
    );
    assert_eq!(
        std::fs::read_dir(home.path()).unwrap().count(),
        4,
        "no staging of the report is left"
    );

    let skip = [&more[..], &["--on-error", "skip"]].concat();
    let (_, err) = expect(
        build_from(&catalog, other.path().to_str().unwrap(), &skip)
            .output()
            .unwrap(),
        3,
    );
    assert!(
        err.contains("left out 1 damaged records of") && err.contains("split `test`"),
        "{err}"
    );
    let skipped = json(&report)["skipped_by"][0].clone();
    assert_eq!(
        (&skipped["split"], &skipped["records"]),
        (&"test".into(), &1.into())
    );
    assert!(skipped["input"].as_str().unwrap().contains("test_batch.bin"));
}

#[test]
fn machines_get_one_object_a_line() {
    let home = tempfile::tempdir().unwrap();
    let (out, _) = expect(
        build_from(home.path(), &golden(), &["--json", "--workers", "2"])
            .output()
            .unwrap(),
        0,
    );
    let lines = json_lines(&out);
    let mut done = 0;
    for line in &lines {
        match line["event"].as_str().unwrap() {
            "progress" => {
                let stages = line["stages"].as_array().unwrap();
                assert!(line["seconds"].is_number() && line["retries"] == 0);
                for stage in stages {
                    assert!(stage["rate"].is_number() && stage["finished"].is_boolean());
                    assert!(stage["eta_seconds"].is_number() || stage["eta_seconds"].is_null());
                }
                let examples = stages.iter().find(|stage| stage["name"] == "write");
                let now = examples.map_or(0, |stage| stage["done"].as_u64().unwrap());
                assert!(now >= done, "progress goes on");
                done = now;
            }
            "note" | "warning" => assert!(line["text"].is_string()),
            "done" => assert_eq!(line["workers"], 2),
            other => panic!("{other}"),
        }
    }
    assert_eq!((done, &lines.last().unwrap()["event"]), (360, &"done".into()));
    let encode = lines.last().unwrap()["stages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|stage| stage["name"] == "encode")
        .unwrap()
        .clone();
    let of_workers = |key: &str| -> u64 {
        let workers = encode["workers"].as_array().unwrap();
        assert_eq!(workers.len(), 2);
        workers.iter().map(|worker| worker[key].as_u64().unwrap()).sum()
    };
    assert_eq!(
        (of_workers("records"), encode["records"].as_u64()),
        (360, Some(360))
    );
}

#[test]
fn a_build_is_drawn_and_nothing_is_written() {
    let home = tempfile::tempdir().unwrap();
    let catalog = home.path().join("c");
    let (out, err) = expect(
        build_from(&catalog, &golden(), &["--explain"]).output().unwrap(),
        0,
    );
    assert_eq!(err, "");
    for line in [
        "build cifar10:3.0.2",
        "cifar-10-binary.tar.gz (",
        "\nencode ",
        " records, ",
        "split `train`: 1 shard",
        "memory: up to",
        "disk: about",
    ] {
        assert!(out.contains(line), "no `{line}`: {out}");
    }
    let (out, _) = expect(
        build_from(&catalog, &golden(), &["--explain=dot"])
            .output()
            .unwrap(),
        0,
    );
    assert!(
        out.starts_with("digraph ") && out.contains("\"sort\" -> \"write\""),
        "{out}"
    );
    let (out, _) = expect(
        build_from(&catalog, &golden(), &["--explain", "--json"])
            .output()
            .unwrap(),
        0,
    );
    let done: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&done["status"], &done["graph"]["stages"][1]["name"]),
        (&"planned".into(), &"read".into())
    );
    assert!(!catalog.exists());
    // What is there already makes no difference.
    expect(build_from(&catalog, &golden(), &[]).output().unwrap(), 0);
    let (out, _) = expect(
        build_from(&catalog, &golden(), &["--explain"]).output().unwrap(),
        0,
    );
    assert!(out.contains("\nsort "), "{out}");
    expect(
        build_from(&catalog, &golden(), &["--explain=png"])
            .output()
            .unwrap(),
        2,
    );
}

#[test]
fn a_server_with_bad_moments_is_asked_again_and_that_is_counted() {
    let home = tempfile::tempdir().unwrap();
    let report = home.path().join("report.json");
    let script = [
        Fault::Status(503),
        Fault::Close,
        Fault::CutAfter(100_000),
        Fault::Busy(1),
    ];
    let server = FileServer::start(source_folder("cifar10"), script);
    let more = ["--report", report.to_str().unwrap()];
    let catalog = home.path().join("c");
    let (_, err) = expect(build_from(&catalog, &server.url(""), &more).output().unwrap(), 0);
    assert_eq!(server.requests().len(), 5);
    assert_eq!(json(&report)["retries"], 4);
    assert!(
        err.contains("; 4 retries") && err.contains("trying again from byte"),
        "{err}"
    );

    // What will not get better is not tried again.
    for status in [403, 404, 410] {
        let server = FileServer::start(source_folder("cifar10"), [Fault::Status(status)]);
        let catalog = home.path().join("d");
        let (_, err) = expect(build_from(&catalog, &server.url(""), &[]).output().unwrap(), 1);
        assert!(err.contains(&format!("the server says {status}")), "{err}");
        assert_eq!(server.requests().len(), 1);
    }
}

/// Starts a build whose server asks to wait for an hour, and waits until it does.
fn waiting(
    catalog: &Path,
    more: &[&str],
    wrap: Option<&str>,
) -> (Child, FileServer, BufReader<std::process::ChildStderr>) {
    let server = FileServer::start(source_folder("cifar10"), [Fault::Busy(3600)]);
    let mut command = build_from(catalog, &server.url(""), more);
    if let Some(shell) = wrap {
        let mut words = vec![
            "-c".to_owned(),
            shell.to_owned(),
            env!("CARGO_BIN_EXE_prep").to_owned(),
        ];
        words.extend(command.get_args().map(|word| word.to_str().unwrap().to_owned()));
        let mut wrapped = Command::new("sh");
        wrapped
            .args(words)
            .env("PREP_CATALOG", catalog)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command = wrapped;
    }
    let mut child = command.spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("trying again") {
        line.clear();
        assert!(err.read_line(&mut line).unwrap() > 0, "it ended before it waited");
    }
    (child, server, err)
}

fn rest(mut err: impl BufRead) -> String {
    let mut text = String::new();
    err.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_stop_ends_the_waiting_at_once_and_leaves_a_report() {
    let home = tempfile::tempdir().unwrap();
    let report = home.path().join("report.json");
    for signal in ["INT", "TERM", "HUP"] {
        let more = ["--report", report.to_str().unwrap()];
        let (mut child, _server, err) = waiting(&home.path().join("c"), &more, None);
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let err = rest(err);
        assert!(err.contains("stopped building `cifar10`, as asked"), "{err}");
        assert!(err.contains("hint: the same command goes on from here"), "{err}");
        let report = json(&report);
        assert_eq!(
            (&report["status"], &report["retries"]),
            (&"stopped".into(), &1.into())
        );
    }
}

#[test]
fn under_nohup_the_end_of_the_terminal_means_nothing() {
    let home = tempfile::tempdir().unwrap();
    let shell = "trap '' HUP; exec \"$0\" \"$@\"";
    let (mut child, _server, err) = waiting(home.path(), &[], Some(shell));
    send(&child, "HUP");
    // Had that counted, this would be the second signal, which ends the process without a word.
    send(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let err = rest(err);
    assert!(err.contains("stopped building `cifar10`, as asked"), "{err}");
}

#[test]
fn closed_outputs_stop_nothing() {
    let home = tempfile::tempdir().unwrap();
    for (index, more) in [&[][..], &["--json"]].into_iter().enumerate() {
        let catalog = home.path().join(index.to_string());
        let mut child = build_from(&catalog, &golden(), more).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(catalog.join("data/cifar10/3.0.2").exists());
    }
}

/// What does not end by itself is told of while it runs, on lines of their own.
#[test]
fn plain_lines_come_while_a_stage_runs() {
    let home = tempfile::tempdir().unwrap();
    // A server that sends half the file and then nothing.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let mut child = build_from(home.path(), &address, &[]).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n\x1f\x8b")
        .unwrap();
    stream.write_all(&[7; 1_000_000]).unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(" of ") {
        line.clear();
        assert!(err.read_line(&mut line).unwrap() > 0, "no line of progress");
    }
    assert!(
        line.starts_with("fetch cifar-10-binary.tar.gz: ") && line.contains("/s"),
        "{line}"
    );
    send(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn room_is_looked_for_where_the_output_goes() {
    let Some(disk) = SmallDisk::mount(200) else {
        return;
    };
    // A small disk below the current folder and the one for temporary files means nothing.
    let home = tempfile::tempdir().unwrap();
    let mut command = build_from(&home.path().join("c"), &golden(), &[]);
    command.current_dir(disk.path()).env("TMPDIR", disk.path());
    expect(command.output().unwrap(), 0);
    // And it does below the output, however large the one of the catalog is.
    let data = disk.path().join("data");
    let (_, err) = expect(
        build_from(
            &home.path().join("d"),
            &golden(),
            &["--data-dir", data.to_str().unwrap()],
        )
        .output()
        .unwrap(),
        1,
    );
    assert!(
        err.contains("not enough room at") && err.contains(data.to_str().unwrap()),
        "{err}"
    );
}

#[test]
fn a_full_spill_folder_is_told_as_such_and_another_one_helps() {
    use prep_jobs::recipe::builtin;
    use prep_jobs::{BuildRequest, readers::RecipeBuilder};

    let Some(disk) = SmallDisk::mount(100) else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let request = |catalog: &str| {
        BuildRequest::new(std::sync::Arc::new(RecipeBuilder::new(
            builtin::find("cifar10").unwrap(),
        )))
        .from(vec![golden()])
        .check_sums(false)
        .workers(1)
        .memory_bytes(1)
        .catalog(home.path().join(catalog).to_str().unwrap())
    };
    let small = request("c").spill_folder(disk.path());
    let monitor = std::sync::Arc::clone(&small.monitor);
    let error = prep_jobs::build(small).unwrap_err();
    let warned = monitor.take_notes();
    assert!(
        warned
            .iter()
            .any(|note| note.warning && note.text.contains("not be enough room in the spill folder")),
        "{warned:?}"
    );
    let text = format!("{error:#}");
    assert!(text.contains("no space is left in the spill folder"), "{text}");
    assert!(
        text.contains("more are needed") && text.contains("are free"),
        "{text}"
    );
    let hint = &prep_jobs::error::find::<prep_jobs::error::Hinted>(&error)
        .unwrap()
        .hint;
    assert!(
        hint.contains("--spill-dir") && hint.contains("--memory"),
        "{hint}"
    );

    let spill = tempfile::tempdir().unwrap();
    let outcome = prep_jobs::build(request("c").spill_folder(spill.path())).unwrap();
    assert!(outcome.spilled_bytes > 0);
    prep_jobs::build(request("d")).unwrap();
    assert_same_folder(home.path().join("c/data"), home.path().join("d/data"));
}
