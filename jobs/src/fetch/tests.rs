//! Downloads from servers that misbehave.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};

use prep_formats::store::{Existing, Location, ObjectFile, Output};
use prep_testing::server::{Fault, FileServer};
use sha2::{Digest, Sha256};
use url::Url;

use super::*;
use crate::builder::SourcePlace;
use crate::error::Cancelled;

/// A source of this many bytes, a folder that serves it, and one to download to.
struct Case {
    served: tempfile::TempDir,
    folder: tempfile::TempDir,
    data: Vec<u8>,
    monitor: Arc<Monitor>,
    done: AtomicUsize,
}

impl Case {
    fn new(bytes: usize) -> Self {
        // Not compressible, and not text.
        let data: Vec<u8> = (0..bytes as u64)
            .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        let served = tempfile::tempdir().unwrap();
        std::fs::write(served.path().join("data.bin"), &data).unwrap();
        Self {
            served,
            folder: tempfile::tempdir().unwrap(),
            data,
            monitor: Monitor::new(),
            done: AtomicUsize::new(0),
        }
    }

    fn spec(&self, url: &str) -> SourceSpec {
        SourceSpec {
            name: "data.bin".to_owned(),
            place: SourcePlace::Url(Url::parse(url).unwrap()),
            bytes: Some(self.data.len() as u64),
            sha256: Some(Sha256::digest(&self.data).into()),
            ..SourceSpec::path("")
        }
    }

    fn fetch_spec(&self, spec: &SourceSpec, strict: bool) -> Result<Fetched> {
        let located = locate(std::slice::from_ref(spec), &[])?;
        let options = FetchOptions::default()
            .attempts(3)
            .pause(Duration::from_millis(1))
            .stall(Duration::from_millis(200));
        let done = |_: &Fetched| {
            self.done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let specs = std::slice::from_ref(spec);
        let mut all = fetch_all(
            specs,
            &located,
            self.folder.path(),
            strict,
            &options,
            &self.monitor,
            &done,
        )?;
        Ok(all.remove(0))
    }

    fn fetch(&self, server: &FileServer) -> Result<Fetched> {
        self.fetch_spec(&self.spec(&server.url("data.bin")), true)
    }

    fn serve(&self, script: impl IntoIterator<Item = Fault>) -> FileServer {
        FileServer::start(self.served.path(), script)
    }

    /// The source is there, whole, and nothing else.
    fn assert_whole(&self, fetched: &Fetched) {
        assert_eq!(fetched.path, self.folder.path().join("data.bin"));
        assert_eq!(std::fs::read(&fetched.path).unwrap(), self.data);
        assert_eq!(fetched.sha256, Some(Sha256::digest(&self.data).into()));
        assert_eq!(self.files(), ["data.bin"]);
        assert_eq!(self.done.load(Ordering::Relaxed), 1);
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn starts(server: &FileServer) -> Vec<Option<u64>> {
    server
        .requests()
        .iter()
        .map(|request| request.range_start)
        .collect()
}

#[test]
fn a_connection_dropped_twice_goes_on_by_range() {
    let case = Case::new(1_000_000);
    let server = case.serve([Fault::CutAfter(600_000), Fault::CutAfter(240_000)]);
    case.assert_whole(&case.fetch(&server).unwrap());
    assert_eq!(starts(&server), [None, Some(600_000), Some(840_000)]);
}

#[test]
fn a_server_that_ignores_ranges_makes_it_start_anew() {
    let case = Case::new(300_000);
    let server = case.serve([Fault::CutAfter(200_000), Fault::IgnoreRange]);
    case.assert_whole(&case.fetch(&server).unwrap());
    assert_eq!(starts(&server), [None, Some(200_000)]);
}

#[test]
fn a_part_of_an_earlier_run_is_continued() {
    let case = Case::new(500_000);
    let server = case.serve([Fault::CutAfter(300_000), Fault::Close, Fault::Close, Fault::Close]);
    let error = case.fetch(&server).unwrap_err();
    assert!(error.to_string().contains("gave up after 3 attempts"), "{error}");
    assert_eq!(case.files(), ["data.bin.part", "data.bin.part.json"]);

    let again = case.fetch(&server).unwrap();
    case.assert_whole(&again);
    assert_eq!(starts(&server).last(), Some(&Some(300_000)));
}

#[test]
fn what_is_there_whole_is_not_fetched_again() {
    let case = Case::new(1000);
    let server = case.serve([]);
    case.fetch(&server).unwrap();
    let again = case.fetch(&server).unwrap();
    assert_eq!((again.bytes, again.sha256), (1000, None));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_busy_server_is_asked_again() {
    let case = Case::new(1000);
    let server = case.serve([Fault::Status(503), Fault::Status(429)]);
    case.assert_whole(&case.fetch(&server).unwrap());
    assert_eq!(server.requests().len(), 3);
    assert!(case.monitor.take_notes().iter().all(|note| note.warning));
    assert_eq!(case.monitor.snapshot().facts.retries, 2);
}

#[test]
fn the_pause_is_the_one_that_the_server_asks_for() {
    let case = Case::new(1000);
    let server = case.serve([Fault::Busy(1)]);
    let began = std::time::Instant::now();
    case.assert_whole(&case.fetch(&server).unwrap());
    // The pause of the options is a millisecond.
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_server_that_only_ever_sends_a_little_is_left_in_the_end() {
    let case = Case::new(1000);
    let server = case.serve((1..100).map(|_| Fault::CutAfter(1)));
    let spec = case.spec(&server.url("data.bin"));
    let located = locate(std::slice::from_ref(&spec), &[]).unwrap();
    let options = FetchOptions::default()
        .attempts(1000)
        .pause(Duration::from_millis(1))
        .patience(Duration::from_millis(5));
    let folder = case.folder.path();
    let all = fetch_all(&[spec], &located, folder, true, &options, &case.monitor, &|_| {
        Ok(())
    });
    let error = all.unwrap_err().to_string();
    assert!(error.contains(" attempts in "), "{error}");
    assert!(server.requests().len() < 99, "it was left in the end");
}

#[test]
fn many_sources_are_looked_at_in_sight_and_the_look_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.bin");
    std::fs::write(&path, "x").unwrap();
    let monitor = Monitor::new();
    let watched = Arc::clone(&monitor);
    let look = std::thread::spawn(move || {
        let specs = vec![SourceSpec::path(&path); 300_000];
        let located = locate(&specs, &[])?;
        let options = FetchOptions::default();
        fetch_all(&specs, &located, folder.path(), true, &options, &watched, &|_| {
            Ok(())
        })
    });
    let mut done = Vec::new();
    while done.len() < 5 && !look.is_finished() {
        if let Some(stage) = monitor.stages().first().filter(|stage| stage.done > 0) {
            assert_eq!(
                (stage.name.as_str(), stage.total),
                ("look at sources", Some(300_000))
            );
            done.push(stage.done);
        }
        std::thread::yield_now();
    }
    monitor.cancel();
    assert!(done.is_sorted() && !done.is_empty());
    let error = look.join().unwrap().unwrap_err();
    assert!(error.is::<Cancelled>(), "{error}");
}

#[test]
fn many_downloads_are_shown_as_one() {
    let case = Case::new(1000);
    for index in 0..MANY_DOWNLOADS {
        std::fs::write(case.served.path().join(format!("{index}.bin")), &case.data).unwrap();
    }
    let server = case.serve([Fault::CutAfter(300)]);
    let specs: Vec<SourceSpec> = (0..MANY_DOWNLOADS)
        .map(|index| {
            let mut spec = case.spec(&server.url(&format!("{index}.bin")));
            spec.name = format!("{index}.bin");
            spec
        })
        .collect();
    let located = locate(&specs, &[]).unwrap();
    let options = FetchOptions::default().pause(Duration::from_millis(1));
    let folder = case.folder.path();
    fetch_all(&specs, &located, folder, true, &options, &case.monitor, &|_| {
        Ok(())
    })
    .unwrap();
    let stages = case.monitor.stages();
    assert_eq!(stages.len(), 1);
    let total = 1000 * MANY_DOWNLOADS as u64;
    assert_eq!(
        (stages[0].done, stages[0].total, stages[0].finished),
        (total, Some(total), true)
    );
}

#[test]
fn a_missing_file_is_not_asked_for_twice() {
    let case = Case::new(1000);
    let server = case.serve([Fault::Status(404)]);
    let error = format!("{:#}", case.fetch(&server).unwrap_err());
    assert!(error.contains("404") && error.contains("/data.bin"), "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_web_page_is_recognised_and_not_kept() {
    let case = Case::new(200_000);
    let server = case.serve([Fault::WebPage]);
    let error = format!("{:#}", case.fetch(&server).unwrap_err());
    for part in [
        "looks like a web page",
        "expected 200000 bytes",
        "text/html",
        "bytes of type",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(server.requests().len(), 1);
    // The page is not reused.
    case.assert_whole(&case.fetch(&server).unwrap());
}

#[test]
fn a_web_page_is_refused_without_checksums_too() {
    let case = Case::new(2000);
    let server = case.serve([Fault::WebPage]);
    assert!(
        case.fetch_spec(&case.spec(&server.url("data.bin")), false)
            .is_err()
    );
}

#[test]
fn a_garbled_file_is_refused_and_not_kept() {
    let case = Case::new(5000);
    let server = case.serve([Fault::Garble(4000)]);
    let error = case.fetch(&server).unwrap_err();
    assert!(error.to_string().contains("its SHA-256 is"), "{error}");
    assert!(case.files().is_empty());
}

#[test]
fn pieces_that_do_not_fit_are_fetched_anew_as_a_whole() {
    let case = Case::new(5000);
    let server = case.serve([Fault::CutAfter(3000), Fault::Garble(4000)]);
    case.assert_whole(&case.fetch(&server).unwrap());
    assert_eq!(starts(&server), [None, Some(3000), None]);
}

#[test]
fn a_file_of_another_length_is_refused_before_it_is_read() {
    let case = Case::new(5000);
    let server = case.serve([]);
    let mut spec = case.spec(&server.url("data.bin"));
    for wanted in [4999, 5001] {
        spec.bytes = Some(wanted);
        let error = format!("{:#}", case.fetch_spec(&spec, true).unwrap_err());
        assert!(
            error.contains("5000 bytes") && error.contains(&wanted.to_string()),
            "{error}"
        );
    }
    // Taken where the user insists, with the hash of what came.
    let fetched = case.fetch_spec(&spec, false).unwrap();
    assert_eq!(fetched.bytes, 5000);
}

#[test]
fn a_server_that_goes_silent_is_left() {
    let case = Case::new(400);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/data.bin", listener.local_addr().unwrap());
    let data = case.data.clone();
    let server = std::thread::spawn(move || {
        // The first connection stalls in the middle, and stays open until the second has come.
        let (mut first, _) = listener.accept().unwrap();
        first
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\nETag: \"x\"\r\n\r\n")
            .unwrap();
        first.write_all(&data[..100]).unwrap();
        let (mut second, _) = listener.accept().unwrap();
        let head = "HTTP/1.1 206 OK\r\nContent-Length: 300\r\nContent-Range: bytes 100-399/400\r\nConnection: close\r\n\r\n";
        second.write_all(head.as_bytes()).unwrap();
        second.write_all(&data[100..]).unwrap();
        let _ = second.shutdown(std::net::Shutdown::Write);
        let _ = std::io::copy(&mut second, &mut std::io::sink());
    });
    case.assert_whole(&case.fetch_spec(&case.spec(&url), true).unwrap());
    server.join().unwrap();
}

#[test]
fn a_stopped_job_leaves_its_part() {
    let case = Case::new(1000);
    let server = case.serve([Fault::CutAfter(500)]);
    case.monitor.cancel();
    let error = case.fetch(&server).unwrap_err();
    assert!(error.is::<Cancelled>(), "{error:#}");
}

#[test]
fn several_sources_come_in_their_order() {
    let served = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = FileServer::start(served.path(), []);
    let specs: Vec<SourceSpec> = (0..10)
        .map(|i| {
            let name = format!("{i}.bin");
            std::fs::write(served.path().join(&name), vec![i; 100 + usize::from(i)]).unwrap();
            SourceSpec {
                place: SourcePlace::Url(Url::parse(&server.url(&name)).unwrap()),
                name,
                bytes: None,
                sha256: None,
                ..SourceSpec::path("")
            }
        })
        .collect();
    let located = locate(&specs, &[]).unwrap();
    let monitor = Monitor::new();
    let fetched = fetch_all(
        &specs,
        &located,
        folder.path(),
        true,
        &FetchOptions::default(),
        &monitor,
        &|_| Ok(()),
    )
    .unwrap();
    let sizes: Vec<u64> = fetched.iter().map(|source| source.bytes).collect();
    assert_eq!(sizes, (100..110).collect::<Vec<u64>>());
}

#[test]
fn local_files_are_used_where_they_lie() {
    let case = Case::new(1000);
    let path = case.served.path().join("data.bin");
    let mut spec = case.spec("https://example.org/data.bin");
    spec.place = SourcePlace::Path(path.clone());
    let fetched = case.fetch_spec(&spec, true).unwrap();
    assert_eq!((fetched.path.as_path(), fetched.sha256), (path.as_path(), None));
    assert!(case.files().is_empty());

    spec.bytes = Some(7);
    let error = case.fetch_spec(&spec, true).unwrap_err();
    assert!(
        error.to_string().contains("has 1000 bytes; the recipe says 7"),
        "{error}"
    );
    std::fs::write(&path, "<!DOCTYPE html><p>Not found").unwrap();
    let error = case.fetch_spec(&spec, true).unwrap_err();
    assert!(error.to_string().contains("looks like a web page"), "{error}");
    spec.place = SourcePlace::Path(case.served.path().to_owned());
    assert!(
        case.fetch_spec(&spec, true)
            .unwrap_err()
            .to_string()
            .contains("is not a file")
    );
}

#[test]
fn checksums_are_compared_with_both_sides_named() {
    let case = Case::new(1000);
    let mut spec = case.spec("https://example.org/data.bin");
    spec.place = SourcePlace::Path(case.served.path().join("data.bin"));
    let fetched = case.fetch_spec(&spec, true).unwrap();
    let sums = ChecksumThread::start(
        &[SourceSpec::path("x")],
        std::slice::from_ref(&fetched),
        &case.monitor,
    )
    .unwrap()
    .join()
    .unwrap();
    assert!(checksum::compare(&spec, &fetched.path, &sums[0]).is_ok());
    spec.sha256 = Some([7; 32]);
    let error = checksum::compare(&spec, &fetched.path, &sums[0])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&hex::encode(sums[0].sha256)) && error.contains(&hex::encode([7; 32])),
        "{error}"
    );
}

#[test]
fn an_object_goes_on_where_it_stopped_as_long_as_it_is_the_same() {
    let case = Case::new(3_000_000);
    let url = "memory:///fetch/data.bin";
    let put = |data: &[u8]| {
        let mut output = Output::create(&Location::parse(url).unwrap(), Existing::Replace).unwrap();
        output.write_all(data).unwrap();
        output.commit().unwrap();
        ObjectFile::open(&Location::parse(url).unwrap())
            .unwrap()
            .tag()
            .map(str::to_owned)
    };
    let tag = put(&case.data);
    assert!(tag.is_some());
    let spec = SourceSpec {
        bytes: None,
        sha256: None,
        ..case.spec(url)
    };
    // What is here of it is told from what is there.
    let part = vec![7; 1_000_001];
    let leave_part = || {
        std::fs::write(case.folder.path().join("data.bin.part"), &part).unwrap();
        let state = serde_json::json!({"url": url, "etag": tag, "last_modified": null});
        std::fs::write(case.folder.path().join("data.bin.part.json"), state.to_string()).unwrap();
    };
    leave_part();
    let fetched = case.fetch_spec(&spec, true).unwrap();
    let joined = [part.as_slice(), &case.data[part.len()..]].concat();
    assert!(std::fs::read(&fetched.path).unwrap() == joined);
    assert_eq!(fetched.sha256, Some(Sha256::digest(&joined).into()));
    // Another object of that name: from its start.
    std::fs::remove_file(&fetched.path).unwrap();
    leave_part();
    let other: Vec<u8> = case.data.iter().rev().copied().collect();
    put(&other);
    let fetched = case.fetch_spec(&spec, true).unwrap();
    assert!(std::fs::read(&fetched.path).unwrap() == other);
    assert_eq!(case.files(), ["data.bin"]);
    // One that is not the recipe's, and one that is not there.
    std::fs::remove_file(&fetched.path).unwrap();
    let error = case.fetch_spec(&case.spec(url), true).unwrap_err();
    assert!(format!("{error:#}").contains("its SHA-256 is"), "{error:#}");
    let error = case
        .fetch_spec(&case.spec("memory:///fetch/none/data.bin"), true)
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("memory:///fetch/none/data.bin"),
        "{error:#}"
    );
}

#[test]
fn a_store_in_from_is_asked_what_it_has() {
    let case = Case::new(10);
    let folder = Location::parse("memory:///from").unwrap();
    let mut output = Output::create(&folder.join("data.bin"), Existing::Replace).unwrap();
    output.write_all(&case.data).unwrap();
    output.commit().unwrap();
    let mut spec = case.spec("https://example.org/data.bin");
    let located = locate(std::slice::from_ref(&spec), &["memory:///from".to_owned()]).unwrap();
    assert_eq!(
        located,
        [Located::Url(Url::parse("memory:///from/data.bin").unwrap())]
    );
    spec.name = "other.bin".to_owned();
    let error = locate(&[spec], &["memory:///from".to_owned()]).unwrap_err();
    assert!(
        error.to_string().contains("memory:///from does not have it"),
        "{error}"
    );
    let error = locate(&[case.spec("https://x.org/a")], &["ftp://x.org/".to_owned()]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`ftp:` is not supported; there are `https:`"),
        "{error}"
    );
}
