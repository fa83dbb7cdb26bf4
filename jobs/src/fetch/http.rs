//! Downloads that survive bad connections.
//!
//! While a download runs, `NAME.part` holds the bytes so far and `NAME.part.json` what they are of: address and validators.
//! A further attempt, in this run or the next, asks for the rest with `Range` and `If-Range`; a server that cannot do that, or
//! has another file by now, sends the whole, and the download begins anew.
//!
//! Source: RFC 9110, sections 13 and 14.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use ureq::http::HeaderMap;
use url::Url;

use crate::builder::SourceSpec;
use crate::error::Hinted;
use crate::fetch::checksum::hash_into;
use crate::fetch::{FetchOptions, Fetched, is_store};
use crate::monitor::{Meter, Monitor};

/// Bytes taken from the network at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// Longest pause between attempts, whatever a server asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a server may be out of reach, so that a job whose network is gone ends within ten seconds; a rerun goes on from the part.
const REACH: Duration = Duration::from_secs(6);
/// How long a connection to one may take, and the pause before the next.
const CONNECT: Duration = Duration::from_secs(3);
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(1);
/// An attempt that brings so much counts as time well spent.
const MUCH_BYTES: u64 = 1 << 20;
/// How much of a web page is read to tell its size.
const MOST_PAGE_BYTES: u64 = 4 << 20;

/// The download was ended because another one failed.
#[derive(Debug, thiserror::Error)]
#[error("stopped, since another download failed")]
pub(super) struct Stopped;

/// Downloads files by HTTP(S).
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    options: FetchOptions,
    monitor: Arc<Monitor>,
    stopped: Mutex<bool>,
}

/// What `NAME.part` holds.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PartState {
    url: String,
    etag: Option<String>,
    last_modified: Option<String>,
}

impl PartState {
    /// That of an object of a store, by its tag.
    pub(super) fn of_object(url: &Url, tag: Option<&str>) -> Self {
        Self {
            url: url.to_string(),
            etag: tag.map(str::to_owned),
            last_modified: None,
        }
    }

    /// What `If-Range` can say: a strong tag, else the date.
    fn validator(&self) -> Option<&str> {
        let strong = self.etag.as_deref().filter(|tag| !tag.starts_with("W/"));
        strong.or(self.last_modified.as_deref())
    }
}

/// A download in progress.
pub(super) struct Part {
    file: File,
    path: PathBuf,
    state_path: PathBuf,
    state: PartState,
    bytes: u64,
    hasher: Sha256,
}

/// Why an attempt did not bring the whole file.
pub(super) enum Failure {
    /// It may go better next time.
    Transient {
        reason: String,
        wait: Option<Duration>,
        /// Whether the server could not even be connected to.
        is_unreachable: bool,
    },
    /// It will not.
    Final(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

fn transient(reason: impl Into<String>) -> Failure {
    Failure::Transient {
        reason: reason.into(),
        wait: None,
        is_unreachable: false,
    }
}

/// What is wanted of an attempt.
pub(super) struct Wish<'a> {
    pub(super) url: &'a Url,
    pub(super) spec: &'a SourceSpec,
    /// Whether it has to be the file that the spec states.
    pub(super) strict: bool,
    pub(super) meter: &'a Meter,
}

impl Client {
    /// A client that trusts the certificates that the system trusts, and uses the proxy that the environment names.
    ///
    /// # Errors
    /// The system's certificates cannot be read; downloads without TLS need none, so this shows only when they are used.
    pub fn new(options: FetchOptions, monitor: Arc<Monitor>) -> Result<Self> {
        let found = rustls_native_certs::load_native_certs();
        let roots = found
            .certs
            .iter()
            .map(|certificate| ureq::tls::Certificate::from_der(certificate.as_ref()).to_owned())
            .collect::<Vec<_>>();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ureq::tls::TlsConfig::builder()
            .root_certs(ureq::tls::RootCerts::Specific(Arc::new(roots)))
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .user_agent(concat!("prep/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(options.stall.min(CONNECT)))
            .timeout_connect(Some(options.stall.min(CONNECT)))
            .timeout_recv_response(Some(options.stall))
            .timeout_per_read(Some(options.stall))
            .input_buffer_size(BUFFER_BYTES)
            .build();
        Ok(Self {
            agent: config.new_agent(),
            options,
            monitor,
            stopped: Mutex::new(false),
        })
    }

    /// Ends all downloads now: what waits in the network returns with an error.
    pub(super) fn stop(&self) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        if !*stopped {
            *stopped = true;
            self.agent.clone().shutdown();
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.monitor.check()?;
        if *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(Stopped.into());
        }
        Ok(())
    }

    /// Downloads a source into `folder`, under its name. The file appears there when it is whole, checked and durable.
    ///
    /// # Errors
    /// The server has no such file, sends something else, or gave up on us; the disk is full; the job was stopped.
    pub fn download(
        &self,
        url: &Url,
        folder: &Path,
        spec: &SourceSpec,
        strict: bool,
        meter: &Meter,
    ) -> Result<Fetched> {
        let shown = shown(url);
        let mut part = Part::open(folder, spec, url, &self.monitor)?;
        let mut resumed = part.bytes > 0;
        let mut failures = 0;
        let mut retries = 0u64;
        let mut lost = Duration::ZERO;
        let mut unreachable_since: Option<Instant> = None;
        loop {
            self.check()?;
            let before = part.bytes;
            let began = Instant::now();
            meter.set(part.bytes);
            let wish = Wish {
                url,
                spec,
                strict,
                meter,
            };
            let attempt = match is_store(url.scheme()) {
                true => self.attempt_stored(&mut part, &wish),
                false => self.attempt(&mut part, &wish),
            };
            let failure = match attempt {
                Ok(()) => match self.finish(&mut part, folder, spec, strict, &shown) {
                    Ok(fetched) => return Ok(fetched),
                    // Joined from pieces, it may be of two files; whole, it cannot.
                    Err(error) if resumed && error.is::<Hinted>() => {
                        self.monitor.warn(format!(
                            "{}: the resumed download is not the recipe's file; starting it anew",
                            spec.name
                        ));
                        resumed = false;
                        part = Part::open(folder, spec, url, &self.monitor)?;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                Err(failure) => failure,
            };
            self.check()?;
            let (reason, wait, is_unreachable) = match failure {
                Failure::Final(error) => return Err(error.context(format!("could not fetch {shown}"))),
                Failure::Transient {
                    reason,
                    wait,
                    is_unreachable,
                } => (reason, wait, is_unreachable),
            };
            unreachable_since = is_unreachable.then(|| unreachable_since.unwrap_or(began));
            failures = if part.bytes > before { 1 } else { failures + 1 };
            // An attempt that brought much was not lost, however it ended.
            if part.bytes - before.min(part.bytes) < MUCH_BYTES {
                lost += began.elapsed();
            }
            let unreachable = unreachable_since.map_or(Duration::ZERO, |since| since.elapsed());
            let given_up = if unreachable >= REACH {
                Some(format!(
                    "{:.0} s in which it could not be reached",
                    unreachable.as_secs_f64()
                ))
            } else if failures >= self.options.attempts {
                Some(format!("{failures} attempts without progress"))
            } else if lost >= self.options.patience {
                Some(format!("{} attempts in {:.0} s", retries + 1, lost.as_secs_f64()))
            } else {
                None
            };
            if let Some(given_up) = given_up {
                return Err(Hinted::new(
                    format!("could not fetch {shown}: {reason}; gave up after {given_up}"),
                    "the same command goes on from here; without internet, pass `--from` a folder that has the files",
                )
                .into());
            }
            resumed |= part.bytes > 0;
            retries += 1;
            self.monitor.retried();
            let longest = if is_unreachable {
                UNREACHABLE_PAUSE
            } else {
                LONGEST_PAUSE
            };
            let pause = wait.unwrap_or_else(|| self.pause(failures)).min(longest);
            self.monitor.warn(format!(
                "{}: {reason}; trying again from byte {}",
                spec.name, part.bytes
            ));
            self.rest(pause)?;
            lost += pause;
        }
    }

    /// The pause after so many failures: doubled each time, and by chance up to half shorter or longer.
    fn pause(&self, failures: u32) -> Duration {
        let doubled = self.options.pause.saturating_mul(1 << (failures.clamp(1, 8) - 1));
        let chance = (RandomState::new().hash_one(failures) % 1024) as u32;
        doubled / 2 + doubled / 1024 * chance
    }

    fn rest(&self, pause: Duration) -> Result<()> {
        let end = Instant::now() + pause;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// One request; on success the part is whole as far as the server says.
    fn attempt(&self, part: &mut Part, wish: &Wish<'_>) -> Result<(), Failure> {
        let Wish {
            url,
            spec,
            strict,
            meter,
        } = *wish;
        let wanted = spec.bytes.filter(|_| strict);
        if wanted.is_some_and(|wanted| part.bytes == wanted) {
            return Ok(());
        }
        let mut request = self.agent.get(url.as_str());
        // Without a validator only a checksum can tell whether the pieces fit.
        let pinned = strict && spec.sha256.is_some();
        if part.bytes > 0 && (part.state.validator().is_some() || pinned) {
            request = request.header("Range", format!("bytes={}-", part.bytes));
            if let Some(validator) = part.state.validator() {
                request = request.header("If-Range", validator);
            }
        }
        let response = request.call().map_err(|error| of_network(&error))?;
        let status = response.status();
        let headers = response.headers().clone();
        let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
        let total = match status.as_u16() {
            200 => {
                part.restart(PartState {
                    url: url.to_string(),
                    etag: text(&headers, "etag"),
                    last_modified: text(&headers, "last-modified"),
                })?;
                meter.set(0);
                text(&headers, "content-length").and_then(|length| length.parse::<u64>().ok())
            }
            206 => {
                let range = text(&headers, "content-range").and_then(|range| content_range(&range));
                match range {
                    Some((start, total)) if start == part.bytes && part.bytes > 0 => total,
                    _ => {
                        part.restart(PartState::default())?;
                        return Err(transient("the server sent another range than was asked for"));
                    }
                }
            }
            416 if part.bytes > 0 => {
                part.restart(PartState::default())?;
                return Err(transient(
                    "the server has a shorter file than the part that is here",
                ));
            }
            408 | 425 | 429 | 500 | 502 | 503 | 504 => {
                return Err(Failure::Transient {
                    reason: format!("the server says {status}"),
                    wait: text(&headers, "retry-after")
                        .and_then(|wait| retry_after(&wait, SystemTime::now())),
                    is_unreachable: false,
                });
            }
            _ => return Err(Failure::Final(anyhow::anyhow!("the server says {status}"))),
        };
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut first = part.bytes == 0;
        loop {
            self.check()?;
            let count = match body.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(transient(format!("the connection broke: {error}"))),
            };
            let bytes = &buffer[..count];
            if first {
                first = false;
                let content_type = text(&headers, "content-type").unwrap_or_default();
                if is_page(&content_type, bytes, &spec.name) {
                    let rest = io::copy(&mut body.take(MOST_PAGE_BYTES), &mut io::sink()).unwrap_or(0);
                    return Err(Failure::Final(page(
                        spec,
                        &content_type,
                        total.unwrap_or(count as u64 + rest),
                    )));
                }
                if let (Some(wanted), Some(total)) = (wanted, total)
                    && wanted != total
                {
                    return Err(Failure::Final(other_size(spec, wanted, &total.to_string())));
                }
            }
            if count == 0 {
                break;
            }
            if let Some(wanted) = wanted.filter(|wanted| part.bytes + count as u64 > *wanted) {
                part.restart(PartState::default())?;
                return Err(Failure::Final(other_size(spec, wanted, "more")));
            }
            part.append(bytes)?;
            meter.add(count as u64);
        }
        match total {
            Some(total) if part.bytes < total => Err(transient(format!(
                "the connection ended after {} of {total} bytes",
                part.bytes
            ))),
            _ => Ok(()),
        }
    }

    /// Checks a whole part, makes it durable, and gives it its name.
    fn finish(
        &self,
        part: &mut Part,
        folder: &Path,
        spec: &SourceSpec,
        strict: bool,
        shown: &str,
    ) -> Result<Fetched> {
        let sha256: [u8; 32] = part.hasher.clone().finalize().into();
        let bytes = part.bytes;
        let reason = match (spec.bytes, spec.sha256) {
            (Some(wanted), _) if strict && wanted != bytes => {
                Some(format!("it has {bytes} bytes; the recipe says {wanted}"))
            }
            (_, Some(wanted)) if strict && wanted != sha256 => Some(format!(
                "its SHA-256 is {}; the recipe says {}",
                hex::encode(sha256),
                hex::encode(wanted)
            )),
            _ => None,
        };
        if let Some(reason) = reason {
            part.remove();
            return Err(Hinted::new(
                format!("{shown} is not the recipe's `{}`: {reason}", spec.name),
                "get the right file elsewhere and pass `--from`, or take this one with `--no-checksum`",
            )
            .into());
        }
        let path = folder.join(&spec.name);
        let holder = path.parent().unwrap_or(folder);
        part.file
            .sync_all()
            .and_then(|()| std::fs::rename(&part.path, &path))
            .and_then(|()| File::open(holder)?.sync_all())
            .with_context(|| format!("could not write {}", path.display()))?;
        let _ = std::fs::remove_file(&part.state_path);
        Ok(Fetched {
            name: spec.name.clone(),
            path,
            bytes,
            sha256: Some(sha256),
        })
    }
}

impl Part {
    /// Opens the part of an earlier attempt and hashes what it has, or begins a new one.
    fn open(folder: &Path, spec: &SourceSpec, url: &Url, monitor: &Monitor) -> Result<Self> {
        let path = folder.join(format!("{}.part", spec.name));
        if let Some(holder) = path.parent().filter(|_| spec.name.contains('/')) {
            std::fs::create_dir_all(holder)
                .with_context(|| format!("could not create {}", holder.display()))?;
        }
        let state_path = folder.join(format!("{}.part.json", spec.name));
        let state: Option<PartState> = std::fs::read(&state_path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .filter(|state: &PartState| state.url == url.as_str());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("could not write {}", path.display()))?;
        let mut part = match state {
            Some(state) => {
                let mut hasher = Sha256::new();
                let bytes = hash_into(&mut hasher, &path, monitor)?;
                file.seek(SeekFrom::Start(bytes))
                    .with_context(|| format!("could not read {}", path.display()))?;
                Self {
                    file,
                    path,
                    state_path,
                    state,
                    bytes,
                    hasher,
                }
            }
            None => {
                let mut part = Self {
                    file,
                    path,
                    state_path,
                    state: PartState::default(),
                    bytes: 0,
                    hasher: Sha256::new(),
                };
                part.restart(PartState::default())?;
                part
            }
        };
        if spec.bytes.is_some_and(|wanted| part.bytes > wanted) {
            part.restart(PartState::default())?;
        }
        Ok(part)
    }

    /// How much is there.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether what is there is of this, for sure.
    pub(super) fn is_of(&self, state: &PartState) -> bool {
        self.state == *state && state.validator().is_some()
    }

    /// Empties the part, to be filled from what `state` says.
    pub(super) fn restart(&mut self, state: PartState) -> Result<()> {
        let shown = self.path.display();
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .with_context(|| format!("could not write {shown}"))?;
        self.bytes = 0;
        self.hasher = Sha256::new();
        let text = serde_json::to_vec(&state).context("could not write a download's state")?;
        std::fs::write(&self.state_path, text)
            .with_context(|| format!("could not write {}", self.state_path.display()))?;
        self.state = state;
        Ok(())
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .with_context(|| format!("could not write {}", self.path.display()))?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn remove(&mut self) {
        let _ = std::fs::remove_file(&self.state_path);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The address as it may be shown: without user, password and query.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// How long `Retry-After` asks to wait: seconds, or a date as in `Sun, 06 Nov 1994 08:49:37 GMT`. Source: RFC 9110, sections 10.2.3
/// and 5.6.7; dates in the two forms that nobody writes any more are not read.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let mut words = text.trim().strip_suffix(" GMT")?.split([' ', ':']);
    let _weekday = words.next()?;
    let day: i64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let mut number = || words.next()?.parse::<i64>().ok();
    let (year, hour, minute, second) = (number()?, number()?, number()?, number()?);
    if !(1970..10_000).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970, counting years from March on, so that a leap day is the last of its year.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = days * 86_400 + hour.clamp(0, 24) * 3600 + minute.clamp(0, 60) * 60 + second.clamp(0, 60);
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).ok()?);
    Some(then.duration_since(now).unwrap_or_default())
}

/// `bytes 100-199/200` as start and total.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

fn of_network(error: &ureq::Error) -> Failure {
    use ureq::Error;

    match error {
        Error::Io(_)
        | Error::Timeout(_)
        | Error::HostNotFound
        | Error::ConnectionFailed
        | Error::Protocol(_) => Failure::Transient {
            reason: format!("no answer: {error}"),
            wait: None,
            is_unreachable: is_unreachable(error),
        },
        other => Failure::Final(anyhow::anyhow!("{other}")),
    }
}

/// Whether an error means that there was no connection.
fn is_unreachable(error: &ureq::Error) -> bool {
    use ureq::{Error, Timeout};

    match error {
        Error::HostNotFound | Error::ConnectionFailed => true,
        Error::Timeout(timeout) => matches!(timeout, Timeout::Resolve | Timeout::Connect),
        Error::Io(error) => matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::AddrNotAvailable
        ),
        _ => false,
    }
}

/// Whether bytes are the beginning of a web page.
pub(super) fn looks_like_page(bytes: &[u8]) -> bool {
    let start = bytes
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(bytes)
        .trim_ascii_start();
    ["<!doctype html", "<html", "<head", "<body", "<!--"]
        .iter()
        .any(|tag| {
            start
                .get(..tag.len())
                .is_some_and(|found| found.eq_ignore_ascii_case(tag.as_bytes()))
        })
}

fn is_page(content_type: &str, bytes: &[u8], name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    if [".html", ".htm", ".xhtml"].iter().any(|end| lower.ends_with(end)) {
        return false;
    }
    let kind = content_type
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    let html = kind == "text/html" || kind == "application/xhtml+xml";
    // Some servers call everything `text/html`; a real archive is not text.
    let text = bytes
        .iter()
        .take(512)
        .all(|byte| *byte >= b' ' || byte.is_ascii_whitespace());
    looks_like_page(bytes) || (html && text)
}

fn page(spec: &SourceSpec, content_type: &str, bytes: u64) -> anyhow::Error {
    let expected = match spec.bytes {
        Some(wanted) => format!("expected {wanted} bytes, "),
        None => String::new(),
    };
    Hinted::new(
        format!(
            "what the server sends for `{}` looks like a web page: {expected}got {bytes} bytes of type `{content_type}`",
            spec.name
        ),
        "open the address in a browser to see what it wants; then get the file by hand and pass `--from`",
    )
    .into()
}

pub(super) fn other_size(spec: &SourceSpec, wanted: u64, found: &str) -> anyhow::Error {
    Hinted::new(
        format!(
            "the server's `{}` has {found} bytes; the recipe says {wanted}",
            spec.name
        ),
        "get the right file elsewhere and pass `--from`, or take this one with `--no-checksum`",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_ask_to_wait_in_seconds_or_until_a_date() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let wait = |text: &str, now| retry_after(text, at(now)).map(|wait| wait.as_secs());
        assert_eq!(wait("120", 0), Some(120));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_700), Some(77));
        assert_eq!(wait("Thu, 29 Feb 2024 00:00:00 GMT", 1_709_164_799), Some(1));
        assert_eq!(wait("Thu, 01 Jan 1970 00:00:05 GMT", 0), Some(5));
        // Long ago: at once.
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT", 900_000_000), Some(0));
        for text in [
            "soon",
            "",
            "-1",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 GMT",
            "GMT",
            "Sun, 06 Nov 0000 08:49:37 GMT",
        ] {
            assert_eq!(wait(text, 0), None, "{text}");
        }
    }
}
