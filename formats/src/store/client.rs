//! The HTTP client of object stores: counts what is tried again, and tells a store that is not there from one that is busy.
//!
//! | what happens | what is done |
//! |---|---|
//! | no connection can be made | tried again here after 0.2 s, 0.4 s, then each second; after six seconds without any the request fails with [`Unreachable`] |
//! | a read gets no answer, or nothing more of one, for five seconds | it ends, and is tried again by the store over a new connection, with twice the patience |
//! | 5xx, 408, 429, a connection that breaks | tried again by the store, as [`retry`](super::object::retry) says |
//! | anything else | the store's error |
//!
//! So a store that is gone, or the network to it, ends a job within ten seconds, while one that is busy or slow is waited for.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use tokio::time::Sleep;

/// How long no connection can be made before a request fails.
const REACH: Duration = Duration::from_secs(6);
/// How long making one may take, where the user's settings say nothing: two tries and a pause are about [`REACH`].
const CONNECT: Duration = Duration::from_secs(3);
/// How long a read waits for an answer, or for more of one, before it is tried again; with [`CONNECT`] and a pause less than ten seconds.
const SILENCE: Duration = Duration::from_secs(5);
/// The same for a store that has been slow.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
/// Pauses between connections.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Failures are forgotten for so long that they no longer belong to the same trouble.
const TROUBLE: Duration = Duration::from_secs(30);
/// Requests whose failure is remembered, so that it is seen when they are tried again.
const MOST_FAILED: usize = 4096;

/// Requests of this process that were tried again.
static RETRIES: AtomicU64 = AtomicU64::new(0);

/// How often this process has tried a request to a store again, for reports.
pub fn retries() -> u64 {
    RETRIES.load(Ordering::Relaxed)
}

/// Notes a try that no client sees as one: of a request that was answered, but not with what was asked for, or with what turned out to be damaged.
pub fn tried_again() {
    RETRIES.fetch_add(1, Ordering::Relaxed);
}

/// No connection to a store could be made for some time. Not tried again.
#[derive(Debug, thiserror::Error)]
#[error("the store could not be reached for {:.1} seconds: {cause}", .seconds)]
pub(super) struct Unreachable {
    seconds: f64,
    cause: String,
}

/// A store has sent nothing for some time.
#[derive(Debug, thiserror::Error)]
#[error("the store sent nothing for {} seconds", .0.as_secs_f64())]
struct Silent(Duration);

/// A store cannot give the end of an object, or the object is empty.
#[derive(Debug, thiserror::Error)]
#[error("416 Range Not Satisfiable: the store gives no last bytes of this object")]
struct NoSuffixes;

/// Whether an error of a store comes from one that is not there.
pub(super) fn is_unreachable(error: &object_store::Error) -> bool {
    has::<Unreachable>(error)
}

/// Whether an error of a store comes from the network, and not from an answer.
pub(super) fn is_of_network(error: &object_store::Error) -> bool {
    has::<HttpError>(error)
}

tokio::task_local! {
    /// Status of the last answer to the requests of a piece of work.
    static STATUS: Cell<Option<u16>>;
}

/// Does a piece of work, and tells whether a store has answered its last request that it will not do (404, 410 and so on), and not only for now, nor
/// for the way it was put: a range from the end is what some refuse, with 400, 405 or 416. Errors of `object_store` tell the status in
/// words only.
pub(super) async fn and_is_refused<T>(work: impl Future<Output = T>) -> (T, bool) {
    let watched = async {
        let done = work.await;
        (done, STATUS.with(Cell::get))
    };
    let (done, status) = STATUS.scope(Cell::new(None), watched).await;
    let refused = |status| matches!(status, 400..500) && !matches!(status, 400 | 405 | 408 | 416 | 429);
    (done, status.is_some_and(refused))
}

/// Whether a store has refused to give the last bytes of an object.
pub(super) fn has_no_suffixes(error: &object_store::Error) -> bool {
    has::<NoSuffixes>(error)
}

fn has<E: Error + 'static>(error: &object_store::Error) -> bool {
    std::iter::successors(error.source(), |&error| error.source()).any(|error| error.is::<E>())
}

/// Makes the clients of stores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connector {
    retries: &'static AtomicU64,
    reach: Duration,
    silence: Duration,
}

impl Default for Connector {
    fn default() -> Self {
        Self {
            retries: &RETRIES,
            reach: REACH,
            silence: SILENCE,
        }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let key = ClientConfigKey::ConnectTimeout;
        let mut options = options.clone();
        if options.get_config_value(&key) == ClientOptions::default().get_config_value(&key) {
            options = options.with_connect_timeout(CONNECT);
        }
        let client = ReqwestConnector::default().connect(&options)?;
        Ok(HttpClient::new(Client(Arc::new(Shared {
            connector: *self,
            options,
            state: Mutex::new(State {
                client,
                generation: 0,
                silence: self.silence,
                trouble: None,
                failed: HashMap::new(),
            }),
        }))))
    }
}

/// The client of one store.
#[derive(Debug, Clone)]
struct Client(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connector: Connector,
    options: ClientOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    client: HttpClient,
    /// Of the client: it is replaced where it went silent, since its other connections may be as dead.
    generation: u64,
    silence: Duration,
    /// Since when, and until when at least, nothing came from the store.
    trouble: Option<(Instant, Instant)>,
    /// Requests that failed in a way that may pass, under each of the two keys that their next try may have.
    failed: HashMap<u64, u64>,
}

impl Shared {
    /// No code panics while it holds the lock, so a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) {
        self.connector.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Remembers a request that failed, so that its next try is known as one.
    fn failed(&self, keys: [u64; 2]) {
        let mut state = self.lock();
        if state.failed.len() >= MOST_FAILED {
            state.failed.clear();
        }
        let [one, other] = keys;
        state.failed.extend([(one, other), (other, one)]);
    }

    /// Counts a request that is another try.
    fn look_for_retry(&self, key: u64) {
        let mut state = self.lock();
        if let Some(other) = state.failed.remove(&key) {
            state.failed.remove(&other);
            drop(state);
            self.count();
        }
    }

    /// For how long nothing has come, after another try that began then.
    fn trouble_since(&self, began: Instant) -> Duration {
        let mut state = self.lock();
        let now = Instant::now();
        let since = match state.trouble {
            Some((since, last)) if began.saturating_duration_since(last) < TROUBLE => since,
            _ => began,
        };
        state.trouble = Some((since, now));
        now - since
    }

    /// The store has sent nothing since `began`: what comes next goes over new connections, and is waited for longer.
    fn went_silent(&self, began: Instant, generation: u64) {
        self.trouble_since(began);
        let mut state = self.lock();
        if state.generation == generation
            && let Ok(client) = ReqwestConnector::default().connect(&self.options)
        {
            state.client = client;
            state.generation += 1;
            state.silence = (state.silence * 2).min(LONGEST_SILENCE);
        }
    }

    /// The store has answered.
    fn heard(&self, after: Duration) {
        let mut state = self.lock();
        state.trouble = None;
        if after < self.connector.silence {
            state.silence = self.connector.silence;
        }
    }
}

/// What tells a request from others: all but the beginning of its range, since a read that breaks in the middle goes on behind.
fn key(request: &HttpRequest) -> (DefaultHasher, u64) {
    let mut hasher = DefaultHasher::new();
    request.method().as_str().hash(&mut hasher);
    request.uri().hash(&mut hasher);
    let range = request.headers().get("range");
    let key = with_end(
        &hasher,
        range.and_then(|range| range.as_bytes().rsplit(|byte| *byte == b'-').next()),
    );
    (hasher, key)
}

fn with_end(request: &DefaultHasher, end: Option<&[u8]>) -> u64 {
    let mut hasher = request.clone();
    end.hash(&mut hasher);
    hasher.finish()
}

/// The key of the same read behind what came of it: a range that was asked for from the end then has its place.
fn key_of_rest(request: &DefaultHasher, response: &HttpResponse, key: u64) -> u64 {
    // As in `bytes 0-99/100`.
    let place = response.headers().get("content-range");
    let range = place.and_then(|place| place.as_bytes().split(|byte| *byte == b'/').next());
    let end = range.and_then(|range| range.rsplit(|byte| *byte == b'-').next());
    end.map_or(key, |end| with_end(request, Some(end)))
}

/// Whether no connection could be made; a timeout of that is told as any timeout.
fn is_connect(error: &HttpError) -> bool {
    error.kind() == HttpErrorKind::Connect
        || error
            .source()
            .and_then(|source| source.downcast_ref::<reqwest::Error>())
            .is_some_and(reqwest::Error::is_connect)
}

/// The innermost cause, which says most.
fn root(error: &HttpError) -> String {
    let first: &dyn Error = error;
    std::iter::successors(Some(first), |&error| error.source())
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

#[async_trait::async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let shared = &self.0;
        let (hasher, key) = key(&request);
        shared.look_for_retry(key);
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            match self.attempt(request.clone(), &hasher, key).await {
                Ok(response) => return Ok(response),
                Err(error) if is_connect(&error) => {
                    let lost = shared.trouble_since(began);
                    if lost + pause >= shared.connector.reach {
                        let unreachable = Unreachable {
                            seconds: lost.as_secs_f64(),
                            cause: root(&error),
                        };
                        return Err(HttpError::new(HttpErrorKind::Unknown, unreachable));
                    }
                    // Nothing was sent, so any request can be tried again.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    shared.count();
                }
                Err(error) => {
                    shared.failed([key; 2]);
                    return Err(error);
                }
            }
        }
    }
}

impl Client {
    async fn attempt(
        &self,
        request: HttpRequest,
        hasher: &DefaultHasher,
        key: u64,
    ) -> Result<HttpResponse, HttpError> {
        let (shared, began) = (&self.0, Instant::now());
        // Whoever asks need not want to know.
        let _ = STATUS.try_with(|last| last.set(None));
        let (client, generation, silence) = {
            let state = shared.lock();
            (state.client.clone(), state.generation, state.silence)
        };
        let is_read = request.method().is_safe();
        let range = request.headers().get("range");
        let is_suffix = range.is_some_and(|range| range.as_bytes().starts_with(b"bytes=-"));
        let answer = client.execute(request);
        let response = if is_read {
            match tokio::time::timeout(silence, answer).await {
                Ok(answer) => answer?,
                Err(_) => {
                    shared.went_silent(began, generation);
                    return Err(HttpError::new(HttpErrorKind::Timeout, Silent(silence)));
                }
            }
        } else {
            // What is sent may take its time; the client has a limit for all of it.
            answer.await?
        };
        shared.heard(began.elapsed());
        let status = response.status();
        let _ = STATUS.try_with(|last| last.set(Some(status.as_u16())));
        if is_suffix && status.as_u16() == 416 {
            return Err(HttpError::new(HttpErrorKind::Unknown, NoSuffixes));
        }
        if status.is_server_error() || matches!(status.as_u16(), 408 | 429) {
            shared.failed([key; 2]);
        }
        let keys = [key, key_of_rest(hasher, &response, key)];
        let watched = |inner| {
            HttpResponseBody::new(Watched {
                inner,
                shared: Arc::clone(shared),
                keys,
                generation,
                silence,
                timer: None,
            })
        };
        Ok(response.map(watched))
    }
}

/// The body of an answer: one that ends early or goes silent is a failure of its request.
struct Watched {
    inner: HttpResponseBody,
    shared: Arc<Shared>,
    keys: [u64; 2],
    generation: u64,
    silence: Duration,
    /// Runs while more is waited for.
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) {
            this.timer = None;
            if let Some(Err(_)) = &frame {
                this.shared.failed(this.keys);
            }
            return Poll::Ready(frame);
        }
        let silence = this.silence;
        let (began, timer) = this
            .timer
            .get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(silence))));
        if timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        this.shared.went_silent(*began, this.generation);
        this.shared.failed(this.keys);
        let error = HttpError::new(HttpErrorKind::Timeout, Silent(silence));
        Poll::Ready(Some(Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
