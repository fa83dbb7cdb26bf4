//! What is noted of a job: its trace, and the time that stages take.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use prep_dataflow::trace::Trace;
use prep_dataflow::{Collected, Error, Options, Progress, SortOptions, run};
use serde_json::Value;

use crate::support::{Memory, write};

fn events(path: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Checks that the spans of each thread nest, and gives their names.
fn check_nesting(events: &[Value]) -> Vec<String> {
    let mut threads: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let spans = events.iter().filter(|event| event["ph"] == "X");
    let mut names = Vec::new();
    for span in spans {
        let (start, duration) = (span["ts"].as_f64().unwrap(), span["dur"].as_f64().unwrap());
        assert!(start >= 0.0 && duration >= 0.0, "{span}");
        let thread = threads.entry(span["tid"].as_u64().unwrap()).or_default();
        thread.push((start, start + duration));
        names.push(span["name"].as_str().unwrap().to_owned());
    }
    // Times are rounded to nanoseconds, and those of operators come from another clock's reading.
    let slack = 0.01;
    for spans in threads.values_mut() {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<(f64, f64)> = Vec::new();
        for span in spans {
            while open.last().is_some_and(|outer| outer.1 <= span.0 + slack) {
                open.pop();
            }
            assert!(
                open.last().is_none_or(|outer| span.1 <= outer.1 + slack),
                "{span:?} crosses {open:?}"
            );
            open.push(*span);
        }
    }
    names
}

#[test]
fn a_trace_shows_operators_and_the_threads_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    for workers in [1, 2] {
        let path = folder.path().join(format!("{workers}.json"));
        let progress = Progress::new();
        let options = Options::default()
            .workers(workers)
            .memory_bytes(1)
            .spill_folder(folder.path())
            .progress(progress.clone())
            .trace(Trace::create(&path, 0).unwrap());
        let sources = [30_000, 30_000];
        write(
            options,
            &sources,
            &[3],
            100,
            SortOptions::new(1),
            &Memory::default(),
        )
        .unwrap();
        let events = events(&path);
        let names = check_nesting(&events);
        for name in [
            "Read",
            "Make",
            "Order",
            "Write",
            "sort a run",
            "spill",
            "merge",
            "shard 0.0",
            "shard 0.2",
            "finish",
        ] {
            assert!(
                names.iter().any(|found| found == name),
                "no `{name}` in the trace"
            );
        }
        let threads: Vec<&str> = events
            .iter()
            .filter(|event| event["name"] == "thread_name")
            .filter_map(|event| event["args"]["name"].as_str())
            .collect();
        for thread in ["prep Read", "prep Order", "prep Write"] {
            assert!(threads.contains(&thread), "{threads:?}");
        }
        assert!(events.iter().any(|event| event["name"] == "memory held"));

        let stages = progress.stages();
        for name in ["Read", "Make", "Order", "Write"] {
            let stage = stages.iter().find(|stage| stage.name == name).unwrap();
            assert!(stage.busy > Duration::ZERO, "{stage:?}");
            assert_eq!(stage.records, 60_000, "{stage:?}");
            let sum: u64 = stage.workers.iter().map(|worker| worker.records).sum();
            assert_eq!((stage.workers.len(), sum), (workers, 60_000), "{stage:?}");
        }
    }
}

#[test]
fn the_trace_of_a_failed_job_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let trace = Trace::create(&path, 0).unwrap();
    let options = Options::default().workers(2).trace(trace.clone());
    let place = Collected::new();
    let result = run(options, move |pipeline| {
        pipeline
            .source("Read", vec![0, 1], |_| {
                Ok::<_, Error>((0..100_000u64).map(|index| {
                    if index == 50_000 {
                        panic!("a reader's bug");
                    }
                    Ok::<_, Error>(vec![0; 10])
                }))
            })
            .collect(&place);
    });
    assert!(matches!(result, Err(Error::Panic { .. })), "{result:?}");
    trace.finish().unwrap();
    let names = check_nesting(&events(&path));
    assert!(names.iter().any(|name| name == "Read"));
}
