//! Several processes as threads of one; real processes are in `tests/it/cluster.rs` of the workspace.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::{Cluster, ClusterSpec};
use crate::{Cancel, Collected, Error, Options, Record, SortOptions, SplitPlan, run};

/// Free places on this machine.
fn hosts(count: usize) -> Vec<String> {
    // All are held at once, so that they differ.
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap().to_string())
        .collect()
}

/// The specifications of one cluster.
fn specs(count: usize) -> Vec<ClusterSpec> {
    let hosts = hosts(count);
    (0..count)
        .map(|index| ClusterSpec::new(hosts.clone(), index, "a secret").wait(Duration::from_secs(20)))
        .collect()
}

/// Runs `body` for each process on a thread; gives what they return, by process.
fn each<T: Send>(specs: Vec<ClusterSpec>, body: impl Fn(Result<Cluster, Error>) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = specs
            .into_iter()
            .map(|spec| scope.spawn(|| body(Cluster::connect(spec))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn texts<T>(results: &[Result<T, Error>]) -> Vec<String> {
    let text = |result: &Result<T, Error>| match result {
        Ok(_) => "fine".to_owned(),
        Err(error) => error.to_string(),
    };
    results.iter().map(text).collect()
}

#[test]
fn values_go_out_and_come_in() {
    let ends = each(specs(3), |cluster| {
        let cluster = cluster.unwrap();
        let index = cluster.index();
        let large = vec![7; 3 << 20];
        let plan = cluster
            .broadcast(cluster.is_leader().then(|| large.clone()))
            .unwrap();
        assert_eq!(plan, large);
        let gathered = cluster.gather(vec![index as u8; index]).unwrap();
        let wanted = cluster.is_leader().then(|| vec![vec![], vec![1], vec![2, 2]]);
        assert_eq!(gathered, wanted);
        cluster.barrier().unwrap();
        cluster.broadcast(cluster.is_leader().then(Vec::new)).unwrap();
        (index, cluster.len(), cluster.is_leader())
    });
    assert_eq!(ends, [(0, 3, true), (1, 3, false), (2, 3, false)]);
}

#[test]
fn a_cluster_of_one_needs_no_network() {
    let cluster = Cluster::connect(ClusterSpec::new(["nowhere.invalid:1"], 0, "s")).unwrap();
    assert_eq!(cluster.broadcast(Some(vec![1])).unwrap(), [1]);
    assert_eq!(cluster.gather(vec![2]).unwrap().unwrap(), [[2]]);
    cluster.barrier().unwrap();
    cluster.report(vec![3]);
    assert_eq!(cluster.reports(), [Some(vec![3])]);
    run(Options::default().cluster(cluster), |_| {}).unwrap();
}

#[test]
fn who_does_not_come_is_named() {
    let all = specs(4);
    let absent = [&all[1].hosts[1], &all[1].hosts[3]].map(String::clone);
    let present = [all[0].clone(), all[2].clone()].map(|spec| spec.wait(Duration::from_millis(600)));
    let results = each(present.into(), |cluster| cluster.map(drop));
    for text in texts(&results) {
        assert!(text.contains("did not come up within 0.6 seconds"), "{text}");
        assert!(text.contains(&format!("process 1 ({})", absent[0])), "{text}");
        assert!(text.contains(&format!("process 3 ({})", absent[1])), "{text}");
        assert!(!text.contains("process 0 ("), "{text}");
    }
}

#[test]
fn another_version_or_other_arguments_are_told_on_both_sides() {
    let mut all = specs(2);
    all[1] = all[1].clone().version("9.9.9");
    let names = [all[0].name(0), all[0].name(1)];
    for text in texts(&each(all, |cluster| cluster.map(drop))) {
        assert!(text.contains(&names[0]) && text.contains(&names[1]), "{text}");
        assert!(
            text.contains("different versions") && text.ends_with("and 9.9.9"),
            "{text}"
        );
    }
    let mut all = specs(3);
    for spec in &mut all {
        *spec = spec.clone().arguments(["build", "cifar10", "--shards 2"]);
    }
    all[2] = all[2].clone().arguments(["build", "cifar10", "--shards 4"]);
    let texts = texts(&each(all, |cluster| cluster.map(drop)));
    for text in &texts {
        assert!(
            text.contains("different arguments: `--shards 2` and `--shards 4`"),
            "{texts:?}"
        );
        assert!(text.contains("process 2 ("), "{text}");
    }
    let (mut two, three) = (specs(2), specs(3));
    two[0].hosts[1] = three[2].hosts[2].clone();
    let mut third = three[2].clone();
    third.hosts[0] = two[0].hosts[0].clone();
    let pair = vec![two[0].clone().wait(Duration::from_secs(3)), third];
    let results = each(pair, |cluster| cluster.map(drop));
    for result in results {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("of 2 and of 3 processes"), "{text}");
    }
}

#[test]
fn another_secret_is_told_and_refused() {
    let all = specs(2);
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let told = warnings.clone();
    let first = all[0]
        .clone()
        .wait(Duration::from_secs(2))
        .warn(move |text| told.lock().unwrap().push(text));
    let mut second = all[1].clone();
    second.secret = b"another".to_vec();
    let results = each(vec![first, second], |cluster| cluster.map(drop));
    let texts = texts(&results);
    assert!(
        texts[0].contains("did not come up") && texts[0].contains("process 1"),
        "{texts:?}"
    );
    assert!(
        texts[1].contains("another secret") && texts[1].contains("process 0"),
        "{texts:?}"
    );
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("127.0.0.1") && warnings[0].contains("secret"),
        "{warnings:?}"
    );
}

/// Strangers of each kind that stay for as long as they like; gives the connections that have to stay open.
fn strangers(address: &str) -> Vec<TcpStream> {
    let connect = || TcpStream::connect(address).unwrap();
    let mut open = Vec::new();
    // Connect and close.
    drop(connect());
    // Connect and silence.
    open.push(connect());
    // Another protocol, and garbage.
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 4096], b"pre"] {
        let mut stream = connect();
        // It may hang up at once.
        let _ = stream.write_all(bytes);
        open.push(stream);
    }
    // An impostor who knows the framing: a hello from process 1, and a proof of zeros; then a lot more.
    for kind in [0, 1] {
        let mut hello = [0; 80];
        hello[..8].copy_from_slice(b"prepnet\x01");
        hello[8] = kind;
        hello[16] = 1;
        let mut stream = connect();
        stream.write_all(&hello).unwrap();
        let mut challenge = [0; 72];
        stream.read_exact(&mut challenge).unwrap();
        let _ = stream.write_all(&[0; 32]);
        let _ = stream.write_all(&[0xff; 1 << 16]);
        let mut verdict = [0];
        assert!(
            stream.read(&mut verdict).map_or(true, |count| count == 0),
            "an impostor was answered"
        );
        // A reflection of the listener's own proof is none.
        let mut stream = connect();
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut challenge).unwrap();
        let _ = stream.write_all(&challenge[40..]);
        assert!(
            stream.read(&mut verdict).map_or(true, |count| count == 0),
            "a reflection was taken"
        );
    }
    open
}

#[test]
fn strangers_are_refused_while_processes_meet_and_later() {
    let warnings = Arc::new(Mutex::new(Vec::<String>::new()));
    let mut all = specs(3);
    let address = all[0].hosts[0].clone();
    let told = warnings.clone();
    all[0] = all[0].clone().warn(move |text| told.lock().unwrap().push(text));
    let rest = all.split_off(1);
    let (met, meeting) = mpsc::channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let cluster = Cluster::connect(all.remove(0)).unwrap();
            met.send(()).unwrap();
            cluster.broadcast(Some(vec![1])).unwrap();
            cluster.gather(vec![]).unwrap();
            cluster.barrier().unwrap();
        });
        // The listener is there once something connects.
        while TcpStream::connect(&address).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let early = strangers(&address);
        let others = scope.spawn(|| {
            each(rest, |cluster| {
                let cluster = cluster.unwrap();
                cluster.broadcast(None).unwrap();
                let late = strangers(&address);
                cluster.gather(vec![]).unwrap();
                cluster.barrier().unwrap();
                late
            })
        });
        meeting.recv().unwrap();
        drop((first.join().unwrap(), others.join().unwrap(), early));
    });
    let warnings = warnings.lock().unwrap();
    let told = |what: &str| warnings.iter().filter(|text| text.contains(what)).count();
    assert_eq!(told("not from a process of prep"), 1, "{warnings:?}");
    assert_eq!(told("closed the connection"), 1, "{warnings:?}");
    assert_eq!(told("another secret"), 1, "{warnings:?}");
}

#[test]
fn a_process_that_fails_tells_the_others_why() {
    let results = each(specs(3), |cluster| {
        // The word may come before this one has heard that all have met.
        let cluster = cluster?;
        if cluster.index() == 1 {
            cluster.fail("the disk is on fire");
        }
        let result = cluster.barrier();
        assert!(cluster.failure().is_some());
        result
    });
    let texts = texts(&results);
    assert_eq!(texts[1], "the disk is on fire");
    for text in [&texts[0], &texts[2]] {
        assert!(
            text.starts_with("process 1 (127.0.0.1:") && text.ends_with("failed: the disk is on fire"),
            "{texts:?}"
        );
    }
}

#[test]
fn a_process_that_leaves_early_is_missed() {
    let results = each(specs(2), |cluster| {
        let cluster = cluster.unwrap();
        if cluster.index() == 1 {
            return Ok(());
        }
        cluster.gather(vec![]).map(drop)
    });
    let text = results[0].as_ref().unwrap_err().to_string();
    assert!(
        text.starts_with("process 1 (") && text.ends_with("it ended before the job was done"),
        "{text}"
    );
}

#[test]
fn a_panic_outside_of_runs_is_told() {
    let all = specs(2);
    std::thread::scope(|scope| {
        let panicking = scope.spawn(|| {
            let cluster = Cluster::connect(all[1].clone()).unwrap();
            cluster.barrier().unwrap();
            std::panic::resume_unwind(Box::new("as a test"));
        });
        let cluster = Cluster::connect(all[0].clone()).unwrap();
        cluster.barrier().unwrap();
        let text = cluster.gather(vec![]).unwrap_err().to_string();
        assert!(
            text.starts_with("process 1 (") && text.ends_with("it panicked"),
            "{text}"
        );
        assert!(panicking.join().is_err());
    });
}

#[test]
fn reports_reach_the_leader() {
    each(specs(2), |cluster| {
        let cluster = cluster.unwrap();
        cluster.report(vec![cluster.index() as u8 + 10]);
        let wanted = [Some(vec![10]), Some(vec![11])];
        let deadline = Instant::now() + Duration::from_secs(60);
        while cluster.is_leader() && cluster.reports() != wanted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        cluster.barrier().unwrap();
        if cluster.is_leader() {
            assert_eq!(cluster.reports(), wanted);
        }
    });
}

/// Without waiting for a heartbeat: what processes report last would be lost else.
#[test]
fn reports_from_before_a_gather_are_there_after_it() {
    each(specs(3), |cluster| {
        let cluster = cluster.unwrap();
        for round in 0..50u8 {
            cluster.report(vec![round, cluster.index() as u8]);
            let gathered = cluster.gather(Vec::new()).unwrap();
            if gathered.is_some() {
                let wanted = (0..3).map(|process| Some(vec![round, process]));
                assert_eq!(cluster.reports(), wanted.collect::<Vec<_>>());
            }
            cluster.barrier().unwrap();
        }
    });
}

/// What a job does wrong, and in which process.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Error,
    Panic,
    Sink,
    Cancel,
}

struct Digests(Option<u32>);
struct Digest(blake3::Hasher);

impl crate::ShardSink for Digests {
    type Summary = String;
    type Writer = Digest;
    fn open(&self, shard: &crate::Shard) -> Result<Digest, crate::BoxError> {
        if self.0 == Some(shard.index) {
            return Err("the sink is clogged".into());
        }
        Ok(Digest(blake3::Hasher::new()))
    }
}

impl crate::ShardWriter for Digest {
    type Summary = String;
    fn write(&mut self, record: &Record) -> Result<(), crate::BoxError> {
        self.0.update(&record.data);
        Ok(())
    }
    fn finish(self) -> Result<String, crate::BoxError> {
        Ok(self.0.finalize().to_hex().to_string())
    }
}

/// Sorts records of all processes into five shards; the leader gets their digests.
fn job(cluster: Option<&Cluster>, workers: usize, memory: usize, fault: Fault) -> Result<Vec<String>, Error> {
    let index = cluster.map_or(0, Cluster::index);
    let place = Collected::new();
    let collected = place.clone();
    let cancel = Cancel::new();
    let mut options = Options::default()
        .workers(workers)
        .memory_bytes(memory)
        .cancel(cancel.clone());
    if let Some(cluster) = cluster {
        options = options.cluster(cluster.clone());
    }
    let faulty = index == 1 && fault != Fault::None;
    run(options, move |pipeline| {
        assert_eq!(pipeline.process_index(), index);
        let cancel = cancel.clone();
        let numbers =
            |task: u64| Ok::<_, Error>((0..700u64).map(move |number| Ok::<_, Error>((task, number))));
        pipeline
            .source("Read", (0..12u64).collect(), numbers)
            .rebalance()
            .try_map("Encode", move |(task, number): (u64, u64)| {
                if faulty && number == 600 {
                    match fault {
                        Fault::Error => return Err("record 600 is bad"),
                        Fault::Panic => panic!("record 600 is too much"),
                        Fault::Cancel => cancel.cancel(),
                        _ => {}
                    }
                }
                let origin = crate::origin(task as u32, number);
                let key = u128::from(origin)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
                    .to_be_bytes();
                let data = vec![task as u8; number as usize + 1].into();
                Ok(Record {
                    split: 0,
                    key,
                    origin,
                    data,
                })
            })
            .sort("Order", SortOptions::new(1))
            .write_shards(
                "Write",
                |totals| Ok::<_, Error>(vec![SplitPlan::even(totals[0].records, 5)]),
                Digests((fault == Fault::Sink).then_some(4)),
            )
            .collect(&collected);
    })?;
    let mut written = place.take();
    written.sort_by_key(|written| written.shard);
    Ok(written.into_iter().map(|written| written.summary).collect())
}

#[test]
fn any_number_of_processes_writes_the_same() {
    let wanted = job(None, 1, 64 << 20, Fault::None).unwrap();
    assert_eq!(wanted.len(), 5);
    for (processes, workers) in [(2, 1), (2, 2), (3, 1), (3, 2)] {
        let results = each(specs(processes), |cluster| {
            let cluster = cluster.unwrap();
            // The budgets differ: all take the smallest. And one cluster serves many runs.
            let memory = (2 + 20 * cluster.index()) << 20;
            let first = job(Some(&cluster), workers, memory, Fault::None).unwrap();
            cluster.barrier().unwrap();
            let second = job(Some(&cluster), workers, 64 << 20, Fault::None).unwrap();
            (first, second)
        });
        for (process, (first, second)) in results.into_iter().enumerate() {
            let wanted = if process == 0 { wanted.clone() } else { Vec::new() };
            assert_eq!(
                (&first, &second),
                (&wanted, &wanted),
                "{processes} processes of {workers}"
            );
        }
    }
}

#[test]
fn a_fault_in_one_process_ends_all_with_its_cause_and_the_next_run_works() {
    for fault in [Fault::Error, Fault::Panic, Fault::Sink, Fault::Cancel] {
        let results = each(specs(3), |cluster| {
            let cluster = cluster.unwrap();
            let failed = job(Some(&cluster), 2, 16 << 20, fault);
            let again = job(Some(&cluster), 2, 16 << 20, Fault::None).unwrap();
            assert_eq!(again.len(), if cluster.is_leader() { 5 } else { 0 });
            failed
        });
        let texts = texts(&results);
        let cause = match fault {
            Fault::Error => "record 600 is bad",
            Fault::Panic => "record 600 is too much",
            Fault::Sink => "the sink is clogged",
            _ => "the job was cancelled",
        };
        let told = texts.iter().filter(|text| text.contains(cause)).count();
        let remote = results
            .iter()
            .filter(|result| matches!(result, Err(Error::Remote { .. })))
            .count();
        // The process at fault has the error itself, where the text of a stage's error is its source.
        assert!(told >= 2 && remote == 2, "{texts:?}");
    }
}

/// What a process counts, with what serde can leave out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
struct Noted {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    note: Option<u8>,
    number: u64,
}

impl crate::Weigh for Noted {}

#[test]
fn items_whose_serde_form_has_holes_are_told_by_all_processes_and_not_garbled() {
    for (stage, index) in ["Collect", "Exchange", "Numbers", "Small"].into_iter().zip(0..) {
        let run_with = |cluster: Option<&Cluster>, hole: bool| {
            let place = Collected::new();
            let collected = place.clone();
            let options = match cluster {
                Some(cluster) => Options::default().workers(1).cluster(cluster.clone()),
                None => Options::default().workers(1),
            };
            run(options, move |pipeline| {
                let noted = |pipeline: &crate::Pipeline<'_>| -> Vec<u64> {
                    (0..pipeline.num_workers() as u64).collect()
                };
                let items = pipeline.source("Read", noted(pipeline), move |task| {
                    let note = (!hole || task == 0).then_some(7);
                    Ok::<_, Error>((0..10).map(move |number| Ok::<_, Error>(Noted { note, number })))
                });
                match index {
                    0 => items.collect(&collected),
                    1 => items.exchange(|item| item.number).collect(&collected),
                    2 => items.count("Numbers").map(|(item, _)| item).collect(&collected),
                    _ => {
                        let small = items.broadcast_small("Small");
                        let numbers = pipeline.source("More", noted(pipeline), |task| {
                            Ok::<_, Error>([Ok::<_, Error>(Noted {
                                note: Some(1),
                                number: task,
                            })])
                        });
                        numbers
                            .with_small("With", &small, |item, _| Ok::<_, Error>([item]))
                            .collect(&collected);
                    }
                }
            })?;
            Ok::<_, Error>(place.take().len())
        };
        // One process alone doesn't notice, and whole items come through.
        assert!(run_with(None, true).unwrap() > 0);
        for hole in [false, true] {
            let results = each(specs(2), |cluster| run_with(Some(&cluster.unwrap()), hole));
            if !hole {
                assert!(results.iter().all(Result::is_ok), "{results:?}");
                continue;
            }
            for text in texts(&results) {
                assert!(
                    text.contains(&format!("stage `{stage}`")) && text.contains("skip_serializing_if"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn different_numbers_of_workers_are_refused() {
    let results = each(specs(2), |cluster| {
        let cluster = cluster.unwrap();
        job(Some(&cluster), 1 + cluster.index(), 16 << 20, Fault::None)
    });
    for text in texts(&results) {
        assert!(text.contains("worker threads"), "{text}");
    }
}

/// Passes bytes on between two processes until it is told to stop; then nothing passes, but nothing is closed either.
fn relay(to: String) -> (String, Arc<std::sync::atomic::AtomicBool>) {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let cut = Arc::new(AtomicBool::new(false));
    let switch = cut.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (here, there) = (stream.unwrap(), TcpStream::connect(&to));
            let Ok(there) = there else { continue };
            for (mut from, mut into) in [
                (here.try_clone().unwrap(), there.try_clone().unwrap()),
                (there, here),
            ] {
                let cut = switch.clone();
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(count) = from.read(&mut bytes) {
                        if count == 0 {
                            let _ = into.shutdown(Shutdown::Write);
                            break;
                        }
                        if !cut.load(SeqCst) && into.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                });
            }
        }
    });
    (address, cut)
}

#[test]
fn a_silent_process_is_lost_within_seconds() {
    use std::sync::atomic::Ordering::SeqCst;

    // Process 1 reaches process 0 through a relay that swallows everything from some moment on.
    let all = specs(2);
    let (through, cut) = relay(all[0].hosts[0].clone());
    let mut second = all[1].clone();
    second.hosts[0] = through;
    let results = each(vec![all[0].clone(), second], |cluster| {
        let cluster = cluster.unwrap();
        cluster.barrier().unwrap();
        if cluster.index() == 1 {
            cut.store(true, SeqCst);
        }
        let begun = Instant::now();
        let result = cluster.barrier();
        (result, begun.elapsed())
    });
    for (process, (result, took)) in results.into_iter().enumerate() {
        let other = 1 - process;
        match result.unwrap_err() {
            Error::Lost { process, reason, .. } => {
                assert_eq!(process, other);
                // Whoever notices first hangs up.
                let told = ["nothing was heard", "closed the connection", "broke"];
                assert!(told.iter().any(|told| reason.contains(told)), "{reason}");
            }
            error => panic!("{error}"),
        }
        // Five seconds, and room for a busy machine.
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}
