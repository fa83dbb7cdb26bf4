//! Uploads to, and reads from, a server that speaks as much of S3 as they need, and misbehaves by a script.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;

use object_store::aws::AmazonS3Builder;
use object_store::path::Path as ObjectPath;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use super::*;
use crate::store::{ObjectFile, ReadAt, Upload, UploadOptions, block_on};

/// What goes wrong with one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// This status, and nothing is done.
    Status(u16),
    /// Nothing is done and the connection is reset.
    Reset,
    /// All is done, but the connection is reset in place of the answer.
    Lost,
    /// The answer comes after so many milliseconds.
    Slow(u64),
    /// Half of the body comes, and then the end of the connection.
    Cut,
    /// Half of the body comes, and then nothing for as long as the client stays.
    Stall,
    /// No answer, for as long as the client stays.
    Silent,
}

/// A bucket with a script of faults: each is met by the first request of its method.
struct Bucket {
    port: u16,
    shared: Arc<Served>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Served {
    script: Mutex<VecDeque<(&'static str, Fault)>>,
    /// Method and query of each request.
    requests: Mutex<Vec<String>>,
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    parts: Mutex<BTreeMap<u32, Vec<u8>>>,
    aborted: AtomicBool,
    stopped: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bucket {
    fn start(script: impl IntoIterator<Item = (&'static str, Fault)>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Served::default());
        locked(&shared.script).extend(script);
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.stopped.load(Ordering::Acquire) {
                    return;
                }
                let served = Arc::clone(&served);
                // A client that goes away is its own business.
                std::thread::spawn(move || stream.and_then(|stream| served.answer(&stream)));
            }
        });
        Self {
            port,
            shared,
            thread: Some(thread),
        }
    }

    /// A client of the bucket that pauses for milliseconds only, and what it has tried again.
    fn client(&self) -> (Arc<dyn ObjectStore>, &'static AtomicU64) {
        let retries: &'static AtomicU64 = Box::leak(Box::default());
        let connector = Connector {
            retries,
            reach: Duration::from_millis(300),
            silence: Duration::from_millis(400),
        };
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(4),
            base: 2.0,
        };
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = AmazonS3Builder::new()
            .with_endpoint(format!("http://127.0.0.1:{}", self.port))
            .with_client_options(
                ClientOptions::new()
                    .with_allow_http(true)
                    .with_connect_timeout(Duration::from_millis(500)),
            )
            .with_bucket_name("bucket")
            .with_region("here")
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .with_retry(RetryConfig {
                backoff,
                max_retries: 5,
                retry_timeout: Duration::from_secs(20),
            })
            .with_http_connector(connector)
            .build()
            .unwrap();
        (Arc::new(store), retries)
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.shared.requests))
    }

    fn object(&self) -> Option<Vec<u8>> {
        locked(&self.shared.objects).get("/bucket/a/b").cloned()
    }

    fn put(&self, bytes: &[u8]) {
        locked(&self.shared.objects).insert("/bucket/a/b".to_owned(), bytes.to_vec());
    }

    fn script(&self, faults: impl IntoIterator<Item = (&'static str, Fault)>) {
        locked(&self.shared.script).extend(faults);
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn reset(stream: &TcpStream) -> io::Result<()> {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Waits until the client has hung up.
fn wait_for_end(stream: &TcpStream) -> io::Result<()> {
    let mut stream = stream;
    stream.read(&mut [0]).map(drop)
}

impl Served {
    fn answer(&self, stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find_map(|(key, value)| key.eq_ignore_ascii_case(name).then(|| value.to_owned()))
        };
        let length = header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        locked(&self.requests).push(format!("{method} {query}"));
        let fault = {
            let mut script = locked(&self.script);
            let place = script.iter().position(|(of, _)| *of == method);
            place
                .and_then(|place| script.remove(place))
                .map(|(_, fault)| fault)
        };
        match fault {
            Some(Fault::Reset) => return reset(stream),
            Some(Fault::Silent) => return wait_for_end(stream),
            Some(Fault::Status(status)) => {
                let text = "<Error><Code>SlowDown</Code><Message>not now</Message></Error>";
                return send(stream, status, "", text.as_bytes(), text.len());
            }
            Some(Fault::Slow(milliseconds)) => std::thread::sleep(Duration::from_millis(milliseconds)),
            _ => {}
        }
        let conditions = (header("if-none-match").is_some(), header("range"));
        let (status, more, answer) = self.act(method, path, query, conditions, body);
        let (length, sent) = (answer.len(), answer.len() / 2);
        match fault {
            Some(Fault::Lost) => reset(stream),
            Some(Fault::Cut) => send(stream, status, &more, &answer[..sent], length),
            Some(Fault::Stall) => {
                send(stream, status, &more, &answer[..sent], length)?;
                wait_for_end(stream)
            }
            _ if method == "HEAD" => send(stream, status, &more, &[], length),
            _ => send(stream, status, &more, &answer, length),
        }
    }

    /// Does what a request asks for; gives status, headers and body.
    fn act(
        &self,
        method: &str,
        path: &str,
        query: &str,
        (create, range): (bool, Option<String>),
        body: Vec<u8>,
    ) -> (u16, String, Vec<u8>) {
        let none = String::new();
        let part = query.split('&').find_map(|pair| pair.strip_prefix("partNumber="));
        match method {
            "POST" if query.starts_with("uploads") => {
                let text =
                    "<InitiateMultipartUploadResult><UploadId>7</UploadId></InitiateMultipartUploadResult>";
                (200, none, text.into())
            }
            "POST" => {
                let whole = locked(&self.parts).values().flatten().copied().collect();
                locked(&self.objects).insert(path.to_owned(), whole);
                let text =
                    "<CompleteMultipartUploadResult><ETag>\"x\"</ETag></CompleteMultipartUploadResult>";
                (200, none, text.into())
            }
            "PUT" => {
                if create && locked(&self.objects).contains_key(path) {
                    return (412, none, vec![]);
                }
                match part {
                    Some(number) => locked(&self.parts).insert(number.parse().unwrap(), body),
                    None => locked(&self.objects).insert(path.to_owned(), body),
                };
                (200, "ETag: \"x\"\r\n".into(), vec![])
            }
            "DELETE" => {
                self.aborted.store(true, Ordering::SeqCst);
                locked(&self.parts).clear();
                (204, none, vec![])
            }
            _ => {
                let Some(whole) = locked(&self.objects).get(path).cloned() else {
                    return (404, none, vec![]);
                };
                let length = whole.len();
                let tag = "ETag: \"x\"\r\nLast-Modified: Sun, 29 Nov 2026 00:00:00 GMT\r\n";
                let Some(range) = range else {
                    return (200, tag.into(), whole);
                };
                let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                let (start, end) = match from {
                    "" => (length - to.parse::<usize>().unwrap().min(length), length),
                    _ => (
                        from.parse().unwrap(),
                        (to.parse::<usize>().unwrap() + 1).min(length),
                    ),
                };
                let place = format!("{tag}Content-Range: bytes {start}-{}/{length}\r\n", end - 1);
                (206, place, whole[start..end].to_vec())
            }
        }
    }
}

fn send(mut stream: &TcpStream, status: u16, more: &str, body: &[u8], length: usize) -> io::Result<()> {
    let head =
        format!("HTTP/1.1 {status} Answer\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// Bytes without a pattern: of 12 MiB, three parts.
fn large() -> Vec<u8> {
    let mut noise = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise.to_le_bytes()
    };
    (0..12 << 17).flat_map(|_| next()).collect()
}

fn upload(store: &Arc<dyn ObjectStore>, bytes: &[u8]) -> crate::Result<()> {
    let mut upload = Upload::new(
        Arc::clone(store),
        ObjectPath::from("a/b"),
        "s3://bucket/a/b",
        UploadOptions::default().with_part_bytes(5 << 20),
    );
    upload.write_all(bytes).map_err(|source| crate::Error::Io {
        path: "s3://bucket/a/b".into(),
        action: "upload",
        source,
    })?;
    upload.finish()
}

/// Also the causes.
fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

#[test]
fn an_upload_outlasts_faults_of_every_kind_and_they_are_counted() {
    let bytes = large();
    for (script, retries) in [
        (vec![], 0),
        (vec![("HEAD", Fault::Status(503)), ("HEAD", Fault::Reset)], 2),
        (
            vec![("POST", Fault::Status(500)), ("POST", Fault::Status(503))],
            2,
        ),
        (vec![("PUT", Fault::Status(500)), ("PUT", Fault::Status(429))], 2),
        (
            vec![
                ("PUT", Fault::Reset),
                ("PUT", Fault::Lost),
                ("PUT", Fault::Slow(600)),
            ],
            2,
        ),
        (
            vec![
                ("HEAD", Fault::Silent),
                ("PUT", Fault::Status(503)),
                ("PUT", Fault::Reset),
                ("PUT", Fault::Status(502)),
                ("PUT", Fault::Status(408)),
            ],
            5,
        ),
    ] {
        let bucket = Bucket::start(script.clone());
        let (store, counted) = bucket.client();
        upload(&store, &bytes).unwrap_or_else(|error| panic!("{script:?}: {}", told(&error)));
        assert!(
            bucket.object().is_some_and(|found| found == bytes),
            "{script:?}: other bytes"
        );
        assert_eq!(
            counted.load(Ordering::Relaxed),
            retries,
            "{script:?}: {:?}",
            bucket.requests()
        );
        assert!(locked(&bucket.shared.script).is_empty());
        assert!(!bucket.shared.aborted.load(Ordering::SeqCst));
    }
    // An object of one part; also where it has arrived, and the word of that was lost.
    for faults in [
        [Fault::Status(503), Fault::Reset],
        [Fault::Lost, Fault::Status(500)],
    ] {
        let bucket = Bucket::start(faults.map(|fault| ("PUT", fault)));
        let (store, counted) = bucket.client();
        upload(&store, b"small").unwrap_or_else(|error| panic!("{faults:?}: {}", told(&error)));
        assert_eq!(bucket.object().unwrap(), b"small");
        assert_eq!(counted.load(Ordering::Relaxed), 2);
        // Somebody else's object is not taken for ours.
        bucket.put(b"other");
        bucket.script([("PUT", Fault::Reset)]);
        let error = upload(&store, b"small").unwrap_err();
        assert!(
            matches!(&error, crate::Error::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists),
            "{error:?}"
        );
        assert_eq!(bucket.object().unwrap(), b"other");
    }
}

#[test]
fn an_upload_that_never_works_ends_with_address_and_status_and_leaves_nothing() {
    let bytes = large();
    for (method, status, tries) in [
        ("PUT", 503, 6),
        ("PUT", 403, 1),
        ("POST", 500, 6),
        ("HEAD", 400, 1),
    ] {
        let bucket = Bucket::start(vec![(method, Fault::Status(status)); 100]);
        let (store, _) = bucket.client();
        let error = told(&upload(&store, &bytes).unwrap_err());
        assert!(
            error.contains("s3://bucket/a/b")
                && error.contains(&format!("{status} "))
                && error.contains(&format!("http://127.0.0.1:{}/bucket/a/b", bucket.port)),
            "{method} {status}: {error}"
        );
        assert_eq!(bucket.object(), None);
        let requests = bucket.requests();
        let mut made: Vec<&String> = requests
            .iter()
            .filter(|request| request.starts_with(method))
            .collect();
        made.sort();
        // Each of the three parts may be tried as often as one is.
        made.dedup_by(|a, b| method == "PUT" && a == b);
        let most = if method == "PUT" { 3 } else { tries };
        assert!(
            (1..=most).contains(&made.len()),
            "{method} {status}: {requests:?}"
        );
        let of_first = requests
            .iter()
            .filter(|request| request.starts_with("PUT partNumber=1"))
            .count();
        assert!(
            method != "PUT" || of_first == tries,
            "{of_first} of {tries}: {requests:?}"
        );
        // What was begun is taken back.
        let begun = requests.iter().any(|request| request.starts_with("PUT"));
        assert_eq!(
            bucket.shared.aborted.load(Ordering::SeqCst),
            begun,
            "{requests:?}"
        );
    }
}

#[test]
fn reads_outlast_faults_of_every_kind_and_they_are_counted() {
    let bytes = large();
    for faults in [
        vec![],
        vec![Fault::Status(503)],
        vec![Fault::Status(500), Fault::Status(429), Fault::Reset],
        vec![Fault::Cut],
        vec![Fault::Lost, Fault::Cut, Fault::Cut],
        vec![Fault::Stall],
        vec![Fault::Silent, Fault::Status(503)],
    ] {
        let script = faults.iter().map(|fault| ("GET", *fault));
        let bucket = Bucket::start(script.clone());
        bucket.put(&bytes);
        let (store, counted) = bucket.client();
        let open = || ObjectFile::from_store(Arc::clone(&store), ObjectPath::from("a/b"), "s3://bucket/a/b");
        let file = open().unwrap();
        let to_open = counted.load(Ordering::Relaxed);
        assert_eq!(
            to_open,
            faults.len() as u64,
            "{faults:?}: {:?}",
            bucket.requests()
        );
        bucket.script(script);
        let mut found = vec![0; 3 << 20];
        file.read_at(1 << 20, &mut found).unwrap();
        assert!(found == bytes[1 << 20..4 << 20], "{faults:?}: other bytes");
        let to_read = counted.load(Ordering::Relaxed) - to_open;
        assert_eq!(
            to_read,
            faults.len() as u64,
            "{faults:?}: {:?}",
            bucket.requests()
        );
    }
}

#[test]
fn a_store_that_is_not_there_is_given_up_in_time_and_one_that_only_says_no_in_the_end() {
    let bucket = Bucket::start([]);
    bucket.put(&large());
    let (store, _) = bucket.client();
    let open = || ObjectFile::from_store(Arc::clone(&store), ObjectPath::from("a/b"), "s3://bucket/a/b");
    let file = open().unwrap();
    bucket.script(vec![("GET", Fault::Status(503)); 1000]);
    let error = told(&file.read_at(0, &mut [0; 100]).unwrap_err());
    assert!(
        error.contains("s3://bucket/a/b") && error.contains("503"),
        "{error}"
    );
    // Six tries of the client, and these four times at most.
    assert!(bucket.requests().len() <= 25, "{error}");

    // A fault of the network in the middle: what is left is a port that nobody listens on.
    let port = bucket.port;
    drop(bucket);
    let refused = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop);
    refused.unwrap();
    for error in [file.read_at(0, &mut [0; 100]).unwrap_err(), open().unwrap_err()] {
        let error = told(&error);
        assert!(
            error.contains("could not be reached for") && error.contains("refused"),
            "{error}"
        );
    }
    let begun = Instant::now();
    let payload = vec![7u8; 100];
    let error = upload(&store, &payload).unwrap_err();
    assert!(
        told(&error).contains("could not be reached for"),
        "{}",
        told(&error)
    );
    // Pauses of a few milliseconds, and 0.3 s of patience.
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_store_that_goes_silent_is_asked_over_a_new_connection_with_more_patience() {
    let bucket = Bucket::start([("GET", Fault::Silent), ("GET", Fault::Slow(600))]);
    bucket.put(b"slow");
    let (store, counted) = bucket.client();
    // 0.4 s are too short for an answer after 0.6 s; the second try has twice as long.
    let read = async {
        store
            .get_opts(&ObjectPath::from("a/b"), object_store::GetOptions::default())
            .await?
            .bytes()
            .await
    };
    assert_eq!(block_on(read).unwrap(), "slow");
    assert_eq!(counted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_store_behind_a_cable_that_is_cut_is_given_up_in_time() {
    // A listener that takes one connection and no more: packets of others are dropped, as they are on the way to a host that is gone.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket
        .bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
        .unwrap();
    socket.listen(1).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let mut bucket = Bucket::start([]);
    let own = std::mem::replace(&mut bucket.port, address.port());
    let (store, counted) = bucket.client();
    bucket.port = own;
    let error = std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            block_on(store.get_opts(&ObjectPath::from("a/b"), object_store::GetOptions::default()))
                .map(drop)
                .unwrap_err()
        });
        let (_kept, _) = listener.accept().unwrap();
        let mut held = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            held.push(stream);
        }
        read.join().unwrap()
    });
    assert!(is_unreachable(&error), "{error}");
    assert!(counted.load(Ordering::Relaxed) >= 1, "{error}");
}
