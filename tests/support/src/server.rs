//! A small HTTP server over a folder that misbehaves on request: for tests of downloads.
//!
//! Answers `GET` and `HEAD` with `Content-Length`, `ETag` and byte ranges, and minds `If-Match`; one request a connection. Each request takes the
//! next [`Fault`] of the script; when the script is used up, every answer is right.

use std::collections::VecDeque;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// What goes wrong with one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing: the right answer.
    None,
    /// The connection closes after this many bytes of the body, short of the length that was announced.
    CutAfter(usize),
    /// This status with a short text, such as 503 or 404.
    Status(u16),
    /// Status 429, and the wish to be asked again after so many seconds.
    Busy(u64),
    /// The whole file with status 200, although a range was asked for.
    IgnoreRange,
    /// A web page with status 200 in place of the file.
    WebPage,
    /// The right length and status, but every byte from this offset of the file on is inverted.
    Garble(usize),
    /// The connection closes before anything is sent.
    Close,
    /// The connection is reset before anything is sent.
    Reset,
    /// The right answer, after so many milliseconds.
    Slow(u64),
    /// Half of what was asked for, told as if that was all of it.
    Short,
    /// Half of the body, and then nothing for as long as the client stays.
    Stall,
}

/// A request that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// First byte asked for by a `Range: bytes=N-` header.
    pub range_start: Option<u64>,
    /// Last byte asked for, as in `Range: bytes=N-M`.
    pub range_last: Option<u64>,
    /// Bytes asked for from the end, as in `Range: bytes=-N`.
    pub range_suffix: Option<u64>,
    /// The tag that the file has to have, by an `If-Match` header.
    pub if_match: Option<String>,
    /// The access key that S3's protocol has signed it with.
    pub key: Option<String>,
}

/// Credentials that a server hands out at `/credentials`, and asks for everywhere else, as S3 does.
#[derive(Debug, Clone, Copy)]
pub struct Credentials {
    /// How long each of them is taken.
    pub lifetime: Duration,
    /// They say that they are taken for an hour.
    pub are_taken_back: bool,
}

/// A running server; stops when dropped.
#[derive(Debug)]
pub struct FileServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    script: Mutex<VecDeque<Fault>>,
    requests: Mutex<Vec<Request>>,
    stopped: AtomicBool,
    begun: Instant,
    credentials: Option<Credentials>,
    refused: AtomicUsize,
}

impl FileServer {
    /// Serves the files directly in `folder`, with one fault a request from `script`.
    ///
    /// # Panics
    /// If no port of the loopback address is free.
    pub fn start(folder: impl Into<PathBuf>, script: impl IntoIterator<Item = Fault>) -> Self {
        Self::start_with(folder.into(), script.into_iter().collect(), None)
    }

    /// Serves the files below `folder` to those who have credentials of the moment. Signatures are not looked at.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_guarded(folder: impl Into<PathBuf>, credentials: Credentials) -> Self {
        Self::start_with(folder.into(), VecDeque::new(), Some(credentials))
    }

    fn start_with(folder: PathBuf, script: VecDeque<Fault>, credentials: Option<Credentials>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            folder,
            script: Mutex::new(script),
            requests: Mutex::default(),
            stopped: AtomicBool::new(false),
            begun: Instant::now(),
            credentials,
            refused: AtomicUsize::new(0),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.stopped.load(Ordering::Acquire) {
                    break;
                }
                let served = Arc::clone(&served);
                // A client that hangs up early is its own affair.
                std::thread::spawn(move || stream.and_then(|stream| served.answer(stream)));
            }
        });
        Self {
            address,
            shared,
            thread: Some(thread),
        }
    }

    /// The address of a file: `http://127.0.0.1:PORT/NAME`.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// The requests so far, in the order in which they came in.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// Requests that came with other credentials than those of the moment.
    pub fn num_refused(&self) -> usize {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Faults of the script that no request has met yet.
    pub fn faults_left(&self) -> usize {
        lock(&self.shared.script).len()
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the thread from `accept`.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        let Some(request) = read_request(&stream)? else {
            return Ok(());
        };
        let fault = lock(&self.script).pop_front().unwrap_or(Fault::None);
        lock(&self.requests).push(request.clone());
        if let Some(Credentials {
            lifetime,
            are_taken_back,
        }) = self.credentials
        {
            let elapsed = self.begun.elapsed();
            let number = (elapsed.as_nanos() / lifetime.as_nanos()) as u32;
            let key = format!("KEY{number}");
            if request.path == "/credentials" {
                let left = match are_taken_back {
                    true => Duration::from_secs(3_600),
                    false => (number + 1) * lifetime - elapsed,
                };
                let expires = rfc3339(SystemTime::now() + left);
                let body = format!(
                    r#"{{"AccessKeyId":"{key}","SecretAccessKey":"secret","Token":"token","Expiration":"{expires}"}}"#
                );
                return send(&mut stream, &request, 200, &[], body.as_bytes(), None);
            }
            if request.key.as_ref() != Some(&key) {
                self.refused.fetch_add(1, Ordering::Relaxed);
                let body = b"<Error><Code>InvalidAccessKeyId</Code></Error>";
                return send(&mut stream, &request, 403, &[], body, None);
            }
        }
        match &fault {
            Fault::Close => return stream.shutdown(Shutdown::Both),
            Fault::Reset => return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)),
            Fault::Slow(milliseconds) => std::thread::sleep(Duration::from_millis(*milliseconds)),
            Fault::Status(status) => {
                return send(&mut stream, &request, *status, &[], b"no luck this time\n", None);
            }
            Fault::Busy(seconds) => {
                let wait = [format!("Retry-After: {seconds}")];
                return send(&mut stream, &request, 429, &wait, b"busy\n", None);
            }
            Fault::WebPage => {
                let page = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in.</body></html>\n";
                let html = ["Content-Type: text/html; charset=utf-8".to_owned()];
                return send(&mut stream, &request, 200, &html, page, None);
            }
            _ => {}
        }
        let name = request
            .path
            .split('?')
            .next()
            .unwrap_or_default()
            .trim_start_matches('/');
        if name.contains("..") {
            return send(&mut stream, &request, 404, &[], b"not found\n", None);
        }
        let Ok(mut data) = fs::read(self.folder.join(name)) else {
            return send(&mut stream, &request, 404, &[], b"not found\n", None);
        };
        let tag = {
            let mut hasher = DefaultHasher::new();
            data.hash(&mut hasher);
            format!("\"{name}-{:016x}\"", hasher.finish())
        };
        if request.if_match.as_ref().is_some_and(|wanted| *wanted != tag) {
            return send(&mut stream, &request, 412, &[], b"it has changed\n", None);
        }
        let mut headers = vec!["Accept-Ranges: bytes".to_owned(), format!("ETag: {tag}")];
        if let Fault::Garble(offset) = fault {
            data.iter_mut().skip(offset).for_each(|byte| *byte = !*byte);
        }
        let length = data.len() as u64;
        let start = match request.range_suffix {
            Some(suffix) if length > 0 => Some(length.saturating_sub(suffix)),
            _ => request.range_start,
        };
        let mut end = request
            .range_last
            .map_or(length, |last| last.saturating_add(1).min(length));
        if fault == Fault::Short {
            let start = start.unwrap_or(0).min(end);
            end = start + (end - start) / 2;
        }
        let cut = match fault {
            Fault::CutAfter(bytes) => Some(bytes),
            Fault::Stall => Some((end - start.unwrap_or(0).min(end)) as usize / 2),
            _ => None,
        };
        let sent = match start {
            Some(start) if fault != Fault::IgnoreRange => {
                if start >= end {
                    headers.push(format!("Content-Range: bytes */{}", data.len()));
                    return send(&mut stream, &request, 416, &headers, b"", None);
                }
                headers.push(format!("Content-Range: bytes {start}-{}/{}", end - 1, data.len()));
                // The file is in memory, so its offsets fit.
                let body = &data[start as usize..end as usize];
                send(&mut stream, &request, 206, &headers, body, cut)
            }
            _ => send(&mut stream, &request, 200, &headers, &data[..end as usize], cut),
        };
        if fault == Fault::Stall {
            // Until the client hangs up.
            return stream.read(&mut [0]).map(drop);
        }
        sent.and_then(|()| stream.shutdown(Shutdown::Write))
    }
}

/// A moment as `2026-11-30T08:05:00Z`.
fn rfc3339(moment: SystemTime) -> String {
    let seconds = moment
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [
        31,
        28 + u64::from(is_leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!(
        "{year}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        month + 1,
        days + 1,
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

fn read_request(stream: &TcpStream) -> io::Result<Option<Request>> {
    let mut lines = BufReader::new(stream).lines();
    let Some(first) = lines.next().transpose()? else {
        return Ok(None);
    };
    let mut words = first.split(' ');
    let mut request = Request {
        method: words.next().unwrap_or_default().to_owned(),
        path: words.next().unwrap_or_default().to_owned(),
        range_start: None,
        range_last: None,
        range_suffix: None,
        if_match: None,
        key: None,
    };
    for line in lines {
        let line = line?;
        if line.is_empty() {
            return Ok(Some(request));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("if-match")
        {
            request.if_match = Some(value.trim().to_owned());
        }
        if let Some((_, rest)) = line.split_once("Credential=") {
            request.key = rest.split('/').next().map(str::to_owned);
        }
        if let Some(range) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            let (start, last) = range.split_once('-').unwrap_or((range, ""));
            (request.range_start, request.range_last) = (start.parse().ok(), last.parse().ok());
            if start.is_empty() {
                request.range_suffix = request.range_last.take();
            }
        }
    }
    Ok(None)
}

fn send(
    stream: &mut TcpStream,
    request: &Request,
    status: u16,
    headers: &[String],
    body: &[u8],
    cut: Option<usize>,
) -> io::Result<()> {
    let mut head = format!(
        "HTTP/1.1 {status} Answer\r\nContent-Length: {}\r\nConnection: close\r\n",
        body.len()
    );
    for header in headers {
        head += &format!("{header}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method != "HEAD" {
        stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])?;
    }
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(server: &FileServer, name: &str, range: Option<u64>) -> (u16, Vec<u8>) {
        get_range(server, name, range.map(|start| format!("{start}-")))
    }

    fn get_range(server: &FileServer, name: &str, range: Option<String>) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let range = range.map_or(String::new(), |range| format!("Range: bytes={range}\r\n"));
        write!(stream, "GET /{name} HTTP/1.1\r\nHost: localhost\r\n{range}\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            return (0, answer);
        };
        let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
        (status, answer[end + 4..].to_vec())
    }

    #[test]
    fn moments_are_written_as_in_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_025_599, "2026-11-30T07:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(
                rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
                text
            );
        }
    }

    #[test]
    fn serves_ranges_and_follows_its_script() {
        let folder = crate::temp_dir();
        fs::write(folder.path().join("file"), b"0123456789").unwrap();
        let script = [
            Fault::None,
            Fault::CutAfter(3),
            Fault::None,
            Fault::IgnoreRange,
            Fault::Status(503),
            Fault::Garble(8),
            Fault::Close,
            Fault::Busy(7),
            Fault::Slow(1),
            Fault::None,
            Fault::Short,
        ];
        let server = FileServer::start(folder.path(), script);
        assert_eq!(get(&server, "file", None), (200, b"0123456789".to_vec()));
        assert_eq!(get(&server, "file", None), (200, b"012".to_vec()));
        assert_eq!(get(&server, "file", Some(3)), (206, b"3456789".to_vec()));
        assert_eq!(get(&server, "file", Some(3)), (200, b"0123456789".to_vec()));
        assert_eq!(get(&server, "file", None).0, 503);
        assert_eq!(
            get(&server, "file", None),
            (200, [b"01234567".as_slice(), &[!b'8', !b'9']].concat())
        );
        assert_eq!(get(&server, "file", None), (0, Vec::new()));
        assert_eq!(get(&server, "file", None).0, 429);
        assert_eq!(
            get_range(&server, "file", Some("2-4".into())),
            (206, b"234".to_vec())
        );
        assert_eq!(
            get_range(&server, "file", Some("-3".into())),
            (206, b"789".to_vec())
        );
        assert_eq!(
            get_range(&server, "file", Some("2-5".into())),
            (206, b"23".to_vec())
        );
        assert_eq!(get(&server, "file", Some(10)).0, 416);
        assert_eq!(get(&server, "other", None).0, 404);
        assert_eq!(server.faults_left(), 0);
        assert_eq!(server.requests()[2].range_start, Some(3));
        assert_eq!(server.requests().len(), 13);
    }
}
